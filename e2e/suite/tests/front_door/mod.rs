//! Baton in front of Services that there are, under their names: put there and taken away while
//! clients use them, two on port 80 and one on 6379 at once, whose servers then see who their
//! clients are, and those that policies make.
//!
//! Each time one client keeps 64 connections and another one opens a new one for each request.

mod cache;
mod near;
mod told;

use crate::{Table, nginx};
use anyhow::{Context, Result, ensure};
use baton_e2e::{
    Load, Site,
    site::{NAMESPACE, SHOP},
};
use serde_json::Value;

/// Two applications that know nothing of each other.
const SPACES: [&str; 2] = ["store", "depot"];

fn service(namespace: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: {namespace}}}
spec: {{selector: {{app: web}}, ports: [{{port: 80, targetPort: 8080}}]}}
"#
    )
}

/// A policy with a Service of its own, for pods that another Service selects, and two ports, one of
/// which has settings of its own.
const MADE: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: other, namespace: depot}
spec: {selector: {app: web}, ports: [{name: http, port: 8000, targetPort: 8080}]}
---
apiVersion: baton.dev/v1alpha1
kind: LoadBalancerPolicy
metadata: {name: made, namespace: depot}
spec:
  targetRefs: [{name: other}]
  frontend: {service: {name: made}}
  listeners:
    - {name: http, port: 80, servicePort: http}
    - {name: raw, port: 81, servicePort: http, protocol: None, migration: {mode: Never}}
"#;

/// All of it; leaves nothing behind but the namespaces.
pub fn through(site: &Site, workload: &str, table: &mut Table) -> Result<()> {
    for namespace in SPACES {
        site.apply(&nginx(namespace, 2))?;
        site.apply(&service(namespace))?;
    }
    for namespace in SPACES {
        site.rolled_out(namespace, "deployment/web")?;
    }
    let address = site.field("store", "service/web", ".spec.clusterIP")?;
    let dry = site.baton(&["attach", "svc/web", "-n", "store", "--dry-run"])?;
    ensure!(dry.contains("change  Service web"), "{dry}");
    row(site, table, "attach two Services on port 80", &address, 25, || {
        for namespace in SPACES {
            println!("{}", site.baton(&["attach", "svc/web", "-n", namespace])?);
            leads_to(site, namespace, "web", "Dataplanes")?;
        }
        Ok(())
    })?;
    let same = site.field("store", "service/web", ".spec.clusterIP")?;
    ensure!(same == address, "{address} became {same}");
    row(site, table, "attached: rolling restart of its Pods", &address, 25, || {
        site.kubectl(&["-n", "store", "rollout", "restart", "deployment/web"])?;
        site.rolled_out("store", "deployment/web")
    })?;
    let moved = "connections through the Service move";
    site.until(moved, || {
        let moves = site.field("store", "lbp/web", ".status.migrations")?;
        Ok((moves.parse().unwrap_or(0_u64) > 0).then_some(()))
    })?;
    row(site, table, "attached: the operators killed", &address, 25, || {
        let label = "app.kubernetes.io/component=operator";
        let kill = ["delete", "pod", "-l", label, "--grace-period=0", "--force"];
        site.kubectl(&[&["-n", NAMESPACE][..], &kill].concat())?;
        site.rolled_out(NAMESPACE, "deployment/baton-operator")?;
        leads_to(site, "store", "web", "Dataplanes")
    })?;
    restored(site, table, &address)?;
    made(site, table)?;
    cache::through(site)?;
    told::through(site, table)?;
    if workload.starts_with("deployment/") {
        fails_open(site, workload, table, &address)?;
    }
    // Here dataplanes are on all nodes: these of a Deployment have just come.
    near::through(site)?;
    row(site, table, "detach both", &address, 45, || {
        for namespace in SPACES {
            println!("{}", site.baton(&["detach", "svc/web", "-n", namespace])?);
        }
        Ok(())
    })?;
    for namespace in SPACES {
        let selector = site.field(namespace, "service/web", ".spec.selector")?;
        let selector: Value = serde_json::from_str(&selector)?;
        ensure!(selector["app"] == "web", "{selector}");
        let left = ["-n", namespace, "get", "svc,lbp", "-o", "name"];
        let left = site.kubectl(&left)?;
        ensure!(left.trim() == "service/web" || namespace == "depot", "{left}");
    }
    site.kubectl(&["-n", "depot", "delete", "lbp/made", "service/other"])?;
    site.until("the Service that was made goes with its policy", || {
        let left = site.kubectl(&["-n", "depot", "get", "svc", "-o", "name"])?;
        ensure!(left.trim() == "service/web", "{left}");
        Ok(Some(()))
    })
}

/// Clients of an attached Service when Baton goes.
pub fn uninstalled(site: &Site, table: &mut Table) -> Result<()> {
    let service = ["svc/web", "-n", "store"];
    println!("{}", site.baton(&[&["attach"][..], &service].concat())?);
    let address = site.field("store", "service/web", ".spec.clusterIP")?;
    row(site, table, "attached: helm uninstall", &address, 25, || {
        site.helm("uninstall", &["--wait"]).map(drop)
    })?;
    // The policy, and the Service of its Pods.
    println!("{}", site.baton(&[&["detach"][..], &service].concat())?);
    Ok(())
}

