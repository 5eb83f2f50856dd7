//! Small values of frames: hardware addresses and TCP flags. Owns no parsing beyond the two
//! addresses at the start of a frame.

use crate::bytes::array;
use core::{fmt, ops::BitOr};

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Stands for the host's own stack, as for its loopback interface. No neighbour has it.
    pub const HOST: Self = Self([0; 6]);
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The Ethernet source of a frame; all zero if the frame is shorter than that.
#[inline]
#[must_use]
pub fn ether_src(frame: &[u8]) -> Mac {
    array(frame, 6).copied().map(Mac).unwrap_or_default()
}

/// The Ethernet destination of a frame; all zero if the frame is shorter than that.
#[inline]
#[must_use]
pub fn ether_dst(frame: &[u8]) -> Mac {
    array(frame, 0).copied().map(Mac).unwrap_or_default()
}

/// The flags of a TCP header (RFC 9293 section 3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronize sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset the connection.
    pub const RST: Self = Self(0x04);
    /// Push.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgement field is significant.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer is significant.
    pub const URG: Self = Self(0x20);
    /// ECN echo (RFC 3168).
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Self = Self(0x80);

    /// Whether all of `flags` are set.
    #[inline]
    #[must_use]
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Whether at least one of `flags` is set.
    #[inline]
    #[must_use]
    pub const fn any(self, flags: Self) -> bool {
        self.0 & flags.0 != 0
    }

    /// These flags and `flags`.
    #[inline]
    #[must_use]
    pub const fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }

    /// These flags but `flags`.
    #[inline]
    #[must_use]
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }
}

impl BitOr for Flags {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        self.with(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_all_and_any() {
        let both = Flags::SYN | Flags::ACK;
        assert!(both.has(Flags::SYN) && both.has(both) && !both.has(both | Flags::FIN));
        assert!(both.any(Flags::SYN | Flags::FIN) && !both.any(Flags::RST | Flags::FIN));
        assert_eq!(both.without(Flags::ACK), Flags::SYN);
        assert!(Flags::default().has(Flags::default()) && !Flags(0xff).any(Flags::default()));
    }

    #[test]
    fn short_frames_have_no_addresses() {
        assert_eq!(ether_src(&[1; 11]), Mac::default());
        assert_eq!(ether_dst(&[1; 5]), Mac::default());
        let frame: Vec<u8> = (0..14).collect();
        assert_eq!(ether_dst(&frame).to_string(), "00:01:02:03:04:05");
        assert_eq!(ether_src(&frame).to_string(), "06:07:08:09:0a:0b");
    }
}
