//! How connections move to Pods by the node that they run on: kernel, system, container runtime.
//! Pure. Knows no Pods.

use super::report::{Group, Method};
use crate::facts::{KERNEL_MIN, Node};
use k8s_openapi::api::core::v1::{Node as CoreNode, NodeSystemInfo};
use std::collections::BTreeMap;

/// Container runtimes that host-shim finds Pods of.
const RUNTIMES: [&str; 2] = ["containerd", "cri-o"];

fn info(node: &CoreNode) -> NodeSystemInfo {
    let status = node.status.as_ref();
    status.and_then(|status| status.node_info.clone()).unwrap_or_default()
}

/// Whether it runs Linux.
pub fn is_linux(node: &CoreNode) -> bool {
    matches!(info(node).operating_system.as_str(), "linux" | "")
}

/// The runtime's name of `containerd://2.0.2`.
pub fn runtime(version: &str) -> &str {
    version.split_once("://").map_or(version, |(name, _)| name)
}

/// How connections move to Pods of a node, as far as the node tells it.
pub fn method(node: &CoreNode) -> Method {
    let info = info(node);
    let runtime = runtime(&info.container_runtime_version);
    let facts = Node::from(node.clone());
    if info.kernel_version.is_empty() {
        Method::Unknown("its node says nothing of itself".to_owned())
    } else if !is_linux(node) {
        Method::Translation(format!("not on Linux ({})", info.operating_system))
    } else if facts.is_too_old() {
        let (major, minor) = KERNEL_MIN;
        Method::Translation(format!("Linux before {major}.{minor}"))
    } else if !RUNTIMES.contains(&runtime) {
        Method::Translation(format!("container runtime {runtime}"))
    } else {
        Method::Adoption
    }
}

/// Nodes that are alike, the largest group first.
pub fn groups(nodes: &[CoreNode]) -> Vec<Group> {
    let mut groups: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for node in nodes {
        let info = info(node);
        let key = (
            method(node),
            info.os_image,
            info.architecture,
            info.kernel_version,
            info.container_runtime_version,
        );
        let name = node.metadata.name.clone().unwrap_or_default();
        groups.entry(key).or_default().push(name);
    }
    let mut groups: Vec<Group> = groups
        .into_iter()
        .map(|((method, os, architecture, kernel, runtime), mut nodes)| {
            nodes.sort_unstable();
            Group {
                nodes,
                os,
                architecture,
                kernel,
                runtime,
                method: method.word(),
                reason: method.reason().map(str::to_owned),
            }
        })
        .collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.nodes.len()));
    groups
}
