//! Whether host-shims reach the Pods of policies: what is in the way of an adopter, and how many
//! Nodes and Pods that concerns.
//!
//! Owns the reasons and their words. Whether a Pod that nothing is in the way of really adopts,
//! dataplanes find out.

use crate::{BackendState, Index, Key, Text, backends::Detail};
use std::{
    collections::{BTreeSet, HashMap},
    fmt,
};

/// What is in the way of a backend's adopter, as far as its Node and host-shim tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle<'a> {
    NodeNotReady(&'a Text),
    NodeExcluded(&'a Text),
    NoShim(&'a Text),
    ShimUnreachable(&'a Text, &'a Text),
    NotAttached(&'a Text, &'a Text),
}

impl fmt::Display for Obstacle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NodeNotReady(node) => write!(f, "node {node} is not ready"),
            Self::NodeExcluded(node) => write!(
                f,
                "node {node} is excluded from adoptions (annotation `baton.dev/excluded-nodes` of the Secret baton-adoption-keys)"
            ),
            Self::NoShim(node) => {
                write!(f, "no host-shim runs on node {node}: let its DaemonSet run there")
            }
            Self::ShimUnreachable(node, why) => {
                write!(f, "the host-shim of node {node} cannot be reached: {why}")
            }
            Self::NotAttached(node, why) => {
                write!(f, "the host-shim of node {node} cannot have it adopt: {why}")
            }
        }
    }
}

/// How host-shims cover what policies need, with draining Pods left out. Each Node and Pod counts
/// once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Nodes with Pods of policies whose host-shim answers.
    pub nodes_covered: usize,
    /// Such Nodes without a host-shim, while there are some elsewhere.
    pub nodes_without_shim: usize,
    /// Such Nodes whose host-shim does not answer.
    pub nodes_unreachable: usize,
    /// Such Nodes that are not ready.
    pub nodes_not_ready: usize,
    /// Such Nodes that an admin excluded from adoptions.
    pub nodes_excluded: usize,
    /// Such Nodes of which nothing can be said, as no host-shim is known anywhere.
    pub nodes_unknown: usize,
    /// Pods on Nodes that are not ready.
    pub pods_on_node_not_ready: usize,
    /// Pods on Nodes that an admin excluded from adoptions.
    pub pods_on_node_excluded: usize,
    /// Pods on Nodes without a host-shim.
    pub pods_without_shim: usize,
    /// Pods on Nodes whose host-shim does not answer.
    pub pods_shim_unreachable: usize,
    /// Pods that their host-shim could not give the adopter.
    pub pods_not_attached: usize,
}

impl Coverage {
    /// Nodes by their host-shim's state: label and number.
    #[must_use]
    pub const fn nodes(&self) -> [(&'static str, usize); 6] {
        [
            ("works", self.nodes_covered),
            ("missing", self.nodes_without_shim),
            ("unreachable", self.nodes_unreachable),
            ("node_not_ready", self.nodes_not_ready),
            ("node_excluded", self.nodes_excluded),
            ("unknown", self.nodes_unknown),
        ]
    }

    /// Pods by what is in the way of their adopter: label and number.
    #[must_use]
    pub const fn pods(&self) -> [(&'static str, usize); 5] {
        [
            ("node_not_ready", self.pods_on_node_not_ready),
            ("node_excluded", self.pods_on_node_excluded),
            ("no_shim", self.pods_without_shim),
            ("shim_unreachable", self.pods_shim_unreachable),
            ("not_attached", self.pods_not_attached),
        ]
    }
}

impl Index {
    /// How host-shims cover what policies need, as of the last fold. Looks at every backend.
    #[must_use]
    pub fn coverage(&self) -> Coverage {
        let mut out = Coverage::default();
        // Nodes have many Pods each, and are looked up by a name in a tree.
        let mut nodes: HashMap<&Text, Option<Obstacle<'_>>> = HashMap::new();
        let mut seen: BTreeSet<(&Text, &Text)> = BTreeSet::new();
        for (key, record) in &self.policies {
            let listeners = record.translation.iter().flat_map(|t| &t.listeners);
            let details = listeners.flat_map(|l| &l.details);
            for detail in details.filter(|d| d.state != BackendState::Draining) {
                let Some(node) = &detail.node else { continue };
                let on_node = *nodes.entry(node).or_insert_with(|| {
                    let found = on_node(self, node);
                    match found {
                        Some(Obstacle::NodeNotReady(_)) => out.nodes_not_ready += 1,
                        Some(Obstacle::NodeExcluded(_)) => out.nodes_excluded += 1,
                        Some(Obstacle::NoShim(_)) => out.nodes_without_shim += 1,
                        Some(_) => out.nodes_unreachable += 1,
                        None if self.world.shims == 0 => out.nodes_unknown += 1,
                        None => out.nodes_covered += 1,
                    }
                    found
                });
                let found = on_node.or_else(|| on_pod(self, &key.namespace, node, detail));
                let Some(found) = found else { continue };
                let name = detail.pod.as_ref().unwrap_or(&detail.name);
                // A Pod may be behind several listeners.
                if !seen.insert((&key.namespace, name)) {
                    continue;
                }
                match found {
                    Obstacle::NodeNotReady(_) => out.pods_on_node_not_ready += 1,
                    Obstacle::NodeExcluded(_) => out.pods_on_node_excluded += 1,
                    Obstacle::NoShim(_) => out.pods_without_shim += 1,
                    Obstacle::ShimUnreachable(..) => out.pods_shim_unreachable += 1,
                    Obstacle::NotAttached(..) => out.pods_not_attached += 1,
                }
            }
        }
        out
    }
}

/// What is in the way of one backend's adopter.
pub(crate) fn obstacle<'a>(
    index: &'a Index,
    namespace: &Text,
    detail: &'a Detail,
) -> Option<Obstacle<'a>> {
    let node = detail.node.as_ref()?;
    on_node(index, node).or_else(|| on_pod(index, namespace, node, detail))
}

/// What is in the way of all on a Node.
fn on_node<'a>(index: &'a Index, name: &'a Text) -> Option<Obstacle<'a>> {
    let record = index.world.nodes.get(name);
    let node = record.and_then(|r| r.node.as_ref());
    if node.is_some_and(|node| !node.ready) {
        return Some(Obstacle::NodeNotReady(name));
    }
    if index.world.excluded.contains(name) {
        return Some(Obstacle::NodeExcluded(name));
    }
    let Some(shim) = record.and_then(|r| r.shim.as_ref()) else {
        // With no host-shim known at all, nobody asks them.
        return (index.world.shims > 0).then_some(Obstacle::NoShim(name));
    };
    let why = shim.unreachable.as_ref()?;
    Some(Obstacle::ShimUnreachable(name, why))
}

/// What is in the way of one Pod.
fn on_pod<'a>(
    index: &'a Index,
    namespace: &Text,
    node: &'a Text,
    detail: &Detail,
) -> Option<Obstacle<'a>> {
    let shim = index.world.nodes.get(node)?.shim.as_ref()?;
    if shim.unattached.is_empty() {
        return None;
    }
    let pod = Key::new(namespace.clone(), detail.pod.clone()?);
    let why = shim.unattached.get(&pod)?;
    Some(Obstacle::NotAttached(node, why))
}
