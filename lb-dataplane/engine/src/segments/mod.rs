//! What each segment does: a client's, a backend's, an ICMP error; the short way and the general
//! one; how frames leave.
//!
//! Everything here is an `impl` of the engine. What a hand-over decides about a segment is
//! `handover`'s, and what it then takes `moves`'.

pub(crate) mod affinity;
pub(crate) mod client;
mod disputed;
mod early;
pub(crate) mod emit;
pub(crate) mod fast;
pub(crate) mod follow;
pub(crate) mod frame;
pub(crate) mod handshake;
pub(crate) mod icmp;
pub(crate) mod introduce;
pub(crate) mod look;
pub(crate) mod requests;
pub(crate) mod restore;
pub(crate) mod server;
pub(crate) mod steps;
