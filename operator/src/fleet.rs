//! Dataplanes and shims: who there is, what each class serves, how far each dataplane is.
//!
//! Owns the way from the index's classes to the pusher and from the pusher's reports back to the index. A term of
//! leadership has one pusher, which ends with it.

use crate::{
    asking::{ASKED_CLASS, Asking, Found, Where},
    figures::Inbox,
    peers::Peers,
    words,
};
use baton_index::{Change, ClassUpdate, Dataplane, Key, Labels, Report as Progress, Text, Wants};
use baton_push::{
    UnixSeconds,
    keys::{Peer, PeerKind},
    push::{
        Connect, Epoch, Metrics as PushMetrics, Outcome, PolicySet, Pusher, Report, Settings,
        Target, TargetKind, Version,
    },
};
use jiff::Timestamp;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::sync::mpsc;
use tracing::{error, info, warn};

/// Failures in a row after which a dataplane counts as unreachable: one lost request is no news to the owners of all
/// policies.
pub const UNREACHABLE_AFTER: u32 = 3;
/// Versions of a class whose revision is remembered: a dataplane that is further behind than that acknowledges what is newer
/// soon, or nothing.
const LIMIT_REVISIONS: usize = 1_024;

/// Which Pods are host-shims and where they listen.
#[derive(Clone, Debug)]
pub struct ShimPods {
    /// Their namespace; any if there is none.
    pub namespace: Option<String>,
    /// Their labels; empty selects none.
    pub selector: Labels,
    /// Port of their control API.
    pub port: u16,
}

/// All dataplanes and shims.
pub struct Fleet {
    connect: Arc<dyn Connect>,
    settings: Settings,
    push_metrics: Arc<PushMetrics>,
    peers: Arc<Peers>,
    shim_pods: ShimPods,
    classes: BTreeMap<Text, Class>,
    shims: BTreeMap<Key, ShimPod>,
    /// All objects are known, so that what is published is whole.
    ready: bool,
    /// Targets are not what the pusher has.
    moved: bool,
    /// What dataplanes are to be asked for before anything is pushed to them.
    wants: Arc<Wants>,
    term: Option<Term>,
}

/// What the core is to hear.
pub enum News {
    /// Of the pusher.
    Report(Report),
    /// What a dataplane had before anything was pushed to it.
    Found(Found),
}

#[derive(Default)]
struct Class {
    policies: PolicySet,
    dataplanes: Vec<Dataplane>,
    revision: u64,
    gone: bool,
    /// Not what the pusher has.
    changed: bool,
}

struct ShimPod {
    node: Text,
    address: IpAddr,
}

/// One term of leadership.
struct Term {
    pusher: Pusher,
    peers: Arc<Peers>,
    reports: mpsc::Receiver<Report>,
    /// Which revision each version of a class holds.
    revisions: BTreeMap<Text, VecDeque<(Version, u64)>>,
    dataplanes: BTreeMap<String, Known>,
    shims: BTreeMap<String, Text>,
    /// What dataplanes count.
    inbox: Inbox,
    /// Who is asked before anything is pushed.
    asking: Asking,
}

/// How far a dataplane is.
struct Known {
    place: Where,
    progress: Arc<Progress>,
    /// It can be read from, and takes no push.
    takes_no_push: bool,
}

impl Fleet {
    /// Nobody yet.
    pub fn new(
        connect: Arc<dyn Connect>,
        settings: Settings,
        push_metrics: Arc<PushMetrics>,
        peers: Arc<Peers>,
        shim_pods: ShimPods,
    ) -> Self {
        Self {
            connect,
            settings,
            push_metrics,
            peers,
            shim_pods,
            classes: BTreeMap::new(),
            shims: BTreeMap::new(),
            ready: false,
            moved: false,
            wants: Arc::new(Wants::Nothing),
            term: None,
        }
    }

    /// What dataplanes are to be asked for from now on, before anything is pushed to them.
    pub fn want(&mut self, wants: Wants) {
        if *self.wants != wants {
            self.wants = Arc::new(wants);
            self.moved = true;
        }
    }

    /// All objects are known.
    pub fn ready(&mut self) {
        self.ready = true;
    }

    /// Whether this process leads and publishes.
    pub fn leads(&self) -> bool {
        self.term.is_some() && self.ready
    }

    /// Looks whether a Pod is a shim.
    pub fn see(&mut self, change: &Change) {
        let Change::Pod(key, pod) = change else {
            return;
        };
        let wanted = &self.shim_pods;
        let in_namespace = wanted
            .namespace
            .as_deref()
            .is_none_or(|n| n == &*key.namespace);
        let shim = pod.as_ref().filter(|pod| {
            in_namespace && !wanted.selector.is_empty() && pod.labels.include(&wanted.selector)
        });
        let shim = shim.and_then(|pod| {
            Some(ShimPod {
                node: pod.node.clone()?,
                address: pod.address?,
            })
        });
        match shim {
            Some(shim) => {
                self.shims.insert(key.clone(), shim);
                self.moved = true;
            }
            None => self.moved |= self.shims.remove(key).is_some(),
        }
    }

