//! Snapshots made ready by whoever pushes them, so that the packet thread only puts the parts in their places.
//!
//! Owns what costs time or memory: checks of the snapshot by itself, tables of Maglev, ports of new backends. What was
//! replaced goes back in the [`Prepared`] and is freed with it, elsewhere too. It never sees a flow.

use crate::{
    apply::{ApplyError, Progress},
    backend::Backend,
    engine::Settings,
    flow::{Addr, to_addr},
    maglev::Maglev,
    policy::{Member, Pace, Policy, Pool},
    sources::Sources,
};
use baton_api::{Algorithm, Endpoint, LIMIT_POLICIES, Snapshot, SnapshotError};
use siphasher::sip::SipHasher13;
use std::{
    collections::{HashMap, HashSet},
    hash::Hasher,
    net::IpAddr,
    ops::RangeInclusive,
    sync::Arc,
};

/// A backend's address and port.
pub(crate) type End = (Addr, u16);

/// What a Maglev table is made of: identities and shares, in the order of the members.
pub(crate) type Rows = Vec<(u64, u16)>;

/// What is fixed for an engine's life and matters here.
#[derive(Clone)]
pub(crate) struct Fixed {
    addresses: Vec<IpAddr>,
    ports: RangeInclusive<u16>,
    /// Of legs, by family.
    numbers: [usize; 2],
    backends: u16,
}

impl Fixed {
    pub(crate) fn new(settings: &Settings, sources: &Sources) -> Self {
        Self {
            addresses: settings.addresses.clone(),
            ports: settings.ports.clone(),
            numbers: [false, true].map(|v6| sources.numbers(v6)),
            backends: settings.limits.backends,
        }
    }

    /// The addresses that a frontend's address stands for.
    fn expand(&self, endpoint: Endpoint) -> Vec<IpAddr> {
        let address = endpoint.address();
        if address.is_unspecified() {
            let own = self.addresses.iter().copied();
            own.filter(|a| a.is_ipv6() == address.is_ipv6()).collect()
        } else {
            vec![address]
        }
    }

    /// Before memory is taken for them.
    fn check_room(&self, snapshot: &Snapshot) -> Result<(), ApplyError> {
        let backends = snapshot.policies.iter().flat_map(|p| &p.backends);
        let distinct: HashSet<Endpoint> = backends.map(|b| b.endpoint).collect();
        let (needed, limit) = (distinct.len(), self.backends);
        if needed > usize::from(limit) {
            return Err(ApplyError::TooManyBackends { needed, limit });
        }
        Ok(())
    }

    fn check(&self, snapshot: &Snapshot) -> Result<(), ApplyError> {
        let mut ends: HashMap<(IpAddr, u16), Endpoint> = HashMap::new();
        for (p, policy) in snapshot.policies.iter().enumerate() {
            for (i, frontend) in policy.frontends.iter().enumerate() {
                let addresses = self.expand(*frontend);
                for address in &addresses {
                    if let Some(other) = ends.insert((*address, frontend.port()), *frontend) {
                        // An unspecified address and our own one: equal ones the snapshot's check refused.
                        return Err(ApplyError::Invalid(SnapshotError {
                            path: format!("policies[{p}].frontends[{i}]"),
                            problem: format!("{frontend} means {address} here, as {other} does"),
                        }));
                    }
                }
                let ours = addresses.iter().any(|a| self.addresses.contains(a));
                if ours && self.ports.contains(&frontend.port()) {
                    return Err(ApplyError::PortConflict {
                        path: format!("policies[{p}].frontends[{i}]"),
                        port: frontend.port(),
                        first: *self.ports.start(),
                        last: *self.ports.end(),
                    });
                }
            }
        }
        Ok(())
    }
}

/// What is known of a backend from all policies that name it.
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) draining: bool,
    /// How the policy that names it first finds failures.
    pub(crate) spec: Option<baton_api::Health>,
    pub(crate) slow_start_ms: u64,
}

/// A policy with its members, whose slots are still to be found.
pub(crate) struct Ready {
    pub(crate) spec: baton_api::Policy,
    /// What it replaces comes here.
    pub(crate) policy: Option<Policy>,
    pub(crate) ends: [Vec<End>; 2],
    pub(crate) frontends: Vec<End>,
}

/// A snapshot that [`crate::Engine::apply_piece`] puts in force.
pub struct Prepared {
    pub(crate) generation: u64,
    pub(crate) named: HashMap<End, Named>,
    /// Backends that are new, for all that was known. What they replace comes here.
    pub(crate) fresh: Vec<Option<Backend>>,
    pub(crate) policies: Vec<Ready>,
    /// What is left over of policies and backends that went.
    pub(crate) pools: Vec<[Pool; 2]>,
    pub(crate) tables: Vec<crate::backend::Tables>,
    pub(crate) progress: Progress,
    maglevs: HashMap<(String, bool), (Rows, Arc<Maglev>)>,
}

