//! ICMP errors: what is read in them, and that a translated one is byte for byte the one that
//! etherparse writes for the other leg.

use crate::support::{DST_MAC, Packet, SRC_MAC, addresses, packet_of};
use baton_packet::{
    Decoded, FamilyMismatch, IcmpError, IcmpKind, Mac, Malformed, NewTuple, RewriteError,
    SeqNumber, carry_icmp, decode, rewrite_icmp,
};
use etherparse::PacketBuilder;
use proptest::prelude::*;
use std::net::IpAddr;

/// An ICMP error around the first bytes of a packet.
#[derive(Clone, Debug)]
struct Error {
    src: IpAddr,
    dst: IpAddr,
    ttl: u8,
    kind: u8,
    code: u8,
    rest: [u8; 4],
    quoted: Packet,
    quote_bytes: usize,
}

impl Error {
    fn frame(&self, macs: ([u8; 6], [u8; 6])) -> Vec<u8> {
        let quoted = Packet { padding: 0, ..self.quoted.clone() }.frame();
        let quote = &quoted[14..14 + self.quote_bytes.min(quoted.len() - 14)];
        let link = PacketBuilder::ethernet2(macs.0, macs.1);
        let mut frame = Vec::new();
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => link
                .ipv4(src.octets(), dst.octets(), self.ttl)
                .icmpv4_raw(self.kind, self.code, self.rest)
                .write(&mut frame, quote),
            (IpAddr::V6(src), IpAddr::V6(dst)) => link
                .ipv6(src.octets(), dst.octets(), self.ttl)
                .icmpv6_raw(self.kind, self.code, self.rest)
                .write(&mut frame, quote),
            _ => panic!("mixed families"),
        }
        .unwrap();
        frame
    }

    fn mtu(&self) -> u32 {
        let [_, _, c, d] = self.rest;
        if self.src.is_ipv6() {
            u32::from_be_bytes(self.rest)
        } else {
            u32::from(c) << 8 | u32::from(d)
        }
    }

    fn expected_kind(&self) -> IcmpKind {
        let (code, mtu) = (self.code, self.mtu());
        match (self.src.is_ipv6(), self.kind) {
            (false, 3) if code == 4 => IcmpKind::FragmentationNeeded { mtu },
            (false, 3) | (true, 1) => IcmpKind::Unreachable { code },
            (false, 11) | (true, 3) => IcmpKind::TimeExceeded { code },
            (false, 12) | (true, 4) => IcmpKind::ParameterProblem { code },
            (true, 2) => IcmpKind::PacketTooBig { mtu },
            other => panic!("{other:?} is no error"),
        }
    }
}

fn headers_len(packet: &Packet) -> usize {
    usize::from(crate::support::segment(&packet.frame()).l4) - 14
}

fn error() -> impl Strategy<Value = Error> {
    any::<bool>().prop_flat_map(|v6| {
        let kind = if v6 {
            prop_oneof![Just(1u8), Just(2), Just(3), Just(4)].boxed()
        } else {
            prop_oneof![Just(3u8), Just(11), Just(12)].boxed()
        };
        (
            addresses(v6),
            any::<u8>(),
            kind,
            prop_oneof![Just(4u8), any::<u8>()],
            any::<[u8; 4]>(),
            packet_of(v6),
            // Of a checksum that is cut in two nobody can tell what it becomes, so that one is not
            // compared.
            prop_oneof![Just(8usize), Just(16), Just(18), Just(20), 18usize..1200, 8usize..17],
        )
            .prop_map(|((src, dst), ttl, kind, code, rest, quoted, quote)| Error {
                src,
                dst,
                ttl,
                kind,
                code,
                rest,
                quote_bytes: headers_len(&quoted) + quote,
                quoted,
            })
    })
}

fn icmp(frame: &[u8]) -> IcmpError {
    match decode(frame) {
        Ok(Decoded::Icmp(icmp)) => icmp,
        other => panic!("not an ICMP error about TCP: {other:?}"),
    }
}

fn tuple() -> impl Strategy<Value = (bool, (IpAddr, IpAddr), NewTuple, [u8; 6], [u8; 6])> {
    any::<bool>().prop_flat_map(|v6| {
        (addresses(v6), addresses(v6), any::<(u16, u16, [u8; 6], [u8; 6])>()).prop_map(
            move |(outer, (src, dst), (src_port, dst_port, src_mac, dst_mac))| {
                let inner = NewTuple { src, dst, src_port, dst_port };
                (v6, outer, inner, src_mac, dst_mac)
            },
        )
    })
}

