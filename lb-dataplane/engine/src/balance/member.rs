//! A backend as one policy has it: its weight, whether its flows leave it, and what they say of it.
//!
//! Owns everything that a policy decides about a pod for itself, so that policies that share one do
//! each other no harm. What is so for all of them is the slot's (`backend`).
//!
//! # Decisions
//!
//! - **What a policy says of a pod is its member's**: draining, weight, slow start, active check,
//!   failures and ejections. The slot, which policies share, has what is so of the pod itself:
//!   address, process, listener, adoptability, load. A request asks only whether its own policy
//!   leaves (a list on the slot, empty nearly always), and an answer forgives only where a policy
//!   has evidence against the process (a count on the slot).
//! - **A pod that is not ready takes no new flows and keeps those that it has** (weight 0): a
//!   readiness flap breaks nothing. A pod that terminates drains; a pod that is gone is gone, and
//!   its flows are rescued.

use crate::{backend::Liveness, clock::Instant, containers::pace::Pace, ids::Addr};
use baton_api::{BackendHealth, Micros};

/// Smallest share of its weight that a backend has in slow start, of 256.
const SLOW_START_MIN: u64 = 26;
/// Each further ejection lasts longer, up to this many times the first; one less for each time that
/// the first lasts without any.
const EJECTIONS_MAX: u32 = 10;

/// What a policy says of one of its backends.
#[derive(Clone, Copy)]
pub(crate) struct Member {
    pub(crate) backend: u16,
    /// Its place in the policy's list.
    pub(crate) at: u16,
    pub(crate) weight: u16,
    /// The snapshot says so.
    pub(crate) draining: bool,
    /// A command says so.
    pub(crate) drained: bool,
    /// The policy's active check says no.
    pub(crate) unhealthy: bool,
    /// The process that is ejected.
    process: u32,
    /// How long its slow start is.
    slow_ms: u32,
    /// Of its address and port: slots are used again for other backends.
    pub(crate) identity: u64,
    /// Moves onto it.
    pub(crate) pace: Pace,
    ejected_until_ms: u64,
    /// When the active check found it well again; 0 for never.
    up_ms: u64,
}

/// What the policy's own flows say against a member. It is about one process: the next one begins
/// without.
#[derive(Clone, Copy, Default)]
pub(crate) struct Evidence {
    process: u32,
    /// Failures since it last worked.
    failures: u32,
    ejections: u32,
    /// The policy's cap held an ejection back; until then nobody asks again.
    capped_until_ms: u64,
    /// The first client that repeated a request of which it acknowledged nothing, since it last
    /// worked, and whether another one did.
    repeated_by: Option<Addr>,
    repeated_to_others: bool,
}

impl Member {
    /// As the snapshot has it; `identity` is that of its address and port.
    pub(crate) fn new(
        (backend, identity): (u16, u64),
        at: usize,
        spec: &baton_api::Backend,
        slow_start: baton_api::Micros,
    ) -> Self {
        Self {
            backend,
            at: at as u16,
            weight: spec.weight,
            draining: spec.draining,
            drained: false,
            unhealthy: false,
            process: 0,
            // An hour at most.
            slow_ms: (slow_start.0 / 1_000) as u32,
            identity,
            pace: Pace::default(),
            ejected_until_ms: 0,
            up_ms: 0,
        }
    }

    /// It takes no new flow, and its flows leave.
    #[inline]
    pub(crate) fn is_leaving(&self) -> bool {
        self.draining || self.drained
    }

    /// It is to take new flows, as far as the snapshot and commands say.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.weight > 0 && !self.is_leaving()
    }

    /// Its weight for new flows.
    pub(crate) fn share(&self) -> u16 {
        if self.draining { 0 } else { self.weight }
    }

    #[inline]
    pub(crate) fn is_ejected(&self, pod: &Liveness, now: Instant) -> bool {
        now.ms() < self.ejected_until_ms && self.process == pod.process()
    }

    /// Whether traffic and checks find nothing wrong with it.
    #[inline]
    pub(crate) fn works(&self, pod: &Liveness, now: Instant) -> bool {
        !self.unhealthy && pod.is_usable() && !self.is_ejected(pod, now)
    }

    /// The part of its weight that counts at present, of 256.
    #[inline]
    pub(crate) fn slow_share(&self, pod: &Liveness, now: Instant) -> u64 {
        let up_ms = self.up_ms.max(pod.up_ms);
        if self.slow_ms == 0 || up_ms == 0 {
            return 256;
        }
        let age_ms = now.ms().saturating_sub(up_ms);
        (age_ms * 256 / u64::from(self.slow_ms)).clamp(SLOW_START_MIN, 256)
    }

    /// The policy's active check says so; `None` when there is none any more.
    pub(crate) fn is_checked(&mut self, now: Instant, healthy: Option<bool>) {
        let unhealthy = healthy == Some(false);
        if std::mem::replace(&mut self.unhealthy, unhealthy) && !unhealthy {
            self.up_ms = now.ms();
        }
    }

    /// What was found out goes on under a changed policy.
    pub(crate) fn inherit(&mut self, old: &Self) {
        (self.unhealthy, self.drained) = (old.unhealthy, old.drained);
        (self.pace, self.up_ms) = (old.pace, old.up_ms);
        (self.process, self.ejected_until_ms) = (old.process, old.ejected_until_ms);
    }

    /// How it is. What its active check says, the engine is not told.
    pub(crate) fn health(&self, pod: &Liveness, now: Instant) -> BackendHealth {
        if let Some(trouble) = pod.trouble() {
            trouble
        } else if self.unhealthy {
            BackendHealth::Unhealthy(None)
        } else if self.is_ejected(pod, now) {
            BackendHealth::Ejected(Micros::from_millis(self.ejected_until_ms - now.ms()))
        } else if self.slow_share(pod, now) < 256 {
            BackendHealth::SlowStart
        } else {
            BackendHealth::Up
        }
    }
}

