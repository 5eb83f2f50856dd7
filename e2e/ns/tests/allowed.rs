//! `allowFrom` with the kernel's own clients: one that is named connects, another one gets no
//! answer, and connections that there are stay when the list changes.

use crate::{more, no_error};
use anyhow::{Context, Result, ensure};
use baton_api::Network;
use baton_lab::Pod;
use baton_ns::{HTTP_PORT, Scene};
use std::{io::ErrorKind, net::TcpStream, time::Duration};

/// Long enough for a SYN and its first repetition (1 s), which is dropped, too.
const NO_ANSWER: Duration = Duration::from_millis(1_500);

fn connect(scene: &Scene, from: &Pod) -> Result<std::io::Result<TcpStream>> {
    let to = scene.address(HTTP_PORT)?;
    let namespace = from.namespace();
    namespace.run(|| TcpStream::connect_timeout(&to, NO_ANSWER))
}

/// SYNs that were dropped, as the policy's own count and the worker's say alike.
fn refused(scene: &Scene) -> Result<u64> {
    let all = scene.counter("drops_total{reason=\"not_allowed\"}")?;
    let text = scene.dataplane()?.control_text("/metrics")?;
    let sample = "baton_dataplane_policy_not_allowed_total{";
    let mut lines = text.lines().filter(|line| line.starts_with(sample));
    let line = lines.next().context("no sample of the policy")?;
    let own = line.rsplit_once(' ').context("no value")?.1;
    assert_eq!(own.parse::<f64>()? as u64, all, "{line}");
    Ok(all)
}

/// Nothing answers it, and each of its SYNs is counted.
fn gets_no_answer(scene: &Scene, from: &Pod) -> Result<()> {
    let before = refused(scene)?;
    let error = connect(scene, from)?.err();
    let kind = error.as_ref().map(std::io::Error::kind);
    ensure!(kind == Some(ErrorKind::TimedOut), "{error:?}");
    let syns = refused(scene)? - before;
    ensure!(syns >= 2, "{syns} SYNs of one attempt");
    Ok(())
}

#[test]
fn who_is_named_connects_and_who_is_connected_stays() -> Result<()> {
    let mut scene = Scene::with_pods("allowed", 3)?;
    let [client, other] = [scene.lab.client(), &scene.lab.pods()[0]];
    let [named, others] = [client, other].map(|pod| Some(vec![Network::host(pod.ipv4())]));
    scene.config.policies[0].allow_from = named;
    scene.start()?;
    assert_eq!(refused(&scene)?, 0, "probes of the pods are no clients");
    gets_no_answer(&scene, &scene.lab.pods()[0])?;
    let load = scene.echo(8, None)?;
    more(&load, 1_000)?;

    scene.config.policies[0].allow_from = others;
    scene.reconfigure()?;
    gets_no_answer(&scene, scene.lab.client())?;
    connect(&scene, &scene.lab.pods()[0])?.context("the other one is named now")?;
    more(&load, 1_000)?;
    let (report, _) = load.stop()?;
    no_error(&report, None)
}
