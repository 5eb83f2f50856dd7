//! What one target is asked next: the decisions of a pusher's task as a state machine.
//!
//! Owns generations, retries, and what is known of the other side. Does no I/O and knows no clock:
//! events go in with the time since some start, news and at most one request come out. One request
//! is under way at a time.
//!
//! Rules:
//! - What the dataplane holds is read before the first push, after each failure, conflict and
//!   restart. Equal content is not pushed.
//! - A push has a generation above everything that was seen there or tried, in our epoch or, if
//!   that is behind, in the one seen.
//! - Content of a later epoch than ours is somebody else's until [`Settings::overtaken_wait`] has
//!   passed.
//! - A state that cannot be read is asked for less and less often, also of a dataplane that answers
//!   everything else.
//! - Refused content is offered again only if it changes, the dataplane starts again, or after
//!   [`Settings::refused_retry`].
//!
//! # Decisions
//!
//! - **A generation is (epoch, number)**: the epoch is the number of leaders there were
//!   (`leaseTransitions`), or of starts with a directory of manifests. A leader that lost its Lease
//!   without noticing cannot overwrite what the next one pushed. Before it pushes anything, an
//!   operator reads what a dataplane has, and pushes nothing if the contents are equal: a restart
//!   of the operator touches no dataplane.

mod types;

use super::{Epoch, Refusal, Settings, Unreached, Version, generation_after};
use std::{sync::Arc, time::Duration};
pub use types::{Answer, Event, News, Next, Request};

/// What is known to be in force there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    generation: u64,
    version: Option<Version>,
}

/// Content of a later epoch is in force.
#[derive(Clone, Copy, Debug)]
struct Overtaken {
    until: Duration,
    told: bool,
}

/// One target's state.
#[derive(Clone, Debug)]
pub struct Session {
    settings: Arc<Settings>,
    poll_interval: Duration,
    rng: fastrand::Rng,
    epoch: Epoch,
    wanted: Option<Version>,
    /// None: has to be read.
    held: Option<Held>,
    /// Largest generation that we tried.
    tried: u64,
    asked: Option<Request>,
    failures: u32,
    /// Looks at the state in a row without an answer, whatever else has one.
    polls_failed: u32,
    /// The last push had no answer, whatever else has one.
    put_failed: bool,
    /// In a row.
    conflicts: u32,
    failed_at: Duration,
    /// Nothing is asked before.
    retry_at: Duration,
    poll_at: Duration,
    /// This content was refused, and is not offered again before that.
    refused: Option<(Version, Duration)>,
    overtaken: Option<Overtaken>,
    uptime_seconds: Option<u64>,
    wake_at: Option<Duration>,
}

/// Conflicts in a row that are answered at once: one is a race, two are a race with bad luck, more
/// are no race.
const CONFLICTS_AT_ONCE: u32 = 2;
/// Content that changes without end puts looks at the state off for at most so many intervals.
const POLLS_PUT_OFF: u32 = 3;

impl Session {
    /// Nothing is known of the target, `poll_interval` is one of the two in `settings`.
    #[must_use]
    pub fn new(
        settings: Arc<Settings>,
        poll_interval: Duration,
        epoch: Epoch,
        rng: fastrand::Rng,
        now: Duration,
    ) -> Self {
        Self {
            settings,
            poll_interval,
            rng,
            epoch,
            wanted: None,
            held: None,
            tried: 0,
            asked: None,
            failures: 0,
            polls_failed: 0,
            put_failed: false,
            conflicts: 0,
            failed_at: now,
            retry_at: now,
            poll_at: now,
            refused: None,
            overtaken: None,
            uptime_seconds: None,
            wake_at: None,
        }
    }

    /// Takes an event. `now` never goes back.
    pub fn handle(&mut self, now: Duration, event: Event) -> Next {
        let mut news = Vec::new();
        match event {
            Event::Wanted(version) => {
                let was_in_sync = self.is_in_sync();
                self.wanted = version;
                // The class was retired and came back as it was.
                if !was_in_sync
                    && self.is_in_sync()
                    && let (Some(held), Some(version)) = (self.held, version)
                {
                    news.push(News::Acknowledged {
                        generation: held.generation,
                        version,
                        pushed: false,
                    });
                }
            }
            Event::Nudge => {
                let earliest = self.failed_at + self.settings.backoff_min;
                self.retry_at = self.retry_at.min(earliest.max(now));
            }
            Event::Look => self.poll_at = self.poll_at.min(now),
            Event::Tick => {}
            Event::Answer(answer) => {
                if let Some(asked) = self.asked.take() {
                    self.answer(now, asked, answer, &mut news);
                }
            }
        }
        let ask = self.next(now, &mut news);
        self.asked = self.asked.or(ask);
        self.wake_at = self.next_wake(now);
        Next { news, ask }
    }

