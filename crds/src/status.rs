//! What the operator answers to a `LoadBalancerPolicy`.
//!
//! Owns the figures and their bounds: no status grows with the number of pods or connections.

use crate::{
    Condition,
    condition::{CONDITIONS_MAX, date_time},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Backends in one status: about 20 KiB of it. The rest is in the metrics.
pub const STATUS_BACKENDS_MAX: usize = 64;
/// Drains in one status.
pub const STATUS_DRAINS_MAX: usize = 64;
/// Classes in one status.
pub const STATUS_CLASSES_MAX: usize = 16;
/// Addresses in one status: both families, inside and outside, of a few ports.
pub const STATUS_ADDRESSES_MAX: usize = 16;
/// Reasons for flows that cannot move: there are fewer in all protocols together.
pub const STATUS_PINNED_MAX: usize = 32;

/// What became of the policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerPolicyStatus {
    /// The `metadata.generation` that all of this is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`, `Accepted`, `Programmed`, `Adoptable`, `Degraded`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = CONDITIONS_MAX),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]),
    )]
    pub conditions: Vec<Condition>,
    /// Where clients connect, as `192.0.2.1:80`: those from outside of the cluster first. Only of
    /// `spec.frontend` and of `spec.listeners[].addresses`; at most 16.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = STATUS_ADDRESSES_MAX),
        inner(length(max = 261)),
        extend("x-kubernetes-list-type" = "atomic"),
    )]
    pub addresses: Vec<String>,
    /// What became of `spec.frontend`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frontend: Option<FrontendStatus>,
    /// Pods that are ready, of all that the Service has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backends: Option<Count>,
    /// Dataplanes that serve the present generation, of all that should.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataplanes: Option<Count>,
    /// Connections at this moment, on all dataplanes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flows: Option<i64>,
    /// Moves from one pod to another since the dataplanes started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migrations: Option<i64>,
    /// Connections that outlived their pod since the dataplanes started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rescued: Option<i64>,
    /// Connections that ended because of a pod's death since the dataplanes started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<i64>,
    /// Moves that were taken back, because the other pod refused, since the dataplanes started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollbacks: Option<i64>,
    /// Requests that were executed, or may have been, and were sent again since the dataplanes
    /// started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replays: Option<i64>,
    /// When the figures were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub figures_time: Option<Time>,
    /// The classes of dataplanes that serve it; at most 16.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = STATUS_CLASSES_MAX),
        inner(length(max = 253)),
        extend("x-kubernetes-list-type" = "atomic"),
    )]
    pub classes: Vec<String>,
    /// The pods with the most flows, those first; at most 64.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = STATUS_BACKENDS_MAX),
        extend("x-kubernetes-list-type" = "atomic"),
    )]
    pub backend_figures: Vec<BackendFigures>,
    /// Pods that are not among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backends_not_shown: Option<i32>,
    /// What all drains came to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drained: Option<Drained>,
    /// The drains in progress together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draining: Option<Draining>,
    /// The pods that drain, those with the most flows left first; at most 64.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = STATUS_DRAINS_MAX),
        extend("x-kubernetes-list-type" = "atomic"),
    )]
    pub drains: Vec<DrainFigures>,
    /// Flows at this moment that can move.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub movable: Option<Movable>,
    /// Flows at this moment that can never move, by reason, most flows first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = STATUS_PINNED_MAX),
        extend("x-kubernetes-list-type" = "atomic"),
    )]
    pub pinned: Vec<PinnedFlows>,
}

/// What became of a frontend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FrontendStatus {
    /// Its Service.
    #[schemars(length(max = 63))]
    pub service: String,
    /// Where its EndpointSlices lead: `Dataplanes`; `Pods` as long as no dataplane is ready;
    /// `Nowhere` as long as the Service is not this policy's, or no dataplane is ready for pods
    /// that expect a header (`clientAddress: ProxyV2`).
    pub leads_to: LeadsTo,
    /// The dataplanes' ports behind its ports. An operator that starts anew goes on with these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["listener"]),
    )]
    pub ports: Vec<FrontendPort>,
}

/// Where a frontend leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LeadsTo {
    /// To dataplanes.
    Dataplanes,
    /// Past them.
    Pods,
    /// Nowhere by this policy.
    Nowhere,
}

/// A port of the dataplanes behind one of a frontend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FrontendPort {
    /// The listener.
    #[schemars(length(max = 15))]
    pub listener: String,
    /// The dataplanes' port.
    #[schemars(range(min = 1, max = 65_535))]
    pub port: i32,
}

