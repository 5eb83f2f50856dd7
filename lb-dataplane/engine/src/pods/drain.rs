//! Draining backends: their flows leave, with their next request, or without one after a quiet
//! time.
//!
//! A drain is of one policy's flows on one backend, which other policies may go on to use. Owns
//! each drain's figures and deadline, and the closing of flows that the deadline meets. Moving is
//! `adopt`'s.
//!
//! # Decisions
//!
//! - **A drain's deadline ends every flow** where policy says `Close`: in order what is at rest,
//!   half-closed connections too (the client has said all, and nothing is outstanding); what is in
//!   progress has 5 s more, then it is cut off with a reset, counted `drain_deadline`. A WebSocket
//!   whose client had closed its half had kept a drain from ending.
//! - **Where nobody follows, at rest is who was quiet for a second, on a pod that is still there**:
//!   between two parts of an answer that ends with the connection all is acknowledged too, and a
//!   FIN would say that it was whole (FTP, HTTP/1.0 that cannot be followed). Rejected: a reset for
//!   each such flow. Most rest, and clients of databases take an end of stream better.
//! - **What policy lets wait ends at the deadline too, once the pod is no more**: its policy does
//!   not name it any longer, and nothing is heard of it. A pod whose process exits while clients'
//!   windows are full still has a part of what it said, with its FIN behind that; its namespace
//!   takes both with it, and says nothing to anybody. Clients that only listen had waited until
//!   their keepalive. What is wrong with it: a node that is cut off, whose pod was taken out of the
//!   policy meanwhile, loses what it was in the midst of.

use crate::{
    Cause, Engine, Output, Verdict,
    backend::{Down, Sweep},
    balance::member::Member,
    clock::Instant,
    flow::Bits,
    ids::{FlowId, Leg, from_addr},
    obs::{
        counters::Counter,
        pins::{Lost, PinReason},
    },
    pods::sweep::Swept,
    states::{Event, State},
    tables::guard_of,
    timing::{CUT_AFTER_MS, PARTED_FIN_TRIES_MAX, PARTED_FIN_WAIT_MS, QUIET_UNGUARDED_US},
};
use baton_api::{DrainState, DrainWait, Micros, MigrationMode, OnDeadline, Protocol};
use baton_packet::{Flags, Segment};
use std::collections::BTreeMap;

/// Why flows are still with a backend that drains, with their counts.
#[derive(Default)]
pub(crate) struct Waiting {
    /// Of these, the ones that are on their way elsewhere.
    returning: u64,
    what: BTreeMap<Stays, u64>,
}

/// Why a flow is still with a backend that drains.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stays {
    Until(DrainWait),
    Pinned(PinReason),
}

/// How long a flow at rest stays with a draining backend without a request of its own.
fn quiet_us(spec: &baton_api::Policy) -> u64 {
    match guard_of(spec.protocol) {
        Some(_) => spec.drain.quiet.0,
        None => spec.drain.quiet.0.max(QUIET_UNGUARDED_US),
    }
}

impl Engine {
    /// Forgets the drains of a backend whose policies have neither a flow nor it as a member any
    /// more: their slots may become others'.
    pub(crate) fn forget_drains(&mut self, index: usize) {
        let policies = &self.policies;
        let backend = &mut self.backends[index];
        backend.drains.retain(|policy| {
            policies[usize::from(policy)].flows > 0 || backend.policies.has(policy)
        });
    }

    /// Has those flows looked at that leave a backend.
    pub(crate) fn look_over_drain(&mut self, index: u16) {
        let backend = &mut self.backends[usize::from(index)];
        if backend.flows > 0 && backend.sweep.is_none() && backend.drains.begins_sweep() {
            self.begin_sweep(index, Sweep::Drain);
        }
    }

    /// Whether the flow leaves its owner because its policy says so.
    pub(crate) fn is_drained(&self, id: FlowId) -> bool {
        let flow = &self.flows[id];
        let owner = self.backends.get(usize::from(flow.owner.backend));
        owner.is_some_and(|owner| owner.drains.has(flow.policy))
    }

