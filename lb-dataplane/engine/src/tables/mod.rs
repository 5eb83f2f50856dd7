//! The engine's tables that are slabs with an order of their own: who has affinity, what waits for
//! a window, legs that close, segments that came early, open Forgets and transfers, guards'
//! trackers, what is added to the numbers of translated legs.
//!
//! Owns their memory, all of it reserved at start, and who is next in each. It knows no engine and
//! no packet: what an entry means is for the module of the same matter.

mod affinities;
mod backlogs;
mod closings;
mod earlies;
mod forgets;
mod guards;
pub(crate) mod legs;
mod shifts;
mod transfers;

pub(crate) use affinities::{Affinities, NOBODY, NOWHERE};
pub(crate) use backlogs::{
    BACKLOG_PER_FLOW_MAX, Backlog, Backlogs, FIRST_WINDOW_BYTES, Learned, Reach,
};
pub(crate) use closings::{Closing, ClosingLeg, Parked, ParkedLeg, Parking, Promises, Shared};
pub(crate) use earlies::Early;
pub(crate) use forgets::{FORGETS_MAX, Forgets, Open};
pub(crate) use guards::{From, Guards, guard_of};
pub(crate) use shifts::Shifts;
pub(crate) use transfers::{Stage, Transfer, Transfers};
