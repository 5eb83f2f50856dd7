//! What is to be steered to the packet thread, gathered a bounded piece at a time between batches
//! of packets.
//!
//! Owns how far that is. What a snapshot brings is steered before it comes into force
//! ([`Prepared::frontends`]); this is what it leaves, with what open flows need still. Knows no
//! kernel.

use crate::{
    Engine,
    config::prepare::Prepared,
    ids::{Addr, from_addr},
};
use std::net::IpAddr;

/// Slots looked at in one piece: some 50 us.
const SLOTS_AT_ONCE: usize = 2_048;

/// What the engine expects packets at and from.
#[derive(Debug, Default)]
pub struct SteeredEnds {
    /// The next slot.
    at: usize,
    /// In force, and those whose flows still live.
    pub frontends: Vec<(IpAddr, u16)>,
    /// Those at which all connections of a client's address are one worker's: with affinity.
    pub by_address: Vec<(IpAddr, u16)>,
    /// Who answers to legs, if others may have such ports ([`Engine::share_ports`]): backends of
    /// the snapshot, and those with legs still.
    pub backends: Option<Vec<(IpAddr, u16)>>,
    /// Addresses that legs come from beside the own ones: the host's, on a node's network.
    pub sources: Vec<IpAddr>,
}

impl SteeredEnds {
    /// To be filled again, in the memory that there is.
    pub fn clear(&mut self) {
        self.at = 0;
        self.frontends.clear();
        self.by_address.clear();
        self.sources.clear();
        self.backends.iter_mut().for_each(Vec::clear);
    }

    /// To be added to by the engine of another worker.
    pub fn rewind(&mut self) {
        self.at = 0;
    }

    /// Each end once, whoever named it.
    pub fn dedup(&mut self) {
        let ends = [&mut self.frontends, &mut self.by_address];
        for ends in ends.into_iter().chain(&mut self.backends) {
            ends.sort_unstable();
            ends.dedup();
        }
        self.sources.sort_unstable();
        self.sources.dedup();
    }
}

impl Prepared {
    /// The frontends that it brings or keeps: to be steered to us before it comes into force.
    #[must_use]
    pub fn frontends(&self) -> Vec<(IpAddr, u16)> {
        self.ends(|affinity| !affinity)
    }

    /// Those of policies with affinity, likewise.
    #[must_use]
    pub fn by_address(&self) -> Vec<(IpAddr, u16)> {
        self.ends(|affinity| affinity)
    }

    fn ends(&self, wanted: impl Fn(bool) -> bool) -> Vec<(IpAddr, u16)> {
        let policies = self.policies.iter();
        let of = policies.filter(|p| wanted(p.spec.affinity.is_some()));
        of.flat_map(|p| p.frontends.iter().map(end)).collect()
    }

    /// The backends, likewise.
    #[must_use]
    pub fn backends(&self) -> Vec<(IpAddr, u16)> {
        self.named.keys().map(end).collect()
    }
}

fn end((addr, port): &(Addr, u16)) -> (IpAddr, u16) {
    (from_addr(*addr), *port)
}

impl Engine {
    /// Goes on with gathering what is to be steered; whether it is complete.
    pub fn steering_piece(&self, ends: &mut SteeredEnds) -> bool {
        let (from, to) = (ends.at, ends.at + SLOTS_AT_ONCE);
        let slots = |len: usize| from.min(len)..to.min(len);
        let frontends = &self.frontends[slots(self.frontends.len())];
        let needed = frontends.iter().filter(|f| f.listed || f.flows > 0);
        for frontend in needed {
            let policy = &self.policies[usize::from(frontend.policy)];
            let list = match policy.spec.affinity {
                Some(_) => &mut ends.by_address,
                None => &mut ends.frontends,
            };
            list.push(end(&(frontend.addr, frontend.port)));
        }
        if self.net.shares_ports {
            let backends = &self.backends[slots(self.backends.len())];
            let used = backends.iter().filter(|b| b.listed || b.ports.used() > 0);
            let used = used.map(|b| end(&(b.addr, b.port)));
            ends.backends.get_or_insert_default().extend(used);
        }
        ends.at = to;
        let done = to >= self.frontends.len().max(self.backends.len());
        if done {
            ends.sources.extend_from_slice(&self.net.host_addresses);
        }
        done
    }

    /// All of it at once, however long that takes.
    #[must_use]
    pub fn steering(&self) -> SteeredEnds {
        let mut ends = SteeredEnds::default();
        while !self.steering_piece(&mut ends) {}
        ends
    }
}
