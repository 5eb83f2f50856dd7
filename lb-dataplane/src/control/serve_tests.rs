//! The listeners: who gets in where, what is answered there, and how much anybody can hold.

use super::{
    metrics::Scrape,
    routes::Access,
    serve::{AGE_LIMIT, CONNECTIONS_MAX, Door, Way, bind, http, serve},
    tests::{Lab, lab, lab_for, snapshot},
    *,
};
use crate::certificates::Authority;
use baton_api::{ErrorReply, LIMIT_POLICIES, RefusedPolicy, Snapshot, SnapshotReply, StateReply};
use baton_tls::{Client, Name, Reason, Refusal};
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, StatusCode, body::Bytes, client::conn::http1 as client};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex},
    net::{TcpSocket, TcpStream},
    time,
};

/// Far longer than anything here takes.
const WITHIN: Duration = Duration::from_secs(20);

/// Opens one more door to a lab.
async fn open(lab: &Lab, door: Door) -> SocketAddr {
    let listener = bind("test", "127.0.0.1:0".parse().expect("an address")).expect("a port");
    let address = listener.local_addr().expect("its address");
    tokio::spawn(serve(listener, Arc::clone(&lab.control), door));
    address
}

pub(super) fn dataplane(authority: &Authority) -> Arc<Server> {
    let material = authority.material(&authority.pair(Name::Dataplane));
    Arc::new(Server::new(Name::Dataplane, Name::Operator, material).expect("a server"))
}

fn operator(authority: &Authority) -> Client {
    let material = authority.material(&authority.pair(Name::Operator));
    Client::new(Name::Operator, material).expect("a client")
}

/// One request over a connection of any kind.
async fn ask<S>(
    stream: S,
    method: Method,
    path: &str,
    body: String,
) -> hyper::Result<(StatusCode, String)>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = client::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost")
        .body(Full::new(Bytes::from(body)))
        .expect("a request");
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    Ok((head.status, String::from_utf8(body.to_vec()).expect("text")))
}

async fn get(address: SocketAddr, path: &str) -> (StatusCode, String) {
    let stream = TcpStream::connect(address).await.expect("connected");
    ask(stream, Method::GET, path, String::new()).await.expect("answered")
}

