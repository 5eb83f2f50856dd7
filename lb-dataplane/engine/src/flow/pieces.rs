//! Long segments as several: a slot of the kept copies holds a full frame at the usual MTU, a jumbo
//! frame takes up to five.
//!
//! Owns how many and where they are cut. What is kept in pieces is sent again in pieces; what is
//! forwarded is never cut.

use crate::containers::slots::{KEPT_BYTES, Slots};
use baton_packet::{Segment, part_of_segment};

/// Headers that leave less than this are not worth a slot: no TCP sender makes them.
const PAYLOAD_MIN: usize = 1_024;

fn room(segment: &Segment) -> usize {
    KEPT_BYTES.saturating_sub(usize::from(segment.payload))
}

/// Slots that a segment takes; more than there are, if it cannot be kept.
#[inline]
pub(crate) fn count(segment: &Segment) -> Slots {
    if usize::from(segment.end) <= KEPT_BYTES {
        return Slots::one(usize::from(segment.end));
    }
    let room = room(segment);
    if room < PAYLOAD_MIN {
        return Slots::TOO_MANY;
    }
    // At most 64, as frames have 16-bit lengths. All but the last are full.
    let payload = segment.payload_len() as usize;
    let full = payload.div_ceil(room).saturating_sub(1);
    let last = usize::from(segment.payload) + payload - full * room;
    let mut slots = Slots::one(last);
    slots += Slots { all: full as u32, long: full as u32 };
    slots
}

/// Calls `f` with each piece in order, until it says no. False if it did, or if a piece cannot be
/// made.
#[inline]
pub(crate) fn all(frame: &[u8], segment: &Segment, mut f: impl FnMut(&[u8]) -> bool) -> bool {
    if let Some(frame) = frame.get(..usize::from(segment.end))
        && frame.len() <= KEPT_BYTES
    {
        return f(frame);
    }
    cut(frame, segment, f)
}

#[cold]
fn cut(frame: &[u8], segment: &Segment, mut f: impl FnMut(&[u8]) -> bool) -> bool {
    let (room, payload) = (room(segment), segment.payload_len() as usize);
    if room < PAYLOAD_MIN {
        return false;
    }
    let mut piece = [0; KEPT_BYTES];
    let mut from = 0;
    while from < payload {
        let len = room.min(payload - from);
        let made = part_of_segment(frame, segment, from, len, &mut piece);
        if !made.and_then(|end| piece.get(..end)).is_some_and(&mut f) {
            return false;
        }
        from += len;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_packet::{Decoded, Flags, Mac, SegmentSpec, SeqNumber, build_segment, decode};
    use std::net::Ipv4Addr;

    fn segment_of(payload: &[u8]) -> (Vec<u8>, Segment) {
        let spec = SegmentSpec {
            src_mac: Mac([2; 6]),
            dst_mac: Mac([4; 6]),
            src: Ipv4Addr::new(10, 0, 0, 1).into(),
            dst: Ipv4Addr::new(10, 0, 0, 2).into(),
            src_port: 1,
            dst_port: 2,
            seq: SeqNumber(u32::MAX - 3),
            ack: SeqNumber(9),
            flags: Flags::ACK | Flags::PSH | Flags::FIN,
            window: 7,
            timestamps: Some((1, 2)),
            payload,
        };
        let mut frame = vec![0; payload.len() + 100];
        let len = build_segment(&mut frame, &spec).expect("it fits");
        frame.truncate(len);
        let Ok(Decoded::Tcp(segment)) = decode(&frame) else { panic!("a segment") };
        (frame, segment)
    }

    #[test]
    fn a_segment_is_cut_into_as_many_pieces_as_it_counts() {
        for (bytes, pieces) in [(0, 1), (1_448, 1), (1_534, 1), (1_535, 2), (8_949, 6)] {
            let payload: Vec<u8> = (0..bytes).map(|i| (i * 7 + i / 251) as u8).collect();
            let (frame, whole) = segment_of(&payload);
            let (mut seen, mut next, mut joined) = (Slots::default(), whole.seq, Vec::<u8>::new());
            assert!(all(&frame, &whole, |piece| {
                let Ok(Decoded::Tcp(part)) = decode(piece) else {
                    return false;
                };
                assert!(piece.len() <= KEPT_BYTES && part.seq == next);
                joined.extend(part.data(piece));
                next = part.seq.add(part.seq_len());
                seen += Slots::one(piece.len());
                true
            }));
            assert_eq!(count(&whole), seen, "{bytes} bytes");
            assert_eq!(seen.all, pieces);
            assert_eq!(next, whole.seq.add(whole.seq_len()));
            assert!(joined == payload);
            assert!(!all(&frame, &whole, |_| false));
        }
    }
}
