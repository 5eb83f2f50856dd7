//! What a world can be: sizes, links, faults and what happens when.
//!
//! Owns the description alone. Seeds draw it (`swarm`, `steady`), `world` runs it.

use crate::{
    address::{self, endpoint, pod_name},
    client::ClientSpec,
    clock::{SECOND, Time},
    fault::{Fault, Happening},
    link::LinkSpec,
    pod::process::ProcessSpec,
    smol::SmolSpec,
    tcp::Config,
};
use baton_api::{Backend, Limits, Policy};
use std::net::SocketAddr;

/// When a world begins. Not 0: an engine never starts at the beginning of its machine's clock.
pub const START: Time = 50 * SECOND;
/// Pods of a world.
pub const PODS_MAX: usize = 4;

/// A world to be.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// IPv6.
    pub v6: bool,
    /// IPv6 between the dataplane and the pods.
    pub pods_v6: bool,
    /// Which faults are wild.
    pub wild: [bool; Fault::ALL.len()],
    /// Where clients connect to.
    pub frontend: SocketAddr,
    /// The policy at first.
    pub policy: Policy,
    /// Table sizes.
    pub limits: Limits,
    /// How many ports legs have.
    pub ports: u16,
    /// Servers.
    pub pods: Vec<ProcessSpec>,
    /// Clients and their stacks.
    pub clients: Vec<(ClientSpec, Config)>,
    /// To and from each client.
    pub client_links: Vec<[LinkSpec; 2]>,
    /// To and from each pod.
    pub pod_links: Vec<[LinkSpec; 2]>,
    /// What happens.
    pub plan: Vec<(Time, Happening)>,
    /// When all faults end.
    pub calm_at: Time,
    /// How late the worker may come to its timers.
    pub poll_lag: Time,
    /// Clients whose stack is smoltcp.
    pub smol: Vec<Option<SmolSpec>>,
    /// Sockets of a dataplane that was here before: in which pod, towards which port of ours, at
    /// which number.
    pub stale: Vec<(usize, u16, u32)>,
    /// Pods whose adopters mark the last segments of a process that exits.
    pub exit_marks: Vec<bool>,
    /// Pods that have an adopter.
    pub adopts: Vec<bool>,
    /// Pods whose applications hand connections on and take them.
    pub cooperates: Vec<bool>,
    /// On which node each pod is.
    pub nodes: Vec<usize>,
    /// Whether these pods' host-shims reach each other.
    pub between_nodes: Vec<bool>,
    /// No faults at all: what moves is placement's.
    pub steady: Option<Steady>,
}

/// What a steady world is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steady {
    /// All pods are alike, and answers take what chance says.
    Noise,
    /// This pod takes so much longer from this time on.
    Slow {
        /// Which.
        pod: usize,
        /// From when on.
        at: Time,
        /// How much longer.
        more: Time,
    },
    /// This pod is slow from the start, which its kernel says and no answer yet when the first
    /// clients come; the policy goes by that.
    Pressed {
        /// Which.
        pod: usize,
    },
}

/// The backend of a pod, as a snapshot has it.
#[must_use]
pub fn backend(v6: bool, index: usize) -> Option<Backend> {
    Some(Backend::new(pod_name(index), endpoint(address::pod(v6, index))?))
}

/// Those of worlds that are not about limits.
pub(crate) fn usual_limits() -> Limits {
    Limits {
        flows: 32,
        backends: 8,
        closing_legs: 48,
        kept_segments: 64,
        guarded_flows: 32,
        resp_sessions: 32,
        affinities: 32,
        tracked_pairs: 65_536,
    }
}
