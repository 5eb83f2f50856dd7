//! Why flows never move again, and why flows end because of a backend: the fixed lists behind the
//! metrics.
//!
//! Owns the labels. It never decides anything.

use baton_guard::Pin;

/// Why a flow does not move any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PinReason {
    /// Requests overlapped under a rule that cannot follow them.
    Pipelined,
    /// The server spoke first.
    ServerFirst,
    /// Kernels refuse to adopt connections with so small an MSS.
    SmallMss,
    /// No slot was free to follow the conversation.
    GuardsFull,
    /// The new owner did not take the session (`AUTH`, `SELECT`) that the old one had.
    SessionRefused,
    /// The policy's protocol is another one since: what was said before, nobody followed.
    ProtocolChanged,
    /// What the protocol's guard found.
    Guard(Pin),
}

const OWN: [PinReason; 6] = [
    PinReason::Pipelined,
    PinReason::ServerFirst,
    PinReason::SmallMss,
    PinReason::GuardsFull,
    PinReason::SessionRefused,
    PinReason::ProtocolChanged,
];

impl PinReason {
    /// How many there are.
    pub(crate) const COUNT: usize = OWN.len() + Pin::ALL.len();

    /// All of them, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = PinReason> {
        let guards = Pin::ALL.iter().copied().map(PinReason::Guard);
        OWN.into_iter().chain(guards)
    }

    pub(crate) fn number(self) -> usize {
        match self {
            PinReason::Guard(pin) => OWN.len() + pin as usize,
            PinReason::Pipelined => 0,
            PinReason::ServerFirst => 1,
            PinReason::SmallMss => 2,
            PinReason::GuardsFull => 3,
            PinReason::SessionRefused => 4,
            PinReason::ProtocolChanged => 5,
        }
    }

    /// The metric label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            PinReason::Pipelined => "pipelined",
            // One label for both ways to find out.
            PinReason::ServerFirst | PinReason::Guard(Pin::ServerFirst) => "server_first",
            PinReason::SmallMss => "small_mss",
            PinReason::GuardsFull => "guards_full",
            PinReason::SessionRefused => "session_refused",
            PinReason::ProtocolChanged => "protocol_changed",
            PinReason::Guard(pin) => pin.label(),
        }
    }
}

/// Why a flow ended, or its client had to be told of an end, because its backend died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantArray, strum::IntoStaticStr)]
#[repr(u8)]
#[strum(serialize_all = "snake_case")]
pub enum Lost {
    /// The outstanding request may have been executed, and policy forbids to execute it once more.
    FateUnknown,
    /// The same, as its pod says that it took the connection, of whose socket nothing was ever
    /// seen: the process may have ended, or the segment was dropped behind the adopter (the pod's
    /// own packet filter, no memory).
    AdoptedBefore,
    /// The response had begun.
    ResponseBegun,
    /// The client had not acknowledged the response, and nobody is left to send it again.
    ResponseUnacknowledged,
    /// The outstanding request was too large to keep, or no buffer was free.
    NotKept,
    /// The request was given to several backends, and each ended before it answered.
    ReplayedOften,
    /// No backend adopted the flow in time.
    NoBackend,
    /// The flow is pinned.
    Pinned,
    /// The client had closed its direction behind its request, and the backend ended without an
    /// answer.
    HalfClosed,
    /// The drain's deadline.
    DrainDeadline,
}

impl Lost {
    /// All of them.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// The metric label.
    #[must_use]
    pub fn label(self) -> &'static str {
        self.into()
    }
}

/// How an owner was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// It closed the connection.
    Closed,
    /// It reset it.
    Reset,
    /// Nothing is heard of it.
    Silent,
    /// Its adopter let go of the request, which its application had not read.
    Released,
}

impl Gone {
    pub(crate) const fn of_end(fin: bool) -> Self {
        if fin { Self::Closed } else { Self::Reset }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_places_in_the_list() {
        for (number, reason) in PinReason::all().enumerate() {
            assert_eq!(reason.number(), number);
        }
        assert_eq!(PinReason::all().count(), PinReason::COUNT);
        for (number, lost) in Lost::ALL.iter().enumerate() {
            assert_eq!(*lost as usize, number);
        }
    }

    #[test]
    fn a_pin_costs_a_flow_one_byte() {
        assert_eq!(size_of::<Option<PinReason>>(), 1);
    }
}
