//! Copies of segments: of a client's that may have to be sent again, to another backend, or that
//! wait to be sent (`backlog`); of either side's that came ahead of missing ones (`early`).
//!
//! Owns one slab of fixed slots for all flows, the lists of what each flow keeps, and the order in
//! which incomplete requests began. It never looks into a segment, never allocates after
//! construction, and refuses rather than grows.

use crate::ids::FlowId;

/// Largest copy, in whole cache lines: a full Ethernet frame at the usual MTU of 1500 is 1514
/// bytes, and a segment of 3,000 takes two. Longer segments are kept in pieces.
pub(crate) const KEPT_BYTES: usize = 1600;
/// Most copies that one flow may keep: a request of about 11 KB at the usual MTU.
pub(crate) const KEPT_PER_FLOW_MAX: u16 = 8;

/// No slot.
const NONE: u32 = u32::MAX;

/// Beside each slot's bytes: what comes after it and how much of it is used.
#[derive(Clone, Copy)]
struct Slot {
    /// The next segment of the same flow, or the next free slot.
    next: u32,
    /// In a list's first slot: its last one.
    tail: u32,
    bytes: u16,
    /// In a list's first slot: how many the list has.
    count: u16,
    /// In the first slot of an incomplete request: whose it is, and the first slots of those that
    /// began before and after it.
    flow: FlowId,
    before: u32,
    after: u32,
}

/// What one flow keeps: its first slot. 4 bytes, lives in the flow. It is `Copy` so that a
/// flow can be taken apart, but the flow's own list is the one to push to and to clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptList {
    head: u32,
}

impl Default for KeptList {
    fn default() -> Self {
        Self { head: NONE }
    }
}

impl KeptList {
    /// Whether nothing is kept.
    pub(crate) fn is_empty(self) -> bool {
        self.head == NONE
    }
}

/// The pool of kept segments.
pub(crate) struct Kept {
    slab: Box<[u8]>,
    slots: Box<[Slot]>,
    free: u32,
    used: usize,
    /// First slots of incomplete requests.
    oldest: u32,
    newest: u32,
}

impl Kept {
    /// A pool for `count` segments of [`KEPT_BYTES`]. The only place that allocates.
    pub(crate) fn new(count: usize) -> Self {
        assert!(count < NONE as usize, "slot numbers are 32 bits wide");
        let slot = |next| Slot {
            next,
            tail: NONE,
            bytes: 0,
            count: 0,
            flow: NONE,
            before: NONE,
            after: NONE,
        };
        let slots: Box<[Slot]> = (1..=count)
            .map(|next| slot(if next == count { NONE } else { next as u32 }))
            .collect();
        Self {
            slab: vec![0; count * KEPT_BYTES].into_boxed_slice(),
            slots,
            free: if count == 0 { NONE } else { 0 },
            used: 0,
            oldest: NONE,
            newest: NONE,
        }
    }

    /// Whether so many slots are free.
    #[inline]
    pub(crate) fn has_free(&self, copies: u16) -> bool {
        usize::from(copies) <= self.slots.len() - self.used
    }

    /// What `list` holds is a request of which more is to come: the newest one of these.
    pub(crate) fn is_incomplete(&mut self, list: KeptList, flow: FlowId) {
        let newest = self.newest;
        let Some(slot) = self.slots.get_mut(list.head as usize) else {
            return;
        };
        debug_assert_eq!(slot.flow, NONE);
        (slot.flow, slot.before, slot.after) = (flow, newest, NONE);
        match self.slots.get_mut(newest as usize) {
            Some(last) => last.after = list.head,
            None => self.oldest = list.head,
        }
        self.newest = list.head;
    }

    /// It is complete, or no more of interest.
    #[inline]
    pub(crate) fn is_complete(&mut self, list: KeptList) {
        let Some(slot) = self.slots.get_mut(list.head as usize) else {
            return;
        };
        if slot.flow == NONE {
            return;
        }
        slot.flow = NONE;
        let (before, after) = (slot.before, slot.after);
        match self.slots.get_mut(before as usize) {
            Some(slot) => slot.after = after,
            None => self.oldest = after,
        }
        match self.slots.get_mut(after as usize) {
            Some(slot) => slot.before = before,
            None => self.newest = before,
        }
    }

