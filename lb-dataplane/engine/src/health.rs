//! Whether a backend works: what traffic, questions and active checks say, and what that means for who is chosen.
//!
//! Owns each backend's health and the looking over of all backends at intervals. It never touches a flow.

use crate::{
    Engine, Output, counters::Counter, engine::Instant, flow::Addr, probe::Heard, sweep::Sweep,
};
use baton_api::Endpoint;

/// The backends are looked over this often.
const ROUND_MS: u64 = 50;
/// Backends looked over in one call: some 20 us.
const BACKENDS_PER_CALL: usize = 256;
/// Members of policies judged in one call: some 20 us.
const MEMBERS_PER_CALL: usize = 1_024;
/// Ports of each backend that may become ready by time in one of these rounds.
const PORTS_PER_ROUND: usize = 64;
/// With requests outstanding and nothing heard for this long, the pod is asked whether it is there. A pod's kernel
/// acknowledges within 40 ms (Linux `TCP_DELACK_MAX` 200 ms at worst) whatever its application does.
const SILENT_BUSY_MS: u64 = 250;
/// A pod that answered adoption probes, which are sent every second, and does not any more.
const SILENT_IDLE_MS: u64 = 2_200;
/// Smallest share of its weight that a backend has in slow start, of 256.
const SLOW_START_MIN: u64 = 26;
/// Each further ejection lasts longer, up to this many times the first; one less for each time that
/// the first lasts without any.
const EJECTIONS_MAX: u32 = 10;
/// Whether one more may be ejected is asked this often for one backend: that looks at all policies.
const CAPPED_AGAIN_MS: u64 = 1_000;

/// Why nothing can be served by a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Down {
    /// Its kernel says that nothing listens.
    NoListener,
    /// Nothing answers at all.
    Silent,
}

/// What is known of one backend.
#[derive(Clone, Default)]
pub(crate) struct Health {
    down: Option<Down>,
    /// The kernel's route to it leads through another interface than ours.
    elsewhere: bool,
    /// When the last segment came from it.
    heard_ms: u64,
    /// Failures since it last worked.
    failures: u32,
    ejections: u32,
    ejected_until_ms: u64,
    /// A policy's cap held an ejection back; until then nobody asks again.
    capped_until_ms: u64,
    /// The first client that repeated a request of which it acknowledged nothing, since it last
    /// worked, and whether another one did.
    repeated_by: Option<Addr>,
    repeated_to_others: bool,
    /// Slow start: when it came up, and how long that takes; 0 for none.
    up_ms: u64,
    slow_ms: u64,
}

impl Health {
    #[inline]
    pub(crate) fn heard(&mut self, now: Instant) {
        self.heard_ms = now.ms();
    }

    pub(crate) fn heard_ms(&self) -> u64 {
        self.heard_ms
    }

    /// It answered a request or accepted a connection.
    #[inline]
    pub(crate) fn works(&mut self) {
        self.failures = 0;
        self.repeated_by = None;
    }

    /// A client repeated a request of which nothing is acknowledged. Whether that speaks against
    /// the backend: one client alone can make it look so.
    pub(crate) fn is_repeated_by(&mut self, client: Addr) -> bool {
        let first = *self.repeated_by.get_or_insert_with(|| {
            self.repeated_to_others = false;
            client
        });
        self.repeated_to_others |= first != client;
        self.repeated_to_others
    }

    /// How often it was ejected of late.
    fn ejections(&self, now: Instant, first_ms: u64) -> u32 {
        let calm_ms = now.ms().saturating_sub(self.ejected_until_ms);
        let forgiven = calm_ms.checked_div(first_ms).unwrap_or(u64::MAX);
        self.ejections
            .saturating_sub(forgiven.min(u64::from(EJECTIONS_MAX)) as u32)
    }

    /// What its process failed at does not count any more: another one is there, or will be.
    pub(crate) fn is_another_process(&mut self) {
        (self.failures, self.ejected_until_ms) = (0, 0);
    }

    pub(crate) fn is_down(&self) -> bool {
        self.down.is_some()
    }

    pub(crate) fn down(&self) -> Option<Down> {
        self.down
    }

