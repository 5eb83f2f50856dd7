//! A network of addresses, as clients are named by in a policy's `allowFrom`.
//!
//! Owns how one is written and read. What is done with it is the reader's.

use crate::text::shortened;
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

/// Addresses that begin alike, written `10.0.0.0/8` or `fd00::/64`; one address alone is read as
/// the network of that address. Bits behind the prefix are 0, so that equal networks are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

/// Bits of an address of this family.
const fn width(address: IpAddr) -> u8 {
    if address.is_ipv6() { 128 } else { 32 }
}

impl Network {
    /// The network of the first `prefix` bits of an address: up to 32 for IPv4, up to 128 for IPv6;
    /// none with more. Bits behind them are ignored.
    #[must_use]
    pub fn new(address: IpAddr, prefix: u8) -> Option<Self> {
        let behind = u32::from(width(address).checked_sub(prefix)?);
        let address = match address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(behind).unwrap_or(0);
                Ipv4Addr::from_bits(v4.to_bits() & mask).into()
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(behind).unwrap_or(0);
                Ipv6Addr::from_bits(v6.to_bits() & mask).into()
            }
        };
        Some(Self { address, prefix })
    }

    /// The network of one address. An IPv4 address in IPv6 clothes (RFC 4291 section 2.5.5.2) is
    /// that IPv4 address.
    #[must_use]
    pub fn host(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self { prefix: width(address), address }
    }

    /// The first address.
    #[must_use]
    pub fn first(self) -> IpAddr {
        self.address
    }

    /// The last address.
    #[must_use]
    pub fn last(self) -> IpAddr {
        let prefix = u32::from(self.prefix);
        match self.address {
            IpAddr::V4(v4) => {
                let behind = u32::MAX.checked_shr(prefix).unwrap_or(0);
                Ipv4Addr::from_bits(v4.to_bits() | behind).into()
            }
            IpAddr::V6(v6) => {
                let behind = u128::MAX.checked_shr(prefix).unwrap_or(0);
                Ipv6Addr::from_bits(v6.to_bits() | behind).into()
            }
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || {
            format!(
                "`{}` is not a network: expected as 192.0.2.0/24, 2001:db8::/32 or 192.0.2.1",
                shortened(text)
            )
        };
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| refused())?;
        if address.to_canonical() != address {
            return Err(format!(
                "`{}` is an IPv4 network written as IPv6: expected as 192.0.2.0/24",
                shortened(text)
            ));
        }
        let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        let prefix = match prefix {
            Some(prefix) if digits(prefix) => prefix.parse().map_err(|_| refused())?,
            Some(_) => return Err(refused()),
            None => width(address),
        };
        Self::new(address, prefix).ok_or_else(refused)
    }
}

impl Serialize for Network {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_have_one_form_each() {
        for (text, form, last) in [
            ("10.1.2.3/8", "10.0.0.0/8", "10.255.255.255"),
            ("10.1.2.3", "10.1.2.3/32", "10.1.2.3"),
            ("0.0.0.0/0", "0.0.0.0/0", "255.255.255.255"),
            ("10.0.0.9/31", "10.0.0.8/31", "10.0.0.9"),
            ("fd00::7/64", "fd00::/64", "fd00::ffff:ffff:ffff:ffff"),
            ("FD00::7", "fd00::7/128", "fd00::7"),
            ("::/0", "::/0", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ] {
            let network: Network = text.parse().expect(text);
            assert_eq!(network.to_string(), form);
            assert_eq!(network.last().to_string(), last);
            assert_eq!(network.to_string().parse(), Ok(network));
        }
        let mapped = "::ffff:10.0.0.7".parse().expect("an address");
        assert_eq!(Network::host(mapped).to_string(), "10.0.0.7/32");
    }

    #[test]
    fn other_texts_are_refused_with_what_was_expected() {
        for text in [
            "",
            "pod",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0/8",
            "/8",
            "fd00::/129",
            "fd00::/256",
            "::ffff:10.0.0.0/104",
        ] {
            let error = text.parse::<Network>().expect_err(text);
            assert!(error.contains("expected as 192.0.2.0/24"), "{error}");
        }
    }
}
