//! Objects as far as they matter here.
//!
//! Owns which fields are read at all. A cluster has many Pods and each is some 10 KB of text, of
//! which the operator wants some 200 bytes: what is not named here is skipped while it is read and
//! never takes memory.

use baton_crds::{BatonDataplane, LoadBalancerPolicy};
use k8s_openapi::{
    api::core::v1,
    apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, Time},
};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Who writes `pod-deletion-cost`, as the API server remembers it with each field.
pub const COST_MANAGER: &str = "baton-operator-cost";
/// Who makes and mends Services in front of dataplanes and their slices.
pub const FRONT_MANAGER: &str = "baton-operator-frontend";

/// A `LoadBalancerPolicy` with any spec: one that an older CRD let in must not keep the others from
/// being read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, kube::Resource)]
#[resource(inherit = LoadBalancerPolicy)]
pub struct RawPolicy {
    /// Its name, age and generation.
    #[serde(default, deserialize_with = "meta")]
    pub metadata: ObjectMeta,
    /// What an admin wants.
    #[serde(default)]
    pub spec: Value,
    /// What was said about it.
    #[serde(default)]
    pub status: Value,
}

/// A `BatonDataplane` with any spec.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, kube::Resource)]
#[resource(inherit = BatonDataplane)]
pub struct RawClass {
    /// Its name, age, generation and labels.
    #[serde(default, deserialize_with = "meta")]
    pub metadata: ObjectMeta,
    /// What an admin wants.
    #[serde(default)]
    pub spec: Value,
    /// What was said about it.
    #[serde(default)]
    pub status: Value,
}

/// A Pod, as far as it matters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, kube::Resource)]
#[resource(inherit = v1::Pod)]
pub struct Pod {
    /// Its name, labels, annotations and whether it is being deleted.
    #[serde(default, deserialize_with = "meta")]
    pub metadata: ObjectMeta,
    /// Where it runs.
    #[serde(default)]
    pub spec: PodSpec,
    /// Its addresses.
    #[serde(default)]
    pub status: PodStatus,
}

/// Where a Pod runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Its node, once it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Its addresses are the node's.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub host_network: bool,
}

/// What the kubelet says of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Its first address.
    #[serde(rename = "podIP", skip_serializing_if = "Option::is_none")]
    pub pod_ip: Option<String>,
    /// All of its addresses, one of each family at most.
    #[serde(rename = "podIPs", skip_serializing_if = "Vec::is_empty")]
    pub pod_ips: Vec<PodIp>,
    /// Of these only `Ready` matters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// An address of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodIp {
    /// As text.
    pub ip: String,
}

/// A condition of a Pod or Node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Condition {
    /// Which.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
}

/// A Node, as far as it matters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, kube::Resource)]
#[resource(inherit = v1::Node)]
pub struct Node {
    /// Its name and labels.
    #[serde(default, deserialize_with = "meta")]
    pub metadata: ObjectMeta,
    /// Whether it is cordoned.
    #[serde(default)]
    pub spec: NodeSpec,
    /// Whether it works.
    #[serde(default)]
    pub status: NodeStatus,
}

/// What the kubelet says of a Node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Of these only `Ready` matters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// What an admin says of a Node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// Cordoned.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unschedulable: bool,
}

/// A Namespace, as far as it matters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, kube::Resource)]
#[resource(inherit = v1::Namespace)]
pub struct Namespace {
    /// Its name and labels.
    #[serde(default, deserialize_with = "meta")]
    pub metadata: ObjectMeta,
}

/// Metadata as far as it matters. Which fields are whose is most of what the API server sends, and
/// makes a tree of some hundred pieces for each object if it is read.
fn meta<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Meta {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        generation: Option<i64>,
        creation_timestamp: Option<Time>,
        deletion_timestamp: Option<Time>,
        labels: Option<BTreeMap<String, String>>,
        annotations: Option<BTreeMap<String, String>>,
        managed_fields: Option<Vec<Manager>>,
    }
    #[derive(Deserialize)]
    struct Manager {
        manager: Option<String>,
    }
    let meta = Meta::deserialize(deserializer)?;
    let manager = |entry: Manager| ManagedFieldsEntry {
        manager: entry.manager,
        ..ManagedFieldsEntry::default()
    };
    let managers = |entries: Vec<Manager>| entries.into_iter().map(manager).collect();
    Ok(ObjectMeta {
        name: meta.name,
        namespace: meta.namespace,
        uid: meta.uid,
        resource_version: meta.resource_version,
        generation: meta.generation,
        creation_timestamp: meta.creation_timestamp,
        deletion_timestamp: meta.deletion_timestamp,
        labels: meta.labels,
        annotations: meta.annotations,
        managed_fields: meta.managed_fields.map(managers),
        ..ObjectMeta::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::Resource;

    #[test]
    fn what_matters_is_read_and_the_rest_is_skipped() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "namespace": "shop", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"nodeName": "n1", "hostNetwork": true, "containers": [{"name": "c"}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
                       "hostIP": "192.0.2.1"},
        }))
        .expect("a Pod");
        assert_eq!(pod.spec.node_name.as_deref(), Some("n1"));
        assert!(pod.spec.host_network);
        assert_eq!(pod.status.pod_ip.as_deref(), Some("10.0.0.1"));
        assert!(pod.metadata.deletion_timestamp.is_some());
        assert_eq!(Pod::plural(&()), "pods");
        let node: Node = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "n1"}, "spec": {"unschedulable": true, "podCIDR": "10.0.0.0/24"},
            "status": {"images": []},
        }))
        .expect("a Node");
        assert!(node.spec.unschedulable);
        assert_eq!(Node::kind(&()), "Node");
    }
}
