//! What holds after any sequence of changes, against a computation of everything from nothing.

use crate::common::{
    reference::{expect, look, validate},
    universe::{Objects, changes, conditions},
};
use baton_index::{
    Change, ClassVerdict, Condition, ConditionKind, Index, Key, Reason, Report, Text, Update,
    Verdict,
};
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// What somebody has who knows only the updates.
#[derive(Default)]
struct Mirror {
    snapshots: BTreeMap<Text, BTreeMap<String, Arc<baton_api::Policy>>>,
    verdicts: BTreeMap<Key, Arc<Verdict>>,
    costs: BTreeMap<Key, i32>,
}

impl Mirror {
    fn take(&mut self, update: Update) {
        for (name, class) in update.classes {
            if class.gone || class.fresh {
                self.snapshots.remove(&name);
            }
            if class.gone {
                continue;
            }
            let mine = self.snapshots.entry(name).or_default();
            for name in class.removed {
                assert!(mine.remove(&*name).is_some(), "{name} was never there");
            }
            for policy in class.changed {
                let before = mine.insert(policy.name.clone(), Arc::clone(&policy));
                assert_ne!(before, Some(policy), "said twice");
            }
        }
        for verdict in update.verdicts {
            self.verdicts.insert(verdict.policy.clone(), verdict);
        }
        for (pod, cost) in update.costs {
            match cost {
                Some(cost) => self.costs.insert(pod, cost),
                None => self.costs.remove(&pod),
            };
        }
    }
}

/// Without what is history.
fn timeless(verdict: &Verdict) -> Verdict {
    let mut verdict = verdict.clone();
    for condition in &mut verdict.conditions {
        condition.since = 0;
    }
    verdict.figures_at = None;
    verdict
}

fn all_verdicts(index: &Index) -> (Vec<Verdict>, Vec<ClassVerdict>) {
    let policies = index.verdicts().map(|verdict| timeless(verdict));
    (policies.collect(), index.class_verdicts().cloned().collect())
}

fn snapshot(index: &Index, class: &str) -> Vec<baton_api::Policy> {
    index.snapshot(class).map(|policy| (**policy).clone()).collect()
}

/// And remembers what is in force from here on.
fn check(index: &Index, objects: &mut Objects, mirror: &Mirror) -> Result<(), TestCaseError> {
    let expected = expect(objects);
    objects.in_force = expected.given;
    let classes: Vec<Text> = index.classes().cloned().collect();
    prop_assert_eq!(&classes, &objects.classes.keys().cloned().collect::<Vec<_>>());
    for class in &classes {
        let is = snapshot(index, class);
        prop_assert_eq!(&is, &expected.snapshots[class], "snapshot of {}", class);
        prop_assert_eq!(validate(&is), Ok(()));
        let told: Vec<_> = mirror.snapshots[class].values().map(|p| (**p).clone()).collect();
        prop_assert_eq!(&is, &told, "updates of {}", class);
        let members = index.class(class).expect("it exists").dataplanes.expect("all of it");
        let members: Vec<_> = members.into_iter().map(|d| (d.pod, d.address)).collect();
        prop_assert_eq!(&members, &expected.members[class]);
    }
    prop_assert_eq!(mirror.snapshots.len(), classes.len());
    let accepted: BTreeMap<Key, &str> = index
        .verdicts()
        .map(|v| (v.policy.clone(), v.condition(ConditionKind::Accepted).reason.as_str()))
        .collect();
    prop_assert_eq!(accepted, expected.accepted);
    for verdict in index.verdicts() {
        let told = &mirror.verdicts[&verdict.policy];
        prop_assert_eq!(timeless(verdict), timeless(told));
        for Condition { message, .. } in &verdict.conditions {
            prop_assert!(
                !message.is_empty() && message.chars().count() <= baton_index::LIMIT_MESSAGE_CHARS
            );
        }
    }
    let costs: BTreeMap<Key, i32> = index.costs().map(|(pod, cost)| (pod.clone(), cost)).collect();
    for (pod, cost) in &costs {
        prop_assert_eq!(mirror.costs.get(pod), Some(cost));
    }
    Ok(())
}

