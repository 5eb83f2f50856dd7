//! What happened to flows, and what is asked for one of them: the types of `/v1/events` and `/v1/migrate`.

use crate::Endpoint;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// What `/v1/events` says: some events in order, and where to go on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowEvents {
    /// The present time of the clock that events have, in microseconds.
    pub now_micros: u64,
    /// The same moment as microseconds since 1970, UTC; 0 if not known.
    #[serde(default)]
    pub unix_micros: u64,
    /// `since` of the next question.
    pub next: u64,
    /// Events behind the asked `since` that were overwritten before this answer.
    pub missed: u64,
    /// There are more already.
    #[serde(default)]
    pub more: bool,
    /// The events, the oldest first.
    pub events: Vec<FlowEvent>,
}

/// Something that happened to a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowEvent {
    /// 1 for the first one since the dataplane's start, then one more each.
    pub seq: u64,
    /// When, by the dataplane's monotonic clock, in microseconds.
    pub at_micros: u64,
    /// What: `move_asked`, `move_dropped`, `adopting`, `adopting_again`, `refused`, `moved`, `rolled_back`, `owner_lost`,
    /// `replayed`, `pinned` or `lost`.
    pub event: String,
    /// The client's end.
    pub client: SocketAddr,
    /// The address and port that it connected to, if they are still known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frontend: Option<Endpoint>,
    /// Policy name; empty if it is gone.
    pub policy: String,
    /// Why the flow moves: `better`, `every_request`, `drain`, `ejected`, `down`, `rescue`, `overdue` or `manual`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The fixed word behind `refused`, `owner_lost`, `pinned` and `lost`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The backend that has, or had, the flow. None if its name is not known any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The backend that it is given to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// What `POST /v1/migrate` is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MigrateRequest {
    /// The client's end.
    pub client: SocketAddr,
    /// The address and port that it connected to; needed only where the client has several flows from one port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frontend: Option<Endpoint>,
    /// Name of the backend; without it, the best other one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// What it says where the move was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrateReply {
    /// The policy of the flow.
    pub policy: String,
    /// The backend that has it.
    pub from: String,
    /// The backend that it goes to; none if that is chosen with its next request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// It was given to the other backend at once; otherwise it goes with its next request.
    pub begun: bool,
}

/// A flow's last move, as `/v1/flows` tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastMove {
    /// Why it moved; none if the move was taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// How long ago.
    pub ago: crate::Micros,
}
