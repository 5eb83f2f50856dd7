//! Which network a cluster has: its CNI plugins, how nodes lead connections to Services, and its
//! service meshes. Pure.
//!
//! Owns by what they are recognised. Says nothing of how well they go with Baton but whether that
//! was tried (docs/install.md).

use super::{CILIUM, SYSTEM, Scene, is_cilium, report::Finding};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Namespace, Node, Pod, PodSpec},
};
use std::collections::{BTreeMap, BTreeSet};

/// What is said of what may not be looked at.
pub const NOT_KNOWN: &str = "not known";
/// What is said of a CNI plugin without a mark.
pub const NOT_RECOGNISED: &str = "not recognised";
/// CNI plugins by a name, label or image of their DaemonSets. The first that fits is it: Canal has
/// images of two others.
const NETWORKS: &[(&str, &[&str])] = &[
    ("Canal", &["canal", "rke2-canal"]),
    ("kindnet", &["kindnet", "kindnetd"]),
    ("flannel", &["flannel", "kube-flannel", "kube-flannel-ds"]),
    ("Calico", &["calico-node"]),
    ("Cilium", &["cilium"]),
    ("GKE Dataplane V2", &["anetd"]),
    ("GKE", &["netd"]),
    ("Amazon VPC CNI", &["aws-node", "amazon-k8s-cni"]),
    ("Azure CNI", &["azure-cni", "azure-cns"]),
    ("OVN-Kubernetes", &["ovnkube-node"]),
    ("Kube-OVN", &["kube-ovn-cni"]),
    ("Antrea", &["antrea-agent"]),
    ("Weave Net", &["weave-net"]),
    ("kube-router", &["kube-router"]),
];
/// Namespaces, besides [`SYSTEM`], into which they are installed by their own instructions.
const HOMES: [&str; 9] = [
    "calico-system",
    "cilium",
    "kube-flannel",
    "kube-ovn",
    "kube-router",
    "openshift-ovn-kubernetes",
    "openshift-sdn",
    "ovn-kubernetes",
    "tigera-operator",
];
/// Those that Baton was tried with.
pub const NETWORKS_TRIED: [&str; 2] = ["flannel", "kindnet"];
/// Modes of kube-proxy that Baton was tried with.
pub const MODES_TRIED: [&str; 2] = ["iptables", "nftables"];
/// Labels that name a program.
const NAME_LABELS: [&str; 3] = ["k8s-app", "app", "app.kubernetes.io/name"];
/// What flannel says on its nodes, also where no DaemonSet runs it (k3s).
const FLANNEL_BACKEND: &str = "flannel.alpha.coreos.com/backend-type";
/// What k3s says on its nodes: its arguments, as a list in JSON.
const K3S_ARGUMENTS: &str = "k3s.io/node-args";

fn finding(found: impl Into<String>, how: impl Into<String>) -> Finding {
    Finding { found: found.into(), how: how.into() }
}

fn pod_spec(set: &DaemonSet) -> Option<&PodSpec> {
    set.spec.as_ref()?.template.spec.as_ref()
}

fn namespace(set: &DaemonSet) -> Option<&str> {
    set.metadata.namespace.as_deref()
}

/// Whether it can be a CNI plugin's: these work in the nodes' own network, and come with the
/// cluster. Anybody may call a DaemonSet of their own as one of them.
fn may_be_the_clusters(set: &DaemonSet) -> bool {
    let Some(spec) = pod_spec(set) else {
        return false;
    };
    let class = spec.priority_class_name.as_deref().unwrap_or_default();
    let is_home = namespace(set).is_some_and(|name| HOMES.contains(&name));
    namespace(set) == Some(SYSTEM)
        || spec.host_network == Some(true) && (is_home || class.starts_with("system-"))
}

/// The last part of an image's name: `flannel` of `ghcr.io/flannel-io/flannel:v0.27`.
fn image_name(image: &str) -> &str {
    let image = image.split('@').next().unwrap_or_default();
    let name = image.rsplit('/').next().unwrap_or_default();
    name.split(':').next().unwrap_or_default()
}

