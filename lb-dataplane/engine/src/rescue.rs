//! Rescue: flows whose owner closed, reset or went silent, and who serves them next.
//!
//! Owns the judgement whether an owner's end may be the death of its pod (then the client is not told before that is
//! known), and the tries to find a new owner. Asking the pod is `listener`'s, adopting is `adopt`'s.

use crate::{
    Cause, Engine, Output, Verdict,
    counters::Counter,
    engine::Instant,
    events::{Gone, What},
    flow::{Bits, FlowId, Leg},
    mutants::Mutant,
    pins::Lost,
    policy::Policy,
    ports::Purpose,
    states::{Event, State},
};
use baton_api::{BackendFailure, Protocol};
use baton_packet::{EndMark, Flags, Segment, SeqNumber, clear_fin, take_end_mark};

/// How long a flow waits for a backend to adopt it: a process that is started again listens within a few seconds, and a
/// client waits longer than this (10 s to 60 s are usual).
const RESCUE_MS: u64 = 10_000;
/// How long the last response may stay unacknowledged once its sender is gone: by then a client that lacks bytes of it has
/// asked the dead pod's kernel for them several times (Linux `TCP_RTO_MIN` is 200 ms).
const UNACKED_MS: u64 = 3_000;
/// Longest pause between two tries; the first is 1 ms, each next one twice as long.
const PAUSE_MAX_SHIFT: u8 = 5;
/// How often one request is executed once more. A request that ends each process that reads it must not end them all.
const REPLAYS_MAX: u8 = 2;
/// The last time waits so long first: where several pods end together (a scale-down), the others are known to go by then.
const LAST_REPLAY_MS: u64 = 300;
/// Flows that one backend is given per millisecond without a request of theirs, so that its accept queue (Linux `somaxconn`
/// 4,096, nginx's own limit 511) never fills faster than a busy process empties it.
pub(crate) const ADOPTIONS_PER_MS: u16 = 16;

/// How an owner ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    /// By a FIN in order, else by an exact RST.
    fin: bool,
    /// What the adopter says of its process.
    mark: Option<EndMark>,
    /// What it had of the client's bytes.
    acked: Option<SeqNumber>,
}

impl End {
    /// From the FIN or RST, which loses its mark.
    pub(crate) fn of(frame: &mut [u8], segment: &Segment) -> Self {
        Self {
            fin: segment.flags.has(Flags::FIN) && !segment.flags.has(Flags::RST),
            mark: take_end_mark(frame, segment),
            acked: segment.flags.has(Flags::ACK).then_some(segment.ack),
        }
    }

    fn exited(self) -> bool {
        self.mark == Some(EndMark::Exiting)
    }

    /// A process that goes on: one that shuts down lets go of the listener first.
    fn closer_listens(self) -> bool {
        self.mark == Some(EndMark::Listening)
    }
}

/// What an owner's end comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The client is told at once.
    Passes,
    /// The client is not told yet.
    Held,
}

