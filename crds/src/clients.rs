//! Who may open connections to a policy's listeners.
//!
//! Owns the fields and their bounds. Which pods a selector means at a moment is the operator's, and
//! what becomes of a connection that is not allowed the dataplane's.

use crate::{
    rules::invalid,
    text::{label_map, qualified_name},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Some clients: a network, or pods, as the peers of a NetworkPolicy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = json!([invalid(
    "has(self.cidr) != (has(self.podSelector) || has(self.namespaceSelector))",
    "names no clients, or in two ways: expected either `cidr`, or `podSelector`, `namespaceSelector` or both of these",
)])))]
pub struct AllowedClients {
    /// Clients with these addresses, as `192.0.2.0/24` or `2001:db8::/32`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "network")]
    pub cidr: Option<String>,
    /// Pods of namespaces with these labels; `{}` is all namespaces. Without it, pods of the
    /// policy's own namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Pods with these labels. Without it, or as `{}`, all pods of the namespaces. Pods of the
    /// node's network (`hostNetwork`) are never chosen by labels: their addresses are the node's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<LabelSelector>,
}

/// Chooses objects by their labels; `{}` chooses all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelector {
    /// Labels that an object has to have, all of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "label_map")]
    pub match_labels: BTreeMap<String, String>,
    /// What else has to be true of its labels, all of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub match_expressions: Vec<LabelRequirement>,
}

/// What has to be true of one label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = json!([invalid(
    "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
    "has no values to compare with, or needs none: expected `values` with operator In and NotIn, and with no other",
)])))]
pub struct LabelRequirement {
    /// The label's key.
    #[schemars(schema_with = "qualified_name")]
    pub key: String,
    /// `In`: the label has one of the values. `NotIn`: it has none of them, or is not there.
    /// `Exists`: it is there. `DoesNotExist`: it is not.
    pub operator: LabelOperator,
    /// Values to compare with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend(
            "items" = json!({"type": "string", "maxLength": 63}),
            "x-kubernetes-list-type" = "atomic",
        ),
    )]
    pub values: Vec<String>,
}

/// How a label is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LabelOperator {
    /// It has one of the values.
    In,
    /// It has none of the values, or is not there.
    NotIn,
    /// It is there.
    Exists,
    /// It is not there.
    DoesNotExist,
}

/// Of a list that may be absent, but not empty.
pub(crate) fn not_empty() -> Value {
    json!([invalid(
        "self.size() > 0",
        "is empty, so that nobody could connect: expected at least one item, or no `allowFrom` for everybody",
    )])
}

fn network(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "string",
        "minLength": 2,
        "maxLength": 49,
        "x-kubernetes-validations": [invalid(
            "isCIDR(self)",
            "is no network: expected as 192.0.2.0/24 or 2001:db8::/32",
        )],
    })
}
