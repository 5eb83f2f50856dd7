//! What comes back from an adoption: confirmations, refusals, resets and silence, and what each means.
//!
//! Owns the decision what an answer, a reset or silence means. An authenticated refusal means that the pod never had the
//! request; everything else is either a confirmation or an unknown fate, which policy decides.

use crate::{
    Engine, Output, Verdict,
    adopt::ADOPTION_TRIES_MAX,
    counters::Counter,
    engine::Instant,
    events::What,
    flow::{Bits, FlowId, Leg},
    mutants::Mutant,
    pins::{Lost, PinReason},
    ports::Purpose,
    session::Restored,
    states::{Event, State},
};
use baton_packet::{Adoption, Flags, MessageKind, Reason, Segment, SeqNumber, parse_adoption};

/// How far ahead of the expected byte a new owner's first segment may be (its first ones may be lost):
/// the largest window (RFC 7323 section 2.3).
const WINDOW_MAX: i32 = 1 << 30;
/// Each segment of a request that meets a listener draws a bare RST of its own. After the first one, further
/// ones wait this long for the answer to the second adoption, which a pod network brings in well under 1 ms.
const RST_PAUSE_MS: u64 = 2;
/// Our clock is read once for a batch of frames, and a pod's is told in whole milliseconds.
const CLOCKS_US: u64 = 1_000;

