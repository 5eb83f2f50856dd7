//! Plain segments: what nearly every packet of an open connection is, read and readdressed without
//! the general decoder. IPv4 without options, whole, or IPv6 without extension headers, TTL or hop
//! limit above 1; TCP with ACK, or ACK and PSH, without an urgent pointer, and with no options or
//! timestamps alone.
//!
//! Owns the short way. Whatever is not plain in any respect is `None`, and [`crate::decode`]'s.

mod family;

use crate::{
    Flags, Mac, Segment, SeqNumber,
    bytes::{array, array_mut, be16, be32},
    checksum::{ChecksumState, TCP_CHECK, add, finish, fold, sum, sum_header, update},
    decode::{ETHERNET_BYTES, TCP_BYTES},
    rewrite::{patch, replace, set_macs},
    shift::Shift,
};
use core::marker::PhantomData;
use family::renew;
pub use family::{Family, V4, V6};

/// NOP, NOP, timestamps of 10 bytes (RFC 7323 appendix A).
const STAMPS: u32 = 0x0101_080a;
const STAMPS_BYTES: usize = 12;
/// Data offset, and no more in its byte, without options and with timestamps.
const OFFSET_BARE: u8 = 0x50;
const OFFSET_STAMPED: u8 = 0x80;

/// A plain segment, `STAMPED` or not: where it ends in the frame that [`plain`] saw. What is asked
/// of it is read there when it is asked for: that takes fewer instructions than to read all at once
/// and to keep it.
#[derive(Clone, Copy, Debug)]
pub struct Plain<F, const STAMPED: bool> {
    /// Offset of the end.
    pub end: u16,
    family: PhantomData<F>,
}

/// Writes two numbers of the header, one behind the other, and says what that adds to the sum of a
/// checksum.
#[inline(always)]
fn renew_pair(pair: &mut [u8; 8], new: impl Fn(u32, u32) -> (u32, u32)) -> u64 {
    let old = u64::from_be_bytes(*pair);
    let (a, b) = new((old >> 32) as u32, old as u32);
    renew(pair, (u64::from(a) << 32 | u64::from(b)).to_be_bytes())
}

/// The same for a header's sequence and acknowledgement numbers.
#[inline(always)]
fn renew_numbers(tcp: &mut [u8; TCP_BYTES], new: impl Fn(u32, u32) -> (u32, u32)) -> u64 {
    array_mut::<8>(tcp, 4).map_or(0, |pair| renew_pair(pair, new))
}

macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident: $of:ty = $read:expr;)+) => {
        impl<F: Family, const STAMPED: bool> Plain<F, STAMPED> {
            $(
                $(#[$doc])*
                #[inline(always)]
                #[must_use]
                pub fn $name(&self, frame: &[u8]) -> $of {
                    let read: fn(&[u8; TCP_BYTES]) -> $of = $read;
                    // It is there: `plain` saw it.
                    array(frame, F::L4).map(read).unwrap_or_default()
                }
            )+
        }
    };
}

fields! {
    /// Source port.
    src_port: u16 = be16::<TCP_BYTES, 0>;
    /// Destination port.
    dst_port: u16 = be16::<TCP_BYTES, 2>;
    /// Number of the first byte.
    seq: SeqNumber = |tcp| SeqNumber(be32::<TCP_BYTES, 4>(tcp));
    /// What it acknowledges.
    ack: SeqNumber = |tcp| SeqNumber(be32::<TCP_BYTES, 8>(tcp));
    /// ACK, or ACK and PSH.
    flags: Flags = |tcp| Flags(tcp[13]);
    /// The window field.
    window: u16 = be16::<TCP_BYTES, 14>;
}

impl<F: Family, const STAMPED: bool> Plain<F, STAMPED> {
    /// Source address.
    #[inline(always)]
    #[must_use]
    pub fn src(&self, frame: &[u8]) -> F::Address {
        F::ends(frame).0
    }

    /// Destination address.
    #[inline(always)]
    #[must_use]
    pub fn dst(&self, frame: &[u8]) -> F::Address {
        F::ends(frame).1
    }

