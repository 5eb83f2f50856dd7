//! The one way by which a snapshot comes into force, be it from the file or pushed.
//!
//! Owns the generation. Never forwards a snapshot that is invalid or older than what is in force.

use crate::{
    commands::{WorkerError, WorkerHandle},
    config::Config,
};
use baton_api::{Policy, Snapshot, SnapshotError};
use baton_engine::{Planner, Prepared, Settings};
use baton_packet::Mac;
use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    net::IpAddr,
    sync::{Arc, Mutex as Lock, PoisonError},
    time::Instant,
};
use tokio::sync::{Mutex, watch};
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
    /// The configuration file has policies, so nobody else's are taken. An admin has to decide.
    #[error(
        "the configuration file holds `policies` and is their only source: remove that field there to have them pushed"
    )]
    FileOwned,
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

/// Who says what is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The configuration file.
    File,
    /// Whoever pushes.
    Pushes,
}

/// The snapshot in force and the rules for the next one.
pub struct Snapshots {
    worker: WorkerHandle,
    config: Config,
    own: Vec<IpAddr>,
    /// Held while one is applied, so that two cannot overtake each other. Holds who may say what is served.
    turn: Mutex<Source>,
    /// Makes them ready, so that the worker does not have to. Asked by whoever has the turn.
    planner: Arc<Lock<Planner>>,
    current: watch::Sender<Option<Arc<Snapshot>>>,
}

impl Snapshots {
    /// Nothing is in force. `config` gives the rules that do not change while running; `own` are the
    /// dataplane's addresses.
    pub fn new(worker: WorkerHandle, config: Config, own: Vec<IpAddr>) -> Self {
        let settings = Settings {
            limits: config.limits,
            addresses: own.clone(),
            legs_from_all: !config.address.is_empty(),
            ports: config.ports.range(),
            // These two are not looked at.
            mac: Mac([0; 6]),
            mtu: 0,
            seed: 0,
        };
        // The standard library's hash keys come from the kernel's random numbers.
        let seed = RandomState::new().build_hasher().finish();
        Self {
            planner: Arc::new(Lock::new(Planner::new(&settings, seed))),
            worker,
            config,
            own,
            turn: Mutex::new(Source::Pushes),
            current: watch::Sender::new(None),
        }
    }

    /// The snapshot in force, if one is.
    pub fn current(&self) -> Option<Arc<Snapshot>> {
        self.current.borrow().clone()
    }

    /// Tells each snapshot that comes into force; the last one, if they come faster than one looks.
    pub fn follow(&self) -> watch::Receiver<Option<Arc<Snapshot>>> {
        self.current.subscribe()
    }

    /// The generation in force; 0 if none is.
    pub fn generation(&self) -> u64 {
        self.current.borrow().as_ref().map_or(0, |s| s.generation)
    }

    /// Whether a snapshot is in force.
    pub fn is_applied(&self) -> bool {
        self.current.borrow().is_some()
    }

    /// Takes a pushed snapshot. The same one again is no error: pushes are repeated.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn offer(&self, snapshot: Snapshot) -> Result<Taken, Refusal> {
        let turn = self.turn.lock().await;
        if *turn == Source::File {
            return Err(Refusal::FileOwned);
        }
        if let Some(in_force) = self.current() {
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
        self.apply(snapshot).await
    }

    /// Takes the file's policies as the next generation. From now on only the file says what is served.
    ///
    /// # Errors
    /// See [`Refusal`]. Whoever said it before goes on to.
    pub async fn take_file(&self, policies: Vec<Policy>) -> Result<Taken, Refusal> {
        let mut turn = self.turn.lock().await;
        let snapshot = Snapshot {
            generation: self.generation() + 1,
            policies,
        };
        let taken = self.apply(snapshot).await?;
        *turn = Source::File;
        Ok(taken)
    }

    /// The file says nothing any more. What is in force stays until something is pushed.
    pub async fn leave_to_pushes(&self) {
        *self.turn.lock().await = Source::Pushes;
    }

    async fn apply(&self, snapshot: Snapshot) -> Result<Taken, Refusal> {
        self.config.check_snapshot(&snapshot, &self.own)?;
        let snapshot = Arc::new(snapshot);
        let asked = Instant::now();
        let (planner, given) = (Arc::clone(&self.planner), Arc::clone(&snapshot));
        let prepared = aside(move || lock(&planner).prepare(&given).map_err(|e| e.to_string()));
        let in_force = match prepared.await.map(Box::new) {
            Ok(prepared) => {
                let (result, mut rest) = self.worker.apply(prepared).await?;
                if result.is_ok() {
                    lock(&self.planner).in_force(&mut rest);
                }
                drop(tokio::task::spawn_blocking(|| drop(rest)));
                result
            }
            Err(error) => Err(error),
        };
        if let Err(text) = in_force {
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
            took_ms = asked.elapsed().as_millis(),
            "snapshot in force"
        );
        self.current.send_replace(Some(snapshot));
        Ok(Taken::Applied)
    }
}

/// Does what takes milliseconds on a thread of its own.
async fn aside(
    work: impl FnOnce() -> Result<Prepared, String> + Send + 'static,
) -> Result<Prepared, String> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err("making the snapshot ready failed: please report this".to_owned()))
}

/// What a panic left is as good: a planner only remembers what can be used again.
fn lock(planner: &Lock<Planner>) -> std::sync::MutexGuard<'_, Planner> {
    planner.lock().unwrap_or_else(PoisonError::into_inner)
}
