//! Which answers of pods' adopters the engine may believe: those with a right tag, to what it asked
//! last.
//!
//! Owns the record of what was asked over which leg, and of true answers, which an attacker
//! repeats. It never looks into the engine or a pod.

use crate::{
    address::key_on,
    legs::Leg,
    tcp::wire::{Seg, receive},
};
use baton_packet::{Flags, MessageKind, Segment, SeqNumber, parse_adoption};
use std::collections::{BTreeMap, VecDeque};

/// True answers that an attacker remembers.
const HEARD_MAX: usize = 64;

/// What an adoption option of one of our messages begins with, but for its kind.
const MESSAGE: [u8; 3] = [253, 28, 0xba];
const PROBE: u8 = 0x71;
const ANSWER: u8 = 0x72;

/// The kind of message that a segment is, if it is one.
#[must_use]
pub fn kind(seg: &Seg<'_>) -> Option<u8> {
    let kind = seg.options.strip_prefix(&MESSAGE)?.first();
    kind.copied().filter(|kind| (0x70..=0x75).contains(kind))
}

/// Numbers of a message, and the how-manieth of all it was.
#[derive(Clone, Copy)]
struct Message {
    seq: SeqNumber,
    ack: SeqNumber,
    number: u64,
}

impl Message {
    fn is_answered_by(self, seg: &Seg<'_>, syn: bool) -> bool {
        // Nothing says which number a Forget's answer has.
        seg.ack == self.seq.add(u32::from(syn)) && (syn || seg.seq == self.ack)
    }
}

/// A true answer.
struct Heard {
    pod: usize,
    frame: Vec<u8>,
    /// So many messages had left by then.
    messages: u64,
}

/// Everything that was asked and said.
#[derive(Default)]
pub struct Asked {
    /// On which node each pod is.
    nodes: Vec<usize>,
    /// The last one of each kind of each leg.
    last: BTreeMap<(Leg, u8), Message>,
    count: u64,
    heard: VecDeque<Heard>,
}

impl Asked {
    /// Of pods on these nodes.
    #[must_use]
    pub fn new(nodes: Vec<usize>) -> Self {
        Self { nodes, ..Self::default() }
    }

    /// A message leaves towards a pod.
    pub fn leaves(&mut self, leg: Leg, kind: u8, seg: &Seg<'_>) {
        self.count += 1;
        let message = Message { seq: seg.seq, ack: seg.ack, number: self.count };
        self.last.insert((leg, kind), message);
    }

    /// A pod sends something; answers are remembered.
    pub fn says(&mut self, pod: usize, frame: &[u8]) {
        let answers = receive(frame).is_some_and(|(_, seg)| kind(&seg) == Some(ANSWER));
        if !answers || self.heard.iter().any(|h| h.pod == pod && h.frame == frame) {
            return;
        }
        if self.heard.len() >= HEARD_MAX {
            self.heard.pop_front();
        }
        self.heard.push_back(Heard { pod, frame: frame.to_vec(), messages: self.count });
    }

    /// A true answer, for somebody who repeats it.
    #[must_use]
    pub fn overheard(&self, rng: &mut fastrand::Rng) -> Option<(usize, Vec<u8>)> {
        if self.heard.is_empty() {
            return None;
        }
        let heard = &self.heard[rng.usize(..self.heard.len())];
        Some((heard.pod, heard.frame.clone()))
    }

    /// Why an answer that reaches the engine, which has the keys of these epochs, must not be
    /// believed, if there is a reason.
    #[must_use]
    pub fn distrust(
        &self,
        pod: usize,
        frame: &[u8],
        segment: &Segment,
        seg: &Seg<'_>,
        epochs: [u8; 2],
    ) -> Option<&'static str> {
        if kind(seg) != Some(ANSWER) || !seg.flags.has(Flags::RST) {
            return None;
        }
        let raw = parse_adoption(frame, segment)?;
        let Some(epoch) = epochs.iter().find(|e| *e & 15 == raw.epoch()) else {
            return Some("keys: an answer signed with a key that was rotated out is believed");
        };
        let verified = raw.verify(&key_on(self.nodes.get(pod).copied().unwrap_or(0), *epoch));
        if !matches!(verified.map(|a| a.kind), Some(MessageKind::Answer(_))) {
            return Some("answers: one with a wrong tag is believed");
        }
        let leg = (pod, seg.dst.port());
        let asked = (0x70..=0x75).find_map(|kind| {
            let message = self.last.get(&(leg, kind))?;
            let fits = message.is_answered_by(seg, kind == 0x73);
            fits.then_some((kind, *message))
        });
        let Some((kind, message)) = asked else {
            return Some("answers: one to something else than what was asked is believed");
        };
        let earlier = |h: &Heard| h.pod == pod && h.frame == frame && h.messages < message.number;
        // Each probe has numbers of its own; an adoption goes again as it was.
        (kind == PROBE && self.heard.iter().any(earlier))
            .then_some("answers: one that was given before the question is believed")
    }
}
