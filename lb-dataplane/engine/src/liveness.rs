//! The question to a pod whether anybody still listens there: one for all flows of the pod.
//!
//! Owns the question of each backend, its repetition and what the answer means. It is a probe where the adopter can tell
//! whose the listener is; else, and where that is not answered, a SYN, which the pod's kernel answers. Neither opens anything: a
//! SYN-ACK is answered with a RST, so that the pod's application never sees a connection (Linux drops the request socket,
//! `tcp_check_req`).
//!
//! # Decisions
//!
//! - **An end without a mark is believed after one round trip if the listener is held as it was
//!   before** (`probe.rs`). The liveness probe is an adoption probe, and the
//!   adopter tells which listener there is (the end of its inode number) and how many descriptors
//!   refer to it. Servers let go of the listener before they close idle connections: nginx's
//!   workers one by one, each its own copy, its master up to 10 ms later; Go, Node.js and others
//!   close it for good. As many holders as before: the close was meant, and goes to the client,
//!   also where all connections time out together. Fewer, or another sum of the inode numbers where
//!   several sockets listen (`SO_REUSEPORT`): the pod is watched for a second. None, or another one
//!   than when the flow came to its owner: that process is gone, and the flow is rescued, even if
//!   its FIN comes late, behind data that the client was slow to take (11 of the simulation's
//!   10,000 worlds). With the answer to a plain SYN instead, one round trip lost 2 and 4
//!   connections in 60 shutdowns (SIGQUIT, which nginx's images ask for) of an nginx with two
//!   workers and one idle connection; with the holders none in 60, nor in 60 right after the
//!   server's start (`BATON_SHUTDOWNS=20 make test-ns`, test `shutdown`: 20 each with 1, 2 and 64
//!   connections; 40 and 40 with a listener for each worker). A close is then 0 to 1 ms late where
//!   it was 4 (`closes`: 1.0009 s directly, 1.0012 s through Baton). A lost probe is sent again
//!   after 20 ms, and only the third is a SYN.
//! - **Where it is not known yet who holds the listener** (a server or dataplane that started less
//!   than 1 s ago: a count from between two forks would be met again when the first worker lets
//!   go), or the adopter is mute (two probes lost; it is probed ten times a second then), **an end
//!   is believed a second after it at the latest**. So a close that does not come from a process
//!   that listens waits longer than a round trip if less than a second before it its server began,
//!   let go of a listener or lost a process. (There the last FINs of a server that shuts down, and
//!   those that it means, are the same until its listener is gone. We chose the connections; the
//!   close is late by less than a second, and a request that the client sends meanwhile is served
//!   by another pod.) On a machine with three to four busy processes for each CPU, 2 of 60
//!   shutdowns right after a start closed connections with 50 ms: nginx's master had not had its
//!   turn. With a second, none in 200 (`BATON_SHUTDOWNS=20 make test-ns`). A close with
//!   `Connection: close`, a body that ends with the connection, a pinned flow: these pass at once.
//! - **Without marks an end is believed while anybody listens** (a pod without adopter, more than
//!   128 sockets on one port): one answer to a SYN makes it stand, and `status` says that ends are
//!   not marked. What it costs: connections of a killed server whose last process still listens.
//!   Rejected: the five rules by time that stood here (an answer 3 ms later, bursts of three ends,
//!   50 ms, nine tenths of a pod's flows); each failed on a busy machine, and all of them served
//!   pods that no shipped adopter is in.

use crate::{
    Engine, Output, Verdict,
    backend::Sweep,
    clock::Instant,
    counters::Counter,
    health::Down,
    ids::Leg,
    legs::Use,
    ports::{Purpose, Rest},
    probe::News,
    timing::{
        DOWN_PAUSE_MS, DOWN_PAUSE_WAITING_MS, EXIT_SETTLE_MS, FEW_ENDS, HOLDERS_SETTLE_US,
        LIVENESS_PROBES_MAX, LIVENESS_TRIES_HEARD_MAX, LIVENESS_TRIES_MAX, LIVENESS_WAIT_MS,
        WATCH_PAUSE_MS,
    },
};
use baton_packet::{
    Adoption, Flags, ListenerReport, MessageKind, Reason, Segment, SegmentSpec, SeqNumber,
    build_segment, parse_adoption,
};

