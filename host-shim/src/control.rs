//! The HTTP side: health, readiness, metrics and state, and the way by which the operator sends
//! keys. Owns paths, status codes and who gets in where.

use crate::{metrics, shim::Shim};
use baton_api::{Asked, Foreign, NodeKeys};
use baton_tls::{Places, Server, listen};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{CONTENT_TYPE, HeaderValue},
    http::uri::Authority,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
};
use tracing::{debug, warn};

/// A scraper, probes and a person; as many more may be in the handshake of TLS.
const CONNECTIONS_MAX: usize = 32;
/// A client that sends nothing gives its place back.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection ends after this, so that nobody holds a place for long by not taking an answer, and
/// no client stays for long that a new authority would not let in.
const AGE_LIMIT: Duration = Duration::from_secs(300);

/// Where the operator puts the node's keys.
const KEYS_PATH: &str = "/v1/keys";
/// Bytes of the keys that it sends: eight take less than one KiB.
const KEYS_BYTES_MAX: usize = 8 << 10;

const TEXT: &str = "text/plain; charset=utf-8";

/// Who comes in how.
#[derive(Clone)]
pub enum Door {
    /// Any program that reaches this port, for everything; no web page.
    Plain,
    /// Only the operator, for everything and to send keys. Who has no certificate holds a place for
    /// 5 s at most.
    Tls(Arc<Server>),
    /// Anybody, for health and metrics; over loopback no web page.
    Probes,
}

impl Door {
    /// Whether a web page in a browser of this machine could come in.
    fn is_near_pages(&self, stream: &TcpStream) -> bool {
        match self {
            Self::Plain => true,
            Self::Probes => listen::is_loopback(stream),
            Self::Tls(_) => false,
        }
    }

    fn paths(&self) -> &'static [&'static str] {
        match self {
            Self::Plain => &["/healthz", "/readyz", "/metrics", "/v1/state"],
            Self::Tls(_) => &["/healthz", "/readyz", "/metrics", "/v1/state", KEYS_PATH],
            Self::Probes => &["/healthz", "/readyz", "/metrics"],
        }
    }
}

/// What is behind the doors.
pub struct Control {
    /// The daemon's work.
    pub shim: Arc<Mutex<Shim>>,
    /// TLS towards the operator, if it is configured.
    pub tls: Option<Arc<Server>>,
    /// Requests that were refused as a web page's, in the order of [`Foreign::ALL`].
    pub foreign: [AtomicU64; Foreign::ALL.len()],
}

