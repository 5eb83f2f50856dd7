//! Rollback against the real kernel: a pod that cannot or will not adopt leaves the client with the
//! old one.

use crate::{http_without_error, more, no_error};
use anyhow::{Context, Result, ensure};
use baton_api::{Backend, Endpoint, MoveMethod};
use baton_lab::{HttpClient, NginxOptions, echo_body};
use baton_ns::{HTTP_PORT, Scene, always, established, listeners, never, until};
use rustix::process::{Pid, Signal, kill_process};

const NO_ADOPTER: &str = "no adopter (is host-shim running there?)";

#[test]
fn a_pod_without_adopter_is_never_adopted_to() -> Result<()> {
    let mut scene = Scene::with_pods("noadopter", 3)?;
    scene.config.policies[0].migration.method = MoveMethod::Adoption;
    scene.shim_config.pods.retain(|p| p.name != "pod-b");
    scene.start_shim()?;
    scene.start_dataplane()?;
    scene.wait_reason("pod-a", "ready")?;
    scene.wait_reason("pod-b", NO_ADOPTER)?;
    scene.wait_reason("pod-c", "ready")?;
    let options = scene.http_load(16, Some(5_000))?;
    let (_, echo) = http_without_error(&scene, options)?;
    let state = scene.state()?;
    let backends = &state.policies[0].backends;
    assert_eq!(backends[1].migrations_in_total, 0);
    assert!(backends[0].migrations_in_total > 0 && backends[2].migrations_in_total > 0);
    assert_eq!(
        scene.counter("rollbacks_total")?,
        0,
        "probes know it before any request is at stake"
    );
    assert!(echo.per_pod["pod-a"] > 0, "{:?}", echo.per_pod);
    Ok(())
}

#[test]
fn the_adopter_goes_away_in_the_middle() -> Result<()> {
    let mut scene = Scene::with_pods("adoptergone", 3)?;
    scene.config.policies[0].migration.method = MoveMethod::Adoption;
    scene.start()?;
    let load = scene.echo(16, None)?;
    more(&load, 2_000)?;
    scene.shim.take().context("shim")?.stop()?;
    for pod in ["pod-a", "pod-b", "pod-c"] {
        scene.wait_reason(pod, NO_ADOPTER)?;
    }
    let begun = scene.counter("migrations_begun_total")?;
    assert!(begun > 0);
    more(&load, 20_000)?;
    assert_eq!(scene.counter("migrations_begun_total")?, begun, "moves to pods without adopter");
    let (report, _) = load.stop()?;
    no_error(&report, None)?;
    eprintln!(
        "rollbacks {}, retries {}, replayed {}",
        scene.counter("rollbacks_total")?,
        scene.counter("adoption_retries_total")?,
        scene.counter("fates_unknown_total{outcome=\"replayed\"}")?
    );
    Ok(())
}

#[test]
fn a_full_accept_queue_refuses() -> Result<()> {
    // Its own port, so that the length of the queue is its own.
    const PORT: u16 = 81;
    let mut scene = Scene::with_pods("queue", 2)?;
    let stuck = scene.lab.pods()[1].nginx(&NginxOptions {
        port: PORT,
        backlog: 1,
        ..NginxOptions::default()
    })?;
    let (a, b) = targets(&scene, PORT)?;
    scene.config.policies[0].backends = vec![a.clone()];
    scene.start()?;
    let mut clients = opened(&scene, 12)?;

    scene.config.policies[0].backends = vec![a, b];
    scene.reconfigure()?;
    scene.wait_adoptable()?;
    let pids = scene.lab.pods()[1].processes()?;
    signal(&pids, Signal::STOP)?;
    let requests_in_the_queue = || -> Result<usize> {
        let sockets = established(scene.lab.pods()[1].namespace())?;
        Ok(sockets.iter().filter(|s| s.local_port == PORT).count())
    };
    // Every client's request is on the way at once. The queue of length 1 holds two connections
    // (the kernel refuses at more than the backlog); the other requests come back to pod-a.
    let answers = std::thread::scope(|scope| -> Result<Vec<String>> {
        let jobs: Vec<_> = clients
            .iter_mut()
            .enumerate()
            .map(|(i, client)| scope.spawn(move || echo(client, i)))
            .collect();
        until("all but the queued answered", || {
            let done = jobs.iter().filter(|j| j.is_finished()).count();
            ensure!(done == jobs.len() - 2, "{done} of {} answered", jobs.len());
            Ok(())
        })?;
        assert_eq!(requests_in_the_queue()?, 2);
        assert!(scene.counter("adoptions_refused_total{reason=\"accept_queue_full\"}")? > 0);
        assert!(scene.counter("rollbacks_total")? > 0);
        scene.wait_reason("pod-b", "accept queue full")?;
        // The pod goes on, and with it the two.
        signal(&pids, Signal::CONT)?;
        jobs.into_iter().map(|j| j.join().unwrap()).collect()
    });
    let answers = answers?;
    assert_eq!(answers.iter().filter(|pod| *pod == "pod-b").count(), 2, "{answers:?}");
    assert_eq!(answers.iter().filter(|pod| *pod == "pod-a").count(), 10, "{answers:?}");
    scene.wait_reason("pod-b", "ready")?;
    drop(stuck);
    Ok(())
}

