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
const KUBERNETES: &str = "1.31.0";
/// Where all that the chart renders is.
pub(crate) const NAMESPACE: &str = "baton-system";

pub(crate) fn chart() -> PathBuf {
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

/// The workloads of the dataplanes that this set of values has.
fn dataplanes(set: &str) -> BTreeSet<&'static str> {
    let mut names = BTreeSet::from(["baton-lb-dataplane"]);
    if set == "classes" {
        names.extend(["baton-lb-dataplane-edge", "baton-lb-dataplane-internal"]);
    }
    names
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
            if rules.map(Value::to_string).any(|r| r.contains("\"secrets\"") || r.contains("\"*\""))
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
        assert_eq!(mounting, dataplanes(&set), "{set}");
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
                // All classes of dataplanes have one.
                let own = name.as_str().filter(|n| dataplanes(&set).contains(n));
                assert_eq!(
                    own.map_or(name.as_str(), |_| Some("baton-lb-dataplane")),
                    Some(class),
                    "{set}: its own"
                );
            } else {
                of_users += 1;
                assert_eq!(class, "platform-critical", "{set}: {name}");
            }
        }
    }
    assert_eq!(of_users, 2, "the operator's in `production`, the edge's in `classes`");
    Ok(())
}

/// Where all Pods of a budget have to stay, `kubectl drain` of their nodes never ends. A class that
/// has fewer dataplanes than the first has the budget of that, too.
#[test]
fn one_pod_of_each_budget_may_always_go() -> Result<()> {
    let helm = helm()?;
    let mut budgets = 0;
    for set in sets()? {
        let objects = manifests::parse(&rendered(&helm, &set)?)?;
        let of = |kind: &str, name: &Value| {
            let is = |o: &&Value| o["kind"] == kind && o["metadata"]["name"] == *name;
            objects.iter().find(is)
        };
        for budget in objects.iter().filter(|o| o["kind"] == "PodDisruptionBudget") {
            let name = &budget["metadata"]["name"];
            let scaled = of("HorizontalPodAutoscaler", name).map(|o| &o["spec"]["minReplicas"]);
            let replicas = of("Deployment", name).map(|o| &o["spec"]["replicas"]);
            let pods = scaled.or(replicas).and_then(Value::as_u64);
            let stay = budget["spec"]["minAvailable"].as_u64();
            let (pods, stay) = (pods.context("Pods")?, stay.context("a number")?);
            assert!(stay < pods, "{set}: {name}: {stay} of {pods}");
            budgets += 1;
        }
    }
    assert!(budgets >= 8, "{budgets}");
    Ok(())
}

#[test]
fn wrong_values_are_refused_with_their_names() -> Result<()> {
    let helm = helm()?;
    for (values, said) in [
        ("dataplan.kind=DaemonSet", "dataplan"),
        ("dataplane.kind=StatefulSet", "/dataplane/kind"),
        ("dataplane.limits.backends=5000", "/dataplane/limits/backends"),
        ("dataplaneClasses.internal.replica=2", "/dataplaneClasses/internal"),
        (
            "dataplaneClasses.internal.limits.backends=5000",
            "/dataplaneClasses/internal/limits/backends",
        ),
        ("crds.apply=maybe", "/crds/apply"),
        // With these a Pod would not start.
        ("operator.log.level=verbose", "/operator/log/level"),
        ("dataplane.log.level=WARN", "/dataplane/log/level"),
        ("shim.log.level=loud", "/shim/log/level"),
        ("operator.otlpEndpoint=https://collector:4318", "/operator/otlpEndpoint"),
        (
            "dataplane.kind=DaemonSet,dataplane.workers=2",
            "dataplane.workers: 2 is not possible with kind DaemonSet",
        ),
        (
            "dataplane.mode=packet,dataplane.workers=2",
            "dataplane.workers: 2 is not possible with mode packet",
        ),
        (
            // It has the first one's unless it says otherwise.
            "dataplane.workers=4,dataplaneClasses.edge.kind=DaemonSet",
            "dataplaneClasses.edge.workers: 4 is not possible with kind DaemonSet",
        ),
        (
            "monitoring.prometheusRule.runbookUrl=docs/runbook.md",
            "/monitoring/prometheusRule/runbookUrl",
        ),
        (
            "monitoring.prometheusRule.enabled=true,monitoring.prometheusRule.disabled={BatonPanics}",
            "there is no alert BatonPanics, expected some of BatonConnectionsLost, ",
        ),
    ] {
        refused(&helm, values, said)?;
    }
    Ok(())
}

