//! When a backend counts as healthy: a pure state machine over the results of its checks. Knows no
//! clock and no socket.

/// Results in a row that turn a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Successes that make an unhealthy backend healthy, at least 1.
    pub healthy: u32,
    /// Failures that make a healthy backend unhealthy, at least 1.
    pub unhealthy: u32,
}

/// The verdict on one backend, and how far it is from turning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judge {
    thresholds: Thresholds,
    verdict: Option<bool>,
    /// Results in a row that contradict the verdict; always below the threshold that they count
    /// towards.
    against: u32,
}

impl Judge {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(thresholds: Thresholds) -> Self {
        Self { thresholds, verdict: None, against: 0 }
    }

    /// What is known; none before the first result.
    #[must_use]
    pub fn verdict(self) -> Option<bool> {
        self.verdict
    }

    /// Takes the result of a check; true if the verdict turned.
    ///
    /// The first result decides by itself: until then the backend counts as usable, so one that
    /// does not answer would else get connections for as long as the threshold takes.
    pub fn take(&mut self, success: bool) -> bool {
        let Some(verdict) = self.verdict else {
            self.verdict = Some(success);
            return true;
        };
        if success == verdict {
            self.against = 0;
            return false;
        }
        self.against += 1;
        let needed = if success { self.thresholds.healthy } else { self.thresholds.unhealthy };
        if self.against < needed {
            return false;
        }
        self.verdict = Some(success);
        self.against = 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    fn judge(healthy: u32, unhealthy: u32) -> Judge {
        Judge::new(Thresholds { healthy, unhealthy })
    }

    /// The verdict after each result: `+`, `-`.
    fn verdicts(mut judge: Judge, results: &str) -> String {
        results
            .bytes()
            .map(|result| {
                judge.take(result == b'+');
                match judge.verdict() {
                    Some(true) => '+',
                    Some(false) => '-',
                    None => '?',
                }
            })
            .collect()
    }

    #[test]
    fn verdicts_turn_at_their_thresholds() {
        for (healthy, unhealthy, results, expected) in [
            (2, 3, "+++", "+++"),
            (2, 3, "+--+---", "++++++-"),
            (2, 3, "-+-++", "----+"),
            (1, 1, "+-+-", "+-+-"),
            (2, 3, "-++---", "--+++-"),
            (100, 1, "+-+++", "+----"),
        ] {
            assert_eq!(
                verdicts(judge(healthy, unhealthy), results),
                expected,
                "{healthy} {unhealthy} {results}"
            );
        }
        assert_eq!(judge(1, 1).verdict(), None);
    }

    proptest! {
        /// Against the definition: the verdict is that of the last run of equal results long enough
        /// to turn it.
        #[test]
        fn it_is_the_last_run_that_was_long_enough(
            healthy in 1_u32..6, unhealthy in 1_u32..6, results in vec(any::<bool>(), 1..200),
        ) {
            let mut machine = judge(healthy, unhealthy);
            let mut turns = 0;
            for end in 1..=results.len() {
                let before = machine.verdict();
                let turned = machine.take(results[end - 1]);
                prop_assert_eq!(turned, machine.verdict() != before);
                turns += usize::from(turned);
                let mut expected = results[0];
                let mut at = 0;
                for run in results[..end].chunk_by(|a, b| a == b) {
                    let needed = if run[0] { healthy } else { unhealthy };
                    if at == 0 || run.len() >= needed as usize {
                        expected = run[0];
                    }
                    at += run.len();
                }
                prop_assert_eq!(machine.verdict(), Some(expected));
            }
            prop_assert!(turns <= results.len());
        }
    }
}