impl Engine {
    /// The owner ended its direction of the connection, or all of it.
    pub(crate) fn owner_ended(
        &mut self,
        now: Instant,
        id: FlowId,
        end: End,
        out: &mut impl Output,
    ) -> Ended {
        let exited = end.exited();
        let flow = &self.flows[id];
        let backend = flow.owner.backend;
        let (state, pinned) = (flow.state, flow.pin.is_some());
        if !matches!(
            state,
            State::Fresh | State::Idle | State::Request | State::Response
        ) {
            let cut = self
                .tracker(id)
                .is_some_and(|t| t.unanswered() > 0 && !t.until_close());
            if state == State::ClientFin && (cut || flow.bits.has(Bits::OUTSTANDING)) {
                // The client closed its direction behind its request, and a half-closed flow does not move.
                self.count_lost(id, Lost::HalfClosed);
            }
            return Ended::Passes;
        }
        self.note_end(now, backend);
        if exited {
            self.counters.add(Counter::OwnersExited);
            self.note_exit(now, backend, out);
        }
        if end.closer_listens() {
            self.counters.add(Counter::OwnersListening);
        }
        let gone = exited || self.is_leaving(id) || self.owner_is_replaced(now, id);
        if !self.may_rescue(id) || self.mutated(Mutant::BelieveEveryEnd) {
            if self.policy_rescues(id) && (state == State::Request || gone) {
                self.count_lost(id, Lost::NoBackend);
            }
            return Ended::Passes;
        }
        if pinned || (state != State::Request && self.answered(id) && !self.at_rest(id)) {
            // Not known whether it means to close; where it is known to go away, this is a loss.
            if gone {
                self.count_lost(id, Lost::Pinned);
            }
            return Ended::Passes;
        }
        match state {
            // A command to close (`quit`) that has no other answer.
            State::Request
                if self.answered(id)
                    && self.tracker(id).is_some_and(baton_guard::Tracker::closing) =>
            {
                Ended::Passes
            }
            State::Request => {
                self.flows[id].bits.set(Bits::HELD_FIN, end.fin);
                self.ends_with_request(now, id, end, out)
            }
            State::Response if !self.answered(id) => {
                if !self
                    .tracker(id)
                    .is_some_and(baton_guard::Tracker::until_close)
                {
                    self.count_lost(id, Lost::ResponseBegun);
                }
                Ended::Passes
            }
            _ if self.tracker(id).is_some_and(baton_guard::Tracker::closing) => Ended::Passes,
            _ => {
                let flow = &mut self.flows[id];
                flow.bits.set(Bits::HELD_FIN, end.fin);
                flow.bits.set(Bits::CLOSER_LISTENS, end.closer_listens());
                flow.sent_us = now.0 as u32;
                let _ = self.step(now, id, Event::OwnerEnded, out);
                if gone {
                    self.owner_gone(now, id, out);
                } else {
                    self.ask(now, backend, end.closer_listens(), out);
                }
                Ended::Held
            }
        }
    }

    /// The owner ended with a request outstanding: whether the pod lives makes no difference, this request it will not answer.
    fn ends_with_request(
        &mut self,
        now: Instant,
        id: FlowId,
        end: End,
        out: &mut impl Output,
    ) -> Ended {
        if self.is_meant(id, end) {
            return Ended::Passes;
        }
        let flow = &self.flows[id];
        let backend = flow.owner.backend;
        let unseen = end.acked == Some(flow.boundary) || self.mutated(Mutant::BelieveUnseen);
        let lost = if !flow.bits.has(Bits::KEPT_WHOLE) {
            if self
                .tracker(id)
                .is_some_and(baton_guard::Tracker::response_begun)
            {
                Some(Lost::ResponseBegun)
            } else {
                Some(Lost::NotKept)
            }
        } else if unseen {
            None
        } else if !self.may_replay(id) {
            Some(Lost::FateUnknown)
        } else if !self.may_replay_again(id) {
            Some(Lost::ReplayedOften)
        } else {
            None
        };
        if !end.exited() {
            // A process that is gone fails no more, and the next one is not to blame.
            self.backend_fails(now, id);
        }
        // One pod's trouble, or its end? Who is chosen next wants to know.
        self.ask_for_life(now, backend, out);
        if let Some(lost) = lost {
            self.count_lost(id, lost);
            return Ended::Passes;
        }
        self.flows[id].bits.set(Bits::UNSEEN, unseen);
        self.owner_gone(now, id, out);
        Ended::Held
    }

    /// Whether a process that goes on serving meant to close instead of an answer (nginx's `return
    /// 444`, a header that did not come in time). Linux sends a RST where unread bytes were thrown
    /// away (`tcp_close`), so that after a FIN all that was acknowledged was read; one that came
    /// too early is handed over like any other.
    fn is_meant(&self, id: FlowId, end: End) -> bool {
        let flow = &self.flows[id];
        let incomplete = self
            .tracker(id)
            .is_some_and(|t| t.to_come() != baton_guard::ToCome::Exactly(0));
        let has_all = end.acked == Some(flow.client_next);
        let has_some = end.acked.is_some_and(|acked| acked.after(flow.boundary));
        end.closer_listens() && ((end.fin && has_all) || (incomplete && has_some))
    }

    /// Whether the flow's policy wants its flows to outlive a backend.
    fn policy_rescues(&self, id: FlowId) -> bool {
        let spec = &self.policies[usize::from(self.flows[id].policy)].spec;
        spec.on_backend_failure != BackendFailure::Reset && spec.protocol != Protocol::None
    }

