//! How clients reach a policy: a Service that the operator makes, or one that clients have already.
//!
//! Owns the fields and their bounds. Which port of the dataplanes is behind which port of the
//! Service, and what the EndpointSlices say, is the operator's.

use crate::rules::invalid;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The name of a Service: a label of DNS that begins with a letter (RFC 1035).
const SERVICE: &str = "^[a-z]([-a-z0-9]*[a-z0-9])?$";

/// How clients reach a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Frontend {
    /// The Service that clients connect to, in the policy's namespace. Its ports are those of
    /// `spec.listeners`; the operator chooses the dataplanes' ports behind them, so any number of
    /// policies have port 80. Its EndpointSlices name the ready dataplanes, and the pods themselves
    /// as long as no dataplane is ready.
    pub service: FrontendService,
}

/// A Service in front of the dataplanes. One of this name that has no label `baton.dev/policy` is
/// left alone, and the status says so (`kubectl baton attach` puts Baton behind a Service that
/// clients have already). Of a Service that the operator did not make, it writes the EndpointSlices
/// only, and the fields here have no effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FrontendService {
    /// Its name.
    #[schemars(length(min = 1, max = 63), regex(pattern = SERVICE))]
    pub name: String,
    /// Its type.
    #[serde(default, rename = "type")]
    pub type_: ServiceType,
    /// Which load balancer makes its address, with type `LoadBalancer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub load_balancer_class: Option<String>,
    /// Its annotations, as load balancers want them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "annotations")]
    pub annotations: BTreeMap<String, String>,
    /// `Local` leads what comes from outside to dataplanes of the own node only, with the client's
    /// address. Not with type `ClusterIP`.
    #[serde(default)]
    pub external_traffic_policy: TrafficPolicy,
    /// Who may connect through the load balancer, with type `LoadBalancer`. Without any, all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        extend("items" = network(), "x-kubernetes-list-type" = "set"),
    )]
    pub load_balancer_source_ranges: Vec<String>,
}

/// The type of a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServiceType {
    /// An address inside the cluster.
    #[default]
    ClusterIP,
    /// Also a port of each node.
    NodePort,
    /// Also an address outside of the cluster.
    LoadBalancer,
}

/// Where connections from outside are led.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TrafficPolicy {
    /// To all dataplanes.
    #[default]
    Cluster,
    /// To those of the node that they came to.
    Local,
}

impl ServiceType {
    /// As in `spec.type` of a Service.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIP => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
        }
    }
}

fn annotations(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 32,
        "additionalProperties": {"type": "string", "maxLength": 1024},
    })
}

fn network() -> Value {
    json!({
        "type": "string",
        "minLength": 2,
        "maxLength": 49,
        "x-kubernetes-validations": [invalid(
            "isCIDR(self)",
            "is no network: expected as 192.0.2.0/24 or 2001:db8::/32",
        )],
    })
}
