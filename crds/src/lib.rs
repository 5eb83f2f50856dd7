//! The custom resource types of Baton: what an admin writes, what the operator answers, what is
//! refused and why.
//!
//! Owns the fields, their bounds and rules, the generated YAML and the check of a manifest without
//! a server. Knows nothing of watching, of the cluster's other objects and of dataplanes.
#![forbid(unsafe_code)]

mod allowance;
mod behaviour;
mod check;
mod clients;
mod condition;
mod dataplane;
mod frontend;
mod generate;
mod policy;
mod rules;
mod status;
mod text;

pub use allowance::{Allowance, NamespaceSelector};
pub use behaviour::{
    ActiveCheck, BackendFailure, Drain, Health, Legs, Migration, MigrationMode, MoveMethod,
    OnDeadline, OnStall, Timeouts,
};
pub use check::{Checker, FILE_BYTES_MAX, LIST_DEPTH_MAX, PROBLEMS_MAX, Problem, Report, check};
pub use clients::{AllowedClients, LabelOperator, LabelRequirement, LabelSelector};
pub use condition::{Condition, ConditionStatus, ConditionType};
pub use dataplane::{
    BatonDataplane, BatonDataplaneSpec, BatonDataplaneStatus, DataplaneInstance, DataplaneLimits,
    FrontendPorts, LegPorts, PodSelector,
};
pub use frontend::{Frontend, FrontendService, ServiceType, TrafficPolicy};
pub use generate::{DefinitionFile, GenerateError, definitions, files};
pub use policy::{
    Affinity, Algorithm, ClientAddress, ClientIp, DataplaneSelector, Listener, LoadBalancerPolicy,
    LoadBalancerPolicySpec, LoadSignal, PodDeletionCost, PodMultipathTcp, Protocol, TargetGroup,
    TargetKind, TargetRef, Weights,
};
pub use status::{
    BackendFigures, Count, DrainFigures, Drained, Draining, FrontendPort, FrontendStatus, LeadsTo,
    LoadBalancerPolicyStatus, Movable, PinnedFlows, STATUS_ADDRESSES_MAX, STATUS_BACKENDS_MAX,
    STATUS_CLASSES_MAX, STATUS_DRAINS_MAX, STATUS_PINNED_MAX,
};
pub use text::{Duration, ServicePort, StatusCodes};

/// The API group of the kinds.
pub const GROUP: &str = "baton.dev";
/// Their only version.
pub const VERSION: &str = "v1alpha1";
