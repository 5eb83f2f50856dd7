//! Clients with affinity: which backend each one's flows have.
//!
//! Owns one slab of clients, its index and the order of their use, reserved at start. When they are
//! remembered and forgotten is `affinity`'s.

use crate::{
    containers::{
        index::{Hash, Index},
        keyed::Keyed,
    },
    ids::{Addr, NONE},
};

/// No backend: the last one left the policy, and the next choice decides.
pub(crate) const NOWHERE: u16 = u16::MAX;

/// No policy: the entry is free.
pub(crate) const NOBODY: u16 = u16::MAX;

/// Bytes of a client's entry, its timer (16) and its place in the index (16) together, as
/// `baton_api::Limits` says.
pub(crate) const CLIENT_BYTES_MAX: usize = 68;

const _: () = assert!(size_of::<Entry>() + 16 + 16 <= CLIENT_BYTES_MAX);

/// How full the index may be, in percent: see `Index`.
pub(crate) const PERCENT: usize = 80;

/// One client of one policy.
#[derive(Clone)]
pub(crate) struct Entry {
    /// In bytes, which need no alignment.
    pub(crate) client: [u8; 16],
    pub(crate) policy: u16,
    pub(crate) backend: u16,
    /// Its flows that are open. Fewer where the table was full in between; never more.
    pub(crate) flows: u32,
    /// The free list.
    pub(crate) next: u32,
    /// Neighbours in the order of use.
    pub(crate) older: u32,
    pub(crate) newer: u32,
}

impl Entry {
    pub(crate) fn client(&self) -> Addr {
        Addr::from_octets(self.client)
    }
}

/// Clients in the order in which they were last used.
#[derive(Clone, Copy)]
pub(crate) struct Order {
    pub(crate) oldest: u32,
    pub(crate) newest: u32,
}

/// All clients with affinity: those with flows, and those whose time still runs.
pub(crate) struct Affinities {
    pub(crate) entries: Box<[Entry]>,
    pub(crate) index: Index,
    pub(crate) free: u32,
    pub(crate) used: u32,
    /// Clients without flows, and those with some. A client that has flows is in use: the others
    /// are forgotten first.
    pub(crate) orders: [Order; 2],
    pub(crate) keys: Keyed,
}

pub(crate) fn hash(keys: &Keyed, policy: u16, client: Addr) -> Hash {
    let place = keys.hash(client, 0, policy);
    Hash { place, mark: (place >> 16) as u32 }
}

impl Affinities {
    pub(crate) fn new(limit: u32, keys: (u64, u64)) -> Self {
        let entries = (0..limit)
            .map(|i| Entry {
                client: [0; 16],
                policy: NOBODY,
                backend: NOWHERE,
                flows: 0,
                next: if i + 1 < limit { i + 1 } else { NONE },
                older: NONE,
                newer: NONE,
            })
            .collect();
        let order = Order { oldest: NONE, newest: NONE };
        Self {
            entries,
            index: Index::new(limit as usize, PERCENT),
            free: if limit == 0 { NONE } else { 0 },
            used: 0,
            orders: [order; 2],
            keys: Keyed::new(keys, u64::MAX - 1),
        }
    }

    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    pub(crate) fn limit(&self) -> u32 {
        self.entries.len() as u32
    }

    pub(crate) fn find(&self, policy: u16, client: Addr) -> Option<u32> {
        self.index.find(hash(&self.keys, policy, client), |id| {
            let entry = &self.entries[id as usize];
            entry.policy == policy && entry.client() == client
        })
    }

    pub(crate) fn at(&mut self, id: u32) -> &mut Entry {
        &mut self.entries[id as usize]
    }

    /// The order that an entry belongs to.
    pub(crate) fn order_of(&self, id: u32) -> usize {
        usize::from(self.entries[id as usize].flows > 0)
    }

    pub(crate) fn leave_order(&mut self, id: u32) {
        let order = self.order_of(id);
        let Entry { older, newer, .. } = self.entries[id as usize];
        match older {
            NONE => self.orders[order].oldest = newer,
            older => self.at(older).newer = newer,
        }
        match newer {
            NONE => self.orders[order].newest = older,
            newer => self.at(newer).older = older,
        }
    }

    pub(crate) fn join_order(&mut self, id: u32) {
        let order = self.order_of(id);
        let newest = std::mem::replace(&mut self.orders[order].newest, id);
        let entry = self.at(id);
        (entry.older, entry.newer) = (newest, NONE);
        match newest {
            NONE => self.orders[order].oldest = id,
            newest => self.at(newest).newer = id,
        }
    }

    /// The client was used just now, and has so many flows.
    pub(crate) fn use_with(&mut self, id: u32, flows: u32) {
        self.leave_order(id);
        self.at(id).flows = flows;
        self.join_order(id);
    }

    /// Who is forgotten when there is no room.
    pub(crate) fn least_used(&self) -> u32 {
        match self.orders[0].oldest {
            NONE => self.orders[1].oldest,
            idle => idle,
        }
    }

    /// Adds a client with one flow. There is room; where the index has none for just this one,
    /// which chance does not bring about, it is not remembered.
    pub(crate) fn insert(&mut self, policy: u16, client: Addr, backend: u16) {
        let id = self.free;
        let (keys, entries) = (&self.keys, &self.entries);
        let of = |id: u32, _| {
            let entry = &entries[id as usize];
            Some(hash(keys, entry.policy, entry.client()))
        };
        if !self.index.insert(hash(keys, policy, client), id, of) {
            return;
        }
        let entry = self.at(id);
        let free = entry.next;
        *entry = Entry {
            client: client.octets(),
            policy,
            backend,
            flows: 1,
            next: NONE,
            older: NONE,
            newer: NONE,
        };
        self.free = free;
        self.used += 1;
        self.join_order(id);
    }

    pub(crate) fn remove(&mut self, id: u32) {
        self.leave_order(id);
        let entry = &self.entries[id as usize];
        let home = hash(&self.keys, entry.policy, entry.client());
        self.index.remove(home, id);
        let free = std::mem::replace(&mut self.free, id);
        let entry = self.at(id);
        (entry.policy, entry.next) = (NOBODY, free);
        self.used -= 1;
    }

    /// Those in use, the least used first; those without flows before the others.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.orders.iter().flat_map(|order| {
            let first = (order.oldest != NONE).then_some(order.oldest);
            std::iter::successors(first, |id| {
                let newer = self.entries[*id as usize].newer;
                (newer != NONE).then_some(newer)
            })
        })
    }
}
