//! `LoadBalancerPolicy`: how the connections of a Service are balanced, moved and kept.
//!
//! Owns what the policy is about: the Service, the listeners, the choice of a backend. How flows
//! behave is in `behaviour`, what the operator answers in `status`.

use crate::{
    AllowedClients, BackendFailure, Drain, Duration, Frontend, Health, LoadBalancerPolicyStatus,
    Migration, OnStall, ServicePort, Timeouts,
    clients::not_empty,
    rules::{forbidden, invalid, up_to, within},
    text::label_map,
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// What an admin wants of a Service's connections.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "baton.dev",
    version = "v1alpha1",
    kind = "LoadBalancerPolicy",
    plural = "loadbalancerpolicies",
    shortname = "lbp",
    category = "networking",
    namespaced,
    status = "LoadBalancerPolicyStatus",
    derive = "PartialEq",
    doc = "How the connections of a Service are spread over its pods, and when they move from one pod to another.",
    printcolumn = r#"{"name": "Service", "type": "string", "jsonPath": ".spec.targetRefs[0].name", "description": "The Service whose pods serve"}"#,
    printcolumn = r#"{"name": "Backends", "type": "string", "jsonPath": ".status.backends.summary", "description": "Pods that are ready, of all"}"#,
    printcolumn = r#"{"name": "Address", "type": "string", "jsonPath": ".status.addresses[0]", "description": "Where clients connect"}"#,
    printcolumn = r#"{"name": "Flows", "type": "integer", "jsonPath": ".status.flows", "description": "Connections at this moment"}"#,
    printcolumn = r#"{"name": "Movable", "type": "string", "jsonPath": ".status.movable.percent", "description": "How many of them can move"}"#,
    printcolumn = r#"{"name": "Migrations", "type": "integer", "jsonPath": ".status.migrations", "description": "Moves from one pod to another"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status", "description": "Whether clients are served through dataplanes"}"#,
    printcolumn = r#"{"name": "Adoptable", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Adoptable\")].status", "description": "Whether connections can move"}"#,
    printcolumn = r#"{"name": "Accepted", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Accepted\")].status", "priority": 1, "description": "Whether the policy makes sense"}"#,
    printcolumn = r#"{"name": "Programmed", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Programmed\")].status", "priority": 1, "description": "Whether all dataplanes serve it"}"#,
    printcolumn = r#"{"name": "Algorithm", "type": "string", "jsonPath": ".spec.algorithm", "priority": 1, "description": "How a pod is chosen"}"#,
    printcolumn = r#"{"name": "Protocol", "type": "string", "jsonPath": ".spec.protocol", "priority": 1, "description": "How requests are recognised"}"#,
    printcolumn = r#"{"name": "Rescued", "type": "integer", "jsonPath": ".status.rescued", "priority": 1, "description": "Connections that outlived their pod"}"#,
    printcolumn = r#"{"name": "Lost", "type": "integer", "jsonPath": ".status.lost", "priority": 1, "description": "Connections that did not"}"#,
    printcolumn = r#"{"name": "Degraded", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Degraded\")].status", "priority": 1, "description": "Whether something needs attention"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = json!([
    forbidden(
        "self.algorithm != 'Maglev' || duration(self.slowStart) == duration('0s')",
        ".slowStart",
        "is not possible with algorithm Maglev, whose table gives each backend its whole share at once so that clients keep theirs: expected 0s, or another algorithm",
    ),
    forbidden(
        "!has(self.protocol) || self.protocol != 'None' || self.migration.mode != 'Always'",
        ".migration.mode",
        "is not possible with protocol None, which knows no request to move at: expected another mode, or the protocol that the pods speak",
    ),
    forbidden(
        "!has(self.affinity) || self.migration.mode != 'Always'",
        ".migration.mode",
        "is not possible with affinity, which keeps a client's flows together: expected another mode, or no affinity",
    ),
    forbidden(
        "self.clientAddress == 'Hidden' || self.migration.legs != 'Shared'",
        ".migration.legs",
        "is not possible with clientAddress Restore or ProxyV2, by which each connection to a pod is one client's: expected Private, or clientAddress Hidden",
    ),
    // What a listener has in place of the policy's meets what the policy has of the rest.
    forbidden(
        "duration(self.slowStart) == duration('0s') || self.listeners.all(one, !has(one.algorithm) || one.algorithm != 'Maglev')",
        ".listeners",
        "have algorithm Maglev, which is not possible with the policy's slowStart: expected another algorithm in each listener, or slowStart 0s",
    ),
    forbidden(
        "!has(self.affinity) || self.listeners.all(one, !has(one.migration) || one.migration.mode != 'Always')",
        ".listeners",
        "have migration.mode Always, which is not possible with the policy's affinity: expected another mode in each listener, or no affinity",
    ),
    forbidden(
        "self.clientAddress == 'Hidden' || self.listeners.all(one, !has(one.migration) || one.migration.legs != 'Shared')",
        ".listeners",
        "have migration.legs Shared, which is not possible with the policy's clientAddress Restore or ProxyV2: expected Private in each \
         listener, or clientAddress Hidden",
    ),
    forbidden(
        "!has(self.protocol) || self.protocol != 'None' || self.listeners.all(one, has(one.protocol) || !has(one.migration) || \
         one.migration.mode != 'Always')",
        ".listeners",
        "have migration.mode Always, which is not possible with the policy's protocol None: expected another mode in each listener, or \
         the protocol that the pods speak",
    ),
    forbidden(
        "self.migration.mode != 'Always' || self.listeners.all(one, !has(one.protocol) || one.protocol != 'None' || has(one.migration))",
        ".listeners",
        "have protocol None, which is not possible with the policy's migration.mode Always: expected a migration of its own in such a \
         listener, or the protocol that its pods speak",
    ),
    forbidden(
        "!has(self.frontend) || self.targetRefs.all(one, one.name != self.frontend.service.name)",
        ".frontend.service.name",
        "is the Service whose pods serve: expected another name; `kubectl baton attach` moves the pods behind a second Service",
    ),
    forbidden(
        "!has(self.frontend) || self.listeners.all(one, !has(one.addresses) || one.addresses.size() == 0)",
        ".listeners",
        "have addresses, which a frontend does not lead to: expected none in each listener, or no frontend",
    ),
    forbidden(
        "!has(self.frontend) || self.frontend.service.type != 'ClusterIP' || self.frontend.service.externalTrafficPolicy == 'Cluster'",
        ".frontend.service.externalTrafficPolicy",
        "is of connections from outside of the cluster: expected type NodePort or LoadBalancer with it",
    ),
    forbidden(
        "!has(self.frontend) || self.frontend.service.type == 'LoadBalancer' || (!has(self.frontend.service.loadBalancerClass) && \
         (!has(self.frontend.service.loadBalancerSourceRanges) || self.frontend.service.loadBalancerSourceRanges.size() == 0))",
        ".frontend.service.type",
        "has no load balancer, for which loadBalancerClass and loadBalancerSourceRanges are: expected LoadBalancer",
    ),
])))]
pub struct LoadBalancerPolicySpec {
    /// The Service whose pods serve. It may be changed; flows then leave the old Service's pods as
    /// from a drain. A list, as the convention of policy attachment has it (GEP-713), of one item:
    /// health, weights and limits are those of one set of pods.
    #[schemars(
        length(min = 1, max = 1),
        extend("x-kubernetes-list-type" = "atomic"),
    )]
    pub target_refs: Vec<TargetRef>,
    /// Where clients connect to.
    #[schemars(
        length(min = 1, max = 16),
        extend(
            "x-kubernetes-list-type" = "map",
            "x-kubernetes-list-map-keys" = ["name"],
            "x-kubernetes-validations" = json!([invalid(
                "self.all(one, self.exists_one(other, other.port == one.port))",
                "two listeners have the same port: expected each port once",
            )]),
        ),
    )]
    pub listeners: Vec<Listener>,
    /// How clients reach the policy. Without it, the dataplanes have the listeners' ports
    /// themselves, and whatever leads clients there is made elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frontend: Option<Frontend>,
    /// Who may open connections to the listeners: clients that one of the items names. Without it,
    /// everybody. The SYNs of others are dropped without an answer. Connections that there are stay
    /// when the list, or what it selects, changes. What counts is the address that a connection has
    /// at the dataplane: with `externalTrafficPolicy: Cluster`, and wherever else nodes translate
    /// addresses, clients outside of the cluster have the address of a node. While no dataplane is
    /// ready, the Service of `spec.frontend` leads to the pods, where only their NetworkPolicies
    /// count. Items come to at most 1,024 networks; addresses of pods beyond that are left out, and
    /// the condition `Degraded` says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 64),
        extend(
            "x-kubernetes-list-type" = "atomic",
            "x-kubernetes-validations" = not_empty(),
        ),
    )]
    pub allow_from: Option<Vec<AllowedClients>>,
    /// How a pod is chosen. `LeastOutstanding`: the lower expected wait of two random candidates.
    /// `Maglev`: consistent hashing of the client's address and port. `WeightedRoundRobin`: one
    /// after the other. `Random`: by chance.
    #[serde(default)]
    pub algorithm: Algorithm,
    /// What a pod's load is judged by, with `LeastOutstanding` and where flows move. `Latency`: its
    /// answers. `LatencyAndPressure`: its answers or what its kernel says of it (accept queue, CPU
    /// throttling, CPU and memory pressure), whichever makes expect the longer wait. For that,
    /// while the policy has flows, each dataplane asks each pod up to 100 times a second, and all
    /// together 2,000 times.
    #[serde(default)]
    pub load: LoadSignal,
    /// What keeps a client's flows together at one pod, in place of the algorithm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Whose address pods see on their connections: in logs, in `getpeername`, in their own packet
    /// rules. `Hidden`: the dataplane's. `Restore`: the client's, written by the adopter in the
    /// pod, whoever serves next; the port too, unless the pod has another connection from it. Pods
    /// without an adopter see the dataplane's all the same (metric
    /// `baton_dataplane_legs_hidden_total`), and so do NetworkPolicies. `ProxyV2`: the dataplane's,
    /// but each connection to a pod begins with a header of the PROXY protocol, version 2, which
    /// has the client's address and port and, as TLV 0xEB, the listener's name: again at each move.
    /// For pods without an adopter. The servers must expect it, and nothing but Baton may reach
    /// their port: who can, can say that it is anybody. A Service of `spec.frontend` does not lead
    /// past the dataplanes then. Not with `migration.legs: Shared`.
    #[serde(default)]
    pub client_address: ClientAddress,
    /// How the begin of a request, where a flow can move, is recognised. `HTTP1`: HTTP/1.0 and
    /// HTTP/1.1. `RESP`: Redis. `Memcached`: its text protocol. `RequestResponse`: any protocol of
    /// one request, then one response. `None`: never, as for protocols where the server speaks
    /// first, and for TLS, HTTP/2 or gRPC in the pod. Not given, it is what `appProtocol` of the
    /// Service's port says: `http`, `redis` and `memcached`, or with anything else `None`; without
    /// that, `HTTP1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// When flows move.
    #[serde(default)]
    pub migration: Migration,
    /// How flows leave a pod that terminates.
    #[serde(default)]
    pub drain: Drain,
    /// What happens to the flows of a pod that died, and to a request that it may or may not have
    /// executed. `ReplayIdempotent`: flows go on elsewhere; requests that the protocol calls
    /// idempotent are executed once more, the client of any other is reset. `Replay`: any request
    /// is executed once more: you assert that this does no harm. `AdoptIdleOnly`: flows at rest go
    /// on elsewhere, the client of any other is reset. `Reset`: nothing goes on.
    #[serde(default)]
    pub on_backend_failure: BackendFailure,
    /// What happens to a request that lies unread in the kernel of a pod whose application answers
    /// nothing: stopped, throttled, in garbage collection. `Release`: the pod's host-shim lets go
    /// of it, and another pod answers it, whatever the request is, because nobody has read it.
    /// `Wait`: it waits, at most as `responseTimeout` says.
    #[serde(default)]
    pub on_stall: OnStall,
    /// A pod that has not begun to answer a request after this long is given up on: the request
    /// goes to another one if `onBackendFailure` allows to execute it once more. Without it, only
    /// pods that close, reset or fall silent are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = within("1ms", "1h")))]
    pub response_timeout: Option<Duration>,
    /// How pods that do not work are found and avoided.
    #[serde(default)]
    pub health: Health,
    /// A pod that came up takes a share of the flows that grows to the whole within this time; 0s
    /// is at once. Not with algorithm `Maglev`, and of no effect with `affinity`: there a client's
    /// pod follows from its address.
    #[serde(default = "at_once")]
    #[schemars(extend("x-kubernetes-validations" = up_to("1h")))]
    pub slow_start: Duration,
    /// Where each pod's share of the flows is read from; without it all pods have the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<Weights>,
    /// Silence after which flows are forgotten.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// Which dataplanes serve: the classes (`BatonDataplane`) with all these labels. Without it,
    /// the default classes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataplane_selector: Option<DataplaneSelector>,
    /// Whether pods are marked with `controller.kubernetes.io/pod-deletion-cost`, so that a
    /// scale-in takes first those whose connections cost least to move.
    #[serde(default)]
    pub pod_deletion_cost: PodDeletionCost,
    /// Whether the pods' servers may listen with Multipath TCP, as programs made by Go 1.24 or
    /// newer do unless told otherwise; such a listener does not adopt. `Disabled`: the host-shim of
    /// a pod's node sets `net.mptcp.enabled` to 0 in the pod's network namespace. Listeners that
    /// are made from then on are plain TCP; the setting stays for the rest of the pod's life.
    #[serde(default)]
    pub pod_multipath_tcp: PodMultipathTcp,
}

