//! Internet checksums (RFC 1071, RFC 1624). Owns sums, their folding and the state of a TCP
//! checksum; never changes anything but a checksum field.
//!
//! Sums are kept in the byte order of the machine: the one's complement sum does not care (RFC 1071
//! section 2 (B)) as long as what goes in and what comes out are both read and written in that
//! order.
//!
//! # Decisions
//!
//! - **A frame whose checksum field equals the pseudo-header's sum is completed**, as a veth peer
//!   leaves it so (CHECKSUM_PARTIAL). For such a frame nothing protects the payload on the way
//!   through the same machine's memory, with Baton or without.

use crate::{
    Segment,
    bytes::{array, array_mut},
};
use multiversion::multiversion;

/// What the checksum field of a TCP segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumState {
    /// The full checksum, and it is right.
    Full,
    /// Only the sum of the pseudo-header: the sender counted on its device (`CHECKSUM_PARTIAL`),
    /// and a veth hands the frame over as it is.
    Partial,
    /// Neither: the segment is corrupt.
    Bad,
}

/// Offset of the checksum in a TCP header.
pub(crate) const TCP_CHECK: usize = 16;
const PROTOCOL_TCP: u16 = 6;
/// Next header value of ICMPv6 in the pseudo-header.
pub(crate) const PROTOCOL_ICMPV6: u16 = 58;

/// Segments from this length on are summed by the CPU's widest lanes: finding out at run time which
/// those are costs a call.
const WIDE_FROM: usize = 256;
/// What [`sum_wide`] takes at a time: four lanes of AVX2.
const WIDE_BLOCK: usize = 128;

/// The sum of `bytes` as 16-bit words, an odd last byte padded with 0. Below 2^48, so that many can
/// be added.
#[inline]
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    if bytes.len() >= WIDE_FROM { sum_wide(bytes) } else { sum_short(bytes) }
}

/// Words of 64 bits, as the compiler vectorises it: their sum without its carries, and that of
/// their upper halves, which tells what the lower halves come to. With AVX2 these are four
/// instructions for 32 bytes, and 1,448 bytes take 18 ns (on a Xeon; a load that widens 32-bit
/// words 30, AVX-512 15 to 18, [`sum_short`] 54).
#[multiversion(targets("x86_64+avx2"))]
fn sum_wide(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<WIDE_BLOCK>();
    let (words, _) = blocks.as_flattened().as_chunks::<8>();
    let (mut all, mut upper) = (0u64, 0u64);
    // No closure: it would be a function of its own with the wide lanes, and called.
    for word in words {
        let word = u64::from_ne_bytes(*word);
        (all, upper) = (all.wrapping_add(word), upper + (word >> 32));
    }
    let lower = all.wrapping_sub(upper << 32);
    lower + upper + sum_short(rest)
}

/// Words of 64 bits in one chain of carries: an instruction for 8 bytes.
#[inline]
fn sum_short(bytes: &[u8]) -> u64 {
    let mut total = 0;
    let (blocks, mut rest) = bytes.as_chunks::<32>();
    for block in blocks {
        total = chain(total, block);
    }
    take::<16>(&mut total, &mut rest);
    take::<8>(&mut total, &mut rest);
    take::<4>(&mut total, &mut rest);
    let last = match *rest {
        [a] => [a, 0, 0, 0],
        [a, b] => [a, b, 0, 0],
        [a, b, c] => [a, b, c, 0],
        _ => [0; 4],
    };
    // 2^32 is 1 in this arithmetic.
    (total >> 32) + (total & 0xffff_ffff) + u64::from(u32::from_ne_bytes(last))
}

/// Adds the first `N` bytes, if they are all there, and goes behind them.
#[inline]
fn take<const N: usize>(total: &mut u64, bytes: &mut &[u8]) {
    if let Some((first, rest)) = bytes.split_first_chunk::<N>() {
        *total = chain(*total, first);
        *bytes = rest;
    }
}

