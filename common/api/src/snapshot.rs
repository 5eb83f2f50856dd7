//! What a dataplane shall do: policies, their frontends and backends.

use crate::{BackendFailure, Drain, Health, Micros, Network, OnStall, text::shortened};
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

/// Policies in one snapshot. Fixed tables in the engine are sized by it.
pub const LIMIT_POLICIES: usize = 1024;
/// Bytes of a snapshot as JSON: 1,024 policies with 100 backends of about 160 bytes. A dataplane
/// refuses a larger one as a whole.
pub const LIMIT_SNAPSHOT_BYTES: usize = 16 << 20;
/// Backends in one policy: a Maglev table of 65,537 slots keeps shares even (within 1 %) up to
/// here.
pub const LIMIT_BACKENDS_PER_POLICY: usize = 256;
/// Networks of one policy's `allowFrom`. With 1,024 policies a snapshot's lists take about 23 MB as
/// JSON and 34 MB in the engine, and a new connection is looked up in at most 10 steps.
pub const LIMIT_ALLOW_FROM: usize = 1024;
/// Frontends of all policies in one snapshot, addresses of its own counted one by one: packet
/// steering has a table of fixed size.
pub const LIMIT_FRONTENDS: usize = 16_384;
/// Bytes of a policy's or backend's name (Kubernetes `namespace/policy/listener` fits: 63 + 1 +
/// 63 + 1 + 15).
pub const LIMIT_NAME_BYTES: usize = 143;

/// One immutable description of everything a dataplane serves. A larger generation replaces a
/// smaller one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Snapshot {
    /// Grows with each change; a dataplane refuses a smaller one than it has.
    pub generation: u64,
    /// The policies, by name.
    pub policies: Vec<Policy>,
}

/// One load-balanced service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Policy {
    /// Unique in the snapshot.
    pub name: String,
    /// Addresses and ports that clients connect to. An unspecified address (`0.0.0.0`, `::`) means
    /// the dataplane's own.
    pub frontends: Vec<Endpoint>,
    /// The pods.
    pub backends: Vec<Backend>,
    /// Whose connections are opened: the addresses that clients have when their segments come to
    /// the dataplane, as `10.0.0.0/8` or `fd00::7`, at most [`LIMIT_ALLOW_FROM`]. The SYNs of
    /// others are dropped without an answer; flows that there are stay. Without the field,
    /// everybody's; with an empty list nobody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_from: Option<Vec<Network>>,
    /// How new flows are spread, and how the better backend is found at a boundary.
    #[serde(default, skip_serializing_if = "is_default")]
    pub algorithm: Algorithm,
    /// What a backend's load is judged by.
    #[serde(default, skip_serializing_if = "is_default")]
    pub load: LoadSignal,
    /// What keeps flows together at one backend, before the algorithm is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Whose address pods see on their connections.
    #[serde(default, skip_serializing_if = "is_default")]
    pub client_address: ClientAddress,
    /// How request boundaries are recognised.
    #[serde(default, skip_serializing_if = "is_default")]
    pub protocol: Protocol,
    /// When flows move.
    #[serde(default, skip_serializing_if = "is_default")]
    pub migration: Migration,
    /// What happens to the flows of a backend that died, and to a request whose fate is unknown.
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_backend_failure: BackendFailure,
    /// What happens to a request that lies unread in the kernel of a pod whose application answers
    /// nothing.
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_stall: OnStall,
    /// A backend that has not begun to answer a request after this long is given up on: the request
    /// goes to another one if `onBackendFailure` allows to execute it once more. Without it, only
    /// closed, reset and silent backends are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_timeout: Option<Micros>,
    /// How flows leave a draining backend.
    #[serde(default, skip_serializing_if = "is_default")]
    pub drain: Drain,
    /// How backends that do not work are found and avoided.
    #[serde(default, skip_serializing_if = "is_default")]
    pub health: Health,
    /// A backend that came up takes a share of new flows that grows to the whole within this time;
    /// 0 is at once. Not with `Maglev`, whose table does not change for it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub slow_start: Micros,
    /// Silence after which flows are forgotten.
    #[serde(default, skip_serializing_if = "is_default")]
    pub timeouts: Timeouts,
}

