//! The definitions are upgraded while the operator runs: objects of the older ones stay as they are
//! and are served on, fields that they could not have get their defaults, and rules that they break
//! are said in their statuses.

use anyhow::{Context, Result};
use baton_crds::LoadBalancerPolicy;
use baton_operator_tests::{
    cluster::{DEADLINE, definitions, established},
    or_skip,
    scene::{Scene, served_policy, service, slice},
};
use futures_util::StreamExt;
use kube::{Api, api::WatchParams};
use serde_json::{Value, json};
use std::{future::ready, pin::pin};
use tokio::time::timeout;

/// Fields of policies that the older definition does not know, by the object that they are in.
const POLICY_FIELDS: [(&str, &str); 7] = [
    ("", "podDeletionCost"),
    ("", "timeouts"),
    ("", "responseTimeout"),
    ("", "affinity"),
    ("/properties/migration", "perBackendPerSecond"),
    ("/properties/health", "maxEjectedPercent"),
    ("/properties/listeners/items", "addresses"),
];
/// The same of classes.
const CLASS_FIELDS: [(&str, &str); 1] = [("/properties/limits", "backends")];

/// A definition as it might have been before: without these fields, and without the rules on a
/// whole spec.
fn older(definition: &Value, fields: &[(&str, &str)]) -> Result<Value> {
    let mut older = definition.clone();
    let version = older.pointer_mut("/spec/versions/0").context("a version")?;
    let spec = version.pointer_mut("/schema/openAPIV3Schema/properties/spec");
    let spec = spec.context("a spec")?;
    let rules = spec.as_object_mut().context("a schema")?;
    rules.remove("x-kubernetes-validations").context("rules of the whole spec")?;
    for (at, field) in fields {
        let object = spec.pointer_mut(at).context("an object of the spec")?;
        let known = object["properties"].as_object_mut().context("fields")?;
        known.remove(*field).with_context(|| format!("{at} {field}"))?;
        if let Some(default) = object["default"].as_object_mut() {
            default.remove(*field);
        }
    }
    Ok(older)
}

#[tokio::test]
async fn an_upgrade_under_a_running_operator_keeps_what_is_served() -> Result<()> {
    let newer = definitions()?;
    let is_policy = |d: &Value| d["spec"]["names"]["kind"] == "LoadBalancerPolicy";
    let before: Vec<Value> = newer
        .iter()
        .map(|d| match is_policy(d) {
            true => older(d, &POLICY_FIELDS),
            false => older(d, &CLASS_FIELDS),
        })
        .collect::<Result<_>>()?;
    let scene = or_skip!(Scene::start_older(&before).await?);
    let admin = scene.hands();
    let namespace = scene.server.namespace("upgrade").await?.name;
    let web = scene.web(&namespace, "web", 8_080).await?;
    let slice = slice(&namespace, "web", &["10.0.0.1", "10.0.0.2"]);
    scene.apply(&slice).await?;
    // The older rules allowed this; a dataplane never did.
    scene.apply(&service(&namespace, "broken")).await?;
    let mut broken = baton_operator_tests::objects::policy(&namespace, "broken", "broken", 8_081);
    broken["spec"]["algorithm"] = "Maglev".into();
    broken["spec"]["slowStart"] = "30s".into();
    let broken_before = scene.apply(&broken).await?;
    scene.condition(&web, "Programmed", "True").await?;
    let refused = scene.condition(&broken, "Accepted", "False").await?;
    let message = refused["message"].as_str().unwrap_or_default();
    assert!(message.contains("spec.slowStart"), "{refused}");
    let two = |s: &baton_api::Snapshot| {
        served_policy(s, &namespace, "web").is_some_and(|p| p.backends.len() == 2)
    };
    let served = scene.served(two).await?;
    let stored = admin.get(&web).await?;
    for (at, field) in POLICY_FIELDS {
        let at = at.replace("/properties", "").replace("/items", "/0");
        let known = stored.pointer(&format!("/spec{at}")).and_then(|o| o.get(field));
        assert_eq!(known, None, "the older definition knows {field}");
    }

    let policies: Api<LoadBalancerPolicy> = Api::all(scene.admin.clone());
    let older_watch = policies.watch(&WatchParams::default(), "0").await?;
    for definition in &newer {
        scene.apply(definition).await?;
        established(&scene.admin, definition).await?;
    }
    let after = admin
        .until("the new fields have their defaults", &web, |stored| {
            let spec = &stored["spec"];
            spec["podDeletionCost"] == "Disabled"
                && spec["timeouts"]["idle"].is_string()
                && spec["health"]["maxEjectedPercent"].is_number()
                && spec["migration"]["perBackendPerSecond"].is_number()
        })
        .await?;
    for same in ["uid", "generation", "creationTimestamp"] {
        assert_eq!(after["metadata"][same], stored["metadata"][same], "{same}");
    }
    // What breaks a rule by now is still there as it was.
    let still = admin.get(&broken).await?;
    assert_eq!(still["metadata"]["uid"], broken_before["metadata"]["uid"]);
    assert_eq!(still["spec"]["slowStart"], "30s");

    // As long as the server has not ended the watches from before the upgrade, it prunes fields
    // from their events that only the new definition knows. It ends them all at once.
    let ended = pin!(older_watch.for_each(|_| ready(())));
    timeout(DEADLINE, ended).await.context("older watches go on")?;
    // A change that only the new definition knows goes through, and is the only push: the upgrade
    // was none.
    let mut changed = web.clone();
    changed["spec"]["timeouts"] = json!({ "idle": "77s" });
    scene.apply(&changed).await?;
    let idle = |s: &baton_api::Snapshot| {
        served_policy(s, &namespace, "web").is_some_and(|p| p.timeouts.idle.0 == 77_000_000)
    };
    let newest = scene.served(idle).await?;
    scene.condition(&web, "Programmed", "True").await?;
    assert_eq!(newest.snapshot.generation, served.snapshot.generation + 1);
    let mut expected = (*served.snapshot).clone();
    expected.generation += 1;
    expected.policies[0].timeouts.idle = baton_api::Micros::from_secs(77);
    assert_eq!(*newest.snapshot, expected);
    // The owner of what breaks a rule corrects it.
    broken["spec"]["slowStart"] = "0s".into();
    scene.apply(&broken).await?;
    scene.condition(&broken, "Programmed", "True").await?;
    Ok(())
}
