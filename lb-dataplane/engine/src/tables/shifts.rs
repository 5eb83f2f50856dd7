//! What is added to the numbers of translated legs, found by leg, and by the flow whose owner the
//! leg is: most legs have no such thing, and need no memory for it.
//!
//! Owns the table, reserved at start. What a shift does to a segment is `baton_packet`'s; when a
//! leg gets one is `opening`'s.

use crate::{
    containers::{
        index::{FREE, Hash, Index},
        keyed::Keyed,
    },
    ids::{FlowId, Leg},
};
use baton_packet::Shift;

/// How full the index may be, in percent: as that of all legs.
const PERCENT: usize = 80;

/// So much older echoes than the server's last timestamp are taken for what they are: more than
/// comes between two looks at a flow (`timeouts.idle` is a week at most).
const ECHOES_KEPT: u32 = 1 << 30;

/// All shifts.
pub(crate) struct Shifts {
    index: Index,
    keys: Keyed,
    /// Of a free one, `seq` is the next free one.
    slots: Box<[Shift]>,
    free: u32,
    used: u32,
    /// The slot of each flow's owner leg, if that is translated: found without the index.
    of_flows: Box<[u32]>,
}

impl Shifts {
    /// For so many legs, and flows.
    pub(crate) fn new(legs: u32, flows: u32, secret: (u64, u64)) -> Self {
        let free = |n: u32| Shift { seq: n + 1, ..Shift::default() };
        Self {
            index: Index::new(legs as usize, PERCENT),
            keys: Keyed::new(secret, u64::MAX - 1),
            slots: (0..legs).map(free).collect(),
            free: 0,
            used: 0,
            of_flows: vec![FREE; flows as usize].into_boxed_slice(),
        }
    }

    /// A leg is its own mark, as in `legs`.
    fn hash(keys: Keyed, mark: u32) -> Hash {
        Hash { place: keys.hash_number(mark), mark }
    }

    fn hash_of(&self, leg: Leg) -> Hash {
        Self::hash(self.keys, u32::from(leg.backend) << 16 | u32::from(leg.port))
    }

    fn slot(&self, leg: Leg) -> Option<u32> {
        if self.used() == 0 {
            return None;
        }
        self.index.find(self.hash_of(leg), |_| true)
    }

    /// That of a leg, if it is translated.
    #[inline]
    pub(crate) fn of(&self, leg: Leg) -> Option<Shift> {
        if self.used() == 0 {
            return None;
        }
        // Mostly it is where it is looked for first; marks are whole keys.
        let hash = self.hash_of(leg);
        match self.index.guess(hash) {
            Some(slot) if slot != FREE => self.slots.get(slot as usize).copied(),
            _ => self.index.find(hash, |_| true).map(|slot| self.slots[slot as usize]),
        }
    }

    /// That of a flow's owner leg, which is translated.
    #[inline(always)]
    pub(crate) fn of_owner(&self, id: FlowId, leg: Leg) -> &Shift {
        let slot = self.of_flows[id as usize];
        debug_assert_eq!(Some(slot), self.slot(leg), "slot of flow {id}");
        &self.slots[slot as usize]
    }

    /// That of an owner leg that the flow has just got, if it is translated.
    pub(crate) fn of_new_owner(&self, id: FlowId, leg: Leg) -> Option<Shift> {
        let slot = self.of_flows[id as usize];
        debug_assert_eq!(Some(slot).filter(|s| *s != FREE), self.slot(leg), "flow {id}");
        self.slots.get(slot as usize).copied()
    }

    /// A flow has another owner leg. Whether that is translated.
    pub(crate) fn owned(&mut self, id: FlowId, leg: Leg) -> bool {
        let slot = self.slot(leg);
        self.of_flows[id as usize] = slot.unwrap_or(FREE);
        slot.is_some()
    }

