//! What is said of policies, to whom, and what stays when something fails.

use super::*;
use crate::{backends::View, translate::translate};

const POISON: &str = "poison";

#[test]
fn a_panic_in_one_policy_is_its_own_affair() {
    let mut index = index();
    add(&mut index, "poison", policy(2, "t", 81));
    let _ = index.fold(2);
    let before: Vec<_> = index.snapshot("class").cloned().collect();
    assert_eq!(before.len(), 2);
    index.translator = |view: &View<'_>| {
        assert!(*view.key.name != *POISON, "poisoned");
        translate(view)
    };
    // Both change; the poisoned one keeps what it had.
    index.apply(slice("s", &[(1, READY), (2, UNREADY)]));
    index.apply(slice("t", &[(3, READY), (4, UNREADY)]));
    let update = index.fold(3);
    assert_eq!(update.translated, 2);
    let changed: Vec<_> = update.classes["class"].changed.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(changed, ["ns/p/http"]);
    assert_eq!(index.snapshot("class").find(|p| p.name == "ns/poison/http"), Some(&before[1]));
    index.says("poison Accepted InternalError: poisoned");
    index.says("p Accepted Accepted");
    assert!(update.events.iter().any(|e| e.warning && e.reason == Reason::InternalError));
    // It recovers with the next change that succeeds.
    index.translator = translate;
    index.apply(slice("t", &[(3, UNREADY), (4, READY)]));
    let _ = index.fold(4);
    index.says("poison Accepted Accepted");
    assert_ne!(index.snapshot("class").find(|p| p.name == "ns/poison/http"), Some(&before[1]));
}

#[test]
fn of_two_policies_of_one_second_the_smaller_key_wins() {
    let mut index = index();
    add(&mut index, "b", policy(2, "t", 82));
    let one_second = |uid: &str| Policy { uid: uid.into(), ..policy(2, "t", 82) };
    add(&mut index, "c", one_second("uid-0"));
    let _ = index.fold(2);
    index.says("b Accepted Accepted");
    index.says("c Accepted Conflicted: ns/b");
    add(&mut index, "a", one_second("uid-9"));
    let _ = index.fold(3);
    index.says("b Accepted Conflicted: ns/a");
}

#[test]
fn the_older_policy_wins_and_the_loser_is_taken_at_once_when_it_goes() {
    let mut index = index();
    add(&mut index, "q", policy(2, "s", 81));
    add(&mut index, "r", policy(3, "t", 80));
    let update = index.fold(2);
    index.says("q Accepted Conflicted: ns/p");
    index.says("r Accepted Conflicted: port 80 of the dataplane's own address in class class");
    assert_eq!(
        update.events.iter().filter(|e| e.warning && e.reason == Reason::Conflicted).count(),
        2
    );
    index.apply(Change::Policy(key("p"), None));
    let update = index.fold(3);
    assert_eq!(update.classes["class"].changed.len(), 2);
    assert_eq!(update.classes["class"].removed.len(), 1);
    index.says("q Accepted Accepted");
    index.says("r Accepted Accepted");
}

#[test]
fn clients_of_a_family_without_a_pod_are_served_by_the_others() {
    let mut index = index();
    index.says("p Degraded AsExpected");
    index.apply(service_of("s", vec![Family::V4, Family::V6]));
    let _ = index.fold(2);
    index.says("p Degraded AsExpected");
    index.says("p Accepted Accepted");
}

#[test]
fn programmed_says_what_each_dataplane_does() {
    let mut index = index();
    let revision = index.class("class").expect("it exists").revision;
    let programmed = ConditionKind::Programmed;
    index.says("p Programmed Pending: ns/pod-200 has not acknowledged");
    let unreachable = Report { unreachable: Some("timed out".into()), ..Report::default() };
    report(&mut index, unreachable);
    let _ = index.fold(2);
    index.says("p Programmed DataplaneUnreachable: timed out");
    index.says("p Degraded DataplaneUnreachable: timed out");
    report(
        &mut index,
        Report { refused: Some((revision, "too many backends".into())), ..Report::default() },
    );
    let _ = index.fold(3);
    index.says("p Programmed SnapshotRefused: too many backends");
    report(&mut index, Report { acknowledged: Some(revision), ..Report::default() });
    let _ = index.fold(4);
    index.says("p Programmed Programmed: all ready dataplanes");
    assert_eq!((verdict(&index, "p").programmed, verdict(&index, "p").dataplanes), (1, 1));
    // The next change is not acknowledged yet; the refusal of an older revision is no news.
    index.apply(slice("s", &[(1, READY)]));
    let _ = index.fold(5);
    index.says("p Programmed Pending: ns/pod-200");
    assert_eq!(verdict(&index, "p").condition(programmed).since, 5);
    index.apply(Change::Pod(key("pod-200"), None));
    let _ = index.fold(6);
    index.says("p Programmed NoDataplane: app=dataplane");
}

