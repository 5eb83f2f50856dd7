//! Baton in a cluster: Helm installs it, a policy is served, and 64 connections of clients stay
//! while everything is replaced around them. One test, because each step needs the one before it;
//! it prints a table of what clients saw.

mod classes;
mod front_door;
mod transfers;

use anyhow::{Context, Result, bail, ensure};
use baton_e2e::{
    Load, Outcome, Site,
    site::{NAMESPACE, SHOP},
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    env, thread,
    time::{Duration, Instant},
};

const PORTS: &str = "dataplane.service.ports[0].name=web,dataplane.service.ports[0].port=80,dataplane.service.ports[0].targetPort=8080";

/// `BATON_E2E_DATAPLANE=DaemonSet`: on the nodes' own network.
struct Dataplanes {
    values: String,
    workload: &'static str,
}

impl Dataplanes {
    fn wanted(site: &Site) -> Result<Self> {
        let kind = env::var("BATON_E2E_DATAPLANE").unwrap_or("Deployment".to_owned());
        let (workload, interface) = match kind.as_str() {
            "Deployment" => ("deployment/baton-lb-dataplane", "eth0"),
            "DaemonSet" => ("daemonset/baton-lb-dataplane", site.node_interface()),
            other => bail!("BATON_E2E_DATAPLANE={other}: expected Deployment or DaemonSet"),
        };
        let values = format!("{PORTS},dataplane.kind={kind},dataplane.interface={interface}");
        Ok(Self { values, workload })
    }
}

/// A namespace with unmodified nginx in so many Pods.
fn nginx(namespace: &str, replicas: u32) -> String {
    format!(
        r#"
apiVersion: v1
kind: Namespace
metadata: {{name: {namespace}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web, namespace: {namespace}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
        - name: nginx
          image: localhost/baton-cluster/server:1
          ports: [{{containerPort: 8080}}]
          readinessProbe: {{httpGet: {{path: /, port: 8080}}, periodSeconds: 1}}
"#
    )
}

/// Their Service, a policy, and a client.
const MANIFESTS: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: baton.dev/v1alpha1
kind: LoadBalancerPolicy
metadata: {name: web, namespace: shop}
spec:
  targetRefs: [{kind: Service, name: web}]
  listeners: [{name: http, port: 8080, servicePort: http}]
  protocol: HTTP1
  podMultipathTcp: Disabled
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: client, image: localhost/baton-cluster/client:1, command: [/bin/sleep, "100000"]}]
"#;

/// The table that the test prints: what was done, what clients saw, and the losses that dataplanes
/// counted, by reason.
#[derive(Default)]
struct Table(Vec<(String, Outcome, Losses)>);

/// Connections that ended because of a backend's death, by reason.
type Losses = BTreeMap<String, u64>;

/// What the dataplanes with this label say of themselves.
fn states(site: &Site, label: &str) -> Result<Vec<Value>> {
    let pods = site.kubectl(&["-n", NAMESPACE, "get", "pods", "-l", label, "-o", "name"])?;
    let states = pods.lines().filter_map(|pod| state(site, pod).transpose());
    states.collect()
}

/// What one of them says; nothing of one that is ending, with which goes what it counted.
fn state(site: &Site, pod: &str) -> Result<Option<Value>> {
    let status =
        ["lb-dataplane", "status", "--control", "unix:/run/baton/control.sock", "-o", "json"];
    let ask = [&["-n", NAMESPACE, "exec", pod, "--"][..], &status].concat();
    match site.kubectl(&ask) {
        Ok(text) => Ok(Some(serde_json::from_str(&text)?)),
        Err(_) => Ok(None),
    }
}

/// What the dataplanes that there are have counted since they started.
fn losses(site: &Site) -> Result<Losses> {
    let mut losses = Losses::new();
    for state in states(site, "app.kubernetes.io/component=lb-dataplane")? {
        for policy in state["policies"].as_array().into_iter().flatten() {
            for (reason, count) in policy["lostTotal"].as_object().into_iter().flatten() {
                *losses.entry(reason.clone()).or_default() += count.as_u64().unwrap_or(0);
            }
        }
    }
    Ok(losses)
}

