//! What the caller asks for, and whether it can be had. Knows no kernel.

use crate::error::OpenError;
use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
    ops::RangeInclusive,
};

/// Frontends that one port can have; `FRONTENDS_MAX` in `bpf/match.h`.
pub const FRONTENDS_MAX: usize = 16_384;
/// Backends that one port can have; `BACKENDS_MAX` in `bpf/match.h`.
pub const BACKENDS_MAX: usize = 4_096;
/// Own addresses that one port can have; `OWN_ADDRESSES_MAX` in `bpf/match.h`.
pub const ADDRESSES_MAX: usize = 1_024;

/// Ethernet header bytes, which an MTU does not count.
pub(crate) const ETHERNET_BYTES: u32 = 14;

/// How frames come in and go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// AF_XDP, the program in the driver.
    Native,
    /// AF_XDP, the program after the kernel has made its socket buffer.
    Generic,
    /// AF_PACKET.
    Packet,
}

impl Mode {
    /// A fixed word for metrics and state.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Packet => "packet",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// Which mode to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModeChoice {
    /// The first that works of native, generic, packet.
    #[default]
    Auto,
    /// This or an error.
    Native,
    /// This or an error.
    Generic,
    /// This or an error.
    Packet,
}

impl ModeChoice {
    pub(crate) const fn candidates(self) -> &'static [Mode] {
        match self {
            Self::Auto => &[Mode::Native, Mode::Generic, Mode::Packet],
            Self::Native => &[Mode::Native],
            Self::Generic => &[Mode::Generic],
            Self::Packet => &[Mode::Packet],
        }
    }
}

/// Sizes and place of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Name of the interface, in the network namespace of the calling thread.
    pub interface: String,
    /// Which mode to use.
    pub mode: ModeChoice,
    /// Bytes that a callback may use of each buffer. The MTU plus 14 must fit.
    pub frame_bytes: u32,
    /// Buffers for AF_XDP, shared by all queues; 0: as many as the rings can hold.
    pub frames: u32,
    /// Entries of each receive ring; a power of two. The fill ring has twice as many.
    pub rx_ring: u32,
    /// Entries of each transmit and completion ring; a power of two.
    pub tx_ring: u32,
    /// Frames that one call of [`crate::Port::process`] takes from each queue.
    pub batch: u32,
    /// How long to look at the rings before sleeping; 0: never.
    pub busy_poll_us: u32,
    /// Take also what the kernel delivers to this host by other interfaces, and give it what is sent to
    /// [`crate::HOST_MAC`]: on a node's network.
    pub host: bool,
}

impl Config {
    /// Sizes that suit a pod with one interface of MTU 1500: 1,024 frames of burst per direction, in
    /// 4,161 buffers of 4 KiB.
    #[must_use]
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            mode: ModeChoice::Auto,
            frame_bytes: 2048,
            frames: 0,
            rx_ring: 1024,
            tx_ring: 1024,
            batch: 64,
            busy_poll_us: 0,
            host: false,
        }
    }

    /// Buffers with which no ring of `queues` queues can ever starve another.
    pub(crate) fn frames_needed(&self, queues: u32) -> u32 {
        // Each queue: twice the RX ring with the kernel for receiving, a full TX ring and a full completion
        // ring, and one batch in hand; plus the one that `Tx::frame` holds.
        (self.rx_ring * 2 + self.tx_ring * 2 + self.batch)
            .saturating_mul(queues)
            .saturating_add(1)
    }

    pub(crate) fn check(&self) -> Result<(), OpenError> {
        for (field, value) in [("rx_ring", self.rx_ring), ("tx_ring", self.tx_ring)] {
            if !value.is_power_of_two() || !(64..=65_536).contains(&value) {
                return Err(OpenError::Config {
                    field,
                    value: u64::from(value),
                    expected: "a power of two from 64 to 65536",
                });
            }
        }
        if self.batch == 0 || self.batch > self.rx_ring.min(self.tx_ring) {
            return Err(OpenError::Config {
                field: "batch",
                value: u64::from(self.batch),
                expected: "1 to the smaller of rx_ring and tx_ring",
            });
        }
        if !(256..=65_536).contains(&self.frame_bytes) {
            return Err(OpenError::Config {
                field: "frame_bytes",
                value: u64::from(self.frame_bytes),
                expected: "256 to 65536, and at least the MTU plus 14",
            });
        }
        Ok(())
    }
}

