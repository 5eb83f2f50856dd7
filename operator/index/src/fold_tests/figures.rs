//! What dataplanes and host-shims say: totals, drains, what can adopt, deletion costs.

use super::*;
use crate::standing::snapshot_name;
use std::collections::BTreeMap;

pub fn figures(uptime: u64, flows: u64, backends: Vec<BackendFigures>) -> Change {
    let name = snapshot_name(&key("p"), &policy(1, "s", 80).listeners[0]);
    let policies = vec![PolicyFigures {
        name: name.into(),
        flows: 3,
        totals: Totals { flows, ..Totals::default() },
        pinned: [("TLS".into(), flows)].into(),
        backends,
        ..PolicyFigures::default()
    }];
    let value = Figures { at: 50, uptime, policies };
    Change::Figures(key("pod-200"), Some(Arc::new(value)))
}

pub fn backend(name: &str, flows: u64, why: Option<&str>) -> BackendFigures {
    BackendFigures {
        name: name.into(),
        flows,
        probed: true,
        unadoptable: why.map(Into::into),
        ..BackendFigures::default()
    }
}

#[test]
fn totals_never_go_down_and_count_once() {
    let mut index = index();
    let mut shown = 0;
    for (uptime, flows, sum) in [
        (10, 7, 7),
        (12, 9, 9),
        // The same again.
        (12, 9, 9),
        // Another process, seen because it counts less.
        (14, 2, 11),
        // Another one, seen because it is younger, though it counts more.
        (1, 5, 16),
        (3, 6, 17),
    ] {
        index.apply(figures(uptime, flows, Vec::new()));
        let _ = index.fold(2);
        let verdict = verdict(&index, "p");
        assert_eq!(verdict.totals.flows, sum);
        assert_eq!(verdict.pinned, BTreeMap::from([("TLS".into(), flows)]));
        assert!(sum >= shown);
        shown = sum;
    }
    assert_eq!(verdict(&index, "p").flows, 3);
    // Not asked any more: nothing at this moment, the totals stay.
    index.apply(Change::Figures(key("pod-200"), None));
    let _ = index.fold(3);
    let after = verdict(&index, "p");
    assert_eq!((after.flows, after.totals.flows), (0, 17));
}

#[test]
fn what_was_counted_before_the_policy_was_known_counts() {
    let mut index = Index::new();
    index.apply(figures(10, 7, Vec::new()));
    let _ = index.fold(0);
    add(&mut index, "p", policy(1, "s", 80));
    let _ = index.fold(1);
    assert_eq!(verdict(&index, "p").totals.flows, 7);
}

#[test]
fn drains_are_summed_and_told_when_they_are_over() {
    let mut index = index();
    let drain = |moved, left, since| {
        let mut one = backend("pod-1", left, None);
        one.drain = Some(Box::new(DrainFigures {
            moved,
            ended: 0,
            closed: 0,
            waiting: [("quiet time".into(), left)].into(),
            since,
            until: since + 25,
        }));
        figures(5, 0, vec![one])
    };
    index.apply(drain(2, 3, 40));
    let _ = index.fold(2);
    // A second later by the rounding of both clocks: the same drain.
    index.apply(drain(4, 1, 41));
    let _ = index.fold(3);
    let during = verdict(&index, "p");
    assert_eq!((during.drained.moved, during.drains.len()), (4, 1));
    assert_eq!((during.drains[0].since, during.drains[0].until), (40, 65));
    index.apply(figures(6, 0, vec![backend("pod-1", 0, None)]));
    let update = index.fold(4);
    let event = update.events.iter().find(|e| e.reason == Reason::Drained).expect("it is told");
    assert!(event.message.contains("4 flows moved"), "{event:?}");
    // Another drain of it counts from the start.
    index.apply(drain(1, 0, 90));
    let _ = index.fold(5);
    assert_eq!(verdict(&index, "p").drained.moved, 5);
}

