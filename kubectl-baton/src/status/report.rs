//! What `status` says, as a value: what JSON shows, and what the tables are made of.

use crate::facts::Node;
use baton_crds::{FrontendStatus, LeadsTo, LoadBalancerPolicySpec};
use serde::Serialize;
use std::collections::BTreeMap;

/// Dataplanes, Pods or nodes that one sentence names.
const NAMED_MAX: usize = 3;

/// `a, b, c and 2 more`.
pub fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    let mut text = names.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
    if names.len() > NAMED_MAX {
        text.push_str(&format!(" and {} more", names.len() - NAMED_MAX));
    }
    text
}

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
    /// Where clients connect, those from outside of the cluster first.
    pub addresses: Vec<String>,
    /// Ports where they connect to the dataplanes themselves.
    pub own_ports: Vec<i32>,
    /// The Service of its own that they connect to, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frontend: Option<Front>,
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

/// A Service in front of dataplanes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Front {
    /// Its name.
    pub service: String,
    /// `dataplanes`; `pods`, as long as no dataplane is ready; `nowhere`, as long as it is not the
    /// policy's, or none is ready and the pods expect a header; `unseen`, as long as the operator
    /// has said nothing.
    pub leads_to: &'static str,
}

impl Front {
    /// Of a policy, as the operator saw it last.
    pub fn of(spec: &LoadBalancerPolicySpec, seen: Option<&FrontendStatus>) -> Option<Self> {
        let service = &spec.frontend.as_ref()?.service.name;
        let seen = seen.filter(|seen| seen.service == *service);
        Some(Self {
            service: service.clone(),
            leads_to: match seen.map(|seen| seen.leads_to) {
                Some(LeadsTo::Dataplanes) => "dataplanes",
                Some(LeadsTo::Pods) => "pods",
                Some(LeadsTo::Nowhere) => "nowhere",
                None => "unseen",
            },
        })
    }
}

/// Ports of listeners that are reached at the dataplanes' own addresses.
pub fn own_ports(spec: &LoadBalancerPolicySpec) -> Vec<i32> {
    let listeners = spec.listeners.iter();
    let own = listeners.filter(|one| spec.frontend.is_none() && one.addresses.is_empty());
    own.map(|one| one.port).collect()
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
