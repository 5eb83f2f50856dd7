//! Which policies of a snapshot can be taken, and why the others cannot.
//!
//! The unit of refusal is the policy: one that cannot be taken is nobody else's trouble. What it
//! had stays in force where that goes together with the others. Owns these reasons and who comes
//! before whom; it changes nothing and sees no table of the engine, so it takes its time on any
//! thread: `prepare` makes ready what comes of it.
//!
//! # Decisions
//!
//! - **The unit of refusal is the policy** (`engine/src/config/sift.rs`, off the packet thread): of
//!   a pushed snapshot, which is of many people, each policy is taken or refused by itself, and
//!   keeps what it had where that goes together with the others; a file, which is one person's, is
//!   refused as a whole with file, line and field. What is in force has its frontends and its room
//!   before what changes, and that before what is new. A policy for which there was no room is
//!   tried again every 5 s.

use crate::{
    config::in_force::{ApplyError, End, Fixed, InForce, end_of},
    ids::from_addr,
};
use baton_api::{
    Endpoint, LIMIT_FRONTENDS, LIMIT_POLICIES, Policy, RefusedPolicy, Snapshot, SnapshotError,
};
use std::{
    collections::{HashMap, hash_map::Entry},
    hash::Hash,
    net::SocketAddr,
    sync::Arc,
};

/// A policy of the snapshot and what is wrong with it, found by somebody else than the engine.
pub type Objection = (usize, SnapshotError);

/// A policy that comes into force.
pub(crate) struct Wanted {
    /// What is in force itself, if that is the same.
    pub(crate) spec: Arc<Policy>,
    pub(crate) same: bool,
}

/// A policy of the snapshot that does not.
pub(crate) struct Refused {
    /// Its place.
    pub(crate) index: usize,
    pub(crate) error: ApplyError,
    /// What it had stays in force.
    pub(crate) kept: bool,
}

/// What comes of a snapshot, both in its order.
pub(crate) struct Sifted {
    pub(crate) wanted: Vec<Wanted>,
    pub(crate) refused: Vec<Refused>,
}

/// What became of a snapshot of which each policy was taken or refused by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Policies that are not in force as the snapshot has them; at most [`LIMIT_POLICIES`] are
    /// named.
    pub refused: Vec<RefusedPolicy>,
    /// There was no room for one of these: that passes when flows end, and it is worth a try to
    /// apply the same snapshot again.
    pub may_pass: bool,
}

/// What is still needed, whatever a snapshot says.
#[derive(Clone, Default)]
pub(crate) struct Lingering {
    /// Backends with legs.
    pub(crate) backends: Vec<End>,
    /// Frontends of flows.
    pub(crate) frontends: Vec<End>,
}

/// How much of the fixed tables is taken, and how often each thing of it.
struct Room {
    backends: HashMap<End, u32>,
    frontends: HashMap<End, u32>,
    policies: usize,
    backends_max: usize,
}

fn count<T: Hash + Eq>(counts: &mut HashMap<T, u32>, all: impl Iterator<Item = T>, more: bool) {
    for one in all {
        if more {
            *counts.entry(one).or_default() += 1;
        } else if let Entry::Occupied(mut taken) = counts.entry(one) {
            *taken.get_mut() -= 1;
            if *taken.get() == 0 {
                taken.remove();
            }
        }
    }
}

impl Room {
    fn new(fixed: &Fixed, lingering: &Lingering) -> Self {
        let mut room = Self {
            backends: HashMap::new(),
            frontends: HashMap::new(),
            policies: 0,
            backends_max: usize::from(fixed.backends),
        };
        count(&mut room.backends, lingering.backends.iter().copied(), true);
        let frontends = lingering.frontends.iter().copied();
        count(&mut room.frontends, frontends, true);
        room
    }

    /// Takes what a policy needs, or gives it back.
    fn count(&mut self, (spec, ends): (&Policy, &[End]), more: bool) {
        let backends = spec.backends.iter().map(|b| end_of(b.endpoint));
        count(&mut self.backends, backends, more);
        count(&mut self.frontends, ends.iter().copied(), more);
        self.policies = if more { self.policies + 1 } else { self.policies - 1 };
    }

