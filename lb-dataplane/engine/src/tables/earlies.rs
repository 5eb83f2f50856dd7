//! How many segments are set aside that came ahead of missing ones: in all, and of the clients of
//! one network.
//!
//! Owns these counts and their limits. The copies lie among the kept ones (`kept`); what is set
//! aside is decided in `early`.

use crate::containers::{shares::Shares, slots::Slots};

/// The part of all kept segments that may be set aside: requests that move need the others.
const EARLY_PART: u32 = 4;
/// The part of these that the clients of one network may have: nobody can take the room of all.
const NETWORK_PART: u32 = 4;

/// How many segments are set aside, in all and by their clients' networks.
pub(crate) struct Early {
    pub(crate) segments: Slots,
    pub(crate) segments_max: Slots,
    pub(crate) shares: Shares,
}

impl Early {
    /// For an engine with so many kept segments.
    pub(crate) fn new(pool: Slots) -> Self {
        let segments_max = pool.part(EARLY_PART, 1);
        Self {
            segments: Slots::default(),
            segments_max,
            shares: Shares::new(segments_max.part(NETWORK_PART, 1)),
        }
    }

    pub(crate) fn set_aside(&mut self, network: u16, slots: Slots) {
        self.shares.takes(network, slots);
        self.segments += slots;
    }

    pub(crate) fn returned(&mut self, network: u16, slots: Slots) {
        self.shares.returns(network, slots);
        self.segments -= slots;
    }

    /// Asserts that so many are set aside, for tests.
    pub(crate) fn check(&self, segments: Slots) {
        assert_eq!(self.segments, segments, "early segments");
        assert_eq!(self.shares.sum(), segments, "early segments by network");
    }

    /// How many are set aside, and how many may be.
    pub(crate) fn used(&self) -> (u32, u32) {
        (self.segments.all, self.segments_max.all)
    }
}
