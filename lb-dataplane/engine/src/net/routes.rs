//! Where a packet goes next: routes (`prefixes` finds the longest) and the neighbours' hardware
//! addresses.
//!
//! Owns copies of what the kernel knows, given by the caller, and the list of what should be asked
//! of it. It never asks itself, and never answers ARP or NDP. Routes are looked up for new flows,
//! and for all when they change; in between a flow carries its [`HopId`].
//!
//! # Decisions
//!
//! - **What clients have on the own link takes no next hop before it is open**: answers go where
//!   the SYN came from. Open ones have 4,096, backends and routers as many of their own; one host
//!   of an IPv6 /64 had made new pods unreachable with 4,096 SYNs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::net::prefixes::{Prefixes, Route, Via};
use baton_packet::Mac;

/// Most next-hop addresses at a time: routers, and the clients and backends that are on-link.
pub(crate) const LIMIT_HOPS: usize = CLIENT_HOPS_MAX + 4096;
/// Of these, those of clients whose connections are open. The others are for backends, of which
/// there are no more (`limits.backends`), and routers.
pub(crate) const CLIENT_HOPS_MAX: usize = 4096;

/// Confirmed hops are given out again in so many calls of [`Hops::ask_again`], a part in each, so
/// that whoever asks the kernel knows what is still used.
const CONFIRMED_TURNS: usize = 10;

/// The routing table, made beside the packet thread and put in force by `Engine::put_routes`.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Routes {
    /// By family.
    prefixes: [Prefixes; 2],
    /// Addresses of the host that legs may come from.
    sources: Vec<IpAddr>,
}

impl Routes {
    /// Of two with the same destination the first wins, as the kernel lists the better metric
    /// first.
    #[must_use]
    pub fn new(routes: &[Route]) -> Self {
        let mut sources: Vec<IpAddr> = routes.iter().filter_map(|r| r.via.source()).collect();
        sources.sort_unstable();
        sources.dedup();
        Self { prefixes: [false, true].map(|v6| Prefixes::new(routes, v6)), sources }
    }

    /// Addresses of the host that legs may come from while these routes are in force: to be steered
    /// to us before they are.
    #[must_use]
    pub fn sources(&self) -> &[IpAddr] {
        &self.sources
    }

    /// The address to resolve for a packet to `to`: a router, or `to` itself if it is on the link;
    /// `None` if no route leads there by our interface.
    pub(crate) fn next_hop(&self, to: IpAddr) -> Option<IpAddr> {
        match self.via(to)? {
            Via::Link => Some(to),
            Via::Router(router) => Some(router),
            Via::Host(_) => Some(host(to.is_ipv6())),
            Via::Elsewhere => None,
        }
    }

    /// Where the route to `to` leads.
    pub(crate) fn via(&self, to: IpAddr) -> Option<Via> {
        self.prefixes[usize::from(to.is_ipv6())].via(to)
    }
}

/// The next hop that stands for the host's own stack. No neighbour has this address, and nobody is
/// asked for it.
pub(crate) fn host(v6: bool) -> IpAddr {
    if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// A next-hop address in [`Hops`], valid until nobody has held it between two [`Hops::evict`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct HopId(pub(crate) u16);

impl HopId {
    /// None.
    pub(crate) const NONE: Self = Self(u16::MAX);
}

/// What is known about a next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Knowledge {
    Unresolved,
    /// Seen as the source of a frame; good enough to answer, but the kernel should confirm it.
    Provisional(Mac),
    /// The kernel said so.
    Confirmed(Mac),
}

#[derive(Debug, Clone, Copy)]
struct Hop {
    /// `None` if this id is free.
    address: Option<IpAddr>,
    known: Knowledge,
    /// Given out by [`Hops::next_unresolved`], or confirmed, and not to be given out for now.
    asked: bool,
    /// Nobody held it at the last [`Hops::evict`], nor since.
    spare: bool,
    /// Taken for a client alone.
    client: bool,
}

