//! Probes to backends' pods: whether one could adopt a connection, and whether anybody listens.
//!
//! Owns when they are sent, from a port of each kind, and reading the answers: evidence, whose
//! meaning is `backend/adopter.rs`' and `backend/liveness.rs`'. Here that is carried out. A probe
//! is an authenticated segment that creates nothing and takes the same path as an adoption; a pod
//! whose adopter tells nothing of the listener gets a SYN.

use crate::{
    Engine, Output, Verdict,
    backend::{
        Belief, Evidence, Finding, Sweep,
        keys::Message,
        ports::{Purpose, Rest},
    },
    clock::Instant,
    ids::Leg,
    mutants::Mutant,
    obs::counters::Counter,
    tables::legs::Use,
    timing::{
        EXIT_SETTLE_MS, LOAD_BACKENDS_PER_MS, LOAD_PROBE_MS, LOAD_PROBES_PER_SECOND_MAX,
        PROBE_OTHER_MS, PROBE_READY_MS,
    },
};
use baton_packet::{
    Adoption, Flags, ListenerReport, LoadReport, MessageKind, Reason, Segment, SegmentSpec,
    SeqNumber, build_adoption, build_segment, timestamps,
};

/// Backends looked at in one call for whether something is due, and probes of each kind sent:
/// usually, and whatever else there is to do.
const BACKENDS_PER_CALL: usize = 1_024;
const PROBES_PER_CALL: usize = 48;
const PROBES_AT_LEAST: usize = 8;
const LIVENESS_PER_CALL: usize = 8;
const LIVENESS_AT_LEAST: usize = 4;

impl Engine {
    /// Something was observed of a backend: what is believed of it now is carried out.
    pub(crate) fn learn(
        &mut self,
        now: Instant,
        index: u16,
        evidence: Evidence,
        out: &mut impl Output,
    ) {
        let backend = &mut self.backends[usize::from(index)];
        match backend.liveness.learn(now, backend.flows > 0, evidence) {
            Belief::Unchanged => {}
            Belief::Probe => self.send_liveness_probe(now, index, out),
            Belief::Believe { back, held, wait_until_ms } => {
                if back {
                    self.backend_is_back(now, index);
                }
                if held || back {
                    self.begin_sweep(index, Sweep::CloseStands);
                }
                match wait_until_ms {
                    Some(ms) if ms <= now.ms() => self.send_liveness_probe(now, index, out),
                    Some(ms) => self.rounds.liveness_probes.by(ms),
                    None => {}
                }
            }
            Belief::Orphan { why, news } => {
                self.rounds.liveness_probes.by(backend.liveness.probe_due_ms());
                if news {
                    self.backend_is_down(now, index, why);
                }
                self.begin_sweep(index, Sweep::Gone);
            }
        }
    }

    /// A process of the backend exited: perhaps the last one that listens. Nothing is moved there
    /// for a while, although it looks idle.
    pub(crate) fn note_exit(&mut self, now: Instant, index: u16, out: &mut impl Output) {
        let settled_ms = now.ms() + EXIT_SETTLE_MS;
        // Until its last process is gone, its kernel says Ready.
        (self.backends[usize::from(index)].adopter).forget_answers(settled_ms);
        self.rounds.probes.by(settled_ms);
        self.learn(now, index, Evidence::Exit, out);
    }

    /// Sends a probe of whether anybody listens.
    fn send_liveness_probe(&mut self, now: Instant, index: u16, out: &mut impl Output) {
        let numbers = (self.fresh_number(), self.fresh_number());
        if self.backends[usize::from(index)].liveness.adopter_is_mute() {
            self.probe_mute(now, index);
        }
        let leg = self.probe_leg(now, index, Use::LivenessProbe);
        let liveness = &mut self.backends[usize::from(index)].liveness;
        let Some(leg) = leg.filter(|_| out.frame().is_some()) else {
            liveness.send_later(now.ms() + 1);
            return self.rounds.liveness_probes.by(now.ms() + 1);
        };
        let (seq, ack) = liveness.send(now, numbers);
        self.rounds.liveness_probes.by(liveness.probe_due_ms());
        let left = if let Some(ack) = ack {
            self.emit_probe(leg, (seq, ack), out)
        } else if let Some(spec) = self.to_leg(leg) {
            let syn = SegmentSpec { seq, flags: Flags::SYN, window: u16::MAX, ..spec };
            self.emit(out, |buffer| build_segment(buffer, &syn))
        } else {
            false
        };
        if left {
            self.counters.add(Counter::LivenessProbesSent);
            (self.backends[usize::from(index)].liveness).probe_left();
        }
    }