/// When the Pods of all these restarts got their adopters, from the logs of the host-shims.
fn adopters(site: &Site) -> Result<()> {
    let label = "app.kubernetes.io/component=host-shim";
    let log = site.kubectl(&["-n", NAMESPACE, "logs", "-l", label, "--tail=-1"])?;
    let [before, soon, late] = ["before_running", "within_100_ms", "later"].map(|when| {
        let told = |line: &&str| line.contains("attached") && line.contains(when);
        log.lines().filter(told).count()
    });
    println!(
        "Pods that got their adopter before the API server said that they run: {before}; within 100 ms of that: {soon}; later: {late}"
    );
    for line in log.lines().filter(|line| line.contains("later")) {
        println!("  {line}");
    }
    ensure!(
        before + soon + late >= 20,
        "the host-shims' logs tell of fewer Pods than there were:\n{log}"
    );
    Ok(())
}

impl Table {
    /// Runs clients for so many seconds and does something to the cluster meanwhile.
    fn row(
        &mut self,
        site: &Site,
        what: &str,
        address: &str,
        seconds: u32,
        act: impl FnOnce() -> Result<()>,
    ) -> Result<Outcome> {
        let before = losses(site)?;
        let load = Load::start(site, address, seconds)?;
        load.wait_open(site, address)?;
        let done = act();
        let outcome = load.end()?;
        let mut counted = losses(site)?;
        for (reason, count) in &mut counted {
            *count = count.saturating_sub(before.get(reason).copied().unwrap_or(0));
        }
        counted.retain(|_, count| *count > 0);
        println!("{what}: {outcome:?}, counted: {counted:?}");
        self.0.push((what.to_owned(), outcome, counted));
        done.with_context(|| what.to_owned())?;
        Ok(outcome)
    }

    fn print(&self) {
        let head = "while clients have 64 connections";
        println!("\n{head:<52} {:>8} {:>6} {:>6}  counted as lost", "requests", "errors", "> 10 s");
        for (what, o, counted) in &self.0 {
            let words: Vec<String> = counted.iter().map(|(r, n)| format!("{n} {r}")).collect();
            println!(
                "{what:<52} {:>8} {:>6} {:>6}  {}",
                o.requests,
                o.errors(),
                o.slow,
                words.join(", ")
            );
        }
    }

    /// Rows of Baton in which clients saw more errors than may be. Where processes are killed, a
    /// response that has begun ends with them, which is counted; where all end in order nothing
    /// may.
    fn bad(&self) -> Vec<String> {
        let allowed = |what: &str, counted: &Losses| {
            if what.contains("killed") || what.contains("--force") {
                counted.values().sum::<u64>()
            } else {
                0
            }
        };
        self.0
            .iter()
            .filter(|(what, ..)| !what.contains("plain Service"))
            .filter(|(what, o, counted)| o.slow > 0 || o.errors() > allowed(what, counted))
            .map(|(what, o, counted)| format!("{what}: {o:?}, counted {counted:?}"))
            .collect()
    }
}

fn delete(site: &Site, namespace: &str, label: &str, force: bool) -> Result<()> {
    let mut arguments = vec!["-n", namespace, "delete", "pod", "-l", label, "--wait=false"];
    if force {
        arguments.extend(["--grace-period=0", "--force"]);
    }
    site.kubectl(&arguments)?;
    Ok(())
}

fn scale(site: &Site, replicas: u32) -> Result<()> {
    let replicas = format!("--replicas={replicas}");
    site.kubectl(&["-n", SHOP, "scale", "deployment/web", &replicas])?;
    site.rolled_out(SHOP, "deployment/web")
}

fn roll(site: &Site) -> Result<()> {
    site.kubectl(&["-n", SHOP, "rollout", "restart", "deployment/web"])?;
    site.rolled_out(SHOP, "deployment/web")
}

fn programmed(site: &Site, backends: &str) -> Result<()> {
    let path = r#".status.conditions[?(@.type=="Programmed")].status"#;
    let summary = format!("{backends}/{backends}");
    site.until("the policy is programmed", || {
        let good = site.field(SHOP, "lbp/web", path)? == "True"
            && site.field(SHOP, "lbp/web", ".status.backends.summary")? == summary;
        Ok(good.then_some(()))
    })
}

