//! What the index is told: plain values, one [`Change`] per object that came, changed or went.
//!
//! Owns the types and nothing else; what they mean together is decided elsewhere. They hold only
//! what an answer needs, and texts that repeat are shared ([`crate::Interner`] makes them), because
//! there may be 50,000 of some.

use crate::{Allowance, Namespace, Peer, PortRange};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
    sync::Arc,
};

/// A shared text.
pub type Text = Arc<str>;

/// Namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its namespace.
    pub namespace: Text,
    /// Its name.
    pub name: Text,
}

impl Key {
    /// From both parts.
    #[must_use]
    pub fn new(namespace: impl Into<Text>, name: impl Into<Text>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// An object came or changed (`Some`) or went (`None`). Repeating one changes nothing.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A `LoadBalancerPolicy`.
    Policy(Key, Option<Arc<Policy>>),
    /// A Service.
    Service(Key, Option<Arc<Service>>),
    /// An EndpointSlice of addresses. Slices of names (`addressType: FQDN`) and those without the
    /// label `kubernetes.io/service-name` belong to no backend and are not passed on.
    Slice(Key, Option<Arc<Slice>>),
    /// A Pod: a backend, a dataplane, or of no interest. One that has ended (phase `Succeeded` or
    /// `Failed`) is passed on as `None`.
    Pod(Key, Option<Arc<Pod>>),
    /// A Node, by name.
    Node(Text, Option<Arc<Node>>),
    /// A Namespace, by name. One without labels need not be told of.
    Namespace(Text, Option<Arc<Namespace>>),
    /// A `BatonDataplane`, by name.
    Class(Text, Option<Arc<Class>>),
    /// What the host-shim of a node says, by the node's name.
    Shim(Text, Option<Arc<Shim>>),
    /// All nodes that have no adoption keys, because an admin does not trust them.
    Excluded(BTreeSet<Text>),
    /// How far a dataplane is, by its Pod. `None` when it is not asked any more.
    Report(Key, Option<Arc<Report>>),
    /// What a dataplane counts, by its Pod; `None` forgets the present figures, not the totals.
    Figures(Key, Option<Arc<Figures>>),
    /// What a dataplane of a class has in force, found before anything is pushed to it: as far as
    /// [`crate::Index::wants`] asks for it, it stays in force.
    Held(Text, Vec<Arc<baton_api::Policy>>),
    /// Whether objects may be missing that were there before this index began. As long as they may,
    /// no policy and no backend that dataplanes were found to have is left out for want of an
    /// object.
    Partial(bool),
}

/// A `LoadBalancerPolicy`.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// `metadata.uid`.
    pub uid: Text,
    /// `metadata.creationTimestamp`, in seconds since 1970: the older one wins a conflict, of two
    /// made in the same second the one with the smaller key.
    pub created: i64,
    /// `metadata.generation`: goes into the verdict as `observedGeneration`.
    pub generation: i64,
    /// The Service that it is for, in its namespace.
    pub service: Text,
    /// Where clients connect.
    pub listeners: Vec<Listener>,
    /// What each listener's snapshot policy says besides name, frontends and backends (those are
    /// empty here), or why the object could not be translated. If it could not, the other fields
    /// say what could be read all the same.
    pub template: Result<Arc<baton_api::Policy>, Refusal>,
    /// Where pods' weights come from; without it each weighs 1.
    pub weights: Option<Weights>,
    /// `dataplaneSelector.matchLabels`, over labels of classes; empty means the default classes.
    pub classes: Labels,
    /// The Service that clients connect to; without it the dataplanes have the listeners' ports.
    pub frontend: Option<Arc<Frontend>>,
    /// Whose connections are taken; without it everybody's. The template says nothing of it.
    pub allow_from: Option<Arc<[Peer]>>,
    /// Whether `controller.kubernetes.io/pod-deletion-cost` of the backends' Pods is to be set.
    pub deletion_cost: bool,
    /// Whether backends on cordoned nodes drain, as long as enough others are ready elsewhere.
    pub drain_cordoned: bool,
}

/// The Service in front of a policy's dataplanes, in the policy's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frontend {
    /// Its name.
    pub service: Text,
    /// `spec.type`.
    pub kind: Text,
    /// `spec.loadBalancerClass`.
    pub load_balancer_class: Option<Text>,
    /// `spec.externalTrafficPolicy: Local`.
    pub local: bool,
    /// `spec.loadBalancerSourceRanges`.
    pub source_ranges: BTreeSet<Text>,
    /// Annotations.
    pub annotations: BTreeMap<Text, Text>,
}

