//! What new bytes and the close of a client come to, by where its flow is.

use super::View;
use crate::states::State;

/// What new bytes of a client come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientData {
    /// They begin a request at a boundary.
    Begins {
        /// It may go to another pod.
        may_move: bool,
    },
    /// They come before all was answered and acknowledged: they stay with the owner, without a
    /// copy.
    Overlaps,
    /// They go on with the request, which the owner has.
    GoesOn,
    /// They go on with a request that a hand-over carries.
    GoesOnMoving,
    /// They begin the request that a hand-over at rest carries from now on.
    BeginsMoving,
    /// Nobody has the flow: they go on with a request that is kept.
    GoesOnKept,
    /// Nobody has the flow: they begin a request, which no pod has seen.
    BeginsKept {
        /// The owner's end is held: whether its pod lives or not, this request it will not answer.
        held: bool,
    },
    /// Nobody has the flow, and they begin no request.
    Waits,
    /// The flow is closing: they pass.
    Passes,
}

/// New bytes of a client. `boundary`: everything before them is answered and acknowledged, and no
/// state ties the flow to its owner; `whole`: no FIN is with them.
#[must_use]
pub fn client_data(
    state: State,
    pinned: bool,
    kept_whole: bool,
    boundary: bool,
    whole: bool,
) -> ClientData {
    match state {
        State::Idle | State::Fresh if boundary && whole => {
            ClientData::Begins { may_move: state == State::Idle && !pinned }
        }
        State::Idle | State::Fresh | State::Response => ClientData::Overlaps,
        State::Request => ClientData::GoesOn,
        State::Adopting => ClientData::GoesOnMoving,
        State::AdoptingIdle => ClientData::BeginsMoving,
        State::OwnerFinPending | State::Orphan if kept_whole => ClientData::GoesOnKept,
        State::OwnerFinPending | State::Orphan if boundary => {
            ClientData::BeginsKept { held: state == State::OwnerFinPending }
        }
        State::OwnerFinPending | State::Orphan => ClientData::Waits,
        _ => ClientData::Passes,
    }
}

/// What the close of a client comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientFin {
    /// It goes with the hand-over, and takes effect with the settled owner.
    Moves {
        /// The hand-over is at rest, and carries it like a request.
        at_rest: bool,
    },
    /// The client is leaving too: nothing is left to save, the held end stands.
    EndStands,
    /// Its request is still to be answered; it goes with that.
    GoesWithRequest,
    /// Bytes in front of it are lost.
    NotKept,
    /// It lacks bytes of the response: a clean end would be a lie, and the dead owner's kernel may
    /// still repeat them.
    Waits,
    /// The flow is gone.
    Gone,
    /// It takes effect.
    Passes,
}

/// The client closed its direction.
#[must_use]
pub fn client_fin(view: &View) -> ClientFin {
    let numbers = &view.numbers;
    match view.state {
        State::Adopting | State::AdoptingIdle => {
            ClientFin::Moves { at_rest: view.state == State::AdoptingIdle }
        }
        State::OwnerFinPending => ClientFin::EndStands,
        State::Orphan if view.kept_whole => ClientFin::GoesWithRequest,
        State::Orphan if numbers.client_acked.add(1) != numbers.client_next => ClientFin::NotKept,
        State::Orphan if numbers.server_acked != numbers.server_next => ClientFin::Waits,
        State::Gone => ClientFin::Gone,
        _ => ClientFin::Passes,
    }
}
