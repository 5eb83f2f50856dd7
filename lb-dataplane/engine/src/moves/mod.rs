//! How flows come to another backend: adoptions, translated legs, rescues, releases and transfers;
//! the copies, the waiting bytes and the sessions that go along.
//!
//! Everything here is an `impl` of the engine that carries out what `handover` decided. It never
//! chooses a backend (`balance`).

pub(crate) mod adopt;
pub(crate) mod answer;
pub(crate) mod backlog;
pub(crate) mod copies;
pub(crate) mod migrate;
pub(crate) mod opening;
pub(crate) mod owed;
pub(crate) mod owner;
pub(crate) mod release;
pub(crate) mod rescue;
pub(crate) mod session;
pub(crate) mod transfer;
