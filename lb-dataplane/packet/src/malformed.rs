//! The reasons why a frame is refused. Owns their names in metrics and their words for people.

macro_rules! reasons {
    ($($name:ident $text:literal;)*) => {
        /// Why [`decode`](crate::decode) refuses a frame. Such a frame is counted and dropped.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error, strum::VariantArray, strum::IntoStaticStr,
        )]
        #[strum(serialize_all = "snake_case")]
        #[repr(u8)]
        pub enum Malformed {
            $(#[doc = $text] #[error($text)] $name,)*
        }
    };
}

reasons! {
    EthernetTruncated "the frame is shorter than an Ethernet header";
    FrameTooLarge "the packet ends beyond byte 65,535 of the frame";
    Ipv4Truncated "the frame ends inside the IPv4 header";
    Ipv4Version "the EtherType says IPv4, the version field does not";
    Ipv4HeaderLength "the IPv4 header length is below 20 bytes";
    Ipv4LengthBelowHeader "the IPv4 total length is below the header length";
    Ipv4LengthBeyondFrame "the IPv4 total length exceeds the frame";
    Ipv4Checksum "the IPv4 header checksum is wrong";
    Ipv6Truncated "the frame ends inside the IPv6 header";
    Ipv6Version "the EtherType says IPv6, the version field does not";
    Ipv6Mapped "an IPv6 address stands for one of IPv4, and is none on the wire (RFC 6890)";
    Ipv6LengthBeyondFrame "the IPv6 payload length exceeds the frame";
    Ipv6ExtensionTruncated "the packet ends inside an IPv6 extension header";
    Ipv6TooManyExtensions "the packet has more IPv6 extension headers than are followed";
    TcpTruncated "the packet ends inside the TCP header";
    TcpDataOffset "the TCP data offset is below 20 bytes or beyond the packet";
    UdpTruncated "the packet ends inside the UDP header";
    UdpLength "the UDP length is below 8 bytes or beyond the packet";
    IcmpTruncated "the packet ends inside the ICMP header";
    IcmpQuote "an ICMP error does not quote an IP header of its family and 8 bytes more";
    IcmpChecksum "the checksum of an ICMP error is wrong";
}

impl Malformed {
    /// Every reason, in the order of their numbers (`ALL[reason as usize] == reason`).
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// The value of the `reason` label in metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        self.into()
    }
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
