//! Segments from clients: which event they are for their flow, and what the flow learns from them.
//!
//! # Decisions
//!
//! - **What a segment says is learned where a kernel would take it**: its number within the window
//!   and not in front of what was acknowledged, and what it acknowledges sent, and not longer ago
//!   than a window (RFC 5961 section 5.2). Four made-up ones had sufficed to leave a timestamp
//!   that the flow's next pod took for the client's: it threw away all that the client sent then.
//! - **A client's RST ends its flow at once only with the number behind its last byte, or the one
//!   that it was last acknowledged** (RFC 5961): these are what kernels send. One in between is the
//!   pod's to judge: it goes there, with a probe behind it that a kernel without the socket
//!   answers; then the client is told, and nobody is blamed. Any number of a window had ended a
//!   flow.

use crate::{
    Engine, Output, Verdict,
    clock::Instant,
    flow::Bits,
    handover::{ClientData, ClientFin, Input, Mark, client_data, client_fin},
    ids::{FlowId, to_addr},
    mutants::Mutant,
    net::resets::Whom,
    obs::{
        counters::{Counter, DropReason},
        figures::Reset,
        pins::{Lost, PinReason},
    },
    segments::early::Turn,
    states::{Action, Event, Frame, State},
    tables::From,
    timing::{ADOPTIONS_MAX, REPEATED_US},
};
use baton_api::Protocol;
use baton_packet::{
    Decoded, Flags, STRIPPED_FROM_CLIENTS, Segment, clear_accurate_ecn, clear_urgent, decode,
    part_of_segment, strip_options, timestamps,
};

impl Engine {
    pub(crate) fn on_client(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        frontend: u16,
        out: &mut impl Output,
    ) -> Verdict {
        let client = to_addr(segment.src);
        let found = self.flows.find(client, segment.src_port, frontend);
        let flags = segment.flags;
        let mut stripped = !self.mutated(Mutant::KeepOptions)
            && strip_options(frame, segment, STRIPPED_FROM_CLIENTS);
        if flags.has(Flags::SYN) {
            stripped |= clear_accurate_ecn(frame, segment);
        }
        if stripped {
            self.counters.add(Counter::OptionsStripped);
        }
        if flags.has(Flags::SYN) {
            if flags.any(Flags::ACK | Flags::RST | Flags::FIN) {
                return Verdict::Drop(DropReason::BadFlags);
            }
            return self.client_syn(now, frame, segment, frontend, found, out);
        }
        let Some(id) = found else {
            let slot = &self.frontends[usize::from(frontend)];
            // A frontend that left the snapshot may name a slot that is another policy's by now.
            let policy = slot.listed.then_some(slot.policy);
            if self.reset_unknown(now, frame, segment, Whom::Strangers, out)
                && let Some(policy) = policy
            {
                self.count_reset(policy, Reset::NoFlow);
            }
            return Verdict::Drop(DropReason::NoFlow);
        };
        if flags.has(Flags::RST) {
            return self.client_rst(now, frame, segment, id, out);
        }
        if flags.has(Flags::URG) && self.is_guarded(id) && self.flows[id].pin.is_none() {
            self.counters.add(Counter::UrgentCleared);
            clear_urgent(frame, segment);
        }
        if !flags.has(Flags::ACK) {
            return Verdict::Drop(DropReason::BadFlags);
        }
        self.client_segment(now, frame, segment, id, out)
    }

    fn client_rst(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        id: FlowId,
        out: &mut impl Output,
    ) -> Verdict {
        let flow = &self.flows[id];
        let owner = flow.owner;
        // Only an exact number resets (RFC 5961 section 3.2), and which one that is the backend's
        // kernel knows. A client resets with the number behind its last byte, or, without a socket,
        // with the one that it was last acknowledged.
        let (acked, last) = (flow.client_acked, self.sent_at_most(id, From::Client));
        let exact = segment.seq == last || (segment.seq == acked && flow.state != State::SynSent);
        let perhaps = segment.seq.after(acked) && segment.seq.before(last);
        if !exact && perhaps && self.doubts_client_reset(segment, id, out) {
            return Verdict::Absorbed;
        }
        let flow = &self.flows[id];
        let verdict = match flow.state {
            State::Legless => {
                // What it sent last may be lost: it says where it is (RFC 5961 section 3.2).
                let ahead = segment.seq.after(last) && flow.client_may_send(segment.seq);
                if ahead && self.may_reset(now, Whom::Clients) {
                    self.challenge_client(id, out);
                }
                Verdict::Absorbed
            }
            State::Orphan | State::FinSentToClient => Verdict::Absorbed,
            State::Closed if !owner.is_some() => Verdict::Absorbed,
            _ => {
                if exact && self.sent_until(id).is_some() {
                    // The owner expects a number in front of the client's.
                    self.reset_leg(id, owner, out);
                }
                self.forward_to_owner(frame, segment, id, out)
            }
        };
        if exact {
            let _ = self.step(now, id, Event::ClientRst, out);
        }
        verdict
    }

