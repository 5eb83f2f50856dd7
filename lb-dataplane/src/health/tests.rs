//! Checks over real sockets of this machine; the worker is a queue that is looked into.

use super::*;
use crate::{
    commands::{self, Command, Inbox, Notice},
    workers::Workers,
};
use baton_api::{Micros, StatusRange};
use baton_packet::PROXY_LOCAL;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket},
    sync::Notify,
};

/// Far longer than anything here takes.
const DEADLINE: Duration = Duration::from_secs(20);

/// A server whose answer to everything is these bytes, then it closes.
async fn answering(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(answer).await;
        }
    });
    address
}

/// A server that answers with this status, and counts.
#[derive(Default)]
struct Server {
    status: AtomicU16,
    asked: AtomicUsize,
}

async fn switchable(status: u16) -> (SocketAddr, Arc<Server>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let server = Arc::new(Server::default());
    server.status.store(status, Ordering::Relaxed);
    let shared = Arc::clone(&server);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            shared.asked.fetch_add(1, Ordering::Relaxed);
            let status = shared.status.load(Ordering::Relaxed);
            let answer = format!("HTTP/1.1 {status} Word\r\ncontent-length: 0\r\n\r\n");
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (address, server)
}

fn check(path: Option<&str>) -> ActiveCheck {
    ActiveCheck {
        path: path.map(str::to_owned),
        host: None,
        expect: StatusRange::new(200, 399).into_iter().collect(),
        port: None,
        interval: Micros::from_millis(10),
        jitter_percent: 10,
        timeout: Micros::from_secs(10),
        success_threshold: 2,
        failure_threshold: 3,
    }
}

fn snapshot(backends: &[(&str, SocketAddr)], check: Option<&ActiveCheck>) -> Arc<Snapshot> {
    snapshot_of(&[("web", backends)], check)
}

fn snapshot_of(
    policies: &[(&str, &[(&str, SocketAddr)])],
    check: Option<&ActiveCheck>,
) -> Arc<Snapshot> {
    let backend = |(name, address): &(&str, SocketAddr)| serde_json::json!({"name": name, "endpoint": address.to_string()});
    let policy = |(name, backends): &(&str, &[(&str, SocketAddr)])| {
        let backends: Vec<_> = backends.iter().map(backend).collect();
        serde_json::json!({
            "name": name, "frontends": ["0.0.0.0:80"], "backends": backends, "health": {"active": check},
        })
    };
    let policies: Vec<_> = policies.iter().map(policy).collect();
    let snapshot = serde_json::json!({"generation": 1, "policies": policies});
    Arc::new(serde_json::from_value(snapshot).expect("a snapshot"))
}

/// The checks at work, and the worker's end of the queue.
struct Lab {
    workers: Workers,
    snapshots: watch::Sender<Option<Arc<Snapshot>>>,
    inbox: Inbox,
    failures: Arc<Failures>,
    network: Arc<Health>,
}

impl Lab {
    fn new() -> Self {
        let (workers, mut inboxes) = Workers::new(1).expect("an eventfd");
        let snapshots = watch::Sender::new(None);
        let failures = Arc::new(Failures::default());
        let network = Arc::new(Health::default());
        tokio::spawn(run(
            workers.clone(),
            Arc::clone(&network),
            Arc::clone(&failures),
            snapshots.subscribe(),
            20_000..=32_767,
            SteeredPorts::default(),
        ));
        Self { workers, snapshots, inbox: inboxes.remove(0), failures, network }
    }

    fn apply(&self, snapshot: Arc<Snapshot>) {
        self.snapshots.send_replace(Some(snapshot));
    }

    /// The next verdict that the worker is told.
    async fn told(&mut self) -> (Endpoint, Option<bool>) {
        let next = async {
            loop {
                match self.inbox.next() {
                    Some(Command::Notice(Notice::Health { policy, backend, healthy })) => {
                        assert_eq!(policy, "web");
                        return (backend, healthy);
                    }
                    Some(_) => panic!("another command"),
                    None => time::sleep(Duration::from_millis(1)).await,
                }
            }
        };
        time::timeout(DEADLINE, next).await.expect("told in time")
    }
}

async fn until(what: &str, good: impl Fn() -> bool) {
    let wait = async {
        while !good() {
            time::sleep(Duration::from_millis(1)).await;
        }
    };
    time::timeout(DEADLINE, wait).await.expect(what);
}

