//! Legs beside their flow's owner: those that close, those that are parked for the next flow, flows
//! that need none, and pairs of ports that trackers are asked to forget.
//!
//! Everything here is an `impl` of the engine; the tables of legs are in `tables`.

pub(crate) mod closing;
pub(crate) mod forget;
pub(crate) mod legless;
pub(crate) mod sharing;
