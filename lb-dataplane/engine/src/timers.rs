//! Timers: how long each state may last, and what happens then.

use crate::{
    Engine, Output,
    clock::Instant,
    engine::HOPS_AT_ONCE,
    flow::Bits,
    handover::{Input, Mark},
    ids::FlowId,
    mutants::Mutant,
    obs::counters::Counter,
    states::{Action, Event, State},
    timing::{
        ADOPTION_WAIT_MS, BACKLOG_AGAIN_MS, HELD_MS, LINGER_MS, OVERDUE_AGAIN_MS, RESOLVE_AGAIN_MS,
        UNHEARD_MS,
    },
};

/// Timers handled in one call, so that packets never wait long for them: each may send a segment,
/// some 50 us in all.
const DUE_PER_CALL_MAX: usize = 48;
/// What one call does in all that takes as long as a segment does, about 1 us: about 130 us. Each
/// kind of work has its own bound besides, and a small one that holds whatever was done before it.
const ACTS_PER_CALL: usize = 128;
/// Buckets of the flow table that change over to other keys in one call, half full: some 60 us.
const BUCKETS_PER_CALL: usize = 64;
/// Timers looked at in one call, of which most only come nearer: some 20 us.
const LOOKS_PER_CALL_MAX: u32 = 256;

impl Engine {
    /// Does what is due: deferred closes, retries, time-outs, probes.
    pub fn poll(&mut self, now: Instant, out: &mut impl Output) {
        if self.link.is_down() {
            return;
        }
        let now = self.link.time(now);
        self.events.now = now;
        #[cfg(feature = "mutants")]
        self.hurry_ports();
        self.rounds.acts = ACTS_PER_CALL;
        let mut looks = LOOKS_PER_CALL_MAX;
        for _ in 0..DUE_PER_CALL_MAX {
            let Some(id) = self.wheel.pop_due(now.ms(), &mut looks) else {
                break;
            };
            self.spend(1);
            let Some(id) = id.checked_sub(self.flows.limit()) else {
                self.flow_due(now, id, out);
                continue;
            };
            match id.checked_sub(self.legs.closing.limit()) {
                Some(client) => self.affinity_due(client),
                None => self.closing_due(now, id, out),
            }
        }
        self.closes_due(now, out);
        self.send_forgets(now, out);
        self.transfers_due(now, out);
        self.liveness_probes_due(now, out);
        self.look_over(now, out);
        self.sweep(now, out);
        self.send_probes(now, out);
        self.refresh_hops(HOPS_AT_ONCE);
        self.refresh_clients(HOPS_AT_ONCE);
        self.renew_keys();
        if self.flows.wants_keys() && self.flows.take_keys(BUCKETS_PER_CALL) {
            self.counters.add(Counter::FlowTableRekeyed);
        }
        if now.ms() >= self.net.resolve_again_ms {
            self.net.resolve_again_ms = now.ms() + RESOLVE_AGAIN_MS;
            self.net.hops.evict();
            self.net.hops.ask_again();
        }
    }

    /// Whether frames wait at the interface that came before now: to be told before
    /// [`Engine::poll`].
    pub fn is_behind(&mut self, behind: bool) {
        self.rounds.is_behind(behind);
    }

    /// One more thing was done in this call of `poll` that took as long as a segment does.
    pub(crate) fn spend(&mut self, acts: usize) {
        self.rounds.acts = self.rounds.acts.saturating_sub(acts);
    }

    /// How many things may be done of a kind: `usually` so many, and `at_least` so many whatever
    /// else there was to do, so that nothing is put off for ever.
    pub(crate) fn room(&self, usually: usize, at_least: usize) -> usize {
        usually.min(self.rounds.acts).max(at_least)
    }

