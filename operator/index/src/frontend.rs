//! The Services in front of dataplanes and their EndpointSlices: what they should be, and what is
//! to be written so that they become it.
//!
//! Owns where clients are led. Compares with what is there and says only what differs, so that
//! nothing is written twice and whatever somebody changes is mended. Writes nothing itself.
//!
//! | of the Service | what its slices name |
//! |---|---|
//! | some dataplane is ready and has the policy's ports | all dataplanes that have them |
//! | none is, or the policy is not in force | the pods: Baton is left out, not in the way |
//! | the same, but its pods expect a header (`ProxyV2`) | the dataplanes that had them |
//! | it is not the policy's, or selects pods | nothing of ours |
//!
//! A Service whose own policy names it no more, while another one does: one that Baton made becomes
//! the other one's, one that clients had before gets its selector back.
//!
//! Where the Service wants its clients to stay in their zone, each endpoint is for that of its
//! node. kube-proxy leads elsewhere who has none in his zone, and everybody if one endpoint is for
//! none.
//!
//! A dataplane that has a port once keeps it: a newer snapshot that it has not acknowledged yet
//! changes nothing about that. What it has when this operator begins, the slices say until it was
//! heard.
//!
//! Slices of others go only when ours are there, so a Service never leads nowhere for a moment. A
//! Service that clients had before, and that leads to no policy any more, gets its selector back;
//! our slices stay until the cluster has written its own.

use crate::{
    Conditions, Family, Front, FrontEndpoint, FrontService, FrontSlice, FrontVerdict, FrontWrites,
    Index, Key, LIMIT_SLICE_ENDPOINTS, LeadsTo, Listener, Reason, Service, ServicePort, Slice,
    SliceEndpoint, SliceWriter, Text,
    index::PolicyRecord,
    messages::few,
    progress::{behind, refused_by},
    reports::{DataplaneRecord, Serving},
    translate::{Listening, Translation},
    world::{SLICE_INFIX, ServiceRecord},
};
use baton_api::ClientAddress;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

/// What is said of a frontend, and what is to be written.
#[derive(Debug)]
pub(crate) struct Plan {
    pub verdict: FrontVerdict,
    pub problem: Option<(Reason, String)>,
    /// Dataplanes that have the policy's ports, and these.
    pub serving: Serving,
    pub writes: FrontWrites,
    pub addresses: Vec<String>,
}

