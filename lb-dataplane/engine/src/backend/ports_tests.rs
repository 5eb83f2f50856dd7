//! Leg ports against a plain list of what is free, and what each purpose may take.

use std::{collections::HashSet, ops::RangeInclusive};

use proptest::prelude::*;

use super::*;
use crate::tables::rests::{RESERVE, RESTING_MAX};

const LATER: u64 = 200_000;

/// The ports of the only backend there is.
struct Alone(Ports, Rests);

impl Alone {
    fn take(&mut self, now_ms: u64, purpose: Purpose) -> Option<u16> {
        self.0.take(&mut self.1, now_ms, purpose)
    }

    fn take_to_forget(&mut self, now_ms: u64) -> Option<(u16, Rest)> {
        self.0.take_to_forget(&mut self.1, now_ms)
    }

    fn next_to_forget_ms(&self, now_ms: u64) -> Option<u64> {
        self.0.next_to_forget_ms(&self.1, now_ms)
    }

    fn give_back(&mut self, port: u16, now_ms: u64, rest: Rest) {
        self.0.give_back(&mut self.1, port, now_ms, rest);
    }

    fn give_back_forgotten(&mut self, port: u16) {
        self.0.give_back_forgotten(&mut self.1, port);
    }

    fn has_ready(&mut self, now_ms: u64) -> bool {
        self.0.has_ready(&mut self.1, now_ms)
    }

    fn has_one(&self, now_ms: u64) -> bool {
        self.0.has_one(&self.1, now_ms)
    }

    fn free(&self) -> usize {
        self.0.all() - self.0.used()
    }
}

fn ports(range: RangeInclusive<u16>, seed: u64) -> Alone {
    let range = *range.start().max(&1)..=*range.end();
    let count = range.clone().count();
    let ports = Ports::new(*range.start(), count, &mut fastrand::Rng::with_seed(seed));
    let blocks = crate::tables::blocks::Blocks::new(1, count, 1 << 20);
    Alone(ports, Rests::new(count, blocks))
}

fn take_all(ports: &mut Alone, now_ms: u64, purpose: Purpose) -> Vec<u16> {
    std::iter::from_fn(|| ports.take(now_ms, purpose)).collect()
}

#[test]
fn hands_out_every_port_once_and_then_none() {
    let mut ports = ports(40_000..=40_099, 1);
    assert_eq!(ports.free(), 100);
    let mut taken = take_all(&mut ports, 0, Purpose::Rescue);
    assert_eq!((ports.free(), ports.take(LATER, Purpose::Handshake)), (0, None));
    taken.sort_unstable();
    assert_eq!(taken, (40_000..=40_099).collect::<Vec<_>>());
}

#[test]
fn the_order_differs_from_seed_to_seed_and_has_no_runs() {
    let all = |seed| take_all(&mut ports(20_000..=60_000, seed), 0, Purpose::Handshake);
    let (first, second): (Vec<u16>, Vec<u16>) = (all(1), all(2));
    let same = first.iter().zip(&second).filter(|(a, b)| a == b).count();
    assert!(same < 20, "{same} of 40,001 in the same place; about 1 by chance");
    let neighbours = first.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 1).count();
    assert!(neighbours < 20, "{neighbours} neighbours in a row; about 2 by chance");
    assert_eq!(first, all(1), "the same seed is the same run");
}