impl Policy {
    /// With the defaults for all that is not given here.
    #[must_use]
    pub fn new(name: impl Into<String>, frontends: Vec<Endpoint>, backends: Vec<Backend>) -> Self {
        Self {
            name: name.into(),
            frontends,
            backends,
            allow_from: None,
            algorithm: Default::default(),
            load: Default::default(),
            affinity: None,
            client_address: Default::default(),
            protocol: Default::default(),
            migration: Default::default(),
            on_backend_failure: Default::default(),
            on_stall: Default::default(),
            response_timeout: None,
            drain: Default::default(),
            health: Default::default(),
            slow_start: Default::default(),
            timeouts: Default::default(),
        }
    }
}

/// An address and a TCP port, written `10.0.0.1:80` or `[fd00::1]:80`. Port 0 cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint(SocketAddr);

/// One pod of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Backend {
    /// Shown to people; unique in the policy.
    pub name: String,
    /// Where the pod listens.
    pub endpoint: Endpoint,
    /// Share of new flows relative to the others; 0 takes no new flow.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: u16,
    /// A draining backend takes no new flow.
    #[serde(default, skip_serializing_if = "is_default")]
    pub draining: bool,
    /// The pod's node, whose adoption keys are derived from the dataplane's. Without it they are
    /// the dataplane's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

impl Backend {
    /// As heavy as others, on no known node.
    #[must_use]
    pub fn new(name: impl Into<String>, endpoint: Endpoint) -> Self {
        Self { name: name.into(), endpoint, weight: 1, draining: false, node: None }
    }
}

fn one() -> u16 {
    1
}

/// Whether a field is left out, so that an older version meets only what is used.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_one(weight: &u16) -> bool {
    *weight == one()
}

/// How a backend is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Algorithm {
    /// The lower expected wait of two random candidates (power of two choices).
    #[default]
    LeastOutstanding,
    /// Smooth weighted round robin.
    WeightedRoundRobin,
    /// Consistent hashing of the client's address and port (Maglev, NSDI '16).
    Maglev,
    /// By chance, in proportion to the weights, whatever the backends have to do.
    Random,
}

/// What a backend's load is judged by, where the algorithm asks for it (`LeastOutstanding`), and
/// where flows move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LoadSignal {
    /// Its answers.
    #[default]
    Latency,
    /// Its answers or what its kernel says, whichever makes expect the longer wait: accept queue,
    /// throttling, pressure. The pods are asked up to 100 times a second while the policy has
    /// flows. Where they do not tell it is `Latency`.
    LatencyAndPressure,
}

/// Whose address pods see on their connections (`getpeername`, logs, the pod's own packet rules).
/// Outside of the pod it is the dataplane's always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientAddress {
    /// The dataplane's.
    #[default]
    Hidden,
    /// The client's: the adopter in the pod writes it over the dataplane's, told by an
    /// authenticated block in each SYN and adoption. The port is the client's as well, unless the
    /// pod has another connection with it. Connections with pods that have no adopter have the
    /// dataplane's address; so have those to a pod's own address. Legs are never shared.
    Restore,
    /// The dataplane's, but each leg begins with a header of the PROXY protocol, version 2, which
    /// has the client's address and port, those of the frontend, and the listener's name (TLV
    /// 0xEB): again at each hand-over. The servers must expect it. Legs are never shared.
    ProxyV2,
}

/// What keeps flows together, in place of the algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Affinity {
    /// All flows of one client address have the same backend. The field is written `clientIP`, as
    /// in a Service.
    #[serde(rename = "clientIP")]
    pub client_ip: ClientIp,
}

/// Flows of one client address stay together, whatever their ports and frontends are. They do not
/// move because another backend is better, but with their backend's drain, death or ejection, as
/// `migration.mode` allows (`Always` is refused); then they all go to the same other one. Which one
/// that is follows from the address and from the backends that take flows (rendezvous hashing by
/// weight), alike in all dataplanes. Each remembers it for itself, so that a client stays where it
/// is when a backend joins: then dataplanes that know the client and those that do not may differ
/// until `timeout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClientIp {
    /// How long after its last flow ended a client still gets the same backend.
    pub timeout: Micros,
}

