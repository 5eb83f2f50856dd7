//! Putting a snapshot in force: slots for policies, frontends and backends, without touching flows.
//!
//! The only place after start that allocates. A slot that left the snapshot stays until the last flow that
//! refers to it is gone, and is then used again.
//!
//! Packets wait meanwhile, so a policy that is as it was is left as it is: one changed policy among hundreds costs what
//! looking at the others costs (`make bench-engine`, `apply`).

use crate::{
    Engine, Via,
    backend::Backend,
    engine::{FrontendSlot, Instant},
    flow::{Addr, from_addr, to_addr},
    lookup::Lookup,
    member::Member,
    policy::{Policy, Pool},
    sift::{Applied, Objection, Wanted, told},
    states::State,
};
use baton_api::{Snapshot, SnapshotError};
use siphasher::sip::SipHasher13;
use std::{
    collections::{HashMap, HashSet},
    hash::Hasher,
    net::IpAddr,
};

/// Why a snapshot was not applied. Nothing has changed then.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ApplyError {
    /// The snapshot contradicts itself, or the dataplane.
    #[error(transparent)]
    Invalid(#[from] SnapshotError),
    /// An older one than what is in force.
    #[error("generation {offered} is older than {current}, which is in force")]
    Stale {
        /// The snapshot's.
        offered: u64,
        /// In force.
        current: u64,
    },
    /// A frontend's port is a leg port on the dataplane's own address.
    #[error(
        "{path}: port {port} is in the range of leg ports {first}-{last}: choose another port or range"
    )]
    PortConflict {
        /// Where.
        path: String,
        /// The port.
        port: u16,
        /// Range of leg ports.
        first: u16,
        /// Its end.
        last: u16,
    },
    /// A table of fixed size is full.
    #[error(transparent)]
    NoRoom(SnapshotError),
    /// More distinct backends than the table holds.
    #[error("{needed} backends are more than limits.backends, {limit}")]
    TooManyBackends {
        /// In the snapshot and still closing.
        needed: usize,
        /// The table's size.
        limit: u16,
    },
}

/// Backends that a snapshot has placed so far, and where the search for free slots goes on.
#[derive(Default)]
struct NewSlots {
    placed: HashMap<(Addr, u16), usize>,
    free: usize,
    /// Slots that were another backend's before.
    reused: Vec<u16>,
}

/// Slots of frontends without flows, once they are known, the lowest last.
#[derive(Default)]
struct FrontendSlots {
    free: Option<Vec<u16>>,
}

impl Engine {
    /// Puts `snapshot` in force, whole. Flows stay where they are.
    ///
    /// # Errors
    /// The snapshot is not used at all then.
    pub fn apply(&mut self, now: Instant, snapshot: &Snapshot) -> Result<(), ApplyError> {
        let sifted = self.sift(snapshot, &[])?;
        match sifted.refused.into_iter().next() {
            Some(first) => Err(first.error),
            None => {
                self.put_in_force(now, snapshot.generation, &sifted.wanted);
                Ok(())
            }
        }
    }

    /// Puts each policy of `snapshot` in force that can be, and to which nobody objects. Those that cannot keep what they
    /// had, where that goes together with the others.
    ///
    /// # Errors
    /// The snapshot is not used at all then.
    pub fn apply_each(
        &mut self,
        now: Instant,
        snapshot: &Snapshot,
        objections: &[Objection],
    ) -> Result<Applied, ApplyError> {
        let sifted = self.sift(snapshot, objections)?;
        self.put_in_force(now, snapshot.generation, &sifted.wanted);
        Ok(told(snapshot, &sifted.refused))
    }