#[test]
fn extreme_ranges() {
    let mut all = ports(0..=u16::MAX, 3);
    assert_eq!(all.free(), 65_535, "port 0 is no port");
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
    assert_eq!((none.free(), none.take(0, Purpose::Handshake)), (0, None));
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
        assert_eq!(take(50 + ms, Purpose::Rescue), None, "a tracker may remember it");
        assert_eq!(take(50 + ms, Purpose::Handshake), Some(port));
        ports.give_back(port, 50, rest);
        let found = ports.take_to_forget(50 + ms);
        assert_eq!(found.is_some(), rest != Rest::Unforgotten);
        if found.is_none() {
            continue;
        }
        ports.give_back(port, 70, rest);
        assert_eq!(ports.take(119_000 + 70 + 999, Purpose::Rescue), None);
        assert_eq!(ports.take(120_070, Purpose::Rescue), Some(port), "none remembers it");
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
    assert_eq!((ports.0.ready(), ports.0.remembered()), (1, 0));
    assert_eq!(ports.take(100, Purpose::Move), Some(taken[0]));
}

#[test]
fn ordinary_moves_leave_the_reserve_and_handshakes_what_only_they_can_use() {
    let mut ports = ports(1_000..=1_063, 4);
    assert_eq!(ports.0.reserve(), 8);
    let moved = take_all(&mut ports, 0, Purpose::Move);
    assert_eq!((moved.len(), ports.0.ready()), (56, 8));
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
    let mut ports = ports(1_000..=1_063, 5);
    let port = ports.take(0, Purpose::Move).unwrap();
    ports.give_back(port, 10, Rest::Clean);
    for wrong in [port, 999, 1_064, 0] {
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            ports.give_back(wrong, 0, Rest::Clean);
        }));
        assert_eq!(refused.is_err(), cfg!(debug_assertions));
        assert_eq!(ports.free(), 64);
    }
    let taken = take_all(&mut ports, LATER, Purpose::Rescue);
    assert_eq!(taken.last(), Some(&port), "freed last, used last");
    assert_eq!(taken.iter().collect::<HashSet<_>>().len(), 64);
}

#[test]
fn handshakes_leave_the_reserve_to_rescues() {
    let mut ports = ports(5_000..=5_079, 1);
    assert_eq!(take_all(&mut ports, 0, Purpose::Handshake).len(), 70);
    assert_eq!(take_all(&mut ports, 0, Purpose::Rescue).len(), 10);
}

/// Of two backends, one has all that may rest in all: the other has what rescues need.
#[test]
fn pairs_are_bounded_in_all() {
    let mut rests = Rests::new(0, crate::tables::blocks::Blocks::new(5, 60_000, 1 << 24));
    let mut rng = fastrand::Rng::with_seed(1);
    let count = 60_000;
    let mut all: Vec<Ports> = (0..5).map(|_| Ports::new(1, count, &mut rng)).collect();
    let left = RESERVE;
    let mut taken = 0;
    for ports in &mut all {
        while ports.take(&mut rests, 0, Purpose::Handshake).is_some() {
            taken += 1;
        }
        while taken < RESTING_MAX - left && ports.take(&mut rests, 0, Purpose::Rescue).is_some() {
            taken += 1;
        }
    }
    assert_eq!((taken, rests.spare()), (RESTING_MAX - left, left));
    let last = &mut all[4];
    assert!(last.ready() > last.reserve());
    assert_eq!(last.take(&mut rests, 0, Purpose::Move), None);
    let mut rescued = 0;
    for ports in &mut all {
        while ports.take(&mut rests, 0, Purpose::Rescue).is_some() {
            rescued += 1;
        }
    }
    assert_eq!((rescued, rests.spare()), (left, 0));
    assert!(!all[4].has_ready(&mut rests, 0));
}

