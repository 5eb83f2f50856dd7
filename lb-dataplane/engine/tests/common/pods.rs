//! Pods as their kernels: what they say to questions, and what is seen when their processes die,
//! freeze or come back.

use super::{
    Conn, Dest, OUR_MAC, Sent, World, answer_loaded,
    conn::*,
    pod_mac,
    wire::{Wire, tcp},
};
use baton_engine::Counter;
use baton_packet::{EndMark, Flags, Reason, put_end_mark};

/// What a pod's kernel says to a SYN from a port of Baton's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// SYN-ACK.
    Listens,
    /// RST: nobody listens.
    Refuses,
    /// Nothing: its queue is full, or it is not there.
    Silent,
}

/// How a process ends its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It had read everything.
    Fin,
    /// Unread bytes were left (Linux `tcp_close`), so the kernel resets.
    Rst,
}

impl End {
    pub const BOTH: [End; 2] = [End::Fin, End::Rst];

    pub fn flags(self) -> Flags {
        match self {
            End::Fin => FIN_ACK,
            End::Rst => RST_ACK,
        }
    }
}

impl World {
    /// The answer to a question, as a frame.
    pub fn question_wire(&self, question: &Sent, listens: bool) -> Wire {
        let s = &question.segment;
        let Dest::Pod(index) = question.to else { panic!("a question to a client: {question:?}") };
        let (pod, ours) = ((s.dst, s.dst_port).into(), (s.src, s.src_port).into());
        let (macs, ack) = ((pod_mac(index), OUR_MAC), s.seq.0.wrapping_add(1));
        if !listens {
            return Wire { window: 0, ..Wire::new(macs, (pod, ours), (0, ack), RST_ACK) };
        }
        let both = Flags::SYN | Flags::ACK;
        Wire {
            window: 64_240,
            options: vec![2, 4, 5, 0xb4],
            ..Wire::new(macs, (pod, ours), (0x5151_0000, ack), both)
        }
    }

    /// Answers a question as the pod's kernel does; what leaves then. Baton opens nothing: it
    /// resets what was half open.
    pub fn kernel_answers(&mut self, question: &Sent) -> Vec<Sent> {
        let Dest::Pod(index) = question.to else { panic!("a question to a client: {question:?}") };
        self.asked.push(index);
        let listens = match self.listeners[index] {
            Listener::Silent => return Vec::new(),
            listener => listener == Listener::Listens,
        };
        let answer = self.question_wire(question, listens);
        let resets = listens && self.out.free > 0;
        let sent = self.inject(&answer.build());
        let port = question.segment.src_port;
        let back = |s: &&Sent| s.to == question.to && s.segment.src_port == port;
        for rst in sent.iter().filter(back) {
            assert!(listens && rst.is(Flags::RST), "{rst:?}");
            assert_eq!(rst.segment.seq.0, answer.ack, "exact");
        }
        if self.strict {
            let resets = usize::from(resets);
            assert_eq!(sent.iter().filter(back).count(), resets);
            assert_eq!(sent.len(), resets, "{sent:?}");
            return Vec::new();
        }
        sent
    }

    /// Answers a probe as the pod's adopter does, if it has one; what leaves then.
    pub fn probed(&mut self, probe: &Sent) -> Vec<Sent> {
        let Dest::Pod(index) = probe.to else { panic!("a probe to a client: {probe:?}") };
        let asks = probe.message().map(|m| m.namespace);
        assert_eq!(asks, Some(0), "a probe is for whoever is there");
        self.last_probe = Some(probe.clone());
        let Some(reason) = self.adopters[index] else {
            return Vec::new();
        };
        let told = match reason {
            Reason::NoListener => 0,
            _ => self.told[index].field(),
        };
        let answered = self.count(Counter::LivenessProbesAnswered)
            + self.count(Counter::LivenessProbesRefused);
        let namespace = self.namespaces[index];
        let load = self.loads[index];
        let sent = self.inject(&answer_loaded(namespace, probe, (reason, told), load));
        let now = self.count(Counter::LivenessProbesAnswered)
            + self.count(Counter::LivenessProbesRefused);
        if now > answered {
            self.asked.push(index);
        }
        assert!(sent.is_empty() || !self.strict, "{sent:?}");
        sent
    }

    /// What the kernel of a pod without adopter says to a probe.
    pub fn reset_of(&self, probe: &Sent) -> Wire {
        Wire {
            seq: probe.segment.ack.0,
            ack: 0,
            flags: Flags::RST,
            ..self.question_wire(probe, false)
        }
    }

    /// The pod's process is gone: its kernel refuses, its adopter finds no listener.
    pub fn stops(&mut self, index: usize) {
        self.listeners[index] = Listener::Refuses;
        self.adopters[index] = Some(Reason::NoListener);
    }

