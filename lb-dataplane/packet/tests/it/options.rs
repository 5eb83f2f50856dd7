//! Options: read, looked up, stripped.

use crate::support::{oracle, packet, segment};
use baton_packet::{
    ChecksumState, STRIPPED_FROM_CLIENTS, SynOptions, parse_syn_options, strip_options,
    tcp_checksum_state, timestamps,
};
use etherparse::{TcpOptionElement, TcpOptions};
use proptest::{collection::vec, prelude::*};

/// Kinds and ranges of the options, as Linux's `tcp_parse_options` walks them.
fn list(options: &[u8]) -> Vec<(u8, std::ops::Range<usize>)> {
    let (mut all, mut at) = (vec![], 0);
    while at < options.len() {
        match options[at] {
            0 => break,
            1 => at += 1,
            kind => {
                let Some(length) = options.get(at + 1).map(|l| usize::from(*l)) else {
                    break;
                };
                if length < 2 || at + length > options.len() {
                    break;
                }
                all.push((kind, at..at + length));
                at += length;
            }
        }
    }
    all
}

fn is_fast_open(options: &[u8], kind: u8, range: &std::ops::Range<usize>) -> bool {
    kind == 34 || (kind >= 253 && options[range.clone()].get(2..4) == Some(&[0xf9, 0x89]))
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(options in vec(any::<u8>(), 0..80)) {
        let _ = parse_syn_options(&options);
        let _ = timestamps(&options);
    }

    #[test]
    fn agrees_with_etherparse(options in crate::support::options()) {
        let mut expected = SynOptions::default();
        let raw = TcpOptions::try_from_slice(&options).unwrap();
        // etherparse stops at kinds it does not know; the rest of the list is compared with `list`.
        for element in raw.elements_iter() {
            match element {
                Ok(TcpOptionElement::MaximumSegmentSize(mss)) => expected.mss = Some(mss),
                Ok(TcpOptionElement::WindowScale(scale)) => expected.window_scale = Some(scale.min(14)),
                Ok(TcpOptionElement::SelectiveAcknowledgementPermitted) => expected.sack_permitted = true,
                Ok(TcpOptionElement::Timestamp(value, echo)) => expected.timestamps = Some((value, echo)),
                Ok(_) => {}
                Err(_) => return Ok(()),
            }
        }
        prop_assert_eq!(parse_syn_options(&options), expected);
    }

    #[test]
    fn flags_of_the_options_that_are_stripped(options in crate::support::options()) {
        let read = parse_syn_options(&options);
        let list = list(&options);
        prop_assert_eq!(read.has_mptcp, list.iter().any(|(kind, _)| *kind == 30));
        prop_assert_eq!(read.has_tfo, list.iter().any(|(kind, range)| is_fast_open(&options, *kind, range)));
        let adoption = |(kind, range): &(u8, std::ops::Range<usize>)| {
            *kind == 253 && matches!(options[range.clone()].get(2..4), Some([0xba, 0x70..=0x73]))
        };
        prop_assert_eq!(read.has_adoption, list.iter().any(adoption));
    }

    #[test]
    fn both_readers_find_the_same_timestamps(options in crate::support::options()) {
        let stamps: Vec<_> = list(&options).into_iter().filter(|(kind, range)| *kind == 8 && range.len() == 10).collect();
        let value = |range: &std::ops::Range<usize>| {
            let bytes = &options[range.clone()];
            (u32::from_be_bytes(bytes[2..6].try_into().unwrap()), u32::from_be_bytes(bytes[6..10].try_into().unwrap()))
        };
        // Of two the last one counts for Linux.
        let last = stamps.last().map(|(_, range)| value(range));
        prop_assert_eq!([timestamps(&options), parse_syn_options(&options).timestamps], [last; 2]);
    }

    #[test]
    fn strip_takes_what_it_shall_and_nothing_else(packet in packet(), strip in prop_oneof![
        4 => Just(STRIPPED_FROM_CLIENTS.to_vec()),
        1 => Just(vec![34]),
        1 => Just(vec![]),
        1 => vec(any::<u8>(), 0..4).prop_map(|mut kinds| { kinds.retain(|kind| *kind > 1); kinds }),
    ]) {
        let before = packet.frame();
        let seg = segment(&before);
        let mut frame = before.clone();
        let changed = strip_options(&mut frame, &seg, &strip);

        let mut options = packet.options.clone();
        for (kind, range) in list(&packet.options) {
            if strip.contains(&kind) || (strip.contains(&34) && is_fast_open(&packet.options, kind, &range)) {
                options[range].fill(1);
            }
        }
        prop_assert_eq!(changed, options != packet.options);
        prop_assert_eq!(seg.options(&frame), &options[..]);
        let expected = crate::support::Packet { options, ..packet.clone() };
        prop_assert_eq!(&frame, &expected.frame());
        prop_assert!(oracle(&frame).tcp_checksum_right);
        prop_assert_eq!(tcp_checksum_state(&frame, &seg), ChecksumState::Full);
        // Nothing is left to strip.
        prop_assert!(!strip_options(&mut frame, &seg, &strip));
    }

    #[test]
    fn a_corrupt_segment_stays_corrupt_when_stripped(packet in packet(), flip in 1u8..=255) {
        let mut frame = packet.frame();
        let seg = segment(&frame);
        frame[usize::from(seg.l4) + 4] ^= flip;
        let _ = strip_options(&mut frame, &seg, STRIPPED_FROM_CLIENTS);
        prop_assert!(!oracle(&frame).tcp_checksum_right);
    }
}

#[test]
fn a_linux_syn() {
    let options = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0, 1, 3, 3, 7];
    let expected = SynOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some((9, 0)),
        ..SynOptions::default()
    };
    assert_eq!(parse_syn_options(&options), expected);
}

#[test]
fn corners_of_lists() {
    // A scale beyond the limit; wrong lengths are passed over; nothing behind the end of the list
    // counts.
    assert_eq!(parse_syn_options(&[3, 3, 15, 1]).window_scale, Some(14));
    assert_eq!(parse_syn_options(&[2, 3, 9, 3, 4, 1, 1, 4, 3, 0]), SynOptions::default());
    assert_eq!(parse_syn_options(&[0, 4, 2, 1]), SynOptions::default());
    assert!(parse_syn_options(&[1, 1, 4, 2]).sack_permitted);
    // Lengths 0 and 1, and one that leaves the header, end the list.
    for length in [0, 1, 5] {
        assert_eq!(parse_syn_options(&[4, length, 4, 2]), SynOptions::default(), "{length}");
    }
    assert_eq!(timestamps(&[8, 9, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1]), None);
    assert_eq!(timestamps(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0]), None);
    assert_eq!(timestamps(&[8, 10, 0, 0, 0, 1, 0, 0, 0, 2]), Some((1, 2)));
    assert_eq!(timestamps(&[]), None);
    // Of two the later, but no wrong one.
    let two = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 8, 10, 0, 0, 0, 3, 0, 0, 0, 4, 8, 2];
    assert_eq!(timestamps(&two), Some((3, 4)));
    // An experiment without an id.
    assert_eq!(parse_syn_options(&[253, 2, 254, 3, 9]), SynOptions::default());
}
