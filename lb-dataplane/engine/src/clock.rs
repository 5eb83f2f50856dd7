//! Time, as callers give it: the engine never reads a clock.
//!
//! Owns its unit. Durations are in `timing`.

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
