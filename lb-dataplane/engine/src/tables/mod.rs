//! The engine's tables that are slabs with an order of their own: who has affinity, what waits for
//! a window, legs that close, segments that came early, open Forgets and transfers, guards'
//! trackers, what is added to the numbers of translated legs.
//!
//! Owns their memory, all of it reserved at start, and who is next in each. It knows no engine and
//! no packet: what an entry means is for the module of the same matter.

mod affinities;
mod backlogs;
pub(crate) mod blocks;
mod closings;
mod earlies;
mod forgets;
mod guards;
pub(crate) mod legs;
pub(crate) mod rests;
mod shifts;
mod transfers;

use crate::{
    containers::shares::Shares,
    flow::kept::{self, Kept},
};
pub(crate) use affinities::{Affinities, NOBODY, NOWHERE};
pub(crate) use backlogs::{
    BACKLOG_PER_FLOW_MAX, Backlog, Backlogs, FIRST_WINDOW_BYTES, Learned, Owed, Reach,
};
use blocks::Blocks;
pub(crate) use closings::{Closing, ClosingLeg, Parked, ParkedLeg, Parking, Promises, Shared};
pub(crate) use earlies::Early;
pub(crate) use forgets::{FORGETS_MAX, Forgets, Open};
pub(crate) use guards::{From, Guards, guard_of};
use legs::Legs;
use rests::Rests;
pub(crate) use shifts::Shifts;
pub(crate) use transfers::{Stage, Transfer, Transfers};

/// What is known of legs, beside their flows.
pub(crate) struct LegTables {
    /// What each is used for.
    pub(crate) uses: Legs,
    pub(crate) rests: Rests,
    pub(crate) closing: Closing,
    /// Of legs that are translated.
    pub(crate) shifts: Shifts,
    pub(crate) forgets: Forgets,
    pub(crate) transfers: Transfers,
    /// Pairs that trackers on the way may remember, as of the last look over the backends, and as
    /// far as the present one is.
    pub(crate) tracked: (u32, u32),
}

impl LegTables {
    /// For backends with so many `numbers` of legs each.
    pub(crate) fn new(
        limits: &baton_api::Limits,
        (backends, numbers): (usize, usize),
        keys: (u64, u64),
    ) -> Self {
        // Two of each flow, one that closes, a Forget, and two of each backend for probes.
        let legs = 2 * limits.flows as usize + limits.closing_legs as usize;
        let legs = legs + Forgets::MAX + 2 * backends;
        Self {
            uses: Legs::new(legs, keys),
            rests: Rests::new(legs, Blocks::new(backends, numbers, legs)),
            closing: Closing::new(limits.closing_legs, backends),
            shifts: Shifts::new(limits.flows + limits.closing_legs, limits.flows, keys),
            forgets: Forgets::new(backends),
            transfers: Transfers::new(),
            tracked: (0, 0),
        }
    }
}

/// Copies of segments: one pool of them, and who has how much of it for what.
pub(crate) struct Copies {
    pub(crate) kept: Kept,
    /// Of requests, by their clients' networks.
    pub(crate) requests: Shares,
    pub(crate) backlogs: Backlogs,
    pub(crate) early: Early,
}

impl Copies {
    /// For so many segments.
    pub(crate) fn new(segments: u32) -> Self {
        let kept = Kept::new(segments);
        let room = kept.capacity();
        Self {
            requests: Shares::new(kept::network_max(room)),
            backlogs: Backlogs::new(room),
            early: Early::new(room),
            kept,
        }
    }
}
