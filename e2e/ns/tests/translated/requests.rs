//! Each request and command after a move by translation: every byte right, whatever the family,
//! the client's options and the method of the move before.

use super::{move_by, moves_to, nothing_was_reset, start_alone, translations};
use crate::{
    addresses, every_request_moves, http_without_error, redis_without_error,
    stateful::beside_commands, wire,
};
use anyhow::{Context, Result, ensure};
use baton_api::{Algorithm, MoveMethod, Protocol};
use baton_lab::HttpClient;
use baton_ns::{HTTP_PORT, REDIS_POLICY, REDIS_PORT, Scene, kernel_counters};

const REQUESTS: u64 = 200_000;
const CONNECTIONS: usize = 32;
/// Of tests in which the number is not the point.
const SOME: u64 = 20_000;

#[test]
fn http_requests_each_after_a_translation() -> Result<()> {
    let mut scene = Scene::with_pods("translate", 3)?;
    start_alone(&mut scene)?;
    let options = scene.http_load(CONNECTIONS, Some(REQUESTS))?;
    let (report, echo) = http_without_error(&scene, options)?;
    let moves = translations(&scene)?;
    eprintln!("{:.0} requests/s, {moves} translations, {:?}", report.per_second(), report.latency);
    ensure!(moves >= REQUESTS - CONNECTIONS as u64, "{moves}");
    // The client saw it too.
    assert_eq!(echo.pod_changes, REQUESTS - CONNECTIONS as u64);
    assert_eq!(echo.per_pod.len(), 3, "{:?}", echo.per_pod);
    nothing_was_reset(&scene)?;
    scene.wait_legs_closed()?;
    for pod in scene.lab.pods() {
        let resets = kernel_counters(pod.namespace())?["Tcp.EstabResets"];
        ensure!(resets == 0, "{}: {resets} connections reset", pod.name());
    }
    Ok(())
}

#[test]
fn redis_commands_each_after_a_translation() -> Result<()> {
    let mut scene = Scene::with_pods("translateredis", 3)?;
    scene.add_redis()?;
    start_alone(&mut scene)?;
    let report = redis_without_error(&scene, CONNECTIONS, REQUESTS)?;
    let moves = translations(&scene)?;
    eprintln!("{:.0} commands/s, {moves} translations", report.per_second());
    ensure!(moves >= REQUESTS - CONNECTIONS as u64, "{moves}");
    scene.nothing_lost(REDIS_POLICY)?;
    nothing_was_reset(&scene)
}

/// `SELECT` and `AUTH` go along, transactions and subscriptions stay whole.
#[test]
fn redis_sessions_move_by_translation() -> Result<()> {
    let mut scene = Scene::with_pods("translatestate", 3)?;
    scene.add_redis()?;
    scene.config.policies[REDIS_POLICY].protocol = Protocol::Resp;
    start_alone(&mut scene)?;
    let (rounds, _) = beside_commands(&scene, CONNECTIONS, SOME)?;
    let figures = scene.nothing_lost(REDIS_POLICY)?;
    let moves = translations(&scene)?;
    eprintln!("{rounds:?}, {moves} translations of {}", figures.migrations_total);
    for conversation in ["select", "auth"] {
        ensure!(rounds[conversation] >= 5, "{rounds:?}");
    }
    ensure!(moves >= SOME - CONNECTIONS as u64, "{moves}");
    Ok(())
}

#[test]
fn requests_and_commands_move_by_translation_over_ipv6() -> Result<()> {
    let mut scene = Scene::with_pods("translatesix", 3)?;
    scene.add_redis()?;
    scene.use_ipv6()?;
    start_alone(&mut scene)?;
    let dataplane = scene.dataplane()?;
    let at = [HTTP_PORT, REDIS_PORT].map(|port| dataplane.address_v6(port));
    every_request_moves(&scene, "ipv6", at, (CONNECTIONS, SOME))?;
    let moves = translations(&scene)?;
    ensure!(moves >= 2 * (SOME - CONNECTIONS as u64), "{moves}");
    nothing_was_reset(&scene)
}

