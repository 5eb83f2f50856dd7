//! What happened to flows, and what is asked for one of them: the types of `/v1/events` and
//! `/v1/migrate`.

use crate::Endpoint;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{fmt, net::SocketAddr, num::ParseIntError, str::FromStr};

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
    pub next: EventCursor,
    /// Events behind the asked `since` that were overwritten before this answer.
    pub missed: u64,
    /// There are more already.
    #[serde(default)]
    pub more: bool,
    /// The events, the oldest first.
    pub events: Vec<FlowEvent>,
}

/// Behind which event one goes on: the number of the last one of each worker. Text form: these
/// with dots between, as `40` or `12.40`. One of another number of workers stands for the first
/// event that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventCursor(pub Vec<u64>);

impl Default for EventCursor {
    /// From the first event that is there on.
    fn default() -> Self {
        Self(vec![0])
    }
}

impl EventCursor {
    /// From which on so many more events of each worker are told.
    #[must_use]
    pub fn back(&self, events: u64) -> Self {
        Self(self.0.iter().map(|at| at.saturating_sub(events)).collect())
    }
}

impl fmt::Display for EventCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, number) in self.0.iter().enumerate() {
            let dot = if at == 0 { "" } else { "." };
            write!(f, "{dot}{number}")?;
        }
        Ok(())
    }
}

impl FromStr for EventCursor {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.split('.').map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl Serialize for EventCursor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for EventCursor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Something that happened to a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowEvent {
    /// 1 for the worker's first one since the dataplane's start, then one more each.
    pub seq: u64,
    /// The worker that has the flow, from 0.
    #[serde(default)]
    pub worker: u16,
    /// When, by the dataplane's monotonic clock, in microseconds.
    pub at_micros: u64,
    /// What: `move_asked`, `move_dropped`, `adopting`, `adopting_again`, `refused`, `moved`,
    /// `rolled_back`, `owner_lost`, `replayed`, `pinned` or `lost`.
    pub event: String,
    /// The client's end.
    pub client: SocketAddr,
    /// The address and port that it connected to, if they are still known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frontend: Option<Endpoint>,
    /// Policy name; empty if it is gone.
    pub policy: String,
    /// Why the flow moves: `better`, `distress`, `share`, `uneven`, `every_request`, `drain`,
    /// `ejected`, `down`, `rescue`, `overdue`, `stall`, `manual` or `legless`.
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
    /// The address and port that it connected to; needed only where the client has several flows
    /// from one port.
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
    /// How the other backend got it; none if the move was taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<MoveBy>,
}

/// How another backend gets a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MoveBy {
    /// Its kernel made a socket with the flow's numbers.
    Adoption,
    /// The dataplane opened a connection to it, and translates its numbers.
    Translation,
    /// A connection to it was there already, which another flow had before.
    SharedLeg,
    /// The application that had the flow handed it on, in the middle of what it did.
    Transfer,
}

impl FlowEvents {
    /// When an event was, as microseconds since 1970, UTC; 0 if not known.
    #[must_use]
    pub fn unix_micros_of(&self, event: &FlowEvent) -> u64 {
        let ago = self.now_micros.saturating_sub(event.at_micros);
        self.unix_micros.saturating_sub(ago)
    }
}

impl FlowEvent {
    /// What happened, for people: `moved pod-a -> pod-b (drain)`.
    #[must_use]
    pub fn words(&self) -> String {
        let (from, to) = (self.from.as_deref().unwrap_or("?"), self.to.as_deref().unwrap_or("?"));
        let why = self
            .cause
            .as_deref()
            .map_or_else(String::new, |cause| format!(" ({})", cause.replace('_', " ")));
        let reason =
            self.reason.as_deref().map_or_else(String::new, |reason| reason.replace('_', " "));
        match self.event.as_str() {
            "move_asked" if self.to.is_none() => format!("asked to leave {from}"),
            "move_asked" => format!("asked to move {from} -> {to}"),
            "move_dropped" => format!("will not move as asked, is on {from}"),
            "adopting" => format!("moving {from} -> {to}{why}"),
            "adopting_again" => format!("moving {from} -> {to}{why}, asked again"),
            "refused" => format!("refused by {to}: {reason}{why}"),
            "moved" => format!("moved {from} -> {to}{why}"),
            "rolled_back" => format!("stays on {from}, not {to}{why}"),
            "transfer_asked" => format!("{from} is asked to hand it on"),
            "transfer_failed" => format!("stays on {from}, which did not hand it on"),
            "owner_lost" if reason == "released" => format!("let go of unread by {from}"),
            "owner_lost" => format!("lost its owner {from}: {reason}"),
            "replayed" => format!("its request is sent again, {from} may have executed it"),
            "pinned" => format!("pinned to {from}: {reason}"),
            "lost" => format!("lost on {from}: {reason}"),
            other => format!("{} {from} -> {to} {reason}{why}", other.replace('_', " "))
                .trim_end()
                .to_owned(),
        }
    }
}

/// The time of day of microseconds since 1970, UTC: `17:03:59.123`.
#[must_use]
pub fn time_of_day(unix_micros: u64) -> String {
    let ms = unix_micros / 1_000 % 86_400_000;
    let (s, ms) = (ms / 1_000, ms % 1_000);
    let (m, s) = (s / 60, s % 60);
    format!("{:02}:{:02}:{s:02}.{ms:03}", m / 60, m % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(what: &str) -> FlowEvent {
        FlowEvent {
            seq: 1,
            worker: 0,
            at_micros: 40,
            event: what.to_owned(),
            client: "10.0.0.7:4711".parse().expect("an address"),
            frontend: None,
            policy: "web".to_owned(),
            cause: Some("every_request".to_owned()),
            reason: Some("accept_queue_full".to_owned()),
            from: Some("a".to_owned()),
            to: Some("b".to_owned()),
        }
    }

    #[test]
    fn events_have_words() {
        for (what, words) in [
            ("move_asked", "asked to move a -> b"),
            ("adopting", "moving a -> b (every request)"),
            ("refused", "refused by b: accept queue full (every request)"),
            ("moved", "moved a -> b (every request)"),
            ("rolled_back", "stays on a, not b (every request)"),
            ("owner_lost", "lost its owner a: accept queue full"),
            ("pinned", "pinned to a: accept queue full"),
            ("transfer_asked", "a is asked to hand it on"),
            ("transfer_failed", "stays on a, which did not hand it on"),
            ("new_kind", "new kind a -> b accept queue full (every request)"),
        ] {
            assert_eq!(event(what).words(), words);
        }
        let mut bare = event("lost");
        (bare.from, bare.cause) = (None, None);
        assert_eq!(bare.words(), "lost on ?: accept queue full");
    }

    #[test]
    fn a_cursor_has_a_number_for_each_worker() {
        for text in ["0", "12", "12.40.7"] {
            let cursor: EventCursor = text.parse().expect("a cursor");
            assert_eq!(cursor.to_string(), text);
        }
        for text in ["", ".", "1.", "-1", "x"] {
            assert!(text.parse::<EventCursor>().is_err(), "{text}");
        }
        assert_eq!(EventCursor(vec![5, 50]).back(10), EventCursor(vec![0, 40]));
    }

    #[test]
    fn times_follow_the_answers_clocks() {
        let told = FlowEvents {
            now_micros: 1_040,
            unix_micros: 86_400_000_000 + 3_723_456_789,
            events: vec![event("moved")],
            ..FlowEvents::default()
        };
        let at = told.unix_micros_of(&told.events[0]);
        assert_eq!(at, told.unix_micros - 1_000);
        assert_eq!(time_of_day(at), "01:02:03.455");
    }
}
