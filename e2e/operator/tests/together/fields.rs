//! Every field of the definitions, by way of the server, reaches the snapshot or does what it is
//! for.
//!
//! The objects are in `fields.yaml`, the policies of the snapshots that come of them in
//! `fields.json`; `BATON_GENERATE=1` writes the latter anew.

use anyhow::{Context, Result};
use baton_operator_tests::{
    class::{Class, NODE},
    cluster::{definitions, pod},
    fields::{leaves, missing},
    manifests,
    objects::{served_policy, service, slice},
    or_skip,
    world::World,
};
use serde_json::{Value, json};
use std::{env, fs};

const FOLDER: &str = "e2e/operator/tests/together";

/// The objects as they are stored, with defaults.
async fn apply(world: &World, namespace: &str, class: &str) -> Result<Vec<Value>> {
    let text = fs::read_to_string(manifests::root().join(FOLDER).join("fields.yaml"))?;
    let text = text.replace("{namespace}", namespace).replace("{class}", class);
    let mut stored = Vec::new();
    for manifest in manifests::parse(&text)? {
        let applied = world.admin.apply(&manifest).await;
        stored.push(applied.with_context(|| manifest["metadata"].to_string())?);
    }
    Ok(stored)
}

/// Pods that are there before their policies: `heavy` with a share, `plain` without one, `leaving`.
async fn pods(world: &World, namespace: &str) -> Result<()> {
    for (name, address) in [("heavy", "10.3.0.1"), ("plain", "10.3.0.2"), ("leaving", "10.3.0.3")] {
        let mut pod = pod(namespace, name);
        if name == "heavy" {
            pod["metadata"]["labels"]["shop.example/weight"] = "7".into();
            pod["metadata"]["annotations"]["shop.example/share"] = "11".into();
        }
        world.admin.pod(&pod, NODE, address).await?;
    }
    // Clients: two that `most` lets in, one that has a label too many, and one of a node's network.
    for (name, label, tier, address) in [
        ("client-yes", "yes", None, "10.3.0.11"),
        ("client-maybe", "maybe", None, "10.3.0.12"),
        ("client-no", "no", Some("inner"), "10.3.0.13"),
        ("client-host", "yes", None, "192.0.2.77"),
    ] {
        let mut pod = pod(namespace, name);
        pod["metadata"]["labels"]["client"] = label.into();
        if name == "client-host" {
            pod["spec"]["hostNetwork"] = true.into();
        }
        if let Some(tier) = tier {
            pod["metadata"]["labels"]["tier"] = tier.into();
        }
        world.admin.pod(&pod, NODE, address).await?;
    }
    Ok(())
}

/// The fields of a kind's spec that no object sets.
fn left_out(kind: &str, objects: &[Value]) -> Result<Vec<String>> {
    let all = definitions()?;
    let definition = all.iter().find(|d| d["spec"]["names"]["kind"] == kind);
    let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    let schema = definition.and_then(|d| d.pointer(schema));
    let leaves = leaves(schema.context("a schema")?, "spec");
    assert!(leaves.len() >= 8, "{kind}: {leaves:?}");
    let objects: Vec<Value> =
        objects.iter().filter(|object| object["kind"] == kind).cloned().collect();
    Ok(missing(&leaves, &objects))
}

#[tokio::test]
async fn every_field_reaches_the_snapshot() -> Result<()> {
    let world = or_skip!(World::together().await?);
    let admin = &world.admin;
    let namespace = world.server.namespace("fields").await?.name;
    // Listeners at addresses of the documentation's, and a Pod's second address, which its status
    // does not have here.
    let allowed = json!({ "allowed": [{
        "namespaces": { "names": [namespace] },
        "addresses": ["192.0.2.0/24", "2001:db8::/32"],
        "endpoints": ["fd00:3::1"],
    }], "frontendPorts": { "first": 18_007, "last": 18_009 } });
    let class = Class::start_as(admin, "fields", 1, &allowed).await?;
    let default = Class::start_as(admin, "fields-default", 1, &json!({ "default": true })).await?;
    pods(&world, &namespace).await?;
    let objects = apply(&world, &namespace, "fields").await?;
    assert_eq!(left_out("LoadBalancerPolicy", &objects)?, [""; 0], "fields.yaml leaves these out");
    for policy in objects.iter().filter(|o| o["kind"] == "LoadBalancerPolicy") {
        admin.condition(policy, "Programmed", "True").await?;
    }
    let chosen = class.served(admin, |s| s.policies.len() == 10).await?;
    let others = default.served(admin, |s| s.policies.len() == 1).await?;
    let snapshots = json!({
        "fields": chosen[0].snapshot.policies,
        "fields-default": others[0].snapshot.policies,
    });
    // Namespaces have names of their own in each run, and so have ports that are given out.
    let mut found = serde_json::to_string_pretty(&snapshots)?.replace(&namespace, "NAMESPACE");
    for port in 18_007..=18_009 {
        found = found.replace(&format!(":{port}\""), ":GIVEN\"");
    }
    found.push('\n');
    let file = manifests::root().join(FOLDER).join("fields.json");
    if env::var_os("BATON_GENERATE").is_some() {
        fs::write(&file, &found)?;
    }
    let expected = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    for (number, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "line {} of fields.json", number + 1);
    }
    assert_eq!(found, expected);
    Ok(())
}

