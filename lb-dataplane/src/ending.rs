//! The end that was asked for: the connections that there are go on for a while, and nobody new
//! shall be sent here.
//!
//! Owns when it is over. New connections are served until then: who sends them has not heard yet,
//! and refusing them would be an error to their clients.
//!
//! # Decisions
//!
//! - **A dataplane that shall end serves on**: not ready from SIGTERM on, it keeps its connections,
//!   and takes new ones from who has not heard yet, until none is left or the grace period is over.
//!   Flows are not handed to another dataplane: its table is its own.
//! - **Legs are closed before it ends**: pods' servers would keep connections that nobody ends any
//!   more, as those on which the next client was waited for (`migration.legs: Shared`), until their
//!   own idle time-out, if they have one.

use crate::control::{Control, Left};
use std::{sync::atomic::Ordering, time::Duration};
use tokio::time::{Instant, sleep};
use tracing::info;

/// Not before this, even without connections: a load balancer in front needs a moment to hear that
/// this one is not ready.
const HEARD: Duration = Duration::from_secs(5);
/// Between two looks at how many connections are left.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Legs that clients have left may take so long to close, once no client is left: one that waits
/// for the next client does so for 1.5 s. A pod that does not close its side has been told.
const LEGS_LIMIT: Duration = Duration::from_secs(3);

/// An end under way.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    heard: Instant,
    deadline: Instant,
}

impl Ending {
    /// Begins it: not ready from now on.
    pub fn begin(control: &Control, grace: Duration) -> Self {
        control.facts.ending.store(true, Ordering::Relaxed);
        let now = Instant::now();
        info!(
            grace_seconds = grace.as_secs(),
            "ending: not ready any more; connections go on until they end or the grace period does. A second signal ends at once"
        );
        Self { heard: now + HEARD.min(grace), deadline: now + grace }
    }

    /// Waits until there is no connection left, or no time.
    pub async fn over(self, control: &Control) {
        let mut rest = Rest { alone_since: None };
        loop {
            let now = Instant::now();
            let left = control.left().await;
            if now >= self.deadline {
                info!(flows = left.map(|left| left.flows), "the grace period is over");
                return;
            }
            if now >= self.heard && rest.is_over(now, left) {
                info!("no connection is left");
                return;
            }
            sleep(LOOK_EVERY.min(self.deadline - now)).await;
        }
    }
}

/// The time without clients.
struct Rest {
    alone_since: Option<Instant>,
}

impl Rest {
    /// Whether there is nothing to wait for.
    fn is_over(&mut self, now: Instant, left: Option<Left>) -> bool {
        let Some(Left { flows: 0, legs }) = left else {
            self.alone_since = None;
            return false;
        };
        let since = *self.alone_since.get_or_insert(now);
        legs == 0 || now >= since + LEGS_LIMIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn legs_are_waited_for_but_not_for_ever() {
        let start = Instant::now();
        let mut rest = Rest { alone_since: None };
        let mut at = |ms, flows, legs| {
            let left = Some(Left { flows, legs });
            rest.is_over(start + Duration::from_millis(ms), left)
        };
        assert!(!at(0, 1, 0));
        assert!(!at(1_000, 0, 9));
        assert!(!at(3_999, 0, 1));
        assert!(at(3_999, 0, 0), "all are closed");
        assert!(at(4_000, 0, 1), "one has been told");
        // Somebody came.
        assert!(!at(5_000, 1, 1));
        assert!(!at(6_000, 0, 1));
        assert!(at(9_000, 0, 1));
        assert!(!rest.is_over(start, None), "nobody answers");
    }
}
