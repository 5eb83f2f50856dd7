//! Services in front of dataplanes. What is said to be written is written into a small model of an
//! API server, which tells the index, until nothing is left to write.

use super::*;
use std::collections::{BTreeMap, BTreeSet};

const CLUSTER: &str = "endpointslice-controller";

/// The index, and what an API server has.
struct Scene {
    index: Index,
    services: BTreeMap<Key, Service>,
    slices: BTreeMap<Key, Slice>,
    /// Where the Service led each time that something was written: to nothing never is good.
    led: Vec<BTreeSet<String>>,
}

fn fronted(created: i64, service: &str, frontend: &str) -> Policy {
    Policy {
        frontend: Some(Arc::new(Frontend {
            service: frontend.into(),
            kind: "ClusterIP".into(),
            load_balancer_class: None,
            local: false,
            source_ranges: BTreeSet::new(),
            annotations: BTreeMap::new(),
        })),
        ..policy(created, service, 80)
    }
}

/// No policy has a frontend.
fn bare() -> Scene {
    Scene {
        index: index(),
        services: BTreeMap::new(),
        slices: BTreeMap::new(),
        led: Vec::new(),
    }
}

fn scene() -> Scene {
    let mut scene = bare();
    add(&mut scene.index, "p", fronted(1, "s", "web"));
    scene.settle();
    scene
}

impl Scene {
    /// Folds and writes until nothing is left to write.
    fn settle(&mut self) {
        for _ in 0..10 {
            let update = self.index.fold(2);
            let writes: Vec<_> = update
                .fronts
                .into_iter()
                .filter(|(_, w)| !w.is_empty())
                .collect();
            if writes.is_empty() {
                return;
            }
            for (key, writes) in writes {
                self.write(&key, &writes);
            }
        }
        panic!("it never comes to rest");
    }

