//! What comes back from an adoption, and what each answer means (`engine/src/answer.rs`, line by line).
//!
//! Owns the judgement of answers, resets, ends and silence while an adoption is unconfirmed.

use crate::{
    config::REPLAYS_MAX,
    step::Run,
    wire::{Leg, Refusal, Wire},
};
use baton_engine::{
    Lost,
    states::{Event, State},
};

/// What a segment from an unconfirmed owner comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// It is dealt with.
    Done,
    /// The new owner is confirmed: the segment is treated like any other of its own.
    GoOn,
}

impl Run<'_> {
    /// A segment from the owner leg in `Adopting` or `AdoptingIdle`.
    pub fn answer_to_adoption(&mut self, leg: Leg, wire: Wire) -> Judged {
        let idle = self.state() == State::AdoptingIdle;
        let flow = &self.world.flow;
        let (boundary, next, client_next) = (flow.boundary, flow.server_next, flow.client_next);
        let safe = self.config.safeguards;
        let (seq, ack, ended) = match wire {
            Wire::Answer { why, seq, ack } => {
                if seq == next && ack == boundary {
                    self.refused(why);
                }
                return Judged::Done;
            }
            Wire::Rst { seq } => {
                if seq == next {
                    if safe.bare_rst_is_no_answer {
                        self.met_reset();
                    } else {
                        self.step(Event::Confirmed);
                    }
                }
                return Judged::Done;
            }
            Wire::RstAck { seq, ack } | Wire::Fin { seq, ack } => (seq, ack, true),
            Wire::Data { seq, ack } | Wire::Ack { seq, ack } => (seq, ack, false),
            Wire::Adopt { .. } | Wire::Keepalive { .. } => return Judged::Done,
        };
        let acked = (boundary..=client_next).contains(&ack);
        // Any number of a stale socket is beyond what a window could hold.
        let expected = seq + 1 >= next && seq < crate::pod::STALE;
        if !acked || !expected {
            if !matches!(wire, Wire::RstAck { .. }) {
                self.stale_in_the_way(leg, ack);
            }
            return Judged::Done;
        }
        if ended && (idle || ack == boundary || !safe.taken_data_is_no_withdrawal) {
            self.never_had_it(Event::Withdrawn);
            return Judged::Done;
        }
        if ended && self.may_replay_again() {
            self.fate_unknown();
            return Judged::Done;
        }
        let without = ack == boundary && client_next != boundary;
        let event = if without && !ended && !idle {
            Event::ConfirmedWithout
        } else {
            Event::Confirmed
        };
        self.step(event);
        self.closed_meanwhile();
        if idle && !matches!(wire, Wire::Data { .. }) {
            return Judged::Done;
        }
        Judged::GoOn
    }

    /// The client's FIN that came meanwhile takes effect.
    pub fn closed_meanwhile(&mut self) {
        if self.world.flow.client_fin {
            self.world.flow.client_fin = false;
            self.step(Event::ClientFin);
        }
    }

    fn met_reset(&mut self) {
        let flow = &mut self.world.flow;
        if flow.refusals > 0 {
            // The answers decide.
        } else if flow.tries == 1 {
            flow.asked = 0;
            self.doubt(false);
        }
        // Else the timer ends soon, which timers may do here at any time.
    }

    fn refused(&mut self, why: Refusal) {
        let safe = self.config.safeguards;
        if why == Refusal::AlreadyAdopted && safe.already_adopted_is_no_refusal {
            return self.fate_unknown();
        }
        let Some(owner) = self.world.flow.owner else {
            return;
        };
        if !matches!(why, Refusal::TupleInUse(_)) {
            self.world.known[usize::from(owner.pod)].ready = false;
        }
        let flow = &mut self.world.flow;
        flow.refusals += 1;
        if flow.refusals < flow.asked && safe.each_refusal_is_awaited {
            return;
        }
        if let Refusal::TupleInUse(expects) = why {
            self.stale_in_the_way(owner, expects);
        } else {
            self.never_had_it(Event::Refused);
        }
    }

    /// The new owner never had the request.
    pub fn never_had_it(&mut self, event: Event) {
        let flow = &mut self.world.flow;
        if !flow.standby_gone {
            if flow.rescue {
                flow.replays = flow.replays.saturating_sub(1);
            }
            self.step(event);
            self.closed_meanwhile();
            return;
        }
        if flow.replays > 0 {
            flow.replays -= 1;
        } else {
            flow.unseen = true;
        }
        if event == Event::Refused && self.state() == State::Adopting && self.try_another() {
            return;
        }
        self.step(Event::RefusedAll);
    }

    fn try_another(&mut self) -> bool {
        self.world.flow.tries += 1;
        if self.world.flow.tries > self.config.tries_max || !self.world.flow.kept {
            return false;
        }
        let owner = self.world.flow.owner.map(|o| o.pod);
        let Some(leg) = self.choose(owner) else {
            return false;
        };
        let flow = &mut self.world.flow;
        if flow.unseen {
            flow.unseen = false;
        } else {
            flow.replays += 1;
        }
        self.pending = Some(leg);
        self.step(Event::RefusedNext);
        true
    }

    fn stale_in_the_way(&mut self, leg: Leg, expects: u8) {
        self.send(leg, Wire::Rst { seq: expects });
        if self.one_more_try() {
            self.step(Event::TupleTaken);
        } else {
            self.fate_unknown();
        }
    }

    /// Silence or a bare RST; `overdue` if policy's time for an answer is over too.
    pub fn doubt(&mut self, overdue: bool) {
        let Some(owner) = self.world.flow.owner else {
            return;
        };
        let overdue = overdue && self.may_replay_again();
        if self.world.flow.refusals > 0 || overdue {
            self.fate_unknown();
        } else if self.one_more_try() {
            self.step(Event::Doubt);
        } else {
            self.world.known[usize::from(owner.pod)].ready = false;
            self.fate_unknown();
        }
    }

    fn one_more_try(&mut self) -> bool {
        self.world.flow.tries += 1;
        self.world.flow.tries <= self.config.tries_max
    }

    /// Whether the request was executed cannot be known.
    pub fn fate_unknown(&mut self) {
        if self.state() == State::AdoptingIdle {
            return self.never_had_it(Event::Withdrawn);
        }
        if self.may_replay_again() {
            if self.world.flow.standby_gone {
                self.step(Event::FateUnknownNext);
            } else {
                self.world.flow.replays += 1;
                self.step(Event::FateUnknownReplay);
                self.closed_meanwhile();
            }
        } else {
            let why = if self.may_replay() {
                Lost::ReplayedOften
            } else {
                Lost::FateUnknown
            };
            self.count_lost(why);
            self.step(Event::FateUnknownReset);
        }
    }

    /// Policy allows to execute the request once more, and there is a copy.
    #[must_use]
    pub fn may_replay(&self) -> bool {
        self.config.replay && self.world.flow.kept
    }

    /// And it was not done too often.
    #[must_use]
    pub fn may_replay_again(&self) -> bool {
        let often = self.world.flow.replays >= REPLAYS_MAX;
        self.may_replay() && !(often && self.config.safeguards.replays_are_counted)
    }
}
