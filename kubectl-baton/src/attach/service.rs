//! What a Service says of itself: whether Baton can come behind it, who keeps it, and what its
//! ports speak. Pure.
//!
//! Owns the refusals that need nothing but the Service, for `attach` and for `check`, which says
//! them before Baton is there. Changes nothing and asks nobody.

use baton_api::{AppProtocol, POLICY_LABEL, Protocol};
use k8s_openapi::api::core::v1::{Service, ServicePort};
use std::collections::BTreeMap;

/// Label of a Service that `attach` made: whose pods it has.
pub const PODS_OF_LABEL: &str = "baton.dev/pods-of";
/// Listeners of one policy.
const PORTS_MAX: usize = 16;
/// Who writes objects on behalf of a repository, by the name of its field manager.
const CONTROLLERS: &[(&str, &str)] = &[
    ("argocd", "Argo CD"),
    ("kustomize-controller", "Flux"),
    ("helm-controller", "Flux"),
    ("fleetagent", "Fleet"),
    ("configsync", "Config Sync"),
];
/// The same, by labels and annotations.
const MARKS: &[(&str, &str)] = &[
    ("argocd.argoproj.io/tracking-id", "Argo CD"),
    ("argocd.argoproj.io/instance", "Argo CD"),
    ("kustomize.toolkit.fluxcd.io/name", "Flux"),
    ("helm.toolkit.fluxcd.io/name", "Flux"),
];

/// Why Baton does not come behind a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A name outside of the cluster.
    ExternalName,
    /// It leads to this policy already.
    Attached(String),
    /// It was made by `attach`, for the Pods of this Service.
    PodsOf(String),
    /// Of Kubernetes itself, where the operator's admission policy lets it write nothing: this is
    /// its namespace.
    System(String),
    /// Somebody else says where it leads.
    NoSelector,
    /// Clients connect to the Pods' own addresses.
    Headless,
    /// Clients are led to Pods of their own node.
    OwnNode,
    /// A port that is not TCP: its number and protocol.
    NotTcp(i32, String),
    /// None, or more than a policy has listeners.
    Ports(usize),
}

impl Refusal {
    /// In a word.
    pub fn word(&self) -> &str {
        match self {
            Self::ExternalName => "ExternalName",
            Self::Attached(_) => "attached already",
            Self::PodsOf(_) => "Baton's own",
            Self::System(_) => "Kubernetes's own",
            Self::NoSelector => "no selector",
            Self::Headless => "headless",
            Self::OwnNode => "own node only",
            Self::NotTcp(_, protocol) => protocol,
            Self::Ports(0) => "no ports",
            Self::Ports(_) => "too many ports",
        }
    }

    /// In a sentence, for the Service of this name.
    pub fn sentence(&self, name: &str) -> String {
        match self {
            Self::ExternalName => format!(
                "Service {name} is of type ExternalName: it has no pods, only a name outside of the cluster"
            ),
            Self::Attached(policy) => format!(
                "Service {name} leads to policy {policy} already: `kubectl baton detach svc/{name}` undoes that"
            ),
            Self::PodsOf(of) => format!(
                "Service {name} has the pods behind Service {of}, which is attached: clients use {of}"
            ),
            Self::System(namespace) => format!(
                "Service {name} is in {namespace}, a namespace of Kubernetes itself: the operator may write nothing there \
                 (`operator/rbac/frontends.yaml`)"
            ),
            Self::NoSelector => format!(
                "Service {name} has no selector: somebody else says where it leads, and Baton would not know its pods"
            ),
            Self::Headless => format!(
                "Service {name} is headless: its clients connect to the addresses of pods, at the pods' ports, and dataplanes \
                 serve it at other ones; give the pods a second Service, with an address"
            ),
            Self::OwnNode => format!(
                "Service {name} leads clients in the cluster to their own node only (internalTrafficPolicy: Local): on nodes \
                 without a dataplane they would reach nobody, and a dataplane leads to the pods of all nodes; have it say Cluster"
            ),
            Self::NotTcp(port, protocol) => format!(
                "port {port} of Service {name} is {protocol}: Baton balances TCP only, and a Service leads all its ports to the \
                 same place; give the port a Service of its own"
            ),
            Self::Ports(count) => {
                format!("Service {name} has {count} ports: expected 1 to {PORTS_MAX}")
            }
        }
    }
}

