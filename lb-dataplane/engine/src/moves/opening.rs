//! Translated legs: a leg that the dataplane opens itself, by an ordinary handshake with the pod
//! that shall take a flow over, where that one cannot adopt it.
//!
//! The handshake begins right in front of the client's next byte, so that the client's numbers are
//! the pod's. The pod's own are others by a constant, and so are its timestamps: a shift
//! ([`Shift`]) is found by the leg as long as there is one. Whatever comes from such a leg is given
//! the client's numbers before anything else looks at it, and whatever goes to it the pod's numbers
//! as the last thing: everything in between, kept copies and timers too, knows only the client's.
//!
//! Owns which flows' legs are opened, the handshake, and what is written to such legs. What an
//! answer comes to is decided in `handover::opening`.
//!
//! # Decisions
//!
//! - **Adoption stays the first choice**: no round trip, nothing to shift for each segment, and no
//!   state that another dataplane would have to know. What has no adopter, or one that says no, is
//!   sent a SYN: any kernel takes that, and what is on the way to it too.
//! - **Numbers are shifted where frames come in and go out**, not where they are looked at.
//!   Rejected: two sets of numbers in the flow. Each of the 60 places that compare one with a
//!   segment's would have had to say which it means, and flows that are not translated would carry
//!   both.

use crate::{
    Engine, Output, Verdict,
    backend::{Backend, ports::Purpose},
    balance::policy::Policy,
    clock::Instant,
    containers::shares,
    flow::{Bits, Flow},
    handover::{Input, Mark, Opening},
    ids::{FlowId, Leg},
    mutants::Mutant,
    obs::{counters::Counter, events::What},
    tables::legs::By,
};
use baton_api::MoveMethod;
use baton_packet::{
    Flags, Segment, SegmentSpec, SeqNumber, Shift, SynOptions, build_segment, build_syn,
    parse_syn_options,
};

/// Smallest MSS that `bpf_sk_assign_tcp_reqsk` takes (net/core/filter.c; seen on Linux 6.18 for
/// IPv4). Other flows are not adopted: a refusal would count against the backend, and a client must
/// not be able to cause that.
const MSS_ADOPTABLE_V4: u16 = 536;
const MSS_ADOPTABLE_V6: u16 = 1_220;

impl Flow {
    /// Whether a pod's kernel can make a socket for it from an adoption, over IPv6 or IPv4.
    pub(crate) fn is_adoptable(&self, v6: bool) -> bool {
        let least = match v6 {
            true => MSS_ADOPTABLE_V6,
            false => MSS_ADOPTABLE_V4,
        };
        self.mss >= least
    }
}

impl Policy {
    /// Whether its flows may move by translation.
    pub(crate) fn translates(&self) -> bool {
        self.spec.migration.method != MoveMethod::Adoption
    }
}

impl Engine {
    /// Whether there is any way for the policy's flows to another pod.
    pub(crate) fn hands_over(&self, policy: u16) -> bool {
        !self.keys.is_empty() || self.policies[usize::from(policy)].translates()
    }

    /// Whether the flow's leg to this backend, which takes it over, is opened by a handshake.
    fn is_opened(&self, now: Instant, id: FlowId, backend: &Backend) -> bool {
        let flow = &self.flows[id];
        match self.policies[usize::from(flow.policy)].spec.migration.method {
            MoveMethod::Adoption => false,
            MoveMethod::Translation => true,
            MoveMethod::Auto => {
                self.keys.is_empty()
                    || !flow.is_adoptable(backend.addr.is_v6())
                    || !backend.adopter.adoptable(now)
            }
        }
    }

    /// A leg to a backend that takes the flow over, if a port is free; `must`: also one of those
    /// that are kept for rescues and drains.
    pub(crate) fn leg_to_heir(
        &mut self,
        now: Instant,
        id: FlowId,
        target: u16,
        must: bool,
    ) -> Result<Leg, Counter> {
        if let Some(leg) = self.shared_leg_to(id, target) {
            return Ok(leg);
        }
        let opens = self.is_opened(now, id, &self.backends[usize::from(target)]);
        if opens && self.legs.shifts.is_full() {
            return Err(Counter::StayedShiftsFull);
        }
        // Its connections trackers hold as it is: what counts is what they remember beside these.
        let own = self.policies[usize::from(self.flows[id].policy)].remembered;
        let of = (self.legs.tracked.0, self.settings.limits.tracked_pairs);
        let full = !must && !shares::leaves_others_theirs(of, own, self.ids.policies.len());
        let purpose = match (opens, must) {
            (false, false) if full => return Err(Counter::StayedTracked),
            (true, false) if full => Purpose::Again,
            (false, false) => Purpose::Move,
            (false, true) => Purpose::Rescue,
            (true, false) => Purpose::Handshake,
            (true, true) => Purpose::Opening,
        };
        if let Some(leg) = self.take_port(now, target, purpose) {
            if opens {
                self.redirect.by = By::Handshake;
            }
            return Ok(leg);
        }
        if full {
            return Err(Counter::StayedTracked);
        }
        let ports = &mut self.backends[usize::from(target)].ports;
        let reserved = ports.has_ready(&mut self.legs.rests, now.ms());
        Err(match reserved {
            true => Counter::StayedPortReserve,
            false => Counter::StayedNoPort,
        })
    }

