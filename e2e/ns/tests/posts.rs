//! Requests that must not be executed twice, over pods that are killed at every moment of them.

use anyhow::{Result, ensure};
use baton_api::{BackendFailure, BackendHealth};
use baton_lab::{LoadOptions, PostCount, Server};
use baton_ns::{Scene, always, until};
use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

const PORT: u16 = 8_080;
const CONNECTIONS: usize = 64;
/// Before and after a request is written down: most of a request's time, so that kills hit both.
const PHASE: Duration = Duration::from_millis(4);
const COUNTING: usize = 1;

/// `BATON_KILLS` changes it, as in the rescue tests.
fn kills() -> usize {
    let given = std::env::var("BATON_KILLS").ok();
    given.and_then(|n| n.parse().ok()).unwrap_or(500)
}

#[test]
fn no_post_is_counted_twice_and_each_unknown_one_is_in_the_figures() -> Result<()> {
    let mut scene = Scene::with_pods("posts", 4)?;
    let mut counters = scene.add_counters(PORT, PHASE)?;
    let counting = &mut scene.config.policies[COUNTING];
    counting.on_backend_failure = BackendFailure::ReplayIdempotent;
    counting.migration = always();
    // A pod that fails so often is rightly ejected for ever longer; here it shall go on dying.
    counting.health.failure_threshold = 0;
    scene.start()?;
    let options = LoadOptions::of(scene.address(PORT)?, CONNECTIONS, None);
    let load = PostCount::start(scene.lab.client().namespace(), options)?;

    let (start, mut killed) = (Instant::now(), 0);
    // Two at a time: half of the service is gone at once, and the other half must take its flows.
    for pair in [[0, 2], [1, 3]].iter().cycle() {
        if killed >= kills() {
            break;
        }
        // Each kill meets pods that are at work.
        let seen = load.progress().requests.load(Ordering::Relaxed);
        crate::answered(&load, seen + CONNECTIONS as u64)?;
        for at in pair {
            counters[*at].process.crash()?;
            killed += 1;
        }
        // Restarted only once both deaths are known: else the next two die while these two still
        // count as dead, and a new connection finds nobody.
        for at in pair {
            wait_health(&scene, &counters[*at], false)?;
        }
        for at in pair {
            counters[*at].restart()?;
            wait_health(&scene, &counters[*at], true)?;
        }
    }
    eprintln!("{killed} kills, {:?} for each", start.elapsed() / u32::try_from(killed)?);
    let (report, posts) = load.stop()?;
    let tally = posts.tally(&counters)?;
    eprintln!("{tally:?}, errors {:?}", report.errors);
    let figures = scene.policy(COUNTING)?;
    eprintln!(
        "{} rescued, {} replayed, lost {:?}",
        figures.rescues_total, figures.replays_total, figures.lost_total
    );
    let lost: u64 = figures.lost_total.values().sum();
    let check = || {
        ensure!(tally.twice == 0, "counted twice: {tally:?}");
        ensure!(tally.missing == 0, "answered, not counted: {tally:?}");
        ensure!(tally.answered == report.requests, "{tally:?}");
        // Requests that were on their way when the load was stopped.
        ensure!(tally.strange <= CONNECTIONS as u64, "{tally:?}");
        // The client learned of each unknown fate by the end of its connection, as the server's
        // kernel ended it: FIN where the request had been read, RST where it had not. It saw
        // nothing else.
        ensure!(
            report.errors.keys().all(|kind| kind == "reset" || kind == "closed"),
            "{:?}",
            report.errors
        );
        ensure!(
            report.error_count() == tally.unknown,
            "{} errors for {} requests of unknown fate",
            report.error_count(),
            tally.unknown
        );
        ensure!(
            lost == tally.unknown,
            "{lost} lost in the figures, {} to the client",
            tally.unknown
        );
        ensure!(figures.replays_total == 0, "a POST was replayed");
        ensure!(figures.rescues_total > 0, "nothing was rescued");
        // Kills met requests that were executed and requests that were not.
        ensure!(tally.unknown_counted > 0 && tally.unknown > tally.unknown_counted, "{tally:?}");
        Ok(())
    };
    scene.explained(check())
}

fn wait_health(scene: &Scene, counter: &Server, up: bool) -> Result<()> {
    let name = counter.pod().name();
    let there = until(&format!("{name} {}", if up { "up" } else { "down" }), || {
        let backend = scene.backend(COUNTING, name)?;
        ensure!(
            (backend.adoptability.is_ready() && backend.health == BackendHealth::Up) == up,
            "{}, {}",
            backend.health,
            backend.adoptability
        );
        Ok(())
    });
    scene.explained(there)
}
