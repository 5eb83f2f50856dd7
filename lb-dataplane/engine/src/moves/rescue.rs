//! Rescue: flows whose owner closed, reset or went silent, and who serves them next.
//!
//! Owns the judgement whether an owner's end may be the death of its pod (then the client is not
//! told before that is known), and the tries to find a new owner. Asking the pod is `liveness`'s,
//! adopting is `adopt`'s.
//!
//! # Decisions
//!
//! - **Where no pod is named any more, an end is held for a successor**: if the owner ever adopted,
//!   one that replaces it may. If none comes within 10 s, the client is told what the owner said: a
//!   FIN as a FIN, if the client has all and wants nothing; else a reset. Both are counted
//!   `no_backend`.
//! - **What a pod let go of because we asked goes on, whatever has become of its policy**: back to
//!   that pod where the policy was removed while the question was open. 28 requests of a front door
//!   that was detached had ended with `no_backend` behind pods that had stood still for 100 ms.
//! - **Orphans wait up to 10 s** for somebody to adopt them, the restarted process of their own pod
//!   included: a single replica may be killed and started again under load. A pod is given at most
//!   16 flows per millisecond without its asking, so that its accept queue does not run over; what
//!   is refused all the same tries again.

use crate::{
    Cause, Engine, Output, Verdict,
    backend::ports::Purpose,
    balance::policy::Policy,
    clock::Instant,
    flow::Bits,
    handover::{End, Input, Mark, Then},
    ids::{FlowId, Leg},
    mutants::Mutant,
    obs::{counters::Counter, events::What, pins::Lost},
    tables::legs::By,
    timing::IDLE_ENDS_MAX,
};
use baton_api::{BackendFailure, Protocol};
use baton_packet::{Flags, Segment, clear_fin, take_end_mark, timestamps};

