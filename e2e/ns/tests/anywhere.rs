//! Interfaces as clouds and CNIs make them: jumbo frames, many queues.

use crate::{more, no_error, redis_without_error, wire};
use anyhow::{Context, Result, ensure};
use baton_api::{BackendFailure, MigrationMode};
use baton_lab::{HttpClient, HttpEcho, LoadOptions, Options};
use baton_ns::{HTTP_PORT, Scene, always, never};
use std::{fs, time::Duration};

/// What Amazon's VPC has; EKS gives it to Pods.
const JUMBO_MTU: u32 = 9_001;
/// Bytes of a header with which a request is larger than a kept copy, and still one segment.
const LARGE_HEADER_BYTES: usize = 7_000;
const CONNECTIONS: usize = 16;
const PACE: Duration = Duration::from_millis(2);
const REQUESTS: u64 = 20_000;
/// As many queues as the chart's memory limit is made for.
const QUEUES: u32 = 32;

fn scene_of(name: &str, mtu: u32, pods: usize) -> Result<Scene> {
    Scene::new(name, &Options { pods, mtu, ..Options::default() })
}

#[test]
fn mtu_9001_everywhere_moves_drains_and_outlives_pods() -> Result<()> {
    let mut scene = scene_of("jumbo", JUMBO_MTU, 3)?;
    scene.add_redis()?;
    scene.config.policies[0].on_backend_failure = BackendFailure::Replay;
    scene.start()?;
    assert_eq!(scene.state()?.worker.mode, "packet");

    // Large bodies both ways, byte for byte, with a move at each request that is not too large to.
    let namespace = scene.lab.client().namespace();
    let address = scene.address(HTTP_PORT)?;
    let mut client = HttpClient::connect(namespace, address)?;
    wire::rounds(&scene, &mut client)?;
    ensure!(scene.counter("migrations_total")? > 0, "nothing moved");

    // Requests that are jumbo frames themselves move like any other.
    let padding = "x".repeat(LARGE_HEADER_BYTES);
    let before = scene.counter("migrations_total")?;
    for number in 0..300 {
        large_request(&mut client, number, &padding)?;
    }
    let moves = scene.counter("migrations_total")? - before;
    ensure!(moves >= 299, "{moves} of 300 large requests moved");

    // Drained and killed under load.
    redis_without_error(&scene, CONNECTIONS, REQUESTS)?;
    let options = LoadOptions { pace: Some(PACE), ..scene.http_load(CONNECTIONS, None)? };
    let load = HttpEcho::start(namespace, options)?;
    more(&load, 500)?;
    for round in 0..6 {
        let pod = round % scene.nginx.len();
        let name = scene.lab.pods()[pod].name().to_owned();
        if round < 3 {
            scene.dataplane()?.tool(&["drain", &name, "--wait"])?;
            more(&load, 200)?;
            scene.dataplane()?.tool(&["drain", &name, "--undo"])?;
        } else {
            scene.kill(pod)?;
            scene.wait_back(0, &name)?;
        }
        large_request(&mut client, round as u64, &padding)?;
        more(&load, 200)?;
    }
    let (report, _) = load.stop()?;
    scene.explained(no_error(&report, None))?;
    wire::rounds(&scene, &mut client)?;
    scene.nothing_lost(0)?;
    for name in [
        "resets_sent_total{to=\"client\"}",
        "drops_total{reason=\"bad_checksum\"}",
        "io_drops_total{reason=\"rx_oversize\"}",
        "io_drops_total{reason=\"tx_invalid\"}",
        "kept_full_total",
    ] {
        let value = scene.counter(name)?;
        eprintln!("{name}: {value}");
        ensure!(value == 0 || name == "kept_full_total", "{name}: {value}");
    }
    Ok(())
}

