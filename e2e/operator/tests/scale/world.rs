//! A cluster's objects by number: as many policies as are asked for, each with its Service and its
//! EndpointSlice.
//!
//! Owns what there is and what dataplanes must come to have of it. Writes nothing and starts
//! nothing.

use baton_api::Snapshot;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

/// Endpoints of each policy.
pub const ENDPOINTS_EACH: usize = 10;
/// Dataplanes of each class.
pub const DATAPLANES_EACH: usize = 2;
/// Policies of one class: a dataplane takes 4,096 backends, of which an eighth is for those that
/// linger.
const POLICIES_PER_CLASS: usize = 350;
/// Policies of one namespace.
const POLICIES_PER_NAMESPACE: usize = 100;
/// Where endpoints are.
const NODES: usize = 100;
/// Namespace of the dataplanes.
pub const SYSTEM: &str = baton_operator_tests::OPERATOR_NAMESPACE;
/// Labels of policies and classes that find each other by it.
const CLASS_LABEL: &str = "scale.baton.dev/class";
/// Of classes: which pods are their dataplanes.
const DATAPLANE_LABEL: &str = "scale.baton.dev/dataplane";

/// What there is.
#[derive(Clone, Debug)]
pub struct World {
    /// How many policies.
    pub policies: usize,
    /// Where each class's dataplanes listen.
    pub control_ports: Vec<u16>,
    /// Addresses of the dataplanes of a class, the same in each.
    pub addresses: [String; DATAPLANES_EACH],
}

/// How many classes so many policies need. Two at least, so that one cannot be taken for the other.
pub fn classes(policies: usize) -> usize {
    policies.div_ceil(POLICIES_PER_CLASS).max(2)
}

/// Backends by snapshot policy: what a dataplane has, or must have.
pub type Content = BTreeMap<String, BTreeSet<String>>;

/// What a snapshot says.
pub fn content(snapshot: &Snapshot) -> Content {
    let of = |policy: &baton_api::Policy| {
        let endpoints = policy.backends.iter().map(|b| b.endpoint.to_string());
        (policy.name.clone(), endpoints.collect())
    };
    snapshot.policies.iter().map(of).collect()
}

impl World {
    /// How many endpoints.
    pub fn endpoints(&self) -> usize {
        self.policies * ENDPOINTS_EACH
    }

    /// How many dataplanes.
    pub fn dataplanes(&self) -> usize {
        self.control_ports.len() * DATAPLANES_EACH
    }

    /// The class of a policy.
    pub fn class(&self, at: usize) -> usize {
        at % self.control_ports.len()
    }

    /// The namespaces of the policies.
    pub fn namespaces(&self) -> impl Iterator<Item = String> {
        (0..self.policies.div_ceil(POLICIES_PER_NAMESPACE)).map(|at| format!("team-{at:03}"))
    }

    fn namespace(&self, at: usize) -> String {
        format!("team-{:03}", at / POLICIES_PER_NAMESPACE)
    }

    fn name(at: usize) -> String {
        format!("app-{at:05}")
    }

    fn pod_name(at: usize, endpoint: usize) -> String {
        format!("{}-7d9c5b8f64-{endpoint:05}", Self::name(at))
    }

    /// An endpoint's address, another one in each round of changes.
    fn address(at: usize, endpoint: usize, round: usize) -> String {
        let number = at * ENDPOINTS_EACH + endpoint;
        let first = if round == 0 { 10 } else { 11 + round };
        format!("{first}.{}.{}.{}", number / 62_500, number / 250 % 250, number % 250 + 1)
    }

    /// What the dataplanes of a class must have when the policies of `changed` are in their round.
    pub fn expected(&self, class: usize, changed: &BTreeMap<usize, usize>) -> Content {
        let own = (0..self.policies).filter(|at| self.class(*at) == class);
        own.map(|at| {
            let round = changed.get(&at).copied().unwrap_or_default();
            let name = format!("{}/{}/main", self.namespace(at), Self::name(at));
            let endpoints = (0..ENDPOINTS_EACH)
                .map(|e| format!("{}:8080", Self::address(at, e, if e == 0 { round } else { 0 })));
            (name, endpoints.collect())
        })
        .collect()
    }

