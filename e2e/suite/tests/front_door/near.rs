//! Zones: clients of a Service that wants them to stay in theirs come to the dataplane there, as
//! its EndpointSlices say it to kube-proxy.

use crate::state;
use anyhow::{Result, ensure};
use baton_e2e::{
    Site,
    site::{NAMESPACE, SHOP},
};
use std::collections::BTreeMap;

const ZONE: &str = "topology.kubernetes.io/zone";

/// Each node is a zone for a while.
pub(super) fn through(site: &Site) -> Result<()> {
    let address = site.field("depot", "service/made", ".spec.clusterIP")?;
    let nodes = site.kubectl(&["get", "nodes", "-o", "name"])?;
    for node in nodes.lines() {
        let name = node.strip_prefix("node/").unwrap_or(node);
        site.kubectl(&["label", node, &format!("{ZONE}=of-{name}")])?;
    }
    let near = r#"{"spec":{"trafficDistribution":"PreferClose"}}"#;
    let patch = ["patch", "service/made", "--type", "merge", "-p", near];
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
        let made = policies.flatten().find(|policy| policy["name"] == "depot/made/http");
        let flows = made.and_then(|policy| policy["flowsTotal"].as_u64());
        *opened.entry(node).or_default() += flows.unwrap_or(0);
    }
    Ok(opened)
}
