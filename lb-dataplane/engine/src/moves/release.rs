//! Requests that lie unread in the kernel of a pod that answers nothing: its adopter is asked to
//! let go of them (`docs/adoption-wire.md`, Releases), and another pod answers them.
//!
//! Owns when that is asked, and how. Of which flows, and what the answers mean, is decided by
//! `handover`.
//!
//! # Decisions
//!
//! - **Whether an application has read a request is never guessed**: the adopter looks while it
//!   holds the socket's lock, and ends the socket in the same moment. That a pod stands still is a
//!   guess (nothing answered for 100 ms and four times as long as usual), which costs a question of
//!   each request and its answer where it is wrong.
//! - **Nobody is asked where no other pod would do better**: one that can adopt and does not stand
//!   still itself. Nor in the first 3 s after our own link came up: the silence was ours. A request
//!   is asked about until it is answered or kept, and let go of once.
//! - **What the client sends while the question is open comes again**, if it belongs to no request
//!   that is kept: without a copy of it the next pod could not go on, and the answer may be on its
//!   way. That ends with the answer, or 300 ms after the pod was last asked about anything, which
//!   is no longer than it stands still.

use crate::{
    Engine, Output, Verdict,
    backend::{Sweep, keys::Message},
    clock::Instant,
    handover::{Input, Mark, Then},
    ids::FlowId,
    obs::counters::Counter,
    pods::sweep::Swept,
    timing::{RELEASE_AFTER_MAX_US, RELEASE_AFTER_US, RELEASE_OPEN_MS, RELEASE_SLOWER},
};
use baton_api::OnStall;
use baton_packet::{Adoption, MessageKind, Segment, SegmentSpec, build_adoption};

impl Engine {
    /// A backend that answers nothing: what its application has not read is asked for.
    pub(crate) fn look_over_stall(&mut self, now: Instant, index: u16) {
        let backend = &self.backends[usize::from(index)];
        let stalled_us = backend.estimate.stalled_us(now.0);
        let slow_us = RELEASE_SLOWER.saturating_mul(backend.load.usual_us() as u64);
        if self.link.is_settled(now)
            && stalled_us >= slow_us.clamp(RELEASE_AFTER_US, RELEASE_AFTER_MAX_US)
            && backend.adopter.namespace != 0
            && !backend.liveness.is_down()
        {
            self.begin_sweep(index, Sweep::Stalled);
        }
    }

    /// Asks a flow's owner to let go of it, if its request can be answered by another pod.
    pub(crate) fn ask_release(&mut self, now: Instant, id: FlowId, out: &mut impl Output) -> Swept {
        let flow = &self.flows[id];
        let policy = &self.policies[usize::from(flow.policy)];
        let asks = policy.spec.on_stall == OnStall::Release
            && !flow.backlog.is_some()
            && flow.early_client.is_empty()
            && self.may_rescue(id)
            && !self.transfer_is_open(id);
        if !asks {
            return Swept::Stays;
        }
        match self.decide(now, id, Input::Stalled, None, out) {
            Then::Stays => Swept::Stays,
            Then::Nobody => Swept::Nobody,
            _ => Swept::Done,
        }
    }

    /// Whether another pod can have a request that is asked back, and does not stand still itself.
    pub(crate) fn find_better(&mut self, now: Instant, id: FlowId) -> bool {
        let flow = &self.flows[id];
        let owner = flow.owner.backend;
        let another = self.policies[usize::from(flow.policy)].choose_rescue(
            flow.is_v6(),
            Some(owner),
            false,
            &self.backends,
            now,
            &mut self.rng,
        );
        let moves_on = |index: u16| {
            let estimate = &self.backends[usize::from(index)].estimate;
            estimate.stalled_us(now.0) < RELEASE_AFTER_US
        };
        another.is_some_and(moves_on) && self.signing_key(owner).is_some()
    }

    /// Asks the owner's adopter. One question that is lost is asked again by the next sweep.
    pub(crate) fn send_release(&mut self, now: Instant, id: FlowId, out: &mut impl Output) {
        let flow = &self.flows[id];
        let owner = flow.owner.backend;
        self.backends[usize::from(owner)].release_asked_ms = now.ms();
        let (Some(spec), Some((epoch, key))) = (self.to_leg(flow.owner), self.signing_key(owner))
        else {
            return;
        };
        let message = Adoption {
            namespace: self.backends[usize::from(owner)].adopter.namespace,
            ..Adoption::bare(MessageKind::Release, epoch)
        };
        let spec = SegmentSpec {
            seq: flow.boundary,
            ack: flow.server_next,
            window: 0,
            timestamps: Some((0, 0)),
            ..spec
        };
        self.emit(out, |buffer| build_adoption(buffer, &spec, &message, &key));
    }

    /// Whether the owner may still let go of the flow, because it was asked to.
    pub(crate) fn release_is_open(
        &mut self,
        now: Instant,
        id: FlowId,
        out: &mut impl Output,
    ) -> bool {
        let flow = &self.flows[id];
        if !flow.progress.is(Mark::ReleaseAsked) {
            return false;
        }
        let owner = &self.backends[usize::from(flow.owner.backend)];
        if now.ms() < owner.release_asked_ms + RELEASE_OPEN_MS {
            return true;
        }
        self.decide(now, id, Input::ReleaseLate, None, out);
        false
    }

    /// A message from the pod of a flow that it was asked to let go of.
    pub(crate) fn answer_to_release(
        &mut self,
        now: Instant,
        frame: &[u8],
        segment: &Segment,
        id: FlowId,
        out: &mut impl Output,
    ) -> Verdict {
        let owner = self.flows[id].owner.backend;
        match self.message(frame, segment, owner) {
            Message::Answer(reason, _) => {
                let (seq, ack) = (segment.seq, segment.ack);
                let input = Input::ReleaseAnswered { reason, seq, ack };
                self.decide(now, id, input, None, out);
            }
            Message::Forged => self.counters.add(Counter::ForgedAnswers),
            _ => self.counters.add(Counter::Fenced),
        }
        Verdict::Absorbed
    }
}
