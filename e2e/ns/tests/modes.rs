//! The three ways of packet I/O carry the same load with the same contents.

use crate::{addresses, every_request_moves, nothing_was_reset};
use anyhow::Result;
use baton_lab::run_command;
use baton_ns::{Scene, never};

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
        // In this mode the kernel hands over frames as large as the peer makes them, and a buffer
        // holds one MTU. The native mode turns the peer's segmentation offload off by itself; here
        // the node has to.
        let router = scene.lab.router().namespace();
        let off = ["-K", "dataplane", "tso", "off"];
        router.run(|| run_command("ethtool", &off))??;
    }
    scene.start()?;
    assert_eq!(scene.state()?.worker.mode, mode);
    every_request_moves(&scene, mode, addresses(&scene)?, (CONNECTIONS, REQUESTS))?;
    nothing_was_reset(&scene)
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
    assert!(text.contains("`interface: auto` is that of the default route"), "{text}");
    Ok(())
}
