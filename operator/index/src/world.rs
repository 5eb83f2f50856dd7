//! Services, Pods and Nodes as they are, and who refers to whom.
//!
//! Owns the look-up from an object to the Services whose endpoints name it, so that a change costs
//! what it touches. Decides nothing.

use crate::{Key, Namespace, Node, Pod, Service, Shim, Slice, SliceWriter, Text};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Behind the name of the Service in those of the slices that are made for it.
pub(crate) const SLICE_INFIX: &str = "-baton-";

/// A Service, or what refers to one that does not exist.
#[derive(Debug, Default)]
pub(crate) struct ServiceRecord {
    pub service: Option<Arc<Service>>,
    /// Its slices, by name.
    pub slices: BTreeMap<Text, Arc<Slice>>,
    /// Names of the policies that target it.
    pub policies: BTreeSet<Text>,
    /// Names of the policies whose frontend it is.
    pub fronts: BTreeSet<Text>,
}

impl ServiceRecord {
    /// Whether it is in front of dataplanes, or has been.
    pub fn is_front(&self) -> bool {
        let marked = self.service.as_ref().is_some_and(|s| s.front.is_some());
        let ours = |slice: &Arc<Slice>| slice.writer == SliceWriter::Baton;
        marked || !self.fronts.is_empty() || self.slices.values().any(ours)
    }
}

/// A Pod, or what refers to one that is not known.
#[derive(Debug, Default)]
pub(crate) struct PodRecord {
    pub pod: Option<Arc<Pod>>,
    services: References,
}

/// Services whose slices name a Pod, and how often. Mostly one, which takes no memory of its own
/// then.
#[derive(Debug, Default)]
enum References {
    #[default]
    None,
    One(Text, u32),
    /// Two at least, or what is left of them. In a box, so that the others need no room for a list.
    #[expect(clippy::box_collection, reason = "50,000 Pods have no list")]
    Many(Box<Vec<(Text, u32)>>),
}

impl References {
    fn add(&mut self, service: &Text) {
        match self {
            Self::None => *self = Self::One(service.clone(), 1),
            Self::One(one, count) if one == service => *count += 1,
            Self::One(one, count) => {
                let all = vec![(one.clone(), *count), (service.clone(), 1)];
                *self = Self::Many(Box::new(all));
            }
            Self::Many(all) => match all.iter_mut().find(|(one, _)| one == service) {
                Some((_, count)) => *count += 1,
                None => all.push((service.clone(), 1)),
            },
        }
    }

