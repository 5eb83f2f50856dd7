//! What the cluster says, folded into what dataplanes shall do and what is to be said about it.
//!
//! Pure: no I/O, no clock, no randomness, no Kubernetes client. Plain values come in as
//! [`Change`]s; [`Index::fold`] gives back snapshot policies, conditions, figures, deletion costs
//! and Events, only for what changed. The snapshot policies are a function of the objects that
//! exist now, never of the order in which they came, so an operator that starts anew arrives at the
//! same bytes. Only in a class that is full who was in force before keeps its place (`room`).
//!
//! ```text
//! let mut index = Index::new();
//! index.apply(Change::Service(key, Some(service)));   // marks what it touches
//! let update = index.fold(now);                       // computes only that
//! for (class, change) in &update.classes { /* push index.snapshot(class) to change.dataplanes */ }
//! ```
//!
//! # What becomes of an endpoint
//!
//! | in the slices | in the snapshot |
//! |---|---|
//! | ready | its weight |
//! | not ready | weight 0: no new flow, its flows stay, and it is asked whether it can adopt |
//! | terminating, serving | its weight, `draining`: new flows only where nothing is left |
//! | terminating, not serving | weight 0, `draining` |
//! | on a cordoned node, while enough others are ready elsewhere | as if it were terminating |
//!
//! An endpoint that was never ready is treated as one that is not ready any more: whether it ever
//! was is history, and the snapshot must not depend on history.
//!
//! Whoever may write EndpointSlices of a namespace may write any address into them, so an endpoint
//! counts only if it is a Pod of that namespace which has this address, or if each class of the
//! policy allows it ([`Allowance::endpoints`]).
//!
//! # What becomes of a policy that cannot be used as it is written
//!
//! What it said when it was good the last time stays in force, with its endpoints as they are now,
//! until it is good again or deleted. An index that begins with such a policy asks what dataplanes
//! have of it ([`Index::wants`], [`Change::Held`]). A policy that gives way to another one, selects
//! no class or is for a Service that does not exist is not in force.
#![forbid(unsafe_code)]

mod accepted;
mod adoptable;
mod allowance;
mod apply;
mod backends;
mod claims;
mod class;
mod clients;
mod cost;
mod coverage;
mod drains;
mod fold;
#[cfg(test)]
mod fold_tests;
mod frontend;
mod frontend_ports;
mod index;
mod input;
mod intern;
mod judge;
mod kept;
mod messages;
mod movable;
mod output;
mod progress;
mod reach;
mod reports;
mod room;
mod standing;
mod state;
mod sums;
mod translate;
mod world;

pub use allowance::{
    Allowance, NAMESPACE_NAME_LABEL, Namespace, NamespaceSelector, Network, NoRange, PortRange,
};
pub use clients::{Expression, Peer, Selector};
pub use coverage::Coverage;
pub use index::Index;
pub use input::*;
pub use intern::Interner;
pub use kept::Wants;
pub use output::*;

/// Events of one fold: a person reads a few, and an API server takes a few dozen a second from one
/// client.
pub const LIMIT_EVENTS: usize = 100;
/// Backends in one verdict: with about 200 bytes each a status stays below 20 KiB.
pub const LIMIT_BACKENDS_SHOWN: usize = 64;
/// Dataplanes in one verdict of a class.
pub const LIMIT_INSTANCES_SHOWN: usize = 64;
/// Names in one message: enough to begin with, and short enough to be read.
pub const LIMIT_NAMES_SHOWN: usize = 3;
/// Characters of one message: what fits on a screen.
pub const LIMIT_MESSAGE_CHARS: usize = 1_000;
/// Listener names of one policy whose totals are remembered: several times what a policy can have
/// at one time.
pub const LIMIT_LISTENERS_REMEMBERED: usize = 64;
/// Of a class's places for backends, one in so many is given to no policy: a backend that has left
/// the snapshot keeps its place in a dataplane as long as it has connections, and a snapshot that
/// finds no place there is refused. An eighth lets a rolling update with the default surge (a
/// quarter) replace half of all Pods at one time.
pub const LINGERING_SHARE: usize = 8;
/// Endpoints of one slice of ours, as the cluster's own have at most unless told otherwise.
pub const LIMIT_SLICE_ENDPOINTS: usize = 100;
/// What ReplicaSets look at when they scale in (Kubernetes 1.22): Pods with a lower number go
/// first.
pub const DELETION_COST_ANNOTATION: &str = "controller.kubernetes.io/pod-deletion-cost";
