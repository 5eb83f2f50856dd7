//! A part of a segment as a segment of its own.
//!
//! Owns what differs between the two: lengths, sequence number, flags of the end, checksums. Never
//! decides where to cut.

use crate::{
    Flags, Segment,
    bytes::array_mut,
    checksum::{TCP_CHECK, finish, pseudo_sum, sum},
    decode::{IPV4_BYTES, IPV6_BYTES, TCP, TCP_BYTES},
};

/// Writes the segment with the `len` bytes from `from` on of another's payload to the start of
/// `out`, with full checksums, and says how long it is. FIN and PSH are those of the last part
/// only; urgent data loses its mark, as its place is not known to be in this part. `None` if there
/// are no such bytes, or `out` has no room.
#[must_use]
pub fn part_of_segment(
    frame: &[u8],
    seg: &Segment,
    from: usize,
    len: usize,
    out: &mut [u8],
) -> Option<usize> {
    let (l3, l4, payload) = (usize::from(seg.l3), usize::from(seg.l4), usize::from(seg.payload));
    let start = payload.checked_add(from)?;
    let stop = start.checked_add(len)?;
    let bytes = frame.get(start..stop)?;
    if stop > usize::from(seg.end) {
        return None;
    }
    let end = payload + len;
    let out = out.get_mut(..end)?;
    out.get_mut(..payload)?.copy_from_slice(frame.get(..payload)?);
    out.get_mut(payload..)?.copy_from_slice(bytes);

    // All lengths are smaller than those of the whole, which fit.
    let ip_len = end - l3;
    if seg.is_v6() {
        let ip = array_mut::<IPV6_BYTES>(out, l3)?;
        ip[4..6].copy_from_slice(&((ip_len - IPV6_BYTES) as u16).to_be_bytes());
    } else {
        let ip = array_mut::<IPV4_BYTES>(out, l3)?;
        ip[2..4].copy_from_slice(&(ip_len as u16).to_be_bytes());
        // Parts that are fragmented on the way must not be put together with each other.
        let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(from as u16);
        ip[4..6].copy_from_slice(&id.to_be_bytes());
        ip[10..12].fill(0);
        let check = finish(sum(out.get(l3..l4)?));
        array_mut::<IPV4_BYTES>(out, l3)?[10..12].copy_from_slice(&check.to_ne_bytes());
    }

    let tcp = array_mut::<TCP_BYTES>(out, l4)?;
    let seq = seg.seq.add(from as u32);
    tcp[4..8].copy_from_slice(&seq.0.to_be_bytes());
    if stop < usize::from(seg.end) {
        tcp[13] &= !(Flags::FIN | Flags::PSH).0;
    }
    if seg.flags.has(Flags::URG) {
        tcp[13] &= !Flags::URG.0;
        tcp[18..].fill(0);
    }
    tcp[TCP_CHECK..TCP_CHECK + 2].fill(0);
    let pseudo = pseudo_sum(out, l3, seg.is_v6(), u16::from(TCP), end - l4)?;
    let check = finish(pseudo + sum(out.get(l4..)?));
    *array_mut::<2>(out, l4 + TCP_CHECK)? = check.to_ne_bytes();
    Some(end)
}
