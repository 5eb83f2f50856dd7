//! Plain segments: what nearly every packet of an open connection is, read and readdressed without
//! the general decoder. IPv4 without options, whole, TTL above 1; TCP with ACK, or ACK and PSH, and
//! with no options or timestamps alone.
//!
//! Owns the short way. Whatever is not plain in any respect is `None`, and [`crate::decode`]'s.

use crate::{
    Flags, Mac, Segment, SeqNumber,
    bytes::{array, array_mut, be16, be32},
    checksum::{TCP_CHECK, fold, sum, sum_inverted, sum_words, update, wire16},
    decode::{ETHERNET_BYTES, ETHERTYPE_IPV4, IPV4_BYTES, TCP, TCP_BYTES},
    rewrite::set_macs,
};
use core::net::{IpAddr, Ipv4Addr};

/// NOP, NOP, timestamps of 10 bytes (RFC 7323 appendix A).
const STAMPS: u32 = 0x0101_080a;
const STAMPED_BYTES: usize = TCP_BYTES + 12;
const L4: usize = ETHERNET_BYTES + IPV4_BYTES;

/// A plain segment. Offsets are as in [`crate::Segment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    /// Source address.
    pub src: u32,
    /// Destination address.
    pub dst: u32,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Number of the first byte.
    pub seq: SeqNumber,
    /// What it acknowledges.
    pub ack: SeqNumber,
    /// ACK, or ACK and PSH.
    pub flags: Flags,
    /// The window field.
    pub window: u16,
    /// Timestamp value and echo, if it has the option.
    pub stamps: Option<(u32, u32)>,
    /// Offset of the data.
    pub payload: u16,
    /// Offset of the end.
    pub end: u16,
}

