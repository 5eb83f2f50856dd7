//! Segments from the client (`engine/src/segments/client.rs`).
//!
//! Owns where a request begins, what is kept of it and what the client's FIN and RST come to. The
//! way between client and dataplane is not modelled: what the client sends arrives at once,
//! whenever the client sends it.

use crate::{step::Run, wire::Wire, world::Why};
use baton_engine::{
    Lost,
    handover::{ClientData, ClientFin, Input, Mark, client_data, client_fin},
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
    /// A segment from the client; `move_to` is the pod that policy prefers for a request that
    /// begins with it.
    pub fn on_client(&mut self, seq: u8, sends: Sends, ack: u8, move_to: Option<u8>) {
        if self.state() == State::Gone {
            // A segment of no flow is answered with a reset that the client's kernel believes.
            let seq = self.world.client.got();
            return self.rst_to_client(seq);
        }
        if self.state() == State::FinSentToClient {
            return self.on_client_of_parted(seq, sends);
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
        let ended = matches!(self.state(), State::OwnerFinPending | State::Orphan);
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
            State::OwnerFinPending | State::Orphan if !payload && acks_more => {}
            State::OwnerFinPending | State::Orphan => treat = Frame::Absorb,
            _ if self.request_waits() => treat = Frame::Absorb,
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
            self.try_rescue_later();
        }
    }

    /// Baton closed the flow: the client did not know yet, or closes its direction too.
    fn on_client_of_parted(&mut self, seq: u8, sends: Sends) {
        let next = self.world.flow.client_next;
        if sends == Sends::Request && seq >= next {
            self.step(Event::ClientData);
        } else if sends == Sends::Fin && seq == next {
            self.world.flow.client_next += 1;
            self.step(Event::ClientFin);
        }
    }

    /// Whether the request begins where everything before it is over, or goes on with one that is
    /// kept.
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
        let flow = &self.world.flow;
        match client_data(state, flow.pinned, flow.kept, boundary, true) {
            ClientData::Begins { may_move } => {
                self.begin_request(seq);
                if may_move && let Some(leg) = move_to.and_then(|pod| self.leg_to(pod)) {
                    self.hand_over(leg);
                    return self.step(Event::Move);
                }
                self.step(Event::ClientData)
            }
            ClientData::Overlaps => {
                self.world.flow.kept = false;
                self.step(Event::ClientData)
            }
            ClientData::BeginsMoving => {
                self.begin_request(seq);
                self.step(Event::ClientData)
            }
            ClientData::BeginsKept { held } => {
                self.begin_request(seq);
                self.world.flow.progress.set(Mark::Unseen, true);
                if held {
                    self.decide(Input::RequestAtDead);
                    return Frame::Absorb;
                }
                self.step(Event::ClientData)
            }
            ClientData::GoesOnKept | ClientData::Waits => self.step(Event::ClientData),
            // More of a request: not modelled, as requests are one segment.
            ClientData::GoesOn | ClientData::GoesOnMoving | ClientData::Passes => Frame::Forward,
        }
    }

    fn begin_request(&mut self, seq: u8) {
        let flow = &mut self.world.flow;
        flow.kept_fin = false;
        flow.progress.set(Mark::Unseen, false);
        flow.boundary = seq;
        flow.progress.replays = 0;
        flow.progress.set(Mark::ReleaseSettled, false);
        flow.progress.set(Mark::Released, false);
        flow.kept = !flow.pinned;
    }

    fn client_fin(&mut self, treat: Frame) -> Frame {
        let fin = client_fin(&self.view());
        if let ClientFin::Moves { .. } | ClientFin::GoesWithRequest | ClientFin::Waits = fin {
            self.world.flow.progress.set(Mark::ClientFin, true);
            self.world.flow.kept_fin |= fin != ClientFin::Waits;
        }
        match fin {
            ClientFin::Moves { at_rest: true } => self.step(Event::ClientFin),
            ClientFin::Moves { at_rest: false } => treat,
            ClientFin::EndStands => {
                self.decide(Input::CloseStands);
                if self.state() == State::ServerFin {
                    return self.step(Event::ClientFin);
                }
                Frame::Absorb
            }
            ClientFin::NotKept => {
                self.count_lost(Lost::NotKept);
                self.step(Event::Lost);
                Frame::Absorb
            }
            ClientFin::GoesWithRequest | ClientFin::Waits | ClientFin::Gone => Frame::Absorb,
            ClientFin::Passes => self.step(Event::ClientFin),
        }
    }

    /// The client resets.
    pub fn on_client_rst(&mut self) {
        if self.state() == State::Gone {
            return;
        }
        if !matches!(self.state(), State::Orphan | State::FinSentToClient) {
            self.to_owner(Wire::RstAck {
                seq: self.world.flow.client_next,
                ack: self.world.flow.server_next,
            });
        }
        self.why(Why::ClientLeft);
        self.step(Event::ClientRst);
    }
}
