//! Netlink messages as the few facts that matter here. Pure parsing of what the kernel sent.

use super::{Place, addresses::global_address, table::FlowLookup};
use baton_engine::{Route, Via};
use baton_packet::Mac;
use rtnetlink::packet_route::{
    AddressFamily,
    address::AddressMessage,
    link::{LinkAttribute, LinkFlags, LinkMessage},
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState},
    route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType, RouteVia},
};
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// What counts of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// It is up and has carrier.
    pub up: bool,
    /// If the message says it.
    pub mtu: Option<u32>,
}

/// Whether a message is about an interface itself. A bridge tells in its own family of those that
/// are its ports, and of one that no longer is as if that were gone.
pub fn is_of(message: &LinkMessage, ifindex: u32) -> bool {
    message.header.index == ifindex && message.header.interface_family == AddressFamily::Unspec
}

/// What the kernel says of an interface.
pub fn link(message: &LinkMessage) -> Link {
    let flags = message.header.flags;
    let mtu = |attribute: &LinkAttribute| match attribute {
        LinkAttribute::Mtu(mtu) => Some(*mtu),
        _ => None,
    };
    Link {
        up: flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
        mtu: message.attributes.iter().find_map(mtu),
    }
}

/// What the kernel says of a neighbour on `ifindex`; `None` if it is about something else.
pub fn neighbour(message: &NeighbourMessage, ifindex: u32) -> Option<(IpAddr, FlowLookup)> {
    if message.header.ifindex != ifindex {
        return None;
    }
    let mut address = None;
    let mut mac = None;
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => {
                address = Some(IpAddr::V4(*v4));
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => {
                address = Some(IpAddr::V6(*v6));
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                mac = bytes.as_slice().try_into().ok().map(Mac);
            }
            _ => {}
        }
    }
    let sight = match (message.header.state, mac) {
        (NeighbourState::Reachable | NeighbourState::Permanent, Some(mac)) => {
            FlowLookup::Fresh(mac)
        }
        // Under confirmation: good until the kernel says otherwise.
        (NeighbourState::Delay | NeighbourState::Probe, Some(mac)) => FlowLookup::Fresh(mac),
        (NeighbourState::Stale, Some(mac)) => FlowLookup::Stale(mac),
        _ => FlowLookup::Unknown,
    };
    Some((address?, sight))
}

/// A route, with its metric. What other interfaces than ours lead to must not be sent to our own
/// router: it is the host's, where that delivers for us. Of default routes ours is the one that the
/// admin chose. Beside the main table only the host's own addresses count, and only there.
/// `sources` are the addresses that the host sends from by its interfaces.
pub fn route(message: &RouteMessage, place: Place, sources: &Sources) -> Option<(u32, Route)> {
    let mut table = u32::from(message.header.table);
    let mut prefix = None;
    let mut metric = 0;
    let (mut ours, mut router) = (false, None);
    let (mut interface, mut source) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Destination(address) => prefix = Some(ip(address)?),
            RouteAttribute::Priority(number) => metric = *number,
            RouteAttribute::MultiPath(hops) => {
                // One path is enough for one interface; the first of ours is taken.
                let hop = hops.iter().find(|hop| hop.interface_index == place.ifindex);
                ours |= hop.is_some();
                interface = hops.first().map(|hop| hop.interface_index);
                router = hop.and_then(|hop| hop.attributes.iter().find_map(gateway));
            }
            RouteAttribute::Oif(index) => {
                ours |= *index == place.ifindex;
                interface = Some(*index);
            }
            RouteAttribute::PrefSource(address) => source = ip(address),
            other => router = gateway(other).or(router),
        }
    }
    let v6 = is_v6(message);
    let prefix_len = message.header.destination_prefix_length;
    let via = match (table, message.header.kind) {
        (MAIN, RouteType::Unicast) if ours => router.map_or(Via::Link, Via::Router),
        (MAIN, RouteType::Unicast) if place.host => {
            let of_interface = |index| sources.get(&(index, v6)).copied();
            Via::Host(source.or_else(|| interface.and_then(of_interface)))
        }
        // To itself it sends from wherever it likes.
        (LOCAL, RouteType::Local) if place.host => Via::Host(None),
        (MAIN, _) if prefix_len > 0 => Via::Elsewhere,
        _ => return None,
    };
    let prefix = prefix.unwrap_or(if v6 {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    } else {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    });
    let route = Route {
        prefix,
        prefix_len,
        via,
    };
    Some((metric, route))
}