    /// Whether it does, and some backend could adopt them: one of those that are named, or the successor of one that
    /// could (where a pod is replaced only after its end, none is named for a while).
    pub(crate) fn may_rescue(&self, id: FlowId) -> bool {
        let flow = &self.flows[id];
        let policy = &self.policies[usize::from(flow.policy)];
        let owner = &self.backends[usize::from(flow.owner.backend)];
        self.policy_rescues(id)
            && !self.keys.is_empty()
            && policy.listed
            && (policy.ever_adoptable(flow.bits.has(Bits::V6), &self.backends)
                || owner.probe.ever_ready())
    }

    /// Whether policy allows to execute the outstanding request once more, and the means are there.
    pub(crate) fn may_replay(&self, id: FlowId) -> bool {
        let flow = &self.flows[id];
        let spec = &self.policies[usize::from(flow.policy)].spec;
        let allowed = match spec.on_backend_failure {
            BackendFailure::Replay => true,
            BackendFailure::ReplayIdempotent => self
                .tracker(id)
                .is_some_and(baton_guard::Tracker::idempotent),
            BackendFailure::AdoptIdleOnly | BackendFailure::Reset => false,
        };
        (allowed || self.mutated(Mutant::ReplayAlways)) && flow.bits.has(Bits::KEPT_WHOLE)
    }

    /// Whether the request may be given to one more backend although one may have executed it.
    pub(crate) fn may_replay_again(&self, id: FlowId) -> bool {
        let often = self.flows[id].replays >= REPLAYS_MAX;
        self.may_replay(id) && (!often || self.mutated(Mutant::ReplayUnbounded))
    }

    /// Whether the flow's owner is known to go away, or at least to be no longer its policy's, so
    /// that nobody needs to ask.
    pub(crate) fn is_leaving(&self, id: FlowId) -> bool {
        let flow = &self.flows[id];
        let backend = &self.backends[usize::from(flow.owner.backend)];
        !backend.listed || backend.drains.has(flow.policy) || backend.health.is_down()
    }

    /// Whether the process that a flow belongs to is gone, because another one listens since. Its FIN may be late: behind data
    /// that waited for the client, it leaves in nobody's name, without a mark.
    pub(crate) fn owner_is_replaced(&self, now: Instant, id: FlowId) -> bool {
        let flow = &self.flows[id];
        let probe = &self.backends[usize::from(flow.owner.backend)].probe;
        let owned_ms = u64::from(now.ms32().wrapping_sub(flow.moved_ms));
        probe
            .replaced()
            .is_some_and(|at| owned_ms >= now.ms().saturating_sub(at.ms()))
    }

    /// A segment from an owner whose end is held back.
    pub(crate) fn on_ended_owner(
        &mut self,
        frame: &mut [u8],
        segment: &Segment,
        id: FlowId,
    ) -> Verdict {
        let flow = &self.flows[id];
        let end = segment.seq.add(segment.payload_len());
        let repeats = segment.payload_len() > 0 && !end.after(flow.server_next);
        if segment.flags.has(Flags::RST) || !repeats || flow.server_acked == flow.server_next {
            self.counters.add(Counter::Fenced);
            return Verdict::Absorbed;
        }
        // The dead process's kernel repeats what the client has not acknowledged.
        let _ = take_end_mark(frame, segment);
        if segment.flags.has(Flags::FIN) {
            clear_fin(frame, segment);
        }
        self.forward_to_client(frame, segment, id)
    }

    /// The pod lives and meant what it sent.
    pub(crate) fn close_stands(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        self.owner_is_known(id);
        let event = if self.flows[id].bits.has(Bits::HELD_FIN) {
            Event::CloseStands
        } else {
            Event::ResetStands
        };
        let _ = self.step(now, id, event, out);
    }

    /// The owner is gone: another one is needed.
    pub(crate) fn owner_gone(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        self.becomes_orphan(now, id, out);
        self.try_rescue(now, id, out);
    }

    /// The same for one that went without a word.
    pub(crate) fn owner_silent(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        self.flows[id].bits.set(Bits::HELD_FIN, false);
        self.strand(now, id, Counter::OwnersSilent, out);
        self.try_rescue(now, id, out);
    }