/// A snapshot of the size that an operator pushes for many services.
fn large(generation: u64, policies: usize, backends: usize) -> String {
    let backends = |p: usize| {
        let one = |b: usize| {
            format!(
                r#"{{"name":"pod-{p}-{b}","endpoint":"10.{}.{}.{}:8080"}}"#,
                1 + p / 200,
                p % 200,
                b + 1
            )
        };
        (0..backends).map(one).collect::<Vec<_>>().join(",")
    };
    let policies: Vec<String> = (0..policies)
        .map(|p| {
            let port = 1_024 + p;
            format!(r#"{{"name":"team-{p}/web-{p}/http","frontends":["0.0.0.0:{port}"],"backends":[{}]}}"#, backends(p))
        })
        .collect();
    format!(r#"{{"generation":{generation},"policies":[{}]}}"#, policies.join(","))
}

#[tokio::test]
async fn the_operator_does_everything_over_tls_and_nobody_else_anything() {
    let (lab, authority) = (lab().await, Authority::new());
    let server = dataplane(&authority);
    let address = open(&lab, Door::Tls(Arc::clone(&server))).await;
    let connect = |client: Client| async move {
        let stream = TcpStream::connect(address).await.expect("connected");
        client.connect(Name::Dataplane, stream).await
    };
    let stream = connect(operator(&authority)).await.expect("taken");
    let put = ask(stream, Method::PUT, "/v1/snapshot", snapshot(3, 1)).await;
    assert_eq!(put.expect("answered").0, StatusCode::OK);
    let stream = connect(operator(&authority)).await.expect("taken");
    let (status, text) =
        ask(stream, Method::GET, "/v1/snapshot", String::new()).await.expect("answered");
    assert_eq!(status, StatusCode::OK);
    let there: Snapshot = serde_json::from_str(&text).expect("a snapshot");
    let sent: Snapshot = serde_json::from_str(&snapshot(3, 1)).expect("a snapshot");
    assert_eq!(there, sent);

    // Not TLS at all; then another authority's operator.
    let stream = TcpStream::connect(address).await.expect("connected");
    let plain = ask(stream, Method::GET, "/healthz", String::new()).await;
    assert!(plain.is_err(), "{plain:?}");
    let other = Authority::new();
    let mut believer = Authority::new();
    believer.pem.clone_from(&authority.pem);
    let stranger = believer.material(&other.pair(Name::Operator));
    let stranger = Client::new(Name::Operator, stranger).expect("a client");
    let stream = connect(stranger).await.expect("its own part succeeds");
    let error = ask(stream, Method::GET, "/v1/state", String::new()).await.expect_err("refused");
    let told = Refusal::find(&error).expect("a refusal in the error of the HTTP client");
    assert_eq!(told.reason, Reason::RefusedByPeer, "{told}");

    assert_eq!(server.counts().accepted(), 2);
    assert_eq!(server.counts().refused(Reason::Protocol), 1);
    assert_eq!(server.counts().refused(Reason::UnknownAuthority), 1);
}

#[tokio::test]
async fn handshakes_are_counted_in_the_metrics() {
    let authority = Authority::new();
    let server = dataplane(&authority);
    let health = Arc::new(Health::default());
    let config = crate::config::Config::parse(
        std::path::Path::new("test.yaml"),
        "interface: eth0\nkeys: {directory: k}\n",
    )
    .expect("good");
    let metrics = Metrics::new(&config, "native", health, Some(Arc::clone(&server)));
    let metrics = metrics.expect("metrics");
    let (mut ours, theirs) = duplex(1 << 10);
    ours.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("sent");
    server.accept(theirs).await.expect_err("refused");
    let text = metrics.render(Scrape::default()).expect("text");
    let text = String::from_utf8(text).expect("text");
    for line in [
        "baton_dataplane_control_tls_handshakes_total{result=\"accepted\"} 0",
        "baton_dataplane_control_tls_handshakes_total{result=\"protocol\"} 1",
        "baton_dataplane_control_tls_handshakes_total{result=\"wrong_name\"} 0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn probes_get_health_and_metrics_and_nothing_else() {
    let lab = lab().await;
    let address = open(&lab, Door::Probes).await;
    assert_eq!(get(address, "/healthz").await.0, StatusCode::OK);
    let (status, text) = get(address, "/readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(text.contains("the operator's first push is waited for"), "{text}");
    for path in ["/v1/state", "/v1/flows", "/v1/snapshot", "/v1/drain", "/v1/events", "/v1/migrate"]
    {
        let (status, text) = get(address, path).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
        let error: ErrorReply = serde_json::from_str(&text).expect("an error");
        assert_eq!(error.expected.as_deref(), Some("/healthz, /readyz, /metrics"));
    }
    for (method, path, status) in [
        (Method::PUT, "/v1/snapshot", StatusCode::NOT_FOUND),
        (Method::POST, "/v1/drain", StatusCode::NOT_FOUND),
        (Method::PUT, "/metrics", StatusCode::METHOD_NOT_ALLOWED),
    ] {
        let stream = TcpStream::connect(address).await.expect("connected");
        let answer = ask(stream, method, path, snapshot(1, 1)).await;
        assert_eq!(answer.expect("answered").0, status, "{path}");
    }
    assert!(!lab.control.snapshots.is_applied());

    // A flood of scrapes asks the worker once a second at most: a later change shows at the other
    // door only.
    let (status, first) = get(address, "/metrics").await;
    assert_eq!(status, StatusCode::OK);
    assert!(first.contains("baton_dataplane_worker_up 1"), "{first}");
    let again = lab.control.gates.recent(async { panic!("asked again") });
    let again = again.await.into_body().collect().await.expect("a body");
    assert_eq!(again.to_bytes(), first);
}

#[tokio::test]
async fn the_snapshot_in_force_is_told_and_so_is_that_there_is_none() {
    let lab = lab().await;
    let (status, text) = lab.get("/v1/snapshot").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(text.contains("no snapshot is in force yet"), "{text}");
    assert_eq!(lab.put(&snapshot(8, 2)).await.0, StatusCode::OK);
    let (status, text) = lab.get("/v1/snapshot").await;
    assert_eq!(status, StatusCode::OK);
    let there: Snapshot = serde_json::from_str(&text).expect("a snapshot");
    let sent: Snapshot = serde_json::from_str(&snapshot(8, 2)).expect("a snapshot");
    assert_eq!(there, sent);
    // What is told can be pushed again.
    let (status, body) = lab.put(&text).await;
    assert_eq!(status, StatusCode::OK);
    assert!(body.ends_with(b"\"unchanged\":true}"), "{body:?}");
}

#[tokio::test]
async fn the_files_policies_are_nobody_elses() {
    let lab = lab_for(2).await;
    assert_eq!(lab.put(&snapshot(5, 2)).await.0, StatusCode::OK);
    let snapshots = &lab.control.snapshots;
    // One that is refused changes nothing: pushes go on.
    let bad: Snapshot = serde_json::from_str(&snapshot(1, 3)).expect("a snapshot");
    snapshots.take_file(bad.policies).await.expect_err("crowded");
    assert_eq!(lab.put(&snapshot(6, 2)).await.0, StatusCode::OK);

    let good: Snapshot = serde_json::from_str(&snapshot(1, 1)).expect("a snapshot");
    snapshots.take_file(good.policies.clone()).await.expect("taken");
    let (status, body) = lab.put(&snapshot(100, 2)).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let error: ErrorReply = serde_json::from_slice(&body).expect("an error");
    assert!(error.error.contains("the configuration file holds `policies`"), "{error:?}");
    assert_eq!(error.field.as_deref(), Some("policies"));
    let in_force = snapshots.current().expect("a snapshot");
    assert_eq!((in_force.generation, &in_force.policies), (7, &good.policies));

    // The file gives them up: they stay in force until somebody pushes.
    snapshots.leave_to_pushes().await;
    assert_eq!(snapshots.generation(), 7);
    assert_eq!(lab.put(&snapshot(100, 2)).await.0, StatusCode::OK);
}

#[tokio::test]
async fn the_state_says_which_epoch_signs() {
    let lab = lab().await;
    *lab.control.facts.key_epochs.lock().expect("epochs") = vec![9, 8];
    let (_, text) = lab.get("/v1/state").await;
    let reply: StateReply = serde_json::from_str(&text).expect("a state");
    assert_eq!(reply.state.worker.key_epochs, [9, 8]);
    assert_eq!(reply.signing_epoch, Some(9));
    assert!(text.contains("\"signingEpoch\":9"), "{text}");
}

#[tokio::test]
async fn large_snapshots_are_taken() {
    let lab = lab_for(2 * LIMIT_POLICIES as u16).await;
    let text = large(1, LIMIT_POLICIES, 2);
    assert_eq!(lab.put(&text).await.0, StatusCode::OK);
    let (status, body) = lab.put(&large(2, 300, 10)).await;
    assert_eq!(status, StatusCode::OK);
    let reply: SnapshotReply = serde_json::from_slice(&body).expect("a reply");
    // Those that stay had 600, and each wants 8 more of the other 1,448.
    assert_eq!(reply.refused.len(), 300 - 181, "each by itself");
    let for_room = |r: &RefusedPolicy| r.message.contains("limits.backends");
    assert!(reply.refused.iter().all(for_room), "{reply:?}");
}

#[tokio::test]
async fn few_bodies_are_received_at_one_time() {
    let lab = lab().await;
    let address = open(&lab, Door::Plain).await;
    // All places are taken by bodies that do not end.
    let mut held = Vec::new();
    while lab.control.gates.bodies.available_permits() > 0 {
        let mut stream = TcpStream::connect(address).await.expect("connected");
        let head =
            b"PUT /v1/snapshot HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n{";
        stream.write_all(head).await.expect("sent");
        held.push(stream);
        let deadline = Instant::now() + WITHIN;
        while held.len() + lab.control.gates.bodies.available_permits() > 2 {
            assert!(Instant::now() < deadline, "no place was taken");
            time::sleep(Duration::from_millis(1)).await;
        }
    }
    // The next one waits, and gets its place when one gives up.
    let stream = TcpStream::connect(address).await.expect("connected");
    let put = tokio::spawn(ask(stream, Method::PUT, "/v1/snapshot", snapshot(1, 1)));
    assert_eq!(get(address, "/healthz").await.0, StatusCode::OK, "others are answered");
    assert!(!lab.control.snapshots.is_applied());
    drop(held.pop());
    let (status, _) =
        time::timeout(WITHIN, put).await.expect("in time").expect("no panic").expect("answered");
    assert_eq!(status, StatusCode::OK);
}

/// Whoever has no certificate, however many connections it holds and opens anew, keeps the operator
/// out of nothing.
#[tokio::test]
async fn peers_without_a_certificate_hold_up_nobody() {
    let (lab, authority) = (lab().await, Authority::new());
    let server = dataplane(&authority);
    let address = open(&lab, Door::Tls(Arc::clone(&server))).await;
    let mut held = Vec::new();
    for _ in 0..3 * CONNECTIONS_MAX {
        held.push(connect_from("127.0.0.9", address).await);
    }
    for _ in 0..10 {
        held.push(connect_from("127.0.0.9", address).await);
        let stream = TcpStream::connect(address).await.expect("connected");
        let stream = operator(&authority).connect(Name::Dataplane, stream).await;
        let answer = ask(stream.expect("taken"), Method::GET, "/healthz", String::new()).await;
        assert_eq!(answer.expect("answered").0, StatusCode::OK);
    }
    let evicted = lab.control.metrics.connections_evicted.get();
    assert!(evicted >= 2 * CONNECTIONS_MAX as u64, "{evicted}");
}

/// The kubelet's probes, while somebody holds as many connections as he can and opens them anew:
/// from another address, or from the kubelet's own, as processes on a node's network do.
#[tokio::test]
async fn probes_are_answered_whoever_holds_the_port() {
    let lab = lab().await;
    let address = open(&lab, Door::Probes).await;
    for hostile in ["127.0.0.9", "127.0.0.1"] {
        let mut held = Vec::new();
        for _ in 0..60 {
            held.clear();
            for _ in 0..200 {
                held.push(connect_from(hostile, address).await);
            }
            assert_eq!(get(address, "/healthz").await.0, StatusCode::OK);
        }
    }
}

/// A connection from this address of the loopback interface.
async fn connect_from(source: &str, address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    let source = SocketAddr::new(source.parse().expect("an address"), 0);
    socket.bind(source).expect("bound");
    socket.connect(address).await.expect("connected")
}

#[tokio::test]
async fn a_connection_ends_at_its_age() {
    let lab = lab().await;
    time::pause();
    let (ours, theirs) = duplex(64 << 10);
    let control = Arc::clone(&lab.control);
    let peer = "127.0.0.1:1";
    let start = time::Instant::now();
    let serving = tokio::spawn(async move {
        let way = Way { access: Access::Probes, near_pages: false, age_limit: AGE_LIMIT };
        http(theirs, peer, &control, way).await;
    });
    let (mut sender, connection) = client::handshake(TokioIo::new(ours)).await.expect("open");
    tokio::spawn(connection);
    let mut answers = 0;
    loop {
        let request =
            Request::get("/healthz").header("host", "localhost").body(Full::<Bytes>::default());
        let Ok(answer) = sender.send_request(request.expect("a request")).await else {
            break;
        };
        answer.into_body().collect().await.expect("a body");
        answers += 1;
        time::sleep(Duration::from_secs(5)).await;
    }
    serving.await.expect("no panic");
    assert!(start.elapsed() >= AGE_LIMIT, "{:?}", start.elapsed());
    assert!((59..=61).contains(&answers), "{answers}");
}

/// A request as it is written on the wire.
async fn raw(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let request = format!("{request}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    answer
}

#[tokio::test]
async fn no_web_page_gets_in_by_a_name_that_dns_led_here_or_from_another_site() {
    let lab = lab().await;
    let plain = open(&lab, Door::Plain).await;
    let probes = open(&lab, Door::Probes).await;
    let order = "content-type: application/json\r\ncontent-length: 2\r\n";
    let mut refused = 0;
    for (address, request) in [
        (plain, "GET /v1/state HTTP/1.1\r\nhost: evil.example:9900\r\n"),
        (plain, "GET /v1/flows HTTP/1.1\r\nhost: localhost.evil.example\r\n"),
        (plain, "GET /v1/capture HTTP/1.1\r\nhost: evil.example\r\n"),
        (plain, "GET http://evil.example/v1/state HTTP/1.1\r\nhost: localhost\r\n"),
        (plain, "GET /v1/state HTTP/1.0\r\n"),
        (probes, "GET /metrics HTTP/1.1\r\nhost: evil.example\r\n"),
    ] {
        let answer = raw(address, request).await;
        assert!(
            answer.starts_with("HTTP/1.1 421 ") || answer.starts_with("HTTP/1.0 421 "),
            "{answer}"
        );
        assert!(answer.contains("an address or localhost"), "{answer}");
        refused += 1;
    }
    for path in ["/v1/drain", "/v1/migrate"] {
        let request = format!("POST {path} HTTP/1.1\r\nhost: evil.example\r\n{order}");
        let answer = raw(plain, &request).await;
        assert!(answer.starts_with("HTTP/1.1 421 "), "{answer}");
        refused += 1;
    }
    let mut pages = 0;
    for header in ["origin: http://evil.example", "origin: null", "sec-fetch-site: cross-site"] {
        for path in ["/v1/state", "/v1/capture"] {
            let request = format!("GET {path} HTTP/1.1\r\nhost: {plain}\r\n{header}\r\n");
            let answer = raw(plain, &request).await;
            assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
            pages += 1;
        }
    }
    // Programs, and a person who types the address.
    for host in [&*plain.to_string(), "localhost:9900", "127.0.0.1", "[::1]:9900"] {
        let request = format!("GET /v1/state HTTP/1.1\r\nhost: {host}\r\nsec-fetch-site: none\r\n");
        let answer = raw(plain, &request).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    let (_, text) = get(probes, "/metrics").await;
    for (reason, count) in [("host", refused), ("page", pages)] {
        let line = format!(
            "baton_dataplane_control_foreign_requests_total{{reason=\"{reason}\"}} {count}"
        );
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
}
