//! Why a port cannot be opened, and what this process lacks, in words that say what to change.

use crate::mode::Mode;
use std::{fmt, io};

/// Why a port cannot be opened or its steering not be changed. Fatal for that call; nothing stays
/// attached.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A size is not possible.
    #[error("{field} = {value} is not possible: expected {expected}")]
    Config {
        /// Name of the field of [`crate::Config`].
        field: &'static str,
        /// What it was.
        value: u64,
        /// What it may be.
        expected: &'static str,
    },
    /// The UMEM is too small for the rings.
    #[error(
        "frames = {frames} is too small: {queues} queue(s) with these rings need at least {needed}; raise it, set 0 for that number, or make the rings smaller"
    )]
    TooFewFrames {
        /// What it was.
        frames: u32,
        /// Queues of the interface.
        queues: u32,
        /// What it must be at least.
        needed: u32,
    },
    /// More than one thread cannot share the frames here.
    #[error("workers = {workers} is not possible {here}: set `workers` to auto or 1{then}")]
    Workers {
        /// How many were asked for.
        workers: u32,
        /// Where it is not.
        here: String,
        /// What would make it possible.
        then: &'static str,
    },
    /// The interface's frames do not fit a buffer of this mode.
    #[error(
        "{interface} has an MTU of {mtu}, and {mode} mode takes one of {max} at most: {}",
        if *mode == Mode::Packet { "lower it" } else { "use mode packet or auto" }
    )]
    MtuTooLarge {
        /// Name of the interface.
        interface: String,
        /// Its MTU.
        mtu: u32,
        /// The mode tried.
        mode: Mode,
        /// The largest MTU of that mode.
        max: u32,
    },
    /// No such interface in this network namespace.
    #[error(
        "there is no interface `{name}` in this network namespace; there are: {}",
        existing.join(", ")
    )]
    NoInterface {
        /// What was asked for.
        name: String,
        /// Those that exist.
        existing: Vec<String>,
    },
    /// The interface is administratively down.
    #[error("{name} is down: `ip link set {name} up`")]
    InterfaceDown {
        /// Name of the interface.
        name: String,
    },
    /// Something that packet I/O needs is not allowed to this process.
    #[error("this process lacks {0}")]
    Missing(MissingList),
    /// The kernel was built without AF_XDP.
    #[error(
        "this kernel has no AF_XDP sockets: it needs CONFIG_XDP_SOCKETS=y (Linux 5.11 or newer); use mode packet otherwise"
    )]
    NoAfXdp,
    /// The UMEM cannot be locked into memory.
    #[error(
        "cannot lock {bytes} bytes of packet buffers: raise RLIMIT_MEMLOCK (`ulimit -l`, LimitMEMLOCK=), add CAP_IPC_LOCK, or lower frames and the rings"
    )]
    Memlock {
        /// Bytes wanted.
        bytes: u64,
    },
    /// Somebody else's XDP program is there; it stays.
    #[error(
        "{name} has another XDP program already (id {id}), which is not replaced: detach it or use mode packet"
    )]
    XdpOccupied {
        /// Name of the interface.
        name: String,
        /// The program's id, 0 if it cannot be asked for.
        id: u32,
    },
    /// The driver refuses the XDP program.
    #[error("{name} refuses an XDP program in {mode} mode: {why}")]
    XdpRefused {
        /// Name of the interface.
        name: String,
        /// The mode tried.
        mode: Mode,
        /// What is in the way.
        why: String,
    },
    /// Another AF_XDP socket has the queue.
    #[error("queue {queue} of {name} is in use by another AF_XDP socket: stop its process")]
    QueueBusy {
        /// Name of the interface.
        name: String,
        /// The queue.
        queue: u32,
    },
    /// What to steer makes no sense.
    #[error("steering: {problem}")]
    Steering {
        /// What is wrong.
        problem: String,
    },
    /// The BPF loader failed.
    #[error("{operation}: {source}")]
    Bpf {
        /// What was being done.
        operation: &'static str,
        /// Why it failed.
        source: libbpf_rs::Error,
    },
    /// A call of the kernel failed.
    #[error("{operation}: {source}")]
    Kernel {
        /// What was being done.
        operation: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// No mode works.
    #[error("no mode works on {name}: {}", list(reasons))]
    NoMode {
        /// Name of the interface.
        name: String,
        /// Each mode with its reason.
        reasons: Vec<(Mode, String)>,
    },
}

fn list(reasons: &[(Mode, String)]) -> String {
    let mut text = String::new();
    for (mode, reason) in reasons {
        if !text.is_empty() {
            text.push_str("; ");
        }
        text.push_str(mode.label());
        text.push_str(": ");
        text.push_str(reason);
    }
    text
}

impl OpenError {
    pub(crate) fn kernel(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Kernel { operation, source }
    }

    pub(crate) fn bpf(operation: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Self {
        move |source| Self::Bpf { operation, source }
    }
}

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