    /// A flow whose policy drains its owner.
    pub(crate) fn drain_flow(&mut self, now: Instant, id: FlowId, out: &mut impl Output) -> Swept {
        let flow = &self.flows[id];
        let policy = &self.policies[usize::from(flow.policy)];
        let spec = &policy.spec.drain;
        let quiet_us = quiet_us(&policy.spec);
        let (deadline_ms, on_deadline) = (spec.deadline.0 / 1_000, spec.on_deadline);
        let quiet_ms = u64::from(now.ms32().wrapping_sub(flow.last_ms));
        let open = flow.state.is_quiet();
        if self.needs_no_leg(id) {
            // Its pod has nothing to hand over.
            let (backend, policy) = (usize::from(flow.owner.backend), flow.policy);
            self.backends[backend].drains.moved(policy);
            self.goes_legless(now, id, out);
            return Swept::Done;
        }
        if open && flow.all_acked() && quiet_ms * 1_000 >= quiet_us {
            match self.move_idle(now, id, out) {
                Swept::Stays => {}
                swept => return swept,
            }
        }
        let (backend, policy) = (self.flows[id].owner.backend, self.flows[id].policy);
        let drain = self.backends[usize::from(backend)].drains.of(policy);
        let since_ms = drain.map_or(now.ms(), |d| d.since_ms);
        match self.drain_by_transfer(now, id, since_ms, out) {
            Swept::Stays => {}
            swept => return swept,
        }
        let Some(late_ms) = now.ms().checked_sub(since_ms + deadline_ms) else {
            return Swept::Stays;
        };
        let why = match on_deadline {
            OnDeadline::Close => Lost::DrainDeadline,
            OnDeadline::Wait if !self.owner_is_no_more(id) => return Swept::Stays,
            OnDeadline::Wait if self.flows[id].pin.is_some() => Lost::Pinned,
            OnDeadline::Wait if self.flows[id].state == State::Response => Lost::ResponseBegun,
            OnDeadline::Wait => Lost::FateUnknown,
        };
        let Some(event) = self.drain_ends(id, late_ms, quiet_ms) else {
            return Swept::Stays;
        };
        self.count_lost(id, why);
        self.backends[usize::from(backend)].drains.closed(policy);
        let flow = &mut self.flows[id];
        flow.boundary = flow.client_next;
        flow.progress.tries = 0;
        let _ = self.step(now, id, event, out);
        Swept::Done
    }

    /// Whether nothing will come of the owner any more: its policy does not name it, and nothing is
    /// heard of it.
    fn owner_is_no_more(&self, id: FlowId) -> bool {
        let flow = &self.flows[id];
        let owner = &self.backends[usize::from(flow.owner.backend)];
        !owner.policies.has(flow.policy) && owner.liveness.down() == Some(Down::Silent)
    }

    /// How a flow ends whose drain's deadline was so long ago, if it does now: in order where it is
    /// at rest.
    fn drain_ends(&self, id: FlowId, late_ms: u64, quiet_ms: u64) -> Option<Event> {
        let flow = &self.flows[id];
        let acked = flow.all_acked();
        let cut = late_ms >= CUT_AFTER_MS;
        let followed = flow.pin.is_none() && self.is_guarded(id);
        let quiet = quiet_ms >= QUIET_UNGUARDED_US / 1_000 && !self.owner_is_no_more(id);
        let rests = followed || quiet;
        match flow.state {
            State::Idle if !rests => cut.then_some(Event::DrainCut),
            State::Idle | State::Fresh => {
                (acked && !self.legs.closing.is_full()).then_some(Event::DrainClose)
            }
            // The client has said all. Of a pinned flow nobody knows whether an answer is to come.
            State::ClientFin => {
                let outstanding = flow.bits.has(Bits::OUTSTANDING) && flow.pin.is_none();
                if acked && !outstanding && self.answered(id) && rests {
                    Some(Event::DrainClose)
                } else {
                    cut.then_some(Event::DrainCut)
                }
            }
            // The server has said all, and the client has it.
            State::ServerFin => (acked || cut).then_some(Event::DrainCut),
            // Both have said all, and somebody has not heard it yet.
            State::Request | State::Response | State::Closed => cut.then_some(Event::DrainCut),
            // These have timers of their own.
            _ => None,
        }
    }