/// A label of it.
pub fn label<'a>(service: &'a Service, name: &str) -> Option<&'a str> {
    let labels = service.metadata.labels.as_ref()?;
    labels.get(name).map(String::as_str)
}

/// Its ports.
pub fn ports(service: &Service) -> &[ServicePort] {
    let spec = service.spec.as_ref();
    spec.and_then(|spec| spec.ports.as_deref()).unwrap_or_default()
}

/// Why Baton does not come behind it, whatever its ports speak.
pub fn refusal(service: &Service) -> Option<Refusal> {
    let spec = service.spec.as_ref();
    if spec.and_then(|spec| spec.type_.as_deref()) == Some("ExternalName") {
        return Some(Refusal::ExternalName);
    }
    if let Some(policy) = label(service, POLICY_LABEL) {
        return Some(Refusal::Attached(policy.to_owned()));
    }
    if let Some(of) = label(service, PODS_OF_LABEL) {
        return Some(Refusal::PodsOf(of.to_owned()));
    }
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    if namespace.starts_with("kube-") {
        return Some(Refusal::System(namespace.to_owned()));
    }
    let selector = spec.and_then(|spec| spec.selector.as_ref());
    if selector.is_none_or(BTreeMap::is_empty) {
        return Some(Refusal::NoSelector);
    }
    if spec.and_then(|spec| spec.cluster_ip.as_deref()) == Some("None") {
        return Some(Refusal::Headless);
    }
    if spec.and_then(|spec| spec.internal_traffic_policy.as_deref()) == Some("Local") {
        return Some(Refusal::OwnNode);
    }
    let ports = ports(service);
    let protocol = |port: &ServicePort| port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
    if let Some(port) = ports.iter().find(|port| protocol(port) != "TCP") {
        return Some(Refusal::NotTcp(port.port, protocol(port)));
    }
    let count = ports.len();
    (count == 0 || count > PORTS_MAX).then_some(Refusal::Ports(count))
}

/// Who keeps the Service as a repository has it.
pub fn kept_by(service: &Service) -> Option<&'static str> {
    let metadata = &service.metadata;
    let managers = metadata.managed_fields.iter().flatten();
    let mut managers = managers.filter_map(|entry| entry.manager.as_deref());
    let marks = [&metadata.labels, &metadata.annotations];
    let marked = |key: &str| marks.iter().any(|m| m.as_ref().is_some_and(|m| m.contains_key(key)));
    let by_mark = MARKS.iter().find(|(key, _)| marked(key));
    let by_manager = managers.find_map(|manager| {
        let named = |(begin, _): &&(&str, &str)| manager.to_ascii_lowercase().starts_with(begin);
        CONTROLLERS.iter().find(named)
    });
    by_mark.or(by_manager).map(|(_, who)| *who)
}

/// What a port speaks: its `appProtocol` says it; without that it is guessed by the port's name, or
/// by its number if it has no name.
fn speaks(port: &ServicePort) -> AppProtocol {
    if let Some(said) = &port.app_protocol {
        return AppProtocol::of(said);
    }
    let name = port.name.as_deref().unwrap_or_default();
    let known = |word: &str| match word {
        "web" => AppProtocol::Moves(Protocol::Http1),
        "resp" => AppProtocol::Moves(Protocol::Resp),
        word => AppProtocol::of(word),
    };
    let mut words = name.split('-').map(known);
    match (name, port.port) {
        ("", 80 | 8080) => AppProtocol::Moves(Protocol::Http1),
        ("", 6379) => AppProtocol::Moves(Protocol::Resp),
        ("", 11_211) => AppProtocol::Moves(Protocol::Memcached),
        ("", 443) => AppProtocol::Tls,
        ("", 22 | 25 | 3306) => AppProtocol::ServerFirst,
        _ => match words.next() {
            Some(AppProtocol::Other) => {
                let stays = |one: &AppProtocol| one.protocol() == Protocol::None;
                let mut stays = words.filter(stays);
                let said = stays.find(|one| *one != AppProtocol::Other);
                said.unwrap_or(AppProtocol::Other)
            }
            first => first.unwrap_or(AppProtocol::Other),
        },
    }
}

/// The protocol that a port speaks, as a policy has it; none if it does not say.
pub fn protocol(port: &ServicePort) -> Option<&'static str> {
    match speaks(port).protocol() {
        Protocol::Http1 => Some("HTTP1"),
        Protocol::Resp => Some("RESP"),
        Protocol::Memcached => Some("Memcached"),
        Protocol::RequestResponse => Some("RequestResponse"),
        Protocol::None => None,
    }
}

