//! Pods that say nothing any more: a frozen process, an interface that is gone, a node that drops
//! everything.

use crate::{more, no_error};
use anyhow::{Result, ensure};
use baton_api::{Micros, Migration, MigrationMode};
use baton_lab::{HttpClient, HttpEcho, Load, LoadOptions};
use baton_ns::{HTTP_PORT, Scene, nft, until};
use std::{
    thread,
    time::{Duration, Instant},
};

const CONNECTIONS: usize = 64;
/// 64 connections with a request every 10 ms: 6,400 a second, far from saturation.
const PACE: Duration = Duration::from_millis(10);
const FREEZE: Duration = Duration::from_secs(2);
/// Short, for the p99 of a freeze; and long enough that no pod is ejected because the machine is
/// busy.
const FREEZE_TIMEOUT: Micros = Micros::from_millis(50);
const RESPONSE_TIMEOUT: Micros = Micros::from_millis(250);
/// Enough for a p99 of 20,000 requests.
const BEFORE: Duration = Duration::from_secs(3);
/// Pods that are frozen, by number.
const FROZEN: [usize; 3] = [1, 2, 3];
/// Of a round: settling, before, frozen.
const PHASES: usize = 3;

/// One pod after the other, and the median of the ratios: whatever else the machine does for a
/// second spoils one of them.
#[test]
fn a_frozen_pod_is_noticed_by_few() -> Result<()> {
    let mut scene = scene("frozen", MigrationMode::WhenBetter, FREEZE_TIMEOUT)?;
    let load = start(&scene)?;
    for pod in FROZEN {
        // Connections, caches and estimates settle in a phase of their own.
        settle(&load)?;
        load.progress().next_phase();
        thread::sleep(BEFORE);
        load.progress().next_phase();
        scene.nginx[pod].process.freeze()?;
        thread::sleep(FREEZE);
        scene.nginx[pod].process.thaw()?;
        load.progress().next_phase();
        // It is used again once it answers.
        let name = scene.lab.pods()[pod].name().to_owned();
        scene.wait_back(0, &name)?;
    }
    settle(&load)?;
    let (report, _) = load.stop()?;
    let mut rounds = Vec::new();
    for round in report.phases.chunks_exact(PHASES) {
        let (before, during) = (round[1], round[2]);
        eprintln!("before {before:?}\nduring {during:?}");
        rounds.push((during.p99_us * 100 / before.p99_us, before, during));
    }
    rounds.sort_by_key(|round| round.0);
    scene.explained(no_error(&report, None))?;
    let figures = scene.nothing_lost(0)?;
    eprintln!("{} rescued, {} replayed", figures.rescues_total, figures.replays_total);
    let few = || {
        ensure!(rounds.len() == FROZEN.len(), "{} rounds", rounds.len());
        ensure!(figures.replays_total > 0, "no request was sent again during the freeze");
        let (ratio, before, during) = rounds[FROZEN.len() / 2];
        ensure!(
            ratio <= 300,
            "the p99 during a freeze is {ratio} % of the one before: {during:?} after {before:?}"
        );
        Ok(())
    };
    scene.explained(few())
}

#[test]
fn an_interface_that_is_gone() -> Result<()> {
    let scene = scene("vanish", MigrationMode::DrainOnly, RESPONSE_TIMEOUT)?;
    let load = start(&scene)?;
    settle(&load)?;
    load.progress().next_phase();
    occupied(&scene, "pod-b")?;
    let start = Instant::now();
    scene.lab.pods()[1].namespace().ip(&["link", "del", "eth0"])?;
    let detected = detection(&scene, "pod-b", start)?;
    more(&load, 5_000)?;
    finish(&scene, load, "interface gone", detected)
}

