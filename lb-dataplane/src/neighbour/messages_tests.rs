//! Tests of `messages`.

use super::*;
use rtnetlink::packet_route::route::RouteNextHop;

const V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

fn sighting(state: NeighbourState, mac: Option<[u8; 6]>) -> Option<(IpAddr, FlowLookup)> {
    let mut message = NeighbourMessage::default();
    message.header.ifindex = 7;
    message.header.state = state;
    message.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::Inet(V4)));
    if let Some(mac) = mac {
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
    }
    neighbour(&message, 7)
}

#[test]
fn an_interface_that_is_no_port_of_a_bridge_any_more_is_not_gone() {
    let mut message = LinkMessage::default();
    message.header.index = 7;
    assert!(is_of(&message, 7) && !is_of(&message, 8));
    message.header.interface_family = AddressFamily::Bridge;
    assert!(!is_of(&message, 7));
}

#[test]
fn a_link_has_its_hardware_address_and_mtu() {
    let mut message = LinkMessage::default();
    assert_eq!(link(&message), Link { up: false, mtu: None, mac: None });
    message.header.flags = LinkFlags::Up | LinkFlags::LowerUp;
    message.attributes = vec![LinkAttribute::Mtu(1_500), LinkAttribute::Address(vec![2; 6])];
    assert_eq!(link(&message), Link { up: true, mtu: Some(1_500), mac: Some(Mac([2; 6])) });
}

#[test]
fn neighbour_states_become_sights() {
    let mac = [2, 0, 0, 0, 0, 9];
    for (state, lladdr, sight) in [
        (NeighbourState::Reachable, Some(mac), FlowLookup::Fresh(Mac(mac))),
        (NeighbourState::Permanent, Some(mac), FlowLookup::Fresh(Mac(mac))),
        (NeighbourState::Probe, Some(mac), FlowLookup::Fresh(Mac(mac))),
        (NeighbourState::Stale, Some(mac), FlowLookup::Stale(Mac(mac))),
        (NeighbourState::Failed, Some(mac), FlowLookup::Unknown),
        (NeighbourState::Incomplete, None, FlowLookup::Unknown),
    ] {
        assert_eq!(sighting(state, lladdr), Some((IpAddr::V4(V4), sight)));
    }
    assert_eq!(neighbour(&NeighbourMessage::default(), 7), None);
}

fn rank(metric: u32) -> Rank {
    Rank { metric, preference: 0 }
}

/// The one route of a message, with its metric.
fn route(message: &RouteMessage, place: Place, sources: &Sources) -> Option<(u32, Route)> {
    let mut all = super::route(message, place, sources).into_iter();
    let one = all.next()?;
    assert_eq!(all.next(), None);
    Some((one.0.metric, one.1))
}

/// In order, where all routers answer.
fn by_metric(routes: Vec<(u32, Route)>) -> Vec<Route> {
    let ranked = routes.into_iter().map(|(metric, route)| (rank(metric), route));
    in_order(ranked.collect(), |_| true)
}

fn default_route(attributes: Vec<RouteAttribute>) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet;
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.kind = RouteType::Unicast;
    message.attributes = attributes;
    message
}

fn at(ifindex: u32) -> Place {
    Place { ifindex, mac: Mac([2; 6]), mtu: 1_500, host: false }
}

#[test]
fn routes_of_the_interface_are_taken_and_others_left() {
    let via = RouteAttribute::Gateway(RouteAddress::Inet(V4));
    let expected = Route {
        prefix: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        prefix_len: 0,
        via: Via::Router(IpAddr::V4(V4)),
    };
    let message =
        default_route(vec![via.clone(), RouteAttribute::Oif(7), RouteAttribute::Priority(100)]);
    assert_eq!(route(&message, at(7), &Sources::new()), Some((100, expected)));
    assert_eq!(route(&message, at(8), &Sources::new()), None);
    assert_eq!(gateways(&[expected]).collect::<Vec<_>>(), [IpAddr::V4(V4)]);

    let mut other_table = message.clone();
    other_table.attributes.push(RouteAttribute::Table(100));
    assert_eq!(route(&other_table, at(7), &Sources::new()), None);
    let mut blackhole = message;
    blackhole.header.kind = RouteType::BlackHole;
    assert_eq!(route(&blackhole, at(7), &Sources::new()), None);

    let mut hop = RouteNextHop::default();
    hop.interface_index = 7;
    hop.attributes.push(via);
    let multipath = default_route(vec![RouteAttribute::MultiPath(vec![hop])]);
    assert_eq!(route(&multipath, at(7), &Sources::new()), Some((0, expected)));
    assert_eq!(route(&multipath, at(8), &Sources::new()), None);
}