/// Where clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Unique in the policy, at most 15 characters.
    pub name: Text,
    /// The port that clients connect to.
    pub port: u16,
    /// The dataplanes' port where the policy has a frontend: as the status of the object says, or
    /// as the index gave it out.
    pub allocated: Option<u16>,
    /// The Service's port behind it.
    pub service_port: PortRef,
    /// Explicit addresses; empty means the dataplane's own ones, of the Service's families.
    pub addresses: Vec<IpAddr>,
    /// In place of the policy's template, where the listener has something of its own.
    pub own: Option<Arc<baton_api::Policy>>,
    /// Nobody said what clients speak, so the Service's port does, if it says anything.
    pub protocol_by_port: bool,
}

impl Listener {
    /// The dataplanes' port.
    #[must_use]
    pub fn at(&self) -> u16 {
        self.allocated.unwrap_or(self.port)
    }

    /// What its snapshot policy says, besides name, frontends and backends, by the policy's
    /// template and what the Service's port says of the protocol.
    #[must_use]
    pub fn settings(
        &self,
        template: &baton_api::Policy,
        by_port: Option<baton_api::Protocol>,
    ) -> baton_api::Policy {
        let mut settings = self.own.as_deref().unwrap_or(template).clone();
        if let Some(protocol) = by_port.filter(|_| self.protocol_by_port) {
            settings.protocol = protocol;
        }
        settings
    }
}

/// Which port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortRef {
    /// `ports[].name`, as the listener says.
    Name(Text),
    /// `ports[].name`, as the policy says for listeners that say nothing
    /// (`targetRefs[0].sectionName`).
    Section(Text),
    /// `ports[].port`.
    Number(u16),
}

/// Why an object cannot be used: the field and what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// As `spec.drain.deadline`; empty if the operator itself failed at the object.
    pub field: Text,
    /// What is wrong, what was expected.
    pub problem: Text,
}

/// Where a Pod's weight stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights {
    /// Label or annotation.
    pub source: WeightSource,
    /// The weight of a Pod without it, or whose value is no number from 0 to 65535.
    pub default: u16,
}

/// A key of Pods' labels or annotations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WeightSource {
    /// `metadata.labels[..]`.
    Label(Text),
    /// `metadata.annotations[..]`. Only values of up to [`LIMIT_ANNOTATION_BYTES`] are kept.
    Annotation(Text),
}

/// Annotations with longer values are no weights and are not kept: Pods carry whole documents in
/// them.
pub const LIMIT_ANNOTATION_BYTES: usize = 32;

/// Labels, or short annotations. Shared between the Pods that have the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Labels(Arc<BTreeMap<Text, Text>>);

impl Labels {
    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Text> {
        self.0.get(key)
    }

    /// Whether all of `wanted` are among these.
    #[must_use]
    pub fn include(&self, wanted: &Self) -> bool {
        wanted.0.iter().all(|(key, value)| self.get(key) == Some(value))
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Arc<BTreeMap<Text, Text>> {
        &self.0
    }

    pub(crate) fn from_shared(shared: Arc<BTreeMap<Text, Text>>) -> Self {
        Self(shared)
    }
}

impl<K: Into<Text>, V: Into<Text>> FromIterator<(K, V)> for Labels {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let pairs = pairs.into_iter().map(|(k, v)| (k.into(), v.into()));
        Self(Arc::new(pairs.collect()))
    }
}

impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (key, value)) in self.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{key}={value}")?;
        }
        Ok(())
    }
}

/// A Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its TCP ports.
    pub ports: Vec<ServicePort>,
    /// `spec.ipFamilies`; empty counts as IPv4.
    pub families: Vec<Family>,
    /// `type: ExternalName`: it has no endpoints and never will.
    pub external_name: bool,
    /// It has a selector, so the cluster writes its slices.
    pub selects: bool,
    /// Of one with the label [`baton_api::POLICY_LABEL`].
    pub front: Option<Arc<Front>>,
}

/// What is known of a Service in front of dataplanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Front {
    /// `metadata.uid`.
    pub uid: Text,
    /// The policy that it leads to, as the label says.
    pub policy: Text,
    /// An operator made it; otherwise only its slices are the operator's.
    pub made: bool,
    /// The selector that it had, as JSON, for when it leads to no policy any more.
    pub selector: Option<Text>,
    /// Where clients reach it, those outside of the cluster first.
    pub addresses: Vec<Text>,
    /// What an operator wants of it, as it is: the name does not count.
    pub shape: Frontend,
    /// Keys of those of its annotations that an operator has written.
    pub annotated: BTreeSet<Text>,
    /// `spec.ports[].targetPort` by `port`, where it is a number.
    pub targets: BTreeMap<u16, u16>,
    /// Clients are led to endpoints in their own zone, where there are any
    /// (`spec.trafficDistribution`, or annotation `service.kubernetes.io/topology-mode: Auto`).
    pub zonal: bool,
    /// Clients in the cluster are led to endpoints on their own node alone
    /// (`spec.internalTrafficPolicy: Local`).
    pub own_node: bool,
    /// Its ports that are not TCP's, as `53/UDP`.
    pub others: Vec<Text>,
}