/// Plans the frontend of a policy, if what is served of it has one.
pub(crate) fn plan(index: &Index, key: &Key, record: &PolicyRecord) -> Option<Plan> {
    let frontend = record.served.frontend.as_ref()?;
    let service_key = Key::new(key.namespace.clone(), frontend.service.clone());
    let mut plan = Plan {
        verdict: FrontVerdict {
            service: frontend.service.clone(),
            leads_to: LeadsTo::Nowhere,
            ports: ports(&record.served.listeners),
        },
        problem: None,
        serving: Serving::default(),
        writes: FrontWrites::default(),
        addresses: Vec::new(),
    };
    let listens = |t: &&Translation| !t.listeners.is_empty();
    let in_force = record.translation.as_ref().filter(listens);
    let world = index.world.services.get(&service_key);
    let service = world.and_then(|found| found.service.as_ref());
    if let Some(service) = service {
        let ours = service.front.as_ref().filter(|f| f.policy == key.name);
        let Some(front) = ours else {
            let wanted = in_force.and_then(|t| wanted_service(index, key, record, t));
            match (&service.front, wanted) {
                // It was this policy's before.
                (None, _) => plan.writes.remove = world.map(left_over).unwrap_or_default(),
                (Some(front), _) if !is_left(index, &service_key, front) => {}
                (Some(front), Some(wanted)) if front.made => {
                    plan.writes.owner = Some((key.name.clone(), record.policy.uid.clone()));
                    plan.writes.make = Some(wanted);
                    plan.writes.uid = Some(front.uid.clone());
                    return Some(plan);
                }
                (Some(front), _) if front.made => {}
                (Some(_), _) => plan.writes = orphan(index, &service_key),
            }
            plan.problem = Some(not_owned(&frontend.service));
            return Some(plan);
        };
        let listeners = record.served.listeners.iter();
        for address in &front.addresses {
            let at = listeners.clone().map(|l| at_port(address, l.port));
            plan.addresses.extend(at);
        }
        if service.selects {
            plan.problem = Some(selects(&frontend.service));
            return Some(plan);
        }
    }
    // Made where it is needed and not kept: of those that are not in force there may be many.
    let is_past = record.translation.is_none() && service.is_some();
    let past = is_past.then(|| index.past(key, record));
    let Some(translation) = in_force.or(past.as_ref().filter(listens)) else {
        return Some(plan);
    };
    let wanted = wanted_service(index, key, record, translation);
    let (Some(world), Some(front)) = (world, service.and_then(|s| s.front.as_ref())) else {
        plan.writes.owner = Some((key.name.clone(), record.policy.uid.clone()));
        plan.writes.make = wanted.filter(|_| record.translation.is_some());
        return Some(plan);
    };
    let unlike = |wanted: &FrontService| {
        front.made && in_force.is_some() && !as_wanted(world, front, wanted)
    };
    if let Some(wanted) = wanted.filter(unlike) {
        plan.writes.owner = Some((key.name.clone(), record.policy.uid.clone()));
        plan.writes.make = Some(wanted);
    }
    let named = names(record, translation, world, front, &mut plan.problem);
    let ports: Vec<ServicePort> = named
        .iter()
        .map(|(name, listener, _)| ServicePort {
            name: name.clone(),
            port: listener.at(),
            protocol: None,
        })
        .collect();
    let observed: Vec<&Arc<Slice>> = world.slices.values().filter(|s| is_ours(s)).collect();
    plan.serving = serving(index, key, record, &ports, &observed);
    let endpoints = dataplanes(index, record, translation, &plan.serving);
    let ready = endpoints.iter().any(|e| e.conditions.ready);
    let mut groups = if ready || expects_header(translation) {
        if ready {
            plan.verdict.leads_to = LeadsTo::Dataplanes;
        } else {
            plan.problem.get_or_insert_with(|| leads_nowhere(&frontend.service));
        }
        vec![(ports, endpoints)]
    } else {
        plan.verdict.leads_to = LeadsTo::Pods;
        plan.problem.get_or_insert_with(|| leads_to_pods(&frontend.service));
        pods(key, &named)
    };
    if front.zonal {
        let all = groups.iter_mut().flat_map(|(_, endpoints)| endpoints);
        for endpoint in all {
            endpoint.zone = index.world.zone_of(endpoint.node.as_ref());
        }
    }
    if front.own_node {
        let endpoints = groups.iter().flat_map(|(_, endpoints)| endpoints);
        let ready = endpoints.filter(|e| e.conditions.ready);
        let has: BTreeSet<_> = ready.filter_map(|e| e.node.as_ref()).collect();
        let nodes = index.world.nodes.iter();
        let nodes = nodes.filter(|(name, record)| record.node.is_some() && !has.contains(name));
        let lacking: Vec<_> = nodes.map(|(name, _)| name).collect();
        if !lacking.is_empty() {
            plan.problem.get_or_insert_with(|| own_node(&frontend.service, &lacking));
        }
    }
    plan.writes.uid = Some(front.uid.clone());
    let taken = |name: &Text| {
        let name = Key::new(key.namespace.clone(), name.clone());
        index.world.is_anothers(&name, &frontend.service)
    };
    compare(&frontend.service, groups, (world, taken), &mut plan.writes);
    Some(plan)
}

/// What is to be written of a Service whose own policy names it no more, or that has none and
/// slices of ours all the same.
pub(crate) fn orphan(index: &Index, service: &Key) -> FrontWrites {
    let mut writes = FrontWrites::default();
    let Some(world) = index.world.services.get(service) else {
        return writes;
    };
    let Some(found) = &world.service else {
        writes.remove = left_over(world);
        return writes;
    };
    if let Some(front) = &found.front {
        if !is_left(index, service, front) {
            return writes;
        }
        writes.uid = Some(front.uid.clone());
        if front.made {
            writes.unmake = true;
            return writes;
        }
        // Without it, somebody has made the Service as it is by hand: its policy may be about to
        // come.
        if let Some(selector) = front.selector.clone().filter(|_| !found.selects) {
            writes.restore = Some(selector);
            return writes;
        }
    }
    writes.remove = left_over(world);
    writes
}

/// Whether the policy that a Service is labelled for does not name it any more.
fn is_left(index: &Index, service: &Key, front: &Front) -> bool {
    let world = index.world.services.get(service);
    let policy = Key::new(service.namespace.clone(), front.policy.clone());
    let policy = index.policies.get(&policy);
    // Of one that cannot be read nobody knows that the Service is not its.
    let unread = |record: &PolicyRecord| record.stands_in || record.policy.template.is_err();
    world.is_none_or(|world| !world.fronts.contains(&front.policy))
        && !policy.is_some_and(|record| unread(record))
}