    /// Classes, their dataplanes' pods and the nodes, as YAML. A pod's address is its status.
    pub fn system(&self) -> String {
        let mut text = String::new();
        for node in 0..NODES {
            let _ = write!(
                text,
                "---\napiVersion: v1\nkind: Node\nmetadata: {{name: {}}}\n",
                node_name(node)
            );
        }
        for (class, port) in self.control_ports.iter().enumerate() {
            let _ = write!(
                text,
                "---\napiVersion: baton.dev/v1alpha1\nkind: BatonDataplane\nmetadata:\n  name: class-{class}\n  labels:\n    \
                 {CLASS_LABEL}: c{class}\nspec:\n  namespace: {SYSTEM}\n  selector:\n    matchLabels:\n      \
                 {DATAPLANE_LABEL}: c{class}\n  controlPort: {port}\n  ports:\n    first: 1024\n    last: 9999\n  limits:\n    \
                 policies: 1024\n    backends: 4096\n  allowed:\n    - namespaces: {{}}\n      endpoints: [0.0.0.0/0]\n"
            );
            for at in 0..DATAPLANES_EACH {
                text.push_str(&self.dataplane_pod(class, at));
            }
        }
        text
    }

    /// The pod of a dataplane, ready at its address.
    pub fn dataplane_pod(&self, class: usize, at: usize) -> String {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: dataplane-{class}-{at}\n  namespace: {SYSTEM}\n  labels:\n    \
             {DATAPLANE_LABEL}: c{class}\nspec:\n  nodeName: {}\n  serviceAccountName: {}\n  containers:\n    - name: lb\n      \
             image: localhost/lb:1\nstatus:\n  phase: Running\n  podIP: {ip}\n  podIPs:\n    - ip: {ip}\n  conditions:\n    \
             - type: Ready\n      status: \"True\"\n",
            node_name(class),
            baton_operator_tests::OPERATOR,
            ip = self.addresses[at],
        )
    }

    /// A policy and its Service, as YAML.
    pub fn policy(&self, at: usize) -> String {
        let (namespace, name, class) = (self.namespace(at), Self::name(at), self.class(at));
        // Unique in its class, and above the ports of the legs.
        let port = 10_000 + at / self.control_ports.len();
        format!(
            "---\napiVersion: baton.dev/v1alpha1\nkind: LoadBalancerPolicy\nmetadata:\n  name: {name}\n  namespace: {namespace}\n\
             spec:\n  targetRefs:\n    - name: {name}\n  listeners:\n    - name: main\n      port: {port}\n      servicePort: http\n  \
             protocol: HTTP1\n  dataplaneSelector:\n    matchLabels:\n      {CLASS_LABEL}: c{class}\n---\napiVersion: v1\nkind: \
             Service\nmetadata:\n  name: {name}\n  namespace: {namespace}\nspec:\n  clusterIP: None\n  selector:\n    app: {name}\n  \
             ports:\n    - name: http\n      port: 80\n      targetPort: 8080\n"
        )
    }

    /// Its EndpointSlice as the controller would write it, as YAML. The first endpoint has the
    /// address of the round.
    pub fn slice(&self, at: usize, round: usize) -> String {
        let (namespace, name) = (self.namespace(at), Self::name(at));
        let mut text = format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: {name}-x7k2p\n  namespace: {namespace}\n  \
             labels:\n    app: {name}\n    endpointslice.kubernetes.io/managed-by: endpointslice-controller.k8s.io\n    \
             kubernetes.io/service-name: {name}\naddressType: IPv4\nports:\n  - name: http\n    port: 8080\n    protocol: \
             TCP\nendpoints:\n"
        );
        for endpoint in 0..ENDPOINTS_EACH {
            let address = Self::address(at, endpoint, if endpoint == 0 { round } else { 0 });
            let _ = write!(
                text,
                "  - addresses:\n      - {address}\n    conditions:\n      ready: true\n      serving: true\n      terminating: \
                 false\n    nodeName: {}\n    targetRef:\n      kind: Pod\n      name: {}\n      namespace: {namespace}\n",
                node_name(at * 7 + endpoint),
                Self::pod_name(at, endpoint),
            );
        }
        text
    }

    /// The pod of an endpoint, of the size that pods have.
    pub fn pod(&self, at: usize, endpoint: usize) -> serde_json::Value {
        let name = Self::name(at);
        let env: Vec<_> = (0..20)
            .map(|i| serde_json::json!({"name": format!("SETTING_{i}"), "value": format!("value {i} of {name}")}))
            .collect();
        serde_json::json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": Self::pod_name(at, endpoint),
                "namespace": self.namespace(at),
                "labels": {"app": name, "pod-template-hash": "7d9c5b8f64", "tier": "backend"},
                "annotations": {"example.com/notes": "x".repeat(500), "example.com/checksum": format!("{at:064x}")},
            },
            "spec": {
                "nodeName": node_name(at * 7 + endpoint),
                "containers": [{
                    "name": "main", "image": "localhost/app:1", "env": env,
                    "ports": [{"name": "http", "containerPort": 8080}],
                    "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
                }],
            },
        })
    }
}

fn node_name(at: usize) -> String {
    format!("node-{:03}", at % NODES)
}
