//! Forgets that are open: pairs of ports of which trackers were asked to forget what they know.
//!
//! Owns their slots. When Forgets leave, and what their answers mean, is `forget`'s.

use crate::{clock::Instant, ids::Leg};
use baton_packet::SeqNumber;

/// Open Forgets. With answers after 10 ms, as from a node whose CPUs are full, 100,000 a second;
/// half of that for one pod ([`Forgets::place`]).
pub(crate) const FORGETS_MAX: usize = 1_024;

/// One pair that is being forgotten.
#[derive(Clone, Copy)]
pub(crate) struct Open {
    pub(crate) leg: Leg,
    /// The number of the Forget that is open.
    pub(crate) seq: SeqNumber,
    pub(crate) tries: u8,
    /// Rounds that are still to follow the open one.
    pub(crate) rounds: u8,
    pub(crate) due_ms: u64,
}

/// All open Forgets, and where to go on looking for the next.
pub(crate) struct Forgets {
    pub(crate) open: Box<[Open]>,
    free: Vec<u16>,
    /// How many each backend has open.
    of_backend: Box<[u16]>,
    /// A pair has rested, and its backend has as many open as it may.
    pub(crate) held_back: bool,
    /// When an answer is overdue, at the earliest.
    pub(crate) overdue_ms: u64,
    /// When the next port has rested, at the earliest.
    pub(crate) rested_ms: u64,
    /// The next backend to look at, and what the ones before it in this round wait for.
    pub(crate) cursor: usize,
    pub(crate) round_ms: u64,
}

impl Forgets {
    /// For so many backends.
    pub(crate) fn new(backends: usize) -> Self {
        let none =
            Open { leg: Leg::NONE, seq: SeqNumber(0), tries: 0, rounds: 0, due_ms: u64::MAX };
        Self {
            open: vec![none; FORGETS_MAX].into_boxed_slice(),
            free: (0..FORGETS_MAX as u16).rev().collect(),
            of_backend: vec![0; backends].into_boxed_slice(),
            held_back: false,
            overdue_ms: u64::MAX,
            rested_ms: u64::MAX,
            cursor: 0,
            round_ms: u64::MAX,
        }
    }

    /// When [`Engine::send_forgets`] has something to do, at the earliest.
    pub(crate) fn due_ms(&self) -> u64 {
        let room = !self.free.is_empty();
        self.overdue_ms.min(if room { self.rested_ms } else { u64::MAX })
    }

    /// A place for one more of a backend's, if it may have one: as many of its own as are free
    /// (Choudhury and Hahne, as `ports`). Whose pods answer nothing leaves others theirs.
    pub(crate) fn place(&self, backend: usize) -> Option<u16> {
        let own = self.of_backend.get(backend)?;
        let place = self.free.last().copied()?;
        (usize::from(*own) < self.free.len()).then_some(place)
    }

    /// One is open in a place that [`Self::place`] named.
    pub(crate) fn begins(&mut self, slot: u16, open: Open) {
        let named = self.free.pop();
        debug_assert_eq!(named, Some(slot));
        if let Some(own) = self.of_backend.get_mut(usize::from(open.leg.backend)) {
            *own += 1;
        }
        self.open[usize::from(slot)] = open;
    }

    /// Ports rest at a backend that answers Forgets only now.
    pub(crate) fn look_now(&mut self, now: Instant) {
        self.rested_ms = self.rested_ms.min(now.ms());
    }

    pub(crate) fn used(&self) -> u32 {
        (FORGETS_MAX - self.free.len()) as u32
    }

    pub(crate) fn limit(&self) -> u32 {
        FORGETS_MAX as u32
    }

    /// How many may be open at once.
    pub(crate) const MAX: usize = FORGETS_MAX;

    /// The pair of a slot.
    pub(crate) fn leg(&self, slot: u16) -> Leg {
        self.open[usize::from(slot)].leg
    }

    pub(crate) fn close(&mut self, slot: u16) -> Leg {
        self.free.push(slot);
        let open = &mut self.open[usize::from(slot)];
        open.due_ms = u64::MAX;
        let leg = std::mem::replace(&mut open.leg, Leg::NONE);
        if let Some(own) = self.of_backend.get_mut(usize::from(leg.backend)) {
            *own -= 1;
        }
        if std::mem::take(&mut self.held_back) {
            self.rested_ms = 0;
        }
        leg
    }
}
