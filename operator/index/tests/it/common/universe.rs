//! Changes in a universe of few names, and the objects that exist after them.

use baton_api::MoveMethod;
use baton_index::{
    Allowance, BackendFigures, BackendTotals, Change, Class, Conditions, DrainFigures, Expression,
    Family, Figures, Key, Labels, Listener, NAMESPACE_NAME_LABEL, Namespace, NamespaceSelector,
    Network, Node, Peer, Pod, Policy, PolicyFigures, PortRange, PortRef, Refusal, Report, Selector,
    Service, ServicePort, Shim, Slice, SliceEndpoint, SliceWriter, Text, Totals, WeightSource,
    Weights,
};
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

/// All objects that exist.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    pub policies: BTreeMap<Key, Arc<Policy>>,
    pub services: BTreeMap<Key, Arc<Service>>,
    pub slices: BTreeMap<Key, Arc<Slice>>,
    pub pods: BTreeMap<Key, Arc<Pod>>,
    pub nodes: BTreeMap<Text, Arc<Node>>,
    pub namespaces: BTreeMap<Text, Arc<Namespace>>,
    pub classes: BTreeMap<Text, Arc<Class>>,
    pub shims: BTreeMap<Text, Arc<Shim>>,
    pub reports: BTreeMap<Key, Arc<Report>>,
    pub figures: BTreeMap<Key, Arc<Figures>>,
    pub excluded: BTreeSet<Text>,
    /// Policies as they were when they were good the last time that somebody looked.
    pub good: BTreeMap<Key, Arc<Policy>>,
    /// What each class had of each policy then.
    pub in_force: BTreeMap<Text, Given>,
}

/// Snapshot policies, by policy.
pub type Given = BTreeMap<Key, Vec<baton_api::Policy>>;

fn put<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}

impl Objects {
    /// After this change.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Policy(key, value) => {
                let uid = |p: &Arc<Policy>| p.uid.clone();
                if self.policies.get(&key).map(uid) != value.as_ref().map(uid) {
                    self.good.remove(&key);
                }
                put(&mut self.policies, key, value);
            }
            Change::Service(key, value) => put(&mut self.services, key, value),
            Change::Slice(key, value) => put(&mut self.slices, key, value),
            Change::Pod(key, value) => put(&mut self.pods, key, value),
            Change::Node(key, value) => put(&mut self.nodes, key, value),
            Change::Namespace(key, value) => put(&mut self.namespaces, key, value),
            Change::Class(key, value) => {
                if value.is_none() {
                    self.in_force.remove(&key);
                }
                put(&mut self.classes, key, value);
            }
            Change::Shim(key, value) => put(&mut self.shims, key, value),
            Change::Report(key, value) => put(&mut self.reports, key, value),
            Change::Figures(key, value) => put(&mut self.figures, key, value),
            Change::Excluded(nodes) => self.excluded = nodes,
            Change::Held(..) | Change::Partial(_) => panic!("not of this universe"),
        }
    }

    /// As changes that make them from nothing.
    pub fn changes(&self) -> Vec<Change> {
        let mut all = Vec::new();
        macro_rules! each {
            ($map:ident, $kind:ident) => {
                let made = self.$map.iter();
                all.extend(made.map(|(k, v)| Change::$kind(k.clone(), Some(Arc::clone(v)))));
            };
        }
        each!(policies, Policy);
        each!(services, Service);
        each!(slices, Slice);
        each!(pods, Pod);
        each!(nodes, Node);
        each!(namespaces, Namespace);
        each!(classes, Class);
        each!(shims, Shim);
        all.push(Change::Excluded(self.excluded.clone()));
        each!(reports, Report);
        each!(figures, Figures);
        all
    }
}

fn namespace() -> impl Strategy<Value = Text> {
    prop_oneof![9 => Just("a".into()), 1 => Just("b".into())]
}

fn named(prefix: &'static str, count: u8) -> impl Strategy<Value = Text> {
    (0..count).prop_map(move |n| format!("{prefix}{n}").into())
}

