//! One world: clients, the real engine and pods on bad links, driven by the virtual clock.
//!
//! Owns everything in it and the order in which it happens. What is right is judged by `truth` and,
//! where it takes looking at the engine, by `checks`.

mod checks;
mod ends;
mod happenings;
mod phases;
mod transfers;
mod wire;

use crate::{
    address,
    asked::Asked,
    client::Client,
    clock::{Queue, Time},
    fault::{Fault, Happening},
    legs::Legs,
    link::{Fate, Link},
    pod::{Pod, adopter::Question},
    scenario::{START, Scenario},
    smol::SmolStack,
    stack::{ModelStack, Stack},
    stats::Stats,
    steady::Watch,
    talk::Language,
    trace::{Party, Trace},
    truth::Truth,
};
use baton_api::{ClientAddress, Snapshot};
use baton_engine::{Engine, Instant, Route, Settings, Via};
use baton_packet::proxy_header_len;
use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    panic::{AssertUnwindSafe, catch_unwind},
};

pub use checks::Counts;

/// Steps of one run; far above what any needs.
const STEPS_MAX: u64 = 400_000;
/// Bytes of a frame buffer, as the port has them.
pub(crate) const FRAME_BYTES: usize = 2_048;

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// What happened.
    pub stats: Stats,
    /// The first thing that must not be, if there was one.
    pub violation: Option<Violation>,
    /// The trace, if it was asked for.
    pub trace: Option<String>,
}

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// In this step.
    pub step: u64,
    /// At this time after the world began, in microseconds.
    pub at_us: Time,
    /// What.
    pub what: String,
}

pub(crate) enum Event {
    ToEngine(Party, Vec<u8>),
    ToClient(usize, Vec<u8>),
    ToPod(usize, Vec<u8>),
    Happens(Happening),
    Neighbour(IpAddr),
    Transfer(usize, Question),
}

/// Frames of the engine's own making.
pub(crate) struct Out {
    buffer: Box<[u8]>,
    pub(crate) sent: Vec<Vec<u8>>,
    pub(crate) free: bool,
    offered: bool,
    /// A frame was sent that was never asked for.
    pub(crate) broken: bool,
}

impl baton_engine::Output for Out {
    fn frame(&mut self) -> Option<&mut [u8]> {
        self.offered = self.free;
        self.free.then_some(&mut self.buffer[..])
    }

    fn send(&mut self, len: usize) {
        self.broken |= !std::mem::replace(&mut self.offered, false);
        self.sent.push(self.buffer[..len].to_vec());
    }
}

/// Everything.
pub struct World {
    pub(crate) scenario: Scenario,
    pub(crate) now: Time,
    pub(crate) step: u64,
    pub(crate) queue: Queue<Event>,
    pub(crate) engine: Engine,
    pub(crate) out: Out,
    pub(crate) clients: Vec<Client>,
    pub(crate) pods: Vec<Pod>,
    /// From and to each client, from and to each pod.
    pub(crate) client_links: Vec<[Link; 2]>,
    pub(crate) pod_links: Vec<[Link; 2]>,
    pub(crate) snapshot: Snapshot,
    /// Backends out of the snapshot, draining, and their weights.
    pub(crate) listed: Vec<bool>,
    pub(crate) draining: Vec<bool>,
    pub(crate) weights: Vec<u16>,
    pub(crate) epoch: u8,
    /// Epochs whose keys the dataplane has, and those it had.
    pub(crate) epochs: [u8; 2],
    pub(crate) retired: Vec<u8>,
    /// Somebody waits for the next adoption, to answer it.
    pub(crate) ambush: Option<u64>,
    pub(crate) truth: Truth,
    pub(crate) legs: Legs,
    pub(crate) watch: Option<Watch>,
    pub(crate) counts: Counts,
    pub(crate) stats: Stats,
    pub(crate) trace: Option<Trace>,
    pub(crate) rng: fastrand::Rng,
    /// What host-shims do. A draw of its own.
    pub(crate) shim_rng: fastrand::Rng,
    pub(crate) poll_at: Option<Time>,
    pub(crate) neighbours: Vec<bool>,
    /// Pods that were out of reach at some time: what could not be sent to them then, a reset above
    /// all, is not repeated.
    pub(crate) unreachable: Vec<bool>,
    /// Connections of which a leg was to be reset when there was no frame for it, nor a place where
    /// it would have waited for one.
    pub(crate) unsent_resets: BTreeSet<u32>,
    pub(crate) captured: Vec<(usize, Vec<u8>)>,
    pub(crate) asked: Asked,
    /// A client's last acknowledgement without data.
    pub(crate) spoken: Option<(usize, Vec<u8>)>,
    /// Deaths: which pod, when, and when its process started again.
    pub(crate) restarts: Vec<(usize, Time, Time)>,
    /// Counted ends of flows that no client was told of.
    pub(crate) untold: u64,
    pub(crate) calm: bool,
    pub(crate) spinning: u32,
    /// The engine was called in this step.
    pub(crate) touched: bool,
    violation: Option<Violation>,
}

