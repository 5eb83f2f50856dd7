//! Where the Service leads: to dataplanes, past them to the pods, or nowhere.

use super::*;

#[test]
fn a_service_is_made_and_leads_to_the_pods_until_a_dataplane_has_the_port() {
    let mut scene = scene();
    let service = &scene.services[&key("web")];
    let port = scene.port("p");
    assert!((18_000..18_010).contains(&port), "{port}");
    assert_eq!((service.ports[0].port, service.selects), (80, false));
    let target = service.front.as_ref().expect("ours").targets[&80];
    assert_eq!(target, port);
    assert_eq!(scene.leads_to("web"), set(PODS));
    scene.says("p Degraded FrontendLeadsToPods: web leads to the pods");

    scene.acknowledge();
    let dataplane = format!("10.0.0.200:{port}");
    assert_eq!(scene.leads_to("web"), set([&*dataplane]));
    let now = verdict(&scene.index, "p");
    assert_eq!(now.front.expect("a frontend").leads_to, LeadsTo::Dataplanes);
    assert_eq!(now.addresses, ["10.96.0.9:80", "[fd00::9]:80"]);
    scene.says("p Degraded AsExpected");
    let served = scene.index.snapshot("class").next().expect("one");
    assert_eq!(served.frontends, [format!("0.0.0.0:{port}").parse().expect("an endpoint")]);
}

#[test]
fn a_newer_snapshot_that_is_not_acknowledged_yet_changes_nothing() {
    let mut scene = scene();
    scene.acknowledge();
    let before = scene.leads_to("web");
    scene.index.apply(slice("s", &[(1, READY), (2, UNREADY)]));
    let writes = scene.index.fold(3).fronts;
    assert!(writes.values().all(|w| w.is_empty()), "{writes:?}");
    assert_eq!(scene.leads_to("web"), before);
}

#[test]
fn it_fails_open_while_no_dataplane_is_ready_and_never_leads_nowhere() {
    let mut scene = scene();
    scene.acknowledge();
    let through = scene.leads_to("web");
    scene.led.clear();
    for change in [(|pod: &mut Pod| pod.ready = false) as fn(&mut Pod), |pod| {
        pod.deleting = true;
    }] {
        scene.dataplane(change);
        assert_eq!(scene.leads_to("web"), set(PODS));
        scene.dataplane(|_| ());
        assert_eq!(scene.leads_to("web"), through);
    }
    // Pods come and go meanwhile.
    scene.dataplane(|pod| pod.ready = false);
    scene.index.apply(slice("s", &[(1, UNREADY), (2, READY)]));
    scene.settle();
    assert_eq!(scene.leads_to("web"), set(["10.0.0.2:8080"]));
    assert!(scene.led.iter().all(|led| !led.is_empty()), "{:?}", scene.led);
}

#[test]
fn endpoints_are_for_their_zone_where_the_service_wants_that() {
    let mut scene = scene();
    scene.acknowledge();
    let zones = |scene: &mut Scene| -> BTreeSet<Option<String>> {
        scene.settle();
        let all = scene.slices.values().flat_map(|slice| &slice.zones);
        all.map(|zone| zone.as_ref().map(Text::to_string)).collect()
    };
    let wants = |scene: &mut Scene, zonal| {
        let mut service = scene.services[&key("web")].clone();
        Arc::make_mut(service.front.as_mut().expect("ours")).zonal = zonal;
        scene.service(&key("web"), service);
    };
    let node_is_in = |scene: &mut Scene, zone: &str| {
        let node = Node { cordoned: false, ready: true, zone: Some(zone.into()) };
        let change = Change::Node("node".into(), Some(Arc::new(node)));
        scene.index.apply(change);
    };
    let only = |zone: Option<&str>| BTreeSet::from([zone.map(str::to_owned)]);
    node_is_in(&mut scene, "a");
    assert_eq!(zones(&mut scene), only(None));
    wants(&mut scene, true);
    assert_eq!(zones(&mut scene), only(Some("a")));
    node_is_in(&mut scene, "b");
    assert_eq!(zones(&mut scene), only(Some("b")));
    // The pods, too.
    scene.dataplane(|pod| pod.ready = false);
    assert_eq!(scene.leads_to("web"), set(PODS));
    assert_eq!(zones(&mut scene), only(Some("b")));
    scene.index.apply(Change::Node("node".into(), None));
    assert_eq!(zones(&mut scene), only(None));
    node_is_in(&mut scene, "b");
    wants(&mut scene, false);
    assert_eq!(zones(&mut scene), only(None));
}

/// With `externalTrafficPolicy: Local` a node leads to its own endpoints alone.
#[test]
fn an_address_that_goes_to_another_node_is_told_of_there() {
    let mut scene = scene();
    scene.acknowledge();
    let nodes = |scene: &Scene| -> BTreeSet<String> {
        let all = scene.slices.values().flat_map(|slice| &slice.endpoints);
        let nodes = all.filter_map(|endpoint| endpoint.node.as_deref());
        nodes.map(str::to_owned).collect()
    };
    assert_eq!(nodes(&scene), set(["node"]));
    scene.dataplane(|pod| pod.node = Some("other".into()));
    assert_eq!(nodes(&scene), set(["other"]));
}

