//! What a policy says about moving, draining, failing and silent flows.
//!
//! Owns the fields that a dataplane reads as they are: the same names, words and defaults as in its
//! snapshot.

use crate::{
    Duration, StatusCodes,
    rules::{forbidden, invalid, up_to, within},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Moves per second that can be asked for: far above what one dataplane can do, far below where a
/// counter would wrap.
const MOVES_PER_SECOND_MAX: i32 = 1_000_000;

/// When flows move to another backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Migration {
    /// Whether and when. `Always`: at every request, to the next backend, for tests and
    /// measurements. `WhenBetter`: at a request, when that gains more than a move costs: off a
    /// backend that waits far longer than the others or stalls, to one that came or came back, to a
    /// shorter queue where backends are unevenly busy, and, for at most 2 of 1,000 requests, off
    /// one where the mean wait is lastingly longer. `DrainOnly`: flows stay, but for those of a
    /// backend that drains or died. `Never`: those of a draining backend stay too, and those of a
    /// dead one go on as `onBackendFailure` says.
    pub mode: MigrationMode,
    /// How another pod takes a connection over. `Adoption`: the pod's kernel makes a socket with
    /// the connection's sequence numbers; it needs Linux 6.9 or newer and host-shim on the pod's
    /// node, and a listener that is plain TCP. `Translation`: the dataplane opens a connection to
    /// the pod and shifts sequence numbers from then on; that works with every pod, and a move
    /// takes one round trip to the pod longer. `Auto`: by adoption where the pod adopts, by
    /// translation elsewhere.
    pub method: MoveMethod,
    /// Whose connection to a pod is the one that its client's connection leaves. `Private`: nobody
    /// else's, it is closed. `Shared`: the next client's of this policy whose request goes to that
    /// pod, as with the connection pools of layer-7 proxies: a move then costs the pod no accept
    /// and no close. Only with `protocol` `HTTP1`, `RESP` or `Memcached`; a pod must read requests
    /// as RFC 9112 says, since what it takes for the rest of one client's request is read in front
    /// of another's.
    pub legs: Legs,
    /// With `WhenBetter`, in calm: move only if the mean wait here is at least this many per cent
    /// of that at the other backend.
    #[schemars(range(min = 100, max = 10_000))]
    pub ratio_percent: i32,
    /// With `WhenBetter`: move to a shorter queue only if the expected wait falls by at least this
    /// much.
    #[schemars(extend("x-kubernetes-validations" = up_to("1h")))]
    pub gain: Duration,
    /// A flow rests this long after a move, unless its new backend is distressed.
    #[schemars(extend("x-kubernetes-validations" = up_to("1h")))]
    pub cooldown: Duration,
    /// Moves of one flow in its life; 0 is no limit. Moves because of its backend's death are not
    /// limited.
    #[schemars(range(min = 0, max = 65_535))]
    pub per_flow: i32,
    /// Moves per second of one listener's flows onto one backend, on one dataplane; 0 is no limit.
    #[schemars(range(min = 0, max = MOVES_PER_SECOND_MAX))]
    pub per_backend_per_second: i32,
    /// Moves per second of one listener's flows on one dataplane; 0 is no limit.
    #[schemars(range(min = 0, max = MOVES_PER_SECOND_MAX))]
    pub per_second: i32,
}

/// Whether and when flows move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MigrationMode {
    /// At every boundary, to the next backend.
    Always,
    /// At a boundary, when that gains more than a move costs.
    #[default]
    WhenBetter,
    /// Only off a backend that drains or died.
    DrainOnly,
    /// Not even off a draining backend.
    Never,
}

/// Whose a connection to a pod is that its client's connection leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Legs {
    /// Nobody else's.
    #[default]
    Private,
    /// The next client's that goes to the pod.
    Shared,
}

/// How another pod takes a connection over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MoveMethod {
    /// By adoption where the pod adopts, by translation elsewhere.
    #[default]
    Auto,
    /// By adoption only; pods that do not adopt take no connection that is open already.
    Adoption,
    /// By translation only.
    Translation,
}

impl Default for Migration {
    fn default() -> Self {
        Self {
            mode: MigrationMode::WhenBetter,
            method: MoveMethod::Auto,
            legs: Legs::Private,
            ratio_percent: 150,
            gain: "300us".into(),
            cooldown: "5ms".into(),
            per_flow: 0,
            per_backend_per_second: 0,
            per_second: 0,
        }
    }
}

/// How flows leave a draining backend. Each moves with its next request; one without goes after a
/// quiet time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = json!([forbidden(
    "self.onDeadline != 'Close' || duration(self.quiet) <= duration(self.deadline)",
    ".quiet",
    "is longer than the deadline, which would close flows at rest before they may move: expected at most drain.deadline, or onDeadline: Wait",
)])))]
pub struct Drain {
    /// A flow at rest that has been quiet this long moves without waiting for a request; with
    /// protocol `RequestResponse`, which says of no answer that it is over, 1s at least.
    #[schemars(extend("x-kubernetes-validations" = up_to("1h")))]
    pub quiet: Duration,
    /// Flows that are still there this long after the drain began meet `onDeadline`. It should end
    /// before the pods' `terminationGracePeriodSeconds`.
    #[schemars(extend("x-kubernetes-validations" = up_to("24h")))]
    pub deadline: Duration,
    /// What then happens to them. `Wait`: they stay until they move or end. `Close`: they are
    /// closed, in order where they are at rest.
    pub on_deadline: OnDeadline,
}

