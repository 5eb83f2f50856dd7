//! Pods without host-shim that are killed, restarted and drained: nobody marks their ends, and
//! connections go on elsewhere by translation. No client notices.

use super::{nobody_noticed, nothing_was_reset, start_alone, translations, wait_up};
use crate::{answered, more, rescue::kills};
use anyhow::{Result, ensure};
use baton_api::{Drain, Micros, Migration, Protocol};
use baton_lab::{IdleConnections, IdleRound, LoadOptions, RedisCheck, Server, policy};
use baton_ns::{HTTP_PORT, REDIS_POLICY, REDIS_PORT, Scene, until};
use std::time::Instant;

const CONNECTIONS: usize = 64;
const IDLE: usize = 500;
const NODE_PORT: u16 = 8_083;
const QUIET: Micros = Micros::from_millis(20);
/// Redis commands between two kills.
const COMMANDS: u64 = 5_000;

#[test]
fn pods_without_shim_are_killed_and_restarted_in_turn() -> Result<()> {
    let kills = kills();
    let mut scene = Scene::with_pods("translatekill", 4)?;
    // A refusal of a pod that is just dead counts as a failure.
    scene.config.policies[0].health.failure_threshold = 0;
    start_alone(&mut scene)?;
    let load = scene.echo(CONNECTIONS, None)?;
    more(&load, 500)?;
    let start = Instant::now();
    for kill in 0..kills {
        // Flows that move at every boundary are hit while they move; flows that stay are hit at
        // rest and in a request.
        if kill == kills / 2 {
            scene.config.policies[0].migration = Migration::default();
            scene.reconfigure()?;
        }
        let name = scene.kill(kill)?;
        wait_up(&scene, 0, &name)?;
    }
    eprintln!("{kills} kills, {:?} for each cycle", start.elapsed() / u32::try_from(kills)?);
    more(&load, 500)?;
    let (report, _) = load.stop()?;
    let figures = scene.nothing_lost(0)?;
    eprintln!(
        "{} requests, {:?}, {} rescued, {} replayed, {} ends were those of legs, {} translations, {:?}",
        report.requests,
        report.errors,
        figures.rescues_total,
        figures.replays_total,
        scene.counter("legs_over_unmarked_total")?,
        translations(&scene)?,
        report.latency
    );
    nobody_noticed(&scene, &report)?;
    ensure!(figures.rescues_total >= kills as u64, "{figures:?}");
    Ok(())
}

/// Commands that only read are executed once more, whoever had them.
#[test]
fn redis_without_shim_is_killed_while_commands_move() -> Result<()> {
    const KILLS: u64 = 12;
    let mut scene = Scene::with_pods("translateredkill", 3)?;
    scene.add_redis()?;
    scene.config.policies[REDIS_POLICY].protocol = Protocol::Resp;
    start_alone(&mut scene)?;
    let servers: Vec<_> = scene.redis.iter().map(Server::address).collect();
    let options =
        LoadOptions::of(scene.address(REDIS_PORT)?, CONNECTIONS, Some((KILLS + 1) * COMMANDS));
    let load = RedisCheck::start_reading(scene.lab.client().namespace(), &servers, options)?;
    for kill in 0..KILLS {
        answered(&load, kill * COMMANDS + COMMANDS / 2)?;
        ensure!(!load.is_finished(), "the load ended before kill {kill}");
        let at = kill as usize % scene.redis.len();
        let redis = &mut scene.redis[at];
        redis.process.crash()?;
        redis.restart()?;
        let name = redis.pod().name().to_owned();
        wait_up(&scene, REDIS_POLICY, &name)?;
    }
    let report = scene.explained(RedisCheck::finish(load))?;
    nobody_noticed(&scene, &report)?;
    let figures = scene.nothing_lost(REDIS_POLICY)?;
    eprintln!(
        "{:?}, {} rescued, {} replayed",
        report.errors, figures.rescues_total, figures.replays_total
    );
    ensure!(figures.rescues_total >= KILLS, "{figures:?}");
    Ok(())
}

