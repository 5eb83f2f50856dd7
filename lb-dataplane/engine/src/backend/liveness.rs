//! What a pod is believed to be: alive, silent, without a listener, another process than before.
//!
//! Owns all that is known of one pod's life, whichever policies have it, and the liveness probe
//! that its flows' held ends wait for: one for all of them. It is pure: [`Evidence`] in, [`Belief`]
//! out. `probe` gathers the evidence and carries out what follows; `sweep` takes it to the flows.
//! What a policy's own flows say of a pod is its member's (`member`).
//!
//! A liveness probe goes to the adopter where that can tell whose the listener is; else, and where
//! that is not answered, it is a SYN, which the pod's kernel answers. Neither opens anything: a
//! SYN-ACK is answered with a RST, so that the application never sees a connection (Linux drops the
//! request socket, `tcp_check_req`).
//!
//! # Decisions
//!
//! - **An end without a mark is believed after one round trip if the listener is held as it was
//!   before**: the adopter tells which listener there is (the end of its inode number) and how many
//!   descriptors refer to it. Servers let go of the listener before they close idle connections:
//!   nginx's workers one by one, each its own copy, its master up to 10 ms later; Go, Node.js and
//!   others close it for good. As many holders as before: the close was meant, also where all
//!   connections time out together. Fewer: the pod is watched for a second. None, or another one
//!   than when the flow came to its owner: that process is gone, and the flow is rescued, even if
//!   its FIN comes late, behind data that the client was slow to take (11 of the simulation's
//!   10,000 worlds). With the answer to a plain SYN instead, one round trip lost 2 and 4
//!   connections in 60 shutdowns (SIGQUIT, which nginx's images ask for) of an nginx with two
//!   workers and one idle connection; with the holders none in 60, nor in 60 right after the
//!   server's start (`BATON_SHUTDOWNS=20 make test-ns`, test `shutdown`: 20 each with 1, 2 and 64
//!   connections; 40 and 40 with a listener for each worker). A close is then 0 to 1 ms late where
//!   it was 4 (`closes`: 1.0009 s directly, 1.0012 s through Baton). A lost probe is sent again
//!   after 20 ms, and only the third is a SYN.
//! - **Where several sockets listen (`SO_REUSEPORT`) and their sum is another one within a second
//!   of an end, whoever closed without a listener let go of one of them**, and the flow is rescued:
//!   of several it cannot be known which one a flow was accepted from, and the others answer all
//!   the while. Watching for a second instead took the connections of a server whose next process
//!   listened before it left, or within 5 ms, for meant closes (all 32 of its: `quiet::shutdown` in
//!   `e2e/ns`). What it costs where it is wrong: a process that never listens, the child of one,
//!   means to close a connection at rest in that second, and the client is not told.
//! - **Where it was not known at an end who holds the listener** (two reports alike, a second
//!   apart, say it: a count from between two forks would be met again when the first worker lets
//!   go), or the adopter is mute (two probes lost; it is probed ten times a second then), **the end
//!   is believed a second after it at the latest**: the last FINs of a server that shuts down, and
//!   those that it means, are the same until its listener is gone. We chose the connections; the
//!   close is late by less than a second, and a request that the client sends meanwhile is served
//!   by another pod. On a machine with three to four busy processes for each CPU, 2 of 60 shutdowns
//!   right after a start closed connections with 50 ms: nginx's master had not had its turn. With a
//!   second, none in 200; but where the second was counted from the first report instead of from
//!   the end, one on a slow machine. A close with `Connection: close`, a body that ends with the
//!   connection, a pinned flow: these pass at once.
//! - **Without marks** (a pod without adopter, more than 128 sockets on one port) **no answer says
//!   whether an end was meant**, and `status` says that ends are not marked: what comes of one is
//!   decided in `handover/ending.rs`. Rejected: five rules by time (an answer 3 ms later, bursts of
//!   three ends, 50 ms, nine tenths of a pod's flows); each failed on a busy machine.
//! - **A pod that says nothing is probed** after 250 ms with requests outstanding, or when its
//!   adopter's answers stop (2.2 s), and is down after three probes without an answer (140 ms).
//!   A frozen process is not silent, its kernel answers: `responseTimeout` is for it.

