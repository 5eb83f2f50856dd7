//! The namespace tests, one module per theme. They need root and the programs `lb-dataplane` and
//! `host-shim` built in the same profile. Each has namespaces of its own and mostly waits, so that
//! several can run at a time (`NS_THREADS=4 make test-ns`), but for those in [`alone`] and
//! [`quiet`].

mod allowed;
mod alone;
mod anywhere;
mod bad_input;
mod capture;
mod cli;
mod faults_limits;
mod faults_process;
mod faults_process_control;
mod faults_process_shim;
mod flood;
mod forged;
mod forged_answers;
mod guards;
mod host_network;
mod introduced;
mod ipv6;
mod memcached;
mod migrate_by_hand;
mod migration;
mod modes;
mod operator;
mod packet_rules;
mod posts;
mod pressure;
mod quiet;
mod refusal;
mod reload;
mod rescue;
mod restored;
mod shim;
mod stall;
mod stateful;
mod tenants;
mod tracked;
mod transfer;
mod translated;
mod wire;
mod workers;

use anyhow::{Result, ensure};
use baton_lab::{Exchange, HttpClient, HttpEcho, Load, LoadOptions, LoadReport, RedisCheck};
use baton_ns::{HTTP_PORT, REDIS_POLICY, REDIS_PORT, Scene, until};
use std::{net::SocketAddr, sync::atomic::Ordering};

/// Runs an HTTP load to its end and asserts that nothing went wrong.
fn http_without_error(scene: &Scene, options: LoadOptions) -> Result<(LoadReport, HttpEcho)> {
    let wanted = options.requests;
    let (report, echo) = HttpEcho::start(scene.lab.client().namespace(), options)?.join()?;
    no_error(&report, wanted)?;
    Ok((report, echo))
}

/// Requests of a policy whose connection had no leg: where legs are shared, each that comes after a
/// pause, as on any busy machine. They go to either pod, and are no moves.
fn legless(scene: &Scene, policy: usize) -> Result<u64> {
    let ends = scene.policy(policy)?.moves_total;
    Ok(ends.get("legless").map_or(0, |ends| ends.values().sum()))
}

/// All `moves` requests of the HTTP policy that could were served by another pod than the one
/// before.
fn all_changed_pods(scene: &Scene, echo: &HttpEcho, moves: u64) -> Result<()> {
    let (changed, legless) = (echo.pod_changes, legless(scene, 0)?);
    ensure!(
        changed <= moves && changed + legless >= moves && legless < moves / 2,
        "{changed} of {moves} requests changed pods, {legless} had no leg"
    );
    Ok(())
}

/// Requests and redis commands at these addresses, which all move, with the right contents.
fn every_request_moves(
    scene: &Scene,
    what: &str,
    [http, redis]: [SocketAddr; 2],
    (connections, requests): (usize, u64),
) -> Result<()> {
    let options = LoadOptions::of(http, connections, Some(requests));
    let (report, echo) = http_without_error(scene, options)?;
    eprintln!("{what}: {:.0} requests/s, {:?}", report.per_second(), report.latency);
    all_changed_pods(scene, &echo, requests - connections as u64)?;
    redis_without_error_at(scene, redis, connections, requests)?;
    let state = scene.state()?;
    for index in [0, REDIS_POLICY] {
        let (moves, name) = (state.policies[index].migrations_total, &state.policies[index].name);
        let legless = legless(scene, index)?;
        assert!(moves + legless >= requests - connections as u64, "{name}: {moves}, {legless}");
    }
    let mut client = HttpClient::connect(scene.lab.client().namespace(), http)?;
    wire::rounds(scene, &mut client)
}

/// Where a scene's HTTP and redis policies are.
fn addresses(scene: &Scene) -> Result<[SocketAddr; 2]> {
    Ok([scene.address(HTTP_PORT)?, scene.address(REDIS_PORT)?])
}

/// All legs were closed in order.
fn nothing_was_reset(scene: &Scene) -> Result<()> {
    scene.wait_legs_closed()?;
    assert_eq!(scene.counter("legs_closed_total{how=\"reset\"}")?, 0);
    assert_eq!(scene.counter("resets_sent_total{to=\"client\"}")?, 0);
    assert_eq!(scene.counter("drops_total{reason=\"bad_checksum\"}")?, 0);
    Ok(())
}

/// Runs redis commands to their end; their effects in the servers are checked too.
fn redis_without_error(scene: &Scene, connections: usize, requests: u64) -> Result<LoadReport> {
    redis_without_error_at(scene, scene.address(REDIS_PORT)?, connections, requests)
}

/// The same, at any address of the dataplane.
fn redis_without_error_at(
    scene: &Scene,
    address: SocketAddr,
    connections: usize,
    requests: u64,
) -> Result<LoadReport> {
    let servers: Vec<_> = scene.redis.iter().map(baton_lab::Server::address).collect();
    let options = LoadOptions::of(address, connections, Some(requests));
    let load = RedisCheck::start(scene.lab.client().namespace(), &servers, options)?;
    let report = RedisCheck::finish(load)?;
    no_error(&report, Some(requests))?;
    Ok(report)
}

/// Waits until a load has got so many right responses in all.
fn answered<E: Exchange>(load: &Load<E>, requests: u64) -> Result<u64> {
    until("more requests answered", || {
        let done = load.progress().requests.load(Ordering::Relaxed);
        ensure!(done >= requests, "{done} of {requests}");
        Ok(done)
    })
}

/// Waits until a running load has got so many more right responses.
fn more<E: Exchange>(load: &Load<E>, requests: u64) -> Result<u64> {
    answered(load, load.progress().requests.load(Ordering::Relaxed) + requests)
}

/// The load goes on, and nearly every request moves (all but those around a probe that came late).
fn moves_on(scene: &Scene, load: &Load<HttpEcho>) -> Result<()> {
    let before = scene.counter("migrations_total")?;
    more(load, 2_000)?;
    let moved = scene.counter("migrations_total")? - before;
    ensure!(moved >= 1_900, "{moved} moves in 2,000 requests");
    Ok(())
}

/// A request that waited for a retransmission that backed off: 200 ms and 400 ms.
fn none_waited(report: &LoadReport) -> Result<()> {
    ensure!(
        report.slow.requests == 0,
        "{} requests on {} connections took more than 500 ms, the longest {} ms",
        report.slow.requests,
        report.slow.connections,
        report.latency.max_us / 1_000
    );
    Ok(())
}

fn no_error(report: &LoadReport, requests: Option<u64>) -> Result<()> {
    ensure!(
        report.errors.is_empty(),
        "errors: {:?} beside {} right",
        report.errors,
        report.requests
    );
    if let Some(requests) = requests {
        ensure!(
            report.requests == requests,
            "{} of {requests} requests were answered",
            report.requests
        );
    }
    Ok(())
}
