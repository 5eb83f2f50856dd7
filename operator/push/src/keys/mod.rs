//! The steps by which one adoption key replaces another while both work.
//!
//! ```text
//! add N+1  ->  everybody has it  ->  sign with N+1
//!          ->  everybody signs with it, and a grace passed  ->  remove N
//! ```
//!
//! - [`KeySet`] is what is stored: files `epoch-N` and `current`, as dataplanes and shims read
//!   them.
//! - [`Ages`] is stored beside it (an annotation, a file): since when each key is there. Lost ages
//!   only postpone.
//! - [`Rotator`] decides the next step from what is stored and what dataplanes and shims report.
//!   Its states, events and actions are a declared table ([`table`]), which a test prints and
//!   compares.
//!
//! A key that somebody signs with is never removed, but for those who were unreachable longer than
//! a limit, and those on nodes that an admin excluded: both are named in a warning. A node that is
//! excluded is a reason to rotate, and gets no key. No key is ever shown.
//!
//! # Decisions
//!
//! - **Adoption keys are rotated in steps**: a new epoch is signed with only when every dataplane
//!   and shim has reported it, the old one is removed only when nobody signs with it any more.
//!   Nodes that an admin excludes are sent no key, begin a rotation that does not wait for them,
//!   and their Pods have no node in snapshots, so that nothing is adopted there. Which these are is
//!   in an annotation of the keys' Secret: on the Node a kubelet could take it away.

mod ages;
mod rotator;
mod set;
pub mod table;

use std::{collections::BTreeSet, sync::Arc};
use tokio::sync::watch;

/// What is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The keys.
    pub keys: KeySet,
    /// Names of the nodes that an admin does not trust: they are sent no key, and nothing is
    /// adopted there.
    pub excluded: BTreeSet<String>,
}

/// For who sends host-shims their keys; none while another process leads.
pub type LiveKeys = watch::Receiver<Option<Arc<Stored>>>;

pub use ages::{Ages, AgesError};
pub use rotator::{Peer, PeerKind, RotationSettings, Rotator, Step, Warning, Wishes};
pub use set::{AdoptionKey, CURRENT_FILE, KeyError, KeySet, LIMIT_KEYS};
