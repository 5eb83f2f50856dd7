//! An owner's end: whether the client is told at once, and what the flow comes to once it is known
//! whether the owner's pod lives.
//!
//! # Decisions
//!
//! - **A close that was meant is no failure**: a FIN with the listener's mark that acknowledges all
//!   of the request, or any end with it in the middle of a request, passes to the client, blames
//!   nobody and is replayed nowhere. nginx's `return 444` had run each GET on three pods and
//!   ejected them (`e2e/ns` `closes`: 1,000 closes with `WhenBetter` and with `Always` run 1,000
//!   times, 0 ejections). A RST with the mark that acknowledges a whole request is still handed
//!   over: Linux sends it where a server closes with unread bytes (`tcp_close`), as at a keep-alive
//!   time-out that crosses a request, and acknowledges those, too. A part of a request whose pod
//!   died goes to another pod like a whole one: nobody meant that.
//! - **An end at rest that nothing marks says that the leg is over, and nothing of the
//!   connection**: the flow gets another leg, its own pod's included. While a killed server exits,
//!   its connections close before its listener, and at that moment nothing tells this from an idle
//!   time-out; with the answer to a SYN for evidence, 40 kills of nginx under 64 busy connections
//!   had closed 49 to 70 at rest. Legs that end without having been sent anything are counted, and
//!   each is waited for twice as long as the one before, so that a server that closes whatever it
//!   accepts costs little; the end behind [`crate::timing::IDLE_ENDS_MAX`] of them in a row is
//!   believed. Rejected: believing the second one: a connection at rest that one kill had moved was
//!   closed by the next one as before. Where only the bare rule follows responses
//!   (`RequestResponse`) a close may be the end of one, and is believed.

use super::{Deciding, Effect, End, Mark, Safeguards, Then};
use crate::{
    obs::{
        counters::Counter,
        pins::{Gone, Lost},
    },
    states::{Event, State},
};
use baton_packet::{EndMark, SeqNumber};

