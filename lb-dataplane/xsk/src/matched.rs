//! The maps of what the steering programs match.
//!
//! Owns them and what is in them. A change takes a system call for each entry: some microseconds
//! for a few, tens of milliseconds for all that can be, so it is not for the thread that serves
//! frames. The programs see each entry as it comes; nothing waits for a change.

use crate::{
    config::{Steering, mapped},
    error::OpenError,
};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, Ipv6Addr},
    ops::RangeInclusive,
};

/// `ADDRESS_OWN` of `bpf/match.h`.
const ADDRESS_OWN: u32 = 1;
/// `ADDRESS_FRONTEND` of `bpf/match.h`.
const ADDRESS_FRONTEND: u32 = 2;

/// `END_FRONTEND` and `END_FRONTEND_BY_ADDRESS` of `bpf/match.h`; of backends only that they are
/// there counts.
const END_FRONTEND: u8 = 2;
const END_FRONTEND_BY_ADDRESS: u8 = 3;

#[derive(Debug, PartialEq, Eq, Hash, Clone, Copy)]
struct Endpoint(Ipv6Addr, u16);

impl Endpoint {
    /// `struct endpoint` of `bpf/match.h`.
    fn key(self) -> [u8; 20] {
        let mut key = [0; 20];
        key[..16].copy_from_slice(&self.0.octets());
        key[16..18].copy_from_slice(&self.1.to_be_bytes());
        key
    }
}

/// What one port's programs match. For one thread at a time, which need not be the port's.
pub struct SteeringMaps {
    frontends: Endpoints,
    backends: Endpoints,
    pub(crate) addresses: MapHandle,
    addresses_now: HashMap<Ipv6Addr, u32>,
    pub(crate) settings: MapHandle,
    fixed: Fixed,
}

/// Where the settings have the hardware address.
const MAC_AT: usize = 24;

/// What no snapshot changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fixed {
    /// Of a frame at most.
    pub(crate) frame_bytes: u32,
    /// Threads that share the frames.
    pub(crate) workers: u32,
    /// Secret.
    pub(crate) hash_seed: u32,
    /// The interface's: what is sent to another one is another host's.
    pub(crate) mac: [u8; 6],
}

impl Fixed {
    /// `struct settings` of `bpf/match.h`.
    fn settings(self, steering: &Steering) -> [u8; 32] {
        let (low, high) = (*steering.ports.start(), *steering.ports.end());
        let ports = u32::from(low) << 16 | u32::from(high);
        let blocks = blocks(&steering.ports, self.workers);
        let words = [
            ports,
            self.frame_bytes,
            u32::from(steering.backends.is_some()),
            self.workers,
            blocks,
            self.hash_seed,
        ];
        let mut settings = [0; 32];
        settings[MAC_AT..MAC_AT + 6].copy_from_slice(&self.mac);
        for (bytes, word) in settings.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        settings
    }
}

/// Leg ports of each worker; the last one also has what does not divide.
fn blocks(ports: &RangeInclusive<u16>, workers: u32) -> u32 {
    ((ports.len() as u32) / workers).max(1)
}

/// The leg ports of one of `workers` threads: blocks of equal size, and what does not divide is
/// nobody's.
///
/// # Panics
/// There is no such worker, or there are more of them than ports.
#[must_use]
pub fn ports_of(ports: &RangeInclusive<u16>, worker: u32, workers: u32) -> RangeInclusive<u16> {
    assert!(worker < workers && workers as usize <= ports.len());
    let block = blocks(ports, workers);
    let first = u32::from(*ports.start()) + worker * block;
    // Both are in the range, which is of u16.
    first as u16..=(first + block - 1) as u16
}

/// A map of endpoints, and what is in it.
struct Endpoints {
    map: MapHandle,
    now: HashSet<Endpoint>,
}

impl Endpoints {
    fn new(map: MapHandle) -> Self {
        let now = HashSet::new();
        Self { map, now }
    }

    /// What is there stays as it is: another value would lead flows that are open to another
    /// worker.
    fn add(&mut self, wanted: &HashMap<Endpoint, u8>) -> libbpf_rs::Result<()> {
        for (endpoint, value) in wanted {
            if !self.now.contains(endpoint) {
                self.map.update(&endpoint.key(), &[*value], MapFlags::ANY)?;
                self.now.insert(*endpoint);
            }
        }
        Ok(())
    }

    /// Removes what is wanted no longer.
    fn keep(&mut self, wanted: &HashMap<Endpoint, u8>) -> libbpf_rs::Result<()> {
        let gone = |now: &&Endpoint| !wanted.contains_key(now);
        let old: Vec<_> = self.now.iter().filter(gone).copied().collect();
        for endpoint in old {
            self.map.delete(&endpoint.key())?;
            self.now.remove(&endpoint);
        }
        Ok(())
    }
}

/// What a steering comes to in the maps.
struct Entries {
    frontends: HashMap<Endpoint, u8>,
    backends: HashMap<Endpoint, u8>,
    addresses: HashMap<Ipv6Addr, u32>,
}