/// Every dataplane of the index that can say so has all.
fn acknowledge(index: &mut Index, objects: &Objects) {
    let mut reports = Vec::new();
    for class in index.classes() {
        let class = index.class(class).expect("it exists");
        for dataplane in class.dataplanes.expect("all of it") {
            let old = objects.reports.get(&dataplane.pod);
            reports.push((
                dataplane.pod,
                Report {
                    unreachable: old.and_then(|r| r.unreachable.clone()),
                    addresses: old.map(|r| r.addresses.clone()).unwrap_or_default(),
                    acknowledged: Some(class.revision),
                    ..Report::default()
                },
            ));
        }
    }
    for (pod, report) in reports {
        index.apply(Change::Report(pod, Some(Arc::new(report))));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, ..ProptestConfig::default() })]

    #[test]
    fn after_every_fold_it_is_what_a_computation_from_nothing_gives(
        changes in changes(40), folds in prop::collection::vec(any::<bool>(), 45)
    ) {
        let (mut index, mut objects, mut mirror) = (Index::new(), Objects::default(), Mirror::default());
        let last = changes.len() - 1;
        for (at, change) in changes.into_iter().enumerate() {
            index.apply(change.clone());
            objects.apply(change);
            if folds[at] || at == last {
                mirror.take(index.fold(at as i64));
                look(&mut objects);
                prop_assert!(!index.is_dirty());
                prop_assert_eq!(index.fold(at as i64), Update::default());
                check(&index, &mut objects, &mirror)?;
            }
        }
    }

    #[test]
    fn the_way_there_does_not_matter(
        changes in changes(40), order in any::<prop::sample::Index>(), seed in any::<u64>(), doubled in any::<bool>()
    ) {
        let (mut one, mut objects) = (Index::new(), Objects::default());
        for (at, change) in changes.into_iter().enumerate() {
            one.apply(change.clone());
            objects.apply(change);
            if at % 3 == 0 {
                let _ = one.fold(0);
            }
        }
        let mut rest = objects.changes();
        // Another order, each time another one, some of it twice, some taken away and given again.
        let mut state = seed | 1;
        for at in (1..rest.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            rest.swap(at, (state >> 33) as usize % (at + 1));
        }
        let mut other = Index::new();
        for change in &rest {
            other.apply(change.clone());
            if doubled {
                other.apply(change.clone());
            }
        }
        let _ = other.fold(7);
        if !rest.is_empty() {
            for change in &rest[order.index(rest.len())..] {
                other.apply(without(change));
            }
            let _ = other.fold(8);
            for change in rest {
                other.apply(change);
            }
        }
        // What a policy said before a slip is history, which is served: both have none from here
        // on.
        for key in expect(&objects).accepted.into_iter().filter(|(_, reason)| *reason == "Invalid").map(|(key, _)| key) {
            let policy = &objects.policies[&key];
            for index in [&mut one, &mut other] {
                index.apply(Change::Policy(key.clone(), None));
                index.apply(Change::Policy(key.clone(), Some(Arc::clone(policy))));
            }
        }
        // Neither is anything in force that would have its place first in a class that is full.
        for (name, class) in &objects.classes {
            for index in [&mut one, &mut other] {
                index.apply(Change::Class(name.clone(), None));
                index.apply(Change::Class(name.clone(), Some(Arc::clone(class))));
            }
        }
        let _ = (one.fold(1), other.fold(9));
        acknowledge(&mut one, &objects);
        acknowledge(&mut other, &objects);
        let _ = (one.fold(2), other.fold(10));
        for class in objects.classes.keys() {
            prop_assert_eq!(snapshot(&one, class), snapshot(&other, class));
        }
        prop_assert_eq!(all_verdicts(&one), all_verdicts(&other));
    }

    #[test]
    fn a_readiness_flap_takes_no_backend_away(
        changes in changes(30), flaps in prop::collection::vec((conditions(), any::<bool>()), 64)
    ) {
        let (mut index, mut objects) = (Index::new(), Objects::default());
        for change in changes {
            index.apply(change.clone());
            objects.apply(change);
        }
        let _ = index.fold(0);
        let before = places(&index);
        let mut flaps = flaps.into_iter().cycle();
        let mut next = || flaps.next().expect("a cycle");
        for (key, slice) in &objects.slices {
            let mut slice = (**slice).clone();
            for endpoint in &mut slice.endpoints {
                let terminating = endpoint.conditions.terminating;
                endpoint.conditions = baton_index::Conditions { terminating, ..next().0 };
            }
            index.apply(Change::Slice(key.clone(), Some(Arc::new(slice))));
        }
        for (key, pod) in &objects.pods {
            let pod = baton_index::Pod { ready: next().1, ..(**pod).clone() };
            index.apply(Change::Pod(key.clone(), Some(Arc::new(pod))));
        }
        let _ = index.fold(1);
        prop_assert_eq!(before, places(&index));
    }

    #[test]
    fn when_all_is_gone_nothing_is_left(changes in changes(40)) {
        let (mut index, mut objects) = (Index::new(), Objects::default());
        let mut mirror = Mirror::default();
        for change in changes {
            index.apply(change.clone());
            objects.apply(change);
        }
        mirror.take(index.fold(0));
        for change in objects.changes() {
            index.apply(without(&change));
        }
        mirror.take(index.fold(1));
        prop_assert!(mirror.snapshots.is_empty());
        prop_assert!(!index.is_dirty());
        prop_assert!(index.is_empty(), "{index:?}");
    }
}