    /// When [`Event::Tick`] is due if nothing else happens; that may have passed. None while a
    /// request is under way.
    #[must_use]
    pub fn wake_at(&self) -> Option<Duration> {
        self.wake_at
    }

    /// Whether the target is known to hold the newest content.
    #[must_use]
    pub fn is_in_sync(&self) -> bool {
        self.wanted.is_some() && self.held.is_some_and(|held| held.version == self.wanted)
    }

    /// Whether a request is under way.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.asked.is_some()
    }

    /// The next moment at which [`Session::next`] may decide otherwise than it did now.
    fn next_wake(&self, now: Duration) -> Option<Duration> {
        if self.asked.is_some() {
            return None;
        }
        if self.retry_at > now {
            return Some(self.retry_at);
        }
        let refused = self.refused.map(|(_, until)| until);
        let overtaken = self.overtaken.map(|o| o.until);
        [Some(self.poll_at), refused, overtaken].into_iter().flatten().filter(|at| *at > now).min()
    }

    fn answer(&mut self, now: Duration, asked: Request, answer: Answer, news: &mut Vec<News>) {
        match (asked, answer) {
            (asked, Answer::Failed(problem)) => {
                self.put_failed |= matches!(asked, Request::Put { .. });
                self.failed(now, problem, news);
                if asked == Request::Poll {
                    self.poll_failed(now);
                }
            }
            (Request::Read, Answer::Holds { generation, version }) => {
                self.heard();
                self.holds(now, generation, version, news);
            }
            (Request::Put { generation, version }, answer) => match answer {
                Answer::Accepted => {
                    self.held = Some(Held { generation, version: Some(version) });
                    self.settled(generation, version, true, news);
                }
                Answer::Conflict => {
                    self.takes_pushes();
                    self.held = None;
                    self.conflicts += 1;
                    if self.conflicts > CONFLICTS_AT_ONCE {
                        self.failed_at = now;
                        self.retry_at = now + self.backoff(self.conflicts - CONFLICTS_AT_ONCE);
                    }
                }
                Answer::Refused(refusal) => {
                    self.takes_pushes();
                    self.refused = Some((version, now + self.settings.refused_retry));
                    news.push(News::Refused { version, refusal });
                }
                other => {
                    self.put_failed = true;
                    self.failed(now, misfit(&other), news);
                }
            },
            (Request::Poll, Answer::State { generation, uptime_seconds, took }) => {
                self.heard();
                self.polls_failed = 0;
                let share = took * self.settings.poll_share.saturating_sub(1);
                self.poll_at = now + self.jittered_poll().max(share);
                self.seen(generation, uptime_seconds, news);
            }
            (Request::Poll, Answer::NoRoom) => {
                self.poll_at = now + self.jittered_poll() / 4;
            }
            (asked, other) => {
                self.failed(now, misfit(&other), news);
                if asked == Request::Poll {
                    self.poll_failed(now);
                }
            }
        }
    }

    /// It answers. That it can be read from says nothing about one that takes no push.
    fn heard(&mut self) {
        if !self.put_failed {
            self.failures = 0;
        }
    }

    /// It took a push, or said no to one.
    fn takes_pushes(&mut self) {
        self.put_failed = false;
        self.failures = 0;
    }

    /// The dataplane has this in force.
    fn holds(
        &mut self,
        now: Duration,
        generation: u64,
        version: Option<Version>,
        news: &mut Vec<News>,
    ) {
        // Content without a generation is not in force: a dataplane becomes ready with its first
        // snapshot, be it empty.
        let version = version.filter(|_| generation > 0);
        if Epoch::of(generation) > self.epoch {
            // Also if it is equal: what changes later need not wait then.
            let until = now + self.settings.overtaken_wait;
            let told = false;
            self.overtaken.get_or_insert(Overtaken { until, told });
        } else {
            self.overtaken = None;
        }
        self.held = Some(Held { generation, version });
        if let Some(version) = version {
            self.settled(generation, version, false, news);
        }
    }

    /// Our content is in force.
    fn settled(&mut self, generation: u64, version: Version, pushed: bool, news: &mut Vec<News>) {
        self.takes_pushes();
        self.conflicts = 0;
        self.refused = None;
        news.push(News::Acknowledged { generation, version, pushed });
    }

    /// The state tells what is in force and for how long.
    fn seen(&mut self, generation: u64, uptime_seconds: u64, news: &mut Vec<News>) {
        let restarted = self
            .uptime_seconds
            .replace(uptime_seconds)
            .is_some_and(|before| uptime_seconds < before);
        let lost = self.held.is_some_and(|held| held.generation > 0 && generation == 0);
        if restarted || lost {
            self.refused = None;
            news.push(News::Restarted);
        }
        if restarted || self.held.is_some_and(|held| held.generation != generation) {
            self.held = None;
        }
    }

    fn failed(&mut self, now: Duration, problem: String, news: &mut Vec<News>) {
        self.held = None;
        self.failures = self.failures.saturating_add(1);
        let wait = self.backoff(self.failures);
        self.failed_at = now;
        self.retry_at = now + wait;
        self.poll_at = self.poll_at.max(self.retry_at);
        news.push(News::Unreachable(Unreached {
            problem,
            failures: self.failures,
            pushing: self.put_failed,
            next_try: wait,
        }));
    }

    /// It is read from again soon, and if that goes well that is the end of it; but who has no
    /// state to tell is not asked for it at that pace.
    fn poll_failed(&mut self, now: Duration) {
        self.polls_failed = self.polls_failed.saturating_add(1);
        let wait = self.backoff(self.polls_failed);
        self.poll_at = self.poll_at.max(now + wait);
    }

    /// Doubles with each failure in a row up to the cap; between half and all of that, so that many
    /// do not come back together.
    fn backoff(&mut self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(20);
        let whole =
            self.settings.backoff_min.saturating_mul(1 << doublings).min(self.settings.backoff_max);
        whole.mul_f64(0.5 + self.rng.f64() / 2.0)
    }

    /// Within a tenth of the interval.
    fn jittered_poll(&mut self) -> Duration {
        self.poll_interval.mul_f64(0.9 + self.rng.f64() / 5.0)
    }

    /// Whether what is in force there has to be taken for a newer leader's. After the wait it is
    /// not, and our numbers go on in its epoch.
    fn is_foreign(&mut self, now: Duration, generation: u64, news: &mut Vec<News>) -> bool {
        let epoch = Epoch::of(generation);
        match &mut self.overtaken {
            Some(overtaken) if epoch > self.epoch && now < overtaken.until => {
                if !std::mem::replace(&mut overtaken.told, true) {
                    news.push(News::Overtaken { generation });
                }
                true
            }
            _ => {
                self.overtaken = None;
                self.epoch = self.epoch.max(epoch);
                false
            }
        }
    }

    fn next(&mut self, now: Duration, news: &mut Vec<News>) -> Option<Request> {
        if self.asked.is_some() || now < self.retry_at {
            return None;
        }
        let poll = (now >= self.poll_at).then_some(Request::Poll);
        let Some(wanted) = self.wanted else {
            return poll;
        };
        let Some(held) = self.held else {
            return Some(Request::Read);
        };
        let overdue = now >= self.poll_at + self.poll_interval * POLLS_PUT_OFF;
        if held.version == Some(wanted) || overdue {
            return poll;
        }
        if self.is_foreign(now, held.generation, news) {
            return poll;
        }
        if self.refused.is_some_and(|(version, until)| version == wanted && now < until) {
            return poll;
        }
        match generation_after(self.epoch, held.generation.max(self.tried)) {
            Some(generation) => {
                self.tried = generation;
                self.epoch = self.epoch.max(Epoch::of(generation));
                Some(Request::Put { generation, version: wanted })
            }
            None => {
                self.refused = Some((wanted, now + self.settings.refused_retry));
                news.push(News::Refused { version: wanted, refusal: exhausted() });
                poll
            }
        }
    }
}

fn misfit(answer: &Answer) -> String {
    format!("an answer that does not fit the request: {answer:?}")
}

/// There is no larger generation than the one that the dataplane has.
fn exhausted() -> Refusal {
    Refusal {
        policy: None,
        field: Some("generation".to_owned()),
        problem: format!("the dataplane has generation {}, and there is none above it", u64::MAX),
        expected: Some("a restart of the dataplane, which forgets it".to_owned()),
    }
}

#[cfg(test)]
mod orders;
#[cfg(test)]
mod tests;
