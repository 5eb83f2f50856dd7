//! Rescue, idle moves and questions to pods (`engine/src/rescue.rs`, `drain.rs`, `listener.rs`, `sweep.rs`, `adopt.rs`).
//!
//! Owns who gets a flow next, and what the dataplane learns of pods. A question is asked and answered in one step, with what
//! is true of the pod at that moment.

use crate::{
    step::Run,
    wire::Leg,
    world::{Broken, Down, Why},
};
use baton_engine::{
    Lost,
    states::{Event, State},
};

impl Run<'_> {
    /// Whether a pod is known to go away.
    #[must_use]
    pub fn is_leaving(&self, pod: u8) -> bool {
        (pod == 0 && self.config.drain) || self.world.known[usize::from(pod)].down.is_some()
    }

    /// Whether the dataplane would give a flow to this pod.
    #[must_use]
    pub fn adoptable(&self, pod: u8) -> bool {
        let known = self.world.known[usize::from(pod)];
        pod < self.config.pods && known.ready && !self.is_leaving(pod) && self.world.legs > 0
    }

    /// A leg to a pod that is adoptable, on a tuple where a stale socket may sit.
    pub fn leg_to(&mut self, pod: u8) -> Option<Leg> {
        if !self.adoptable(pod) {
            return None;
        }
        let stale = std::mem::take(&mut self.stale);
        Some(self.world.open(pod, stale))
    }

    /// A leg to the pod that this step picks, if it may be that one.
    pub fn choose(&mut self, except: Option<u8>) -> Option<Leg> {
        self.picked = true;
        let pod = self.pick.filter(|p| Some(*p) != except)?;
        self.leg_to(pod)
    }

    /// What every hand-over from a living owner begins with.
    pub fn hand_over(&mut self, leg: Leg) {
        let flow = &mut self.world.flow;
        flow.tries = 1;
        (flow.asked, flow.refusals) = (0, 0);
        flow.standby_gone = false;
        flow.client_fin = false;
        self.pending = Some(leg);
    }

    /// A flow at rest leaves a draining pod.
    pub fn move_idle(&mut self) {
        let Some(owner) = self.world.flow.owner else {
            return;
        };
        if self.world.flow.pinned || !self.all_acked() || !self.answered() {
            return;
        }
        let Some(leg) = self.choose(Some(owner.pod)) else {
            return;
        };
        self.world.flow.boundary = self.world.flow.client_next;
        self.hand_over(leg);
        self.step(Event::MoveIdle);
    }

    /// The owner has not begun to answer within the policy's time.
    pub fn response_overdue(&mut self) {
        let Some(owner) = self.world.flow.owner else {
            return;
        };
        if self.world.flow.pinned || !self.may_replay_again() {
            return;
        }
        let Some(leg) = self.choose(Some(owner.pod)) else {
            return;
        };
        self.world.flow.replays += 1;
        self.world.flow.rescue = true;
        self.hand_over(leg);
        self.step(Event::ResponseTimeout);
    }

    /// The pod lives and meant its end.
    pub fn close_stands(&mut self) {
        if self.world.client.fin {
            self.why(Why::ClientLeft);
        } else {
            let closed_one = |o: Leg| self.world.pods[usize::from(o.pod)].closed_one;
            let meant = self.world.flow.owner.is_some_and(closed_one);
            if !meant && !self.adopted_idle() {
                self.broken(Broken::FalseReason);
            }
            self.why(Why::CloseStands);
        }
        let event = if self.world.flow.held_fin {
            Event::CloseStands
        } else {
            Event::ResetStands
        };
        self.step(event);
    }

    /// The owner is gone: another one is needed.
    pub fn owner_gone(&mut self) {
        self.becomes_orphan();
        self.try_rescue();
    }

    /// The flow has no owner any more.
    pub fn becomes_orphan(&mut self) {
        self.world.flow.tries = 0;
        self.step(Event::OwnerGone);
    }

    /// Gives an orphan to another pod, if one can have it now.
    pub fn try_rescue(&mut self) {
        let flow = &self.world.flow;
        let request = flow.kept;
        let only_fin = flow.client_fin && flow.client_acked + 1 == flow.client_next;
        if !request && only_fin && self.config.safeguards.kept_fin_is_answered {
            self.step(Event::ClientFin);
            return;
        }
        if !request && flow.client_acked != flow.client_next {
            return self.lose(Lost::NotKept);
        }
        if flow.server_acked != flow.server_next {
            return self.try_later();
        }
        let except = flow.owner.filter(|_| flow.tries == 0).map(|o| o.pod);
        let Some(leg) = self.choose(except) else {
            return self.try_later();
        };
        let flow = &mut self.world.flow;
        if !request {
            flow.boundary = flow.client_next;
        } else if !flow.unseen {
            flow.replays += 1;
        }
        flow.standby_gone = true;
        flow.rescue = true;
        flow.unseen = false;
        flow.tries = 1;
        (flow.asked, flow.refusals) = (0, 0);
        self.pending = Some(leg);
        let event = if request {
            Event::RescueRequest
        } else {
            Event::RescueIdle
        };
        self.step(event);
    }

    /// How often it was tried only counts here as "not at the first time": see `except` above.
    fn try_later(&mut self) {
        self.world.flow.tries = 1;
        self.step(Event::Doubt);
    }

    /// The time for a rescue is over.
    pub fn give_up(&mut self) {
        let why = if self.world.flow.server_acked != self.world.flow.server_next {
            Lost::ResponseUnacknowledged
        } else {
            Lost::NoBackend
        };
        self.lose(why);
    }

    /// Nothing can save the flow.
    pub fn lose(&mut self, why: Lost) {
        self.count_lost(why);
        self.step(Event::Lost);
    }

    /// Somebody listens there, so a held end stands; but not where the process is another one than before.
    pub fn listens(&mut self, pod: u8) {
        self.backend_is_up(pod);
        if !self.holds(pod) {
            return;
        }
        if self.world.pods[usize::from(pod)].died && !self.adopted_idle() {
            self.owner_gone();
        } else {
            self.close_stands();
        }
    }

    /// Nobody listens there.
    pub fn nobody_listens(&mut self, pod: u8) {
        let known = &mut self.world.known[usize::from(pod)];
        known.down = Some(Down::NoListener);
        known.ready = false;
        if self.holds(pod) {
            self.owner_gone();
        }
    }

    /// Nothing is heard of the pod.
    pub fn is_silent(&mut self, pod: u8) {
        let known = &mut self.world.known[usize::from(pod)];
        known.down = Some(Down::Silent);
        known.ready = false;
        if self.holds(pod) {
            return self.owner_gone();
        }
        if self.world.flow.owner.map(|o| o.pod) != Some(pod) {
            return;
        }
        match self.state() {
            State::AdoptingIdle => self.fate_unknown(),
            State::Adopting if self.may_replay_again() => self.fate_unknown(),
            State::Fresh | State::Idle if !self.world.flow.pinned && self.answered() => {
                self.owner_gone();
            }
            State::Request if self.may_replay_again() && !self.world.flow.pinned => {
                self.owner_gone();
            }
            _ => {}
        }
    }

    /// A probe comes back with what is true now.
    pub fn probed(&mut self, pod: u8) {
        let truth = &self.world.pods[usize::from(pod)];
        let (ready, listens) = (truth.adopts(), truth.listens);
        if ready {
            self.backend_is_up(pod);
        } else if !listens && self.world.known[usize::from(pod)].down.is_none() {
            self.nobody_listens(pod);
        }
        self.world.known[usize::from(pod)].ready = ready;
    }

    /// It came to its owner without a request and has had none since: saved once, then a close is believed.
    fn adopted_idle(&self) -> bool {
        let flow = &self.world.flow;
        flow.migrated && flow.boundary == flow.client_next
    }

    fn backend_is_up(&mut self, pod: u8) {
        self.world.known[usize::from(pod)].down = None;
    }

    fn holds(&self, pod: u8) -> bool {
        self.state() == State::Held && self.world.flow.owner.map(|o| o.pod) == Some(pod)
    }
}
