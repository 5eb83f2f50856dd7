//! One term of leadership: its pusher, and how far each dataplane is.
//!
//! Owns what reports mean to the index. Ends with the term, and with it all that was known of
//! dataplanes.

use super::News;
use crate::{
    figures::Inbox,
    messages::{self, UNREACHABLE_AFTER},
    peers::Peers,
    snapshot_recovery::{SnapshotRecovery, Where},
    translate::SharedInterner,
};
use baton_index::{Change, Report as Progress, Text};
use baton_push::{
    UnixSeconds,
    keys::{LiveKeys, Peer, PeerKind},
    push::{
        Connect, Epoch, Metrics as PushMetrics, Outcome, Pusher, Report, Settings, Unreached,
        Version,
    },
};
use jiff::Timestamp;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};
use tokio::sync::mpsc;
use tracing::{info, warn};

/// Versions of a class whose revision is remembered: a dataplane that is further behind than that
/// acknowledges what is newer soon, or nothing.
const LIMIT_REVISIONS: usize = 1_024;

/// One term of leadership.
pub(super) struct Term {
    pub(super) pusher: Pusher,
    peers: Arc<Peers>,
    reports: mpsc::Receiver<Report>,
    /// Which revision each version of a class holds.
    revisions: BTreeMap<Text, VecDeque<(Version, u64)>>,
    dataplanes: BTreeMap<String, Known>,
    shims: BTreeMap<String, Text>,
    /// What dataplanes count.
    inbox: Inbox,
    /// Who is asked before anything is pushed.
    pub(super) recovery: SnapshotRecovery,
}

/// How far a dataplane is.
struct Known {
    place: Where,
    progress: Arc<Progress>,
    /// It can be read from, and takes no push.
    takes_no_push: bool,
}

impl Term {
    /// Nobody is followed yet.
    pub(super) fn new(
        epoch: Epoch,
        connect: &Arc<dyn Connect>,
        settings: &Settings,
        push_metrics: &Arc<PushMetrics>,
        peers: &Arc<Peers>,
        keys: &LiveKeys,
        texts: &SharedInterner,
    ) -> Self {
        let inbox = Inbox::new(Arc::clone(texts));
        let (pusher, reports) = Pusher::new(
            settings.clone(),
            epoch,
            Arc::clone(connect),
            Arc::new(inbox.clone()),
            keys.clone(),
            Arc::clone(push_metrics),
            fastrand::Rng::new(),
        );
        Self {
            pusher,
            peers: Arc::clone(peers),
            reports,
            revisions: BTreeMap::new(),
            dataplanes: BTreeMap::new(),
            shims: BTreeMap::new(),
            inbox,
            recovery: SnapshotRecovery::new(Arc::clone(connect), settings.clone()),
        }
    }

    /// Waits for the next.
    pub(super) async fn news(&mut self) -> News {
        tokio::select! {
            // The pusher holds the other end.
            Some(report) = self.reports.recv() => News::Report(report),
            found = self.recovery.found() => News::Found(found),
        }
    }

    /// Ends it, its requests at once. Gives what the index has to forget.
    pub(super) fn ended(self) -> Vec<Change> {
        forgotten(self.dataplanes.values(), self.shims.values().collect())
    }

    pub(super) fn published(&mut self, class: &Text, version: Version, revision: u64) {
        let revisions = self.revisions.entry(class.clone()).or_default();
        match revisions.back_mut() {
            // The same bytes as before.
            Some(last) if last.0 == version => last.1 = revision,
            _ => revisions.push_back((version, revision)),
        }
        if revisions.len() > LIMIT_REVISIONS {
            revisions.pop_front();
        }
    }

    /// The newest revision that a version of a class holds.
    fn revision(&self, class: &Text, version: Version) -> Option<u64> {
        let revisions = self.revisions.get(class)?;
        let newest = revisions.iter().rev().find(|(v, _)| *v <= version);
        newest.map(|(_, revision)| *revision)
    }

    /// These and no others. Gives what the index has to forget of those that left.
    pub(super) fn follow(
        &mut self,
        dataplanes: BTreeMap<String, Where>,
        shims: BTreeMap<String, Text>,
    ) -> Vec<Change> {
        let left = self.dataplanes.iter();
        let left = left.filter(|(name, _)| !dataplanes.contains_key(*name));
        let mut nodes: BTreeSet<&Text> = self.shims.values().collect();
        // A Pod that takes another's place is heard instead of it.
        for node in shims.values() {
            nodes.remove(node);
        }
        let changes = forgotten(left.map(|(_, known)| known), nodes);
        // A Pod of the same name elsewhere is another dataplane, of which nothing is known.
        self.dataplanes.retain(|name, known| dataplanes.get(name) == Some(&known.place));
        for (name, place) in dataplanes {
            self.dataplanes.entry(name).or_insert_with(|| Known {
                place,
                progress: Arc::default(),
                takes_no_push: false,
            });
        }
        self.inbox.retain(|name| self.dataplanes.contains_key(name));
        self.shims = shims;
        let peer = |name: &String, kind, node: Option<&Text>| {
            Peer::unheard(name.clone(), kind, node.map(Text::to_string))
        };
        let dataplanes = self.dataplanes.iter();
        let dataplanes = dataplanes
            .map(|(name, known)| peer(name, PeerKind::Dataplane, known.place.node.as_ref()));
        let shims = self.shims.iter();
        let shims = shims.map(|(name, node)| peer(name, PeerKind::Shim, Some(node)));
        self.peers.ask(Some(dataplanes.chain(shims).collect()));
        changes
    }

