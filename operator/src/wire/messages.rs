//! The messages of the binary form, as far as they matter here.
//!
//! Owns the numbers of their fields, which are those of `generated.proto` in `k8s.io/api` and `k8s.io/apimachinery`. What is
//! not named is skipped while it is read. Each says itself in JSON as the API server would, so that absent and empty fields
//! mean the same in both forms. Free text is bytes here: only what the API server checks is sure to be text.

use hyper::body::Bytes;
use jiff::Timestamp;
use prost::Message;
use serde::{Serialize, Serializer, ser::Error as _};
use std::collections::BTreeMap;

/// The envelope of everything but a [`WatchEvent`]: says what it is.
#[derive(Clone, PartialEq, Message)]
pub struct Unknown {
    #[prost(message, required, tag = "1")]
    pub types: Types,
    #[prost(bytes = "bytes", tag = "2")]
    pub raw: Bytes,
}

#[derive(Clone, PartialEq, Eq, Hash, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Types {
    #[prost(string, tag = "1")]
    pub api_version: String,
    #[prost(string, tag = "2")]
    pub kind: String,
}

/// A list of any kind, whose items are read one by one.
#[derive(Clone, PartialEq, Message)]
pub struct List {
    #[prost(message, required, tag = "1")]
    pub metadata: ListMeta,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub items: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Eq, Hash, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListMeta {
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    #[prost(string, tag = "3")]
    #[serde(rename = "continue", skip_serializing_if = "String::is_empty")]
    pub token: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct WatchEvent {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(message, required, tag = "2")]
    pub object: RawExtension,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct RawExtension {
    #[prost(bytes = "bytes", tag = "1")]
    pub raw: Bytes,
}

/// Why a request failed, or a watch ends.
#[derive(Clone, PartialEq, Eq, Hash, Message, Serialize)]
pub struct Status {
    #[prost(message, required, tag = "1")]
    pub metadata: ListMeta,
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status: String,
    #[prost(string, tag = "3")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[prost(string, tag = "4")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[prost(int32, tag = "6")]
    pub code: i32,
}

/// Metadata without finalizers, owners and which fields are whose.
#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectMeta {
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[prost(string, tag = "3")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[prost(string, tag = "5")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[prost(string, tag = "6")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    #[prost(int64, tag = "7")]
    #[serde(skip_serializing_if = "is_zero")]
    pub generation: i64,
    #[prost(message, optional, tag = "8")]
    #[serde(skip_serializing_if = "Time::is_none")]
    pub creation_timestamp: Option<Time>,
    #[prost(message, optional, tag = "9")]
    #[serde(skip_serializing_if = "Time::is_none")]
    pub deletion_timestamp: Option<Time>,
    #[prost(btree_map = "string, string", tag = "11")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, bytes", tag = "12")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty", serialize_with = "texts")]
    pub annotations: BTreeMap<String, Vec<u8>>,
    #[prost(message, repeated, tag = "17")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub managed_fields: Vec<Manager>,
}

/// Who wrote some of the fields.
#[derive(Clone, PartialEq, Eq, Hash, Message, Serialize)]
pub struct Manager {
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub manager: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Time {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
}

impl Time {
    /// No time is sent as a message without fields.
    fn is_none(this: &Option<Self>) -> bool {
        this.is_none_or(|time| time.seconds == 0)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let time = Timestamp::from_second(self.seconds).map_err(S::Error::custom)?;
        serializer.collect_str(&time)
    }
}

/// Of a watch only the metadata of its bookmarks matters, whatever the kind.
#[derive(Clone, PartialEq, Message, Serialize)]
pub struct Bookmark {
    #[prost(message, required, tag = "1")]
    pub metadata: ObjectMeta,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct Pod {
    #[prost(message, required, tag = "1")]
    pub metadata: ObjectMeta,
    #[prost(message, required, tag = "2")]
    pub spec: PodSpec,
    #[prost(message, required, tag = "3")]
    pub status: PodStatus,
}

#[derive(Clone, PartialEq, Eq, Hash, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    #[prost(string, tag = "10")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Message, Serialize)]
pub struct PodStatus {
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub phase: String,
    #[prost(message, repeated, tag = "2")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    #[prost(string, tag = "6")]
    #[serde(rename = "podIP", skip_serializing_if = "String::is_empty")]
    pub pod_ip: String,
    #[prost(message, repeated, tag = "12")]
    #[serde(rename = "podIPs", skip_serializing_if = "Vec::is_empty")]
    pub pod_ips: Vec<PodIp>,
}

#[derive(Clone, PartialEq, Eq, Hash, Message, Serialize)]
pub struct PodIp {
    #[prost(string, tag = "1")]
    pub ip: String,
}

/// Of a Pod or a Node, whose numbers are the same as far as here.
#[derive(Clone, PartialEq, Eq, Hash, Message, Serialize)]
pub struct Condition {
    #[prost(bytes = "vec", tag = "1")]
    #[serde(rename = "type", serialize_with = "text")]
    pub kind: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    #[serde(serialize_with = "text")]
    pub status: Vec<u8>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct Node {
    #[prost(message, required, tag = "1")]
    pub metadata: ObjectMeta,
    #[prost(message, required, tag = "2")]
    pub spec: NodeSpec,
    #[prost(message, required, tag = "3")]
    pub status: NodeStatus,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message, Serialize)]
pub struct NodeSpec {
    #[prost(bool, tag = "4")]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unschedulable: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Message, Serialize)]
pub struct NodeStatus {
    #[prost(message, repeated, tag = "4")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub struct Service {
    #[prost(message, required, tag = "1")]
    pub metadata: ObjectMeta,
    #[prost(message, required, tag = "2")]
    pub spec: ServiceSpec,
}

#[derive(Clone, PartialEq, Eq, Hash, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceSpec {
    #[prost(message, repeated, tag = "1")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<ServicePort>,
    #[prost(string, tag = "4")]
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[prost(string, repeated, tag = "19")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ip_families: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Hash, Message, Serialize)]
pub struct ServicePort {
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub protocol: String,
    #[prost(int32, tag = "3")]
    pub port: i32,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSlice {
    #[prost(message, required, tag = "1")]
    pub metadata: ObjectMeta,
    #[prost(message, repeated, tag = "2")]
    pub endpoints: Vec<Endpoint>,
    #[prost(message, repeated, tag = "3")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<EndpointPort>,
    #[prost(string, tag = "4")]
    pub address_type: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    #[prost(string, repeated, tag = "1")]
    pub addresses: Vec<String>,
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<EndpointConditions>,
    #[prost(message, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<TargetRef>,
    #[prost(string, optional, tag = "6")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message, Serialize)]
pub struct EndpointConditions {
    #[prost(bool, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    #[prost(bool, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serving: Option<bool>,
    #[prost(bool, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating: Option<bool>,
}

#[derive(Clone, PartialEq, Eq, Hash, Message, Serialize)]
pub struct TargetRef {
    #[prost(string, tag = "1")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[prost(string, tag = "3")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Message, Serialize)]
pub struct EndpointPort {
    #[prost(string, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[prost(string, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    #[prost(int32, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
}

/// Text that the API server does not look at may be none: it writes what is wrong in it as U+FFFD. One Pod must not make
/// all others unreadable.
fn text<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&String::from_utf8_lossy(bytes))
}

fn texts<S: Serializer>(map: &BTreeMap<String, Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
    let pairs = map.iter();
    serializer.collect_map(pairs.map(|(key, bytes)| (key, String::from_utf8_lossy(bytes))))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}
