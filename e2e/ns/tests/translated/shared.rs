//! Requests and commands that travel on legs which other connections had before.

use super::{nothing_was_reset, start_alone};
use crate::{
    addresses, all_changed_pods, every_request_moves, http_without_error, redis_without_error,
    stateful::beside_commands,
};
use anyhow::{Result, ensure};
use baton_api::{Legs, Protocol};
use baton_ns::{REDIS_POLICY, Scene};

const REQUESTS: u64 = 100_000;
const CONNECTIONS: usize = 32;
const SOME: u64 = 20_000;

/// Has all policies share legs.
pub fn share_legs(scene: &mut Scene) {
    for policy in &mut scene.config.policies {
        policy.migration.legs = Legs::Shared;
    }
}

fn shared(scene: &Scene) -> Result<u64> {
    scene.counter("legs_shared_total")
}

/// Without host-shim and keys: what is not shared is opened.
#[test]
fn requests_and_commands_travel_on_others_legs() -> Result<()> {
    let mut scene = Scene::with_pods("sharedlegs", 3)?;
    scene.add_redis()?;
    scene.config.policies[REDIS_POLICY].protocol = Protocol::Resp;
    share_legs(&mut scene);
    start_alone(&mut scene)?;
    let options = scene.http_load(CONNECTIONS, Some(REQUESTS))?;
    let (report, echo) = http_without_error(&scene, options)?;
    let http = shared(&scene)?;
    eprintln!(
        "{:.0} requests/s, {http} on others' legs, {} legs parked, {:?}",
        report.per_second(),
        scene.counter("legs_parked_total")?,
        report.latency
    );
    // The client saw it too.
    all_changed_pods(&scene, &echo, REQUESTS - CONNECTIONS as u64)?;
    ensure!(http > REQUESTS / 2, "{http} requests on others' legs");
    let report = redis_without_error(&scene, CONNECTIONS, REQUESTS)?;
    let redis = shared(&scene)? - http;
    eprintln!("{:.0} commands/s, {redis} on others' legs", report.per_second());
    ensure!(redis > REQUESTS / 2, "{redis} commands on others' legs");
    scene.nothing_lost(REDIS_POLICY)?;
    nothing_was_reset(&scene)
}

/// A session of its own is nobody else's: `SELECT` and `AUTH` beside commands without.
#[test]
fn sessions_share_no_leg() -> Result<()> {
    let mut scene = Scene::with_pods("sharedsessions", 3)?;
    scene.add_redis()?;
    scene.config.policies[REDIS_POLICY].protocol = Protocol::Resp;
    share_legs(&mut scene);
    start_alone(&mut scene)?;
    let (rounds, _) = beside_commands(&scene, CONNECTIONS, SOME)?;
    let shared = shared(&scene)?;
    eprintln!("{rounds:?}, {shared} on others' legs");
    for conversation in ["select", "auth"] {
        ensure!(rounds[conversation] >= 5, "{rounds:?}");
    }
    ensure!(shared > SOME / 2, "{shared} commands on others' legs");
    scene.nothing_lost(REDIS_POLICY).map(drop)
}

/// Pods that adopt share too, and over IPv6.
#[test]
fn adopted_legs_are_shared() -> Result<()> {
    for v6 in [false, true] {
        let mut scene = Scene::with_pods(if v6 { "sharedsix" } else { "sharedadopted" }, 3)?;
        scene.add_redis()?;
        share_legs(&mut scene);
        if v6 {
            scene.use_ipv6()?;
        }
        scene.start()?;
        let at = if v6 {
            let dataplane = scene.dataplane()?;
            [baton_ns::HTTP_PORT, baton_ns::REDIS_PORT].map(|port| dataplane.address_v6(port))
        } else {
            addresses(&scene)?
        };
        every_request_moves(&scene, "shared", at, (CONNECTIONS, SOME))?;
        let shared = shared(&scene)?;
        eprintln!("{shared} on others' legs");
        ensure!(shared > SOME / 2, "{shared} on others' legs");
        nothing_was_reset(&scene)?;
    }
    Ok(())
}
