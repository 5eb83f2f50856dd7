//! Segments of our own. Owns the layout of what is written and its full checksums; never decides
//! what to say.

use crate::{
    Flags, Mac, Segment, SeqNumber, SynOptions,
    bytes::array_mut,
    checksum::{TCP_CHECK, finish, pseudo_sum, sum},
    decode::{
        ETHERNET_BYTES, ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV4_BYTES, IPV6_BYTES, TCP, TCP_BYTES,
    },
    options::{MSS, NOP, SACK_PERMITTED, WINDOW_SCALE},
    rewrite::{pair_v4, pair_v6, ports, set_macs},
};
use core::net::IpAddr;

/// The default of Linux and RFC 1700's recommendation.
const TTL: u8 = 64;
const IPV4_DONT_FRAGMENT: u8 = 0x40;
/// NOP, NOP, kind 8, length 10, two timestamps.
const TIMESTAMP_OPTION_BYTES: usize = 12;

/// What a segment shall say.
#[derive(Clone, Copy, Debug)]
pub struct SegmentSpec<'a> {
    /// Ethernet source.
    pub src_mac: Mac,
    /// Ethernet destination.
    pub dst_mac: Mac,
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number.
    pub seq: SeqNumber,
    /// Acknowledgement number.
    pub ack: SeqNumber,
    /// Flags.
    pub flags: Flags,
    /// Window, unscaled.
    pub window: u16,
    /// TSval and TSecr, if the connection has timestamps.
    pub timestamps: Option<(u32, u32)>,
    /// Payload.
    pub payload: &'a [u8],
}

/// Writes the segment `spec` at the start of `buf` with full checksums (IPv4: DF set, id 0; TTL or
/// hop limit 64) and says how many bytes it takes. `None`, with `buf` possibly half written, if it
/// does not fit into `buf` or into an IP packet, or if the addresses are of different families.
#[must_use]
pub fn build_segment(buf: &mut [u8], spec: &SegmentSpec<'_>) -> Option<usize> {
    match spec.timestamps {
        None => build_with_options(buf, spec, &[]),
        Some(stamps) => build_with_options(buf, spec, &timestamp_option(stamps)),
    }
}

/// Writes a SYN or SYN-ACK that offers `offer`, as [`build_segment`] does; timestamps are those of
/// `offer`.
#[must_use]
pub fn build_syn(buf: &mut [u8], spec: &SegmentSpec<'_>, offer: &SynOptions) -> Option<usize> {
    let mut options = [0; 24];
    let mut len = 0;
    let mut add = |bytes: &[u8]| {
        if let Some(room) = options.get_mut(len..len + bytes.len()) {
            room.copy_from_slice(bytes);
            len += bytes.len();
        }
    };
    if let Some(mss) = offer.mss {
        let [a, b] = mss.to_be_bytes();
        add(&[MSS, 4, a, b]);
    }
    if offer.sack_permitted {
        add(&[NOP, NOP, SACK_PERMITTED, 2]);
    }
    if let Some(stamps) = offer.timestamps {
        add(&timestamp_option(stamps));
    }
    if let Some(scale) = offer.window_scale {
        add(&[NOP, WINDOW_SCALE, 3, scale]);
    }
    build_with_options(buf, spec, options.get(..len)?)
}

/// Puts `more` behind the payload of the segment at the start of `buf`, which ends with its packet,
/// and adds `flags` to its own. Says how long the frame is then; `None`, with nothing changed, if
/// that does not fit. The checksums are full ones afterwards.
#[must_use]
pub fn extend_segment(buf: &mut [u8], seg: &Segment, more: &[u8], flags: Flags) -> Option<usize> {
    let (l3, l4, end) = (usize::from(seg.l3), usize::from(seg.l4), usize::from(seg.end));
    let longer = end + more.len();
    let packet = u16::try_from(longer - l3).ok()?;
    buf.get_mut(end..longer)?.copy_from_slice(more);
    let frame = buf.get_mut(..longer)?;
    let v6 = seg.is_v6();
    if v6 {
        let after = packet.checked_sub(IPV6_BYTES as u16)?;
        *array_mut::<2>(frame, l3 + 4)? = after.to_be_bytes();
    } else {
        let header = frame.get_mut(l3..l4)?;
        header[2..4].copy_from_slice(&packet.to_be_bytes());
        header[10..12].fill(0);
        let checksum = finish(sum(header));
        header[10..12].copy_from_slice(&checksum.to_ne_bytes());
    }
    let tcp = array_mut::<TCP_BYTES>(frame, l4)?;
    tcp[13] |= flags.0;
    tcp[TCP_CHECK..TCP_CHECK + 2].fill(0);
    let tcp_len = longer - l4;
    let checksum =
        finish(pseudo_sum(frame, l3, v6, u16::from(TCP), tcp_len)? + sum(frame.get(l4..)?));
    *array_mut::<2>(frame, l4 + TCP_CHECK)? = checksum.to_ne_bytes();
    Some(longer)
}

/// Two NOPs and the timestamps option.
pub(crate) fn timestamp_option((value, echo): (u32, u32)) -> [u8; TIMESTAMP_OPTION_BYTES] {
    let ([a, b, c, d], [e, f, g, h]) = (value.to_be_bytes(), echo.to_be_bytes());
    [1, 1, 8, 10, a, b, c, d, e, f, g, h]
}

