//! Which of the node's Pods shall have the adopter: those that a policy's Service selects, and
//! those that an EndpointSlice of that Service names. Pure.
//!
//! Owns the fold of policies, Services, EndpointSlices and this node's Pods. Knows nothing of
//! processes, watches and the kernel. The selector is there before any slice names a new Pod;
//! slices say of Services without a selector what their Pods are, by name or by any of a Pod's
//! addresses. Only Pods of the policy's own namespace count: whoever writes a slice with another
//! namespace's addresses gets nothing attached there.

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
    /// By policy, the Service that it is about.
    policies: HashMap<Key, String>,
    /// By namespace and name, what a Service selects.
    services: HashMap<Key, Labels>,
    slices: HashMap<Key, Slice>,
    pods: BTreeMap<Key, Arc<NodePod>>,
}

/// One object that came, changed or (`None`) went.
#[derive(Debug)]
pub enum Change {
    /// A policy, with the name of its Service.
    Policy(Key, Option<String>),
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
            Change::Policy(key, Some(service)) => {
                self.policies.insert(key, service.clone()) != Some(service)
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
        ListenerReport {
            wanted: self.wanted(),
            there: uids.cloned().collect(),
        }
    }

    fn wanted(&self) -> Vec<WantedPod> {
        // Of the many Services only those of policies, and only in namespaces that this node has
        // Pods of.
        let namespaces: HashSet<&str> = self.pods.keys().map(|k| k.namespace.as_str()).collect();
        let mut selectors: HashMap<&str, Vec<&Labels>> = HashMap::new();
        let mut seen: HashSet<(&str, &str)> = HashSet::new();
        for (policy, service) in &self.policies {
            let namespace = policy.namespace.as_str();
            if !namespaces.contains(namespace) || !seen.insert((namespace, service.as_str())) {
                continue;
            }
            let key = Key {
                namespace: namespace.to_owned(),
                name: service.clone(),
            };
            // An empty selector selects nothing.
            if let Some(selector) = self.services.get(&key).filter(|s| !s.is_empty()) {
                selectors.entry(namespace).or_default().push(selector);
            }
        }
        let mut slices: HashMap<&str, Vec<&Slice>> = HashMap::new();
        for (key, slice) in &self.slices {
            if seen.contains(&(key.namespace.as_str(), slice.service.as_str())) {
                slices.entry(&key.namespace).or_default().push(slice);
            }
        }
        let selected = |key: &Key, pod: &NodePod| {
            let namespace = key.namespace.as_str();
            let selectors = selectors.get(namespace).into_iter().flatten();
            let mut slices = slices.get(namespace).into_iter().flatten();
            selectors.copied().any(|s| includes(&pod.labels, s))
                || slices.any(|s| s.names(key, pod))
        };
        let wanted = self
            .pods
            .iter()
            .filter(|(key, pod)| !pod.ended && selected(key, pod));
        wanted
            .enumerate()
            .map(|(at, (key, pod))| WantedPod {
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
    selector
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(namespace: &str, name: &str) -> Key {
        Key {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        let owned = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
        pairs.iter().map(owned).collect()
    }

    fn pod(pairs: &[(&str, &str)]) -> NodePod {
        NodePod {
            labels: labels(pairs),
            ..NodePod::default()
        }
    }

    fn names(world: &World) -> Vec<String> {
        world.wanted().into_iter().map(|w| w.name).collect()
    }

    fn shop() -> World {
        let mut world = World::default();
        for change in [
            Change::Policy(key("shop", "web"), Some("web".into())),
            Change::Service(key("shop", "web"), Some(labels(&[("app", "web")]))),
            Change::Service(key("shop", "db"), Some(labels(&[("app", "db")]))),
            Change::Service(key("other", "web"), Some(labels(&[("app", "web")]))),
            Change::Pod(
                key("shop", "web-0"),
                Some(pod(&[("app", "web"), ("x", "y")])),
            ),
            Change::Pod(key("shop", "db-0"), Some(pod(&[("app", "db")]))),
            Change::Pod(key("other", "web-0"), Some(pod(&[("app", "web")]))),
        ] {
            assert!(world.apply(change));
        }
        world
    }

    #[test]
    fn pods_that_a_policys_service_selects_are_wanted() {
        let mut world = shop();
        assert_eq!(names(&world), ["shop/web-0"]);
        world.apply(Change::Policy(key("shop", "data"), Some("db".into())));
        assert_eq!(names(&world), ["shop/db-0", "shop/web-0"]);
        // A policy is about a Service of its own namespace.
        world.apply(Change::Policy(key("other", "p"), Some("db".into())));
        assert_eq!(names(&world).len(), 2);
        world.apply(Change::Policy(key("shop", "web"), None));
        assert_eq!(names(&world), ["shop/db-0"]);
        world.apply(Change::Service(key("shop", "db"), None));
        assert!(names(&world).is_empty());
    }

    #[test]
    fn a_pod_that_ended_or_lost_its_label_is_not_wanted() {
        let mut world = shop();
        let ended = NodePod {
            ended: true,
            ..pod(&[("app", "web")])
        };
        assert!(world.apply(Change::Pod(key("shop", "web-0"), Some(ended))));
        assert!(names(&world).is_empty());
        world.apply(Change::Pod(
            key("shop", "web-0"),
            Some(pod(&[("app", "new")])),
        ));
        assert!(names(&world).is_empty());
    }

    #[test]
    fn a_pod_that_is_gone_is_told_from_one_that_nobody_wants() {
        let mut world = World::default();
        let web = NodePod {
            uids: vec!["1".into(), "2".into()],
            ..pod(&[("app", "web")])
        };
        world.apply(Change::Pod(key("shop", "web-0"), Some(web.clone())));
        let told = world.told();
        assert!(told.wanted.is_empty() && !told.is_gone(&web));
        // Another one of its name.
        let next = NodePod {
            uids: vec!["3".into()],
            ..web.clone()
        };
        world.apply(Change::Pod(key("shop", "web-0"), Some(next.clone())));
        assert!(world.told().is_gone(&web) && !world.told().is_gone(&next));
        world.apply(Change::Pod(key("shop", "web-0"), None));
        assert!(world.told().is_gone(&next));
    }

    #[test]
    fn an_empty_selector_selects_nothing() {
        let mut world = shop();
        world.apply(Change::Service(key("shop", "web"), Some(Labels::new())));
        assert!(names(&world).is_empty());
    }

    fn slice(service: &str, pods: &[&str], addresses: &[&str]) -> Slice {
        Slice {
            service: service.into(),
            pods: pods.iter().map(|name| (*name).to_owned()).collect(),
            addresses: addresses
                .iter()
                .map(|a| a.parse().expect("an address"))
                .collect(),
        }
    }

    fn at(addresses: &[&str]) -> NodePod {
        NodePod {
            addresses: addresses
                .iter()
                .map(|a| a.parse().expect("an address"))
                .collect(),
            ..NodePod::default()
        }
    }

    /// A Service without a selector, and Pods without labels.
    fn manual() -> World {
        let mut world = World::default();
        for change in [
            Change::Policy(key("shop", "p"), Some("manual".into())),
            Change::Service(key("shop", "manual"), Some(Labels::new())),
            Change::Pod(key("shop", "named"), Some(at(&["10.0.0.1"]))),
            Change::Pod(key("shop", "four"), Some(at(&["10.0.0.2", "fd00::2"]))),
            Change::Pod(key("shop", "six"), Some(at(&["10.0.0.3", "fd00::3"]))),
            Change::Pod(key("shop", "other"), Some(at(&["10.0.0.4", "fd00::4"]))),
            Change::Pod(key("else", "four"), Some(at(&["10.0.0.2", "fd00::2"]))),
        ] {
            assert!(world.apply(change));
        }
        world
    }

    #[test]
    fn pods_that_a_slice_of_the_service_names_are_wanted_by_name_or_either_address() {
        let mut world = manual();
        assert!(names(&world).is_empty());
        let four = slice("manual", &["named"], &["10.0.0.2"]);
        assert!(world.apply(Change::Slice(key("shop", "a"), Some(four.clone()))));
        assert_eq!(names(&world), ["shop/four", "shop/named"]);
        // The other family has a slice of its own.
        let six = slice("manual", &[], &["fd00::2", "fd00::3"]);
        world.apply(Change::Slice(key("shop", "b"), Some(six)));
        assert_eq!(names(&world), ["shop/four", "shop/named", "shop/six"]);
        world.apply(Change::Slice(key("shop", "a"), None));
        assert_eq!(names(&world), ["shop/four", "shop/six"]);
        // Before the Service is known, and after it is gone, slices are there all the same.
        world.apply(Change::Service(key("shop", "manual"), None));
        assert_eq!(names(&world).len(), 2);
        assert!(!world.apply(Change::Slice(key("shop", "a"), None)));
    }

    #[test]
    fn slices_of_other_services_and_namespaces_name_nobody() {
        let mut world = manual();
        for (at, named) in [
            (
                key("shop", "a"),
                slice("another", &["named"], &["10.0.0.2"]),
            ),
            (key("else", "a"), slice("manual", &["four"], &["10.0.0.2"])),
        ] {
            world.apply(Change::Slice(at, Some(named)));
        }
        assert!(names(&world).is_empty());
        // A policy of the other namespace, too, has no Pods but those of its own.
        world.apply(Change::Policy(key("else", "p"), Some("manual".into())));
        assert_eq!(names(&world), ["else/four"]);
    }

    #[test]
    fn an_address_that_two_pods_have_is_of_the_one_that_runs() {
        let mut world = manual();
        let ended = NodePod {
            ended: true,
            ..at(&["10.0.0.2"])
        };
        let hosted = NodePod {
            host_network: true,
            ..at(&["10.0.0.2"])
        };
        world.apply(Change::Pod(key("shop", "named"), Some(ended)));
        world.apply(Change::Pod(key("shop", "other"), Some(hosted)));
        let slice = slice("manual", &[], &["10.0.0.2"]);
        world.apply(Change::Slice(key("shop", "a"), Some(slice)));
        assert_eq!(names(&world), ["shop/four"]);
    }

    #[test]
    fn a_change_that_changes_nothing_says_so() {
        let mut world = shop();
        let same = Change::Pod(key("shop", "db-0"), Some(pod(&[("app", "db")])));
        assert!(!world.apply(same));
        assert!(!world.apply(Change::Pod(key("shop", "none"), None)));
        let same = Change::Policy(key("shop", "web"), Some("web".into()));
        assert!(!world.apply(same));
        let same = Change::Service(key("shop", "db"), Some(labels(&[("app", "db")])));
        assert!(!world.apply(same));
    }

    #[test]
    fn obstacles_are_named() {
        let mut world = shop();
        let hosted = NodePod {
            host_network: true,
            ..pod(&[("app", "web")])
        };
        world.apply(Change::Pod(key("shop", "web-0"), Some(hosted)));
        let wanted = world.wanted();
        assert!(
            wanted[0]
                .obstacle
                .is_some_and(|why| why.contains("hostNetwork"))
        );
        for n in 0..PODS_MAX {
            let name = format!("web-x{n}");
            world.apply(Change::Pod(
                key("shop", &name),
                Some(pod(&[("app", "web")])),
            ));
        }
        let wanted = world.wanted();
        assert_eq!(wanted.len(), PODS_MAX + 1);
        let too_many = wanted
            .iter()
            .filter(|w| w.obstacle.is_some_and(|why| why.contains("4096")));
        assert_eq!(too_many.count(), 1);
    }
}
