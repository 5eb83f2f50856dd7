//! Tests of `wheel`.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const TURN_MS: u64 = SLOTS as u64;

fn pop(wheel: &mut Wheel, now_ms: u64) -> Option<u32> {
    let mut looks = u32::MAX;
    wheel.pop_due(now_ms, &mut looks)
}

fn drain(wheel: &mut Wheel, now_ms: u64) -> Vec<u32> {
    std::iter::from_fn(|| pop(wheel, now_ms)).collect()
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
    assert_eq!(pop(&mut wheel, 9), None);
    assert_eq!(pop(&mut wheel, 10), Some(2));
    assert!(!wheel.is_armed(2));
    assert_eq!(pop(&mut wheel, 10), None);
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
    assert_eq!(pop(&mut wheel, 50), None);
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
        assert_eq!(pop(&mut wheel, 5 + turn * TURN_MS), None);
        assert!(wheel.next_due_ms() <= Some(5 + 3 * TURN_MS));
    }
    assert_eq!(pop(&mut wheel, 4 + 3 * TURN_MS), None);
    assert_eq!(pop(&mut wheel, 5 + 3 * TURN_MS), Some(1));
}

#[test]
fn the_ends_of_time_are_harmless() {
    let mut wheel = Wheel::new(2);
    wheel.arm(0, 0);
    wheel.arm(1, u64::MAX);
    assert_eq!(drain(&mut wheel, 0), [0]);
    assert_eq!(pop(&mut wheel, u64::MAX - 1), None);
    assert_eq!(drain(&mut wheel, u64::MAX), [1]);
    assert_eq!(pop(&mut wheel, u64::MAX), None);
    wheel.arm(0, 3);
    assert_eq!(drain(&mut wheel, u64::MAX), [0]);
}

/// However many are due in one millisecond, a call looks at as many as it may, and the other
/// timers wait for none of it.
#[test]
fn a_crowd_in_one_tick_is_served_in_pieces() {
    let (crowd, idle_ms) = (10_000, 8_000_000);
    let mut wheel = Wheel::new(crowd + 1);
    pop(&mut wheel, 1_000);
    for id in 0..crowd as u32 {
        wheel.arm(id, 1_000 + idle_ms);
    }
    let other = crowd as u32;
    let (mut calls, mut fired, mut last_ms) = (0, 0, 0);
    wheel.arm(other, 2_000);
    while let Some(due_ms) = wheel.next_due_ms() {
        let now_ms = due_ms.max(last_ms);
        last_ms = now_ms;
        calls += 1;
        let mut looks = 256;
        while let Some(id) = wheel.pop_due(now_ms, &mut looks) {
            if id == other {
                assert_eq!(now_ms % 1_000, 0, "on its millisecond");
                if now_ms < 1_000 + idle_ms {
                    wheel.arm(other, now_ms + 1_000);
                }
            } else {
                assert_eq!(now_ms, 1_000 + idle_ms);
                fired += 1;
            }
        }
    }
    assert_eq!(fired, crowd);
    let pieces = 2 * crowd / 256 + 2;
    assert!(calls <= pieces + 2 * idle_ms as usize / 1_000 + 10, "{calls} calls");
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
        while let Some(id) = pop(&mut wheel, now_ms) {
            assert_eq!(deadlines[id as usize], now_ms);
            fired += 1;
        }
    }
    assert_eq!(fired, 500);
    assert!(wakeups <= 500 * 6, "{wakeups} wake-ups: at most one per entry and turn");
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
    /// Time moves on, then up to `pops` expired ids are taken, with so many looks in each call.
    Advance {
        by_ms: u64,
        pops: usize,
        looks: u32,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let offset_ms = prop_oneof![
        4 => 0..200_i64,
        2 => 0..3 * TURN_MS as i64,
        1 => 0..100 * TURN_MS as i64,
        1 => 0..3 * FAR_SLOTS as i64 * TURN_MS as i64,
        1 => -300..0_i64,
    ];
    let by_ms = prop_oneof![
        4 => 0..50_u64,
        2 => 0..2 * TURN_MS,
        1 => TURN_MS - 2..TURN_MS + 2,
        1 => 0..1_000 * TURN_MS,
        1 => 0..3 * FAR_SLOTS as u64 * TURN_MS,
    ];
    let pops = prop_oneof![3 => Just(usize::MAX), 1 => 0..4_usize];
    let looks = prop_oneof![1 => Just(u32::MAX), 1 => 1..4_u32];
    prop_oneof![
        6 => (0..40_u32, offset_ms).prop_map(|(id, offset_ms)| Op::Arm { id, offset_ms }),
        1 => (0..40_u32).prop_map(|id| Op::Cancel { id }),
        3 => (by_ms, pops, looks).prop_map(|(by_ms, pops, looks)| Op::Advance { by_ms, pops, looks }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn agrees_with_a_sorted_map(start_ms in 0..1_u64 << 40, ops in prop::collection::vec(op(), 1..120)) {
        let mut wheel = Wheel::new(40);
        let mut oracle: BTreeMap<u32, u64> = BTreeMap::new();
        let mut now_ms = start_ms;
        prop_assert_eq!(pop(&mut wheel, now_ms), None);
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
                Op::Advance { by_ms, pops, looks } => {
                    // Across less than a turn and with nothing overdue, order is promised too.
                    let ordered = by_ms < TURN_MS && oracle.values().all(|at_ms| *at_ms > now_ms);
                    now_ms += by_ms;
                    let mut last_ms = 0;
                    let mut left = pops;
                    let mut calls = 0;
                    while left > 0 {
                        let mut looks = looks;
                        calls += 1;
                        // Each entry is looked at once on either level, and once more where it
                        // turns out to be a later turn's.
                        prop_assert!(calls <= 40 * 6, "no end");
                        let Some(id) = wheel.pop_due(now_ms, &mut looks) else {
                            if looks == 0 && wheel.next_due_ms() <= Some(now_ms) {
                                continue;
                            }
                            break;
                        };
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
                }
                other => prop_assert!(false, "{other:?}"),
            }
        }
    }
}
