//! The leg ports of one backend: which of the dataplane's own ports are free towards it.
//!
//! Owns the order in which free ports are used and the quarantine of those given back. It never
//! hands out a port twice, and never before its time. It never allocates after construction.

use std::ops::RangeInclusive;

/// End of a list; an offset never has this value because port 0 is left out.
const NONE: u16 = u16::MAX;

/// Free ports in the order of `free_at_ms`.
#[derive(Clone, Copy)]
struct Queue {
    head: u16,
    tail: u16,
}

/// The ports of one backend.
///
/// Two queues share one table of slots. Each stays ordered by the time from which its ports are
/// free, so taking looks at two heads only. Ports with the constant normal quarantine and ports
/// with a constant longer one (stale sockets) keep out of each other's queue.
pub(crate) struct Ports {
    first: u16,
    /// For each free port, by its offset from `first`: the port after it in its queue.
    next: Box<[u16]>,
    free_at_ms: Box<[u64]>,
    /// One bit for each port that is out, so that a port given back twice is noticed.
    out: Box<[u64]>,
    queues: [Queue; 2],
    free: usize,
}

impl Ports {
    /// All ports of `range` but 0 are free, in a random order: a restarted dataplane does not start
    /// where its predecessor did, and a run of ports with stale sockets is spread out.
    pub(crate) fn new(range: RangeInclusive<u16>, rng: &mut fastrand::Rng) -> Self {
        let first = (*range.start()).max(1);
        let count = (usize::from(*range.end()) + 1).saturating_sub(usize::from(first));
        let mut order: Vec<u16> = (0..count).map(|offset| offset as u16).collect();
        rng.shuffle(&mut order);
        let mut next = vec![NONE; count].into_boxed_slice();
        for pair in order.windows(2) {
            next[usize::from(pair[0])] = pair[1];
        }
        let all = Queue {
            head: order.first().copied().unwrap_or(NONE),
            tail: order.last().copied().unwrap_or(NONE),
        };
        Self {
            first,
            next,
            free_at_ms: vec![0; count].into_boxed_slice(),
            out: vec![0; count.div_ceil(64)].into_boxed_slice(),
            queues: [
                all,
                Queue {
                    head: NONE,
                    tail: NONE,
                },
            ],
            free: count,
        }
    }

    /// The port that has been usable for the longest time; `None` if every free port is still in
    /// quarantine or none is free.
    pub(crate) fn take(&mut self, now_ms: u64) -> Option<u16> {
        let (which, at_ms) = match [self.head_ms(0), self.head_ms(1)] {
            [Some(a), Some(b)] if b < a => (1, b),
            [Some(a), _] => (0, a),
            [None, Some(b)] => (1, b),
            [None, None] => return None,
        };
        if at_ms > now_ms {
            return None;
        }
        let queue = &mut self.queues[which];
        let offset = queue.head;
        queue.head = self.next[usize::from(offset)];
        if queue.head == NONE {
            queue.tail = NONE;
        }
        self.out[usize::from(offset) / 64] |= 1 << (offset % 64);
        self.free -= 1;
        Some(self.first + offset)
    }

    /// Whether [`Ports::take`] would find one.
    pub(crate) fn has_one(&self, now_ms: u64) -> bool {
        [self.head_ms(0), self.head_ms(1)]
            .iter()
            .flatten()
            .any(|at_ms| *at_ms <= now_ms)
    }

    /// Gives back a port that [`Ports::take`] returned, to be used from `free_at_ms` on. A port that
    /// is not out is refused: with debug assertions a panic, otherwise no effect.
    ///
    /// With more than two different quarantines at a time, a port may have to wait longer than
    /// asked, never shorter.
    pub(crate) fn give_back(&mut self, port: u16, free_at_ms: u64) {
        if !self.is_out(port) {
            debug_assert!(false, "port {port} was given back but is not out");
            return;
        }
        let offset = port - self.first;
        self.out[usize::from(offset) / 64] &= !(1 << (offset % 64));

        // The first queue, unless it ends later (with a long quarantine, if there are two kinds)
        // and the second one ends earlier. A port never becomes free before the one in front.
        let ends_ms = [self.tail_ms(0), self.tail_ms(1)];
        let which = usize::from(ends_ms[0] > free_at_ms && ends_ms[1] < ends_ms[0]);
        let queue = &mut self.queues[which];
        if queue.tail == NONE {
            queue.head = offset;
        } else {
            self.next[usize::from(queue.tail)] = offset;
        }
        queue.tail = offset;
        self.next[usize::from(offset)] = NONE;
        self.free_at_ms[usize::from(offset)] = free_at_ms.max(ends_ms[which]);
        self.free += 1;
    }

