//! What this process is allowed to do, in words. Asks the kernel, changes nothing.

use crate::{
    config::QUEUE_BYTES_MAX,
    error::{Missing, MissingList},
};

/// Memory that a port with the default sizes and one queue locks at most.
const MEMLOCK_WANTED_BYTES: u64 = QUEUE_BYTES_MAX as u64;

/// What is missing for packet I/O in the calling thread; empty if nothing.
///
/// `CapPerfmon` and `Memlock` matter for AF_XDP only, the latter only with rings near the default
/// sizes; the others for every mode.
#[must_use]
pub fn probe_capabilities() -> Vec<Missing> {
    use rustix::thread::CapabilitySet as Set;
    let mut missing = Vec::new();
    // Without an answer nothing is claimed to be missing: the calls themselves will say.
    let effective = rustix::thread::capabilities(None).map_or(Set::all(), |sets| sets.effective);
    for (capability, name) in
        [(Set::NET_RAW, Missing::CapNetRaw), (Set::NET_ADMIN, Missing::CapNetAdmin)]
    {
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

/// Whether the verifier takes programs that add to packet pointers (Linux 5.8:
/// `bpf_allow_ptr_leaks`).
pub(crate) fn may_compute_with_packets() -> bool {
    !probe_capabilities().contains(&Missing::CapPerfmon)
}

/// What is missing for every mode.
pub(crate) fn missing_for_any_mode() -> Option<MissingList> {
    let mut missing = probe_capabilities();
    missing.retain(|m| !matches!(m, Missing::CapPerfmon | Missing::Memlock(_)));
    (!missing.is_empty()).then_some(MissingList(missing))
}
