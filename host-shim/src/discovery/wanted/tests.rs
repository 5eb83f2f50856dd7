//! The fold of policies, Services, slices and Pods, object by object.

use super::*;

fn key(namespace: &str, name: &str) -> Key {
    Key { namespace: namespace.into(), name: name.into() }
}

fn of(service: &str) -> Option<OfPolicy> {
    Some(OfPolicy { service: service.into(), multipath: PodMultipathTcp::Unchanged })
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    let owned = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
    pairs.iter().map(owned).collect()
}

fn pod(pairs: &[(&str, &str)]) -> NodePod {
    NodePod { labels: labels(pairs), ..NodePod::default() }
}

fn names(world: &World) -> Vec<String> {
    world.wanted().into_iter().map(|w| w.name).collect()
}

fn shop() -> World {
    let mut world = World::default();
    for change in [
        Change::Policy(key("shop", "web"), of("web")),
        Change::Service(key("shop", "web"), Some(labels(&[("app", "web")]))),
        Change::Service(key("shop", "db"), Some(labels(&[("app", "db")]))),
        Change::Service(key("other", "web"), Some(labels(&[("app", "web")]))),
        Change::Pod(key("shop", "web-0"), Some(pod(&[("app", "web"), ("x", "y")]))),
        Change::Pod(key("shop", "db-0"), Some(pod(&[("app", "db")]))),
        Change::Pod(key("other", "web-0"), Some(pod(&[("app", "web")]))),
    ] {
        assert!(world.apply(change));
    }
    world
}

#[test]
fn pods_that_a_policys_service_selects_are_wanted() {
    let mut world = shop();
    assert_eq!(names(&world), ["shop/web-0"]);
    world.apply(Change::Policy(key("shop", "data"), of("db")));
    assert_eq!(names(&world), ["shop/db-0", "shop/web-0"]);
    // A policy is about a Service of its own namespace.
    world.apply(Change::Policy(key("other", "p"), of("db")));
    assert_eq!(names(&world).len(), 2);
    world.apply(Change::Policy(key("shop", "web"), None));
    assert_eq!(names(&world), ["shop/db-0"]);
    world.apply(Change::Service(key("shop", "db"), None));
    assert!(names(&world).is_empty());
}

#[test]
fn a_pod_that_ended_or_lost_its_label_is_not_wanted() {
    let mut world = shop();
    let ended = NodePod { ended: true, ..pod(&[("app", "web")]) };
    assert!(world.apply(Change::Pod(key("shop", "web-0"), Some(ended))));
    assert!(names(&world).is_empty());
    world.apply(Change::Pod(key("shop", "web-0"), Some(pod(&[("app", "new")]))));
    assert!(names(&world).is_empty());
}

#[test]
fn a_pod_that_is_gone_is_told_from_one_that_nobody_wants() {
    let mut world = World::default();
    let web = NodePod { uids: vec!["1".into(), "2".into()], ..pod(&[("app", "web")]) };
    world.apply(Change::Pod(key("shop", "web-0"), Some(web.clone())));
    let told = world.told();
    assert!(told.wanted.is_empty() && !told.is_gone(&web));
    // Another one of its name.
    let next = NodePod { uids: vec!["3".into()], ..web.clone() };
    world.apply(Change::Pod(key("shop", "web-0"), Some(next.clone())));
    assert!(world.told().is_gone(&web) && !world.told().is_gone(&next));
    world.apply(Change::Pod(key("shop", "web-0"), None));
    assert!(world.told().is_gone(&next));
}

#[test]
fn one_policy_that_disables_multipath_tcp_is_enough() {
    let mut world = shop();
    let said = |world: &World| world.wanted().into_iter().map(|w| w.multipath).collect();
    let said: fn(&World) -> Vec<_> = said;
    assert_eq!(said(&world), [PodMultipathTcp::Unchanged]);
    let disables = |service: &str| {
        of(service).map(|policy| OfPolicy { multipath: PodMultipathTcp::Disabled, ..policy })
    };
    assert!(world.apply(Change::Policy(key("shop", "other"), disables("web"))));
    assert_eq!(said(&world), [PodMultipathTcp::Disabled]);
    // That of another Service says nothing of these Pods.
    world.apply(Change::Policy(key("shop", "other"), disables("db")));
    assert_eq!(said(&world), [PodMultipathTcp::Disabled, PodMultipathTcp::Unchanged]);
    world.apply(Change::Policy(key("shop", "other"), None));
    assert_eq!(said(&world), [PodMultipathTcp::Unchanged]);
    // Pods that a slice names have it from the policies of its Service.
    let mut world = manual();
    let named = slice("manual", &["named"], &[]);
    world.apply(Change::Slice(key("shop", "a"), Some(named)));
    world.apply(Change::Policy(key("shop", "q"), disables("manual")));
    assert_eq!(said(&world), [PodMultipathTcp::Disabled]);
}

#[test]
fn an_empty_selector_selects_nothing() {
    let mut world = shop();
    world.apply(Change::Service(key("shop", "web"), Some(Labels::new())));
    assert!(names(&world).is_empty());
}

