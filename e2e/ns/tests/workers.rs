//! Several threads forward packets: each has its part of the flows, and together they are one
//! dataplane. Whether that is faster takes more cores than two; here it is whether it is right.

use crate::{addresses, every_request_moves, nothing_was_reset};
use anyhow::{Context, Result, ensure};
use baton_api::{Affinity, ClientIp, FlowEvents, Limits};
use baton_lab::HttpClient;
use baton_ns::{HTTP_PORT, Scene, never};
use std::collections::BTreeMap;

const REQUESTS: u64 = 20_000;
const CONNECTIONS: usize = 32;
/// Ports of legs, of which each worker has its block.
const PORTS: (u16, u16) = (20_000, 28_191);

fn with(name: &str, workers: u32, pods: usize) -> Result<Scene> {
    let mut scene = Scene::with_pods(name, pods)?;
    scene.config.workers = Some(workers);
    scene.config.ports = format!("{}-{}", PORTS.0, PORTS.1);
    Ok(scene)
}

/// The worker that has a leg's port.
fn worker_of(port: u16, workers: u32) -> u32 {
    let block = (u32::from(PORTS.1 - PORTS.0) + 1) / workers;
    u32::from(port - PORTS.0) / block
}

#[test]
fn one_serves_as_before() -> Result<()> {
    shared_by(1)
}

#[test]
fn two_share_the_flows() -> Result<()> {
    shared_by(2)
}

#[test]
fn four_share_the_flows() -> Result<()> {
    shared_by(4)
}

fn shared_by(workers: u32) -> Result<()> {
    let mut scene = with(&format!("work{workers}"), workers, 3)?;
    scene.add_redis()?;
    scene.start()?;
    let told = scene.state()?.worker;
    ensure!((told.workers, &*told.mode) == (workers, "native"), "{told:?}");
    let what = format!("{workers} workers");
    let load = (CONNECTIONS, REQUESTS);
    every_request_moves(&scene, &what, addresses(&scene)?, load)?;

    // Events of all of them in one answer, and further ones behind where it ended.
    let events = |since: &str| -> Result<FlowEvents> {
        let query = format!("/v1/events?since={since}");
        Ok(serde_json::from_str(&scene.dataplane()?.control_text(&query)?)?)
    };
    let (mut since, mut moves) = ("0".to_owned(), BTreeMap::new());
    loop {
        let told = events(&since)?;
        ensure!(told.next.0.len() == workers as usize, "{}", told.next);
        for event in told.events.iter().filter(|e| e.event == "moved") {
            *moves.entry(u32::from(event.worker)).or_insert(0_u64) += 1;
        }
        since = told.next.to_string();
        if !told.more {
            break;
        }
    }
    eprintln!("moves by worker: {moves:?}");
    ensure!(moves.len() == workers as usize, "some had none: {moves:?}");

    // A move that an admin asks for finds the flow wherever it is.
    // Its frontend is named, as the same port may have been taken for another one.
    let address = scene.address(HTTP_PORT)?;
    let frontend = address.to_string();
    for _ in 0..4 {
        let mut client = HttpClient::connect(scene.lab.client().namespace(), address)?;
        client.get("/")?;
        let asked = client.stream().local_addr()?.to_string();
        let move_it = ["migrate", &asked, "--frontend", &frontend];
        scene.dataplane()?.tool(&move_it)?;
        client.get("/")?;
    }
    nothing_was_reset(&scene)
}

/// A flow's owner leg and its client come to the same worker: by the port, and by a hash. With
/// affinity, all of a client's do.
#[test]
fn all_flows_of_a_client_with_affinity_are_one_workers() -> Result<()> {
    const WORKERS: u32 = 4;
    let mut scene = with("workaff", WORKERS, 3)?;
    let mut sticky = scene.config.policies[0].clone();
    "sticky".clone_into(&mut sticky.name);
    sticky.frontends = vec![baton_ns::own_v4(HTTP_PORT + 1)?];
    sticky.affinity = Some(Affinity { client_ip: ClientIp::default() });
    sticky.migration = never();
    scene.config.policies[0].migration = never();
    scene.config.policies.push(sticky);
    scene.start()?;
    let connect = |port: u16| -> Result<Vec<HttpClient>> {
        let address = scene.address(port)?;
        (0..32)
            .map(|_| {
                let mut client = HttpClient::connect(scene.lab.client().namespace(), address)?;
                client.get("/")?;
                Ok(client)
            })
            .collect()
    };
    let (_any, _one) = (connect(HTTP_PORT)?, connect(HTTP_PORT + 1)?);
    let mut workers: BTreeMap<String, BTreeMap<u32, u32>> = BTreeMap::new();
    let mut backends: BTreeMap<String, BTreeMap<String, u32>> = BTreeMap::new();
    for flow in scene.dataplane()?.flows()? {
        let of = workers.entry(flow.policy.clone()).or_default();
        *of.entry(worker_of(flow.port, WORKERS)).or_default() += 1;
        let of = backends.entry(flow.policy).or_default();
        *of.entry(flow.backend).or_default() += 1;
    }
    eprintln!("{workers:?} {backends:?}");
    ensure!(workers["http"].len() == WORKERS as usize, "all have some: {workers:?}");
    ensure!(
        workers["sticky"].len() == 1 && backends["sticky"].len() == 1,
        "one worker, one pod: {workers:?} {backends:?}"
    );
    Ok(())
}

/// What no worker has room for is refused by all, and what was in force stays with all.
#[test]
fn a_snapshot_is_taken_by_all_or_by_none() -> Result<()> {
    let mut scene = with("workall", 2, 3)?;
    scene.config.limits = Some(Limits { backends: 3, ..Limits::default() });
    scene.config.policies[0].migration = never();
    scene.start()?;
    let mut held = Vec::new();
    for _ in 0..16 {
        let mut client =
            HttpClient::connect(scene.lab.client().namespace(), scene.address(HTTP_PORT)?)?;
        client.get("/")?;
        held.push(client);
    }
    // As many backends as there may be, at other ports: the ones that flows hold leave no room.
    let before = scene.config.clone();
    for backend in &mut scene.config.policies[0].backends {
        let address = backend.endpoint.address();
        backend.endpoint = baton_api::Endpoint::new(address, 81).context("an endpoint")?;
    }
    let refused = scene.reconfigure();
    ensure!(refused.is_err(), "there was room");
    let problems = scene.dataplane()?.control_get("/v1/state")?["problems"].to_string();
    ensure!(problems.contains("limits.backends"), "{problems}");
    for client in &mut held {
        client.get("/")?;
    }
    scene.config = before;
    let mut fresh = HttpClient::connect(scene.lab.client().namespace(), scene.address(HTTP_PORT)?)?;
    fresh.get("/")?;
    Ok(())
}

#[test]
fn several_where_only_one_is_possible_are_refused_in_words() -> Result<()> {
    let mut scene = with("workmode", 2, 1)?;
    scene.config.mode = "packet".into();
    let error = format!("{:#}", scene.start_dataplane().expect_err("packet sockets"));
    ensure!(
        error.contains("workers = 2 is not possible in packet mode: set `workers` to auto or 1"),
        "{error}"
    );
    Ok(())
}