/// What says that another socket is on the new leg's tuple.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Proof {
    /// The adopter: it created nothing.
    Refusal,
    /// Numbers that do not fit.
    None,
}

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
        let idle = flow.state == State::AdoptingIdle;
        let (boundary, next) = self.adoption_start(id);
        if let Some(raw) = parse_adoption(frame, segment) {
            let Some(Adoption {
                kind: MessageKind::Answer(reason),
                server_ts,
                ..
            }) = self.verified(&raw, owner.backend)
            else {
                self.counters.add(Counter::ForgedAnswers);
                return Judged::Done(Verdict::Absorbed);
            };
            if reason == Reason::Forgotten {
                if segment.ack == self.forget_number(id).add(1) {
                    self.forgotten_in_front(now, id, out);
                } else {
                    self.counters.add(Counter::LateAnswers);
                }
                return Judged::Done(Verdict::Absorbed);
            }
            let ours = segment.seq == next && segment.ack == boundary;
            if !ours && !self.mutated(Mutant::AnyNumbers) {
                self.counters.add(Counter::LateAnswers);
                return Judged::Done(Verdict::Absorbed);
            }
            self.refused(now, id, reason, server_ts, out);
            return Judged::Done(Verdict::Absorbed);
        }
        let flags = segment.flags;
        let acked = flags.has(Flags::ACK)
            && segment.ack.at_or_after(boundary)
            && segment.ack.at_or_before(self.flows[id].client_next);
        // One byte before the expected one are zero-window and keepalive probes.
        let expected =
            (-1..=WINDOW_MAX).contains(&segment.seq.since(next)) && !flags.has(Flags::SYN);
        let bare = flags.has(Flags::RST) && !flags.has(Flags::ACK);
        if bare && self.mutated(Mutant::CommitOnReset) {
            let _ = self.step(now, id, Event::Confirmed, out);
            return Judged::Done(Verdict::Absorbed);
        }
        if bare {
            // Either the adoption was lost on the way and the request met a listener, or the socket is gone, or
            // there is no adopter. Asking again tells the first two apart: the adopter remembers.
            if segment.seq == next {
                self.met_reset(now, id, out);
            }
            return Judged::Done(Verdict::Absorbed);
        }
        if !acked || !expected {
            if self.mutated(Mutant::CommitOnStale) {
                let _ = self.step(now, id, Event::Confirmed, out);
            } else if !flags.has(Flags::RST) {
                // Not this connection's numbers: somebody else's socket is on the tuple.
                self.stale_in_the_way(now, id, owner, segment.ack, Proof::None, out);
            }
            return Judged::Done(Verdict::Absorbed);
        }
        let ended = flags.any(Flags::RST | Flags::FIN) && segment.payload_len() == 0;
        let restoring = self.flows[id].bits.has(Bits::PRELUDE);
        if ended && (idle || restoring || segment.ack == boundary) {
            // The application took the connection and ended, before it had any of the request. That says nothing about a socket
            // that an earlier one of several adoptions may have made in a process that is gone.
            if self.flows[id].asked > 1 {
                self.fate_unknown(now, id, out);
            } else {
                self.never_had_it(now, id, Event::Withdrawn, out);
            }
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
                Restored::Not => self.never_had_it(now, id, Event::Withdrawn, out),
                Restored::Wholly => {
                    let event = if idle {
                        Event::Confirmed
                    } else {
                        Event::ConfirmedWithout
                    };
                    let _ = self.step(now, id, event, out);
                    if !idle {
                        self.window_begins(now, id, segment, out);
                    }
                    self.ack_owner(id, out);
                    self.closed_meanwhile(now, id, out);
                }
            }
            return Judged::Done(Verdict::Absorbed);
        }
        if segment.payload_len() == 0 && !ended && segment.ack.before(self.flows[id].client_acked) {
            // The client was told by an earlier owner that more has arrived, so it will not repeat that: the kept copies go
            // again with the next try.
            return Judged::Done(Verdict::Absorbed);
        }
        let without = segment.ack == boundary && self.flows[id].client_next != boundary;
        let event = if without && !ended && !idle {
            Event::ConfirmedWithout
        } else {
            Event::Confirmed
        };
        let _ = self.step(now, id, event, out);
        if !idle {
            self.window_begins(now, id, segment, out);
        }
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
            // The answer to a probe or a Forget, not to an adoption.
            Reason::Ready | Reason::Forgotten => return,
        };
        self.counters.add(counter);
        self.tell(id, What::Refused(reason));
        if reason == Reason::Renew {
            // Another number is all that is in the way: it is asked for at once.
            self.backends[usize::from(owner.backend)].probe.forget();
            self.next_probe_ms = now.ms();
        }
        let replaced_before =
            reason == Reason::Renew && self.replaced_before_request(now, id, detail);
        if !reason.pod_never_had_it() && !replaced_before {
            let lost = if reason == Reason::Renew {
                Lost::FateUnknown
            } else {
                Lost::AdoptedBefore
            };
            return self.fate_unknown_as(now, id, lost, out);
        }
        if !matches!(reason, Reason::TupleInUse | Reason::Renew) {
            self.probe_soon(now, owner.backend, |probe| probe.refused(now, reason));
        }
        let flow = &mut self.flows[id];
        flow.refusals = flow.refusals.saturating_add(1);
        let open = flow.refusals < flow.asked;
        if open {
            // Another adoption is on its way and may still be taken: until that one is refused too, handing
            // the request on could execute it twice.
            return;
        }
        if reason == Reason::TupleInUse {
            self.stale_in_the_way(now, id, owner, SeqNumber(detail), Proof::Refusal, out);
        } else {
            self.never_had_it(now, id, Event::Refused, out);
        }
    }

    /// A pod has had its number for `age_ms`, and the adoption names another one. Whether it was
    /// this pod already when the request was sent: then the one before it never had that. Else that
    /// one may have had it and be gone.
    fn replaced_before_request(&self, now: Instant, id: FlowId, age_ms: u32) -> bool {
        let flow = &self.flows[id];
        let sent_us_ago = u64::from((now.0 as u32).wrapping_sub(flow.sent_us));
        flow.bits.has(Bits::OUTSTANDING) && u64::from(age_ms) * 1_000 >= sent_us_ago + CLOCKS_US
    }

    /// The new owner never had the request: the old one serves it, or a third one, or whoever can later. `event` says whether
    /// it refused, or took the connection and has to be told.
    fn never_had_it(&mut self, now: Instant, id: FlowId, event: Event, out: &mut impl Output) {
        let flow = &mut self.flows[id];
        if !flow.bits.has(Bits::STANDBY_GONE) {
            if flow.bits.has(Bits::RESCUE) {
                flow.replays = flow.replays.saturating_sub(1);
            }
            let _ = self.step(now, id, event, out);
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
        let refused = event == Event::Refused;
        if refused && flow.state == State::Adopting && self.try_another(now, id, out) {
            return;
        }
        self.orphaned(now, id, Event::RefusedAll, out);
    }

    /// Nobody has the flow: it waits for whoever can adopt it.
    fn orphaned(&mut self, now: Instant, id: FlowId, event: Event, out: &mut impl Output) {
        if !self.flows[id].bits.has(Bits::RESCUE) {
            self.flows[id].moved_ms = now.ms32();
        }
        let _ = self.step(now, id, event, out);
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
        let held = self.held_elsewhere(now, id, Some(owner));
        let target = held.or_else(|| {
            self.policies[policy].choose_adoptable(v6, owner, &self.backends, now, &mut self.rng)
        });
        let leg = target.and_then(|b| {
            Some(Leg {
                backend: b,
                port: self.backends[usize::from(b)]
                    .ports
                    .take(now.ms(), Purpose::Rescue)?,
            })
        });
        let Some(leg) = leg else { return false };
        self.client_goes(id, leg.backend);
        if self.flows[id].bits.has(Bits::UNSEEN) {
            self.flows[id].bits.set(Bits::UNSEEN, false);
        } else {
            self.replays(id);
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
        proof: Proof,
        out: &mut impl Output,
    ) {
        if proof == Proof::Refusal {
            self.reset_stale(leg, expects, out);
        } else {
            // It stays: an adoption that is late would take its place, and have the request too.
            self.counters.add(Counter::StaleSockets);
        }
        let another = self.backends[usize::from(leg.backend)]
            .ports
            .has_ready(now.ms());
        if self.one_more_try(id) && another {
            let _ = self.step(now, id, Event::TupleTaken, out);
        } else if proof == Proof::Refusal {
            self.never_had_it(now, id, Event::Refused, out);
        } else {
            self.fate_unknown(now, id, out);
        }
    }

    /// Silence or a bare RST.
    pub(crate) fn doubt(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        let backend = self.flows[id].owner.backend;
        let overdue = self.answer_due_ms(now, id) == 0 && self.may_replay_again(id);
        if self.flows[id].refusals > 0 || overdue {
            // Some adoptions were refused, another one met silence; or policy does not want to wait any longer.
            self.fate_unknown(now, id, out);
        } else if self.one_more_try(id) {
            self.ask_for_life(now, backend, out);
            self.forget_in_front(id, out);
            let _ = self.step(now, id, Event::Doubt, out);
        } else {
            self.probe_soon(now, backend, |probe| probe.silent(now));
            self.fate_unknown(now, id, out);
        }
    }

    /// Nothing on the way remembers the pair of the new leg, and the pod has nothing there: what was sent behind the Forget
    /// may have met the entry that it had opened, so it goes once more.
    fn forgotten_in_front(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        self.counters.add(Counter::ForgetsAnswered);
        self.send_adoption(now, id, out);
        if self.flows[id].state == State::Adopting {
            self.replay_kept(id, out);
        } else {
            self.send_keepalive(id, out);
        }
    }

    fn one_more_try(&mut self, id: FlowId) -> bool {
        let flow = &mut self.flows[id];
        flow.tries += 1;
        flow.tries <= ADOPTION_TRIES_MAX
    }

    pub(crate) fn fate_unknown(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        self.fate_unknown_as(now, id, Lost::FateUnknown, out);
    }

    /// The same; what a client that has to be told counts as.
    fn fate_unknown_as(&mut self, now: Instant, id: FlowId, lost: Lost, out: &mut impl Output) {
        let flow = &self.flows[id];
        if flow.state == State::AdoptingIdle || flow.bits.has(Bits::PRELUDE) {
            // No request is at stake.
            return self.never_had_it(now, id, Event::Withdrawn, out);
        }
        if self.mutated(Mutant::RollBackTaken) {
            return self.never_had_it(now, id, Event::Refused, out);
        }
        let standby_gone = flow.bits.has(Bits::STANDBY_GONE);
        if self.may_replay_again(id) {
            self.counters.add(Counter::FateReplayed);
            if standby_gone {
                self.orphaned(now, id, Event::FateUnknownNext, out);
            } else {
                self.replays(id);
                let _ = self.step(now, id, Event::FateUnknownReplay, out);
                self.closed_meanwhile(now, id, out);
            }
        } else {
            self.counters.add(Counter::FateReset);
            let why = if self.may_replay(id) {
                Lost::ReplayedOften
            } else {
                lost
            };
            self.count_lost(id, why);
            let _ = self.step(now, id, Event::FateUnknownReset, out);
        }
    }
}
