//! TCP segments and adoption messages, written by hand from docs/adoption-wire.md and RFC 9293, as
//! a second opinion.

use siphasher::sip::SipHasher24;
use std::{
    hash::Hasher,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::atomic::{AtomicU64, Ordering},
};

/// The number of the namespace that messages are for: that of the lab whose adopter was attached
/// last.
pub static NAMESPACE: AtomicU64 = AtomicU64::new(0);

pub const ACK: u8 = 0x10;
pub const PSH_ACK: u8 = 0x18;
pub const RST: u8 = 0x04;
pub const RST_ACK: u8 = 0x14;
pub const FIN_ACK: u8 = 0x11;
pub const SYN: u8 = 0x02;

pub const ADOPT: u16 = 0xba70;
pub const PROBE: u16 = 0xba71;
pub const ANSWER: u16 = 0xba72;
pub const FORGET: u16 = 0xba73;
pub const RELEASE: u16 = 0xba74;
pub const TRANSFER: u16 = 0xba75;
pub const CLIENT_BLOCK: u16 = 0xba76;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
}

/// What is in the checksum field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// Right.
    Full,
    /// Left to the device, and the pseudo-header's sum is right.
    Partial,
    Wrong,
}

#[derive(Clone, Debug)]
pub struct Received {
    pub segment: Segment,
    pub checksum: Checksum,
    pub ttl: u8,
    pub urgent: u16,
}

/// The fields of the option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    pub exid: u16,
    pub mss: u16,
    pub scales: u8,
    pub flags: u8,
    pub server_timestamp: u32,
    pub tsval: u32,
    pub tsecr: u32,
    pub namespace: u64,
}

pub const SCALING: u8 = 1;
pub const SACK: u8 = 2;
pub const TIMESTAMPS: u8 = 4;

impl Message {
    /// An adoption with all options, key epoch 1.
    pub fn adopt() -> Self {
        Self {
            exid: ADOPT,
            mss: 1400,
            scales: 0x79,
            flags: SCALING | SACK | TIMESTAMPS | 1 << 4,
            server_timestamp: 5_000_000,
            tsval: 700_000,
            tsecr: 4_999_990,
            namespace: NAMESPACE.load(Ordering::Relaxed),
        }
    }

    pub fn probe() -> Self {
        Self { exid: PROBE, namespace: 0, ..Self::adopt() }
    }

    pub fn forget() -> Self {
        Self {
            exid: FORGET,
            mss: 0,
            scales: 0,
            flags: 1 << 4,
            server_timestamp: 0,
            tsval: 0,
            tsecr: 0,
            ..Self::adopt()
        }
    }

    pub fn release() -> Self {
        Self { exid: RELEASE, ..Self::forget() }
    }

    pub fn transfer() -> Self {
        Self { exid: TRANSFER, ..Self::forget() }
    }

    /// The same, for the lab whose adopter was attached last.
    pub fn here(self) -> Self {
        Self { namespace: NAMESPACE.load(Ordering::Relaxed), ..self }
    }

    pub fn epoch(self, epoch: u8) -> Self {
        Self { flags: self.flags & 0x0f | epoch << 4, ..self }
    }

    /// How far what it is about is behind its number on the wire.
    pub fn in_front(&self) -> u32 {
        u32::from(matches!(self.exid, RELEASE | TRANSFER))
    }

    /// The segment that carries it, tagged.
    pub fn segment(
        &self,
        from: SocketAddr,
        to: SocketAddr,
        seq: u32,
        ack: u32,
        key: &[u8; 16],
    ) -> Segment {
        let (window, seq) = (500, seq.wrapping_sub(self.in_front()));
        let tag = self.tag(from, to, seq, ack, window, key);
        self.segment_with_tag(from, to, seq, ack, tag)
    }

    pub fn segment_with_tag(
        &self,
        from: SocketAddr,
        to: SocketAddr,
        seq: u32,
        ack: u32,
        tag: u64,
    ) -> Segment {
        let mut options = vec![253, 28];
        options.extend(self.exid.to_be_bytes());
        options.extend(self.mss.to_be_bytes());
        options.extend([self.scales, self.flags]);
        options.extend(self.server_timestamp.to_be_bytes());
        options.extend(tag.to_be_bytes());
        options.extend(self.namespace.to_be_bytes());
        options.extend(timestamps(self.tsval, self.tsecr));
        Segment {
            from,
            to,
            seq,
            ack,
            flags: if self.exid == FORGET { SYN } else { ACK },
            window: 500,
            options,
            payload: Vec::new(),
        }
    }

