//! What the snapshots and who is accepted must be, computed from all objects in the plainest way:
//! no state, no shortcuts. Written apart from the index on purpose; only its inputs' types are
//! shared.

use super::universe::{Given, Objects};
use baton_api::{Backend, Endpoint, LIMIT_NAME_BYTES, LIMIT_POLICIES, Snapshot};
use baton_index::{
    Allowance, Class, Expression, Family, Key, Labels, Listener, NAMESPACE_NAME_LABEL, Peer, Pod,
    Policy, PortRange, PortRef, Selector, Slice, SliceEndpoint, Text, WeightSource,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

/// Everything that the index should come to, as far as it is easy to say.
#[derive(Debug, Default, PartialEq)]
pub struct Expected {
    /// By class.
    pub given: BTreeMap<Text, Given>,
    pub snapshots: BTreeMap<Text, Vec<baton_api::Policy>>,
    pub members: BTreeMap<Text, Vec<(Key, IpAddr)>>,
    /// The reason of `Accepted`.
    pub accepted: BTreeMap<Key, &'static str>,
}

fn includes(all: &Labels, wanted: &Labels) -> bool {
    wanted.iter().all(|(k, v)| all.iter().any(|pair| pair == (k, v)))
}

fn good_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= LIMIT_NAME_BYTES
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._/".contains(&b))
}

/// What each class's dataplanes say or are known to have as their own.
fn own(objects: &Objects, members: &[(Key, IpAddr)]) -> BTreeSet<IpAddr> {
    let mut own = BTreeSet::new();
    for (key, address) in members {
        own.insert(address.to_canonical());
        own.extend(objects.pods[key].second_address.map(|a| a.to_canonical()));
        let said = objects.reports.get(key).map(|report| &report.addresses);
        own.extend(said.into_iter().flatten().map(IpAddr::to_canonical));
    }
    own
}

/// What of a class is for policies of a namespace.
fn allowed<'a>(
    objects: &'a Objects,
    class: &'a Text,
    namespace: &'a Text,
) -> impl Iterator<Item = &'a Allowance> {
    objects.classes[class].allowed.iter().filter(move |a| {
        let labels = objects.namespaces.get(namespace).map(|n| &n.labels);
        let none = Labels::default();
        let named = a.namespaces.names.is_empty() || a.namespaces.names.contains(namespace);
        named && includes(labels.unwrap_or(&none), &a.namespaces.labels)
    })
}

/// The pods with an address of each class.
fn members(objects: &Objects) -> BTreeMap<Text, Vec<(Key, IpAddr)>> {
    let mut out = BTreeMap::new();
    for (name, class) in &objects.classes {
        let mine = objects.pods.iter().filter(|(key, pod)| {
            let fits = |c: &baton_index::Class| {
                c.namespace == key.namespace
                    && !c.selector.is_empty()
                    && includes(&pod.labels, &c.selector)
            };
            let mut candidates: Vec<_> = objects.classes.iter().filter(|(_, c)| fits(c)).collect();
            candidates.sort_by_key(|(name, c)| (c.created, (*name).clone()));
            fits(class) && candidates[0].0 == name
        });
        let mine = mine.filter_map(|(key, pod)| Some((key.clone(), pod.address?)));
        out.insert(name.clone(), mine.collect());
    }
    out
}

/// Somebody looks: what is good now is remembered.
pub fn look(objects: &mut Objects) {
    let members = members(objects);
    for (key, policy) in objects.policies.clone() {
        if fit(objects, &members, &key, &policy).is_ok() {
            objects.good.insert(key, policy);
        }
    }
}

