//! What a killed dataplane leaves in the pods: sockets on tuples that its successor uses again.

use crate::{http_without_error, more};
use anyhow::{Context, Result, ensure};
use baton_api::Algorithm;
use baton_lab::{HttpClient, HttpEcho, LoadOptions, Options};
use baton_ns::{HTTP_PORT, Scene, always, established, kernel_counters, never};
use std::{collections::BTreeSet, time::Duration};

#[test]
fn a_stale_socket_on_a_reused_port_breaks_no_flow() -> Result<()> {
    let mut scene = Scene::with_pods("stale", 2)?;
    // As few ports as are possible: 64 per pod, one of them for probes.
    scene.config.ports = "20000-20063".into();
    scene.config.policies[0].algorithm = Algorithm::WeightedRoundRobin;
    scene.config.policies[0].migration = never();
    scene.start()?;
    leave_sockets(&mut scene, 48)?;
    let stale = stale_ports(&scene)?;
    assert!(stale.iter().all(|ports| ports.len() >= 20), "{stale:?}");

    // New flows meet them with their first SYN. Ports are taken in order from anywhere: the first
    // 30 of a pod may meet none of the stale ones, the next 30 cannot.
    scene.start_dataplane()?;
    scene.wait_adoptable()?;
    for _ in 0..2 {
        let options = scene.http_load(60, Some(600))?;
        http_without_error(&scene, options)?;
    }
    let met_by_syns = scene.counter("stale_sockets_total")?;
    assert!(met_by_syns > 0);

    // Moving flows meet them with their adoptions.
    leave_sockets(&mut scene, 48)?;
    scene.config.policies[0].migration = always();
    scene.start_dataplane()?;
    scene.wait_adoptable()?;
    // Two flows, so that nearly all that is met is met by moving.
    let options = scene.http_load(2, Some(2_000))?;
    http_without_error(&scene, options)?;
    let refused = scene.counter("adoptions_refused_total{reason=\"tuple_in_use\"}")?;
    assert!(refused > 0, "no adoption met a stale socket");
    assert!(scene.counter("stale_sockets_total")? > 0);
    assert_eq!(scene.counter("resets_sent_total{to=\"client\"}")?, 0);
    eprintln!("met by SYNs: {met_by_syns}, by adoptions: {refused}");
    Ok(())
}

#[test]
fn a_killed_dataplane_is_followed_without_a_retransmission_timeout() -> Result<()> {
    let mut scene = Scene::new("killed", &Options::with_clients(3))?;
    // Four blocks of ports (`engine/src/backend/blocks.rs`), which a dataplane uses up one after
    // the other, from anywhere. The successor's moves go through all of them, and meet what was
    // left.
    scene.config.ports = "20000-22047".into();
    scene.config.policies[0].algorithm = Algorithm::WeightedRoundRobin;
    scene.start()?;
    let address = scene.address(HTTP_PORT)?;
    // Many quiet connections and a busy load: both leave sockets.
    let mut quiet = Vec::new();
    for _ in 0..300 {
        let mut client = HttpClient::connect(scene.lab.clients()[1].namespace(), address)?;
        ensure!(client.get("/")?.body == b"ok", "wrong body");
        quiet.push(client);
    }
    // Paced: unpaced, its moves would use up the ports.
    let pace = Some(Duration::from_millis(10));
    let options = LoadOptions { pace, ..LoadOptions::new(address) };
    let load = HttpEcho::start(scene.lab.clients()[1].namespace(), options)?;
    more(&load, 1_000)?;
    scene.dataplane_mut()?.process.kill()?;
    scene.start_dataplane()?;
    scene.wait_adoptable()?;

    // New connections, from a client of its own so that its kernel's counters are theirs alone.
    let namespace = scene.lab.client().namespace().clone();
    let before = kernel_counters(&namespace)?;
    for _ in 0..10 {
        let options = scene.http_load(32, Some(640))?;
        http_without_error(&scene, options)?;
    }
    let after = kernel_counters(&namespace)?;
    for name in ["TcpExt.TCPTimeouts", "TcpExt.TCPSynRetrans", "Tcp.RetransSegs"] {
        let (before, after) = (before.get(name).context(name)?, after.get(name).context(name)?);
        assert_eq!(after, before, "{name}: a request waited for a retransmission");
    }
    assert!(
        scene.counter("stale_sockets_total")? > 0,
        "nothing stale was met: the test shows nothing"
    );
    eprintln!("stale sockets met: {}", scene.counter("stale_sockets_total")?);
    drop(load.stop()?);
    drop(quiet);
    Ok(())
}

/// Opens flows, kills the dataplane while they are idle, and ends the clients: the pods know
/// nothing of it.
fn leave_sockets(scene: &mut Scene, flows: usize) -> Result<()> {
    let address = scene.address(HTTP_PORT)?;
    let mut clients = Vec::new();
    for _ in 0..flows {
        let mut client = HttpClient::connect(scene.lab.client().namespace(), address)?;
        ensure!(client.get("/")?.body == b"ok", "wrong body");
        clients.push(client);
    }
    scene.wait_legs_closed()?;
    scene.dataplane_mut()?.process.kill()?;
    Ok(())
}

/// Per pod: ports of the dead dataplane that still have a socket.
fn stale_ports(scene: &Scene) -> Result<Vec<BTreeSet<u16>>> {
    scene
        .lab
        .pods()
        .iter()
        .map(|pod| {
            let sockets = established(pod.namespace())?;
            Ok(sockets
                .iter()
                .filter(|s| s.local_port == HTTP_PORT)
                .map(|s| s.remote_port)
                .collect())
        })
        .collect()
}
