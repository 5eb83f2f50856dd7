//! Adoption: moving a flow to another backend, what is sent for it, and the legs that change their
//! parts.
//!
//! Owns the hand-over until an answer comes; what an answer means is in `answer`.

use crate::{
    Engine, Output, Verdict,
    backend::ports::{Purpose, Rest},
    balance::policy::{MoveConstraint, Target},
    clock::Instant,
    flow::Bits,
    handover::{Input, Mark, Then, challenge},
    ids::{FlowId, Leg},
    mutants::Mutant,
    obs::{
        cause::{Cause, MoveEnd},
        counters::Counter,
        events::What,
        ledger::Moved,
    },
    states::{Frame, State},
    tables::legs::Use,
};
use baton_packet::{
    Adoption, Decoded, Flags, MessageKind, Segment, SeqNumber, build_adoption, parse_adoption,
    timestamps,
};

impl Engine {
    /// Decides whether the flow moves with this request, of which a copy is kept, and makes
    /// everything ready for it: target and port. `false` leaves all as it was.
    pub(crate) fn prepare_move(&mut self, now: Instant, id: FlowId, out: &mut impl Output) -> bool {
        if self.transfer_is_open(id) || !self.hands_over(self.flows[id].policy) {
            return false;
        }
        let ties = self.ties(now, id);
        let flow = &self.flows[id];
        let (owner, v6) = (flow.owner.backend, flow.is_v6());
        let asked = self.asked_target(now, id);
        if asked.is_none() && self.stays_with_large(id, ties) {
            return false;
        }
        let flow = &self.flows[id];
        let policy = &mut self.policies[usize::from(flow.policy)];
        let gap_us = u64::from((now.0 as u32).wrapping_sub(flow.sent_us));
        let chosen = match asked {
            Some(backend) => Some(Target { backend, cause: Cause::Manual, waits_us: None }),
            None => policy.choose_move(
                v6,
                owner,
                ties,
                gap_us,
                &self.backends,
                now,
                self.committed,
                &mut self.rng,
            ),
        };
        let Some(chosen) = chosen else {
            return false;
        };
        if ties != MoveConstraint::OwnerDown && policy.moved_enough(flow.moves()) {
            self.counters.add(Counter::StayedFlow);
            return false;
        }
        let target = self.held_elsewhere(now, id, Some(owner)).unwrap_or(chosen.backend);
        let flow = &self.flows[id];
        let policy = &mut self.policies[usize::from(flow.policy)];
        if self.legs.closing.is_full() {
            self.counters.add(Counter::StayedClosingFull);
            return false;
        }
        if out.frame().is_none() {
            self.counters.add(Counter::StayedNoFrame);
            return false;
        }
        let backend = &mut self.backends[usize::from(target)];
        if backend.hop.and_then(|h| self.net.hops.mac(h)).is_none() {
            return false;
        }
        if !flow.bits.has(Bits::KEPT_WHOLE) {
            self.counters.add(Counter::StayedKeptFull);
            return false;
        }
        if let Err(limit) = policy.may_move(v6, target, now) {
            self.counters.add(limit);
            return false;
        }
        let must = chosen.cause == Cause::Manual
            || match ties {
                MoveConstraint::OwnerDown
                | MoveConstraint::OwnerLeaves
                | MoveConstraint::OwnerEjected => true,
                MoveConstraint::None | MoveConstraint::Cooldown | MoveConstraint::Affinity => false,
            };
        let leg = match self.leg_to_heir(now, id, target, must) {
            Ok(leg) => leg,
            Err(why) => {
                self.counters.add(why);
                return false;
            }
        };
        self.client_goes(id, target);
        self.hand_over(id, leg, chosen.cause);
        self.note_reusable(id, !must);
        self.expect_of_move(id, chosen.waits_us);
        self.counters.add(Counter::MigrationsBegun);
        true
    }

    /// What every hand-over from a living owner begins with.
    pub(crate) fn hand_over(&mut self, id: FlowId, leg: Leg, cause: Cause) {
        self.flows[id].progress.hand_over();
        self.goes_to(id, leg, cause);
    }

    /// The flow is on its way to the pod of `leg`.
    pub(crate) fn goes_to(&mut self, id: FlowId, leg: Leg, cause: Cause) {
        if cause != Cause::Manual {
            self.drop_pending_move(id);
        }
        self.flows[id].causes.begin(cause);
        self.redirect.leg = leg;
        self.prepare_prelude(id);
    }

