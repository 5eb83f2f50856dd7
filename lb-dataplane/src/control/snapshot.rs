//! The one way by which a snapshot comes into force, be it from the file or pushed.
//!
//! Owns the generation. Never forwards a snapshot that is older than what is in force. Of a pushed one, which is of many
//! people, each policy is taken or refused by itself; one from the file is taken whole or not at all.

use crate::{
    commands::{Taking, WorkerError, WorkerHandle},
    config::Config,
};
use baton_api::{Policy, RefusedPolicy, Snapshot, SnapshotError};
use baton_engine::Applied;
use std::{
    convert::Infallible,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::{Mutex, watch},
    time,
};
use tracing::{info, warn};

/// A policy for which there was no room is tried again so often: rooms become free as flows end.
const RETRY: Duration = Duration::from_secs(5);

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

/// What is in force.
#[derive(Clone, Default)]
struct InForce {
    /// As it was offered.
    offered: Arc<Snapshot>,
    /// What of it is served, with what stays in place of refused policies.
    served: Arc<Snapshot>,
    applied: Arc<Applied>,
}

impl InForce {
    fn new(offered: Arc<Snapshot>, applied: Applied, before: Option<&Snapshot>) -> Self {
        let served = if applied.refused.is_empty() {
            Arc::clone(&offered)
        } else {
            let refusal = |p: &Policy| applied.refused.iter().find(|r| r.policy == p.name);
            let before = |p: &Policy| {
                let mut all = before.iter().flat_map(|b| &b.policies);
                all.find(|old| old.name == p.name)
            };
            let policies = offered.policies.iter().filter_map(|p| match refusal(p) {
                None => Some(p.clone()),
                Some(refusal) if refusal.kept => before(p).cloned(),
                Some(_) => None,
            });
            Arc::new(Snapshot {
                generation: offered.generation,
                policies: policies.collect(),
            })
        };
        Self {
            offered,
            served,
            applied: Arc::new(applied),
        }
    }
}

/// The snapshot in force and the rules for the next one.
pub struct Snapshots {
    worker: WorkerHandle,
    config: Config,
    own: Vec<IpAddr>,
    /// Held while one is applied, so that two cannot overtake each other. Holds who may say what is served.
    turn: Mutex<Source>,
    in_force: watch::Sender<Option<InForce>>,
    current: watch::Sender<Option<Arc<Snapshot>>>,
}

impl Snapshots {
    /// Nothing is in force. `config` gives the rules that do not change while running; `own` are the
    /// dataplane's addresses.
    pub fn new(worker: WorkerHandle, config: Config, own: Vec<IpAddr>) -> Self {
        Self {
            worker,
            config,
            own,
            turn: Mutex::new(Source::Pushes),
            in_force: watch::Sender::new(None),
            current: watch::Sender::new(None),
        }
    }

    /// What is served, if a snapshot is in force.
    pub fn current(&self) -> Option<Arc<Snapshot>> {
        self.current.borrow().clone()
    }

    /// The snapshot in force as it was offered, refused policies included.
    pub fn offered(&self) -> Option<Arc<Snapshot>> {
        let in_force = self.in_force.borrow();
        in_force.as_ref().map(|f| Arc::clone(&f.offered))
    }

    /// Its policies that are not served as it has them.
    pub fn refused(&self) -> Vec<RefusedPolicy> {
        let in_force = self.in_force.borrow();
        let refused = in_force.as_ref().map(|f| f.applied.refused.clone());
        refused.unwrap_or_default()
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
        if let Some(in_force) = self.offered() {
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
        self.apply_each(Arc::new(snapshot)).await?;
        Ok(Taken::Applied)
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
        self.config.check_snapshot(&snapshot, &self.own)?;
        self.apply(Arc::new(snapshot), Taking::Whole).await?;
        *turn = Source::File;
        Ok(Taken::Applied)
    }

    /// Tries again what was refused for want of room, for as long as the process lives.
    pub async fn retry(&self) -> Infallible {
        let mut again = time::interval(RETRY);
        again.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        loop {
            again.tick().await;
            if let Err(error) = self.try_again().await {
                warn!(%error, "what was refused for want of room could not be tried again");
            }
        }
    }

    /// The same once.
    ///
    /// # Errors
    /// The worker did not answer.
    pub async fn try_again(&self) -> Result<(), Refusal> {
        let turn = self.turn.lock().await;
        let in_force = self.in_force.borrow().clone();
        match in_force {
            Some(InForce {
                offered, applied, ..
            }) if applied.may_pass && *turn == Source::Pushes => self.apply_each(offered).await,
            _ => Ok(()),
        }
    }

    async fn apply_each(&self, snapshot: Arc<Snapshot>) -> Result<(), Refusal> {
        let objections = self.config.objections(&snapshot, &self.own);
        self.apply(snapshot, Taking::Each(objections)).await
    }

    /// The file says nothing any more. What is in force stays until something is pushed.
    pub async fn leave_to_pushes(&self) {
        *self.turn.lock().await = Source::Pushes;
    }

    async fn apply(&self, snapshot: Arc<Snapshot>, taking: Taking) -> Result<(), Refusal> {
        let asked = Instant::now();
        let applied = match self.worker.apply(Arc::clone(&snapshot), taking).await? {
            Ok(applied) => applied,
            Err(text) => {
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
        };
        let before = self.in_force.borrow().clone();
        if before.as_ref().is_some_and(|b| {
            Arc::ptr_eq(&b.offered, &snapshot) && b.applied.refused == applied.refused
        }) {
            // Tried again, and nothing has come of it.
            return Ok(());
        }
        for RefusedPolicy {
            policy, message, ..
        } in &applied.refused
        {
            warn!(
                policy,
                "this policy is refused, all others are served: {message}"
            );
        }
        info!(
            generation = snapshot.generation,
            policies = snapshot.policies.len(),
            refused = applied.refused.len(),
            took_ms = asked.elapsed().as_millis(),
            "snapshot in force"
        );
        let before = before.as_ref().map(|b| &*b.served);
        let in_force = InForce::new(snapshot, applied, before);
        let served = Arc::clone(&in_force.served);
        self.in_force.send_replace(Some(in_force));
        self.current.send_replace(Some(served));
        Ok(())
    }
}
