//! Adoption probes: whether a backend could adopt a connection right now, asked in band.
//!
//! A probe is an authenticated segment that creates nothing; the adopter answers `Ready` or says what is in the
//! way. It takes the same path as an adoption, so a pod without adopter, with another key, or behind connection
//! tracking that swallows adoptions, is found out before any request is at stake.
//!
//! # Decisions
//!
//! - **Whether a backend is adoptable is asked in band**: an authenticated probe takes the very
//!   path of an adoption and creates nothing; the adopter answers Ready or what is in the way. No
//!   link between dataplane and shim is needed, and a missing adopter, another key, a full accept
//!   queue, an MPTCP listener or connection tracking that swallows adoptions all show before a
//!   request is at stake. Ready holds 3.5 s; a refusal ends it at once.

use crate::{
    Engine, Output, Verdict,
    clock::Instant,
    counters::Counter,
    ids::Leg,
    legs::Use,
    mutants::Mutant,
    ports::{Purpose, Rest},
    timing::{HOLDERS_SETTLE_US, PROBE_OTHER_MS, PROBE_READY_MS, READY_HOLDS_MS, UNANSWERED_MAX},
};
use baton_packet::{
    Adoption, Flags, ListenerReport, MessageKind, Reason, Segment, SeqNumber, build_adoption,
    parse_adoption,
};

/// Backends looked at in one call for whether a probe is due, and probes sent: usually, and
/// whatever else there is to do.
const BACKENDS_PER_CALL: usize = 1_024;
const PROBES_PER_CALL: usize = 48;
const PROBES_AT_LEAST: usize = 8;

/// What a listener says about ends that came before it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Nothing.
    Unknown,
    /// All who had it have it: the server goes on.
    Same,
    /// Some who had it do not any more: the server may be shutting down.
    LetGo,
}

/// What is known of a backend's adopter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    Unknown,
    Ready {
        until_ms: u64,
    },
    Refused(Reason),
    /// A bare RST: a kernel without adopter.
    NoAdopter,
    /// Adoptions met silence.
    Silent,
}

/// Whether a backend ever answered probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Never.
    Never,
    /// It did; silence now means something.
    Before,
}

/// The state of one backend's probing.
#[derive(Clone)]
pub(crate) struct Probe {
    finding: Finding,
    port: u16,
    seq: SeqNumber,
    ack: SeqNumber,
    due_ms: u64,
    /// Probes since anything was known, none of them answered.
    unanswered: u8,
    /// It said Ready once.
    ever_ready: bool,
    /// What it last told besides that.
    told: ListenerReport,
    /// The number of the pod's network namespace, which its adopter wants to see in what it acts
    /// upon; 0: not known yet.
    namespace: u64,
    /// How often that became another one.
    renewed: u8,
    /// Since when there is this listener.
    since: Instant,
    /// It left a question unanswered since.
    mute: bool,
    /// When its listener was last let go of by one of several holders, or by a process that exited.
    let_go: Option<Instant>,
    /// When it last had another listener than before.
    replaced: Option<Instant>,
}

impl Default for Probe {
    fn default() -> Self {
        Self {
            finding: Finding::Unknown,
            port: 0,
            seq: SeqNumber(0),
            ack: SeqNumber(0),
            due_ms: 0,
            unanswered: 0,
            ever_ready: false,
            told: ListenerReport::default(),
            namespace: 0,
            renewed: 0,
            since: Instant(0),
            mute: false,
            let_go: None,
            replaced: None,
        }
    }
}

impl Probe {
    #[inline]
    pub(crate) fn adoptable(&self, now: Instant) -> bool {
        matches!(self.finding, Finding::Ready { until_ms } if now.ms() < until_ms)
    }

    /// Whether it ever was.
    pub(crate) fn ever_ready(&self) -> bool {
        self.ever_ready
    }

    /// Whether its adopter tells of the listener, and marks the ends of processes that exit.
    pub(crate) fn supports_report(&self) -> bool {
        !self.mute && self.told.marks_exits && self.told.listener.is_some()
    }

    /// Whether its adopter answers Forgets.
    pub(crate) fn forgets(&self) -> bool {
        self.told.forgets
    }

    /// The number of the pod's network namespace.
    pub(crate) fn namespace(&self) -> u64 {
        self.namespace
    }

    /// How often the pod was found to have another number than before, modulo 256: what began with
    /// one pod must not go on with the next.
    pub(crate) fn renewed(&self) -> u8 {
        self.renewed
    }

