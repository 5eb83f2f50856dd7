//! Deadlines of table entries: a hashed timing wheel of two levels, with ticks of one millisecond
//! and of four seconds.
//!
//! Owns which entry is due when, in a fixed side table indexed by the entry's id, so that arming,
//! re-arming and cancelling cost a few memory accesses and never allocate. It never reads a clock
//! and never knows what a deadline means.
//!
//! No call takes longer the more entries are due together: a slot's list is taken over as a whole,
//! and looked through an entry at a time, as many in one call as the caller allows.

use crate::timing::AHEAD_MS;
/// Slots of the first level, one millisecond each: 4,096 ms, longer than every timer that is armed
/// often (retries, probes).
const SLOTS: usize = 4096;
const SLOT_MASK: u64 = SLOTS as u64 - 1;
/// Slots of the second level, one turn of the first each: 2.3 h, longer than a flow idles by
/// default, so that such a timer is looked at twice, when it comes to the first level and when it
/// fires.
const FAR_SLOTS: usize = 2048;
/// Milliseconds of a slot of the second level, as a power of two.
const FAR_SHIFT: u32 = SLOTS.trailing_zeros();
/// Lists, beside those of the slots, first and second level: of entries that are due, and of those
/// on their way to the first level.
const LEVELS: usize = SLOTS + FAR_SLOTS;
const DUE: usize = LEVELS;
const DOWN: usize = LEVELS + 1;
const LISTS: usize = LEVELS + 2;
/// No entry.
const NONE: u32 = u32::MAX;
/// In `next` and `prev`: the entry is the last or first of the list whose number is in the lower
/// bits.
const END: u32 = 1 << 31;

/// Where an entry is linked and when it is due. 16 bytes.
#[derive(Clone, Copy)]
struct Link {
    /// The entry behind, or `END` and the list's number.
    next: u32,
    /// The entry before, or `END` and the list's number, or `NONE` when not armed.
    prev: u32,
    at_ms: u64,
}

/// First and last entry of a list.
#[derive(Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

/// Which slots of a level hold entries: one bit each, and one for each word of those that is not 0.
struct Occupied<const WORDS: usize> {
    words: [u64; WORDS],
    any: u64,
}

impl<const WORDS: usize> Occupied<WORDS> {
    const NONE: Self = Self { words: [0; WORDS], any: 0 };

    fn set(&mut self, slot: usize, on: bool) {
        let (word, bit) = (slot / 64, slot % 64);
        if on {
            self.words[word] |= 1 << bit;
            self.any |= 1 << word;
        } else {
            self.words[word] &= !(1 << bit);
            if self.words[word] == 0 {
                self.any &= !(1 << word);
            }
        }
    }

    /// How far it is, in a circle, from slot `start` to the first one that holds an entry.
    fn distance(&self, start: usize) -> Option<u64> {
        if self.any == 0 {
            return None;
        }
        let (word, bit) = (start / 64, start % 64);
        let here = self.words[word] & (u64::MAX << bit);
        let slot = if here != 0 {
            word * 64 + here.trailing_zeros() as usize
        } else {
            // The words after this one in a circle; this one comes last, for its lower bits.
            let behind = self.any & (u64::MAX << word) & !(1 << word);
            let found = if behind != 0 { behind } else { self.any };
            let found = found.trailing_zeros() as usize;
            found * 64 + self.words[found].trailing_zeros() as usize
        };
        Some((slot.wrapping_sub(start) & (WORDS * 64 - 1)) as u64)
    }
}

/// The timing wheel. Time never goes back: `now_ms` of a call is at least that of the call before.
pub(crate) struct Wheel {
    links: Box<[Link]>,
    lists: Box<[List]>,
    near: Occupied<{ SLOTS / 64 }>,
    far: Occupied<{ FAR_SLOTS / 64 }>,
    /// The first tick whose slot was not taken over yet: all that was due before is in the due
    /// list.
    cursor_ms: u64,
    /// The first slot of the second level, counted from time 0, that was not: all that is due
    /// before is in the first level or on its way there.
    far_cursor: u64,
    /// From when on those on their way to the first level may be due.
    down_ms: u64,
}