fn at_once() -> Duration {
    "0s".into()
}

/// The object that a policy is about, in its own namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetRef {
    /// The group of its kind: only `""`, the core of Kubernetes.
    #[serde(default)]
    pub group: TargetGroup,
    /// Its kind: only `Service`.
    #[serde(default)]
    pub kind: TargetKind,
    /// Its name.
    #[schemars(length(min = 1, max = 63), regex(pattern = crate::text::NAME))]
    pub name: String,
    /// The Service's port, by name, to which listeners without a `servicePort` of their own lead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = crate::text::NAME))]
    pub section_name: Option<String>,
}

/// The group of what a policy can be about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TargetGroup {
    /// The core of Kubernetes, whose name is empty.
    #[default]
    #[serde(rename = "")]
    Core,
}

/// What a policy can be about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TargetKind {
    /// A Service with its EndpointSlices.
    #[default]
    Service,
}

/// A port that clients connect to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = json!([forbidden(
    "!has(self.protocol) || self.protocol != 'None' || !has(self.migration) || self.migration.mode != 'Always'",
    ".migration.mode",
    "is not possible with the listener's protocol None, which knows no request to move at: expected another mode, or the protocol \
     that the pods speak",
)])))]
pub struct Listener {
    /// Its name, unique in the policy. It is part of the name that dataplanes and metrics use:
    /// `NAMESPACE/POLICY/LISTENER`.
    #[schemars(length(min = 1, max = 15), regex(pattern = crate::text::NAME))]
    pub name: String,
    /// The port that clients connect to, unique in the policy: the dataplanes', or that of
    /// `spec.frontend.service`.
    #[schemars(range(min = 1, max = 65_535))]
    pub port: i32,
    /// The Service's port, by number or by name, whose pods serve. If not given, it is the port
    /// that `sectionName` of `spec.targetRefs` names, and without that the number of `port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_port: Option<ServicePort>,
    /// Addresses that clients connect to and that are routed to the dataplanes. Without any, the
    /// dataplanes' own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("items" = address(), "x-kubernetes-list-type" = "set"),
    )]
    pub addresses: Vec<String>,
    /// What its clients speak, in place of the policy's `protocol`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// How a pod is chosen for its clients, in place of the policy's `algorithm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<Algorithm>,
    /// Whether and how often its connections move, in place of the policy's `migration` as a whole:
    /// what is not given here has its default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration: Option<Migration>,
}

