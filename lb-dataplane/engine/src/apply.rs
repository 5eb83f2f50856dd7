//! Putting a snapshot in force: slots for policies, frontends and backends, without touching flows.
//!
//! The only place after start that allocates. A slot that left the snapshot stays until the last flow that
//! refers to it is gone, and is then used again.

use crate::{
    Engine,
    backend::Backend,
    engine::{FrontendSlot, Instant},
    flow::{Addr, from_addr, to_addr},
    lookup::Lookup,
    policy::{Member, Pace, Policy, Pool},
};
use baton_api::{Endpoint, Snapshot, SnapshotError};
use siphasher::sip::SipHasher13;
use std::{collections::HashMap, hash::Hasher, net::IpAddr};

/// Why a snapshot was not applied. Nothing has changed then.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ApplyError {
    /// The snapshot contradicts itself.
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
    /// More distinct backends than the table holds.
    #[error("{needed} backends are more than limits.backends, {limit}")]
    TooManyBackends {
        /// In the snapshot and still closing.
        needed: usize,
        /// The table's size.
        limit: u16,
    },
}

impl Engine {
    /// Puts `snapshot` in force. Flows stay where they are.
    ///
    /// # Errors
    /// The snapshot is not used at all then.
    pub fn apply(&mut self, now: Instant, snapshot: &Snapshot) -> Result<(), ApplyError> {
        let now = self.engine_time(now);
        snapshot.validate()?;
        if snapshot.generation < self.generation {
            return Err(ApplyError::Stale {
                offered: snapshot.generation,
                current: self.generation,
            });
        }
        self.check(snapshot)?;
        self.settle_affinities(snapshot);
        self.place_backends(now, snapshot);
        self.place_policies(snapshot);
        self.refresh_hops();
        self.generation = snapshot.generation;
        self.next_probe_ms = now.ms();
        self.judge_pools(now);
        self.look_over_drains(now);
        Ok(())
    }

    /// The addresses that a frontend's address stands for.
    fn expand(&self, endpoint: Endpoint) -> Vec<IpAddr> {
        let address = endpoint.address();
        if address.is_unspecified() {
            let own = self.settings.addresses.iter().copied();
            own.filter(|a| a.is_ipv6() == address.is_ipv6()).collect()
        } else {
            vec![address]
        }
    }

    fn check(&self, snapshot: &Snapshot) -> Result<(), ApplyError> {
        let mut backends = std::collections::HashSet::new();
        let mut ends: HashMap<(IpAddr, u16), Endpoint> = HashMap::new();
        for (p, policy) in snapshot.policies.iter().enumerate() {
            for (i, frontend) in policy.frontends.iter().enumerate() {
                let addresses = self.expand(*frontend);
                for address in &addresses {
                    if let Some(other) = ends.insert((*address, frontend.port()), *frontend) {
                        // An unspecified address and our own one: equal ones the snapshot's check refused.
                        return Err(ApplyError::Invalid(SnapshotError {
                            path: format!("policies[{p}].frontends[{i}]"),
                            problem: format!("{frontend} means {address} here, as {other} does"),
                        }));
                    }
                }
                let ours = addresses
                    .iter()
                    .any(|a| self.settings.addresses.contains(a));
                if ours && self.settings.ports.contains(&frontend.port()) {
                    return Err(ApplyError::PortConflict {
                        path: format!("policies[{p}].frontends[{i}]"),
                        port: frontend.port(),
                        first: *self.settings.ports.start(),
                        last: *self.settings.ports.end(),
                    });
                }
            }
            backends.extend(policy.backends.iter().map(|b| b.endpoint));
        }
        let named = |b: &Backend| {
            Endpoint::new(from_addr(&b.addr), b.port).is_some_and(|e| backends.contains(&e))
        };
        let lingering = self
            .backends
            .iter()
            .filter(|b| b.legs_used > b.service_ports() && !named(b))
            .count();
        let (needed, limit) = (backends.len() + lingering, self.settings.limits.backends);
        if needed > usize::from(limit) {
            return Err(ApplyError::TooManyBackends { needed, limit });
        }
        Ok(())
    }

    fn place_backends(&mut self, now: Instant, snapshot: &Snapshot) {
        let named: HashMap<(Addr, u16), &baton_api::Backend> = snapshot
            .policies
            .iter()
            .flat_map(|p| &p.backends)
            .map(|b| ((to_addr(b.endpoint.address()), b.endpoint.port()), b))
            .collect();
        // All that stay are marked first, so that no new backend takes a slot that is still named.
        for index in 0..self.backends.len() {
            let slot = &mut self.backends[index];
            slot.listed = named.contains_key(&(slot.addr, slot.port));
            slot.draining = false;
            slot.spec = None;
            slot.slow_start_ms = 0;
            if !slot.listed {
                self.stop_probing(now, index as u16);
                self.stop_asking(now, index as u16);
            }
        }
        let first = self.generation == 0;
        let all = snapshot.policies.iter();
        for (policy, backend) in all.flat_map(|p| p.backends.iter().map(move |b| (p, b))) {
            let known = self.backends.len();
            let index = self.backend_slot(backend);
            let slot = &mut self.backends[index];
            slot.listed = true;
            slot.draining |= backend.draining;
            slot.name.clone_from(&backend.name);
            slot.spec.get_or_insert_with(|| policy.health.clone());
            slot.slow_start_ms = slot.slow_start_ms.max(policy.slow_start.0 / 1_000);
            if !first && index >= known {
                let slow_ms = slot.slow_start_ms;
                slot.health.starts_slowly(now, slow_ms);
            }
        }
        let entries: Vec<(Addr, u16, u16)> = self
            .backends
            .iter()
            .enumerate()
            .map(|(i, b)| (b.addr, b.port, i as u16))
            .collect();
        self.backend_ids = Lookup::build(entries.into_iter());
    }