    /// Flows whose request is incomplete, the one that began first in front.
    pub(crate) fn incomplete(&self) -> impl Iterator<Item = FlowId> {
        let mut at = self.oldest;
        std::iter::from_fn(move || {
            let slot = self.slots.get(at as usize)?;
            at = slot.after;
            Some(slot.flow)
        })
    }

    /// Lets `change` make the last copy of `list` longer: it gets the slot and how much of it is
    /// used, and says how much then is. False if it says nothing.
    pub(crate) fn lengthen_last(
        &mut self,
        list: KeptList,
        change: impl FnOnce(&mut [u8], usize) -> Option<usize>,
    ) -> bool {
        let Some(first) = self.slots.get(list.head as usize) else {
            return false;
        };
        let last = first.tail as usize;
        let at = last * KEPT_BYTES;
        let bytes = usize::from(self.slots[last].bytes);
        let longer = change(&mut self.slab[at..at + KEPT_BYTES], bytes);
        if let Some(bytes) = longer {
            self.slots[last].bytes = bytes as u16;
        }
        longer.is_some()
    }

    /// Whether [`Self::push`] would keep so many more copies.
    pub(crate) fn has_room(&self, list: KeptList, copies: u16, max: u16) -> bool {
        self.has_free(copies) && copies <= max.saturating_sub(self.count(list))
    }

    /// Keeps a copy of `frame` at the end of `list`. False, and nothing changes, if the pool is
    /// empty, the frame is too long or the list has `max` segments.
    #[must_use]
    pub(crate) fn push(&mut self, list: &mut KeptList, frame: &[u8], max: u16) -> bool {
        self.insert(list, frame, max, |_| false)
    }

    /// The same, in front of the first copy that `comes_later`, behind all others.
    #[must_use]
    pub(crate) fn insert(
        &mut self,
        list: &mut KeptList,
        frame: &[u8],
        max: u16,
        comes_later: impl Fn(&[u8]) -> bool,
    ) -> bool {
        if frame.len() > KEPT_BYTES || !self.has_room(*list, 1, max) {
            return false;
        }
        // Mostly the newest one comes last.
        let tail = self.slots.get(list.head as usize).map(|first| first.tail);
        let mut before = tail.filter(|last| !comes_later(self.copy(*last)));
        let mut next = NONE;
        if before.is_none() {
            next = list.head;
            while next != NONE && !comes_later(self.copy(next)) {
                before = Some(next);
                next = self.slots[next as usize].next;
            }
        }
        let slot = self.free;
        let at = slot as usize * KEPT_BYTES;
        self.slab[at..at + frame.len()].copy_from_slice(frame);
        self.free = self.slots[slot as usize].next;
        let (tail, count) = match self.slots.get(list.head as usize) {
            Some(first) => (first.tail, first.count),
            None => (slot, 0),
        };
        self.slots[slot as usize] = Slot {
            next,
            tail: NONE,
            bytes: frame.len() as u16,
            count: 0,
            flow: NONE,
            before: NONE,
            after: NONE,
        };
        match before {
            Some(before) => self.slots[before as usize].next = slot,
            None => list.head = slot,
        }
        let first = &mut self.slots[list.head as usize];
        first.tail = if next == NONE { slot } else { tail };
        first.count = count + 1;
        self.used += 1;
        true
    }

    fn copy(&self, slot: u32) -> &[u8] {
        let at = slot as usize * KEPT_BYTES;
        &self.slab[at..at + usize::from(self.slots[slot as usize].bytes)]
    }

    /// The newest kept segment.
    pub(crate) fn last(&self, list: KeptList) -> Option<&[u8]> {
        let first = self.slots.get(list.head as usize)?;
        Some(self.copy(first.tail))
    }

    /// The kept segments, oldest first.
    pub(crate) fn iter(&self, list: KeptList) -> impl Iterator<Item = &[u8]> {
        let mut slot = list.head;
        std::iter::from_fn(move || {
            let next = self.slots.get(slot as usize)?.next;
            Some(self.copy(std::mem::replace(&mut slot, next)))
        })
    }

    /// Gives all segments of `list` back to the pool, at the cost of one.
    pub(crate) fn clear(&mut self, list: &mut KeptList) {
        if list.is_empty() {
            return;
        }
        self.is_complete(*list);
        self.used -= usize::from(self.count(*list));
        let last = self.slots[list.head as usize].tail;
        self.slots[last as usize].next = self.free;
        self.free = list.head;
        *list = KeptList::default();
    }