    /// When [`Engine::poll`] should be called next, at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.link.is_down() {
            return None;
        }
        let wheel = self.wheel.next_due_ms();
        let some = !self.backends.is_empty();
        let others = [
            self.rounds.probes.due_ms,
            self.rounds.health.due_ms,
            self.rounds.liveness_probes.due_ms,
            self.legs.forgets.due_ms(),
            self.legs.transfers.due_ms,
        ];
        // What was begun goes on at once.
        let goes_on = self.rounds.go_on() || self.net.goes_on() || self.flows.wants_keys();
        let us = |ms: u64| ms.saturating_mul(1_000);
        wheel
            .into_iter()
            .chain(others.into_iter().filter(|ms| some && *ms != u64::MAX))
            .chain(self.rounds.sweep_due_ms)
            .chain(goes_on.then_some(0))
            .map(us)
            .chain(self.legs.closing.due_us())
            .min()
            .map(|due_us| self.link.outside(due_us))
    }

    pub(crate) fn arm(&mut self, now: Instant, id: FlowId, timer: Action) {
        if timer == Action::ArmAdoption && self.mutated(Mutant::ForgetTimer) {
            return self.wheel.cancel(id);
        }
        let flow = &self.flows[id];
        let timeouts = &self.policies[usize::from(flow.policy)].spec.timeouts;
        let wait_ms = match timer {
            Action::ArmHandshake => timeouts.handshake.0 / 1_000,
            Action::ArmAdoption => {
                let wait_ms = ADOPTION_WAIT_MS << (flow.progress.tries.clamp(1, 16) - 1);
                wait_ms.min(self.answer_due_ms(now, id).max(1))
            }
            Action::ArmHalfClosed => timeouts.half_closed.0 / 1_000,
            Action::ArmLinger => LINGER_MS,
            Action::ArmOwnerFinPending => HELD_MS,
            Action::ArmRescue => self.rescue_pause_ms(id),
            Action::ArmFinSentToClient => self.parted_wait_ms(id),
            Action::ArmIdle if flow.progress.is(Mark::CopiesOwed) => BACKLOG_AGAIN_MS,
            Action::ArmIdle if flow.state == State::Idle && self.leaves_legs(flow.policy) => {
                self.legless_after_ms(now, id)
            }
            _ => {
                // Silence so far counts: moves of its own making keep no flow alive.
                let quiet_ms = u64::from(now.ms32().wrapping_sub(flow.last_ms));
                let idle_ms = (timeouts.idle.0 / 1_000).saturating_sub(quiet_ms);
                self.answer_due_ms(now, id).min(idle_ms).max(1)
            }
        };
        let wait_ms = wait_ms.min(self.waiting_is_owed_ms(now, id));
        self.wheel.arm(id, now.ms() + wait_ms);
    }

    /// Until the outstanding request is overdue by its policy.
    pub(crate) fn answer_due_ms(&self, now: Instant, id: FlowId) -> u64 {
        let flow = &self.flows[id];
        let spec = &self.policies[usize::from(flow.policy)].spec;
        match spec.response_timeout {
            Some(limit)
                if matches!(flow.state, State::Request | State::Adopting)
                    && flow.bits.has(Bits::OUTSTANDING) =>
            {
                let waits_us = u64::from((now.0 as u32).wrapping_sub(flow.sent_us));
                limit.0.saturating_sub(waits_us).div_ceil(1_000)
            }
            _ => u64::MAX,
        }
    }

    fn flow_due(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        if self.flows[id].backlog.is_some() && !self.send_waiting(now, id, out) {
            return;
        }
        let owed_ms = self.send_owed(now, id, out);
        if self.flows[id].state == State::Idle && self.leaves_leg(now, id, out) {
            return;
        }
        let flow = &self.flows[id];
        let timeouts = &self.policies[usize::from(flow.policy)].spec.timeouts;
        let (limit_ms, counter) = match flow.state {
            State::Adopting | State::AdoptingIdle => {
                self.decide(now, id, Input::Silence, None, out);
                return;
            }
            // Liveness probes have timers of their own: they were lost with the backend.
            State::OwnerFinPending => {
                let input = Input::PodGone { silent: false, rescuable: true };
                self.decide(now, id, input, None, out);
                return;
            }
            State::Orphan => return self.try_rescue(now, id, out),
            State::FinSentToClient => return self.parted_due(now, id, out),
            State::Closed if !flow.owner.is_some() && flow.owes_fin() => {
                return self.parted_due(now, id, out);
            }
            State::Gone => return,
            State::SynSent | State::SynAcked => (0, Some(Counter::TimeoutsHandshake)),
            State::ClientFin | State::ServerFin => {
                (timeouts.half_closed.0 / 1_000, Some(Counter::TimeoutsHalfClosed))
            }
            State::Closed if flow.owner.is_some() && !flow.all_acked() => {
                let limit_ms = UNHEARD_MS.min(timeouts.half_closed.0 / 1_000);
                (limit_ms, Some(Counter::TimeoutsUnheard))
            }
            State::Closed => (LINGER_MS, None),
            // Of a policy that is gone: no backend is named that could have its next request.
            State::Legless if !self.policies[usize::from(flow.policy)].listed => (0, None),
            State::Fresh | State::Request | State::Response | State::Idle | State::Legless => {
                (timeouts.idle.0 / 1_000, Some(Counter::TimeoutsIdle))
            }
        };
        if flow.state == State::Request && self.answer_due_ms(now, id) == 0 {
            let limit_us = self.policies[usize::from(flow.policy)].spec.response_timeout;
            let waits_us = u64::from((now.0 as u32).wrapping_sub(flow.sent_us));
            let over_us = waits_us.saturating_sub(limit_us.unwrap_or_default().0);
            self.response_overdue(now, id, over_us < OVERDUE_AGAIN_MS * 1_000, out);
            if self.flows[id].state != State::Request {
                return;
            }
            // Nobody can take it, or policy forbids it: it goes on waiting.
            let quiet_ms = u64::from(now.ms32().wrapping_sub(self.flows[id].last_ms));
            if quiet_ms < limit_ms {
                self.wheel.arm(id, now.ms() + OVERDUE_AGAIN_MS.min(owed_ms));
                return;
            }
        }
        let flow = &self.flows[id];
        // Packets do not touch the timer; it looks here whether they came.
        let quiet_ms = u64::from(now.ms32().wrapping_sub(flow.last_ms));
        if quiet_ms < limit_ms {
            let mut left_ms = (limit_ms - quiet_ms).min(self.answer_due_ms(now, id));
            left_ms = left_ms.min(owed_ms);
            if flow.state == State::Closed {
                // All may be acknowledged soon.
                left_ms = left_ms.min(LINGER_MS);
            }
            if flow.progress.is(Mark::Translated) {
                self.legs.shifts.ages(id, flow.server_ts);
            }
            self.wheel.arm(id, now.ms() + left_ms);
            return;
        }
        if let Some(counter) = counter {
            self.counters.add(counter);
        }
        // A client that lacks something waits for it, and has nothing more to say.
        let lacks = flow.state == State::Closed && flow.server_acked != flow.server_next;
        let event = if lacks { Event::Lost } else { Event::Timeout };
        let _ = self.step(now, id, event, out);
    }
}
