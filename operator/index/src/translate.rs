//! One policy as the snapshot policies of its listeners.
//!
//! Owns the conversion of an accepted policy and its Service, as they are now. Knows nothing of
//! classes and of what was before.

use crate::{
    BackendState, Key, Listener, PortRef, ServicePort, Text,
    backends::{Backends, View, backends},
    kept::{Held, families},
    standing::{frontends, snapshot_name},
};
use baton_api::{Protocol, Snapshot};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

/// What a policy came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Translation {
    /// The listeners that have their port, in the policy's order.
    pub listeners: Vec<Listening>,
    /// Those that have not, with what they want.
    pub without_port: Vec<(Text, PortRef)>,
    /// The ports that there are.
    pub ports: Vec<ServicePort>,
    /// There is no Service.
    pub service_missing: bool,
    /// The Service is a name for something outside of the cluster.
    pub external_name: bool,
    /// Pods that take new flows, and all of them.
    pub ready: usize,
    pub total: usize,
    /// Of all listeners.
    pub left_out: usize,
    /// Addresses of `allowFrom` that had no room.
    pub clients_left_out: usize,
    pub bad_addresses: BTreeSet<IpAddr>,
    pub not_allowed: BTreeSet<IpAddr>,
    pub absent_pods: BTreeSet<Text>,
    pub bad_weights: BTreeMap<Text, Text>,
    /// Backends that dataplanes had and that are kept because objects may be missing.
    pub held: usize,
    /// The translation came to something that no dataplane takes, which is a bug.
    pub bug: Option<String>,
}

/// One listener.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Listening {
    pub listener: Text,
    pub name: Text,
    pub policy: Arc<baton_api::Policy>,
    /// Of each of its backends.
    pub details: Vec<crate::backends::Detail>,
}

/// Translates.
pub(crate) fn translate(view: &View<'_>) -> Translation {
    let mut out = Translation::default();
    let service_key = Key::new(view.key.namespace.clone(), view.policy.service.clone());
    let record = view.world.services.get(&service_key);
    let Some((record, service)) = record.and_then(|r| Some((r, r.service.as_ref()?))) else {
        out.service_missing = true;
        let (mut ready, mut all) = (BTreeSet::new(), BTreeSet::new());
        for listener in &view.policy.listeners {
            as_held(view, listener, &mut out, &mut ready, &mut all);
        }
        (out.ready, out.total) = (ready.len(), all.len());
        return out;
    };
    out.external_name = service.external_name;
    if out.external_name {
        return out;
    }
    let mut families = service.families.clone();
    families.sort_unstable();
    families.dedup();
    out.ports.clone_from(&service.ports);
    let (mut ready, mut all) = (BTreeSet::new(), BTreeSet::new());
    for listener in &view.policy.listeners {
        let wanted = |port: &&ServicePort| match &listener.service_port {
            PortRef::Name(name) | PortRef::Section(name) => port.name == *name,
            PortRef::Number(number) => port.port == *number,
        };
        let Some(port) = service.ports.iter().find(wanted) else {
            let wanted = listener.service_port.clone();
            out.without_port.push((listener.name.clone(), wanted));
            as_held(view, listener, &mut out, &mut ready, &mut all);
            continue;
        };
        let mut backends = backends(view, record, port);
        if view.partial
            && let Some(held) = held(view, listener)
        {
            out.held += backends.keep(&held.policy);
        }
        count(&backends, &mut ready, &mut all);
        listen(view, listener, &families, port.protocol, backends, &mut out);
    }
    (out.ready, out.total) = (ready.len(), all.len());
    out
}

fn held<'a>(view: &View<'a>, listener: &Listener) -> Option<&'a Held> {
    view.held?.get(&*snapshot_name(view.key, listener))
}

/// A listener whose endpoints cannot be found has those that dataplanes had.
fn as_held(
    view: &View<'_>,
    listener: &Listener,
    out: &mut Translation,
    ready: &mut BTreeSet<Text>,
    all: &mut BTreeSet<Text>,
) {
    let Some(held) = held(view, listener) else {
        return;
    };
    let mut backends = Backends::default();
    out.held += backends.keep(&held.policy);
    count(&backends, ready, all);
    let (families, protocol) = (families(&held.policy), Some(held.policy.protocol));
    listen(view, listener, &families, protocol, backends, out);
}

fn count(backends: &Backends, ready: &mut BTreeSet<Text>, all: &mut BTreeSet<Text>) {
    for detail in &backends.details {
        let pod = detail.pod.as_ref().unwrap_or(&detail.name);
        if detail.state == BackendState::Ready {
            ready.insert(pod.clone());
        }
        all.insert(pod.clone());
    }
}

fn listen(
    view: &View<'_>,
    listener: &Listener,
    families: &[crate::Family],
    by_port: Option<Protocol>,
    backends: Backends,
    out: &mut Translation,
) {
    let Ok(template) = &view.policy.template else {
        return;
    };
    let name = snapshot_name(view.key, listener);
    out.left_out += backends.left_out;
    out.bad_addresses.extend(backends.bad_addresses);
    out.not_allowed.extend(backends.not_allowed);
    out.absent_pods.extend(backends.absent_pods);
    out.bad_weights.extend(backends.bad_weights);
    let mut policy = listener.settings(template, by_port);
    policy.name = name;
    policy.frontends = frontends(listener, families);
    policy.backends = backends.backends;
    if let Some(allow_from) = &view.allow_from {
        let mut all = allow_from.clone();
        let held = held(view, listener).filter(|_| view.partial);
        let held = held.and_then(|held| held.policy.allow_from.as_deref());
        all.keep(held.unwrap_or_default());
        out.clients_left_out = all.left_out;
        policy.allow_from = Some(all.networks.into_iter().collect());
    }
    let alone = Snapshot { generation: 0, policies: vec![policy] };
    if let Err(error) = alone.validate() {
        out.bug = Some(error.to_string());
        return;
    }
    for policy in alone.policies {
        out.listeners.push(Listening {
            listener: listener.name.clone(),
            name: policy.name.as_str().into(),
            policy: Arc::new(policy),
            details: backends.details.clone(),
        });
    }
}
