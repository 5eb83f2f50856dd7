//! What stands in front of TCP in a plain segment: Ethernet and a header of IPv4 or IPv6.
//!
//! Owns where that header has what, and what is plain of it. TCP is the same behind both.

use crate::{
    bytes::{array, array_mut, be16, be32},
    checksum::{add, fold, sum_header, update, wire16},
    decode::{ETHERNET_BYTES, ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV4_BYTES, IPV6_BYTES, TCP},
};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A family of addresses: [`V4`] or [`V6`].
pub trait Family: Copy {
    /// An address as a number.
    type Address: Copy + Default + Eq;
    /// Which of the two it is.
    const IS_V6: bool;
    /// Offset of the TCP header in a plain segment's frame.
    const L4: usize;

    /// An address of this family.
    fn bits(address: IpAddr) -> Option<Self::Address>;

    /// The address with this number.
    fn address(bits: Self::Address) -> IpAddr;

    /// Source and destination; the frame is long enough.
    fn ends(frame: &[u8]) -> (Self::Address, Self::Address);

    /// Where the packet ends in the frame, if the header is plain.
    #[doc(hidden)]
    fn end(frame: &[u8]) -> Option<u16>;

    /// The sum of the pseudo-header (RFC 9293 section 3.1), if the header's own sum is right.
    #[doc(hidden)]
    fn pseudo(frame: &[u8]) -> Option<u64>;

    /// Writes both addresses and takes one from how far the packet may go on; says what the
    /// addresses add to the sum of a checksum.
    #[doc(hidden)]
    fn readdress(frame: &mut [u8], ends: (Self::Address, Self::Address)) -> u64;
}

/// IPv4 (RFC 791), without options.
#[derive(Clone, Copy, Debug)]
pub struct V4;

/// IPv6 (RFC 8200), without extension headers.
#[derive(Clone, Copy, Debug)]
pub struct V6;

const L4_V4: usize = ETHERNET_BYTES + IPV4_BYTES;
const L4_V6: usize = ETHERNET_BYTES + IPV6_BYTES;

/// Whether the word at `AT` is this one where `mask` has ones. It is compared as it lies there:
/// turned around first, the compiler would take it to pieces.
#[inline(always)]
pub(super) fn is<const AT: usize, const N: usize>(head: &[u8; N], word: u32, mask: u32) -> bool {
    array(head, AT).is_some_and(|of| u32::from_ne_bytes(*of) & mask.to_be() == word.to_be())
}

/// Writes whole words of a header, and says what that adds to the sum of a checksum.
#[inline(always)]
pub(super) fn renew<const N: usize>(field: &mut [u8; N], new: [u8; N]) -> u64 {
    let words = |bytes: &[u8; N], inverted: u64| {
        let words = bytes.as_chunks::<8>().0.iter();
        words.fold(0, |sum, word| add(sum, u64::from_ne_bytes(*word) ^ inverted))
    };
    let moved = add(words(field, u64::MAX), words(&new, 0));
    *field = new;
    moved
}

impl Family for V4 {
    type Address = u32;
    const IS_V6: bool = false;
    const L4: usize = L4_V4;

    #[inline(always)]
    fn bits(address: IpAddr) -> Option<u32> {
        match address {
            IpAddr::V4(address) => Some(address.to_bits()),
            IpAddr::V6(_) => None,
        }
    }

    #[inline(always)]
    fn address(bits: u32) -> IpAddr {
        Ipv4Addr::from_bits(bits).into()
    }

    #[inline(always)]
    fn ends(frame: &[u8]) -> (u32, u32) {
        let head = frame.first_chunk::<L4_V4>();
        head.map(|head| (be32::<L4_V4, { L4_V4 - 8 }>(head), be32::<L4_V4, { L4_V4 - 4 }>(head)))
            .unwrap_or_default()
    }

    #[inline(always)]
    fn end(frame: &[u8]) -> Option<u16> {
        let head = frame.first_chunk::<L4_V4>()?;
        let plain = is::<12, L4_V4>(head, u32::from(ETHERTYPE_IPV4) << 16 | 0x45 << 8, 0xffff_ff00)
            // No fragment; whatever its TTL.
            && is::<20, L4_V4>(head, u32::from(TCP), 0x3fff_00ff)
            && head[ETHERNET_BYTES + 8] > 1;
        // Offsets have 16 bits.
        let end = be16::<L4_V4, 16>(head).checked_add(ETHERNET_BYTES as u16)?;
        plain.then_some(end)
    }

