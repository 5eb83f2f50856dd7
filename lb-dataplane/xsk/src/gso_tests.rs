//! Segments against what etherparse reads in them, and put together again.

use super::*;
use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TcpSlice, TransportSlice};
use proptest::prelude::*;

const SEQUENCE: u32 = u32::MAX - 5_000;

fn large(v6: bool, payload: &[u8], options: bool) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2([2; 6], [4; 6]);
    let network = if v6 {
        ethernet.ipv6([1; 16], [2; 16], 60)
    } else {
        ethernet.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 60)
    };
    let mut step = network.tcp(1234, 80, SEQUENCE, 500).ack(77).psh().fin().cwr();
    if options {
        step = step.options(&[etherparse::TcpOptionElement::Timestamp(5, 6)]).expect("options fit");
    }
    let mut frame = Vec::new();
    step.write(&mut frame, payload).expect("a Vec takes all");
    frame
}

fn cut(frame: &[u8], segment_bytes: usize, checksum: Checksum) -> Result<Vec<Vec<u8>>, GsoError> {
    let mut segments = Segments::new(frame, segment_bytes, 2048, checksum)?;
    let mut all = Vec::new();
    let mut buffer = vec![0xa5; 2048];
    while let Some(len) = segments.next_into(&mut buffer) {
        all.push(buffer[..len].to_vec());
        buffer.fill(0xa5);
    }
    Ok(all)
}

fn tcp_of<'a>(packet: &SlicedPacket<'a>) -> TcpSlice<'a> {
    match &packet.transport {
        Some(TransportSlice::Tcp(tcp)) => tcp.clone(),
        other => panic!("{other:?}"),
    }
}

/// Checks every segment and returns the payload of all.
fn check(segments: &[Vec<u8>], original: &[u8], segment_bytes: usize) -> Vec<u8> {
    let whole = SlicedPacket::from_ethernet(original).expect("a packet");
    let whole_tcp = tcp_of(&whole);
    let mut payload = Vec::new();
    for (i, segment) in segments.iter().enumerate() {
        let last = i + 1 == segments.len();
        let packet = SlicedPacket::from_ethernet(segment).expect("a packet");
        let tcp = tcp_of(&packet);
        assert_eq!(&segment[..14], &original[..14]);
        assert_eq!(tcp.source_port(), 1234);
        assert_eq!(tcp.destination_port(), 80);
        assert_eq!(tcp.acknowledgment_number(), 77);
        assert_eq!(tcp.options(), whole_tcp.options());
        assert_eq!(tcp.sequence_number(), SEQUENCE.wrapping_add(payload.len() as u32));
        assert_eq!((tcp.fin(), tcp.psh()), (last, last), "segment {i}");
        assert_eq!(tcp.cwr(), i == 0, "segment {i}");
        assert!(tcp.ack());
        let part = tcp.payload();
        if !last {
            assert_eq!(part.len(), segment_bytes);
        }
        let header = tcp.to_header();
        // The complement of the pseudo-header's sum is what a full checksum over nothing else would
        // be: completing it over header and payload must give etherparse's.
        let partial = tcp.checksum();
        let mut zeroed = segment[segment.len() - tcp.slice().len()..].to_vec();
        zeroed[16..18].copy_from_slice(&partial.to_be_bytes());
        let completed = !fold(sum(&zeroed));
        let expected = match packet.net.as_ref().expect("a network layer") {
            NetSlice::Ipv4(ip) => {
                let ip = ip.header().to_header();
                assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                assert_eq!(ip.identification, i as u16);
                header.calc_checksum_ipv4(&ip, part)
            }
            NetSlice::Ipv6(ip) => header.calc_checksum_ipv6(&ip.header().to_header(), part),
            NetSlice::Arp(_) => panic!("no ARP here"),
        };
        let expected = expected.expect("a small packet");
        assert!(
            completed == expected || (completed ^ expected) == 0xffff,
            "segment {i}: {completed:04x} {expected:04x}"
        );
        payload.extend_from_slice(part);
    }
    payload
}

