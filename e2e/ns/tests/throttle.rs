//! A pod that loses its CPU loses its requests to the others. How much faster that is, `make demo` measures.

use crate::http_without_error;
use anyhow::Result;
use baton_api::{Algorithm, Migration};
use baton_ns::{Scene, never};

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
        eprintln!(
            "{:?}: pod-a served {share}, {:?}",
            migration.mode, report.latency
        );
        shares.push(share);
    }
    let state = scene.state()?;
    let slow = &state.policies[0].backends[0];
    assert!(
        slow.migrations_out_total > 0,
        "nothing left the throttled pod: {slow:?}"
    );
    assert!(
        shares[1] < shares[0],
        "pod-a served {shares:?} of {REQUESTS} requests each"
    );
    Ok(())
}
