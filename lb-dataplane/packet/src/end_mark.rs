//! End marks: the last segment of a connection says whose it is, in a field that means nothing
//! without its flag.
//!
//! A FIN alone does not tell a server that closes a connection from one that dies or shuts down.
//! The adopter in the pod marks the FIN or RST that a process sends while it exits (Linux
//! `PF_EXITING`), or while it has the port's listener among its descriptors: the urgent pointer
//! holds the mark without the URG flag, which RFC 9293, 3.1, has receivers ignore. Owns the marks'
//! place; never what follows from them.

use crate::{
    Flags, Segment,
    bytes::array_mut,
    checksum::TCP_CHECK,
    decode::TCP_BYTES,
    rewrite::{patch, replace},
};

/// What is known of the process that ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndMark {
    /// It was exiting.
    Exiting,
    /// It had the listener of the connection's port.
    Listening,
    /// It had the listener, too, and shut its side down with bytes of the client's unread.
    Unread,
    /// It had read nothing of what a Release asked about, and the adopter let the connection go.
    Released,
}

impl EndMark {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Exiting, Self::Listening, Self::Unread, Self::Released];

    /// The urgent pointer of such a segment.
    #[must_use]
    pub const fn urgent_pointer(self) -> u16 {
        match self {
            Self::Exiting => 0xBA7E,
            Self::Listening => 0xBA7F,
            Self::Released => 0xBA80,
            Self::Unread => 0xBA81,
        }
    }
}

const URGENT_POINTER: usize = 18;

/// Takes the mark off a FIN or RST and says which it was. The checksum is updated incrementally.
#[must_use]
pub fn take_end_mark(frame: &mut [u8], seg: &Segment) -> Option<EndMark> {
    EndMark::ALL.into_iter().find(|mark| set_urgent_pointer(frame, seg, mark.urgent_pointer(), 0))
}

/// The mark of a FIN or RST, which stays.
#[must_use]
pub fn end_mark(frame: &[u8], seg: &Segment) -> Option<EndMark> {
    let at = usize::from(seg.l4) + URGENT_POINTER;
    let may_have_one = seg.flags.any(Flags::FIN | Flags::RST) && !seg.flags.has(Flags::URG);
    let pointer = frame.get(at..at + 2).filter(|_| may_have_one)?;
    let is = |mark: &EndMark| pointer == mark.urgent_pointer().to_be_bytes();
    EndMark::ALL.into_iter().find(is)
}

/// Marks a FIN or RST, as the adopter does; false if it is another segment or its urgent pointer is
/// in use.
pub fn put_end_mark(frame: &mut [u8], seg: &Segment, mark: EndMark) -> bool {
    set_urgent_pointer(frame, seg, 0, mark.urgent_pointer())
}

