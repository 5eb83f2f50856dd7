//! One pod, configured or discovered: where its adopter goes, whether it has it, why not, and when
//! to try again. No I/O of its own.

use crate::{
    config::Pod,
    discovery::{Cause, Place, Unfit, WantedPod},
};
use baton_adopter::Attachment;
use baton_crds::PodMultipathTcp;
use std::time::{Duration, Instant};

/// A pod that starts has its interface within a second as a rule.
const RETRY_FIRST: Duration = Duration::from_millis(250);
/// A pod that fails for long costs one attempt in this time.
const RETRY_MOST: Duration = Duration::from_secs(15);
/// For so long after the API server said something new of a discovered pod, its processes are
/// looked for at each turn: the runtime needs a second or two between the first of them and the
/// last.
const EAGER_FOR: Duration = Duration::from_secs(10);
/// A pod that runs for longer than this without its adopter is late.
const SOON: Duration = Duration::from_millis(100);

/// A pod and its adopter.
#[derive(Debug)]
pub struct PodState {
    pub origin: Origin,
    /// Where the adopter is, or where it was last tried.
    pub place: Option<Place>,
    /// Multipath TCP was disabled in that namespace, or that failed.
    pub multipath: Option<Multipath>,
    pub adopter: AdopterState,
}

/// What became of Multipath TCP in a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Multipath {
    /// Its device and inode.
    pub netns: (u64, u64),
    /// It is disabled, or why not.
    pub done: Result<(), String>,
}

/// Who said that the pod shall have it.
#[derive(Debug)]
pub enum Origin {
    /// The configuration, with namespace and interface.
    Configured(Pod),
    /// The cluster.
    Discovered {
        wanted: WantedPod,
        eager_until: Instant,
        /// When the API server was first heard to say that it runs.
        runs_since: Option<Instant>,
        /// The API server has it no more.
        gone: bool,
        /// No policy is for it any more.
        unwanted: bool,
    },
}

/// When a discovered pod got its adopter, counted from the word that it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Before that word came.
    BeforeRunning,
    /// Soon enough for its first connections to be movable.
    Soon,
    /// The node is too busy, or something was in the way at first.
    Late,
}

impl When {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::BeforeRunning, Self::Soon, Self::Late];

    /// For metrics and people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BeforeRunning => "before_running",
            Self::Soon => "within_100_ms",
            Self::Late => "later",
        }
    }
}

/// Whether the pod has the adopter.
#[derive(Debug)]
pub enum AdopterState {
    /// It can adopt.
    Attached(Attachment),
    /// It cannot, and another attempt is due.
    Failed { reason: String, cause: Cause, attempts: u32, retry_at: Instant },
    /// Not tried yet.
    New,
}

impl PodState {
    pub fn configured(pod: Pod) -> Self {
        Self::new(Origin::Configured(pod))
    }

    pub fn discovered(wanted: WantedPod, now: Instant) -> Self {
        Self::new(Origin::Discovered {
            runs_since: wanted.pod.running.then_some(now),
            wanted,
            eager_until: now + EAGER_FOR,
            gone: false,
            unwanted: false,
        })
    }

    fn new(origin: Origin) -> Self {
        Self { origin, place: None, multipath: None, adopter: AdopterState::New }
    }

    pub fn name(&self) -> &str {
        match &self.origin {
            Origin::Configured(pod) => &pod.name,
            Origin::Discovered { wanted, .. } => &wanted.name,
        }
    }

    /// What is to be of Multipath TCP in its namespace.
    pub fn wants_multipath(&self) -> PodMultipathTcp {
        match &self.origin {
            Origin::Configured(pod) => pod.multipath,
            Origin::Discovered { wanted, .. } => wanted.multipath,
        }
    }

    /// Its namespace in Kubernetes, in front of its name.
    pub fn tenant(&self) -> Option<&str> {
        self.name().split_once('/').map(|(namespace, _)| namespace)
    }

    pub fn attachment(&self) -> Option<&Attachment> {
        match &self.adopter {
            AdopterState::Attached(attachment) => Some(attachment),
            _ => None,
        }
    }

    /// Whether the cluster has it end.
    pub fn is_ending(&self) -> bool {
        matches!(&self.origin, Origin::Discovered { wanted, .. } if wanted.pod.deleting)
    }

