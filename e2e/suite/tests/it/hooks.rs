//! What the chart's hooks run, against a real API server and with the rights that the chart gives
//! them: definitions are brought up to date, and an installation is judged.

use anyhow::{Context, Result};
use baton_apiserver::{ApiServer, own};
use baton_cluster::helm;
use baton_operator_tests::{
    apply::{apply, apply_as, path, send},
    cluster::{established, get},
    manifests,
    operator::binary,
    or_skip,
};
use hyper::Method;
use kube::Client;
use serde_json::{Value, json};
use std::{path::Path, process::Command};

const NAMESPACE: &str = "baton-system";

struct Scene {
    server: ApiServer,
    admin: Client,
    /// All that the chart makes with no values.
    objects: Vec<Value>,
}

/// A server with the namespace, the older definitions and the rights of one hook.
async fn scene(hook: &str) -> Result<Option<Scene>> {
    let Some(server) = own() else {
        return Ok(None);
    };
    let admin = server.admin().await?;
    let metadata = json!({ "name": NAMESPACE });
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata });
    apply(&admin, &namespace).await?.object()?;
    for definition in manifests::folder("crds/generated")? {
        // By another manager, as Helm installed it with an earlier version.
        let older = older(&definition)?;
        apply_as(&admin, &older, "helm", "").await?.object()?;
        established(&admin, &older).await?;
    }
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/baton");
    let mut template = Command::new(helm()?);
    template.args(["template", "baton"]).arg(chart);
    let output = template.args(["--namespace", NAMESPACE]).output()?;
    let objects = manifests::parse(&String::from_utf8(output.stdout)?)?;
    for object in &objects {
        let group = object["apiVersion"].as_str().unwrap_or_default();
        let rights = group.starts_with("rbac") || object["kind"] == "ServiceAccount";
        if rights && object["metadata"]["name"] == hook {
            apply(&admin, object).await?.object()?;
        }
    }
    Ok(Some(Scene { server, admin, objects }))
}

/// The definition without its columns but for the first, as an earlier version might have been.
fn older(definition: &Value) -> Result<Value> {
    let mut older = definition.clone();
    let columns = older.pointer_mut("/spec/versions/0/additionalPrinterColumns");
    let columns = columns.and_then(Value::as_array_mut);
    columns.context("columns")?.truncate(1);
    Ok(older)
}

impl Scene {
    /// Runs the operator's program as this ServiceAccount: whether it was content, and what it
    /// said.
    async fn run(&self, account: &str, arguments: &[&str]) -> Result<(bool, String)> {
        let identity = self.server.service_account(NAMESPACE, account).await?;
        let kubeconfig = self.server.kubeconfig_file(&identity)?;
        let program = binary("baton-operator")?;
        let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
        // The API server's own tasks go on meanwhile.
        let output = tokio::task::spawn_blocking(move || {
            Command::new(program).args(arguments).arg("--kubeconfig").arg(kubeconfig).output()
        })
        .await??;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        Ok((output.status.success(), said))
    }

    fn object(&self, kind: &str, name: &str) -> Result<&Value> {
        let found = |o: &&Value| o["kind"] == kind && o["metadata"]["name"] == name;
        self.objects.iter().find(found).context("a rendered object")
    }

    async fn status(&self, object: &Value, status: Value) -> Result<()> {
        let object = json!({
            "apiVersion": object["apiVersion"], "kind": object["kind"],
            "metadata": { "name": object["metadata"]["name"], "namespace": object["metadata"]["namespace"] },
            "status": status,
        });
        apply_as(&self.admin, &object, "test-status", "/status").await?.object()?;
        Ok(())
    }
}

