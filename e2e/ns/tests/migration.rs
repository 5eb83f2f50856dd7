//! 200,000 requests, each after a move of its connection: every byte right, and the old owners see
//! clean ends.

use crate::{http_without_error, redis_without_error};
use anyhow::{Context, Result, ensure};
use baton_lab::{LoadOptions, RedisClient, Reply, Server, policy};
use baton_ns::{HTTP_PORT, REDIS_POLICY, Scene, always, kernel_counters, until};
use rustix::process::Signal;
use std::fs;

const REQUESTS: u64 = 200_000;
const CONNECTIONS: usize = 32;

#[test]
fn http_requests_each_after_a_migration() -> Result<()> {
    let mut scene = Scene::with_pods("http", 3)?;
    for (pod, nginx) in scene.lab.pods().iter().zip(&mut scene.nginx) {
        log_every_close(pod, nginx)?;
    }
    scene.start()?;
    let options = scene.http_load(CONNECTIONS, Some(REQUESTS))?;
    let (report, echo) = http_without_error(&scene, options)?;
    let moves = scene.state()?.policies[0].migrations_total;
    eprintln!("{:.0} requests/s, {moves} migrations", report.per_second());
    assert!(moves >= REQUESTS - CONNECTIONS as u64, "{moves} migrations");
    // The client saw it too: each response came from another pod than the one before.
    assert_eq!(echo.pod_changes, REQUESTS - CONNECTIONS as u64);
    assert_eq!(echo.per_pod.len(), 3, "{:?}", echo.per_pod);

    figures_agree(&scene)?;
    ended_cleanly(&scene)?;
    // nginx says so of every connection: each leg was ended by an end of stream between two
    // requests.
    let legs = (moves + scene.state()?.policies[0].flows_total) as usize;
    until("every close in nginx's logs", || {
        let closed: usize = scene
            .lab
            .pods()
            .iter()
            .map(|pod| {
                let log = fs::read_to_string(error_log(pod)?)?;
                ensure!(!log.contains("reset by peer"), "{}: reset by peer", pod.name());
                Ok(log.matches("closed keepalive connection").count())
            })
            .sum::<Result<usize>>()?;
        ensure!(closed == legs, "{closed} of {legs}");
        Ok(())
    })
}

/// What it adopts comes out of io_uring's accept as out of `accept(2)`.
#[test]
fn requests_to_io_uring_each_after_a_migration() -> Result<()> {
    const URING: usize = 1;
    const PORT: u16 = 8_081;
    let mut scene = Scene::with_pods("uring", 3)?;
    let servers = scene.lab.in_each_pod(|pod| pod.uring(PORT))?;
    let backends: Vec<_> = servers.iter().map(Server::named).collect();
    let mut uring = policy("uring", PORT, &backends);
    uring.migration = always();
    scene.config.policies.push(uring);
    scene.start()?;
    let options = LoadOptions::of(scene.address(PORT)?, CONNECTIONS, Some(REQUESTS / 10));
    let (report, echo) = http_without_error(&scene, options)?;
    let moves = scene.state()?.policies[URING].migrations_total;
    eprintln!("{:.0} requests/s, {moves} migrations", report.per_second());
    assert_eq!(echo.pod_changes, REQUESTS / 10 - CONNECTIONS as u64);
    ended_cleanly(&scene)
}

#[test]
fn redis_commands_each_after_a_migration() -> Result<()> {
    let mut scene = Scene::with_pods("redis", 3)?;
    scene.add_redis()?;
    scene.start()?;
    let report = redis_without_error(&scene, CONNECTIONS, REQUESTS)?;
    let moves = scene.state()?.policies[REDIS_POLICY].migrations_total;
    eprintln!("{:.0} commands/s, {moves} migrations", report.per_second());
    assert!(moves >= REQUESTS - CONNECTIONS as u64, "{moves} migrations");

    ended_cleanly(&scene)?;
    let mut accepted = 0;
    for redis in &scene.redis {
        // Our own is the only connection left.
        until("only one redis client", || {
            let connected = redis_figure(&scene, redis, "connected_clients")?;
            ensure!(connected == 1, "{connected} connected clients in {}", redis.pod().name());
            Ok(())
        })?;
        accepted += redis_figure(&scene, redis, "total_connections_received")?;
    }
    assert!(accepted >= moves, "redis accepted {accepted} connections for {moves} migrations");
    Ok(())
}

