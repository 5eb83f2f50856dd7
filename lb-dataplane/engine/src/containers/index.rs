//! A table of numbers, found by a hash: flows by their client's end, legs by theirs.
//!
//! Owns buckets of one cache line: eight marks and numbers each. Every number is at home in two
//! buckets, the second of which is used only where the first is full, and one that stands in the
//! way moves to its other one (cuckoo hashing, Pagh and Rodler 2004, with one step). A short list
//! has what found no room so. It neither knows keys nor makes hashes: callers give a hash, and say
//! of a number that was found whether it is the one. Half full, a look-up that finds something
//! reads one line for 99 of 100 numbers. Never grows.
//!
//! # Decisions
//!
//! - **Clients and legs are found through one kind of index**: buckets of one cache line, two for
//!   each entry (cuckoo hashing with one step, full to five sixths by simulation before anything
//!   finds no room). A flow is two lines, what each segment needs in the first. Legs of all
//!   backends are in one table (`legs.rs`), and of its ports a backend keeps bits only where some
//!   are busy (`blocks.rs`); entries exist only for those that rest (`rests.rs`, bounded in all by
//!   what a node's tracker remembers). Before, a backend had arrays over all its ports: 180 KB
//!   each, 739 MB for 4,096; now 1.4 KB (`engine/tests/growth.rs`). A look-up in an array was 45
//!   instructions shorter.

use wide::u32x8;

/// Entries of a bucket: 8 marks and 8 numbers of 4 bytes fill a cache line.
const SLOTS: usize = 8;
/// Numbers that found no room. With buckets that are up to five sixths full and hashes by chance
/// there are none (`there_is_room`).
pub(crate) const SPILL_MAX: usize = 32;
/// No entry.
pub(crate) const FREE: u32 = u32::MAX;

#[derive(Clone)]
#[repr(align(64))]
struct Bucket {
    /// Part of the hash, for most of the comparing.
    marks: [u32; SLOTS],
    numbers: [u32; SLOTS],
}

impl Bucket {
    const EMPTY: Self = Self { marks: [0; SLOTS], numbers: [FREE; SLOTS] };

    /// The number of the first slot with a mark. All are compared at once: which one it is cannot
    /// be foretold, and a branch foretold wrongly costs more than all the rest.
    #[inline(always)]
    fn first_with(&self, mark: u32) -> Option<u32> {
        let same = u32x8::new(self.marks).simd_eq(u32x8::splat(mark));
        let at = same.to_bitmask().trailing_zeros();
        self.numbers.get(at as usize).copied()
    }

    #[inline]
    fn find(&self, mark: u32, mut is: impl FnMut(u32) -> bool) -> Option<usize> {
        let (marks, numbers) = (&self.marks, &self.numbers);
        (0..SLOTS).find(|at| marks[*at] == mark && numbers[*at] != FREE && is(numbers[*at]))
    }

    /// Whether there was room.
    fn put(&mut self, mark: u32, number: u32) -> bool {
        let free = self.numbers.iter().position(|n| *n == FREE);
        if let Some(at) = free {
            (self.marks[at], self.numbers[at]) = (mark, number);
        }
        free.is_some()
    }
}

/// Where something is, or may be: the hash of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hash {
    /// Chooses the buckets: the low half one, the high half the other.
    pub(crate) place: u64,
    /// What is compared before a number is asked for. A whole key, if it fits: then no number has
    /// to be.
    pub(crate) mark: u32,
}

/// Numbers below `u32::MAX` by hashes.
pub(crate) struct Index {
    buckets: Box<[Bucket]>,
    spill: Vec<(Hash, u32)>,
}

impl Index {
    /// For so many numbers, which take `percent` of the slots.
    pub(crate) fn new(numbers: usize, percent: usize) -> Self {
        let slots = (100 * numbers).div_ceil(percent);
        let buckets = slots.div_ceil(SLOTS).max(2);
        Self {
            buckets: vec![Bucket::EMPTY; buckets].into_boxed_slice(),
            spill: Vec::with_capacity(SPILL_MAX),
        }
    }