    /// Offset of the data.
    pub const PAYLOAD: u16 = (F::L4 + TCP_BYTES + if STAMPED { STAMPS_BYTES } else { 0 }) as u16;

    /// The timestamp, if it has the option.
    #[inline(always)]
    #[must_use]
    pub fn stamp(&self, frame: &[u8]) -> Option<u32> {
        if !STAMPED {
            return None;
        }
        array::<STAMPS_BYTES>(frame, F::L4 + TCP_BYTES).map(be32::<STAMPS_BYTES, 4>)
    }

    /// Its data in `frame`.
    #[inline]
    #[must_use]
    pub fn data<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        frame.get(usize::from(Self::PAYLOAD)..usize::from(self.end)).unwrap_or_default()
    }

    /// What the segment's checksum field holds, where the IP header's sum is right. A partial one
    /// is completed, as by [`crate::settle_tcp_checksum`].
    #[inline(always)]
    #[must_use]
    pub fn settle_checksum(&self, frame: &mut [u8]) -> ChecksumState {
        let (Some(pseudo), Some(tcp)) = (F::pseudo(frame), array::<TCP_BYTES>(frame, F::L4)) else {
            return ChecksumState::Bad;
        };
        let mut segment = sum_header(tcp);
        if STAMPED && let Some(options) = array::<STAMPS_BYTES>(frame, F::L4 + TCP_BYTES) {
            segment = add(segment, sum_header(options));
        }
        if self.end != Self::PAYLOAD {
            segment = add(segment, sum(self.data(frame)));
        }
        if fold(add(pseudo, segment)) == 0xffff {
            return ChecksumState::Full;
        }
        let Some(field) = array_mut::<2>(frame, F::L4 + TCP_CHECK) else {
            return ChecksumState::Bad;
        };
        if u16::from_ne_bytes(*field) != fold(pseudo) {
            return ChecksumState::Bad;
        }
        // The field is the pseudo-header's sum, so the sum over the segment contains it.
        *field = finish(segment).to_ne_bytes();
        ChecksumState::Partial
    }

    /// Gives a segment of a pod's the client's numbers, as [`Shift::to_client`] does, all but the
    /// checksum: what they add to that goes into [`readdress`] or [`Self::add_to_checksum`]. `seq`
    /// and `ack` are what its own come to, which the caller had to know before.
    #[inline(always)]
    #[must_use]
    pub fn shift_to_client(
        &self,
        frame: &mut [u8],
        shift: &Shift,
        (seq, ack): (SeqNumber, SeqNumber),
    ) -> u64 {
        let mut delta = 0;
        if STAMPED {
            delta = self.renew_stamps(frame, |value, echo| {
                (value.wrapping_add(shift.stamps), echo.wrapping_add(shift.echoes))
            });
        }
        if let Some(tcp) = array_mut::<TCP_BYTES>(frame, F::L4) {
            delta = add(delta, renew_numbers(tcp, |_, _| (seq.0, ack.0)));
            // Pods of one kind shift alike.
            if shift.pod_scale != shift.client_scale {
                let window = u16::from_be_bytes([tcp[14], tcp[15]]);
                let [a, b] = shift.window_to_client(window).to_be_bytes();
                delta = add(delta, replace(tcp, 12, &[tcp[12], tcp[13], a, b]));
            }
        }
        delta
    }

    /// Gives a segment of the client's the pod's numbers, as [`Shift::to_pod`] does, all but the
    /// checksum, see [`Self::shift_to_client`].
    #[inline(always)]
    #[must_use]
    pub fn shift_to_pod(&self, frame: &mut [u8], shift: &Shift) -> u64 {
        let mut delta = 0;
        if STAMPED {
            delta = self.renew_stamps(frame, |value, echo| {
                (shift.stamp_to_pod(value), shift.echo_to_pod(echo))
            });
        }
        if let Some(tcp) = array_mut::<TCP_BYTES>(frame, F::L4) {
            let numbers = renew_numbers(tcp, |seq, ack| {
                (seq.wrapping_sub(shift.acked), ack.wrapping_sub(shift.seq))
            });
            delta = add(delta, numbers);
        }
        delta
    }

    /// Adds to the segment's checksum what was written into it.
    #[inline]
    pub fn add_to_checksum(&self, frame: &mut [u8], delta: u64) {
        if let Some(tcp) = array_mut::<TCP_BYTES>(frame, F::L4) {
            patch(tcp, TCP_CHECK, delta);
        }
    }

    /// Writes both timestamps, and says what that adds to the sum of a checksum.
    #[inline(always)]
    fn renew_stamps(&self, frame: &mut [u8], new: impl Fn(u32, u32) -> (u32, u32)) -> u64 {
        let Some(stamps) = array_mut::<8>(frame, F::L4 + TCP_BYTES + 4) else {
            return 0;
        };
        renew_pair(stamps, new)
    }

    /// The same as the decoder sees it.
    #[inline]
    #[must_use]
    pub fn segment(&self, frame: &[u8]) -> Segment {
        Segment {
            src: F::address(self.src(frame)),
            dst: F::address(self.dst(frame)),
            src_port: self.src_port(frame),
            dst_port: self.dst_port(frame),
            seq: self.seq(frame),
            ack: self.ack(frame),
            flags: self.flags(frame),
            window: self.window(frame),
            l3: ETHERNET_BYTES as u16,
            l4: F::L4 as u16,
            payload: Self::PAYLOAD,
            end: self.end,
        }
    }

    /// Bytes of data.
    #[inline]
    #[must_use]
    pub const fn data_len(&self) -> u32 {
        (self.end - Self::PAYLOAD) as u32
    }

    /// Bytes of the TCP segment: its header, and data.
    #[inline]
    #[must_use]
    pub const fn segment_len(&self) -> u32 {
        (self.end - F::L4 as u16) as u32
    }
}

