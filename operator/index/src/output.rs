//! What a fold of the index gives back.
//!
//! Owns the types and nothing else. Everything in them is in order of names, so that equal inputs
//! give equal outputs.

use crate::{BackendTotals, Conditions, Family, Frontend, Key, ServicePort, Text, Totals};
use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

/// What has changed since the last fold.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use = "what is not passed on is never said again"]
pub struct Update {
    /// Per class that changed: its snapshot, its dataplanes.
    pub classes: BTreeMap<Text, ClassUpdate>,
    /// What is to be said of policies: those whose conditions or figures are not what they were.
    pub verdicts: Vec<Arc<Verdict>>,
    /// What is to be said of classes.
    pub class_verdicts: Vec<ClassVerdict>,
    /// What is to be written of Services in front of dataplanes and their slices, by Service.
    /// Empty writes take back what was said before.
    pub fronts: BTreeMap<Key, Arc<FrontWrites>>,
    /// `controller.kubernetes.io/pod-deletion-cost` of Pods; `None` takes the annotation off.
    pub costs: BTreeMap<Key, Option<i32>>,
    /// What is worth an Event; at most [`crate::LIMIT_EVENTS`] in one fold.
    pub events: Vec<Event>,
    /// Events that did not fit.
    pub events_dropped: usize,
    /// Policies whose snapshot policies were computed anew.
    pub translated: usize,
    /// Policies whose verdict was computed anew.
    pub judged: usize,
}

/// What changed in a class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassUpdate {
    /// Grows with each change of this class's snapshot. A dataplane that has the snapshot as of
    /// this update acknowledges this number ([`crate::Report::acknowledged`]). It is no generation:
    /// a new index begins at 1 again.
    pub revision: u64,
    /// The class is new to whoever reads this: what it had before, if it did exist, is all gone.
    pub fresh: bool,
    /// Snapshot policies that came or changed, by name.
    pub changed: Vec<Arc<baton_api::Policy>>,
    /// Names of those that went.
    pub removed: Vec<Text>,
    /// All dataplanes of the class, if they changed.
    pub dataplanes: Option<Vec<Dataplane>>,
    /// The class does not exist any more: nothing more is to be pushed to its dataplanes, they go
    /// on with what they have.
    pub gone: bool,
}

/// A dataplane to push to. A pod without an address is none yet; one that is not ready or
/// terminates still is one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dataplane {
    /// Its Pod.
    pub pod: Key,
    /// Its address.
    pub address: IpAddr,
    /// Port of its control API.
    pub control_port: u16,
    /// Its node.
    pub node: Option<Text>,
}

/// What is to be said of one `LoadBalancerPolicy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Which.
    pub policy: Key,
    /// Its `metadata.uid`.
    pub uid: Text,
    /// The `metadata.generation` that this is about.
    pub observed_generation: i64,
    /// Its conditions, always all four, in the order of [`ConditionKind`].
    pub conditions: [Condition; 4],
    /// The classes that serve it, by name.
    pub classes: Vec<Text>,
    /// Where clients connect, as `ADDRESS:PORT`, as far as that is known.
    pub addresses: Vec<String>,
    /// What became of its frontend.
    pub front: Option<FrontVerdict>,
    /// Ready dataplanes that have it as it is now.
    pub programmed: usize,
    /// Ready dataplanes that should.
    pub dataplanes: usize,
    /// Pods (addresses where there is no Pod) that take new flows, over all listeners.
    pub ready: usize,
    /// All of them.
    pub total: usize,
    /// Flows at this moment, in all dataplanes.
    pub flows: u64,
    /// Totals over all dataplanes. They never become smaller while the index lives, also when a
    /// dataplane starts anew or goes; an index that starts anew begins with what the dataplanes
    /// have.
    pub totals: Totals,
    /// Flows at this moment that can move.
    pub movable: Movable,
    /// Flows at this moment that can never move, by reason.
    pub pinned: BTreeMap<Text, u64>,
    /// What drains came to, never smaller either, those that are over included.
    pub drained: Drained,
    /// Its drains in progress, those with the most flows left first; at most
    /// [`crate::LIMIT_BACKENDS_SHOWN`].
    pub drains: Vec<Drain>,
    /// Its backends, those with the most flows first; at most [`crate::LIMIT_BACKENDS_SHOWN`].
    pub backends: Vec<BackendVerdict>,
    /// Backends that are not among them.
    pub backends_not_shown: usize,
    /// The newest moment that the figures are of, in seconds since 1970. A verdict is not given
    /// again only because of it.
    pub figures_at: Option<i64>,
}

impl Verdict {
    /// One of its conditions.
    #[must_use]
    pub fn condition(&self, kind: ConditionKind) -> &Condition {
        &self.conditions[kind as usize]
    }
}