/// What a DaemonSet calls itself.
fn names(set: &DaemonSet) -> BTreeSet<&str> {
    let labels = set.metadata.labels.as_ref();
    let labels = NAME_LABELS.iter().filter_map(|key| labels?.get(*key).map(String::as_str));
    let containers = pod_spec(set).into_iter().flat_map(|spec| &spec.containers);
    let images = containers.filter_map(|container| container.image.as_deref().map(image_name));
    labels.chain(set.metadata.name.as_deref()).chain(images).collect()
}

/// The CNI plugins, by their names.
pub fn networks(scene: &Scene) -> BTreeMap<&'static str, String> {
    let mut found = BTreeMap::new();
    let sets = scene.daemon_sets.iter().flatten();
    for set in sets.filter(|set| may_be_the_clusters(set)) {
        let names = names(set);
        let is = |(_, marks): &&(&str, &[&str])| marks.iter().any(|mark| names.contains(mark));
        if let Some((network, _)) = NETWORKS.iter().find(is) {
            let metadata = &set.metadata;
            let name = metadata.name.as_deref().unwrap_or_default();
            let how = format!("DaemonSet {}/{name}", namespace(set).unwrap_or_default());
            found.entry(*network).or_insert(how);
        }
    }
    let mut nodes = scene.nodes.iter().flatten();
    if found.is_empty()
        && let Some(backend) = nodes.find_map(|node| annotation(node, FLANNEL_BACKEND))
    {
        let how = format!("annotation of nodes, backend {backend}");
        found.insert("flannel", how);
    }
    found
}

/// The CNI plugins as one finding.
pub fn network(scene: &Scene) -> Finding {
    let found = networks(scene);
    if found.is_empty() {
        return match scene.daemon_sets {
            Some(_) => finding(
                NOT_RECOGNISED,
                "no DaemonSet of one that is known; a bridge or ptp has none",
            ),
            None => finding(NOT_KNOWN, "may not list daemonsets"),
        };
    }
    let names: Vec<&str> = found.keys().copied().collect();
    let how: Vec<&str> = found.values().map(String::as_str).collect();
    finding(names.join(", "), how.join(", "))
}

fn annotation<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    let annotations = node.metadata.annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}

/// How nodes lead connections to Services.
pub fn kube_proxy(scene: &Scene) -> Finding {
    let maps = || scene.config_maps.iter().flatten();
    if let Some(map) = maps().find(|map| is_cilium(map))
        && let Some(data) = &map.data
        && let Some("true" | "strict") = data.get("kube-proxy-replacement").map(String::as_str)
    {
        return finding("none, Cilium replaces it", format!("ConfigMap {CILIUM}"));
    }
    for map in maps().filter(|map| !is_cilium(map)) {
        let name = map.metadata.name.as_deref().unwrap_or_default();
        let texts = map.data.iter().flat_map(|data| data.values());
        if let Some(mode) = texts.into_iter().find_map(|text| mode_of(text)) {
            let how = format!("ConfigMap {name}");
            return match mode {
                "" => finding("iptables", format!("{how}, no mode: the default")),
                mode => finding(mode, how),
            };
        }
    }
    let sets = scene.daemon_sets.iter().flatten();
    let sets = sets.filter(|set| namespace(set) == Some(SYSTEM));
    let sets = sets.filter(|set| names(set).contains("kube-proxy"));
    let pods = scene.proxies.iter().flatten();
    let specs = sets.filter_map(pod_spec).chain(pods.filter_map(|pod| pod.spec.as_ref()));
    if let Some(mode) = specs.into_iter().find_map(argument) {
        return finding(mode, "kube-proxy's arguments");
    }
    let mut nodes = scene.nodes.iter().flatten();
    if let Some(arguments) = nodes.find_map(|node| annotation(node, K3S_ARGUMENTS)) {
        return match argument_of(
            &serde_json::from_str::<Vec<String>>(arguments).unwrap_or_default(),
        ) {
            Some(mode) => finding(mode, "k3s's arguments, annotation of nodes"),
            None => finding(NOT_KNOWN, "k3s runs it itself; its arguments name no mode"),
        };
    }
    match (&scene.config_maps, &scene.daemon_sets) {
        (None, _) => finding(NOT_KNOWN, "may not get configmaps in kube-system"),
        (_, None) => finding(NOT_KNOWN, "may not list daemonsets"),
        _ => finding(NOT_KNOWN, "no ConfigMap and no argument of kube-proxy says it"),
    }
}

