//! Objects that tests are made of, as manifests.

use baton_api::{Adoptability, BackendHealth, Policy, PolicyState, Snapshot};
use serde_json::{Value, json};

/// A Service of one port, with no selector: its EndpointSlices are written by hand.
#[must_use]
pub fn service(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": name, "namespace": namespace },
        "spec": { "ports": [{ "port": 80, "targetPort": 8080 }] },
    })
}

/// Its EndpointSlice, as the controller would write it: ready endpoints with no pods.
#[must_use]
pub fn slice(namespace: &str, service: &str, addresses: &[&str]) -> Value {
    let endpoints: Vec<_> = addresses
        .iter()
        .map(|a| json!({ "addresses": [a], "conditions": { "ready": true, "serving": true, "terminating": false } }))
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{service}-1"),
            "namespace": namespace,
            "labels": { "kubernetes.io/service-name": service },
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{ "name": "", "port": 8080, "protocol": "TCP" }],
    })
}

/// A policy of one listener `main` on a port, for a Service's port 80.
#[must_use]
pub fn policy(namespace: &str, name: &str, service: &str, port: u16) -> Value {
    json!({
        "apiVersion": "baton.dev/v1alpha1",
        "kind": "LoadBalancerPolicy",
        "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "targetRefs": [{ "name": service }],
            "listeners": [{ "name": "main", "port": port, "servicePort": 80 }],
        },
    })
}

/// The policy of a snapshot that came of [`policy`].
#[must_use]
pub fn served_policy<'a>(
    snapshot: &'a Snapshot,
    namespace: &str,
    name: &str,
) -> Option<&'a Policy> {
    let name = format!("{namespace}/{name}/main");
    snapshot.policies.iter().find(|policy| policy.name == name)
}

/// Whether a snapshot has the policy that came of [`policy`].
pub fn has(namespace: &str, name: &str) -> impl Fn(&Snapshot) -> bool {
    move |snapshot| served_policy(snapshot, namespace, name).is_some()
}

/// An EndpointSlice of ready pods, each (name, address), all on one node.
#[must_use]
pub fn slice_of_pods(namespace: &str, service: &str, node: &str, pods: &[(&str, &str)]) -> Value {
    let addresses: Vec<&str> = pods.iter().map(|(_, address)| *address).collect();
    let mut slice = slice(namespace, service, &addresses);
    for (endpoint, (pod, _)) in slice["endpoints"].as_array_mut().into_iter().flatten().zip(pods) {
        endpoint["nodeName"] = node.into();
        endpoint["targetRef"] = json!({ "kind": "Pod", "name": pod, "namespace": namespace });
    }
    slice
}

/// What a dataplane counts at one backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// Connections.
    pub flows: u64,
    /// Of these, the ones that can never move.
    pub pinned: u64,
    /// Requests without an answer.
    pub outstanding: u64,
    /// What is in the way of flows that shall move there.
    pub obstacle: Option<Adoptability>,
}

/// What a dataplane says of a policy (its name in the snapshot) with these loads by backend.
#[must_use]
pub fn figures(policy: &Policy, loads: &[(&str, Load)]) -> PolicyState {
    let backends = policy.backends.iter().map(|backend| {
        let load = loads.iter().find(|(name, _)| *name == backend.name);
        let load = load.map_or_else(Load::default, |(_, load)| *load);
        baton_api::BackendState {
            name: backend.name.clone(),
            endpoint: backend.endpoint,
            weight: backend.weight,
            draining: backend.draining,
            adoptability: load.obstacle.unwrap_or(Adoptability::Ready),
            flows: load.flows,
            pinned: load.pinned,
            outstanding: load.outstanding,
            first_byte: baton_api::Micros::from_millis(1),
            wait: None,
            load: None,
            transfers: false,
            unlike: false,
            placement: None,
            requests_total: load.flows,
            migrations_in_total: 0,
            migrations_out_total: 0,
            health: BackendHealth::Up,
            stranded: 0,
            rescued_total: 0,
            drain: None,
        }
    });
    PolicyState {
        name: policy.name.clone(),
        frontends: policy.frontends.clone(),
        algorithm: policy.algorithm,
        protocol: policy.protocol,
        flows: loads.iter().map(|(_, load)| load.flows).sum(),
        flows_total: loads.iter().map(|(_, load)| load.flows).sum(),
        migrations_total: 0,
        rollbacks_total: 0,
        rescues_total: 0,
        replays_total: 0,
        lost_total: Default::default(),
        pinned: Default::default(),
        pins_total: Default::default(),
        moves_total: Default::default(),
        panic: false,
        placement: None,
        backends: backends.collect(),
    }
}
