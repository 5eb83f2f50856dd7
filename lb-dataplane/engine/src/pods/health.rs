//! Whether a backend works: what traffic and active checks say, and what that means for who is
//! chosen.
//!
//! Owns the looking over of all backends at intervals, ejections, and when pools are judged. What a
//! backend is believed to be is `backend/liveness.rs`', what a policy's own flows say of it its
//! member's (`member`). It never touches a flow.
//!
//! # Decisions
//!
//! - **What a client repeats speaks against a backend only if nothing of the request is
//!   acknowledged**, once for each request, 200 ms after it was sent at the earliest, and only if
//!   clients of two addresses (IPv6: two /64) say so: a segment that is lost further on is the
//!   network's, copies in one burst too, and six packets of one client had ejected a healthy pod.
//!   Each had counted, and redis with SETs of 100 KB had a healthy pod ejected. Ejections are
//!   forgotten, one for each time that the first lasts; whether the cap allows one, which looks at
//!   all policies, is asked once a second for each backend.

use crate::{
    Engine, Output,
    backend::{Down, Evidence, ports::Ports},
    clock::Instant,
    ids::FlowId,
    obs::counters::Counter,
    timing::{CAPPED_AGAIN_MS, HEALTH_ROUND_MS, PROBE_OTHER_MS},
};
use baton_api::{Endpoint, LoadSignal};

/// Backends looked over in one call: some 20 us.
const BACKENDS_PER_CALL: usize = 256;
/// Members of policies judged in one call: some 20 us, and twice that where memory is cold.
const MEMBERS_PER_CALL: usize = 512;
/// Ports of each backend that may become ready by time in one of these rounds.
const PORTS_PER_ROUND: usize = 64;

impl Engine {
    /// Where the flow's owner is among its policy's members: pool and place. Nowhere if the policy
    /// names it no more.
    fn member_of(&self, id: FlowId) -> Option<(usize, usize)> {
        let flow = &self.flows[id];
        let policy = &self.policies[usize::from(flow.policy)];
        let pool = policy.pool_of(flow.is_v6());
        let at = policy.pools[pool].place_of(flow.owner.backend)?;
        Some((pool, at))
    }

    /// The flow's owner answered a request or accepted a connection.
    #[inline]
    pub(crate) fn backend_works(&mut self, id: FlowId) {
        let owner = self.flows[id].owner.backend;
        if self.backends[usize::from(owner)].liveness.suspects > 0 {
            self.is_trusted_again(id);
        }
    }

    #[cold]
    fn is_trusted_again(&mut self, id: FlowId) {
        let Some((pool, at)) = self.member_of(id) else {
            return;
        };
        let flow = &self.flows[id];
        let pod = &mut self.backends[usize::from(flow.owner.backend)].liveness;
        let policy = &mut self.policies[usize::from(flow.policy)];
        let evidence = &mut policy.pools[pool].evidence[at];
        if !evidence.is_clean(pod.process()) {
            evidence.works();
            pod.suspects -= 1;
        }
    }

    /// The flow's client repeated a request, of which its owner acknowledged nothing. That alone is
    /// no failure: see
    /// [`Evidence::is_repeated_by`](crate::balance::member::Evidence::is_repeated_by).
    pub(crate) fn request_repeated(&mut self, now: Instant, id: FlowId) {
        let Some((pool, at)) = self.member_of(id) else {
            return;
        };
        let flow = &self.flows[id];
        let pod = &mut self.backends[usize::from(flow.owner.backend)].liveness;
        let policy = &mut self.policies[usize::from(flow.policy)];
        let evidence = policy.pools[pool].evidence[at].about(pod.process());
        pod.suspects += u32::from(evidence.is_clean(pod.process()));
        if evidence.is_repeated_by(flow.client_network()) {
            self.backend_fails(now, id);
        }
    }

    /// The flow's owner refused, did not acknowledge or did not answer in time. Only the flow's
    /// policy counts that.
    pub(crate) fn backend_fails(&mut self, now: Instant, id: FlowId) {
        if !self.link.is_settled(now) {
            // What was sent while our own link was down comes again now.
            return;
        }
        let Some((pool, at)) = self.member_of(id) else {
            return;
        };
        let flow = &self.flows[id];
        let owner = usize::from(flow.owner.backend);
        let policy = &mut self.policies[usize::from(flow.policy)];
        let (limit, first_ms) = {
            let spec = &policy.spec.health;
            (spec.failure_threshold, spec.base_ejection_time.0 / 1_000)
        };
        let pod = &mut self.backends[owner].liveness;
        let members = &mut policy.pools[pool];
        let evidence = members.evidence[at].about(pod.process());
        pod.suspects += u32::from(evidence.is_clean(pod.process()));
        if !evidence.fails(now, limit) || members.members[at].is_ejected(pod, now) {
            return;
        }
        if !policy.may_eject(&self.backends, now) {
            policy.pools[pool].evidence[at].is_capped(now.ms() + CAPPED_AGAIN_MS);
            self.counters.add(Counter::EjectionsCapped);
            return;
        }
        let until_ms = policy.pools[pool].eject(at, now, first_ms);
        let pod = &mut self.backends[owner].liveness;
        pod.note_ejection(until_ms);
        pod.suspects -= u32::from(policy.pools[pool].evidence[at].is_clean(pod.process()));
        self.counters.add(Counter::Ejections);
        policy.judge(&self.backends, now);
    }

    /// Nothing can be served there any more, until it is heard to listen again.
    pub(crate) fn backend_is_down(&mut self, now: Instant, index: u16, why: Down) {
        self.counters.add(match why {
            Down::NoListener => Counter::BackendsWithoutListener,
            Down::Silent => Counter::BackendsSilent,
        });
        self.judge_pools(now, index);
        // What was found since it is down still holds.
        self.backends[usize::from(index)].adopter.forget(0);
        self.rounds.probes.by(now.ms() + PROBE_OTHER_MS);
    }

