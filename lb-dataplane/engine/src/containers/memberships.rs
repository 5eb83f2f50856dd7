//! Which policies have a backend as a member.
//!
//! Owns a set of numbers of policies' slots: one bit each, so that joining and parting cost the
//! same however many policies share the backend. It never says what a policy makes of its member.

/// Bits of a word.
const WORD: usize = u64::BITS as usize;

/// The policies of one backend: as many words as the highest number needs, at most 32 with the
/// policies in force and those that replace them all.
#[derive(Default)]
pub(crate) struct Memberships(Vec<u64>);

impl Memberships {
    fn place(policy: u16) -> (usize, u64) {
        let bit = usize::from(policy);
        (bit / WORD, 1 << (bit % WORD))
    }

    pub(crate) fn has(&self, policy: u16) -> bool {
        let (word, bit) = Self::place(policy);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }

    pub(crate) fn insert(&mut self, policy: u16) {
        let (word, bit) = Self::place(policy);
        if word >= self.0.len() {
            self.0.reserve_exact(word + 1 - self.0.len());
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= bit;
    }

    pub(crate) fn remove(&mut self, policy: u16) {
        let (word, bit) = Self::place(policy);
        if let Some(word) = self.0.get_mut(word) {
            *word &= !bit;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// The first policy whose number is at least `from`.
    pub(crate) fn next(&self, from: u16) -> Option<u16> {
        let (first, _) = Self::place(from);
        let mut mask = u64::MAX << (usize::from(from) % WORD);
        for (at, word) in self.0.iter().enumerate().skip(first) {
            let rest = word & std::mem::replace(&mut mask, u64::MAX);
            if rest != 0 {
                return u16::try_from(at * WORD + rest.trailing_zeros() as usize).ok();
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn it_is_a_set_of_numbers_in_order() {
        bolero::check!().with_type::<Vec<(u16, bool)>>().for_each(|changes| {
            let (mut set, mut model) = (Memberships::default(), BTreeSet::new());
            for (policy, joins) in changes {
                if *joins {
                    set.insert(*policy);
                    model.insert(*policy);
                } else {
                    set.remove(*policy);
                    model.remove(policy);
                }
                assert_eq!(set.has(*policy), *joins);
                assert_eq!(set.is_empty(), model.is_empty());
            }
            let mut found = Vec::new();
            let mut from = Some(0);
            while let Some(policy) = from.and_then(|from| set.next(from)) {
                found.push(policy);
                from = policy.checked_add(1);
            }
            assert!(found.iter().eq(&model), "{found:?} {model:?}");
        });
    }
}
