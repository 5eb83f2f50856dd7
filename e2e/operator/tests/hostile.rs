//! Two tenants of one class, one of them hostile: it has thousands of endpoints, flaps readiness,
//! and asks for what is the other's. The other's changes arrive in time, what dataplanes have of it
//! is never touched, and its conditions stay as they are.

use anyhow::{Result, ensure};
use baton_api::Snapshot;
use baton_operator_tests::{
    admin::{Admin, condition},
    class::NODE,
    cluster::{DEADLINE, pod},
    objects::slice_of_pods,
    or_skip,
    scene::{Scene, policy, served_policy, service, slice},
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval, sleep},
};

/// Where the honest tenant listens.
const PORT: u16 = 8_000;
/// Its changes, and the pause behind each.
const CHANGES: u8 = 40;
const PAUSE: Duration = Duration::from_millis(150);
/// From before a change until the dataplane has it.
const IN_TIME: Duration = Duration::from_secs(1);
/// All pods of a Service of the hostile one become ready, or not, this often.
const FLAP_EVERY: Duration = Duration::from_millis(100);
const FLAPPING: u8 = 100;
/// Endpoints of another Service of its; an EndpointSlice has 1,000 at most.
const ENDPOINTS: usize = 5_000;
const ENDPOINTS_OF_SLICE: usize = 1_000;
/// The conditions that must not change.
const CONDITIONS: [&str; 5] = ["Accepted", "Programmed", "Adoptable", "Degraded", "Ready"];

/// A Pod of a namespace that runs, as its endpoints need one, and its name and address.
async fn run_pod(admin: &Admin, namespace: &str, (name, address): (&str, &str)) -> Result<()> {
    admin.pod(&pod(namespace, name), NODE, address).await
}

/// Ports that frontends of a snapshot have, with whose they are.
fn owners(snapshot: &Snapshot, port: u16) -> Vec<&str> {
    let policies = snapshot.policies.iter();
    policies
        .filter(|p| p.frontends.iter().any(|end| end.port() == port))
        .map(|p| p.name.as_str())
        .collect()
}

/// What the conditions of a policy say, and since when. Not since when it is programmed and ready:
/// each change of its own endpoints makes it wait for the dataplanes.
fn conditions(stored: &Value) -> [[Value; 3]; CONDITIONS.len()] {
    CONDITIONS.map(|kind| {
        let condition = condition(stored, kind).unwrap_or_default();
        let since = match kind {
            "Programmed" | "Ready" => Value::Null,
            _ => condition["lastTransitionTime"].clone(),
        };
        [condition["status"].clone(), condition["reason"].clone(), since]
    })
}

/// What the hostile tenant has before it begins to flap: 5,000 endpoints that no Pod has, and
/// policies for the other's port, at the dataplanes' own address and at others.
async fn prepare(scene: &Scene, namespace: &str) -> Result<Vec<Value>> {
    scene.apply(&service(namespace, "many")).await?;
    let all: Vec<String> =
        (0..ENDPOINTS).map(|n| format!("10.200.{}.{}", n / 250, 1 + n % 250)).collect();
    for (number, some) in all.chunks(ENDPOINTS_OF_SLICE).enumerate() {
        let some: Vec<&str> = some.iter().map(String::as_str).collect();
        let mut slice = slice(namespace, "many", &some);
        slice["metadata"]["name"] = format!("many-{number}").into();
        scene.apply(&slice).await?;
    }
    let mut policies = vec![policy(namespace, "many", "many", 8_100)];
    policies.push(policy(namespace, "same-port", "many", PORT));
    let mut listeners = policy(namespace, "more", "many", PORT);
    listeners["spec"]["listeners"] = (0..16)
        .map(|n| json!({ "name": format!("l{n}"), "port": PORT + n, "servicePort": 80 }))
        .collect();
    policies.push(listeners);
    let mut elsewhere = policy(namespace, "elsewhere", "many", PORT);
    elsewhere["spec"]["listeners"][0]["addresses"] = json!(["10.2.0.1"]);
    policies.push(elsewhere);
    for policy in &policies {
        scene.apply(policy).await?;
    }
    Ok(policies)
}

