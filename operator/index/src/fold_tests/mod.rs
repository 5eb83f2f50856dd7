//! Folds of small, named situations. This file owns the situation; what is shown is in the files
//! below it.

use crate::*;
use std::{net::IpAddr, sync::Arc};

mod adoptable;
mod clients;
mod coverage;
mod figures;
mod frontends;
mod kept;
mod movable;
mod per_listener;
mod reach;
mod situations;
mod tenants;

fn key(name: &str) -> Key {
    Key::new("ns", name)
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn policy(created: i64, service: &str, port: u16) -> Policy {
    let template = r#"{"name": "", "frontends": [], "backends": []}"#;
    Policy {
        uid: format!("uid-{created}").into(),
        created,
        generation: 1,
        service: service.into(),
        listeners: vec![Listener {
            name: "http".into(),
            port,
            allocated: None,
            service_port: PortRef::Name("http".into()),
            addresses: Vec::new(),
            own: None,
            protocol_by_port: false,
        }],
        template: Ok(Arc::new(serde_json::from_str(template).expect("a template"))),
        weights: None,
        classes: Labels::default(),
        frontend: None,
        allow_from: None,
        deletion_cost: false,
        drain_cordoned: true,
    }
}

/// A ready pod that is nowhere yet.
fn bare_pod(labels: Labels) -> Pod {
    Pod {
        labels,
        annotations: Labels::default(),
        deleting: false,
        ready: true,
        node: None,
        address: None,
        second_address: None,
        host_network: false,
        cost: None,
    }
}

fn pod(last: u8, labels: Labels) -> Change {
    let value = Pod { node: Some("node".into()), address: Some(address(last)), ..bare_pod(labels) };
    Change::Pod(key(&format!("pod-{last}")), Some(Arc::new(value)))
}

fn slice(service: &str, pods: &[(u8, Conditions)]) -> Change {
    let endpoints = pods.iter().map(|(last, conditions)| SliceEndpoint {
        address: address(*last),
        conditions: *conditions,
        pod: Some(format!("pod-{last}").into()),
        node: Some("node".into()),
    });
    slice_of(service, http(8_080), endpoints)
}

/// A slice that the cluster writes.
fn slice_of(
    service: &str,
    ports: Vec<ServicePort>,
    endpoints: impl Iterator<Item = SliceEndpoint>,
) -> Change {
    let value = Slice {
        service: service.into(),
        ports,
        endpoints: endpoints.collect(),
        writer: SliceWriter::Cluster,
        uid: None,
        zones: Vec::new(),
    };
    Change::Slice(key(&format!("{service}-1")), Some(Arc::new(value)))
}

fn http(port: u16) -> Vec<ServicePort> {
    vec![ServicePort { name: "http".into(), port, protocol: None }]
}

fn service(name: &str) -> Change {
    service_of(name, vec![Family::V4])
}

fn service_of(name: &str, families: Vec<Family>) -> Change {
    let value =
        Service { ports: http(80), families, external_name: false, selects: true, front: None };
    Change::Service(key(name), Some(Arc::new(value)))
}

fn add(index: &mut Index, name: &str, policy: Policy) {
    index.apply(Change::Policy(key(name), Some(Arc::new(policy))));
}

const READY: Conditions = Conditions { ready: true, serving: true, terminating: false };
const UNREADY: Conditions = Conditions { ready: false, serving: false, terminating: false };
const LEAVING: Conditions = Conditions { ready: false, serving: true, terminating: true };

/// A slice of a Service in front of dataplanes, with these ports of the pods.
fn in_front(name: &str, pods: &[&str], ports: &[u16]) -> Change {
    let endpoints = pods.iter().enumerate().map(|(at, pod)| SliceEndpoint {
        address: IpAddr::from([10, 2, 0, u8::try_from(at).expect("a few")]),
        conditions: READY,
        pod: Some((*pod).into()),
        node: None,
    });
    let ports = ports.iter().map(|port| ServicePort {
        name: format!("port-{port}").into(),
        port: *port,
        protocol: None,
    });
    slice_of(name, ports.collect(), endpoints)
}

pub(crate) fn class() -> Class {
    Class {
        created: 0,
        generation: 1,
        labels: Labels::default(),
        default: true,
        namespace: "ns".into(),
        selector: Labels::from_iter([("app", "dataplane")]),
        control_port: 9_900,
        leg_ports: Some((20_000, 32_767)),
        frontend_ports: Some((18_000, 18_009)),
        reserved_ports: vec!["9910".parse().expect("a port")],
        allowed: vec![Allowance {
            ports: vec!["1-65535".parse().expect("ports")],
            // No Pod has these.
            endpoints: vec!["10.1.0.0/16".parse().expect("a network")],
            ..Allowance::default()
        }],
        limit_policies: 2,
        limit_backends: None,
    }
}

/// One class with one dataplane (pod-200), a Service `lb` in front of it, Services `s` and `t` with
/// two ready pods each, policy `p` on `s`.
fn index() -> Index {
    built(Index::new())
}

/// The same, of one that knows nothing yet.
fn built(mut index: Index) -> Index {
    index.apply(Change::Class("class".into(), Some(Arc::new(class()))));
    index.apply(pod(200, Labels::from_iter([("app", "dataplane")])));
    index.apply(in_front("lb", &["pod-200"], &[80]));
    for (name, pods) in [("s", [1, 2]), ("t", [3, 4])] {
        index.apply(service(name));
        index.apply(slice(name, &pods.map(|pod| (pod, READY))));
        for last in pods {
            index.apply(pod(last, Labels::default()));
        }
    }
    add(&mut index, "p", policy(1, "s", 80));
    let _ = index.fold(1);
    index
}

fn verdict(index: &Index, name: &str) -> Verdict {
    let key = key(name);
    let found = index.verdicts().find(|verdict| verdict.policy == key);
    (**found.expect("it was judged")).clone()
}

fn expect(index: &Index, name: &str, kind: ConditionKind, reason: Reason, part: &str) {
    let verdict = verdict(index, name);
    let condition = verdict.condition(kind);
    assert_eq!(condition.reason, reason, "{condition:?}");
    assert!(condition.message.contains(part), "{condition:?}");
}

impl Index {
    /// Asserts what a condition of a policy is: `POLICY CONDITION REASON`, and `: PART` of its
    /// message.
    #[track_caller]
    fn says(&self, said: &str) {
        let (words, part) = said.split_once(": ").unwrap_or((said, ""));
        let words: Vec<_> = words.split(' ').collect();
        let [name, kind, reason] = words[..] else { panic!("three words: {said}") };
        let mut kinds = ConditionKind::ALL.into_iter();
        let kind = kinds.find(|k| format!("{k:?}") == kind).expect(said);
        let verdict = verdict(self, name);
        let condition = verdict.condition(kind);
        assert_eq!(format!("{:?}", condition.reason), reason, "{condition:?}");
        assert!(condition.message.contains(part), "{condition:?}");
    }
}

fn report(index: &mut Index, report: Report) {
    index.apply(Change::Report(key("pod-200"), Some(Arc::new(report))));
}

fn backends(index: &Index) -> Vec<(String, u16, bool)> {
    let policies = index.snapshot("class").filter(|policy| policy.name == "ns/p/http");
    policies.flat_map(|p| &p.backends).map(|b| (b.name.clone(), b.weight, b.draining)).collect()
}
