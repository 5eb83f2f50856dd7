//! A world around an engine: clients behind a router, pods on the link, a clock, and checks on
//! every frame that leaves.
#![allow(dead_code, reason = "each test binary uses a part of the harness")]

pub mod conn;
pub mod pods;
pub mod wire;

pub use conn::Conn;

#[allow(unused_imports, reason = "each test binary uses a part of the harness")]
pub use pods::{End, Listener};

use baton_api::{
    Algorithm, Backend, BackendFailure, Endpoint, FlowView, Limits, LoadSignal, Micros, Migration,
    MigrationMode, MoveMethod, OnStall, Policy, Protocol, Snapshot,
};
use baton_engine::{
    Counter, DropReason, Engine, Instant, Output, PinReason, Route, Settings, Verdict, Via,
};
use baton_packet::{
    Adoption, AdoptionKey, Decoded, Flags, ListenerReport, LoadReport, Mac, MessageKind, Reason,
    Segment, SegmentSpec, build_adoption, decode, parse_adoption,
};
use std::{
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
};

pub const OUR_MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);
pub const ROUTER_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub const EPOCH: u8 = 3;
/// The number of every pod's network namespace, unless a test says otherwise.
pub const NAMESPACE: u64 = 0xba70_0123_4567_89ab;
pub const POD_PORT: u16 = 8080;
/// Bytes of a frame buffer of the harness.
pub const FRAME_BYTES: usize = 2_048;
/// Frames that there is room for: more than one call ever sends.
const FRAMES_MAX: usize = 4_096;
/// Calls of `poll` at one instant, each of which handles up to 256 timers.
const POLLS_AT_ONCE_MAX: u32 = 256;

pub fn key() -> AdoptionKey {
    AdoptionKey::from_bytes([7; 16])
}

/// The dataplane's own address.
pub fn ours(v6: bool) -> IpAddr {
    if v6 { "fd00::9" } else { "10.0.0.9" }.parse().expect("an address")
}

pub fn router(v6: bool) -> IpAddr {
    if v6 { "fd00::1" } else { "10.0.0.1" }.parse().expect("an address")
}

/// Where pod `index` listens.
pub fn pod(v6: bool, index: usize) -> SocketAddr {
    let host = 20 + index;
    let text = if v6 { format!("fd00::{host:x}") } else { format!("10.0.1.{host}") };
    SocketAddr::new(text.parse().expect("an address"), POD_PORT)
}

pub fn pod_mac(index: usize) -> Mac {
    Mac([2, 0, 0, 0, 1, 20 + index as u8])
}

pub fn endpoint(at: SocketAddr) -> Endpoint {
    Endpoint::new(at.ip(), at.port()).expect("a port that is not 0")
}

pub fn frontend(v6: bool) -> SocketAddr {
    SocketAddr::new(ours(v6), 80)
}

pub fn pod_name(v6: bool, index: usize) -> String {
    format!("pod-{index}{}", if v6 { "-v6" } else { "" })
}

pub fn backend(v6: bool, index: usize) -> Backend {
    Backend::new(pod_name(v6, index), endpoint(pod(v6, index)))
}

/// A policy `web` on port 80 of both families with `pods` pods of each, which moves flows at every
/// boundary.
pub fn policy(pods: usize) -> Policy {
    let frontends = [false, true].map(|v6| endpoint(frontend(v6)));
    let backends = [false, true].map(|v6| (0..pods).map(move |i| backend(v6, i)));
    Policy {
        algorithm: Algorithm::LeastOutstanding,
        load: LoadSignal::Latency,
        protocol: Protocol::Http1,
        migration: Migration {
            mode: MigrationMode::Always,
            cooldown: Micros(0),
            // Those that are about translation ask for it.
            method: MoveMethod::Adoption,
            ..Migration::default()
        },
        on_backend_failure: BackendFailure::ReplayIdempotent,
        // Those that are about it turn it on.
        on_stall: OnStall::Wait,
        ..Policy::new("web", frontends.into(), backends.into_iter().flatten().collect())
    }
}

pub fn settings() -> Settings {
    Settings {
        limits: Limits {
            flows: 64,
            backends: 16,
            closing_legs: 32,
            kept_segments: 32,
            guarded_flows: 64,
            resp_sessions: 64,
            affinities: 64,
            tracked_pairs: 4_096,
        },
        addresses: vec![ours(false), ours(true)],
        legs_from_all: false,
        ports: 40_000..=40_127,
        mac: OUR_MAC,
        seed: 1,
        share: baton_engine::Share::default(),
        hash_keys: (3, 4),
        mtu: 1_500,
    }
}

