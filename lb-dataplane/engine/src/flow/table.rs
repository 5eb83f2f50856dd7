//! The table that finds flows by the client's end.
//!
//! Owns the memory of all flows: one slab and its index, reserved at start.

use super::Flow;
use crate::{
    containers::{
        index::{Hash, Index, SPILL_MAX},
        keyed::Keyed,
    },
    ids::{Addr, FlowId, Leg, NONE},
    states::State,
};

/// How full the index of flows may be, in percent: then nearly all are found in the first cache
/// line that is looked at.
const PERCENT: usize = 50;

/// All flows: a slab with a free list, and an index over (client, client port, frontend). Once the
/// index has no room for a flow in either of its buckets, which chance does not bring about, it
/// takes new keys, and changes over to them in pieces.
pub(crate) struct FlowTable {
    flows: Box<[Flow]>,
    index: Index,
    free: FlowId,
    used: u32,
    keys: Keyed,
    next_keys: Keyed,
    /// Buckets that were gone through for the next keys, while it changes over to them.
    changed: Option<usize>,
    secret: (u64, u64),
    generation: u64,
}

#[inline(always)]
fn hash(keys: &Keyed, client: Addr, port: u16, frontend: u16) -> Hash {
    let place = keys.hash(client, port, frontend);
    Hash { place, mark: (place >> 16) as u32 }
}

impl Flow {
    #[inline(always)]
    fn is(&self, client: Addr, port: u16, frontend: u16) -> bool {
        self.client_port == port && self.frontend == frontend && self.client == client
    }

    fn hash(&self, keys: &Keyed) -> Hash {
        hash(keys, self.client, self.client_port, self.frontend)
    }
}

impl FlowTable {
    pub(crate) fn new(limit: u32, secret: (u64, u64)) -> Self {
        let blank = Flow::new(Addr::default(), 0, 0, 0);
        let mut flows = vec![blank; limit as usize].into_boxed_slice();
        for (i, flow) in flows.iter_mut().enumerate() {
            flow.link = if i + 1 < limit as usize { i as u32 + 1 } else { NONE };
        }
        Self {
            flows,
            index: Index::new(limit as usize, PERCENT),
            free: if limit == 0 { NONE } else { 0 },
            used: 0,
            keys: Keyed::new(secret, 0),
            next_keys: Keyed::new(secret, 1),
            changed: None,
            secret,
            generation: 0,
        }
    }

    /// Where a flow is, or most are while the keys change.
    #[inline]
    pub(crate) fn hash(&self, client: Addr, port: u16, frontend: u16) -> Hash {
        hash(&self.keys, client, port, frontend)
    }

    /// Reads where the look-up begins.
    #[inline]
    pub(crate) fn touch_index(&self, hash: Hash) -> u32 {
        self.index.touch(hash)
    }

    /// The flow with this hash, or another one.
    #[inline]
    pub(crate) fn perhaps(&self, hash: Hash) -> Option<FlowId> {
        self.index.guess(hash).filter(|id| *id != NONE)
    }

    #[inline(always)]
    pub(crate) fn find(&self, client: Addr, port: u16, frontend: u16) -> Option<FlowId> {
        let hash = hash(&self.keys, client, port, frontend);
        // Mostly it is where it is looked for first.
        if let Some(id) = self.index.guess(hash)
            && let Some(flow) = self.flows.get(id as usize)
            && flow.is(client, port, frontend)
        {
            return Some(id);
        }
        self.find_elsewhere(hash, client, port, frontend)
    }

    #[inline(never)]
    fn find_elsewhere(&self, of: Hash, client: Addr, port: u16, frontend: u16) -> Option<FlowId> {
        let is = |id: FlowId| self.flows[id as usize].is(client, port, frontend);
        let found = self.index.find(of, is);
        if found.is_none() && self.changed.is_some() {
            let next = hash(&self.next_keys, client, port, frontend);
            return self.index.find(next, is);
        }
        found
    }

    /// Adds a flow; `None` if the table is full.
    pub(crate) fn insert(&mut self, flow: Flow) -> Option<FlowId> {
        let id = self.free;
        if id == NONE || !self.puts(id, &flow) {
            return None;
        }
        self.free = self.flows[id as usize].link;
        self.flows[id as usize] = flow;
        self.used += 1;
        Some(id)
    }

    /// Puts a flow's number into the index. Whether there was room.
    fn puts(&mut self, id: FlowId, flow: &Flow) -> bool {
        let changes = self.changed.is_some();
        let keys = if changes { self.next_keys } else { self.keys };
        let flows = &self.flows;
        // While the keys change, nobody knows by which ones another flow is where it is.
        let of = |other: u32, _| (!changes).then(|| flows[other as usize].hash(&keys));
        self.index.insert(flow.hash(&keys), id, of)
    }

    /// The index had no room for a flow where it belongs, and the change over to other keys is not
    /// at its end.
    pub(crate) fn wants_keys(&self) -> bool {
        self.changed.is_some() || self.index.spills()
    }

