//! Servers under gVisor, whose TCP is no kernel's: connections move to them by translation.
//! `make test-gvisor`, which installs runsc.

use super::{nothing_was_reset, start_alone, translations};
use crate::{http_without_error, more, no_error};
use anyhow::{Result, ensure};
use baton_api::Migration;
use baton_lab::{HttpEcho, LoadOptions, Server, policy};
use baton_ns::{Scene, always};
use std::time::Duration;

const PORT: u16 = 8_083;
const REQUESTS: u64 = 5_000;
const CONNECTIONS: usize = 8;
const PACE: Duration = Duration::from_millis(5);

/// Sandboxes have no adopter: host-shim leaves them alone.
fn scene(name: &str, migration: Migration) -> Result<(Scene, Vec<Server>)> {
    let mut scene = Scene::with_pods(name, 2)?;
    let client = scene.lab.client().namespace();
    let servers = scene.lab.in_each_pod(|pod| pod.gvisor(PORT, client))?;
    let backends: Vec<_> = servers.iter().map(Server::named).collect();
    let mut gvisor = policy("gvisor", PORT, &backends);
    gvisor.migration = migration;
    scene.config.policies = vec![gvisor];
    start_alone(&mut scene)?;
    Ok((scene, servers))
}

#[test]
fn requests_to_sandboxes_each_after_a_move() -> Result<()> {
    let (scene, _servers) = scene("gvisor", always())?;
    let options = LoadOptions::of(scene.address(PORT)?, CONNECTIONS, Some(REQUESTS));
    let (report, echo) = http_without_error(&scene, options)?;
    let moves = translations(&scene)?;
    eprintln!("{:.0} requests/s, {moves} translations", report.per_second());
    ensure!(echo.pod_changes == REQUESTS - CONNECTIONS as u64);
    ensure!(moves >= REQUESTS - CONNECTIONS as u64, "{moves}");
    nothing_was_reset(&scene)
}

#[test]
fn a_sandbox_drains_without_an_error() -> Result<()> {
    let (scene, _servers) = scene("gvisordrain", Migration::default())?;
    let options = LoadOptions {
        connections: CONNECTIONS,
        pace: Some(PACE),
        ..LoadOptions::new(scene.address(PORT)?)
    };
    let load = HttpEcho::start(scene.lab.client().namespace(), options)?;
    for pod in scene.lab.pods() {
        more(&load, 200)?;
        scene.dataplane()?.tool(&["drain", pod.name(), "--wait"])?;
        more(&load, 200)?;
        scene.dataplane()?.tool(&["drain", pod.name(), "--undo"])?;
    }
    let (report, _) = load.stop()?;
    scene.explained(no_error(&report, None))?;
    nothing_was_reset(&scene)
}
