//! The form of the file: pcapng (draft-ietf-opsawg-pcapng), little-endian, one interface,
//! nanoseconds.
//!
//! Own code because it is short: of the crate `pcap-file` there are release candidates only since
//! 2.0; tests read with it what is written here.

use super::tap::{Direction, Packet};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// LINKTYPE_ETHERNET.
const ETHERNET: u16 = 1;

const END_OF_OPTIONS: u16 = 0;
const COMMENT: u16 = 1;
const SECTION_APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
/// Digits behind the point of a second.
const INTERFACE_RESOLUTION: u16 = 9;
const PACKET_FLAGS: u16 = 2;
const STATISTICS_START: u16 = 2;
const STATISTICS_END: u16 = 3;
const STATISTICS_RECEIVED: u16 = 4;
const STATISTICS_DROPPED: u16 = 5;
const STATISTICS_DELIVERED: u16 = 8;

/// What is said at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Beginning and end, in nanoseconds since 1970.
    pub start_ns: u64,
    /// The end.
    pub end_ns: u64,
    /// Frames that were meant.
    pub received: u64,
    /// Those that are not in the file.
    pub dropped: u64,
    /// Those that are.
    pub delivered: u64,
    /// Why it ended, and what was lost for which reason.
    pub comment: String,
}

/// The blocks in front of all packets.
pub fn head(out: &mut Vec<u8>, interface: &str, snaplen: usize, comment: &str) {
    block(out, SECTION_HEADER, |out| {
        out.extend(BYTE_ORDER_MAGIC.to_le_bytes());
        // Version 1.0; the section's length is not known.
        out.extend([1, 0, 0, 0]);
        out.extend((-1_i64).to_le_bytes());
        option(out, COMMENT, comment.as_bytes());
        let application = concat!("lb-dataplane ", env!("CARGO_PKG_VERSION"));
        option(out, SECTION_APPLICATION, application.as_bytes());
        option(out, END_OF_OPTIONS, &[]);
    });
    block(out, INTERFACE_DESCRIPTION, |out| {
        out.extend(ETHERNET.to_le_bytes());
        out.extend([0, 0]);
        out.extend(number(snaplen).to_le_bytes());
        option(out, INTERFACE_NAME, interface.as_bytes());
        option(out, INTERFACE_RESOLUTION, &[9]);
        option(out, END_OF_OPTIONS, &[]);
    });
}

/// One packet.
pub fn packet(out: &mut Vec<u8>, packet: &Packet, comment: Option<&str>) {
    block(out, ENHANCED_PACKET, |out| {
        out.extend(0_u32.to_le_bytes());
        time(out, packet.at_ns);
        out.extend(number(packet.data.len()).to_le_bytes());
        out.extend(number(packet.bytes).to_le_bytes());
        out.extend(&packet.data);
        pad(out, packet.data.len());
        if let Some(comment) = comment {
            option(out, COMMENT, comment.as_bytes());
        }
        let direction: u32 = match packet.direction {
            Direction::In => 1,
            Direction::Out => 2,
        };
        option(out, PACKET_FLAGS, &direction.to_le_bytes());
        option(out, END_OF_OPTIONS, &[]);
    });
}

/// The block behind all packets.
pub fn end(out: &mut Vec<u8>, statistics: &Statistics) {
    block(out, INTERFACE_STATISTICS, |out| {
        out.extend(0_u32.to_le_bytes());
        time(out, statistics.end_ns);
        option(out, COMMENT, statistics.comment.as_bytes());
        for (code, at_ns) in
            [(STATISTICS_START, statistics.start_ns), (STATISTICS_END, statistics.end_ns)]
        {
            let mut value = Vec::with_capacity(8);
            time(&mut value, at_ns);
            option(out, code, &value);
        }
        for (code, count) in [
            (STATISTICS_RECEIVED, statistics.received),
            (STATISTICS_DROPPED, statistics.dropped),
            (STATISTICS_DELIVERED, statistics.delivered),
        ] {
            option(out, code, &count.to_le_bytes());
        }
        option(out, END_OF_OPTIONS, &[]);
    });
}

/// A block: its type, its length, its body, its length again.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(kind.to_le_bytes());
    out.extend([0; 4]);
    body(out);
    let length = number(out.len() - start + 4).to_le_bytes();
    out[start + 4..start + 8].copy_from_slice(&length);
    out.extend(length);
}

/// Longer ones than the format can have are cut: none here is.
fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
    let value = &value[..usize::from(length)];
    out.extend(code.to_le_bytes());
    out.extend(length.to_le_bytes());
    out.extend(value);
    pad(out, value.len());
}

fn pad(out: &mut Vec<u8>, length: usize) {
    out.resize(out.len() + length.next_multiple_of(4) - length, 0);
}

fn time(out: &mut Vec<u8>, at_ns: u64) {
    out.extend(((at_ns >> 32) as u32).to_le_bytes());
    out.extend((at_ns as u32).to_le_bytes());
}

/// No frame and no block is so long that this cuts.
fn number(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
