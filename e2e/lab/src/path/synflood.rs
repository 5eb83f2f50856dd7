//! SYNs from addresses that nobody has, about 90,000 a second.
//!
//! Owns the packets' making and the pace. It never sends anything but SYNs, and only from
//! 10.128.0.0/9, which no lab uses.

use crate::node::netns::Namespace;
use anyhow::{Context, Result, ensure};
use rustix::net::{
    AddressFamily, Protocol, SendFlags, SocketFlags, SocketType, sendto, socket_with,
};
use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    num::NonZeroU32,
    ops::Range,
    os::fd::OwnedFd,
    thread,
    time::Duration,
};

/// `IPPROTO_RAW`: the sender writes the IP header.
const IPPROTO_RAW: NonZeroU32 = NonZeroU32::new(255).expect("not 0");
/// First address of the senders.
const FIRST: u32 = 0x0a80_0000;
/// Addresses there.
const ADDRESSES: u32 = 1 << 23;
/// Sent at once: fewer than the 256 frames that the queue of a veth holds (drivers/net/veth.c,
/// VETH_RING_SIZE).
const BURST: usize = 100;
/// Between two bursts, so that what is shown is who receives them and not who overruns the node's
/// queues.
const PAUSE: Duration = Duration::from_millis(1);
const IP_BYTES: usize = 20;
/// Header and the MSS option.
const TCP_BYTES: usize = 24;

/// A sender of SYNs to one address and port.
#[derive(Debug)]
pub struct SynFlood {
    socket: OwnedFd,
    to: SocketAddrV4,
}

impl SynFlood {
    /// Opens it in `namespace`; usable from any thread.
    ///
    /// # Errors
    /// Without CAP_NET_RAW, or for an IPv6 address.
    pub fn open(namespace: &Namespace, to: SocketAddr) -> Result<Self> {
        let SocketAddr::V4(to) = to else {
            anyhow::bail!("{to} is not IPv4");
        };
        let raw = Some(Protocol::from_raw(IPPROTO_RAW));
        let socket = namespace.run(|| {
            let flags = SocketFlags::CLOEXEC;
            socket_with(AddressFamily::INET, SocketType::RAW, flags, raw)
        })??;
        Ok(Self { socket, to })
    }

    /// Sends the SYNs of these numbers. Each number has an address and a port of its own.
    ///
    /// # Errors
    /// If the kernel refuses one.
    pub fn send(&self, numbers: Range<u32>) -> Result<()> {
        ensure!(numbers.end <= ADDRESSES, "there are {ADDRESSES} addresses");
        for (sent, number) in numbers.enumerate() {
            if sent % BURST == BURST - 1 {
                thread::sleep(PAUSE);
            }
            let packet = syn(number, self.to);
            let sent = sendto(&self.socket, &packet, SendFlags::empty(), &self.to);
            sent.context("sending a SYN")?;
        }
        Ok(())
    }
}

/// An IPv4 packet with a SYN. The kernel fills in the sum of the IP header (raw(7)).
fn syn(number: u32, to: SocketAddrV4) -> [u8; IP_BYTES + TCP_BYTES] {
    let from = Ipv4Addr::from(FIRST + number).octets();
    let port = 1_024 + (number % 60_000) as u16;
    // Far apart, as random ones would be.
    let seq = number.wrapping_mul(0x9e37_79b9);
    let mut packet = [0; IP_BYTES + TCP_BYTES];
    let (ip, tcp) = packet.split_at_mut(IP_BYTES);
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&((IP_BYTES + TCP_BYTES) as u16).to_be_bytes());
    ip[8] = 64;
    ip[9] = 6;
    ip[12..16].copy_from_slice(&from);
    ip[16..20].copy_from_slice(&to.ip().octets());
    tcp[..2].copy_from_slice(&port.to_be_bytes());
    tcp[2..4].copy_from_slice(&to.port().to_be_bytes());
    tcp[4..8].copy_from_slice(&seq.to_be_bytes());
    // Six words of header; SYN; the largest window; MSS 1460.
    tcp[12] = 6 << 4;
    tcp[13] = 2;
    tcp[14..16].copy_from_slice(&u16::MAX.to_be_bytes());
    tcp[20..24].copy_from_slice(&[2, 4, 5, 0xb4]);
    // RFC 9293 section 3.1: the pseudo-header has the addresses, the protocol and the length.
    let pseudo = sum(&ip[12..20]) + 6 + TCP_BYTES as u32;
    let folded = fold(pseudo + sum(tcp));
    tcp[16..18].copy_from_slice(&(!folded).to_be_bytes());
    packet
}

fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks_exact(2);
    words
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum()
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_right_and_senders_differ() {
        let to = SocketAddrV4::new(Ipv4Addr::new(10, 77, 100, 2), 80);
        for number in [0, 1, 59_999, 60_000, 199_999] {
            let packet = syn(number, to);
            let (ip, tcp) = packet.split_at(IP_BYTES);
            let all = sum(&ip[12..20]) + 6 + TCP_BYTES as u32 + sum(tcp);
            assert_eq!(fold(all), 0xffff, "{number}");
        }
        assert_ne!(syn(0, to)[12..16], syn(1, to)[12..16]);
    }
}
