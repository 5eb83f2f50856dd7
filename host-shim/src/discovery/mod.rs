//! Which Pods of this node shall have the adopter, and where each of them is.
//!
//! `watch` asks the API server, `wanted` folds its answers (pure), `processes` and `cgroup` find a Pod's processes in
//! /proc, `place` names namespace and interface. Attaching is `shim`'s.

mod cgroup;
mod objects;
pub mod place;
mod processes;
mod wanted;
pub mod watch;

pub use place::{Cause, Place, Unfit};
pub use processes::Processes;
#[cfg(test)]
pub use wanted::NodePod;
pub use wanted::{ListenerReport, WantedPod};
