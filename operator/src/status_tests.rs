//! Each figure of a verdict at its place in the status, and nothing longer than the CRDs take.

use super::*;
use baton_index::{
    BackendState, BackendTotals, ConditionKind, Drained, Instance, Key, Reason, Totals,
};

fn verdict() -> Verdict {
    let condition = |kind, status, reason| Condition {
        kind,
        status,
        reason,
        message: "ä".repeat(40_000),
        since: 50,
    };
    Verdict {
        policy: Key::new("shop", "web"),
        uid: "u".into(),
        observed_generation: 3,
        conditions: [
            condition(ConditionKind::Accepted, Status::True, Reason::Accepted),
            condition(ConditionKind::Programmed, Status::False, Reason::Pending),
            condition(ConditionKind::Adoptable, Status::Unknown, Reason::NotProbed),
            condition(ConditionKind::Degraded, Status::False, Reason::AsExpected),
        ],
        classes: vec!["edge".into()],
        addresses: vec!["192.0.2.1:80".into()],
        front: Some(baton_index::FrontVerdict {
            service: "web".into(),
            leads_to: baton_index::LeadsTo::Dataplanes,
            ports: vec![("http".into(), 18_007)],
        }),
        programmed: 1,
        dataplanes: 2,
        ready: 3,
        total: 4,
        flows: 5,
        totals: Totals {
            flows: 100,
            migrations: 6,
            rollbacks: 7,
            rescues: 8,
            replays: 9,
            lost: 10,
        },
        movable: baton_index::Movable { by_adoption: 2, by_translation: 1 },
        pinned: [("upgrade".into(), 11)].into(),
        drained: Drained { moved: 12, ended: 13, closed: 14 },
        drains: vec![Drain {
            listener: "http".into(),
            backend: "web-1".into(),
            drained: Drained { moved: 15, ended: 16, closed: 17 },
            waiting: [("pinned: upgrade".into(), 2), ("quiet time".into(), 3)].into(),
            since: 60,
            until: 85,
        }],
        backends: vec![BackendVerdict {
            listener: "http".into(),
            name: "web-1".into(),
            endpoint: "10.0.0.1:8080".parse().expect("an endpoint"),
            state: BackendState::Draining,
            weight: 18,
            flows: 19,
            pinned: 4,
            outstanding: 20,
            totals: BackendTotals {
                migrations_in: 21,
                migrations_out: 22,
                rescued: 23,
                ..BackendTotals::default()
            },
            unadoptable: Some("x".repeat(1_000).into()),
            untranslatable: Some("accept queue full".into()),
            unusable: None,
        }],
        backends_not_shown: 24,
        figures_at: Some(70),
    }
}

fn now() -> Timestamp {
    Timestamp::from_second(100).expect("a time")
}

fn seconds(time: Option<&Time>) -> i64 {
    time.expect("a time").0.as_second()
}

#[test]
fn every_figure_of_a_policy_has_its_place() {
    let status = policy(&verdict(), &Entry::default(), now());
    assert_eq!(status.observed_generation, Some(3));
    assert_eq!(status.backends, Some(crd::Count::new(3, 4)));
    assert_eq!(status.dataplanes, Some(crd::Count::new(1, 2)));
    let figures = [
        status.flows,
        status.migrations,
        status.rollbacks,
        status.rescued,
        status.replays,
        status.lost,
    ];
    assert_eq!(figures, [5, 6, 7, 8, 9, 10].map(Some));
    assert_eq!(status.classes, ["edge"]);
    assert_eq!((status.pinned[0].reason.as_str(), status.pinned[0].flows), ("upgrade", 11));
    let movable = status.movable.expect("figures");
    assert_eq!((movable.by_adoption, movable.by_translation), (2, 1));
    assert_eq!(movable.percent, "60%");
    let drained = status.drained.expect("figures");
    assert_eq!((drained.moved, drained.ended, drained.closed), (12, 13, 14));
    let draining = status.draining.expect("a drain");
    assert_eq!((draining.backends, draining.waiting, seconds(draining.by.as_ref())), (1, 5, 85));
    let drain = &status.drains[0];
    assert_eq!(
        (drain.moved, drain.ended, drain.closed, drain.waiting),
        (Some(15), Some(16), Some(17), Some(5))
    );
    assert_eq!(drain.waiting_for.as_deref(), Some("2 pinned: upgrade, 3 quiet time"));
    assert_eq!((seconds(drain.since.as_ref()), seconds(drain.by.as_ref())), (60, 85));
    let backend = &status.backend_figures[0];
    assert_eq!((backend.state.as_str(), backend.weight), ("Draining", Some(18)));
    let figures = [
        backend.flows,
        backend.outstanding,
        backend.migrations_in,
        backend.migrations_out,
        backend.rescued,
    ];
    assert_eq!(figures, [19, 20, 21, 22, 23].map(Some));
    assert_eq!(status.backends_not_shown, Some(24));
    assert_eq!(seconds(status.figures_time.as_ref()), 70);
}

