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
        let mixed = (u64::from_le_bytes(low) ^ u64::from(port).rotate_left(17))
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