pub fn expect(objects: &Objects) -> Expected {
    let mut out = Expected { members: members(objects), ..Expected::default() };
    for name in objects.classes.keys() {
        out.snapshots.insert(name.clone(), Vec::new());
    }
    let mut order: Vec<(&Key, &Arc<Policy>)> = objects.policies.iter().collect();
    order.sort_by_key(|(key, p)| (p.created, (*key).clone()));
    let mut taken: BTreeSet<String> = BTreeSet::new();
    let mut wanted: BTreeMap<Text, Vec<(Key, Vec<baton_api::Policy>)>> = BTreeMap::new();
    for (key, policy) in order {
        let mut fits = fit(objects, &out.members, key, policy);
        let mut served = policy;
        // A slip: what it said before is served.
        let slip = matches!(fits, Err("Invalid"));
        if let Some(good) = objects.good.get(key).filter(|_| slip) {
            fits = fit(objects, &out.members, key, good);
            served = good;
        }
        let reason = match fits {
            Err(reason) => reason,
            Ok((classes, claims)) => {
                if claims.iter().any(|claim| taken.contains(claim)) {
                    "Conflicted"
                } else {
                    taken.extend(claims);
                    let (reason, policies) = serve(objects, key, served, &classes);
                    for class in classes {
                        let wanted = wanted.entry(class).or_default();
                        wanted.push((key.clone(), policies.clone()));
                    }
                    reason
                }
            }
        };
        let reason = if slip { "Invalid" } else { reason };
        out.accepted.insert(key.clone(), reason);
    }
    let none = Given::new();
    for (class, wanted) in wanted {
        let had = objects.in_force.get(&class).unwrap_or(&none);
        let given = share_out(&objects.classes[&class], &wanted, had);
        let policies = out.snapshots.entry(class.clone()).or_default();
        policies.extend(given.values().flatten().cloned());
        out.given.insert(class, given);
    }
    for policies in out.snapshots.values_mut() {
        policies.sort_by(|a, b| a.name.cmp(&b.name));
    }
    out
}

/// What was in force has its place first, then what of it grew, then what comes: each by age, and
/// who does not fit is left out.
fn share_out(class: &Class, wanted: &[(Key, Vec<baton_api::Policy>)], had: &Given) -> Given {
    let mut given = Given::new();
    let mut take = |key: &Key, policies: Vec<baton_api::Policy>| {
        let before = given.insert(key.clone(), policies);
        let backends: usize = given.values().map(|policies| endpoints(policies).len()).sum();
        let fits = given.values().map(Vec::len).sum::<usize>()
            <= class.limit_policies.min(LIMIT_POLICIES)
            && class.limit_backends.is_none_or(|limit| backends <= limit - limit / 8);
        if !fits {
            given.remove(key);
            given.extend(before.map(|before| (key.clone(), before)));
        }
        fits
    };
    let had: BTreeMap<_, _> = had.iter().filter(|(_, had)| !had.is_empty()).collect();
    let of_old = wanted.iter().filter(|(key, _)| had.contains_key(key));
    let stay: Vec<_> = of_old.filter(|(key, wanted)| take(key, part(wanted, had[key]))).collect();
    let come = wanted.iter().filter(|(key, _)| !had.contains_key(key));
    for (key, wanted) in stay.into_iter().chain(come) {
        take(key, wanted.clone());
    }
    given
}

/// No more than it had, and of that what it had first.
fn part(wanted: &[baton_api::Policy], had: &[baton_api::Policy]) -> Vec<baton_api::Policy> {
    let mut kept = wanted.to_vec();
    kept.sort_by_key(|policy| !had.iter().any(|had| had.name == policy.name));
    kept.truncate(had.len());
    kept.sort_by_key(|policy| wanted.iter().position(|w| w.name == policy.name));
    let had = endpoints(had);
    let mut order = Vec::new();
    for endpoint in kept.iter().flat_map(|p| &p.backends).map(|b| b.endpoint) {
        if !order.contains(&endpoint) {
            order.push(endpoint);
        }
    }
    order.sort_by_key(|endpoint| !had.contains(endpoint));
    order.truncate(had.len());
    for policy in &mut kept {
        policy.backends.retain(|b| order.contains(&b.endpoint));
    }
    kept
}

/// Distinct ones.
fn endpoints(policies: &[baton_api::Policy]) -> BTreeSet<Endpoint> {
    let backends = policies.iter().flat_map(|p| &p.backends);
    backends.map(|b| b.endpoint).collect()
}

type Fit = (Vec<Text>, BTreeSet<String>);

