//! What of Pods, Nodes and EndpointSlices matters here, read from the API server's JSON. Pure.

use crate::cluster::PodName;
use k8s_openapi::api::{
    core::v1::{ContainerStatus, Node as CoreNode, Pod as CorePod},
    discovery::v1::EndpointSlice,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{collections::BTreeMap, net::IpAddr};

/// A Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Namespace and name.
    pub name: PodName,
    /// Tells it from another one of that name.
    pub uid: String,
    /// Where it runs, once it does.
    pub node: Option<String>,
    /// Ready for traffic.
    pub ready: bool,
    /// Its containers run, so that commands can be run in them.
    pub running: bool,
    /// It shall end.
    pub terminating: bool,
    /// Why it is not ready, as far as the Pod says it.
    pub why: Option<String>,
    /// Restarts of all its containers.
    pub restarts: i32,
    /// Its containers.
    pub containers: Vec<String>,
    /// Image of the first of them.
    pub image: String,
}

impl Pod {
    /// One word.
    pub fn word(&self) -> &'static str {
        match (self.terminating, self.ready) {
            (true, _) => "ends",
            (false, true) => "ready",
            (false, false) => "not ready",
        }
    }

    /// The container of this name; the first one if there is none.
    pub fn container(&self, name: &str) -> &str {
        let named = self.containers.iter().find(|container| *container == name);
        named.or(self.containers.first()).map_or("", String::as_str)
    }
}

impl From<CorePod> for Pod {
    fn from(pod: CorePod) -> Self {
        let spec = pod.spec.unwrap_or_default();
        let status = pod.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let condition = |name: &str| conditions.iter().find(|c| c.type_ == name);
        let ready = condition("Ready").is_some_and(|c| c.status == "True");
        let containers = status.container_statuses.unwrap_or_default();
        let running = !containers.is_empty()
            && containers.iter().all(|c| c.state.as_ref().is_some_and(|s| s.running.is_some()));
        let why = (!ready).then(|| {
            let stuck = containers.iter().find_map(waits);
            let unscheduled = condition("PodScheduled").filter(|c| c.status == "False");
            let unready = condition("Ready").and_then(|c| c.message.clone());
            stuck
                .or_else(|| unscheduled.and_then(|c| c.message.clone()))
                .or_else(|| unready.filter(|message| !message.is_empty()))
                .or_else(|| status.phase.clone().map(|phase| format!("its phase is {phase}")))
        });
        Self {
            name: PodName {
                namespace: pod.metadata.namespace.unwrap_or_default(),
                name: pod.metadata.name.unwrap_or_default(),
            },
            uid: pod.metadata.uid.unwrap_or_default(),
            node: spec.node_name,
            ready,
            running,
            terminating: pod.metadata.deletion_timestamp.is_some(),
            why: why.flatten(),
            restarts: containers.iter().map(|c| c.restart_count).sum(),
            image: spec.containers.first().and_then(|c| c.image.clone()).unwrap_or_default(),
            containers: spec.containers.into_iter().map(|c| c.name).collect(),
        }
    }
}

/// Why a container does not run.
fn waits(container: &ContainerStatus) -> Option<String> {
    let state = container.state.as_ref()?;
    if let Some(waiting) = &state.waiting {
        let reason = waiting.reason.as_deref().unwrap_or("waits");
        return Some(match waiting.message.as_deref() {
            Some(message) if !message.is_empty() => {
                format!("{}: {reason}: {message}", container.name)
            }
            _ => format!("{}: {reason}", container.name),
        });
    }
    let ended = state.terminated.as_ref()?;
    let reason = ended.reason.as_deref().unwrap_or("it ended");
    Some(format!("{}: {reason} (exit code {})", container.name, ended.exit_code))
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Ready for Pods.
    pub ready: bool,
    /// Its kernel, as `6.12.9`.
    pub kernel: String,
}

impl From<CoreNode> for Node {
    fn from(node: CoreNode) -> Self {
        let status = node.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        Self {
            name: node.metadata.name.unwrap_or_default(),
            ready: conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True"),
            kernel: status.node_info.map(|info| info.kernel_version).unwrap_or_default(),
        }
    }
}

/// Linux takes over connections from here on (`bpf_sk_assign_tcp_reqsk`).
pub const KERNEL_MIN: (u32, u32) = (6, 9);

impl Node {
    /// Whether its kernel is known to be too old to take over connections.
    pub fn is_too_old(&self) -> bool {
        numbers(&self.kernel).is_some_and(|numbers| numbers < KERNEL_MIN)
    }
}

/// The first two numbers of a version: 6 and 12 of `6.12.9-cos`.
pub fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
        _ => None,
    }
}

/// Which Service's Pods are where: (namespace, Service) to addresses and their nodes.
pub type Places = BTreeMap<(String, String), BTreeMap<IpAddr, Option<String>>>;

