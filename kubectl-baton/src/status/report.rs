//! What `status` says, as a value: what JSON shows, and what the tables are made of.

use crate::facts::Node;
use serde::Serialize;
use std::collections::BTreeMap;

/// What `status` says.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Nothing is wrong.
    pub works: bool,
    /// What is.
    pub problems: Vec<String>,
    /// What is worth a look.
    pub notes: Vec<String>,
    /// What could not be looked at.
    pub unseen: Vec<String>,
    /// The parts, as `operator`: how many are ready of how many.
    pub parts: BTreeMap<&'static str, (usize, usize)>,
    /// The policies.
    pub policies: Vec<Policy>,
    /// The dataplanes.
    pub dataplanes: Vec<Dataplane>,
    /// The nodes that have something to do with Baton.
    pub nodes: Vec<OneNode>,
}

/// One policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its Service.
    pub service: String,
    /// One word: `ok`, or what is wrong.
    pub state: &'static str,
    /// Why, if it is not `ok`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// How a Pod is chosen.
    pub algorithm: String,
    /// How requests are recognised.
    pub protocol: String,
    /// Ready Pods of all, as `2/3`.
    pub backends: String,
    /// Dataplanes that serve it of all that should.
    pub dataplanes: String,
    /// Connections at this moment.
    pub flows: u64,
    /// How many of them could move when the operator looked, as `93%`.
    pub movable: String,
    /// Moves since the dataplanes started.
    pub moves: u64,
    /// Connections that outlived their Pod.
    pub rescued: u64,
    /// Connections that did not.
    pub lost: u64,
}

/// One dataplane.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Dataplane {
    /// Its Pod's namespace.
    pub namespace: String,
    /// Its Pod.
    pub name: String,
    /// Its class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Its node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// One word.
    pub state: &'static str,
    /// Restarts of its container.
    pub restarts: i32,
    /// Why it does not answer, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent: Option<String>,
    /// What it says, if it does.
    #[serde(flatten)]
    pub report: Option<SelfReport>,
}

/// What a dataplane says of itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SelfReport {
    /// Its version.
    pub version: String,
    /// Since its start.
    pub uptime_seconds: u64,
    /// `native`, `generic` or `packet`, and the interface.
    pub mode: String,
    /// The snapshot that it serves.
    pub generation: u64,
    /// Listeners of policies.
    pub policies: usize,
    /// Connections.
    pub flows: u64,
    /// What is wrong with it.
    pub problems: Vec<String>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OneNode {
    /// The node.
    #[serde(flatten)]
    pub node: Node,
    /// Its shim, in a word.
    pub shim: &'static str,
    /// Pods of the policies' Services.
    pub backends: usize,
    /// Dataplanes.
    pub dataplanes: usize,
}
