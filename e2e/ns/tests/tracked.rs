//! Nodes that track connections and drop what tracking calls INVALID, and ports that closed
//! connections hold: the same pair of leg port and Pod is used again and again while somebody on
//! the way may remember its last use. `make soak-tracked` and `make bench-short` have the figures.

use crate::{http_without_error, more, no_error, none_waited};
use anyhow::{Result, ensure};
use baton_api::Migration;
use baton_lab::HttpEcho;
use baton_ns::{Scene, until};

const PODS: usize = 4;
const CONNECTIONS: usize = 64;
/// Each of them is used some three times by [`REQUESTS`], the last of them long before the first is
/// forgotten (120 s).
const LEG_PORTS: &str = "20000-32767";
const PAIRS: u64 = 12_768 * PODS as u64;
const REQUESTS: u64 = 180_000;

/// 8,192 pairs, each of which is used five times within seconds. Not fewer ports: one rests 100 ms
/// after a clean close.
const FEW_PORTS: &str = "20000-22047";
const SHORT: u64 = 40_000;
const SHORT_AT_A_TIME: usize = 32;

#[test]
fn pairs_of_port_and_pod_are_used_again_behind_a_node_that_remembers() -> Result<()> {
    let mut scene = Scene::with_pods("tracked", PODS)?;
    let tracker = scene.lab.track()?;
    scene.config.ports = LEG_PORTS.into();
    scene.start()?;
    let load = scene.echo(CONNECTIONS, Some(REQUESTS))?;
    // A rescue in the middle: its legs end in another way than those of moves.
    more(&load, REQUESTS / 3)?;
    scene.nginx[1].process.crash()?;
    scene.nginx[1].restart()?;
    scene.wait_back(0, "pod-b")?;
    let (report, _) = load.join()?;
    let moves = scene.counter("migrations_total")?;
    eprintln!(
        "{:.0} requests/s, {moves} moves over {PAIRS} pairs, {:?}, {} packets INVALID",
        report.per_second(),
        report.latency,
        tracker.invalid()?
    );
    scene.explained(no_error(&report, Some(REQUESTS)))?;
    scene.explained(none_waited(&report))?;
    ensure!(moves > 2 * PAIRS, "no pair was used again: {moves} moves");
    Ok(())
}

fn short(scene: &Scene, way: &str) -> Result<()> {
    let before = scene.counter("drops_total{reason=\"no_port\"}")?;
    let options = scene.http_load(SHORT_AT_A_TIME, Some(SHORT))?;
    let load = HttpEcho::start_short(scene.lab.client().namespace(), options)?;
    let (report, _) = load.join()?;
    let dropped = scene.counter("drops_total{reason=\"no_port\"}")? - before;
    eprintln!(
        "{way}: {:.0} connections/s, {:?}, {dropped} without a port",
        report.per_second(),
        report.latency
    );
    scene.explained(no_error(&report, Some(SHORT)))?;
    ensure!(report.announced == SHORT, "the server closes each of them");
    scene.explained(none_waited(&report))?;
    ensure!(dropped == 0, "{dropped} SYNs had no port");
    Ok(())
}

#[test]
fn connections_that_the_server_closes_never_run_out_of_ports() -> Result<()> {
    let mut scene = Scene::with_pods("short", PODS)?;
    scene.config.ports = FEW_PORTS.into();
    scene.config.policies[0].migration = Migration::default();
    scene.start()?;
    short(&scene, "no tracking")?;
    let tracker = scene.lab.track()?;
    short(&scene, "tracked")?;
    eprintln!("{} packets INVALID", tracker.invalid()?);
    Ok(())
}

#[test]
fn the_shim_tells_how_full_the_nodes_table_is() -> Result<()> {
    let mut scene = Scene::with_pods("table", 2)?;
    let tracker = scene.lab.track()?;
    scene.start()?;
    let options = scene.http_load(8, Some(1_000))?;
    http_without_error(&scene, options)?;
    scene.wait_legs_closed()?;
    // Entries end by themselves meanwhile, and health checks make some.
    until("told as the kernel has it", || {
        let (before, told, after) = (
            tracker.entries()?,
            scene.shim_counter(&["baton_shim_conntrack_used_entries"])?,
            tracker.entries()?,
        );
        let between = before.min(after)..=before.max(after);
        ensure!(between.contains(&told), "{told} of {between:?}");
        ensure!(told > 0, "nothing is tracked");
        Ok(())
    })?;
    let limit = scene.shim_counter(&["baton_shim_conntrack_limit_entries"])?;
    ensure!(limit == tracker.entries_max()?, "{limit}");
    scene.shim_counter(&["baton_shim_conntrack_invalid_packets_total"])?;
    Ok(())
}
