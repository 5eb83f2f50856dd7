//! Whole exchanges of flows whose requests travel on legs that others had before, and the same of
//! flows that stay where they are: what least requests with shared legs costs, all in all.

use super::common::{Conn, Dest, FRAME_BYTES, Sent, World, conn::*, policy, settings, wire};
use baton_api::{Legs, MigrationMode};
use baton_engine::{Counter, Verdict};
use baton_packet::Flags;
use std::{collections::HashMap, net::SocketAddr};

/// Of engine time between two exchanges, microseconds: as at 50,000 requests/s.
const APART_US: u64 = 20;

pub struct Sharing {
    w: World,
    flows: Vec<Conn>,
    /// What the pods have of each leg: which pod, what it expects, what it says next.
    pods: HashMap<SocketAddr, (usize, u32, u32)>,
    turn: usize,
}

impl Sharing {
    /// `moves`: each request goes to another pod, on a shared leg; else none does.
    pub fn new(moves: bool, flows: u16) -> Self {
        let mut p = policy(4);
        p.migration.mode = MigrationMode::Never;
        if moves {
            p.migration.legs = Legs::Shared;
            p.migration.mode = MigrationMode::Always;
        }
        let mut w = World::with(settings(), p);
        w.strict = false;
        let flows = (1..=flows).map(|n| w.idle(n)).collect();
        Self { w, flows, pods: HashMap::new(), turn: 0 }
    }

    pub fn shared(&self) -> u64 {
        self.w.count(Counter::LegsShared)
    }

    /// A request, its answer in one segment and the client's acknowledgement of that; then what is
    /// due, and what pods answer to that.
    pub fn exchange(&mut self) {
        let at = self.turn % self.flows.len();
        self.turn += 1;
        let c = self.flows[at].clone();
        let request = self.w.client_wire(&c, PSH_ACK, GET).build();
        let sent = self.give(&request);
        let asked = sent.iter().find(|s| s.data() == GET).expect("a request");
        let (Dest::Pod(pod), segment) = (asked.to, &asked.segment) else { panic!("{asked:?}") };
        let leg = SocketAddr::from((segment.src, segment.src_port));
        let (value, echo) = asked.stamps().expect("timestamps");
        let mut end = c.clone();
        (end.pod, end.leg) = (pod, leg);
        (end.seq, end.server) = (segment.seq.0.wrapping_add(GET.len() as u32), segment.ack.0);
        let mut ok = self.w.pod_wire(&end, PSH_ACK, OK);
        ok.options = wire::stamps(echo, value);
        let next = end.server.wrapping_add(OK.len() as u32);
        self.pods.insert(leg, (pod, end.seq, next));
        let got = self.give(&ok.build());
        let got = got.iter().find(|s| s.data() == OK).expect("an answer");
        let c = &mut self.flows[at];
        c.seen_ts = got.stamps().expect("timestamps").0;
        c.client_sent(PSH_ACK, GET);
        c.server_sent(PSH_ACK, OK);
        let ack = self.w.client_wire(&self.flows[at], Flags::ACK, &[]).build();
        let mut asked = self.give(&ack);
        let ms = self.w.now.ms();
        self.w.now.0 += APART_US;
        if self.w.now.ms() > ms {
            self.counted(None);
            asked.extend(self.sent());
        }
        for keepalive in asked.iter().filter(|s| s.data().len() == 1) {
            self.answer(keepalive);
        }
    }

    /// The pod acknowledges what it has.
    fn answer(&mut self, keepalive: &Sent) {
        let leg = SocketAddr::from((keepalive.segment.src, keepalive.segment.src_port));
        let Some((pod, seq, server)) = self.pods.get(&leg).copied() else {
            return;
        };
        let mut end = self.flows[0].clone();
        (end.pod, end.leg, end.seq, end.server) = (pod, leg, seq, server);
        let (value, echo) = keepalive.stamps().expect("timestamps");
        let mut ack = self.w.pod_wire(&end, Flags::ACK, &[]);
        ack.options = wire::stamps(echo, value);
        self.give(&ack.build());
    }

    fn give(&mut self, frame: &[u8]) -> Vec<Sent> {
        let passed = self.counted(Some(frame));
        let mut sent = self.sent();
        sent.extend(passed.iter().map(|frame| self.w.check(frame)));
        sent
    }

    fn sent(&mut self) -> Vec<Sent> {
        let sent = self.w.out.take();
        sent.iter().map(|frame| self.w.check(frame)).collect()
    }

    /// A frame, or what is due; what is passed on of it.
    fn counted(&mut self, frame: Option<&[u8]>) -> Option<Vec<u8>> {
        let mut buffer = [0; FRAME_BYTES];
        let mut len = 0;
        if let Some(frame) = frame {
            len = frame.len();
            buffer[..len].copy_from_slice(frame);
        }
        match self.exchange_forward_counted(&mut buffer, len) {
            Verdict::Transmit(len) => Some(buffer[..len].to_vec()),
            _ => None,
        }
    }

    /// Callgrind counts inside of it.
    #[inline(never)]
    fn exchange_forward_counted(&mut self, buffer: &mut [u8; FRAME_BYTES], len: usize) -> Verdict {
        let World { engine, now, out, .. } = &mut self.w;
        if len > 0 {
            return engine.frame(*now, buffer, len, out);
        }
        engine.poll(*now, out);
        Verdict::Absorbed
    }
}