fn key(prefix: &'static str, count: u8) -> impl Strategy<Value = Key> {
    (namespace(), named(prefix, count)).prop_map(|(ns, name)| Key::new(ns, name))
}

fn labels() -> impl Strategy<Value = Labels> {
    let pairs = prop::collection::btree_map(named("l", 2), named("v", 2), 0..3);
    pairs.prop_map(Labels::from_iter)
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        8 => (1u8..6).prop_map(|n| IpAddr::V4(Ipv4Addr::new(10, 0, 0, n))),
        4 => (1u8..4).prop_map(|n| format!("fd00::{n}").parse().expect("an address")),
        1 => prop::sample::select(vec!["0.0.0.0", "::", "224.0.0.1", "::ffff:10.0.0.1", "ff02::1"])
            .prop_map(|a| a.parse().expect("an address")),
    ]
}

fn listener(at: u16) -> impl Strategy<Value = Listener> {
    let name = prop_oneof![
        40 => Just(Text::from(format!("port{at}"))),
        1 => Just(Text::from("port0")),
        1 => Just(Text::from("x".repeat(200))),
        1 => Just(Text::from("not a name")),
    ];
    let service_port = prop_oneof![
        named("p", 3).prop_map(PortRef::Name),
        named("p", 3).prop_map(PortRef::Section),
        (80u16..83).prop_map(PortRef::Number),
    ];
    let addresses = prop_oneof![
        4 => Just(Vec::new()),
        1 => prop::collection::vec(address(), 1..3),
    ];
    let port = prop_oneof![40 => 78 + 3 * at..82 + 3 * at, 1 => Just(0)];
    (name, port, service_port, addresses).prop_map(|(name, port, service_port, addresses)| {
        Listener {
            name,
            port,
            allocated: None,
            service_port,
            addresses,
            own: None,
            protocol_by_port: false,
        }
    })
}

fn listeners() -> impl Strategy<Value = Vec<Listener>> {
    let two = (listener(0), listener(1)).prop_map(|(one, other)| vec![one, other]);
    prop_oneof![
        1 => Just(Vec::new()),
        15 => listener(0).prop_map(|one| vec![one]),
        15 => two,
    ]
}

/// A template of which little matters here: the fields are only passed on.
fn template() -> impl Strategy<Value = Result<Arc<baton_api::Policy>, Refusal>> {
    (0u64..20).prop_map(|n| {
        let refusal = Refusal { field: "spec.drain".into(), problem: "no".into() };
        if n == 0 {
            return Err(refusal);
        }
        let mut policy: baton_api::Policy = serde_json::from_value(serde_json::json!({
            "name": "", "frontends": [], "backends": [], "slowStart": format!("{n}s"),
        }))
        .expect("a template");
        // The condition `Adoptable` goes by it.
        policy.migration.method = match n % 3 {
            0 => MoveMethod::Adoption,
            1 => MoveMethod::Auto,
            _ => MoveMethod::Translation,
        };
        if n == 1 {
            // What the dataplane would refuse.
            policy.migration.ratio_percent = 1;
        }
        Ok(Arc::new(policy))
    })
}

fn selector() -> impl Strategy<Value = Selector> {
    let values = || prop::collection::btree_set(named("v", 2), 1..3);
    let expression = prop_oneof![
        (named("l", 2), values()).prop_map(|(key, all)| Expression::In(key, all)),
        (named("l", 2), values()).prop_map(|(key, all)| Expression::NotIn(key, all)),
        named("l", 2).prop_map(Expression::Exists),
        named("l", 2).prop_map(Expression::DoesNotExist),
    ];
    let expressions = prop_oneof![
        2 => Just(Vec::new()),
        1 => prop::collection::vec(expression, 1..3),
    ];
    (labels(), expressions).prop_map(|(labels, expressions)| Selector { labels, expressions })
}

/// Some clients of a policy.
fn peer() -> impl Strategy<Value = Peer> {
    let named = Labels::from_iter([(NAMESPACE_NAME_LABEL, "b")]);
    let by_name = Selector { labels: named, expressions: Vec::new() };
    let namespaces =
        prop_oneof![2 => Just(None), 1 => Just(Some(by_name)), 4 => selector().prop_map(Some)];
    prop_oneof![
        1 => address().prop_map(|a| Peer::Network(baton_api::Network::host(a))),
        4 => (namespaces, selector()).prop_map(|(namespaces, pods)| Peer::Pods { namespaces, pods }),
    ]
}