    /// The answer to a question that nobody else was asked came from this namespace.
    pub(crate) fn is_in(&mut self, namespace: u64) {
        if self.namespace != namespace {
            self.renewed = self.renewed.wrapping_add(u8::from(self.namespace != 0));
            self.namespace = namespace;
        }
    }

    /// Whether its adopter ever told of the present listener: what is not known of it now will be.
    pub(crate) fn knew_listener(&self) -> bool {
        self.told.listener.is_some()
    }

    /// It did not answer a question, and is not asked another one before it says Ready, for which it is probed soon.
    pub(crate) fn is_mute(&mut self, now: Instant) {
        self.mute = true;
        self.due_ms = self.due_ms.min(now.ms() + PROBE_OTHER_MS);
    }

    /// Whether it is another listener than the one before.
    fn takes_report(&mut self, now: Instant, told: ListenerReport) -> bool {
        self.mute = false;
        let before = std::mem::replace(&mut self.told, told);
        let (old, new) = match (before.listener, told.listener) {
            (Some(old), Some(new)) => (old, new),
            (None, Some(_)) => {
                self.since = now;
                return false;
            }
            (_, None) => return false,
        };
        if old.several || new.several {
            // Which of them had accepted a flow is not known: the others may go on, and close what they mean to.
            if old.id != new.id {
                (self.since, self.let_go) = (now, Some(now));
            }
        } else if old.id != new.id {
            (self.since, self.let_go, self.replaced) = (now, None, Some(now));
            return true;
        }
        if new.holders < old.holders {
            self.let_go = Some(now);
        }
        false
    }

    /// A process exited, and let go of the listener if it had it.
    pub(crate) fn process_exited(&mut self, now: Instant) {
        self.let_go = Some(now);
    }

    /// When another listener was first told of than the one before.
    pub(crate) fn replaced(&self) -> Option<Instant> {
        self.replaced
    }

    /// What the listener that was just told of says about ends of the last moments.
    pub(crate) fn news(&self, now: Instant) -> News {
        if self
            .let_go
            .is_some_and(|at| now.0 < at.0 + HOLDERS_SETTLE_US)
        {
            News::LetGo
        } else if !self.supports_report() || now.0 < self.since.0 + HOLDERS_SETTLE_US {
            News::Unknown
        } else {
            News::Same
        }
    }

    /// Whether it ever answered.
    pub(crate) fn heard(&self) -> Heard {
        match self.finding {
            Finding::Unknown | Finding::Silent if !self.ever_ready => Heard::Never,
            _ => Heard::Before,
        }
    }

    /// What was known holds no longer: its process is gone.
    pub(crate) fn forget(&mut self) {
        self.finding = Finding::Unknown;
        self.unanswered = 0;
        self.due_ms = 0;
    }

    /// The same, and it is asked again only then: until its last process is gone, its kernel says Ready.
    pub(crate) fn forget_until(&mut self, due_ms: u64) {
        self.finding = Finding::Unknown;
        self.unanswered = 0;
        self.due_ms = due_ms;
        // An answer that is still under way is to another probe.
        self.seq = self.seq.add(1);
    }

    /// To be asked at once.
    pub(crate) fn hurry(&mut self) {
        self.due_ms = 0;
    }

    /// Whether `port` is the one that probes leave from.
    pub(crate) fn is_on(&self, port: u16) -> bool {
        self.port == port
    }

    /// An adoption was refused: not adoptable until a probe says otherwise.
    pub(crate) fn refused(&mut self, now: Instant, reason: Reason) {
        self.finding = Finding::Refused(reason);
        self.due_ms = now.ms() + PROBE_OTHER_MS;
    }

    /// Adoptions met silence: not adoptable until a probe says otherwise.
    pub(crate) fn silent(&mut self, now: Instant) {
        self.finding = Finding::Silent;
        self.due_ms = now.ms() + PROBE_OTHER_MS;
    }

