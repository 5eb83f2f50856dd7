//! Clients at rest whose connections have no leg: how many the pods have for many clients, and that
//! pods which drain or die have nothing to hand over.

use super::{failures::right, nothing_was_reset, shared::share_legs, start_alone, wait_up};
use crate::answered;
use anyhow::{Context, Result, ensure};
use baton_api::{Micros, Migration};
use baton_lab::{Arrivals, HttpEcho, IdleConnections, LoadOptions};
use baton_ns::{HTTP_PORT, Scene, tcp_sockets, until};
use std::time::Duration;

const MANY: usize = 10_000;
const IDLE: usize = 500;
const KILLS: usize = 24;
const SAMPLES: usize = 40;
const GRACE_SECONDS: u32 = 60;
/// Within which others hear that a dataplane ends (`lb-dataplane/src/ending.rs`).
const HEARD: Duration = Duration::from_secs(5);

/// Three pods without host-shim and keys, whose flows share legs and stay where they are well.
fn scene(name: &str) -> Result<Scene> {
    let mut scene = Scene::with_pods(name, 3)?;
    scene.config.policies[0].migration = Migration::default();
    share_legs(&mut scene);
    start_alone(&mut scene)?;
    Ok(scene)
}

/// TCP sockets that the kernels of the pods have.
fn sockets(scene: &Scene) -> Result<Vec<usize>> {
    let pods = scene.nginx.iter();
    pods.map(|nginx| tcp_sockets(nginx.pod().namespace())).collect()
}

/// Each client asks once a second, at its own time. Then one pod drains.
#[test]
fn many_clients_have_few_connections_at_the_pods() -> Result<()> {
    let mut scene = scene("leglessmany")?;
    let listeners = sockets(&scene)?;
    let connections = |scene: &Scene| -> Result<Vec<usize>> {
        let all = sockets(scene)?;
        let counts = all.iter().zip(&listeners);
        Ok(counts.map(|(all, listen)| all - listen).collect())
    };
    let options = LoadOptions {
        connections: MANY,
        arrivals: Some(Arrivals { per_second: MANY as f64, zipf: 0.0, seed: 1 }),
        ..LoadOptions::new(scene.address(HTTP_PORT)?)
    };
    let load = HttpEcho::start(scene.lab.client().namespace(), options)?;
    answered(&load, 5 * MANY as u64)?;
    let mut seen = Vec::new();
    for sample in 0..SAMPLES as u64 {
        answered(&load, 5 * MANY as u64 + sample * 500)?;
        seen.push(connections(&scene)?.iter().sum::<usize>());
    }
    seen.sort_unstable();
    let before = connections(&scene)?;
    scene.config.policies[0].backends[0].draining = true;
    scene.reconfigure()?;
    let mut took = Micros(0);
    let empty = until("pod-a empty", || {
        let pod = scene.backend(0, "pod-a")?;
        ensure!(pod.flows == 0, "{} flows", pod.flows);
        took = pod.drain.context("it drains")?.since;
        Ok(())
    });
    scene.explained(empty)?;
    eprintln!(
        "{MANY} clients: {} connections at the pods at the median, {} at most; pod-a drained in {took:?} of {before:?}",
        seen[SAMPLES / 2],
        seen[SAMPLES - 1],
    );
    let (report, _) = load.stop()?;
    eprintln!("{:.0} requests/s, {:?}", report.per_second(), report.latency);
    let check = || {
        ensure!(report.error_count() == 0, "{:?}", report.errors);
        ensure!(seen[SAMPLES / 2] < MANY / 20, "{seen:?}");
        Ok(())
    };
    scene.explained(check())?;
    nothing_was_reset(&scene)
}

/// Whenever a pod dies, some clients are at rest without a leg, and some still have theirs.
#[test]
fn clients_at_rest_outlive_every_pod() -> Result<()> {
    let mut scene = scene("leglesskill")?;
    scene.config.policies[0].health.failure_threshold = 0;
    scene.reconfigure()?;
    let client = scene.lab.client().namespace();
    let mut idle = IdleConnections::open(client, scene.address(HTTP_PORT)?, IDLE)?;
    for kill in 0..KILLS {
        right(&scene, &mut idle)?;
        let name = scene.kill(kill)?;
        wait_up(&scene, 0, &name)?;
    }
    right(&scene, &mut idle)?;
    let flows: u64 = scene.policy(0)?.flows;
    eprintln!(
        "{flows} clients, {KILLS} kills: {} times a leg was left, {} rescues",
        scene.counter("legs_left_total")?,
        scene.policy(0)?.rescues_total,
    );
    ensure!(scene.counter("legs_left_total")? > (KILLS * IDLE / 2) as u64);
    ensure!(scene.counter("closes_believed_total")? == 0);
    nothing_was_reset(&scene)
}

/// A server whose connection nobody ends keeps it for as long as it likes.
#[test]
fn a_dataplane_that_ends_leaves_the_pods_no_connections() -> Result<()> {
    let mut scene = Scene::with_pods("legsend", 3)?;
    scene.config.policies[0].migration = Migration::default();
    scene.config.grace_seconds = GRACE_SECONDS;
    share_legs(&mut scene);
    start_alone(&mut scene)?;
    let listeners = sockets(&scene)?;
    let load = HttpEcho::start(
        scene.lab.client().namespace(),
        LoadOptions::of(scene.address(HTTP_PORT)?, 32, None),
    )?;
    answered(&load, 1_000)?;
    let mut dataplane = scene.dataplane.take().context("it runs")?;
    std::thread::scope(|scope| {
        let ends = scope.spawn(|| dataplane.process.terminate());
        // It waits so long in any case; then nobody is left, all of a sudden.
        std::thread::sleep(HEARD + Duration::from_secs(1));
        load.stop()?;
        ends.join().expect("no panic")
    })?;
    let left = sockets(&scene)?;
    ensure!(left == listeners, "{left:?} sockets, {listeners:?} before");
    Ok(())
}
