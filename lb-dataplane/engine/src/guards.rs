//! The conversations that protocol guards follow, and what their findings mean to a flow.
//!
//! Owns one slab of trackers: a flow has one while a request is outstanding or there is state to remember. It never
//! looks into bytes itself (`baton-guard` does) and never allocates after construction.

use crate::{
    Engine,
    events::What,
    flow::{Bits, FlowId, NONE},
    mutants::Mutant,
    pins::PinReason,
};
use baton_api::Protocol;
use baton_guard::{Guard, Tracker};

/// The guard of a protocol, if it has one.
pub(crate) const fn guard_of(protocol: Protocol) -> Option<Guard> {
    match protocol {
        Protocol::Http1 => Some(Guard::Http1),
        Protocol::Resp => Some(Guard::Resp),
        Protocol::Memcached => Some(Guard::Memcached),
        Protocol::None | Protocol::RequestResponse => None,
    }
}

/// All trackers: a slab with a free list.
pub(crate) struct Guards {
    slots: Box<[Tracker]>,
    next: Box<[u32]>,
    free: u32,
    used: u32,
}

impl Guards {
    pub(crate) fn new(limit: u32) -> Self {
        let next = |i: u32| if i + 1 < limit { i + 1 } else { NONE };
        Self {
            slots: vec![Tracker::new(Guard::Http1); limit as usize].into_boxed_slice(),
            next: (0..limit).map(next).collect(),
            free: if limit == 0 { NONE } else { 0 },
            used: 0,
        }
    }

    fn take(&mut self, guard: Guard) -> Option<u32> {
        let id = self.free;
        let next = *self.next.get(id as usize)?;
        self.free = next;
        self.slots[id as usize] = Tracker::new(guard);
        self.used += 1;
        Some(id)
    }

    fn give_back(&mut self, id: u32) {
        // What it remembered may be a secret.
        self.slots[id as usize] = Tracker::new(Guard::Http1);
        self.next[id as usize] = self.free;
        self.free = id;
        self.used -= 1;
    }

    pub(crate) fn get(&self, id: u32) -> Option<&Tracker> {
        self.slots.get(id as usize)
    }

    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    pub(crate) fn limit(&self) -> u32 {
        self.slots.len() as u32
    }
}

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    Client,
    Server,
}

impl Engine {
    fn protocol(&self, id: FlowId) -> Protocol {
        self.policies[usize::from(self.flows[id].policy)]
            .spec
            .protocol
    }

    /// The flow's tracker, if one follows it at present.
    pub(crate) fn tracker(&self, id: FlowId) -> Option<&Tracker> {
        self.guards.get(self.flows[id].guard)
    }

    /// Shows new bytes to the guard. `gap` bytes in front of them were not seen.
    #[inline]
    pub(crate) fn follow(&mut self, id: FlowId, from: From, gap: u32, data: &[u8]) {
        if self.flows[id].guard == NONE && !self.begin_to_follow(id) {
            return;
        }
        let slot = self.flows[id].guard;
        let Some(tracker) = self.guards.slots.get_mut(slot as usize) else {
            return;
        };
        match from {
            From::Client => tracker.client(gap, data),
            From::Server => tracker.server(gap, data),
        }
        if let Some(pin) = tracker.pinned() {
            self.pin(id, PinReason::Guard(pin));
        }
    }

    /// Gives the flow a tracker, if its protocol has a guard and nothing is against it.
    fn begin_to_follow(&mut self, id: FlowId) -> bool {
        if self.flows[id].pin.is_some() {
            return false;
        }
        let Some(guard) = guard_of(self.protocol(id)) else {
            return false;
        };
        match self.guards.take(guard) {
            Some(slot) => self.flows[id].guard = slot,
            None => self.pin(id, PinReason::GuardsFull),
        }
        self.flows[id].guard != NONE
    }

    /// Whether all requests are answered, as far as the protocol tells; the bare rule tells nothing.
    #[inline]
    pub(crate) fn answered(&self, id: FlowId) -> bool {
        self.tracker(id).is_none_or(|t| t.unanswered() == 0) || self.mutated(Mutant::MovePipelined)
    }

    /// Whether no state ties the flow to its owner between two requests.
    #[inline]
    pub(crate) fn at_rest(&self, id: FlowId) -> bool {
        self.tracker(id).is_none_or(Tracker::at_rest) || self.mutated(Mutant::MovePipelined)
    }

    /// The tracker that has nothing to remember goes back.
    #[inline]
    pub(crate) fn settle_guard(&mut self, id: FlowId) {
        if self.tracker(id).is_some_and(Tracker::is_default) {
            self.drop_guard(id);
        }
    }

    pub(crate) fn drop_guard(&mut self, id: FlowId) {
        let slot = std::mem::replace(&mut self.flows[id].guard, NONE);
        if slot != NONE {
            self.guards.give_back(slot);
        }
    }

    /// The flow never moves again; counted once.
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
        self.drop_wish(id);
        self.tell(id, What::Pinned(why));
        // A hand-over that began with a session goes on with it, whatever the client sends meanwhile.
        if why == PinReason::SessionRefused || !self.flows[id].bits.has(Bits::PRELUDE) {
            self.drop_guard(id);
        }
        self.drop_kept_unless_needed(id);
    }
}
