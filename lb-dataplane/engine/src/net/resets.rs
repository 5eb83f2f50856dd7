//! How many answers to segments that belong to nothing may leave in a second, so that a flood is
//! not answered with a flood.
//!
//! Owns a budget for each kind of them: strangers, of whom anybody sends as many as he likes, take
//! nothing from the others. It never builds a segment.

use crate::clock::Instant;

/// Of each kind.
const PER_SECOND: u32 = 20_000;

/// Whom an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Whom {
    /// Clients without a flow, or of a family that nobody serves.
    Strangers,
    /// Clients that begin anew on a flow that lives: they are challenged.
    Clients,
    /// Pods with a socket that is no leg's any more.
    Pods,
}

const KINDS: usize = 3;

/// What is left of this second's budgets.
#[derive(Clone, Copy)]
pub(crate) struct Resets {
    left: [u32; KINDS],
    second: u64,
}

impl Resets {
    pub(crate) fn new() -> Self {
        Self { left: [PER_SECOND; KINDS], second: 0 }
    }

    pub(crate) fn take(&mut self, now: Instant, whom: Whom) -> bool {
        let second = now.0 / 1_000_000;
        if second != self.second {
            *self = Self { second, ..Self::new() };
        }
        let left = &mut self.left[whom as usize];
        let some = *left > 0;
        *left -= u32::from(some);
        some
    }
}
