//! Going through all backends, a piece at a time.
//!
//! Owns when that is due and how far it is. What is done at each backend is the caller's.

use crate::clock::Instant;

/// A going through all backends.
#[derive(Clone, Copy)]
pub(crate) struct Pass {
    /// When one begins; while one goes on, the next.
    pub(crate) due_ms: u64,
    /// Where it is; none: it is not begun.
    at: Option<usize>,
    /// The earliest time that it found so far.
    found_ms: u64,
}

impl Pass {
    pub(crate) fn new(due_ms: u64) -> Self {
        Self { due_ms, at: None, found_ms: u64::MAX }
    }

    /// Something is due then, or sooner.
    pub(crate) fn by(&mut self, ms: u64) {
        self.due_ms = self.due_ms.min(ms);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.at.is_some()
    }

    /// The next backend of `all`, if it is begun or due; `next_ms`: by when the next one is.
    pub(crate) fn next(&mut self, now: Instant, next_ms: u64, all: usize) -> Option<usize> {
        if self.at.is_none() && now.ms() >= self.due_ms {
            self.due_ms = if all > 0 { u64::MAX } else { next_ms };
            (self.at, self.found_ms) = ((all > 0).then_some(0), next_ms);
        }
        self.at
    }

    /// At this backend something is due then. Whether it was the last one.
    pub(crate) fn done(&mut self, due_ms: u64, all: usize) -> bool {
        self.found_ms = self.found_ms.min(due_ms);
        self.at = self.at.map(|at| at + 1).filter(|at| *at < all);
        if self.at.is_none() {
            self.by(self.found_ms);
        }
        self.at.is_none()
    }
}
