//! IPv6 through and through: client, frontend and pods.

use crate::{every_request_moves, nothing_was_reset};
use anyhow::Result;
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
