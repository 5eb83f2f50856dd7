//! The endpoints of a Service's slices as the backends of one listener.
//!
//! Owns which endpoints count, what each is for the policy (see the head of the crate), its weight
//! and its name. The same objects give the same backends in the same order, whatever order they are
//! given in.

use crate::{
    BackendState, Key, LIMIT_NAMES_SHOWN, Policy, ServicePort, SliceEndpoint, Text, WeightSource,
    allowance::Grants,
    clients::AllowFrom,
    kept::Held,
    world::{ServiceRecord, World},
};
use baton_api::{Backend, Endpoint, LIMIT_BACKENDS_PER_POLICY, is_name, is_node_name};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

/// What a translation reads.
pub(crate) struct View<'a> {
    pub key: &'a Key,
    pub policy: &'a Policy,
    pub world: &'a World,
    /// What each of its classes grants to its namespace.
    pub grants: Vec<Grants<'a>>,
    /// Whose connections it takes, if not everybody's.
    pub allow_from: Option<AllowFrom>,
    /// What dataplanes had, where that counts.
    pub held: Option<&'a BTreeMap<Text, Held>>,
    /// Backends may be missing, too.
    pub partial: bool,
}

/// What is known of a backend besides what the snapshot says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Detail {
    pub name: Text,
    pub pod: Option<Text>,
    pub node: Option<Text>,
    pub state: BackendState,
}

/// The backends of one listener.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Backends {
    /// In order of names, at most [`LIMIT_BACKENDS_PER_POLICY`].
    pub backends: Vec<Backend>,
    /// Of each of them.
    pub details: Vec<Detail>,
    /// Those that had no room.
    pub left_out: usize,
    /// Addresses that can be no pod's.
    pub bad_addresses: BTreeSet<IpAddr>,
    /// Addresses that no Pod of the namespace has and that a class does not allow.
    pub not_allowed: BTreeSet<IpAddr>,
    /// Pods that slices name and that do not exist, or have no address. Pods that go are among them
    /// for a moment.
    pub absent_pods: BTreeSet<Text>,
    /// Pods whose weight is no weight, with what it says; not more than are shown.
    pub bad_weights: BTreeMap<Text, Text>,
}

impl Backends {
    /// Adds those that a dataplane had and that are not among these. Gives how many.
    pub fn keep(&mut self, held: &baton_api::Policy) -> usize {
        let backends = std::mem::take(&mut self.backends);
        let details = std::mem::take(&mut self.details);
        let mut all: Vec<(Backend, Detail)> = backends.into_iter().zip(details).collect();
        let found = all.len();
        for backend in &held.backends {
            let known = |(b, _): &(Backend, Detail)| {
                b.name == backend.name || b.endpoint == backend.endpoint
            };
            // What is there has its place; a held one is left out only where there is no room.
            if all.len() < LIMIT_BACKENDS_PER_POLICY && !all.iter().any(known) {
                let state = match (backend.draining, backend.weight) {
                    (true, _) => BackendState::Draining,
                    (false, 0) => BackendState::NotReady,
                    (false, _) => BackendState::Ready,
                };
                let detail =
                    Detail { name: backend.name.as_str().into(), pod: None, node: None, state };
                all.push((backend.clone(), detail));
            }
        }
        let kept = all.len() - found;
        all.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        (self.backends, self.details) = all.into_iter().unzip();
        kept
    }
}

struct Candidate {
    endpoint: Endpoint,
    pod: Option<Text>,
    node: Option<Text>,
    ready: bool,
    serving: bool,
    terminating: bool,
}

