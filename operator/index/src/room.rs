//! Who has room in a class of which the policies want more than its limits.
//!
//! Owns the order: what is in force has its place, by age; then what of it grew; then what comes,
//! by age. Each that does not fit is left out by itself, so nobody who comes or grows makes somebody
//! else leave. One that grew beyond the room has no more of what it wants now than it had before. A
//! class that nothing is in force of yet goes by age alone: an operator that begins does. Keeps
//! nothing and knows no class.

use crate::{Key, Text};
use baton_api::{Endpoint, Policy};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The snapshot policies of a policy's listeners, by name.
pub(crate) type Content = Vec<(Text, Arc<Policy>)>;

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

/// What is taken, or may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub policies: usize,
    /// Addresses and ports, of each policy by itself: a dataplane has one place for what several
    /// listeners share.
    pub backends: usize,
}

impl Size {
    pub fn of(content: &[(Text, Arc<Policy>)]) -> Self {
        Self {
            policies: content.len(),
            backends: endpoints(content).len(),
        }
    }

    pub const fn plus(self, other: Self) -> Self {
        Self {
            policies: self.policies + other.policies,
            backends: self.backends + other.backends,
        }
    }

    pub const fn minus(self, other: Self) -> Self {
        Self {
            policies: self.policies - other.policies,
            backends: self.backends - other.backends,
        }
    }

    /// Whether it is within a limit.
    pub const fn within(self, limit: Self) -> Room {
        if self.policies > limit.policies {
            Room::NoPolicy
        } else if self.backends > limit.backends {
            Room::NoBackend
        } else {
            Room::Enough
        }
    }
}

/// A policy that wants room.
pub(crate) struct Claimant<'a> {
    pub key: &'a Key,
    pub wanted: &'a [(Text, Arc<Policy>)],
    pub size: Size,
    /// What is in force of it: nothing, if it comes.
    pub has: Content,
    pub has_size: Size,
}

/// What a policy gets.
#[derive(Debug, PartialEq)]
pub(crate) struct Share {
    /// What all that it wants meets.
    pub room: Room,
    /// What it gets where that is not enough.
    pub part: Content,
}

/// Shares out what there is, among claimants by age.
pub(crate) fn share_out(limit: Size, all: &[Claimant<'_>]) -> BTreeMap<Key, Share> {
    let mut used = Size::default();
    // Takes the second in place of the first if there is room.
    let mut take = |old: Size, new: Size| {
        let then = used.minus(old).plus(new);
        let room = then.within(limit);
        if room == Room::Enough {
            used = then;
        }
        room
    };
    let mut shares = BTreeMap::new();
    let (stay, come): (Vec<_>, Vec<_>) = all.iter().partition(|c| !c.has.is_empty());
    let mut grow = Vec::new();
    for claimant in stay {
        let grew = claimant.size.within(claimant.has_size) != Room::Enough;
        let (mut part, mut size) = (Content::new(), claimant.size);
        if grew {
            part = self::part(claimant.wanted, &claimant.has);
            size = Size::of(&part);
        }
        let room = take(Size::default(), size);
        if room != Room::Enough {
            part.clear();
        } else if grew {
            grow.push((claimant, size));
        }
        shares.insert(claimant.key.clone(), Share { room, part });
    }
    for (claimant, size) in grow {
        let room = take(size, claimant.size);
        if let Some(share) = shares.get_mut(claimant.key) {
            share.room = room;
            if room == Room::Enough {
                share.part.clear();
            }
        }
    }
    for claimant in come {
        let room = take(Size::default(), claimant.size);
        let part = Content::new();
        shares.insert(claimant.key.clone(), Share { room, part });
    }
    shares
}

/// So much of what a policy wants that it has no more than before, and of that what it had first.
fn part(wanted: &[(Text, Arc<Policy>)], has: &[(Text, Arc<Policy>)]) -> Content {
    let had: BTreeSet<&Text> = has.iter().map(|(name, _)| name).collect();
    let names = first(wanted.iter().map(|(name, _)| name), &had);
    let kept = wanted.iter().filter(|(name, _)| names.contains(name));
    let mut kept: Content = kept.cloned().collect();
    let all: Vec<Endpoint> = each(&kept).collect();
    let backends = first(all.into_iter(), &endpoints(has));
    for (_, policy) in &mut kept {
        let is_kept = |b: &baton_api::Backend| backends.contains(&b.endpoint);
        if !policy.backends.iter().all(is_kept) {
            Arc::make_mut(policy).backends.retain(is_kept);
        }
    }
    kept
}

/// As many as it had, and those that it had first.
fn first<T: Ord + Copy>(wanted: impl Iterator<Item = T> + Clone, had: &BTreeSet<T>) -> BTreeSet<T> {
    let mut kept: BTreeSet<T> = wanted.clone().filter(|one| had.contains(one)).collect();
    for one in wanted {
        if kept.len() < had.len() {
            kept.insert(one);
        }
    }
    kept
}

fn each(content: &[(Text, Arc<Policy>)]) -> impl Iterator<Item = Endpoint> {
    let backends = content.iter().flat_map(|(_, policy)| &policy.backends);
    backends.map(|backend| backend.endpoint)
}

fn endpoints(content: &[(Text, Arc<Policy>)]) -> BTreeSet<Endpoint> {
    each(content).collect()
}