/// How an owner ended, from the FIN or RST, which loses its mark.
pub(crate) fn end_of(frame: &mut [u8], segment: &Segment) -> End {
    End {
        fin: segment.flags.has(Flags::FIN) && !segment.flags.has(Flags::RST),
        mark: take_end_mark(frame, segment),
        acked: segment.flags.has(Flags::ACK).then_some(segment.ack),
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
        let backend = self.flows[id].owner.backend;
        let open = self.flows[id].state.is_open();
        if open {
            if end.exited() {
                self.counters.add(Counter::OwnersExited);
                self.note_exit(now, backend, out);
            }
            if end.closer_listens() {
                self.counters.add(Counter::OwnersListening);
            }
        }
        let input = self.is_ended(now, id, end);
        match self.decide(now, id, input, None, out) {
            Then::Held => Ended::Held,
            _ => Ended::Passes,
        }
    }

    /// What a decision about the owner's end looks at.
    pub(crate) fn is_ended(&mut self, now: Instant, id: FlowId, end: End) -> Input {
        let open = self.flows[id].state.is_open();
        Input::OwnerEnded {
            end,
            gone: end.exited() || self.is_leaving(id) || self.owner_is_replaced(now, id),
            rescues: self.policy_rescues(id),
            rescuable: open
                && (self.may_rescue(id) || self.gave_back(id, end))
                && !self.mutated(Mutant::BelieveEveryEnd),
            legless: self.needs_no_leg(id),
        }
    }

    /// Whether the owner let go of the flow because we asked it to: then the flow goes on, whatever
    /// has become of its policy since.
    fn gave_back(&self, id: FlowId, end: End) -> bool {
        end.released() && self.flows[id].progress.is(Mark::ReleaseAsked)
    }

    /// Whether the flow's policy wants its flows to outlive a backend.
    fn policy_rescues(&self, id: FlowId) -> bool {
        let spec = &self.policies[usize::from(self.flows[id].policy)].spec;
        spec.on_backend_failure != BackendFailure::Reset && spec.protocol != Protocol::None
    }

    /// Whether it does, and some backend could adopt them: one of those that are named, or the
    /// successor of one that could (where a pod is replaced only after its end, none is named for a
    /// while).
    pub(crate) fn may_rescue(&self, id: FlowId) -> bool {
        let flow = &self.flows[id];
        let policy = &self.policies[usize::from(flow.policy)];
        let owner = &self.backends[usize::from(flow.owner.backend)];
        self.policy_rescues(id)
            && self.hands_over(flow.policy)
            && policy.listed
            && (policy.ever_takes_over(flow.is_v6(), &self.backends) || owner.adopter.ever_ready)
    }

    /// Whether policy allows to execute the outstanding request once more.
    pub(crate) fn allows_replay(&self, id: FlowId) -> bool {
        let spec = &self.policies[usize::from(self.flows[id].policy)].spec;
        let allowed = match spec.on_backend_failure {
            BackendFailure::Replay => true,
            BackendFailure::ReplayIdempotent => {
                self.tracker(id).is_some_and(baton_guard::Tracker::idempotent)
            }
            BackendFailure::AdoptIdleOnly | BackendFailure::Reset => false,
        };
        allowed || self.mutated(Mutant::ReplayAlways)
    }

    /// Whether the flow's owner is known to go away, or at least to be no longer its policy's, so
    /// that nobody needs to ask.
    #[inline]
    pub(crate) fn is_leaving(&self, id: FlowId) -> bool {
        let flow = &self.flows[id];
        let backend = &self.backends[usize::from(flow.owner.backend)];
        !backend.listed || backend.drains.has(flow.policy) || backend.liveness.is_down()
    }

    /// Whether the process that a flow belongs to is gone, because another one listens since. Its
    /// FIN may be late: behind data that waited for the client, it leaves in nobody's name, without
    /// a mark.
    pub(crate) fn owner_is_replaced(&self, now: Instant, id: FlowId) -> bool {
        let flow = &self.flows[id];
        let owner = &self.backends[usize::from(flow.owner.backend)];
        owner.liveness.is_replaced_since(now, flow.moved_ms)
    }

    /// Whether the process whose end is held goes, because it let go of one of several listeners.
    pub(crate) fn closer_let_go(&self, now: Instant, id: FlowId) -> bool {
        let flow = &self.flows[id];
        let owner = &self.backends[usize::from(flow.owner.backend)];
        !flow.bits.has(Bits::CLOSER_LISTENS) && owner.liveness.let_go_about(now, flow.sent_us)
    }

    /// Whether nothing tells the held end of a process that exits from a close that was meant.
    /// Where only the bare rule follows responses, a close may be the end of one.
    pub(crate) fn end_is_unmarked(&self, id: FlowId) -> bool {
        let flow = &self.flows[id];
        let owner = &self.backends[usize::from(flow.owner.backend)];
        let protocol = self.policies[usize::from(flow.policy)].spec.protocol;
        !owner.liveness.marks_ends()
            && !flow.bits.has(Bits::CLOSER_LISTENS)
            && protocol != Protocol::RequestResponse
    }

    /// A segment from an owner whose end is held back.
    pub(crate) fn on_ended_owner(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        id: FlowId,
    ) -> Verdict {
        let flow = &self.flows[id];
        let end = segment.seq.add(segment.payload_len());
        // A late copy of what the client has may be from before its time on this leg.
        let lacks = end.after(flow.server_acked) && !end.after(flow.server_next);
        if segment.flags.has(Flags::RST) || segment.payload_len() == 0 || !lacks {
            self.counters.add(Counter::Fenced);
            return Verdict::Absorbed;
        }
        // The dead process's kernel repeats what the client has not acknowledged. Our FIN behind it
        // must not be older.
        if flow.bits.has(Bits::TIMESTAMPS)
            && let Some((value, _)) = timestamps(segment.options(frame))
        {
            self.flows[id].note_server_ts(now, value);
        }
        let _ = take_end_mark(frame, segment);
        if segment.flags.has(Flags::FIN) {
            clear_fin(frame, segment);
        }
        self.forward_to_client(frame, segment, id)
    }

    /// Gives an orphan to another backend if one can have it now; otherwise tries again soon, or
    /// gives up.
    pub(crate) fn try_rescue(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        // An orphan's last move was its owner's end.
        let waited_ms = u64::from(now.ms32().wrapping_sub(self.flows[id].moved_ms));
        self.decide(now, id, Input::OrphanDue { waited_ms }, None, out);
    }

    /// A leg for a flow without owner, to another backend than the last one, or to any; `or_same`:
    /// to the same one if no other takes flows over.
    pub(crate) fn find_rescuer(
        &mut self,
        now: Instant,
        id: FlowId,
        (another, or_same): (bool, bool),
        out: &mut impl Output,
    ) -> bool {
        let flow = &self.flows[id];
        let owner = Some(flow.owner.backend).filter(|_| flow.owner.is_some());
        let policy = &self.policies[usize::from(flow.policy)];
        if let Some(owner) = owner
            && !policy.listed
            && flow.progress.is(Mark::Released)
            && self.hands_over(flow.policy)
        {
            // The policy names nobody any more; the flow's port holds its owner's slot.
            let leg = self.idle_leg_to(now, id, owner);
            self.redirect.leg = leg.unwrap_or(self.redirect.leg);
            return leg.is_some();
        }
        let alone = || !policy.someone_takes_over(flow.is_v6(), owner, &self.backends, now);
        let except = owner.filter(|_| another && !(or_same && alone()));
        let leg = self.rescue_leg(now, id, except, out);
        self.redirect.leg = leg.unwrap_or(self.redirect.leg);
        leg.is_some()
    }

    /// The pause before the next try.
    pub(crate) fn rescue_pause_ms(&self, id: FlowId) -> u64 {
        1 << self.flows[id].progress.tries.min(IDLE_ENDS_MAX)
    }

    /// A leg to a backend that can have one more flow now.
    pub(crate) fn rescue_leg(
        &mut self,
        now: Instant,
        id: FlowId,
        except: Option<u16>,
        out: &mut impl Output,
    ) -> Option<Leg> {
        let flow = &self.flows[id];
        if !self.hands_over(flow.policy) || out.frame().is_none() {
            return None;
        }
        let policy: &Policy = &self.policies[usize::from(flow.policy)];
        let v6 = flow.is_v6();
        let chosen = match self.held_elsewhere(now, id, except) {
            Some(held) => {
                Some(held).filter(|b| self.backends[usize::from(*b)].budget.has_room(now))
            }
            None => policy.choose_rescue(
                v6,
                except,
                self.shares(id),
                &self.backends,
                now,
                &mut self.rng,
            ),
        };
        let Some(target) = chosen else {
            if policy.someone_takes_over(v6, except, &self.backends, now) {
                self.counters.add(Counter::AdoptionsDelayed);
            }
            return None;
        };
        self.idle_leg_to(now, id, target)
    }

    /// A leg to `target` for a flow that moves without a request of its own.
    pub(crate) fn idle_leg_to(&mut self, now: Instant, id: FlowId, target: u16) -> Option<Leg> {
        let hop = self.backends[usize::from(target)].hop?;
        self.net.hops.mac(hop)?;
        let leg = match self.backends[usize::from(target)].budget.has_room(now) {
            true => self.leg_to_heir(now, id, target, true).ok()?,
            // Where a leg is ready, the pod has nothing to accept.
            false => self.shared_leg_to(id, target)?,
        };
        self.given_without_request(now, id, leg);
        Some(leg)
    }

    /// A leg to `target` on which the flow goes on as it is, wherever it stands.
    pub(crate) fn take_leg(&mut self, now: Instant, id: FlowId, target: u16) -> Option<Leg> {
        let hop = self.backends[usize::from(target)].hop?;
        self.net.hops.mac(hop)?;
        let leg = self.take_port(now, target, Purpose::Rescue)?;
        self.given_without_request(now, id, leg);
        Some(leg)
    }

    fn given_without_request(&mut self, now: Instant, id: FlowId, leg: Leg) {
        let target = leg.backend;
        if !matches!(self.redirect.by, By::Shared(_)) {
            self.backends[usize::from(target)].budget.spend(now);
        }
        self.client_goes(id, target);
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
        if !flow.progress.is(Mark::Rescue) {
            return;
        }
        flow.progress.set(Mark::Rescue, false);
        // Without a port where it is gone: whose flow it was.
        if let Some(former) = self.backends.get_mut(usize::from(flow.standby.backend)) {
            former.rescued += 1;
            former.drains.moved(flow.policy);
        }
        let replayed = flow.progress.replays > 0;
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
        if first {
            self.counters.add(Counter::ResponseTimeouts);
            self.backend_fails(now, id);
        }
        self.decide(now, id, Input::Overdue, None, out);
    }

    /// A leg to another backend for an overdue request.
    pub(crate) fn find_rival(&mut self, now: Instant, id: FlowId, out: &mut impl Output) -> bool {
        let backend = self.flows[id].owner.backend;
        let leg = if self.legs.closing.is_full() {
            None
        } else {
            self.rescue_leg(now, id, Some(backend), out)
        };
        if let Some(leg) = leg {
            self.goes_to(id, leg, Cause::Overdue);
        }
        leg.is_some()
    }
}
