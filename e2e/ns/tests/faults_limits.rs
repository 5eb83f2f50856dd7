//! Tables and port ranges at their limits: counted, what is there goes on, and no client breaks
//! that need not.

use crate::{http_without_error, more, no_error};
use anyhow::{Result, ensure};
use baton_api::{Algorithm, Limits};
use baton_lab::{HttpClient, LoadReport};
use baton_ns::{HTTP_PORT, Scene, never, until};
use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpStream},
    time::Duration,
};

const CONNECTIONS: usize = 48;
const REQUESTS: u64 = 8_000;
/// A handshake in this lab takes well under a millisecond: who waits for so long was not let in.
const NOT_LET_IN: Duration = Duration::from_millis(400);
/// Smallest table of flows that a configuration may ask for, times four.
const FLOWS: usize = 64;
/// Of the smallest port range, 64: without the port of the probe, and without the eighth that is
/// kept for rescues and drains.
const PORTS: usize = 64 - 1 - 64 / 8;

#[test]
fn without_room_to_keep_requests_flows_stay() -> Result<()> {
    let mut scene = Scene::with_pods("keptfull", 3)?;
    scene.config.limits = Some(Limits { kept_segments: 2, ..Limits::default() });
    scene.start()?;
    let options = scene.http_load(CONNECTIONS, Some(REQUESTS))?;
    http_without_error(&scene, options)?;
    let (used, limit) = scene.state()?.tables["kept_segments"];
    ensure!(used <= 2 && limit == 2, "{used} of {limit}");
    for counter in ["kept_full_total", "stays_total{reason=\"kept_full\"}", "migrations_total"] {
        ensure!(scene.counter(counter)? > 0, "{counter} is 0");
    }
    quiet(&scene)?;

    // A pod dies: only requests that it had and of which there is no copy are lost, each counted.
    let load = scene.echo(CONNECTIONS, None)?;
    more(&load, 2_000)?;
    scene.nginx[1].process.crash()?;
    more(&load, 2_000)?;
    scene.nginx[1].restart()?;
    scene.wait_back(0, "pod-b")?;
    more(&load, 2_000)?;
    let (report, _) = load.stop()?;
    let lost = scene.policy(0)?.lost_total;
    eprintln!("a pod died with 2 kept segments: errors {:?}, lost {lost:?}", report.errors);
    scene.explained(each_error_is_a_loss(&scene, &report))
}

#[test]
fn without_room_to_close_legs_flows_stay() -> Result<()> {
    let mut scene = Scene::with_pods("closefull", 3)?;
    scene.config.limits = Some(Limits { closing_legs: 16, ..Limits::default() });
    scene.start()?;
    let options = scene.http_load(CONNECTIONS, Some(REQUESTS))?;
    http_without_error(&scene, options)?;
    for counter in [
        "stays_total{reason=\"closing_full\"}",
        "migrations_total",
        "legs_closed_total{how=\"clean\"}",
        // Several moves at once find room when they begin and none when they end: these legs are
        // reset.
        "legs_closed_total{how=\"reset\"}",
    ] {
        ensure!(scene.counter(counter)? > 0, "{counter} is 0");
    }
    quiet(&scene)?;
    // Rescues need no room there that they cannot do without.
    let load = scene.echo(CONNECTIONS, None)?;
    for _ in 0..3 {
        more(&load, 1_000)?;
        scene.nginx[1].process.crash()?;
        more(&load, 1_000)?;
        scene.nginx[1].restart()?;
        scene.wait_back(0, "pod-b")?;
    }
    let (report, _) = load.stop()?;
    scene.explained(no_error(&report, None))?;
    let figures = scene.nothing_lost(0)?;
    ensure!(figures.rescues_total > 0, "nothing was rescued");
    scene.wait_legs_closed()
}

#[test]
fn without_room_to_follow_flows_are_pinned() -> Result<()> {
    let mut scene = Scene::with_pods("guardsfull", 3)?;
    scene.config.limits = Some(Limits { guarded_flows: 2, ..Limits::default() });
    scene.start()?;
    let options = scene.http_load(CONNECTIONS, Some(REQUESTS))?;
    http_without_error(&scene, options)?;
    let pins = scene.policy(0)?.pins_total;
    let pinned = pins.get("guards_full").copied().unwrap_or(0);
    ensure!((1..=CONNECTIONS as u64).contains(&pinned), "{pins:?}");
    ensure!(scene.counter("migrations_total")? > 0, "nothing moved");
    quiet(&scene)?;
    until("given back", || {
        let (used, limit) = scene.state()?.tables["guarded_flows"];
        ensure!(used == 0 && limit == 2, "{used} of {limit}");
        Ok(())
    })
}

#[test]
fn a_full_flow_table_lets_no_one_in_until_someone_leaves() -> Result<()> {
    let mut scene = Scene::with_pods("flowsfull", 3)?;
    scene.config.limits = Some(Limits { flows: FLOWS as u32, ..Limits::default() });
    scene.start()?;
    let mut inside = clients(&scene, FLOWS)?;
    not_let_in(&scene, "flow_table_full")?;
    // Those that are in work and move.
    let moved = scene.counter("migrations_total")?;
    work(&mut inside)?;
    let moved = scene.counter("migrations_total")? - moved;
    ensure!(moved >= FLOWS as u64 * 9 / 10, "{moved} of {FLOWS} flows moved");
    room_again(&scene, inside)
}

