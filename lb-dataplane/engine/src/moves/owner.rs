//! A flow and its owner leg: how it gets one, loses it, and ends.
//!
//! Owns the counts that go with that in every table. Which leg it is, others decide.

use crate::{
    Engine, Output,
    backend::ports::Rest,
    clock::Instant,
    flow::Bits,
    handover::Mark,
    ids::{FlowId, Leg, NONE},
    mutants::Mutant,
    obs::{cause::MoveEnd, counters::Counter},
    states::State,
    tables::{From, legs::Use},
};

impl Engine {
    /// Makes `leg` the flow's owner leg in every table.
    pub(crate) fn own_leg(&mut self, id: FlowId, leg: Leg) {
        self.legs.uses.assign(leg, Use::Owner(id));
        let backend = &mut self.backends[usize::from(leg.backend)];
        if self.flows[id].state == State::SynSent {
            self.flows[id].link = backend.ports.begins(&mut self.legs.rests, leg.port);
        }
        backend.flows += 1;
        backend.pinned += u32::from(self.flows[id].pin.is_some());
        backend.drains.comes(self.flows[id].policy);
        let renewed = backend.adopter.renewed;
        let translated = self.legs.shifts.owned(id, leg);
        let flow = &mut self.flows[id];
        (flow.owner, flow.renewed) = (leg, renewed);
        flow.progress.set(Mark::Opening, translated);
        flow.progress.set(Mark::Translated, translated);
        flow.progress.set(Mark::Shared, false);
        flow.note_aside();
    }

    /// The flow is not the backend's any more.
    pub(crate) fn leaves(&mut self, id: FlowId, backend: u16) {
        let backend = &mut self.backends[usize::from(backend)];
        backend.flows -= 1;
        backend.pinned -= u32::from(self.flows[id].pin.is_some());
        backend.drains.goes(self.flows[id].policy);
        self.flows[id].progress.set(Mark::Translated, false);
        self.flows[id].note_aside();
    }

    /// The handshake with the owner is complete, or over.
    pub(crate) fn handshake_ends(&mut self, id: FlowId) {
        let handshake = std::mem::replace(&mut self.flows[id].link, NONE);
        let owner = usize::from(self.flows[id].owner.backend);
        if handshake != NONE {
            let ports = &mut self.backends[owner].ports;
            ports.completes(&mut self.legs.rests, handshake);
        }
    }

    /// Takes the owner leg off the flow; its port rests.
    pub(crate) fn drop_owner(&mut self, now: Instant, id: FlowId, rest: Rest) {
        let leg = self.flows[id].owner;
        if leg.is_some() {
            self.handshake_ends(id);
            self.leaves(id, leg.backend);
            self.free_leg(now, leg, rest);
            self.flows[id].owner = Leg::NONE;
        }
    }

    /// Both ends have acknowledged everything, their closes too: nothing will come from the owner
    /// leg any more. The pod's TIME_WAIT, if it closed first, has nothing left to wait for and
    /// would hold the port.
    pub(crate) fn end_owner(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        let flow = &self.flows[id];
        if flow.bits.has(Bits::POD_WAITS) {
            self.end_time_wait(flow.owner, flow.client_next, out);
        }
        self.drop_owner(now, id, Rest::Clean);
    }

    pub(crate) fn release(&mut self, now: Instant, id: FlowId) {
        self.wheel.cancel(id);
        self.pin_ends(id);
        if self.flows[id].progress.is(Mark::Transfer) {
            self.drop_transfer(now, id);
        }
        if !self.mutated(Mutant::LeakPort) {
            self.drop_owner(now, id, Rest::Quiet);
        }
        let standby = self.flows[id].standby;
        if standby.is_some() {
            self.free_leg(now, standby, Rest::Quiet);
        }
        if !self.mutated(Mutant::LeakKept) {
            self.drop_kept(id);
        }
        self.drop_backlog(id);
        self.drop_early(id, From::Client);
        self.drop_early(id, From::Server);
        self.drop_guard(id);
        self.client_closes(now, id);
        if self.flows[id].state.is_moving() {
            self.move_ends(id, MoveEnd::Ended);
        }
        let flow = &self.flows[id];
        self.policies[usize::from(flow.policy)].flows -= 1;
        self.frontends[usize::from(flow.frontend)].flows -= 1;
        self.net.hops.let_go(flow.hop);
        self.counters.add(Counter::FlowsClosed);
        self.flows.remove(id);
    }
}
