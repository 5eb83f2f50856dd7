//! Segments from backends: which leg, which event, and what the flow learns from them.
//!
//! # Decisions
//!
//! - **A RST without ACK from an owner is asked back**: a request that overtakes its adoption draws
//!   one, which may come after the adoption was confirmed; and its number may be exact for a client
//!   that lacks bytes which the engine has seen. The probe acknowledges a number that nothing else
//!   has, so only the answer of a kernel without the socket fits.
//! - **So is one with ACK at a number at which its owner cannot have ended**: bytes in front of it
//!   may be lost, or it is a guess. Passed on, it was judged by the client's kernel: Linux asks
//!   (RFC 5961 section 3.2), but a stack that takes any within its window ended the connection with
//!   nothing counted or rescued (random seed 7105068).

use crate::{
    Engine, Output, Verdict,
    clock::Instant,
    flow::Bits,
    handover::{self, Mark, challenge, judge_reset},
    ids::{FlowId, Leg},
    moves::{
        answer::Judged,
        rescue::{Ended, end_of},
    },
    mutants::Mutant,
    net::resets::Whom,
    obs::{
        counters::{Counter, DropReason},
        figures::Reset,
        pins::PinReason,
    },
    segments::early::Turn,
    states::{Event, Frame, State},
    tables::{From, legs::Use},
};
use baton_api::Protocol;
use baton_packet::{Flags, Segment, SeqNumber, clear_fin, parse_adoption, timestamps};

impl Engine {
    /// Inlined for `on_leg`.
    #[inline(always)]
    pub(crate) fn on_backend(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        backend: u16,
        out: &mut impl Output,
    ) -> Verdict {
        let slot = &mut self.backends[usize::from(backend)];
        slot.liveness.heard(now);
        let number = self.net.sources.number(slot.source, (segment.dst, segment.dst_port));
        let leg = Leg { backend, port: number };
        match self.legs.uses.used_by(leg) {
            Some(Use::Owner(id)) if self.flows[id].bits.has(Bits::ASIDE) => {
                let mut segment = self.as_client_sees(leg, frame, segment);
                if self.flows[id].progress.told.is_due() {
                    segment = self.behind_header(frame, &segment, id);
                }
                self.on_owner(now, frame, &segment, id, out)
            }
            Some(Use::Owner(id)) => self.on_owner(now, frame, segment, id, out),
            Some(Use::Standby(id)) => {
                let segment = &self.as_client_sees(leg, frame, segment);
                self.on_standby(now, frame, segment, id, out)
            }
            Some(Use::Closing(id)) => {
                let segment = &self.as_client_sees(leg, frame, segment);
                self.on_closing(now, frame, segment, id, out)
            }
            Some(Use::Probe) => self.answer_to_probe(now, frame, segment, backend, out),
            Some(Use::LivenessProbe) => {
                self.answer_to_liveness_probe(now, frame, segment, leg, out)
            }
            Some(Use::Forget(slot)) => self.answer_to_forget(now, frame, segment, slot, out),
            Some(Use::Transfer(slot)) => self.on_transfer(now, frame, segment, slot, out),
            None => {
                if let Some(verdict) = self.pass_to_host(frame, segment.end) {
                    return verdict;
                }
                let _ = self.reset_unknown(now, frame, segment, Whom::Pods, out);
                Verdict::Drop(DropReason::NoLeg)
            }
        }
    }

    /// What came from a leg, with the client's numbers if the leg is translated.
    fn as_client_sees(&self, leg: Leg, frame: &mut [u8], segment: &Segment) -> Segment {
        match self.legs.shifts.of(leg) {
            Some(shift) => shift.to_client(frame, segment),
            None => *segment,
        }
    }

