//! Adoption messages: round trip, layout, and that no covered bit can be changed unnoticed.

use crate::support::{addresses, oracle, segment};
use baton_packet::{
    ADOPTION_HEADER_BYTES, Adoption, AdoptionKey, Destination, Flags, KeyError, Mac, MessageKind,
    Reason, SegmentSpec, SeqNumber, Which, build_adoption, parse_adoption, parse_client_block,
};
use proptest::{prelude::*, strategy::ValueTree};
use std::net::IpAddr;

#[derive(Clone, Debug)]
struct Case {
    spec: SegmentSpec<'static>,
    message: Adoption,
    key: [u8; 16],
}

fn kind() -> impl Strategy<Value = MessageKind> {
    prop_oneof![
        Just(MessageKind::Adopt),
        Just(MessageKind::Probe),
        Just(MessageKind::Forget),
        Just(MessageKind::Release),
        Just(MessageKind::Transfer),
        prop::sample::select(Reason::ALL).prop_map(MessageKind::Answer),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    let spec = any::<bool>().prop_flat_map(addresses).prop_flat_map(|(src, dst)| {
        any::<(u16, u16, u32, u32, u16, Option<(u32, u32)>)>().prop_map(
            move |(src_port, dst_port, seq, ack, window, timestamps)| SegmentSpec {
                src_mac: Mac(crate::support::SRC_MAC),
                dst_mac: Mac(crate::support::DST_MAC),
                src,
                dst,
                src_port,
                dst_port,
                seq: SeqNumber(seq),
                ack: SeqNumber(ack),
                flags: Flags(0xff),
                window,
                timestamps,
                payload: &[],
            },
        )
    });
    let message =
        (kind(), any::<(u16, bool, bool, bool, bool, u32, u64)>(), 0u8..=14, 0u8..=14, 0u8..=15)
            .prop_map(|(kind, rest, server_wscale, client_wscale, epoch)| Adoption {
                kind,
                mss: rest.0,
                server_wscale,
                client_wscale,
                wscale_ok: rest.1,
                sack_ok: rest.2,
                timestamps_ok: rest.3,
                ecn_ok: rest.4,
                epoch,
                server_ts: rest.5,
                namespace: rest.6,
            });
    (spec, message, any::<[u8; 16]>()).prop_map(|(spec, message, key)| Case { spec, message, key })
}

fn case_and_addresses() -> impl Strategy<Value = (Case, (IpAddr, IpAddr))> {
    case().prop_flat_map(|case| {
        let v6 = case.spec.src.is_ipv6();
        (Just(case), addresses(v6))
    })
}

fn frame(case: &Case) -> Vec<u8> {
    let mut buf = [0xa5; 200];
    let key = AdoptionKey::from_bytes(case.key);
    let length = build_adoption(&mut buf, &case.spec, &case.message, &key).unwrap();
    assert!(buf[length..].iter().all(|b| *b == 0xa5));
    buf[..length].to_vec()
}

/// What a receiver believes of a frame.
fn accepted(frame: &[u8], key: [u8; 16]) -> Option<Adoption> {
    parse_adoption(frame, &segment(frame))?.verify(&AdoptionKey::from_bytes(key))
}

/// What of a message goes over the wire.
fn on_the_wire(message: Adoption) -> Adoption {
    match message.kind {
        MessageKind::Answer(_) => Adoption {
            mss: 0,
            server_wscale: 0,
            client_wscale: 0,
            wscale_ok: false,
            sack_ok: false,
            timestamps_ok: false,
            ecn_ok: false,
            ..message
        },
        _ => message,
    }
}

/// A destination says the same behind the wire, its peer's address by a block if it is another.
#[test]
fn a_destination_is_what_its_message_and_block_say() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let of = case().new_tree(&mut runner).unwrap().current().spec;
    let [src, dst] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().expect("an address"));
    for peer in [None, Some("192.0.2.7".parse().expect("an address"))] {
        let to = Destination {
            which: Which::Namespace(7 << 40),
            port: 81,
            peer_port: 4_321,
            peer,
            address_end: 9,
        };
        let (mut spec, message) = to.into_message(&SegmentSpec { src, dst, ..of }, 77, 1);
        let key = AdoptionKey::from_bytes([5; 16]);
        let block = to.block(&spec, &message, &key);
        spec.payload = block.as_ref().map_or(&[], |block| block);
        let mut frame = [0; 256];
        let length = build_adoption(&mut frame, &spec, &message, &key).expect("it fits");
        let frame = &frame[..length];
        let seg = segment(frame);
        // What the message is about is behind one byte more, and the block.
        let in_front = 1 + spec.payload.len() as u32;
        assert_eq!(seg.seq.add(in_front), spec.seq);
        let raw = parse_adoption(frame, &seg).expect("the layout");
        let read = raw.verify(&key).expect("the key");
        let stamps = baton_packet::timestamps(seg.options(frame)).expect("they are there");
        let block = parse_client_block(frame, &seg).map(|b| b.verify(&key).expect("the key"));
        let end = block.map(|block| (block.client, block.port).into());
        let said = |end| Destination::from_message(&read, seg.window, stamps, end);
        assert_eq!(said(end), Some(to));
        // One without the other.
        let half = match end {
            Some(_) => None,
            None => Some("192.0.2.7:1".parse().expect("an end")),
        };
        assert_eq!(said(half), None);
    }
}

