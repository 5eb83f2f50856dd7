//! Those who write what is to be said: into the API server, or into the state directory.

pub mod events;
pub mod files;
pub mod fronts;
mod handover;
pub mod kubernetes;
mod told;
