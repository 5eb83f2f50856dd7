//! Servers that cannot adopt, as they are: Go's own listener, beside pods that adopt.

use super::{moves_to, nothing_was_reset, translations};
use crate::{http_without_error, more, no_error};
use anyhow::{Result, ensure};
use baton_api::{Algorithm, Endpoint, Migration};
use baton_lab::{HttpEcho, LoadOptions, Server, policy};
use baton_ns::{Scene, always, until};
use std::{fs, time::Duration};

const PORT: u16 = 8_082;
const MPTCP: &str = "the pod's kernel refuses (an MPTCP listener?)";
/// `/proc/sys/net` shows the namespace of the thread that opens it.
const ENABLED: &str = "/proc/sys/net/mptcp/enabled";
const REQUESTS: u64 = 20_000;
const CONNECTIONS: usize = 32;
const PACE: Duration = Duration::from_millis(2);

/// Pods with servers of Go, the shim on the node, and a policy for them alone.
fn scene(name: &str, pods: usize, migration: Migration) -> Result<(Scene, Vec<Server>)> {
    let mut scene = Scene::with_pods(name, pods)?;
    let servers = scene.lab.in_each_pod(|pod| pod.go(PORT))?;
    let backends: Vec<_> = servers.iter().map(Server::named).collect();
    let mut go = policy("go", PORT, &backends);
    go.migration = migration;
    scene.config.policies = vec![go];
    scene.start_shim()?;
    scene.start_dataplane()?;
    for pod in scene.lab.pods() {
        scene.wait_reason(pod.name(), MPTCP)?;
    }
    Ok((scene, servers))
}

#[test]
fn requests_to_servers_of_go_each_after_a_move() -> Result<()> {
    let (scene, servers) = scene("gohttp", 3, always())?;
    let options = LoadOptions::of(scene.address(PORT)?, CONNECTIONS, Some(REQUESTS));
    let (report, echo) = http_without_error(&scene, options)?;
    let moves = translations(&scene)?;
    eprintln!("{:.0} requests/s, {moves} translations", report.per_second());
    assert_eq!(echo.pod_changes, REQUESTS - CONNECTIONS as u64);
    ensure!(moves >= REQUESTS - CONNECTIONS as u64, "{moves}");
    nothing_was_reset(&scene)?;
    drop(servers);
    Ok(())
}

/// A policy that disables Multipath TCP changes nothing of listeners that there are; those that are
/// made afterwards are plain, and adopt.
#[test]
fn servers_of_go_adopt_where_multipath_tcp_is_disabled() -> Result<()> {
    let (mut scene, mut servers) = scene("goplain", 3, always())?;
    for pod in &mut scene.shim_config.pods {
        pod.multipath_tcp = Some("Disabled");
    }
    scene.start_shim()?;
    for pod in scene.lab.pods() {
        let enabled = pod.namespace().run(|| fs::read_to_string(ENABLED))?;
        ensure!(enabled?.trim() == "0", "{}", pod.name());
        scene.wait_reason(pod.name(), MPTCP)?;
    }
    for server in &mut servers {
        server.process.terminate()?;
        server.restart()?;
    }
    scene.wait_adoptable()?;
    let before = translations(&scene)?;
    let options = LoadOptions::of(scene.address(PORT)?, CONNECTIONS, Some(REQUESTS));
    let (_, echo) = http_without_error(&scene, options)?;
    assert_eq!(echo.pod_changes, REQUESTS - CONNECTIONS as u64);
    assert_eq!(translations(&scene)?, before, "moved by translation");
    nothing_was_reset(&scene)
}

/// A drain and a kill with the default mode: what the servers' users have.
#[test]
fn a_server_of_go_drains_and_dies_without_an_error() -> Result<()> {
    let (scene, mut servers) = scene("godrain", 2, Migration::default())?;
    let options = LoadOptions {
        connections: CONNECTIONS,
        pace: Some(PACE),
        ..LoadOptions::new(scene.address(PORT)?)
    };
    let load = HttpEcho::start(scene.lab.client().namespace(), options)?;
    more(&load, 500)?;
    scene.dataplane()?.tool(&["drain", "pod-a", "--wait"])?;
    ensure!(moves_to(&scene, "pod-b")? > 0, "nothing moved");
    more(&load, 500)?;
    scene.dataplane()?.tool(&["drain", "pod-a", "--undo"])?;
    // New ones go back little by little; the other pod dies with those that it has.
    until("drained no more", || {
        let backend = scene.backend(0, "pod-a")?;
        ensure!(backend.drain.is_none() && !backend.draining, "{backend:?}");
        Ok(())
    })?;
    servers[1].process.crash()?;
    servers[1].restart()?;
    super::wait_up(&scene, 0, "pod-b")?;
    more(&load, 500)?;
    let (report, _) = load.stop()?;
    scene.explained(no_error(&report, None))?;
    let moves = translations(&scene)?;
    let rescued = scene.policy(0)?.rescues_total;
    eprintln!("{moves} translations, {rescued} of them rescues");
    ensure!(rescued > 0, "nothing was rescued");
    nothing_was_reset(&scene)
}

/// One pod adopts and the other does not: connections go to and fro.
#[test]
fn connections_go_between_go_and_nginx() -> Result<()> {
    let mut scene = Scene::with_pods("gonginx", 2)?;
    let server = scene.lab.pods()[0].go(PORT)?;
    scene.config.policies[0].algorithm = Algorithm::WeightedRoundRobin;
    let backend = &mut scene.config.policies[0].backends[0];
    let address = server.address();
    if let Some(endpoint) = Endpoint::new(address.ip(), address.port()) {
        backend.endpoint = endpoint;
    }
    scene.start_shim()?;
    scene.start_dataplane()?;
    scene.wait_reason("pod-a", MPTCP)?;
    scene.wait_reason("pod-b", "ready")?;
    let options = scene.http_load(CONNECTIONS, Some(REQUESTS))?;
    let (_, echo) = http_without_error(&scene, options)?;
    assert_eq!(echo.pod_changes, REQUESTS - CONNECTIONS as u64);
    let (to_go, to_nginx) = (moves_to(&scene, "pod-a")?, moves_to(&scene, "pod-b")?);
    let moves = translations(&scene)?;
    eprintln!("{to_go} moves to Go, {to_nginx} to nginx, {moves} translations");
    ensure!(to_go > 0 && to_nginx > 0 && moves == to_go, "{moves}");
    nothing_was_reset(&scene)
}
