//! Whom a pusher talks to and at which pace.

use std::{net::SocketAddr, time::Duration};

/// Dataplanes and shims at one time: one each per node of a cluster of the largest size that
/// Kubernetes supports (5,000), and a fifth more while they are replaced.
pub const LIMIT_TARGETS: usize = 12_000;

/// Reports that wait to be read. Tasks hold back (and renew) what does not fit, so this bounds
/// memory and nothing else.
pub const LIMIT_REPORTS: usize = 256;

/// One control API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Where it listens.
    pub address: SocketAddr,
    /// What it is.
    pub kind: TargetKind,
}

/// What listens there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// Is kept at the content of a class and polled.
    Dataplane {
        /// Name of the class, as in [`super::Pusher::publish`].
        class: String,
    },
    /// Is polled, and gets its node's adoption keys.
    Shim {
        /// Of its Pod, as the API server has it.
        node: String,
    },
}

/// Paces and patience.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time between two looks at `/v1/state`, within a tenth.
    pub poll_interval: Duration,
    /// The same for shims, of which there is one per node, and whose news is not urgent.
    pub shim_poll_interval: Duration,
    /// A look may take this share of the time, one in so many, so that large states do not eat a
    /// processor.
    pub poll_share: u32,
    /// A connection, TLS included, that is not there after this long has failed.
    pub connect_timeout: Duration,
    /// A request without an answer after this long has failed. Longer than the 10 s in which a
    /// dataplane gives up on itself.
    pub request_timeout: Duration,
    /// Wait after the first failure; doubled with each further one.
    pub backoff_min: Duration,
    /// Longest wait after a failure.
    pub backoff_max: Duration,
    /// A refused snapshot is offered again after this long if nothing else changed: the dataplane's
    /// configuration may have.
    pub refused_retry: Duration,
    /// A dataplane that has other content of a later epoch belongs to a newer leader, or the Lease
    /// was made anew. Who still runs after this long, longer than a lease lasts without renewal, is
    /// the leader and goes above. Zero where there is no election.
    pub overtaken_wait: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_secs(2),
            shim_poll_interval: Duration::from_secs(10),
            poll_share: 10,
            connect_timeout: Duration::from_secs(3),
            request_timeout: Duration::from_secs(12),
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_secs(10),
            refused_retry: Duration::from_secs(60),
            overtaken_wait: Duration::from_secs(20),
        }
    }
}