/// The ends of a frame whose IP header is a plain one's; nothing behind its ports is looked at.
#[inline]
#[must_use]
pub fn plain_ends<F: Family>(frame: &[u8]) -> Option<Ends<F::Address>> {
    F::end(frame)?;
    let ports = array::<4>(frame, F::L4)?;
    let (src, dst) = F::ends(frame);
    Some(((src, be16::<4, 0>(ports)), (dst, be16::<4, 2>(ports))))
}

/// The segment in a frame that is plain but for its checksums, which [`Plain::settle_checksum`]
/// looks at.
#[inline(always)]
#[must_use]
pub fn plain<F: Family, const STAMPED: bool>(frame: &[u8]) -> Option<Plain<F, STAMPED>> {
    let tcp = array::<TCP_BYTES>(frame, F::L4)?;
    let offset = if STAMPED { OFFSET_STAMPED } else { OFFSET_BARE };
    let end = F::end(frame)?;
    // In one word, with checksum and window between them: offset and flags, and no urgent pointer,
    // which may be a mark (`end_mark`).
    let word = [offset, Flags::ACK.0, 0, 0, 0, 0, 0, 0];
    let mask = [0xff, !Flags::PSH.0, 0, 0, 0, 0, 0xff, 0xff];
    let [word, mask] = [word, mask].map(u64::from_ne_bytes);
    let is = array::<8>(tcp, 12).is_some_and(|of| u64::from_ne_bytes(*of) & mask == word);
    if !is || usize::from(end) > frame.len() || end < Plain::<F, STAMPED>::PAYLOAD {
        return None;
    }
    if STAMPED && be32::<STAMPS_BYTES, 0>(array(frame, F::L4 + TCP_BYTES)?) != STAMPS {
        return None;
    }
    Some(Plain { end, family: PhantomData })
}

/// Source and destination: address and port.
pub type Ends<A> = ((A, u16), (A, u16));

