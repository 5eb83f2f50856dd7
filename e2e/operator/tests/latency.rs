//! How long a change takes from the API server to a dataplane. Printed, not asserted: machines
//! differ.

use anyhow::Result;
use baton_operator_tests::{
    or_skip,
    scene::{Scene, policy, served_policy, service, slice},
};
use std::time::{Duration, Instant};

/// Changes of each kind.
const CHANGES: u16 = 100;

/// `what: p50 X ms, p99 Y ms, worst Z ms`, from just before the admin's request to the dataplane.
fn report(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: usize| times[(times.len() * share).div_ceil(100) - 1].as_secs_f64() * 1_000.0;
    println!(
        "{what}: p50 {:.1} ms, p99 {:.1} ms, worst {:.1} ms ({} changes)",
        at(50),
        at(99),
        at(100),
        times.len()
    );
}

#[tokio::test]
async fn from_a_change_to_the_dataplane() -> Result<()> {
    let scene = or_skip!(Scene::start().await?);
    let namespace = scene.server.namespace("latency").await?.name;
    scene.apply(&service(&namespace, "web")).await?;
    scene.apply(&slice(&namespace, "web", &["10.0.0.1"])).await?;
    // The first one waits for the operator's start.
    scene.apply(&policy(&namespace, "first", "web", 8_000)).await?;
    scene.served(|s| served_policy(s, &namespace, "first").is_some()).await?;

    let mut applied = Vec::new();
    for number in 0..CHANGES {
        let (name, own) = (format!("p{number}"), format!("s{number}"));
        scene.apply(&service(&namespace, &own)).await?;
        scene.apply(&slice(&namespace, &own, &["10.0.0.1"])).await?;
        let before = Instant::now();
        scene.apply(&policy(&namespace, &name, &own, 9_000 + number)).await?;
        let arrival = scene.served(|s| served_policy(s, &namespace, &name).is_some()).await?;
        applied.push(arrival.at - before);
    }
    let mut changed = Vec::new();
    for number in 0..CHANGES {
        let address = format!("10.0.1.{number}");
        let before = Instant::now();
        scene.apply(&slice(&namespace, "web", &["10.0.0.1", &address])).await?;
        let endpoint = format!("{address}:8080");
        let has =
            |p: &baton_api::Policy| p.backends.iter().any(|b| b.endpoint.to_string() == endpoint);
        let arrival =
            scene.served(|s| served_policy(s, &namespace, "first").is_some_and(has)).await?;
        changed.push(arrival.at - before);
    }
    report("apply of a policy to dataplane", applied);
    report("change of an EndpointSlice to dataplane", changed);
    Ok(())
}
