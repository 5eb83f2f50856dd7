//! What becomes of policies while objects come, change and go, and while the operator and the API
//! server end and start.

use anyhow::{Context, Result};
use baton_operator_tests::{
    or_skip,
    scene::{Scene, has, policy, served_policy, service, slice},
};
use futures_util::{StreamExt, stream};
use rustix::process::Signal;
use serde_json::Value;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[tokio::test]
async fn a_policy_is_refused_explained_and_served_as_its_service_comes() -> Result<()> {
    let scene = or_skip!(Scene::start().await?);
    let namespace = scene.server.namespace("life").await?.name;
    let web = policy(&namespace, "web", "web", 8_080);
    scene.apply(&web).await?;
    // For a moment it may be the class that is missing.
    let hands = scene.hands();
    let about_web = |c: &Value| {
        c["status"] == "False" && c["message"].as_str().is_some_and(|m| m.contains("web"))
    };
    let what = "the missing Service is named";
    hands.condition_where(what, &web, "Accepted", about_web).await?;

    scene.apply(&service(&namespace, "web")).await?;
    scene.apply(&slice(&namespace, "web", &["10.0.0.1", "10.0.0.2"])).await?;
    scene.condition(&web, "Accepted", "True").await?;
    scene.condition(&web, "Programmed", "True").await?;
    let two = |s: &baton_api::Snapshot| {
        served_policy(s, &namespace, "web").is_some_and(|p| p.backends.len() == 2)
    };
    scene.served(two).await?;

    // A later policy for the same port loses and says to whom; it takes over when the first goes.
    // Ages are whole seconds.
    next_second().await;
    let late = policy(&namespace, "late", "web", 8_080);
    scene.apply(&late).await?;
    let lost = scene.condition(&late, "Accepted", "False").await?;
    let message = lost["message"].as_str().context("a message")?;
    assert!(message.contains(&format!("{namespace}/web")), "{lost}");
    scene.delete(&web).await?;
    scene.condition(&late, "Programmed", "True").await?;
    scene
        .served(|s| {
            served_policy(s, &namespace, "late").is_some()
                && served_policy(s, &namespace, "web").is_none()
        })
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_restarted_operator_leaves_the_dataplane_untouched() -> Result<()> {
    let mut scene = or_skip!(Scene::start().await?);
    let namespace = scene.server.namespace("again").await?.name;
    let slice = slice(&namespace, "web", &["10.0.0.1"]);
    scene.apply(&slice).await?;
    let web = scene.web(&namespace, "web", 8_080).await?;
    scene.condition(&web, "Programmed", "True").await?;
    let before = scene.dataplane.generations();
    let served = scene.dataplane.newest().context("a snapshot")?;

    scene.operator.take().context("an operator")?.kill()?;
    scene.operator = Some(scene.start_operator("second")?);
    // A change is what shows that the new one leads; it is the only push.
    scene.web(&namespace, "other", 8_081).await?;
    let after = scene.served(has(&namespace, "other")).await?;
    let generations = scene.dataplane.generations();
    assert_eq!(generations[..before.len()], before[..]);
    assert_eq!(generations.len(), before.len() + 1, "{before:?} {generations:?}");
    assert_eq!(
        served_policy(&after.snapshot, &namespace, "web"),
        served_policy(&served.snapshot, &namespace, "web")
    );
    assert!(after.snapshot.generation >> 32 > served.snapshot.generation >> 32);
    Ok(())
}

#[tokio::test]
async fn a_restarted_api_server_and_an_expired_watch_lose_nothing() -> Result<()> {
    let mut scene = or_skip!(Scene::start().await?);
    let namespace = scene.server.namespace("expired").await?.name;
    let [stays, goes, new] = ["stays", "goes", "new"].map(|name| has(&namespace, name));
    scene.web(&namespace, "stays", 8_080).await?;
    let leaving = scene.web(&namespace, "goes", 8_081).await?;
    scene.served(|s| stays(s) && goes(s)).await?;

    scene.server.stop()?;
    scene.server.start_again()?;
    scene.web(&namespace, "new", 8_082).await?;
    scene.served(&new).await?;

    // What happens while the operator sleeps is forgotten before it wakes: only a new list can
    // tell.
    let mut operator = scene.operator.take().context("an operator")?;
    operator.signal(Signal::STOP)?;
    scene.delete(&leaving).await?;
    scene.server.forget_history()?;
    operator.signal(Signal::CONT)?;
    scene.operator = Some(operator);
    scene.served(|s| stays(s) && new(s) && !goes(s)).await?;
    Ok(())
}

/// Kubernetes 1.30, 1.31 and 1.33 are like this unless asked otherwise.
#[tokio::test]
async fn an_api_server_that_cannot_stream_lists_is_read_in_pages() -> Result<()> {
    let mut scene = or_skip!(Scene::start().await?);
    let namespace = scene.server.namespace("pages").await?.name;
    scene.web(&namespace, "before", 8_080).await?;
    scene.served(has(&namespace, "before")).await?;

    scene.operator.take().context("an operator")?.kill()?;
    scene.server.stop()?;
    let flags = ["--feature-gates=WatchList=false"];
    scene.server.start_again_with(&flags)?;
    let operator = scene.start_operator("second")?;
    scene.operator = Some(operator);
    let leaving = scene.web(&namespace, "after", 8_081).await?;
    scene.served(has(&namespace, "after")).await?;
    scene.delete(&leaving).await?;
    let [stays, goes] = ["before", "after"].map(|name| has(&namespace, name));
    scene.served(|s| stays(s) && !goes(s)).await?;
    let log = scene.operator.as_ref().context("an operator")?.log();
    assert!(log.contains("they are read in pages"), "{log}");
    Ok(())
}

#[tokio::test]
async fn a_standby_takes_over_from_a_leader_that_dies() -> Result<()> {
    let mut scene = or_skip!(Scene::start().await?);
    let namespace = scene.server.namespace("lead").await?.name;
    scene.web(&namespace, "web", 8_080).await?;
    let before = scene.served(has(&namespace, "web")).await?;
    let standby = scene.start_operator("standby")?;
    scene.operator.replace(standby).context("an operator")?.kill()?;
    let killed = Instant::now();
    scene.web(&namespace, "other", 8_081).await?;
    let after = scene.served(has(&namespace, "other")).await?;
    println!("a dead leader's standby pushed after {} ms", (after.at - killed).as_millis());
    assert!(after.snapshot.generation >> 32 > before.snapshot.generation >> 32);
    Ok(())
}

/// Policies of a burst: nearly as many as a dataplane takes.
const BURST: u16 = 1_000;
/// Requests under way at one time, as a tool that installs much has them.
const AT_ONCE: usize = 32;

async fn apply_all(scene: &Scene, manifests: Vec<Value>) -> Result<()> {
    let requests = manifests.iter().map(|manifest| scene.apply(manifest));
    let mut requests = stream::iter(requests).buffer_unordered(AT_ONCE);
    while let Some(answer) = requests.next().await {
        answer?;
    }
    Ok(())
}

#[tokio::test]
async fn a_burst_of_policies_is_served() -> Result<()> {
    let scene = or_skip!(Scene::start().await?);
    let namespace = scene.server.namespace("burst").await?.name;
    let services = (0..BURST).map(|n| service(&namespace, &format!("s{n}"))).collect();
    apply_all(&scene, services).await?;
    let start = Instant::now();
    let policies = (0..BURST)
        .map(|n| policy(&namespace, &format!("p{n}"), &format!("s{n}"), 2_000 + n))
        .collect();
    apply_all(&scene, policies).await?;
    let applied = start.elapsed();
    let arrival = scene.served(|s| s.policies.len() == usize::from(BURST)).await?;
    let last = policy(&namespace, &format!("p{}", BURST - 1), "", 1);
    scene.condition(&last, "Programmed", "True").await?;
    let (now, most) = scene.operator.as_ref().context("an operator")?.memory_bytes()?;
    println!(
        "{BURST} policies: applied in {} ms, served {} ms after the first, the last one's status after {} ms; {} pushes; \
         operator's memory {} MB, {} MB at most",
        applied.as_millis(),
        (arrival.at - start).as_millis(),
        start.elapsed().as_millis(),
        scene.dataplane.generations().len(),
        now / 1_000_000,
        most / 1_000_000
    );
    Ok(())
}

/// Waits until objects that are made are younger than those that there are.
async fn next_second() {
    let second = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.expect("a clock behind 1970").as_secs()
    };
    let now = second();
    while second() == now {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
