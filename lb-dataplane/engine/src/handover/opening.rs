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
//! - **A handshake that a pod gives up is no close.** A request socket (the end of the handshake
//!   was lost, or the accept queue is full) acknowledges a keepalive as a connection does, and that
//!   confirms a move without a request. Where the pod's kernel does not know the connection later,
//!   and nothing was sent to it since, the flow is rescued; the client had been reset, and nothing
//!   counted (found by the hand-over model). Rejected: a keepalive with a challenge's number, which
//!   only a connection acknowledges. Where a listener has `TCP_DEFER_ACCEPT`, there is none before
//!   the request, and such flows would never leave a pod that drains.
//! - **Behind the SYN-ACK, a RST that acknowledges nothing of the request counts only with the
//!   exact number.** A kernel without a listener refuses a SYN with number 0, which lies within a
//!   window of the pod's own numbers once in four times, and a copy of our SYN may be late: the pod
//!   had run the request and died, and the old owner ran it again (found by the hand-over model).

use super::{Deciding, Effect, Mark, Opening};
use crate::{obs::counters::Counter, states::Event};

impl Deciding<'_> {
    /// An answer to our SYN.
    pub(super) fn opening(&mut self, answer: Opening) {
        debug_assert!(self.view.progress.is(Mark::Opening));
        match answer {
            Opening::Opened if !self.safe.syn_ack_is_no_answer => self.confirmed(!self.idle()),
            Opening::Opened => {
                self.progress().tries = 1;
                self.step(Event::Opened);
            }
            Opening::Unlike => {
                self.with(Effect::OpeningUnlike);
                self.never_had_it(Event::Withdrawn);
            }
            Opening::NoRoom => self.never_had_it(Event::Withdrawn),
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
