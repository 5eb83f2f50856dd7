//! Services, EndpointSlices, Pods and Nodes. Absent fields have the meaning that the API gives
//! them.

use super::Translator;
use crate::objects::{COST_MANAGER, Condition, FRONT_MANAGER, Namespace, Node, Pod};
use baton_api::{AppProtocol, MANAGER, POLICY_LABEL, SELECTOR_ANNOTATION};
use baton_index::{
    Change, Conditions, DELETION_COST_ANNOTATION, Family, Front, Frontend,
    Namespace as IndexNamespace, Node as IndexNode, Pod as IndexPod, Service as IndexService,
    ServicePort, Slice, SliceEndpoint, SliceWriter, Text,
};
use k8s_openapi::{
    api::{
        core::v1::{Service, ServicePort as ServicePortObject},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

/// Set by the endpoint slice controller and whoever writes slices by hand.
pub const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// Who writes a slice.
pub const SLICE_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// A node's zone.
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
/// With the value `Auto` a Service's clients are to stay in their zone, as before there was
/// `spec.trafficDistribution`.
const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";
/// Who made an object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// Whether a Service's clients are to stay in their zone.
fn is_zonal(object: &Service) -> bool {
    let spec = object.spec.as_ref();
    let annotations = object.metadata.annotations.as_ref();
    let mode = annotations.and_then(|all| all.get(TOPOLOGY_MODE));
    spec.is_some_and(|spec| spec.traffic_distribution.is_some())
        || mode.is_some_and(|mode| mode.eq_ignore_ascii_case("auto"))
}

impl Translator {
    /// A Service.
    pub fn service(&self, object: &Service) -> Change {
        let key = self.key(&object.metadata);
        let spec = object.spec.as_ref();
        let ports = spec.and_then(|s| s.ports.as_deref()).unwrap_or_default();
        let ports = ports
            .iter()
            .filter(|port| is_tcp(port.protocol.as_deref()))
            .filter_map(|port| {
                let known = self.port(port.name.as_deref(), port.port)?;
                let protocol = port.app_protocol.as_deref();
                let protocol = protocol.map(|text| AppProtocol::of(text).protocol());
                Some(ServicePort { protocol, ..known })
            })
            .collect();
        let families = spec.and_then(|s| s.ip_families.as_deref());
        let service = IndexService {
            ports,
            families: families
                .unwrap_or_default()
                .iter()
                .filter_map(|family| match family.as_str() {
                    "IPv4" => Some(Family::V4),
                    "IPv6" => Some(Family::V6),
                    _ => None,
                })
                .collect(),
            external_name: spec.is_some_and(|s| s.type_.as_deref() == Some("ExternalName")),
            selects: spec
                .and_then(|s| s.selector.as_ref())
                .is_some_and(|selector| !selector.is_empty()),
            front: self.front(object).map(Arc::new),
        };
        Change::Service(key, Some(Arc::new(service)))
    }

    /// What matters of a Service in front of dataplanes, which has the label.
    fn front(&self, object: &Service) -> Option<Front> {
        let meta = &object.metadata;
        let labels = meta.labels.as_ref()?;
        let policy = self.text(labels.get(POLICY_LABEL)?);
        let spec = object.spec.as_ref()?;
        let status = object.status.as_ref();
        let outside = status.and_then(|s| s.load_balancer.as_ref()?.ingress.as_ref());
        let outside = outside.into_iter().flatten();
        let outside = outside.filter_map(|one| one.ip.as_deref().or(one.hostname.as_deref()));
        let inside = spec.cluster_ips.iter().flatten().map(String::as_str);
        let addresses = outside.chain(inside.filter(|address| *address != "None"));
        let texts = |map: &Option<BTreeMap<String, String>>| {
            let pairs = map.iter().flatten();
            pairs.map(|(k, v)| (self.text(k), self.text(v))).collect()
        };
        let target = |port: &ServicePortObject| match (&port.target_port, u16::try_from(port.port))
        {
            (Some(IntOrString::Int(target)), Ok(port)) => {
                Some((port, u16::try_from(*target).ok()?))
            }
            _ => None,
        };
        let other = |port: &ServicePortObject| {
            let protocol =
                port.protocol.as_deref().filter(|_| !is_tcp(port.protocol.as_deref()))?;
            Some(self.text(&format!("{}/{protocol}", port.port)))
        };
        Some(Front {
            uid: self.uid(meta, &self.key(meta)),
            policy,
            made: labels.get(MANAGED_BY).is_some_and(|by| by == MANAGER),
            selector: meta
                .annotations
                .as_ref()
                .and_then(|all| all.get(SELECTOR_ANNOTATION))
                .map(|selector| self.text(selector)),
            addresses: addresses.map(|address| self.text(address)).collect(),
            shape: Frontend {
                service: self.text(meta.name.as_deref().unwrap_or_default()),
                kind: self.text(spec.type_.as_deref().unwrap_or("ClusterIP")),
                load_balancer_class: spec.load_balancer_class.as_ref().map(|c| self.text(c)),
                local: spec.external_traffic_policy.as_deref() == Some("Local"),
                source_ranges: spec
                    .load_balancer_source_ranges
                    .iter()
                    .flatten()
                    .map(|range| self.text(range))
                    .collect(),
                annotations: texts(&meta.annotations),
            },
            annotated: self.annotated(meta),
            targets: spec.ports.iter().flatten().filter_map(target).collect(),
            zonal: is_zonal(object),
            own_node: spec.internal_traffic_policy.as_deref() == Some("Local"),
            others: spec.ports.iter().flatten().filter_map(other).collect(),
        })
    }

    /// Those annotations of a Service that an operator has written, as the API server tells.
    fn annotated(&self, meta: &ObjectMeta) -> BTreeSet<Text> {
        let entries = meta.managed_fields.iter().flatten();
        let ours = entries.filter(|entry| entry.manager.as_deref() == Some(FRONT_MANAGER));
        let fields = ours.filter_map(|entry| {
            let fields = &entry.fields_v1.as_ref()?.0;
            fields["f:metadata"]["f:annotations"].as_object()
        });
        let keys = fields.flat_map(|fields| fields.keys());
        let keys = keys.filter_map(|key| key.strip_prefix("f:"));
        keys.map(|key| self.text(key)).collect()
    }

    /// An EndpointSlice. One of names, or of no Service, is as good as none.
    pub fn slice(&self, object: &EndpointSlice) -> Change {
        let key = self.key(&object.metadata);
        let labels = object.metadata.labels.as_ref();
        let service = labels.and_then(|labels| labels.get(SERVICE_LABEL));
        let (Some(service), "IPv4" | "IPv6") = (service, object.address_type.as_str()) else {
            return Change::Slice(key, None);
        };
        let ports = object.ports.as_deref().unwrap_or_default();
        let ports = ports
            .iter()
            .filter(|port| is_tcp(port.protocol.as_deref()))
            .filter_map(|port| self.port(port.name.as_deref(), port.port?))
            .collect();
        let endpoints = object.endpoints.iter().filter_map(|endpoint| {
            let conditions = endpoint.conditions.as_ref();
            let target = endpoint.target_ref.as_ref();
            let pod = target.filter(|target| target.kind.as_deref() == Some("Pod"));
            // Of another namespace it is nobody's whose address could count.
            let pod = pod.filter(|pod| {
                let namespace = pod.namespace.as_deref();
                namespace.is_none_or(|namespace| namespace == &*key.namespace)
            });
            Some(SliceEndpoint {
                address: endpoint.addresses.first()?.parse().ok()?,
                conditions: Conditions::new(
                    conditions.and_then(|c| c.ready),
                    conditions.and_then(|c| c.serving),
                    conditions.and_then(|c| c.terminating),
                ),
                pod: pod.and_then(|pod| pod.name.as_deref()).map(|name| self.text(name)),
                node: endpoint.node_name.as_deref().map(|name| self.text(name)),
            })
        });
        let mut endpoints: Vec<SliceEndpoint> = endpoints.collect();
        // Grown in steps, it may have room for twice as many.
        endpoints.shrink_to_fit();
        let by = labels.and_then(|labels| labels.get(SLICE_MANAGED_BY));
        let writer = match by.map(String::as_str) {
            Some(MANAGER) => SliceWriter::Baton,
            Some("endpointslice-controller.k8s.io") => SliceWriter::Cluster,
            Some("endpointslicemirroring-controller.k8s.io") => SliceWriter::Mirror,
            _ => SliceWriter::Other,
        };
        let is_ours = writer == SliceWriter::Baton;
        let uid = object.metadata.uid.as_deref().filter(|_| is_ours);
        let ours = object.endpoints.iter().filter(|_| is_ours);
        let zones = ours.map(|endpoint| {
            let hints = endpoint.hints.as_ref()?.for_zones.as_ref()?;
            Some(self.text(&hints.first()?.name))
        });
        let slice = Slice {
            service: self.text(service),
            ports,
            endpoints,
            writer,
            uid: uid.map(|uid| self.text(uid)),
            zones: zones.collect(),
        };
        Change::Slice(key, Some(Arc::new(slice)))
    }

    /// A Pod.
    pub fn pod(&self, object: &Pod) -> Change {
        let key = self.key(&object.metadata);
        let status = &object.status;
        // What has ended has no address any more, and another Pod may have it by now.
        let ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let address: Option<IpAddr> = status.pod_ip.as_deref().and_then(|ip| ip.parse().ok());
        let address = address.filter(|_| !ended);
        // One of each family at most.
        let mut all = status.pod_ips.iter().filter_map(|one| one.ip.parse().ok());
        let second_address = address.and_then(|first| all.find(|other| *other != first));
        let (labels, annotations) = {
            let mut interner = self.interner();
            let labels = interner.labels(pairs(object.metadata.labels.as_ref()));
            let annotations = pairs(object.metadata.annotations.as_ref());
            (labels, interner.annotations(annotations))
        };
        let pod = IndexPod {
            labels,
            annotations,
            deleting: object.metadata.deletion_timestamp.is_some(),
            // A manifest written by hand has no conditions: an address is enough there.
            ready: !ended && is_ready(&status.conditions).unwrap_or(address.is_some()),
            node: object.spec.node_name.as_deref().map(|name| self.text(name)),
            address,
            second_address,
            host_network: object.spec.host_network,
            cost: cost(&object.metadata),
        };
        Change::Pod(key, Some(Arc::new(pod)))
    }

    /// A Node.
    pub fn node(&self, object: &Node) -> Change {
        let node = IndexNode {
            cordoned: object.spec.unschedulable,
            ready: is_ready(&object.status.conditions).unwrap_or(true),
            zone: object
                .metadata
                .labels
                .as_ref()
                .and_then(|labels| labels.get(ZONE_LABEL))
                .map(|zone| self.text(zone)),
        };
        Change::Node(self.key(&object.metadata).name, Some(Arc::new(node)))
    }

    /// A Namespace.
    pub fn namespace(&self, object: &Namespace) -> Change {
        let labels = pairs(object.metadata.labels.as_ref());
        let labels = self.interner().labels(labels);
        let namespace = IndexNamespace { labels };
        Change::Namespace(self.key(&object.metadata).name, Some(Arc::new(namespace)))
    }

    fn port(&self, name: Option<&str>, port: i32) -> Option<ServicePort> {
        let port = u16::try_from(port).ok().filter(|port| *port != 0)?;
        let name = self.text(name.unwrap_or_default());
        Some(ServicePort { name, port, protocol: None })
    }
}

pub(super) fn pairs(map: Option<&BTreeMap<String, String>>) -> impl Iterator<Item = (&str, &str)> {
    map.into_iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()))
}

