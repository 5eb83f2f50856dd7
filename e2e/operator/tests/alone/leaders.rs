//! Another operator becomes the leader while a push hangs at a dataplane: it finishes what the
//! first one began, numbers never go back, and all dataplanes have the same in the end.

use anyhow::{Context, Result, ensure};
use baton_operator_tests::{
    class::Class,
    cluster::{DEADLINE, wait_for},
    dataplane::{Dataplane, Pushes},
    objects::{has, service, slice},
    operator::Operator,
    or_skip,
    relay::Relay,
    world::World,
};
use hyper::StatusCode;
use serde_json::Value;
use std::path::Path;

/// A leader and a standby; three dataplanes serve the policy `before`, and a push of `during` hangs
/// at the second one.
struct MidPush {
    world: World,
    class: Class,
    namespace: String,
    leader: Option<Operator>,
    standby: Option<Operator>,
    during: Value,
}

impl MidPush {
    async fn start(mut world: World, kubeconfig: &Path) -> Result<Self> {
        let namespace = world.server.namespace("leaders").await?.name;
        let leader = world.start_operator_at(kubeconfig, &format!("{namespace}-first"), &[])?;
        let class = Class::start(&world.admin, &namespace, 3).await?;
        let before = add(&world, &class, &namespace, "before", 8_000).await?;
        class.served(&world.admin, has(&namespace, "before")).await?;
        world.admin.condition(&before, "Programmed", "True").await?;
        // From here on it can only be the standby.
        let standby = world.start_operator(&format!("{namespace}-second"), &[])?;
        let stuck = &class.dataplanes[1];
        stuck.set_pushes(Pushes::Held);
        let during = add(&world, &class, &namespace, "during", 8_001).await?;
        let held = stuck.wait_pushes(DEADLINE, |pushes| {
            pushes.last().is_some_and(|push| push.answered.is_none())
        });
        held.await.with_context(|| leader.log())?;
        for other in [&class.dataplanes[0], &class.dataplanes[2]] {
            other.wait(DEADLINE, has(&namespace, "during")).await?;
        }
        assert!(!stuck.newest().is_some_and(|a| has(&namespace, "during")(&a.snapshot)));
        // Whoever pushes next is answered.
        stuck.set_pushes(Pushes::Prompt);
        Ok(Self { world, class, namespace, leader: Some(leader), standby: Some(standby), during })
    }

    fn stuck(&self) -> &Dataplane {
        &self.class.dataplanes[1]
    }

    /// Waits until the standby has finished and serves changes by itself; then lets the first
    /// leader's push go on.
    async fn finished_by_the_standby(&self) -> Result<()> {
        let admin = &self.world.admin;
        let during = self.class.served(admin, has(&self.namespace, "during")).await?;
        let finished = &during[1];
        admin.condition(&self.during, "Programmed", "True").await?;
        let held = self.stuck().pushes().into_iter().find(|push| push.answered.is_none());
        let held = held.context("the first leader's push is held still")?;
        assert!(
            epoch(held.generation) < epoch(finished.snapshot.generation),
            "{held:?}, finished with {}",
            finished.snapshot.generation
        );

        self.stuck().release();
        let pushes = self
            .stuck()
            .wait_pushes(DEADLINE, |pushes| pushes.iter().all(|p| p.answered.is_some()))
            .await?;
        let late = pushes.iter().find(|p| p.generation == held.generation);
        let late = late.and_then(|push| push.answered);
        assert_eq!(late, Some(StatusCode::CONFLICT));
        self.serves("after", 8_002).await?;
        self.check()
    }

    /// Waits until one more policy is served.
    async fn serves(&self, name: &str, port: u16) -> Result<()> {
        let policy = add(&self.world, &self.class, &self.namespace, name, port).await?;
        let admin = &self.world.admin;
        self.class.served(admin, has(&self.namespace, name)).await?;
        admin.condition(&policy, "Programmed", "True").await?;
        Ok(())
    }

    /// Numbers have never gone back, also those that were only tried, and all have the same.
    fn check(&self) -> Result<()> {
        let mut contents = Vec::new();
        for dataplane in &self.class.dataplanes {
            let pushes = dataplane.pushes();
            assert!(pushes.is_sorted_by(|a, b| a.generation < b.generation), "{pushes:?}");
            contents.push(dataplane.newest().context("a snapshot")?.content);
        }
        assert!(contents.iter().all(|content| *content == contents[0]));
        Ok(())
    }
}

fn epoch(generation: u64) -> u64 {
    generation >> 32
}

async fn add(
    world: &World,
    class: &Class,
    namespace: &str,
    name: &str,
    port: u16,
) -> Result<Value> {
    world.admin.apply(&service(namespace, name)).await?;
    let slice = slice(namespace, name, &["10.0.0.1", "10.0.0.2"]);
    world.admin.apply(&slice).await?;
    let policy = class.policy(namespace, name, name, port);
    world.admin.apply(&policy).await?;
    Ok(policy)
}

/// Waits until an operator has logged something.
async fn logged(operator: &Operator, words: &str) -> Result<()> {
    let found = wait_for(words, async || {
        ensure!(operator.log().contains(words), "it is not in the log");
        Ok(())
    });
    found.await.with_context(|| operator.log())
}

#[tokio::test]
async fn a_leader_is_killed_in_mid_push() -> Result<()> {
    let world = or_skip!(World::alone().await?);
    let kubeconfig = world.kubeconfig.clone();
    let mut scene = MidPush::start(world, &kubeconfig).await?;
    scene.leader.take().context("a leader")?.kill()?;
    scene.finished_by_the_standby().await
}

#[tokio::test]
async fn a_leader_is_ended_in_mid_push() -> Result<()> {
    let world = or_skip!(World::alone().await?);
    let kubeconfig = world.kubeconfig.clone();
    let mut scene = MidPush::start(world, &kubeconfig).await?;
    let leader = scene.leader.take().context("a leader")?;
    let log = leader.log_file().to_owned();
    // Not on this thread, where the dataplanes answer.
    let status = tokio::task::spawn_blocking(move || leader.terminate()).await??;
    let log = std::fs::read_to_string(log)?;
    assert!(status.success(), "{status}\n{log}");
    assert!(log.contains("the Lease is given back"), "{log}");
    scene.finished_by_the_standby().await
}

#[tokio::test]
async fn a_leader_is_cut_off_in_mid_push() -> Result<()> {
    let world = or_skip!(World::alone().await?);
    let relay = Relay::start(world.server_address()?).await?;
    let kubeconfig = world.kubeconfig_by_way_of(relay.address())?;
    let mut scene = MidPush::start(world, &kubeconfig).await?;
    relay.cut();
    let leader = scene.leader.as_ref().context("a leader")?;
    logged(leader, "leading no more").await?;
    scene.finished_by_the_standby().await?;
    let newest = |scene: &MidPush| -> Result<u64> {
        Ok(scene.stuck().newest().context("a snapshot")?.snapshot.generation)
    };
    let by_standby = newest(&scene)?;

    // It learns what it missed, and says nothing.
    relay.mend();
    scene.serves("mended", 8_003).await?;
    assert_eq!(epoch(newest(&scene)?), epoch(by_standby));
    scene.check()?;

    // It takes over in its turn, above all numbers that there were.
    scene.standby.take().context("a standby")?.kill()?;
    scene.serves("again", 8_004).await?;
    assert!(epoch(newest(&scene)?) > epoch(by_standby));
    scene.check()
}
