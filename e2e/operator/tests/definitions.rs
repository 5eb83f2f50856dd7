//! The definitions install without a warning, install again, and upgrade over an older one without
//! touching objects.

use anyhow::{Context, Result};
use baton_apiserver::{own, program};
use baton_crds::LoadBalancerPolicy;
use baton_operator_tests::{
    apply::{apply, apply_as, path},
    cluster::{cluster, definitions, established, get, wait_for},
    or_skip,
};
use serde_json::{Value, json};
use std::process::Command;

fn policy(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "baton.dev/v1alpha1",
        "kind": "LoadBalancerPolicy",
        "metadata": { "name": name, "namespace": namespace },
        "spec": { "targetRefs": [{ "name": "web" }], "listeners": [{ "name": "http", "port": 80 }] },
    })
}

#[tokio::test]
async fn definitions_are_established_without_warnings_and_stay_as_they_are() -> Result<()> {
    let cluster = or_skip!(cluster().await?);
    for manifest in definitions()? {
        let again = apply(&cluster.admin, &manifest).await?;
        assert_eq!(again.warnings, [""; 0]);
        let stored = again.object()?;
        let found = established(&cluster.admin, &manifest).await?;
        let conditions = found["status"]["conditions"].as_array().context("conditions")?;
        let truth =
            |kind: &str| conditions.iter().find(|c| c["type"] == kind).map(|c| &c["status"]);
        assert_eq!(truth("NamesAccepted"), Some(&json!("True")));
        assert_eq!(truth("NonStructuralSchema"), None, "{conditions:?}");
        assert_eq!(truth("KubernetesAPIApprovalPolicyConformant"), None, "{conditions:?}");
        // Applied a second time, nothing changes.
        assert_eq!(stored["metadata"]["generation"], 1, "{}", manifest["metadata"]["name"]);
    }
    Ok(())
}

#[tokio::test]
async fn the_server_fills_in_the_defaults_that_the_types_have() -> Result<()> {
    let cluster = or_skip!(cluster().await?);
    let namespace = cluster.server.namespace("defaults").await?.name;
    let manifest = policy(&namespace, "web");
    let applied = apply(&cluster.admin, &manifest).await?;
    assert_eq!(applied.warnings, [""; 0]);
    let stored: LoadBalancerPolicy = serde_json::from_value(applied.object()?)?;
    let local: LoadBalancerPolicy = serde_json::from_value(manifest)?;
    assert_eq!(stored.spec, local.spec);
    Ok(())
}

#[tokio::test]
async fn kubectl_shows_the_columns_under_every_name() -> Result<()> {
    let cluster = or_skip!(cluster().await?);
    let namespace = cluster.server.namespace("columns").await?.name;
    apply(&cluster.admin, &policy(&namespace, "web")).await?.object()?;
    let kubeconfig = cluster.server.kubeconfig_file(cluster.server.admin_identity())?;
    for name in ["lbp", "loadbalancerpolicies", "loadbalancerpolicy", "networking"] {
        let output = Command::new(program()?)
            .args(["kubectl", "get", name, "--namespace", &namespace, "--kubeconfig"])
            .arg(&kubeconfig)
            // kubectl keeps what it learned about the server in the home folder else.
            .env("HOME", cluster.server.folder())
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let lines: Vec<_> = said.lines().collect();
        let header: Vec<_> = lines[0].split_whitespace().collect();
        let expected = [
            "NAME",
            "SERVICE",
            "BACKENDS",
            "ADDRESS",
            "FLOWS",
            "MOVABLE",
            "MIGRATIONS",
            "READY",
            "ADOPTABLE",
            "AGE",
        ];
        assert_eq!(header, expected, "{said}");
        assert!(lines[1].contains("web"), "{said}");
    }
    Ok(())
}

/// The definition as an earlier version might have been: without a field that has a default, and
/// without a column.
fn older(definition: &Value) -> Result<Value> {
    let mut older = definition.clone();
    let version = older.pointer_mut("/spec/versions/0").context("a version")?;
    let columns = version["additionalPrinterColumns"].as_array_mut().context("columns")?;
    columns.retain(|column| column["name"] != "Algorithm");
    let spec = version.pointer_mut("/schema/openAPIV3Schema/properties/spec/properties");
    let spec = spec.and_then(Value::as_object_mut).context("the fields of the spec")?;
    spec.remove("podDeletionCost").context("podDeletionCost is a field")?;
    Ok(older)
}

#[tokio::test]
async fn an_upgrade_keeps_objects_and_their_status() -> Result<()> {
    // Of its own, since it changes the definitions under everybody.
    let server = or_skip!(own());
    let admin = server.admin().await?;
    let namespace = server.namespace("upgrade").await?.name;
    let definitions = definitions()?;
    let newer = definitions.iter().find(|d| d["spec"]["names"]["kind"] == "LoadBalancerPolicy");
    let newer = newer.context("the definition of policies")?;
    let older = older(newer)?;
    apply(&admin, &older).await?.object()?;
    established(&admin, &older).await?;
    let manifest = policy(&namespace, "web");
    let path = path(&manifest).context("a path")?;
    let before =
        wait_for("policies can be written", async || apply(&admin, &manifest).await?.object())
            .await?;
    assert_eq!(before["spec"]["podDeletionCost"], Value::Null);
    let status = json!({
        "apiVersion": "baton.dev/v1alpha1",
        "kind": "LoadBalancerPolicy",
        "metadata": { "name": "web", "namespace": namespace },
        "status": { "observedGeneration": 1, "flows": 7 },
    });
    apply_as(&admin, &status, "baton-operator-status", "/status").await?.object()?;

    let upgraded = apply(&admin, newer).await?;
    assert_eq!(upgraded.warnings, [""; 0]);
    assert_eq!(upgraded.object()?["metadata"]["generation"], 2);
    let after = wait_for("the new field has its default", async || {
        let policy = get(&admin, &path).await?;
        anyhow::ensure!(policy["spec"]["podDeletionCost"] == "Disabled", "{policy}");
        Ok(policy)
    })
    .await?;
    assert_eq!(after["status"]["flows"], 7);
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["metadata"]["generation"], before["metadata"]["generation"]);
    // Stored again by whoever touches it, and still the same object.
    apply(&admin, &manifest).await?.object()?;
    Ok(())
}
