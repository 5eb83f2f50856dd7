//! A small TCP endpoint, for clients and for the kernels of pods: the oracle that the engine is
//! judged against.
//!
//! Owns one connection as RFC 9293 describes it and Linux 6.9 and later do it where the two differ
//! or the RFC leaves room (each such place names the function). It never does I/O: frames in,
//! frames out, a deadline. Left out because nothing here depends on it: congestion control, SACK
//! blocks, Nagle's algorithm, urgent data.

mod buffer;
mod input;
mod output;
mod socket;
#[cfg(test)]
mod tests;
pub mod wire;

pub use input::Effect;
pub use socket::{Adopted, Config, Failure, Socket, State};
