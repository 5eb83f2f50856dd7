//! A dataplane that is slow over a push, or never answers one, is the only one that lags.

use anyhow::{Context, Result};
use baton_operator_tests::{
    class::Class,
    cluster::DEADLINE,
    dataplane::{Dataplane, Push, Pushes},
    objects::{served_policy, service, slice},
    or_skip,
    world::World,
};
use hyper::StatusCode;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Changes while one dataplane hangs.
const CHANGES: u16 = 5;
/// How long the slow one takes over a push once it takes them again.
const SLOW: Duration = Duration::from_secs(2);

/// A class of three that serves a policy `p0`; the second one is the test's.
struct Three {
    world: World,
    class: Class,
    namespace: String,
}

impl Three {
    async fn start(name: &str) -> Result<Option<Self>> {
        let Some(world) = World::together().await? else {
            return Ok(None);
        };
        let namespace = world.server.namespace(name).await?.name;
        let class = Class::start(&world.admin, name, 3).await?;
        let three = Self { world, class, namespace };
        let first = three.add(0).await?;
        three.class.served(&three.world.admin, three.has(0)).await?;
        let admin = &three.world.admin;
        admin.condition(&first, "Programmed", "True").await?;
        Ok(Some(three))
    }

    /// One more policy.
    async fn add(&self, number: u16) -> Result<Value> {
        let (admin, name) = (&self.world.admin, format!("p{number}"));
        admin.apply(&service(&self.namespace, &name)).await?;
        let slice = slice(&self.namespace, &name, &["10.0.0.1"]);
        admin.apply(&slice).await?;
        let policy = self.class.policy(&self.namespace, &name, &name, 8_000 + number);
        admin.apply(&policy).await?;
        Ok(policy)
    }

    fn has(&self, number: u16) -> impl Fn(&baton_api::Snapshot) -> bool {
        let (namespace, name) = (self.namespace.clone(), format!("p{number}"));
        move |snapshot| served_policy(snapshot, &namespace, &name).is_some()
    }

    fn slow(&self) -> &Dataplane {
        &self.class.dataplanes[1]
    }

    async fn others_have(&self, number: u16) -> Result<()> {
        for other in [&self.class.dataplanes[0], &self.class.dataplanes[2]] {
            let served = other.wait(DEADLINE, self.has(number)).await;
            served.with_context(|| self.world.admin.log())?;
        }
        Ok(())
    }

    /// Waits until the policy's status says that only the slow one lags, in these words.
    async fn said(&self, policy: &Value, words: &str) -> Result<Value> {
        let name = |number| self.class.pod_name(number);
        let what = format!("Programmed is False: {} {words}", name(1));
        let said = |condition: &Value| {
            let message = condition["message"].as_str().unwrap_or_default();
            let lags = |number| message.contains(&name(number));
            condition["status"] == "False"
                && message.contains(words)
                && (lags(0), lags(1), lags(2)) == (false, true, false)
        };
        let admin = &self.world.admin;
        admin.condition_where(&what, policy, "Programmed", said).await
    }
}

fn is_held(push: &Push) -> bool {
    push.answered.is_none()
}

#[tokio::test]
async fn a_slow_dataplane_holds_up_nobody_and_then_gets_the_newest_only() -> Result<()> {
    let three = or_skip!(Three::start("slow").await?);
    let slow = three.slow();
    slow.set_pushes(Pushes::Held);
    let mut policies = Vec::new();
    for number in 1..=CHANGES {
        policies.push(three.add(number).await?);
        three.others_have(number).await?;
        slow.wait_pushes(DEADLINE, |pushes| pushes.last().is_some_and(is_held)).await?;
        // The others have it, and of the slow one the status says that it has not, also where
        // nothing was sent to it yet.
        three.said(&policies[policies.len() - 1], "has not acknowledged it yet").await?;
        assert!(!slow.newest().is_some_and(|a| three.has(1)(&a.snapshot)));
    }
    // What was programmed before stays so.
    let first = three.class.policy(&three.namespace, "p0", "p0", 8_000);
    three.world.admin.condition(&first, "Programmed", "True").await?;

    slow.set_pushes(Pushes::Late(SLOW));
    let recovered = Instant::now();
    slow.release();
    for policy in &policies {
        let admin = &three.world.admin;
        admin.condition(policy, "Programmed", "True").await?;
    }
    let newest = three.class.served(&three.world.admin, three.has(CHANGES)).await?;
    for arrival in &newest {
        assert_eq!(arrival.content, newest[0].content);
        assert_eq!(arrival.snapshot.policies.len(), usize::from(CHANGES) + 1);
    }
    let after: Vec<Push> =
        slow.pushes().into_iter().filter(|push| push.received > recovered).collect();
    let [push] = after.as_slice() else {
        panic!("one push brings it up to date, not {after:?}");
    };
    assert_eq!(push.answered, Some(StatusCode::OK));
    assert_eq!(push.generation, newest[1].snapshot.generation);
    Ok(())
}

#[tokio::test]
async fn a_dataplane_that_never_answers_is_named_with_the_reason() -> Result<()> {
    let three = or_skip!(Three::start("silent").await?);
    let silent = three.slow();
    silent.set_pushes(Pushes::Held);
    let policy = three.add(1).await?;
    three.others_have(1).await?;
    three.said(&policy, "has not acknowledged it yet").await?;
    // The operator gives up on a push after some time. From then on it can say more than that.
    three.said(&policy, "no answer").await?;
    // The others go on.
    three.add(2).await?;
    three.others_have(2).await?;

    silent.set_pushes(Pushes::Prompt);
    let admin = &three.world.admin;
    admin.condition(&policy, "Programmed", "True").await?;
    let newest = three.class.served(admin, three.has(2)).await?;
    assert!(newest.iter().all(|a| a.content == newest[0].content));
    // What was given up is answered now. It is older than what is in force and changes nothing.
    let held = silent.pushes().iter().filter(|p| is_held(p)).count();
    assert!(held > 0, "{:?}", silent.pushes());
    silent.release();
    let pushes = silent.wait_pushes(DEADLINE, |pushes| !pushes.iter().any(is_held)).await?;
    let conflicts = pushes.iter().filter(|p| p.answered == Some(StatusCode::CONFLICT));
    assert_eq!(conflicts.count(), held, "{pushes:?}");
    assert!(pushes.is_sorted_by(|a, b| a.generation < b.generation), "{pushes:?}");
    Ok(())
}