    /// Takes what a policy needs in place of what it has, or leaves that; `at` is where it is.
    fn take(
        &mut self,
        at: usize,
        new: (&Policy, &[End]),
        old: Option<(&Policy, &[End])>,
    ) -> Result<(), ApplyError> {
        if let Some(old) = old {
            self.count(old, false);
        }
        self.count(new, true);
        let fits = self.fits(at);
        if fits.is_err() {
            self.count(new, false);
            if let Some(old) = old {
                self.count(old, true);
            }
        }
        fits
    }

    fn fits(&self, at: usize) -> Result<(), ApplyError> {
        let full = |path: String, problem: String| {
            Err(ApplyError::NoRoom(SnapshotError { path, problem }))
        };
        if self.policies > LIMIT_POLICIES {
            let problem = format!("at most {LIMIT_POLICIES} policies are possible");
            return full(format!("policies[{at}]"), problem);
        }
        if self.frontends.len() > LIMIT_FRONTENDS {
            let problem =
                format!("at most {LIMIT_FRONTENDS} are possible, those of all policies together");
            return full(format!("policies[{at}].frontends"), problem);
        }
        let needed = self.backends.len();
        if needed > self.backends_max {
            return Err(ApplyError::TooManyBackends { needed, limit: self.backends_max as u16 });
        }
        Ok(())
    }
}

/// Sorts the policies of a snapshot into those that come into force and those that cannot.
///
/// # Errors
/// The snapshot says nothing that could be sorted: names are wrong, or it is an old one.
pub(crate) fn sift(
    fixed: &Fixed,
    in_force: &impl InForce,
    lingering: &Lingering,
    snapshot: &Snapshot,
    objections: &[Objection],
) -> Result<Sifted, ApplyError> {
    let by_name = snapshot.names()?;
    if snapshot.generation < in_force.generation() {
        return Err(ApplyError::Stale {
            offered: snapshot.generation,
            current: in_force.generation(),
        });
    }
    let all = &snapshot.policies;
    let same: Vec<bool> =
        all.iter().map(|p| in_force.policy(&p.name).is_some_and(|old| **old == *p)).collect();
    let ends: Vec<Vec<End>> = all.iter().map(|p| fixed.ends(p)).collect();
    let mut problems: Vec<Option<ApplyError>> = all.iter().map(|_| None).collect();
    for (p, error) in objections {
        problems[*p] = Some(error.clone().into());
    }
    for (p, policy) in all.iter().enumerate().filter(|(p, _)| !same[*p]) {
        if problems[p].is_none() {
            problems[p] = problem(fixed, p, policy).err();
        }
    }
    // An end that a policy has and still wants is its; of others, the first gets it.
    let mut claimed: HashMap<End, usize> = HashMap::new();
    for p in 0..all.len() {
        if problems[p].is_some() {
            continue;
        }
        let rival = |end: &End| {
            let holder = || {
                let holder = in_force.holder(end)?;
                let holder = *by_name.get(holder)?;
                let wants = problems[holder].is_none() && ends[holder].contains(end);
                (holder != p && wants).then_some(holder)
            };
            claimed.get(end).copied().or_else(holder)
        };
        match ends[p].iter().find_map(|end| Some((*end, rival(end)?))) {
            None => claimed.extend(ends[p].iter().map(|end| (*end, p))),
            Some((end, rival)) => {
                problems[p] = Some(taken(fixed, &all[p], p, end, &all[rival].name));
            }
        }
    }
    // What is in force has its place, unless others may have its frontends; what takes its place
    // comes next, and new ones last: nobody who comes or grows makes somebody leave.
    let mut room = Room::new(fixed, lingering);
    let mut old: Vec<Option<(&Policy, Vec<End>)>> = Vec::with_capacity(all.len());
    for (p, policy) in all.iter().enumerate() {
        let policy = in_force.policy(&policy.name);
        let policy = policy.map(|policy| (&**policy, fixed.ends(policy)));
        let stays = |(_, ends): &(&Policy, Vec<End>)| {
            ends.iter().all(|e| claimed.get(e).is_none_or(|q| *q == p))
        };
        let policy = policy.filter(stays);
        if let Some((policy, ends)) = &policy {
            room.count((policy, ends), true);
        }
        old.push(policy);
    }
    let good = |p: &usize| !same[*p] && problems[*p].is_none();
    let known = |p: &usize| in_force.policy(&all[*p].name).is_some();
    let (changed, new) = (0..all.len()).filter(good).partition::<Vec<_>, _>(known);
    for mut waiting in [changed, new] {
        // One may fit when another one became smaller.
        loop {
            let before = waiting.len();
            waiting.retain(|p| {
                let old = old[*p].as_ref().map(|(policy, ends)| (*policy, &ends[..]));
                problems[*p] = room.take(*p, (&all[*p], &ends[*p]), old).err();
                problems[*p].is_some()
            });
            if waiting.is_empty() || waiting.len() == before {
                break;
            }
        }
    }
    let mut sifted = Sifted { wanted: Vec::with_capacity(all.len()), refused: Vec::new() };
    for (index, (spec, problem)) in all.iter().zip(problems).enumerate() {
        let kept = problem.is_some() && old[index].is_some();
        let old = in_force.policy(&spec.name);
        let same = same[index] || problem.is_some();
        let spec = match (same, old) {
            (false, _) => Some(Arc::new(spec.clone())),
            (true, old) => old.filter(|_| kept || problem.is_none()).cloned(),
        };
        sifted.wanted.extend(spec.map(|spec| Wanted { spec, same }));
        sifted.refused.extend(problem.map(|error| Refused { index, error, kept }));
    }
    Ok(sifted)
}

