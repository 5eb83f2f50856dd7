//! `/healthz`, `/readyz` and `/metrics`.
//!
//! Owns the listener and its limits. Changes nothing, so that it may listen on any address; there
//! are no secrets here. Over loopback no web page gets in, whose site's name DNS may have led here.

use crate::{health::Health, metrics::Metrics};
use anyhow::Context as _;
use baton_api::Asked;
use baton_tls::{Places, listen};
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode, Uri,
    body::{Bytes, Incoming},
    header::{ALLOW, CONTENT_TYPE, HeaderMap, HeaderValue},
    http::uri::Authority,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{net::TcpListener, time::sleep};
use tracing::{debug, warn};

/// Connections at one time: a scraper or two, the kubelet's probes, a person. Whoever comes is
/// served.
const CONNECTIONS_MAX: usize = 32;
/// To send a request's head; idle connections are closed after it.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// After a failed accept (no more file descriptors) nothing better can be done than to wait.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Listens.
///
/// # Errors
/// The address is in use, or is none of this machine.
pub fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    listen::bind(address)
        .with_context(|| format!("cannot listen on {address}: another `--listen` may help"))
}

/// Serves until the process ends.
pub async fn serve(listener: TcpListener, metrics: Metrics, health: Arc<Health>) -> Infallible {
    let places = Places::new(CONNECTIONS_MAX);
    loop {
        let (stream, peer) = match listen::accept(&listener).await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (metrics, health) = (metrics.clone(), Arc::clone(&health));
        let near_pages = listen::is_loopback(&stream);
        places.serve(Some(peer.ip()), async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let refusal = near_pages
                    .then(|| refuse_pages(request.uri(), request.headers(), &metrics))
                    .flatten();
                let reply = refusal.unwrap_or_else(|| {
                    route(request.method(), request.uri().path(), &metrics, &health)
                });
                async move { Ok::<_, Infallible>(reply) }
            });
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_LIMIT)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            if let Err(error) = served {
                debug!(%error, "a connection ended");
            }
        });
    }
}

fn refuse_pages(
    target: &Uri,
    headers: &HeaderMap,
    metrics: &Metrics,
) -> Option<Response<Full<Bytes>>> {
    let all = |name| headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    let asked = Asked::new(target.authority().map(Authority::as_str), all);
    let foreign = asked.is_local().err()?;
    metrics.foreign.with_label_values(&[foreign.label()]).inc();
    let status = StatusCode::from_u16(foreign.status()).unwrap_or(StatusCode::FORBIDDEN);
    Some(reply(status, format!("{foreign}\n")))
}

fn route(method: &Method, path: &str, metrics: &Metrics, health: &Health) -> Response<Full<Bytes>> {
    if method != Method::GET && method != Method::HEAD {
        let mut refusal = reply(StatusCode::METHOD_NOT_ALLOWED, "expected GET\n".to_owned());
        let allow = HeaderValue::from_static("GET, HEAD");
        refusal.headers_mut().insert(ALLOW, allow);
        return refusal;
    }
    match path {
        "/healthz" => verdict(&health.stuck()),
        "/readyz" => verdict(&health.unready()),
        "/metrics" => reply(StatusCode::OK, metrics.text()),
        _ => reply(StatusCode::NOT_FOUND, "expected /healthz, /readyz or /metrics\n".to_owned()),
    }
}

fn verdict(problems: &[String]) -> Response<Full<Bytes>> {
    if problems.is_empty() {
        return reply(StatusCode::OK, "ok\n".to_owned());
    }
    reply(StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", problems.join("\n")))
}

fn reply(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut reply = Response::new(Full::new(Bytes::from(text)));
    *reply.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    reply.headers_mut().insert(CONTENT_TYPE, kind);
    reply
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use hyper::header::HOST;

    async fn ask(method: Method, path: &str, health: &Health) -> (StatusCode, String) {
        let metrics = Metrics::new().expect("figures");
        let reply = route(&method, path, &metrics, health);
        let status = reply.status();
        let body = reply.into_body().collect().await.expect("in memory");
        (status, String::from_utf8_lossy(&body.to_bytes()).into_owned())
    }

    #[tokio::test]
    async fn probes_say_what_is_missing_and_figures_are_there() {
        let health = Health::new(&["Service", "Pod"]);
        let (status, text) = ask(Method::GET, "/readyz", &health).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(text.contains("Pod, Service"), "{text}");
        health.synced("Service");
        health.synced("Pod");
        let (status, text) = ask(Method::GET, "/readyz", &health).await;
        assert_eq!((status, text.as_str()), (StatusCode::OK, "ok\n"));
        assert_eq!(ask(Method::GET, "/healthz", &health).await.0, StatusCode::OK);
        let (status, text) = ask(Method::GET, "/metrics", &health).await;
        assert_eq!(status, StatusCode::OK);
        assert!(text.contains("baton_operator_build_info"), "{text}");
    }

    /// From another address, and from the kubelet's own.
    #[tokio::test]
    async fn probes_are_answered_whoever_holds_the_port() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        use tokio::net::TcpSocket;
        let listener = bind("127.0.0.1:0".parse().expect("an address"));
        let listener = listener.expect("a port");
        let address = listener.local_addr().expect("its address");
        let (metrics, health) = (Metrics::new().expect("figures"), Health::new(&[]));
        tokio::spawn(serve(listener, metrics, Arc::new(health)));
        let connect = async |source: &str| {
            let socket = TcpSocket::new_v4().expect("a socket");
            let source = SocketAddr::new(source.parse().expect("an address"), 0);
            socket.bind(source).expect("bound");
            socket.connect(address).await.expect("connected")
        };
        for hostile in ["127.0.0.9", "127.0.0.1"] {
            let mut held = Vec::new();
            for _ in 0..60 {
                held.clear();
                for _ in 0..200 {
                    held.push(connect(hostile).await);
                }
                let mut probe = connect("127.0.0.1").await;
                let request =
                    b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
                probe.write_all(request).await.expect("sent");
                let mut answer = String::new();
                probe.read_to_string(&mut answer).await.expect("an answer");
                assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            }
        }
    }

    #[tokio::test]
    async fn anything_else_is_refused() {
        let health = Health::new(&[]);
        assert_eq!(ask(Method::GET, "/", &health).await.0, StatusCode::NOT_FOUND);
        let (status, _) = ask(Method::POST, "/metrics", &health).await;
        assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
    }

    #[test]
    fn pages_are_refused_and_counted() {
        let metrics = Metrics::new().expect("figures");
        let ask = |header: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static("127.0.0.1:9902"));
            headers.insert(header, HeaderValue::from_static(value));
            let refusal = refuse_pages(&Uri::from_static("/metrics"), &headers, &metrics);
            refusal.map(|reply| reply.status().as_u16())
        };
        assert_eq!(ask("host", "localhost:9902"), None);
        assert_eq!(ask("host", "evil.example"), Some(421));
        assert_eq!(ask("origin", "http://evil.example"), Some(403));
        assert_eq!(ask("sec-fetch-site", "cross-site"), Some(403));
        let text = metrics.text();
        for (reason, count) in [("host", 1), ("page", 2)] {
            let line =
                format!("baton_operator_foreign_requests_total{{reason=\"{reason}\"}} {count}");
            assert!(text.lines().any(|l| l == line), "{line}: {text}");
        }
    }
}