impl LoadBalancerPolicySpec {
    /// The name of the Service whose pods serve. The API server lets no policy in without one, but
    /// one of an older schema has none.
    #[must_use]
    pub fn service(&self) -> Option<&str> {
        self.target_refs.first().map(|target| target.name.as_str())
    }

    /// The spec as it is for one listener: what that has of its own is the policy's there.
    #[must_use]
    pub fn of(&self, listener: &Listener) -> Self {
        let mut spec = self.clone();
        spec.protocol = listener.protocol.or(self.protocol);
        spec.algorithm = listener.algorithm.unwrap_or(self.algorithm);
        if let Some(migration) = &listener.migration {
            spec.migration = migration.clone();
        }
        spec
    }
}

/// An IPv4 or IPv6 address in the one form that each has, so that equal ones are seen to be equal.
fn address() -> serde_json::Value {
    json!({
        "type": "string",
        "minLength": 2,
        "maxLength": 45,
        "x-kubernetes-validations": [invalid(
            "isIP(self) && ip.isCanonical(self)",
            "is not an address in its usual form: expected as 192.0.2.1 or 2001:db8::1",
        )],
    })
}

/// How a pod is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Algorithm {
    /// The lower expected wait of two random candidates (power of two choices).
    #[default]
    LeastOutstanding,
    /// Consistent hashing of the client's address and port.
    Maglev,
    /// Smooth weighted round robin.
    WeightedRoundRobin,
    /// By chance, in proportion to the weights.
    Random,
}

