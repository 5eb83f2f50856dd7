//! What one namespace's objects can and cannot do to others: ports, addresses, endpoints, room.

use super::*;

fn class(change: impl FnOnce(&mut Class)) -> Change {
    let mut class = Class {
        frontend_ports: None,
        allowed: vec![Allowance {
            ports: vec!["1024-65535".parse().expect("ports")],
            ..Allowance::default()
        }],
        limit_policies: 8,
        ..super::class()
    };
    change(&mut class);
    Change::Class("class".into(), Some(Arc::new(class)))
}

/// Policy `p` on `s` at port 8080.
fn index_of(change: impl FnOnce(&mut Class)) -> Index {
    let mut index = index();
    index.apply(class(change));
    add(&mut index, "p", policy(1, "s", 8_080));
    let _ = index.fold(2);
    index.says("p Accepted Accepted");
    index
}

fn pod_at(name: &str, addresses: [Option<&str>; 2]) -> Change {
    let [address, second_address] = addresses.map(|a| a.map(|a| a.parse().expect("an address")));
    let value = Pod { address, second_address, ..bare_pod(Labels::default()) };
    Change::Pod(key(name), Some(Arc::new(value)))
}

fn slice_at(endpoints: &[(&str, Option<&str>)]) -> Change {
    let endpoints = endpoints.iter().map(|(address, pod)| SliceEndpoint {
        address: address.parse().expect("an address"),
        conditions: READY,
        pod: pod.map(Text::from),
        node: None,
    });
    slice_of("s", http(8_080), endpoints)
}

#[test]
fn ports_of_the_dataplane_itself_are_nobodys() {
    let mut index =
        index_of(|class| class.allowed[0].ports = vec!["1-65535".parse().expect("all")]);
    for port in [9_900, 9_910] {
        add(&mut index, "q", policy(2, "t", port));
        let _ = index.fold(3);
        let words = format!("spec.listeners[0].port: {port} is where dataplanes");
        expect(&index, "q", ConditionKind::Accepted, Reason::PortReserved, &words);
        assert_eq!(index.snapshot("class").len(), 1, "the other one is served");
    }
    // Another control port, and it is free.
    index.apply(class(|class| class.control_port = 9_901));
    add(&mut index, "q", policy(2, "t", 9_900));
    let _ = index.fold(4);
    index.says("q Accepted Accepted");
}

#[test]
fn what_is_granted_is_said_and_counts_at_once() {
    let mut index = index_of(|_| {});
    add(&mut index, "q", policy(2, "t", 22));
    let _ = index.fold(3);
    let accepted = ConditionKind::Accepted;
    let words = "spec.listeners[0].port: 22 is not allowed: of class class, namespace ns may have ports 1024-65535 of the \
                 dataplanes' own addresses; take what is allowed, select another class, or have an admin of \
                 BatonDataplane class change its spec.allowed";
    expect(&index, "q", accepted, Reason::NotAllowed, words);
    // By a label that the namespace gets.
    index.apply(class(|class| {
        class.allowed[0].namespaces.labels = Labels::from_iter([("tier", "front")]);
        class.allowed[0].ports = vec!["22".parse().expect("a port")];
    }));
    let _ = index.fold(4);
    index.says("q Accepted NotAllowed: namespace ns may have nothing");
    let labels = Labels::from_iter([("tier", "front")]);
    let namespace = Arc::new(Namespace { labels });
    index.apply(Change::Namespace("ns".into(), Some(namespace)));
    let _ = index.fold(5);
    index.says("q Accepted Accepted");
    // What was good before and is not allowed any more is not kept.
    index.says("p Accepted NotAllowed: 8080 is not allowed");
    assert_eq!(index.snapshot("class").len(), 1);
    index.apply(Change::Namespace("ns".into(), None));
    let _ = index.fold(6);
    assert_eq!(index.snapshot("class").len(), 0);
}

#[test]
fn an_explicit_address_has_to_be_granted_or_the_dataplanes_own() {
    let mut index = index_of(|_| {});
    let accepted = ConditionKind::Accepted;
    let at = |index: &mut Index, address: IpAddr| {
        let mut policy = policy(2, "t", 9_000);
        policy.listeners[0].addresses = vec![address];
        add(index, "q", policy);
        let _ = index.fold(3);
    };
    // The dataplane's, then a Pod's, which is on the way through it perhaps.
    at(&mut index, address(200));
    index.says("q Accepted Accepted");
    at(&mut index, address(3));
    let words = "spec.listeners[0].addresses: port 9000 of 10.0.0.3 is not allowed";
    expect(&index, "q", accepted, Reason::NotAllowed, words);
    let network = "10.0.0.0/30".parse().expect("a network");
    index.apply(class(|class| class.allowed[0].addresses = vec![network]));
    let _ = index.fold(4);
    index.says("q Accepted Accepted");
}

