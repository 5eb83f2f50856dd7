//! Whose connections a policy takes: networks, and Pods by their labels and their namespaces'.
//!
//! Owns the types, and which Pods each wanted set has at present. A change of a Pod is looked up by
//! one label that a set wants, or by its namespace, so that 5,000 policies with selectors cost a
//! Pod's change a few look-ups; what it changes is what is translated anew. Decides nothing about
//! policies.
//!
//! # Decisions
//!
//! - **Selectors become addresses in the operator**, as an implementation of NetworkPolicy does it.
//!   Dataplanes know no labels, and go on with the addresses that they have while the operator or
//!   the API server is away: a Pod that begins meanwhile is let in later.
//! - **Pods of a node's network are chosen by no selector**: their addresses are the node's, and a
//!   selector would let in all that runs there. NetworkPolicy's implementations do the same.

use crate::{Key, Labels, NAMESPACE_NAME_LABEL, Namespace, Pod, Text, world::World};
use baton_api::{LIMIT_ALLOW_FROM, Network};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

/// Some of a policy's clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// By address.
    Network(Network),
    /// Pods.
    Pods {
        /// Of which namespaces; without it of the policy's own.
        namespaces: Option<Selector>,
        /// Which of them.
        pods: Selector,
    },
}

/// Chooses by labels; what asks for nothing chooses all.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Selector {
    /// All of these are there.
    pub labels: Labels,
    /// And all of these are true.
    pub expressions: Vec<Expression>,
}

/// What is asked of one label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Expression {
    /// It has one of these values.
    In(Text, BTreeSet<Text>),
    /// It has none of these values, or is not there.
    NotIn(Text, BTreeSet<Text>),
    /// It is there.
    Exists(Text),
    /// It is not there.
    DoesNotExist(Text),
}

impl Selector {
    /// Whether it chooses what has these labels.
    fn fits<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        let among = |key: &Text, values: &BTreeSet<Text>| {
            label(key).is_some_and(|value| values.contains(value))
        };
        let all = self.labels.iter();
        let all = all.map(|(key, value)| label(key) == Some(value));
        let asked = self.expressions.iter().map(|one| match one {
            Expression::In(key, values) => among(key, values),
            Expression::NotIn(key, values) => !among(key, values),
            Expression::Exists(key) => label(key).is_some(),
            Expression::DoesNotExist(key) => label(key).is_none(),
        });
        all.chain(asked).all(|is| is)
    }

    fn fits_pod(&self, pod: &Pod) -> bool {
        self.fits(|key| pod.labels.get(key).map(|value| &**value))
    }

    /// The label of its name holds without a Namespace too.
    fn fits_namespace(&self, name: &str, namespace: Option<&Namespace>) -> bool {
        self.fits(|key| match key == NAMESPACE_NAME_LABEL {
            true => Some(name),
            false => namespace?.labels.get(key).map(|value| &**value),
        })
    }
}

/// One set of Pods that is wanted, whoever wants it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Wanted {
    within: Within,
    pods: Selector,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Within {
    /// The policy's own namespace.
    Own(Text),
    Namespaces(Selector),
}

/// What a Pod surely has that is in a wanted set: a set is found by it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Anchor {
    Namespace(Text),
    PodLabel(Text, Text),
    NamespaceLabel(Text, Text),
    /// Nothing is certain.
    Any,
}

impl Wanted {
    fn of(policy: &Key, peer: &Peer) -> Option<Self> {
        let Peer::Pods { namespaces, pods } = peer else {
            return None;
        };
        let within = match namespaces {
            None => Within::Own(policy.namespace.clone()),
            Some(selector) => Within::Namespaces(selector.clone()),
        };
        Some(Self { within, pods: pods.clone() })
    }

    /// The one namespace that its Pods can be of.
    fn namespace(&self) -> Option<&Text> {
        match &self.within {
            Within::Own(namespace) => Some(namespace),
            Within::Namespaces(selector) => selector.labels.get(NAMESPACE_NAME_LABEL),
        }
    }

