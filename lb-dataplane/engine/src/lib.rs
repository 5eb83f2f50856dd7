//! The packet engine of Baton, sans I/O: `(now, frame, state) -> verdict + frames out`.
//!
//! [`Engine`] owns flows, legs, request boundaries, the choice of backend and the adoption state
//! machine. It does no I/O, reads no clock and draws no randomness of its own: the caller passes
//! `now` and a seed, and gives frames in and takes frames out. All memory is reserved by
//! [`Engine::new`] and [`Engine::apply`]; [`Engine::frame`] and [`Engine::poll`] never allocate.
//!
//! # Invariants
//! - A flow has one owner leg; what any other leg sends is absorbed (fencing).
//! - The state of a flow changes only in [`states`], by a row of the declared table.
//! - Sequence numbers are never translated.
#![forbid(unsafe_code)]

mod across;
mod adopt;
mod affinity;
mod ahead;
mod allowed;
mod answer;
mod apply;
mod backend;
mod backlog;
mod blocks;
mod board;
mod cause;
mod check;
mod client;
mod clock;
mod closing;
mod copies;
mod counters;
mod drain;
mod early;
mod effects;
mod emit;
mod engine;
mod estimate;
mod events;
mod exchange;
mod fast;
mod figures;
mod flow;
mod flow_lookup;
mod follow;
mod forget;
pub mod handover;
mod handshake;
mod health;
mod icmp;
mod ids;
mod in_force;
mod index;
mod introduce;
mod kept;
mod keyed;
mod keys;
mod ledger;
mod legless;
mod legs;
mod load;
mod look;
mod lookup;
mod maglev;
mod member;
mod memberships;
mod migrate;
mod mutants;
mod noting;
mod opening;
mod order;
mod owner;
mod pace;
mod pass;
mod pieces;
mod pins;
mod place;
mod placement;
mod policy;
mod pool;
mod ports;
mod prefixes;
mod prepare;
mod probe;
mod release;
mod report;
mod requests;
mod rescue;
mod resets;
mod restore;
mod rests;
mod routes;
mod server;
mod session;
mod shares;
mod sharing;
mod sift;
mod signing;
mod slots;
mod sources;
mod standing;
pub mod states;
mod steering;
mod steps;
mod sweep;
mod tables;
mod timers;
pub mod timing;
mod transfer;
mod view;
mod wheel;
mod wrr;

pub use ahead::AHEAD_MAX;
pub use board::{Board, Seat};
pub use cause::{Cause, MoveEnd};
pub use clock::Instant;
pub use counters::{Counter, DropReason};
pub use engine::{Engine, Output, Settings, SettingsError, Verdict};
pub use exchange::{Measures, ROW, Row};
pub use figures::{BackendFigures, LATENCY_BOUNDS, Latency, PolicyFigures, Reset};
pub use flow_lookup::FlowLookup;
pub use in_force::ApplyError;
pub use migrate::{Migrate, MigrateError};
#[cfg(feature = "mutants")]
pub use mutants::Mutant;
pub use order::DrainOrder;
pub use pace::Share;
pub use pins::{Lost, PinReason};
pub use placement::promises;
pub use prefixes::{Route, Via};
pub use prepare::{Planner, Prepared};
pub use report::Reporting;
pub use routes::Routes;
pub use sift::{Applied, Objection};
pub use steering::SteeredEnds;

/// Bytes that one flow costs in all tables together, checked at compile time.
pub const FLOW_BYTES_MAX: usize = 200;
