//! A class of dataplanes: which policies are in its snapshot, and since which revision.
//!
//! Owns the snapshot, its limits and its revision. When there is no room for all, the oldest
//! policies stay: the first one that does not fit and all younger ones are left out, so that a
//! younger policy never takes an older one's place. Some places for backends are left to those that
//! linger in dataplanes, where they have connections, after they left.

use crate::{Class, ClassUpdate, Key, LINGERING_SHARE, Pod, Report, Text, claims::Age};
use baton_api::LIMIT_POLICIES;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

/// A class and what it serves.
#[derive(Debug)]
pub(crate) struct ClassRecord {
    pub spec: Arc<Class>,
    /// Its dataplane pods, by Pod; one without an address is not there.
    pub members: BTreeMap<Key, Member>,
    /// The members or where they are pushed to have changed since the last fold.
    pub members_changed: bool,
    pub revision: u64,
    entries: BTreeMap<Key, Entry>,
    ages: BTreeSet<Age>,
    /// Policies and backends of all entries.
    sizes: (usize, usize),
    snapshot: BTreeMap<Text, Arc<baton_api::Policy>>,
    /// Which policies changed with which revision.
    revisions: BTreeSet<(u64, Key)>,
    /// Entries that are to be compared with what is in the snapshot.
    staged: BTreeSet<Key>,
    /// The limits or the sizes changed while not all fit.
    recut: bool,
}

/// A dataplane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// Where it is pushed to.
    pub address: IpAddr,
    /// What else is its own.
    pub others: Vec<IpAddr>,
    /// Where it runs.
    pub node: Option<Text>,
}

impl Member {
    /// Nothing without an address.
    pub fn of(pod: &Pod, report: Option<&Report>) -> Option<Self> {
        let said = report.into_iter().flat_map(|report| &report.addresses);
        let others = pod.second_address.iter().chain(said);
        Some(Self {
            address: pod.address?,
            others: others.copied().collect(),
            node: pod.node.clone(),
        })
    }
}

#[derive(Debug)]
struct Entry {
    /// Nothing when it is to go.
    age: Option<Age>,
    wanted: Vec<(Text, Arc<baton_api::Policy>)>,
    placed: Vec<Text>,
    room: Room,
    revision: u64,
}

/// Whether there is room for a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// There is.
    Enough,
    /// There are too many policies.
    NoPolicy,
    /// There are too many backends.
    NoBackend,
}

/// What a class says of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub room: Room,
    /// The revision that changed it last.
    pub revision: u64,
}

fn size(wanted: &[(Text, Arc<baton_api::Policy>)]) -> (usize, usize) {
    (
        wanted.len(),
        wanted.iter().map(|(_, p)| p.backends.len()).sum(),
    )
}

impl ClassRecord {
    pub fn new(spec: Arc<Class>) -> Self {
        Self {
            spec,
            members: BTreeMap::new(),
            members_changed: true,
            revision: 0,
            entries: BTreeMap::new(),
            ages: BTreeSet::new(),
            sizes: (0, 0),
            snapshot: BTreeMap::new(),
            revisions: BTreeSet::new(),
            staged: BTreeSet::new(),
            recut: false,
        }
    }

    /// Another specification.
    pub fn respecify(&mut self, spec: Arc<Class>) {
        self.recut |= spec.limit_policies != self.spec.limit_policies
            || spec.limit_backends != self.spec.limit_backends;
        // What is to be pushed to whom is said with the port.
        self.members_changed |= spec.control_port != self.spec.control_port;
        self.spec = spec;
    }

    /// Whether this is an address of one of its dataplanes.
    pub fn owns(&self, address: IpAddr) -> bool {
        let own = |member: &Member| {
            let mut all = member.others.iter().chain([&member.address]);
            all.any(|own| own.to_canonical() == address)
        };
        self.members.values().any(own)
    }

    /// What a policy wants to have in the snapshot; without an age, nothing.
    pub fn stage(
        &mut self,
        key: &Key,
        age: Option<Age>,
        wanted: Vec<(Text, Arc<baton_api::Policy>)>,
    ) {
        if age.is_none() && !self.entries.contains_key(key) {
            return;
        }
        let (limit_policies, limit_backends) = self.limits();
        let over = |s: (usize, usize)| s.0 > limit_policies || s.1 > limit_backends;
        let was_over = over(self.sizes);
        let entry = self.entries.entry(key.clone()).or_insert_with(|| Entry {
            age: None,
            wanted: Vec::new(),
            placed: Vec::new(),
            room: Room::Enough,
            revision: 0,
        });
        let (old, new) = (size(&entry.wanted), size(&wanted));
        self.sizes.0 = self.sizes.0 + new.0 - old.0;
        self.sizes.1 = self.sizes.1 + new.1 - old.1;
        if entry.age != age {
            if let Some(old) = &entry.age {
                self.ages.remove(old);
            }
            self.ages.extend(age.clone());
            self.recut |= was_over;
        }
        // With room for all, and room for all before, nobody else's place changes.
        self.recut |= old != new && (was_over || over(self.sizes));
        (entry.age, entry.wanted) = (age, wanted);
        self.staged.insert(key.clone());
    }

