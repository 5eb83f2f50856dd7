//! Snapshots: which policies of one can be taken, how it is made ready elsewhere and put in force a
//! piece at a time, and what is steered to the engine from then on.
//!
//! Owns the order of that. No flow is touched, and no packet waits for a whole snapshot.

pub(crate) mod apply;
pub(crate) mod in_force;
pub(crate) mod place;
pub(crate) mod prepare;
pub(crate) mod sift;
pub(crate) mod steering;