use crate::{
    clock::Instant,
    timing::{
        DOWN_PAUSE_MS, DOWN_PAUSE_WAITING_MS, FEW_ENDS, HOLDERS_SETTLE_US, LIVENESS_PROBES_MAX,
        LIVENESS_TRIES_HEARD_MAX, LIVENESS_TRIES_MAX, LIVENESS_WAIT_MS, SILENT_BUSY_MS,
        SILENT_IDLE_MS, WATCH_PAUSE_MS,
    },
};
use baton_api::BackendHealth;
use baton_packet::{ListenerReport, SeqNumber};

/// Why nothing can be served by a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Down {
    /// Its kernel says that nothing listens.
    NoListener,
    /// Nothing answers at all.
    Silent,
}

/// What was observed of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// A flow ended, and its client is not told yet.
    End { closer_listens: bool },
    /// A process exited: perhaps the last one that listens.
    Exit,
    /// Nothing was heard for too long, or an end came instead of an answer.
    Doubt,
    /// The kernel answered the SYN, or the adopter a probe: with a report of the listener, which
    /// was taken ([`Liveness::reported`]), or without.
    Answer { reported: bool },
    /// The adopter could adopt a connection.
    Ready,
    /// The kernel refused a SYN.
    Refused,
    /// The adopter finds no listener on the port.
    NoListener,
    /// A kernel without adopter answered a probe.
    NoAdopter,
    /// All tries are over ([`Liveness::repeats`]).
    Silence { link_settled: bool },
}

/// What the evidence comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Belief {
    /// Nothing new: an answer is awaited already, or none is needed.
    Unchanged,
    /// Not known: the pod is probed now.
    Probe,
    /// Somebody listens. Of the ends that are held those stand that are old enough
    /// ([`Liveness::settles`]); the others wait until the pod is probed again then.
    Believe {
        /// It was down.
        back: bool,
        /// Ends are held.
        held: bool,
        wait_until_ms: Option<u64>,
    },
    /// Nobody listens, or nothing answers: its flows need other owners.
    Orphan {
        why: Down,
        /// It was not known.
        news: bool,
    },
}

/// Whether anybody listens: one probe for all flows of the pod.
#[derive(Default)]
#[cfg_attr(test, derive(Clone))]
struct LivenessProbe {
    isn: SeqNumber,
    /// The acknowledged number of one to the adopter; `None` for a SYN.
    adopter_ack: Option<SeqNumber>,
    /// The adopter found no listener: only a SYN says whether clients find one.
    by_syn: bool,
    /// Sent since anything was heard; 0: none is out.
    tries: u8,
    /// One of them left: there was a way to the pod.
    left: bool,
    /// When the unanswered one, or the next one, is due; `None` for never.
    due_ms: Option<u64>,
    sent_us: u64,
    first_sent_us: u64,
    first_end_us: u64,
    last_end_us: u64,
    /// Flows that ended since the pod was last known to live.
    ends: u32,
    /// When the last answered one was sent, and how old an end has to be then to stand.
    answered_us: u64,
    settle_us: u64,
}

/// What is known of one pod's life.
#[derive(Default)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Liveness {
    down: Option<Down>,
    /// The kernel's route to it leads through another interface than ours: nothing can be sent to
    /// it, even where health does not matter.
    pub(crate) elsewhere: bool,
    /// When the last segment came from it.
    heard_ms: u64,
    /// When it came up, to take part with a share that grows where a policy wants that; 0 if it was
    /// there from the start.
    pub(crate) up_ms: u64,
    /// Counts the processes that were there: what one failed at says nothing of the next.
    process: u32,
    /// Members that have evidence against this process. While there are none, nobody has to be told
    /// that it works.
    pub(crate) suspects: u32,
    /// No ejection of this process by any policy lasts longer.
    ejected_until_ms: u64,
    /// What the adopter last reported of the listener.
    report: ListenerReport,
    /// Since when there is this listener, with so many holders or more.
    since: Instant,
    /// Since when it is known who holds it: it was told of for [`HOLDERS_SETTLE_US`] then, and is
    /// held as before.
    known: Option<Instant>,
    /// The adopter left a liveness probe unanswered, and gets no other one before it answers.
    pub(crate) mute: bool,
    /// When its listener was last let go of by one of several holders, or by a process that exited.
    let_go: Option<Instant>,
    /// When it last had another listener than before.
    replaced: Option<Instant>,
    /// When there were last others than before, where several listen.
    regrouped: Option<Instant>,
    probe: LivenessProbe,
}

