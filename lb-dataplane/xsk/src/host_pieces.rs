//! An IPv4 packet in pieces (RFC 791 section 2.3): a raw socket that is given its packets' headers
//! cuts none of them, be it allowed or not. Pure.

const IPV4: usize = 20;
const MORE: u16 = 0x2000;
/// Bytes in which offsets count.
const UNIT: usize = 8;

/// Headers and contents of pieces that fit `mtu`, in order. `None` if the packet must not be cut,
/// is a piece itself, or has options. The header's checksum is for whoever sends them.
pub(crate) fn pieces(ip: &[u8], mtu: u32) -> Option<impl Iterator<Item = ([u8; IPV4], &[u8])>> {
    let mut header = *ip.first_chunk::<IPV4>()?;
    if header[0] != 0x45 || header[6..8] != [0, 0] {
        return None;
    }
    let end = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let content = ip.get(IPV4..end)?;
    let room = (mtu as usize).checked_sub(IPV4)? / UNIT * UNIT;
    if room == 0 {
        return None;
    }
    // Pieces without a number the kernel would give one each.
    if header[4..6] == [0, 0] {
        header[5] = 1;
    }
    let count = content.len().div_ceil(room);
    let pieces = content.chunks(room).enumerate();
    Some(pieces.map(move |(at, piece)| {
        let mut header = header;
        let more = if at + 1 < count { MORE } else { 0 };
        // As long as the packet, both fit.
        let (len, offset) = ((IPV4 + piece.len()) as u16, (at * room / UNIT) as u16);
        header[2..4].copy_from_slice(&len.to_be_bytes());
        header[6..8].copy_from_slice(&(offset | more).to_be_bytes());
        (header, piece)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(content: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 8, 0, 0, 0, 7, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let len = (IPV4 + content.len()) as u16;
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        packet.extend_from_slice(content);
        packet
    }

    #[test]
    fn pieces_fit_and_come_to_the_whole() {
        let content: Vec<u8> = (0..1_480_u32).map(|i| (i % 251) as u8).collect();
        // Ethernet pads short frames.
        let mut whole = packet(&content);
        whole.extend([0xee; 3]);
        for mtu in [28, 68, 100, 575, 576, 1_200, 1_499, 1_500, 9_000] {
            let all: Vec<_> = pieces(&whole, mtu).expect("it may be cut").collect();
            let mut put_together = Vec::new();
            for (at, (header, piece)) in all.iter().enumerate() {
                assert!(IPV4 + piece.len() <= mtu as usize, "{mtu}");
                let len = u16::from_be_bytes([header[2], header[3]]);
                assert_eq!(usize::from(len), IPV4 + piece.len());
                let field = u16::from_be_bytes([header[6], header[7]]);
                assert_eq!(usize::from(field & 0x1fff) * UNIT, put_together.len());
                assert_eq!(field & !0x1fff == MORE, at + 1 < all.len(), "{mtu}");
                assert_eq!(header[4..6], [0, 7], "one number");
                assert_eq!([&header[..2], &header[8..]], [&whole[..2], &whole[8..IPV4]]);
                put_together.extend_from_slice(piece);
            }
            assert_eq!(put_together, content, "{mtu}");
        }
    }

    #[test]
    fn what_has_no_number_gets_one_for_all_pieces() {
        let mut whole = packet(&[7; 100]);
        whole[5] = 0;
        let mut all = pieces(&whole, 68).expect("it may be cut");
        assert!(all.all(|(header, _)| header[4..6] == [0, 1]));
    }

    #[test]
    fn what_must_not_be_cut_is_not() {
        let whole = packet(&[7; 100]);
        let changed = |at: usize, to: u8| {
            let mut packet = whole.clone();
            packet[at] = to;
            packet
        };
        for (what, packet) in [
            ("it says so", changed(6, 0x40)),
            ("a first piece", changed(6, 0x20)),
            ("a last piece", changed(7, 1)),
            ("options", changed(0, 0x46)),
            ("IPv6", changed(0, 0x60)),
            ("longer than what is there", changed(3, 200)),
            ("shorter than its header", changed(3, 19)),
        ] {
            assert!(pieces(&packet, 68).is_none(), "{what}");
        }
        assert!(pieces(&whole[..19], 68).is_none());
        assert!(pieces(&whole, 27).is_none(), "no room for a unit");
    }
}