    /// A RST between what the pod acknowledged and what it was sent, which only the pod can judge:
    /// it goes there, and behind it a question that shows whether the socket is gone. False if it
    /// has to go as it is.
    fn doubts_client_reset(
        &mut self,
        segment: &Segment,
        id: FlowId,
        out: &mut impl Output,
    ) -> bool {
        let flow = &self.flows[id];
        let open = flow.state.is_open() || flow.state == State::ClientFin;
        let owner = flow.owner;
        let Some(mut spec) = self.to_leg(owner).filter(|_| open) else {
            return false;
        };
        self.flows[id].bits.set(Bits::CLIENT_RESET, true);
        (spec.seq, spec.ack, spec.flags) = (segment.seq, segment.ack, segment.flags);
        let sent = self.emit_to(owner, spec, out);
        if sent {
            self.counters.add(Counter::ClientResetsDoubted);
            self.challenge_owner(id, out);
        }
        sent
    }

    #[inline]
    fn client_segment(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        id: FlowId,
        out: &mut impl Output,
    ) -> Verdict {
        let flow = &mut self.flows[id];
        match flow.state {
            // Nothing can be acknowledged yet.
            State::SynSent => return Verdict::Drop(DropReason::NoFlow),
            State::FinSentToClient => return self.client_of_parted(now, segment, id, out),
            State::Closed if !flow.owner.is_some() => {
                return self.client_of_closed(now, frame, segment, id, out);
            }
            _ => {}
        }
        flow.last_ms = now.ms32();
        if !flow.client_may_send(segment.seq) || !flow.client_may_ack(segment.ack) {
            self.counters.add(Counter::BeyondWindow);
            let (owner, policy) = (flow.owner, usize::from(flow.policy));
            if self.policies[policy].shares_legs() {
                // A pod that offers more than this client was told would keep it, for whoever has
                // the leg next.
                return Verdict::Absorbed;
            }
            // This one may keep it, and the policy have its legs shared later.
            if segment.seq_len() > 0 {
                self.keeps_its_legs(id);
            }
            return self.forward_to_leg(frame, segment, owner);
        }
        let end = segment.seq.add(segment.seq_len());
        let repeats = segment.payload_len() > 0 && segment.seq.before(flow.client_acked);
        if repeats
            && end.after(flow.client_next)
            && let Some(new) = self.without_old(frame, segment, id, out)
        {
            return self.client_segment(now, frame, &new, id, out);
        }
        let flow = &mut self.flows[id];
        // As its receiver's kernel does (Linux `tcp_sequence`): of what is older than that, in half
        // of all numbers, nothing is learned.
        let current = end.at_or_after(flow.client_acked);
        let acks_more = current && segment.ack.after(flow.server_acked);
        if acks_more {
            flow.server_acked = segment.ack;
        }
        if segment.seq.at_or_after(flow.client_acked) {
            flow.client_window = segment.window;
        }
        if current
            && flow.bits.has(Bits::TIMESTAMPS)
            && segment.seq.at_or_before(flow.client_next)
            && let Some((value, _)) = timestamps(segment.options(frame))
        {
            flow.note_client_ts(value);
        }
        match flow.state {
            State::SynAcked if segment.ack == flow.server_next => {
                self.handshake_ends(id);
                self.hop_of_open(id);
                self.client_opens(id);
                let _ = self.step(now, id, Event::Established, out);
            }
            State::Response if acks_more => self.comes_to_rest(now, id, out),
            _ => {}
        }
        let mut treat = Frame::Forward;
        let new = segment.seq_len() > 0 && end.after(self.flows[id].client_next);
        if self.flows[id].state == State::Legless
            && !self.client_of_legless(now, segment, id, new, out)
        {
            return Verdict::Absorbed;
        }
        let flow = &self.flows[id];
        let comes_again = match flow.state {
            // A close before the connection is known to be open would be forgotten.
            State::SynAcked => segment.flags.has(Flags::FIN),
            // What is behind a gap, or begins no request, or is too much, cannot be kept; the
            // client sends it again.
            State::OwnerFinPending | State::Orphan => {
                let of_request = segment.payload_len() > 0 || flow.bits.has(Bits::KEPT_WHOLE);
                segment.seq.after(flow.client_next)
                    || (segment.payload_len() > 0 && !self.may_keep(segment, id))
                    || (new && of_request && !self.may_wait(id, segment))
            }
            // Nor what may have to be sent to another pod, too.
            State::Request => self.release_is_open(now, id, out),
            // Nor may it begin the request that a hand-over carries.
            State::AdoptingIdle => segment.seq != flow.client_next,
            _ => false,
        };
        if new && comes_again {
            return Verdict::Absorbed;
        }
        let flow = &self.flows[id];
        let again = segment.seq.before(flow.client_next) || !flow.early_client.is_empty();
        if again && segment.payload_len() > 0 {
            self.judge_repeated(id, frame, segment);
        }
        // A segment without bytes may be ahead of lost ones (RFC 9293 section 3.8.1: it carries
        // SND.NXT). It fills no gap.
        if new {
            match self.turn(now, id, From::Client, frame, segment, out) {
                Turn::Now => {
                    treat = self.client_goes_on(now, frame, segment, id, out);
                    self.take_up(now, id, From::Client, out);
                }
                Turn::Later => {}
                Turn::Never => return Verdict::Absorbed,
            }
        } else if segment.payload_len() > 0 {
            self.client_repeats(now, id, segment, out);
        }
        self.client_went_on(now, frame, segment, id, treat, acks_more, out)
    }

