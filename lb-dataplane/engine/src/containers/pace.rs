//! Limits per second, and a worker's part of them.
//!
//! Owns how much of the present second is used. What it limits is for whoever asks.

/// One of several engines that have a limit together: each has its turn with what does not divide,
/// so that in each second all together do what is allowed and no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Which one, from 0.
    pub worker: u32,
    /// Of so many, at least 1.
    pub workers: u32,
}

impl Default for Share {
    fn default() -> Self {
        Self { worker: 0, workers: 1 }
    }
}

impl Share {
    /// This one's part of `limit` in a second of the clock that all have.
    fn of(self, limit: u32, second: u32) -> u32 {
        let turn = (self.worker + second % self.workers) % self.workers;
        limit / self.workers + u32::from(turn < limit % self.workers)
    }
}

/// What was done within the present second.
#[derive(Clone, Copy, Default)]
pub(crate) struct Pace {
    /// Seconds of the clock, wrapping.
    second: u32,
    count: u32,
}

impl Pace {
    /// Whether once more is within the share of the limit; 0 is none.
    pub(crate) fn has_room(self, limit: u32, second: u32, share: Share) -> bool {
        let before = if self.second == second { self.count } else { 0 };
        limit == 0 || before < share.of(limit, second)
    }

    pub(crate) fn spend(&mut self, second: u32) {
        let before = if self.second == second { self.count } else { 0 };
        (self.second, self.count) = (second, before.saturating_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_workers_together_do_what_is_allowed_in_each_second_and_each_has_its_turn() {
        for workers in 1..=5 {
            for limit in 1..=11 {
                let mut had = vec![0; workers as usize];
                for second in 0..workers {
                    let mut done = 0;
                    for worker in 0..workers {
                        let (mut pace, share) = (Pace::default(), Share { worker, workers });
                        while pace.has_room(limit, second, share) {
                            pace.spend(second);
                            had[worker as usize] += 1;
                            done += 1;
                        }
                    }
                    assert_eq!(done, limit, "{workers} workers in second {second}");
                }
                assert_eq!(had, vec![limit; workers as usize], "over all turns");
            }
        }
    }

    #[test]
    fn no_limit_has_no_shares() {
        let share = Share { worker: 3, workers: 4 };
        assert!(Pace::default().has_room(0, 9, share));
        assert!(!Pace::default().has_room(1, 0, share), "another's turn");
    }
}
