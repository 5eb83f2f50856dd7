//! What tables refer to each other by: addresses, numbers of flows, legs.
//!
//! Owns their forms and nothing else, so that a table needs no other one for them.

use std::net::{IpAddr, Ipv4Addr};

/// An IP address as 16 bytes, IPv4 mapped (`::ffff:a.b.c.d`).
pub(crate) type Addr = [u8; 16];

/// Index of a flow in the table.
pub(crate) type FlowId = u32;

/// No flow, no leg, end of a chain.
pub(crate) const NONE: u32 = u32::MAX;

/// One leg: a backend and our port towards it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Leg {
    pub(crate) backend: u16,
    pub(crate) port: u16,
}

impl Leg {
    /// Port 0 is no leg.
    pub(crate) const NONE: Leg = Leg {
        backend: u16::MAX,
        port: 0,
    };

    #[inline]
    pub(crate) fn is_some(self) -> bool {
        self.port != 0
    }
}

/// An address in 16 bytes.
#[inline]
pub(crate) fn to_addr(address: IpAddr) -> Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// An IPv4 address in 16 bytes.
pub(crate) const fn mapped(address: u32) -> Addr {
    Ipv4Addr::from_bits(address).to_ipv6_mapped().octets()
}

/// And back; a mapped address is IPv4.
#[inline]
pub(crate) fn from_addr(address: &Addr) -> IpAddr {
    // As `to_canonical` does, but by whole words: it runs twice for each packet.
    let [high @ .., e, f, g, h, a, b, c, d] = *address;
    if u64::from_ne_bytes(high) == 0 && [e, f, g, h] == MAPPED {
        IpAddr::from([a, b, c, d])
    } else {
        IpAddr::from(*address)
    }
}

/// What stands between 64 zero bits and the IPv4 address in a mapped one (RFC 4291 section 2.5.5.2).
const MAPPED: [u8; 4] = [0, 0, 0xff, 0xff];

/// A slot of the table of backlogs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BacklogId(pub(crate) u16);

impl BacklogId {
    /// No slot.
    pub(crate) const NONE: BacklogId = BacklogId(u16::MAX);

    #[inline]
    pub(crate) fn is_some(self) -> bool {
        self != Self::NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_address_comes_back_as_its_canonical_form(bits in any::<u128>(), mapped in any::<bool>()) {
            let bits = if mapped { 0xffff << 32 | (bits & 0xffff_ffff) } else { bits };
            let address = std::net::Ipv6Addr::from_bits(bits);
            prop_assert_eq!(from_addr(&address.octets()), IpAddr::from(address).to_canonical());
        }
    }
}
