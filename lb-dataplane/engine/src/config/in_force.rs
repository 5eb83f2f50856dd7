//! What is in force, as whoever makes a snapshot ready sees it, and why one is not taken.
//!
//! Owns these forms alone: `sift` chooses by them, `prepare` makes ready, `apply` puts in force.

use crate::{
    balance::maglev::Maglev,
    containers::pace::Share,
    engine::Settings,
    ids::{Addr, to_addr},
    net::sources::Sources,
};
use baton_api::{Endpoint, SnapshotError};
use std::{net::IpAddr, ops::RangeInclusive, sync::Arc};

/// Why a snapshot was not applied. Nothing has changed then.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ApplyError {
    /// The snapshot contradicts itself, or the dataplane.
    #[error(transparent)]
    Invalid(#[from] SnapshotError),
    /// An older one than what is in force.
    #[error("generation {offered} is older than {current}, which is in force")]
    Stale {
        /// The snapshot's.
        offered: u64,
        /// In force.
        current: u64,
    },
    /// A frontend's port is a leg port on the dataplane's own address.
    #[error(
        "{path}: port {port} is in the range of leg ports {first}-{last}: choose another port or range"
    )]
    PortConflict {
        /// Where.
        path: String,
        /// The port.
        port: u16,
        /// Range of leg ports.
        first: u16,
        /// Its end.
        last: u16,
    },
    /// A table of fixed size is full.
    #[error(transparent)]
    NoRoom(SnapshotError),
    /// More distinct backends than the table holds.
    #[error("{needed} backends are more than limits.backends, {limit}")]
    TooManyBackends {
        /// In the snapshot and still closing.
        needed: usize,
        /// The table's size.
        limit: u16,
    },
    /// It was made ready for something else than what is in force.
    #[error("the snapshot was made ready beside another one than is in force: please report this")]
    Astray,
}

impl ApplyError {
    /// Whether a table is full: that passes when flows end.
    #[must_use]
    pub fn is_room(&self) -> bool {
        matches!(self, Self::NoRoom(_) | Self::TooManyBackends { .. })
    }
}

/// What a Maglev table is made of: identities and shares, in the order of the members.
pub(crate) type Rows = Vec<(u64, u16)>;

/// An address and port, of a backend or a frontend.
pub(crate) type End = (Addr, u16);

/// What is fixed for an engine's life and matters here.
#[derive(Clone)]
pub(crate) struct Fixed {
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) ports: RangeInclusive<u16>,
    /// Of legs, by family.
    pub(crate) numbers: [usize; 2],
    pub(crate) backends: u16,
    pub(crate) share: Share,
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

pub(crate) fn end_of(endpoint: Endpoint) -> End {
    (to_addr(endpoint.address()), endpoint.port())
}