impl Prepared {
    /// `known`: backends whose slots exist; `table`: the table of a policy's family, if these are its rows already.
    pub(crate) fn new(
        fixed: &Fixed,
        rng: &mut fastrand::Rng,
        snapshot: &Snapshot,
        known: impl Fn(&End) -> bool,
        table: impl Fn(&str, bool, &Rows) -> Option<Arc<Maglev>>,
    ) -> Result<Self, ApplyError> {
        fixed.check(snapshot)?;
        fixed.check_room(snapshot)?;
        let mut named: HashMap<End, Named> = HashMap::new();
        let mut fresh = Vec::new();
        for policy in &snapshot.policies {
            for backend in &policy.backends {
                let end = end_of(backend.endpoint);
                let entry = named.entry(end).or_insert_with(|| {
                    if !known(&end) {
                        let first = *fixed.ports.start();
                        let v6 = backend.endpoint.address().is_ipv6();
                        let ports = (first, fixed.numbers[usize::from(v6)]);
                        let name = backend.name.clone();
                        fresh.push(Some(Backend::new(name, end.0, end.1, ports, rng)));
                    }
                    Named {
                        name: String::new(),
                        draining: false,
                        spec: Some(policy.health.clone()),
                        slow_start_ms: 0,
                    }
                });
                entry.name.clone_from(&backend.name);
                entry.draining |= backend.draining;
                entry.slow_start_ms = entry.slow_start_ms.max(policy.slow_start.0 / 1_000);
            }
        }
        let mut maglevs = HashMap::new();
        let policies = snapshot.policies.iter().map(|spec| {
            let ends = [false, true].map(|v6| ends_of(spec, v6));
            let pools = [false, true].map(|v6| {
                let members = members_of(spec, v6);
                let maglev =
                    (spec.algorithm == Algorithm::Maglev && !members.is_empty()).then(|| {
                        let rows: Rows = members.iter().map(|m| (m.identity, m.share())).collect();
                        let table = table(&spec.name, v6, &rows);
                        let table = table.unwrap_or_else(|| Arc::new(Maglev::build(&rows)));
                        maglevs.insert((spec.name.clone(), v6), (rows, Arc::clone(&table)));
                        table
                    });
                Pool::new(members, maglev)
            });
            let frontends = spec.frontends.iter().flat_map(|endpoint| {
                let addresses = fixed.expand(*endpoint).into_iter();
                addresses.map(|address| (to_addr(address), endpoint.port()))
            });
            Ready {
                spec: spec.clone(),
                policy: Some(Policy::new(spec.clone(), pools)),
                ends,
                frontends: frontends.collect(),
            }
        });
        let policies = policies.collect();
        Ok(Self {
            generation: snapshot.generation,
            named,
            fresh,
            policies,
            pools: Vec::with_capacity(LIMIT_POLICIES),
            tables: Vec::with_capacity(2 * usize::from(fixed.backends)),
            progress: Progress::default(),
            maglevs,
        })
    }

    /// How many policies the snapshot has.
    #[must_use]
    pub fn policies(&self) -> usize {
        self.policies.len()
    }

    /// How many distinct backends the snapshot names.
    #[must_use]
    pub fn backends(&self) -> usize {
        self.named.len()
    }

    /// The generation of the snapshot.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

/// Makes snapshots ready beside an engine, and remembers what of the one in force can be used again.
pub struct Planner {
    fixed: Fixed,
    rng: fastrand::Rng,
    known: HashSet<End>,
    maglevs: HashMap<(String, bool), (Rows, Arc<Maglev>)>,
}

impl Planner {
    /// Beside an engine with these settings.
    #[must_use]
    pub fn new(settings: &Settings, seed: u64) -> Self {
        let mut settings = settings.clone();
        settings.ports = *settings.ports.start().max(&1)..=*settings.ports.end();
        let from_all = settings.legs_from_all;
        let sources = Sources::new(&settings.addresses, from_all, &settings.ports);
        Self {
            fixed: Fixed::new(&settings, &sources),
            rng: fastrand::Rng::with_seed(seed),
            known: HashSet::new(),
            maglevs: HashMap::new(),
        }
    }

    /// Makes a snapshot ready. Takes milliseconds for each Maglev table that changed, and 0.1 ms for each backend that is new.
    ///
    /// # Errors
    /// The snapshot contradicts itself or the engine's settings.
    pub fn prepare(&mut self, snapshot: &Snapshot) -> Result<Prepared, ApplyError> {
        snapshot.validate()?;
        let Self {
            fixed,
            rng,
            known,
            maglevs,
        } = self;
        Prepared::new(
            fixed,
            rng,
            snapshot,
            |end| known.contains(end),
            |name, v6, rows| {
                let (same, table) = maglevs.get(&(name.to_owned(), v6))?;
                (same == rows).then(|| Arc::clone(table))
            },
        )
    }

    /// The engine has it in force.
    pub fn in_force(&mut self, prepared: &mut Prepared) {
        self.known = prepared.named.keys().copied().collect();
        self.maglevs = std::mem::take(&mut prepared.maglevs);
    }
}

pub(crate) fn end_of(endpoint: Endpoint) -> End {
    (to_addr(endpoint.address()), endpoint.port())
}

fn backends_of(spec: &baton_api::Policy, v6: bool) -> impl Iterator<Item = &baton_api::Backend> {
    let all = spec.backends.iter();
    all.filter(move |b| b.endpoint.address().is_ipv6() == v6)
}

fn ends_of(spec: &baton_api::Policy, v6: bool) -> Vec<End> {
    backends_of(spec, v6).map(|b| end_of(b.endpoint)).collect()
}

/// The members of a family, in the order of their ends. Their slots are still to be found.
fn members_of(spec: &baton_api::Policy, v6: bool) -> Vec<Member> {
    let members = backends_of(spec, v6).map(|backend| {
        // The same on every dataplane: no key.
        let mut hasher = SipHasher13::new();
        hasher.write(&to_addr(backend.endpoint.address()));
        hasher.write_u16(backend.endpoint.port());
        Member {
            backend: u16::MAX,
            identity: hasher.finish(),
            weight: backend.weight,
            draining: backend.draining,
            unhealthy: false,
            pace: Pace::default(),
        }
    });
    members.collect()
}
