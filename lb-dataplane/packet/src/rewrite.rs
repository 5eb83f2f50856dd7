//! Address translation of TCP segments in place. Owns the incremental checksums of a rewrite; never
//! touches sequence numbers, options or payload.

use crate::{
    Flags, Mac, Segment,
    bytes::{array, array_mut},
    checksum::{TCP_CHECK, sum_inverted, sum_words, update},
    decode::{IPV4_BYTES, TCP_BYTES},
};
use core::net::IpAddr;

/// What a segment's addresses become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// New source address.
    pub src: IpAddr,
    /// New destination address.
    pub dst: IpAddr,
    /// New source port.
    pub src_port: u16,
    /// New destination port.
    pub dst_port: u16,
    /// New Ethernet source.
    pub src_mac: Mac,
    /// New Ethernet destination.
    pub dst_mac: Mac,
}

/// Why a segment was not rewritten. The frame is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum RewriteError {
    /// Old and new addresses are not of one family.
    #[error("old and new addresses are not all IPv4 or all IPv6")]
    FamilyMismatch,
    /// The TTL or hop limit is used up: forwarding would go on for ever in a loop.
    #[error("the TTL or hop limit of the packet is used up")]
    TtlExpired,
    /// The view was not decoded from this frame.
    #[error("the segment's offsets are not those of this frame")]
    NotThisFrame,
}

impl RewriteError {
    /// The value of the `reason` label in metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        self.into()
    }
}

/// The two ports of a TCP header as they are on the wire.
#[inline]
pub(crate) fn ports(src: u16, dst: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (src.to_be_bytes(), dst.to_be_bytes());
    [a, b, c, d]
}

/// Two addresses as they follow each other in an IPv4 header.
#[inline]
pub(crate) fn pair_v4(src: [u8; 4], dst: [u8; 4]) -> [u8; 8] {
    let ([a, b, c, d], [e, f, g, h]) = (src, dst);
    [a, b, c, d, e, f, g, h]
}

/// Two addresses as they follow each other in an IPv6 header.
#[inline]
pub(crate) fn pair_v6(src: [u8; 16], dst: [u8; 16]) -> [u8; 32] {
    let mut both = [0; 32];
    both[..16].copy_from_slice(&src);
    both[16..].copy_from_slice(&dst);
    both
}

/// What replacing `old` by `new` adds to a checksum's sum.
#[inline]
pub(crate) fn change<const N: usize>(old: &[u8; N], new: &[u8; N]) -> u64 {
    sum_inverted(old) + sum_words(new)
}

/// Patches the checksum at `at` of a header.
#[inline]
pub(crate) fn patch<const N: usize>(header: &mut [u8; N], at: usize, delta: u64) {
    if let Some(field) = array_mut::<2>(header, at) {
        *field = update(u16::from_ne_bytes(*field), delta).to_ne_bytes();
    }
}

/// Writes both Ethernet addresses.
#[inline]
pub(crate) fn set_macs(frame: &mut [u8], src: Mac, dst: Mac) {
    if let Some(macs) = array_mut::<12>(frame, 0) {
        macs[..6].copy_from_slice(&dst.0);
        macs[6..].copy_from_slice(&src.0);
    }
}

/// Gives a segment new addresses, ports and Ethernet addresses and takes one from its TTL or hop
/// limit. The checksums are updated incrementally, so a segment that was corrupt stays so; the TCP
/// checksum has to be a full one. An urgent pointer without its flag, which means nothing (RFC 9293
/// section 3.1), becomes 0: so no mark leaves towards a client ([`crate::EndMark`]).
///
/// # Errors
/// See [`RewriteError`]; all are final for this frame, the caller drops and counts it.
#[inline]
pub fn rewrite_tcp(frame: &mut [u8], seg: &Segment, to: &Rewrite) -> Result<(), RewriteError> {
    let (l3, l4) = (usize::from(seg.l3), usize::from(seg.l4));
    let Some(tcp) = array::<TCP_BYTES>(frame, l4) else {
        return Err(RewriteError::NotThisFrame);
    };
    let new_ports = ports(to.src_port, to.dst_port);
    let [a, b, c, d, ..] = *tcp;
    let mut delta = change(&[a, b, c, d], &new_ports);

    match (seg.src, to.src, to.dst) {
        (IpAddr::V4(_), IpAddr::V4(src), IpAddr::V4(dst)) => {
            let Some(ip) = array_mut::<IPV4_BYTES>(frame, l3) else {
                return Err(RewriteError::NotThisFrame);
            };
            if ip[8] <= 1 {
                return Err(RewriteError::TtlExpired);
            }
            let addresses = pair_v4(src.octets(), dst.octets());
            let moved = replace(ip, 12, &addresses);
            // TTL is the high byte of its word: taking one from it adds ~0x0100 to the sum.
            ip[8] -= 1;
            patch(ip, 10, moved + u64::from(!0x0100u16.to_be()));
            delta += moved;
        }
        (IpAddr::V6(_), IpAddr::V6(src), IpAddr::V6(dst)) => {
            let Some(ip) = array_mut::<40>(frame, l3) else {
                return Err(RewriteError::NotThisFrame);
            };
            if ip[7] <= 1 {
                return Err(RewriteError::TtlExpired);
            }
            ip[7] -= 1;
            delta += replace(ip, 8, &pair_v6(src.octets(), dst.octets()));
        }
        _ => return Err(RewriteError::FamilyMismatch),
    }

    if let Some(tcp) = array_mut::<TCP_BYTES>(frame, l4) {
        tcp[..4].copy_from_slice(&new_ports);
        delta += take_stray_pointer(tcp);
        patch(tcp, TCP_CHECK, delta);
    }
    set_macs(frame, to.src_mac, to.dst_mac);
    Ok(())
}

