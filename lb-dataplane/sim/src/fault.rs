//! The kinds of faults, and the single things that happen to a world.
//!
//! Owns their names. When they happen is drawn in `swarm`, what they do is in `world`.

use crate::clock::Time;

/// Kinds of faults, as swarm testing switches them and the summary counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantArray)]
#[repr(u8)]
pub enum Fault {
    /// Links lose frames.
    Loss,
    /// Links deliver frames twice.
    Duplicates,
    /// Links reorder frames.
    Reordering,
    /// Links flip bits.
    Corruption,
    /// Links are cut for a while.
    Partition,
    /// Pods' processes die and start again.
    Crash,
    /// Processes stop for a while.
    Freeze,
    /// Processes close their listener while they serve on.
    Unlisten,
    /// Adopters are taken off and put back.
    Adopter,
    /// Accept queues are short and processes accept late.
    AcceptQueue,
    /// Processes read and answer late and in pieces.
    Lateness,
    /// Processes close idle connections, announce closes and reset.
    PodCloses,
    /// Clients reset, half-close, read slowly, write in pieces.
    OddClients,
    /// Snapshots change backends.
    Backends,
    /// Snapshots change policies.
    Policies,
    /// Backends drain, by snapshot or by command; single flows are asked to move.
    Drains,
    /// Keys are rotated.
    Keys,
    /// Somebody sends forged and repeated adoptions, answers and resets.
    Attacks,
    /// No frame is free for a while.
    Frames,
    /// Tables are small.
    SmallTables,
    /// The neighbour table forgets.
    Neighbours,
    /// Active checks come and go.
    Checks,
    /// The worker comes late to its timers.
    LatePolls,
}

impl Fault {
    /// All of them.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// The name in the summary.
    #[must_use]
    pub fn name(self) -> String {
        format!("{self:?}")
    }
}

/// One thing that happens to a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// A process is killed.
    Crash(usize),
    /// It starts again; with `true` in a new network namespace.
    Restart(usize, bool),
    /// A process stops or goes on.
    Freeze(usize, bool),
    /// Each answer of a process takes so much longer from now on.
    Slow(usize, Time),
    /// A process closes its listener or listens again.
    Listen(usize, bool),
    /// An adopter is attached or not.
    Adopter(usize, bool),
    /// `net.ipv4.tcp_syncookies`.
    Syncookies(usize, bool),
    /// A backend is in the snapshot or not.
    Listed(usize, bool),
    /// A backend drains by snapshot or not.
    Draining(usize, bool),
    /// A backend drains by command or not.
    Command(usize, bool),
    /// Somebody asks for a move of some flow.
    Migrate(u64),
    /// A backend's weight.
    Weight(usize, u16),
    /// The policy changes in some way.
    Policy(u64),
    /// A pod gets the keys of these two epochs.
    PodKeys(usize, u8),
    /// The dataplane signs with this epoch.
    OurKeys(u8),
    /// A pod's link-layer address is known or not.
    Neighbour(usize, bool),
    /// An active check's finding.
    Checked(usize, Option<bool>),
    /// Free frames for the engine's own segments, or none.
    Frames(bool),
    /// Somebody sends something that he should not.
    Attack(u64),
}
