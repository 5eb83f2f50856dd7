//! The packet path takes no memory and gives none back, whatever happens on it.
#![expect(
    unsafe_code,
    reason = "a global allocator that counts is unsafe by nature"
)]

mod common;

use baton_engine::{Counter, Engine, Instant, Output, Verdict};
use baton_packet::{Flags, ListenerReport, Mac, MessageKind, Reason};
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
    /// Pods whose process is gone.
    dead: Option<usize>,
}

impl Lives {
    fn new(settings: baton_engine::Settings, policy: baton_api::Policy) -> Self {
        let w = World::with(settings, policy);
        Self {
            engine: w.engine,
            now: w.now,
            out: Ring {
                buffers: vec![[0; 2_048]; 4_096],
                lens: vec![0; 4_096],
                at: 0,
            },
            frames: 0,
            dead: None,
        }
    }

    /// One frame in; what left, but for questions, which are answered.
    fn give(&mut self, frame: &[u8]) -> Vec<Sent> {
        let sent = self.give_raw(frame);
        self.answered(sent)
    }

    /// Answers probes and questions among frames; the others.
    fn answered(&mut self, sent: Vec<Sent>) -> Vec<Sent> {
        let mut others = Vec::new();
        for s in sent {
            let alive = !self.dead.is_some_and(|pod| s.to == Dest::Pod(pod));
            if s.is_question() {
                let frame = question_answer(&s, alive);
                self.give_raw(&frame);
            } else if s.message().is_some_and(|m| m.kind == MessageKind::Probe) {
                // A live one tells that it answers Forgets, too.
                let told = ListenerReport {
                    forgets: true,
                    ..ListenerReport::default()
                };
                let (reason, told) = if alive {
                    (Reason::Ready, told.field())
                } else {
                    (Reason::NoListener, 0)
                };
                self.give_raw(&answer(&s, reason, told));
            } else if s.is_forget() {
                self.give_raw(&answer(&s, Reason::Forgotten, 0));
            } else {
                others.push(s);
            }
        }
        others
    }

