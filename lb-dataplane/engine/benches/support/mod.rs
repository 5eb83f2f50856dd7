//! An engine with established flows and the frames that it forwards, for benchmarks and instruction
//! counts.
#![allow(dead_code, reason = "each benchmark uses a part")]

#[path = "../../tests/common/mod.rs"]
pub mod common;
pub mod sharing;
mod template;

use baton_api::{Limits, MigrationMode, MoveMethod, Protocol};
use baton_engine::Verdict;
use baton_packet::{ChecksumState, Flags, Mac, V4, plain, readdress};
use common::{Conn, FRAME_BYTES, World, conn::*, policy, settings};
use std::{
    hint::black_box,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::{Duration, Instant},
};
use template::{Fields, Template};

/// What is forwarded, in the order of one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Client: the head of a request, 200 bytes of frame.
    Request,
    /// Backend: its kernel acknowledges that.
    BackendAck,
    /// Backend: the head of the response and what fits behind it, 1,448 bytes of data.
    Head,
    /// Backend: 1,448 bytes of its body.
    Body,
    /// Client: acknowledges what came so far.
    Ack,
    /// Backend: the last byte.
    End,
    /// Client: acknowledges all; with that the exchange is at its end.
    LastAck,
}

impl Kind {
    pub const ALL: [Self; 7] = [
        Self::Request,
        Self::BackendAck,
        Self::Head,
        Self::Body,
        Self::Ack,
        Self::End,
        Self::LastAck,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::BackendAck => "backend ack",
            Self::Head => "head",
            Self::Body => "body",
            Self::Ack => "ack",
            Self::End => "end",
            Self::LastAck => "last ack",
        }
    }

    const fn is_clients(self) -> bool {
        matches!(self, Self::Request | Self::Ack | Self::LastAck)
    }
}

/// Data of a full segment with timestamps.
const SEGMENT: usize = 1_448;
/// Frames that are ready when the engine gets the first of them, at most.
pub const BURST_MAX: usize = 32;

/// An engine with established flows that have one exchange after the other: each frame has new
/// numbers and a right checksum, and moves its flow on.
pub struct Loaded {
    w: World,
    pods: usize,
    /// What all flows have in common.
    like: Conn,
    flows: Vec<Own>,
    said: Said,
    /// Each flow once, in an order without neighbours.
    pub order: Vec<u32>,
    /// What callgrind is to count.
    pub counted: Option<Kind>,
    /// It counts what no engine can do without, see [`no_engine_forward_counted`].
    pub without_engine: bool,
    buffers: Box<[[u8; FRAME_BYTES]; BURST_MAX]>,
}

/// What one flow has for itself: little, as it shares the caches with the engine.
struct Own {
    seq: u32,
    server: u32,
    pod: u16,
    leg_port: u16,
    /// What the pod has less in its numbers than the client sees; 0 unless translated.
    shift: u32,
}

impl Own {
    fn of(c: &Conn) -> Self {
        Self { seq: c.seq, server: c.server, pod: c.pod as u16, leg_port: c.leg.port(), shift: 0 }
    }
}

/// The address of flow `n`'s client.
fn client_of(v6: bool, n: usize) -> SocketAddr {
    let (net, port) = ((n / 50_000) as u16, 10_000 + (n % 50_000) as u16);
    let ip: IpAddr = if v6 {
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, net + 16).into()
    } else {
        Ipv4Addr::new(192, 0, 2, net as u8 + 16).into()
    };
    SocketAddr::new(ip, port)
}

/// What is said in each exchange.
struct Said {
    request: Vec<u8>,
    head: Vec<u8>,
    body: Vec<u8>,
}

impl Said {
    fn new(v6: bool) -> Self {
        let headers = if v6 { 14 + 40 + 32 } else { 14 + 20 + 32 };
        let (begin, end) = ("GET / HTTP/1.1\r\nhost: a\r\nx: ", "\r\n\r\n");
        let pad = "x".repeat(200 - headers - begin.len() - end.len());
        let mut head = b"HTTP/1.1 200 OK\r\ncontent-length: ".to_vec();
        // Four digits, whatever is in front of them.
        let behind = SEGMENT - (head.len() + 4 + 4);
        head.extend(format!("{}\r\n\r\n", behind + SEGMENT + 1).bytes());
        head.resize(SEGMENT, b'x');
        Self { request: format!("{begin}{pad}{end}").into_bytes(), head, body: vec![b'x'; SEGMENT] }
    }

