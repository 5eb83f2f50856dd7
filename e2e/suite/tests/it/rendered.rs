//! The chart as Helm renders it: equal to what is committed for each set of values, and accepted by
//! a real API server, object by object. `BATON_GENERATE=1` writes the rendered files anew.

use anyhow::{Context, Result, ensure};
use baton_apiserver::{ApiServer, own};
use baton_cluster::helm;
use baton_operator_tests::{
    apply::{Applied, apply, path, send},
    cluster::established,
    manifests,
};
use hyper::Method;
use kube::Client;
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The oldest release that the chart says it works with, so that what is rendered does not depend
/// on Helm's own.
const KUBERNETES: &str = "1.30.0";
/// Where all that the chart renders is.
const NAMESPACE: &str = "baton-system";

fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/baton")
}

/// Names of the sets of values.
fn sets() -> Result<BTreeSet<String>> {
    let folder = chart().join("tests/values");
    let files = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    let names: Result<BTreeSet<_>> = files
        .map(|file| {
            let path = file?.path();
            let stem = path.file_stem().context("a name")?;
            Ok(stem.to_string_lossy().into_owned())
        })
        .collect();
    let names = names?;
    ensure!(names.len() >= 5, "{names:?}");
    Ok(names)
}

/// What Helm makes of the chart with these values.
fn rendered(helm: &Path, set: &str) -> Result<String> {
    let values = chart().join(format!("tests/values/{set}.yaml"));
    let mut command = Command::new(helm);
    command
        .args(["template", "baton"])
        .arg(chart())
        .args(["--namespace", NAMESPACE, "--kube-version", KUBERNETES])
        .arg("--values")
        .arg(&values);
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{set}: {said}");
    Ok(String::from_utf8(output.stdout)?)
}

/// The first line in which two texts differ.
fn difference(committed: &str, rendered: &str) -> String {
    let (mut a, mut b) = (committed.lines(), rendered.lines());
    for number in 1.. {
        match (a.next(), b.next()) {
            (None, None) => break,
            (old, new) if old == new => {}
            (old, new) => {
                let line = |line: Option<&str>| line.unwrap_or("(the end)").to_owned();
                return format!("line {number}:\n- {}\n+ {}", line(old), line(new));
            }
        }
    }
    "the same lines".to_owned()
}

#[test]
fn what_helm_renders_is_what_is_committed() -> Result<()> {
    let (helm, folder) = (helm()?, chart().join("tests/rendered"));
    let mut stale = Vec::new();
    for set in sets()? {
        let rendered = rendered(&helm, &set)?;
        let file = folder.join(format!("{set}.yaml"));
        if env::var_os("BATON_GENERATE").is_some_and(|v| v == "1") {
            fs::create_dir_all(&folder)?;
            fs::write(&file, &rendered)?;
        }
        let committed = fs::read_to_string(&file).unwrap_or_default();
        if committed != rendered {
            stale.push(format!("{set}: {}", difference(&committed, &rendered)));
        }
    }
    let committed: BTreeSet<String> = fs::read_dir(&folder)?
        .filter_map(|f| Some(f.ok()?.path().file_stem()?.to_string_lossy().into_owned()))
        .collect();
    assert_eq!(committed, sets()?, "a rendered file without values");
    assert!(
        stale.is_empty(),
        "the chart renders otherwise than charts/baton/tests/rendered says; if that is meant, run `make generate`\n{}",
        stale.join("\n")
    );
    Ok(())
}

