//! The network as the engine knows it: routes and neighbours, its own addresses and the ports of
//! its legs, the way to the other IP family.
//!
//! Owns where a packet goes next. It knows no flow and sends nothing.

pub(crate) mod across;
pub(crate) mod prefixes;
pub(crate) mod resets;
pub(crate) mod routes;
pub(crate) mod sources;
