//! Carries out what `handover` decides: the view that a decision looks at, and each effect.
//!
//! Owns the way between the flow table and the pure decisions. It decides nothing itself.

use crate::{
    Cause, Engine, Output,
    backend::{Evidence, Finding, ports::Rest},
    clock::Instant,
    flow::Bits,
    handover::{self, Effect, End, Input, Mark, Numbers, Restored, Safeguards, Talk, Then, View},
    ids::{FlowId, Leg},
    mutants::Mutant,
    obs::{
        counters::Counter,
        events::What,
        pins::{Gone, PinReason},
    },
    timing::{ADOPTION_TRIES_MAX, IDLE_ENDS_MAX, RST_PAUSE_MS},
};
use baton_api::Protocol;
use baton_guard::{ToCome, Tracker};
use baton_packet::{EndMark, Segment};

/// The end of a socket that was let go of.
const RELEASED: End = End { fin: false, mark: Some(EndMark::Released), acked: None };

/// The segment that led to a decision, and its frame.
type Frame<'a> = Option<(&'a [u8], &'a Segment)>;

impl Engine {
    /// What decisions look at.
    pub(crate) fn handover_view(&mut self, now: Instant, id: FlowId) -> View {
        let owner = self.flows[id].owner.backend;
        let owner = self.backends.get_mut(usize::from(owner));
        let opens = self.flows[id].progress.is(Mark::Opening);
        let another_port = owner.is_some_and(|owner| match opens {
            true => owner.ports.has_one(&self.legs.rests, now.ms()),
            false => owner.ports.has_ready(&mut self.legs.rests, now.ms()),
        });
        let flow = &self.flows[id];
        let tracker = self.tracker(id);
        let is = |what: fn(&Tracker) -> bool| tracker.is_some_and(what);
        let (adoption_expects, adoption_sends) = self.adoption_start(id);
        View {
            state: flow.state,
            progress: flow.progress,
            numbers: Numbers {
                boundary: flow.boundary,
                client_next: flow.client_next,
                client_acked: flow.client_acked,
                server_next: flow.server_next,
                server_acked: flow.server_acked,
                adoption_expects,
                adoption_sends,
            },
            talk: Talk {
                answered: self.answered(id),
                at_rest: self.at_rest(id),
                unanswered: is(|t| t.unanswered() > 0),
                until_close: is(Tracker::until_close),
                closing: is(Tracker::closing),
                response_begun: is(Tracker::response_begun),
                complete: tracker.is_none_or(|t| t.to_come() == ToCome::Exactly(0)),
            },
            owned: flow.owner.is_some(),
            outstanding: flow.bits.has(Bits::OUTSTANDING),
            restoring: flow.bits.has(Bits::PRELUDE),
            pinned: flow.pin.is_some(),
            followed: flow.pin.is_none() && self.protocol(id) != Protocol::None,
            session_refused: flow.pin == Some(PinReason::SessionRefused),
            kept_whole: flow.bits.has(Bits::KEPT_WHOLE),
            replay_allowed: self.allows_replay(id),
            another_port,
            overdue: self.answer_due_ms(now, id) == 0,
            tries_max: ADOPTION_TRIES_MAX,
            idle_ends_max: IDLE_ENDS_MAX,
        }
    }

    /// All of them, but where the simulation takes one away.
    #[inline]
    pub(crate) fn safeguards(&self) -> Safeguards {
        let has = |mutant| !self.mutated(mutant);
        Safeguards {
            bare_rst_is_no_answer: has(Mutant::CommitOnReset),
            stale_numbers_are_no_answer: has(Mutant::CommitOnStale),
            unknown_fate_is_no_refusal: has(Mutant::RollBackTaken),
            replays_are_counted: has(Mutant::ReplayUnbounded),
            unseen_is_unacknowledged: has(Mutant::BelieveUnseen),
            unmarked_end_is_the_legs: has(Mutant::BelieveUnmarked),
            what_is_kept_stays: has(Mutant::TakeWhatIsKept),
            ..Safeguards::ALL
        }
    }

    /// Decides what an input means to a flow, and does it. `frame` belongs to the segment that the
    /// input is about, if a decision may need it.
    pub(crate) fn decide(
        &mut self,
        now: Instant,
        id: FlowId,
        mut input: Input,
        frame: Frame<'_>,
        out: &mut impl Output,
    ) -> Then {
        loop {
            let decision =
                handover::decide(&self.handover_view(now, id), &self.safeguards(), input);
            let flow = &mut self.flows[id];
            flow.progress = decision.progress;
            flow.note_aside();
            for effect in decision.effects() {
                self.carry_out(now, id, effect, frame, out);
            }
            input = match decision.then {
                Then::JudgeSession => Input::Restored(
                    frame.map_or(Restored::Partly, |(f, segment)| self.restored(id, f, segment)),
                ),
                Then::FindAnother => Input::Another { found: self.find_another(now, id) },
                Then::FindRescuer { another, or_same } => {
                    Input::Rescuer { found: self.find_rescuer(now, id, (another, or_same), out) }
                }
                Then::FindRival => Input::Rival { found: self.find_rival(now, id, out) },
                Then::FindBetter => Input::Better { found: self.find_better(now, id) },
                Then::LetGo => self.is_ended(now, id, RELEASED),
                then => return then,
            };
        }
    }