    /// Notes what the move of a flow with a request is expected to bring.
    fn expect_of_move(&mut self, id: FlowId, waits_us: Option<(f64, f64)>) {
        let flow = &mut self.flows[id];
        flow.moved = Moved::with(waits_us.map(|(here_us, _)| here_us));
        if let Some((here_us, there_us)) = waits_us {
            self.policies[usize::from(flow.policy)].gains.expect(here_us, there_us);
        }
    }

    /// A move of the flow ended.
    pub(crate) fn move_ends(&mut self, id: FlowId, end: MoveEnd) {
        let flow = &self.flows[id];
        if let Some(cause) = flow.causes.open() {
            self.policies[usize::from(flow.policy)].ends[cause as usize][end as usize] += 1;
        }
    }

    /// What holds a flow at its owner.
    #[inline]
    fn ties(&self, now: Instant, id: FlowId) -> MoveConstraint {
        let flow = &self.flows[id];
        let owner = &self.backends[usize::from(flow.owner.backend)];
        if owner.liveness.is_down() {
            return MoveConstraint::OwnerDown;
        }
        if self.is_leaving(id) {
            return MoveConstraint::OwnerLeaves;
        }
        let policy = &self.policies[usize::from(flow.policy)];
        if policy.spec.affinity.is_some() {
            let pool = &policy.pools[policy.pool_of(flow.is_v6())];
            let ejected = pool.is_ejected(flow.owner.backend, &self.backends, now);
            return if pool.panic || (owner.liveness.is_usable() && !ejected) {
                MoveConstraint::Affinity
            } else {
                MoveConstraint::OwnerEjected
            };
        }
        let cooldown_ms = policy.spec.migration.cooldown.0 / 1_000;
        let rests = flow.bits.has(Bits::MOVED)
            && u64::from(now.ms32().wrapping_sub(flow.moved_ms)) < cooldown_ms;
        if rests { MoveConstraint::Cooldown } else { MoveConstraint::None }
    }

    /// The owner becomes the standby leg, the pending leg the owner.
    pub(crate) fn take_over(&mut self, now: Instant, id: FlowId) {
        let leg = std::mem::replace(&mut self.redirect.leg, Leg::NONE);
        let old = self.flows[id].owner;
        self.legs.uses.assign(old, Use::Standby(id));
        self.leaves(id, old.backend);
        self.own_leg(id, leg);
        self.flows[id].progress.told.stands_by();
        self.flows[id].standby = old;
        self.begins_on_leg(now, id);
    }

    /// Whether the request follows only once the pod has answered our SYN, or what restores the
    /// session.
    pub(crate) fn request_waits(&self, id: FlowId) -> bool {
        let flow = &self.flows[id];
        let opening = flow.state.is_moving() && flow.progress.is_opening();
        flow.bits.has(Bits::PRELUDE) || (opening && !self.mutated(Mutant::OverrunOpening))
    }

    /// A frame that would overtake that waits among the kept ones.
    pub(crate) fn unless_request_waits(&self, id: FlowId, treat: Frame) -> Frame {
        if self.request_waits(id) { Frame::Absorb } else { treat }
    }

    /// The adoption segment to the owner leg.
    pub(crate) fn send_adoption(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        let flow = &self.flows[id];
        let signs = self.signing_key(flow.owner.backend);
        let (Some(mut spec), Some((epoch, key))) = (self.to_leg(flow.owner), signs) else {
            return;
        };
        let stamps_anew = self.mutated(Mutant::StampsAnew);
        let adopter = &self.backends[usize::from(flow.owner.backend)].adopter;
        // Where the pod was replaced since the flow came to it, the one before may have taken it:
        // this one must not, and says so.
        let namespace = if flow.renewed == adopter.renewed { adopter.namespace } else { 0 };
        let message = Adoption {
            kind: MessageKind::Adopt,
            mss: flow.mss,
            server_wscale: flow.scales >> 4,
            client_wscale: flow.scales & 15,
            wscale_ok: flow.bits.has(Bits::WSCALE),
            sack_ok: flow.bits.has(Bits::SACK),
            timestamps_ok: flow.bits.has(Bits::TIMESTAMPS),
            ecn_ok: flow.bits.has(Bits::ECN),
            epoch,
            server_ts: if stamps_anew { 0 } else { flow.server_ts_at(now.ms32()) },
            namespace,
        };
        (spec.seq, spec.ack) = self.adoption_start(id);
        spec.window = flow.client_window;
        spec.timestamps = Some((self.first_client_ts(id), flow.server_ts));
        let restores = flow.bits.has(Bits::PRELUDE);
        let block = self.client_block(id, &spec, namespace);
        spec.payload = block.as_ref().map_or(&[], |block| block);
        let again = flow.progress.tries > 1;
        if again {
            self.counters.add(Counter::AdoptionRetries);
        }
        self.tell(id, if again { What::AdoptingAgain } else { What::Adopting });
        if self.emit(out, |buffer| build_adoption(buffer, &spec, &message, &key)) {
            let flow = &mut self.flows[id];
            flow.progress.asked = flow.progress.asked.saturating_add(1);
        }
        self.introduce_heir(id, self.adoption_start(id), out);
        if restores {
            self.send_prelude(id, out);
        }
    }

