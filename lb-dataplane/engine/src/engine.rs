//! The engine's parts and its entry points.
//!
//! Owns everything else in this crate. It never waits, never allocates after [`Engine::apply`], and
//! changes a flow's state nowhere but in `Engine::step`.

use crate::{
    backend::{Backend, blocks::Blocks, load::Others, rests::Rests},
    balance::policy::Policy,
    clock::Instant,
    containers::{ahead::Ahead, lookup::Lookup, pass::Pass, shares::Shares, wheel::Wheel},
    flow::{
        FlowTable,
        kept::{self, Kept},
    },
    ids::{Addr, Leg, to_addr},
    mutants::Committed,
    net::{
        across::Across,
        prefixes::Route,
        resets::Resets,
        routes::{Hops, Routes},
        sources::Sources,
    },
    obs::{
        counters::{Counter, Counters, DropReason},
        events::Events,
    },
    tables::{
        Affinities, Backlogs, Closing, Early, Forgets, Guards, Shifts, Transfers,
        legs::{By, Legs},
    },
    timing::LINK_SETTLE_MS,
};
use baton_api::{LIMIT_FRONTENDS, LIMIT_POLICIES};
use baton_packet::{AdoptionKey, ChecksumState, Decoded, Mac, Segment, SeqNumber, ether_src};
use siphasher::sip::SipHasher13;
use std::{
    collections::{HashMap, VecDeque},
    hash::Hasher,
    net::IpAddr,
    ops::RangeInclusive,
};

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
/// Backends whose next hops are looked up at once when routes change: less than 0.1 ms.
pub(crate) const HOPS_AT_ONCE: usize = 128;