#[test]
fn what_a_dataplane_refuses_is_said_of_that_policy_alone() {
    let mut index = index();
    add(&mut index, "q", policy(2, "t", 81));
    let _ = index.fold(1);
    let revision = u64::MAX;
    let say = |refused: &[(&str, &str)], index: &mut Index| {
        let refused = refused.iter().map(|(name, why)| ((*name).into(), (*why).into()));
        report(
            index,
            Report {
                acknowledged: Some(revision),
                refused_policies: refused.collect(),
                ..Report::default()
            },
        );
        let _ = index.fold(2);
    };
    let programmed = ConditionKind::Programmed;
    say(&[("ns/q/http", "frontends[0]: that port is taken")], &mut index);
    let (refused, whole) = (Reason::RefusedByDataplane, Reason::Programmed);
    expect(&index, "q", programmed, refused, "that port is taken");
    expect(&index, "p", programmed, whole, "all ready dataplanes");
    assert_eq!(verdict(&index, "q").programmed, 0);
    say(&[("ns/p/http", "too large"), ("ns/other/http", "?")], &mut index);
    expect(&index, "p", programmed, refused, "too large");
    expect(&index, "q", programmed, whole, "all ready dataplanes");
    say(&[], &mut index);
    expect(&index, "p", programmed, whole, "all ready dataplanes");
}

#[test]
fn a_full_class_keeps_the_oldest() {
    let mut index = index();
    for (created, name) in [(2, "q"), (3, "r")] {
        index.apply(service(name));
        add(&mut index, name, policy(created, name, 80 + u16::try_from(created).expect("small")));
    }
    let _ = index.fold(2);
    assert_eq!(index.snapshot("class").len(), 2);
    index.says("r Accepted Accepted");
    index.says("r Programmed PolicyLimit: spec.limits.policies");
    index.apply(Change::Policy(key("q"), None));
    let update = index.fold(3);
    assert_eq!(update.classes["class"].changed.len(), 1);
    index.says("r Programmed Pending");
}

#[test]
fn endpoints_become_what_the_table_says() {
    let mut index = index();
    index.apply(slice("s", &[(1, READY), (2, UNREADY), (3, LEAVING), (4, READY)]));
    let Change::Pod(name, Some(four)) = pod(4, Labels::default()) else {
        panic!("a pod");
    };
    index.apply(Change::Pod(name, Some(Arc::new(Pod { deleting: true, ..(*four).clone() }))));
    let _ = index.fold(2);
    let expected =
        [("pod-1", 1, false), ("pod-2", 0, false), ("pod-3", 1, true), ("pod-4", 1, true)];
    assert_eq!(backends(&index), expected.map(|(name, w, d)| (name.to_owned(), w, d)));
    let verdict = verdict(&index, "p");
    assert_eq!((verdict.ready, verdict.total), (1, 4));
    // A cordoned node drains only if there is another place.
    index.apply(Change::Node(
        "node".into(),
        Some(Arc::new(Node { cordoned: true, ready: true, zone: None })),
    ));
    let _ = index.fold(3);
    assert!(backends(&index).contains(&("pod-1".to_owned(), 1, false)));
}