    fn is_ejected(&self, now: Instant) -> bool {
        now.ms() < self.ejected_until_ms
    }

    /// Whether flows may be given to it.
    #[inline]
    pub(crate) fn is_usable(&self, now: Instant) -> bool {
        self.down.is_none() && !self.elsewhere && !self.is_ejected(now)
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

    /// The part of its weight that counts at present, of 256.
    #[inline]
    pub(crate) fn share(&self, now: Instant) -> u64 {
        if self.slow_ms == 0 {
            return 256;
        }
        let age_ms = now.ms().saturating_sub(self.up_ms);
        (age_ms * 256 / self.slow_ms).clamp(SLOW_START_MIN, 256)
    }

    /// It takes part from now on, with a growing share.
    pub(crate) fn starts_slowly(&mut self, now: Instant, slow_ms: u64) {
        (self.up_ms, self.slow_ms) = (now.ms(), slow_ms);
    }

    /// In words, for people.
    pub(crate) fn words(&self, now: Instant, unhealthy: bool) -> String {
        match self.down {
            _ if self.elsewhere => "unreachable: its route leads through another interface".into(),
            Some(Down::NoListener) => "down: nothing listens on the port".into(),
            Some(Down::Silent) => "down: no answer".into(),
            None if unhealthy => "unhealthy: its active check fails".into(),
            None if self.is_ejected(now) => {
                let left_ms = self.ejected_until_ms - now.ms();
                format!("ejected: it failed, {} s left", left_ms.div_ceil(1_000))
            }
            None if self.share(now) < 256 => "up: slow start".into(),
            None => "up".into(),
        }
    }
}

impl Engine {
    /// A backend refused, did not acknowledge or did not answer in time.
    pub(crate) fn backend_fails(&mut self, now: Instant, index: u16) {
        if now.ms() < self.link_settled_ms {
            // What was sent while our own link was down comes again now.
            return;
        }
        let backend = &mut self.backends[usize::from(index)];
        let Some(spec) = &backend.spec else { return };
        backend.health.failures = backend.health.failures.saturating_add(1);
        let (limit, first_ms) = (spec.failures, spec.ejection.0 / 1_000);
        let due = limit > 0
            && backend.health.failures >= limit
            && !backend.health.is_ejected(now)
            && now.ms() >= backend.health.capped_until_ms;
        if !due {
            return;
        }
        let may = self.may_eject(now, index);
        let health = &mut self.backends[usize::from(index)].health;
        if !may {
            health.capped_until_ms = now.ms() + CAPPED_AGAIN_MS;
            self.counters.add(Counter::EjectionsCapped);
            return;
        }
        health.failures = 0;
        health.ejections = (health.ejections(now, first_ms) + 1).min(EJECTIONS_MAX);
        health.ejected_until_ms = now.ms() + first_ms * u64::from(health.ejections);
        self.counters.add(Counter::Ejections);
        self.judge_pools(now, index);
    }

    /// Whether the share of ejected backends stays within every policy's cap.
    fn may_eject(&self, now: Instant, index: u16) -> bool {
        let backends = &self.backends;
        let mut of = backends[usize::from(index)].policies.iter();
        of.all(|policy| {
            let policy = &self.policies[usize::from(*policy)];
            let members = || policy.pools.iter().flat_map(|p| &p.members);
            let ejected =
                members().filter(|m| backends[usize::from(m.backend)].health.is_ejected(now));
            let percent = usize::from(policy.spec.health.max_ejected_percent);
            (ejected.count() + 1) * 100 <= members().count() * percent
        })
    }

