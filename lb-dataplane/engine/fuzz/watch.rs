//! An engine that is watched at each step: what goes in, what comes out, and what it takes for it.
//!
//! Asserts, whatever the input is: no allocation in `frame` and `poll`, frames within their buffers, right checksums on all that leaves,
//! forwarding only between frontends and clients or legs and backends, tables that agree with each other, timers that get on.
//! Knows nothing of what the input shall do.

use crate::{
    allocations::taking_nothing,
    common::{Dest, FRAME_BYTES, Listener, OUR_MAC, Sent, World, answer_with, ours, settings},
};
use baton_api::Policy;
use baton_engine::{Counter, Engine, Instant, Settings, Verdict};
use baton_packet::{
    Adoption, AdoptionKey, Decoded, Flags, MessageKind, Reason, decode, parse_adoption,
};
use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash},
    net::IpAddr,
};

/// Calls of `poll` at one instant: each handles up to 256 timers, and there are fewer here.
const POLLS_AT_ONCE_MAX: u32 = 16;

/// Keys with their epochs; the first is in force at the start, the last has the first one's epoch on the wire.
pub fn keys() -> [(u8, AdoptionKey); 3] {
    [(3, 7), (4, 8), (19, 9)].map(|(epoch, byte)| (epoch, AdoptionKey::from_bytes([byte; 16])))
}

/// The world of the engine's tests, around an engine that is watched.
pub struct Watched {
    pub w: World,
    frontends: BTreeSet<(IpAddr, u16)>,
    backends: BTreeSet<(IpAddr, u16)>,
    /// What left of late, to be given in again.
    pub left: Vec<Vec<u8>>,
    /// Whether probes and questions are answered.
    pub answers: bool,
    /// Of all that left, in its order.
    pub digest: DefaultHasher,
}

impl Watched {
    pub fn new(settings: Settings, policy: Policy) -> Self {
        let mut w = World::unprobed(settings, policy);
        w.strict = false;
        w.around = |call| taking_nothing(call);
        let mut watched = Self {
            w,
            frontends: BTreeSet::new(),
            backends: BTreeSet::new(),
            left: Vec::new(),
            answers: true,
            digest: DefaultHasher::new(),
        };
        watched.snapshot_changed();
        watched.poll();
        watched
    }

    /// Small tables, so that they run full.
    pub fn settings(sizes: u8) -> Settings {
        let mut s = settings();
        s.limits.flows = 16;
        s.limits.closing_legs = 16;
        s.limits.backends = 10;
        s.limits.kept_segments = [1, 3, 6, 32][usize::from(sizes & 3)];
        s.limits.guarded_flows = [1, 3, 16, 16][usize::from(sizes >> 2 & 3)];
        s.limits.affinities = 2;
        s.ports = 40_000..=40_063;
        s.seed = u64::from(sizes >> 4);
        s
    }

    pub fn engine(&mut self) -> &mut Engine {
        &mut self.w.engine
    }

    /// Frames that the engine may take from now on.
    pub fn set_free(&mut self, frames: usize) {
        self.w.out.free = frames;
    }

    /// Notes who may be spoken to. What was listed may have flows still.
    pub fn snapshot_changed(&mut self) {
        for policy in &self.w.snapshot.policies {
            let ends = |e: &baton_api::Endpoint| match e.address() {
                // Our own one is meant.
                a if a.is_unspecified() => (ours(a.is_ipv6()), e.port()),
                a => (a, e.port()),
            };
            self.frontends.extend(policy.frontends.iter().map(ends));
            let backends = policy.backends.iter().map(|b| ends(&b.endpoint));
            self.backends.extend(backends);
        }
    }

    /// Gives one frame in. What leaves; questions and probes among it are answered.
    pub fn give(&mut self, frame: &[u8]) -> Vec<Sent> {
        let mut buffer = [0x5a; FRAME_BYTES];
        let len = frame.len().min(FRAME_BYTES);
        buffer[..len].copy_from_slice(&frame[..len]);
        self.w.call_frame(&mut buffer, len);
        let verdict = self.w.verdict;
        let mut sent = self.own_frames();
        assert_eq!(self.w.count(Counter::UnexpectedEvents), 0);
        if let Verdict::Transmit(bytes) = verdict {
            assert!(bytes <= len, "{bytes} bytes of a frame of {len} leave");
            buffer[..bytes].hash(&mut self.digest);
            sent.extend(self.forwarded(&buffer[..bytes]));
        }
        self.answered(sent)
    }

    /// Lets the engine do what is due now.
    pub fn poll(&mut self) -> Vec<Sent> {
        let sent = self.polled();
        self.answered(sent)
    }

    fn polled(&mut self) -> Vec<Sent> {
        self.w.call_poll();
        self.own_frames()
    }

    /// Lets time pass, polling at every deadline.
    pub fn wait_us(&mut self, us: u64) -> Vec<Sent> {
        let end = Instant(self.w.now.0 + us);
        let (mut sent, mut at_once) = (Vec::new(), 0);
        while let Some(at) = self.w.engine.next_deadline().filter(|at| *at <= end) {
            at_once = if at > self.w.now { 0 } else { at_once + 1 };
            assert!(at_once < POLLS_AT_ONCE_MAX, "time stands still: {at:?}");
            self.w.now = self.w.now.max(at);
            let polled = self.polled();
            sent.extend(self.answered(polled));
        }
        self.w.now = end;
        sent.extend(self.poll());
        self.check_books();
        sent
    }

