//! What each path of the control API answers.

use super::{
    Control,
    asked::{percent_decoded, refuse_browsers},
    capture, drain, events,
    metrics::Scrape,
    migrate,
    reply::{Reply, json, text, unavailable, with_type},
    snapshot::{Refusal, Taken},
};
use crate::{commands::WorkerError, diagnosis};
use baton_api::{
    Asked, Clients, ClientsError, ErrorReply, FlowView, FlowsReply, Foreign, LIMIT_SNAPSHOT_BYTES,
    Pushed, SnapshotError, SnapshotReply, StateReply, is_backend,
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::{Method, Request, StatusCode, body::Body, header::HeaderValue, http::uri::Authority};
use std::sync::atomic::Ordering;

/// Flows that one look into the table returns, so that no answer holds up frames for long.
const FLOWS_CHUNK: usize = 256;
/// Flows in one answer unless asked otherwise.
const FLOWS_DEFAULT: usize = 1_000;
/// Flows in one answer at most.
const FLOWS_MAX: usize = 100_000;

/// What may be asked at the place where somebody asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everything.
    All,
    /// Only what kubelet and Prometheus need.
    Probes,
}

/// What there is, with the methods that are possible.
const PATHS: [(&str, &[Method]); 10] = [
    ("/healthz", &[Method::GET]),
    ("/readyz", &[Method::GET]),
    ("/metrics", &[Method::GET]),
    ("/v1/state", &[Method::GET]),
    ("/v1/flows", &[Method::GET]),
    ("/v1/snapshot", &[Method::GET, Method::PUT]),
    ("/v1/drain", &[Method::POST]),
    (capture::PATH, &[Method::GET, Method::DELETE]),
    ("/v1/events", &[Method::GET]),
    ("/v1/migrate", &[Method::POST]),
];
/// How many of these, from the first on, [`Access::Probes`] has.
const PROBES: usize = 3;

impl Access {
    /// Whether a request is for this path, and may be.
    pub fn is_for<B>(self, path: &str, request: &Request<B>) -> bool {
        let asked = (request.uri().path(), request.method());
        let mut paths = self.paths().iter();
        asked.0 == path && paths.any(|(known, methods)| *known == path && methods.contains(asked.1))
    }

    fn paths(self) -> &'static [(&'static str, &'static [Method])] {
        match self {
            Self::All => &PATHS,
            Self::Probes => &PATHS[..PROBES],
        }
    }
}

/// Answers one request.
pub async fn route<B>(control: &Control, access: Access, request: Request<B>) -> Reply
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let path = request.uri().path().to_owned();
    let methods = |methods: &[Method]| {
        let names: Vec<&str> = methods.iter().map(Method::as_str).collect();
        names.join(" or ")
    };
    let Some((_, allowed)) = access.paths().iter().find(|(known, _)| *known == path) else {
        let known = access.paths().iter();
        let known: Vec<String> = known
            .map(|(path, allowed)| match *allowed {
                [Method::GET] => (*path).to_owned(),
                other => format!("{} {path}", methods(other)),
            })
            .collect();
        return json(
            StatusCode::NOT_FOUND,
            &ErrorReply {
                error: format!("there is nothing at {path}"),
                field: None,
                expected: Some(known.join(", ")),
            },
        );
    };
    if !allowed.contains(request.method()) {
        return json(
            StatusCode::METHOD_NOT_ALLOWED,
            &ErrorReply {
                error: format!("{} is not possible at {path}", request.method()),
                field: None,
                expected: Some(methods(allowed)),
            },
        );
    }
    match path.as_str() {
        "/healthz" => health(control),
        "/readyz" => ready(control),
        "/metrics" if access == Access::Probes => control.gates.recent(metrics(control)).await,
        "/metrics" => metrics(control).await,
        "/v1/state" => state(control).await,
        "/v1/flows" => flows(control, request.uri().query().unwrap_or_default()).await,
        "/v1/drain" => drain::post(control, request).await,
        capture::PATH if *request.method() == Method::DELETE => capture::end(control, &request),
        // Answered with a stream, where one is possible: see `serve`.
        capture::PATH => unavailable(WorkerError::Gone),
        "/v1/events" => events::get(control, request.uri().query().unwrap_or_default()).await,
        "/v1/migrate" => migrate::post(control, request).await,
        _ if *request.method() == Method::GET => get_snapshot(control),
        _ => put_snapshot(control, request).await,
    }
}

