//! Releases: which requests may be asked back, and what the answers mean.
//!
//! Owns no time and no choice of a pod: whether the owner stands still, and whether another one
//! would do better, is the engine's `release`.

use super::{Mark, View};
use crate::states::State;
use baton_packet::SeqNumber;

/// Whether a flow's request may be asked back: all of it is there and kept, nothing is answered,
/// and nobody has said that it stays. On a translated leg nobody is asked: what the adopter signs
/// has the pod's numbers.
#[must_use]
pub fn may_be_released(view: &View) -> bool {
    view.state == State::Request
        && view.outstanding
        && view.kept_whole
        && !view.pinned
        && !view.progress.is(Mark::Translated)
        && !view.progress.is(Mark::ReleaseSettled)
}

/// Whether an answer to a Release is about the one that is open: it has its numbers, swapped.
#[must_use]
pub fn answers_release(view: &View, seq: SeqNumber, ack: SeqNumber) -> bool {
    let numbers = &view.numbers;
    view.progress.is(Mark::ReleaseAsked) && (seq, ack) == (numbers.server_next, numbers.boundary)
}
