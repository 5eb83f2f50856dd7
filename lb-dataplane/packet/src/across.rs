//! TCP segments and ICMP errors from one IP family to the other, as RFC 7915 says it of a stateless
//! translator, in a buffer with room for the longer header.
//!
//! Owns the headers that it writes. TCP's own bytes are taken over, but for ports and checksum.
//! IPv4 options and IPv6 extension headers stay behind (RFC 7915, sections 4.1 and 5.1).

use crate::{
    IcmpError, IcmpKind, Mac, NewTuple, Rewrite, RewriteError, Segment, SeqNumber,
    bytes::{array, array_mut},
    checksum::{TCP_CHECK, finish, sum, sum_inverted, sum_words},
    decode::{
        ETHERNET_BYTES, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ICMP_BYTES, IPV4_BYTES, IPV6_BYTES,
        QUOTED_BYTES, TCP, TCP_BYTES,
    },
    icmp::store_checksum,
    rewrite::{pair_v4, pair_v6, patch, ports, replace, set_macs},
};
use core::net::IpAddr;

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// What every IPv6 link carries (RFC 8200, section 5).
const IPV6_MTU_MIN: u32 = 1_280;
/// By which IPv6's header is the longer one.
const LONGER: u32 = (IPV6_BYTES - IPV4_BYTES) as u32;
/// Of an IPv4 header: below this an IPv6 sender does not go, so the way may cut it (RFC 7915,
/// section 5.1).
const WHOLE_FROM: usize = IPV6_MTU_MIN as usize - LONGER as usize;
/// An ICMP error over IPv4 is not longer (RFC 1812, section 4.3.2.3); over IPv6 it may be.
const ERROR_MAX: usize = 576;

/// What a header says besides addresses and lengths.
#[derive(Clone, Copy)]
struct Carried {
    /// Differentiated services and congestion.
    class: u8,
    /// TTL or hop limit.
    hops: u8,
}

/// Reads it from the IP header at `l3`.
fn carried(frame: &[u8], l3: usize, v6: bool) -> Option<Carried> {
    let [a, b, .., hops_v6, hops_v4] = *array::<9>(frame, l3)?;
    Some(if v6 {
        Carried { class: a << 4 | b >> 4, hops: hops_v6 }
    } else {
        Carried { class: b, hops: hops_v4 }
    })
}

/// An IP header at `l3`. `number` tells an IPv4 packet's fragments from another one's.
fn put_header(
    out: &mut [u8],
    l3: usize,
    (src, dst): (IpAddr, IpAddr),
    Carried { class, hops }: Carried,
    (protocol, bytes, number): (u8, usize, u16),
) {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let Some(ip) = array_mut::<IPV4_BYTES>(out, l3) else {
                return;
            };
            // What a frame quotes may say anything of its length.
            let total = (IPV4_BYTES + bytes).min(usize::from(u16::MAX)) as u16;
            let ([high, low], [n_high, n_low]) = (total.to_be_bytes(), number.to_be_bytes());
            let (dont, n_high, n_low) =
                if usize::from(total) > WHOLE_FROM { (0x40, 0, 0) } else { (0, n_high, n_low) };
            ip[..12].copy_from_slice(&[
                0x45, class, high, low, n_high, n_low, dont, 0, hops, protocol, 0, 0,
            ]);
            ip[12..].copy_from_slice(&pair_v4(src.octets(), dst.octets()));
            let checksum = finish(sum(ip));
            ip[10..12].copy_from_slice(&checksum.to_ne_bytes());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let Some(ip) = array_mut::<IPV6_BYTES>(out, l3) else {
                return;
            };
            let [high, low] = (bytes.min(usize::from(u16::MAX)) as u16).to_be_bytes();
            ip[..8].copy_from_slice(&[
                0x60 | class >> 4,
                class << 4,
                0,
                0,
                high,
                low,
                protocol,
                hops,
            ]);
            ip[8..].copy_from_slice(&pair_v6(src.octets(), dst.octets()));
        }
        _ => {}
    }
}

/// Both Ethernet addresses and the type.
fn put_ethernet(out: &mut [u8], src: Mac, dst: Mac, v6: bool) {
    let kind = if v6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 };
    set_macs(out, src, dst);
    if let Some(field) = array_mut::<2>(out, 12) {
        *field = kind.to_be_bytes();
    }
}

