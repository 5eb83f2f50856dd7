//! The shift of a translated leg, against etherparse: what it changes is right, the checksum too,
//! and nothing else changes.

use crate::support::{Packet, oracle, packet, segment};
use baton_packet::{Family, Flags, Mac, SeqNumber, Shift, V4, V6, plain, readdress, timestamps};
use etherparse::TcpOptionElement as Option_;
use proptest::prelude::*;

fn shift() -> impl Strategy<Value = Shift> {
    (any::<[u32; 5]>(), 0u8..15, 0u8..15).prop_map(|(numbers, pod_scale, client_scale)| {
        let [seq, acked, stamps, echoes, stamps_from] = numbers;
        Shift { seq, acked, stamps, echoes, stamps_from, pod_scale, client_scale }
    })
}

/// Options as a kernel sends them, and some more.
fn options() -> impl Strategy<Value = Vec<u8>> {
    let stamps = |n: [u32; 2]| {
        let mut bytes = vec![1, 1, 8, 10];
        bytes.extend(n[0].to_be_bytes());
        bytes.extend(n[1].to_be_bytes());
        bytes
    };
    let sack = |edges: Vec<[u32; 2]>| {
        let mut bytes = vec![1, 1, 5, 2 + 8 * edges.len() as u8];
        bytes.extend(edges.iter().flatten().flat_map(|edge| edge.to_be_bytes()));
        bytes
    };
    let edges = proptest::collection::vec(any::<[u32; 2]>(), 1..4);
    let odd = any::<[u32; 2]>().prop_map(|n| {
        // Not at a word's beginning.
        let mut bytes = vec![8, 10];
        bytes.extend(n[0].to_be_bytes());
        bytes.extend(n[1].to_be_bytes());
        bytes.extend([1, 0]);
        bytes
    });
    prop_oneof![
        Just(Vec::new()),
        any::<[u32; 2]>().prop_map(stamps),
        (any::<[u32; 2]>(), edges.clone())
            .prop_map(move |(n, edges)| [stamps(n), sack(edges)].concat()),
        edges.prop_map(sack),
        odd,
    ]
}

type Pair = (u32, u32);

/// Timestamps and edges that etherparse reads.
fn read(frame: &[u8]) -> (Option<Pair>, Vec<Pair>) {
    let (mut stamps, mut edges) = (None, Vec::new());
    for option in oracle(frame).tcp.options_iterator() {
        match option {
            Ok(Option_::Timestamp(value, echo)) => stamps = Some((value, echo)),
            Ok(Option_::SelectiveAcknowledgement(first, more)) => {
                edges = std::iter::once(first).chain(more.into_iter().flatten()).collect();
            }
            _ => {}
        }
    }
    (stamps, edges)
}

/// The frame with everything put back that a shift may change.
fn unchanged(frame: &[u8], like: &[u8]) -> Vec<u8> {
    let l4 = usize::from(segment(frame).l4);
    let mut frame = frame.to_vec();
    let payload = usize::from(segment(&frame).payload);
    for range in [l4 + 4..l4 + 12, l4 + 14..l4 + 18, l4 + 20..payload] {
        frame[range.clone()].copy_from_slice(&like[range]);
    }
    frame
}

fn whole(mut packet: Packet, options: Vec<u8>) -> Packet {
    packet.options = options;
    packet
}

/// A plain frame becomes the same by the short way as by the general one, and so it does with new
/// ends.
fn shifts_alike<F: Family>(
    frame: &[u8],
    shift: &Shift,
    stamped: bool,
) -> Result<(), TestCaseError> {
    if stamped {
        shift_alike::<F, true>(frame, shift)
    } else {
        shift_alike::<F, false>(frame, shift)
    }
}