/// Serves until the task is dropped.
pub async fn serve(listener: TcpListener, control: Arc<Control>, door: Door) {
    let places = Places::new(CONNECTIONS_MAX);
    let handshakes = Places::new(CONNECTIONS_MAX);
    loop {
        let (stream, peer) = match listen::accept(&listener).await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, as a rule; the next connection may find some.
                warn!(%error, "control: accept failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (control, paths) = (Arc::clone(&control), door.paths());
        let (from, pages) = (Some(peer.ip()), door.is_near_pages(&stream));
        match &door {
            Door::Plain | Door::Probes => {
                places.serve(from, async move { http(stream, &control, paths, pages).await });
            }
            Door::Tls(server) => {
                let (server, places) = (Arc::clone(server), Arc::clone(&places));
                handshakes.serve(from, async move {
                    match server.accept(stream).await {
                        Ok(stream) => {
                            let served = async move { http(stream, &control, paths, pages).await };
                            places.serve(from, served);
                        }
                        // Counted in the metrics, by reason; anybody can cause it.
                        Err(refusal) => debug!(%peer, %refusal, "control: a TLS handshake failed"),
                    }
                });
            }
        }
    }
}

/// Answers the requests of one connection.
async fn http<S>(stream: S, control: &Control, paths: &'static [&'static str], near_pages: bool)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(|request| async move {
        let refusal = near_pages.then(|| refuse_pages(&request, control)).flatten();
        let response = match refusal {
            Some(refusal) => refusal,
            None if request.uri().path() == KEYS_PATH && paths.contains(&KEYS_PATH) => {
                take_keys(request, control).await
            }
            None => answer(&request, control, paths),
        };
        Ok::<_, Infallible>(response)
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    if let Ok(Err(error)) = tokio::time::timeout(AGE_LIMIT, served).await {
        debug!(%error, "control: connection ended");
    }
}

/// The refusal of what a web page may have had sent, or whose name DNS may have led here.
fn refuse_pages(request: &Request<Incoming>, control: &Control) -> Option<Response<Full<Bytes>>> {
    let all = |name| request.headers().get_all(name).iter().map(HeaderValue::as_bytes).collect();
    let asked = Asked::new(request.uri().authority().map(Authority::as_str), all);
    let foreign = asked.is_local().err()?;
    for (counter, _) in control.foreign.iter().zip(Foreign::ALL).filter(|(_, f)| *f == foreign) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
    let status = StatusCode::from_u16(foreign.status()).unwrap_or(StatusCode::FORBIDDEN);
    Some(respond(status, TEXT, format!("{foreign}\n").into()))
}

fn answer(request: &Request<Incoming>, control: &Control, paths: &[&str]) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    if !paths.contains(&path) {
        let known = format!("known: {}\n", paths.join(" "));
        return respond(StatusCode::NOT_FOUND, TEXT, known.into());
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return respond(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET\n".into());
    }
    if path == "/healthz" {
        return respond(StatusCode::OK, TEXT, "ok\n".into());
    }
    let shim = control.shim.lock().unwrap_or_else(PoisonError::into_inner);
    if path == "/readyz" {
        let (attached, all) = shim.attached();
        let text = format!("{attached} of {all} pods have the adopter\n");
        return match shim.unready() {
            None => respond(StatusCode::OK, TEXT, text.into()),
            Some(why) => respond(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n").into()),
        };
    }
    if path == "/v1/state" {
        return state_of(&shim);
    }
    let state = match shim.state() {
        Ok(state) => state,
        Err(error) => return failed(&error),
    };
    drop(shim);
    match metrics::text(&state, control.tls.as_deref(), &control.foreign) {
        Ok(text) => respond(StatusCode::OK, prometheus::TEXT_FORMAT, text.into()),
        Err(error) => failed(&error),
    }
}

fn state_of(shim: &Shim) -> Response<Full<Bytes>> {
    let state = match shim.state() {
        Ok(state) => state,
        Err(error) => return failed(&error),
    };
    match serde_json::to_vec(&state) {
        Ok(json) => respond(StatusCode::OK, "application/json", json.into()),
        Err(error) => failed(&error),
    }
}

/// `PUT /v1/keys`: all keys of this node, from the operator. Answered with the state. No word of it
/// is ever told again.
async fn take_keys(request: Request<Incoming>, control: &Control) -> Response<Full<Bytes>> {
    let refuse = |status, words: String| {
        warn!(words, "keys are refused");
        respond(status, TEXT, format!("{words}\n").into())
    };
    if request.method() != Method::PUT {
        return respond(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only PUT\n".into());
    }
    let body = Limited::new(request.into_body(), KEYS_BYTES_MAX).collect().await;
    let Ok(body) = body else {
        let words = format!("expected the whole of at most {KEYS_BYTES_MAX} bytes");
        return refuse(StatusCode::PAYLOAD_TOO_LARGE, words);
    };
    let keys: NodeKeys = match serde_json::from_slice(&body.to_bytes()) {
        Ok(keys) => keys,
        Err(error) => {
            let (line, column) = (error.line(), error.column());
            let words = format!("no keys of a node, at line {line} column {column}");
            return refuse(StatusCode::UNPROCESSABLE_ENTITY, words);
        }
    };
    let mut shim = control.shim.lock().unwrap_or_else(PoisonError::into_inner);
    match shim.keys_of() {
        None => {
            let words =
                "this host-shim's configuration has `keys`: expected none, to take the operator's";
            return refuse(StatusCode::CONFLICT, words.into());
        }
        Some(own) if own != keys.node => {
            let words = format!("this is node {own}, and the keys are of another one");
            return refuse(StatusCode::CONFLICT, words);
        }
        Some(_) => {}
    }
    match keys.checked().map(|keys| shim.set_keys(&keys)) {
        Err(problem) => refuse(StatusCode::UNPROCESSABLE_ENTITY, problem.to_string()),
        Ok(Err(error)) => failed(&error),
        Ok(Ok(())) => state_of(&shim),
    }
}

fn failed(error: &dyn std::error::Error) -> Response<Full<Bytes>> {
    let status = StatusCode::INTERNAL_SERVER_ERROR;
    respond(status, TEXT, format!("{error}\n").into())
}

fn respond(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}
