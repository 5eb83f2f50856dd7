//! Slots of policies, frontends and backends, as a snapshot comes into force: one thing at a time.
//!
//! Owns which slot a thing gets, and what follows for those that share it. A slot that left the
//! snapshot stays until the last flow that refers to it is gone, and is used again by a later
//! snapshot, never by the one in which it left. The order is `apply`'s.

use crate::{
    Engine, Via,
    backend::Backend,
    balance::{policy::Policy, pool::Pool},
    clock::Instant,
    config::{
        apply::COST_SLOT,
        in_force::End,
        prepare::{Prepared, Progress},
    },
    engine::FrontendSlot,
    ids::{FlowId, from_addr},
    net::routes,
    obs::pins::PinReason,
    states::State,
};
use baton_api::Protocol;
use std::sync::Arc;

/// A backend's slot, filled or changed.
const COST_BACKEND: usize = 20;
/// A backend whose keys are derived: one or two.
const COST_KEYS: usize = 40;
/// A policy, beside its members and frontends.
const COST_POLICY: usize = 16;
/// A member that comes, stays or goes.
const COST_MEMBER: usize = 5;
/// Frontends that are placed at once; what one costs that has no slot yet; slots passed for one
/// unit while a free one is looked for.
const FRONTENDS_AT_ONCE: usize = 64;
const COST_FRONTEND: usize = 4;
const FRONTENDS_PER_UNIT: usize = 32;
/// Flows that are looked at at once, and for one unit.
const FLOWS_AT_ONCE: usize = 64;
const FLOWS_PER_UNIT: usize = 8;
/// Ports of a slot's last backend that are let go of at once, and for one unit.
const PORTS_AT_ONCE: usize = 64;
const PORTS_PER_UNIT: usize = 4;

impl Engine {
    /// Gives the next new backend a slot: its own of before, one that nobody refers to any more, or
    /// a new one.
    pub(crate) fn backend_arrives(
        &mut self,
        now: Instant,
        prepared: &mut Prepared,
    ) -> Option<usize> {
        let place = prepared.fresh.get_mut(prepared.progress.at)?;
        let end = place.as_ref().map(|fresh| (fresh.addr, fresh.port));
        let end = end.filter(|end| self.slot_of(end).is_none());
        let Some((end, fresh)) = end.zip(place.as_mut()) else {
            return Some(COST_BACKEND);
        };
        let mut cost = COST_BACKEND;
        let free = &mut prepared.progress.free_backend;
        let own = self.ids.backends.find(end.0, end.1).map(usize::from);
        let index = own.unwrap_or_else(|| {
            // None in front of it comes free while a snapshot is put in force.
            let named = &prepared.named;
            let used = |b: &Backend| {
                b.listed || b.ports.used() > 0 || named.contains_key(&(b.addr, b.port))
            };
            while self.backends.get(*free).is_some_and(|slot| used(slot)) {
                *free += 1;
                cost += COST_SLOT;
            }
            *free
        });
        // Ports towards a pod that is gone may rest still. They are in nobody's way at another one.
        if let Some(slot) = self.backends.get_mut(index)
            && slot.ports.forgets_some(&mut self.legs.rests, PORTS_AT_ONCE)
        {
            prepared.progress.again = true;
            return Some(cost + PORTS_AT_ONCE / PORTS_PER_UNIT);
        }
        fresh.since_event = self.events.last();
        if self.generation > 0 {
            fresh.liveness.up_ms = now.ms();
        }
        self.others.forget(index);
        if let Some(slot) = self.backends.get_mut(index) {
            std::mem::swap(slot, fresh);
            debug_assert!(fresh.policies.is_empty(), "a member's slot");
            self.ids.backends.remove(fresh.addr, fresh.port);
            if let Some(hop) = fresh.hop.take() {
                self.net.hops.let_go(hop);
            }
        } else {
            self.backends.extend(place.take());
        }
        self.ids.backends.insert(end.0, end.1, index as u16);
        self.refresh_hop(index);
        Some(cost)
    }