    #[inline]
    fn first(&self, hash: Hash) -> usize {
        self.part(hash.place as u32)
    }

    #[inline]
    fn second(&self, hash: Hash) -> usize {
        self.part((hash.place >> 32) as u32)
    }

    /// The bucket of a half, as far among them as the half is among all of 32 bits: so there can be
    /// any number of buckets.
    #[inline]
    fn part(&self, half: u32) -> usize {
        ((u64::from(half) * self.buckets.len() as u64) >> 32) as usize
    }

    /// Reads the line that [`Self::find`] begins with.
    #[inline]
    pub(crate) fn touch(&self, hash: Hash) -> u32 {
        self.buckets[self.first(hash)].marks[0]
    }

    /// The first number with this hash's mark in its first bucket: mostly the one that is looked
    /// for. It may be another one, or [`FREE`].
    #[inline(always)]
    pub(crate) fn guess(&self, hash: Hash) -> Option<u32> {
        let bucket = &self.buckets[self.first(hash)];
        bucket.first_with(hash.mark)
    }

    /// The number with this hash that `is` it.
    #[inline]
    pub(crate) fn find(&self, hash: Hash, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        let bucket = &self.buckets[self.first(hash)];
        if let Some(at) = bucket.find(hash.mark, &mut is) {
            return Some(bucket.numbers[at]);
        }
        self.find_further(hash, is)
    }

    #[inline]
    fn find_further(&self, hash: Hash, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        let bucket = &self.buckets[self.second(hash)];
        if let Some(at) = bucket.find(hash.mark, &mut is) {
            return Some(bucket.numbers[at]);
        }
        let spilt = self.spill.iter().filter(|(of, _)| *of == hash);
        spilt.map(|(_, number)| *number).find(|number| is(*number))
    }

    /// Adds a number, that is not there, with this hash. Whether there was room. `hash_of` says the
    /// hash of a number with its mark, if it may move to its other home.
    pub(crate) fn insert(
        &mut self,
        hash: Hash,
        number: u32,
        hash_of: impl Fn(u32, u32) -> Option<Hash>,
    ) -> bool {
        let homes = [self.first(hash), self.second(hash)];
        for home in homes {
            if self.buckets[home].put(hash.mark, number) {
                return true;
            }
        }
        for home in homes {
            for at in 0..SLOTS {
                let (mark, other) = (self.buckets[home].marks[at], self.buckets[home].numbers[at]);
                let Some(of) = hash_of(other, mark) else {
                    continue;
                };
                let away = self.first(of) ^ self.second(of) ^ home;
                if away != home && self.buckets[away].put(mark, other) {
                    self.buckets[home].marks[at] = hash.mark;
                    self.buckets[home].numbers[at] = number;
                    return true;
                }
            }
        }
        let room = self.spill.len() < SPILL_MAX;
        if room {
            self.spill.push((hash, number));
        }
        room
    }

    fn slot_mut(&mut self, hash: Hash, number: u32) -> Option<&mut u32> {
        for home in [self.first(hash), self.second(hash)] {
            if let Some(at) = self.buckets[home].find(hash.mark, |n| n == number) {
                return Some(&mut self.buckets[home].numbers[at]);
            }
        }
        None
    }

    /// The number with this hash is another one from now on.
    pub(crate) fn replace(&mut self, hash: Hash, number: u32, by: u32) {
        if let Some(slot) = self.slot_mut(hash, number) {
            *slot = by;
            return;
        }
        let spilt = self.spill.iter_mut().find(|s| **s == (hash, number));
        debug_assert!(spilt.is_some(), "{number} is not there");
        if let Some(spilt) = spilt {
            spilt.1 = by;
        }
    }

    /// Takes a number out. Whether it was there.
    pub(crate) fn remove(&mut self, hash: Hash, number: u32) -> bool {
        if let Some(slot) = self.slot_mut(hash, number) {
            *slot = FREE;
            return true;
        }
        let spilt = self.spill.iter().position(|s| *s == (hash, number));
        if let Some(at) = spilt {
            self.spill.swap_remove(at);
        }
        spilt.is_some()
    }