fn is_v6(message: &RouteMessage) -> bool {
    u8::from(message.header.address_family) == u8::from(AddressFamily::Inet6)
}

/// Family (true: IPv6), metric and interface of a default route of the main table; of several paths
/// the first.
pub fn default_route(message: &RouteMessage) -> Option<(bool, u32, u32)> {
    let header = &message.header;
    let mut table = u32::from(header.table);
    let (mut metric, mut interface) = (0, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Priority(number) => metric = *number,
            RouteAttribute::Oif(index) => interface = Some(*index),
            RouteAttribute::MultiPath(hops) => {
                interface = hops.first().map(|hop| hop.interface_index);
            }
            _ => {}
        }
    }
    let good =
        header.destination_prefix_length == 0 && header.kind == RouteType::Unicast && table == MAIN;
    Some((is_v6(message), metric, interface.filter(|_| good)?))
}

/// What the host sends from by an interface, in each family (true: IPv6), where the route does not
/// say.
pub type Sources = HashMap<(u32, bool), IpAddr>;

/// Notes the first address of an interface in each family.
pub fn note_source(sources: &mut Sources, message: &AddressMessage) {
    let index = message.header.index;
    if let Some(address) = global_address(message, index) {
        sources.entry((index, address.is_ipv6())).or_insert(address);
    }
}

const MAIN: u32 = RouteHeader::RT_TABLE_MAIN as u32;
/// RT_TABLE_LOCAL, include/uapi/linux/rtnetlink.h.
const LOCAL: u32 = 255;

fn gateway(attribute: &RouteAttribute) -> Option<IpAddr> {
    match attribute {
        RouteAttribute::Gateway(address) => ip(address),
        RouteAttribute::Via(RouteVia::Inet(v4)) => Some(IpAddr::V4(*v4)),
        RouteAttribute::Via(RouteVia::Inet6(v6)) => Some(IpAddr::V6(*v6)),
        _ => None,
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        RouteAddress::Inet6(v6) => Some(IpAddr::V6(*v6)),
        _ => None,
    }
}

/// Orders routes as the engine wants them (of two to the same destination the first wins): ours
/// first, then the best metric.
pub fn by_metric(mut routes: Vec<(u32, Route)>) -> Vec<Route> {
    let is_ours = |via| matches!(via, Via::Link | Via::Router(_));
    routes.sort_by_key(|(metric, route)| (!is_ours(route.via), *metric));
    routes.into_iter().map(|(_, route)| route).collect()
}