/// Backends looked at in one call for whether a question is due, and questions sent: usually, and
/// whatever else there is to do.
const BACKENDS_PER_CALL: usize = 1_024;
const ASKED_PER_CALL: usize = 8;
const ASKED_AT_LEAST: usize = 4;

/// Who says that somebody listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    /// The kernel, with a SYN-ACK, or with signs of life.
    Kernel,
    /// The adopter, who knows the listener.
    Adopter,
}

/// The question to one backend.
#[derive(Clone)]
pub(crate) struct LivenessProbe {
    port: u16,
    isn: SeqNumber,
    /// The acknowledged number of a probe; `None` for a SYN.
    probe_ack: Option<SeqNumber>,
    /// The adopter found no listener: only a SYN says whether clients find one.
    by_syn: bool,
    /// Sent, and not answered yet.
    pending: bool,
    tries: u8,
    /// When the unanswered one, or the next one, is due; `u64::MAX` for never.
    due_ms: u64,
    asked_us: u64,
    first_asked_us: u64,
    last_end_us: u64,
    /// Flows that ended since the pod was last known to live.
    ends: u32,
    /// When the last answered one was asked, and how old an end has to be then to stand.
    answered_us: u64,
    settle_us: u64,
}

impl Default for LivenessProbe {
    fn default() -> Self {
        Self {
            port: 0,
            isn: SeqNumber(0),
            probe_ack: None,
            by_syn: false,
            pending: false,
            tries: 0,
            due_ms: u64::MAX,
            asked_us: 0,
            first_asked_us: 0,
            last_end_us: 0,
            ends: 0,
            answered_us: 0,
            settle_us: 0,
        }
    }
}

impl LivenessProbe {
    /// Whether a listener answered long enough after a flow's end (us, wrapping) for the end to stand. If the process that closed had
    /// the listener, any answer is late enough.
    pub(crate) fn settles(&self, ended_us: u32, closer_listens: bool) -> bool {
        let age_us = (self.answered_us as u32).wrapping_sub(ended_us) as i32;
        let settle_us = if closer_listens { 0 } else { self.settle_us };
        i64::from(age_us) >= settle_us as i64
    }

    /// What was asked so far may never have left.
    pub(crate) fn start_again(&mut self, now: Instant) {
        self.first_asked_us = now.0;
        self.tries = 0;
        self.pending = false;
    }

    pub(crate) fn is_on(&self, port: u16) -> bool {
        self.port == port
    }

    /// Whether one is being asked or will be.
    pub(crate) fn is_open(&self) -> bool {
        self.due_ms != u64::MAX
    }
}

impl Engine {
    /// A flow of the backend ended and is held: does anybody listen there?
    pub(crate) fn ask(
        &mut self,
        now: Instant,
        index: u16,
        closer_listens: bool,
        out: &mut impl Output,
    ) {
        let question = &mut self.backends[usize::from(index)].question;
        question.last_end_us = now.0;
        question.ends = question.ends.saturating_add(1);
        if !question.is_open() {
            self.begin_question(now, index, out);
        } else if closer_listens && !question.pending {
            // The pod is being watched; this end has not to wait for that.
            self.send_question(now, index, out);
        }
    }

    /// A process of the backend exited: perhaps the last one that listens. Nothing is moved there
    /// for a while, although it looks idle.
    pub(crate) fn note_exit(&mut self, now: Instant, index: u16, out: &mut impl Output) {
        let settled_ms = now.ms() + EXIT_SETTLE_MS;
        let probe = &mut self.backends[usize::from(index)].probe;
        probe.forget_until(settled_ms);
        probe.process_exited(now);
        self.next_probe_ms = self.next_probe_ms.min(settled_ms);
        let question = &mut self.backends[usize::from(index)].question;
        question.last_end_us = now.0;
        question.ends = question.ends.max(FEW_ENDS + 1);
        if !question.is_open() {
            self.begin_question(now, index, out);
        }
    }

    /// Nothing was heard of the backend for too long: is it there?
    pub(crate) fn probe_liveness(&mut self, now: Instant, index: u16, out: &mut impl Output) {
        if !self.backends[usize::from(index)].question.is_open() {
            self.begin_question(now, index, out);
        }
    }