/// Slices of ours that the Service needs no more: the cluster has written its own, or nobody will.
fn left_over(world: &ServiceRecord) -> Vec<(Text, Option<Text>)> {
    let by_cluster = |slice: &Arc<Slice>| slice.writer == SliceWriter::Cluster;
    let selects = world.service.as_ref().is_some_and(|found| found.selects);
    if selects && !world.slices.values().any(by_cluster) {
        return Vec::new();
    }
    let ours = world.slices.iter().filter(|(_, slice)| is_ours(slice));
    ours.map(|(name, slice)| (name.clone(), slice.uid.clone())).collect()
}

fn is_ours(slice: &Slice) -> bool {
    slice.writer == SliceWriter::Baton
}

fn ports(listeners: &[Listener]) -> Vec<(Text, u16)> {
    let ports = listeners.iter();
    ports.filter_map(|listener| Some((listener.name.clone(), listener.allocated?))).collect()
}

pub(crate) fn at_port(address: &str, port: u16) -> String {
    match address.contains(':') {
        true => format!("[{address}]:{port}"),
        false => format!("{address}:{port}"),
    }
}

fn not_owned(service: &str) -> (Reason, String) {
    let message = format!(
        "Service {service} was there before and is not this policy's: put Baton behind it with `kubectl baton attach \
         svc/{service}`, or choose another name in spec.frontend.service.name"
    );
    (Reason::FrontendNotOwned, message)
}

fn selects(service: &str) -> (Reason, String) {
    let message = format!(
        "Service {service} still selects pods, so clients reach them past Baton: remove its spec.selector, or have `kubectl \
         baton attach svc/{service}` do it"
    );
    (Reason::FrontendNotOwned, message)
}

fn leads_to_pods(service: &str) -> (Reason, String) {
    let message = format!(
        "no dataplane is ready that has its ports, so Service {service} leads to the pods themselves: connections that are \
         opened now do not move"
    );
    (Reason::FrontendLeadsToPods, message)
}

/// Whether the pods take connections with a header of the PROXY protocol only: without one a server
/// is broken, or believes whatever header a client makes up.
fn expects_header(translation: &Translation) -> bool {
    let mut listeners = translation.listeners.iter();
    listeners.any(|l| l.policy.client_address == ClientAddress::ProxyV2)
}

fn leads_nowhere(service: &str) -> (Reason, String) {
    let message = format!(
        "no dataplane is ready that has its ports, and Service {service} does not lead to the pods, since these expect a header \
         (clientAddress: ProxyV2): look at the dataplanes"
    );
    (Reason::FrontendLeadsNowhere, message)
}

fn own_node(service: &str, lacking: &[&Text]) -> (Reason, String) {
    let message = format!(
        "Service {service} leads clients in the cluster to their own node only (internalTrafficPolicy: Local), and on {} \
         there is nobody that it leads to, so clients there reach nobody: have it say Cluster",
        few(lacking, ", ")
    );
    (Reason::FrontendOwnNode, message)
}

/// The Service as the policy wants it, with those ports that the policy's own Service has.
fn wanted_service(
    index: &Index,
    key: &Key,
    record: &PolicyRecord,
    translation: &Translation,
) -> Option<FrontService> {
    let frontend = record.served.frontend.clone()?;
    let target = Key::new(key.namespace.clone(), record.served.service.clone());
    let target = index.world.services.get(&target)?.service.as_ref()?;
    let has = |l: &&Listener| translation.listeners.iter().any(|has| has.listener == l.name);
    let ports = record.served.listeners.iter().filter(has);
    let mut families = families_of(target);
    let there = Key::new(key.namespace.clone(), frontend.service.clone());
    let there = index.world.services.get(&there);
    // The first one of a Service that there is can never be changed.
    if let Some(first) = there.and_then(|there| there.service.as_ref()?.families.first()) {
        families.sort_by_key(|family| family != first);
    }
    Some(FrontService {
        frontend,
        families,
        ports: ports.map(|l| (l.name.clone(), l.port, l.at())).collect(),
    })
}

fn families_of(service: &Service) -> Vec<Family> {
    match service.families.as_slice() {
        [] => vec![Family::V4],
        some => some.to_vec(),
    }
}

