//! Netlink messages as the few facts that matter here. Pure parsing of what the kernel sent.

use super::{Place, addresses::global_address, table::FlowLookup};
use baton_engine::{Route, Via};
use baton_packet::Mac;
use rtnetlink::packet_route::{
    AddressFamily,
    address::AddressMessage,
    link::{LinkAttribute, LinkFlags, LinkMessage},
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState},
    route::{
        RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RoutePreference, RouteType,
        RouteVia,
    },
};
use std::{
    cmp::Reverse,
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
    /// Its hardware address, likewise.
    pub mac: Option<Mac>,
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
    let mac = |attribute: &LinkAttribute| match attribute {
        LinkAttribute::Address(bytes) => bytes.as_slice().try_into().ok().map(Mac),
        _ => None,
    };
    Link {
        up: flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
        mtu: message.attributes.iter().find_map(mtu),
        mac: message.attributes.iter().find_map(mac),
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

/// What decides between routes to one destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rank {
    /// The smaller, the better.
    pub metric: u32,
    /// What an IPv6 router says of itself, the larger the better (RFC 4191).
    pub preference: i8,
}

/// A route, once for each of its routers on our link, with its rank. What other interfaces than
/// ours lead to must not be sent to our own router: it is the host's, where that delivers for us.
/// Of default routes ours is the one that the admin chose. Beside the main table only the host's
/// own addresses count, and only there. `sources` are the addresses that the host sends from by its
/// interfaces.
pub fn route(message: &RouteMessage, place: Place, sources: &Sources) -> Vec<(Rank, Route)> {
    let mut table = u32::from(message.header.table);
    let mut prefix = None;
    let mut rank = Rank::default();
    // One for each way by our interface.
    let mut ours: Vec<Option<IpAddr>> = Vec::new();
    let (mut router, mut oif) = (None, false);
    let (mut interface, mut source) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Destination(address) => match ip(address) {
                None => return Vec::new(),
                known => prefix = known,
            },
            RouteAttribute::Priority(number) => rank.metric = *number,
            RouteAttribute::Preference(RoutePreference::Low) => rank.preference = -1,
            RouteAttribute::Preference(RoutePreference::High) => rank.preference = 1,
            RouteAttribute::MultiPath(hops) => {
                interface = hops.first().map(|hop| hop.interface_index);
                let by_us = hops.iter().filter(|h| h.interface_index == place.ifindex);
                ours.extend(by_us.map(|hop| hop.attributes.iter().find_map(gateway)));
            }
            RouteAttribute::Oif(index) => {
                oif = *index == place.ifindex;
                interface = Some(*index);
            }
            RouteAttribute::PrefSource(address) => source = ip(address),
            other => router = gateway(other).or(router),
        }
    }
    if oif {
        ours.push(router);
    }
    let v6 = is_v6(message);
    let prefix_len = message.header.destination_prefix_length;
    let one = |via| vec![via];
    let ways = match (table, message.header.kind) {
        (MAIN, RouteType::Unicast) if !ours.is_empty() => {
            let via = |router: Option<IpAddr>| router.map_or(Via::Link, Via::Router);
            ours.into_iter().map(via).collect()
        }
        (MAIN, RouteType::Unicast) if place.host => {
            let of_interface = |index| sources.get(&(index, v6)).copied();
            one(Via::Host(source.or_else(|| interface.and_then(of_interface))))
        }
        // To itself it sends from wherever it likes.
        (LOCAL, RouteType::Local) if place.host => one(Via::Host(None)),
        (MAIN, _) if prefix_len > 0 => one(Via::Elsewhere),
        _ => return Vec::new(),
    };
    let prefix = prefix.unwrap_or(if v6 {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    } else {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    });
    let route = |via| Route { prefix, prefix_len, via };
    ways.into_iter().map(|via| (rank, route(via))).collect()
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

/// Default routers that are asked for their link-layer addresses.
const ROUTERS_MAX: usize = 16;

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
/// first, then the best metric. Of default routes that are as good that comes first whose router
/// answers, as in the kernel (`rt6_score_route`), then the one that is preferred. A router that
/// falls silent changes the place of no other destination's.
pub fn in_order(mut routes: Vec<(Rank, Route)>, answers: impl Fn(IpAddr) -> bool) -> Vec<Route> {
    routes.sort_by_cached_key(|(rank, route)| {
        let Route { prefix, prefix_len, via } = *route;
        let ours = matches!(via, Via::Link | Via::Router(_));
        let silent = matches!(via, Via::Router(router) if prefix_len == 0 && !answers(router));
        let preference = Reverse(rank.preference);
        (prefix, prefix_len, !ours, rank.metric, silent, preference)
    });
    routes.into_iter().map(|(_, route)| route).collect()
}

/// The routers of each family's best default route, by which the engine sends: of routes in the
/// order of [`in_order`] the first. A backup that is down keeps nobody from being ready.
pub fn gateways(routes: &[Route]) -> impl Iterator<Item = IpAddr> {
    [false, true].into_iter().filter_map(|v6| {
        let mut defaults = defaults(routes, v6);
        match defaults.next()?.via {
            Via::Router(router) => Some(router),
            Via::Link | Via::Host(_) | Via::Elsewhere => None,
        }
    })
}

/// All routers of default routes: of those in reserve, too, is to be known whether they answer.
pub fn routers(routes: &[Route]) -> impl Iterator<Item = IpAddr> {
    let all = [false, true].into_iter().flat_map(|v6| defaults(routes, v6));
    let routers = all.filter_map(|route| match route.via {
        Via::Router(router) => Some(router),
        Via::Link | Via::Host(_) | Via::Elsewhere => None,
    });
    routers.take(ROUTERS_MAX)
}

fn defaults(routes: &[Route], v6: bool) -> impl Iterator<Item = &Route> {
    let all = routes.iter().filter(|route| route.prefix_len == 0);
    all.filter(move |route| route.prefix.is_ipv6() == v6)
}

#[cfg(test)]
#[path = "messages_tests.rs"]
mod tests;
