//! From a frame to a typed view. Owns every length check; never copies or changes bytes.

use crate::{
    Decoded, Flags, IcmpError, IcmpKind, Malformed, Segment, SeqNumber, UdpDatagram,
    bytes::{array, be16, be32},
    checksum::{PROTOCOL_ICMPV6, fold, pseudo_sum, sum, sum_words},
};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IPv6 extension headers that are followed in one packet. RFC 8200 section 4.1 has four that may
/// precede TCP (hop-by-hop, destination options twice, routing); room for as many again.
pub const LIMIT_EXTENSION_HEADERS: usize = 8;

pub(crate) const ETHERNET_BYTES: usize = 14;
pub(crate) const IPV4_BYTES: usize = 20;
pub(crate) const IPV6_BYTES: usize = 40;
pub(crate) const TCP_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
pub(crate) const ICMP_BYTES: usize = 8;
/// What every error quotes at least of the transport header (RFC 792); ports and sequence number
/// are in it.
pub(crate) const QUOTED_BYTES: usize = 8;

pub(crate) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(crate) const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;
/// Used for stacked tags before IEEE 802.1ad.
const ETHERTYPE_OLD_STACKED_VLAN: u16 = 0x9100;

const HOP_BY_HOP: u8 = 0;
const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
const UDP: u8 = 17;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const ICMPV6: u8 = 58;
const DESTINATION_OPTIONS: u8 = 60;

/// More fragments, and the fragment offset.
const IPV4_FRAGMENT_MASK: u16 = 0x3fff;
/// The fragment offset alone: a first fragment has the TCP header.
const IPV4_OFFSET_MASK: u16 = 0x1fff;

/// Offsets of one packet. All are at most `end`, which fits in 16 bits.
#[derive(Clone, Copy)]
struct Extent {
    src: IpAddr,
    dst: IpAddr,
    l3: usize,
    l4: usize,
    end: usize,
}

/// Says what `frame`, which starts with an Ethernet header, is.
///
/// # Errors
/// The first reason found why the frame cannot be trusted. Nobody shall forward it.
#[inline]
pub fn decode(frame: &[u8]) -> Result<Decoded, Malformed> {
    let Some(ethernet) = frame.first_chunk::<ETHERNET_BYTES>() else {
        return Err(Malformed::EthernetTruncated);
    };
    match be16::<ETHERNET_BYTES, 12>(ethernet) {
        ETHERTYPE_IPV4 => decode_v4(frame),
        ETHERTYPE_IPV6 => decode_v6(frame),
        ETHERTYPE_ARP => Ok(Decoded::Arp),
        ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN | ETHERTYPE_OLD_STACKED_VLAN => Ok(Decoded::Vlan),
        _ => Ok(Decoded::Other),
    }
}

#[inline]
fn decode_v4(frame: &[u8]) -> Result<Decoded, Malformed> {
    let l3 = ETHERNET_BYTES;
    let Some(ip) = array::<IPV4_BYTES>(frame, l3) else {
        return Err(Malformed::Ipv4Truncated);
    };
    if ip[0] >> 4 != 4 {
        return Err(Malformed::Ipv4Version);
    }
    let header = usize::from(ip[0] & 0x0f) * 4;
    let total = usize::from(be16::<IPV4_BYTES, 2>(ip));
    let end = l3 + total;
    if header < IPV4_BYTES {
        return Err(Malformed::Ipv4HeaderLength);
    }
    if total < header {
        return Err(Malformed::Ipv4LengthBelowHeader);
    }
    if end > frame.len() {
        return Err(Malformed::Ipv4LengthBeyondFrame);
    }
    if end > usize::from(u16::MAX) {
        return Err(Malformed::FrameTooLarge);
    }
    let mut checksum = sum_words(ip);
    if header > IPV4_BYTES {
        // In range: header <= total, and total bytes are in the frame.
        let options = frame.get(l3 + IPV4_BYTES..l3 + header).unwrap_or_default();
        checksum += sum(options);
    }
    if fold(checksum) != 0xffff {
        return Err(Malformed::Ipv4Checksum);
    }
    if be16::<IPV4_BYTES, 6>(ip) & IPV4_FRAGMENT_MASK != 0 {
        return Ok(Decoded::Fragment);
    }
    let extent =
        Extent { src: v4_address(ip, 12), dst: v4_address(ip, 16), l3, l4: l3 + header, end };
    match ip[9] {
        TCP => tcp(frame, extent),
        UDP => udp(frame, extent),
        ICMP => icmp_v4(frame, extent),
        _ => Ok(Decoded::Other),
    }
}

