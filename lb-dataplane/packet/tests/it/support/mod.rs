//! Random packets, written and read back by etherparse: the oracle that shares no code with the
//! crate.
#![allow(dead_code, reason = "each test binary that includes this uses another part of it")]

use baton_packet::{Decoded, Mac, Rewrite, Segment, decode};
use etherparse::{
    IpFragOffset, IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, Ipv4Options, Ipv6Extensions,
    Ipv6Header, Ipv6RawExtHeader, Ipv6RoutingExtensions, NetHeaders, PacketBuilder, PacketHeaders,
    TcpHeader, TransportHeader,
};
use proptest::{collection::vec, prelude::*};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub const SRC_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const DST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// A TCP packet in words.
#[derive(Clone, Debug)]
pub struct Packet {
    pub src: IpAddr,
    pub dst: IpAddr,
    pub src_port: u16,
    pub dst_port: u16,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    pub urgent: u16,
    pub ttl: u8,
    /// Words of IPv4 options; of IPv6 extension headers, which ones there are (bits 0 to 2).
    pub extra: u8,
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
    /// Bytes of link padding.
    pub padding: usize,
}

impl Packet {
    pub fn ip_headers(&self) -> IpHeaders {
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let mut header =
                    Ipv4Header::new(0, self.ttl, IpNumber::TCP, src.octets(), dst.octets())
                        .unwrap();
                header.dont_fragment = true;
                header.fragment_offset = IpFragOffset::ZERO;
                let words = usize::from(self.extra % 11);
                // NOPs, so that any length is a valid list of options.
                header.options = Ipv4Options::try_from(&[1u8; 40][..words * 4]).unwrap();
                IpHeaders::Ipv4(header, Ipv4Extensions::default())
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let header = Ipv6Header {
                    next_header: IpNumber::TCP,
                    hop_limit: self.ttl,
                    source: src.octets(),
                    destination: dst.octets(),
                    ..Ipv6Header::default()
                };
                // 6 bytes of content make the shortest header, 14 the next. PadN options; for the
                // routing header the same bytes are type 1, no segments left.
                let header_of =
                    |bytes: &[u8]| Ipv6RawExtHeader::new_raw(IpNumber::TCP, bytes).unwrap();
                let extensions = Ipv6Extensions {
                    hop_by_hop_options: (self.extra & 1 != 0)
                        .then(|| header_of(&[1, 4, 0, 0, 0, 0])),
                    destination_options: (self.extra & 2 != 0)
                        .then(|| header_of(&[1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
                    routing: (self.extra & 4 != 0).then(|| Ipv6RoutingExtensions {
                        routing: header_of(&[1, 0, 0, 0, 0, 0]),
                        final_destination_options: None,
                    }),
                    ..Ipv6Extensions::default()
                };
                IpHeaders::Ipv6(header, extensions)
            }
            _ => panic!("mixed families"),
        }
    }

    pub fn tcp_header(&self) -> TcpHeader {
        let mut tcp = TcpHeader::new(self.src_port, self.dst_port, self.seq, self.window);
        tcp.acknowledgment_number = self.ack;
        tcp.urgent_pointer = self.urgent;
        let bit = |n: u8| self.flags >> n & 1 == 1;
        (tcp.fin, tcp.syn, tcp.rst, tcp.psh) = (bit(0), bit(1), bit(2), bit(3));
        (tcp.ack, tcp.urg, tcp.ece, tcp.cwr) = (bit(4), bit(5), bit(6), bit(7));
        tcp.set_options_raw(&self.options).unwrap();
        tcp
    }

    /// The frame with right checksums.
    pub fn frame(&self) -> Vec<u8> {
        let builder = PacketBuilder::ethernet2(SRC_MAC, DST_MAC)
            .ip(self.ip_headers())
            .tcp_header(self.tcp_header());
        let mut frame = Vec::new();
        builder.write(&mut frame, &self.payload).unwrap();
        frame.extend(std::iter::repeat_n(0xa5, self.padding));
        frame
    }
}

/// What etherparse reads in a frame with a TCP packet: addresses, header, payload, and whether all
/// checksums are right.
pub struct Oracle {
    pub src: IpAddr,
    pub dst: IpAddr,
    pub ttl: u8,
    pub tcp: TcpHeader,
    pub payload: Vec<u8>,
    pub ip_checksum_right: bool,
    pub tcp_checksum_right: bool,
}

pub fn oracle(frame: &[u8]) -> Oracle {
    let packet = PacketHeaders::from_ethernet_slice(frame).expect("etherparse reads it");
    let Some(TransportHeader::Tcp(tcp)) = packet.transport else { panic!("no TCP: {packet:?}") };
    let payload = packet.payload.slice().to_vec();
    let (src, dst, ttl, ip_right, expected) = match packet.net.expect("an IP header") {
        NetHeaders::Ipv4(ip, _) => (
            IpAddr::from(ip.source),
            IpAddr::from(ip.destination),
            ip.time_to_live,
            ip.calc_header_checksum() == ip.header_checksum,
            tcp.calc_checksum_ipv4(&ip, &payload).unwrap(),
        ),
        NetHeaders::Ipv6(ip, _) => (
            IpAddr::from(ip.source),
            IpAddr::from(ip.destination),
            ip.hop_limit,
            true,
            tcp.calc_checksum_ipv6(&ip, &payload).unwrap(),
        ),
        other => panic!("no IP: {other:?}"),
    };
    Oracle {
        src,
        dst,
        ttl,
        tcp_checksum_right: expected == tcp.checksum,
        ip_checksum_right: ip_right,
        tcp,
        payload,
    }
}

pub fn segment(frame: &[u8]) -> Segment {
    match decode(frame) {
        Ok(Decoded::Tcp(seg)) => seg,
        other => panic!("not a TCP segment: {other:?}"),
    }
}

/// Addresses, the all-zero and all-one ones often enough to meet the corners of checksums.
pub fn addresses(v6: bool) -> BoxedStrategy<(IpAddr, IpAddr)> {
    if v6 {
        let one = prop_oneof![
            8 => any::<[u8; 16]>(),
            1 => Just([0; 16]),
            1 => Just([0xff; 16]),
        ]
        .prop_map(|octets| IpAddr::V6(Ipv6Addr::from(octets)));
        (one.clone(), one).boxed()
    } else {
        let one = prop_oneof![8 => any::<[u8; 4]>(), 1 => Just([0; 4]), 1 => Just([0xff; 4])]
            .prop_map(|octets| IpAddr::V4(Ipv4Addr::from(octets)));
        (one.clone(), one).boxed()
    }
}

/// Options as random bytes, or as a list that a walk gets through.
pub fn options() -> impl Strategy<Value = Vec<u8>> {
    let raw = (0usize..=10).prop_flat_map(|words| vec(any::<u8>(), words * 4));
    let item = prop_oneof![
        Just(vec![1]),
        any::<[u8; 2]>().prop_map(|v| [&[2, 4][..], &v].concat()),
        any::<u8>().prop_map(|v| vec![3, 3, v]),
        Just(vec![4, 2]),
        any::<[u8; 8]>().prop_map(|v| [&[8, 10][..], &v].concat()),
        any::<[u8; 8]>().prop_map(|v| [&[5, 10][..], &v].concat()),
        any::<[u8; 10]>().prop_map(|v| [&[30, 12][..], &v].concat()),
        any::<[u8; 4]>().prop_map(|v| [&[34, 6][..], &v].concat()),
        any::<[u8; 4]>().prop_map(|v| [&[254, 8, 0xf9, 0x89][..], &v].concat()),
        (253u8..=254, any::<[u8; 3]>()).prop_map(|(kind, v)| [&[kind, 5][..], &v].concat()),
        any::<[u8; 24]>().prop_map(|v| [&[253, 28, 0xba, 0x70][..], &v].concat()),
    ];
    let list = vec(item, 0..8).prop_map(|items| {
        let mut all = Vec::new();
        for item in items {
            if all.len() + item.len() <= 40 {
                all.extend(item);
            }
        }
        all.resize(all.len().next_multiple_of(4), 0);
        all
    });
    prop_oneof![1 => raw, 4 => list]
}

/// Any TCP packet with right checksums.
pub fn packet() -> impl Strategy<Value = Packet> {
    any::<bool>().prop_flat_map(packet_of)
}

pub fn packet_of(v6: bool) -> impl Strategy<Value = Packet> {
    let payload = prop_oneof![
        2 => vec(any::<u8>(), 0..100),
        2 => vec(any::<u8>(), 0..1500),
        1 => vec(0xffu8..=0xff, 0..1500),
    ];
    (
        addresses(v6),
        any::<(u16, u16, u32, u32, u8, u16, u16)>(),
        2u8..=255,
        prop_oneof![Just(0), any::<u8>()],
        options(),
        payload,
        0usize..20,
    )
        .prop_map(|((src, dst), fixed, ttl, extra, options, payload, padding)| Packet {
            src,
            dst,
            src_port: fixed.0,
            dst_port: fixed.1,
            seq: fixed.2,
            ack: fixed.3,
            flags: fixed.4,
            window: fixed.5,
            urgent: fixed.6,
            ttl,
            extra,
            options,
            payload,
            padding,
        })
}

/// A rewrite of the family.
pub fn rewrite(v6: bool) -> impl Strategy<Value = Rewrite> {
    (addresses(v6), any::<(u16, u16, [u8; 6], [u8; 6])>()).prop_map(
        |((src, dst), (src_port, dst_port, src_mac, dst_mac))| Rewrite {
            src,
            dst,
            src_port,
            dst_port,
            src_mac: Mac(src_mac),
            dst_mac: Mac(dst_mac),
        },
    )
}

/// A packet and a rewrite of one family.
pub fn packet_and_rewrite() -> impl Strategy<Value = (Packet, Rewrite)> {
    any::<bool>().prop_flat_map(|v6| (packet_of(v6), rewrite(v6)))
}
