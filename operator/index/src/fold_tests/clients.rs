//! `allowFrom`: which addresses a policy's list comes to, and that what changes them is followed.

use super::*;
use baton_api::LIMIT_ALLOW_FROM;

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().copied().collect()
}

fn selector(pairs: &[(&str, &str)]) -> Selector {
    Selector { labels: labels(pairs), expressions: Vec::new() }
}

fn network(text: &str) -> Peer {
    Peer::Network(text.parse().expect("a network"))
}

fn pods(namespaces: Option<Selector>, pods: Selector) -> Peer {
    Peer::Pods { namespaces, pods }
}

fn client(at: &str, pairs: &[(&str, &str)], address: &str) -> Change {
    client_with(at, pairs, address, |_| {})
}

fn client_with(
    at: &str,
    pairs: &[(&str, &str)],
    address: &str,
    change: impl FnOnce(&mut Pod),
) -> Change {
    let mut pod = Pod { address: address.parse().ok(), ..bare_pod(labels(pairs)) };
    change(&mut pod);
    Change::Pod(at_key(at), Some(Arc::new(pod)))
}

fn at_key(at: &str) -> Key {
    let (namespace, name) = at.split_once('/').expect("NAMESPACE/NAME");
    Key::new(namespace, name)
}

fn namespace(name: &str, pairs: &[(&str, &str)]) -> Change {
    let labels = labels(pairs);
    Change::Namespace(name.into(), Some(Arc::new(Namespace { labels })))
}

fn with(peers: Vec<Peer>) -> Policy {
    let mut policy = policy(1, "s", 80);
    policy.allow_from = Some(peers.into());
    policy
}

fn index_with(peers: Vec<Peer>) -> Index {
    let mut index = index();
    add(&mut index, "p", with(peers));
    let _ = index.fold(2);
    index.says("p Accepted Accepted");
    index
}

/// What the snapshot says of policy `p`.
fn allowed(index: &Index) -> Option<Vec<String>> {
    let mut policies = index.snapshot("class");
    let policy = policies.find(|policy| policy.name == "ns/p/http");
    let networks = policy.expect("it is served").allow_from.as_ref()?.iter();
    Some(networks.map(ToString::to_string).collect())
}

/// Applies a change; how many policies were translated for it, and what is allowed then.
fn after(index: &mut Index, change: Change) -> (usize, Vec<String>) {
    index.apply(change);
    let update = index.fold(3);
    (update.translated, allowed(index).expect("a list"))
}

#[test]
fn networks_are_passed_on_and_without_a_list_everybody_is_let_in() {
    let mut index = index();
    assert_eq!(allowed(&index), None);
    add(&mut index, "p", with(vec![network("10.0.0.0/8"), network("fd00::/64")]));
    let _ = index.fold(2);
    let expected = ["10.0.0.0/8", "fd00::/64"].map(str::to_owned);
    assert_eq!(allowed(&index), Some(expected.to_vec()));
    add(&mut index, "p", policy(1, "s", 80));
    let _ = index.fold(3);
    assert_eq!(allowed(&index), None);
}

#[test]
fn pods_of_the_own_namespace_are_followed() {
    let mut index = index_with(vec![pods(None, selector(&[("app", "web")]))]);
    assert_eq!(allowed(&index), Some(Vec::new()), "nobody, as yet");
    let web: &[(&str, &str)] = &[("app", "web"), ("a", "first"), ("z", "last")];
    let dual = client_with("ns/a", web, "10.2.0.1", |pod| {
        pod.second_address = "fd00::1".parse().ok();
    });
    let one = vec!["10.2.0.1/32".to_owned(), "fd00::1/128".to_owned()];
    assert_eq!(after(&mut index, dual), (1, one.clone()));
    // Others are none of its business, and cost no translation.
    for (at, pairs) in [("other/b", web), ("ns/c", &[("app", "db")])] {
        let change = client(at, pairs, "10.2.0.2");
        assert_eq!(after(&mut index, change), (0, one.clone()), "{at}");
    }
    // Its readiness is no news.
    let unready = client_with("ns/a", web, "10.2.0.1", |pod| {
        pod.second_address = "fd00::1".parse().ok();
        pod.ready = false;
    });
    assert_eq!(after(&mut index, unready), (0, one));
    // It moved to another address; then it lost its label; then it has it again, and goes.
    let moved = client("ns/a", web, "10.2.0.9");
    assert_eq!(after(&mut index, moved.clone()), (1, vec!["10.2.0.9/32".to_owned()]));
    let relabelled = client("ns/a", &[("app", "db")], "10.2.0.9");
    assert_eq!(after(&mut index, relabelled), (1, Vec::new()));
    assert_eq!(after(&mut index, moved).1.len(), 1);
    assert_eq!(after(&mut index, Change::Pod(at_key("ns/a"), None)), (1, Vec::new()));
}

