//! The engine's parts and its entry points.
//!
//! Owns everything else in this crate. It never waits, never allocates after [`Engine::apply`], and
//! changes a flow's state nowhere but in `Engine::step`.

mod rounds;

use crate::{
    backend::{Backend, load::Others},
    balance::policy::Policy,
    clock::{Instant, Link},
    containers::{ahead::Ahead, lookup::Lookup, wheel::Wheel},
    flow::FlowTable,
    ids::{Addr, Leg},
    mutants::Committed,
    net::{Net, prefixes::Route, routes::Routes, sources::Sources},
    obs::{
        counters::{Counters, DropReason},
        events::Events,
    },
    tables::{Affinities, Copies, Guards, LegTables, legs::By},
};
use baton_api::{LIMIT_FRONTENDS, LIMIT_POLICIES};
use baton_packet::{AdoptionKey, Mac, SeqNumber};
use rounds::Rounds;
use siphasher::sip::SipHasher13;
use std::{collections::HashMap, hash::Hasher, net::IpAddr, ops::RangeInclusive};

/// What is fixed for an engine's life.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Table sizes.
    pub limits: baton_api::Limits,
    /// The dataplane's own addresses; legs come from the first of each family.
    pub addresses: Vec<IpAddr>,
    /// Legs come from the others, too: at most 65,535 addresses and ports of a family, whole
    /// addresses.
    pub legs_from_all: bool,
    /// Ports of legs.
    pub ports: RangeInclusive<u16>,
    /// The interface's link-layer address.
    pub mac: Mac,
    /// Of limits per second, where several engines serve the same policies.
    pub share: crate::Share,
    /// Seeds every random choice.
    pub seed: u64,
    /// Keys of tables that clients have entries in, and of numbers that others must not guess:
    /// secret, from the system.
    pub hash_keys: (u64, u64),
    /// The interface's MTU in bytes.
    pub mtu: u16,
}

/// Why an engine cannot be made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SettingsError {
    /// No own address.
    #[error("the dataplane has no address: give its interface one, or set `address`")]
    NoAddress,
    /// A table size is out of range.
    #[error(transparent)]
    Limit(baton_api::SnapshotError),
    /// Too few ports for the legs.
    #[error("ports: {0} ports are too few: expected at least 64")]
    FewPorts(usize),
}

/// Where frames of the engine's own making go.
pub trait Output {
    /// An empty buffer to build a frame in, if one is free.
    fn frame(&mut self) -> Option<&mut [u8]>;
    /// Sends the first `len` bytes of the buffer last given.
    fn send(&mut self, len: usize);
}

/// What becomes of the frame that was given in.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was rewritten in place: send its first bytes.
    Transmit(usize),
    /// It is of no use.
    Drop(DropReason),
    /// It was consumed.
    Absorbed,
}

/// Those of a snapshot, and of the one before it that has other ones: 3 MB with their look-up, so
/// that no table grows while packets wait.
const FRONTENDS: usize = 2 * LIMIT_FRONTENDS;
/// Backends, and flows, whose next hops are looked up at once when routes change: less than 0.1 ms.
pub(crate) const HOPS_AT_ONCE: usize = 128;

/// Numbers of what a snapshot names.
pub(crate) struct Ids {
    pub(crate) frontends: Lookup,
    pub(crate) backends: Lookup,
    /// Slots of policies by name.
    pub(crate) policies: HashMap<String, u16>,
}

/// Where the current event redirects its flow to.
pub(crate) struct Redirect {
    pub(crate) leg: Leg,
    /// How the flow comes to that.
    pub(crate) by: By,
}

/// The packet engine of one worker.
pub struct Engine {
    pub(crate) settings: Settings,
    pub(crate) net: Net,
    pub(crate) link: Link,
    pub(crate) flows: FlowTable,
    pub(crate) legs: LegTables,
    pub(crate) copies: Copies,
    pub(crate) guards: Guards,
    pub(crate) affinities: Affinities,
    /// Timers of flows (ids below the flow limit), then of closing legs, then of clients with
    /// affinity.
    pub(crate) wheel: Wheel,
    pub(crate) frontends: Vec<FrontendSlot>,
    #[expect(
        clippy::vec_box,
        reason = "a slot costs nothing before it is used, and is replaced without a copy"
    )]
    pub(crate) policies: Vec<Box<Policy>>,
    #[expect(clippy::vec_box, reason = "likewise")]
    pub(crate) backends: Vec<Box<Backend>>,
    pub(crate) ids: Ids,
    pub(crate) generation: u64,
    /// Snapshots that began to come into force, and those that did.
    pub(crate) applies: u64,
    pub(crate) applied: u64,
    pub(crate) rounds: Rounds,
    /// What other workers' engines have measured.
    pub(crate) others: Others,
    pub(crate) keys: Vec<(u8, AdoptionKey)>,
    pub(crate) counters: Counters,
    pub(crate) events: Events,
    /// For choices. Nobody is told what it yields.
    pub(crate) rng: fastrand::Rng,
    numbers: u64,
    pub(crate) redirect: Redirect,
    pub(crate) ahead: Ahead,
    /// Segments that change no state go the short way (`fast`).
    pub(crate) predicts: bool,
    /// Nothing but in the simulation's search for blind checkers.
    pub(crate) committed: Committed,
}

