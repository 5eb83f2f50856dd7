//! The shim frozen, killed while it starts, and away while keys change, with every request moving.
//!
//! A shim that is killed, upgraded or given other keys in the usual order is in `shim`.

use crate::{
    more, moves_on, no_error,
    shim::{dataplane_keys, shim_keys, without_a_gap},
};
use anyhow::{Context, Result, ensure};
use baton_lab::{HttpEcho, LoadOptions, RedisCheck, Spec, program};
use baton_ns::{FrameSocket, HTTP_PORT, REDIS_PORT, RawIp, Scene, established, segment_of, until};
use baton_packet::parse_adoption;
use std::{thread, time::Duration};

const CONNECTIONS: usize = 16;
/// Of redis, enough to be at work when the keys change.
const COMMANDS: u64 = 24_000;
const FREEZE: Duration = Duration::from_millis(1_000);
/// A shim attaches to three pods in some 50 ms: the kills hit it before, within and behind that.
const KILL_AFTER_MS: [u64; 8] = [0, 5, 10, 20, 30, 45, 60, 90];
/// Ethernet header.
const ETHERNET_BYTES: usize = 14;

#[test]
fn a_frozen_shim_leaves_no_gap() -> Result<()> {
    let mut scene = Scene::with_pods("shimfreeze", 3)?;
    scene.start()?;
    let load = scene.echo(CONNECTIONS, None)?;
    moves_on(&scene, &load)?;
    scene.shim.as_mut().context("shim")?.process.freeze()?;
    moves_on(&scene, &load)?;
    thread::sleep(FREEZE);
    moves_on(&scene, &load)?;
    let moved = scene.counter("migrations_total")?;
    scene.shim.as_mut().context("shim")?.process.thaw()?;
    moves_on(&scene, &load)?;
    // The kernel counted what came while nobody looked.
    let adopted = scene.shim_counter(&["\"adopted\""])?;
    ensure!(adopted >= moved, "{adopted} adoptions counted, {moved} moves");
    assert_eq!(scene.shim_counter(&["baton_shim_attach_failures_total"])?, 0);
    without_a_gap(&scene, load)
}

#[test]
fn a_shim_killed_while_it_starts_leaves_no_gap() -> Result<()> {
    let mut scene = Scene::with_pods("shimstart", 3)?;
    scene.start()?;
    let load = scene.echo(CONNECTIONS, None)?;
    let path = scene.shim.as_ref().context("shim")?.config_path();
    let path = path.display().to_string();
    let spec = Spec::new(program("host-shim")?, ["run", "--config", &path]);
    moves_on(&scene, &load)?;
    scene.shim.take().context("shim")?.process.kill()?;
    for after_ms in KILL_AFTER_MS {
        let mut shim = scene.lab.router().spawn(&spec)?;
        thread::sleep(Duration::from_millis(after_ms));
        shim.kill()?;
        more(&load, 500)?;
    }
    moves_on(&scene, &load)?;
    let moved = scene.counter("migrations_total")?;
    scene.start_shim()?;
    moves_on(&scene, &load)?;
    // One adopter per pod, and the same as before: a second one would count nothing or everything
    // twice.
    let adopted = scene.shim_counter(&["\"adopted\""])?;
    let now = scene.counter("migrations_begun_total")?;
    ensure!(
        (moved..=now).contains(&adopted),
        "{adopted} adoptions counted, {moved} to {now} moves"
    );
    assert_eq!(scene.shim_counter(&["baton_shim_pods", "attached"])?, 3);
    without_a_gap(&scene, load)
}