impl Evidence {
    /// The same, if it is about this process; else none.
    pub(crate) fn about(&mut self, process: u32) -> &mut Self {
        if self.process != process {
            *self = Self { process, ..Self::default() };
        }
        self
    }

    /// Whether nothing speaks against the process.
    pub(crate) fn is_clean(&self, process: u32) -> bool {
        self.process != process || (self.failures == 0 && self.repeated_by.is_none())
    }

    /// It answered a request or accepted a connection.
    pub(crate) fn works(&mut self) {
        self.failures = 0;
        self.repeated_by = None;
    }

    /// One more failure. Whether that comes to an ejection after so many.
    pub(crate) fn fails(&mut self, now: Instant, limit: u32) -> bool {
        self.failures = self.failures.saturating_add(1);
        limit > 0 && self.failures >= limit && now.ms() >= self.capped_until_ms
    }

    /// Nobody asks again for an ejection until then.
    pub(crate) fn is_capped(&mut self, until_ms: u64) {
        self.capped_until_ms = until_ms;
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

    /// Ejects the member; until when.
    pub(crate) fn eject(&mut self, member: &mut Member, now: Instant, first_ms: u64) -> u64 {
        let calm_ms = now.ms().saturating_sub(member.ejected_until_ms);
        let forgiven = calm_ms.checked_div(first_ms).unwrap_or(u64::MAX);
        let forgiven = forgiven.min(u64::from(EJECTIONS_MAX)) as u32;
        self.failures = 0;
        self.ejections = (self.ejections.saturating_sub(forgiven) + 1).min(EJECTIONS_MAX);
        member.process = self.process;
        member.ejected_until_ms = now.ms() + first_ms * u64::from(self.ejections);
        member.ejected_until_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend;
    use baton_api::Micros;

    const fn at(ms: u64) -> Instant {
        Instant(ms * 1_000)
    }

    fn member(slow_ms: u64) -> Member {
        let spec = baton_api::Backend {
            name: "a".into(),
            endpoint: "10.0.0.1:80".parse().expect("an endpoint"),
            weight: 1,
            draining: false,
            node: None,
        };
        Member::new((0, 1), 0, &spec, Micros::from_millis(slow_ms))
    }

    #[test]
    fn slow_start_grows_to_the_whole_share() {
        let (member, mut pod) = (member(10_000), Liveness::default());
        assert_eq!(member.slow_share(&pod, at(0)), 256);
        pod.up_ms = 1_000;
        let shares: Vec<_> = [1_000, 2_000, 6_000, 10_999, 11_000, 50_000]
            .map(|ms| member.slow_share(&pod, at(ms)))
            .into();
        assert_eq!(shares, [26, 26, 128, 255, 256, 256]);
    }

    #[test]
    fn health_says_what_is_wrong() {
        let (mut member, mut pod) = (member(0), Liveness::default());
        assert_eq!(member.health(&pod, at(0)), BackendHealth::Up);
        let mut evidence = Evidence::default();
        evidence.eject(&mut member, at(0), 9_500);
        assert_eq!(
            member.health(&pod, at(1_000)),
            BackendHealth::Ejected(Micros::from_millis(8_500))
        );
        assert!(!member.works(&pod, at(9_499)));
        assert!(member.works(&pod, at(9_500)));
        pod.learn(at(500), false, backend::Evidence::Silence { link_settled: true });
        pod.learn(at(1_000), false, backend::Evidence::Ready);
        assert!(member.works(&pod, at(1_000)), "another one failed");
        pod.learn(at(1_000), false, backend::Evidence::Silence { link_settled: true });
        assert_eq!(member.health(&pod, at(0)), BackendHealth::Silent);
    }
}