    /// The client's timestamp that a new owner begins with: not newer than that of the first
    /// segment it will be sent, or its kernel would take that for an old duplicate (PAWS, RFC 7323
    /// section 5; Linux `tcp_paws_check`).
    pub(crate) fn first_client_ts(&self, id: FlowId) -> u32 {
        let flow = &self.flows[id];
        let first = self.copies.kept.iter(flow.kept).next();
        let stamps = first.and_then(|frame| match baton_packet::decode(frame) {
            Ok(Decoded::Tcp(segment)) => timestamps(segment.options(frame)),
            _ => None,
        });
        stamps.map_or(flow.client_ts, |(value, _)| value)
    }

    /// A segment that an established socket answers at once, whatever its application does: one
    /// byte that it has already (RFC 1122 section 4.2.3.6; Linux `tcp_data_queue` acknowledges it
    /// without a rate limit).
    pub(crate) fn send_keepalive(&mut self, id: FlowId, out: &mut impl Output) {
        if self.request_waits(id) {
            return;
        }
        let flow = &self.flows[id];
        let Some(mut spec) = self.to_leg(flow.owner) else {
            return;
        };
        spec.seq = self.adoption_start(id).0.add(u32::MAX);
        spec.ack = flow.server_acked;
        spec.window = flow.client_window;
        spec.timestamps = Self::client_stamps(flow);
        spec.payload = &[0];
        self.emit_to(flow.owner, spec, out);
    }

    /// A keepalive with an ACK number that no segment of the client's has at this time: a kernel
    /// without a socket answers it with a RST of that number, and a socket with an ACK, or not at
    /// all (RFC 5961 section 5).
    pub(crate) fn challenge_owner(&mut self, id: FlowId, out: &mut impl Output) {
        let flow = &self.flows[id];
        let Some(mut spec) = self.to_leg(flow.owner) else {
            return;
        };
        spec.seq = self.certain_at_owner(id).add(u32::MAX);
        spec.ack = challenge(flow.server_acked);
        spec.window = flow.client_window;
        spec.timestamps = Self::client_stamps(flow);
        spec.payload = &[0];
        self.emit_to(flow.owner, spec, out);
    }

    /// Acknowledges to the owner what the client never sees.
    pub(crate) fn ack_owner(&mut self, id: FlowId, ack: SeqNumber, out: &mut impl Output) {
        let flow = &self.flows[id];
        let Some(mut spec) = self.to_leg(flow.owner) else {
            return;
        };
        spec.seq = flow.client_next;
        spec.ack = ack;
        spec.window = flow.client_window;
        spec.timestamps = Self::client_stamps(flow);
        self.emit_to(flow.owner, spec, out);
    }

    /// A segment from the old owner while the new one is unconfirmed: fenced.
    pub(crate) fn on_standby(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        id: FlowId,
        out: &mut impl Output,
    ) -> Verdict {
        if self.mutated(Mutant::SkipFencing) {
            return self.forward_to_client(frame, segment, id);
        }
        self.counters.add(Counter::Fenced);
        let flow = &self.flows[id];
        debug_assert!(flow.state.is_moving());
        let flags = segment.flags;
        // In its name anybody can send a RST; one with another number, or an adopter's late answer,
        // says nothing.
        let exact = segment.seq == flow.server_next && parse_adoption(frame, segment).is_none();
        let new =
            segment.payload_len() > 0 && segment.seq.add(segment.seq_len()).after(flow.server_next);
        if new {
            // Its leg is nobody's next.
            self.flows[id].progress.set(Mark::Reusable, false);
        }
        let input = Input::Standby {
            new,
            reset: flags.has(Flags::RST) && exact,
            fin: flags.has(Flags::FIN) && !flags.has(Flags::RST),
        };
        match self.decide(now, id, input, None, out) {
            Then::GoOn => self.on_owner(now, frame, segment, id, out),
            _ => Verdict::Absorbed,
        }
    }