/// The nodes of a component's Pods, of which each shall have one.
fn apart(site: &Site, component: &str) -> Result<()> {
    let label = format!("app.kubernetes.io/component={component}");
    let path = "jsonpath={.items[*].spec.nodeName}";
    let nodes = site.kubectl(&["-n", NAMESPACE, "get", "pods", "-l", &label, "-o", path])?;
    let mut nodes: Vec<_> = nodes.split_whitespace().collect();
    nodes.sort_unstable();
    ensure!(
        nodes.len() == 2 && nodes[0] != nodes[1],
        "both Pods of {component} go with one node: {nodes:?}"
    );
    Ok(())
}

/// What an admin asks before anything is installed.
fn check(site: &Site) -> Result<()> {
    println!("{}", site.baton(&["check", "-A"])?);
    let report: Value = serde_json::from_str(&site.baton(&["check", "-A", "-o", "json"])?)?;
    let some = |list: &str| report[list].as_array().is_some_and(|l| !l.is_empty());
    ensure!(
        report["installable"] == true && some("nodes") && some("services") && !some("unseen"),
        "kubectl baton check: {report}"
    );
    Ok(())
}

/// What an admin asks while clients are at work.
fn questions(site: &Site) -> Result<()> {
    let json = |arguments: &[&str]| -> Result<Value> {
        let arguments = [arguments, &["-n", SHOP, "-o", "json"]].concat();
        Ok(serde_json::from_str(&site.baton(&arguments)?)?)
    };
    println!("{}", site.baton(&["status"])?);
    let flows = json(&["flows"])?;
    let word = |value: &Value| value.as_str().map(str::to_owned).context("a word");
    let flows = flows["flows"].as_array().context("flows")?;
    // Not one that closes: what was there before may linger.
    let open =
        |flow: &&Value| ["Idle", "Request", "Response"].map(Value::from).contains(&flow["state"]);
    let flow = flows.iter().find(open).context("an open flow")?;
    let id = word(&flow["id"])?;
    println!("{}", site.baton(&["explain", &id, "-n", SHOP])?);
    let asked = json(&["migrate", &id])?;
    println!("{asked}");
    let client = word(&asked["client"])?;
    // With its next request, and these come all the time.
    let moved = site.until("trace shows the move that was asked for", || {
        let past = ["trace", "-n", SHOP, "--flow", &client, "--past", "--for", "1s", "-o", "json"];
        let lines = site.baton(&past)?;
        let events: Result<Vec<Value>, _> = lines.lines().map(serde_json::from_str).collect();
        let mut events = events?.into_iter();
        Ok(events.find(|e| e["event"] == "moved" && e["cause"] == "manual"))
    })?;
    println!("{moved}");
    let file = env::temp_dir().join(format!("baton-e2e-{}.pcapng", std::process::id()));
    let path = file.display().to_string();
    let said =
        site.baton(&["capture", "-n", SHOP, "--client", &client, "--for", "2s", "-w", &path]);
    let bytes = std::fs::read(&file);
    let _ = std::fs::remove_file(&file);
    let (said, bytes) = (said?, bytes?);
    println!("{said}\n{} bytes of packets", bytes.len());
    // A section header and more than its blocks without a packet.
    ensure!(bytes.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]) && bytes.len() > 2_000);
    Ok(())
}

/// Names of all that is left of Baton: everything in its namespace but what each namespace has, and
/// cluster-wide objects of its names. Its definitions stay with the policies, which are the user's.
fn left_in_cluster(site: &Site) -> Result<Vec<String>> {
    /// Of every namespace, by its controllers; and what is told of things that happened.
    const EVERY: [&str; 4] =
        ["configmap/kube-root-ca.crt", "serviceaccount/default", "event/", "event.events.k8s.io/"];
    let kinds = |namespaced: &str| -> Result<String> {
        let scope = format!("--namespaced={namespaced}");
        let kinds = site.kubectl(&["api-resources", "--verbs=list", &scope, "-o", "name"])?;
        Ok(kinds.lines().collect::<Vec<_>>().join(","))
    };
    let there = site.kubectl(&["-n", NAMESPACE, "get", &kinds("true")?, "-o", "name"])?;
    let there = there.lines().filter(|name| {
        let own =
            |every: &&str| name == every || (every.ends_with('/') && name.starts_with(*every));
        !EVERY.iter().any(|every| own(&every))
    });
    let wide = site.kubectl(&["get", &kinds("false")?, "-o", "name"])?;
    let definition = |name: &str| name.ends_with(".baton.dev");
    // A kind cluster's nodes are named after the cluster, and that may be named after Baton;
    // CSINodes have their names too.
    let nodes = site.kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"])?;
    let node = |name: &str| nodes.split_whitespace().any(|node| node == name);
    let wide = wide.lines().filter(|name| {
        let (kind, named) = name.split_once('/').unwrap_or(("", name));
        (named.starts_with("baton") || kind.contains("baton"))
            && kind != "namespace"
            && !definition(named)
            && !node(named)
    });
    Ok(there.chain(wide).map(str::to_owned).collect())
}

