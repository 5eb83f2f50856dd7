//! The packet thread's part of a capture: which frames are meant, and copies of them into buffers
//! that are there already.
//!
//! Owns the filter's judgement and all buffers. Allocates nothing once it is made, waits for
//! nobody, never changes a frame. The engine is only looked at: before it has a frame and after,
//! because a frame may begin or end its flow.

use super::{Filter, Order, RATE_BYTES, RING_BYTES, RING_PAYLOAD_BYTES};
use crate::clock;
use baton_api::is_backend;
use baton_engine::{Engine, FlowLookup, Instant};
use baton_packet::{Decoded, Malformed, MessageKind, decode, parse_adoption};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
};

/// Frames of one call of the engine: a call does 256 timers at most, of which most send one frame,
/// and a frame seldom makes more than three.
const STAGE_FRAMES: usize = 512;
/// Connections that are remembered when they are no flow's any more, for their last frames: about
/// as many as end in a second of a chosen policy. One that is overwritten loses these.
const MEMORY: usize = 4_096;
/// So long after its time a tap that nobody took back goes by itself.
const LEFT_US: u64 = 30_000_000;
/// What is kept of a frame that is no TCP segment: Ethernet and IPv4, behind which there may be
/// anything.
const UNKNOWN_BYTES: usize = 34;
/// What an ICMP error quotes at least: ports and sequence number.
const QUOTED_BYTES: usize = 8;

/// Which way a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the dataplane.
    In,
    /// From it.
    Out,
}

/// A frame's copy.
#[derive(Debug)]
pub struct Packet {
    /// When, in nanoseconds since 1970.
    pub at_ns: u64,
    /// Which way.
    pub direction: Direction,
    /// Bytes that the frame has.
    pub bytes: usize,
    /// Those that are kept.
    pub data: Vec<u8>,
    /// The flow's client, on either side.
    pub client: Option<SocketAddr>,
    /// The backend and the port of ours, if it is on a leg.
    pub leg: Option<Ends>,
    /// What it says about an adoption. Its tag was not looked at.
    pub message: Option<MessageKind>,
}

/// What became of frames, readable at any time.
#[derive(Debug, Default)]
pub struct Counts {
    /// Meant by the filter.
    pub matched: AtomicU64,
    /// Lost because the control thread or the asker is too slow.
    pub ring_full: AtomicU64,
    /// Lost because they are too many bytes per second.
    pub rate: AtomicU64,
    /// Not looked at: more in one call of the engine than there is room for.
    pub unseen: AtomicU64,
}

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

/// The control thread's end: copies come, empty buffers go back.
pub struct Drain {
    /// Copies.
    pub full: Receiver<Packet>,
    /// Buffers for more.
    pub empty: SyncSender<Packet>,
    /// What became of frames.
    pub counts: Arc<Counts>,
}

/// The packet thread's end.
pub struct Tap {
    /// Of the worker that counts the capture.
    pub first: bool,
    filter: Filter,
    payload: bool,
    snaplen: usize,
    until: Instant,
    stage: Stage,
    memory: Memory,
    rate: Rate,
    full: SyncSender<Packet>,
    empty: Receiver<Packet>,
    counts: Arc<Counts>,
}

/// Both ends of one of so many workers' part of a capture that begins now.
pub fn tap(order: &Order, workers: usize, now: Instant) -> (Tap, Drain) {
    let room = if order.payload { RING_PAYLOAD_BYTES } else { RING_BYTES };
    let frames = room / order.snaplen.max(1) / workers;
    let (full, drained) = sync_channel(frames);
    let (returned, empty) = sync_channel(frames);
    for _ in 0..frames {
        let blank = Packet {
            at_ns: 0,
            direction: Direction::In,
            bytes: 0,
            data: Vec::with_capacity(order.snaplen),
            client: None,
            leg: None,
            message: None,
        };
        // There is room for exactly so many.
        let _ = returned.try_send(blank);
    }
    let counts = Arc::new(Counts::default());
    let micros = u64::try_from(order.time.as_micros()).unwrap_or(u64::MAX);
    let tap = Tap {
        first: true,
        filter: order.filter.clone(),
        payload: order.payload,
        snaplen: order.snaplen,
        until: Instant(now.0.saturating_add(micros).saturating_add(LEFT_US)),
        stage: Stage::new(order),
        memory: Memory::new(),
        rate: Rate {
            per_second: RATE_BYTES / workers as u64,
            left: RATE_BYTES / workers as u64,
            since: now,
        },
        full,
        empty,
        counts: Arc::clone(&counts),
    };
    let drain = Drain { full: drained, empty: returned, counts };
    (tap, drain)
}