/// What is wrong with a policy by itself.
fn problem(fixed: &Fixed, p: usize, policy: &Policy) -> Result<(), ApplyError> {
    policy.validate(&format!("policies[{p}]"))?;
    let mut ends = HashMap::new();
    for (i, frontend) in policy.frontends.iter().enumerate() {
        let path = || format!("policies[{p}].frontends[{i}]");
        let addresses = fixed.expand(*frontend);
        for address in &addresses {
            if let Some(other) = ends.insert((*address, frontend.port()), *frontend) {
                // An unspecified address and our own one: equal ones the policy's check refused.
                return Err(ApplyError::Invalid(SnapshotError {
                    path: path(),
                    problem: format!("{frontend} means {address} here, as {other} does"),
                }));
            }
        }
        let own = &fixed.addresses;
        if addresses.iter().any(|a| own.contains(a)) && fixed.ports.contains(&frontend.port()) {
            return Err(ApplyError::PortConflict {
                path: path(),
                port: frontend.port(),
                first: *fixed.ports.start(),
                last: *fixed.ports.end(),
            });
        }
    }
    Ok(())
}

/// Another policy has a frontend that this one wants.
fn taken(fixed: &Fixed, policy: &Policy, p: usize, end: End, by: &str) -> ApplyError {
    let means = |f: &Endpoint| fixed.ends_of(*f).contains(&end);
    let i = policy.frontends.iter().position(means).unwrap_or_default();
    let here = policy.frontends.get(i).map_or_else(String::new, |f| {
        let end = SocketAddr::new(from_addr(end.0), end.1).to_string();
        if f.to_string() == end {
            format!("{end} is")
        } else {
            format!("{f} means {end} here, which is")
        }
    });
    ApplyError::Invalid(SnapshotError {
        path: format!("policies[{p}].frontends[{i}]"),
        problem: format!("{here} already a frontend of policy `{by}`"),
    })
}

/// What is told of refused policies.
pub(crate) fn told(snapshot: &Snapshot, refused: &[Refused]) -> Applied {
    let named = refused.iter().take(LIMIT_POLICIES).map(|refused| {
        let text = refused.error.to_string();
        // The field alone: which policy it is, its name says.
        let at = format!("policies[{}]", refused.index);
        let rest = text.strip_prefix(&at);
        let rest = rest.map(|rest| rest.trim_start_matches(['.', ':', ' ']));
        RefusedPolicy {
            policy: snapshot.policies[refused.index].name.clone(),
            message: rest.unwrap_or(&text).to_owned(),
            kept: refused.kept,
        }
    });
    let room =
        |e: &ApplyError| matches!(e, ApplyError::NoRoom(_) | ApplyError::TooManyBackends { .. });
    Applied { refused: named.collect(), may_pass: refused.iter().any(|r| room(&r.error)) }
}