    fn begin_question(&mut self, now: Instant, index: u16, out: &mut impl Output) {
        let question = &mut self.backends[usize::from(index)].question;
        question.tries = 0;
        question.first_asked_us = now.0;
        self.send_question(now, index, out);
    }

    fn due(&mut self, index: u16, due_ms: u64) {
        self.backends[usize::from(index)].question.due_ms = due_ms;
        self.next_question_ms = self.next_question_ms.min(due_ms);
    }

    fn send_question(&mut self, now: Instant, index: u16, out: &mut impl Output) {
        let (fresh, other) = (self.fresh_number(), self.fresh_number());
        let question = &self.backends[usize::from(index)].question;
        if question.pending && question.probe_ack.is_some() && question.tries >= LIVENESS_PROBES_MAX
        {
            self.no_adopter_answers(now, index);
        }
        let backend = &mut self.backends[usize::from(index)];
        if backend.question.port == 0
            && let Some(port) = backend
                .ports
                .take(&mut self.rests, now.ms(), Purpose::Rescue)
        {
            let leg = Leg {
                backend: index,
                port,
            };
            self.legs.assign(leg, Use::LivenessProbe);
            backend.question.port = port;
        }
        let port = backend.question.port;
        if port == 0 || out.frame().is_none() {
            // Not asked, so silence means nothing.
            return self.due(index, now.ms() + 1);
        }
        let by_probe = backend.question.tries < LIVENESS_PROBES_MAX
            && backend.probe.supports_report()
            && !backend.question.by_syn;
        let probe_ack = by_probe.then_some(other);
        let question = &mut backend.question;
        // A repetition keeps its number: the pod may have the first one, and answers the same SYN again (Linux
        // `tcp_check_req`), but another one on its tuple with a challenge ACK at best.
        if question.tries == 0 || question.probe_ack.is_some() {
            question.isn = fresh;
        }
        question.probe_ack = probe_ack;
        let isn = question.isn;
        question.pending = true;
        question.asked_us = now.0;
        let wait_ms = LIVENESS_WAIT_MS << question.tries;
        question.tries += 1;
        self.due(index, now.ms() + wait_ms);
        let leg = Leg {
            backend: index,
            port,
        };
        // A next hop without a link-layer address is as silent as a pod.
        if let Some(ack) = probe_ack {
            if self.emit_probe(leg, (isn, ack), out) {
                self.counters.add(Counter::LivenessProbesSent);
            }
        } else if let Some(spec) = self.to_leg(leg) {
            let syn = SegmentSpec {
                seq: isn,
                flags: Flags::SYN,
                window: u16::MAX,
                ..spec
            };
            self.counters.add(Counter::LivenessProbesSent);
            self.emit(out, |buffer| build_segment(buffer, &syn));
        }
    }

    /// Its adopter says that nobody listens on the port. Whether a client's SYN is refused too,
    /// only a SYN says: something in the pod may hand connections to another port. If one was
    /// listening before, it is gone or is being replaced.
    pub(crate) fn adopter_finds_nobody(&mut self, now: Instant, index: u16, out: &mut impl Output) {
        let backend = &mut self.backends[usize::from(index)];
        if backend.probe.knew_listener() {
            backend.probe.process_exited(now);
        }
        let question = &mut backend.question;
        if question.pending && question.probe_ack.is_none() {
            return;
        }
        question.by_syn = true;
        question.pending = false;
        self.begin_question(now, index, out);
    }

    /// Its kernel is asked from now on; besides, the adopter is probed until it says Ready.
    fn no_adopter_answers(&mut self, now: Instant, index: u16) {
        self.probe_soon(now, index, |probe| probe.is_mute(now));
    }

    /// A segment on a backend's question port.
    pub(crate) fn answer_to_question(
        &mut self,
        now: Instant,
        frame: &[u8],
        segment: &Segment,
        index: u16,
        out: &mut impl Output,
    ) -> Verdict {
        let question = &self.backends[usize::from(index)].question;
        if let Some(ack) = question.probe_ack.filter(|_| question.pending) {
            return self.answer_to_probing(now, frame, segment, (index, ack), out);
        }
        let expected = segment.flags.has(Flags::ACK) && segment.ack == question.isn.add(1);
        if !question.pending || !expected {
            self.counters.add(Counter::Fenced);
            self.clear_question_port(now, index, segment, out);
            return Verdict::Absorbed;
        }
        if segment.flags.has(Flags::RST) {
            self.counters.add(Counter::LivenessProbesRefused);
            self.backend_is_down(now, index, Down::NoListener, out);
        } else if segment.flags.has(Flags::SYN) {
            self.counters.add(Counter::LivenessProbesAnswered);
            self.refuse_answer(index, segment, out);
            self.listens(now, index, Word::Kernel, out);
        }
        Verdict::Absorbed
    }

