//! The namespace tests, one module per theme. They need root and the programs `lb-dataplane` and `host-shim` built in
//! the same profile, and run one at a time (`--test-threads=1`): each fills the machine.

mod anywhere;
mod bad_input;
mod capture;
mod cli;
mod closes;
mod drain;
mod faults_limits;
mod faults_limits_flood;
mod faults_path;
mod faults_process;
mod faults_process_control;
mod faults_process_links;
mod faults_process_shim;
mod flood;
mod forged;
mod forged_answers;
mod guards;
mod host_network;
mod ipv6;
mod large;
mod memcached;
mod migrate_by_hand;
mod migration;
mod modes;
mod operator;
mod packet_rules;
mod posts;
mod refusal;
mod reload;
mod rescue;
mod shim;
mod shutdown;
mod silence;
mod stale;
mod stateful;
mod tenants;
mod throttle;
mod tracked;
mod wire;
mod workers;

use anyhow::{Result, ensure};
use baton_lab::{Exchange, HttpEcho, Load, LoadOptions, LoadReport, RedisCheck};
use baton_ns::{REDIS_PORT, Scene, until};
use std::{net::SocketAddr, sync::atomic::Ordering};

/// Runs an HTTP load to its end and asserts that nothing went wrong.
fn http_without_error(scene: &Scene, options: LoadOptions) -> Result<(LoadReport, HttpEcho)> {
    let wanted = options.requests;
    let (report, echo) = HttpEcho::start(scene.lab.client().namespace(), options)?.join()?;
    no_error(&report, wanted)?;
    Ok((report, echo))
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
    let options = LoadOptions {
        connections,
        requests: Some(requests),
        ..LoadOptions::new(address)
    };
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
    answered(
        load,
        load.progress().requests.load(Ordering::Relaxed) + requests,
    )
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
