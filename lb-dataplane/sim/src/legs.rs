//! What must hold for legs: their ports rest between two flows, and one that a flow left is closed.
//!
//! Owns the record of which leg was used when and which were left, from what left the engine. It
//! never looks into the engine or a pod.

use crate::clock::{MS, Time};
use std::collections::{BTreeMap, BTreeSet};

/// A pod and a port of ours.
pub type Leg = (usize, u16);

/// Shortest rest of a port after its last segment of one flow: that after a clean close
/// (`engine/src/backend/ports.rs`), whose clock ticks in whole milliseconds.
const REST_MIN: Time = 99 * MS;

struct Use {
    conn: u32,
    /// Sequence and ACK number of the SYN or adoption that began it.
    start: (u32, u32),
    last: Time,
    /// Reset by us, or closed by the pod.
    over: bool,
}

/// All legs that ever were.
#[derive(Default)]
pub struct Legs {
    uses: BTreeMap<Leg, Use>,
    left: BTreeSet<Leg>,
}

impl Legs {
    /// A segment of a connection leaves over a leg. `start` has the numbers of a SYN or an
    /// adoption.
    ///
    /// # Errors
    /// Another use of the port began too soon.
    pub fn sent(
        &mut self,
        now: Time,
        leg: Leg,
        conn: u32,
        start: Option<(u32, u32)>,
        reset: bool,
    ) -> Result<(), String> {
        if reset {
            self.ends(leg);
            return Ok(());
        }
        let before = self.uses.get_mut(&leg);
        let Some(start) = start else {
            if let Some(it) = before.filter(|it| it.conn == conn) {
                it.last = now;
            }
            return Ok(());
        };
        let again = before.as_ref().is_some_and(|it| it.conn == conn && it.start == start);
        let last = before.map(|it| (it.conn, it.last));
        let it = Use { conn, start, last: now, over: false };
        self.uses.insert(leg, it);
        if again {
            return Ok(());
        }
        self.left.remove(&leg);
        match last {
            Some((other, last)) if now < last + REST_MIN => Err(format!(
                "ports: connection {conn} uses port {} towards pod {} only {} us after connection {other} did",
                leg.1,
                leg.0,
                now - last
            )),
            _ => Ok(()),
        }
    }

    /// Another connection has the leg from now on, or the one that left it again.
    pub fn shared(&mut self, now: Time, leg: Leg, conn: u32) {
        self.left.remove(&leg);
        if let Some(it) = self.uses.get_mut(&leg) {
            (it.conn, it.last) = (conn, now);
        }
    }

    /// The leg's pod closed it, or it was reset: what its port does later is another story, as that
    /// of an adoption which somebody repeats to a pod that has forgotten it.
    pub fn ends(&mut self, leg: Leg) {
        if let Some(it) = self.uses.get_mut(&leg) {
            it.over = true;
        }
        self.left.remove(&leg);
    }

    /// A response comes over `new`, where the one before came over `old`.
    pub fn moved(&mut self, old: Option<Leg>, new: Leg) {
        self.left.remove(&new);
        let open = |leg: &Leg| self.uses.get(leg).is_none_or(|it| !it.over);
        if let Some(old) = old.filter(|old| *old != new && open(old)) {
            self.left.insert(old);
        }
    }

    /// Legs whose flows are with another pod, as far as they were not ended or used again since.
    /// Their sockets have to have seen the end.
    pub fn left(&self) -> impl Iterator<Item = Leg> + '_ {
        self.left.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_rests_between_two_uses() {
        let mut legs = Legs::default();
        let (leg, syn) = ((0, 40_000), Some((7, 0)));
        assert_eq!(legs.sent(0, leg, 1, syn, false), Ok(()));
        assert_eq!(legs.sent(5, leg, 1, syn, false), Ok(()), "the SYN again");
        assert_eq!(legs.sent(10 * MS, leg, 1, None, false), Ok(()));
        assert_eq!(legs.sent(10 * MS + REST_MIN, leg, 2, syn, false), Ok(()));
        assert!(legs.sent(200 * MS, leg, 3, syn, false).is_err());
        let other = Some((8, 1));
        assert!(legs.sent(250 * MS, leg, 3, other, false).is_err(), "the same connection again");
    }

    #[test]
    fn a_left_leg_stays_so_until_it_ends_or_is_used_again() {
        let mut legs = Legs::default();
        let (a, b) = ((0, 40_000), (1, 40_001));
        legs.moved(None, a);
        legs.moved(Some(a), b);
        assert_eq!(legs.left().collect::<Vec<_>>(), [a]);
        assert_eq!(legs.sent(0, a, 1, None, true), Ok(()));
        assert_eq!(legs.left().count(), 0);
        legs.moved(Some(b), a);
        assert_eq!(legs.left().collect::<Vec<_>>(), [b]);
        assert_eq!(legs.sent(0, a, 1, Some((1, 0)), false), Ok(()));
        assert_eq!(legs.sent(0, a, 1, None, true), Ok(()));
        legs.moved(Some(a), b);
        assert_eq!(legs.left().count(), 0, "reset before");
        legs.moved(Some(b), a);
        assert_eq!(legs.sent(SECOND, b, 2, Some((1, 1)), false), Ok(()));
        assert_eq!(legs.left().count(), 0);
    }

    const SECOND: Time = 1_000 * MS;
}
