//! Which clients may open flows of a policy: `allowFrom` as ranges of addresses.
//!
//! Owns the ranges and the look-up, which takes at most 10 steps for the 1,024 networks that a
//! policy may have and allocates nothing. Never looks at a flow that there is: what a list says
//! from now on ends nobody's connection.

use baton_api::Network;
use std::net::IpAddr;

/// Ranges of one family: in order, and none touches the next one.
type Ranges = Box<[(u128, u128)]>;

/// The clients of a policy that names them.
pub(crate) struct Allowed {
    /// IPv4 and IPv6.
    ranges: [Ranges; 2],
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

impl Allowed {
    /// Of what a policy says: nothing where it allows everybody.
    pub(crate) fn new(networks: Option<&[Network]>) -> Option<Self> {
        let networks = networks?;
        let ranges = [false, true].map(|v6| {
            let own = networks.iter().filter(|n| n.first().is_ipv6() == v6);
            let own = own.map(|n| (number(n.first()), number(n.last())));
            merged(own.collect())
        });
        Some(Self { ranges })
    }

    /// Whether a client's flow may be opened.
    #[inline]
    pub(crate) fn has(&self, client: IpAddr) -> bool {
        let ranges = &self.ranges[usize::from(client.is_ipv6())];
        let client = number(client);
        let behind = ranges.partition_point(|(first, _)| *first <= client);
        let at = behind.checked_sub(1).and_then(|at| ranges.get(at));
        at.is_some_and(|(_, last)| client <= *last)
    }
}

/// The same addresses in as few ranges as possible.
fn merged(mut all: Vec<(u128, u128)>) -> Ranges {
    all.sort_unstable();
    let mut made: Vec<(u128, u128)> = Vec::with_capacity(all.len());
    for (first, last) in all {
        match made.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => made.push((first, last)),
        }
    }
    made.into_boxed_slice()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn of(networks: &[&str]) -> Allowed {
        let networks = networks.iter().map(|n| n.parse().expect("a network"));
        let networks: Vec<Network> = networks.collect();
        Allowed::new(Some(&networks)).expect("a list")
    }

    fn has(allowed: &Allowed, client: &str) -> bool {
        allowed.has(client.parse().expect("an address"))
    }

    #[test]
    fn no_list_is_everybody_and_an_empty_one_nobody() {
        assert!(Allowed::new(None).is_none());
        for client in ["0.0.0.0", "10.0.0.1", "::", "fd00::1"] {
            assert!(!has(&of(&[]), client));
            assert!(has(&of(&["0.0.0.0/0", "::/0"]), client));
        }
        assert!(!has(&of(&["::/0"]), "10.0.0.1"), "another family");
        assert!(!has(&of(&["0.0.0.0/0"]), "::a00:1"), "another family");
    }

    #[test]
    fn networks_that_touch_or_contain_each_other_are_one_range() {
        let allowed = of(&["10.0.0.0/25", "10.0.0.128/25", "10.0.0.7/32", "10.0.2.0/24"]);
        assert_eq!(allowed.ranges[0].len(), 2);
        for (client, expected) in [
            ("9.255.255.255", false),
            ("10.0.0.0", true),
            ("10.0.0.255", true),
            ("10.0.1.0", false),
            ("10.0.1.255", false),
            ("10.0.2.0", true),
            ("10.0.3.0", false),
        ] {
            assert_eq!(has(&allowed, client), expected, "{client}");
        }
    }

    fn address() -> impl Strategy<Value = IpAddr> {
        // Few different bits, so that networks contain each other and clients are in them.
        (any::<bool>(), any::<u8>(), any::<u8>()).prop_map(|(v6, top, low)| match v6 {
            true => Ipv6Addr::from_bits(u128::from(top & 7) << 125 | u128::from(low & 7)).into(),
            false => Ipv4Addr::from_bits(u32::from(top & 7) << 29 | u32::from(low & 7)).into(),
        })
    }

    proptest! {
        #[test]
        fn ranges_agree_with_looking_at_each_network(
            given in prop::collection::vec((address(), 0..=128_u8), 0..40),
            clients in prop::collection::vec(address(), 1..40),
        ) {
            let given = given.into_iter().filter_map(|(address, prefix)| Network::new(address, prefix));
            let networks: Vec<Network> = given.collect();
            let allowed = Allowed::new(Some(&networks)).expect("a list");
            let edges = networks.iter().flat_map(|n| [n.first(), n.last()]);
            for client in clients.iter().copied().chain(edges) {
                let looked = networks.iter().any(|n| {
                    n.first().is_ipv6() == client.is_ipv6() && (n.first()..=n.last()).contains(&client)
                });
                prop_assert_eq!(allowed.has(client), looked, "{}", client);
            }
        }
    }
}
