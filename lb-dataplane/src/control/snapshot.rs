//! The one way by which a snapshot comes into force, be it from the file or pushed.
//!
//! Owns the generation. Never forwards a snapshot that is older than what is in force. Of a pushed
//! one, which is of many people, each policy is taken or refused by itself; one from the file is
//! taken whole or not at all. What of a pushed one is of a newer version is left out by itself as
//! well (`baton_api::Pushed`).

use super::host_ports;
use crate::{
    commands::{self, NotApplied, WorkerError, aside},
    config::Config,
    engines,
    steering::Steerer,
    workers::Workers,
};
use baton_api::{Policy, Pushed, RefusedPolicy, Snapshot, SnapshotError};
use baton_engine::{Applied, ApplyError, Objection, Planner, Prepared, SteeredEnds};
use std::{
    collections::hash_map::RandomState,
    convert::Infallible,
    hash::{BuildHasher, Hasher},
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex as Lock, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    sync::{Mutex, MutexGuard, oneshot, watch},
    time,
};
use tracing::{info, warn};

/// Tells who listens in the dataplane's network.
pub type Listening = fn() -> io::Result<Vec<SocketAddr>>;

/// A policy for which there was no room, or whose port was another's, is tried again so often:
/// rooms become free as flows end.
const RETRY: Duration = Duration::from_secs(5);
/// A snapshot is made ready so often, until the worker has room for it (`Planner::no_room`).
const TRIES: usize = 3;

/// How often the engine is asked what is to be steered, beside each change of the snapshot: what
/// has left the snapshot is steered until its last flow is gone.
const STEERING_INTERVAL: Duration = Duration::from_secs(1);

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

/// How a snapshot is taken.
#[derive(Clone)]
enum Taking {
    /// All of it or nothing: it is the file's, and whoever wrote it reads the error.
    Whole,
    /// Each policy by itself: they are of many people. These are refused for what the engine does
    /// not know.
    Each(Arc<[Objection]>),
}

/// What only one can have at a time.
struct Turn {
    /// Who may say what is served.
    source: Source,
    /// A policy was refused because its port is that of another process.
    occupied: bool,
    /// The workers have it and have not all answered yet. It may come into force although nobody
    /// waits for that any more.
    underway: Option<Underway>,
}

/// What of a pushed snapshot this version does not know.
#[derive(Debug, Default, PartialEq, Eq)]
struct Unknown {
    /// Its fields.
    ignored: Vec<String>,
    /// Its policies that cannot be read.
    refused: Vec<RefusedPolicy>,
}

/// A snapshot that the workers put in force.
struct Underway {
    snapshot: Arc<Snapshot>,
    unknown: Arc<Unknown>,
    asked: Instant,
    answers: Vec<Answer>,
}

/// What a worker says of it.
enum Answer {
    Awaited(oneshot::Receiver<commands::Applied>),
    Given(commands::Applied),
}

/// What is in force.
#[derive(Clone, Default)]
struct InForce {
    /// As it was offered, with what stays in place of policies that cannot be read.
    offered: Arc<Snapshot>,
    unknown: Arc<Unknown>,
    /// What of it is served, with what stays in place of refused policies.
    served: Arc<Snapshot>,
    applied: Arc<Applied>,
}

impl InForce {
    fn new(
        offered: Arc<Snapshot>,
        unknown: Arc<Unknown>,
        applied: Applied,
        before: Option<&Snapshot>,
    ) -> Self {
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
            Arc::new(Snapshot { generation: offered.generation, policies: policies.collect() })
        };
        Self { offered, unknown, served, applied: Arc::new(applied) }
    }
}

/// The snapshot in force and the rules for the next one.
pub struct Snapshots {
    workers: Workers,
    config: Config,
    own: Vec<IpAddr>,
    listening: Listening,
    steerer: Steerer,
    /// Held while one is applied, so that two cannot overtake each other.
    turn: Mutex<Turn>,
    in_force: watch::Sender<Option<InForce>>,
    /// Makes them ready, so that the worker does not have to. Asked by whoever has the turn.
    planner: Arc<Lock<Planner>>,
    current: watch::Sender<Option<Arc<Snapshot>>>,
}

