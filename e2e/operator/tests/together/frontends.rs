//! Services in front of dataplanes, with the cluster's own controllers beside the operator. No
//! dataplane is there, so they lead to the pods: an API server takes no slice with an address of
//! loopback, where the dataplanes of these tests listen. With dataplanes it is seen in a cluster
//! (`e2e/suite/tests/front_door`).

use anyhow::{Context, Result, ensure};
use baton_operator_tests::{
    OPERATOR_NAMESPACE,
    class::NODE,
    cluster::{get, pod, wait_for},
    or_skip,
    world::World,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const BY: &str = "endpointslice.kubernetes.io/managed-by";

/// A class without a dataplane.
fn class(name: &str) -> Value {
    json!({
        "apiVersion": "baton.dev/v1alpha1", "kind": "BatonDataplane",
        "metadata": { "name": name, "labels": { "class": name } },
        "spec": {
            "namespace": OPERATOR_NAMESPACE,
            "selector": { "matchLabels": { "class": format!("no-{name}") } },
        },
    })
}

fn policy(namespace: &str, class: &str, target: &str, front: &str) -> Value {
    json!({
        "apiVersion": "baton.dev/v1alpha1", "kind": "LoadBalancerPolicy",
        "metadata": { "name": "shop", "namespace": namespace },
        "spec": {
            "targetRefs": [{ "name": target }],
            "frontend": { "service": { "name": front, "annotations": { "shop.example/kept": "1" } } },
            "listeners": [{ "name": "http", "port": 80, "servicePort": 80 }],
            "dataplaneSelector": { "matchLabels": { "class": class } },
        },
    })
}

fn service(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "selector": { "app": "shop" },
            "ports": [{ "name": "web", "port": 80, "targetPort": 8080 }],
        },
    })
}

/// Who writes the slices of a Service, and which ready addresses and ports they have.
async fn leads_to(
    world: &World,
    namespace: &str,
    service: &str,
) -> Result<(BTreeSet<String>, BTreeSet<String>)> {
    let label = format!("labelSelector=kubernetes.io%2Fservice-name%3D{service}");
    let path = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?{label}");
    let listed = get(&world.admin.client, &path).await?;
    let (mut by, mut to) = (BTreeSet::new(), BTreeSet::new());
    for slice in listed["items"].as_array().context("slices")? {
        by.insert(slice["metadata"]["labels"][BY].as_str().unwrap_or_default().to_owned());
        let endpoints = slice["endpoints"].as_array().into_iter().flatten();
        for endpoint in endpoints.filter(|e| e["conditions"]["ready"] == true) {
            for port in slice["ports"].as_array().into_iter().flatten() {
                let address = endpoint["addresses"][0].as_str().unwrap_or_default();
                let name = port["name"].as_str().unwrap_or_default();
                to.insert(format!("{name} {address}:{}", port["port"]));
            }
        }
    }
    Ok((by, to))
}

async fn leads(world: &World, at: (&str, &str), by: &str, to: &[&str]) -> Result<()> {
    wait_for("where it leads", async || {
        let (is_by, is_to) = leads_to(world, at.0, at.1).await?;
        let by = BTreeSet::from([by.to_owned()]);
        let to: BTreeSet<String> = to.iter().map(|text| (*text).to_owned()).collect();
        ensure!(is_by == by && is_to == to, "{is_by:?} {is_to:?}");
        Ok(())
    })
    .await
}

/// Clients of `front` are to stay in their zone: its endpoints are for that of their node.
async fn stay_in_their_zone(world: &World, namespace: &str) -> Result<()> {
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } });
    let zone = json!({ "metadata": { "labels": { "topology.kubernetes.io/zone": "zone-a" } } });
    world.admin.merge(&node, "", &zone).await?;
    let front = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": "front", "namespace": namespace },
    });
    let close = json!({ "spec": { "trafficDistribution": "PreferClose" } });
    world.admin.merge(&front, "", &close).await?;
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": { "name": "front-baton-ipv4-0", "namespace": namespace },
    });
    let hinted = |slice: &Value| {
        let endpoints = slice["endpoints"].as_array().into_iter().flatten();
        let zones = endpoints.map(|e| e["hints"]["forZones"][0]["name"].clone());
        zones.eq([json!("zone-a"), json!("zone-a")])
    };
    world.admin.until("its endpoints are for their zone", &slice, hinted).await?;
    Ok(())
}

