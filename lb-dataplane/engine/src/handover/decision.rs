//! What a decision comes to: plain data.
//!
//! Owns effects and what is asked for. Nothing here decides.
//!
//! # Decisions
//!
//! - **An adoption without a request is confirmed by a keepalive**: one byte that the new socket
//!   has already, which Linux acknowledges at once whatever the application does.

use super::view::Progress;
use crate::{
    obs::{
        counters::Counter,
        pins::{Gone, Lost},
    },
    states::Event,
};
use baton_packet::{Reason, SeqNumber};

/// Something to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Move the flow by the declared table.
    Step(Event),
    /// Count it.
    Count(Counter),
    /// Count and tell why the flow is lost.
    Lost(Lost),
    /// Tell that the request is executed once more.
    Replayed,
    /// What came meanwhile takes effect: [`Input::Settled`].
    Settle,
    /// Ask the owner's pod for a sign of life.
    ProbeLiveness,
    /// The same for a held end: does anybody listen? `true`: the closer had the listener.
    AskListener(bool),
    /// Have what is remembered of the leg's pair on the way forgotten.
    ForgetInFront,
    /// The owner's pod does not adopt, for this reason.
    AdopterRefused(Reason),
    /// Its adopter is silent.
    AdopterSilent,
    /// The owner's address is another pod's by now.
    AdopterReplaced,
    /// Ask the owner's adopter to let go of the flow.
    AskRelease,
    /// The owner's pod refused a handshake.
    OpeningRefused,
    /// It agrees to less than clients were promised.
    OpeningUnlike,
    /// Reset the socket in the way, which expects this number.
    ResetStale(SeqNumber),
    /// Wait a little for the answer to the second adoption.
    AwaitAnswer,
    /// The new owner's window begins with the segment.
    WindowBegins,
    /// Acknowledge to the owner what the client never sees.
    AckOwner,
    /// The flow stays with the owner that it has.
    OwnerKnown,
    /// The outstanding request speaks against its backend.
    BackendFails,
    /// The end is held from now on. `true`: the closer had the listener.
    HoldEnd(bool),
    /// The flow lost its owner: count, tell.
    Stranded(Gone),
    /// It has none from now on.
    OrphanSince,
    /// Look for another owner at once: [`Input::OrphanDue`].
    TryRescue,
    /// The hand-over of an orphan begins: at rest, its boundary is here.
    RescueBegins,
    /// The standby leg's port rests.
    FreeStandby,
}

/// What comes behind the effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Nothing changed.
    Stays,
    /// It is dealt with; the segment that caused it goes no further.
    Done,
    /// The segment is treated like any other of the owner's.
    GoOn,
    /// The replies that restore a session are to be judged: [`Input::Restored`].
    JudgeSession,
    /// A pod is needed that adopts the flow and its request at once: [`Input::Another`].
    FindAnother,
    /// A pod is needed for a flow without owner: [`Input::Rescuer`].
    FindRescuer {
        /// Not the last owner's.
        another: bool,
        /// But that one's where nobody else takes flows over.
        or_same: bool,
    },
    /// A pod is needed for an overdue request: [`Input::Rival`].
    FindRival,
    /// A pod is needed that does not stand still itself: [`Input::Better`].
    FindBetter,
    /// No pod would do better than the one that has it.
    Nobody,
    /// The owner's socket is gone, and its application has read nothing of the request:
    /// [`Input::OwnerEnded`] with [`EndMark::Released`].
    LetGo,
    /// The client is told of the owner's end at once.
    Passes,
    /// The client is not told yet.
    Held,
}

/// Effects of one decision, at most.
const EFFECTS_MAX: usize = 8;

/// What is decided.
#[derive(Clone, Copy, Debug)]
pub struct Decision {
    /// What the hand-over remembers from now on; in force before the effects.
    pub progress: Progress,
    effects: [Option<Effect>; EFFECTS_MAX],
    /// What comes behind the effects.
    pub then: Then,
}

impl Decision {
    pub(super) const fn nothing(progress: Progress) -> Self {
        Self { progress, effects: [None; EFFECTS_MAX], then: Then::Done }
    }

    pub(super) fn push(&mut self, effect: Effect) {
        let free = self.effects.iter_mut().find(|e| e.is_none());
        debug_assert!(free.is_some(), "no room for {effect:?}");
        if let Some(free) = free {
            *free = Some(effect);
        }
    }

    /// What is to be done, in this order.
    pub fn effects(&self) -> impl Iterator<Item = Effect> {
        self.effects.into_iter().flatten()
    }
}
