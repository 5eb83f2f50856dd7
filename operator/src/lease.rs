//! Who leads: the decision, as a pure function of a Lease and of how long it has stayed as it is.
//!
//! Owns the rules of taking, renewing and losing a Lease. Never reads a clock and never talks to
//! the API server; the loop that does is in `leader`.
//!
//! A standby judges a Lease by how long it has seen it unchanged on its own clock, never by the
//! times written in it: clocks of two machines may differ by more than a Lease lasts.

use std::time::Duration;

/// What matters of a Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Who holds it; nobody if it was released.
    pub holder: Option<String>,
    /// How often it changed hands.
    pub transitions: i32,
    /// How long it is good after a renewal.
    pub duration: Duration,
    /// Changes with each write, by whomever.
    pub version: String,
}

/// What one process has seen of the Lease. Times are its own, from any start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    record: Option<Record>,
    /// When the record was first seen as it is.
    since: Duration,
    /// The transitions under which this process took the Lease, while it leads.
    mine: Option<i32>,
    /// The most transitions ever seen: a Lease that somebody deleted goes on from there.
    highest: Option<i32>,
}

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// There is no Lease: create it, with these transitions.
    Create {
        /// To be written.
        transitions: i32,
    },
    /// Nobody holds it any more: take it, with these transitions.
    Take {
        /// To be written.
        transitions: i32,
        /// Why it is free.
        reason: Free,
    },
    /// This process holds it: renew it.
    Renew,
    /// Somebody else holds it: look again then.
    Wait {
        /// How long it is theirs at least, if they do not renew it.
        left: Duration,
    },
    /// This process led, and the Lease is now another's: stop at once.
    Lost {
        /// Whose it is; nobody's if it was released or deleted.
        holder: Option<String>,
    },
}

/// Why a Lease may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Free {
    /// Its holder gave it back.
    Released,
    /// Its holder did not renew it in time.
    Expired,
    /// Its holder has our name: this process in an earlier life.
    Ours,
}

impl Observed {
    /// Notes the Lease as it was just read; none if there is none.
    pub fn note(&mut self, record: Option<Record>, now: Duration) {
        if self.record != record {
            let seen = record.as_ref().map(|record| record.transitions);
            self.highest = self.highest.max(seen);
            self.record = record;
            self.since = now;
        }
    }

    /// Notes that this process wrote the Lease, taking or renewing it.
    pub fn note_written(&mut self, record: Record, now: Duration) {
        self.mine = Some(record.transitions);
        self.note(Some(record), now);
    }

    /// Notes that this process leads no more.
    pub fn note_lost(&mut self) {
        self.mine = None;
    }

    /// The record last seen.
    pub fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    /// Whether this process holds the Lease as far as it knows.
    pub fn is_mine(&self) -> bool {
        self.mine.is_some()
    }
}

/// Says what a process named `identity` does at `now`.
pub fn evaluate(observed: &Observed, identity: &str, now: Duration) -> Decision {
    let Some(record) = &observed.record else {
        return match observed.mine {
            // Deleted under us. Another process may create it at this moment and lead.
            Some(_) => Decision::Lost { holder: None },
            None => Decision::Create {
                transitions: observed.highest.map_or(0, |highest| highest.saturating_add(1)),
            },
        };
    };
    let holder = record.holder.as_deref().filter(|holder| !holder.is_empty());
    if let Some(mine) = observed.mine {
        return if holder == Some(identity) && record.transitions == mine {
            Decision::Renew
        } else {
            Decision::Lost { holder: holder.map(str::to_owned) }
        };
    }
    // Each taking counts, our own after a restart too: the epoch of generations rests on it.
    let take =
        |reason| Decision::Take { transitions: record.transitions.saturating_add(1), reason };
    match holder {
        None => take(Free::Released),
        Some(holder) if holder == identity => take(Free::Ours),
        Some(_) => {
            let end = observed.since.saturating_add(record.duration);
            match end.checked_sub(now).filter(|left| !left.is_zero()) {
                Some(left) => Decision::Wait { left },
                None => take(Free::Expired),
            }
        }
    }
}

