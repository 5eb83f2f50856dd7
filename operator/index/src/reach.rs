//! Whether clients find a Service that leads to the dataplanes' ports, where a policy has no
//! frontend of its own.
//!
//! Owns the look at it. What the Services in front of dataplanes should be is `frontend`'s.

use crate::{
    Index, Key, Listener, Text, class::ClassRecord, index::PolicyRecord, messages::few,
    progress::ready_members, translate::Translation,
};
use std::collections::BTreeSet;

/// Which classes' dataplanes a slice names, and their ports.
pub(crate) type Leads = (BTreeSet<Text>, BTreeSet<u16>);

/// What to say of listeners whose port no Service leads to, if there are any: clients have to know
/// the addresses of the dataplanes' pods, which change.
///
/// The EndpointSlices say what each `targetPort` came to, also one by name, and who is behind a
/// Service without a selector. One Service in front of one of the policy's classes is enough.
/// Nothing is said while nobody is ready, which is another problem; nor where the dataplanes have
/// the nodes' addresses, nor of a listener that has addresses of its own, as these are routed; nor
/// without a cluster, as what leads clients there is no object.
pub(crate) fn unreached(
    index: &Index,
    record: &PolicyRecord,
    translation: &Translation,
) -> Option<String> {
    if index.of_files || record.served.frontend.is_some() || index.holdings.partial {
        return None;
    }
    let in_force = |one: &&Listener| {
        let mut all = translation.listeners.iter();
        all.any(|has| has.listener == one.name)
    };
    let own = record.served.listeners.iter().filter(in_force);
    let own: Vec<&Listener> = own.filter(|one| one.addresses.is_empty()).collect();
    let classes = record.staged.iter();
    let classes = classes.filter_map(|name| index.classes.get(name));
    let ready: BTreeSet<&Key> = classes.flat_map(|class| ready_members(index, class)).collect();
    if own.is_empty() || ready.is_empty() {
        return None;
    }
    let on_nodes = |pod: &&Key| index.world.live_pod(pod).is_some_and(|p| p.host_network);
    if ready.iter().copied().any(|pod| on_nodes(&pod)) {
        return None;
    }
    let missing = without_slice(index, &ready, own).into_iter();
    let missing = missing.map(|one| format!("{} (listener {})", one.port, one.name));
    let missing = few(missing, ", ");
    (!missing.is_empty()).then(|| {
        format!(
            "no Service port leads to port {missing} of the dataplanes, so clients have to connect to their pods themselves: \
             add it to the Service in front of them (dataplane.service.ports of the chart), or use spec.frontend"
        )
    })
}

/// Those of the listeners that no slice has the port of that names one of these pods.
fn without_slice<'a>(
    index: &Index,
    pods: &BTreeSet<&Key>,
    mut listeners: Vec<&'a Listener>,
) -> Vec<&'a Listener> {
    let services = pods.iter().flat_map(|pod| index.world.services_of_pod(pod));
    let services: BTreeSet<Key> = services.collect();
    for service in &services {
        let record = index.world.services.get(service);
        let slices = record.into_iter().flat_map(|record| record.slices.values());
        for slice in slices {
            if listeners.is_empty() {
                return listeners;
            }
            let has = |one: &Listener| slice.ports.iter().any(|port| port.port == one.port);
            let named = slice.endpoints.iter().filter_map(|one| one.pod.as_ref());
            let mut named = named.map(|pod| Key::new(service.namespace.clone(), pod.clone()));
            // Of many slices few have the port, so who is in them is looked at last.
            if listeners.iter().any(|one| has(one)) && named.any(|pod| pods.contains(&pod)) {
                listeners.retain(|one| !has(one));
            }
        }
    }
    listeners
}

impl Index {
    /// Where a slice leads to dataplanes. Only the classes' namespaces are looked at: their slices
    /// are few of all.
    pub(crate) fn leads(&self, slice: &Key) -> Option<Leads> {
        let mut classes = self.classes.values();
        let here = |class: &ClassRecord| class.spec.namespace == slice.namespace;
        if !classes.any(here) {
            return None;
        }
        let found = self.world.slice_of(slice)?;
        let named = found.endpoints.iter().filter_map(|one| one.pod.as_ref());
        let named = named.map(|pod| Key::new(slice.namespace.clone(), pod.clone()));
        let classes: BTreeSet<Text> =
            named.filter_map(|pod| self.class_of.get(&pod).cloned()).collect();
        let ports = found.ports.iter().map(|port| port.port).collect();
        (!classes.is_empty()).then_some((classes, ports))
    }
}
