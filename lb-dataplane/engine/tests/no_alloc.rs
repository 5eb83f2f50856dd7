//! The packet path takes no memory and gives none back, whatever happens on it.
#![expect(
    unsafe_code,
    reason = "a global allocator that counts is unsafe by nature"
)]

mod common;

use baton_engine::{Counter, Engine, Instant, Output, Verdict};
use baton_packet::{Flags, Mac, MessageKind, Reason};
use common::{
    Conn, Dest, OUR_MAC, ROUTER_MAC, Sent, World, answer, conn::*, pod, pod_mac, policy, settings,
    wire::Wire,
};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    net::SocketAddr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

struct Counting;

static ON: AtomicBool = AtomicBool::new(false);
static TAKEN: AtomicU64 = AtomicU64::new(0);
static GIVEN_BACK: AtomicU64 = AtomicU64::new(0);

fn note(counter: &AtomicU64) {
    if ON.load(Ordering::Relaxed) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator as it came; counting touches atomics only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(&TAKEN);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        note(&GIVEN_BACK);
        // SAFETY: `at` came from `System` with this layout.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(&TAKEN);
        // SAFETY: `at` came from `System` with this layout; the caller's promise about `size` is passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Fixed buffers for what the engine sends; the last frames can be looked at.
struct Ring {
    buffers: Vec<[u8; 2_048]>,
    lens: Vec<usize>,
    at: usize,
}

impl Output for Ring {
    fn frame(&mut self) -> Option<&mut [u8]> {
        self.buffers.get_mut(self.at).map(|b| &mut b[..])
    }

    fn send(&mut self, len: usize) {
        self.lens[self.at] = len;
        self.at += 1;
    }
}

/// An engine driven with counting on, by flows that live through everything that can happen to one.
struct Lives {
    engine: Engine,
    now: Instant,
    out: Ring,
    frames: u64,
}

impl Lives {
    /// One frame in; what left. Only the engine's own work is counted.
    fn give(&mut self, frame: &[u8]) -> Vec<Sent> {
        let mut buffer = [0u8; 2_048];
        buffer[..frame.len()].copy_from_slice(frame);
        self.out.at = 0;
        ON.store(true, Ordering::Relaxed);
        let verdict = self
            .engine
            .frame(self.now, &mut buffer, frame.len(), &mut self.out);
        ON.store(false, Ordering::Relaxed);
        self.frames += 1;
        let mut sent = self.sent();
        if let Verdict::Transmit(len) = verdict {
            sent.push(decoded(&buffer[..len]));
        }
        sent
    }

    fn sent(&self) -> Vec<Sent> {
        (0..self.out.at)
            .map(|i| decoded(&self.out.buffers[i][..self.out.lens[i]]))
            .collect()
    }

    /// Lets time pass; probes are answered.
    fn wait_ms(&mut self, ms: u64) {
        let end = Instant(self.now.0 + ms * 1_000);
        loop {
            self.out.at = 0;
            ON.store(true, Ordering::Relaxed);
            let next = self.engine.next_deadline().filter(|at| *at <= end);
            self.now = next.map_or(end, |at| at.max(self.now));
            self.engine.poll(self.now, &mut self.out);
            ON.store(false, Ordering::Relaxed);
            for sent in self.sent() {
                if sent.message().is_some_and(|m| m.kind == MessageKind::Probe) {
                    self.give(&answer(&sent, Reason::Ready, 0));
                }
            }
            if next.is_none() {
                break;
            }
        }
    }

    fn client(&mut self, c: &mut Conn, flags: Flags, data: &[u8]) -> Vec<Sent> {
        let sent = self.give(&client_frame(c, flags, data));
        c.seq = c.seq.wrapping_add(data.len() as u32);
        if flags.any(Flags::SYN | Flags::FIN) {
            c.seq = c.seq.wrapping_add(1);
        }
        sent
    }

    fn pod(&mut self, c: &mut Conn, flags: Flags, data: &[u8]) -> Vec<Sent> {
        let sent = self.give(&pod_frame(c, flags, data));
        c.server = c.server.wrapping_add(data.len() as u32);
        if flags.any(Flags::SYN | Flags::FIN) {
            c.server = c.server.wrapping_add(1);
        }
        sent
    }

    fn life(&mut self, n: u16) {
        let mut c = Conn::of(n, n % 4 == 3);
        c.seq = self.frames as u32;
        let sent = self.client(&mut c, Flags::SYN, &[]);
        let Some(syn) = sent.last() else {
            // The table is full: time goes on.
            self.wait_ms(500);
            return;
        };
        take_leg(&mut c, syn);
        for (every, flags, ack) in [(5, Flags::ACK, 5), (7, RST_ACK, c.seq)] {
            if n.is_multiple_of(every) {
                let mut other = c.clone();
                (other.seq, other.server) = (ack, 0);
                if let Some(again) = self.pod(&mut other, flags, &[]).last()
                    && again.is(Flags::SYN)
                {
                    take_leg(&mut c, again);
                }
            }
        }
        self.pod(&mut c, Flags::SYN | Flags::ACK, &[]);
        self.client(&mut c, Flags::ACK, &[]);
        for round in 0..6 {
            let old = c.clone();
            let mut sent = self.client(&mut c, PSH_ACK, GET);
            if round == 3 && sent[0].message().is_some() {
                let reasons = [Reason::KernelRefused, Reason::TupleInUse];
                sent = self.give(&answer(&sent[0], reasons[usize::from(n % 2)], 1));
            }
            take_leg(&mut c, sent.last().expect("the request"));
            self.pod(&mut c, PSH_ACK, OK);
            self.client(&mut c, Flags::ACK, &[]);
            if old.leg != c.leg && !n.is_multiple_of(9) {
                self.wait_ms(10);
                let mut last = old;
                last.seq = last.seq.wrapping_add(1);
                self.pod(&mut last, FIN_ACK, &[]);
            }
        }
        match n % 8 {
            0 => {
                self.client(&mut c, Flags::RST, &[]);
            }
            1 => {
                self.pod(&mut c, RST_ACK, &[]);
            }
            2 if n.is_multiple_of(5) => {
                // Pods that refused are asked again, then one that is ready falls silent.
                self.wait_ms(120);
                self.client(&mut c, PSH_ACK, if n % 16 == 2 { GET } else { POST });
                self.wait_ms(3_000);
            }
            3 => {}
            _ => {
                self.client(&mut c, FIN_ACK, &[]);
                self.pod(&mut c, FIN_ACK, &[]);
            }
        }
        // A stray, a corrupt one and an unknown one.
        let mut frame = client_frame(&c, Flags::ACK, b"stray");
        self.give(&frame);
        frame[40] ^= 1;
        self.give(&frame);
        self.give(&frame[..30]);
    }
}

#[test]
fn a_hundred_thousand_packets_take_no_memory_and_give_none_back() {
    const PACKETS: u64 = 100_000;
    let mut s = settings();
    s.limits.flows = 64;
    s.limits.closing_legs = 64;
    s.limits.kept_segments = 16;
    let mut p = policy(3);
    p.timeouts.idle = baton_api::Micros::from_secs(5);
    let w = World::with(s, p);
    let mut lives = Lives {
        engine: w.engine,
        now: w.now,
        out: Ring {
            buffers: vec![[0; 2_048]; 4_096],
            lens: vec![0; 4_096],
            at: 0,
        },
        frames: 0,
    };
    let mut n = 0;
    while lives.frames < PACKETS {
        lives.life(n);
        n = (n + 1) % 560;
    }
    let engine = &lives.engine;
    engine.check_invariants();
    for kind in [
        Counter::MigrationsConfirmed,
        Counter::Rollbacks,
        Counter::RefusedKernel,
        Counter::RefusedTupleInUse,
        Counter::FateReplayed,
        Counter::FateReset,
        Counter::StaleSockets,
        Counter::LegsClosed,
        Counter::LegsReset,
        Counter::TimeoutsIdle,
        Counter::ProbesReady,
        Counter::ResetsToClients,
    ] {
        let times = engine.counter(kind);
        assert!(times > 20, "{kind:?} only {times} times");
    }
    assert_eq!(
        (
            TAKEN.load(Ordering::Relaxed),
            GIVEN_BACK.load(Ordering::Relaxed)
        ),
        (0, 0),
        "allocations and frees in {} packets",
        lives.frames
    );
    // The allocator does count: this test can fail.
    ON.store(true, Ordering::Relaxed);
    drop(std::hint::black_box(vec![1u8; 32]));
    ON.store(false, Ordering::Relaxed);
    assert!(TAKEN.load(Ordering::Relaxed) > 0 && GIVEN_BACK.load(Ordering::Relaxed) > 0);
}

fn wire(macs: (Mac, Mac), from: SocketAddr, to: SocketAddr, numbers: (u32, u32)) -> Wire {
    Wire {
        src_mac: macs.0,
        dst_mac: macs.1,
        from,
        to,
        seq: numbers.0,
        ack: numbers.1,
        flags: Flags::ACK,
        window: 500,
        options: Vec::new(),
        data: Vec::new(),
        ttl: 64,
    }
}

fn client_frame(c: &Conn, flags: Flags, data: &[u8]) -> Vec<u8> {
    let mut wire = wire(
        (ROUTER_MAC, OUR_MAC),
        c.client,
        c.frontend,
        (c.seq, c.server),
    );
    (wire.flags, wire.data) = (flags, data.to_vec());
    wire.build()
}

fn pod_frame(c: &Conn, flags: Flags, data: &[u8]) -> Vec<u8> {
    let from = pod(c.v6(), c.pod);
    let mut wire = wire((pod_mac(c.pod), OUR_MAC), from, c.leg, (c.server, c.seq));
    (wire.flags, wire.data) = (flags, data.to_vec());
    wire.build()
}

fn decoded(frame: &[u8]) -> Sent {
    let segment = common::wire::tcp(frame);
    let to = (0..32)
        .find(|i| pod(segment.is_v6(), *i).ip() == segment.dst)
        .map_or(Dest::Client, Dest::Pod);
    Sent {
        frame: frame.to_vec(),
        segment,
        to,
    }
}
