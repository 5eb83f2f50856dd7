//! The packet path takes no memory and gives none back, whatever happens on it.
#[path = "common/allocations.rs"]
mod allocations;
mod common;

use allocations::taking_nothing;
use baton_engine::Counter;
use baton_packet::{Flags, Reason};
use common::{Conn, Sent, World, answer, conn::*, pod_name, policy, settings};

/// Flows that live through everything that can happen to one, around an engine that must take no
/// memory.
struct Lives {
    w: World,
    frames: u64,
}

impl Lives {
    fn new(settings: baton_engine::Settings, policy: baton_api::Policy) -> Self {
        let mut w = World::with(settings, policy);
        w.careful = false;
        w.around = |call| taking_nothing(call);
        w.forgets = true;
        for told in &mut w.told {
            told.forgets = true;
        }
        Self { w, frames: 0 }
    }

    fn give(&mut self, frame: &[u8]) -> Vec<Sent> {
        self.frames += 1;
        self.w.inject(frame)
    }

    fn client(&mut self, c: &mut Conn, flags: Flags, data: &[u8]) -> Vec<Sent> {
        self.frames += 1;
        self.w.client_sends(c, flags, data)
    }

    fn pod(&mut self, c: &mut Conn, flags: Flags, data: &[u8]) -> Vec<Sent> {
        self.frames += 1;
        self.w.pod_sends(c, flags, data)
    }

    fn life(&mut self, n: u16) {
        let mut c = Conn::of(n, n % 4 == 3);
        c.seq = self.frames as u32;
        c.options.timestamps = n.is_multiple_of(3);
        let sent = self.client(&mut c, Flags::SYN, &[]);
        let Some(syn) = sent.last() else {
            // The table is full: time goes on.
            self.w.run_ms(500);
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
                self.w.run_ms(10);
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
                self.w.run_ms(120);
                self.client(&mut c, PSH_ACK, if n % 16 == 2 { GET } else { POST });
                self.w.run_ms(3_000);
            }
            3 => {}
            _ => {
                self.client(&mut c, FIN_ACK, &[]);
                self.pod(&mut c, FIN_ACK, &[]);
            }
        }
        // A stray, a corrupt one and an unknown one.
        let mut frame = self.w.client_wire(&c, Flags::ACK, b"stray").build();
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
    lives.each_came_often(&[
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
    ]);
}

/// Pods die and drain under flows with sessions and outstanding commands, over and over.
#[test]
fn troubles_take_no_memory_and_give_none_back() {
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
    lives.each_came_often(&[
        Counter::Rescues,
        Counter::Stranded,
        Counter::SessionsRestored,
        Counter::MigrationsConfirmed,
        Counter::LivenessProbesRefused,
        Counter::LivenessProbesAnswered,
        Counter::BackendsBack,
        Counter::ResponseTimeouts,
    ]);
    let pins = lives.w.pins();
    assert!(pins > 20, "{pins} pins");
}

impl Lives {
    fn each_came_often(&self, kinds: &[Counter]) {
        let engine = &self.w.engine;
        engine.check_invariants();
        for kind in kinds {
            let times = engine.counter(*kind);
            assert!(times > 20, "{kind:?} only {times} times");
        }
    }

    /// A flow whose pod dies, drains or freezes, at rest or with a command outstanding, with a
    /// session or without.
    fn trouble(&mut self, n: u16) {
        let mut c = Conn::of(n, n % 4 == 3);
        c.seq = self.frames as u32;
        c.options.timestamps = n.is_multiple_of(3);
        let sent = self.client(&mut c, Flags::SYN, &[]);
        let Some(syn) = sent.last() else {
            self.w.run_ms(500);
            return;
        };
        take_leg(&mut c, syn);
        self.pod(&mut c, Flags::SYN | Flags::ACK, &[]);
        self.client(&mut c, Flags::ACK, &[]);
        for _ in 0..4 {
            let session = n.is_multiple_of(2);
            self.client(&mut c, PSH_ACK, if session { SELECT } else { PING });
            self.pod(&mut c, PSH_ACK, if session { PLUS_OK } else { b"+PONG\r\n" });
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
                self.w.stops(pod);
                let end = if n.is_multiple_of(2) { FIN_ACK } else { RST_ACK };
                sent.extend(self.pod(&mut c.clone(), end, &[]));
                sent.extend(self.w.run_ms(6));
            }
            2 => {
                self.w.engine.drain(self.w.now, None, &c.pod_name(), true);
                sent.extend(self.w.run_ms(160));
            }
            3 if outstanding => sent.extend(self.w.run_ms(420)),
            3 => {
                // A close that was meant.
                self.pod(&mut c.clone(), FIN_ACK, &[]);
                sent.extend(self.w.run_ms(6));
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
            self.pod(&mut first, PSH_ACK, &bytes);
            if outstanding {
                self.pod(&mut c, PSH_ACK, b"+PONG\r\n");
                self.client(&mut c, Flags::ACK, &[]);
            }
        }
        self.w.starts(pod);
        self.w.engine.drain(self.w.now, None, &pod_name(c.v6(), pod), false);
        self.client(&mut c, Flags::RST, &[]);
        self.w.run_ms(if n.is_multiple_of(7) { 1_300 } else { 130 });
    }
}
