//! Transfers between nodes (`docs/adoption-wire.md`): a pod's host-shim listens in its network
//! namespace, and another one connects there from the namespace of the pod that has the connection.
//! So no node's address is needed, the namespace says which pod is meant, and what policies there
//! are between the two pods holds. Owns the settings, the limits and the figures.

pub mod channel;
pub mod channels;
pub mod heir;
#[cfg(test)]
mod heir_tests;
pub mod heirs;
pub mod offered;
pub mod session;
pub mod wire;

use std::time::Duration;

/// Channels in all: one for each pair of pods that hand connections on to each other, in each
/// direction. Each holds a descriptor and, at rest, a few hundred bytes.
pub const CHANNELS_MAX: usize = 256;
/// Those that came in and whose peer has not shown that it has the key, of one pod and of all: more
/// than nodes begin at one moment. The oldest makes room.
pub const PENDING_OF_POD_MAX: usize = 16;
pub const PENDING_MAX: usize = 64;
/// What all channels keep of what they hear and say: an eighth of the memory that the chart gives
/// host-shim. Full queues of four connections.
pub const BYTES_MAX: usize = 32 << 20;
/// A handshake takes two round trips.
pub const HANDSHAKE_FOR: Duration = Duration::from_secs(1);
/// A channel that is used no more ends: another Transfer between the pods makes a new one.
pub const IDLE_FOR: Duration = Duration::from_secs(30);
/// A peer that acknowledges nothing for so long is gone (`TCP_USER_TIMEOUT`).
pub const UNACKNOWLEDGED_MS: u32 = 1_000;
/// From the first word of an offered connection until it is ready: the lease that its node's
/// adopter gives (`LEASE_NS` of `bpf/asked.h`).
pub const OFFERED_FOR: Duration = Duration::from_millis(200);
/// For so long a restored connection waits for Go, and Go is said. Within it the client repeats
/// some three times; a channel that broke is made anew many times.
pub const READY_FOR: Duration = Duration::from_secs(2);
/// Between two channels that are tried for one Go.
pub const GO_AGAIN: Duration = Duration::from_millis(50);
/// What is said of a Go that comes a second time is remembered of as many.
pub const SPOKEN_MAX: usize = 1_024;

/// What is configured, and the keys of all host-shims, the one to begin channels with first.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// 0: within the node only.
    pub port: u16,
    pub keys: Vec<session::Key>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").field("port", &self.port).finish_non_exhaustive()
    }
}

impl Settings {
    pub fn are_usable(&self) -> bool {
        self.port != 0 && !self.keys.is_empty()
    }
}

/// Why a channel has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantArray, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Cut {
    /// The other side ended it, or the network.
    Ended,
    Idle,
    /// Its pod is gone, or has no application any more, or its key has ended.
    Left,
    /// Its peer did not show within a second that it has the key.
    Late,
    /// It made room for a newer one that has not shown it either.
    PushedOut,
    TooMany,
    /// Its peer has another version, or an epoch that is not had here.
    UnknownEpoch,
    /// Its peer has not the key.
    Unauthentic,
    /// Its peer said what is no message, or is too long.
    Malformed,
    /// All channels together keep too much.
    Memory,
    /// Its peer's pod is in another namespace of Kubernetes.
    OtherNamespace,
}

impl Cut {
    /// All, in the order of their numbers.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// For metrics.
    pub fn label(self) -> &'static str {
        self.into()
    }
}
