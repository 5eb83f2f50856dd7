//! Smooth weighted round robin, the variant that nginx made known: with weights 5, 1, 1 the order
//! is a a b a c a a and not a a a a a b c.
//!
//! Owns each backend's running credit. It never knows why a backend is not usable. A choice looks
//! at every backend, at most 256, which is fine because only new flows choose.

/// The state of one round robin.
#[derive(Default)]
pub(crate) struct Wrr {
    backends: Box<[Backend]>,
}

struct Backend {
    weight: i64,
    /// Grows by the weight with every choice and shrinks by the sum of the weights when chosen.
    /// Over all backends the credits sum up to 0 and stay within a few sums of the weights.
    credit: i64,
}

impl Wrr {
    /// A round robin over backends with these weights; weight 0 is never chosen. The only place
    /// that allocates.
    pub(crate) fn new(weights: &[u16]) -> Self {
        let backends =
            weights.iter().map(|&weight| Backend { weight: weight.into(), credit: 0 }).collect();
        Self { backends }
    }

    /// The next backend among those that are usable now. One that is not usable keeps its credit
    /// and earns none, so it comes back to its share, not to a burst.
    pub(crate) fn next(&mut self, usable: impl Fn(usize) -> bool) -> Option<usize> {
        let mut sum = 0;
        let mut best: Option<(usize, i64)> = None;
        for (index, backend) in self.backends.iter_mut().enumerate() {
            if backend.weight == 0 || !usable(index) {
                continue;
            }
            backend.credit += backend.weight;
            sum += backend.weight;
            if best.is_none_or(|(_, credit)| backend.credit > credit) {
                best = Some((index, backend.credit));
            }
        }
        let (index, _) = best?;
        self.backends[index].credit -= sum;
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn picks(wrr: &mut Wrr, count: usize, usable: impl Fn(usize) -> bool) -> Vec<usize> {
        (0..count).map(|_| wrr.next(&usable).unwrap()).collect()
    }

    #[test]
    fn nginx_example() {
        let mut wrr = Wrr::new(&[5, 1, 1]);
        for _ in 0..3 {
            assert_eq!(picks(&mut wrr, 7, |_| true), [0, 0, 1, 0, 2, 0, 0]);
        }
    }

    #[test]
    fn none_usable() {
        assert_eq!(Wrr::new(&[]).next(|_| true), None);
        assert_eq!(Wrr::new(&[0, 0]).next(|_| true), None);
        let mut wrr = Wrr::new(&[1, 2]);
        assert_eq!(wrr.next(|_| false), None);
        assert_eq!(picks(&mut wrr, 3, |_| true), [1, 0, 1], "a failed choice changes nothing");
    }

    #[test]
    fn one_that_comes_back_gets_its_share_and_no_burst() {
        let mut wrr = Wrr::new(&[1, 1, 1]);
        assert!(!picks(&mut wrr, 100, |index| index != 1).contains(&1));
        let after = picks(&mut wrr, 30, |_| true);
        for index in 0..3 {
            let count = after.iter().filter(|pick| **pick == index).count();
            assert!((9..=11).contains(&count), "{index}: {count} of 30");
        }
        assert!(after.windows(2).all(|pair| pair != [1, 1]), "{after:?}");
    }

    proptest! {
        /// Over one round of as many choices as the weights sum up to, each gets exactly its
        /// weight, and within it is never more than one choice behind or ahead times the number of
        /// backends.
        #[test]
        fn exact_over_a_round(weights in prop::collection::vec(0..20_u16, 1..12)) {
            let sum: usize = weights.iter().map(|weight| usize::from(*weight)).sum();
            prop_assume!(sum > 0);
            let mut wrr = Wrr::new(&weights);
            for _ in 0..2 {
                let mut counts = vec![0; weights.len()];
                for chosen in 1..=sum {
                    counts[wrr.next(|_| true).unwrap()] += 1;
                    for (count, weight) in counts.iter().zip(&weights) {
                        let due = chosen as f64 * f64::from(*weight) / sum as f64;
                        prop_assert!((f64::from(*count) - due).abs() < weights.len() as f64);
                    }
                }
                let counts: Vec<u16> = counts.iter().map(|count| *count as u16).collect();
                prop_assert_eq!(&counts, &weights);
            }
        }

        /// Credits stay bounded, whatever is usable when.
        #[test]
        fn credits_stay_bounded(
            weights in prop::collection::vec(1..=u16::MAX, 1..10),
            masks in prop::collection::vec(any::<u16>(), 1..300),
        ) {
            let mut wrr = Wrr::new(&weights);
            let sum: i64 = weights.iter().map(|weight| i64::from(*weight)).sum();
            let bound = sum * weights.len() as i64;
            for mask in masks {
                let pick = wrr.next(|index| mask >> index & 1 == 1);
                prop_assert!(pick.is_none_or(|index| mask >> index & 1 == 1));
                prop_assert_eq!(wrr.backends.iter().map(|one| one.credit).sum::<i64>(), 0);
                prop_assert!(wrr.backends.iter().all(|one| one.credit.abs() <= bound));
            }
        }
    }
}