/// The epoch of the generations that the holder of a Lease with these transitions pushes. Never 0.
pub fn epoch(transitions: i32) -> u32 {
    u32::try_from(transitions).unwrap_or(0).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: Duration = Duration::from_secs(15);

    fn held(holder: Option<&str>, transitions: i32, version: &str) -> Record {
        Record {
            holder: holder.map(str::to_owned),
            transitions,
            duration: LAST,
            version: version.to_owned(),
        }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn without_a_lease_it_is_created() {
        let decision = evaluate(&Observed::default(), "a", at(0));
        assert_eq!(decision, Decision::Create { transitions: 0 });
        assert_eq!(epoch(0), 1);
    }

    #[test]
    fn a_lease_of_another_is_waited_for_as_long_as_it_lasts_on_our_clock() {
        let mut seen = Observed::default();
        seen.note(Some(held(Some("b"), 4, "1")), at(100));
        let left = |left| Decision::Wait { left: at(left) };
        assert_eq!(evaluate(&seen, "a", at(100)), left(15));
        // Seen again unchanged: the time goes on.
        seen.note(Some(held(Some("b"), 4, "1")), at(110));
        assert_eq!(evaluate(&seen, "a", at(110)), left(5));
        // Renewed: it begins anew.
        seen.note(Some(held(Some("b"), 4, "2")), at(112));
        assert_eq!(evaluate(&seen, "a", at(115)), left(12));
        let taken = Decision::Take { transitions: 5, reason: Free::Expired };
        assert_eq!(evaluate(&seen, "a", at(127)), taken);
    }

    #[test]
    fn a_released_lease_is_free_at_once() {
        for holder in [None, Some("")] {
            let mut seen = Observed::default();
            seen.note(Some(held(holder, 7, "1")), at(0));
            let taken = Decision::Take { transitions: 8, reason: Free::Released };
            assert_eq!(evaluate(&seen, "a", at(0)), taken);
        }
    }

    #[test]
    fn the_lease_of_our_earlier_life_is_taken_at_once_under_a_new_epoch() {
        let mut seen = Observed::default();
        seen.note(Some(held(Some("a"), 2, "1")), at(0));
        let taken = Decision::Take { transitions: 3, reason: Free::Ours };
        assert_eq!(evaluate(&seen, "a", at(0)), taken);
        assert!(epoch(3) > epoch(2));
    }

    #[test]
    fn our_own_lease_is_renewed_until_it_is_anothers() {
        let mut seen = Observed::default();
        seen.note_written(held(Some("a"), 3, "1"), at(0));
        assert!(seen.is_mine());
        assert_eq!(evaluate(&seen, "a", at(5)), Decision::Renew);
        let lost = |holder: Option<&str>| Decision::Lost { holder: holder.map(str::to_owned) };
        for (record, holder) in [
            (Some(held(Some("b"), 4, "2")), Some("b")),
            // Another process with our name: two of one name must not both lead.
            (Some(held(Some("a"), 4, "2")), Some("a")),
            (Some(held(None, 3, "2")), None),
            (None, None),
        ] {
            let mut seen = seen.clone();
            seen.note(record, at(6));
            assert_eq!(evaluate(&seen, "a", at(6)), lost(holder));
            seen.note_lost();
            assert!(!matches!(evaluate(&seen, "a", at(6)), Decision::Lost { .. }));
        }
    }

    #[test]
    fn a_deleted_lease_goes_on_counting_where_it_was() {
        let mut seen = Observed::default();
        seen.note_written(held(Some("a"), 3, "1"), at(0));
        seen.note(None, at(1));
        seen.note_lost();
        let decision = evaluate(&seen, "a", at(1));
        assert_eq!(decision, Decision::Create { transitions: 4 });
    }

    #[test]
    fn transitions_that_make_no_sense_still_make_an_epoch() {
        assert_eq!(epoch(-5), 1);
        assert_eq!(epoch(i32::MAX), 1 << 31);
    }
}