    /// Only the engine's own work is counted.
    fn give_raw(&mut self, frame: &[u8]) -> Vec<Sent> {
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

    /// Lets time pass; probes and questions are answered. What else left.
    fn wait_ms(&mut self, ms: u64) -> Vec<Sent> {
        let mut left = Vec::new();
        let end = Instant(self.now.0 + ms * 1_000);
        loop {
            self.out.at = 0;
            ON.store(true, Ordering::Relaxed);
            let next = self.engine.next_deadline().filter(|at| *at <= end);
            self.now = next.map_or(end, |at| at.max(self.now));
            self.engine.poll(self.now, &mut self.out);
            ON.store(false, Ordering::Relaxed);
            let sent = self.sent();
            left.extend(self.answered(sent));
            if next.is_none() {
                return left;
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
    let mut lives = Lives::new(s, p);
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
    let troubled = troubles();
    assert_eq!(
        (
            TAKEN.load(Ordering::Relaxed),
            GIVEN_BACK.load(Ordering::Relaxed)
        ),
        (0, 0),
        "allocations and frees in {} packets",
        lives.frames + troubled
    );
    // The allocator does count: this test can fail.
    ON.store(true, Ordering::Relaxed);
    drop(std::hint::black_box(vec![1u8; 32]));
    ON.store(false, Ordering::Relaxed);
    assert!(TAKEN.load(Ordering::Relaxed) > 0 && GIVEN_BACK.load(Ordering::Relaxed) > 0);
}

/// Pods die and drain under flows with sessions and outstanding commands, over and over. Returns how many frames.
fn troubles() -> u64 {
    const PACKETS: u64 = 30_000;
    let mut s = settings();
    s.limits.flows = 64;
    let mut p = policy(3);
    p.protocol = baton_api::Protocol::Resp;
    p.on_backend_failure = baton_api::BackendFailure::Replay;
    p.migration.mode = baton_api::MigrationMode::DrainOnly;
    p.response_timeout = Some(baton_api::Micros::from_millis(400));
    let mut lives = Lives::new(s, p);
    let mut n = 0;
    while lives.frames < PACKETS {
        lives.trouble(n);
        n = (n + 1) % 600;
    }
    let engine = &lives.engine;
    engine.check_invariants();
    for kind in [
        Counter::Rescues,
        Counter::Stranded,
        Counter::SessionsRestored,
        Counter::MigrationsConfirmed,
        Counter::LivenessProbesRefused,
        Counter::LivenessProbesAnswered,
        Counter::BackendsBack,
        Counter::ResponseTimeouts,
    ] {
        let times = engine.counter(kind);
        assert!(times > 20, "{kind:?} only {times} times");
    }
    let pins: u64 = baton_engine::PinReason::all()
        .map(|p| engine.pinned(p))
        .sum();
    assert!(pins > 20, "{pins} pins");
    lives.frames
}

const SELECT: &[u8] = b"*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n";
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
const PLUS_OK: &[u8] = b"+OK\r\n";

impl Lives {
    /// A flow whose pod dies, drains or freezes, at rest or with a command outstanding, with a session or without.
    fn trouble(&mut self, n: u16) {
        let mut c = Conn::of(n, n % 4 == 3);
        c.seq = self.frames as u32;
        let sent = self.client(&mut c, Flags::SYN, &[]);
        let Some(syn) = sent.last() else {
            self.wait_ms(500);
            return;
        };
        take_leg(&mut c, syn);
        self.pod(&mut c, Flags::SYN | Flags::ACK, &[]);
        self.client(&mut c, Flags::ACK, &[]);
        for _ in 0..4 {
            let session = n.is_multiple_of(2);
            self.client(&mut c, PSH_ACK, if session { SELECT } else { PING });
            self.pod(
                &mut c,
                PSH_ACK,
                if session { PLUS_OK } else { b"+PONG\r\n" },
            );
            self.client(&mut c, Flags::ACK, &[]);
        }
        let outstanding = n % 3 == 1;
        if outstanding {
            self.client(&mut c, PSH_ACK, PING);
        }
        let pod = c.pod;
        let mut sent = Vec::new();
        match n % 5 {
            0 | 1 => {
                self.dead = Some(pod);
                let end = if n.is_multiple_of(2) {
                    FIN_ACK
                } else {
                    RST_ACK
                };
                sent.extend(self.give(&pod_frame(&c, end, &[])));
                sent.extend(self.wait_ms(6));
            }
            2 => {
                self.engine.drain(self.now, None, &name(&c), true);
                sent.extend(self.wait_ms(160));
            }
            3 if outstanding => sent.extend(self.wait_ms(420)),
            3 => {
                // A close that was meant.
                self.give(&pod_frame(&c, FIN_ACK, &[]));
                sent.extend(self.wait_ms(6));
            }
            _ => {
                self.client(&mut c, PSH_ACK, b"\0not RESP\r\n");
            }
        }
        let adopted = sent.iter().rfind(|s| s.is_adoption()).cloned();
        if let Some(adoption) = adopted {
            take_leg(&mut c, &adoption);
            // The replies to what restores the session, then the answer to the command.
            let replies = c.server.wrapping_sub(adoption.segment.ack.0);
            let mut first = c.clone();
            first.server = adoption.segment.ack.0;
            let bytes = PLUS_OK.repeat(replies as usize / 5);
            self.give(&pod_frame(&first, PSH_ACK, &bytes));
            if outstanding {
                self.pod(&mut c, PSH_ACK, b"+PONG\r\n");
                self.client(&mut c, Flags::ACK, &[]);
            }
        }
        self.dead = None;
        self.engine
            .drain(self.now, None, &name(&Conn { pod, ..c.clone() }), false);
        self.client(&mut c, Flags::RST, &[]);
        self.wait_ms(if n.is_multiple_of(7) { 1_300 } else { 130 });
    }
}

fn name(c: &Conn) -> String {
    format!("pod-{}{}", c.pod, if c.v6() { "-v6" } else { "" })
}

fn question_answer(question: &Sent, listens: bool) -> Vec<u8> {
    let s = &question.segment;
    let Dest::Pod(index) = question.to else {
        panic!("a question to a client: {question:?}")
    };
    let (from, to) = (
        SocketAddr::new(s.dst, s.dst_port),
        SocketAddr::new(s.src, s.src_port),
    );
    let numbers = (0x5151, s.seq.0.wrapping_add(1));
    let mut wire = wire((pod_mac(index), OUR_MAC), from, to, numbers);
    wire.flags = if listens {
        Flags::SYN | Flags::ACK
    } else {
        RST_ACK
    };
    wire.build()
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
        key: common::key(),
    }
}