impl Wheel {
    /// A wheel for the ids `0..entries`, none of them armed. The only place that allocates.
    pub(crate) fn new(entries: usize) -> Self {
        assert!(entries < END as usize, "an id must leave the top bit free");
        let free = Link { next: NONE, prev: NONE, at_ms: 0 };
        let empty = List { first: NONE, last: NONE };
        Self {
            links: vec![free; entries].into_boxed_slice(),
            lists: vec![empty; LISTS].into_boxed_slice(),
            near: Occupied::NONE,
            far: Occupied::NONE,
            cursor_ms: 0,
            far_cursor: 1,
            down_ms: 0,
        }
    }

    /// Arms `id` for `at_ms`, or moves its deadline there. A time that has passed is due at once,
    /// also inside a loop over [`Wheel::pop_due`]: such a loop arms later than its `now_ms`.
    pub(crate) fn arm(&mut self, id: u32, at_ms: u64) {
        self.cancel(id);
        self.links[id as usize].at_ms = at_ms;
        self.place(id);
    }

    /// Disarms `id`; no effect if it is not armed.
    pub(crate) fn cancel(&mut self, id: u32) {
        let Link { next, prev, .. } = self.links[id as usize];
        if prev == NONE {
            return;
        }
        if next & END == 0 {
            self.links[next as usize].prev = prev;
        } else {
            let last = if prev & END == 0 { prev } else { NONE };
            self.lists[(next & !END) as usize].last = last;
        }
        if prev & END == 0 {
            self.links[prev as usize].next = next;
        } else {
            let list = (prev & !END) as usize;
            let first = if next & END == 0 { next } else { NONE };
            self.lists[list].first = first;
            if first == NONE {
                self.occupy(list, false);
            }
        }
        self.links[id as usize].prev = NONE;
    }

    /// Whether `id` has a deadline that did not fire yet.
    pub(crate) fn is_armed(&self, id: u32) -> bool {
        self.links[id as usize].prev != NONE
    }

    /// The next expired id, disarmed before it is returned; `None` when all that is due is done, or
    /// when `looks`, which each entry that is looked at takes one off, is used up:
    /// [`Wheel::next_due_ms`] has passed then. Ids come in the order of their deadlines, and within
    /// one tick in that in which they were armed. After a jump of more than one turn, ids whose
    /// deadlines differ may come in any order.
    pub(crate) fn pop_due(&mut self, now_ms: u64, looks: &mut u32) -> Option<u32> {
        loop {
            let down = self.lists[DOWN].first;
            if down == NONE {
                if self.take_far(now_ms) {
                    continue;
                }
            } else if now_ms >= self.down_ms {
                Self::look(looks)?;
                self.replace(down);
                continue;
            }
            let id = self.lists[DUE].first;
            if id != NONE {
                Self::look(looks)?;
                if self.links[id as usize].at_ms <= now_ms {
                    self.cancel(id);
                    return Some(id);
                }
                // One of a later turn.
                self.replace(id);
                continue;
            }
            // After a jump, the last turn alone covers every slot.
            self.cursor_ms = self.cursor_ms.max(now_ms.saturating_sub(SLOT_MASK));
            match self.next_tick_ms() {
                Some(tick_ms) if tick_ms <= now_ms => {
                    self.cursor_ms = tick_ms.saturating_add(1);
                    self.take_over((tick_ms & SLOT_MASK) as usize, DUE);
                }
                _ => {
                    self.cursor_ms = self.cursor_ms.max(now_ms.saturating_add(1));
                    if down == NONE {
                        return None;
                    }
                    // They have time still.
                    Self::look(looks)?;
                    self.replace(down);
                }
            }
        }
    }