    /// Changes over to the next keys, so many buckets at a time. Whether that is done.
    pub(crate) fn take_keys(&mut self, buckets: usize) -> bool {
        let from = self.changed.unwrap_or(0);
        let to = (from + buckets).min(self.index.buckets());
        self.changed = Some(to);
        for bucket in from..to {
            for id in self.index.numbers_in(bucket).into_iter().flatten() {
                let hash = self.flows[id as usize].hash(&self.next_keys);
                if !self.index.is_at_home(bucket, hash, id) {
                    self.changes_over(id);
                }
            }
        }
        if to < self.index.buckets() {
            return false;
        }
        for _ in 0..SPILL_MAX {
            if let Some(id) = self.index.spilt() {
                self.changes_over(id);
            }
        }
        self.generation += 1;
        self.keys = self.next_keys;
        self.next_keys = Keyed::new(self.secret, self.generation + 1);
        self.changed = None;
        true
    }

    fn changes_over(&mut self, id: FlowId) {
        let flow = &self.flows[id as usize];
        let (old, new) = (flow.hash(&self.keys), flow.hash(&self.next_keys));
        if self.index.remove(old, id) || self.index.remove(new, id) {
            // Where it was there is room again, if nowhere else.
            let room = self.index.insert(new, id, |_, _| None);
            debug_assert!(room, "one was taken out");
        }
    }

    pub(crate) fn remove(&mut self, id: FlowId) {
        let flow = &self.flows[id as usize];
        let (old, new) = (flow.hash(&self.keys), flow.hash(&self.next_keys));
        let found = self.index.remove(old, id) || self.index.remove(new, id);
        debug_assert!(found, "a flow is in the index");
        let flow = &mut self.flows[id as usize];
        flow.state = State::Gone;
        flow.owner = Leg::NONE;
        flow.standby = Leg::NONE;
        flow.link = self.free;
        self.free = id;
        self.used -= 1;
    }

    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free == NONE
    }

    pub(crate) fn limit(&self) -> u32 {
        self.flows.len() as u32
    }

    /// All slots, the free ones (state `Gone`) too.
    pub(crate) fn slots(&self) -> &[Flow] {
        &self.flows
    }
}

impl std::ops::Index<FlowId> for FlowTable {
    type Output = Flow;
    #[inline]
    fn index(&self, id: FlowId) -> &Flow {
        &self.flows[id as usize]
    }
}

impl std::ops::IndexMut<FlowId> for FlowTable {
    #[inline]
    fn index_mut(&mut self, id: FlowId) -> &mut Flow {
        &mut self.flows[id as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::to_addr;
    use proptest::prelude::*;
    use std::{collections::HashMap, net::IpAddr};

    #[test]
    fn flows_that_find_no_room_make_the_table_take_other_keys() {
        let mut table = FlowTable::new(64, (1, 2));
        assert_eq!(table.index.buckets(), 16);
        let client = to_addr(IpAddr::from([192, 0, 2, 7]));
        // Both homes of all are two buckets of eight.
        let together = |port: &u16| {
            let place = table.keys.hash(client, *port, 0);
            (place as u32) >> 28 < 2 && place >> 60 < 2
        };
        let together: Vec<u16> = (1..=u16::MAX).filter(together).take(40).collect();
        for (number, port) in together.iter().enumerate() {
            assert_eq!(table.wants_keys(), number > 16, "{number}");
            table.insert(Flow::new(client, *port, 0, 0)).expect("room");
        }
        let mut pieces = 1;
        while !table.take_keys(3) {
            pieces += 1;
            // All are found meanwhile.
            for port in &together {
                assert!(table.find(client, *port, 0).is_some(), "{port}");
            }
        }
        assert_eq!((pieces, together.len()), (6, 40));
        assert!(!table.wants_keys());
        for port in &together {
            let id = table.find(client, *port, 0).expect("found");
            table.remove(id);
        }
        assert_eq!(table.used(), 0);
    }

    proptest! {
        #[test]
        fn agrees_with_a_map(
            ops in proptest::collection::vec((any::<bool>(), 0u8..4, 0u16..40, 0u16..2), 1..400),
            piece in 0usize..4,
        ) {
            let mut table = FlowTable::new(32, (1, 2));
            let mut oracle: HashMap<(u8, u16, u16), FlowId> = HashMap::new();
            for (add, host, port, frontend) in ops {
                let client = to_addr(IpAddr::from([10, 0, 0, host]));
                let key = (host, port, frontend);
                prop_assert_eq!(table.find(client, port, frontend), oracle.get(&key).copied());
                if add && !oracle.contains_key(&key) {
                    match table.insert(Flow::new(client, port, frontend, 0)) {
                        Some(id) => { prop_assert!(oracle.insert(key, id).is_none()); }
                        None => prop_assert_eq!(oracle.len(), 32),
                    }
                } else if let Some(id) = oracle.remove(&key) {
                    table.remove(id);
                }
                prop_assert_eq!(table.used() as usize, oracle.len());
                // Keys change all the time.
                table.take_keys(piece);
            }
        }
    }
}