fn without(change: &Change) -> Change {
    match change {
        Change::Policy(key, _) => Change::Policy(key.clone(), None),
        Change::Service(key, _) => Change::Service(key.clone(), None),
        Change::Slice(key, _) => Change::Slice(key.clone(), None),
        Change::Pod(key, _) => Change::Pod(key.clone(), None),
        Change::Node(name, _) => Change::Node(name.clone(), None),
        Change::Namespace(name, _) => Change::Namespace(name.clone(), None),
        Change::Class(name, _) => Change::Class(name.clone(), None),
        Change::Shim(name, _) => Change::Shim(name.clone(), None),
        Change::Report(key, _) => Change::Report(key.clone(), None),
        Change::Figures(key, _) => Change::Figures(key.clone(), None),
        Change::Excluded(_) => Change::Excluded(BTreeSet::new()),
        Change::Held(..) | Change::Partial(_) => panic!("not of this universe"),
    }
}

/// Which backends are where.
fn places(index: &Index) -> Vec<(Text, String, String)> {
    let mut all = Vec::new();
    for class in index.classes() {
        for policy in index.snapshot(class) {
            for backend in &policy.backends {
                all.push((class.clone(), policy.name.clone(), backend.endpoint.to_string()));
            }
        }
    }
    all
}

/// The universe is one in which things happen: otherwise the properties above would hold for
/// nothing.
#[test]
fn the_universe_reaches_what_matters() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    let mut reasons: BTreeMap<Reason, usize> = BTreeMap::new();
    let (mut draining, mut parked, mut backends) = (0, 0, 0);
    for _ in 0..1_500 {
        let mut index = Index::new();
        for change in changes(40).new_tree(&mut runner).expect("changes").current() {
            index.apply(change);
        }
        let _ = index.fold(0);
        for verdict in index.verdicts() {
            for condition in &verdict.conditions {
                *reasons.entry(condition.reason).or_default() += 1;
            }
        }
        for class in index.classes() {
            for backend in index.snapshot(class).flat_map(|policy| &policy.backends) {
                backends += 1;
                draining += usize::from(backend.draining);
                parked += usize::from(backend.weight == 0 && !backend.draining);
            }
        }
    }
    for reason in [
        Reason::Accepted,
        Reason::Invalid,
        Reason::Conflicted,
        Reason::PortInLegRange,
        Reason::PortReserved,
        Reason::NotAllowed,
        Reason::NoDataplaneClass,
        Reason::TargetNotFound,
        Reason::PortNotFound,
        Reason::PolicyLimit,
        Reason::ClassBackendLimit,
        Reason::NoDataplane,
        Reason::DataplaneUnreachable,
        Reason::Pending,
        Reason::EndpointsNotAllowed,
        Reason::NoEndpoints,
        Reason::NoReadyEndpoints,
        Reason::WeightUnreadable,
        Reason::BackendsNotAdoptable,
        Reason::ByTranslation,
    ] {
        assert!(
            reasons.get(&reason).copied().unwrap_or_default() >= 3,
            "{reason:?} of {reasons:?}"
        );
    }
    assert!(backends > 500 && draining > 100 && parked > 50, "{backends} {draining} {parked}");
}
