//! The leg ports of one backend: which of the dataplane's own ports may be used towards it, and for
//! what. A port is a leg's number here, see `sources`.
//!
//! A port and the pod's address and port are a pair, which connection trackers on the way remember
//! for a while after its last segment. An opening handshake begins anew there, whatever they
//! remember; an adoption is a segment in the middle of a connection, and would be taken for an
//! invalid one of the old. So a free port is one of three kinds: ready (never used, or certainly
//! forgotten: for all), resting (for nobody yet), and rested (for handshakes alone, until it is
//! forgotten, see `forget`, or its time is over).
//!
//! Owns which ports are busy (bits in `blocks`), the order in which busy ones that are not in use
//! may be used again (queues in `rests`), and that of handshakes that are not complete. It never
//! hands out a port twice, and never before its time, and never allocates after construction.
//!
//! # Decisions
//!
//! - **Ports** (`engine/src/backend/ports.rs`, `forget.rs`): shuffled at start, first in first out,
//!   100 ms of rest after a clean close, 1 s after any other, 60 s behind a stale socket. Then
//!   handshakes may use them. Adoptions may not: connection trackers on the way remember a pair of
//!   ports for two minutes, and take a segment in the middle of another connection for an invalid
//!   one if the last one there began with a handshake (Linux 6.18 with `ct state invalid drop`:
//!   dropped; where it began with an adoption, it is picked up and tracked liberally). So a Forget
//!   is sent first, which trackers and adopter answer together (`docs/adoption-wire.md`): the entry
//!   is gone, and the table stays small. One of eight ports is kept for rescues and drains; where
//!   trackers may hold `limits.trackedPairs` (65,536, a quarter of Linux's `nf_conntrack_max`),
//!   nothing else moves. A stale socket shows itself by a challenge ACK or by TupleInUse, which
//!   carries its `rcv_nxt`, and the flow goes on over another port at once. It is reset exactly,
//!   but not where an adoption may still be on its way to it: that one would take its place and
//!   have the request too (seed 381).
//! - **What rests beside what is in use is shared by a threshold that moves** (Choudhury and Hahne,
//!   "Dynamic queue length thresholds", 1998): a backend takes ports that were never used while
//!   fewer of its own rest than there is room for all, and uses rested ones again then. With one
//!   bound for all, 3,600 short connections a second, of whomever, had left a pod that just
//!   started without a port.

use crate::{
    tables::{
        blocks::Busy,
        rests::{NONE, Queue, Rests},
    },
    timing::REMEMBERED_MS,
};

/// Of each backend's ports that are ready for adoptions, one in so many is kept for rescues and
/// drains: not for moves that need not be now, nor for clients' SYNs, of which anybody sends as
/// many as he likes.
const RESERVE_SHARE: usize = 8;
/// Ports that become ready by time in one call: taking one needs one.
const SETTLED_PER_CALL: usize = 4;

/// How the last use of a port ended, which says how long it rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Both sides closed in order. A lost last ACK would have been repeated by then on a pod
    /// network; a socket that is left all the same is stepped around like any stale one.
    Clean,
    /// Any other way: longer than a pod needs to answer the last segment on any pod network.
    Quiet,
    /// A stale socket was met: until even an orphaned FIN_WAIT_2 socket is gone
    /// (`net.ipv4.tcp_fin_timeout`, 60 s).
    Stale,
    /// Nobody said that it is forgotten: only time makes it ready.
    Unforgotten,
}

impl Rest {
    const ALL: [Self; 4] = [Self::Clean, Self::Quiet, Self::Stale, Self::Unforgotten];

    /// After so long it may be used by handshakes, and a Forget may be sent.
    pub(crate) const fn ms(self) -> u32 {
        match self {
            Self::Clean => 100,
            Self::Quiet | Self::Unforgotten => 1_000,
            Self::Stale => 60_000,
        }
    }
}

/// What a port is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A segment in the middle of a connection, of a move that need not be now.
    Move,
    /// The same, of one that must: a rescue, a drain, a person's wish. May take the reserve.
    Rescue,
    /// A SYN: a client's, or ours for a move that need not be now.
    Handshake,
    /// Ours, for one that must. May take the reserve.
    Opening,
    /// Ours, where trackers may remember no further pair: one that they do.
    Again,
}

/// The ports of one backend.
///
/// All ports of a kind of rest rest equally long, so each queue is in the order in which its ports
/// may be used, and taking looks at heads only.
#[derive(Default)]
pub(crate) struct Ports {
    first: u16,
    /// By their offsets from `first`: those in use, or not ready.
    busy: Busy,
    /// Ports that there are, and busy ones among them.
    all: u32,
    taken: u32,
    /// Those of handshakes that are not complete, the oldest in front.
    half_open: Queue,
    resting: [Queue; Rest::ALL.len()],
    /// A deliberate fault: the next one, whatever it is.
    #[cfg(feature = "mutants")]
    hurried: Option<u16>,
}

