//! Whether a backend works: what traffic, questions and active checks say, and what that means for who is chosen.
//!
//! Owns each backend's health and the looking over of all backends at intervals. What a policy's
//! own flows say of a backend is its member's (`member`). It never touches a flow.
//!
//! # Decisions
//!
//! - **A pod that says nothing is asked** after 250 ms with requests outstanding, or when its
//!   adopter's answers stop (2.2 s), and is down after three questions without an answer (140 ms).
//!   A frozen process is not silent, its kernel answers: `responseTimeout` is for it.
//! - **What a client repeats speaks against a backend only if nothing of the request is
//!   acknowledged**, once for each request, 200 ms after it was sent at the earliest, and only if
//!   clients of two addresses (IPv6: two /64) say so: a segment that is lost further on is the
//!   network's, copies in one burst too, and six packets of one client had ejected a healthy pod.
//!   Each had counted, and redis with SETs of 100 KB had a healthy pod ejected. Ejections are
//!   forgotten, one for each time that the first lasts; whether the cap allows one, which looks at
//!   all policies, is asked once a second for each backend.

use crate::{
    Engine, Output,
    backend::Sweep,
    clock::Instant,
    counters::Counter,
    flow::Bits,
    ids::FlowId,
    probe::Heard,
    timing::{CAPPED_AGAIN_MS, HEALTH_ROUND_MS, SILENT_BUSY_MS, SILENT_IDLE_MS},
};
use baton_api::Endpoint;

/// Backends looked over in one call: some 20 us.
const BACKENDS_PER_CALL: usize = 256;
/// Members of policies judged in one call: some 20 us, and twice that where memory is cold.
const MEMBERS_PER_CALL: usize = 512;
/// Ports of each backend that may become ready by time in one of these rounds.
const PORTS_PER_ROUND: usize = 64;

/// Why nothing can be served by a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Down {
    /// Its kernel says that nothing listens.
    NoListener,
    /// Nothing answers at all.
    Silent,
}

/// What is known of one backend, whichever policies have it.
#[derive(Clone, Default)]
pub(crate) struct Health {
    down: Option<Down>,
    /// The kernel's route to it leads through another interface than ours.
    elsewhere: bool,
    /// When the last segment came from it.
    heard_ms: u64,
    /// When it came up; 0 if it was there from the start.
    up_ms: u64,
    /// Counts the processes that were there: what one failed at says nothing of the next.
    process: u32,
    /// Members that have evidence against this process. While there are none, nobody has to be told
    /// that it works.
    suspects: u32,
    /// No ejection of this process by any policy lasts longer.
    ejected_until_ms: u64,
}

impl Health {
    #[inline]
    pub(crate) fn heard(&mut self, now: Instant) {
        self.heard_ms = now.ms();
    }

    pub(crate) fn heard_ms(&self) -> u64 {
        self.heard_ms
    }

    pub(crate) fn up_ms(&self) -> u64 {
        self.up_ms
    }

    pub(crate) fn process(&self) -> u32 {
        self.process
    }

    /// A member comes, with evidence against this process or without.
    pub(crate) fn suspect(&mut self, suspected: bool) {
        self.suspects += u32::from(suspected);
    }

    /// A member goes.
    pub(crate) fn no_suspect(&mut self, suspected: bool) {
        self.suspects -= u32::from(suspected);
    }

    pub(crate) fn suspects(&self) -> u32 {
        self.suspects
    }

    /// What its process failed at does not count any more: another one is there, or will be.
    pub(crate) fn is_another_process(&mut self) {
        self.process = self.process.wrapping_add(1);
        (self.suspects, self.ejected_until_ms) = (0, 0);
    }

    /// It takes part from now on, with a share that grows where a policy wants that.
    pub(crate) fn comes_up(&mut self, now: Instant) {
        self.up_ms = now.ms();
    }

    /// Whether that is news.
    pub(crate) fn goes_down(&mut self, why: Down) -> bool {
        self.down.replace(why) != Some(why)
    }

    pub(crate) fn is_down(&self) -> bool {
        self.down.is_some()
    }

    pub(crate) fn down(&self) -> Option<Down> {
        self.down
    }

    /// Whether flows may be given to it, unless a policy knows better.
    #[inline]
    pub(crate) fn is_usable(&self) -> bool {
        self.down.is_none() && !self.elsewhere
    }