fn fit(
    objects: &Objects,
    members: &BTreeMap<Text, Vec<(Key, IpAddr)>>,
    key: &Key,
    policy: &Policy,
) -> Result<Fit, &'static str> {
    let template = policy.template.as_ref().map_err(|_| "Invalid")?;
    if policy.listeners.is_empty() {
        return Err("Invalid");
    }
    for (i, listener) in policy.listeners.iter().enumerate() {
        let full = format!("{key}/{}", listener.name);
        if !good_name(&full)
            || listener.name.is_empty()
            || listener.port == 0
            || policy.listeners[..i].iter().any(|other| other.name == listener.name)
            || listener.addresses.iter().any(|a| a.to_canonical().is_multicast())
            || template.migration.ratio_percent < 100
        {
            return Err("Invalid");
        }
    }
    let classes: Vec<Text> = objects
        .classes
        .iter()
        .filter(|(_, c)| {
            if policy.classes.is_empty() { c.default } else { includes(&c.labels, &policy.classes) }
        })
        .map(|(name, _)| name.clone())
        .collect();
    if classes.is_empty() {
        return Err("NoDataplaneClass");
    }
    let mut claims = BTreeSet::from([format!("service {}/{}", key.namespace, policy.service)]);
    for class in &classes {
        for listener in &policy.listeners {
            let own = own(objects, &members[class]);
            let all: BTreeSet<IpAddr> =
                listener.addresses.iter().map(IpAddr::to_canonical).collect();
            for any in ["0.0.0.0", "::"].map(|any| any.parse::<IpAddr>().expect("an address")) {
                let alike = |own: &&IpAddr| own.is_ipv4() == any.is_ipv4();
                if all.contains(&any) && own.intersection(&all).any(|own| alike(&own)) {
                    return Err("Invalid");
                }
            }
            let mut places = BTreeSet::new();
            for address in &listener.addresses {
                let address = address.to_canonical();
                if address.is_unspecified() || own.contains(&address) {
                    places.insert(if address.is_ipv4() {
                        "own4".to_owned()
                    } else {
                        "own6".to_owned()
                    });
                }
                if !address.is_unspecified() {
                    places.insert(address.to_string());
                }
            }
            if listener.addresses.is_empty() {
                places.extend(["own4".to_owned(), "own6".to_owned()]);
            }
            // In the order in which the index looks: own addresses first.
            let mut places: Vec<_> = places.into_iter().collect();
            places.sort_by_key(|place| !place.starts_with("own"));
            for place in places {
                let spec = &objects.classes[class];
                let (is_own, port) = (place.starts_with("own"), listener.port);
                if is_own && spec.leg_ports.is_some_and(|(a, b)| a <= port && port <= b) {
                    return Err("PortInLegRange");
                }
                let reserved = |r: &PortRange| r.first <= port && port <= r.last;
                if is_own && (spec.control_port == port || spec.reserved_ports.iter().any(reserved))
                {
                    return Err("PortReserved");
                }
                let mut grants = allowed(objects, class, &key.namespace)
                    .filter(|a| a.ports.iter().any(|r| r.first <= port && port <= r.last));
                let address: Option<IpAddr> = place.parse().ok();
                let fits = |a: &Allowance| match address.filter(|a| !own.contains(a)) {
                    None => true,
                    Some(address) => a.addresses.iter().any(|network| network.contains(address)),
                };
                if !grants.any(fits) {
                    return Err("NotAllowed");
                }
                if !claims.insert(format!("{class} {place} {}", listener.port)) {
                    return Err("Invalid");
                }
            }
        }
    }
    Ok((classes, claims))
}

fn serve(
    objects: &Objects,
    key: &Key,
    policy: &Policy,
    classes: &[Text],
) -> (&'static str, Vec<baton_api::Policy>) {
    let Some(service) =
        objects.services.get(&Key::new(key.namespace.clone(), policy.service.clone()))
    else {
        return ("TargetNotFound", Vec::new());
    };
    if service.external_name {
        return ("Invalid", Vec::new());
    }
    let mut made = Vec::new();
    for listener in &policy.listeners {
        let port = service.ports.iter().find(|port| match &listener.service_port {
            PortRef::Name(name) | PortRef::Section(name) => port.name == *name,
            PortRef::Number(number) => port.port == *number,
        });
        let Some(port) = port else { continue };
        let mut snapshot = (**policy.template.as_ref().expect("checked")).clone();
        snapshot.name = format!("{key}/{}", listener.name);
        snapshot.frontends = frontends(listener, &service.families);
        snapshot.backends = backends(objects, key, policy, &port.name, classes);
        snapshot.allow_from = allow_from(objects, key, policy);
        made.push(snapshot);
    }
    if made.is_empty() { ("PortNotFound", made) } else { ("Accepted", made) }
}

fn frontends(listener: &Listener, families: &[Family]) -> Vec<Endpoint> {
    let texts: Vec<IpAddr> = if !listener.addresses.is_empty() {
        listener.addresses.clone()
    } else if families.is_empty() {
        vec!["0.0.0.0".parse().expect("v4")]
    } else {
        let text = |f: &Family| if *f == Family::V4 { "0.0.0.0" } else { "::" };
        families.iter().map(|f| text(f).parse().expect("an address")).collect()
    };
    let mut all: Vec<Endpoint> =
        texts.into_iter().map(|a| Endpoint::new(a, listener.port).expect("a port")).collect();
    all.sort();
    all.dedup();
    all
}

