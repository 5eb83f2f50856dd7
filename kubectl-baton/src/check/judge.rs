//! Whether Baton can be installed, and what is worth knowing before: a pure function of what was
//! seen.
//!
//! A problem forbids it, so that `check` ends with 1; a note does not. Notes say what
//! docs/install.md and docs/limits.md say, and of what nobody tried that nobody did.

use super::{
    Scene,
    network::{self, MODES_TRIED, NETWORKS_TRIED, NOT_KNOWN},
    nodes,
    report::{Finding, Group, OneService, Overview, Report},
    services::{self, UNKNOWN_PROTOCOL},
};
use crate::{ask::INSTALL, facts::numbers};

/// The oldest Kubernetes, as the chart has it.
pub const KUBERNETES_MIN: (u32, u32) = (1, 31);
/// What connections have that move by translation.
const TRANSLATION: &str =
    "connections move to Pods there by translation, one round trip to the Pod longer";

/// What the scene means.
pub fn judge(scene: &Scene) -> Report {
    let mut report = Report {
        unseen: scene.unseen.clone(),
        cluster: Overview {
            kubernetes: kubernetes(scene.version.as_deref()),
            network: network::network(scene),
            kube_proxy: network::kube_proxy(scene),
            mesh: network::mesh(scene),
        },
        nodes: nodes::groups(scene.nodes.as_deref().unwrap_or_default()),
        services: services::services(scene),
        ..Report::default()
    };
    version(scene, &mut report);
    of_nodes(scene, &mut report);
    of_network(scene, &mut report);
    of_services(scene, &mut report);
    report.installable = report.problems.is_empty();
    if report.installable {
        report.next = Some(next(&report.services));
    }
    report
}

fn kubernetes(version: Option<&str>) -> Finding {
    let (major, minor) = KUBERNETES_MIN;
    Finding {
        found: version.unwrap_or(NOT_KNOWN).to_owned(),
        how: format!("{major}.{minor} or newer is needed; tried: 1.36"),
    }
}

fn version(scene: &Scene, report: &mut Report) {
    let Some(version) = &scene.version else {
        return;
    };
    let (major, minor) = KUBERNETES_MIN;
    match numbers(version.trim_start_matches('v')) {
        Some(numbers) if numbers < KUBERNETES_MIN => report.problems.push(format!(
            "Kubernetes is {version}: Baton needs {major}.{minor} or newer"
        )),
        Some(_) => {}
        None => report.unseen.push(format!(
            "the API server's version `{version}` is not understood: Baton needs {major}.{minor} or newer"
        )),
    }
}

/// `node-1`, or `node-1 and 2 more`.
fn named(group: &Group) -> String {
    let first = group.nodes.first().map_or("", String::as_str);
    match group.nodes.len() {
        0 | 1 => first.to_owned(),
        all => format!("{first} and {} more", all - 1),
    }
}

fn of_nodes(scene: &Scene, report: &mut Report) {
    let Some(all) = &scene.nodes else {
        return;
    };
    if !all.iter().any(nodes::is_linux) {
        let what = match all.is_empty() {
            true => "the cluster has no node",
            false => "no node runs Linux",
        };
        report.problems.push(format!("{what}: Baton's Pods need nodes with Linux"));
        return;
    }
    for group in &report.nodes {
        if let Some(reason) = &group.reason {
            let what = match reason.starts_with("Linux before") {
                true => format!("Linux {} on {}", group.kernel, named(group)),
                false => format!("{reason} on {}", named(group)),
            };
            report.notes.push(format!("{what}: {TRANSLATION}"));
        }
    }
    if report.nodes.iter().all(|group| group.reason.is_some()) {
        report.notes.push(
            "no node has Pods that adopt connections: Linux 6.9 or newer with containerd or CRI-O does"
                .to_owned(),
        );
    }
}

fn of_network(scene: &Scene, report: &mut Report) {
    let found = network::networks(scene);
    let untried: Vec<&str> =
        found.keys().copied().filter(|name| !NETWORKS_TRIED.contains(name)).collect();
    if !untried.is_empty() {
        report.notes.push(format!(
            "Baton was not tried with {}. Where a packet filter drops what had no SYN, adoptions meet silence and connections \
             move by translation",
            untried.join(", ")
        ));
    }
    let mode = report.cluster.kube_proxy.found.as_str();
    if mode != NOT_KNOWN && !MODES_TRIED.contains(&mode) {
        report.notes.push(match mode.strip_prefix("none, ") {
            Some(why) => format!("there is no kube-proxy ({why}): Baton was not tried without it"),
            None => format!(
                "Baton was not tried with kube-proxy in mode {mode}, but with {}",
                MODES_TRIED.join(" and ")
            ),
        });
    }
    let mesh = &report.cluster.mesh;
    if !matches!(mesh.found.as_str(), "none" | NOT_KNOWN) {
        report.notes.push(format!(
            "{}: to Pods whose packet rules redirect connections these move by translation; the mesh and NetworkPolicies see the \
             dataplane's address (`allowFrom` of a policy says who may connect)",
            mesh.found
        ));
    }
}

fn of_services(scene: &Scene, report: &mut Report) {
    let mut ports = report.services.iter().flat_map(|one| &one.ports);
    if ports.any(|port| port.stays == Some(UNKNOWN_PROTOCOL)) {
        report.notes.push(format!(
            "{UNKNOWN_PROTOCOL}: connections move if `kubectl baton attach --protocol` names what the Pods speak, and it is one of \
             those in docs/concepts.md"
        ));
    }
    if scene.services.is_some() && report.services.is_empty() {
        report.notes.push(match &scene.namespace {
            Some(namespace) => {
                format!(
                    "there is no Service in namespace {namespace}: `-A` looks at all namespaces"
                )
            }
            None => "there is no Service".to_owned(),
        });
    }
}

/// What to do next, with a Service whose connections move if there is one.
fn next(services: &[OneService]) -> String {
    let has_pods = |one: &OneService| one.pods.as_ref().is_none_or(|pods| pods.total() > 0);
    let moves = |one: &&OneService| one.moves() && one.kept_by.is_none();
    let chosen = services.iter().filter(moves).find(|one| has_pods(one));
    let attach = match chosen {
        Some(one) => format!("svc/{} -n {}", one.name, one.namespace),
        None => "svc/NAME -n NAMESPACE".to_owned(),
    };
    format!("{INSTALL}, then `kubectl baton attach {attach}`")
}

/// Why Pods of a Service do not adopt, and who keeps it.
pub fn remarks(one: &OneService) -> Vec<String> {
    let (namespace, name) = (&one.namespace, &one.name);
    let mut remarks = Vec::new();
    if let Some(pods) = one.pods.as_ref().filter(|pods| !pods.reasons.is_empty()) {
        let reasons = pods.reasons.iter();
        let reasons: Vec<String> =
            reasons.map(|(reason, pods)| format!("{pods} {reason}")).collect();
        remarks.push(format!("{namespace}/{name}: not by adoption: {}", reasons.join(", ")));
    }
    if let Some(who) = one.kept_by {
        remarks.push(format!(
            "{namespace}/{name} is kept by {who}: commit what `kubectl baton attach svc/{name} -n {namespace} --dry-run -o yaml` \
             prints"
        ));
    }
    remarks
}
