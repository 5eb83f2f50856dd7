//! Pods that stand still (SIGSTOP) with requests in their kernels: what nobody has read is answered
//! by other pods, whatever it is, and not served again when they go on.

use crate::{answered, more, no_error};
use anyhow::{Result, ensure};
use baton_api::{OnStall, PolicyState};
use baton_lab::{HttpEcho, LoadOptions, LoadReport, PostCount, RedisCheck, Server, policy};
use baton_ns::{HTTP_PORT, REDIS_POLICY, REDIS_PORT, Scene, never, until};
use std::{
    net::SocketAddr,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

const PORT: u16 = 8_080;
/// `BATON_CONNECTIONS` changes it.
const CONNECTIONS: usize = 64;
/// Most connections are between two requests at any time: their next ones meet a pod that stands
/// still.
const PACE: Duration = Duration::from_millis(20);
/// A fraction of that, so that hardly any request is being worked on when a pod is stopped.
const PHASE: Duration = Duration::from_micros(100);
const COUNTING: usize = 1;

fn connections() -> usize {
    let given = std::env::var("BATON_CONNECTIONS").ok();
    given.and_then(|n| n.parse().ok()).unwrap_or(CONNECTIONS)
}

/// Stops a server and waits until all that its kernel has unread is answered elsewhere; then it
/// goes on, and the load with it. `served` tells how many requests were answered.
fn stands_still(
    scene: &Scene,
    at: usize,
    server: &mut Server,
    policy: usize,
    served: &dyn Fn() -> u64,
) -> Result<PolicyState> {
    let name = server.pod().name().to_owned();
    let there = scene.backend(policy, &name)?.flows;
    ensure!(there > 4, "{there} flows at {name}");
    let before = scene.policy(policy)?.rescues_total;
    server.process.freeze()?;
    let frozen = Instant::now();
    let all = until("what was not read is answered elsewhere", || {
        let rescued = scene.policy(policy)?.rescues_total - before;
        let left = scene.backend(policy, &name)?.flows;
        ensure!(
            rescued > 0 && left * 4 <= there,
            "{rescued} of {there} moved, {left} left at {name}"
        );
        Ok(rescued)
    });
    let rescued = scene.explained(all)?;
    let took = frozen.elapsed();
    let seen = served();
    let goes_on = until("the others go on", || {
        ensure!(served() > seen + 500, "{} requests", served() - seen);
        Ok(())
    });
    scene.explained(goes_on)?;
    server.process.thaw()?;
    eprintln!("pod {at}: {rescued} of {there} connections left within {took:?}");
    scene.wait_back(policy, &name)?;
    scene.policy(policy)
}

fn released(scene: &Scene) -> Result<u64> {
    scene.counter("releases_total{result=\"released\"}")
}

#[test]
fn no_post_is_executed_twice_by_pods_that_stand_still() -> Result<()> {
    let mut scene = Scene::with_pods("stallposts", 3)?;
    let mut counters = scene.add_counters(PORT, PHASE)?;
    scene.config.policies[COUNTING].migration = never();
    scene.start()?;
    let options = paced(scene.address(PORT)?);
    let load = PostCount::start(scene.lab.client().namespace(), options)?;
    answered(&load, 2_000)?;
    for at in [0, 1, 2] {
        let served = || load.progress().requests.load(Ordering::Relaxed);
        stands_still(&scene, at, &mut counters[at], COUNTING, &served)?;
    }
    let (report, posts) = load.stop()?;
    let tally = posts.tally(&counters)?;
    let figures = scene.nothing_lost(COUNTING)?;
    eprintln!("{tally:?}, {} released, errors {:?}", released(&scene)?, report.errors);
    let check = || {
        ensure!(report.error_count() == 0, "{:?}", report.errors);
        ensure!(tally.twice == 0, "executed twice: {tally:?}");
        ensure!(tally.missing == 0 && tally.unknown == 0, "{tally:?}");
        ensure!(figures.replays_total == 0, "a POST was replayed");
        Ok(())
    };
    scene.explained(check())?;
    ensure!(released(&scene)? > 10, "{} released", released(&scene)?);
    Ok(())
}

/// What became of the load, and of one policy's flows.
fn without_error(scene: &Scene, report: &LoadReport, policy: usize) -> Result<()> {
    let released = released(scene)?;
    eprintln!("{} requests, {released} released", report.requests);
    scene.explained(no_error(report, None))?;
    let figures = scene.nothing_lost(policy)?;
    ensure!(figures.replays_total == 0, "{} replayed", figures.replays_total);
    ensure!(released > 4, "{released} released");
    Ok(())
}

fn paced(address: SocketAddr) -> LoadOptions {
    LoadOptions {
        connections: connections(),
        // As many requests a second, however many connections.
        pace: Some(PACE * (connections() / CONNECTIONS) as u32),
        ..LoadOptions::new(address)
    }
}

/// One of a scene's nginx servers stands still.
fn nginx_stands_still(mut scene: Scene) -> Result<()> {
    scene.config.policies[0].migration = never();
    let mut servers = std::mem::take(&mut scene.nginx);
    web_stands_still(scene, 0, HTTP_PORT, &mut servers)
}

/// One of a policy's web servers stands still.
fn web_stands_still(
    mut scene: Scene,
    policy: usize,
    port: u16,
    servers: &mut [Server],
) -> Result<()> {
    scene.start()?;
    let options = paced(scene.address(port)?);
    let load = HttpEcho::start(scene.lab.client().namespace(), options)?;
    more(&load, 2_000)?;
    let served = || load.progress().requests.load(Ordering::Relaxed);
    stands_still(&scene, 1, &mut servers[1], policy, &served)?;
    let (report, _) = load.stop()?;
    without_error(&scene, &report, policy)
}

#[test]
fn nginx_that_stands_still_costs_no_request() -> Result<()> {
    nginx_stands_still(Scene::with_pods("stall", 3)?)
}

#[test]
fn nor_does_it_from_the_nodes_own_network() -> Result<()> {
    let mut scene = Scene::with_pods("stallnode", 3)?;
    scene.use_node()?;
    nginx_stands_still(scene)
}

/// Its one thread reads as soon as it runs, and as much as there is.
#[test]
fn node_js_that_stands_still_costs_no_request() -> Result<()> {
    let mut scene = Scene::with_pods("stalljs", 3)?;
    let mut servers = scene.lab.in_each_pod(|pod| pod.node(PORT))?;
    let backends: Vec<_> = servers.iter().map(Server::named).collect();
    let mut node = policy("node", PORT, &backends);
    node.migration = never();
    scene.config.policies.push(node);
    web_stands_still(scene, 1, PORT, &mut servers)
}

#[test]
fn redis_that_stands_still_costs_no_command() -> Result<()> {
    let mut scene = Scene::with_pods("stallredis", 3)?;
    scene.add_redis()?;
    scene.config.policies[REDIS_POLICY].migration = never();
    scene.start()?;
    let servers: Vec<_> = scene.redis.iter().map(Server::address).collect();
    let options = paced(scene.address(REDIS_PORT)?);
    let load = RedisCheck::start(scene.lab.client().namespace(), &servers, options)?;
    more(&load, 2_000)?;
    let mut servers = std::mem::take(&mut scene.redis);
    let served = || load.progress().requests.load(Ordering::Relaxed);
    stands_still(&scene, 2, &mut servers[2], REDIS_POLICY, &served)?;
    load.progress().enough();
    let report = RedisCheck::finish(load)?;
    without_error(&scene, &report, REDIS_POLICY)
}

/// What it costs to wait: the same with `onStall: Wait`.
#[test]
fn with_wait_requests_stay_where_they_are() -> Result<()> {
    let mut scene = Scene::with_pods("stallwait", 3)?;
    scene.config.policies[0].migration = never();
    scene.config.policies[0].on_stall = OnStall::Wait;
    scene.config.policies[0].response_timeout = None;
    scene.start()?;
    let options =
        LoadOptions { timeout: Duration::from_secs(10), ..paced(scene.address(HTTP_PORT)?) };
    let load = HttpEcho::start(scene.lab.client().namespace(), options)?;
    more(&load, 2_000)?;
    let name = scene.lab.pods()[1].name().to_owned();
    let there = scene.backend(0, &name)?.flows;
    scene.nginx[1].process.freeze()?;
    more(&load, 3_000)?;
    let left = scene.backend(0, &name)?.flows;
    scene.nginx[1].process.thaw()?;
    more(&load, 2_000)?;
    ensure!(left == there, "{left} of {there} flows at {name}");
    ensure!(released(&scene)? == 0, "released");
    let (report, _) = load.stop()?;
    scene.explained(no_error(&report, None))?;
    Ok(())
}
