//! What comes back from an adoption: which answers are its adopter's own, and who is asked next.
//!
//! Owns the classifying of these segments; what each means is decided in `handover`.

use crate::{
    Engine, Output, Verdict,
    backend::keys::Message,
    clock::Instant,
    flow::Bits,
    handover::{Input, Mark, Reply, Then},
    ids::FlowId,
    mutants::Mutant,
    obs::{counters::Counter, events::What},
    states::State,
    timing::CLOCKS_US,
};
use baton_packet::{Flags, Reason, Segment, SeqNumber, end_mark, timestamps};

/// What a segment from an unconfirmed owner comes to.
pub(crate) enum Judged {
    /// It is dealt with.
    Done(Verdict),
    /// The new owner is confirmed; the segment is to be treated like any other of the owner's.
    GoOn,
}

impl Engine {
    /// A segment from a leg whose adoption is unconfirmed.
    pub(crate) fn answer_to_adoption(
        &mut self,
        now: Instant,
        frame: &[u8],
        segment: &Segment,
        id: FlowId,
        out: &mut impl Output,
    ) -> Judged {
        let flow = &self.flows[id];
        let owner = flow.owner;
        if flow.progress.is(Mark::Translated) && segment.flags.has(Flags::SYN) {
            return Judged::Done(self.opened_again(id, out));
        }
        match self.message(frame, segment, owner.backend) {
            Message::None => {
                let flow = &self.flows[id];
                let newer = |echo: u32| echo.wrapping_sub(flow.client_ts).cast_signed() > 0;
                let drops = timestamps(segment.options(frame)).is_some_and(|(_, echo)| newer(echo));
                let input = Input::Reply(Reply::of(segment, drops, end_mark(frame, segment)));
                let then = self.decide(now, id, input, Some((frame, segment)), out);
                self.heir_introduced(id, segment);
                if then == Then::GoOn {
                    return Judged::GoOn;
                }
            }
            Message::Forged => self.counters.add(Counter::ForgedAnswers),
            Message::Answer(reason @ (Reason::Forgotten | Reason::TupleInUse), _)
                if segment.ack == self.forget_number(id).add(1) =>
            {
                self.forgotten_in_front(now, id, reason, out);
            }
            Message::Answer(Reason::Forgotten, _) => self.counters.add(Counter::LateAnswers),
            Message::Answer(reason, says) => {
                let view = self.handover_view(now, id);
                if view.is_answered_by(segment.seq, segment.ack) || self.mutated(Mutant::AnyNumbers)
                {
                    self.refused(now, id, reason, says.server_ts, out);
                } else {
                    self.counters.add(Counter::LateAnswers);
                }
            }
        }
        Judged::Done(Verdict::Absorbed)
    }

    /// `detail`: what the reason tells of besides.
    fn refused(
        &mut self,
        now: Instant,
        id: FlowId,
        reason: Reason,
        detail: u32,
        out: &mut impl Output,
    ) {
        let owner = self.flows[id].owner;
        let counter = match reason {
            Reason::NoListener => Counter::RefusedNoListener,
            Reason::AcceptQueueFull => Counter::RefusedQueueFull,
            Reason::KernelRefused => Counter::RefusedKernel,
            Reason::TupleInUse => Counter::RefusedTupleInUse,
            Reason::AlreadyAdopted => Counter::RefusedAlreadyAdopted,
            Reason::SyncookiesOff => Counter::RefusedSyncookies,
            Reason::Renew => Counter::RefusedRenew,
            Reason::PacketRules => Counter::RefusedPacketRules,
            // The answer to a probe, a Forget, a Release or a Transfer, not to an adoption.
            Reason::Ready | Reason::Forgotten | Reason::Released | Reason::Kept | Reason::Moved => {
                return;
            }
        };
        self.counters.add(counter);
        self.tell(id, What::Refused(reason));
        if reason == Reason::Renew {
            // Another number is all that is in the way: it is asked for at once.
            self.backends[usize::from(owner.backend)].adopter.forget(0);
            self.rounds.probes.by(now.ms());
        }
        let replaced_before =
            reason == Reason::Renew && self.replaced_before_request(now, id, detail);
        let input = Input::Refused { reason, expects: SeqNumber(detail), replaced_before };
        self.decide(now, id, input, None, out);
    }

    /// A pod has had its number for `age_ms`, and the adoption names another one. Whether it was
    /// this pod already when the request was sent: then the one before it never had that. Else that
    /// one may have had it and be gone.
    fn replaced_before_request(&self, now: Instant, id: FlowId, age_ms: u32) -> bool {
        let flow = &self.flows[id];
        let sent_us_ago = u64::from((now.0 as u32).wrapping_sub(flow.sent_us));
        flow.bits.has(Bits::OUTSTANDING) && u64::from(age_ms) * 1_000 >= sent_us_ago + CLOCKS_US
    }

    /// The present adoption's owner is not to have the flow after all: a third one at once, if
    /// there is one.
    pub(crate) fn find_another(&mut self, now: Instant, id: FlowId) -> bool {
        let flow = &self.flows[id];
        let (v6, owner, policy) = (flow.is_v6(), flow.owner.backend, usize::from(flow.policy));
        let held = self.held_elsewhere(now, id, Some(owner));
        let target = held.or_else(|| {
            self.policies[policy].choose_heir(v6, owner, &self.backends, now, &mut self.rng)
        });
        let leg = target.and_then(|to| self.leg_to_heir(now, id, to, true).ok());
        let Some(leg) = leg else { return false };
        self.client_goes(id, leg.backend);
        self.redirect.leg = leg;
        self.prepare_prelude(id);
        true
    }

    /// Nothing on the way remembers the pair of the new leg, and the pod has nothing there, or has
    /// taken the adoption: what was sent behind the Forget may have met the entry that it had
    /// opened, so it goes once more.
    fn forgotten_in_front(
        &mut self,
        now: Instant,
        id: FlowId,
        reason: Reason,
        out: &mut impl Output,
    ) {
        self.counters.add(match reason {
            Reason::Forgotten => Counter::ForgetsAnswered,
            _ => Counter::ForgetsInUse,
        });
        self.asks_once_more(now, id, out);
    }

    /// The pod that is to be owner is asked: by an adoption, or on a leg of ours.
    pub(crate) fn ask_owner(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        if self.flows[id].progress.is(Mark::Opening) {
            self.send_opening(id, out);
        } else {
            self.send_adoption(now, id, out);
        }
    }

    /// What the open adoption was asked with goes again, besides its tries.
    pub(crate) fn asks_once_more(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        self.ask_owner(now, id, out);
        if self.flows[id].state == State::Adopting {
            let _ = self.replay_kept(id, out);
        } else {
            self.send_keepalive(id, out);
        }
    }
}