#[test]
fn a_policy_is_ready_when_clients_are_served_through_dataplanes() {
    let ready = |change: fn(&mut Verdict)| {
        let mut verdict = verdict();
        verdict.conditions[1].status = Status::True;
        change(&mut verdict);
        let status = policy(&verdict, &Entry::default(), Timestamp::UNIX_EPOCH);
        let ready = status.conditions.iter().find(|c| c.type_ == "Ready");
        let ready = ready.expect("it is said");
        (ready.status, ready.reason.clone())
    };
    let (yes, no) = (crd::ConditionStatus::True, crd::ConditionStatus::False);
    assert_eq!(ready(|_| ()), (yes, "Ready".to_owned()));
    assert_eq!(ready(|v| v.front = None), (yes, "Ready".to_owned()));
    let past = |v: &mut Verdict| {
        v.front.as_mut().expect("one").leads_to = LeadsTo::Pods;
    };
    assert_eq!(ready(past), (no, "FrontendLeadsPast".to_owned()));
    assert_eq!(ready(|v| v.ready = 0), (no, "NoReadyEndpoints".to_owned()));
    let unknown = |v: &mut Verdict| v.conditions[0].status = Status::Unknown;
    assert_eq!(ready(unknown).0, crd::ConditionStatus::Unknown);
}

#[test]
fn what_keeps_a_service_from_dataplanes_is_what_is_said_of_it() {
    let said = |reason, message: &str| {
        let mut verdict = verdict();
        verdict.conditions[1].status = Status::True;
        verdict.front.as_mut().expect("one").leads_to = LeadsTo::Nowhere;
        let degraded = &mut verdict.conditions[3];
        (degraded.reason, degraded.message) = (reason, message.to_owned());
        let status = policy(&verdict, &Entry::default(), Timestamp::UNIX_EPOCH);
        let ready = status.conditions.iter().find(|c| c.type_ == "Ready");
        ready.expect("it is said").message.clone()
    };
    let not_owned = said(Reason::FrontendNotOwned, "it is theirs");
    assert!(not_owned.ends_with("does not lead to dataplanes: it is theirs"));
    for (reason, message) in [
        (Reason::AsExpected, "nothing is wrong"),
        (Reason::NoEndpoints, "Service web has no endpoints"),
    ] {
        let words = said(reason, message);
        assert!(words.contains("is not there yet"), "{words}");
        assert!(!words.contains(message), "{words}");
    }
}

