//! How many segments are set aside that came ahead of missing ones: in all, and of the clients of
//! one network.
//!
//! Owns these counts and their limits. The copies lie among the kept ones (`kept`); what is set
//! aside is decided in `early`.

use crate::shares::Shares;
/// The part of all kept segments that may be set aside: requests that move need the others.
pub(crate) const EARLY_PART: u32 = 4;
/// The part of these that the clients of one network may have: nobody can take the room of all.
pub(crate) const NETWORK_PART: u32 = 4;

/// How many segments are set aside, in all and by their clients' networks.
pub(crate) struct Early {
    pub(crate) segments: u32,
    pub(crate) segments_max: u32,
    pub(crate) shares: Shares,
}

impl Early {
    /// For an engine with so many kept segments.
    pub(crate) fn new(kept_segments: u32) -> Self {
        let segments_max = (kept_segments / EARLY_PART).max(1);
        Self {
            segments: 0,
            segments_max,
            shares: Shares::new((segments_max / NETWORK_PART).max(1)),
        }
    }

    pub(crate) fn returned(&mut self, network: u16, count: u16) {
        self.shares.returns(network, count);
        self.segments -= u32::from(count);
    }

    /// Asserts that so many are set aside, for tests.
    pub(crate) fn check(&self, segments: usize) {
        assert_eq!(self.segments as usize, segments, "early segments");
        assert_eq!(self.shares.sum(), segments, "early segments by network");
    }

    /// How many are set aside, and how many may be.
    pub(crate) fn used(&self) -> (u32, u32) {
        (self.segments, self.segments_max)
    }
}
