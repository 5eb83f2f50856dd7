//! IPv6 through and through: client, frontend and pods; and clients of one family whose pods have
//! addresses of the other one.

use crate::{addresses, every_request_moves, nothing_was_reset};
use anyhow::{Result, ensure};
use baton_api::MoveMethod;
use baton_ns::{HTTP_PORT, REDIS_PORT, Scene};

const REQUESTS: u64 = 20_000;
const CONNECTIONS: usize = 16;

#[test]
fn requests_and_commands_move_over_ipv6() -> Result<()> {
    let mut scene = Scene::with_pods("ipv6", 3)?;
    scene.add_redis()?;
    scene.use_ipv6()?;
    scene.start()?;
    let dataplane = scene.dataplane()?;
    let at = [HTTP_PORT, REDIS_PORT].map(|port| dataplane.address_v6(port));
    every_request_moves(&scene, "ipv6", at, (CONNECTIONS, REQUESTS))?;
    nothing_was_reset(&scene)
}

#[test]
fn clients_of_one_family_are_served_by_pods_of_the_other() -> Result<()> {
    for (name, clients_v6, method) in [
        ("six-to-four-a", true, MoveMethod::Adoption),
        ("six-to-four-t", true, MoveMethod::Translation),
        ("four-to-six-a", false, MoveMethod::Adoption),
        ("four-to-six-t", false, MoveMethod::Translation),
    ] {
        let mut scene = Scene::with_pods(name, 3)?;
        scene.add_redis()?;
        if clients_v6 {
            scene.use_ipv6_of_clients()?;
        } else {
            scene.use_ipv6_of_pods()?;
        }
        for policy in &mut scene.config.policies {
            policy.migration.method = method;
        }
        scene.start()?;
        let at = addresses(&scene)?;
        every_request_moves(&scene, name, at, (CONNECTIONS, REQUESTS / 2))?;
        nothing_was_reset(&scene)?;
    }
    Ok(())
}

/// An address that the kernel does not use yet, as it asks whether somebody else has it: a
/// dataplane that left it out had none of IPv6 for ever.
#[test]
fn an_address_that_is_not_settled_yet_is_waited_for() -> Result<()> {
    let mut scene = Scene::with_pods("tentative", 2)?;
    scene.use_ipv6()?;
    scene.start_shim()?;
    let pod = scene.lab.dataplane_pod();
    let own = format!("{}/64", pod.ipv6());
    pod.namespace().set_sysctl("net/ipv6/conf/eth0/dad_transmits", "1")?;
    pod.namespace().ip(&["addr", "del", &own, "dev", "eth0"])?;
    pod.namespace().ip(&["addr", "add", &own, "dev", "eth0"])?;
    scene.start_dataplane()?;
    let state = scene.state()?;
    let of_six = state.worker.addresses.iter().filter(|a| a.is_ipv6());
    ensure!(of_six.count() == 1, "{:?}", state.worker.addresses);
    Ok(())
}