/// A port of a Service. Its `targetPort` is of no interest: the slices say what it came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name; empty for the only port of a Service.
    pub name: Text,
    /// Its number.
    pub port: u16,
    /// What its `appProtocol` says that is spoken; nothing without one, or in a slice.
    pub protocol: Option<baton_api::Protocol>,
}

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// An EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The Service that it belongs to, in its namespace (label `kubernetes.io/service-name`).
    pub service: Text,
    /// Its TCP ports that have a number.
    pub ports: Vec<ServicePort>,
    /// Its endpoints.
    pub endpoints: Vec<SliceEndpoint>,
    /// Who writes it.
    pub writer: SliceWriter,
    /// Of one of Baton's: `metadata.uid`, by which another that has its name since is left alone.
    pub uid: Option<Text>,
    /// Of one of Baton's: the zone whose clients each endpoint is for (`hints.forZones`).
    pub zones: Vec<Option<Text>>,
}

/// Who writes a slice (label `endpointslice.kubernetes.io/managed-by`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SliceWriter {
    /// An operator of Baton.
    Baton,
    /// The cluster, by the Service's selector.
    Cluster,
    /// The cluster, as a copy of the Endpoints object of the Service's name.
    Mirror,
    /// Somebody else.
    #[default]
    Other,
}

/// An endpoint of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceEndpoint {
    /// The first of its addresses: by the API's rule the others lead to the same.
    pub address: IpAddr,
    /// What it is fit for.
    pub conditions: Conditions,
    /// `targetRef.name` if it is a Pod of the slice's namespace.
    pub pod: Option<Text>,
    /// `nodeName`.
    pub node: Option<Text>,
}

/// Conditions of an endpoint, with the API's meaning of absent ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// Takes new connections.
    pub ready: bool,
    /// Works, terminating or not.
    pub serving: bool,
    /// Is going away.
    pub terminating: bool,
}

impl Conditions {
    /// Absent `ready` means true, absent `serving` is what `ready` is, absent `terminating` means
    /// false.
    #[must_use]
    pub fn new(ready: Option<bool>, serving: Option<bool>, terminating: Option<bool>) -> Self {
        let ready = ready.unwrap_or(true);
        Self { ready, serving: serving.unwrap_or(ready), terminating: terminating.unwrap_or(false) }
    }
}

/// A Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// All labels.
    pub labels: Labels,
    /// Annotations with short values, [`crate::Interner::annotations`] picks them.
    pub annotations: Labels,
    /// It has a `deletionTimestamp`.
    pub deleting: bool,
    /// Its condition `Ready` is true.
    pub ready: bool,
    /// `spec.nodeName`.
    pub node: Option<Text>,
    /// `spec.hostNetwork`: its addresses are the node's.
    pub host_network: bool,
    /// `status.podIP`.
    pub address: Option<IpAddr>,
    /// The one of the other family, of `status.podIPs`.
    pub second_address: Option<IpAddr>,
    /// The deletion cost that an operator wrote there, this one or one before it; not somebody
    /// else's.
    pub cost: Option<i32>,
}

impl Pod {
    /// Whether it has this address.
    #[must_use]
    pub fn has(&self, address: IpAddr) -> bool {
        let mut own = [self.address, self.second_address].into_iter().flatten();
        own.any(|own| own.to_canonical() == address.to_canonical())
    }
}

/// A Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// `spec.unschedulable`.
    pub cordoned: bool,
    /// Its condition `Ready` is true.
    pub ready: bool,
    /// Its label `topology.kubernetes.io/zone`.
    pub zone: Option<Text>,
}

/// A `BatonDataplane`: a class of dataplane pods, which all get the same snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// `metadata.creationTimestamp`, in seconds since 1970. A pod that two classes select belongs
    /// to the older one, of two made in the same second to the one with the smaller name.
    pub created: i64,
    /// `metadata.generation`.
    pub generation: i64,
    /// Labels that policies select it by.
    pub labels: Labels,
    /// Takes policies without a selector.
    pub default: bool,
    /// Namespace of its pods.
    pub namespace: Text,
    /// Labels of its pods. Empty selects none: a class of all pods of a namespace is never meant.
    pub selector: Labels,
    /// Port of its pods' control API.
    pub control_port: u16,
    /// Port range of the legs, both ends included: no listener may be in it.
    pub leg_ports: Option<(u16, u16)>,
    /// Range of the ports that are given out to policies with a frontend, both ends included.
    pub frontend_ports: Option<(u16, u16)>,
    /// Ports where its dataplanes, or their nodes, listen themselves besides `control_port`: no
    /// listener at their own address may have one.
    pub reserved_ports: Vec<PortRange>,
    /// Which policies may have what. What is not allowed here is refused.
    pub allowed: Vec<Allowance>,
    /// Snapshot policies (listeners) that it takes; more than [`baton_api::LIMIT_POLICIES`] counts
    /// as that.
    pub limit_policies: usize,
    /// Backends (addresses and ports) that its dataplanes have room for (`limits.backends` of their
    /// configuration), if known. The youngest policies are left out where there are more, less the
    /// places for those that linger ([`crate::LINGERING_SHARE`]).
    pub limit_backends: Option<usize>,
}