/// What only metrics show is of the same connections, requests and moves as the state.
fn figures_agree(scene: &Scene) -> Result<()> {
    let state = scene.state()?;
    let text = scene.dataplane()?.control_text("/metrics")?;
    let sum = |family: &str| -> u64 {
        let family = format!("baton_dataplane_{family}{{");
        let samples = text.lines().filter(|line| line.starts_with(&family));
        let values = samples.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        values.sum()
    };
    let all: Vec<_> = state.policies.iter().collect();
    let moves: u64 = all.iter().map(|p| p.migrations_total).sum();
    assert_eq!(sum("policy_migration_duration_seconds_count"), moves);
    assert_eq!(sum("backend_flows_total"), all.iter().map(|p| p.flows_total).sum::<u64>());
    let backends = all.iter().flat_map(|p| &p.backends);
    let requests: u64 = backends.map(|b| b.requests_total).sum();
    assert_eq!(sum("backend_first_byte_duration_seconds_count"), requests);
    assert_eq!(sum("policy_client_resets_total"), 0);
    Ok(())
}

/// No leg was reset: neither Baton nor the pods' kernels say so.
fn ended_cleanly(scene: &Scene) -> Result<()> {
    scene.wait_legs_closed()?;
    assert_eq!(scene.counter("legs_closed_total{how=\"reset\"}")?, 0);
    assert_eq!(scene.counter("resets_sent_total{to=\"client\"}")?, 0);
    assert_eq!(scene.counter("resets_sent_total{to=\"backend\"}")?, 0);
    let mut probes = 0;
    for pod in scene.lab.pods() {
        let counters = kernel_counters(pod.namespace())?;
        probes += counters["TcpExt.TCPLossProbes"];
        // Connections that went from established to closed at once: a reset came or was sent.
        let resets = counters["Tcp.EstabResets"];
        assert_eq!(resets, 0, "{} saw {resets} of its connections reset", pod.name());
    }
    // A pod had nothing to say to a client who had moved on. On a machine that held our FIN up for
    // longer than 8 ms, its kernel repeated the last response, once.
    let fenced = scene.counter("fenced_data_segments_total")?;
    assert!(fenced <= probes, "{fenced} with data, {probes} loss probes");
    Ok(())
}

fn error_log(pod: &baton_lab::Pod) -> Result<std::path::PathBuf> {
    Ok(pod.directory()?.join(format!("nginx-{HTTP_PORT}/error.log")))
}

/// Makes nginx log how each idle connection ended, which it does only at level `info`.
fn log_every_close(pod: &baton_lab::Pod, nginx: &mut baton_lab::Server) -> Result<()> {
    let config = error_log(pod)?.with_file_name("nginx.conf");
    let text = fs::read_to_string(&config)?;
    ensure!(text.contains("error.log warn;"), "nginx.conf sets no log level");
    fs::write(&config, text.replace("error.log warn;", "error.log info;"))?;
    nginx.process.signal(Signal::HUP)?;
    // Afterwards every connection is accepted by the new worker.
    until("reloaded", || {
        let log = fs::read_to_string(error_log(pod)?)?;
        ensure!(log.contains("exited with code 0"), "{log}");
        Ok(())
    })
}

fn redis_figure(scene: &Scene, redis: &baton_lab::Server, name: &str) -> Result<u64> {
    let mut client = RedisClient::connect(scene.lab.client().namespace(), redis.address())?;
    let Reply::Bulk(Some(text)) = client.call(&[b"INFO"])? else {
        anyhow::bail!("INFO: not a text");
    };
    let text = String::from_utf8(text)?;
    let value = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
    value.with_context(|| format!("INFO has no {name}"))?.trim().parse().context("a number")
}
