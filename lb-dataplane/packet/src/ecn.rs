//! Accurate ECN (RFC 9768) is not passed on: what its counters mean depends on what was negotiated,
//! and a pod that adopts a connection knows classic ECN (RFC 3168) or none. Owns the AE flag of
//! SYNs; the options are `options`'s.

use crate::{
    Segment,
    bytes::array_mut,
    checksum::TCP_CHECK,
    decode::TCP_BYTES,
    rewrite::{patch, replace},
};

/// Data offset, three reserved bits, AE; then the other flags, and the window.
const OFFSET_AND_FLAGS: usize = 12;
const AE: u8 = 1;

/// Clears AE, so that a SYN that offers accurate ECN offers the classic one (section 3.1.2: its
/// sender falls back). Says whether it was set. The checksum is updated incrementally.
pub fn clear_accurate_ecn(frame: &mut [u8], seg: &Segment) -> bool {
    let Some(tcp) = array_mut::<TCP_BYTES>(frame, usize::from(seg.l4)) else {
        return false;
    };
    let [.., offset, flags, a, b, _, _, _, _] = *tcp;
    if offset & AE == 0 {
        return false;
    }
    let delta = replace(tcp, OFFSET_AND_FLAGS, &[offset & !AE, flags, a, b]);
    patch(tcp, TCP_CHECK, delta);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ChecksumState, Decoded, Flags, Mac, SegmentSpec, SeqNumber, build_segment, decode,
        settle_tcp_checksum, tcp_checksum_state,
    };

    #[test]
    fn a_syn_with_accurate_ecn_becomes_one_with_the_classic() {
        let mut frame = vec![0; 128];
        let spec = SegmentSpec {
            src_mac: Mac([2; 6]),
            dst_mac: Mac([4; 6]),
            src: "10.0.0.1".parse().unwrap(),
            dst: "10.0.0.2".parse().unwrap(),
            src_port: 4_711,
            dst_port: 80,
            seq: SeqNumber(7),
            ack: SeqNumber(0),
            flags: Flags::SYN | Flags::ECE | Flags::CWR,
            window: 512,
            timestamps: Some((1, 0)),
            payload: &[],
        };
        let bytes = build_segment(&mut frame, &spec).unwrap();
        frame.truncate(bytes);
        let Ok(Decoded::Tcp(seg)) = decode(&frame) else { panic!("no segment") };
        let classic = frame.clone();
        assert!(!clear_accurate_ecn(&mut frame, &seg));
        assert_eq!(frame, classic);

        let at = usize::from(seg.l4) + OFFSET_AND_FLAGS;
        frame[at] |= AE;
        assert_eq!(settle_tcp_checksum(&mut frame, &seg), ChecksumState::Bad);
        let check = usize::from(seg.l4) + TCP_CHECK;
        // One more in the high byte of a word is one less in the checksum's.
        frame[check] = frame[check].checked_sub(AE).expect("no borrow");
        assert_eq!(tcp_checksum_state(&frame, &seg), ChecksumState::Full);
        assert!(clear_accurate_ecn(&mut frame, &seg));
        assert_eq!(frame, classic);
    }
}