    fn write(&mut self, key: &Key, writes: &FrontWrites) {
        if let Some(wanted) = &writes.make {
            let (policy, _) = writes.owner.clone().expect("an owner");
            self.service(key, made(wanted, &policy));
        }
        if let Some(selector) = &writes.restore {
            assert_eq!(&**selector, r#"{"app":"web"}"#);
            let mut service = self.services[key].clone();
            (service.selects, service.front) = (true, None);
            self.service(key, service);
        }
        for slice in &writes.slices {
            let name = Key::new(key.namespace.clone(), slice.name.clone());
            self.slice(&name, Some(stored(key, slice)));
        }
        for name in &writes.remove {
            let name = Key::new(key.namespace.clone(), name.clone());
            self.slice(&name, None);
        }
        if writes.unmake {
            self.services.remove(key);
            self.index.apply(Change::Service(key.clone(), None));
        }
        let led = self.leads_to(&key.name);
        self.led.push(led);
    }

    fn service(&mut self, key: &Key, service: Service) {
        self.services.insert(key.clone(), service.clone());
        self.index
            .apply(Change::Service(key.clone(), Some(Arc::new(service))));
    }

    fn slice(&mut self, key: &Key, slice: Option<Slice>) {
        match &slice {
            Some(slice) => self.slices.insert(key.clone(), slice.clone()),
            None => self.slices.remove(key),
        };
        self.index
            .apply(Change::Slice(key.clone(), slice.map(Arc::new)));
    }

    /// Where clients of a Service are led.
    fn leads_to(&self, service: &str) -> BTreeSet<String> {
        let of = self
            .slices
            .values()
            .filter(|slice| &*slice.service == service);
        let each = of.flat_map(|s| s.ports.iter().map(move |p| (s, p.port)));
        let each = each.flat_map(|(s, port)| s.endpoints.iter().map(move |e| (e, port)));
        let ready = each.filter(|(e, _)| e.conditions.ready);
        ready
            .map(|(e, port)| format!("{}:{port}", e.address))
            .collect()
    }

    fn acknowledge(&mut self) {
        let revision = self.index.class("class").expect("it is there").revision;
        let acknowledged = Some(revision);
        report(
            &mut self.index,
            Report {
                acknowledged,
                ..Report::default()
            },
        );
        self.settle();
    }

    fn port(&self, policy: &str) -> u16 {
        verdict(&self.index, policy)
            .front
            .expect("a frontend")
            .ports[0]
            .1
    }

    fn dataplane(&mut self, change: impl FnOnce(&mut Pod)) {
        let Change::Pod(key, Some(pod)) = pod(200, Labels::from_iter([("app", "dataplane")]))
        else {
            panic!("a pod");
        };
        let mut pod = Pod::clone(&pod);
        change(&mut pod);
        self.index.apply(Change::Pod(key, Some(Arc::new(pod))));
        self.settle();
    }

    /// `web` as clients have it: with a selector, and slices that the cluster wrote.
    fn clients_service(&mut self) -> Service {
        let service = Service {
            ports: vec![ServicePort {
                name: "".into(),
                port: 80,
                protocol: None,
            }],
            families: vec![Family::V4],
            external_name: false,
            selects: true,
            front: None,
        };
        self.service(&key("web"), service.clone());
        let Change::Slice(_, Some(slice)) = slice("web", &[(1, READY), (2, READY)]) else {
            panic!("a slice");
        };
        let mut slice = Slice::clone(&slice);
        slice.ports[0].name = "".into();
        self.slice(&key(CLUSTER), Some(slice));
        service
    }
}

fn front(policy: &str, made: bool, targets: &[(Text, u16, u16)]) -> Front {
    let shape = fronted(1, "s", "web").frontend.expect("a frontend");
    Front {
        uid: "service-uid".into(),
        policy: policy.into(),
        made,
        selector: (!made).then(|| r#"{"app":"web"}"#.into()),
        addresses: vec!["10.96.0.9".into(), "fd00::9".into()],
        shape: Frontend::clone(&shape),
        targets: targets
            .iter()
            .map(|(_, port, target)| (*port, *target))
            .collect(),
        zonal: false,
    }
}

fn made(wanted: &FrontService, policy: &str) -> Service {
    let ports = wanted.ports.iter();
    let mut front = front(policy, true, &wanted.ports);
    front.shape = Frontend::clone(&wanted.frontend);
    Service {
        ports: ports
            .map(|(name, port, _)| ServicePort {
                name: name.clone(),
                port: *port,
                protocol: None,
            })
            .collect(),
        families: wanted.families.clone(),
        external_name: false,
        selects: false,
        front: Some(Arc::new(front)),
    }
}

fn stored(service: &Key, slice: &FrontSlice) -> Slice {
    let endpoint = |e: &FrontEndpoint| SliceEndpoint {
        address: e.address,
        conditions: e.conditions,
        // Of another namespace than the slice's it is nobody's.
        pod: None,
        node: e.node.clone(),
    };
    Slice {
        service: service.name.clone(),
        ports: slice.ports.clone(),
        endpoints: slice.endpoints.iter().map(endpoint).collect(),
        writer: SliceWriter::Baton,
        zones: slice.endpoints.iter().map(|e| e.zone.clone()).collect(),
    }
}

const PODS: [&str; 2] = ["10.0.0.1:8080", "10.0.0.2:8080"];

fn set<const N: usize>(texts: [&str; N]) -> BTreeSet<String> {
    texts.map(str::to_owned).into()
}

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
    expect(
        &scene.index,
        "p",
        ConditionKind::Degraded,
        Reason::FrontendLeadsToPods,
        "web leads to the pods",
    );

    scene.acknowledge();
    let dataplane = format!("10.0.0.200:{port}");
    assert_eq!(scene.leads_to("web"), set([&*dataplane]));
    let now = verdict(&scene.index, "p");
    assert_eq!(now.front.expect("a frontend").leads_to, LeadsTo::Dataplanes);
    assert_eq!(now.addresses, ["10.96.0.9:80", "[fd00::9]:80"]);
    expect(
        &scene.index,
        "p",
        ConditionKind::Degraded,
        Reason::AsExpected,
        "",
    );
    let served = scene.index.snapshot("class").next().expect("one");
    assert_eq!(
        served.frontends,
        [format!("0.0.0.0:{port}").parse().expect("an endpoint")]
    );
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
    assert!(
        scene.led.iter().all(|led| !led.is_empty()),
        "{:?}",
        scene.led
    );
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
        let node = Node {
            cordoned: false,
            ready: true,
            zone: Some(zone.into()),
        };
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
    expect(
        &scene.index,
        "p",
        ConditionKind::Accepted,
        Reason::NoDataplaneClass,
        "",
    );
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
    scene
        .index
        .apply(Change::Class("class".into(), Some(class)));
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
            index.apply(Change::Service(
                key.clone(),
                Some(Arc::new(service.clone())),
            ));
        }
        for (key, slice) in &slices {
            index.apply(Change::Slice(key.clone(), Some(Arc::new(slice.clone()))));
        }
        let mut second = Scene {
            index,
            services,
            slices,
            led: Vec::new(),
        };
        second.settle();
        let port = remembered.unwrap_or(port);
        assert_eq!(second.port("p"), port);
        // No dataplane was heard yet.
        let expected = format!("10.0.0.200:{port}");
        assert_eq!(second.leads_to("web"), set([&*expected]));
    }
}