/// What a pod's load is judged by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LoadSignal {
    /// Its answers.
    #[default]
    Latency,
    /// Its answers or what its kernel says, whichever makes expect the longer wait.
    LatencyAndPressure,
}

/// Whose address pods see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClientAddress {
    /// The dataplane's.
    #[default]
    Hidden,
    /// The client's.
    Restore,
    /// The dataplane's; a header of the PROXY protocol has the client's.
    ProxyV2,
}

/// How the begin of a request is recognised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Protocol {
    /// HTTP/1.0 and HTTP/1.1.
    #[default]
    #[serde(rename = "HTTP1")]
    Http1,
    /// The Redis protocol.
    #[serde(rename = "RESP")]
    Resp,
    /// The text protocol of memcached.
    Memcached,
    /// Request, then response, then request.
    RequestResponse,
    /// Never: flows stay where they are.
    None,
}

/// What keeps flows together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Affinity {
    /// All flows of one client address have the same pod, which follows from the address and is the
    /// same on all dataplanes; the algorithm is not asked. They move only with its drain, death or
    /// ejection, and then all to the same other one: `WhenBetter` is as `DrainOnly`.
    #[serde(rename = "clientIP")]
    pub client_ip: ClientIp,
}

/// Affinity of a client's address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientIp {
    /// How long after its last flow ended a client still gets the same pod.
    #[schemars(extend("x-kubernetes-validations" = within("1s", "24h")))]
    pub timeout: Duration,
}

