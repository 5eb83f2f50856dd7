//! The conversations that protocol guards follow, and what their findings mean to a flow.
//!
//! Owns one slab of trackers: a flow has one while a request is outstanding or there is state to remember. Where none is
//! free, the flow whose request has been incomplete for the longest time gives its tracker away, and
//! is pinned: whoever begins requests and ends none harms himself. One whose owner is gone keeps
//! its own: it has the session that the next owner needs. It never looks into bytes itself
//! (`baton-guard` does) and never allocates after construction.
//!
//! # Decisions
//!
//! - **A pin for want of room stays** (`guards_full`, `gap`, `pipeline_too_deep`). That it end once
//!   the flow is idle again was tried three times, last with a fresh tracker that had to follow a
//!   whole exchange: a client that pipelines looks idle, with all acknowledged, while answers are
//!   to come, and what then seems the next answer is the one before. Each time the simulation found
//!   answers that went to the wrong request (seeds 5172, 7984, 9557; 7984 again with other random
//!   choices). By default there is a tracker for each flow (`guardedFlows`), copies of what comes
//!   ahead of a loss keep places exact (`engine/src/early.rs`), and no such pin is ever set.
//! - **A request's clock begins when all of it is there**, as the guard says
//!   (`Engine::request_goes_on`): the load estimate and `responseTimeout` count what the pod takes,
//!   not what the client takes. Requests that never ended had made a pod look stalled, and five
//!   slow uploads had it ejected. Where nobody follows, the first byte counts, as before.

use crate::{
    Engine,
    events::What,
    flow::Bits,
    ids::{FlowId, NONE},
    mutants::Mutant,
    pins::PinReason,
    states::State,
};
use baton_api::Protocol;
use baton_guard::{Guard, ToCome, Tracker};

/// The guard of a protocol, if it has one.
pub(crate) const fn guard_of(protocol: Protocol) -> Option<Guard> {
    match protocol {
        Protocol::Http1 => Some(Guard::Http1),
        Protocol::Resp => Some(Guard::Resp),
        Protocol::Memcached => Some(Guard::Memcached),
        Protocol::None | Protocol::RequestResponse => None,
    }
}

/// Of those who began first, so many are looked at for one whose request is incomplete.
const LOOKED_AT_MAX: usize = 32;
/// Instead of the one in front: not among those with a request.
const UNLISTED: u32 = NONE - 1;

/// Beside each tracker: whose it is, and its neighbours among those with a request, in the order in which these began.
#[derive(Clone, Copy)]
struct Place {
    flow: FlowId,
    before: u32,
    /// Or the next free one.
    next: u32,
}

/// All trackers: a slab with a free list, and a list of those with a request.
pub(crate) struct Guards {
    slots: Box<[Tracker]>,
    places: Box<[Place]>,
    free: u32,
    used: u32,
    oldest: u32,
    newest: u32,
}

impl Guards {
    pub(crate) fn new(limit: u32) -> Self {
        let place = |i: u32| Place {
            flow: NONE,
            before: UNLISTED,
            next: if i + 1 < limit { i + 1 } else { NONE },
        };
        Self {
            slots: vec![Tracker::new(Guard::Http1); limit as usize].into_boxed_slice(),
            places: (0..limit).map(place).collect(),
            free: if limit == 0 { NONE } else { 0 },
            used: 0,
            oldest: NONE,
            newest: NONE,
        }
    }

    fn take(&mut self, guard: Guard, flow: FlowId) -> Option<u32> {
        let id = self.free;
        let place = self.places.get_mut(id as usize)?;
        self.free = place.next;
        place.flow = flow;
        self.slots[id as usize] = Tracker::new(guard);
        self.used += 1;
        Some(id)
    }

    fn give_back(&mut self, id: u32) {
        self.rests(id);
        // What it remembered may be a secret.
        self.slots[id as usize] = Tracker::new(Guard::Http1);
        self.places[id as usize].next = self.free;
        self.free = id;
        self.used -= 1;
    }

    /// A request begins, if none is there.
    #[inline]
    fn works(&mut self, id: u32) {
        let place = &mut self.places[id as usize];
        if place.before != UNLISTED {
            return;
        }
        (place.before, place.next) = (self.newest, NONE);
        match self.places.get_mut(self.newest as usize) {
            Some(last) => last.next = id,
            None => self.oldest = id,
        }
        self.newest = id;
    }

    /// All requests are answered.
    fn rests(&mut self, id: u32) {
        let Place { before, next, .. } = self.places[id as usize];
        if before == UNLISTED {
            return;
        }
        self.places[id as usize].before = UNLISTED;
        match self.places.get_mut(before as usize) {
            Some(place) => place.next = next,
            None => self.oldest = next,
        }
        match self.places.get_mut(next as usize) {
            Some(place) => place.before = before,
            None => self.newest = before,
        }
    }

    /// Whose tracker another flow gets where none is free.
    fn gives_way(&self) -> Option<FlowId> {
        let mut at = self.oldest;
        let mut first = std::iter::from_fn(|| {
            let place = self.places.get(at as usize)?;
            Some((std::mem::replace(&mut at, place.next), place.flow))
        });
        let incomplete =
            |(id, _): &(u32, FlowId)| self.slots[*id as usize].to_come() != ToCome::Exactly(0);
        let found = first.by_ref().take(LOOKED_AT_MAX).find(incomplete);
        let oldest = self.places.get(self.oldest as usize);
        found
            .map(|(_, flow)| flow)
            .or(oldest.map(|place| place.flow))
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

    /// Shows new bytes to the guard. `gap` bytes in front of them were not seen, and need not be (`early`).
    #[inline]
    pub(crate) fn follow(&mut self, id: FlowId, from: From, gap: u32, data: &[u8]) {
        let slot = self.flows[id].guard;
        if self.guards.get(slot).is_none() && !self.begin_to_follow(id) {
            return;
        }
        let slot = self.flows[id].guard;
        self.guards.works(slot);
        let tracker = &mut self.guards.slots[slot as usize];
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
        let mut slot = self.guards.take(guard, id);
        if slot.is_none()
            && let Some(other) = self.guards.gives_way()
            && !self.lacks_owner(other)
        {
            self.pin(other, PinReason::GuardsFull);
            slot = self.guards.take(guard, id);
        }
        match slot {
            Some(slot) => self.flows[id].guard = slot,
            None => self.pin(id, PinReason::GuardsFull),
        }
        slot.is_some()
    }

    /// It goes to another owner or ends.
    fn lacks_owner(&self, id: FlowId) -> bool {
        matches!(self.flows[id].state, State::OwnerFinPending | State::Orphan)
    }

    /// Whether all requests are answered, as far as the protocol tells; the bare rule tells nothing.
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
            self.guards.give_back(slot);
        }
    }

    /// The flow does not move any more; counted once.
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
        // A hand-over that began with a session goes on with it, whatever the client sends meanwhile.
        if why == PinReason::SessionRefused || !self.flows[id].bits.has(Bits::PRELUDE) {
            self.drop_guard(id);
        }
        let kept = self.flows[id].kept;
        self.kept.is_complete(kept);
        self.drop_kept_unless_needed(id);
    }
}