/// Gives a plain segment's frame new ends and Ethernet addresses and takes one from its TTL or hop
/// limit, as [`crate::rewrite_tcp`] does; `delta` is what was written into the segment before and
/// adds to its checksum. Only for frames of which [`plain`] said that they are.
#[inline(always)]
pub fn readdress<F: Family>(
    frame: &mut [u8],
    ends: Ends<F::Address>,
    macs: (Mac, Mac),
    delta: u64,
) {
    let ((src, sport), (dst, dport)) = ends;
    if frame.len() < F::L4 + TCP_BYTES {
        return;
    }
    let moved = F::readdress(frame, (src, dst));
    let new_ports = (u32::from(sport) << 16 | u32::from(dport)).to_be();
    if let Some(tcp) = array_mut::<TCP_BYTES>(frame, F::L4) {
        let old_ports = u32::from_ne_bytes([tcp[0], tcp[1], tcp[2], tcp[3]]);
        let ports = u64::from(!old_ports) + u64::from(new_ports);
        tcp[..4].copy_from_slice(&new_ports.to_ne_bytes());
        let sum = u16::from_ne_bytes([tcp[TCP_CHECK], tcp[TCP_CHECK + 1]]);
        let sum = update(sum, add(add(moved, ports), delta));
        tcp[TCP_CHECK..TCP_CHECK + 2].copy_from_slice(&sum.to_ne_bytes());
    }
    set_macs(frame, macs.0, macs.1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ChecksumState, Decoded, Rewrite, SegmentSpec, build_segment, checksum::pseudo_sum, decode,
        rewrite_tcp, settle_tcp_checksum, timestamps,
    };
    use proptest::prelude::*;

    fn spec<F: Family>(
        ends: Ends<F::Address>,
        payload: &[u8],
        stamped: bool,
        flags: Flags,
    ) -> SegmentSpec<'_> {
        let ((src, src_port), (dst, dst_port)) = ends;
        SegmentSpec {
            src_mac: Mac([2, 0, 0, 0, 0, 1]),
            dst_mac: Mac([2, 0, 0, 0, 0, 2]),
            src: F::address(src),
            dst: F::address(dst),
            src_port,
            dst_port,
            seq: SeqNumber(7),
            ack: SeqNumber(u32::MAX),
            flags,
            window: 500,
            timestamps: stamped.then_some((5, 6)),
            payload,
        }
    }

    /// Offsets are of 16 bits: the decoder refuses such a frame, and it is not plain.
    #[test]
    fn a_frame_that_ends_behind_all_offsets_is_not_plain() {
        fn of<F: Family>(ends: Ends<F::Address>, at: usize, most: u16) {
            let mut frame = vec![0; ETHERNET_BYTES + usize::from(u16::MAX)];
            let spec = spec::<F>(ends, &[1], true, Flags::ACK);
            build_segment(&mut frame, &spec).expect("room");
            for (length, is_plain) in [(u16::MAX, false), (most + 1, false), (most, true)] {
                frame[at..][..2].copy_from_slice(&length.to_be_bytes());
                assert_eq!(plain::<F, true>(&frame).is_some(), is_plain, "{length}");
            }
        }
        of::<V4>(((1, 4_000), (2, 80)), 16, u16::MAX - 14);
        of::<V6>(((1 << 64, 4_000), (2 << 64, 80)), 18, u16::MAX - 54);
    }

    /// To tables these are addresses of IPv4.
    #[test]
    fn an_address_that_stands_for_one_of_ipv4_is_not_plain() {
        let (own, mapped) = ((1 << 64, 80), (0xffff << 32 | 1, 80));
        for (ends, is_plain) in [((own, own), true), ((mapped, own), false), ((own, mapped), false)]
        {
            let mut frame = [0; 100];
            let spec = spec::<V6>(ends, &[], true, Flags::ACK);
            let len = build_segment(&mut frame, &spec).expect("room");
            assert_eq!(plain::<V6, true>(&frame[..len]).is_some(), is_plain);
            assert_eq!(decode(&frame[..len]).is_ok(), is_plain);
        }
    }

    /// As a veth hands it over: the pseudo-header's sum alone.
    fn leave_partial(frame: &mut [u8], l4: usize, v6: bool) {
        let length = frame.len() - l4;
        let pseudo = pseudo_sum(frame, ETHERNET_BYTES, v6, 6, length).expect("addresses");
        frame[l4 + TCP_CHECK..][..2].copy_from_slice(&fold(pseudo).to_ne_bytes());
    }

    /// What a frame is made of, and becomes.
    #[derive(Clone, Debug)]
    struct Case<A> {
        from: Ends<A>,
        to: Ends<A>,
        payload: Vec<u8>,
        stamped: bool,
        push: bool,
        partial: bool,
        changes: Vec<(usize, u8)>,
        longer: usize,
    }

    fn case<A: Arbitrary + Clone + 'static>() -> impl Strategy<Value = Case<A>> {
        let ends = || any::<Ends<A>>();
        let payload = prop::collection::vec(any::<u8>(), 0..300);
        let changes = prop::collection::vec((0usize..400, any::<u8>()), 0..3);
        let whether = any::<(bool, bool, bool)>();
        (ends(), ends(), payload, whether, changes, 0usize..8).prop_map(
            |(from, to, payload, (stamped, push, partial), changes, longer)| Case {
                from,
                to,
                payload,
                stamped,
                push,
                partial,
                changes,
                longer,
            },
        )
    }

    proptest! {
        #[test]
        fn plain_is_what_the_decoder_says_of_ipv4(case in case::<u32>()) {
            is_what_the_decoder_says::<V4>(&case)?;
        }

        #[test]
        fn plain_is_what_the_decoder_says_of_ipv6(case in case::<u128>()) {
            is_what_the_decoder_says::<V6>(&case)?;
        }
    }

    /// Whatever is called plain is what the decoder says it is, and has right checksums; and
    /// readdressing is rewriting.
    fn is_what_the_decoder_says<F: Family>(case: &Case<F::Address>) -> Result<(), TestCaseError> {
        let mut buffer = [0xa5; 512];
        let flags = if case.push { Flags::PSH | Flags::ACK } else { Flags::ACK };
        let spec = spec::<F>(case.from, &case.payload, case.stamped, flags);
        let len = build_segment(&mut buffer, &spec).expect("room");
        if case.partial {
            leave_partial(&mut buffer[..len], F::L4, F::IS_V6);
        }
        for (at, byte) in &case.changes {
            buffer[*at] = *byte;
        }
        let frame = &mut buffer[..len + case.longer];
        let mut copy = frame.to_vec();
        let plain =
            is_the_same::<F, true>(frame, case.to)? | is_the_same::<F, false>(&mut copy, case.to)?;
        prop_assert!(plain || !case.changes.is_empty(), "not plain");
        Ok(())
    }

    /// Whether the frame is plain.
    fn is_the_same<F: Family, const STAMPED: bool>(
        frame: &mut [u8],
        ends: Ends<F::Address>,
    ) -> Result<bool, TestCaseError> {
        let mut other = frame.to_vec();
        let before = plain_ends::<F>(frame);
        let found = plain::<F, STAMPED>(frame).map(|p| (p, p.settle_checksum(frame)));
        let Some((plain, state)) = found.filter(|(_, s)| *s != ChecksumState::Bad) else {
            return Ok(false);
        };
        let Ok(Decoded::Tcp(segment)) = decode(&other) else {
            return Err(TestCaseError::fail("no segment"));
        };
        let ends_of = |s: &Segment| {
            let of = |address, port| F::bits(address).map(|bits| (bits, port));
            Some((of(s.src, s.src_port)?, of(s.dst, s.dst_port)?))
        };
        prop_assert!(before.is_some() && before == ends_of(&segment));
        prop_assert_eq!(settle_tcp_checksum(&mut other, &segment), state);
        prop_assert_eq!(&frame[..], &other[..]);
        prop_assert_eq!(plain.segment(frame), segment);
        let stamp = timestamps(segment.options(frame)).map(|(value, _)| value);
        prop_assert_eq!(plain.stamp(frame), stamp);

        let macs = (Mac([1; 6]), Mac([3; 6]));
        readdress::<F>(frame, ends, macs, 0);
        let ((src, src_port), (dst, dst_port)) = ends;
        let to = Rewrite {
            src: F::address(src),
            dst: F::address(dst),
            src_port,
            dst_port,
            src_mac: macs.0,
            dst_mac: macs.1,
        };
        rewrite_tcp(&mut other, &segment, &to).expect("it may go on");
        prop_assert_eq!(&frame[..], &other[..]);
        Ok(true)
    }
}