async fn two_pods(world: &World, namespace: &str) -> Result<()> {
    for (name, address) in [("a", "10.5.0.1"), ("b", "10.5.0.2")] {
        let mut pod = pod(namespace, name);
        pod["metadata"]["labels"]["app"] = "shop".into();
        world.admin.pod(&pod, NODE, address).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_service_is_made_mended_and_goes_with_its_policy() -> Result<()> {
    let world = or_skip!(World::together().await?);
    world.server.start_controllers()?;
    let admin = &world.admin;
    let namespace = world.server.namespace("made").await?.name;
    admin.node(NODE).await?;
    admin.apply(&class("made")).await?;
    two_pods(&world, &namespace).await?;
    admin.apply(&service(&namespace, "pods")).await?;
    let policy = policy(&namespace, "made", "pods", "front");
    admin.apply(&policy).await?;
    let front = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "front", "namespace": namespace },
    });
    let made = admin.until("it is made", &front, |s| s["spec"]["ports"][0]["port"] == 80).await?;
    ensure!(made["spec"]["selector"].is_null(), "{made}");
    ensure!(made["metadata"]["annotations"]["shop.example/kept"] == "1", "{made}");
    let port = made["spec"]["ports"][0]["targetPort"].as_u64().context("a number")?;
    ensure!((18_000..20_000).contains(&port), "{port}");
    let pods = ["http 10.5.0.1:8080", "http 10.5.0.2:8080"];
    leads(&world, (&namespace, "front"), "baton-operator", &pods).await?;
    stay_in_their_zone(&world, &namespace).await?;
    let address = made["spec"]["clusterIP"].as_str().context("an address")?;
    let says = |p: &Value| {
        p["status"]["addresses"][0] == format!("{address}:80")
            && p["status"]["frontend"]["leadsTo"] == "Pods"
            && p["status"]["frontend"]["ports"][0]["port"] == port
    };
    admin.until("the status says so", &policy, says).await?;

    // A pod goes, a port is changed, a slice is deleted.
    let not_ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
    admin.merge(&pod(&namespace, "b"), "/status", &not_ready).await?;
    leads(&world, (&namespace, "front"), "baton-operator", &pods[..1]).await?;
    let ports = json!({ "spec": { "ports": [{ "name": "http", "port": 80, "targetPort": 1 }] } });
    admin.merge(&front, "", &ports).await?;
    let mended = |s: &Value| s["spec"]["ports"][0]["targetPort"] == port;
    admin.until("it is mended", &front, mended).await?;
    let theirs = json!({ "metadata": { "annotations": { "shop.example/theirs": "1" } } });
    admin.merge(&front, "", &theirs).await?;
    let none = json!({ "spec": { "frontend": { "service": { "annotations": null } } } });
    admin.merge(&policy, "", &none).await?;
    let annotations = |s: &Value| s["metadata"]["annotations"] == theirs["metadata"]["annotations"];
    admin.until("ours goes, theirs stays", &front, annotations).await?;
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": { "name": "front-baton-ipv4-0", "namespace": namespace },
    });
    admin.delete(&slice).await?;
    leads(&world, (&namespace, "front"), "baton-operator", &pods[..1]).await?;

    admin.delete(&policy).await?;
    wait_for("it goes with the policy", async || {
        ensure!(admin.get(&front).await.is_err(), "it is there");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_slice_of_somebody_else_stays_as_it_is() -> Result<()> {
    let world = or_skip!(World::together().await?);
    let admin = &world.admin;
    let namespace = world.server.namespace("others").await?.name;
    admin.node(NODE).await?;
    admin.apply(&class("others")).await?;
    two_pods(&world, &namespace).await?;
    admin.apply(&service(&namespace, "pods")).await?;
    let slice = |name: &str| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": name, "namespace": namespace,
                "labels": { "kubernetes.io/service-name": "front", (BY): "somebody" },
            },
            "addressType": "IPv4", "ports": [{ "name": "http", "port": 1 }],
            "endpoints": [{ "addresses": ["10.5.0.9"] }],
        })
    };
    let theirs = admin.apply(&slice("front-baton-ipv4-0")).await?;
    admin.apply(&policy(&namespace, "others", "pods", "front")).await?;
    let ours = slice("front-baton-ipv4-1");
    let is_ours = |s: &Value| s["metadata"]["labels"][BY] == "baton-operator";
    let made = admin.until("one beside it", &ours, is_ours).await?;
    let not_ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
    admin.merge(&pod(&namespace, "b"), "/status", &not_ready).await?;
    let rewritten = |s: &Value| {
        let ready = s["endpoints"].as_array().into_iter().flatten();
        let ready = ready.filter(|e| e["conditions"]["ready"] == true);
        ready.count() == 1 && s["metadata"]["uid"] == made["metadata"]["uid"]
    };
    admin.until("it is rewritten", &ours, rewritten).await?;
    let stays = admin.get(&theirs).await?;
    ensure!(
        stays["metadata"]["resourceVersion"] == theirs["metadata"]["resourceVersion"],
        "{stays}"
    );
    Ok(())
}

#[tokio::test]
async fn a_service_that_clients_have_is_taken_over_and_given_back() -> Result<()> {
    let world = or_skip!(World::together().await?);
    world.server.start_controllers()?;
    let admin = &world.admin;
    let namespace = world.server.namespace("attached").await?.name;
    admin.node(NODE).await?;
    admin.apply(&class("attached")).await?;
    two_pods(&world, &namespace).await?;
    let web = service(&namespace, "web");
    admin.apply(&web).await?;
    admin.apply(&service(&namespace, "web-pods")).await?;
    let pods = ["web 10.5.0.1:8080", "web 10.5.0.2:8080"];
    let cluster = "endpointslice-controller.k8s.io";
    leads(&world, (&namespace, "web"), cluster, &pods).await?;
    let policy = policy(&namespace, "attached", "web-pods", "web");
    admin.apply(&policy).await?;
    let left_alone = |c: &Value| c["reason"] == "FrontendNotOwned";
    let what = "a Service that is not given to it is left alone";
    admin.condition_where(what, &policy, "Degraded", left_alone).await?;
    leads(&world, (&namespace, "web"), cluster, &pods).await?;

    // As `kubectl baton attach` does.
    let taken = json!({
        "metadata": {
            "labels": { "baton.dev/policy": "shop" },
            "annotations": { "baton.dev/selector": r#"{"app":"shop"}"# },
        },
        "spec": { "selector": null },
    });
    let before = admin.merge(&web, "", &taken).await?;
    leads(&world, (&namespace, "web"), "baton-operator", &pods).await?;
    // The policy goes, and nobody has detached anything.
    admin.delete(&policy).await?;
    leads(&world, (&namespace, "web"), cluster, &pods).await?;
    let after = admin.get(&web).await?;
    ensure!(after["spec"]["selector"] == json!({ "app": "shop" }), "{after}");
    ensure!(after["metadata"]["labels"]["baton.dev/policy"].is_null(), "{after}");
    ensure!(after["spec"]["clusterIP"] == before["spec"]["clusterIP"], "{after}");
    Ok(())
}