    /// Buckets, for [`Self::numbers_in`].
    pub(crate) fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// What is in a bucket.
    pub(crate) fn numbers_in(&self, bucket: usize) -> [Option<u32>; SLOTS] {
        self.buckets[bucket].numbers.map(|n| (n != FREE).then_some(n))
    }

    /// Whether a bucket is one of the two of a hash, and the number there has its mark.
    pub(crate) fn is_at_home(&self, bucket: usize, hash: Hash, number: u32) -> bool {
        [self.first(hash), self.second(hash)].contains(&bucket)
            && self.buckets[bucket].find(hash.mark, |n| n == number).is_some()
    }

    /// Something had room in neither of its buckets.
    pub(crate) fn spills(&self) -> bool {
        !self.spill.is_empty()
    }

    /// One of these.
    pub(crate) fn spilt(&self) -> Option<u32> {
        Some(self.spill.first()?.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        /// Few buckets, so that both of some, moves from one to the other and the list are used.
        #[test]
        fn agrees_with_a_map(ops in prop::collection::vec((0u8..4, 0u32..60), 1..300)) {
            let mut index = Index::new(32, 100);
            prop_assert_eq!(index.buckets(), 4);
            let mut oracle: HashMap<u32, u32> = HashMap::new();
            // Marks of different keys are the same at times; most have the same two homes.
            let hash = |key: u32| Hash {
                place: u64::from(key % 7 / 5) << 62 | u64::from(key % 3 / 2) << 30,
                mark: key % 50,
            };
            for (number, (op, key)) in (0..).zip(ops) {
                let is = |n: u32| oracle.get(&key) == Some(&n);
                prop_assert_eq!(index.find(hash(key), is), oracle.get(&key).copied());
                match (op, oracle.get(&key).copied()) {
                    (0, Some(old)) => {
                        prop_assert!(index.remove(hash(key), old));
                        prop_assert!(!index.remove(hash(key), old));
                        oracle.remove(&key);
                    }
                    (1, Some(old)) => {
                        index.replace(hash(key), old, number);
                        oracle.insert(key, number);
                    }
                    (_, Some(_)) => {}
                    (_, None) => {
                        let of = |n: u32, _| {
                            let key = oracle.iter().find(|(_, of)| **of == n);
                            key.map(|(key, _)| hash(*key))
                        };
                        let room = index.insert(hash(key), number, of);
                        prop_assert!(room || index.spill.len() == SPILL_MAX);
                        if room {
                            oracle.insert(key, number);
                        }
                    }
                }
                let all = (0..index.buckets()).flat_map(|b| index.numbers_in(b)).flatten().count();
                prop_assert_eq!(all + index.spill.len(), oracle.len());
            }
        }
    }

    #[test]
    fn there_is_room() {
        assert_eq!(size_of::<Bucket>(), 64);
        for (percent, second_max) in [(50, 100), (80, 10)] {
            let mut rng = fastrand::Rng::with_seed(1);
            let numbers = 16_384 * SLOTS * percent / 100;
            let mut index = Index::new(numbers, percent);
            assert_eq!(index.buckets(), 16_384);
            let hashes: Vec<Hash> =
                (0..numbers).map(|_| Hash { place: rng.u64(..), mark: rng.u32(..) }).collect();
            for (number, hash) in (0..).zip(&hashes) {
                assert!(index.insert(*hash, number, |n, _| hashes.get(n as usize).copied()));
            }
            assert!(!index.spills());
            let second = (0..).zip(&hashes).filter(|(number, hash)| {
                let bucket = &index.buckets[index.first(**hash)];
                bucket.find(hash.mark, |n| n == *number).is_none()
            });
            let second = second.count();
            assert!(second < numbers / second_max, "{second} in their second bucket");
        }
    }
}