    /// A segment on a backend's question port while a probe is out.
    fn answer_to_probing(
        &mut self,
        now: Instant,
        frame: &[u8],
        segment: &Segment,
        (index, ack): (u16, SeqNumber),
        out: &mut impl Output,
    ) -> Verdict {
        let question = &mut self.backends[usize::from(index)].question;
        let isn = question.isn;
        let raw = parse_adoption(frame, segment);
        if raw.is_none() && segment.flags.has(Flags::RST) && segment.seq == ack {
            // No adopter any more: its kernel is asked.
            self.no_adopter_answers(now, index);
            self.send_question(now, index, out);
            return Verdict::Absorbed;
        }
        let answer = raw.and_then(|raw| self.verified(&raw, index));
        let Some(Adoption {
            kind: MessageKind::Answer(reason),
            server_ts,
            namespace,
            ..
        }) = answer.filter(|_| segment.seq == ack && segment.ack == isn)
        else {
            self.counters.add(Counter::Fenced);
            self.clear_question_port(now, index, segment, out);
            return Verdict::Absorbed;
        };
        self.backends[usize::from(index)].probe.is_in(namespace);
        if reason == Reason::NoListener {
            self.adopter_finds_nobody(now, index, out);
            return Verdict::Absorbed;
        }
        self.counters.add(Counter::LivenessProbesAnswered);
        let word =
            if self.listener_reported(now, index, reason, ListenerReport::from_field(server_ts)) {
                Word::Adopter
            } else {
                Word::Kernel
            };
        self.listens(now, index, word, out);
        Verdict::Absorbed
    }

    /// Something is left of an earlier question, because our reset was lost or its answer came late: it must not stand in
    /// the way of this one.
    fn clear_question_port(
        &mut self,
        now: Instant,
        index: u16,
        segment: &Segment,
        out: &mut impl Output,
    ) {
        if segment.flags.has(Flags::RST) || !segment.flags.has(Flags::ACK) {
            return;
        }
        self.refuse_answer(index, segment, out);
        let question = &self.backends[usize::from(index)].question;
        if question.pending && question.tries < LIVENESS_TRIES_MAX {
            self.send_question(now, index, out);
        }
    }

    /// The pod's half-open connection is of no use.
    fn refuse_answer(&mut self, index: u16, segment: &Segment, out: &mut impl Output) {
        let leg = Leg {
            backend: index,
            port: self.sources.number(
                self.backends[usize::from(index)].source,
                (segment.dst, segment.dst_port),
            ),
        };
        if let Some(spec) = self.to_leg(leg) {
            let rst = SegmentSpec {
                seq: segment.ack,
                flags: Flags::RST,
                ..spec
            };
            self.emit(out, |buffer| build_segment(buffer, &rst));
        }
    }

    /// Somebody listens. The ends that are held stand if that is the one who listened before, or if they are old enough.
    fn listens(&mut self, now: Instant, index: u16, word: Word, out: &mut impl Output) {
        self.backend_is_up(now, index);
        let backend = &mut self.backends[usize::from(index)];
        let news = match word {
            Word::Adopter => backend.probe.news(now),
            Word::Kernel => News::Unknown,
        };
        let never_told = !backend.probe.knew_listener();
        let question = &mut backend.question;
        question.pending = false;
        question.by_syn = false;
        question.tries = 0;
        let settle_us = match news {
            News::Same => 0,
            // Without an adopter that tells of the listener nothing says that the end was not
            // meant.
            News::Unknown if never_told => 0,
            // Sooner if it is told meanwhile that all is as it was.
            News::Unknown | News::LetGo => HOLDERS_SETTLE_US,
        };
        question.settle_us = settle_us;
        question.answered_us = question.asked_us;
        let settled_us = question.last_end_us + settle_us;
        let settled = question.ends == 0 || question.asked_us >= settled_us;
        let few = question.ends <= FEW_ENDS;
        if question.ends > 0 {
            self.begin_sweep(index, Sweep::CloseStands);
        }
        if settled {
            let question = &mut self.backends[usize::from(index)].question;
            question.ends = 0;
            question.due_ms = u64::MAX;
            return;
        }
        if settle_us == 0 && few {
            // What ended while the pod was asked. Where there is more, once a millisecond: each answer goes through all its flows.
            return self.send_question(now, index, out);
        }
        let next_ms = (now.ms() + WATCH_PAUSE_MS).min(settled_us.div_ceil(1_000));
        self.due(index, next_ms.max(now.ms() + 1));
    }