impl Deciding<'_> {
    pub(super) fn owner_ended(&mut self, mut end: End, gone: bool, rescues: bool, rescuable: bool) {
        let (talk, state) = (self.view.talk, self.view.state);
        self.then(Then::Passes);
        let asked = self.view.progress.is(Mark::ReleaseAsked);
        if end.released() && !asked {
            // Nobody asked, or not any more.
            end.mark = None;
        }
        let gone = gone || end.released();
        if end.released() && state.is_open() {
            self.count(Counter::ReleasesDone);
        }
        if !state.is_open() {
            // A client that leaves in the middle of its request wants no answer.
            let cut = talk.unanswered && talk.complete && !talk.until_close;
            let counts = (cut || self.view.outstanding) && self.safe.half_closed_is_counted;
            if state == State::ClientFin && self.view.followed && counts {
                // The client closed its direction behind its request, and a half-closed flow does
                // not move. Where nothing is followed that may be a last word, which has no answer:
                // so does each client of PostgreSQL and MySQL leave.
                self.with(Effect::Lost(Lost::HalfClosed));
            }
        } else if !rescuable {
            if rescues && (state == State::Request || gone) {
                self.with(Effect::Lost(Lost::NoBackend));
            }
        } else if self.view.pinned || (state != State::Request && talk.answered && !talk.at_rest) {
            // Not known whether it means to close; where it is known to go away, this is a loss.
            if gone {
                self.with(Effect::Lost(Lost::Pinned));
            }
        } else if state == State::Request {
            // Not where a command to close (`quit`) has no other answer.
            if end.released() || !(talk.answered && talk.closing) {
                self.progress().set(Mark::OwnerFin, end.fin);
                self.ends_with_request(end);
            }
        } else if state == State::Response && !talk.answered {
            if !talk.until_close {
                self.with(Effect::Lost(Lost::ResponseBegun));
            }
        } else if !talk.closing {
            self.progress().set(Mark::OwnerFin, end.fin);
            self.with(Effect::HoldEnd(end.closer_listens()));
            self.step(Event::OwnerEnded);
            if gone || self.was_never_accepted(end) {
                self.owner_gone();
            } else {
                self.with(Effect::AskListener(end.closer_listens()));
            }
            self.then(Then::Held);
        }
    }

    /// The leg of a flow at rest that needs none ended, which says nothing of the connection.
    pub(super) fn leg_is_over(&mut self) {
        self.step(Event::LegOver);
        self.then(Then::Held);
    }

    /// A kernel without the connection that a handshake of ours began, and that was sent nothing
    /// since: a request socket answers a keepalive too, and was given up (`opening`).
    fn was_never_accepted(&self, end: End) -> bool {
        let (numbers, progress) = (&self.view.numbers, self.view.progress);
        progress.is(Mark::Translated)
            && numbers.client_next == numbers.boundary
            && !end.fin
            && end.acked.is_none()
            && self.safe.given_up_is_no_close
    }

    /// The owner ended with a request outstanding: whether the pod lives makes no difference, this
    /// request it will not answer.
    fn ends_with_request(&mut self, end: End) {
        let (view, boundary) = (self.view, self.view.numbers.boundary);
        if self.is_meant(end) {
            return;
        }
        let unread = end.acked == Some(boundary) || end.released();
        let unseen = unread || !self.safe.unseen_is_unacknowledged;
        let lost = if !view.kept_whole {
            Some(if view.talk.response_begun { Lost::ResponseBegun } else { Lost::NotKept })
        } else if unseen || self.may_replay_again() {
            None
        } else if self.may_replay() {
            Some(Lost::ReplayedOften)
        } else {
            Some(Lost::FateUnknown)
        };
        if !end.exited() && !end.released() && !end.closer_listens() {
            // A process that is gone fails no more, and the next one is not to blame; a pod that
            // stands still may have been stopped by whoever owns it. One that goes on serving
            // closes what it means to: which request that is, each client chooses.
            self.with(Effect::BackendFails);
        }
        if !end.released() {
            // One pod's trouble, or its end? Who is chosen next wants to know.
            self.with(Effect::ProbeLiveness);
        }
        if let Some(lost) = lost {
            return self.with(Effect::Lost(lost));
        }
        self.progress().set(Mark::Unseen, unseen);
        if end.released() {
            self.progress().set(Mark::ReleaseSettled, true);
            self.progress().set(Mark::Released, true);
            self.strand(Gone::Released);
            self.with(Effect::TryRescue);
        } else {
            self.owner_gone();
        }
        self.then(Then::Held);
    }

    /// Whether a process that goes on serving meant to close instead of an answer (nginx's `return
    /// 444`, a header that did not come in time). Linux sends a RST where unread bytes were thrown
    /// away (`tcp_close`), so that after a FIN all that was acknowledged was read, or its mark says
    /// that it was not (Apache, which shuts its own side down first); one that came too early is
    /// handed over like any other.
    fn is_meant(&self, end: End) -> bool {
        let numbers = &self.view.numbers;
        let has_all = end.acked == Some(numbers.client_next);
        let has_some = end.acked.is_some_and(|acked| acked != numbers.boundary);
        let read = end.mark != Some(EndMark::Unread);
        end.closer_listens()
            && ((end.fin && has_all && read) || (!self.view.talk.complete && has_some))
    }

    /// Somebody listens in the owner's pod.
    pub(super) fn pod_lives(&mut self, replaced: bool, settled: bool, unmarked: bool) {
        if self.view.state != State::OwnerFinPending {
            return self.then(Then::Stays);
        }
        if replaced {
            self.owner_gone();
        } else if !settled {
            self.then(Then::Stays);
        } else if !(unmarked && self.only_leg_is_over()) {
            self.count(Counter::ClosesBelieved);
            self.close_stands();
        }
    }

    /// The flow gets another leg, unless too many in a row ended without having been sent anything.
    /// Each of these waits twice as long for the next one, if no request of the client comes.
    fn only_leg_is_over(&mut self) -> bool {
        let numbers = &self.view.numbers;
        let unasked = numbers.boundary == numbers.client_next;
        let ends = if unasked { self.view.progress.idle_ends + 1 } else { 0 };
        if ends > self.view.idle_ends_max || !self.safe.unmarked_end_is_the_legs {
            return false;
        }
        self.count(Counter::LegsOverUnmarked);
        self.strand(Gone::of_end(self.view.progress.is(Mark::OwnerFin)));
        self.progress().idle_ends = ends;
        if unasked {
            self.progress().tries = ends;
        } else {
            self.with(Effect::TryRescue);
        }
        true
    }

    /// The pod lives, or nobody follows it: the end was meant.
    pub(super) fn close_stands(&mut self) {
        self.with(Effect::OwnerKnown);
        let fin = self.progress().is(Mark::OwnerFin);
        self.step(if fin { Event::CloseStands } else { Event::ResetStands });
    }

    /// Nobody listens in the owner's pod, or nothing is heard of it.
    pub(super) fn pod_gone(&mut self, silent: bool, rescuable: bool) {
        let (view, state) = (self.view, self.view.state);
        // A process that closed its listener may still serve what it accepted; its flows leave with
        // their next requests.
        match state {
            State::OwnerFinPending => return self.owner_gone(),
            State::AdoptingIdle if silent => return self.fate_unknown(Lost::FateUnknown),
            State::Adopting if silent && self.may_replay_again() => {
                return self.fate_unknown(Lost::FateUnknown);
            }
            State::Fresh | State::Idle if view.talk.at_rest => {}
            State::Request if self.may_replay_again() => {}
            _ => return self.then(Then::Stays),
        }
        if !silent || view.pinned || !rescuable {
            return self.then(Then::Stays);
        }
        self.progress().set(Mark::OwnerFin, false);
        self.strand(Gone::Silent);
        self.with(Effect::TryRescue);
    }

    /// The owner is gone: another one is needed.
    pub(super) fn owner_gone(&mut self) {
        self.strand(Gone::of_end(self.decision.progress.is(Mark::OwnerFin)));
        self.with(Effect::TryRescue);
    }

    pub(super) fn strand(&mut self, how: Gone) {
        self.progress().tries = 0;
        self.progress().set(Mark::ReleaseAsked, false);
        self.with(Effect::Stranded(how));
        self.step(Event::OwnerGone);
        self.with(Effect::OrphanSince);
    }
}

