//! Putting a snapshot in force: slots for policies, frontends and backends, without touching flows.
//!
//! Owns the order of that, and goes through it a bounded piece at a time, between which packets are served: backends that
//! are new come first, then the policies one by one, then what is named no more goes. So each state in between is one in
//! which every policy is as it was or as it will be. A slot that left the snapshot stays until the last flow that refers to
//! it is gone, and is used again by a later snapshot, never by the one in which it left. What takes long is done before, by
//! `prepare`.

use crate::{
    Engine, Via,
    backend::Backend,
    engine::{FrontendSlot, Instant},
    flow::{FlowId, from_addr},
    policy::{Policy, Pool},
    prepare::{End, Fixed, Prepared},
    states::State,
};
use baton_api::{Snapshot, SnapshotError};
use std::net::IpAddr;

/// What one piece may cost, in units of about 0.1 us: some 50 us.
const PIECE: usize = 512;
/// Looking at a slot of a table that stays as it is; at a flow, or a client with affinity, which lie apart in memory.
const COST_SLOT: usize = 1;
/// A backend's slot, filled or changed.
const COST_BACKEND: usize = 20;
/// A policy, beside its members and frontends.
const COST_POLICY: usize = 16;

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

/// What is done next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Whether there is room. Nothing has changed yet.
    #[default]
    Room,
    /// Slots of new backends.
    Arrive,
    /// Policies that are new or changed, and all frontends.
    Policies,
    /// Policies and frontends that are named no more.
    Retire,
    /// Backends: those that go, and what changed of the others.
    Backends,
    /// Clients with affinity to what went.
    Clients,
    /// Flows that were to move to what went.
    Wishes,
    /// In force.
    Done,
}

impl Stage {
    fn next(self) -> Self {
        match self {
            Self::Room => Self::Arrive,
            Self::Arrive => Self::Policies,
            Self::Policies => Self::Retire,
            Self::Retire => Self::Backends,
            Self::Backends => Self::Clients,
            Self::Clients => Self::Wishes,
            Self::Wishes | Self::Done => Self::Done,
        }
    }
}

/// How far a snapshot is put in force.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    stage: Stage,
    /// Where the stage goes on.
    at: usize,
    /// Backends that have legs still and are named no more.
    lingering: usize,
    /// Where the search for free slots goes on.
    free_backend: usize,
    free_policy: usize,
    free_frontend: usize,
    /// What is named is stamped with this number.
    stamp: u64,
    /// A policy or a backend went, or a policy keeps clients together no more.
    left: bool,
    wishes: bool,
}

impl Engine {
    /// Puts `snapshot` in force at once, however long that takes. Flows stay where they are.
    ///
    /// # Errors
    /// The snapshot is not used at all then.
    pub fn apply(&mut self, now: Instant, snapshot: &Snapshot) -> Result<(), ApplyError> {
        snapshot.validate_but(|policy| self.has(policy))?;
        let fixed = Fixed::new(&self.settings, &self.sources);
        let mut rng = self.rng.clone();
        let mut prepared = Prepared::new(
            &fixed,
            &mut rng,
            snapshot,
            |end| self.slot_of(end).is_some(),
            |name, v6, rows| {
                let at = self.policy_ids.get(name)?;
                self.policies[usize::from(*at)].pools[usize::from(v6)].table_of(rows)
            },
        )?;
        self.rng = rng;
        while !self.apply_piece(now, &mut prepared)? {}
        Ok(())
    }