#[test]
fn pods_of_a_nodes_network_and_without_addresses_are_not_selected() {
    let mut index = index_with(vec![pods(None, selector(&[("app", "web")]))]);
    let web = &[("app", "web")];
    let host = client_with("ns/host", web, "192.0.2.1", |pod| pod.host_network = true);
    assert_eq!(after(&mut index, host), (0, Vec::new()));
    assert_eq!(after(&mut index, client("ns/young", web, "")), (0, Vec::new()));
    let (_, all) = after(&mut index, client("ns/young", web, "::ffff:10.2.0.1"));
    assert_eq!(all, ["10.2.0.1/32"], "an IPv4 address, however written");
}

#[test]
fn namespaces_are_selected_by_their_labels() {
    let shop = || Some(selector(&[("team", "shop")]));
    let both = pods(shop(), selector(&[("app", "web")]));
    let mut index = index_with(vec![both]);
    let _ = after(&mut index, client("one/web", &[("app", "web")], "10.2.0.1"));
    let _ = after(&mut index, client("one/db", &[("app", "db")], "10.2.0.2"));
    let _ = after(&mut index, client("two/web", &[("app", "web")], "10.2.0.3"));
    assert_eq!(allowed(&index), Some(Vec::new()));
    let (translated, all) = after(&mut index, namespace("one", &[("team", "shop")]));
    assert_eq!((translated, all), (1, vec!["10.2.0.1/32".to_owned()]));
    // A label of which nothing depends.
    let other = namespace("one", &[("team", "shop"), ("x", "y")]);
    assert_eq!(after(&mut index, other).0, 0);
    // A Pod that comes later.
    let (_, all) = after(&mut index, client("one/web-2", &[("app", "web")], "10.2.0.4"));
    assert_eq!(all, ["10.2.0.1/32", "10.2.0.4/32"]);
    // All of them, whatever their labels are.
    add(&mut index, "p", with(vec![pods(shop(), Selector::default())]));
    let _ = index.fold(4);
    assert_eq!(allowed(&index).expect("a list").len(), 3);
    let (_, all) = after(&mut index, client("one/db-2", &[], "10.2.0.5"));
    assert_eq!(all.len(), 4, "one without labels is found by its namespace");
    let (_, all) = after(&mut index, Change::Namespace("one".into(), None));
    assert!(all.is_empty(), "{all:?}");
}

#[test]
fn a_namespace_has_the_label_of_its_name_without_an_object() {
    let named = selector(&[(NAMESPACE_NAME_LABEL, "two"), ("a", "b")]);
    let peers = vec![
        pods(Some(selector(&[(NAMESPACE_NAME_LABEL, "one")])), Selector::default()),
        pods(Some(named), Selector::default()),
    ];
    let mut index = index_with(peers);
    let _ = after(&mut index, client("two/a", &[], "10.2.0.2"));
    let (_, all) = after(&mut index, client("one/a", &[], "10.2.0.1"));
    assert_eq!(all, ["10.2.0.1/32"]);
    let (_, all) = after(&mut index, namespace("two", &[("a", "b")]));
    assert_eq!(all, ["10.2.0.1/32", "10.2.0.2/32"]);
}

#[test]
fn expressions_are_asked_as_kubernetes_asks_them() {
    let values = || ["web", "api"].map(Text::from).into_iter().collect();
    let app = || Text::from("app");
    for (expression, expected) in [
        (Expression::In(app(), values()), [true, false, false]),
        (Expression::NotIn(app(), values()), [false, true, true]),
        (Expression::Exists(app()), [true, true, false]),
        (Expression::DoesNotExist(app()), [false, false, true]),
    ] {
        let selector =
            Selector { labels: Labels::default(), expressions: vec![expression.clone()] };
        let mut index = index_with(vec![pods(
            Some(self::selector(&[(NAMESPACE_NAME_LABEL, "one")])),
            selector,
        )]);
        let all: [&[(&str, &str)]; 3] = [&[("app", "web")], &[("app", "db")], &[]];
        for (pairs, expected) in all.into_iter().zip(expected) {
            let (_, all) = after(&mut index, client("one/a", pairs, "10.2.0.1"));
            assert_eq!(!all.is_empty(), expected, "{expression:?} {pairs:?}");
        }
    }
}

