//! What tables refer to each other by: addresses, numbers of flows, legs.
//!
//! Owns their forms and nothing else, so that a table needs no other one for them.

use baton_packet::{Family, V4, V6};
use std::net::{IpAddr, Ipv4Addr};

/// An IP address, IPv4 mapped (`::ffff:a.b.c.d`), as two integers: moved and compared in registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Addr {
    /// The first 64 bits; 0 of an IPv4 address.
    pub(crate) high: u64,
    pub(crate) low: u64,
}

/// What stands between 64 zero bits and the IPv4 address in a mapped one (RFC 4291 section
/// 2.5.5.2).
const MAPPED: u64 = 0xffff << 32;

impl Addr {
    /// The last 32 bits: all of a mapped address that is not the same in each.
    #[inline]
    pub(crate) const fn v4(self) -> u32 {
        self.low as u32
    }

    #[inline]
    pub(crate) const fn is_v6(self) -> bool {
        self.high != 0 || self.low >> 32 != MAPPED >> 32
    }

    /// In the order of the wire.
    pub(crate) const fn octets(self) -> [u8; 16] {
        ((self.high as u128) << 64 | self.low as u128).to_be_bytes()
    }

    /// From the order of the wire.
    pub(crate) const fn from_octets(octets: [u8; 16]) -> Self {
        let bits = u128::from_be_bytes(octets);
        Self { high: (bits >> 64) as u64, low: bits as u64 }
    }
}

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
    pub(crate) const NONE: Leg = Leg { backend: u16::MAX, port: 0 };

    #[inline]
    pub(crate) fn is_some(self) -> bool {
        self.port != 0
    }
}

/// An address as tables have it.
#[inline]
pub(crate) fn to_addr(address: IpAddr) -> Addr {
    match address {
        IpAddr::V4(v4) => mapped(v4.to_bits()),
        IpAddr::V6(v6) => Addr::from_octets(v6.octets()),
    }
}

/// A family whose addresses stand in tables.
pub(crate) trait Tabled: Family {
    /// An address as tables have it.
    fn addr(bits: Self::Address) -> Addr;

    /// And back, of one of this family.
    fn of(addr: Addr) -> Self::Address;
}

impl Tabled for V4 {
    #[inline(always)]
    fn addr(bits: u32) -> Addr {
        mapped(bits)
    }

    #[inline(always)]
    fn of(addr: Addr) -> u32 {
        addr.v4()
    }
}

impl Tabled for V6 {
    #[inline(always)]
    fn addr(bits: u128) -> Addr {
        Addr { high: (bits >> 64) as u64, low: bits as u64 }
    }

    #[inline(always)]
    fn of(addr: Addr) -> u128 {
        u128::from(addr.high) << 64 | u128::from(addr.low)
    }
}

/// An IPv4 address as tables have it.
#[inline]
pub(crate) const fn mapped(address: u32) -> Addr {
    Addr { high: 0, low: MAPPED | address as u64 }
}

/// And back; a mapped address is IPv4.
#[inline]
pub(crate) fn from_addr(address: Addr) -> IpAddr {
    // As `to_canonical` does.
    if address.is_v6() { address.octets().into() } else { Ipv4Addr::from_bits(address.v4()).into() }
}

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
            let bits = if mapped { u128::from(MAPPED) | (bits & 0xffff_ffff) } else { bits };
            let address = std::net::Ipv6Addr::from_bits(bits);
            prop_assert_eq!(from_addr(to_addr(address.into())), IpAddr::from(address).to_canonical());
        }
    }
}
