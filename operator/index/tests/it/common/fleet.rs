//! The size that issue and tests speak of: 5,000 policies, 50,000 endpoints, 16 classes of 2
//! dataplanes.

use baton_index::{
    Allowance, Change, Class, Conditions, Family, Index, Interner, Key, Labels, Listener, Node,
    Pod, Policy, PortRef, Report, Service, ServicePort, Slice, SliceEndpoint, SliceWriter,
};
use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

pub const POLICIES: u32 = 5_000;
pub const ENDPOINTS_EACH: u32 = 10;
pub const CLASSES: u32 = 16;
pub const NODES: u32 = 500;

/// Makes objects as an operator would: one interner for all.
#[derive(Default)]
pub struct Fleet {
    interner: Interner,
}

impl Fleet {
    fn key(&mut self, name: &str) -> Key {
        Key { namespace: self.interner.text("team"), name: self.interner.text(name) }
    }

    pub fn policy_key(&mut self, at: u32) -> Key {
        self.key(&format!("shop-{at}"))
    }

    pub fn pod_key(&mut self, at: u32, pod: u32) -> Key {
        self.key(&format!("shop-{at}-7c9f8b6d54-{pod:05}"))
    }

    pub fn policy(&mut self, at: u32) -> Change {
        let template = serde_json::json!({"name": "", "frontends": [], "backends": []});
        let policy = Policy {
            uid: format!("uid-{at}").into(),
            created: at.into(),
            generation: 1,
            service: self.interner.text(&format!("shop-{at}")),
            listeners: vec![Listener {
                name: self.interner.text("http"),
                port: u16::try_from(1_000 + at / CLASSES).expect("a port"),
                allocated: None,
                service_port: PortRef::Number(80),
                addresses: Vec::new(),
                own: None,
                protocol_by_port: false,
            }],
            template: Ok(Arc::new(serde_json::from_value(template).expect("a template"))),
            weights: None,
            classes: self.interner.labels([("class", format!("{}", at % CLASSES).as_str())]),
            frontend: None,
            allow_from: None,
            deletion_cost: false,
            drain_cordoned: true,
        };
        Change::Policy(self.policy_key(at), Some(Arc::new(policy)))
    }

    pub fn service(&mut self, at: u32) -> Change {
        let service = Service {
            ports: vec![ServicePort { name: self.interner.text("http"), port: 80, protocol: None }],
            families: vec![Family::V4],
            external_name: false,
            selects: true,
            front: None,
        };
        Change::Service(self.policy_key(at), Some(Arc::new(service)))
    }