fn header_bytes(v6: bool) -> usize {
    if v6 { IPV6_BYTES } else { IPV4_BYTES }
}

/// The sum of two addresses as the pseudo-header has them, of the header at `l3`.
fn addresses_inverted(frame: &[u8], l3: usize, v6: bool) -> Option<u64> {
    Some(if v6 {
        sum_inverted(array::<32>(frame, l3 + 8)?)
    } else {
        sum_inverted(array::<8>(frame, l3 + 12)?)
    })
}

fn addresses(src: IpAddr, dst: IpAddr) -> u64 {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => sum_words(&pair_v4(src.octets(), dst.octets())),
        (IpAddr::V6(src), IpAddr::V6(dst)) => sum_words(&pair_v6(src.octets(), dst.octets())),
        _ => 0,
    }
}

/// The TCP header that was copied to `l4` gets its new ports, and its checksum what they and
/// `moved` add to it.
fn readdress_tcp(out: &mut [u8], l4: usize, new: [u8; 4], moved: u64) {
    let mut delta = moved;
    if let Some(quoted) = array_mut::<QUOTED_BYTES>(out, l4) {
        delta += replace(quoted, 0, &new);
    }
    if let Some(field) = array_mut::<2>(out, l4 + TCP_CHECK) {
        patch(field, 0, delta);
    }
}

/// What tells the fragments of a segment from those of the segments around it.
fn number_of(seq: SeqNumber) -> u16 {
    (seq.0 ^ seq.0 >> 16) as u16
}

/// Gives the segment at the start of `buffer` headers with addresses of the other family, and says
/// how many bytes it takes then. Otherwise as [`rewrite_tcp`](crate::rewrite_tcp): one is taken
/// from TTL or hop limit, and a segment that was corrupt stays so.
///
/// # Errors
/// [`RewriteError::FamilyMismatch`] if the addresses are not of the other family;
/// [`RewriteError::NotThisFrame`] also if the buffer is too short. The frame is as it was.
pub fn carry_tcp(buffer: &mut [u8], seg: &Segment, to: &Rewrite) -> Result<usize, RewriteError> {
    let (v6, new_v6) = (seg.is_v6(), to.src.is_ipv6());
    if v6 == new_v6 || to.dst.is_ipv6() != new_v6 {
        return Err(RewriteError::FamilyMismatch);
    }
    let [l3, l4, end] = [seg.l3, seg.l4, seg.end].map(usize::from);
    let at = ETHERNET_BYTES + header_bytes(new_v6);
    let read = carried(buffer, l3, v6).zip(addresses_inverted(buffer, l3, v6));
    let Some((mut carried, old)) = read else {
        return Err(RewriteError::NotThisFrame);
    };
    let bytes = end.saturating_sub(l4);
    if bytes < TCP_BYTES || end > buffer.len() || at + bytes > buffer.len() {
        return Err(RewriteError::NotThisFrame);
    }
    if carried.hops <= 1 {
        return Err(RewriteError::TtlExpired);
    }
    carried.hops -= 1;
    buffer.copy_within(l4..end, at);
    put_ethernet(buffer, to.src_mac, to.dst_mac, new_v6);
    let what = (TCP, bytes, number_of(seg.seq));
    put_header(buffer, ETHERNET_BYTES, (to.src, to.dst), carried, what);
    let moved = old + addresses(to.src, to.dst);
    readdress_tcp(buffer, at, ports(to.src_port, to.dst_port), moved);
    Ok(at + bytes)
}

/// Type, code and the rest of the ICMP header that say the same in the other family; none for what
/// it has no words for (RFC 7915, sections 4.2 and 5.2).
fn words(kind: IcmpKind, v6: bool) -> Option<(u8, u8, u32)> {
    Some(match (kind, v6) {
        // Not less than an IPv6 sender can do with: it has what is smaller cut on the way.
        (IcmpKind::FragmentationNeeded { mtu }, false) => {
            (2, 0, mtu.saturating_add(LONGER).max(IPV6_MTU_MIN))
        }
        (IcmpKind::PacketTooBig { mtu }, true) => {
            (3, 4, mtu.saturating_sub(LONGER).min(u32::from(u16::MAX)))
        }
        (IcmpKind::Unreachable { code }, false) => match code {
            0 | 1 | 5..=8 | 11 | 12 => (1, 0, 0),
            9 | 10 | 13 | 15 => (1, 1, 0),
            3 => (1, 4, 0),
            _ => return None,
        },
        (IcmpKind::Unreachable { code }, true) => match code {
            0 | 2 | 3 => (3, 1, 0),
            1 => (3, 10, 0),
            4 => (3, 3, 0),
            _ => return None,
        },
        (IcmpKind::TimeExceeded { code }, false) => (3, code, 0),
        (IcmpKind::TimeExceeded { code }, true) => (11, code, 0),
        _ => return None,
    })
}

