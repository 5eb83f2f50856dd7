//! Which of the node's Pods shall have the adopter: those that a policy's Service selects, and
//! those that an EndpointSlice of that Service names. Pure.
//!
//! Owns the fold of policies, Services, EndpointSlices and this node's Pods. Knows nothing of
//! processes, watches and the kernel. The selector is there before any slice names a new Pod;
//! slices say of Services without a selector what their Pods are, by name or by any of a Pod's
//! addresses. Only Pods of the policy's own namespace count: whoever writes a slice with another
//! namespace's addresses gets nothing attached there.

use baton_crds::PodMultipathTcp;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

/// Labels, or a selector of them.
pub type Labels = BTreeMap<String, String>;

/// Pods of a node that are followed at most: the size of the adopter's table of namespaces (a
/// kubelet's own limit is 110 by default). More are not attached, and said to be too many.
pub const PODS_MAX: usize = 4096;

/// Namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

/// A Pod of this node, as far as it matters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePod {
    /// What its control groups may be named after: `metadata.uid`, and for a static Pod its hash.
    pub uids: Vec<String>,
    /// `metadata.labels`.
    pub labels: Labels,
    /// `status.podIPs`.
    pub addresses: Vec<IpAddr>,
    /// `spec.hostNetwork`.
    pub host_network: bool,
    /// `status.phase` is Running, which it stays while a container waits to be started again.
    pub running: bool,
    /// Ids of containers that run now: another one is news, as the Pod may have had no process
    /// before (CRI-O keeps none for it).
    pub containers: Vec<String>,
    /// It has a `deletionTimestamp`.
    pub deleting: bool,
    /// `status.phase` is Succeeded or Failed: its containers are gone for good.
    pub ended: bool,
}

/// An EndpointSlice, as far as it can be about Pods of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// The Service that it is of.
    pub service: String,
    /// Names of Pods of its namespace.
    pub pods: BTreeSet<String>,
    /// Addresses of endpoints that name no Pod.
    pub addresses: BTreeSet<IpAddr>,
}

/// A Pod that shall have the adopter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedPod {
    /// `NAMESPACE/NAME`.
    pub name: String,
    /// The Pod.
    pub pod: Arc<NodePod>,
    /// It can not have it, whatever its processes are like.
    pub obstacle: Option<&'static str>,
    /// What its policies say of Multipath TCP: one that disables it is enough.
    pub multipath: PodMultipathTcp,
}

/// What a policy says of the Pods of its Service, as far as it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfPolicy {
    /// `spec.targetRefs[0].name`.
    pub service: String,
    /// `spec.podMultipathTcp`.
    pub multipath: PodMultipathTcp,
}

/// What is told of the node's Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenerReport {
    /// Those that shall have the adopter, by name.
    pub wanted: Vec<WantedPod>,
    /// `uids` of all that there are, wanted or not.
    pub there: HashSet<String>,
}

impl ListenerReport {
    /// Whether the API server has a Pod no more. Its processes may go on for a while, as after a
    /// forced deletion.
    #[must_use]
    pub fn is_gone(&self, pod: &NodePod) -> bool {
        !pod.uids.iter().any(|uid| self.there.contains(uid))
    }
}

/// All that is known.
#[derive(Debug, Default)]
pub struct World {
    policies: HashMap<Key, OfPolicy>,
    /// By namespace and name, what a Service selects.
    services: HashMap<Key, Labels>,
    slices: HashMap<Key, Slice>,
    pods: BTreeMap<Key, Arc<NodePod>>,
}

/// One object that came, changed or (`None`) went.
#[derive(Debug)]
pub enum Change {
    /// A policy.
    Policy(Key, Option<OfPolicy>),
    /// A Service, with its selector.
    Service(Key, Option<Labels>),
    /// An EndpointSlice; none if it is of no Service.
    Slice(Key, Option<Slice>),
    /// A Pod of this node.
    Pod(Key, Option<NodePod>),
}