/// Large bodies both ways, with each set of options that clients come with.
#[test]
fn every_set_of_options_moves_by_translation() -> Result<()> {
    let mut scene = Scene::with_pods("translatewire", 3)?;
    start_alone(&mut scene)?;
    let namespace = scene.lab.client().namespace();
    for (what, off) in wire::VARIANTS {
        wire::offer_all_but(namespace, off)?;
        let before = translations(&scene)?;
        let mut client = HttpClient::connect(namespace, scene.address(HTTP_PORT)?)?;
        scene.explained(wire::rounds(&scene, &mut client).context(what))?;
        let moves = translations(&scene)? - before;
        ensure!(moves > 0, "{what}: nothing moved");
    }
    nothing_was_reset(&scene)
}

/// Half of the pods adopt. Each connection goes from pod to pod, so that adopted legs follow
/// translated ones and the other way round.
#[test]
fn adoptions_and_translations_take_turns_on_the_same_connections() -> Result<()> {
    let mut scene = Scene::with_pods("translatemixed", 4)?;
    scene.add_redis()?;
    for policy in &mut scene.config.policies {
        policy.algorithm = Algorithm::WeightedRoundRobin;
    }
    scene.shim_config.pods.truncate(2);
    scene.start_shim()?;
    scene.start_dataplane()?;
    for pod in ["pod-a", "pod-b"] {
        scene.wait_reason(pod, "ready")?;
    }
    every_request_moves(&scene, "mixed", addresses(&scene)?, (CONNECTIONS, SOME))?;
    let (all, moves) = (scene.counter("migrations_total")?, translations(&scene)?);
    let (mut adopted, mut translated) = (0, 0);
    for policy in &scene.state()?.policies {
        let onto = |at: &[usize]| -> u64 {
            let backends = at.iter().map(|at| &policy.backends[*at]);
            backends.map(|b| b.migrations_in_total).sum()
        };
        adopted += onto(&[0, 1]);
        translated += onto(&[2, 3]);
    }
    eprintln!("{all} moves: {adopted} onto pods that adopt, {moves} translations");
    ensure!(moves == translated, "{moves} translations, {translated} onto pods that do not adopt");
    let share = SOME / 4;
    ensure!(adopted > share && translated > share, "{adopted} and {translated}");
    nothing_was_reset(&scene)
}

/// All pods adopt, and policy says that nothing is adopted; then the other way round.
#[test]
fn the_policys_method_decides() -> Result<()> {
    let mut scene = Scene::with_pods("translatemethod", 2)?;
    move_by(&mut scene, MoveMethod::Translation);
    scene.start()?;
    let options = scene.http_load(CONNECTIONS, Some(SOME))?;
    http_without_error(&scene, options)?;
    let (all, moves) = (scene.counter("migrations_total")?, translations(&scene)?);
    ensure!(moves == all && all >= SOME - CONNECTIONS as u64, "{moves} of {all}");

    move_by(&mut scene, MoveMethod::Adoption);
    scene.reconfigure()?;
    let options = scene.http_load(CONNECTIONS, Some(SOME))?;
    http_without_error(&scene, options)?;
    let adopted = scene.counter("migrations_total")? - all;
    ensure!(adopted >= SOME - CONNECTIONS as u64, "{adopted} moves");
    let more = translations(&scene)? - moves;
    ensure!(more == 0, "{more} translations");

    // Without an adopter nothing moves then.
    scene.shim.take().context("shim")?.stop()?;
    for pod in ["pod-a", "pod-b"] {
        scene.wait_reason(pod, "no adopter (is host-shim running there?)")?;
    }
    let before = [moves_to(&scene, "pod-a")?, moves_to(&scene, "pod-b")?];
    let options = scene.http_load(CONNECTIONS, Some(SOME / 10))?;
    http_without_error(&scene, options)?;
    let after = [moves_to(&scene, "pod-a")?, moves_to(&scene, "pod-b")?];
    assert_eq!(before, after);
    nothing_was_reset(&scene)
}
