//! Plain segments: what nearly every packet of an open connection is, read and readdressed without
//! the general decoder. IPv4 without options, whole, TTL above 1; TCP with ACK, or ACK and PSH, and
//! with no options or timestamps alone.
//!
//! Owns the short way. Whatever is not plain in any respect is `None`, and [`crate::decode`]'s.

use crate::{
    Flags, Mac, Segment, SeqNumber,
    bytes::{array, array_mut, be16, be32},
    checksum::{ChecksumState, TCP_CHECK, add, finish, fold, sum, sum_header, update, wire16},
    decode::{ETHERNET_BYTES, ETHERTYPE_IPV4, IPV4_BYTES, TCP, TCP_BYTES},
    rewrite::{change, patch, replace, set_macs},
    shift::Shift,
};
use core::net::{IpAddr, Ipv4Addr};

/// NOP, NOP, timestamps of 10 bytes (RFC 7323 appendix A).
const STAMPS: u32 = 0x0101_080a;
const STAMPS_BYTES: usize = 12;
const L4: usize = ETHERNET_BYTES + IPV4_BYTES;
/// Data offset, and no more in its byte, without options and with timestamps.
const OFFSET_BARE: u8 = 0x50;
const OFFSET_STAMPED: u8 = 0x80;

/// Ethernet, IPv4 and TCP headers without options.
type Head = [u8; L4 + TCP_BYTES];

/// A plain segment, `STAMPED` or not: where it ends in the frame that [`plain`] saw. What is asked
/// of it is read there when it is asked for: that takes fewer instructions than to read all at once
/// and to keep it.
#[derive(Clone, Copy, Debug)]
pub struct Plain<const STAMPED: bool> {
    /// Offset of the end.
    pub end: u16,
}

/// Writes a number of the header, and says what that adds to the sum of a checksum.
#[inline(always)]
fn renew(field: &mut [u8; 4], new: u32) -> u64 {
    let new = new.to_be_bytes();
    let delta = change(field, &new);
    *field = new;
    delta
}

/// The same for two numbers, one behind the other.
#[inline(always)]
fn renew_pair(pair: &mut [u8; 8], new: impl Fn(u32, u32) -> (u32, u32)) -> u64 {
    let ([first, second], _) = pair.as_chunks_mut::<4>() else {
        return 0;
    };
    let (a, b) = new(u32::from_be_bytes(*first), u32::from_be_bytes(*second));
    renew(first, a) + renew(second, b)
}

/// The same for a header's sequence and acknowledgement numbers.
#[inline(always)]
fn renew_numbers(tcp: &mut [u8; TCP_BYTES], new: impl Fn(u32, u32) -> (u32, u32)) -> u64 {
    array_mut::<8>(tcp, 4).map_or(0, |pair| renew_pair(pair, new))
}

macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident: $of:ty = $read:expr;)+) => {
        impl<const STAMPED: bool> Plain<STAMPED> {
            $(
                $(#[$doc])*
                #[inline(always)]
                #[must_use]
                pub fn $name(&self, frame: &[u8]) -> $of {
                    let read: fn(&Head) -> $of = $read;
                    // It is there: `plain` saw it.
                    frame.first_chunk::<{ L4 + TCP_BYTES }>().map(read).unwrap_or_default()
                }
            )+
        }
    };
}

const HEAD: usize = L4 + TCP_BYTES;

fields! {
    /// Source address.
    src: u32 = be32::<HEAD, { L4 - 8 }>;
    /// Destination address.
    dst: u32 = be32::<HEAD, { L4 - 4 }>;
    /// Source port.
    src_port: u16 = be16::<HEAD, L4>;
    /// Destination port.
    dst_port: u16 = be16::<HEAD, { L4 + 2 }>;
    /// Number of the first byte.
    seq: SeqNumber = |head| SeqNumber(be32::<HEAD, { L4 + 4 }>(head));
    /// What it acknowledges.
    ack: SeqNumber = |head| SeqNumber(be32::<HEAD, { L4 + 8 }>(head));
    /// ACK, or ACK and PSH.
    flags: Flags = |head| Flags(head[L4 + 13]);
    /// The window field.
    window: u16 = be16::<HEAD, { L4 + 14 }>;
}

impl<const STAMPED: bool> Plain<STAMPED> {
    /// Offset of the data.
    pub const PAYLOAD: u16 = (L4 + TCP_BYTES + if STAMPED { STAMPS_BYTES } else { 0 }) as u16;

    /// The timestamp, if it has the option.
    #[inline(always)]
    #[must_use]
    pub fn stamp(&self, frame: &[u8]) -> Option<u32> {
        if !STAMPED {
            return None;
        }
        array::<STAMPS_BYTES>(frame, L4 + TCP_BYTES).map(be32::<STAMPS_BYTES, 4>)
    }

