//! Which Pods of this node shall have the adopter, and where each of them is.
//!
//! `watch` asks the API server, `wanted` folds its answers (pure), `processes` and `cgroup` find a
//! Pod's processes in /proc, `place` names namespace and interface. Attaching is `shim`'s.
//!
//! # Decisions
//!
//! - **host-shim finds pods itself**: it reads policies, Services, EndpointSlices (those that are
//!   not made of a selector, which it follows itself) and the Pods of its node from the API server,
//!   and their processes from /proc, by the UID in the path of their control group. The interface
//!   is the one that has the Pod's address. Not asked of the operator, so that pods get the adopter
//!   while no operator leads. It reads four kinds and writes none; RBAC cannot restrict it to the
//!   Pods of its node. A Pod that the API server forgets before its processes end
//!   (`kubectl delete --grace-period=0 --force`) keeps the adopter until its namespace goes:
//!   without the mark, its last FINs would be those of a living server.

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
