//! What happened to flows, for whoever watches: a ring of fixed size, reserved at start.
//!
//! Owns the ring and what an event is called. Written on the packet path without allocation, by whoever counts the same
//! thing; read between batches. The oldest events are overwritten, read or not.
//!
//! # Decisions
//!
//! - **Events of flows are a ring of 32,768 entries of 40 bytes**, written beside the counters by
//!   slots of tables; names are looked up when somebody reads, and a slot that went to another
//!   backend since lends its name to no older event. Readers never block; slow readers get a gap
//!   count.

use crate::{
    Cause, Engine, Lost, PinReason,
    clock::Instant,
    flow::Flow,
    ids::{Addr, FlowId, Leg, from_addr},
    pins::Gone,
    states::State,
};
use baton_api::{Endpoint, EventCursor, FlowEvent, FlowEvents};
use baton_packet::Reason;
use std::net::SocketAddr;

/// Events that the ring holds, 1.3 MB. A fleet that moves 1,000 flows a second makes two events of each and is read by a
/// watcher once a second; this is 16 times as much. With a move at each of 28,000 requests a second, half a second.
const EVENTS: usize = 32_768;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Somebody asked for a move that waits for the flow's next request.
    MoveAsked,
    /// That will not happen any more.
    MoveDropped,
    /// The first adoption of a move was sent.
    Adopting,
    /// A further one.
    AdoptingAgain,
    /// An adoption was refused.
    Refused(Reason),
    /// The new owner confirmed.
    Moved,
    /// The old owner has the flow again.
    RolledBack,
    /// The owner is gone, and another one is needed.
    OwnerLost(Gone),
    /// A request that may have been executed is sent again.
    Replayed,
    /// The flow does not move any more.
    Pinned(PinReason),
    /// The flow ended, or its client was told of an end, because of its backend.
    Lost(Lost),
}

impl What {
    fn label(self) -> &'static str {
        match self {
            What::MoveAsked => "move_asked",
            What::MoveDropped => "move_dropped",
            What::Adopting => "adopting",
            What::AdoptingAgain => "adopting_again",
            What::Refused(_) => "refused",
            What::Moved => "moved",
            What::RolledBack => "rolled_back",
            What::OwnerLost(_) => "owner_lost",
            What::Replayed => "replayed",
            What::Pinned(_) => "pinned",
            What::Lost(_) => "lost",
        }
    }

    fn reason(self) -> Option<&'static str> {
        Some(match self {
            What::Refused(reason) => reason.label(),
            What::OwnerLost(Gone::Closed) => "closed",
            What::OwnerLost(Gone::Reset) => "reset",
            What::OwnerLost(Gone::Silent) => "silent",
            What::Pinned(pin) => pin.label(),
            What::Lost(lost) => lost.label(),
            _ => return None,
        })
    }
}

/// One event. Slots of tables stand for names, which are looked up when it is read.
#[derive(Clone, Copy)]
struct Happened {
    at_us: u64,
    client: Addr,
    client_port: u16,
    frontend: u16,
    policy: u16,
    from: u16,
    to: u16,
    what: What,
    cause: Option<Cause>,
}

const _: () = assert!(size_of::<Happened>() <= 40);

/// The ring.
pub(crate) struct Events {
    ring: Box<[Happened]>,
    /// How many there were: the number of the last one.
    last: u64,
    /// The number of the last one that somebody read.
    read: u64,
    overwritten: u64,
    /// When the frame or call that is being handled came.
    pub(crate) now: Instant,
}

impl Events {
    pub(crate) fn new() -> Self {
        let blank = Happened {
            at_us: 0,
            client: Addr::default(),
            client_port: 0,
            frontend: 0,
            policy: 0,
            from: 0,
            to: 0,
            what: What::Moved,
            cause: None,
        };
        Self {
            ring: vec![blank; EVENTS].into_boxed_slice(),
            last: 0,
            read: 0,
            overwritten: 0,
            now: Instant(0),
        }
    }

    /// The number of the last event. Slots of tables that are taken for others from now on are not what older events mean.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// The number of the first event that is still there.
    fn first(&self) -> u64 {
        self.last.saturating_sub(EVENTS as u64) + 1
    }

    fn slot(number: u64) -> usize {
        number as usize % EVENTS
    }

    /// Events that were overwritten before anybody had read them.
    pub(crate) fn overwritten(&self) -> u64 {
        self.overwritten
    }

    fn push(&mut self, event: Happened) {
        let full = self.last >= EVENTS as u64;
        self.overwritten += u64::from(full && self.first() > self.read);
        self.last += 1;
        self.ring[Self::slot(self.last)] = event;
    }
}

impl Engine {
    /// Notes what happened to a flow.
    pub(crate) fn tell(&mut self, id: FlowId, what: What) {
        let flow = &self.flows[id];
        let (from, to, cause) = match what {
            What::MoveAsked | What::MoveDropped => (flow.owner, flow.standby, true),
            What::Moved | What::RolledBack => (flow.standby, flow.owner, true),
            _ if flow.is_moving() => (flow.standby, flow.owner, true),
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

    /// Up to `max` events behind number `since`, none to begin with the next one. A `since` that is yet to come is one of an
    /// earlier life of the dataplane: all events that there are follow.
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
            now_micros: self.engine_time(now).0,
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

impl Flow {
    /// An adoption of it is open.
    pub(crate) fn is_moving(&self) -> bool {
        matches!(self.state, State::Adopting | State::AdoptingIdle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(at_us: u64) -> Happened {
        let mut event = Events::new().ring[0];
        event.at_us = at_us;
        event
    }

    #[test]
    fn the_ring_overwrites_the_oldest_and_says_when_nobody_had_read_it() {
        let mut events = Events::new();
        assert_eq!((events.first(), events.last()), (1, 0));
        for n in 1..=EVENTS as u64 {
            events.push(numbered(n));
        }
        assert_eq!((events.first(), events.overwritten()), (1, 0));
        events.push(numbered(EVENTS as u64 + 1));
        assert_eq!((events.first(), events.overwritten()), (2, 1));
        events.read = 3;
        for (n, overwritten) in [(2, 1), (3, 1), (4, 2)] {
            events.push(numbered(EVENTS as u64 + n));
            assert_eq!(events.overwritten(), overwritten, "{n}");
        }
        for number in events.first()..=events.last() {
            assert_eq!(events.ring[Events::slot(number)].at_us, number);
        }
    }
}