impl LivenessProbe {
    /// This many more flows ended.
    fn ends_at(&mut self, now: Instant, count: u32) {
        if self.ends == 0 {
            self.first_end_us = now.0;
        }
        self.ends = self.ends.saturating_add(count);
        self.last_end_us = now.0;
    }
}

impl Liveness {
    /// What a piece of evidence comes to; `waiting`: flows wait for the pod.
    pub(crate) fn learn(&mut self, now: Instant, waiting: bool, evidence: Evidence) -> Belief {
        let probe = &mut self.probe;
        match evidence {
            Evidence::End { closer_listens } => {
                probe.ends_at(now, 1);
                // Where the pod is being watched, this end has not to wait for that.
                if closer_listens && probe.due_ms.is_some() && probe.tries == 0 {
                    return Belief::Probe;
                }
                self.doubt(now)
            }
            Evidence::Exit => {
                probe.ends_at(now, FEW_ENDS + 1);
                self.let_go = Some(now);
                self.doubt(now)
            }
            Evidence::Doubt => self.doubt(now),
            Evidence::Answer { reported } => self.believe(now, reported),
            // How old that is for the ends that are held is not known.
            Evidence::Ready => {
                Belief::Believe { back: self.is_back(now), held: false, wait_until_ms: None }
            }
            Evidence::Refused => self.orphan(now, waiting, Down::NoListener),
            Evidence::NoListener => {
                if self.report.listener.is_some() {
                    // It is gone or is being replaced.
                    self.let_go = Some(now);
                }
                // Something in the pod may hand connections to another port: whether a client's SYN
                // is refused too, only a SYN says.
                if probe.tries > 0 && probe.adopter_ack.is_none() {
                    return Belief::Unchanged;
                }
                probe.by_syn = true;
                self.begin(now)
            }
            Evidence::NoAdopter => {
                self.mute = true;
                Belief::Probe
            }
            // Its kernel lives and its listener is too busy to answer: that is no death.
            Evidence::Silence { .. } if self.is_heard() => self.believe(now, false),
            // What was sent may never have left.
            Evidence::Silence { link_settled } if !link_settled => self.begin(now),
            Evidence::Silence { .. } if self.speaks_again() => Belief::Believe {
                back: false,
                held: false,
                wait_until_ms: Some(self.pause(now, waiting)),
            },
            Evidence::Silence { .. } => self.orphan(now, waiting, Down::Silent),
        }
    }

    /// Whether it was silent, and something came from it since the probe that is unanswered left:
    /// what it has, perhaps, and is asked again before it is taken from it.
    fn speaks_again(&self) -> bool {
        self.down == Some(Down::Silent) && self.heard_ms * 1_000 > self.probe.sent_us
    }

    fn doubt(&mut self, now: Instant) -> Belief {
        if self.is_probed() { Belief::Unchanged } else { self.begin(now) }
    }

    /// Begins to probe, or begins anew.
    fn begin(&mut self, now: Instant) -> Belief {
        self.probe.tries = 0;
        self.probe.first_sent_us = now.0;
        Belief::Probe
    }

