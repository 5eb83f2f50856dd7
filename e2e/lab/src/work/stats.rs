//! Figures of a load: latencies in one histogram for the whole run, and one summary per window of
//! time.
//!
//! Pure: time comes in as arguments.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

/// Longest latency told apart from longer ones: beyond any timeout of a client here.
const LATENCY_MAX_US: u64 = 120_000_000;
/// Three digits: an error of at most 0.1 %.
const DIGITS: u8 = 3;

/// Percentiles of many latencies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// How many.
    pub count: u64,
    /// Half are at most this long.
    pub p50_us: u64,
    /// 90 % are at most this long.
    pub p90_us: u64,
    /// 99 % are at most this long.
    pub p99_us: u64,
    /// 99.9 % are at most this long.
    #[serde(default)]
    pub p999_us: u64,
    /// The longest.
    pub max_us: u64,
}

/// One window of a time series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Start, since the run's start.
    pub start_ms: u64,
    /// What ended in it.
    pub latency: Latency,
}

/// Requests that took longer than some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slow {
    /// How many.
    pub requests: u64,
    /// On how many connections, of those that are open at one time.
    pub connections: u64,
}

/// What came of it. A client of others (wrk) fills in what it knows.
#[derive(Clone, Debug, Default)]
pub struct LoadReport {
    /// Right responses.
    pub requests: u64,
    /// Errors by kind: `connect`, `closed`, `reset`, `io`, `timeout`, and what the exchange calls
    /// wrong.
    pub errors: Counts,
    /// Connections that ended as the server had announced with a right response; made anew.
    pub announced: u64,
    /// Requests of an open loop that were due and could not be sent before the end. Their latency
    /// counts as the time that they had waited then.
    pub unsent: u64,
    /// Of the right responses. A request that was the first of its connection counts from the first
    /// try to connect, but for the connections that the load begins with.
    pub latency: Latency,
    /// Requests that took longer than [`crate::LoadOptions::slow`], also those that were never
    /// answered.
    pub slow: Slow,
    /// The same over time.
    pub windows: Vec<Window>,
    /// The same by phase, as [`crate::Progress::next_phase`] parted them. A latency counts in each
    /// phase that it touched.
    pub phases: Vec<Latency>,
    /// From first connection to last response.
    pub elapsed: Duration,
}

impl LoadReport {
    /// All errors.
    #[must_use]
    pub fn error_count(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Right responses per second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Collects latencies.
#[derive(Clone, Debug)]
pub struct Recorder {
    all: Histogram<u64>,
    current: Histogram<u64>,
    window: Duration,
    index: u128,
    windows: Vec<Window>,
    phases: Vec<Histogram<u64>>,
}

impl Recorder {
    /// With windows of the given length.
    #[must_use]
    pub fn new(window: Duration) -> Self {
        let empty =
            Histogram::new_with_max(LATENCY_MAX_US, DIGITS).expect("constants are in range");
        Self {
            all: empty.clone(),
            current: empty,
            window: window.max(Duration::from_millis(1)),
            index: 0,
            windows: Vec::new(),
            phases: Vec::new(),
        }
    }

    /// Notes one latency in each of the phases that it touched.
    pub fn record_phases(&mut self, phases: RangeInclusive<usize>, latency: Duration) {
        while self.phases.len() <= *phases.end() {
            let mut empty = self.all.clone();
            empty.reset();
            self.phases.push(empty);
        }
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        for phase in phases {
            self.phases[phase].saturating_record(us);
        }
    }

    /// Latencies by phase.
    #[must_use]
    pub fn phases(&self) -> Vec<Latency> {
        self.phases.iter().map(summary).collect()
    }

    /// Notes one latency that ended `at` after the run's start. Calls come in the order of `at`.
    pub fn record(&mut self, at: Duration, latency: Duration) {
        let index = at.as_nanos() / self.window.as_nanos();
        if index != self.index {
            self.close();
            self.index = index;
        }
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.all.saturating_record(us);
        self.current.saturating_record(us);
    }

    fn close(&mut self) {
        if !self.current.is_empty() {
            let start_ms = self.window.as_millis() * self.index;
            self.windows.push(Window {
                start_ms: u64::try_from(start_ms).unwrap_or(u64::MAX),
                latency: summary(&self.current),
            });
            self.current.reset();
        }
    }

    /// The whole run and its windows; windows without a response are not there.
    #[must_use]
    pub fn finish(mut self) -> (Latency, Vec<Window>) {
        self.close();
        (summary(&self.all), self.windows)
    }
}

fn summary(histogram: &Histogram<u64>) -> Latency {
    let at = |q| histogram.value_at_quantile(q).min(histogram.max());
    Latency {
        count: histogram.len(),
        p50_us: at(0.50),
        p90_us: at(0.90),
        p99_us: at(0.99),
        p999_us: at(0.999),
        max_us: histogram.max(),
    }
}

/// Counts by kind, as errors.
pub type Counts = BTreeMap<String, u64>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_windows_of_known_latencies() {
        let mut recorder = Recorder::new(Duration::from_millis(100));
        for i in 1..=1000u64 {
            recorder.record(Duration::from_millis(i / 2), Duration::from_micros(i));
        }
        let (all, windows) = recorder.finish();
        assert_eq!(
            all,
            Latency {
                count: 1000,
                p50_us: 500,
                p90_us: 900,
                p99_us: 990,
                p999_us: 999,
                max_us: 1000
            }
        );
        let starts: Vec<_> = windows.iter().map(|w| w.start_ms).collect();
        assert_eq!(starts, [0, 100, 200, 300, 400, 500]);
        assert_eq!(windows.iter().map(|w| w.latency.count).sum::<u64>(), 1000);
        assert_eq!(windows[0].latency.max_us, 199);
        assert_eq!(windows[1].latency.p50_us, 299);
    }

    #[test]
    fn a_latency_counts_in_each_phase_that_it_touched() {
        let mut recorder = Recorder::new(Duration::from_secs(1));
        recorder.record_phases(0..=0, Duration::from_micros(10));
        recorder.record_phases(0..=2, Duration::from_micros(500));
        recorder.record_phases(2..=2, Duration::from_micros(20));
        let counts: Vec<_> = recorder.phases().iter().map(|p| p.count).collect();
        assert_eq!(counts, [2, 1, 2]);
        assert_eq!(recorder.phases()[1].max_us, 500);
    }

    #[test]
    fn a_latency_beyond_the_range_is_kept_at_its_end() {
        let mut recorder = Recorder::new(Duration::from_secs(1));
        recorder.record(Duration::ZERO, Duration::from_secs(100_000));
        let (all, _) = recorder.finish();
        assert!(all.max_us >= LATENCY_MAX_US);
    }
}