/// Where a frame that left goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dest {
    Client,
    Pod(usize),
}

/// A frame that left, decoded.
#[derive(Clone)]
pub struct Sent {
    pub frame: Vec<u8>,
    pub segment: Segment,
    pub to: Dest,
    /// What the receiving pod has.
    pub key: AdoptionKey,
}

impl std::fmt::Debug for Sent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let s = &self.segment;
        let data = String::from_utf8_lossy(self.data());
        write!(
            f,
            "{:?} {}>{} seq {} ack {} flags {:#x} {data:?} {:?}",
            self.to,
            s.src_port,
            s.dst_port,
            s.seq.0,
            s.ack.0,
            s.flags.0,
            self.message().map(|m| m.kind)
        )
    }
}

impl Sent {
    pub fn data(&self) -> &[u8] {
        self.segment.data(&self.frame)
    }

    pub fn is(&self, flags: Flags) -> bool {
        self.segment.flags == flags
    }

    pub fn stamps(&self) -> Option<(u32, u32)> {
        baton_packet::timestamps(self.segment.options(&self.frame))
    }

    /// The adoption message in it, if its tag is right.
    pub fn message(&self) -> Option<Adoption> {
        parse_adoption(&self.frame, &self.segment)?.verify(&self.key)
    }

    /// A SYN without options and with the largest window is Baton's own: no client sends one here.
    pub fn is_question(&self) -> bool {
        let bare = self.segment.options(&self.frame).is_empty();
        self.is(Flags::SYN) && bare && self.segment.window == u16::MAX
    }

    pub fn is_adoption(&self) -> bool {
        self.message().is_some_and(|m| m.kind == MessageKind::Adopt)
    }

    pub fn is_forget(&self) -> bool {
        self.message().is_some_and(|m| m.kind == MessageKind::Forget)
    }

    pub fn is_release(&self) -> bool {
        self.message().is_some_and(|m| m.kind == MessageKind::Release)
    }

    pub fn is_probe(&self) -> bool {
        self.message().is_some_and(|m| m.kind == MessageKind::Probe)
    }
}

/// The frames of the engine's own making. Sending takes no memory: there is room for what one call
/// sends.
pub struct Out {
    buffer: Box<[u8]>,
    /// Whether the engine has the buffer.
    given: bool,
    /// What was sent, one frame behind the other, and where each ends.
    sent: Vec<u8>,
    ends: Vec<usize>,
    /// Frames that may still be taken.
    pub free: usize,
}

impl Out {
    pub fn new() -> Self {
        Self {
            buffer: vec![0xa5; FRAME_BYTES].into_boxed_slice(),
            given: false,
            sent: Vec::with_capacity(FRAMES_MAX * FRAME_BYTES),
            ends: Vec::with_capacity(FRAMES_MAX),
            free: usize::MAX,
        }
    }

    /// What was sent since the last look.
    pub fn take(&mut self) -> Vec<Vec<u8>> {
        self.buffer.fill(0xa5);
        let mut start = 0;
        let frames = self.ends.drain(..).map(|end| {
            let frame = self.sent[start..end].to_vec();
            start = end;
            frame
        });
        let frames = frames.collect();
        self.sent.clear();
        frames
    }
}

impl Output for Out {
    fn frame(&mut self) -> Option<&mut [u8]> {
        self.given = self.free > 0;
        self.given.then_some(&mut self.buffer[..])
    }

    fn send(&mut self, len: usize) {
        assert!(self.given, "sent without a frame");
        self.given = false;
        self.free -= 1;
        self.sent.extend_from_slice(&self.buffer[..len]);
        self.ends.push(self.sent.len());
    }
}

