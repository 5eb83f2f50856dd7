//! A firewall between dataplane and pods that keeps track of connections and lets none through
//! whose SYN it has not seen: probes and adoptions meet silence there, and connections move by
//! translation without being told.

use super::{nobody_noticed, nothing_was_reset, translations, wait_up};
use crate::{more, no_error, none_waited};
use anyhow::{Result, ensure};
use baton_lab::Tracker;
use baton_ns::{Scene, nft};

const CONNECTIONS: usize = 32;
const REQUESTS: u64 = 60_000;
const SILENT: &str = "no answer to probes (a firewall, or addresses translated on the way?)";

/// The router drops what is new without a SYN, INVALID, or, as tracking is strict, both.
fn strict(scene: &Scene) -> Result<Tracker> {
    let tracker = scene.lab.track()?;
    tracker.set("tcp_loose", 0)?;
    let node = scene.lab.router().namespace();
    nft(node, "add table inet strict")?;
    nft(
        node,
        "add chain inet strict forward { type filter hook forward priority -1; policy accept; }",
    )?;
    nft(
        node,
        "add rule inet strict forward ct state new tcp flags & (fin|syn|rst|ack) != syn counter drop",
    )?;
    Ok(tracker)
}

/// The adopters are there, and nobody knows that adoptions cannot reach them.
fn scene(name: &str) -> Result<(Scene, Tracker)> {
    let mut scene = Scene::with_pods(name, 3)?;
    let tracker = strict(&scene)?;
    scene.start_shim()?;
    scene.start_dataplane()?;
    Ok((scene, tracker))
}

#[test]
fn connections_move_through_a_firewall_that_wants_to_see_a_syn() -> Result<()> {
    let (scene, tracker) = scene("strict")?;
    // That takes 2 s of silence. Until then nothing moves.
    for pod in scene.lab.pods() {
        scene.wait_reason(pod.name(), SILENT)?;
    }
    let load = scene.echo(CONNECTIONS, Some(REQUESTS))?;
    let (report, echo) = load.join()?;
    let moves = translations(&scene)?;
    eprintln!(
        "{:.0} requests/s, {moves} translations, {:?}, {} packets INVALID",
        report.per_second(),
        report.latency,
        tracker.invalid()?
    );
    scene.explained(no_error(&report, Some(REQUESTS)))?;
    scene.explained(none_waited(&report))?;
    let adopted = scene.counter("migrations_total")? - moves;
    ensure!(adopted == 0, "{adopted} were adopted");
    ensure!(moves > REQUESTS / 2, "{moves} of {REQUESTS}");
    ensure!(echo.per_pod.len() == 3, "{:?}", echo.per_pod);
    nothing_was_reset(&scene)
}

#[test]
fn a_pod_behind_such_a_firewall_is_killed_and_comes_back() -> Result<()> {
    let (mut scene, tracker) = scene("strictkill")?;
    let load = scene.echo(CONNECTIONS, None)?;
    more(&load, 2_000)?;
    for at in 0..scene.nginx.len() {
        let name = scene.kill(at)?;
        wait_up(&scene, 0, &name)?;
        more(&load, 2_000)?;
    }
    let (report, _) = load.stop()?;
    nobody_noticed(&scene, &report)?;
    let rescued = scene.policy(0)?.rescues_total;
    eprintln!("{rescued} rescued, {:?}", report.latency);
    ensure!(rescued > 0, "nothing was rescued");
    tracker.remove()
}
