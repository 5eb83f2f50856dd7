//! What is found out about pods, and what follows for their flows: probes, health, going through a
//! pod's legs, drains, keys.
//!
//! Everything here is an `impl` of the engine; what is known of a pod is `backend`'s.

pub(crate) mod drain;
pub(crate) mod health;
pub(crate) mod order;
pub(crate) mod probe;
pub(crate) mod signing;
pub(crate) mod sweep;
