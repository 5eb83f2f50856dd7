//! Changed configurations under load: files, SIGHUP, pushed snapshots. No request notices.

use crate::{more, no_error};
use anyhow::{Context, Error, Result, ensure};
use baton_api::{MigrationMode, Snapshot};
use baton_lab::{HttpEcho, Key, Load, LoadOptions};
use baton_ns::{Scene, always, never, until, write_whole};
use rustix::process::Signal;
use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    os::unix::fs::symlink,
};

#[test]
fn policies_change_under_load() -> Result<()> {
    let mut scene = Scene::with_pods("reload", 3)?;
    scene.config.policies[0].migration = never();
    scene.start()?;
    let load = scene.echo(16, None)?;
    for migration in [never(), always(), never(), always(), never()] {
        if migration != scene.config.policies[0].migration {
            scene.config.policies[0].migration = migration;
            scene.reconfigure()?;
        }
        moves_as_configured(&scene, &load, migration.mode)?;
    }

    // A bad file is refused, with line and field, and the last good one stays.
    let good = fs::read_to_string(scene.dataplane()?.config_path())?;
    let before = (scene.state()?, refusals(&scene)?);
    let bad = good.replace("\"ratioPercent\": 150", "\"ratioPercent\": 2");
    ensure!(bad != good, "the configuration names no ratio:\n{good}");
    write_whole(scene.dataplane()?.config_path(), &bad)?;
    until("refused", || {
        let now = refusals(&scene)?;
        ensure!(now > before.1, "{now} refusals");
        Ok(())
    })?;
    let problems = scene.dataplane()?.control_get("/v1/state")?["problems"].to_string();
    for part in ["refused", "lb-dataplane.yaml:", "policies[0].migration.ratioPercent", "below 100"]
    {
        ensure!(problems.contains(part), "`{part}` is not in {problems}");
    }
    assert_eq!(scene.state()?.generation, before.0.generation);
    moves_as_configured(&scene, &load, MigrationMode::Never)?;

    // A pushed snapshot goes the same way.
    let mut policies = scene.config.policies.clone();
    policies[0].migration = always();
    let newer = Snapshot { generation: before.0.generation + 10, policies };
    let body = serde_json::to_string(&newer)?;
    let held = put_snapshot(&scene, &body)?;
    assert_eq!(held, 403, "as long as the file says what is served");
    let mut file = serde_json::to_value(&scene.config)?;
    file.as_object_mut().context("an object")?.remove("policies");
    write_whole(scene.dataplane()?.config_path(), &file.to_string())?;
    until("pushed, as the file says nothing any more", || {
        let status = put_snapshot(&scene, &body)?;
        ensure!(status == 200, "{status}");
        Ok(())
    })?;
    assert_eq!(scene.state()?.generation, newer.generation);
    moves_as_configured(&scene, &load, MigrationMode::Always)?;
    let older = Snapshot { generation: 1, ..newer.clone() };
    assert_eq!(put_snapshot(&scene, &serde_json::to_string(&older)?)?, 409);
    assert_eq!(put_snapshot(&scene, "{\"generation\": 1000}")?, 422);
    assert_eq!(scene.state()?.generation, newer.generation);

    let (report, _) = load.stop()?;
    no_error(&report, None)
}

