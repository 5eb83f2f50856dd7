//! Translated legs: what the answers to a handshake with the pod that shall take a flow over mean.
//!
//! Owns the hand-over until the pod's kernel has agreed. From then on its segments are judged as
//! those of a pod that adopted the flow (`answer`).
//!
//! # Decisions
//!
//! - **Nothing of a request is sent before the pod's SYN-ACK**, so that a pod that does not answer,
//!   refuses, or agrees to too little never had it: the flow stays with its owner, or goes to a
//!   third pod, whatever its method is.
//! - **A SYN-ACK confirms nothing.** Where a listener's queue is full, Linux answers a SYN and then
//!   drops what follows. The old owner stands by until the new one has acknowledged the request.

use super::{Deciding, Effect, Mark, Opening};
use crate::{counters::Counter, states::Event};

impl Deciding<'_> {
    /// An answer to our SYN.
    pub(super) fn opening(&mut self, answer: Opening) {
        debug_assert!(self.view.progress.is(Mark::Opening));
        match answer {
            Opening::Opened => {
                self.progress().tries = 1;
                self.step(Event::Opened);
            }
            Opening::Unlike => {
                self.with(Effect::OpeningUnlike);
                self.never_had_it(Event::Withdrawn);
            }
            Opening::Refused => {
                self.with(Effect::OpeningRefused);
                self.never_had_it(Event::Refused);
            }
            Opening::Stale(expects) => {
                self.with(Effect::ResetStale(expects));
                self.stale_in_the_way(true);
            }
        }
    }

    /// The pod has not answered our SYN.
    pub(super) fn opening_silent(&mut self) {
        if self.one_more_try() {
            self.with(Effect::ProbeLiveness);
            self.step(Event::Doubt);
        } else {
            self.count(Counter::OpeningsUnanswered);
            self.never_had_it(Event::Withdrawn);
        }
    }
}