/// The refusal of what a web page may have had sent, or whose name DNS may have led here.
pub fn refuse_pages<B>(control: &Control, request: &Request<B>) -> Option<Reply> {
    let all = |name| request.headers().get_all(name).iter().map(HeaderValue::as_bytes).collect();
    let asked = Asked::new(request.uri().authority().map(Authority::as_str), all);
    let foreign = asked.is_local().err()?;
    control.metrics.foreign(foreign);
    let (field, expected) = match foreign {
        Foreign::Host => ("host", "an address or localhost"),
        Foreign::Page => ("origin", "no such header"),
    };
    let status = StatusCode::from_u16(foreign.status()).unwrap_or(StatusCode::FORBIDDEN);
    let error = ErrorReply {
        error: foreign.to_string(),
        field: Some(field.to_owned()),
        expected: Some(expected.to_owned()),
    };
    Some(json(status, &error))
}

/// The answer to a request that took too long.
pub fn too_slow() -> Reply {
    json(StatusCode::SERVICE_UNAVAILABLE, &ErrorReply::new("the request took longer than 10 s"))
}

fn health(control: &Control) -> Reply {
    if control.is_beating() {
        text(StatusCode::OK, "ok\n")
    } else {
        text(StatusCode::SERVICE_UNAVAILABLE, "the packet worker has not turned for 2 s\n")
    }
}

fn ready(control: &Control) -> Reply {
    let problems = control.unready();
    if problems.is_empty() {
        return text(StatusCode::OK, "ready\n");
    }
    text(StatusCode::SERVICE_UNAVAILABLE, problems.join("\n") + "\n")
}

async fn metrics(control: &Control) -> Reply {
    // A stuck worker must show in the metrics rather than hide them.
    let scrape = Scrape {
        report: control.report().await.ok(),
        ready: control.unready().is_empty(),
        ending: control.facts.ending.load(Ordering::Relaxed),
    };
    match control.metrics.render(scrape) {
        Ok(body) => {
            with_type(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", body.into())
        }
        Err(error) => json(
            StatusCode::INTERNAL_SERVER_ERROR,
            &ErrorReply::new(format!("cannot write the metrics: {error}")),
        ),
    }
}

async fn state(control: &Control) -> Reply {
    match control.report().await {
        Ok(report) => {
            let mut problems = control.problems();
            problems.extend(diagnosis::problems(&report.state));
            json(
                StatusCode::OK,
                &StateReply {
                    state: report.state,
                    signing_epoch: control.signing_epoch(),
                    problems,
                },
            )
        }
        Err(error) => unavailable(error),
    }
}

/// What `/v1/flows` was asked.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FlowsQuery {
    policy: Option<String>,
    backend: Option<String>,
    client: Option<Clients>,
    limit: usize,
}

impl FlowsQuery {
    pub(super) fn parse(query: &str) -> Result<Self, ErrorReply> {
        let mut this = Self { policy: None, backend: None, client: None, limit: FLOWS_DEFAULT };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "policy" => this.policy = Some(percent_decoded(value)),
                "backend" => this.backend = Some(percent_decoded(value)),
                "client" => {
                    let clients = percent_decoded(value).parse();
                    let problem = |error: ClientsError| ErrorReply::field(name, &error.to_string());
                    this.client = Some(clients.map_err(problem)?);
                }
                "limit" => {
                    this.limit = value
                        .parse()
                        .ok()
                        .filter(|limit| (1..=FLOWS_MAX).contains(limit))
                        .ok_or_else(|| {
                            let problem = format!(
                                "`{value}` is not possible: expected a number from 1 to {FLOWS_MAX}"
                            );
                            ErrorReply::field("limit", &problem)
                        })?;
                }
                _ => {
                    return Err(ErrorReply::field(
                        name,
                        "is not known: expected policy, backend, client or limit",
                    ));
                }
            }
        }
        Ok(this)
    }

    fn wants(&self, flow: &FlowView) -> bool {
        self.policy.as_ref().is_none_or(|p| *p == flow.policy)
            && self.backend.as_ref().is_none_or(|b| is_backend(&flow.backend, b))
            && self.client.is_none_or(|clients| clients.has(flow.client))
    }
}

