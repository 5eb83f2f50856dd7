//! A class of dataplanes: which policies are in its snapshot, and since which revision.
//!
//! Owns the snapshot, its limits and its revision. Who is left out when there is no room for all,
//! `room` says. Some places for backends are left to those that linger in dataplanes, where they
//! have connections, after they left.

use crate::{
    Class, ClassUpdate, Key, LINGERING_SHARE, Pod, Report, Text,
    claims::Age,
    room::{Claimant, Content, Room, Share, Size, share_out},
};
use baton_api::{LIMIT_POLICIES, LIMIT_SNAPSHOT_BYTES};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

/// Of a snapshot, around its policies: `{"generation":18446744073709551615,"policies":[]}`.
const FRAME_BYTES: usize = 64;

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
    /// Of all entries.
    sizes: Size,
    limit_bytes: usize,
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
    wanted: Content,
    size: Size,
    share: Share,
    /// What of it is in the snapshot.
    placed: Vec<Text>,
    placed_size: Size,
    revision: u64,
}

impl Entry {
    fn given(&self) -> &[(Text, Arc<baton_api::Policy>)] {
        match (&self.age, self.share.room) {
            (None, _) => &[],
            (Some(_), Room::Enough) => &self.wanted,
            (Some(_), _) => &self.share.part,
        }
    }
}

