//! Segments from the client (`engine/src/client.rs`).
//!
//! Owns where a request begins, what is kept of it and what the client's FIN and RST come to. The way between client and
//! dataplane is not modelled: what the client sends arrives at once, whenever the client sends it.

use crate::{step::Run, wire::Wire, world::Why};
use baton_engine::{
    Lost,
    states::{Event, Frame, State},
};

/// What the client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sends {
    /// A request.
    Request,
    /// Nothing but an acknowledgement.
    Ack,
    /// The end of its stream.
    Fin,
}

impl Run<'_> {
    /// A segment from the client; `move_to` is the pod that policy prefers for a request that begins with it.
    pub fn on_client(&mut self, seq: u8, sends: Sends, ack: u8, move_to: Option<u8>) {
        if self.state() == State::Gone {
            // A segment of no flow is answered with a reset that the client's kernel believes.
            let seq = self.world.client.got();
            return self.rst_to_client(seq);
        }
        let flow = &mut self.world.flow;
        let acks_more = ack > flow.server_acked && ack <= flow.server_next;
        if acks_more {
            flow.server_acked = ack;
        }
        if self.state() == State::Response && acks_more {
            self.comes_to_rest();
        }
        let payload = sends == Sends::Request;
        let end = seq + u8::from(sends != Sends::Ack);
        let mut treat = Frame::Forward;
        let new = sends != Sends::Ack && end > self.world.flow.client_next;
        let ended = matches!(self.state(), State::Held | State::Orphan);
        if new && ended && payload && !self.may_keep(ack) {
            // It cannot be kept; the client sends it again.
            return;
        }
        if new {
            if payload {
                treat = self.client_data(seq, ack, move_to);
            }
            self.world.flow.client_next = end;
            if sends == Sends::Fin {
                treat = self.client_fin(treat);
            }
        }
        match self.state() {
            State::Held | State::Orphan if !payload && acks_more => {}
            State::Held | State::Orphan => treat = Frame::Absorb,
            _ => {}
        }
        if treat == Frame::Forward {
            self.to_owner(match sends {
                Sends::Request => Wire::Data { seq, ack },
                Sends::Ack => Wire::Ack { seq, ack },
                Sends::Fin => Wire::Fin { seq, ack },
            });
        }
        if self.state() == State::Orphan && (acks_more || payload) {
            self.try_rescue();
        }
    }

    /// Whether the request begins where everything before it is over, or goes on with one that is kept.
    fn may_keep(&self, ack: u8) -> bool {
        let acked = ack == self.world.flow.server_next && self.all_acked();
        self.world.flow.kept || (acked && self.answered())
    }

    fn client_data(&mut self, seq: u8, ack: u8, move_to: Option<u8>) -> Frame {
        let flow = &self.world.flow;
        let state = self.state();
        let at_rest = self.answered();
        let boundary =
            seq == flow.client_next && ack == flow.server_next && self.all_acked() && at_rest;
        self.world.flow.requests += 1;
        match state {
            State::Idle | State::Fresh if boundary => {
                self.begin_request(seq);
                if state == State::Idle
                    && !self.world.flow.pinned
                    && let Some(leg) = move_to.and_then(|pod| self.leg_to(pod))
                {
                    self.hand_over(leg);
                    return self.step(Event::Move);
                }
                self.step(Event::ClientData)
            }
            State::Idle | State::Fresh | State::Response => {
                self.world.flow.kept = false;
                self.step(Event::ClientData)
            }
            State::AdoptingIdle => {
                self.begin_request(seq);
                self.step(Event::ClientData)
            }
            State::Held | State::Orphan => {
                if !self.world.flow.kept && boundary {
                    self.begin_request(seq);
                    self.world.flow.unseen = true;
                    if state == State::Held {
                        self.becomes_orphan();
                        return Frame::Absorb;
                    }
                }
                self.step(Event::ClientData)
            }
            // More of a request that is kept: not modelled, as requests are one segment.
            _ => Frame::Forward,
        }
    }

    fn begin_request(&mut self, seq: u8) {
        let flow = &mut self.world.flow;
        flow.kept_fin = false;
        flow.unseen = false;
        flow.boundary = seq;
        flow.replays = 0;
        flow.kept = !flow.pinned;
    }

    fn client_fin(&mut self, treat: Frame) -> Frame {
        match self.state() {
            State::Adopting | State::AdoptingIdle => {
                self.world.flow.client_fin = true;
                self.world.flow.kept_fin = true;
                if self.state() == State::AdoptingIdle {
                    return self.step(Event::ClientFin);
                }
                treat
            }
            State::Held => {
                self.close_stands();
                if self.state() == State::ServerFin {
                    return self.step(Event::ClientFin);
                }
                Frame::Absorb
            }
            State::Orphan if self.world.flow.kept => {
                self.world.flow.client_fin = true;
                self.world.flow.kept_fin = true;
                Frame::Absorb
            }
            State::Orphan if self.world.flow.client_acked + 1 != self.world.flow.client_next => {
                self.lose(Lost::NotKept);
                Frame::Absorb
            }
            State::Gone => Frame::Absorb,
            _ => self.step(Event::ClientFin),
        }
    }

    /// The client resets.
    pub fn on_client_rst(&mut self) {
        if self.state() == State::Gone {
            return;
        }
        if self.state() != State::Orphan {
            self.to_owner(Wire::RstAck {
                seq: self.world.flow.client_next,
                ack: self.world.flow.server_next,
            });
        }
        self.why(Why::ClientLeft);
        self.step(Event::ClientRst);
    }
}
