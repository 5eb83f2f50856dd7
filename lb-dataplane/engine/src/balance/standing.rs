//! How a backend stands among the others of its pool: fit, distressed, on trial, joining.
//!
//! Owns what is remembered of one member from judgement to judgement, and its transitions. It sees
//! readings of one moment only and never chooses where a flow goes: that is `placement`'s.

use crate::{
    mutants::{Committed, Mutant},
    timing::{BACKOFF_MAX_US, BACKOFF_MIN_US, HOT_MEMORY_US, JOIN_MAX_US, JOIN_US, STAGE_US},
};

/// A member that was hot for this part of the memory, and three times longer than is usual in its
/// pool, is distressed: one stall of 90 ms, as a CPU quota of 5 % makes them, or some shorter ones.
/// One pause of 50 ms is not enough.
pub(crate) const HOT_PART: f64 = 0.055;
const HOT_USUAL: f64 = 3.0;
/// On trial, much less is enough.
const TRIAL_PART: f64 = 0.02;
/// After this many back-offs without distress the next one is the shortest again.
const FORGIVEN_BACKOFFS: u64 = 8;
/// With this part of its share it has joined.
const JOINED_PART: f64 = 0.9;

/// How a member stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Phase {
    /// As good as the others.
    Fit,
    /// It came, or came back, while the policy had flows; none: not judged since.
    Joining { since_us: Option<u64> },
    /// Its flows leave, and none comes.
    Distressed { until_us: u64 },
    /// It is given flows back little by little.
    Trial { since_us: u64, allowance: u32 },
}

/// What one member remembers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    pub(crate) phase: Phase,
    /// The part of the last second that it was hot.
    hot: f64,
    backoff_us: u64,
    /// When it was last distressed.
    distressed_us: u64,
    /// It could be given flows at the last judgement; none: not judged yet.
    could: Option<bool>,
    /// When a flow last left it for a lower wait (`placement`).
    pub(crate) left_us: u64,
}

impl Default for Standing {
    fn default() -> Self {
        Self {
            phase: Phase::Fit,
            hot: 0.0,
            backoff_us: BACKOFF_MIN_US,
            distressed_us: 0,
            could: None,
            left_us: 0,
        }
    }
}

/// What a judgement goes by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence {
    pub(crate) now_us: u64,
    /// Since the last judgement.
    pub(crate) age_us: u64,
    /// It waits much longer than its pool; none: nothing is known of it.
    pub(crate) hot: Option<bool>,
    /// How long members of its pool are hot usually.
    pub(crate) usual: f64,
    /// Flows may be given to it, as far as health and its adopter say.
    pub(crate) can: bool,
    pub(crate) flows: u32,
    /// Its share of the pool's flows.
    pub(crate) fair: f64,
    /// One more member may be distressed.
    pub(crate) room: bool,
    /// A deliberate fault of the simulation's.
    pub(crate) committed: Committed,
}

impl Standing {
    /// A member that came to a policy that has flows.
    pub(crate) fn joining() -> Self {
        Self { phase: Phase::Joining { since_us: None }, ..Self::default() }
    }

    pub(crate) fn is_distressed(&self) -> bool {
        matches!(self.phase, Phase::Distressed { .. })
    }