/// Clients at 9,001, a pod at 1,500, which the flow reaches by a move: its MSS is the wide one.
#[test]
fn a_usual_pod_behind_jumbo_clients_tells_them_its_mtu() -> Result<()> {
    let mut scene = Scene::new(
        "jumbo-narrow",
        &Options {
            pods: 2,
            mtu: JUMBO_MTU,
            leg_mtu: vec![("pod-a".into(), 1_500)],
            ..Options::default()
        },
    )?;
    let backends = scene.config.policies[0].backends.clone();
    scene.config.policies[0].backends = vec![backends[1].clone()];
    scene.config.policies[0].migration = never();
    scene.start()?;
    let namespace = scene.lab.client().namespace();
    let mut client = HttpClient::connect(namespace, scene.address(HTTP_PORT)?)?;
    assert_eq!(wire::small(&mut client, 0)?, "pod-b");
    scene.config.policies[0].backends = backends;
    scene.config.policies[0].backends[1].draining = true;
    scene.config.policies[0].migration = always();
    scene.reconfigure()?;
    scene.wait_adoptable()?;
    let before = scene.counter("icmp_translated_total")?;
    let padding = "x".repeat(LARGE_HEADER_BYTES);
    assert_eq!(large_request(&mut client, 0, &padding)?, "pod-a");
    ensure!(scene.counter("icmp_translated_total")? > before, "no ICMP error was translated");
    wire::rounds(&scene, &mut client)?;
    scene.nothing_lost(0)?;
    assert_eq!(scene.counter("resets_sent_total{to=\"client\"}")?, 0);
    Ok(())
}

/// An interface that XDP does not attach to, with what a CNI that uses macvlan gives to a Pod.
#[test]
fn a_dataplane_behind_a_macvlan_serves_in_packet_mode() -> Result<()> {
    let mut scene = Scene::with_pods("macvlan", 3)?;
    let place = scene.lab.dataplane_pod();
    let (address, router) = (format!("{}/24", place.ipv4()), scene.lab.node_address().to_string());
    let namespace = place.namespace();
    namespace
        .ip(&["link", "add", "link", "eth0", "name", "mv0", "type", "macvlan", "mode", "bridge"])?;
    namespace.ip(&["addr", "del", &address, "dev", "eth0"])?;
    namespace.ip(&["addr", "add", &address, "dev", "mv0"])?;
    namespace.ip(&["link", "set", "mv0", "up"])?;
    namespace.ip(&["route", "replace", "default", "via", &router, "dev", "mv0"])?;
    scene.config.interface = "mv0".into();
    scene.start()?;
    let worker = scene.state()?.worker;
    assert_eq!((worker.interface.as_str(), worker.mode.as_str()), ("mv0", "packet"));
    let options = scene.http_load(CONNECTIONS, Some(REQUESTS))?;
    let (_, echo) = crate::http_without_error(&scene, options)?;
    assert_eq!(echo.pod_changes, REQUESTS - CONNECTIONS as u64);
    let namespace = scene.lab.client().namespace();
    let mut client = HttpClient::connect(namespace, scene.address(HTTP_PORT)?)?;
    wire::rounds(&scene, &mut client)?;
    scene.nothing_lost(0)?;
    Ok(())
}

#[test]
fn thirty_two_queues_fit_the_memory_that_the_chart_gives() -> Result<()> {
    let mut scene =
        Scene::new("queues", &Options { pods: 2, dataplane_queues: QUEUES, ..Options::default() })?;
    assert_eq!(scene.config.policies[0].migration.mode, MigrationMode::Always);
    scene.start()?;
    assert_eq!(scene.state()?.worker.mode, "native");
    let options = scene.http_load(CONNECTIONS, Some(REQUESTS))?;
    crate::http_without_error(&scene, options)?;
    let pid = scene.dataplane()?.process.pid();
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kb = |name: &str| -> Result<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let value = line.and_then(|line| line.split_whitespace().next());
        Ok(value.with_context(|| format!("{name} in {status}"))?.parse()?)
    };
    let resident = kb("VmRSS:")? * 1_024;
    eprintln!("{QUEUES} queues: {resident} bytes resident");
    ensure!(resident < u64::from(QUEUES) * 8_000_000 + (128 << 20), "{resident} bytes");
    Ok(())
}

fn large_request(client: &mut HttpClient, number: u64, padding: &str) -> Result<String> {
    let (target, nonce) = (format!("/echo/{number}"), fastrand::u64(..).to_string());
    let headers = [("X-Nonce", nonce.as_str()), ("X-Padding", padding)];
    let response = client.request("GET", &target, &headers, &[])?;
    ensure!(
        response.body == baton_lab::echo_body(&target, &nonce).as_bytes(),
        "wrong body: {response:?}"
    );
    Ok(response.pod().context("no X-Pod")?.to_owned())
}