#[inline]
fn decode_v6(frame: &[u8]) -> Result<Decoded, Malformed> {
    let l3 = ETHERNET_BYTES;
    let Some(ip) = array::<IPV6_BYTES>(frame, l3) else {
        return Err(Malformed::Ipv6Truncated);
    };
    if ip[0] >> 4 != 6 {
        return Err(Malformed::Ipv6Version);
    }
    let end = l3 + IPV6_BYTES + usize::from(be16::<IPV6_BYTES, 4>(ip));
    if end > frame.len() {
        return Err(Malformed::Ipv6LengthBeyondFrame);
    }
    if end > usize::from(u16::MAX) {
        return Err(Malformed::FrameTooLarge);
    }
    let mut extent =
        Extent { src: v6_address(ip, 8), dst: v6_address(ip, 24), l3, l4: l3 + IPV6_BYTES, end };
    let is_mapped = |ip: IpAddr| matches!(ip, IpAddr::V6(v6) if v6.to_bits() >> 32 == 0xffff);
    if is_mapped(extent.src) || is_mapped(extent.dst) {
        return Err(Malformed::Ipv6Mapped);
    }
    let mut protocol = ip[6];
    if protocol != TCP {
        match follow_extensions(frame, protocol, extent.l4, end)? {
            Followed::Upper { protocol: p, at } => (protocol, extent.l4) = (p, at),
            Followed::Fragment => return Ok(Decoded::Fragment),
            Followed::NotThereYet => return Ok(Decoded::Other),
        }
    }
    match protocol {
        TCP => tcp(frame, extent),
        UDP => udp(frame, extent),
        ICMPV6 => icmp_v6(frame, extent),
        _ => Ok(Decoded::Other),
    }
}

/// Where a chain of extension headers ends.
enum Followed {
    /// At a header that is none of the followed kinds.
    Upper {
        /// Its number.
        protocol: u8,
        /// Its offset.
        at: usize,
    },
    /// At a fragment header.
    Fragment,
    /// At a routing header with hops still to come.
    NotThereYet,
}

/// Follows extension headers from `at`, never beyond `end`. Both come from checked lengths.
fn follow_extensions(
    frame: &[u8],
    mut protocol: u8,
    mut at: usize,
    end: usize,
) -> Result<Followed, Malformed> {
    for _ in 0..=LIMIT_EXTENSION_HEADERS {
        match protocol {
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => {}
            FRAGMENT => return Ok(Followed::Fragment),
            _ => return Ok(Followed::Upper { protocol, at }),
        }
        // Every extension header is a multiple of 8 bytes and at least 8 (RFC 8200 section 4).
        let header = match array::<8>(frame, at) {
            Some(header) if at + 8 <= end => header,
            _ => return Err(Malformed::Ipv6ExtensionTruncated),
        };
        if protocol == ROUTING && header[3] != 0 {
            return Ok(Followed::NotThereYet);
        }
        protocol = header[0];
        at += 8 + usize::from(header[1]) * 8;
        if at > end {
            return Err(Malformed::Ipv6ExtensionTruncated);
        }
    }
    Err(Malformed::Ipv6TooManyExtensions)
}