/// Runs the world of a seed.
#[must_use]
pub fn run(seed: u64, traced: bool) -> Outcome {
    World::new(seed, traced).outcome(seed)
}

/// Runs the world of a seed with an engine that commits a deliberate fault.
#[cfg(feature = "mutants")]
#[must_use]
pub fn run_with(seed: u64, traced: bool, mutant: baton_engine::Mutant) -> Outcome {
    let mut world = World::new(seed, traced);
    world.engine.set_mutant(Some(mutant));
    world.outcome(seed)
}

/// The dataplane's addresses: of the clients' family and of the pods'.
fn ours(v6: bool, pods_v6: bool) -> Vec<IpAddr> {
    let mut ours = vec![address::ours(v6), address::ours(pods_v6)];
    ours.dedup();
    ours
}

impl World {
    /// Runs it to its end.
    #[must_use]
    pub fn outcome(mut self, seed: u64) -> Outcome {
        let world = &mut self;
        let ended = catch_unwind(AssertUnwindSafe(|| world.run_to_end()));
        if let Err(panic) = ended {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            world.violated(format!("panic: {}", text.unwrap_or_default()));
        }
        self.gather();
        Outcome {
            seed,
            stats: self.stats,
            violation: self.violation,
            trace: self.trace.map(Trace::finish),
        }
    }

    /// The world of a seed, before anything happened.
    #[must_use]
    pub fn new(seed: u64, traced: bool) -> Self {
        Self::of(Scenario::draw(seed), seed, traced)
    }

