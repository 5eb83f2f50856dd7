//! What the engines of several workers tell each other, and where they read it.
//!
//! Owns the rows and the shared memory. It decides nothing.

pub(crate) mod board;
pub(crate) mod exchange;