impl Default for ClientIp {
    fn default() -> Self {
        Self {
            // As a Service's sessionAffinityConfig.clientIP.timeoutSeconds.
            timeout: Micros::from_secs(3 * 3_600),
        }
    }
}

/// How a request boundary is recognised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// Never a boundary: flows stay where they are.
    None,
    /// Request, then response, then request: the bare rule (redis commands, one at a time).
    RequestResponse,
    /// HTTP/1.0 and HTTP/1.1 (RFC 9112): messages are followed in both directions, also when they
    /// are pipelined.
    #[default]
    #[serde(rename = "HTTP1")]
    Http1,
    /// The Redis protocol: commands and replies are counted; transactions stay; `SELECT` and `AUTH`
    /// go with the flow.
    #[serde(rename = "RESP")]
    Resp,
    /// The text protocol of memcached.
    Memcached,
}

/// When flows move to another backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Migration {
    /// Whether and when.
    pub mode: MigrationMode,
    /// How a flow's new leg comes to be.
    pub method: MoveMethod,
    /// Whether a leg that a flow leaves may be another flow's next.
    pub legs: Legs,
    /// In calm, move only if the mean wait here is at least this many hundredths of that at the
    /// other one. At least 100. A backend that is also the busier one is left at 70 % of what is
    /// above 100.
    pub ratio_percent: u32,
    /// Move to a shorter queue only if the expected wait falls by at least this much.
    pub gain: Micros,
    /// A flow rests this long after a move.
    pub cooldown: Micros,
    /// Moves per second and policy, with requests; 0 is no limit.
    pub per_second: u32,
    /// Moves of one flow in its life; 0 is no limit. A flow that has made them stays also when its
    /// backend drains. Moves because of a backend's death are not limited, but count.
    pub per_flow: u32,
    /// Moves per second onto one backend from this policy, with requests; 0 is no limit. What
    /// leaves a draining backend without a request, or a dead one, has a pace of its own.
    pub per_backend_per_second: u32,
}

/// Whether and when flows move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MigrationMode {
    /// Flows stay. Those of a draining backend too: until they end, or to the drain's deadline.
    /// Those of a dead one go on as `onBackendFailure` says.
    Never,
    /// Flows stay, but for those of a backend that drains or died.
    DrainOnly,
    /// At a boundary, when that gains more than a move costs: away from a distressed backend, to
    /// one that joins, to a shorter queue where load is uneven, and within a small budget where
    /// another one is lastingly faster.
    #[default]
    WhenBetter,
    /// At every boundary, to the next backend. For tests and measurements.
    Always,
    /// Each request to the backend with the fewest in flight by its weight, whatever a move costs.
    /// To compare with.
    LeastRequests,
    /// Each request as Prequal's rule has it (NSDI '24): the lowest latency where few are in
    /// flight. To compare with.
    Prequal,
}

/// How a flow's new leg comes to be: for moves, rescues and drains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MoveMethod {
    /// By adoption at backends whose probe says that they adopt, by translation at all others.
    #[default]
    Auto,
    /// By adoption only: the backend's kernel makes a socket with the numbers that the flow has. A
    /// backend that does not adopt takes no flow that is open already.
    Adoption,
    /// By translation only: the dataplane opens a connection to the backend, one round trip more,
    /// and shifts the numbers of its segments from then on.
    Translation,
}

/// Whose a leg is that its flow leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Legs {
    /// Nobody else's: it is closed.
    #[default]
    Private,
    /// The next flow's of this policy that goes to the backend, where the protocol is followed
    /// exactly: HTTP/1, RESP and memcached.
    Shared,
}

impl Default for Migration {
    fn default() -> Self {
        Self {
            mode: MigrationMode::WhenBetter,
            method: MoveMethod::Auto,
            legs: Legs::Private,
            ratio_percent: 150,
            gain: Micros(300),
            cooldown: Micros::from_millis(5),
            per_second: 0,
            per_flow: 0,
            per_backend_per_second: 0,
        }
    }
}