/// The backends behind one port of a Service.
pub(crate) fn backends(view: &View<'_>, service: &ServiceRecord, port: &ServicePort) -> Backends {
    let (namespace, policy, world) = (&view.key.namespace, view.policy, view.world);
    let mut out = Backends::default();
    let mut candidates = merge(view, service, port, &mut out);
    if policy.drain_cordoned
        && let Ok(template) = &policy.template
    {
        drain_cordoned(&mut candidates, world, template.health.panic_percent);
    }
    let mut named: Vec<(String, Candidate)> = name(candidates);
    named.sort_by(|(a, _), (b, _)| a.cmp(b));
    // By name and not by what they are fit for: a readiness flap must not take another one's place.
    out.left_out = named.len().saturating_sub(LIMIT_BACKENDS_PER_POLICY);
    named.truncate(LIMIT_BACKENDS_PER_POLICY);
    out.details.reserve_exact(named.len());
    out.backends.reserve_exact(named.len());
    for (name, candidate) in named {
        let serves = if candidate.terminating { candidate.serving } else { candidate.ready };
        let pod = candidate.pod.as_ref();
        let weight = weight(namespace, policy, pod, world, &mut out.bad_weights);
        let state = match (candidate.terminating, candidate.ready) {
            (true, _) => BackendState::Draining,
            (false, true) => BackendState::Ready,
            (false, false) => BackendState::NotReady,
        };
        let node = keys_of(namespace, &candidate, world);
        out.details.push(Detail {
            name: pod
                .filter(|pod| ***pod == *name)
                .cloned()
                .unwrap_or_else(|| name.as_str().into()),
            pod: candidate.pod,
            node: candidate.node,
            state,
        });
        out.backends.push(Backend {
            name,
            endpoint: candidate.endpoint,
            weight: if serves { weight } else { 0 },
            draining: candidate.terminating,
            node: node.map(|node| node.to_string()),
        });
    }
    out
}

/// The node whose adoption keys it has: the one that the API server says of the Pod that has the
/// address. What a slice says of nodes is the word of whoever wrote it. Excluded ones have none.
fn keys_of(namespace: &Text, candidate: &Candidate, world: &World) -> Option<Text> {
    let key = Key::new(namespace.clone(), candidate.pod.clone()?);
    let pod = world.live_pod(&key)?;
    let node = pod.node.clone().filter(|node| is_node_name(node));
    let node = node.filter(|node| !world.excluded.contains(node));
    node.filter(|_| pod.has(candidate.endpoint.address()))
}

/// Whether an endpoint counts. What does not is noted.
fn counts(view: &View<'_>, found: &SliceEndpoint, out: &mut Backends) -> bool {
    let address = found.address.to_canonical();
    if address.is_unspecified() || address.is_multicast() {
        out.bad_addresses.insert(found.address);
        return false;
    }
    let named = found.pod.as_ref().map(|name| {
        let key = Key::new(view.key.namespace.clone(), name.clone());
        (name, view.world.live_pod(&key))
    });
    if let Some((_, Some(pod))) = named
        && pod.has(address)
    {
        return true;
    }
    if view.grants.iter().all(|grants| grants.endpoint(address)) {
        return true;
    }
    match named {
        Some((name, pod)) if pod.is_none_or(|pod| pod.address.is_none()) => {
            out.absent_pods.insert(name.clone());
        }
        _ => {
            out.not_allowed.insert(found.address);
        }
    }
    false
}

/// One candidate per address and port.
fn merge(
    view: &View<'_>,
    service: &ServiceRecord,
    port: &ServicePort,
    out: &mut Backends,
) -> Vec<Candidate> {
    let (namespace, world) = (&view.key.namespace, view.world);
    // An endpoint that moves from one slice to another is in both for a while.
    let mut merged: BTreeMap<(Endpoint, Option<&Text>), Candidate> = BTreeMap::new();
    for slice in service.slices.values() {
        for slice_port in slice.ports.iter().filter(|p| p.name == port.name) {
            for found in &slice.endpoints {
                let address = found.address;
                let Some(endpoint) = Endpoint::new(address, slice_port.port) else {
                    continue;
                };
                if !counts(view, found, out) {
                    continue;
                }
                let pod = found.pod.as_ref();
                let deleting = pod
                    .and_then(|pod| world.live_pod(&Key::new(namespace.clone(), pod.clone())))
                    .is_some_and(|pod| pod.deleting);
                let candidate = merged.entry((endpoint, pod)).or_insert_with(|| Candidate {
                    endpoint,
                    pod: found.pod.clone(),
                    node: found.node.clone(),
                    ready: false,
                    serving: false,
                    terminating: false,
                });
                candidate.ready |= found.conditions.ready;
                candidate.serving |= found.conditions.serving;
                candidate.terminating |= found.conditions.terminating || deleting;
                if found.node < candidate.node {
                    candidate.node.clone_from(&found.node);
                }
            }
        }
    }
    // An address that went from one Pod to another may be in two slices too: the one that stays has
    // it.
    let mut chosen: BTreeMap<Endpoint, Candidate> = BTreeMap::new();
    let rank = |c: &Candidate| (c.pod.is_none(), c.terminating);
    for ((endpoint, _), candidate) in merged {
        match chosen.get(&endpoint) {
            Some(other) if rank(other) <= rank(&candidate) => {}
            _ => {
                chosen.insert(endpoint, candidate);
            }
        }
    }
    chosen.into_values().collect()
}

