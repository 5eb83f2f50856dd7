//! ICMP and ICMPv6 errors about TCP segments, translated to the other leg. Never answers or makes
//! one.

use crate::{
    IcmpError, Mac,
    bytes::array_mut,
    checksum::{PROTOCOL_ICMPV6, TCP_CHECK, finish, pseudo_sum, sum},
    decode::{ICMP_BYTES, IPV4_BYTES, IPV6_BYTES, QUOTED_BYTES},
    rewrite::{change, pair_v4, pair_v6, patch, ports, replace, set_macs},
};
use core::net::IpAddr;

/// The quoted segment's new addresses and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewTuple {
    /// New source address.
    pub src: IpAddr,
    /// New destination address.
    pub dst: IpAddr,
    /// New source port.
    pub src_port: u16,
    /// New destination port.
    pub dst_port: u16,
}

/// An ICMP error cannot be translated: the addresses are not all of its family, or it was not
/// decoded from this frame. The frame is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the addresses are not all of the ICMP error's family, or it is not of this frame")]
pub struct FamilyMismatch;

/// Translates an ICMP error to the other leg: outer addresses become `outer` (source, destination),
/// the quoted segment's become `inner`, the Ethernet addresses `macs` (source, destination). Takes
/// one from the outer TTL or hop limit (0 stays 0: who wants to drop a used-up one looks at
/// [`IcmpError::hop_limit`]). All checksums are right afterwards: outer IPv4 header, ICMP or
/// ICMPv6, and, if they were right before, the quoted IPv4 header's and the quoted TCP checksum
/// where the quote reaches that far.
///
/// # Errors
/// [`FamilyMismatch`]; final for this frame.
pub fn rewrite_icmp(
    frame: &mut [u8],
    icmp: &IcmpError,
    outer: (IpAddr, IpAddr),
    inner: NewTuple,
    macs: (Mac, Mac),
) -> Result<(), FamilyMismatch> {
    let [l3, l4, inner_l3, inner_l4, end] =
        [icmp.l3, icmp.l4, icmp.inner_l3, icmp.inner_l4, icmp.end].map(usize::from);
    let header = if icmp.v6 { IPV6_BYTES } else { IPV4_BYTES };
    let ordered = l3 + header <= l4
        && l4 + ICMP_BYTES <= inner_l3
        && inner_l3 + header <= inner_l4
        && inner_l4 + QUOTED_BYTES <= end;
    let packet = match frame.get_mut(..end) {
        Some(packet) if ordered => packet,
        _ => return Err(FamilyMismatch),
    };

    let moved = match (icmp.v6, outer.0, outer.1, inner.src, inner.dst) {
        (false, IpAddr::V4(o_src), IpAddr::V4(o_dst), IpAddr::V4(i_src), IpAddr::V4(i_dst)) => {
            if let Some(ip) = array_mut::<IPV4_BYTES>(packet, l3) {
                let mut delta = replace(ip, 12, &pair_v4(o_src.octets(), o_dst.octets()));
                let [ttl, protocol] = [ip[8], ip[9]];
                ip[8] = ttl.saturating_sub(1);
                delta += change(&[ttl, protocol, 0, 0], &[ip[8], protocol, 0, 0]);
                patch(ip, 10, delta);
            }
            array_mut::<IPV4_BYTES>(packet, inner_l3).map_or(0, |ip| {
                let delta = replace(ip, 12, &pair_v4(i_src.octets(), i_dst.octets()));
                patch(ip, 10, delta);
                delta
            })
        }
        (true, IpAddr::V6(o_src), IpAddr::V6(o_dst), IpAddr::V6(i_src), IpAddr::V6(i_dst)) => {
            if let Some(ip) = array_mut::<IPV6_BYTES>(packet, l3) {
                ip[7] = ip[7].saturating_sub(1);
                replace(ip, 8, &pair_v6(o_src.octets(), o_dst.octets()));
            }
            array_mut::<IPV6_BYTES>(packet, inner_l3)
                .map_or(0, |ip| replace(ip, 8, &pair_v6(i_src.octets(), i_dst.octets())))
        }
        _ => return Err(FamilyMismatch),
    };

    let mut delta = moved;
    if let Some(quoted) = array_mut::<QUOTED_BYTES>(packet, inner_l4) {
        delta += replace(quoted, 0, &ports(inner.src_port, inner.dst_port));
    }
    if let Some(field) = array_mut::<2>(packet, inner_l4 + TCP_CHECK) {
        patch(field, 0, delta);
    }
    set_macs(packet, macs.0, macs.1);
    store_checksum(packet, l3, l4, icmp.v6);
    Ok(())
}

/// Computes the checksum of the ICMP message from `l4` to the end of `packet` and writes it.
pub(crate) fn store_checksum(packet: &mut [u8], l3: usize, l4: usize, v6: bool) {
    if let Some(field) = array_mut::<2>(packet, l4 + 2) {
        *field = [0; 2];
    }
    let message = packet.get(l4..).unwrap_or_default();
    let pseudo = if v6 {
        pseudo_sum(packet, l3, true, PROTOCOL_ICMPV6, message.len()).unwrap_or(0)
    } else {
        0
    };
    let checksum = finish(pseudo + sum(message));
    if let Some(field) = array_mut::<2>(packet, l4 + 2) {
        *field = checksum.to_ne_bytes();
    }
}
