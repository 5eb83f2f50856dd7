//! The dataplane's transitions: the declared table is looked up, and its actions are carried out.
//!
//! Owns [`Run`] and the only place where the flow's state changes. It decides nothing: events are
//! raised by the classifiers.

use crate::{
    config::Config,
    coverage::Coverage,
    pod::{Decided, STALE},
    wire::{Leg, Network, Packet, Way, Wire},
    world::{At, Broken, Ended, Why, World},
};
use baton_engine::{
    Lost,
    handover::Mark,
    states::{Action, Event, Frame, State, Transition, meaning},
    timing::REPLAYS_MAX,
};

/// One transition of the model while it is being computed.
pub struct Run<'a> {
    /// What is assumed.
    pub config: &'a Config,
    /// Rows seen so far.
    pub coverage: &'a Coverage,
    /// The state that becomes the next one.
    pub world: World,
    /// Which pod the choice of backend falls on; `None` where none can be had right now.
    pub pick: Option<u8>,
    /// A choice of backend was made, or tried.
    pub picked: bool,
    /// A stale socket sits on the tuple of the leg that is opened next.
    pub stale: bool,
    /// The leg that the present event gives the flow to.
    pub pending: Option<Leg>,
    /// Policy's time for an answer is over.
    pub overdue: bool,
}

impl<'a> Run<'a> {
    /// Begins a transition.
    #[must_use]
    pub fn new(config: &'a Config, coverage: &'a Coverage, world: World) -> Self {
        Self {
            config,
            coverage,
            world,
            pick: None,
            picked: false,
            stale: false,
            pending: None,
            overdue: false,
        }
    }

    /// Notes that a property does not hold.
    pub fn broken(&mut self, how: Broken) {
        self.world.ghost.broken.get_or_insert(how);
    }

    /// The flow's state.
    #[must_use]
    pub fn state(&self) -> State {
        self.world.flow.state.0
    }

    /// Moves the flow by the declared table (the engine's `step`).
    pub fn step(&mut self, event: Event) -> Frame {
        let row = match meaning(self.state(), event) {
            Transition::Row(number, row) => {
                self.coverage.saw(number);
                row
            }
            Transition::Ignore => return Frame::Forward,
            Transition::Invalid => {
                self.broken(Broken::Unexpected);
                return Frame::Forward;
            }
        };
        self.check_event(event);
        let standby = self.world.flow.standby;
        if row.to != State::Gone {
            self.world.flow.state = At(row.to);
        }
        for action in row.actions {
            self.act(*action);
        }
        if matches!(event, Event::Refused | Event::Withdrawn)
            && (self.world.flow.owner != standby || standby.is_none())
        {
            self.broken(Broken::NotGivenBack);
        }
        row.frame
    }

    /// What must be true of an event whenever it is raised.
    fn check_event(&mut self, event: Event) {
        let world = &self.world;
        let Some(owner) = world.flow.owner else {
            return;
        };
        let pod = &world.pods[usize::from(owner.pod)];
        let taken = |d: &Decided| d.port == owner.port && d.refused.is_none();
        let safe = &self.config.safeguards;
        // A request socket answers a keepalive as a connection does.
        let asked = |p: Packet| p.leg == owner && matches!(p.wire, Wire::Keepalive { .. });
        let agreed = self.shift(owner) > 0
            && (self.config.network == Network::Counted || world.net.each().any(asked));
        match event {
            Event::Confirmed | Event::ConfirmedWithout
                if safe.adoptions_are_remembered && !agreed && !pod.recent.iter().any(taken) =>
            {
                self.broken(Broken::ConfirmedNothing);
            }
            Event::Refused | Event::Withdrawn
                if self.state() == State::Adopting
                    && pod
                        .socket(owner.port)
                        .is_some_and(|s| s.rcv < STALE && s.read > world.flow.boundary) =>
            {
                self.broken(Broken::NotGivenBack);
            }
            _ => {}
        }
    }

