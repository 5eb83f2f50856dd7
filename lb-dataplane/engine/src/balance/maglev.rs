//! Consistent hashing of flows to backends with Maglev's lookup table (Eisenbud et al., "Maglev: A
//! Fast and Reliable Software Network Load Balancer", NSDI '16, section 3.4).
//!
//! Owns the table. Two dataplanes with the same backends, in whatever order, have the same table.
//! It never changes after it is built, and it never asks whether a backend is healthy: the caller
//! builds a new table, at apply time, because building allocates and costs milliseconds.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Entries of the table: the prime that the paper uses for its smaller table, more than 100 times
/// the number of backends up to 655, which keeps shares within 1 % and disruption small.
const TABLE: u32 = 65_537;
/// Marks an entry that no backend has taken yet.
const HOLE: u16 = u16::MAX;

/// The lookup table. 128 KiB.
pub(crate) struct Maglev {
    /// Empty if no backend has a weight.
    table: Box<[u16]>,
}

/// A backend's next turn to take an entry. Turn `k` (from 0) of a backend with weight `w` comes at
/// time `(2k + 1) / 2w`, whatever the other backends are, so that removing one, even the heaviest,
/// leaves the order of the others' turns as it was.
struct Turn {
    odd: u64,
    weight: u64,
    identity: u64,
    index: u16,
    /// Where in the table the backend looks next, and how far it goes on from there.
    at: u32,
    skip: u32,
}

