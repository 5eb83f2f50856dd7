//! The adoption option: any message, any forgery, any bytes in its place. An input is a message and
//! what is done to it: see [`case_of`].
//!
//! The judge of a forgery is the definition: only what a holder of the key has said is believed,
//! and it is believed as it was said.

use crate::{address, fix, support};
use baton_packet::{
    ADOPTION_HEADER_BYTES, Adoption, AdoptionKey, Decoded, Flags, Mac, MessageKind, Reason,
    SegmentSpec, SeqNumber, build_adoption, decode, parse_adoption, tcp_checksum_state,
};

/// Bytes of an input that make the message; the rest changes it.
const MESSAGE_BYTES: usize = 44;

struct Case {
    spec: SegmentSpec<'static>,
    message: Adoption,
    key: [u8; 16],
    stamps: (u32, u32),
}

/// Kind and family, epoch, flags, scales, then numbers, key and the number of the namespace.
fn case_of(input: &[u8]) -> (Case, &[u8]) {
    let mut bytes = [0; MESSAGE_BYTES];
    let (head, rest) = input.split_at(input.len().min(MESSAGE_BYTES));
    bytes[..head.len()].copy_from_slice(head);
    let be32 = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
    let be16 = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let [kind, epoch, flags, scales, ..] = bytes;
    let v6 = kind & 0x80 != 0;
    let stamps = (be32(24), be32(28));
    let case = Case {
        spec: SegmentSpec {
            src_mac: Mac(support::SRC_MAC),
            dst_mac: Mac(support::DST_MAC),
            src: address(v6, 1),
            dst: address(v6, 2),
            src_port: be16(4),
            dst_port: be16(6),
            seq: SeqNumber(be32(8)),
            ack: SeqNumber(be32(12)),
            flags: Flags(flags),
            window: be16(16),
            timestamps: (kind & 0x40 == 0).then_some(stamps),
            payload: &[],
        },
        message: Adoption {
            kind: match usize::from(kind & 15).checked_sub(5) {
                None if kind & 15 == 4 => MessageKind::Transfer,
                None if kind & 3 == 0 => MessageKind::Adopt,
                None if kind & 3 == 1 => MessageKind::Probe,
                None if kind & 3 == 2 => MessageKind::Release,
                None => MessageKind::Forget,
                Some(n) => MessageKind::Answer(Reason::ALL[n % Reason::ALL.len()]),
            },
            mss: be16(18),
            server_wscale: scales >> 4,
            client_wscale: scales & 15,
            wscale_ok: flags & 1 != 0,
            sack_ok: flags & 2 != 0,
            timestamps_ok: flags & 4 != 0,
            ecn_ok: flags & 8 != 0,
            epoch: epoch & 15,
            server_ts: be32(20),
            namespace: u64::from(be32(36)) << 32 | u64::from(be32(40)),
        },
        key: [bytes[32]; 16],
        stamps: if kind & 0x40 == 0 { stamps } else { (0, 0) },
    };
    (case, rest)
}

/// What of a message goes over the wire: scales up to 14, of an answer nothing but reason, epoch
/// and number.
fn on_the_wire(message: &Adoption) -> Adoption {
    let answer = matches!(message.kind, MessageKind::Answer(_));
    let said = |on: bool| on && !answer;
    let scale = |n: u8| if answer { 0 } else { n.min(14) };
    Adoption {
        mss: if answer { 0 } else { message.mss },
        server_wscale: scale(message.server_wscale),
        client_wscale: scale(message.client_wscale),
        wscale_ok: said(message.wscale_ok),
        sack_ok: said(message.sack_ok),
        timestamps_ok: said(message.timestamps_ok),
        ecn_ok: said(message.ecn_ok),
        ..*message
    }
}

/// A frame with right checksums, whatever was done to it.
fn mended(mut frame: Vec<u8>) -> Vec<u8> {
    let l4 = if frame[12..14] == [8, 0] { 34 } else { 54 };
    if l4 == 34 {
        fix(&mut frame, 14..34, 24, 0);
    }
    let addresses = if l4 == 34 { 26..34 } else { 22..54 };
    let pairs = frame[addresses].chunks(2);
    let sum: u32 = pairs.map(|p| u32::from(p[0]) << 8 | u32::from(p[1])).sum();
    let end = frame.len();
    fix(&mut frame, l4..end, l4 + 16, sum + 6 + (end - l4) as u32);
    frame
}

/// What is believed of a frame.
fn believed(frame: &[u8], key: &AdoptionKey) -> Option<Adoption> {
    let Ok(Decoded::Tcp(segment)) = decode(frame) else {
        return None;
    };
    parse_adoption(frame, &segment)?.verify(key)
}

/// The bytes that a tag covers: ports and numbers, flags, window, options; and addresses. Not:
/// checksum, urgent pointer, reserved bits.
fn covered(frame: &[u8]) -> Vec<u8> {
    let (l4, addresses) = if frame[12..14] == [8, 0] { (34, 26..34) } else { (54, 22..54) };
    let mut bytes = frame[addresses].to_vec();
    bytes.extend(&frame[l4..l4 + 12]);
    bytes.push(frame[l4 + 12] & 0xf0);
    bytes.extend(&frame[l4 + 13..l4 + 16]);
    bytes.extend(&frame[l4 + 20..l4 + ADOPTION_HEADER_BYTES]);
    bytes
}

/// What a holder of the key says is believed as it was said; nothing else is.
pub fn check(input: &[u8]) {
    let (case, changes) = case_of(input);
    let key = AdoptionKey::from_bytes(case.key);
    let mut buffer = [0xa5; 128];
    let built = build_adoption(&mut buffer, &case.spec, &case.message, &key);
    let len = built.expect("room for a message");
    assert!(buffer[len..].iter().all(|b| *b == 0xa5), "written behind");
    let frame = &buffer[..len];

    // As it was said, it is believed: with the key, and with no other.
    let Ok(Decoded::Tcp(segment)) = decode(frame) else { panic!("{:?}", decode(frame)) };
    assert_eq!(tcp_checksum_state(frame, &segment), baton_packet::ChecksumState::Full);
    let said = on_the_wire(&case.message);
    assert_eq!(believed(frame, &key), Some(said));
    assert_eq!(baton_packet::timestamps(segment.options(frame)), Some(case.stamps));
    let other = AdoptionKey::from_bytes(case.key.map(|b| b.wrapping_add(1)));
    assert_eq!(believed(frame, &other), None);

    // Pairs change a byte of the packet; checksums are right all the same.
    let (first, mut forged) = (usize::from(segment.l3), frame.to_vec());
    for change in changes.chunks_exact(2) {
        let at = first + usize::from(change[0]) % (len - first);
        forged[at] = change[1];
    }
    let forged = mended(forged);
    let is_believed = believed(&forged, &key);
    if decode(&forged).is_ok_and(|d| matches!(d, Decoded::Tcp(_))) && forged.len() == len {
        let same = covered(&forged) == covered(frame);
        // By chance: 2^-64.
        assert!(same || is_believed.is_none(), "{is_believed:?}");
    }

    // Any bytes where the options are.
    let options = usize::from(segment.l4) + 20..len;
    let mut any = frame.to_vec();
    for (byte, change) in any[options].iter_mut().zip(changes) {
        *byte = *change;
    }
    let changed = any != frame;
    let any = mended(any);
    assert!(!changed || believed(&any, &key).is_none());
}
