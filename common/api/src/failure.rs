//! What a policy says about backends that fail, drain or come up.

use crate::{Micros, StatusRange};
use serde::{Deserialize, Serialize};

/// What happens to the flows of a backend that died, and to a request whose fate is unknown (its
/// backend may or may not have executed it). A request that no backend can have seen is always sent
/// to another one, but with `Reset`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BackendFailure {
    /// Flows go on elsewhere. Requests that the protocol calls idempotent (RFC 9110 section 9.2.2;
    /// reading commands of `RESP` and `Memcached`) are executed once more; the client of any other
    /// is reset.
    #[default]
    ReplayIdempotent,
    /// Flows go on elsewhere, any request is executed once more: the admin asserts that this does
    /// no harm.
    Replay,
    /// Flows without an outstanding request go on elsewhere; the client of any other is reset.
    AdoptIdleOnly,
    /// Nothing goes on: the backend's close or reset reaches the client.
    Reset,
}

/// What happens to a request that lies unread in the kernel of a pod whose application answers
/// nothing: stopped, throttled, in garbage collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnStall {
    /// The pod's host-shim is asked to let go of it, and another pod answers it. What the
    /// application has begun to read stays.
    #[default]
    Release,
    /// It waits.
    Wait,
}

/// How flows leave a draining backend. Each moves with its next request; one without goes after a
/// quiet time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Drain {
    /// A flow at rest that has been quiet this long moves without waiting for a request.
    pub quiet: Micros,
    /// Flows that are still there this long after the drain began meet `onDeadline`.
    pub deadline: Micros,
    /// What then happens to them.
    pub on_deadline: OnDeadline,
}

/// What happens to flows that have not left a draining backend by the deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnDeadline {
    /// They stay until they move or end.
    #[default]
    Wait,
    /// They are closed: in order where they are at rest; what is in progress is cut off 5 s later.
    Close,
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            quiet: Micros::from_millis(100),
            // Kubernetes' terminationGracePeriodSeconds, less some room.
            deadline: Micros::from_secs(25),
            on_deadline: OnDeadline::Wait,
        }
    }
}

/// How backends that do not work are found and avoided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Health {
    /// Asks each backend at intervals; without it only traffic tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<ActiveCheck>,
    /// Failures in a row (refused connections, unanswered segments, response timeouts) that eject a
    /// backend; 0 is never.
    pub failure_threshold: u32,
    /// How long the first ejection lasts; each further one lasts that much longer, up to ten times.
    pub base_ejection_time: Micros,
    /// Share of a policy's backends that failures may eject at one time.
    pub max_ejected_percent: u8,
    /// With a smaller share of usable backends than this, all are used (panic mode); 0 is never.
    pub panic_percent: u8,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            active: None,
            failure_threshold: 5,
            base_ejection_time: Micros::from_secs(10),
            max_ejected_percent: 34,
            panic_percent: 25,
        }
    }
}

/// Asks each backend whether it works. The first answer after a start decides by itself, later ones
/// by the thresholds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ActiveCheck {
    /// A path to `GET`; without one, that a connection can be opened is enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// `Host` of that request; the backend's address and port if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Status codes that mean healthy, as `200` or `200-299`.
    #[serde(default = "success")]
    pub expect: Vec<StatusRange>,
    /// Port to ask, the backend's own if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Time between two checks of one backend.
    #[serde(default = "check_interval")]
    pub interval: Micros,
    /// Largest random part added to each interval, in per cent of it.
    #[serde(default = "check_jitter")]
    pub jitter_percent: u8,
    /// A check that takes longer has failed. At most 10 s.
    #[serde(default = "check_timeout")]
    pub timeout: Micros,
    /// Successes in a row that make a backend healthy.
    #[serde(default = "check_healthy")]
    pub success_threshold: u32,
    /// Failures in a row that make it unhealthy.
    #[serde(default = "check_unhealthy")]
    pub failure_threshold: u32,
}

impl ActiveCheck {
    /// Whether an answer with this status code means healthy.
    #[must_use]
    pub fn expects(&self, code: u16) -> bool {
        self.expect.iter().any(|range| range.contains(code))
    }
}

fn success() -> Vec<StatusRange> {
    StatusRange::new(200, 399).into_iter().collect()
}

fn check_interval() -> Micros {
    Micros::from_secs(5)
}

fn check_jitter() -> u8 {
    10
}

fn check_timeout() -> Micros {
    Micros::from_secs(1)
}

fn check_healthy() -> u32 {
    2
}

fn check_unhealthy() -> u32 {
    3
}
