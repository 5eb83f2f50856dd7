//! No policy that is in a class's snapshot makes a dataplane refuse what is another one's: the
//! engine's own check, and a small oracle of what the program checks around it, take every snapshot
//! of generated clusters.

use crate::common::universe::{Objects, changes};
use baton_api::{Endpoint, Limits, Snapshot};
use baton_engine::{Engine, Instant, Settings};
use baton_index::{Change, Class, Index, Key, LINGERING_SHARE, Labels, Pod, Report, Text};
use baton_packet::Mac;
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

/// The addresses of each dataplane of a class, as it says and as the cluster says; none that no
/// interface can have.
fn dataplanes(index: &Index, objects: &Objects, class: &str) -> Vec<Vec<IpAddr>> {
    let all = index.class(class).and_then(|class| class.dataplanes);
    let own = all.into_iter().flatten().map(|dataplane| {
        let pod = &objects.pods[&dataplane.pod];
        let said = objects.reports.get(&dataplane.pod);
        let said = said.into_iter().flat_map(|report| &report.addresses);
        let known = [pod.address, pod.second_address].into_iter().flatten();
        let own: BTreeSet<IpAddr> = known
            .chain(said.copied())
            .map(|address| address.to_canonical())
            .filter(|address| !address.is_unspecified() && !address.is_multicast())
            .collect();
        own.into_iter().collect::<Vec<_>>()
    });
    own.filter(|own| !own.is_empty()).collect()
}

fn engine(addresses: Vec<IpAddr>, class: &Class) -> Engine {
    let (first, last) = class.leg_ports.unwrap_or((50_000, 60_000));
    let backends = class.limit_backends.unwrap_or(4_096).max(1);
    let settings = Settings {
        limits: Limits {
            flows: 64,
            backends: u16::try_from(backends).expect("few"),
            closing_legs: 64,
            kept_segments: 64,
            guarded_flows: 64,
            affinities: 64,
            ..Limits::default()
        },
        addresses,
        legs_from_all: false,
        ports: first..=last,
        mac: Mac([2, 0, 0, 0, 0, 1]),
        seed: 7,
        share: baton_engine::Share::default(),
        hash_keys: (3, 4),
        mtu: 1_500,
    };
    Engine::new(settings, Instant(0)).expect("an engine")
}

/// A frontend where the program itself or its node listens: at all addresses, as the chart has it.
fn meets_a_listener(frontend: Endpoint, own: &[IpAddr], class: &Class) -> bool {
    let ours = frontend.address().is_unspecified() || own.contains(&frontend.address());
    let port = frontend.port();
    let reserved = class.reserved_ports.iter().any(|range| range.contains(port));
    ours && (port == class.control_port || reserved)
}

/// Backends of the snapshots of a class, and those that linger: as many as have left and find room.
#[derive(Default)]
struct Table {
    named: BTreeSet<Endpoint>,
    lingering: BTreeSet<Endpoint>,
}

impl Table {
    /// The places that are taken with the next snapshot.
    fn next(&mut self, snapshot: &Snapshot, limit: usize) -> usize {
        let backends = snapshot.policies.iter().flat_map(|p| &p.backends);
        let named: BTreeSet<Endpoint> = backends.map(|b| b.endpoint).collect();
        self.lingering.extend(self.named.difference(&named));
        self.lingering.retain(|left| !named.contains(left));
        while self.lingering.len() > limit / LINGERING_SHARE {
            self.lingering.pop_first();
        }
        self.named = named;
        self.named.len() + self.lingering.len()
    }
}

/// What the checks have seen.
#[derive(Debug, Default)]
struct Seen {
    snapshots: usize,
    explicit: usize,
    lingering: usize,
}

fn check(
    index: &Index,
    objects: &Objects,
    tables: &mut BTreeMap<Text, Table>,
    seen: &mut Seen,
) -> Result<(), TestCaseError> {
    for (name, class) in &objects.classes {
        let policies = index.snapshot(name).map(|p| (**p).clone());
        let snapshot = Snapshot { generation: 1, policies: policies.collect() };
        let frontends = snapshot.policies.iter().flat_map(|p| &p.frontends);
        for own in dataplanes(index, objects, name) {
            seen.snapshots += usize::from(!snapshot.policies.is_empty());
            for frontend in frontends.clone() {
                seen.explicit += usize::from(own.contains(&frontend.address()));
                let meets = meets_a_listener(*frontend, &own, class);
                prop_assert!(!meets, "{frontend} of class {name}, own {own:?}");
            }
            let applied = engine(own.clone(), class).apply(Instant(0), &snapshot);
            prop_assert_eq!(applied, Ok(()), "class {}, own {:?}", name, own);
        }
        if let Some(limit) = class.limit_backends {
            let table = tables.entry(name.clone()).or_default();
            let needed = table.next(&snapshot, limit);
            seen.lingering += table.lingering.len();
            prop_assert!(needed <= limit, "{needed} of {limit} in class {name}");
        }
    }
    tables.retain(|name, _| objects.classes.contains_key(name));
    Ok(())
}

/// The class that is there from the start has a dataplane, which knows of one more address of its
/// own.
fn with_a_dataplane(mut all: Vec<Change>) -> Vec<Change> {
    let class = all.iter().enumerate().find_map(|(at, change)| match change {
        Change::Class(_, Some(class)) => Some((at, Arc::clone(class))),
        _ => None,
    });
    let (at, class) = class.expect("a class");
    let [address, other] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
    let pod = Pod {
        labels: class.selector.clone(),
        annotations: Labels::default(),
        deleting: false,
        ready: true,
        node: None,
        address: Some(address),
        second_address: None,
        host_network: false,
        cost: None,
    };
    let report = Report { addresses: vec![other], ..Report::default() };
    let key = Key::new(class.namespace.clone(), "lb-0");
    all.insert(at + 1, Change::Pod(key.clone(), Some(Arc::new(pod))));
    all.insert(at + 2, Change::Report(key, Some(Arc::new(report))));
    all
}

#[test]
fn no_accepted_policy_makes_a_dataplane_refuse_another_ones() {
    const WORLDS: usize = 1_500;
    let mut runner = TestRunner::deterministic();
    let mut seen = Seen::default();
    for _ in 0..WORLDS {
        let all = changes(40).new_tree(&mut runner).expect("changes").current();
        let all = with_a_dataplane(all);
        let (mut index, mut objects) = (Index::new(), Objects::default());
        let mut tables = BTreeMap::new();
        for (at, change) in all.iter().enumerate() {
            index.apply(change.clone());
            objects.apply(change.clone());
            if at % 4 == 3 || at + 1 == all.len() {
                let _ = index.fold(0);
                if let Err(error) = check(&index, &objects, &mut tables, &mut seen) {
                    panic!("{error}\nafter {:#?}", &all[..=at]);
                }
            }
        }
    }
    // The worlds are such that there was something to refuse.
    assert!(seen.snapshots > 300 && seen.explicit > 20 && seen.lingering > 10, "{seen:?}");
}