proptest! {
    #[test]
    fn segments_hold_the_whole_payload(
        v6 in any::<bool>(),
        options in any::<bool>(),
        payload in prop::collection::vec(any::<u8>(), 0..20_000),
        segment_bytes in 1_usize..1_900,
    ) {
        // As many segments of 1 byte prove no more than 200.
        let payload = &payload[..payload.len().min(segment_bytes * 200)];
        let frame = large(v6, payload, options);
        let segments = cut(&frame, segment_bytes, Checksum::Unverified).expect("good");
        prop_assert_eq!(segments.len(), payload.len().div_ceil(segment_bytes).max(1));
        let joined = check(&segments, &frame, segment_bytes);
        prop_assert_eq!(&joined[..], payload);
    }

    #[test]
    fn never_panics(mut frame in prop::collection::vec(any::<u8>(), 0..300), kind in 0..3) {
        if frame.len() > 14 {
            let (ethertype, version) = [([8, 0], 0x45), ([0x86, 0xdd], 0x60), ([0, 0], 0)][kind as usize];
            frame[12..14].copy_from_slice(&ethertype);
            frame[14] = version;
            if frame.len() > 24 {
                frame[if kind == 0 { 23 } else { 20 }] = PROTOCOL_TCP;
            }
        }
        let _ = cut(&frame, 100, Checksum::Trusted);
        let _ = cut(&frame, 100, Checksum::Unverified);
    }
}

#[test]
fn a_wrong_full_checksum_is_refused() {
    let mut frame = large(false, &[7; 5000], true);
    *frame.last_mut().expect("not empty") ^= 1;
    assert_eq!(cut(&frame, 1000, Checksum::Unverified), Err(GsoError::Checksum));
    assert_eq!(cut(&frame, 1000, Checksum::Unknown), Err(GsoError::Checksum));
    assert!(cut(&frame, 1000, Checksum::Trusted).is_ok());
}

#[test]
fn where_nobody_says_which_it_is_both_sums_are_good() {
    for v6 in [false, true] {
        let full = large(v6, &[7; 1_500], true);
        assert!(cut(&full, 1_000, Checksum::Unknown).is_ok());
        // What is cut out has the pseudo-header's only.
        let partial = cut(&full, 1_500, Checksum::Unverified).expect("good");
        assert_eq!(partial.len(), 1);
        assert!(cut(&partial[0], 1_000, Checksum::Unknown).is_ok());
        assert_eq!(cut(&partial[0], 1_000, Checksum::Unverified), Err(GsoError::Checksum));
    }
}

#[test]
fn trailing_padding_is_not_payload() {
    let mut frame = large(false, &[7; 100], false);
    frame.extend_from_slice(&[0xee; 20]);
    let segments = cut(&frame, 60, Checksum::Unverified).expect("good");
    assert_eq!(segments.len(), 2);
    frame.truncate(frame.len() - 20);
    assert_eq!(check(&segments, &frame, 60), [7; 100]);
}

/// As BIG TCP makes them. Linux puts the jumbo payload option in front of TCP, or leaves it out.
#[test]
fn what_is_longer_than_ip_can_say_is_cut_too() {
    for (v6, jumbo) in [(false, false), (true, false), (true, true)] {
        let original = large(v6, &[], true);
        let payload: Vec<u8> = (0..190_000_u32).map(|i| (i % 251) as u8).collect();
        let mut frame = original.clone();
        let length = if v6 { 18 } else { 16 };
        frame[length..length + 2].fill(0);
        if jumbo {
            let (option, tcp) = ([6, 0, 0xc2, 4], frame.len() - 54 + payload.len());
            frame[20] = 0;
            frame.splice(54..54, [option, (8 + tcp as u32).to_be_bytes()].concat());
        }
        // None behind its headers is no such thing.
        assert_eq!(cut(&frame, 1_400, Checksum::Trusted), Err(GsoError::NotTcp));
        frame.extend(&payload);
        let segments = cut(&frame, 1_400, Checksum::Trusted).expect("it can be cut");
        assert_eq!(segments.len(), payload.len().div_ceil(1_400));
        assert!(check(&segments, &original, 1_400) == payload, "{v6} {jumbo}");
        // Its full checksum counts all of it.
        assert_eq!(cut(&frame, 1_400, Checksum::Unverified), Err(GsoError::Checksum));
    }
}

#[test]
fn what_cannot_be_cut_is_refused() {
    let good = large(false, &[7; 3000], false);
    let size = |bytes| cut(&good, bytes, Checksum::Trusted).map(|s| s.len());
    assert_eq!(size(0), Err(GsoError::Size));
    assert_eq!(size(2048), Err(GsoError::Size));
    assert_eq!(size(1994), Ok(2));
    type Change = fn(&mut Vec<u8>);
    let cases: [(&str, Change); 6] = [
        ("UDP", |f| f[23] = 17),
        ("a fragment", |f| f[21] = 1),
        ("a short IP header", |f| f[14] = 0x44),
        ("a length beyond the frame", |f| f[16] = 0xff),
        ("a TCP header beyond the frame", |f| f.truncate(50)),
        ("a short TCP header", |f| f[46] = 0x40),
    ];
    for (name, change) in cases {
        let mut frame = good.clone();
        change(&mut frame);
        let result = cut(&frame, 1000, Checksum::Trusted);
        assert_eq!(result, Err(GsoError::NotTcp), "{name}");
    }
}