    /// Somebody listens; `reported`: and the adopter told who.
    fn believe(&mut self, now: Instant, reported: bool) -> Belief {
        let settle_us = self.settle_us(now, reported);
        let probe = &mut self.probe;
        (probe.tries, probe.by_syn) = (0, false);
        (probe.settle_us, probe.answered_us) = (settle_us, probe.sent_us);
        let (held, few) = (probe.ends > 0, probe.ends <= FEW_ENDS);
        let settled_us = probe.last_end_us + settle_us;
        let wait_until_ms = if !held || probe.sent_us >= settled_us {
            (probe.ends, probe.due_ms) = (0, None);
            None
        } else if settle_us == 0 && few {
            // What ended while the pod was probed. Where there is more, once a millisecond: each
            // answer goes through all its flows.
            Some(now.ms())
        } else {
            let next_ms = (now.ms() + WATCH_PAUSE_MS).min(settled_us.div_ceil(1_000));
            probe.due_ms = Some(next_ms.max(now.ms() + 1));
            probe.due_ms
        };
        Belief::Believe { back: self.is_back(now), held, wait_until_ms }
    }

    /// How old an end has to be for whoever listens to have meant it.
    fn settle_us(&self, now: Instant, reported: bool) -> u64 {
        let lately = |at: Instant| now.0 < at.0 + HOLDERS_SETTLE_US;
        let let_go = reported && self.let_go.is_some_and(lately);
        // All who had it before the first of these ends have it: the server goes on.
        let known = self.known.is_some_and(|at| at.0 <= self.probe.first_end_us);
        let same = reported && self.supports_report() && known;
        // Without an adopter that tells of the listener nothing says that the end was not meant.
        if !let_go && (same || self.report.listener.is_none()) {
            0
        } else {
            // Sooner if it is told meanwhile that all is as it was.
            HOLDERS_SETTLE_US
        }
    }

    fn orphan(&mut self, now: Instant, waiting: bool, why: Down) -> Belief {
        let news = self.down.replace(why) != Some(why);
        self.pause(now, waiting);
        self.probe.ends = 0;
        Belief::Orphan { why, news }
    }

    /// It is down: when it is probed next.
    fn pause(&mut self, now: Instant, waiting: bool) -> u64 {
        let probe = &mut self.probe;
        (probe.tries, probe.by_syn) = (0, false);
        let pause_ms = if waiting { DOWN_PAUSE_WAITING_MS } else { DOWN_PAUSE_MS };
        *probe.due_ms.insert(now.ms() + pause_ms)
    }

    /// Whether it was down until now.
    fn is_back(&mut self, now: Instant) -> bool {
        let back = self.down.take().is_some();
        if back {
            self.is_another_process();
            self.up_ms = now.ms();
        }
        back
    }

    /// The adopter tells of the listener. Whether it is another one than before.
    pub(crate) fn reported(&mut self, now: Instant, report: ListenerReport) -> bool {
        self.mute = false;
        let before = std::mem::replace(&mut self.report, report);
        let Some(new) = report.listener else {
            return false;
        };
        let Some(old) = before.listener else {
            (self.since, self.known) = (now, None);
            return false;
        };
        let (other, several) = (old.id != new.id, old.several || new.several);
        if other {
            // Of several it is not known which had accepted a flow: the others may go on, and close
            // what they mean to.
            self.let_go = several.then_some(now);
            self.regrouped = self.let_go.or(self.regrouped);
        }
        if other || new.holders != old.holders {
            (self.since, self.known) = (now, None);
        } else if now.ms() >= self.since.ms() + HOLDERS_SETTLE_US / 1_000 {
            self.known.get_or_insert(now);
        }
        if other && !several {
            self.replaced = Some(now);
            self.is_another_process();
            return true;
        }
        if new.holders < old.holders {
            self.let_go = Some(now);
        }
        false
    }

    /// Whether a report is of another listener than the last one.
    pub(crate) fn has_other_listener(&self, report: ListenerReport) -> bool {
        self.report.listener.map(|l| l.id) != report.listener.map(|l| l.id)
    }

    /// What its process failed at does not count any more.
    fn is_another_process(&mut self) {
        self.process = self.process.wrapping_add(1);
        (self.suspects, self.ejected_until_ms) = (0, 0);
    }