impl Ports {
    /// All `count` (at most 65,535) numbers from `first` on but 0 are ready, past 65,535 from 0 on,
    /// in a random order.
    pub(crate) fn new(first: u16, count: usize, rng: &mut fastrand::Rng) -> Self {
        let zero = first.wrapping_neg();
        let hole = (usize::from(zero) < count).then_some(zero);
        Self {
            busy: Busy::new(count, hole, rng),
            all: count as u32 - u32::from(hole.is_some()),
            ..Self::none(first)
        }
    }

    /// No ports, and no memory.
    pub(crate) fn none(first: u16) -> Self {
        Self { first, ..Self::default() }
    }

    /// A port for `purpose`, if one may be used now.
    pub(crate) fn take(&mut self, rests: &mut Rests, now_ms: u64, purpose: Purpose) -> Option<u16> {
        self.settle(rests, now_ms, SETTLED_PER_CALL);
        #[cfg(feature = "mutants")]
        if let Some(port) = self.hurried.take()
            && let Some(offset) = self.offset(port)
            && !self.busy.has(&rests.blocks, offset)
            && self.busy.insert(&mut rests.blocks, offset)
        {
            return Some(self.goes_out(rests, offset));
        }
        let spare = self.ready() > self.reserve() && self.remembered() < rests.spare_for_each();
        match purpose {
            Purpose::Again => {
                let mut kinds = 0..Rest::ALL.len();
                let kind = kinds.find(|kind| self.has_rested(rests, *kind, now_ms))?;
                let offset = rests.pop(&mut self.resting[kind])?;
                Some(self.first.wrapping_add(offset))
            }
            Purpose::Move if spare => self.take_ready(rests),
            Purpose::Rescue => self.take_ready(rests),
            Purpose::Move => None,
            Purpose::Handshake | Purpose::Opening => {
                let unforgotten = Rest::Unforgotten as usize;
                let rested = if self.has_rested(rests, unforgotten, now_ms) {
                    Some(unforgotten)
                } else if spare {
                    None
                } else {
                    (0..unforgotten).find(|kind| self.has_rested(rests, *kind, now_ms))
                };
                match rested {
                    Some(kind) => {
                        let offset = rests.pop(&mut self.resting[kind])?;
                        Some(self.first.wrapping_add(offset))
                    }
                    None if spare || purpose == Purpose::Opening => self.take_ready(rests),
                    None => None,
                }
            }
        }
    }

    /// A ready port, if there is one.
    fn take_ready(&mut self, rests: &mut Rests) -> Option<u16> {
        if self.ready() == 0 || rests.spare() == 0 {
            return None;
        }
        let offset = self.busy.take_next(&mut rests.blocks)?;
        Some(self.goes_out(rests, offset))
    }

    /// Whether there is a ready port.
    fn finds_ready(&self, rests: &Rests) -> bool {
        self.ready() > 0 && rests.spare() > 0 && self.busy.has_next(&rests.blocks)
    }

    /// Whether [`Ports::take`] would find one for a move in need.
    pub(crate) fn has_ready(&mut self, rests: &mut Rests, now_ms: u64) -> bool {
        self.settle(rests, now_ms, SETTLED_PER_CALL);
        self.finds_ready(rests)
    }

    /// Whether [`Ports::take`] would find one for our SYN.
    pub(crate) fn has_one(&self, rests: &Rests, now_ms: u64) -> bool {
        self.finds_ready(rests)
            || (0..self.resting.len()).any(|kind| self.has_rested(rests, kind, now_ms))
    }

    /// A port that has rested and that trackers may remember, to be forgotten; and how its last use
    /// ended.
    pub(crate) fn take_to_forget(&mut self, rests: &mut Rests, now_ms: u64) -> Option<(u16, Rest)> {
        self.settle(rests, now_ms, SETTLED_PER_CALL);
        for rest in [Rest::Clean, Rest::Quiet, Rest::Stale] {
            if self.has_rested(rests, rest as usize, now_ms) {
                let offset = rests.pop(&mut self.resting[rest as usize])?;
                return Some((self.first.wrapping_add(offset), rest));
            }
        }
        None
    }

    /// A handshake begins on a port that is in use. What [`Ports::completes`] is to be told.
    pub(crate) fn begins(&mut self, rests: &mut Rests, port: u16) -> u32 {
        match self.offset(port) {
            Some(offset) => rests.begins(&mut self.half_open, offset),
            None => NONE,
        }
    }

    /// The handshake is complete, or over.
    pub(crate) fn completes(&mut self, rests: &mut Rests, handshake: u32) {
        rests.completes(&mut self.half_open, handshake);
    }

    /// The port whose handshake began first of those that are not complete, and how many there are.
    pub(crate) fn half_open(&self, rests: &Rests) -> Option<(u16, usize)> {
        let oldest = rests.first(&self.half_open)?;
        Some((self.first.wrapping_add(oldest), self.half_open.len()))
    }

