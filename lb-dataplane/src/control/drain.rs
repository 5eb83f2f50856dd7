//! `POST /v1/drain`: has a backend drained, or takes that back.
//!
//! Owns who may ask and which backends are meant. What a drain does is the engine's; it is not
//! written down anywhere, so that a drain by command ends with the process.

use super::{
    Control,
    asked::order,
    reply::{Reply, json, unavailable},
};
use baton_api::{DrainReply, DrainRequest, ErrorReply, Snapshot};
use hyper::{Request, StatusCode, body::Body};
use std::collections::BTreeSet;

/// Names that an error tells; with more, `lb-dataplane backends` is the place to look.
const NAMES_MAX: usize = 20;

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
    let DrainRequest { policy, backend, undo } = asked;
    match control.workers.drain(policy, backend, !undo).await {
        Ok(Ok(backends)) => json(StatusCode::OK, &DrainReply { backends, by_snapshot }),
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
        .filter(|policy| asked.policy.as_ref().is_none_or(|name| *name == policy.name))
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
        return Err(unknown("backend", &asked.backend, backends().map(|b| b.name.as_str())));
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
    let mut names = known.iter().take(NAMES_MAX).copied().collect::<Vec<_>>().join(", ");
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