/// What happens to flows that have not left a draining backend by the deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnDeadline {
    /// They stay until they move or end.
    #[default]
    Wait,
    /// They are closed: in order where they are at rest; what is in progress is cut off 5 s later.
    Close,
}

impl Default for Drain {
    fn default() -> Self {
        Self { quiet: "100ms".into(), deadline: "25s".into(), on_deadline: OnDeadline::Wait }
    }
}

/// What happens to the flows of a backend that died, and to a request whose fate is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BackendFailure {
    /// Flows go on elsewhere; what the protocol calls idempotent is executed once more.
    #[default]
    ReplayIdempotent,
    /// Flows go on elsewhere; any request is executed once more.
    Replay,
    /// Flows at rest go on elsewhere; the client of any other is reset.
    AdoptIdleOnly,
    /// The backend's close or reset reaches the client.
    Reset,
}

/// What happens to a request that lies unread in the kernel of a pod whose application answers
/// nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnStall {
    /// The pod lets go of it, and another one answers it.
    #[default]
    Release,
    /// It waits.
    Wait,
}

/// How backends that do not work are found and avoided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Health {
    /// Asks each backend at intervals; without it only traffic tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<ActiveCheck>,
    /// Failures in a row (refused connections, unanswered segments, response timeouts) that eject a
    /// backend; 0 is never.
    #[schemars(range(min = 0, max = 1_000))]
    pub failure_threshold: i32,
    /// How long the first ejection lasts; each further one lasts that much longer, up to ten times.
    #[schemars(extend("x-kubernetes-validations" = within("100ms", "1h")))]
    pub base_ejection_time: Duration,
    /// Share of the backends, in per cent, that failures may eject at one time, rounded down: with
    /// less than 50 none of two.
    #[schemars(range(min = 0, max = 100))]
    pub max_ejected_percent: i32,
    /// With a smaller share of usable backends than this, in per cent, all are used (panic mode); 0
    /// is never.
    #[schemars(range(min = 0, max = 100))]
    pub panic_percent: i32,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            active: None,
            failure_threshold: 5,
            base_ejection_time: "10s".into(),
            max_ejected_percent: 34,
            panic_percent: 25,
        }
    }
}

/// Asks each backend whether it works. The first answer after a start decides by itself, later ones
/// by the thresholds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = json!([
    forbidden(
        "!has(self.host) || has(self.path)",
        ".host",
        "means nothing without `path`: expected a path to GET, or no host",
    ),
    forbidden(
        "duration(self.timeout) <= duration(self.interval)",
        ".timeout",
        "is longer than the interval: expected at most health.active.interval, so that one check ends before the next",
    ),
])))]
pub struct ActiveCheck {
    /// A path to `GET`; without one, that a connection can be opened is enough. Visible ASCII, the
    /// rest as `%20`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = crate::text::PATH))]
    pub path: Option<String>,
    /// `Host` of that request, as `example.org` or `example.org:8080`; the backend's address and
    /// port if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = crate::text::HOST))]
    pub host: Option<String>,
    /// Status codes that mean healthy, each `"200"` or `200-299`.
    #[schemars(
        length(min = 1, max = 16),
        extend("items" = expected_codes(), "x-kubernetes-list-type" = "atomic"),
    )]
    pub expect: Vec<StatusCodes>,
    /// Port to ask, the backend's own if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub port: Option<i32>,
    /// Time between two checks of one backend.
    #[schemars(extend("x-kubernetes-validations" = within("100ms", "1h")))]
    pub interval: Duration,
    /// Largest random part added to each interval, in per cent of it.
    #[schemars(range(min = 0, max = 100))]
    pub jitter_percent: i32,
    /// A check that takes longer has failed.
    #[schemars(extend("x-kubernetes-validations" = within("1ms", "10s")))]
    pub timeout: Duration,
    /// Successes in a row that make a backend healthy.
    #[schemars(range(min = 1, max = 100))]
    pub success_threshold: i32,
    /// Failures in a row that make it unhealthy.
    #[schemars(range(min = 1, max = 100))]
    pub failure_threshold: i32,
}

impl Default for ActiveCheck {
    fn default() -> Self {
        Self {
            path: None,
            host: None,
            expect: vec![StatusCodes("200-399".to_owned())],
            port: None,
            interval: "5s".into(),
            jitter_percent: 10,
            timeout: "1s".into(),
            success_threshold: 2,
            failure_threshold: 3,
        }
    }
}

/// Status codes whose range has an order. Three digits each, so the order of the texts is that of
/// the numbers.
fn expected_codes() -> serde_json::Value {
    let mut schema = StatusCodes::json_schema(&mut schemars::SchemaGenerator::default());
    schema.insert(
        "x-kubernetes-validations".to_owned(),
        json!([invalid(
            "self.size() != 7 || self.substring(0, 3) <= self.substring(4, 7)",
            "ends before it begins: expected the lower code first, as 200-299",
        )]),
    );
    schema.to_value()
}

/// Silence after which a flow is forgotten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Timeouts {
    /// No segment in either direction on an open flow.
    #[schemars(extend("x-kubernetes-validations" = within("100ms", "168h")))]
    pub idle: Duration,
    /// The handshake is not finished.
    #[schemars(extend("x-kubernetes-validations" = within("100ms", "168h")))]
    pub handshake: Duration,
    /// One side closed, the other does not.
    #[schemars(extend("x-kubernetes-validations" = within("100ms", "168h")))]
    pub half_closed: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { idle: "8000s".into(), handshake: "63s".into(), half_closed: "300s".into() }
    }
}
