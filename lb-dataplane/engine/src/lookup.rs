//! Addresses and ports to small numbers: frontends and backends of the snapshot in force.
//!
//! Rebuilt when a snapshot is applied; a look-up on the packet path never allocates. Keys come from the
//! snapshot, not from clients, so a plain multiplicative hash is enough.

use crate::flow::Addr;

/// A fixed map with linear probing at a load of at most one quarter, so that most look-ups end at the first slot.
pub(crate) struct Lookup {
    slots: Box<[Option<(Addr, u16, u16)>]>,
}

impl Lookup {
    pub(crate) fn build(entries: impl ExactSizeIterator<Item = (Addr, u16, u16)>) -> Self {
        let size = (entries.len() * 4).next_power_of_two().max(16);
        let mut lookup = Self {
            slots: vec![None; size].into_boxed_slice(),
        };
        for (address, port, id) in entries {
            let mut at = lookup.start(&address, port);
            while lookup.slots[at].is_some() {
                at = (at + 1) & (size - 1);
            }
            lookup.slots[at] = Some((address, port, id));
        }
        lookup
    }

    #[inline]
    fn start(&self, address: &Addr, port: u16) -> usize {
        let mut low = [0; 8];
        low.copy_from_slice(&address[8..]);
        // The last bytes, in which addresses differ, lowest: what is multiplied spreads upwards only.
        let mixed = (u64::from_be_bytes(low) ^ u64::from(port).rotate_left(17))
            .wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> 32) as usize & (self.slots.len() - 1)
    }

    #[inline]
    pub(crate) fn find(&self, address: &Addr, port: u16) -> Option<u16> {
        let mut at = self.start(address, port);
        while let Some((a, p, id)) = &self.slots[at] {
            if *p == port && a == address {
                return Some(*id);
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_do_not_end_in_one_place() {
        let all = (0..4_096_u16).map(|i| {
            let [high, low] = i.to_be_bytes();
            let v4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, high, low];
            (v4, 8_080, i)
        });
        let all: Vec<_> = all.collect();
        let lookup = Lookup::build(all.clone().into_iter());
        let mut probes = 0;
        for (address, port, id) in &all {
            assert_eq!(lookup.find(address, *port), Some(*id));
            let mut at = lookup.start(address, *port);
            while lookup.slots[at].is_none_or(|(_, _, found)| found != *id) {
                at = (at + 1) & (lookup.slots.len() - 1);
                probes += 1;
            }
        }
        assert!(
            probes <= all.len() / 2,
            "{probes} steps to {} entries",
            all.len()
        );
    }
}