    /// Whether the API server has it no more.
    pub fn is_gone(&self) -> bool {
        matches!(self.origin, Origin::Discovered { gone: true, .. })
    }

    /// Whether no policy is for it any more.
    pub fn is_unwanted(&self) -> bool {
        matches!(self.origin, Origin::Discovered { unwanted: true, .. })
    }

    /// Whether the cluster has forgotten it, and its adopter stays as long as there is something to
    /// be on.
    pub fn stays_to_the_end(&self) -> bool {
        self.is_gone() && self.attachment().is_some()
    }

    /// What the cluster says of it now. Something new is worth an attempt at once.
    pub fn update(&mut self, news: WantedPod, now: Instant) {
        if let Origin::Discovered { wanted, eager_until, runs_since, .. } = &mut self.origin
            && *wanted != news
        {
            *wanted = news;
            if wanted.pod.running && runs_since.is_none() {
                *runs_since = Some(now);
            }
            *eager_until = now + EAGER_FOR;
            if let AdopterState::Failed { retry_at, .. } = &mut self.adopter {
                *retry_at = now;
            }
        }
    }

    /// For how long the API server has been heard to say that it runs.
    pub fn runs_for(&self, now: Instant) -> Option<Duration> {
        let Origin::Discovered { runs_since, .. } = &self.origin else {
            return None;
        };
        runs_since.map(|since| now.saturating_duration_since(since))
    }

    /// When it gets its adopter, if that is now; nothing for pods of the configuration, of which
    /// nobody says when they run.
    pub fn attached_at(&self, now: Instant) -> Option<When> {
        matches!(self.origin, Origin::Discovered { .. }).then(|| match self.runs_for(now) {
            None => When::BeforeRunning,
            Some(runs_for) if runs_for <= SOON => When::Soon,
            Some(_) => When::Late,
        })
    }

    /// Whether it is looked for at each turn.
    pub fn is_eager(&self, now: Instant) -> bool {
        let Origin::Discovered { wanted, eager_until, .. } = &self.origin else {
            return false;
        };
        wanted.obstacle.is_none() && now < *eager_until && self.attachment().is_none()
    }

    /// Whether an attempt is due.
    pub fn is_due(&self, now: Instant) -> bool {
        match &self.adopter {
            AdopterState::Attached(_) => false,
            AdopterState::Failed { retry_at, .. } => *retry_at <= now,
            AdopterState::New => true,
        }
    }

    /// Whether a predecessor's adopter may be on it, unknown to this process.
    pub fn is_unsure(&self) -> bool {
        let AdopterState::Failed { cause, .. } = &self.adopter else {
            return false;
        };
        matches!(cause, Cause::Waits | Cause::Trouble)
    }

    /// Whether that it has no adopter may be the shim's fault: not of pods that only start, nor of
    /// those that never have one.
    pub fn is_wrong(&self) -> bool {
        match (&self.adopter, &self.origin) {
            (AdopterState::Failed { cause, .. }, Origin::Discovered { wanted, .. }) => {
                *cause == Cause::Trouble && wanted.obstacle.is_none()
            }
            (AdopterState::Failed { .. }, Origin::Configured(_)) => true,
            _ => false,
        }
    }

    /// Notes a failure. Returns whether it is a new one, worth a line in the log.
    pub fn failed(&mut self, unfit: Unfit, now: Instant) -> bool {
        let (attempts, new) = match &self.adopter {
            AdopterState::Failed { attempts, reason, .. } => {
                (attempts.saturating_add(1), *reason != unfit.reason)
            }
            _ => (1, true),
        };
        let retry_at = if self.is_eager(now) { now } else { now + backoff(attempts) };
        // What is only not there yet is no news: pods start.
        let starts = matches!(unfit.cause, Cause::Absent | Cause::Waits);
        let news = new && !(starts && matches!(self.origin, Origin::Discovered { .. }));
        self.adopter =
            AdopterState::Failed { reason: unfit.reason, cause: unfit.cause, attempts, retry_at };
        news
    }
}