/// Silence after which a flow is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Timeouts {
    /// No segment in either direction on an open flow.
    pub idle: Micros,
    /// The handshake is not finished.
    pub handshake: Micros,
    /// One side closed, the other does not.
    pub half_closed: Micros,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            // As long as a Linux keepalive interval (tcp_keepalive_time, 7,200 s) plus room for its
            // probes.
            idle: Micros::from_secs(8_000),
            // Six SYN retransmissions, tcp_syn_retries: 1 + 2 + ... + 32 s.
            handshake: Micros::from_secs(63),
            half_closed: Micros::from_secs(300),
        }
    }
}

/// Sizes of the engine's tables, fixed at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Limits {
    /// Client connections at one time.
    pub flows: u32,
    /// Backends at one time, those still closing included.
    pub backends: u16,
    /// Old legs that are closing at one time.
    pub closing_legs: u32,
    /// Kept copies of client segments, for requests that may have to be sent again: one in four has
    /// room for a full frame (1,600 bytes), the others for 576 bytes.
    pub kept_segments: u32,
    /// Conversations that a protocol guard follows at one time, 108 bytes each: flows with a
    /// request outstanding, or with state to remember.
    pub guarded_flows: u32,
    /// RESP conversations at one time of which more has to be remembered, 160 bytes each: `AUTH`,
    /// `SELECT`, a transaction that begins or ends.
    pub resp_sessions: u32,
    /// Client addresses with affinity that are remembered at one time, 68 bytes each: those with
    /// flows and those whose timeout still runs. When all are used, the one that was used the
    /// longest time ago is forgotten.
    pub affinities: u32,
    /// Pairs of ports of ours and of backends that connection trackers on the way may remember
    /// before nothing moves any more but for rescues and drains.
    pub tracked_pairs: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            flows: 65_536,
            backends: 256,
            closing_legs: 65_536,
            kept_segments: 16_384,
            guarded_flows: 65_536,
            // A quarter of the flows: the clients of a few thousand pods, with a pool each.
            resp_sessions: 16_384,
            affinities: 65_536,
            // A quarter of what Linux' tracker holds for all of a node by default
            // (`nf_conntrack_max`, 262,144).
            tracked_pairs: 65_536,
        }
    }
}

/// Why a snapshot cannot be used. Each names the field; nothing is applied.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{path}: {problem}")]
pub struct SnapshotError {
    /// Where, as `policies[1].backends[0].name`.
    pub path: String,
    /// What is wrong and what was expected.
    pub problem: String,
}

/// Whether a policy or a backend can have this name.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || "-._/".contains(c);
    (1..=LIMIT_NAME_BYTES).contains(&name.len()) && name.chars().all(good)
}

impl Endpoint {
    /// The address and port, if the port is not 0. An IPv4 address in IPv6 clothes (RFC 4291
    /// section 2.5.5.2) is that IPv4 address.
    #[must_use]
    pub fn new(address: IpAddr, port: u16) -> Option<Self> {
        (port != 0).then(|| Self(SocketAddr::new(address.to_canonical(), port)))
    }

    /// The address.
    #[must_use]
    pub fn address(self) -> IpAddr {
        self.0.ip()
    }

    /// The port, never 0.
    #[must_use]
    pub fn port(self) -> u16 {
        self.0.port()
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.parse::<SocketAddr>().ok();
        let endpoint = parsed.and_then(|a| Self::new(a.ip(), a.port()));
        match (parsed, endpoint) {
            (Some(written), Some(meant)) if written.ip() != meant.address() => Err(format!(
                "`{}` is an IPv4 address written as IPv6: expected {meant}",
                shortened(text)
            )),
            (_, Some(endpoint)) => Ok(endpoint),
            _ => Err(format!(
                "`{}` is not an address and port: expected as 10.0.0.1:80 or [fd00::1]:80",
                shortened(text)
            )),
        }
    }
}

impl Serialize for Endpoint {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Endpoint {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
