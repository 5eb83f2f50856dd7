//! What happens to flows, noted in the figures of their policies.
//!
//! Owns when each figure counts. The figures' forms are `figures`.

use crate::{Engine, clock::Instant, figures::Reset, ids::FlowId, states::State};

impl Engine {
    /// An adoption leaves. One that carries a request is measured from when that was sent, which is the same moment, or comes
    /// later if the adoption left without it.
    pub(crate) fn adoption_leaves(&mut self, now: Instant, id: FlowId) {
        let flow = &mut self.flows[id];
        if flow.state == State::AdoptingIdle && flow.tries == 1 {
            flow.sent_us = now.0 as u32;
        }
    }

    /// The new owner has confirmed it.
    pub(crate) fn adoption_confirmed(&mut self, now: Instant, id: FlowId) {
        let flow = &self.flows[id];
        let took_us = u64::from((now.0 as u32).wrapping_sub(flow.sent_us));
        let policy = usize::from(flow.policy);
        self.policies[policy].figures.moves.add(took_us);
    }

    /// The flow ends, and with it its pin.
    pub(crate) fn pin_ends(&mut self, id: FlowId) {
        let flow = &self.flows[id];
        if let Some(pin) = flow.pin {
            let policy = usize::from(flow.policy);
            self.policies[policy].figures.pinned[pin.number()] -= 1;
        }
    }

    /// A client of the policy is reset.
    pub(crate) fn count_reset(&mut self, policy: u16, why: Reset) {
        self.policies[usize::from(policy)].figures.resets[why as usize] += 1;
    }

    /// Why the declared table has a flow's client reset: each of its rows that does so ends the flow, which is in its last
    /// state still.
    pub(crate) fn reset_by_table(&self, id: FlowId) -> Reset {
        match self.flows[id].state {
            State::OwnerFinPending => Reset::Backend,
            State::Adopting | State::AdoptingIdle | State::Orphan => Reset::Lost,
            State::FinSentToClient => Reset::Closed,
            _ => Reset::Timeout,
        }
    }
}
