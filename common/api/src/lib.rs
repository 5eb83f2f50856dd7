//! Snapshot and state types exchanged between operator, dataplane and tools.
//!
//! A [`Snapshot`] says what the dataplane shall do; [`State`] says what it does. Both are plain
//! data: this crate does no I/O and knows no clock. Durations on the wire are strings with a unit
//! (`250us`, `20ms`, `5s`, `2m`, `1h`); unknown fields are refused so that a typo cannot pass as a
//! default, but for what programs of two versions write to each other ([`Pushed`]).

mod app_protocol;
mod clients;
mod condition;
mod control;
mod duration;
mod events;
mod failure;
mod local;
mod marks;
mod network;
mod node_keys;
mod replies;
mod skew;
mod snapshot;
mod state;
mod status;
mod text;
mod validate;

pub use app_protocol::AppProtocol;
pub use clients::{Clients, ClientsError};
pub use condition::{Adoptability, BackendHealth, DrainWait};
pub use control::{ControlAddress, ControlAddressError, SocketPath};
pub use duration::{DurationError, Micros};
pub use events::{
    EventCursor, FlowEvent, FlowEvents, LastMove, MigrateReply, MigrateRequest, MoveBy, time_of_day,
};
pub use failure::{ActiveCheck, BackendFailure, Drain, Health, OnDeadline, OnStall};
pub use local::{Asked, Foreign};
pub use marks::{MANAGER, POLICY_LABEL, SELECTOR_ANNOTATION};
pub use network::Network;
pub use node_keys::{
    EpochKeys, LIMIT_NODE_BYTES, LIMIT_NODE_KEYS, NodeKey, NodeKeys, NodeKeysError, is_node_name,
    node_key, transfer_key,
};
pub use replies::{
    CAPTURE, DrainReply, DrainRequest, ErrorReply, FlowsReply, SnapshotReply, StateReply,
};
pub use skew::{Ignored, Pushed, policy as read_policy};
pub use snapshot::{
    Affinity, Algorithm, Backend, ClientAddress, ClientIp, Endpoint, LIMIT_ALLOW_FROM,
    LIMIT_BACKENDS_PER_POLICY, LIMIT_FRONTENDS, LIMIT_NAME_BYTES, LIMIT_POLICIES,
    LIMIT_SNAPSHOT_BYTES, Legs, Limits, LoadSignal, Migration, MigrationMode, MoveMethod, Policy,
    Protocol, Snapshot, SnapshotError, Timeouts, is_name,
};
pub use state::{
    BackendLoad, BackendPlacement, BackendState, DrainState, FlowView, PolicyPlacement,
    PolicyState, RefusedPolicy, State, WorkerState, is_backend,
};
pub use status::{StatusRange, StatusRangeError};
pub use text::printable;