/// What became of a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontVerdict {
    /// Its Service.
    pub service: Text,
    /// Where it leads.
    pub leads_to: LeadsTo,
    /// The dataplanes' port of each listener, those that have one.
    pub ports: Vec<(Text, u16)>,
}

/// Where a frontend leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeadsTo {
    /// To dataplanes.
    Dataplanes,
    /// To the pods, as no dataplane is ready.
    Pods,
    /// Nowhere by the policy.
    Nowhere,
}

/// What is to be written of a Service in front of dataplanes, so that it becomes what it should be.
/// What is made of it later depends on what of this is there then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrontWrites {
    /// Name and uid of the policy that owns it, where the Service is to be made.
    pub owner: Option<(Text, Text)>,
    /// `metadata.uid` of the Service, which owns its slices.
    pub uid: Option<Text>,
    /// It is to be made, or made as it should be.
    pub make: Option<FrontService>,
    /// It was made, and is to go.
    pub unmake: bool,
    /// It is to have this selector (JSON) again, and no mark of a policy.
    pub restore: Option<Text>,
    /// Slices that are to be written.
    pub slices: Vec<FrontSlice>,
    /// Names of slices that are to go, and the uids of those that Baton made.
    pub remove: Vec<(Text, Option<Text>)>,
    /// The Endpoints object of its name is to go, of which the cluster makes slices.
    pub remove_endpoints: bool,
}

impl FrontWrites {
    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.make.is_none()
            && !self.unmake
            && self.restore.is_none()
            && self.slices.is_empty()
            && self.remove.is_empty()
            && !self.remove_endpoints
    }
}

/// A Service in front of dataplanes as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontService {
    /// What the policy wants of it.
    pub frontend: Arc<Frontend>,
    /// Families, the first one first.
    pub families: Vec<Family>,
    /// Name, port and the dataplanes' port.
    pub ports: Vec<(Text, u16, u16)>,
}

/// A slice as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontSlice {
    /// Its name.
    pub name: Text,
    /// The uid of the one that is there and that is to become so; without, it is to be made.
    pub uid: Option<Text>,
    /// The family of its addresses.
    pub family: Family,
    /// Its ports, by the names that the Service has for them.
    pub ports: Vec<ServicePort>,
    /// Its endpoints, in order of addresses.
    pub endpoints: Vec<FrontEndpoint>,
}

/// An endpoint of such a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontEndpoint {
    /// Its address.
    pub address: IpAddr,
    /// What it is fit for.
    pub conditions: Conditions,
    /// Its Pod.
    pub pod: Option<Key>,
    /// Its node.
    pub node: Option<Text>,
    /// The zone whose clients it is for, where it is for one.
    pub zone: Option<Text>,
}

/// Flows that are not pinned, and that another backend takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Movable {
    /// One that adopts.
    pub by_adoption: u64,
    /// None that adopts, but one to which a connection can be opened.
    pub by_translation: u64,
}

/// What drains came to, in flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Moved to another backend.
    pub moved: u64,
    /// Ended by themselves.
    pub ended: u64,
    /// Closed by the deadline.
    pub closed: u64,
}

/// A drain in progress, summed over the dataplanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drain {
    /// Name of the listener.
    pub listener: Text,
    /// Name of the backend.
    pub backend: Text,
    /// What became of its flows so far.
    pub drained: Drained,
    /// Flows that are still there, by what they wait for.
    pub waiting: BTreeMap<Text, u64>,
    /// When the first dataplane began, in seconds since 1970.
    pub since: i64,
    /// When the last deadline is, in seconds since 1970.
    pub until: i64,
}

/// A condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Which.
    pub kind: ConditionKind,
    /// Whether it holds.
    pub status: Status,
    /// Why.
    pub reason: Reason,
    /// What a person should know or change.
    pub message: String,
    /// Since when the status is what it is, in seconds since 1970, as far as this index saw it.
    /// What the object's status says already holds if it is of the same status.
    pub since: i64,
}

/// The conditions of a `LoadBalancerPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionKind {
    /// It can be used as it is written, and nobody older claims what it asks for.
    Accepted = 0,
    /// All ready dataplanes of its classes have it as it is now.
    Programmed = 1,
    /// Flows can move between its backends.
    Adoptable = 2,
    /// It works less well than it should.
    Degraded = 3,
}

impl ConditionKind {
    /// All of them, in order.
    pub const ALL: [Self; 4] = [Self::Accepted, Self::Programmed, Self::Adoptable, Self::Degraded];

    /// As in `status.conditions[].type`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "Accepted",
            Self::Programmed => "Programmed",
            Self::Adoptable => "Adoptable",
            Self::Degraded => "Degraded",
        }
    }
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It does.
    True,
    /// It does not.
    False,
    /// Nobody has said yet.
    Unknown,
}