#[tokio::test]
async fn the_worker_is_told_each_turn_and_only_these() {
    let (address, server) = switchable(200).await;
    let mut lab = Lab::new();
    lab.apply(snapshot(&[("a", address)], Some(&check(Some("/healthz")))));
    assert_eq!(lab.told().await.1, Some(true));
    server.status.store(503, Ordering::Relaxed);
    assert_eq!(lab.told().await.1, Some(false));
    let mut policy = crate::status::samples::reply().state.policies.remove(0);
    policy.backends[0].endpoint = address.to_string().parse().expect("an endpoint");
    policy.backends[0].health = baton_api::BackendHealth::Unhealthy(None);
    lab.failures.explain(&mut policy);
    assert_eq!(
        policy.backends[0].health.to_string(),
        "unhealthy: GET /healthz: 503, expected 200-399"
    );
    server.status.store(301, Ordering::Relaxed);
    assert_eq!(lab.told().await.1, Some(true));
    let before = server.asked.load(Ordering::Relaxed);
    until("more checks", || server.asked.load(Ordering::Relaxed) > before + 5).await;
    assert!(lab.inbox.next().is_none(), "nothing turned");
}

/// A flap of the dataplane's own link had all backends unhealthy at once, and back one by one.
#[tokio::test]
async fn what_fails_while_the_own_interface_is_down_says_nothing_of_a_backend() {
    let (address, server) = switchable(200).await;
    let mut lab = Lab::new();
    lab.apply(snapshot(&[("a", address)], Some(&check(Some("/healthz")))));
    assert_eq!(lab.told().await.1, Some(true));
    let asked = |more: usize| {
        let server = Arc::clone(&server);
        let before = server.asked.load(Ordering::Relaxed);
        async move {
            let asked = || server.asked.load(Ordering::Relaxed) > before + more;
            until("more checks", asked).await;
        }
    };
    let link = |up: bool| {
        lab.network.link_up.store(up, Ordering::Relaxed);
        lab.network.link_changes.fetch_add(1, Ordering::Relaxed);
    };
    link(false);
    server.status.store(503, Ordering::Relaxed);
    asked(10).await;
    assert!(lab.inbox.next().is_none(), "nobody knows");
    // Up again, as it was, and none was asked in between.
    server.status.store(200, Ordering::Relaxed);
    asked(2).await;
    link(true);
    asked(10).await;
    assert!(lab.inbox.next().is_none(), "nothing turned");
    server.status.store(503, Ordering::Relaxed);
    assert_eq!(lab.told().await.1, Some(false));
}

/// One whose answer was on its way while the link was down and up again.
#[tokio::test]
async fn nor_does_what_failed_across_a_flap() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let mut lab = Lab::new();
    lab.apply(snapshot(&[("a", address)], Some(&check(Some("/healthz")))));
    let (stream, _) = listener.accept().await.expect("a check");
    lab.network.link_changes.fetch_add(2, Ordering::Relaxed);
    drop(stream);
    let (second, _) = listener.accept().await.expect("another check");
    assert!(lab.inbox.next().is_none(), "nobody knows");
    drop(second);
    assert_eq!(lab.told().await.1, Some(false));
}