    /// A class changed.
    pub fn update(&mut self, name: Text, update: ClassUpdate) {
        let class = self.classes.entry(name).or_default();
        let policies = Arc::make_mut(&mut class.policies);
        if update.fresh {
            policies.clear();
        }
        for policy in update.changed {
            policies.insert(policy.name.clone(), policy);
        }
        for name in &update.removed {
            policies.remove(&**name);
        }
        class.changed |= class.revision != update.revision || class.gone != update.gone;
        class.revision = update.revision;
        class.gone = update.gone;
        if let Some(dataplanes) = update.dataplanes {
            class.dataplanes = dataplanes;
            self.moved = true;
        }
    }

    /// Gives the pusher what has changed, if this process leads.
    pub fn publish(&mut self) {
        let (true, Some(term)) = (self.ready, &mut self.term) else {
            return;
        };
        for (name, class) in &mut self.classes {
            if !std::mem::take(&mut class.changed) {
                continue;
            }
            if class.gone {
                term.pusher.retire(name);
                continue;
            }
            match term.pusher.publish(name, &class.policies) {
                Ok(version) => term.published(name, version, class.revision),
                Err(error) => error!(%error, "this class stays at what it was"),
            }
        }
        self.classes.retain(|_, class| !class.gone || class.changed);
        if std::mem::take(&mut self.moved) {
            let (mut targets, dataplanes, shims) = self.targets();
            if let Some(term) = &mut self.term {
                for name in term.asking.ask(&dataplanes, &self.wants) {
                    if let Some(target) = targets.get_mut(&name) {
                        let class = ASKED_CLASS.to_owned();
                        target.kind = TargetKind::Dataplane { class };
                    }
                }
                if let Err(error) = term.pusher.set_targets(&targets) {
                    error!(%error, "dataplanes and shims stay those that were there before");
                    return;
                }
                term.follow(dataplanes, shims);
            }
        }
    }

    fn targets(
        &self,
    ) -> (
        BTreeMap<String, Target>,
        BTreeMap<String, Where>,
        BTreeMap<String, Text>,
    ) {
        let mut targets = BTreeMap::new();
        let mut dataplanes = BTreeMap::new();
        let mut shims = BTreeMap::new();
        for (class_name, class) in &self.classes {
            for dataplane in &class.dataplanes {
                let name = format!("dataplane/{}", dataplane.pod);
                let kind = TargetKind::Dataplane {
                    class: class_name.to_string(),
                };
                let address = SocketAddr::new(dataplane.address, dataplane.control_port);
                targets.insert(name.clone(), Target { address, kind });
                let known = Where {
                    pod: dataplane.pod.clone(),
                    class: class_name.clone(),
                    address,
                };
                dataplanes.insert(name, known);
            }
        }
        for (pod, shim) in &self.shims {
            let name = format!("shim/{pod}");
            let address = SocketAddr::new(shim.address, self.shim_pods.port);
            let kind = TargetKind::Shim;
            targets.insert(name.clone(), Target { address, kind });
            shims.insert(name, shim.node.clone());
        }
        (targets, dataplanes, shims)
    }

    /// A term begins with this epoch, or ends. Gives what the index has to forget.
    pub fn term(&mut self, epoch: Option<u32>) -> Vec<Change> {
        let mut changes = Vec::new();
        if let Some(term) = self.term.take() {
            // Dropping the pusher ends its requests at once.
            self.peers.ask(None);
            for known in term.dataplanes.into_values() {
                changes.push(Change::Report(known.place.pod.clone(), None));
                changes.push(Change::Figures(known.place.pod, None));
            }
            let nodes: BTreeSet<Text> = term.shims.into_values().collect();
            changes.extend(nodes.into_iter().map(|node| Change::Shim(node, None)));
        }
        if let Some(epoch) = epoch {
            let inbox = Inbox::default();
            let (pusher, reports) = Pusher::new(
                self.settings.clone(),
                Epoch(epoch),
                Arc::clone(&self.connect),
                Arc::new(inbox.clone()),
                Arc::clone(&self.push_metrics),
                fastrand::Rng::new(),
            );
            self.term = Some(Term {
                pusher,
                peers: Arc::clone(&self.peers),
                reports,
                revisions: BTreeMap::new(),
                dataplanes: BTreeMap::new(),
                shims: BTreeMap::new(),
                inbox,
                asking: Asking::new(Arc::clone(&self.connect), self.settings.clone()),
            });
            self.moved = true;
            for class in self.classes.values_mut() {
                class.changed = true;
            }
        }
        changes
    }