    fn of(&self, kind: Kind) -> &[u8] {
        match kind {
            Kind::Request => &self.request,
            Kind::BackendAck | Kind::Ack | Kind::LastAck => &[],
            Kind::Head => &self.head,
            Kind::Body => &self.body,
            Kind::End => b"x",
        }
    }
}

impl Loaded {
    pub fn new(v6: bool, protocol: Protocol, count: usize) -> Self {
        let mut s = settings();
        s.limits = Limits {
            flows: (count as u32).next_power_of_two().max(1_024),
            guarded_flows: (count as u32).next_power_of_two().max(1_024),
            ..Limits::default()
        };
        s.ports = 20_000..=60_000;
        // An eighth of the ports of each are not for SYNs.
        let pods = count.div_ceil(32_000).max(4);
        let mut p = policy(pods);
        p.protocol = protocol;
        p.migration.mode = MigrationMode::Never;
        let mut w = World::unprobed(s, p);
        w.strict = false;
        let mut order: Vec<u32> = (0..count as u32).collect();
        fastrand::Rng::with_seed(1).shuffle(&mut order);
        let mut it = Self {
            w,
            pods,
            like: Conn::of(0, v6),
            flows: Vec::with_capacity(count),
            said: Said::new(v6),
            order,
            counted: None,
            without_engine: false,
            buffers: Box::new([[0; FRAME_BYTES]; BURST_MAX]),
        };
        for n in 0..count {
            it.open(v6, n);
        }
        it
    }

    fn open(&mut self, v6: bool, n: usize) {
        let mut c = Conn::of(0, v6);
        c.client = client_of(v6, n);
        let syn = self.w.syn_wire(&c).build();
        let left = self.pass(&syn);
        let sent = self.w.check(&left);
        take_leg(&mut c, &sent);
        let synack = self.w.synack_wire(&c).build();
        self.pass(&synack);
        c.seq = c.seq.wrapping_add(1);
        c.server = c.server.wrapping_add(1);
        let ack = self.w.client_wire(&c, Flags::ACK, &[]).build();
        self.pass(&ack);
        self.flows.push(Own::of(&c));
        self.like = c;
    }

    fn conn(&self, n: usize) -> Conn {
        let (own, mut c) = (&self.flows[n], self.like.clone());
        c.client = client_of(c.client.is_ipv6(), n);
        (c.seq, c.server, c.pod) = (own.seq, own.server, usize::from(own.pod));
        c.leg.set_port(own.leg_port);
        c
    }

    /// All flows, which have had an exchange, go to other pods by translation.
    pub fn translate(&mut self) {
        const ISN: u32 = 0x1234_5678;
        let mode = |w: &mut World, mode| {
            w.change(|s| {
                s.policies[0].migration.mode = mode;
                s.policies[0].migration.method = MoveMethod::Translation;
            });
        };
        mode(&mut self.w, MigrationMode::Always);
        for n in 0..self.flows.len() {
            let mut c = self.conn(n);
            let request = self.w.client_wire(&c, PSH_ACK, GET).build();
            let mut recorder = Recorder::default();
            recorder.give(&mut self.w, &request);
            let syn = self.w.check(recorder.sent.last().expect("a SYN"));
            take_leg(&mut c, &syn);
            let mut p = c.clone();
            (p.seq, p.server, p.server_clock) = (syn.segment.seq.0, ISN, 77);
            let synack = self.w.synack_wire(&p).build();
            recorder.give(&mut self.w, &synack);
            c.seq = c.seq.wrapping_add(GET.len() as u32);
            let shift = c.server.wrapping_sub(ISN + 1);
            c.server_clock = 77;
            let mut ok = self.w.pod_wire(&c, PSH_ACK, OK);
            ok.seq = ISN + 1;
            self.pass(&ok.build());
            c.server = c.server.wrapping_add(OK.len() as u32);
            let ack = self.w.client_wire(&c, Flags::ACK, &[]).build();
            self.pass(&ack);
            self.flows[n] = Own { shift, ..Own::of(&c) };
        }
        self.like.server_clock = 77;
        mode(&mut self.w, MigrationMode::Never);
        assert_eq!(self.w.table("translated_legs").0, self.flows.len() as u64);
    }

    fn pass(&mut self, frame: &[u8]) -> Vec<u8> {
        let buffer = &mut self.buffers[0];
        buffer[..frame.len()].copy_from_slice(frame);
        let w = &mut self.w;
        match w.engine.frame(w.now, buffer, frame.len(), &mut w.out) {
            Verdict::Transmit(len) => buffer[..len].to_vec(),
            other => panic!("not forwarded: {other:?}"),
        }
    }