/// Whether a Service that was made is as it should be.
fn as_wanted(world: &ServiceRecord, front: &Front, wanted: &FrontService) -> bool {
    let (is, should) = (&front.shape, &wanted.frontend);
    let Some(service) = &world.service else {
        return false;
    };
    let port = |(name, port, at): &(Text, u16, u16)| {
        let has = |p: &ServicePort| p.name == *name && p.port == *port;
        service.ports.iter().any(has) && front.targets.get(port) == Some(at)
    };
    let annotated = |(k, v): (&Text, &Text)| is.annotations.get(k) == Some(v);
    let is_wanted = |key: &Text| should.annotations.contains_key(key);
    let families = families_of(service);
    is.kind == should.kind
        && families.len() == wanted.families.len()
        && wanted.families.iter().all(|one| families.contains(one))
        && (should.load_balancer_class.is_none()
            || is.load_balancer_class == should.load_balancer_class)
        && is.local == should.local
        && is.source_ranges == should.source_ranges
        && should.annotations.iter().all(annotated)
        && front.annotated.iter().all(is_wanted)
        && service.ports.len() == wanted.ports.len()
        && wanted.ports.iter().all(port)
}

/// The listeners that the Service has a port for, with the name that it has there.
fn names<'a>(
    record: &'a PolicyRecord,
    translation: &'a Translation,
    world: &ServiceRecord,
    front: &Front,
    problem: &mut Option<(Reason, String)>,
) -> Vec<(Text, &'a Listener, &'a Listening)> {
    let mut found = Vec::new();
    let ports = world.service.iter().flat_map(|service| &service.ports);
    let service = record.served.frontend.as_ref().map_or("", |f| &f.service);
    let listens = |port: &ServicePort| record.served.listeners.iter().any(|l| l.port == port.port);
    if let Some(port) = ports.clone().find(|port| !front.made && !listens(port)) {
        let message = format!(
            "Service {service} has port {}, which no listener is for: clients that connect there are refused; add one \
             (spec.listeners[].port), or take the port away",
            port.port
        );
        *problem = Some((Reason::FrontendPortNotServed, message));
    }
    if let Some(port) = front.others.first() {
        let message = format!(
            "Service {service} has port {port}, and dataplanes take TCP only: clients that connect there reach nobody, as a \
             Service leads all its ports to the same place; give that port a Service of its own"
        );
        *problem = Some((Reason::FrontendPortNotServed, message));
    }
    for listening in &translation.listeners {
        let mut listeners = record.served.listeners.iter();
        let Some(listener) = listeners.find(|l| l.name == listening.listener) else {
            continue;
        };
        let name = if front.made {
            Some(&listener.name)
        } else {
            let port = ports.clone().find(|port| port.port == listener.port);
            port.map(|port| &port.name)
        };
        match name {
            Some(name) => found.push((name.clone(), listener, listening)),
            None => {
                let message = format!(
                    "Service {service} has no port {} (listener {}): add it to the Service, or correct spec.listeners[].port",
                    listener.port, listener.name
                );
                *problem = Some((Reason::FrontendPortNotFound, message));
            }
        }
    }
    found
}

/// The dataplanes that have the ports.
fn serving(
    index: &Index,
    key: &Key,
    record: &PolicyRecord,
    ports: &[ServicePort],
    observed: &[&Arc<Slice>],
) -> Serving {
    let mut pods = BTreeSet::new();
    let same = record.serving.ports == ports;
    for class in record.staged.iter().filter_map(|name| index.classes.get(name)) {
        let Some(placed) = class.placed(key).filter(|p| p.listens) else {
            continue;
        };
        for (pod, member) in &class.members {
            let has = index.dataplanes.get(pod).map_or(0, DataplaneRecord::acknowledged);
            let had = match has {
                // Not heard yet by this operator.
                0 => observed.iter().any(|slice| {
                    let named = |e: &crate::SliceEndpoint| e.address == member.address;
                    *slice.ports == *ports && slice.endpoints.iter().any(named)
                }),
                _ => same && record.serving.pods.contains(pod),
            };
            let acknowledged = behind(index, pod, placed.revision).is_none();
            if (acknowledged && refused_by(index, pod, key).is_none()) || had {
                pods.insert(pod.clone());
            }
        }
    }
    Serving { ports: ports.to_vec(), pods }
}

/// The dataplanes as endpoints, in the families where the policy's listeners are.
fn dataplanes(
    index: &Index,
    record: &PolicyRecord,
    translation: &Translation,
    serving: &Serving,
) -> Vec<FrontEndpoint> {
    let fronts = translation.listeners.iter().flat_map(|l| &l.policy.frontends);
    let families: BTreeSet<bool> = fronts.map(|f| f.address().is_ipv4()).collect();
    let classes = record.staged.iter().filter_map(|name| index.classes.get(name));
    let members = classes.flat_map(|class| class.members.keys());
    let mut endpoints = Vec::new();
    for key in members.filter(|key| serving.pods.contains(*key)) {
        let Some(pod) = index.world.live_pod(key) else {
            continue;
        };
        for address in [pod.address, pod.second_address].into_iter().flatten() {
            if families.contains(&address.is_ipv4()) {
                endpoints.push(FrontEndpoint {
                    address,
                    conditions: Conditions {
                        ready: pod.ready && !pod.deleting,
                        serving: pod.ready,
                        terminating: pod.deleting,
                    },
                    pod: Some(key.clone()),
                    node: pod.node.clone(),
                    zone: None,
                });
            }
        }
    }
    endpoints
}

