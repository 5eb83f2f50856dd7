//! Snapshots made ready by whoever pushes them, so that the packet thread only puts the parts in
//! their places.
//!
//! Owns what costs time or memory: which policies can be taken (`sift`), tables of Maglev, ports of
//! new backends. What was replaced goes back in the [`Prepared`] and is freed with it, elsewhere
//! too. It never sees a flow: what flows still need is told by an engine that has no room, and then
//! the snapshot is made ready again.

use crate::{
    apply::{ApplyError, Progress},
    backend::{Backend, Tables},
    engine::Settings,
    ids::{Addr, to_addr},
    maglev::Maglev,
    member::Member,
    pace::Share,
    policy::{Policy, Pool},
    sift::{Applied, Lingering, Objection, Wanted, sift, told},
    sources::Sources,
};
use baton_api::{Algorithm, Endpoint, LIMIT_FRONTENDS, LIMIT_POLICIES, Snapshot};
use siphasher::sip::SipHasher13;
use std::{
    collections::{HashMap, HashSet},
    hash::Hasher,
    net::IpAddr,
    ops::RangeInclusive,
    sync::Arc,
};

/// An address and port, of a backend or a frontend.
pub(crate) type End = (Addr, u16);

/// What a Maglev table is made of: identities and shares, in the order of the members.
pub(crate) type Rows = Vec<(u64, u16)>;

/// Tables by policy and family, with the rows that they are made of.
type Maglevs = HashMap<(String, bool), (Rows, Arc<Maglev>)>;

/// What is fixed for an engine's life and matters here.
#[derive(Clone)]
pub(crate) struct Fixed {
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) ports: RangeInclusive<u16>,
    /// Of legs, by family.
    numbers: [usize; 2],
    pub(crate) backends: u16,
    share: Share,
}

impl Fixed {
    pub(crate) fn new(settings: &Settings, sources: &Sources) -> Self {
        Self {
            addresses: settings.addresses.clone(),
            ports: settings.ports.clone(),
            numbers: [false, true].map(|v6| sources.numbers(v6)),
            backends: settings.limits.backends,
            share: settings.share,
        }
    }

    /// The addresses that a frontend's address stands for.
    pub(crate) fn expand(&self, endpoint: Endpoint) -> Vec<IpAddr> {
        let address = endpoint.address();
        if address.is_unspecified() {
            let own = self.addresses.iter().copied();
            own.filter(|a| a.is_ipv6() == address.is_ipv6()).collect()
        } else {
            vec![address]
        }
    }

    /// What a frontend stands for.
    pub(crate) fn ends_of(&self, frontend: Endpoint) -> Vec<End> {
        let addresses = self.expand(frontend).into_iter();
        addresses.map(|a| (to_addr(a), frontend.port())).collect()
    }

    /// What all frontends of a policy stand for.
    pub(crate) fn ends(&self, policy: &baton_api::Policy) -> Vec<End> {
        let all = policy.frontends.iter();
        all.flat_map(|f| self.ends_of(*f)).collect()
    }
}

/// What is in force, as far as the next snapshot depends on it.
pub(crate) trait InForce {
    fn generation(&self) -> u64;
    /// How many policies.
    fn policies(&self) -> usize;
    /// What the policy of this name is.
    fn policy(&self, name: &str) -> Option<&Arc<baton_api::Policy>>;
    /// Who has a frontend.
    fn holder(&self, end: &End) -> Option<&str>;
    /// Whether a backend has a slot, with ports.
    fn has_backend(&self, end: &End) -> bool;
    /// The table of a policy's family, if these are its rows.
    fn table(&self, name: &str, v6: bool, rows: &Rows) -> Option<Arc<Maglev>>;
}

/// A backend that a snapshot names.
pub(crate) struct Named {
    pub(crate) name: String,
    /// It has a slot already.
    pub(crate) known: bool,
    /// Where it runs. Policies may share a backend: whoever names its node knows more than who does
    /// not.
    pub(crate) node: Option<Box<str>>,
}

/// A policy with its members, whose slots are still to be found.
pub(crate) struct Ready {
    pub(crate) spec: Arc<baton_api::Policy>,
    /// What it replaces comes here.
    pub(crate) policy: Option<Policy>,
    pub(crate) ends: [Vec<End>; 2],
    pub(crate) frontends: Vec<End>,
}

