//! A connection that another node's host-shim offers: what is known of it.
//!
//! Owns the form. Which step comes next is `heir`'s, and who takes it `heirs`.

use super::{heir::Phase, wire::Id};
use crate::transfers::{
    decide::LinkId,
    moving::{Arriving, Target},
};
use bytes::Bytes;
use std::time::Instant;

/// A connection that another node offers.
pub struct Heir {
    pub(super) id: Id,
    /// Over which its other side was heard last.
    pub channel: u64,
    pub(super) phase: Phase,
    pub deadline: Instant,
    pub(super) target: Target,
    /// From its coming until it is restored, at once.
    pub(super) record: Bytes,
    pub(super) arriving: Arriving,
    /// Why a step failed.
    pub(super) why: String,
}

impl Heir {
    /// Where it goes, if this application is asked whether it takes it.
    pub fn asks(&mut self, link: LinkId) -> Option<(&Target, &mut Arriving)> {
        let is_asked = matches!(self.phase, Phase::Offered { to } if to == link);
        is_asked.then_some((&self.target, &mut self.arriving))
    }
}
