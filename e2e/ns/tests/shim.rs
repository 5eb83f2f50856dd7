//! The shim ends, starts again, and changes keys, while every request moves. No request notices.

use crate::{more, no_error};
use anyhow::{Context, Result, ensure};
use baton_lab::{HttpEcho, Key, Load, Process, Spec, program};
use baton_ns::{Scene, until, write_whole};
use std::time::Duration;

#[test]
fn a_killed_shim_leaves_no_gap() -> Result<()> {
    let mut scene = Scene::with_pods("shimkill", 3)?;
    scene.start()?;
    let load = scene.echo(16, None)?;
    for _ in 0..3 {
        moves_on(&scene, &load)?;
        scene.shim.as_mut().context("shim")?.process.kill()?;
        // Nobody is there, and the pods adopt all the same.
        moves_on(&scene, &load)?;
        let adopted = move_count(&scene)?;
        scene.start_shim()?;
        moves_on(&scene, &load)?;
        // Its counters go on where the predecessor's were: they are the kernel's.
        let counted = scene.shim_counter(&["\"adopted\""])?;
        assert!(counted >= adopted, "{counted} adoptions counted, {adopted} migrations");
    }
    without_a_gap(&scene, load)
}

#[test]
fn a_shim_is_upgraded_in_place() -> Result<()> {
    let mut scene = Scene::with_pods("upgrade", 3)?;
    let mut old = keeping_shim(&scene)?;
    scene.start_dataplane()?;
    scene.wait_adoptable()?;
    let load = scene.echo(16, None)?;
    moves_on(&scene, &load)?;
    let status = old.stop(Duration::from_secs(5))?;
    ensure!(status.success(), "{status}");
    moves_on(&scene, &load)?;
    scene.start_shim()?;
    moves_on(&scene, &load)?;
    without_a_gap(&scene, load)
}

#[test]
fn keys_are_rotated_under_load() -> Result<()> {
    let mut scene = Scene::with_pods("keys", 3)?;
    scene.start()?;
    let (first, second) = (scene.lab.key(1)?, scene.lab.key(2)?);
    let load = scene.echo(16, None)?;
    moves_on(&scene, &load)?;
    shim_keys(&mut scene, &[&first, &second])?;
    moves_on(&scene, &load)?;
    dataplane_keys(&mut scene, &[&second, &first])?;
    moves_on(&scene, &load)?;
    dataplane_keys(&mut scene, &[&second])?;
    moves_on(&scene, &load)?;
    shim_keys(&mut scene, &[&second])?;
    moves_on(&scene, &load)?;
    assert_eq!(scene.shim_counter(&["\"unknown_epoch\""])?, 0);
    assert_eq!(scene.shim_counter(&["\"bad_tag\""])?, 0);
    assert_eq!(scene.counter("forged_answers_total")?, 0);
    without_a_gap(&scene, load)
}

fn move_count(scene: &Scene) -> Result<u64> {
    scene.counter("migrations_total")
}

/// The load goes on, and nearly every request moves (all but those around a probe that came late).
fn moves_on(scene: &Scene, load: &Load<HttpEcho>) -> Result<()> {
    let before = move_count(scene)?;
    more(load, 4_000)?;
    let moved = move_count(scene)? - before;
    ensure!(moved >= 3_900, "{moved} moves in 4,000 requests");
    Ok(())
}

/// No client saw an error, and no move was taken back or in doubt.
pub(crate) fn without_a_gap(scene: &Scene, load: Load<HttpEcho>) -> Result<()> {
    let (report, _) = load.stop()?;
    scene.explained(no_error(&report, None))?;
    for counter in [
        "rollbacks_total",
        "fates_unknown_total{outcome=\"replayed\"}",
        "fates_unknown_total{outcome=\"reset\"}",
        "resets_sent_total{to=\"client\"}",
    ] {
        assert_eq!(scene.counter(counter)?, 0, "{counter}");
    }
    Ok(())
}

/// A shim that leaves the adopter in place when it ends in order.
fn keeping_shim(scene: &Scene) -> Result<Process> {
    let path = scene.lab.directory().join("keeping-shim.yaml");
    write_whole(&path, &serde_json::to_string(&scene.shim_config)?)?;
    let path = path.display().to_string();
    let arguments = ["run", "--keep-on-exit", "--config", &path];
    scene.lab.router().spawn(&Spec::new(program("host-shim")?, arguments))
}

/// Has the shim read other keys.
pub(crate) fn shim_keys(scene: &mut Scene, keys: &[&Key]) -> Result<()> {
    let all: Vec<_> = keys.iter().map(|k| (*k).clone()).collect();
    scene.shim_config.keys = Some(all.into());
    let text = serde_json::to_string(&scene.shim_config)?;
    write_whole(scene.shim.as_ref().context("shim")?.config_path(), &text)?;
    until("the shim's keys changed", || {
        let live = scene.shim_counter(&["baton_shim_key_epochs"])?;
        ensure!(live == keys.len() as u64, "{live} live epochs");
        Ok(())
    })
}

/// Has the dataplane read other keys, and sign with the first.
pub(crate) fn dataplane_keys(scene: &mut Scene, keys: &[&Key]) -> Result<()> {
    scene.config.keys = keys.iter().map(|k| (*k).clone()).collect::<Vec<_>>().into();
    let text = serde_json::to_string(&scene.config)?;
    write_whole(scene.dataplane()?.config_path(), &text)?;
    let epochs: Vec<u8> = keys.iter().map(|k| k.epoch).collect();
    until("the dataplane's keys changed", || {
        let live = scene.state()?.worker.key_epochs;
        ensure!(live == epochs, "{live:?}");
        Ok(())
    })
}