fn policy() -> impl Strategy<Value = Policy> {
    let weights = prop::option::of((any::<bool>(), 0u16..4).prop_map(|(label, default)| Weights {
        source: match label {
            true => WeightSource::Label("l0".into()),
            false => WeightSource::Annotation("weight".into()),
        },
        default,
    }));
    (
        (0u8..3, 0i64..3, 0i64..3),
        named("s", 3),
        listeners(),
        template(),
        weights,
        prop_oneof![3 => Just(Labels::default()), 1 => labels()],
        prop::option::of(prop::collection::vec(peer(), 0..4)),
        (any::<bool>(), any::<bool>()),
    )
        .prop_map(
            |(
                (uid, created, generation),
                service,
                listeners,
                template,
                weights,
                classes,
                allow_from,
                flags,
            )| {
                Policy {
                    uid: format!("uid{uid}").into(),
                    created,
                    generation,
                    service,
                    listeners,
                    template,
                    weights,
                    classes,
                    frontend: None,
                    allow_from: allow_from.map(Arc::from),
                    deletion_cost: flags.0,
                    drain_cordoned: flags.1,
                }
            },
        )
}

fn ports() -> impl Strategy<Value = Vec<ServicePort>> {
    let port = |name: Text, port| ServicePort { name, port, protocol: None };
    let some = prop::collection::vec((named("p", 3), 80u16..83), 0..4);
    let some = some
        .prop_map(move |all| all.into_iter().map(|(name, number)| port(name, number)).collect());
    let all = (0..3u16).map(|n| port(format!("p{n}").into(), 80 + n)).collect();
    prop_oneof![2 => Just::<Vec<ServicePort>>(all), 1 => some]
}

fn service() -> impl Strategy<Value = Service> {
    let family = prop::sample::select(vec![Family::V4, Family::V6]);
    let external = prop::bool::weighted(0.05);
    (ports(), prop::collection::vec(family, 0..3), external).prop_map(
        |(ports, families, external_name)| Service {
            ports,
            families,
            external_name,
            selects: true,
            front: None,
        },
    )
}

fn one_label() -> impl Strategy<Value = Labels> {
    (named("l", 2), named("v", 2)).prop_map(|pair| Labels::from_iter([pair]))
}

/// What an endpoint is fit for, as slices say it.
pub fn conditions() -> impl Strategy<Value = Conditions> {
    let flag = || prop::option::of(any::<bool>());
    (flag(), flag(), prop::option::weighted(0.3, any::<bool>()))
        .prop_map(|(ready, serving, terminating)| Conditions::new(ready, serving, terminating))
}

fn slice() -> impl Strategy<Value = Slice> {
    let pod = prop::option::weighted(
        0.9,
        prop_oneof![
            10 => named("pod", 5),
            1 => Just(Text::from("10.0.0.1")),
            1 => Just(Text::from("p".repeat(180))),
            1 => Just(Text::from("not a name")),
        ],
    );
    let endpoint = (address(), conditions(), pod, prop::option::of(named("n", 2)));
    let endpoint = endpoint.prop_map(|(address, conditions, pod, node)| SliceEndpoint {
        address,
        conditions,
        pod,
        node,
    });
    (named("s", 3), ports(), prop::collection::vec(endpoint, 0..6)).prop_map(
        |(service, ports, endpoints)| Slice {
            service,
            ports,
            endpoints,
            writer: SliceWriter::Cluster,
            uid: None,
            zones: Vec::new(),
        },
    )
}