#[test]
fn nothing_listens_on_the_port() -> Result<()> {
    const PORT: u16 = 81;
    let mut scene = Scene::with_pods("nolistener", 2)?;
    let (a, b) = targets(&scene, PORT)?;
    scene.config.policies[0].backends = vec![a.clone()];
    scene.config.policies[0].migration = never();
    scene.start()?;
    let mut clients = opened(&scene, 4)?;
    scene.config.policies[0].backends = vec![a, b];
    scene.config.policies[0].migration = always();
    scene.reconfigure()?;
    // A wrong port from the beginning: found out before any request is at stake.
    scene.wait_reason("pod-b", "nothing listens on the port")?;
    for (i, client) in clients.iter_mut().enumerate() {
        assert_eq!(echo(client, i)?, "pod-a");
    }
    let begun = scene.counter("migrations_begun_total")?;
    assert_eq!(begun, 0);

    // A listener that goes away between the probe and the request: the request meets the refusal. A
    // probe may come in between by chance (one second apart), so this is tried until it did not.
    for round in 0..10 {
        let mut nginx =
            scene.lab.pods()[1].nginx(&NginxOptions { port: PORT, ..NginxOptions::default() })?;
        scene.wait_reason("pod-b", "ready")?;
        nginx.process.kill()?;
        until("gone", || {
            let listens = listeners(scene.lab.pods()[1].namespace(), PORT)? > 0;
            ensure!(!listens, "the listener is still there");
            Ok(())
        })?;
        assert_eq!(echo(&mut clients[0], round)?, "pod-a", "the client stays with the old pod");
        if scene.counter("adoptions_refused_total{reason=\"no_listener\"}")? > 0 {
            break;
        }
    }
    assert!(scene.counter("adoptions_refused_total{reason=\"no_listener\"}")? > 0);
    assert!(scene.counter("rollbacks_total")? > 0);
    for (i, client) in clients.iter_mut().enumerate() {
        assert_eq!(echo(client, i)?, "pod-a");
    }
    Ok(())
}

/// Backends: pod-a on the usual port, pod-b on `port`.
fn targets(scene: &Scene, port: u16) -> Result<(Backend, Backend)> {
    let a = scene.config.policies[0].backends[0].clone();
    let mut b = scene.config.policies[0].backends[1].clone();
    b.endpoint = Endpoint::new(b.endpoint.address(), port).context("port")?;
    Ok((a, b))
}

/// Clients whose first request was answered, so that the next one is at a boundary.
fn opened(scene: &Scene, count: usize) -> Result<Vec<HttpClient>> {
    let address = scene.address(HTTP_PORT)?;
    let mut clients = (0..count)
        .map(|_| HttpClient::connect(scene.lab.client().namespace(), address))
        .collect::<Result<Vec<_>>>()?;
    for (i, client) in clients.iter_mut().enumerate() {
        echo(client, i)?;
    }
    Ok(clients)
}

/// One checked request; gives the pod that answered.
fn echo(client: &mut HttpClient, number: usize) -> Result<String> {
    let (target, nonce) = (format!("/echo/{number}"), fastrand::u64(..).to_string());
    let response = client.request("GET", &target, &[("X-Nonce", &nonce)], &[])?;
    ensure!(response.status == 200, "status {}", response.status);
    ensure!(response.body == echo_body(&target, &nonce).as_bytes(), "wrong body: {response:?}");
    Ok(response.pod().context("no X-Pod")?.to_owned())
}

fn signal(pids: &[i32], signal: Signal) -> Result<()> {
    for pid in pids {
        kill_process(Pid::from_raw(*pid).context("pid 0")?, signal)?;
    }
    Ok(())
}
