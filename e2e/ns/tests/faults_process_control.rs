//! The control API out of reach and under attack while every request moves. Packets do not know of
//! it.

use crate::{more, moves_on, no_error};
use anyhow::{Context, Result, ensure};
use baton_lab::{DATAPLANE_CONTROL, HttpEcho, Load};
use baton_ns::{Scene, nft};
use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    time::Duration,
};

const CONNECTIONS: usize = 16;
/// More than the API has room for (`CONNECTIONS_MAX` in `control/mod.rs`: 64).
const IDLE: usize = 100;
const HALF: usize = 20;
/// Twice what a snapshot may have.
const BODY_BYTES: usize = 32 << 20;
/// Nobody waits longer for an answer that will not come.
const IO_LIMIT: Duration = Duration::from_secs(5);

#[test]
fn a_control_api_under_attack_holds_up_nothing() -> Result<()> {
    let mut scene = Scene::with_pods("ctlattack", 3)?;
    scene.start()?;
    let load = scene.echo(CONNECTIONS, None)?;
    moves_on(&scene, &load)?;

    // One at a time: bodies too large, declared and undeclared, and a head without end.
    let declared = format!(
        "PUT /v1/snapshot HTTP/1.1\r\nHost: localhost\r\nContent-Length: {BODY_BYTES}\r\n\r\n"
    );
    ensure!(status(&flooded(&scene, &declared, BODY_BYTES)?) == "413");
    let chunked = "PUT /v1/snapshot HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n7fffffff\r\n";
    ensure!(status(&flooded(&scene, chunked, BODY_BYTES)?) == "413");
    let head = "GET /v1/state HTTP/1.1\r\nX: ";
    ensure!(status(&flooded(&scene, head, BODY_BYTES)?) == "431");
    moves_on(&scene, &load)?;
    let metrics = scene.dataplane()?.control_text("/metrics")?;
    ensure!(metric(&metrics, "control_requests_total{status=\"4xx\"}")? >= 2.0);

    // All at once: requests that stop in the middle, then connections that say nothing, more than
    // there is room for.
    let mut held = Vec::new();
    for number in 0..HALF + IDLE {
        let mut stream = connect(&scene)?;
        if number < HALF {
            stream.write_all(b"PUT /v1/snapshot HTTP/1.1\r\nHost: localhost\r\nContent-Le")?;
        }
        held.push(stream);
    }
    // They keep out nobody: the oldest of them go.
    scene.dataplane()?.control_text("/healthz")?;
    let before = adopted(&scene)?;
    more(&load, 10_000)?;
    let moved = adopted(&scene)? - before;
    ensure!(moved >= 9_500, "{moved} adoptions in 10,000 requests");
    let metrics = scene.dataplane()?.control_text("/metrics")?;
    let evicted = metric(&metrics, "control_connections_evicted_total")?;
    ensure!(evicted >= (HALF + IDLE - 64) as f64, "{evicted} connections evicted");
    drop(held);
    moves_on(&scene, &load)?;
    finish(&scene, load)
}

#[test]
fn a_blocked_control_port_holds_up_nothing() -> Result<()> {
    let mut scene = Scene::with_pods("ctlblock", 3)?;
    scene.start()?;
    let load = scene.echo(CONNECTIONS, None)?;
    moves_on(&scene, &load)?;
    let pod = scene.lab.dataplane_pod().namespace().clone();
    nft(&pod, "add table ip block")?;
    nft(&pod, "add chain ip block input { type filter hook input priority 0; }")?;
    nft(&pod, "add rule ip block input tcp dport 9900 drop")?;
    let before = adopted(&scene)?;
    more(&load, 10_000)?;
    let moved = adopted(&scene)? - before;
    ensure!(moved >= 9_500, "{moved} adoptions in 10,000 requests");
    // It is out of reach, and stays so for who waits a second.
    let tried = pod.run(|| {
        let address = DATAPLANE_CONTROL.parse()?;
        anyhow::Ok(TcpStream::connect_timeout(&address, Duration::from_secs(1)))
    })??;
    ensure!(tried.as_ref().is_err_and(|e| e.kind() == ErrorKind::TimedOut), "{tried:?}");
    nft(&pod, "delete table ip block")?;
    moves_on(&scene, &load)?;
    finish(&scene, load)
}

fn connect(scene: &Scene) -> Result<TcpStream> {
    let place = scene.lab.dataplane_pod().namespace();
    let stream = place.run(|| TcpStream::connect(DATAPLANE_CONTROL))??;
    stream.set_read_timeout(Some(IO_LIMIT))?;
    stream.set_write_timeout(Some(IO_LIMIT))?;
    Ok(stream)
}

/// Sends a head and then filler until `bytes` are sent or nobody takes more; gives the answer.
fn flooded(scene: &Scene, head: &str, bytes: usize) -> Result<String> {
    let mut stream = connect(scene)?;
    stream.write_all(head.as_bytes())?;
    let filler = [b'x'; 64 << 10];
    for _ in 0..bytes / filler.len() {
        // The other side may have answered and closed before it read all.
        if stream.write_all(&filler).is_err() {
            break;
        }
    }
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    // Unread bytes make the kernel reset the connection behind the answer.
    while let Ok(n) = stream.read(&mut piece) {
        answer.extend_from_slice(&piece[..n]);
        if n == 0 {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("no answer")
}

fn metric(metrics: &str, name: &str) -> Result<f64> {
    let name = format!("baton_dataplane_{name} ");
    let value = metrics.lines().find_map(|l| l.strip_prefix(&name));
    value.with_context(|| format!("no {name}"))?.parse().context("a number")
}

fn adopted(scene: &Scene) -> Result<u64> {
    scene.shim_counter(&["\"adopted\""])
}

fn finish(scene: &Scene, load: Load<HttpEcho>) -> Result<()> {
    let (report, _) = load.stop()?;
    scene.explained(no_error(&report, None))?;
    assert_eq!(scene.counter("rollbacks_total")?, 0);
    assert_eq!(scene.counter("resets_sent_total{to=\"client\"}")?, 0);
    Ok(())
}
