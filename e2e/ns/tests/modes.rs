//! The three ways of packet I/O carry the same load with the same contents.

use crate::{http_without_error, redis_without_error, wire};
use anyhow::Result;
use baton_lab::{HttpClient, run_command};
use baton_ns::{HTTP_PORT, REDIS_POLICY, Scene, never};

const REQUESTS: u64 = 20_000;
const CONNECTIONS: usize = 16;

#[test]
fn native() -> Result<()> {
    mode("native")
}

#[test]
fn generic() -> Result<()> {
    mode("generic")
}

#[test]
fn packet() -> Result<()> {
    mode("packet")
}

fn mode(mode: &str) -> Result<()> {
    let mut scene = Scene::with_pods(mode, 3)?;
    scene.config.mode = mode.into();
    scene.add_redis()?;
    if mode == "generic" {
        // In this mode the kernel hands over frames as large as the peer makes them, and a buffer holds one MTU. The
        // native mode turns the peer's segmentation offload off by itself; here the node has to.
        let router = scene.lab.router().namespace();
        let off = ["-K", "dataplane", "tso", "off"];
        router.run(|| run_command("ethtool", &off))??;
    }
    scene.start()?;
    assert_eq!(scene.state()?.worker.mode, mode);
    let options = scene.http_load(CONNECTIONS, Some(REQUESTS))?;
    let (report, echo) = http_without_error(&scene, options)?;
    eprintln!(
        "{mode}: {:.0} requests/s, {:?}",
        report.per_second(),
        report.latency
    );
    assert_eq!(echo.pod_changes, REQUESTS - CONNECTIONS as u64);
    redis_without_error(&scene, CONNECTIONS, REQUESTS)?;
    let state = scene.state()?;
    for index in [0, REDIS_POLICY] {
        let moves = state.policies[index].migrations_total;
        assert!(
            moves >= REQUESTS - CONNECTIONS as u64,
            "{}: {moves}",
            state.policies[index].name
        );
    }
    let mut client =
        HttpClient::connect(scene.lab.client().namespace(), scene.address(HTTP_PORT)?)?;
    wire::rounds(&scene, &mut client)?;
    scene.wait_legs_closed()?;
    assert_eq!(scene.counter("legs_closed_total{how=\"reset\"}")?, 0);
    assert_eq!(scene.counter("resets_sent_total{to=\"client\"}")?, 0);
    assert_eq!(scene.counter("drops_total{reason=\"bad_checksum\"}")?, 0);
    Ok(())
}

#[test]
fn the_interface_may_be_that_of_the_default_route() -> Result<()> {
    let mut scene = Scene::with_pods("auto", 1)?;
    scene.config.interface = "auto".into();
    scene.start()?;
    assert_eq!(scene.state()?.worker.interface, "eth0");
    // What the file says is what it said.
    scene.config.policies[0].migration = never();
    scene.reconfigure()?;
    let problems = scene.dataplane()?.control_get("/v1/state")?["problems"].to_string();
    assert_eq!(problems, "[]");
    let namespace = scene.lab.dataplane_pod().namespace().clone();
    for family in ["-4", "-6"] {
        namespace.ip(&[family, "route", "del", "default"])?;
    }
    let error = scene.start_dataplane().expect_err("no default route");
    let text = format!("{error:#}");
    assert!(
        text.contains("`interface: auto` is that of the default route"),
        "{text}"
    );
    Ok(())
}
