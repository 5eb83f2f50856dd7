//! Deadlines of table entries: a hashed timing wheel with ticks of one millisecond.
//!
//! Owns which entry is due when, in a fixed side table indexed by the entry's id, so that arming,
//! re-arming and cancelling cost a few memory accesses and never allocate. It never reads a clock
//! and never knows what a deadline means.

/// Slots of one turn: 4096 ms, longer than every timer that is armed often (retries, probes), so
/// that only idle timeouts are looked at more than once before they fire.
const SLOTS: usize = 4096;
const SLOT_MASK: u64 = SLOTS as u64 - 1;
/// The list of entries that are due already, beside the lists of the slots.
const DUE: usize = SLOTS;
/// End of a list.
const NONE: u32 = u32::MAX;
/// In `prev`: the entry is the first of the list whose number is in the lower bits.
const HEAD: u32 = 1 << 31;

/// Where an entry is linked and when it is due. 16 bytes.
#[derive(Clone, Copy)]
struct Link {
    next: u32,
    /// The entry before, or `HEAD` and the list's number, or `NONE` when not armed.
    prev: u32,
    at_ms: u64,
}

/// The timing wheel. Time never goes back: `now_ms` of a call is at least that of the call before.
pub(crate) struct Wheel {
    links: Box<[Link]>,
    heads: Box<[u32]>,
    /// One bit for each slot that holds an entry, and one bit for each word of those that is not 0.
    occupied: [u64; SLOTS / 64],
    occupied_words: u64,
    /// The first tick whose slot was not visited yet: all that was due before is in the due list.
    cursor_ms: u64,
}

impl Wheel {
    /// A wheel for the ids `0..entries`, none of them armed. The only place that allocates.
    pub(crate) fn new(entries: usize) -> Self {
        assert!(entries < HEAD as usize, "an id must leave the top bit free");
        Self {
            links: vec![
                Link {
                    next: NONE,
                    prev: NONE,
                    at_ms: 0
                };
                entries
            ]
            .into_boxed_slice(),
            heads: vec![NONE; SLOTS + 1].into_boxed_slice(),
            occupied: [0; SLOTS / 64],
            occupied_words: 0,
            cursor_ms: 0,
        }
    }

    /// Arms `id` for `at_ms`, or moves its deadline there. A time that has passed is due at once,
    /// also inside a loop over [`Wheel::pop_due`]: such a loop arms later than its `now_ms`.
    pub(crate) fn arm(&mut self, id: u32, at_ms: u64) {
        self.cancel(id);
        self.links[id as usize].at_ms = at_ms;
        let list = if at_ms < self.cursor_ms {
            DUE
        } else {
            (at_ms & SLOT_MASK) as usize
        };
        self.link(id, list);
    }

    /// Disarms `id`; no effect if it is not armed.
    pub(crate) fn cancel(&mut self, id: u32) {
        let Link { next, prev, .. } = self.links[id as usize];
        if prev == NONE {
            return;
        }
        if next != NONE {
            self.links[next as usize].prev = prev;
        }
        if prev & HEAD == 0 {
            self.links[prev as usize].next = next;
        } else {
            self.set_head((prev & !HEAD) as usize, next);
        }
        self.links[id as usize].prev = NONE;
    }

    /// Whether `id` has a deadline that did not fire yet.
    pub(crate) fn is_armed(&self, id: u32) -> bool {
        self.links[id as usize].prev != NONE
    }

    /// The next expired id, disarmed before it is returned; `None` when all that is due is done.
    /// Within one tick, ids come in the order in which they were armed. After a jump of more than
    /// one turn, ids whose deadlines differ may come in any order.
    ///
    /// Each occupied slot is visited once per turn, and each visit moves or keeps every entry of
    /// it once, so an entry costs one look per turn that it waits.
    pub(crate) fn pop_due(&mut self, now_ms: u64) -> Option<u32> {
        loop {
            let id = self.heads[DUE];
            if id != NONE {
                self.cancel(id);
                return Some(id);
            }
            if self.cursor_ms > now_ms {
                return None;
            }
            // After a jump, the last turn alone covers every slot.
            self.cursor_ms = self.cursor_ms.max(now_ms.saturating_sub(SLOT_MASK));
            match self.next_occupied_ms() {
                Some(tick_ms) if tick_ms <= now_ms => {
                    self.collect((tick_ms & SLOT_MASK) as usize, now_ms);
                    self.cursor_ms = tick_ms.saturating_add(1);
                }
                _ => {
                    self.cursor_ms = now_ms.saturating_add(1);
                    return None;
                }
            }
        }
    }

    /// When to call [`Wheel::pop_due`] next: never later than the next deadline, and at most one
    /// turn ahead, earlier where a slot holds only entries of later turns. If something is overdue
    /// already, a time that has passed.
    pub(crate) fn next_due_ms(&self) -> Option<u64> {
        if self.heads[DUE] != NONE {
            return Some(self.cursor_ms.saturating_sub(1));
        }
        self.next_occupied_ms()
    }