#[test]
fn one_bad_policy_of_three_is_refused_by_name_and_the_others_are_served() -> Result<()> {
    let mut scene = Scene::with_pods("sifted", 2)?;
    scene.start()?;
    let load = scene.echo(8, None)?;
    let mut file = serde_json::to_value(&scene.config)?;
    file.as_object_mut().context("an object")?.remove("policies");
    write_whole(scene.dataplane()?.config_path(), &file.to_string())?;
    let mut policies = vec![scene.config.policies[0].clone()];
    // 20007 is one of the legs' ports.
    for (name, port) in [("bad", 20_007), ("new", 8_081)] {
        let mut policy = policies[0].clone();
        policy.name = name.into();
        policy.frontends = vec![format!("0.0.0.0:{port}").parse().map_err(Error::msg)?];
        policies.push(policy);
    }
    let newer = Snapshot { generation: scene.state()?.generation + 10, policies };
    let body = serde_json::to_string(&newer)?;
    until("pushed, as the file says nothing any more", || {
        let status = put_snapshot(&scene, &body)?;
        ensure!(status == 200, "{status}");
        Ok(())
    })?;
    let state = scene.state()?;
    assert_eq!(state.generation, newer.generation);
    let refused: Vec<_> = state.refused.iter().map(|r| r.policy.as_str()).collect();
    assert_eq!(refused, ["bad"]);
    let words = &state.refused[0].message;
    ensure!(words.contains("20007"), "{words}");
    let options = LoadOptions::of(scene.address(8_081)?, 8, Some(4_000));
    let new = HttpEcho::start(scene.lab.client().namespace(), options)?;
    let (report, _) = new.join()?;
    no_error(&report, Some(4_000))?;
    more(&load, 1_000)?;
    let (report, _) = load.stop()?;
    no_error(&report, None)
}

#[test]
fn sighup_reads_the_file_again() -> Result<()> {
    let mut scene = Scene::with_pods("sighup", 2)?;
    // Away from all folders where something else writes.
    let folder = scene.lab.directory().join("elsewhere");
    fs::create_dir(&folder)?;
    let key = folder.join("key");
    fs::copy(&scene.lab.key(1)?.file, &key)?;
    scene.config.keys = vec![Key { epoch: 1, file: key }].into();
    scene.start()?;
    let load = scene.echo(8, None)?;
    more(&load, 1_000)?;

    // The file becomes a link: what changes at its other end, no watch on the folder can see.
    let path = scene.dataplane()?.config_path().to_owned();
    let unseen = scene.lab.directory().join("unseen");
    fs::create_dir(&unseen)?;
    let real = unseen.join("config.yaml");
    fs::copy(&path, &real)?;
    let link = path.with_extension("link");
    symlink(&real, &link)?;
    fs::rename(&link, &path)?;
    let generation = scene.state()?.generation;
    scene.config.policies[0].migration = never();
    fs::write(&real, serde_json::to_string(&scene.config)?)?;
    scene.dataplane_mut()?.process.signal(Signal::HUP)?;
    until("reloaded", || {
        let now = scene.state()?.generation;
        ensure!(now == generation + 1, "generation {now}, before {generation}");
        Ok(())
    })?;
    moves_as_configured(&scene, &load, MigrationMode::Never)?;
    let (report, _) = load.stop()?;
    no_error(&report, None)
}

/// Lets the load go on and looks whether flows move.
fn moves_as_configured(scene: &Scene, load: &Load<HttpEcho>, mode: MigrationMode) -> Result<()> {
    let begun = scene.counter("migrations_begun_total")?;
    more(load, 3_000)?;
    let now = scene.counter("migrations_begun_total")?;
    match mode {
        MigrationMode::Never => assert_eq!(now, begun, "flows move"),
        _ => assert!(now >= begun + 2_000, "only {} moves in 3,000 requests", now - begun),
    }
    Ok(())
}

fn refusals(scene: &Scene) -> Result<u64> {
    let text = scene.dataplane()?.control_text("/metrics")?;
    let name = "baton_dataplane_config_reloads_total{result=\"refused\"} ";
    let value = text.lines().find_map(|l| l.strip_prefix(name));
    value.context(name)?.parse().context("a number")
}

/// Pushes a snapshot and gives the status of the answer.
fn put_snapshot(scene: &Scene, body: &str) -> Result<u16> {
    let answer = scene.lab.dataplane_pod().namespace().run(|| -> std::io::Result<String> {
        let mut stream = TcpStream::connect(baton_lab::DATAPLANE_CONTROL)?;
        write!(
            stream,
            "PUT /v1/snapshot HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    })??;
    let status = answer.split(' ').nth(1).with_context(|| answer.clone())?;
    status.parse().with_context(|| answer.clone())
}
