//! Frames whose way leads to the other IP family: what they get there is noted where addresses are
//! written, and done when all else is, in the whole buffer, as headers differ in length.
//!
//! Owns that note. How frames look in the other family is `baton_packet`'s.

use crate::obs::counters::DropReason;
use baton_packet::{
    IcmpError, Mac, NewTuple, Rewrite, RewriteError, Segment, carry_icmp, carry_tcp,
};
use std::net::IpAddr;

/// What becomes of the frame in hand.
pub(crate) enum Across {
    Segment(Segment, Rewrite),
    /// An ICMP error: its own addresses, those of the segment that it quotes, Ethernet's.
    Error(IcmpError, (IpAddr, IpAddr), NewTuple, (Mac, Mac)),
}

impl Across {
    /// Does it to the frame at the start of `buffer`. The number of bytes then.
    #[cold]
    pub(crate) fn carry(self, buffer: &mut [u8]) -> Result<usize, DropReason> {
        let carried = match self {
            Self::Segment(segment, to) => carry_tcp(buffer, &segment, &to),
            Self::Error(error, outer, inner, macs) => {
                carry_icmp(buffer, &error, outer, inner, macs)
            }
        };
        carried.map_err(|error| match error {
            RewriteError::TtlExpired => DropReason::TtlExpired,
            _ => DropReason::NotOurs,
        })
    }
}
