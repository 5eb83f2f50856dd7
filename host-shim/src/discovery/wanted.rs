//! Which of the node's Pods shall have the adopter: those that a policy's Service selects. Pure.
//!
//! Owns the fold of policies, Services and this node's Pods. Knows nothing of processes, watches and the kernel. A Service
//! without a selector is followed by hand-made EndpointSlices; its Pods are not found here and go into `pods` of the
//! configuration.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

/// Labels, or a selector of them.
pub type Labels = BTreeMap<String, String>;

/// Pods of a node that are followed at most: the size of the adopter's table of namespaces (a kubelet's own limit is 110
/// by default). More are not attached, and said to be too many.
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
    /// `status.phase` is Running.
    pub running: bool,
    /// It has a `deletionTimestamp`.
    pub deleting: bool,
    /// `status.phase` is Succeeded or Failed: its containers are gone for good.
    pub ended: bool,
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

/// All that is known.
#[derive(Debug, Default)]
pub struct World {
    /// By policy, the Service that it is about.
    policies: HashMap<Key, String>,
    /// By namespace and name, what a Service selects.
    services: HashMap<Key, Labels>,
    pods: BTreeMap<Key, Arc<NodePod>>,
}

/// One object that came, changed or (`None`) went.
#[derive(Debug)]
pub enum Change {
    /// A policy, with the name of its Service.
    Policy(Key, Option<String>),
    /// A Service, with its selector.
    Service(Key, Option<Labels>),
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

    /// The Pods that shall have the adopter, by name.
    #[must_use]
    pub fn wanted(&self) -> Vec<WantedPod> {
        // Of the many Services only those of policies, and only in namespaces that this node has Pods of.
        let namespaces: HashSet<&str> = self.pods.keys().map(|k| k.namespace.as_str()).collect();
        let mut selectors: HashMap<&str, Vec<&Labels>> = HashMap::new();
        let mut seen = HashSet::new();
        for (policy, service) in &self.policies {
            let namespace = policy.namespace.as_str();
            if !namespaces.contains(namespace) || !seen.insert((namespace, service)) {
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
        let selected = |key: &Key, pod: &NodePod| {
            let of_namespace = selectors.get(key.namespace.as_str());
            of_namespace.is_some_and(|all| all.iter().any(|s| includes(&pod.labels, s)))
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
    fn an_empty_selector_selects_nothing() {
        let mut world = shop();
        world.apply(Change::Service(key("shop", "web"), Some(Labels::new())));
        assert!(names(&world).is_empty());
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