#[test]
fn a_used_up_port_range_lets_no_one_in_until_someone_leaves() -> Result<()> {
    let mut scene = Scene::with_pods("portsfull", 2)?;
    scene.config.ports = "20000-20063".into();
    // Alternately, so that both pods fill up.
    scene.config.policies[0].algorithm = Algorithm::WeightedRoundRobin;
    scene.config.policies[0].migration = never();
    scene.start()?;
    let mut inside = clients(&scene, 2 * PORTS)?;
    not_let_in(&scene, "no_port")?;
    work(&mut inside)?;
    // The ports that are left are for rescues and drains: where moving is a choice, flows stay.
    scene.config.policies[0].migration = baton_ns::always();
    scene.reconfigure()?;
    scene.wait_adoptable()?;
    let stays = scene.counter("stays_total{reason=\"port_reserve\"}")?;
    work(&mut inside)?;
    let stays = scene.counter("stays_total{reason=\"port_reserve\"}")? - stays;
    ensure!(stays == 2 * PORTS as u64, "{stays} of {} flows stayed", 2 * PORTS);
    assert_eq!(scene.counter("migrations_begun_total")?, 0);
    room_again(&scene, inside)
}

/// Connections that have each had an answer.
fn clients(scene: &Scene, count: usize) -> Result<Vec<HttpClient>> {
    let mut clients = (0..count)
        .map(|_| HttpClient::connect(scene.lab.client().namespace(), scene.address(HTTP_PORT)?))
        .collect::<Result<Vec<_>>>()?;
    work(&mut clients)?;
    Ok(clients)
}

fn work(clients: &mut [HttpClient]) -> Result<()> {
    for (number, client) in clients.iter_mut().enumerate() {
        let (target, nonce) = (format!("/echo/{number}"), fastrand::u64(..).to_string());
        let response = client.request("GET", &target, &[("X-Nonce", &nonce)], &[])?;
        ensure!(
            response.body == baton_lab::echo_body(&target, &nonce).as_bytes(),
            "wrong body: {response:?}"
        );
    }
    Ok(())
}

/// A new connection is not accepted, and not refused either: its SYN is dropped, to be sent again.
/// That is counted.
fn not_let_in(scene: &Scene, reason: &str) -> Result<()> {
    let counter = format!("drops_total{{reason=\"{reason}\"}}");
    assert_eq!(scene.counter(&counter)?, 0);
    let tried = connect(scene, scene.address(HTTP_PORT)?, NOT_LET_IN)?;
    ensure!(tried.as_ref().is_err_and(|e| e.kind() == ErrorKind::TimedOut), "{tried:?}");
    assert_eq!(scene.counter(&counter)?, 1);
    Ok(())
}

/// One leaves, and one that waits at the door is let in with its next SYN.
fn room_again(scene: &Scene, mut inside: Vec<HttpClient>) -> Result<()> {
    let address = scene.address(HTTP_PORT)?;
    let place = scene.lab.client().namespace();
    // Two of each, so that with ports both pods have room.
    let leaving = inside.split_off(inside.len() - 4);
    let stream = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| place.run(|| TcpStream::connect(address)));
        drop(leaving);
        waiting.join().unwrap_or_else(|p| std::panic::resume_unwind(p))
    })??;
    let mut late = vec![HttpClient::over(stream)?];
    work(&mut late)?;
    work(&mut inside)?;
    assert_eq!(scene.counter("resets_sent_total{to=\"client\"}")?, 0);
    Ok(())
}

fn connect(
    scene: &Scene,
    address: SocketAddr,
    limit: Duration,
) -> Result<std::io::Result<TcpStream>> {
    let place = scene.lab.client().namespace();
    place.run(|| TcpStream::connect_timeout(&address, limit))
}

/// Nothing was reset, lost or guessed.
fn quiet(scene: &Scene) -> Result<()> {
    scene.nothing_lost(0)?;
    for counter in [
        "rollbacks_total",
        "resets_sent_total{to=\"client\"}",
        "fates_unknown_total{outcome=\"reset\"}",
    ] {
        assert_eq!(scene.counter(counter)?, 0, "{counter}");
    }
    Ok(())
}

/// Every broken connection is in the policy's losses, for want of a copy, and every loss is one. A
/// SYN of which there is no copy is refused by a pod that died just now, and was never a
/// connection.
fn each_error_is_a_loss(scene: &Scene, report: &LoadReport) -> Result<()> {
    let lost = scene.policy(0)?.lost_total;
    let for_want = lost.get("not_kept").copied().unwrap_or(0);
    let all: u64 = lost.values().sum();
    // A connection whose response had begun ends with its pod, whatever is kept.
    let begun = lost.get("response_begun").copied().unwrap_or(0);
    let refused = report.errors.get("connect").copied().unwrap_or(0);
    ensure!(
        report.error_count() - refused == all && all == for_want + begun,
        "errors {:?}, lost {lost:?}",
        report.errors
    );
    Ok(())
}