    /// Goes on with putting a snapshot in force; whether it is. Flows stay where they are, and packets may be served in
    /// between. None is begun before the one before is in force.
    ///
    /// # Errors
    /// The snapshot is not used at all then.
    pub fn apply_piece(
        &mut self,
        now: Instant,
        prepared: &mut Prepared,
    ) -> Result<bool, ApplyError> {
        let now = self.engine_time(now);
        self.events.now = now;
        if prepared.generation < self.generation {
            return Err(ApplyError::Stale {
                offered: prepared.generation,
                current: self.generation,
            });
        }
        let mut left = PIECE;
        while left > 0 {
            let stage = prepared.progress.stage;
            let cost = match stage {
                Stage::Room => self.make_sure_of_room(prepared)?,
                Stage::Arrive => self.backend_arrives(now, prepared),
                Stage::Policies => self.policy_changes(now, prepared),
                Stage::Retire => self.slot_retires(prepared),
                Stage::Backends => self.backend_changes(now, prepared),
                Stage::Clients if !prepared.progress.left => None,
                Stage::Clients => self.client_settles(prepared.progress.at as u32),
                Stage::Wishes => self.wish_settles(&mut prepared.progress),
                Stage::Done => return Ok(true),
            };
            let progress = &mut prepared.progress;
            match cost {
                Some(cost) => {
                    progress.at += 1;
                    left = left.saturating_sub(cost);
                }
                None => {
                    (progress.stage, progress.at) = (stage.next(), 0);
                    if progress.stage == Stage::Arrive {
                        self.check_room(prepared)?;
                        self.applies += 1;
                        prepared.progress.stamp = self.applies;
                    } else if progress.stage == Stage::Done {
                        self.generation = prepared.generation;
                        self.next_probe_ms = self.next_probe_ms.min(now.ms());
                    }
                }
            }
        }
        Ok(false)
    }

    /// The slot of a backend that can have legs.
    fn slot_of(&self, end: &End) -> Option<u16> {
        let index = self.backend_ids.find(&end.0, end.1)?;
        (self.backends[usize::from(index)].slots() > 0).then_some(index)
    }

    fn make_sure_of_room(&self, prepared: &mut Prepared) -> Result<Option<usize>, ApplyError> {
        let Some(backend) = self.backends.get(prepared.progress.at) else {
            return Ok(None);
        };
        let lingers = backend.legs_used > backend.service_ports();
        if lingers && !prepared.named.contains_key(&(backend.addr, backend.port)) {
            prepared.progress.lingering += 1;
        }
        Ok(Some(COST_SLOT))
    }

    fn check_room(&self, prepared: &Prepared) -> Result<(), ApplyError> {
        let limit = self.settings.limits.backends;
        let needed = prepared.named.len() + prepared.progress.lingering;
        if needed > usize::from(limit) {
            return Err(ApplyError::TooManyBackends { needed, limit });
        }
        Ok(())
    }

    /// Gives the next new backend a slot: its own of before, one that nobody refers to any more, or a new one.
    fn backend_arrives(&mut self, now: Instant, prepared: &mut Prepared) -> Option<usize> {
        let place = prepared.fresh.get_mut(prepared.progress.at)?;
        let end = place.as_ref().map(|fresh| (fresh.addr, fresh.port));
        let end = end.filter(|end| self.slot_of(end).is_none());
        let Some((end, fresh)) = end.zip(place.as_mut()) else {
            return Some(COST_BACKEND);
        };
        let mut cost = COST_BACKEND;
        let free = &mut prepared.progress.free_backend;
        let own = self.backend_ids.find(&end.0, end.1).map(usize::from);
        let index = own.unwrap_or_else(|| {
            // None in front of it comes free while a snapshot is put in force.
            let named = &prepared.named;
            let used =
                |b: &Backend| b.listed || b.legs_used > 0 || named.contains_key(&(b.addr, b.port));
            while self.backends.get(*free).is_some_and(used) {
                *free += 1;
                cost += COST_SLOT;
            }
            *free
        });
        fresh.since_event = self.events.last();
        if let Some(named) = prepared.named.get(&end) {
            fresh.slow_start_ms = named.slow_start_ms;
        }
        if self.generation > 0 {
            let slow_ms = fresh.slow_start_ms;
            fresh.health.starts_slowly(now, slow_ms);
        }
        if let Some(slot) = self.backends.get_mut(index) {
            std::mem::swap(slot, fresh);
            debug_assert!(fresh.policies.is_empty(), "a member's slot");
            self.backend_ids.remove(&fresh.addr, fresh.port);
            if let Some(hop) = fresh.hop.take() {
                self.hops.let_go(hop);
            }
        } else {
            self.backends.extend(place.take());
        }
        self.backend_ids.insert(&end.0, end.1, index as u16);
        self.refresh_hop(index);
        Some(cost)
    }

    /// Whether a policy is in force just so.
    fn has(&self, spec: &baton_api::Policy) -> bool {
        let index = self.policy_ids.get(&spec.name);
        index.is_some_and(|index| {
            let policy = &self.policies[usize::from(*index)];
            policy.listed && policy.spec == *spec
        })
    }