/// The mode in a configuration of kube-proxy, empty where it does not say any; none if the text is
/// no such configuration.
fn mode_of(text: &str) -> Option<&str> {
    let is_its = |line: &str| {
        line.strip_prefix("kind:").is_some_and(|kind| kind.trim() == "KubeProxyConfiguration")
    };
    text.lines().any(is_its).then_some(())?;
    let mode = text.lines().find_map(|line| line.strip_prefix("mode:"));
    Some(mode.unwrap_or_default().trim().trim_matches(['"', '\'']))
}

fn argument(spec: &PodSpec) -> Option<String> {
    spec.containers.iter().find_map(|container| {
        let words = container.command.iter().chain(&container.args).flatten();
        argument_of(&words.cloned().collect::<Vec<_>>())
    })
}

/// The mode that arguments name: `--proxy-mode=ipvs`, `--proxy-mode ipvs`, or, of k3s,
/// `--kube-proxy-arg proxy-mode=ipvs`. A program started by a shell has all of them in one.
fn argument_of(words: &[String]) -> Option<String> {
    let mut words = words.iter().flat_map(|word| word.split_whitespace());
    while let Some(word) = words.next() {
        let Some((_, rest)) = word.split_once("proxy-mode") else {
            continue;
        };
        return match rest.strip_prefix('=') {
            Some(mode) => Some(mode.trim_matches('"').to_owned()),
            None => words.next().map(str::to_owned),
        };
    }
    None
}

/// The mesh whose proxy a Pod's connections are led through.
pub fn mesh_of(pod: &Pod) -> Option<&'static str> {
    let spec = pod.spec.as_ref()?;
    let init = spec.init_containers.iter().flatten();
    let mut names = spec.containers.iter().chain(init).map(|c| c.name.as_str());
    let by_container = names.find_map(|name| match name {
        "istio-proxy" => Some("Istio"),
        "linkerd-proxy" => Some("Linkerd"),
        _ => None,
    });
    let annotations = pod.metadata.annotations.as_ref();
    let redirected = annotations.and_then(|all| all.get("ambient.istio.io/redirection"));
    let ambient = redirected.is_some_and(|value| value == "enabled");
    by_container.or(ambient.then_some("Istio ambient"))
}

/// The mesh that a namespace's Pods are put into.
fn mesh_of_namespace(namespace: &Namespace) -> Option<&'static str> {
    let metadata = &namespace.metadata;
    let label = |key: &str| metadata.labels.as_ref()?.get(key).map(String::as_str);
    let annotation = |key: &str| metadata.annotations.as_ref()?.get(key).map(String::as_str);
    if label("istio.io/dataplane-mode") == Some("ambient") {
        Some("Istio ambient")
    } else if label("istio-injection") == Some("enabled") || label("istio.io/rev").is_some() {
        Some("Istio")
    } else if annotation("linkerd.io/inject").is_some_and(|value| value != "disabled") {
        Some("Linkerd")
    } else {
        None
    }
}

/// The meshes as one finding.
pub fn mesh(scene: &Scene) -> Finding {
    let of_namespaces = scene.namespaces.iter().flatten();
    let of_namespaces: Vec<_> = of_namespaces.filter_map(mesh_of_namespace).collect();
    let of_pods: Vec<_> = scene.pods.iter().flatten().filter_map(mesh_of).collect();
    let found: BTreeSet<&str> = of_namespaces.iter().chain(&of_pods).copied().collect();
    let mut how = Vec::new();
    match &scene.namespaces {
        Some(_) => how.push(format!("namespaces marked: {}", of_namespaces.len())),
        None => how.push("may not list namespaces".to_owned()),
    }
    match &scene.pods {
        Some(all) => how.push(format!("Pods with a proxy: {} of {}", of_pods.len(), all.len())),
        None => how.push("may not list pods".to_owned()),
    }
    let unknown = scene.namespaces.is_none() || scene.pods.is_none();
    let found = match (found.is_empty(), unknown) {
        (false, _) => found.into_iter().collect::<Vec<_>>().join(", "),
        (true, true) => NOT_KNOWN.to_owned(),
        (true, false) => "none".to_owned(),
    };
    finding(found, how.join("; "))
}
