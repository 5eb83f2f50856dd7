//! Deterministic simulation: clients, the real engine and model pods on bad links under a virtual
//! clock, with checkers for everything that must always hold.
//!
//! A run is a seed: [`run`] draws the whole world from it, runs it to its end and says what
//! happened, or the first thing that must not be. One of a hundred worlds is without faults, and
//! longer: there placement is judged (`steady`). Nothing here does I/O, reads a clock or draws
//! randomness that does not come from the seed.
//!
//! # Invariants
//! - The same seed gives the same run, to the byte.
//! - The checkers know what happened only from outside of the engine: what went in, what came out,
//!   what clients and pods did. They look into it for its books and counters alone.
#![forbid(unsafe_code)]

pub mod address;
pub mod asked;
pub mod client;
pub mod clock;
pub mod fault;
pub mod legs;
pub mod link;
pub mod pod;
pub mod scenario;
pub mod smol;
pub mod stack;
pub mod stats;
pub mod steady;
pub mod swarm;
pub mod talk;
pub mod tcp;
pub mod trace;
pub mod truth;
pub mod world;

pub use stats::Stats;
#[cfg(feature = "mutants")]
pub use world::run_with;
pub use world::{Outcome, Violation, World, run};