/// An address and port that clients connect to.
pub(crate) struct FrontendSlot {
    pub(crate) addr: Addr,
    pub(crate) port: u16,
    pub(crate) policy: u16,
    /// In the snapshot in force; a slot stays for the flows that came through it.
    pub(crate) listed: bool,
    /// The last event of flows before the slot was its.
    pub(crate) since_event: u64,
    /// Flows that came through it.
    pub(crate) flows: u32,
    /// The number of the snapshot that named it last.
    pub(crate) applied: u64,
}

impl Engine {
    /// Reserves all tables.
    ///
    /// # Errors
    /// A setting that cannot work.
    pub fn new(mut settings: Settings, now: Instant) -> Result<Self, SettingsError> {
        settings.ports = *settings.ports.start().max(&1)..=*settings.ports.end();
        let limits = settings.limits;
        limits.validate().map_err(SettingsError::Limit)?;
        let ports = settings.ports.clone().count();
        if ports < 64 {
            return Err(SettingsError::FewPorts(ports));
        }
        if settings.addresses.is_empty() {
            return Err(SettingsError::NoAddress);
        }
        let sources = Sources::new(&settings.addresses, settings.legs_from_all, &settings.ports);
        let numbers = sources.numbers(false).max(sources.numbers(true));
        // As of frontends.
        let backends = 2 * usize::from(limits.backends);
        let keys = settings.hash_keys;
        Ok(Self {
            net: Net::new(sources, now.ms()),
            link: Link::default(),
            flows: FlowTable::new(limits.flows, keys),
            legs: LegTables::new(&limits, (backends, numbers), keys),
            copies: Copies::new(limits.kept_segments),
            guards: Guards::new(limits.guarded_flows, limits.resp_sessions),
            affinities: Affinities::new(limits.affinities, keys),
            wheel: Wheel::new((limits.flows + limits.closing_legs + limits.affinities) as usize),
            frontends: Vec::with_capacity(FRONTENDS),
            policies: Vec::with_capacity(2 * LIMIT_POLICIES),
            backends: Vec::with_capacity(backends),
            ids: Ids {
                frontends: Lookup::new(LIMIT_FRONTENDS),
                backends: Lookup::new(usize::from(limits.backends)),
                policies: HashMap::with_capacity(2 * LIMIT_POLICIES),
            },
            generation: 0,
            applies: 0,
            applied: 0,
            rounds: Rounds::new(backends, now),
            others: Others::new(settings.share.workers, backends),
            keys: Vec::new(),
            counters: Counters::new(),
            events: Events::new(),
            rng: fastrand::Rng::with_seed(settings.seed),
            numbers: 0,
            redirect: Redirect { leg: Leg::NONE, by: By::default() },
            ahead: Ahead::default(),
            predicts: true,
            committed: Committed::default(),
            settings,
        })
    }

    /// Replaces the routes, as the kernel has them, however long that takes.
    pub fn set_routes(&mut self, routes: &[Route]) {
        self.put_routes(&mut Routes::new(routes));
    }

    /// Replaces the routes by those that were made elsewhere. The old ones come back, to be freed
    /// there.
    pub fn put_routes(&mut self, routes: &mut Routes) {
        std::mem::swap(&mut self.net.routes, routes);
        (self.net.stale_hops, self.net.stale_clients) = (Some(0), Some(0));
        self.net.new_host_addresses.clear();
        self.refresh_hops(HOPS_AT_ONCE);
    }

    /// Says that the host translates connections of others to the dataplane's address, at ports of
    /// its choice: the legs' too. From now on the host gets what comes to these ports and is no
    /// leg's; what it does not want either comes back through its stack.
    pub fn share_ports(&mut self) {
        self.net.shares_ports = true;
    }

    /// Tells what the kernel knows of a neighbour.
    pub fn set_neighbour(&mut self, address: IpAddr, mac: Option<Mac>) {
        self.net.hops.set(address, mac);
    }

    /// Tells whether the dataplane's own interface is up. While it is down the engine's clock
    /// stands still: nothing that is not heard means anything, and no time-out comes nearer.
    pub fn set_link(&mut self, now: Instant, up: bool) {
        if !up {
            self.link.goes_down(now);
        } else if let Some(since) = self.link.comes_up(now) {
            for backend in &mut self.backends {
                backend.liveness.link_was_down(since);
            }
        }
    }

    /// An address whose link-layer address is needed; call until `None`, then ask the kernel for
    /// each.
    pub fn next_unresolved(&mut self) -> Option<IpAddr> {
        self.net.hops.next_unresolved()
    }

    /// A number that pods see and nobody guesses, whatever others he has seen.
    pub(crate) fn fresh_number(&mut self) -> SeqNumber {
        self.numbers += 1;
        let keys = self.settings.hash_keys;
        let mut hasher = SipHasher13::new_with_keys(keys.0, keys.1);
        hasher.write_u64(self.numbers);
        SeqNumber(hasher.finish() as u32)
    }
}
