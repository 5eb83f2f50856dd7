//! What is counted, measured and told: counters, events, figures for metrics, and the fixed lists
//! of causes behind them.
//!
//! Owns numbers and labels, no sentence for people, and no decision. Who gathers them for a reader
//! is `reports`.

pub(crate) mod cause;
pub(crate) mod counters;
pub(crate) mod events;
pub(crate) mod figures;
pub(crate) mod ledger;
pub(crate) mod pins;