    /// Whether nothing was heard for so long that it is to be probed: of one that owes an answer
    /// for `stalled_ms`, or that answered probes before.
    pub(crate) fn is_silent(&self, now: Instant, stalled_ms: u64, answered: bool) -> bool {
        let quiet_ms = now.ms().saturating_sub(self.heard_ms);
        let busy = quiet_ms.min(stalled_ms) >= SILENT_BUSY_MS;
        !self.is_probed() && (busy || (quiet_ms >= SILENT_IDLE_MS && answered))
    }

    /// Whether a listener answered long enough after a flow's end (us, wrapping) for the end to
    /// stand. If the process that closed had the listener, any answer is late enough.
    pub(crate) fn settles(&self, ended_us: u32, closer_listens: bool) -> bool {
        let age_us = (self.probe.answered_us as u32).wrapping_sub(ended_us) as i32;
        closer_listens && age_us >= 0 || i64::from(age_us) >= self.probe.settle_us as i64
    }

    /// Whether the process is gone that a flow came to at this time (ms, wrapping), because another
    /// one listens since. One of the millisecond of the first report belongs to the new one, which
    /// listened before that.
    pub(crate) fn is_replaced_since(&self, now: Instant, came_ms: u32) -> bool {
        let owned_ms = u64::from(now.ms32().wrapping_sub(came_ms));
        (self.replaced).is_some_and(|at| owned_ms > now.ms().saturating_sub(at.ms()))
    }

    /// Whether who closed a flow at this time (us, wrapping) without having the listener let go of
    /// one of several.
    pub(crate) fn let_go_about(&self, now: Instant, ended_us: u32) -> bool {
        let age_us = u64::from((now.0 as u32).wrapping_sub(ended_us));
        (self.regrouped).is_some_and(|at| now.0 <= at.0 + age_us + HOLDERS_SETTLE_US)
    }

    /// Whether it is being probed, or will be.
    pub(crate) fn is_probed(&self) -> bool {
        self.probe.due_ms.is_some()
    }

    /// When; `u64::MAX` for never.
    pub(crate) fn probe_due_ms(&self) -> u64 {
        self.probe.due_ms.unwrap_or(u64::MAX)
    }

    /// No probe could be sent, so silence means nothing.
    pub(crate) fn send_later(&mut self, due_ms: u64) {
        self.probe.due_ms = Some(due_ms);
    }

    /// A probe leaves, with these numbers if it needs new ones. The numbers that leave, the second
    /// one where it goes to the adopter.
    pub(crate) fn send(
        &mut self,
        now: Instant,
        (seq, ack): (SeqNumber, SeqNumber),
    ) -> (SeqNumber, Option<SeqNumber>) {
        let reports = self.supports_report();
        let probe = &mut self.probe;
        // A repetition keeps its number: the pod may have the first one, and answers the same SYN
        // again (Linux `tcp_check_req`), but another one on its tuple with a challenge ACK at best.
        if probe.tries == 0 || probe.adopter_ack.is_some() {
            probe.isn = seq;
        }
        // One that was answered says nothing of the way that these take.
        probe.left &= probe.tries > 0;
        let to_adopter = reports && !probe.by_syn && probe.tries < LIVENESS_PROBES_MAX;
        probe.adopter_ack = to_adopter.then_some(ack);
        probe.sent_us = now.0;
        probe.due_ms = Some(now.ms() + (LIVENESS_WAIT_MS << probe.tries));
        probe.tries += 1;
        (probe.isn, probe.adopter_ack)
    }

    /// The probe left. (A next hop without a link-layer address is as silent as a pod.)
    pub(crate) fn probe_left(&mut self) {
        self.probe.left = true;
    }

    /// The adopter left all of its probes unanswered: from now on its kernel is probed.
    pub(crate) fn adopter_is_mute(&mut self) -> bool {
        let probes = self.adopter_probe().is_some();
        let mute = probes && self.probe.tries >= LIVENESS_PROBES_MAX;
        self.mute |= mute;
        mute
    }

