//! A redis on 6379, behind its Service as the others: attached, restarted and detached under load,
//! and who its clients are is in its log.

use super::leads_to;
use anyhow::{Context, Result, ensure};
use baton_e2e::{Site, site::SHOP};
use std::process::{Child, Stdio};

/// Two servers that keep nothing, so that it does not matter which is asked.
const MANIFESTS: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: cache, namespace: depot}
spec:
  replicas: 2
  selector: {matchLabels: {app: cache}}
  template:
    metadata: {labels: {app: cache}}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
        - name: redis
          image: localhost/baton-cluster/server:1
          # At this level its log names each client.
          command: [/usr/bin/redis-server, --port, "6379", --save, "", --protected-mode, "no", --loglevel, verbose]
          ports: [{containerPort: 6379}]
          readinessProbe: {tcpSocket: {port: 6379}, periodSeconds: 1}
          # It ends at once when it is told to, with whatever it was asked and has not answered.
          lifecycle: {preStop: {exec: {command: [/bin/sleep, "2"]}}}
---
apiVersion: v1
kind: Service
metadata: {name: cache, namespace: depot}
spec: {selector: {app: cache}, ports: [{port: 6379}]}
"#;

/// Where its end is asked for.
const ENOUGH: &str = "/dev/shm/enough";

/// redis-benchmark, again and again until it is enough. It ends at the first error.
struct Asking(Child);

impl Asking {
    fn start(site: &Site, address: &str) -> Result<Self> {
        let ask = format!(
            "while [ ! -e {ENOUGH} ]; do \
             redis-benchmark -q -h {address} -c 16 -n 20000 -t get,set || exit 1; done"
        );
        let mut command = site.kubectl_command();
        command.args(["-n", SHOP, "exec", "client", "--", "sh", "-c", &ask]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(Self(child.spawn()?))
    }

    /// How many rounds it made.
    fn end(self, site: &Site) -> Result<usize> {
        let enough = format!(": > {ENOUGH}");
        site.kubectl(&["-n", SHOP, "exec", "client", "--", "sh", "-c", &enough])?;
        let output = self.0.wait_with_output()?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        ensure!(output.status.success(), "redis-benchmark: {text}");
        Ok(text.matches("GET: ").count())
    }
}

/// All of it; leaves nothing behind.
pub(super) fn through(site: &Site) -> Result<()> {
    site.apply(MANIFESTS)?;
    site.rolled_out("depot", "deployment/cache")?;
    let address = site.field("depot", "service/cache", ".spec.clusterIP")?;
    site.until("the Service answers", || {
        Ok((said(site, &address, "ping")?.trim() == "PONG").then_some(()))
    })?;
    let asking = Asking::start(site, &address)?;
    let attached = site.baton(&["attach", "svc/cache", "-n", "depot"])?;
    println!("{attached}");
    leads_to(site, "depot", "cache", "Dataplanes")?;
    let speaks = site.field("depot", "lbp/cache", ".spec.protocol")?;
    ensure!(speaks == "RESP", "{speaks}: {attached}");
    let restore = r#"{"spec":{"clientAddress":"Restore"}}"#;
    let patch = ["patch", "lbp/cache", "--type", "merge", "-p", restore];
    site.kubectl(&[&["-n", "depot"][..], &patch].concat())?;
    site.kubectl(&["-n", "depot", "rollout", "restart", "deployment/cache"])?;
    site.rolled_out("depot", "deployment/cache")?;
    let moved = "connections to the cache move";
    site.until(moved, || {
        let moves = site.field("depot", "lbp/cache", ".status.migrations")?;
        Ok((moves.parse().unwrap_or(0_u64) > 0).then_some(()))
    })?;
    let client = site.field(SHOP, "pod/client", ".status.podIP")?;
    for _ in 0..4 {
        let info = said(site, &address, "client info")?;
        let seen = info.split(' ').find_map(|one| one.strip_prefix("addr="));
        let (seen, _) = seen.and_then(|one| one.rsplit_once(':')).context("addr")?;
        ensure!(seen == client, "the cache saw {seen}, not {client}");
    }
    logged(site, &client)?;
    println!("{}", site.baton(&["detach", "svc/cache", "-n", "depot"])?);
    let rounds = asking.end(site)?;
    println!("a redis on 6379, attached, restarted and detached: {rounds} rounds, no error");
    ensure!(rounds > 0, "no round was whole");
    site.kubectl(&["-n", "depot", "delete", "deployment/cache", "service/cache"])?;
    Ok(())
}

/// Each server's log names the client.
fn logged(site: &Site, client: &str) -> Result<()> {
    let accepted = format!("Accepted {client}:");
    for (pod, _) in site.placed("depot", "app=cache")? {
        let log = site.kubectl(&["-n", "depot", "logs", &pod])?;
        let lines = log.lines().filter(|line| line.contains(&accepted));
        println!("{pod} logged {} connections of {client}", lines.count());
        ensure!(log.contains(&accepted), "{pod} logged none of {client}");
    }
    Ok(())
}

/// What the cache answers the client.
fn said(site: &Site, address: &str, command: &str) -> Result<String> {
    let ask = format!("redis-cli -h {address} {command}");
    site.kubectl(&["-n", SHOP, "exec", "client", "--", "sh", "-c", &ask])
}
