//! The conversations that protocol guards follow.
//!
//! Owns one slab of trackers, reserved at start, the room for their sessions, and the order in
//! which requests began. Which flow has one, and what its findings mean, is `follow`'s.

use crate::{
    containers::{shares::Shares, slots::Slots},
    ids::{FlowId, NONE},
};
use baton_api::Protocol;
use baton_guard::{Guard, PRELUDE_MAX, Pin, Prelude, Session, Sessions, ToCome, Tracker};
use std::cmp::Ordering;

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
pub(crate) const LOOKED_AT_MAX: usize = 32;
/// Instead of the one in front: not among those with a request.
pub(crate) const UNLISTED: u32 = NONE - 1;

/// Beside each tracker: whose it is, and its neighbours among those with a request, in the order in
/// which these began.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) flow: FlowId,
    pub(crate) before: u32,
    /// Or the next free one.
    pub(crate) next: u32,
}

/// The clients of one network have one of so many parts of the sessions, at most.
const NETWORK_PART: u32 = 2;
/// One session, as shares are counted.
const ONE: Slots = Slots { all: 1, long: 0 };

/// All trackers: a slab with a free list, and a list of those with a request.
pub(crate) struct Guards {
    slots: Box<[Tracker]>,
    sessions: Sessions<Box<[Session]>>,
    /// What the clients of each network have of these.
    shares: Shares,
    pub(crate) places: Box<[Place]>,
    pub(crate) free: u32,
    pub(crate) used: u32,
    pub(crate) oldest: u32,
    pub(crate) newest: u32,
}

impl Guards {
    pub(crate) fn new(limit: u32, sessions: u32) -> Self {
        let place = |i: u32| Place {
            flow: NONE,
            before: UNLISTED,
            next: if i + 1 < limit { i + 1 } else { NONE },
        };
        Self {
            slots: vec![Tracker::new(Guard::Http1); limit as usize].into_boxed_slice(),
            sessions: Sessions::new((0..sessions).map(|_| Session::new()).collect()),
            shares: Shares::new(Slots { all: (sessions / NETWORK_PART).max(1), long: 0 }),
            places: (0..limit).map(place).collect(),
            free: if limit == 0 { NONE } else { 0 },
            used: 0,
            oldest: NONE,
            newest: NONE,
        }
    }

    pub(crate) fn take(&mut self, guard: Guard, flow: FlowId) -> Option<u32> {
        let id = self.free;
        let place = self.places.get_mut(id as usize)?;
        self.free = place.next;
        place.flow = flow;
        let tracker = &mut self.slots[id as usize];
        // It is as new.
        if tracker.guard() != guard {
            *tracker = Tracker::new(guard);
        }
        self.used += 1;
        Some(id)
    }

    /// `network`: that of the flow's client.
    pub(crate) fn give_back(&mut self, id: u32, network: u16) {
        self.rests(id);
        let before = self.sessions.used();
        // What it remembered may be a secret.
        self.slots[id as usize].forget(&mut self.sessions);
        self.share(before, network);
        self.places[id as usize].next = self.free;
        self.free = id;
        self.used -= 1;
    }

    /// A request begins, if none is there.
    #[inline]
    pub(crate) fn works(&mut self, id: u32) {
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
    pub(crate) fn rests(&mut self, id: u32) {
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
    pub(crate) fn gives_way(&self) -> Option<FlowId> {
        let mut at = self.oldest;
        let mut first = std::iter::from_fn(|| {
            let place = self.places.get(at as usize)?;
            Some((std::mem::replace(&mut at, place.next), place.flow))
        });
        let incomplete =
            |(id, _): &(u32, FlowId)| self.slots[*id as usize].to_come() != ToCome::Exactly(0);
        let found = first.by_ref().take(LOOKED_AT_MAX).find(incomplete);
        let oldest = self.places.get(self.oldest as usize);
        found.map(|(_, flow)| flow).or(oldest.map(|place| place.flow))
    }

    pub(crate) fn get(&self, id: u32) -> Option<&Tracker> {
        self.slots.get(id as usize)
    }

    /// Shows new bytes to a tracker, behind `gap` that are not shown. `network`: that of the
    /// flow's client.
    #[inline(always)]
    pub(crate) fn shows(
        &mut self,
        (id, network): (u32, u16),
        from: From,
        gap: u32,
        data: &[u8],
    ) -> Option<Pin> {
        if self.slots[id as usize].guard() != Guard::Resp {
            return self.tells(id, from, gap, data);
        }
        let before = self.sessions.used();
        self.sessions.withhold(!self.shares.have_room(network, ONE));
        let pin = self.tells(id, from, gap, data);
        self.share(before, network);
        pin
    }

    /// There were `before` sessions in use before a client of this network had or lost one.
    fn share(&mut self, before: u32, network: u16) {
        match self.sessions.used().cmp(&before) {
            Ordering::Less => self.shares.returns(network, ONE),
            Ordering::Equal => {}
            Ordering::Greater => self.shares.takes(network, ONE),
        }
    }

    /// What networks have of the sessions together, for tests.
    pub(crate) fn shared(&self) -> u32 {
        self.shares.sum().all
    }

    #[inline(always)]
    fn tells(&mut self, id: u32, from: From, gap: u32, data: &[u8]) -> Option<Pin> {
        let tracker = &mut self.slots[id as usize];
        match from {
            From::Client => tracker.client(gap, data, &mut self.sessions),
            From::Server => tracker.server(gap, data, &mut self.sessions),
        }
        tracker.pinned()
    }

    /// What restores the session that a tracker follows.
    pub(crate) fn prelude(&self, id: u32, bytes: &mut [u8; PRELUDE_MAX]) -> Option<Prelude> {
        self.get(id)?.prelude(&self.sessions, bytes)
    }

    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// How many sessions are remembered, and how many may be.
    pub(crate) fn sessions(&self) -> (u32, u32) {
        (self.sessions.used(), self.sessions.limit())
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
