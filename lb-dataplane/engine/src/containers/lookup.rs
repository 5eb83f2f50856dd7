//! Addresses and ports to small numbers: frontends and backends.
//!
//! Changed entry by entry when a snapshot is put in force; a look-up on the packet path never
//! allocates. Keys come from the snapshot, not from clients, so a plain multiplicative hash is
//! enough.

use crate::ids::Addr;

/// What a slot without an entry stands for: more than there are of anything.
const NOTHING: u16 = u16::MAX;

#[derive(Clone, Copy)]
struct Slot {
    address: Addr,
    port: u16,
    id: u16,
}

impl Slot {
    const FREE: Self = Self { address: Addr { high: 0, low: 0 }, port: 0, id: NOTHING };

    fn is_free(&self) -> bool {
        self.id == NOTHING
    }

    #[inline(always)]
    fn is(&self, address: Addr, port: u16) -> bool {
        self.port == port && self.address == address
    }
}

/// A map with linear probing at a load of at most one quarter for as many entries as it is made
/// for, so that most look-ups end at the first slot. It has room for twice as many and never grows.
pub(crate) struct Lookup {
    slots: Box<[Slot]>,
    used: usize,
}

impl Lookup {
    /// For so many entries.
    pub(crate) fn new(entries: usize) -> Self {
        let size = (entries * 4).next_power_of_two().max(16);
        Self { slots: vec![Slot::FREE; size].into_boxed_slice(), used: 0 }
    }

    /// Says what an address and port stand for from now on.
    pub(crate) fn insert(&mut self, address: Addr, port: u16, id: u16) {
        debug_assert!(self.used * 2 < self.slots.len(), "made for fewer");
        debug_assert!(id != NOTHING, "not a number of anything");
        let (at, _) = self.slot(address, port);
        self.used += usize::from(self.slots[at].is_free());
        self.slots[at] = Slot { address, port, id };
    }

    /// An address and port stand for nothing any more.
    pub(crate) fn remove(&mut self, address: Addr, port: u16) {
        let (mut hole, _) = self.slot(address, port);
        if self.slots[hole].is_free() {
            return;
        }
        self.slots[hole] = Slot::FREE;
        self.used -= 1;
        // What lies behind the hole comes nearer to where its search starts.
        let mask = self.slots.len() - 1;
        let mut at = (hole + 1) & mask;
        while !self.slots[at].is_free() {
            let start = self.start(self.slots[at].address, self.slots[at].port);
            if (at.wrapping_sub(start) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.slots[hole] = std::mem::replace(&mut self.slots[at], Slot::FREE);
                hole = at;
            }
            at = (at + 1) & mask;
        }
    }

    #[inline]
    fn start(&self, address: Addr, port: u16) -> usize {
        // Addresses differ in the last bytes, and what is multiplied spreads upwards only.
        let mixed =
            (address.low ^ u64::from(port).rotate_left(17)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> 32) as usize & (self.slots.len() - 1)
    }

    /// The slot where the entry is, or would be.
    #[inline]
    fn slot(&self, address: Addr, port: u16) -> (usize, &Slot) {
        let mut at = self.start(address, port);
        loop {
            let slot = &self.slots[at];
            if slot.is(address, port) || slot.is_free() {
                return (at, slot);
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    #[inline]
    pub(crate) fn find(&self, address: Addr, port: u16) -> Option<u16> {
        let (_, slot) = self.slot(address, port);
        (!slot.is_free()).then_some(slot.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::to_addr;
    use proptest::prelude::*;
    use std::{collections::HashMap, net::IpAddr};

    proptest! {
        #[test]
        fn agrees_with_a_map(ops in prop::collection::vec((any::<bool>(), 0u8..40, 0u16..3), 1..300)) {
            let mut lookup = Lookup::new(64);
            let mut oracle = HashMap::new();
            for (number, (add, host, port)) in (0..).zip(ops) {
                // Few different starts, so that entries stand in each other's way.
                let high = u64::from(host) << (host % 8 * 8);
                let address = Addr { high, low: 0 };
                if add {
                    lookup.insert(address, port, number);
                    oracle.insert((address, port), number);
                } else {
                    lookup.remove(address, port);
                    oracle.remove(&(address, port));
                }
                for ((address, port), id) in &oracle {
                    prop_assert_eq!(lookup.find(*address, *port), Some(*id));
                }
                prop_assert_eq!(lookup.used, oracle.len());
                prop_assert!(oracle.contains_key(&(address, port)) || lookup.find(address, port).is_none());
            }
        }
    }

    #[test]
    fn neighbours_do_not_end_in_one_place() {
        let all = (0..4_096_u16).map(|i| {
            let [high, low] = i.to_be_bytes();
            (to_addr(IpAddr::from([10, 1, high, low])), 8_080, i)
        });
        let all: Vec<_> = all.collect();
        let mut lookup = Lookup::new(all.len());
        for (address, port, id) in &all {
            lookup.insert(*address, *port, *id);
        }
        let mut probes = 0;
        for (address, port, id) in &all {
            assert_eq!(lookup.find(*address, *port), Some(*id));
            let mut at = lookup.start(*address, *port);
            while lookup.slots[at].id != *id {
                at = (at + 1) & (lookup.slots.len() - 1);
                probes += 1;
            }
        }
        assert!(probes <= all.len() / 2, "{probes} steps to {} entries", all.len());
    }
}
