//! Downloads from Pods whose application cooperates (`baton-sdk`), in mid-body when their Pod goes:
//! the Pod on the other node goes on with them, at the byte.

use crate::states;
use anyhow::{Context, Result, ensure};
use baton_e2e::{Site, site::SHOP};
use serde_json::Value;
use std::process::Stdio;

/// Two Pods, on two nodes, that have the same files.
const MANIFESTS: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: files, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: files}}
  template:
    metadata: {labels: {app: files}}
    spec:
      terminationGracePeriodSeconds: 10
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector: {matchLabels: {app: files}}
      containers:
        - name: files
          image: localhost/baton-cluster/client:1
          command: [/usr/bin/baton-files, --listen, "0.0.0.0:8080", --directory, /usr/bin]
          ports: [{containerPort: 8080}]
          readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: files, namespace: shop}
spec: {selector: {app: files}, ports: [{port: 80, targetPort: 8080, appProtocol: http}]}
"#;

const DOWNLOADS: usize = 8;
/// What is downloaded: the server itself, some megabytes.
const FILE: &str = "baton-files";
/// So that a download outlasts its Pod, which has 10 s to end.
const SECONDS: usize = 25;

/// All of it; leaves nothing behind.
pub fn between_nodes(site: &Site) -> Result<()> {
    site.apply(MANIFESTS)?;
    site.rolled_out(SHOP, "deployment/files")?;
    println!("{}", site.baton(&["attach", "svc/files", "-n", SHOP])?);
    let address = site.field(SHOP, "service/files", ".spec.clusterIP")?;
    let in_client = |command: &str| {
        let said = ["-n", SHOP, "exec", "client", "--", "sh", "-c", command];
        site.kubectl(&said)
    };
    let url = format!("http://{address}/{FILE}");
    // Until kube-proxy on the client's node has the change, its connections go to the Pods.
    let size = site.until("the Service leads its client through Baton", || {
        let before = figure(site, "flowsTotal")?;
        let size = in_client(&format!("curl -sf -o /dev/null -w '%{{size_download}}' {url}"))?;
        let size = size.trim().parse::<usize>()?;
        Ok((figure(site, "flowsTotal")? > before).then_some(size))
    })?;
    let sum = in_client(&format!("sha256sum < /usr/bin/{FILE}"))?;
    let rate = size / SECONDS;
    let each = format!("(curl -sSf --limit-rate {rate} {url} | sha256sum) & ");
    let all = format!("{} wait", each.repeat(DOWNLOADS));
    let moved_before = moved(site)?;
    let mut downloads = site.kubectl_command();
    downloads.args(["-n", SHOP, "exec", "client", "--", "sh", "-c", &all]);
    let mut downloads = downloads.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (pod, node) = site.until("a Pod has downloads under way", || busy(site))?;
    site.kubectl(&["cordon", &node])?;
    let gone = site.kubectl(&["-n", SHOP, "delete", "pod", &pod]);
    let still = downloads.try_wait()?.is_none();
    let output = downloads.wait_with_output()?;
    site.kubectl(&["uncordon", &node])?;
    gone?;
    let text = String::from_utf8_lossy(&output.stdout);
    let right = text.lines().filter(|line| *line == sum.trim()).count();
    let moved = moved(site)? - moved_before;
    println!(
        "{pod} on {node} deleted during {DOWNLOADS} downloads of {size} bytes: {right} right, {moved} moved in mid-body"
    );
    let problems = String::from_utf8_lossy(&output.stderr);
    ensure!(still, "the downloads were over before the Pod was gone");
    ensure!(right == DOWNLOADS, "{text}{problems}, not {sum}");
    ensure!(moved > 0, "no connection moved in mid-body");
    println!("{}", site.baton(&["detach", "svc/files", "-n", SHOP])?);
    site.kubectl(&["-n", SHOP, "delete", "deployment/files", "service/files"])?;
    Ok(())
}

/// Connections that another Pod's application went on with.
fn moved(site: &Site) -> Result<u64> {
    let states = states(site, "app.kubernetes.io/component=lb-dataplane")?;
    let counts = states.iter().map(|state| {
        let moved = &state["counters"]["transfers_total{result=\"moved\"}"];
        moved.as_u64().context("transfers_total")
    });
    counts.sum()
}

/// What the dataplanes say of the policy.
fn files(site: &Site) -> Result<Vec<Value>> {
    let mut states = states(site, "app.kubernetes.io/component=lb-dataplane")?;
    let policies = states.iter_mut().filter_map(|state| state["policies"].as_array_mut());
    let of_files = |policy: &Value| {
        let name = policy["name"].as_str();
        name.is_some_and(|name| name.starts_with("shop/files/"))
    };
    Ok(policies.flat_map(std::mem::take).filter(of_files).collect())
}

/// A figure of the policy, of all dataplanes together.
fn figure(site: &Site, name: &str) -> Result<u64> {
    let files = files(site)?;
    Ok(files.iter().filter_map(|policy| policy[name].as_u64()).sum())
}

/// A Pod that has connections when all downloads are there, and its node.
fn busy(site: &Site) -> Result<Option<(String, String)>> {
    if figure(site, "flows")? < DOWNLOADS as u64 {
        return Ok(None);
    }
    let files = files(site)?;
    let backends =
        files.iter().flat_map(|policy| policy["backends"].as_array().into_iter().flatten());
    let mut busy = backends.filter(|backend| backend["flows"].as_u64() > Some(0));
    let Some(pod) = busy.next().and_then(|backend| backend["name"].as_str()) else {
        return Ok(None);
    };
    let node = site.field(SHOP, &format!("pod/{pod}"), ".spec.nodeName")?;
    Ok(Some((pod.to_owned(), node)))
}