/// Nothing marks the ends of a process that dies: each of its connections at rest goes on
/// elsewhere, also where its listener outlives it by a moment.
#[test]
fn idle_connections_of_a_pod_without_shim_go_on_elsewhere() -> Result<()> {
    let mut scene = Scene::with_pods("translateidle", 2)?;
    let mut servers = scene.lab.in_each_pod(|pod| pod.node(NODE_PORT))?;
    let backends: Vec<_> = servers.iter().map(Server::named).collect();
    let mut node = policy("node", NODE_PORT, &backends);
    // All begin on pod-a.
    node.backends[1].weight = 0;
    scene.config.policies = vec![node];
    start_alone(&mut scene)?;
    let client = scene.lab.client().namespace();
    let mut idle = IdleConnections::open(client, scene.address(NODE_PORT)?, IDLE)?;
    right(&scene, &mut idle)?;
    ensure!(scene.backend(0, "pod-a")?.flows == IDLE as u64);
    scene.config.policies[0].backends[1].weight = 1;
    scene.reconfigure()?;
    servers[0].process.crash()?;
    let settled = until("all elsewhere", || {
        let rescued = scene.policy(0)?.rescues_total;
        let there = scene.backend(0, "pod-b")?.flows;
        let all = rescued >= IDLE as u64 && there == IDLE as u64;
        ensure!(all, "{rescued} rescued, {there} at pod-b");
        Ok(())
    });
    scene.explained(settled)?;
    let round = right(&scene, &mut idle)?;
    let elsewhere = round.per_pod.keys().all(|pod| pod == "pod-b");
    ensure!(elsewhere, "{:?}", round.per_pod);
    ensure!(scene.counter("closes_believed_total")? == 0);
    nothing_was_reset(&scene)
}

#[test]
fn idle_connections_leave_a_draining_pod_without_shim() -> Result<()> {
    let mut scene = Scene::with_pods("translatedrain", 3)?;
    scene.config.policies[0].migration = Migration::default();
    scene.config.policies[0].drain = Drain { quiet: QUIET, ..Drain::default() };
    for backend in &mut scene.config.policies[0].backends[1..] {
        backend.weight = 0;
    }
    start_alone(&mut scene)?;
    let client = scene.lab.client().namespace();
    let mut idle = IdleConnections::open(client, scene.address(HTTP_PORT)?, IDLE)?;
    right(&scene, &mut idle)?;
    ensure!(scene.backend(0, "pod-a")?.flows == IDLE as u64);
    for backend in &mut scene.config.policies[0].backends[1..] {
        backend.weight = 1;
    }
    scene.config.policies[0].backends[0].draining = true;
    let start = Instant::now();
    scene.reconfigure()?;
    let empty = until("empty", || {
        let left = scene.backend(0, "pod-a")?.flows;
        ensure!(left == 0, "{left} flows");
        Ok(())
    });
    scene.explained(empty)?;
    let drain = scene.backend(0, "pod-a")?.drain;
    eprintln!("{IDLE} connections left in {:?}: {drain:?}", start.elapsed());
    let moved = drain.map_or(0, |drain| drain.moved);
    ensure!(moved == IDLE as u64, "{moved} moved");
    let round = right(&scene, &mut idle)?;
    ensure!(!round.per_pod.contains_key("pod-a"), "{:?}", round.per_pod);
    ensure!(translations(&scene)? >= IDLE as u64);
    nothing_was_reset(&scene)
}

/// Each connection lives, and makes one more request.
pub fn right(scene: &Scene, idle: &mut IdleConnections) -> Result<IdleRound> {
    let ended = idle.ended();
    let round = idle.round();
    let check = || {
        ensure!(ended.is_empty(), "ended by the other side: {ended:?}");
        let right = round.errors.is_empty() && round.right == idle.count() as u64;
        ensure!(right, "{} right, {:?}", round.right, round.errors);
        Ok(())
    };
    scene.explained(check())?;
    Ok(round)
}
