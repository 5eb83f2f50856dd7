//! How a flow changes its state: by a row of the declared table, whose actions are performed here.
//!
//! Owns the only write to a flow's state but for its birth.

use crate::{
    Engine, Output,
    backend::ports::Rest,
    clock::Instant,
    handover::Mark,
    ids::FlowId,
    mutants::Mutant,
    obs::{counters::Counter, figures::Reset},
    states::{Action, Event, Frame, State, Transition, meaning},
};

impl Engine {
    /// Moves a flow by the declared table: performs the row's actions and says what becomes of the
    /// frame.
    pub(crate) fn step(
        &mut self,
        now: Instant,
        id: FlowId,
        event: Event,
        out: &mut impl Output,
    ) -> Frame {
        let (number, row) = match meaning(self.flows[id].state, event) {
            Transition::Row(number, row) => (number, row),
            Transition::Ignore => return Frame::Forward,
            Transition::Invalid => {
                self.counters.add(Counter::UnexpectedEvents);
                debug_assert!(false, "{event:?} in {:?}", self.flows[id].state);
                return Frame::Forward;
            }
        };
        self.counters.transitions[number] += 1;
        if row.to != State::Gone {
            let flow = &mut self.flows[id];
            flow.state = row.to;
            if flow.progress.is(Mark::Transfer) && !row.to.serves() {
                self.drop_transfer(now, id);
            }
        }
        for action in row.actions {
            let last = row.to == State::Gone && *action == Action::DropKept;
            if last && self.mutated(Mutant::LeakKept) {
                continue;
            }
            self.act(now, id, *action, out);
        }
        row.frame
    }

    pub(crate) fn act(&mut self, now: Instant, id: FlowId, action: Action, out: &mut impl Output) {
        match action {
            Action::DropKept => {
                if self.flows[id].progress.is(Mark::CopiesOwed) {
                    self.owes_kept(now, id);
                }
                self.drop_kept(id);
                if self.flows[id].state.may_lack_leg() {
                    // There is no owner any more.
                    self.drop_backlog(id);
                }
            }
            Action::ReplayKept => {
                let _ = self.replay_kept(id, out);
                let _ = self.send_waiting(now, id, out);
            }
            Action::SendSyn => self.send_syn(id, out),
            Action::SendAdoption => {
                self.adoption_leaves(now, id);
                self.ask_owner(now, id, out);
            }
            Action::SendKeepalive => self.send_keepalive(id, out),
            Action::SendFin => self.send_fin_to_client(id, out),
            Action::AckClient => self.ack_client(id, out),
            Action::TakeOver => {
                self.owner_changes(id);
                self.take_over(now, id);
            }
            Action::CloseStandby => {
                self.adoption_confirmed(now, id);
                self.close_standby(now, id, out);
            }
            Action::DropStandby => self.drop_standby(now, id, out),
            Action::CloseOwner => self.close_owner(now, id, out),
            Action::LeaveOwner => self.leave_owner(now, id, out),
            Action::DropOwner => self.drop_owner(now, id, Rest::Quiet),
            Action::EndOwner => self.end_owner(now, id, out),
            Action::ResumeStandby => {
                self.owner_is_known(id);
                self.resume_standby(now, id);
            }
            Action::RenewPort => self.renew_port(now, id),
            Action::Redirect => {
                self.owner_changes(id);
                self.redirect(now, id);
            }
            Action::ResetOwner => self.reset_leg(id, self.flows[id].owner, out),
            Action::ResetStandby => self.reset_leg(id, self.flows[id].standby, out),
            Action::CutClient => self.reset_client(id, Reset::Closed, out),
            Action::ResetClient => self.reset_client(id, self.reset_by_table(id), out),
            Action::RequestBegins => self.request_begins(now, id),
            Action::RequestAnswered => self.request_answered(now, id),
            Action::RequestForgotten => self.request_forgotten(now, id),
            Action::ArmHandshake
            | Action::ArmAdoption
            | Action::ArmIdle
            | Action::ArmOwnerFinPending
            | Action::ArmRescue
            | Action::ArmFinSentToClient
            | Action::ArmHalfClosed
            | Action::ArmLinger => self.arm(now, id, action),
            Action::Release => self.release(now, id),
        }
    }
}
