//! The index itself: all that is known, what was made of it, and what is to be made anew.
//!
//! Owns the records. `apply` takes changes in, `fold` makes what they touched anew.

use crate::{
    ClassUpdate, ClassVerdict, FrontWrites, Key, Policy, Reason, Text, Verdict,
    allowance::{Grants, Tenant},
    backends::View,
    claims::{Age, Claims},
    class::ClassRecord,
    clients::Clients,
    cost::Costs,
    drains::Drains,
    kept::{Holdings, Kept, Wants},
    reports::{DataplaneRecord, Serving, Sums},
    standing::Standing,
    translate::{Translation, translate},
    world::World,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// All that is known, and what was made of it.
#[derive(Debug)]
pub struct Index {
    /// Objects are files, and no controller makes others of them.
    pub(crate) of_files: bool,
    pub(crate) world: World,
    /// In boxes: a tree's nodes are half empty, and a record takes 600 bytes.
    pub(crate) policies: BTreeMap<Key, Box<PolicyRecord>>,
    pub(crate) classes: BTreeMap<Text, ClassRecord>,
    /// The class of each dataplane pod.
    pub(crate) class_of: BTreeMap<Key, Text>,
    pub(crate) dataplanes: BTreeMap<Key, DataplaneRecord>,
    pub(crate) claims: Claims,
    /// The Pods that policies take connections of.
    pub(crate) clients: Clients,
    /// What dataplanes were found to have.
    pub(crate) holdings: Holdings,
    /// Policies that cannot be used as they are and of which nothing good is known.
    pub(crate) bare: BTreeSet<Key>,
    /// The policy of each snapshot policy's name, those that once were included.
    pub(crate) names: BTreeMap<Text, Key>,
    pub(crate) costs: Costs,
    /// When which policy is to be looked at for the deadline of a drain.
    pub(crate) deadlines: BTreeSet<(i64, Key)>,
    pub(crate) dirty: Dirty,
    pub(crate) class_verdicts: BTreeMap<Text, ClassVerdict>,
    /// The newest revision of any class.
    pub(crate) revision: u64,
    /// Tests put one here that fails.
    pub(crate) translator: fn(&View<'_>) -> Translation,
}

/// A policy, and what was made of it.
#[derive(Debug)]
pub(crate) struct PolicyRecord {
    /// As it is.
    pub policy: Arc<Policy>,
    /// What is in force: the same, or what is kept in its place.
    pub served: Arc<Policy>,
    /// It was good as this.
    pub good: Option<Arc<Policy>>,
    pub kept: Option<Kept>,
    /// Why it cannot be used as it is, where something else is kept.
    pub problem: Option<(Reason, String)>,
    /// There is no object, only what dataplanes have.
    pub stands_in: bool,
    /// The Service whose endpoints it follows.
    pub target: Option<Key>,
    /// Of what is served.
    pub standing: Option<Standing>,
    /// Nothing while it is not accepted.
    pub translation: Option<Translation>,
    /// What the last attempt died of.
    pub failure: Option<String>,
    /// Classes that were told of it.
    pub staged: BTreeSet<Text>,
    /// The Service that clients connect to.
    pub front: Option<Key>,
    /// Dataplanes that have its ports, as of the last plan.
    pub serving: Serving,
    /// What was last said to be written of its frontend.
    pub front_writes: Arc<FrontWrites>,
    /// Names that are remembered for it.
    pub names: BTreeSet<Text>,
    pub sums: Sums,
    pub verdict: Option<Arc<Verdict>>,
    pub drains: Drains,
    /// Costs of its Pods, by name; nothing where dataplanes have not said yet.
    pub costs: BTreeMap<Text, Option<u64>>,
}

impl PolicyRecord {
    /// What is in force at each of its listeners, or would be.
    pub fn settings(&self) -> impl Iterator<Item = &baton_api::Policy> {
        let translation = self.translation.iter();
        let own = translation.flat_map(|t| t.listeners.iter().map(|l| &*l.policy));
        let template = self.served.template.as_deref().ok();
        let none = self.translation.as_ref().is_none_or(|t| t.listeners.is_empty());
        own.chain(template.filter(|_| none))
    }
}

/// What is to be made anew.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    /// Policies by themselves.
    pub examine: BTreeSet<Key>,
    /// What they come to.
    pub translate: BTreeSet<Key>,
    /// What is said of them.
    pub judge: BTreeSet<Key>,
    /// What is said of classes.
    pub classes: BTreeSet<Text>,
    /// Classes that went.
    pub gone: BTreeSet<Text>,
    /// Ports may have to be given out.
    pub ports: bool,
    /// Services in front of dataplanes that changed.
    pub fronts: BTreeSet<Key>,
}

impl Default for Index {
    fn default() -> Self {
        Self {
            of_files: false,
            world: World::default(),
            policies: BTreeMap::new(),
            classes: BTreeMap::new(),
            class_of: BTreeMap::new(),
            dataplanes: BTreeMap::new(),
            holdings: Holdings::default(),
            bare: BTreeSet::new(),
            claims: Claims::default(),
            clients: Clients::default(),
            names: BTreeMap::new(),
            costs: Costs::default(),
            deadlines: BTreeSet::new(),
            dirty: Dirty::default(),
            class_verdicts: BTreeMap::new(),
            revision: 0,
            translator: translate,
        }
    }
}

impl PolicyRecord {
    pub fn new(policy: Arc<Policy>) -> Self {
        Self {
            served: Arc::clone(&policy),
            policy,
            good: None,
            kept: None,
            problem: None,
            stands_in: false,
            target: None,
            standing: None,
            translation: None,
            failure: None,
            staged: BTreeSet::new(),
            front: None,
            serving: Serving::default(),
            front_writes: Arc::default(),
            names: BTreeSet::new(),
            sums: Sums::default(),
            verdict: None,
            drains: Drains::default(),
            costs: BTreeMap::new(),
        }
    }

    pub fn age(&self, key: &Key) -> Age {
        Age { created: self.policy.created, key: key.clone() }
    }
}

impl Index {
    /// Knows nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Knows nothing, of objects that are files: there are no EndpointSlices and no Services that
    /// nobody wrote down, and clients may be led to dataplanes by what is no object.
    #[must_use]
    pub fn of_files() -> Self {
        Self { of_files: true, ..Self::default() }
    }

    /// Whether a fold would have anything to do.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        let dirty = &self.dirty;
        let policies = [&dirty.examine, &dirty.translate, &dirty.judge];
        policies.iter().any(|set| !set.is_empty())
            || !dirty.classes.is_empty()
            || !dirty.gone.is_empty()
            || !dirty.fronts.is_empty()
            || self.claims.is_open()
            || self.costs.is_dirty()
            || self.classes.values().any(ClassRecord::is_dirty)
    }

    /// What dataplanes are to be asked for, as of the last fold, before the first push to each.
    #[must_use]
    pub fn wants(&self) -> Wants {
        if self.holdings.partial {
            Wants::All
        } else if self.bare.is_empty() {
            Wants::Nothing
        } else {
            Wants::These(self.bare.clone())
        }
    }

    /// The snapshot policies of a class as of the last fold, by name.
    pub fn snapshot(&self, class: &str) -> impl ExactSizeIterator<Item = &Arc<baton_api::Policy>> {
        const NONE: &BTreeMap<Text, Arc<baton_api::Policy>> = &BTreeMap::new();
        let snapshot = self.classes.get(class).map(ClassRecord::snapshot);
        snapshot.unwrap_or(NONE).values()
    }

    /// All of a class as of the last fold, as an update that changes everything: for a pusher that
    /// starts anew.
    #[must_use]
    pub fn class(&self, class: &str) -> Option<ClassUpdate> {
        let record = self.classes.get(class)?;
        Some(ClassUpdate {
            revision: record.revision,
            fresh: true,
            changed: record.snapshot().values().cloned().collect(),
            removed: Vec::new(),
            dataplanes: Some(record.dataplanes()),
            gone: false,
        })
    }

    /// The classes, by name.
    pub fn classes(&self) -> impl Iterator<Item = &Text> {
        self.classes.keys()
    }

    /// All verdicts as of the last fold, by policy: for a writer that starts anew (a new leader).
    pub fn verdicts(&self) -> impl Iterator<Item = &Arc<Verdict>> {
        self.policies.values().filter_map(|record| record.verdict.as_ref())
    }

    /// All verdicts of classes as of the last fold, likewise.
    pub fn class_verdicts(&self) -> impl Iterator<Item = &ClassVerdict> {
        self.class_verdicts.values()
    }

    /// What is to be written of Services in front of dataplanes as of the last fold, likewise.
    pub fn fronts(&self) -> impl Iterator<Item = (&Key, &Arc<FrontWrites>)> {
        let records = self.policies.values();
        records.filter_map(|record| Some((record.front.as_ref()?, &record.front_writes)))
    }

    /// Has the Services looked at again that lead to no policy: what was said of them while another
    /// process led was said to nobody.
    pub fn recall_fronts(&mut self) {
        let fronts = self.world.fronts();
        self.dirty.fronts.extend(fronts);
    }

    /// All deletion costs that were given out, not taken back, and are not on their Pods, likewise.
    pub fn costs(&self) -> impl Iterator<Item = (&Key, i32)> {
        let written = self.costs.written();
        written.filter(|(pod, cost)| {
            let pod = self.world.live_pod(pod);
            pod.and_then(|pod| pod.cost) != Some(*cost)
        })
    }

    /// Has the deletion costs that are on Pods judged again: what was said while another process
    /// led was said to nobody, also that one is to be taken off.
    pub fn recall_costs(&mut self) {
        for (key, cost) in self.world.costs() {
            self.costs.found(key, cost);
        }
    }

    /// The pods of a policy that is not in force, for clients of its Service. No class has granted
    /// anything, so they are Pods of its namespace.
    pub(crate) fn past(&self, key: &Key, record: &PolicyRecord) -> Translation {
        let tenant = Tenant::new(&key.namespace, &self.world.namespaces);
        (self.translator)(&View {
            key,
            policy: &record.served,
            world: &self.world,
            grants: vec![Grants::of(&[], &tenant)],
            // Clients come to these pods themselves.
            allow_from: None,
            held: None,
            partial: false,
        })
    }

    /// Whether nothing at all is remembered: with no object left, that has to be so.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.world.is_empty()
            && self.policies.is_empty()
            && self.classes.is_empty()
            && self.class_of.is_empty()
            && self.dataplanes.is_empty()
            && self.claims.is_empty()
            && self.clients.is_empty()
            && self.names.is_empty()
            && self.holdings.held.is_empty()
            && self.bare.is_empty()
            && self.deadlines.is_empty()
            && self.costs.is_empty()
            && self.class_verdicts.is_empty()
    }
}