    /// The slot of a backend: its own, or one that nobody refers to any more, or a new one.
    fn backend_slot(&mut self, backend: &baton_api::Backend) -> usize {
        let (addr, port) = (to_addr(backend.endpoint.address()), backend.endpoint.port());
        if let Some(index) = self
            .backends
            .iter()
            .position(|b| b.addr == addr && b.port == port)
        {
            return index;
        }
        let v6 = backend.endpoint.address().is_ipv6();
        let name = backend.name.clone();
        let fresh = Backend::new(name, addr, port, v6, &self.settings.ports, &mut self.rng);
        match self
            .backends
            .iter()
            .position(|b| !b.listed && b.legs_used == 0)
        {
            Some(index) => {
                self.backends[index] = fresh;
                index
            }
            None => {
                self.backends.push(fresh);
                self.backends.len() - 1
            }
        }
    }

    fn place_policies(&mut self, snapshot: &Snapshot) {
        for policy in &mut self.policies {
            policy.listed = false;
        }
        for frontend in &mut self.frontends {
            frontend.listed = false;
        }
        for spec in &snapshot.policies {
            let policy = Policy::new(spec.clone(), self.pools(spec));
            let index = self.policy_slot(policy);
            for endpoint in &spec.frontends {
                for address in self.expand(*endpoint) {
                    self.frontend_slot(to_addr(address), endpoint.port(), index);
                }
            }
        }
        // Flows of a policy that left stay where they are: its backends' slots may go to others.
        for policy in self.policies.iter_mut().filter(|p| !p.listed) {
            policy.pools = [Pool::default(), Pool::default()];
        }
        let entries: Vec<(Addr, u16, u16)> = self
            .frontends
            .iter()
            .enumerate()
            .map(|(i, f)| (f.addr, f.port, i as u16))
            .collect();
        self.frontend_ids = Lookup::build(entries.into_iter());
    }

    fn policy_slot(&mut self, mut policy: Policy) -> u16 {
        let name = &policy.spec.name;
        if let Some(index) = self.policies.iter().position(|p| p.spec.name == *name) {
            policy.inherit(&self.policies[index]);
            self.policies[index] = policy;
            return index as u16;
        }
        match self.policies.iter().position(|p| !p.listed && p.flows == 0) {
            Some(index) => {
                self.policies[index] = policy;
                index as u16
            }
            None => {
                self.policies.push(policy);
                (self.policies.len() - 1) as u16
            }
        }
    }

    fn frontend_slot(&mut self, addr: Addr, port: u16, policy: u16) {
        let slot = FrontendSlot {
            addr,
            port,
            policy,
            listed: true,
        };
        let same = |f: &FrontendSlot| f.addr == addr && f.port == port;
        if let Some(index) = self.frontends.iter().position(same) {
            self.frontends[index] = slot;
            return;
        }
        let free =
            (0..self.frontends.len()).find(|i| {
                !self.frontends[*i].listed
                    && !self.flows.slots().iter().any(|f| {
                        f.state != crate::states::State::Gone && usize::from(f.frontend) == *i
                    })
            });
        match free {
            Some(index) => self.frontends[index] = slot,
            None => self.frontends.push(slot),
        }
    }

    fn pools(&self, spec: &baton_api::Policy) -> [Pool; 2] {
        [false, true].map(|v6| {
            let (mut members, mut identities) = (Vec::new(), Vec::new());
            for backend in spec
                .backends
                .iter()
                .filter(|b| b.endpoint.address().is_ipv6() == v6)
            {
                let addr = to_addr(backend.endpoint.address());
                let Some(id) = self.backend_ids.find(&addr, backend.endpoint.port()) else {
                    continue;
                };
                // The same on every dataplane: no key.
                let mut hasher = SipHasher13::new();
                hasher.write(&addr);
                hasher.write_u16(backend.endpoint.port());
                identities.push(hasher.finish());
                members.push(Member {
                    backend: id,
                    identity: hasher.finish(),
                    weight: backend.weight,
                    draining: backend.draining,
                    unhealthy: false,
                    pace: Pace::default(),
                });
            }
            Pool::new(members, &identities, spec.algorithm)
        })
    }

    /// Next hops of backends, after routes or backends changed.
    pub(crate) fn refresh_hops(&mut self) {
        for index in 0..self.backends.len() {
            let address = from_addr(&self.backends[index].addr);
            self.backends[index].hop = self.hop_to(address, None);
        }
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