/// What a class says of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub room: Room,
    /// There is not, and some of what it wants is in the snapshot.
    pub has_part: bool,
    /// All its listeners are in the snapshot, perhaps with fewer backends than it wants.
    pub listens: bool,
    /// The revision that changed it last.
    pub revision: u64,
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
            sizes: Size::default(),
            limit_bytes: LIMIT_SNAPSHOT_BYTES - FRAME_BYTES,
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
    pub fn stage(&mut self, key: &Key, age: Option<Age>, wanted: Content) {
        if age.is_none() && !self.entries.contains_key(key) {
            return;
        }
        let limits = self.limits();
        let was_over = self.sizes.within(limits) != Room::Enough;
        let entry = self.entries.entry(key.clone()).or_insert_with(|| Entry {
            age: None,
            wanted: Vec::new(),
            size: Size::default(),
            share: Share { room: Room::Enough, part: Vec::new() },
            placed: Vec::new(),
            placed_size: Size::default(),
            revision: 0,
        });
        let size = Size::of(&wanted);
        self.sizes = self.sizes.minus(entry.size).plus(size);
        if entry.age != age {
            if let Some(old) = &entry.age {
                self.ages.remove(old);
            }
            self.ages.extend(age.clone());
        }
        (entry.age, entry.wanted, entry.size) = (age, wanted, size);
        // With room for all, and room for all before, nobody else's place changes.
        self.recut |= was_over || self.sizes.within(limits) != Room::Enough;
        self.staged.insert(key.clone());
    }

    fn limits(&self) -> Size {
        let backends = self.spec.limit_backends.unwrap_or(usize::MAX);
        Size {
            policies: self.spec.limit_policies.min(LIMIT_POLICIES),
            backends: backends - backends / LINGERING_SHARE,
            bytes: self.limit_bytes,
        }
    }

    /// Backends that it takes, beside those that linger.
    pub fn limit_backends(&self) -> usize {
        self.limits().backends
    }

    /// Whether a fold has something to do here.
    pub fn is_dirty(&self) -> bool {
        self.members_changed || self.recut || !self.staged.is_empty()
    }

    /// Gives everybody their room anew. Who got another one is to be compared.
    fn cut(&mut self) -> BTreeSet<Key> {
        let entries = self.ages.iter().filter_map(|age| {
            let entry = self.entries.get(&age.key)?;
            let placed = entry.placed.iter();
            let placed = placed.filter_map(|name| Some((name.clone(), self.snapshot.get(name)?)));
            Some(Claimant {
                key: &age.key,
                wanted: &entry.wanted,
                size: entry.size,
                has: placed.map(|(name, p)| (name, Arc::clone(p))).collect(),
                has_size: entry.placed_size,
            })
        });
        let shares = share_out(self.limits(), &entries.collect::<Vec<_>>());
        let mut moved = BTreeSet::new();
        for (key, share) in shares {
            if let Some(entry) = self.entries.get_mut(&key)
                && entry.share != share
            {
                entry.share = share;
                moved.insert(key);
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
            let mut news = false;
            let before = std::mem::take(&mut entry.placed);
            let given = entry.given();
            for name in before {
                if !given.iter().any(|(given, _)| *given == name) {
                    self.snapshot.remove(&name);
                    update.removed.push(name);
                    news = true;
                }
            }
            for (name, policy) in given {
                if self.snapshot.get(name) != Some(policy) {
                    self.snapshot.insert(name.clone(), Arc::clone(policy));
                    changed.insert(name.clone(), Arc::clone(policy));
                    news = true;
                }
            }
            let placed = given.iter().map(|(name, _)| name.clone()).collect();
            let size = match entry.share.room {
                Room::Enough => entry.size,
                _ => Size::of(given),
            };
            (entry.placed, entry.placed_size) = (placed, size);
            if news {
                self.revisions.remove(&(entry.revision, key.clone()));
                entry.revision = next;
                self.revisions.insert((next, key.clone()));
            }
            if entry.age.is_none() {
                let gone = self.entries.remove(key);
                self.revisions.remove(&(gone.map_or(0, |e| e.revision), key.clone()));
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
            room: entry.share.room,
            has_part: !entry.share.part.is_empty(),
            listens: entry.placed.len() == entry.wanted.len(),
            revision: entry.revision,
        })
    }

    /// The policies whose last change is newer than `after`, up to `until`.
    pub fn changed_between(&self, after: u64, until: u64) -> impl Iterator<Item = &Key> {
        let first = after.saturating_add(1);
        let from = (first, Key::new("", ""));
        let found = self.revisions.range(from..);
        found.take_while(move |(revision, _)| *revision <= until).map(|(_, key)| key)
    }

    /// All policies that want to be served.
    pub fn policies(&self) -> impl Iterator<Item = &Key> {
        self.entries.keys()
    }

    /// Snapshot policies without room for all that they want.
    pub fn over_limit(&self) -> usize {
        let short = self.entries.values();
        let short = short.filter(|entry| entry.share.room != Room::Enough);
        short.map(|entry| entry.size.policies).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const POLICIES: usize = 6;
    /// And two that are kept for those that linger.
    const BACKENDS: usize = 14;
    /// Six listeners with two backends and three networks take some 11,000.
    const BYTES: usize = 11_000;

    fn class() -> ClassRecord {
        let mut class = ClassRecord::new(Arc::new(Class {
            limit_policies: POLICIES,
            limit_backends: Some(BACKENDS + 2),
            ..crate::fold_tests::class()
        }));
        class.limit_bytes = BYTES;
        class
    }

    fn key(name: u8) -> Key {
        Key::new("ns", format!("p{name}"))
    }

    /// A policy's listeners, each with these of its Pods, and as many networks.
    fn content(name: u8, listeners: &BTreeMap<u8, BTreeSet<u8>>, networks: usize) -> Content {
        let networks = vec![r#""10.0.0.0/8""#; networks].join(",");
        let listeners = listeners.iter().map(|(listener, pods)| {
            let backends: Vec<String> = pods
                .iter()
                .map(|pod| format!(r#"{{"name":"{pod}","endpoint":"10.0.{name}.{pod}:80"}}"#))
                .collect();
            let full = format!("ns/p{name}/{listener}");
            let text = format!(
                r#"{{"name":"{full}","frontends":["0.0.0.0:80"],"allowFrom":[{networks}],"backends":[{}]}}"#,
                backends.join(",")
            );
            let policy = serde_json::from_str(&text).expect("a policy");
            (full.into(), Arc::new(policy))
        });
        listeners.collect()
    }

    type Wanted = BTreeMap<u8, (i64, Content)>;

    fn stage(class: &mut ClassRecord, name: u8, wanted: Option<(i64, Content)>) {
        let key = key(name);
        let (age, content) = match wanted {
            Some((created, content)) => {
                let key = key.clone();
                (Some(Age { created, key }), content)
            }
            None => (None, Content::new()),
        };
        class.stage(&key, age, content);
    }

    /// What the snapshot has of each.
    fn given(class: &ClassRecord) -> BTreeMap<u8, Content> {
        let mut given: BTreeMap<u8, Content> = BTreeMap::new();
        for (name, policy) in class.snapshot() {
            let of = name.trim_start_matches("ns/p").split('/').next();
            let of = of.and_then(|of| of.parse().ok()).expect("a number");
            let content = (name.clone(), Arc::clone(policy));
            given.entry(of).or_default().push(content);
        }
        given
    }

    fn total(given: &BTreeMap<u8, Content>) -> Size {
        let sizes = given.values().map(|content| Size::of(content));
        sizes.fold(Size::default(), Size::plus)
    }

    /// From the oldest to the youngest, each that fits.
    fn by_age(wanted: &Wanted) -> BTreeMap<u8, Content> {
        let mut order: Vec<_> = wanted.iter().map(|(n, (age, _))| (*age, *n)).collect();
        order.sort_unstable();
        let mut given = BTreeMap::new();
        for (_, name) in order {
            given.insert(name, wanted[&name].1.clone());
            if total(&given).within(class().limits()) != Room::Enough {
                given.remove(&name);
            }
        }
        given.retain(|_, content| !content.is_empty());
        given
    }

    proptest! {
        #[test]
        fn nobody_leaves_for_one_who_comes_or_grows_and_whoever_fits_is_there(
            steps in prop::collection::vec(
                (
                    0u8..9,
                    prop::option::weighted(0.9, (
                        0i64..3,
                        prop::collection::btree_map(0u8..3, prop::collection::btree_set(0u8..9, 0..6), 0..4),
                        prop::sample::select(vec![0usize, 3, 60]),
                    )),
                    prop::bool::weighted(0.7),
                ),
                1..60,
            )
        ) {
            let mut class = class();
            let limits = class.limits();
            let mut wanted = Wanted::new();
            let mut before = BTreeMap::new();
            let mut revision = 0;
            for (name, change, commit) in steps {
                let change = change.map(|(age, listeners, networks)| (age, content(name, &listeners, networks)));
                stage(&mut class, name, change.clone());
                match change {
                    Some(change) => wanted.insert(name, change),
                    None => wanted.remove(&name),
                };
                if !commit {
                    continue;
                }
                revision += 1;
                let _ = class.commit(revision);
                let now = given(&class);
                prop_assert_eq!(total(&now).within(limits), Room::Enough);
                for (name, (_, wants)) in &wanted {
                    let none = Content::new();
                    let has = now.get(name).unwrap_or(&none);
                    for (listener, policy) in has {
                        let wants = wants.iter().find(|(wants, _)| wants == listener);
                        let (_, wants) = wants.expect("it is wanted");
                        prop_assert!(policy.backends.iter().all(|b| wants.backends.contains(b)));
                    }
                    let had = before.get(name).map_or(Size::default(), |had: &Content| Size::of(had));
                    let (has, wants) = (Size::of(has), Size::of(wants));
                    let is_light = wants.bytes <= had.bytes;
                    prop_assert!(has.policies >= had.policies.min(wants.policies) || !is_light, "{name} has lost listeners");
                    if has.policies == wants.policies && is_light {
                        prop_assert!(has.backends >= had.backends.min(wants.backends), "{name} has lost backends");
                    }
                    let fits = total(&now).minus(has).plus(wants).within(limits);
                    let room = class.placed(&key(*name)).expect("it is staged").room;
                    prop_assert_eq!(room == Room::Enough, has == wants);
                    prop_assert!(has == wants || fits != Room::Enough, "there is room for {name}");
                }
                // Nothing of it depends on how often it is looked at.
                class.recut = true;
                prop_assert_eq!(class.commit(revision + 1).0, None);
                let mut anew = self::class();
                for (name, wanted) in &wanted {
                    stage(&mut anew, *name, Some(wanted.clone()));
                }
                let _ = anew.commit(1);
                prop_assert_eq!(given(&anew), by_age(&wanted));
                before = now;
            }
        }
    }
}