/// Nodes whose kube-proxy drops what connection tracking calls INVALID drop nothing that a client
/// would wait for, while connections move as the defaults have it.
fn untouched_by_tracking(site: &Site, table: &mut Table, address: &str) -> Result<()> {
    /// So long that a pair of leg port and Pod would be used again while a node remembers its last
    /// use (120 s in TIME_WAIT), were that not taken care of.
    const SECONDS: u32 = 30;
    /// A segment that was dropped is sent again after 200 ms and more, and again after twice that.
    const LONG: Duration = Duration::from_millis(500);
    if !site.drops_invalid() {
        println!(
            "the nodes drop nothing INVALID: kube-proxy is not in iptables mode, or the cluster is not ours"
        );
        return Ok(());
    }
    let before = site.invalid_drops()?;
    let what = "nothing happens, nodes drop what is INVALID";
    let outcome = table.row(site, what, address, SECONDS, || Ok(()))?;
    for ((node, before), (_, after)) in before.iter().zip(site.invalid_drops()?) {
        println!("{node} has dropped {} INVALID packets meanwhile", after.saturating_sub(*before));
    }
    let longest = Duration::from_micros(outcome.max_us);
    println!("the longest answer took {longest:?}");
    ensure!(longest <= LONG, "{what}: an answer took {longest:?}");
    Ok(())
}

#[test]
fn connections_outlive_what_is_replaced_around_them() -> Result<()> {
    let site = Site::get()?;
    let done = outlive(&site);
    if done.is_err() {
        site.tell();
    }
    done
}

fn outlive(site: &Site) -> Result<()> {
    let began = Instant::now();
    let dataplanes = Dataplanes::wanted(site)?;
    let workload = dataplanes.workload;
    println!("dataplanes: {workload}");
    check(site)?;
    site.helm("install", &["--create-namespace", "--set", &dataplanes.values])?;
    site.apply(&nginx(SHOP, 4))?;
    site.apply(MANIFESTS)?;
    for (namespace, workload) in [
        (NAMESPACE, "deployment/baton-operator"),
        (NAMESPACE, workload),
        (NAMESPACE, "daemonset/baton-host-shim"),
        (SHOP, "deployment/web"),
    ] {
        site.rolled_out(namespace, workload)?;
    }
    site.kubectl(&["-n", SHOP, "wait", "--for=condition=Ready", "pod/client", "--timeout=60s"])?;
    programmed(site, "4")?;
    let multipath = site.multipath_of("nginx")?;
    ensure!(
        multipath.iter().all(|enabled| enabled == "0"),
        "net.mptcp.enabled of the Pods: {multipath:?}"
    );
    // The nodes have no zones, as many clusters' have none.
    apart(site, "lb-dataplane")?;
    apart(site, "operator")?;
    println!("{}", site.helm("test", &[])?);
    let baton = site.field(NAMESPACE, "service/baton", ".spec.clusterIP")?;
    let plain = site.field(SHOP, "service/web", ".spec.clusterIP")?;
    println!(
        "from helm install until the policy is programmed: {:.1} s",
        began.elapsed().as_secs_f64()
    );

    let mut table = Table::default();
    // While the front door is worked on.
    if env::var_os("BATON_E2E_FRONT_DOOR").is_none() {
        replaced(site, workload, [&baton, &plain], began, &mut table)?;
    }
    front_door::through(site, workload, &mut table)?;
    transfers::between_nodes(site)?;
    classes::second(site, &baton, &mut table)?;
    front_door::uninstalled(site, &mut table)?;
    table.print();
    site.until("nothing is left on the nodes", || {
        let left = site.left_on_nodes()?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(Some(()))
    })?;
    // The garbage collector removes what the operator made, some seconds after its ServiceAccount
    // went.
    site.until("nothing is left in the cluster", || {
        let left = left_in_cluster(site)?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(Some(()))
    })?;
    println!(
        "after helm uninstall nothing is left in {NAMESPACE}, in no cluster-wide kind and on no node; policies are the user's"
    );
    let bad = table.bad();
    ensure!(bad.is_empty(), "clients saw errors: {bad:#?}");
    Ok(())
}