#[test]
fn costs_are_written_where_the_policy_asks_and_taken_off_when_not() {
    let mut index = index();
    let loaded = || vec![backend("pod-1", 20, None), backend("pod-2", 0, None)];
    index.apply(figures(1, 0, loaded()));
    assert!(index.fold(2).costs.is_empty());
    let mut asking = policy(1, "s", 80);
    asking.deletion_cost = true;
    add(&mut index, "p", asking);
    let costs = index.fold(3).costs;
    assert_eq!(costs, [(key("pod-1"), Some(20)), (key("pod-2"), Some(0))].into());
    // Within a tenth: nothing.
    index.apply(figures(1, 0, vec![backend("pod-1", 21, None), backend("pod-2", 0, None)]));
    assert!(index.fold(4).costs.is_empty());
    add(&mut index, "p", policy(1, "s", 80));
    assert_eq!(index.fold(5).costs, [(key("pod-1"), None), (key("pod-2"), None)].into());
}

#[test]
fn a_cost_that_an_earlier_operator_wrote_is_taken_off_and_no_other_is() {
    let mut index = index();
    let with_cost = |last, cost| {
        let Change::Pod(name, Some(pod)) = pod(last, Labels::default()) else {
            panic!("a pod");
        };
        Change::Pod(name, Some(Arc::new(Pod { cost, ..(*pod).clone() })))
    };
    // Nobody asks for a cost.
    index.apply(with_cost(1, Some(20)));
    assert_eq!(index.fold(2).costs, [(key("pod-1"), None)].into());
    // It was said to nobody, because another process led.
    index.recall_costs();
    assert_eq!(index.fold(3).costs, [(key("pod-1"), None)].into());
    index.apply(with_cost(1, None));
    index.recall_costs();
    assert!(index.fold(4).costs.is_empty());
    // A policy asks: what is there stays until dataplanes have said what it costs.
    let mut asking = policy(1, "s", 80);
    asking.deletion_cost = true;
    add(&mut index, "p", asking);
    index.apply(with_cost(1, Some(20)));
    assert!(index.fold(5).costs.is_empty());
    assert_eq!(index.costs().count(), 0, "it is there");
    index.apply(figures(1, 0, vec![backend("pod-1", 20, None)]));
    assert_eq!(index.fold(6).costs, [(key("pod-2"), Some(0))].into());
    // The dataplane is not heard any more: no news.
    index.apply(Change::Figures(key("pod-200"), None));
    assert!(index.fold(7).costs.is_empty());
}

#[test]
fn a_drains_deadline_is_told_when_it_passes_whether_figures_change_or_not() {
    let mut index = index();
    let drain = |at: i64, until| {
        let mut one = backend("pod-1", 2, None);
        one.drain = Some(Box::new(DrainFigures {
            moved: 3,
            waiting: [("pinned: TLS".into(), 2)].into(),
            since: 40,
            until,
            ..DrainFigures::default()
        }));
        let Change::Figures(pod, Some(figures)) = figures(5, 0, vec![one]) else {
            panic!("figures");
        };
        Change::Figures(pod, Some(Arc::new(Figures { at, ..(*figures).clone() })))
    };
    let reasons =
        |update: &Update| -> Vec<Reason> { update.events.iter().map(|e| e.reason).collect() };
    index.apply(drain(50, 65));
    assert!(!reasons(&index.fold(50)).contains(&Reason::DrainDeadline));
    assert!(index.fold(64).events.is_empty());
    let update = index.fold(65);
    assert_eq!(reasons(&update), [Reason::DrainDeadline]);
    assert!(
        update.events[0].warning && update.events[0].message.contains("after 25 s: 3 flows moved")
    );
    assert!(index.fold(66).events.is_empty());
    // The dataplane says that nothing is left of it, from then on; when it was does not move.
    index.apply(drain(70, 70));
    index.apply(drain(75, 75));
    let _ = index.fold(75);
    assert_eq!(verdict(&index, "p").drains[0].until, 65);
    // That it cannot be asked is no end.
    index.apply(Change::Figures(key("pod-200"), None));
    assert!(index.fold(76).events.is_empty());
    index.apply(figures(6, 0, vec![backend("pod-1", 0, None)]));
    let update = index.fold(80);
    assert_eq!(reasons(&update), [Reason::Drained]);
    assert!(update.events[0].message.contains("over after 40 s"), "{update:?}");
}
