//! Segments as bytes: what the model endpoints send, and what they read of what arrives.
//!
//! Owns its own builder and checksums, so that the engine's crates are not judged by their own
//! code. It never decides what to send.

use crate::clock::Time;
use baton_packet::{
    ChecksumState, Decoded, Flags, Mac, Segment, SeqNumber, decode, parse_syn_options,
    tcp_checksum_state, timestamps,
};
use std::net::{IpAddr, SocketAddr};

/// The four ends of what an endpoint sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Own link-layer address.
    pub mac: Mac,
    /// The next hop's.
    pub via: Mac,
    /// Own address and port.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
}

/// What a SYN or SYN-ACK offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Largest segment.
    pub mss: u16,
    /// Window scale.
    pub scale: Option<u8>,
    /// Selective acknowledgements.
    pub sack: bool,
}

/// A segment to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Out<'a> {
    /// Sequence number.
    pub seq: SeqNumber,
    /// Acknowledgement number, if it has one.
    pub ack: Option<SeqNumber>,
    /// Flags but for ACK.
    pub flags: Flags,
    /// Window as on the wire.
    pub window: u16,
    /// Options of a SYN.
    pub offer: Option<Offer>,
    /// Timestamps.
    pub stamps: Option<(u32, u32)>,
    /// Payload.
    pub data: &'a [u8],
}

/// A segment that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Seg<'a> {
    /// Where from.
    pub src: SocketAddr,
    /// Where to.
    pub dst: SocketAddr,
    /// Sequence number.
    pub seq: SeqNumber,
    /// Acknowledgement number.
    pub ack: SeqNumber,
    /// Flags.
    pub flags: Flags,
    /// Window as on the wire.
    pub window: u16,
    /// Options as bytes.
    pub options: &'a [u8],
    /// Timestamps.
    pub stamps: Option<(u32, u32)>,
    /// Payload.
    pub data: &'a [u8],
}

impl Seg<'_> {
    /// The sequence number behind it, SYN and FIN counted.
    #[must_use]
    pub fn end(&self) -> SeqNumber {
        let flags = u32::from(self.flags.has(Flags::SYN)) + u32::from(self.flags.has(Flags::FIN));
        self.seq.add(self.data.len() as u32 + flags)
    }

    /// What its options offer.
    #[must_use]
    pub fn offer(&self) -> (Offer, bool) {
        let options = parse_syn_options(self.options);
        let default = if self.src.is_ipv6() { 1_220 } else { 536 };
        let offer = Offer {
            mss: options.mss.unwrap_or(default),
            scale: options.window_scale,
            sack: options.sack_permitted,
        };
        (offer, options.timestamps.is_some())
    }
}

/// The TCP segment in a frame, if its checksums are right: what a kernel hands on to TCP.
#[must_use]
pub fn receive(frame: &[u8]) -> Option<(Segment, Seg<'_>)> {
    let Ok(Decoded::Tcp(segment)) = decode(frame) else {
        return None;
    };
    if tcp_checksum_state(frame, &segment) != ChecksumState::Full {
        return None;
    }
    let options = segment.options(frame);
    let seg = Seg {
        src: SocketAddr::new(segment.src, segment.src_port),
        dst: SocketAddr::new(segment.dst, segment.dst_port),
        seq: segment.seq,
        ack: segment.ack,
        flags: segment.flags,
        window: segment.window,
        options,
        stamps: timestamps(options),
        data: segment.data(frame),
    };
    Some((segment, seg))
}

/// Timestamps of this model tick in milliseconds, as Linux's do.
#[must_use]
pub fn stamp_clock(now: Time) -> u32 {
    (now / 1_000) as u32
}

fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let whole: u64 = words.iter().map(|w| u64::from(u32::from_be_bytes(*w))).sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    whole + u64::from(u32::from_be_bytes(last))
}

