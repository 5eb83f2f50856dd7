//! The dataplane killed and frozen in the middle of migrations, under clients that check every
//! byte.
//!
//! What a killed dataplane leaves in the pods, and how its successor steps around it, is in
//! `stale`.

use crate::{answered, http_without_error, more, no_error};
use anyhow::{Context, Result, ensure};
use baton_lab::{
    HttpClient, HttpEcho, Load, LoadOptions, LoadReport, Namespace, Options, RedisCheck,
};
use baton_ns::{HTTP_PORT, REDIS_PORT, Scene, kernel_counters, until};
use socket2::{SockRef, TcpKeepalive};
use std::{
    fs,
    io::{self, Read, Write},
    net::TcpStream,
    thread,
    time::Duration,
};

const HTTP_CONNECTIONS: usize = 16;
const REDIS_CONNECTIONS: usize = 8;
/// Idle connections that a killed dataplane leaves behind.
const QUIET: usize = 100;
const KILLS: u64 = 2;
/// Redis commands between two faults.
const COMMANDS: u64 = 5_000;
/// How a client may learn that the dataplane died: by a reset when it sends, by a refusal while
/// nobody is there, and where it waits for the answer to a request that was acknowledged, by its
/// own patience (or keepalive: it has nothing to send).
const TOLD: [&str; 3] = ["reset", "connect", "timeout"];
/// Far longer than any answer takes here, and short enough for three kills.
const PATIENCE: Duration = Duration::from_secs(1);

/// Linux's first retransmission comes after 200 ms: the longest freeze meets several of every
/// connection.
const FREEZES: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(1_500)];

#[test]
fn a_killed_dataplane_ends_connections_with_a_reset_and_nothing_is_executed_twice() -> Result<()> {
    let mut scene = Scene::new("dpkill", &Options::with_clients(3))?;
    scene.add_redis()?;
    scene.start()?;
    let busy = scene.lab.clients()[1].namespace().clone();
    let options = LoadOptions { timeout: PATIENCE, ..scene.http_load(HTTP_CONNECTIONS, None)? };
    let http = HttpEcho::start(&busy, options)?;
    let redis = redis_load(&scene, &busy, PATIENCE)?;
    for kill in 1..=KILLS {
        more(&http, 2_000)?;
        answered(&redis, kill * COMMANDS / 2)?;
        let quiet = opened(&scene, &busy)?;
        ensure!(scene.counter("migrations_total")? > 1_000, "nothing moves");
        scene.dataplane_mut()?.process.kill()?;
        scene.start_dataplane()?;
        scene.wait_adoptable()?;
        for client in quiet {
            told_by_a_reset(client)?;
        }
        // Those of the loads met the successor or, in between, the kernel of its pod.
        let strangers = scene.counter("drops_total{reason=\"no_flow\"}")?;
        let resets = scene.counter("resets_sent_total{to=\"client\"}")?;
        ensure!(
            strangers >= QUIET as u64 && resets >= QUIET as u64,
            "{strangers} segments of unknown flows, {resets} resets for {QUIET} old connections"
        );
        // New connections, from a client of their own so that its kernel's counters are theirs
        // alone.
        let before = waits(scene.lab.client().namespace())?;
        let options = scene.http_load(32, Some(1_280))?;
        http_without_error(&scene, options)?;
        let after = waits(scene.lab.client().namespace())?;
        assert_eq!(after, before, "a request waited for a retransmission");
    }
    let (report, _) = http.stop()?;
    only_told(&report)?;
    ensure!(report.error_count() > 0, "the kills hit no connection");
    let report = enough(redis, (KILLS + 1) * COMMANDS)?;
    // The checks of the servers' contents would be among the errors: a SET missing, an INCR
    // executed twice.
    only_told(&report)?;
    eprintln!(
        "redis: {} right, {:?}; stale sockets met: {}",
        report.requests,
        report.errors,
        scene.counter("stale_sockets_total")?
    );
    Ok(())
}

#[test]
fn who_waits_for_an_answer_of_a_killed_dataplane_is_told_by_keepalive() -> Result<()> {
    let mut scene = Scene::with_pods("dpwait", 1)?;
    scene.start()?;
    let address = scene.address(HTTP_PORT)?;
    let place = scene.lab.client().namespace();
    let mut stream = place.run(|| TcpStream::connect(address))??;
    let probes =
        TcpKeepalive::new().with_time(Duration::from_secs(1)).with_interval(Duration::from_secs(1));
    SockRef::from(&stream).set_tcp_keepalive(&probes)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    // The pod's kernel acknowledges, its application never answers: the client has nothing to send
    // again.
    scene.nginx[0].process.freeze()?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")?;
    until("acknowledged", || {
        let flows = scene.dataplane()?.flows()?;
        ensure!(flows.iter().any(|f| f.state == "Request"), "{flows:?}");
        let sent = unacknowledged(place, stream.local_addr()?.port())?;
        ensure!(sent == 0, "{sent} bytes are unacknowledged");
        Ok(())
    })?;
    scene.dataplane_mut()?.process.kill()?;
    scene.start_dataplane()?;
    let answer = stream.read(&mut [0; 64]);
    ensure!(
        answer.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::ConnectionReset),
        "{answer:?}"
    );
    assert_eq!(scene.counter("resets_sent_total{to=\"client\"}")?, 1);
    assert_eq!(scene.counter("drops_total{reason=\"no_flow\"}")?, 1);
    scene.nginx[0].process.thaw()
}