#[tokio::test]
async fn every_field_of_a_class_does_what_it_is_for() -> Result<()> {
    let world = or_skip!(World::together().await?);
    let admin = &world.admin;
    let namespace = world.server.namespace("classes").await?.name;
    let limits = |policies: u32, backends: u32| json!({ "limits": { "policies": policies, "backends": backends } });
    let mut spec = limits(1, 64);
    spec["reservedPorts"] = json!(["9910", "9000-9001"]);
    spec["allowed"] = json!([
        { "namespaces": {}, "endpoints": ["10.4.0.0/24"] },
        {
            "namespaces": {
                "names": [namespace], "matchLabels": { "kubernetes.io/metadata.name": namespace },
            },
            "ports": ["80"],
            "addresses": ["192.0.2.10"],
        },
    ]);
    spec["frontendPorts"] = json!({ "first": 18_001, "last": 18_002 });
    let few_policies = Class::start_as(admin, "few-policies", 1, &spec).await?;
    let few_backends = Class::start_as(admin, "few-backends", 1, &limits(8, 1)).await?;
    // One that is refused as a default: the test beside has a default class, and policies here name
    // theirs.
    let default = few_policies.manifest(&json!({ "default": true }));
    let objects = [
        admin.get(&few_policies.manifest(&json!({}))).await?,
        admin.get(&few_backends.manifest(&json!({}))).await?,
        default,
    ];
    assert_eq!(left_out("BatonDataplane", &objects)?, [""; 0]);

    // Namespace, selector and control port lead to the dataplane; a port of its legs is no
    // listener's.
    let web = async |class: &Class, name: &str, port: u16| {
        admin.apply(&service(&namespace, name)).await?;
        let addresses = ["10.4.0.1", "10.4.0.2"];
        admin.apply(&slice(&namespace, name, &addresses)).await?;
        let policy = class.policy(&namespace, name, name, port);
        anyhow::Ok((admin.apply(&policy).await?, policy))
    };
    let refused =
        |reason: &'static str| move |c: &Value| c["status"] == "False" && c["reason"] == reason;
    let (_, one) = web(&few_policies, "one", 8_080).await?;
    admin.condition(&one, "Programmed", "True").await?;
    let has = |s: &baton_api::Snapshot| served_policy(s, &namespace, "one").is_some();
    few_policies.served(admin, has).await?;
    let (_, leg) = web(&few_policies, "leg", 1_100).await?;
    admin
        .condition_where("its port is a leg's", &leg, "Accepted", refused("PortInLegRange"))
        .await?;
    // What is reserved, allowed and not allowed.
    for (name, port, reason) in [
        ("control", few_policies.dataplanes[0].address().port(), "PortReserved"),
        ("reserved", 9_001, "PortReserved"),
        ("given-out", 18_002, "PortIsAFrontends"),
        ("low", 81, "NotAllowed"),
    ] {
        let (_, policy) = web(&few_policies, name, port).await?;
        admin.condition_where(name, &policy, "Accepted", refused(reason)).await?;
    }
    let (_, low) = web(&few_policies, "http", 80).await?;
    admin.condition(&low, "Accepted", "True").await?;
    for (address, status) in [("192.0.2.10", "True"), ("192.0.2.11", "False")] {
        let mut elsewhere = low.clone();
        elsewhere["spec"]["listeners"][0]["addresses"] = json!([address]);
        admin.apply(&elsewhere).await?;
        admin.condition(&elsewhere, "Accepted", status).await?;
    }
    let (_, many) = web(&few_backends, "many", 8_080).await?;
    admin
        .condition_where("there is no room", &many, "Programmed", refused("ClassBackendLimit"))
        .await?;
    // Two listeners, where one is possible.
    let mut two = one.clone();
    let listeners = two["spec"]["listeners"].as_array_mut().context("listeners")?;
    listeners.push(json!({ "name": "more", "port": 8_081, "servicePort": 80 }));
    admin.apply(&two).await?;
    admin.condition_where("there is no room", &two, "Programmed", refused("PolicyLimit")).await?;
    Ok(())
}