/// The deletion cost that an operator wrote there. One that somebody else set is theirs.
fn cost(meta: &ObjectMeta) -> Option<i32> {
    let cost = meta.annotations.as_ref()?.get(DELETION_COST_ANNOTATION)?;
    let managers = meta.managed_fields.iter().flatten();
    let mut managers = managers.filter_map(|entry| entry.manager.as_deref());
    managers.any(|manager| manager == COST_MANAGER).then(|| cost.parse().ok())?
}

fn is_tcp(protocol: Option<&str>) -> bool {
    matches!(protocol, None | Some("TCP"))
}

fn is_ready(conditions: &[Condition]) -> Option<bool> {
    let ready = conditions.iter().find(|c| c.kind == "Ready")?;
    Some(ready.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_index::Key;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    fn object<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).expect("an object")
    }

    fn service(spec: &Value) -> IndexService {
        let object =
            object(json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": spec}));
        match Translator::new().service(&object) {
            Change::Service(key, Some(service)) => {
                assert_eq!(key, Key::new("shop", "web"));
                (*service).clone()
            }
            other => panic!("{other:?}"),
        }
    }

    fn port(name: &str, port: u16) -> ServicePort {
        let name = name.into();
        ServicePort { name, port, protocol: None }
    }

    #[test]
    fn a_services_tcp_ports_and_families_are_kept() {
        let got = service(&json!({
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"}, {"port": 81}, {"name": "dns", "port": 53, "protocol": "UDP"}],
            "ipFamilies": ["IPv6", "IPv4"],
        }));
        assert_eq!(got.ports, [port("http", 80), port("", 81)]);
        assert_eq!(got.families, [Family::V6, Family::V4]);
        assert!(!got.external_name);
        assert!(service(&json!({"type": "ExternalName", "externalName": "x.org"})).external_name);
    }

    #[test]
    fn of_a_service_in_front_of_dataplanes_what_leads_nowhere_is_told() {
        let object: Service = object(json!({
            "metadata": {"namespace": "shop", "name": "web", "uid": "u", "labels": {POLICY_LABEL: "p"}},
            "spec": {"ports": [{"port": 80}, {"port": 53, "protocol": "UDP"}, {"port": 9, "protocol": "TCP"}]},
        }));
        let front = Translator::new().front(&object).expect("it has the label");
        assert_eq!(front.others, ["53/UDP".into()]);
        assert!(!front.own_node);
        let mut local = object;
        let spec = local.spec.as_mut().expect("a spec");
        spec.internal_traffic_policy = Some("Local".to_owned());
        let front = Translator::new().front(&local).expect("it has the label");
        assert!(front.own_node);
    }

    #[test]
    fn of_a_services_annotations_those_are_ours_that_we_wrote() {
        let fields =
            |keys: Value| json!({"f:metadata": {"f:annotations": keys, "f:labels": {"f:x": {}}}});
        let object: Service = object(json!({
            "metadata": {
                "namespace": "shop", "name": "web", "uid": "u", "labels": {POLICY_LABEL: "p"},
                "annotations": {"a/b": "1", "c": "2", "theirs": "3"},
                "managedFields": [
                    {"manager": "kubectl", "fieldsV1": fields(json!({"f:theirs": {}}))},
                    {"manager": FRONT_MANAGER, "operation": "Apply", "fieldsV1": fields(json!({".": {}, "f:a/b": {}}))},
                    {"manager": FRONT_MANAGER, "operation": "Update", "fieldsV1": fields(json!({"f:c": {}}))},
                    {"manager": FRONT_MANAGER, "operation": "Update"},
                ],
            },
            "spec": {},
        }));
        let front = Translator::new().front(&object).expect("its policy's");
        assert_eq!(front.annotated, ["a/b", "c"].map(Text::from).into());
        assert_eq!(front.shape.annotations.len(), 3);
    }

    fn slice(value: Value) -> Option<Slice> {
        match Translator::new().slice(&object(value)) {
            Change::Slice(key, slice) => {
                assert_eq!(key, Key::new("shop", "web-x"));
                slice.map(|slice| (*slice).clone())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_slice_keeps_addresses_conditions_pods_and_nodes() {
        let got = slice(json!({
            "metadata": {"namespace": "shop", "name": "web-x", "labels": {SERVICE_LABEL: "web"}},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080}, {"name": "none"}, {"name": "udp", "port": 1, "protocol": "UDP"}],
            "endpoints": [
                {"addresses": ["10.0.0.1", "10.0.0.9"], "nodeName": "n1",
                 "targetRef": {"kind": "Pod", "name": "web-1", "namespace": "shop"}},
                {"addresses": ["10.0.0.2"], "conditions": {"ready": false, "serving": true, "terminating": true}},
                {"addresses": ["10.0.0.3"], "targetRef": {"kind": "VirtualMachine", "name": "vm"}},
                {"addresses": ["10.0.0.4"], "targetRef": {"kind": "Pod", "name": "web-1", "namespace": "other"}},
                {"addresses": ["10.0.0.5"], "conditions": {"ready": false, "terminating": true}},
                {"addresses": ["nonsense"]}, {"addresses": []},
            ],
        }))
        .expect("a slice");
        assert_eq!(&*got.service, "web");
        assert_eq!(got.ports, [port("http", 8080)]);
        let found: Vec<_> = got
            .endpoints
            .iter()
            .map(|e| (e.address.to_string(), e.conditions, e.pod.as_deref(), e.node.as_deref()))
            .collect();
        let (absent, leaving) = (
            Conditions::new(None, None, None),
            Conditions::new(Some(false), Some(true), Some(true)),
        );
        // What is not said of `serving`, `ready` says.
        let gone = Conditions::new(Some(false), Some(false), Some(true));
        assert_eq!(
            found,
            [
                ("10.0.0.1".to_owned(), absent, Some("web-1"), Some("n1")),
                ("10.0.0.2".to_owned(), leaving, None, None),
                ("10.0.0.3".to_owned(), absent, None, None),
                ("10.0.0.4".to_owned(), absent, None, None),
                ("10.0.0.5".to_owned(), gone, None, None),
            ]
        );
    }

    #[test]
    fn zones_are_kept_of_nodes_and_of_slices_of_ours() {
        let node = |labels: Value| {
            let node = object(json!({"metadata": {"name": "n1", "labels": labels}}));
            match Translator::new().node(&node) {
                Change::Node(_, Some(node)) => node.zone.as_deref().map(str::to_owned),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(node(json!({ZONE_LABEL: "a"})).as_deref(), Some("a"));
        assert_eq!(node(json!({"zone": "a"})), None);
        for (by, expected) in [(MANAGER, vec![Some("a".into()), None]), ("me", Vec::new())] {
            let labels = json!({SERVICE_LABEL: "web", SLICE_MANAGED_BY: by});
            let got = slice(json!({
                "metadata": {"namespace": "shop", "name": "web-x", "labels": labels},
                "addressType": "IPv4",
                "endpoints": [
                    {"addresses": ["10.0.0.1"], "hints": {"forZones": [{"name": "a"}]}},
                    {"addresses": ["10.0.0.2"], "zone": "b"},
                ],
            }));
            assert_eq!(got.expect("a slice").zones, expected);
        }
        let zonal = |annotations: Value, spec: Value| {
            let meta = json!({"name": "web", "annotations": annotations});
            is_zonal(&object(json!({"metadata": meta, "spec": spec})))
        };
        assert!(zonal(Value::Null, json!({"trafficDistribution": "PreferClose"})));
        assert!(zonal(json!({TOPOLOGY_MODE: "Auto"}), json!({})));
        assert!(!zonal(json!({TOPOLOGY_MODE: "Disabled"}), json!({})));
        assert!(!zonal(Value::Null, json!({})));
    }

    #[test]
    fn slices_of_names_or_without_a_service_are_none() {
        for (labels, kind) in [
            (json!({SERVICE_LABEL: "web"}), "FQDN"),
            (json!({"app": "web"}), "IPv4"),
            (Value::Null, "IPv4"),
        ] {
            let got = slice(json!({
                "metadata": {"namespace": "shop", "name": "web-x", "labels": labels},
                "addressType": kind, "endpoints": [{"addresses": ["10.0.0.1"]}],
            }));
            assert_eq!(got, None);
        }
    }

    fn pod(meta: &Value, status: &Value) -> IndexPod {
        let object =
            object(json!({"metadata": meta, "spec": {"nodeName": "n1"}, "status": status}));
        match Translator::new().pod(&object) {
            Change::Pod(_, Some(pod)) => (*pod).clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_pod_keeps_what_the_index_asks_for() {
        let meta = json!({
            "namespace": "shop", "name": "web-1", "labels": {"app": "web"},
            "annotations": {"baton.dev/weight": "5", "notes": "x".repeat(100)},
            "deletionTimestamp": "2026-01-01T00:00:00Z",
        });
        let ready = json!({
            "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        });
        let got = pod(&meta, &ready);
        assert!(got.deleting && got.ready);
        assert_eq!(got.labels.get("app").map(Text::to_string).as_deref(), Some("web"));
        assert_eq!(got.annotations.iter().collect::<Vec<_>>(), [("baton.dev/weight", "5")]);
        assert_eq!(got.node.as_deref(), Some("n1"));
        assert_eq!(got.address, "10.0.0.1".parse().ok());
        assert_eq!(got.second_address, "fd00::1".parse().ok());
        assert!(!got.host_network);
    }

    #[test]
    fn a_pods_deletion_cost_is_ours_if_we_wrote_it() {
        for (manager, cost, expected) in
            [(COST_MANAGER, "17", Some(17)), (COST_MANAGER, "much", None), ("kubectl", "17", None)]
        {
            let meta = json!({
                "namespace": "shop", "name": "web-1", "annotations": {DELETION_COST_ANNOTATION: cost},
                "managedFields": [{"manager": "kubelet"}, {"manager": manager, "operation": "Apply"}],
            });
            let got = pod(&meta, &json!({}));
            assert_eq!(got.cost, expected, "{manager} {cost}");
            assert!(got.annotations.is_empty(), "no weight");
        }
    }

    #[test]
    fn a_pod_is_ready_by_its_condition_and_has_no_address_when_it_has_ended() {
        let meta = json!({"namespace": "shop", "name": "web-1"});
        let ready = |status| json!([{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": status}]);
        for (status, is_ready, has_address) in [
            (json!({"podIP": "10.0.0.1"}), true, true),
            (json!({"podIP": "fd00::1", "conditions": ready("False")}), false, true),
            (
                json!({"podIP": "10.0.0.1", "phase": "Running", "conditions": ready("True")}),
                true,
                true,
            ),
            (json!({"podIP": "10.0.0.1", "phase": "Failed"}), false, false),
            (
                json!({"podIP": "10.0.0.1", "phase": "Succeeded", "conditions": ready("True")}),
                false,
                false,
            ),
            (json!({}), false, false),
        ] {
            let got = pod(&meta, &status);
            assert_eq!((got.ready, got.address.is_some()), (is_ready, has_address), "{status}");
        }
    }

    #[test]
    fn a_namespace_keeps_its_labels() {
        let meta = json!({"name": "shop", "labels": {"tier": "front"}});
        match Translator::new().namespace(&object(json!({"metadata": meta}))) {
            Change::Namespace(name, Some(namespace)) => {
                assert_eq!((&*name, &*namespace.labels.to_string()), ("shop", "tier=front"));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_node_is_cordoned_by_its_spec_and_ready_by_its_condition() {
        for (value, cordoned, ready) in [
            (json!({"metadata": {"name": "n1"}}), false, true),
            (json!({"metadata": {"name": "n1"}, "spec": {"unschedulable": true}}), true, true),
            (
                json!({"metadata": {"name": "n1"}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}),
                false,
                false,
            ),
        ] {
            match Translator::new().node(&object(value)) {
                Change::Node(name, Some(node)) => {
                    assert_eq!((&*name, node.cordoned, node.ready), ("n1", cordoned, ready));
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