/// What the filter says of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judged {
    Yes,
    No,
    /// It is no flow's (any more), so somebody has to remember whose it was.
    Unknown,
}

fn judge(filter: &Filter, sight: Option<&FlowLookup<'_>>) -> Judged {
    if filter.is_empty() {
        return Judged::Yes;
    }
    let Some(sight) = sight else {
        return Judged::No;
    };
    let mut judged = Judged::Yes;
    if let Some(clients) = &filter.clients {
        match sight.client {
            Some(client) if !clients.has(client) => return Judged::No,
            Some(_) => {}
            None => judged = Judged::Unknown,
        }
    }
    if !filter.policies.is_empty() {
        match sight.policy {
            Some(policy) if !filter.policies.iter().any(|one| one == policy) => return Judged::No,
            Some(_) => {}
            None => judged = Judged::Unknown,
        }
    }
    if !filter.backends.is_empty() {
        let mut names = sight.backends.iter().flatten();
        let is = |name: &str| filter.backends.iter().any(|one| is_backend(name, one));
        match (names.clone().next(), sight.leg) {
            (None, false) => judged = Judged::Unknown,
            _ if !names.any(|name| is(name)) => return Judged::No,
            _ => {}
        }
    }
    judged
}

impl Tap {
    /// What became of frames until now.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Its time is over, and nobody has taken it back.
    pub fn is_over(&self, now: Instant) -> bool {
        now >= self.until
    }

    /// Looks at a frame that the engine is about to have.
    #[inline(never)]
    pub fn incoming(&mut self, engine: &Engine, frame: &[u8]) {
        self.stage.add(Direction::In, frame);
        if let Some(staged) = self.stage.frames.first_mut()
            && let Ok(decoded) = &staged.decoded
            && let Some(sight) = engine.whose(decoded)
        {
            staged.meant = judge(&self.filter, Some(&sight)) == Judged::Yes;
            staged.client = sight.client;
        }
    }

    /// Looks at a frame that leaves.
    #[inline(never)]
    pub fn outgoing(&mut self, frame: &[u8]) {
        self.stage.add(Direction::Out, frame);
    }

    /// Says of all frames since the last call whether they are meant, and hands these on.
    #[inline(never)]
    pub fn settle(&mut self, engine: &Engine, now: Instant) {
        let mut cause = false;
        for at in 0..self.stage.frames.len() {
            let staged = &self.stage.frames[at];
            let sight = staged.decoded.as_ref().ok().and_then(|decoded| engine.whose(decoded));
            let ends = sight.as_ref().map(|sight| (sight.peer, sight.own));
            let leg = ends.filter(|_| sight.is_some_and(|sight| sight.leg));
            let judged = judge(&self.filter, sight.as_ref());
            let remembered = || ends.is_some_and(|ends| self.memory.has(ends));
            let take = match judged {
                _ if staged.meant => true,
                Judged::Yes => true,
                Judged::No => false,
                // What a chosen frame makes the engine send is chosen, also if it ended the flow.
                Judged::Unknown => cause || remembered(),
            };
            let client = sight.and_then(|sight| sight.client).or(staged.client);
            cause |= take && staged.direction == Direction::In;
            match ends {
                Some(ends) if take => self.memory.add(ends),
                Some(ends) if judged == Judged::No => self.memory.forget(ends),
                _ => {}
            }
            if take {
                self.hand_on(at, client, leg, now);
            }
        }
        add(&self.counts.unseen, self.stage.overflow);
        self.stage.clear();
    }

    fn hand_on(&mut self, at: usize, client: Option<SocketAddr>, leg: Option<Ends>, now: Instant) {
        add(&self.counts.matched, 1);
        let staged = &self.stage.frames[at];
        let kept = self.stage.data(at);
        let kept = &kept[..kept_bytes(staged, self.payload).min(kept.len())];
        if !self.rate.allows(kept.len(), now) {
            return add(&self.counts.rate, 1);
        }
        let Ok(mut packet) = self.empty.try_recv() else {
            return add(&self.counts.ring_full, 1);
        };
        packet.at_ns = staged.at_ns;
        packet.direction = staged.direction;
        packet.bytes = staged.bytes;
        packet.client = client;
        packet.leg = leg;
        packet.message = staged.message;
        packet.data.clear();
        // Never more than was reserved: no buffer of the stage is longer.
        packet.data.extend_from_slice(&kept[..kept.len().min(self.snaplen)]);
        // As many buffers as places: it can only be that the asker has gone.
        if self.full.try_send(packet).is_err() {
            add(&self.counts.ring_full, 1);
        }
    }
}

