//! Whether a backend's pod could adopt a connection right now, by what its adopter answers.
//!
//! Owns what is known of one adopter. Probing it is `probe`'s; what it reports of the listener is
//! `liveness`'.
//!
//! # Decisions
//!
//! - **Whether a backend is adoptable is asked in band**: an authenticated probe takes the very
//!   path of an adoption and creates nothing; the adopter answers Ready or what is in the way. No
//!   link between dataplane and shim is needed, and a missing adopter, another key, a full accept
//!   queue, an MPTCP listener or connection tracking that swallows adoptions all show before a
//!   request is at stake. Ready holds 3.5 s; a refusal ends it at once.

use crate::{
    clock::Instant,
    timing::{PROBE_OTHER_MS, READY_HOLDS_MS, RENEWED_ASKS, UNANSWERED_MAX},
};
use baton_api::{Adoptability, MoveMethod};
use baton_packet::{Reason, SeqNumber};

/// What is known of a backend's adopter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Finding {
    #[default]
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

impl Finding {
    /// What an answer says.
    pub(crate) fn of(now: Instant, reason: Reason) -> Self {
        match reason {
            Reason::Ready => Finding::Ready { until_ms: now.ms() + READY_HOLDS_MS },
            reason => Finding::Refused(reason),
        }
    }
}

/// One backend's adopter.
#[derive(Default)]
pub(crate) struct Adopter {
    finding: Finding,
    /// Numbers of the last probe.
    pub(crate) numbers: (SeqNumber, SeqNumber),
    /// When the next one is due.
    pub(crate) due_ms: u64,
    /// Probes since anything was known, none of them answered.
    unanswered: u8,
    /// One was sent, ever.
    asked: bool,
    /// Its pod answered a SYN with less than clients were promised: no timestamps. Until it is
    /// another one.
    pub(crate) unlike: bool,
    /// It said Ready once.
    pub(crate) ever_ready: bool,
    /// It said that it takes client blocks; also while nobody listens in its pod.
    pub(crate) restores: bool,
    /// The number of the pod's network namespace, which its adopter wants to see in what it acts
    /// upon; 0: not known yet.
    pub(crate) namespace: u64,
    /// How often the pod was found to have another number than before, modulo 256: what began with
    /// one pod must not go on with the next.
    pub(crate) renewed: u8,
    /// Answers to probes after which those who wait for the pod before are still to ask for it.
    asks: u8,
}

impl Adopter {
    #[inline]
    pub(crate) fn adoptable(&self, now: Instant) -> bool {
        matches!(self.finding, Finding::Ready { until_ms } if now.ms() < until_ms)
    }

    /// Whether the pod can take a connection over now, by one of the policy's methods.
    #[inline]
    pub(crate) fn takes_over(&self, now: Instant, method: MoveMethod) -> bool {
        match method {
            MoveMethod::Adoption => self.adoptable(now),
            MoveMethod::Translation => self.may_open(),
            MoveMethod::Auto => self.adoptable(now) || (self.may_open() && self.cannot_adopt(now)),
        }
    }

    /// It was asked, or will be at once, and may still answer.
    pub(crate) fn is_asked(&self) -> bool {
        self.finding == Finding::Unknown && self.unanswered < UNANSWERED_MAX
    }

    /// Whether it takes client blocks: it said so, and nothing that was found since makes another
    /// pod of it. An adoption that met silence does not, nor does a process that exited.
    pub(crate) fn restores(&self) -> bool {
        self.restores
            && match self.finding {
                Finding::Ready { .. } | Finding::Refused(_) | Finding::Silent => true,
                Finding::Unknown => self.is_asked(),
                Finding::NoAdopter => false,
            }
    }

    /// A kernel without it answered the last probe.
    pub(crate) fn is_gone(&self) -> bool {
        self.finding == Finding::NoAdopter
    }

    /// Nothing is known against a handshake with the pod.
    fn may_open(&self) -> bool {
        let nobody = [Reason::NoListener, Reason::AcceptQueueFull].map(Finding::Refused);
        !self.unlike && !nobody.contains(&self.finding)
    }