    /// The name of its phase, for people.
    pub(crate) fn label(&self) -> &'static str {
        match self.phase {
            Phase::Fit => "fit",
            Phase::Joining { .. } => "joining",
            Phase::Distressed { .. } => "distressed",
            Phase::Trial { .. } => "trial",
        }
    }

    /// Whether it has its share, or what it has of it is no sign.
    pub(crate) fn is_settled(&self) -> bool {
        self.phase == Phase::Fit
    }

    /// The part of the last second that it was hot.
    pub(crate) fn hot(&self) -> f64 {
        self.hot
    }

    /// One judgement. Returns whether the member became distressed.
    pub(crate) fn judge(&mut self, e: Evidence) -> bool {
        if let Some(hot) = e.hot {
            let keep = (-(e.age_us as f64) / HOT_MEMORY_US).exp();
            self.hot = self.hot * keep + if hot { 1.0 - keep } else { 0.0 };
        }
        let came_back = e.can && self.could == Some(false);
        self.could = Some(e.can);
        if came_back && !self.is_distressed() {
            self.phase = Phase::Joining { since_us: None };
        }
        match self.phase {
            Phase::Fit => {
                let bad = self.hot >= HOT_PART && self.hot >= HOT_USUAL * e.usual;
                if bad && e.room {
                    return self.distress(e);
                }
                if e.now_us > self.distressed_us + FORGIVEN_BACKOFFS * self.backoff_us {
                    self.backoff_us = BACKOFF_MIN_US;
                }
            }
            Phase::Joining { since_us } => {
                let since_us = since_us.unwrap_or(e.now_us);
                let has = f64::from(e.flows) >= JOINED_PART * e.fair;
                self.phase = if has || e.now_us > since_us + JOIN_MAX_US {
                    Phase::Fit
                } else {
                    Phase::Joining { since_us: Some(since_us) }
                };
            }
            Phase::Distressed { until_us } => {
                if e.now_us >= until_us && e.can {
                    self.hot = 0.0;
                    self.phase = Phase::Trial { since_us: e.now_us, allowance: 1 };
                }
            }
            Phase::Trial { since_us, allowance } => {
                if self.hot >= TRIAL_PART {
                    return self.distress(e);
                }
                let full = f64::from(e.flows) >= f64::from(allowance).min(e.fair.floor());
                if e.now_us >= since_us + STAGE_US && full {
                    self.phase = if f64::from(allowance) >= e.fair {
                        Phase::Fit
                    } else {
                        Phase::Trial { since_us: e.now_us, allowance: allowance.saturating_mul(2) }
                    };
                }
            }
        }
        false
    }

    fn distress(&mut self, e: Evidence) -> bool {
        let now_us = e.now_us;
        let alone = !e.committed.is(Mutant::NoBackOff);
        self.phase =
            Phase::Distressed { until_us: now_us + if alone { self.backoff_us } else { 0 } };
        self.backoff_us = (self.backoff_us * 2).min(BACKOFF_MAX_US);
        self.distressed_us = now_us;
        true
    }

    /// How many flows it may be given from others at this time, `fair` being its share of them.
    pub(crate) fn allowed(&self, now_us: u64, fair: f64) -> f64 {
        match self.phase {
            Phase::Trial { allowance, .. } => f64::from(allowance).min(fair),
            Phase::Joining { since_us: Some(since_us) } => {
                let age_us = now_us.saturating_sub(since_us);
                (fair * (age_us as f64 / JOIN_US as f64).min(1.0)).ceil()
            }
            _ => 0.0,
        }
    }

    /// Whether a new flow may be given to it, which has so many.
    pub(crate) fn admits(&self, flows: u32) -> bool {
        match self.phase {
            Phase::Fit | Phase::Joining { .. } => true,
            Phase::Distressed { .. } => false,
            Phase::Trial { allowance, .. } => flows < allowance,
        }
    }

    /// Whether flows leave it, however many it has or beyond what it may have.
    pub(crate) fn sheds(&self, flows: u32) -> bool {
        match self.phase {
            Phase::Distressed { .. } => true,
            Phase::Trial { allowance, .. } => flows > allowance,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP_US: u64 = 2_000;

    /// Judged each 2 ms for so long; returns when it became distressed.
    fn judged(
        s: &mut Standing,
        from_us: u64,
        for_us: u64,
        hot: impl Fn(u64) -> bool,
        flows: u32,
    ) -> Option<u64> {
        (from_us..from_us + for_us).step_by(STEP_US as usize).find(|now_us| {
            s.judge(Evidence {
                now_us: *now_us,
                age_us: STEP_US,
                hot: Some(hot(*now_us)),
                usual: 0.0,
                can: true,
                flows,
                fair: 8.0,
                room: true,
                committed: Committed::default(),
            })
        })
    }

    #[test]
    fn one_pause_is_no_distress_and_a_quota_s_stalls_are() {
        let mut s = Standing::default();
        let pause = |us: u64| (100_000..150_000).contains(&us);
        assert_eq!(judged(&mut s, 0, 1_000_000, pause, 8), None);
        let mut s = Standing::default();
        let quota = |us: u64| us % 100_000 > 33_000;
        let at = judged(&mut s, 0, 1_000_000, quota, 8).expect("distressed");
        assert!(at < 120_000, "{at}");
        assert!(s.is_distressed() && s.sheds(1) && !s.admits(0));
    }

    #[test]
    fn the_time_that_it_is_left_alone_doubles_while_it_comes_back_as_it_was() {
        let mut s = Standing::default();
        let (mut now_us, mut waits) = (0, Vec::new());
        for _ in 0..7 {
            while !s.is_distressed() {
                judged(&mut s, now_us, STEP_US, |_| true, 8);
                now_us += STEP_US;
            }
            let since_us = now_us;
            while s.is_distressed() {
                judged(&mut s, now_us, STEP_US, |_| false, 0);
                now_us += STEP_US;
            }
            waits.push((now_us - since_us).div_ceil(1_000_000));
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 16, 16]);
    }

    #[test]
    fn a_trial_admits_twice_as_many_each_stage_until_it_has_its_share() {
        let mut s =
            Standing { phase: Phase::Trial { since_us: 0, allowance: 1 }, ..Standing::default() };
        assert!(s.admits(0) && !s.admits(1) && s.sheds(2));
        let mut seen = vec![1];
        for now_us in (0..3_000_000).step_by(STEP_US as usize) {
            let Phase::Trial { allowance, .. } = s.phase else {
                break;
            };
            if *seen.last().expect("one") != allowance {
                seen.push(allowance);
            }
            judged(&mut s, now_us, STEP_US, |_| false, allowance);
        }
        assert_eq!(seen, [1, 2, 4, 8]);
        assert_eq!(s.phase, Phase::Fit);
    }

    #[test]
    fn who_joins_is_allowed_its_share_little_by_little() {
        let mut s = Standing::joining();
        assert_eq!(s.allowed(0, 8.0), 0.0);
        judged(&mut s, 1_000_000, STEP_US, |_| false, 0);
        let allowed = [1_000_000, 1_000_001, 2_500_000, 4_000_000, 9_000_000];
        let allowed = allowed.map(|us| s.allowed(us, 8.0));
        assert_eq!(allowed, [0.0, 1.0, 4.0, 8.0, 8.0]);
        judged(&mut s, 2_500_000, STEP_US, |_| false, 8);
        assert!(s.is_settled());
    }
}
