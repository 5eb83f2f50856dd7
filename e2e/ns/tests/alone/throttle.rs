//! A pod that loses its CPU loses its requests to the others. How much faster that is, `make demo`
//! measures.

use crate::http_without_error;
use anyhow::{Result, ensure};
use baton_api::{Algorithm, Migration};
use baton_ns::{Scene, never, until};

const CONNECTIONS: usize = 64;
const REQUESTS: u64 = 60_000;

#[test]
fn requests_leave_a_throttled_pod() -> Result<()> {
    let mut scene = Scene::with_pods("throttle", 4)?;
    // New flows go to every pod alike, also to the slow one: what leaves it has moved.
    scene.config.policies[0].algorithm = Algorithm::WeightedRoundRobin;
    scene.start()?;
    scene.lab.pods()[0].throttle(5.0)?;
    let mut shares = Vec::new();
    for migration in [never(), Migration::default()] {
        scene.config.policies[0].migration = migration;
        scene.reconfigure()?;
        let options = scene.http_load(CONNECTIONS, Some(REQUESTS))?;
        let (report, echo) = http_without_error(&scene, options)?;
        let share = echo.per_pod.get("pod-a").copied().unwrap_or(0);
        eprintln!("{:?}: pod-a served {share}, {:?}", migration.mode, report.latency);
        shares.push(share);
    }
    let state = scene.state()?;
    let slow = &state.policies[0].backends[0];
    assert!(slow.migrations_out_total > 0, "nothing left the throttled pod: {slow:?}");
    assert!(shares[1] < shares[0], "pod-a served {shares:?} of {REQUESTS} requests each");
    Ok(())
}

/// With half a CPU, what is burnt in a period is missing at its end. One connection asks for less
/// than that.
#[test]
fn a_dataplane_with_half_a_cpu_does_not_wait_awake() -> Result<()> {
    const REQUESTS: u64 = 20_000;
    let mut scene = Scene::with_pods("half", 1)?;
    scene.config.policies[0].migration = never();
    scene.start()?;
    let spins = |scene: &Scene| scene.counter("io_spins_total");
    let pod = scene.lab.dataplane_pod();
    let load = || -> Result<(u64, u64)> {
        let before = (spins(&scene)?, pod.throttled_periods()?);
        let options = scene.http_load(1, Some(REQUESTS))?;
        let (report, _) = http_without_error(&scene, options)?;
        let after = (spins(&scene)?, pod.throttled_periods()?);
        let cost = (after.0 - before.0, after.1 - before.1);
        eprintln!(
            "{:.0} requests/s, {:?}: {} spins, {} periods throttled",
            report.per_second(),
            report.latency,
            cost.0,
            cost.1
        );
        Ok(cost)
    };
    // With all of a CPU it does, however rarely that pays beside the rest of this machine.
    let (spun, _) = load()?;
    ensure!(spun > 0, "no spins");
    pod.throttle(50.0)?;
    // It looks once a second.
    until("frames waited for asleep", || {
        let before = spins(&scene)?;
        http_without_error(&scene, scene.http_load(1, Some(200))?)?;
        let more = spins(&scene)? - before;
        ensure!(more == 0, "{more} spins with 200 requests");
        Ok(())
    })?;
    let (spun, _) = load()?;
    assert_eq!(spun, 0);
    pod.unthrottle()?;
    Ok(())
}