impl World {
    /// Takes a change. Whether it can matter.
    pub fn apply(&mut self, change: Change) -> bool {
        match change {
            Change::Policy(key, Some(policy)) => {
                self.policies.insert(key, policy.clone()) != Some(policy)
            }
            Change::Policy(key, None) => self.policies.remove(&key).is_some(),
            Change::Service(key, Some(selector)) => {
                self.services.insert(key, selector.clone()) != Some(selector)
            }
            Change::Service(key, None) => self.services.remove(&key).is_some(),
            Change::Slice(key, Some(slice)) => {
                self.slices.insert(key, slice.clone()) != Some(slice)
            }
            Change::Slice(key, None) => self.slices.remove(&key).is_some(),
            Change::Pod(key, Some(pod)) => {
                let same = self.pods.get(&key).is_some_and(|old| **old == pod);
                if !same {
                    self.pods.insert(key, Arc::new(pod));
                }
                !same
            }
            Change::Pod(key, None) => self.pods.remove(&key).is_some(),
        }
    }

    /// What it comes to.
    #[must_use]
    pub fn told(&self) -> ListenerReport {
        let uids = self.pods.values().flat_map(|pod| &pod.uids);
        ListenerReport { wanted: self.wanted(), there: uids.cloned().collect() }
    }

    fn wanted(&self) -> Vec<WantedPod> {
        // Of the many Services only those of policies, and only in namespaces that this node has
        // Pods of.
        let namespaces: HashSet<&str> = self.pods.keys().map(|k| k.namespace.as_str()).collect();
        let mut seen: HashMap<(&str, &str), PodMultipathTcp> = HashMap::new();
        for (key, policy) in &self.policies {
            let namespace = key.namespace.as_str();
            if !namespaces.contains(namespace) {
                continue;
            }
            let multipath = seen.entry((namespace, &policy.service)).or_default();
            *multipath = policy.multipath.max(*multipath);
        }
        let mut selectors: HashMap<&str, Vec<(&Labels, PodMultipathTcp)>> = HashMap::new();
        for (&(namespace, service), &multipath) in &seen {
            let key = Key { namespace: namespace.to_owned(), name: service.to_owned() };
            // An empty selector selects nothing.
            if let Some(selector) = self.services.get(&key).filter(|s| !s.is_empty()) {
                let selectors = selectors.entry(namespace).or_default();
                selectors.push((selector, multipath));
            }
        }
        let mut slices: HashMap<&str, Vec<(&Slice, PodMultipathTcp)>> = HashMap::new();
        for (key, slice) in &self.slices {
            if let Some(multipath) = seen.get(&(key.namespace.as_str(), slice.service.as_str())) {
                let slices = slices.entry(&key.namespace).or_default();
                slices.push((slice, *multipath));
            }
        }
        // What the policies say whose Service selects or names it.
        let selected = |key: &Key, pod: &NodePod| {
            let namespace = key.namespace.as_str();
            let selectors = selectors.get(namespace).into_iter().flatten();
            let slices = slices.get(namespace).into_iter().flatten();
            let selectors = selectors.filter(|(s, _)| includes(&pod.labels, s));
            let slices = slices.filter(|(s, _)| s.names(key, pod));
            let said = selectors.map(|(_, m)| *m).chain(slices.map(|(_, m)| *m));
            said.max()
        };
        let wanted = self
            .pods
            .iter()
            .filter(|(_, pod)| !pod.ended)
            .filter_map(|(key, pod)| Some((key, pod, selected(key, pod)?)));
        wanted
            .enumerate()
            .map(|(at, (key, pod, multipath))| WantedPod {
                multipath,
                name: format!("{}/{}", key.namespace, key.name),
                pod: Arc::clone(pod),
                obstacle: if pod.host_network {
                    Some(
                        "it has hostNetwork: true, so its connections are the node's own; give it a network namespace of \
                         its own, or leave it without moves",
                    )
                } else if at >= PODS_MAX {
                    Some("this node has more than 4096 Pods of policies, which is all that its host-shim follows")
                } else {
                    None
                },
            })
            .collect()
    }
}

impl Slice {
    /// Whether one of its endpoints is this Pod of its namespace.
    fn names(&self, key: &Key, pod: &NodePod) -> bool {
        // The node's address is that of all its Pods with hostNetwork, so it tells none of them.
        let addressed =
            || !pod.host_network && pod.addresses.iter().any(|a| self.addresses.contains(a));
        self.pods.contains(&key.name) || addressed()
    }
}

fn includes(labels: &Labels, selector: &Labels) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

#[cfg(test)]
mod tests;
