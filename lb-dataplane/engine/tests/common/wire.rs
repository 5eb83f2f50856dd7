//! Segments by hand: built and checked here byte by byte, so that the engine is not judged by its
//! own code.

use baton_packet::{Decoded, Flags, Mac, Segment, decode};
use std::net::{IpAddr, SocketAddr};

/// Everything that a test may want to say about a segment.
#[derive(Clone, Debug)]
pub struct Wire {
    pub src_mac: Mac,
    pub dst_mac: Mac,
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub seq: u32,
    pub ack: u32,
    pub flags: Flags,
    pub window: u16,
    pub options: Vec<u8>,
    pub data: Vec<u8>,
    pub ttl: u8,
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

/// The Internet checksum of RFC 1071, the slow and obvious way.
pub fn checksum(parts: &[&[u8]]) -> u16 {
    let bytes: Vec<u8> = parts.concat();
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Pseudo header for an upper-layer packet of `len` bytes.
pub fn pseudo(src: IpAddr, dst: IpAddr, protocol: u8, len: usize) -> Vec<u8> {
    let mut bytes = octets(src);
    bytes.extend(octets(dst));
    bytes.extend((len as u32).to_be_bytes());
    bytes.extend([0, 0, 0, protocol]);
    bytes
}

/// An Ethernet and IP header in front of `payload`.
pub fn packet(
    macs: (Mac, Mac),
    (src, dst): (IpAddr, IpAddr),
    protocol: u8,
    ttl: u8,
    payload: &[u8],
) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend(macs.1.0);
    frame.extend(macs.0.0);
    if src.is_ipv4() {
        frame.extend([0x08, 0x00]);
        let mut ip = vec![0x45, 0];
        ip.extend((20 + payload.len() as u16).to_be_bytes());
        ip.extend([0, 0, 0x40, 0, ttl, protocol, 0, 0]);
        ip.extend(octets(src));
        ip.extend(octets(dst));
        let sum = checksum(&[&ip]);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        frame.extend(ip);
    } else {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend((payload.len() as u16).to_be_bytes());
        frame.extend([protocol, ttl]);
        frame.extend(octets(src));
        frame.extend(octets(dst));
    }
    frame.extend(payload);
    frame
}

impl Wire {
    /// A segment without options and data.
    pub fn new(
        (src_mac, dst_mac): (Mac, Mac),
        (from, to): (SocketAddr, SocketAddr),
        (seq, ack): (u32, u32),
        flags: Flags,
    ) -> Self {
        Self {
            src_mac,
            dst_mac,
            from,
            to,
            seq,
            ack,
            flags,
            window: 501,
            options: Vec::new(),
            data: Vec::new(),
            ttl: 64,
        }
    }

    /// The frame, with right checksums.
    pub fn build(&self) -> Vec<u8> {
        let mut options = self.options.clone();
        while !options.len().is_multiple_of(4) {
            options.push(1);
        }
        let mut tcp = Vec::new();
        tcp.extend(self.from.port().to_be_bytes());
        tcp.extend(self.to.port().to_be_bytes());
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.push(((20 + options.len()) as u8 / 4) << 4);
        tcp.push(self.flags.0);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(&options);
        tcp.extend(&self.data);
        let (src, dst) = (self.from.ip(), self.to.ip());
        let sum = checksum(&[&pseudo(src, dst, 6, tcp.len()), &tcp]);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        packet((self.src_mac, self.dst_mac), (src, dst), 6, self.ttl, &tcp)
    }
}

/// An ICMP error, with right checksums: its type and code, the four bytes behind the checksum, and
/// what it quotes.
pub fn icmp(
    macs: (Mac, Mac),
    (from, to): (IpAddr, IpAddr),
    ttl: u8,
    kind: [u8; 2],
    rest: &[u8],
    quoted: &[u8],
) -> Vec<u8> {
    let mut message = [&kind, &[0; 2], rest, quoted].concat();
    let (protocol, header) =
        if from.is_ipv6() { (58, pseudo(from, to, 58, message.len())) } else { (1, Vec::new()) };
    let sum = checksum(&[&header, &message]);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    packet(macs, (from, to), protocol, ttl, &message)
}

/// Makes the checksum of a changed IPv4 header right.
pub fn settle_ipv4(frame: &mut [u8]) {
    let header = 14..14 + usize::from(frame.get(14).map_or(0, |byte| byte & 15)) * 4;
    if header.len() >= 20
        && frame[12..14] == [8, 0]
        && let Some(header) = frame.get_mut(header)
    {
        header[10..12].fill(0);
        let sum = checksum(&[header]);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Makes the checksum of a changed TCP segment right, or `partial`: as a veth peer hands it over
/// with checksum offload on, only the pseudo header is summed. What decodes as none stays as it is.
pub fn settle_tcp(frame: &mut [u8], partial: bool) {
    let Ok(Decoded::Tcp(s)) = decode(frame) else {
        return;
    };
    let (at, end) = (usize::from(s.l4), usize::from(s.end));
    frame[at + 16..at + 18].fill(0);
    let header = pseudo(s.src, s.dst, 6, end - at);
    let sum = if partial { !checksum(&[&header]) } else { checksum(&[&header, &frame[at..end]]) };
    frame[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
}

/// Decodes a frame that must hold a TCP segment.
pub fn tcp(frame: &[u8]) -> Segment {
    match decode(frame) {
        Ok(Decoded::Tcp(segment)) => segment,
        other => panic!("not a TCP segment: {other:?}"),
    }
}

/// Asserts that the TCP checksum and, with IPv4, the header checksum are right.
pub fn assert_checksums(frame: &[u8], segment: &Segment) {
    let tcp = &frame[usize::from(segment.l4)..usize::from(segment.end)];
    let sum = checksum(&[&pseudo(segment.src, segment.dst, 6, tcp.len()), tcp]);
    assert_eq!(sum, 0, "TCP checksum of {segment:?}");
    if !segment.is_v6() {
        let ip = &frame[usize::from(segment.l3)..usize::from(segment.l4)];
        assert_eq!(checksum(&[ip]), 0, "IPv4 checksum");
    }
}

/// `NOP NOP` and a timestamps option.
pub fn stamps(value: u32, echo: u32) -> Vec<u8> {
    let mut bytes = vec![1, 1, 8, 10];
    bytes.extend(value.to_be_bytes());
    bytes.extend(echo.to_be_bytes());
    bytes
}