    /// Whether one more is sent. Where something was heard meanwhile more are: it may be older than
    /// the pod's end.
    pub(crate) fn repeats(&self) -> bool {
        let tries = self.probe.tries;
        let max = if self.is_heard() { LIVENESS_TRIES_HEARD_MAX } else { LIVENESS_TRIES_MAX };
        tries == 0 || (tries < max && self.down.is_none())
    }

    /// Whether it lives though it does not answer. What it says while nothing can be sent to it is
    /// no sign of that: the sockets of a process that is gone repeat themselves, too.
    fn is_heard(&self) -> bool {
        let probe = &self.probe;
        self.down.is_none() && probe.left && self.heard_ms * 1_000 > probe.first_sent_us
    }

    /// Whether the one that is out may have met something older in its way.
    pub(crate) fn may_send_again(&self) -> bool {
        (1..LIVENESS_TRIES_MAX).contains(&self.probe.tries)
    }

    /// The numbers of the one that is out to the adopter.
    pub(crate) fn adopter_probe(&self) -> Option<(SeqNumber, SeqNumber)> {
        let ack = self.probe.adopter_ack.filter(|_| self.probe.tries > 0)?;
        Some((self.probe.isn, ack))
    }

    /// What an answer to the SYN that is out acknowledges.
    pub(crate) fn syn_acked(&self) -> Option<SeqNumber> {
        let syn = self.probe.tries > 0 && self.probe.adopter_ack.is_none();
        syn.then(|| self.probe.isn.add(1))
    }

    /// The link was down since: what was sent so far may never have left.
    pub(crate) fn link_was_down(&mut self, since: Instant) {
        self.begin(since);
    }

    /// No probe is sent any more.
    pub(crate) fn stop_probing(&mut self) {
        self.probe = LivenessProbe::default();
    }

    #[inline]
    pub(crate) fn heard(&mut self, now: Instant) {
        self.heard_ms = now.ms();
    }

    /// Whether its adopter tells of the listener and marks the ends of processes that exit.
    pub(crate) fn marks_ends(&self) -> bool {
        self.report.marks_exits && self.report.listener.is_some()
    }

    fn supports_report(&self) -> bool {
        !self.mute && self.marks_ends()
    }

    /// Whether its adopter answers Forgets.
    pub(crate) fn forgets(&self) -> bool {
        self.report.forgets
    }

    /// Whether its application hands connections on and takes them.
    pub(crate) fn transfers(&self) -> bool {
        self.report.transfers
    }

    /// The same with pods of other nodes.
    pub(crate) fn transfers_between_nodes(&self) -> bool {
        self.report.transfers && self.report.between_nodes
    }

    pub(crate) fn process(&self) -> u32 {
        self.process
    }

    pub(crate) fn is_down(&self) -> bool {
        self.down.is_some()
    }

    pub(crate) fn down(&self) -> Option<Down> {
        self.down
    }

    /// Whether flows may be given to it, unless a policy knows better.
    #[inline]
    pub(crate) fn is_usable(&self) -> bool {
        self.down.is_none() && !self.elsewhere
    }

    /// A policy ejected this process.
    pub(crate) fn note_ejection(&mut self, until_ms: u64) {
        self.ejected_until_ms = self.ejected_until_ms.max(until_ms);
    }

    /// Whether a policy may have ejected it.
    #[inline]
    pub(crate) fn may_be_ejected(&self, now: Instant) -> bool {
        now.ms() < self.ejected_until_ms
    }

    /// What is wrong with it for everybody.
    pub(crate) fn trouble(&self) -> Option<BackendHealth> {
        match self.down {
            _ if self.elsewhere => Some(BackendHealth::OffRoute),
            Some(Down::NoListener) => Some(BackendHealth::NotListening),
            Some(Down::Silent) => Some(BackendHealth::Silent),
            None => None,
        }
    }
}

#[cfg(test)]
#[path = "liveness_tests.rs"]
mod tests;
