//! Redis conversations that live in their connection, while other connections move for every
//! command.

use crate::no_error;
use anyhow::{Context, Result, ensure};
use baton_api::Protocol;
use baton_lab::{LoadOptions, LoadReport, RedisCheck, RedisStateful, Server};
use baton_ns::{REDIS_POLICY, REDIS_PORT, Scene};
use std::collections::BTreeMap;

const COMMANDS: u64 = 120_000;
const CONNECTIONS: usize = 16;

/// Conversations with state, beside a load of so many commands; how many rounds of each went right.
pub fn beside_commands(
    scene: &Scene,
    connections: usize,
    commands: u64,
) -> Result<(BTreeMap<&'static str, u64>, LoadReport)> {
    let address = scene.address(REDIS_PORT)?;
    let servers: Vec<_> = scene.redis.iter().map(Server::address).collect();
    let namespace = scene.lab.client().namespace();
    let options = LoadOptions::of(address, connections, Some(commands));
    let stateful = RedisStateful::start(namespace, address, &servers)?;
    let load = RedisCheck::start(namespace, &servers, options)?;
    let report = RedisCheck::finish(load)?;
    let rounds = stateful.finish();
    let rounds = scene.explained(rounds.context("a conversation was broken"))?;
    scene.explained(no_error(&report, Some(commands)))?;
    Ok((rounds, report))
}

#[test]
fn conversations_with_state_stay_whole_beside_connections_that_move() -> Result<()> {
    let mut scene = Scene::with_pods("stateful", 3)?;
    scene.add_redis()?;
    scene.config.policies[REDIS_POLICY].protocol = Protocol::Resp;
    scene.start()?;
    let (rounds, report) = beside_commands(&scene, CONNECTIONS, COMMANDS)?;
    let figures = scene.nothing_lost(REDIS_POLICY)?;
    eprintln!(
        "{rounds:?}\n{:.0} commands/s, {} moved, {} rolled back, pinned {:?}",
        report.per_second(),
        figures.migrations_total,
        figures.rollbacks_total,
        figures.pins_total
    );
    ensure!(rounds.values().all(|r| *r >= 20), "{rounds:?}");
    // Nearly every command of the load moved its connection first.
    ensure!(
        figures.migrations_total >= COMMANDS - CONNECTIONS as u64,
        "{} moves",
        figures.migrations_total
    );
    Ok(())
}
