//! The leg ports of one backend: which of the dataplane's own ports may be used towards it, and for what. A port is a
//! leg's number here, see `sources`.
//!
//! A port and the pod's address and port are a pair, which connection trackers on the way remember for a while after
//! its last segment. An opening handshake begins anew there, whatever they remember; an adoption is a segment in the
//! middle of a connection, and would be taken for an invalid one of the old. So a free port is one of three kinds:
//! ready (never used, or certainly forgotten: for all), resting (for nobody yet), and rested (for handshakes alone,
//! until it is forgotten, see `forget`, or its time is over).
//!
//! Owns the order in which free ports are used and their rest, and the order in which handshakes began on those that are
//! half open. It never hands out a port twice, and never before its
//! time. It never allocates after construction.

use crate::timing::REMEMBERED_MS;
/// End of a list; an offset never has this value because port 0 is left out.
const NONE: u16 = u16::MAX;

/// Of each backend's ports that are ready for adoptions, one in so many is kept for rescues and drains: not for moves that
/// need not be now, nor for clients' SYNs, of which anybody sends as many as he likes.
const RESERVE_SHARE: usize = 8;
/// Ports that become ready by time in one call: taking one needs one.
const SETTLED_PER_CALL: usize = 4;

/// How the last use of a port ended, which says how long it rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Both sides closed in order. A lost last ACK would have been repeated by then on a pod network; a socket that is left
    /// all the same is stepped around like any stale one.
    Clean,
    /// Any other way: longer than a pod needs to answer the last segment on any pod network.
    Quiet,
    /// A stale socket was met: until even an orphaned FIN_WAIT_2 socket is gone (`net.ipv4.tcp_fin_timeout`, 60 s).
    Stale,
    /// Nobody said that it is forgotten: only time makes it ready.
    Unforgotten,
}

impl Rest {
    const ALL: [Self; 4] = [Self::Clean, Self::Quiet, Self::Stale, Self::Unforgotten];

    /// After so long it may be used by handshakes, and a Forget may be sent.
    pub(crate) const fn ms(self) -> u32 {
        match self {
            Self::Clean => 100,
            Self::Quiet | Self::Unforgotten => 1_000,
            Self::Stale => 60_000,
        }
    }
}

/// What a port is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A segment in the middle of a connection, of a move that need not be now.
    Move,
    /// The same, of one that must: a rescue, a drain, a person's wish. May take the reserve.
    Rescue,
    /// A client's SYN.
    Handshake,
}

/// Free ports, the one that is used next in front.
#[derive(Clone, Copy)]
struct Queue {
    head: u16,
    tail: u16,
    len: u16,
}

impl Queue {
    const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
        len: 0,
    };
}

/// The ports of one backend.
///
/// The ready ones and each kind of rest have a queue in one shared table of slots. All ports of a kind rest equally
/// long, so each queue is in the order in which its ports may be used, and taking looks at heads only.
pub(crate) struct Ports {
    first: u16,
    /// For each free port and each half-open one, by its offset from `first`: the port after it in its queue.
    next: Box<[u16]>,
    /// When it was given back (ms, wrapping): a port that is ready needs none, and any other one is settled long before
    /// this wraps. Of a half-open one: the port in front of it in its queue.
    since_ms: Box<[u32]>,
    /// One bit for each port that is out, so that a port given back twice is noticed; and for each half-open one.
    out: Box<[u64]>,
    half: Box<[u64]>,
    /// Those of handshakes that are not complete, the oldest in front.
    half_open: Queue,
    ready: Queue,
    resting: [Queue; Rest::ALL.len()],
}

impl Ports {
    /// All `count` (at most 65,535) numbers from `first` on but 0 are ready, past 65,535 from 0 on, in a random order: a restarted
    /// dataplane does not start where its predecessor did, and a run of ports with stale sockets is spread out.
    pub(crate) fn new(first: u16, count: usize, rng: &mut fastrand::Rng) -> Self {
        let all = (0..count).map(|offset| offset as u16);
        let mut order: Vec<u16> = all.filter(|o| first.wrapping_add(*o) != 0).collect();
        rng.shuffle(&mut order);
        let mut ports = Self {
            first,
            next: vec![NONE; count].into_boxed_slice(),
            since_ms: vec![0; count].into_boxed_slice(),
            out: vec![0; count.div_ceil(64)].into_boxed_slice(),
            half: vec![0; count.div_ceil(64)].into_boxed_slice(),
            half_open: Queue::EMPTY,
            ready: Queue::EMPTY,
            resting: [Queue::EMPTY; Rest::ALL.len()],
        };
        for offset in order {
            push(&mut ports.next, &mut ports.ready, offset);
        }
        ports
    }