    fn remove(&mut self, service: &Text) {
        match self {
            Self::None => {}
            Self::One(one, count) => {
                if one == service {
                    *count -= 1;
                    if *count == 0 {
                        *self = Self::None;
                    }
                }
            }
            Self::Many(all) => {
                for (one, count) in all.iter_mut() {
                    *count -= u32::from(one == service);
                }
                all.retain(|(_, count)| *count > 0);
                if all.is_empty() {
                    *self = Self::None;
                }
            }
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    fn names(&self) -> Vec<&Text> {
        match self {
            Self::None => Vec::new(),
            Self::One(one, _) => vec![one],
            Self::Many(all) => all.iter().map(|(one, _)| one).collect(),
        }
    }
}

/// A Node, or what refers to one that is not known.
#[derive(Debug, Default)]
pub(crate) struct NodeRecord {
    pub node: Option<Node>,
    pub shim: Option<Arc<Shim>>,
    /// Services with endpoints there, and how many.
    services: BTreeMap<Key, u32>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub services: BTreeMap<Key, ServiceRecord>,
    pub pods: BTreeMap<Key, PodRecord>,
    pub nodes: BTreeMap<Text, NodeRecord>,
    pub namespaces: BTreeMap<Text, Arc<Namespace>>,
    /// Services that lead clients to their own node alone.
    pub own_node: BTreeSet<Key>,
    /// The Service of each slice.
    slices: BTreeMap<Key, Text>,
    /// Nodes whose host-shim is known: with none at all, its absence on one says nothing.
    pub shims: usize,
    /// Nodes whose Pods get no adoptions, because an admin says so.
    pub excluded: BTreeSet<Text>,
}

impl World {
    /// A Service came, changed or went. Whether that is news.
    pub fn service(&mut self, key: &Key, service: Option<Arc<Service>>) -> bool {
        let front = service.as_ref().and_then(|service| service.front.as_ref());
        match front.is_some_and(|front| front.own_node) {
            true => self.own_node.insert(key.clone()),
            false => self.own_node.remove(key),
        };
        let Some(record) = self.services.get_mut(key) else {
            return match service {
                Some(service) => {
                    self.services.entry(key.clone()).or_default().service = Some(service);
                    true
                }
                None => false,
            };
        };
        let news = record.service != service;
        record.service = service;
        self.forget_service(key);
        news
    }

    /// A policy targets a Service, or does no more.
    pub fn target(&mut self, service: &Key, policy: &Text, on: bool) {
        if on {
            let record = self.services.entry(service.clone()).or_default();
            record.policies.insert(policy.clone());
        } else if let Some(record) = self.services.get_mut(service) {
            record.policies.remove(policy);
            self.forget_service(service);
        }
    }

    /// Services that are in front of dataplanes, or have been.
    pub fn fronts(&self) -> Vec<Key> {
        let fronts = self.services.iter();
        let fronts = fronts.filter(|(_, record)| record.is_front());
        fronts.map(|(key, _)| key.clone()).collect()
    }

    /// A Service is a policy's frontend, or is no more.
    pub fn front(&mut self, service: &Key, policy: &Text, on: bool) {
        if on {
            let record = self.services.entry(service.clone()).or_default();
            record.fronts.insert(policy.clone());
        } else if let Some(record) = self.services.get_mut(service) {
            record.fronts.remove(policy);
            self.forget_service(service);
        }
    }

    fn forget_service(&mut self, key: &Key) {
        let unused = |r: &ServiceRecord| {
            r.service.is_none()
                && r.slices.is_empty()
                && r.policies.is_empty()
                && r.fronts.is_empty()
        };
        if self.services.get(key).is_some_and(unused) {
            self.services.remove(key);
        }
    }

    /// A slice came, changed or went. The Services that are touched.
    pub fn slice(&mut self, key: &Key, slice: Option<Arc<Slice>>) -> Vec<Key> {
        let mut touched = Vec::new();
        let service_of = |name: &Text| Key::new(key.namespace.clone(), name.clone());
        let before = self.slices.get(key).map(service_of);
        if let Some(service) = &before
            && let Some(record) = self.services.get_mut(service)
        {
            let old = record.slices.get(&key.name).cloned();
            if old.is_some() && old == slice {
                return touched;
            }
            record.slices.remove(&key.name);
            touched.push(service.clone());
            if let Some(old) = old {
                self.refer(service, &old, false);
            }
        }
        match slice {
            Some(slice) => {
                let service = service_of(&slice.service);
                self.slices.insert(key.clone(), slice.service.clone());
                self.refer(&service, &slice, true);
                let record = self.services.entry(service.clone()).or_default();
                record.slices.insert(key.name.clone(), slice);
                if !touched.contains(&service) {
                    touched.push(service);
                }
            }
            None => {
                self.slices.remove(key);
            }
        }
        if let Some(service) = before {
            self.forget_service(&service);
        }
        // The one that wants the name for a slice of its own.
        if let Some((wants, _)) = key.name.rsplit_once(SLICE_INFIX) {
            let wants = service_of(&wants.into());
            if self.services.contains_key(&wants) && !touched.contains(&wants) {
                touched.push(wants);
            }
        }
        touched
    }

    /// Whether a slice of this name is another Service's.
    pub fn is_anothers(&self, slice: &Key, service: &Text) -> bool {
        self.slices.get(slice).is_some_and(|of| of != service)
    }

    /// A slice that exists.
    pub fn slice_of(&self, key: &Key) -> Option<&Arc<Slice>> {
        let service = Key::new(key.namespace.clone(), self.slices.get(key)?.clone());
        self.services.get(&service)?.slices.get(&key.name)
    }

    fn refer(&mut self, service: &Key, slice: &Slice, on: bool) {
        for endpoint in &slice.endpoints {
            if let Some(pod) = &endpoint.pod {
                let key = Key::new(service.namespace.clone(), pod.clone());
                if on {
                    let record = self.pods.entry(key).or_default();
                    record.services.add(&service.name);
                } else if let Some(record) = self.pods.get_mut(&key) {
                    record.services.remove(&service.name);
                    if record.pod.is_none() && record.services.is_empty() {
                        self.pods.remove(&key);
                    }
                }
            }
            if let Some(node) = &endpoint.node {
                if on {
                    let record = self.nodes.entry(node.clone()).or_default();
                    *record.services.entry(service.clone()).or_default() += 1;
                } else if let Some(record) = self.nodes.get_mut(node) {
                    if let Some(count) = record.services.get_mut(service) {
                        *count -= 1;
                        if *count == 0 {
                            record.services.remove(service);
                        }
                    }
                    self.forget_node(node);
                }
            }
        }
    }

    /// A Pod came, changed or went. What it was, if it is not the same.
    pub fn pod(&mut self, key: &Key, pod: Option<Arc<Pod>>) -> Option<Option<Arc<Pod>>> {
        let Some(record) = self.pods.get_mut(key) else {
            let pod = pod?;
            self.pods.entry(key.clone()).or_default().pod = Some(pod);
            return Some(None);
        };
        if record.pod == pod {
            return None;
        }
        let before = std::mem::replace(&mut record.pod, pod);
        if record.pod.is_none() && record.services.is_empty() {
            self.pods.remove(key);
        }
        Some(before)
    }

    /// The Services whose endpoints name a Pod.
    pub fn services_of_pod(&self, key: &Key) -> Vec<Key> {
        let names = self.pods.get(key).map(|record| record.services.names());
        let names = names.into_iter().flatten();
        names.map(|name| Key::new(key.namespace.clone(), name.clone())).collect()
    }

    /// The zone of a Node.
    pub fn zone_of(&self, node: Option<&Text>) -> Option<Text> {
        let record = self.nodes.get(node?)?;
        record.node.as_ref()?.zone.clone()
    }

    /// The Services with endpoints on a Node.
    pub fn services_of_node(&self, node: &str) -> Vec<Key> {
        let services = self.nodes.get(node).map(|record| record.services.keys());
        services.into_iter().flatten().cloned().collect()
    }

    /// A Node came, changed or went. What it was, if it is not the same.
    pub fn node(&mut self, name: &Text, node: Option<Node>) -> Option<Option<Node>> {
        let record = self.nodes.entry(name.clone()).or_default();
        let news = record.node != node;
        let before = std::mem::replace(&mut record.node, node);
        self.forget_node(name);
        news.then_some(before)
    }

    /// A Namespace came, changed or went. Whether that is news.
    pub fn namespace(&mut self, name: &Text, namespace: Option<Arc<Namespace>>) -> bool {
        // Without labels it is as if it were not there.
        let namespace = namespace.filter(|namespace| !namespace.labels.is_empty());
        if self.namespaces.get(name) == namespace.as_ref() {
            return false;
        }
        match namespace {
            Some(namespace) => self.namespaces.insert(name.clone(), namespace),
            None => self.namespaces.remove(name),
        };
        true
    }

    /// A host-shim came, changed or went. Whether that is news, and whether it is the first or was
    /// the last one.
    pub fn shim(&mut self, node: &Text, shim: Option<Arc<Shim>>) -> (bool, bool) {
        let record = self.nodes.entry(node.clone()).or_default();
        let news = record.shim != shim;
        let some = self.shims > 0;
        self.shims -= usize::from(record.shim.is_some());
        self.shims += usize::from(shim.is_some());
        record.shim = shim;
        self.forget_node(node);
        (news, some != (self.shims > 0))
    }

    fn forget_node(&mut self, name: &str) {
        let unused = |r: &NodeRecord| r.node.is_none() && r.shim.is_none() && r.services.is_empty();
        if self.nodes.get(name).is_some_and(unused) {
            self.nodes.remove(name);
        }
    }

    /// The Pods of a namespace that exist.
    pub fn pods_in(&self, namespace: &Text) -> impl Iterator<Item = (&Key, &Arc<Pod>)> {
        let first = Key::new(namespace.clone(), "");
        let of = move |key: &Key| key.namespace == first.namespace;
        let start = Key::new(namespace.clone(), "");
        self.pods
            .range(start..)
            .take_while(move |(key, _)| of(key))
            .filter_map(|(key, record)| Some((key, record.pod.as_ref()?)))
    }

    /// The deletion costs that an operator wrote.
    pub fn costs(&self) -> impl Iterator<Item = (&Key, i32)> {
        let pods = self.pods.iter();
        pods.filter_map(|(key, record)| Some((key, record.pod.as_ref()?.cost?)))
    }

    /// All Pods that exist, by namespace and name.
    pub fn live_pods(&self) -> impl Iterator<Item = (&Key, &Arc<Pod>)> {
        let pods = self.pods.iter();
        pods.filter_map(|(key, record)| Some((key, record.pod.as_ref()?)))
    }

    /// A Pod that exists.
    pub fn live_pod(&self, key: &Key) -> Option<&Arc<Pod>> {
        self.pods.get(key)?.pod.as_ref()
    }

    /// Whether nothing at all is kept.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty()
            && self.pods.is_empty()
            && self.nodes.is_empty()
            && self.namespaces.is_empty()
            && self.slices.is_empty()
            && self.shims == 0
            && self.excluded.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::References;
    use crate::Text;

    #[test]
    fn references_count_each_service_by_itself() {
        let [a, b]: [Text; 2] = ["a".into(), "b".into()];
        let names = |r: &References| r.names().iter().map(ToString::to_string).collect::<String>();
        let mut references = References::default();
        assert!(references.is_empty());
        references.remove(&a);
        for (service, on, expected) in [
            (&a, true, "a"),
            (&a, true, "a"),
            (&b, false, "a"),
            (&b, true, "ab"),
            (&b, true, "ab"),
            (&a, false, "ab"),
            (&a, false, "b"),
            (&a, true, "ba"),
            (&b, false, "ba"),
            (&b, false, "a"),
            (&a, false, ""),
            (&b, true, "b"),
            (&b, false, ""),
        ] {
            if on {
                references.add(service);
            } else {
                references.remove(service);
            }
            assert_eq!(names(&references), expected);
            assert_eq!(references.is_empty(), expected.is_empty());
        }
        assert_eq!(size_of::<References>(), 24, "as large as one, in 50,000 records");
    }
}
