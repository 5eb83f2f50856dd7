//! The longest prefix that an address has, found by bisection.
//!
//! Owns how routes become disjoint ranges of addresses, so that a look-up takes the same few steps
//! however many routes there are and however they overlap. Making them takes milliseconds with some
//! ten thousand routes: never on the packet thread.

use std::net::IpAddr;

/// Where a route leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// The destination is on the link.
    Link,
    /// Through a router that is.
    Router(IpAddr),
    /// Through the host's own stack ([`baton_packet::Mac::HOST`]), by another interface. The
    /// address is the one that the host itself sends from there, if it has one: to others it may do
    /// what it does to strangers' packets, as translating them.
    Host(Option<IpAddr>),
    /// Through another interface, or nowhere: a frame that left by ours would come to a stranger.
    Elsewhere,
}

impl Via {
    pub(crate) fn source(self) -> Option<IpAddr> {
        match self {
            Self::Host(source) => source,
            Self::Link | Self::Router(_) | Self::Elsewhere => None,
        }
    }
}

/// One route of the dataplane's network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The destination; bits beyond `prefix_len` are ignored.
    pub prefix: IpAddr,
    /// 0 to 32 for IPv4, 0 to 128 for IPv6; a route with a longer one matches nothing.
    pub prefix_len: u8,
    /// What to send to.
    pub via: Via,
}

/// Where the addresses of one family lead.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Prefixes {
    /// Where each range begins, in order; it ends where the next one begins.
    starts: Vec<u128>,
    /// Where it leads, if anywhere.
    vias: Vec<Option<Via>>,
}

/// An address as a number, the highest bit first in both families.
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The first and the last address of a route, if its prefix length is one.
fn range(route: &Route) -> Option<(u128, u128)> {
    let width = if route.prefix.is_ipv6() { 128 } else { 32 };
    let len = u32::from(route.prefix_len);
    // All bits behind the prefix; of IPv4 those behind the address, too.
    let rest = u128::MAX.checked_shr(len).unwrap_or(0);
    (len <= width).then(|| (number(route.prefix) & !rest, number(route.prefix) | rest))
}

impl Prefixes {
    /// Of the routes of a family. Of two with the same destination the first counts.
    pub(crate) fn new(routes: &[Route], v6: bool) -> Self {
        let ours = routes.iter().filter(|r| r.prefix.is_ipv6() == v6);
        let mut all: Vec<(u128, u128, Via)> =
            ours.filter_map(|r| range(r).map(|(first, last)| (first, last, r.via))).collect();
        // What contains another one comes before it. The order of equal ones stays.
        all.sort_by_key(|(first, last, _)| (*first, !*last));
        all.dedup_by_key(|(first, last, _)| (*first, *last));
        let mut made = Self::default();
        // Those that contain the place, the innermost last.
        let mut open: Vec<(u128, Via)> = Vec::new();
        for (first, last, via) in all {
            made.close(&mut open, Some(first));
            made.begin(first, Some(via));
            open.push((last, via));
        }
        made.close(&mut open, None);
        made
    }

    /// Ends those that end before `next`, or all.
    fn close(&mut self, open: &mut Vec<(u128, Via)>, next: Option<u128>) {
        while let Some((last, _)) = open.pop_if(|(last, _)| next.is_none_or(|next| *last < next)) {
            if let Some(behind) = last.checked_add(1) {
                self.begin(behind, open.last().map(|(_, via)| *via));
            }
        }
    }

    fn begin(&mut self, start: u128, via: Option<Via>) {
        if self.starts.last() == Some(&start) {
            self.starts.pop();
            self.vias.pop();
        }
        self.starts.push(start);
        self.vias.push(via);
    }