#[test]
fn a_frozen_dataplane_breaks_nothing() -> Result<()> {
    let mut scene = Scene::with_pods("dpfreeze", 3)?;
    scene.add_redis()?;
    scene.start()?;
    let place = scene.lab.client().namespace().clone();
    let before = waits(&place)?;
    let http = HttpEcho::start(&place, scene.http_load(HTTP_CONNECTIONS, None)?)?;
    let redis = redis_load(&scene, &place, Duration::from_secs(20))?;
    for (freeze, number) in FREEZES.into_iter().zip(1..) {
        more(&http, 1_000)?;
        answered(&redis, number * COMMANDS / 2)?;
        scene.dataplane_mut()?.process.freeze()?;
        thread::sleep(freeze);
        scene.dataplane_mut()?.process.thaw()?;
        let moved = scene.counter("migrations_total")?;
        more(&http, 1_000)?;
        ensure!(scene.counter("migrations_total")? > moved, "nothing moves");
    }
    let report = scene.explained(enough(redis, 3 * COMMANDS))?;
    scene.explained(no_error(&report, None))?;
    let (report, _) = http.stop()?;
    scene.explained(no_error(&report, None))?;
    for policy in 0..2 {
        scene.nothing_lost(policy)?;
    }
    // Its own sleep is no fault of the pods', and nothing had to be guessed.
    for counter in [
        "resets_sent_total{to=\"client\"}",
        "backends_down_total{reason=\"silent\"}",
        "backends_down_total{reason=\"no_listener\"}",
        "ejections_total{result=\"ejected\"}",
        "stranded_total",
        "fates_unknown_total{outcome=\"replayed\"}",
        "fates_unknown_total{outcome=\"reset\"}",
    ] {
        let value = scene.counter(counter)?;
        scene.explained(if value == 0 {
            Ok(())
        } else {
            Err(anyhow::anyhow!("{counter} {value}"))
        })?;
    }
    // The clients' kernels say what bridged the time.
    let after = waits(&place)?;
    ensure!(after > before, "no client sent anything again: {after:?}");
    eprintln!(
        "adoptions sent again: {}, rollbacks {}, {after:?}",
        scene.counter("adoption_retries_total")?,
        scene.counter("rollbacks_total")?
    );
    Ok(())
}

/// SET, GET, INCR and ECHO; how often each was executed is looked up in the servers at the end.
/// A load that goes on until it is [`enough`].
fn redis_load(scene: &Scene, place: &Namespace, timeout: Duration) -> Result<Load<RedisCheck>> {
    let servers: Vec<_> = scene.redis.iter().map(baton_lab::Server::address).collect();
    let options = LoadOptions {
        connections: REDIS_CONNECTIONS,
        timeout,
        ..LoadOptions::new(scene.address(REDIS_PORT)?)
    };
    RedisCheck::start(place, &servers, options)
}

/// The load has so many commands answered, ends, and is judged by what the servers have.
fn enough(load: Load<RedisCheck>, commands: u64) -> Result<LoadReport> {
    answered(&load, commands)?;
    load.progress().enough();
    RedisCheck::finish(load)
}

fn opened(scene: &Scene, place: &Namespace) -> Result<Vec<HttpClient>> {
    let address = scene.address(HTTP_PORT)?;
    (0..QUIET)
        .map(|_| {
            let mut client = HttpClient::connect(place, address)?;
            ensure!(client.get("/")?.body == b"ok", "wrong body");
            Ok(client)
        })
        .collect()
}

/// The next request of a connection that the dead dataplane had is answered by a reset.
fn told_by_a_reset(mut client: HttpClient) -> Result<()> {
    let Err(error) = client.get("/") else {
        anyhow::bail!("a connection of the dead dataplane was served");
    };
    let kind = error.chain().find_map(|e| e.downcast_ref::<io::Error>());
    ensure!(
        kind.map(io::Error::kind) == Some(io::ErrorKind::ConnectionReset),
        "not a reset: {error:#}"
    );
    Ok(())
}

fn only_told(report: &LoadReport) -> Result<()> {
    let other = report.errors.keys().find(|k| !TOLD.contains(&k.as_str()));
    ensure!(other.is_none(), "errors: {:?}", report.errors);
    Ok(())
}

/// What a client's kernel counts when it has to wait and send again.
fn waits(place: &Namespace) -> Result<[u64; 3]> {
    let counters = kernel_counters(place)?;
    let of = |name: &str| counters.get(name).copied().with_context(|| name.to_owned());
    Ok([of("TcpExt.TCPTimeouts")?, of("TcpExt.TCPSynRetrans")?, of("Tcp.RetransSegs")?])
}

/// Bytes that a connection's kernel has sent and may have to send again: `tx_queue` of
/// `/proc/net/tcp`.
fn unacknowledged(place: &Namespace, local_port: u16) -> Result<u64> {
    let text = place.run(|| fs::read_to_string("/proc/thread-self/net/tcp"))??;
    let local = format!(":{local_port:04X}");
    let line = text.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        fields.nth(1)?.ends_with(&local).then(|| fields.nth(2))?
    });
    let (sent, _) = line.and_then(|l| l.split_once(':')).context("no socket")?;
    u64::from_str_radix(sent, 16).context("tx_queue")
}