    pub fn tag(
        &self,
        from: SocketAddr,
        to: SocketAddr,
        seq: u32,
        ack: u32,
        window: u16,
        key: &[u8; 16],
    ) -> u64 {
        let mut bytes = Vec::with_capacity(72);
        for address in [from.ip(), to.ip()] {
            bytes.extend(match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            });
        }
        bytes.extend(from.port().to_be_bytes());
        bytes.extend(to.port().to_be_bytes());
        bytes.extend(seq.to_be_bytes());
        bytes.extend(ack.to_be_bytes());
        bytes.extend(self.exid.to_be_bytes());
        bytes.extend(self.mss.to_be_bytes());
        bytes.extend([self.scales, self.flags]);
        bytes.extend(window.to_be_bytes());
        bytes.extend(self.server_timestamp.to_be_bytes());
        bytes.extend(self.tsval.to_be_bytes());
        bytes.extend(self.tsecr.to_be_bytes());
        bytes.extend(self.namespace.to_be_bytes());
        assert_eq!(bytes.len(), 72);
        let mut hasher = SipHasher24::new_with_key(key);
        hasher.write(&bytes);
        hasher.finish()
    }

    /// The message in a segment's options, and its tag.
    pub fn parse(segment: &Segment) -> Option<(Self, u64)> {
        let o = segment.options.as_slice();
        if o.len() != 40 || o[..2] != [253, 28] || o[28..32] != [1, 1, 8, 10] {
            return None;
        }
        let word = |at: usize| u32::from_be_bytes([o[at], o[at + 1], o[at + 2], o[at + 3]]);
        let message = Self {
            exid: (word(0) & 0xffff) as u16,
            mss: (word(4) >> 16) as u16,
            scales: o[6],
            flags: o[7],
            server_timestamp: word(8),
            tsval: word(32),
            tsecr: word(36),
            namespace: u64::from(word(20)) << 32 | u64::from(word(24)),
        };
        Some((message, u64::from(word(12)) << 32 | u64::from(word(16))))
    }
}

/// NOP NOP and a timestamps option.
pub fn timestamps(tsval: u32, tsecr: u32) -> Vec<u8> {
    let mut option = vec![1, 1, 8, 10];
    option.extend(tsval.to_be_bytes());
    option.extend(tsecr.to_be_bytes());
    option
}

/// One's complement sum, folded.
pub fn sum(bytes: &[u8], start: u32) -> u32 {
    let mut total = start;
    for pair in bytes.chunks(2) {
        total += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    }
    while total >> 16 != 0 {
        total = (total & 0xffff) + (total >> 16);
    }
    total
}

fn pseudo(from: IpAddr, to: IpAddr, tcp_bytes: usize) -> u32 {
    let addresses = match (from, to) {
        (IpAddr::V4(a), IpAddr::V4(b)) => [a.octets(), b.octets()].concat(),
        (IpAddr::V6(a), IpAddr::V6(b)) => [a.octets(), b.octets()].concat(),
        _ => panic!("both ends have the same version"),
    };
    sum(&addresses, 6 + tcp_bytes as u32)
}

impl Segment {
    pub fn l3_bytes(&self) -> usize {
        if self.from.is_ipv4() { 20 } else { 40 }
    }

    fn tcp(&self) -> Vec<u8> {
        let mut tcp = Vec::new();
        tcp.extend(self.from.port().to_be_bytes());
        tcp.extend(self.to.port().to_be_bytes());
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.extend([((20 + self.options.len()) << 2) as u8, self.flags]);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(&self.options);
        tcp.extend(&self.payload);
        tcp
    }

    pub fn frame(&self, from: [u8; 6], to: [u8; 6]) -> Vec<u8> {
        let mut tcp = self.tcp();
        let checksum = !(sum(&tcp, pseudo(self.from.ip(), self.to.ip(), tcp.len())) as u16);
        tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
        self.around(&tcp, from, to)
    }