/// How many of how many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Count {
    /// How many are as they should be.
    #[schemars(range(min = 0))]
    pub ready: i32,
    /// How many there are.
    #[schemars(range(min = 0))]
    pub total: i32,
    /// Both for people, as `2/3`.
    #[schemars(length(max = 32))]
    pub summary: String,
}

impl Count {
    /// `ready` of `total`.
    #[must_use]
    pub fn new(ready: i32, total: i32) -> Self {
        let summary = format!("{ready}/{total}");
        Self { ready, total, summary }
    }
}

/// Flows that can move: they are not pinned, and another pod takes them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Movable {
    /// How many have a pod to go to that adopts.
    #[schemars(range(min = 0))]
    pub by_adoption: i64,
    /// How many more have one to go to by translation.
    #[schemars(range(min = 0))]
    pub by_translation: i64,
    /// Both in per cent of all flows, for people, as `93%`; `-` where there is no flow.
    #[schemars(length(max = 8))]
    pub percent: String,
}

impl Movable {
    /// Both, of `total` flows: in whole per cent, rounded down.
    #[must_use]
    pub fn new(by_adoption: u64, by_translation: u64, total: u64) -> Self {
        let shown = |flows: u64| i64::try_from(flows).unwrap_or(i64::MAX);
        let both = u128::from(by_adoption) + u128::from(by_translation);
        let percent = (both * 100).checked_div(u128::from(total));
        Self {
            by_adoption: shown(by_adoption),
            by_translation: shown(by_translation),
            percent: percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent}%")),
        }
    }
}

/// One pod's figures, summed over the dataplanes. What no dataplane has said is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackendFigures {
    /// The listener that it serves.
    #[schemars(length(max = 15))]
    pub listener: String,
    /// The pod, or the address where no pod is known.
    #[schemars(length(min = 1, max = 260))]
    pub name: String,
    /// Where it listens, as `10.0.0.1:8080`.
    #[schemars(length(max = 64))]
    pub endpoint: String,
    /// `Ready`, `NotReady` or `Draining`.
    #[schemars(length(max = 32))]
    pub state: String,
    /// Why dataplanes give it no flows, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub unusable: Option<String>,
    /// Why it does not adopt, if so: flows move to it by translation, unless
    /// `migration.method: Adoption`, or `untranslatable` says why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub unadoptable: Option<String>,
    /// Why no flow moves to it by translation, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub untranslatable: Option<String>,
    /// Its share of new flows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65_535))]
    pub weight: Option<i32>,
    /// Flows that it owns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub flows: Option<i64>,
    /// Those of them that can never move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub pinned: Option<i64>,
    /// Requests that it has not begun to answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub outstanding: Option<i64>,
    /// Flows that came by migration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub migrations_in: Option<i64>,
    /// Flows that left by migration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub migrations_out: Option<i64>,
    /// Flows that died here and went on elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub rescued: Option<i64>,
}

/// What drains came to, in flows, since the dataplanes started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drained {
    /// Flows that moved to other pods.
    #[schemars(range(min = 0))]
    pub moved: i64,
    /// Flows that ended by themselves.
    #[schemars(range(min = 0))]
    pub ended: i64,
    /// Flows that the deadline closed in order.
    #[schemars(range(min = 0))]
    pub closed: i64,
}

/// All drains in progress.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Draining {
    /// Pods that drain.
    #[schemars(range(min = 0))]
    pub backends: i32,
    /// Flows that are still there.
    #[schemars(range(min = 0))]
    pub waiting: i64,
    /// By when the last of them meet `drain.onDeadline`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub by: Option<Time>,
}

/// How far one pod's drain is: what became of its flows, what is left, by when it ends. What no
/// dataplane has said is left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainFigures {
    /// The listener that it serves.
    #[schemars(length(max = 15))]
    pub listener: String,
    /// The pod.
    #[schemars(length(min = 1, max = 260))]
    pub backend: String,
    /// Flows that moved to other pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub moved: Option<i64>,
    /// Flows that ended by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ended: Option<i64>,
    /// Flows that the deadline closed in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub closed: Option<i64>,
    /// Flows whose client was reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub reset: Option<i64>,
    /// Flows that are still there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub waiting: Option<i64>,
    /// What they wait for, as `3 pinned: upgrade, 29 request in progress`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub waiting_for: Option<String>,
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub since: Option<Time>,
    /// By when the flows have left or meet `drain.onDeadline`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub by: Option<Time>,
}

/// Flows that cannot move, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PinnedFlows {
    /// What was seen on them, as `upgrade` or `TLS`.
    #[schemars(length(min = 1, max = 128))]
    pub reason: String,
    /// How many.
    #[schemars(range(min = 0))]
    pub flows: i64,
}