/// Both kinds of clients, while something is done.
fn row(
    site: &Site,
    table: &mut Table,
    what: &str,
    address: &str,
    seconds: u32,
    act: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let short = Load::short(site, address, seconds + 5)?;
    table.row(site, what, address, seconds, act)?;
    let opened = short.end().context("new connections")?;
    println!("{what}, a new connection for each request: {opened:?}");
    ensure!(opened.errors() == 0 && opened.slow == 0, "{what}: {opened:?} of new connections");
    Ok(())
}

fn leads_to(site: &Site, namespace: &str, policy: &str, to: &str) -> Result<()> {
    let policy = format!("lbp/{policy}");
    site.until(&format!("{namespace}'s Service leads to {to}"), || {
        let leads = site.field(namespace, &policy, ".status.frontend.leadsTo")?;
        Ok((leads == to).then_some(()))
    })
}

/// Servers of both applications log the client's own address, and on connections that move too.
fn restored(site: &Site, table: &mut Table, address: &str) -> Result<()> {
    let restore = r#"{"spec":{"clientAddress":"Restore"}}"#;
    row(site, table, "attached: servers see their clients from now on", address, 25, || {
        for namespace in SPACES {
            let patch = ["patch", "lbp/web", "--type", "merge", "-p", restore];
            site.kubectl(&[&["-n", namespace][..], &patch].concat())?;
        }
        site.kubectl(&["-n", "store", "rollout", "restart", "deployment/web"])?;
        site.rolled_out("store", "deployment/web")
    })?;
    let client = site.field(SHOP, "pod/client", ".status.podIP")?;
    let at = site.field(SHOP, "pod/client", ".spec.nodeName")?;
    let mut nodes = [0_usize; 2];
    for namespace in SPACES {
        let address = site.field(namespace, "service/web", ".spec.clusterIP")?;
        let wrk = format!("wrk -t1 -c8 -d1s http://{address}/peer");
        let pods = site.placed(namespace, "app=web")?;
        // A Pod that is slow for a moment, on a busy machine, is given nothing.
        site.until(&format!("each Pod of {namespace} served"), || {
            let said = site.kubectl(&["-n", SHOP, "exec", "client", "--", "sh", "-c", &wrk])?;
            println!("{said}");
            let mut silent = 0;
            for (pod, node) in &pods {
                let log = site.kubectl(&["-n", namespace, "logs", pod])?;
                let seen: Vec<&str> = log.lines().filter(|line| !line.contains('/')).collect();
                println!("{pod} of {namespace} on {node}: {} requests", seen.len());
                let other = seen.iter().find(|line| line.split(' ').next() != Some(&*client));
                ensure!(other.is_none(), "{pod} saw {other:?}, not {client}");
                silent += usize::from(seen.is_empty());
            }
            Ok((silent == 0).then_some(()))
        })?;
        for (_, node) in pods {
            nodes[usize::from(node == at)] += 1;
        }
    }
    ensure!(nodes[0] > 0 && nodes[1] > 0, "Pods on other nodes and the client's: {nodes:?}");
    Ok(())
}

/// A Service that a policy makes serves, and says where.
fn made(site: &Site, table: &mut Table) -> Result<()> {
    site.apply(MADE)?;
    leads_to(site, "depot", "made", "Dataplanes")?;
    let address = site.field("depot", "service/made", ".spec.clusterIP")?;
    site.until("the status says where clients connect", || {
        let said = site.field("depot", "lbp/made", ".status.addresses[0]")?;
        Ok((said == format!("{address}:80")).then_some(()))
    })?;
    // What is sent to a Service before a node's kube-proxy knows it is remembered there as leading
    // nowhere, and so is what is sent again.
    for port in [80, 81] {
        let url = format!("http://{address}:{port}/");
        let curl = ["curl", "-sf", "--max-time", "1", "-o", "/dev/null", &url];
        let ask = [&["-n", SHOP, "exec", "client", "--"][..], &curl].concat();
        site.until("the Service answers", || {
            site.kubectl(&ask)?;
            Ok(Some(()))
        })?;
    }
    row(site, table, "a Service that a policy makes", &address, 8, || Ok(()))
}

/// Without a dataplane new connections go to the pods, and through Baton again when one is there.
fn fails_open(site: &Site, workload: &str, table: &mut Table, address: &str) -> Result<()> {
    let scale = |replicas: &str| {
        let replicas = format!("--replicas={replicas}");
        site.kubectl(&["-n", NAMESPACE, "scale", workload, &replicas])
    };
    row(site, table, "no dataplane: new connections go to the Pods", address, 40, || {
        scale("0")?;
        leads_to(site, "store", "web", "Pods")?;
        scale("2")?;
        site.rolled_out(NAMESPACE, workload)?;
        leads_to(site, "store", "web", "Dataplanes")
    })
}