/// It would fire for each policy, for ever.
#[test]
fn without_shims_nobody_is_told_that_no_pod_adopts() -> Result<()> {
    for (shims, expected) in [("true", true), ("false", false)] {
        let values = format!("monitoring.prometheusRule.enabled=true,shim.enabled={shims}");
        let objects = with(&["--set", &values])?;
        let rules = objects.iter().find(|object| object["kind"] == "PrometheusRule");
        let rules = rules.context("rules")?["spec"]["groups"][0]["rules"].as_array();
        let has = |alert: &str| rules.into_iter().flatten().any(|rule| rule["alert"] == alert);
        assert_eq!(has("BatonBackendsCannotAdopt"), expected, "shim.enabled={shims}");
        assert!(has("BatonConnectionsLost") && has("BatonBug"));
    }
    Ok(())
}

/// Helm refuses these values and says this.
fn refused(helm: &Path, values: &str, said: &str) -> Result<()> {
    let output = Command::new(helm)
        .args(["template", "baton"])
        .arg(chart())
        .args(["--set", values])
        .output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{values} is taken");
    assert!(error.contains(said), "{values}: {error}");
    Ok(())
}

#[test]
fn classes_that_cannot_be_together_are_refused() -> Result<()> {
    let helm = helm()?;
    for (values, said) in [
        (
            "dataplaneClasses.Internal.replicas=1",
            "dataplaneClasses: \"Internal\" is no name of a class: expected at most 40 of ",
        ),
        (
            "dataplaneClasses.default.replicas=1,dataplane.class.name=edge",
            "dataplaneClasses.default: the class that `dataplane` describes has this name or label",
        ),
        (
            "dataplaneClasses.edge.replicas=1,dataplane.class.name=edge",
            "dataplaneClasses.edge: the class that `dataplane` describes has this name or label",
        ),
        (
            "dataplaneClasses.edge.class.name=other",
            "dataplaneClasses.edge.class.name: the key is the class's name: leave it out",
        ),
        (
            "dataplaneClasses.edge.class.default=true",
            "dataplane and dataplaneClasses.edge: class.default is true of both: set it to false of one",
        ),
        (
            "dataplane.class.default=false,dataplaneClasses.a.class.default=true,dataplaneClasses.b.class.default=true",
            "dataplaneClasses.a and dataplaneClasses.b: class.default is true of both",
        ),
        (
            // Further classes are as the first one unless they say otherwise.
            "dataplane.kind=DaemonSet,dataplaneClasses.edge.replicas=1",
            "dataplane and dataplaneClasses.edge: both are of kind DaemonSet, and two dataplanes on the network of one node",
        ),
        (
            // A node may have both labels.
            "dataplane.kind=DaemonSet,dataplane.nodeSelector.a=one,dataplaneClasses.edge.nodeSelector.b=two",
            "give both a nodeSelector with the same label and different values, or one of them kind: Deployment",
        ),
        (
            "dataplane.service.type=NodePort,dataplane.service.ports[0].name=a,dataplane.service.ports[0].port=80,\
             dataplane.service.ports[0].nodePort=30080,dataplaneClasses.edge.replicas=1",
            "dataplane and dataplaneClasses.edge: both have nodePort 30080: give dataplaneClasses.edge.service.ports",
        ),
    ] {
        refused(&helm, values, said)?;
    }
    Ok(())
}

/// All that the chart makes with these arguments of Helm.
pub(crate) fn with(arguments: &[&str]) -> Result<Vec<Value>> {
    let output = Command::new(helm()?)
        .args(["template", "baton"])
        .arg(chart())
        .args(["--namespace", NAMESPACE])
        .args(arguments)
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{arguments:?}: {said}");
    manifests::parse(&String::from_utf8(output.stdout)?)
}

