//! Active checks and drains by command, as an admin meets them: real servers, the real program.
//! Needs root and iproute2.

use crate::common::{Lab, begins, has};
use serde_json::{Value, json};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU16, Ordering},
    },
    thread,
};

/// A server in the backends' namespace whose health can be switched, and which says its name to
/// clients.
#[derive(Default)]
struct Server {
    status: AtomicU16,
    checked_from: Mutex<Vec<SocketAddr>>,
}

impl Server {
    fn start(lab: &Lab, name: &'static str, port: u16) -> Arc<Self> {
        let listener = lab.within("b", || TcpListener::bind(("10.77.0.3", port)).expect("a port"));
        let server = Arc::new(Self::default());
        server.status.store(200, Ordering::Relaxed);
        let shared = Arc::clone(&server);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = Arc::clone(&shared);
                thread::spawn(move || server.serve(stream, name));
            }
        });
        server
    }

    /// Answers requests until the peer closes.
    fn serve(&self, mut stream: TcpStream, name: &str) {
        let peer = stream.peer_addr();
        while let Some(head) = request(&mut stream) {
            let answer = if head.starts_with("GET /healthz ") {
                has(&head, "host: health.example\r\n");
                if let (Ok(peer), Ok(mut all)) = (&peer, self.checked_from.lock()) {
                    all.push(*peer);
                }
                let status = self.status.load(Ordering::Relaxed);
                format!("HTTP/1.1 {status} Word\r\ncontent-length: 0\r\n\r\n")
            } else {
                format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}", name.len())
            };
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    fn set(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }
}

/// The head of the next request, in lower case but for the first line.
fn request(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

/// Who answers a request on this connection.
fn ask(stream: &mut TcpStream) -> String {
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").expect("sent");
    let head = request(stream).expect("an answer");
    has(&head, "content-length: 1\r\n");
    let mut name = [0];
    stream.read_exact(&mut name).expect("a body");
    char::from(name[0]).to_string()
}

/// Who serves each of some new connections.
fn served(lab: &Lab) -> Vec<String> {
    (0..20).map(|_| ask(&mut lab.client())).collect()
}

const POLICY: &str = "  - name: web
    frontends: ['0.0.0.0:80']
    algorithm: WeightedRoundRobin
    protocol: None
    backends:
      - {name: a, endpoint: '10.77.0.3:8080'}
      - {name: b, endpoint: '10.77.0.3:8090'}
";

const HEALTH: &str = "    health:
      active: {path: /healthz, host: health.example, expect: [200-399], interval: 100ms, timeout: 100ms}
";

fn state(text: &str, backend: usize) -> Value {
    let state: Value = serde_json::from_str(text).unwrap_or_default();
    state["policies"][0]["backends"][backend].clone()
}

#[test]
fn active_checks_decide_who_gets_connections() {
    let lab = Lab::new();
    let a = Server::start(&lab, "a", 8080);
    let b = Server::start(&lab, "b", 8090);
    b.set(503);
    lab.configure(&format!("{POLICY}{HEALTH}"));
    let dataplane = lab.start();
    lab.wait("ready", "/readyz", |status, _| status == 200);
    let health = |what: &str, index: usize, wanted: Value| {
        lab.wait(what, "/v1/state", |_, text| state(text, index)["health"] == wanted);
    };

    // The first check decides by itself, and says why.
    let fails = "GET /healthz: 503, expected 200-399";
    health("b is found unhealthy", 1, json!({"unhealthy": fails}));
    assert!(served(&lab).iter().all(|name| name == "a"));
    let (code, text) = lab.tool("status");
    assert_eq!(code, Some(0), "one backend is left: {text}");
    let words: Vec<&str> = text.split_whitespace().collect();
    let words = words.join(" ");
    assert!(
        words.contains(&format!("Worth a look: - backend `b` of `web` is unhealthy: {fails}")),
        "{text}"
    );
    let (_, metrics) = lab.get("/metrics");
    for line in [
        "baton_dataplane_backend_up{policy=\"web\",backend_pod=\"a\"} 1",
        "baton_dataplane_backend_up{policy=\"web\",backend_pod=\"b\"} 0",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line}: {metrics}");
    }

    // Working again, it gets its share again.
    b.set(204);
    health("b is healthy again", 1, json!("up"));
    let names = served(&lab);
    for name in ["a", "b"] {
        assert!(names.iter().any(|n| n == name), "{names:?}");
    }

    // None is left: that is a reason for exit code 1, but better all than none.
    a.set(500);
    b.set(500);
    for (index, code) in [(0, 500), (1, 500)] {
        let fails = format!("GET /healthz: {code}, expected 200-399");
        health("both fail", index, json!({"unhealthy": fails}));
    }
    let (code, text) = lab.tool("status");
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.starts_with(
            "It does NOT work as it should:\n  - policy `web`: none of its 2 backends"
        ),
        "{text}"
    );
    assert_eq!(served(&lab).len(), 20, "panic mode");

    // Without a check, nothing speaks against them.
    lab.configure(POLICY);
    health("no check any more", 0, json!("up"));
    health("no check any more", 1, json!("up"));
    assert_eq!(lab.tool("status").0, Some(0));

    // Checks come from the dataplane's own address, by ports that are not the legs'.
    for server in [&a, &b] {
        let from = server.checked_from.lock().expect("no panic");
        assert!(from.len() > 3, "{from:?}");
        for peer in from.iter() {
            assert_eq!(peer.ip().to_string(), "10.77.0.2");
            assert!(!(20_000..=32_767).contains(&peer.port()), "{peer}");
        }
    }
    assert_eq!(dataplane.end(), Some(0));
}