/// Bytes that are no payload; all if payload is wanted.
fn kept_bytes(staged: &Staged, payload: bool) -> usize {
    match &staged.decoded {
        _ if payload => staged.bytes,
        Ok(Decoded::Tcp(segment)) => segment.payload.into(),
        Ok(Decoded::Icmp(error)) => usize::from(error.inner_l4) + QUOTED_BYTES,
        _ => UNKNOWN_BYTES,
    }
}

/// A frame of which it is not known yet whether it is meant.
struct Staged {
    decoded: Result<Decoded, Malformed>,
    direction: Direction,
    bytes: usize,
    at_ns: u64,
    /// The filter meant it before the engine had it.
    meant: bool,
    client: Option<SocketAddr>,
    message: Option<MessageKind>,
}

/// The frames of one call of the engine. What they were is found out while they are whole; of their
/// bytes only `width` stay.
struct Stage {
    frames: Vec<Staged>,
    bytes: Box<[u8]>,
    width: usize,
    overflow: u64,
}

impl Stage {
    fn new(order: &Order) -> Self {
        Self {
            frames: Vec::with_capacity(STAGE_FRAMES),
            bytes: vec![0; STAGE_FRAMES * order.snaplen].into_boxed_slice(),
            width: order.snaplen,
            overflow: 0,
        }
    }

    fn add(&mut self, direction: Direction, frame: &[u8]) {
        let at = self.frames.len();
        if at >= STAGE_FRAMES {
            self.overflow += 1;
            return;
        }
        let kept = frame.len().min(self.width);
        self.bytes[at * self.width..][..kept].copy_from_slice(&frame[..kept]);
        let decoded = decode(frame);
        let message = match &decoded {
            Ok(Decoded::Tcp(segment)) => parse_adoption(frame, segment),
            _ => None,
        };
        self.frames.push(Staged {
            decoded,
            message: message.and_then(|message| message.claimed_kind()),
            direction,
            bytes: frame.len(),
            at_ns: clock::wall_ns(),
            meant: false,
            client: None,
        });
    }

    fn data(&self, at: usize) -> &[u8] {
        let kept = self.frames[at].bytes.min(self.width);
        &self.bytes[at * self.width..][..kept]
    }

    fn clear(&mut self) {
        self.frames.clear();
        self.overflow = 0;
    }
}

/// The two ends of a connection: the other one, ours.
pub type Ends = (SocketAddr, SocketAddr);

/// Connections that were meant: each has one place, by its hash, and takes it from whoever had it.
struct Memory(Box<[Option<Ends>]>);

impl Memory {
    fn new() -> Self {
        Self(vec![None; MEMORY].into_boxed_slice())
    }

    fn place(ends: &Ends) -> usize {
        let mut hash = u64::from(ends.0.port()) << 16 | u64::from(ends.1.port());
        let address = match ends.0.ip() {
            std::net::IpAddr::V4(v4) => u128::from(u32::from(v4)),
            std::net::IpAddr::V6(v6) => u128::from(v6),
        };
        hash ^= (address >> 64) as u64 ^ address as u64;
        // The golden ratio's bits, as in the engine's look-up.
        (hash.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % MEMORY
    }

    fn add(&mut self, ends: Ends) {
        self.0[Self::place(&ends)] = Some(ends);
    }

    fn has(&self, ends: Ends) -> bool {
        self.0[Self::place(&ends)] == Some(ends)
    }

    fn forget(&mut self, ends: Ends) {
        let place = &mut self.0[Self::place(&ends)];
        if *place == Some(ends) {
            *place = None;
        }
    }
}

/// Bytes that may still be copied; a second's worth is there at most.
struct Rate {
    per_second: u64,
    left: u64,
    since: Instant,
}

impl Rate {
    fn allows(&mut self, bytes: usize, now: Instant) -> bool {
        let passed_us = now.0.saturating_sub(self.since.0).min(1_000_000);
        let more = passed_us * self.per_second / 1_000_000;
        if more > 0 {
            self.left = (self.left + more).min(self.per_second);
            self.since = now;
        }
        match self.left.checked_sub(bytes as u64) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}
