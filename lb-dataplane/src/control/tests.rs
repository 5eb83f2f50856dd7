//! The control API over a real socket, against a worker that is a plain thread with made-up
//! figures.

use super::{
    figures_tests::figures,
    serve::{CONNECTIONS_MAX, Door, bind, serve},
    *,
};
use crate::{
    capture::Tap,
    commands::{self, Command, Notice},
    config::Config,
};
use baton_api::{
    ErrorReply, EventCursor, FlowEvent, FlowEvents, FlowView, FlowsReply, LIMIT_POLICIES, Micros,
    MigrateReply, Snapshot, SnapshotReply,
};
use baton_engine::{Migrate, MigrateError};
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, StatusCode, body::Bytes, client::conn::http1 as client};
use hyper_util::rt::TokioIo;
use std::{net::SocketAddr, path::Path, sync::atomic::AtomicBool, thread};
use tokio::net::TcpStream;

/// Flows of the fake worker.
const FLOWS: u32 = 1_500;

pub(super) struct Lab {
    pub(super) control: Arc<Control>,
    address: SocketAddr,
    /// The fake worker stops turning while this is true.
    stuck: Arc<AtomicBool>,
}

pub(super) fn endpoint(text: &str) -> baton_api::Endpoint {
    text.parse().expect("an endpoint")
}

fn flow(i: u32) -> FlowView {
    FlowView {
        client: SocketAddr::from(([10, 1, (i >> 8) as u8, i as u8], 4_000)),
        frontend: endpoint("10.0.0.1:80"),
        policy: "web".to_owned(),
        backend: ["a", "b", "a/ipv6"][i as usize % 3].to_owned(),
        port: 20_000,
        state: "Idle".to_owned(),
        migrations: 0,
        quiet: Micros(5),
        pinned: None,
        last_move: None,
        asked_to: None,
    }
}

/// The ring of the fake worker has numbers 500 to 5,000.
fn events(since: Option<u64>, max: usize) -> FlowEvents {
    const LAST: u64 = 5_000;
    let since = since.unwrap_or(LAST);
    let first = (since + 1).max(500);
    let end = LAST.min(first + max as u64 - 1);
    let event = |seq| FlowEvent {
        seq,
        worker: 0,
        at_micros: seq,
        event: "moved".to_owned(),
        client: SocketAddr::from(([10, 1, 0, 1], seq as u16)),
        frontend: None,
        policy: if seq % 2 == 0 { "db" } else { "web" }.to_owned(),
        cause: None,
        reason: None,
        from: None,
        to: None,
    };
    FlowEvents {
        now_micros: LAST,
        unix_micros: 0,
        next: EventCursor(vec![end.max(since)]),
        missed: first - since - 1,
        more: end < LAST,
        events: (first..=end).map(event).collect(),
    }
}

/// Knows one client.
fn migrated(wanted: Migrate) -> Result<MigrateReply, MigrateError> {
    if wanted.client != SocketAddr::from(([10, 1, 0, 1], 1)) {
        return Err(MigrateError::NoFlow(wanted.client));
    }
    let to = wanted.to.ok_or(MigrateError::Moving)?;
    Ok(MigrateReply {
        policy: "web".to_owned(),
        from: "a".to_owned(),
        to: Some(to),
        begun: wanted.frontend.is_some(),
    })
}