    /// A kind's frames, from each pod.
    fn templates(&self, kind: Kind) -> Vec<Template> {
        let data = self.said.of(kind);
        let flags = if data.is_empty() { Flags::ACK } else { PSH_ACK };
        let of_pod = |pod| {
            let mut c = self.like.clone();
            c.pod = pod;
            Template::new(&if kind.is_clients() {
                self.w.client_wire(&c, flags, data)
            } else {
                self.w.pod_wire(&c, flags, data)
            })
        };
        (0..self.pods).map(of_pod).collect()
    }

    /// Forwards one frame of a kind for each of `flows`, `BURST_MAX` at most: written into buffers
    /// first, as a NIC would. The time inside the engine.
    fn burst(&mut self, kind: Kind, templates: &[Template], flows: &[u32]) -> Duration {
        let mut lens = [0; BURST_MAX];
        for ((id, buffer), len) in flows.iter().zip(self.buffers.iter_mut()).zip(&mut lens) {
            let own = &self.flows[*id as usize];
            let fields = if kind.is_clients() {
                Fields {
                    end: Ok(client_of(self.like.client.is_ipv6(), *id as usize)),
                    seq: own.seq,
                    ack: own.server,
                }
            } else {
                Fields {
                    end: Err(own.leg_port),
                    seq: own.server.wrapping_sub(own.shift),
                    ack: own.seq,
                }
            };
            *len = templates[usize::from(own.pod)].write(&mut buffer[..], &fields);
        }
        let mut verdicts = [Verdict::Absorbed; BURST_MAX];
        let begun = Instant::now();
        if self.counted == Some(kind) && self.without_engine {
            no_engine_forward_counted(&mut self.buffers.clone()[..], &lens[..flows.len()]);
            self.forward(&lens[..flows.len()], &mut verdicts);
        } else if self.counted == Some(kind) {
            self.forward_counted(&lens[..flows.len()], &mut verdicts);
        } else {
            self.forward(&lens[..flows.len()], &mut verdicts);
        }
        let took = begun.elapsed();
        for ((id, len), verdict) in flows.iter().zip(lens).zip(verdicts) {
            assert_eq!(verdict, Verdict::Transmit(len), "{kind:?}");
            let c = &mut self.flows[*id as usize];
            let data = self.said.of(kind).len() as u32;
            let next = if kind.is_clients() { &mut c.seq } else { &mut c.server };
            *next = next.wrapping_add(data);
        }
        took
    }

    /// Callgrind counts inside of it.
    #[inline(never)]
    fn forward_counted(&mut self, lens: &[usize], verdicts: &mut [Verdict]) {
        self.forward(lens, verdicts);
        std::hint::black_box(verdicts);
    }

    /// What is measured, and nothing else.
    fn forward(&mut self, lens: &[usize], verdicts: &mut [Verdict]) {
        let (now, engine, out) = (self.w.now, &mut self.w.engine, &mut self.w.out);
        // As the worker does.
        if lens.len() > 1 {
            for (buffer, len) in self.buffers.iter().zip(lens) {
                engine.look_at(&buffer[..*len]);
            }
            engine.look_ahead();
        }
        for ((buffer, len), verdict) in self.buffers.iter_mut().zip(lens).zip(verdicts) {
            *verdict = engine.frame(now, buffer, *len, out);
        }
    }

    /// One exchange of all flows, `burst` frames at a time: nanoseconds for a frame of each kind.
    pub fn exchange(&mut self, burst: usize) -> [f64; Kind::ALL.len()] {
        let order = std::mem::take(&mut self.order);
        let took = Kind::ALL.map(|kind| {
            let templates = self.templates(kind);
            let bursts = order.chunks(burst);
            let all: Duration = bursts.map(|ids| self.burst(kind, &templates, ids)).sum();
            all.as_nanos() as f64 / order.len() as f64
        });
        self.order = order;
        self.w.now.0 += 1_000;
        took
    }
}

/// What is left of forwarding without an engine: to see that a frame is plain, to judge its
/// checksums, and to give it other ends and link-layer addresses. No look-up, no state.
#[inline(never)]
fn no_engine_forward_counted(buffers: &mut [[u8; FRAME_BYTES]], lens: &[usize]) {
    let (ends, macs) = (((1, 2), (3, 4)), (Mac([2; 6]), Mac([4; 6])));
    for (buffer, len) in buffers.iter_mut().zip(lens) {
        let frame = &mut buffer[..*len];
        if let Some(plain) = plain::<V4, true>(frame)
            && plain.settle_checksum(frame) == ChecksumState::Full
        {
            readdress::<V4>(frame, black_box(ends), macs, 0);
        } else {
            panic!("not plain, or wrong");
        }
    }
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