    /// In words, for people.
    pub(crate) fn words(&self, now: Instant) -> &'static str {
        match self.finding {
            Finding::Unknown if self.unanswered < UNANSWERED_MAX => "not probed yet",
            Finding::Unknown => {
                "no answer to probes (a firewall, or addresses translated on the way?)"
            }
            Finding::Ready { until_ms } if now.ms() >= until_ms => "no answer to probes any more",
            Finding::Ready { .. } if !self.told.marks_exits || self.told.listener.is_none() => {
                "ready, but ends are not marked: a server's close is believed if anybody listens"
            }
            Finding::Ready { .. } => "ready",
            Finding::Refused(Reason::NoListener) => "nothing listens on the port",
            Finding::Refused(Reason::AcceptQueueFull) => "accept queue full",
            Finding::Refused(Reason::KernelRefused) => {
                "the pod's kernel refuses (an MPTCP listener?)"
            }
            Finding::Refused(Reason::SyncookiesOff) => "net.ipv4.tcp_syncookies is 0 in the pod",
            Finding::Refused(Reason::PacketRules) => {
                "the pod's packet rules redirect, translate or tell SYNs from other segments, or have just changed: an adoption could go around a proxy"
            }
            Finding::Refused(_) => "refused",
            Finding::NoAdopter => "no adopter (is host-shim running there?)",
            Finding::Silent => "adoptions meet silence",
        }
    }
}

impl Engine {
    /// Notes what speaks against a backend's adopter, and has it probed again soon.
    pub(crate) fn probe_soon(&mut self, now: Instant, index: u16, note: impl FnOnce(&mut Probe)) {
        note(&mut self.backends[usize::from(index)].probe);
        self.next_probe_ms = self.next_probe_ms.min(now.ms() + PROBE_OTHER_MS);
    }

    /// Sends the probes that are due, a piece of the table at a time.
    pub(crate) fn send_probes(&mut self, now: Instant, out: &mut impl Output) {
        if self.probe_pass.at.is_none() {
            if now.ms() < self.next_probe_ms {
                return;
            }
            // Who wants one meanwhile makes it sooner again.
            self.next_probe_ms = u64::MAX;
            (self.probe_pass.at, self.probe_pass.found) = (Some(0), now.ms() + PROBE_READY_MS);
        }
        let Some(from) = self.probe_pass.at else {
            return;
        };
        let mut left = self.room(PROBES_PER_CALL, PROBES_AT_LEAST);
        let to = (from + BACKENDS_PER_CALL).min(self.backends.len());
        let mut at = from;
        while at < to && left > 0 {
            let backend = &self.backends[at];
            if backend.listed && !self.keys.is_empty() {
                if now.ms() >= backend.probe.due_ms {
                    self.spend(1);
                    left -= 1;
                    self.send_probe(now, at as u16, out);
                }
                let due_ms = self.backends[at].probe.due_ms;
                self.probe_pass.found = self.probe_pass.found.min(due_ms);
            }
            at += 1;
        }
        self.probe_pass.at = (at < self.backends.len()).then_some(at);
        if self.probe_pass.at.is_none() {
            let next_ms = self.next_probe_ms.min(self.probe_pass.found);
            self.next_probe_ms = next_ms.max(now.ms() + 1);
        }
    }

    fn send_probe(&mut self, now: Instant, index: u16, out: &mut impl Output) {
        let numbers = (self.fresh_number(), self.fresh_number());
        let backend = &mut self.backends[usize::from(index)];
        let wait = if backend.probe.adoptable(now) && !backend.probe.mute {
            PROBE_READY_MS
        } else {
            PROBE_OTHER_MS
        };
        backend.probe.due_ms = now.ms() + wait;
        if backend.probe.port == 0 {
            let Some(port) = backend
                .ports
                .take(&mut self.rests, now.ms(), Purpose::Rescue)
            else {
                return;
            };
            let leg = Leg {
                backend: index,
                port,
            };
            self.legs.assign(leg, Use::Probe);
            backend.probe.port = port;
        }
        let same = self.committed.is(Mutant::SameNumbers) && backend.probe.seq != SeqNumber(0);
        if !same {
            (backend.probe.seq, backend.probe.ack) = numbers;
        }
        let numbers = (backend.probe.seq, backend.probe.ack);
        let leg = Leg {
            backend: index,
            port: backend.probe.port,
        };
        if self.emit_probe(leg, numbers, out) {
            self.counters.add(Counter::ProbesSent);
            let probe = &mut self.backends[usize::from(index)].probe;
            if probe.finding == Finding::Unknown {
                probe.unanswered = probe.unanswered.saturating_add(1);
            }
        }
    }

    /// Whether one left.
    pub(crate) fn emit_probe(
        &mut self,
        leg: Leg,
        (seq, ack): (SeqNumber, SeqNumber),
        out: &mut impl Output,
    ) -> bool {
        let signs = self.signing_key(leg.backend);
        let (Some(mut spec), Some((epoch, key))) = (self.to_leg(leg), signs) else {
            return false;
        };
        spec.seq = seq;
        spec.ack = ack;
        spec.timestamps = Some((0, 0));
        let message = Adoption::bare(MessageKind::Probe, epoch);
        self.emit(out, |buffer| build_adoption(buffer, &spec, &message, &key))
    }