/// [`build_segment`] with any options; their length has to be a multiple of 4 and at most 40.
pub(crate) fn build_with_options(
    buf: &mut [u8],
    spec: &SegmentSpec<'_>,
    options: &[u8],
) -> Option<usize> {
    debug_assert!(options.len().is_multiple_of(4) && options.len() <= 40);
    let header = TCP_BYTES + options.len();
    let l3 = ETHERNET_BYTES;
    let tcp_len = header + spec.payload.len();
    let v6 = spec.src.is_ipv6();
    let l4 = l3 + if v6 { IPV6_BYTES } else { IPV4_BYTES };
    let end = l4 + tcp_len;
    // Views have 16-bit offsets, so what decode would refuse is not built either.
    if end > usize::from(u16::MAX) {
        return None;
    }
    let frame = buf.get_mut(..end)?;

    set_macs(frame, spec.src_mac, spec.dst_mac);
    let ethertype = if v6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 };
    *array_mut::<2>(frame, 12)? = ethertype.to_be_bytes();
    match (spec.src, spec.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let ip = array_mut::<IPV4_BYTES>(frame, l3)?;
            let [high, low] = ((IPV4_BYTES + tcp_len) as u16).to_be_bytes();
            ip[..12].copy_from_slice(&[
                0x45,
                0,
                high,
                low,
                0,
                0,
                IPV4_DONT_FRAGMENT,
                0,
                TTL,
                TCP,
                0,
                0,
            ]);
            ip[12..].copy_from_slice(&pair_v4(src.octets(), dst.octets()));
            let checksum = finish(sum(ip));
            ip[10..12].copy_from_slice(&checksum.to_ne_bytes());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let ip = array_mut::<IPV6_BYTES>(frame, l3)?;
            let [high, low] = (tcp_len as u16).to_be_bytes();
            ip[..8].copy_from_slice(&[0x60, 0, 0, 0, high, low, TCP, TTL]);
            ip[8..].copy_from_slice(&pair_v6(src.octets(), dst.octets()));
        }
        _ => return None,
    }

    let tcp = array_mut::<TCP_BYTES>(frame, l4)?;
    tcp[..4].copy_from_slice(&ports(spec.src_port, spec.dst_port));
    tcp[4..8].copy_from_slice(&spec.seq.0.to_be_bytes());
    tcp[8..12].copy_from_slice(&spec.ack.0.to_be_bytes());
    tcp[12] = (header as u8 / 4) << 4;
    tcp[13] = spec.flags.0;
    tcp[14..16].copy_from_slice(&spec.window.to_be_bytes());
    // Checksum (until below) and urgent pointer.
    tcp[16..20].fill(0);
    let (head, payload) = frame.get_mut(l4 + TCP_BYTES..)?.split_at_mut_checked(options.len())?;
    head.copy_from_slice(options);
    payload.copy_from_slice(spec.payload);

    let checksum =
        finish(pseudo_sum(frame, l3, v6, u16::from(TCP), tcp_len)? + sum(frame.get(l4..)?));
    *array_mut::<2>(frame, l4 + TCP_CHECK)? = checksum.to_ne_bytes();
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChecksumState, Decoded, decode, parse_syn_options, tcp_checksum_state};

    fn spec(v6: bool, payload: &[u8]) -> SegmentSpec<'_> {
        let (src, dst) = if v6 { ("fd00::1", "fd00::2") } else { ("10.0.0.1", "10.0.0.2") };
        SegmentSpec {
            src_mac: Mac([2; 6]),
            dst_mac: Mac([4; 6]),
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            src_port: 80,
            dst_port: 40_000,
            seq: SeqNumber(7),
            ack: SeqNumber(9),
            flags: Flags::ACK,
            window: 512,
            timestamps: Some((1, 2)),
            payload,
        }
    }

    fn segment(frame: &[u8]) -> Segment {
        match decode(frame) {
            Ok(Decoded::Tcp(segment)) => segment,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_longer_segment_is_the_one_that_had_been_built_so() {
        for v6 in [false, true] {
            for cut in 0..6 {
                let (mut frame, mut whole) = ([0; 256], [0; 256]);
                let len = build_segment(&mut frame, &spec(v6, &b"GET / "[..cut])).unwrap();
                let seg = segment(&frame[..len]);
                let len = extend_segment(&mut frame, &seg, &b"GET / "[cut..], Flags::PSH).unwrap();
                let pushed = SegmentSpec { flags: Flags::PSH | Flags::ACK, ..spec(v6, b"GET / ") };
                let same = build_segment(&mut whole, &pushed).unwrap();
                assert_eq!(frame[..len], whole[..same]);
                let seg = segment(&frame[..len]);
                assert_eq!(tcp_checksum_state(&frame, &seg), ChecksumState::Full);
                let full = frame;
                assert_eq!(extend_segment(&mut frame, &seg, &[0; 256], Flags::FIN), None);
                assert_eq!(frame, full);
            }
        }
    }

    #[test]
    fn a_syn_offers_what_it_was_told_to() {
        for bits in 0..16_u8 {
            let has = |bit: u8| bits >> bit & 1 == 1;
            let offer = SynOptions {
                mss: has(0).then_some(1_400),
                window_scale: has(1).then_some(9),
                sack_permitted: has(2),
                timestamps: has(3).then_some((5, 6)),
                ..SynOptions::default()
            };
            let mut frame = [0; 128];
            let len = build_syn(&mut frame, &spec(true, &[]), &offer).unwrap();
            let seg = segment(&frame[..len]);
            assert_eq!(parse_syn_options(seg.options(&frame)), offer);
            assert_eq!(tcp_checksum_state(&frame, &seg), ChecksumState::Full);
        }
    }
}
