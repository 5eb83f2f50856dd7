//! Whether looking at the rings before sleeping is worth it, and for how long, learned from whether
//! it was.
//!
//! Owns the rule and the loop that looks. Waking a sleeping CPU takes as long as a request (35 us
//! on a virtual machine), so a frame that comes within that time is cheaper to wait for awake;
//! where frames come rarely, or the waiting takes the CPU from those who would send them, it is
//! not, and the port sleeps at once. Whoever owns the port forbids it where CPU time is rationed:
//! what is burnt here is missing later in the period, for tens of milliseconds.
//!
//! # Decisions
//!
//! - **The port waits awake for 40 us where that pays**: an idle CPU of a virtual machine takes
//!   about 35 us to wake up, twice per request. It took p50 at one connection from 81 to 47 us
//!   (HAProxy 84; `make bench-compare`) and left requests/s at 32 connections where they were. A
//!   score of hits and misses ends it where frames come rarely, or where it takes the CPU from
//!   those who would send them (an echo between two processes on two busy cores: 5 us asleep, 55 us
//!   awake). It waits no longer than twice the mean gap, and a hit counts as much as a miss:
//!   counted double, a third of hits (10,000 random frames a second) kept it awake for ever. Where
//!   CPU time is rationed (`src/cpu_quota.rs`: a quota below one CPU in any control group above it,
//!   or a throttled period within the last 10 s, longer if that comes again) it is not done at all:
//!   what is burnt is missing at the period's end.

use std::time::{Duration, Instant};

/// Successes that are remembered: so many more failures than successes end the spinning.
const SCORE_MAX: u8 = 16;
/// With a score of 0, it is tried again after so many waits, to notice when it is worth it again.
const TRY_EVERY: u8 = 128;
/// As so many spins in a row: what is waited for comes sooner while no CPU sleeps, which shows with
/// the second.
const TRIAL: u8 = 4;
/// A mean of the last so many gaps, roughly.
const GAPS: i64 = 8;
/// A gap counts for at most so many times the longest spin, so that one idle second does not
/// outweigh what follows.
const GAP_MAX: u32 = 4;

/// When to spin, as a function of how long frames were waited for. Knows no clock.
#[derive(Debug)]
pub(crate) struct SpinRule {
    longest: Duration,
    allowed: bool,
    score: u8,
    skipped: u8,
    mean_gap: Duration,
}

impl SpinRule {
    fn new(longest: Duration) -> Self {
        Self {
            longest,
            allowed: !longest.is_zero(),
            score: SCORE_MAX,
            skipped: 0,
            mean_gap: longest,
        }
    }

    /// How long to spin this time, if at all: twice the mean gap, as what has not come by then is
    /// not part of that flow.
    fn limit(&mut self) -> Option<Duration> {
        if !self.allowed {
            return None;
        }
        if self.score == 0 {
            self.skipped += 1;
            if self.skipped < TRY_EVERY {
                return None;
            }
            self.skipped = 0;
            self.score = TRIAL;
        }
        Some(self.longest.min(self.mean_gap * 2))
    }

    /// A spin ended: with a frame, or for nothing. A hit saves one wake-up and a miss costs as
    /// much, so each counts once.
    fn spun(&mut self, with_frame: bool) {
        self.score =
            if with_frame { (self.score + 1).min(SCORE_MAX) } else { self.score.saturating_sub(1) };
    }

    /// So long the wait was, spun or slept.
    fn waited(&mut self, gap: Duration) {
        let nanos = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let gap = nanos(gap.min(self.longest * GAP_MAX));
        let mean = nanos(self.mean_gap);
        // Never 0: a spin looks at least once.
        let mean = (mean + (gap - mean) / GAPS).max(1);
        self.mean_gap = Duration::from_nanos(mean.unsigned_abs());
    }
}

/// The rule of one port, and its present wait.
#[derive(Debug)]
pub(crate) struct Spin {
    rule: SpinRule,
    since: Instant,
    spins: u64,
}

impl Spin {
    /// Spins for `longest` at most; never if that is 0.
    pub(crate) fn new(longest: Duration) -> Self {
        Self { rule: SpinRule::new(longest), since: Instant::now(), spins: 0 }
    }

    pub(crate) fn allow(&mut self, allowed: bool) {
        self.rule.allowed = allowed && !self.rule.longest.is_zero();
    }

    /// Spins so far.
    pub(crate) fn spins(&self) -> u64 {
        self.spins
    }

    /// A wait begins. True if a frame came while it was awake; otherwise it is to sleep now.
    pub(crate) fn awake(
        &mut self,
        timeout: Option<Duration>,
        mut ready: impl FnMut() -> bool,
    ) -> bool {
        if !self.rule.allowed {
            return false;
        }
        self.since = Instant::now();
        if timeout == Some(Duration::ZERO) {
            return false;
        }
        let Some(limit) = self.rule.limit() else {
            return false;
        };
        let limit = timeout.map_or(limit, |t| t.min(limit));
        self.spins += 1;
        loop {
            // Asking for the time costs more than looking at the rings.
            for _ in 0..16 {
                if ready() {
                    self.rule.spun(true);
                    self.rule.waited(self.since.elapsed());
                    return true;
                }
                std::hint::spin_loop();
            }
            if self.since.elapsed() >= limit {
                self.rule.spun(false);
                return false;
            }
        }
    }

