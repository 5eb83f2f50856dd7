//! Where a packet goes next: routes (`prefixes` finds the longest) and the neighbours' hardware
//! addresses.
//!
//! Owns copies of what the kernel knows, given by the caller, and the list of what should be asked
//! of it. It never asks itself, and never answers ARP or NDP. Routes are looked up for new flows
//! only; afterwards a flow carries its [`HopId`].
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
        Self {
            prefixes: [false, true].map(|v6| Prefixes::new(routes, v6)),
            sources,
        }
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
    if v6 {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    }
}

/// A next-hop address in [`Hops`], valid until [`Hops::evict`] finds that nobody holds it.
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
    /// Given out by [`Hops::next_unresolved`] and not to be given out again for now.
    asked: bool,
    /// Taken for a client alone.
    client: bool,
}

const FREE: Hop = Hop {
    address: None,
    known: Knowledge::Unresolved,
    asked: false,
    client: false,
};

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
                self.hops[usize::from(id)] = Hop {
                    address: Some(address),
                    ..FREE
                };
                self.to_ask += 1;
                Some(HopId(id))
            }
        }
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
            Some(mac) => hop.known = Knowledge::Confirmed(mac),
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

    /// An address that the kernel should be asked for: each unresolved or provisional one once,
    /// until [`Hops::ask_again`].
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

    /// Lets [`Hops::next_unresolved`] give out all addresses again that are not confirmed.
    pub(crate) fn ask_again(&mut self) {
        for hop in &mut self.hops {
            hop.asked = false;
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
        }
    }

    /// And not any more.
    pub(crate) fn let_go(&mut self, hop: HopId) {
        if let Some(uses) = self.uses.get_mut(usize::from(hop.0)) {
            *uses -= 1;
        }
    }

    /// How many have it.
    pub(crate) fn uses(&self, hop: HopId) -> u32 {
        self.uses[usize::from(hop.0)]
    }

    /// Forgets the hops that nobody holds.
    pub(crate) fn evict(&mut self) {
        let uses = std::mem::take(&mut self.uses);
        self.evict_unused(|hop| uses[usize::from(hop.0)] > 0);
        self.uses = uses;
    }

    /// Forgets the hops that are not `used`, so that their ids can be given to other addresses.
    fn evict_unused(&mut self, used: impl Fn(HopId) -> bool) {
        let Self {
            hops,
            free,
            by_address,
            to_ask,
            of_clients,
            ..
        } = self;
        by_address.retain(|&(_, id)| {
            let keep = used(HopId(id));
            if !keep {
                let hop = &mut hops[usize::from(id)];
                *to_ask -= usize::from(hop.is_to_ask());
                *of_clients -= usize::from(hop.client);
                *hop = FREE;
                free.push(id);
            }
            keep
        });
    }

    fn find(&self, address: IpAddr) -> Result<usize, usize> {
        self.by_address
            .binary_search_by_key(&address, |&(address, _)| address)
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
        self.address.is_some() && !self.asked && !matches!(self.known, Knowledge::Confirmed(_))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn route(text: &str, via: Option<&str>) -> Route {
        let (prefix, prefix_len) = text.split_once('/').unwrap();
        Route {
            prefix: ip(prefix),
            prefix_len: prefix_len.parse().unwrap(),
            via: via.map_or(Via::Link, |router| Via::Router(ip(router))),
        }
    }

    fn mac(last: u8) -> Mac {
        Mac([2, 0, 0, 0, 0, last])
    }

    #[test]
    fn the_longest_prefix_wins() {
        assert_eq!(Routes::default().next_hop(ip("10.0.0.1")), None);
        let routes = Routes::new(&[
            route("0.0.0.0/0", Some("192.168.1.1")),
            route("192.168.1.0/24", None),
            route("10.0.0.0/8", Some("192.168.1.2")),
            route("10.1.0.0/16", Some("192.168.1.3")),
            route("10.1.2.3/32", Some("192.168.1.4")),
            route("10.1.0.0/16", Some("192.168.1.99")),
        ]);
        for (to, hop) in [
            ("8.8.8.8", "192.168.1.1"),
            ("192.168.1.77", "192.168.1.77"),
            ("192.168.2.77", "192.168.1.1"),
            ("10.255.0.1", "192.168.1.2"),
            ("10.1.255.1", "192.168.1.3"),
            ("10.1.2.3", "192.168.1.4"),
            ("10.1.2.2", "192.168.1.3"),
        ] {
            assert_eq!(routes.next_hop(ip(to)), Some(ip(hop)), "to {to}");
        }
        assert_eq!(
            routes.next_hop(ip("fd00::1")),
            None,
            "0.0.0.0/0 is for IPv4 only"
        );
    }

    #[test]
    fn what_another_interface_leads_to_is_not_sent_to_the_router() {
        let pod = Route {
            via: Via::Elsewhere,
            ..route("10.244.2.58/32", None)
        };
        let routes = Routes::new(&[route("0.0.0.0/0", Some("172.18.0.1")), pod]);
        assert_eq!(routes.next_hop(ip("10.244.2.58")), None);
        assert_eq!(routes.via(ip("10.244.2.58")), Some(Via::Elsewhere));
        assert_eq!(routes.via(ip("fd00::1")), None, "no route at all");
        assert_eq!(routes.next_hop(ip("10.244.2.57")), Some(ip("172.18.0.1")));
    }

    #[test]
    fn ipv6_and_sloppy_prefixes() {
        let routes = Routes::new(&[
            route("fd00:1::77/64", None),
            route("::/0", Some("fe80::1")),
            route("fd00:1::5/128", Some("fe80::2")),
            route("10.9.8.7/33", None),
            route("fd00::/129", None),
        ]);
        assert_eq!(routes.next_hop(ip("fd00:1::5")), Some(ip("fe80::2")));
        assert_eq!(routes.next_hop(ip("fd00:1::6")), Some(ip("fd00:1::6")));
        assert_eq!(routes.next_hop(ip("fd00:1:0:1::6")), Some(ip("fe80::1")));
        assert_eq!(
            routes.next_hop(ip("10.9.8.7")),
            None,
            "/33 matches nothing, ::/0 is for IPv6"
        );
        assert_eq!(
            routes.next_hop(ip("fd00::")),
            Some(ip("fe80::1")),
            "/129 matches nothing"
        );
    }

    #[test]
    fn what_the_kernel_says_beats_what_frames_show() {
        let mut hops = Hops::new();
        let hop = hops.intern(ip("10.0.0.1")).unwrap();
        assert_eq!(hops.intern(ip("10.0.0.1")), Some(hop));
        assert_eq!(hops.mac(hop), None);
        hops.learn(hop, mac(1));
        assert_eq!(hops.mac(hop), Some(mac(1)));
        hops.learn(hop, mac(2));
        assert_eq!(hops.mac(hop), Some(mac(2)), "the newest frame counts");
        hops.set(ip("10.0.0.1"), Some(mac(3)));
        hops.learn(hop, mac(4));
        assert_eq!(hops.mac(hop), Some(mac(3)));
        hops.set(ip("10.0.0.1"), None);
        assert_eq!(hops.mac(hop), None);
        hops.learn(hop, mac(5));
        assert_eq!(hops.mac(hop), Some(mac(5)));
    }

    #[test]
    fn addresses_of_others_are_not_remembered() {
        let mut hops = Hops::new();
        hops.set(ip("10.0.0.1"), Some(mac(1)));
        assert_eq!(hops.len(), 0);
        let hop = hops.intern(ip("10.0.0.1")).unwrap();
        assert_eq!(hops.mac(hop), None);
    }

    #[test]
    fn each_unresolved_address_is_given_out_once() {
        let mut hops = Hops::new();
        assert_eq!(hops.next_unresolved(), None);
        let first = hops.intern(ip("10.0.0.1")).unwrap();
        hops.intern(ip("fd00::2")).unwrap();
        hops.intern(ip("10.0.0.3")).unwrap();
        hops.learn(first, mac(1));
        hops.set(ip("10.0.0.3"), Some(mac(3)));
        let mut asked = [hops.next_unresolved(), hops.next_unresolved()];
        asked.sort_unstable();
        assert_eq!(
            asked,
            [Some(ip("10.0.0.1")), Some(ip("fd00::2"))],
            "a provisional one too"
        );
        assert_eq!(hops.next_unresolved(), None);

        hops.set(ip("fd00::2"), None);
        assert_eq!(
            hops.next_unresolved(),
            None,
            "a failure is not asked about in a circle"
        );
        hops.ask_again();
        hops.set(ip("10.0.0.1"), Some(mac(1)));
        assert_eq!(hops.next_unresolved(), Some(ip("fd00::2")));
        assert_eq!(hops.next_unresolved(), None);

        hops.set(ip("10.0.0.3"), None);
        assert_eq!(
            hops.next_unresolved(),
            Some(ip("10.0.0.3")),
            "what was lost is asked for at once"
        );
        assert_eq!(hops.next_unresolved(), None);
    }

    #[test]
    fn the_table_has_a_limit_and_does_not_grow() {
        let mut hops = Hops::new();
        let (index_capacity, free_capacity) = (hops.by_address.capacity(), hops.free.capacity());
        let address = |number: usize| IpAddr::from(Ipv6Addr::from_bits(number as u128 * 7));
        let ids: BTreeSet<u16> = (0..LIMIT_HOPS)
            .map(|number| hops.intern(address(number)).unwrap().0)
            .collect();
        assert_eq!((ids.len(), hops.len()), (LIMIT_HOPS, LIMIT_HOPS));
        assert_eq!(hops.intern(address(LIMIT_HOPS)), None);
        assert!(
            hops.intern(address(5)).is_some(),
            "known ones are still found"
        );

        let keep = hops.intern(address(9)).unwrap();
        hops.set(address(9), Some(mac(9)));
        hops.evict_unused(|hop| hop == keep);
        assert_eq!((hops.len(), hops.mac(keep)), (1, Some(mac(9))));
        assert_eq!(hops.next_unresolved(), None);
        for number in LIMIT_HOPS..2 * LIMIT_HOPS - 1 {
            let hop = hops.intern(address(number)).unwrap();
            assert!(hop != keep && hops.mac(hop).is_none());
        }
        assert_eq!(hops.intern(address(0)), None);
        hops.evict_unused(|_| false);
        assert_eq!(hops.len(), 0);
        assert_eq!(
            (index_capacity, free_capacity),
            (hops.by_address.capacity(), hops.free.capacity())
        );
    }

    #[derive(Debug, Clone)]
    enum Op {
        Intern(u8),
        Set(u8, Option<u8>),
        Learn(u8, u8),
        Ask,
        AskAgain,
        Evict(u8),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0..12_u8).prop_map(Op::Intern),
            3 => (0..12_u8, any::<Option<u8>>()).prop_map(|(host, mac)| Op::Set(host, mac)),
            2 => (0..12_u8, any::<u8>()).prop_map(|(host, mac)| Op::Learn(host, mac)),
            4 => Just(Op::Ask),
            1 => Just(Op::AskAgain),
            1 => any::<u8>().prop_map(Op::Evict),
        ]
    }

    proptest! {
        #[test]
        fn hops_agree_with_a_map(ops in prop::collection::vec(op(), 1..150)) {
            let address = |host: u8| IpAddr::from([10, 0, 0, host]);
            let mut hops = Hops::new();
            // Host: id, hardware address, confirmed, asked.
            let mut model: BTreeMap<u8, (HopId, Option<u8>, bool, bool)> = BTreeMap::new();
            for op in ops {
                match op {
                    Op::Intern(host) => {
                        let id = hops.intern(address(host)).unwrap();
                        let known = model.entry(host).or_insert((id, None, false, false));
                        prop_assert_eq!(known.0, id);
                    }
                    Op::Set(host, to) => {
                        hops.set(address(host), to.map(mac));
                        if let Some((_, known, confirmed, asked)) = model.get_mut(&host) {
                            *asked &= to.is_some() || !*confirmed;
                            *known = to;
                            *confirmed = to.is_some();
                        }
                    }
                    Op::Learn(host, to) => {
                        if let Some((id, known, confirmed, _)) = model.get_mut(&host) {
                            hops.learn(*id, mac(to));
                            *known = if *confirmed { *known } else { Some(to) };
                        }
                    }
                    Op::Ask => {
                        let due = |(_, known): (&u8, &(HopId, Option<u8>, bool, bool))| !known.2 && !known.3;
                        match hops.next_unresolved() {
                            None => prop_assert!(!model.iter().any(due), "one was not given out"),
                            Some(given) => {
                                let host = (0..12).find(|host| address(*host) == given).unwrap();
                                prop_assert!(due((&host, &model[&host])));
                                model.get_mut(&host).unwrap().3 = true;
                            }
                        }
                    }
                    Op::AskAgain => {
                        hops.ask_again();
                        model.values_mut().for_each(|known| known.3 = false);
                    }
                    Op::Evict(mask) => {
                        model.retain(|host, _| mask >> (host % 8) & 1 == 1);
                        hops.evict_unused(|id| model.values().any(|known| known.0 == id));
                    }
                }
                prop_assert_eq!(hops.len(), model.len());
                let to_ask = model.values().filter(|known| !known.2 && !known.3).count();
                prop_assert_eq!(hops.to_ask, to_ask);
                for (id, known, ..) in model.values() {
                    prop_assert_eq!(hops.mac(*id), known.map(mac));
                }
                let ids: BTreeSet<u16> = model.values().map(|known| known.0.0).collect();
                prop_assert_eq!(ids.len(), model.len());
            }
        }
    }
}