type Group = (Vec<ServicePort>, Vec<FrontEndpoint>);

/// The pods as endpoints: a group for each listener and number of its port.
fn pods(key: &Key, named: &[(Text, &Listener, &Listening)]) -> Vec<Group> {
    let mut groups: BTreeMap<(Text, u16), Vec<FrontEndpoint>> = BTreeMap::new();
    for (name, _, listening) in named {
        let backends = listening.policy.backends.iter().zip(&listening.details);
        for (backend, detail) in backends {
            let serves = backend.weight > 0;
            let endpoint = FrontEndpoint {
                address: backend.endpoint.address(),
                conditions: Conditions {
                    ready: serves && !backend.draining,
                    serving: serves,
                    terminating: backend.draining,
                },
                pod: detail.pod.as_ref().map(|pod| Key::new(key.namespace.clone(), pod.clone())),
                node: detail.node.clone(),
                zone: None,
            };
            let group = (name.clone(), backend.endpoint.port());
            groups.entry(group).or_default().push(endpoint);
        }
    }
    let groups = groups.into_iter();
    groups
        .map(|((name, port), endpoints)| {
            let port = ServicePort { name, port, protocol: None };
            (vec![port], endpoints)
        })
        .collect()
}

/// The slices of these groups, by family and in pieces of a bounded size, beside those that are
/// there. `taken`: another Service's slice has the name.
fn compare(
    service: &str,
    groups: Vec<Group>,
    (world, taken): (&ServiceRecord, impl Fn(&Text) -> bool),
    writes: &mut FrontWrites,
) {
    let mut names = BTreeSet::new();
    let others = |name: &Text| world.slices.get(name).is_some_and(|is| !is_ours(is));
    let mut number = 0;
    for (ports, mut endpoints) in groups {
        endpoints.sort_by_key(|endpoint| endpoint.address);
        for family in [Family::V4, Family::V6] {
            let is = |address: &IpAddr| address.is_ipv4() == (family == Family::V4);
            let of: Vec<_> = endpoints.iter().filter(|e| is(&e.address)).cloned().collect();
            for piece in of.chunks(LIMIT_SLICE_ENDPOINTS) {
                let word = if family == Family::V4 { "ipv4" } else { "ipv6" };
                // A family is for the life of a slice.
                let name = loop {
                    let name: Text = format!("{service}{SLICE_INFIX}{word}-{number}").into();
                    number += 1;
                    if !others(&name) && !taken(&name) {
                        break name;
                    }
                };
                names.insert(name.clone());
                let known = world.slices.get(&name);
                let slice = FrontSlice {
                    name: name.clone(),
                    uid: known.and_then(|is| is.uid.clone()),
                    family,
                    ports: ports.clone(),
                    endpoints: piece.to_vec(),
                };
                if !known.is_some_and(|is| same(is, &slice)) {
                    writes.slices.push(slice);
                }
            }
        }
    }
    if !writes.slices.is_empty() {
        return;
    }
    for (name, slice) in &world.slices {
        match slice.writer {
            SliceWriter::Baton if names.contains(name) => {}
            SliceWriter::Baton | SliceWriter::Cluster => {
                writes.remove.push((name.clone(), slice.uid.clone()));
            }
            SliceWriter::Mirror => writes.remove_endpoints = true,
            SliceWriter::Other => {}
        }
    }
}

fn same(is: &Slice, should: &FrontSlice) -> bool {
    let zones = is.zones.iter().map(Option::as_ref);
    let zones = zones.chain(std::iter::repeat(None));
    let mut endpoints: Vec<_> = is.endpoints.iter().zip(zones).collect();
    endpoints.sort_by_key(|(endpoint, _)| endpoint.address);
    let equal = |((is, zone), should): (&(&SliceEndpoint, Option<&Text>), &FrontEndpoint)| {
        is.address == should.address
            && is.conditions == should.conditions
            && is.node == should.node
            && *zone == should.zone.as_ref()
    };
    is_ours(is)
        && is.ports == should.ports
        && endpoints.len() == should.endpoints.len()
        && endpoints.iter().zip(&should.endpoints).all(equal)
}
