//! Copies of segments: of a client's that may have to be sent again, to another backend, or that
//! wait to be sent (`backlog`); of either side's that came ahead of missing ones (`early`).
//!
//! Owns one slab of fixed slots for all flows, the lists of what each flow keeps, and the order in
//! which incomplete requests began. It never looks into a segment, never allocates after
//! construction, and refuses rather than grows.
//!
//! # Decisions
//!
//! - **Slots have two sizes** (`slots`): of `limits.keptSegments`, three quarters have 576 bytes
//!   and one quarter 1,600. Most requests are smaller than half a frame, and with slots of 1,600
//!   bytes alone 16,384 took 27 MB; now 14. A short copy takes a long slot where no short one is
//!   free. A copy that outgrows its slot stays as it is, and what follows begins another. Limits
//!   that are parts of the pool are the same parts of its long slots, so that full frames of one
//!   client, or those that wait for a window, leave room for others' too. A list has slots of both
//!   sizes, so it is given back slot by slot: as many steps as its copies took. Rejected: cutting
//!   full frames into pieces of 576 bytes, which would be sent again so.

use crate::{
    containers::slots::{KEPT_BYTES, SHORT_BYTES, Slots},
    ids::FlowId,
};

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
    /// In a list's first slot: how many the list has, and how many of these are long.
    count: u16,
    long: u16,
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
    /// Short slots, and long ones behind them.
    slab: Box<[u8]>,
    slots: Box<[Slot]>,
    all: Slots,
    /// How many are short.
    short: u32,
    /// The first free short one and the first free long one.
    free: [u32; 2],
    used: Slots,
    /// First slots of incomplete requests.
    oldest: u32,
    newest: u32,
}

impl Kept {
    /// A pool for `count` segments. The only place that allocates.
    pub(crate) fn new(count: u32) -> Self {
        assert!(count < NONE, "slot numbers are 32 bits wide");
        let long = Slots::of_pool(count).long;
        let short = count - long;
        // Each list of free ones ends with the last of its kind.
        let next = |at: u32| match at + 1 {
            next if next == short || next == count => NONE,
            next => next,
        };
        let slot = |at| Slot {
            next: next(at),
            tail: NONE,
            bytes: 0,
            count: 0,
            long: 0,
            flow: NONE,
            before: NONE,
            after: NONE,
        };
        let first = |at, of| if of == 0 { NONE } else { at };
        let bytes = short as usize * SHORT_BYTES + long as usize * KEPT_BYTES;
        Self {
            slab: vec![0; bytes].into_boxed_slice(),
            slots: (0..count).map(slot).collect(),
            all: Slots { all: count, long },
            short,
            free: [first(0, short), first(short, long)],
            used: Slots::default(),
            oldest: NONE,
            newest: NONE,
        }
    }

    fn is_long(&self, slot: u32) -> bool {
        slot >= self.short
    }

    /// Where a slot's bytes begin.
    #[inline]
    fn place(&self, slot: u32) -> usize {
        match slot.checked_sub(self.short) {
            None => slot as usize * SHORT_BYTES,
            Some(long) => self.short as usize * SHORT_BYTES + long as usize * KEPT_BYTES,
        }
    }

    /// The slots that so many copies would take now, if there is room: short ones take long slots
    /// where no short ones are free.
    #[inline]
    pub(crate) fn takes(&self, copies: Slots) -> Option<Slots> {
        let short = copies.all - copies.long;
        let short_free = self.short - (self.used.all - self.used.long);
        let takes = Slots { all: copies.all, long: copies.long + short.saturating_sub(short_free) };
        self.used.have_room(takes, self.all).then_some(takes)
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
        let last = first.tail;
        let at = self.place(last);
        let room = if self.is_long(last) { KEPT_BYTES } else { SHORT_BYTES };
        let last = &mut self.slots[last as usize];
        let longer = change(&mut self.slab[at..at + room], usize::from(last.bytes));
        if let Some(bytes) = longer {
            last.bytes = bytes as u16;
        }
        longer.is_some()
    }

