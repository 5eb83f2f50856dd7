//! The operator is killed at many moments while objects change, and started again each time. In the
//! end all dataplanes have what an operator gives that was never disturbed, and no push on the way
//! dropped what lives.

use crate::script::Script;
use anyhow::{Context, Result};
use baton_operator_tests::{
    class::Class,
    cluster::DEADLINE,
    dataplane::{Dataplane, Pushes},
    operator::Operator,
    or_skip,
    world::World,
};
use serde_json::json;
use std::{cell::Cell, env, time::Duration};
use tokio::time::sleep;

/// How often it is killed.
const KILLS: u32 = 24;
/// What all moments and changes come of, unless BATON_SEED says another number.
const SEED: u64 = 1;
/// Between two changes. The script goes on as long as there are kills; at this pace it makes some
/// hundred changes.
const PACE: Duration = Duration::from_millis(60);
/// Of every other kill: at most so long after the operator's start, which takes a second on a busy
/// machine until it pushes.
const AFTER_START: Duration = Duration::from_millis(1_500);
/// Of the others: at most so long after a push has begun.
const AFTER_PUSH: Duration = Duration::from_millis(40);
/// How long one of the dataplanes takes over a push, so that many kills come in the middle of one.
const SLOW: Duration = Duration::from_millis(30);

/// When the next kill comes.
async fn moment(rng: &mut fastrand::Rng, number: u32, dataplanes: &[Dataplane]) -> Result<()> {
    if number.is_multiple_of(2) {
        sleep(AFTER_START.mul_f64(rng.f64())).await;
        return Ok(());
    }
    let dataplane = &dataplanes[rng.usize(..dataplanes.len())];
    let before = dataplane.pushes().len();
    dataplane.wait_pushes(DEADLINE, |pushes| pushes.len() > before).await?;
    sleep(AFTER_PUSH.mul_f64(rng.f64())).await;
    Ok(())
}

/// Waits until all dataplanes of a class have what the server was told.
async fn settled(world: &World, class: &Class, script: &Script) -> Result<()> {
    class.served(&world.admin, |s| script.is_told(s)).await?;
    Ok(())
}

#[tokio::test]
async fn an_operator_that_is_killed_at_any_moment_changes_no_content() -> Result<()> {
    let mut world = or_skip!(World::alone().await?);
    let seed = env::var("BATON_SEED").ok().map(|seed| seed.parse());
    let seed = seed.transpose().context("BATON_SEED")?.unwrap_or(SEED);
    println!("seed {seed}");
    let namespace = world.server.namespace("kills").await?.name;
    let class = Class::start(&world.admin, "kills", 3).await?;
    for dataplane in &class.dataplanes {
        dataplane.remember();
    }
    class.dataplanes[2].set_pushes(Pushes::Late(SLOW));
    let mut script = Script::new(seed, &namespace, &class);
    // Of one name, so that the Lease that it left is its own.
    let start = |world: &mut World| world.start_operator("killed", &[]);
    let mut operator: Option<Operator> = Some(start(&mut world)?);
    script.step(&world.admin).await?;
    settled(&world, &class, &script).await?;

    let killing = Cell::new(true);
    let admin = world.admin.clone();
    let changes = async {
        while killing.get() {
            script.step(&admin).await?;
            sleep(PACE).await;
        }
        anyhow::Ok(())
    };
    let kills = async {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x6b69_6c6c);
        for number in 0..KILLS {
            let found = moment(&mut rng, number, &class.dataplanes).await;
            found.with_context(|| format!("kill {number}\n{}", admin.log()))?;
            operator.take().context("an operator")?.kill()?;
            operator = Some(start(&mut world)?);
        }
        killing.set(false);
        anyhow::Ok(())
    };
    tokio::try_join!(changes, kills)?;

    // The last one has to make good what all the others left.
    settled(&world, &class, &script).await?;
    operator.take().context("an operator")?.kill()?;
    let pushes: Vec<usize> = class.dataplanes.iter().map(|d| d.pushes().len()).collect();
    println!("{KILLS} kills during {} changes; pushes by dataplane: {pushes:?}", script.changes);
    for dataplane in &class.dataplanes {
        script.nothing_live_was_dropped(&dataplane.history())?;
        let pushes = dataplane.pushes();
        assert!(pushes.is_sorted_by(|a, b| a.generation < b.generation), "{pushes:?}");
    }

    // An operator that knows nothing but the final objects, with dataplanes that have never had
    // another one.
    let undisturbed = Class::start(&world.admin, "undisturbed", 1).await?;
    let both = json!({ "metadata": { "labels": class.selector()["matchLabels"] } });
    let object = undisturbed.manifest(&json!({}));
    world.admin.merge(&object, "", &both).await?;
    let last = world.start_operator("undisturbed", &[])?;
    settled(&world, &undisturbed, &script).await?;
    let expected = undisturbed.dataplanes[0].newest().context("a snapshot")?;
    for (number, dataplane) in class.dataplanes.iter().enumerate() {
        let newest = dataplane.newest().context("a snapshot")?;
        assert_eq!(newest.content, expected.content, "dataplane {number}");
    }
    // It looks before it pushes: what is as it should be stays untouched.
    for dataplane in &class.dataplanes {
        dataplane.wait_looks(DEADLINE, 2).await?;
    }
    let after: Vec<usize> = class.dataplanes.iter().map(|d| d.pushes().len()).collect();
    assert_eq!(after, pushes, "{}", last.log());
    Ok(())
}
