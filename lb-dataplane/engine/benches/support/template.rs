//! Frames from a template: what differs between flows is written into a copy, and the checksums are
//! patched.
//!
//! Owns that. It takes less time than what is measured, and little room in the caches: where frames
//! are built piece by piece, most of the time passes without a read of the engine's memory, and
//! each such read takes longer then.

use super::common::wire::Wire;
use std::net::{IpAddr, SocketAddr};

pub struct Template {
    frame: Vec<u8>,
    l4: usize,
}

/// What a frame has of its flow.
pub struct Fields {
    /// The client's end if it comes from there; else it goes to this port of a leg.
    pub end: Result<SocketAddr, u16>,
    pub seq: u32,
    pub ack: u32,
}

impl Template {
    pub fn new(wire: &Wire) -> Self {
        Self {
            frame: wire.build(),
            l4: if wire.from.is_ipv6() { 54 } else { 34 },
        }
    }

    /// Into the buffer; says the length.
    pub fn write(&self, buffer: &mut [u8], of: &Fields) -> usize {
        let (frame, l4) = (&mut buffer[..self.frame.len()], self.l4);
        frame.copy_from_slice(&self.frame);
        let mut sum = put(frame, l4 + 4, &of.seq.to_be_bytes());
        sum += put(frame, l4 + 8, &of.ack.to_be_bytes());
        match of.end {
            Ok(client) => {
                let address = match client.ip() {
                    IpAddr::V4(ip) => put(frame, 26, &ip.octets()),
                    IpAddr::V6(ip) => put(frame, 22, &ip.octets()),
                };
                if client.is_ipv4() {
                    settle(frame, 24, address);
                }
                sum += address + put(frame, l4, &client.port().to_be_bytes());
            }
            Err(port) => sum += put(frame, l4 + 2, &port.to_be_bytes()),
        }
        settle(frame, l4 + 16, sum);
        frame.len()
    }
}

/// Writes whole words, and says what that adds to a sum (RFC 1624).
fn put(frame: &mut [u8], at: usize, new: &[u8]) -> u32 {
    let mut sum = 0;
    for (word, new) in frame[at..].chunks_exact_mut(2).zip(new.chunks_exact(2)) {
        sum += u32::from(!u16::from_be_bytes([word[0], word[1]]));
        sum += u32::from(u16::from_be_bytes([new[0], new[1]]));
        word.copy_from_slice(new);
    }
    sum
}

/// Adds to the sum whose complement is at a place.
fn settle(frame: &mut [u8], at: usize, more: u32) {
    let mut sum = u32::from(!u16::from_be_bytes([frame[at], frame[at + 1]])) + more;
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    frame[at..at + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}
