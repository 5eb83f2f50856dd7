//! What the operator brings to dataplanes and shims: snapshots, certificates and adoption keys.
//!
//! - [`push`]: one task per dataplane that keeps its snapshot equal to what its class shall serve,
//!   and tells what it does.
//! - [`certificates`]: when which certificate of the control connections is due, and issuing it.
//! - [`keys`]: the steps by which one adoption key replaces another while both work.
//!
//! Decisions are pure functions and state machines with the clock and randomness as arguments; only
//! `push` does I/O, and only towards control APIs. This crate knows no Kubernetes: it gives out
//! [`Files`], and the binary stores them as Secrets or in a directory.
#![forbid(unsafe_code)]

pub mod certificates;
mod files;
pub mod keys;
pub mod push;
mod seconds;

pub use files::Files;
pub use seconds::UnixSeconds;

/// Target of the spans that may be exported. Logs show them at their most verbose level only: what
/// is worth a line is a line.
pub const SPANS: &str = "baton_spans";