impl Status {
    /// As in `status.conditions[].status`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// Why a condition is as it is. The text is the name: CamelCase, as the API wants it. Of several
/// reasons for one condition, the first in this order is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Accepted: as written.
    Accepted,
    /// Accepted: a value cannot be used.
    Invalid,
    /// Accepted: an older policy has the Service, or the address and port.
    Conflicted,
    /// Accepted: a listener's port belongs to the dataplane's own connections.
    PortInLegRange,
    /// Accepted: dataplanes or their nodes listen at a listener's port themselves.
    PortReserved,
    /// Accepted: a listener's port is one of those that the operator gives out.
    PortIsAFrontends,
    /// Accepted: no port is left to be given out.
    NoFrontendPort,
    /// Accepted: a class does not allow the namespace a listener's port or address.
    NotAllowed,
    /// Accepted: no class fits.
    NoDataplaneClass,
    /// Accepted: the Service does not exist.
    TargetNotFound,
    /// Accepted: the Service has none of the ports. Degraded: it lacks some of them.
    PortNotFound,
    /// Accepted: the operator failed at this policy, which is a bug of it.
    InternalError,
    /// Programmed: all dataplanes have it.
    Programmed,
    /// Programmed, Adoptable: because it is not accepted.
    NotAccepted,
    /// Programmed: a class is full.
    PolicyLimit,
    /// Programmed: a class's dataplanes have no room for the backends.
    ClassBackendLimit,
    /// Programmed: a class's snapshot takes no more bytes.
    ClassSnapshotLimit,
    /// Programmed: a class has no ready dataplane.
    NoDataplane,
    /// Programmed: a dataplane refuses the snapshot.
    SnapshotRefused,
    /// Programmed: a dataplane refuses this policy, and serves all others.
    RefusedByDataplane,
    /// Programmed, Degraded: a dataplane cannot be reached.
    DataplaneUnreachable,
    /// Programmed: dataplanes have not acknowledged it yet.
    Pending,
    /// Adoptable: flows can move to all backends.
    Adoptable,
    /// Adoptable: the same, to some of them by translation, as they do not adopt.
    ByTranslation,
    /// Adoptable: to some of them flows cannot move.
    BackendsNotAdoptable,
    /// Adoptable: the policy's protocol never moves a flow.
    ProtocolNone,
    /// Adoptable: no dataplane has said yet.
    NotProbed,
    /// Degraded: the Service that clients shall connect to is somebody else's, or selects pods.
    FrontendNotOwned,
    /// Degraded: the Service that clients connect to has no such port.
    FrontendPortNotFound,
    /// Degraded: the Service that clients connect to has a port that no listener is for.
    FrontendPortNotServed,
    /// Degraded: no dataplane is ready, so clients are led to the pods.
    FrontendLeadsToPods,
    /// Degraded: no dataplane is ready, and the pods take only what dataplanes send.
    FrontendLeadsNowhere,
    /// Degraded: clients are led to their own node alone, and some node has no endpoint.
    FrontendOwnNode,
    /// Degraded: endpoints are no Pods of the namespace, and a class does not allow them.
    EndpointsNotAllowed,
    /// Degraded, Adoptable: there is no endpoint.
    NoEndpoints,
    /// Degraded: none of the endpoints is ready.
    NoReadyEndpoints,
    /// Degraded: more endpoints than a policy can have.
    BackendLimit,
    /// Degraded: more addresses in `allowFrom` than a policy can have.
    AllowFromLimit,
    /// Degraded: some backends are known only from what dataplanes had.
    BackendsNotFollowed,
    /// Degraded: dataplanes give some backends no flows.
    BackendsUnusable,
    /// Degraded: a Pod's weight is no weight.
    WeightUnreadable,
    /// Degraded: fewer than half of the flows can move.
    FewFlowsCanMove,
    /// Degraded: no Service leads to a listener's port of the dataplanes.
    NoServicePort,
    /// Degraded: nothing is wrong.
    AsExpected,
    /// Of an Event only: a backend's drain is over.
    Drained,
    /// Of an Event only: the deadline of a backend's drain passed with flows left.
    DrainDeadline,
}

