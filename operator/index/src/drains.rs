//! Which drains of a policy are told about, and when: once when one is over, once when its deadline
//! passes with flows left.
//!
//! Owns what was seen of each while it lasted. What drains come to in all is kept elsewhere.

use crate::{Drain, Drained, Reason, Text, messages::few};
use baton_api::OnDeadline;
use std::collections::BTreeMap;

/// Drains of one policy that are followed at one time: as many as a listener has backends. Those
/// beyond are only in the figures.
pub(crate) const LIMIT_DRAINS_FOLLOWED: usize = baton_api::LIMIT_BACKENDS_PER_POLICY;

/// The drains of one policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drains {
    /// By listener and backend.
    seen: BTreeMap<(Text, Text), Seen>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    since: i64,
    until: i64,
    drained: Drained,
    waiting: BTreeMap<Text, u64>,
    /// Flows of the policy that were lost before it was seen.
    lost_before: u64,
    /// It was seen before its deadline, and that it passed was not told.
    is_open: bool,
}

/// A notice about a drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DrainNotice {
    pub warning: bool,
    pub reason: Reason,
    pub message: String,
}

impl Drains {
    /// Takes what drains there are now. `is_all`: every dataplane was heard, so that what is not
    /// among them is over; `lost` are the flows of the policy that were lost so far.
    pub fn update(
        &mut self,
        now: i64,
        drains: &[Drain],
        is_all: bool,
        lost: u64,
        on_deadline: OnDeadline,
    ) -> Vec<DrainNotice> {
        let mut notices = Vec::new();
        for drain in drains {
            let key = (drain.listener.clone(), drain.backend.clone());
            let room = self.seen.len() < LIMIT_DRAINS_FOLLOWED;
            match self.seen.get_mut(&key) {
                Some(seen) => seen.update(drain),
                None if room => {
                    let seen = Seen {
                        since: drain.since,
                        until: drain.until,
                        drained: drain.drained,
                        waiting: drain.waiting.clone(),
                        lost_before: lost,
                        // A deadline that passed before is no news, it was told by who saw it.
                        is_open: now < drain.until,
                    };
                    self.seen.insert(key, seen);
                }
                None => {}
            }
        }
        if is_all {
            self.seen.retain(|(listener, backend), seen| {
                let goes_on =
                    drains.iter().any(|d| d.listener == *listener && d.backend == *backend);
                if !goes_on {
                    notices.push(seen.is_over(now, listener, backend, lost));
                }
                goes_on
            });
        }
        for ((listener, backend), seen) in &mut self.seen {
            if seen.is_open && now >= seen.until {
                seen.is_open = false;
                notices.extend(seen.is_late(now, listener, backend, on_deadline));
            }
        }
        notices
    }

    /// When the next deadline is that is to be told.
    pub fn deadline(&self) -> Option<i64> {
        let open = self.seen.values().filter(|seen| seen.is_open);
        open.map(|seen| seen.until).min()
    }
}

impl Seen {
    fn update(&mut self, now: &Drain) {
        let (was, is) = (&mut self.drained, &now.drained);
        // Figures of a dataplane that is not heard, or that began anew, are missing in the sum.
        was.moved = was.moved.max(is.moved);
        was.ended = was.ended.max(is.ended);
        was.closed = was.closed.max(is.closed);
        self.since = self.since.min(now.since);
        // Moved by an admin's command. Of one that has passed it is not known any more when that
        // was.
        if self.is_open {
            self.until = now.until;
        }
        self.waiting.clone_from(&now.waiting);
    }

    fn left(&self) -> u64 {
        self.waiting.values().sum()
    }

    fn is_over(&self, now: i64, listener: &str, backend: &str, lost: u64) -> DrainNotice {
        let Drained { moved, ended, closed } = self.drained;
        let mut message = format!(
            "the drain of {backend} (listener {listener}) is over after {} s: {moved} flows moved, {ended} ended by themselves, \
             {closed} were closed by the deadline",
            now.saturating_sub(self.since).max(0)
        );
        let left = self.left();
        if left > 0 {
            message.push_str(&format!(", {left} were still there when it was last seen"));
        }
        let lost = lost.saturating_sub(self.lost_before);
        message.push_str(&format!("; {lost} flows of the policy were reset in that time"));
        DrainNotice { warning: false, reason: Reason::Drained, message }
    }