    /// Puts the next policy into its slot, or into one that nobody refers to any more, or into a new one.
    fn policy_changes(&mut self, now: Instant, prepared: &mut Prepared) -> Option<usize> {
        let at = prepared.progress.at;
        let ready = prepared.policies.get_mut(at)?;
        let stamp = prepared.progress.stamp;
        let size = ready.frontends.len() + ready.spec.backends.len();
        let mut cost = COST_POLICY + size;
        let known = self.policy_ids.get(&ready.spec.name).copied();
        let index = match known {
            // Its backends are named still, so their slots are the same too.
            Some(index) if self.has(&ready.spec) => index,
            _ => {
                cost += 4 * size;
                let pools = ready.policy.iter_mut().flat_map(|p| &mut p.pools);
                for (pool, ends) in pools.zip(&ready.ends) {
                    for (member, end) in pool.members.iter_mut().zip(ends) {
                        // It has one: what is not fresh was known.
                        let slot = self.backend_ids.find(&end.0, end.1);
                        debug_assert!(slot.is_some(), "a member without a slot");
                        member.backend = slot.unwrap_or_default();
                        // It may have left before, and be back.
                        self.backends[usize::from(member.backend)].listed = true;
                    }
                }
                let free = &mut prepared.progress.free_policy;
                let index = known.map_or_else(
                    || {
                        while (self.policies.get(*free)).is_some_and(|p| p.listed || p.flows > 0) {
                            *free += 1;
                            cost += COST_SLOT;
                        }
                        *free
                    },
                    usize::from,
                );
                let affinity = self.place_policy(now, &mut ready.policy, index, known.is_some());
                prepared.progress.left |= affinity;
                index as u16
            }
        };
        self.policies[usize::from(index)].applied = stamp;
        for end in &ready.frontends {
            self.place_frontend(*end, index, &mut prepared.progress);
        }
        Some(cost)
    }

    /// `goes_on`: the slot is the policy's already. Whether it keeps clients together no more.
    fn place_policy(
        &mut self,
        now: Instant,
        place: &mut Option<Policy>,
        index: usize,
        goes_on: bool,
    ) -> bool {
        let Some(new) = place else { return false };
        new.since_event = self.events.last();
        let mut parts = false;
        if let Some(old) = self.policies.get_mut(index) {
            if goes_on {
                parts = old.spec.affinity.is_some() && new.spec.affinity.is_none();
                new.inherit(old);
            } else {
                self.policy_ids.remove(&old.spec.name);
            }
            self.leave_pools(index);
            std::mem::swap(&mut self.policies[index], new);
        } else {
            self.policies.extend(place.take());
        }
        if !goes_on {
            let name = self.policies[index].spec.name.clone();
            self.policy_ids.insert(name, index as u16);
        }
        let Self {
            policies, backends, ..
        } = self;
        let members = policies[index].pools.iter().flat_map(|p| &p.members);
        for member in members {
            let of = &mut backends[usize::from(member.backend)].policies;
            if of.last() != Some(&(index as u16)) {
                of.push(index as u16);
            }
        }
        self.judge_policy(now, index);
        parts
    }

    /// The members of a policy are no longer its.
    fn leave_pools(&mut self, index: usize) {
        let Self {
            policies, backends, ..
        } = self;
        for member in policies[index].pools.iter().flat_map(|p| &p.members) {
            let of = &mut backends[usize::from(member.backend)].policies;
            of.retain(|policy| usize::from(*policy) != index);
        }
    }

    fn place_frontend(&mut self, end: End, policy: u16, progress: &mut Progress) {
        let applied = progress.stamp;
        if let Some(index) = self.frontend_ids.find(&end.0, end.1) {
            let slot = &mut self.frontends[usize::from(index)];
            (slot.policy, slot.listed, slot.applied) = (policy, true, applied);
            return;
        }
        let slot = FrontendSlot {
            addr: end.0,
            port: end.1,
            policy,
            listed: true,
            since_event: self.events.last(),
            flows: 0,
            applied,
        };
        let free = &mut progress.free_frontend;
        while (self.frontends.get(*free)).is_some_and(|f| f.listed || f.flows > 0) {
            *free += 1;
        }
        let index = *free;
        if let Some(old) = self.frontends.get_mut(index) {
            self.frontend_ids.remove(&old.addr, old.port);
            *old = slot;
        } else {
            self.frontends.push(slot);
        }
        self.frontend_ids.insert(&end.0, end.1, index as u16);
    }

