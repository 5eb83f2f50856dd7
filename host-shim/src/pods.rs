//! One configured pod: whether it has the adopter, since when, why not, and when to try again. No I/O of its own.

use crate::config::Pod;
use baton_adopter::{Attachment, Error};
use std::time::{Duration, Instant};

/// A pod that starts has its interface within a second as a rule.
const RETRY_FIRST: Duration = Duration::from_millis(250);
/// A pod that fails for long costs one attempt in this time.
const RETRY_MOST: Duration = Duration::from_secs(15);

/// A configured pod and its adopter.
#[derive(Debug)]
pub struct PodState {
    pub pod: Pod,
    pub adopter: AdopterState,
}

/// Whether the pod has the adopter.
#[derive(Debug)]
pub enum AdopterState {
    /// It can adopt.
    Attached {
        attachment: Attachment,
        /// [`Netns::identity`](baton_adopter::Netns::identity) when it was attached.
        identity: (u64, u64),
    },
    /// It cannot, and another attempt is due.
    Failed {
        reason: String,
        /// The interface or namespace is not there at all, so nothing of ours can be on it.
        absent: bool,
        attempts: u32,
        retry_at: Instant,
    },
    /// Not tried yet.
    New,
}

impl PodState {
    pub fn new(pod: Pod) -> Self {
        Self {
            pod,
            adopter: AdopterState::New,
        }
    }

    pub fn attachment(&self) -> Option<&Attachment> {
        match &self.adopter {
            AdopterState::Attached { attachment, .. } => Some(attachment),
            _ => None,
        }
    }

    /// Whether an attempt is due.
    pub fn is_due(&self, now: Instant) -> bool {
        match &self.adopter {
            AdopterState::Attached { .. } => false,
            AdopterState::Failed { retry_at, .. } => *retry_at <= now,
            AdopterState::New => true,
        }
    }

    /// Notes a failure. Returns whether it is a new one, worth a line in the log.
    pub fn failed(&mut self, error: &Error, now: Instant) -> bool {
        let text = error.to_string();
        let (attempts, new) = match &self.adopter {
            AdopterState::Failed {
                attempts, reason, ..
            } => (attempts + 1, *reason != text),
            _ => (1, true),
        };
        self.adopter = AdopterState::Failed {
            reason: text,
            absent: matches!(
                error,
                Error::NetnsMissing { .. }
                    | Error::InterfaceMissing { .. }
                    | Error::NotEthernet { .. }
            ),
            attempts,
            retry_at: now + backoff(attempts),
        };
        new
    }
}

/// Doubles from the first to the longest.
fn backoff(attempts: u32) -> Duration {
    RETRY_FIRST
        .saturating_mul(
            1_u32
                .checked_shl(attempts.saturating_sub(1))
                .unwrap_or(u32::MAX),
        )
        .min(RETRY_MOST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_adopter::Netns;

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
        let mut pod = PodState::new(Pod {
            name: "a".into(),
            netns: Netns::Pid(1),
            interface: "eth0".into(),
        });
        let now = Instant::now();
        assert!(pod.is_due(now));
        let missing = |what: &str| Error::InterfaceMissing {
            netns: "x".into(),
            interface: what.into(),
            present: "none".into(),
        };
        assert!(pod.failed(&missing("eth0"), now));
        assert!(!pod.failed(&missing("eth0"), now));
        assert!(pod.failed(&missing("eth1"), now));
        assert!(!pod.is_due(now));
        assert!(pod.is_due(now + RETRY_MOST));
    }
}