    fn is_late(
        &self,
        now: i64,
        listener: &str,
        backend: &str,
        on_deadline: OnDeadline,
    ) -> Option<DrainNotice> {
        let left = self.left();
        if left == 0 {
            return None;
        }
        let waiting = self.waiting.iter().filter(|(_, flows)| **flows > 0);
        let waiting = few(waiting.map(|(why, flows)| format!("{flows} {why}")), ", ");
        let then = match on_deadline {
            OnDeadline::Wait => "they may stay (spec.drain.onDeadline is Wait)",
            OnDeadline::Close => {
                "each is closed when its request is answered (spec.drain.onDeadline is Close)"
            }
        };
        let Drained { moved, ended, closed } = self.drained;
        Some(DrainNotice {
            warning: true,
            reason: Reason::DrainDeadline,
            message: format!(
                "the deadline of the drain of {backend} (listener {listener}) passed after {} s: {moved} flows moved, {ended} \
                 ended by themselves, {closed} were closed, {left} are still there ({waiting}): {then}",
                now.saturating_sub(self.since).max(0)
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(backend: &str, moved: u64, left: u64) -> Drain {
        Drain {
            listener: "http".into(),
            backend: backend.into(),
            drained: Drained { moved, ..Drained::default() },
            waiting: [("pinned: TLS".into(), left)].into(),
            since: 100,
            until: 130,
        }
    }

    fn reasons(notices: &[DrainNotice]) -> Vec<Reason> {
        notices.iter().map(|t| t.reason).collect()
    }

    #[test]
    fn a_deadline_and_an_end_are_told_once_each() {
        let mut drains = Drains::default();
        let mut at = |now, list: &[Drain], is_all| {
            let notices = drains.update(now, list, is_all, 7, OnDeadline::Wait);
            (notices, drains.deadline())
        };
        let (notices, deadline) = at(101, &[drain("a", 1, 5)], true);
        assert_eq!((notices.len(), deadline), (0, Some(130)));
        let (notices, deadline) = at(130, &[drain("a", 4, 2)], true);
        assert_eq!((reasons(&notices), deadline), (vec![Reason::DrainDeadline], None));
        for part in ["after 30 s", "4 flows moved", "2 are still there (2 pinned: TLS)", "is Wait"]
        {
            assert!(notices[0].message.contains(part), "{notices:?}");
        }
        assert!(at(131, &[drain("a", 4, 2)], true).0.is_empty());
        // A dataplane is not heard: that the drain is over is not known.
        assert!(at(140, &[], false).0.is_empty());
        let (notices, _) = at(150, &[], true);
        assert_eq!(reasons(&notices), [Reason::Drained]);
        for part in [
            "after 50 s",
            "4 flows moved",
            "2 were still there",
            "0 flows of the policy were reset",
        ] {
            assert!(notices[0].message.contains(part), "{notices:?}");
        }
        assert!(at(151, &[], true).0.is_empty());
    }

    #[test]
    fn what_passed_before_or_has_no_flows_left_is_no_news() {
        let mut drains = Drains::default();
        // As an operator sees it that started after the deadline.
        let late = [drain("a", 1, 5)];
        assert!(drains.update(131, &late, true, 0, OnDeadline::Close).is_empty());
        assert_eq!(drains.deadline(), None);
        let done = [drain("a", 1, 5), drain("b", 9, 0)];
        assert!(drains.update(120, &done, true, 0, OnDeadline::Close).is_empty());
        assert!(drains.update(130, &done, true, 0, OnDeadline::Close).is_empty());
    }

    #[test]
    fn so_many_are_followed() {
        let mut drains = Drains::default();
        let many: Vec<Drain> =
            (0..2 * LIMIT_DRAINS_FOLLOWED).map(|i| drain(&format!("pod-{i}"), 0, 1)).collect();
        let _ = drains.update(101, &many, true, 0, OnDeadline::Wait);
        assert_eq!(drains.seen.len(), LIMIT_DRAINS_FOLLOWED);
        let notices = drains.update(102, &[], true, 0, OnDeadline::Wait);
        assert_eq!(notices.len(), LIMIT_DRAINS_FOLLOWED);
        assert_eq!(drains, Drains::default());
    }
}
