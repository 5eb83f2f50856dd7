//! What the engine does with flows, seen from outside: frames in, frames out, counters.

#[path = "../common/mod.rs"]
mod common;

mod apply;
mod boundary;
mod choice;
mod closing;
mod handshake;
mod icmp;
mod limits;
mod migration;
mod probes;
mod random;
mod refusal;
mod drain;
mod guards;
mod health;
mod listener;
mod replay;
mod rescue;
mod session;