fn folded(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Builds the frame of a segment.
#[must_use]
pub fn build(ends: &Ends, out: &Out<'_>) -> Vec<u8> {
    let mut options = [1u8; 40];
    let mut len = 0;
    let mut put = |bytes: &[u8]| {
        options[len..len + bytes.len()].copy_from_slice(bytes);
        len += bytes.len();
    };
    if let Some(offer) = out.offer {
        let [a, b] = offer.mss.to_be_bytes();
        put(&[2, 4, a, b]);
        if offer.sack {
            put(&[1, 1, 4, 2]);
        }
    }
    if let Some((value, echo)) = out.stamps {
        put(&[1, 1, 8, 10]);
        put(&value.to_be_bytes());
        put(&echo.to_be_bytes());
    }
    if let Some(Offer { scale: Some(scale), .. }) = out.offer {
        put(&[1, 3, 3, scale]);
    }
    let tcp_len = 20 + len + out.data.len();
    let mut frame = Vec::with_capacity(54 + tcp_len);
    frame.extend_from_slice(&ends.via.0);
    frame.extend_from_slice(&ends.mac.0);
    let pseudo = match (ends.local.ip(), ends.remote.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let total = (20 + tcp_len) as u16;
            let [h, l] = total.to_be_bytes();
            frame.extend_from_slice(&[8, 0, 0x45, 0, h, l, 0, 0, 0x40, 0, 64, 6, 0, 0]);
            frame.extend_from_slice(&src.octets());
            frame.extend_from_slice(&dst.octets());
            let check = folded(sum(&frame[14..34])).to_be_bytes();
            frame[24..26].copy_from_slice(&check);
            sum(&frame[26..34])
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let [h, l] = (tcp_len as u16).to_be_bytes();
            frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, h, l, 6, 64]);
            frame.extend_from_slice(&src.octets());
            frame.extend_from_slice(&dst.octets());
            sum(&frame[22..54])
        }
        // A world has one address family.
        _ => return Vec::new(),
    };
    let l4 = frame.len();
    frame.extend_from_slice(&ends.local.port().to_be_bytes());
    frame.extend_from_slice(&ends.remote.port().to_be_bytes());
    frame.extend_from_slice(&out.seq.0.to_be_bytes());
    frame.extend_from_slice(&out.ack.unwrap_or_default().0.to_be_bytes());
    let ack = if out.ack.is_some() { Flags::ACK } else { Flags(0) };
    frame.extend_from_slice(&[((20 + len) as u8 / 4) << 4, (out.flags | ack).0]);
    frame.extend_from_slice(&out.window.to_be_bytes());
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(&options[..len]);
    frame.extend_from_slice(out.data);
    let check = folded(pseudo + 6 + tcp_len as u64 + sum(&frame[l4..])).to_be_bytes();
    frame[l4 + 16..l4 + 18].copy_from_slice(&check);
    frame
}

/// The reset that answers a segment of no connection (RFC 9293 section 3.10.7.1; Linux
/// `tcp_v4_send_reset`).
#[must_use]
pub fn reset_for(ends: &Ends, seg: &Seg<'_>) -> Option<Vec<u8>> {
    if seg.flags.has(Flags::RST) {
        return None;
    }
    let acked = seg.flags.has(Flags::ACK);
    Some(build(
        ends,
        &Out {
            seq: if acked { seg.ack } else { SeqNumber(0) },
            ack: (!acked).then(|| seg.end()),
            flags: Flags::RST,
            window: 0,
            offer: None,
            stamps: None,
            data: &[],
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_is_received_as_it_was() {
        for (local, remote) in [("10.0.0.1:80", "10.0.0.2:90"), ("[fd00::1]:80", "[fd00::2]:90")] {
            let ends = Ends {
                mac: Mac([1; 6]),
                via: Mac([2; 6]),
                local: local.parse().expect("an address"),
                remote: remote.parse().expect("an address"),
            };
            for len in [0usize, 1, 2, 3, 4, 1_000, 1_447] {
                let data: Vec<u8> = (0..len).map(|n| n as u8).collect();
                let offer = (len == 0).then_some(Offer { mss: 1_400, scale: Some(7), sack: true });
                let out = Out {
                    seq: SeqNumber(0xfffffff0),
                    ack: Some(SeqNumber(77)),
                    flags: if len == 0 { Flags::SYN } else { Flags::PSH },
                    window: 500,
                    offer,
                    stamps: Some((1, 2)),
                    data: &data,
                };
                let frame = build(&ends, &out);
                let (_, seg) = receive(&frame).expect("right checksums");
                assert_eq!((seg.src, seg.dst), (ends.local, ends.remote));
                assert_eq!((seg.seq, seg.ack, seg.window), (out.seq, SeqNumber(77), 500));
                assert_eq!((seg.stamps, seg.data), (Some((1, 2)), &data[..]));
                assert_eq!(seg.flags, out.flags | Flags::ACK);
                if let Some(offer) = offer {
                    assert_eq!(seg.offer(), (offer, true));
                }
            }
        }
    }
}
