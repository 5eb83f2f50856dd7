//! Which clients somebody means: one connection, an address, or a network.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

/// `10.0.0.7`, `10.0.0.7:4711`, `10.0.0.0/24`, `fd00::/64`, `[fd00::7]:4711`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clients {
    address: IpAddr,
    /// Leading bits that count.
    prefix: u8,
    port: Option<u16>,
}

/// A text that names no clients.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` names no clients: expected an address (10.0.0.7), an address and port (10.0.0.7:4711, [fd00::7]:4711) or a network (10.0.0.0/24)"
)]
pub struct ClientsError(String);

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv6() { 128 } else { 32 }
}

/// The first `prefix` bits, in front.
fn network(address: IpAddr, prefix: u8) -> u128 {
    let all = match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)) << 96,
        IpAddr::V6(v6) => u128::from(v6),
    };
    let mask = u128::MAX.checked_shl(128 - u32::from(prefix));
    all & mask.unwrap_or(0)
}

impl Clients {
    /// Whether `client` is one of them.
    #[must_use]
    pub fn has(&self, client: SocketAddr) -> bool {
        client.is_ipv6() == self.address.is_ipv6()
            && self.port.is_none_or(|port| port == client.port())
            && network(client.ip(), self.prefix) == network(self.address, self.prefix)
    }
}

impl FromStr for Clients {
    type Err = ClientsError;

    fn from_str(text: &str) -> Result<Self, ClientsError> {
        let error = || ClientsError(text.to_owned());
        if let Ok(one) = text.parse::<SocketAddr>() {
            return Ok(Self {
                address: one.ip(),
                prefix: bits(one.ip()),
                port: Some(one.port()).filter(|port| *port != 0),
            });
        }
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| error())?;
        let prefix = match prefix {
            Some(prefix) => prefix.parse().map_err(|_| error())?,
            None => bits(address),
        };
        if prefix > bits(address) {
            return Err(error());
        }
        Ok(Self { address, prefix, port: None })
    }
}

impl fmt::Display for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.address, port).fmt(f),
            None if self.prefix == bits(self.address) => self.address.fmt(f),
            None => write!(f, "{}/{}", self.address, self.prefix),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_meant_by_an_address_a_port_and_a_network() {
        for (text, meant, others) in [
            ("10.0.0.7", "10.0.0.7:1", "10.0.0.8:1"),
            ("10.0.0.7:80", "10.0.0.7:80", "10.0.0.7:81"),
            ("10.0.0.0/24", "10.0.0.255:1", "10.0.1.0:1"),
            ("10.0.0.9/31", "10.0.0.8:1", "10.0.0.10:1"),
            ("0.0.0.0/0", "255.0.0.1:1", "[::]:1"),
            ("fd00::/64", "[fd00::ffff]:1", "[fd00:0:0:1::]:1"),
            ("::/0", "[fd00::1]:1", "1.2.3.4:1"),
            ("[fd00::7]:80", "[fd00::7]:80", "[fd00::7]:81"),
        ] {
            let clients: Clients = text.parse().expect(text);
            assert_eq!(clients.to_string(), text);
            assert!(clients.has(meant.parse().expect("an address")), "{text}");
            assert!(!clients.has(others.parse().expect("an address")), "{text}");
        }
        for text in ["", "pod", "10.0.0.0/33", "fd00::/129", "10.0.0.7:", "10.0.0.0/24:80", "/8"] {
            let error = text.parse::<Clients>().expect_err(text).to_string();
            assert!(error.contains("expected an address"), "{error}");
        }
    }
}
