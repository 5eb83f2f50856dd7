//! Ten thousand idle connections leave a pod that drains, in order and soon; what cannot leave
//! ends at the deadline.

use anyhow::{Context, Result, ensure};
use baton_api::{Drain, Micros, Migration, OnDeadline, Protocol};
use baton_lab::{IdleConnections, NginxOptions, Options, Pod, policy};
use baton_ns::{HTTP_PORT, Scene, until};
use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

const CONNECTIONS: usize = 10_000;
const QUIET: Micros = Micros::from_millis(20);
/// What 10,000 connections may take on a machine that answers a request on each of them in half of
/// it; the quiet time is in it. A slower machine has more.
const TIME: Duration = Duration::from_secs(1);

#[test]
fn ten_thousand_idle_connections_leave_in_a_second() -> Result<()> {
    let options = Options::with_pods(3);
    let web = NginxOptions { connections: CONNECTIONS as u32 + 1_000, ..NginxOptions::default() };
    let mut scene = Scene::with_nginx("drain", &options, &web)?;
    scene.config.policies[0].migration = Migration::default();
    scene.config.policies[0].drain = Drain { quiet: QUIET, ..Drain::default() };
    // All of them begin on pod-a.
    for backend in &mut scene.config.policies[0].backends[1..] {
        backend.weight = 0;
    }
    scene.start()?;
    let mut idle = IdleConnections::open(
        scene.lab.client().namespace(),
        scene.address(HTTP_PORT)?,
        CONNECTIONS,
    )?;
    round_is_right(&scene, &mut idle)?;
    ensure!(flows(&scene, "pod-a")? == CONNECTIONS as u64);
    let start = Instant::now();
    round_is_right(&scene, &mut idle)?;
    let limit = TIME.max(2 * start.elapsed());
    for backend in &mut scene.config.policies[0].backends {
        backend.weight = 1;
    }
    scene.reconfigure()?;

    // The snapshot says so.
    scene.config.policies[0].backends[0].draining = true;
    let start = Instant::now();
    scene.reconfigure()?;
    wait_empty(&scene, "pod-a")?;
    let taken = start.elapsed();
    let drain = scene.backend(0, "pod-a")?.drain;
    eprintln!("{CONNECTIONS} connections left in {taken:?} (limit {limit:?}): {drain:?}");
    let drain = drain.context("a draining backend without figures of its drain")?;
    ensure!(drain.moved == CONNECTIONS as u64 && drain.closed == 0, "{drain:?}");
    let on = round_is_right(&scene, &mut idle)?;
    ensure!(!on.contains(&"pod-a".to_owned()), "{on:?}");
    scene.nothing_lost(0)?;
    ensure!(taken < limit, "{taken:?} for {CONNECTIONS} connections");

    // An admin says so.
    scene.config.policies[0].backends[0].draining = false;
    scene.reconfigure()?;
    scene.wait_back(0, "pod-a")?;
    let before = flows(&scene, "pod-b")?;
    ensure!(before > 0, "no flow on pod-b");
    let start = Instant::now();
    let words = scene.explained(scene.dataplane()?.tool(&["drain", "pod-b", "--wait"]))?;
    eprintln!("{before} connections left in {:?}:\n{words}", start.elapsed());
    ensure!(flows(&scene, "pod-b")? == 0, "the command ended before the drain");
    let on = round_is_right(&scene, &mut idle)?;
    ensure!(!on.contains(&"pod-b".to_owned()), "{on:?}");
    scene.nothing_lost(0)?;
    Ok(())
}

const WEBSOCKET_PORT: u16 = 9_001;
const WEBSOCKETS: usize = 8;
const UPGRADE: &[u8] =
    b"GET /chat HTTP/1.1\r\nHost: chat\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const UPGRADED: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

#[test]
fn a_drain_ends_though_servers_do_not_close_what_their_clients_closed() -> Result<()> {
    let mut scene = Scene::with_pods("drainclose", 2)?;
    let start = |pod: &Pod| Ok((pod.name().to_owned(), stubborn_websocket_server(pod)?));
    let backends = scene.lab.in_each_pod(start)?;
    let mut websockets = policy("chat", WEBSOCKET_PORT, &backends);
    websockets.protocol = Protocol::Http1;
    websockets.drain = Drain {
        deadline: Micros::from_millis(500),
        on_deadline: OnDeadline::Close,
        ..Drain::default()
    };
    websockets.backends[1].weight = 0;
    scene.config.policies.push(websockets);
    scene.start()?;
    let address = scene.address(WEBSOCKET_PORT)?;
    let mut streams = (0..WEBSOCKETS)
        .map(|_| {
            let client = scene.lab.client().namespace();
            let mut stream = client.run(|| TcpStream::connect(address))??;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            stream.write_all(UPGRADE)?;
            let mut answer = vec![0; UPGRADED.len()];
            stream.read_exact(&mut answer)?;
            ensure!(answer == UPGRADED, "not upgraded: {answer:?}");
            Ok(stream)
        })
        .collect::<Result<Vec<_>>>()?;
    // Half of the clients have said all, and their server does not close.
    for stream in &streams[..WEBSOCKETS / 2] {
        stream.shutdown(Shutdown::Write)?;
    }
    let command = ["drain", "pod-a", "--policy", "chat", "--wait"];
    let words = scene.explained(scene.dataplane()?.tool(&command))?;
    eprintln!("{words}");
    ensure!(scene.backend(1, "pod-a")?.flows == 0, "the command ended before the drain");
    // Each client is told.
    for stream in &mut streams {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(0) => {}
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {}
            other => anyhow::bail!("a client heard {other:?}"),
        }
    }
    let lost = scene.policy(1)?.lost_total;
    ensure!(lost.get("drain_deadline") == Some(&(WEBSOCKETS as u64)), "{lost:?}");
    Ok(())
}

/// Upgrades, and never closes. Its threads end with the test's process.
fn stubborn_websocket_server(pod: &Pod) -> Result<SocketAddr> {
    let address = SocketAddr::new(pod.ipv4(), WEBSOCKET_PORT);
    let listener = pod.namespace().run(|| TcpListener::bind(address))??;
    thread::spawn(move || {
        let mut held = Vec::new();
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut request = vec![0; UPGRADE.len()];
            if stream.read_exact(&mut request).is_ok() && stream.write_all(UPGRADED).is_ok() {
                held.push(stream);
            }
        }
    });
    Ok(address)
}

/// Each connection lives and makes one more request; gives the pods that answered.
fn round_is_right(scene: &Scene, idle: &mut IdleConnections) -> Result<Vec<String>> {
    let ended = idle.ended();
    let round = idle.round();
    let check = || {
        ensure!(ended.is_empty(), "ended by the other side: {ended:?}");
        ensure!(
            round.errors.is_empty() && round.right == CONNECTIONS as u64,
            "{} right, {:?}",
            round.right,
            round.errors
        );
        Ok(())
    };
    scene.explained(check())?;
    eprintln!("{:?}", round.per_pod);
    Ok(round.per_pod.into_keys().collect())
}

fn flows(scene: &Scene, backend: &str) -> Result<u64> {
    Ok(scene.backend(0, backend)?.flows)
}

fn wait_empty(scene: &Scene, backend: &str) -> Result<()> {
    let empty = until("empty", || {
        let found = scene.backend(0, backend)?;
        let left: u64 = found.drain.iter().flat_map(|d| d.waiting.values()).sum();
        ensure!(left == 0, "{} flows: {:?}", found.flows, found.drain);
        Ok(())
    });
    scene.explained(empty)
}