fn slice(service: &str, pods: &[&str], addresses: &[&str]) -> Slice {
    Slice {
        service: service.into(),
        pods: pods.iter().map(|name| (*name).to_owned()).collect(),
        addresses: addresses.iter().map(|a| a.parse().expect("an address")).collect(),
    }
}

fn at(addresses: &[&str]) -> NodePod {
    NodePod {
        addresses: addresses.iter().map(|a| a.parse().expect("an address")).collect(),
        ..NodePod::default()
    }
}

/// A Service without a selector, and Pods without labels.
fn manual() -> World {
    let mut world = World::default();
    for change in [
        Change::Policy(key("shop", "p"), of("manual")),
        Change::Service(key("shop", "manual"), Some(Labels::new())),
        Change::Pod(key("shop", "named"), Some(at(&["10.0.0.1"]))),
        Change::Pod(key("shop", "four"), Some(at(&["10.0.0.2", "fd00::2"]))),
        Change::Pod(key("shop", "six"), Some(at(&["10.0.0.3", "fd00::3"]))),
        Change::Pod(key("shop", "other"), Some(at(&["10.0.0.4", "fd00::4"]))),
        Change::Pod(key("else", "four"), Some(at(&["10.0.0.2", "fd00::2"]))),
    ] {
        assert!(world.apply(change));
    }
    world
}

#[test]
fn pods_that_a_slice_of_the_service_names_are_wanted_by_name_or_either_address() {
    let mut world = manual();
    assert!(names(&world).is_empty());
    let four = slice("manual", &["named"], &["10.0.0.2"]);
    assert!(world.apply(Change::Slice(key("shop", "a"), Some(four.clone()))));
    assert_eq!(names(&world), ["shop/four", "shop/named"]);
    // The other family has a slice of its own.
    let six = slice("manual", &[], &["fd00::2", "fd00::3"]);
    world.apply(Change::Slice(key("shop", "b"), Some(six)));
    assert_eq!(names(&world), ["shop/four", "shop/named", "shop/six"]);
    world.apply(Change::Slice(key("shop", "a"), None));
    assert_eq!(names(&world), ["shop/four", "shop/six"]);
    // Before the Service is known, and after it is gone, slices are there all the same.
    world.apply(Change::Service(key("shop", "manual"), None));
    assert_eq!(names(&world).len(), 2);
    assert!(!world.apply(Change::Slice(key("shop", "a"), None)));
}

#[test]
fn slices_of_other_services_and_namespaces_name_nobody() {
    let mut world = manual();
    for (at, named) in [
        (key("shop", "a"), slice("another", &["named"], &["10.0.0.2"])),
        (key("else", "a"), slice("manual", &["four"], &["10.0.0.2"])),
    ] {
        world.apply(Change::Slice(at, Some(named)));
    }
    assert!(names(&world).is_empty());
    // A policy of the other namespace, too, has no Pods but those of its own.
    world.apply(Change::Policy(key("else", "p"), of("manual")));
    assert_eq!(names(&world), ["else/four"]);
}

#[test]
fn an_address_that_two_pods_have_is_of_the_one_that_runs() {
    let mut world = manual();
    let ended = NodePod { ended: true, ..at(&["10.0.0.2"]) };
    let hosted = NodePod { host_network: true, ..at(&["10.0.0.2"]) };
    world.apply(Change::Pod(key("shop", "named"), Some(ended)));
    world.apply(Change::Pod(key("shop", "other"), Some(hosted)));
    let slice = slice("manual", &[], &["10.0.0.2"]);
    world.apply(Change::Slice(key("shop", "a"), Some(slice)));
    assert_eq!(names(&world), ["shop/four"]);
}

#[test]
fn a_change_that_changes_nothing_says_so() {
    let mut world = shop();
    let same = Change::Pod(key("shop", "db-0"), Some(pod(&[("app", "db")])));
    assert!(!world.apply(same));
    assert!(!world.apply(Change::Pod(key("shop", "none"), None)));
    let same = Change::Policy(key("shop", "web"), of("web"));
    assert!(!world.apply(same));
    let same = Change::Service(key("shop", "db"), Some(labels(&[("app", "db")])));
    assert!(!world.apply(same));
}

#[test]
fn obstacles_are_named() {
    let mut world = shop();
    let hosted = NodePod { host_network: true, ..pod(&[("app", "web")]) };
    world.apply(Change::Pod(key("shop", "web-0"), Some(hosted)));
    let wanted = world.wanted();
    assert!(wanted[0].obstacle.is_some_and(|why| why.contains("hostNetwork")));
    for n in 0..PODS_MAX {
        let name = format!("web-x{n}");
        world.apply(Change::Pod(key("shop", &name), Some(pod(&[("app", "web")]))));
    }
    let wanted = world.wanted();
    assert_eq!(wanted.len(), PODS_MAX + 1);
    let too_many = wanted.iter().filter(|w| w.obstacle.is_some_and(|why| why.contains("4096")));
    assert_eq!(too_many.count(), 1);
}