#[test]
fn a_part_of_the_world_behind_another_interface_is_elsewhere() {
    let mut message = default_route(vec![
        RouteAttribute::Destination(RouteAddress::Inet(V4)),
        RouteAttribute::Oif(8),
    ]);
    message.header.destination_prefix_length = 32;
    let expected = Route { prefix: IpAddr::V4(V4), prefix_len: 32, via: Via::Elsewhere };
    // As a node's route to one of its Pods, or as one that several lead to.
    assert_eq!(route(&message, at(7), &Sources::new()), Some((0, expected)));
    let mut hop = RouteNextHop::default();
    hop.interface_index = 8;
    message.attributes[1] = RouteAttribute::MultiPath(vec![hop]);
    assert_eq!(route(&message, at(7), &Sources::new()), Some((0, expected)));
    // As a node's own block of Pod addresses.
    message.attributes.truncate(1);
    message.header.kind = RouteType::BlackHole;
    assert_eq!(route(&message, at(7), &Sources::new()), Some((0, expected)));
    let ours = Route { via: Via::Link, ..expected };
    assert_eq!(by_metric(vec![(0, expected), (9, ours)]), [ours, expected]);
}

#[test]
fn a_host_delivers_to_itself_and_through_its_other_interfaces() {
    let on = |host| Place { host, ..at(7) };
    let mut message = default_route(vec![
        RouteAttribute::Destination(RouteAddress::Inet(V4)),
        RouteAttribute::Oif(8),
    ]);
    message.header.destination_prefix_length = 32;
    let expected = Route { prefix: IpAddr::V4(V4), prefix_len: 32, via: Via::Host(None) };
    assert_eq!(route(&message, on(true), &Sources::new()), Some((0, expected)), "a Pod");
    // From where the host would send there: what the route says, or the interface has.
    let sources = Sources::from([((8, false), IpAddr::V4(Ipv4Addr::LOCALHOST))]);
    let from = |message: &RouteMessage| {
        let (_, route) = route(message, on(true), &sources).expect("a route");
        route.via
    };
    assert_eq!(from(&message), Via::Host(Some(Ipv4Addr::LOCALHOST.into())));
    let mut says = message.clone();
    says.attributes.push(RouteAttribute::PrefSource(RouteAddress::Inet(V4)));
    assert_eq!(from(&says), Via::Host(Some(V4.into())));
    // Where it drops packets, it drops ours.
    message.header.kind = RouteType::BlackHole;
    let dropped = Route { via: Via::Elsewhere, ..expected };
    assert_eq!(route(&message, on(true), &Sources::new()), Some((0, dropped)));
    // Its own addresses, which are in a table of their own, whichever interface has them.
    message.header.kind = RouteType::Local;
    message.header.table = LOCAL as u8;
    message.attributes[1] = RouteAttribute::Oif(7);
    assert_eq!(route(&message, on(true), &Sources::new()), Some((0, expected)));
    assert_eq!(route(&message, on(false), &Sources::new()), None);
    message.header.kind = RouteType::Broadcast;
    assert_eq!(route(&message, on(true), &Sources::new()), None);
    // A default route of another interface is for what ours has none for.
    let other = default_route(vec![RouteAttribute::Oif(8)]);
    let (metric, other) = route(&other, on(true), &Sources::new()).expect("a route");
    let ours = Route { via: Via::Router(IpAddr::V4(V4)), ..other };
    assert_eq!(by_metric(vec![(metric, other), (9, ours)]), [ours, other]);
    assert_eq!(gateways(&[ours, other]).count(), 1, "the host is no router");
}

#[test]
fn a_default_route_has_an_interface() {
    let mut message = default_route(vec![RouteAttribute::Oif(8), RouteAttribute::Priority(100)]);
    assert_eq!(super::default_route(&message), Some((false, 100, 8)));
    message.header.destination_prefix_length = 1;
    assert_eq!(super::default_route(&message), None);
    message.header.destination_prefix_length = 0;
    message.header.kind = RouteType::Unreachable;
    assert_eq!(super::default_route(&message), None);
}

