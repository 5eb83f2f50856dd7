//! What an adopter was told of its pod's clients (the client block, `docs/adoption-wire.md`).
//!
//! Owns which client's address each leg has. Sockets go by the leg here; that addresses are written
//! over in every segment is for the tests of the adopter itself.

use super::adopter::Adopter;
use crate::tcp::wire::Seg;
use baton_packet::{
    CLIENT_BLOCK_BYTES, Flags, MessageKind, Segment, SeqNumber, parse_adoption, parse_client_block,
};
use std::{collections::BTreeMap, net::SocketAddr};

/// What a segment tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It begins no leg.
    Nothing,
    /// A block that is wrong: the segment is dropped.
    Bad,
    /// It begins a leg, on which the pod sees that client, or the dataplane.
    Begins(Option<SocketAddr>),
}

/// The first number of a leg, and whom the pod sees on it.
#[derive(Default)]
pub struct Restored {
    legs: BTreeMap<SocketAddr, (SeqNumber, Option<SocketAddr>)>,
}

impl Adopter {
    /// Looks for a client block, and takes it off.
    pub fn take_block(&self, frame: &[u8], segment: &Segment, seg: &mut Seg<'_>) -> Told {
        let adopts = || {
            parse_adoption(frame, segment)
                .is_some_and(|raw| raw.claimed_kind() == Some(MessageKind::Adopt))
        };
        let syn = seg.flags.has(Flags::SYN) && !seg.flags.has(Flags::ACK);
        if !self.attached || !(syn || adopts()) {
            return Told::Nothing;
        }
        let Some(raw) = parse_client_block(frame, segment) else {
            return Told::Begins(None);
        };
        seg.data = &[];
        if !syn {
            seg.seq = seg.seq.add(CLIENT_BLOCK_BYTES as u32);
        }
        let told = (self.keys.iter()).find_map(|(epoch, key)| {
            let block = raw.verify(key)?;
            (block.epoch == epoch & 15).then_some(block)
        });
        match told {
            // That of an Adopt is told why by its header.
            Some(block) if syn && block.namespace != self.namespace.0 => Told::Bad,
            Some(block) => Told::Begins(Some(SocketAddr::new(block.client, block.port))),
            None => Told::Bad,
        }
    }
}

impl Restored {
    /// A leg begins, or a copy of its beginning is here.
    ///
    /// # Errors
    /// If copies of one beginning tell of different clients: the pod would have two connections.
    pub fn begins(&mut self, seg: &Seg<'_>, client: Option<SocketAddr>) -> Result<(), String> {
        let old = self.legs.insert(seg.src, (seg.seq, client));
        match old {
            Some((seq, other)) if seq == seg.seq && other != client => Err(format!(
                "the beginning of :{} at {} tells of {client:?}, and of {other:?} before",
                seg.src.port(),
                seg.seq.0
            )),
            _ => Ok(()),
        }
    }

    /// Whom the pod sees on a leg, if that is not the dataplane.
    #[must_use]
    pub fn client_of(&self, leg: &SocketAddr) -> Option<SocketAddr> {
        self.legs.get(leg)?.1
    }
}
