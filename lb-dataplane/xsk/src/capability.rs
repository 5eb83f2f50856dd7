//! What this process is allowed to do, in words. Asks the kernel, changes nothing.

use crate::config::QUEUE_BYTES_MAX;
use std::fmt;

/// One thing that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Missing {
    /// Raw sockets and AF_XDP sockets.
    CapNetRaw,
    /// Attaching programs to an interface.
    CapNetAdmin,
    /// Loading programs and making maps.
    CapBpf,
    /// Loading programs that compute with packet pointers, as those of AF_XDP do.
    CapPerfmon,
    /// Locking more memory than RLIMIT_MEMLOCK allows; the limit in bytes.
    Memlock(u64),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CapNetRaw => f.write_str("CAP_NET_RAW (to open packet and AF_XDP sockets)"),
            Self::CapNetAdmin => {
                f.write_str("CAP_NET_ADMIN (to attach the steering program to the interface)")
            }
            Self::CapBpf => f.write_str("CAP_BPF (to load the steering program)"),
            Self::CapPerfmon => {
                f.write_str("CAP_PERFMON (without it the kernel refuses the XDP program)")
            }
            Self::Memlock(limit) => write!(
                f,
                "locked memory (RLIMIT_MEMLOCK is {limit} bytes and there is no CAP_IPC_LOCK)"
            ),
        }
    }
}

/// Several missing things, joined for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingList(pub Vec<Missing>);

impl fmt::Display for MissingList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, missing) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            missing.fmt(f)?;
        }
        Ok(())
    }
}

/// Memory that a port with the default sizes and one queue locks at most.
const MEMLOCK_WANTED_BYTES: u64 = QUEUE_BYTES_MAX as u64;

/// What is missing for packet I/O in the calling thread; empty if nothing.
///
/// `CapPerfmon` and `Memlock` matter for AF_XDP only, the latter only with rings near the default sizes; the others for
/// every mode.
#[must_use]
pub fn probe_capabilities() -> Vec<Missing> {
    use rustix::thread::CapabilitySet as Set;
    let mut missing = Vec::new();
    // Without an answer nothing is claimed to be missing: the calls themselves will say.
    let effective = rustix::thread::capabilities(None).map_or(Set::all(), |sets| sets.effective);
    for (capability, name) in [
        (Set::NET_RAW, Missing::CapNetRaw),
        (Set::NET_ADMIN, Missing::CapNetAdmin),
    ] {
        if !effective.contains(capability) {
            missing.push(name);
        }
    }
    // CAP_SYS_ADMIN includes CAP_BPF for compatibility (Linux 5.8).
    if !effective.intersects(Set::BPF | Set::SYS_ADMIN) {
        missing.push(Missing::CapBpf);
    }
    if !effective.intersects(Set::PERFMON | Set::SYS_ADMIN) {
        missing.push(Missing::CapPerfmon);
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    if let Some(limit) = limit
        && limit < MEMLOCK_WANTED_BYTES
        && !effective.contains(Set::IPC_LOCK)
    {
        missing.push(Missing::Memlock(limit));
    }
    missing
}

/// Whether the verifier takes programs that add to packet pointers (Linux 5.8: `bpf_allow_ptr_leaks`).
pub(crate) fn may_compute_with_packets() -> bool {
    !probe_capabilities().contains(&Missing::CapPerfmon)
}

/// What is missing for every mode.
pub(crate) fn missing_for_any_mode() -> Option<MissingList> {
    let mut missing = probe_capabilities();
    missing.retain(|m| !matches!(m, Missing::CapPerfmon | Missing::Memlock(_)));
    (!missing.is_empty()).then_some(MissingList(missing))
}
