//! Transfers in progress: what is known of each, and how many there may be.
//!
//! Owns the form and the limits. Which step comes next is `decide`'s, and who takes it `handing`.

use super::{
    decide::{LinkId, Phase},
    moving::{Arriving, Destination, Moving, Target},
};
use baton_adopter::Transfer;
use std::time::Instant;

/// Transfers in progress, of which each holds a descriptor and up to 64 KB of its application's: a
/// sixteenth of the memory that the chart gives host-shim.
pub const TRANSFERS_MAX: usize = 256;
/// Those of one pod, so that another one has room.
pub const TRANSFERS_OF_POD_MAX: usize = 128;

/// A Transfer in progress.
pub struct Open {
    pub ask: Transfer,
    pub phase: Phase,
    pub deadline: Instant,
    pub to: Destination,
    /// What the application says of the connection, until it is offered.
    pub state: Vec<u8>,
    pub moving: Option<Moving>,
    pub why: String,
    /// When Go is said again.
    pub again: Option<Instant>,
    /// When it was said last.
    pub gone: Option<Instant>,
}

impl Open {
    pub fn is_over_channel(&self, id: u64) -> bool {
        self.to.channel() == Some(id)
    }

    /// Where it goes, if this application is asked whether it takes it.
    pub fn asks(&mut self, link: LinkId) -> Option<(&Target, &mut Arriving)> {
        let is_asked = matches!(self.phase, Phase::Offering { to, .. } if to == link);
        let target = self.to.here().filter(|_| is_asked)?;
        Some((target, &mut self.moving.as_mut()?.arriving))
    }
}
