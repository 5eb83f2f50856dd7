//! What a dataplane does: figures for people, the operator and tests.

use crate::{Adoptability, Algorithm, BackendHealth, Endpoint, LastMove, Micros, Protocol};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, net::SocketAddr};

/// The state of one dataplane, as `/v1/state` gives it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// Version of the binary.
    pub version: String,
    /// Generation of the snapshot in use.
    pub generation: u64,
    /// Seconds since start.
    pub uptime_seconds: u64,
    /// Packet I/O.
    pub worker: WorkerState,
    /// Per policy.
    pub policies: Vec<PolicyState>,
    /// Policies of the snapshot in use that are not served as it has them. All others are.
    #[serde(default)]
    pub refused: Vec<RefusedPolicy>,
    /// Every counter of the engine, by its metric name without prefix and labels as
    /// `name{label="x"}`.
    pub counters: BTreeMap<String, u64>,
    /// Tables: name to (used, limit).
    pub tables: BTreeMap<String, (u64, u64)>,
}

/// A policy of the snapshot in use that the dataplane cannot take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedPolicy {
    /// Its name.
    pub policy: String,
    /// The field that is wrong, and what is wrong with it.
    pub message: String,
    /// What it had before stays in force. Otherwise it is not served.
    #[serde(default)]
    pub kept: bool,
}

/// Packet I/O of one dataplane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerState {
    /// The interface's name.
    pub interface: String,
    /// `native`, `generic` or `packet`.
    pub mode: String,
    /// Threads that forward packets.
    #[serde(default)]
    pub workers: u32,
    /// The dataplane's own addresses.
    pub addresses: Vec<std::net::IpAddr>,
    /// Port range of the legs, both ends included.
    pub ports: (u16, u16),
    /// Key epochs in use.
    pub key_epochs: Vec<u8>,
}

/// One policy's figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyState {
    /// Its name.
    pub name: String,
    /// Its frontends, with the dataplane's own address filled in.
    pub frontends: Vec<Endpoint>,
    /// Its algorithm.
    pub algorithm: Algorithm,
    /// Its guard.
    pub protocol: Protocol,
    /// Flows at this moment.
    pub flows: u64,
    /// Flows since start.
    pub flows_total: u64,
    /// Adoptions that were confirmed.
    pub migrations_total: u64,
    /// Adoptions that were taken back.
    pub rollbacks_total: u64,
    /// Flows that died backends left and other ones went on with.
    #[serde(default)]
    pub rescues_total: u64,
    /// Requests that were executed, or may have been, and were sent again.
    #[serde(default)]
    pub replays_total: u64,
    /// Flows that ended because of a backend's death, by reason.
    #[serde(default)]
    pub lost_total: BTreeMap<String, u64>,
    /// Flows at this moment that can never move, by reason.
    #[serde(default)]
    pub pinned: BTreeMap<String, u64>,
    /// Flows pinned since start, by reason.
    #[serde(default)]
    pub pins_total: BTreeMap<String, u64>,
    /// Moves that ended, by why they began and then by how they ended.
    #[serde(default)]
    pub moves_total: BTreeMap<String, BTreeMap<String, u64>>,
    /// Too few backends are usable, so all are used.
    #[serde(default)]
    pub panic: bool,
    /// What its pools are measured by, and what moves brought. None from a dataplane that does not
    /// tell it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PolicyPlacement>,
    /// Its backends.
    pub backends: Vec<BackendState>,
}

/// How a policy's backends are compared, and what came of its moves for a lower wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyPlacement {
    /// The usual mean wait of its backends over half a second: their lower median.
    pub usual_wait: Micros,
    /// Its backends are unevenly busy, so each request may go to a shorter queue.
    pub uneven: bool,
    /// Times that a backend became distressed.
    pub distressed_total: u64,
    /// What moved requests were expected to wait less, in all.
    pub expected: Micros,
    /// What they did wait less than was expected where they were, and what they waited more.
    pub won: Micros,
    /// What those waited more that came off worse.
    pub lost: Micros,
}

/// How a backend stands among its policy's others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendPlacement {
    /// `fit`, `joining`, `distressed` or `trial`.
    pub standing: String,
    /// Mean wait of its requests over half a second, and its standard error.
    pub mean_wait: Micros,
    /// The standard error of that.
    pub error: Micros,
    /// The same mean over 20 ms.
    pub recent_wait: Micros,
    /// For how long it has answered nothing although it should.
    pub stalled: Micros,
    /// What requests that come with a move wait longer here than those that stay.
    pub move_cost: Micros,
}