    fn anchor(&self) -> Anchor {
        let first = |labels: &Labels| {
            let pair = labels.iter().next();
            pair.map(|(key, value)| (Text::from(key), Text::from(value)))
        };
        if let Some(namespace) = self.namespace() {
            return Anchor::Namespace(namespace.clone());
        }
        if let Some((key, value)) = first(&self.pods.labels) {
            return Anchor::PodLabel(key, value);
        }
        match &self.within {
            Within::Namespaces(selector) => first(&selector.labels)
                .map_or(Anchor::Any, |(key, value)| Anchor::NamespaceLabel(key, value)),
            Within::Own(_) => Anchor::Any,
        }
    }

    fn has_namespace(&self, name: &Text, namespace: Option<&Namespace>) -> bool {
        match &self.within {
            Within::Own(own) => own == name,
            Within::Namespaces(selector) => selector.fits_namespace(name, namespace),
        }
    }
}

/// A Pod's addresses, as clients have them.
type Addresses = [Option<IpAddr>; 2];

fn addresses(pod: &Pod) -> Option<Addresses> {
    let usable = |address: &IpAddr| !address.is_unspecified() && !address.is_multicast();
    let both = [pod.address, pod.second_address];
    let both = both.map(|a| a.map(|a| a.to_canonical()).filter(usable));
    (!pod.host_network && both != [None, None]).then_some(both)
}

/// Who wants a set, and the Pods in it.
#[derive(Debug, Default)]
struct Chosen {
    policies: BTreeSet<Key>,
    /// Nothing: to be looked for when a policy is translated. Until then all its policies are to be
    /// translated anyway, or are not in force.
    pods: Option<BTreeMap<Key, Addresses>>,
}

/// Sets of Pods that policies want, and who is in them.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    wanted: BTreeMap<Arc<Wanted>, Chosen>,
    anchors: BTreeMap<Anchor, BTreeSet<Arc<Wanted>>>,
    /// By policy, those that want any.
    of: BTreeMap<Key, BTreeSet<Arc<Wanted>>>,
}

/// What a policy's `allowFrom` came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AllowFrom {
    /// In order, at most [`LIMIT_ALLOW_FROM`].
    pub networks: BTreeSet<Network>,
    /// Those of Pods that had no room.
    pub left_out: usize,
}

impl AllowFrom {
    /// Adds what a dataplane had, as far as there is room.
    pub fn keep(&mut self, held: &[Network]) {
        for network in held {
            if self.networks.len() < LIMIT_ALLOW_FROM {
                self.networks.insert(*network);
            }
        }
    }
}

impl Clients {
    /// What a policy wants from now on.
    pub fn follow(&mut self, policy: &Key, peers: Option<&[Peer]>) {
        let peers = peers.unwrap_or_default().iter();
        let now: BTreeSet<Arc<Wanted>> =
            peers.filter_map(|peer| Wanted::of(policy, peer).map(Arc::new)).collect();
        let before = match now.is_empty() {
            true => self.of.remove(policy),
            false => self.of.insert(policy.clone(), now.clone()),
        };
        let before = before.unwrap_or_default();
        for gone in before.difference(&now) {
            self.forget(gone, policy);
        }
        for new in now.difference(&before) {
            let chosen = self.wanted.entry(Arc::clone(new)).or_default();
            chosen.policies.insert(policy.clone());
            let anchored = self.anchors.entry(new.anchor()).or_default();
            anchored.insert(Arc::clone(new));
        }
    }

    fn forget(&mut self, wanted: &Arc<Wanted>, policy: &Key) {
        let Some(chosen) = self.wanted.get_mut(wanted) else {
            return;
        };
        chosen.policies.remove(policy);
        if !chosen.policies.is_empty() {
            return;
        }
        self.wanted.remove(wanted);
        let anchor = wanted.anchor();
        if let Some(anchored) = self.anchors.get_mut(&anchor) {
            anchored.remove(wanted);
            if anchored.is_empty() {
                self.anchors.remove(&anchor);
            }
        }
    }

