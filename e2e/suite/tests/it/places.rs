//! What the chart makes of the place that it goes to: nodes of other systems, OpenShift, dataplanes
//! of which an autoscaler has made more.

use crate::rendered::{NAMESPACE, chart, with};
use anyhow::{Result, ensure};
use baton_apiserver::own;
use baton_cluster::helm;
use baton_operator_tests::{
    apply::{apply, send},
    cluster::established,
    manifests, or_skip,
};
use hyper::Method;
use serde_json::{Value, json};
use std::process::Command;

/// The Pods of workloads and hooks, with their names.
fn pods(objects: &[Value]) -> impl Iterator<Item = (&str, &Value)> {
    objects.iter().filter_map(|object| {
        let template = object.pointer("/spec/template/spec");
        let pod = template.or_else(|| (object["kind"] == "Pod").then_some(&object["spec"]))?;
        Some((object["metadata"]["name"].as_str()?, pod))
    })
}

#[test]
fn every_pod_goes_to_linux_and_where_the_user_says() -> Result<()> {
    let own = "dataplane.nodeSelector.edge=yes,shim.nodeSelector.kubernetes\\.io/os=any";
    let objects = with(&["--set", own])?;
    let all: Vec<_> = pods(&objects).map(|(name, pod)| (name, &pod["nodeSelector"])).collect();
    assert_eq!(all.len(), 6, "{all:?}");
    for (name, selector) in all {
        let expected = match name {
            "baton-lb-dataplane" => json!({ "edge": "yes", "kubernetes.io/os": "linux" }),
            "baton-host-shim" => json!({ "kubernetes.io/os": "any" }),
            _ => json!({ "kubernetes.io/os": "linux" }),
        };
        assert_eq!(*selector, expected, "{name}");
    }
    Ok(())
}

/// OpenShift refuses a Pod with a user that is not one of its namespace's.
#[test]
fn on_openshift_pods_without_rights_take_the_namespaces_user() -> Result<()> {
    for (apis, user) in [("v1", json!(65_532)), ("security.openshift.io/v1", json!(null))] {
        let objects = with(&["--api-versions", apis])?;
        let restricted =
            pods(&objects).filter(|(_, p)| p["securityContext"]["runAsNonRoot"] == true);
        let mut names = Vec::new();
        for (name, pod) in restricted {
            let context = &pod["securityContext"];
            assert_eq!((&context["runAsUser"], &context["runAsGroup"]), (&user, &user), "{name}");
            names.push(name);
        }
        names.sort_unstable();
        assert_eq!(names, ["baton-crds", "baton-detach", "baton-operator", "baton-test"]);
    }
    Ok(())
}

/// A field that the release before had and this one leaves out would become 1.
#[tokio::test]
async fn autoscaling_begins_with_the_dataplanes_that_there_are() -> Result<()> {
    let server = or_skip!(own());
    let admin = server.admin().await?;
    for definition in manifests::folder("crds/generated")? {
        apply(&admin, &definition).await?.object()?;
        established(&admin, &definition).await?;
    }
    let kubeconfig = server.kubeconfig_file(server.admin_identity())?;
    let run = async |verb: &'static str, values: &'static str| {
        let mut command = Command::new(helm()?);
        command
            .args([verb, "baton"])
            .arg(chart())
            .args(["--namespace", NAMESPACE, "--no-hooks", "--skip-crds"])
            .args(["--set", values, "--kubeconfig"])
            .arg(&kubeconfig);
        if verb == "install" {
            command.arg("--create-namespace");
        }
        // The API server's own tasks go on meanwhile.
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{verb} {values}: {said}");
        anyhow::Ok(())
    };
    let deployment = format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments/baton-lb-dataplane");
    let merge = "application/merge-patch+json";
    let replicas = async |wanted: &Value| {
        let object = send(&admin, Method::PATCH, &deployment, merge, wanted);
        anyhow::Ok(object.await?.object()?["spec"]["replicas"].clone())
    };
    run("install", "dataplane.replicas=5").await?;
    run("upgrade", "dataplane.autoscaling.enabled=true").await?;
    assert_eq!(replicas(&json!({})).await?, 5);
    replicas(&json!({ "spec": { "replicas": 9 } })).await?;
    run("upgrade", "dataplane.autoscaling.enabled=true,dataplane.log.level=debug").await?;
    assert_eq!(replicas(&json!({})).await?, 9, "as the autoscaler has it");
    Ok(())
}