impl Snapshots {
    /// Nothing is in force. `config` gives the rules that do not change while running; `own` are
    /// the dataplane's addresses; `listening` tells who else listens in its network; `steerer` has
    /// the kernel lead here what is served.
    pub fn new(
        workers: Workers,
        config: Config,
        own: Vec<IpAddr>,
        listening: Listening,
        steerer: Steerer,
    ) -> Self {
        let settings = engines::settings(&config, &own, workers.count() as u32);
        // The standard library's hash keys come from the kernel's random numbers.
        let seed = RandomState::new().build_hasher().finish();
        Self {
            planner: Arc::new(Lock::new(Planner::for_workers(&settings, seed))),
            workers,
            config,
            own,
            listening,
            steerer,
            turn: Mutex::new(Turn { source: Source::Pushes, occupied: false, underway: None }),
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
        let refused = in_force.as_ref().map(|f| {
            let all = f.applied.refused.iter().chain(&f.unknown.refused);
            all.cloned().collect()
        });
        refused.unwrap_or_default()
    }

    /// Its fields that this version does not know, as `Backend.zone`.
    pub fn ignored(&self) -> Vec<String> {
        let in_force = self.in_force.borrow();
        let ignored = in_force.as_ref().map(|f| f.unknown.ignored.clone());
        ignored.unwrap_or_default()
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
    pub async fn offer(&self, pushed: Pushed) -> Result<Taken, Refusal> {
        let mut turn = self.turn().await?;
        if turn.source == Source::File {
            return Err(Refusal::FileOwned);
        }
        let (snapshot, unknown) = self.known(pushed);
        if let Some(InForce { offered: in_force, unknown: before, .. }) = &*self.in_force.borrow() {
            if **in_force == snapshot && **before == unknown {
                return Ok(Taken::Unchanged);
            }
            if snapshot.generation <= in_force.generation {
                return Err(Refusal::Stale {
                    offered: snapshot.generation,
                    current: in_force.generation,
                });
            }
        }
        self.apply_each(&mut turn, Arc::new(snapshot), Arc::new(unknown)).await?;
        Ok(Taken::Applied)
    }

    /// What is served of a policy that cannot be read stays as it is.
    fn known(&self, pushed: Pushed) -> (Snapshot, Unknown) {
        let Pushed { mut snapshot, ignored, unreadable } = pushed;
        let served = self.current().unwrap_or_default();
        let refused = unreadable.into_iter().map(|(policy, message)| {
            let before = served.policies.iter().find(|old| old.name == policy);
            snapshot.policies.extend(before.cloned());
            RefusedPolicy { policy, message, kept: before.is_some() }
        });
        let unknown =
            Unknown { refused: refused.collect(), ignored: ignored.into_iter().collect() };
        (snapshot, unknown)
    }

    /// Takes the file's policies as the next generation. From now on only the file says what is
    /// served.
    ///
    /// # Errors
    /// See [`Refusal`]. Whoever said it before goes on to.
    pub async fn take_file(&self, policies: Vec<Policy>) -> Result<Taken, Refusal> {
        let mut turn = self.turn().await?;
        let snapshot = Snapshot { generation: self.generation() + 1, policies };
        self.config.check_snapshot(&snapshot, &self.own)?;
        let unknown = Arc::default();
        self.apply(&mut turn, Arc::new(snapshot), unknown, Taking::Whole).await?;
        turn.source = Source::File;
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
        let mut turn = self.turn().await?;
        let in_force = self.in_force.borrow().clone();
        match in_force {
            Some(InForce { offered, unknown, applied, .. })
                if (applied.may_pass || turn.occupied) && turn.source == Source::Pushes =>
            {
                self.apply_each(&mut turn, offered, unknown).await
            }
            _ => Ok(()),
        }
    }

    /// Has the kernel lead here what the engine needs and nothing else, for as long as the process
    /// lives.
    pub async fn steer(&self) -> Infallible {
        let mut changed = self.follow();
        let mut ends = Box::default();
        loop {
            // Whoever has the other end of this channel lives as long.
            let _ = time::timeout(STEERING_INTERVAL, changed.changed()).await;
            let looked_over = match self.turn().await {
                Ok(_turn) => self.look_over_steering(ends).await,
                Err(error) => Err(error),
            };
            ends = looked_over.unwrap_or_else(|error| {
                warn!(%error, "what is steered here could not be looked over");
                Box::default()
            });
        }
    }

    /// The same once, by whoever has the turn: no snapshot comes into force meanwhile.
    async fn look_over_steering(
        &self,
        mut ends: Box<SteeredEnds>,
    ) -> Result<Box<SteeredEnds>, WorkerError> {
        ends.clear();
        let mut ends = self.workers.steering(ends).await?;
        let steerer = self.steerer.clone();
        let set = move || {
            ends.dedup();
            steerer.set(&mut ends);
            ends
        };
        Ok(aside(set).await)
    }

    async fn apply_each(
        &self,
        turn: &mut Turn,
        snapshot: Arc<Snapshot>,
        unknown: Arc<Unknown>,
    ) -> Result<(), Refusal> {
        let mut objections = self.config.objections(&snapshot, &self.own);
        let listening = (self.listening)().unwrap_or_else(|error| {
            warn!(%error, "who listens on this machine cannot be read: policies for such ports are not refused");
            Vec::new()
        });
        let mut others = host_ports::objections(&snapshot, &self.own, &listening);
        others.retain(|(policy, _)| objections.iter().all(|(known, _)| known != policy));
        turn.occupied = !others.is_empty();
        objections.append(&mut others);
        objections.sort_by_key(|(policy, _)| *policy);
        let taking = Taking::Each(objections.into());
        self.apply(turn, snapshot, unknown, taking).await
    }

    /// The file says nothing any more. What is in force stays until something is pushed.
    pub async fn leave_to_pushes(&self) {
        self.turn.lock().await.source = Source::Pushes;
    }

    /// One's turn, once it is known what became of what the worker had.
    async fn turn(&self) -> Result<MutexGuard<'_, Turn>, WorkerError> {
        let mut turn = self.turn.lock().await;
        // Who offered it was not told, and is not there to be told why not.
        let _ = self.settle(&mut turn).await?;
        Ok(turn)
    }

    async fn apply(
        &self,
        turn: &mut Turn,
        snapshot: Arc<Snapshot>,
        unknown: Arc<Unknown>,
        taking: Taking,
    ) -> Result<(), Refusal> {
        let asked = Instant::now();
        lock(&self.planner).begin();
        let mut tries = 0;
        let error = loop {
            tries += 1;
            let prepared = match self.prepare(Arc::clone(&snapshot), taking.clone()).await {
                Ok(prepared) => prepared,
                Err(error) => break error,
            };
            let answers = self.workers.apply(prepared).await?.into_iter();
            turn.underway = Some(Underway {
                answers: answers.map(Answer::Awaited).collect(),
                snapshot: Arc::clone(&snapshot),
                unknown: Arc::clone(&unknown),
                asked,
            });
            match self.settle(turn).await? {
                Ok(()) => return Ok(()),
                Err(error) => {
                    // What it brought is steered for nothing. If this fails, it is done within a
                    // second.
                    let _ = self.look_over_steering(Box::default()).await;
                    if !error.is_room() || tries == TRIES {
                        break error;
                    }
                }
            }
        };
        let text = error.to_string();
        // The engine names the field in front where it knows one.
        let (path, problem) = match text.split_once(": ") {
            Some((path, problem)) if path.starts_with("policies") => (path, problem),
            _ => ("policies", text.as_str()),
        };
        Err(SnapshotError { path: path.to_owned(), problem: problem.to_owned() }.into())
    }

    async fn prepare(
        &self,
        snapshot: Arc<Snapshot>,
        taking: Taking,
    ) -> Result<Vec<Prepared>, ApplyError> {
        let (planner, steerer) = (Arc::clone(&self.planner), self.steerer.clone());
        let prepared = aside(move || {
            let prepared = match taking {
                Taking::Whole => lock(&planner).prepare(&snapshot, None),
                Taking::Each(objections) => lock(&planner).prepare(&snapshot, Some(&objections)),
            }?;
            // All have the same policies.
            prepared.first().inspect(|first| steerer.add(first));
            Ok(prepared)
        });
        prepared.await
    }

    /// Waits for what the workers have, and notes what became of it: they all took it or none did.
    async fn settle(&self, turn: &mut Turn) -> Result<Result<(), ApplyError>, WorkerError> {
        let Some(underway) = &mut turn.underway else {
            return Ok(Ok(()));
        };
        for answer in &mut underway.answers {
            let Answer::Awaited(receiver) = answer else {
                continue;
            };
            match commands::answer(receiver).await {
                Err(WorkerError::Stuck) => return Err(WorkerError::Stuck),
                Err(WorkerError::Gone) => {
                    turn.underway = None;
                    return Err(WorkerError::Gone);
                }
                Ok(given) => *answer = Answer::Given(given),
            }
        }
        let Some(underway) = turn.underway.take() else {
            return Ok(Ok(()));
        };
        let (snapshot, unknown, asked) = (underway.snapshot, underway.unknown, underway.asked);
        let (mut refused, mut elsewhere) = (None, false);
        let mut rests: Vec<Box<Prepared>> = Vec::new();
        for answer in underway.answers {
            let Answer::Given((one, rest)) = answer else {
                continue;
            };
            match one {
                Ok(()) => {}
                Err(NotApplied::Here(error)) => refused = refused.or(Some(error)),
                Err(NotApplied::Elsewhere) => elsewhere = true,
            }
            rests.push(rest);
        }
        let Some((first, others)) = rests.split_first_mut() else {
            return Ok(Ok(()));
        };
        debug_assert!(refused.is_some() || !elsewhere, "some refused and none says why");
        let result = refused.map_or(Ok(()), Err);
        let applied = first.applied().clone();
        match &result {
            Ok(()) => lock(&self.planner).in_force(first),
            Err(error) if error.is_room() => {
                others.iter_mut().for_each(|rest| first.also_lingers(rest));
                lock(&self.planner).no_room(first);
            }
            Err(_) => {}
        }
        // Freeing takes a while, too.
        drop(tokio::task::spawn_blocking(|| drop(rests)));
        if result.is_ok() {
            self.note(snapshot, unknown, applied, asked);
        }
        Ok(result)
    }

    /// A snapshot is in force.
    fn note(
        &self,
        snapshot: Arc<Snapshot>,
        unknown: Arc<Unknown>,
        applied: Applied,
        asked: Instant,
    ) {
        let before = self.in_force.borrow().clone();
        if before.as_ref().is_some_and(|b| {
            Arc::ptr_eq(&b.offered, &snapshot) && b.applied.refused == applied.refused
        }) {
            // Tried again, and nothing has come of it.
            return;
        }
        for RefusedPolicy { policy, message, .. } in applied.refused.iter().chain(&unknown.refused)
        {
            warn!(policy, "this policy is refused, all others are served: {message}");
        }
        info!(
            generation = snapshot.generation,
            policies = snapshot.policies.len(),
            refused = applied.refused.len() + unknown.refused.len(),
            ignored = ?unknown.ignored,
            took_ms = asked.elapsed().as_millis(),
            "snapshot in force"
        );
        let before = before.as_ref().map(|b| &*b.served);
        let in_force = InForce::new(snapshot, unknown, applied, before);
        let served = Arc::clone(&in_force.served);
        self.in_force.send_replace(Some(in_force));
        self.current.send_replace(Some(served));
    }
}

/// What a panic left is as good: a planner only remembers what can be used again.
fn lock(planner: &Lock<Planner>) -> std::sync::MutexGuard<'_, Planner> {
    planner.lock().unwrap_or_else(PoisonError::into_inner)
}
