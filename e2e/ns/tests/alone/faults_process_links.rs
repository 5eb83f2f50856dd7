//! Interfaces that go down and come up again: a pod's, and the dataplane's own. Flows go on.

use crate::{more, no_error};
use anyhow::{Context, Result, ensure};
use baton_lab::{HttpEcho, Load, LoadOptions, RedisCheck};
use baton_ns::{REDIS_PORT, Scene, until};
use std::{thread, time::Duration};

const CONNECTIONS: usize = 32;
const MOVES: u64 = 2_000;
/// 8 connections at 500 commands a second each: the load lasts through all that is done here.
const PACE: Duration = Duration::from_millis(2);
const COMMANDS: u64 = 16_000;
/// Shorter than what makes a pod count as silent, and longer.
const DOWN: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(1_200)];

#[test]
fn the_interface_of_a_pod_goes_down_and_up() -> Result<()> {
    let mut scene = Scene::with_pods("podlink", 3)?;
    scene.start()?;
    let load = start(&scene)?;
    for down in DOWN {
        moves_on(&scene, &load)?;
        let node = scene.lab.router().namespace();
        node.ip(&["link", "set", "pod-b", "down"])?;
        thread::sleep(down);
        node.ip(&["link", "set", "pod-b", "up"])?;
        scene.wait_back(0, "pod-b")?;
    }
    // At the pod's own end: its routes go with the link, and whoever brings it up sets them again.
    let pod = &scene.lab.pods()[1];
    moves_on(&scene, &load)?;
    let route = pod.namespace().ip(&["route", "show", "default"])?;
    pod.namespace().ip(&["link", "set", "eth0", "down"])?;
    thread::sleep(DOWN[1]);
    up_again(pod.namespace(), &route)?;
    scene.wait_back(0, "pod-b")?;
    moves_on(&scene, &load)?;
    let (report, _) = load.stop()?;
    scene.explained(no_error(&report, None))?;
    scene.nothing_lost(0)?;
    // Requests that pod-b had confirmed went on elsewhere; those on their way to it went back to
    // where they came from.
    let silent = scene.counter("owners_lost_total{how=\"silent\"}")?;
    let replayed = scene.counter("fates_unknown_total{outcome=\"replayed\"}")?;
    ensure!(silent + replayed > 0, "no request met the silence");
    let down = scene.counter("backends_down_total{reason=\"silent\"}")?;
    ensure!(down >= 2, "{down} times down, of two that were long enough");
    assert_eq!(scene.counter("backends_back_total")?, down);
    Ok(())
}

#[test]
fn the_interface_of_the_dataplane_goes_down_and_up() -> Result<()> {
    let mut scene = Scene::with_pods("owndown", 3)?;
    scene.add_redis()?;
    scene.start()?;
    let load = start(&scene)?;
    let servers: Vec<_> = scene.redis.iter().map(baton_lab::Server::address).collect();
    let options = LoadOptions {
        connections: 8,
        requests: Some(COMMANDS),
        pace: Some(PACE),
        ..LoadOptions::new(scene.address(REDIS_PORT)?)
    };
    let redis = RedisCheck::start(scene.lab.client().namespace(), &servers, options)?;
    for down in DOWN {
        moves_on(&scene, &load)?;
        let node = scene.lab.router().namespace();
        node.ip(&["link", "set", "dataplane", "down"])?;
        until("seen to be down", || link(&scene, false))?;
        thread::sleep(down);
        node.ip(&["link", "set", "dataplane", "up"])?;
        until("seen to be up", || link(&scene, true))?;
        scene.wait_adoptable()?;
    }
    // The kernel forgot its neighbours with the carrier. They are where they were, as far as
    // anybody knows: asked for once a second, as what nobody answers for is, they were out of reach
    // for as long or longer, and adoptions that were under way ran out of tries.
    assert_eq!(scene.counter("drops_total{reason=\"no_neighbour\"}")?, 0, "forgotten at once");
    let place = scene.lab.dataplane_pod().namespace().clone();
    moves_on(&scene, &load)?;
    ensure!(!redis.is_finished(), "the redis load has ended");
    let route = place.ip(&["route", "show", "default"])?;
    place.ip(&["link", "set", "eth0", "down"])?;
    until("seen to be down", || link(&scene, false))?;
    thread::sleep(DOWN[1]);
    up_again(&place, &route)?;
    until("seen to be up", || link(&scene, true))?;
    scene.wait_adoptable()?;
    moves_on(&scene, &load)?;
    let metrics = scene.dataplane()?.control_text("/metrics")?;
    ensure!(metrics.contains("baton_dataplane_link_changes_total 6\n"), "{metrics}");
    // Its own silence is not the pods'.
    for counter in [
        "backends_down_total{reason=\"silent\"}",
        "ejections_total{result=\"ejected\"}",
        "stranded_total",
        "resets_sent_total{to=\"client\"}",
    ] {
        assert_eq!(scene.counter(counter)?, 0, "{counter}");
    }
    let (report, _) = load.stop()?;
    scene.explained(no_error(&report, None))?;
    let report = scene.explained(RedisCheck::finish(redis))?;
    scene.explained(no_error(&report, Some(COMMANDS)))?;
    scene.nothing_lost(0)?;
    scene.nothing_lost(1)?;
    Ok(())
}

fn start(scene: &Scene) -> Result<Load<HttpEcho>> {
    scene.echo(CONNECTIONS, None)
}

/// Flows move on, and the load with them.
fn moves_on(scene: &Scene, load: &Load<HttpEcho>) -> Result<()> {
    let before = scene.counter("migrations_total")?;
    let moved = until("moving", || {
        let moved = scene.counter("migrations_total")? - before;
        ensure!(moved >= MOVES, "{moved} moves");
        Ok(())
    });
    scene.explained(moved)?;
    more(load, 1_000).map(drop)
}

/// The link up and its default route, which the kernel took away with it, back.
fn up_again(place: &baton_lab::Namespace, route: &str) -> Result<()> {
    place.ip(&["link", "set", "eth0", "up"])?;
    let words: Vec<_> = ["route", "add"].into_iter().chain(route.split_whitespace()).collect();
    place.ip(&words).map(drop).context("the default route")
}

fn link(scene: &Scene, up: bool) -> Result<()> {
    let metrics = scene.dataplane()?.control_text("/metrics")?;
    let line = format!("baton_dataplane_link_up {}\n", u8::from(up));
    ensure!(metrics.contains(&line), "not `{line}`");
    Ok(())
}