    /// When to call [`Wheel::pop_due`] next: never later than the next deadline, and earlier where
    /// entries come to the first level. If something is overdue already, a time that has passed.
    pub(crate) fn next_due_ms(&self) -> Option<u64> {
        if self.lists[DUE].first != NONE || self.lists[DOWN].first != NONE {
            return Some(self.cursor_ms.saturating_sub(1));
        }
        let start = (self.far_cursor % FAR_SLOTS as u64) as usize;
        let far = self.far.distance(start).map(|ahead| {
            let far_ms = (self.far_cursor + ahead) << FAR_SHIFT;
            far_ms.saturating_sub(AHEAD_MS)
        });
        self.next_tick_ms().into_iter().chain(far).min()
    }

    /// Takes over the next slot of the second level whose time is near; whether there was one that
    /// holds entries.
    fn take_far(&mut self, now_ms: u64) -> bool {
        // The first one that is not near.
        let end = (now_ms.saturating_add(AHEAD_MS) >> FAR_SHIFT) + 1;
        if self.far_cursor >= end {
            return false;
        }
        // After a jump of more than a turn, the last one alone covers every slot.
        self.far_cursor = self.far_cursor.max(end.saturating_sub(FAR_SLOTS as u64));
        let start = (self.far_cursor % FAR_SLOTS as u64) as usize;
        match self.far.distance(start) {
            Some(ahead) if self.far_cursor + ahead < end => {
                self.down_ms = (self.far_cursor + ahead) << FAR_SHIFT;
                let slot = (start + ahead as usize) % FAR_SLOTS;
                self.far_cursor += ahead + 1;
                self.take_over(SLOTS + slot, DOWN);
                true
            }
            _ => {
                self.far_cursor = end;
                false
            }
        }
    }

    /// One more entry is looked at, if the caller allows.
    fn look(looks: &mut u32) -> Option<()> {
        *looks = looks.checked_sub(1)?;
        Some(())
    }

    /// Moves an entry where its deadline belongs now.
    fn replace(&mut self, id: u32) {
        self.cancel(id);
        self.place(id);
    }

    /// Links an entry where its deadline belongs.
    fn place(&mut self, id: u32) {
        let at_ms = self.links[id as usize].at_ms;
        let far = at_ms >> FAR_SHIFT;
        let list = if at_ms < self.cursor_ms {
            DUE
        } else if far < self.far_cursor {
            (at_ms & SLOT_MASK) as usize
        } else {
            SLOTS + (far % FAR_SLOTS as u64) as usize
        };
        self.link(id, list);
    }

    /// Puts an entry at the end of a list.
    fn link(&mut self, id: u32, list: usize) {
        let end = END | list as u32;
        let last = std::mem::replace(&mut self.lists[list].last, id);
        if last == NONE {
            self.lists[list].first = id;
            self.occupy(list, true);
        } else {
            self.links[last as usize].next = id;
        }
        let link = &mut self.links[id as usize];
        link.next = end;
        link.prev = if last == NONE { end } else { last };
    }

    /// Puts all of one list at the end of another one, whatever their lengths.
    fn take_over(&mut self, from: usize, to: usize) {
        let empty = List { first: NONE, last: NONE };
        let List { first, last } = std::mem::replace(&mut self.lists[from], empty);
        self.occupy(from, false);
        if first == NONE {
            return;
        }
        let end = END | to as u32;
        let before = std::mem::replace(&mut self.lists[to].last, last);
        self.links[last as usize].next = end;
        if before == NONE {
            self.lists[to].first = first;
            self.links[first as usize].prev = end;
        } else {
            self.links[before as usize].next = first;
            self.links[first as usize].prev = before;
        }
    }

    fn occupy(&mut self, list: usize, on: bool) {
        if list < SLOTS {
            self.near.set(list, on);
        } else if list < LEVELS {
            self.far.set(list - SLOTS, on);
        }
    }

    /// The tick at which the first occupied slot of the first level at or after the cursor is taken
    /// over.
    fn next_tick_ms(&self) -> Option<u64> {
        let start = (self.cursor_ms & SLOT_MASK) as usize;
        let ahead = self.near.distance(start)?;
        Some(self.cursor_ms.saturating_add(ahead))
    }
}

#[cfg(test)]
#[path = "wheel_tests.rs"]
mod tests;
