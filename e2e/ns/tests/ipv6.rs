//! IPv6 through and through: client, frontend and pods.

use crate::{http_without_error, redis_without_error_at, wire};
use anyhow::Result;
use baton_lab::{HttpClient, LoadOptions};
use baton_ns::{HTTP_PORT, REDIS_POLICY, REDIS_PORT, Scene};

const REQUESTS: u64 = 20_000;
const CONNECTIONS: usize = 16;

#[test]
fn requests_and_commands_move_over_ipv6() -> Result<()> {
    let mut scene = Scene::with_pods("ipv6", 3)?;
    scene.add_redis()?;
    scene.use_ipv6()?;
    scene.start()?;
    let address = scene.dataplane()?.address_v6(HTTP_PORT);
    let options = LoadOptions {
        connections: CONNECTIONS,
        requests: Some(REQUESTS),
        ..LoadOptions::new(address)
    };
    let (_, echo) = http_without_error(&scene, options)?;
    assert_eq!(echo.pod_changes, REQUESTS - CONNECTIONS as u64);
    let redis = scene.dataplane()?.address_v6(REDIS_PORT);
    redis_without_error_at(&scene, redis, CONNECTIONS, REQUESTS)?;
    let state = scene.state()?;
    for index in [0, REDIS_POLICY] {
        let moves = state.policies[index].migrations_total;
        assert!(
            moves >= REQUESTS - CONNECTIONS as u64,
            "{}: {moves}",
            state.policies[index].name
        );
    }
    let mut client = HttpClient::connect(scene.lab.client().namespace(), address)?;
    wire::rounds(&scene, &mut client)?;
    scene.wait_legs_closed()?;
    assert_eq!(scene.counter("legs_closed_total{how=\"reset\"}")?, 0);
    assert_eq!(scene.counter("resets_sent_total{to=\"client\"}")?, 0);
    Ok(())
}