fn set_urgent_pointer(frame: &mut [u8], seg: &Segment, from: u16, to: u16) -> bool {
    if !seg.flags.any(Flags::FIN | Flags::RST) || seg.flags.has(Flags::URG) {
        return false;
    }
    let Some(tcp) = array_mut::<TCP_BYTES>(frame, usize::from(seg.l4)) else {
        return false;
    };
    if tcp[URGENT_POINTER..] != from.to_be_bytes() {
        return false;
    }
    let [.., a, b, _, _] = *tcp;
    let [c, d] = to.to_be_bytes();
    let delta = replace(tcp, TCP_CHECK, &[a, b, c, d]);
    patch(tcp, TCP_CHECK, delta);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ChecksumState, Decoded, Mac, SegmentSpec, SeqNumber, build_segment, decode,
        tcp_checksum_state,
    };

    fn built(flags: Flags) -> Vec<u8> {
        let mut frame = vec![0; 2_048];
        let spec = SegmentSpec {
            src_mac: Mac([2; 6]),
            dst_mac: Mac([4; 6]),
            src: "10.0.0.1".parse().unwrap(),
            dst: "10.0.0.2".parse().unwrap(),
            src_port: 80,
            dst_port: 40_000,
            seq: SeqNumber(7),
            ack: SeqNumber(9),
            flags,
            window: 512,
            timestamps: Some((1, 2)),
            payload: b"bye",
        };
        let bytes = build_segment(&mut frame, &spec).unwrap();
        frame.truncate(bytes);
        frame
    }

    fn segment(frame: &[u8]) -> Segment {
        match decode(frame) {
            Ok(Decoded::Tcp(segment)) => segment,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_mark_goes_on_and_off_and_leaves_the_frame_as_it_was() {
        for flags in [Flags::FIN | Flags::ACK, Flags::RST, Flags::RST | Flags::ACK] {
            for mark in EndMark::ALL {
                let plain = built(flags);
                let mut frame = plain.clone();
                let seg = segment(&frame);
                assert_eq!(take_end_mark(&mut frame, &seg), None);
                assert!(put_end_mark(&mut frame, &seg, mark));
                assert_ne!(frame, plain);
                assert_eq!(tcp_checksum_state(&frame, &seg), ChecksumState::Full);
                assert_eq!(take_end_mark(&mut frame, &seg), Some(mark));
                assert_eq!(frame, plain);
            }
        }
    }

    /// A FIN that was cut up by the device, as its sender's kernel left that to it.
    #[test]
    fn no_segment_leaves_with_a_mark() {
        for flags in [Flags::ACK, Flags::ACK | Flags::PSH, Flags::FIN | Flags::ACK] {
            for pointer in (0xBA7D..=0xBA81_u16).chain([0, 1]) {
                let mut frame = built(flags);
                let seg = segment(&frame);
                let at = usize::from(seg.l4) + URGENT_POINTER;
                let tcp = array_mut::<TCP_BYTES>(&mut frame, usize::from(seg.l4)).unwrap();
                let [.., a, b, _, _] = *tcp;
                let [c, d] = pointer.to_be_bytes();
                let delta = replace(tcp, TCP_CHECK, &[a, b, c, d]);
                patch(tcp, TCP_CHECK, delta);
                let seg = segment(&frame);
                assert!(pointer == 0 || crate::plain::<crate::V4, true>(&frame).is_none());
                let to = crate::Rewrite {
                    src: seg.src,
                    dst: seg.dst,
                    src_port: seg.src_port,
                    dst_port: 5,
                    src_mac: Mac([1; 6]),
                    dst_mac: Mac([3; 6]),
                };
                crate::rewrite_tcp(&mut frame, &seg, &to).unwrap();
                let left = u16::from_be_bytes([frame[at], frame[at + 1]]);
                assert_eq!(left, 0, "{pointer:x}");
                let sum = tcp_checksum_state(&frame, &segment(&frame));
                assert_eq!(sum, ChecksumState::Full, "{pointer:x}");
            }
        }
    }

    #[test]
    fn only_the_last_segment_of_a_stream_is_marked_and_urgent_data_is_let_alone() {
        for flags in [Flags::ACK, Flags::SYN | Flags::ACK, Flags::FIN | Flags::ACK | Flags::URG] {
            let plain = built(flags);
            let mut frame = plain.clone();
            let seg = segment(&frame);
            assert!(!put_end_mark(&mut frame, &seg, EndMark::Exiting));
            assert_eq!(frame, plain);
        }
        let mut frame = built(Flags::FIN | Flags::ACK);
        let seg = segment(&frame);
        // Another urgent pointer than a mark.
        frame[usize::from(seg.l4) + URGENT_POINTER] = 1;
        assert!(!put_end_mark(&mut frame, &seg, EndMark::Exiting));
        assert_eq!(take_end_mark(&mut frame, &seg), None);
    }

    #[test]
    fn a_view_of_another_frame_does_no_harm() {
        let seg = segment(&built(Flags::FIN));
        assert!(!put_end_mark(&mut [0; 20], &seg, EndMark::Listening));
    }
}
