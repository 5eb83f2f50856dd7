//! Adoption: moving a flow with its next request, and every answer that can come back.
//!
//! Owns the decision what an answer, a reset or silence means. An authenticated refusal means that the pod
//! never had the request; everything else is either a confirmation or an unknown fate, which policy decides.

use crate::{
    Engine, Output, Verdict,
    backend::{QUARANTINE_MS, QUARANTINE_STALE_MS, Use},
    counters::Counter,
    engine::Instant,
    flow::{Bits, FlowId, Leg},
    pins::{Lost, PinReason},
    session::Restored,
    states::{Event, Frame, State},
};
use baton_packet::{
    Adoption, Flags, MessageKind, Reason, Segment, SeqNumber, build_adoption, build_segment,
    parse_adoption,
};

/// First wait for any sign of the new owner; it doubles with each try. A pod network answers in well under
/// 1 ms, a delayed ACK (Linux `TCP_DELACK_MIN`) in 40.
pub(crate) const ADOPTION_WAIT_MS: u64 = 45;
/// Tries, the first included: 45 + 90 + 180 + 360 + 720 + 1,440 ms, under the 3 s that people wait.
pub(crate) const ADOPTION_TRIES_MAX: u8 = 6;
/// How far ahead of the expected byte a new owner's first segment may be (its first ones may be lost):
/// the largest window (RFC 7323 section 2.3).
const WINDOW_MAX: i32 = 1 << 30;
/// Each segment of a request that meets a listener draws a bare RST of its own. After the first one, further
/// ones wait this long for the answer to the second adoption, which a pod network brings in well under 1 ms.
const RST_PAUSE_MS: u64 = 2;

/// What a segment from an unconfirmed owner comes to.
pub(crate) enum Judged {
    /// It is dealt with.
    Done(Verdict),
    /// The new owner is confirmed; the segment is to be treated like any other of the owner's.
    GoOn,
}

impl Engine {
    /// Decides whether the flow moves with this request, of which a copy is kept, and makes everything ready for it: target
    /// and port. `false` leaves all as it was.
    pub(crate) fn prepare_move(&mut self, now: Instant, id: FlowId, out: &mut impl Output) -> bool {
        if self.keys.is_empty() {
            return false;
        }
        let flow = &self.flows[id];
        let owner = flow.owner.backend;
        let leaving = self.is_leaving(owner);
        let policy = &mut self.policies[usize::from(flow.policy)];
        let cooldown_ms = policy.spec.migration.cooldown.0 / 1_000;
        let rested = !flow.bits.has(Bits::MOVED)
            || u64::from(now.ms32().wrapping_sub(flow.moved_ms)) >= cooldown_ms;
        let Some(target) = policy.choose_move(
            flow.bits.has(Bits::V6),
            owner,
            rested,
            leaving,
            &self.backends,
            now,
            &mut self.rng,
        ) else {
            return false;
        };
        if self.closing.is_full() {
            self.counters.add(Counter::StayedClosingFull);
            return false;
        }
        if out.frame().is_none() {
            self.counters.add(Counter::StayedNoFrame);
            return false;
        }
        let backend = &mut self.backends[usize::from(target)];
        if backend.hop.and_then(|h| self.hops.mac(h)).is_none() {
            return false;
        }
        if !flow.bits.has(Bits::KEPT_WHOLE) {
            self.counters.add(Counter::StayedKeptFull);
            return false;
        }
        if !policy.may_move(now) {
            self.counters.add(Counter::StayedRate);
            return false;
        }
        let Some(port) = backend.ports.take(now.ms()) else {
            self.counters.add(Counter::StayedNoPort);
            return false;
        };
        let leg = Leg {
            backend: target,
            port,
        };
        self.hand_over(id, leg);
        self.counters.add(Counter::MigrationsBegun);
        true
    }

    /// The owner becomes the standby leg, the pending leg the owner.
    pub(crate) fn take_over(&mut self, id: FlowId) {
        let leg = std::mem::replace(&mut self.pending, Leg::NONE);
        let old = self.flows[id].owner;
        let old_backend = &mut self.backends[usize::from(old.backend)];
        old_backend.assign(old.port, Use::Standby(id));
        old_backend.flows -= 1;
        self.own_leg(id, leg);
        self.flows[id].standby = old;
    }