/// Whether a selector fits labels.
fn fits(selector: &Selector, labels: &BTreeMap<&str, &str>) -> bool {
    let value = |key: &Text| labels.get(&**key).copied();
    let among = |key: &Text, all: &BTreeSet<Text>| value(key).is_some_and(|v| all.contains(v));
    selector.labels.iter().all(|(k, v)| labels.get(k) == Some(&v))
        && selector.expressions.iter().all(|one| match one {
            Expression::In(key, all) => among(key, all),
            Expression::NotIn(key, all) => !among(key, all),
            Expression::Exists(key) => value(key).is_some(),
            Expression::DoesNotExist(key) => value(key).is_none(),
        })
}

/// Each Pod, asked for each item.
fn allow_from(objects: &Objects, key: &Key, policy: &Policy) -> Option<Vec<baton_api::Network>> {
    let mut all = BTreeSet::new();
    for peer in policy.allow_from.as_ref()?.iter() {
        let (namespaces, pods) = match peer {
            Peer::Network(network) => {
                all.insert(*network);
                continue;
            }
            Peer::Pods { namespaces, pods } => (namespaces, pods),
        };
        for (at, pod) in objects.pods.iter().filter(|(_, pod)| !pod.host_network) {
            let known = objects.namespaces.get(&at.namespace);
            let mut labels: BTreeMap<&str, &str> =
                known.iter().flat_map(|n| n.labels.iter()).collect();
            labels.insert(NAMESPACE_NAME_LABEL, &at.namespace);
            let there = match namespaces {
                None => at.namespace == key.namespace,
                Some(namespaces) => fits(namespaces, &labels),
            };
            if there && fits(pods, &pod.labels.iter().collect()) {
                let own = [pod.address, pod.second_address].into_iter().flatten();
                let own = own.map(|a| a.to_canonical());
                let own = own.filter(|a| !a.is_unspecified() && !a.is_multicast());
                all.extend(own.map(baton_api::Network::host));
            }
        }
    }
    Some(all.into_iter().collect())
}

struct One {
    endpoint: Endpoint,
    pod: Option<Text>,
    ready: bool,
    serving: bool,
    leaves: bool,
    cordoned: bool,
}

/// Whether an endpoint is a Pod of its namespace, or each class allows it.
fn counts(objects: &Objects, key: &Key, endpoint: &SliceEndpoint, classes: &[Text]) -> bool {
    let address = endpoint.address.to_canonical();
    let pod = endpoint.pod.as_ref();
    let pod = pod.and_then(|pod| objects.pods.get(&Key::new(key.namespace.clone(), pod.clone())));
    let own = pod.into_iter().flat_map(|p| [p.address, p.second_address]);
    let its = own.flatten().any(|own| own.to_canonical() == address);
    its || classes.iter().all(|class| {
        let mut networks = allowed(objects, class, &key.namespace).flat_map(|a| &a.endpoints);
        networks.any(|network| network.contains(address))
    })
}

