//! Draining backends by their name, as a command wants it: a bounded piece at a time between
//! batches of packets.
//!
//! Owns how far such an order is. What a drain does is `drain`'s. No snapshot comes into force
//! while an order is carried out.

use crate::{Engine, clock::Instant};
use std::collections::BTreeSet;

/// What one piece may cost, in units of about 0.1 us: some 50 us.
const PIECE: usize = 512;
/// A policy; a member whose name is looked at, which lies apart in memory.
const COST_LOOK: usize = 1;
/// A member that is meant.
const COST_DRAIN: usize = 8;

/// An order that is carried out.
pub struct DrainOrder {
    policy: Option<String>,
    backend: String,
    on: bool,
    /// The next policy and member.
    at: (usize, usize),
    found: BTreeSet<u16>,
}

impl DrainOrder {
    /// Drain the backends of this name, or end that, beside what the snapshot says: the flows of
    /// this policy, or of each that has one of the name.
    #[must_use]
    pub fn new(policy: Option<String>, backend: String, on: bool) -> Self {
        Self { policy, backend, on, at: (0, 0), found: BTreeSet::new() }
    }

    /// The name that is meant.
    #[must_use]
    pub fn backend(&self) -> &str {
        &self.backend
    }
}

impl Engine {
    /// Carries an order out at once, however long that takes. How many backends are meant.
    pub fn drain(&mut self, now: Instant, policy: Option<&str>, name: &str, on: bool) -> usize {
        let mut order = DrainOrder::new(policy.map(str::to_owned), name.to_owned(), on);
        loop {
            if let Some(backends) = self.drain_piece(now, &mut order) {
                return backends;
            }
        }
    }

    /// Goes on with an order; once it is carried out, how many backends were meant.
    pub fn drain_piece(&mut self, now: Instant, order: &mut DrainOrder) -> Option<usize> {
        let now = self.link.time(now);
        let mut left = PIECE;
        while left > 0 {
            left = left.saturating_sub(COST_LOOK);
            let (number, at) = order.at;
            let Some(policy) = self.policies.get_mut(number) else {
                return Some(order.found.len());
            };
            let spec = &policy.spec;
            let meant =
                policy.listed && order.policy.as_ref().is_none_or(|name| *name == spec.name);
            let mut members = policy.pools.iter_mut().flat_map(|p| &mut p.members);
            let Some(member) = members.nth(at).filter(|_| meant) else {
                order.at = (number + 1, 0);
                continue;
            };
            order.at.1 += 1;
            if policy.origin.backends[usize::from(member.at)].name != order.backend {
                continue;
            }
            member.drained = order.on;
            let (index, leaves) = (member.backend, member.is_leaving());
            self.backends[usize::from(index)].drains.settle(now, number as u16, leaves);
            self.look_over_drain(index);
            left = left.saturating_sub(COST_DRAIN);
            order.found.insert(index);
        }
        None
    }
}