impl Ord for Turn {
    fn cmp(&self, other: &Self) -> Ordering {
        // Fractions compared without division: at most 2 * 65,537 * 65,535, far below 64 bits.
        (self.odd * other.weight)
            .cmp(&(other.odd * self.weight))
            .then(self.identity.cmp(&other.identity))
            .then(self.index.cmp(&other.index))
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Turn {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Turn {}

impl Maglev {
    /// The table for backends given as (stable hash of the identity, weight); weight 0 is absent.
    /// A backend whose share of the weights is below half a table entry may get none.
    pub(crate) fn build(backends: &[(u64, u16)]) -> Self {
        let mut turns: BinaryHeap<Reverse<Turn>> = (0..HOLE)
            .zip(backends)
            .filter(|(_, (_, weight))| *weight > 0)
            .map(|(index, &(identity, weight))| {
                Reverse(Turn {
                    odd: 1,
                    weight: weight.into(),
                    identity,
                    index,
                    at: (mix(identity) % u64::from(TABLE)) as u32,
                    skip: (mix(!identity) % u64::from(TABLE - 1)) as u32 + 1,
                })
            })
            .collect();
        if turns.is_empty() {
            return Self { table: Box::default() };
        }
        let mut table = vec![HOLE; TABLE as usize].into_boxed_slice();
        for _ in 0..TABLE {
            let Some(mut first) = turns.peek_mut() else {
                break;
            };
            let turn = &mut first.0;
            // The table's size is prime, so every skip visits every entry: a hole is found.
            while table[turn.at as usize] != HOLE {
                turn.step();
            }
            table[turn.at as usize] = turn.index;
            turn.step();
            turn.odd += 2;
        }
        Self { table }
    }

    /// The backend for a flow's hash, as an index into the slice that the table was built from.
    pub(crate) fn pick(&self, hash: u64) -> Option<usize> {
        let entry = (hash % u64::from(TABLE)) as usize;
        self.table.get(entry).map(|&index| index.into())
    }
}

impl Turn {
    fn step(&mut self) {
        self.at += self.skip;
        if self.at >= TABLE {
            self.at -= TABLE;
        }
    }
}

/// The finaliser of SplitMix64: makes two independent numbers out of one identity hash, also if
/// that is a poor one.
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn equal(count: usize, seed: u64) -> Vec<(u64, u16)> {
        let mut rng = fastrand::Rng::with_seed(seed);
        (0..count).map(|_| (rng.u64(..), 1)).collect()
    }

    /// How many entries each of `count` backends has.
    fn shares(maglev: &Maglev, count: usize) -> Vec<u32> {
        let mut shares = vec![0; count];
        for hash in 0..u64::from(TABLE) {
            shares[maglev.pick(hash).expect("no entry is a hole")] += 1;
        }
        shares
    }

    /// Entries that change their owner, and those of them whose owner was not removed, when
    /// `removed` goes.
    fn disruption(backends: &[(u64, u16)], removed: usize) -> (u32, u32) {
        let mut without = backends.to_vec();
        without[removed].1 = 0;
        let (before, after) = (Maglev::build(backends), Maglev::build(&without));
        let (mut changed, mut needless) = (0, 0);
        for hash in 0..u64::from(TABLE) {
            let (was, is) = (before.pick(hash), after.pick(hash));
            assert_ne!(is, Some(removed));
            changed += u32::from(was != is);
            needless += u32::from(was != is && was != Some(removed));
        }
        (changed, needless)
    }

    #[test]
    fn the_table_size_is_prime() {
        assert!((2..=256).all(|divisor| !TABLE.is_multiple_of(divisor)));
    }

    #[test]
    fn nothing_to_pick_from() {
        assert_eq!(Maglev::build(&[]).pick(1), None);
        assert_eq!(Maglev::build(&[(1, 0), (2, 0)]).pick(1), None);
        assert_eq!(Maglev::build(&[(1, 0), (2, 3)]).pick(u64::MAX), Some(1));
    }

    #[test]
    fn no_holes_and_equal_shares() {
        for count in [1, 2, 3, 7, 50, 100, 256] {
            let mean = f64::from(TABLE) / count as f64;
            // The paper's algorithm gives every backend the same number of turns, but for one.
            for share in shares(&Maglev::build(&equal(count, 1)), count) {
                assert!((f64::from(share) - mean).abs() < 1.0, "{share} of {mean} at {count}");
                assert!(count > 100 || (f64::from(share) / mean - 1.0).abs() < 0.01);
            }
        }
    }

    #[test]
    fn shares_follow_weights() {
        let backends: Vec<_> =
            equal(40, 2).iter().zip(1..).map(|(one, w)| (one.0, w * 3)).collect();
        let sum: f64 = backends.iter().map(|one| f64::from(one.1)).sum();
        for (share, (_, weight)) in shares(&Maglev::build(&backends), 40).iter().zip(&backends) {
            let ideal = f64::from(TABLE) * f64::from(*weight) / sum;
            assert!((f64::from(*share) - ideal).abs() <= 1.0, "{share} for {ideal}");
        }
        // The largest and the smallest weight: below half an entry there is none.
        let shares = shares(&Maglev::build(&[(1, u16::MAX), (2, 1), (3, 32_767)]), 3);
        assert_eq!(shares, [43_691, 1, 21_845]);
    }

    #[test]
    fn the_order_given_does_not_matter() {
        let mut rng = fastrand::Rng::with_seed(3);
        let mut backends = equal(30, 3);
        for one in &mut backends {
            one.1 = rng.u16(0..5);
        }
        let table = Maglev::build(&backends);
        let mut shuffled = backends.clone();
        rng.shuffle(&mut shuffled);
        assert_ne!(shuffled, backends);
        let other = Maglev::build(&shuffled);
        for hash in 0..u64::from(TABLE) {
            let (a, b) = (table.pick(hash).unwrap(), other.pick(hash).unwrap());
            assert_eq!(backends[a], shuffled[b]);
        }
    }

    /// The table must not change between versions and machines, or flows move at an upgrade. The
    /// digest is that of an independent program, which sorts exact fractions and has no heap.
    #[test]
    fn the_table_is_always_the_same() {
        let table = Maglev::build(&[(11, 1), (22, 2), (33, 1)]);
        let digest = table.table.iter().fold(0_u64, |sum, &index| mix(sum ^ u64::from(index)));
        assert_eq!(digest, 0xa36a_8bb2_5c49_1afc);
    }

    #[test]
    fn removal_moves_little_else() {
        for count in [2, 5, 10, 50, 100] {
            let backends = equal(count, 4);
            for removed in [0, count / 2, count - 1] {
                let (changed, needless) = disruption(&backends, removed);
                let ideal = f64::from(TABLE) / count as f64;
                assert!(f64::from(changed) < 2.0 * ideal, "{changed} of {ideal} ({needless})");
                assert!(f64::from(changed) > ideal - 1.0);
            }
        }
    }

    /// Also when the heaviest goes, by whose weight a naive weighting would scale all turns.
    #[test]
    fn removal_of_the_heaviest_moves_little_else() {
        let mut backends = equal(20, 5);
        for (one, weight) in backends.iter_mut().zip(1..) {
            one.1 = weight;
        }
        let (changed, _) = disruption(&backends, 19);
        let ideal = f64::from(TABLE) * 20.0 / 210.0;
        assert!(f64::from(changed) < 2.0 * ideal, "{changed} of {ideal}");
    }

    #[test]
    fn equal_identities_share() {
        let shares = shares(&Maglev::build(&[(9, 1), (9, 1)]), 2);
        assert!(shares.iter().all(|share| share.abs_diff(TABLE / 2) <= 1), "{shares:?}");
    }
}