    /// One that is open already, and was another flow's.
    pub(crate) fn shared_leg_to(&mut self, id: FlowId, target: u16) -> Option<Leg> {
        let (leg, shared) = self.take_parked(id, target)?;
        self.redirect.by = By::Shared(shared);
        Some(leg)
    }

    /// The owner is the leg that [`Self::leg_to_heir`] took.
    pub(crate) fn begins_on_leg(&mut self, now: Instant, id: FlowId) {
        match std::mem::take(&mut self.redirect.by) {
            By::Adoption => self.flows[id].progress.set(Mark::Opening, false),
            By::Handshake => self.flows[id].progress.set(Mark::Opening, true),
            By::Shared(shared) => return self.share_leg(now, id, &shared),
        }
        self.note_restored(id);
    }

    /// Our SYN to the owner leg, or, once that was answered, what ends the handshake and restores
    /// the session.
    pub(crate) fn send_opening(&mut self, id: FlowId, out: &mut impl Output) {
        let flow = &self.flows[id];
        let again = flow.progress.tries > 1;
        if flow.progress.is(Mark::Shared) && !again {
            // There is nothing to open.
            return self.tell(id, What::LegShared);
        }
        let (first, next) = self.adoption_start(id);
        let client_ts = self.first_client_ts(id);
        if flow.progress.is(Mark::Translated) {
            let Some(mut spec) = self.to_leg(flow.owner) else {
                return;
            };
            (spec.seq, spec.ack) = (first, next);
            spec.window = flow.client_window;
            spec.timestamps = Self::client_stamps(flow).map(|(_, echo)| (client_ts, echo));
            let owner = flow.owner;
            if !self.introduce_heir(id, (first, next), out) {
                self.emit_to(owner, spec, out);
            }
            if self.flows[id].bits.has(Bits::PRELUDE) {
                self.send_prelude(id, out);
            }
            return;
        }
        self.counters.add(match again {
            true => Counter::OpeningsAgain,
            false => Counter::OpeningsSent,
        });
        self.tell(
            id,
            match again {
                true => What::OpeningAgain,
                false => What::Opening,
            },
        );
        self.emit_syn(id, (first.sub(1), client_ts), out);
    }

    /// A SYN to the owner leg in the client's name, as what was noted of its own says.
    pub(crate) fn emit_syn(
        &mut self,
        id: FlowId,
        (seq, client_ts): (SeqNumber, u32),
        out: &mut impl Output,
    ) {
        let flow = &self.flows[id];
        let Some(mut spec) = self.to_leg(flow.owner) else {
            return;
        };
        spec.seq = seq;
        // That of a SYN is not scaled; that of a SYN of the client's was not.
        let scale = match flow.state.is_opening() {
            true => 0,
            false => flow.scales & 15,
        };
        let window = u32::from(flow.client_window) << scale;
        spec.window = window.min(u32::from(u16::MAX)) as u16;
        spec.flags = if flow.bits.has(Bits::ECN) {
            Flags::SYN | Flags::ECE | Flags::CWR
        } else {
            Flags::SYN
        };
        let has = |bit| flow.bits.has(bit);
        let offer = SynOptions {
            mss: Some(flow.mss),
            window_scale: has(Bits::WSCALE).then_some(flow.scales & 15),
            sack_permitted: has(Bits::SACK),
            timestamps: has(Bits::TIMESTAMPS).then_some((client_ts, 0)),
            ..SynOptions::default()
        };
        let namespace = self.backends[usize::from(flow.owner.backend)].adopter.namespace;
        let block = self.client_block(id, &spec, namespace);
        let payload = block.as_ref().map_or(&[][..], |block| block);
        let spec = SegmentSpec { payload, ..spec };
        self.emit(out, |buffer| build_syn(buffer, &spec, &offer));
    }