fn pod() -> impl Strategy<Value = Pod> {
    let weight =
        prop::option::of(prop::sample::select(vec!["7", "0", "3", "+1", "", "65536", "x"]));
    (
        labels(),
        weight,
        (prop::bool::weighted(0.2), prop::bool::weighted(0.8), prop::bool::weighted(0.1)),
        prop::option::of(named("n", 2)),
        (prop::option::weighted(0.8, address()), prop::option::weighted(0.2, address())),
    )
        .prop_map(|(labels, weight, (deleting, ready, host_network), node, addresses)| Pod {
            labels,
            annotations: weight.map(|w| ("weight", w)).into_iter().collect(),
            deleting,
            ready,
            node,
            address: addresses.0,
            second_address: addresses.1,
            host_network,
            cost: None,
        })
}

fn networks() -> impl Strategy<Value = Vec<Network>> {
    let read = |texts: &[&str]| texts.iter().map(|t| t.parse().expect(t)).collect();
    prop_oneof![
        5 => Just(read(&["0.0.0.0/0", "::/0"])),
        1 => Just(read(&["10.0.0.0/30", "fd00::1"])),
        1 => Just(Vec::new()),
    ]
}

fn port_range(text: &str) -> PortRange {
    text.parse().expect(text)
}

fn allowance() -> impl Strategy<Value = Allowance> {
    let selector = |names: &[&str], labels| NamespaceSelector {
        names: names.iter().map(|name| Text::from(*name)).collect(),
        labels,
    };
    let namespaces = prop_oneof![
        8 => Just(selector(&[], Labels::default())),
        1 => Just(selector(&["a"], Labels::default())),
        1 => Just(selector(&["b", "c"], Labels::default())),
        1 => one_label().prop_map(move |labels| selector(&[], labels)),
        1 => one_label().prop_map(move |labels| selector(&["a"], labels)),
    ];
    let ports = prop_oneof![
        8 => Just(vec![port_range("1-65535")]),
        1 => Just(vec![port_range("78-79"), port_range("82")]),
    ];
    (namespaces, ports, networks(), networks()).prop_map(
        |(namespaces, ports, addresses, endpoints)| Allowance {
            namespaces,
            ports,
            addresses,
            endpoints,
        },
    )
}

fn class() -> impl Strategy<Value = Class> {
    let range = prop::option::weighted(0.2, Just((83u16, 150u16)));
    (
        (0i64..2, prop::bool::weighted(0.7)),
        labels(),
        namespace(),
        prop_oneof![1 => Just(Labels::default()), 6 => one_label()],
        prop_oneof![6 => 9900u16..9902, 1 => 78u16..80],
        (
            range,
            prop_oneof![6 => Just(Vec::new()), 1 => Just(vec![port_range("81-82")])],
            prop_oneof![
                1 => Just(Vec::new()),
                12 => prop::collection::vec(allowance(), 1..4),
            ],
        ),
        (0usize..5, prop::option::weighted(0.3, 0usize..12)),
    )
        .prop_map(
            |(
                (created, default),
                labels,
                namespace,
                selector,
                control_port,
                (leg_ports, reserved_ports, allowed),
                limits,
            )| {
                Class {
                    created,
                    generation: created,
                    labels,
                    default,
                    namespace,
                    selector,
                    control_port,
                    leg_ports,
                    frontend_ports: Some((18_000, 18_009)),
                    reserved_ports,
                    allowed,
                    limit_policies: limits.0,
                    limit_backends: limits.1,
                }
            },
        )
}

fn figures() -> impl Strategy<Value = Figures> {
    let backend = (named("pod", 5), 0u64..4, any::<bool>(), prop::option::of(0u64..4));
    let backend = backend.prop_map(|(name, flows, bad, drain)| BackendFigures {
        name,
        flows,
        pinned: flows / 2,
        outstanding: flows / 3,
        totals: BackendTotals::default(),
        probed: flows > 0,
        unadoptable: bad.then(|| "no adopter".into()),
        untranslatable: (bad && flows > 2).then(|| "accept queue full".into()),
        unusable: bad.then(|| "down".into()),
        drain: drain.map(|left| {
            Box::new(DrainFigures {
                waiting: [("quiet time".into(), left)].into(),
                since: 100,
                until: 200,
                ..DrainFigures::default()
            })
        }),
    });
    let name = (0u8..4, 0u8..2).prop_map(|(p, l)| Text::from(format!("a/lb{p}/port{l}")));
    let policies =
        prop::collection::btree_map(name, (0u64..4, prop::collection::vec(backend, 0..4)), 0..4);
    (0i64..3, policies).prop_map(|(at, policies)| {
        let policies = policies.into_iter().map(|(name, (flows, mut backends))| {
            backends.sort_by(|a, b| a.name.cmp(&b.name));
            backends.dedup_by(|a, b| a.name == b.name);
            PolicyFigures {
                name,
                flows,
                panic: flows == 3,
                backends,
                totals: Totals::default(),
                ..PolicyFigures::default()
            }
        });
        Figures { at, uptime: 0, policies: policies.collect() }
    })
}