    /// No ports, and no memory.
    pub(crate) fn none(first: u16) -> Self {
        Self {
            first,
            next: Box::default(),
            since_ms: Box::default(),
            out: Box::default(),
            half: Box::default(),
            half_open: Queue::EMPTY,
            ready: Queue::EMPTY,
            resting: [Queue::EMPTY; Rest::ALL.len()],
        }
    }

    /// A port for `purpose`, if one may be used now.
    pub(crate) fn take(&mut self, now_ms: u64, purpose: Purpose) -> Option<u16> {
        self.settle(now_ms, SETTLED_PER_CALL);
        let ready = self.ready.len > 0;
        let spare = usize::from(self.ready.len) > self.reserve();
        let offset = match purpose {
            Purpose::Move if spare => pop(&self.next, &mut self.ready),
            Purpose::Rescue if ready => pop(&self.next, &mut self.ready),
            Purpose::Move | Purpose::Rescue => return None,
            Purpose::Handshake => {
                let unforgotten = Rest::Unforgotten as usize;
                let rested = if self.has_rested(unforgotten, now_ms) {
                    Some(unforgotten)
                } else if spare {
                    None
                } else {
                    (0..unforgotten).find(|kind| self.has_rested(*kind, now_ms))
                };
                match rested {
                    Some(kind) => pop(&self.next, &mut self.resting[kind]),
                    None if spare => pop(&self.next, &mut self.ready),
                    None => return None,
                }
            }
        };
        self.goes_out(offset);
        Some(self.first.wrapping_add(offset))
    }

    /// Whether [`Ports::take`] would find one for a move in need.
    pub(crate) fn has_ready(&mut self, now_ms: u64) -> bool {
        self.settle(now_ms, SETTLED_PER_CALL);
        self.ready.len > 0
    }

    /// Whether [`Ports::take`] would find one for a handshake.
    #[cfg(test)]
    pub(crate) fn has_one(&self, now_ms: u64) -> bool {
        usize::from(self.ready.len) > self.reserve()
            || (0..self.resting.len()).any(|kind| self.has_rested(kind, now_ms))
    }

    /// A port that has rested and that trackers may remember, to be forgotten; and how its last use ended.
    pub(crate) fn take_to_forget(&mut self, now_ms: u64) -> Option<(u16, Rest)> {
        self.settle(now_ms, SETTLED_PER_CALL);
        for rest in [Rest::Clean, Rest::Quiet, Rest::Stale] {
            if self.has_rested(rest as usize, now_ms) {
                let offset = pop(&self.next, &mut self.resting[rest as usize]);
                self.goes_out(offset);
                return Some((self.first.wrapping_add(offset), rest));
            }
        }
        None
    }

    /// A handshake begins on a port that is out.
    pub(crate) fn begins(&mut self, port: u16) {
        if !self.is_out(port) {
            return;
        }
        let offset = port.wrapping_sub(self.first);
        self.half[usize::from(offset) / 64] |= 1 << (offset % 64);
        self.since_ms[usize::from(offset)] = u32::from(self.half_open.tail);
        push(&mut self.next, &mut self.half_open, offset);
    }

    /// The handshake on a port is complete, or over.
    pub(crate) fn completes(&mut self, port: u16) {
        let offset = port.wrapping_sub(self.first);
        let at = usize::from(offset);
        let bit = 1 << (offset % 64);
        let Some(word) = self.half.get_mut(at / 64).filter(|word| **word & bit != 0) else {
            return;
        };
        *word &= !bit;
        let (before, after) = (self.since_ms[at] as u16, self.next[at]);
        match self.next.get_mut(usize::from(before)) {
            Some(next) => *next = after,
            None => self.half_open.head = after,
        }
        match self.since_ms.get_mut(usize::from(after)) {
            Some(since) => *since = u32::from(before),
            None => self.half_open.tail = before,
        }
        self.half_open.len -= 1;
    }

    /// The port whose handshake began first of those that are not complete, and how many there are.
    pub(crate) fn half_open(&self) -> Option<(u16, usize)> {
        let head = self.half_open.head;
        (head != NONE).then(|| {
            (
                self.first.wrapping_add(head),
                usize::from(self.half_open.len),
            )
        })
    }

