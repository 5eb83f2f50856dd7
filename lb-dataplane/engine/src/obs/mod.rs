//! What is counted, measured and told: counters, events, figures for metrics, and the fixed lists
//! of causes behind them.
//!
//! Owns numbers, their labels and what each means. It decides nothing; who gathers them for a
//! reader is `reports`.

pub(crate) mod cause;
pub(crate) mod counters;
pub(crate) mod events;
pub(crate) mod figures;
pub(crate) mod ledger;
pub(crate) mod pins;
