//! What frames are read as. Owns the views, whose offsets [`decode`](crate::decode) checked; never
//! makes one.

use crate::{Flags, SeqNumber};
use core::net::IpAddr;

/// A TCP segment whose lengths [`decode`] checked against the frame's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number of the first byte, or of the SYN.
    pub seq: SeqNumber,
    /// Acknowledgement number; without meaning if there is no ACK flag.
    pub ack: SeqNumber,
    /// Flags.
    pub flags: Flags,
    /// Window as on the wire, unscaled.
    pub window: u16,
    /// Offset of the IP header.
    pub l3: u16,
    /// Offset of the TCP header.
    pub l4: u16,
    /// Offset of the payload.
    pub payload: u16,
    /// Offset of the end by the IP length; link padding is behind it.
    pub end: u16,
}

impl Segment {
    /// Bytes of payload.
    #[inline]
    #[must_use]
    pub fn payload_len(&self) -> u32 {
        u32::from(self.end.saturating_sub(self.payload))
    }

    /// Sequence numbers that the segment takes: its payload, and one each for SYN and FIN.
    #[inline]
    #[must_use]
    pub fn seq_len(&self) -> u32 {
        self.payload_len()
            + u32::from(self.flags.has(Flags::SYN))
            + u32::from(self.flags.has(Flags::FIN))
    }

    /// The payload.
    #[inline]
    #[must_use]
    pub fn data<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        frame.get(usize::from(self.payload)..usize::from(self.end)).unwrap_or_default()
    }

    /// Whether it came over IPv6.
    #[inline]
    #[must_use]
    pub fn is_v6(&self) -> bool {
        self.src.is_ipv6()
    }
}

/// A UDP datagram whose lengths [`decode`] checked. Its checksum was not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpDatagram {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Offset of the IP header.
    pub l3: u16,
    /// Offset of the UDP header.
    pub l4: u16,
    /// Offset of the payload.
    pub payload: u16,
    /// Offset of the end by the UDP length.
    pub end: u16,
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// A whole TCP segment. Its checksum was not looked at.
    Tcp(Segment),
    /// An ICMP or ICMPv6 error that quotes a TCP segment. Its checksum is right.
    Icmp(IcmpError),
    /// Any other ICMP or ICMPv6 message.
    IcmpOther,
    /// A whole UDP datagram.
    Udp(UdpDatagram),
    /// A fragment of an IP packet.
    Fragment,
    /// A frame with a VLAN tag: to be passed on.
    Vlan,
    /// ARP.
    Arp,
    /// Any other protocol, and IPv6 packets whose routing header names hops still to come: they are
    /// not yet where they are going, and their checksum is about another address than the one in
    /// the header.
    Other,
}

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
    /// Sequence number of the quoted segment. Who believes an error only if this is in the flow's
    /// window is safe from blind attackers (RFC 5927 section 4.1).
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