/// Endpoints on cordoned nodes drain, if others are ready elsewhere, and these are not so small a
/// part of all that are ready that the policy would rather use bad ones, too: where all nodes of a
/// pool are cordoned at once, the first Pod on a new one would get everything.
fn drain_cordoned(candidates: &mut [Candidate], world: &World, panic_percent: u8) {
    let cordoned = |c: &Candidate| {
        let node = c.node.as_ref().and_then(|name| world.nodes.get(name));
        node.and_then(|record| record.node.as_ref()).is_some_and(|node| node.cordoned)
    };
    let ready = || candidates.iter().filter(|c| c.ready && !c.terminating);
    let elsewhere = ready().filter(|c| !cordoned(c)).count();
    if elsewhere == 0 || elsewhere * 100 < ready().count() * usize::from(panic_percent) {
        return;
    }
    for candidate in candidates.iter_mut().filter(|c| !c.terminating && cordoned(c)) {
        candidate.terminating = true;
        // It is not going away, so its readiness says whether it serves.
        candidate.serving = candidate.ready;
    }
}

fn weight(
    namespace: &Text,
    policy: &Policy,
    pod: Option<&Text>,
    world: &World,
    bad: &mut BTreeMap<Text, Text>,
) -> u16 {
    let Some(weights) = &policy.weights else {
        return 1;
    };
    let Some(name) = pod else {
        return weights.default;
    };
    let Some(pod) = world.live_pod(&Key::new(namespace.clone(), name.clone())) else {
        return weights.default;
    };
    let text = match &weights.source {
        WeightSource::Label(key) => pod.labels.get(key),
        WeightSource::Annotation(key) => pod.annotations.get(key),
    };
    let Some(text) = text else {
        return weights.default;
    };
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    match text.parse() {
        Ok(weight) if digits => weight,
        _ => {
            if bad.len() < LIMIT_NAMES_SHOWN {
                bad.insert(name.clone(), text.clone());
            }
            weights.default
        }
    }
}

/// Gives each a name of its own: its Pod's, `POD/ipv6` for the IPv6 address of a Pod that has both,
/// the address where there is no Pod. What would be a name twice gets the address behind it, then
/// the port too.
fn name(mut candidates: Vec<Candidate>) -> Vec<(String, Candidate)> {
    let v4: BTreeSet<Text> = candidates
        .iter()
        .filter(|c| c.endpoint.address().is_ipv4())
        .filter_map(|c| c.pod.clone())
        .collect();
    candidates.sort_by(|a, b| (&a.pod, a.endpoint).cmp(&(&b.pod, b.endpoint)));
    let mut taken = BTreeSet::new();
    let mut named = Vec::with_capacity(candidates.len());
    for candidate in candidates {
        let (address, port) = (candidate.endpoint.address(), candidate.endpoint.port());
        // A name has no colons. Addresses have no hyphens, so this is as unique as they are.
        let address_text = address.to_string().replace(':', "-");
        let base = match &candidate.pod {
            Some(pod) if address.is_ipv6() && v4.contains(pod) => format!("{pod}/ipv6"),
            Some(pod) => pod.to_string(),
            None => address_text.clone(),
        };
        let base = if is_name(&base) { base } else { address_text.clone() };
        let choices = [
            format!("{base}/{address_text}"),
            format!("{base}/{address_text}.{port}"),
            // No Pod's name holds a slash, so this is nobody else's.
            format!("ip/{address_text}.{port}"),
        ];
        let free = |name: &String| is_name(name) && !taken.contains(name);
        let name = std::iter::once(base).chain(choices).find(free);
        if let Some(name) = name {
            taken.insert(name.clone());
            named.push((name, candidate));
        }
    }
    named
}