    /// The sleep that followed ended.
    pub(crate) fn slept(&mut self) {
        if self.rule.allowed {
            self.rule.waited(self.since.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_micros(40);
    const WAITS: u32 = 100_000;

    /// What a trace of gaps costs: the share of waits that were spun, of those that the spin ended,
    /// and of the time that went into spinning.
    #[derive(Debug)]
    struct Cost {
        spun: f64,
        hit: f64,
        time: f64,
    }

    fn cost(rule: &mut SpinRule, mut gap_us: impl FnMut(u32) -> f64) -> Cost {
        let (mut spun, mut hits) = (0, 0);
        let (mut burnt, mut all) = (Duration::ZERO, Duration::ZERO);
        for wait in 0..WAITS {
            let gap = Duration::from_secs_f64(gap_us(wait) / 1e6);
            all += gap;
            if let Some(limit) = rule.limit() {
                let hit = gap <= limit;
                (spun, hits) = (spun + 1, hits + u32::from(hit));
                burnt += gap.min(limit);
                rule.spun(hit);
            }
            rule.waited(gap);
        }
        let share = |part: u32| f64::from(part) / f64::from(WAITS);
        Cost { spun: share(spun), hit: share(hits), time: burnt.as_secs_f64() / all.as_secs_f64() }
    }

    fn of(gap_us: impl FnMut(u32) -> f64) -> Cost {
        cost(&mut SpinRule::new(LONGEST), gap_us)
    }

    /// Gaps of a Poisson process, the same in each run.
    fn random(mean_us: f64) -> impl FnMut(u32) -> f64 {
        let mut state = 1_u64;
        move |_| {
            // Knuth's multiplier; the upper half is random enough.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let unit = ((state >> 33) + 1) as f64 / f64::from(1_u32 << 31);
            -unit.ln() * mean_us
        }
    }

    #[test]
    fn a_conversation_of_one_connection_is_waited_for_awake() {
        // Request, 20 us until the pod answers, 25 us until the client asks again; sometimes
        // somebody is late.
        let cost = of(|wait| match wait {
            _ if wait % 100 == 7 => 300.0,
            _ if wait % 2 == 0 => 20.0,
            _ => 25.0,
        });
        assert!(cost.spun > 0.99 && cost.hit > 0.98, "{cost:?}");
    }

    #[test]
    fn evenly_spaced_frames_that_no_spin_reaches_end_it() {
        for gap_us in [41.0, 100.0, 1_000.0] {
            let cost = of(|_| gap_us);
            assert!(cost.spun < 0.05 && cost.time < 0.05, "{gap_us}: {cost:?}");
        }
    }

    #[test]
    fn ten_thousand_random_frames_a_second_do_not_keep_it_awake() {
        // A hit counted double before, and a third of the waits are hits: it took a third of a core
        // for ever.
        for per_second in [1_000.0, 5_000.0, 10_000.0] {
            let cost = of(random(1e6 / per_second));
            assert!(cost.time < 0.05, "{per_second}: {cost:?}");
        }
    }

    #[test]
    fn many_random_frames_are_waited_for_awake() {
        for per_second in [40_000.0, 100_000.0, 400_000.0] {
            let cost = of(random(1e6 / per_second));
            assert!(cost.hit > 0.6, "{per_second}: {cost:?}");
        }
    }

    #[test]
    fn it_looks_no_longer_than_twice_the_mean_gap() {
        let mut rule = SpinRule::new(LONGEST);
        cost(&mut rule, |_| 5.0);
        let limit = rule.limit().expect("it pays");
        assert!(limit < Duration::from_micros(11), "{limit:?}");
        cost(&mut rule, |_| 30.0);
        assert_eq!(rule.limit(), Some(LONGEST));
    }

    #[test]
    fn it_begins_again_when_frames_come_soon_again() {
        let mut rule = SpinRule::new(LONGEST);
        cost(&mut rule, |_| 5_000.0);
        let mut waits = 0;
        let mut hits = 0;
        while hits < 100 {
            if let Some(limit) = rule.limit() {
                let hit = Duration::from_micros(20) <= limit;
                rule.spun(hit);
                hits += u32::from(hit);
            }
            rule.waited(Duration::from_micros(20));
            waits += 1;
        }
        assert!(waits < 100 + 2 * u32::from(TRY_EVERY), "{waits}");
    }

    #[test]
    fn what_comes_soon_only_while_nobody_sleeps_is_found_out() {
        let mut rule = SpinRule::new(LONGEST);
        cost(&mut rule, |_| 5_000.0);
        // Behind a sleep, the other side has to wake up, too.
        let (mut slept, mut spun) = (true, 0);
        for _ in 0..10_000 {
            let gap = Duration::from_micros(if slept { 60 } else { 20 });
            let limit = rule.limit();
            if let Some(limit) = limit {
                spun += 1;
                rule.spun(gap <= limit);
            }
            slept = limit.is_none();
            rule.waited(gap);
        }
        assert!(spun > 9_000, "{spun}");
    }

    #[test]
    fn where_cpu_time_is_rationed_it_never_looks() {
        let mut spin = Spin::new(LONGEST);
        spin.allow(false);
        assert!(!spin.awake(None, || panic!("it looked")));
        assert_eq!(spin.spins(), 0);
        spin.allow(true);
        assert!(spin.awake(None, || true));
        assert_eq!(spin.spins(), 1);
        // What was never asked for is not allowed either.
        let mut never = Spin::new(Duration::ZERO);
        never.allow(true);
        assert!(!never.awake(None, || panic!("it looked")));
    }
}
