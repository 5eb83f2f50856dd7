//! The one way by which a snapshot comes into force, be it from the file or pushed.
//!
//! Owns the generation. Never forwards a snapshot that is invalid or older than what is in force.

use crate::{
    commands::{WorkerError, WorkerHandle},
    config::Config,
};
use baton_api::{Policy, Snapshot, SnapshotError};
use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
use tokio::sync::Mutex;
use tracing::info;

/// Why a snapshot is not served. What was in force stays.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Not newer than what is in force. The sender has to look at the current generation.
    #[error("generation {offered} is not newer than {current}, which is in force")]
    Stale {
        /// The refused one.
        offered: u64,
        /// In force.
        current: u64,
    },
    /// A field is wrong. The sender has to change it.
    #[error(transparent)]
    Invalid(#[from] SnapshotError),
    /// The worker did not take it. May pass.
    #[error(transparent)]
    Worker(#[from] WorkerError),
}

/// What became of a snapshot that was not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// In force now.
    Applied,
    /// It was in force already.
    Unchanged,
}

/// The snapshot in force and the rules for the next one.
pub struct Snapshots {
    worker: WorkerHandle,
    config: Config,
    own: Vec<IpAddr>,
    /// Held while one is applied, so that two cannot overtake each other.
    current: Mutex<Option<Arc<Snapshot>>>,
    generation: AtomicU64,
    applied: AtomicBool,
}

impl Snapshots {
    /// Nothing is in force. `config` gives the rules that do not change while running; `own` are the
    /// dataplane's addresses.
    pub fn new(worker: WorkerHandle, config: Config, own: Vec<IpAddr>) -> Self {
        Self {
            worker,
            config,
            own,
            current: Mutex::new(None),
            generation: AtomicU64::new(0),
            applied: AtomicBool::new(false),
        }
    }

    /// The generation in force; 0 if none is.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Whether a snapshot is in force.
    pub fn is_applied(&self) -> bool {
        self.applied.load(Ordering::Relaxed)
    }

    /// Takes a pushed snapshot. The same one again is no error: pushes are repeated.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn offer(&self, snapshot: Snapshot) -> Result<Taken, Refusal> {
        let mut current = self.current.lock().await;
        if let Some(in_force) = current.as_deref() {
            if *in_force == snapshot {
                return Ok(Taken::Unchanged);
            }
            if snapshot.generation <= in_force.generation {
                return Err(Refusal::Stale {
                    offered: snapshot.generation,
                    current: in_force.generation,
                });
            }
        }
        self.apply(&mut current, snapshot).await
    }

    /// Takes the file's policies as the next generation.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn take_file(&self, policies: Vec<Policy>) -> Result<Taken, Refusal> {
        let mut current = self.current.lock().await;
        let generation = current.as_ref().map_or(1, |s| s.generation + 1);
        let snapshot = Snapshot {
            generation,
            policies,
        };
        self.apply(&mut current, snapshot).await
    }

    async fn apply(
        &self,
        current: &mut Option<Arc<Snapshot>>,
        snapshot: Snapshot,
    ) -> Result<Taken, Refusal> {
        self.config.check_snapshot(&snapshot, &self.own)?;
        let snapshot = Arc::new(snapshot);
        if let Err(text) = self.worker.apply(Arc::clone(&snapshot)).await? {
            // The engine names the field in front where it knows one.
            let (path, problem) = match text.split_once(": ") {
                Some((path, problem)) if path.starts_with("policies") => (path, problem),
                _ => ("policies", text.as_str()),
            };
            return Err(SnapshotError {
                path: path.to_owned(),
                problem: problem.to_owned(),
            }
            .into());
        }
        info!(
            generation = snapshot.generation,
            policies = snapshot.policies.len(),
            "snapshot in force"
        );
        self.generation
            .store(snapshot.generation, Ordering::Relaxed);
        self.applied.store(true, Ordering::Relaxed);
        *current = Some(snapshot);
        Ok(Taken::Applied)
    }
}
