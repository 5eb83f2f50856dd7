//! Counters of a pusher, for the binary to register. Owns no names of metrics.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Upper ends of the buckets of the push duration, from a small change over a fast network to the
/// largest snapshot.
pub const PUSH_BUCKETS_SECONDS: [f64; 11] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// Plain atomics, shared by all tasks. What they hold is read with [`Metrics::figures`].
#[derive(Debug, Default)]
pub struct Metrics {
    pub(super) accepted: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) conflicts: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) reads: AtomicU64,
    pub(super) polls: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) restarts: AtomicU64,
    pub(super) dataplanes: AtomicU64,
    pub(super) in_sync: AtomicU64,
    pub(super) shims: AtomicU64,
    bytes: AtomicU64,
    micros: AtomicU64,
    buckets: [AtomicU64; PUSH_BUCKETS_SECONDS.len() + 1],
}

/// The values at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Pushes that a dataplane took.
    pub pushes_accepted: u64,
    /// Pushes that a dataplane refused because of their content.
    pub pushes_refused: u64,
    /// Pushes that came behind a newer generation.
    pub pushes_conflicting: u64,
    /// Pushes without an answer that makes sense.
    pub pushes_failed: u64,
    /// Snapshots read back.
    pub reads: u64,
    /// States read.
    pub polls: u64,
    /// Requests and connections that failed, pushes included.
    pub failures: u64,
    /// Dataplanes found to have started again.
    pub restarts: u64,
    /// Dataplanes there are.
    pub dataplanes: u64,
    /// Of these, those that hold the newest content.
    pub dataplanes_in_sync: u64,
    /// Shims there are.
    pub shims: u64,
    /// Bytes of all accepted pushes.
    pub pushed_bytes: u64,
    /// Time of all accepted pushes, from request to answer.
    pub push_micros: u64,
    /// Accepted pushes by duration: not cumulative, one for each of [`PUSH_BUCKETS_SECONDS`] and
    /// one for what took longer.
    pub push_buckets: [u64; PUSH_BUCKETS_SECONDS.len() + 1],
}

impl Metrics {
    /// Counts an accepted push.
    pub(super) fn accepted(&self, took: Duration, bytes: u64) {
        let seconds = took.as_secs_f64();
        let bucket = PUSH_BUCKETS_SECONDS.partition_point(|end| *end < seconds);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        self.accepted.fetch_add(1, Relaxed);
    }

    /// All values. Each is exact; they are not of one instant.
    #[must_use]
    pub fn figures(&self) -> Figures {
        Figures {
            pushes_accepted: self.accepted.load(Relaxed),
            pushes_refused: self.refused.load(Relaxed),
            pushes_conflicting: self.conflicts.load(Relaxed),
            pushes_failed: self.failed.load(Relaxed),
            reads: self.reads.load(Relaxed),
            polls: self.polls.load(Relaxed),
            failures: self.failures.load(Relaxed),
            restarts: self.restarts.load(Relaxed),
            dataplanes: self.dataplanes.load(Relaxed),
            dataplanes_in_sync: self.in_sync.load(Relaxed),
            shims: self.shims.load(Relaxed),
            pushed_bytes: self.bytes.load(Relaxed),
            push_micros: self.micros.load(Relaxed),
            push_buckets: std::array::from_fn(|i| self.buckets[i].load(Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_the_bucket_whose_end_holds_them() {
        let metrics = Metrics::default();
        for (millis, bucket) in [(0, 0), (1, 0), (2, 1), (100, 6), (101, 7), (6_000, 11)] {
            let before = metrics.figures().push_buckets[bucket];
            metrics.accepted(Duration::from_millis(millis), 10);
            assert_eq!(metrics.figures().push_buckets[bucket], before + 1, "{millis}");
        }
        assert_eq!(metrics.figures().pushed_bytes, 60);
        assert_eq!(metrics.figures().push_micros, 6_204_000);
    }
}
