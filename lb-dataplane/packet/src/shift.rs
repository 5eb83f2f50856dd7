//! The shift of a translated leg: what lies between the numbers of a pod's socket and those that
//! the client knows, in both directions.
//!
//! Owns the change of a segment's own numbers in place: sequence numbers and timestamps of either
//! side, what acknowledges and echoes them (with selective acknowledgements, RFC 2018), and windows
//! where the two scales differ (RFC 7323 section 2). The client's own numbers are the same on both
//! sides but on a leg that was another client's before. A shift is constant while a flow has the
//! leg; it never changes the length of anything.

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
    /// To what it acknowledges: to the numbers that the client has there.
    pub acked: u32,
    /// To its timestamps.
    pub stamps: u32,
    /// To what it echoes.
    pub echoes: u32,
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
        if seg.flags.has(Flags::ACK) {
            seg.ack = seg.ack.add(self.acked);
        }
        // That of a SYN is not scaled.
        if !seg.flags.has(Flags::SYN) {
            seg.window = self.window_to_client(seg.window);
        }
        let stamps = |value: u32, echo: u32| {
            (value.wrapping_add(self.stamps), echo.wrapping_add(self.echoes))
        };
        Self::write(frame, &seg, stamps, |edge| edge.wrapping_add(self.acked));
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
        seg.seq = self.seq_to_pod(seg.seq);
        if seg.flags.has(Flags::ACK) {
            seg.ack = self.ack_to_pod(seg.ack);
        }
        let stamps = |value, echo| (self.stamp_to_pod(value), self.echo_to_pod(echo));
        Self::write(frame, &seg, stamps, |edge| edge.wrapping_sub(self.seq));
        seg
    }

    /// Gives the segment that an ICMP error quotes, which went to the client, the pod's number
    /// again. To be called in front of [`rewrite_icmp`](crate::rewrite_icmp), which sums the error
    /// anew.
    pub fn quoted_to_pod(&self, frame: &mut [u8], error: &IcmpError) {
        Self::quote(frame, error, error.inner_seq.sub(self.seq));
    }

    /// The same for an error about a segment that went to the pod: the client's number.
    pub fn quoted_to_client(&self, frame: &mut [u8], error: &IcmpError) {
        Self::quote(frame, error, error.inner_seq.add(self.acked));
    }

    fn quote(frame: &mut [u8], error: &IcmpError, seq: SeqNumber) {
        let at = usize::from(error.inner_l4);
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

    /// The client's number of a byte, as the pod has it.
    #[inline]
    #[must_use]
    pub fn seq_to_pod(&self, seq: SeqNumber) -> SeqNumber {
        seq.sub(self.acked)
    }

    /// The client's timestamp, likewise.
    #[inline]
    #[must_use]
    pub fn stamp_to_pod(&self, value: u32) -> u32 {
        value.wrapping_sub(self.echoes)
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
        stamps: impl Fn(u32, u32) -> (u32, u32),
        edge: impl Fn(u32) -> u32,
    ) {
        let mut delta = change_options(frame, seg, |kind, option| match (kind, option) {
            (TIMESTAMPS, [_, _, value @ ..]) if value.len() == 8 => {
                if let ([value, echo], _) = value.as_chunks_mut::<4>() {
                    let (own, other) =
                        stamps(u32::from_be_bytes(*value), u32::from_be_bytes(*echo));
                    (*value, *echo) = (own.to_be_bytes(), other.to_be_bytes());
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