    fn act(&mut self, action: Action) {
        let flow = &mut self.world.flow;
        match action {
            Action::DropKept => {
                flow.kept = false;
                flow.kept_fin = false;
                flow.progress.set(Mark::Unseen, false);
                flow.progress.set(Mark::ReleaseAsked, false);
            }
            Action::ReplayKept => self.replay_kept(),
            Action::SendAdoption => {
                let (seq, ack) = (flow.boundary, flow.server_next);
                let wire = if flow.progress.is_opening() {
                    Wire::Syn { seq, ack }
                } else if flow.progress.is(Mark::Opening) {
                    Wire::Opens { seq, ack }
                } else {
                    flow.progress.asked += 1;
                    Wire::Adopt { seq, ack }
                };
                self.to_owner(wire);
            }
            Action::SendKeepalive => {
                let (seq, ack) = (flow.boundary.wrapping_sub(1), flow.server_next);
                if !self.request_waits() {
                    self.to_owner(Wire::Keepalive { seq, ack });
                }
            }
            Action::SendFin => {
                if !flow.fin_sent {
                    flow.fin_sent = true;
                    flow.server_next += 1;
                }
                let seq = flow.server_next - 1;
                self.fin_to_client(seq);
            }
            Action::TakeOver => {
                flow.standby = flow.owner;
                self.owns_pending();
            }
            Action::CloseStandby => {
                flow.migrated = true;
                flow.progress.set(Mark::Rescue, false);
                let old = flow.standby.take();
                self.close_leg(old);
            }
            Action::DropStandby => {
                let old = flow.standby.take();
                self.close_leg(old);
            }
            Action::CloseOwner | Action::LeaveOwner => {
                let old = flow.owner.take();
                self.close_leg(old);
            }
            Action::DropOwner => flow.owner = None,
            Action::ResumeStandby => {
                let leg = flow.standby.take();
                self.owns(leg);
                self.world.flow.progress.set(Mark::Rescue, false);
            }
            Action::RenewPort => {
                let owner = flow.owner;
                if let Some(owner) = owner
                    && self.world.legs > 0
                {
                    let leg = self.world.open(owner.pod, false);
                    self.pending = Some(leg);
                    self.owns_pending();
                    self.world.flow.progress.leg_is_new();
                }
            }
            Action::Redirect => {
                self.owns_pending();
                self.world.flow.progress.leg_is_new();
            }
            // The model's flows end with both sides closed: nobody has the owner's TIME_WAIT ended
            // there.
            Action::EndOwner => {
                let owner = self.world.flow.owner.take();
                self.reset_leg(owner);
            }
            Action::ResetOwner => self.reset_leg(self.world.flow.owner),
            Action::ResetStandby => self.reset_leg(self.world.flow.standby),
            Action::ResetClient | Action::CutClient => {
                let seq = flow.server_next;
                self.rst_to_client(seq);
            }
            Action::RequestBegins => flow.outstanding = true,
            Action::RequestAnswered | Action::RequestForgotten => flow.outstanding = false,
            Action::Release => {
                flow.owner = None;
                flow.standby = None;
                flow.kept = false;
                flow.kept_fin = false;
                flow.progress.set(Mark::Unseen, false);
                flow.progress.set(Mark::ReleaseAsked, false);
                flow.state = At(State::Gone);
            }
            // Nothing is sent to pods that a hand-over meets, or decided by it; timers end whenever
            // the network's rules let them.
            Action::AckClient
            | Action::SendSyn
            | Action::ArmHandshake
            | Action::ArmAdoption
            | Action::ArmIdle
            | Action::ArmOwnerFinPending
            | Action::ArmRescue
            | Action::ArmHalfClosed
            | Action::ArmLinger
            | Action::ArmFinSentToClient => {}
        }
    }

    /// Makes a leg the owner's (`engine/src/moves/owner.rs`).
    fn owns(&mut self, leg: Option<Leg>) {
        let translated = leg.is_some_and(|leg| self.shift(leg) > 0);
        let flow = &mut self.world.flow;
        flow.owner = leg;
        flow.progress.set(Mark::Opening, translated);
        flow.progress.set(Mark::Translated, translated);
    }

    /// The same with the leg that the event gives the flow to.
    fn owns_pending(&mut self) {
        let leg = self.pending.take();
        self.owns(leg);
        let opens = leg.is_some_and(|leg| self.config.opened[usize::from(leg.pod)]);
        self.world.flow.progress.set(Mark::Opening, opens);
    }

    /// Whose numbers a leg has; 0 where it was not opened by a handshake.
    #[must_use]
    pub fn shift(&self, leg: Leg) -> u8 {
        let shifts = &self.world.flow.shifts;
        let found = shifts.iter().find(|(l, _)| *l == leg);
        found.map_or(0, |(_, isn)| *isn)
    }

    /// Whether the request follows only once the pod has answered our SYN.
    #[must_use]
    pub fn request_waits(&self) -> bool {
        let moving = matches!(self.state(), State::Adopting | State::AdoptingIdle);
        moving && self.world.flow.progress.is_opening()
    }

    /// Sends the kept copies to the owner.
    pub fn replay_kept(&mut self) {
        if self.request_waits() {
            return;
        }
        let flow = &self.world.flow;
        let (seq, ack, next) = (flow.boundary, flow.server_next, flow.client_next);
        let (kept, fin) = (flow.kept, flow.kept_fin);
        if kept {
            self.to_owner(Wire::Data { seq, ack });
        }
        if fin {
            // A FIN that is being kept just now is forwarded after it was counted.
            self.to_owner(Wire::Fin { seq: next - 1, ack });
        }
    }