    fn put_in_force(&mut self, now: Instant, generation: u64, wanted: &[Wanted<'_>]) {
        let listed = self.policies.iter().filter(|p| p.listed).count();
        let nothing_new = wanted.len() == listed && wanted.iter().all(|w| w.same);
        if nothing_new && generation == self.generation {
            return;
        }
        let now = self.engine_time(now);
        self.events.now = now;
        self.settle_affinities(wanted);
        self.place_backends(now, wanted);
        self.place_nodes(now, wanted);
        self.place_policies(now, wanted);
        self.refresh_hops();
        self.generation = generation;
        self.next_probe_ms = now.ms();
        self.count_suspects();
        self.judge_pools(now);
        self.settle_drains(now);
        self.look_over_drains();
    }

    fn place_backends(&mut self, now: Instant, wanted: &[Wanted<'_>]) {
        let all = || wanted.iter().flat_map(|w| &w.spec.backends);
        let named: HashSet<(Addr, u16)> = all()
            .map(|b| (to_addr(b.endpoint.address()), b.endpoint.port()))
            .collect();
        // All that stay are marked first, so that no new backend takes a slot that is still named.
        for index in 0..self.backends.len() {
            let slot = &mut self.backends[index];
            slot.listed = named.contains(&(slot.addr, slot.port));
            if !slot.listed {
                self.stop_probing(now, index as u16);
                self.stop_asking(now, index as u16);
            }
        }
        let mut new = NewSlots::default();
        for backend in all() {
            let index = self.backend_slot(now, backend, &mut new);
            let slot = &mut self.backends[index];
            slot.listed = true;
            if slot.name != backend.name {
                slot.name.clone_from(&backend.name);
            }
        }
        self.drop_wishes_for(&new.reused);
        let entries: Vec<(Addr, u16, u16)> = self
            .backends
            .iter()
            .enumerate()
            .map(|(i, b)| (b.addr, b.port, i as u16))
            .collect();
        self.backend_ids = Lookup::build(entries.into_iter());
    }

    /// The slot of a backend: its own, or one that nobody refers to any more, or a new one.
    fn backend_slot(
        &mut self,
        now: Instant,
        backend: &baton_api::Backend,
        new: &mut NewSlots,
    ) -> usize {
        let (addr, port) = (to_addr(backend.endpoint.address()), backend.endpoint.port());
        // The look-up is from before this snapshot: a slot may be another backend's by now.
        let old = self.backend_ids.find(&addr, port).map(usize::from);
        if let Some(index) = old
            && (self.backends[index].addr, self.backends[index].port) == (addr, port)
        {
            return index;
        }
        if let Some(index) = new.placed.get(&(addr, port)) {
            return *index;
        }
        let name = backend.name.clone();
        let first = *self.settings.ports.start();
        let numbers = self.sources.numbers(from_addr(&addr).is_ipv6());
        let mut fresh = Backend::new(name, addr, port, (first, numbers), &mut self.rng);
        fresh.since_event = self.events.last();
        if self.generation > 0 {
            fresh.health.comes_up(now);
        }
        // None in front of it comes free while a snapshot is placed.
        while self
            .backends
            .get(new.free)
            .is_some_and(|b| b.listed || b.legs_used > 0)
        {
            new.free += 1;
        }
        let index = new.free;
        if index < self.backends.len() {
            self.backends[index] = fresh;
            new.reused.push(index as u16);
        } else {
            self.backends.push(fresh);
        }
        new.placed.insert((addr, port), index);
        index
    }

    fn place_policies(&mut self, now: Instant, wanted: &[Wanted<'_>]) {
        for policy in &mut self.policies {
            policy.listed = false;
        }
        for frontend in &mut self.frontends {
            frontend.listed = false;
        }
        // All that stay are marked first, so that no new policy takes a slot that is still named.
        for Wanted { spec, .. } in wanted {
            if let Some(index) = self.policy_ids.get(&spec.name) {
                self.policies[usize::from(*index)].listed = true;
            }
        }
        let mut frontends = FrontendSlots::default();
        // What stays as it is keeps its slots: its backends are named still, so theirs are the same too.
        for Wanted { spec, same } in wanted {
            let index = if *same {
                self.policy_ids[&spec.name]
            } else {
                self.policy_slot(now, spec)
            };
            for endpoint in &spec.frontends {
                for address in self.expand(*endpoint) {
                    self.frontend_slot(to_addr(address), endpoint.port(), index, &mut frontends);
                }
            }
        }
        // Flows of a policy that left stay where they are: its backends' slots may go to others.
        for index in 0..self.policies.len() {
            if !self.policies[index].listed {
                let none = [Pool::default(), Pool::default()];
                let old = std::mem::replace(&mut self.policies[index].pools, none);
                self.members_left(now, index as u16, &old, &[Pool::default(), Pool::default()]);
            }
        }
        let entries: Vec<(Addr, u16, u16)> = self
            .frontends
            .iter()
            .enumerate()
            .map(|(i, f)| (f.addr, f.port, i as u16))
            .collect();
        self.frontend_ids = Lookup::build(entries.into_iter());
    }

    /// Puts a new or changed policy into its slot, or into one that nobody refers to any more, or into a new one.
    fn policy_slot(&mut self, now: Instant, spec: &baton_api::Policy) -> u16 {
        if let Some(index) = self.policy_ids.get(&spec.name).copied() {
            let at = usize::from(index);
            let old = std::mem::take(&mut self.policies[at].pools);
            let mut policy = Policy::new(
                spec.clone(),
                self.pools(spec, &old, self.policies[at].flows > 0),
            );
            policy.inherit(&self.policies[at], &old);
            self.members_left(now, index, &old, &policy.pools);
            self.policies[at] = policy;
            return index;
        }
        let mut policy = Policy::new(spec.clone(), self.pools(spec, &[], false));
        policy.since_event = self.events.last();
        let free = self.policies.iter().position(|p| !p.listed && p.flows == 0);
        let index = free.unwrap_or(self.policies.len());
        if index < self.policies.len() {
            self.policy_ids.remove(&self.policies[index].spec.name);
            for backend in &mut self.backends {
                backend.drains.end(index as u16);
            }
            self.policies[index] = policy;
        } else {
            self.policies.push(policy);
        }
        self.policy_ids.insert(spec.name.clone(), index as u16);
        index as u16
    }

    fn frontend_slot(&mut self, addr: Addr, port: u16, policy: u16, slots: &mut FrontendSlots) {
        let slot = FrontendSlot {
            addr,
            port,
            policy,
            listed: true,
            since_event: self.events.last(),
        };
        let old = self.frontend_ids.find(&addr, port).map(usize::from);
        if let Some(index) = old
            && (self.frontends[index].addr, self.frontends[index].port) == (addr, port)
        {
            let since_event = self.frontends[index].since_event;
            self.frontends[index] = FrontendSlot {
                since_event,
                ..slot
            };
            return;
        }
        // Which are in use is asked once, and only if there is a new one.
        let free = slots.free.get_or_insert_with(|| {
            let live = self.flows.slots().iter();
            let live = live.filter(|f| f.state != State::Gone);
            let in_use: HashSet<u16> = live.map(|f| f.frontend).collect();
            let all = 0..self.frontends.len() as u16;
            all.rev().filter(|i| !in_use.contains(i)).collect()
        });
        while let Some(index) = free.pop() {
            let old = &mut self.frontends[usize::from(index)];
            if !old.listed {
                *old = slot;
                return;
            }
        }
        self.frontends.push(slot);
    }

    /// The members of a policy; `old` are the ones that it had.
    fn pools(&self, spec: &baton_api::Policy, old: &[Pool], has_flows: bool) -> [Pool; 2] {
        [false, true].map(|v6| {
            let mut members = Vec::new();
            let all = spec.backends.iter().enumerate();
            for (at, backend) in all.filter(|(_, b)| b.endpoint.address().is_ipv6() == v6) {
                let addr = to_addr(backend.endpoint.address());
                let Some(id) = self.backend_ids.find(&addr, backend.endpoint.port()) else {
                    continue;
                };
                // The same on every dataplane: no key.
                let mut hasher = SipHasher13::new();
                hasher.write(&addr);
                hasher.write_u16(backend.endpoint.port());
                let known = (id, hasher.finish());
                members.push(Member::new(known, at, backend, spec.slow_start));
            }
            Pool::new(members, spec.algorithm, old.get(usize::from(v6)), has_flows)
        })
    }

    /// Next hops of backends and sources of their legs, after routes or backends changed.
    pub(crate) fn refresh_hops(&mut self) {
        self.of_host.clear();
        for index in 0..self.backends.len() {
            let address = from_addr(&self.backends[index].addr);
            let own = self.sources.first(address.is_ipv6());
            let hop = self.hop_to(address, None);
            let via = self.routes.via(address);
            let backend = &mut self.backends[index];
            backend.hop = hop;
            backend.health.leads(via == Some(Via::Elsewhere));
            backend.source = match via {
                Some(Via::Host(source)) => source.or(own),
                Some(Via::Link | Via::Router(_)) => own,
                // Its legs are what they were when the route comes back.
                Some(Via::Elsewhere) | None => backend.source.or(own),
            };
            if let Some(source) = backend.source
                && !self.is_source(source)
            {
                self.of_host.push(source);
            }
        }
    }

    /// Who answers to legs, if others may have such ports ([`Self::share_ports`]): backends of the snapshot, and those with legs still.
    #[must_use]
    pub fn backends_to_steer(&self) -> Option<Vec<(IpAddr, u16)>> {
        let used = self
            .backends
            .iter()
            .filter(|backend| backend.listed || backend.legs_used > 0);
        let endpoints = used.map(|backend| (from_addr(&backend.addr), backend.port));
        self.shares_ports.then(|| endpoints.collect())
    }

    /// Addresses that legs come from beside the own ones: the host's, on a node's network.
    #[must_use]
    pub fn addresses_of_host(&self) -> &[IpAddr] {
        &self.of_host
    }

    /// The frontends to steer to us: those in force, and those whose flows still live.
    #[must_use]
    pub fn steering(&self) -> Vec<(IpAddr, u16)> {
        let live = |f: &&FrontendSlot| f.listed || self.policies[usize::from(f.policy)].flows > 0;
        self.frontends
            .iter()
            .filter(live)
            .map(|f| (from_addr(&f.addr), f.port))
            .collect()
    }
}