pub struct World {
    pub engine: Engine,
    ports: RangeInclusive<u16>,
    pub now: Instant,
    pub out: Out,
    pub snapshot: Snapshot,
    /// Pods whose adopter answers probes, with this reason. Others stay silent.
    pub adopters: Vec<Option<Reason>>,
    /// What those that are ready tell of their pods.
    pub told: Vec<ListenerReport>,
    /// What they tell of their load.
    pub loads: Vec<Option<LoadReport>>,
    /// The numbers of the pods' network namespaces.
    pub namespaces: Vec<u64>,
    /// Whether adopters answer Forgets.
    pub forgets: bool,
    /// The keys that the pods' adopters have, of [`EPOCH`], and those that all of them have, too.
    pub keys: Vec<AdoptionKey>,
    pub more_keys: Vec<AdoptionKey>,
    /// What the pods' kernels say to a question whether anybody listens.
    pub listeners: Vec<Listener>,
    /// The last probe that left.
    pub last_probe: Option<Sent>,
    /// Pods that were asked, in order.
    pub asked: Vec<usize>,
    /// Whether frames are checked against the world's addresses (off for random input).
    pub strict: bool,
    /// Whether all tables are gone through after every frame (off where there are thousands of
    /// flows).
    pub careful: bool,
    /// Whether frames are looked at ahead, as a worker does.
    pub looks: bool,
    /// Makes each call of the packet path, `frame` and `poll`: a test may measure there what it
    /// takes.
    pub around: fn(&mut dyn FnMut()),
    pub verdict: Verdict,
    /// What left, and whether it was forwarded, if somebody wants to know.
    pub log: Option<Vec<(Vec<u8>, bool)>>,
}

impl World {
    /// A world with `pods` pods, all of them ready to adopt.
    pub fn new(pods: usize) -> Self {
        Self::with(settings(), policy(pods))
    }

    pub fn with(settings: Settings, policy: Policy) -> Self {
        let mut world = Self::unprobed(settings, policy);
        world.poll();
        world
    }

    /// A world with `pods` pods and a policy that is changed so.
    pub fn of(pods: usize, change: impl FnOnce(&mut Policy)) -> Self {
        let mut policy = policy(pods);
        change(&mut policy);
        Self::with(settings(), policy)
    }

    /// A world whose first probes are not sent yet.
    pub fn unprobed(settings: Settings, policy: Policy) -> Self {
        let now = Instant(50_000_000);
        let ports = settings.ports.clone();
        let engine = Engine::new(settings, now).expect("settings of the harness");
        let mut world = Self {
            engine,
            ports,
            now,
            out: Out::new(),
            around: |call| call(),
            snapshot: Snapshot { generation: 1, policies: vec![policy] },
            adopters: vec![Some(Reason::Ready); 32],
            told: vec![ListenerReport::default(); 32],
            loads: vec![None; 32],
            namespaces: vec![NAMESPACE; 32],
            forgets: false,
            keys: vec![key(); 32],
            more_keys: Vec::new(),
            listeners: vec![Listener::Listens; 32],
            last_probe: None,
            asked: Vec::new(),
            strict: true,
            careful: true,
            looks: true,
            verdict: Verdict::Absorbed,
            log: None,
        };
        let route = |prefix: &str, prefix_len, via: Option<IpAddr>| Route {
            prefix: prefix.parse().expect("an address"),
            prefix_len,
            via: via.map_or(Via::Link, Via::Router),
        };
        world.engine.set_routes(&[
            route("10.0.0.0", 16, None),
            route("0.0.0.0", 0, Some(router(false))),
            route("fd00::", 64, None),
            route("::", 0, Some(router(true))),
        ]);
        world.engine.set_keys(&[(EPOCH, key())]);
        world.apply();
        world
    }

    /// Applies the snapshot and tells the neighbours' addresses.
    pub fn apply(&mut self) {
        self.engine.apply(self.now, &self.snapshot).expect("snapshot of the test");
        self.neighbours();
        self.engine.check_invariants();
    }

    /// Tells the neighbours' addresses.
    pub fn neighbours(&mut self) {
        for v6 in [false, true] {
            for index in 0..32 {
                self.engine.set_neighbour(pod(v6, index).ip(), Some(pod_mac(index)));
            }
        }
    }

    /// Applies a changed policy as the next generation.
    pub fn change(&mut self, change: impl FnOnce(&mut Snapshot)) {
        change(&mut self.snapshot);
        self.snapshot.generation += 1;
        self.apply();
    }

    pub fn count(&self, counter: Counter) -> u64 {
        self.engine.counter(counter)
    }

    /// The flow of a client to any frontend that fits.
    pub fn flow(&self, client: SocketAddr, fits: impl Fn(&Endpoint) -> bool) -> Option<FlowView> {
        let (flows, _) = self.engine.flows(self.now, 0, usize::MAX);
        let mut its = flows.into_iter().filter(|f| f.client == client);
        its.find(|f| fits(&f.frontend))
    }