    /// Nothing can be served there any more, until it is heard to listen again.
    pub(crate) fn backend_is_down(
        &mut self,
        now: Instant,
        index: u16,
        why: Down,
        _: &mut impl Output,
    ) {
        let backend = &mut self.backends[usize::from(index)];
        if backend.health.down != Some(why) {
            backend.health.down = Some(why);
            self.counters.add(match why {
                Down::NoListener => Counter::BackendsWithoutListener,
                Down::Silent => Counter::BackendsSilent,
            });
            self.judge_pools(now, index);
        }
        self.probe_soon(now, index, crate::probe::Probe::forget);
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
        let slow_ms = backend.slow_start_ms;
        backend.health.starts_slowly(now, slow_ms);
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
        let addr = crate::flow::to_addr(backend.address());
        let Some(index) = self.backend_ids.find(&addr, backend.port()) else {
            return;
        };
        let Some(policy) = self.policy_ids.get(policy) else {
            return;
        };
        let policy = &mut self.policies[usize::from(*policy)];
        let unhealthy = healthy == Some(false);
        let mut members = policy.pools.iter_mut().flat_map(|p| &mut p.members);
        let Some(member) = members.find(|m| m.backend == index) else {
            return;
        };
        if std::mem::replace(&mut member.unhealthy, unhealthy) && !unhealthy {
            let backend = &mut self.backends[usize::from(index)];
            let slow_ms = backend.slow_start_ms;
            backend.health.starts_slowly(now, slow_ms);
        }
        self.judge_pools(now, index);
    }

    /// Finds silent backends, a piece of the table at a time, and says anew who has too few usable ones.
    pub(crate) fn look_over(&mut self, now: Instant, out: &mut impl Output) {
        if self.round.at.is_none() && now.ms() >= self.next_round_ms {
            self.next_round_ms = now.ms() + ROUND_MS;
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
        self.judge_some(now, MEMBERS_PER_CALL);
    }

    fn look_over_one(&mut self, now: Instant, index: u16, out: &mut impl Output) {
        let backend = &mut self.backends[usize::from(index)];
        backend.ports.settle(now.ms(), PORTS_PER_ROUND);
        self.round.found += u64::from(backend.legs_used) + backend.ports.remembered() as u64;
        if (backend.listed || backend.flows > 0) && !backend.question.is_open() {
            let quiet_ms = now.ms().saturating_sub(backend.health.heard_ms);
            let stalled_ms = backend.estimate.stalled_us(now.0) / 1_000;
            let busy = quiet_ms.min(stalled_ms) >= SILENT_BUSY_MS;
            let idle = quiet_ms >= SILENT_IDLE_MS && backend.probe.heard() == Heard::Before;
            if busy || idle {
                self.spend(1);
                self.ask_for_life(now, index, out);
            }
        }
        self.look_over_drain(now, usize::from(index));
    }

    /// A backend comes or goes: which of its policies have too few usable ones to leave the others out? Known at once, but where it
    /// has very many: then with the next calls of `poll`.
    pub(crate) fn judge_pools(&mut self, now: Instant, index: u16) {
        for at in 0..self.backends[usize::from(index)].policies.len() {
            let policy = self.backends[usize::from(index)].policies[at];
            self.judge_later(policy);
        }
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

    /// Whether a policy has too few usable backends to leave the others out. How many members it has.
    pub(crate) fn judge_policy(&mut self, now: Instant, index: usize) -> usize {
        let Self {
            policies, backends, ..
        } = self;
        let policy = &mut policies[index];
        let percent = policy.spec.health.panic_percent;
        for pool in &mut policy.pools {
            pool.judge(percent, backends, now);
        }
        policy.pools.iter().map(|pool| pool.members.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Instant {
        Instant(ms * 1_000)
    }

    #[test]
    fn slow_start_grows_to_the_whole_share() {
        let mut health = Health::default();
        assert_eq!(health.share(at(0)), 256);
        health.starts_slowly(at(1_000), 10_000);
        let shares: Vec<_> = [1_000, 2_000, 6_000, 10_999, 11_000, 50_000]
            .map(|ms| health.share(at(ms)))
            .into();
        assert_eq!(shares, [26, 26, 128, 255, 256, 256]);
    }

    #[test]
    fn words_say_what_is_wrong() {
        let mut health = Health::default();
        assert_eq!(health.words(at(0), false), "up");
        health.ejected_until_ms = 9_500;
        assert_eq!(
            health.words(at(1_000), false),
            "ejected: it failed, 9 s left"
        );
        assert!(!health.is_usable(at(9_499)));
        assert!(health.is_usable(at(9_500)));
        health.down = Some(Down::Silent);
        assert_eq!(health.words(at(0), false), "down: no answer");
    }
}