fn some<T: std::fmt::Debug>(
    value: impl Strategy<Value = T>,
) -> impl Strategy<Value = Option<Arc<T>>> {
    prop::option::weighted(0.8, value.prop_map(Arc::new))
}

/// Any change.
pub fn change() -> impl Strategy<Value = Change> {
    let node =
        (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(cordoned, ready, zoned)| Node {
            cordoned,
            ready,
            zone: zoned.then(|| "zone".into()),
        });
    let trouble = || prop::option::of(Just(Text::from("trouble")));
    let shim = (
        trouble(),
        prop::collection::btree_map(key("pod", 5), Just(Text::from("old kernel")), 0..2),
    )
        .prop_map(|(unreachable, unattached)| Shim { unreachable, unattached });
    let own = prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(address(), 1..3)];
    let report = (trouble(), own).prop_map(|(unreachable, addresses)| Report {
        unreachable,
        addresses,
        ..Report::default()
    });
    let namespace = labels().prop_map(|labels| Namespace { labels });
    prop_oneof![
        4 => (key("lb", 4), some(policy())).prop_map(|(k, v)| Change::Policy(k, v)),
        2 => (key("s", 3), some(service())).prop_map(|(k, v)| Change::Service(k, v)),
        4 => (key("slice", 4), some(slice())).prop_map(|(k, v)| Change::Slice(k, v)),
        4 => (key("pod", 5), some(pod())).prop_map(|(k, v)| Change::Pod(k, v)),
        1 => (named("n", 2), some(node)).prop_map(|(k, v)| Change::Node(k, v)),
        1 => (self::namespace(), some(namespace)).prop_map(|(k, v)| Change::Namespace(k, v)),
        2 => (named("c", 3), some(class())).prop_map(|(k, v)| Change::Class(k, v)),
        1 => (named("n", 2), some(shim)).prop_map(|(k, v)| Change::Shim(k, v)),
        1 => prop::collection::btree_set(named("n", 2), 0..3).prop_map(Change::Excluded),
        3 => (key("pod", 5), some(report)).prop_map(|(k, v)| Change::Report(k, v)),
        1 => (key("pod", 5), some(figures())).prop_map(|(k, v)| Change::Figures(k, v)),
    ]
}

/// A world that is likely to work, and many changes of it.
pub fn changes(most: usize) -> impl Strategy<Value = Vec<Change>> {
    let good = (service(), slice(), policy()).prop_map(|(mut service, mut slice, mut policy)| {
        service.ports = vec![ServicePort { name: "p0".into(), port: 80, protocol: None }];
        service.external_name = false;
        slice.ports.clone_from(&service.ports);
        slice.service = "s0".into();
        policy.service = "s0".into();
        policy.classes = Labels::default();
        for listener in &mut policy.listeners {
            listener.service_port = PortRef::Number(80);
        }
        vec![
            Change::Service(Key::new("a", "s0"), Some(Arc::new(service))),
            Change::Slice(Key::new("a", "slice0"), Some(Arc::new(slice))),
            Change::Policy(Key::new("a", "lb0"), Some(Arc::new(policy))),
        ]
    });
    let class = class().prop_map(|mut class| {
        (class.default, class.limit_policies, class.limit_backends) = (true, 3, None);
        vec![Change::Class("c0".into(), Some(Arc::new(class)))]
    });
    let rest = prop::collection::vec(change(), 0..most);
    (good, class, rest).prop_map(|(good, class, rest)| [good, class, rest].concat())
}
