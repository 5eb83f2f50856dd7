//! Timers: how long each state may last, and what happens then.

use crate::{
    Engine, Output,
    counters::Counter,
    engine::Instant,
    flow::FlowId,
    routes::LIMIT_HOPS,
    states::{Action, Event, State},
};

/// Both sides closed: lost last segments can still be repeated for this long. A pod's or client's own
/// TIME_WAIT outlives it; what comes later is answered with a reset, which such a socket ignores or ends by.
const LINGER_MS: u64 = 1_000;
/// Timers handled in one call, so that packets never wait long for them.
const DUE_PER_CALL_MAX: usize = 256;
/// Addresses that the kernel has not resolved are asked for again this often.
const RESOLVE_AGAIN_MS: u64 = 1_000;

impl Engine {
    /// Does what is due: deferred closes, retries, time-outs, probes.
    pub fn poll(&mut self, now: Instant, out: &mut impl Output) {
        for _ in 0..DUE_PER_CALL_MAX {
            let Some(id) = self.wheel.pop_due(now.ms()) else {
                break;
            };
            match id.checked_sub(self.flows.limit()) {
                Some(closing) => self.closing_due(now, closing, out),
                None => self.flow_due(now, id, out),
            }
        }
        self.send_probes(now, out);
        if now.ms() >= self.resolve_again_ms {
            self.resolve_again_ms = now.ms() + RESOLVE_AGAIN_MS;
            self.hops.ask_again();
            self.forget_hops();
        }
    }

    /// Makes room in the table of next hops when it runs full (clients on our own link take one each).
    fn forget_hops(&mut self) {
        if self.hops.len() < LIMIT_HOPS / 4 * 3 {
            return;
        }
        let mut used = [false; LIMIT_HOPS];
        for flow in self.flows.slots().iter().filter(|f| f.state != State::Gone) {
            used[usize::from(flow.hop.0)] = true;
        }
        for hop in self.backends.iter().filter_map(|b| b.hop) {
            used[usize::from(hop.0)] = true;
        }
        self.hops.evict_unused(|hop| used[usize::from(hop.0)]);
    }

    /// When [`Engine::poll`] should be called next, at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let wheel = self.wheel.next_due_ms();
        let probe = (!self.backends.is_empty()).then_some(self.next_probe_ms);
        wheel
            .into_iter()
            .chain(probe)
            .min()
            .map(|ms| Instant(ms.saturating_mul(1_000)))
    }

    pub(crate) fn arm(&mut self, now: Instant, id: FlowId, timer: Action) {
        let flow = &self.flows[id];
        let timeouts = &self.policies[usize::from(flow.policy)].spec.timeouts;
        let wait_ms = match timer {
            Action::ArmHandshake => timeouts.handshake.0 / 1_000,
            Action::ArmAdoption => crate::adopt::ADOPTION_WAIT_MS << (flow.tries.clamp(1, 16) - 1),
            Action::ArmHalfClosed => timeouts.half_closed.0 / 1_000,
            Action::ArmLinger => LINGER_MS,
            _ => timeouts.idle.0 / 1_000,
        };
        self.wheel.arm(id, now.ms() + wait_ms);
    }

    fn flow_due(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        let flow = &self.flows[id];
        let timeouts = &self.policies[usize::from(flow.policy)].spec.timeouts;
        let (limit_ms, counter) = match flow.state {
            State::Adopting => return self.doubt(now, id, out),
            State::Gone => return,
            State::SynSent | State::SynAcked => (0, Some(Counter::TimeoutsHandshake)),
            State::ClientFin | State::ServerFin => (
                timeouts.half_closed.0 / 1_000,
                Some(Counter::TimeoutsHalfClosed),
            ),
            State::Closed => (LINGER_MS, None),
            State::Fresh | State::Request | State::Response | State::Idle => {
                (timeouts.idle.0 / 1_000, Some(Counter::TimeoutsIdle))
            }
        };
        // Packets do not touch the timer; it looks here whether they came.
        let quiet_ms = u64::from(now.ms32().wrapping_sub(flow.last_ms));
        if quiet_ms < limit_ms {
            self.wheel.arm(id, now.ms() + limit_ms - quiet_ms);
            return;
        }
        if let Some(counter) = counter {
            self.counters.add(counter);
        }
        let _ = self.step(now, id, Event::Timeout, out);
    }
}
