//! Who gets a flow next, idle moves, and what the dataplane learns of pods. A question is asked and
//! answered in one step, with what is true of the pod at that moment.

use crate::{step::Run, wire::Leg, world::Down};
use baton_engine::{
    handover::Input,
    states::{Event, State},
    timing::{LAST_REPLAY_MS, RESCUE_MS},
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
        pod < self.config.pods
            && known.ready
            && !known.unlike
            && !self.is_leaving(pod)
            && self.world.legs > 0
    }

    /// What a probe would find: whether the pod takes flows over. Of one that does not adopt only
    /// its listener is known.
    #[must_use]
    pub fn takes_over(&self, pod: u8) -> bool {
        let truth = &self.world.pods[usize::from(pod)];
        match self.config.opened[usize::from(pod)] {
            true => truth.listens,
            false => truth.adopts(),
        }
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
        self.world.flow.progress.hand_over();
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

    /// An orphan is looked at, so long after it lost its owner.
    pub fn try_rescue(&mut self, waited_ms: u64) {
        self.decide(Input::OrphanDue { waited_ms });
    }

    /// The same at some later time.
    pub fn try_rescue_later(&mut self) {
        self.try_rescue(LAST_REPLAY_MS);
    }

    /// The time for a rescue is over.
    pub fn give_up(&mut self) {
        self.try_rescue(RESCUE_MS);
    }

    /// Somebody listens there, so a held end stands; but not where the process is another one than
    /// before.
    pub fn listens(&mut self, pod: u8) {
        self.backend_is_up(pod);
        if self.holds(pod) {
            let unmarked = self.config.opened[usize::from(pod)];
            self.decide(Input::PodLives {
                // Its adopter tells, if it has one.
                replaced: self.world.pods[usize::from(pod)].died && !unmarked,
                settled: true,
                unmarked,
            });
        }
    }

    /// Nobody listens there.
    pub fn nobody_listens(&mut self, pod: u8) {
        let known = &mut self.world.known[usize::from(pod)];
        known.down = Some(Down::NoListener);
        known.ready = false;
        self.pod_gone(pod, false);
    }

    fn pod_gone(&mut self, pod: u8, silent: bool) {
        if self.world.flow.owner.map(|o| o.pod) == Some(pod) {
            let rescuable = true;
            self.decide(Input::PodGone { silent, rescuable });
        }
    }

    /// Nothing is heard of the pod.
    pub fn is_silent(&mut self, pod: u8) {
        let known = &mut self.world.known[usize::from(pod)];
        known.down = Some(Down::Silent);
        known.ready = false;
        self.pod_gone(pod, true);
    }

    /// A probe comes back with what is true now.
    pub fn probed(&mut self, pod: u8) {
        let ready = self.takes_over(pod);
        let listens = self.world.pods[usize::from(pod)].listens;
        if ready {
            self.backend_is_up(pod);
        } else if !listens && self.world.known[usize::from(pod)].down.is_none() {
            self.nobody_listens(pod);
        }
        self.world.known[usize::from(pod)].ready = ready;
    }

    fn backend_is_up(&mut self, pod: u8) {
        self.world.known[usize::from(pod)].down = None;
    }

    fn holds(&self, pod: u8) -> bool {
        self.state() == State::OwnerFinPending && self.world.flow.owner.map(|o| o.pod) == Some(pod)
    }
}
