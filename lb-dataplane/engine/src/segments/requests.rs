//! Requests as load: when one begins, is complete, is answered or forgotten.
//!
//! Owns what each of these is to its owner's load and estimate. Where a request begins and ends in
//! the bytes is for guards to say.

use crate::{Engine, clock::Instant, flow::Bits, ids::FlowId, obs::ledger::Moved, states::State};
use baton_api::LoadSignal;
use baton_guard::ToCome;

impl Engine {
    /// A request begins at its owner. What it waits for counts from the moment that all of it is
    /// there.
    pub(crate) fn request_begins(&mut self, now: Instant, id: FlowId) {
        let flow = &mut self.flows[id];
        if !flow.bits.has(Bits::OUTSTANDING) {
            flow.sent_us = now.0 as u32;
            flow.bits.set(Bits::REPEATED, false);
            self.backends[usize::from(flow.owner.backend)].requests += 1;
            self.request_goes_on(now, id);
        }
    }

    /// Whether all of the flow's request is there. Where no guard follows, nobody knows what is
    /// still to come, and it counts as complete.
    #[inline]
    pub(crate) fn request_is_complete(&self, id: FlowId) -> bool {
        self.tracker(id).is_none_or(|t| t.to_come() == ToCome::Exactly(0))
    }

    /// More of the request came, or its begin: once it is complete its owner has to answer.
    #[inline]
    pub(crate) fn request_goes_on(&mut self, now: Instant, id: FlowId) {
        if !self.request_is_complete(id) {
            return;
        }
        self.copies.kept.is_complete(self.flows[id].kept);
        if self.flows[id].bits.has(Bits::OUTSTANDING) {
            return;
        }
        let flow = &mut self.flows[id];
        flow.bits.set(Bits::OUTSTANDING, true);
        flow.sent_us = now.0 as u32;
        let backend = &mut self.backends[usize::from(flow.owner.backend)];
        backend.estimate.request(now.0);
        backend.load.request(now.0);
        let spec = &self.policies[usize::from(flow.policy)].spec;
        if let Some(limit) = spec.response_timeout
            && flow.state == State::Request
        {
            // What waits for the owner's window has its own turns.
            let wait_ms = if flow.backlog.is_some() { 1 } else { limit.0.div_ceil(1_000) };
            self.wheel.arm(id, now.ms() + wait_ms);
        }
    }

    pub(crate) fn request_answered(&mut self, now: Instant, id: FlowId) {
        self.learn_size(id);
        self.backend_works(id);
        let flow = &mut self.flows[id];
        let moved = std::mem::replace(&mut flow.moved, Moved::NO);
        let backend = &mut self.backends[usize::from(flow.owner.backend)];
        // Answered before it was complete: that says nothing about its wait.
        if flow.bits.has(Bits::OUTSTANDING) {
            flow.bits.set(Bits::OUTSTANDING, false);
            let took = u64::from((now.0 as u32).wrapping_sub(flow.sent_us));
            backend.estimate.first_byte(now.0, now.0.saturating_sub(took));
            if moved.is_some() {
                let short_us = backend.reading(now, LoadSignal::Latency).short_us;
                backend.move_cost.add(took, short_us);
            }
            if let Some(here_us) = moved.here_us() {
                self.policies[usize::from(flow.policy)].gains.came(here_us, took);
            }
            backend.load.answered(now.0, took);
            backend.figures.first_byte.add(took);
        }
    }

    pub(crate) fn request_forgotten(&mut self, now: Instant, id: FlowId) {
        let flow = &mut self.flows[id];
        if flow.bits.has(Bits::OUTSTANDING) {
            flow.bits.set(Bits::OUTSTANDING, false);
            let backend = &mut self.backends[usize::from(flow.owner.backend)];
            backend.estimate.forget(now.0);
            backend.load.forget(now.0);
        }
    }
}