#[test]
fn an_address_that_only_the_dataplane_knows_as_its_own_conflicts_with_its_own() {
    let network = "192.0.2.0/24".parse().expect("a network");
    let mut index = index_of(|class| class.allowed[0].addresses = vec![network]);
    let secondary: IpAddr = "192.0.2.9".parse().expect("an address");
    let mut explicit = policy(2, "t", 8_080);
    explicit.listeners[0].addresses = vec![secondary];
    add(&mut index, "q", explicit);
    let _ = index.fold(3);
    index.says("q Accepted Accepted");
    report(&mut index, Report { addresses: vec![address(200), secondary], ..Report::default() });
    let update = index.fold(4);
    index.says("q Accepted Conflicted: the older policy ns/p has port 8080");
    assert_eq!(update.classes["class"].dataplanes, None, "nobody else is pushed to");
    // Both at once are one too many as well.
    let mut both = policy(1, "s", 8_080);
    both.listeners[0].addresses = vec!["0.0.0.0".parse().expect("an address"), secondary];
    add(&mut index, "p", both);
    let _ = index.fold(5);
    index.says("p Accepted Invalid: 192.0.2.9 is an address of a dataplane");
}

#[test]
fn only_pods_of_the_namespace_that_have_the_address_are_backends() {
    let mut index = index_of(|_| {});
    index.apply(pod_at("dual", [Some("10.9.0.1"), Some("fd00::1")]));
    index.apply(slice_at(&[
        ("10.0.0.1", Some("pod-1")),
        ("fd00::1", Some("dual")),
        // Nobody's, another one's with an own Pod's name, one that is not there.
        ("169.254.169.254", None),
        ("10.0.0.3", Some("pod-1")),
        ("10.9.0.9", Some("late")),
    ]));
    let _ = index.fold(3);
    let names = |index: &Index| -> Vec<String> {
        backends(index).into_iter().map(|(name, ..)| name).collect()
    };
    assert_eq!(names(&index), ["dual", "pod-1"]);
    let words = "2 endpoints are not used, as no Pod of namespace ns has the address and is named in targetRef: 10.0.0.3, \
                 169.254.169.254; correct the EndpointSlices, or have an admin of BatonDataplane class allow such \
                 addresses in spec.allowed[].endpoints";
    let degraded = ConditionKind::Degraded;
    expect(&index, "p", degraded, Reason::EndpointsNotAllowed, words);
    // It was on its way.
    index.apply(pod_at("late", [Some("10.9.0.9"), None]));
    let _ = index.fold(4);
    assert_eq!(names(&index), ["dual", "late", "pod-1"]);
    // Its address is somebody else's now.
    index.apply(pod_at("late", [Some("10.9.0.8"), None]));
    let _ = index.fold(5);
    assert_eq!(names(&index), ["dual", "pod-1"]);
    index.says("p Degraded EndpointsNotAllowed: 3 endpoints");
    index.apply(class(|class| {
        class.allowed[0].endpoints =
            ["10.9.0.0/24", "169.254.169.254"].map(|n| n.parse().expect("a network")).into();
    }));
    let _ = index.fold(6);
    assert_eq!(names(&index), ["169.254.169.254", "dual", "late", "pod-1"]);
    index.apply(slice_at(&[("10.0.7.7", None)]));
    let _ = index.fold(7);
    let said = verdict(&index, "p");
    let message = &said.condition(degraded).message;
    assert!(!message.contains("selector"), "{message}");
    index.apply(slice_at(&[("10.0.7.7", Some("gone"))]));
    let _ = index.fold(8);
    let words = "the Pods that its EndpointSlices name (gone) do not exist";
    expect(&index, "p", degraded, Reason::NoEndpoints, words);
}

#[test]
fn places_for_backends_that_linger_are_given_to_nobody() {
    let mut index = index_of(|class| class.limit_backends = Some(16));
    let pods = |range: std::ops::Range<u8>| -> Vec<(u8, Conditions)> {
        range.map(|last| (last, READY)).collect()
    };
    for last in 10..30 {
        index.apply(pod(last, Labels::default()));
    }
    let programmed = ConditionKind::Programmed;
    index.apply(slice("s", &pods(10..24)));
    let _ = index.fold(3);
    index.says("p Programmed Pending");
    // Two of 14 are replaced: the dataplane may have 16 then.
    index.apply(slice("s", &pods(12..26)));
    let _ = index.fold(4);
    index.says("p Programmed Pending");
    index.apply(slice("s", &pods(10..25)));
    let _ = index.fold(5);
    let words = "have room for 14 backends and for those that leave";
    expect(&index, "p", programmed, Reason::ClassBackendLimit, words);
}

