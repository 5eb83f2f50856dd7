//! Real EndpointSlices: kube-controller-manager makes them of a Service and its pods, of which the
//! test says what kubelets would.

use anyhow::{Context, Result};
use baton_api::Policy;
use baton_operator_tests::{
    class::{Class, NODE},
    cluster::pod,
    objects::served_policy,
    or_skip,
    world::World,
};
use serde_json::{Value, json};

/// The backends as `NAME ADDRESS`, with what is special about each.
fn backends(policy: &Policy) -> Vec<String> {
    let one = |b: &baton_api::Backend| {
        let draining = if b.draining { " draining" } else { "" };
        let idle = if b.weight == 0 { " no new flows" } else { "" };
        // Whose keys it has is the Pod's word, which a slice may be ahead of.
        let strange = match b.node.as_deref() {
            Some(NODE) => "",
            _ => " of an unknown node",
        };
        format!("{} {}{draining}{idle}{strange}", b.name, b.endpoint)
    };
    policy.backends.iter().map(one).collect()
}

fn pod_of(namespace: &str, name: &str) -> Value {
    let mut pod = pod(namespace, name);
    pod["spec"]["containers"][0]["ports"] = json!([{ "name": "web", "containerPort": 8_080 }]);
    pod
}

#[tokio::test]
async fn pods_come_flap_end_and_go_by_way_of_real_slices() -> Result<()> {
    let world = or_skip!(World::together().await?);
    world.server.start_controllers()?;
    let admin = &world.admin;
    let namespace = world.server.namespace("slices").await?.name;
    let class = Class::start(admin, "slices", 1).await?;
    let policy = class.policy(&namespace, "web", "web", 8_080);
    admin.apply(&policy).await?;
    // By the name of the pods' port.
    admin
        .apply(&json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": "web", "namespace": namespace },
            "spec": { "selector": { "app": "shop" }, "ports": [{ "port": 80, "targetPort": "web" }] },
        }))
        .await?;
    let [a, b] = ["a", "b"].map(|name| pod_of(&namespace, name));
    admin.pod(&a, NODE, "10.2.0.1").await?;
    admin.pod(&b, NODE, "10.2.0.2").await?;
    let until = async |what: &str, wanted: &[&str]| {
        let is = |s: &baton_api::Snapshot| {
            served_policy(s, &namespace, "web").is_some_and(|p| backends(p) == wanted)
        };
        class.served(admin, is).await.with_context(|| what.to_owned())
    };
    let both = ["a 10.2.0.1:8080", "b 10.2.0.2:8080"];
    until("both pods serve", &both).await?;
    admin.condition(&policy, "Programmed", "True").await?;

    let ready =
        |is: &str| json!({ "status": { "conditions": [{ "type": "Ready", "status": is }] } });
    admin.merge(&b, "/status", &ready("False")).await?;
    until(
        "b is not ready and keeps what it has",
        &["a 10.2.0.1:8080", "b 10.2.0.2:8080 no new flows"],
    )
    .await?;
    admin.merge(&b, "/status", &ready("True")).await?;
    until("b is ready again", &both).await?;

    // As `kubectl delete pod` does: the pod is there until its kubelet has ended it.
    let grace = |seconds: u32| json!({ "gracePeriodSeconds": seconds });
    admin.delete_with(&a, &grace(600)).await?;
    let drains = ["a 10.2.0.1:8080 draining", "b 10.2.0.2:8080"];
    until("a drains", &drains).await?;
    admin.delete_with(&a, &grace(0)).await?;
    until("a is gone", &["b 10.2.0.2:8080"]).await?;

    // A pod of the same address, as a new one may have, is another backend.
    admin.pod(&pod_of(&namespace, "c"), NODE, "10.2.0.1").await?;
    until("c is there", &["b 10.2.0.2:8080", "c 10.2.0.1:8080"]).await?;
    let counted = |p: &Value| p["status"]["backends"]["summary"] == "2/2";
    admin.until("2 of 2 backends", &policy, counted).await?;
    Ok(())
}
