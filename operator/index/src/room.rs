//! Who has room in a class of which the policies want more than its limits.
//!
//! Owns the order: what is in force has its place, by age; then what of it grew; then what comes,
//! by age. Each that does not fit is left out by itself, so nobody who comes or grows makes another
//! one leave. One that grew beyond the room has no more listeners and backends of what it wants
//! than it had before; where what grew is no list that can be cut (`allowFrom`), it leaves. A class
//! that nothing is in force of yet goes by age alone: an operator that begins does. Keeps nothing
//! and knows no class.

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
    /// There are too many bytes.
    NoBytes,
}

/// What is taken, or may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub policies: usize,
    /// Addresses and ports, of each policy by itself: a dataplane has one place for what several
    /// listeners share.
    pub backends: usize,
    /// Of the snapshot, not fewer than it takes.
    pub bytes: usize,
}

impl Size {
    pub fn of(content: &[(Text, Arc<Policy>)]) -> Self {
        Self {
            policies: content.len(),
            backends: endpoints(content).len(),
            bytes: content.iter().map(|(_, policy)| bytes(policy)).sum(),
        }
    }

    pub const fn plus(self, other: Self) -> Self {
        Self {
            policies: self.policies + other.policies,
            backends: self.backends + other.backends,
            bytes: self.bytes + other.bytes,
        }
    }

    pub const fn minus(self, other: Self) -> Self {
        Self {
            policies: self.policies - other.policies,
            backends: self.backends - other.backends,
            bytes: self.bytes - other.bytes,
        }
    }

    /// The smaller one of each.
    fn least(self, other: Self) -> Self {
        Self {
            policies: self.policies.min(other.policies),
            backends: self.backends.min(other.backends),
            bytes: self.bytes.min(other.bytes),
        }
    }

    /// Whether it is within a limit.
    pub const fn within(self, limit: Self) -> Room {
        if self.policies > limit.policies {
            Room::NoPolicy
        } else if self.backends > limit.backends {
            Room::NoBackend
        } else if self.bytes > limit.bytes {
            Room::NoBytes
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
    let mut grow = Vec::new();
    for claimant in all.iter().filter(|claimant| !claimant.has.is_empty()) {
        let grew = claimant.size.within(claimant.has_size) != Room::Enough;
        let (mut part, mut size) = (Content::new(), claimant.size);
        if grew {
            part = self::part(claimant.wanted, &claimant.has);
            size = Size::of(&part);
        }
        let place = size.least(claimant.has_size);
        if take(Size::default(), place) == Room::Enough {
            grow.push((claimant, place, part, size));
        }
    }
    // What takes more bytes, though it has no more listeners and backends, is not cut further.
    grow.retain(|(_, place, _, size)| {
        let fits = take(*place, *size) == Room::Enough;
        if !fits {
            take(*place, Size::default());
        }
        fits
    });
    for (claimant, _, part, size) in grow {
        let room = take(size, claimant.size);
        let part = if room == Room::Enough { Content::new() } else { part };
        shares.insert(claimant.key.clone(), Share { room, part });
    }
    for claimant in all {
        if !shares.contains_key(claimant.key) {
            let room = take(Size::default(), claimant.size);
            let part = Content::new();
            shares.insert(claimant.key.clone(), Share { room, part });
        }
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

/// Bytes of a policy as JSON with what separates it from the next, not fewer than they are.
pub(crate) fn bytes(policy: &Policy) -> usize {
    /// All settings but for texts and lists take some 900.
    const SETTINGS: usize = 1_536;
    /// `"200-299",`
    const RANGE: usize = 10;
    /// `"[` and `]:65535",` around 39 of an IPv6 address.
    const ENDPOINT: usize = 50;
    /// `{"name":"","endpoint":,"weight":65535,"draining":true,"node":""},`
    const BACKEND: usize = 65 + ENDPOINT;
    let active = policy.health.active.iter().map(|active| {
        let texts = [&active.path, &active.host].into_iter().flatten();
        texts.map(String::len).sum::<usize>() + RANGE * active.expect.len()
    });
    let backends = policy
        .backends
        .iter()
        .map(|backend| BACKEND + backend.name.len() + backend.node.as_ref().map_or(0, String::len));
    let networks = policy.allow_from.iter().flatten().map(|network| {
        // `"255.255.255.255/32",` and its like.
        if network.first().is_ipv6() { 46 } else { 21 }
    });
    let lists = active.chain(backends).chain(networks).sum::<usize>();
    SETTINGS + policy.name.len() + ENDPOINT * policy.frontends.len() + lists
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_policy_takes_more_bytes_than_are_counted() {
        let long = |n: usize| "x".repeat(n);
        let small = r#"{"name":"a","frontends":["0.0.0.0:80"],"backends":[]}"#;
        let small: Policy = serde_json::from_str(small).expect("a policy");
        let mut large = small.clone();
        large.name = long(143);
        let wide = "[fd00:1111:2222:3333:4444:5555:6666:7777]:65535";
        large.frontends = vec![wide.parse().expect("an endpoint"); 16];
        let node = Some(long(253));
        let backend = baton_api::Backend {
            name: long(143),
            endpoint: large.frontends[0],
            weight: u16::MAX,
            draining: true,
            node,
        };
        large.backends = vec![backend; 256];
        let network = "fd00:1111:2222:3333:4444:5555:6666:7777/128";
        large.allow_from = Some(vec![network.parse().expect("a network"); 1_024]);
        let active = format!(
            r#"{{"path":"/{}","host":"{}","expect":["200-299","400-499"],"port":65535,"interval":"86399999ms"}}"#,
            long(1_023),
            long(1_024)
        );
        large.health.active = Some(serde_json::from_str(&active).expect("a check"));
        let mut v4 = small.clone();
        let network = "255.255.255.255/32".parse().expect("a network");
        v4.allow_from = Some(vec![network; 1_024]);
        // Settings at their default take nothing.
        for policy in [small, large, v4] {
            let is = serde_json::to_vec(&policy).expect("written").len() + 1;
            let counted = bytes(&policy);
            assert!(is <= counted && counted <= is + 1_600, "{is} {counted}");
        }
    }
}
