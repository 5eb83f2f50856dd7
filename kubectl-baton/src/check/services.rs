//! What moves at each Service, and how: its Pods by method, what its ports speak, and what `attach`
//! says of it. Pure.

use super::{
    Scene,
    network::mesh_of,
    nodes,
    report::{Method, OnePort, OneService, Pods},
};
use crate::attach::service;
use k8s_openapi::api::core::v1::{Pod, Service, ServicePort};
use std::collections::BTreeMap;

/// What a policy has whose connections stay.
const NO_PROTOCOL: &str = "None";
/// Why they stay where the ports say nothing.
pub const UNKNOWN_PROTOCOL: &str = "protocol not known";
/// Runtime classes whose Pods have a network stack or kernel of their own, by a part of the name.
const SANDBOXES: [(&str, &str); 3] = [("gvisor", "gVisor"), ("runsc", "gVisor"), ("kata", "Kata")];

/// Pods by namespace, each with how connections move to it.
type PodsOf<'a> = BTreeMap<&'a str, Vec<(&'a Pod, Method)>>;

/// The rows, by namespace and name.
pub fn services(scene: &Scene) -> Vec<OneService> {
    let pods = scene.pods.as_ref().map(|pods| by_namespace(pods, scene));
    let services = scene.services.iter().flatten();
    let mut rows: Vec<OneService> = services.map(|one| row(one, pods.as_ref())).collect();
    rows.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    rows
}

fn by_namespace<'a>(pods: &'a [Pod], scene: &'a Scene) -> PodsOf<'a> {
    let by_node: Option<BTreeMap<&str, Method>> = scene.nodes.as_ref().map(|all| {
        let named = all
            .iter()
            .filter_map(|node| Some((node.metadata.name.as_deref()?, nodes::method(node))));
        named.collect()
    });
    let mut of = PodsOf::new();
    for pod in pods.iter().filter(|pod| !has_ended(pod)) {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let method = method(pod, by_node.as_ref());
        of.entry(namespace).or_default().push((pod, method));
    }
    of
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// How connections move to a Pod.
fn method(pod: &Pod, nodes: Option<&BTreeMap<&str, Method>>) -> Method {
    let Some(spec) = &pod.spec else {
        return Method::Unknown("nothing is said of it".to_owned());
    };
    let class = spec.runtime_class_name.as_deref().unwrap_or_default();
    let class = class.to_ascii_lowercase();
    let sandbox = SANDBOXES.iter().find(|(part, _)| class.contains(part));
    let own = match (spec.host_network, sandbox, mesh_of(pod)) {
        (Some(true), ..) => Some("hostNetwork"),
        (_, Some((_, sandbox)), _) => Some(*sandbox),
        (_, None, mesh) => mesh,
    };
    if let Some(reason) = own {
        return Method::Translation(reason.to_owned());
    }
    let (Some(nodes), Some(node)) = (nodes, &spec.node_name) else {
        let reason = match nodes {
            None => "may not list nodes",
            Some(_) => "on no node yet",
        };
        return Method::Unknown(reason.to_owned());
    };
    let unknown = || Method::Unknown("node not seen".to_owned());
    nodes.get(node.as_str()).cloned().unwrap_or_else(unknown)
}

fn row(service: &Service, pods: Option<&PodsOf<'_>>) -> OneService {
    let metadata = &service.metadata;
    let namespace = metadata.namespace.clone().unwrap_or_default();
    let refusal = service::refusal(service);
    let selector = service.spec.as_ref().and_then(|s| s.selector.as_ref());
    let selects = selector.is_some_and(|selector| !selector.is_empty());
    let of = pods.filter(|_| selects).map(|of| of.get(&*namespace));
    OneService {
        ports: service::ports(service)
            .iter()
            .map(|port| one_port(port, refusal.is_some()))
            .collect(),
        kept_by: service::kept_by(service).filter(|_| refusal.is_none()),
        refused: refusal.map(|refusal| refusal.word().to_owned()),
        pods: of.map(|of| counted(service, of.map_or(&[], Vec::as_slice))),
        name: metadata.name.clone().unwrap_or_default(),
        namespace,
    }
}

fn one_port(port: &ServicePort, refused: bool) -> OnePort {
    let protocol = service::protocol(port);
    let stays = service::unmovable(port).unwrap_or(UNKNOWN_PROTOCOL);
    OnePort {
        port: port.port,
        protocol: (!refused).then(|| protocol.unwrap_or(NO_PROTOCOL)),
        stays: (!refused && protocol.is_none()).then_some(stays),
    }
}

/// The Pods of these that a Service selects.
fn counted(service: &Service, pods: &[(&Pod, Method)]) -> Pods {
    let mut counts = Pods::default();
    let spec = service.spec.as_ref();
    let Some(selector) = spec.and_then(|spec| spec.selector.as_ref()) else {
        return counts;
    };
    let is_selected = |pod: &Pod| {
        let labels = pod.metadata.labels.as_ref();
        let has = |(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value);
        selector.iter().all(has)
    };
    for (_, method) in pods.iter().filter(|(pod, _)| is_selected(pod)) {
        *match method {
            Method::Adoption => &mut counts.adoption,
            Method::Translation(_) => &mut counts.translation,
            Method::Unknown(_) => &mut counts.unknown,
        } += 1;
        if let Some(reason) = method.reason() {
            *counts.reasons.entry(reason.to_owned()).or_default() += 1;
        }
    }
    counts
}
