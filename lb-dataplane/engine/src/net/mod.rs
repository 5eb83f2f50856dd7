//! The network as the engine knows it: routes and neighbours, its own addresses and the ports of
//! its legs, the way to the other IP family.
//!
//! Owns where a packet goes next. It knows no flow and sends nothing.

pub(crate) mod across;
pub(crate) mod prefixes;
pub(crate) mod resets;
pub(crate) mod routes;
pub(crate) mod sources;

use across::Across;
use resets::Resets;
use routes::{Hops, Routes};
use sources::Sources;
use std::net::IpAddr;

/// The network around one engine.
pub(crate) struct Net {
    /// Own addresses by family, for the legs.
    pub(crate) sources: Sources,
    /// Addresses of the host that legs come from besides.
    pub(crate) host_addresses: Vec<IpAddr>,
    /// The same by the new routes, while backends are gone through for these.
    pub(crate) new_host_addresses: Vec<IpAddr>,
    /// On a node's network: what is no leg's may be the node's own (`Engine::share_ports`).
    pub(crate) shares_ports: bool,
    pub(crate) routes: Routes,
    pub(crate) hops: Hops,
    /// The first backend whose next hop is from before the routes changed.
    pub(crate) stale_hops: Option<usize>,
    /// The first flow likewise.
    pub(crate) stale_clients: Option<usize>,
    pub(crate) resolve_again_ms: u64,
    pub(crate) resets: Resets,
    /// The frame in hand goes to the other IP family.
    pub(crate) across: Option<Across>,
}

impl Net {
    pub(crate) fn new(sources: Sources, now_ms: u64) -> Self {
        Self {
            sources,
            host_addresses: Vec::new(),
            new_host_addresses: Vec::new(),
            shares_ports: false,
            routes: Routes::default(),
            hops: Hops::new(),
            stale_hops: None,
            stale_clients: None,
            resolve_again_ms: now_ms,
            resets: Resets::new(),
            across: None,
        }
    }

    /// Whether something is from before the routes changed.
    pub(crate) fn goes_on(&self) -> bool {
        self.stale_hops.is_some() || self.stale_clients.is_some()
    }

    /// Whether legs come from this address.
    pub(crate) fn is_source(&self, address: IpAddr) -> bool {
        self.sources.contains(address) || self.host_addresses.contains(&address)
    }
}