    /// When [`Ports::take_to_forget`] finds the next one, if any rests.
    pub(crate) fn next_to_forget_ms(&self, now_ms: u64) -> Option<u64> {
        let waits = [Rest::Clean, Rest::Quiet, Rest::Stale].into_iter();
        let waits = waits.filter_map(|rest| {
            let age = self.age_ms(rest as usize, now_ms)?;
            Some(now_ms + u64::from(rest.ms().saturating_sub(age)))
        });
        waits.min()
    }

    /// Gives back a port that [`Ports::take`] returned. A port that is not out is refused: with debug assertions a panic,
    /// otherwise no effect.
    pub(crate) fn give_back(&mut self, port: u16, now_ms: u64, rest: Rest) {
        if let Some(offset) = self.comes_back(port) {
            self.since_ms[usize::from(offset)] = now_ms as u32;
            push(&mut self.next, &mut self.resting[rest as usize], offset);
        }
    }

    /// The same for one that no tracker remembers for certain.
    pub(crate) fn give_back_forgotten(&mut self, port: u16) {
        if let Some(offset) = self.comes_back(port) {
            push(&mut self.next, &mut self.ready, offset);
        }
    }

    /// Makes up to `max` ports ready that no tracker can remember any more. To be called now and then.
    pub(crate) fn settle(&mut self, now_ms: u64, max: usize) {
        for _ in 0..max {
            let old = (0..self.resting.len())
                .find(|kind| self.age_ms(*kind, now_ms) >= Some(REMEMBERED_MS));
            let Some(kind) = old else { return };
            let offset = pop(&self.next, &mut self.resting[kind]);
            push(&mut self.next, &mut self.ready, offset);
        }
    }

    /// The port that was given back last becomes the next one, without its rest.
    #[cfg(feature = "mutants")]
    pub(crate) fn hurry(&mut self) {
        for kind in 0..self.resting.len() {
            let queue = self.resting[kind];
            if queue.len == 0 {
                continue;
            }
            let mut before = NONE;
            let mut at = queue.head;
            while at != queue.tail {
                before = at;
                at = self.next[usize::from(at)];
            }
            if before == NONE {
                self.resting[kind] = Queue::EMPTY;
            } else {
                self.next[usize::from(before)] = NONE;
                self.resting[kind].tail = before;
                self.resting[kind].len -= 1;
            }
            self.next[usize::from(at)] = self.ready.head;
            self.ready.head = at;
            if self.ready.tail == NONE {
                self.ready.tail = at;
            }
            self.ready.len += 1;
        }
    }

    /// How many there are.
    pub(crate) fn all(&self) -> usize {
        // One of the numbers may be 0.
        let zero = self.first.wrapping_neg();
        self.next.len() - usize::from(usize::from(zero) < self.next.len())
    }

    /// How many ports are not out, those that rest included.
    pub(crate) fn free(&self) -> usize {
        self.ready() + self.remembered()
    }

    /// How many may be used for anything.
    pub(crate) fn ready(&self) -> usize {
        usize::from(self.ready.len)
    }

    /// How many are free, and perhaps still remembered by trackers.
    pub(crate) fn remembered(&self) -> usize {
        self.resting.iter().map(|q| usize::from(q.len)).sum()
    }

    /// How many that are ready are kept for rescues and drains.
    pub(crate) fn reserve(&self) -> usize {
        self.next.len() / RESERVE_SHARE
    }

    /// Whether `port` is one of these ports, free or not.
    pub(crate) fn in_range(&self, port: u16) -> bool {
        port != 0 && usize::from(port.wrapping_sub(self.first)) < self.next.len()
    }

    fn is_out(&self, port: u16) -> bool {
        self.in_range(port) && {
            let offset = port.wrapping_sub(self.first);
            self.out[usize::from(offset) / 64] >> (offset % 64) & 1 == 1
        }
    }

    fn goes_out(&mut self, offset: u16) {
        self.out[usize::from(offset) / 64] |= 1 << (offset % 64);
    }

    fn comes_back(&mut self, port: u16) -> Option<u16> {
        if !self.is_out(port) {
            debug_assert!(false, "port {port} was given back but is not out");
            return None;
        }
        self.completes(port);
        let offset = port.wrapping_sub(self.first);
        self.out[usize::from(offset) / 64] &= !(1 << (offset % 64));
        Some(offset)
    }