proptest! {
    #[test]
    fn round_trip(case in case()) {
        let frame = frame(&case);
        let read = oracle(&frame);
        prop_assert!(read.ip_checksum_right && read.tcp_checksum_right);
        prop_assert_eq!(read.tcp.header_len(), ADOPTION_HEADER_BYTES);
        prop_assert!(read.payload.is_empty());
        let answer = matches!(case.message.kind, MessageKind::Answer(_));
        let seg = segment(&frame);
        let flags = match case.message.kind {
            MessageKind::Answer(_) => Flags::RST | Flags::ACK,
            MessageKind::Forget => Flags::SYN,
            MessageKind::Adopt
            | MessageKind::Probe
            | MessageKind::Release
            | MessageKind::Transfer => Flags::ACK,
        };
        prop_assert_eq!(seg.flags, flags);
        prop_assert_eq!(seg.window, if answer { 0 } else { case.spec.window });
        prop_assert_eq!(baton_packet::timestamps(seg.options(&frame)), Some(case.spec.timestamps.unwrap_or((0, 0))));
        let raw = parse_adoption(&frame, &seg).expect("the layout");
        prop_assert_eq!(raw.epoch(), case.message.epoch);
        prop_assert_eq!(accepted(&frame, case.key), Some(on_the_wire(case.message)));
    }

    #[test]
    fn another_key_is_refused(case in case(), other in any::<[u8; 16]>(), bit in 0usize..128) {
        prop_assume!(other != case.key);
        let frame = frame(&case);
        prop_assert_eq!(accepted(&frame, other), None);
        let mut near = case.key;
        near[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(accepted(&frame, near), None);
    }

    #[test]
    fn a_message_on_another_tuple_is_refused((case, (src, dst)) in case_and_addresses()) {
        let mut other = frame(&case);
        let to = baton_packet::Rewrite {
            src, dst, src_port: case.spec.src_port, dst_port: case.spec.dst_port,
            src_mac: case.spec.src_mac, dst_mac: case.spec.dst_mac,
        };
        let seg = segment(&other);
        prop_assume!((src, dst) != (case.spec.src, case.spec.dst));
        baton_packet::rewrite_tcp(&mut other, &seg, &to).unwrap();
        prop_assert_eq!(accepted(&other, case.key), None);
    }
}

/// Every bit of the addresses and of the TCP header is covered: by the tag, by the layout, or it
/// does not belong to the message (checksum, urgent pointer, reserved bits; the options behind a
/// smaller data offset).
#[test]
fn each_flipped_bit_is_noticed() {
    for v6 in [false, true] {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        for _ in 0..8 {
            let case = loop {
                let case = case().new_tree(&mut runner).unwrap().current();
                if case.spec.src.is_ipv6() == v6 {
                    break case;
                }
            };
            let right = frame(&case);
            let l4 = usize::from(segment(&right).l4);
            let addresses = if v6 { 22..54 } else { 26..34 };
            for at in addresses.chain(l4..l4 + ADOPTION_HEADER_BYTES) {
                // Checksum and urgent pointer; the low half of the data offset's byte is reserved.
                let uncovered = (16..20).contains(&at.wrapping_sub(l4));
                let bits = if at == l4 + 12 { 4..8 } else { 0..8 };
                for bit in bits {
                    let mut wrong = right.clone();
                    wrong[at] ^= 1 << bit;
                    if !v6 && at < l4 {
                        // Else decode refuses it before anything else looks.
                        wrong[24..26].fill(0);
                        let ip = etherparse::Ipv4Header::from_slice(&wrong[14..]).unwrap().0;
                        wrong[24..26].copy_from_slice(&ip.calc_header_checksum().to_be_bytes());
                    }
                    if at == l4 + 12 && baton_packet::decode(&wrong).is_err() {
                        continue;
                    }
                    let expected = uncovered.then(|| on_the_wire(case.message));
                    assert_eq!(accepted(&wrong, case.key), expected, "byte {at} bit {bit}");
                }
            }
        }
    }
}

#[test]
fn nothing_but_a_bare_message_is_one() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let case = case().new_tree(&mut runner).unwrap().current();
    let key = AdoptionKey::from_bytes(case.key);
    let with_payload = SegmentSpec { payload: &[1], ..case.spec };
    assert_eq!(build_adoption(&mut [0; 200], &with_payload, &case.message, &key), None);
    let length = frame(&case).len();
    assert_eq!(build_adoption(&mut vec![0; length - 1], &case.spec, &case.message, &key), None);

    // The same header with a byte of payload behind it.
    let mut longer = frame(&case);
    longer.push(0);
    let seg = segment(&longer);
    let seg = baton_packet::Segment { end: seg.end + 1, ..seg };
    assert!(parse_adoption(&longer, &seg).is_none());
}