/// Whoever has a master key can forge adoptions on every node: a node's part must not have one.
#[test]
fn no_pod_but_a_dataplanes_can_have_the_master_keys() -> Result<()> {
    const MASTERS: &str = "baton-adoption-keys";
    for set in sets()? {
        let file = chart().join(format!("tests/rendered/{set}.yaml"));
        let objects = manifests::read(&file)?;
        let mut mounting = BTreeSet::new();
        let mut reading = BTreeSet::new();
        for object in &objects {
            let name = object["metadata"]["name"].as_str().context("a name")?;
            // Volumes, projected ones and variables of the environment, wherever they are.
            let pod = object["spec"]["template"]["spec"].to_string();
            if pod.contains(MASTERS) {
                mounting.insert(name);
            }
            let rules = object["rules"].as_array().into_iter().flatten();
            if rules
                .map(Value::to_string)
                .any(|r| r.contains("\"secrets\"") || r.contains("\"*\""))
            {
                reading.insert(name);
            }
            if name == "baton-host-shim" && object["kind"] == "ConfigMap" {
                let config = object["data"]["shim.yaml"].as_str().context("shim.yaml")?;
                let config = manifests::parse(config)?.remove(0);
                assert!(config["keys"].is_null(), "{set}: the operator sends them");
                assert!(config["controlTls"].is_object(), "{set}");
            }
        }
        assert_eq!(mounting, BTreeSet::from(["baton-lb-dataplane"]), "{set}");
        assert_eq!(reading, BTreeSet::from(["baton-operator"]), "{set}");
    }
    Ok(())
}

/// GKE admits Pods with these classes in its own namespaces only (its quota `gcp-critical-pods`).
#[test]
fn no_pod_has_a_priority_class_of_the_systems() -> Result<()> {
    let helm = helm()?;
    let mut of_users = 0;
    for set in sets()? {
        let objects = manifests::parse(&rendered(&helm, &set)?)?;
        let is_class = |o: &&Value| o["kind"] == "PriorityClass";
        let names = objects.iter().filter(is_class);
        let made: BTreeSet<_> = names.map(|o| o["metadata"]["name"].as_str()).collect();
        for object in objects.iter().filter(|o| !is_class(o)) {
            let class = &object["spec"]["template"]["spec"]["priorityClassName"];
            let Some(class) = class.as_str() else {
                continue;
            };
            let name = &object["metadata"]["name"];
            assert!(!class.starts_with("system-"), "{set}: {name}: {class}");
            if made.contains(&Some(class)) {
                assert_eq!(*name, class, "{set}: its own");
            } else {
                of_users += 1;
                assert_eq!(class, "platform-critical", "{set}: {name}");
            }
        }
    }
    assert_eq!(of_users, 1, "the operator's in `production`");
    Ok(())
}

#[test]
fn wrong_values_are_refused_with_their_names() -> Result<()> {
    let helm = helm()?;
    for (values, said) in [
        ("dataplan.kind=DaemonSet", "dataplan"),
        ("dataplane.kind=StatefulSet", "/dataplane/kind"),
        (
            "dataplane.limits.backends=5000",
            "/dataplane/limits/backends",
        ),
        ("crds.apply=maybe", "/crds/apply"),
        (
            "monitoring.prometheusRule.runbookUrl=docs/runbook.md",
            "/monitoring/prometheusRule/runbookUrl",
        ),
        (
            "monitoring.prometheusRule.enabled=true,monitoring.prometheusRule.disabled={BatonPanics}",
            "there is no alert BatonPanics, expected some of BatonConnectionsLost, ",
        ),
    ] {
        let output = Command::new(&helm)
            .args(["template", "baton"])
            .arg(chart())
            .args(["--set", values])
            .output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{values} is taken");
        assert!(error.contains(said), "{values}: {error}");
    }
    Ok(())
}

/// A server with Baton's definitions, the chart's namespaces, and those of the Prometheus
/// operator's kinds.
async fn server() -> Result<Option<(ApiServer, Client)>> {
    let Some(server) = own() else {
        return Ok(None);
    };
    let admin = server.admin().await?;
    for definition in manifests::folder("crds/generated")? {
        apply(&admin, &definition).await?.object()?;
        established(&admin, &definition).await?;
    }
    for definition in prometheus_definitions()? {
        apply(&admin, &definition).await?.object()?;
        established(&admin, &definition).await?;
    }
    for name in [NAMESPACE, "monitoring"] {
        // Warns of Pods that Pod Security's strictest level would refuse.
        let labels = json!({ "pod-security.kubernetes.io/warn": "restricted" });
        let metadata = json!({ "name": name, "labels": labels });
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata });
        apply(&admin, &namespace).await?.object()?;
    }
    Ok(Some((server, admin)))
}