#[test]
fn ports_are_kept_apart_and_run_out_with_words() {
    let mut scene = scene();
    let taken = scene.port("p");
    for n in 0..10 {
        let mut policy = fronted(10 + n, "t", &format!("web-{n}"));
        // The same name in the same place would be the same port.
        policy.listeners[0].allocated = Some(taken);
        policy.service = format!("t-{n}").into();
        scene.index.apply(service(&policy.service));
        add(&mut scene.index, &format!("q-{n}"), policy);
    }
    let _ = scene.index.fold(3);
    let given: Vec<_> = (0..10)
        .filter_map(|n| {
            Some(
                verdict(&scene.index, &format!("q-{n}"))
                    .front?
                    .ports
                    .first()?
                    .1,
            )
        })
        .collect();
    let all: BTreeSet<u16> = given.iter().copied().chain([taken]).collect();
    assert_eq!((given.len(), all.len()), (9, 10), "{given:?}");
    expect(
        &scene.index,
        "q-9",
        ConditionKind::Accepted,
        Reason::NoFrontendPort,
        "18000 to 18009 of class class",
    );
    assert_eq!(scene.port("p"), taken);
    // One goes, so there is room for the one that waits.
    scene.index.apply(Change::Policy(key("q-3"), None));
    let _ = scene.index.fold(4);
    assert!((18_000..18_010).contains(&scene.port("q-9")));
    expect(
        &scene.index,
        "q-9",
        ConditionKind::Accepted,
        Reason::Accepted,
        "",
    );
}

#[test]
fn a_port_that_is_given_out_is_nobodys_by_number() {
    let mut scene = scene();
    add(&mut scene.index, "q", policy(5, "t", 18_004));
    let _ = scene.index.fold(3);
    expect(
        &scene.index,
        "q",
        ConditionKind::Accepted,
        Reason::PortIsAFrontends,
        "18000 to 18009",
    );
}

#[test]
fn two_policies_do_not_share_a_service() {
    let mut scene = scene();
    add(&mut scene.index, "q", fronted(5, "t", "web"));
    let _ = scene.index.fold(3);
    expect(
        &scene.index,
        "q",
        ConditionKind::Accepted,
        Reason::Conflicted,
        "ns/p is behind Service ns/web already",
    );
}

#[test]
fn a_service_that_clients_have_is_left_alone_until_it_is_given_to_the_policy() {
    let mut scene = bare();
    let mut service = scene.clients_service();
    add(&mut scene.index, "p", fronted(1, "s", "web"));
    scene.settle();
    scene.acknowledge();
    expect(
        &scene.index,
        "p",
        ConditionKind::Degraded,
        Reason::FrontendNotOwned,
        "kubectl baton attach svc/web",
    );
    assert!(scene.led.is_empty(), "something was written");
    assert_eq!(
        verdict(&scene.index, "p").front.expect("one").leads_to,
        LeadsTo::Nowhere
    );

    service.front = Some(Arc::new(front("p", false, &[])));
    scene.service(&key("web"), service.clone());
    scene.settle();
    expect(
        &scene.index,
        "p",
        ConditionKind::Degraded,
        Reason::FrontendNotOwned,
        "still selects pods",
    );
    assert!(scene.led.is_empty(), "something was written");

    // Ours come first, then those of the cluster go.
    service.selects = false;
    scene.service(&key("web"), service.clone());
    scene.settle();
    let dataplane = format!("10.0.0.200:{}", scene.port("p"));
    let both = set([PODS[0], PODS[1], &*dataplane]);
    assert_eq!(scene.led, [both, set([&*dataplane])]);
    assert!(!scene.slices.contains_key(&key(CLUSTER)));
    // By the name that the Service has for it.
    assert!(
        scene
            .slices
            .values()
            .all(|slice| slice.ports[0].name.is_empty())
    );

    // The policy goes: the selector comes back, ours stay until the cluster has its own.
    scene.index.apply(Change::Policy(key("p"), None));
    scene.settle();
    assert!(scene.services[&key("web")].selects);
    assert_eq!(scene.leads_to("web"), set([&*dataplane]));
    scene.clients_service();
    scene.settle();
    assert_eq!(scene.leads_to("web"), set(PODS));
    assert!(scene.index.fold(9).fronts.is_empty());
}