impl Plain {
    /// Its data in `frame`.
    #[inline]
    #[must_use]
    pub fn data<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        frame
            .get(usize::from(self.payload)..usize::from(self.end))
            .unwrap_or_default()
    }

    /// Whether both checksums are right, and the segment's is a full one.
    #[inline]
    #[must_use]
    pub fn is_right(&self, frame: &[u8]) -> bool {
        let Some(ip) = array::<IPV4_BYTES>(frame, ETHERNET_BYTES) else {
            return false;
        };
        let (Some(addresses), Some(tcp)) =
            (array::<8>(ip, 12), frame.get(L4..usize::from(self.end)))
        else {
            return false;
        };
        let pseudo = sum_words(addresses) + wire16(u16::from(TCP)) + wire16(tcp.len() as u16);
        let tcp_sum = match tcp.first_chunk::<STAMPED_BYTES>() {
            Some(whole) if tcp.len() == STAMPED_BYTES => sum_words(whole),
            _ => sum(tcp),
        };
        fold(sum_words(ip)) == 0xffff && fold(pseudo + tcp_sum) == 0xffff
    }

    /// The same as the decoder sees it.
    #[inline]
    #[must_use]
    pub const fn segment(&self) -> Segment {
        Segment {
            src: IpAddr::V4(Ipv4Addr::from_bits(self.src)),
            dst: IpAddr::V4(Ipv4Addr::from_bits(self.dst)),
            src_port: self.src_port,
            dst_port: self.dst_port,
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            window: self.window,
            l3: ETHERNET_BYTES as u16,
            l4: L4 as u16,
            payload: self.payload,
            end: self.end,
        }
    }

    /// Bytes of data.
    #[inline]
    #[must_use]
    pub const fn data_len(&self) -> u32 {
        (self.end - self.payload) as u32
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

/// The segment in a frame that is plain but for its checksums, which [`Plain::is_right`] looks at.
#[inline]
#[must_use]
pub fn plain(frame: &[u8]) -> Option<Plain> {
    let head = frame.first_chunk::<{ L4 + TCP_BYTES }>()?;
    let ip: &[u8; IPV4_BYTES] = array(head, ETHERNET_BYTES)?;
    let tcp: &[u8; TCP_BYTES] = array(head, L4)?;
    let flags = Flags(tcp[13] & !Flags::PSH.0);
    let plain = be16::<{ L4 + TCP_BYTES }, 12>(head) == ETHERTYPE_IPV4
        && ip[0] == 0x45
        && be16::<IPV4_BYTES, 6>(ip) & 0x3fff == 0
        && ip[8] > 1
        && ip[9] == TCP
        && flags == Flags::ACK;
    let end = ETHERNET_BYTES + usize::from(be16::<IPV4_BYTES, 2>(ip));
    if !plain || end > frame.len() {
        return None;
    }
    let (payload, stamps) = match tcp[12] {
        0x50 => (L4 + TCP_BYTES, None),
        0x80 => {
            let tcp: &[u8; STAMPED_BYTES] = array(frame, L4)?;
            if be32::<STAMPED_BYTES, TCP_BYTES>(tcp) != STAMPS {
                return None;
            }
            let stamps = (
                be32::<STAMPED_BYTES, { TCP_BYTES + 4 }>(tcp),
                be32::<STAMPED_BYTES, { TCP_BYTES + 8 }>(tcp),
            );
            (L4 + STAMPED_BYTES, Some(stamps))
        }
        _ => return None,
    };
    if payload > end {
        return None;
    }
    Some(Plain {
        src: be32::<IPV4_BYTES, 12>(ip),
        dst: be32::<IPV4_BYTES, 16>(ip),
        src_port: be16::<TCP_BYTES, 0>(tcp),
        dst_port: be16::<TCP_BYTES, 2>(tcp),
        seq: SeqNumber(be32::<TCP_BYTES, 4>(tcp)),
        ack: SeqNumber(be32::<TCP_BYTES, 8>(tcp)),
        flags: Flags(tcp[13]),
        window: be16::<TCP_BYTES, 14>(tcp),
        stamps,
        payload: payload as u16,
        end: end as u16,
    })
}

/// Source and destination: address and port.
pub type Ends = ((u32, u16), (u32, u16));

/// Gives a plain segment's frame new ends and Ethernet addresses and takes one from its TTL, as
/// [`crate::rewrite_tcp`] does. Only for frames of which [`plain`] said that they are.
#[inline]
pub fn readdress(frame: &mut [u8], ((src, sport), (dst, dport)): Ends, macs: (Mac, Mac)) {
    let Some(head) = frame.first_chunk_mut::<{ L4 + TCP_BYTES }>() else {
        return;
    };
    let (Some(old), Some(old_ports)) = (array::<8>(head, 26).copied(), array::<4>(head, L4)) else {
        return;
    };
    let addresses = (u64::from(src) << 32 | u64::from(dst)).to_be_bytes();
    let ports = (u32::from(sport) << 16 | u32::from(dport)).to_be_bytes();
    let moved = sum_inverted(&old) + sum_words(&addresses);
    let delta = moved + sum_inverted(old_ports) + sum_words(&ports);
    if let Some(ip) = array_mut::<IPV4_BYTES>(head, ETHERNET_BYTES) {
        // TTL is the high byte of its word: taking one from it adds ~0x0100 to the sum.
        ip[8] -= 1;
        let sum = u16::from_ne_bytes([ip[10], ip[11]]);
        let sum = update(sum, moved + u64::from(!0x0100u16.to_be()));
        ip[10..12].copy_from_slice(&sum.to_ne_bytes());
        ip[12..20].copy_from_slice(&addresses);
    }
    if let Some(tcp) = array_mut::<TCP_BYTES>(head, L4) {
        tcp[..4].copy_from_slice(&ports);
        let sum = u16::from_ne_bytes([tcp[TCP_CHECK], tcp[TCP_CHECK + 1]]);
        tcp[TCP_CHECK..TCP_CHECK + 2].copy_from_slice(&update(sum, delta).to_ne_bytes());
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

    proptest! {
        /// Whatever is called plain is what the decoder says it is, and has right checksums; and
        /// readdressing is rewriting.
        #[test]
        fn plain_is_what_the_decoder_says(
            payload in prop::collection::vec(any::<u8>(), 0..300),
            (stamped, push) in any::<(bool, bool)>(),
            changes in prop::collection::vec((0usize..400, any::<u8>()), 0..3),
            (src, dst, sport, dport) in any::<(u32, u32, u16, u16)>(),
            longer in 0usize..8,
        ) {
            let mut buffer = [0xa5; 512];
            let flags = if push { Flags::PSH | Flags::ACK } else { Flags::ACK };
            let len = build_segment(&mut buffer, &spec(&payload, stamped, flags)).expect("room");
            let untouched = changes.is_empty();
            for (at, byte) in changes {
                buffer[at] = byte;
            }
            let frame = &mut buffer[..len + longer];
            let Some(plain) = plain(frame).filter(|p| p.is_right(frame)) else {
                prop_assert!(!untouched, "not plain");
                return Ok(());
            };
            let Ok(Decoded::Tcp(segment)) = decode(frame) else {
                return Err(TestCaseError::fail("no segment"));
            };
            prop_assert_eq!(settle_tcp_checksum(frame, &segment), ChecksumState::Full);
            prop_assert_eq!(plain.segment(), segment);
            prop_assert_eq!(plain.stamps, timestamps(segment.options(frame)));

            let mut other = frame.to_vec();
            let macs = (Mac([1; 6]), Mac([3; 6]));
            readdress(frame, ((src, sport), (dst, dport)), macs);
            let to = Rewrite {
                src: Ipv4Addr::from_bits(src).into(),
                dst: Ipv4Addr::from_bits(dst).into(),
                src_port: sport,
                dst_port: dport,
                src_mac: macs.0,
                dst_mac: macs.1,
            };
            rewrite_tcp(&mut other, &segment, &to).expect("TTL is above 1");
            prop_assert_eq!(&frame[..], &other[..]);
        }
    }
}