/// The routers of each family's best default route, by which the engine sends: of routes in the
/// order of [`by_metric`] the first. A backup that is down keeps nobody from being ready.
pub fn gateways(routes: &[Route]) -> impl Iterator<Item = IpAddr> {
    [false, true].into_iter().filter_map(|v6| {
        let mut defaults = routes.iter().filter(|route| route.prefix_len == 0);
        match defaults.find(|route| route.prefix.is_ipv6() == v6)?.via {
            Via::Router(router) => Some(router),
            Via::Link | Via::Host(_) | Via::Elsewhere => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rtnetlink::packet_route::route::RouteNextHop;

    const V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    fn sighting(state: NeighbourState, mac: Option<[u8; 6]>) -> Option<(IpAddr, FlowLookup)> {
        let mut message = NeighbourMessage::default();
        message.header.ifindex = 7;
        message.header.state = state;
        message
            .attributes
            .push(NeighbourAttribute::Destination(NeighbourAddress::Inet(V4)));
        if let Some(mac) = mac {
            message
                .attributes
                .push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
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
    fn neighbour_states_become_sights() {
        let mac = [2, 0, 0, 0, 0, 9];
        for (state, lladdr, sight) in [
            (
                NeighbourState::Reachable,
                Some(mac),
                FlowLookup::Fresh(Mac(mac)),
            ),
            (
                NeighbourState::Permanent,
                Some(mac),
                FlowLookup::Fresh(Mac(mac)),
            ),
            (
                NeighbourState::Probe,
                Some(mac),
                FlowLookup::Fresh(Mac(mac)),
            ),
            (
                NeighbourState::Stale,
                Some(mac),
                FlowLookup::Stale(Mac(mac)),
            ),
            (NeighbourState::Failed, Some(mac), FlowLookup::Unknown),
            (NeighbourState::Incomplete, None, FlowLookup::Unknown),
        ] {
            assert_eq!(sighting(state, lladdr), Some((IpAddr::V4(V4), sight)));
        }
        assert_eq!(neighbour(&NeighbourMessage::default(), 7), None);
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
        Place {
            ifindex,
            mtu: 1_500,
            host: false,
        }
    }

    #[test]
    fn routes_of_the_interface_are_taken_and_others_left() {
        let via = RouteAttribute::Gateway(RouteAddress::Inet(V4));
        let expected = Route {
            prefix: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            prefix_len: 0,
            via: Via::Router(IpAddr::V4(V4)),
        };
        let message = default_route(vec![
            via.clone(),
            RouteAttribute::Oif(7),
            RouteAttribute::Priority(100),
        ]);
        assert_eq!(
            route(&message, at(7), &Sources::new()),
            Some((100, expected))
        );
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
        assert_eq!(
            route(&multipath, at(7), &Sources::new()),
            Some((0, expected))
        );
        assert_eq!(route(&multipath, at(8), &Sources::new()), None);
    }

    #[test]
    fn a_part_of_the_world_behind_another_interface_is_elsewhere() {
        let mut message = default_route(vec![
            RouteAttribute::Destination(RouteAddress::Inet(V4)),
            RouteAttribute::Oif(8),
        ]);
        message.header.destination_prefix_length = 32;
        let expected = Route {
            prefix: IpAddr::V4(V4),
            prefix_len: 32,
            via: Via::Elsewhere,
        };
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
        let ours = Route {
            via: Via::Link,
            ..expected
        };
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
        let expected = Route {
            prefix: IpAddr::V4(V4),
            prefix_len: 32,
            via: Via::Host(None),
        };
        assert_eq!(
            route(&message, on(true), &Sources::new()),
            Some((0, expected)),
            "a Pod"
        );
        // From where the host would send there: what the route says, or the interface has.
        let sources = Sources::from([((8, false), IpAddr::V4(Ipv4Addr::LOCALHOST))]);
        let from = |message: &RouteMessage| {
            let (_, route) = route(message, on(true), &sources).expect("a route");
            route.via
        };
        assert_eq!(from(&message), Via::Host(Some(Ipv4Addr::LOCALHOST.into())));
        let mut says = message.clone();
        says.attributes
            .push(RouteAttribute::PrefSource(RouteAddress::Inet(V4)));
        assert_eq!(from(&says), Via::Host(Some(V4.into())));
        // Where it drops packets, it drops ours.
        message.header.kind = RouteType::BlackHole;
        let dropped = Route {
            via: Via::Elsewhere,
            ..expected
        };
        assert_eq!(
            route(&message, on(true), &Sources::new()),
            Some((0, dropped))
        );
        // Its own addresses, which are in a table of their own, whichever interface has them.
        message.header.kind = RouteType::Local;
        message.header.table = LOCAL as u8;
        message.attributes[1] = RouteAttribute::Oif(7);
        assert_eq!(
            route(&message, on(true), &Sources::new()),
            Some((0, expected))
        );
        assert_eq!(route(&message, on(false), &Sources::new()), None);
        message.header.kind = RouteType::Broadcast;
        assert_eq!(route(&message, on(true), &Sources::new()), None);
        // A default route of another interface is for what ours has none for.
        let other = default_route(vec![RouteAttribute::Oif(8)]);
        let (metric, other) = route(&other, on(true), &Sources::new()).expect("a route");
        let ours = Route {
            via: Via::Router(IpAddr::V4(V4)),
            ..other
        };
        assert_eq!(by_metric(vec![(metric, other), (9, ours)]), [ours, other]);
        assert_eq!(gateways(&[ours, other]).count(), 1, "the host is no router");
    }

    #[test]
    fn a_default_route_has_an_interface() {
        let mut message =
            default_route(vec![RouteAttribute::Oif(8), RouteAttribute::Priority(100)]);
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
        assert_eq!(
            by_metric(vec![(200, route(2)), (100, route(1))]),
            [route(1), route(2)]
        );
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
            Route {
                prefix,
                prefix_len,
                via,
            }
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
}