    pub(crate) fn becomes_orphan(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        let how = if self.flows[id].bits.has(Bits::HELD_FIN) {
            Counter::OwnersClosed
        } else {
            Counter::OwnersReset
        };
        self.strand(now, id, how, out);
    }

    fn strand(&mut self, now: Instant, id: FlowId, how: Counter, out: &mut impl Output) {
        self.counters.add(how);
        self.drop_wish(id);
        self.tell(
            id,
            What::OwnerLost(match how {
                Counter::OwnersSilent => Gone::Silent,
                Counter::OwnersClosed => Gone::Closed,
                _ => Gone::Reset,
            }),
        );
        self.flows[id].tries = 0;
        let _ = self.step(now, id, Event::OwnerGone, out);
        self.flows[id].moved_ms = now.ms32();
        self.counters.add(Counter::Stranded);
    }

    /// Gives an orphan to another backend if one can have it now; otherwise tries again soon, or gives up.
    pub(crate) fn try_rescue(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        let flow = &self.flows[id];
        debug_assert_eq!(flow.state, State::Orphan);
        // An orphan's last move was its owner's end.
        let waited_ms = u64::from(now.ms32().wrapping_sub(flow.moved_ms));
        let request = flow.bits.has(Bits::KEPT_WHOLE);
        let has_all = flow.server_acked == flow.server_next;
        let closes =
            flow.bits.has(Bits::CLIENT_FIN) && flow.client_acked.add(1) == flow.client_next;
        if !request && closes && has_all {
            // Nothing but the client's close is unanswered.
            let _ = self.step(now, id, Event::ClientFin, out);
            return;
        }
        if !request && !closes && flow.client_acked != flow.client_next {
            return self.lose(now, id, Lost::NotKept, out);
        }
        if !has_all {
            if waited_ms >= UNACKED_MS {
                return self.lose(now, id, Lost::ResponseUnacknowledged, out);
            }
            return self.try_later(now, id, out);
        }
        // At first not where it just ended; a restarted process may have it later.
        let except = (flow.tries == 0).then_some(flow.owner.backend);
        if waited_ms >= RESCUE_MS {
            return self.ends_alone(now, id, request, out);
        }
        let counts = request && !flow.bits.has(Bits::UNSEEN);
        if counts && flow.replays + 1 == REPLAYS_MAX && waited_ms < LAST_REPLAY_MS {
            return self.try_later(now, id, out);
        }
        let Some(leg) = self.rescue_leg(now, id, except, out) else {
            return self.try_later(now, id, out);
        };
        if counts {
            self.replays(id);
        }
        let flow = &mut self.flows[id];
        if !request {
            flow.boundary = flow.client_next;
        }
        flow.causes.begin(Cause::Rescue);
        flow.bits.set(Bits::STANDBY_GONE | Bits::RESCUE, true);
        flow.bits.set(Bits::UNSEEN, false);
        flow.tries = 1;
        (flow.asked, flow.refusals) = (0, 0);
        if flow.standby.backend == Leg::NONE.backend {
            // No leg any more, but whose flow it was counts when it is saved.
            flow.standby = Leg {
                backend: flow.owner.backend,
                ..Leg::NONE
            };
        }
        self.pending = leg;
        self.prepare_prelude(id);
        let event = if request {
            Event::RescueRequest
        } else {
            Event::RescueIdle
        };
        let _ = self.step(now, id, event, out);
    }

    /// Nobody adopted the flow in all the time: it ends as its owner ended it, if the client has all and wants nothing.
    fn ends_alone(&mut self, now: Instant, id: FlowId, request: bool, out: &mut impl Output) {
        if request || !self.flows[id].bits.has(Bits::HELD_FIN) {
            return self.lose(now, id, Lost::NoBackend, out);
        }
        self.count_lost(id, Lost::NoBackend);
        self.flows[id].tries = 0;
        let _ = self.step(now, id, Event::CloseStands, out);
    }

    fn try_later(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        let flow = &mut self.flows[id];
        flow.tries = (flow.tries + 1).min(PAUSE_MAX_SHIFT);
        let _ = self.step(now, id, Event::Doubt, out);
    }

