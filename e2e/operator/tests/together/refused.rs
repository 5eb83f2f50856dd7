//! What a policy cannot have is said once, by one condition and one Event, and harms nobody: the
//! policy beside it is served on, and nothing of its status changes.

use anyhow::{Context, Result, ensure};
use baton_operator_tests::{
    class::{Class, NODE},
    cluster::{get, pod, wait_for},
    objects::{has, service, slice_of_pods},
    or_skip,
    world::World,
};
use serde_json::{Value, json};

/// A policy and the one thing that is wrong with it.
struct Case {
    policy: Value,
    condition: &'static str,
    reason: &'static str,
    says: &'static str,
}

/// A Service that somebody's GitOps keeps as it is, with what selects its Pods.
fn somebodys(namespace: &str) -> Value {
    let mut service = service(namespace, "theirs");
    service["spec"]["selector"] = json!({ "app": "theirs" });
    service
}

fn cases(class: &Class, namespace: &str) -> [Case; 7] {
    let policy = |name, service, port| class.policy(namespace, name, service, port);
    let fronted = |name, front: &str| {
        let mut policy = policy(name, name, 80);
        policy["spec"]["frontend"] = json!({ "service": { "name": front } });
        policy
    };
    let case = |policy, condition, reason, says| Case { policy, condition, reason, says };
    [
        case(
            policy("nothing", "nothing", 8_101),
            "Accepted",
            "TargetNotFound",
            "create it, or correct spec.targetRefs[0].name",
        ),
        case(policy("outside", "outside", 8_102), "Accepted", "Invalid", "is of type ExternalName"),
        case(policy("node", "node", 10_250), "Accepted", "PortReserved", "expected another port"),
        case(policy("taken", "taken", 8_100), "Accepted", "Conflicted", "good"),
        case(policy("same", "good", 8_103), "Accepted", "Conflicted", "delete one of the two"),
        case(fronted("gitops", "theirs"), "Degraded", "FrontendNotOwned", "theirs"),
        case(fronted("full", "full-front"), "Accepted", "NoFrontendPort", "spec.frontendPorts"),
    ]
}

/// The Events about a policy: what each says, and how often.
async fn events(world: &World, namespace: &str, policy: &str) -> Result<Vec<(Value, Value)>> {
    let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
    let listed = get(&world.admin.client, &path).await?;
    let items = listed["items"].as_array().context("Events")?;
    // The API server tells of Services of that name, too.
    let about = items.iter().filter(|e| {
        e["regarding"]["kind"] == "LoadBalancerPolicy" && e["regarding"]["name"] == policy
    });
    Ok(about.map(|e| (e["reason"].clone(), e["series"]["count"].clone())).collect())
}

/// The conditions that are bad by themselves, not because another one is.
fn bad(stored: &Value) -> Vec<(String, String)> {
    let follows = ["NotAccepted", "Pending"];
    let conditions = stored["status"]["conditions"].as_array();
    let text = |c: &Value, field: &str| c[field].as_str().unwrap_or_default().to_owned();
    conditions
        .into_iter()
        .flatten()
        .filter(|c| c["type"] != "Ready" && !follows.iter().any(|reason| c["reason"] == *reason))
        .filter(|c| c["status"] == if c["type"] == "Degraded" { "True" } else { "False" })
        .map(|c| (text(c, "type"), text(c, "reason")))
        .collect()
}

#[tokio::test]
async fn what_a_policy_cannot_have_is_said_once_and_harms_nobody() -> Result<()> {
    let world = or_skip!(World::together().await?);
    let admin = &world.admin;
    let namespace = world.server.namespace("refused").await?.name;
    let spec = json!({
        "reservedPorts": ["10250"],
        // Room for the first policy's port and for one more.
        "frontendPorts": { "first": 18_000, "last": 18_001 },
    });
    let class = Class::start_as(admin, "refused", 1, &spec).await?;
    let backed = async |name: &str| {
        admin.apply(&service(&namespace, name)).await?;
        let slice = slice_of_pods(&namespace, name, NODE, &[("web-0", "10.13.0.1")]);
        admin.apply(&slice).await
    };
    admin.pod(&pod(&namespace, "web-0"), NODE, "10.13.0.1").await?;
    for name in ["good", "node", "taken", "full", "gitops", "first"] {
        backed(name).await?;
    }
    let mut outside = service(&namespace, "outside");
    outside["spec"] = json!({ "type": "ExternalName", "externalName": "example.org" });
    admin.apply(&outside).await?;
    admin.apply(&somebodys(&namespace)).await?;

    let good = class.policy(&namespace, "good", "good", 8_100);
    admin.apply(&good).await?;
    admin.condition(&good, "Programmed", "True").await?;
    let mut first = class.policy(&namespace, "first", "first", 80);
    first["spec"]["frontend"] = json!({ "service": { "name": "first-front" } });
    admin.apply(&first).await?;
    admin.condition(&first, "Programmed", "True").await?;
    let before = admin.get(&good).await?["status"]["conditions"].clone();

    let cases = cases(&class, &namespace);
    for Case { policy, condition, reason, says } in &cases {
        admin.apply(policy).await?;
        let said = |c: &Value| c["reason"] == *reason;
        let said = admin.condition_where(reason, policy, condition, said).await?;
        let message = said["message"].as_str().unwrap_or_default();
        ensure!(message.contains(says), "{message}");
        let name = policy["metadata"]["name"].as_str().context("a name")?;
        wait_for("its Event", async || {
            let told = events(&world, &namespace, name).await?;
            ensure!(told.iter().any(|(told, _)| told == reason), "{told:?}");
            Ok(())
        })
        .await
        .with_context(|| admin.log())?;
    }
    // Whatever would be said besides, or again, has been said when all of it was.
    for Case { policy, condition, reason, .. } in &cases {
        let stored = admin.get(policy).await?;
        let wanted = vec![((*condition).to_owned(), (*reason).to_owned())];
        ensure!(bad(&stored) == wanted, "{reason}: {}", stored["status"]);
        let name = policy["metadata"]["name"].as_str().context("a name")?;
        let told = events(&world, &namespace, name).await?;
        ensure!(told == [(json!(reason), Value::Null)], "{name}: {told:?}");
    }
    let after = admin.get(&good).await?["status"]["conditions"].clone();
    ensure!(before == after, "{before} became {after}");
    class.served(admin, has(&namespace, "good")).await?;
    let theirs = admin.get(&somebodys(&namespace)).await?;
    ensure!(theirs["spec"]["selector"] == json!({ "app": "theirs" }), "{theirs}");
    Ok(())
}
