//! What the control API of a dataplane is asked and says beside snapshots, figures and events, and
//! its one form of errors.

use crate::{FlowView, RefusedPolicy, State};
use serde::{Deserialize, Serialize};

/// What `/v1/state` says: the state, and what is wrong in words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateReply {
    /// The figures.
    #[serde(flatten)]
    pub state: State,
    /// Which of the key epochs signs.
    #[serde(default, rename = "signingEpoch", skip_serializing_if = "Option::is_none")]
    pub signing_epoch: Option<u8>,
    /// Why it is not ready or not as it should be; empty if all is well.
    #[serde(default)]
    pub problems: Vec<String>,
}

/// What `/v1/flows` says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowsReply {
    /// The flows.
    pub flows: Vec<FlowView>,
    /// There are more.
    pub truncated: bool,
}

/// Header of `GET /v1/capture`: the number by which `DELETE /v1/capture?number=` ends it in order.
pub const CAPTURE: &str = "baton-capture";

/// What `PUT /v1/snapshot` says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SnapshotReply {
    /// In force.
    pub generation: u64,
    /// It was in force before.
    pub unchanged: bool,
    /// Its policies that cannot be taken. All others are in force.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedPolicy>,
}

/// What `POST /v1/drain` is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DrainRequest {
    /// Name of the backend.
    pub backend: String,
    /// Only in this policy; without it, in each that has a backend of this name.
    #[serde(default)]
    pub policy: Option<String>,
    /// Drain no longer.
    #[serde(default)]
    pub undo: bool,
}

/// What it says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainReply {
    /// How many backends are meant. One that serves several policies counts once.
    pub backends: usize,
    /// How often the snapshot says that they drain, which no command takes back.
    #[serde(default)]
    pub by_snapshot: usize,
}

/// What was wrong with a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReply {
    /// In words.
    pub error: String,
    /// The field, as `policies[1].backends[0].name`.
    #[serde(default)]
    pub field: Option<String>,
    /// What would have been right.
    #[serde(default)]
    pub expected: Option<String>,
}

impl ErrorReply {
    /// Without a field.
    #[must_use]
    pub fn new(error: impl Into<String>) -> Self {
        Self { error: error.into(), field: None, expected: None }
    }

    /// About a field; what was expected is taken from the words.
    #[must_use]
    pub fn field(field: &str, error: &str) -> Self {
        let expected = error.rsplit_once("expected ").map(|(_, expected)| expected.to_owned());
        Self { error: error.to_owned(), field: Some(field.to_owned()), expected }
    }
}