    /// Tables, and events that no row foresees.
    pub fn check_books(&self) {
        self.w.engine.check_invariants();
        assert_eq!(self.w.count(Counter::UnexpectedEvents), 0);
    }

    /// What the engine made itself is a right TCP segment and nothing behind it.
    fn own_frames(&mut self) -> Vec<Sent> {
        let frames = self.w.out.take();
        for frame in &frames {
            frame[..].hash(&mut self.digest);
        }
        frames.iter().map(|frame| self.w.check(frame)).collect()
    }

    /// A forwarded frame is right, and goes from where to where the engine may forward; `None` for an ICMP error.
    fn forwarded(&self, frame: &[u8]) -> Option<Sent> {
        assert_eq!(baton_packet::ether_src(frame), OUR_MAC);
        match decode(frame) {
            Ok(Decoded::Tcp(segment)) => {
                let ends = (
                    (segment.src, segment.src_port),
                    (segment.dst, segment.dst_port),
                );
                let leg = |(ip, port): (IpAddr, u16)| {
                    let own = ip == ours(ip.is_ipv6());
                    let source = own || self.w.engine.steering().sources.contains(&ip);
                    source && (40_000..=40_063).contains(&port)
                };
                let to_backend = leg(ends.0) && self.backends.contains(&ends.1);
                let to_client = self.frontends.contains(&ends.0);
                assert!(to_backend || to_client, "forwarded {segment:?}");
                Some(self.w.check(frame))
            }
            Ok(Decoded::Icmp(_)) => None,
            other => panic!("forwarded {other:?}"),
        }
    }

    /// Answers probes and questions as the pods' adopters and kernels do; the other frames.
    fn answered(&mut self, sent: Vec<Sent>) -> Vec<Sent> {
        let mut others = Vec::new();
        for s in sent {
            self.note(&s);
            let Dest::Pod(index) = s.to else {
                others.push(s);
                continue;
            };
            if s.is_question() {
                let listens = match self.w.listeners[index] {
                    Listener::Silent => continue,
                    listener => listener == Listener::Listens,
                };
                if self.answers {
                    let answer = self.w.question_wire(&s, listens);
                    let sent = self.give(&answer.build());
                    // Baton opens nothing: what was half open is reset.
                    let port = s.segment.src_port;
                    let back = |r: &&Sent| r.to == s.to && r.segment.src_port == port;
                    for rst in sent.iter().filter(back) {
                        assert!(listens && rst.is(Flags::RST), "{rst:?}");
                        assert_eq!(rst.segment.seq.0, answer.ack, "exact");
                    }
                    others.extend(sent);
                }
            } else if message(&s).is_some_and(|(_, m)| m.kind == MessageKind::Probe) {
                let reason = self.w.adopters[index].filter(|_| self.answers);
                if let Some(answer) = reason.and_then(|r| adopter_answer(&s, r, 0)) {
                    others.extend(self.give(&answer));
                }
            } else {
                others.push(s);
            }
        }
        others
    }

    fn note(&mut self, sent: &Sent) {
        const REMEMBERED: usize = 16;
        if self.left.len() == REMEMBERED {
            self.left.remove(0);
        }
        self.left.push(sent.frame.clone());
    }

    /// Nothing happens any more: in the end everything is forgotten, and without policies nothing is left at all.
    pub fn ends(&mut self) {
        // A pod that does not close its side of an old leg has 60 s; orphans wait for 10 s, the client's half of a flow for 3 s.
        const LONGEST_S: u32 = 90;
        const TABLES: [&str; 5] = [
            "flows",
            "closing_legs",
            "kept_segments",
            "guarded_flows",
            "affinities",
        ];
        self.set_free(usize::MAX);
        for _ in 0..LONGEST_S {
            if TABLES.iter().all(|table| self.w.table(table).0 == 0) {
                break;
            }
            self.wait_us(1_000_000);
        }
        for table in TABLES {
            assert_eq!(self.w.table(table).0, 0, "{table}");
        }
        self.w.snapshot.policies.clear();
        self.w.snapshot.generation += 1;
        let applied = self.w.engine.apply(self.w.now, &self.w.snapshot);
        assert_eq!(applied, Ok(()), "nothing may always be served");
        self.wait_us(1_000_000);
        assert_eq!(self.w.table("backends").0, 0, "legs are left");
        assert_eq!(self.w.engine.steering().frontends, []);
    }
}

/// The message in a frame and the index of the key that it is signed with.
pub fn message(sent: &Sent) -> Option<(usize, Adoption)> {
    let raw = parse_adoption(&sent.frame, &sent.segment)?;
    let verified = |(_, key): &(u8, AdoptionKey)| raw.verify(key);
    let keys = keys();
    let index = keys.iter().position(|k| verified(k).is_some())?;
    Some((index, verified(&keys[index])?))
}

/// What an adopter that has the key says to a message.
pub fn adopter_answer(sent: &Sent, reason: Reason, server_ts: u32) -> Option<Vec<u8>> {
    let (index, message) = message(sent)?;
    let key = &keys()[index].1;
    Some(answer_with(sent, reason, server_ts, message.epoch, key))
}
