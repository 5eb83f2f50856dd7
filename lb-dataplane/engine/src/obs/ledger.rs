//! What moves cost and gain: measured, so that the decision can go by it and people can see whether
//! moving pays.
//!
//! Owns the mean extra wait of moved requests per backend, and per policy what was expected of
//! moves and what came of them. It never decides anything.

use crate::timing::COST_MIN_US;
/// Of the mean cost so much is the newest one.
const NEWEST_PART: f64 = 1.0 / 16.0;

/// Mean extra wait of moved requests at one backend.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MoveCost {
    mean_us: f64,
}

impl MoveCost {
    /// A request that came with a move was answered after `took_us`, where those that stayed waited
    /// `usual_us`.
    pub(crate) fn add(&mut self, took_us: u64, usual_us: f64) {
        let extra_us = (took_us as f64 - usual_us).max(0.0);
        self.mean_us += (extra_us - self.mean_us) * NEWEST_PART;
    }

    /// In us, at least what a move costs anyhow.
    pub(crate) fn us(&self) -> f64 {
        self.mean_us.max(COST_MIN_US)
    }
}

/// What a policy's moves for a lower wait were expected to gain, and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gains {
    /// Sum of what their requests were expected to wait less.
    pub(crate) expected_us: u64,
    /// Sum of what they waited less than was expected where they were, and of what they waited
    /// more.
    pub(crate) won_us: u64,
    pub(crate) lost_us: u64,
}

impl Gains {
    pub(crate) fn expect(&mut self, here_us: f64, there_us: f64) {
        self.expected_us += (here_us - there_us).max(0.0) as u64;
    }

    pub(crate) fn came(&mut self, here_us: u64, took_us: u64) {
        self.won_us += here_us.saturating_sub(took_us);
        self.lost_us += took_us.saturating_sub(here_us);
    }
}

/// What is remembered at a flow of the request that it moved with, in one byte: nothing, that it
/// moved, or what it was expected to wait without (in steps of 9 %, up to an hour).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved(u8);

impl Moved {
    /// No move.
    pub(crate) const NO: Moved = Moved(0);
    const STEPS: f64 = 8.0;

    /// With an expectation, or without.
    pub(crate) fn with(here_us: Option<f64>) -> Self {
        match here_us {
            None => Self(1),
            Some(us) => Self((us.max(1.0).log2() * Self::STEPS).round().min(253.0) as u8 + 2),
        }
    }

    pub(crate) fn is_some(self) -> bool {
        self != Self::NO
    }

    /// What its request was expected to wait.
    pub(crate) fn here_us(self) -> Option<u64> {
        let step = self.0.checked_sub(2)?;
        Some((f64::from(step) / Self::STEPS).exp2().round() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_keeps_an_expectation_within_five_percent() {
        assert_eq!((Moved::NO.is_some(), Moved::NO.here_us()), (false, None));
        let plain = Moved::with(None);
        assert_eq!((plain.is_some(), plain.here_us()), (true, None));
        for us in [1_u64, 50, 333, 1_000, 95_000, 2_000_000_000] {
            let kept = Moved::with(Some(us as f64)).here_us().expect("kept") as f64;
            assert!((kept / us as f64 - 1.0).abs() < 0.05, "{us}: {kept}");
        }
        assert!(Moved::with(Some(1e30)).here_us() > Some(3_000_000_000));
    }

    #[test]
    fn the_cost_is_the_mean_extra_wait_and_never_nothing() {
        let mut cost = MoveCost::default();
        assert_eq!(cost.us(), COST_MIN_US);
        for _ in 0..200 {
            cost.add(300, 100.0);
        }
        assert!((cost.us() - 200.0).abs() < 1.0);
        for _ in 0..200 {
            cost.add(10, 100.0);
        }
        assert_eq!(cost.us(), COST_MIN_US);
    }

    #[test]
    fn gains_and_losses_are_kept_apart() {
        let mut gains = Gains::default();
        gains.expect(900.0, 100.0);
        gains.expect(100.0, 900.0);
        gains.came(900, 300);
        gains.came(900, 1_000);
        let Gains { expected_us, won_us, lost_us } = gains;
        assert_eq!((expected_us, won_us, lost_us), (800, 600, 100));
    }
}