#[test]
fn a_service_that_is_taken_back_while_its_policy_is_there_leads_past_it() {
    let mut scene = bare();
    let mut service = scene.clients_service();
    service.selects = false;
    service.front = Some(Arc::new(front("p", false, &[])));
    scene.service(&key("web"), service.clone());
    add(&mut scene.index, "p", fronted(1, "s", "web"));
    scene.settle();
    scene.acknowledge();
    let through = scene.leads_to("web");
    (service.selects, service.front) = (true, None);
    scene.service(&key("web"), service);
    scene.settle();
    assert_eq!(scene.leads_to("web"), through);
    scene.clients_service();
    scene.settle();
    assert_eq!(scene.leads_to("web"), set(PODS));
}

#[test]
fn the_service_of_a_policy_that_cannot_be_read_stays() {
    let first = scene();
    let mut index = index();
    let mut policy = fronted(1, "s", "web");
    policy.frontend = None;
    policy.template = Err(Refusal {
        field: "spec".into(),
        problem: "is nothing".into(),
    });
    add(&mut index, "p", policy);
    for (key, service) in &first.services {
        index.apply(Change::Service(
            key.clone(),
            Some(Arc::new(service.clone())),
        ));
    }
    for (key, slice) in &first.slices {
        index.apply(Change::Slice(key.clone(), Some(Arc::new(slice.clone()))));
    }
    assert!(index.fold(2).fronts.is_empty());
}

#[test]
fn a_port_that_the_clients_service_lacks_is_named() {
    let mut scene = bare();
    let mut service = scene.clients_service();
    service.ports[0].port = 81;
    (service.selects, service.front) = (false, Some(Arc::new(front("p", false, &[]))));
    scene.service(&key("web"), service);
    add(&mut scene.index, "p", fronted(1, "s", "web"));
    scene.settle();
    expect(
        &scene.index,
        "p",
        ConditionKind::Degraded,
        Reason::FrontendPortNotFound,
        "no port 80 (listener http)",
    );
}

#[test]
fn what_somebody_changes_is_mended_and_a_renamed_frontend_goes() {
    let mut scene = scene();
    scene.acknowledge();
    let before = scene.slices.clone();
    // Between two folds: the same is to be written as the last time.
    for key in before.keys() {
        scene.slice(key, None);
    }
    scene.settle();
    assert_eq!(scene.slices, before);
    let mut service = scene.services[&key("web")].clone();
    service.ports.clear();
    scene.service(&key("web"), service);
    scene.settle();
    assert_eq!(scene.services[&key("web")].ports.len(), 1);

    add(&mut scene.index, "p", fronted(1, "s", "shop"));
    scene.settle();
    let names: Vec<_> = scene
        .services
        .keys()
        .map(|key| key.name.to_string())
        .collect();
    assert_eq!(names, ["shop"]);
}

#[test]
fn nothing_is_remembered_when_all_is_gone() {
    let mut scene = scene();
    scene.acknowledge();
    for name in ["s", "t", "lb"] {
        scene.index.apply(Change::Service(key(name), None));
        scene
            .index
            .apply(Change::Slice(key(&format!("{name}-1")), None));
    }
    scene.index.apply(Change::Policy(key("p"), None));
    scene.settle();
    for key in scene.slices.keys() {
        scene.index.apply(Change::Slice(key.clone(), None));
    }
    for last in [1, 2, 3, 4, 200] {
        scene
            .index
            .apply(Change::Pod(key(&format!("pod-{last}")), None));
    }
    scene.index.apply(Change::Class("class".into(), None));
    scene.index.apply(Change::Report(key("pod-200"), None));
    let _ = scene.index.fold(9);
    assert!(scene.index.is_empty(), "{:?}", scene.index);
}