/// Which TCP packets, and which ICMP errors about them, are the dataplane's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steering {
    /// Addresses and ports that clients connect to.
    pub frontends: Vec<(IpAddr, u16)>,
    /// The dataplane's own addresses, to which backends answer.
    pub addresses: Vec<IpAddr>,
    /// The dataplane's own ports, to which backends answer.
    pub ports: RangeInclusive<u16>,
    /// Who answers there; `None`: whoever does. On a node's network the node has connections of its own, and of others that it translates.
    pub backends: Option<Vec<(IpAddr, u16)>>,
}

impl Steering {
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let refuse = |problem: String| Err(OpenError::Steering { problem });
        if self.ports.is_empty() || *self.ports.start() == 0 {
            return refuse(format!(
                "the port range {}-{} is empty or starts at 0",
                self.ports.start(),
                self.ports.end()
            ));
        }
        let backends = self.backends.as_ref().map_or(0, Vec::len);
        if backends > BACKENDS_MAX {
            return refuse(format!(
                "{backends} backends were given, at most {BACKENDS_MAX} are possible"
            ));
        }
        if self.frontends.len() > FRONTENDS_MAX || self.addresses.len() > ADDRESSES_MAX {
            return refuse(format!(
                "{} frontends and {} addresses were given, at most {FRONTENDS_MAX} and {ADDRESSES_MAX} are possible",
                self.frontends.len(),
                self.addresses.len()
            ));
        }
        let addresses = self.frontends.iter().map(|(address, _)| address);
        for address in addresses.chain(&self.addresses) {
            if address.is_unspecified() || address.is_multicast() {
                return refuse(format!("{address} is not an address that packets have"));
            }
        }
        Ok(())
    }
}

/// An address as the programs see it: IPv4 as `::ffff:a.b.c.d`.
pub(crate) fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_sizes_are_refused_by_name() {
        let good = Config::new("eth0");
        assert!(good.check().is_ok());
        type Change = fn(&mut Config);
        let cases: [(&str, Change); 7] = [
            ("rx_ring", |c| c.rx_ring = 1000),
            ("rx_ring", |c| c.rx_ring = 0),
            ("tx_ring", |c| c.tx_ring = 3),
            ("tx_ring", |c| c.tx_ring = 1 << 20),
            ("batch", |c| c.batch = 0),
            ("batch", |c| c.batch = 4096),
            ("frame_bytes", |c| c.frame_bytes = 100),
        ];
        for (field, change) in cases {
            let mut config = good.clone();
            change(&mut config);
            let message = config.check().expect_err(field).to_string();
            assert!(message.contains(field), "{message}");
        }
    }

    #[test]
    fn bad_steering_is_refused() {
        let good = Steering {
            frontends: vec![("10.0.0.1".parse().expect("address"), 80)],
            addresses: vec!["10.0.0.2".parse().expect("address")],
            ports: 20_000..=29_999,
            backends: None,
        };
        assert!(good.check().is_ok());
        let mut bad = good.clone();
        bad.frontends[0].0 = "0.0.0.0".parse().expect("address");
        assert!(bad.check().is_err());
        let mut bad = good.clone();
        bad.addresses[0] = "ff02::1".parse().expect("address");
        assert!(bad.check().is_err());
        for ports in [0..=1, RangeInclusive::new(2, 1)] {
            let mut bad = good.clone();
            bad.ports = ports;
            assert!(bad.check().is_err());
        }
    }
}