/// What keeps connections to a port from moving whatever a policy says, as far as the port tells
/// it.
pub fn unmovable(port: &ServicePort) -> Option<&'static str> {
    match speaks(port) {
        AppProtocol::Tls => Some("TLS"),
        AppProtocol::Http2 => Some("HTTP/2"),
        AppProtocol::ServerFirst => Some("server speaks first"),
        AppProtocol::Moves(_) | AppProtocol::Other => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn port(of: &Value) -> ServicePort {
        serde_json::from_value(of.clone()).expect("a port")
    }

    #[test]
    fn what_cannot_move_is_known_by_what_its_port_says() {
        for (said, expected) in [
            (json!({"port": 443}), Some("TLS")),
            (json!({"name": "https", "port": 9443}), Some("TLS")),
            (json!({"appProtocol": "kubernetes.io/h2c", "port": 80}), Some("HTTP/2")),
            (json!({"name": "grpc-web", "port": 80}), Some("HTTP/2")),
            (json!({"name": "api-https", "port": 80}), Some("TLS")),
            (json!({"appProtocol": "example.com/https", "name": "https", "port": 443}), None),
            (json!({"port": 3306}), Some("server speaks first")),
            (json!({"name": "http", "port": 443}), None),
            (json!({"name": "metrics", "port": 22}), None),
            (json!({"port": 9000}), None),
        ] {
            let port = port(&said);
            assert_eq!(unmovable(&port), expected, "{said}");
            if expected.is_some() {
                assert_eq!(protocol(&port), None, "{said}: nothing that moves");
            }
        }
    }

    #[test]
    fn what_moves_is_known_by_app_protocol_name_or_number_in_this_order() {
        for (said, expected) in [
            (json!({"appProtocol": "redis", "name": "http", "port": 80}), Some("RESP")),
            (json!({"appProtocol": "example.com/x", "name": "http", "port": 80}), None),
            (json!({"name": "web-1", "port": 6379}), Some("HTTP1")),
            (json!({"name": "resp", "port": 80}), Some("RESP")),
            (json!({"name": "memcache-admin", "port": 80}), Some("Memcached")),
            (json!({"name": "admin-http", "port": 80}), None),
            (json!({"port": 11_211}), Some("Memcached")),
            (json!({"port": 9000}), None),
        ] {
            assert_eq!(protocol(&port(&said)), expected, "{said}");
        }
    }

    /// The operator could not lead it anywhere once its selector is gone.
    #[test]
    fn what_is_kubernetes_own_stays() {
        for (namespace, expected) in [("kube-system", true), ("shop", false)] {
            let service = serde_json::from_value(json!({
                "metadata": {"name": "web", "namespace": namespace},
                "spec": {"selector": {"app": "web"}, "clusterIP": "10.96.0.9", "ports": [{"port": 80}]},
            }));
            let refused = refusal(&service.expect("a Service"));
            let expected = expected.then(|| Refusal::System(namespace.to_owned()));
            assert_eq!(refused, expected);
        }
    }

    /// A node without a dataplane would have nobody to lead its clients to.
    #[test]
    fn a_service_of_ones_own_node_stays() {
        for (policy, refused) in [("Local", Some(Refusal::OwnNode)), ("Cluster", None)] {
            let service = serde_json::from_value(json!({
                "metadata": {"name": "web", "namespace": "shop"},
                "spec": {
                    "selector": {"app": "web"}, "clusterIP": "10.96.0.9", "internalTrafficPolicy": policy,
                    "ports": [{"port": 80}],
                },
            }));
            assert_eq!(refusal(&service.expect("a Service")), refused);
        }
    }

    #[test]
    fn each_refusal_has_a_word_and_a_sentence_with_the_name() {
        for refusal in [
            Refusal::ExternalName,
            Refusal::Attached("p".into()),
            Refusal::PodsOf("front".into()),
            Refusal::System("kube-system".into()),
            Refusal::NoSelector,
            Refusal::Headless,
            Refusal::OwnNode,
            Refusal::NotTcp(53, "UDP".into()),
            Refusal::Ports(0),
            Refusal::Ports(17),
        ] {
            assert!(refusal.word().len() <= 16, "{refusal:?}: as wide as a cell");
            assert!(refusal.sentence("web").contains("web"), "{refusal:?}");
        }
    }
}