/// A kernel or device that cuts up the data in front of a marked FIN leaves the mark on all of it,
/// and the FIN on the last part alone. Says what that adds to a checksum's sum.
#[inline]
fn take_stray_pointer(tcp: &mut [u8; TCP_BYTES]) -> u64 {
    const FLAGS: usize = 13;
    let [.., a, b, c, d] = *tcp;
    if (c, d) == (0, 0) || tcp[FLAGS] & Flags::URG.0 != 0 {
        return 0;
    }
    replace(tcp, TCP_CHECK, &[a, b, 0, 0])
}

/// Takes the FIN flag from a segment, so that its payload can be forwarded while the close is held
/// back. The checksum is updated incrementally.
pub fn clear_fin(frame: &mut [u8], seg: &Segment) {
    if let Some(tcp) = array_mut::<TCP_BYTES>(frame, usize::from(seg.l4)) {
        clear(tcp, Flags::FIN);
    }
}

fn clear(tcp: &mut [u8; TCP_BYTES], flag: Flags) {
    let [.., offset, flags, a, b, _, _, _, _] = *tcp;
    let delta = replace(tcp, 12, &[offset, flags & !flag.0, a, b]);
    patch(tcp, TCP_CHECK, delta);
}

/// Takes the mark of urgent data from a segment (flag and pointer, RFC 9293 section 3.8.5), so that
/// its bytes are all of the stream: Linux leaves the urgent one out of it, without `SO_OOBINLINE`.
/// The checksum is updated incrementally.
pub fn clear_urgent(frame: &mut [u8], seg: &Segment) {
    if let Some(tcp) = array_mut::<TCP_BYTES>(frame, usize::from(seg.l4)) {
        clear(tcp, Flags::URG);
        let delta = take_stray_pointer(tcp);
        patch(tcp, TCP_CHECK, delta);
    }
}

/// Allows routers to cut an IPv4 packet to pieces (RFC 791 section 3.1, "Don't Fragment"); one of
/// IPv6 stays as it is. It gets a number of its own: those that may not be cut have any, often one
/// for all (RFC 6864 section 4.1), and by that pieces of different ones would be put together.
pub fn allow_fragments(frame: &mut [u8], seg: &Segment) {
    const DONT: u8 = 0x40;
    if !seg.is_v6()
        && let Some(ip) = array_mut::<IPV4_BYTES>(frame, usize::from(seg.l3))
    {
        let [_, _, _, _, _, _, flags, offset, ..] = *ip;
        if flags & DONT == 0 {
            return;
        }
        // Far apart, whatever lies between the numbers of two segments.
        let [high, low, ..] = seg.seq.0.wrapping_mul(0x9e37_79b1).to_be_bytes();
        let delta = replace(ip, 4, &[high, low, flags & !DONT, offset]);
        patch(ip, 10, delta);
    }
}

/// Gives a segment the acknowledgement number of `seg`, whose header it is. The (full) checksum is
/// updated incrementally.
pub fn replace_ack(frame: &mut [u8], seg: &Segment) {
    const ACK: usize = 8;
    if let Some(tcp) = array_mut::<TCP_BYTES>(frame, usize::from(seg.l4)) {
        let delta = replace(tcp, ACK, &seg.ack.0.to_be_bytes());
        patch(tcp, TCP_CHECK, delta);
    }
}

/// Writes `new` at `at` of a header and says what that adds to a checksum's sum.
#[inline]
pub(crate) fn replace<const H: usize, const N: usize>(
    header: &mut [u8; H],
    at: usize,
    new: &[u8; N],
) -> u64 {
    match array_mut::<N>(header, at) {
        Some(old) => {
            let delta = change(old, new);
            *old = *new;
            delta
        }
        None => 0,
    }
}