    /// Repeats, gives up or asks anew what is due, a piece of the table at a time.
    pub(crate) fn questions_due(&mut self, now: Instant, out: &mut impl Output) {
        if self.question_pass.at.is_none() {
            if now.ms() < self.next_question_ms {
                return;
            }
            // Who is asked meanwhile makes it sooner again.
            self.next_question_ms = u64::MAX;
            (self.question_pass.at, self.question_pass.found) = (Some(0), u64::MAX);
        }
        let Some(from) = self.question_pass.at else {
            return;
        };
        let mut left = self.room(ASKED_PER_CALL, ASKED_AT_LEAST);
        let to = (from + BACKENDS_PER_CALL).min(self.backends.len());
        let mut at = from;
        while at < to && left > 0 {
            if now.ms() >= self.backends[at].question.due_ms {
                self.spend(1);
                left -= 1;
                self.question_due(now, at as u16, out);
            }
            let due_ms = self.backends[at].question.due_ms;
            self.question_pass.found = self.question_pass.found.min(due_ms);
            at += 1;
        }
        self.question_pass.at = (at < self.backends.len()).then_some(at);
        if self.question_pass.at.is_none() {
            self.next_question_ms = self.next_question_ms.min(self.question_pass.found);
        }
    }

    fn question_due(&mut self, now: Instant, index: u16, out: &mut impl Output) {
        let backend = &self.backends[usize::from(index)];
        let question = &backend.question;
        if !question.pending {
            return self.send_question(now, index, out);
        }
        if question.tries < LIVENESS_TRIES_MAX && !backend.health.is_down() {
            return self.send_question(now, index, out);
        }
        let heard_since = backend.health.heard_ms() * 1_000 > question.first_asked_us;
        if heard_since && !backend.health.is_down() {
            if question.tries < LIVENESS_TRIES_HEARD_MAX {
                // What was heard may be older than its end: ask on.
                return self.send_question(now, index, out);
            }
            // Its kernel lives and its listener is too busy to answer: that is no death.
            self.counters.add(Counter::LivenessProbesUnanswered);
            return self.listens(now, index, Word::Kernel, out);
        }
        self.counters.add(Counter::LivenessProbesUnanswered);
        if now.ms() < self.link_settled_ms {
            self.backends[usize::from(index)].question.start_again(now);
            return self.send_question(now, index, out);
        }
        self.backend_is_down(now, index, Down::Silent, out);
    }

    /// A backend that is down is asked again after a while.
    pub(crate) fn ask_again_later(&mut self, now: Instant, index: u16) {
        let backend = &mut self.backends[usize::from(index)];
        let question = &mut backend.question;
        question.pending = false;
        question.by_syn = false;
        question.tries = 0;
        question.ends = 0;
        let waiting = backend.flows > 0;
        let pause_ms = if waiting {
            DOWN_PAUSE_WAITING_MS
        } else {
            DOWN_PAUSE_MS
        };
        self.due(index, now.ms() + pause_ms);
    }

    /// Forgets the question of a backend that left the snapshot.
    pub(crate) fn stop_asking(&mut self, now: Instant, index: u16) {
        let backend = &mut self.backends[usize::from(index)];
        if backend.question.port != 0 {
            let port = std::mem::take(&mut backend.question.port);
            let leg = Leg {
                backend: index,
                port,
            };
            self.free_leg(now, leg, Rest::Quiet);
        }
        self.backends[usize::from(index)].question = LivenessProbe::default();
    }
}