    fn limits(&self) -> (usize, usize) {
        let policies = self.spec.limit_policies.min(LIMIT_POLICIES);
        let backends = self.spec.limit_backends.unwrap_or(usize::MAX);
        (policies, backends - backends / LINGERING_SHARE)
    }

    /// Backends that it takes, beside those that linger.
    pub fn limit_backends(&self) -> usize {
        self.limits().1
    }

    /// Whether a fold has something to do here.
    pub fn is_dirty(&self) -> bool {
        self.members_changed || self.recut || !self.staged.is_empty()
    }

    /// Gives everybody their room anew. Who got another one is to be compared.
    fn cut(&mut self) -> BTreeSet<Key> {
        let (limit_policies, limit_backends) = self.limits();
        let (mut policies, mut backends) = (0, 0);
        let mut room = Room::Enough;
        let mut moved = BTreeSet::new();
        for age in &self.ages {
            let Some(entry) = self.entries.get_mut(&age.key) else {
                continue;
            };
            let (p, b) = size(&entry.wanted);
            (policies, backends) = (policies + p, backends + b);
            if room == Room::Enough && policies > limit_policies {
                room = Room::NoPolicy;
            }
            if room == Room::Enough && backends > limit_backends {
                room = Room::NoBackend;
            }
            if entry.room != room {
                entry.room = room;
                moved.insert(age.key.clone());
            }
        }
        moved
    }

    /// Makes the snapshot what is wanted, as revision `next` if that changes it. Gives what
    /// changed, and the policies that it means something for.
    pub fn commit(&mut self, next: u64) -> (Option<ClassUpdate>, BTreeSet<Key>) {
        let mut touched = std::mem::take(&mut self.staged);
        if std::mem::take(&mut self.recut) {
            touched.extend(self.cut());
        }
        let mut update = ClassUpdate::default();
        let mut changed: BTreeMap<Text, Arc<baton_api::Policy>> = BTreeMap::new();
        for key in &touched {
            let Some(entry) = self.entries.get_mut(key) else {
                continue;
            };
            let fits = entry.age.is_some() && entry.room == Room::Enough;
            let wanted = if fits { entry.wanted.as_slice() } else { &[] };
            let mut news = false;
            for name in std::mem::take(&mut entry.placed) {
                if !wanted.iter().any(|(wanted, _)| *wanted == name) {
                    self.snapshot.remove(&name);
                    update.removed.push(name);
                    news = true;
                }
            }
            for (name, policy) in wanted {
                entry.placed.push(name.clone());
                if self.snapshot.get(name) != Some(policy) {
                    self.snapshot.insert(name.clone(), Arc::clone(policy));
                    changed.insert(name.clone(), Arc::clone(policy));
                    news = true;
                }
            }
            if news {
                self.revisions.remove(&(entry.revision, key.clone()));
                entry.revision = next;
                self.revisions.insert((next, key.clone()));
            }
            if entry.age.is_none() {
                let gone = self.entries.remove(key);
                self.revisions
                    .remove(&(gone.map_or(0, |e| e.revision), key.clone()));
            }
        }
        update.removed.sort();
        update.changed = changed.into_values().collect();
        let content = !update.removed.is_empty() || !update.changed.is_empty();
        let members = std::mem::take(&mut self.members_changed);
        // The first commit is news with an empty snapshot too: a dataplane must be able to
        // acknowledge it.
        update.fresh = self.revision == 0;
        if content || update.fresh {
            self.revision = next;
        } else if !members {
            return (None, touched);
        }
        update.revision = self.revision;
        update.dataplanes = members.then(|| self.dataplanes());
        (Some(update), touched)
    }

    /// Whom to push to.
    pub fn dataplanes(&self) -> Vec<crate::Dataplane> {
        let members = self.members.iter();
        members
            .map(|(pod, member)| crate::Dataplane {
                pod: pod.clone(),
                address: member.address,
                control_port: self.spec.control_port,
                node: member.node.clone(),
            })
            .collect()
    }

    /// The snapshot.
    pub fn snapshot(&self) -> &BTreeMap<Text, Arc<baton_api::Policy>> {
        &self.snapshot
    }

    /// What the class says of a policy.
    pub fn placed(&self, key: &Key) -> Option<Placed> {
        self.entries.get(key).map(|entry| Placed {
            room: entry.room,
            revision: entry.revision,
        })
    }

    /// The policies whose last change is newer than `after`, up to `until`.
    pub fn changed_between(&self, after: u64, until: u64) -> impl Iterator<Item = &Key> {
        let first = after.saturating_add(1);
        let from = (first, Key::new("", ""));
        let found = self.revisions.range(from..);
        found
            .take_while(move |(revision, _)| *revision <= until)
            .map(|(_, key)| key)
    }

    /// All policies that want to be served.
    pub fn policies(&self) -> impl Iterator<Item = &Key> {
        self.entries.keys()
    }

    /// Snapshot policies without room.
    pub fn over_limit(&self) -> usize {
        self.sizes.0 - self.snapshot.len().min(self.sizes.0)
    }
}