    /// Sends on a leg.
    pub fn send(&mut self, leg: Leg, wire: Wire) {
        if self.config.network == Network::Forever && matches!(wire, Wire::Ack { .. }) {
            // It only ends repetitions, and where packets arrive any number of times nobody needs
            // to repeat any.
            return;
        }
        let of_connection = matches!(
            wire,
            Wire::Data { .. }
                | Wire::Keepalive { .. }
                | Wire::Ack { .. }
                | Wire::Fin { .. }
                | Wire::Opens { .. }
        );
        let isn = if of_connection { self.shift(leg) } else { 0 };
        let owner = self.world.flow.owner == Some(leg);
        if of_connection && isn == 0 && owner && self.request_waits() {
            self.broken(Broken::NotOpened);
        }
        let packet = Packet { way: Way::ToPod, leg, isn, wire };
        self.world.net.send(self.config.network, packet);
    }

    /// Sends to the owner, if there is one.
    pub fn to_owner(&mut self, wire: Wire) {
        if let Some(owner) = self.world.flow.owner {
            self.send(owner, wire);
        }
    }

    /// The leg's end is told in the client's name, and what it answers is absorbed.
    fn close_leg(&mut self, leg: Option<Leg>) {
        let Some(leg) = leg else { return };
        let (seq, ack) = (self.world.flow.boundary, self.world.flow.server_next);
        self.send(leg, Wire::Fin { seq, ack });
        self.world.flow.closing.push(leg);
        self.world.flow.closing.sort_unstable();
    }

    fn reset_leg(&mut self, leg: Option<Leg>) {
        let Some(leg) = leg else { return };
        let flow = &self.world.flow;
        let unconfirmed = flow.owner != Some(leg)
            || flow.standby.is_some()
            || matches!(self.state(), State::Adopting | State::AdoptingIdle);
        let (boundary, next, ack) = (flow.boundary, flow.client_next, flow.server_next);
        if unconfirmed {
            let seq = boundary;
            self.send(leg, Wire::RstAck { seq, ack });
        }
        self.send(leg, Wire::RstAck { seq: next, ack });
    }

    /// A response's unit reaches the client.
    pub fn unit_to_client(&mut self, leg: Leg, seq: u8) {
        if self.world.client.ended.is_some() {
            return;
        }
        let request = seq / self.config.parts;
        let Some(unit) = self.world.client.from.get_mut(usize::from(seq)) else {
            return self.broken(Broken::WrongBytes);
        };
        let before = unit.replace(leg);
        if before.is_some_and(|b| b != leg) {
            self.broken(Broken::TwoOwners);
        }
        if request >= self.world.client.sent {
            self.broken(Broken::WrongBytes);
        }
        self.client_at_end();
    }

    /// A FIN reaches the client.
    pub fn fin_to_client(&mut self, seq: u8) {
        if self.world.client.ended.is_none() {
            self.world.client.fin_at = Some(seq);
            self.client_at_end();
        }
    }

    fn client_at_end(&mut self) {
        let client = &mut self.world.client;
        if client.fin_at == Some(client.got()) {
            client.ended = Some(Ended::Closed);
        }
    }

    /// A reset reaches the client; only an exact number ends its connection.
    pub fn rst_to_client(&mut self, seq: u8) {
        let client = &mut self.world.client;
        if client.ended.is_none() && client.got() == seq {
            client.ended = Some(Ended::Reset);
        }
    }

    /// Counts why a flow is lost, and checks that it is so.
    pub fn count_lost(&mut self, why: Lost) {
        let (flow, replay) = (&self.world.flow, self.config.replay);
        let holds = match why {
            Lost::FateUnknown | Lost::AdoptedBefore => !replay,
            Lost::ReplayedOften => replay && flow.progress.replays >= REPLAYS_MAX,
            Lost::ResponseBegun => {
                flow.requests > 0 && flow.server_next > (flow.requests - 1) * self.config.parts
            }
            Lost::ResponseUnacknowledged => flow.server_acked != flow.server_next,
            Lost::NoBackend => true,
            Lost::Pinned => flow.pinned,
            Lost::HalfClosed => self.world.client.fin && !self.answered(),
            Lost::NotKept | Lost::DrainDeadline => false,
        };
        if !holds {
            self.broken(Broken::FalseReason);
        }
        self.why(Why::Lost(why as u8));
    }

    /// Notes why the client will see an end; the first reason counts.
    pub fn why(&mut self, why: Why) {
        self.world.ghost.why.get_or_insert(why);
    }
}
