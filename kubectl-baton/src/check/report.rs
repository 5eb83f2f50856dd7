//! What `check` says, as a value: what JSON shows, and what the tables are made of.

use serde::Serialize;
use std::collections::BTreeMap;

/// What `check` says.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Nothing that was seen forbids Baton.
    pub installable: bool,
    /// What forbids it.
    pub problems: Vec<String>,
    /// What is worth knowing.
    pub notes: Vec<String>,
    /// What could not be looked at.
    pub unseen: Vec<String>,
    /// The cluster as a whole.
    pub cluster: Overview,
    /// Its nodes, equal ones together.
    pub nodes: Vec<Group>,
    /// The Services of the namespaces that are meant.
    pub services: Vec<OneService>,
    /// What to do next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The cluster as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Overview {
    /// Its version.
    pub kubernetes: Finding,
    /// Its CNI plugins.
    pub network: Finding,
    /// How nodes lead connections to Services.
    pub kube_proxy: Finding,
    /// Its service meshes.
    pub mesh: Finding,
}

/// What was found, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// In a word or two.
    pub found: String,
    /// Where it was read, or why it is not known.
    pub how: String,
}

/// How connections move to a Pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// By adoption.
    Adoption,
    /// By translation, for this reason.
    Translation(String),
    /// Not known, for this reason.
    Unknown(String),
}

impl Method {
    /// In a word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Adoption => "adoption",
            Self::Translation(_) => "translation",
            Self::Unknown(_) => "not known",
        }
    }

    /// Why it is not adoption.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Adoption => None,
            Self::Translation(reason) | Self::Unknown(reason) => Some(reason),
        }
    }
}

/// Nodes that are alike.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// Their names.
    pub nodes: Vec<String>,
    /// Their system, as it names itself.
    pub os: String,
    /// Their processors, as `amd64`.
    pub architecture: String,
    /// Their kernel, as `6.12.9`.
    pub kernel: String,
    /// Their container runtime, as `containerd://2.0.2`.
    pub runtime: String,
    /// How connections move to Pods there.
    pub method: &'static str,
    /// Why it is not adoption.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// One Service.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OneService {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Why `attach` refuses it, in a word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Its ports.
    pub ports: Vec<OnePort>,
    /// What keeps it as a repository has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_by: Option<&'static str>,
    /// Its Pods, if they may be seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods: Option<Pods>,
}

/// One port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OnePort {
    /// Its number.
    pub port: i32,
    /// What it speaks, as `attach` would have it in the policy; none where `attach` refuses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<&'static str>,
    /// Why its connections stay where they begin, if they do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stays: Option<&'static str>,
}

impl OneService {
    /// Whether connections to one of its ports move.
    pub fn moves(&self) -> bool {
        self.refused.is_none() && self.ports.iter().any(|port| port.stays.is_none())
    }
}

/// Pods by how connections move to them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pods {
    /// By adoption.
    pub adoption: u64,
    /// By translation.
    pub translation: u64,
    /// It is not known how.
    pub unknown: u64,
    /// How many for which reason, other than by adoption.
    pub reasons: BTreeMap<String, u64>,
}

impl Pods {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.adoption + self.translation + self.unknown
    }
}