    /// The standby leg is owner again.
    pub(crate) fn resume_standby(&mut self, now: Instant, id: FlowId) {
        self.tell(id, What::RolledBack);
        self.move_ends(id, MoveEnd::RolledBack);
        self.flows[id].causes.taken_back();
        self.flows[id].moved = Moved::NO;
        self.drop_owner(now, id, Rest::Quiet);
        let leg = std::mem::replace(&mut self.flows[id].standby, Leg::NONE);
        self.flows[id].progress.told.resumes();
        self.own_leg(id, leg);
        self.flows[id].bits.set(Bits::PRELUDE, false);
        self.flows[id].progress.set(Mark::Rescue, false);
        if self.flows[id].pin.is_some() {
            self.drop_guard(id);
        }
        self.counters.add(Counter::Rollbacks);
        self.policies[usize::from(self.flows[id].policy)].rollbacks_total += 1;
        // Not at once again: the reason will hardly be gone.
        self.flows[id].moved_ms = now.ms32();
        self.flows[id].bits.set(Bits::MOVED, true);
    }

    /// Another port towards the same backend; the old one rests. There is a free one: the caller
    /// has looked.
    pub(crate) fn renew_port(&mut self, now: Instant, id: FlowId) {
        let leg = self.flows[id].owner;
        let opens = self.flows[id].progress.is(Mark::Opening);
        let purpose = match self.flows[id].state {
            State::SynSent => Purpose::Handshake,
            _ if opens => Purpose::Opening,
            _ => Purpose::Rescue,
        };
        let Some(leg) = self.take_port(now, leg.backend, purpose) else {
            return;
        };
        self.drop_owner(now, id, Rest::Stale);
        self.own_leg(id, leg);
        let progress = &mut self.flows[id].progress;
        progress.set(Mark::Opening, opens);
        progress.leg_is_new();
    }

    /// The old owner's leg starts closing; figures of a completed move.
    pub(crate) fn close_standby(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        let rescued = self.flows[id].progress.is(Mark::Rescue);
        self.counters.add(Counter::MigrationsConfirmed);
        let old = self.has_moved(now, id);
        if !old.is_some() {
            return;
        }
        if self.mutated(Mutant::LeaveOldLeg) {
            self.free_leg(now, old, Rest::Quiet);
            return;
        }
        if !rescued && self.park(now, id, old, false) {
            return;
        }
        // An owner that was overdue has the request, or some of it.
        let flow = &self.flows[id];
        let reached = if rescued { flow.client_next } else { flow.boundary };
        self.close_leg(now, id, old, reached, out);
    }

    /// Figures of a move whose new owner is confirmed; the old one, the standby leg until now.
    pub(crate) fn has_moved(&mut self, now: Instant, id: FlowId) -> Leg {
        let flow = &mut self.flows[id];
        flow.moved_ms = now.ms32();
        flow.progress.set(Mark::HandedOn, false);
        let new = flow.owner;
        let rescued = flow.progress.is(Mark::Rescue);
        // It came from nobody: that is no move, and the next one need not wait for it.
        let legless = flow.causes.open() == Some(Cause::Legless);
        flow.bits.set(Bits::MOVED, !legless);
        flow.migrations = match legless {
            true => flow.migrations | 1,
            false => flow.migrations.saturating_add(2) | 1,
        };
        self.tell(id, What::Moved);
        self.move_ends(id, MoveEnd::Moved);
        self.flows[id].causes.moved();
        self.rescue_succeeds(id);
        let policy = self.flows[id].policy;
        if !legless {
            self.policies[usize::from(policy)].moves_total += 1;
            self.backends[usize::from(new.backend)].moves_in += 1;
        }
        let old = std::mem::replace(&mut self.flows[id].standby, Leg::NONE);
        // A rescued flow is counted as such.
        if old.is_some() && !rescued {
            let former = &mut self.backends[usize::from(old.backend)];
            former.moves_out += 1;
            former.drains.moved(policy);
        }
        old
    }

    /// The standby leg's pod has ended it; its end is answered in the client's name.
    pub(crate) fn drop_standby(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        self.move_ends(id, MoveEnd::Stranded);
        self.flows[id].causes.drop_open();
        let leg = self.flows[id].standby;
        if leg.is_some() {
            self.flows[id].standby.port = Leg::NONE.port;
            self.close_leg(now, id, leg, self.flows[id].client_next, out);
        }
    }

    /// Closes a leg in order, or resets it where the table of closing legs is full.
    pub(crate) fn close_leg(
        &mut self,
        now: Instant,
        id: FlowId,
        leg: Leg,
        reached: SeqNumber,
        out: &mut impl Output,
    ) {
        if self.begin_close(now, id, leg, reached).is_none() {
            self.reset_leg(id, leg, out);
            self.counters.add(Counter::LegsReset);
            self.free_leg(now, leg, Rest::Quiet);
        }
    }
}
