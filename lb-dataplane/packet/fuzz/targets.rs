//! Fuzz targets: parsing of frames, views used on other frames, the adoption option. On stable Rust
//! they are ordinary tests: each runs over the committed corpus (`fuzz/__fuzz__/<target>/corpus`)
//! and over random inputs.
//!
//! - Longer: `BOLERO_RANDOM_ITERATIONS=100000000 cargo test -p baton-packet --test fuzz` (about
//!   100,000 a second; with `BOLERO_RANDOM_TEST_TIME_MS=600000` as well it ends after ten minutes).
//! - Again: a failure prints `BOLERO_RANDOM_SEED=...`; set it and run the target.
//!
//! Inputs of `frames` are programs, because random bytes do not get past the first checksum: see
//! [`frame_of`].
#![allow(missing_docs, clippy::unwrap_used, reason = "a test that cannot go on shall panic")]

mod adoption;
mod corpus;
#[path = "../tests/it/support/mod.rs"]
mod support;

use baton_packet::{
    AdoptionKey, ChecksumState, Decoded, IcmpError, Mac, NewTuple, Rewrite, STRIPPED_FROM_CLIENTS,
    Segment, carry_icmp, carry_tcp, complete_tcp_checksum, decode, ether_dst, ether_src,
    parse_adoption, parse_syn_options, rewrite_icmp, rewrite_tcp, settle_tcp_checksum,
    strip_options, tcp_checksum_state, timestamps,
};
use bolero::check;
use std::net::IpAddr;
use support::Packet;

fn address(v6: bool, n: u8) -> IpAddr {
    if v6 { [n; 16].into() } else { [10, 0, 0, n].into() }
}

/// A right frame to start from: TCP or an ICMP error about it, IPv4 or IPv6, with a few kinds of
/// options.
fn start(choice: u8) -> Vec<u8> {
    let v6 = choice & 1 != 0;
    let options: &[u8] = match choice >> 1 & 3 {
        0 => &[],
        1 => &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
        2 => &[
            2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0, 1, 3, 3, 7, 30, 4, 0, 0, 34, 2, 1,
            0,
        ],
        _ => &[
            253, 28, 0xba, 0x70, 5, 0xb4, 0x77, 7, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5,
            4, 3, 2, 1, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2,
        ],
    };
    let adoption = choice >> 1 & 3 == 3;
    let packet = Packet {
        src: address(v6, 1),
        dst: address(v6, 2),
        src_port: 40_000,
        dst_port: 80,
        seq: 1,
        ack: 2,
        flags: if adoption { 0x10 } else { 0x18 },
        window: 500,
        urgent: 0,
        ttl: 64,
        extra: choice >> 4 & 7,
        options: options.to_vec(),
        payload: if adoption { vec![] } else { b"GET / HTTP/1.1\r\n\r\n".to_vec() },
        padding: 0,
    };
    let frame = packet.frame();
    if choice & 8 == 0 {
        return frame;
    }
    let link = etherparse::PacketBuilder::ethernet2(support::SRC_MAC, support::DST_MAC);
    let mut error = Vec::new();
    if v6 {
        link.ipv6([9; 16], [1; 16], 64)
            .icmpv6_raw(2, 0, [0, 0, 5, 0x78])
            .write(&mut error, &frame[14..])
    } else {
        link.ipv4([10, 0, 0, 9], [10, 0, 0, 1], 64)
            .icmpv4_raw(3, 4, [0, 0, 5, 0x78])
            .write(&mut error, &frame[14..])
    }
    .unwrap();
    error
}

