//! Keeps each dataplane's snapshot equal to what its class shall serve, and asks dataplanes and
//! shims what they do.
//!
//! ```text
//!  publish(class, policies) --> Contents (each policy once) --watch--> task of a dataplane
//!  set_targets(..) ---------------------------------------------------^  |     |
//!                                        Report <--bounded channel-------+     +--> control API
//! ```
//!
//! - [`Pusher`] is all that the binary needs: publish what a class shall serve, say which
//!   dataplanes and shims there are, read reports.
//! - A task per target (`task`) does the I/O with one connection; [`session`] decides, with no
//!   clock, randomness or I/O of its own.
//! - [`Contents`] writes each policy once, whatever the number of dataplanes and of changes
//!   elsewhere.
//!
//! Guarantees: a dataplane whose content is right already is not pushed to; only the newest content
//! is ever pushed; no dataplane waits for another one, nor for whoever reads the reports.

mod client;
mod compare;
mod connect;
mod content;
mod found;
mod generation;
mod metrics;
mod outgoing;
mod pusher;
mod report;
pub mod session;
mod settings;
mod split;
mod states;
mod task;

pub use connect::{Connect, ConnectFuture, Connection, Plain, Stream, Tls};
pub use content::{Contents, PolicySet, Rendered, Version};
pub use found::found;
pub use generation::{Epoch, generation_after};
pub use metrics::{Figures, Metrics, PUSH_BUCKETS_SECONDS};
pub use pusher::{PushError, Pusher};
pub use report::{Outcome, Refusal, Report, ShimPod, ShimState, Unreached};
pub use settings::{LIMIT_REPORTS, LIMIT_TARGETS, Settings, Target, TargetKind};
pub use states::{Reading, States};