    /// Moves what is due at `now_ms` from a slot to the due list. Both lists are pushed at their
    /// head, so moving restores the order of arming.
    fn collect(&mut self, slot: usize, now_ms: u64) {
        let mut id = self.heads[slot];
        while id != NONE {
            let Link { next, at_ms, .. } = self.links[id as usize];
            if at_ms <= now_ms {
                self.cancel(id);
                self.link(id, DUE);
            }
            id = next;
        }
    }

    fn link(&mut self, id: u32, list: usize) {
        let head = self.heads[list];
        if head != NONE {
            self.links[head as usize].prev = id;
        }
        let link = &mut self.links[id as usize];
        link.next = head;
        link.prev = HEAD | list as u32;
        self.set_head(list, id);
    }

    fn set_head(&mut self, list: usize, id: u32) {
        self.heads[list] = id;
        if list == DUE {
            return;
        }
        let (word, bit) = (list / 64, list % 64);
        if id == NONE {
            self.occupied[word] &= !(1 << bit);
            if self.occupied[word] == 0 {
                self.occupied_words &= !(1 << word);
            }
        } else {
            self.occupied[word] |= 1 << bit;
            self.occupied_words |= 1 << word;
        }
    }

    /// The tick at which the first occupied slot at or after the cursor is visited.
    fn next_occupied_ms(&self) -> Option<u64> {
        if self.occupied_words == 0 {
            return None;
        }
        let start = (self.cursor_ms & SLOT_MASK) as usize;
        let (word, bit) = (start / 64, start % 64);
        let here = self.occupied[word] & (u64::MAX << bit);
        let slot = if here != 0 {
            word * 64 + here.trailing_zeros() as usize
        } else {
            // The words after this one in a circle; this one comes last, for its lower bits.
            let ahead = self
                .occupied_words
                .rotate_right((word as u32 + 1) % 64)
                .trailing_zeros();
            let found = (word + 1 + ahead as usize) % 64;
            found * 64 + self.occupied[found].trailing_zeros() as usize
        };
        Some(
            self.cursor_ms
                .saturating_add((slot.wrapping_sub(start) & (SLOTS - 1)) as u64),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const TURN_MS: u64 = SLOTS as u64;

    fn drain(wheel: &mut Wheel, now_ms: u64) -> Vec<u32> {
        std::iter::from_fn(|| wheel.pop_due(now_ms)).collect()
    }

    #[test]
    fn an_entry_is_16_bytes() {
        assert_eq!(size_of::<Link>(), 16);
    }

    #[test]
    fn fires_at_its_time_and_once() {
        let mut wheel = Wheel::new(4);
        assert_eq!(wheel.next_due_ms(), None);
        wheel.arm(2, 10);
        assert!(wheel.is_armed(2));
        assert_eq!(wheel.next_due_ms(), Some(10));
        assert_eq!(wheel.pop_due(9), None);
        assert_eq!(wheel.pop_due(10), Some(2));
        assert!(!wheel.is_armed(2));
        assert_eq!(wheel.pop_due(10), None);
        assert_eq!(wheel.next_due_ms(), None);
    }

    #[test]
    fn same_tick_fires_in_the_order_of_arming() {
        let mut wheel = Wheel::new(8);
        for id in [5, 1, 7, 3] {
            wheel.arm(id, 100);
        }
        wheel.cancel(7);
        assert_eq!(drain(&mut wheel, 100), [5, 1, 3]);
    }

    #[test]
    fn a_past_deadline_is_due_at_once() {
        let mut wheel = Wheel::new(2);
        assert_eq!(wheel.pop_due(50), None);
        wheel.arm(0, 50);
        wheel.arm(1, 7);
        assert_eq!(wheel.next_due_ms(), Some(50));
        let mut fired = drain(&mut wheel, 50);
        fired.sort_unstable();
        assert_eq!(fired, [0, 1]);
    }

    #[test]
    fn entries_of_a_later_turn_stay() {
        let mut wheel = Wheel::new(2);
        wheel.arm(0, 5);
        wheel.arm(1, 5 + 3 * TURN_MS);
        assert_eq!(drain(&mut wheel, 5), [0]);
        for turn in 1..3 {
            assert_eq!(wheel.pop_due(5 + turn * TURN_MS), None);
            assert!(wheel.next_due_ms() <= Some(5 + 3 * TURN_MS));
        }
        assert_eq!(wheel.pop_due(4 + 3 * TURN_MS), None);
        assert_eq!(wheel.pop_due(5 + 3 * TURN_MS), Some(1));
    }

    #[test]
    fn the_ends_of_time_are_harmless() {
        let mut wheel = Wheel::new(2);
        wheel.arm(0, 0);
        wheel.arm(1, u64::MAX);
        assert_eq!(drain(&mut wheel, 0), [0]);
        assert_eq!(wheel.pop_due(u64::MAX - 1), None);
        assert_eq!(drain(&mut wheel, u64::MAX), [1]);
        assert_eq!(wheel.pop_due(u64::MAX), None);
        wheel.arm(0, 3);
        assert_eq!(drain(&mut wheel, u64::MAX), [0]);
    }

    /// A caller that sleeps until `next_due_ms` serves every deadline on the millisecond.
    #[test]
    fn following_next_due_is_never_late() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut wheel = Wheel::new(500);
        let mut deadlines = vec![0; 500];
        for (id, at_ms) in (0..).zip(&mut deadlines) {
            *at_ms = rng.u64(0..6 * TURN_MS);
            wheel.arm(id, *at_ms);
        }
        let (mut fired, mut wakeups, mut last_ms) = (0, 0, None);
        while let Some(now_ms) = wheel.next_due_ms() {
            assert!(last_ms < Some(now_ms), "no busy loop: time moves on");
            last_ms = Some(now_ms);
            wakeups += 1;
            while let Some(id) = wheel.pop_due(now_ms) {
                assert_eq!(deadlines[id as usize], now_ms);
                fired += 1;
            }
        }
        assert_eq!(fired, 500);
        assert!(
            wakeups <= 500 * 6,
            "{wakeups} wake-ups: at most one per entry and turn"
        );
    }

    #[derive(Debug, Clone)]
    enum Op {
        Arm {
            id: u32,
            offset_ms: i64,
        },
        Cancel {
            id: u32,
        },
        /// Time moves on, then up to `pops` expired ids are taken.
        Advance {
            by_ms: u64,
            pops: usize,
        },
    }

    fn op() -> impl Strategy<Value = Op> {
        let offset_ms = prop_oneof![
            4 => 0..200_i64,
            2 => 0..3 * TURN_MS as i64,
            1 => 0..100 * TURN_MS as i64,
            1 => -300..0_i64,
        ];
        let by_ms = prop_oneof![
            4 => 0..50_u64,
            2 => 0..2 * TURN_MS,
            1 => TURN_MS - 2..TURN_MS + 2,
            1 => 0..1_000 * TURN_MS,
        ];
        let pops = prop_oneof![3 => Just(usize::MAX), 1 => 0..4_usize];
        prop_oneof![
            6 => (0..40_u32, offset_ms).prop_map(|(id, offset_ms)| Op::Arm { id, offset_ms }),
            1 => (0..40_u32).prop_map(|id| Op::Cancel { id }),
            3 => (by_ms, pops).prop_map(|(by_ms, pops)| Op::Advance { by_ms, pops }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn agrees_with_a_sorted_map(start_ms in 0..1_u64 << 40, ops in prop::collection::vec(op(), 1..120)) {
            let mut wheel = Wheel::new(40);
            let mut oracle: BTreeMap<u32, u64> = BTreeMap::new();
            let mut now_ms = start_ms;
            prop_assert_eq!(wheel.pop_due(now_ms), None);
            for op in ops {
                match op {
                    Op::Arm { id, offset_ms } => {
                        let at_ms = now_ms.saturating_add_signed(offset_ms);
                        wheel.arm(id, at_ms);
                        oracle.insert(id, at_ms);
                    }
                    Op::Cancel { id } => {
                        wheel.cancel(id);
                        oracle.remove(&id);
                    }
                    Op::Advance { by_ms, pops } => {
                        // Across less than a turn and with nothing overdue, order is promised too.
                        let ordered = by_ms < TURN_MS && oracle.values().all(|at_ms| *at_ms > now_ms);
                        now_ms += by_ms;
                        let mut last_ms = 0;
                        let mut left = pops;
                        while left > 0 && let Some(id) = wheel.pop_due(now_ms) {
                            left -= 1;
                            let at_ms = oracle.remove(&id);
                            prop_assert!(at_ms.is_some_and(|at_ms| at_ms <= now_ms), "{id} at {at_ms:?}");
                            prop_assert!(!ordered || at_ms >= Some(last_ms));
                            last_ms = at_ms.unwrap_or(0);
                        }
                        if left > 0 {
                            prop_assert!(oracle.values().all(|at_ms| *at_ms > now_ms), "one was missed");
                            prop_assert!(wheel.next_due_ms().is_none_or(|next_ms| next_ms > now_ms));
                        }
                    }
                }
                for id in 0..40 {
                    prop_assert_eq!(wheel.is_armed(id), oracle.contains_key(&id));
                }
                match (wheel.next_due_ms(), oracle.values().min()) {
                    (None, None) => {}
                    (Some(next_ms), Some(&true_ms)) => {
                        prop_assert!(next_ms <= true_ms.max(now_ms), "{} {}", next_ms, true_ms);
                        prop_assert!(next_ms <= now_ms + TURN_MS);
                    }
                    other => prop_assert!(false, "{other:?}"),
                }
            }
        }
    }
}