async fn flows(control: &Control, query: &str) -> Reply {
    let query = match FlowsQuery::parse(query) {
        Ok(query) => query,
        Err(error) => return json(StatusCode::BAD_REQUEST, &error),
    };
    let mut found = Vec::new();
    let mut cursor = Some((0, 0));
    // One more than asked for, to know whether there are more.
    while let Some(at) = cursor
        && found.len() <= query.limit
    {
        match control.workers.flows(at, FLOWS_CHUNK).await {
            Ok((flows, next)) => {
                found.extend(flows.into_iter().filter(|flow| query.wants(flow)));
                cursor = next;
            }
            Err(error) => return unavailable(error),
        }
    }
    let truncated = found.len() > query.limit;
    found.truncate(query.limit);
    let reply = FlowsReply { flows: found, truncated };
    json(StatusCode::OK, &reply)
}

fn get_snapshot(control: &Control) -> Reply {
    match control.snapshots.offered() {
        Some(snapshot) => json(StatusCode::OK, &*snapshot),
        None => json(StatusCode::NOT_FOUND, &ErrorReply::new("no snapshot is in force yet")),
    }
}

async fn put_snapshot<B>(control: &Control, request: Request<B>) -> Reply
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    // A browser asks before it sends a PUT, whatever its type, and is not answered.
    if let Some(refusal) = refuse_browsers(request.headers(), false) {
        return refusal;
    }
    // Waits for its place no longer than any request may take.
    let Ok(_place) = control.gates.bodies.acquire().await else {
        return too_slow();
    };
    let body = match Limited::new(request.into_body(), LIMIT_SNAPSHOT_BYTES).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            return json(
                StatusCode::PAYLOAD_TOO_LARGE,
                &ErrorReply {
                    error: "the snapshot is too large".to_owned(),
                    field: None,
                    expected: Some(format!("at most {LIMIT_SNAPSHOT_BYTES} bytes")),
                },
            );
        }
        Err(error) => {
            return json(
                StatusCode::BAD_REQUEST,
                &ErrorReply::new(format!("the body could not be read: {error}")),
            );
        }
    };
    let pushed = match Pushed::read(&body) {
        Ok(pushed) => pushed,
        Err(SnapshotError { path, problem }) => {
            let error = ErrorReply::field(&path, &problem);
            return json(StatusCode::UNPROCESSABLE_ENTITY, &error);
        }
    };
    let generation = pushed.snapshot.generation;
    match control.snapshots.offer(pushed).await {
        Ok(taken) => json(
            StatusCode::OK,
            &SnapshotReply {
                generation,
                unchanged: taken == Taken::Unchanged,
                refused: control.snapshots.refused(),
            },
        ),
        Err(Refusal::Stale { offered, current }) => {
            let error = Refusal::Stale { offered, current }.to_string();
            json(
                StatusCode::CONFLICT,
                &ErrorReply {
                    error,
                    field: Some("generation".to_owned()),
                    expected: Some(format!("more than {current}")),
                },
            )
        }
        // Not 409: no other generation helps.
        Err(Refusal::FileOwned) => json(
            StatusCode::FORBIDDEN,
            &ErrorReply {
                error: Refusal::FileOwned.to_string(),
                field: Some("policies".to_owned()),
                expected: Some("a configuration file without `policies`".to_owned()),
            },
        ),
        Err(Refusal::Invalid(error)) => {
            json(StatusCode::UNPROCESSABLE_ENTITY, &ErrorReply::field(&error.path, &error.problem))
        }
        Err(Refusal::Worker(error)) => unavailable(error),
    }
}