/// Makes the checksum over `range` right, where its field is at `at`, starting from `sum`.
fn fix(frame: &mut [u8], range: std::ops::Range<usize>, at: usize, mut sum: u32) {
    if range.end > frame.len() || at + 2 > range.end {
        return;
    }
    frame[at..at + 2].fill(0);
    for pair in frame[range].chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[at..at + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// Turns the input into a frame: the first byte chooses a right frame (below 0x80) or takes the
/// rest as it is; then triples overwrite, insert or remove bytes; at the end IPv4 and ICMP
/// checksums are made right unless the second byte forbids it, so that what is behind them is
/// reached.
fn frame_of(input: &[u8]) -> Vec<u8> {
    let [choice, mode, program @ ..] = input else {
        return input.to_vec();
    };
    if *choice >= 0x80 {
        return program.to_vec();
    }
    let mut frame = start(*choice);
    for step in program.chunks_exact(3).take(16) {
        let [verb, at, value] = [step[0], step[1], step[2]];
        let at = usize::from(at).min(frame.len());
        match verb % 8 {
            0 => frame.insert(at, value),
            1 => drop(frame.drain(at..(at + usize::from(value % 16)).min(frame.len()))),
            2 => frame.truncate(at),
            3 => frame.resize(frame.len() + usize::from(value), value),
            _ => {
                if let Some(byte) = frame.get_mut(at) {
                    *byte = value;
                }
            }
        }
    }
    if *mode < 0xe0 && frame.len() >= 34 && frame[12..14] == [8, 0] {
        let l4 = 14 + usize::from(frame[14] & 15) * 4;
        fix(&mut frame, 14..l4, 24, 0);
        let end = 14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]));
        if frame[23] == 1 && l4 + 4 <= end {
            fix(&mut frame, l4..end, l4 + 2, 0);
        }
    }
    if *mode < 0xe0 && frame.len() >= 58 && frame[12..14] == [0x86, 0xdd] && frame[20] == 58 {
        let end = 54 + usize::from(u16::from_be_bytes([frame[18], frame[19]]));
        let length = end as u32 - 54;
        let pseudo = frame[22..54].chunks(2).map(|p| u32::from(p[0]) << 8 | u32::from(p[1]));
        let sum = pseudo.sum::<u32>() + 58 + length;
        fix(&mut frame, 54..end, 56, sum);
    }
    frame
}

fn check_segment(frame: &[u8], seg: &Segment) {
    let offsets = [14, seg.l3, seg.l4, seg.payload, seg.end].map(usize::from);
    assert!(offsets.is_sorted() && offsets[4] <= frame.len(), "{seg:?}");
    assert!(offsets[2] > offsets[1] && offsets[3] >= offsets[2] + 20);
    assert_eq!(seg.src.is_ipv6(), seg.dst.is_ipv6());
    assert_eq!(seg.options(frame).len(), offsets[3] - offsets[2] - 20);
    assert_eq!(seg.data(frame).len(), offsets[4] - offsets[3]);

    let _ = parse_syn_options(seg.options(frame));
    let _ = timestamps(seg.options(frame));
    // A tag by chance: 2^-64.
    if let Some(raw) = parse_adoption(frame, seg) {
        assert!(raw.epoch() < 16);
        assert_eq!(raw.verify(&AdoptionKey::from_bytes([3; 16])), None);
    }

    let state = tcp_checksum_state(frame, seg);
    let mut out = frame.to_vec();
    assert_eq!(settle_tcp_checksum(&mut out, seg), state);
    let settled = tcp_checksum_state(&out, seg);
    assert_eq!(settled == ChecksumState::Bad, state == ChecksumState::Bad);
    if state == ChecksumState::Bad {
        complete_tcp_checksum(&mut out, seg);
    }
    assert_eq!(tcp_checksum_state(&out, seg), ChecksumState::Full);
    let _ = strip_options(&mut out, seg, STRIPPED_FROM_CLIENTS);
    assert_eq!(tcp_checksum_state(&out, seg), ChecksumState::Full);
    assert!(!strip_options(&mut out, seg, STRIPPED_FROM_CLIENTS));
    let to = Rewrite {
        src: address(seg.is_v6(), 0xff),
        dst: address(seg.is_v6(), 0),
        src_port: 0,
        dst_port: 0xffff,
        src_mac: Mac([1; 6]),
        dst_mac: Mac([2; 6]),
    };
    if rewrite_tcp(&mut out, seg, &to).is_ok() {
        let Ok(Decoded::Tcp(new)) = decode(&out) else { panic!("rewritten to {:?}", decode(&out)) };
        assert_eq!((new.src, new.dst), (to.src, to.dst));
        assert_eq!((new.src_port, new.dst_port), (to.src_port, to.dst_port));
        let same = Segment {
            src: seg.src,
            dst: seg.dst,
            src_port: seg.src_port,
            dst_port: seg.dst_port,
            ..new
        };
        assert_eq!(same, *seg);
        assert_eq!(tcp_checksum_state(&out, &new), ChecksumState::Full);
    }
    assert_eq!(out[usize::from(seg.payload)..], frame[usize::from(seg.payload)..]);
    let to = across(seg.is_v6());
    let mut out = frame.to_vec();
    out.resize(frame.len() + LONGER, 0);
    if tcp_checksum_state(frame, seg) == ChecksumState::Full
        && let Ok(len) = carry_tcp(&mut out, seg, &to)
    {
        let Ok(Decoded::Tcp(new)) = decode(&out[..len]) else {
            panic!("carried to {:?}", decode(&out[..len]))
        };
        assert_eq!((new.src, new.dst, new.seq, new.ack), (to.src, to.dst, seg.seq, seg.ack));
        assert_eq!(new.options(&out), seg.options(frame));
        assert_eq!(new.data(&out), seg.data(frame));
        assert_eq!(tcp_checksum_state(&out, &new), ChecksumState::Full);
    }
}

