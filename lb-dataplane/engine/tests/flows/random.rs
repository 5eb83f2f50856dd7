//! Arbitrary input: valid segments in any order, mutated ones, random bytes, any passing of time.
//!
//! Whatever comes: no panic, all tables account for everything (checked after every single input by the
//! harness), and what leaves decodes with right checksums.

use crate::common::{
    Conn, Dest, End, Listener, Sent, World, answer, conn::*, endpoint, pod, policy, settings,
};
use baton_api::{
    Affinity, BackendFailure, ClientIp, Drain, Micros, MigrationMode, OnDeadline, Policy, Protocol,
};
use baton_engine::Counter;
use baton_packet::{Flags, Reason};
use proptest::prelude::*;
use std::net::SocketAddr;

#[derive(Clone, Debug)]
enum Op {
    /// A segment of a client's: flow, flags, offsets of its numbers, payload.
    Client(usize, u8, i32, i32, Vec<u8>),
    /// A segment of a pod's, on the leg that the harness saw last for the flow, or on an older one.
    Pod(usize, u8, i32, i32, Vec<u8>, bool),
    /// An adopter's answer to the last adoption or to an older one.
    Answer(usize, u8),
    /// One of the above with some bytes changed, its checksum mended or not.
    Mutated(Box<Op>, Vec<(usize, u8)>),
    Bytes(Vec<u8>),
    /// Milliseconds.
    Wait(u64),
    /// What a well-behaved pair would do next, so that deep states are reached.
    Handshake(usize),
    Exchange(usize),
    /// Its request alone.
    Request(usize),
    /// What the adopter says to the last adoption of the flow, if it is an answer that is often given.
    Refusal(usize),
    /// A RESP command and its reply, with which sessions begin.
    Session(usize, bool),
    /// The new owner answers what came with an adoption: keepalive, request or, from this many bytes before, prelude.
    Confirm(usize, u32),
    /// Changes of the snapshot: how many pods, and which of them drains.
    Apply(usize, Option<usize>),
    /// The process of a pod ends all connections that the harness knows there; the kernel then says this.
    Dies(usize, End, Listener),
    /// What a pod's kernel and adopter say from now on.
    Kernel(usize, Listener, u8),
    /// By command.
    Drain(usize, bool),
    Health(usize, Option<bool>),
    Frames(bool),
}

