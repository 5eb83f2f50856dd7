//! The HTTP side: health, readiness, metrics and state, all read-only. Owns paths and status codes.

use crate::{metrics, shim::Shim};
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::CONTENT_TYPE,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{net::TcpListener, sync::Semaphore};
use tracing::{debug, warn};

/// A scraper, a probe and a person; more wait their turn.
const CONNECTIONS_MAX: usize = 32;
/// A client that sends nothing gives its place back.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves until the task is dropped.
pub async fn serve(listener: TcpListener, shim: Arc<Mutex<Shim>>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, as a rule; the next connection may find some.
                warn!(%error, "control: accept failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let shim = Arc::clone(&shim);
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let response = answer(&request, &shim);
                async move { Ok::<_, Infallible>(response) }
            });
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            if let Err(error) = served {
                debug!(%error, "control: connection ended");
            }
            drop(place);
        });
    }
}

fn answer(request: &Request<Incoming>, shim: &Mutex<Shim>) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    let path = request.uri().path();
    if !["/healthz", "/readyz", "/metrics", "/v1/state"].contains(&path) {
        let known = "known: /healthz /readyz /metrics /v1/state\n";
        return respond(StatusCode::NOT_FOUND, TEXT, known.into());
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return respond(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET\n".into());
    }
    if path == "/healthz" {
        return respond(StatusCode::OK, TEXT, "ok\n".into());
    }
    let shim = shim.lock().unwrap_or_else(PoisonError::into_inner);
    if path == "/readyz" {
        let (attached, all) = shim.attached();
        let text = format!("{attached} of {all} pods have the adopter\n");
        // One broken pod must not take the node's shim out of service; none at all means that something is wrong here.
        let ready = attached > 0 || all == 0;
        let status = if ready {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        return respond(status, TEXT, text.into());
    }
    let state = match shim.state() {
        Ok(state) => state,
        Err(error) => {
            return respond(
                StatusCode::INTERNAL_SERVER_ERROR,
                TEXT,
                format!("{error}\n").into(),
            );
        }
    };
    drop(shim);
    if path == "/metrics" {
        return match metrics::text(&state) {
            Ok(text) => respond(StatusCode::OK, prometheus::TEXT_FORMAT, text.into()),
            Err(error) => respond(
                StatusCode::INTERNAL_SERVER_ERROR,
                TEXT,
                format!("{error}\n").into(),
            ),
        };
    }
    match serde_json::to_vec(&state) {
        Ok(json) => respond(StatusCode::OK, "application/json", json.into()),
        Err(error) => respond(
            StatusCode::INTERNAL_SERVER_ERROR,
            TEXT,
            format!("{error}\n").into(),
        ),
    }
}

fn respond(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}