    /// Moves a flow at rest without waiting for its next request.
    fn move_idle(&mut self, now: Instant, id: FlowId, out: &mut impl Output) -> Swept {
        let flow = &self.flows[id];
        let policy = &self.policies[usize::from(flow.policy)];
        if flow.pin.is_some()
            || policy.spec.migration.mode == MigrationMode::Never
            || policy.moved_enough(flow.moves())
            || !self.at_rest(id)
            || self.legs.closing.is_full()
            || policy.spec.protocol == Protocol::None
        {
            return Swept::Stays;
        }
        let (owner, v6) = (flow.owner.backend, flow.is_v6());
        let Some(leg) = self.rescue_leg(now, id, Some(owner), out) else {
            let policy = &self.policies[usize::from(self.flows[id].policy)];
            return if policy.someone_takes_over(v6, Some(owner), &self.backends, now) {
                Swept::NoRoom
            } else {
                Swept::Stays
            };
        };
        self.begin_idle_move(now, id, leg, Cause::Drain, out);
        Swept::Done
    }

    /// Gives a flow at rest to the backend of `leg`.
    pub(crate) fn begin_idle_move(
        &mut self,
        now: Instant,
        id: FlowId,
        leg: Leg,
        cause: Cause,
        out: &mut impl Output,
    ) {
        self.flows[id].boundary = self.flows[id].client_next;
        self.hand_over(id, leg, cause);
        self.counters.add(Counter::MigrationsBegun);
        let _ = self.step(now, id, Event::MoveIdle, out);
    }

    /// The wait before our FIN is repeated.
    pub(crate) fn parted_wait_ms(&self, id: FlowId) -> u64 {
        PARTED_FIN_WAIT_MS << self.flows[id].progress.tries.min(PARTED_FIN_TRIES_MAX)
    }

    /// The client has not acknowledged our FIN yet, or not closed its direction, for which it has
    /// as long as behind a pod's FIN.
    pub(crate) fn parted_due(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        let flow = &mut self.flows[id];
        if !flow.owes_fin() {
            let timeouts = &self.policies[usize::from(flow.policy)].spec.timeouts;
            let quiet_ms = u64::from(now.ms32().wrapping_sub(flow.last_ms));
            let left_ms = (timeouts.half_closed.0 / 1_000).saturating_sub(quiet_ms);
            if left_ms > 0 {
                return self.wheel.arm(id, now.ms() + left_ms);
            }
            let _ = self.step(now, id, Event::Timeout, out);
            return;
        }
        flow.progress.tries += 1;
        let event = match flow.state {
            _ if flow.progress.tries < PARTED_FIN_TRIES_MAX => Event::Doubt,
            State::Closed => Event::Lost,
            _ => Event::Timeout,
        };
        let _ = self.step(now, id, event, out);
    }

    /// A segment from the client of a flow that Baton closed.
    pub(crate) fn client_of_parted(
        &mut self,
        now: Instant,
        segment: &Segment,
        id: FlowId,
        out: &mut impl Output,
    ) -> Verdict {
        let flow = &mut self.flows[id];
        if !flow.client_may_send(segment.seq) || !flow.client_may_ack(segment.ack) {
            // Anybody can guess half of all numbers (RFC 5961 section 5).
            return Verdict::Absorbed;
        }
        flow.hears_fin(now, segment.ack);
        let end = segment.seq.add(segment.payload_len());
        if segment.payload_len() > 0 && end.after(flow.client_next) {
            // It sent a request before it knew.
            let _ = self.step(now, id, Event::ClientData, out);
        } else if segment.flags.has(Flags::FIN) && end == flow.client_next {
            flow.client_next = end.add(1);
            // One that lacks our FIN waits for it, and has nothing more to say.
            let owes = flow.owes_fin();
            let _ = self.step(now, id, Event::ClientFin, out);
            if !owes {
                let _ = self.step(now, id, Event::Timeout, out);
            }
        }
        Verdict::Absorbed
    }