impl IcmpError {
    /// Whether the other IP family has such an error, so that [`carry_icmp`] can say it.
    #[must_use]
    pub fn has_words_across(&self) -> bool {
        words(self.kind, self.v6).is_some()
    }
}

/// Gives the ICMP error at the start of `buffer` headers with addresses of the other family, as
/// [`rewrite_icmp`](crate::rewrite_icmp) does within one, and says how many bytes it takes then.
///
/// # Errors
/// [`RewriteError::FamilyMismatch`] if the addresses are not all of the other family, or that has
/// no such error; [`RewriteError::NotThisFrame`] also if the buffer is too short. The frame is as
/// it was.
pub fn carry_icmp(
    buffer: &mut [u8],
    icmp: &IcmpError,
    outer: (IpAddr, IpAddr),
    inner: NewTuple,
    macs: (Mac, Mac),
) -> Result<usize, RewriteError> {
    let (v6, new_v6) = (icmp.v6, !icmp.v6);
    let all = [outer.0, outer.1, inner.src, inner.dst];
    let words = words(icmp.kind, v6).filter(|_| all.iter().all(|a| a.is_ipv6() == new_v6));
    let Some((kind, code, rest)) = words else {
        return Err(RewriteError::FamilyMismatch);
    };
    let [l3, inner_l3, inner_l4, end] =
        [icmp.l3, icmp.inner_l3, icmp.inner_l4, icmp.end].map(usize::from);
    let header = header_bytes(new_v6);
    let message_at = ETHERNET_BYTES + header;
    let inner_at = message_at + ICMP_BYTES;
    let tcp_at = inner_at + header;
    let longest = (ETHERNET_BYTES + ERROR_MAX).saturating_sub(tcp_at);
    let quoted = end.saturating_sub(inner_l4).min(longest);
    let new_end = tcp_at + quoted;
    let read = || {
        Some((
            carried(buffer, l3, v6)?,
            carried(buffer, inner_l3, v6)?,
            addresses_inverted(buffer, inner_l3, v6)?,
            segment_bytes(buffer, inner_l3, inner_l4, v6)?,
        ))
    };
    let fits = quoted >= QUOTED_BYTES && end <= buffer.len() && new_end <= buffer.len();
    let Some((mut outside, inside, old, bytes)) = read().filter(|_| fits) else {
        return Err(RewriteError::NotThisFrame);
    };
    buffer.copy_within(inner_l4..inner_l4 + quoted, tcp_at);
    let frame = buffer.get_mut(..new_end).unwrap_or_default();
    let what = (TCP, bytes, number_of(icmp.inner_seq));
    put_header(frame, inner_at, (inner.src, inner.dst), inside, what);
    let moved = old + addresses(inner.src, inner.dst);
    readdress_tcp(frame, tcp_at, ports(inner.src_port, inner.dst_port), moved);
    outside.hops = outside.hops.saturating_sub(1);
    let message_bytes = new_end - message_at;
    let protocol = if new_v6 { ICMPV6 } else { ICMP };
    let what = (protocol, message_bytes, number_of(icmp.inner_seq));
    put_header(frame, ETHERNET_BYTES, outer, outside, what);
    put_ethernet(frame, macs.0, macs.1, new_v6);
    let [a, b, c, d] = rest.to_be_bytes();
    if let Some(head) = array_mut::<ICMP_BYTES>(frame, message_at) {
        *head = [kind, code, 0, 0, a, b, c, d];
    }
    store_checksum(frame, ETHERNET_BYTES, message_at, new_v6);
    Ok(new_end)
}

/// How long the segment was that is quoted, whatever is left of it.
fn segment_bytes(frame: &[u8], l3: usize, l4: usize, v6: bool) -> Option<usize> {
    let (at, header) = if v6 { (4, IPV6_BYTES) } else { (2, 0) };
    let said = u16::from_be_bytes(*array::<2>(frame, l3 + at)?);
    (l3 + header + usize::from(said)).checked_sub(l4)
}
