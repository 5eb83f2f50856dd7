//! Which policies of a snapshot can be taken, and why the others cannot.
//!
//! The unit of refusal is the policy: one that cannot be taken is nobody else's trouble. What it had
//! stays in force where that goes together with the others. Owns these reasons and who comes before
//! whom; it changes nothing, `apply` puts in force what comes of it.

use crate::{
    ApplyError, Engine,
    flow::{Addr, from_addr, to_addr},
};
use baton_api::{
    Endpoint, LIMIT_FRONTENDS, LIMIT_POLICIES, Policy, RefusedPolicy, Snapshot, SnapshotError,
};
use std::{
    borrow::Cow,
    collections::{HashMap, hash_map::Entry},
    hash::Hash,
    net::IpAddr,
};

/// A policy of the snapshot and what is wrong with it, found by somebody else than the engine.
pub type Objection = (usize, SnapshotError);

/// A policy that comes into force.
pub(crate) struct Wanted<'a> {
    pub(crate) spec: Cow<'a, Policy>,
    /// It is in force just so.
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
pub(crate) struct Sifted<'a> {
    pub(crate) wanted: Vec<Wanted<'a>>,
    pub(crate) refused: Vec<Refused>,
}

/// What became of a snapshot of which each policy was taken or refused by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Policies that are not in force as the snapshot has them; at most [`LIMIT_POLICIES`] are named.
    pub refused: Vec<RefusedPolicy>,
    /// There was no room for one of these: that passes when flows end, and it is worth a try to
    /// apply the same snapshot again.
    pub may_pass: bool,
}

type End = (IpAddr, u16);

/// How much of the fixed tables is taken, and how often each thing of it.
struct Room {
    backends: HashMap<(Addr, u16), u32>,
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
    /// Takes what a policy needs, or gives it back.
    fn count(&mut self, (spec, ends): (&Policy, &[End]), more: bool) {
        let backends = spec.backends.iter().map(|b| key(b.endpoint));
        count(&mut self.backends, backends, more);
        count(&mut self.frontends, ends.iter().copied(), more);
        self.policies = if more {
            self.policies + 1
        } else {
            self.policies - 1
        };
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
            return Err(ApplyError::TooManyBackends {
                needed,
                limit: self.backends_max as u16,
            });
        }
        Ok(())
    }
}

fn key(endpoint: Endpoint) -> (Addr, u16) {
    (to_addr(endpoint.address()), endpoint.port())
}

