//! What goes on a piece at a time, in one round after the other: over all backends, their legs,
//! pools, flows that somebody wants moved.
//!
//! Owns how far each is and when it goes on. What is done at each is its module's.

use crate::{clock::Instant, containers::pass::Pass};
use baton_api::LIMIT_POLICIES;
use std::collections::VecDeque;

/// How far everything is.
pub(crate) struct Rounds {
    /// Over all backends: for adoption probes, for liveness probes, to look at their health.
    pub(crate) probes: Pass,
    pub(crate) liveness_probes: Pass,
    pub(crate) health: Pass,
    /// Backends whose legs are gone through, the next one in front.
    pub(crate) sweeps: VecDeque<u16>,
    /// When going through the legs of some backend goes on.
    pub(crate) sweep_due_ms: Option<u64>,
    /// Not all that came to the interface was given to the engine.
    pub(crate) behind: bool,
    /// What this call of `Engine::poll` may still do; see `Engine::spend`.
    pub(crate) acts: usize,
    /// Policies whose pools are to be judged.
    pub(crate) to_judge: VecDeque<u16>,
    /// When pools were judged at once, and members that still may be, in this moment.
    pub(crate) judged: (u64, usize),
    /// Backends that policies with flows judge by what their kernels say: in the last round of
    /// looking over all, and so far in this one.
    pub(crate) load_wanted: (u32, u32),
    /// The first backend whose keys are from before they changed.
    pub(crate) stale_keys: Option<usize>,
    /// Some flow's move may have been asked for that has not begun.
    pub(crate) pending_moves: bool,
    /// A flow's move was asked for since the last look at all of them began.
    pub(crate) new_pending_moves: bool,
}

impl Rounds {
    /// For so many backends.
    pub(crate) fn new(backends: usize, now: Instant) -> Self {
        Self {
            probes: Pass::new(now.ms()),
            liveness_probes: Pass::new(u64::MAX),
            health: Pass::new(now.ms()),
            sweeps: VecDeque::with_capacity(backends),
            sweep_due_ms: None,
            behind: false,
            acts: 0,
            to_judge: VecDeque::with_capacity(2 * LIMIT_POLICIES),
            judged: (0, 0),
            load_wanted: (0, 0),
            stale_keys: None,
            pending_moves: false,
            new_pending_moves: false,
        }
    }

    /// Whether all that came was given to the engine.
    pub(crate) fn is_behind(&mut self, behind: bool) {
        if self.behind && !behind && !self.sweeps.is_empty() {
            self.sweep_due_ms = Some(0);
        }
        self.behind = behind;
    }

    /// Some was begun and is not at its end: it goes on at once.
    pub(crate) fn go_on(&self) -> bool {
        let passes = [self.probes, self.liveness_probes, self.health];
        passes.iter().any(Pass::is_open) || self.stale_keys.is_some() || !self.to_judge.is_empty()
    }
}