    /// How long the head of a queue has rested.
    fn age_ms(&self, kind: usize, now_ms: u64) -> Option<u32> {
        let since = self.since_ms.get(usize::from(self.resting[kind].head))?;
        Some((now_ms as u32).wrapping_sub(*since))
    }

    fn has_rested(&self, kind: usize, now_ms: u64) -> bool {
        self.age_ms(kind, now_ms) >= Some(Rest::ALL[kind].ms())
    }
}

/// Puts a port at the end of a queue.
fn push(next: &mut [u16], queue: &mut Queue, offset: u16) {
    if queue.tail == NONE {
        queue.head = offset;
    } else {
        next[usize::from(queue.tail)] = offset;
    }
    next[usize::from(offset)] = NONE;
    queue.tail = offset;
    queue.len += 1;
}

/// Takes the first port off a queue that is not empty.
fn pop(next: &[u16], queue: &mut Queue) -> u16 {
    let offset = queue.head;
    queue.head = next[usize::from(offset)];
    if queue.head == NONE {
        queue.tail = NONE;
    }
    queue.len -= 1;
    offset
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, ops::RangeInclusive};

    use proptest::prelude::*;

    use super::*;

    const LATER: u64 = 200_000;

    fn ports(range: RangeInclusive<u16>, seed: u64) -> Ports {
        let range = *range.start().max(&1)..=*range.end();
        let count = range.clone().count();
        Ports::new(*range.start(), count, &mut fastrand::Rng::with_seed(seed))
    }

    fn take_all(ports: &mut Ports, now_ms: u64, purpose: Purpose) -> Vec<u16> {
        std::iter::from_fn(|| ports.take(now_ms, purpose)).collect()
    }

    #[test]
    fn hands_out_every_port_once_and_then_none() {
        let mut ports = ports(40_000..=40_099, 1);
        assert_eq!(ports.free(), 100);
        let mut taken = take_all(&mut ports, 0, Purpose::Rescue);
        assert_eq!(
            (ports.free(), ports.take(LATER, Purpose::Handshake)),
            (0, None)
        );
        taken.sort_unstable();
        assert_eq!(taken, (40_000..=40_099).collect::<Vec<_>>());
    }

    #[test]
    fn the_order_differs_from_seed_to_seed_and_has_no_runs() {
        let all = |seed| take_all(&mut ports(20_000..=60_000, seed), 0, Purpose::Handshake);
        let (first, second): (Vec<u16>, Vec<u16>) = (all(1), all(2));
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
        assert_eq!(first, all(1), "the same seed is the same run");
    }

    #[test]
    fn extreme_ranges() {
        let mut all = ports(0..=u16::MAX, 3);
        assert_eq!(all.free(), 65_535, "port 0 is no port");
        assert!(!all.in_range(0) && all.in_range(1) && all.in_range(u16::MAX));
        let taken = take_all(&mut all, 0, Purpose::Rescue);
        assert_eq!(taken.into_iter().collect::<HashSet<_>>().len(), 65_535);
        all.give_back(u16::MAX, 5, Rest::Clean);
        let mut take = |ms| all.take(ms, Purpose::Handshake);
        assert_eq!((take(104), take(105)), (None, Some(u16::MAX)));

        let mut one = ports(7..=7, 3);
        let mut take = || one.take(0, Purpose::Move);
        assert_eq!((take(), take()), (Some(7), None));
        #[expect(clippy::reversed_empty_ranges, reason = "this is the case under test")]
        let mut none = ports(8..=7, 3);
        assert_eq!(
            (
                none.free(),
                none.take(0, Purpose::Handshake),
                none.in_range(7)
            ),
            (0, None, false)
        );
    }

    #[test]
    fn a_port_rests_as_its_last_use_ended() {
        for (rest, ms) in [
            (Rest::Clean, 100),
            (Rest::Quiet, 1_000),
            (Rest::Stale, 60_000),
            (Rest::Unforgotten, 1_000),
        ] {
            let mut ports = ports(1_000..=1_000, 4);
            let port = ports.take(0, Purpose::Move).unwrap();
            ports.give_back(port, 50, rest);
            let mut take = |ms, purpose| ports.take(ms, purpose);
            assert_eq!(take(49 + ms, Purpose::Handshake), None);
            assert_eq!(
                take(50 + ms, Purpose::Rescue),
                None,
                "a tracker may remember it"
            );
            assert_eq!(take(50 + ms, Purpose::Handshake), Some(port));
            ports.give_back(port, 50, rest);
            let found = ports.take_to_forget(50 + ms);
            assert_eq!(found.is_some(), rest != Rest::Unforgotten);
            if found.is_none() {
                continue;
            }
            ports.give_back(port, 70, rest);
            assert_eq!(ports.take(119_000 + 70 + 999, Purpose::Rescue), None);
            assert_eq!(
                ports.take(120_070, Purpose::Rescue),
                Some(port),
                "none remembers it"
            );
        }
    }

    #[test]
    fn what_is_forgotten_is_ready_at_once() {
        let mut ports = ports(1_000..=1_001, 4);
        let taken = take_all(&mut ports, 0, Purpose::Rescue);
        ports.give_back(taken[0], 0, Rest::Clean);
        assert_eq!(ports.next_to_forget_ms(0), Some(100));
        assert_eq!(ports.take_to_forget(99), None);
        assert_eq!(ports.take_to_forget(100), Some((taken[0], Rest::Clean)));
        assert_eq!((ports.free(), ports.next_to_forget_ms(100)), (0, None));
        ports.give_back_forgotten(taken[0]);
        assert_eq!((ports.ready(), ports.remembered()), (1, 0));
        assert_eq!(ports.take(100, Purpose::Move), Some(taken[0]));
    }

    #[test]
    fn ordinary_moves_leave_the_reserve_and_handshakes_what_only_they_can_use() {
        let mut ports = ports(1_000..=1_063, 4);
        assert_eq!(ports.reserve(), 8);
        let moved = take_all(&mut ports, 0, Purpose::Move);
        assert_eq!((moved.len(), ports.ready()), (56, 8));
        assert!(ports.has_ready(0));
        ports.give_back(moved[0], 0, Rest::Clean);
        ports.give_back(moved[1], 0, Rest::Unforgotten);
        // Nobody else has a use for these two.
        let mut handshake = || ports.take(1_000, Purpose::Handshake);
        assert_eq!((handshake(), handshake()), (Some(moved[1]), Some(moved[0])));
        assert_eq!(take_all(&mut ports, 1_000, Purpose::Rescue).len(), 8);
        assert!(!ports.has_ready(1_000) && !ports.has_one(1_000));
    }

    #[test]
    fn the_clock_may_wrap() {
        let mut ports = ports(1_000..=1_000, 4);
        let now_ms = u64::from(u32::MAX) - 50;
        let port = ports.take(now_ms, Purpose::Move).unwrap();
        ports.give_back(port, now_ms, Rest::Clean);
        assert_eq!(ports.take(now_ms + 99, Purpose::Handshake), None);
        assert_eq!(ports.take(now_ms + 100, Purpose::Handshake), Some(port));
    }

    /// A panic where debug assertions are on; in any case nothing changes.
    #[test]
    fn a_port_that_is_not_out_is_refused() {
        let mut ports = ports(1_000..=1_009, 5);
        let port = ports.take(0, Purpose::Move).unwrap();
        ports.give_back(port, 10, Rest::Clean);
        for wrong in [port, 999, 1_010, 0] {
            let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                ports.give_back(wrong, 0, Rest::Clean);
            }));
            assert_eq!(refused.is_err(), cfg!(debug_assertions));
            assert_eq!(ports.free(), 10);
        }
        let taken = take_all(&mut ports, LATER, Purpose::Rescue);
        assert_eq!(taken.last(), Some(&port), "freed last, used last");
        assert_eq!(taken.iter().collect::<HashSet<_>>().len(), 10);
    }

    #[test]
    fn handshakes_leave_the_reserve_to_rescues() {
        let mut ports = ports(5_000..=5_079, 1);
        assert_eq!(take_all(&mut ports, 0, Purpose::Handshake).len(), 70);
        assert_eq!(take_all(&mut ports, 0, Purpose::Rescue).len(), 10);
    }

    #[derive(Debug, Clone)]
    enum Op {
        Take(Purpose),
        Forget,
        GiveBack { which: usize, rest: Option<Rest> },
        Begins { which: usize },
        Completes { which: usize },
        Advance { by_ms: u64 },
    }

    fn op() -> impl Strategy<Value = Op> {
        let purposes = vec![Purpose::Move, Purpose::Rescue, Purpose::Handshake];
        let rests = Rest::ALL
            .map(Some)
            .into_iter()
            .chain([None])
            .collect::<Vec<_>>();
        let give_back = (0..64_usize, prop::sample::select(rests))
            .prop_map(|(which, rest)| Op::GiveBack { which, rest });
        prop_oneof![
            5 => prop::sample::select(purposes).prop_map(Op::Take),
            2 => Just(Op::Forget),
            5 => give_back,
            3 => (0..64_usize).prop_map(|which| Op::Begins { which }),
            2 => (0..64_usize).prop_map(|which| Op::Completes { which }),
            2 => (0..400_u64).prop_map(|by_ms| Op::Advance { by_ms }),
            1 => (0..90_000_u64).prop_map(|by_ms| Op::Advance { by_ms }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        /// Against a plain list of what is free: from when on for handshakes, and from when on for all.
        #[test]
        fn every_port_is_used_in_its_time_and_by_whom_it_may(ops in prop::collection::vec(op(), 1..300)) {
            let mut ports = ports(5_000..=5_015, 6);
            let mut now_ms = u64::from(u32::MAX) - 100_000;
            let mut free: Vec<(u16, u64, u64)> = (5_000..=5_015).map(|port| (port, 0, 0)).collect();
            let (mut out, mut half): (Vec<u16>, Vec<u16>) = Default::default();
            for op in ops {
                match op {
                    Op::Advance { by_ms } => now_ms += by_ms,
                    Op::GiveBack { which, rest } if !out.is_empty() => {
                        let port = out.swap_remove(which % out.len());
                        half.retain(|other| *other != port);
                        match rest {
                            Some(rest) => {
                                ports.give_back(port, now_ms, rest);
                                let rested_ms = now_ms + u64::from(rest.ms());
                                free.push((port, rested_ms, now_ms + u64::from(REMEMBERED_MS)));
                            }
                            None => {
                                ports.give_back_forgotten(port);
                                free.push((port, 0, 0));
                            }
                        }
                    }
                    Op::Begins { which } if !out.is_empty() => {
                        let port = out[which % out.len()];
                        if !half.contains(&port) {
                            ports.begins(port);
                            half.push(port);
                        }
                    }
                    Op::Completes { which } if !out.is_empty() => {
                        let port = out[which % out.len()];
                        ports.completes(port);
                        half.retain(|other| *other != port);
                    }
                    Op::GiveBack { .. } | Op::Begins { .. } | Op::Completes { .. } => {}
                    Op::Forget => {
                        if let Some((port, _)) = ports.take_to_forget(now_ms) {
                            let at = free.iter().position(|f| f.0 == port).unwrap();
                            let (_, rested_ms, ready_ms) = free.swap_remove(at);
                            prop_assert!(rested_ms <= now_ms && ready_ms > 0);
                            out.push(port);
                        }
                    }
                    Op::Take(purpose) => {
                        let ready = free.iter().filter(|f| f.2 <= now_ms).count();
                        let rested = free.iter().filter(|f| f.1 <= now_ms).count();
                        let taken = ports.take(now_ms, purpose);
                        match purpose {
                            // At most so many become ready in one call, of which one is taken.
                            Purpose::Move if ready <= ports.reserve() => prop_assert_eq!(taken, None),
                            Purpose::Move => {}
                            Purpose::Rescue => prop_assert_eq!(taken.is_some(), ready > 0),
                            // Those that are kept back are ready ones.
                            Purpose::Handshake if rested > ports.reserve() => prop_assert!(taken.is_some()),
                            Purpose::Handshake => prop_assert!(rested > 0 || taken.is_none()),
                        }
                        if let Some(port) = taken {
                            prop_assert!(!out.contains(&port), "{port} is out already");
                            let at = free.iter().position(|f| f.0 == port).unwrap();
                            let (_, rested_ms, ready_ms) = free.swap_remove(at);
                            let from_ms = if purpose == Purpose::Handshake { rested_ms } else { ready_ms };
                            prop_assert!(from_ms <= now_ms, "before its time");
                            out.push(port);
                        }
                    }
                }
                prop_assert_eq!(ports.free(), 16 - out.len());
                let rested = free.iter().filter(|f| f.1 <= now_ms).count();
                prop_assert!(ports.has_one(now_ms) || rested <= ports.reserve());
                prop_assert!(!ports.has_one(now_ms) || rested > 0);
                let half_open = half.first().map(|oldest| (*oldest, half.len()));
                prop_assert_eq!(ports.half_open(), half_open);
            }
        }
    }
}
