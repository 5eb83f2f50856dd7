//! `POST /v1/drain`: has a backend drained, or takes that back.
//!
//! Owns who may ask and which backends are meant. What a drain does is the engine's; it is not
//! written down anywhere, so that a drain by command ends with the process.

use super::{
    Control,
    reply::{Reply, json},
    routes::unavailable,
};
use baton_api::{DrainReply, DrainRequest, ErrorReply, Snapshot};
use http_body_util::{BodyExt, Limited};
use hyper::{
    HeaderMap, Request, StatusCode,
    body::Body,
    header::{CONTENT_TYPE, ORIGIN},
};
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;

/// Bytes of a request: some names and words.
const REQUEST_LIMIT_BYTES: usize = 4 << 10;
/// Names that an error tells; with more, `lb-dataplane backends` is the place to look.
const NAMES_MAX: usize = 20;

/// Refuses what a web page has a browser send here: a page of another site cannot set the type of a
/// POST to JSON without being asked for by OPTIONS first, which this API does not answer, and a
/// browser always says its origin.
pub fn refuse_browsers(headers: &HeaderMap, needs_json: bool) -> Option<Reply> {
    if headers.contains_key(ORIGIN) {
        return Some(json(
            StatusCode::FORBIDDEN,
            &ErrorReply {
                error: "requests of web pages are refused".to_owned(),
                field: Some("origin".to_owned()),
                expected: Some("no such header".to_owned()),
            },
        ));
    }
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    let kind = kind.map(|kind| kind.split(';').next().unwrap_or_default().trim());
    if needs_json && !kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json")) {
        return Some(json(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            &ErrorReply {
                error: "the body is not said to be JSON".to_owned(),
                field: Some("content-type".to_owned()),
                expected: Some("application/json".to_owned()),
            },
        ));
    }
    None
}

/// What a small body of JSON orders, or why it is refused.
pub async fn order<T, B>(request: Request<B>, expected: &str) -> Result<T, Reply>
where
    T: DeserializeOwned,
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if let Some(refusal) = refuse_browsers(request.headers(), true) {
        return Err(refusal);
    }
    let body = Limited::new(request.into_body(), REQUEST_LIMIT_BYTES)
        .collect()
        .await;
    let body = body.map_err(|error| {
        json(
            StatusCode::BAD_REQUEST,
            &ErrorReply::new(format!("the body could not be read: {error}")),
        )
    })?;
    serde_json::from_slice(&body.to_bytes()).map_err(|error| {
        json(
            StatusCode::UNPROCESSABLE_ENTITY,
            &ErrorReply {
                error: error.to_string(),
                field: None,
                expected: Some(expected.to_owned()),
            },
        )
    })
}

/// Answers one request.
pub async fn post<B>(control: &Control, request: Request<B>) -> Reply
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let expected = r#"{"backend": NAME, "policy": NAME or none, "undo": true or false}"#;
    let asked: DrainRequest = match order(request, expected).await {
        Ok(asked) => asked,
        Err(refusal) => return refusal,
    };
    let snapshot = control.snapshots.current().unwrap_or_default();
    let by_snapshot = match meant(&snapshot, &asked) {
        Ok(by_snapshot) => by_snapshot,
        Err(unknown) => return json(StatusCode::NOT_FOUND, &unknown),
    };
    let DrainRequest {
        policy,
        backend,
        undo,
    } = asked;
    match control.workers.drain(policy, backend, !undo).await {
        Ok(Ok(backends)) => json(
            StatusCode::OK,
            &DrainReply {
                backends,
                by_snapshot,
            },
        ),
        // Another snapshot came in between.
        Ok(Err(error)) => json(StatusCode::NOT_FOUND, &ErrorReply::field("backend", &error)),
        Err(error) => unavailable(error),
    }
}

/// How often the snapshot says that the backends that are meant drain; if it has none of these,
/// which there are.
fn meant(snapshot: &Snapshot, asked: &DrainRequest) -> Result<usize, ErrorReply> {
    let policies: Vec<_> = snapshot
        .policies
        .iter()
        .filter(|policy| {
            asked
                .policy
                .as_ref()
                .is_none_or(|name| *name == policy.name)
        })
        .collect();
    if let Some(policy) = &asked.policy
        && policies.is_empty()
    {
        let known = snapshot.policies.iter().map(|p| p.name.as_str());
        return Err(unknown("policy", policy, known));
    }
    let backends = || policies.iter().flat_map(|policy| &policy.backends);
    let mut named = backends().filter(|b| b.name == asked.backend).peekable();
    if named.peek().is_none() {
        return Err(unknown(
            "backend",
            &asked.backend,
            backends().map(|b| b.name.as_str()),
        ));
    }
    Ok(named.filter(|backend| backend.draining).count())
}

/// Names what there is instead.
pub(super) fn unknown<'a>(
    what: &str,
    name: &str,
    known: impl Iterator<Item = &'a str>,
) -> ErrorReply {
    let known: BTreeSet<&str> = known.collect();
    let mut names = known
        .iter()
        .take(NAMES_MAX)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    if known.len() > NAMES_MAX {
        names.push_str(&format!(" and {} more", known.len() - NAMES_MAX));
    }
    let error = if known.is_empty() {
        format!("no {what} is named `{name}`; there is none at all")
    } else {
        format!("no {what} is named `{name}`: expected one of {names}")
    };
    ErrorReply::field(what, &error)
}
