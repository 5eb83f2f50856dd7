//! ICMP and ICMPv6 errors about TCP segments. Owns their decoding and their translation to the other leg;
//! never answers or makes one.

use crate::{
    Decoded, Mac, Malformed, SeqNumber,
    bytes::{array, array_mut, be16, be32},
    checksum::{PROTOCOL_ICMPV6, TCP_CHECK, finish, fold, pseudo_sum, sum},
    decode::{
        Extent, Followed, IPV4_BYTES, IPV6_BYTES, TCP, follow_extensions, v4_address, v6_address,
    },
    rewrite::{change, pair_v4, pair_v6, patch, ports, replace, set_macs},
};
use core::net::IpAddr;

const ICMP_BYTES: usize = 8;
/// What every error quotes at least of the transport header (RFC 792); ports and sequence number are in it.
const QUOTED_BYTES: usize = 8;
/// The fragment offset alone: a first fragment has the TCP header.
const IPV4_OFFSET_MASK: u16 = 0x1fff;

/// What an ICMP error says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpKind {
    /// IPv4 type 3 code 4. The MTU is 0 from routers older than RFC 1191.
    FragmentationNeeded {
        /// The next hop's MTU.
        mtu: u32,
    },
    /// IPv6 type 2.
    PacketTooBig {
        /// The next hop's MTU.
        mtu: u32,
    },
    /// IPv4 type 3 with any other code, IPv6 type 1.
    Unreachable {
        /// Code of its family.
        code: u8,
    },
    /// IPv4 type 11, IPv6 type 3.
    TimeExceeded {
        /// Code of its family.
        code: u8,
    },
    /// IPv4 type 12, IPv6 type 4.
    ParameterProblem {
        /// Code of its family.
        code: u8,
    },
}

impl IcmpKind {
    /// The MTU, if the error is about one.
    #[must_use]
    pub const fn mtu(self) -> Option<u32> {
        match self {
            Self::FragmentationNeeded { mtu } | Self::PacketTooBig { mtu } => Some(mtu),
            _ => None,
        }
    }
}

/// An ICMP or ICMPv6 error that quotes a TCP segment; lengths and checksum are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// Whether it is ICMPv6.
    pub v6: bool,
    /// What it says.
    pub kind: IcmpKind,
    /// Who says it: any router on the way.
    pub outer_src: IpAddr,
    /// Whom it tells: the sender of the quoted segment.
    pub outer_dst: IpAddr,
    /// Source of the quoted segment.
    pub inner_src: IpAddr,
    /// Destination of the quoted segment.
    pub inner_dst: IpAddr,
    /// Source port of the quoted segment.
    pub inner_src_port: u16,
    /// Destination port of the quoted segment.
    pub inner_dst_port: u16,
    /// Sequence number of the quoted segment. Who believes an error only if this is in the flow's window is safe from
    /// blind attackers (RFC 5927 section 4.1).
    pub inner_seq: SeqNumber,
    /// TTL or hop limit of the error itself.
    pub hop_limit: u8,
    /// Offset of the outer IP header.
    pub l3: u16,
    /// Offset of the ICMP header.
    pub l4: u16,
    /// Offset of the quoted IP header.
    pub inner_l3: u16,
    /// Offset of the quoted TCP header, of which at least 8 bytes are there.
    pub inner_l4: u16,
    /// Offset of the end by the outer IP length.
    pub end: u16,
}

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

/// An ICMP error cannot be translated: the addresses are not all of its family, or it was not decoded from this frame.
/// The frame is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the addresses are not all of the ICMP error's family, or it is not of this frame")]
pub struct FamilyMismatch;

#[cold]
pub(crate) fn decode_v4(frame: &[u8], extent: Extent) -> Result<Decoded, Malformed> {
    let Extent { l3, l4, end, .. } = extent;
    // The end is in the frame: the caller checked.
    let packet = frame.get(..end).unwrap_or_default();
    let header = array::<ICMP_BYTES>(packet, l4).ok_or(Malformed::IcmpTruncated)?;
    let code = header[1];
    let kind = match header[0] {
        3 if code == 4 => IcmpKind::FragmentationNeeded {
            mtu: u32::from(be16::<ICMP_BYTES, 6>(header)),
        },
        3 => IcmpKind::Unreachable { code },
        11 => IcmpKind::TimeExceeded { code },
        12 => IcmpKind::ParameterProblem { code },
        _ => return Ok(Decoded::IcmpOther),
    };
    let inner_l3 = l4 + ICMP_BYTES;
    let inner = array::<IPV4_BYTES>(packet, inner_l3).ok_or(Malformed::IcmpQuote)?;
    let inner_header = usize::from(inner[0] & 0x0f) * 4;
    if inner[0] >> 4 != 4 || inner_header < IPV4_BYTES {
        return Err(Malformed::IcmpQuote);
    }
    if inner[9] != TCP || be16::<IPV4_BYTES, 6>(inner) & IPV4_OFFSET_MASK != 0 {
        return Ok(Decoded::IcmpOther);
    }
    let quote = Quote {
        kind,
        src: v4_address(inner, 12),
        dst: v4_address(inner, 16),
        l3: inner_l3,
        l4: inner_l3 + inner_header,
        hop_limit: array::<IPV4_BYTES>(packet, l3).map_or(0, |ip| ip[8]),
    };
    if fold(sum(packet.get(l4..).unwrap_or_default())) != 0xffff {
        return Err(Malformed::IcmpChecksum);
    }
    with_quote(packet, extent, quote)
}

