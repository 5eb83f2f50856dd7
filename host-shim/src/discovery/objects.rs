//! Objects of the API server as far as they matter here. Owns which fields are read at all: a Pod
//! is some 10 KB of text, of which some 300 bytes are kept.

use super::{
    cgroup,
    wanted::{Key, Labels, NodePod, OfPolicy, Slice},
};
use baton_crds::{LoadBalancerPolicy, PodMultipathTcp};
use k8s_openapi::{
    api::{apps::v1 as apps, core::v1, discovery::v1 as discovery},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::{Deserialize, Deserializer, Serialize};
use std::net::IpAddr;

/// Annotation of a static Pod: what its control groups are named after.
const STATIC_HASH: &str = "kubernetes.io/config.hash";
/// The same, of the object that a kubelet makes for a static Pod; one that has it never runs
/// itself.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Label of an EndpointSlice: the Service that it is of.
const SERVICE: &str = "kubernetes.io/service-name";
/// Slices that are not made of a Service's selector, which is followed itself: those written by
/// hand and by other controllers. A cluster has as many of the others as Services, and each node
/// would be told of each change.
pub const BY_OTHERS: &str = "kubernetes.io/service-name,endpointslice.kubernetes.io/managed-by!=endpointslice-controller.k8s.io";

/// A `LoadBalancerPolicy`, whatever else it holds.
#[derive(Clone, Debug, Default, Serialize, Deserialize, kube::Resource)]
#[resource(inherit = LoadBalancerPolicy)]
pub struct Policy {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: PolicySpec,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PolicySpec {
    target_refs: Vec<TargetRef>,
    /// A word of another version is no reason to see no policy at all.
    pod_multipath_tcp: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct TargetRef {
    name: String,
}

/// A Service.
#[derive(Clone, Debug, Default, Serialize, Deserialize, kube::Resource)]
#[resource(inherit = v1::Service)]
pub struct Service {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct ServiceSpec {
    selector: Labels,
}

/// An EndpointSlice.
#[derive(Clone, Debug, Default, Serialize, Deserialize, kube::Resource)]
#[resource(inherit = discovery::EndpointSlice)]
pub struct EndpointSlice {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "null_is_none")]
    endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Endpoint {
    #[serde(deserialize_with = "null_is_none")]
    addresses: Vec<String>,
    node_name: Option<String>,
    target_ref: Option<Reference>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Reference {
    kind: String,
    namespace: Option<String>,
    name: Option<String>,
}

/// A Pod.
#[derive(Clone, Debug, Default, Serialize, Deserialize, kube::Resource)]
#[resource(inherit = v1::Pod)]
pub struct Pod {
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    host_network: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    phase: String,
    #[serde(rename = "podIPs")]
    pod_ips: Vec<PodIp>,
    container_statuses: Vec<ContainerStatus>,
    init_container_statuses: Vec<ContainerStatus>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct ContainerStatus {
    #[serde(rename = "containerID")]
    container_id: Option<String>,
    state: ContainerState,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct ContainerState {
    running: Option<Running>,
}

/// There, or not.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Running {}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct PodIp {
    ip: String,
}

/// The DaemonSet that this process is of, as far as it matters.
#[derive(Clone, Debug, Default, Serialize, Deserialize, kube::Resource)]
#[resource(inherit = apps::DaemonSet)]
pub struct DaemonSet {
    #[serde(default)]
    pub metadata: ObjectMeta,
}

/// The API server says `null` of a list without members that it does not leave out. What cannot be
/// read keeps its whole kind from being known, whoever wrote it.
fn null_is_none<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Namespace and name.
pub fn key(metadata: &ObjectMeta) -> Key {
    Key {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}

impl Policy {
    /// What it says of the Pods of its Service.
    pub fn fold(&self) -> OfPolicy {
        OfPolicy {
            service: self
                .spec
                .target_refs
                .first()
                .map(|target| target.name.clone())
                .unwrap_or_default(),
            multipath: match self.spec.pod_multipath_tcp.as_str() {
                "Disabled" => PodMultipathTcp::Disabled,
                _ => PodMultipathTcp::Unchanged,
            },
        }
    }
}

impl Service {
    /// What it selects.
    pub fn selector(&self) -> Labels {
        self.spec.selector.clone()
    }
}

impl EndpointSlice {
    /// What matters of it on a node. Whether an endpoint is ready does not: a Pod has the adopter
    /// before that.
    pub fn fold(&self, node: &str) -> Option<Slice> {
        let labels = self.metadata.labels.as_ref()?;
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        let mut slice = Slice { service: labels.get(SERVICE)?.clone(), ..Slice::default() };
        // Who writes one by hand need not know the node.
        let here = |e: &&Endpoint| e.node_name.as_ref().is_none_or(|name| name == node);
        for endpoint in self.endpoints.iter().filter(here) {
            let target = endpoint.target_ref.as_ref();
            let pod = target.filter(|target| {
                let own = target.namespace.as_ref().is_none_or(|n| n == namespace);
                target.kind == "Pod" && own
            });
            match pod.and_then(|pod| pod.name.clone()) {
                Some(name) => {
                    slice.pods.insert(name);
                }
                // Names of hosts are no addresses and are skipped.
                None => {
                    let parsed = endpoint.addresses.iter().filter_map(|a| a.parse::<IpAddr>().ok());
                    slice.addresses.extend(parsed);
                }
            }
        }
        Some(slice)
    }
}

impl Pod {
    /// What matters of it.
    pub fn fold(&self) -> NodePod {
        let meta = &self.metadata;
        // Whoever makes a Pod writes its annotations: another Pod's UID is no hash, and who says a
        // hash has no processes of his own.
        let annotation = |name| meta.annotations.as_ref().and_then(|a| a.get(name));
        let hash = annotation(STATIC_HASH).filter(|hash| cgroup::is_hash(hash));
        let hash = hash.filter(|hash| annotation(MIRROR) == Some(hash));
        let ips = self.status.pod_ips.iter();
        let (first, then) =
            (self.status.init_container_statuses.iter(), self.status.container_statuses.iter());
        let containers = first.chain(then).filter(|c| c.state.running.is_some());
        NodePod {
            uids: meta.uid.iter().chain(hash).cloned().collect(),
            labels: meta.labels.clone().unwrap_or_default(),
            addresses: ips.filter_map(|ip| ip.ip.parse().ok()).collect(),
            host_network: self.spec.host_network,
            running: self.status.phase == "Running",
            containers: containers.filter_map(|c| c.container_id.clone()).collect(),
            deleting: meta.deletion_timestamp.is_some(),
            ended: matches!(self.status.phase.as_str(), "Succeeded" | "Failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    const HASH: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn what_matters_is_read() {
        let pod: Pod = from_value(json!({
            "metadata": {"name": "web-0", "namespace": "shop", "uid": "u", "labels": {"app": "web"},
                         "annotations": {"kubernetes.io/config.hash": HASH, "kubernetes.io/config.mirror": HASH, "x": "y"}},
            "spec": {"hostNetwork": true, "containers": [{"name": "c"}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
                       "initContainerStatuses": [{"containerID": "cri-o://0", "state": {"terminated": {"exitCode": 0}}}],
                       "containerStatuses": [{"containerID": "cri-o://1", "state": {"running": {"startedAt": "t"}}},
                                             {"containerID": "cri-o://2", "state": {"waiting": {"reason": "r"}}},
                                             {"state": {}}]},
        }))
        .expect("a Pod");
        let folded = pod.fold();
        assert_eq!(folded.uids, ["u", HASH]);
        assert_eq!(folded.addresses.len(), 2);
        assert!(folded.host_network && folded.running && !folded.ended);
        assert_eq!(folded.containers, ["cri-o://1"]);
        assert_eq!(key(&pod.metadata).name, "web-0");
        let policy: Policy = from_value(json!({
            "metadata": {"name": "p", "namespace": "shop"},
            "spec": {"targetRefs": [{"kind": "Service", "name": "web"}], "from": "another version"},
        }))
        .expect("a policy");
        assert_eq!(
            (policy.fold().service.as_str(), policy.fold().multipath),
            ("web", PodMultipathTcp::Unchanged)
        );
        for (word, said) in [
            ("Disabled", PodMultipathTcp::Disabled),
            ("Unchanged", PodMultipathTcp::Unchanged),
            ("from another version", PodMultipathTcp::Unchanged),
        ] {
            let policy: Policy =
                from_value(json!({"metadata": {}, "spec": {"podMultipathTcp": word}}))
                    .expect("a policy");
            assert_eq!(policy.fold().multipath, said, "{word}");
        }
        let service: Service =
            from_value(json!({"metadata": {}, "spec": {"clusterIP": "None"}})).expect("a Service");
        assert!(service.selector().is_empty());
    }

    /// Its policy would have that Pod's connections, and write in its network namespace.
    #[test]
    fn nobody_passes_for_another_pod_by_his_annotations() {
        let of_another = "1f0c2d3e-4a5b-6c7d-8e9f-a0b1c2d3e4f5";
        for annotations in [
            json!({"kubernetes.io/config.hash": of_another}),
            json!({"kubernetes.io/config.hash": of_another, "kubernetes.io/config.mirror": of_another}),
            json!({"kubernetes.io/config.hash": HASH}),
            json!({"kubernetes.io/config.hash": HASH, "kubernetes.io/config.mirror": "x"}),
        ] {
            let meta = json!({"uid": "u", "annotations": annotations});
            let pod: Pod = from_value(json!({"metadata": meta})).expect("a Pod");
            assert_eq!(pod.fold().uids, ["u"], "{meta}");
        }
    }

    #[test]
    fn of_a_slice_the_pods_that_may_be_here_are_read() {
        let slice = json!({
            "metadata": {"name": "web-x", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv6",
            "endpoints": [
                {"addresses": ["fd00::1"], "nodeName": "here", "conditions": {"ready": false}},
                {"addresses": ["fd00::2"], "nodeName": "there"},
                {"addresses": ["fd00::3"]},
                {"addresses": ["fd00::4"], "targetRef": {"kind": "Pod", "name": "web-4"}},
                {"addresses": ["fd00::5"], "targetRef": {"kind": "Pod", "name": "web-5", "namespace": "shop"}},
                {"addresses": ["fd00::6"], "targetRef": {"kind": "Pod", "name": "web-6", "namespace": "else"}},
                {"addresses": ["fd00::7"], "targetRef": {"kind": "VirtualMachine", "name": "web-7"}},
                {"addresses": ["backend.example"]},
            ],
            "ports": [{"port": 80}],
        });
        let parsed: EndpointSlice = from_value(slice.clone()).expect("a slice");
        let folded = parsed.fold("here").expect("of a Service");
        assert_eq!(folded.service, "web");
        assert_eq!(Vec::from_iter(&folded.pods), ["web-4", "web-5"]);
        let addresses: Vec<String> = folded.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["fd00::1", "fd00::3", "fd00::6", "fd00::7"]);
        let mut nobodys = slice;
        nobodys["metadata"]["labels"] = json!({});
        let nobodys: EndpointSlice = from_value(nobodys).expect("a slice");
        assert_eq!(nobodys.fold("here"), None);
    }

    /// As the API server says it, whatever was written.
    #[test]
    fn a_slice_without_endpoints_is_one() {
        let labels = json!({"kubernetes.io/service-name": "web"});
        for endpoints in [json!(null), json!([]), json!([{"addresses": null}])] {
            let slice = json!({"metadata": {"labels": labels}, "endpoints": endpoints});
            let parsed: EndpointSlice = from_value(slice).expect("a slice");
            let folded = parsed.fold("here").expect("of a Service");
            assert!(folded.pods.is_empty() && folded.addresses.is_empty());
        }
    }

    #[test]
    fn a_pod_that_ended_says_so() {
        for (phase, ended) in [("Pending", false), ("Succeeded", true), ("Failed", true)] {
            let pod: Pod =
                from_value(json!({"metadata": {}, "status": {"phase": phase}})).expect("a Pod");
            assert_eq!(pod.fold().ended, ended, "{phase}");
        }
    }
}
