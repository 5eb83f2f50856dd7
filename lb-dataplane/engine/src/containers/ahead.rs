//! Looking ahead in a batch of frames: what they will look for.
//!
//! Owns the notes of one batch between the steps of that, see `look`.

use crate::{containers::index::Hash, ids::Leg};

/// Frames that are looked at together: independent reads overlap about ten at a time, and these
/// fill what is read for them with less than the first-level cache holds.
pub const AHEAD_MAX: usize = 32;

/// Where a look-up begins.
#[derive(Clone, Copy)]
pub(crate) enum Sought {
    Client(Hash),
    Leg(Leg),
}

/// With fewer flows what frames need is in a core's own cache anyway (256 bytes each of 1 MB, which
/// servers have or come near to), and looking ahead would only cost.
pub(crate) const FROM_FLOWS: u32 = 4_096;
/// With all checks on it is done however few there are, so that every test runs it.
pub(crate) const ALWAYS: bool = cfg!(debug_assertions);

/// What the frames of a batch will look for.
#[derive(Default)]
pub(crate) struct Ahead {
    pub(crate) sought: [Option<Sought>; AHEAD_MAX],
    pub(crate) len: usize,
}
