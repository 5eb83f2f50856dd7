//! Whose ports and Services are: two policies, Services that clients had before, what somebody
//! changes.

use super::*;

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
        .filter_map(|n| Some(verdict(&scene.index, &format!("q-{n}")).front?.ports.first()?.1))
        .collect();
    let all: BTreeSet<u16> = given.iter().copied().chain([taken]).collect();
    assert_eq!((given.len(), all.len()), (9, 10), "{given:?}");
    scene.says("q-9 Accepted NoFrontendPort: 18000 to 18009 of class class");
    assert_eq!(scene.port("p"), taken);
    // One goes, so there is room for the one that waits.
    scene.index.apply(Change::Policy(key("q-3"), None));
    let _ = scene.index.fold(4);
    assert!((18_000..18_010).contains(&scene.port("q-9")));
    scene.says("q-9 Accepted Accepted");
}

#[test]
fn a_port_that_is_given_out_is_nobodys_by_number() {
    let mut scene = scene();
    add(&mut scene.index, "q", policy(5, "t", 18_004));
    let _ = scene.index.fold(3);
    scene.says("q Accepted PortIsAFrontends: 18000 to 18009");
}

#[test]
fn two_policies_do_not_share_a_service() {
    thread_local! {
        static TRANSLATED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }
    let mut scene = scene();
    scene.index.translator = |view| {
        TRANSLATED.set(TRANSLATED.get() + usize::from(&*view.key.name == "q"));
        crate::translate::translate(view)
    };
    add(&mut scene.index, "q", fronted(5, "t", "web"));
    let _ = scene.index.fold(3);
    scene.says("q Accepted Conflicted: ns/p is behind Service ns/web already");
    // The Service is not its, so nobody needs to know its pods.
    assert_eq!(TRANSLATED.get(), 0);
}

