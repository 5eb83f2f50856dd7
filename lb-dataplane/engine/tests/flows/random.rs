//! Arbitrary input: valid segments in any order, mutated ones, random bytes, any passing of time.
//!
//! Whatever comes: no panic, all tables account for everything (checked after every single input by the
//! harness), and what leaves decodes with right checksums.

use crate::common::{Conn, Sent, World, answer, conn::*, policy, settings};
use baton_api::{BackendFailure, Micros, Protocol};
use baton_packet::{Flags, Reason};
use proptest::prelude::*;

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
    /// Changes of the snapshot: how many pods.
    Apply(usize),
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
        1 => proptest::collection::vec(any::<u8>(), 0..64),
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
        4 => (0..FLOWS).prop_map(Op::Handshake),
        6 => (0..FLOWS).prop_map(Op::Exchange),
        1 => (0..4usize).prop_map(Op::Apply),
        1 => any::<bool>().prop_map(Op::Frames),
    ]
}

struct Chaos {
    w: World,
    conns: Vec<Conn>,
    /// Earlier pods and legs of each flow.
    older: Vec<Vec<(usize, std::net::SocketAddr)>>,
    adoptions: Vec<Vec<Sent>>,
}

impl Chaos {
    fn new(protocol: Protocol, failure: BackendFailure) -> Self {
        let mut s = settings();
        s.limits.flows = 16;
        s.limits.closing_legs = 16;
        s.limits.kept_segments = 6;
        s.limits.backends = 10;
        s.ports = 40_000..=40_063;
        let mut p = policy(3);
        p.protocol = protocol;
        p.on_backend_failure = failure;
        p.timeouts.idle = Micros::from_secs(10);
        p.timeouts.handshake = Micros::from_secs(3);
        p.timeouts.half_closed = Micros::from_secs(8);
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

    /// Gives a frame in and learns from what leaves where the flow is now.
    fn give(&mut self, f: usize, frame: &[u8]) {
        let sent = self.w.inject(frame);
        self.learn(f, sent);
    }

    fn learn(&mut self, f: usize, sent: Vec<Sent>) {
        for s in sent {
            if let crate::common::Dest::Pod(_) = s.to {
                let c = &mut self.conns[f];
                if c.v6() == s.segment.is_v6() && !s.segment.flags.has(Flags::RST) {
                    self.older[f].push((c.pod, c.leg));
                    take_leg(c, &s);
                }
                if s.message().is_some() {
                    self.adoptions[f].push(s);
                }
            }
        }
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Client(f, flags, seq, ack, data) => {
                if let Some(frame) = self.frame(op) {
                    self.give(*f, &frame);
                    if *seq == 0 && *ack == 0 {
                        let fin = u32::from(Flags(*flags).has(Flags::FIN));
                        let c = &mut self.conns[*f];
                        c.seq = c.seq.wrapping_add(data.len() as u32 + fin);
                    }
                }
            }
            Op::Pod(f, flags, seq, ack, data, old) => {
                if let Some(frame) = self.frame(op) {
                    self.give(*f, &frame);
                    if *seq == 0 && *ack == 0 && !*old {
                        let fin = u32::from(Flags(*flags).has(Flags::FIN));
                        let c = &mut self.conns[*f];
                        c.server = c.server.wrapping_add(data.len() as u32 + fin);
                    }
                }
            }
            Op::Answer(f, _) => {
                if let Some(frame) = self.frame(op) {
                    self.give(*f, &frame);
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
                    self.w.inject(&frame);
                }
            }
            Op::Bytes(bytes) => {
                self.w.inject(bytes);
            }
            Op::Wait(ms) => {
                self.w.run_ms(*ms);
            }
            Op::Handshake(f) => {
                let frame = self.w.syn_wire(&self.conns[*f]).build();
                self.give(*f, &frame);
                let frame = self.w.synack_wire(&self.conns[*f]).build();
                self.give(*f, &frame);
                let c = &mut self.conns[*f];
                c.seq = c.seq.wrapping_add(1);
                c.server = c.server.wrapping_add(1);
                self.run(&Op::Client(*f, Flags::ACK.0, 0, 0, Vec::new()));
            }
            Op::Exchange(f) => {
                self.run(&Op::Client(*f, PSH_ACK.0, 0, 0, GET.to_vec()));
                self.run(&Op::Pod(*f, PSH_ACK.0, 0, 0, OK.to_vec(), false));
                self.run(&Op::Client(*f, Flags::ACK.0, 0, 0, Vec::new()));
            }
            Op::Apply(pods) => {
                let mut changed = policy(*pods);
                let now = &self.w.snapshot.policies[0];
                changed.protocol = now.protocol;
                changed.on_backend_failure = now.on_backend_failure;
                changed.timeouts = now.timeouts;
                let before = self.w.snapshot.clone();
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

fn protocols() -> impl Strategy<Value = Protocol> {
    prop_oneof![
        Just(Protocol::Http1),
        Just(Protocol::RequestResponse),
        Just(Protocol::None)
    ]
}

fn failures() -> impl Strategy<Value = BackendFailure> {
    prop_oneof![
        Just(BackendFailure::ReplayIdempotent),
        Just(BackendFailure::Replay),
        Just(BackendFailure::Reset)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_input_keeps_the_books_straight(
        protocol in protocols(),
        failure in failures(),
        ops in proptest::collection::vec(op(), 1..120),
    ) {
        let mut chaos = Chaos::new(protocol, failure);
        for op in &ops {
            chaos.run(op);
        }
        // In the end everything is forgotten.
        chaos.w.out.free = usize::MAX;
        chaos.w.run_ms(90_000);
        prop_assert_eq!(chaos.w.table("flows").0, 0);
        prop_assert_eq!(chaos.w.table("closing_legs").0, 0);
        prop_assert_eq!(chaos.w.table("kept_segments").0, 0);
    }
}