    /// How often flows were pinned, for whatever reason.
    pub fn pins(&self) -> u64 {
        PinReason::all().map(|p| self.engine.pinned(p)).sum()
    }

    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.engine.dropped(reason)
    }

    /// How often the row of `state` and `event` was taken.
    pub fn taken(&self, state: &str, event: &str) -> u64 {
        self.engine
            .transitions()
            .find(|(s, e, _)| (*s, *e) == (state, event))
            .unwrap_or_else(|| panic!("{state} + {event} is not in the table"))
            .2
    }

    pub fn table(&self, name: &str) -> (u64, u64) {
        self.engine.tables()[name]
    }

    /// The engine's calls for a frame, as a worker makes them, and nothing else.
    pub fn call_frame(&mut self, buffer: &mut [u8], len: usize) {
        let (engine, out, verdict) = (&mut self.engine, &mut self.out, &mut self.verdict);
        (self.around)(&mut || {
            if self.looks {
                engine.look_at(&buffer[..len]);
                engine.look_ahead();
            }
            *verdict = engine.frame(self.now, buffer, len, out);
        });
    }

    /// The engine's calls for what is due and when the next is, and nothing else.
    pub fn call_poll(&mut self) {
        let (engine, out) = (&mut self.engine, &mut self.out);
        (self.around)(&mut || {
            engine.poll(self.now, out);
            std::hint::black_box(engine.next_deadline());
        });
    }

    /// Gives a frame to the engine; what leaves because of it, the engine's own frames first. What
    /// pods are asked they answer.
    pub fn inject(&mut self, frame: &[u8]) -> Vec<Sent> {
        let mut buffer = frame.to_vec();
        let len = buffer.len();
        buffer.resize(FRAME_BYTES.max(len), 0x5a);
        self.call_frame(&mut buffer, len);
        let own = self.out.take();
        let mut passed = None;
        if let Verdict::Transmit(bytes) = self.verdict {
            // The header of the other IP family may be the longer one.
            assert!(bytes <= len + 20, "{bytes} bytes of a frame of {len} leave");
            buffer.truncate(bytes);
            // ICMP errors are looked at elsewhere.
            let is_tcp = matches!(decode(&buffer), Ok(Decoded::Tcp(_)));
            passed = is_tcp.then(|| self.check(&buffer));
            if let Some(log) = &mut self.log {
                log.push((buffer, true));
            }
        }
        if self.careful {
            self.engine.check_invariants();
        }
        let mut sent = self.answered(&own);
        sent.extend(passed);
        sent
    }

    /// Lets the engine do what is due now. What pods are asked they answer.
    pub fn poll(&mut self) -> Vec<Sent> {
        self.call_poll();
        if self.strict && self.careful {
            self.engine.check_invariants();
        }
        let own = self.out.take();
        self.answered(&own)
    }

    /// Answers the probes, liveness probes and Forgets among the engine's own frames; the others.
    fn answered(&mut self, own: &[Vec<u8>]) -> Vec<Sent> {
        let verdict = self.verdict;
        let own: Vec<Sent> = own.iter().map(|f| self.check(f)).collect();
        if let Some(log) = &mut self.log {
            log.extend(own.iter().map(|sent| (sent.frame.clone(), false)));
        }
        let mut left = Vec::new();
        for sent in own {
            left.extend(if sent.to == Dest::Client {
                vec![sent]
            } else if sent.is_question() {
                self.kernel_answers(&sent)
            } else if sent.is_probe() {
                self.probed(&sent)
            } else if self.forgets && sent.is_forget() {
                self.inject(&answer(&sent, Reason::Forgotten, 0))
            } else {
                vec![sent]
            });
        }
        self.verdict = verdict;
        left
    }

    /// Lets time pass, polling at every deadline; what left in that time, but for probes and
    /// questions.
    pub fn run_us(&mut self, us: u64) -> Vec<Sent> {
        let end = Instant(self.now.0 + us);
        let (mut sent, mut at_once) = (Vec::new(), 0);
        while let Some(at) = self.engine.next_deadline().filter(|at| *at <= end) {
            at_once = if at > self.now { 0 } else { at_once + 1 };
            assert!(at_once < POLLS_AT_ONCE_MAX, "time stands still: {at:?}");
            self.now = self.now.max(at);
            sent.extend(self.poll());
        }
        self.now = end;
        sent.extend(self.poll());
        self.engine.check_invariants();
        sent
    }

    pub fn run_ms(&mut self, ms: u64) -> Vec<Sent> {
        self.run_us(ms * 1_000)
    }

    /// Decodes a frame that left and checks its checksums and addresses.
    pub fn check(&self, frame: &[u8]) -> Sent {
        let segment = wire::tcp(frame);
        wire::assert_checksums(frame, &segment);
        assert_eq!(usize::from(segment.end), frame.len(), "bytes behind the packet");
        let index = |at: IpAddr| (0..32).find(|i| pod(segment.is_v6(), *i).ip() == at);
        let to = match index(segment.dst) {
            Some(index) => Dest::Pod(index),
            None => Dest::Client,
        };
        if self.strict {
            assert_eq!(baton_packet::ether_src(frame), OUR_MAC);
            let mac = match to {
                Dest::Pod(index) => pod_mac(index),
                Dest::Client => ROUTER_MAC,
            };
            assert_eq!(baton_packet::ether_dst(frame), mac, "{segment:?}");
            match to {
                Dest::Pod(_) => {
                    assert_eq!(segment.src, ours(segment.is_v6()));
                    assert!(self.ports.contains(&segment.src_port));
                    assert_eq!(segment.dst_port, POD_PORT);
                }
                Dest::Client => {
                    assert!(!self.ports.contains(&segment.src_port));
                }
            }
        }
        let key = match to {
            Dest::Pod(index) => self.keys[index].clone(),
            Dest::Client => key(),
        };
        let signed = parse_adoption(frame, &segment).and_then(|message| {
            let mut more = self.more_keys.iter();
            more.find(|key| message.verify(key).is_some()).cloned()
        });
        Sent { frame: frame.to_vec(), segment, key: signed.unwrap_or(key), to }
    }
}