    /// A frame that would overtake what restores the session waits among the kept ones.
    pub(crate) fn unless_prelude(&self, id: FlowId, treat: Frame) -> Frame {
        if self.flows[id].bits.has(Bits::PRELUDE) {
            Frame::Absorb
        } else {
            treat
        }
    }

    /// The adoption segment to the owner leg.
    pub(crate) fn send_adoption(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        let flow = &self.flows[id];
        let (Some(mut spec), Some((epoch, key))) = (self.to_leg(flow.owner), self.keys.first())
        else {
            return;
        };
        let message = Adoption {
            kind: MessageKind::Adopt,
            mss: flow.mss,
            server_wscale: flow.scales >> 4,
            client_wscale: flow.scales & 15,
            wscale_ok: flow.bits.has(Bits::WSCALE),
            sack_ok: flow.bits.has(Bits::SACK),
            timestamps_ok: flow.bits.has(Bits::TIMESTAMPS),
            ecn_ok: flow.bits.has(Bits::ECN),
            epoch: *epoch,
            server_ts: flow.server_ts_at(now.ms32()),
        };
        (spec.seq, spec.ack) = self.adoption_start(id);
        spec.window = flow.client_window;
        spec.timestamps = Some((flow.client_ts, flow.server_ts));
        let key = key.clone();
        let restores = flow.bits.has(Bits::PRELUDE);
        if flow.tries > 1 {
            self.counters.add(Counter::AdoptionRetries);
        }
        if self.emit(out, |buffer| build_adoption(buffer, &spec, &message, &key)) {
            let flow = &mut self.flows[id];
            flow.asked = flow.asked.saturating_add(1);
        }
        if restores {
            self.send_prelude(id, out);
        }
    }

    /// A segment that an established socket answers at once, whatever its application does: one byte that it has already
    /// (RFC 1122 section 4.2.3.6; Linux `tcp_data_queue` acknowledges it without a rate limit).
    pub(crate) fn send_keepalive(&mut self, id: FlowId, out: &mut impl Output) {
        let flow = &self.flows[id];
        if flow.bits.has(Bits::PRELUDE) {
            return;
        }
        let Some(mut spec) = self.to_leg(flow.owner) else {
            return;
        };
        spec.seq = flow.boundary.add(u32::MAX);
        spec.ack = flow.server_next;
        spec.window = flow.client_window;
        spec.timestamps = Self::client_stamps(flow);
        spec.payload = &[0];
        self.emit(out, |buffer| build_segment(buffer, &spec));
    }