/// Pods of the hostile tenant become ready and not, until `stop`; gives how often.
async fn flap(admin: Admin, mut slice: Value, mut stop: watch::Receiver<bool>) -> Result<u32> {
    let mut pace = interval(FLAP_EVERY);
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut times = 0;
    loop {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return Ok(times),
            _ = pace.tick() => {}
        }
        let ready = times % 2 == 1;
        for endpoint in slice["endpoints"].as_array_mut().into_iter().flatten() {
            endpoint["conditions"]["ready"] = ready.into();
        }
        admin.apply(&slice).await?;
        times += 1;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_tenant_holds_up_nothing_of_the_others() -> Result<()> {
    let scene = or_skip!(Scene::start().await?);
    let admin = scene.hands();
    let honest = scene.server.namespace("honest").await?.name;
    let hostile = scene.server.namespace("hostile").await?.name;
    let pods: Vec<(String, String)> =
        (0..CHANGES + 2).map(|n| (format!("web-{n}"), format!("10.2.0.{}", n + 1))).collect();
    let pods: Vec<(&str, &str)> = pods.iter().map(|(n, a)| (n.as_str(), a.as_str())).collect();
    for pod in &pods {
        run_pod(&admin, &honest, *pod).await?;
    }
    let mine = scene.web(&honest, "web", PORT).await?;
    let first = slice_of_pods(&honest, "web", NODE, &pods[..2]);
    scene.apply(&first).await?;
    let has_two =
        |s: &Snapshot| served_policy(s, &honest, "web").is_some_and(|p| p.backends.len() == 2);
    let before = scene.served(has_two).await?.snapshot;
    let frontends = served_policy(&before, &honest, "web").map(|p| p.frontends.clone());
    scene.condition(&mine, "Programmed", "True").await?;
    // The fake dataplane says nothing of adopters, and stays silent.
    scene.dataplane.wait_looks(DEADLINE, 2).await?;
    let conditions = conditions(&admin.get(&mine).await?);

    let flapping: Vec<(String, String)> =
        (0..FLAPPING).map(|n| (format!("flap-{n}"), format!("10.3.0.{}", n + 1))).collect();
    let flapping: Vec<(&str, &str)> =
        flapping.iter().map(|(n, a)| (n.as_str(), a.as_str())).collect();
    for pod in &flapping {
        run_pod(&admin, &hostile, *pod).await?;
    }
    scene.dataplane.remember();
    scene.web(&hostile, "flap", 8_200).await?;
    let slice = slice_of_pods(&hostile, "flap", NODE, &flapping);
    let (stop, stopped) = watch::channel(false);
    let began = Instant::now();
    let flaps = tokio::spawn(flap(admin.clone(), slice, stopped));
    let asked = prepare(&scene, &hostile).await?;

    let mut times = Vec::new();
    for n in 0..usize::from(CHANGES) {
        // Another pod each time, so that each is news.
        let now = [pods[0], pods[n + 2]];
        let change = slice_of_pods(&honest, "web", NODE, &now);
        let endpoint = format!("{}:8080", now[1].1);
        let has = |s: &Snapshot| {
            served_policy(s, &honest, "web")
                .is_some_and(|p| p.backends.iter().any(|b| b.endpoint.to_string() == endpoint))
        };
        let before = Instant::now();
        scene.apply(&change).await?;
        times.push(scene.served(has).await?.at - before);
        sleep(PAUSE).await;
    }
    for policy in &asked {
        admin.condition_where("it is judged", policy, "Accepted", |_| true).await?;
    }
    stop.send_replace(true);
    let lasted = began.elapsed();
    let flaps = flaps.await??;
    times.sort();
    let worst = times[times.len() - 1];
    let history = scene.dataplane.history();
    println!(
        "{} changes of the honest tenant: median {:?}, worst {worst:?}; {flaps} flaps in {lasted:?}, {} snapshots",
        times.len(),
        times[times.len() / 2],
        history.len()
    );
    ensure!(worst <= IN_TIME, "a change was {worst:?} late: {times:?}\n{}", admin.log());

    // It was as hostile as it should be, and the dataplane had to take it.
    ensure!(lasted.as_secs_f64() * 8.0 <= f64::from(flaps), "{flaps} flaps in {lasted:?}");
    let flapped = |s: &Snapshot| {
        served_policy(s, &hostile, "flap").is_some_and(|p| p.backends.iter().all(|b| b.weight == 0))
    };
    ensure!(history.iter().filter(|a| flapped(&a.snapshot)).count() > 10);
    for arrival in &history {
        let served = served_policy(&arrival.snapshot, &honest, "web");
        assert_eq!(served.map(|p| p.frontends.clone()), frontends);
        assert!(served.is_some_and(|p| p.backends.iter().any(|b| b.weight > 0)));
        let name = format!("{honest}/web/main");
        let own = |p: &&str| **p == name || p.ends_with("/elsewhere/main");
        let others: Vec<&str> = owners(&arrival.snapshot, PORT);
        assert!(others.iter().all(own), "{others:?}");
    }
    scene.condition(&mine, "Programmed", "True").await?;
    assert_eq!(self::conditions(&admin.get(&mine).await?), conditions);
    for policy in &asked[1..3] {
        admin.condition(policy, "Accepted", "False").await?;
    }
    Ok(())
}