#[cold]
pub(crate) fn decode_v6(frame: &[u8], extent: Extent) -> Result<Decoded, Malformed> {
    let Extent { l3, l4, end, .. } = extent;
    let packet = frame.get(..end).unwrap_or_default();
    let header = array::<ICMP_BYTES>(packet, l4).ok_or(Malformed::IcmpTruncated)?;
    let code = header[1];
    let kind = match header[0] {
        1 => IcmpKind::Unreachable { code },
        2 => IcmpKind::PacketTooBig {
            mtu: be32::<ICMP_BYTES, 4>(header),
        },
        3 => IcmpKind::TimeExceeded { code },
        4 => IcmpKind::ParameterProblem { code },
        _ => return Ok(Decoded::IcmpOther),
    };
    let inner_l3 = l4 + ICMP_BYTES;
    let inner = array::<IPV6_BYTES>(packet, inner_l3).ok_or(Malformed::IcmpQuote)?;
    if inner[0] >> 4 != 6 {
        return Err(Malformed::IcmpQuote);
    }
    // An error quotes as much as fits, so a chain that leaves the quote is a quote that is too short.
    let inner_l4 = match follow_extensions(packet, inner[6], inner_l3 + IPV6_BYTES, end) {
        Ok(Followed::Upper { protocol: TCP, at }) => at,
        Ok(_) => return Ok(Decoded::IcmpOther),
        Err(_) => return Err(Malformed::IcmpQuote),
    };
    let quote = Quote {
        kind,
        src: v6_address(inner, 8),
        dst: v6_address(inner, 24),
        l3: inner_l3,
        l4: inner_l4,
        hop_limit: array::<IPV6_BYTES>(packet, l3).map_or(0, |ip| ip[7]),
    };
    let message = packet.get(l4..).unwrap_or_default();
    let pseudo = pseudo_sum(packet, l3, true, PROTOCOL_ICMPV6, message.len());
    if fold(pseudo.unwrap_or(0) + sum(message)) != 0xffff {
        return Err(Malformed::IcmpChecksum);
    }
    with_quote(packet, extent, quote)
}

#[derive(Clone, Copy)]
struct Quote {
    kind: IcmpKind,
    src: IpAddr,
    dst: IpAddr,
    l3: usize,
    l4: usize,
    hop_limit: u8,
}

fn with_quote(packet: &[u8], extent: Extent, quote: Quote) -> Result<Decoded, Malformed> {
    let tcp = array::<QUOTED_BYTES>(packet, quote.l4).ok_or(Malformed::IcmpQuote)?;
    Ok(Decoded::Icmp(IcmpError {
        v6: extent.src.is_ipv6(),
        kind: quote.kind,
        outer_src: extent.src,
        outer_dst: extent.dst,
        inner_src: quote.src,
        inner_dst: quote.dst,
        inner_src_port: be16::<QUOTED_BYTES, 0>(tcp),
        inner_dst_port: be16::<QUOTED_BYTES, 2>(tcp),
        inner_seq: SeqNumber(be32::<QUOTED_BYTES, 4>(tcp)),
        hop_limit: quote.hop_limit,
        l3: extent.l3 as u16,
        l4: extent.l4 as u16,
        inner_l3: quote.l3 as u16,
        inner_l4: quote.l4 as u16,
        end: extent.end as u16,
    }))
}

/// Translates an ICMP error to the other leg: outer addresses become `outer` (source, destination), the
/// quoted segment's become `inner`, the Ethernet addresses `macs` (source, destination). Takes one from the outer TTL or
/// hop limit (0 stays 0: who wants to drop a used-up one looks at [`IcmpError::hop_limit`]). All checksums are right
/// afterwards: outer IPv4 header, ICMP or ICMPv6, and, if they were right before, the quoted IPv4 header's and the quoted TCP
/// checksum where the quote reaches that far.
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
            array_mut::<IPV6_BYTES>(packet, inner_l3).map_or(0, |ip| {
                replace(ip, 8, &pair_v6(i_src.octets(), i_dst.octets()))
            })
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
fn store_checksum(packet: &mut [u8], l3: usize, l4: usize, v6: bool) {
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