    /// Whether [`Self::push`] would keep so many more copies.
    pub(crate) fn has_room(&self, list: KeptList, copies: Slots, max: u16) -> bool {
        let more = u32::from(max.saturating_sub(self.count(list)));
        copies.all <= more && self.takes(copies).is_some()
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
        // A short copy takes a long slot where no short one is free.
        let is_long = frame.len() > SHORT_BYTES || self.free[0] == NONE;
        let slot = self.free[usize::from(is_long)];
        let (tail, count, long) = match self.slots.get(list.head as usize) {
            Some(first) => (first.tail, first.count, first.long),
            None => (NONE, 0, 0),
        };
        if slot == NONE || frame.len() > KEPT_BYTES || count >= max {
            return false;
        }
        // Mostly the newest one comes last.
        let (mut before, mut next) = (tail, NONE);
        if tail != NONE && comes_later(self.copy(tail)) {
            (before, next) = (NONE, list.head);
            while next != NONE && !comes_later(self.copy(next)) {
                before = next;
                next = self.slots[next as usize].next;
            }
        }
        self.free[usize::from(is_long)] = self.slots[slot as usize].next;
        let at = self.place(slot);
        self.slab[at..at + frame.len()].copy_from_slice(frame);
        self.slots[slot as usize] = Slot {
            next,
            tail: NONE,
            bytes: frame.len() as u16,
            count: 0,
            long: 0,
            flow: NONE,
            before: NONE,
            after: NONE,
        };
        match self.slots.get_mut(before as usize) {
            Some(before) => before.next = slot,
            None => list.head = slot,
        }
        let first = &mut self.slots[list.head as usize];
        first.tail = if next == NONE { slot } else { tail };
        first.count = count + 1;
        first.long = long + u16::from(is_long);
        self.used.all += 1;
        self.used.long += u32::from(is_long);
        true
    }

    fn copy(&self, slot: u32) -> &[u8] {
        let at = self.place(slot);
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

    /// Gives all segments of `list` back to the pool.
    pub(crate) fn clear(&mut self, list: &mut KeptList) {
        if list.is_empty() {
            return;
        }
        self.is_complete(*list);
        self.used -= self.slots_of(*list);
        let mut slot = std::mem::take(list).head;
        while slot != NONE {
            slot = self.frees(slot);
        }
    }

    /// Puts a slot among the free ones. What was behind it.
    fn frees(&mut self, slot: u32) -> u32 {
        let free = &mut self.free[usize::from(slot >= self.short)];
        let next = std::mem::replace(&mut self.slots[slot as usize].next, *free);
        *free = slot;
        next
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
            head.long += second.long;
            self.slots[tail as usize].next = list.head;
        }
        *list = first;
    }

    /// Gives the first segment of `list` back to the pool. The slot that it had.
    pub(crate) fn pop(&mut self, list: &mut KeptList) -> Slots {
        let Some(first) = self.slots.get(list.head as usize).copied() else {
            return Slots::default();
        };
        let slot = list.head;
        let gives = Slots { all: 1, long: u32::from(self.is_long(slot)) };
        list.head = self.frees(slot);
        self.used -= gives;
        if let Some(second) = self.slots.get_mut(first.next as usize) {
            second.tail = first.tail;
            second.count = first.count - 1;
            second.long = first.long - gives.long as u16;
        }
        gives
    }

    /// How many segments `list` has.
    pub(crate) fn count(&self, list: KeptList) -> u16 {
        self.slots.get(list.head as usize).map_or(0, |first| first.count)
    }

    /// The slots that `list` has.
    pub(crate) fn slots_of(&self, list: KeptList) -> Slots {
        let first = self.slots.get(list.head as usize);
        first.map_or(Slots::default(), |first| Slots {
            all: u32::from(first.count),
            long: u32::from(first.long),
        })
    }

    /// How many segments are kept now, over all flows.
    pub(crate) fn used(&self) -> Slots {
        self.used
    }

    /// How many segments can be kept at a time.
    pub(crate) fn capacity(&self) -> Slots {
        self.all
    }
}

/// The part of all copies that the clients of one network may have.
const NETWORK_PART: u32 = 2;
/// But never less than two requests.
const NETWORK_MIN: u32 = 2 * KEPT_PER_FLOW_MAX as u32;

/// What the clients of one network may have of a pool.
pub(crate) fn network_max(pool: Slots) -> Slots {
    pool.part(NETWORK_PART, NETWORK_MIN)
}

#[cfg(test)]
#[path = "kept_tests.rs"]
mod tests;
