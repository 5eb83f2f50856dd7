//! What a class of dataplanes grants to policies of which namespaces.
//!
//! Owns the fields and their bounds. What is asked for, and what is said of what is not granted, is
//! the operator's.

use crate::{
    rules::invalid,
    text::{NAME, PORT_RANGE, label_map},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What policies of some namespaces may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Allowance {
    /// Whose policies: those of namespaces that fit both parts; `{}` is all namespaces.
    pub namespaces: NamespaceSelector,
    /// Ports of listeners, as `8080` or `8000-8999`, at the dataplanes' own addresses and at those
    /// in `addresses`.
    #[serde(default = "unprivileged")]
    #[schemars(
        length(max = 64),
        extend("items" = port_range(), "x-kubernetes-list-type" = "set"),
    )]
    pub ports: Vec<String>,
    /// Explicit addresses of listeners, as `192.0.2.10` or `192.0.2.0/24`, besides the dataplanes'
    /// own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        extend("items" = network(), "x-kubernetes-list-type" = "set"),
    )]
    pub addresses: Vec<String>,
    /// Addresses that EndpointSlices may lead to, as `10.1.2.3` or `10.1.0.0/16`, besides those of
    /// Pods of the policy's namespace that they name (`targetRef`). A policy of several classes
    /// needs it of each of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        extend("items" = network(), "x-kubernetes-list-type" = "set"),
    )]
    pub endpoints: Vec<String>,
}

/// Chooses namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceSelector {
    /// Their names; without any, all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        extend(
            "items" = json!({"type": "string", "minLength": 1, "maxLength": 63, "pattern": NAME}),
            "x-kubernetes-list-type" = "set",
        ),
    )]
    pub names: Vec<String>,
    /// Labels that a namespace has to have, all of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "label_map")]
    pub match_labels: BTreeMap<String, String>,
}

fn unprivileged() -> Vec<String> {
    vec!["1024-65535".to_owned()]
}

/// What is allowed where nobody says what is.
pub(crate) fn allowed() -> Vec<Allowance> {
    vec![Allowance {
        namespaces: NamespaceSelector::default(),
        ports: unprivileged(),
        addresses: Vec::new(),
        endpoints: Vec::new(),
    }]
}

/// A port or a range.
pub(crate) fn port_range() -> Value {
    json!({
        "type": "string",
        "maxLength": 11,
        "pattern": PORT_RANGE,
        "x-kubernetes-validations": [invalid(
            "self.split('-').all(port, int(port) <= 65535) && \
             int(self.split('-')[0]) <= int(self.split('-')[self.split('-').size() - 1])",
            "is no range of ports: expected ports up to 65535, the lower one first",
        )],
    })
}

/// An address or a network.
fn network() -> Value {
    json!({
        "type": "string",
        "minLength": 2,
        "maxLength": 49,
        "x-kubernetes-validations": [invalid(
            "isIP(self) || isCIDR(self)",
            "is no address and no network: expected as 192.0.2.1, 192.0.2.0/24 or 2001:db8::/32",
        )],
    })
}