#[test]
fn conditions_keep_their_times_and_texts_are_cut() {
    let status = policy(&verdict(), &Entry::default(), now());
    let written: Vec<(&str, crd::ConditionStatus, &str)> =
        status.conditions.iter().map(|c| (c.type_.as_str(), c.status, c.reason.as_str())).collect();
    assert_eq!(
        written,
        [
            ("Accepted", crd::ConditionStatus::True, "Accepted"),
            ("Programmed", crd::ConditionStatus::False, "Pending"),
            ("Adoptable", crd::ConditionStatus::Unknown, "NotProbed"),
            ("Degraded", crd::ConditionStatus::False, "AsExpected"),
            ("Ready", crd::ConditionStatus::False, "Pending"),
        ]
    );
    for condition in &status.conditions {
        assert_eq!(condition.message.chars().count(), LIMIT_MESSAGE);
        assert!(condition.message.ends_with('…'));
        assert_eq!(condition.last_transition_time.0.as_second(), 50);
        assert_eq!(condition.observed_generation, Some(3));
    }
    let untranslatable = status.backend_figures[0].untranslatable.as_deref();
    assert_eq!(untranslatable, Some("accept queue full"));
    let unadoptable = status.backend_figures[0].unadoptable.as_ref();
    assert_eq!(unadoptable.expect("words").chars().count(), LIMIT_WORDS);
}

#[test]
fn without_figures_there_are_no_zeros() {
    let silent = Verdict { figures_at: None, drains: Vec::new(), ..verdict() };
    let status = policy(&silent, &Entry::default(), now());
    assert_eq!((status.flows, status.lost, status.figures_time.as_ref()), (None, None, None));
    assert!(status.drained.is_none() && status.draining.is_none());
    assert_eq!(status.backend_figures[0].flows, None);
    assert_eq!(status.backend_figures[0].weight, Some(18));
}

fn class_verdict() -> ClassVerdict {
    ClassVerdict {
        class: "edge".into(),
        observed_generation: 4,
        dataplanes: 3,
        ready: 2,
        synchronised: 1,
        policies: 7,
        over_limit: 0,
        problem: None,
        instances: vec![Instance {
            pod: Key::new("baton", "lb-0"),
            node: Some("n1".into()),
            synchronised: false,
            problem: Some("it cannot be reached".to_owned()),
        }],
    }
}

fn told(status: &crd::BatonDataplaneStatus, kind: &str) -> (crd::ConditionStatus, String) {
    let condition = status.conditions.iter().find(|c| c.type_ == kind);
    let condition = condition.expect("one of each");
    (condition.status, condition.reason.clone())
}

#[test]
fn a_class_says_how_many_of_its_dataplanes_are_where_they_should_be() {
    use crd::ConditionStatus::{False, True};
    let entry = Entry { generation: 5, ..Entry::default() };
    let status = class(&class_verdict(), None, &entry, now());
    assert_eq!(status.observed_generation, Some(4));
    assert_eq!(
        (status.dataplanes.clone(), status.policies),
        (Some(crd::Count::new(1, 3)), Some(7))
    );
    assert_eq!(told(&status, "Accepted"), (True, "Accepted".to_owned()));
    assert_eq!(told(&status, "Programmed"), (False, "Pending".to_owned()));
    assert_eq!(told(&status, "Degraded"), (False, "AsExpected".to_owned()));
    assert_eq!(status.instances[0].name, "lb-0");
    assert_eq!(status.instances[0].message.as_deref(), Some("it cannot be reached"));

    let all = ClassVerdict {
        synchronised: 2,
        problem: Some("two listeners have no room".to_owned()),
        ..class_verdict()
    };
    let status = class(&all, None, &entry, now());
    assert_eq!(told(&status, "Programmed").0, True);
    assert_eq!(told(&status, "Degraded").0, True);
    let none = ClassVerdict { ready: 0, synchronised: 0, ..class_verdict() };
    assert_eq!(told(&class(&none, None, &entry, now()), "Programmed").1, "NoDataplane");
}

#[test]
fn a_class_that_cannot_be_used_says_so_of_its_present_generation() {
    let entry = Entry { generation: 5, ..Entry::default() };
    for (field, reason) in [("spec.ports.last", "Invalid"), ("", "InternalError")] {
        let refusal = Refusal { field: field.into(), problem: "is bad".into() };
        let status = class(&class_verdict(), Some(&refusal), &entry, now());
        assert_eq!(status.observed_generation, Some(5));
        let expected = (crd::ConditionStatus::False, reason.to_owned());
        assert_eq!(told(&status, "Accepted"), expected);
    }
}