    /// The owner leg of a flow that Baton closes goes to the closing table.
    pub(crate) fn close_owner(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        let leg = std::mem::replace(&mut self.flows[id].owner, Leg::NONE);
        if !leg.is_some() {
            return;
        }
        self.leaves(id, leg.backend);
        self.close_leg(now, id, leg, self.flows[id].client_next, out);
    }

    /// How far a policy's drain of a backend is, whose flows wait for these things.
    pub(crate) fn drain_state(
        &self,
        policy: u16,
        member: &Member,
        now: Instant,
        waiting: Waiting,
    ) -> Option<DrainState> {
        let backend = &self.backends[usize::from(member.backend)];
        let drain = backend.drains.of(policy)?;
        let deadline_ms = if waiting.what.is_empty() {
            0
        } else {
            let spec = &self.policies[usize::from(policy)].spec;
            spec.drain.deadline.0 / 1_000
        };
        let gone = u64::try_from(drain.fewer).unwrap_or(0);
        let what = waiting.what.into_iter();
        Some(DrainState {
            by_command: member.drained,
            since: Micros::from_millis(now.ms().saturating_sub(drain.since_ms)),
            left: Micros::from_millis((drain.since_ms + deadline_ms).saturating_sub(now.ms())),
            moved: drain.moved,
            ended: gone.saturating_sub(drain.moved + drain.closed + waiting.returning),
            closed: drain.closed,
            waiting: what
                .map(|(what, count)| match what {
                    Stays::Until(what) => (what.to_string(), count),
                    Stays::Pinned(pin) => (format!("pinned: {}", pin.label()), count),
                })
                .collect(),
        })
    }

    /// One more flow that leaves a backend; on its way elsewhere it may come back.
    pub(crate) fn note_waiting(&self, id: FlowId, back: bool, now: Instant, waiting: &mut Waiting) {
        waiting.returning += u64::from(back);
        *waiting.what.entry(self.waits_for(id, now)).or_default() += 1;
    }

    fn waits_for(&self, id: FlowId, now: Instant) -> Stays {
        let flow = &self.flows[id];
        let policy = &self.policies[usize::from(flow.policy)];
        let spec = &policy.spec;
        if let Some(pin) = flow.pin {
            return Stays::Pinned(pin);
        }
        let quiet_for_us = u64::from(now.ms32().wrapping_sub(flow.last_ms)) * 1_000;
        Stays::Until(match flow.state {
            State::Idle | State::Fresh if !self.at_rest(id) => DrainWait::OwnState,
            State::Idle | State::Fresh if spec.migration.mode == MigrationMode::Never => {
                DrainWait::NeverMoves
            }
            State::Idle | State::Fresh if policy.moved_enough(flow.moves()) => {
                DrainWait::MovedEnough
            }
            State::Idle | State::Fresh if quiet_for_us < quiet_us(spec) => DrainWait::QuietTime,
            State::Idle | State::Fresh => DrainWait::NoTarget,
            State::OwnerFinPending | State::Orphan | State::Adopting | State::AdoptingIdle => {
                DrainWait::Adoption
            }
            State::SynSent | State::SynAcked => DrainWait::Handshake,
            State::Request | State::Response => DrainWait::Request,
            State::ClientFin => DrainWait::ServerClose,
            State::ServerFin => DrainWait::ClientClose,
            State::Closed | State::FinSentToClient | State::Legless | State::Gone => {
                DrainWait::Closing
            }
        })
    }

    /// Names of the backends in force, for whoever asked for another one.
    #[must_use]
    pub fn backend_names(&self) -> Vec<String> {
        let listed = self.backends.iter().filter(|b| b.listed);
        let mut names: Vec<String> =
            listed.map(|b| format!("{} ({}:{})", b.name, from_addr(b.addr), b.port)).collect();
        names.sort_unstable();
        names
    }
}
