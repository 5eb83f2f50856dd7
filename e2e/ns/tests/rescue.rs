//! Pods that are killed, restarted and terminated under load: no client sees it, and each rescue is
//! in the figures.

use crate::{more, no_error};
use anyhow::{Result, ensure};
use baton_api::{Migration, PolicyState};
use baton_lab::{HttpEcho, Load, LoadOptions, LoadReport, Options, Wrk, WrkOptions};
use baton_ns::{HTTP_PORT, Scene, established, until};
use std::{
    thread,
    time::{Duration, Instant},
};

const CONNECTIONS: u32 = 256;
/// 256 connections with 20 ms between requests are 12,000 requests a second, which leaves the
/// machine room for restarts.
const THINK: Duration = Duration::from_millis(20);
/// wrk wants to know its duration before; it is ended when the test is done.
const LONG: Duration = Duration::from_secs(3_600);
/// Connections of the client that checks every byte.
const CHECKING: usize = 16;
const CHECKING_PACE: Duration = Duration::from_millis(4);

/// `BATON_KILLS` changes it: more in a soak, fewer while looking for a bug.
pub fn kills() -> usize {
    let given = std::env::var("BATON_KILLS").ok();
    given.and_then(|n| n.parse().ok()).unwrap_or(200)
}

/// How the servers end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// By SIGKILL.
    Killed,
    /// By SIGTERM: what is being answered then may say `Connection: close`.
    InOrder,
}

/// Both clients, which run until they are ended.
struct Clients {
    wrk: Wrk,
    checking: Load<HttpEcho>,
}

impl Clients {
    fn start(scene: &Scene) -> Result<Self> {
        let address = scene.address(HTTP_PORT)?;
        let wrk = scene.lab.clients()[1].wrk(&WrkOptions {
            connections: CONNECTIONS,
            think: THINK,
            body: Some("ok".into()),
            ..WrkOptions::new(address, LONG)
        })?;
        let options = LoadOptions { pace: Some(CHECKING_PACE), ..scene.http_load(CHECKING, None)? };
        let checking = HttpEcho::start(scene.lab.client().namespace(), options)?;
        // A SYN that meets no listener is refused, as it should be.
        until("all are connected", || {
            let open = established(scene.lab.clients()[1].namespace())?.len();
            ensure!(open >= CONNECTIONS as usize, "{open} connections");
            Ok(())
        })?;
        more(&checking, 500)?;
        Ok(Self { wrk, checking })
    }

    /// Ends them and asserts that they saw nothing.
    fn finish(self, scene: &Scene, end: End) -> Result<(LoadReport, PolicyState)> {
        // After the last failure everything is used once more.
        more(&self.checking, 500)?;
        let wrk = self.wrk.stop()?;
        let (report, _) = self.checking.stop()?;
        let check = || {
            no_error(&report, None)?;
            no_error(&wrk, None)
        };
        scene.explained(check())?;
        let figures = scene.nothing_lost(0)?;
        // No client ever had to connect again, but where nginx said that it closes (`Connection:
        // close`, while it ends in order); wrk does not count those. It opens one connection more
        // at its start, to see who answers.
        let flows = u64::from(CONNECTIONS) + CHECKING as u64 + 1 + report.announced;
        ensure!(
            figures.flows_total == flows || (end == End::InOrder && figures.flows_total > flows),
            "{} flows in all instead of {flows}",
            figures.flows_total
        );
        eprintln!(
            "{} and {} requests, p99 {} and {} us, max {} and {} us; {} rescued, {} replayed, {} moved",
            wrk.requests,
            report.requests,
            wrk.latency.p99_us,
            report.latency.p99_us,
            wrk.latency.max_us,
            report.latency.max_us,
            figures.rescues_total,
            figures.replays_total,
            figures.migrations_total
        );
        Ok((wrk, figures))
    }
}

fn scene(name: &str, pods: usize, migration: Migration) -> Result<Scene> {
    let mut scene = Scene::new(name, &Options::with_clients(pods))?;
    scene.config.policies[0].migration = migration;
    scene.start()?;
    Ok(scene)
}

#[test]
fn pods_are_killed_and_restarted_in_turn() -> Result<()> {
    let kills = kills();
    let mut scene = scene("kill", 4, baton_ns::always())?;
    let clients = Clients::start(&scene)?;
    let start = Instant::now();
    for i in 0..kills {
        // Flows that move at every boundary are hit while they move; flows that stay are hit at
        // rest and in a request.
        if i == kills / 2 {
            scene.config.policies[0].migration = Migration::default();
            scene.reconfigure()?;
        }
        let name = scene.kill(i)?;
        scene.wait_back(0, &name)?;
    }
    eprintln!("{kills} kills, {:?} for each cycle", start.elapsed() / u32::try_from(kills)?);
    let (_, figures) = clients.finish(&scene, End::Killed)?;
    // Each pod had flows when it was killed, most times.
    ensure!(
        figures.rescues_total >= kills as u64,
        "{} rescues in {kills} kills",
        figures.rescues_total
    );
    Ok(())
}

#[test]
fn a_rolling_restart_without_any_preparation() -> Result<()> {
    let mut scene = scene("rolling", 4, Migration::default())?;
    let clients = Clients::start(&scene)?;
    for _ in 0..3 {
        for at in 0..scene.nginx.len() {
            let nginx = &mut scene.nginx[at];
            let start = Instant::now();
            nginx.process.terminate()?;
            let gone = start.elapsed();
            nginx.restart()?;
            let name = nginx.pod().name().to_owned();
            scene.wait_back(0, &name)?;
            eprintln!("{name}: gone in {gone:?}, back in {:?}", start.elapsed());
        }
    }
    let (_, figures) = clients.finish(&scene, End::InOrder)?;
    ensure!(figures.rescues_total > 0, "nothing was rescued");
    Ok(())
}

#[test]
fn the_only_pod_comes_back_within_half_a_second() -> Result<()> {
    let mut scene = scene("single", 1, Migration::default())?;
    let clients = Clients::start(&scene)?;
    for down_ms in [0, 100, 200, 300, 400] {
        let nginx = &mut scene.nginx[0];
        nginx.process.crash()?;
        thread::sleep(Duration::from_millis(down_ms));
        nginx.restart()?;
        scene.wait_back(0, "pod-a")?;
        // The restarted process has served all of them when it is killed again.
        more(&clients.checking, 500)?;
    }
    let (_, figures) = clients.finish(&scene, End::Killed)?;
    ensure!(figures.rescues_total >= u64::from(CONNECTIONS), "{} rescues", figures.rescues_total);
    Ok(())
}
