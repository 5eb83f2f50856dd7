//! Legs that close: a slab of them, and those that have not begun to, in their order.
//!
//! Owns their memory, that of the parked ones among them too. When they close, and how, is
//! `closing`'s; who may have one instead is `sharing`'s.

use crate::{
    ids::{Leg, NONE},
    timing::{CLOSE_WAIT_CROWDED_MS, CLOSE_WAIT_MS, PARKED_MAX},
};
use baton_packet::SeqNumber;

/// What a leg was opened with, which the next flow must have been promised too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Promises {
    pub(crate) policy: u16,
    /// Of the options that both ends agreed to (`Bits`).
    pub(crate) options: u16,
    /// How far the client shifts its windows.
    pub(crate) scale: u8,
    /// Which of the pod's processes it is with.
    pub(crate) process: u32,
}

/// The legs that are parked at a pod and ready, the last one first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parked {
    pub(crate) first: u16,
    pub(crate) count: u16,
}

/// What is known of a leg that is parked: apart, for most closing legs never are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParkedLeg {
    /// Its place among the closing legs.
    pub(crate) closing: u32,
    /// What the next flow has to be like.
    pub(crate) promises: Promises,
    pub(crate) mss: u16,
    /// How far the pod shifts its windows.
    pub(crate) pod_scale: u8,
    /// Those that are ready at the same pod, parked behind and before it; or the next free place.
    later: u16,
    earlier: u16,
}

/// No place.
const NOWHERE: u16 = u16::MAX;
const _: () = assert!(PARKED_MAX < NOWHERE as u32);

impl Default for Parked {
    fn default() -> Self {
        Self { first: NOWHERE, count: 0 }
    }
}

impl ParkedLeg {
    pub(crate) fn new(promises: Promises, mss: u16, pod_scale: u8) -> Self {
        Self { closing: NONE, promises, mss, pod_scale, later: NOWHERE, earlier: NOWHERE }
    }
}

/// A leg that was taken from those that are parked, in the numbers of the flow that left it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    /// Next byte that the pod expects, and that it sends.
    pub(crate) next: SeqNumber,
    pub(crate) pod_next: SeqNumber,
    /// The last timestamps of both sides.
    pub(crate) stamps: Option<(u32, u32)>,
    /// How far the pod shifts its windows.
    pub(crate) pod_scale: u8,
}

/// Whether a leg may be another flow's next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parking {
    /// It closes.
    No,
    /// It is among those of its pod, which may not know yet that its last response arrived.
    Fresh,
    /// The pod knows.
    Ready,
    /// Nobody took it, and its pod was asked: it is nobody's until that answers.
    Asked,
    /// That has answered: it is among those of its pod again, for some time, as they are few.
    Kept,
}

impl Parking {
    /// Whether it is among those of its pod.
    fn is_listed(self) -> bool {
        matches!(self, Self::Fresh | Self::Ready | Self::Kept)
    }
}

/// One closing leg.
#[derive(Clone)]
pub(crate) struct ClosingLeg {
    pub(crate) leg: Leg,
    /// Sequence number of our FIN: behind the last byte that the pod has, as far as is known.
    pub(crate) fin: SeqNumber,
    /// Between these two is what the pod may have: it was sent some bytes of which nothing was
    /// heard.
    pub(crate) from: SeqNumber,
    pub(crate) reached: SeqNumber,
    /// Next byte of the pod's.
    pub(crate) ack: SeqNumber,
    pub(crate) window: u16,
    pub(crate) stamps: Option<(u32, u32)>,
    /// FINs sent, and those that could not be sent.
    pub(crate) tries: u8,
    pub(crate) held_up: u16,
    pub(crate) fin_acked: bool,
    /// The pod's FIN was seen.
    pub(crate) pod_fin: bool,
    /// It closed before it knew of our close, so that its kernel is left in TIME_WAIT.
    pub(crate) pod_waits: bool,
    /// Its FIN, or what a parked one's pod is sent, waits for its turn to leave for the first time.
    pub(crate) waits: bool,
    pub(crate) parking: Parking,
    /// Of one that is parked: its place among these.
    pub(crate) parked: u16,
    /// The legs that wait before and after it, or the next free slot.
    pub(crate) before: u32,
    pub(crate) next: u32,
}

