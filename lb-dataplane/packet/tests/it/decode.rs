//! What `decode` says about packets that another crate wrote, about every kind of broken one, and
//! about noise.

use crate::support::{DST_MAC, Packet, SRC_MAC, oracle, packet, segment};
use baton_packet::{Decoded, LIMIT_EXTENSION_HEADERS, Malformed, SeqNumber, decode};
use etherparse::PacketBuilder;
use proptest::prelude::*;
use std::collections::HashSet;

proptest! {
    #[test]
    fn agrees_with_etherparse(packet in packet()) {
        let frame = packet.frame();
        let (seg, oracle) = (segment(&frame), oracle(&frame));
        prop_assert!(oracle.ip_checksum_right && oracle.tcp_checksum_right);
        prop_assert_eq!((seg.src, seg.dst), (oracle.src, oracle.dst));
        prop_assert_eq!((seg.src_port, seg.dst_port), (oracle.tcp.source_port, oracle.tcp.destination_port));
        prop_assert_eq!(seg.seq, SeqNumber(oracle.tcp.sequence_number));
        prop_assert_eq!(seg.ack, SeqNumber(oracle.tcp.acknowledgment_number));
        prop_assert_eq!(seg.flags.0, packet.flags);
        prop_assert_eq!(seg.window, oracle.tcp.window_size);
        prop_assert_eq!(seg.options(&frame), oracle.tcp.options.as_slice());
        prop_assert_eq!(seg.data(&frame), &oracle.payload[..]);
        prop_assert_eq!(seg.payload_len() as usize, packet.payload.len());
        let marks = u32::from(packet.flags & 1) + u32::from(packet.flags >> 1 & 1);
        prop_assert_eq!(seg.seq_len(), seg.payload_len() + marks);
        prop_assert_eq!(seg.is_v6(), packet.src.is_ipv6());
        prop_assert_eq!(usize::from(seg.end) + packet.padding, frame.len());
    }

    /// A cut anywhere in what the IP length covers is noticed.
    #[test]
    fn truncation_is_never_accepted(packet in packet(), at in any::<prop::sample::Index>()) {
        let mut frame = packet.frame();
        frame.truncate(at.index(frame.len() - packet.padding));
        prop_assert!(decode(&frame).is_err(), "{:?}", decode(&frame));
    }

    #[test]
    fn one_flipped_bit_of_an_ipv4_header_is_refused(packet in crate::support::packet_of(false), bit in 0usize..160) {
        // Another header length sums up other bytes, which may be right by chance.
        prop_assume!(bit >= 4);
        let mut frame = packet.frame();
        frame[14 + bit / 8] ^= 1 << (bit % 8);
        prop_assert!(decode(&frame).is_err());
    }

    #[test]
    fn noise_never_panics(frame in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode(&frame);
    }
}

fn plain(v6: bool) -> Packet {
    let address = |n: u8| {
        if v6 {
            [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n].into()
        } else {
            [10, 0, 0, n].into()
        }
    };
    Packet {
        src: address(1),
        dst: address(2),
        src_port: 40_000,
        dst_port: 80,
        seq: 1,
        ack: 2,
        flags: 0x18,
        window: 500,
        urgent: 0,
        ttl: 64,
        extra: 0,
        options: vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
        payload: b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        padding: 0,
    }
}