    /// When [`Ports::take_to_forget`] finds the next one, if any rests.
    pub(crate) fn next_to_forget_ms(&self, rests: &Rests, now_ms: u64) -> Option<u64> {
        let waits = [Rest::Clean, Rest::Quiet, Rest::Stale].into_iter();
        let waits = waits.filter_map(|rest| {
            let age = rests.age_ms(&self.resting[rest as usize], now_ms)?;
            Some(now_ms + u64::from(rest.ms().saturating_sub(age)))
        });
        waits.min()
    }

    /// Gives back a port that [`Ports::take`] returned. One that is not in use is refused: with
    /// debug assertions a panic, otherwise no effect.
    pub(crate) fn give_back(&mut self, rests: &mut Rests, port: u16, now_ms: u64, rest: Rest) {
        if let Some(offset) = self.comes_back(rests, port) {
            rests.rests(&mut self.resting[rest as usize], offset, now_ms);
        }
    }

    /// The same for one that no tracker remembers for certain.
    pub(crate) fn give_back_forgotten(&mut self, rests: &mut Rests, port: u16) {
        if let Some(offset) = self.comes_back(rests, port) {
            self.is_ready(rests, offset);
        }
    }

    /// Makes up to `max` ports ready that no tracker can remember any more. To be called now and
    /// then.
    pub(crate) fn settle(&mut self, rests: &mut Rests, now_ms: u64, max: usize) {
        for _ in 0..max {
            let old = (self.resting.iter_mut())
                .find(|queue| rests.age_ms(queue, now_ms) >= Some(REMEMBERED_MS));
            let Some(offset) = old.and_then(|queue| rests.pop(queue)) else {
                return;
            };
            self.is_ready(rests, offset);
        }
    }

    /// Makes up to `max` ports that rest ready, whatever trackers remember: towards this pod none
    /// is used any more. Whether there were any.
    pub(crate) fn forgets_some(&mut self, rests: &mut Rests, max: usize) -> bool {
        for done in 0..max {
            let Some(offset) = self.resting.iter_mut().find_map(|queue| rests.pop(queue)) else {
                return done > 0;
            };
            self.is_ready(rests, offset);
        }
        max > 0
    }

    /// Busy ones, which have room in the slab; and blocks of the pool that it has.
    pub(crate) fn takes(&self) -> (usize, usize) {
        (self.taken as usize, self.busy.pooled())
    }

    /// The port that was given back first of a kind becomes the next one, without its rest.
    #[cfg(feature = "mutants")]
    pub(crate) fn hurry(&mut self, rests: &mut Rests) {
        for kind in 0..self.resting.len() {
            if let Some(offset) = rests.pop(&mut self.resting[kind]) {
                self.is_ready(rests, offset);
                self.hurried = Some(self.first.wrapping_add(offset));
            }
        }
    }

    /// The first number, used or not.
    pub(crate) fn first(&self) -> u16 {
        self.first
    }

    /// How many there are.
    pub(crate) fn all(&self) -> usize {
        self.all as usize
    }

    /// How many are in use.
    pub(crate) fn used(&self) -> usize {
        self.taken as usize - self.remembered()
    }

    /// How many may be used for anything.
    pub(crate) fn ready(&self) -> usize {
        (self.all - self.taken) as usize
    }

    /// How many are not in use, and perhaps still remembered by trackers.
    pub(crate) fn remembered(&self) -> usize {
        self.resting.iter().map(Queue::len).sum()
    }

    /// How many that are ready are kept for rescues and drains.
    pub(crate) fn reserve(&self) -> usize {
        self.all() / RESERVE_SHARE
    }

    /// The next port that is in use or rests, in no order of theirs; where the search goes on.
    pub(crate) fn next_busy(&self, rests: &Rests, from: usize) -> Option<(u16, usize)> {
        let (offset, next) = self.busy.next_busy(&rests.blocks, from)?;
        Some((self.first.wrapping_add(offset), next))
    }

    fn offset(&self, port: u16) -> Option<u16> {
        let offset = port.wrapping_sub(self.first);
        (port != 0 && u32::from(offset) < self.busy.count()).then_some(offset)
    }

    /// It is busy from now on.
    fn goes_out(&mut self, rests: &mut Rests, offset: u16) -> u16 {
        self.taken += 1;
        rests.hold();
        self.first.wrapping_add(offset)
    }

    fn is_ready(&mut self, rests: &mut Rests, offset: u16) {
        self.busy.remove(&mut rests.blocks, offset);
        self.taken -= 1;
        rests.let_go();
    }

    fn comes_back(&self, rests: &Rests, port: u16) -> Option<u16> {
        let is_busy = |offset: &u16| self.busy.has(&rests.blocks, *offset);
        let offset = self.offset(port).filter(is_busy);
        let used = offset.filter(|_| self.used() > 0);
        debug_assert!(used.is_some(), "port {port} was given back but is not in use");
        used
    }

    fn has_rested(&self, rests: &Rests, kind: usize, now_ms: u64) -> bool {
        rests.age_ms(&self.resting[kind], now_ms) >= Some(Rest::ALL[kind].ms())
    }
}

#[cfg(test)]
#[path = "ports_tests.rs"]
mod tests;
