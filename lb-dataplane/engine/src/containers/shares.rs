//! How much of a pool the clients of one network have: an IPv4 address, or the first 64 bits of an
//! IPv6 one. Nobody can take the room of all.
//!
//! Owns the counts. Networks have numbers by a keyed hash; those that share a number share its
//! part.

use crate::{containers::slots::Slots, ids::Addr};
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// Numbers that networks can have.
const NETWORKS: usize = 4_096;

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
        Self {
            used: vec![Slots::default(); NETWORKS].into_boxed_slice(),
            max,
        }
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
        let mut sum = Slots::default();
        self.used.iter().for_each(|used| sum += *used);
        sum
    }
}