    pub fn frame_with_partial_checksum(&self, from: [u8; 6], to: [u8; 6]) -> Vec<u8> {
        let mut tcp = self.tcp();
        let partial = pseudo(self.from.ip(), self.to.ip(), tcp.len()) as u16;
        tcp[16..18].copy_from_slice(&partial.to_be_bytes());
        self.around(&tcp, from, to)
    }

    fn around(&self, tcp: &[u8], from: [u8; 6], to: [u8; 6]) -> Vec<u8> {
        let mut frame = [to, from].concat();
        match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                frame.extend([8, 0]);
                let mut ip = vec![0x45, 0];
                ip.extend((20 + tcp.len() as u16).to_be_bytes());
                ip.extend([0, 7, 0x40, 0, 33, 6, 0, 0]);
                ip.extend(a.octets());
                ip.extend(b.octets());
                let checksum = !(sum(&ip, 0) as u16);
                ip[10..12].copy_from_slice(&checksum.to_be_bytes());
                frame.extend(ip);
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend((tcp.len() as u16).to_be_bytes());
                frame.extend([6, 33]);
                frame.extend(a.octets());
                frame.extend(b.octets());
            }
            _ => panic!("both ends have the same version"),
        }
        frame.extend(tcp);
        frame
    }
}

impl Received {
    /// A whole TCP segment between those two, or nothing.
    pub fn parse(frame: &[u8], partial: bool, from: [u8; 6], to: [u8; 6]) -> Option<Self> {
        if frame.get(..12)? != [to, from].concat() {
            return None;
        }
        let v4 = |b: &[u8]| IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(b).expect("4 bytes")));
        let v6 =
            |b: &[u8]| IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(b).expect("16 bytes")));
        let ip = &frame[14..];
        let (from, to, ttl, tcp) = match frame[12..14] {
            [8, 0] if ip[9] == 6 => {
                assert_eq!(sum(&ip[..20], 0), 0xffff, "the IPv4 header's checksum");
                let bytes = usize::from(ip[2]) << 8 | usize::from(ip[3]);
                (v4(&ip[12..16]), v4(&ip[16..20]), ip[8], &ip[20..bytes])
            }
            [0x86, 0xdd] if ip[6] == 6 => {
                let bytes = usize::from(ip[4]) << 8 | usize::from(ip[5]);
                (v6(&ip[8..24]), v6(&ip[24..40]), ip[7], &ip[40..40 + bytes])
            }
            _ => return None,
        };
        let field = u32::from(tcp[16]) << 8 | u32::from(tcp[17]);
        let pseudo = pseudo(from, to, tcp.len());
        let checksum = match partial {
            false if sum(tcp, pseudo) == 0xffff => Checksum::Full,
            true if field == pseudo => Checksum::Partial,
            _ => Checksum::Wrong,
        };
        let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        let word = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
        let header = usize::from(tcp[12] >> 4) * 4;
        Some(Self {
            segment: Segment {
                from: SocketAddr::new(from, port(0)),
                to: SocketAddr::new(to, port(2)),
                seq: word(4),
                ack: word(8),
                flags: tcp[13],
                window: port(14),
                options: tcp[20..header].to_vec(),
                payload: tcp[header..].to_vec(),
            },
            checksum,
            ttl,
            urgent: port(18),
        })
    }
}

/// The payload of a segment that shows `client`, written from the page.
pub fn block(
    segment: &Segment,
    client: SocketAddr,
    namespace: u64,
    epoch: u8,
    key: &[u8; 16],
) -> Vec<u8> {
    let octets = match client.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let word = |i: usize| u32::from_be_bytes(octets[4 * i..4 * i + 4].try_into().expect("4 bytes"));
    let input = Message {
        exid: CLIENT_BLOCK,
        mss: client.port(),
        scales: 0,
        flags: epoch << 4,
        server_timestamp: word(1),
        tsval: word(2),
        tsecr: word(3),
        namespace,
    };
    let tag = input.tag(segment.from, segment.to, segment.seq, word(0), 0, key);
    let mut bytes = CLIENT_BLOCK.to_be_bytes().to_vec();
    bytes.extend([0, epoch << 4]);
    bytes.extend(client.port().to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(octets);
    bytes.extend(namespace.to_be_bytes());
    bytes.extend(tag.to_be_bytes());
    assert_eq!(bytes.len(), 40);
    bytes
}
