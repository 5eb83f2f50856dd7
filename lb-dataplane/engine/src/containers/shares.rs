//! How much of a pool one of those who share it may have, so that nobody can take the room of all:
//! the clients of one network (an IPv4 address, or the first 64 bits of an IPv6 one), or a policy.
//!
//! Owns the counts of networks, and what is kept for policies. Networks have numbers by a keyed
//! hash; those that share a number share its part.

use crate::{containers::slots::Slots, ids::Addr};
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// Numbers that networks can have.
const NETWORKS: usize = 4_096;

/// One in so many of a pool is kept for policies that have few of it.
const KEPT_PART: u32 = 8;

/// Whether one more for a policy that has `own` leaves the others what is kept for them: a part of
/// the pool is for policies with fewer than their equal part of that part.
pub(crate) fn leaves_others_theirs((used, limit): (u32, u32), own: u32, policies: usize) -> bool {
    let left = limit.saturating_sub(used);
    if policies < 2 {
        return left > 0;
    }
    let kept = limit / KEPT_PART;
    left > kept || own < (kept / policies as u32).max(1)
}

/// The number of a client's network.
pub(crate) fn network(network: Addr, keys: (u64, u64)) -> u16 {
    let mut hasher = SipHasher13::new_with_keys(keys.0, keys.1);
    hasher.write(&network.octets());
    (hasher.finish() as usize % NETWORKS) as u16
}

/// What each network has of one pool, and the most that one may have.
pub(crate) struct Shares {
    used: Box<[Slots]>,
    max: Slots,
}

impl Shares {
    pub(crate) fn new(max: Slots) -> Self {
        Self { used: vec![Slots::default(); NETWORKS].into_boxed_slice(), max }
    }

    /// Whether the network may have so many more.
    #[inline]
    pub(crate) fn have_room(&self, network: u16, more: Slots) -> bool {
        self.used[usize::from(network)].have_room(more, self.max)
    }

    #[inline]
    pub(crate) fn takes(&mut self, network: u16, more: Slots) {
        self.used[usize::from(network)] += more;
    }

    #[inline]
    pub(crate) fn returns(&mut self, network: u16, less: Slots) {
        self.used[usize::from(network)] -= less;
    }

    /// What all have together, for tests.
    pub(crate) fn sum(&self) -> Slots {
        // Without a check for overflow at each of them, as the simulation asks this at each event.
        let wrapping = |sum: Slots, used: &Slots| Slots {
            all: sum.all.wrapping_add(used.all),
            long: sum.long.wrapping_add(used.long),
        };
        self.used.iter().fold(Slots::default(), wrapping)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eighth_is_for_policies_with_few() {
        let may = |used, own, policies| leaves_others_theirs((used, 800), own, policies);
        assert!(may(799, 799, 1) && !may(800, 0, 1));
        assert!(may(699, 699, 4) && !may(700, 25, 4));
        assert!(may(700, 24, 4) && may(900, 24, 4), "whatever others have");
        assert!(may(700, 0, 1_000) && !may(700, 1, 1_000));
    }
}