#[test]
fn more_addresses_than_have_room_are_left_out_and_said() {
    let mut index =
        index_with(vec![network("192.0.2.0/24"), pods(None, selector(&[("app", "web")]))]);
    let client = |n: usize| {
        let address = format!("10.3.{}.{}", n / 256, n % 256);
        client(&format!("ns/c-{n}"), &[("app", "web")], &address)
    };
    for n in 0..LIMIT_ALLOW_FROM - 1 {
        index.apply(client(n));
    }
    let _ = index.fold(3);
    assert_eq!(allowed(&index).expect("a list").len(), LIMIT_ALLOW_FROM);
    let degraded = ConditionKind::Degraded;
    let reason = verdict(&index, "p").condition(degraded).reason;
    assert_ne!(reason, Reason::AllowFromLimit);
    let (_, all) = after(&mut index, client(LIMIT_ALLOW_FROM));
    assert_eq!(all.len(), LIMIT_ALLOW_FROM);
    assert!(all.contains(&"192.0.2.0/24".to_owned()));
    assert!(!all.contains(&"10.3.4.0/32".to_owned()), "the last one");
    let words = "not all addresses of pods that spec.allowFrom selects may connect: a policy names 1024 networks";
    expect(&index, "p", degraded, Reason::AllowFromLimit, words);
    // How many they are is no news.
    index.apply(client(LIMIT_ALLOW_FROM + 1));
    let update = index.fold(3);
    assert_eq!((update.translated, update.verdicts), (1, Vec::new()));
    index.apply(Change::Pod(at_key(&format!("ns/c-{}", LIMIT_ALLOW_FROM + 1)), None));
    // What may connect stays served.
    index.says("p Accepted Accepted");
    let _ = after(&mut index, Change::Pod(at_key("ns/c-5"), None));
    let reason = verdict(&index, "p").condition(degraded).reason;
    assert_ne!(reason, Reason::AllowFromLimit);
}

#[test]
fn networks_that_a_snapshot_cannot_take_keep_out_their_own_policy_alone() {
    let mut index = index();
    let spacious = Class { limit_policies: 1_024, ..class() };
    index.apply(Change::Class("class".into(), Some(Arc::new(spacious))));
    let networks = (0..LIMIT_ALLOW_FROM).map(|n| network(&format!("fd00:{n:x}::/32")));
    let networks: Arc<[Peer]> = networks.collect();
    // Of 23 of them a snapshot has no room for the last one.
    for n in 0..23u16 {
        let name = format!("large-{n:02}");
        index.apply(service(&name));
        let mut large = policy(2 + i64::from(n), &name, 0);
        large.allow_from = Some(Arc::clone(&networks));
        let listener = large.listeners[0].clone();
        let listeners = (0..16u16).map(|port| Listener {
            name: format!("l-{port}").into(),
            port: 1_000 + n * 16 + port,
            ..listener.clone()
        });
        large.listeners = listeners.collect();
        add(&mut index, &name, large);
    }
    add(&mut index, "young", policy(100, "t", 81));
    let _ = index.fold(2);
    let bytes = index
        .snapshot("class")
        .map(|policy| serde_json::to_vec(&**policy).expect("JSON").len() + 1);
    assert!(bytes.sum::<usize>() < baton_api::LIMIT_SNAPSHOT_BYTES);
    let programmed = ConditionKind::Programmed;
    let words = "too few for this policy";
    expect(&index, "large-22", programmed, Reason::ClassSnapshotLimit, words);
    for name in ["p", "large-00", "young"] {
        expect(&index, name, programmed, Reason::Pending, "");
    }
}

#[test]
fn what_is_wanted_is_forgotten_with_the_policy() {
    let peers = || {
        vec![
            pods(None, selector(&[("app", "web")])),
            pods(Some(Selector::default()), Selector::default()),
        ]
    };
    let mut index = index_with(peers());
    let mut other = policy(2, "t", 81);
    other.allow_from = Some(peers().into());
    add(&mut index, "q", other);
    let _ = index.fold(3);
    // Two policies want the same.
    index.apply(client("ns/a", &[("app", "web")], "10.2.0.1"));
    assert_eq!(index.fold(4).translated, 2);
    index.apply(Change::Policy(key("q"), None));
    let _ = index.fold(5);
    index.apply(client("ns/a", &[("app", "web")], "10.2.0.2"));
    assert_eq!(index.fold(6).translated, 1);
    add(&mut index, "p", policy(1, "s", 80));
    let _ = index.fold(7);
    assert!(index.clients.is_empty());
}

#[test]
fn while_objects_may_be_missing_those_that_dataplanes_let_in_stay() {
    let mut index = index_with(vec![pods(None, selector(&[("app", "web")]))]);
    let _ = after(&mut index, client("ns/a", &[("app", "web")], "10.2.0.1"));
    let mut had = (**index.snapshot("class").next().expect("p")).clone();
    had.allow_from = Some(vec!["10.2.0.7".parse().expect("a network")]);
    index.apply(Change::Partial(true));
    index.apply(Change::Held("class".into(), vec![Arc::new(had)]));
    let _ = index.fold(4);
    let both = ["10.2.0.1/32", "10.2.0.7/32"].map(str::to_owned);
    assert_eq!(allowed(&index), Some(both.to_vec()));
    index.apply(Change::Partial(false));
    let _ = index.fold(5);
    assert_eq!(allowed(&index), Some(vec!["10.2.0.1/32".to_owned()]));
}