    /// What a report says of adoption keys.
    fn keys(&self, target: &str, result: &Outcome) {
        match result {
            Outcome::State { state, .. } => self.peers.said(Peer::from_state(target, state)),
            Outcome::Shim(state) => {
                self.peers.said(Peer::from_shim(target, state.key_epochs.clone()));
            }
            Outcome::Unreachable(Unreached { failures, .. }) if *failures >= UNREACHABLE_AFTER => {
                let now = UnixSeconds(Timestamp::now().as_second());
                self.peers.silent(target, now);
            }
            _ => {}
        }
    }

    pub(super) fn heard(&mut self, report: Report) -> Vec<Change> {
        let target = &*report.target;
        self.keys(target, &report.result);
        if let Some(node) = self.shims.get(target) {
            return messages::shim(node.clone(), report.result).into_iter().collect();
        }
        let Some((pod, class)) = self
            .dataplanes
            .get(target)
            .map(|known| (known.place.pod.clone(), known.place.class.clone()))
        else {
            // It left while the report waited.
            return Vec::new();
        };
        let mut changes = Vec::new();
        if let Some(known) = self.dataplanes.get_mut(target) {
            match &report.result {
                Outcome::Acknowledged { .. } | Outcome::Refused { .. } => {
                    known.takes_no_push = false;
                }
                Outcome::Unreachable(Unreached { pushing, .. }) => known.takes_no_push = *pushing,
                _ => {}
            }
        }
        let progress = match &report.result {
            Outcome::Acknowledged { generation, version, pushed, took, refused } => {
                if *pushed {
                    info!(dataplane = %pod, generation, took_us = took.as_micros(), "snapshot in force");
                }
                let revision = self.revision(&class, *version);
                self.progress(target, |progress| {
                    progress.unreachable = None;
                    progress.refused = None;
                    progress.refused_policies = messages::refused_policies(refused);
                    progress.acknowledged = revision.max(progress.acknowledged);
                })
            }
            Outcome::Refused { version, refusal } => {
                let message = messages::refusal(refusal);
                warn!(dataplane = %pod, "this dataplane refuses its snapshot, what it had stays in force: {message}");
                let revision = self.revision(&class, *version).unwrap_or_default();
                self.progress(target, |progress| {
                    progress.unreachable = None;
                    progress.refused = Some((revision, message.into()));
                })
            }
            Outcome::Overtaken { generation } => {
                warn!(dataplane = %pod, generation, "a later leader's snapshot is in force there");
                None
            }
            Outcome::Unreachable(Unreached { problem, failures, .. }) => {
                if *failures == UNREACHABLE_AFTER {
                    warn!(dataplane = %pod, problem, "this dataplane cannot be reached");
                    changes.push(Change::Figures(pod.clone(), None));
                }
                let message: Option<Text> =
                    (*failures >= UNREACHABLE_AFTER).then(|| problem.as_str().into());
                self.progress(target, |progress| {
                    // The message of the first failure stay: another would be no news.
                    if message.is_none() || progress.unreachable.is_none() {
                        progress.unreachable = message;
                    }
                })
            }
            Outcome::State { state, .. } => {
                // None if the report before this one was told with newer ones.
                let figures = self.inbox.take(target);
                changes.extend(figures.map(|f| Change::Figures(pod.clone(), Some(Arc::new(f)))));
                let reachable = !self.dataplanes.get(target).is_some_and(|k| k.takes_no_push);
                self.progress(target, |progress| {
                    progress.addresses.clone_from(&state.worker.addresses);
                    if reachable {
                        progress.unreachable = None;
                    }
                    progress.refused_policies = messages::refused_policies(&state.refused);
                })
            }
            Outcome::Shim(_) => None,
        };
        changes.extend(progress.map(|progress| Change::Report(pod, Some(progress))));
        changes
    }

    /// Changes what is known of a dataplane; gives it if it is not what it was.
    fn progress(
        &mut self,
        target: &str,
        change: impl FnOnce(&mut Progress),
    ) -> Option<Arc<Progress>> {
        let known = self.dataplanes.get_mut(target)?;
        let mut progress = (*known.progress).clone();
        change(&mut progress);
        if progress == *known.progress {
            return None;
        }
        known.progress = Arc::new(progress);
        Some(Arc::clone(&known.progress))
    }
}

/// Nothing is known of these dataplanes and of the shims of these nodes any more.
fn forgotten<'a>(
    dataplanes: impl Iterator<Item = &'a Known>,
    nodes: BTreeSet<&Text>,
) -> Vec<Change> {
    let dataplanes = dataplanes.flat_map(|known| {
        let pod = &known.place.pod;
        [Change::Report(pod.clone(), None), Change::Figures(pod.clone(), None)]
    });
    let nodes = nodes.into_iter().cloned();
    let shims = nodes.map(|node| Change::Shim(node, None));
    dataplanes.chain(shims).collect()
}
