//! Whether looking at the rings before sleeping is worth it, learned from whether it was.
//!
//! Owns a small score and no clock. Waking a sleeping CPU takes as long as a request (35 us on a virtual machine),
//! so a frame that comes within that time is cheaper to wait for awake; where frames come rarely, or the waiting
//! takes the CPU from those who would send them, it is not, and the port sleeps at once.

/// Successes that are remembered: so many failures in a row end the spinning.
const SCORE_MAX: u8 = 16;
/// With a score of 0, one wait in so many spins all the same, to notice when it is worth it again.
const TRY_EVERY: u8 = 32;

/// The score of one port.
#[derive(Debug)]
pub(crate) struct SpinScore {
    score: u8,
    skipped: u8,
}

impl SpinScore {
    pub(crate) fn new() -> Self {
        Self {
            score: SCORE_MAX,
            skipped: 0,
        }
    }

    /// Whether to spin this time.
    pub(crate) fn worth_it(&mut self) -> bool {
        if self.score > 0 {
            return true;
        }
        self.skipped += 1;
        if self.skipped < TRY_EVERY {
            return false;
        }
        self.skipped = 0;
        true
    }

    /// A spin ended: with a frame, or for nothing.
    pub(crate) fn ended(&mut self, with_frame: bool) {
        // A hit counts double: spinning pays for itself when it saves one wake-up in three.
        self.score = if with_frame {
            (self.score + 2).min(SCORE_MAX)
        } else {
            self.score.saturating_sub(1)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spins(score: &mut SpinScore, waits: usize, hit: impl Fn(usize) -> bool) -> usize {
        (0..waits)
            .filter(|i| {
                let spin = score.worth_it();
                if spin {
                    score.ended(hit(*i));
                }
                spin
            })
            .count()
    }

    #[test]
    fn what_pays_goes_on_and_what_does_not_nearly_ends() {
        let mut score = SpinScore::new();
        assert_eq!(spins(&mut score, 1_000, |_| true), 1_000);
        assert_eq!(spins(&mut score, 1_000, |i| i % 2 == 0), 1_000);
        let wasted = spins(&mut score, 3_200, |_| false);
        assert!((100..=120).contains(&wasted), "{wasted}");
    }

    #[test]
    fn it_starts_again_when_frames_come_soon_again() {
        let mut score = SpinScore::new();
        spins(&mut score, 1_000, |_| false);
        let spun = spins(&mut score, 1_000, |_| true);
        assert!(spun >= 1_000 - usize::from(TRY_EVERY), "{spun}");
    }
}