/// By which IPv6's header is the longer one.
const LONGER: usize = 20;

/// A rewrite to the other family.
fn across(v6: bool) -> Rewrite {
    Rewrite {
        src: address(!v6, 3),
        dst: address(!v6, 4),
        src_port: 7,
        dst_port: 8,
        src_mac: Mac([1; 6]),
        dst_mac: Mac([2; 6]),
    }
}

/// The error in the other family.
fn carry(buffer: &mut [u8], icmp: &IcmpError) -> Option<usize> {
    let to = across(icmp.v6);
    let inner = NewTuple { src: to.src, dst: to.dst, src_port: to.src_port, dst_port: to.dst_port };
    carry_icmp(buffer, icmp, (to.src, to.dst), inner, (to.src_mac, to.dst_mac)).ok()
}

fn check_icmp(frame: &[u8], icmp: &IcmpError) {
    let mut out = frame.to_vec();
    out.resize(frame.len() + 2 * LONGER, 0);
    if let Some(len) = carry(&mut out, icmp) {
        let Ok(Decoded::Icmp(new)) = decode(&out[..len]) else {
            panic!("carried to {:?}", decode(&out[..len]))
        };
        assert_eq!((new.v6, new.inner_seq), (!icmp.v6, icmp.inner_seq));
    }
    let offsets = [14, icmp.l3, icmp.l4, icmp.inner_l3, icmp.inner_l4, icmp.end].map(usize::from);
    assert!(offsets.is_sorted() && offsets[5] <= frame.len(), "{icmp:?}");
    assert!(offsets[4] + 8 <= offsets[5]);
    let inner =
        NewTuple { src: address(icmp.v6, 5), dst: address(icmp.v6, 6), src_port: 7, dst_port: 8 };
    let outer = (address(icmp.v6, 3), address(icmp.v6, 4));
    let mut out = frame.to_vec();
    let macs = (Mac([1; 6]), Mac([2; 6]));
    assert_eq!(rewrite_icmp(&mut out, icmp, outer, inner, macs), Ok(()));
    let Ok(Decoded::Icmp(new)) = decode(&out) else { panic!("rewritten to {:?}", decode(&out)) };
    let expected = IcmpError {
        outer_src: outer.0,
        outer_dst: outer.1,
        inner_src: inner.src,
        inner_dst: inner.dst,
        inner_src_port: 7,
        inner_dst_port: 8,
        hop_limit: icmp.hop_limit.saturating_sub(1),
        ..*icmp
    };
    assert_eq!(new, expected);
}