fn numbers() -> impl Strategy<Value = i32> {
    prop_oneof![12 => Just(0), 2 => -3..4, 1 => -100..100, 1 => any::<i32>()]
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => Just(Vec::new()),
        3 => Just(GET.to_vec()),
        1 => Just(POST.to_vec()),
        2 => Just(OK.to_vec()),
        1 => Just(b"HTTP/1.1 101 Switching\r\n\r\n".to_vec()),
        1 => Just(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 4\r\n\r\nhalf".to_vec()),
        1 => Just(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf".to_vec()),
        1 => Just(b"*1\r\n$4\r\nPING\r\n".to_vec()),
        1 => Just(b"+OK\r\n".to_vec()),
        1 => Just(b"+OK\r\n+OK\r\n".to_vec()),
        1 => Just(b"-ERR\r\n".to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..64),
    ]
}

fn listeners() -> impl Strategy<Value = Listener> {
    prop_oneof![
        Just(Listener::Listens),
        Just(Listener::Refuses),
        Just(Listener::Silent)
    ]
}

fn flags() -> impl Strategy<Value = u8> {
    prop_oneof![
        8 => Just(Flags::ACK.0),
        8 => Just(PSH_ACK.0),
        2 => Just(FIN_ACK.0),
        2 => Just(Flags::SYN.0),
        2 => Just((Flags::SYN | Flags::ACK).0),
        1 => Just(Flags::RST.0),
        1 => Just(RST_ACK.0),
        1 => any::<u8>(),
    ]
}

const FLOWS: usize = 6;
const PODS: usize = 3;

fn op() -> impl Strategy<Value = Op> {
    let client = (0..FLOWS, flags(), numbers(), numbers(), payload())
        .prop_map(|(f, g, s, a, d)| Op::Client(f, g, s, a, d));
    let pod = (
        0..FLOWS,
        flags(),
        numbers(),
        numbers(),
        payload(),
        any::<bool>(),
    )
        .prop_map(|(f, g, s, a, d, old)| Op::Pod(f, g, s, a, d, old));
    let answered = (0..FLOWS, 1..9u8).prop_map(|(f, r)| Op::Answer(f, r));
    let valid = prop_oneof![4 => client, 5 => pod, 2 => answered].boxed();
    let mutated = (
        valid.clone(),
        proptest::collection::vec((0..120usize, any::<u8>()), 1..4),
    )
        .prop_map(|(op, bytes)| Op::Mutated(Box::new(op), bytes));
    prop_oneof![
        10 => valid,
        2 => mutated,
        1 => proptest::collection::vec(any::<u8>(), 0..120).prop_map(Op::Bytes),
        2 => prop_oneof![0..3u64, 0..60u64, 0..3_000u64, 0..15_000u64].prop_map(Op::Wait),
        8 => (0..FLOWS).prop_map(Op::Handshake),
        10 => (0..FLOWS).prop_map(Op::Exchange),
        8 => (0..FLOWS).prop_map(Op::Request),
        2 => (0..FLOWS).prop_map(Op::Refusal),
        3 => (0..FLOWS, any::<bool>()).prop_map(|(f, auth)| Op::Session(f, auth)),
        5 => (0..FLOWS, prop_oneof![3 => Just(0u32), 1 => Just(5), 1 => Just(10)])
            .prop_map(|(f, before)| Op::Confirm(f, before)),
        1 => (0..4usize, proptest::option::of(0..3usize)).prop_map(|(n, d)| Op::Apply(n, d)),
        3 => (0..PODS, prop_oneof![Just(End::Fin), Just(End::Rst)], listeners())
            .prop_map(|(i, how, l)| Op::Dies(i, how, l)),
        2 => (0..PODS, listeners(), 0..9u8).prop_map(|(i, l, r)| Op::Kernel(i, l, r)),
        1 => (0..PODS, any::<bool>()).prop_map(|(i, on)| Op::Drain(i, on)),
        1 => (0..PODS, any::<Option<bool>>()).prop_map(|(i, ok)| Op::Health(i, ok)),
        1 => any::<bool>().prop_map(Op::Frames),
    ]
}

/// A policy that random input meets.
fn policies() -> impl Strategy<Value = Policy> {
    let protocols = prop_oneof![
        3 => Just(Protocol::Http1),
        3 => Just(Protocol::Resp),
        1 => Just(Protocol::Memcached),
        2 => Just(Protocol::RequestResponse),
        1 => Just(Protocol::None),
    ];
    let failures = prop_oneof![
        2 => Just(BackendFailure::ReplayIdempotent),
        2 => Just(BackendFailure::Replay),
        1 => Just(BackendFailure::AdoptIdleOnly),
        1 => Just(BackendFailure::Reset),
    ];
    let modes = prop_oneof![
        Just(MigrationMode::Always),
        Just(MigrationMode::Never),
        Just(MigrationMode::DrainOnly),
        Just(MigrationMode::WhenBetter)
    ];
    let drains = (0..2_000u64, 0..4_000u64, any::<bool>());
    let limit = proptest::option::of(20..1_000u64);
    let failures_max = 0..4u32;
    let moves = (0..3u32, 0..3u32, any::<bool>());
    (
        protocols,
        failures,
        modes,
        drains,
        limit,
        failures_max,
        moves,
    )
        .prop_map(
            |(protocol, failure, mode, (quiet, deadline, close), limit, failures, moves)| {
                let mut p = policy(3);
                p.protocol = protocol;
                p.on_backend_failure = failure;
                p.migration.mode = mode;
                let (per_flow, per_backend, affinity) = moves;
                // One of a few in a row of moves is enough to meet the limit.
                p.migration.per_flow = per_flow * 2;
                p.migration.per_backend_per_second = per_backend * 2;
                let affinity = affinity && mode != MigrationMode::Always;
                p.affinity = affinity.then_some(Affinity {
                    client_ip: ClientIp {
                        timeout: Micros::from_secs(1),
                    },
                });
                p.response_timeout = limit.map(Micros::from_millis);
                p.health.failures = failures;
                p.drain = Drain {
                    quiet: Micros::from_millis(quiet),
                    deadline: Micros::from_millis(deadline),
                    on_deadline: if close {
                        OnDeadline::Close
                    } else {
                        OnDeadline::Wait
                    },
                };
                p.timeouts.idle = Micros::from_secs(10);
                p.timeouts.handshake = Micros::from_secs(3);
                p.timeouts.half_closed = Micros::from_secs(8);
                p
            },
        )
}

struct Chaos {
    w: World,
    conns: Vec<Conn>,
    /// Earlier pods and legs of each flow.
    older: Vec<Vec<(usize, std::net::SocketAddr)>>,
    adoptions: Vec<Vec<Sent>>,
}

impl Chaos {
    fn new(p: Policy) -> Self {
        let mut s = settings();
        s.limits.flows = 16;
        s.limits.closing_legs = 16;
        s.limits.kept_segments = 6;
        s.limits.backends = 10;
        s.limits.guarded_flows = 16;
        // Fewer than families, so that clients are forgotten.
        s.limits.affinities = 1;
        s.ports = 40_000..=40_063;
        let mut w = World::with(s, p);
        w.strict = false;
        let conns = (0..FLOWS)
            .map(|n| {
                let mut c = Conn::of(n as u16, n % 3 == 2);
                c.pod = 0;
                c
            })
            .collect();
        Self {
            w,
            conns,
            older: vec![Vec::new(); FLOWS],
            adoptions: vec![Vec::new(); FLOWS],
        }
    }

    /// The frame of a valid operation.
    fn frame(&self, op: &Op) -> Option<Vec<u8>> {
        match op {
            Op::Client(f, flags, seq, ack, data) => {
                let c = &self.conns[*f];
                let mut wire = self.w.client_wire(c, Flags(*flags), data);
                if Flags(*flags).has(Flags::SYN) {
                    wire.options = self.w.syn_wire(c).options;
                }
                wire.seq = wire.seq.wrapping_add_signed(*seq);
                wire.ack = wire.ack.wrapping_add_signed(*ack);
                Some(wire.build())
            }
            Op::Pod(f, flags, seq, ack, data, old) => {
                let mut c = self.conns[*f].clone();
                if *old {
                    (c.pod, c.leg) = *self.older[*f].last()?;
                }
                let mut wire = self.w.pod_wire(&c, Flags(*flags), data);
                if Flags(*flags).has(Flags::SYN) {
                    wire = self.w.synack_wire(&c);
                }
                wire.seq = wire.seq.wrapping_add_signed(*seq);
                wire.ack = wire.ack.wrapping_add_signed(*ack);
                Some(wire.build())
            }
            Op::Answer(f, reason) => {
                let adoption = self.adoptions[*f].last()?;
                let reason = Reason::from_code(u16::from(*reason)).unwrap_or(Reason::NoListener);
                Some(answer(adoption, reason, 77))
            }
            _ => None,
        }
    }

    /// Gives a frame in and learns from what leaves where the flows are now.
    fn give(&mut self, frame: &[u8]) {
        let sent = self.w.inject(frame);
        self.learn(sent);
    }

    fn learn(&mut self, sent: Vec<Sent>) {
        let (views, _) = self.w.engine.flows(self.w.now, 0, usize::MAX);
        for (f, c) in self.conns.iter_mut().enumerate() {
            let view = views
                .iter()
                .find(|v| v.client == c.client && v.frontend == endpoint(c.frontend));
            let Some(view) = view.filter(|v| v.port != 0) else {
                continue;
            };
            let name = view
                .backend
                .trim_start_matches("pod-")
                .trim_end_matches("-v6");
            let Ok(index) = name.parse::<usize>() else {
                continue;
            };
            let leg = SocketAddr::new(crate::common::ours(c.v6()), view.port);
            if (c.pod, c.leg) != (index, leg) {
                self.older[f].push((c.pod, c.leg));
                (c.pod, c.leg) = (index, leg);
            }
        }
        for s in sent {
            let Dest::Pod(index) = s.to else { continue };
            let leg = SocketAddr::new(s.segment.src, s.segment.src_port);
            let owner = self
                .conns
                .iter()
                .position(|c| (c.pod, c.leg) == (index, leg));
            if let Some(f) = owner
                && s.is_adoption()
            {
                self.adoptions[f].push(s);
            }
        }
    }

    /// A request and its response in the policy's protocol.
    fn talk(&self) -> (&'static [u8], &'static [u8]) {
        match self.w.snapshot.policies[0].protocol {
            Protocol::Resp => (b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n"),
            Protocol::Memcached => (b"get a\r\n", b"END\r\n"),
            _ => (GET, OK),
        }
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Client(f, flags, seq, ack, data) => {
                if let Some(frame) = self.frame(op) {
                    self.give(&frame);
                    if *seq == 0 && *ack == 0 {
                        let fin = u32::from(Flags(*flags).has(Flags::FIN));
                        let c = &mut self.conns[*f];
                        c.seq = c.seq.wrapping_add(data.len() as u32 + fin);
                    }
                }
            }
            Op::Pod(f, flags, seq, ack, data, old) => {
                if let Some(frame) = self.frame(op) {
                    self.give(&frame);
                    if *seq == 0 && *ack == 0 && !*old {
                        let fin = u32::from(Flags(*flags).has(Flags::FIN));
                        let c = &mut self.conns[*f];
                        c.server = c.server.wrapping_add(data.len() as u32 + fin);
                    }
                }
            }
            Op::Answer(..) => {
                if let Some(frame) = self.frame(op) {
                    self.give(&frame);
                }
            }
            Op::Mutated(op, changes) => {
                if let Some(mut frame) = self.frame(op) {
                    for (at, byte) in changes {
                        if let Some(b) = frame.get_mut(*at) {
                            *b = *byte;
                        }
                    }
                    mend(&mut frame);
                    self.give(&frame);
                }
            }
            Op::Bytes(bytes) => self.give(bytes),
            Op::Wait(ms) => {
                let sent = self.w.run_ms(*ms);
                self.learn(sent);
            }
            Op::Handshake(f) => {
                if self.w.state(&self.conns[*f]).is_some() {
                    // It is there: it goes on with its conversation.
                    return self.run(&Op::Exchange(*f));
                }
                let frame = self.w.syn_wire(&self.conns[*f]).build();
                self.give(&frame);
                let frame = self.w.synack_wire(&self.conns[*f]).build();
                self.give(&frame);
                let c = &mut self.conns[*f];
                c.seq = c.seq.wrapping_add(1);
                c.server = c.server.wrapping_add(1);
                self.run(&Op::Client(*f, Flags::ACK.0, 0, 0, Vec::new()));
            }
            Op::Exchange(f) => {
                self.run(&Op::Request(*f));
                let reply = self.talk().1.to_vec();
                self.run(&Op::Pod(*f, PSH_ACK.0, 0, 0, reply, false));
                self.run(&Op::Client(*f, Flags::ACK.0, 0, 0, Vec::new()));
            }
            Op::Request(f) => {
                let request = self.talk().0.to_vec();
                self.run(&Op::Client(*f, PSH_ACK.0, 0, 0, request));
            }
            Op::Refusal(f) => {
                if let Some(adoption) = self.adoptions[*f].last() {
                    let frame = answer(adoption, Reason::AcceptQueueFull, 0);
                    self.give(&frame);
                }
            }
            Op::Session(f, auth) => {
                let command: &[u8] = if *auth {
                    b"*2\r\n$4\r\nAUTH\r\n$2\r\npw\r\n"
                } else {
                    b"*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n"
                };
                self.run(&Op::Client(*f, PSH_ACK.0, 0, 0, command.to_vec()));
                self.run(&Op::Pod(*f, PSH_ACK.0, 0, 0, b"+OK\r\n".to_vec(), false));
                self.run(&Op::Client(*f, Flags::ACK.0, 0, 0, Vec::new()));
            }
            Op::Confirm(f, before) => {
                let c = &self.conns[*f];
                if c.pod == usize::MAX {
                    return;
                }
                let mut wire = self.w.pod_wire(c, Flags::ACK, &[]);
                wire.seq = wire.seq.wrapping_sub(*before);
                wire.data = b"+OK\r\n".repeat(*before as usize / 5);
                self.give(&wire.build());
            }
            Op::Dies(index, how, listener) => {
                let flows: Vec<Conn> = self
                    .conns
                    .iter()
                    .filter(|c| c.pod == *index)
                    .cloned()
                    .collect();
                for c in flows {
                    let frame = self.w.pod_wire(&c, how.flags(), &[]).build();
                    self.give(&frame);
                }
                self.w.listeners[*index] = *listener;
                self.w.adopters[*index] = match listener {
                    Listener::Listens => Some(Reason::Ready),
                    Listener::Refuses => Some(Reason::NoListener),
                    Listener::Silent => None,
                };
            }
            Op::Kernel(index, listener, reason) => {
                self.w.listeners[*index] = *listener;
                self.w.adopters[*index] = Reason::from_code(u16::from(*reason));
            }
            Op::Drain(index, on) => {
                let name = format!("pod-{index}");
                self.w.engine.drain(self.w.now, None, &name, *on);
            }
            Op::Health(index, healthy) => {
                let at = endpoint(pod(false, *index));
                self.w.engine.set_health(self.w.now, "web", at, *healthy);
            }
            Op::Apply(pods, drained) => {
                let before = self.w.snapshot.clone();
                let now = &before.policies[0];
                let mut changed = now.clone();
                changed.backends = policy(*pods).backends;
                for b in &mut changed.backends {
                    b.draining = drained.is_some_and(|d| b.name == format!("pod-{d}"));
                }
                self.w.snapshot.policies[0] = changed;
                self.w.snapshot.generation += 1;
                // Pods that still close may leave no room.
                match self.w.engine.apply(self.w.now, &self.w.snapshot) {
                    Ok(()) => self.w.apply(),
                    Err(_) => self.w.snapshot = before,
                }
            }
            Op::Frames(free) => self.w.out.free = if *free { usize::MAX } else { 0 },
        }
    }
}

/// Makes the checksums of a mutated frame right where it decodes, so that the mutation is looked at.
fn mend(frame: &mut [u8]) {
    use crate::common::wire::{checksum, pseudo};
    if frame.len() > 34 && frame[12..14] == [8, 0] && frame[14] == 0x45 {
        frame[24..26].fill(0);
        let sum = checksum(&[&frame[14..34]]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    if let Ok(baton_packet::Decoded::Tcp(segment)) = baton_packet::decode(frame) {
        let (at, end) = (usize::from(segment.l4), usize::from(segment.end));
        frame[at + 16..at + 18].fill(0);
        let sum = checksum(&[
            &pseudo(segment.src, segment.dst, 6, end - at),
            &frame[at..end],
        ]);
        frame[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
    }
}

proptest! {
    // 256 cases, or PROPTEST_CASES.
    #![proptest_config(ProptestConfig::default())]

    #[test]
    fn any_input_keeps_the_books_straight(
        policy in policies(),
        ops in proptest::collection::vec(op(), 1..120),
    ) {
        let mut chaos = Chaos::new(policy);
        for op in &ops {
            chaos.run(op);
        }
        prop_assert_eq!(chaos.w.count(Counter::UnexpectedEvents), 0);
        // In the end everything is forgotten.
        chaos.w.out.free = usize::MAX;
        chaos.w.run_ms(90_000);
        prop_assert_eq!(chaos.w.table("flows").0, 0);
        prop_assert_eq!(chaos.w.table("closing_legs").0, 0);
        prop_assert_eq!(chaos.w.table("kept_segments").0, 0);
        prop_assert_eq!(chaos.w.table("guarded_flows").0, 0);
        prop_assert_eq!(chaos.w.table("affinities").0, 0);
    }
}