    /// An adopter is mute: its kernel is probed, and besides, it is probed for Ready.
    fn probe_mute(&mut self, now: Instant, index: u16) {
        let soon_ms = now.ms() + PROBE_OTHER_MS;
        let adopter = &mut self.backends[usize::from(index)].adopter;
        adopter.due_ms = adopter.due_ms.min(soon_ms);
        self.rounds.probes.by(soon_ms);
    }

    /// What was found of a backend's adopter.
    pub(crate) fn adopter_is(&mut self, now: Instant, index: u16, finding: Finding) {
        let ready_due_ms = self.ready_due_ms(now, index);
        let backend = &mut self.backends[usize::from(index)];
        backend.adopter.found(now, finding, ready_due_ms);
        if backend.telemetry.is_wanted(now) && self.load_pause_ms() > LOAD_PROBE_MS {
            self.counters.add(Counter::LoadProbesPaced);
        }
        let adopter = &self.backends[usize::from(index)].adopter;
        self.rounds.probes.by(adopter.due_ms);
    }

    /// When a backend that is ready is probed next. Where policies go by what its kernel says of
    /// its load, that is as often as their number allows, all at the same moments.
    pub(crate) fn ready_due_ms(&self, now: Instant, index: u16) -> u64 {
        if !self.backends[usize::from(index)].telemetry.is_wanted(now) {
            return now.ms() + PROBE_READY_MS;
        }
        let pause_ms = self.load_pause_ms();
        (now.ms() / pause_ms + 1) * pause_ms
    }

    /// Between two probes of one backend of which a load report is wanted.
    fn load_pause_ms(&self) -> u64 {
        let paced_ms = u64::from(self.rounds.load_wanted.0) * 1_000 / LOAD_PROBES_PER_SECOND_MAX;
        let looks_ms = self.backends.len() as u64 / LOAD_BACKENDS_PER_MS;
        paced_ms.max(looks_ms).clamp(LOAD_PROBE_MS, PROBE_READY_MS)
    }

    /// A backend whose load policies go by is not asked a second later only.
    pub(crate) fn look_over_load(&mut self, now: Instant, index: u16) {
        if !self.backends[usize::from(index)].telemetry.is_wanted(now) {
            return;
        }
        self.rounds.load_wanted.1 += 1;
        let due_ms = self.ready_due_ms(now, index);
        let adopter = &mut self.backends[usize::from(index)].adopter;
        if due_ms < adopter.due_ms && adopter.adoptable(now) {
            adopter.due_ms = due_ms;
            self.rounds.probes.by(due_ms);
        }
    }

    /// The leg that a backend's probes of one kind leave from.
    fn probe_leg(&mut self, now: Instant, index: u16, used: Use) -> Option<Leg> {
        let kind = usize::from(used == Use::LivenessProbe);
        let port = self.backends[usize::from(index)].probe_ports[kind];
        if port != 0 {
            return Some(Leg { backend: index, port });
        }
        let leg = self.take_port(now, index, Purpose::Rescue)?;
        self.backends[usize::from(index)].probe_ports[kind] = leg.port;
        self.legs.uses.assign(leg, used);
        Some(leg)
    }

    /// Forgets the probes and the finding of a backend that left the snapshot.
    pub(crate) fn stop_probing(&mut self, now: Instant, index: u16) {
        let backend = &mut self.backends[usize::from(index)];
        backend.adopter.stop();
        // One that left before may have been probed for its flows' sake.
        backend.liveness.stop_probing();
        for port in std::mem::take(&mut backend.probe_ports) {
            if port != 0 {
                let leg = Leg { backend: index, port };
                self.free_leg(now, leg, Rest::Quiet);
            }
        }
    }

    /// Repeats liveness probes, gives up or begins anew where it is due, a piece of the table at a
    /// time.
    pub(crate) fn liveness_probes_due(&mut self, now: Instant, out: &mut impl Output) {
        let mut left = self.room(LIVENESS_PER_CALL, LIVENESS_AT_LEAST);
        let all = self.backends.len();
        for _ in 0..BACKENDS_PER_CALL {
            let next = self.rounds.liveness_probes.next(now, u64::MAX, all);
            let Some(at) = next.filter(|_| left > 0) else {
                return;
            };
            if now.ms() >= self.backends[at].liveness.probe_due_ms() {
                self.spend(1);
                left -= 1;
                self.liveness_probe_due(now, at as u16, out);
            }
            let due_ms = self.backends[at].liveness.probe_due_ms();
            if self.rounds.liveness_probes.done(due_ms, all) {
                return;
            }
        }
    }