/// All is replaced around clients of the dataplanes' own port.
fn replaced(
    site: &Site,
    workload: &str,
    [baton, plain]: [&str; 2],
    began: Instant,
    t: &mut Table,
) -> Result<()> {
    t.row(site, "nothing happens", baton, 8, || Ok(()))?;
    site.until("connections move", || {
        let migrations = site.field(SHOP, "lbp/web", ".status.migrations")?;
        Ok((migrations.parse().unwrap_or(0_u64) > 0).then_some(()))
    })?;
    println!(
        "from helm install until moves are in the status: {:.1} s",
        began.elapsed().as_secs_f64()
    );
    untouched_by_tracking(site, t, baton)?;
    t.row(
        site,
        "kubectl baton: explain, migrate, trace, capture",
        baton,
        // Packets are captured last, and clients must still be there then.
        40,
        || questions(site),
    )?;
    t.row(site, "rolling restart of 4 Pods", baton, 20, || roll(site))?;
    t.row(site, "rolling restart of 4 Pods, plain Service", plain, 20, || roll(site))?;
    t.row(site, "kubectl delete pod --grace-period=0 --force, 2 of 4", baton, 15, || {
        for _ in 0..2 {
            let pod = site.field(
                SHOP,
                "pods",
                ".items[?(@.metadata.labels.app==\"web\")].metadata.name",
            )?;
            let pod = pod.split_whitespace().next().context("a Pod")?.to_owned();
            site.kubectl(&["-n", SHOP, "delete", "pod", &pod, "--grace-period=0", "--force"])?;
            thread::sleep(Duration::from_secs(3));
        }
        Ok(())
    })?;
    scale(site, 2)?;
    t.row(site, "scale 2 to 6: connections spread", baton, 15, || scale(site, 6))?;
    site.until("connections moved to all six", || {
        let moves = site.field(SHOP, "lbp/web", ".status.backendFigures[*].migrationsIn")?;
        let busy = moves.split_whitespace().filter(|m| *m != "0").count();
        Ok((busy == 6).then_some(()))
    })?;
    t.row(site, "scale 6 to 1", baton, 12, || scale(site, 1))?;
    t.row(site, "flapping between 1 and 4", baton, 20, || {
        for replicas in [4, 1, 4, 1, 4] {
            scale(site, replicas)?;
        }
        Ok(())
    })?;
    t.row(site, "both operators killed, then a rolling restart", baton, 30, || {
        delete(site, NAMESPACE, "app.kubernetes.io/component=operator", true)?;
        roll(site)
    })?;
    adopters(site)?;
    t.row(site, "all host-shims replaced, then a rolling restart", baton, 25, || {
        delete(site, NAMESPACE, "app.kubernetes.io/component=host-shim", false)?;
        site.rolled_out(NAMESPACE, "daemonset/baton-host-shim")?;
        roll(site)
    })?;
    t.row(site, "dataplanes rolled", baton, 15, || {
        site.kubectl(&["-n", NAMESPACE, "rollout", "restart", workload])?;
        site.rolled_out(NAMESPACE, workload)
    })?;
    t.row(site, "helm upgrade and rollback", baton, 25, || {
        let change = "dataplane.podAnnotations.e2e=upgraded";
        site.helm("upgrade", &["--reuse-values", "--set", change, "--wait"])?;
        site.helm("rollback", &["--wait"])?;
        Ok(())
    })?;
    // The client stays where it is; the first node of a cluster is its control plane's as a rule.
    let nodes = site.kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"])?;
    let client = site.field(SHOP, "pod/client", ".spec.nodeName")?;
    let mut others = nodes.split_whitespace().rev().filter(|node| *node != client);
    if let Some(node) = others.next() {
        t.row(site, "kubectl drain of one of two nodes", baton, 30, || {
            let drain =
                ["drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=100s"];
            site.kubectl(&drain)?;
            site.rolled_out(SHOP, "deployment/web")
        })?;
        site.kubectl(&["uncordon", node])?;
    }
    Ok(())
}
