//! Cuts a TCP frame that holds several segments into them (what TSO would do in hardware). Pure.
//!
//! A veth peer with TSO on hands over up to 64 KiB as one frame. The segments that come out have
//! the pseudo-header's sum in their checksum field, as every frame of such a peer has; the caller
//! completes it. A large frame whose checksum is a full one is verified before, so that a corrupt
//! frame is never made good.
//!
//! With BIG TCP (`ip link set ... gso_max_size`, `gso_ipv4_max_size`) a frame may be longer than IP
//! can say: its length is 0 then, and IPv6 has a hop-by-hop header in front of TCP that says it
//! (RFC 2675), which no segment may have.

const ETHERNET: usize = 14;
const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;
const PROTOCOL_TCP: u8 = 6;
const IPV6: usize = 40;
/// A hop-by-hop header with a jumbo payload option alone, behind the number of what follows.
const JUMBO: [u8; 3] = [0, 0xc2, 4];
const JUMBO_BYTES: usize = 8;
/// As many extension headers as the steering program follows.
const EXTENSION_HEADERS_MAX: usize = 4;

/// Why a large frame cannot be cut. It is dropped and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GsoError {
    #[error("not TCP over IPv4 or IPv6 with whole headers")]
    NotTcp,
    #[error("the segment size is 0 or a segment is larger than a buffer")]
    Size,
    #[error("the checksum is wrong")]
    Checksum,
}

/// Is the frame's checksum already known to be right, or still to be completed?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checksum {
    /// Only the pseudo-header's sum, or verified by the kernel.
    Trusted,
    /// A full one that nobody has looked at.
    Unverified,
    /// Nobody says which of these it is.
    Unknown,
}

/// The segments of one frame.
#[derive(Debug)]
pub(crate) struct Segments<'a> {
    frame: &'a [u8],
    v6: bool,
    /// Bytes behind the IPv6 header that no segment has.
    left_out: usize,
    tcp: usize,
    payload: usize,
    end: usize,
    segment_bytes: usize,
    next: usize,
    index: u16,
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]))
}

impl<'a> Segments<'a> {
    /// `segment_bytes` is the payload of each segment but the last; segments fit `buffer_bytes`.
    pub(crate) fn new(
        frame: &'a [u8],
        segment_bytes: usize,
        buffer_bytes: usize,
        checksum: Checksum,
    ) -> Result<Self, GsoError> {
        let (v6, left_out, tcp, end) = layers(frame).ok_or(GsoError::NotTcp)?;
        let data_offset = frame.get(tcp + 12).ok_or(GsoError::NotTcp)?;
        let header = usize::from(data_offset >> 4) * 4;
        let payload = tcp + header;
        if header < 20 || payload > end {
            return Err(GsoError::NotTcp);
        }
        if segment_bytes == 0 || payload + segment_bytes > buffer_bytes {
            return Err(GsoError::Size);
        }
        let (next, index) = (payload, 0);
        let this = Self { frame, v6, left_out, tcp, payload, end, segment_bytes, next, index };
        let pseudo = this.pseudo_header_sum(end - tcp);
        let is_full = || fold(pseudo + sum(&frame[tcp..end])) == 0xffff;
        let is_partial = || be16(frame, tcp + 16) == Some(fold(pseudo));
        let good = match checksum {
            Checksum::Trusted => true,
            Checksum::Unverified => is_full(),
            Checksum::Unknown => is_partial() || is_full(),
        };
        good.then_some(this).ok_or(GsoError::Checksum)
    }

    /// Writes the next segment to the start of `out` and returns its length.
    pub(crate) fn next_into(&mut self, out: &mut [u8]) -> Option<usize> {
        // A frame without payload is one segment.
        if self.next >= self.end && self.index > 0 {
            return None;
        }
        let start = self.next;
        let stop = (start + self.segment_bytes).min(self.end);
        let header = self.payload - self.left_out;
        let len = header + (stop - start);
        match self.left_out {
            0 => out[..header].copy_from_slice(&self.frame[..header]),
            left_out => {
                let at = ETHERNET + IPV6;
                out[..at].copy_from_slice(&self.frame[..at]);
                out[at..header].copy_from_slice(&self.frame[at + left_out..self.payload]);
                // What follows it follows the IPv6 header now.
                out[ETHERNET + 6] = self.frame[at];
            }
        }
        out[header..len].copy_from_slice(&self.frame[start..stop]);
        self.fix_ip(&mut out[..len]);
        self.fix_tcp(&mut out[..len], start, stop);
        self.next = stop;
        self.index = self.index.wrapping_add(1);
        Some(len)
    }