/// `attach` refuses such a Service, but one may become so later.
#[test]
fn clients_that_are_led_to_their_own_node_alone_may_reach_nobody() {
    let mut scene = scene();
    scene.acknowledge();
    let node_is_there = |scene: &mut Scene, name: &str, there: bool| {
        let node = Node { cordoned: false, ready: true, zone: None };
        let node = there.then(|| Arc::new(node));
        scene.index.apply(Change::Node(name.into(), node));
        scene.settle();
    };
    node_is_there(&mut scene, "node", true);
    let mut service = scene.services[&key("web")].clone();
    let front = Arc::make_mut(service.front.as_mut().expect("ours"));
    front.own_node = true;
    scene.service(&key("web"), service);
    scene.settle();
    let degraded = |scene: &Scene, reason, words| {
        expect(&scene.index, "p", ConditionKind::Degraded, reason, words);
    };
    degraded(&scene, Reason::AsExpected, "");
    node_is_there(&mut scene, "other", true);
    let words = "their own node only (internalTrafficPolicy: Local), and on other there is nobody";
    degraded(&scene, Reason::FrontendOwnNode, words);
    node_is_there(&mut scene, "other", false);
    degraded(&scene, Reason::AsExpected, "");
}

/// What expects a header believes whatever a client says in one.
#[test]
fn it_never_leads_past_the_dataplanes_where_pods_expect_a_header() {
    let mut scene = bare();
    let mut policy = fronted(1, "s", "web");
    let template = Arc::make_mut(policy.template.as_mut().expect("right"));
    template.client_address = baton_api::ClientAddress::ProxyV2;
    add(&mut scene.index, "p", policy);
    scene.settle();
    assert_eq!(scene.leads_to("web"), set([]));
    let degraded = |scene: &Scene, reason| {
        expect(&scene.index, "p", ConditionKind::Degraded, reason, "");
    };
    degraded(&scene, Reason::FrontendLeadsNowhere);
    scene.acknowledge();
    let through = format!("10.0.0.200:{}", scene.port("p"));
    assert_eq!(scene.leads_to("web"), set([&*through]));
    degraded(&scene, Reason::AsExpected);
    scene.dataplane(|pod| pod.ready = false);
    assert_eq!(scene.leads_to("web"), set([]));
    degraded(&scene, Reason::FrontendLeadsNowhere);
}

#[test]
fn it_leads_to_the_pods_while_its_policy_is_not_in_force() {
    let mut scene = scene();
    scene.acknowledge();
    let through = scene.leads_to("web");
    let class = scene.index.classes["class"].spec.clone();
    scene.index.apply(Change::Class("class".into(), None));
    scene.settle();
    assert_eq!(scene.leads_to("web"), set(PODS));
    scene.says("p Accepted NoDataplaneClass");
    // No class says that this is allowed.
    let mut foreign = slice("s", &[(1, READY)]);
    if let Change::Slice(_, Some(slice)) = &mut foreign {
        let mut changed = Slice::clone(slice);
        changed.endpoints.push(SliceEndpoint {
            address: "10.1.0.9".parse().expect("an address"),
            pod: None,
            ..changed.endpoints[0].clone()
        });
        *slice = Arc::new(changed);
    }
    scene.index.apply(foreign);
    scene.settle();
    assert_eq!(scene.leads_to("web"), set([PODS[0]]));
    scene.index.apply(slice("s", &[(1, READY), (2, READY)]));
    scene.index.apply(Change::Class("class".into(), Some(class)));
    scene.settle();
    scene.acknowledge();
    assert_eq!(scene.leads_to("web"), through);
    // One that is refused makes nothing.
    let mut refused = fronted(3, "t", "other");
    refused.classes = Labels::from_iter([("no", "class")]);
    add(&mut scene.index, "q", refused);
    scene.settle();
    assert!(!scene.services.contains_key(&key("other")));
}

#[test]
fn an_operator_that_starts_anew_keeps_the_port_and_where_it_leads() {
    let mut first = scene();
    first.acknowledge();
    let port = first.port("p");
    let other = 18_000 + (port - 18_000 + 3) % 10;
    // The status of the object says it, also where the name would give another one.
    for remembered in [None, Some(port), Some(other)] {
        let mut index = index();
        let mut policy = fronted(1, "s", "web");
        policy.listeners[0].allocated = remembered;
        add(&mut index, "p", policy);
        let (services, mut slices) = (first.services.clone(), first.slices.clone());
        if remembered == Some(other) {
            for slice in slices.values_mut() {
                slice.ports[0].port = other;
            }
        }
        for (key, service) in &services {
            index.apply(Change::Service(key.clone(), Some(Arc::new(service.clone()))));
        }
        for (key, slice) in &slices {
            index.apply(Change::Slice(key.clone(), Some(Arc::new(slice.clone()))));
        }
        let mut second = Scene { index, services, slices, led: Vec::new() };
        second.settle();
        let port = remembered.unwrap_or(port);
        assert_eq!(second.port("p"), port);
        // No dataplane was heard yet.
        let expected = format!("10.0.0.200:{port}");
        assert_eq!(second.leads_to("web"), set([&*expected]));
    }
}