    /// Acknowledges to the owner what the client never sees.
    fn ack_owner(&mut self, id: FlowId, out: &mut impl Output) {
        let flow = &self.flows[id];
        let Some(mut spec) = self.to_leg(flow.owner) else {
            return;
        };
        spec.seq = flow.client_next;
        spec.ack = flow.server_next;
        spec.window = flow.client_window;
        spec.timestamps = Self::client_stamps(flow);
        self.emit(out, |buffer| build_segment(buffer, &spec));
    }

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
        let idle = flow.state == State::AdoptingIdle;
        let (boundary, next) = self.adoption_start(id);
        if let Some(raw) = parse_adoption(frame, segment) {
            let answer = self.key(raw.epoch()).and_then(|key| raw.verify(key));
            let Some(Adoption {
                kind: MessageKind::Answer(reason),
                server_ts,
                ..
            }) = answer
            else {
                self.counters.add(Counter::ForgedAnswers);
                return Judged::Done(Verdict::Absorbed);
            };
            if segment.seq != next || segment.ack != boundary {
                self.counters.add(Counter::ForgedAnswers);
                return Judged::Done(Verdict::Absorbed);
            }
            self.refused(now, id, reason, SeqNumber(server_ts), out);
            return Judged::Done(Verdict::Absorbed);
        }
        let flags = segment.flags;
        let acked = flags.has(Flags::ACK)
            && segment.ack.at_or_after(boundary)
            && segment.ack.at_or_before(self.flows[id].client_next);
        // One byte before the expected one are zero-window and keepalive probes.
        let expected =
            (-1..=WINDOW_MAX).contains(&segment.seq.since(next)) && !flags.has(Flags::SYN);
        if flags.has(Flags::RST) && !flags.has(Flags::ACK) {
            // Either the adoption was lost on the way and the request met a listener, or the socket is gone, or
            // there is no adopter. Asking again tells the first two apart: the adopter remembers.
            if segment.seq == next {
                self.met_reset(now, id, out);
            }
            return Judged::Done(Verdict::Absorbed);
        }
        if !acked || !expected {
            if !flags.has(Flags::RST) {
                // Not this connection's numbers: somebody else's socket is on the tuple.
                self.stale_in_the_way(now, id, owner, segment.ack, out);
            }
            return Judged::Done(Verdict::Absorbed);
        }
        let ended = flags.any(Flags::RST | Flags::FIN) && segment.payload_len() == 0;
        let restoring = self.flows[id].bits.has(Bits::PRELUDE);
        if ended && (idle || restoring || segment.ack == boundary) {
            // The application took the connection and ended, before it had any of the request.
            self.never_had_it(now, id, out);
            return Judged::Done(Verdict::Absorbed);
        }
        if ended && self.may_replay_again(id) {
            // The application took the connection and ended; whether it executed the request is unknown.
            self.fate_unknown(now, id, out);
            return Judged::Done(Verdict::Absorbed);
        }
        if restoring {
            match self.restored(id, frame, segment) {
                Restored::Partly => {}
                Restored::Not => self.never_had_it(now, id, out),
                Restored::Wholly => {
                    let event = if idle {
                        Event::Confirmed
                    } else {
                        Event::ConfirmedWithout
                    };
                    let _ = self.step(now, id, event, out);
                    self.ack_owner(id, out);
                    self.closed_meanwhile(now, id, out);
                }
            }
            return Judged::Done(Verdict::Absorbed);
        }
        let without = segment.ack == boundary && self.flows[id].client_next != boundary;
        let event = if without && !ended && !idle {
            Event::ConfirmedWithout
        } else {
            Event::Confirmed
        };
        let _ = self.step(now, id, event, out);
        self.closed_meanwhile(now, id, out);
        if idle && segment.payload_len() == 0 {
            // The answer to our keepalive is nothing to the client.
            return Judged::Done(Verdict::Absorbed);
        }
        Judged::GoOn
    }

    /// The client's FIN that came while the adoption was open takes effect with the flow's settled owner.
    fn closed_meanwhile(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        if self.flows[id].bits.has(Bits::CLIENT_FIN) {
            self.flows[id].bits.set(Bits::CLIENT_FIN, false);
            let _ = self.step(now, id, Event::ClientFin, out);
        }
    }

    /// A bare RST from a leg whose adoption is unconfirmed.
    fn met_reset(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        let flow = &mut self.flows[id];
        if flow.refusals > 0 {
            // From the request behind a refused adoption: the answers decide.
        } else if flow.tries == 1 {
            // The adoption that this request followed was not taken, so only the next one counts.
            flow.asked = 0;
            self.doubt(now, id, out);
        } else {
            self.wheel.arm(id, now.ms() + RST_PAUSE_MS);
        }
    }

    fn refused(
        &mut self,
        now: Instant,
        id: FlowId,
        reason: Reason,
        in_the_way: SeqNumber,
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
            // The answer to a probe, not to an adoption.
            Reason::Ready => return,
        };
        self.counters.add(counter);
        if !reason.pod_never_had_it() {
            return self.fate_unknown(now, id, out);
        }
        if reason != Reason::TupleInUse {
            self.not_adoptable(now, owner.backend, |probe| probe.refused(now, reason));
        }
        let flow = &mut self.flows[id];
        flow.refusals = flow.refusals.saturating_add(1);
        if flow.refusals < flow.asked {
            // Another adoption is on its way and may still be taken: until that one is refused too, handing
            // the request on could execute it twice.
            return;
        }
        if reason == Reason::TupleInUse {
            self.stale_in_the_way(now, id, owner, in_the_way, out);
        } else {
            self.never_had_it(now, id, out);
        }
    }

    /// The new owner never had the request: the old one serves it, or a third one, or whoever can later.
    fn never_had_it(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        let flow = &mut self.flows[id];
        if !flow.bits.has(Bits::STANDBY_GONE) {
            let _ = self.step(now, id, Event::Refused, out);
            self.closed_meanwhile(now, id, out);
            return;
        }
        if flow.pin == Some(PinReason::SessionRefused) {
            self.count_lost(id, Lost::Pinned);
            let _ = self.step(now, id, Event::FateUnknownReset, out);
            return;
        }
        if flow.replays > 0 {
            flow.replays -= 1;
        } else {
            flow.bits.set(Bits::UNSEEN, true);
        }
        if flow.state == State::Adopting && self.try_another(now, id, out) {
            return;
        }
        self.orphaned(now, id, Event::RefusedAll, out);
    }

    /// Nobody has the flow: it waits for whoever can adopt it.
    fn orphaned(&mut self, now: Instant, id: FlowId, event: Event, out: &mut impl Output) {
        if self.flows[id].bits.has(Bits::CLIENT_FIN) {
            self.count_lost(id, Lost::HalfClosed);
            let _ = self.step(now, id, Event::FateUnknownReset, out);
            return;
        }
        let fresh = !self.flows[id].bits.has(Bits::RESCUE);
        let _ = self.step(now, id, event, out);
        if fresh {
            self.flows[id].sent_us = now.0 as u32;
        }
    }

    /// The old owner is gone and the new one refused: a third one at once, if there is one.
    fn try_another(&mut self, now: Instant, id: FlowId, out: &mut impl Output) -> bool {
        let flow = &mut self.flows[id];
        flow.tries += 1;
        let (v6, owner, policy) = (
            flow.bits.has(Bits::V6),
            flow.owner.backend,
            usize::from(flow.policy),
        );
        if flow.tries > ADOPTION_TRIES_MAX || !flow.bits.has(Bits::KEPT_WHOLE) {
            return false;
        }
        let target =
            self.policies[policy].choose_adoptable(v6, owner, &self.backends, now, &mut self.rng);
        let leg = target.and_then(|b| {
            Some(Leg {
                backend: b,
                port: self.backends[usize::from(b)].ports.take(now.ms())?,
            })
        });
        let Some(leg) = leg else { return false };
        let flow = &mut self.flows[id];
        if flow.bits.has(Bits::UNSEEN) {
            flow.bits.set(Bits::UNSEEN, false);
        } else {
            flow.replays += 1;
        }
        self.pending = leg;
        self.prepare_prelude(id);
        let _ = self.step(now, id, Event::RefusedNext, out);
        true
    }

    fn stale_in_the_way(
        &mut self,
        now: Instant,
        id: FlowId,
        leg: Leg,
        expects: SeqNumber,
        out: &mut impl Output,
    ) {
        self.reset_stale(leg, expects, out);
        if self.one_more_try(id) {
            let _ = self.step(now, id, Event::TupleTaken, out);
        } else {
            self.fate_unknown(now, id, out);
        }
    }

    /// Silence or a bare RST.
    pub(crate) fn doubt(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        if self.flows[id].refusals > 0 {
            // Some adoptions were refused, another one met silence.
            self.fate_unknown(now, id, out);
        } else if self.one_more_try(id) {
            let _ = self.step(now, id, Event::Doubt, out);
        } else {
            let backend = self.flows[id].owner.backend;
            self.not_adoptable(now, backend, |probe| probe.silent(now));
            self.fate_unknown(now, id, out);
        }
    }

    fn one_more_try(&mut self, id: FlowId) -> bool {
        let flow = &mut self.flows[id];
        flow.tries += 1;
        flow.tries <= ADOPTION_TRIES_MAX
    }

    fn fate_unknown(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        let flow = &self.flows[id];
        if flow.state == State::AdoptingIdle || flow.bits.has(Bits::PRELUDE) {
            // No request is at stake.
            return self.never_had_it(now, id, out);
        }
        let standby_gone = flow.bits.has(Bits::STANDBY_GONE);
        if self.may_replay_again(id) {
            self.counters.add(Counter::FateReplayed);
            if standby_gone {
                self.orphaned(now, id, Event::FateUnknownNext, out);
            } else {
                self.flows[id].replays += 1;
                let _ = self.step(now, id, Event::FateUnknownReplay, out);
                self.closed_meanwhile(now, id, out);
            }
        } else {
            self.counters.add(Counter::FateReset);
            let why = if self.may_replay(id) {
                Lost::ReplayedOften
            } else {
                Lost::FateUnknown
            };
            self.count_lost(id, why);
            let _ = self.step(now, id, Event::FateUnknownReset, out);
        }
    }

    /// A segment from the old owner while the new one is unconfirmed: fenced.
    pub(crate) fn on_standby(&mut self, now: Instant, segment: &Segment, id: FlowId) -> Verdict {
        self.counters.add(Counter::Fenced);
        let flow = &mut self.flows[id];
        debug_assert!(matches!(flow.state, State::Adopting | State::AdoptingIdle));
        let new = segment.seq.add(segment.seq_len()).after(flow.server_next);
        if segment.payload_len() > 0 && new {
            self.counters.add(Counter::FencedData);
        }
        if segment.flags.has(Flags::RST) {
            let standby = std::mem::replace(&mut flow.standby, Leg::NONE);
            flow.bits.set(Bits::STANDBY_GONE, true);
            self.backends[usize::from(standby.backend)]
                .release(standby.port, now.ms() + QUARANTINE_MS);
        } else if segment.flags.has(Flags::FIN) {
            flow.bits.set(Bits::STANDBY_GONE, true);
        }
        Verdict::Absorbed
    }

    /// The standby leg is owner again.
    pub(crate) fn resume_standby(&mut self, now: Instant, id: FlowId) {
        self.drop_owner(id, now.ms() + QUARANTINE_MS);
        let leg = std::mem::replace(&mut self.flows[id].standby, Leg::NONE);
        self.own_leg(id, leg);
        self.flows[id].bits.set(Bits::PRELUDE | Bits::RESCUE, false);
        self.counters.add(Counter::Rollbacks);
        self.policies[usize::from(self.flows[id].policy)].rollbacks_total += 1;
        // Not at once again: the reason will hardly be gone.
        self.flows[id].moved_ms = now.ms32();
        self.flows[id].bits.set(Bits::MOVED, true);
    }

    /// Another port towards the same backend; the old one rests. Without a free one, the old one stays and
    /// the next try may find one.
    pub(crate) fn renew_port(&mut self, now: Instant, id: FlowId) {
        let leg = self.flows[id].owner;
        let Some(port) = self.backends[usize::from(leg.backend)].ports.take(now.ms()) else {
            return;
        };
        self.drop_owner(id, now.ms() + QUARANTINE_STALE_MS);
        self.own_leg(
            id,
            Leg {
                backend: leg.backend,
                port,
            },
        );
        (self.flows[id].asked, self.flows[id].refusals) = (0, 0);
    }

    /// The old owner's leg starts closing; figures of a completed move.
    pub(crate) fn close_standby(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        let flow = &mut self.flows[id];
        flow.migrations = flow.migrations.saturating_add(1);
        flow.moved_ms = now.ms32();
        flow.bits.set(Bits::MOVED, true);
        let (old, new) = (flow.standby, flow.owner);
        self.rescue_succeeds(id);
        self.counters.add(Counter::MigrationsConfirmed);
        self.policies[usize::from(self.flows[id].policy)].moves_total += 1;
        self.backends[usize::from(new.backend)].moves_in += 1;
        if !old.is_some() {
            return;
        }
        self.backends[usize::from(old.backend)].moves_out += 1;
        self.flows[id].standby = Leg::NONE;
        self.close_leg(now, id, old, out);
    }

    /// Closes a leg in order, or resets it where the table of closing legs is full.
    pub(crate) fn close_leg(&mut self, now: Instant, id: FlowId, leg: Leg, out: &mut impl Output) {
        if !self.begin_close(now, id, leg) {
            self.reset_leg(id, leg, out);
            self.counters.add(Counter::LegsReset);
            self.backends[usize::from(leg.backend)].release(leg.port, now.ms() + QUARANTINE_MS);
        }
    }

    /// The key of a live epoch.
    pub(crate) fn key(&self, epoch: u8) -> Option<&baton_packet::AdoptionKey> {
        self.keys
            .iter()
            .find(|(e, _)| e & 15 == epoch & 15)
            .map(|(_, key)| key)
    }
}