    /// The pod is not there any more, or nothing gets through.
    pub fn vanishes(&mut self, index: usize) {
        self.listeners[index] = Listener::Silent;
        self.adopters[index] = None;
    }

    /// The pod's process listens again.
    pub fn starts(&mut self, index: usize) {
        self.listeners[index] = Listener::Listens;
        self.adopters[index] = Some(Reason::Ready);
    }

    /// A world with an orphan: its owner ended so, and nobody can adopt it.
    pub fn orphan(how: End) -> (World, Conn) {
        let mut w = World::new(2);
        let c = w.idle(1);
        w.adopters.fill(Some(Reason::AcceptQueueFull));
        w.run_ms(1_100);
        let sent = w.dies(c.pod, how, std::slice::from_ref(&c));
        assert!(sent.is_empty(), "{sent:?}");
        w.assert_state(&c, "Orphan");
        (w, c)
    }

    /// The owner ends one connection; whatever leaves.
    pub fn ends(&mut self, c: &Conn, how: End) -> Vec<Sent> {
        self.inject(&self.pod_wire(c, how.flags(), &[]).build())
    }

    /// The same segment as the adopter in the pod marks it.
    pub fn marked_end(&self, c: &Conn, how: End, mark: EndMark) -> Vec<u8> {
        let mut frame = self.pod_wire(c, how.flags(), &[]).build();
        let segment = tcp(&frame);
        assert!(put_end_mark(&mut frame, &segment, mark));
        frame
    }

    /// The owner ends the connection by a process that listens.
    pub fn ends_listening(&mut self, c: &Conn, how: End) -> Vec<Sent> {
        self.inject(&self.marked_end(c, how, EndMark::Listening))
    }

    /// `kill -9` of a pod's process: the ends of all its connections, then nobody listens. Whatever
    /// leaves, and what the next 5 ms bring: question, verdict and sweep.
    pub fn dies(&mut self, index: usize, how: End, flows: &[Conn]) -> Vec<Sent> {
        self.stops(index);
        let mut sent = Vec::new();
        for c in flows.iter().filter(|c| c.pod == index) {
            sent.extend(self.ends(c, how));
        }
        sent.extend(self.run_ms(5));
        sent
    }

    /// Lets time pass until an adoption leaves, `ms` at most; what left.
    pub fn until_adoption(&mut self, ms: u64) -> Vec<Sent> {
        let mut sent = Vec::new();
        for _ in 0..ms {
            sent.extend(self.run_ms(1));
            if sent.iter().any(Sent::is_adoption) {
                break;
            }
        }
        sent
    }

    /// The adoption of the connection among frames that left: its pod and leg are the connection's
    /// from here on. Returns what else went to that leg.
    pub fn adopted(&mut self, c: &mut Conn, sent: &[Sent]) -> Vec<Sent> {
        self.adopted_from(c, sent, c.seq)
    }

    /// The same where the adoption starts at `boundary`, in front of kept bytes.
    pub fn adopted_from(&mut self, c: &mut Conn, sent: &[Sent], boundary: u32) -> Vec<Sent> {
        let mine = |s: &&Sent| {
            s.is_adoption() && s.segment.seq.0 == boundary && s.segment.ack.0 == c.server
        };
        let adoption = sent.iter().find(mine);
        let adoption = adoption.unwrap_or_else(|| panic!("no adoption of {c:?} in {sent:?}"));
        let old = (c.pod, c.leg);
        take_leg(c, adoption);
        assert_ne!(old, (c.pod, c.leg));
        let behind = |s: &&Sent| {
            !s.is_adoption() && s.to == adoption.to && s.segment.src_port == c.leg.port()
        };
        sent.iter().filter(behind).cloned().collect()
    }

    /// The new owner answers the keepalive behind an adoption without a request: nothing of it
    /// reaches the client.
    pub fn confirms(&mut self, c: &Conn) {
        let ack = self.pod_wire(c, Flags::ACK, &[]);
        let sent = self.inject(&ack.build());
        assert!(sent.iter().all(|s| s.to != Dest::Client), "{sent:?}");
        self.assert_state(c, "Idle");
    }

    /// A flow at rest whose owner died is adopted elsewhere: adoption, keepalive, its answer.
    pub fn rescued(&mut self, c: &mut Conn, sent: &[Sent]) {
        let behind = self.adopted(c, sent);
        let keepalive = one(behind);
        assert_eq!(keepalive.segment.seq.0, c.seq.wrapping_sub(1), "a byte that it has");
        assert_eq!(keepalive.segment.payload_len(), 1);
        self.assert_state(c, "AdoptingIdle");
        self.confirms(c);
    }

    /// What reached clients among frames that left.
    pub fn to_client(sent: &[Sent]) -> Vec<&Sent> {
        sent.iter().filter(|s| s.to == Dest::Client).collect()
    }
}
