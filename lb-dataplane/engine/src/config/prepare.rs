//! Snapshots made ready by whoever pushes them, so that the packet thread only puts the parts in
//! their places.
//!
//! Owns what costs time or memory: which policies can be taken (`sift`), tables of Maglev, ports of
//! new backends. What was replaced goes back in the [`Prepared`] and is freed with it, elsewhere
//! too. It never sees a flow: what flows still need is told by an engine that has no room, and then
//! the snapshot is made ready again.

use crate::{
    backend::{Backend, Tables},
    balance::{maglev::Maglev, member::Member, policy::Policy, pool::Pool},
    config::{
        in_force::{ApplyError, End, Fixed, InForce, Rows, end_of},
        sift::{Applied, Lingering, Objection, Wanted, sift, told},
    },
    engine::Settings,
    ids::to_addr,
    net::sources::Sources,
};
use baton_api::{Algorithm, LIMIT_FRONTENDS, LIMIT_POLICIES, Micros, Snapshot};
use siphasher::sip::SipHasher13;
use std::{
    collections::{HashMap, HashSet},
    hash::Hasher,
    sync::Arc,
};

/// Tables by policy and family, with the rows that they are made of.
type Maglevs = HashMap<(String, bool), (Rows, Arc<Maglev>)>;

/// What one piece may cost, in units of about 0.1 us: some 50 us.
const PIECE: usize = 512;

/// What is done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Which slots of policies are free, and which frontends have flows. Nothing has changed yet.
    Free,
    /// Whether there is room.
    Room,
    /// There is, and a caller may ask others first.
    Agreed,
    /// Slots of new backends.
    Arrive,
    /// Policies that are new or changed, and all frontends.
    Policies,
    /// Policies and frontends that are named no more.
    Retire,
    /// Backends: those that go, and what changed of the others.
    Backends,
    /// Clients with affinity to what went.
    Clients,
    /// Flows that were to move to what went.
    Flows,
    /// In force.
    Done,
}

impl Stage {
    pub(crate) fn next(self) -> Self {
        match self {
            Self::Free => Self::Room,
            Self::Room => Self::Agreed,
            Self::Agreed => Self::Arrive,
            Self::Arrive => Self::Policies,
            Self::Policies => Self::Retire,
            Self::Retire => Self::Backends,
            Self::Backends => Self::Clients,
            Self::Clients => Self::Flows,
            Self::Flows | Self::Done => Self::Done,
        }
    }
}

/// How far a snapshot is put in force.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// What one piece may cost.
    pub(crate) piece: usize,
    pub(crate) stage: Stage,
    /// Where the stage goes on.
    pub(crate) at: usize,
    /// The slot of the policy whose frontends are placed, and how many are.
    pub(crate) placing: Option<(u16, usize)>,
    /// The stage is not done with where it is.
    pub(crate) again: bool,
    /// Backends that have legs still and are named no more, and frontends with flows.
    pub(crate) lingering: (usize, usize),
    /// Backends with slots whose slots were seen.
    pub(crate) known: usize,
    /// Where the search for free slots goes on.
    pub(crate) free_backend: usize,
    pub(crate) free_policy: usize,
    pub(crate) free_frontend: usize,
    /// What is named is stamped with this number.
    pub(crate) stamp: u64,
    /// A policy, one of its backends or its affinity went.
    pub(crate) left: bool,
    pub(crate) pending_moves: bool,
    /// A policy with flows went, or has another protocol.
    pub(crate) of_flows: bool,
}

impl Progress {
    /// Of a snapshot, in which there may be `nothing_new`.
    pub(crate) fn of(nothing_new: bool) -> Self {
        Self {
            piece: PIECE,
            stage: if nothing_new { Stage::Done } else { Stage::Free },
            at: 0,
            placing: None,
            again: false,
            lingering: (0, 0),
            known: 0,
            free_backend: 0,
            free_policy: 0,
            free_frontend: 0,
            stamp: 0,
            left: false,
            pending_moves: false,
            of_flows: false,
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        !matches!(self.stage, Stage::Free | Stage::Room)
    }
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
    pub(crate) policy: Option<Box<Policy>>,
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
    pub(crate) fresh: Vec<Option<Box<Backend>>>,
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
                    let new = Backend::new(name, end.0, end.1, ports, rng);
                    fresh.push(Some(Box::new(new)));
                }
                Named { name: String::new(), known, node: None }
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
                    policy: Some(Box::new(Policy::new(spec, pools, fixed.share))),
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
            frontends: policies.iter().flat_map(|p| &p.frontends).copied().collect(),
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
            (&mut self.lingering.frontends, &mut other.lingering.frontends),
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

    /// Makes a snapshot ready for each engine, in their order: whole, or with `objections` each
    /// policy that can be taken and to which nobody objects. Those that cannot keep what they had,
    /// where that goes together with the others. Takes milliseconds for each Maglev table that
    /// changed, and 0.1 ms for each backend that is new.
    ///
    /// # Errors
    /// The snapshot contradicts itself or the engines' settings, says nothing that could be sorted,
    /// is an old one, or there is no room for it.
    pub fn prepare(
        &mut self,
        snapshot: &Snapshot,
        objections: Option<&[Objection]>,
    ) -> Result<Vec<Prepared>, ApplyError> {
        plan(&self.fixed, &mut self.rng, &self.memory, &self.lingering, snapshot, objections)
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
    let mut sifted =
        sift(&fixed[0], in_force, lingering, snapshot, objections.unwrap_or_default())?;
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
    // With affinity nobody's share grows: where a client belongs follows from its address.
    let slow_start = if spec.affinity.is_none() { spec.slow_start } else { Micros(0) };
    let members = backends_of(spec, v6).map(|(at, backend)| {
        // The same on every dataplane: no key.
        let mut hasher = SipHasher13::new();
        hasher.write(&to_addr(backend.endpoint.address()).octets());
        hasher.write_u16(backend.endpoint.port());
        Member::new((u16::MAX, hasher.finish()), at, backend, slow_start)
    });
    members.collect()
}
