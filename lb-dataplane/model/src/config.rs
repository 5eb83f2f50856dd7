//! What one exploration assumes: pods, policy, network, faults and their number, and which
//! safeguards are on.
//!
//! Owns the knobs. Every number here bounds the state space; what the bounds leave out is said at
//! the head of the crate.

use crate::wire::Network;
use baton_engine::handover;

/// Most pods that a configuration can have.
pub const PODS_MAX: usize = 3;
/// Most requests that the client sends.
pub const REQUESTS_MAX: usize = 2;
/// Most units of all responses together.
pub const UNITS_MAX: usize = 4;
/// What keeps the protocol safe. [`Safeguards::ALL`] is the product; tests take one away and expect
/// a counterexample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Safeguards {
    /// Those of the dataplane's decisions: the engine's own.
    pub handover: handover::Safeguards,
    /// What the standby leg sends is not forwarded.
    pub fencing: bool,
    /// The adopter remembers what it refused: a later copy of the same adoption is refused too.
    pub refusals_are_final: bool,
    /// The adopter says `AlreadyAdopted` also where nothing listens any more.
    pub memory_outlives_listener: bool,
    /// The adopter remembers what it adopted.
    pub adoptions_are_remembered: bool,
    /// The adopter lets go of connections only whose application has read nothing of the request,
    /// and answered nothing.
    pub releases_are_of_unread: bool,
    /// A request whose response has begun is not sent again.
    pub begun_response_stays: bool,
}

impl Safeguards {
    /// All of them on.
    pub const ALL: Self = Self {
        handover: handover::Safeguards::ALL,
        fencing: true,
        refusals_are_final: true,
        memory_outlives_listener: true,
        adoptions_are_remembered: true,
        releases_are_of_unread: true,
        begun_response_stays: true,
    };
    /// Those that engine and adopter have.
    pub const SHIPPED: Self = Self::ALL;
}

/// How many faults of each kind may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Packets lost (counted network).
    pub losses: u8,
    /// Packets doubled (counted network).
    pub doubles: u8,
    /// Timers that end while packets are on their way (counted network; elsewhere they end at any
    /// time).
    pub early: u8,
    /// Processes killed, with their listeners and connections.
    pub crashes: u8,
    /// Killed processes that are started again.
    pub restarts: u8,
    /// Connections closed by their application for reasons of its own.
    pub closes: u8,
    /// Accept queues that fill up.
    pub full: u8,
    /// Pods that lose the key of the present epoch.
    pub keyless: u8,
    /// Pods of which nothing is heard any more although they may live.
    pub silences: u8,
    /// Tuples on which a stale socket of an earlier dataplane sits.
    pub stale: u8,
    /// The client resets.
    pub client_resets: u8,
    /// The client closes its direction.
    pub client_closes: u8,
    /// The client sends a request again.
    pub client_repeats: u8,
    /// Releases sent.
    pub releases: u8,
    /// Request sockets that are given up.
    pub given_up: u8,
}

/// Each of them once; they add up.
#[expect(missing_docs, reason = "named as the fields")]
impl Faults {
    pub const NONE: Self = Self {
        losses: 0,
        doubles: 0,
        early: 0,
        crashes: 0,
        restarts: 0,
        closes: 0,
        full: 0,
        keyless: 0,
        silences: 0,
        stale: 0,
        client_resets: 0,
        client_closes: 0,
        client_repeats: 0,
        releases: 0,
        given_up: 0,
    };
    pub const LOSS: Self = Self { losses: 1, ..Self::NONE };
    pub const DOUBLE: Self = Self { doubles: 1, ..Self::NONE };
    pub const EARLY: Self = Self { early: 1, ..Self::NONE };
    pub const CRASH: Self = Self { crashes: 1, ..Self::NONE };
    pub const RESTART: Self = Self { restarts: 1, ..Self::NONE };
    pub const CLOSE: Self = Self { closes: 1, ..Self::NONE };
    pub const FULL: Self = Self { full: 1, ..Self::NONE };
    pub const KEYLESS: Self = Self { keyless: 1, ..Self::NONE };
    pub const SILENCE: Self = Self { silences: 1, ..Self::NONE };
    pub const STALE: Self = Self { stale: 1, ..Self::NONE };
    pub const CLIENT_RESET: Self = Self { client_resets: 1, ..Self::NONE };
    pub const CLIENT_CLOSE: Self = Self { client_closes: 1, ..Self::NONE };
    pub const CLIENT_REPEAT: Self = Self { client_repeats: 1, ..Self::NONE };
    pub const RELEASE: Self = Self { releases: 1, ..Self::NONE };
    pub const GIVEN_UP: Self = Self { given_up: 1, ..Self::NONE };
}

impl std::ops::Add for Faults {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            losses: self.losses + more.losses,
            doubles: self.doubles + more.doubles,
            early: self.early + more.early,
            crashes: self.crashes + more.crashes,
            restarts: self.restarts + more.restarts,
            closes: self.closes + more.closes,
            full: self.full + more.full,
            keyless: self.keyless + more.keyless,
            silences: self.silences + more.silences,
            stale: self.stale + more.stale,
            client_resets: self.client_resets + more.client_resets,
            client_closes: self.client_closes + more.client_closes,
            client_repeats: self.client_repeats + more.client_repeats,
            releases: self.releases + more.releases,
            given_up: self.given_up + more.given_up,
        }
    }
}

/// One exploration.
#[derive(Clone, Debug)]
pub struct Config {
    /// For the report.
    pub name: String,
    /// Pods; the flow begins at pod 0.
    pub pods: u8,
    /// Requests that the client sends, one after the other.
    pub requests: u8,
    /// Units of one response.
    pub parts: u8,
    /// Whether the flow is new (`Fresh`) or between two requests (`Idle`).
    pub fresh: bool,
    /// Policy allows to execute a request once more.
    pub replay: bool,
    /// Policy has a response timeout.
    pub response_timeout: bool,
    /// Pod 0 drains.
    pub drain: bool,
    /// Pods that do not adopt: their legs are opened by a handshake.
    pub opened: [bool; PODS_MAX],
    /// And those of them that agree to less than the client was promised.
    pub unlike: [bool; PODS_MAX],
    /// Hand-overs by choice (at a boundary, of an idle flow).
    pub moves: u8,
    /// Adoption tries (six in the engine).
    pub tries_max: u8,
    /// Unmarked ends in a row of legs that were sent nothing (twelve in the engine).
    pub idle_ends_max: u8,
    /// Legs in all; rescue finds nobody once they are used up.
    pub legs_max: u8,
    /// What the network may do.
    pub network: Network,
    /// What may go wrong, and how often.
    pub faults: Faults,
    /// Which safeguards are on.
    pub safeguards: Safeguards,
}

impl Config {
    /// Two pods, one request of one unit, one hand-over, no faults.
    #[must_use]
    pub fn new(name: impl Into<String>, network: Network) -> Self {
        Self {
            name: name.into(),
            pods: 2,
            requests: 1,
            parts: 1,
            fresh: false,
            replay: false,
            response_timeout: false,
            drain: false,
            opened: [false; PODS_MAX],
            unlike: [false; PODS_MAX],
            moves: 1,
            tries_max: 3,
            idle_ends_max: 2,
            legs_max: 4,
            network,
            faults: Faults::NONE,
            safeguards: Safeguards::SHIPPED,
        }
    }
}
