//! The packet engine of Baton, sans I/O: `(now, frame, state) -> verdict + frames out`.
//!
//! [`Engine`] owns flows, legs, request boundaries, the choice of backend and the adoption state
//! machine. It does no I/O, reads no clock and draws no randomness of its own: the caller passes
//! `now` and a seed, and gives frames in and takes frames out. All memory is reserved by
//! [`Engine::new`] and [`Engine::apply`]; [`Engine::frame`] and [`Engine::poll`] never allocate.
//!
//! # Invariants
//! - A flow has one owner leg; what any other leg sends is absorbed (fencing).
//! - The state of a flow changes only in `segments::steps`, by a row of the declared table.
//! - Numbers are the same for client and pod but on a translated leg, where a constant lies between
//!   them in each direction (`tables::shifts`).
//! - The modules here stand in an order in which each names only those before it: ARCHITECTURE.md,
//!   "Inside the engine".
#![forbid(unsafe_code)]

mod backend;
mod balance;
mod check;
mod clock;
mod config;
mod containers;
mod effects;
mod engine;
mod flow;
pub mod handover;
mod ids;
mod legs;
mod moves;
mod mutants;
mod net;
mod obs;
mod pods;
mod reports;
mod segments;
pub mod states;
mod tables;
mod timers;
pub mod timing;
mod workers;

pub use balance::placement::promises;
pub use clock::Instant;
pub use config::in_force::ApplyError;
pub use config::prepare::{Planner, Prepared};
pub use config::sift::{Applied, Objection};
pub use config::steering::SteeredEnds;
pub use containers::ahead::AHEAD_MAX;
pub use containers::pace::Share;
pub use engine::{Engine, Output, Settings, SettingsError, Verdict};
pub use moves::migrate::{Migrate, MigrateError, MigrateOrder};
#[cfg(feature = "mutants")]
pub use mutants::Mutant;
pub use net::prefixes::{Route, Via};
pub use net::routes::Routes;
pub use obs::cause::{Cause, MoveEnd};
pub use obs::counters::{Counter, DropReason};
pub use obs::figures::{BackendFigures, LATENCY_BOUNDS, Latency, PolicyFigures, Reset};
pub use obs::pins::{Lost, PinReason};
pub use pods::order::DrainOrder;
pub use reports::flow_lookup::FlowLookup;
pub use reports::report::Reporting;
pub use workers::board::{Board, Seat};
pub use workers::exchange::{Measures, ROW, Row};

/// Bytes that one flow costs in all tables together, checked at compile time.
pub const FLOW_BYTES_MAX: usize = 200;
