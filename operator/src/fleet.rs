//! Dataplanes and shims: who there is, what each class serves, how far each dataplane is.
//!
//! Owns the way from the index's classes to the pusher and from the pusher's reports back to the
//! index. A term of leadership has one pusher, which ends with it.

mod term;

use crate::{
    peers::Peers,
    snapshot_recovery::{Found, RECOVERY_CLASS, Where},
    translate::SharedInterner,
};
use baton_index::{Change, ClassUpdate, Dataplane, Key, Labels, Text, Wants};
use baton_push::{
    keys::LiveKeys,
    push::{
        Connect, Epoch, LIMIT_TARGETS, Metrics as PushMetrics, PolicySet, Report, Settings, Target,
        TargetKind,
    },
};
use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use term::Term;
use tracing::error;

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
    keys: LiveKeys,
    /// Names in dataplanes' states, which are those of objects.
    texts: SharedInterner,
    shim_pods: ShimPods,
    classes: BTreeMap<Text, Class>,
    shims: BTreeMap<Key, ShimPod>,
    /// All objects are known, so that what is published is whole.
    ready: bool,
    /// Targets are not what the pusher has.
    moved: bool,
    /// Dataplanes and shims that are more than one operator serves.
    left_out: usize,
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
    /// The stored keys changed, or which nodes have none.
    Keys,
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

impl Fleet {
    /// Nobody yet.
    pub fn new(
        connect: Arc<dyn Connect>,
        settings: Settings,
        push_metrics: Arc<PushMetrics>,
        peers: Arc<Peers>,
        keys: LiveKeys,
        texts: SharedInterner,
        shim_pods: ShimPods,
    ) -> Self {
        Self {
            connect,
            settings,
            push_metrics,
            peers,
            keys,
            texts,
            shim_pods,
            classes: BTreeMap::new(),
            shims: BTreeMap::new(),
            ready: false,
            moved: false,
            left_out: 0,
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
        let in_namespace = wanted.namespace.as_deref().is_none_or(|n| n == &*key.namespace);
        let shim = pod.as_ref().filter(|pod| {
            in_namespace && !wanted.selector.is_empty() && pod.labels.include(&wanted.selector)
        });
        let shim =
            shim.and_then(|pod| Some(ShimPod { node: pod.node.clone()?, address: pod.address? }));
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

    /// Gives the pusher what has changed, if this process leads; and the caller what the index has
    /// to forget.
    pub fn publish(&mut self) -> Vec<Change> {
        let (true, Some(term)) = (self.ready, &mut self.term) else {
            return Vec::new();
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
            let left_out = self.count().saturating_sub(LIMIT_TARGETS);
            if left_out > 0 && left_out != self.left_out {
                error!(
                    left_out,
                    limit = LIMIT_TARGETS,
                    "more dataplanes and shims than one operator serves: the last shims, then the last dataplanes, are neither pushed to nor asked"
                );
            }
            self.left_out = left_out;
            if let Some(term) = &mut self.term {
                for name in term.recovery.ask(&dataplanes, &self.wants) {
                    if let Some(target) = targets.get_mut(&name) {
                        let class = RECOVERY_CLASS.to_owned();
                        target.kind = TargetKind::Dataplane { class };
                    }
                }
                if let Err(error) = term.pusher.set_targets(&targets) {
                    error!(%error, "dataplanes and shims stay those that were there before");
                    return Vec::new();
                }
                return term.follow(dataplanes, shims);
            }
        }
        Vec::new()
    }

    /// Dataplanes and shims there are.
    fn count(&self) -> usize {
        let dataplanes = self.classes.values().map(|class| class.dataplanes.len());
        dataplanes.sum::<usize>() + self.shims.len()
    }

    /// As many as one operator serves, dataplanes first: without pushes they go on with what was,
    /// while shims only go without adoptions.
    fn targets(
        &self,
    ) -> (BTreeMap<String, Target>, BTreeMap<String, Where>, BTreeMap<String, Text>) {
        let mut targets = BTreeMap::new();
        let mut dataplanes = BTreeMap::new();
        let mut shims = BTreeMap::new();
        for (class_name, class) in &self.classes {
            let room = LIMIT_TARGETS - targets.len();
            for dataplane in class.dataplanes.iter().take(room) {
                let name = format!("dataplane/{}", dataplane.pod);
                let kind = TargetKind::Dataplane { class: class_name.to_string() };
                let address = SocketAddr::new(dataplane.address, dataplane.control_port);
                targets.insert(name.clone(), Target { address, kind });
                let known = Where {
                    pod: dataplane.pod.clone(),
                    class: class_name.clone(),
                    address,
                    node: dataplane.node.clone(),
                };
                dataplanes.insert(name, known);
            }
        }
        for (pod, shim) in self.shims.iter().take(LIMIT_TARGETS - targets.len()) {
            let name = format!("shim/{pod}");
            let address = SocketAddr::new(shim.address, self.shim_pods.port);
            let node = shim.node.to_string();
            let kind = TargetKind::Shim { node };
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
            changes.extend(term.ended());
        }
        if let Some(epoch) = epoch {
            changes.extend(self.excluded());
            self.term = Some(Term::new(
                Epoch(epoch),
                &self.connect,
                &self.settings,
                &self.push_metrics,
                &self.peers,
                &self.keys,
                &self.texts,
            ));
            self.moved = true;
            for class in self.classes.values_mut() {
                class.changed = true;
            }
        }
        changes
    }

    /// The nodes that an admin excluded, if that is known.
    fn excluded(&mut self) -> Option<Change> {
        let stored = self.keys.borrow_and_update().clone()?;
        let nodes = stored.excluded.iter().map(|node| node.as_str().into());
        Some(Change::Excluded(nodes.collect()))
    }

    /// Waits for the next; for ever while another process leads.
    pub async fn news(&mut self) -> News {
        let Some(term) = &mut self.term else {
            return std::future::pending().await;
        };
        tokio::select! {
            news = term.news() => news,
            Ok(()) = self.keys.changed() => News::Keys,
        }
    }

    /// What it means to the index.
    pub fn heard(&mut self, news: News) -> Vec<Change> {
        let Some(term) = &mut self.term else {
            return Vec::new();
        };
        match news {
            News::Report(report) => term.heard(report),
            News::Keys => self.excluded().into_iter().collect(),
            News::Found(found) => {
                self.moved = true;
                let class = found.place.class.clone();
                let policies = term.recovery.answered(found);
                policies.map(|p| Change::Held(class, p)).into_iter().collect()
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

#[cfg(test)]
#[path = "fleet_tests.rs"]
pub mod tests;
