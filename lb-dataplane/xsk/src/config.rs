//! What the caller asks for, and whether it can be had. Knows no kernel.
//!
//! # Decisions
//!
//! - **The buffers of a queue take 8 MB at most, for each worker**: 3,265 of 2 KiB, 2,048 in and
//!   512 out, as what waits to leave is sent with every batch. In copy mode the kernel holds no
//!   buffers of its own, so as many as the RX ring has suffice with it. With an MTU above 1,778
//!   half as many of 4 KiB. Before, it was 33.8 MB, and 32 queues did not fit the chart's memory
//!   limit.

use crate::{
    abi,
    error::OpenError,
    mode::{Mode, ModeChoice},
};
use std::{
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

/// The larger of AF_XDP's two sizes of a buffer: it never crosses a page.
pub(crate) const CHUNK_BYTES_MAX: u32 = 4096;
/// Free buffers that a worker has for itself at most: two batches.
pub(crate) const CACHE: usize = 128;
/// Entries of a ring at least.
const RING_MIN: u32 = 64;
/// Bytes of a frame that fit the smaller buffer: an MTU of up to 1,778.
pub(crate) const FRAME_BYTES: u32 = abi::UMEM_CHUNK_BYTES_MIN - abi::XDP_PACKET_HEADROOM;
/// Bytes of a frame that fit the larger one: an MTU of up to 3,826.
pub(crate) const XDP_FRAME_BYTES_MAX: u32 = CHUNK_BYTES_MAX - abi::XDP_PACKET_HEADROOM;
/// The largest frame of packet mode: no Ethernet card has an MTU above 16,110.
pub(crate) const FRAME_BYTES_MAX: u32 = 16_384;
/// What the buffers of one queue may take: 32 queues are 256 MB of the chart's 1 GiB.
pub const QUEUE_BYTES_MAX: usize = 8_000_000;

/// How many threads share the frames of an interface. Only native mode serves more than one: the
/// kernel's copy into sockets that share a queue is safe in generic mode only since 2025
/// (CVE-2025-37920), and packet sockets have no steering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// So many where the mode allows it, else one.
    UpTo(u32),
    /// So many or an error.
    Exactly(u32),
}

impl Workers {
    /// The number.
    #[must_use]
    pub const fn count(self) -> u32 {
        match self {
            Self::UpTo(count) | Self::Exactly(count) => count,
        }
    }
}

/// Workers of a port at most; `WORKERS_MAX` in `bpf/steer.bpf.c`. Sockets of an interface are as
/// many for each queue, and its softirqs need cores too.
pub const WORKERS_MAX: u32 = 16;

/// Sizes and place of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Name of the interface, in the network namespace of the calling thread.
    pub interface: String,
    /// Which mode to use.
    pub mode: ModeChoice,
    /// Threads that share its frames.
    pub workers: Workers,
    /// Buffers for AF_XDP, shared by all queues; 0: as many as the rings can hold.
    pub frames: u32,
    /// Entries of each receive and fill ring; a power of two. Half of it where the MTU needs
    /// buffers of 4 KiB instead of 2.
    pub rx_ring: u32,
    /// Entries of each transmit and completion ring; a power of two. Half of it likewise.
    pub tx_ring: u32,
    /// Frames that one call of [`crate::Port::process`] takes from each queue.
    pub batch: u32,
    /// How long to look at the rings before sleeping; 0: never.
    pub busy_poll_us: u32,
    /// Take also what the kernel delivers to this host by other interfaces, and give it what is
    /// sent to
    /// [`crate::HOST_MAC`]: on a node's network.
    pub host: bool,
}