    /// The port that was given back last becomes the next one, without its rest.
    #[cfg(feature = "mutants")]
    pub(crate) fn hurry(&mut self) {
        for queue in &mut self.queues {
            let (head, last) = (queue.head, queue.tail);
            if head == NONE || head == last || self.free_at_ms[usize::from(last)] == 0 {
                continue;
            }
            let mut before = head;
            while self.next[usize::from(before)] != last {
                before = self.next[usize::from(before)];
            }
            self.next[usize::from(before)] = NONE;
            self.next[usize::from(last)] = head;
            self.free_at_ms[usize::from(last)] = 0;
            (queue.head, queue.tail) = (last, before);
        }
    }

    /// How many ports are not out, those in quarantine included.
    pub(crate) fn free(&self) -> usize {
        self.free
    }

    /// Whether `port` is one of these ports, free or not.
    pub(crate) fn in_range(&self, port: u16) -> bool {
        port.checked_sub(self.first)
            .is_some_and(|offset| usize::from(offset) < self.next.len())
    }

    fn is_out(&self, port: u16) -> bool {
        self.in_range(port) && {
            let offset = port - self.first;
            self.out[usize::from(offset) / 64] >> (offset % 64) & 1 == 1
        }
    }

    fn head_ms(&self, which: usize) -> Option<u64> {
        self.free_at_ms
            .get(usize::from(self.queues[which].head))
            .copied()
    }

    /// When the last port of a queue becomes free; 0 for an empty queue, which takes any port.
    fn tail_ms(&self, which: usize) -> u64 {
        self.free_at_ms
            .get(usize::from(self.queues[which].tail))
            .copied()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet, VecDeque};

    use proptest::prelude::*;

    use super::*;

    fn ports(range: RangeInclusive<u16>, seed: u64) -> Ports {
        Ports::new(range, &mut fastrand::Rng::with_seed(seed))
    }

    fn take_all(ports: &mut Ports, now_ms: u64) -> Vec<u16> {
        std::iter::from_fn(|| ports.take(now_ms)).collect()
    }

    #[test]
    fn hands_out_every_port_once_and_then_none() {
        let mut ports = ports(40_000..=40_099, 1);
        assert_eq!(ports.free(), 100);
        let mut taken = take_all(&mut ports, 0);
        assert_eq!((ports.free(), ports.take(u64::MAX)), (0, None));
        taken.sort_unstable();
        assert_eq!(taken, (40_000..=40_099).collect::<Vec<_>>());
    }

    #[test]
    fn the_order_differs_from_seed_to_seed_and_has_no_runs() {
        let first: Vec<u16> = take_all(&mut ports(20_000..=60_000, 1), 0);
        let second: Vec<u16> = take_all(&mut ports(20_000..=60_000, 2), 0);
        let same = first.iter().zip(&second).filter(|(a, b)| a == b).count();
        assert!(
            same < 20,
            "{same} of 40,001 in the same place; about 1 by chance"
        );
        let neighbours = first
            .windows(2)
            .filter(|pair| pair[0].abs_diff(pair[1]) == 1)
            .count();
        assert!(
            neighbours < 20,
            "{neighbours} neighbours in a row; about 2 by chance"
        );
        assert_eq!(
            first,
            take_all(&mut ports(20_000..=60_000, 1), 0),
            "the same seed is the same run"
        );
    }

    #[test]
    fn extreme_ranges() {
        let mut all = ports(0..=u16::MAX, 3);
        assert_eq!(all.free(), 65_535, "port 0 is no port");
        assert!(!all.in_range(0) && all.in_range(1) && all.in_range(u16::MAX));
        assert_eq!(
            take_all(&mut all, 0)
                .into_iter()
                .collect::<HashSet<_>>()
                .len(),
            65_535
        );
        all.give_back(u16::MAX, 5);
        assert_eq!((all.take(4), all.take(5)), (None, Some(u16::MAX)));

        let mut one = ports(7..=7, 3);
        assert_eq!((one.take(0), one.take(0)), (Some(7), None));
        #[expect(clippy::reversed_empty_ranges, reason = "this is the case under test")]
        let mut none = ports(8..=7, 3);
        assert_eq!(
            (none.free(), none.take(0), none.in_range(7)),
            (0, None, false)
        );
    }