#[inline(always)]
fn tcp(frame: &[u8], extent: Extent) -> Result<Decoded, Malformed> {
    let Extent { src, dst, l3, l4, end } = extent;
    let header = match array::<TCP_BYTES>(frame, l4) {
        Some(header) if l4 + TCP_BYTES <= end => header,
        _ => return Err(Malformed::TcpTruncated),
    };
    let offset = usize::from(header[12] >> 4) * 4;
    if offset < TCP_BYTES || l4 + offset > end {
        return Err(Malformed::TcpDataOffset);
    }
    Ok(Decoded::Tcp(Segment {
        src,
        dst,
        src_port: be16::<TCP_BYTES, 0>(header),
        dst_port: be16::<TCP_BYTES, 2>(header),
        seq: SeqNumber(be32::<TCP_BYTES, 4>(header)),
        ack: SeqNumber(be32::<TCP_BYTES, 8>(header)),
        flags: Flags(header[13]),
        window: be16::<TCP_BYTES, 14>(header),
        l3: l3 as u16,
        l4: l4 as u16,
        payload: (l4 + offset) as u16,
        end: end as u16,
    }))
}

fn udp(frame: &[u8], extent: Extent) -> Result<Decoded, Malformed> {
    let Extent { src, dst, l3, l4, end } = extent;
    let header = match array::<UDP_BYTES>(frame, l4) {
        Some(header) if l4 + UDP_BYTES <= end => header,
        _ => return Err(Malformed::UdpTruncated),
    };
    let length = usize::from(be16::<UDP_BYTES, 4>(header));
    if length < UDP_BYTES || l4 + length > end {
        return Err(Malformed::UdpLength);
    }
    Ok(Decoded::Udp(UdpDatagram {
        src,
        dst,
        src_port: be16::<UDP_BYTES, 0>(header),
        dst_port: be16::<UDP_BYTES, 2>(header),
        l3: l3 as u16,
        l4: l4 as u16,
        payload: (l4 + UDP_BYTES) as u16,
        end: (l4 + length) as u16,
    }))
}

#[cold]
fn icmp_v4(frame: &[u8], extent: Extent) -> Result<Decoded, Malformed> {
    let Extent { l3, l4, end, .. } = extent;
    // The end is in the frame: the caller checked.
    let packet = frame.get(..end).unwrap_or_default();
    let header = array::<ICMP_BYTES>(packet, l4).ok_or(Malformed::IcmpTruncated)?;
    let code = header[1];
    let kind = match header[0] {
        3 if code == 4 => {
            IcmpKind::FragmentationNeeded { mtu: u32::from(be16::<ICMP_BYTES, 6>(header)) }
        }
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
fn icmp_v6(frame: &[u8], extent: Extent) -> Result<Decoded, Malformed> {
    let Extent { l3, l4, end, .. } = extent;
    let packet = frame.get(..end).unwrap_or_default();
    let header = array::<ICMP_BYTES>(packet, l4).ok_or(Malformed::IcmpTruncated)?;
    let code = header[1];
    let kind = match header[0] {
        1 => IcmpKind::Unreachable { code },
        2 => IcmpKind::PacketTooBig { mtu: be32::<ICMP_BYTES, 4>(header) },
        3 => IcmpKind::TimeExceeded { code },
        4 => IcmpKind::ParameterProblem { code },
        _ => return Ok(Decoded::IcmpOther),
    };
    let inner_l3 = l4 + ICMP_BYTES;
    let inner = array::<IPV6_BYTES>(packet, inner_l3).ok_or(Malformed::IcmpQuote)?;
    if inner[0] >> 4 != 6 {
        return Err(Malformed::IcmpQuote);
    }
    // An error quotes as much as fits, so a chain that leaves the quote is a quote that is too
    // short.
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

/// The address at a fixed offset of an IPv4 header.
#[inline(always)]
fn v4_address(ip: &[u8; IPV4_BYTES], at: usize) -> IpAddr {
    let octets: [u8; 4] = *array(ip, at).unwrap_or(&[0; 4]);
    IpAddr::V4(Ipv4Addr::from(octets))
}

/// The address at a fixed offset of an IPv6 header.
#[inline(always)]
fn v6_address(ip: &[u8; IPV6_BYTES], at: usize) -> IpAddr {
    let octets: [u8; 16] = *array(ip, at).unwrap_or(&[0; 16]);
    IpAddr::V6(Ipv6Addr::from(octets))
}