impl Config {
    /// Sizes that suit most: 2,048 frames of burst in, which are 2.5 ms of a 10 Gbit/s line, and
    /// 512 out, as whatever waits there is sent with every batch. In 3,265 buffers of 2 KiB: 6.7
    /// MB.
    #[must_use]
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            mode: ModeChoice::Auto,
            workers: Workers::UpTo(1),
            frames: 0,
            rx_ring: 2048,
            tx_ring: 512,
            batch: 64,
            busy_poll_us: 0,
            host: false,
        }
    }

    /// Buffers with which no ring of `queues` queues can ever starve another, and no worker that is
    /// held up the others.
    pub(crate) fn frames_needed(&self, queues: u32) -> u32 {
        let workers = self.workers.count();
        // Each queue, for each worker: one RX ring of them with the kernel for receiving (it
        // copies, so it holds none of its own), a full TX ring, and one batch in hand; and a full
        // completion ring. Each worker: what it has for itself, and the one that `Tx::frame` holds.
        ((self.rx_ring + self.tx_ring + self.batch) * workers + self.completion_ring())
            .saturating_mul(queues)
            .saturating_add((CACHE as u32 + 1) * workers)
    }

    /// Entries of a queue's fill ring: all that may be with the kernel, or frames of a worker that
    /// stands still would use up those that nobody else fills up while he sleeps.
    pub(crate) fn fill_ring(&self) -> u32 {
        (self.rx_ring * self.workers.count()).next_power_of_two()
    }

    /// Entries of a queue's completion ring, which all workers' TX rings lead to.
    pub(crate) fn completion_ring(&self) -> u32 {
        (self.tx_ring * self.workers.count()).next_power_of_two()
    }

    /// The same with rings that take no more memory in buffers of this size.
    pub(crate) fn with_chunks_of(&self, chunk_bytes: u32) -> Self {
        let half = chunk_bytes > abi::UMEM_CHUNK_BYTES_MIN;
        let ring = |entries: u32| match half {
            true => (entries / 2).max(RING_MIN),
            false => entries,
        };
        let (rx_ring, tx_ring) = (ring(self.rx_ring), ring(self.tx_ring));
        Self { rx_ring, tx_ring, batch: self.batch.min(rx_ring).min(tx_ring), ..self.clone() }
    }

    /// How many workers a mode serves of those that are asked for.
    pub(crate) fn workers_in(&self, mode: Mode) -> Result<Workers, OpenError> {
        let here = if self.host {
            "on a node's own network".to_owned()
        } else if mode == Mode::Native {
            return Ok(self.workers);
        } else {
            format!("in {mode} mode")
        };
        match self.workers {
            Workers::Exactly(workers @ 2..) => Err(OpenError::Workers {
                workers,
                here,
                then: if self.host { "" } else { ", or use native mode" },
            }),
            Workers::UpTo(_) | Workers::Exactly(_) => Ok(Workers::UpTo(1)),
        }
    }

    pub(crate) fn check(&self) -> Result<(), OpenError> {
        for (field, value) in [("rx_ring", self.rx_ring), ("tx_ring", self.tx_ring)] {
            if !value.is_power_of_two() || !(RING_MIN..=65_536).contains(&value) {
                return Err(OpenError::Config {
                    field,
                    value: u64::from(value),
                    expected: "a power of two from 64 to 65536",
                });
            }
        }
        if !(1..=WORKERS_MAX).contains(&self.workers.count()) {
            return Err(OpenError::Config {
                field: "workers",
                value: u64::from(self.workers.count()),
                expected: "1 to 16",
            });
        }
        if self.batch == 0 || self.batch > self.rx_ring.min(self.tx_ring) {
            return Err(OpenError::Config {
                field: "batch",
                value: u64::from(self.batch),
                expected: "1 to the smaller of rx_ring and tx_ring",
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
    /// More of them, at which all connections of a client's address are one worker's. Once an end
    /// is steered, it stays among these or among the others.
    pub by_address: Vec<(IpAddr, u16)>,
    /// The dataplane's own addresses, to which backends answer.
    pub addresses: Vec<IpAddr>,
    /// The dataplane's own ports, to which backends answer.
    pub ports: RangeInclusive<u16>,
    /// Who answers there; `None`: whoever does. On a node's network the node has connections of its
    /// own, and of others that it translates.
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
        let frontends = self.frontends.len() + self.by_address.len();
        if frontends > FRONTENDS_MAX || self.addresses.len() > ADDRESSES_MAX {
            return refuse(format!(
                "{} frontends and {} addresses were given, at most {FRONTENDS_MAX} and {ADDRESSES_MAX} are possible",
                frontends,
                self.addresses.len()
            ));
        }
        let ends = self.frontends.iter().chain(&self.by_address);
        let addresses = ends.map(|(address, _)| address);
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
        let cases: [(&str, Change); 8] = [
            ("rx_ring", |c| c.rx_ring = 1000),
            ("rx_ring", |c| c.rx_ring = 0),
            ("tx_ring", |c| c.tx_ring = 3),
            ("tx_ring", |c| c.tx_ring = 1 << 20),
            ("batch", |c| c.batch = 0),
            ("batch", |c| c.batch = 4096),
            ("workers", |c| c.workers = Workers::UpTo(0)),
            ("workers", |c| c.workers = Workers::Exactly(17)),
        ];
        for (field, change) in cases {
            let mut config = good.clone();
            change(&mut config);
            let message = config.check().expect_err(field).to_string();
            assert!(message.contains(field), "{message}");
        }
    }

    #[test]
    fn the_buffers_of_a_queue_take_at_most_8_mb() {
        // Descriptors have 16 bytes, addresses 8.
        let bytes = |config: &Config, chunk_bytes: u32| {
            let rings = config.rx_ring * (16 + 8) + config.tx_ring * (16 + 8);
            (config.frames_needed(1) * chunk_bytes + rings) as usize
        };
        let config = Config::new("eth0");
        assert_eq!(config.frames_needed(1), 3_265);
        for chunk_bytes in [abi::UMEM_CHUNK_BYTES_MIN, CHUNK_BYTES_MAX] {
            let fitted = config.with_chunks_of(chunk_bytes);
            assert!(fitted.check().is_ok());
            let bytes = bytes(&fitted, chunk_bytes);
            assert!(bytes <= QUEUE_BYTES_MAX, "{bytes} with {chunk_bytes}");
        }
        assert_eq!(config.with_chunks_of(2048), config);
        assert_eq!(config.with_chunks_of(4096).frames_needed(1), 1_729);
    }

    #[test]
    fn bad_steering_is_refused() {
        let good = Steering {
            frontends: vec![("10.0.0.1".parse().expect("address"), 80)],
            addresses: vec!["10.0.0.2".parse().expect("address")],
            by_address: Vec::new(),
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