#[test]
fn one_that_grows_beyond_the_room_takes_nobodys_place() {
    let mut index = index_of(|class| class.limit_backends = Some(6));
    let programmed = ConditionKind::Programmed;
    let names = |index: &Index| -> Vec<(String, usize)> {
        let policies = index.snapshot("class");
        policies.map(|p| (p.name.clone(), p.backends.len())).collect()
    };
    // It comes last, and there is room for it.
    add(&mut index, "q", policy(9, "t", 8_081));
    let _ = index.fold(3);
    let both = [("ns/p/http".into(), 2), ("ns/q/http".into(), 2)];
    assert_eq!(names(&index), both);
    for last in 10..20 {
        index.apply(pod(last, Labels::default()));
    }
    // Both of its Pods stay, and of the other ones none gets in.
    let grown: Vec<_> = [1, 2].into_iter().chain(10..20).collect();
    let grown: Vec<_> = grown.into_iter().map(|last| (last, READY)).collect();
    index.apply(slice("s", &grown));
    let _ = index.fold(4);
    assert_eq!(backends(&index).len(), 2);
    assert_eq!(names(&index), both);
    let words = "it has no more listeners and backends than before it grew";
    expect(&index, "p", programmed, Reason::ClassBackendLimit, words);
    index.says("q Programmed Pending");
    // All Pods are others: it follows them.
    index.apply(slice("s", &grown[2..]));
    let _ = index.fold(5);
    assert_eq!(names(&index), both);
    let replaced = backends(&index).into_iter().map(|(name, ..)| name);
    assert_eq!(replaced.collect::<Vec<_>>(), ["pod-10", "pod-11"]);
    // One that comes and does not fit keeps out nobody who does.
    index.apply(Change::Policy(key("q"), None));
    add(&mut index, "late", policy(5, "large", 8_082));
    index.apply(service("large"));
    index.apply(slice("large", &grown));
    add(&mut index, "q", policy(9, "t", 8_081));
    let _ = index.fold(6);
    assert_eq!(names(&index), both);
    let words = "too few for this policy";
    expect(&index, "late", programmed, Reason::ClassBackendLimit, words);
}

/// The nodes that the only policy's backends have in the snapshot.
fn nodes(index: &Index) -> Vec<Option<String>> {
    let backends = index.snapshot("class").flat_map(|p| &p.backends);
    backends.map(|b| b.node.clone()).collect()
}

#[test]
fn a_backends_node_is_its_pods_and_not_what_a_slice_says() {
    let mut index = index_of(|class| {
        class.allowed[0].endpoints = vec!["10.9.0.0/16".parse().expect("a network")];
    });
    let on = |node: Option<&str>| match pod_at("pod-1", [Some("10.0.0.1"), None]) {
        Change::Pod(key, Some(pod)) => {
            let node = node.map(Text::from);
            Change::Pod(key, Some(Arc::new(Pod { node, ..(*pod).clone() })))
        }
        other => other,
    };
    let lies = |endpoints: &[(&str, Option<&str>)]| match slice_at(endpoints) {
        Change::Slice(key, Some(slice)) => {
            let mut slice = (*slice).clone();
            for endpoint in &mut slice.endpoints {
                endpoint.node = Some("elsewhere".into());
            }
            Change::Slice(key, Some(Arc::new(slice)))
        }
        other => other,
    };
    index.apply(on(Some("node-1")));
    index.apply(lies(&[("10.0.0.1", Some("pod-1"))]));
    let _ = index.fold(3);
    assert_eq!(nodes(&index), [Some("node-1".into())]);
    // As a Pod of a StatefulSet that is made anew.
    index.apply(on(Some("node-2")));
    let _ = index.fold(4);
    assert_eq!(nodes(&index), [Some("node-2".into())]);
    index.apply(on(None));
    let _ = index.fold(5);
    assert_eq!(nodes(&index), [None]);
    // Nor has one on a node that an admin excluded a key, whatever a slice says.
    index.apply(on(Some("node-1")));
    index.apply(Change::Excluded(["node-1".into(), "gone".into()].into()));
    let _ = index.fold(6);
    assert_eq!(nodes(&index), [None]);
    index.apply(Change::Excluded(["elsewhere".into()].into()));
    let _ = index.fold(7);
    assert_eq!(nodes(&index), [Some("node-1".into())]);
    // An address that the class allows and the Pod has not is on no node that is known.
    index.apply(on(Some("node-1")));
    index.apply(lies(&[("10.9.0.1", Some("pod-1")), ("10.9.0.2", None)]));
    let _ = index.fold(8);
    assert_eq!(nodes(&index), [None, None]);
}

#[test]
fn what_a_pod_says_is_quoted_without_what_a_terminal_obeys() {
    let mut index = index_of(|_| ());
    let mut weighted = policy(1, "s", 8_080);
    weighted.weights = Some(Weights { source: WeightSource::Label("w".into()), default: 1 });
    add(&mut index, "p", weighted);
    index.apply(pod(1, Labels::from_iter([("w", "\x1b[2J")])));
    index.apply(slice("s", &[(1, READY)]));
    let _ = index.fold(2);
    let (kind, reason) = (ConditionKind::Degraded, Reason::WeightUnreadable);
    expect(&index, "p", kind, reason, r"pod-1 has `\u{1b}[2J`");
}