#[test]
fn a_drain_by_command_holds_until_it_is_taken_back() {
    let lab = Lab::new();
    Server::start(&lab, "a", 8080);
    Server::start(&lab, "b", 8090);
    lab.configure(POLICY);
    let dataplane = lab.start();
    lab.wait("ready", "/readyz", |status, _| status == 200);
    let mut held = lab.client();
    while ask(&mut held) != "b" {
        held = lab.client();
    }

    let (code, _, text) = lab.tool_all("drain nobody");
    assert_eq!(code, Some(1), "{text}");
    has(&text, "no policy has a backend nobody: expected one of a, b");
    let (code, _, text) = lab.tool_all("drain b --policy db");
    assert_eq!(code, Some(1), "{text}");
    has(&text, "expected one of web");

    let (code, text, _) = lab.tool_all("drain b");
    assert_eq!(code, Some(0), "{text}");
    begins(&text, "b drains on 1 dataplane: no new connections");
    assert!(served(&lab).iter().all(|name| name == "a"));
    assert_eq!(ask(&mut held), "b", "an open connection is served on");
    let (code, text) = lab.tool("status");
    assert_eq!(code, Some(0), "a drain is no fault: {text}");
    has(&text, "b drains by command: 1 flow left");

    // It holds across a change of the configuration.
    lab.configure(&POLICY.replace("protocol: None", "protocol: None\n    slowStart: 1s"));
    lab.wait("the next generation", "/v1/state", |_, text| text.contains("\"generation\":2"));
    let (_, text) = lab.get("/v1/state");
    assert_eq!(state(&text, 1)["drain"]["byCommand"], true, "{text}");

    // Nobody can adopt here, so the connection stays until it ends.
    let (code, text, progress) = lab.tool_all("drain b --wait --timeout 300ms");
    assert_eq!(code, Some(1), "{text}");
    assert!(progress.contains("b: 1 flow left"), "progress: {progress}");
    assert!(text.contains("b is not empty after ") && text.contains("The drain goes on"), "{text}");
    drop(held);
    let (code, text, progress) = lab.tool_all("drain b --wait");
    assert_eq!(code, Some(0), "{text}{progress}");
    assert!(text.starts_with("b is empty after ") && text.contains("can be stopped: "), "{text}");
    let (code, text, _) = lab.tool_all("drain b --wait -o json");
    let json: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        (code, &json["empty"], &json["progress"]["flows"]),
        (Some(0), &true.into(), &0.into())
    );

    let (code, text, _) = lab.tool_all("drain b --undo");
    assert_eq!((code, text.as_str()), (Some(0), "b is back in service on 1 dataplane.\n"));
    assert!(served(&lab).iter().any(|name| name == "b"));
    let (_, text) = lab.get("/v1/state");
    assert_eq!(state(&text, 1)["draining"], false, "{text}");
    assert_eq!(dataplane.end(), Some(0));
}