    #[test]
    fn a_long_quarantine_does_not_hold_up_normal_ones() {
        let mut ports = ports(1_000..=1_002, 4);
        let taken = take_all(&mut ports, 0);
        ports.give_back(taken[0], 60_000);
        ports.give_back(taken[1], 1_000);
        ports.give_back(taken[2], 1_001);
        assert_eq!(ports.free(), 3);
        assert_eq!(ports.take(999), None);
        assert_eq!(ports.take(1_000), Some(taken[1]));
        assert_eq!(ports.take(1_000), None);
        assert_eq!(ports.take(1_001), Some(taken[2]));
        assert_eq!(ports.take(59_999), None);
        assert_eq!(ports.take(60_000), Some(taken[0]));
    }

    /// A panic where debug assertions are on; in any case nothing changes.
    #[test]
    fn a_port_that_is_not_out_is_refused() {
        let mut ports = ports(1_000..=1_009, 5);
        let port = ports.take(0).unwrap();
        ports.give_back(port, 10);
        for wrong in [port, 999, 1_010, 0] {
            let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                ports.give_back(wrong, 0);
            }));
            assert_eq!(refused.is_err(), cfg!(debug_assertions));
            assert_eq!(ports.free(), 10);
        }
        let taken = take_all(&mut ports, 10);
        assert_eq!(taken.last(), Some(&port), "freed last, used last");
        assert_eq!(taken.iter().collect::<HashSet<_>>().len(), 10);
    }

    #[derive(Debug, Clone)]
    enum Op {
        Take,
        GiveBack { which: usize, quarantine_ms: u64 },
        Advance { by_ms: u64 },
    }

    fn ops(quarantine_ms: impl Strategy<Value = u64> + 'static) -> impl Strategy<Value = Vec<Op>> {
        let give_back =
            (any::<prop::sample::Index>(), quarantine_ms).prop_map(|(which, quarantine_ms)| {
                Op::GiveBack {
                    which: which.index(64),
                    quarantine_ms,
                }
            });
        let op = prop_oneof![
            5 => Just(Op::Take),
            4 => give_back,
            2 => (0..400_u64).prop_map(|by_ms| Op::Advance { by_ms }),
        ];
        prop::collection::vec(op, 1..300)
    }

    /// Runs `ops` and returns what was refused although a port was past its quarantine.
    fn check(ops: Vec<Op>, exact: bool) -> Result<(), TestCaseError> {
        let range = 5_000..=5_015;
        let mut ports = ports(range.clone(), 6);
        let mut now_ms = 0;
        // What is free, by the time from which it may be used, and in the order of giving back.
        let mut free: BTreeMap<u64, VecDeque<u16>> = BTreeMap::from([(0, range.collect())]);
        let mut out: Vec<u16> = Vec::new();
        for op in ops {
            match op {
                Op::Advance { by_ms } => now_ms += by_ms,
                Op::GiveBack {
                    which,
                    quarantine_ms,
                } if !out.is_empty() => {
                    let port = out.swap_remove(which % out.len());
                    ports.give_back(port, now_ms + quarantine_ms);
                    free.entry(now_ms + quarantine_ms)
                        .or_default()
                        .push_back(port);
                }
                Op::GiveBack { .. } => {}
                Op::Take => {
                    let ready = free
                        .iter()
                        .any(|(at_ms, some)| *at_ms <= now_ms && !some.is_empty());
                    let Some(port) = ports.take(now_ms) else {
                        prop_assert!(!exact || !ready, "a port is ready but none was taken");
                        continue;
                    };
                    prop_assert!(!out.contains(&port), "{port} is out already");
                    let at_ms = free
                        .iter()
                        .find(|(_, some)| some.contains(&port))
                        .map(|(at, _)| *at);
                    prop_assert!(
                        at_ms.is_some_and(|at_ms| at_ms <= now_ms),
                        "before its time"
                    );
                    let oldest = free
                        .iter()
                        .find(|(_, some)| !some.is_empty())
                        .map(|(at, _)| *at);
                    prop_assert!(!exact || at_ms == oldest, "not the oldest");
                    free.get_mut(&at_ms.unwrap_or(0))
                        .unwrap()
                        .retain(|other| *other != port);
                    out.push(port);
                }
            }
            prop_assert_eq!(ports.free(), 16 - out.len());
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn two_constant_quarantines_are_exact(
            ops in ops(prop_oneof![4 => Just(1_000), 1 => Just(3_000)]),
        ) {
            check(ops, true)?;
        }

        #[test]
        fn any_quarantines_are_safe(ops in ops(0..5_000_u64)) {
            check(ops, false)?;
        }
    }
}