/// The labels that each selector of an object asks for, wherever it stands.
fn selectors<'a>(object: &'a Value, found: &mut Vec<&'a Value>) {
    match object {
        Value::Object(fields) => {
            for (name, field) in fields {
                if name == "matchLabels" {
                    found.push(field);
                } else {
                    selectors(field, found);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| selectors(item, found)),
        _ => {}
    }
}

/// A Pod of one class behind the Service of another, or pushed the other's policies, would serve
/// clients that it is not for.
#[test]
fn each_class_selects_its_own_pods_and_no_others() -> Result<()> {
    /// What of a class selects Pods or names its workload.
    const SELECTING: [&str; 6] = [
        "BatonDataplane",
        "DaemonSet",
        "Deployment",
        "HorizontalPodAutoscaler",
        "PodDisruptionBudget",
        "Service",
    ];
    let objects = manifests::parse(&rendered(&helm()?, "classes")?)?;
    let name = |object: &Value| object["metadata"]["name"].as_str().map(str::to_owned);
    let names: BTreeSet<_> = objects.iter().map(|o| (o["kind"].to_string(), name(o))).collect();
    assert_eq!(names.len(), objects.len(), "two objects have one name");
    // Of the operator's and host-shims' Pods, too.
    let pods: Vec<(&Value, &Value)> = objects
        .iter()
        .filter_map(|o| Some((o, o.pointer("/spec/template/metadata/labels")?)))
        .collect();
    let chosen = |selector: &Value| -> BTreeSet<Option<String>> {
        let asked = selector.as_object().into_iter().flatten();
        let asked: Vec<_> = asked.collect();
        assert!(!asked.is_empty(), "{selector} chooses all Pods");
        let fit = |labels: &Value| asked.iter().all(|(key, value)| labels[key] == **value);
        let chosen = pods.iter().filter(|(_, labels)| fit(labels));
        chosen.map(|(object, _)| name(object)).collect()
    };
    let mut seen = BTreeSet::new();
    for class in ["default", "internal", "edge"] {
        let is_of =
            |o: &&Value| o.pointer("/metadata/labels/baton.dev~1class") == Some(&json!(class));
        let workload = match class {
            "default" => "baton-lb-dataplane".to_owned(),
            other => format!("baton-lb-dataplane-{other}"),
        };
        let own = BTreeSet::from([Some(workload.clone())]);
        for object in objects.iter().filter(is_of) {
            let kind = object["kind"].as_str().context("a kind")?;
            let mut found = Vec::new();
            selectors(object, &mut found);
            if kind == "Service" {
                found.push(&object["spec"]["selector"]);
            }
            for selector in &found {
                assert_eq!(chosen(selector), own, "{kind} of {class}: {selector}");
            }
            if kind == "HorizontalPodAutoscaler" {
                assert_eq!(object["spec"]["scaleTargetRef"]["name"], *workload);
            } else {
                assert_eq!(found.is_empty(), !SELECTING.contains(&kind), "{kind}");
            }
            if kind == "BatonDataplane" {
                assert_eq!(object["metadata"]["name"], class);
                assert_eq!(object["spec"]["default"], class == "default");
                let tier = if class == "default" { "external" } else { class };
                assert_eq!(object["metadata"]["labels"]["tier"], tier);
            } else if kind == "Service" {
                let service = workload.replace("-lb-dataplane", "");
                assert_eq!(object["metadata"]["name"], *service);
            } else {
                assert_eq!(object["metadata"]["name"], *workload, "{kind}");
            }
            if let Some(pod) = object.pointer("/spec/template/spec") {
                assert_eq!(pod["serviceAccountName"], *workload);
                assert_eq!(pod["volumes"][0]["configMap"]["name"], *workload);
            }
            seen.insert(format!("{class} {kind}"));
        }
    }
    let expected = [
        ("default", "Deployment PodDisruptionBudget"),
        ("internal", "Deployment PodDisruptionBudget HorizontalPodAutoscaler"),
        ("edge", "DaemonSet"),
    ];
    let expected = expected.iter().flat_map(|(class, own)| {
        let all = "BatonDataplane ConfigMap Service ServiceAccount".split(' ');
        let of_class = move |kind| format!("{class} {kind}");
        own.split(' ').chain(all).map(of_class)
    });
    assert_eq!(seen, expected.collect());
    // The operator alone may reach the control ports of all.
    let policy = |o: &&Value| {
        o["kind"] == "NetworkPolicy" && name(o).as_deref() == Some("baton-lb-dataplane")
    };
    let policy = objects.iter().find(policy).context("a NetworkPolicy")?;
    let all = dataplanes("classes").into_iter();
    let all: BTreeSet<_> = all.map(|name| Some(name.to_owned())).collect();
    assert_eq!(chosen(&policy["spec"]["podSelector"]["matchLabels"]), all);
    // And `helm test` looks at all.
    let test = objects.iter().find(|o| o["kind"] == "Pod");
    let arguments = test.context("a test")?["spec"]["containers"][0]["args"].to_string();
    for workload in [
        "deployment/baton-lb-dataplane\"",
        "deployment/baton-lb-dataplane-internal\"",
        "daemonset/baton-lb-dataplane-edge\"",
    ] {
        assert!(arguments.contains(workload), "{arguments}");
    }
    Ok(())
}

/// The example that docs/operations.md gives is a whole one: its policy is served by its class.
#[test]
fn the_pages_example_of_classes_is_taken() -> Result<()> {
    let page = chart().join("../../docs/operations.md");
    let page = fs::read_to_string(page)?;
    let blocks = || page.split("```yaml\n").filter_map(|b| b.split("```").next());
    let values = blocks().find(|b| b.contains("dataplaneClasses:"));
    let policy = blocks().find(|b| b.contains("dataplaneSelector:"));
    let file = env::temp_dir().join(format!("bt-classes-{}.yaml", std::process::id()));
    fs::write(&file, values.context("values")?)?;
    let file_name = file.to_str().context("a name")?;
    let objects = with(&["--values", file_name]);
    let _ = fs::remove_file(&file);
    let objects = objects?;
    let policy = manifests::parse(policy.context("a policy")?)?.remove(0);
    let asked = policy["spec"]["dataplaneSelector"]["matchLabels"].as_object();
    let asked = asked.context("labels")?;
    let fit = |o: &&Value| {
        let labels = &o["metadata"]["labels"];
        o["kind"] == "BatonDataplane" && asked.iter().all(|(key, value)| labels[key] == *value)
    };
    let chosen: Vec<_> = objects.iter().filter(fit).collect();
    assert_eq!(chosen.len(), 1);
    assert_eq!(chosen[0]["metadata"]["name"], "internal");
    let port = &policy["spec"]["listeners"][0]["port"];
    let leads = |o: &&Value| {
        o["metadata"]["name"] == "baton-internal" && o["spec"]["ports"][0]["targetPort"] == *port
    };
    assert!(objects.iter().any(|o| leads(&o)), "nothing leads to {port}");
    Ok(())
}

/// What a class says stands above what the first says, also where it is `false`, none or empty.
#[test]
fn a_class_is_as_the_first_one_but_for_what_it_says() -> Result<()> {
    let objects = with(&[
        "--set",
        "dataplane.kind=DaemonSet,dataplane.nodeSelector.a=one,dataplane.graceSeconds=77,dataplane.log.level=debug,\
         dataplane.class.labels.tier=first,dataplane.class.policies=7,dataplaneClasses.true.kind=DaemonSet,\
         dataplaneClasses.true.nodeSelector.a=two,dataplaneClasses.true.log.format=text,\
         dataplaneClasses.true.class.hostPorts={2379-2382},dataplaneClasses.true.service.enabled=false",
    ])?;
    let find = |kind: &str, name: &str| {
        let found = |o: &&Value| o["kind"] == kind && o["metadata"]["name"] == name;
        objects.iter().find(found)
    };
    let workload = find("DaemonSet", "baton-lb-dataplane-true").context("a workload")?;
    let pod = &workload["spec"]["template"]["spec"];
    assert_eq!(pod["terminationGracePeriodSeconds"], 92);
    let selector = json!({ "a": "two", "kubernetes.io/os": "linux" });
    assert_eq!(pod["nodeSelector"], selector);
    let config = find("ConfigMap", "baton-lb-dataplane-true").context("a configuration")?;
    let config = config["data"]["dataplane.yaml"].as_str().context("text")?;
    assert!(config.contains("level: \"debug\"\n  format: text"), "{config}");
    let class = find("BatonDataplane", "true").context("a class, whose name is a text")?;
    assert!(class["metadata"]["labels"]["tier"].is_null(), "not its own");
    assert_eq!(class["spec"]["limits"]["policies"], 7);
    assert_eq!(class["spec"]["reservedPorts"], json!(["9910", "2379-2382"]));
    assert!(find("Service", "baton-true").is_none());
    assert!(find("Service", "baton").is_some());
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
        let mut expected = dataplanes(&set);
        if set != "minimal" {
            expected.insert("baton-host-shim");
        }
        let privileged: BTreeSet<&str> = privileged.iter().map(String::as_str).collect();
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
        ("PodMonitor", "/spec/podMetricsEndpoints/0/interval", json!("often")),
        ("PrometheusRule", "/spec/groups/0/rules/0/severity", json!("x")),
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