/// Doubles from the first to the longest.
fn backoff(attempts: u32) -> Duration {
    RETRY_FIRST
        .saturating_mul(1_u32.checked_shl(attempts.saturating_sub(1)).unwrap_or(u32::MAX))
        .min(RETRY_MOST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_adopter::{Error, Netns};
    use std::sync::Arc;

    fn missing(what: &str) -> Unfit {
        Unfit::from(&Error::InterfaceMissing {
            netns: "x".into(),
            interface: what.into(),
            present: "none".into(),
        })
    }

    fn wanted(running: bool) -> WantedPod {
        WantedPod {
            name: "shop/web-0".into(),
            pod: Arc::new(crate::discovery::NodePod { running, ..Default::default() }),
            obstacle: None,
            multipath: PodMultipathTcp::Unchanged,
        }
    }

    #[test]
    fn attempts_back_off_up_to_a_limit() {
        assert_eq!(backoff(1), RETRY_FIRST);
        assert_eq!(backoff(2), 2 * RETRY_FIRST);
        for attempts in [10, 31, 32, 33, 1_000] {
            assert_eq!(backoff(attempts), RETRY_MOST);
        }
    }

    #[test]
    fn the_same_failure_is_new_only_once() {
        let mut pod = PodState::configured(Pod {
            name: "a".into(),
            netns: Netns::Pid(1),
            interface: "eth0".into(),
            multipath: PodMultipathTcp::Unchanged,
        });
        let now = Instant::now();
        assert!(pod.is_due(now));
        assert!(pod.failed(missing("eth0"), now));
        assert!(!pod.failed(missing("eth0"), now));
        assert!(pod.failed(missing("eth1"), now));
        assert!(!pod.is_due(now));
        assert!(pod.is_due(now + RETRY_MOST));
    }

    #[test]
    fn a_discovered_pod_is_tried_at_each_turn_for_a_while_after_news() {
        let now = Instant::now();
        let mut pod = PodState::discovered(wanted(false), now);
        let absent = || Unfit { reason: "not started".into(), cause: Cause::Absent };
        assert!(!pod.failed(absent(), now), "pods start: no line in the log");
        assert!(pod.is_eager(now) && pod.is_due(now));
        let later = now + EAGER_FOR;
        assert!(!pod.is_eager(later));
        pod.failed(absent(), later);
        assert!(!pod.is_due(later));
        pod.update(wanted(false), later);
        assert!(!pod.is_due(later), "that was known");
        pod.update(wanted(true), later);
        assert!(pod.is_due(later) && pod.is_eager(later));
        // An obstacle is not looked for again and again.
        let hindered = WantedPod { obstacle: Some("hostNetwork"), ..wanted(true) };
        pod.update(hindered, later);
        assert!(!pod.is_eager(later));
    }

    #[test]
    fn a_pods_adopter_is_late_from_the_word_that_it_runs() {
        let heard = Instant::now();
        let later = |ms| heard + Duration::from_millis(ms);
        let mut pod = PodState::discovered(wanted(false), heard);
        assert_eq!(pod.attached_at(later(9_000)), Some(When::BeforeRunning));
        pod.update(wanted(true), later(9_000));
        assert_eq!(pod.attached_at(later(9_100)), Some(When::Soon));
        assert_eq!(pod.attached_at(later(9_101)), Some(When::Late));
        // Further news of a pod that runs do not begin anew.
        let mut other = wanted(true);
        other.obstacle = Some("hostNetwork");
        pod.update(other, later(9_200));
        assert_eq!(pod.attached_at(later(9_200)), Some(When::Late));
        // One that ran when it was first heard of.
        let pod = PodState::discovered(wanted(true), heard);
        assert_eq!(pod.attached_at(heard), Some(When::Soon));
        let pod = PodState::configured(Pod {
            name: "a".into(),
            netns: Netns::Pid(1),
            interface: "eth0".into(),
            multipath: PodMultipathTcp::Unchanged,
        });
        assert_eq!(pod.attached_at(heard), None);
    }

    #[test]
    fn what_follows_from_each_cause() {
        let now = Instant::now();
        for (cause, unsure, wrong) in [
            (Cause::Absent, false, false),
            (Cause::Waits, true, false),
            (Cause::Never, false, false),
            (Cause::Trouble, true, true),
        ] {
            let mut pod = PodState::discovered(wanted(true), now);
            assert!(!pod.is_unsure() && !pod.is_wrong(), "not tried yet");
            let reason = "why".to_owned();
            pod.failed(Unfit { reason, cause }, now);
            assert_eq!((pod.is_unsure(), pod.is_wrong()), (unsure, wrong), "{cause:?}");
        }
    }
}