/// What it is in the other family (RFC 7915, sections 4.2 and 5.2).
fn in_the_other_family(kind: IcmpKind, v6: bool) -> Option<IcmpKind> {
    let unreachable = |code| Some(IcmpKind::Unreachable { code });
    match kind {
        IcmpKind::FragmentationNeeded { mtu } => {
            Some(IcmpKind::PacketTooBig { mtu: (mtu + 20).max(1_280) })
        }
        IcmpKind::PacketTooBig { mtu } => {
            Some(IcmpKind::FragmentationNeeded { mtu: mtu.saturating_sub(20).min(65_535) })
        }
        IcmpKind::TimeExceeded { code } => Some(IcmpKind::TimeExceeded { code }),
        IcmpKind::Unreachable { code } if v6 => match code {
            0 | 2 | 3 => unreachable(1),
            1 => unreachable(10),
            4 => unreachable(3),
            _ => None,
        },
        IcmpKind::Unreachable { code } => match code {
            0 | 1 | 5 | 6 | 7 | 8 | 11 | 12 => unreachable(0),
            9 | 10 | 13 | 15 => unreachable(1),
            3 => unreachable(4),
            _ => None,
        },
        IcmpKind::ParameterProblem { .. } => None,
    }
}

proptest! {
    #[test]
    fn carried_it_says_the_same_in_the_other_family(error in error(), (v6, outer, inner, src_mac, dst_mac) in tuple()) {
        let frame = error.frame((SRC_MAC, DST_MAC));
        let read = icmp(&frame);
        let mut out = [0xa5; 2_048];
        out[..frame.len()].copy_from_slice(&frame);
        let macs = (Mac(src_mac), Mac(dst_mac));
        let carried = carry_icmp(&mut out, &read, outer, inner, macs);
        let kind = in_the_other_family(read.kind, read.v6);
        if v6 == read.v6 || kind.is_none() {
            prop_assert_eq!(carried, Err(RewriteError::FamilyMismatch));
            prop_assert_eq!(&out[..frame.len()], &frame[..]);
            return Ok(());
        }
        let len = carried.unwrap();
        prop_assert!(len - 14 <= 576, "{len} bytes");
        let now = icmp(&out[..len]);
        prop_assert_eq!((now.v6, Some(now.kind)), (v6, kind));
        prop_assert_eq!((now.outer_src, now.outer_dst), outer);
        prop_assert_eq!((now.inner_src, now.inner_dst), (inner.src, inner.dst));
        prop_assert_eq!((now.inner_src_port, now.inner_dst_port), (inner.src_port, inner.dst_port));
        prop_assert_eq!((now.inner_seq, now.hop_limit), (read.inner_seq, error.ttl.saturating_sub(1)));
        // What is quoted is the begin of the segment as it was sent in the other family.
        let moved = Packet {
            src: inner.src,
            dst: inner.dst,
            src_port: inner.src_port,
            dst_port: inner.dst_port,
            extra: 0,
            padding: 0,
            ..error.quoted.clone()
        };
        let sent = moved.frame();
        let quoted = &out[usize::from(now.inner_l4)..len];
        if quoted.len() != 17 {
            let header = if v6 { 54 } else { 34 };
            prop_assert_eq!(quoted, &sent[header..header + quoted.len()]);
        }
        let at = usize::from(now.inner_l3) + if v6 { 4 } else { 2 };
        let at_sent = if v6 { 18 } else { 16 };
        prop_assert_eq!(&out[at..at + 2], &sent[at_sent..at_sent + 2], "its length");
        let mut short = frame.clone();
        if short.len() < len {
            let refused = carry_icmp(&mut short, &read, outer, inner, macs);
            prop_assert_eq!(refused, Err(RewriteError::NotThisFrame));
            prop_assert_eq!(short, frame);
        }
    }

    #[test]
    fn reads_what_was_written(error in error()) {
        let frame = error.frame((SRC_MAC, DST_MAC));
        let icmp = icmp(&frame);
        let quoted = &error.quoted;
        prop_assert_eq!(icmp.v6, error.src.is_ipv6());
        prop_assert_eq!(icmp.kind, error.expected_kind());
        prop_assert_eq!((icmp.outer_src, icmp.outer_dst), (error.src, error.dst));
        prop_assert_eq!((icmp.inner_src, icmp.inner_dst), (quoted.src, quoted.dst));
        prop_assert_eq!((icmp.inner_src_port, icmp.inner_dst_port), (quoted.src_port, quoted.dst_port));
        prop_assert_eq!(icmp.inner_seq, SeqNumber(quoted.seq));
        prop_assert_eq!(icmp.hop_limit, error.ttl);
        prop_assert_eq!(usize::from(icmp.end), frame.len());
        prop_assert_eq!(usize::from(icmp.inner_l3), usize::from(icmp.l4) + 8);
        prop_assert_eq!(usize::from(icmp.inner_l4), usize::from(icmp.inner_l3) + headers_len(quoted));
    }

    #[test]
    fn translated_is_as_written_for_the_other_leg(error in error(), (v6, outer, inner, src_mac, dst_mac) in tuple(), padding in 0usize..9) {
        let mut frame = error.frame((SRC_MAC, DST_MAC));
        let length = frame.len();
        frame.resize(length + padding, 0xa5);
        let before = frame.clone();
        let icmp = icmp(&frame);
        let result = rewrite_icmp(&mut frame, &icmp, outer, inner, (Mac(src_mac), Mac(dst_mac)));
        if v6 != error.src.is_ipv6() {
            prop_assert_eq!(result, Err(FamilyMismatch));
            prop_assert_eq!(frame, before);
            return Ok(());
        }
        prop_assert_eq!(result, Ok(()));
        let mut moved = error.clone();
        (moved.src, moved.dst, moved.ttl) = (outer.0, outer.1, error.ttl.saturating_sub(1));
        let quoted = &mut moved.quoted;
        (quoted.src, quoted.dst) = (inner.src, inner.dst);
        (quoted.src_port, quoted.dst_port) = (inner.src_port, inner.dst_port);
        prop_assert_eq!(&frame[..length], &moved.frame((src_mac, dst_mac))[..]);
        prop_assert!(frame[length..].iter().all(|b| *b == 0xa5));
        prop_assert!(matches!(decode(&frame), Ok(Decoded::Icmp(_))));
    }

    /// A flipped bit of the message is not carried over to the other leg with a fresh checksum.
    #[test]
    fn a_corrupt_error_is_not_translated(error in error(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut frame = error.frame((SRC_MAC, DST_MAC));
        let l4 = usize::from(icmp(&frame).l4);
        let at = l4 + at.index(frame.len() - l4);
        frame[at] ^= 1 << bit;
        prop_assert!(!matches!(decode(&frame), Ok(Decoded::Icmp(_))), "{:?}", decode(&frame));
    }

    #[test]
    fn a_quote_that_is_too_short_is_refused(error in error(), missing in 1usize..200) {
        let full = headers_len(&error.quoted) + 8;
        let mut error = error;
        error.quote_bytes = full.saturating_sub(missing);
        prop_assert_eq!(decode(&error.frame((SRC_MAC, DST_MAC))), Err(Malformed::IcmpQuote));
    }
}

fn plain(v6: bool) -> Error {
    let address = |n: u8| {
        if v6 { [n; 16].into() } else { [10, 0, 0, n].into() }
    };
    Error {
        src: address(9),
        dst: address(1),
        ttl: 64,
        kind: if v6 { 2 } else { 3 },
        code: if v6 { 0 } else { 4 },
        rest: [0, 0, 0x05, 0x78],
        quoted: Packet {
            src: address(1),
            dst: address(2),
            src_port: 40_000,
            dst_port: 80,
            seq: 7,
            ack: 8,
            flags: 0x10,
            window: 1,
            urgent: 0,
            ttl: 63,
            extra: 0,
            options: vec![],
            payload: vec![1; 100],
            padding: 0,
        },
        quote_bytes: 200,
    }
}

#[test]
fn path_mtu() {
    assert_eq!(
        icmp(&plain(false).frame((SRC_MAC, DST_MAC))).kind,
        IcmpKind::FragmentationNeeded { mtu: 1400 }
    );
    let kind = icmp(&plain(true).frame((SRC_MAC, DST_MAC))).kind;
    assert_eq!(kind, IcmpKind::PacketTooBig { mtu: 1400 });
    assert_eq!(kind.mtu(), Some(1400));
    assert_eq!(IcmpKind::Unreachable { code: 1 }.mtu(), None);
}

/// Errors about anything but the start of a TCP segment are somebody else's.
#[test]
fn quotes_of_other_packets_are_passed_on() {
    let cases: [(bool, usize, u8); 5] = [
        // Protocol UDP.
        (false, 42 + 9, 17),
        // Fragment offset 1.
        (false, 42 + 7, 1),
        // Next header UDP, then a fragment header.
        (true, 62 + 6, 17),
        (true, 62 + 6, 44),
        // No next header.
        (true, 62 + 6, 59),
    ];
    for (v6, at, value) in cases {
        let mut frame = plain(v6).frame((SRC_MAC, DST_MAC));
        frame[at] = value;
        assert_eq!(decode(&frame), Ok(Decoded::IcmpOther), "{v6} {at} {value}");
    }
    // A quote of the other family is nonsense.
    for v6 in [false, true] {
        let mut frame = plain(v6).frame((SRC_MAC, DST_MAC));
        frame[if v6 { 62 } else { 42 }] ^= 0x20;
        assert_eq!(decode(&frame), Err(Malformed::IcmpQuote));
    }
}

#[test]
fn another_frame_is_refused() {
    for v6 in [false, true] {
        let error = plain(v6);
        let frame = error.frame((SRC_MAC, DST_MAC));
        let icmp = icmp(&frame);
        let inner = NewTuple { src: error.src, dst: error.dst, src_port: 1, dst_port: 2 };
        let macs = (Mac([1; 6]), Mac([2; 6]));
        for length in 0..frame.len() {
            let mut short = frame[..length].to_vec();
            let result = rewrite_icmp(&mut short, &icmp, (error.src, error.dst), inner, macs);
            assert_eq!(result, Err(FamilyMismatch));
            assert_eq!(short, &frame[..length]);
        }
    }
}