    /// Its data in `frame`.
    #[inline]
    #[must_use]
    pub fn data<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        frame
            .get(usize::from(Self::PAYLOAD)..usize::from(self.end))
            .unwrap_or_default()
    }

    /// What the segment's checksum field holds, where the IP header's sum is right. A partial one
    /// is completed, as by [`crate::settle_tcp_checksum`].
    #[inline(always)]
    #[must_use]
    pub fn settle_checksum(&self, frame: &mut [u8]) -> ChecksumState {
        let (Some(ip), Some(addresses), Some(tcp)) = (
            array::<IPV4_BYTES>(frame, ETHERNET_BYTES),
            array::<8>(frame, L4 - 8),
            array::<TCP_BYTES>(frame, L4),
        ) else {
            return ChecksumState::Bad;
        };
        // The segment's length is what the IP header says without that header's own.
        let length = u64::from(u16::from_ne_bytes([ip[2], ip[3]]));
        let others = wire16(u16::from(TCP)) + wire16(!(IPV4_BYTES as u16));
        let pseudo = add(u64::from_ne_bytes(*addresses), length + others);
        let mut segment = sum_header(tcp);
        if STAMPED && let Some(options) = array::<STAMPS_BYTES>(frame, L4 + TCP_BYTES) {
            segment = add(segment, sum_header(options));
        }
        if self.end != Self::PAYLOAD {
            segment = add(segment, sum(self.data(frame)));
        }
        if fold(sum_header(ip)) != 0xffff {
            return ChecksumState::Bad;
        }
        if fold(add(pseudo, segment)) == 0xffff {
            return ChecksumState::Full;
        }
        let Some(field) = array_mut::<2>(frame, L4 + TCP_CHECK) else {
            return ChecksumState::Bad;
        };
        if u16::from_ne_bytes(*field) != fold(pseudo) {
            return ChecksumState::Bad;
        }
        // The field is the pseudo-header's sum, so the sum over the segment contains it.
        *field = finish(segment).to_ne_bytes();
        ChecksumState::Partial
    }

    /// Gives a segment of a pod's the client's numbers, as [`Shift::to_client`] does.
    #[inline(always)]
    pub fn shift_to_client(&self, frame: &mut [u8], shift: &Shift) {
        let mut delta = 0;
        if STAMPED {
            delta += self.renew_stamps(frame, |value, echo| {
                (
                    value.wrapping_add(shift.stamps),
                    echo.wrapping_add(shift.echoes),
                )
            });
        }
        if let Some(tcp) = array_mut::<TCP_BYTES>(frame, L4) {
            delta += renew_numbers(tcp, |seq, ack| {
                (seq.wrapping_add(shift.seq), ack.wrapping_add(shift.acked))
            });
            // Pods of one kind shift alike.
            if shift.pod_scale != shift.client_scale {
                let window = u16::from_be_bytes([tcp[14], tcp[15]]);
                let [a, b] = shift.window_to_client(window).to_be_bytes();
                delta += replace(tcp, 12, &[tcp[12], tcp[13], a, b]);
            }
            patch(tcp, TCP_CHECK, delta);
        }
    }

    /// Gives a segment of the client's the pod's numbers, as [`Shift::to_pod`] does.
    #[inline(always)]
    pub fn shift_to_pod(&self, frame: &mut [u8], shift: &Shift) {
        let mut delta = 0;
        if STAMPED {
            delta += self.renew_stamps(frame, |value, echo| {
                (shift.stamp_to_pod(value), shift.echo_to_pod(echo))
            });
        }
        if let Some(tcp) = array_mut::<TCP_BYTES>(frame, L4) {
            delta += renew_numbers(tcp, |seq, ack| {
                (seq.wrapping_sub(shift.acked), ack.wrapping_sub(shift.seq))
            });
            patch(tcp, TCP_CHECK, delta);
        }
    }

    /// Writes both timestamps, and says what that adds to the sum of a checksum.
    #[inline(always)]
    fn renew_stamps(&self, frame: &mut [u8], new: impl Fn(u32, u32) -> (u32, u32)) -> u64 {
        let Some(stamps) = array_mut::<8>(frame, L4 + TCP_BYTES + 4) else {
            return 0;
        };
        renew_pair(stamps, new)
    }

    /// The same as the decoder sees it.
    #[inline]
    #[must_use]
    pub fn segment(&self, frame: &[u8]) -> Segment {
        Segment {
            src: IpAddr::V4(Ipv4Addr::from_bits(self.src(frame))),
            dst: IpAddr::V4(Ipv4Addr::from_bits(self.dst(frame))),
            src_port: self.src_port(frame),
            dst_port: self.dst_port(frame),
            seq: self.seq(frame),
            ack: self.ack(frame),
            flags: self.flags(frame),
            window: self.window(frame),
            l3: ETHERNET_BYTES as u16,
            l4: L4 as u16,
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
}

/// The ends of a frame, if it is IPv4 and TCP without IP options; nothing else is looked at.
#[inline]
#[must_use]
pub fn plain_ends(frame: &[u8]) -> Option<Ends> {
    let head = frame.first_chunk::<{ L4 + 4 }>()?;
    let ip: &[u8; IPV4_BYTES] = array(head, ETHERNET_BYTES)?;
    let ports: &[u8; 4] = array(head, L4)?;
    let is = be16::<{ L4 + 4 }, 12>(head) == ETHERTYPE_IPV4 && ip[0] == 0x45 && ip[9] == TCP;
    is.then(|| {
        (
            (be32::<IPV4_BYTES, 12>(ip), be16::<4, 0>(ports)),
            (be32::<IPV4_BYTES, 16>(ip), be16::<4, 2>(ports)),
        )
    })
}

/// Whether a frame, if it is plain, has timestamps.
#[inline(always)]
#[must_use]
pub fn is_stamped(frame: &[u8]) -> bool {
    frame.get(L4 + 12) == Some(&OFFSET_STAMPED)
}

/// The segment in a frame that is plain but for its checksums, which [`Plain::settle_checksum`]
/// looks at.
#[inline(always)]
#[must_use]
pub fn plain<const STAMPED: bool>(frame: &[u8]) -> Option<Plain<STAMPED>> {
    let head = frame.first_chunk::<HEAD>()?;
    let offset = if STAMPED { OFFSET_STAMPED } else { OFFSET_BARE };
    let plain = is::<12>(head, u32::from(ETHERTYPE_IPV4) << 16 | 0x45 << 8, 0xffff_ff00)
        // No fragment; whatever its TTL.
        && is::<20>(head, u32::from(TCP), 0x3fff_00ff)
        && ip_ttl(head) > 1
        && is::<{ L4 + 10 }>(
            head,
            u32::from(offset) << 8 | u32::from(Flags::ACK.0),
            0xffff & !u32::from(Flags::PSH.0),
        );
    // Offsets have 16 bits.
    let end = be16::<HEAD, 16>(head).checked_add(ETHERNET_BYTES as u16)?;
    if !plain || usize::from(end) > frame.len() || end < Plain::<STAMPED>::PAYLOAD {
        return None;
    }
    if STAMPED && be32::<STAMPS_BYTES, 0>(array(frame, HEAD)?) != STAMPS {
        return None;
    }
    Some(Plain { end })
}

/// Whether the word at `AT` is this one where `mask` has ones. It is compared as it lies there:
/// turned around first, the compiler would take it to pieces.
#[inline(always)]
fn is<const AT: usize>(head: &Head, word: u32, mask: u32) -> bool {
    array(head, AT).is_some_and(|of| u32::from_ne_bytes(*of) & mask.to_be() == word.to_be())
}

fn ip_ttl(head: &Head) -> u8 {
    head[ETHERNET_BYTES + 8]
}

/// Source and destination: address and port.
pub type Ends = ((u32, u16), (u32, u16));

/// Gives a plain segment's frame new ends and Ethernet addresses and takes one from its TTL, as
/// [`crate::rewrite_tcp`] does. Only for frames of which [`plain`] said that they are.
#[inline(always)]
pub fn readdress(frame: &mut [u8], ((src, sport), (dst, dport)): Ends, macs: (Mac, Mac)) {
    let Some(head) = frame.first_chunk_mut::<{ L4 + TCP_BYTES }>() else {
        return;
    };
    let (Some(old), Some(old_ports)) = (array::<8>(head, L4 - 8), array::<4>(head, L4)) else {
        return;
    };
    let new = (u64::from(src) << 32 | u64::from(dst)).to_be();
    let new_ports = (u32::from(sport) << 16 | u32::from(dport)).to_be();
    let moved = add(!u64::from_ne_bytes(*old), new);
    let ports = u64::from(!u32::from_ne_bytes(*old_ports)) + u64::from(new_ports);
    if let Some(ip) = array_mut::<IPV4_BYTES>(head, ETHERNET_BYTES) {
        // TTL is the high byte of its word: taking one from it adds ~0x0100 to the sum.
        ip[8] -= 1;
        let sum = u16::from_ne_bytes([ip[10], ip[11]]);
        let sum = update(sum, add(moved, u64::from(!0x0100u16.to_be())));
        ip[10..12].copy_from_slice(&sum.to_ne_bytes());
        ip[12..20].copy_from_slice(&new.to_ne_bytes());
    }
    if let Some(tcp) = array_mut::<TCP_BYTES>(head, L4) {
        tcp[..4].copy_from_slice(&new_ports.to_ne_bytes());
        let sum = u16::from_ne_bytes([tcp[TCP_CHECK], tcp[TCP_CHECK + 1]]);
        let sum = update(sum, add(moved, ports));
        tcp[TCP_CHECK..TCP_CHECK + 2].copy_from_slice(&sum.to_ne_bytes());
    }
    set_macs(head, macs.0, macs.1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ChecksumState, Decoded, Rewrite, SegmentSpec, build_segment, decode, rewrite_tcp,
        settle_tcp_checksum, timestamps,
    };
    use proptest::prelude::*;

    fn spec(payload: &[u8], stamped: bool, flags: Flags) -> SegmentSpec<'_> {
        SegmentSpec {
            src_mac: Mac([2, 0, 0, 0, 0, 1]),
            dst_mac: Mac([2, 0, 0, 0, 0, 2]),
            src: IpAddr::from([10, 0, 0, 1]),
            dst: IpAddr::from([10, 0, 0, 2]),
            src_port: 4_000,
            dst_port: 80,
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
        let mut frame = vec![0; ETHERNET_BYTES + usize::from(u16::MAX)];
        build_segment(&mut frame, &spec(&[1], true, Flags::ACK)).expect("room");
        for (length, is_plain) in [(u16::MAX, false), (u16::MAX - 14, true)] {
            frame[16..18].copy_from_slice(&length.to_be_bytes());
            assert_eq!(plain::<true>(&frame).is_some(), is_plain, "{length}");
        }
    }

    /// As a veth hands it over: the pseudo-header's sum alone.
    fn leave_partial(frame: &mut [u8]) {
        let length = (frame.len() - L4) as u16;
        let addresses: &[u8; 8] = frame[L4 - 8..].first_chunk().expect("addresses");
        let pseudo = add(u64::from_ne_bytes(*addresses), wire16(6) + wire16(length));
        frame[L4 + TCP_CHECK..][..2].copy_from_slice(&fold(pseudo).to_ne_bytes());
    }

    proptest! {
        /// Whatever is called plain is what the decoder says it is, and has right checksums; and
        /// readdressing is rewriting.
        #[test]
        fn plain_is_what_the_decoder_says(
            payload in prop::collection::vec(any::<u8>(), 0..300),
            (stamped, push) in any::<(bool, bool)>(),
            changes in prop::collection::vec((0usize..400, any::<u8>()), 0..3),
            partial in any::<bool>(),
            (src, dst, sport, dport) in any::<(u32, u32, u16, u16)>(),
            longer in 0usize..8,
        ) {
            let mut buffer = [0xa5; 512];
            let flags = if push { Flags::PSH | Flags::ACK } else { Flags::ACK };
            let len = build_segment(&mut buffer, &spec(&payload, stamped, flags)).expect("room");
            if partial {
                leave_partial(&mut buffer[..len]);
            }
            let untouched = changes.is_empty();
            for (at, byte) in changes {
                buffer[at] = byte;
            }
            let frame = &mut buffer[..len + longer];
            let ends = ((src, sport), (dst, dport));
            let plain = if is_stamped(frame) {
                is_what_the_decoder_says::<true>(frame, ends)?
            } else {
                is_what_the_decoder_says::<false>(frame, ends)?
            };
            prop_assert!(plain || !untouched, "not plain");
        }
    }

    /// Whether the frame is plain.
    fn is_what_the_decoder_says<const STAMPED: bool>(
        frame: &mut [u8],
        ends: Ends,
    ) -> Result<bool, TestCaseError> {
        let mut other = frame.to_vec();
        let found = plain::<STAMPED>(frame).map(|p| (p, p.settle_checksum(frame)));
        let Some((plain, state)) = found.filter(|(_, s)| *s != ChecksumState::Bad) else {
            return Ok(false);
        };
        let Ok(Decoded::Tcp(segment)) = decode(&other) else {
            return Err(TestCaseError::fail("no segment"));
        };
        prop_assert_eq!(settle_tcp_checksum(&mut other, &segment), state);
        prop_assert_eq!(&frame[..], &other[..]);
        prop_assert_eq!(plain.segment(frame), segment);
        let stamp = timestamps(segment.options(frame)).map(|(value, _)| value);
        prop_assert_eq!(plain.stamp(frame), stamp);

        let macs = (Mac([1; 6]), Mac([3; 6]));
        readdress(frame, ends, macs);
        let ((src, src_port), (dst, dst_port)) = ends;
        let to = Rewrite {
            src: Ipv4Addr::from_bits(src).into(),
            dst: Ipv4Addr::from_bits(dst).into(),
            src_port,
            dst_port,
            src_mac: macs.0,
            dst_mac: macs.1,
        };
        rewrite_tcp(&mut other, &segment, &to).expect("TTL is above 1");
        prop_assert_eq!(&frame[..], &other[..]);
        Ok(true)
    }
}
