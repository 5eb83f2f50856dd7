//! A pod that latency says nothing of, because nobody has asked it anything of late, and whose
//! kernel knows that it cannot answer: other work in it uses up its CPU quota.

use crate::no_error;
use anyhow::{Context, Result, ensure};
use baton_api::{BackendLoad, LoadSignal, Micros};
use baton_lab::{HttpClient, HttpEcho, LoadOptions, Process, Spec};
use baton_ns::{HTTP_PORT, Scene, never, until};
use std::time::Duration;

/// Enough to be spread over both pods, and few enough for a throttled one to answer all.
const CONNECTIONS: usize = 16;
/// Of one CPU.
const QUOTA_PERCENT: f64 = 5.0;
/// From here on the choice makes a difference: a wait of half of 50 ms.
const STALLED_PERCENT: u8 = 50;

fn stalled_percent(load: BackendLoad) -> u8 {
    load.throttled_percent.max(load.cpu_percent).unwrap_or(0)
}

/// Waits until the dataplane knows that the pod is stalled.
fn wait_told(scene: &Scene, name: &str) -> Result<BackendLoad> {
    until("the dataplane knows that the pod is stalled", || {
        let load = scene.backend(0, name)?.load.context("no load report")?;
        ensure!(stalled_percent(load) >= STALLED_PERCENT, "{load:?}");
        Ok(load)
    })
}

/// One request on each of so many new connections: how many the pod was given.
fn given(scene: &Scene, name: &str) -> Result<u64> {
    let before = scene.backend(0, name)?.requests_total;
    let options = LoadOptions {
        connections: CONNECTIONS,
        requests: Some(CONNECTIONS as u64),
        timeout: Duration::from_secs(60),
        ..LoadOptions::new(scene.address(HTTP_PORT)?)
    };
    let (report, _) = HttpEcho::start(scene.lab.client().namespace(), options)?.join()?;
    no_error(&report, Some(CONNECTIONS as u64))?;
    eprintln!("{:?}", report.latency);
    Ok(scene.backend(0, name)?.requests_total - before)
}

#[test]
fn a_throttled_pod_that_looks_idle_gets_requests_by_latency_alone() -> Result<()> {
    let mut scene = Scene::with_pods("pressure", 2)?;
    let policy = &mut scene.config.policies[0];
    policy.migration = never();
    policy.response_timeout = None;
    policy.load = LoadSignal::LatencyAndPressure;
    // Slow answers and requests that wait are the test's point, not failures.
    policy.health.failure_threshold = 0;
    policy.slow_start = Micros(0);
    scene.start()?;
    // The policy has a flow, so that its pods are asked.
    let http = scene.address(HTTP_PORT)?;
    let client = HttpClient::connect(scene.lab.client().namespace(), http)?;
    let pod = &scene.lab.pods()[1];
    let name = pod.name().to_owned();
    pod.throttle(QUOTA_PERCENT)?;
    let busy = Spec::new("sh", ["-c", "while :; do :; done"]);
    let busy: Process = pod.spawn(&busy)?;
    let load = wait_told(&scene, &name)?;
    let with_pressure = given(&scene, &name);
    let with_pressure = scene.explained(with_pressure)?;

    scene.config.policies[0].load = LoadSignal::Latency;
    scene.reconfigure()?;
    wait_told(&scene, &name)?;
    let with_latency = given(&scene, &name);
    let with_latency = scene.explained(with_latency)?;
    drop((busy, client));
    eprintln!(
        "{load:?}: of {CONNECTIONS} requests {with_pressure} with pressure, {with_latency} by latency"
    );
    let check = || {
        ensure!(with_pressure == 0, "{with_pressure} at the stalled pod");
        ensure!(with_latency >= 4, "only {with_latency} by latency alone");
        Ok(())
    };
    scene.explained(check())
}
