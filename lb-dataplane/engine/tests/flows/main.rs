//! What the engine does with flows, seen from outside: frames in, frames out, counters.

#[path = "../common/mod.rs"]
mod common;

mod affinity;
mod apply;
mod boundary;
mod bounds;
mod choice;
mod closing;
mod drain;
mod early;
mod exchange;
mod exit;
mod figures;
mod flow_lookup;
mod forget;
mod found;
mod found_silence;
mod guards;
mod handshake;
mod health;
mod holders;
mod large;
mod limits;
mod liveness;
mod load;
mod meant;
mod members;
mod migrate;
mod migration;
mod never;
mod nodes;
mod pauses;
mod planner;
mod probes;
mod refusal;
mod release;
mod replaced;
mod replay;
mod rescue;
mod session;
mod sharing;
mod sift;
mod sources;
mod transfer;
mod translation;