fn backends(
    objects: &Objects,
    key: &Key,
    policy: &Policy,
    port: &str,
    classes: &[Text],
) -> Vec<Backend> {
    let mine =
        |(k, s): &(&Key, &Arc<Slice>)| k.namespace == key.namespace && s.service == policy.service;
    let mut found: Vec<(Endpoint, &SliceEndpoint)> = Vec::new();
    for (_, slice) in objects.slices.iter().filter(mine) {
        for slice_port in slice.ports.iter().filter(|p| &*p.name == port) {
            for endpoint in &slice.endpoints {
                let address = endpoint.address.to_canonical();
                let counts = counts(objects, key, endpoint, classes);
                if counts && !address.is_unspecified() && !address.is_multicast() {
                    found
                        .push((Endpoint::new(address, slice_port.port).expect("a port"), endpoint));
                }
            }
        }
    }
    let pod_of = |name: &Text| objects.pods.get(&Key::new(key.namespace.clone(), name.clone()));
    let deleting =
        |name: &Option<Text>| name.as_ref().and_then(pod_of).is_some_and(|pod| pod.deleting);
    let ends: BTreeSet<Endpoint> = found.iter().map(|(e, _)| *e).collect();
    let mut all: Vec<One> = Vec::new();
    for end in ends {
        // Each Pod that is said to have it.
        let pods: BTreeSet<Option<Text>> =
            found.iter().filter(|(e, _)| *e == end).map(|(_, f)| f.pod.clone()).collect();
        let candidates = pods.into_iter().map(|pod| {
            let said: Vec<_> =
                found.iter().filter(|(e, f)| *e == end && f.pod == pod).map(|(_, f)| *f).collect();
            let node = said.iter().map(|f| f.node.clone()).min().flatten();
            One {
                endpoint: end,
                ready: said.iter().any(|f| f.conditions.ready),
                serving: said.iter().any(|f| f.conditions.serving),
                leaves: said.iter().any(|f| f.conditions.terminating) || deleting(&pod),
                cordoned: node.and_then(|n| objects.nodes.get(&n)).is_some_and(|n| n.cordoned),
                pod,
            }
        });
        all.extend(candidates.min_by_key(|c| (c.pod.is_none(), c.leaves, c.pod.clone())));
    }
    let ready = all.iter().filter(|c| c.ready && !c.leaves);
    let elsewhere = ready.clone().filter(|c| !c.cordoned).count();
    let percent = policy.template.as_ref().map_or(101, |t| t.health.panic_percent);
    let elsewhere = elsewhere > 0 && elsewhere * 100 >= ready.count() * usize::from(percent);
    let names = names(&all);
    let mut backends: Vec<Backend> = all
        .iter()
        .zip(names)
        .map(|(one, name)| {
            let evicted = policy.drain_cordoned && elsewhere && one.cordoned && !one.leaves;
            let serves = if one.leaves { one.serving } else { one.ready };
            let pod = one.pod.as_ref().and_then(pod_of);
            let weight = weight(policy, pod);
            // Only a Pod that has the address says on which node that is.
            let has = |pod: &&Arc<Pod>| {
                let own = [pod.address, pod.second_address].into_iter().flatten();
                own.map(|own| own.to_canonical()).any(|own| own == one.endpoint.address())
            };
            let node = pod.filter(has).and_then(|pod| pod.node.as_deref());
            let node = node.filter(|node| !objects.excluded.contains(*node));
            Backend {
                name,
                endpoint: one.endpoint,
                weight: if serves { weight } else { 0 },
                draining: one.leaves || evicted,
                node: node.map(str::to_owned),
            }
        })
        .collect();
    backends.sort_by(|a, b| a.name.cmp(&b.name));
    backends.truncate(256);
    backends
}

fn weight(policy: &Policy, pod: Option<&Arc<Pod>>) -> u16 {
    let Some(weights) = &policy.weights else {
        return 1;
    };
    let text = pod.and_then(|pod| match &weights.source {
        WeightSource::Label(key) => pod.labels.get(key).cloned(),
        WeightSource::Annotation(key) => pod.annotations.get(key).cloned(),
    });
    match text {
        Some(text) if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) => {
            text.parse().unwrap_or(weights.default)
        }
        _ => weights.default,
    }
}

/// In order of Pods, then endpoints: the Pod's name, or the address; the second one of a name gets
/// more behind it.
fn names(all: &[One]) -> Vec<String> {
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|i| (all[*i].pod.clone(), all[*i].endpoint));
    let mut names = vec![String::new(); all.len()];
    for i in order {
        let one = &all[i];
        let address = one.endpoint.address().to_string().replace(':', "-");
        let both = all.iter().any(|o| o.pod == one.pod && o.endpoint.address().is_ipv4());
        let base = match &one.pod {
            Some(pod) if one.endpoint.address().is_ipv6() && both => format!("{pod}/ipv6"),
            Some(pod) => pod.to_string(),
            None => address.clone(),
        };
        let base = if good_name(&base) { base } else { address.clone() };
        let port = one.endpoint.port();
        let tries = [
            base.clone(),
            format!("{base}/{address}"),
            format!("{base}/{address}.{port}"),
            format!("ip/{address}.{port}"),
        ];
        let free = tries.into_iter().find(|name| good_name(name) && !names.contains(name));
        names[i] = free.expect("the last one is free");
    }
    names
}

/// Whether a dataplane takes a snapshot of these.
pub fn validate(policies: &[baton_api::Policy]) -> Result<(), String> {
    let snapshot = Snapshot { generation: 1, policies: policies.to_vec() };
    snapshot.validate().map_err(|error| error.to_string())
}
