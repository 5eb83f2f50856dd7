//! Frames from a template: a copy gets a flow's ends and numbers.
//!
//! Owns that. It takes less time than what is measured, and little room in the caches: where frames
//! are built piece by piece, most of the time passes without a read of the engine's memory, and
//! each such read takes longer then.

use super::common::wire::Wire;
use baton_packet::{Family, Mac, Shift, V4, V6, plain, readdress};
use std::net::SocketAddr;

pub struct Template {
    frame: Vec<u8>,
    macs: (Mac, Mac),
    v6: bool,
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
        Self { frame: wire.build(), macs: (wire.src_mac, wire.dst_mac), v6: wire.from.is_ipv6() }
    }

    /// Into the buffer; says the length. Not in line: what is measured is compiled beside it.
    #[inline(never)]
    pub fn write(&self, buffer: &mut [u8], of: &Fields) -> usize {
        let frame = &mut buffer[..self.frame.len()];
        frame.copy_from_slice(&self.frame);
        if self.v6 {
            self.settle::<V6>(frame, of);
        } else {
            self.settle::<V4>(frame, of);
        }
        frame.len()
    }

    fn settle<F: Family>(&self, frame: &mut [u8], of: &Fields) {
        let plain = plain::<F, true>(frame).expect("a plain frame");
        let mut src = (plain.src(frame), plain.src_port(frame));
        let mut dst = (plain.dst(frame), plain.dst_port(frame));
        match of.end {
            Ok(client) => src = (F::bits(client.ip()).expect("its family"), client.port()),
            Err(port) => dst.1 = port,
        }
        let shift = Shift {
            acked: plain.seq(frame).0.wrapping_sub(of.seq),
            seq: plain.ack(frame).0.wrapping_sub(of.ack),
            ..Shift::default()
        };
        let delta = plain.shift_to_pod(frame, &shift);
        readdress::<F>(frame, (src, dst), self.macs, delta);
    }
}