    #[inline(always)]
    fn pseudo(frame: &[u8]) -> Option<u64> {
        let ip = array::<IPV4_BYTES>(frame, ETHERNET_BYTES)?;
        let addresses = array::<8>(frame, L4_V4 - 8)?;
        // The segment's length is what the IP header says without that header's own.
        let length = u64::from(u16::from_ne_bytes([ip[2], ip[3]]));
        let others = wire16(u16::from(TCP)) + wire16(!(IPV4_BYTES as u16));
        let pseudo = add(u64::from_ne_bytes(*addresses), length + others);
        (fold(sum_header(ip)) == 0xffff).then_some(pseudo)
    }

    #[inline(always)]
    fn readdress(frame: &mut [u8], (src, dst): (u32, u32)) -> u64 {
        let Some(ip) = array_mut::<IPV4_BYTES>(frame, ETHERNET_BYTES) else {
            return 0;
        };
        let Some(addresses) = array_mut::<8>(ip, 12) else {
            return 0;
        };
        let new = (u64::from(src) << 32 | u64::from(dst)).to_be_bytes();
        let moved = renew(addresses, new);
        // TTL is the high byte of its word: taking one from it adds ~0x0100 to the sum.
        ip[8] -= 1;
        let sum = u16::from_ne_bytes([ip[10], ip[11]]);
        let sum = update(sum, add(moved, u64::from(!0x0100u16.to_be())));
        ip[10..12].copy_from_slice(&sum.to_ne_bytes());
        moved
    }
}

impl Family for V6 {
    type Address = u128;
    const IS_V6: bool = true;
    const L4: usize = L4_V6;

    #[inline(always)]
    fn bits(address: IpAddr) -> Option<u128> {
        match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(address) => Some(address.to_bits()),
        }
    }

    #[inline(always)]
    fn address(bits: u128) -> IpAddr {
        Ipv6Addr::from_bits(bits).into()
    }

    #[inline(always)]
    fn ends(frame: &[u8]) -> (u128, u128) {
        let of = |at| array(frame, at).map_or(0, |bytes| u128::from_be_bytes(*bytes));
        (of(L4_V6 - 32), of(L4_V6 - 16))
    }

    #[inline(always)]
    fn end(frame: &[u8]) -> Option<u16> {
        let head = frame.first_chunk::<L4_V6>()?;
        // No address that stands for one of IPv4 (`Malformed::Ipv6Mapped`).
        let is_own = |at| {
            array::<16>(head, at)
                .is_some_and(|address| u128::from_be_bytes(*address) >> 32 != 0xffff)
        };
        // Whatever its traffic class and flow label.
        let plain = is::<12, L4_V6>(head, u32::from(ETHERTYPE_IPV6) << 16 | 6 << 12, 0xffff_f000)
            && head[ETHERNET_BYTES + 6] == TCP
            && head[ETHERNET_BYTES + 7] > 1
            && is_own(L4_V6 - 32)
            && is_own(L4_V6 - 16);
        // Offsets have 16 bits.
        let end = be16::<L4_V6, 18>(head).checked_add(L4_V6 as u16)?;
        plain.then_some(end)
    }

    #[inline(always)]
    fn pseudo(frame: &[u8]) -> Option<u64> {
        let ip = array::<IPV6_BYTES>(frame, ETHERNET_BYTES)?;
        let addresses = array::<32>(frame, L4_V6 - 32)?;
        let length = u64::from(u16::from_ne_bytes([ip[4], ip[5]]));
        Some(add(sum_header(addresses), length + wire16(u16::from(TCP))))
    }

    #[inline(always)]
    fn readdress(frame: &mut [u8], (src, dst): (u128, u128)) -> u64 {
        let Some(ip) = array_mut::<IPV6_BYTES>(frame, ETHERNET_BYTES) else {
            return 0;
        };
        ip[7] -= 1;
        let mut moved = 0;
        for (at, new) in [(8, src), (24, dst)] {
            if let Some(address) = array_mut::<16>(ip, at) {
                moved = add(moved, renew(address, new.to_be_bytes()));
            }
        }
        moved
    }
}