/// Makes the IPv4 header checksum right again, as plainly as can be.
fn fix_ipv4(frame: &mut [u8]) {
    let header = usize::from(frame[14] & 15) * 4;
    frame[24..26].fill(0);
    let mut sum = 0u32;
    for pair in frame[14..14 + header].chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(pair[1]);
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

fn v4(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = plain(false).frame();
    change(&mut frame);
    if frame.len() >= 34 && frame[14] & 15 >= 5 {
        fix_ipv4(&mut frame);
    }
    frame
}

fn v6(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = plain(true).frame();
    change(&mut frame);
    frame
}

/// An IPv6 frame of the given next header whose payload is `rest`.
fn v6_with(next: u8, rest: &[u8]) -> Vec<u8> {
    v6(|f| {
        f.truncate(54);
        f[20] = next;
        f.extend_from_slice(rest);
        let length = rest.len() as u16;
        f[18..20].copy_from_slice(&length.to_be_bytes());
    })
}

fn udp(v6: bool) -> Vec<u8> {
    let link = PacketBuilder::ethernet2(SRC_MAC, DST_MAC);
    let ip = if v6 {
        link.ipv6([1; 16], [2; 16], 64)
    } else {
        link.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
    };
    let mut frame = Vec::new();
    ip.udp(53, 5353).write(&mut frame, b"name").unwrap();
    frame
}

/// Every reason is met by a frame that is right but for it.
#[test]
fn each_reason_has_its_frame() {
    let chain = |n: usize| {
        let mut rest = Vec::new();
        for _ in 0..n {
            rest.extend_from_slice(&[60, 0, 1, 4, 0, 0, 0, 0]);
        }
        if let Some(last) = rest.len().checked_sub(8) {
            rest[last] = 6;
        }
        rest.extend_from_slice(&plain(true).frame()[54..]);
        rest
    };
    assert!(matches!(decode(&v6_with(60, &chain(LIMIT_EXTENSION_HEADERS))), Ok(Decoded::Tcp(_))));
    let map = |address: &mut [u8]| {
        address.fill(0);
        address[10..12].fill(0xff);
    };
    let huge = |frame: &mut Vec<u8>, at: usize, length: u16| {
        frame[at..at + 2].copy_from_slice(&length.to_be_bytes());
        frame.resize(70_000, 0);
    };
    let icmp = |rest: &[u8]| {
        v4(|f| {
            f.truncate(34);
            f[23] = 1;
            f.extend_from_slice(rest);
            let length = 20 + rest.len() as u16;
            f[16..18].copy_from_slice(&length.to_be_bytes());
        })
    };
    let quote = {
        let mut quote = vec![3, 1, 0, 0, 0, 0, 0, 0];
        quote.extend_from_slice(&plain(false).frame()[14..]);
        quote
    };
    let cases = [
        (Malformed::EthernetTruncated, vec![0; 13]),
        (Malformed::FrameTooLarge, v4(|f| huge(f, 16, 65_522))),
        (Malformed::FrameTooLarge, v6(|f| huge(f, 18, 65_482))),
        (Malformed::Ipv4Truncated, v4(|f| f.truncate(33))),
        (Malformed::Ipv4Version, v4(|f| f[14] = 0x65)),
        (Malformed::Ipv4HeaderLength, v4(|f| f[14] = 0x44)),
        (Malformed::Ipv4LengthBelowHeader, v4(|f| f[16..18].copy_from_slice(&[0, 19]))),
        (Malformed::Ipv4LengthBelowHeader, v4(|f| f[16..18].copy_from_slice(&[0, 0]))),
        (Malformed::Ipv4LengthBeyondFrame, v4(|f| f.truncate(f.len() - 1))),
        (Malformed::Ipv4Checksum, {
            let mut f = v4(|_| ());
            f[25] ^= 1;
            f
        }),
        (Malformed::Ipv6Truncated, v6(|f| f.truncate(53))),
        (Malformed::Ipv6Version, v6(|f| f[14] = 0x45)),
        (Malformed::Ipv6Mapped, v6(|f| map(&mut f[22..38]))),
        (Malformed::Ipv6Mapped, v6(|f| map(&mut f[38..54]))),
        (Malformed::Ipv6LengthBeyondFrame, v6(|f| f.truncate(f.len() - 1))),
        // The header goes on in the link padding.
        (Malformed::Ipv6ExtensionTruncated, {
            let mut f = v6_with(43, &[6, 1, 0, 0, 0, 0, 0, 0]);
            f.extend_from_slice(&[0; 40]);
            f
        }),
        (Malformed::Ipv6ExtensionTruncated, v6_with(0, &[6, 0, 0, 0, 0, 0, 0])),
        (Malformed::Ipv6ExtensionTruncated, v6_with(43, &[6, 1, 0, 0, 0, 0, 0, 0, 0])),
        (Malformed::Ipv6TooManyExtensions, v6_with(60, &chain(LIMIT_EXTENSION_HEADERS + 1))),
        (Malformed::TcpTruncated, v6_with(6, &[0; 19])),
        (Malformed::TcpTruncated, v4(|f| f[16..18].copy_from_slice(&[0, 39]))),
        (Malformed::TcpDataOffset, v4(|f| f[46] = 0x40)),
        (Malformed::TcpDataOffset, v4(|f| f[46] = 0xf0)),
        (Malformed::UdpTruncated, v6_with(17, &[0; 7])),
        (Malformed::UdpLength, {
            let mut f = udp(false);
            f[39] = 7;
            f
        }),
        (Malformed::UdpLength, {
            let mut f = udp(true);
            f[59] = 13;
            f
        }),
        (Malformed::IcmpTruncated, icmp(&[3, 1, 0, 0, 0, 0, 0])),
        (Malformed::IcmpTruncated, v6_with(58, &[1; 7])),
        (Malformed::IcmpQuote, icmp(&quote[..27])),
        (Malformed::IcmpQuote, v6_with(58, &[1, 0, 0, 0, 0, 0, 0, 0, 0x60])),
        (Malformed::IcmpChecksum, icmp(&quote)),
    ];
    let mut met = HashSet::new();
    for (expected, frame) in cases {
        assert_eq!(decode(&frame), Err(expected), "{frame:02x?}");
        met.insert(expected);
    }
    for reason in Malformed::ALL {
        assert!(met.contains(reason), "no frame for {reason:?}");
    }
}

/// Frames that are fine, but no TCP.
#[test]
fn other_frames_are_told_apart() {
    let tagged =
        |ethertype: [u8; 2]| v4(|f| drop(f.splice(12..12, [ethertype[0], ethertype[1], 0, 5])));
    let icmp_v4 = |kind: u8| {
        v4(|f| {
            f[23] = 1;
            f[34] = kind;
        })
    };
    let cases = [
        (Decoded::Vlan, tagged([0x81, 0x00])),
        (Decoded::Vlan, tagged([0x88, 0xa8])),
        (Decoded::Arp, v4(|f| f[12..14].copy_from_slice(&[8, 6]))),
        (Decoded::Other, v4(|f| f[12..14].copy_from_slice(&[0x88, 0xcc]))),
        (Decoded::Other, vec![0; 14]),
        (Decoded::Other, v4(|f| f[23] = 132)),
        (Decoded::Fragment, v4(|f| f[20] = 0x20)),
        (Decoded::Fragment, v4(|f| f[21] = 1)),
        (Decoded::Fragment, v6_with(44, &[6, 0, 0, 0, 0, 0, 0, 1])),
        (Decoded::Fragment, v6_with(0, &[44, 0, 1, 4, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 1])),
        // A routing header of type 2 with one hop to come.
        (Decoded::Other, v6_with(43, &[6, 0, 2, 1, 0, 0, 0, 0])),
        (Decoded::Other, v6_with(59, &[])),
        // Echo request, redirect, source quench; echo request and neighbour solicitation of ICMPv6.
        (Decoded::IcmpOther, icmp_v4(8)),
        (Decoded::IcmpOther, icmp_v4(5)),
        (Decoded::IcmpOther, icmp_v4(4)),
        (Decoded::IcmpOther, v6_with(58, &[128, 0, 0, 0, 0, 0, 0, 0])),
        (Decoded::IcmpOther, v6_with(58, &[135, 0, 0, 0, 0, 0, 0, 0])),
    ];
    for (expected, frame) in cases {
        assert_eq!(decode(&frame), Ok(expected), "{frame:02x?}");
    }
}

#[test]
fn udp_ports_and_offsets() {
    for v6 in [false, true] {
        let mut frame = udp(v6);
        frame.extend_from_slice(&[0xa5; 9]);
        let Ok(Decoded::Udp(udp)) = decode(&frame) else { panic!("{:?}", decode(&frame)) };
        assert_eq!((udp.src_port, udp.dst_port), (53, 5353));
        assert_eq!(&frame[usize::from(udp.payload)..usize::from(udp.end)], b"name");
        assert_eq!(usize::from(udp.l4), if v6 { 54 } else { 34 });
        assert_eq!((udp.src.is_ipv6(), udp.dst.is_ipv6(), udp.l3), (v6, v6, 14));
    }
}
