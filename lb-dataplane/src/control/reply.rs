//! Answers of the control API, and its one form of errors.

use baton_api::State;
use http_body_util::Full;
use hyper::{
    Response, StatusCode,
    body::Bytes,
    header::{CONTENT_TYPE, HeaderValue},
};
use serde::{Deserialize, Serialize};

/// An answer with its whole body.
pub type Reply = Response<Full<Bytes>>;

/// What `/v1/state` says: the state, and what is wrong in words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateReply {
    /// The figures.
    #[serde(flatten)]
    pub state: State,
    /// Which of the key epochs signs.
    #[serde(
        default,
        rename = "signingEpoch",
        skip_serializing_if = "Option::is_none"
    )]
    pub signing_epoch: Option<u8>,
    /// Why it is not ready or not as it should be; empty if all is well.
    #[serde(default)]
    pub problems: Vec<String>,
}

/// Header of `/v1/flows`: `true` if there are more flows than were given.
pub const TRUNCATED: &str = "baton-truncated";

/// What `PUT /v1/snapshot` says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SnapshotReply {
    /// In force.
    pub generation: u64,
    /// It was in force before.
    pub unchanged: bool,
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
    pub by_snapshot: usize,
}

/// What was wrong with a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReply {
    /// In words.
    pub error: String,
    /// The field, as `policies[1].backends[0].name`.
    pub field: Option<String>,
    /// What would have been right.
    pub expected: Option<String>,
}

impl ErrorReply {
    /// Without a field.
    pub fn new(error: impl Into<String>) -> Self {
        Self {
            error: error.into(),
            field: None,
            expected: None,
        }
    }

    /// About a field; what was expected is taken from the words.
    pub fn field(field: &str, error: &str) -> Self {
        let expected = error
            .rsplit_once("expected ")
            .map(|(_, expected)| expected.to_owned());
        Self {
            error: error.to_owned(),
            field: Some(field.to_owned()),
            expected,
        }
    }
}

/// Plain text.
pub fn text(status: StatusCode, body: impl Into<String>) -> Reply {
    with_type(status, "text/plain; charset=utf-8", body.into().into())
}

/// JSON; an error of the serializer becomes a 500, as maps with odd keys would be.
pub fn json(status: StatusCode, body: &impl Serialize) -> Reply {
    match serde_json::to_vec(body) {
        Ok(bytes) => with_type(status, "application/json", bytes.into()),
        Err(error) => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("cannot write the answer: {error}\n"),
        ),
    }
}

/// A body with its type.
pub fn with_type(status: StatusCode, kind: &'static str, body: Bytes) -> Reply {
    let mut reply = Response::new(Full::new(body));
    *reply.status_mut() = status;
    reply
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}
