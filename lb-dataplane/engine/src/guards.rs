//! The conversations that protocol guards follow, and what their findings mean to a flow.
//!
//! Owns one slab of trackers: a flow has one while a request is outstanding or there is state to remember. Where none is
//! free, the flow whose request has been incomplete for the longest time gives its tracker away, and is pinned: whoever
//! begins requests and ends none harms himself. A pin for want of room ends once the flow's place
//! in both streams is exact again: a fresh tracker that began where all was acknowledged has
//! followed a whole exchange, to where all is acknowledged again, and nothing that was said
//! unfollowed ties the connection to its owner ([`Unfollowed`]). Sequence numbers do not say how
//! many answers are still to come: so the client has sent one whole request at a time meanwhile,
//! each at rest. It never looks into bytes itself (`baton-guard` does) and never allocates after
//! construction.

use crate::{
    Engine,
    counters::Counter,
    events::What,
    flow::{Bits, FlowId, NONE},
    mutants::Mutant,
    pins::PinReason,
    states::State,
};
use baton_api::Protocol;
use baton_guard::{Guard, Pin, ToCome, Tracker, Unfollowed};

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

/// Instead of a slot: no tracker for want of room. The low 24 bits are what is known of the bytes
/// since.
const UNFOLLOWED: u32 = 0xfe << 24;
const _: () = assert!(UNLISTED >> 24 != UNFOLLOWED >> 24);

const fn as_unfollowed(guard: u32) -> Option<Unfollowed> {
    if guard >> 24 == UNFOLLOWED >> 24 {
        Some(Unfollowed::from_bits(guard & 0xff_ffff))
    } else {
        None
    }
}

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
        if self.guards.get(slot).is_none() && !self.begin_to_follow(id, from) {
            return self.goes_unfollowed(id, from, gap, data);
        }
        let slot = self.flows[id].guard;
        self.guards.works(slot);
        let tracker = &mut self.guards.slots[slot as usize];
        match from {
            From::Client => tracker.client(gap, data),
            From::Server => tracker.server(gap, data),
        }
        if let Some(pin) = tracker.pinned() {
            self.not_followed(id, pin);
            self.goes_unfollowed(id, from, gap, data);
        }
    }

    #[cold]
    fn not_followed(&mut self, id: FlowId, pin: Pin) {
        let flow = &self.flows[id];
        if flow.pin.is_some_and(PinReason::wants_room) && !flow.bits.has(Bits::PRELUDE) {
            // It was followed to end that pin: the place was not what it seemed.
            self.drop_guard(id);
            self.flows[id].guard = UNFOLLOWED | Unfollowed::BOUND.bits();
        } else {
            self.pin(id, PinReason::Guard(pin));
        }
    }

    /// Bytes that no tracker sees.
    #[inline]
    fn goes_unfollowed(&mut self, id: FlowId, from: From, gap: u32, data: &[u8]) {
        if from == From::Client
            && let Some(known) = as_unfollowed(self.flows[id].guard)
            && let Some(guard) = guard_of(self.protocol(id))
        {
            let flow = &self.flows[id];
            let alone = matches!(flow.state, State::Idle | State::Fresh) && flow.all_acked();
            let known = if alone && Unfollowed::is_one_request(guard, data) {
                known.client(guard, gap, data)
            } else {
                Unfollowed::BOUND
            };
            self.flows[id].guard = UNFOLLOWED | known.bits();
        }
    }

    /// Gives the flow a tracker, if its protocol has a guard and nothing is against it.
    fn begin_to_follow(&mut self, id: FlowId, from: From) -> bool {
        let anew = self.flows[id].pin.is_some();
        if anew && !(from == From::Client && self.may_be_followed_anew(id)) {
            return false;
        }
        let Some(guard) = guard_of(self.protocol(id)) else {
            return false;
        };
        let mut slot = self.guards.take(guard, id);
        if slot.is_none() && anew {
            return false;
        }
        if slot.is_none()
            && let Some(other) = self.guards.gives_way()
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

    /// Whether a pinned flow is between two messages, as far as sequence numbers tell, and nothing
    /// ties it to its owner.
    #[cold]
    fn may_be_followed_anew(&self, id: FlowId) -> bool {
        let flow = &self.flows[id];
        flow.state == State::Idle
            && flow.all_acked()
            && flow.early_client.is_empty()
            && as_unfollowed(flow.guard).is_some_and(Unfollowed::is_harmless)
    }

    /// The flow may move again.
    #[cold]
    fn lift_pin(&mut self, id: FlowId) {
        self.pin_ends(id);
        let flow = &mut self.flows[id];
        flow.pin = None;
        if flow.owner.is_some() {
            self.backends[usize::from(flow.owner.backend)].pinned -= 1;
        }
        self.counters.add(Counter::PinsLifted);
        self.tell(id, What::PinLifted);
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
            Some(tracker) if tracker.is_default() => {
                self.drop_guard(id);
                if self.flows[id].pin.is_some_and(PinReason::wants_room) {
                    self.lift_pin(id);
                }
            }
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
            let one_answer = self.tracker(id).is_none_or(|tracker| {
                let whole = tracker.to_come() == ToCome::Exactly(0);
                tracker.unanswered() <= 1 && whole && !tracker.closing()
            });
            self.drop_guard(id);
            if why.wants_room()
                && let Some(guard) = guard_of(self.protocol(id))
            {
                let known = if one_answer {
                    Unfollowed::new(guard)
                } else {
                    Unfollowed::BOUND
                };
                self.flows[id].guard = UNFOLLOWED | known.bits();
            }
        }
        let kept = self.flows[id].kept;
        self.kept.is_complete(kept);
        self.drop_kept_unless_needed(id);
    }
}