/// Backends of short connections leave room for one that has just started, which has no port that
/// was used before; and they have equal parts.
#[test]
fn what_rests_is_shared() {
    let mut rests = Rests::new(0, crate::tables::blocks::Blocks::new(6, 60_000, 1 << 24));
    let mut rng = fastrand::Rng::with_seed(1);
    let mut all: Vec<Ports> = (0..6).map(|_| Ports::new(1, 60_000, &mut rng)).collect();
    let mut goes_on = true;
    while goes_on {
        goes_on = false;
        for ports in &mut all[..5] {
            // Nothing has rested long enough to be used again.
            if let Some(port) = ports.take(&mut rests, 0, Purpose::Handshake) {
                ports.give_back(&mut rests, port, 0, Rest::Clean);
                goes_on = true;
            }
        }
    }
    let part = (RESTING_MAX - RESERVE) / 6;
    for ports in &all[..5] {
        assert!(ports.remembered().abs_diff(part) <= 1, "{} {part}", ports.remembered());
    }
    for _ in 0..part {
        assert!(all[5].take(&mut rests, 0, Purpose::Handshake).is_some());
    }
    // The others use again what has rested.
    assert!(all[0].take(&mut rests, 1_000, Purpose::Handshake).is_some());
    assert_eq!(rests.spare(), RESERVE);
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
    let purposes =
        vec![Purpose::Move, Purpose::Rescue, Purpose::Handshake, Purpose::Opening, Purpose::Again];
    let rests = Rest::ALL.map(Some).into_iter().chain([None]).collect::<Vec<_>>();
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
        let mut out: Vec<u16> = Vec::new();
        let mut half: Vec<(u16, u32)> = Vec::new();
        for op in ops {
            match op {
                Op::Advance { by_ms } => now_ms += by_ms,
                Op::GiveBack { which, rest } if !out.is_empty() => {
                    let port = out.swap_remove(which % out.len());
                    if let Some(at) = half.iter().position(|(other, _)| *other == port) {
                        ports.0.completes(&mut ports.1, half.remove(at).1);
                    }
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
                    if half.iter().all(|(other, _)| *other != port) {
                        half.push((port, ports.0.begins(&mut ports.1, port)));
                    }
                }
                Op::Completes { which } if !out.is_empty() => {
                    let port = out[which % out.len()];
                    if let Some(at) = half.iter().position(|(other, _)| *other == port) {
                        ports.0.completes(&mut ports.1, half.remove(at).1);
                    }
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
                        Purpose::Move if ready <= ports.0.reserve() => prop_assert_eq!(taken, None),
                        Purpose::Move => {}
                        Purpose::Rescue => prop_assert_eq!(taken.is_some(), ready > 0),
                        // Those that are kept back are ready ones.
                        Purpose::Handshake if rested > ports.0.reserve() => prop_assert!(taken.is_some()),
                        Purpose::Handshake => prop_assert!(rested > 0 || taken.is_none()),
                        Purpose::Opening => prop_assert_eq!(taken.is_some(), rested > 0),
                        Purpose::Again => {
                            let one = free.iter().any(|f| f.1 <= now_ms && now_ms < f.2);
                            prop_assert!(taken.is_some() || !one);
                        }
                    }
                    if let Some(port) = taken {
                        prop_assert!(!out.contains(&port), "{port} is out already");
                        let at = free.iter().position(|f| f.0 == port).unwrap();
                        let (_, rested_ms, ready_ms) = free.swap_remove(at);
                        let syn = !matches!(purpose, Purpose::Move | Purpose::Rescue);
                        let from_ms = if syn { rested_ms } else { ready_ms };
                        prop_assert!(from_ms <= now_ms, "before its time");
                        out.push(port);
                    }
                }
            }
            prop_assert_eq!(ports.free(), 16 - out.len());
            let rested = free.iter().filter(|f| f.1 <= now_ms).count();
            prop_assert_eq!(ports.has_one(now_ms), rested > 0);
            let half_open = half.first().map(|(oldest, _)| (*oldest, half.len()));
            prop_assert_eq!(ports.0.half_open(&ports.1), half_open);
            let resting = ports.0.remembered();
            let next = |from| ports.0.next_busy(&ports.1, from);
            let busy = std::iter::successors(next(0), |(_, from)| next(*from));
            prop_assert_eq!(busy.count(), out.len() + resting);
            prop_assert_eq!(ports.1.spare(), 16 + RESTING_MAX - out.len() - resting);
        }
    }
}
