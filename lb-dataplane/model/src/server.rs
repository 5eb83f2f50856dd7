//! Segments from pods: which leg, which event (`engine/src/server.rs`, `adopt.rs` for the standby leg, `closing.rs`).
//!
//! Owns what the flow learns from its owner, and what an owner's end comes to.

use crate::{
    answer::Judged,
    config::REPLAYS_MAX,
    pod::STALE,
    step::Run,
    wire::{Leg, Wire},
    world::Why,
};
use baton_engine::{
    Lost,
    states::{Event, Frame, State},
};

/// A challenge acknowledges one byte less than the client has. Units are many bytes, so that is a number of its own here.
const CHALLENGE: u8 = 50;

/// What an owner's end comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnersEnd {
    /// The client is told at once.
    Passes,
    /// The client is not told yet.
    Held,
}

impl Run<'_> {
    /// A segment from a pod.
    pub fn on_pod(&mut self, leg: Leg, wire: Wire) {
        let flow = &self.world.flow;
        if flow.owner == Some(leg) {
            self.on_owner(leg, wire);
        } else if flow.standby == Some(leg) {
            self.on_standby(leg, wire);
        } else if flow.closing.contains(&leg) {
            self.on_closing(leg, wire);
        } else if let Wire::Data { ack, .. } | Wire::Ack { ack, .. } | Wire::Fin { ack, .. } = wire
        {
            // A segment of no leg.
            self.send(leg, Wire::Rst { seq: ack });
        }
    }

    fn on_standby(&mut self, leg: Leg, wire: Wire) {
        if !self.config.safeguards.fencing
            && let Wire::Data { seq, .. } = wire
        {
            self.unit_to_client(leg, seq);
        }
        let flow = &mut self.world.flow;
        match wire {
            Wire::Rst { .. } | Wire::RstAck { .. } | Wire::Answer { .. } => {
                flow.standby = None;
                flow.standby_gone = true;
            }
            Wire::Fin { .. } => flow.standby_gone = true,
            _ => {}
        }
    }

    /// The leg's two FINs and their acknowledgements are taken for one step.
    fn on_closing(&mut self, leg: Leg, wire: Wire) {
        if !self.config.safeguards.fencing
            && let Wire::Data { seq, .. } = wire
        {
            self.unit_to_client(leg, seq);
        }
        match wire {
            Wire::Rst { .. } | Wire::RstAck { .. } | Wire::Answer { .. } => {
                self.world.flow.closing.retain(|l| *l != leg);
            }
            Wire::Fin { seq, ack } => {
                let (seq, ack) = (ack, seq + 1);
                self.send(leg, Wire::Ack { seq, ack });
                self.world.flow.closing.retain(|l| *l != leg);
            }
            _ => {}
        }
    }

    fn on_owner(&mut self, leg: Leg, wire: Wire) {
        let unconfirmed = matches!(self.state(), State::Adopting | State::AdoptingIdle);
        if unconfirmed && self.answer_to_adoption(leg, wire) == Judged::Done {
            return;
        }
        if matches!(self.state(), State::Held | State::Orphan) {
            return self.on_ended_owner(leg, wire);
        }
        let (seq, ack) = match wire {
            Wire::Rst { seq } => return self.owner_is_no_more(seq),
            Wire::RstAck { seq, ack } => return self.owner_resets(seq, Some(ack)),
            Wire::Data { seq, ack } | Wire::Ack { seq, ack } | Wire::Fin { seq, ack } => (seq, ack),
            // A late answer to an adoption that was sent twice.
            Wire::Answer { .. } | Wire::Adopt { .. } | Wire::Keepalive { .. } => return,
        };
        if seq >= STALE {
            // Beyond any window: nothing is learned from it, and the client's kernel drops it.
            return;
        }
        let flow = &mut self.world.flow;
        if ack > flow.client_acked && ack <= flow.client_next {
            flow.client_acked = ack;
        }
        let end = seq + u8::from(matches!(wire, Wire::Data { .. }));
        let mut treat = Frame::Forward;
        let gap = seq > flow.server_next;
        if end > flow.server_next {
            if gap {
                // A guard cannot follow: the flow is pinned.
                flow.pinned = true;
                if self.state() == State::Request {
                    self.world.flow.kept = false;
                    self.world.flow.unseen = false;
                }
            }
            treat = self.step(Event::ServerData);
            self.world.flow.server_next = end;
            if !gap && self.state() == State::Response {
                self.comes_to_rest();
            }
        } else if self.state() == State::Response {
            self.comes_to_rest();
        }
        if let Wire::Fin { .. } = wire
            && self.world.flow.server_next <= end
        {
            treat = self.server_fin(gap, ack);
        }
        if treat == Frame::Forward {
            match wire {
                Wire::Data { seq, .. } => self.unit_to_client(leg, seq),
                Wire::Fin { seq, .. } => self.fin_to_client(seq),
                _ => {}
            }
        }
    }

    fn server_fin(&mut self, gap: bool, ack: u8) -> Frame {
        let ended = if gap {
            OwnersEnd::Held
        } else {
            self.owner_ended(true, Some(ack))
        };
        match ended {
            OwnersEnd::Passes => {
                self.world.flow.server_next += 1;
                self.step(Event::ServerFin)
            }
            OwnersEnd::Held => Frame::Absorb,
        }
    }

    /// A bare RST: a kernel that knows no such connection, now or before it adopted it (`judge_bare_reset`).
    fn owner_is_no_more(&mut self, seq: u8) {
        let flow = &self.world.flow;
        let safe = self.config.safeguards;
        let open = match self.state() {
            State::Request | State::Response | State::Idle | State::ClientFin => {
                flow.migrated || safe.every_rst_is_told_apart
            }
            State::Fresh => safe.every_rst_is_told_apart,
            _ => false,
        };
        if !safe.late_rst_is_told_apart || !open {
            return self.owner_resets(seq, None);
        }
        let challenge = CHALLENGE + flow.server_next;
        if seq == challenge {
            return self.owner_resets(flow.server_next, None);
        }
        let seq = flow.client_acked.wrapping_sub(1);
        self.to_owner(Wire::Keepalive {
            seq,
            ack: challenge,
        });
    }

    fn owner_resets(&mut self, seq: u8, acked: Option<u8>) {
        let exact = seq == self.world.flow.server_next;
        if exact && self.owner_ended(false, acked) == OwnersEnd::Held {
            return;
        }
        self.rst_to_client(seq);
        if exact {
            self.step(Event::ServerRst);
        }
    }

    /// All that the client sent is answered, as far as the guard knows; one that lost the thread knows nothing.
    #[must_use]
    pub fn answered(&self) -> bool {
        let flow = &self.world.flow;
        flow.pinned || flow.server_next >= flow.requests * self.config.parts
    }

    /// Both sides have acknowledged everything.
    #[must_use]
    pub fn all_acked(&self) -> bool {
        let flow = &self.world.flow;
        flow.client_acked == flow.client_next && flow.server_acked == flow.server_next
    }

    /// The flow is idle once everything is answered and acknowledged.
    pub fn comes_to_rest(&mut self) {
        if self.all_acked() && self.answered() {
            self.step(Event::AllAcked);
        }
    }

    /// The owner sent a FIN in order or an exact RST (`engine/src/rescue.rs`).
    fn owner_ended(&mut self, fin: bool, acked: Option<u8>) -> OwnersEnd {
        let Some(owner) = self.world.flow.owner else {
            return OwnersEnd::Passes;
        };
        let state = self.state();
        if !matches!(
            state,
            State::Fresh | State::Idle | State::Request | State::Response
        ) {
            let counts = self.config.safeguards.half_closed_is_counted;
            if state == State::ClientFin && self.world.flow.outstanding && counts {
                self.count_lost(Lost::HalfClosed);
            }
            let left = self.world.client.fin && self.answered();
            self.why(if left {
                Why::ClientLeft
            } else {
                Why::Uncounted
            });
            return OwnersEnd::Passes;
        }
        let at_rest = self.answered();
        if self.world.flow.pinned || (state != State::Request && self.answered() && !at_rest) {
            self.why(Why::Pinned);
            return OwnersEnd::Passes;
        }
        match state {
            State::Request => {
                self.world.flow.held_fin = fin;
                self.ends_with_request(acked)
            }
            State::Response if !self.answered() => {
                if !self.config.safeguards.begun_response_stays && self.config.replay {
                    // What must not be: the request goes to another pod behind the bytes that the client has.
                    self.world.flow.kept = true;
                    self.world.flow.state = crate::world::At(State::Request);
                    return self.ends_with_request(acked);
                }
                self.count_lost(Lost::ResponseBegun);
                OwnersEnd::Passes
            }
            _ => {
                self.world.flow.held_fin = fin;
                self.step(Event::OwnerEnded);
                if self.is_leaving(owner.pod) {
                    self.owner_gone();
                }
                // Otherwise the question is open as long as the end is held.
                OwnersEnd::Held
            }
        }
    }

    fn ends_with_request(&mut self, acked: Option<u8>) -> OwnersEnd {
        let flow = &self.world.flow;
        let unseen = acked == Some(flow.boundary);
        let lost = if !flow.kept {
            Some(Lost::NotKept)
        } else if unseen {
            None
        } else if !self.may_replay() {
            Some(Lost::FateUnknown)
        } else if flow.replays >= REPLAYS_MAX && self.config.safeguards.replays_are_counted {
            Some(Lost::ReplayedOften)
        } else {
            None
        };
        if let Some(lost) = lost {
            self.count_lost(lost);
            return OwnersEnd::Passes;
        }
        self.world.flow.unseen = unseen;
        self.owner_gone();
        OwnersEnd::Held
    }

    /// A segment from an owner whose end is held back: its kernel repeats what the client has not acknowledged.
    fn on_ended_owner(&mut self, leg: Leg, wire: Wire) {
        let flow = &self.world.flow;
        if let Wire::Data { seq, .. } = wire
            && seq < flow.server_next
            && flow.server_acked != flow.server_next
        {
            self.unit_to_client(leg, seq);
        }
    }
}