impl Reason {
    /// As in `status.conditions[].reason`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "Accepted",
            Self::Invalid => "Invalid",
            Self::Conflicted => "Conflicted",
            Self::PortInLegRange => "PortInLegRange",
            Self::PortReserved => "PortReserved",
            Self::PortIsAFrontends => "PortIsAFrontends",
            Self::NoFrontendPort => "NoFrontendPort",
            Self::NotAllowed => "NotAllowed",
            Self::NoDataplaneClass => "NoDataplaneClass",
            Self::TargetNotFound => "TargetNotFound",
            Self::PortNotFound => "PortNotFound",
            Self::InternalError => "InternalError",
            Self::Programmed => "Programmed",
            Self::NotAccepted => "NotAccepted",
            Self::Pending => "Pending",
            Self::NoDataplane => "NoDataplane",
            Self::PolicyLimit => "PolicyLimit",
            Self::ClassBackendLimit => "ClassBackendLimit",
            Self::ClassSnapshotLimit => "ClassSnapshotLimit",
            Self::SnapshotRefused => "SnapshotRefused",
            Self::RefusedByDataplane => "RefusedByDataplane",
            Self::DataplaneUnreachable => "DataplaneUnreachable",
            Self::Adoptable => "Adoptable",
            Self::ByTranslation => "ByTranslation",
            Self::BackendsNotAdoptable => "BackendsNotAdoptable",
            Self::ProtocolNone => "ProtocolNone",
            Self::NotProbed => "NotProbed",
            Self::FrontendNotOwned => "FrontendNotOwned",
            Self::FrontendPortNotFound => "FrontendPortNotFound",
            Self::FrontendPortNotServed => "FrontendPortNotServed",
            Self::FrontendLeadsToPods => "FrontendLeadsToPods",
            Self::FrontendLeadsNowhere => "FrontendLeadsNowhere",
            Self::FrontendOwnNode => "FrontendOwnNode",
            Self::EndpointsNotAllowed => "EndpointsNotAllowed",
            Self::NoEndpoints => "NoEndpoints",
            Self::NoReadyEndpoints => "NoReadyEndpoints",
            Self::AllowFromLimit => "AllowFromLimit",
            Self::BackendLimit => "BackendLimit",
            Self::BackendsNotFollowed => "BackendsNotFollowed",
            Self::BackendsUnusable => "BackendsUnusable",
            Self::WeightUnreadable => "WeightUnreadable",
            Self::FewFlowsCanMove => "FewFlowsCanMove",
            Self::NoServicePort => "NoServicePort",
            Self::AsExpected => "AsExpected",
            Self::Drained => "Drained",
            Self::DrainDeadline => "DrainDeadline",
        }
    }
}

/// Figures of one backend, summed over the dataplanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendVerdict {
    /// Name of the listener.
    pub listener: Text,
    /// Name of the backend.
    pub name: Text,
    /// Its address and port.
    pub endpoint: baton_api::Endpoint,
    /// What it is for the policy.
    pub state: BackendState,
    /// Its share of new flows.
    pub weight: u16,
    /// Flows that it owns.
    pub flows: u64,
    /// Those that can never move.
    pub pinned: u64,
    /// Those with a request outstanding.
    pub outstanding: u64,
    /// Totals, as those of the policy.
    pub totals: BackendTotals,
    /// Why flows cannot move to it, if so.
    pub unadoptable: Option<Text>,
    /// Why dataplanes open no connection to it for a flow that moves, if so.
    pub untranslatable: Option<Text>,
    /// Why dataplanes give it no flows, if so.
    pub unusable: Option<Text>,
}

/// What a backend is for its policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BackendState {
    /// Takes new flows.
    Ready,
    /// Takes no new flows, keeps those it has.
    NotReady,
    /// Its flows leave.
    Draining,
}

impl BackendState {
    /// As in the status.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::NotReady => "NotReady",
            Self::Draining => "Draining",
        }
    }
}

/// What is to be said of one `BatonDataplane`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassVerdict {
    /// Which.
    pub class: Text,
    /// The `metadata.generation` that this is about.
    pub observed_generation: i64,
    /// Its pods that have an address.
    pub dataplanes: usize,
    /// Those of them that are ready.
    pub ready: usize,
    /// Ready ones that acknowledged all of the snapshot.
    pub synchronised: usize,
    /// Snapshot policies that it serves.
    pub policies: usize,
    /// Listeners of policies that it has no room for all of.
    pub over_limit: usize,
    /// What is wrong and what to change, if something is.
    pub problem: Option<String>,
    /// Its pods, by name; at most [`crate::LIMIT_INSTANCES_SHOWN`], those that need attention
    /// first.
    pub instances: Vec<Instance>,
}

/// One dataplane of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Its Pod.
    pub pod: Key,
    /// Its node.
    pub node: Option<Text>,
    /// It acknowledged all of the snapshot.
    pub synchronised: bool,
    /// Why not, and what to do.
    pub problem: Option<String>,
}

/// Something worth an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The policy that it is about.
    pub policy: Key,
    /// Its `metadata.uid`.
    pub uid: Text,
    /// When, in seconds since 1970.
    pub at: i64,
    /// Whether somebody has to act (`type: Warning`).
    pub warning: bool,
    /// As `reason` of the condition that changed.
    pub reason: Reason,
    /// What a person should know or change.
    pub message: String,
}
