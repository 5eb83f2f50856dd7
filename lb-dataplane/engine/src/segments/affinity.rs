//! Client-IP affinity: which backend a client's flows have, and how long that is remembered.
//!
//! The first one follows from the client's address and the members that are usable, so that all
//! dataplanes choose the same; the table (`tables::Affinities`) keeps a client there when another
//! member joins, and where it went when its own left. Owns when clients are remembered. It never
//! decides whether a flow moves, and never who is usable: that is `policy`'s.

use crate::{
    Engine,
    clock::Instant,
    ids::{Addr, FlowId, NONE},
    obs::counters::Counter,
    tables::{NOBODY, NOWHERE},
};
use baton_api::Affinity;
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

impl Engine {
    fn affinity_timer(&self, id: u32) -> u32 {
        self.flows.limit() + self.legs.closing.limit() + id
    }

    /// How the policy keeps clients together, if it does. One that left the snapshot has no clients
    /// any more: its slot may become another one's.
    fn affinity(&self, policy: u16) -> Option<Affinity> {
        let policy = &self.policies[usize::from(policy)];
        policy.spec.affinity.filter(|_| policy.listed)
    }

    /// The backend that the client's flows have, where its policy wants them together.
    fn held(&self, policy: u16, client: Addr) -> Option<u16> {
        self.affinity(policy)?;
        let id = self.affinities.find(policy, client)?;
        Some(self.affinities.entries[id as usize].backend)
    }

    /// What a client's address says, alike in all dataplanes, where its policy wants its flows
    /// together.
    fn number(&self, policy: u16, client: Addr) -> Option<u64> {
        self.affinity(policy)?;
        let mut hasher = SipHasher13::new();
        hasher.write(&client.octets());
        Some(hasher.finish())
    }

    /// The backend for a new flow: its client's, if that takes new flows, or the one that its
    /// address says; without affinity the algorithm's. `except` was tried already.
    pub(crate) fn choose_new(
        &mut self,
        now: Instant,
        (policy, client): (u16, Addr),
        (v6, hash): (bool, u64),
        except: Option<u16>,
    ) -> Option<u16> {
        let held = self.held(policy, client).filter(|b| Some(*b) != except);
        let number = self.number(policy, client);
        let policy = &mut self.policies[usize::from(policy)];
        held.filter(|b| policy.takes(v6, *b, &self.backends, now))
            .or_else(|| policy.takes_client(v6, number?, &self.backends, now, except))
            .or_else(|| policy.choose(v6, hash, &self.backends, now, &mut self.rng, except))
    }

    /// Where a flow of a client with affinity goes if it moves: to its other flows, or where its
    /// address says.
    pub(crate) fn held_elsewhere(
        &self,
        now: Instant,
        id: FlowId,
        except: Option<u16>,
    ) -> Option<u16> {
        let flow = &self.flows[id];
        let number = self.number(flow.policy, flow.client)?;
        let held = self.held(flow.policy, flow.client);
        let policy = &self.policies[usize::from(flow.policy)];
        let v6 = flow.is_v6();
        held.filter(|b| Some(*b) != except && policy.takes_over(v6, *b, &self.backends, now))
            .or_else(|| policy.takes_client_over(v6, number, &self.backends, now, except))
    }

    /// A flow of the client is open. Not before: anybody can begin them, with any address, and who
    /// is remembered would give way.
    pub(crate) fn client_opens(&mut self, id: FlowId) {
        let flow = &self.flows[id];
        let (policy, client, backend) = (flow.policy, flow.client, flow.owner.backend);
        if self.affinity(policy).is_none() {
            return;
        }
        let Some(id) = self.affinities.find(policy, client) else {
            return self.remember(policy, client, backend);
        };
        self.wheel.cancel(self.affinity_timer(id));
        let entry = self.affinities.at(id);
        entry.backend = backend;
        let flows = entry.flows + 1;
        self.affinities.use_with(id, flows);
    }

