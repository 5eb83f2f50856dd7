//! What the kernel steers to the packet threads, changed beside them.
//!
//! Owns the order: what a snapshot or a route brings is steered before the engine has it, and what
//! went is steered until the engine says that no open flow needs it. Whoever calls sees to it that
//! no snapshot comes into force between that word and [`Steerer::set`]. What the kernel refuses is
//! counted, and right again with the next [`Steerer::set`].
//!
//! # Decisions
//!
//! - **What is steered is changed beside the packet thread** (`lb-dataplane/src/steering.rs`,
//!   `xsk/src/matched.rs`): a change takes a system call for each entry, 91 ms where 16,384
//!   frontends and 4,096 backends are replaced, and comparing them 5 ms where one is. What a
//!   snapshot or a route brings is steered before the engine has it, or the kernel would refuse the
//!   answers of new backends on a node's network; what went is steered until the engine says, once
//!   a second and after each snapshot, that no open flow needs it, and nothing comes into force
//!   between that word and what follows from it.

use baton_engine::{Prepared, SteeredEnds};
use baton_packet::Mac;
use baton_xsk::{ADDRESSES_MAX, OpenError, Steering, SteeringMaps};
use std::{
    collections::BTreeSet,
    net::IpAddr,
    ops::RangeInclusive,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};
use tracing::{debug, error};

/// The kernel's maps, or what stands for them.
pub trait Maps: Send {
    /// Steers this, too.
    ///
    /// # Errors
    /// The kernel refuses.
    fn add(&mut self, steering: &Steering) -> Result<(), OpenError>;
    /// Steers this and nothing else.
    ///
    /// # Errors
    /// The kernel refuses.
    fn set(&mut self, steering: &Steering) -> Result<(), OpenError>;
    /// Steers what is sent to this hardware address.
    ///
    /// # Errors
    /// The kernel refuses.
    fn set_mac(&mut self, mac: Mac) -> Result<(), OpenError>;
}

impl Maps for SteeringMaps {
    fn add(&mut self, steering: &Steering) -> Result<(), OpenError> {
        Self::add(self, steering)
    }

    fn set(&mut self, steering: &Steering) -> Result<(), OpenError> {
        Self::set(self, steering)
    }

    fn set_mac(&mut self, mac: Mac) -> Result<(), OpenError> {
        Self::set_mac(self, mac.0)
    }
}

/// Ports of the frontends that are steered at this moment, for whoever must not use them.
pub type SteeredPorts = Arc<Mutex<BTreeSet<u16>>>;

/// Changes what is steered. Its calls take up to tens of milliseconds. Cheap to clone.
#[derive(Clone)]
pub struct Steerer {
    parts: Arc<Mutex<Parts>>,
    failures: Arc<AtomicU64>,
    ports: SteeredPorts,
}

struct Parts {
    maps: Box<dyn Maps>,
    /// The dataplane's own addresses and ports.
    own: Vec<IpAddr>,
    ports: RangeInclusive<u16>,
    /// Only what comes from backends is a leg's.
    known_backends: bool,
    /// Addresses of the host that legs may come from by the routes in force.
    sources: Vec<IpAddr>,
}

impl Parts {
    fn steering(
        &self,
        [frontends, by_address]: [Vec<(IpAddr, u16)>; 2],
        backends: Vec<(IpAddr, u16)>,
        of_legs: &[IpAddr],
    ) -> Steering {
        let all = [&self.own, of_legs, &self.sources].into_iter().flatten();
        Steering {
            frontends,
            by_address,
            // A host with more has its first ones.
            addresses: all.copied().take(ADDRESSES_MAX).collect(),
            ports: self.ports.clone(),
            backends: self.known_backends.then_some(backends),
        }
    }
}

impl Steerer {
    /// Of the dataplane with these addresses and ports, which with `known_backends` others use,
    /// too.
    pub fn new(
        maps: Box<dyn Maps>,
        own: Vec<IpAddr>,
        ports: RangeInclusive<u16>,
        known_backends: bool,
    ) -> Self {
        let parts = Parts { maps, own, ports, known_backends, sources: Vec::new() };
        Self { parts: Arc::new(Mutex::new(parts)), failures: Arc::default(), ports: Arc::default() }
    }

    /// How often the kernel refused a change.
    pub fn failures(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.failures)
    }

    /// The ports of frontends that are steered here.
    pub fn ports(&self) -> SteeredPorts {
        Arc::clone(&self.ports)
    }

    fn steered(&self) -> MutexGuard<'_, BTreeSet<u16>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A snapshot is about to come into force.
    pub fn add(&self, prepared: &Prepared) {
        self.change(|parts| {
            let frontends = [prepared.frontends(), prepared.by_address()];
            let ports = frontends.iter().flatten().map(|(_, port)| *port);
            self.steered().extend(ports);
            let steering = parts.steering(frontends, prepared.backends(), &[]);
            parts.maps.add(&steering)
        });
    }

    /// Routes are about to come into force by which legs may come from these addresses.
    pub fn set_sources(&self, sources: &[IpAddr]) {
        self.change(|parts| {
            parts.sources = sources.to_vec();
            let steering = parts.steering(Default::default(), Vec::new(), &[]);
            parts.maps.add(&steering)
        });
    }

    /// The interface has this hardware address.
    pub fn set_mac(&self, mac: Mac) {
        self.change(|parts| parts.maps.set_mac(mac));
    }

    /// The engine needs this and nothing else.
    pub fn set(&self, ends: &mut SteeredEnds) {
        self.change(|parts| {
            let frontends = [&mut ends.frontends, &mut ends.by_address].map(std::mem::take);
            let backends = ends.backends.take().unwrap_or_default();
            let steering = parts.steering(frontends, backends, &ends.sources);
            let result = parts.maps.set(&steering);
            if result.is_ok() {
                let ends = steering.frontends.iter().chain(&steering.by_address);
                *self.steered() = ends.map(|(_, port)| *port).collect();
            }
            debug!(
                frontends = steering.frontends.len() + steering.by_address.len(),
                "steering looked over"
            );
            (ends.frontends, ends.by_address) = (steering.frontends, steering.by_address);
            ends.backends = steering.backends;
            result
        });
    }

    fn change(&self, change: impl FnOnce(&mut Parts) -> Result<(), OpenError>) {
        // What a panic left in the maps the next call sets right.
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = change(&mut parts) {
            self.failures.fetch_add(1, Ordering::Relaxed);
            error!(%error, "what clients and backends send cannot be steered to this dataplane; it is tried again every second");
        }
    }
}