/// Adds whole 32-bit words, by words of 64 bits in one chain of carries.
#[inline]
fn chain<const N: usize>(total: u64, bytes: &[u8; N]) -> u64 {
    const { assert!(N.is_multiple_of(4)) };
    let (words, rest) = bytes.as_chunks::<8>();
    let (mut sum, mut carry) = match *rest {
        [a, b, c, d] => total.overflowing_add(u64::from(u32::from_ne_bytes([a, b, c, d]))),
        _ => (total, false),
    };
    for word in words {
        (sum, carry) = sum.carrying_add(u64::from_ne_bytes(*word), carry);
    }
    // What carried is not all ones.
    sum + u64::from(carry)
}

/// [`sum`] and [`fold`], for the bench alone.
#[doc(hidden)]
#[must_use]
pub fn sum_for_bench(bytes: &[u8]) -> u16 {
    fold(sum(bytes))
}

/// The 16-bit one's complement sum that a wide sum stands for. 0 only for a sum of zeros.
///
/// A number added to itself with its halves changed over has their sum in its upper half, the carry
/// of the lower half included: what one's complement addition brings around.
#[inline]
pub(crate) const fn fold(sum: u64) -> u16 {
    let sum = (sum.wrapping_add(sum.rotate_left(32)) >> 32) as u32;
    (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
}

/// Adds two sums, and brings the carry around.
#[inline]
pub(crate) const fn add(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    sum + carry as u64
}

/// The sum of a header of whole 32-bit words. It may be any number of 64 bits.
#[inline]
pub(crate) fn sum_header<const N: usize>(header: &[u8; N]) -> u64 {
    chain(0, header)
}

/// The checksum field for everything else summing up to `sum`.
#[inline]
pub(crate) const fn finish(sum: u64) -> u16 {
    !fold(sum)
}

/// The checksum `old` after a change: RFC 1624 equation 3, `HC' = ~(~HC + ~m + m')`, where `delta`
/// is the sum of all `~m` and `m'`.
///
/// Of the two zeros of one's complement arithmetic a full computation gives 0x0000 here, never
/// 0xffff, because headers of IP, TCP and ICMP have a byte that is not 0. An incremental update
/// gives 0xffff only if it starts from that other zero; it is turned into the usual one, so both
/// ways agree on every input.
#[inline]
pub(crate) const fn update(old: u16, delta: u64) -> u16 {
    match finish(add(!old as u64, delta)) {
        0xffff => 0,
        new => new,
    }
}

/// The sum of the complement of 32-bit words.
#[inline]
pub(crate) fn sum_inverted<const N: usize>(bytes: &[u8; N]) -> u64 {
    const { assert!(N.is_multiple_of(4)) };
    bytes.as_chunks::<4>().0.iter().map(|word| u64::from(!u32::from_ne_bytes(*word))).sum()
}

/// The sum of an array of whole 32-bit words.
#[inline]
pub(crate) fn sum_words<const N: usize>(bytes: &[u8; N]) -> u64 {
    const { assert!(N.is_multiple_of(4)) };
    bytes.as_chunks::<4>().0.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum()
}

/// A 16-bit number as its bytes on the wire count in a sum.
#[inline]
pub(crate) const fn wire16(value: u16) -> u64 {
    value.to_be() as u64
}

/// The sum of the pseudo-header for `length` bytes, with the addresses of the IP header at `l3`.
#[inline]
pub(crate) fn pseudo_sum(
    frame: &[u8],
    l3: usize,
    v6: bool,
    protocol: u16,
    length: usize,
) -> Option<u64> {
    let addresses = if v6 {
        sum_words(array::<32>(frame, l3 + 8)?)
    } else {
        sum_words(array::<8>(frame, l3 + 12)?)
    };
    // `length` comes from u16 offsets, so it fits.
    Some(addresses + wire16(protocol) + wire16(length as u16))
}

struct Parts<'a> {
    pseudo: u64,
    tcp: &'a [u8],
    field: u16,
}

#[inline]
fn parts<'a>(frame: &'a [u8], seg: &Segment) -> Option<Parts<'a>> {
    let tcp = frame.get(usize::from(seg.l4)..usize::from(seg.end))?;
    let field = u16::from_ne_bytes(*array(tcp, TCP_CHECK)?);
    let pseudo = pseudo_sum(frame, usize::from(seg.l3), seg.is_v6(), PROTOCOL_TCP, tcp.len())?;
    Some(Parts { pseudo, tcp, field })
}

