//! The adopter: a BPF program that lets a pod's listener accept a live TCP connection that another
//! pod began, and its loader. Beside it the other BPF program of host-shim, [`Warm`].
//!
//! [`Adopter::load`] loads the program once, [`Adopter::attach`] puts it on a pod's interface,
//! [`Adopter::set_key`] gives it the secrets. With a pin directory everything outlives the process:
//! the next one takes over without a gap. The bytes on the wire are in `docs/adoption-wire.md`.
//! This crate knows nothing of configuration or policy; it is the only one under `host-shim` with
//! `unsafe` code, all of it in `sys`.

mod adopter;
mod asked;
mod attachment;
mod bpffs;
mod error;
pub mod kernel;
pub mod measure;
mod netns;
mod object;
mod outcome;
mod printed;
mod releases;
mod restored;
mod rules;
#[cfg(test)]
mod stack_tests;
mod sys;
mod transfers;
mod warm;

pub use adopter::{Adopter, EPOCHS};
pub use attachment::{Attachment, AttachmentId, Hook};
pub use bpffs::DEFAULT_PIN_DIR;
pub use error::Error;
pub use netns::{Netns, OpenNetns};
pub use outcome::{Counters, Outcome};
pub use releases::{Ask, Asks, Pass, Releases};
pub use restored::{LEG_PATIENCE, Leg};
pub use sys::netns_cookie;
pub use transfers::{Reach, Transfer, TransferAsks, Transfers};
pub use warm::Warm;