/// A snapshot that [`crate::Engine::apply_piece`] puts in force.
pub struct Prepared {
    pub(crate) generation: u64,
    pub(crate) applied: Applied,
    pub(crate) named: HashMap<End, Named>,
    /// How many of these have slots already.
    pub(crate) known: usize,
    pub(crate) frontends: HashSet<End>,
    /// Backends that are new, for all that was known. What they replace comes here.
    pub(crate) fresh: Vec<Option<Backend>>,
    pub(crate) policies: Vec<Ready>,
    /// What is left over of policies and backends that went.
    pub(crate) pools: Vec<[Pool; 2]>,
    pub(crate) tables: Vec<Tables>,
    /// What flows need, as the engine has seen.
    pub(crate) lingering: Lingering,
    pub(crate) progress: Progress,
    /// Only with the first of several workers, which share these tables.
    maglevs: Maglevs,
}

impl Prepared {
    /// Of these policies; what is told of the others.
    pub(crate) fn new(
        fixed: &Fixed,
        rng: &mut fastrand::Rng,
        in_force: &impl InForce,
        generation: u64,
        (wanted, applied): (&[Wanted], Applied),
        maglevs: &mut Maglevs,
    ) -> Self {
        let nothing_new = generation == in_force.generation()
            && wanted.len() == in_force.policies()
            && wanted.iter().all(|w| w.same);
        let mut named: HashMap<End, Named> = HashMap::new();
        let mut fresh = Vec::new();
        for backend in wanted.iter().flat_map(|w| &w.spec.backends) {
            let end = end_of(backend.endpoint);
            let entry = named.entry(end).or_insert_with(|| {
                let known = in_force.has_backend(&end);
                if !known {
                    let first = *fixed.ports.start();
                    let v6 = backend.endpoint.address().is_ipv6();
                    let ports = (first, fixed.numbers[usize::from(v6)]);
                    let name = backend.name.clone();
                    fresh.push(Some(Backend::new(name, end.0, end.1, ports, rng)));
                }
                Named {
                    name: String::new(),
                    known,
                    node: None,
                }
            });
            entry.name.clone_from(&backend.name);
            if entry.node.is_none() {
                entry.node = backend.node.as_deref().map(Into::into);
            }
        }
        let policies: Vec<Ready> = wanted
            .iter()
            .map(|Wanted { spec, .. }| {
                let pools = [false, true].map(|v6| {
                    let members = members_of(spec, v6);
                    let maglev =
                        (spec.algorithm == Algorithm::Maglev && !members.is_empty()).then(|| {
                            let rows = members.iter().map(|m| (m.identity, m.share()));
                            let rows: Rows = rows.collect();
                            let key = (spec.name.clone(), v6);
                            if let Some((_, built)) = maglevs.get(&key) {
                                return Arc::clone(built);
                            }
                            let table = in_force.table(&spec.name, v6, &rows);
                            let table = table.unwrap_or_else(|| Arc::new(Maglev::build(&rows)));
                            maglevs.insert(key, (rows, Arc::clone(&table)));
                            table
                        });
                    Pool::new(members, maglev)
                });
                Ready {
                    ends: [false, true].map(|v6| {
                        let all = backends_of(spec, v6);
                        all.map(|(_, b)| end_of(b.endpoint)).collect()
                    }),
                    frontends: fixed.ends(spec),
                    policy: Some(Policy::new(spec, pools, fixed.share)),
                    spec: Arc::clone(spec),
                }
            })
            .collect();
        let slots = 2 * usize::from(fixed.backends);
        Self {
            generation,
            applied,
            known: named.values().filter(|n| n.known).count(),
            named,
            frontends: policies
                .iter()
                .flat_map(|p| &p.frontends)
                .copied()
                .collect(),
            fresh,
            policies,
            pools: Vec::with_capacity(LIMIT_POLICIES),
            tables: Vec::with_capacity(slots),
            lingering: Lingering {
                backends: Vec::with_capacity(slots),
                frontends: Vec::with_capacity(LIMIT_FRONTENDS),
            },
            progress: Progress::of(nothing_new),
            maglevs: Maglevs::new(),
        }
    }