    fn liveness_probe_due(&mut self, now: Instant, index: u16, out: &mut impl Output) {
        if self.backends[usize::from(index)].liveness.repeats() {
            return self.send_liveness_probe(now, index, out);
        }
        let link_settled = self.link.is_settled(now);
        self.counters.add(Counter::LivenessProbesUnanswered);
        self.learn(now, index, Evidence::Silence { link_settled }, out);
    }

    /// Sends the probes that are due, a piece of the table at a time.
    pub(crate) fn send_probes(&mut self, now: Instant, out: &mut impl Output) {
        let mut left = self.room(PROBES_PER_CALL, PROBES_AT_LEAST);
        let (all, next_ms) = (self.backends.len(), now.ms() + PROBE_READY_MS);
        for _ in 0..BACKENDS_PER_CALL {
            let next = self.rounds.probes.next(now, next_ms, all);
            let Some(at) = next.filter(|_| left > 0) else {
                return;
            };
            let mut due_ms = u64::MAX;
            if self.backends[at].listed && !self.keys.is_empty() {
                if now.ms() >= self.backends[at].adopter.due_ms {
                    self.spend(1);
                    left -= 1;
                    self.send_probe(now, at as u16, out);
                }
                due_ms = self.backends[at].adopter.due_ms;
            }
            if self.rounds.probes.done(due_ms, all) {
                self.rounds.probes.due_ms = self.rounds.probes.due_ms.max(now.ms() + 1);
                return;
            }
        }
    }

    fn send_probe(&mut self, now: Instant, index: u16, out: &mut impl Output) {
        let numbers = (self.fresh_number(), self.fresh_number());
        let same_numbers = self.committed.is(Mutant::SameNumbers);
        let ready_due_ms = self.ready_due_ms(now, index);
        let backend = &mut self.backends[usize::from(index)];
        let adopter = &mut backend.adopter;
        let ready = adopter.adoptable(now) && !backend.liveness.mute;
        adopter.due_ms = if ready { ready_due_ms } else { now.ms() + PROBE_OTHER_MS };
        let Some(leg) = self.probe_leg(now, index, Use::Probe) else {
            return;
        };
        let adopter = &mut self.backends[usize::from(index)].adopter;
        if !same_numbers || adopter.numbers.0 == SeqNumber(0) {
            adopter.numbers = numbers;
        }
        let numbers = adopter.numbers;
        if self.emit_probe(leg, numbers, out) {
            self.counters.add(Counter::ProbesSent);
            self.backends[usize::from(index)].adopter.is_probed(now);
        }
    }

    /// Whether one left.
    fn emit_probe(
        &mut self,
        leg: Leg,
        (seq, ack): (SeqNumber, SeqNumber),
        out: &mut impl Output,
    ) -> bool {
        let signs = self.signing_key(leg.backend);
        let (Some(spec), Some((epoch, key))) = (self.to_leg(leg), signs) else {
            return false;
        };
        let spec = SegmentSpec { seq, ack, timestamps: Some((0, 0)), ..spec };
        let message = Adoption::bare(MessageKind::Probe, epoch);
        self.emit(out, |buffer| build_adoption(buffer, &spec, &message, &key))
    }

    /// What an adopter tells besides whether it is ready. Whether it told of its pod's listener: an
    /// older one does not if something is in the way.
    fn reported(
        &mut self,
        now: Instant,
        index: u16,
        (reason, says): (Reason, &Adoption),
        stamps: Option<(u32, u32)>,
    ) -> bool {
        let deaf = self.mutated(Mutant::DeafToPressure);
        let backend = &mut self.backends[usize::from(index)];
        let renewed = backend.adopter.namespace != says.namespace;
        backend.adopter.is_in(says.namespace);
        let report = ListenerReport::from_field(says.server_ts);
        if renewed || backend.liveness.has_other_listener(report) {
            backend.telemetry.forget();
        }
        let load = stamps.filter(|_| !deaf).and_then(LoadReport::from_fields);
        backend.telemetry.hear(now, load);
        if reason != Reason::Ready && !report.is_anything() {
            return false;
        }
        backend.adopter.restores = report.restores;
        if report.forgets && !backend.liveness.forgets() {
            self.legs.forgets.look_now(now);
        }
        if backend.liveness.reported(now, report) {
            self.counters.add(Counter::BackendsRestarted);
            self.judge_pools(now, index);
        }
        true
    }

