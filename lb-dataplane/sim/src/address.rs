//! Who lives where in every world: the dataplane on one link with its pods and a router, the
//! clients behind the router.
//!
//! Owns addresses and nothing else.

use baton_api::Endpoint;
use baton_packet::{AdoptionKey, Mac};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The dataplane's link-layer address.
pub const OUR_MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);
/// The router's.
pub const ROUTER_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// Where pods listen.
pub const POD_PORT: u16 = 8_080;
/// Where clients connect to.
pub const FRONTEND_PORT: u16 = 80;
/// First port of the legs.
pub const LEG_PORTS_FROM: u16 = 40_000;

fn at(v6: bool, v4: [u8; 4], low: u16) -> IpAddr {
    if v6 {
        let [a, b, ..] = v4;
        let site = u16::from(a) << 8 | u16::from(b);
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, site, 0, 0, 0, low))
    } else {
        IpAddr::V4(Ipv4Addr::from(v4))
    }
}

/// The dataplane.
#[must_use]
pub fn ours(v6: bool) -> IpAddr {
    at(v6, [10, 0, 0, 9], 9)
}

/// A virtual address in front of it.
#[must_use]
pub fn virtual_ip(v6: bool) -> IpAddr {
    at(v6, [203, 0, 113, 1], 1)
}

/// The router.
#[must_use]
pub fn router(v6: bool) -> IpAddr {
    at(v6, [10, 0, 0, 1], 1)
}

/// Where a pod listens.
#[must_use]
pub fn pod(v6: bool, index: usize) -> SocketAddr {
    let host = 20 + index as u8;
    SocketAddr::new(at(v6, [10, 0, 1, host], 0x100 + u16::from(host)), POD_PORT)
}

/// Its link-layer address.
#[must_use]
pub fn pod_mac(index: usize) -> Mac {
    Mac([2, 0, 0, 0, 1, index as u8])
}

/// A client.
#[must_use]
pub fn client(v6: bool, index: usize) -> IpAddr {
    let host = 1 + index as u8;
    at(v6, [192, 0, 2, host], u16::from(host))
}

/// Which client has an address.
#[must_use]
pub fn client_at(address: IpAddr, clients: usize) -> Option<usize> {
    (0..clients).find(|i| client(address.is_ipv6(), *i) == address)
}

/// Which pod has an address.
#[must_use]
pub fn pod_at(address: IpAddr, pods: usize) -> Option<usize> {
    (0..pods).find(|i| pod(address.is_ipv6(), *i).ip() == address)
}

/// What a pod is called.
#[must_use]
pub fn pod_name(index: usize) -> String {
    format!("pod-{index}")
}

/// Where a pod listens, for a snapshot.
#[must_use]
pub fn endpoint(at: SocketAddr) -> Option<Endpoint> {
    Endpoint::new(at.ip(), at.port())
}

/// The key of an epoch.
#[must_use]
pub fn key(epoch: u8) -> AdoptionKey {
    AdoptionKey::from_bytes([epoch.wrapping_mul(37).wrapping_add(7); 16])
}

/// The key of an epoch that pods of a node have.
#[must_use]
pub fn key_on(node: usize, epoch: u8) -> AdoptionKey {
    let key = key(epoch);
    match node_name(node) {
        Some(name) => AdoptionKey::from_bytes(baton_api::node_key(key.bytes(), &name)),
        None => key,
    }
}

/// What a node is called; the first one has no name, and no keys of its own.
#[must_use]
pub fn node_name(node: usize) -> Option<String> {
    (node > 0).then(|| format!("node-{node}"))
}