#[test]
fn the_better_metric_comes_first() {
    let route = |last| Route {
        prefix: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        prefix_len: 0,
        via: Via::Router(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))),
    };
    assert_eq!(by_metric(vec![(200, route(2)), (100, route(1))]), [route(1), route(2)]);
}

#[test]
fn each_familys_best_default_router_is_judged_and_no_backup() {
    let route = |router: &str, prefix_len| {
        let router: IpAddr = router.parse().expect("an address");
        let prefix = match router {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let via = Via::Router(router);
        Route { prefix, prefix_len, via }
    };
    let routes = by_metric(vec![
        (200, route("10.0.0.2", 0)),
        (100, route("10.0.0.1", 0)),
        (1_024, route("fe80::1", 0)),
        (2_048, route("fe80::2", 0)),
        (0, route("10.0.0.3", 8)),
    ]);
    let expected = ["10.0.0.1", "fe80::1"].map(|a| a.parse::<IpAddr>().expect("an address"));
    assert_eq!(gateways(&routes).collect::<Vec<_>>(), expected);
    // By the better one the engine needs no router.
    let mut on_link = route("10.0.0.1", 0);
    on_link.via = Via::Link;
    let routes = by_metric(vec![(9, route("10.0.0.2", 0)), (0, on_link)]);
    assert_eq!(gateways(&routes).count(), 0);
}

fn by(router: &str) -> Route {
    let router: IpAddr = router.parse().expect("an address");
    let prefix = match router {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    Route { prefix, prefix_len: 0, via: Via::Router(router) }
}

/// Two routers on one link announce themselves, and neither is a backup by its metric.
#[test]
fn of_two_default_routers_that_are_as_good_one_that_answers_is_taken() {
    let [one, two] = ["fe80::1", "fe80::2"].map(by);
    let silent =
        |silent: &'static [&str]| move |router: IpAddr| !silent.contains(&&*router.to_string());
    let both = || vec![(rank(1_024), one), (rank(1_024), two)];
    assert_eq!(in_order(both(), silent(&[])), [one, two]);
    assert_eq!(in_order(both(), silent(&["fe80::1"])), [two, one]);
    assert_eq!(in_order(both(), silent(&["fe80::1", "fe80::2"])), [one, two]);
    let routes = in_order(both(), silent(&["fe80::1"]));
    assert_eq!(gateways(&routes).count(), 1);
    assert_eq!(routers(&routes).count(), 2, "it may come back");
    // A worse one is for when the better is no route any more.
    let mut backup = both();
    backup[1].0.metric = 2_048;
    assert_eq!(in_order(backup, silent(&["fe80::1"])), [one, two]);
    let mut preferred = both();
    preferred[1].0.preference = 1;
    assert_eq!(in_order(preferred.clone(), silent(&[])), [two, one]);
    assert_eq!(in_order(preferred, silent(&["fe80::2"])), [one, two]);
    // Nobody keeps asking for the routers of other destinations.
    let mut others = both();
    for (_, route) in &mut others {
        route.prefix_len = 8;
    }
    let expected = [others[0].1, others[1].1];
    assert_eq!(in_order(others, silent(&["fe80::1"])), expected);
}

#[test]
fn each_way_of_a_route_by_our_interface_is_one() {
    let hop = |index, last| {
        let mut hop = RouteNextHop::default();
        hop.interface_index = index;
        let router = RouteAddress::Inet(Ipv4Addr::new(10, 0, 0, last));
        hop.attributes.push(RouteAttribute::Gateway(router));
        hop
    };
    let hops = vec![hop(7, 1), hop(8, 9), hop(7, 2)];
    let message = default_route(vec![
        RouteAttribute::Priority(5),
        RouteAttribute::MultiPath(hops),
        RouteAttribute::Preference(RoutePreference::High),
    ]);
    let found = super::route(&message, at(7), &Sources::new());
    let expected = Rank { metric: 5, preference: 1 };
    assert_eq!(found, ["10.0.0.1", "10.0.0.2"].map(|router| (expected, by(router))));
}