#[tokio::test]
async fn definitions_of_an_older_version_are_brought_up_to_date() -> Result<()> {
    let scene = or_skip!(scene("baton-crds").await?);
    // The second run finds all as it should be.
    for _ in 0..2 {
        let (good, said) = scene.run("baton-crds", &["crds", "--apply"]).await?;
        assert!(good, "{said}");
        for definition in manifests::folder("crds/generated")? {
            let path = path(&definition).context("a path")?;
            let found = get(&scene.admin, &path).await?;
            let columns = "/spec/versions/0/additionalPrinterColumns";
            assert_eq!(found.pointer(columns), definition.pointer(columns), "{path}");
        }
    }
    // Its rights are for these two.
    let identity = scene.server.service_account(NAMESPACE, "baton-crds").await?;
    let client = identity.client().await?;
    let mut other = manifests::folder("crds/generated")?.remove(0);
    other["metadata"]["name"] = "others.baton.dev".into();
    other["spec"]["names"]["plural"] = "others".into();
    let refused = apply(&client, &other).await?.outcome.expect_err("refused");
    assert_eq!(refused.code, 403, "{}", refused.message);
    Ok(())
}

/// Nobody makes slices of a Service here: those of the cluster are there from the start.
#[tokio::test]
async fn attached_services_lead_to_their_pods_before_baton_goes() -> Result<()> {
    let scene = or_skip!(scene("baton-detach").await?);
    let namespace = scene.server.namespace("shop").await?.name;
    let service = |name: &str, label: (&str, &str), annotations: Value| {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": name, "namespace": namespace, "annotations": annotations,
                "labels": { label.0: label.1, "baton.dev/policy": "p" },
            },
            "spec": { "ports": [{ "port": 80 }] },
        })
    };
    let slice = |name: &str, of: &str, by: &str| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": name, "namespace": namespace,
                "labels": { "kubernetes.io/service-name": of, "endpointslice.kubernetes.io/managed-by": by },
            },
            "addressType": "IPv4", "endpoints": [], "ports": [],
        })
    };
    let (cluster, baton) = ("endpointslice-controller.k8s.io", "baton-operator");
    let had = json!({ "baton.dev/selector": r#"{"app":"web"}"# });
    let mut newer = service("newer", ("app", "web"), had.clone());
    newer["spec"]["selector"] = json!({ "app": "newer" });
    for object in [
        service("web", ("app", "web"), had.clone()),
        newer,
        service("made", ("app.kubernetes.io/managed-by", baton), had),
        service("unsaid", ("app", "web"), json!({})),
        // Nothing of it is Baton's but the label, which is no reason to fail.
        service("labelled", ("app", "web"), json!({})),
        slice("web-1", "web", cluster),
        slice("web-2", "web", baton),
        slice("made-1", "made", baton),
        slice("unsaid-1", "unsaid", baton),
        slice("newer-1", "newer", cluster),
    ] {
        apply(&scene.admin, &object).await?.object()?;
    }
    let service_of = async |name: &str| {
        let path = format!("/api/v1/namespaces/{namespace}/services/{name}");
        get(&scene.admin, &path).await
    };
    for _ in 0..2 {
        let (good, said) = scene.run("baton-detach", &["detach"]).await?;
        assert!(
            !good && said.contains(&format!("Service {namespace}/unsaid: it does not say")),
            "{said}"
        );
        let web = service_of("web").await?;
        assert_eq!(web["spec"]["selector"], json!({ "app": "web" }));
        assert_eq!(web["metadata"]["labels"], json!({ "app": "web" }));
        let newer = service_of("newer").await?;
        assert_eq!(newer["spec"]["selector"], json!({ "app": "newer" }));
        assert_eq!(newer["metadata"]["labels"], json!({ "app": "web" }));
        assert!(service_of("made").await?["spec"]["selector"].is_null());
        let slices = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices");
        let slices = get(&scene.admin, &slices).await?;
        let slices = slices["items"].as_array().into_iter().flatten();
        let left: Vec<_> = slices.map(|slice| &slice["metadata"]["name"]).collect();
        assert_eq!(left, ["made-1", "newer-1", "unsaid-1", "web-1"]);
        assert!(!said.contains("labelled: it"), "{said}");
    }
    Ok(())
}

#[tokio::test]
async fn an_installation_is_judged_by_what_is_there() -> Result<()> {
    let scene = or_skip!(scene("baton-test").await?);
    let pod = scene.object("Pod", "baton-test")?;
    let arguments = pod.pointer("/spec/containers/0/args").context("arguments")?;
    let arguments: Vec<&str> = arguments
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        // As the chart says it, but at once.
        .map(|a| if a.starts_with("--within") { "--within-seconds=0" } else { a })
        .collect();
    let judged = async || scene.run("baton-test", &arguments).await;

    let (good, said) = judged().await?;
    assert!(!good && said.contains("is another version's than"), "{said}");
    for definition in manifests::folder("crds/generated")? {
        // The admin's way around the hook.
        let path = path(&definition).context("a path")?;
        let uri = format!("{path}?fieldManager=kubectl&force=true");
        let kind = "application/apply-patch+yaml";
        send(&scene.admin, Method::PATCH, &uri, kind, &definition).await?.object()?;
    }
    let (good, said) = judged().await?;
    assert!(!good && said.contains("deployment/baton-operator"), "{said}");

    // While those of a newer specification do not come up, those before it are ready.
    let deployment = |updated: i32| {
        json!({
            "replicas": 4 - updated, "readyReplicas": 2, "updatedReplicas": updated, "observedGeneration": 1,
        })
    };
    for (kind, name, ready) in [
        ("Deployment", "baton-operator", deployment(2)),
        ("Deployment", "baton-lb-dataplane", deployment(1)),
        (
            "DaemonSet",
            "baton-host-shim",
            json!({
                "currentNumberScheduled": 3, "desiredNumberScheduled": 3, "numberMisscheduled": 0, "numberReady": 2,
                "updatedNumberScheduled": 3, "observedGeneration": 1,
            }),
        ),
    ] {
        let object = scene.object(kind, name)?;
        apply(&scene.admin, object).await?.object()?;
        scene.status(object, ready).await?;
    }
    let (good, said) = judged().await?;
    // Its image cannot be pulled, say.
    let old = "deployment/baton-lb-dataplane: 1 of 2 Pods are of the newest specification";
    assert!(!good && said.contains(old), "{said}");
    scene.status(scene.object("Deployment", "baton-lb-dataplane")?, deployment(2)).await?;
    let (good, said) = judged().await?;
    assert!(!good && said.contains("daemonset/baton-host-shim: 2 of 3"), "{said}");
    let shim = scene.object("DaemonSet", "baton-host-shim")?;
    let status = json!({
        "currentNumberScheduled": 3, "desiredNumberScheduled": 3, "numberMisscheduled": 0, "numberReady": 3,
        "updatedNumberScheduled": 3, "observedGeneration": 1,
    });
    scene.status(shim, status).await?;

    let (good, said) = judged().await?;
    assert!(!good && said.contains("there is no BatonDataplane"), "{said}");
    let class = scene.object("BatonDataplane", "default")?;
    apply(&scene.admin, class).await?.object()?;
    let (good, said) = judged().await?;
    assert!(!good && said.contains("has said nothing yet"), "{said}");
    for (programmed, message) in [("False", "dataplane a does not answer"), ("True", "")] {
        let condition = |kind: &str, status: &str, message: &str| {
            json!({
                "type": kind, "status": status, "reason": "Tested", "message": message,
                "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
            })
        };
        let conditions =
            [condition("Accepted", "True", ""), condition("Programmed", programmed, message)];
        scene.status(class, json!({ "conditions": conditions })).await?;
        let (good, said) = judged().await?;
        assert_eq!(good, programmed == "True", "{said}");
        assert!(good || said.contains(message), "{said}");
    }
    Ok(())
}