    /// A segment from an owner that was sent our SYN, with its own numbers.
    pub(crate) fn answer_to_opening(
        &mut self,
        now: Instant,
        frame: &[u8],
        segment: &Segment,
        id: FlowId,
        out: &mut impl Output,
    ) -> Verdict {
        let has = |flag| segment.flags.has(flag);
        let ours = has(Flags::ACK) && segment.ack == self.adoption_start(id).0;
        let answer = match (has(Flags::RST), has(Flags::SYN)) {
            (true, _) if ours => Opening::Refused,
            (false, true) if ours => self.opened(now, frame, segment, id),
            // A challenge ACK, or the answer to somebody's older SYN.
            (false, _) if has(Flags::ACK) => Opening::Stale(segment.ack),
            _ => {
                self.counters.add(Counter::Fenced);
                return Verdict::Absorbed;
            }
        };
        self.decide(now, id, Input::Opening(answer), None, out);
        Verdict::Absorbed
    }

    /// The pod agreed: from now on its numbers are shifted.
    fn opened(&mut self, now: Instant, frame: &[u8], segment: &Segment, id: FlowId) -> Opening {
        let offer = parse_syn_options(segment.options(frame));
        let (_, next) = self.adoption_start(id);
        let echoes_all = self.mutated(Mutant::EchoStrangers);
        let flow = &mut self.flows[id];
        let stamped = flow.bits.has(Bits::TIMESTAMPS);
        let scaled = flow.bits.has(Bits::WSCALE) && flow.scales & 15 > 0;
        if (stamped && offer.timestamps.is_none()) || (scaled && offer.window_scale.is_none()) {
            // The client has been promised both for good (RFC 7323 sections 2.2 and 3.2): the pod
            // would read its windows as they are, 128 times too small as a rule.
            return Opening::Unlike;
        }
        let here = flow.server_ts_at(now.ms32());
        let (value, _) = offer.timestamps.unwrap_or((here, 0));
        let shift = Shift {
            seq: next.0.wrapping_sub(segment.seq.add(1).0),
            acked: 0,
            echoes: 0,
            stamps: here.wrapping_sub(value),
            stamps_from: if echoes_all { here.wrapping_sub(i32::MAX as u32) } else { here },
            pod_scale: offer.window_scale.unwrap_or(0),
            client_scale: flow.scales >> 4,
        };
        let leg = flow.owner;
        if !self.legs.shifts.put(id, leg, shift) {
            self.counters.add(Counter::ShiftsFull);
            return Opening::NoRoom;
        }
        let flow = &mut self.flows[id];
        (flow.server_ts, flow.server_ts_ms) = (here, now.ms32());
        flow.progress.set(Mark::Translated, true);
        flow.note_aside();
        self.counters.add(Counter::OpeningsAnswered);
        Opening::Opened
    }

    /// The pod repeats its SYN-ACK: the end of the handshake was lost, or its listener's queue was
    /// full.
    #[cold]
    pub(crate) fn opened_again(&mut self, id: FlowId, out: &mut impl Output) -> Verdict {
        self.counters.add(Counter::Fenced);
        let flow = &self.flows[id];
        let leg = flow.owner;
        if flow.state.is_moving() {
            self.send_opening(id, out);
        } else if self.introduce_again(id, out) {
            // It acknowledges, too.
        } else if let Some(mut spec) = self.to_leg(leg) {
            // It may have nothing of the client's yet; or this is a late copy, and the answer since
            // may be lost on its way to the client.
            let flow = &self.flows[id];
            (spec.seq, spec.ack) = (flow.client_acked, flow.server_acked);
            spec.window = flow.client_window;
            spec.timestamps = Self::client_stamps(flow);
            self.emit_to(leg, spec, out);
        }
        let _ = self.replay_kept(id, out);
        Verdict::Absorbed
    }

    /// Sends a segment with the client's numbers to a leg, which may be translated.
    pub(crate) fn emit_to(
        &mut self,
        leg: Leg,
        mut spec: SegmentSpec<'_>,
        out: &mut impl Output,
    ) -> bool {
        self.numbers_of_leg(leg, &mut spec);
        self.emit(out, |buffer| build_segment(buffer, &spec))
    }

    /// Gives a segment that has the client's numbers those of its leg.
    #[inline]
    pub(crate) fn numbers_of_leg(&self, leg: Leg, spec: &mut SegmentSpec<'_>) {
        if let Some(shift) = self.legs.shifts.of(leg) {
            spec.seq = shift.seq_to_pod(spec.seq);
            if spec.flags.has(Flags::ACK) {
                spec.ack = shift.ack_to_pod(spec.ack);
            }
            spec.timestamps = (spec.timestamps)
                .map(|(own, echo)| (shift.stamp_to_pod(own), shift.echo_to_pod(echo)));
        }
    }
}