    /// A Pod came, changed or went. The policies whose clients changed.
    pub fn pod(
        &mut self,
        key: &Key,
        before: Option<&Pod>,
        after: Option<&Pod>,
        namespace: Option<&Namespace>,
    ) -> BTreeSet<Key> {
        let mut touched = BTreeSet::new();
        let matters = |pod: &Pod| (pod.labels.clone(), addresses(pod));
        if self.wanted.is_empty() || before.map(matters) == after.map(matters) {
            return touched;
        }
        let pair = |(key, value): (&str, &str)| (Text::from(key), Text::from(value));
        let own = [before, after].into_iter().flatten();
        let own = own.flat_map(|pod| pod.labels.iter()).map(pair);
        let its = namespace.into_iter().flat_map(|n| n.labels.iter());
        let found = own
            .map(|(key, value)| Anchor::PodLabel(key, value))
            .chain(its.map(pair).map(|(k, v)| Anchor::NamespaceLabel(k, v)))
            .chain([Anchor::Namespace(key.namespace.clone()), Anchor::Any])
            .filter_map(|anchor| self.anchors.get(&anchor))
            .flatten();
        for wanted in found {
            let Some(chosen) = self.wanted.get_mut(wanted) else {
                continue;
            };
            let Some(pods) = &mut chosen.pods else {
                continue;
            };
            let now = after.filter(|pod| {
                wanted.has_namespace(&key.namespace, namespace) && wanted.pods.fits_pod(pod)
            });
            let now = now.and_then(addresses);
            let was = match now {
                Some(now) => pods.insert(key.clone(), now),
                None => pods.remove(key),
            };
            if was != now {
                touched.extend(chosen.policies.iter().cloned());
            }
        }
        touched
    }

    /// A Namespace came, changed or went. The policies whose clients may have changed.
    pub fn namespace(
        &mut self,
        name: &Text,
        before: Option<&Namespace>,
        after: Option<&Namespace>,
    ) -> BTreeSet<Key> {
        let mut touched = BTreeSet::new();
        let known = self.wanted.iter_mut();
        for (wanted, chosen) in known.filter(|(_, chosen)| chosen.pods.is_some()) {
            if wanted.has_namespace(name, before) != wanted.has_namespace(name, after) {
                chosen.pods = None;
                touched.extend(chosen.policies.iter().cloned());
            }
        }
        touched
    }

    /// What a policy's list comes to; nothing where it takes everybody's connections.
    pub fn resolve(
        &mut self,
        policy: &Key,
        peers: Option<&[Peer]>,
        world: &World,
    ) -> Option<AllowFrom> {
        let peers = peers?;
        let mut all = AllowFrom::default();
        all.networks.extend(peers.iter().filter_map(|peer| match peer {
            Peer::Network(network) => Some(*network),
            Peer::Pods { .. } => None,
        }));
        let mut hosts = BTreeSet::new();
        for wanted in self.of.get(policy).into_iter().flatten() {
            let Some(chosen) = self.wanted.get_mut(wanted) else {
                continue;
            };
            let pods = chosen.pods.get_or_insert_with(|| look_for(wanted, world));
            let addresses = pods.values().flatten().flatten();
            hosts.extend(addresses.map(|address| Network::host(*address)));
        }
        hosts.retain(|host| !all.networks.contains(host));
        let room = LIMIT_ALLOW_FROM.saturating_sub(all.networks.len());
        all.left_out = hosts.len().saturating_sub(room);
        all.networks.extend(hosts.into_iter().take(room));
        Some(all)
    }

    pub fn is_empty(&self) -> bool {
        self.wanted.is_empty() && self.anchors.is_empty() && self.of.is_empty()
    }
}

/// The Pods of a set, among all that there are.
fn look_for(wanted: &Wanted, world: &World) -> BTreeMap<Key, Addresses> {
    let fits = |(key, pod): (&Key, &Arc<Pod>)| {
        let fits = wanted.pods.fits_pod(pod);
        Some((key.clone(), addresses(pod).filter(|_| fits)?))
    };
    let of = |namespace: &Text| {
        let known = world.namespaces.get(namespace);
        wanted.has_namespace(namespace, known.map(|known| &**known))
    };
    if let Some(namespace) = wanted.namespace() {
        let all = world.pods_in(namespace).filter(|_| of(namespace));
        return all.filter_map(fits).collect();
    }
    // Pods are in order of namespaces: each is asked for once.
    let mut last: Option<(&Text, bool)> = None;
    let all = world.live_pods().filter(|(key, _)| match last {
        Some((namespace, fits)) if *namespace == key.namespace => fits,
        _ => {
            let fits = of(&key.namespace);
            last = Some((&key.namespace, fits));
            fits
        }
    });
    all.filter_map(fits).collect()
}