    /// Somebody listens there again.
    pub(crate) fn backend_is_back(&mut self, now: Instant, index: u16) {
        let adopter = &mut self.backends[usize::from(index)].adopter;
        (adopter.due_ms, adopter.unlike) = (0, false);
        self.rounds.probes.by(now.ms());
        self.counters.add(Counter::BackendsBack);
        self.judge_pools(now, index);
    }

    /// What an active check found; `None` when there is none any more.
    pub fn set_health(
        &mut self,
        now: Instant,
        policy: &str,
        backend: Endpoint,
        healthy: Option<bool>,
    ) {
        let now = self.link.time(now);
        let addr = crate::ids::to_addr(backend.address());
        let Some(index) = self.ids.backends.find(addr, backend.port()) else {
            return;
        };
        let Some(policy) = self.ids.policies.get(policy) else {
            return;
        };
        let number = *policy;
        let policy = &mut self.policies[usize::from(number)];
        let mut members = policy.pools.iter_mut().flat_map(|p| &mut p.members);
        let Some(member) = members.find(|m| m.backend == index) else {
            return;
        };
        member.is_checked(now, healthy);
        self.judge_later(number);
        self.judge_now(now);
    }

    /// Finds silent backends, a piece of the table at a time, and says anew who has too few usable
    /// ones.
    pub(crate) fn look_over(&mut self, now: Instant, out: &mut impl Output) {
        let (all, next_ms) = (self.backends.len(), now.ms() + HEALTH_ROUND_MS);
        for _ in 0..BACKENDS_PER_CALL {
            let Some(at) = self.rounds.health.next(now, next_ms, all) else {
                break;
            };
            if at == 0 {
                self.legs.tracked.1 = 0;
                self.rounds.load_wanted.1 = 0;
            }
            self.look_over_one(now, at as u16, out);
            if self.rounds.health.done(u64::MAX, all) {
                self.legs.tracked.0 = self.legs.tracked.1;
                self.rounds.load_wanted.0 = self.rounds.load_wanted.1;
                for index in 0..self.policies.len() as u16 {
                    self.judge_later(index);
                }
                break;
            }
            if self.rounds.acts == 0 {
                break;
            }
        }
        // Fewer where there was much else to do.
        let left = 4 * self.room(MEMBERS_PER_CALL / 4, MEMBERS_PER_CALL / 32);
        self.judge_some(now, left);
    }

    fn look_over_one(&mut self, now: Instant, index: u16, out: &mut impl Output) {
        let backend = &mut self.backends[usize::from(index)];
        backend.ports.settle(&mut self.legs.rests, now.ms(), PORTS_PER_ROUND);
        self.legs.tracked.1 += (backend.ports.used() + backend.ports.remembered()) as u32;
        let stalled_ms = backend.estimate.stalled_us(now.0) / 1_000;
        let answered = backend.adopter.ever_answered();
        if (backend.listed || backend.flows > 0)
            && backend.liveness.is_silent(now, stalled_ms, answered)
        {
            self.spend(1);
            self.learn(now, index, Evidence::Doubt, out);
        }
        self.look_over_load(now, index);
        self.look_over_drain(index);
        self.look_over_stall(now, index);
    }

    /// A backend comes or goes: which of its policies have too few usable ones to leave the others
    /// out? Known at once, but where it has very many: then with the next calls of `poll`.
    pub(crate) fn judge_pools(&mut self, now: Instant, index: u16) {
        let mut from = Some(0);
        while let Some(policy) =
            from.and_then(|from| self.backends[usize::from(index)].policies.next(from))
        {
            self.judge_later(policy);
            from = policy.checked_add(1);
        }
        self.judge_now(now);
    }

    /// As many as may be in this moment.
    fn judge_now(&mut self, now: Instant) {
        if self.rounds.judged.0 != now.0 {
            self.rounds.judged = (now.0, MEMBERS_PER_CALL);
        }
        self.rounds.judged.1 = self.judge_some(now, self.rounds.judged.1);
    }

    fn judge_later(&mut self, index: u16) {
        let policy = &mut self.policies[usize::from(index)];
        if policy.listed && !std::mem::replace(&mut policy.judge_due, true) {
            self.rounds.to_judge.push_back(index);
        }
    }

    /// Judges pools that wait for it, of about so many members. How many are left of these.
    fn judge_some(&mut self, now: Instant, mut left: usize) -> usize {
        while left > 0
            && let Some(index) = self.rounds.to_judge.pop_front()
        {
            let index = usize::from(index);
            self.policies[index].judge_due = false;
            left = left.saturating_sub(self.judge_policy(now, index));
        }
        left
    }

    /// Whether a policy has too few usable backends to leave the others out; how many pairs
    /// trackers remember for it; and whether what its backends' kernels say of them is needed. How
    /// many members it has.
    pub(crate) fn judge_policy(&mut self, now: Instant, index: usize) -> usize {
        let Self { policies, backends, .. } = self;
        let policy = &mut policies[index];
        policy.judge(backends, now);
        let members = || policy.pools.iter().flat_map(|pool| &pool.members);
        let ports = members().map(|m| &backends[usize::from(m.backend)].ports);
        let remembered: usize = ports.map(Ports::remembered).sum();
        policy.remembered = remembered as u32;
        if policy.spec.load == LoadSignal::LatencyAndPressure && policy.flows > 0 {
            for member in policy.pools.iter().flat_map(|pool| &pool.members) {
                backends[usize::from(member.backend)].telemetry.want(now);
            }
        }
        policy.pools.iter().map(|pool| pool.members.len()).sum()
    }
}