    /// The pause before the next try.
    pub(crate) fn rescue_pause_ms(&self, id: FlowId) -> u64 {
        1 << self.flows[id].tries.min(PAUSE_MAX_SHIFT)
    }

    /// A leg to a backend that can have one more flow now.
    pub(crate) fn rescue_leg(
        &mut self,
        now: Instant,
        id: FlowId,
        except: Option<u16>,
        out: &mut impl Output,
    ) -> Option<Leg> {
        if self.keys.is_empty() || out.frame().is_none() {
            return None;
        }
        let flow = &self.flows[id];
        let policy: &Policy = &self.policies[usize::from(flow.policy)];
        let v6 = flow.bits.has(Bits::V6);
        let chosen = match self.held_elsewhere(now, id, except) {
            Some(held) => {
                Some(held).filter(|b| self.backends[usize::from(*b)].budget.has_room(now))
            }
            None => policy.choose_rescue(v6, except, &self.backends, now, &mut self.rng),
        };
        let Some(target) = chosen else {
            if policy.someone_adopts(v6, except, &self.backends, now) {
                self.counters.add(Counter::AdoptionsDelayed);
            }
            return None;
        };
        self.take_leg(now, id, target)
    }

    /// A port towards `target` for a flow without a request of its own.
    pub(crate) fn take_leg(&mut self, now: Instant, id: FlowId, target: u16) -> Option<Leg> {
        let backend = &mut self.backends[usize::from(target)];
        backend.hop.and_then(|h| self.hops.mac(h))?;
        let port = backend.ports.take(now.ms(), Purpose::Rescue)?;
        backend.budget.spend(now);
        self.client_goes(id, target);
        Some(Leg {
            backend: target,
            port,
        })
    }

    /// Nothing can save the flow: its client is reset, with the reason counted.
    pub(crate) fn lose(&mut self, now: Instant, id: FlowId, why: Lost, out: &mut impl Output) {
        self.count_lost(id, why);
        let _ = self.step(now, id, Event::Lost, out);
    }

    /// The outstanding request is given to one more backend although one may have executed it.
    pub(crate) fn replays(&mut self, id: FlowId) {
        self.flows[id].replays += 1;
        self.tell(id, What::Replayed);
    }

    pub(crate) fn count_lost(&mut self, id: FlowId, why: Lost) {
        let policy = usize::from(self.flows[id].policy);
        self.policies[policy].lost[why as usize] += 1;
        self.counters.lost[why as usize] += 1;
        self.tell(id, What::Lost(why));
    }

    /// An adoption that saved a flow is confirmed.
    pub(crate) fn rescue_succeeds(&mut self, id: FlowId) {
        let flow = &mut self.flows[id];
        if !flow.bits.has(Bits::RESCUE) {
            return;
        }
        flow.bits.set(Bits::RESCUE, false);
        // Without a port where it is gone: whose flow it was.
        if let Some(former) = self.backends.get_mut(usize::from(flow.standby.backend)) {
            former.rescued += 1;
            former.drains.moved(flow.policy);
        }
        let replayed = flow.replays > 0;
        let policy = &mut self.policies[usize::from(flow.policy)];
        policy.rescues += 1;
        policy.replays += u64::from(replayed);
        self.counters.add(Counter::Rescues);
    }

    /// The owner has not begun to answer within the policy's time.
    pub(crate) fn response_overdue(
        &mut self,
        now: Instant,
        id: FlowId,
        first: bool,
        out: &mut impl Output,
    ) {
        let backend = self.flows[id].owner.backend;
        if first {
            self.counters.add(Counter::ResponseTimeouts);
            self.backend_fails(now, id);
        }
        let pinned = self.flows[id].pin.is_some();
        if pinned || !self.may_replay_again(id) || self.closing.is_full() {
            return;
        }
        let Some(leg) = self.rescue_leg(now, id, Some(backend), out) else {
            return;
        };
        self.replays(id);
        self.flows[id].bits.set(Bits::RESCUE, true);
        self.hand_over(id, leg, Cause::Overdue);
        let _ = self.step(now, id, Event::ResponseTimeout, out);
    }
}