impl Engine {
    /// Sorts the policies of a snapshot into those that come into force and those that cannot.
    ///
    /// # Errors
    /// The snapshot says nothing that could be sorted: names are wrong, or it is an old one.
    pub(crate) fn sift<'a>(
        &self,
        snapshot: &'a Snapshot,
        objections: &[Objection],
    ) -> Result<Sifted<'a>, ApplyError> {
        let by_name = snapshot.names()?;
        if snapshot.generation < self.generation {
            return Err(ApplyError::Stale {
                offered: snapshot.generation,
                current: self.generation,
            });
        }
        let all = &snapshot.policies;
        let same: Vec<bool> = all.iter().map(|p| self.has(p)).collect();
        let ends: Vec<Vec<End>> = all.iter().map(|p| self.ends(p)).collect();
        let mut problems: Vec<Option<ApplyError>> = all.iter().map(|_| None).collect();
        for (p, error) in objections {
            problems[*p] = Some(error.clone().into());
        }
        for (p, policy) in all.iter().enumerate().filter(|(p, _)| !same[*p]) {
            if problems[p].is_none() {
                problems[p] = self.problem(p, policy).err();
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
                    let holder = self.holder(end)?;
                    let holder = *by_name.get(holder)?;
                    let wants = problems[holder].is_none() && ends[holder].contains(end);
                    (holder != p && wants).then_some(holder)
                };
                claimed.get(end).copied().or_else(holder)
            };
            match ends[p].iter().find_map(|end| Some((*end, rival(end)?))) {
                None => claimed.extend(ends[p].iter().map(|end| (*end, p))),
                Some((end, rival)) => {
                    problems[p] = Some(self.taken(&all[p], p, end, &all[rival].name));
                }
            }
        }
        // What is in force has its place, unless others may have its frontends; what takes its place comes next, and new ones
        // last: nobody who comes or grows makes somebody leave.
        let mut room = self.room();
        let mut old: Vec<Option<(&Policy, Vec<End>)>> = Vec::with_capacity(all.len());
        for (p, policy) in all.iter().enumerate() {
            let policy = self.in_force(&policy.name);
            let policy = policy.map(|policy| (policy, self.ends(policy)));
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
        let known = |p: &usize| self.in_force(&all[*p].name).is_some();
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
        let mut sifted = Sifted {
            wanted: Vec::with_capacity(all.len()),
            refused: Vec::new(),
        };
        for (index, (spec, problem)) in all.iter().zip(problems).enumerate() {
            let kept = problem.is_some() && old[index].is_some();
            let (spec, same) = match (&problem, self.in_force(&spec.name)) {
                (None, _) => (Some(Cow::Borrowed(spec)), same[index]),
                (Some(_), old) => (old.filter(|_| kept).cloned().map(Cow::Owned), true),
            };
            sifted.wanted.extend(spec.map(|spec| Wanted { spec, same }));
            sifted
                .refused
                .extend(problem.map(|error| Refused { index, error, kept }));
        }
        Ok(sifted)
    }

    /// What the policy of this name has in force.
    fn in_force(&self, name: &str) -> Option<&Policy> {
        let index = self.policy_ids.get(name)?;
        let policy = &self.policies[usize::from(*index)];
        policy.listed.then_some(&policy.spec)
    }

    /// Whether a policy is in force just so.
    fn has(&self, spec: &Policy) -> bool {
        self.in_force(&spec.name) == Some(spec)
    }

    /// Who has a frontend in force.
    fn holder(&self, (address, port): &End) -> Option<&str> {
        let slot = self.frontend_ids.find(&to_addr(*address), *port)?;
        let slot = &self.frontends[usize::from(slot)];
        let policy = &self.policies[usize::from(slot.policy)];
        (slot.listed && policy.listed).then_some(&policy.spec.name)
    }

    /// The addresses that a frontend's address stands for.
    pub(crate) fn expand(&self, endpoint: Endpoint) -> Vec<IpAddr> {
        let address = endpoint.address();
        if address.is_unspecified() {
            let own = self.settings.addresses.iter().copied();
            own.filter(|a| a.is_ipv6() == address.is_ipv6()).collect()
        } else {
            vec![address]
        }
    }

    fn ends(&self, policy: &Policy) -> Vec<End> {
        let all = policy.frontends.iter();
        all.flat_map(|f| self.expand(*f).into_iter().map(|a| (a, f.port())))
            .collect()
    }

    /// What is wrong with a policy by itself.
    fn problem(&self, p: usize, policy: &Policy) -> Result<(), ApplyError> {
        policy.validate(&format!("policies[{p}]"))?;
        let mut ends: HashMap<End, Endpoint> = HashMap::new();
        for (i, frontend) in policy.frontends.iter().enumerate() {
            let path = || format!("policies[{p}].frontends[{i}]");
            let addresses = self.expand(*frontend);
            for address in &addresses {
                if let Some(other) = ends.insert((*address, frontend.port()), *frontend) {
                    // An unspecified address and our own one: equal ones the policy's check refused.
                    return Err(ApplyError::Invalid(SnapshotError {
                        path: path(),
                        problem: format!("{frontend} means {address} here, as {other} does"),
                    }));
                }
            }
            let own = &self.settings.addresses;
            if addresses.iter().any(|a| own.contains(a))
                && self.settings.ports.contains(&frontend.port())
            {
                return Err(ApplyError::PortConflict {
                    path: path(),
                    port: frontend.port(),
                    first: *self.settings.ports.start(),
                    last: *self.settings.ports.end(),
                });
            }
        }
        Ok(())
    }

    /// Another policy has a frontend that this one wants.
    fn taken(&self, policy: &Policy, p: usize, end: End, by: &str) -> ApplyError {
        let means =
            |f: &Endpoint| f.port() == end.1 && self.expand(*f).into_iter().any(|a| a == end.0);
        let i = policy.frontends.iter().position(means).unwrap_or_default();
        let here = policy.frontends.get(i).map_or_else(String::new, |f| {
            let end = std::net::SocketAddr::from(end).to_string();
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

    /// What those leave that are still needed, whatever the snapshot says: slots with legs, and
    /// frontends of flows.
    fn room(&self) -> Room {
        let used = self.backends.iter();
        let used = used.filter(|b| b.legs_used > b.service_ports());
        let live = |policy: u16| self.policies[usize::from(policy)].flows > 0;
        let ends = self.frontends.iter().filter(|f| live(f.policy));
        Room {
            backends: used.map(|b| ((b.addr, b.port), 1)).collect(),
            frontends: ends.map(|f| ((from_addr(&f.addr), f.port), 1)).collect(),
            policies: 0,
            backends_max: usize::from(self.settings.limits.backends),
        }
    }
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
    let room = |e: &ApplyError| {
        matches!(
            e,
            ApplyError::NoRoom(_) | ApplyError::TooManyBackends { .. }
        )
    };
    Applied {
        refused: named.collect(),
        may_pass: refused.iter().any(|r| room(&r.error)),
    }
}