    /// What becomes of the snapshot's policies, once it is in force.
    #[must_use]
    pub fn applied(&self) -> &Applied {
        &self.applied
    }

    /// Has it put in force in smaller or larger pieces than packets want, for tests.
    #[doc(hidden)]
    pub fn cut(&mut self, piece: usize) {
        self.progress.piece = piece.max(1);
    }

    /// The generation of the snapshot.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The engine has room for it ([`crate::Engine::apply_piece`]): nothing is against it any more,
    /// and nothing has changed yet.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.progress.has_room()
    }

    /// Takes what another worker's engine has seen that flows need, for [`Planner::no_room`].
    pub fn also_lingers(&mut self, other: &mut Self) {
        for (ends, more) in [
            (&mut self.lingering.backends, &mut other.lingering.backends),
            (
                &mut self.lingering.frontends,
                &mut other.lingering.frontends,
            ),
        ] {
            ends.append(more);
            ends.sort_unstable();
            ends.dedup();
        }
    }
}

/// Makes snapshots ready beside an engine, or several that differ in their leg ports and have the
/// same in force, and remembers what that is.
pub struct Planner {
    /// Of each engine.
    fixed: Vec<Fixed>,
    rng: fastrand::Rng,
    memory: Memory,
    lingering: Lingering,
}

/// What a planner knows of what is in force.
#[derive(Default)]
struct Memory {
    generation: u64,
    policies: HashMap<String, Arc<baton_api::Policy>>,
    holders: HashMap<End, Arc<baton_api::Policy>>,
    backends: HashSet<End>,
    maglevs: Maglevs,
}

impl InForce for Memory {
    fn generation(&self) -> u64 {
        self.generation
    }

    fn policies(&self) -> usize {
        self.policies.len()
    }

    fn policy(&self, name: &str) -> Option<&Arc<baton_api::Policy>> {
        self.policies.get(name)
    }

    fn holder(&self, end: &End) -> Option<&str> {
        Some(&self.holders.get(end)?.name)
    }

    fn has_backend(&self, end: &End) -> bool {
        self.backends.contains(end)
    }

    fn table(&self, name: &str, v6: bool, rows: &Rows) -> Option<Arc<Maglev>> {
        let (same, table) = self.maglevs.get(&(name.to_owned(), v6))?;
        (same == rows).then(|| Arc::clone(table))
    }
}

impl Planner {
    /// Beside an engine with these settings, in which nothing is in force.
    #[must_use]
    pub fn new(settings: &Settings, seed: u64) -> Self {
        Self::for_workers(std::slice::from_ref(settings), seed)
    }

    /// Beside an engine for each of these settings.
    #[must_use]
    pub fn for_workers(settings: &[Settings], seed: u64) -> Self {
        let fixed = settings.iter().map(|settings| {
            let mut settings = settings.clone();
            settings.ports = *settings.ports.start().max(&1)..=*settings.ports.end();
            let from_all = settings.legs_from_all;
            let sources = Sources::new(&settings.addresses, from_all, &settings.ports);
            Fixed::new(&settings, &sources)
        });
        Self {
            fixed: fixed.collect(),
            rng: fastrand::Rng::with_seed(seed),
            memory: Memory::default(),
            lingering: Lingering::default(),
        }
    }

    /// Another snapshot comes than the last one: what was known of what lingers is old.
    pub fn begin(&mut self) {
        self.lingering = Lingering::default();
    }

    /// Makes a snapshot ready, whole. Takes milliseconds for each Maglev table that changed, and
    /// 0.1 ms for each backend that is new.
    ///
    /// # Errors
    /// The snapshot contradicts itself or the engine's settings, or there is no room for it.
    pub fn prepare(&mut self, snapshot: &Snapshot) -> Result<Prepared, ApplyError> {
        Ok(self.prepare_workers(snapshot, None)?.swap_remove(0))
    }

    /// The same, with each policy that can be taken and to which nobody objects. Those that cannot
    /// keep what they had, where that goes together with the others.
    ///
    /// # Errors
    /// The snapshot says nothing that could be sorted, or is an old one.
    pub fn prepare_each(
        &mut self,
        snapshot: &Snapshot,
        objections: &[Objection],
    ) -> Result<Prepared, ApplyError> {
        let mut all = self.prepare_workers(snapshot, Some(objections))?;
        Ok(all.swap_remove(0))
    }