#[tokio::test]
async fn snapshots_start_keep_restart_and_end_checks() {
    let (a, server_a) = switchable(503).await;
    let (b, server_b) = switchable(200).await;
    let end = |address: SocketAddr| Endpoint::new(address.ip(), address.port()).expect("a port");
    let mut lab = Lab::new();
    // One failure decides at the start; afterwards a hundred successes would be needed to turn.
    let slow = ActiveCheck { success_threshold: 100, ..check(Some("/")) };
    lab.apply(snapshot(&[("a", a)], Some(&slow)));
    assert_eq!(lab.told().await, (end(a), Some(false)));
    server_a.status.store(200, Ordering::Relaxed);

    // Another backend, another name: the first check goes on, and its verdict is told again, as the
    // worker may have forgotten it. Were it restarted, the first success would turn it.
    lab.apply(snapshot(&[("renamed", a), ("b", b)], Some(&slow)));
    assert_eq!(lab.told().await, (end(a), Some(false)));
    assert_eq!(lab.told().await, (end(b), Some(true)));
    let before = server_a.asked.load(Ordering::Relaxed);
    until("three more checks", || server_a.asked.load(Ordering::Relaxed) > before + 3).await;
    assert!(lab.inbox.next().is_none(), "the first check was restarted");

    // A changed check starts afresh: its first result decides again.
    let changed = ActiveCheck { path: Some("/other".into()), ..slow };
    lab.apply(snapshot(&[("renamed", a)], Some(&changed)));
    assert_eq!(lab.told().await, (end(b), None), "no longer checked");
    assert_eq!(lab.told().await, (end(a), Some(false)), "until it is known");
    assert_eq!(lab.told().await, (end(a), Some(true)));

    lab.apply(snapshot(&[("renamed", a)], None));
    assert_eq!(lab.told().await, (end(a), None));
    // Nobody asks any more: what is in flight ends, then nothing comes.
    let counts = || [&server_a, &server_b].map(|s| s.asked.load(Ordering::Relaxed));
    time::sleep(Duration::from_millis(100)).await;
    let asked = counts();
    time::sleep(Duration::from_millis(100)).await;
    assert_eq!(counts(), asked);
}

#[tokio::test]
async fn a_worker_that_was_stuck_learns_that_a_check_is_no_more() {
    let (address, _) = switchable(503).await;
    let mut lab = Lab::new();
    lab.apply(snapshot(&[("a", address)], Some(&check(Some("/")))));
    assert_eq!(lab.told().await.1, Some(false));
    // Fills its queue, until it counts as stuck.
    while let Ok(Ok(())) =
        time::timeout(Duration::from_millis(50), lab.workers.tell(Notice::Spin(true))).await
    {}
    lab.apply(snapshot(&[("a", address)], None));
    time::sleep(commands::ANSWER_LIMIT + Duration::from_millis(300)).await;
    while let Some(command) = lab.inbox.next() {
        assert!(matches!(command, Command::Notice(Notice::Spin(_))));
    }
    assert_eq!(lab.told().await.1, None);
}

#[tokio::test]
async fn more_backends_than_checks_at_one_time_wait_for_their_turn() {
    let listener = TcpListener::bind("0.0.0.0:0").await.expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let open = Arc::new(AtomicUsize::new(0));
    let go = Arc::new(Notify::new());
    let (counter, gate) = (Arc::clone(&open), Arc::clone(&go));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counter.fetch_add(1, Ordering::Relaxed);
            let gate = Arc::clone(&gate);
            tokio::spawn(async move {
                gate.notified().await;
                let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n").await;
            });
        }
    });
    const BACKENDS: usize = CHECKS_MAX + 40;
    let names: Vec<String> = (0..BACKENDS).map(|i| format!("b{i}")).collect();
    let backends: Vec<(&str, SocketAddr)> = names
        .iter()
        .enumerate()
        .map(|(i, name)| {
            let address = [127, 1, (i / 256) as u8, (i % 256) as u8];
            (name.as_str(), SocketAddr::from((address, 80)))
        })
        .collect();
    let lab = Lab::new();
    let check = ActiveCheck {
        port: Some(port),
        interval: Micros::from_secs(3_600),
        timeout: Micros::from_secs(3_600),
        ..check(Some("/"))
    };
    let opened = || open.load(Ordering::Relaxed);
    // One policy alone has its share.
    lab.apply(snapshot(&backends, Some(&check)));
    until("the share taken", || opened() >= CHECKS_PER_POLICY).await;
    time::sleep(SPREAD_MAX.min(Duration::from_millis(400))).await;
    assert_eq!(opened(), CHECKS_PER_POLICY, "more than one policy's share");
    let names: Vec<String> = (0..BACKENDS).map(|i| format!("p{i}")).collect();
    let policies: Vec<_> = std::iter::zip(&names, backends.chunks(CHECKS_PER_POLICY))
        .map(|(name, backends)| (name.as_str(), backends))
        .collect();
    open.store(0, Ordering::Relaxed);
    lab.apply(snapshot_of(&policies, Some(&check)));
    until("all turns taken", || opened() >= CHECKS_MAX).await;
    time::sleep(SPREAD_MAX.min(Duration::from_millis(400))).await;
    assert_eq!(opened(), CHECKS_MAX, "more than the limit at one time");
    until("the rest", || {
        go.notify_waiters();
        opened() == BACKENDS
    })
    .await;
}