fn shift_alike<F: Family, const STAMPED: bool>(
    frame: &[u8],
    shift: &Shift,
) -> Result<(), TestCaseError> {
    let plain = plain::<F, STAMPED>(frame).expect("a plain frame");
    let seen = segment(frame);
    let numbers = (seen.seq.add(shift.seq), seen.ack.add(shift.acked));
    for to_client in [true, false] {
        let (mut long, mut short) = (frame.to_vec(), frame.to_vec());
        let delta = if to_client {
            let _ = shift.to_client(&mut long, &seen);
            plain.shift_to_client(&mut short, shift, numbers)
        } else {
            let _ = shift.to_pod(&mut long, &seen);
            plain.shift_to_pod(&mut short, shift)
        };
        let mut once = short.clone();
        plain.add_to_checksum(&mut short, delta);
        prop_assert_eq!(&short, &long);

        let ends = ((F::Address::default(), 7), (F::Address::default(), 8));
        let macs = (Mac([1; 6]), Mac([3; 6]));
        readdress::<F>(&mut once, ends, macs, delta);
        readdress::<F>(&mut short, ends, macs, 0);
        prop_assert_eq!(&once, &short);
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_pods_segment_gets_the_clients_numbers(
        packet in packet(), options in options(), shift in shift(),
    ) {
        let packet = whole(packet, options);
        let before = packet.frame();
        let mut frame = before.clone();
        let acks = segment(&before).flags.has(Flags::ACK);
        let seg = shift.to_client(&mut frame, &segment(&before));
        prop_assert_eq!(segment(&frame), seg, "what is read is what is there");
        let oracle = oracle(&frame);
        prop_assert!(oracle.tcp_checksum_right);
        prop_assert_eq!(oracle.tcp.sequence_number, packet.seq.wrapping_add(shift.seq));
        let acked = if acks { shift.acked } else { 0 };
        let ack = SeqNumber(packet.ack).add(acked);
        prop_assert_eq!(oracle.tcp.acknowledgment_number, ack.0);
        let syn = seg.flags.has(Flags::SYN);
        let window = u64::from(packet.window) << shift.pod_scale >> shift.client_scale;
        let window = if syn { u64::from(packet.window) } else { window.min(0xffff) };
        prop_assert_eq!(u64::from(oracle.tcp.window_size), window);
        let ((old, old_edges), (new, edges)) = (read(&before), read(&frame));
        let of = |(v, e): Pair| (v.wrapping_add(shift.stamps), e.wrapping_add(shift.echoes));
        prop_assert_eq!(new, old.map(of));
        let of = |edge: u32| edge.wrapping_add(shift.acked);
        let shifted: Vec<_> = old_edges.iter().map(|(a, b)| (of(*a), of(*b))).collect();
        prop_assert_eq!(edges, shifted, "these are about the client's bytes");
        prop_assert_eq!(unchanged(&frame, &before), before);
    }

    #[test]
    fn a_clients_segment_gets_the_pods_numbers(
        packet in packet(), options in options(), shift in shift(),
    ) {
        let packet = whole(packet, options);
        let before = packet.frame();
        let mut frame = before.clone();
        let acks = segment(&before).flags.has(Flags::ACK);
        let seg = shift.to_pod(&mut frame, &segment(&before));
        prop_assert_eq!(segment(&frame), seg);
        let oracle = oracle(&frame);
        prop_assert!(oracle.tcp_checksum_right);
        prop_assert_eq!(oracle.tcp.sequence_number, shift.seq_to_pod(SeqNumber(packet.seq)).0);
        prop_assert_eq!(oracle.tcp.window_size, packet.window);
        let ack = SeqNumber(packet.ack).sub(if acks { shift.seq } else { 0 });
        prop_assert_eq!(oracle.tcp.acknowledgment_number, ack.0);
        let ((old, old_edges), (new, edges)) = (read(&before), read(&frame));
        prop_assert_eq!(new, old.map(|(v, e)| (shift.stamp_to_pod(v), shift.echo_to_pod(e))));
        let of = |edge: u32| edge.wrapping_sub(shift.seq);
        let shifted: Vec<_> = old_edges.iter().map(|(a, b)| (of(*a), of(*b))).collect();
        prop_assert_eq!(edges, shifted);
        prop_assert_eq!(unchanged(&frame, &before), before);
    }

    /// Where a segment is plain, the short way comes to the same.
    #[test]
    fn the_short_way_is_the_same(
        packet in packet(), stamps in any::<Option<[u32; 2]>>(), shift in shift(), push in any::<bool>(),
    ) {
        let options = stamps.map_or_else(Vec::new, |n| {
            let numbers = n.iter().flat_map(|n| n.to_be_bytes());
            [1, 1, 8, 10].into_iter().chain(numbers).collect()
        });
        let mut packet = whole(packet, options);
        packet.flags = if push { 0x18 } else { 0x10 };
        (packet.extra, packet.urgent, packet.ttl) = (0, 0, packet.ttl.max(2));
        let frame = packet.frame();
        if packet.src.is_ipv4() {
            shifts_alike::<V4>(&frame, &shift, stamps.is_some())?;
        } else {
            shifts_alike::<V6>(&frame, &shift, stamps.is_some())?;
        }
    }

    /// What a pod acknowledges and echoes is what the client sent.
    #[test]
    fn the_client_gets_back_what_it_sent(packet in packet(), shift in shift(), value in any::<u32>()) {
        let stamps = [&[1, 1, 8, 10][..], &value.to_be_bytes(), &[0; 4]].concat();
        let mut packet = whole(packet, stamps);
        packet.flags = 0x10;
        let before = packet.frame();
        let mut frame = before.clone();
        let seg = shift.to_pod(&mut frame, &segment(&before));
        let stamp = timestamps(seg.options(&frame)).expect("timestamps").0;
        (packet.ack, packet.options) = (seg.seq.0, [&[1, 1, 8, 10, 0, 0, 0, 0][..], &stamp.to_be_bytes()].concat());
        let before_back = packet.frame();
        let mut back = before_back.clone();
        let seg = shift.to_client(&mut back, &segment(&before_back));
        prop_assert_eq!(seg.ack, segment(&before).seq);
        prop_assert_eq!(timestamps(seg.options(&back)).expect("timestamps").1, value);
    }

    /// What a pod sent comes back to it as it was.
    #[test]
    fn what_the_client_acknowledges_and_echoes_is_what_the_pod_sent(
        packet in packet(), shift in shift(), later in 0u32..1 << 31,
    ) {
        // One behind its first timestamp.
        let value = shift.stamps_from.wrapping_sub(shift.stamps).wrapping_add(later);
        let stamps = [&[1, 1, 8, 10][..], &value.to_be_bytes(), &[0; 4]].concat();
        let packet = whole(packet, stamps);
        let mut frame = packet.frame();
        let seg = shift.to_client(&mut frame, &segment(&packet.frame()));
        let echo = timestamps(seg.options(&frame)).expect("timestamps").0;
        prop_assert_eq!(shift.ack_to_pod(seg.seq).0, packet.seq);
        prop_assert_eq!(shift.echo_to_pod(echo), value);
    }
}

#[test]
fn an_echo_of_another_pods_timestamp_is_the_first_of_this_one() {
    let shift = Shift { stamps: 1_000, stamps_from: 5_000, ..Shift::default() };
    for (echo, pods) in [(5_000, 4_000), (5_001, 4_001), (4_999, 4_000), (0, 4_000)] {
        assert_eq!(shift.echo_to_pod(echo), pods, "{echo}");
    }
}
