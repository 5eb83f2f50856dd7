//! Releases: which requests are asked back, and what the answers mean.
//!
//! Owns no time and no choice of a pod: whether the owner stands still, and whether another one
//! would do better, is the engine's `release`.

use super::{Deciding, Effect, Mark, Then, View};
use crate::{obs::counters::Counter, states::State};
use baton_packet::{Reason, SeqNumber};

/// Whether a flow's request may be asked back: all of it is there and kept, nothing is answered,
/// nobody has said that it stays, and the client has all that its server sent, which nobody could
/// send again. On a translated leg nobody is asked: what the adopter signs has the pod's numbers.
#[must_use]
pub fn may_be_released(view: &View) -> bool {
    view.state == State::Request
        && view.numbers.server_acked == view.numbers.server_next
        && view.outstanding
        && view.kept_whole
        && !view.pinned
        && !view.progress.is(Mark::Translated)
        && !view.progress.is(Mark::ReleaseSettled)
}

/// Whether an answer to a Release is about the one that is open: it has its numbers, swapped.
fn answers_release(view: &View, seq: SeqNumber, ack: SeqNumber) -> bool {
    let numbers = &view.numbers;
    view.progress.is(Mark::ReleaseAsked) && (seq, ack) == (numbers.server_next, numbers.boundary)
}

impl Deciding<'_> {
    /// The owner answers nothing.
    pub(super) fn stalled(&mut self) {
        self.then(match may_be_released(self.view) {
            true => Then::FindBetter,
            false => Then::Stays,
        });
    }

    /// Whether another pod would do better.
    pub(super) fn better(&mut self, found: bool) {
        if !found {
            return self.then(Then::Nobody);
        }
        self.progress().set(Mark::ReleaseAsked, true);
        self.count(Counter::ReleasesAsked);
        self.with(Effect::AskRelease);
    }

    /// The adopter's answer, authenticated.
    pub(super) fn release_answered(&mut self, reason: Reason, seq: SeqNumber, ack: SeqNumber) {
        if !answers_release(self.view, seq, ack) {
            return self.count(Counter::Fenced);
        }
        match reason {
            Reason::Released => self.then(Then::LetGo),
            Reason::Kept if !self.safe.what_is_kept_stays => self.then(Then::LetGo),
            Reason::Kept => {
                self.stays();
                self.count(Counter::ReleasesKept);
            }
            Reason::Renew => {
                // Another pod than the one that has the request; nobody knows what that one did.
                self.stays();
                self.with(Effect::AdopterReplaced);
            }
            _ => self.count(Counter::Fenced),
        }
    }

    /// No answer came in time.
    pub(super) fn release_late(&mut self) {
        self.stays();
        self.count(Counter::ReleasesUnanswered);
    }

    /// The request stays where it is, and is not asked about again.
    fn stays(&mut self) {
        self.progress().set(Mark::ReleaseAsked, false);
        self.progress().set(Mark::ReleaseSettled, true);
    }
}
