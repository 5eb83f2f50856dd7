//! The conversations that protocol guards follow, and what their findings mean to a flow.
//!
//! Owns one slab of trackers: a flow has one while a request is outstanding or there is state to
//! remember. Where none is free, the flow whose request has been incomplete for the longest time
//! gives its tracker away, and is pinned: whoever begins requests and ends none harms himself. One
//! whose owner is gone keeps its own: it has the session that the next owner needs. It never looks
//! into bytes itself (`baton-guard` does) and never allocates after construction.
//!
//! # Decisions
//!
//! - **A pin for want of room stays** (`guards_full`, `gap`, `pipeline_too_deep`). That it end once
//!   the flow is idle again was tried three times, last with a fresh tracker that had to follow a
//!   whole exchange: a client that pipelines looks idle, with all acknowledged, while answers are
//!   to come, and what then seems the next answer is the one before. Each time the simulation found
//!   answers that went to the wrong request (seeds 5172, 7984, 9557; 7984 again with other random
//!   choices). By default there is a tracker for each flow (`guardedFlows`), copies of what comes
//!   ahead of a loss keep places exact (`engine/src/segments/early.rs`), and no such pin is ever
//!   set.
//! - **A request's clock begins when all of it is there**, as the guard says
//!   (`Engine::request_goes_on`): the load estimate and `responseTimeout` count what the pod takes,
//!   not what the client takes. Requests that never ended had made a pod look stalled, and five
//!   slow uploads had it ejected. Where nobody follows, the first byte counts, as before.

use crate::{
    Engine,
    flow::Bits,
    ids::{FlowId, NONE},
    mutants::Mutant,
    obs::{events::What, pins::PinReason},
    tables::{From, guard_of},
};
use baton_api::Protocol;
use baton_guard::{Guard, Tracker};

impl Engine {
    pub(crate) fn protocol(&self, id: FlowId) -> Protocol {
        self.policies[usize::from(self.flows[id].policy)].spec.protocol
    }

    /// Whether a guard follows the flow, or would.
    pub(crate) fn is_guarded(&self, id: FlowId) -> bool {
        guard_of(self.protocol(id)).is_some()
    }

    /// The flow's tracker, if one follows it at present.
    pub(crate) fn tracker(&self, id: FlowId) -> Option<&Tracker> {
        self.guards.get(self.flows[id].guard)
    }

    /// Shows new bytes to the guard. `gap` bytes in front of them were not seen, and need not be
    /// (`early`).
    #[inline(always)]
    pub(crate) fn follow(&mut self, id: FlowId, from: From, gap: u32, data: &[u8]) {
        let mut slot = self.flows[id].guard;
        if self.guards.get(slot).is_none() {
            match self.begin_to_follow(id) {
                Some(new) => slot = new,
                None => return,
            }
        }
        self.guards.works(slot);
        let network = self.flows[id].network;
        if let Some(pin) = self.guards.shows((slot, network), from, gap, data) {
            self.pin(id, PinReason::Guard(pin));
        }
    }

    /// Gives the flow a tracker, if its protocol has a guard and nothing is against it.
    #[inline(always)]
    fn begin_to_follow(&mut self, id: FlowId) -> Option<u32> {
        if self.flows[id].pin.is_some() {
            return None;
        }
        let guard = guard_of(self.protocol(id))?;
        self.take_guard(id, guard)
    }

    /// Apart: nothing of it is needed where nobody follows.
    #[inline(never)]
    fn take_guard(&mut self, id: FlowId, guard: Guard) -> Option<u32> {
        let mut slot = self.guards.take(guard, id);
        if slot.is_none()
            && let Some(other) = self.guards.gives_way()
            && !self.flows[other].state.lacks_owner()
        {
            self.pin(other, PinReason::GuardsFull);
            slot = self.guards.take(guard, id);
        }
        match slot {
            Some(slot) => self.flows[id].guard = slot,
            None => self.pin(id, PinReason::GuardsFull),
        }
        slot
    }

    /// Whether all requests are answered, as far as the protocol tells; the bare rule tells
    /// nothing.
    #[inline]
    pub(crate) fn answered(&self, id: FlowId) -> bool {
        let answered = self.tracker(id).is_none_or(|t| t.unanswered() == 0);
        (answered && self.flows[id].early_server.is_empty()) || self.mutated(Mutant::MovePipelined)
    }

    /// Whether no state ties the flow to its owner between two requests.
    #[inline]
    pub(crate) fn at_rest(&self, id: FlowId) -> bool {
        let at_rest = self.tracker(id).is_none_or(Tracker::at_rest);
        (at_rest && self.flows[id].early_server.is_empty()) || self.mutated(Mutant::MovePipelined)
    }

    /// The tracker that has nothing to remember goes back.
    #[inline]
    pub(crate) fn settle_guard(&mut self, id: FlowId) {
        let slot = self.flows[id].guard;
        match self.guards.get(slot) {
            Some(tracker) if tracker.is_default() => self.drop_guard(id),
            // A session, or a hold.
            Some(tracker) if tracker.unanswered() == 0 => self.guards.rests(slot),
            _ => {}
        }
    }

    pub(crate) fn drop_guard(&mut self, id: FlowId) {
        let slot = std::mem::replace(&mut self.flows[id].guard, NONE);
        if self.guards.get(slot).is_some() {
            self.guards.give_back(slot, self.flows[id].network);
        }
    }

    /// The flow does not move any more; counted once.
    #[cold]
    pub(crate) fn pin(&mut self, id: FlowId, why: PinReason) {
        let flow = &mut self.flows[id];
        if flow.pin.is_some() {
            return;
        }
        flow.pin = Some(why);
        if flow.owner.is_some() {
            self.backends[usize::from(flow.owner.backend)].pinned += 1;
        }
        let policy = &mut self.policies[usize::from(flow.policy)];
        policy.figures.pinned[why.number()] += 1;
        policy.pins[why.number()] += 1;
        self.counters.pins[why.number()] += 1;
        self.drop_pending_move(id);
        self.tell(id, What::Pinned(why));
        // A hand-over that began with a session goes on with it, whatever the client sends
        // meanwhile.
        if why == PinReason::SessionRefused || !self.flows[id].bits.has(Bits::PRELUDE) {
            self.drop_guard(id);
        }
        let kept = self.flows[id].kept;
        self.copies.kept.is_complete(kept);
        self.drop_kept_unless_needed(id);
    }
}