    /// The same for each engine, in their order: whole, or with `objections` each policy by itself.
    ///
    /// # Errors
    /// As of the others.
    pub fn prepare_workers(
        &mut self,
        snapshot: &Snapshot,
        objections: Option<&[Objection]>,
    ) -> Result<Vec<Prepared>, ApplyError> {
        plan(
            &self.fixed,
            &mut self.rng,
            &self.memory,
            &self.lingering,
            snapshot,
            objections,
        )
    }

    /// The engine had no room ([`ApplyError::is_room`]), or one of several had none
    /// ([`Prepared::also_lingers`]): the same snapshot is to be made ready again, with less. The
    /// third time at the latest there is room.
    pub fn no_room(&mut self, prepared: &mut Prepared) {
        let again = !self.lingering.backends.is_empty() || !self.lingering.frontends.is_empty();
        self.lingering = std::mem::take(&mut prepared.lingering);
        if again {
            // More lingers than the last time. Nothing but what is in force can become more than
            // that.
            self.lingering.backends.extend(&self.memory.backends);
            let frontends = self.memory.holders.keys();
            self.lingering.frontends.extend(frontends);
            for ends in [&mut self.lingering.backends, &mut self.lingering.frontends] {
                ends.sort_unstable();
                ends.dedup();
            }
        }
    }

    /// The engine has it in force; the first of several, and all others their part of it.
    pub fn in_force(&mut self, prepared: &mut Prepared) {
        let holders = prepared.policies.iter().flat_map(|p| {
            let ends = p.frontends.iter();
            ends.map(|end| (*end, Arc::clone(&p.spec)))
        });
        let policies = prepared.policies.iter().map(|p| {
            let spec = Arc::clone(&p.spec);
            (spec.name.clone(), spec)
        });
        self.memory = Memory {
            generation: prepared.generation,
            holders: holders.collect(),
            policies: policies.collect(),
            backends: prepared.named.keys().copied().collect(),
            maglevs: std::mem::take(&mut prepared.maglevs),
        };
        self.lingering = Lingering::default();
    }
}

/// Makes ready what can be taken: all policies, or with `objections` each by itself.
pub(crate) fn plan(
    fixed: &[Fixed],
    rng: &mut fastrand::Rng,
    in_force: &impl InForce,
    lingering: &Lingering,
    snapshot: &Snapshot,
    objections: Option<&[Objection]>,
) -> Result<Vec<Prepared>, ApplyError> {
    let mut sifted = sift(
        &fixed[0],
        in_force,
        lingering,
        snapshot,
        objections.unwrap_or_default(),
    )?;
    if objections.is_none() && !sifted.refused.is_empty() {
        return Err(sifted.refused.swap_remove(0).error);
    }
    let applied = told(snapshot, &sifted.refused);
    let generation = snapshot.generation;
    let mut maglevs = Maglevs::new();
    let each = fixed.iter().map(|fixed| {
        let told = (&*sifted.wanted, applied.clone());
        Prepared::new(fixed, rng, in_force, generation, told, &mut maglevs)
    });
    let mut all: Vec<Prepared> = each.collect();
    all[0].maglevs = maglevs;
    Ok(all)
}

pub(crate) fn end_of(endpoint: Endpoint) -> End {
    (to_addr(endpoint.address()), endpoint.port())
}

/// The backends of a family with their places in the policy's list.
fn backends_of(
    spec: &baton_api::Policy,
    v6: bool,
) -> impl Iterator<Item = (usize, &baton_api::Backend)> {
    let all = spec.backends.iter().enumerate();
    all.filter(move |(_, b)| b.endpoint.address().is_ipv6() == v6)
}

/// The members of a family, in the order of their ends. Their slots are still to be found.
fn members_of(spec: &baton_api::Policy, v6: bool) -> Vec<Member> {
    let members = backends_of(spec, v6).map(|(at, backend)| {
        // The same on every dataplane: no key.
        let mut hasher = SipHasher13::new();
        hasher.write(&to_addr(backend.endpoint.address()).octets());
        hasher.write_u16(backend.endpoint.port());
        Member::new((u16::MAX, hasher.finish()), at, backend, spec.slow_start)
    });
    members.collect()
}