fn fake_worker(mut inbox: commands::Inbox, stuck: &AtomicBool) {
    let mut generation = 0;
    // Kept until the capture ends, as by the worker.
    let mut tapped: Vec<Box<Tap>> = Vec::new();
    loop {
        if !stuck.load(Ordering::Relaxed) {
            inbox.beat(clock::now().0);
            match inbox.next() {
                Some(Command::Apply(snapshot, _, answer)) => {
                    generation = snapshot.generation();
                    let _ = answer.send((Ok(()), snapshot));
                }
                Some(Command::Steering(ends, answer)) => {
                    let _ = answer.send(ends);
                }
                Some(Command::Report(answer)) => {
                    let _ = answer.send(figures(generation));
                }
                Some(Command::Flows(cursor, max, answer)) => {
                    let end = FLOWS.min(cursor + u32::try_from(max).expect("small"));
                    let next = (end < FLOWS).then_some(end);
                    let _ = answer.send(((cursor..end).map(flow).collect(), next));
                }
                Some(Command::Drain { policy, backend, on, answer }) => {
                    let _ = answer.send(match (policy, on) {
                        (Some(_), _) => Ok(1),
                        (None, true) => Ok(2),
                        (None, false) => Err(format!("no backend is named `{backend}`")),
                    });
                }
                Some(Command::Capture(tap, answer)) => {
                    let _ = answer.send(tapped.pop());
                    tapped.extend(tap);
                    tapped.iter_mut().for_each(|tap| capture_tests::feed(tap));
                }
                Some(Command::Migrate(wanted, answer)) => {
                    let _ = answer.send(migrated(wanted));
                }
                Some(Command::Events(since, max, answer)) => {
                    let _ = answer.send(events(since, max));
                }
                Some(Command::Notice(Notice::Stop)) => return,
                Some(_) => {}
                None => thread::sleep(Duration::from_millis(1)),
            }
        } else {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn worker_state() -> WorkerState {
    WorkerState { interface: "eth0".to_owned(), workers: 1, ..WorkerState::default() }
}

pub(super) async fn lab() -> Lab {
    lab_for(4_096).await
}

/// With room for so many backends.
pub(super) async fn lab_for(backends: u16) -> Lab {
    let file = format!(
        "interface: eth0\nkeys: [{{epoch: 3, file: k}}]\nports: 20000-20063\nlimits: {{backends: {backends}}}\n"
    );
    let config = Config::parse(Path::new("test.yaml"), &file).expect("good");
    let (workers, mut inboxes) = Workers::new(1).expect("an eventfd");
    let inbox = inboxes.remove(0);
    let stuck = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stuck);
    thread::spawn(move || fake_worker(inbox, &seen));
    let health = Arc::new(Health::default());
    let own = vec!["10.0.0.1".parse().expect("an address")];
    let (steerer, _) = steering_tests::steerer(own.clone());
    let control = Arc::new(Control {
        snapshots: Snapshots::new(workers.clone(), config.clone(), own, || Ok(Vec::new()), steerer),
        metrics: Metrics::new(&config, "native", Arc::clone(&health), None).expect("metrics"),
        health,
        failures: Arc::default(),
        facts: Facts::new(worker_state(), vec![3]),
        workers,
        tls: None,
        gates: Gates::default(),
    });
    let listener = bind("control", "127.0.0.1:0".parse().expect("an address")).expect("a port");
    let address = listener.local_addr().expect("its address");
    tokio::spawn(serve(listener, Arc::clone(&control), Door::Plain));
    let lab = Lab { control, address, stuck };
    // The fake worker's first turn.
    while lab.control.workers.beat_us() == 0 {
        tokio::task::yield_now().await;
    }
    lab
}

impl Lab {
    /// Where its plain port is.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    async fn ask(&self, method: Method, path: &str, body: impl Into<Bytes>) -> (StatusCode, Bytes) {
        let (head, body) = self.ask_all(method, path, body).await;
        (head.status, body)
    }

    async fn ask_all(
        &self,
        method: Method,
        path: &str,
        body: impl Into<Bytes>,
    ) -> (hyper::http::response::Parts, Bytes) {
        self.ask_with(method, path, &[], body).await
    }

    /// With these headers.
    pub(super) async fn ask_with(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> (hyper::http::response::Parts, Bytes) {
        let stream = TcpStream::connect(self.address).await.expect("connected");
        let (mut sender, connection) =
            client::handshake(TokioIo::new(stream)).await.expect("a handshake");
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).expect("a request");
        let answer = sender.send_request(request).await.expect("an answer");
        let (head, body) = answer.into_parts();
        let body = body.collect().await.expect("a body");
        (head, body.to_bytes())
    }

    pub(super) async fn get(&self, path: &str) -> (StatusCode, String) {
        let (status, body) = self.ask(Method::GET, path, "").await;
        (status, String::from_utf8(body.to_vec()).expect("text"))
    }

    pub(super) async fn put(&self, snapshot: &str) -> (StatusCode, Bytes) {
        self.ask(Method::PUT, "/v1/snapshot", snapshot.to_owned()).await
    }

    async fn refused(&self, snapshot: &str) -> (StatusCode, ErrorReply) {
        let (status, body) = self.put(snapshot).await;
        (status, serde_json::from_slice(&body).expect("an error"))
    }
}

pub(super) fn snapshot(generation: u64, backends: usize) -> String {
    let backends: Vec<String> =
        (0..backends).map(|i| format!(r#"{{"name":"b{i}","endpoint":"10.0.1.{i}:80"}}"#)).collect();
    format!(
        r#"{{"generation":{generation},"policies":[{{"name":"web","frontends":["0.0.0.0:80"],"backends":[{}]}}]}}"#,
        backends.join(",")
    )
}

#[tokio::test]
async fn readiness_needs_a_snapshot_a_link_and_the_gateway() {
    let lab = lab().await;
    assert_eq!(lab.get("/healthz").await.0, StatusCode::OK);
    let (status, text) = lab.get("/readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(text.contains("no snapshot is in force"), "{text}");
    assert!(text.contains("routes have not been read"), "{text}");

    assert_eq!(lab.put(&snapshot(1, 1)).await.0, StatusCode::OK);
    let (_, text) = lab.get("/readyz").await;
    assert!(!text.contains("snapshot"), "{text}");

    let health = &lab.control.health;
    health.routes_read.store(true, Ordering::Relaxed);
    let (_, text) = lab.get("/readyz").await;
    assert!(text.contains("default router"), "{text}");
    health.gateway_resolved.store(true, Ordering::Relaxed);
    assert_eq!(lab.get("/readyz").await, (StatusCode::OK, "ready\n".to_owned()));
    health.link_up.store(false, Ordering::Relaxed);
    let (status, text) = lab.get("/readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(text.contains("eth0 is down"), "{text}");
}

#[tokio::test]
async fn a_stuck_worker_shows_in_health_state_and_metrics() {
    let lab = lab().await;
    lab.stuck.store(true, Ordering::Relaxed);
    let deadline = Instant::now() + Duration::from_secs(10);
    while lab.get("/healthz").await.0 == StatusCode::OK {
        assert!(Instant::now() < deadline, "still healthy");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (status, text) = lab.get("/v1/state").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(text.contains("did not answer"), "{text}");
    let (status, text) = lab.get("/metrics").await;
    assert_eq!(status, StatusCode::OK);
    assert!(text.contains("baton_dataplane_worker_up 0"), "{text}");
    assert!(text.contains("baton_dataplane_ready 0"), "{text}");
}

/// The worker puts it in force although nobody waits for the answer any more, and what comes next
/// builds on that.
#[tokio::test]
async fn a_snapshot_whose_answer_comes_late_is_known_to_be_in_force() {
    let lab = lab().await;
    assert_eq!(lab.put(&snapshot(1, 1)).await.0, StatusCode::OK);
    lab.stuck.store(true, Ordering::Relaxed);
    let (status, _) = lab.put(&snapshot(2, 2)).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(lab.control.snapshots.generation(), 1);
    lab.stuck.store(false, Ordering::Relaxed);
    let (status, body) = lab.put(&snapshot(2, 2)).await;
    assert_eq!(status, StatusCode::OK);
    let reply: SnapshotReply = serde_json::from_slice(&body).expect("a reply");
    assert!(reply.unchanged, "it came into force meanwhile");
    assert_eq!(lab.control.snapshots.generation(), 2);
}

#[tokio::test]
async fn snapshots_are_applied_once_and_never_backwards() {
    let lab = lab().await;
    let (status, body) = lab.put(&snapshot(5, 2)).await;
    assert_eq!(status, StatusCode::OK);
    let reply: SnapshotReply = serde_json::from_slice(&body).expect("a reply");
    assert_eq!((reply.generation, reply.unchanged), (5, false));

    let (status, body) = lab.put(&snapshot(5, 2)).await;
    assert_eq!(status, StatusCode::OK, "a repeated push is no error");
    let reply: SnapshotReply = serde_json::from_slice(&body).expect("a reply");
    assert!(reply.unchanged);

    for (generation, backends) in [(4, 2), (5, 1)] {
        let (status, error) = lab.refused(&snapshot(generation, backends)).await;
        assert_eq!(status, StatusCode::CONFLICT);
        assert_eq!(error.field.as_deref(), Some("generation"));
        assert_eq!(error.expected.as_deref(), Some("more than 5"));
    }
    assert_eq!(lab.control.snapshots.generation(), 5);

    // A changed file comes after whatever was pushed.
    let taken = lab.control.snapshots.take_file(Vec::new()).await;
    assert_eq!(taken, Ok(snapshot::Taken::Applied));
    assert_eq!(lab.control.snapshots.generation(), 6);
}

#[tokio::test]
async fn bad_snapshots_are_refused_with_field_and_expectation() {
    let lab = lab().await;
    let cases = [
        (r#"{"generation":1}"#.to_owned(), ".", None),
        (r#"{"generation":1,"policies":[{"frontends":[]}]}"#.to_owned(), "policies[0]", None),
        (
            snapshot(1, 1).replace("\"name\":\"web\"", "\"name\":\"\""),
            "policies[0].name",
            Some("1 to 143 letters, digits, `-`, `.`, `_` or `/`"),
        ),
    ];
    for (text, field, expected) in cases {
        let (status, error) = lab.refused(&text).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{error:?}");
        assert_eq!(error.field.as_deref(), Some(field), "{error:?}");
        if let Some(expected) = expected {
            let got = error.expected.as_deref().unwrap_or_default();
            assert!(got.starts_with(expected), "{error:?}");
        }
    }
    assert!(!lab.control.snapshots.is_applied());
    let many = format!(
        r#"{{"generation":1,"policies":[{}]}}"#,
        vec![r#"{"name":"x","frontends":[],"backends":[]}"#; LIMIT_POLICIES + 1].join(",")
    );
    let (_, error) = lab.refused(&many).await;
    assert_eq!(error.field.as_deref(), Some("policies[1].name"));

    let (status, error) = lab.refused(&" ".repeat((16 << 20) + 1)).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(error.expected.is_some_and(|e| e.contains("16777216")));
}

/// An operator that is upgraded first must not freeze the dataplanes that are not yet.
#[tokio::test]
async fn of_a_newer_snapshot_what_is_known_comes_into_force() {
    let lab = lab().await;
    assert_eq!(lab.put(&three(1, "0.0.0.0:81", 1)).await.0, StatusCode::OK);
    let newer = three(2, "0.0.0.0:83", 2)
        .replace(r#""name":"kept","#, r#""name":"kept","algorithm":"Newer","#)
        .replace(r#""name":"b0","#, r#""name":"b0","zone":"a","#);
    for unchanged in [false, true] {
        let (status, body) = lab.put(&newer).await;
        assert_eq!(status, StatusCode::OK, "{body:?}");
        let reply: SnapshotReply = serde_json::from_slice(&body).expect("a reply");
        assert_eq!((reply.generation, reply.unchanged), (2, unchanged));
        let [refused] = &reply.refused[..] else {
            panic!("{reply:?}");
        };
        assert_eq!((refused.policy.as_str(), refused.kept), ("kept", true));
        let words = "algorithm: unknown variant `Newer`, expected one of";
        assert!(refused.message.starts_with(words), "{refused:?}");
    }
    let mut served = names(&lab);
    served.sort();
    let expected = [("good", 1), ("kept", 1), ("too", 2)];
    assert_eq!(served, expected.map(|(n, b)| (n.to_owned(), b)));
    let (_, text) = lab.get("/v1/state").await;
    let state: baton_api::StateReply = serde_json::from_str(&text).expect("a state");
    let ignored = state.problems.iter().any(|p| p.contains("Backend.zone"));
    assert!(ignored, "{text}");
    let (_, ready) = lab.get("/readyz").await;
    assert!(!ready.contains("zone"), "{ready}");
    // The next one of its own version leaves nothing of it.
    assert_eq!(lab.put(&three(3, "0.0.0.0:83", 2)).await.0, StatusCode::OK);
    assert!(lab.control.snapshots.refused().is_empty());
    assert!(lab.control.snapshots.ignored().is_empty());
}

/// Three policies; the second wants the dataplane's own leg ports, or whatever `frontend` says.
fn three(generation: u64, frontend: &str, backends: usize) -> String {
    let one = |name: &str, frontend: &str, backends: usize| {
        let backends: Vec<String> = (0..backends)
            .map(|i| format!(r#"{{"name":"b{i}","endpoint":"10.0.1.{i}:80"}}"#))
            .collect();
        let backends = backends.join(",");
        format!(r#"{{"name":"{name}","frontends":["{frontend}"],"backends":[{backends}]}}"#)
    };
    format!(
        r#"{{"generation":{generation},"policies":[{},{},{}]}}"#,
        one("good", "0.0.0.0:80", 1),
        one("kept", frontend, backends),
        one("too", "0.0.0.0:82", 2)
    )
}

fn names(lab: &Lab) -> Vec<(String, usize)> {
    let served = lab.control.snapshots.current().unwrap_or_default();
    let all = served.policies.iter();
    all.map(|p| (p.name.clone(), p.backends.len())).collect()
}

#[tokio::test]
async fn one_bad_policy_of_a_push_is_refused_by_name_and_the_others_are_served() {
    let lab = lab_for(2).await;
    assert_eq!(lab.put(&three(1, "0.0.0.0:81", 1)).await.0, StatusCode::OK);
    let (_, text) = lab.get("/metrics").await;
    let none = "baton_dataplane_snapshot_refused_policies 0";
    assert!(text.lines().any(|l| l == none), "{text}");
    // Its change is refused: where this process listens (`control` is 127.0.0.1), among the legs'
    // ports, too much.
    for (generation, frontend, backends, words) in [
        (2, "127.0.0.1:9900", 1, "127.0.0.1:9900 is where the control API listens"),
        (3, "10.0.0.1:20000", 1, "port 20000 is one of the legs' ports"),
        (4, "0.0.0.0:81", 3, "3 backends are more than limits.backends, 2"),
    ] {
        let sent = three(generation, frontend, backends);
        let (status, body) = lab.put(&sent).await;
        assert_eq!(status, StatusCode::OK, "{body:?}");
        let reply: SnapshotReply = serde_json::from_slice(&body).expect("a reply");
        assert_eq!((reply.generation, reply.unchanged), (generation, false));
        let [refused] = &reply.refused[..] else {
            panic!("{reply:?}");
        };
        assert_eq!((refused.policy.as_str(), refused.kept), ("kept", true));
        assert!(refused.message.contains(words), "{refused:?}");
        // It is the newest; what it says is told, and what is served is the old content of that
        // one.
        assert_eq!(lab.control.snapshots.generation(), generation);
        let (_, text) = lab.get("/v1/snapshot").await;
        let there: Snapshot = serde_json::from_str(&text).expect("a snapshot");
        assert_eq!(there, serde_json::from_str::<Snapshot>(&sent).expect("one"));
        let served = [("good", 1), ("kept", 1), ("too", 2)];
        assert_eq!(names(&lab), served.map(|(n, b)| (n.to_owned(), b)));
        let (_, text) = lab.get("/v1/state").await;
        let state: baton_api::StateReply = serde_json::from_str(&text).expect("a state");
        assert_eq!(state.state.refused, reply.refused);
        let problem = "policy `kept` of the snapshot is refused, what it had before stays in force";
        assert!(state.problems.iter().any(|p| p.starts_with(problem)), "{text}");
        let (_, text) = lab.get("/metrics").await;
        let one = "baton_dataplane_snapshot_refused_policies 1";
        assert!(text.lines().any(|l| l == one), "{text}");
        let (_, ready) = lab.get("/readyz").await;
        assert!(!ready.contains("kept"), "{ready}");
        // Repeated, it says so again.
        let (_, body) = lab.put(&sent).await;
        let again: SnapshotReply = serde_json::from_slice(&body).expect("a reply");
        assert_eq!((again.unchanged, &again.refused), (true, &reply.refused));
        assert_eq!(lab.control.snapshots.try_again().await, Ok(()));
        assert_eq!(lab.control.snapshots.generation(), generation);
    }
    // The file is one person's: it is taken whole or not at all.
    let bad: Snapshot = serde_json::from_str(&three(1, "127.0.0.1:9900", 1)).expect("one");
    let refusal = lab.control.snapshots.take_file(bad.policies).await;
    let refusal = refusal.expect_err("refused").to_string();
    assert!(refusal.starts_with("policies[1].frontends[0]: "), "{refusal}");
    assert_eq!(lab.put(&three(9, "0.0.0.0:81", 2)).await.0, StatusCode::OK);
    assert!(lab.control.snapshots.refused().is_empty());
}

#[tokio::test]
async fn flows_are_filtered_and_limited() {
    let lab = lab().await;
    for (query, count, truncated) in [
        ("", 1_000, true),
        ("?limit=1499", 1_499, true),
        ("?limit=1500", 1_500, false),
        ("?limit=100000", 1_500, false),
        ("?limit=100000&backend=a", 1_000, false),
        ("?limit=100000&backend=a/ipv6", 500, false),
        ("?backend=a&policy=other", 0, false),
        ("?policy=w%65b&limit=2", 2, true),
        ("?client=10.1.0.0/31", 2, false),
        ("?client=10.1.0.7:4000", 1, false),
        ("?client=10.1.0.7:4001", 0, false),
    ] {
        let path = format!("/v1/flows{query}");
        let (head, body) = lab.ask_all(Method::GET, &path, "").await;
        assert_eq!(head.status, StatusCode::OK, "{query}: {body:?}");
        let reply: FlowsReply = serde_json::from_slice(&body).expect("flows");
        assert_eq!((reply.flows.len(), reply.truncated), (count, truncated), "{query}");
    }
    for query in ["?limit=0", "?limit=100001", "?limit=x", "?colour=red", "?client=nobody"] {
        let (status, text) = lab.get(&format!("/v1/flows{query}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{query}");
        let error: ErrorReply = serde_json::from_str(&text).expect("an error");
        assert!(error.field.is_some() && error.expected.is_some(), "{text}");
    }
}

#[tokio::test]
async fn wrong_paths_and_methods_are_told_the_right_ones() {
    let lab = lab().await;
    let (status, text) = lab.get("/v2/state").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(text.contains("/v1/state"), "{text}");
    let (status, body) = lab.ask(Method::POST, "/v1/snapshot", "").await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
    let error: ErrorReply = serde_json::from_slice(&body).expect("an error");
    assert_eq!(error.expected.as_deref(), Some("GET or PUT"));
}

#[tokio::test]
async fn of_too_many_connections_the_oldest_goes_and_is_counted() {
    use tokio::io::AsyncReadExt;
    let lab = lab().await;
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        held.push(TcpStream::connect(lab.address).await.expect("connected"));
    }
    // One more is answered, and the first one, which asked nothing, goes.
    let (status, _) = lab.get("/healthz").await;
    assert_eq!(status, StatusCode::OK);
    let end = tokio::time::timeout(Duration::from_secs(5), held[0].read(&mut [0])).await;
    assert!(matches!(end, Ok(Ok(0) | Err(_))), "{end:?}");
    assert_eq!(lab.control.metrics.connections_evicted.get(), 1);
}