    fn carry_out(
        &mut self,
        now: Instant,
        id: FlowId,
        effect: Effect,
        frame: Frame<'_>,
        out: &mut impl Output,
    ) {
        let owner = self.flows[id].owner;
        match effect {
            Effect::Step(event) => {
                let _ = self.step(now, id, event, out);
            }
            Effect::Count(counter) => self.counters.add(counter),
            Effect::Lost(why) => self.count_lost(id, why),
            Effect::Replayed => self.tell(id, What::Replayed),
            Effect::Settle => {
                self.decide(now, id, Input::Settled, None, out);
            }
            Effect::ProbeLiveness => self.learn(now, owner.backend, Evidence::Doubt, out),
            Effect::AskListener(closer_listens) => {
                let evidence = Evidence::End { closer_listens };
                self.learn(now, owner.backend, evidence, out);
            }
            Effect::ForgetInFront => self.forget_in_front(id, out),
            Effect::AdopterRefused(reason) => {
                self.adopter_is(now, owner.backend, Finding::Refused(reason));
            }
            Effect::AdopterSilent => {
                self.adopter_is(now, owner.backend, Finding::Silent);
            }
            Effect::AdopterReplaced => {
                self.backends[usize::from(owner.backend)].adopter.forget(0);
                self.rounds.probes.by(now.ms());
            }
            Effect::AskRelease => self.send_release(now, id, out),
            Effect::OpeningRefused => {
                self.counters.add(Counter::OpeningsRefused);
                if !self.backends[usize::from(owner.backend)].liveness.is_down() {
                    self.learn(now, owner.backend, Evidence::Refused, out);
                }
            }
            Effect::OpeningUnlike => {
                self.counters.add(Counter::OpeningsUnlike);
                self.backends[usize::from(owner.backend)].adopter.unlike = true;
            }
            Effect::ResetStale(expects) => self.reset_stale(owner, expects, out),
            Effect::AwaitAnswer => self.wheel.arm(id, now.ms() + RST_PAUSE_MS),
            Effect::WindowBegins => {
                if let Some((_, segment)) = frame {
                    self.window_begins(now, id, segment, out);
                }
            }
            Effect::AckOwner => self.ack_owner(id, self.flows[id].server_next, out),
            Effect::OwnerKnown => self.owner_is_known(id),
            Effect::BackendFails => self.backend_fails(now, id),
            Effect::HoldEnd(closer_listens) => {
                let flow = &mut self.flows[id];
                flow.bits.set(Bits::CLOSER_LISTENS, closer_listens);
                flow.sent_us = now.0 as u32;
            }
            Effect::Stranded(how) => self.is_stranded(id, how),
            Effect::OrphanSince => self.flows[id].moved_ms = now.ms32(),
            Effect::TryRescue => self.try_rescue(now, id, out),
            Effect::RescueBegins => self.rescue_begins(id),
            Effect::FreeStandby => {
                let standby = self.flows[id].standby;
                self.flows[id].standby.port = Leg::NONE.port;
                self.free_leg(now, standby, Rest::Quiet);
            }
        }
    }

    /// A flow lost its owner.
    fn is_stranded(&mut self, id: FlowId, how: Gone) {
        self.counters.add(match how {
            Gone::Closed => Counter::OwnersClosed,
            Gone::Reset => Counter::OwnersReset,
            Gone::Silent => Counter::OwnersSilent,
            Gone::Released => Counter::OwnersReleased,
        });
        self.counters.add(Counter::Stranded);
        self.drop_pending_move(id);
        self.tell(id, What::OwnerLost(how));
    }

    /// The hand-over of a flow without owner begins.
    fn rescue_begins(&mut self, id: FlowId) {
        let flow = &mut self.flows[id];
        if !flow.bits.has(Bits::KEPT_WHOLE) {
            flow.boundary = flow.client_next;
        }
        flow.causes.begin(if !flow.owner.is_some() {
            Cause::Legless
        } else if flow.progress.is(Mark::Released) {
            Cause::Stall
        } else {
            Cause::Rescue
        });
        if flow.standby.backend == Leg::NONE.backend {
            // No leg any more, but whose flow it was counts when it is saved.
            flow.standby = Leg { backend: flow.owner.backend, ..Leg::NONE };
        }
        self.prepare_prelude(id);
    }
}
