//! `BatonDataplane`: a class of dataplanes, which all get the same snapshot.
//!
//! Cluster-scoped: dataplane pods are the cluster's infrastructure, policies of many namespaces
//! share them.

use crate::{
    Allowance, Condition, Count,
    allowance::{allowed, port_range},
    condition::CONDITIONS_MAX,
    rules::forbidden,
    text::label_map_some,
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// Dataplanes in one status. The rest is in the metrics.
pub const STATUS_INSTANCES_MAX: usize = 64;

/// Which pods form a class of dataplanes.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "baton.dev",
    version = "v1alpha1",
    kind = "BatonDataplane",
    plural = "batondataplanes",
    shortname = "bdp",
    category = "networking",
    status = "BatonDataplaneStatus",
    derive = "PartialEq",
    doc = "A class of dataplanes: pods that all serve the same policies.",
    printcolumn = r#"{"name": "Default", "type": "boolean", "jsonPath": ".spec.default", "description": "Whether policies without a selector use it"}"#,
    printcolumn = r#"{"name": "Dataplanes", "type": "string", "jsonPath": ".status.dataplanes.summary", "description": "Pods that serve the newest snapshot, of all"}"#,
    printcolumn = r#"{"name": "Policies", "type": "integer", "jsonPath": ".status.policies", "description": "Listeners that it serves"}"#,
    printcolumn = r#"{"name": "Accepted", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Accepted\")].status", "description": "Whether the class makes sense"}"#,
    printcolumn = r#"{"name": "Programmed", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Programmed\")].status", "description": "Whether all its dataplanes serve the newest snapshot"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = json!([
    forbidden(
        "self.controlPort < self.ports.first || self.controlPort > self.ports.last",
        ".controlPort",
        "is one of the legs' ports: expected a port outside of spec.ports",
    ),
])))]
pub struct BatonDataplaneSpec {
    /// The namespace of the dataplane pods.
    #[schemars(length(min = 1, max = 63), regex(pattern = crate::text::NAME))]
    pub namespace: String,
    /// Which pods of that namespace.
    pub selector: PodSelector,
    /// The port of their control API.
    #[serde(default = "control_port")]
    #[schemars(range(min = 1, max = 65_535))]
    pub control_port: i32,
    /// The ports that they use towards backends, as their configuration says. No listener on their
    /// own address may have one of them.
    #[serde(default)]
    pub ports: LegPorts,
    /// Ports of the dataplanes' own addresses that are behind the Services of policies with
    /// `spec.frontend`, one for each of their listeners. The operator gives them out, but for those
    /// among `ports` and `reservedPorts`; no listener may have one of them by number.
    #[serde(default)]
    pub frontend_ports: FrontendPorts,
    /// Ports (`9910`, `10248-10259`) where the dataplanes listen themselves besides `controlPort`,
    /// as for probes, or their nodes where they use the nodes' network. No listener on their own
    /// address may have one of them, whatever is allowed.
    #[serde(default = "reserved_ports")]
    #[schemars(
        length(max = 64),
        extend("items" = port_range(), "x-kubernetes-list-type" = "set"),
    )]
    pub reserved_ports: Vec<String>,
    /// What policies of which namespaces may have of this class. A policy may have what one entry
    /// allows; without any entry none may have anything. Unless said otherwise: ports from 1024 on
    /// of the dataplanes' own addresses, and backends that are Pods of the policy's namespace, for
    /// policies of all namespaces.
    #[serde(default = "allowed")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub allowed: Vec<Allowance>,
    /// How much they take.
    #[serde(default)]
    pub limits: DataplaneLimits,
    /// Whether policies without `dataplaneSelector` use this class.
    #[serde(default)]
    pub default: bool,
}

fn control_port() -> i32 {
    9_900
}

fn reserved_ports() -> Vec<String> {
    // Where the chart has dataplanes answer probes.
    vec!["9910".to_owned()]
}

/// Chooses pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodSelector {
    /// Labels that a pod has to have, at least one.
    #[schemars(schema_with = "label_map_some")]
    pub match_labels: BTreeMap<String, String>,
}

/// A range of ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = json!([forbidden(
    "self.last - self.first >= 63",
    ".last",
    "leaves too few ports: expected at least 64 from spec.ports.first on, so that each can rest after its use",
)])))]
pub struct LegPorts {
    /// The first of them.
    #[schemars(range(min = 1_024, max = 65_535))]
    pub first: i32,
    /// The last of them.
    #[schemars(range(min = 1_024, max = 65_535))]
    pub last: i32,
}

impl Default for LegPorts {
    fn default() -> Self {
        // The dataplane's own default.
        Self { first: 20_000, last: 32_767 }
    }
}

/// A range of ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = json!([forbidden(
    "self.first <= self.last",
    ".last",
    "is below spec.frontendPorts.first: expected the same port or a higher one",
)])))]
pub struct FrontendPorts {
    /// The first of them.
    #[schemars(range(min = 1_024, max = 65_535))]
    pub first: i32,
    /// The last of them.
    #[schemars(range(min = 1_024, max = 65_535))]
    pub last: i32,
}

impl Default for FrontendPorts {
    fn default() -> Self {
        // Twice as many as a class takes listeners, next to the legs' default.
        Self { first: 18_000, last: 19_999 }
    }
}

/// How much the dataplanes of a class take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DataplaneLimits {
    /// Listeners of policies. What is served keeps its place; a policy that comes and finds none is
    /// not served.
    #[schemars(range(min = 1, max = 1_024))]
    pub policies: i32,
    /// Distinct backends (address and port) of each policy, all policies together, as
    /// `limits.backends` of their configuration says. An eighth is kept for those that have left
    /// and still have connections; a policy that comes and finds no room is not served, and one
    /// that grows beyond it has no more backends than before.
    #[schemars(range(min = 1, max = 4_096))]
    pub backends: i32,
}

impl Default for DataplaneLimits {
    fn default() -> Self {
        // The dataplane's own defaults.
        Self { policies: 1_024, backends: 256 }
    }
}

/// What became of the class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BatonDataplaneStatus {
    /// The `metadata.generation` that all of this is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Accepted`, `Programmed`, `Degraded`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = CONDITIONS_MAX),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]),
    )]
    pub conditions: Vec<Condition>,
    /// Dataplanes that are ready and serve the newest snapshot, of all pods of the class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataplanes: Option<Count>,
    /// Listeners in the newest snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policies: Option<i32>,
    /// The dataplanes, those that need attention first; at most 64.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = STATUS_INSTANCES_MAX),
        extend("x-kubernetes-list-type" = "atomic"),
    )]
    pub instances: Vec<DataplaneInstance>,
}

/// One dataplane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataplaneInstance {
    /// Its pod.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The node that it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node: Option<String>,
    /// Whether it serves the newest snapshot.
    pub in_sync: bool,
    /// Why it is not in sync, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1_024))]
    pub message: Option<String>,
}