/// What a host-shim says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shim {
    /// Why it cannot be asked, for people.
    pub unreachable: Option<Text>,
    /// Pods on its node without the adopter, and why.
    pub unattached: BTreeMap<Key, Text>,
}

/// How far a dataplane is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Why it cannot be reached, for people. Not for a single lost request: each change of this is
    /// a change of the status of every policy of its class.
    pub unreachable: Option<Text>,
    /// The newest [`crate::ClassUpdate::revision`] that it acknowledged, or whose content it was
    /// found to have.
    pub acknowledged: Option<u64>,
    /// The newest revision that it refused, with its words.
    pub refused: Option<(u64, Text)>,
    /// The addresses that it says are its own: its Pod may have more than the cluster knows.
    pub addresses: Vec<IpAddr>,
    /// Policies of what it acknowledged that it cannot take, with its words, by name of the
    /// snapshot policy.
    pub refused_policies: BTreeMap<Text, Text>,
}

/// What a dataplane counts, as of one moment. [`PolicyFigures::from_state`] takes it out of what it
/// answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// When, in seconds since 1970.
    pub at: i64,
    /// Seconds since the dataplane started: a smaller number than the last one means that it
    /// started anew.
    pub uptime: u64,
    /// By name of the snapshot policy, in order of names.
    pub policies: Vec<PolicyFigures>,
}

/// Figures of one snapshot policy in one dataplane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyFigures {
    /// Name of the snapshot policy.
    pub name: Text,
    /// Flows at this moment.
    pub flows: u64,
    /// Totals since the dataplane started.
    pub totals: Totals,
    /// Flows at this moment that can never move, by reason.
    pub pinned: BTreeMap<Text, u64>,
    /// Too few backends are usable, so all are used.
    pub panic: bool,
    /// Its backends.
    pub backends: Vec<BackendFigures>,
}

/// Totals of one snapshot policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Flows.
    pub flows: u64,
    /// Confirmed adoptions.
    pub migrations: u64,
    /// Adoptions that were taken back.
    pub rollbacks: u64,
    /// Flows that went on after their backend died.
    pub rescues: u64,
    /// Requests that were, or may have been, executed and were sent again.
    pub replays: u64,
    /// Flows that ended because of a backend's death.
    pub lost: u64,
}

/// Totals of one backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendTotals {
    /// Requests.
    pub requests: u64,
    /// Flows that came by migration.
    pub migrations_in: u64,
    /// Flows that left by migration.
    pub migrations_out: u64,
    /// Flows that died here and went on elsewhere.
    pub rescued: u64,
}

/// Figures of one backend in one dataplane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendFigures {
    /// Name of the backend.
    pub name: Text,
    /// Flows that it owns.
    pub flows: u64,
    /// Those of them that can never move.
    pub pinned: u64,
    /// Those with a request outstanding.
    pub outstanding: u64,
    /// Totals since the dataplane started.
    pub totals: BackendTotals,
    /// Whether the dataplane has asked already whether flows can move to it.
    pub probed: bool,
    /// Why it does not adopt flows, if so, in the dataplane's words.
    pub unadoptable: Option<Text>,
    /// Why the dataplane opens no connection to it for a flow that moves, if so, in its words.
    pub untranslatable: Option<Text>,
    /// Why the dataplane gives it no flows, if so, in its words.
    pub unusable: Option<Text>,
    /// How far its drain is, while it drains.
    pub drain: Option<Box<DrainFigures>>,
}

/// How far one dataplane's drain of one backend is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainFigures {
    /// Flows that moved since it began.
    pub moved: u64,
    /// Flows that ended by themselves.
    pub ended: u64,
    /// Flows that the deadline closed.
    pub closed: u64,
    /// Flows that are still there, by what they wait for.
    pub waiting: BTreeMap<Text, u64>,
    /// When it began, in seconds since 1970.
    pub since: i64,
    /// When its deadline is, in seconds since 1970.
    pub until: i64,
}