/// The adopter's answer to a message.
pub fn answer(message: &Sent, reason: Reason, server_ts: u32) -> Vec<u8> {
    answer_from(NAMESPACE, message, reason, server_ts)
}

/// That of a pod in another namespace.
pub fn answer_from(namespace: u64, message: &Sent, reason: Reason, server_ts: u32) -> Vec<u8> {
    let epoch = message.message().map_or(EPOCH, |m| m.epoch);
    let content =
        Adoption { server_ts, namespace, ..Adoption::bare(MessageKind::Answer(reason), epoch) };
    answer_of(message, &content, &message.key)
}

/// The answer to a probe of an adopter that tells of its pod's load.
pub fn answer_loaded(
    namespace: u64,
    probe: &Sent,
    (reason, told): (Reason, u32),
    load: Option<LoadReport>,
) -> Vec<u8> {
    let epoch = probe.message().map_or(EPOCH, |m| m.epoch);
    let content = Adoption {
        server_ts: told,
        namespace,
        ..Adoption::bare(MessageKind::Answer(reason), epoch)
    };
    let stamps = load.map_or(Some((0, 0)), |load| Some(load.fields()));
    stamped_answer(probe, &content, stamps, &probe.key)
}

pub fn answer_with(
    message: &Sent,
    reason: Reason,
    server_ts: u32,
    epoch: u8,
    key: &AdoptionKey,
) -> Vec<u8> {
    let content = Adoption {
        server_ts,
        namespace: NAMESPACE,
        ..Adoption::bare(MessageKind::Answer(reason), epoch)
    };
    answer_of(message, &content, key)
}

fn answer_of(message: &Sent, content: &Adoption, key: &AdoptionKey) -> Vec<u8> {
    stamped_answer(message, content, message.stamps(), key)
}

fn stamped_answer(
    message: &Sent,
    content: &Adoption,
    timestamps: Option<(u32, u32)>,
    key: &AdoptionKey,
) -> Vec<u8> {
    let m = &message.segment;
    // As it left, whatever a test has made of its numbers.
    let left = Sent { segment: wire::tcp(&message.frame), ..message.clone() };
    let in_front = left.message().map_or(0, |m| m.kind.in_front());
    let spec = SegmentSpec {
        src_mac: baton_packet::ether_dst(&message.frame),
        dst_mac: OUR_MAC,
        src: m.dst,
        dst: m.src,
        src_port: m.dst_port,
        dst_port: m.src_port,
        seq: m.ack,
        ack: m.seq.add(in_front.max(u32::from(m.flags.has(Flags::SYN)))),
        flags: Flags::RST | Flags::ACK,
        window: 0,
        timestamps,
        payload: &[],
    };
    let mut buffer = [0; 128];
    let len = build_adoption(&mut buffer, &spec, content, key).expect("room for an answer");
    buffer[..len].to_vec()
}