    /// Whether a policy may have ejected it.
    #[inline]
    pub(crate) fn may_be_ejected(&self, now: Instant) -> bool {
        now.ms() < self.ejected_until_ms
    }

    /// Whether the kernel's route to it leads through another interface.
    pub(crate) fn leads(&mut self, elsewhere: bool) {
        self.elsewhere = elsewhere;
    }

    /// Whether nothing can be sent to it, even where health does not matter.
    #[inline]
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.elsewhere
    }

    /// What is wrong with it for everybody, in words.
    pub(crate) fn words(&self) -> Option<&'static str> {
        match self.down {
            _ if self.elsewhere => Some("unreachable: its route leads through another interface"),
            Some(Down::NoListener) => Some("down: nothing listens on the port"),
            Some(Down::Silent) => Some("down: no answer"),
            None => None,
        }
    }
}

impl Engine {
    /// Where the flow's owner is among its policy's members: pool and place. Nowhere if the policy
    /// names it no more.
    fn member_of(&self, id: FlowId) -> Option<(usize, usize)> {
        let flow = &self.flows[id];
        let pool = usize::from(flow.bits.has(Bits::V6));
        let policy = &self.policies[usize::from(flow.policy)];
        let at = policy.pools[pool].place_of(flow.owner.backend)?;
        Some((pool, at))
    }

    /// The flow's owner answered a request or accepted a connection.
    #[inline]
    pub(crate) fn backend_works(&mut self, id: FlowId) {
        let owner = self.flows[id].owner.backend;
        if self.backends[usize::from(owner)].health.suspects > 0 {
            self.is_trusted_again(id);
        }
    }

    #[cold]
    fn is_trusted_again(&mut self, id: FlowId) {
        let Some((pool, at)) = self.member_of(id) else {
            return;
        };
        let flow = &self.flows[id];
        let health = &mut self.backends[usize::from(flow.owner.backend)].health;
        let policy = &mut self.policies[usize::from(flow.policy)];
        let evidence = &mut policy.pools[pool].evidence[at];
        if !evidence.is_clean(health.process) {
            evidence.works();
            health.suspects -= 1;
        }
    }

    /// The flow's client repeated a request, of which its owner acknowledged nothing. That alone is
    /// no failure: see [`Evidence::is_repeated_by`](crate::member::Evidence::is_repeated_by).
    pub(crate) fn request_repeated(&mut self, now: Instant, id: FlowId) {
        let Some((pool, at)) = self.member_of(id) else {
            return;
        };
        let flow = &self.flows[id];
        let health = &mut self.backends[usize::from(flow.owner.backend)].health;
        let policy = &mut self.policies[usize::from(flow.policy)];
        let evidence = policy.pools[pool].evidence[at].about(health.process);
        health.suspects += u32::from(evidence.is_clean(health.process));
        if evidence.is_repeated_by(flow.client_network()) {
            self.backend_fails(now, id);
        }
    }

    /// The flow's owner refused, did not acknowledge or did not answer in time. Only the flow's
    /// policy counts that.
    pub(crate) fn backend_fails(&mut self, now: Instant, id: FlowId) {
        if now.ms() < self.link_settled_ms {
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
            (spec.failures, spec.ejection.0 / 1_000)
        };
        let health = &mut self.backends[owner].health;
        let members = &mut policy.pools[pool];
        let evidence = members.evidence[at].about(health.process);
        health.suspects += u32::from(evidence.is_clean(health.process));
        if !evidence.fails(now, limit) || members.members[at].is_ejected(health, now) {
            return;
        }
        if !policy.may_eject(&self.backends, now) {
            policy.pools[pool].evidence[at].is_capped(now.ms() + CAPPED_AGAIN_MS);
            self.counters.add(Counter::EjectionsCapped);
            return;
        }
        let until_ms = policy.pools[pool].eject(at, now, first_ms);
        let health = &mut self.backends[owner].health;
        health.ejected_until_ms = health.ejected_until_ms.max(until_ms);
        health.suspects -= u32::from(policy.pools[pool].evidence[at].is_clean(health.process));
        self.counters.add(Counter::Ejections);
        policy.judge(&self.backends, now);
    }