/// What a pod's kernel says of its load. Shares of time are of the last seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendLoad {
    /// Connections that wait to be accepted; 2,047 for that many or more.
    pub accept_queue: u32,
    /// How many there can be; 2,047 for that many or more.
    pub accept_queue_room: u32,
    /// What its listeners dropped since this dataplane knows it, mostly for want of room.
    pub drops_total: u64,
    /// Periods of its CPU quota in which it was throttled. None where its kernel does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled_percent: Option<u8>,
    /// Something in it wanted a CPU and nothing had one (PSI). None where its kernel does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<u8>,
    /// Something in it waited for memory (PSI). None where its kernel does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_percent: Option<u8>,
}

/// One backend's figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendState {
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub endpoint: Endpoint,
    /// Share of new flows.
    pub weight: u16,
    /// Takes no new flow.
    pub draining: bool,
    /// Whether it can take connections over.
    pub adoptability: Adoptability,
    /// Flows that it owns.
    pub flows: u64,
    /// Of these, the ones that can never move.
    #[serde(default)]
    pub pinned: u64,
    /// Requests sent without a response byte yet.
    pub outstanding: u64,
    /// Moving peak average of the time to the first response byte.
    pub first_byte: Micros,
    /// How long one more request would wait here, as the choice of backends expects it. None from a
    /// dataplane that does not tell it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<Micros>,
    /// What its kernel says of its load. None where no adopter tells it, or of late none answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<BackendLoad>,
    /// Its application hands connections on in the middle of what they do, and takes them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub transfers: bool,
    /// It agreed to a connection without the timestamps that a client had been promised by another
    /// backend: none moves to it by translation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unlike: bool,
    /// How it stands among the others. None from a dataplane that does not tell it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<BackendPlacement>,
    /// Requests since start.
    pub requests_total: u64,
    /// Flows that came by migration.
    pub migrations_in_total: u64,
    /// Flows that left by migration.
    pub migrations_out_total: u64,
    /// Whether it works.
    pub health: BackendHealth,
    /// Flows whose request or rest waits for another owner because this one is gone.
    #[serde(default)]
    pub stranded: u64,
    /// Flows that died here and went on elsewhere.
    #[serde(default)]
    pub rescued_total: u64,
    /// How far its drain is, while it drains.
    #[serde(default)]
    pub drain: Option<DrainState>,
}

impl BackendState {
    /// Why no connection moves to it by translation, if so.
    #[must_use]
    pub const fn untranslatable(&self) -> Option<&'static str> {
        match (self.adoptability.may_connect(), self.unlike) {
            (false, _) => Some(self.adoptability.words()),
            (true, true) => Some(
                "it has no TCP timestamps, unlike other pods (net.ipv4.tcp_timestamps is 0 in the pod?)",
            ),
            (true, false) => None,
        }
    }

    /// One word for it, the reason that weighs most.
    #[must_use]
    pub fn word(&self) -> &'static str {
        if !self.health.is_up() {
            self.health.word()
        } else if self.draining || self.drain.is_some() {
            "drains"
        } else if self.weight == 0 {
            "weight 0"
        } else if !self.adoptability.is_ready() {
            "no adopt"
        } else {
            self.health.word()
        }
    }
}

/// How far a drain is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainState {
    /// An admin asked for it by command; otherwise the snapshot says so.
    pub by_command: bool,
    /// Since when.
    pub since: Micros,
    /// Until the deadline; 0 when it has passed.
    pub left: Micros,
    /// Flows that moved since the drain began.
    pub moved: u64,
    /// Flows that ended by themselves.
    pub ended: u64,
    /// Flows that the deadline closed in order.
    pub closed: u64,
    /// Flows that are still there or may come back, by what they wait for: the words of
    /// [`crate::DrainWait`], or `pinned: ` and why.
    pub waiting: BTreeMap<String, u64>,
}

/// Whether `wanted` is this backend: a Pod with several addresses is `POD` and `POD/ADDRESS`.
#[must_use]
pub fn is_backend(name: &str, wanted: &str) -> bool {
    let rest = name.strip_prefix(wanted);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// One flow, as `/v1/flows` gives it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowView {
    /// The client's end.
    pub client: SocketAddr,
    /// The address and port that it connected to.
    pub frontend: Endpoint,
    /// Policy name.
    pub policy: String,
    /// Name of the owning backend.
    pub backend: String,
    /// The dataplane's port on the owner leg.
    pub port: u16,
    /// State of the declared table.
    pub state: String,
    /// Moves so far.
    pub migrations: u32,
    /// Time since the last segment.
    pub quiet: Micros,
    /// Why it can never move, if so.
    #[serde(default)]
    pub pinned: Option<String>,
    /// Its last move, or the one that was taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_move: Option<LastMove>,
    /// Somebody asked to have it moved with its next request: to this backend, or to any if it is
    /// empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_to: Option<String>,
}
