//! What happens to flows, noted in the figures of their policies and in the ring of events.
//!
//! Owns when each figure counts, and what is told of events to whoever asks. The forms are
//! `figures` and `events`.

use crate::{
    Engine,
    clock::Instant,
    ids::{FlowId, Leg, from_addr},
    obs::{
        events::{Events, Happened, What},
        figures::Reset,
    },
    states::State,
};
use baton_api::{Endpoint, EventCursor, FlowEvent, FlowEvents};
use std::net::SocketAddr;

impl Engine {
    /// An adoption leaves. One that carries a request is measured from when that was sent, which is
    /// the same moment, or comes later if the adoption left without it.
    pub(crate) fn adoption_leaves(&mut self, now: Instant, id: FlowId) {
        let flow = &mut self.flows[id];
        if flow.state == State::AdoptingIdle && flow.progress.tries == 1 {
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

    /// Why the declared table has a flow's client reset: each of its rows that does so ends the
    /// flow, which is in its last state still.
    pub(crate) fn reset_by_table(&self, id: FlowId) -> Reset {
        match self.flows[id].state {
            State::OwnerFinPending => Reset::Backend,
            State::Adopting | State::AdoptingIdle | State::Orphan => Reset::Lost,
            State::FinSentToClient => Reset::Closed,
            _ => Reset::Timeout,
        }
    }
}

impl Engine {
    /// Notes what happened to a flow.
    pub(crate) fn tell(&mut self, id: FlowId, what: What) {
        let flow = &self.flows[id];
        let (from, to, cause) = match what {
            What::MoveAsked | What::MoveDropped => (flow.owner, flow.standby, true),
            What::Moved | What::RolledBack => (flow.standby, flow.owner, true),
            _ if flow.state.is_moving() => (flow.standby, flow.owner, true),
            _ => (flow.owner, Leg::NONE, false),
        };
        let event = Happened {
            at_us: self.events.now.0,
            client: flow.client,
            client_port: flow.client_port,
            frontend: flow.frontend,
            policy: flow.policy,
            from: from.backend,
            to: to.backend,
            what,
            cause: flow.causes.open().filter(|_| cause),
        };
        self.events.push(event);
    }

    /// Up to `max` events behind number `since`, none to begin with the next one. A `since` that is
    /// yet to come is one of an earlier life of the dataplane: all events that there are follow.
    #[must_use]
    pub fn events(&mut self, now: Instant, since: Option<u64>, max: usize) -> FlowEvents {
        let last = self.events.last;
        let since = match since {
            None => last,
            Some(since) if since > last => 0,
            Some(since) => since,
        };
        let first = self.events.first().max(since + 1);
        let end = last.min(first.saturating_add(max as u64) - 1);
        let events = (first..=end).filter_map(|number| self.event(number));
        let events: Vec<FlowEvent> = events.collect();
        if first <= end {
            self.events.read = self.events.read.max(end);
        }
        FlowEvents {
            now_micros: self.link.time(now).0,
            unix_micros: 0,
            next: EventCursor(vec![end.max(since)]),
            missed: first - since - 1,
            more: end < last,
            events,
        }
    }

    fn event(&self, number: u64) -> Option<FlowEvent> {
        let event = self.events.ring.get(Events::slot(number))?;
        let known = |slot: u16| {
            let backend = self.backends.get(usize::from(slot))?;
            (backend.since_event < number).then_some(slot)
        };
        let frontend = self.frontends.get(usize::from(event.frontend));
        let frontend = frontend.filter(|f| f.since_event < number);
        let policy = self.policies.get(usize::from(event.policy));
        let policy = policy.filter(|p| p.since_event < number);
        let named = |slot: u16| match (known(slot)?, policy) {
            (slot, Some(_)) => Some(self.backend_name(event.policy, slot).to_owned()),
            (slot, None) => Some(self.backends[usize::from(slot)].name.clone()),
        };
        Some(FlowEvent {
            seq: number,
            worker: 0,
            at_micros: event.at_us,
            event: event.what.label().to_owned(),
            client: SocketAddr::new(from_addr(event.client), event.client_port),
            frontend: frontend.and_then(|f| Endpoint::new(from_addr(f.addr), f.port)),
            policy: policy.map(|p| p.spec.name.clone()).unwrap_or_default(),
            cause: event.cause.map(|c| c.label().to_owned()),
            reason: event.what.reason().map(str::to_owned),
            from: named(event.from),
            to: named(event.to),
        })
    }
}