/// The Prometheus operator's own definitions of what the chart may make, from its Go module.
fn prometheus_definitions() -> Result<Vec<Value>> {
    let module = "github.com/prometheus-operator/prometheus-operator@v0.85.0";
    let go = baton_kubernetes::go().context("Go is needed: `make setup` installs it")?;
    let output = Command::new(go)
        .args(["mod", "download", "-json", module])
        .current_dir(env::temp_dir())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{module}: {said}");
    let answer: Value = serde_json::from_slice(&output.stdout)?;
    let folder = Path::new(answer["Dir"].as_str().context("a folder")?);
    let folder = folder.join("example/prometheus-operator-crd");
    let mut all = Vec::new();
    for plural in ["podmonitors", "prometheusrules"] {
        let file = folder.join(format!("monitoring.coreos.com_{plural}.yaml"));
        all.append(&mut manifests::read(&file)?);
    }
    Ok(all)
}

async fn dry_run(client: &Client, object: &Value) -> Result<Applied> {
    let path = path(object).context("apiVersion, kind and a name")?;
    let uri = format!("{path}?fieldManager=helm&fieldValidation=Strict&dryRun=All");
    let kind = "application/apply-patch+yaml";
    send(client, Method::PATCH, &uri, kind, object).await
}

#[tokio::test]
async fn a_real_api_server_accepts_every_rendered_object() -> Result<()> {
    let Some((_server, admin)) = server().await? else {
        return Ok(());
    };
    let helm = helm()?;
    for set in sets()? {
        let objects = manifests::parse(&rendered(&helm, &set)?)?;
        // A Pod is refused without its ServiceAccount, and there is no dry run that remembers one.
        for account in objects.iter().filter(|o| o["kind"] == "ServiceAccount") {
            apply(&admin, account).await?.object()?;
        }
        let mut privileged = BTreeSet::new();
        for object in &objects {
            let name = format!("{} {}", object["kind"], object["metadata"]["name"]);
            let applied = dry_run(&admin, object).await?;
            for warning in &applied.warnings {
                let pod_security = warning.contains("would violate PodSecurity");
                assert!(pod_security, "{set}: {name}: {warning}");
                privileged.insert(object["metadata"]["name"].as_str().unwrap_or("").to_owned());
            }
            applied.object().with_context(|| format!("{set}: {name}"))?;
        }
        let mut expected = BTreeSet::from(["baton-lb-dataplane".to_owned()]);
        if set != "minimal" {
            expected.insert("baton-host-shim".to_owned());
        }
        assert_eq!(privileged, expected, "{set}: all else passes `restricted`");
        println!("{set}: {} objects", objects.len());
    }
    Ok(())
}

#[tokio::test]
async fn what_is_wrong_is_refused() -> Result<()> {
    let Some((_server, admin)) = server().await? else {
        return Ok(());
    };
    let objects = manifests::parse(&rendered(&helm()?, "monitoring")?)?;
    for (kind, pointer, value) in [
        ("Deployment", "/spec/replicaz", json!(1)),
        (
            "PodMonitor",
            "/spec/podMetricsEndpoints/0/interval",
            json!("often"),
        ),
        (
            "PrometheusRule",
            "/spec/groups/0/rules/0/severity",
            json!("x"),
        ),
        ("BatonDataplane", "/spec/ports/first", json!(1)),
    ] {
        let object = objects.iter().find(|o| o["kind"] == kind);
        let mut object = object.context(kind)?.clone();
        let (parent, field) = pointer.rsplit_once('/').context("a pointer")?;
        let parent = object.pointer_mut(parent).context("a parent")?;
        parent[field] = value;
        let applied = dry_run(&admin, &object).await?;
        assert!(applied.outcome.is_err(), "{kind}: {pointer}");
    }
    Ok(())
}
