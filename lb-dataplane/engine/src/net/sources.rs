//! Where legs come from: our own addresses, each with the ports of the range.
//!
//! A leg has a number, which is its port where it comes from the first address. Those of the others
//! follow behind the range: `count` further for each address, past 65,535 from 1 on.
//!
//! Owns which address and port a number stands for. It knows nothing of which are used.

use baton_packet::Family;
use std::{net::IpAddr, ops::RangeInclusive};

/// All numbers but 0, which is no leg.
const NUMBERS: usize = 65_535;

/// Our addresses by family, and the range of ports.
pub(crate) struct Sources {
    /// IPv4 and IPv6; as many as have numbers.
    addresses: [Box<[IpAddr]>; 2],
    first: u16,
    count: u16,
}

impl Sources {
    /// `all`: legs come from each of the addresses, else only from the first of a family.
    pub(crate) fn new(addresses: &[IpAddr], all: bool, ports: &RangeInclusive<u16>) -> Self {
        let count = (usize::from(*ports.end()) + 1).saturating_sub(usize::from(*ports.start()));
        let most = if all { (NUMBERS / count.max(1)).max(1) } else { 1 };
        let of = |v6: bool| {
            let some = addresses.iter().copied().filter(|a| a.is_ipv6() == v6);
            some.take(most).collect()
        };
        Self {
            addresses: [of(false), of(true)],
            first: *ports.start(),
            count: count.min(NUMBERS) as u16,
        }
    }

    /// The address that legs to a family's backends come from where no route says otherwise.
    pub(crate) fn first(&self, v6: bool) -> Option<IpAddr> {
        self.addresses[usize::from(v6)].first().copied()
    }

    /// Whether legs come from this address.
    #[inline]
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        self.addresses[usize::from(address.is_ipv6())].contains(&address)
    }

    /// Whether an address and port of ours are a leg's.
    #[inline(always)]
    pub(crate) fn is_leg<F: Family>(&self, address: F::Address, port: u16) -> bool {
        let of_range = port.wrapping_sub(self.first) < self.count;
        let is = |own: &IpAddr| F::bits(*own) == Some(address);
        of_range && self.addresses[usize::from(F::IS_V6)].iter().any(is)
    }

    /// The port of a leg with this number, if it comes from the backend's first address.
    #[inline(always)]
    pub(crate) fn port_at_first(&self, number: u16) -> Option<u16> {
        (number.wrapping_sub(self.first) < self.count).then_some(number)
    }

    /// How many numbers a backend of the family has.
    pub(crate) fn numbers(&self, v6: bool) -> usize {
        usize::from(self.count) * self.addresses[usize::from(v6)].len().max(1)
    }

    /// The leg with this end, to a backend whose first address is `source`.
    #[inline]
    pub(crate) fn number(&self, source: Option<IpAddr>, end: (IpAddr, u16)) -> u16 {
        if source == Some(end.0) {
            return end.1;
        }
        self.further(source, end)
    }

    /// The same of a plain segment's end.
    #[inline(always)]
    pub(crate) fn number_of<F: Family>(
        &self,
        source: Option<IpAddr>,
        (address, port): (F::Address, u16),
    ) -> u16 {
        if source.and_then(F::bits) == Some(address) {
            return port;
        }
        self.further(source, (F::address(address), port))
    }

    #[cold]
    fn further(&self, source: Option<IpAddr>, (address, port): (IpAddr, u16)) -> u16 {
        let some = &self.addresses[usize::from(address.is_ipv6())];
        // The backend's first address, if it is one of ours, stands in the first one's place, and
        // that in its own.
        let wanted = match some.first() {
            Some(first) if *first == address => source,
            _ => Some(address),
        };
        let place = some.iter().position(|a| Some(*a) == wanted).unwrap_or(0);
        port.wrapping_add(self.count.wrapping_mul(place as u16))
    }

    /// The end of a leg's number, to a backend whose first address is `source`.
    #[inline]
    pub(crate) fn end(&self, source: IpAddr, number: u16) -> (IpAddr, u16) {
        let offset = number.wrapping_sub(self.first);
        if offset < self.count {
            return (source, number);
        }
        self.further_end(source, offset)
    }

    #[cold]
    fn further_end(&self, source: IpAddr, offset: u16) -> (IpAddr, u16) {
        let some = &self.addresses[usize::from(source.is_ipv6())];
        let address = match some.get(usize::from(offset / self.count)) {
            Some(address) if *address == source => some[0],
            Some(address) => *address,
            None => source,
        };
        (address, self.first + offset % self.count)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn ip(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    #[test]
    fn numbers_and_ends_are_the_same_whatever_comes_first() {
        let own = [ip(1), ip(2), ip(3), "fd00::1".parse().expect("an address")];
        for ports in [20_000..=29_999, 40_000..=60_000, 1..=40_000, 1..=u16::MAX] {
            let count = ports.clone().count();
            let sources = Sources::new(&own, true, &ports);
            let addresses = (65_535 / count).clamp(1, 3);
            assert_eq!(sources.numbers(false), addresses * count);
            assert_eq!(sources.numbers(true), count);
            // Of our own, and one of the host's that is none of ours.
            for source in [ip(1), ip(2), ip(9)] {
                let mut ends = HashSet::new();
                for n in 0..sources.numbers(false) {
                    let number = ports.start().wrapping_add(n as u16);
                    if number == 0 {
                        continue;
                    }
                    let end = sources.end(source, number);
                    assert!(ports.contains(&end.1));
                    assert!(ends.insert(end), "{end:?} twice");
                    assert_eq!(sources.number(Some(source), end), number, "{end:?}");
                }
                let (own, _) = sources.end(source, *ports.start());
                assert_eq!(own, source, "the first numbers are those of the first address");
            }
        }
    }

    #[test]
    fn one_address_has_ports_for_numbers() {
        let own = [ip(1), ip(2)];
        let sources = Sources::new(&own, false, &(20_000..=29_999));
        assert_eq!((sources.numbers(false), sources.numbers(true)), (10_000, 10_000));
        assert!(sources.contains(ip(1)) && !sources.contains(ip(2)));
        assert_eq!(sources.end(ip(1), 20_005), (ip(1), 20_005));
    }
}
