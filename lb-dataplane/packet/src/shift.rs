//! The shift of a translated leg: what lies between the numbers of a pod's socket, which it chose
//! itself, and those that the client knows.
//!
//! Owns the change of a segment's own numbers in place: the pod's sequence numbers and timestamps
//! on the way to the client, what acknowledges and echoes them on the way back (with selective
//! acknowledgements, RFC 2018), and windows where the two scales differ (RFC 7323 section 2). The
//! client's numbers are the same on both sides. A shift is constant for the leg's life; it never
//! changes the length of anything.

use crate::{
    Flags, IcmpError, Segment, SeqNumber,
    bytes::array_mut,
    checksum::TCP_CHECK,
    decode::TCP_BYTES,
    options::{SACK, TIMESTAMPS, change_options},
    rewrite::{change, patch, replace},
};

const SEQ: usize = 4;
const ACK: usize = 8;
/// Data offset, flags, window.
const WINDOW: usize = 12;

/// What is added to the numbers of a pod's socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shift {
    /// To its sequence numbers.
    pub seq: u32,
    /// To its timestamps.
    pub stamps: u32,
    /// Its first timestamp, as the client knows it. What the client echoes of before was another
    /// pod's, and means this one to this pod: Linux takes no handshake whose end echoes another
    /// (`tcp_check_req`).
    pub stamps_from: u32,
    /// How far the pod shifts its windows.
    pub pod_scale: u8,
    /// How far the client does, as it was told when it connected.
    pub client_scale: u8,
}

impl Shift {
    /// Gives a segment of the pod's the client's numbers. The (full) checksum is updated
    /// incrementally.
    #[must_use]
    pub fn to_client(&self, frame: &mut [u8], seg: &Segment) -> Segment {
        let mut seg = *seg;
        seg.seq = seg.seq.add(self.seq);
        // That of a SYN is not scaled.
        if !seg.flags.has(Flags::SYN) {
            seg.window = self.window_to_client(seg.window);
        }
        let stamps = |stamps: &mut [u8; 8]| {
            let [a, b, c, d, ..] = *stamps;
            let value = u32::from_be_bytes([a, b, c, d]).wrapping_add(self.stamps);
            stamps[..4].copy_from_slice(&value.to_be_bytes());
        };
        Self::write(frame, &seg, stamps, |edge| edge);
        seg
    }

    /// What the pod offers, as the client shifts it: no more than that.
    #[inline]
    pub(crate) fn window_to_client(&self, window: u16) -> u16 {
        let bytes = u64::from(window) << self.pod_scale.min(14);
        let window = bytes >> self.client_scale.min(14);
        window.min(u64::from(u16::MAX)) as u16
    }

    /// Gives a segment of the client's the pod's numbers, likewise.
    #[must_use]
    pub fn to_pod(&self, frame: &mut [u8], seg: &Segment) -> Segment {
        let mut seg = *seg;
        if !seg.flags.has(Flags::ACK) {
            return seg;
        }
        seg.ack = self.ack_to_pod(seg.ack);
        let stamps = |stamps: &mut [u8; 8]| {
            let [.., a, b, c, d] = *stamps;
            let echo = self.echo_to_pod(u32::from_be_bytes([a, b, c, d]));
            stamps[4..].copy_from_slice(&echo.to_be_bytes());
        };
        Self::write(frame, &seg, stamps, |edge| edge.wrapping_sub(self.seq));
        seg
    }

    /// Gives the segment that an ICMP error quotes, which went to the client, the pod's number
    /// again. To be called in front of [`rewrite_icmp`](crate::rewrite_icmp), which sums the error
    /// anew.
    pub fn quoted_to_pod(&self, frame: &mut [u8], error: &IcmpError) {
        let at = usize::from(error.inner_l4);
        let seq = error.inner_seq.sub(self.seq);
        let Some(field) = array_mut::<4>(frame, at + SEQ) else {
            return;
        };
        let delta = change(field, &seq.0.to_be_bytes());
        *field = seq.0.to_be_bytes();
        if at + TCP_CHECK + 2 <= usize::from(error.end)
            && let Some(field) = array_mut::<2>(frame, at + TCP_CHECK)
        {
            patch(field, 0, delta);
        }
    }

    /// What the client acknowledges, in the pod's numbers.
    #[inline]
    #[must_use]
    pub fn ack_to_pod(&self, ack: SeqNumber) -> SeqNumber {
        ack.sub(self.seq)
    }

    /// What the client echoes, in the pod's timestamps.
    #[inline]
    #[must_use]
    pub fn echo_to_pod(&self, echo: u32) -> u32 {
        let old = (echo.wrapping_sub(self.stamps_from) as i32) < 0;
        let echo = if old { self.stamps_from } else { echo };
        echo.wrapping_sub(self.stamps)
    }

    /// Writes the numbers of `seg`, its timestamps and the edges of what is selectively
    /// acknowledged.
    #[inline]
    fn write(
        frame: &mut [u8],
        seg: &Segment,
        stamps: impl Fn(&mut [u8; 8]),
        edge: impl Fn(u32) -> u32,
    ) {
        let mut delta = change_options(frame, seg, |kind, option| match (kind, option) {
            (TIMESTAMPS, [_, _, value @ ..]) if value.len() == 8 => {
                if let Some(value) = value.first_chunk_mut() {
                    stamps(value);
                }
            }
            (SACK, [_, _, edges @ ..]) => {
                for bytes in edges.as_chunks_mut::<4>().0 {
                    *bytes = edge(u32::from_be_bytes(*bytes)).to_be_bytes();
                }
            }
            _ => {}
        });
        let Some(tcp) = array_mut::<TCP_BYTES>(frame, usize::from(seg.l4)) else {
            return;
        };
        delta += replace(tcp, SEQ, &seg.seq.0.to_be_bytes());
        if seg.flags.has(Flags::ACK) {
            delta += replace(tcp, ACK, &seg.ack.0.to_be_bytes());
        }
        let [offset, flags] = [tcp[WINDOW], tcp[WINDOW + 1]];
        let [a, b] = seg.window.to_be_bytes();
        delta += replace(tcp, WINDOW, &[offset, flags, a, b]);
        patch(tcp, TCP_CHECK, delta);
    }
}