/// All closing legs: a slab with a free list, and a queue of those that wait for their turn.
pub(crate) struct Closing {
    pub(crate) legs: Box<[ClosingLeg]>,
    parked: Box<[ParkedLeg]>,
    parked_free: u16,
    pub(crate) free: u32,
    pub(crate) used: u32,
    /// How many each backend has.
    of_backend: Box<[u32]>,
    pub(crate) first: u32,
    pub(crate) last: u32,
    pub(crate) waiting: u32,
    /// The most that waited at once since none did: so many leave in [`CLOSE_WITHIN_US`].
    pub(crate) most: u32,
    /// When the next ones leave.
    pub(crate) pace_us: u64,
}

impl Closing {
    pub(crate) fn new(limit: u32, backends: usize) -> Self {
        let legs = (0..limit)
            .map(|i| ClosingLeg {
                leg: Leg::NONE,
                fin: SeqNumber(0),
                from: SeqNumber(0),
                reached: SeqNumber(0),
                ack: SeqNumber(0),
                window: 0,
                stamps: None,
                tries: 0,
                held_up: 0,
                fin_acked: false,
                pod_fin: false,
                pod_waits: false,
                waits: false,
                parking: Parking::No,
                parked: NOWHERE,
                before: NONE,
                next: if i + 1 < limit { i + 1 } else { NONE },
            })
            .collect();
        // No more than half of all, so that flows can always leave their pods.
        let count = (limit / 2).min(PARKED_MAX) as u16;
        let parked = (1..=count).map(|next| ParkedLeg {
            later: if next < count { next } else { NOWHERE },
            ..ParkedLeg::new(Promises::default(), 0, 0)
        });
        Self {
            legs,
            parked: parked.collect(),
            parked_free: if count == 0 { NOWHERE } else { 0 },
            free: 0,
            used: 0,
            of_backend: vec![0; backends].into(),
            first: NONE,
            last: NONE,
            waiting: 0,
            most: 0,
            pace_us: 0,
        }
    }

    /// When the next ones leave, if any wait.
    pub(crate) fn due_us(&self) -> Option<u64> {
        (self.waiting > 0).then_some(self.pace_us)
    }

    /// Whether a leg waits for its turn.
    pub(crate) fn waits(&self, id: u32) -> bool {
        self.legs[id as usize].waits
    }

    pub(crate) fn queue(&mut self, id: u32) {
        let last = std::mem::replace(&mut self.last, id);
        let leg = &mut self.legs[id as usize];
        (leg.waits, leg.before, leg.next) = (true, last, NONE);
        match self.legs.get_mut(last as usize) {
            Some(last) => last.next = id,
            None => self.first = id,
        }
        self.waiting += 1;
        self.most = self.most.max(self.waiting);
    }

    pub(crate) fn unqueue(&mut self, id: u32) {
        let leg = &mut self.legs[id as usize];
        if !std::mem::replace(&mut leg.waits, false) {
            return;
        }
        let (before, next) = (leg.before, leg.next);
        match self.legs.get_mut(before as usize) {
            Some(before) => before.next = next,
            None => self.first = next,
        }
        match self.legs.get_mut(next as usize) {
            Some(next) => next.before = before,
            None => self.last = before,
        }
        self.waiting -= 1;
        if self.waiting == 0 {
            self.most = 0;
        }
    }

    /// Whether one more may be parked.
    pub(crate) fn may_park(&self) -> bool {
        self.parked_free != NOWHERE
    }

    /// A leg is parked, as the last one of its pod. There is room. `acked`: the pod knows that its
    /// last response arrived.
    pub(crate) fn park(&mut self, id: u32, parked: ParkedLeg, acked: bool, at_pod: &mut Parked) {
        let at = self.parked_free;
        let Some(place) = self.parked.get_mut(usize::from(at)) else {
            return;
        };
        self.parked_free = place.later;
        *place = ParkedLeg { closing: id, ..parked };
        let leg = &mut self.legs[id as usize];
        leg.parking = if acked { Parking::Ready } else { Parking::Fresh };
        leg.parked = at;
        self.list(at, at_pod);
    }

    /// A parked leg's pod is asked.
    pub(crate) fn asked(&mut self, id: u32, at_pod: &mut Parked) {
        let leg = &mut self.legs[id as usize];
        let at = leg.parked;
        if std::mem::replace(&mut leg.parking, Parking::Asked).is_listed() {
            self.unlist(at, at_pod);
        }
    }

    /// And has answered.
    pub(crate) fn kept(&mut self, id: u32, at_pod: &mut Parked) {
        let leg = &mut self.legs[id as usize];
        leg.parking = Parking::Kept;
        let at = leg.parked;
        self.list(at, at_pod);
    }