#[test]
fn a_node_that_drops_everything_and_comes_back() -> Result<()> {
    let scene = scene("silent", MigrationMode::DrainOnly, RESPONSE_TIMEOUT)?;
    let load = start(&scene)?;
    settle(&load)?;
    load.progress().next_phase();
    occupied(&scene, "pod-b")?;
    let router = scene.lab.router().namespace();
    nft(router, "add table ip silent")?;
    nft(router, "add chain ip silent forward { type filter hook forward priority 0; }")?;
    let start = Instant::now();
    let address = scene.lab.pods()[1].ipv4();
    nft(router, &format!("add rule ip silent forward ip daddr {address} drop"))?;
    let detected = detection(&scene, "pod-b", start)?;
    more(&load, 5_000)?;
    nft(router, "delete table ip silent")?;
    scene.wait_back(0, "pod-b")?;
    settle(&load)?;
    finish(&scene, load, "node silent", detected)
}

/// Without a load there are no failures and nothing is overdue: that the pod is gone shows only by
/// its adopter's silence.
#[test]
fn idle_connections_leave_a_pod_that_is_gone() -> Result<()> {
    let scene = scene("vanishidle", MigrationMode::WhenBetter, RESPONSE_TIMEOUT)?;
    let address = scene.address(HTTP_PORT)?;
    let mut clients = (0..CONNECTIONS)
        .map(|_| HttpClient::connect(scene.lab.client().namespace(), address))
        .collect::<Result<Vec<_>>>()?;
    let mut all_work = || -> Result<()> {
        for client in &mut clients {
            ensure!(client.get("/")?.body == b"ok", "wrong body");
        }
        Ok(())
    };
    all_work()?;
    let there = occupied(&scene, "pod-b")?;
    let pod = scene.lab.pods()[1].namespace();
    pod.ip(&["link", "del", "eth0"])?;
    detection(&scene, "pod-b", Instant::now())?;
    let gone = until("counted", || {
        let silent = scene.counter("owners_lost_total{how=\"silent\"}")?;
        ensure!(silent == there, "{silent} owners silent, {there} flows there");
        let rescued = scene.backend(0, "pod-b")?.rescued_total;
        ensure!(rescued == there, "{rescued} rescued of {there}");
        Ok(())
    });
    scene.explained(gone)?;
    let all = all_work();
    scene.explained(all)?;
    scene.nothing_lost(0).map(drop)
}

fn scene(name: &str, mode: MigrationMode, timeout: Micros) -> Result<Scene> {
    let mut scene = Scene::with_pods(name, 4)?;
    scene.config.policies[0].migration = Migration { mode, ..Migration::default() };
    scene.config.policies[0].response_timeout = Some(timeout);
    scene.config.policies[0].health.base_ejection_time = Micros::from_secs(3);
    scene.start()?;
    Ok(scene)
}

fn start(scene: &Scene) -> Result<Load<HttpEcho>> {
    let options = LoadOptions { pace: Some(PACE), ..scene.http_load(CONNECTIONS, None)? };
    HttpEcho::start(scene.lab.client().namespace(), options)
}

fn settle(load: &Load<HttpEcho>) -> Result<()> {
    more(load, 2_000)?;
    Ok(())
}

/// Flows of a backend that is about to go. Without any there would be nothing to rescue.
fn occupied(scene: &Scene, backend: &str) -> Result<u64> {
    let there = scene.backend(0, backend)?.flows;
    ensure!(there > 0, "nobody is at {backend}");
    Ok(there)
}

/// Time until the dataplane calls the backend anything but up and has no flow there.
fn detection(scene: &Scene, backend: &str, since: Instant) -> Result<Duration> {
    let found = until("detected", || {
        let found = scene.backend(0, backend)?;
        ensure!(
            !found.health.is_up() && found.flows == 0,
            "{} with {} flows",
            found.health,
            found.flows
        );
        Ok(found.health)
    });
    let health = scene.explained(found)?;
    let detected = since.elapsed();
    eprintln!("{backend} is `{health}` and empty after {detected:?}");
    Ok(detected)
}

fn finish(scene: &Scene, load: Load<HttpEcho>, what: &str, detected: Duration) -> Result<()> {
    let (report, _) = load.stop()?;
    eprintln!(
        "{what}: detected in {detected:?}; before {:?}\nafter {:?}",
        report.phases[0], report.phases[1]
    );
    scene.explained(no_error(&report, None))?;
    let figures = scene.nothing_lost(0)?;
    ensure!(figures.rescues_total > 0, "nothing was rescued");
    Ok(())
}