/// What a RST from an owner is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// The owner's, if its number is exact.
    Owners,
    /// Perhaps drawn by something older: the pod is asked.
    Echo,
    /// The answer to that: there is no socket.
    Proof,
}

/// How far a challenge's ACK number is behind: more than a window without scaling.
const CHALLENGE_BEHIND: u32 = 1 << 17;

/// What a challenge to an owner acknowledges, which no segment of the client's does: older than
/// what a client that was heard of lately may still ask for. So much in front of what was sent last
/// would not do: with scaled windows that may be on its way still, and the pod's kernel would give
/// it up.
#[must_use]
pub const fn challenge(server_acked: SeqNumber) -> SeqNumber {
    server_acked.sub(CHALLENGE_BEHIND)
}

/// What a RST means; `exact`: it is at a number that its owner may end at, `challenged`: the number
/// of the [`challenge`]. Linux sends one without ACK for each segment that meets no socket
/// (`tcp_v4_send_reset`), with the segment's ACK as its number; a socket that ends sends RST and
/// ACK (`tcp_send_active_reset`). A request that overtakes its adoption draws one without ACK too,
/// which may come after the adoption was confirmed; and its number is exact for a client that lacks
/// bytes which the engine has seen. So none of these is believed before the pod has been asked, nor
/// one with ACK whose number is none: what lies in front of it may be lost, and it may be a guess,
/// which some clients take if it is within their windows (RFC 5961 section 3).
#[must_use]
pub fn judge_reset(
    state: State,
    migrated: bool,
    safe: &Safeguards,
    (acks, exact): (bool, bool),
    seq: SeqNumber,
    challenged: SeqNumber,
) -> Reset {
    let closing = matches!(state, State::ClientFin | State::ServerFin | State::Closed);
    let told_apart = safe.every_rst_is_told_apart || (migrated && state != State::Fresh);
    let asks = (state.is_open() || closing) && told_apart && safe.late_rst_is_told_apart;
    if !asks || (acks && exact) {
        Reset::Owners
    } else if !acks && seq == challenged {
        Reset::Proof
    } else {
        Reset::Echo
    }
}
