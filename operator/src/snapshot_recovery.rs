//! Snapshot recovery: dataplanes are asked for the snapshot that they have before anything is
//! pushed to them, because something is not known that was pushed before this term.
//!
//! Owns who was asked and who answered. A dataplane that does not answer is not pushed to: it goes
//! on with what it has. What the answers mean is the index's.

use baton_api::Policy;
use baton_index::{Key, Text, Wants};
use baton_push::push::{Connect, Settings, found};
use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinSet},
    time::sleep,
};
use tracing::{info, warn};

/// Answers that wait; who has more to say waits for its turn.
const LIMIT_WAITING: usize = 16;

/// The class of dataplanes that are asked for what they have: nothing is ever published for it, so
/// they are only polled. No object has this name.
pub const RECOVERY_CLASS: &str = "";

/// Which dataplane a target is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Where {
    /// Its Pod.
    pub pod: Key,
    /// Its class.
    pub class: Text,
    /// Of its control API.
    pub address: SocketAddr,
    /// Its node.
    pub node: Option<Text>,
}

/// A dataplane's answer.
#[derive(Debug)]
pub struct Found {
    name: String,
    /// Who was asked.
    pub place: Where,
    policies: Vec<Arc<Policy>>,
}

/// The recovery of one term.
pub struct SnapshotRecovery {
    connect: Arc<dyn Connect>,
    settings: Settings,
    wants: Arc<Wants>,
    /// Those that may be pushed to.
    settled: BTreeMap<String, Where>,
    /// Those that are being asked.
    asked: BTreeMap<String, (Where, AbortHandle)>,
    tasks: JoinSet<()>,
    sender: mpsc::Sender<Found>,
    receiver: mpsc::Receiver<Found>,
}

impl SnapshotRecovery {
    /// Nobody is asked yet.
    pub fn new(connect: Arc<dyn Connect>, settings: Settings) -> Self {
        let (sender, receiver) = mpsc::channel(LIMIT_WAITING);
        Self {
            connect,
            settings,
            wants: Arc::new(Wants::Nothing),
            settled: BTreeMap::new(),
            asked: BTreeMap::new(),
            tasks: JoinSet::new(),
            sender,
            receiver,
        }
    }

    /// These are all dataplanes, and this is what is wanted of them. Gives those that must not be
    /// pushed to yet.
    pub fn ask(&mut self, dataplanes: &BTreeMap<String, Where>, wants: &Arc<Wants>) -> Vec<String> {
        let is_there = |name: &String, place: &Where| dataplanes.get(name) == Some(place);
        self.settled.retain(|name, place| is_there(name, place));
        // An answer to another request is none.
        let same = self.wants == *wants;
        self.wants = Arc::clone(wants);
        self.asked.retain(|name, (place, task)| {
            let stays = same && is_there(name, place);
            if !stays {
                task.abort();
            }
            stays
        });
        // Only to free what they left.
        while self.tasks.try_join_next().is_some() {}
        let mut held_back = Vec::new();
        for (name, place) in dataplanes {
            if self.settled.contains_key(name) {
                continue;
            }
            if **wants == Wants::Nothing {
                self.settled.insert(name.clone(), place.clone());
                continue;
            }
            held_back.push(name.clone());
            if !self.asked.contains_key(name) {
                let task = self.tasks.spawn(ask(
                    Arc::clone(&self.connect),
                    self.settings.clone(),
                    Arc::clone(wants),
                    name.clone(),
                    place.clone(),
                    self.sender.clone(),
                ));
                self.asked.insert(name.clone(), (place.clone(), task));
            }
        }
        held_back
    }

    /// Waits for the next answer.
    pub async fn found(&mut self) -> Found {
        match self.receiver.recv().await {
            Some(found) => found,
            // This one holds the other end.
            None => std::future::pending().await,
        }
    }

    /// What a dataplane has, which may be pushed to from now on. None if it is not asked any more.
    pub fn answered(&mut self, found: Found) -> Option<Vec<Arc<Policy>>> {
        let (place, _) = self.asked.get(&found.name)?;
        if *place != found.place {
            return None;
        }
        self.asked.remove(&found.name);
        if !found.policies.is_empty() {
            info!(
                dataplane = %found.place.pod,
                policies = found.policies.len(),
                "this dataplane has policies that are asked for: they stay in force as far as nothing else is known of them"
            );
        }
        self.settled.insert(found.name, found.place);
        Some(found.policies)
    }
}

/// Asks until there is an answer.
async fn ask(
    connect: Arc<dyn Connect>,
    settings: Settings,
    wants: Arc<Wants>,
    name: String,
    place: Where,
    answers: mpsc::Sender<Found>,
) {
    let mut pause = settings.backoff_min;
    let mut told = String::new();
    loop {
        let is_wanted = |name: &str| wants.include(name);
        match found(&*connect, &settings, place.address, is_wanted).await {
            Ok(policies) => {
                let found = Found { name, place, policies };
                // Nobody listens any more if the term has ended.
                let _ = answers.send(found).await;
                return;
            }
            Err(problem) => {
                if problem != told {
                    warn!(
                        dataplane = %place.pod,
                        problem,
                        "this dataplane cannot be asked for what it has; nothing is pushed to it before"
                    );
                    told = problem;
                }
                sleep(pause).await;
                pause = (pause * 2).min(settings.backoff_max);
            }
        }
    }
}
