//! Time, as callers give it: the engine never reads a clock.
//!
//! Owns its unit, and what of it does not pass for the engine. Durations are in `timing`.

use crate::timing::LINK_SETTLE_MS;

/// Microseconds on a monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub u64);

impl Instant {
    /// Whole milliseconds.
    #[must_use]
    pub const fn ms(self) -> u64 {
        self.0 / 1_000
    }

    /// Milliseconds as flows keep them.
    pub(crate) const fn ms32(self) -> u32 {
        self.ms() as u32
    }
}

/// The dataplane's own interface. While it is down the engine's clock stands still: nothing that is
/// not heard means anything, and no time-out comes nearer.
#[derive(Default)]
pub(crate) struct Link {
    down: Option<Instant>,
    /// So much the engine's own clock is behind.
    stood_still_us: u64,
    settled_ms: u64,
}

impl Link {
    pub(crate) fn goes_down(&mut self, now: Instant) {
        self.down = Some(self.time(now));
    }

    /// Since when it was down, if it was.
    pub(crate) fn comes_up(&mut self, now: Instant) -> Option<Instant> {
        let since = self.down.take()?;
        self.stood_still_us = now.0 - since.0;
        self.settled_ms = since.ms() + LINK_SETTLE_MS;
        Some(since)
    }

    pub(crate) fn is_down(&self) -> bool {
        self.down.is_some()
    }

    /// Silence means something again after it was down.
    pub(crate) fn is_settled(&self, now: Instant) -> bool {
        now.ms() >= self.settled_ms
    }

    /// The engine's own clock.
    #[inline]
    pub(crate) fn time(&self, now: Instant) -> Instant {
        self.down.unwrap_or(Instant(now.0 - self.stood_still_us))
    }

    /// The caller's time, of a moment by the engine's clock.
    pub(crate) fn outside(&self, due_us: u64) -> Instant {
        Instant(due_us.saturating_add(self.stood_still_us))
    }
}