fn probe(target: SocketAddr, check: ActiveCheck) -> Probe {
    Probe { target, check, header: false }
}

/// A server that takes connections with a header only, and one that takes none with it.
#[tokio::test]
async fn servers_are_greeted_as_they_expect_and_a_wrong_guess_is_named() {
    const GOOD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    let source = Source::new(20_000..=32_767, SteeredPorts::default());
    for expects in [true, false] {
        let server = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let target = server.local_addr().expect("its address");
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = server.accept().await.expect("a connection");
                let mut read = [0; 16];
                let _ = stream.read_exact(&mut read).await;
                let right = (read == PROXY_LOCAL) == expects;
                let answer = if right { GOOD } else { b"" };
                let _ = stream.write_all(answer).await;
                let _ = stream.shutdown().await;
                // What is unread would be a reset.
                let _ = stream.read_to_end(&mut Vec::new()).await;
            }
        });
        for header in [true, false] {
            let probe = Probe { header, ..probe(target, check(Some("/healthz"))) };
            let outcome = probe.ask(&source).await;
            match &outcome {
                Outcome::Good => assert_eq!(header, expects),
                Outcome::Bad(why) => {
                    let named = why.contains("without the PROXY header it answers");
                    assert!(header != expects && named == header, "{why}");
                }
                Outcome::NotAsked(why) => panic!("{why}"),
            }
        }
        let connect = Probe { header: true, ..probe(target, check(None)) };
        assert_eq!(connect.ask(&source).await, Outcome::Good);
    }
}

#[tokio::test]
async fn each_failure_is_told_in_words() {
    let source = Source::new(20_000..=32_767, SteeredPorts::default());
    let ask =
        async |target: SocketAddr, check: ActiveCheck| probe(target, check).ask(&source).await;
    // Bound and never listening: nobody else gets this port meanwhile.
    let unheard = TcpSocket::new_v4().expect("a socket");
    unheard.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
    let closed = unheard.local_addr().expect("its address");
    let cases: [(&[u8], Outcome); 7] = [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", Outcome::Good),
        (b"HTTP/1.0 302 Found\r\nlocation: /login\r\n\r\n", Outcome::Good),
        // Longer than is read: closed in the middle, and good.
        (concat_long(), Outcome::Good),
        (
            b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n",
            Outcome::Bad("GET /healthz: 503, expected 200-399".into()),
        ),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\nonly",
            Outcome::Bad("GET /healthz: 200, but its body broke off: ".into()),
        ),
        (b"SSH-2.0-OpenSSH\r\n", Outcome::Bad("GET /healthz: 127.0.0.1:".into())),
        (b"", Outcome::Bad("GET /healthz: 127.0.0.1:".into())),
    ];
    for (answer, expected) in cases {
        let target = answering(answer).await;
        let outcome = ask(target, check(Some("/healthz"))).await;
        match (&outcome, &expected) {
            (Outcome::Bad(why), Outcome::Bad(start)) => assert!(why.starts_with(start), "{why}"),
            _ => assert_eq!(outcome, expected, "{}", String::from_utf8_lossy(answer)),
        }
    }
    assert_eq!(ask(answering(b"").await, check(None)).await, Outcome::Good);
    let Outcome::Bad(why) = ask(closed, check(None)).await else {
        panic!("nobody listens there");
    };
    let start = format!("TCP connect: {closed}: Connection refused");
    assert!(why.starts_with(&start), "{why}");

    // Accepted by the kernel, never answered.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let target = silent.local_addr().expect("its address");
    let short = ActiveCheck { timeout: Micros::from_millis(20), ..check(Some("/healthz")) };
    assert_eq!(
        ask(target, short).await,
        Outcome::Bad(format!("GET /healthz: no answer from {target} within 20ms"))
    );

    // This machine's own trouble is not the backend's.
    let source = Source::new(1_024..=u16::MAX, SteeredPorts::default());
    let check = check(None);
    let outcome = probe(target, check).ask(&source).await;
    assert!(matches!(outcome, Outcome::NotAsked(_)), "{outcome:?}");
}

/// A good head, and a body that goes on for ever as far as a check is concerned.
fn concat_long() -> &'static [u8] {
    let mut answer = b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n".to_vec();
    answer.resize(64 << 10, b'x');
    answer.leak()
}