/// The packet engine of one worker.
pub struct Engine {
    pub(crate) settings: Settings,
    /// Own addresses by family, for the legs.
    pub(crate) sources: Sources,
    /// Addresses of the host that legs come from besides.
    pub(crate) host_addresses: Vec<IpAddr>,
    /// The same by the new routes, while backends are gone through for these.
    pub(crate) new_host_addresses: Vec<IpAddr>,
    /// On a node's network: what is no leg's may be the node's own ([`Self::share_ports`]).
    pub(crate) shares_ports: bool,
    pub(crate) generation: u64,
    pub(crate) flows: FlowTable,
    pub(crate) frontends: Vec<FrontendSlot>,
    pub(crate) frontend_ids: Lookup,
    /// Slots of policies by name.
    pub(crate) policy_ids: HashMap<String, u16>,
    #[expect(
        clippy::vec_box,
        reason = "a slot costs nothing before it is used, and is replaced without a copy"
    )]
    pub(crate) policies: Vec<Box<Policy>>,
    #[expect(clippy::vec_box, reason = "likewise")]
    pub(crate) backends: Vec<Box<Backend>>,
    pub(crate) backend_ids: Lookup,
    pub(crate) legs: Legs,
    pub(crate) rests: Rests,
    pub(crate) closing: Closing,
    /// Of legs that are translated.
    pub(crate) shifts: Shifts,
    pub(crate) forgets: Forgets,
    pub(crate) transfers: Transfers,
    /// Pairs that trackers on the way may remember, as of the last look over the backends, and as
    /// far as the present one is.
    pub(crate) tracked: (u32, u32),
    /// Backends that policies with flows judge by what their kernels say: in the last round of
    /// looking over all, and so far in this one.
    pub(crate) load_wanted: (u32, u32),
    pub(crate) kept: Kept,
    /// Copies of requests among these, by their clients' networks.
    pub(crate) requests: Shares,
    pub(crate) backlogs: Backlogs,
    pub(crate) early: Early,
    pub(crate) guards: Guards,
    pub(crate) affinities: Affinities,
    /// Timers of flows (ids below the flow limit), then of closing legs, then of clients with
    /// affinity.
    pub(crate) wheel: Wheel,
    pub(crate) routes: Routes,
    pub(crate) hops: Hops,
    pub(crate) keys: Vec<(u8, AdoptionKey)>,
    pub(crate) counters: Counters,
    pub(crate) events: Events,
    /// Some flow's move may have been asked for that has not begun.
    pub(crate) pending_moves: bool,
    /// For choices. Nobody is told what it yields.
    pub(crate) rng: fastrand::Rng,
    numbers: u64,
    /// When going through the legs of some backend goes on.
    pub(crate) sweep_due_ms: Option<u64>,
    /// Backends whose legs are gone through, the next one in front.
    pub(crate) sweeps: VecDeque<u16>,
    /// What this call of [`Self::poll`] may still do; see [`Self::spend`].
    pub(crate) acts: usize,
    /// The going through all backends: for adoption probes, for liveness probes, to look over.
    pub(crate) probes: Pass,
    pub(crate) liveness_probes: Pass,
    pub(crate) round: Pass,
    /// Policies whose pools are to be judged.
    pub(crate) to_judge: VecDeque<u16>,
    /// When pools were judged at once, and members that still may be, in this moment.
    pub(crate) judged: (u64, usize),
    /// The first backend whose next hop is from before the routes changed.
    pub(crate) stale_hops: Option<usize>,
    /// The same of backends whose keys changed.
    pub(crate) stale_keys: Option<usize>,
    /// What other workers' engines have measured.
    pub(crate) others: Others,
    /// Snapshots that began to come into force, and those that did.
    pub(crate) applies: u64,
    pub(crate) applied: u64,
    /// A flow's move was asked for since the last look at all of them began.
    pub(crate) new_pending_moves: bool,
    pub(crate) resolve_again_ms: u64,
    /// The leg that the current event redirects its flow to.
    pub(crate) pending: Leg,
    /// And whether that is opened by a handshake.
    pub(crate) pending_by: By,
    /// The dataplane's own interface is down: silence says nothing about anybody.
    pub(crate) link_down: Option<Instant>,
    /// Time that it was down in all, in us: so much the engine's own clock is behind.
    pub(crate) stood_still_us: u64,
    /// From when on silence means something again after it was down.
    pub(crate) link_settled_ms: u64,
    /// Nothing but in the simulation's search for blind checkers.
    pub(crate) committed: Committed,
    pub(crate) resets: Resets,
    pub(crate) ahead: Ahead,
    /// Segments that change no state go the short way (`fast`).
    pub(crate) predicts: bool,
    /// The frame in hand goes to the other IP family.
    pub(crate) across: Option<Across>,
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
        // Two of each flow, one that closes, a Forget, and two of each backend for probes.
        let legs = 2 * limits.flows as usize + limits.closing_legs as usize;
        let legs = legs + Forgets::MAX + 2 * backends;
        let rng = fastrand::Rng::with_seed(settings.seed);
        let keys = settings.hash_keys;
        let pool = Kept::new(limits.kept_segments);
        Ok(Self {
            sources,
            host_addresses: Vec::new(),
            new_host_addresses: Vec::new(),
            shares_ports: false,
            generation: 0,
            flows: FlowTable::new(limits.flows, keys),
            frontends: Vec::with_capacity(FRONTENDS),
            frontend_ids: Lookup::new(LIMIT_FRONTENDS),
            policy_ids: HashMap::with_capacity(2 * LIMIT_POLICIES),
            policies: Vec::with_capacity(2 * LIMIT_POLICIES),
            backends: Vec::with_capacity(backends),
            backend_ids: Lookup::new(usize::from(limits.backends)),
            legs: Legs::new(legs, keys),
            rests: Rests::new(legs, Blocks::new(backends, numbers, legs)),
            closing: Closing::new(limits.closing_legs),
            shifts: Shifts::new(limits.flows + limits.closing_legs, limits.flows, keys),
            forgets: Forgets::new(),
            transfers: Transfers::new(),
            tracked: (0, 0),
            load_wanted: (0, 0),
            backlogs: Backlogs::new(pool.capacity()),
            requests: Shares::new(kept::network_max(pool.capacity())),
            early: Early::new(pool.capacity()),
            kept: pool,
            guards: Guards::new(limits.guarded_flows, limits.resp_sessions),
            affinities: Affinities::new(limits.affinities, keys),
            wheel: Wheel::new((limits.flows + limits.closing_legs + limits.affinities) as usize),
            routes: Routes::default(),
            hops: Hops::new(),
            keys: Vec::new(),
            counters: Counters::new(),
            events: Events::new(),
            pending_moves: false,
            rng,
            numbers: 0,
            sweep_due_ms: None,
            sweeps: VecDeque::with_capacity(backends),
            acts: 0,
            probes: Pass::new(now.ms()),
            liveness_probes: Pass::new(u64::MAX),
            round: Pass::new(now.ms()),
            to_judge: VecDeque::with_capacity(2 * LIMIT_POLICIES),
            judged: (0, 0),
            stale_hops: None,
            stale_keys: None,
            others: Others::new(settings.share.workers, backends),
            applies: 0,
            applied: 0,
            new_pending_moves: false,
            resolve_again_ms: now.ms(),
            pending: Leg::NONE,
            pending_by: By::default(),
            link_down: None,
            stood_still_us: 0,
            link_settled_ms: 0,
            committed: Committed::default(),
            resets: Resets::new(),
            ahead: Ahead::default(),
            predicts: true,
            across: None,
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
        std::mem::swap(&mut self.routes, routes);
        self.stale_hops = Some(0);
        self.new_host_addresses.clear();
        self.refresh_hops(HOPS_AT_ONCE);
    }

    /// Says that the host translates connections of others to the dataplane's address, at ports of
    /// its choice: the legs' too. From now on the host gets what comes to these ports and is no
    /// leg's; what it does not want either comes back through its stack.
    pub fn share_ports(&mut self) {
        self.shares_ports = true;
    }

    /// A frame that belongs to none of our legs: the host's, unless it came from there.
    #[cold]
    pub(crate) fn pass_to_host(&mut self, frame: &mut [u8], end: u16) -> Option<Verdict> {
        if !self.shares_ports || ether_src(frame) == Mac::HOST {
            return None;
        }
        let (to, from) = frame.get_mut(..12)?.split_at_mut(6);
        to.copy_from_slice(&Mac::HOST.0);
        from.copy_from_slice(&self.settings.mac.0);
        self.counters.add(Counter::LeftToHost);
        Some(Verdict::Transmit(usize::from(end)))
    }

    /// Tells what the kernel knows of a neighbour.
    pub fn set_neighbour(&mut self, address: IpAddr, mac: Option<Mac>) {
        self.hops.set(address, mac);
    }

    /// Tells whether the dataplane's own interface is up. While it is down the engine's clock
    /// stands still: nothing that is not heard means anything, and no time-out comes nearer.
    pub fn set_link(&mut self, now: Instant, up: bool) {
        if !up {
            self.link_down = Some(self.engine_time(now));
        } else if let Some(since) = self.link_down.take() {
            self.stood_still_us = now.0 - since.0;
            self.link_settled_ms = since.ms() + LINK_SETTLE_MS;
            for backend in &mut self.backends {
                backend.liveness.link_was_down(since);
            }
        }
    }

    /// The engine's own clock.
    #[inline]
    pub(crate) fn engine_time(&self, now: Instant) -> Instant {
        self.link_down
            .unwrap_or(Instant(now.0 - self.stood_still_us))
    }

    /// An address whose link-layer address is needed; call until `None`, then ask the kernel for
    /// each.
    pub fn next_unresolved(&mut self) -> Option<IpAddr> {
        self.hops.next_unresolved()
    }

    /// Judges one frame: the first `len` bytes of `buffer`, which it may rewrite in place.
    pub fn frame(
        &mut self,
        now: Instant,
        buffer: &mut [u8],
        len: usize,
        out: &mut impl Output,
    ) -> Verdict {
        let now = self.engine_time(now);
        self.events.now = now;
        let len = len.min(buffer.len());
        let predicted = self.predicted(now, &mut buffer[..len], out);
        let mut verdict = predicted.unwrap_or_else(|| self.general(now, &mut buffer[..len], out));
        if self.across.is_some()
            && let Some(across) = self.across.take()
            && matches!(verdict, Verdict::Transmit(_))
        {
            verdict = across
                .carry(buffer)
                .map_or_else(Verdict::Drop, Verdict::Transmit);
        }
        if let Verdict::Drop(reason) = verdict {
            self.counters.drop(reason);
        }
        verdict
    }

    /// Whatever is not predicted.
    #[inline(never)]
    fn general(&mut self, now: Instant, frame: &mut [u8], out: &mut impl Output) -> Verdict {
        match baton_packet::decode(frame) {
            Ok(Decoded::Tcp(segment)) => self.segment(now, frame, &segment, out),
            Ok(Decoded::Icmp(error)) => self.icmp(frame, &error),
            Ok(_) => Verdict::Drop(DropReason::NotOurs),
            Err(malformed) => {
                self.counters.malformed[malformed as usize] += 1;
                Verdict::Drop(DropReason::Malformed)
            }
        }
    }

    #[inline]
    fn segment(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        out: &mut impl Output,
    ) -> Verdict {
        match baton_packet::settle_tcp_checksum(frame, segment) {
            ChecksumState::Full => {}
            ChecksumState::Partial => self.counters.add(Counter::PartialChecksums),
            ChecksumState::Bad => return Verdict::Drop(DropReason::BadChecksum),
        }
        let to = to_addr(segment.dst);
        // A leg's port and a frontend's never coincide on our own addresses: the port range is
        // refused where they do.
        if self.settings.ports.contains(&segment.dst_port) && self.sources.contains(segment.dst) {
            return self.on_leg(now, frame, segment, out);
        }
        match self.frontend_ids.find(to, segment.dst_port) {
            Some(frontend) => {
                self.counters.add(Counter::FromClients);
                self.on_client(now, frame, segment, frontend, out)
            }
            None => self.on_host_leg(now, frame, segment, out),
        }
    }

    /// Inlined, and what it calls too, although there are two callers: one is rare, and the other
    /// would pay 30 instructions for a call.
    #[inline(always)]
    fn on_leg(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        out: &mut impl Output,
    ) -> Verdict {
        self.counters.add(Counter::FromBackends);
        let from = to_addr(segment.src);
        match self.backend_ids.find(from, segment.src_port) {
            Some(backend) => self.on_backend(now, frame, segment, backend, out),
            None => self
                .pass_to_host(frame, segment.end)
                .unwrap_or(Verdict::Drop(DropReason::NotOurs)),
        }
    }

    /// To an address of the host, which some legs come from on a node's network. Apart, for the
    /// sake of the usual ones.
    #[cold]
    fn on_host_leg(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        segment: &Segment,
        out: &mut impl Output,
    ) -> Verdict {
        if !self.settings.ports.contains(&segment.dst_port) {
            return Verdict::Drop(DropReason::NotOurs);
        }
        if self.is_source(segment.dst) {
            return self.on_leg(now, frame, segment, out);
        }
        // Steered here for a route's sake that no backend uses (any more).
        self.pass_to_host(frame, segment.end)
            .unwrap_or(Verdict::Drop(DropReason::NotOurs))
    }

    /// A number that pods see and nobody guesses, whatever others he has seen.
    pub(crate) fn fresh_number(&mut self) -> SeqNumber {
        self.numbers += 1;
        let keys = self.settings.hash_keys;
        let mut hasher = SipHasher13::new_with_keys(keys.0, keys.1);
        hasher.write_u64(self.numbers);
        SeqNumber(hasher.finish() as u32)
    }

    /// Whether legs come from this address.
    pub(crate) fn is_source(&self, address: IpAddr) -> bool {
        self.sources.contains(address) || self.host_addresses.contains(&address)
    }
}