    #[inline]
    pub(crate) fn on_owner(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        id: FlowId,
        out: &mut impl Output,
    ) -> Verdict {
        self.flows[id].last_ms = now.ms32();
        match self.flows[id].state {
            State::SynSent => return self.answer_to_syn(now, frame, segment, id, out),
            State::Adopting | State::AdoptingIdle => {
                if self.flows[id].progress.is_opening() {
                    return self.answer_to_opening(now, frame, segment, id, out);
                }
                if let Judged::Done(verdict) = self.answer_to_adoption(now, frame, segment, id, out)
                {
                    return verdict;
                }
            }
            State::SynAcked => self.answered_anew(now, frame, segment, id),
            State::OwnerFinPending | State::Orphan => {
                return self.on_ended_owner(now, frame, segment, id);
            }
            _ => {}
        }
        if segment.flags.has(Flags::RST) {
            return self.owner_resets(now, frame, segment, id, out);
        }
        if segment.flags.has(Flags::SYN) && self.flows[id].progress.is(Mark::Translated) {
            return self.opened_again(id, out);
        }
        let flow = &mut self.flows[id];
        if !flow.server_may_send(segment.seq) {
            self.counters.add(Counter::BeyondWindow);
            return self.forward_to_client(frame, segment, id);
        }
        if segment.payload_len() > 0
            && !segment.flags.has(Flags::FIN)
            && !end_of_bytes(segment).after(flow.server_acked)
            && flow.migrations > 0
            && !self.committed.is(Mutant::HearFormer)
        {
            // The client has all of it; what is older than its time on this leg is another's, or
            // answers what restored its session.
            let acked = flow.server_acked;
            self.counters.add(Counter::FencedData);
            self.ack_owner(id, acked, out);
            return Verdict::Absorbed;
        }
        let acks = segment.flags.has(Flags::ACK);
        if acks
            && segment.ack.after(flow.client_acked)
            && segment.ack.at_or_before(flow.client_next)
        {
            flow.client_acked = segment.ack;
        }
        if flow.bits.has(Bits::TIMESTAMPS)
            && segment.seq.add(segment.seq_len()).at_or_after(flow.server_acked)
            && let Some((value, _)) = timestamps(segment.options(frame))
        {
            flow.note_server_ts(now, value);
        }
        if flow.backlog.is_some() {
            self.window_moves(now, id, segment, out);
        }
        let flow = &self.flows[id];
        let mut treat = Frame::Forward;
        let ahead = segment.seq.since(flow.server_next);
        let end = end_of_bytes(segment);
        // A segment without bytes may be ahead of lost ones, or behind a FIN that is still to come.
        // It is no response.
        if segment.payload_len() > 0 && end.after(flow.server_next) {
            match self.turn(now, id, From::Server, frame, segment, out) {
                Turn::Now => {}
                Turn::Later => return self.early_from_owner(now, frame, segment, id, out),
                Turn::Never => return Verdict::Absorbed,
            }
            // Early segments may have had their turn.
            let ahead = segment.seq.since(self.flows[id].server_next);
            treat = self.server_data(now, frame, segment, id, ahead, out);
            self.flows[id].server_next = end;
            self.take_up(now, id, From::Server, out);
            if ahead <= 0 && self.flows[id].state == State::Response {
                self.comes_to_rest(now, id, out);
            }
        } else if flow.state == State::Response {
            self.comes_to_rest(now, id, out);
        }
        if segment.flags.has(Flags::FIN) && !self.flows[id].server_next.after(end) {
            treat = self.server_fin(now, frame, segment, id, ahead, out);
        }
        let verdict = match treat {
            Frame::Forward => self.forward_to_client(frame, segment, id),
            Frame::Absorb => Verdict::Absorbed,
        };
        self.closes_wholly(now, id, out);
        verdict
    }

    /// Bytes that are set aside until their turn comes; a FIN behind them comes again.
    #[cold]
    fn early_from_owner(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        id: FlowId,
        out: &mut impl Output,
    ) -> Verdict {
        self.owner_may_lack(now, id, segment, out);
        self.answer_begins_early(now, id, out);
        if segment.flags.has(Flags::FIN) {
            clear_fin(frame, segment);
        }
        self.forward_to_client(frame, segment, id)
    }

    /// Once both ends have acknowledged all, the close of the other one too, a closed flow needs
    /// its leg no more.
    #[inline]
    pub(crate) fn closes_wholly(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        let flow = &self.flows[id];
        if flow.state == State::Closed && flow.all_acked() && flow.owner.is_some() {
            let _ = self.step(now, id, Event::AllAcked, out);
        }
    }

    /// A FIN right behind the last byte that was seen.
    fn server_fin(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        id: FlowId,
        ahead: i32,
        out: &mut impl Output,
    ) -> Frame {
        let end = end_of(frame, segment);
        let ended = if ahead > 0 || self.flows[id].state == State::SynAcked {
            // Bytes in front of it are missing, or the connection is not known to be open: it comes
            // again.
            Ended::Held
        } else {
            self.owner_ended(now, id, end, out)
        };
        match ended {
            Ended::Passes => {
                let flow = &mut self.flows[id];
                flow.server_next = flow.server_next.add(1);
                if flow.state == State::ClientFin {
                    let knew = flow.client_acked == flow.client_next;
                    flow.bits.set(Bits::POD_WAITS, !knew);
                }
                self.step(now, id, Event::ServerFin, out)
            }
            Ended::Held if segment.payload_len() > 0 => {
                clear_fin(frame, segment);
                Frame::Forward
            }
            Ended::Held => Frame::Absorb,
        }
    }