/// All nodes of a pool at once: the first Pod on a new node does not get what all of them had.
#[test]
fn pods_on_cordoned_nodes_drain_when_enough_others_are_ready() {
    let mut index = index();
    let cordoned = Node { cordoned: true, ready: true, zone: None };
    index.apply(Change::Node("old".into(), Some(Arc::new(cordoned))));
    for n in 1..=4 {
        index.apply(pod(n, Labels::default()));
    }
    for (new, drain) in [(0, 0), (1, 3), (2, 2)] {
        // By default, one in four.
        let endpoints = (1..=4u8).map(|n| SliceEndpoint {
            address: format!("10.0.0.{n}").parse().expect("an address"),
            conditions: READY,
            pod: Some(format!("pod-{n}").into()),
            node: Some(if n <= new { "new" } else { "old" }.into()),
        });
        index.apply(slice_of("s", http(8_080), endpoints));
        let _ = index.fold(2);
        let drains = backends(&index).iter().filter(|(_, _, d)| *d).count();
        assert_eq!(drains, drain, "{new} of 4 elsewhere");
    }
    let mut picky = policy(1, "s", 80);
    let template = picky.template.as_mut().expect("a template");
    Arc::make_mut(template).health.panic_percent = 51;
    add(&mut index, "p", picky);
    let _ = index.fold(3);
    assert!(backends(&index).iter().all(|(_, _, drains)| !drains));
}

#[test]
fn too_many_endpoints_leave_the_first_ones_by_name() {
    let mut index = index();
    let endpoints = (0..300u32).map(|n| SliceEndpoint {
        address: IpAddr::from(std::net::Ipv4Addr::from(0x0a01_0000 + n)),
        conditions: if n % 2 == 0 { READY } else { UNREADY },
        pod: Some(format!("many-{n:03}").into()),
        node: None,
    });
    index.apply(slice_of("s", http(8_080), endpoints));
    let _ = index.fold(2);
    let names: Vec<_> = backends(&index).into_iter().map(|(name, _, _)| name).collect();
    assert_eq!(names, (0..256).map(|n| format!("many-{n:03}")).collect::<Vec<_>>());
    index.says("p Degraded BackendLimit: 44 endpoints are not used");
}

#[test]
fn what_is_missing_is_named() {
    let mut index = index();
    let accepted = ConditionKind::Accepted;
    add(&mut index, "q", policy(2, "nothing", 81));
    let mut wrong = policy(3, "t", 82);
    wrong.listeners[0].service_port = PortRef::Number(443);
    let mut section = wrong.clone();
    section.listeners[0].service_port = PortRef::Section("web".into());
    section.listeners[0].port = 8_081;
    section.service = "s2".into();
    index.apply(service("s2"));
    add(&mut index, "y", section.clone());
    section.listeners.push(Listener {
        name: "other".into(),
        port: 8_082,
        ..wrong.listeners[0].clone()
    });
    section.service = "s3".into();
    section.listeners[0].port = 8_083;
    index.apply(service("s3"));
    add(&mut index, "z", section);
    add(&mut index, "r", wrong);
    add(&mut index, "u", policy(4, "u", 25_000));
    let mut elsewhere = policy(5, "v", 84);
    elsewhere.classes = Labels::from_iter([("tier", "edge")]);
    add(&mut index, "v", elsewhere);
    for (name, field, problem) in [("w", "spec.drain", "is wrong"), ("x", "", "it panicked")] {
        let mut refused = policy(6, "w", 85);
        refused.template = Err(Refusal { field: field.into(), problem: problem.into() });
        add(&mut index, name, refused);
    }
    index.apply(slice("s", &[]));
    let _ = index.fold(2);
    index.says("w Accepted Invalid: spec.drain: is wrong");
    index.says("x Accepted InternalError: it panicked");
    index.says("q Accepted TargetNotFound: ns/nothing does not exist: create it");
    expect(
        &index,
        "r",
        accepted,
        Reason::PortNotFound,
        "no port 443 (listener http); it has http (80): correct spec.listeners[].servicePort, or",
    );
    let words = "no port `web` (listener http); it has http (80): correct spec.targetRefs[0].sectionName, or";
    expect(&index, "y", accepted, Reason::PortNotFound, words);
    let words = "correct spec.listeners[].servicePort and spec.targetRefs[0].sectionName, or";
    expect(&index, "z", accepted, Reason::PortNotFound, words);
    index.says("u Accepted PortInLegRange: 20000 to 32767");
    index.says("v Accepted NoDataplaneClass: tier=edge");
    index.says("p Degraded NoEndpoints: selector");
}

#[test]
fn events_are_bounded() {
    let mut index = index();
    let many = LIMIT_EVENTS + 10;
    for n in 0..many {
        add(&mut index, &format!("bad-{n}"), policy(10, "missing", 81));
    }
    let update = index.fold(2);
    assert_eq!(update.events.len(), LIMIT_EVENTS);
    assert_eq!(update.events_dropped, 10);
}