impl Entries {
    fn of(steering: &Steering) -> Result<Self, OpenError> {
        steering.check()?;
        let endpoints = |given: &[(IpAddr, u16)], value| {
            let all = given.iter();
            all.map(|(address, port)| (Endpoint(mapped(*address), *port), value))
                .collect::<HashMap<_, _>>()
        };
        let mut frontends = endpoints(&steering.frontends, END_FRONTEND);
        frontends.extend(endpoints(&steering.by_address, END_FRONTEND_BY_ADDRESS));
        let mut addresses = HashMap::new();
        let mut flag =
            |address: IpAddr, flag| *addresses.entry(mapped(address)).or_insert(0) |= flag;
        for (address, _) in steering.frontends.iter().chain(&steering.by_address) {
            flag(*address, ADDRESS_FRONTEND);
        }
        for address in &steering.addresses {
            flag(*address, ADDRESS_OWN);
        }
        Ok(Self {
            frontends,
            backends: endpoints(steering.backends.as_deref().unwrap_or_default(), 1),
            addresses,
        })
    }
}

fn failed() -> impl FnOnce(libbpf_rs::Error) -> OpenError {
    OpenError::bpf("changing what is steered")
}

impl SteeringMaps {
    /// Maps in which nothing is.
    pub(crate) fn new(
        [frontends, backends, addresses, settings]: [MapHandle; 4],
        fixed: Fixed,
    ) -> Self {
        Self {
            frontends: Endpoints::new(frontends),
            backends: Endpoints::new(backends),
            addresses,
            addresses_now: HashMap::new(),
            settings,
            fixed,
        }
    }

    /// Matches this too, beside what is matched.
    ///
    /// # Errors
    /// The steering makes no sense (nothing changed), or the kernel refused (what was new may be
    /// matched already, nothing old is lost; a later call sets it right).
    pub fn add(&mut self, steering: &Steering) -> Result<(), OpenError> {
        self.add_entries(&Entries::of(steering)?)
    }

    /// Matches this and nothing else. What is matched before and after is matched all the time: the
    /// new comes before the old goes, and the port range changes in one store.
    ///
    /// # Errors
    /// As of [`Self::add`].
    pub fn set(&mut self, steering: &Steering) -> Result<(), OpenError> {
        let wanted = Entries::of(steering)?;
        self.add_entries(&wanted)?;
        let settings = self.fixed.settings(steering);
        self.settings.update(&0_u32.to_ne_bytes(), &settings, MapFlags::ANY).map_err(failed())?;
        let old: Vec<_> = self.addresses_now.keys().copied().collect();
        for address in old {
            let flags = wanted.addresses.get(&address).copied().unwrap_or(0);
            self.set_address(address, flags)?;
        }
        self.frontends.keep(&wanted.frontends).map_err(failed())?;
        self.backends.keep(&wanted.backends).map_err(failed())
    }

    /// The interface has another hardware address from now on.
    ///
    /// # Errors
    /// The kernel refused; the next [`Self::set`] sets it right.
    pub fn set_mac(&mut self, mac: [u8; 6]) -> Result<(), OpenError> {
        self.fixed.mac = mac;
        let key = 0_u32.to_ne_bytes();
        let settings = self.settings.lookup(&key, MapFlags::ANY).map_err(failed())?;
        let mut settings = settings.unwrap_or_default();
        if let Some(own) = settings.get_mut(MAC_AT..MAC_AT + 6) {
            own.copy_from_slice(&mac);
            self.settings.update(&key, &settings, MapFlags::ANY).map_err(failed())?;
        }
        Ok(())
    }

    fn add_entries(&mut self, wanted: &Entries) -> Result<(), OpenError> {
        self.frontends.add(&wanted.frontends).map_err(failed())?;
        self.backends.add(&wanted.backends).map_err(failed())?;
        for (address, flags) in &wanted.addresses {
            let now = self.addresses_now.get(address).copied().unwrap_or(0);
            self.set_address(*address, now | flags)?;
        }
        Ok(())
    }

    fn set_address(&mut self, address: Ipv6Addr, flags: u32) -> Result<(), OpenError> {
        let failed = || OpenError::bpf("changing which addresses are steered");
        let key = address.octets();
        if self.addresses_now.get(&address) == Some(&flags) {
            return Ok(());
        }
        if flags == 0 {
            self.addresses.delete(&key).map_err(failed())?;
            self.addresses_now.remove(&address);
        } else {
            self.addresses.update(&key, &flags.to_ne_bytes(), MapFlags::ANY).map_err(failed())?;
            self.addresses_now.insert(address, flags);
        }
        Ok(())
    }

    /// Addresses and ports of frontends.
    pub(crate) fn frontends(&self) -> &MapHandle {
        &self.frontends.map
    }

    /// Who answers to legs.
    pub(crate) fn backends(&self) -> &MapHandle {
        &self.backends.map
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> [usize; 3] {
        [self.frontends.now.len(), self.backends.now.len(), self.addresses_now.len()]
    }
}
