//! All targets of one leader: starts and stops their tasks and gives them what is new.
//!
//! Owns which tasks run. Decides nothing about any dataplane.

use super::{
    Connect, Contents, Epoch, LIMIT_REPORTS, LIMIT_TARGETS, Metrics, PolicySet, Rendered, Report,
    Settings, States, Target, TargetKind, Version,
    client::{Client, Server},
    task::{Inputs, Shared, Task, state_budget},
};
use crate::keys::LiveKeys;
use std::{
    collections::BTreeMap,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::{Notify, mpsc, watch},
    task::{AbortHandle, JoinSet},
    time::timeout,
};

/// Why a pusher does not do what it was told.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// More control APIs than [`super::LIMIT_TARGETS`]. Those that were there before stay.
    #[error(
        "{found} dataplanes and shims are more than one operator serves: expected at most {limit}"
    )]
    TooMany {
        /// Asked for.
        found: usize,
        /// Possible.
        limit: usize,
    },
    /// A policy cannot be written: a bug. What was published before stays.
    #[error("policies of class `{class}` cannot be written as JSON: {source}")]
    Unwritable {
        /// Of dataplanes.
        class: String,
        /// Why.
        source: serde_json::Error,
    },
}

/// Keeps dataplanes at the content of their class while it lives. Only a leader has one; dropping
/// it stops everything at once.
pub struct Pusher {
    connect: Arc<dyn Connect>,
    states: Arc<dyn States>,
    shared: Shared,
    epoch: Epoch,
    keys: LiveKeys,
    stop: watch::Sender<bool>,
    classes: BTreeMap<String, Class>,
    /// What a shim's task has in place of a class.
    nothing: watch::Sender<Option<Arc<Rendered>>>,
    running: BTreeMap<Arc<str>, Running>,
    tasks: JoinSet<()>,
    rng: fastrand::Rng,
}

struct Class {
    contents: Contents,
    newest: watch::Sender<Option<Arc<Rendered>>>,
}

struct Running {
    target: Target,
    nudge: Arc<Notify>,
    task: AbortHandle,
}

impl fmt::Debug for Pusher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pusher")
            .field("epoch", &self.epoch)
            .field("classes", &self.classes.len())
            .field("targets", &self.running.len())
            .finish_non_exhaustive()
    }
}

impl Pusher {
    /// Serves no target yet. Its methods must be called in a tokio runtime; `states` takes what
    /// dataplanes say of policies, shims get their nodes' keys of `keys`, `rng` spreads retries and
    /// polls.
    #[must_use]
    pub fn new(
        settings: Settings,
        epoch: Epoch,
        connect: Arc<dyn Connect>,
        states: Arc<dyn States>,
        keys: LiveKeys,
        metrics: Arc<Metrics>,
        rng: fastrand::Rng,
    ) -> (Self, mpsc::Receiver<Report>) {
        let (reports, receiver) = mpsc::channel(LIMIT_REPORTS);
        let pusher = Self {
            connect,
            states,
            shared: Shared {
                settings: Arc::new(settings),
                metrics,
                reports,
                budget: state_budget(),
            },
            epoch,
            keys,
            stop: watch::Sender::new(false),
            classes: BTreeMap::new(),
            nothing: watch::Sender::new(None),
            running: BTreeMap::new(),
            tasks: JoinSet::new(),
            rng,
        };
        (pusher, receiver)
    }

    /// Has all dataplanes of `class` serve exactly these policies. Nothing is pushed to a class
    /// before the first call, so call it only when all sources have been read once. Returns the
    /// version that holds the content: a policy that changed with this call is programmed on a
    /// dataplane when it acknowledges this version or a later one. Costs writing the policies that
    /// changed, and a comparison of pointers for the others.
    ///
    /// # Errors
    /// [`PushError::Unwritable`].
    pub fn publish(&mut self, class: &str, policies: &PolicySet) -> Result<Version, PushError> {
        let class_name = class;
        let class = self.class(class_name);
        let rendered = class
            .contents
            .update(policies, Instant::now())
            .map_err(|source| PushError::Unwritable { class: class_name.to_owned(), source })?;
        let version = rendered.version();
        class.newest.send_if_modified(|newest| {
            let changes = newest.as_ref().is_none_or(|old| old.version() != version);
            *newest = Some(rendered);
            changes
        });
        Ok(version)
    }

    /// Forgets what a class shall serve. Its dataplanes keep what they have and are only polled,
    /// until the class is published again; its versions go on counting.
    pub fn retire(&mut self, class: &str) {
        if let Some(class) = self.classes.get_mut(class) {
            class.newest.send_replace(None);
        }
    }

    /// These targets, by name (a pod's, say), and no others. New ones are asked at once, and so are
    /// those that stay but wait after a failure. One whose address or kind changed starts anew.
    ///
    /// # Errors
    /// [`PushError::TooMany`].
    pub fn set_targets(&mut self, targets: &BTreeMap<String, Target>) -> Result<(), PushError> {
        if targets.len() > LIMIT_TARGETS {
            return Err(PushError::TooMany { found: targets.len(), limit: LIMIT_TARGETS });
        }
        // Only to free what they left.
        while self.tasks.try_join_next().is_some() {}
        let before = self.running.len();
        self.running.retain(|name, running| {
            let stays = targets.get(&**name) == Some(&running.target);
            if !stays {
                running.task.abort();
            }
            stays
        });
        let mut changes = self.running.len() != before;
        for (name, target) in targets {
            if !self.running.contains_key(name.as_str()) {
                changes = true;
                self.start(name, target);
            }
        }
        if changes {
            for running in self.running.values() {
                running.nudge.notify_one();
            }
        }
        Ok(())
    }

    /// Stops: requests under way may end within `patience`, nothing new begins.
    pub async fn shutdown(mut self, patience: Duration) {
        self.stop.send_replace(true);
        let all = async { while self.tasks.join_next().await.is_some() {} };
        // What does not end in time is dropped with the set.
        let _in_time = timeout(patience, all).await.is_ok();
    }

    fn class(&mut self, name: &str) -> &mut Class {
        self.classes.entry(name.to_owned()).or_insert_with(|| Class {
            contents: Contents::default(),
            newest: watch::Sender::new(None),
        })
    }

    fn start(&mut self, name: &str, target: &Target) {
        let (content, server) = match &target.kind {
            TargetKind::Dataplane { class } => {
                (self.class(class).newest.subscribe(), Server::Dataplane)
            }
            TargetKind::Shim { node } => {
                let (node, keys) = (node.clone(), self.keys.clone());
                (self.nothing.subscribe(), Server::Shim { node, keys })
            }
        };
        let name: Arc<str> = name.into();
        let nudge = Arc::new(Notify::new());
        let inputs = Inputs {
            content,
            epoch: self.epoch,
            keys: self.keys.clone(),
            nudge: Arc::clone(&nudge),
            stop: self.stop.subscribe(),
        };
        let client = Client::new(
            Arc::clone(&self.connect),
            Arc::clone(&self.shared.settings),
            target.address,
            server,
            Arc::clone(&name),
            Arc::clone(&self.states),
        );
        let task = Task::new(
            Arc::clone(&name),
            &target.kind,
            client,
            self.shared.clone(),
            inputs,
            self.rng.fork(),
        );
        let task = self.tasks.spawn(task.run());
        let running = Running { target: target.clone(), nudge, task };
        self.running.insert(name, running);
    }
}
