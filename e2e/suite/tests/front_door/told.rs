//! Pods that want to be told who their clients are, by a PROXY header, behind a Service that a
//! policy makes: who is let in, and what the servers then log.

use super::{leads_to, row};
use crate::Table;
use anyhow::{Result, bail};
use baton_e2e::{Site, site::SHOP};
use std::collections::BTreeMap;

/// Port 8081 of the nginx closes what does not begin with a header.
const MANIFESTS: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: expects, namespace: depot}
spec: {selector: {app: web}, ports: [{name: http, port: 8000, targetPort: 8081}]}
---
apiVersion: baton.dev/v1alpha1
kind: LoadBalancerPolicy
metadata: {name: told, namespace: depot}
spec:
  targetRefs: [{name: expects}]
  frontend: {service: {name: told}}
  listeners: [{name: http, port: 80, servicePort: http, protocol: HTTP1}]
  clientAddress: ProxyV2
  allowFrom:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}
"#;

/// All of it; leaves nothing behind.
pub(super) fn through(site: &Site, table: &mut Table) -> Result<()> {
    site.apply(MANIFESTS)?;
    leads_to(site, "depot", "told", "Dataplanes")?;
    let address = site.field("depot", "service/told", ".spec.clusterIP")?;
    let_in(site, table, &address)?;
    row(
        site,
        table,
        "servers that are told who their clients are: rolling restart",
        &address,
        25,
        || {
            site.kubectl(&["-n", "depot", "rollout", "restart", "deployment/web"])?;
            site.rolled_out("depot", "deployment/web")
        },
    )?;
    site.until("connections whose servers are told move", || {
        let moves = site.field("depot", "lbp/told", ".status.migrations")?;
        Ok((moves.parse().unwrap_or(0_u64) > 0).then_some(()))
    })?;
    logged(site, &address)?;
    site.kubectl(&["-n", "depot", "delete", "lbp/told", "service/expects"])?;
    Ok(())
}

/// The client's namespace is shut out, and let in again: its connections stay, it opens no more.
fn let_in(site: &Site, table: &mut Table, address: &str) -> Result<()> {
    let url = format!("http://{address}/");
    let curl = ["curl", "-sf", "--max-time", "1", "-o", "/dev/null", &url];
    let ask = [&["-n", SHOP, "exec", "client", "--"][..], &curl].concat();
    let answers = || {
        site.until("the Service answers", || {
            site.kubectl(&ask)?;
            Ok(Some(()))
        })
    };
    let only = |namespace: &str| {
        let name = format!(r#"{{"kubernetes.io/metadata.name":"{namespace}"}}"#);
        let from = format!(r#"[{{"namespaceSelector":{{"matchLabels":{name}}}}}]"#);
        let spec = format!(r#"{{"spec":{{"allowFrom":{from}}}}}"#);
        let patch = ["patch", "lbp/told", "--type", "merge", "-p", &spec];
        site.kubectl(&[&["-n", "depot"][..], &patch].concat())
    };
    answers()?;
    let what = "clients shut out and let in again: those that are there";
    table.row(site, what, address, 15, || {
        only("store")?;
        site.until("the client opens no more connections", || {
            Ok(site.kubectl(&ask).is_err().then_some(()))
        })?;
        only(SHOP)?;
        answers()
    })?;
    Ok(())
}

/// Each server logs the client's own address, as the header says it. Which of them clients come to
/// is the dataplanes' choice, so they ask until both were asked.
fn logged(site: &Site, address: &str) -> Result<()> {
    let client = site.field(SHOP, "pod/client", ".status.podIP")?;
    let wrk = format!("wrk -t1 -c8 -d1s http://{address}/peer");
    site.until("each server was told who its clients are", || {
        site.kubectl(&["-n", SHOP, "exec", "client", "--", "sh", "-c", &wrk])?;
        let mut counts = BTreeMap::new();
        for (pod, _) in site.placed("depot", "app=web")? {
            let log = site.kubectl(&["-n", "depot", "logs", &pod])?;
            let told = log.lines().filter_map(|line| line.strip_prefix("told "));
            let (own, others): (Vec<_>, Vec<_>) = told.partition(|seen| *seen == client);
            if let Some(other) = others.first() {
                bail!("{pod} was told {other}, not {client}");
            }
            counts.insert(pod, own.len());
        }
        println!("requests of {client} by its own address: {counts:?}");
        Ok(counts.values().all(|count| *count > 0).then_some(()))
    })
}
