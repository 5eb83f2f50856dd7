//! Errors that the kernel makes for nobody: a packet that is longer than the device by which the
//! host would send it.
//!
//! Owns the ICMP messages that say so (RFC 792, RFC 1191, RFC 4443 section 3.2), as a router on the
//! way would make them, until the receiver takes them. Sends nothing.

use crate::sys;
use rustix::{
    io::Errno,
    net::{
        connect, connect_unspec,
        sockopt::{ip_mtu, ipv6_mtu},
    },
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::OwnedFd,
};

/// Errors that wait for the receiver, who looks after each batch. What finds no room is said when
/// its sender repeats it.
const WAITING_MAX: usize = 64;
/// What of a packet is quoted: its headers, as far as ports and sequence number.
const QUOTE_BYTES: usize = 128;
const IPV4: usize = 20;
const IPV6: usize = 40;
const ICMP: usize = 8;
const HOPS: u8 = 64;

/// One message, and how many bytes of it there are.
type Message = (usize, [u8; IPV6 + ICMP + QUOTE_BYTES]);

/// The protocol of errors.
pub(crate) const fn protocol(v6: bool) -> u8 {
    if v6 { 58 } else { 1 }
}

/// Source and destination of a packet.
pub(crate) fn ends(ip: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let v4 = |at| Some(Ipv4Addr::from(*ip.get(at..)?.first_chunk::<4>()?));
    let v6 = |at| Some(Ipv6Addr::from(*ip.get(at..)?.first_chunk::<16>()?));
    match ip.first()? >> 4 {
        4 => Some((v4(12)?.into(), v4(16)?.into())),
        6 => Some((v6(8)?.into(), v6(24)?.into())),
        _ => None,
    }
}

/// Asks the kernel for the MTU of a path, as a raw socket that sends there would find it. Sends
/// nothing.
pub(crate) struct Paths {
    v4: OwnedFd,
    v6: Option<OwnedFd>,
}

impl Paths {
    pub(crate) fn open(v6: bool) -> io::Result<Self> {
        let open = |domain| sys::socket(domain, libc::SOCK_DGRAM, 0);
        Ok(Self { v4: open(libc::AF_INET)?, v6: v6.then(|| open(libc::AF_INET6)).transpose()? })
    }

    pub(crate) fn mtu(&self, to: IpAddr) -> Result<u32, Errno> {
        let socket = match to {
            IpAddr::V4(_) => &self.v4,
            IpAddr::V6(_) => self.v6.as_ref().ok_or(Errno::AFNOSUPPORT)?,
        };
        // Or it would go on from the address that the path before had.
        connect_unspec(socket)?;
        // Any port will do.
        connect(socket, &SocketAddr::new(to, 9))?;
        match to {
            IpAddr::V4(_) => ip_mtu(socket),
            IpAddr::V6(_) => ipv6_mtu(socket),
        }
    }
}

/// Errors that wait.
pub(crate) struct TooLong {
    waiting: Vec<Message>,
}

impl TooLong {
    pub(crate) fn new() -> Self {
        Self { waiting: Vec::with_capacity(WAITING_MAX) }
    }

    /// The kernel refused this packet for its length.
    pub(crate) fn note(&mut self, ip: &[u8], paths: &Paths) {
        if self.waiting.len() < WAITING_MAX
            && let Some((from, to)) = ends(ip)
            && let Ok(mtu) = paths.mtu(to)
            && (mtu as usize) < ip.len()
        {
            self.waiting.push(message(from, mtu, ip));
        }
    }

    /// Writes an error to the start of `out`; how many bytes it has.
    pub(crate) fn next_into(&mut self, out: &mut [u8]) -> Option<usize> {
        let (len, message) = self.waiting.pop()?;
        out.get_mut(..len)?.copy_from_slice(&message[..len]);
        Some(len)
    }
}

/// "Fragmentation needed" or "packet too big", from the host to itself, as its kernel has it.
fn message(of: IpAddr, mtu: u32, ip: &[u8]) -> Message {
    let mut bytes = [0; IPV6 + ICMP + QUOTE_BYTES];
    let quote = &ip[..ip.len().min(QUOTE_BYTES)];
    let header = match of {
        IpAddr::V4(_) => IPV4,
        IpAddr::V6(_) => IPV6,
    };
    let len = header + ICMP + quote.len();
    bytes[header + ICMP..len].copy_from_slice(quote);
    let icmp = &mut bytes[header..len];
    match of {
        IpAddr::V4(_) => {
            icmp[..2].copy_from_slice(&[3, 4]);
            let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
            icmp[6..8].copy_from_slice(&mtu.to_be_bytes());
        }
        IpAddr::V6(_) => {
            icmp[..2].copy_from_slice(&[2, 0]);
            icmp[4..8].copy_from_slice(&mtu.to_be_bytes());
        }
    }
    // Of ICMPv6 with the pseudo-header.
    let pseudo = match of {
        IpAddr::V4(_) => 0,
        IpAddr::V6(own) => 2 * sum(&own.octets()) + icmp.len() as u32 + u32::from(protocol(true)),
    };
    let checksum = !fold(pseudo + sum(icmp));
    icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
    match of {
        IpAddr::V4(own) => {
            let head = &mut bytes[..IPV4];
            head[0] = 0x45;
            head[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            head[8..10].copy_from_slice(&[HOPS, protocol(false)]);
            head[12..16].copy_from_slice(&own.octets());
            head[16..].copy_from_slice(&own.octets());
            let checksum = !fold(sum(head));
            head[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        IpAddr::V6(own) => {
            let head = &mut bytes[..IPV6];
            head[0] = 0x60;
            head[4..6].copy_from_slice(&((len - IPV6) as u16).to_be_bytes());
            head[6..8].copy_from_slice(&[protocol(true), HOPS]);
            head[8..24].copy_from_slice(&own.octets());
            head[24..].copy_from_slice(&own.octets());
        }
    }
    (len, bytes)
}

/// Of big-endian words, not folded: there are few.
fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2);
    words.map(|word| u32::from(word[0]) << 8 | u32::from(word.get(1).copied().unwrap_or(0))).sum()
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
