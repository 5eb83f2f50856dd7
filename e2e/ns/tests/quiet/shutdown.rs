//! Servers that shut down in order without a drain before it: they close idle connections and
//! listeners themselves, in whatever order, and no client's connection ends.

use anyhow::{Context, Result, ensure};
use baton_lab::{IdleConnections, NginxOptions, Options};
use baton_ns::{HTTP_PORT, Scene, listeners, until};
use std::{thread, time::Duration};

/// A server that started so long ago has been told of by two probes, and who holds its listener is
/// known for certain. What shuts down sooner is judged by time alone, so both are tried.
const KNOWN: Duration = Duration::from_millis(2_200);

/// Shutdowns of each kind; `BATON_SHUTDOWNS` changes it: more to measure how often the order
/// matters.
fn rounds() -> usize {
    let given = std::env::var("BATON_SHUTDOWNS").ok();
    given.and_then(|n| n.parse().ok()).unwrap_or(4)
}

/// One connection, as many as are no burst yet, and a burst.
const CONNECTIONS: [usize; 3] = [1, 2, 64];

#[test]
fn servers_that_quit_in_order_cost_no_idle_connection() -> Result<()> {
    quit("quit", false, &CONNECTIONS)
}

/// Each worker listens for itself, so there is no one listener that all of them let go of.
#[test]
fn servers_with_several_listeners_that_quit_cost_no_idle_connection() -> Result<()> {
    quit("quitgroup", true, &[1, 64])
}

/// So somebody listens all the while, and what the last one closes it did not mean to.
#[test]
fn a_server_whose_successor_listens_already_costs_no_idle_connection() -> Result<()> {
    let web = nginx(true);
    let mut scene = scene("succeed", &web)?;
    let mut idle = open(&scene, 64)?;
    for round in 0..rounds() {
        let answers = idle.round();
        ensure!(answers.right == 64, "round {round}: {answers:?}");
        let last = &mut scene.nginx[round % 2];
        let pod = last.pod().clone();
        let before = listeners(pod.namespace(), HTTP_PORT)?;
        let mut next = pod.nginx(&web)?;
        until("the next one listens", || {
            let now = listeners(pod.namespace(), HTTP_PORT)?;
            ensure!(now == 2 * before, "{now} listeners, {before} before");
            Ok(())
        })?;
        std::mem::swap(last, &mut next);
        next.process.quit()?;
        // Until all that ended has been judged, and a second more.
        thread::sleep(KNOWN);
        let ended = idle.ended();
        let none = ended.is_empty();
        scene.explained(none.then_some(()).with_context(|| format!("{ended:?}")))?;
    }
    let figures = scene.nothing_lost(0).context("figures")?;
    ensure!(figures.rescues_total > 0, "nothing was rescued");
    Ok(())
}

/// Several workers share the listeners with their master: whose copy is closed last is chance.
fn nginx(reuseport: bool) -> NginxOptions {
    NginxOptions { workers: 2, reuseport, ..NginxOptions::default() }
}

fn scene(name: &str, web: &NginxOptions) -> Result<Scene> {
    let mut scene = Scene::with_nginx(name, &Options::with_pods(2), web)?;
    scene.config.policies[0].migration = baton_ns::never();
    scene.start()?;
    Ok(scene)
}

fn open(scene: &Scene, count: usize) -> Result<IdleConnections> {
    let namespace = scene.lab.client().namespace();
    IdleConnections::open(namespace, scene.address(HTTP_PORT)?, count)
}

fn quit(name: &str, reuseport: bool, connections: &[usize]) -> Result<()> {
    let mut scene = scene(name, &nginx(reuseport))?;
    let rounds = rounds();
    for (count, up) in
        connections.iter().flat_map(|count| [(*count, KNOWN), (*count, Duration::ZERO)])
    {
        let closed = shut_down(&mut scene, count, up, rounds)?;
        eprintln!(
            "{count} idle connections, {rounds} shutdowns {up:?} after the start: {closed} closed"
        );
        let check = || {
            ensure!(closed == 0, "{closed} of {count} idle connections closed");
            Ok(())
        };
        scene.explained(check())?;
    }
    let figures = scene.nothing_lost(0).context("figures")?;
    ensure!(figures.rescues_total > 0, "nothing was rescued");
    Ok(())
}

/// Gives the connections that were closed.
fn shut_down(scene: &mut Scene, count: usize, up: Duration, rounds: usize) -> Result<u64> {
    let mut idle = open(scene, count)?;
    let mut closed = 0;
    for round in 0..rounds {
        let answers = idle.round();
        ensure!(answers.right == count as u64, "{count} connections, round {round}: {answers:?}");
        thread::sleep(up);
        // Each pod in turn, so that every connection is met in every second round at least.
        let nginx = &mut scene.nginx[round % 2];
        nginx.process.quit()?;
        nginx.restart()?;
        let name = nginx.pod().name().to_owned();
        scene.wait_back(0, &name)?;
        let ended: u64 = idle.ended().values().sum();
        if ended > 0 {
            closed += ended;
            idle = open(scene, count)?;
        }
    }
    Ok(closed)
}
