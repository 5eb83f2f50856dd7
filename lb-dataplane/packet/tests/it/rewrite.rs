//! Checksums and rewriting, against etherparse's full computation.

use crate::support::{Oracle, Packet, oracle, packet, packet_and_rewrite, segment};
use baton_packet::{
    ChecksumState, Flags, Mac, Rewrite, RewriteError, SegmentSpec, SeqNumber, allow_fragments,
    build_segment, clear_fin, clear_urgent, complete_tcp_checksum, ether_dst, ether_src,
    part_of_segment, rewrite_tcp, settle_tcp_checksum, tcp_checksum_state,
};
use proptest::prelude::*;
use std::collections::HashSet;

/// The sum of the pseudo-header as the kernel leaves it in the field, in plain arithmetic.
fn pseudo_sum(frame: &[u8]) -> u16 {
    let seg = segment(frame);
    let addresses = if seg.is_v6() { &frame[22..54] } else { &frame[26..34] };
    let mut sum = 6 + u32::from(seg.end - seg.l4);
    for pair in addresses.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(pair[1]);
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn field(frame: &[u8]) -> u16 {
    let at = usize::from(segment(frame).l4) + 16;
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

fn set_field(frame: &mut [u8], value: u16) {
    let at = usize::from(segment(frame).l4) + 16;
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Turns the last two (even) bytes of the payload so that the right checksum is `wanted`.
fn force_checksum(packet: &mut Packet, wanted: u16) {
    packet.payload.resize(packet.payload.len().next_multiple_of(2), 0);
    packet.payload.extend_from_slice(&[0, 0]);
    let without = field(&packet.frame());
    // checksum = ~sum, so the word that makes ~(sum + word) = wanted is ~wanted - sum = ~wanted +
    // without.
    let sum = u32::from(!wanted) + u32::from(without);
    let word = ((sum & 0xffff) + (sum >> 16)) as u16;
    let at = packet.payload.len() - 2;
    packet.payload[at..].copy_from_slice(&word.to_be_bytes());
}

pub fn right(frame: &[u8]) -> Oracle {
    let oracle = oracle(frame);
    assert!(oracle.ip_checksum_right, "IP header checksum");
    assert!(oracle.tcp_checksum_right, "TCP checksum {:#06x}", oracle.tcp.checksum);
    oracle
}

/// The packet as it leaves: without an urgent pointer where nothing is urgent.
fn moved(packet: &Packet, to: &Rewrite) -> Packet {
    let urgent = packet.flags & Flags::URG.0 != 0;
    Packet {
        src: to.src,
        dst: to.dst,
        src_port: to.src_port,
        dst_port: to.dst_port,
        ttl: packet.ttl - 1,
        urgent: if urgent { packet.urgent } else { 0 },
        ..packet.clone()
    }
}

fn rewrite_and_check(packet: &Packet, frame: &[u8], to: &Rewrite) {
    let mut out = frame.to_vec();
    rewrite_tcp(&mut out, &segment(frame), to).unwrap();
    let read = right(&out);
    assert_eq!((read.src, read.dst, read.ttl), (to.src, to.dst, packet.ttl - 1));
    assert_eq!((read.tcp.source_port, read.tcp.destination_port), (to.src_port, to.dst_port));
    assert_eq!((ether_src(&out), ether_dst(&out)), (to.src_mac, to.dst_mac));
    assert_eq!(read.payload, packet.payload);
    // Nothing else moved: the same packet written with the new addresses has the same bytes.
    assert_eq!(out[12..], moved(packet, to).frame()[12..]);
    assert_eq!(tcp_checksum_state(&out, &segment(frame)), ChecksumState::Full, "with the old view");
}

proptest! {
    #[test]
    fn a_fin_is_taken_and_nothing_else(mut packet in packet()) {
        packet.flags |= Flags::FIN.0;
        let before = packet.frame();
        let mut frame = before.clone();
        clear_fin(&mut frame, &segment(&before));
        right(&frame);
        let (old, new) = (segment(&before), segment(&frame));
        prop_assert_eq!(new.flags.0, old.flags.0 & !Flags::FIN.0);
        let mut again = frame.clone();
        let at = usize::from(old.l4);
        again[at + 13] |= Flags::FIN.0;
        again[at + 16..at + 18].copy_from_slice(&before[at + 16..at + 18]);
        prop_assert_eq!(again, before);
    }
}

proptest! {
    #[test]
    fn the_mark_of_urgent_data_is_taken_and_nothing_else(packet in packet(), urgent: u16) {
        let plain = packet.frame();
        let l4 = usize::from(segment(&plain).l4);
        let mut frame = plain.clone();
        frame[l4 + 13] |= Flags::URG.0;
        frame[l4 + 18..l4 + 20].copy_from_slice(&urgent.to_be_bytes());
        frame[l4 + 16..l4 + 18].fill(0);
        complete_tcp_checksum(&mut frame, &segment(&plain));
        let urgent = segment(&frame);
        clear_urgent(&mut frame, &urgent);
        right(&frame);
        let mut expected = plain.clone();
        expected[l4 + 13] &= !Flags::URG.0;
        expected[l4 + 18..l4 + 20].fill(0);
        expected[l4 + 16..l4 + 18].copy_from_slice(&frame[l4 + 16..l4 + 18]);
        prop_assert_eq!(frame, expected);
    }
}

proptest! {
    #[test]
    fn routers_may_cut_it_and_nothing_else_is_changed(packet in packet()) {
        let before = packet.frame();
        let mut frame = before.clone();
        let whole = segment(&before);
        allow_fragments(&mut frame, &whole);
        right(&frame);
        let mut expected = before;
        if !whole.is_v6() {
            let ip = usize::from(whole.l3);
            prop_assert!(expected[ip + 6] & 0x40 != 0);
            expected[ip + 6] &= !0x40;
            expected[ip + 4..ip + 6].copy_from_slice(&frame[ip + 4..ip + 6]);
            expected[ip + 10..ip + 12].copy_from_slice(&frame[ip + 10..ip + 12]);
        }
        prop_assert_eq!(frame, expected);
    }
}

proptest! {
    #[test]
    fn of_what_may_be_cut_each_has_a_number_of_its_own(
        mut packet in packet(), from: u32, bytes in 1_u32..1_500,
    ) {
        let numbers: HashSet<[u8; 2]> = (0..100).map(|n| {
            packet.seq = from.wrapping_add(n * bytes);
            let mut frame = packet.frame();
            let whole = segment(&frame);
            allow_fragments(&mut frame, &whole);
            let ip = usize::from(whole.l3);
            [frame[ip + 4], frame[ip + 5]]
        }).collect();
        prop_assert!(packet.src.is_ipv6() || numbers.len() > 95, "{}", numbers.len());
    }
}

proptest! {
    #[test]
    fn the_parts_of_a_segment_are_the_segment(mut packet in packet(), cut in 1_usize..400) {
        packet.flags &= !Flags::SYN.0;
        packet.payload.push(7);
        let frame = packet.frame();
        let whole = segment(&frame);
        let mut joined: Vec<u8> = Vec::new();
        while joined.len() < packet.payload.len() {
            let len = cut.min(packet.payload.len() - joined.len());
            let mut out = [0xa5; 2048];
            let end = part_of_segment(&frame, &whole, joined.len(), len, &mut out).unwrap();
            let read = right(&out[..end]);
            let part = segment(&out[..end]);
            prop_assert_eq!(usize::from(part.end), end);
            prop_assert_eq!(part.seq, whole.seq.add(joined.len() as u32));
            joined.extend(&read.payload);
            let last = joined.len() == packet.payload.len();
            let of_end = if last { 0 } else { Flags::FIN.0 | Flags::PSH.0 };
            prop_assert_eq!(part.flags.0, whole.flags.0 & !(of_end | Flags::URG.0));
            let urgent = if whole.flags.has(Flags::URG) { 0 } else { packet.urgent };
            prop_assert_eq!(read.tcp.urgent_pointer, urgent);
            prop_assert_eq!(part.options(&out), whole.options(&frame));
            prop_assert_eq!((read.src, read.dst, read.ttl), (packet.src, packet.dst, packet.ttl));
        }
        prop_assert_eq!(joined, packet.payload.clone());
        // Link padding is no part of it.
        let mut out = [0; 2048];
        prop_assert_eq!(part_of_segment(&frame, &whole, 0, packet.payload.len() + 1, &mut out), None);
        prop_assert_eq!(part_of_segment(&frame, &whole, 0, 1, &mut out[..20]), None);
    }
}

proptest! {
    #[test]
    fn incremental_equals_full((packet, to) in packet_and_rewrite()) {
        rewrite_and_check(&packet, &packet.frame(), &to);
    }

    /// The corner where the two zeros of one's complement arithmetic meet: the checksum before or
    /// after is 0x0000 or its neighbour, or the sender wrote the other zero.
    #[test]
    fn incremental_equals_full_at_the_zeros(
        (mut packet, mut to) in packet_and_rewrite(),
        after in any::<bool>(),
        wanted in prop_oneof![Just(0u16), Just(1), Just(0xfffe)],
        other_zero in any::<bool>(),
        same in any::<bool>(),
    ) {
        if same {
            (to.src, to.dst, to.src_port, to.dst_port) = (packet.src, packet.dst, packet.src_port, packet.dst_port);
        }
        if after {
            // The checksum is linear: force it for the rewritten packet, keep the payload.
            let mut moved = moved(&packet, &to);
            force_checksum(&mut moved, wanted);
            packet.payload = moved.payload;
        } else {
            force_checksum(&mut packet, wanted);
        }
        let mut frame = packet.frame();
        if !after {
            prop_assert_eq!(field(&frame), wanted);
            if other_zero && wanted == 0 {
                set_field(&mut frame, 0xffff);
                prop_assert_eq!(tcp_checksum_state(&frame, &segment(&frame)), ChecksumState::Full);
            }
        }
        rewrite_and_check(&packet, &frame, &to);
    }

    #[test]
    fn a_corrupt_segment_stays_corrupt((packet, to) in packet_and_rewrite(), byte in any::<prop::sample::Index>(), flip in 1u8..=255) {
        let mut frame = packet.frame();
        let seg = segment(&frame);
        // Anything but the data offset, which decode would refuse.
        let at = usize::from(seg.l4) + byte.index(usize::from(seg.end - seg.l4));
        prop_assume!(at != usize::from(seg.l4) + 12);
        frame[at] ^= flip;
        let seg = segment(&frame);
        prop_assume!(field(&frame) != pseudo_sum(&frame));
        prop_assert_eq!(tcp_checksum_state(&frame, &seg), ChecksumState::Bad);
        let before = frame.clone();
        prop_assert_eq!(settle_tcp_checksum(&mut frame, &seg), ChecksumState::Bad);
        prop_assert_eq!(&frame, &before);
        // Where the flip hit a port, the rewrite repairs the port but the checksum still tells.
        rewrite_tcp(&mut frame, &seg, &to).unwrap();
        prop_assert!(!oracle(&frame).tcp_checksum_right);
    }

    #[test]
    fn partial_is_told_from_full(packet in packet()) {
        let right_frame = packet.frame();
        let seg = segment(&right_frame);
        prop_assert_eq!(tcp_checksum_state(&right_frame, &seg), ChecksumState::Full);
        let mut frame = right_frame.clone();
        prop_assert_eq!(settle_tcp_checksum(&mut frame, &seg), ChecksumState::Full);
        prop_assert_eq!(&frame, &right_frame);

        set_field(&mut frame, pseudo_sum(&right_frame));
        let expected = if field(&frame) == field(&right_frame) { ChecksumState::Full } else { ChecksumState::Partial };
        prop_assert_eq!(tcp_checksum_state(&frame, &seg), expected);
        let mut settled = frame.clone();
        prop_assert_eq!(settle_tcp_checksum(&mut settled, &seg), expected);
        prop_assert_eq!(&settled, &right_frame);
        complete_tcp_checksum(&mut frame, &seg);
        prop_assert_eq!(&frame, &right_frame);
    }

    /// A full checksum that equals the pseudo-header's sum is full.
    #[test]
    fn full_wins(mut packet in packet()) {
        // Two more bytes or three, as forcing adds them, change the length and with it the
        // pseudo-header: settle it first.
        packet.payload.resize(packet.payload.len().next_multiple_of(2) + 2, 0);
        let wanted = pseudo_sum(&packet.frame());
        packet.payload.truncate(packet.payload.len() - 2);
        force_checksum(&mut packet, wanted);
        let mut frame = packet.frame();
        // The one sum that no checksum can have.
        prop_assume!(wanted != 0xffff);
        prop_assert_eq!(field(&frame), pseudo_sum(&frame));
        let seg = segment(&frame);
        prop_assert_eq!(tcp_checksum_state(&frame, &seg), ChecksumState::Full);
        let before = frame.clone();
        prop_assert_eq!(settle_tcp_checksum(&mut frame, &seg), ChecksumState::Full);
        prop_assert_eq!(frame, before);
    }

    /// Completing works whatever the field held.
    #[test]
    fn complete_ignores_the_old_field(packet in packet(), old in any::<u16>()) {
        let right_frame = packet.frame();
        let mut frame = right_frame.clone();
        set_field(&mut frame, old);
        complete_tcp_checksum(&mut frame, &segment(&right_frame));
        prop_assert_eq!(frame, right_frame);
    }

    #[test]
    fn built_segments_are_what_was_asked(packet in packet(), timestamps in any::<Option<(u32, u32)>>(), short in any::<prop::sample::Index>()) {
        let spec = SegmentSpec {
            src_mac: Mac(crate::support::SRC_MAC), dst_mac: Mac(crate::support::DST_MAC),
            src: packet.src, dst: packet.dst, src_port: packet.src_port, dst_port: packet.dst_port,
            seq: SeqNumber(packet.seq), ack: SeqNumber(packet.ack), flags: Flags(packet.flags),
            window: packet.window, timestamps, payload: &packet.payload,
        };
        let mut buf = [0xa5; 2048];
        let length = build_segment(&mut buf, &spec).unwrap();
        prop_assert!(buf[length..].iter().all(|b| *b == 0xa5));
        let options = timestamps.map_or(vec![], |(value, echo)| {
            [&[1, 1, 8, 10][..], &value.to_be_bytes(), &echo.to_be_bytes()].concat()
        });
        let same = Packet { options, ttl: 64, extra: 0, urgent: 0, padding: 0, ..packet.clone() };
        prop_assert_eq!(&buf[..length], &same.frame()[..]);
        let mut small = vec![0xa5; short.index(length)];
        prop_assert_eq!(build_segment(&mut small, &spec), None);
    }
}

fn pair(v6: bool) -> (Packet, Rewrite) {
    let address = |n: u8| {
        if v6 { [n; 16].into() } else { [10, 0, 0, n].into() }
    };
    let packet = Packet {
        src: address(1),
        dst: address(2),
        src_port: 1,
        dst_port: 2,
        seq: 3,
        ack: 4,
        flags: 0x10,
        window: 5,
        urgent: 0,
        ttl: 64,
        extra: 0,
        options: vec![],
        payload: vec![7; 9],
        padding: 3,
    };
    let to = Rewrite {
        src: address(3),
        dst: address(4),
        src_port: 5,
        dst_port: 6,
        src_mac: Mac([1; 6]),
        dst_mac: Mac([2; 6]),
    };
    (packet, to)
}

/// The one way to the other zero: it was there before, and all ones become all zeros.
#[test]
fn the_other_zero_becomes_the_usual_one() {
    for v6 in [false, true] {
        let (packet, to) = pair(v6);
        let filled = |byte: u8| -> std::net::IpAddr {
            if v6 { [byte; 16].into() } else { [byte; 4].into() }
        };
        let (ones, zeros) = (filled(0xff), filled(0));
        let mut packet =
            Packet { src: ones, dst: ones, src_port: 0xffff, dst_port: 0xffff, ..packet };
        force_checksum(&mut packet, 0);
        let mut frame = packet.frame();
        set_field(&mut frame, 0xffff);
        let to = Rewrite { src: zeros, dst: zeros, src_port: 0, dst_port: 0, ..to };
        rewrite_and_check(&packet, &frame, &to);
    }
}

#[test]
fn refused_rewrites_leave_the_frame_alone() {
    for v6 in [false, true] {
        let ((packet, to), (_, other)) = (pair(v6), pair(!v6));
        let refused = |frame: &[u8], to: &Rewrite| {
            let mut out = frame.to_vec();
            let error = rewrite_tcp(&mut out, &segment(frame), to).unwrap_err();
            assert_eq!(out, frame);
            error
        };
        let frame = packet.frame();
        assert_eq!(refused(&frame, &other), RewriteError::FamilyMismatch);
        assert_eq!(
            refused(&frame, &Rewrite { dst: other.dst, ..to }),
            RewriteError::FamilyMismatch
        );
        assert_eq!(
            refused(&frame, &Rewrite { src: other.src, ..to }),
            RewriteError::FamilyMismatch
        );
        for ttl in [0, 1] {
            let frame = Packet { ttl, ..packet.clone() }.frame();
            assert_eq!(refused(&frame, &to), RewriteError::TtlExpired);
        }
        let mut foreign = frame[..40].to_vec();
        assert_eq!(
            rewrite_tcp(&mut foreign, &segment(&frame), &to),
            Err(RewriteError::NotThisFrame)
        );
        assert_eq!(foreign, &frame[..40]);
        assert_eq!(tcp_checksum_state(&foreign, &segment(&frame)), ChecksumState::Bad);
    }
}

#[test]
fn a_segment_of_two_families_or_too_much_payload_is_not_built() {
    let spec = SegmentSpec {
        src_mac: Mac([1; 6]),
        dst_mac: Mac([2; 6]),
        src: [1; 4].into(),
        dst: [2; 16].into(),
        src_port: 1,
        dst_port: 2,
        seq: SeqNumber(0),
        ack: SeqNumber(0),
        flags: Flags::ACK,
        window: 0,
        timestamps: None,
        payload: &[],
    };
    let mut buf = vec![0xa5; 70_000];
    assert_eq!(build_segment(&mut buf, &spec), None);
    let largest = vec![0; 65_535 - 54];
    let spec = SegmentSpec { dst: [2; 4].into(), payload: &largest, ..spec };
    assert_eq!(build_segment(&mut buf, &spec), Some(65_535));
    let too_large = vec![0; 65_535 - 53];
    assert_eq!(build_segment(&mut buf, &SegmentSpec { payload: &too_large, ..spec }), None);
}
