//! An engine with established flows and the frames that it forwards, for benchmarks and instruction counts.
#![allow(dead_code, reason = "each benchmark uses a part")]

#[path = "../../tests/common/mod.rs"]
pub mod common;

use baton_api::{Limits, Protocol};
use baton_engine::{Engine, Instant, Output, Verdict};
use baton_packet::Flags;
use common::{Conn, World, conn::*, policy, settings};
use std::net::SocketAddr;

/// Flows in the table.
pub const FLOWS: usize = 50_000;
const FRAME_BYTES: usize = 2_048;

/// Nothing is kept of what the engine sends, but that it did.
pub struct Sink {
    buffer: [u8; FRAME_BYTES],
    pub sent: u64,
}

impl Output for Sink {
    fn frame(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.buffer)
    }

    fn send(&mut self, _len: usize) {
        self.sent += 1;
    }
}

/// An engine with flows, and one frame of each kind for each of them.
pub struct Loaded {
    pub engine: Engine,
    pub now: Instant,
    pub out: Sink,
    /// Client to backend: a bare ACK.
    pub acks: Vec<Vec<u8>>,
    /// Client to backend: 200 bytes of frame, as a small request is.
    pub requests: Vec<Vec<u8>>,
    /// Backend to client: 1,448 bytes of data, a full segment with timestamps.
    pub responses: Vec<Vec<u8>>,
    buffer: Box<[u8; FRAME_BYTES]>,
}

impl Loaded {
    pub fn new(v6: bool, flows: usize) -> Self {
        let mut s = settings();
        s.limits = Limits {
            flows: 65_536,
            ..Limits::default()
        };
        s.ports = 20_000..=60_000;
        let mut p = policy(4);
        p.protocol = Protocol::None;
        let mut w = World::unprobed(s, p);
        w.strict = false;
        let mut out = Sink {
            buffer: [0; FRAME_BYTES],
            sent: 0,
        };
        let (mut acks, mut requests, mut responses) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..flows {
            let mut c = Conn::of(0, v6);
            // 8 client addresses with up to 50,000 ports each, so that hash chains are what they are in life.
            let ip = if v6 {
                format!("2001:db8::{:x}", n % 8 + 16)
            } else {
                format!("192.0.2.{}", n % 8 + 16)
            };
            c.client = SocketAddr::new(ip.parse().expect("an address"), 10_000 + (n / 8) as u16);
            let mut pass = |engine: &mut Engine, frame: &[u8]| {
                let mut buffer = [0; FRAME_BYTES];
                buffer[..frame.len()].copy_from_slice(frame);
                match engine.frame(w.now, &mut buffer, frame.len(), &mut out) {
                    Verdict::Transmit(len) => buffer[..len].to_vec(),
                    other => panic!("not forwarded: {other:?}"),
                }
            };
            let syn = w.syn_wire(&c).build();
            let left = pass(&mut w.engine, &syn);
            let sent = w.check(&left);
            take_leg(&mut c, &sent);
            let synack = w.synack_wire(&c).build();
            pass(&mut w.engine, &synack);
            c.seq = c.seq.wrapping_add(1);
            c.server = c.server.wrapping_add(1);
            let ack = w.client_wire(&c, Flags::ACK, &[]).build();
            pass(&mut w.engine, &ack);
            acks.push(ack);
            let headers = if v6 { 14 + 40 + 32 } else { 14 + 20 + 32 };
            let data = vec![b'G'; 200 - headers];
            requests.push(w.client_wire(&c, PSH_ACK, &data).build());
            responses.push(w.pod_wire(&c, Flags::ACK, &[b'x'; 1_448]).build());
        }
        Self {
            engine: w.engine,
            now: w.now,
            out,
            acks,
            requests,
            responses,
            buffer: Box::new([0; FRAME_BYTES]),
        }
    }

    /// Forwards one frame, copied into a buffer first, as a NIC would have written it there.
    #[inline]
    pub fn forward(&mut self, kind: Kind, flow: usize) -> Verdict {
        let frame = match kind {
            Kind::Ack => &self.acks[flow],
            Kind::Request => &self.requests[flow],
            Kind::Response => &self.responses[flow],
        };
        let len = frame.len();
        self.buffer[..len].copy_from_slice(frame);
        self.engine
            .frame(self.now, &mut self.buffer[..], len, &mut self.out)
    }

    /// The copy alone, to be taken off.
    #[inline]
    pub fn copy(&mut self, kind: Kind, flow: usize) -> u8 {
        let frame = match kind {
            Kind::Ack => &self.acks[flow],
            Kind::Request => &self.requests[flow],
            Kind::Response => &self.responses[flow],
        };
        self.buffer[..frame.len()].copy_from_slice(frame);
        std::hint::black_box(&mut self.buffer)[60]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ack,
    Request,
    Response,
}

/// What the engine sent because of the last frame, and how long it took.
#[derive(Default)]
pub struct Recorder {
    pub sent: Vec<Vec<u8>>,
}

impl Recorder {
    pub fn give(&mut self, w: &mut World, frame: &[u8]) -> std::time::Duration {
        let mut buffer = [0; FRAME_BYTES];
        buffer[..frame.len()].copy_from_slice(frame);
        let start = std::time::Instant::now();
        let verdict = w.engine.frame(w.now, &mut buffer, frame.len(), &mut w.out);
        let took = start.elapsed();
        let _ = std::hint::black_box(verdict);
        self.sent = w.out.take();
        took
    }

    pub fn poll(&mut self, w: &mut World) -> std::time::Duration {
        let start = std::time::Instant::now();
        w.engine.poll(w.now, &mut w.out);
        let took = start.elapsed();
        self.sent = w.out.take();
        took
    }
}