    /// The world of a scenario.
    ///
    /// # Panics
    /// If the engine refuses the scenario's settings: a mistake in the scenario.
    #[must_use]
    pub fn of(scenario: Scenario, seed: u64, traced: bool) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x0070_71d5);
        let (v6, pods_v6) = (scenario.v6, scenario.pods_v6);
        let language = Language::of(scenario.policy.protocol);
        let header_bytes = match scenario.policy.client_address {
            ClientAddress::ProxyV2 => proxy_header_len(scenario.v6, &scenario.policy.name) as u32,
            _ => 0,
        };
        let settings = Settings {
            limits: scenario.limits,
            addresses: ours(v6, pods_v6),
            legs_from_all: false,
            ports: address::LEG_PORTS_FROM..=address::LEG_PORTS_FROM + scenario.ports - 1,
            mac: address::OUR_MAC,
            seed: rng.u64(..),
            share: baton_engine::Share::default(),
            hash_keys: (seed, seed ^ 0x6a5e_6d00),
            mtu: 1_500,
        };
        let engine = match Engine::new(settings, Instant(START)) {
            Ok(engine) => engine,
            Err(error) => panic!("settings of a scenario: {error}"),
        };
        let pods: Vec<Pod> = scenario
            .pods
            .iter()
            .enumerate()
            .map(|(i, spec)| {
                let macs = (address::pod_mac(i), address::OUR_MAC);
                let at = address::pod(pods_v6, i);
                let mut pod = Pod::new(i as u32, at, macs, spec.clone(), language, rng.u64(..));
                pod.kernel.adopter.attached = scenario.adopts[i];
                pod.kernel.adopter.told.marks_exits = scenario.exit_marks[i];
                // Adopters that answer Forgets came later than marks.
                pod.kernel.adopter.told.forgets = scenario.exit_marks[i];
                pod.kernel.adopter.told.restores = scenario.exit_marks[i];
                pod.kernel.adopter.told.transfers = scenario.cooperates[i];
                pod.kernel.adopter.told.between_nodes =
                    scenario.cooperates[i] && scenario.between_nodes[i];
                pod.kernel.adopter.namespace.0 = (i as u64 + 1) << 32 | 1;
                pod.kernel.adopter.next_listener();
                pod
            })
            .collect();
        let clients = scenario
            .clients
            .iter()
            .enumerate()
            .map(|(i, (spec, config))| {
                // Behind the router, which puts its own link-layer address.
                let (mac, via) = (address::ROUTER_MAC, address::OUR_MAC);
                let at = address::client(v6, i);
                let server = scenario.frontend;
                let stack: Box<dyn Stack> = match scenario.smol[i] {
                    Some(smol) => Box::new(SmolStack::new(*config, smol, mac, via, at, server)),
                    None => Box::new(ModelStack::new(*config, mac, via, at, server)),
                };
                Client::new(i as u32, spec.clone(), language, stack, rng.u64(..))
            })
            .collect();
        let mut links = |specs: &[[crate::link::LinkSpec; 2]]| -> Vec<[Link; 2]> {
            let pair = specs.iter();
            pair.map(|[a, b]| {
                [Link::new(a.clone(), rng.u64(..)), Link::new(b.clone(), rng.u64(..))]
            })
            .collect()
        };
        let client_links = links(&scenario.client_links);
        let pod_links = links(&scenario.pod_links);
        let count = pods.len();
        let mut stats = Stats { seeds: 1, ..Stats::default() };
        for fault in Fault::ALL {
            stats.faults[*fault as usize] += u64::from(scenario.wild[*fault as usize]);
        }
        let mut world = Self {
            now: START,
            step: 0,
            queue: Queue::default(),
            engine,
            out: Out {
                buffer: vec![0; FRAME_BYTES].into_boxed_slice(),
                sent: Vec::new(),
                free: true,
                offered: false,
                broken: false,
            },
            clients,
            pods,
            client_links,
            pod_links,
            snapshot: Snapshot { generation: 0, policies: vec![scenario.policy.clone()] },
            listed: vec![true; count],
            draining: vec![false; count],
            weights: vec![1; count],
            epoch: 1,
            epochs: [1; 2],
            retired: Vec::new(),
            ambush: None,
            truth: Truth::new(language, header_bytes),
            legs: Legs::default(),
            watch: scenario.steady.map(Watch::new),
            counts: Counts::default(),
            stats,
            trace: traced.then(|| Trace::new(START)),
            rng,
            shim_rng: fastrand::Rng::with_seed(seed ^ 0x5417_0000),
            poll_at: None,
            neighbours: vec![true; count],
            unreachable: vec![false; count],
            captured: Vec::new(),
            asked: Asked::new(scenario.nodes.clone()),
            spoken: None,
            restarts: Vec::new(),
            unsent_resets: BTreeSet::new(),
            untold: 0,
            calm: false,
            spinning: 0,
            touched: false,
            violation: None,
            scenario,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        let route = |prefix: IpAddr, prefix_len, via: Option<IpAddr>| Route {
            prefix,
            prefix_len,
            via: via.map_or(Via::Link, Via::Router),
        };
        let network_v6 = IpAddr::from([0xfd00, 0, 0, 0x0a00, 0, 0, 0, 0]);
        self.engine.set_routes(&[
            route(IpAddr::from([10, 0, 0, 0]), 16, None),
            route(IpAddr::from([0; 4]), 0, Some(address::router(false))),
            route(network_v6, 64, None),
            route(IpAddr::from([0_u16; 8]), 0, Some(address::router(true))),
        ]);
        self.set_our_keys(1);
        for pod in 0..self.pods.len() {
            self.set_pod_keys(pod, 1);
        }
        self.predecessor();
        self.apply();
        // A kernel that has run for a while knows the pods.
        for pod in 0..self.pods.len() {
            let at = address::pod(self.scenario.pods_v6, pod).ip();
            self.engine.set_neighbour(at, Some(address::pod_mac(pod)));
        }
        for (at, what) in self.scenario.plan.clone() {
            self.queue.push(at, Event::Happens(what));
        }
    }

    /// Something must not be: the first such thing is kept.
    pub(crate) fn violated(&mut self, what: impl Into<String>) {
        if self.violation.is_none() {
            let violation =
                Violation { step: self.step, at_us: self.now - START, what: what.into() };
            if let Some(trace) = &mut self.trace {
                trace.note(self.now, &format!("VIOLATION {}", violation.what));
            }
            self.violation = Some(violation);
        }
    }

    pub(crate) fn expect(&mut self, checked: Result<(), String>) {
        if let Err(what) = checked {
            self.violated(what);
        }
    }

    pub(crate) fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.note(self.now, &what());
        }
    }

    /// Runs until all is said and the engine is empty, or something is wrong.
    pub fn run_to_end(&mut self) {
        self.faults_phase();
        if !self.failed() {
            self.calm_phase();
        }
        if !self.failed() {
            self.empty_phase();
        }
    }

    /// One step: whatever comes next, if it comes before `until`. `false` if nothing does.
    pub(crate) fn one_step(&mut self, until: Time) -> bool {
        let engine_at = self.engine_deadline();
        let (mut at, mut who) = (self.queue.next_at().unwrap_or(Time::MAX), Next::Queue);
        if engine_at < at {
            (at, who) = (engine_at, Next::Engine);
        }
        for (i, client) in self.clients.iter().enumerate() {
            if let Some(due) = client.deadline()
                && due < at
            {
                (at, who) = (due, Next::Client(i));
            }
        }
        for (i, pod) in self.pods.iter().enumerate() {
            if let Some(due) = pod.deadline()
                && due < at
            {
                (at, who) = (due, Next::Pod(i));
            }
        }
        if at > until {
            self.now = until;
            return false;
        }
        self.spinning = if at > self.now { 0 } else { self.spinning + 1 };
        self.now = self.now.max(at);
        self.step += 1;
        self.stats.steps += 1;
        match who {
            Next::Queue => {
                if let Some((_, event)) = self.queue.pop() {
                    self.happens(event);
                }
            }
            Next::Engine => self.poll_engine(),
            Next::Client(i) => self.step_client(i),
            Next::Pod(i) => self.step_pod(i),
        }
        self.check_step(who);
        self.violation.is_none()
    }

    pub(crate) fn failed(&self) -> bool {
        self.violation.is_some()
    }

    /// Where a frame goes.
    pub(crate) fn party_at(&self, to: SocketAddr) -> Option<Party> {
        if let Some(pod) = address::pod_at(to.ip(), self.pods.len()) {
            return Some(Party::Pod(pod));
        }
        address::client_at(to.ip(), self.clients.len()).map(Party::Client)
    }

    fn gather(&mut self) {
        let stats = &mut self.stats;
        stats.virtual_us = self.now - START;
        stats.executions = self.truth.executed;
        stats.replays = self.truth.replayed;
        for (why, count) in &self.truth.ends {
            *stats.ends.entry(why.name()).or_default() += count;
        }
        for (sum, (_, _, count)) in stats.rows.iter_mut().zip(self.engine.transitions()) {
            *sum += count;
        }
        for (name, label, value) in self.engine.counters().filter(|(_, _, value)| *value > 0) {
            let name = match label {
                Some((_, label)) => format!("{name} {label}"),
                None => name.to_owned(),
            };
            *stats.counters.entry(name).or_default() += value;
        }
        for policy in self.engine.state(Instant(self.now)).policies {
            for (cause, ends) in policy.moves_total {
                for (end, count) in ends {
                    *stats.counters.entry(format!("moves {cause} {end}")).or_default() += count;
                }
            }
        }
        if let Some(watch) = &self.watch {
            stats.steady.add(&watch.seen);
        }
        stats.migrations = self.engine.counter(baton_engine::Counter::MigrationsConfirmed);
        stats.rollbacks = self.engine.counter(baton_engine::Counter::Rollbacks);
        stats.rescues = self.engine.counter(baton_engine::Counter::Rescues);
        stats.transfers = self.engine.counter(baton_engine::Counter::TransfersDone);
        stats.releases = self.engine.counter(baton_engine::Counter::ReleasesDone);
    }

    pub(crate) fn count_fate(&mut self, fate: Fate) {
        self.stats.fates[fate as usize] += 1;
    }
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Queue,
    Engine,
    Client(usize),
    Pod(usize),
}
