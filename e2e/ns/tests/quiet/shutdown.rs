//! Servers that shut down in order without a drain before it: they close idle connections and
//! listeners themselves, in whatever order, and no client's connection ends.

use anyhow::{Context, Result, ensure};
use baton_lab::{IdleConnections, NginxOptions, Options};
use baton_ns::{HTTP_PORT, Scene};
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

fn quit(name: &str, reuseport: bool, connections: &[usize]) -> Result<()> {
    let options = Options {
        pods: 2,
        ..Options::default()
    };
    // Several workers share the listeners with their master: whose copy is closed last is chance.
    let web = NginxOptions {
        workers: 2,
        reuseport,
        ..NginxOptions::default()
    };
    let mut scene = Scene::with_nginx(name, &options, &web)?;
    scene.config.policies[0].migration = baton_ns::never();
    scene.start()?;
    let rounds = rounds();
    for (count, up) in connections
        .iter()
        .flat_map(|count| [(*count, KNOWN), (*count, Duration::ZERO)])
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
    let namespace = scene.lab.client().namespace().clone();
    let address = scene.address(HTTP_PORT)?;
    let open = || IdleConnections::open(&namespace, address, count);
    let mut idle = open()?;
    let mut closed = 0;
    for round in 0..rounds {
        let answers = idle.round();
        ensure!(
            answers.right == count as u64,
            "{count} connections, round {round}: {answers:?}"
        );
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
            idle = open()?;
        }
    }
    Ok(closed)
}
