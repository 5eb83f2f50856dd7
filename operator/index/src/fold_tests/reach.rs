//! `Degraded` where no Service leads to a listener's port of the dataplanes.

use super::*;

const DEGRADED: ConditionKind = ConditionKind::Degraded;
const WORDS: &str = "no Service port leads to port 80 (listener http) of the dataplanes";

fn reason(index: &Index) -> Reason {
    verdict(index, "p").condition(DEGRADED).reason
}

/// With the Service in front of the dataplane as it is then.
fn led(index: &mut Index, pods: &[&str], ports: &[u16]) -> Reason {
    index.apply(in_front("lb", pods, ports));
    let _ = index.fold(2);
    reason(index)
}

#[test]
fn a_port_that_no_service_leads_to_is_said_until_one_does() {
    let mut index = index();
    assert_eq!(reason(&index), Reason::AsExpected);
    index.apply(Change::Slice(key("lb-1"), None));
    let update = index.fold(2);
    expect(&index, "p", DEGRADED, Reason::NoServicePort, WORDS);
    index.says("p Degraded NoServicePort: dataplane.service.ports");
    let told: Vec<_> = update.events.iter().map(|one| one.reason).collect();
    assert_eq!(told, [Reason::NoServicePort]);
    index.says("p Accepted Accepted");
    for (pods, ports, reason) in [
        (&["pod-200"][..], &[81, 80][..], Reason::AsExpected),
        (&["pod-200"], &[81], Reason::NoServicePort),
        (&["pod-1", "pod-200"], &[80], Reason::AsExpected),
        // Not the dataplane's.
        (&["pod-1"], &[80], Reason::NoServicePort),
        (&["pod-200"], &[80], Reason::AsExpected),
    ] {
        assert_eq!(led(&mut index, pods, ports), reason, "{pods:?} {ports:?}");
    }
    // Another Service does as well.
    index.apply(in_front("other", &["pod-200"], &[80]));
    assert_eq!(led(&mut index, &["pod-200"], &[81]), Reason::AsExpected);
}

#[test]
fn without_a_cluster_clients_are_led_by_others_and_slices_written_by_hand() {
    let mut index = built(Index::of_files());
    index.apply(Change::Slice(key("lb-1"), None));
    let _ = index.fold(2);
    assert_eq!(reason(&index), Reason::AsExpected);
    index.apply(Change::Slice(key("s-1"), None));
    let _ = index.fold(3);
    let words = "so write one, with the label `kubernetes.io/service-name: s`";
    expect(&index, "p", DEGRADED, Reason::NoEndpoints, words);
}

#[test]
fn each_listener_is_named_that_is_not_reached() {
    let mut index = index();
    let mut more = policy(1, "s", 80);
    for (name, port) in [("admin", 81), ("metrics", 82)] {
        more.listeners.push(Listener { name: name.into(), port, ..more.listeners[0].clone() });
    }
    add(&mut index, "p", more.clone());
    assert_eq!(led(&mut index, &["pod-200"], &[81]), Reason::NoServicePort);
    let words = "port 80 (listener http), 82 (listener metrics) of";
    expect(&index, "p", DEGRADED, Reason::NoServicePort, words);
    // One that has addresses is reached there, and one without a port serves nobody.
    more.listeners[0].addresses = vec![IpAddr::from([10, 0, 0, 200])];
    more.listeners[2].service_port = PortRef::Number(1);
    add(&mut index, "p", more);
    let _ = index.fold(3);
    let verdict = verdict(&index, "p");
    let degraded = verdict.condition(DEGRADED);
    assert_eq!(degraded.reason, Reason::PortNotFound, "{degraded:?}");
    assert!(!degraded.message.contains("leads to"), "{degraded:?}");
}

#[test]
fn nothing_is_said_where_clients_have_other_ways_or_nobody_serves() {
    let dataplane = |change: fn(&mut Pod)| {
        let Change::Pod(key, Some(pod)) = pod(200, Labels::from_iter([("app", "dataplane")]))
        else {
            panic!("a Pod")
        };
        let mut pod = (*pod).clone();
        change(&mut pod);
        Change::Pod(key, Some(Arc::new(pod)))
    };
    let mut index = index();
    index.apply(Change::Slice(key("lb-1"), None));
    for (change, said) in [
        ((|_| ()) as fn(&mut Pod), Reason::NoServicePort),
        (|pod| pod.host_network = true, Reason::AsExpected),
        (|_| (), Reason::NoServicePort),
        // `Programmed` says that.
        (|pod| pod.ready = false, Reason::AsExpected),
    ] {
        index.apply(dataplane(change));
        let _ = index.fold(2);
        assert_eq!(reason(&index), said);
    }
    index.apply(dataplane(|_| ()));
    let mut fronted = policy(1, "s", 80);
    fronted.frontend = Some(Arc::new(Frontend {
        service: "front".into(),
        kind: "ClusterIP".into(),
        load_balancer_class: None,
        local: false,
        source_ranges: [].into(),
        annotations: [].into(),
    }));
    add(&mut index, "p", fronted);
    let _ = index.fold(3);
    let verdict = verdict(&index, "p");
    let degraded = verdict.condition(DEGRADED);
    assert_eq!(degraded.reason, Reason::AsExpected, "{degraded:?}");
}