    /// A flow's owner leg is translated from now on. False if there are too many.
    #[must_use]
    pub(crate) fn put(&mut self, id: FlowId, leg: Leg, shift: Shift) -> bool {
        debug_assert!(self.of(leg).is_none(), "constant for the leg's life");
        let (hash, keys) = (self.hash_of(leg), self.keys);
        let slot = self.free;
        let Some(next) = self.slots.get(slot as usize).map(|free| free.seq) else {
            return false;
        };
        let of = |_, mark| Some(Self::hash(keys, mark));
        if !self.index.insert(hash, slot, of) {
            return false;
        }
        (self.free, self.used) = (next, self.used + 1);
        self.slots[slot as usize] = shift;
        self.of_flows[id as usize] = slot;
        true
    }

    /// The owner leg that the flow has just got, which another flow had, has another shift. There
    /// is room.
    pub(crate) fn renew(&mut self, id: FlowId, leg: Leg, shift: Shift) {
        match self.slots.get_mut(self.of_flows[id as usize] as usize) {
            Some(slot) => *slot = shift,
            None => {
                let room = self.put(id, leg, shift);
                debug_assert!(room, "whoever takes a leg has looked");
            }
        }
    }

    /// The server's timestamps have come this far, as the client knows them: what it echoes is none
    /// of before the leg any more. Half of all numbers further on that could not be told apart
    /// (24 days at 1 ms a tick), and a pod whose kernel measures by echoes alone would have taken
    /// them for its round trip.
    pub(crate) fn ages(&mut self, id: FlowId, server_ts: u32) {
        if let Some(shift) = self.slots.get_mut(self.of_flows[id as usize] as usize)
            && server_ts.wrapping_sub(shift.stamps_from) > ECHOES_KEPT
        {
            shift.stamps_from = server_ts.wrapping_sub(ECHOES_KEPT);
        }
    }

    /// It is no leg any more.
    pub(crate) fn remove(&mut self, leg: Leg) {
        if let Some(slot) = self.slot(leg)
            && self.index.remove(self.hash_of(leg), slot)
        {
            self.slots[slot as usize].seq = self.free;
            (self.free, self.used) = (slot, self.used - 1);
        }
    }

    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    pub(crate) fn limit(&self) -> u32 {
        self.slots.len() as u32
    }

    pub(crate) fn is_full(&self) -> bool {
        self.used == self.limit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn echoes_of_a_leg_that_lives_for_months_are_its_pods() {
        let mut shifts = Shifts::new(1, 1, (1, 2));
        let leg = Leg { backend: 1, port: 10_000 };
        let first = u32::MAX - 7;
        let shift = Shift { stamps: 1_000, stamps_from: first, ..Shift::default() };
        assert!(shifts.put(0, leg, shift));
        let week_ms: u32 = 7 * 24 * 60 * 60 * 1_000;
        for week in 0..20_u32 {
            let now = first.wrapping_add(week_ms.wrapping_mul(week));
            shifts.ages(0, now);
            let shift = shifts.of(leg).expect("it is translated");
            for echo in [now, now.wrapping_add(week_ms)] {
                assert_eq!(shift.echo_to_pod(echo), echo.wrapping_sub(1_000), "{week}");
            }
        }
        // And still nothing of before it.
        let shift = shifts.of(leg).expect("it is translated");
        let old = shift.stamps_from.wrapping_sub(1);
        let least = shift.stamps_from.wrapping_sub(1_000);
        assert_eq!(shift.echo_to_pod(old), least);
    }

    #[test]
    fn as_many_as_it_is_made_for_are_found() {
        let mut rng = fastrand::Rng::with_seed(7);
        let (mut shifts, mut oracle) = (Shifts::new(500, 1, (1, 2)), HashMap::new());
        for turn in 0..20_000 {
            let (backend, port) = (rng.u16(..64), 10_000 + rng.u16(..20));
            let leg = Leg { backend, port };
            assert_eq!(shifts.of(leg), oracle.get(&(backend, port)).copied());
            if oracle.remove(&(backend, port)).is_some() {
                shifts.remove(leg);
            } else {
                let shift = Shift { seq: turn, ..Shift::default() };
                assert_eq!(shifts.put(0, leg, shift), oracle.len() < 500);
                if oracle.len() < 500 {
                    oracle.insert((backend, port), shift);
                }
            }
            assert_eq!(shifts.used() as usize, oracle.len());
            assert_eq!(shifts.is_full(), oracle.len() == 500);
        }
        assert!(oracle.len() > 400, "{}", oracle.len());
    }
}
