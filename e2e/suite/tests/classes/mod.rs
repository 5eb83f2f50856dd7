//! A second class of dataplanes from the same release: the policy that chooses it is served by its
//! Pods and by no others, and clients of the first class do not notice.

use crate::{Table, states};
use anyhow::{Context, Result, ensure};
use baton_e2e::{
    Site,
    site::{NAMESPACE, SHOP},
};
use serde_json::Value;
use std::collections::BTreeSet;

/// In Pods of their own, whatever the first class is.
const VALUES: &str = "dataplaneClasses.internal.kind=Deployment,dataplaneClasses.internal.interface=eth0,\
                      dataplaneClasses.internal.replicas=1,dataplaneClasses.internal.class.labels.tier=internal,\
                      dataplaneClasses.internal.service.type=ClusterIP";

/// For the Pods of the Service `web`, whose policy is of the first class, and at the same port.
const POLICY: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: inside, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: baton.dev/v1alpha1
kind: LoadBalancerPolicy
metadata: {name: inside, namespace: shop}
spec:
  dataplaneSelector: {matchLabels: {tier: internal}}
  targetRefs: [{kind: Service, name: inside}]
  listeners: [{name: http, port: 8080, servicePort: http}]
  protocol: HTTP1
"#;

/// Adds the class and a policy of it; `helm uninstall` takes the class.
pub fn second(site: &Site, first: &str, table: &mut Table) -> Result<()> {
    table.row(site, "a second class is added", first, 30, || {
        let upgrade = ["--reuse-values", "--set", VALUES, "--wait"];
        site.helm("upgrade", &upgrade)?;
        site.apply(POLICY)?;
        site.kubectl(&[
            "-n",
            SHOP,
            "wait",
            "--for=condition=Ready",
            "lbp/inside",
            "--timeout=60s",
        ])?;
        Ok(())
    })?;
    let own = site.field(NAMESPACE, "service/baton-internal", ".spec.clusterIP")?;
    let seen = table.row(site, "clients of the second class", &own, 8, || Ok(()))?;
    println!("{}", site.kubectl(&["get", "bdp"])?);
    println!("{}", site.helm("test", &[])?);
    for (class, policy) in [("default", "web"), ("internal", "inside")] {
        let states = states(site, &format!("baton.dev/class={class}"))?;
        ensure!(!states.is_empty(), "no dataplane of {class} answers");
        let served: BTreeSet<&str> = states
            .iter()
            .flat_map(policies)
            .filter_map(|policy| policy["name"].as_str())
            .filter(|name| name.starts_with("shop/"))
            .collect();
        let expected = format!("shop/{policy}/http");
        ensure!(
            served == BTreeSet::from([expected.as_str()]),
            "dataplanes of {class} serve {served:?}"
        );
    }
    let states = states(site, "baton.dev/class=internal")?;
    let flows = states.iter().flat_map(policies);
    let flows: u64 = flows.filter_map(|policy| policy["flowsTotal"].as_u64()).sum();
    ensure!(seen.requests > 0 && flows >= 64, "{flows} connections: {seen:?}");
    let asked = site.baton(&["status", "-o", "json"]);
    let asked = asked.context("kubectl baton status")?;
    ensure!(asked.contains("baton-lb-dataplane-internal-"), "{asked}");
    Ok(())
}

fn policies(state: &Value) -> impl Iterator<Item = &Value> {
    state["policies"].as_array().into_iter().flatten()
}