    /// Puts all of `first` in front of `list`.
    pub(crate) fn prepend(&mut self, first: KeptList, list: &mut KeptList) {
        debug_assert!(first.head != list.head || first.is_empty());
        if first.is_empty() {
            return;
        }
        self.is_complete(first);
        if let Some(second) = self.slots.get(list.head as usize).copied() {
            let head = &mut self.slots[first.head as usize];
            let tail = std::mem::replace(&mut head.tail, second.tail);
            head.count += second.count;
            self.slots[tail as usize].next = list.head;
        }
        *list = first;
    }

    /// Gives the first segment of `list` back to the pool.
    pub(crate) fn pop(&mut self, list: &mut KeptList) {
        let Some(first) = self.slots.get(list.head as usize).copied() else {
            return;
        };
        self.slots[list.head as usize].next = self.free;
        self.free = list.head;
        self.used -= 1;
        list.head = first.next;
        if let Some(second) = self.slots.get_mut(first.next as usize) {
            second.tail = first.tail;
            second.count = first.count - 1;
        }
    }

    /// How many segments `list` has.
    pub(crate) fn count(&self, list: KeptList) -> u16 {
        self.slots
            .get(list.head as usize)
            .map_or(0, |first| first.count)
    }

    /// How many segments are kept now, over all flows.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// How many segments can be kept at a time.
    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }
}

/// The part of all copies that the clients of one network may have.
const NETWORK_PART: u32 = 2;
/// But never less than two requests.
const NETWORK_MIN: u32 = 2 * KEPT_PER_FLOW_MAX as u32;