impl Default for ClientIp {
    fn default() -> Self {
        Self {
            // As a Service's sessionAffinityConfig.clientIP.timeoutSeconds.
            timeout: "3h".into(),
        }
    }
}

/// Where the pods' shares of the flows are read from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = json!([invalid(
    "has(self.label) != has(self.annotation)",
    "needs one source: expected either `label` or `annotation`",
)])))]
pub struct Weights {
    /// The pod label that holds the share: a whole number from 0, which takes no new flow,
    /// to 65535.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::text::qualified_name")]
    pub label: Option<String>,
    /// The pod annotation that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::text::qualified_name")]
    pub annotation: Option<String>,
    /// The share of a pod that has no such label or annotation, or a useless one.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 65_535))]
    pub default: i32,
}

fn one() -> i32 {
    1
}

/// Chooses classes of dataplanes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataplaneSelector {
    /// Labels that a `BatonDataplane` has to have. Without any, the default classes are chosen.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "label_map")]
    pub match_labels: BTreeMap<String, String>,
}

/// Whether pods are marked with what their deletion costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PodDeletionCost {
    /// They are.
    Enabled,
    /// They are not.
    #[default]
    Disabled,
}

/// Whether the pods' servers may listen with Multipath TCP. Of two, the later one holds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum PodMultipathTcp {
    /// As the pod has it.
    #[default]
    Unchanged,
    /// They may not.
    Disabled,
}