/// What all slices together say.
pub fn places(slices: &[EndpointSlice]) -> Places {
    let mut places = Places::new();
    for slice in slices {
        let labels = slice.metadata.labels.as_ref();
        let Some(service) = labels.and_then(|l| l.get("kubernetes.io/service-name")) else {
            continue;
        };
        let key = (slice.metadata.namespace.clone().unwrap_or_default(), service.clone());
        let place = places.entry(key).or_default();
        for endpoint in &slice.endpoints {
            let addresses = endpoint.addresses.iter().filter_map(|a| a.parse().ok());
            place.extend(addresses.map(|address: IpAddr| (address, endpoint.node_name.clone())));
        }
    }
    places
}

/// Objects as their types; what cannot be read is told by name.
pub fn typed<T: DeserializeOwned>(items: &[Value], unread: &mut Vec<String>) -> Vec<T> {
    let mut read = Vec::with_capacity(items.len());
    for item in items {
        match serde_json::from_value(item.clone()) {
            Ok(object) => read.push(object),
            Err(error) => {
                let text = |at: &Value| at.as_str().unwrap_or_default().to_owned();
                let metadata = &item["metadata"];
                unread.push(format!(
                    "{} {}/{}: it is not as this version knows it: {error}",
                    text(&item["kind"]),
                    text(&metadata["namespace"]),
                    text(&metadata["name"])
                ));
            }
        }
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(status: &Value) -> Pod {
        let pod = json!({
            "metadata": {"namespace": "n", "name": "p", "uid": "u"},
            "spec": {"nodeName": "node-1", "containers": [{"name": "a", "image": "i:1"}, {"name": "b"}]},
            "status": status,
        });
        serde_json::from_value::<CorePod>(pod).expect("a pod").into()
    }

    #[test]
    fn a_pod_says_why_it_is_not_ready() {
        let good = pod(&json!({"conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "a", "ready": true, "restartCount": 2, "image": "", "imageID": "",
                "state": {"running": {}}}]}));
        assert!(good.ready && good.running && good.why.is_none());
        assert_eq!((good.word(), good.restarts, good.image.as_str()), ("ready", 2, "i:1"));
        assert_eq!((good.container("b"), good.container("c")), ("b", "a"));
        let stuck = pod(
            &json!({"phase": "Pending", "containerStatuses": [{"name": "a", "ready": false, "restartCount": 0,
            "image": "", "imageID": "", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}),
        );
        assert_eq!(stuck.why.as_deref(), Some("a: ImagePullBackOff"));
        let ended = pod(
            &json!({"containerStatuses": [{"name": "a", "ready": false, "restartCount": 0,
            "image": "", "imageID": "", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]}),
        );
        assert_eq!(ended.why.as_deref(), Some("a: OOMKilled (exit code 137)"));
        let nowhere = pod(&json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}]}));
        assert_eq!(nowhere.why.as_deref(), Some("0/3 nodes are available"));
        let young = pod(&json!({"phase": "Pending"}));
        assert_eq!(
            (young.word(), young.why.as_deref()),
            ("not ready", Some("its phase is Pending"))
        );
    }

    #[test]
    fn old_kernels_are_known_and_odd_ones_are_not_blamed() {
        let old = |kernel: &str| {
            Node { name: String::new(), ready: true, kernel: kernel.into() }.is_too_old()
        };
        assert!(old("5.15.0-1053-aws") && old("6.8.12"));
        assert!(!old("6.9.0") && !old("6.12.9-cos") && !old("7.0") && !old("") && !old("strange"));
    }

    #[test]
    fn what_cannot_be_read_is_told_and_the_rest_is_read() {
        let items = [
            json!({"kind": "Node", "metadata": {"name": "a"}}),
            json!({"kind": "Node", "metadata": {"name": "b"}, "status": 7}),
        ];
        let mut unread = Vec::new();
        let nodes: Vec<CoreNode> = typed(&items, &mut unread);
        assert_eq!((nodes.len(), unread.len()), (1, 1));
        assert!(unread[0].starts_with("Node /b: "), "{unread:?}");
    }

    #[test]
    fn slices_of_one_service_add_up() {
        let slice = |name: &str, address: &str, node: &str| {
            let slice = json!({"metadata": {"namespace": "shop", "name": name, "labels": {"kubernetes.io/service-name": "web"}},
                "addressType": "IPv4", "ports": [], "endpoints": [{"addresses": [address], "nodeName": node}]});
            serde_json::from_value(slice).expect("a slice")
        };
        let places = places(&[slice("a", "10.0.0.1", "n1"), slice("b", "10.0.0.2", "n2")]);
        let web = &places[&("shop".to_owned(), "web".to_owned())];
        assert_eq!(web.len(), 2);
        assert_eq!(web[&"10.0.0.2".parse::<IpAddr>().expect("address")].as_deref(), Some("n2"));
    }
}
