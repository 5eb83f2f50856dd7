//! The reasons why a frame is refused. Owns their names in metrics and their words for people.

macro_rules! reasons {
    ($($name:ident $label:literal $text:literal;)*) => {
        /// Why [`decode`](crate::decode) refuses a frame. Such a frame is counted and dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
        #[repr(u8)]
        pub enum Malformed {
            $(#[doc = $text] #[error($text)] $name,)*
        }

        impl Malformed {
            /// Every reason, in the order of their numbers (`ALL[reason as usize] == reason`).
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The value of the `reason` label in metrics.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$name => $label,)* }
            }
        }
    };
}

reasons! {
    EthernetTruncated "ethernet_truncated" "the frame is shorter than an Ethernet header";
    FrameTooLarge "frame_too_large" "the packet ends beyond byte 65,535 of the frame";
    Ipv4Truncated "ipv4_truncated" "the frame ends inside the IPv4 header";
    Ipv4Version "ipv4_version" "the EtherType says IPv4, the version field does not";
    Ipv4HeaderLength "ipv4_header_length" "the IPv4 header length is below 20 bytes";
    Ipv4LengthBelowHeader "ipv4_length_below_header" "the IPv4 total length is below the header length";
    Ipv4LengthBeyondFrame "ipv4_length_beyond_frame" "the IPv4 total length exceeds the frame";
    Ipv4Checksum "ipv4_checksum" "the IPv4 header checksum is wrong";
    Ipv6Truncated "ipv6_truncated" "the frame ends inside the IPv6 header";
    Ipv6Version "ipv6_version" "the EtherType says IPv6, the version field does not";
    Ipv6Mapped "ipv6_mapped" "an IPv6 address stands for one of IPv4, and is none on the wire (RFC 6890)";
    Ipv6LengthBeyondFrame "ipv6_length_beyond_frame" "the IPv6 payload length exceeds the frame";
    Ipv6ExtensionTruncated "ipv6_extension_truncated" "the packet ends inside an IPv6 extension header";
    Ipv6TooManyExtensions "ipv6_too_many_extensions" "the packet has more IPv6 extension headers than are followed";
    TcpTruncated "tcp_truncated" "the packet ends inside the TCP header";
    TcpDataOffset "tcp_data_offset" "the TCP data offset is below 20 bytes or beyond the packet";
    UdpTruncated "udp_truncated" "the packet ends inside the UDP header";
    UdpLength "udp_length" "the UDP length is below 8 bytes or beyond the packet";
    IcmpTruncated "icmp_truncated" "the packet ends inside the ICMP header";
    IcmpQuote "icmp_quote" "an ICMP error does not quote an IP header of its family and 8 bytes more";
    IcmpChecksum "icmp_checksum" "the checksum of an ICMP error is wrong";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn labels_are_unique_and_numbers_index_all() {
        let labels: HashSet<_> = Malformed::ALL.iter().map(|m| m.label()).collect();
        assert_eq!(labels.len(), Malformed::ALL.len());
        for (i, reason) in Malformed::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, i);
            assert!(
                reason
                    .label()
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
            );
        }
    }
}