    /// A flow is given to `backend`: its client's others follow when they have to move, and new
    /// ones begin there.
    pub(crate) fn client_goes(&mut self, id: FlowId, backend: u16) {
        let flow = &self.flows[id];
        let (policy, client) = (flow.policy, flow.client);
        if flow.state.is_opening() || self.affinity(policy).is_none() {
            return;
        }
        match self.affinities.find(policy, client) {
            Some(entry) => self.affinities.at(entry).backend = backend,
            None => self.remember(policy, client, backend),
        }
    }

    /// A flow of the client ended. With its last one its time begins to run.
    pub(crate) fn client_closes(&mut self, now: Instant, id: FlowId) {
        let flow = &self.flows[id];
        let Some(affinity) = self.affinity(flow.policy).filter(|_| !flow.state.is_opening()) else {
            return;
        };
        let Some(id) = self.affinities.find(flow.policy, flow.client) else {
            return;
        };
        let flows = self.affinities.at(id).flows.saturating_sub(1);
        self.affinities.use_with(id, flows);
        if flows == 0 {
            let wait_ms = affinity.client_ip.timeout.0.div_ceil(1_000);
            let timer = self.affinity_timer(id);
            self.wheel.arm(timer, now.ms() + wait_ms);
        }
    }

    /// The client had no flow for the policy's time.
    pub(crate) fn affinity_due(&mut self, id: u32) {
        self.affinities.remove(id);
    }

    fn remember(&mut self, policy: u16, client: Addr, backend: u16) {
        if self.affinities.free == NONE {
            let oldest = self.affinities.least_used();
            self.forget(oldest);
            self.counters.add(Counter::AffinitiesReplaced);
        }
        self.affinities.insert(policy, client, backend);
    }

    fn forget(&mut self, id: u32) {
        self.wheel.cancel(self.affinity_timer(id));
        self.affinities.remove(id);
    }

    /// After a snapshot's policies came into force: forgets the next client if its policy went or
    /// has affinity no more, and its backend if that left, because their slots may go to others.
    pub(crate) fn client_settles(&mut self, id: u32) -> Option<usize> {
        if self.affinities.used == 0 || id >= self.affinities.limit() {
            return None;
        }
        let entry = self.affinities.at(id);
        if entry.policy == NOBODY {
            return Some(1);
        }
        let policy = &self.policies[usize::from(entry.policy)];
        let stays = policy.listed && policy.spec.affinity.is_some();
        let backend = self.backends.get(usize::from(entry.backend));
        let known = backend.is_some_and(|b| b.listed && b.policies.has(entry.policy));
        if !stays || (!known && entry.flows == 0) {
            self.forget(id);
        } else if !known {
            entry.backend = NOWHERE;
        }
        Some(2)
    }

    /// Part of `check_invariants`.
    pub(crate) fn check_affinities(&self) {
        let table = &self.affinities;
        let mut seen = 0;
        for id in table.ids() {
            seen += 1;
            let entry = &table.entries[id as usize];
            assert_eq!(table.find(entry.policy, entry.client()), Some(id));
            if self.affinity(entry.policy).is_none() {
                assert_ne!(self.applies, self.applied, "a client of no policy");
                continue;
            }
            let open = self.flows.slots().iter().filter(|f| {
                f.state != crate::states::State::Gone
                    && (f.policy, f.client) == (entry.policy, entry.client())
            });
            assert!(entry.flows as usize <= open.count(), "flows of a client");
            let timed = self.wheel.is_armed(self.affinity_timer(id));
            assert_eq!(timed, entry.flows == 0, "timer of a client");
            let known = self.backends.len() > usize::from(entry.backend);
            assert!(known || entry.backend == NOWHERE);
        }
        assert_eq!(seen, table.used, "clients in use");
        let armed = (0..table.limit()).filter(|id| self.wheel.is_armed(self.affinity_timer(*id)));
        let without = table.ids().filter(|id| table.entries[*id as usize].flows == 0);
        assert_eq!(armed.count(), without.count(), "timers of clients");
    }
}