    /// The next policy and frontend, if they are named no more. Flows of such a policy stay where they are: its backends'
    /// slots may go to others.
    fn slot_retires(&mut self, prepared: &mut Prepared) -> Option<usize> {
        let (at, applied) = (prepared.progress.at, prepared.progress.stamp);
        let (policies, frontends) = (self.policies.len(), self.frontends.len());
        let goes = |p: &Policy| p.listed && p.applied != applied;
        if self.policies.get(at).is_some_and(goes) {
            self.leave_pools(at);
            let policy = &mut self.policies[at];
            policy.listed = false;
            prepared.pools.push(std::mem::take(&mut policy.pools));
            prepared.progress.left = true;
        }
        if let Some(frontend) = self.frontends.get_mut(at) {
            frontend.listed &= frontend.applied == applied;
        }
        (at < policies.max(frontends)).then_some(2 * COST_SLOT)
    }

    /// The next backend.
    fn backend_changes(&mut self, now: Instant, prepared: &mut Prepared) -> Option<usize> {
        let index = prepared.progress.at;
        let slot = self.backends.get_mut(index)?;
        let Some(named) = prepared.named.get_mut(&(slot.addr, slot.port)) else {
            prepared.progress.left |= slot.listed;
            slot.listed = false;
            slot.draining = false;
            slot.spec = None;
            slot.slow_start_ms = 0;
            self.stop_probing(now, index as u16);
            // One that left before may have been asked for its flows' sake.
            self.stop_asking(now, index as u16);
            self.look_over_drain(now, index);
            let slot = &mut self.backends[index];
            if slot.legs_used == 0 && slot.ports.remembered() == 0 && slot.slots() > 0 {
                prepared.tables.push(slot.take_tables());
            }
            return Some(COST_BACKEND);
        };
        slot.listed = true;
        slot.draining = named.draining;
        slot.slow_start_ms = named.slow_start_ms;
        if slot.name != named.name {
            std::mem::swap(&mut slot.name, &mut named.name);
        }
        std::mem::swap(&mut slot.spec, &mut named.spec);
        if slot.hop.is_none() {
            self.refresh_hop(index);
        }
        self.look_over_drain(now, index);
        Some(2 * COST_SLOT)
    }

    /// A flow that was to move to a backend that went stays.
    fn wish_settles(&mut self, progress: &mut Progress) -> Option<usize> {
        if progress.at == 0 {
            if !self.wishes || !progress.left {
                return None;
            }
            (progress.wishes, self.new_wishes) = (false, false);
        }
        let id = progress.at as FlowId;
        if id >= self.flows.limit() {
            self.wishes = progress.wishes || self.new_wishes;
            return None;
        }
        let flow = &self.flows[id];
        if flow.state != State::Gone && flow.has_wish() {
            let to = self.backends.get(usize::from(flow.standby.backend));
            if to.is_some_and(|b| !b.listed) {
                self.drop_wish(id);
            } else {
                progress.wishes = true;
            }
        }
        Some(COST_SLOT)
    }

    /// Next hops of backends and sources of their legs, after routes changed: some of them now, the others in `poll`.
    pub(crate) fn refresh_hops(&mut self, max: usize) {
        let Some(from) = self.stale_hops else { return };
        let to = (from + max).min(self.backends.len());
        for index in from..to {
            self.refresh_hop(index);
            if let Some(source) = self.backends[index].source
                && !self.sources.contains(source)
                && !self.of_host_anew.contains(&source)
            {
                self.of_host_anew.push(source);
            }
        }
        self.stale_hops = (to < self.backends.len()).then_some(to);
        if self.stale_hops.is_none() {
            self.of_host = std::mem::take(&mut self.of_host_anew);
        }
    }

    fn refresh_hop(&mut self, index: usize) {
        let address = from_addr(&self.backends[index].addr);
        let own = self.sources.first(address.is_ipv6());
        let hop = self.hop_to(address, None);
        let via = self.routes.via(address);
        if let Some(hop) = hop {
            self.hops.hold(hop);
        }
        let backend = &mut self.backends[index];
        if let Some(old) = std::mem::replace(&mut backend.hop, hop) {
            self.hops.let_go(old);
        }
        let backend = &mut self.backends[index];
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

impl Default for Pool {
    fn default() -> Self {
        Self::new(Vec::new(), None)
    }
}