    /// Puts the next policy into its slot, or into one that nobody refers to any more, or into a
    /// new one; then its frontends.
    pub(crate) fn policy_changes(
        &mut self,
        now: Instant,
        prepared: &mut Prepared,
    ) -> Option<usize> {
        let progress = &mut prepared.progress;
        let ready = prepared.policies.get_mut(progress.at)?;
        if let Some((index, from)) = progress.placing.take() {
            let to = ready.frontends.len().min(from + FRONTENDS_AT_ONCE);
            let placed = ready.frontends[from..to].iter();
            let cost = placed.map(|end| self.place_frontend(*end, index, progress));
            let cost = cost.sum();
            progress.placing = (to < ready.frontends.len()).then_some((index, to));
            return Some(cost);
        }
        let mut cost = COST_POLICY;
        let known = self.ids.policies.get(&ready.spec.name).copied();
        let same = known.filter(|index| {
            let policy = &self.policies[usize::from(*index)];
            policy.listed && Arc::ptr_eq(&policy.origin, &ready.spec)
        });
        // Of one that stays as it is the backends are named still, so their slots are the same too.
        let index = same.unwrap_or_else(|| {
            for (pool, ends) in
                (ready.policy.iter_mut()).flat_map(|p| &mut p.pools).zip(&ready.ends)
            {
                for (member, end) in pool.members.iter_mut().zip(ends) {
                    // It has one: what is not fresh was known.
                    let slot = self.ids.backends.find(end.0, end.1);
                    debug_assert!(slot.is_some(), "a member without a slot");
                    member.backend = slot.unwrap_or_default();
                    // It may have left before, and be back.
                    self.backends[usize::from(member.backend)].listed = true;
                }
            }
            let free = &mut progress.free_policy;
            let index = known.map_or_else(
                || {
                    while self.policies.get(*free).is_some_and(|p| !p.is_free) {
                        *free += 1;
                        cost += COST_SLOT;
                    }
                    *free
                },
                usize::from,
            );
            if let Some(new) = ready.policy.as_mut().filter(|_| known.is_some()) {
                let old = &self.policies[index];
                let protocol = new.spec.protocol;
                if protocol != old.spec.protocol && protocol != Protocol::None && old.flows > 0 {
                    new.protocol_since = progress.stamp;
                    progress.of_flows = true;
                }
            }
            let left = self.place_policy(now, &mut ready.policy, index, known.is_some());
            let before = ready.policy.iter().flat_map(|p| &p.pools);
            let before: usize = before.map(|p| p.members.len()).sum();
            cost += COST_MEMBER * (ready.spec.backends.len() + before);
            progress.left |= left;
            index as u16
        });
        self.policies[usize::from(index)].applied = progress.stamp;
        progress.placing = Some((index, 0));
        Some(cost)
    }

    /// `goes_on`: the slot is the policy's already. Whether a backend or the affinity went.
    fn place_policy(
        &mut self,
        now: Instant,
        place: &mut Option<Box<Policy>>,
        index: usize,
        goes_on: bool,
    ) -> bool {
        let Some(new) = place else { return false };
        new.since_event = self.events.last();
        let mut left = false;
        if let Some(old) = self.policies.get_mut(index) {
            if goes_on {
                left = old.spec.affinity.is_some() && new.spec.affinity.is_none();
                new.inherit(old);
            } else {
                self.ids.policies.remove(&old.spec.name);
            }
            std::mem::swap(old, new);
            let pools = std::mem::take(&mut new.pools);
            self.leave(index, &pools);
            new.pools = pools;
        } else {
            self.policies.extend(place.take());
        }
        if !goes_on {
            let name = self.policies[index].spec.name.clone();
            self.ids.policies.insert(name, index as u16);
        }
        self.join(now, index);
        let before = place.iter().flat_map(|p| &p.pools);
        for member in before.flat_map(|p| &p.members) {
            left |= self.has_left(now, index as u16, member.backend);
        }
        self.judge_policy(now, index);
        left
    }

    /// The members of these pools are no longer a policy's.
    fn leave(&mut self, index: usize, pools: &[Pool]) {
        for pool in pools {
            for (member, evidence) in pool.members.iter().zip(&pool.evidence) {
                let backend = &mut self.backends[usize::from(member.backend)];
                backend.policies.remove(index as u16);
                let pod = &mut backend.liveness;
                pod.suspects -= u32::from(!evidence.is_clean(pod.process()));
            }
        }
    }