    /// Where an address of the family leads.
    pub(crate) fn via(&self, to: IpAddr) -> Option<Via> {
        let to = number(to);
        let at = self.starts.partition_point(|start| *start <= to);
        self.vias[at.checked_sub(1)?]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// What the ranges replace: each route looked at, the longest first.
    fn linear(routes: &[Route], to: IpAddr) -> Option<Via> {
        let matches = |route: &&Route| {
            let (differ, width) = match (route.prefix, to) {
                (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits() ^ b.to_bits()) << 96, 32),
                (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits(), 128),
                _ => return false,
            };
            route.prefix_len <= width && differ.leading_zeros() >= u32::from(route.prefix_len)
        };
        let mut sorted = routes.to_vec();
        sorted.sort_by_key(|route| std::cmp::Reverse(route.prefix_len));
        sorted.iter().find(matches).map(|route| route.via)
    }

    /// Few different bits, at the top and at the bottom, so that prefixes contain each other.
    fn bits() -> impl Strategy<Value = u128> {
        let few = (any::<u8>(), any::<u8>()).prop_map(|(top, low)| {
            u128::from(top & 7) << 125 | u128::from(top >> 6) << 96 | u128::from(low & 3)
        });
        prop_oneof![4 => few.clone(), 1 => few.prop_map(|bits| !bits), 1 => any::<u128>()]
    }

    fn address() -> impl Strategy<Value = IpAddr> {
        (any::<bool>(), bits()).prop_map(|(v6, bits)| {
            if v6 {
                Ipv6Addr::from_bits(bits).into()
            } else {
                Ipv4Addr::from_bits((bits >> 96) as u32 | bits as u32).into()
            }
        })
    }

    proptest! {
        #[test]
        fn ranges_agree_with_looking_at_each_route(
            given in prop::collection::vec((address(), prop_oneof![0..5_u8, 30..35_u8, 124..=130_u8, any::<u8>()]), 0..40),
            hosts in prop::collection::vec(address(), 1..40),
        ) {
            let routes: Vec<Route> = (0..).zip(&given).map(|(number, &(prefix, prefix_len))| Route {
                prefix,
                prefix_len,
                via: Via::Router(Ipv4Addr::from_bits(number).into()),
            }).collect();
            let made = [false, true].map(|v6| Prefixes::new(&routes, v6));
            for one in &made {
                prop_assert!(one.starts.is_sorted_by(|a, b| a < b));
                prop_assert!(one.starts.len() <= 2 * routes.len());
            }
            // Hosts at random, and both ends of each route with their neighbours.
            let edges = routes.iter().filter_map(|r| range(r).zip(Some(r.prefix.is_ipv6())));
            let edges = edges.flat_map(|((first, last), v6)| {
                let unit = if v6 { 1 } else { 1 << 96 };
                [first, first.wrapping_sub(unit), last, last.wrapping_add(unit)].map(|bits| {
                    if v6 {
                        IpAddr::from(Ipv6Addr::from_bits(bits))
                    } else {
                        Ipv4Addr::from_bits((bits >> 96) as u32).into()
                    }
                })
            });
            for to in hosts.into_iter().chain(edges) {
                let found = made[usize::from(to.is_ipv6())].via(to);
                prop_assert_eq!(found, linear(&routes, to), "to {}", to);
            }
        }
    }

    /// Nested or beside each other: 65,536 routes take at most 17 steps.
    #[test]
    fn many_routes_take_few_steps() {
        let beside = (0..32_768_u32).map(|n| (n << 17, 15 + (n % 17) as u8));
        let nested = (0..=32_u8).cycle().map(|len| (u32::MAX, len)).take(32_768);
        let routes: Vec<Route> = (beside.chain(nested))
            .map(|(bits, prefix_len)| Route {
                prefix: Ipv4Addr::from_bits(bits).into(),
                prefix_len,
                via: Via::Link,
            })
            .collect();
        let made = Prefixes::new(&routes, false);
        assert!(made.starts.len() <= 1 << 17, "{}", made.starts.len());
        assert_eq!(made.starts.len(), made.vias.len());
    }
}