    /// What an adopter told of its pod's listener, and whether it did. (An older one does not if something is in the way.)
    pub(crate) fn listener_reported(
        &mut self,
        now: Instant,
        index: u16,
        reason: Reason,
        told: ListenerReport,
    ) -> bool {
        if reason != Reason::Ready && !told.is_anything() {
            return false;
        }
        let backend = &mut self.backends[usize::from(index)];
        if told.forgets && !backend.probe.forgets() {
            self.forgets.look_now(now);
        }
        if backend.probe.takes_report(now, told) {
            backend.health.is_another_process();
            self.counters.add(Counter::BackendsRestarted);
            self.judge_pools(now, index);
        }
        true
    }

    /// A segment on a backend's probe port.
    pub(crate) fn answer_to_probe(
        &mut self,
        now: Instant,
        frame: &[u8],
        segment: &Segment,
        index: u16,
        out: &mut impl Output,
    ) -> Verdict {
        let probe = &self.backends[usize::from(index)].probe;
        let (seq, ack) = (probe.seq, probe.ack);
        let (mut told, mut namespace) = (None, None);
        let (finding, counter) = if let Some(raw) = parse_adoption(frame, segment) {
            let ours = segment.seq == ack && segment.ack == seq;
            let believed = ours || self.mutated(Mutant::AnyNumbers);
            match self.verified(&raw, index).map(|a| (a.kind, a)) {
                Some((MessageKind::Answer(reason), a)) if believed => {
                    told = Some((reason, ListenerReport::from_field(a.server_ts)));
                    namespace = Some(a.namespace);
                    if reason == Reason::Ready {
                        (
                            Finding::Ready {
                                until_ms: now.ms() + READY_HOLDS_MS,
                            },
                            Counter::ProbesReady,
                        )
                    } else {
                        (Finding::Refused(reason), Counter::ProbesRefused)
                    }
                }
                Some((MessageKind::Answer(_), _)) => {
                    self.counters.add(Counter::LateAnswers);
                    return Verdict::Absorbed;
                }
                _ => {
                    self.counters.add(Counter::ForgedAnswers);
                    return Verdict::Absorbed;
                }
            }
        } else if segment.flags.has(Flags::RST) && segment.seq == ack {
            (Finding::NoAdopter, Counter::ProbesReset)
        } else {
            return Verdict::Absorbed;
        };
        self.counters.add(counter);
        let probe = &mut self.backends[usize::from(index)].probe;
        if let Some(namespace) = namespace {
            probe.is_in(namespace);
        }
        let ready = matches!(finding, Finding::Ready { .. });
        let nobody = finding == Finding::Refused(Reason::NoListener);
        if ready {
            probe.due_ms = now.ms() + PROBE_READY_MS;
            probe.ever_ready = true;
        }
        if let Some((reason, told)) = told {
            self.listener_reported(now, index, reason, told);
        }
        if nobody && !self.backends[usize::from(index)].health.is_down() {
            self.adopter_finds_nobody(now, index, out);
        }
        if ready {
            self.backend_is_up(now, index);
        }
        let probe = &mut self.backends[usize::from(index)].probe;
        probe.finding = finding;
        if !ready {
            probe.due_ms = now.ms() + PROBE_OTHER_MS;
            self.next_probe_ms = self.next_probe_ms.min(now.ms() + PROBE_OTHER_MS);
        }
        Verdict::Absorbed
    }

    /// Forgets the probe port and the finding of a backend that left the snapshot, but not that it ever adopted, nor its
    /// listener: its flows may outlive it.
    pub(crate) fn stop_probing(&mut self, now: Instant, index: u16) {
        let backend = &mut self.backends[usize::from(index)];
        if backend.probe.port != 0 {
            let port = std::mem::take(&mut backend.probe.port);
            let leg = Leg {
                backend: index,
                port,
            };
            self.free_leg(now, leg, Rest::Quiet);
        }
        let backend = &mut self.backends[usize::from(index)];
        backend.probe = Probe {
            finding: Finding::Unknown,
            seq: SeqNumber(0),
            ack: SeqNumber(0),
            due_ms: 0,
            ..backend.probe.clone()
        };
    }
}
