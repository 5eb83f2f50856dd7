//! What the engine shows of itself: flows, policies, backends, counters; and when each figure
//! counts.
//!
//! It only looks, but for the figures and events themselves (`obs`).

pub(crate) mod flow_lookup;
pub(crate) mod noting;
pub(crate) mod report;
pub(crate) mod view;