#[test]
fn a_service_that_clients_have_is_left_alone_until_it_is_given_to_the_policy() {
    let mut scene = bare();
    let mut service = scene.clients_service();
    add(&mut scene.index, "p", fronted(1, "s", "web"));
    scene.settle();
    scene.acknowledge();
    scene.says("p Degraded FrontendNotOwned: kubectl baton attach svc/web");
    assert!(scene.led.is_empty(), "something was written");
    assert_eq!(verdict(&scene.index, "p").front.expect("one").leads_to, LeadsTo::Nowhere);

    service.front = Some(Arc::new(front("p", false, &[])));
    scene.service(&key("web"), service.clone());
    scene.settle();
    scene.says("p Degraded FrontendNotOwned: still selects pods");
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
    assert!(scene.slices.values().all(|slice| slice.ports[0].name.is_empty()));

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
fn an_attached_service_that_its_policy_leaves_to_another_one_gets_its_selector_back() {
    let mut scene = bare();
    let mut service = scene.clients_service();
    service.selects = false;
    service.front = Some(Arc::new(front("p", false, &[])));
    scene.service(&key("web"), service);
    add(&mut scene.index, "p", fronted(1, "s", "web"));
    add(&mut scene.index, "q", fronted(5, "t", "web"));
    scene.settle();
    scene.acknowledge();
    scene.index.apply(Change::Policy(key("p"), None));
    scene.settle();
    assert!(scene.services[&key("web")].selects);
    scene.clients_service();
    scene.settle();
    assert_eq!(scene.leads_to("web"), set(PODS));
    let words = "kubectl baton attach svc/web";
    let degraded = ConditionKind::Degraded;
    expect(&scene.index, "q", degraded, Reason::FrontendNotOwned, words);
}

#[test]
fn a_service_that_was_made_is_taken_over_by_the_policy_that_comes_to_name_it() {
    let mut scene = scene();
    add(&mut scene.index, "q", fronted(5, "t", "web-new"));
    scene.settle();
    scene.acknowledge();
    let names = |scene: &Scene| -> Vec<(String, String)> {
        let named = scene.services.iter();
        let owner = |s: &Service| s.front.as_ref().map(|f| f.policy.to_string());
        named.filter_map(|(key, s)| Some((key.name.to_string(), owner(s)?))).collect()
    };
    let is = |name: &str, owner: &str| (name.to_owned(), owner.to_owned());
    assert_eq!(names(&scene), [is("web", "p"), is("web-new", "q")]);
    add(&mut scene.index, "p", fronted(1, "s", "web-old"));
    add(&mut scene.index, "q", fronted(5, "t", "web"));
    // One that names it as well and may not have it takes nothing.
    scene.index.apply(service("u"));
    add(&mut scene.index, "r", fronted(9, "u", "web"));
    scene.settle();
    scene.acknowledge();
    assert_eq!(names(&scene), [is("web", "q"), is("web-old", "p")]);
    for (name, policy) in [("web", "q"), ("web-old", "p")] {
        let dataplane = format!("10.0.0.200:{}", scene.port(policy));
        assert_eq!(scene.leads_to(name), set([&*dataplane]));
    }
}

#[test]
fn the_service_of_a_policy_that_cannot_be_read_stays() {
    let first = scene();
    let mut index = index();
    let mut policy = fronted(1, "s", "web");
    policy.frontend = None;
    policy.template = Err(Refusal { field: "spec".into(), problem: "is nothing".into() });
    add(&mut index, "p", policy);
    for (key, service) in &first.services {
        index.apply(Change::Service(key.clone(), Some(Arc::new(service.clone()))));
    }
    for (key, slice) in &first.slices {
        index.apply(Change::Slice(key.clone(), Some(Arc::new(slice.clone()))));
    }
    assert!(index.fold(2).fronts.is_empty());
}

#[test]
fn ports_that_the_clients_service_lacks_or_nobody_serves_are_named() {
    let mut scene = bare();
    let mut service = scene.clients_service();
    let mut other = service.ports[0].clone();
    (other.name, other.port) = ("alt".into(), 81);
    service.ports.push(other);
    (service.selects, service.front) = (false, Some(Arc::new(front("p", false, &[]))));
    scene.service(&key("web"), service.clone());
    add(&mut scene.index, "p", fronted(1, "s", "web"));
    scene.settle();
    scene.says("p Degraded FrontendPortNotServed: has port 81, which no listener is for");
    // One that came after Baton did.
    let others = vec!["53/UDP".into()];
    let with_udp = Service {
        front: Some(Arc::new(Front { others, ..front("p", false, &[]) })),
        ports: vec![service.ports[0].clone()],
        ..service.clone()
    };
    scene.service(&key("web"), with_udp);
    scene.settle();
    expect(
        &scene.index,
        "p",
        ConditionKind::Degraded,
        Reason::FrontendPortNotServed,
        "has port 53/UDP, and dataplanes take TCP only",
    );
    service.ports.remove(0);
    scene.service(&key("web"), service);
    scene.settle();
    scene.says("p Degraded FrontendPortNotFound: no port 80 (listener http)");
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
    let names: Vec<_> = scene.services.keys().map(|key| key.name.to_string()).collect();
    assert_eq!(names, ["shop"]);
}

/// The Service of the pods gets a second family, or loses it.
#[test]
fn a_service_that_was_made_follows_the_families_of_its_pods() {
    let mut scene = scene();
    let Change::Service(_, Some(pods)) = service("s") else {
        panic!("a Service");
    };
    for families in [
        vec![Family::V4, Family::V6],
        vec![Family::V4],
        // What is first is for the life of a Service.
        vec![Family::V6, Family::V4],
    ] {
        let pods = Service { families: families.clone(), ..Service::clone(&pods) };
        scene.service(&key("s"), pods);
        scene.settle();
        let made = scene.services[&key("web")].families.clone();
        assert_eq!(made.len(), families.len(), "{families:?}");
        assert_eq!(made[0], Family::V4);
    }
}

/// A load balancer goes by them.
#[test]
fn an_annotation_that_its_policy_has_no_more_goes_and_one_of_somebody_else_stays() {
    let annotated = |keys: &[&str]| {
        let mut policy = fronted(1, "s", "web");
        let mut frontend = policy.frontend.as_deref().cloned().expect("a frontend");
        let pairs = keys.iter().map(|key| ((*key).into(), "1".into()));
        frontend.annotations = pairs.collect();
        policy.frontend = Some(Arc::new(frontend));
        policy
    };
    let mut scene = scene();
    let mut has = |policy: Policy| {
        add(&mut scene.index, "p", policy);
        scene.settle();
        let mut service = scene.services[&key("web")].clone();
        let mut front = service.front.as_deref().cloned().expect("its policy's");
        let all = front.shape.annotations.clone();
        // Whoever makes the load balancer notes something.
        front.shape.annotations.insert("theirs".into(), "1".into());
        service.front = Some(Arc::new(front));
        scene.service(&key("web"), service);
        scene.settle();
        let kept = &scene.services[&key("web")].front;
        let kept = kept.as_ref().expect("its policy's");
        assert!(kept.shape.annotations.contains_key("theirs"));
        all.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(has(annotated(&["a", "b"])), ["a".into(), "b".into()]);
    assert_eq!(has(annotated(&["b"])), ["b".into()]);
    assert!(has(annotated(&[])).is_empty());
}

#[test]
fn the_slice_of_somebody_else_stays_also_where_it_has_the_name() {
    let mut scene = scene();
    let named = |scene: &mut Scene| {
        let update = scene.index.fold(2);
        let writes = update.fronts[&key("web")].clone();
        scene.write(&key("web"), &writes);
        let slice = &writes.slices[0];
        (slice.name.to_string(), slice.uid.clone())
    };
    let name = key("web-baton-ipv4-0");
    let mut theirs = scene.slices[&name].clone();
    (theirs.writer, theirs.uid) = (SliceWriter::Other, None);
    scene.slice(&name, Some(theirs.clone()));
    assert_eq!(named(&mut scene), ("web-baton-ipv4-1".to_owned(), None));
    scene.settle();
    assert_eq!(scene.slices[&name], theirs);

    // One of its own is rewritten as the one that it is.
    let ours = key("web-baton-ipv4-1");
    let mut changed = scene.slices[&ours].clone();
    changed.endpoints.clear();
    scene.slice(&ours, Some(changed));
    let (name, uid) = named(&mut scene);
    assert_eq!((&*name, uid.as_deref()), (&*ours.name, Some("slice")));
}

#[test]
fn a_slice_of_another_service_with_the_name_is_stepped_around_as_soon_as_it_is_seen() {
    let mut scene = scene();
    let name = key("web-baton-ipv4-0");
    let mut theirs = scene.slices[&name].clone();
    (theirs.service, theirs.writer, theirs.uid) = ("t".into(), SliceWriter::Other, None);
    let names = |scene: &mut Scene| {
        let writes = scene.index.fold(2).fronts[&key("web")].clone();
        writes.slices.iter().map(|s| s.name.to_string()).collect::<Vec<_>>()
    };
    scene.slice(&name, None);
    assert_eq!(names(&mut scene), ["web-baton-ipv4-0"]);
    // Nothing else says that the API server would refuse it.
    scene.slice(&name, Some(theirs.clone()));
    assert_eq!(names(&mut scene), ["web-baton-ipv4-1"]);
    scene.settle();
    assert_eq!(scene.slices[&name], theirs);
}

#[test]
fn nothing_is_remembered_when_all_is_gone() {
    let mut scene = scene();
    scene.acknowledge();
    for name in ["s", "t", "lb"] {
        scene.index.apply(Change::Service(key(name), None));
        scene.index.apply(Change::Slice(key(&format!("{name}-1")), None));
    }
    scene.index.apply(Change::Policy(key("p"), None));
    scene.settle();
    for key in scene.slices.keys() {
        scene.index.apply(Change::Slice(key.clone(), None));
    }
    for last in [1, 2, 3, 4, 200] {
        scene.index.apply(Change::Pod(key(&format!("pod-{last}")), None));
    }
    scene.index.apply(Change::Class("class".into(), None));
    scene.index.apply(Change::Report(key("pod-200"), None));
    let _ = scene.index.fold(9);
    assert!(scene.index.is_empty(), "{:?}", scene.index);
}
