//! The monotonic clock, read in one place.
//!
//! The engine never reads a clock itself: the worker reads it once per batch and hands the time
//! down.

use baton_engine::Instant;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Microseconds since boot. Through the vDSO: about 20 ns, no system call.
#[must_use]
pub fn now() -> Instant {
    let time = clock_gettime(ClockId::Monotonic);
    // Both fields are non-negative on a monotonic clock.
    Instant(time.tv_sec.unsigned_abs() * 1_000_000 + time.tv_nsec.unsigned_abs() / 1_000)
}

/// Nanoseconds since 1970, for people who compare with other clocks.
#[must_use]
pub fn wall_ns() -> u64 {
    let time = clock_gettime(ClockId::Realtime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// How long until `later`; zero if it has passed.
#[must_use]
pub fn until(now: Instant, later: Instant) -> Duration {
    Duration::from_micros(later.0.saturating_sub(now.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_runs_forward_and_the_past_is_no_wait() {
        let first = now();
        let second = now();
        assert!(second.0 >= first.0);
        assert_eq!(until(second, Instant(0)), Duration::ZERO);
        assert_eq!(until(Instant(1_000), Instant(3_500)), Duration::from_micros(2_500));
    }
}