    /// Nobody can be expected to say soon that it can: it said why not, has not answered for long,
    /// or is not asked at all.
    fn cannot_adopt(&self, now: Instant) -> bool {
        match self.finding {
            Finding::Refused(_) | Finding::NoAdopter | Finding::Silent => true,
            Finding::Unknown => !self.asked || self.unanswered >= UNANSWERED_MAX,
            Finding::Ready { until_ms } => {
                now.ms() >= until_ms && self.unanswered >= UNANSWERED_MAX
            }
        }
    }

    /// Whether it ever answered: silence now means something.
    pub(crate) fn ever_answered(&self) -> bool {
        self.ever_ready || !matches!(self.finding, Finding::Unknown | Finding::Silent)
    }

    /// The answer to a probe that nobody else got came from this namespace.
    pub(crate) fn is_in(&mut self, namespace: u64) {
        if self.namespace != namespace {
            if self.namespace != 0 {
                self.renewed = self.renewed.wrapping_add(1);
                self.asks = RENEWED_ASKS;
            }
            self.namespace = namespace;
            self.restores = false;
        }
    }

    /// Whether those who wait for the pod before are to ask for it now.
    pub(crate) fn asks_again(&mut self) -> bool {
        let asks = self.asks > 0;
        self.asks = self.asks.saturating_sub(1);
        asks
    }

    /// A probe left.
    pub(crate) fn is_probed(&mut self, now: Instant) {
        self.asked = true;
        let lapsed = matches!(self.finding, Finding::Ready { until_ms } if now.ms() >= until_ms);
        if lapsed || self.finding == Finding::Unknown {
            self.unanswered = self.unanswered.saturating_add(1);
        }
    }

    /// What a probe or an adoption found. Who is ready is asked again at that time, others soon.
    pub(crate) fn found(&mut self, now: Instant, finding: Finding, ready_due_ms: u64) {
        self.finding = finding;
        self.unanswered = 0;
        let ready = matches!(finding, Finding::Ready { .. });
        self.ever_ready |= ready;
        self.due_ms = if ready { ready_due_ms } else { now.ms() + PROBE_OTHER_MS };
    }

    /// What was known holds no longer: it is asked again then.
    pub(crate) fn forget(&mut self, due_ms: u64) {
        self.finding = Finding::Unknown;
        self.unanswered = 0;
        self.due_ms = due_ms;
    }

    /// The same, and an answer that is still under way is to another probe.
    pub(crate) fn forget_answers(&mut self, due_ms: u64) {
        self.forget(due_ms);
        self.numbers.0 = self.numbers.0.add(1);
    }

    /// Its backend left the snapshot. That it ever adopted is not forgotten: its flows may outlive
    /// it.
    pub(crate) fn stop(&mut self) {
        self.finding = Finding::Unknown;
        (self.asked, self.unlike, self.restores) = (false, false, false);
        self.numbers = Default::default();
        self.due_ms = 0;
    }

    /// Whether it can take connections over, and why not; `marks`: it marks the ends of processes
    /// that exit.
    pub(crate) fn adoptability(&self, now: Instant, marks: bool) -> Adoptability {
        match self.finding {
            Finding::Unknown if self.unanswered < UNANSWERED_MAX => Adoptability::NotProbed,
            Finding::Unknown => Adoptability::Unanswered,
            Finding::Ready { until_ms } if now.ms() >= until_ms => Adoptability::Lapsed,
            Finding::Ready { .. } if !marks => Adoptability::ReadyUnmarked,
            Finding::Ready { .. } => Adoptability::Ready,
            Finding::Refused(Reason::NoListener) => Adoptability::NotListening,
            Finding::Refused(Reason::AcceptQueueFull) => Adoptability::AcceptQueueFull,
            Finding::Refused(Reason::KernelRefused) => Adoptability::KernelRefused,
            Finding::Refused(Reason::SyncookiesOff) => Adoptability::SyncookiesOff,
            Finding::Refused(Reason::PacketRules) => Adoptability::PacketRules,
            Finding::Refused(_) => Adoptability::Refused,
            Finding::NoAdopter => Adoptability::NoAdopter,
            Finding::Silent => Adoptability::AdoptionsLost,
        }
    }
}