    fn fix_ip(&self, out: &mut [u8]) {
        // Both lengths fit: a segment is not larger than a buffer of at most 64 KiB, and starts
        // with Ethernet.
        if self.v6 {
            let len = (out.len() - ETHERNET - 40) as u16;
            out[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&len.to_be_bytes());
            return;
        }
        let len = (out.len() - ETHERNET) as u16;
        out[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&len.to_be_bytes());
        let id = be16(self.frame, ETHERNET + 4).unwrap_or(0).wrapping_add(self.index);
        out[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&id.to_be_bytes());
        out[ETHERNET + 10..ETHERNET + 12].fill(0);
        let header = usize::from(out[ETHERNET] & 15) * 4;
        let check = !fold(sum(&out[ETHERNET..ETHERNET + header]));
        out[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&check.to_be_bytes());
    }

    fn fix_tcp(&self, out: &mut [u8], start: usize, stop: usize) {
        let tcp = self.tcp - self.left_out;
        let sequence = u32::from_be_bytes([out[tcp + 4], out[tcp + 5], out[tcp + 6], out[tcp + 7]])
            .wrapping_add((start - self.payload) as u32);
        out[tcp + 4..tcp + 8].copy_from_slice(&sequence.to_be_bytes());
        // Congestion was signalled once, and the end is at the end.
        if self.index > 0 {
            out[tcp + 13] &= !TCP_CWR;
        }
        if stop < self.end {
            out[tcp + 13] &= !(TCP_FIN | TCP_PSH);
        }
        let check = fold(self.pseudo_header_sum(out.len() - tcp));
        out[tcp + 16..tcp + 18].copy_from_slice(&check.to_be_bytes());
    }

    /// Addresses, protocol and length; the addresses of all segments are the same.
    fn pseudo_header_sum(&self, tcp_bytes: usize) -> u64 {
        let addresses =
            if self.v6 { ETHERNET + 8..ETHERNET + 40 } else { ETHERNET + 12..ETHERNET + 20 };
        sum(&self.frame[addresses]) + u64::from(PROTOCOL_TCP) + tcp_bytes as u64
    }
}

/// Where a packet ends whose length is said to be `len` from `start` on.
fn end(frame: &[u8], start: usize, len: u16) -> usize {
    let is_big = len == 0 && frame.len() > start + usize::from(u16::MAX);
    if is_big { frame.len() } else { start + usize::from(len) }
}

/// Whether it is IPv6, what is left out of segments, where TCP starts and where the packet ends.
fn layers(frame: &[u8]) -> Option<(bool, usize, usize, usize)> {
    match be16(frame, 12)? {
        0x0800 => {
            let header = frame.get(ETHERNET..ETHERNET + 20)?;
            let tcp = ETHERNET + usize::from(header[0] & 15) * 4;
            let end = end(frame, ETHERNET, be16(header, 2)?);
            let fragment = be16(header, 6)? & 0x3fff;
            let good = header[0] >> 4 == 4
                && header[9] == PROTOCOL_TCP
                && fragment == 0
                && tcp >= ETHERNET + 20
                && end <= frame.len();
            good.then_some((false, 0, tcp, end))
        }
        0x86dd => {
            let header = frame.get(ETHERNET..ETHERNET + 40)?;
            let length = be16(header, 4)?;
            let end = end(frame, ETHERNET + IPV6, length);
            if header[0] >> 4 != 6 || end > frame.len() {
                return None;
            }
            let (mut next, mut at) = (header[6], ETHERNET + IPV6);
            let is_jumbo = length == 0 && next == 0 && frame.get(at + 1..at + 4)? == JUMBO;
            let left_out = if is_jumbo { JUMBO_BYTES } else { 0 };
            for _ in 0..EXTENSION_HEADERS_MAX {
                // Hop-by-hop, routing and destination options. An authentication header signs the
                // packet, so such a packet cannot be cut.
                if !matches!(next, 0 | 43 | 60) {
                    break;
                }
                next = *frame.get(at)?;
                at += (usize::from(*frame.get(at + 1)?) + 1) * 8;
            }
            (next == PROTOCOL_TCP).then_some((true, left_out, at, end))
        }
        _ => None,
    }
}

/// Sum of big-endian words, not folded. 64 bits hold the words of any frame.
fn sum(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(2);
    let mut total = 0;
    for word in &mut words {
        total += u64::from(u16::from_be_bytes([word[0], word[1]]));
    }
    if let [last] = words.remainder() {
        total += u64::from(*last) << 8;
    }
    total
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
#[path = "gso_tests.rs"]
mod tests;
