//! Flows without a leg: between two requests a flow of a policy whose legs are shared needs none,
//! and leaves its own to others.
//!
//! Owns when a flow goes without, and what its client's segments come to until it has a leg again.
//! A pod that drains or dies has nothing to hand over for such a flow: its next request is placed
//! like an orphan's (`rescue`), on a parked leg where one is ready (`sharing`).
//!
//! # Decisions
//!
//! - **The pause before a leg is left is economy, not evidence**: that the flow is at rest is exact
//!   (all answered and acknowledged, and a guard that follows), so that leaving at once would be
//!   right too. It would cost a client that sends request behind request a new leg for each, and
//!   its pod a question where nobody takes the old one.
//! - **The end of a leg at rest is the leg's**: idle time-outs and kills alike. The client is told
//!   when it was quiet for `timeouts.idle`, as by any pool of a layer-7 proxy.

use crate::{
    Engine, Output,
    clock::Instant,
    handover::{Input, Mark},
    ids::{FlowId, Leg},
    obs::{
        cause::{Cause, LastMove},
        counters::Counter,
    },
    states::{Event, State},
    timing::{LEGLESS_AFTER_MS, LEGLESS_AGAIN_MS},
};
use baton_api::MigrationMode;
use baton_packet::Segment;

impl Engine {
    /// Whether flows of the policy go without a leg between requests.
    pub(crate) fn leaves_legs(&self, policy: u16) -> bool {
        let of = &self.policies[usize::from(policy)];
        of.shares_legs()
            && of.listed
            && of.spec.migration.mode != MigrationMode::Never
            && self.hands_over(policy)
    }

    /// Whether the flow is at rest, and any leg will do for its next request.
    pub(crate) fn needs_no_leg(&self, id: FlowId) -> bool {
        let flow = &self.flows[id];
        flow.state == State::Idle
            && self.leaves_legs(flow.policy)
            && flow.all_acked()
            && !flow.has_wish()
            && !flow.progress.is(Mark::Transfer)
            && !flow.progress.is(Mark::ReleaseAsked)
            && !flow.backlog.is_some()
            && flow.early_client.is_empty()
            && flow.early_server.is_empty()
            && self.at_rest(id)
            // The end of this one is the connection's: both ends agreed to that. Or it may be of no
            // use to others.
            && !self.tracker(id).is_some_and(|t| t.closing() || t.is_odd())
            && self.shares(id)
            && !self.legs.closing.is_full()
    }

    /// The timer of a flow at rest: whether it leaves its leg now, or looks again.
    pub(crate) fn leaves_leg(&mut self, now: Instant, id: FlowId, out: &mut impl Output) -> bool {
        if !self.needs_no_leg(id) {
            return false;
        }
        let quiet_ms = u64::from(now.ms32().wrapping_sub(self.flows[id].last_ms));
        let after_ms = self.legless_after_ms(now, id);
        if quiet_ms < after_ms {
            self.wheel.arm(id, now.ms() + after_ms - quiet_ms);
        } else {
            self.goes_legless(now, id, out);
        }
        true
    }

    /// How long a flow at rest keeps its leg: one that had none before its last request (or the one
    /// of the same millisecond) has made a pause, and makes the next one, too, as a rule.
    pub(crate) fn legless_after_ms(&self, now: Instant, id: FlowId) -> u64 {
        let flow = &self.flows[id];
        let had_none = flow.causes.last() == Some(LastMove::Moved(Cause::Legless));
        let asked_ms = (now.0 as u32).wrapping_sub(flow.sent_us) / 1_000;
        let came_ms = now.ms32().wrapping_sub(flow.moved_ms);
        match had_none && came_ms <= asked_ms + 1 {
            true => LEGLESS_AGAIN_MS,
            false => LEGLESS_AFTER_MS,
        }
    }

    /// The flow leaves its leg.
    pub(crate) fn goes_legless(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        let pod_stays = !self.is_leaving(id);
        self.note_reusable(id, pod_stays);
        let flow = &mut self.flows[id];
        flow.boundary = flow.client_next;
        flow.progress.tries = 0;
        flow.progress.set(Mark::StandbyGone, false);
        let _ = self.step(now, id, Event::LegLeft, out);
        self.counters.add(Counter::LegsLeft);
    }

    /// The leg of a flow at rest is parked, or closed.
    pub(crate) fn leave_owner(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        let leg = std::mem::replace(&mut self.flows[id].owner, Leg::NONE);
        if !leg.is_some() {
            return;
        }
        self.leaves(id, leg.backend);
        if !self.park(now, id, leg, true) {
            self.close_leg(now, id, leg, self.flows[id].client_next, out);
        }
    }

    /// A segment from the client of a flow without a leg; `new`: with something that was not seen
    /// before. Whether it goes on, for a flow that gets a leg.
    pub(crate) fn client_of_legless(
        &mut self,
        now: Instant,
        segment: &Segment,
        id: FlowId,
        new: bool,
        out: &mut impl Output,
    ) -> bool {
        let next = self.flows[id].client_next;
        if segment.seq.before(next) || (new && segment.seq.after(next)) {
            // A keepalive, or a repetition whose acknowledgement was lost. Or there is something in
            // front of it, for which nobody is there to wait: the client sends both again, its
            // close too.
            self.answer_legless(id, out);
            return false;
        }
        if !new {
            return false;
        }
        if segment.payload_len() > 0 {
            self.decide(now, id, Input::Wanted, None, out);
        }
        true
    }
}
