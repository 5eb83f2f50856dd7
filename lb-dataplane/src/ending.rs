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

use crate::control::Control;
use std::{sync::atomic::Ordering, time::Duration};
use tokio::time::{Instant, sleep};
use tracing::info;

/// Not before this, even without connections: a load balancer in front needs a moment to hear that
/// this one is not ready.
const HEARD: Duration = Duration::from_secs(5);
/// Between two looks at how many connections are left.
const LOOK_EVERY: Duration = Duration::from_millis(250);

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
        Self {
            heard: now + HEARD.min(grace),
            deadline: now + grace,
        }
    }

    /// Waits until there is no connection left, or no time.
    pub async fn over(self, control: &Control) {
        loop {
            let now = Instant::now();
            if now >= self.deadline {
                let left = control.flows().await;
                info!(?left, "the grace period is over");
                return;
            }
            if now >= self.heard && control.flows().await == Some(0) {
                info!("no connection is left");
                return;
            }
            sleep(LOOK_EVERY.min(self.deadline - now)).await;
        }
    }
}
