//! One worker with a queue in front of it: requests wait in order, each takes the worker for its
//! service time.
//!
//! Pure: time is a duration since the start, randomness comes from a seed. The worker uses no CPU,
//! so that many of them on one machine do not slow each other down.

use anyhow::{Result, bail};
use std::{collections::VecDeque, str::FromStr, time::Duration};

/// The scheduler's accounting period, as for CPU limits of pods.
const PERIOD: Duration = Duration::from_millis(100);
/// The longest service time of [`Distribution::Heavy`], in shortest ones.
const HEAVY_RANGE: f64 = 1_000.0;
/// Its shape: the variance is large, the mean is not.
const HEAVY_SHAPE: f64 = 1.5;

/// How service times are spread around their mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// All equal.
    Constant,
    /// Exponential.
    Exponential,
    /// Bounded Pareto with shape 1.5: few requests are most of the work.
    Heavy,
}

impl FromStr for Distribution {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "constant" => Self::Constant,
            "exponential" => Self::Exponential,
            "heavy" => Self::Heavy,
            _ => bail!("`{text}` is none of constant, exponential, heavy"),
        })
    }
}

impl Distribution {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::Exponential => "exponential",
            Self::Heavy => "heavy",
        }
    }

    /// A value with mean 1, for a uniform number in [0, 1).
    fn sample(self, uniform: f64) -> f64 {
        match self {
            Self::Constant => 1.0,
            Self::Exponential => -(1.0 - uniform).ln(),
            Self::Heavy => {
                let (a, h) = (HEAVY_SHAPE, HEAVY_RANGE);
                // The mean of a Pareto with least value 1 and greatest `h`.
                let mean = (1.0 - h.powf(1.0 - a)) / (1.0 - h.powf(-a)) * a / (a - 1.0);
                (1.0 - uniform * (1.0 - h.powf(-a))).powf(-1.0 / a) / mean
            }
        }
    }
}

/// The worker and what waits for it.
#[derive(Debug)]
pub struct ServiceQueue<T> {
    distribution: Distribution,
    mean: Duration,
    rng: fastrand::Rng,
    waiting: VecDeque<T>,
    /// What is served now, and until when.
    serving: Option<(T, Duration)>,
    /// Service times are so many times as long.
    factor: f64,
    /// Share of one CPU that the worker has; 1 is a whole one.
    quota: f64,
    /// The accounting period that was worked in last, and how much of it was used.
    period: (u128, Duration),
}

impl<T> ServiceQueue<T> {
    /// An idle worker.
    #[must_use]
    pub fn new(distribution: Distribution, mean: Duration, seed: u64) -> Self {
        Self {
            distribution,
            mean,
            rng: fastrand::Rng::with_seed(seed),
            waiting: VecDeque::new(),
            serving: None,
            factor: 1.0,
            quota: 1.0,
            period: (0, Duration::ZERO),
        }
    }

    /// From the next request that is begun, service times are `factor` times as long.
    pub fn set_factor(&mut self, factor: f64) {
        self.factor = factor.max(0.0);
    }

    /// From the next request that is begun, the worker has this share of each period of 100 ms,
    /// from its start.
    pub fn set_quota(&mut self, quota: f64) {
        self.quota = quota.clamp(0.01, 1.0);
    }

    /// A request arrives.
    pub fn push(&mut self, now: Duration, request: T) {
        self.waiting.push_back(request);
        self.begin(now);
    }

    /// When the request that is served now ends.
    #[must_use]
    pub fn next_end(&self) -> Option<Duration> {
        self.serving.as_ref().map(|(_, end)| *end)
    }

    /// Takes the request that has ended by `now`. The next one began when it ended, however late
    /// this is called.
    pub fn take(&mut self, now: Duration) -> Option<T> {
        let (_, end) = self.serving.as_ref()?;
        let end = *end;
        if end > now {
            return None;
        }
        let (request, _) = self.serving.take()?;
        self.begin(end);
        Some(request)
    }