#[test]
fn keys_are_rotated_in_either_order_and_an_old_one_is_refused() -> Result<()> {
    let mut scene = Scene::with_pods("rotate", 3)?;
    scene.start()?;
    let genuine = genuine_adoption(&scene)?;
    let load = scene.echo(CONNECTIONS, None)?;
    for epoch in 1..=4 {
        let (old, new) = (scene.lab.key(epoch)?, scene.lab.key(epoch + 1)?);
        if epoch % 2 == 1 {
            shim_keys(&mut scene, &[&old, &new])?;
            moves_on(&scene, &load)?;
            dataplane_keys(&mut scene, &[&new, &old])?;
        } else {
            dataplane_keys(&mut scene, &[&old, &new])?;
            moves_on(&scene, &load)?;
            shim_keys(&mut scene, &[&old, &new])?;
            dataplane_keys(&mut scene, &[&new, &old])?;
        }
        moves_on(&scene, &load)?;
        dataplane_keys(&mut scene, &[&new])?;
        shim_keys(&mut scene, &[&new])?;
        moves_on(&scene, &load)?;
    }
    assert_eq!(scene.shim_counter(&["\"unknown_epoch\""])?, 0);
    assert_eq!(scene.shim_counter(&["\"bad_tag\""])?, 0);
    assert_eq!(scene.counter("forged_answers_total")?, 0);
    without_a_gap(&scene, load)?;
    scene.wait_legs_closed()?;

    // What was genuine in its epoch creates nothing behind it.
    let sockets = sockets(&scene)?;
    let pod = scene.lab.pods()[0].ipv4();
    let raw = RawIp::open(scene.lab.dataplane_pod().namespace())?;
    raw.send(&genuine[ETHERNET_BYTES..], pod)?;
    until("refused", || {
        let refused = scene.shim_counter(&["\"unknown_epoch\""])?;
        ensure!(refused == 1, "{refused} segments of an unknown epoch");
        Ok(())
    })?;
    assert_eq!(self::sockets(&scene)?, sockets, "a socket came of it");
    Ok(())
}

/// The wrong order: the dataplane signs with a key that the shim, which is dead, has never seen.
#[test]
fn requests_stay_where_they_are_while_the_shim_lacks_the_key() -> Result<()> {
    let mut scene = Scene::with_pods("nokey", 3)?;
    scene.add_redis()?;
    scene.start()?;
    let place = scene.lab.client().namespace().clone();
    let load = HttpEcho::start(&place, scene.http_load(CONNECTIONS, None)?)?;
    let servers: Vec<_> = scene.redis.iter().map(baton_lab::Server::address).collect();
    let options = LoadOptions::of(scene.address(REDIS_PORT)?, 8, Some(COMMANDS));
    let redis = RedisCheck::start(&place, &servers, options)?;
    let (first, second) = (scene.lab.key(1)?, scene.lab.key(2)?);
    moves_on(&scene, &load)?;
    scene.shim.take().context("shim")?.process.kill()?;
    ensure!(!redis.is_finished(), "the redis load has ended");
    dataplane_keys(&mut scene, &[&second])?;
    until("not adoptable", || {
        for policy in scene.state()?.policies {
            for backend in policy.backends {
                ensure!(!backend.adoptability.is_ready(), "{} is adoptable", backend.name);
            }
        }
        Ok(())
    })?;
    let begun = scene.counter("migrations_begun_total")?;
    more(&load, 4_000)?;
    assert_eq!(scene.counter("migrations_begun_total")?, begun);
    // It comes back with the key, and requests move again.
    scene.shim_config.keys = Some(vec![first, second].into());
    scene.start_shim()?;
    scene.wait_adoptable()?;
    moves_on(&scene, &load)?;
    ensure!(
        scene.shim_counter(&["\"unknown_epoch\""])? > 0,
        "the pods' kernels met no segment of the new epoch"
    );
    let (report, _) = load.stop()?;
    scene.explained(no_error(&report, None))?;
    let report = scene.explained(RedisCheck::finish(redis))?;
    scene.explained(no_error(&report, Some(COMMANDS)))?;
    scene.nothing_lost(0)?;
    scene.nothing_lost(1)?;
    assert_eq!(scene.counter("resets_sent_total{to=\"client\"}")?, 0);
    Ok(())
}

/// An adoption to pod-a as it went over the wire, whose connection has moved on since.
fn genuine_adoption(scene: &Scene) -> Result<Vec<u8>> {
    /// Adopt, of the experiment ids in docs/adoption-wire.md.
    const ADOPT: [u8; 2] = [0xba, 0x70];
    let sniffer = FrameSocket::open(scene.lab.router().namespace())?;
    let options = scene.http_load(2, Some(40))?;
    crate::http_without_error(scene, options)?;
    let pod = scene.lab.pods()[0].ipv4();
    let (frame, _) = sniffer.find("an adoption", |frame| {
        segment_of(frame).is_some_and(|s| {
            s.dst == pod
                && parse_adoption(frame, &s).is_some()
                && s.options(frame).get(2..4) == Some(&ADOPT)
        })
    })?;
    Ok(frame)
}

fn sockets(scene: &Scene) -> Result<usize> {
    let sockets = established(scene.lab.pods()[0].namespace())?;
    Ok(sockets.iter().filter(|s| s.local_port == HTTP_PORT).count())
}