    /// Waits for the next; for ever while another process leads.
    pub async fn news(&mut self) -> News {
        let Some(term) = &mut self.term else {
            return std::future::pending().await;
        };
        tokio::select! {
            // The pusher holds the other end.
            Some(report) = term.reports.recv() => News::Report(report),
            found = term.asking.found() => News::Found(found),
        }
    }

    /// What it means to the index.
    pub fn heard(&mut self, news: News) -> Vec<Change> {
        let Some(term) = &mut self.term else {
            return Vec::new();
        };
        match news {
            News::Report(report) => term.heard(report),
            News::Found(found) => {
                self.moved = true;
                let class = found.place.class.clone();
                let policies = term.asking.answered(found);
                policies
                    .map(|p| Change::Held(class, p))
                    .into_iter()
                    .collect()
            }
        }
    }

    /// Lets requests under way end.
    pub async fn shutdown(&mut self, patience: Duration) {
        if let Some(term) = self.term.take() {
            term.pusher.shutdown(patience).await;
        }
    }
}

impl Term {
    fn published(&mut self, class: &Text, version: Version, revision: u64) {
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

    fn follow(&mut self, dataplanes: BTreeMap<String, Where>, shims: BTreeMap<String, Text>) {
        // A Pod of the same name elsewhere is another dataplane, of which nothing is known.
        self.dataplanes
            .retain(|name, known| dataplanes.get(name) == Some(&known.place));
        for (name, place) in dataplanes {
            self.dataplanes.entry(name).or_insert_with(|| Known {
                place,
                progress: Arc::default(),
                takes_no_push: false,
            });
        }
        self.inbox.retain(|name| self.dataplanes.contains_key(name));
        self.shims = shims;
        let dataplanes = self
            .dataplanes
            .keys()
            .map(|name| (name.clone(), PeerKind::Dataplane));
        let shims = self.shims.keys().map(|name| (name.clone(), PeerKind::Shim));
        self.peers.ask(Some(&dataplanes.chain(shims).collect()));
    }

    /// What a report says of adoption keys.
    fn keys(&self, target: &str, result: &Outcome) {
        match result {
            Outcome::State { state, .. } => self.peers.said(Peer::from_state(target, state)),
            Outcome::Shim(state) => self.peers.said(Peer::from_shim(target, state)),
            Outcome::Unreachable { failures, .. } if *failures >= UNREACHABLE_AFTER => {
                let now = UnixSeconds(Timestamp::now().as_second());
                self.peers.silent(target, now);
            }
            _ => {}
        }
    }

    fn heard(&mut self, report: Report) -> Vec<Change> {
        let target = &*report.target;
        self.keys(target, &report.result);
        if let Some(node) = self.shims.get(target) {
            return words::shim(node.clone(), report.result)
                .into_iter()
                .collect();
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
                Outcome::Unreachable { pushing, .. } => known.takes_no_push = *pushing,
                _ => {}
            }
        }
        let progress = match &report.result {
            Outcome::Acknowledged {
                generation,
                version,
                pushed,
                took,
            } => {
                if *pushed {
                    info!(dataplane = %pod, generation, took_us = took.as_micros(), "snapshot in force");
                }
                let revision = self.revision(&class, *version);
                self.progress(target, |progress| {
                    progress.unreachable = None;
                    progress.refused = None;
                    progress.acknowledged = revision.max(progress.acknowledged);
                })
            }
            Outcome::Refused { version, refusal } => {
                let words = words::refusal(refusal);
                warn!(dataplane = %pod, "this dataplane refuses its snapshot, what it had stays in force: {words}");
                let revision = self.revision(&class, *version).unwrap_or_default();
                self.progress(target, |progress| {
                    progress.unreachable = None;
                    progress.refused = Some((revision, words.into()));
                })
            }
            Outcome::Overtaken { generation } => {
                warn!(dataplane = %pod, generation, "a later leader's snapshot is in force there");
                None
            }
            Outcome::Unreachable {
                problem, failures, ..
            } => {
                if *failures == UNREACHABLE_AFTER {
                    warn!(dataplane = %pod, problem, "this dataplane cannot be reached");
                    changes.push(Change::Figures(pod.clone(), None));
                }
                let words: Option<Text> =
                    (*failures >= UNREACHABLE_AFTER).then(|| problem.as_str().into());
                self.progress(target, |progress| {
                    // The words of the first failure stay: others would be no news.
                    if words.is_none() || progress.unreachable.is_none() {
                        progress.unreachable = words;
                    }
                })
            }
            Outcome::State { .. } => {
                // None if the report before this one was told with newer ones.
                let figures = self.inbox.take(target);
                changes.extend(figures.map(|f| Change::Figures(pod.clone(), Some(Arc::new(f)))));
                let reachable = !self.dataplanes.get(target).is_some_and(|k| k.takes_no_push);
                self.progress(target, |progress| {
                    if reachable {
                        progress.unreachable = None;
                    }
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

#[cfg(test)]
#[path = "fleet_tests.rs"]
pub mod tests;
