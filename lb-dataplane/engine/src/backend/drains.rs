//! Which policies' flows leave a backend, and how many flows it may be given without their asking.
//!
//! Owns the figures and the beginning of each drain. Which flows move and close is `drain`'s.

use crate::{clock::Instant, timing::ADOPTIONS_PER_MS};

/// One policy's flows leave the backend: its member drains, or is none any more.
#[derive(Clone, Copy)]
pub(crate) struct Drain {
    policy: u16,
    pub(crate) since_ms: u64,
    /// By how many its flows there became fewer; below 0 if they became more.
    pub(crate) fewer: i64,
    pub(crate) moved: u64,
    pub(crate) closed: u64,
}

/// Which policies' flows leave a backend.
#[derive(Default)]
pub(crate) struct Drains {
    /// Few, and none on most backends: each request asks. In the order of the policies.
    all: Vec<Drain>,
    /// None of its flows is such a policy's, as far as the last sweep saw.
    empty: bool,
    /// A flow of such a policy came while that sweep went on.
    came: bool,
}

impl Drains {
    /// Whether the flows of a policy leave.
    #[inline]
    pub(crate) fn has(&self, policy: u16) -> bool {
        self.find(policy).is_ok()
    }

    #[inline]
    fn find(&self, policy: u16) -> Result<usize, usize> {
        self.all.binary_search_by_key(&policy, |d| d.policy)
    }

    pub(crate) fn of(&self, policy: u16) -> Option<&Drain> {
        self.find(policy).ok().map(|at| &self.all[at])
    }

    fn of_mut(&mut self, policy: u16) -> Option<&mut Drain> {
        self.find(policy).ok().map(|at| &mut self.all[at])
    }

    /// The flows of a policy leave from now on, or no longer.
    pub(crate) fn settle(&mut self, now: Instant, policy: u16, leave: bool) {
        match self.find(policy) {
            Ok(at) if !leave => {
                self.all.remove(at);
            }
            Err(at) if leave => {
                self.empty = false;
                let drain = Drain { policy, since_ms: now.ms(), fewer: 0, moved: 0, closed: 0 };
                self.all.insert(at, drain);
            }
            _ => {}
        }
    }

    /// Keeps those of policies of which this is so.
    pub(crate) fn retain(&mut self, keep: impl Fn(u16) -> bool) {
        self.all.retain(|drain| keep(drain.policy));
    }

    /// A flow is the backend's from now on.
    #[inline]
    pub(crate) fn comes(&mut self, policy: u16) {
        if let Some(drain) = self.of_mut(policy) {
            drain.fewer -= 1;
            (self.empty, self.came) = (false, true);
        }
    }

    /// A flow is the backend's no longer.
    #[inline]
    pub(crate) fn goes(&mut self, policy: u16) {
        if let Some(drain) = self.of_mut(policy) {
            drain.fewer += 1;
        }
    }

    /// A flow that was the backend's is another one's for good.
    pub(crate) fn moved(&mut self, policy: u16) {
        if let Some(drain) = self.of_mut(policy) {
            drain.moved += 1;
        }
    }

    /// The drain's deadline closed a flow.
    pub(crate) fn closed(&mut self, policy: u16) {
        if let Some(drain) = self.of_mut(policy) {
            drain.closed += 1;
        }
    }

    /// All flows were looked at; whether any of them leaves.
    pub(crate) fn is_swept(&mut self, leaving: bool) {
        self.empty = !leaving && !self.came;
    }

    /// Whether a sweep may find flows that leave.
    pub(crate) fn begins_sweep(&mut self) -> bool {
        if self.all.is_empty() || self.empty {
            return false;
        }
        self.came = false;
        true
    }
}

/// Adoptions per millisecond towards one backend that were begun without a request.
#[derive(Clone, Copy, Default)]
pub(crate) struct Budget {
    ms: u64,
    used: u16,
}

impl Budget {
    pub(crate) fn has_room(&self, now: Instant) -> bool {
        self.ms != now.ms() || self.used < ADOPTIONS_PER_MS
    }

    pub(crate) fn spend(&mut self, now: Instant) {
        if self.ms != now.ms() {
            *self = Self { ms: now.ms(), used: 0 };
        }
        self.used += 1;
    }
}
