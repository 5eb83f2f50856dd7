//! When the requests of an open loop are due: a Poisson process for each connection, with equal
//! rates or Zipf's.
//!
//! Pure: time is a duration since the start, randomness comes from a seed. Knows neither sockets
//! nor answers.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

/// An open loop: requests are due at their times, whether earlier ones are answered or not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrivals {
    /// Requests per second over all connections.
    pub per_second: f64,
    /// Exponent of Zipf's law for the connections' rates; 0 makes them equal.
    pub zipf: f64,
    /// What the times follow from.
    pub seed: u64,
}

/// Shares of `count` connections by Zipf's law: the k-th has `1 / k^exponent`, scaled so that they
/// sum to 1.
#[must_use]
pub fn zipf_shares(count: usize, exponent: f64) -> Vec<f64> {
    let weights: Vec<f64> = (1..=count).map(|k| (k as f64).powf(-exponent)).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|w| w / sum).collect()
}

/// The times of all connections, in order.
#[derive(Debug)]
pub(crate) struct Schedule {
    rng: fastrand::Rng,
    /// Mean time between two requests, by connection, in seconds.
    gaps_s: Vec<f64>,
    /// The next request of each connection.
    next: BinaryHeap<Reverse<(Duration, usize)>>,
}

impl Schedule {
    pub(crate) fn new(arrivals: &Arrivals, connections: usize) -> Self {
        let mut shares = zipf_shares(connections, arrivals.zipf);
        let mut rng = fastrand::Rng::with_seed(arrivals.seed);
        // The order in which connections open must not tell their rates.
        rng.shuffle(&mut shares);
        let gaps_s: Vec<f64> = shares.iter().map(|s| 1.0 / (s * arrivals.per_second)).collect();
        let mut schedule = Self { rng, gaps_s, next: BinaryHeap::with_capacity(connections) };
        for connection in 0..connections {
            schedule.push(Duration::ZERO, connection);
        }
        schedule
    }

    /// When the next request is due.
    pub(crate) fn next_at(&self) -> Duration {
        self.next.peek().map_or(Duration::MAX, |Reverse((at, _))| *at)
    }

    /// Takes the first request that is due at `now`: its time and its connection.
    pub(crate) fn take(&mut self, now: Duration) -> Option<(Duration, usize)> {
        let Reverse((at, connection)) = *self.next.peek()?;
        if at > now {
            return None;
        }
        self.next.pop();
        self.push(at, connection);
        Some((at, connection))
    }

    fn push(&mut self, after: Duration, connection: usize) {
        // Exponential gaps make a Poisson process. 1 - f64() lies in (0, 1].
        let gap_s = -(1.0 - self.rng.f64()).ln() * self.gaps_s[connection];
        let at = after.saturating_add(Duration::try_from_secs_f64(gap_s).unwrap_or(Duration::MAX));
        self.next.push(Reverse((at, connection)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(10);

    fn times(arrivals: Arrivals, connections: usize) -> Vec<(Duration, usize)> {
        let mut schedule = Schedule::new(&arrivals, connections);
        let mut times = Vec::new();
        while let Some(found) = schedule.take(LENGTH) {
            times.push(found);
        }
        assert!(schedule.next_at() > LENGTH);
        times
    }

    fn equal(seed: u64) -> Arrivals {
        Arrivals { per_second: 2_000.0, zipf: 0.0, seed }
    }

    #[test]
    fn shares_follow_zipf_and_sum_to_one() {
        let shares = zipf_shares(720, 1.0);
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        for (k, share) in shares.iter().enumerate() {
            assert!((shares[0] / share - (k + 1) as f64).abs() < 1e-6, "{k}");
        }
        let steep = zipf_shares(100, 1.2);
        assert!((steep[0] / steep[9] - 10f64.powf(1.2)).abs() < 1e-9);
        assert!(zipf_shares(4, 0.0).iter().all(|s| (s - 0.25).abs() < 1e-12));
    }

    #[test]
    fn requests_come_in_order_at_the_asked_rate() {
        let times = times(equal(1), 32);
        assert!(times.is_sorted_by_key(|(at, _)| *at));
        // 20,000 are expected; their standard deviation is 141.
        assert!(times.len().abs_diff(20_000) < 5 * 141, "{}", times.len());
        for connection in 0..32 {
            let own = times.iter().filter(|(_, c)| *c == connection).count();
            // 625 each, with a standard deviation of 25.
            assert!(own.abs_diff(625) < 5 * 25, "{connection}: {own}");
        }
    }

    #[test]
    fn gaps_are_those_of_a_poisson_process() {
        let times = times(equal(2), 32);
        let gaps: Vec<f64> = times.windows(2).map(|w| (w[1].0 - w[0].0).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // An even pace would have 0, a Poisson process has 1.
        let variation = variance.sqrt() / mean;
        assert!((variation - 1.0).abs() < 0.05, "{variation}");
        let long = gaps.iter().filter(|g| **g > mean).count() as f64 / gaps.len() as f64;
        assert!((long - (-1f64).exp()).abs() < 0.02, "{long}");
    }

    #[test]
    fn unequal_connections_have_their_shares() {
        let times = times(Arrivals { zipf: 1.0, ..equal(3) }, 100);
        let mut counts = vec![0usize; 100];
        for (_, connection) in &times {
            counts[*connection] += 1;
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let wanted = zipf_shares(100, 1.0)[0] * 20_000.0;
        assert!((counts[0] as f64 - wanted).abs() < 5.0 * wanted.sqrt(), "{counts:?}");
        assert_eq!(counts.iter().sum::<usize>(), times.len());
    }

    #[test]
    fn a_seed_makes_the_same_times_again() {
        assert_eq!(times(equal(4), 8), times(equal(4), 8));
        assert_ne!(times(equal(4), 8), times(equal(5), 8));
    }
}