    fn begin(&mut self, now: Duration) {
        if self.serving.is_some() {
            return;
        }
        if let Some(request) = self.waiting.pop_front() {
            let share = self.distribution.sample(self.rng.f64());
            let work = self.mean.mul_f64(share * self.factor);
            let end = self.end_of(now, work);
            self.serving = Some((request, end));
        }
    }

    /// When work that begins now is done: within each period only the quota is worked.
    fn end_of(&mut self, now: Duration, mut work: Duration) -> Duration {
        if self.quota >= 1.0 {
            return now + work;
        }
        let budget = PERIOD.mul_f64(self.quota);
        let mut now = now;
        loop {
            let number = now.as_nanos() / PERIOD.as_nanos();
            if number != self.period.0 {
                self.period = (number, Duration::ZERO);
            }
            let next = PERIOD * u32::try_from(number + 1).unwrap_or(u32::MAX);
            let left = budget.saturating_sub(self.period.1).min(next - now);
            if work <= left {
                self.period.1 += work;
                return now + work;
            }
            work -= left;
            self.period.1 += left;
            now = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn queue(distribution: Distribution) -> ServiceQueue<u32> {
        ServiceQueue::new(distribution, MS, 1)
    }

    #[test]
    fn requests_are_served_one_by_one_in_order() {
        let mut queue = queue(Distribution::Constant);
        queue.push(Duration::ZERO, 1);
        queue.push(MS / 2, 2);
        assert_eq!(queue.next_end(), Some(MS));
        assert_eq!(queue.take(MS / 2), None);
        assert_eq!(queue.take(MS), Some(1));
        // Looked at late, it still began when the first ended.
        assert_eq!(queue.next_end(), Some(2 * MS));
        assert_eq!(queue.take(9 * MS), Some(2));
        assert_eq!((queue.next_end(), queue.take(9 * MS)), (None, None));
        queue.push(10 * MS, 3);
        assert_eq!(queue.next_end(), Some(11 * MS));
    }

    #[test]
    fn a_slower_worker_is_slower_from_its_next_request() {
        let mut queue = queue(Distribution::Constant);
        queue.push(Duration::ZERO, 1);
        queue.push(Duration::ZERO, 2);
        queue.set_factor(3.0);
        assert_eq!(queue.take(MS), Some(1));
        assert_eq!(queue.next_end(), Some(4 * MS));
    }

    #[test]
    fn a_quota_stops_the_worker_until_the_next_period() {
        let mut queue = queue(Distribution::Constant);
        queue.set_quota(0.05);
        for request in 0..12 {
            queue.push(Duration::ZERO, request);
        }
        let ends: Vec<_> = std::iter::from_fn(|| {
            let end = queue.next_end()?;
            queue.take(end).map(|_| end.as_millis())
        })
        .collect();
        // Five a period.
        assert_eq!(ends, [1, 2, 3, 4, 5, 101, 102, 103, 104, 105, 201, 202]);
    }

    #[test]
    fn each_distribution_has_mean_one() {
        let n = 1_000_000;
        let mean = |d: Distribution| {
            (0..n).map(|i| d.sample((f64::from(i) + 0.5) / f64::from(n))).sum::<f64>()
                / f64::from(n)
        };
        for d in [Distribution::Constant, Distribution::Exponential, Distribution::Heavy] {
            assert!((mean(d) - 1.0).abs() < 0.01, "{d:?}: {}", mean(d));
        }
        // The longest 1 % of the heavy tail are a quarter of the work; of exponential times they
        // are 6 %.
        let tail = |d: Distribution| {
            (990_000..n).map(|i| d.sample((f64::from(i) + 0.5) / f64::from(n))).sum::<f64>()
                / f64::from(n)
        };
        assert!(tail(Distribution::Heavy) > 0.15, "{}", tail(Distribution::Heavy));
        assert!(tail(Distribution::Exponential) < 0.06);
    }
}
