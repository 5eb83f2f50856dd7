//! Segments from pods: which leg, which event (`engine/src/segments/server.rs`, `closing.rs`).
//!
//! Owns what the flow learns from its owner.

use crate::{
    decide::{CHALLENGE, ZERO, number},
    pod::STALE,
    step::Run,
    wire::{Leg, Wire},
    world::{At, Broken, Why},
};
use baton_engine::{
    handover::{End, Input, Mark, Reset, Then, challenge, judge_reset},
    states::{Event, Frame, State},
};
use baton_packet::{EndMark, Reason};

impl Run<'_> {
    /// A segment from a pod.
    pub fn on_pod(&mut self, leg: Leg, isn: u8, wire: Wire) {
        let flow = &self.world.flow;
        let live = flow.owner == Some(leg) || flow.standby == Some(leg);
        let strange = live && isn > 0 && isn != self.shift(leg);
        if strange && !matches!(wire, Wire::SynAck { .. }) {
            // Another handshake than the one that the leg's numbers are of was ended, or the pod
            // was never asked.
            self.broken(Broken::NotOpened);
        } else if flow.owner == Some(leg) {
            self.on_owner(leg, isn, wire);
        } else if flow.standby == Some(leg) {
            self.on_standby(leg, wire);
        } else if flow.closing.contains(&leg) {
            self.on_closing(leg, wire);
        } else if let Wire::Data { ack, .. }
        | Wire::Ack { ack, .. }
        | Wire::Fin { ack, .. }
        | Wire::SynAck { ack, .. } = wire
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
        let next = self.world.flow.server_next;
        let input = Input::Standby {
            new: matches!(wire, Wire::Data { seq, .. } if seq >= next),
            reset: matches!(wire, Wire::Rst { seq } | Wire::RstAck { seq, .. } | Wire::Released { seq, .. } if seq == next),
            fin: matches!(wire, Wire::Fin { .. }),
        };
        if self.decide(input) == Then::GoOn {
            self.on_owner(leg, 0, wire);
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
            Wire::Rst { .. }
            | Wire::RstAck { .. }
            | Wire::Released { .. }
            | Wire::SynRefused { .. }
            | Wire::Answer { .. } => {
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

    fn on_owner(&mut self, leg: Leg, isn: u8, wire: Wire) {
        if self.request_waits() {
            self.answer_to_opening(leg, isn, wire);
            return;
        }
        let unconfirmed = matches!(self.state(), State::Adopting | State::AdoptingIdle);
        if unconfirmed && self.answer_to_adoption(wire) != Then::GoOn {
            return;
        }
        if matches!(self.state(), State::OwnerFinPending | State::Orphan) {
            return self.on_ended_owner(leg, wire);
        }
        let (seq, ack) = match wire {
            Wire::Rst { seq } => return self.reset(seq, None, None),
            Wire::RstAck { seq, ack } => return self.reset(seq, Some(ack), None),
            Wire::SynRefused { ack } => return self.reset(ZERO, Some(ack), None),
            Wire::SynAck { .. } => return self.opened_again(),
            Wire::Released { seq, ack } => {
                return self.reset(seq, Some(ack), Some(EndMark::Released));
            }
            Wire::Told { released, seq, ack } => {
                let reason = if released { Reason::Released } else { Reason::Kept };
                let (seq, ack) = (number(seq), number(ack));
                self.decide(Input::ReleaseAnswered { reason, seq, ack });
                return;
            }
            Wire::Data { seq, ack } | Wire::Ack { seq, ack } | Wire::Fin { seq, ack } => (seq, ack),
            // A late answer to an adoption that was sent twice.
            Wire::Answer { .. }
            | Wire::Adopt { .. }
            | Wire::Syn { .. }
            | Wire::Opens { .. }
            | Wire::Keepalive { .. }
            | Wire::Release { .. } => return,
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
                    self.world.flow.progress.set(Mark::Unseen, false);
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
        let held = gap || self.owner_ended(true, Some(ack), None) == Then::Held;
        if held {
            return Frame::Absorb;
        }
        self.world.flow.server_next += 1;
        self.step(Event::ServerFin)
    }

    /// From a socket that ends, or, without `acked`, from a kernel that knows no such connection,
    /// now or before it adopted it.
    fn reset(&mut self, seq: u8, acked: Option<u8>, mark: Option<EndMark>) {
        let flow = &self.world.flow;
        let next = flow.server_next;
        let judged = judge_reset(
            self.state(),
            flow.migrated,
            &self.config.safeguards.handover,
            (acked.is_some(), seq == next),
            number(seq),
            challenge(number(next)),
        );
        match judged {
            Reset::Owners => self.owner_resets(seq, acked, mark),
            Reset::Proof => self.owner_resets(next, None, None),
            Reset::Echo => {
                let seq = flow.client_acked.wrapping_sub(1);
                let ack = CHALLENGE + next;
                self.to_owner(Wire::Keepalive { seq, ack });
            }
        }
    }

    fn owner_resets(&mut self, seq: u8, acked: Option<u8>, mark: Option<EndMark>) {
        let exact = seq == self.world.flow.server_next;
        if exact && self.owner_ended(false, acked, mark) == Then::Held {
            return;
        }
        self.rst_to_client(seq);
        if exact {
            self.step(Event::ServerRst);
        }
    }

    /// All that the client sent is answered, as far as the guard knows; one that lost the thread
    /// knows nothing.
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

    /// The owner sent a FIN in order or an exact RST.
    pub fn owner_ended(&mut self, fin: bool, acked: Option<u8>, mark: Option<EndMark>) -> Then {
        let Some(owner) = self.world.flow.owner else {
            return Then::Passes;
        };
        let begun = self.state() == State::Response && !self.answered();
        if begun && !self.config.safeguards.begun_response_stays && self.config.replay {
            // What must not be: the request goes to another pod behind the bytes that the client
            // has.
            self.world.flow.kept = true;
            self.world.flow.state = At(State::Request);
        }
        let then = self.decide(Input::OwnerEnded {
            end: End { fin, mark, acked: acked.map(number) },
            gone: self.is_leaving(owner.pod),
            rescues: true,
            rescuable: true,
            legless: false,
        });
        if then != Then::Held {
            let left = self.world.client.fin && self.answered();
            // The first reason counts: a loss was counted before.
            self.why(if left {
                Why::ClientLeft
            } else if self.world.flow.pinned {
                Why::Pinned
            } else {
                Why::Uncounted
            });
        }
        then
    }

    /// A segment from an owner whose end is held back: its kernel repeats what the client has not
    /// acknowledged.
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
