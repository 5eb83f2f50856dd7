//! What comes back from an adoption: confirmations, refusals, resets and silence, and what each
//! means.
//!
//! An authenticated refusal means that the pod never had the request; everything else is either a
//! confirmation or an unknown fate, which policy decides.
//!
//! # Decisions
//!
//! - **A bare RST is no answer.** It means that the adoption was lost and the request met a
//!   listener, or that the socket is gone, or that nobody adopts there. The dataplane asks again:
//!   the adopter remembers what it adopted, so a repeated adoption either creates the connection
//!   (and the kept request follows) or is answered AlreadyAdopted. Only then, or after six tries,
//!   is the request's fate unknown, and the policy decides. With 1 % loss and 1 % reordering in
//!   front of pods and clients, a million moves came to about 30,000 retries and no client saw one
//!   (`make soak-path`).

use super::{Deciding, Effect, Mark, Reply, Restored, Then};
use crate::{
    obs::{counters::Counter, pins::Lost},
    states::{Event, State},
};
use baton_packet::{Reason, SeqNumber};

/// How far ahead of the expected byte a new owner's first segment may be (its first ones may be
/// lost): the largest window (RFC 7323 section 2.3).
const WINDOW_MAX: i32 = 1 << 30;

impl Deciding<'_> {
    /// A segment from a leg whose adoption is unconfirmed.
    pub(super) fn reply(&mut self, reply: Reply) {
        let numbers = self.view.numbers;
        let (boundary, next) = (numbers.adoption_expects, numbers.adoption_sends);
        let Reply { seq, ack, data, .. } = reply;
        if reply.rst && ack.is_none() {
            return match self.view.progress.is(Mark::Opening) {
                true => self.opened_is_gone(seq),
                false => self.bare_reset(seq),
            };
        }
        if self.is_past(&reply) {
            return;
        }
        // One byte before the expected one are zero-window and keepalive probes.
        let expected = (-1..=WINDOW_MAX).contains(&seq.since(next)) && !reply.syn;
        let fits =
            |ack: &SeqNumber| ack.at_or_after(boundary) && ack.at_or_before(numbers.client_next);
        let Some(ack) = ack.filter(fits).filter(|_| expected) else {
            if !self.safe.stale_numbers_are_no_answer {
                self.step(Event::Confirmed);
            } else if !reply.rst {
                // Not this connection's numbers: somebody else's socket is on the tuple. It stays:
                // an adoption that is late would take its place, and have the request too.
                self.count(Counter::StaleSockets);
                self.stale_in_the_way(false);
            }
            return;
        };
        let ended = (reply.rst || reply.fin) && !data;
        let nothing = ack.at_or_before(numbers.boundary) || !self.safe.taken_data_is_no_withdrawal;
        if reply.rst && ack == boundary && seq != next && self.refuses_syns() {
            // Drawn by a SYN of ours that is late.
        } else if ended && (self.idle() || self.view.restoring || nothing) {
            // The application took the connection and ended, before it had any of the request. That
            // says nothing about a socket that an earlier one of several adoptions may have made in
            // a process that is gone.
            if self.progress().asked > 1 {
                self.fate_unknown(Lost::FateUnknown);
            } else {
                self.never_had_it(Event::Withdrawn);
            }
        } else if ended && !reply.meant && self.may_replay_again() {
            // Whether it executed the request before it ended is unknown. A process that goes on
            // has answered, by its end.
            self.fate_unknown(Lost::FateUnknown);
        } else if self.is_unasked(ack, data) {
            // Older than the request, or said at the same moment: a time-out's message would be
            // another client's answer. Of the request the pod has had nothing. Nor will it, where
            // its kernel knows the leg by newer timestamps than we do: a client may send ones that
            // only we believe.
            if data || reply.drops {
                self.never_had_it(Event::Withdrawn);
            }
        } else if self.view.restoring {
            self.then(Then::JudgeSession);
        } else if !data && !ended && ack.before(numbers.client_acked) {
            // The client was told by an earlier owner that more has arrived, so it will not repeat
            // that: the kept copies go again with the next try.
        } else {
            let without = ack == boundary && numbers.client_next != boundary;
            self.confirmed(without && !ended && !self.idle());
            // The answer to our keepalive is nothing to the client.
            if !self.idle() || data {
                self.then(Then::GoOn);
            }
        }
    }

    /// `without`: the new owner lacks the request's bytes.
    pub(super) fn confirmed(&mut self, without: bool) {
        self.step(if without { Event::ConfirmedWithout } else { Event::Confirmed });
        if !self.idle() {
            self.with(Effect::WindowBegins);
        }
        self.with(Effect::Settle);
    }

    pub(super) fn restored(&mut self, restored: Restored) {
        match restored {
            Restored::Partly => {}
            Restored::Not => self.never_had_it(Event::Withdrawn),
            Restored::Wholly => {
                let idle = self.idle();
                self.step(if idle { Event::Confirmed } else { Event::ConfirmedWithout });
                if !idle {
                    self.with(Effect::WindowBegins);
                }
                self.with(Effect::AckOwner);
                self.with(Effect::Settle);
            }
        }
    }

    /// Either the adoption was lost on the way and the request met a listener, or the socket is
    /// gone, or there is no adopter. Asking again tells the first two apart: the adopter remembers.
    fn bare_reset(&mut self, seq: SeqNumber) {
        if !self.safe.bare_rst_is_no_answer {
            self.step(Event::Confirmed);
        } else if seq != self.view.numbers.adoption_sends || self.progress().refusals > 0 {
            // Drawn by something older, or by the request behind a refused adoption: the answers
            // decide.
        } else if self.progress().tries == 1 {
            // The adoption that this request followed was not taken, so only the next one counts.
            self.progress().asked = 0;
            self.ask_again(false);
        } else {
            self.with(Effect::AwaitAnswer);
        }
    }

    /// Whether a segment of a leg that was another flow's before is about nothing of the request.
    /// (Where there is no request, the answer to our keepalive has no data.)
    fn is_unasked(&self, ack: SeqNumber, data: bool) -> bool {
        self.view.progress.is(Mark::Shared)
            && (data || !self.idle())
            && ack == self.view.numbers.boundary
            && self.safe.unasked_is_no_answer
    }

    /// Whether a segment from a leg that was another flow's before is of that time: a copy that was
    /// late, or sent again for want of an acknowledgement.
    fn is_past(&self, reply: &Reply) -> bool {
        let numbers = &self.view.numbers;
        let next = numbers.adoption_sends;
        self.view.progress.is(Mark::Shared)
            && !(reply.rst || reply.syn)
            && reply.seq.before(next)
            && reply.end.at_or_before(next)
            && reply.ack.is_some_and(|ack| ack.at_or_before(numbers.boundary))
            && self.safe.unasked_is_no_answer
    }

    /// Whether a RST from the leg may be a kernel's refusal of a SYN, which acknowledges the SYN
    /// and has number 0, wherever that is among the client's. A process that read the request may
    /// have been there in between.
    fn refuses_syns(&self) -> bool {
        self.view.progress.is(Mark::Opening) && self.safe.late_refusal_is_no_end
    }

    /// A kernel without the socket that we opened: what became of the request is unknown.
    fn opened_is_gone(&mut self, seq: SeqNumber) {
        if seq == self.view.numbers.adoption_sends {
            self.fate_unknown(Lost::FateUnknown);
        }
    }

    pub(super) fn refused(&mut self, reason: Reason, expects: SeqNumber, replaced_before: bool) {
        let distrusted =
            reason == Reason::AlreadyAdopted && !self.safe.already_adopted_is_no_refusal;
        if !reason.pod_never_had_it() && !replaced_before && !distrusted {
            return self.fate_unknown(if reason == Reason::Renew {
                Lost::FateUnknown
            } else {
                Lost::AdoptedBefore
            });
        }
        if !matches!(reason, Reason::TupleInUse | Reason::Renew) {
            self.with(Effect::AdopterRefused(reason));
        }
        let progress = self.progress();
        progress.refusals = progress.refusals.saturating_add(1);
        let open = progress.refusals < progress.asked;
        if open && self.safe.each_refusal_is_awaited {
            // Another adoption is on its way and may still be taken: until that one is refused too,
            // handing the request on could execute it twice.
        } else if reason == Reason::TupleInUse {
            self.with(Effect::ResetStale(expects));
            self.stale_in_the_way(true);
        } else {
            self.never_had_it(Event::Refused);
        }
    }

    /// Another socket is on the new leg's tuple. `refused`: the adopter says so, and created
    /// nothing.
    pub(super) fn stale_in_the_way(&mut self, refused: bool) {
        if self.one_more_try() && self.view.another_port {
            self.step(Event::TupleTaken);
        } else if refused {
            self.never_had_it(Event::Refused);
        } else {
            self.fate_unknown(Lost::FateUnknown);
        }
    }

    /// The new owner never had the request: the old one serves it, or a third one, or whoever can
    /// later. `event` says whether it refused, or took the connection and has to be told.
    pub(super) fn never_had_it(&mut self, event: Event) {
        let view = self.view;
        let progress = self.progress();
        if !progress.is(Mark::StandbyGone) {
            if progress.is(Mark::Rescue) {
                progress.replays = progress.replays.saturating_sub(1);
            }
            self.step(event);
            return self.with(Effect::Settle);
        }
        if view.session_refused {
            self.with(Effect::Lost(Lost::Pinned));
            return self.step(Event::FateUnknownReset);
        }
        if progress.replays > 0 {
            progress.replays -= 1;
        } else {
            progress.set(Mark::Unseen, true);
        }
        if event == Event::Refused
            && view.state == State::Adopting
            && self.one_more_try()
            && view.kept_whole
        {
            return self.then(Then::FindAnother);
        }
        self.orphaned(Event::RefusedAll);
    }

    /// The old owner is gone and the new one refused: a third one at once, if there is one.
    pub(super) fn another(&mut self, found: bool) {
        if !found {
            return self.orphaned(Event::RefusedAll);
        }
        if !self.progress().take(Mark::Unseen) {
            self.replays();
        }
        self.step(Event::RefusedNext);
    }

    /// Nobody has the flow: it waits for whoever can adopt it.
    fn orphaned(&mut self, event: Event) {
        if !self.progress().is(Mark::Rescue) {
            self.with(Effect::OrphanSince);
        }
        self.step(event);
    }

    pub(super) fn one_more_try(&mut self) -> bool {
        let most = self.view.tries_max;
        let progress = self.progress();
        progress.tries += 1;
        progress.tries <= most
    }

    /// Silence, or what says no more.
    pub(super) fn silence(&mut self) {
        self.ask_again(true);
    }

    /// `remembered`: trackers may know another connection by the leg's ports, and have dropped this
    /// one. A RST from the pod says that they let it through, and knew of none or do so no more.
    fn ask_again(&mut self, remembered: bool) {
        let opens = self.view.progress.is(Mark::Opening);
        if self.view.is_opening() {
            self.opening_silent();
        } else if self.progress().refusals > 0 || (self.view.overdue && self.may_replay_again()) {
            // Some adoptions were refused, another one met silence; or policy does not want to wait
            // any longer.
            self.fate_unknown(Lost::FateUnknown);
        } else if self.one_more_try() {
            self.with(Effect::ProbeLiveness);
            if !opens && remembered {
                self.with(Effect::ForgetInFront);
            }
            self.step(Event::Doubt);
        } else {
            if !opens {
                self.with(Effect::AdopterSilent);
            }
            self.fate_unknown(Lost::FateUnknown);
        }
    }

    /// Whether the request was executed cannot be known. `lost`: what a client that has to be told
    /// counts as.
    pub(super) fn fate_unknown(&mut self, lost: Lost) {
        if self.idle() || self.view.restoring {
            // No request is at stake.
            return self.never_had_it(Event::Withdrawn);
        }
        if !self.safe.unknown_fate_is_no_refusal {
            return self.never_had_it(Event::Refused);
        }
        if !self.may_replay_again() {
            self.count(Counter::FateReset);
            self.with(Effect::Lost(if self.may_replay() { Lost::ReplayedOften } else { lost }));
            return self.step(Event::FateUnknownReset);
        }
        self.count(Counter::FateReplayed);
        if self.progress().is(Mark::StandbyGone) {
            return self.orphaned(Event::FateUnknownNext);
        }
        self.replays();
        self.step(Event::FateUnknownReplay);
        self.with(Effect::Settle);
    }

    /// The old owner says something while the new one is unconfirmed.
    pub(super) fn standby(&mut self, new: bool, reset: bool, fin: bool) {
        if new {
            if self.idle() && !self.progress().is(Mark::StandbyGone) {
                // It had more to say, and no request is at stake: the move is taken back.
                self.step(Event::Withdrawn);
                return self.then(Then::GoOn);
            }
            self.count(Counter::FencedData);
        }
        if reset || fin {
            self.progress().set(Mark::StandbyGone, true);
        }
        if reset {
            self.with(Effect::FreeStandby);
        }
    }
}
