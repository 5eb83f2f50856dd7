//! What `status` says of nodes: which of them let their Pods adopt connections. Pure.

use super::{
    Scene,
    report::{OneNode, Report, named},
};
use crate::{ask::part, facts::Pod};
use baton_cli::count;
use baton_crds::{LoadBalancerPolicySpec, MoveMethod};
use std::collections::{BTreeMap, BTreeSet};

/// Whether connections to a port of it move by adoption or not at all.
fn adopts_only(spec: &LoadBalancerPolicySpec) -> bool {
    let mut listeners = spec.listeners.iter().map(|one| spec.of(one));
    listeners.any(|spec| spec.migration.method == MoveMethod::Adoption)
}

/// What follows where Pods do not adopt: a note, or a problem for policies that want nothing else.
fn no_adoption(report: &mut Report, only: bool, what: &str, to: &str, more: &str) {
    if only {
        let fate = "connections of policies with `migration.method: Adoption` do not move";
        report.problems.push(format!("{what}: {fate} to {to}{more}"));
    } else {
        let fate = format!("connections move to {to} by translation");
        report.notes.push(format!("{what}: {fate}{more}"));
    }
}

/// Judges.
pub fn judge(scene: &Scene, report: &mut Report) {
    // Nodes with Pods of policies that want adoption only.
    let mut only: BTreeSet<&str> = BTreeSet::new();
    let mut backends: BTreeMap<&str, BTreeSet<std::net::IpAddr>> = BTreeMap::new();
    for policy in &scene.policies {
        let namespace = policy.metadata.namespace.clone().unwrap_or_default();
        let key = (namespace, policy.spec.service().unwrap_or_default().to_owned());
        for (address, node) in scene.places.get(&key).into_iter().flatten() {
            if let Some(node) = node {
                backends.entry(node).or_default().insert(*address);
                only.extend(adopts_only(&policy.spec).then_some(node.as_str()));
            }
        }
    }
    let on = |pod: &Pod, name: &str| pod.node.as_deref() == Some(name);
    let mut lacking: [Vec<&str>; 2] = Default::default();
    let mut why: Option<&str> = None;
    for node in &scene.nodes {
        let mut shims = scene.shims.iter().filter(|pod| on(pod, &node.name)).peekable();
        let shim = match (shims.peek().is_some(), shims.any(|pod| pod.ready)) {
            (_, true) => "ready",
            (true, false) => "not ready",
            (false, false) => "none",
        };
        let here = backends.get(node.name.as_str()).map_or(0, BTreeSet::len);
        let dataplanes = scene.fleet.dataplanes.iter().filter(|d| on(&d.pod, &node.name)).count();
        if here == 0 && dataplanes == 0 && shim == "none" {
            continue;
        }
        if here > 0 && shim != "ready" && !scene.shims.is_empty() {
            lacking[usize::from(only.contains(&*node.name))].push(&node.name);
            let told = scene
                .shims
                .iter()
                .filter(|pod| on(pod, &node.name))
                .find_map(|pod| pod.why.as_deref());
            why = why.or(told);
        }
        if here > 0 && node.is_too_old() {
            no_adoption(
                report,
                only.contains(&*node.name),
                &format!("node {} has Linux {}", node.name, node.kernel),
                &format!("its {}", count(here as u64, "Pod")),
                " (adoption needs 6.9 or newer)",
            );
        }
        report.nodes.push(OneNode { node: node.clone(), shim, backends: here, dataplanes });
    }
    for (only, nodes) in [false, true].into_iter().zip(lacking) {
        if !nodes.is_empty() {
            let why = why.unwrap_or("there is no Pod of it");
            no_adoption(
                report,
                only,
                &format!("no host-shim is ready on {} ({why})", named(nodes)),
                "the Pods there",
                &format!(": `kubectl get pods -A -l {}`", part("host-shim")),
            );
        }
    }
    let without = !backends.is_empty() && scene.shims.is_empty() && !scene.operators.is_empty();
    if without {
        let what = "there is no host-shim at all";
        no_adoption(report, !only.is_empty(), what, "Pods", " (`shim.enabled`)");
    }
}