    /// Nothing can be served there any more, until it is heard to listen again.
    pub(crate) fn backend_is_down(
        &mut self,
        now: Instant,
        index: u16,
        why: Down,
        _: &mut impl Output,
    ) {
        if self.backends[usize::from(index)].health.goes_down(why) {
            self.counters.add(match why {
                Down::NoListener => Counter::BackendsWithoutListener,
                Down::Silent => Counter::BackendsSilent,
            });
            self.judge_pools(now, index);
            // What was found since it is down still holds.
            self.probe_soon(now, index, crate::probe::Probe::forget);
        }
        self.begin_sweep(index, Sweep::Gone);
        self.ask_again_later(now, index);
    }

    /// Somebody listens there.
    pub(crate) fn backend_is_up(&mut self, now: Instant, index: u16) {
        let backend = &mut self.backends[usize::from(index)];
        if backend.health.down.take().is_none() {
            return;
        }
        backend.health.is_another_process();
        backend.health.comes_up(now);
        backend.probe.hurry();
        self.next_probe_ms = now.ms();
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
        let now = self.engine_time(now);
        let addr = crate::ids::to_addr(backend.address());
        let Some(index) = self.backend_ids.find(&addr, backend.port()) else {
            return;
        };
        let Some(policy) = self.policy_ids.get(policy) else {
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
        if self.round.at.is_none() && now.ms() >= self.next_round_ms {
            self.next_round_ms = now.ms() + HEALTH_ROUND_MS;
            (self.round.at, self.round.found) = (Some(0), 0);
        }
        if let Some(from) = self.round.at {
            let to = (from + BACKENDS_PER_CALL).min(self.backends.len());
            let stopped = (from..to).find(|index| {
                self.look_over_one(now, *index as u16, out);
                self.acts == 0
            });
            let next = stopped.map_or(to, |index| index + 1);
            self.round.at = (next < self.backends.len()).then_some(next);
            if self.round.at.is_none() {
                self.tracked = self.round.found as u32;
                for index in 0..self.policies.len() as u16 {
                    self.judge_later(index);
                }
            }
        }
        // Fewer where there was much else to do.
        let left = 4 * self.room(MEMBERS_PER_CALL / 4, MEMBERS_PER_CALL / 32);
        self.judge_some(now, left);
    }

    fn look_over_one(&mut self, now: Instant, index: u16, out: &mut impl Output) {
        let backend = &mut self.backends[usize::from(index)];
        backend
            .ports
            .settle(&mut self.rests, now.ms(), PORTS_PER_ROUND);
        self.round.found += (backend.ports.used() + backend.ports.remembered()) as u64;
        if (backend.listed || backend.flows > 0) && !backend.question.is_open() {
            let quiet_ms = now.ms().saturating_sub(backend.health.heard_ms);
            let stalled_ms = backend.estimate.stalled_us(now.0) / 1_000;
            let busy = quiet_ms.min(stalled_ms) >= SILENT_BUSY_MS;
            let idle = quiet_ms >= SILENT_IDLE_MS && backend.probe.heard() == Heard::Before;
            if busy || idle {
                self.spend(1);
                self.probe_liveness(now, index, out);
            }
        }
        self.look_over_drain(index);
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
        if self.judged.0 != now.0 {
            self.judged = (now.0, MEMBERS_PER_CALL);
        }
        self.judged.1 = self.judge_some(now, self.judged.1);
    }

    fn judge_later(&mut self, index: u16) {
        let policy = &mut self.policies[usize::from(index)];
        if policy.listed && !std::mem::replace(&mut policy.judge_due, true) {
            self.to_judge.push_back(index);
        }
    }

    /// Judges pools that wait for it, of about so many members. How many are left of these.
    fn judge_some(&mut self, now: Instant, mut left: usize) -> usize {
        while left > 0
            && let Some(index) = self.to_judge.pop_front()
        {
            let index = usize::from(index);
            self.policies[index].judge_due = false;
            left = left.saturating_sub(self.judge_policy(now, index));
        }
        left
    }

    /// Whether a policy has too few usable backends to leave the others out. How many members it
    /// has.
    pub(crate) fn judge_policy(&mut self, now: Instant, index: usize) -> usize {
        let Self {
            policies, backends, ..
        } = self;
        let policy = &mut policies[index];
        policy.judge(backends, now);
        policy.pools.iter().map(|pool| pool.members.len()).sum()
    }
}