const FREE: Hop =
    Hop { address: None, known: Knowledge::Unresolved, asked: false, spare: false, client: false };

/// The neighbour table: at most [`LIMIT_HOPS`] addresses, all memory taken at construction.
#[derive(Debug)]
pub(crate) struct Hops {
    hops: Box<[Hop]>,
    free: Vec<u16>,
    /// Flows and backends that hold each.
    uses: Box<[u32]>,
    /// Ids in the order of their addresses: found by bisection, so that no choice of addresses by
    /// a client makes a lookup slow, and the same in every run.
    by_address: Vec<(IpAddr, u16)>,
    /// How many hops [`Hops::next_unresolved`] would give out, so that asking costs nothing if
    /// none.
    to_ask: usize,
    /// Where the search for those goes on.
    cursor: usize,
    /// Which part of the confirmed ones [`Hops::ask_again`] was last about.
    turn: usize,
    of_clients: usize,
}

impl Hops {
    /// An empty table. The only place that allocates.
    pub(crate) fn new() -> Self {
        Self {
            hops: vec![FREE; LIMIT_HOPS].into_boxed_slice(),
            free: (0..LIMIT_HOPS as u16).rev().collect(),
            uses: vec![0; LIMIT_HOPS].into_boxed_slice(),
            by_address: Vec::with_capacity(LIMIT_HOPS),
            to_ask: 0,
            cursor: 0,
            turn: 0,
            of_clients: 0,
        }
    }

    /// The id of `address`, if it has one.
    pub(crate) fn known(&self, address: IpAddr) -> Option<HopId> {
        let at = self.find(address).ok()?;
        Some(HopId(self.by_address[at].1))
    }

    /// The same, a new one for a client if it has none; `None` if clients have as many as they may.
    pub(crate) fn intern_client(&mut self, address: IpAddr) -> Option<HopId> {
        let known = self.known(address);
        if known.is_some() || self.of_clients >= CLIENT_HOPS_MAX {
            return known;
        }
        let hop = self.intern(address)?;
        self.hops[usize::from(hop.0)].client = true;
        self.of_clients += 1;
        Some(hop)
    }

    /// The id of `address`, a new one if it has none; `None` if the table is full.
    pub(crate) fn intern(&mut self, address: IpAddr) -> Option<HopId> {
        match self.find(address) {
            Ok(at) => {
                let id = self.by_address[at].1;
                let client = &mut self.hops[usize::from(id)].client;
                self.of_clients -= usize::from(std::mem::take(client));
                Some(HopId(id))
            }
            Err(at) => {
                let id = self.free.pop()?;
                self.by_address.insert(at, (address, id));
                self.hops[usize::from(id)] = Hop { address: Some(address), ..FREE };
                self.to_ask += 1;
                Some(HopId(id))
            }
        }
    }

    /// Whose id it is.
    pub(crate) fn address(&self, hop: HopId) -> Option<IpAddr> {
        self.hops.get(usize::from(hop.0))?.address
    }

    /// The hardware address of a hop, confirmed or provisional.
    pub(crate) fn mac(&self, hop: HopId) -> Option<Mac> {
        match self.hops[usize::from(hop.0)].known {
            Knowledge::Unresolved => None,
            Knowledge::Provisional(mac) | Knowledge::Confirmed(mac) => Some(mac),
        }
    }

    /// The kernel says that `address` is at `mac`, or that it knows no `mac` for it (any more).
    /// Addresses that were not interned are none of ours and not remembered.
    pub(crate) fn set(&mut self, address: IpAddr, mac: Option<Mac>) {
        let Ok(at) = self.find(address) else { return };
        self.update(self.by_address[at].1, |hop| match mac {
            Some(mac) => {
                hop.known = Knowledge::Confirmed(mac);
                hop.asked = true;
            }
            None => {
                // A neighbour that was lost is asked for at once; one that was never found waits
                // for `ask_again`, or a failed resolution would be asked for in a tight circle.
                if matches!(hop.known, Knowledge::Confirmed(_)) {
                    hop.asked = false;
                }
                hop.known = Knowledge::Unresolved;
            }
        });
    }

