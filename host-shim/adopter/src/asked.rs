//! What only user space can decide, as `bpf/asked.h` has it: how a fate is read and written. Owns
//! that layout and the lease.

use crate::Error;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use rustix::time::{ClockId, clock_gettime};
use std::{io, time::Duration};

/// `struct asked`, which begins with the state.
pub(crate) const FATE_BYTES: usize = 16;
const TOLD_AT: usize = 8;
/// `LEASE_NS`.
const LEASE_NS: u64 = 200_000_000;

/// `enum asked_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Undecided; so long it may still be acted upon, if at all.
    Asked(Option<Duration>),
    /// Done as asked.
    Done,
    /// Not done.
    Kept,
}

impl Fate {
    /// What became of `ask`, the key in a table of that name; `None` if it is not there (any more).
    pub(crate) fn read(
        table: &MapHandle,
        name: &'static str,
        ask: &[u8],
    ) -> Result<Option<Self>, Error> {
        let found = table.lookup(ask, MapFlags::ANY).map_err(|e| map_error(name, "reading", &e))?;
        let fate = found.and_then(|fate| {
            let told = u64::from_ne_bytes(*fate.get(TOLD_AT..)?.first_chunk()?);
            match u32::from_ne_bytes(*fate.first_chunk()?) {
                1 => {
                    let left = (told + LEASE_NS).checked_sub(now_ns());
                    Some(Self::Asked(left.map(Duration::from_nanos)))
                }
                2 => Some(Self::Done),
                3 => Some(Self::Kept),
                _ => None,
            }
        });
        Ok(fate)
    }

    /// Decides. Nobody else changes an entry that is asked about meanwhile; one that made room for
    /// others is not made again.
    pub(crate) fn write(self, table: &MapHandle, ask: &[u8]) -> Result<(), libbpf_rs::Error> {
        let state: u32 = match self {
            Self::Asked(_) => 1,
            Self::Done => 2,
            Self::Kept => 3,
        };
        let mut fate = [0; FATE_BYTES];
        fate[..4].copy_from_slice(&state.to_ne_bytes());
        table.update(ask, &fate, MapFlags::EXIST)
    }
}

/// CLOCK_MONOTONIC, as `bpf_ktime_get_ns` has it.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Both fields are non-negative on a monotonic clock.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

pub(crate) fn map_error(map: &'static str, operation: &'static str, e: &libbpf_rs::Error) -> Error {
    Error::Map { map, operation, source: io::Error::other(e.to_string()) }
}