    /// A segment on a backend's probe port.
    pub(crate) fn answer_to_probe(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        index: u16,
        out: &mut impl Output,
    ) -> Verdict {
        let (seq, ack) = self.backends[usize::from(index)].adopter.numbers;
        let ours = segment.seq == ack && segment.ack == seq;
        match self.message(frame, segment, index) {
            Message::Answer(reason, says) if ours || self.mutated(Mutant::AnyNumbers) => {
                self.counters.add(match reason {
                    Reason::Ready => Counter::ProbesReady,
                    _ => Counter::ProbesRefused,
                });
                self.adopter_is(now, index, Finding::of(now, reason));
                self.reported(now, index, (reason, &says), timestamps(segment.options(frame)));
                let down = self.backends[usize::from(index)].liveness.is_down();
                if reason == Reason::Ready {
                    self.learn(now, index, Evidence::Ready, out);
                } else if reason == Reason::NoListener && !down {
                    self.learn(now, index, Evidence::NoListener, out);
                }
                let backend = &mut self.backends[usize::from(index)];
                if backend.sweep.is_none() && backend.adopter.asks_again() {
                    self.begin_sweep(index, Sweep::Renewed);
                }
            }
            Message::Answer(..) => self.counters.add(Counter::LateAnswers),
            Message::Forged => self.counters.add(Counter::ForgedAnswers),
            Message::None if segment.flags.has(Flags::RST) && segment.seq == ack => {
                self.counters.add(Counter::ProbesReset);
                self.adopter_is(now, index, Finding::NoAdopter);
            }
            // No answer to a probe: the node may have given a connection of others the same port.
            Message::None => {
                if let Some(verdict) = self.pass_to_host(frame, segment.end) {
                    return verdict;
                }
            }
        }
        Verdict::Absorbed
    }

    /// A segment on a backend's port of liveness probes.
    pub(crate) fn answer_to_liveness_probe(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        leg: Leg,
        out: &mut impl Output,
    ) -> Verdict {
        let index = leg.backend;
        let liveness = &self.backends[usize::from(index)].liveness;
        let has = |flag| segment.flags.has(flag);
        let evidence = if let Some((seq, ack)) = liveness.adopter_probe() {
            let ours = segment.seq == ack && segment.ack == seq;
            match self.message(frame, segment, index) {
                Message::Answer(reason, says) if ours => {
                    let stamps = timestamps(segment.options(frame));
                    let reported = self.reported(now, index, (reason, &says), stamps);
                    if reason == Reason::NoListener {
                        Some(Evidence::NoListener)
                    } else {
                        self.counters.add(Counter::LivenessProbesAnswered);
                        Some(Evidence::Answer { reported })
                    }
                }
                Message::None if has(Flags::RST) && segment.seq == ack => {
                    self.probe_mute(now, index);
                    Some(Evidence::NoAdopter)
                }
                _ => None,
            }
        } else if !has(Flags::ACK) || liveness.syn_acked() != Some(segment.ack) {
            None
        } else if has(Flags::RST) {
            self.counters.add(Counter::LivenessProbesRefused);
            Some(Evidence::Refused)
        } else if has(Flags::SYN) {
            self.counters.add(Counter::LivenessProbesAnswered);
            // The pod's half-open connection is of no use.
            self.reset_at(leg, segment.ack, out);
            Some(Evidence::Answer { reported: false })
        } else {
            return Verdict::Absorbed;
        };
        if let Some(evidence) = evidence {
            self.learn(now, index, evidence, out);
            return Verdict::Absorbed;
        }
        // As for a probe of the adopter. What is left of an earlier one comes back from there.
        if let Some(verdict) = self.pass_to_host(frame, segment.end) {
            return verdict;
        }
        self.counters.add(Counter::Fenced);
        if has(Flags::ACK) && !has(Flags::RST) {
            // Something is left of an earlier probe, because our reset was lost or its answer
            // came late: it must not stand in the way of this one.
            self.reset_at(leg, segment.ack, out);
            if (self.backends[usize::from(index)].liveness).may_send_again() {
                self.send_liveness_probe(now, index, out);
            }
        }
        Verdict::Absorbed
    }
}