    /// A segment with new bytes behind some that its pod has acknowledged, without these: a client
    /// that has not heard of it sends both together (Linux `tcp_retrans_try_collapse`). As it is it
    /// would begin no request, and would lie at the place of a header that is due (`introduce`).
    #[cold]
    fn without_old(
        &self,
        frame: &mut [u8],
        segment: &Segment,
        id: FlowId,
        out: &mut impl Output,
    ) -> Option<Segment> {
        let old = usize::try_from(self.flows[id].had_until().since(segment.seq));
        let old = old.ok().filter(|old| *old > 0)?;
        let left = (segment.payload_len() as usize).checked_sub(old)?;
        // One of ours, which is not sent.
        let part = out.frame()?;
        let len = part_of_segment(frame, segment, old, left, part)?;
        frame.get_mut(..len)?.copy_from_slice(part.get(..len)?);
        match decode(frame.get(..len)?) {
            Ok(Decoded::Tcp(segment)) => Some(segment),
            _ => None,
        }
    }

    /// What becomes of a client's segment once all that it means is known.
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "the segment, its flow and what was found")]
    pub(crate) fn client_went_on(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        id: FlowId,
        mut treat: Frame,
        acks_more: bool,
        out: &mut impl Output,
    ) -> Verdict {
        match self.flows[id].state {
            // To the dead owner's kernel, which may still have to repeat the response:
            // acknowledgements only.
            State::OwnerFinPending | State::Orphan if segment.payload_len() == 0 && acks_more => {}
            State::OwnerFinPending | State::Orphan => treat = Frame::Absorb,
            State::Adopting | State::AdoptingIdle => treat = self.unless_request_waits(id, treat),
            _ => {}
        }
        let verdict = match treat {
            Frame::Forward => self.forward_to_owner(frame, segment, id, out),
            Frame::Absorb => Verdict::Absorbed,
        };
        if self.flows[id].state == State::Orphan && (acks_more || segment.payload_len() > 0) {
            self.try_rescue(now, id, out);
        }
        self.closes_wholly(now, id, out);
        verdict
    }

    /// New bytes or the FIN of a client, in their turn: whether they go to the owner.
    #[inline]
    pub(crate) fn client_goes_on(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        id: FlowId,
        out: &mut impl Output,
    ) -> Frame {
        let mut treat = Frame::Forward;
        if segment.payload_len() > 0 {
            treat = self.client_data(now, frame, segment, id, out);
        }
        self.flows[id].client_next = segment.seq.add(segment.seq_len());
        if segment.flags.has(Flags::FIN) {
            treat = self.client_fin(now, frame, segment, id, treat, out);
        }
        // In a hand-over it is known already whether it waits.
        let watched = self.flows[id].backlog.is_some()
            && treat == Frame::Forward
            && !self.flows[id].state.is_moving()
            && !self.flows[id].state.lacks_owner();
        if watched {
            treat = self.within_window(id, frame, segment);
        }
        treat
    }

    /// A segment from the client of a flow whose ends are both closed, and that has no leg any
    /// more. If it repeats its FIN, the pod's last ACK was lost on the way to it, or our FIN.
    fn client_of_closed(
        &mut self,
        now: Instant,
        frame: &[u8],
        segment: &Segment,
        id: FlowId,
        out: &mut impl Output,
    ) -> Verdict {
        let flow = &mut self.flows[id];
        flow.hears_fin(now, segment.ack);
        if segment.flags.has(Flags::FIN) && segment.seq.add(segment.seq_len()) == flow.client_next {
            if let Some((value, _)) = timestamps(segment.options(frame)) {
                flow.note_client_ts(value);
            }
            if flow.owes_fin() {
                self.send_fin_to_client(id, out);
            } else {
                self.ack_client(id, out);
            }
        }
        Verdict::Absorbed
    }

    /// Whether the bytes begin a request, or go on with one that is kept.
    fn may_keep(&self, segment: &Segment, id: FlowId) -> bool {
        let flow = &self.flows[id];
        let in_order = segment.seq == flow.client_next && segment.ack == flow.server_next;
        flow.bits.has(Bits::KEPT_WHOLE) || (in_order && flow.all_acked() && self.at_rest(id))
    }

    /// The flow is idle once everything is answered and acknowledged.
    #[inline]
    pub(crate) fn comes_to_rest(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        let acked = self.flows[id].all_acked() || self.mutated(Mutant::MoveUnacked);
        if acked && self.answered(id) {
            self.rests(now, id, out);
        }
    }

    /// Apart: most acknowledgements are on the way.
    #[inline(never)]
    fn rests(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        let _ = self.step(now, id, Event::AllAcked, out);
        self.settle_guard(id);
        if self.leaves_legs(self.flows[id].policy) {
            self.arm(now, id, Action::ArmIdle);
        }
    }

    fn client_fin(
        &mut self,
        now: Instant,
        frame: &[u8],
        segment: &Segment,
        id: FlowId,
        treat: Frame,
        out: &mut impl Output,
    ) -> Frame {
        let fin = client_fin(&self.handover_view(now, id));
        let mut keeps = treat;
        if let ClientFin::Moves { .. } | ClientFin::GoesWithRequest | ClientFin::Waits = fin {
            self.flows[id].progress.set(Mark::ClientFin, true);
            if fin != ClientFin::Waits && segment.payload_len() == 0 {
                // One with data is kept with its data. An orphan has room: otherwise it would not
                // count as seen.
                keeps = self.keep_or_wait(id, frame, segment);
            }
        }
        match fin {
            ClientFin::Moves { at_rest } => {
                if at_rest {
                    let _ = self.step(now, id, Event::ClientFin, out);
                }
                keeps
            }
            ClientFin::EndStands => {
                self.decide(now, id, Input::CloseStands, None, out);
                if self.flows[id].state == State::ServerFin {
                    self.flows[id].bits.set(Bits::POD_WAITS, true);
                    return self.step(now, id, Event::ClientFin, out);
                }
                Frame::Absorb
            }
            ClientFin::NotKept => {
                self.count_lost(id, Lost::NotKept);
                let _ = self.step(now, id, Event::Lost, out);
                Frame::Absorb
            }
            ClientFin::GoesWithRequest | ClientFin::Waits | ClientFin::Gone => Frame::Absorb,
            ClientFin::Passes => {
                if self.flows[id].state == State::ServerFin {
                    self.flows[id].bits.set(Bits::POD_WAITS, true);
                }
                self.step(now, id, Event::ClientFin, out)
            }
        }
    }

    /// The client sent again what was sent before. That speaks against the backend, once for each
    /// request, if it has acknowledged nothing of it for as long as a kernel waits before it
    /// repeats; a segment that is lost further on, or that the client repeats because of one, is
    /// the network's.
    fn client_repeats(
        &mut self,
        now: Instant,
        id: FlowId,
        segment: &Segment,
        out: &mut impl Output,
    ) {
        let flow = &self.flows[id];
        let of_request = segment.seq.at_or_after(flow.boundary);
        let adopts = flow.state == State::Adopting
            && !flow.progress.is(Mark::Opening)
            && flow.progress.asked < ADOPTIONS_MAX;
        if adopts && of_request && !self.request_waits(id) {
            // Whoever has not taken the adoption would answer it by a RST, which says no more than
            // that: with the last try's adoption lost, the request's fate would count as unknown.
            return self.send_adoption(now, id, out);
        }
        let flow = &mut self.flows[id];
        let nothing_acked = flow.client_acked == flow.boundary && flow.client_next != flow.boundary;
        let waited_us = (now.0 as u32).wrapping_sub(flow.sent_us);
        let counts = flow.state == State::Request
            && nothing_acked
            && segment.seq == flow.boundary
            && waited_us >= REPEATED_US
            && !flow.bits.has(Bits::REPEATED);
        if counts {
            flow.bits.set(Bits::REPEATED, true);
            self.request_repeated(now, id);
        }
    }

    /// New bytes from the client.
    fn client_data(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        id: FlowId,
        out: &mut impl Output,
    ) -> Frame {
        let flow = &self.flows[id];
        let (state, protocol) = (flow.state, self.policies[usize::from(flow.policy)].spec.protocol);
        let ahead = segment.seq.since(flow.client_next);
        let (gap, seen) = (ahead.max(0) as u32, ahead.min(0).unsigned_abs() as usize);
        // The sequence-number half of the boundary rule, and that the owner holds no state of the
        // conversation.
        let acked = segment.ack == flow.server_next && flow.all_acked();
        let boundary =
            ahead == 0 && (acked || self.mutated(Mutant::MoveUnacked)) && self.at_rest(id);
        let whole = !segment.flags.has(Flags::FIN);
        let data = segment.data(frame);
        if state == State::Fresh
            && ahead == 0
            && protocol != Protocol::None
            && let Some(pin) = baton_guard::detect(data)
        {
            self.pin(id, PinReason::Guard(pin));
        }
        // Of bytes that come twice the guard sees the first ones. A pod may take others: then this
        // client's connection moves in the middle of its request, or not at all, and its legs are
        // its own (`disputed`).
        self.follow(id, From::Client, gap, data.get(seen..).unwrap_or_default());
        let flow = &self.flows[id];
        let (pinned, kept) = (flow.pin.is_some(), flow.bits.has(Bits::KEPT_WHOLE));
        match client_data(state, pinned, kept, boundary, whole) {
            ClientData::Begins { may_move } => {
                let cold = self.flows[id].adopted_idle();
                self.begin_request(id, frame, segment);
                // What came early is with the owner.
                let early = !self.flows[id].early_client.is_empty();
                if may_move && protocol != Protocol::None && !early {
                    self.counters.add(Counter::Boundaries);
                    if self.prepare_move(now, id, out) {
                        return self.step(now, id, Event::Move, out);
                    }
                }
                if cold {
                    self.begins_at_idle_owner(id);
                }
                self.step(now, id, Event::ClientData, out)
            }
            ClientData::Overlaps => {
                // The client went on before the answer was complete. A guard follows that; the bare
                // rule cannot.
                if protocol == Protocol::RequestResponse {
                    self.pin(id, PinReason::Pipelined);
                }
                self.drop_kept(id);
                self.counters.add(Counter::Requests);
                self.step(now, id, Event::ClientData, out)
            }
            ClientData::GoesOn => {
                self.request_goes_on(now, id);
                if ahead > 0 {
                    self.keep_no_more(id);
                }
                self.keep_more(id, frame, segment);
                Frame::Forward
            }
            ClientData::GoesOnMoving => {
                self.request_goes_on(now, id);
                if ahead > 0 {
                    self.keep_no_more(id);
                }
                self.keep_or_wait(id, frame, segment)
            }
            ClientData::BeginsMoving => {
                self.begin_request(id, frame, segment);
                self.step(now, id, Event::ClientData, out)
            }
            kept @ (ClientData::GoesOnKept | ClientData::BeginsKept { .. } | ClientData::Waits) => {
                if self.request_is_complete(id) {
                    self.copies.kept.is_complete(self.flows[id].kept);
                }
                match kept {
                    ClientData::GoesOnKept => {
                        let _ = self.keep_or_wait(id, frame, segment);
                    }
                    ClientData::BeginsKept { held } => {
                        self.begin_request(id, frame, segment);
                        self.flows[id].progress.set(Mark::Unseen, true);
                        if held {
                            self.decide(now, id, Input::RequestAtDead, None, out);
                            return Frame::Absorb;
                        }
                    }
                    _ => {}
                }
                self.step(now, id, Event::ClientData, out)
            }
            ClientData::Passes => Frame::Forward,
        }
    }
}
