//! The three questions that a state answers: how far the connection is, whose turn it is, and who
//! owns the flow.
//!
//! Owns the place of each state on each axis. What happens next is the table's.
//!
//! # Decisions
//!
//! - **A state is one name, not three fields.** Of the 5 x 4 x 5 places of the axes, flows can be
//!   in 15: the declared table names those, so that a place that cannot be is no value, and a row
//!   changes all axes at once. What a hand-over remembers beside its state is
//!   [`crate::handover::Progress`].

use super::State;

names! {
    /// How far the connection is.
    Conn {
        /// Its handshake is not complete.
        Opening,
        /// Both sides may send.
        Open,
        /// The client has closed its direction.
        ClientClosed,
        /// The server has closed its direction, or Baton in its name.
        ServerClosed,
        /// Both have, or there is none.
        Closed,
    }
}

names! {
    /// Whose turn it is.
    Turn {
        /// The client's, and it has sent nothing yet.
        Fresh,
        /// The client's: all is answered and acknowledged.
        Idle,
        /// The server's: a request is there, and nothing of its answer.
        Request,
        /// An answer has begun; or nobody looks any more, because a side has closed.
        Response,
    }
}

names! {
    /// Who owns the flow.
    Owner {
        /// A pod, surely.
        Held,
        /// A pod that has not confirmed.
        Moving,
        /// A pod that closed or reset, which may have been meant.
        Ended,
        /// No pod; another one is needed.
        Lacking,
        /// No pod, and none is needed.
        Nobody,
    }
}

impl State {
    /// How far the connection is.
    #[must_use]
    pub const fn conn(self) -> Conn {
        match self {
            Self::SynSent | Self::SynAcked => Conn::Opening,
            Self::Fresh
            | Self::Request
            | Self::Response
            | Self::Idle
            | Self::Legless
            | Self::Adopting
            | Self::AdoptingIdle
            | Self::OwnerFinPending
            | Self::Orphan => Conn::Open,
            Self::ClientFin => Conn::ClientClosed,
            Self::ServerFin | Self::FinSentToClient => Conn::ServerClosed,
            Self::Closed | Self::Gone => Conn::Closed,
        }
    }

    /// Whose turn it is; none where kept copies tell (`OwnerFinPending`, `Orphan`), or it does not
    /// matter.
    #[must_use]
    pub const fn turn(self) -> Option<Turn> {
        match self {
            Self::Fresh => Some(Turn::Fresh),
            Self::Idle | Self::Legless | Self::AdoptingIdle => Some(Turn::Idle),
            Self::Request | Self::Adopting => Some(Turn::Request),
            Self::Response => Some(Turn::Response),
            _ => None,
        }
    }

    /// Who owns the flow.
    #[must_use]
    pub const fn owner(self) -> Owner {
        match self {
            Self::Adopting | Self::AdoptingIdle => Owner::Moving,
            Self::OwnerFinPending => Owner::Ended,
            Self::Orphan => Owner::Lacking,
            Self::Legless | Self::FinSentToClient | Self::Gone => Owner::Nobody,
            _ => Owner::Held,
        }
    }

    /// The handshake is not complete.
    #[inline]
    #[must_use]
    pub const fn is_opening(self) -> bool {
        matches!(self.conn(), Conn::Opening)
    }

    /// Established, neither end closed, and the owner confirmed.
    #[inline]
    #[must_use]
    pub const fn is_open(self) -> bool {
        matches!((self.conn(), self.owner()), (Conn::Open, Owner::Held))
    }

    /// Established, the server's end not closed, and the owner confirmed.
    #[inline]
    #[must_use]
    pub const fn serves(self) -> bool {
        let open = matches!(self.conn(), Conn::Open | Conn::ClientClosed);
        open && matches!(self.owner(), Owner::Held)
    }

    /// Open, and it is the client's turn.
    #[inline]
    #[must_use]
    pub const fn is_quiet(self) -> bool {
        self.is_open() && matches!(self.turn(), Some(Turn::Fresh | Turn::Idle))
    }

    /// That, and no answer has begun.
    #[inline]
    #[must_use]
    pub const fn is_unanswered(self) -> bool {
        self.is_open() && !matches!(self.turn(), Some(Turn::Response))
    }

    /// An adoption is open.
    #[inline]
    #[must_use]
    pub const fn is_moving(self) -> bool {
        matches!(self.owner(), Owner::Moving)
    }

    /// The flow goes to another owner or ends.
    #[inline]
    #[must_use]
    pub const fn lacks_owner(self) -> bool {
        matches!(self.owner(), Owner::Ended | Owner::Lacking)
    }

    /// No pod need have a leg of it. An orphan that was legless never had the one that it lost.
    #[inline]
    #[must_use]
    pub const fn may_lack_leg(self) -> bool {
        matches!(self, Self::Legless | Self::Orphan | Self::FinSentToClient | Self::Closed)
    }
}