    fn address(at: u32, pod: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from(0x0a10_0000 + at * 64 + pod))
    }

    /// The slice of a policy's Service; `unready` of its endpoints are not ready.
    pub fn slice(&mut self, at: u32, unready: u32) -> Change {
        let endpoints = (0..ENDPOINTS_EACH).map(|pod| SliceEndpoint {
            address: Self::address(at, pod),
            conditions: Conditions::new(Some(pod >= unready), None, None),
            pod: Some(self.pod_key(at, pod).name),
            node: Some(self.interner.text(&format!("node-{}", (at + pod * 7) % NODES))),
        });
        let endpoints = endpoints.collect();
        let slice = Slice {
            service: self.interner.text(&format!("shop-{at}")),
            ports: vec![ServicePort {
                name: self.interner.text("http"),
                port: 8_080,
                protocol: None,
            }],
            endpoints,
            writer: SliceWriter::Cluster,
            uid: None,
            zones: Vec::new(),
        };
        Change::Slice(self.key(&format!("shop-{at}-x7k2p")), Some(Arc::new(slice)))
    }

    pub fn pod(&mut self, at: u32, pod: u32, deleting: bool) -> Change {
        let (app, name) = (format!("shop-{at}"), self.pod_key(at, pod));
        let labels =
            [("app", app.as_str()), ("pod-template-hash", "7c9f8b6d54"), ("tier", "backend")];
        let value = Pod {
            labels: self.interner.labels(labels),
            annotations: self.interner.annotations([]),
            deleting,
            ready: true,
            node: Some(self.interner.text(&format!("node-{}", (at + pod * 7) % NODES))),
            address: Some(Self::address(at, pod)),
            second_address: None,
            host_network: false,
            cost: None,
        };
        Change::Pod(name, Some(Arc::new(value)))
    }

    pub fn node(&mut self, at: u32, cordoned: bool) -> Change {
        let name = self.interner.text(&format!("node-{at}"));
        Change::Node(name, Some(Arc::new(Node { cordoned, ready: true, zone: None })))
    }

    pub fn dataplane_key(&mut self, class: u32, at: u32) -> Key {
        Key::new("baton", format!("dataplane-{class}-{at}"))
    }

    fn dataplanes(&mut self) -> Vec<Change> {
        let mut all = Vec::new();
        for class in 0..CLASSES {
            let label = format!("{class}");
            let value = Class {
                created: 0,
                generation: 1,
                labels: Labels::from_iter([("class", label.as_str())]),
                default: false,
                namespace: "baton".into(),
                selector: Labels::from_iter([("class", label.as_str())]),
                control_port: 9_900,
                leg_ports: Some((20_000, 32_767)),
                frontend_ports: Some((18_000, 18_009)),
                reserved_ports: Vec::new(),
                allowed: vec![Allowance {
                    ports: vec!["1000-65535".parse().expect("ports")],
                    ..Allowance::default()
                }],
                limit_policies: 1_024,
                limit_backends: Some(4_096),
            };
            all.push(Change::Class(label.as_str().into(), Some(Arc::new(value))));
            // A Service in front of them, with as many ports in a slice as it may have.
            let ports: Vec<u16> = (0..POLICIES.div_ceil(CLASSES))
                .map(|at| u16::try_from(1_000 + at).expect("a port"))
                .collect();
            for (number, ports) in ports.chunks(100).enumerate() {
                let endpoints = (0..2u8).map(|at| SliceEndpoint {
                    address: IpAddr::V4(Ipv4Addr::new(10, 1, at, 0)),
                    conditions: Conditions::new(None, None, None),
                    pod: Some(self.dataplane_key(class, at.into()).name),
                    node: None,
                });
                let ports = ports.iter().map(|port| ServicePort {
                    name: port.to_string().into(),
                    port: *port,
                    protocol: None,
                });
                let front = Slice {
                    service: format!("front-{class}").into(),
                    ports: ports.collect(),
                    endpoints: endpoints.collect(),
                    writer: SliceWriter::Cluster,
                    uid: None,
                    zones: Vec::new(),
                };
                let name = Key::new("baton", format!("front-{class}-{number}"));
                all.push(Change::Slice(name, Some(Arc::new(front))));
            }
            for at in 0..2u8 {
                let pod = Pod {
                    labels: Labels::from_iter([("class", label.as_str())]),
                    cost: None,
                    second_address: None,
                    host_network: false,
                    annotations: Labels::default(),
                    deleting: false,
                    ready: true,
                    node: None,
                    address: Some(IpAddr::V4(Ipv4Addr::new(
                        10,
                        1,
                        at,
                        u8::try_from(class).expect("few"),
                    ))),
                };
                all.push(Change::Pod(self.dataplane_key(class, at.into()), Some(Arc::new(pod))));
            }
        }
        all
    }

    /// Everything, as changes.
    pub fn all(&mut self) -> Vec<Change> {
        let mut all = self.dataplanes();
        for node in 0..NODES {
            all.push(self.node(node, false));
        }
        for at in 0..POLICIES {
            all.extend([self.policy(at), self.service(at), self.slice(at, 0)]);
            for pod in 0..ENDPOINTS_EACH {
                all.push(self.pod(at, pod, false));
            }
        }
        all
    }

    /// All dataplanes have everything.
    pub fn acknowledgements(&mut self, index: &Index) -> Vec<Change> {
        let mut all = Vec::new();
        for class in 0..CLASSES {
            let revision = index.class(&format!("{class}")).expect("it exists").revision;
            for at in 0..2 {
                let report = Report { acknowledged: Some(revision), ..Report::default() };
                all.push(Change::Report(self.dataplane_key(class, at), Some(Arc::new(report))));
            }
        }
        all
    }

    /// An index that knows everything, acknowledged.
    pub fn index(&mut self) -> Index {
        let mut index = Index::new();
        for change in self.all() {
            index.apply(change);
        }
        let _ = index.fold(0);
        for change in self.acknowledgements(&index) {
            index.apply(change);
        }
        let _ = index.fold(1);
        index
    }
}