    /// A frame that came by this hop had `mac` as its source. Used until the kernel knows better,
    /// never instead of what the kernel said.
    pub(crate) fn learn(&mut self, hop: HopId, mac: Mac) {
        self.update(hop.0, |hop| {
            if hop.address.is_some() && !matches!(hop.known, Knowledge::Confirmed(_)) {
                hop.known = Knowledge::Provisional(mac);
            }
        });
    }

    /// An address that the kernel should be asked for: each that is not confirmed once, until
    /// [`Hops::ask_again`].
    pub(crate) fn next_unresolved(&mut self) -> Option<IpAddr> {
        if self.to_ask == 0 {
            return None;
        }
        let count = self.hops.len();
        let at = (self.cursor..self.cursor + count)
            .map(|at| at % count)
            .find(|&at| self.hops[at].is_to_ask())?;
        self.cursor = at + 1;
        self.update(at as u16, |hop| hop.asked = true);
        self.hops[at].address
    }

    /// Lets [`Hops::next_unresolved`] give out again all addresses that are not confirmed, and some
    /// of the others; none for the host, which nobody resolves.
    pub(crate) fn ask_again(&mut self) {
        self.turn = (self.turn + 1) % CONFIRMED_TURNS;
        for (at, hop) in self.hops.iter_mut().enumerate() {
            hop.asked &= match hop.known {
                Knowledge::Confirmed(Mac::HOST) => true,
                Knowledge::Confirmed(_) => at % CONFIRMED_TURNS != self.turn,
                Knowledge::Unresolved | Knowledge::Provisional(_) => false,
            };
        }
        self.to_ask = self.hops.iter().filter(|hop| hop.is_to_ask()).count();
    }

    /// How many addresses are interned.
    pub(crate) fn len(&self) -> usize {
        self.by_address.len()
    }

    /// A flow or backend has this hop from now on; none is nobody's.
    pub(crate) fn hold(&mut self, hop: HopId) {
        if let Some(uses) = self.uses.get_mut(usize::from(hop.0)) {
            *uses += 1;
            self.hops[usize::from(hop.0)].spare = false;
        }
    }

    /// And not any more.
    pub(crate) fn let_go(&mut self, hop: HopId) {
        if let Some(uses) = self.uses.get_mut(usize::from(hop.0)) {
            *uses -= 1;
        }
    }

    /// How many have each, for tests.
    pub(crate) fn all_uses(&self) -> &[u32] {
        &self.uses
    }

    /// Forgets the hops that nobody holds and nobody has held since the last call, so that their
    /// ids can be given to other addresses and the kernel is not asked for them any more: a node's
    /// neighbour table has 1,024 places for all of its Pods (`gc_thresh3`).
    pub(crate) fn evict(&mut self) {
        let Self { hops, free, uses, by_address, to_ask, of_clients, .. } = self;
        by_address.retain(|&(_, id)| {
            let hop = &mut hops[usize::from(id)];
            let keep = uses[usize::from(id)] > 0 || !std::mem::replace(&mut hop.spare, true);
            if !keep {
                *to_ask -= usize::from(hop.is_to_ask());
                *of_clients -= usize::from(hop.client);
                *hop = FREE;
                free.push(id);
            }
            keep
        });
    }

    fn find(&self, address: IpAddr) -> Result<usize, usize> {
        self.by_address.binary_search_by_key(&address, |&(address, _)| address)
    }

    /// Changes one hop and keeps the count of those to ask for right.
    fn update(&mut self, id: u16, change: impl FnOnce(&mut Hop)) {
        let hop = &mut self.hops[usize::from(id)];
        self.to_ask -= usize::from(hop.is_to_ask());
        change(hop);
        self.to_ask += usize::from(hop.is_to_ask());
    }
}

impl Hop {
    fn is_to_ask(&self) -> bool {
        self.address.is_some() && !self.asked
    }
}

#[cfg(test)]
#[path = "routes_tests.rs"]
mod tests;