fn check_frame(frame: &[u8]) {
    let (_, _) = (ether_src(frame), ether_dst(frame));
    match decode(frame) {
        Ok(Decoded::Tcp(seg)) => check_segment(frame, &seg),
        Ok(Decoded::Icmp(icmp)) => check_icmp(frame, &icmp),
        Ok(Decoded::Udp(udp)) => {
            let offsets = [14, udp.l3, udp.l4, udp.payload, udp.end].map(usize::from);
            assert!(offsets.is_sorted() && offsets[4] <= frame.len(), "{udp:?}");
        }
        _ => {}
    }
}

/// Views of a frame, used on others.
fn check_other_frames(input: &[u8]) {
    let cut = input.len() / 2;
    let (a, b) = (frame_of(&input[..cut]), input[cut..].to_vec());
    for mut other in [b, Vec::new(), a[..a.len() / 2].to_vec()] {
        match decode(&a) {
            Ok(Decoded::Tcp(seg)) => {
                let (_, _) = (seg.options(&other), seg.data(&other));
                let _ = tcp_checksum_state(&other, &seg);
                let _ = settle_tcp_checksum(&mut other, &seg);
                complete_tcp_checksum(&mut other, &seg);
                let _ = strip_options(&mut other, &seg, STRIPPED_FROM_CLIENTS);
                let _ = parse_adoption(&other, &seg);
                let to = Rewrite {
                    src: seg.dst,
                    dst: seg.src,
                    src_port: 1,
                    dst_port: 2,
                    src_mac: Mac([1; 6]),
                    dst_mac: Mac([2; 6]),
                };
                let _ = rewrite_tcp(&mut other, &seg, &to);
                let _ = carry_tcp(&mut other, &seg, &across(seg.is_v6()));
            }
            Ok(Decoded::Icmp(icmp)) => {
                let inner =
                    NewTuple { src: icmp.inner_dst, dst: icmp.inner_src, src_port: 1, dst_port: 2 };
                let outer = (icmp.outer_dst, icmp.outer_src);
                let macs = (Mac([1; 6]), Mac([2; 6]));
                let _ = rewrite_icmp(&mut other, &icmp, outer, inner, macs);
                let _ = carry(&mut other, &icmp);
            }
            _ => {}
        }
    }
}

/// Whatever a frame is, views are in range, and what is done to it keeps its promises.
#[test]
fn frames() {
    check!()
        .with_iterations(200_000)
        .with_max_len(160)
        .for_each(|input: &[u8]| check_frame(&frame_of(input)));
}

/// No function panics when it gets a view of another frame.
#[test]
fn views_of_other_frames() {
    check!().with_iterations(200_000).with_max_len(160).for_each(check_other_frames);
}

/// What a holder of the key says in an adoption option is believed as it was said; nothing else is.
#[test]
fn adoption_option() {
    check!().with_iterations(200_000).with_max_len(80).for_each(adoption::check);
}

/// Each target has its corpus, and every input of it holds.
#[test]
fn corpora() {
    corpus::replay("frames", |input| check_frame(&frame_of(input)));
    corpus::replay("views_of_other_frames", check_other_frames);
    corpus::replay("adoption_option", adoption::check);
}

/// Every right frame to start from is understood, so the fuzzing starts behind the first checks.
#[test]
fn starts_are_right() {
    for choice in 0..0x80 {
        let frame = start(choice);
        match decode(&frame) {
            Ok(Decoded::Tcp(seg)) if choice & 8 == 0 => {
                assert_eq!(tcp_checksum_state(&frame, &seg), ChecksumState::Full);
                assert_eq!(parse_adoption(&frame, &seg).is_some(), choice >> 1 & 3 == 3);
            }
            Ok(Decoded::Icmp(_)) if choice & 8 != 0 => {}
            other => panic!("{choice}: {other:?}"),
        }
        check_frame(&frame);
    }
}