    /// The leg is not parked any more.
    pub(crate) fn unpark(&mut self, id: u32, at_pod: &mut Parked) {
        let leg = &mut self.legs[id as usize];
        let parking = std::mem::replace(&mut leg.parking, Parking::No);
        let at = std::mem::replace(&mut leg.parked, NOWHERE);
        if parking.is_listed() {
            self.unlist(at, at_pod);
        }
        if let Some(place) = self.parked.get_mut(usize::from(at)) {
            place.later = std::mem::replace(&mut self.parked_free, at);
        }
    }

    /// Puts a place behind the others of its pod.
    fn list(&mut self, at: u16, at_pod: &mut Parked) {
        let earlier = std::mem::replace(&mut at_pod.first, at);
        at_pod.count += 1;
        let place = &mut self.parked[usize::from(at)];
        (place.later, place.earlier) = (NOWHERE, earlier);
        if let Some(earlier) = self.parked.get_mut(usize::from(earlier)) {
            earlier.later = at;
        }
    }

    fn unlist(&mut self, at: u16, at_pod: &mut Parked) {
        let place = &self.parked[usize::from(at)];
        let (later, earlier) = (place.later, place.earlier);
        match self.parked.get_mut(usize::from(later)) {
            Some(later) => later.earlier = earlier,
            None => at_pod.first = earlier,
        }
        if let Some(earlier) = self.parked.get_mut(usize::from(earlier)) {
            earlier.later = later;
        }
        at_pod.count -= 1;
    }

    /// Those that are ready at a pod, the last one first.
    pub(crate) fn parked(&self, parked: &Parked) -> impl Iterator<Item = &ParkedLeg> {
        let mut at = parked.first;
        std::iter::from_fn(move || {
            let place = self.parked.get(usize::from(at))?;
            at = place.earlier;
            Some(place)
        })
    }

    /// How long the application of a leg's pod may take to close its side (ms). Where a pod has
    /// more legs than all others have room for, less: applications that never close had kept the
    /// flows of all policies from leaving their pods.
    pub(crate) fn wait_ms(&self, id: u32) -> u64 {
        let backend = usize::from(self.leg(id).backend);
        let room = self.limit() - self.used;
        match self.of_backend.get(backend) {
            Some(legs) if *legs > room => CLOSE_WAIT_CROWDED_MS,
            _ => CLOSE_WAIT_MS,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free == NONE
    }

    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    pub(crate) fn limit(&self) -> u32 {
        self.legs.len() as u32
    }

    /// The leg in a slot.
    pub(crate) fn leg(&self, id: u32) -> Leg {
        self.legs[id as usize].leg
    }

    pub(crate) fn insert(&mut self, mut leg: ClosingLeg) -> Option<u32> {
        let id = self.free;
        let slot = self.legs.get_mut(id as usize)?;
        self.free = slot.next;
        leg.next = NONE;
        if let Some(count) = self.of_backend.get_mut(usize::from(leg.leg.backend)) {
            *count += 1;
        }
        *slot = leg;
        self.used += 1;
        Some(id)
    }

    pub(crate) fn remove(&mut self, id: u32) -> Leg {
        self.unqueue(id);
        let slot = &mut self.legs[id as usize];
        debug_assert_eq!(slot.parking, Parking::No, "in its pod's list");
        slot.next = self.free;
        self.free = id;
        self.used -= 1;
        let leg = std::mem::replace(&mut slot.leg, Leg::NONE);
        if let Some(count) = self.of_backend.get_mut(usize::from(leg.backend)) {
            *count -= 1;
        }
        leg
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One pod's applications never close. Those of another have their time, and there is room.
    #[test]
    fn a_pod_with_more_than_its_part_waits_less() {
        let mut closing = Closing::new(100, 2);
        let insert = |closing: &mut Closing, backend| {
            let mut leg = closing.legs[0].clone();
            leg.leg = Leg { backend, port: 1 };
            closing.insert(leg).expect("room")
        };
        let waits: Vec<_> = (0..60)
            .map(|_| {
                let id = insert(&mut closing, 0);
                closing.wait_ms(id)
            })
            .collect();
        assert!(waits[..50].iter().all(|ms| *ms == CLOSE_WAIT_MS));
        assert!(waits[50..].iter().all(|ms| *ms == CLOSE_WAIT_CROWDED_MS));
        let other = insert(&mut closing, 1);
        assert_eq!(closing.wait_ms(other), CLOSE_WAIT_MS);
        // What ended counts no more.
        for id in 0..30 {
            closing.remove(id);
        }
        let again = insert(&mut closing, 0);
        assert_eq!(closing.wait_ms(again), CLOSE_WAIT_MS);
    }
}
