//! The node: namespaces and what runs in them, CPU limits, and how all of it is removed.
//!
//! Owns the machine's side of a lab. It knows no protocol.

pub(crate) mod cgroup;
pub(crate) mod command;
pub(crate) mod control;
pub(crate) mod cpu_clock;
pub(crate) mod lab;
pub(crate) mod netns;
pub(crate) mod others;
pub(crate) mod process;
pub(crate) mod procfs;
pub(crate) mod record;
pub(crate) mod shared;
pub(crate) mod signals;
