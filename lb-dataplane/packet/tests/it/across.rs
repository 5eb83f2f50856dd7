//! Segments in the other IP family, against etherparse's.

use crate::{
    rewrite::right,
    support::{Packet, packet, rewrite, segment},
};
use baton_packet::{
    ChecksumState, Flags, Mac, Rewrite, RewriteError, SegmentSpec, SeqNumber, build_segment,
    carry_tcp, ether_dst, ether_src, tcp_checksum_state,
};
use proptest::prelude::*;

proptest! {
    /// Byte for byte the packet that is written with addresses of the other family, but for what
    /// only an IPv4 header has.
    #[test]
    fn carried_to_the_other_family(packet in packet(), to in [rewrite(false), rewrite(true)]) {
        let frame = packet.frame();
        let to = &to[usize::from(packet.src.is_ipv4())];
        let mut out = [0xa5; 2_048];
        out[..frame.len()].copy_from_slice(&frame);
        let len = carry_tcp(&mut out, &segment(&frame), to).unwrap();
        let out = &out[..len];
        let read = right(out);
        prop_assert_eq!((read.src, read.dst, read.ttl), (to.src, to.dst, packet.ttl - 1));
        prop_assert_eq!((ether_src(out), ether_dst(out)), (to.src_mac, to.dst_mac));
        let moved = Packet {
            src: to.src,
            dst: to.dst,
            src_port: to.src_port,
            dst_port: to.dst_port,
            ttl: packet.ttl - 1,
            extra: 0,
            padding: 0,
            ..packet.clone()
        }
        .frame();
        let from = if to.src.is_ipv6() || len - 14 > 1_260 { 12 } else { 34 };
        prop_assert_eq!(&out[from..], &moved[from..]);
        if to.src.is_ipv4() {
            // Cut on the way it may be only where its sender cannot make it shorter.
            prop_assert_eq!(out[20] & 0x40 != 0, len - 14 > 1_260);
        }
        let mut short = frame[..usize::from(segment(&frame).end)].to_vec();
        if short.len() < len {
            let refused = carry_tcp(&mut short, &segment(&frame), to);
            prop_assert_eq!(refused, Err(RewriteError::NotThisFrame));
            prop_assert_eq!(&short[..], &frame[..short.len()]);
        }
    }

    #[test]
    fn a_corrupt_segment_is_carried_as_one(packet in packet(), to in [rewrite(false), rewrite(true)], flip in 1_u8..) {
        let mut frame = packet.frame();
        let seg = segment(&frame);
        frame[usize::from(seg.l4) + 5] ^= flip;
        let mut out = [0; 2_048];
        out[..frame.len()].copy_from_slice(&frame);
        let len = carry_tcp(&mut out, &seg, &to[usize::from(packet.src.is_ipv4())]).unwrap();
        let state = tcp_checksum_state(&out[..len], &segment(&out[..len]));
        // One in 65,536 has the pseudo-header's sum there by accident.
        prop_assert_ne!(state, ChecksumState::Full);
    }
}

/// Changes a byte of an IPv4 header without options, and its checksum.
fn set_ipv4(frame: &mut [u8], at: usize, to: u8) {
    frame[at] = to;
    frame[24..26].fill(0);
    let words = frame[14..34].chunks(2);
    let sum: u32 = words.map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
}

#[test]
fn a_class_and_a_used_up_ttl_are_carried() {
    let of = |a: &str, b: &str| Rewrite {
        src: a.parse().unwrap(),
        dst: b.parse().unwrap(),
        src_port: 1,
        dst_port: 2,
        src_mac: Mac([2; 6]),
        dst_mac: Mac([4; 6]),
    };
    let spec = SegmentSpec {
        src_mac: Mac([2; 6]),
        dst_mac: Mac([4; 6]),
        src: "10.0.0.1".parse().unwrap(),
        dst: "10.0.0.2".parse().unwrap(),
        src_port: 80,
        dst_port: 40_000,
        seq: SeqNumber(7),
        ack: SeqNumber(9),
        flags: Flags::ACK,
        window: 512,
        timestamps: None,
        payload: b"x",
    };
    let mut frame = [0; 64];
    let len = build_segment(&mut frame, &spec).unwrap();
    let frame = &mut frame[..len];
    // Expedited forwarding, congestion experienced: 0xbb.
    set_ipv4(frame, 15, 0xbb);
    let (v4, v6) = (of("10.0.0.3", "10.0.0.4"), of("fd00::1", "fd00::2"));
    let mut there = [0; 128];
    there[..frame.len()].copy_from_slice(frame);
    carry_tcp(&mut there, &segment(frame), &v6).unwrap();
    assert_eq!(there[14..16], [0x6b, 0xb0]);
    let seg = segment(&there);
    let len = carry_tcp(&mut there, &seg, &v4).unwrap();
    assert_eq!((there[14..16].to_vec(), there[22]), (vec![0x45, 0xbb], 62));
    right(&there[..len]);
    assert_eq!(carry_tcp(frame, &segment(frame), &v4), Err(RewriteError::FamilyMismatch));
    set_ipv4(frame, 22, 1);
    assert_eq!(carry_tcp(frame, &segment(frame), &v6), Err(RewriteError::NotThisFrame));
    there[..frame.len()].copy_from_slice(frame);
    assert_eq!(carry_tcp(&mut there, &segment(frame), &v6), Err(RewriteError::TtlExpired));
}