/// Judges the sum over the segment, its own field included, and the field by itself.
#[inline]
fn judge(pseudo: u64, field: u16, tcp_sum: u64) -> ChecksumState {
    if fold(pseudo + tcp_sum) == 0xffff {
        ChecksumState::Full
    } else if field == fold(pseudo) {
        ChecksumState::Partial
    } else {
        ChecksumState::Bad
    }
}

/// What the checksum field of `seg` holds. A full sum that is right counts as such even if it
/// happens to equal the sum of the pseudo-header.
#[inline]
#[must_use]
pub fn tcp_checksum_state(frame: &[u8], seg: &Segment) -> ChecksumState {
    match parts(frame, seg) {
        Some(p) => judge(p.pseudo, p.field, sum(p.tcp)),
        None => ChecksumState::Bad,
    }
}

/// Computes the full checksum of `seg` and writes it. Blesses whatever is in the frame: only for
/// segments that [`tcp_checksum_state`] called [`ChecksumState::Partial`], or that the caller
/// wrote.
#[inline]
pub fn complete_tcp_checksum(frame: &mut [u8], seg: &Segment) {
    let Some(p) = parts(frame, seg) else { return };
    // Taking the field out of the sum by adding its complement would leave 0xffff where 0 is meant;
    // as a sum of zeros is impossible here, both fold alike.
    let checksum = finish(p.pseudo + sum(p.tcp) + u64::from(!p.field));
    store(frame, seg, checksum);
}

/// [`tcp_checksum_state`], and in the same pass the completion of a partial checksum: after
/// anything but [`ChecksumState::Bad`] the field holds the full checksum. The answer says what was
/// found.
#[inline]
#[must_use]
pub fn settle_tcp_checksum(frame: &mut [u8], seg: &Segment) -> ChecksumState {
    let Some(p) = parts(frame, seg) else {
        return ChecksumState::Bad;
    };
    let tcp_sum = sum(p.tcp);
    let state = judge(p.pseudo, p.field, tcp_sum);
    if state == ChecksumState::Partial {
        // The field is the pseudo-header's sum, so the sum over the segment already contains it.
        store(frame, seg, finish(tcp_sum));
    }
    state
}

#[inline]
fn store(frame: &mut [u8], seg: &Segment, checksum: u16) {
    if let Some(field) = array_mut(frame, usize::from(seg.l4) + TCP_CHECK) {
        *field = checksum.to_ne_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071 section 4.1, as plainly as it can be written.
    fn reference(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    proptest! {
        #[test]
        fn sum_agrees_with_the_reference(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            prop_assert_eq!(u16::from_be(fold(sum(&bytes))), reference(&bytes));
            // Each way by itself, whatever the length.
            prop_assert_eq!(fold(sum_wide(&bytes)), fold(sum_short(&bytes)));
        }

        #[test]
        fn sum_carries_where_words_are_large(len in 0usize..3000, byte in 0xfeu8..=0xff) {
            let bytes = vec![byte; len];
            prop_assert_eq!(u16::from_be(fold(sum(&bytes))), reference(&bytes));
        }
    }

    #[test]
    fn the_example_of_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(u16::from_be(fold(sum(&bytes))), 0xddf2);
    }

    #[test]
    fn the_example_of_rfc_1624() {
        // Section 4: HC = 0xdd2f, m = 0x5555, m' = 0x3285 gives 0x0000; equation 4 would give
        // 0xffff.
        let delta = u64::from(!0x5555u16) + u64::from(0x3285u16);
        assert_eq!(update(0xdd2f, delta), 0x0000);
    }

    #[test]
    fn folding_ends_in_sixteen_bits() {
        for sum in [0, 1, 0xffff, 0x1_0000, 0xffff_ffff, 0x1_ffff_ffff, u64::MAX] {
            let expected = if sum == 0 { 0 } else { (sum - 1) % 0xffff + 1 };
            assert_eq!(u64::from(fold(sum)), expected, "{sum:#x}");
        }
    }
}