    fn owner_resets(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        id: FlowId,
        out: &mut impl Output,
    ) -> Verdict {
        if parse_adoption(frame, segment).is_some() {
            if self.flows[id].progress.is(Mark::ReleaseAsked) {
                return self.answer_to_release(now, frame, segment, id, out);
            }
            if self.flows[id].progress.is(Mark::Transfer) {
                return self.answer_to_transfer(now, frame, segment, id, out);
            }
            // A late answer to an adoption that was sent twice: between the pod's adopter and us.
            self.counters.add(Counter::Fenced);
            return Verdict::Absorbed;
        }
        let flow = &self.flows[id];
        // Any of these numbers may be exact for the client.
        let in_sight = segment.seq.at_or_after(flow.server_acked)
            && segment.seq.at_or_before(self.sent_at_most(id, From::Server));
        let judged = judge_reset(
            flow.state,
            flow.migrations > 0,
            &self.safeguards(),
            (segment.flags.has(Flags::ACK), in_sight),
            segment.seq,
            challenge(flow.server_acked),
        );
        let exact = match judged {
            handover::Reset::Echo => {
                self.counters.add(Counter::ResetsDoubted);
                self.challenge_owner(id, out);
                return Verdict::Absorbed;
            }
            handover::Reset::Proof => true,
            handover::Reset::Owners => in_sight,
        };
        let end = end_of(frame, segment);
        // What the client's own RST ended says nothing of the pod.
        let by_client = exact && self.flows[id].bits.has(Bits::CLIENT_RESET);
        if exact && !by_client && matches!(self.owner_ended(now, id, end, out), Ended::Held) {
            return Verdict::Absorbed;
        }
        let verdict = if judged == handover::Reset::Proof {
            // Its number means something between the pod and us only.
            self.reset_client(id, Reset::Backend, out);
            Verdict::Absorbed
        } else {
            if exact {
                self.count_reset(self.flows[id].policy, Reset::Backend);
            }
            self.forward_to_client(frame, segment, id)
        };
        if by_client {
            let _ = self.step(now, id, Event::ClientRst, out);
        } else if exact {
            let _ = self.step(now, id, Event::ServerRst, out);
        }
        verdict
    }

    /// New bytes from the owner. `ahead` bytes in front of them are missing, or were seen before if
    /// it is negative.
    pub(crate) fn server_data(
        &mut self,
        now: Instant,
        frame: &[u8],
        segment: &Segment,
        id: FlowId,
        ahead: i32,
        out: &mut impl Output,
    ) -> Frame {
        let flow = &self.flows[id];
        let (state, protocol) = (flow.state, self.policies[usize::from(flow.policy)].spec.protocol);
        if state == State::Fresh && protocol != Protocol::None {
            self.pin(id, PinReason::ServerFirst);
        }
        let (gap, seen) = (ahead.max(0) as u32, ahead.min(0).unsigned_abs() as usize);
        let new = segment.data(frame).get(seen..).unwrap_or_default();
        if !matches!(state, State::ServerFin | State::Closed) {
            self.follow(id, From::Server, gap, new);
        }
        let splice = self.mutated(Mutant::SpliceResponse);
        let interim = state == State::Request
            && self
                .tracker(id)
                .is_some_and(|t| t.unanswered() > 0 && (!t.response_begun() || splice));
        if interim {
            return Frame::Forward;
        }
        self.owner_may_lack(now, id, segment, out);
        self.step(now, id, Event::ServerData, out)
    }

    /// An answer begins with this segment: also to requests that were sent together, of which the
    /// owner lacks the last ones?
    #[inline]
    fn owner_may_lack(
        &mut self,
        now: Instant,
        id: FlowId,
        segment: &Segment,
        out: &mut impl Output,
    ) {
        let flow = &self.flows[id];
        if flow.state == State::Request && segment.ack.before(flow.client_acked) {
            self.owner_lacks(now, id, segment, out);
        }
    }
}

/// The number behind its last byte.
fn end_of_bytes(segment: &Segment) -> SeqNumber {
    segment.seq.add(segment.payload_len())
}
