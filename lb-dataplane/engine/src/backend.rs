//! Backends: one slot per pod address and port, with its ports, legs, load estimate and adoptability.
//!
//! Owns which leg uses which port of ours. It never decides where a flow goes (`policy`) and never builds
//! a segment (`emit`).

use crate::{
    drain::{Budget, Drains},
    estimate::Estimate,
    figures::OfBackend,
    flow::{Addr, FlowId},
    health::Health,
    keys::Keyring,
    ledger::MoveCost,
    liveness::LivenessProbe,
    load::Load,
    memberships::Memberships,
    ports::{Ports, Rest},
    probe::Probe,
    routes::HopId,
    sweep::Progress,
};
use std::net::IpAddr;

/// What a port of ours towards a backend is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Owner(FlowId),
    Standby(FlowId),
    Closing(u32),
    /// Adoption probes.
    Probe,
    /// Whether anybody listens.
    LivenessProbe,
    /// Nobody any more: trackers are to forget it (slot in the table of open Forgets).
    Forget(u16),
}

/// `Use` in four bytes: two bits of kind, thirty of index; 0 is free.
#[derive(Clone, Copy)]
struct Packed(u32);

impl Packed {
    const FREE: Packed = Packed(0);
    const INDEX: u32 = (1 << 30) - 1;

    fn pack(used: Use) -> Self {
        Self(match used {
            Use::Owner(id) => (id + 1) & Self::INDEX,
            Use::Standby(id) => (id + 1) & Self::INDEX | 1 << 30,
            Use::Closing(id) => (id + 1) & Self::INDEX | 2 << 30,
            Use::Probe => 3 << 30,
            Use::LivenessProbe => 3 << 30 | 1,
            Use::Forget(slot) => 3 << 30 | (u32::from(slot) + 2),
        })
    }

    #[inline]
    fn unpack(self) -> Option<Use> {
        let id = (self.0 & Self::INDEX).wrapping_sub(1);
        match self.0 >> 30 {
            0 if self.0 == 0 => None,
            0 => Some(Use::Owner(id)),
            1 => Some(Use::Standby(id)),
            2 => Some(Use::Closing(id)),
            _ => Some(match self.0 & Self::INDEX {
                0 => Use::Probe,
                1 => Use::LivenessProbe,
                slot => Use::Forget((slot - 2) as u16),
            }),
        }
    }
}

/// Memory of a slot that nobody uses, to be freed elsewhere.
pub(crate) struct Tables {
    _ports: Ports,
    _legs: Box<[Packed]>,
}

/// One pod's listening address and port.
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
    pub(crate) health: Health,
    pub(crate) question: LivenessProbe,
    pub(crate) sweep: Option<Progress>,
    pub(crate) budget: Budget,
    pub(crate) ports: Ports,
    base: u16,
    legs: Box<[Packed]>,
    pub(crate) legs_used: u32,
    pub(crate) estimate: Estimate,
    pub(crate) load: Load,
    pub(crate) move_cost: MoveCost,
    pub(crate) figures: OfBackend,
    pub(crate) probe: Probe,
    pub(crate) keyring: Keyring,
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
            hop: None,
            source: None,
            listed: true,
            drains: Drains::default(),
            health: Health::default(),
            question: LivenessProbe::default(),
            sweep: None,
            budget: Budget::default(),
            ports: Ports::new(first, count, rng),
            base: first,
            legs: vec![Packed::FREE; count].into_boxed_slice(),
            legs_used: 0,
            estimate: Estimate::default(),
            load: Load::default(),
            move_cost: MoveCost::default(),
            figures: OfBackend::default(),
            probe: Probe::default(),
            keyring: Keyring::default(),
            flows: 0,
            pinned: 0,
            requests: 0,
            moves_in: 0,
            moves_out: 0,
            rescued: 0,
            since_event: 0,
            policies: Memberships::default(),
        }
    }

    /// It has left the snapshot and has no legs: its memory, without which it can have none.
    pub(crate) fn take_tables(&mut self) -> Tables {
        debug_assert_eq!(self.legs_used, 0, "legs of {}", self.name);
        Tables {
            _ports: std::mem::replace(&mut self.ports, Ports::none(self.base)),
            _legs: std::mem::take(&mut self.legs),
        }
    }

    /// Whether it has legs, and so needs its slot.
    pub(crate) fn lingers(&self) -> bool {
        self.legs_used > self.service_ports()
    }

    /// Ports that legs may have.
    pub(crate) fn slots(&self) -> usize {
        self.legs.len()
    }

    /// What the port in a slot is used for.
    pub(crate) fn used_at(&self, slot: usize) -> Option<Use> {
        self.legs.get(slot)?.unpack()
    }

    /// Ports of its own that are no legs: of probes and questions.
    pub(crate) fn service_ports(&self) -> u32 {
        u32::from(!self.probe.is_on(0)) + u32::from(!self.question.is_on(0))
    }

    #[inline]
    pub(crate) fn used_by(&self, port: u16) -> Option<Use> {
        self.legs
            .get(usize::from(port.wrapping_sub(self.base)))?
            .unpack()
    }

    /// Says what `port` is for from now on.
    pub(crate) fn assign(&mut self, port: u16, used: Use) {
        let slot = &mut self.legs[usize::from(port.wrapping_sub(self.base))];
        if slot.unpack().is_none() {
            self.legs_used += 1;
        }
        *slot = Packed::pack(used);
    }

    /// Frees `port`, whose last use ended so.
    pub(crate) fn release(&mut self, port: u16, now_ms: u64, rest: Rest) {
        if self.clear(port) {
            self.ports.give_back(port, now_ms, rest);
        }
    }

    /// Frees `port`, which no tracker remembers for certain.
    pub(crate) fn release_forgotten(&mut self, port: u16) {
        if self.clear(port) {
            self.ports.give_back_forgotten(port);
        }
    }

    fn clear(&mut self, port: u16) -> bool {
        let slot = &mut self.legs[usize::from(port.wrapping_sub(self.base))];
        let used = slot.unpack().is_some();
        if used {
            *slot = Packed::FREE;
            self.legs_used -= 1;
        }
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_pack_without_loss() {
        for used in [
            Use::Owner(0),
            Use::Owner(1 << 20),
            Use::Standby(0),
            Use::Closing(77),
            Use::Probe,
            Use::LivenessProbe,
            Use::Forget(0),
            Use::Forget(u16::MAX),
        ] {
            assert_eq!(Packed::pack(used).unpack(), Some(used));
        }
        assert_eq!(Packed::FREE.unpack(), None);
    }
}