#[test]
fn scales_beyond_the_limit_are_cut() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut case = case().new_tree(&mut runner).unwrap().current();
    case.message = Adoption {
        kind: MessageKind::Adopt,
        server_wscale: 200,
        client_wscale: 15,
        epoch: 0x2f,
        ..case.message
    };
    let read = accepted(&frame(&case), case.key).unwrap();
    assert_eq!((read.server_wscale, read.client_wscale, read.epoch), (14, 14, 15));
}

#[test]
fn reasons_and_codes() {
    for (i, reason) in Reason::ALL.iter().enumerate() {
        assert_eq!(usize::from(reason.code()), i + 1);
        assert_eq!(Reason::from_code(reason.code()), Some(*reason));
        let exact = !matches!(
            reason,
            Reason::AlreadyAdopted | Reason::Renew | Reason::Kept | Reason::Moved
        );
        assert_eq!(reason.pod_never_had_it(), exact);
    }
    assert_eq!(Reason::from_code(0), None);
    assert_eq!(Reason::from_code(Reason::ALL.len() as u16 + 1), None);
}

#[test]
fn keys_are_read_and_never_shown() {
    let key = AdoptionKey::from_hex("000102030405060708090A0b0c0d0e0f").unwrap();
    let same = AdoptionKey::from_bytes(std::array::from_fn(|i| i as u8));
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let case = case().new_tree(&mut runner).unwrap().current();
    let (mut a, mut b) = ([0; 200], [0; 200]);
    assert!(build_adoption(&mut a, &case.spec, &case.message, &key).is_some());
    assert!(build_adoption(&mut b, &case.spec, &case.message, &same).is_some());
    assert_eq!(a, b);
    assert_eq!(format!("{key:?}"), "AdoptionKey(secret)");
    assert_eq!(AdoptionKey::from_hex("00").unwrap_err(), KeyError::Length { found: 2 });
    let wrong = "0001020304050607080g0A0b0c0d0e0f";
    assert_eq!(AdoptionKey::from_hex(wrong).unwrap_err(), KeyError::NotHex { position: 20 });
    assert_eq!(
        AdoptionKey::from_hex("é00102030405060708090A0b0c0d0e0").unwrap_err(),
        KeyError::NotHex { position: 1 }
    );
}
