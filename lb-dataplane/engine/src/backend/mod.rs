//! Backends: one slot per pod address and port, with its ports, load estimate and adoptability.
//!
//! Owns what is so of the pod for all its policies. It never decides where a flow goes (`policy`)
//! and never builds a segment (`emit`).

mod adopter;
mod drains;
pub(crate) mod estimate;
pub(crate) mod keys;
mod liveness;
pub(crate) mod load;
pub(crate) mod ports;
mod telemetry;

use crate::{
    backend::{
        estimate::Estimate,
        keys::Keyring,
        load::{Load, Pressed, Reading},
        ports::Ports,
    },
    clock::Instant,
    containers::memberships::Memberships,
    ids::Addr,
    net::routes::HopId,
    obs::{figures::OfBackend, ledger::MoveCost},
    tables::Parked,
};
pub(crate) use adopter::{Adopter, Finding};
use baton_api::LoadSignal;
use drains::{Budget, Drains};
pub(crate) use liveness::{Belief, Down, Evidence, Liveness};
use std::net::IpAddr;
use telemetry::Telemetry;

/// Backends by slot. Each has memory of its own, so that slots that may be needed cost none, and
/// one is replaced by another without a copy.
pub(crate) type Backends = [Box<Backend>];

/// Memory of a slot that nobody uses, to be freed elsewhere.
pub(crate) struct Tables {
    _ports: Ports,
}

/// Why a backend's legs are gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sweep {
    /// It lives: the ends that are held were meant, and adoptions that met silence are asked again.
    CloseStands,
    /// It is gone: its flows need other owners.
    Gone,
    /// It drains: its flows may leave, where they can.
    Drain,
    /// It answers nothing: others may answer what its application has not read.
    Stalled,
    /// Another pod has its address: what was sent to the one before, and what that one had not
    /// delivered, nobody repeats. Whose socket it was is asked.
    Renewed,
}

/// A sweep in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) what: Sweep,
    pub(crate) at: u32,
    /// Where it ends.
    pub(crate) until: u32,
    /// Where another round ends, of those that were in front when there were news; 0 for none.
    pub(crate) again: u32,
    /// Since when it waits for what came to the interface already.
    pub(crate) waits_ms: Option<u64>,
    /// A flow was seen whose policy drains the backend.
    pub(crate) leaving: bool,
}

/// One pod's listening address and port.
#[derive(Default)]
pub(crate) struct Backend {
    pub(crate) name: String,
    pub(crate) addr: Addr,
    pub(crate) port: u16,
    pub(crate) hop: Option<HopId>,
    /// Where its legs come from: our own address of its family, or the host's.
    pub(crate) source: Option<IpAddr>,
    /// In the snapshot in force. A backend that left it keeps its slot until its last leg is gone.
    pub(crate) listed: bool,
    /// Which policies' flows leave it.
    pub(crate) drains: Drains,
    pub(crate) liveness: Liveness,
    pub(crate) adopter: Adopter,
    pub(crate) telemetry: Telemetry,
    /// Where its adoption probes and its liveness probes come from; 0: none yet.
    pub(crate) probe_ports: [u16; 2],
    pub(crate) sweep: Option<Progress>,
    /// When it was last asked to let go of a request.
    pub(crate) release_asked_ms: u64,
    pub(crate) budget: Budget,
    pub(crate) ports: Ports,
    pub(crate) estimate: Estimate,
    pub(crate) load: Load,
    /// What other workers' requests say, all together.
    pub(crate) others: Option<Box<Load>>,
    pub(crate) move_cost: MoveCost,
    pub(crate) figures: OfBackend,
    pub(crate) keyring: Keyring,
    /// Legs that its next flows may have.
    pub(crate) parked: Parked,
    /// Flows that it owns.
    pub(crate) flows: u32,
    /// Of these, the ones that never move.
    pub(crate) pinned: u32,
    pub(crate) requests: u64,
    pub(crate) moves_in: u64,
    pub(crate) moves_out: u64,
    /// Flows that lost it and were given to another one.
    pub(crate) rescued: u64,
    /// The last event of flows before the slot was its.
    pub(crate) since_event: u64,
    /// Policies that have it as a member.
    pub(crate) policies: Memberships,
}

impl Backend {
    pub(crate) fn new(
        name: String,
        addr: Addr,
        port: u16,
        (first, count): (u16, usize),
        rng: &mut fastrand::Rng,
    ) -> Self {
        Self {
            name,
            addr,
            port,
            listed: true,
            ports: Ports::new(first, count, rng),
            ..Self::default()
        }
    }

    /// How long requests wait here, those of all workers.
    pub(crate) fn reading(&self, now: Instant, by: LoadSignal) -> Reading {
        let reading = match &self.others {
            Some(others) if others.is_known() => self.load.joined(others, now.0).reading(now.0),
            _ => self.load.reading(now.0),
        };
        reading.at_least(self.pressed(now, by))
    }

    /// Its requests that are not answered, as [`Self::reading`] has them.
    pub(crate) fn in_flight(&self, now: Instant, by: LoadSignal) -> u32 {
        let others = self.others.as_ref().map_or(0, |others| others.outstanding());
        let all = self.load.outstanding().saturating_add(others);
        all.max(self.pressed(now, by).queue)
    }

    /// How long one more request would wait here: as answers show or as the pod's kernel says,
    /// whichever is longer.
    pub(crate) fn wait_us(&self, now: Instant, by: LoadSignal) -> u64 {
        let Pressed { queue, wait_us } = self.pressed(now, by);
        self.estimate.wait_us(now.0, queue).max(wait_us)
    }

    /// What the pod's kernel says, where the policy goes by that.
    fn pressed(&self, now: Instant, by: LoadSignal) -> Pressed {
        match by {
            LoadSignal::Latency => Pressed::default(),
            LoadSignal::LatencyAndPressure => self.telemetry.pressed(now),
        }
    }

    /// Whether its adopter is there and answers Forgets.
    pub(crate) fn forgets(&self) -> bool {
        self.liveness.forgets() && !self.adopter.is_gone()
    }

    /// It has left the snapshot and has no legs: its memory, without which it can have none.
    pub(crate) fn take_tables(&mut self) -> Tables {
        debug_assert_eq!(self.ports.used(), 0, "legs of {}", self.name);
        let none = Ports::none(self.ports.first());
        Tables { _ports: std::mem::replace(&mut self.ports, none) }
    }

    /// Whether it has legs, and so needs its slot.
    pub(crate) fn lingers(&self) -> bool {
        self.ports.used() > self.service_ports()
    }

    /// Ports of its own that are no legs: of probes.
    pub(crate) fn service_ports(&self) -> usize {
        self.probe_ports.iter().filter(|port| **port != 0).count()
    }
}