/// How many copies the clients of one network may have, of so many.
pub(crate) fn network_max(kept_segments: u32) -> u32 {
    (kept_segments / NETWORK_PART).max(NETWORK_MIN)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kept_frames(kept: &Kept, list: KeptList) -> Vec<Vec<u8>> {
        kept.iter(list).map(<[u8]>::to_vec).collect()
    }

    #[test]
    fn a_list_goes_in_front_of_another() {
        let mut kept = Kept::new(5);
        let mut lists = [KeptList::default(); 2];
        for (list, frame) in [(0, b"1"), (0, b"2"), (1, b"3"), (1, b"4")] {
            assert!(kept.push(&mut lists[list], frame, KEPT_PER_FLOW_MAX));
        }
        let [first, mut list] = lists;
        kept.is_incomplete(first, 7);
        kept.prepend(first, &mut list);
        kept.prepend(KeptList::default(), &mut list);
        assert!(kept.push(&mut list, b"5", KEPT_PER_FLOW_MAX));
        assert_eq!(kept_frames(&kept, list), [b"1", b"2", b"3", b"4", b"5"]);
        assert_eq!((kept.count(list), kept.incomplete().count()), (5, 0));
        for left in (0..5).rev() {
            kept.pop(&mut list);
            assert_eq!((kept.count(list), kept.used()), (left, usize::from(left)));
        }
        let mut empty = KeptList::default();
        assert!(kept.push(&mut list, b"6", KEPT_PER_FLOW_MAX));
        kept.prepend(list, &mut empty);
        assert_eq!(kept_frames(&kept, empty), [b"6"]);
    }

    #[test]
    fn a_list_is_4_bytes() {
        assert_eq!(size_of::<KeptList>(), 4);
    }

    #[test]
    fn keeps_copies_in_order_and_gives_them_back() {
        let mut kept = Kept::new(3);
        let mut list = KeptList::default();
        assert!(list.is_empty() && kept_frames(&kept, list).is_empty());
        for frame in [&b"GET / "[..], b"", b"HTTP/1.1"] {
            assert!(kept.push(&mut list, frame, KEPT_PER_FLOW_MAX));
        }
        assert_eq!(kept_frames(&kept, list), [&b"GET / "[..], b"", b"HTTP/1.1"]);
        assert_eq!((kept.used(), kept.capacity(), kept.count(list)), (3, 3, 3));
        kept.clear(&mut list);
        assert!(list.is_empty() && kept_frames(&kept, list).is_empty());
        assert_eq!(kept.used(), 0);
        kept.clear(&mut list);
        assert_eq!(kept.used(), 0);
    }

    #[test]
    fn refuses_what_is_too_long() {
        let mut kept = Kept::new(1);
        let mut list = KeptList::default();
        assert!(!kept.push(&mut list, &[1; KEPT_BYTES + 1], KEPT_PER_FLOW_MAX));
        assert!(list.is_empty());
        assert!(kept.push(&mut list, &[2; KEPT_BYTES], KEPT_PER_FLOW_MAX));
        assert_eq!(kept_frames(&kept, list), [[2; KEPT_BYTES]]);
    }

    #[test]
    fn refuses_more_than_a_flow_may_keep() {
        let mut kept = Kept::new(20);
        let mut list = KeptList::default();
        for number in 0..KEPT_PER_FLOW_MAX {
            assert!(kept.push(&mut list, &[number as u8], KEPT_PER_FLOW_MAX));
        }
        assert!(!kept.push(&mut list, b"one more", KEPT_PER_FLOW_MAX));
        assert_eq!(kept_frames(&kept, list).len(), 8);
        assert_eq!(kept.used(), 8);
    }

    #[test]
    fn refuses_when_the_pool_is_empty() {
        let mut kept = Kept::new(2);
        let (mut first, mut second) = (KeptList::default(), KeptList::default());
        assert!(
            kept.push(&mut first, b"a", KEPT_PER_FLOW_MAX)
                && kept.push(&mut second, b"b", KEPT_PER_FLOW_MAX)
        );
        assert!(!kept.push(&mut first, b"c", KEPT_PER_FLOW_MAX));
        kept.clear(&mut second);
        assert!(kept.push(&mut first, b"c", KEPT_PER_FLOW_MAX));
        assert_eq!(kept_frames(&kept, first), [b"a", b"c"]);

        let mut nothing = Kept::new(0);
        assert!(!nothing.push(&mut second, b"d", KEPT_PER_FLOW_MAX));
        assert_eq!((nothing.used(), nothing.capacity()), (0, 0));
    }

    #[test]
    fn a_list_that_is_used_for_ever_counts_right() {
        let mut kept = Kept::new(3);
        let mut list = KeptList::default();
        assert!(kept.push(&mut list, b"a", 3));
        for _ in 0..70_000 {
            assert!(kept.push(&mut list, b"b", 3) && kept.push(&mut list, b"c", 3));
            assert!(!kept.has_room(list, 1, 3));
            kept.pop(&mut list);
            kept.pop(&mut list);
            assert_eq!((kept.count(list), kept.used()), (1, 1));
        }
        kept.pop(&mut list);
        kept.pop(&mut list);
        assert!(list.is_empty() && kept.used() == 0 && kept.count(list) == 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn agrees_with_vectors(
            ops in prop::collection::vec((0..6_usize, 0..6_u8, 0..64_usize), 1..200),
        ) {
            const SLOTS: usize = 13;
            let mut kept = Kept::new(SLOTS);
            let mut lists = [KeptList::default(); 6];
            let mut model: [Vec<Vec<u8>>; 6] = Default::default();
            for (number, (flow, kind, bytes)) in ops.into_iter().enumerate() {
                if kind == 0 {
                    kept.clear(&mut lists[flow]);
                    model[flow].clear();
                } else if kind == 1 {
                    kept.pop(&mut lists[flow]);
                    if !model[flow].is_empty() {
                        model[flow].remove(0);
                    }
                } else {
                    let frame = vec![number as u8; bytes];
                    let used: usize = model.iter().map(Vec::len).sum();
                    let fits = used < SLOTS && model[flow].len() < usize::from(KEPT_PER_FLOW_MAX);
                    // By length, or behind all.
                    let later = |kept: &[u8]| kind == 5 && kept.len() > bytes;
                    let list = &mut lists[flow];
                    prop_assert_eq!(kept.insert(list, &frame, KEPT_PER_FLOW_MAX, later), fits);
                    if fits {
                        // As documented, with one short cut: behind the last one if that is not
                        // later.
                        let model = &mut model[flow];
                        let last = model.last().is_none_or(|last| !later(last));
                        let at = model.iter().position(|kept| later(kept)).filter(|_| !last);
                        model.insert(at.unwrap_or(model.len()), frame);
                    }
                }
                for (list, frames) in lists.iter().zip(&model) {
                    prop_assert_eq!(kept.last(*list), frames.last().map(Vec::as_slice));
                }
                for (list, frames) in lists.iter().zip(&model) {
                    prop_assert_eq!(&kept_frames(&kept, *list), frames);
                    prop_assert_eq!(usize::from(kept.count(*list)), frames.len());
                }
                prop_assert_eq!(kept.used(), model.iter().map(Vec::len).sum::<usize>());
            }
        }
    }
}