    /// The members of a policy are its from now on.
    fn join(&mut self, now: Instant, index: usize) {
        for v6 in [0, 1] {
            for at in 0..self.policies[index].pools[v6].members.len() {
                let pool = &self.policies[index].pools[v6];
                let (member, evidence) = (pool.members[at], &pool.evidence[at]);
                let backend = &mut self.backends[usize::from(member.backend)];
                let pod = &mut backend.liveness;
                pod.suspects += u32::from(!evidence.is_clean(pod.process()));
                backend.policies.insert(index as u16);
                backend.drains.settle(now, index as u16, member.is_leaving());
                self.look_over_drain(member.backend);
            }
        }
    }

    /// Whether a backend that was a policy's member is none any more: then its flows leave.
    fn has_left(&mut self, now: Instant, policy: u16, index: u16) -> bool {
        let flows = self.policies[usize::from(policy)].flows;
        let backend = &mut self.backends[usize::from(index)];
        if backend.policies.has(policy) {
            return false;
        }
        backend.drains.settle(now, policy, flows > 0);
        self.look_over_drain(index);
        true
    }

    /// What it cost.
    fn place_frontend(&mut self, end: End, policy: u16, progress: &mut Progress) -> usize {
        let applied = progress.stamp;
        if let Some(index) = self.ids.frontends.find(end.0, end.1) {
            let slot = &mut self.frontends[usize::from(index)];
            (slot.policy, slot.listed, slot.applied) = (policy, true, applied);
            return COST_SLOT;
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
        let from = *free;
        while (self.frontends.get(*free)).is_some_and(|f| f.listed || f.flows > 0) {
            *free += 1;
        }
        let index = *free;
        // Side by side in memory.
        let cost = COST_FRONTEND + (index - from) / FRONTENDS_PER_UNIT;
        if let Some(old) = self.frontends.get_mut(index) {
            self.ids.frontends.remove(old.addr, old.port);
            *old = slot;
        } else {
            self.frontends.push(slot);
        }
        self.ids.frontends.insert(end.0, end.1, index as u16);
        cost
    }

    /// The next policy and frontend, if they are named no more. Flows of such a policy stay where
    /// they are: its backends' slots may go to others.
    pub(crate) fn slot_retires(&mut self, now: Instant, prepared: &mut Prepared) -> Option<usize> {
        let (at, applied) = (prepared.progress.at, prepared.progress.stamp);
        let slots = self.policies.len().max(self.frontends.len());
        let mut cost = 2 * COST_SLOT;
        if let Some(policy) = self.policies.get_mut(at)
            && policy.listed
            && policy.applied != applied
        {
            policy.listed = false;
            prepared.progress.of_flows |= policy.flows > 0;
            let pools = std::mem::take(&mut policy.pools);
            self.leave(at, &pools);
            for member in pools.iter().flat_map(|p| &p.members) {
                self.has_left(now, at as u16, member.backend);
                cost += COST_MEMBER;
            }
            prepared.pools.push(pools);
            prepared.progress.left = true;
        }
        if let Some(frontend) = self.frontends.get_mut(at) {
            frontend.listed &= frontend.applied == applied;
        }
        (at < slots).then_some(cost)
    }

    /// The next backend.
    pub(crate) fn backend_changes(
        &mut self,
        now: Instant,
        prepared: &mut Prepared,
    ) -> Option<usize> {
        let index = prepared.progress.at;
        let slot = self.backends.get_mut(index)?;
        let Some(named) = prepared.named.get_mut(&(slot.addr, slot.port)) else {
            prepared.progress.left |= slot.listed;
            slot.listed = false;
            self.stop_probing(now, index as u16);
            let slot = &mut self.backends[index];
            if slot.ports.used() == 0 && slot.ports.remembered() == 0 && slot.ports.all() > 0 {
                prepared.tables.push(slot.take_tables());
            }
            return Some(COST_BACKEND);
        };
        slot.listed = true;
        if slot.name != named.name {
            std::mem::swap(&mut slot.name, &mut named.name);
        }
        if slot.hop.is_none() {
            self.refresh_hop(index);
        }
        let derived = self.place_node(now, index, &mut named.node);
        Some(if derived { COST_KEYS } else { 2 * COST_SLOT })
    }

    /// What a snapshot means to the next flows. One that was to move to a backend that went stays.
    /// One whose policy went and that has no leg ends now: nobody would have its next request. One
    /// whose policy has another protocol is pinned.
    pub(crate) fn flow_settles(&mut self, now: Instant, progress: &mut Progress) -> Option<usize> {
        if progress.at == 0 {
            if !(self.rounds.pending_moves && progress.left || progress.of_flows) {
                return None;
            }
            (progress.pending_moves, self.rounds.new_pending_moves) = (false, false);
        }
        let from = (progress.at * FLOWS_AT_ONCE) as FlowId;
        if from >= self.flows.limit() {
            self.rounds.pending_moves = progress.pending_moves || self.rounds.new_pending_moves;
            return None;
        }
        for id in from..(from + FLOWS_AT_ONCE as FlowId).min(self.flows.limit()) {
            self.one_flow_settles(now, id, progress);
        }
        Some(FLOWS_AT_ONCE / FLOWS_PER_UNIT)
    }

    fn one_flow_settles(&mut self, now: Instant, id: FlowId, progress: &mut Progress) {
        let flow = &self.flows[id];
        if flow.state == State::Gone {
            return;
        }
        if flow.has_wish() {
            let to = self.backends.get(usize::from(flow.standby.backend));
            if to.is_some_and(|b| !b.listed) {
                self.drop_pending_move(id);
            } else {
                progress.pending_moves = true;
            }
        }
        let flow = &self.flows[id];
        let policy = &self.policies[usize::from(flow.policy)];
        if policy.protocol_since == progress.stamp {
            self.pin(id, PinReason::ProtocolChanged);
        } else if flow.state == State::Legless && !policy.listed {
            self.wheel.arm(id, now.ms());
        }
    }

    /// Next hops of backends and sources of their legs, after routes changed: some of them now, the
    /// others in `poll`.
    pub(crate) fn refresh_hops(&mut self, max: usize) {
        let Some(from) = self.net.stale_hops else {
            return;
        };
        let to = (from + max).min(self.backends.len());
        for index in from..to {
            self.refresh_hop(index);
            if let Some(source) = self.backends[index].source
                && !self.net.sources.contains(source)
                && !self.net.new_host_addresses.contains(&source)
            {
                self.net.new_host_addresses.push(source);
            }
        }
        self.net.stale_hops = (to < self.backends.len()).then_some(to);
        if self.net.stale_hops.is_none() {
            self.net.host_addresses = std::mem::take(&mut self.net.new_host_addresses);
        }
    }

    /// Next hops of clients after routes changed, likewise: their connections go on by the router
    /// that there is now, as a kernel's do. Where there is none, by the one that there was.
    pub(crate) fn refresh_clients(&mut self, max: usize) {
        let Some(from) = self.net.stale_clients else {
            return;
        };
        let slots = self.flows.limit() as usize;
        let to = (from + max).min(slots);
        for id in from..to {
            self.refresh_client(id as FlowId);
        }
        self.net.stale_clients = (to < slots).then_some(to);
    }

    fn refresh_client(&mut self, id: FlowId) {
        let flow = &self.flows[id];
        let (client, old) = (from_addr(flow.client), flow.hop);
        // Who has none gets one when the connection is open.
        let Some(before) = self.net.hops.address(old).filter(|_| flow.state != State::Gone) else {
            return;
        };
        // What goes by the host's stack is that one's to route.
        if before == routes::host(flow.is_v6()) {
            return;
        }
        let hop = match self.net.routes.next_hop(client) {
            Some(now) if now == before => None,
            Some(now) if now == client => self.net.hops.intern_client(client),
            _ => self.hop_to(client, None),
        };
        let Some(hop) = hop else { return };
        self.net.hops.hold(hop);
        self.net.hops.let_go(old);
        self.flows[id].hop = hop;
    }

    fn refresh_hop(&mut self, index: usize) {
        let address = from_addr(self.backends[index].addr);
        let own = self.net.sources.first(address.is_ipv6());
        let hop = self.hop_to(address, None);
        let via = self.net.routes.via(address);
        if let Some(hop) = hop {
            self.net.hops.hold(hop);
        }
        let backend = &mut self.backends[index];
        if let Some(old) = std::mem::replace(&mut backend.hop, hop) {
            self.net.hops.let_go(old);
        }
        let backend = &mut self.backends[index];
        backend.liveness.elsewhere = via == Some(Via::Elsewhere);
        backend.source = match via {
            Some(Via::Host(source)) => source.or(own),
            Some(Via::Link | Via::Router(_)) => own,
            // Its legs are what they were when the route comes back.
            Some(Via::Elsewhere) | None => backend.source.or(own),
        };
        if let Some(source) = backend.source
            && !self.net.is_source(source)
        {
            self.net.host_addresses.push(source);
        }
    }
}
