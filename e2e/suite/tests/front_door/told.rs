//! Pods that want to be told who their clients are, by a PROXY header, behind a Service that a
//! policy makes: who is let in, which dataplanes clients come to, and what the servers then log.

use super::{leads_to, row};
use crate::{Table, state};
use anyhow::{Context, Result, bail, ensure};
use baton_e2e::{
    Site,
    site::{NAMESPACE, SHOP},
};
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

const ZONE: &str = "topology.kubernetes.io/zone";

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
    near(site, &address)?;
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

/// Each node is a zone, and the Service's clients are to stay in theirs.
fn near(site: &Site, address: &str) -> Result<()> {
    let nodes = site.kubectl(&["get", "nodes", "-o", "name"])?;
    for node in nodes.lines() {
        let name = node.strip_prefix("node/").unwrap_or(node);
        site.kubectl(&["label", node, &format!("{ZONE}=of-{name}")])?;
    }
    let near = r#"{"spec":{"trafficDistribution":"PreferClose"}}"#;
    let patch = ["patch", "service/told", "--type", "merge", "-p", near];
    site.kubectl(&[&["-n", "depot"][..], &patch].concat())?;
    let at = site.field(SHOP, "pod/client", ".spec.nodeName")?;
    let wrk = format!("wrk -t1 -c64 -d1s http://{address}/");
    site.until("clients come to the dataplane of their zone", || {
        let before = opened(site)?;
        site.kubectl(&["-n", SHOP, "exec", "client", "--", "sh", "-c", &wrk])?;
        let mut opened = opened(site)?;
        for (node, count) in &mut opened {
            *count = count.saturating_sub(before.get(node).copied().unwrap_or(0));
        }
        let here = opened.remove(&at).unwrap_or(0);
        println!("connections opened by the client of {at}: {here} there, {opened:?} elsewhere");
        ensure!(!opened.is_empty(), "no dataplane is elsewhere");
        Ok((here >= 64 && opened.values().all(|count| *count == 0)).then_some(()))
    })?;
    for node in nodes.lines() {
        site.kubectl(&["label", node, &format!("{ZONE}-")])?;
    }
    Ok(())
}

/// The policy's connections so far, by the node of the dataplane that took them.
fn opened(site: &Site) -> Result<BTreeMap<String, u64>> {
    let mut opened = BTreeMap::new();
    for (pod, node) in site.placed(NAMESPACE, "app.kubernetes.io/component=lb-dataplane")? {
        let state = state(site, &pod)?;
        let policies = state.iter().flat_map(|state| state["policies"].as_array());
        let told = policies
            .flatten()
            .find(|policy| policy["name"] == "depot/told/http");
        let flows = told.and_then(|policy| policy["flowsTotal"].as_u64());
        *opened.entry(node).or_default() += flows.unwrap_or(0);
    }
    Ok(opened)
}
