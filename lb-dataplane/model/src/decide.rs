//! Hand-overs are decided by the engine's own function (`baton_engine::handover::decide`): the view
//! of a flow of the model, and each effect carried out on it.
//!
//! Owns the translation. It decides nothing.

use crate::{
    pod::STALE,
    step::Run,
    wire::{Leg, Refusal, Wire},
    world::{Broken, Down, Why},
};
use baton_engine::handover::{
    self, Effect, Input, Mark, Numbers, Opening, Reply, Restored, Talk, Then, View,
};
use baton_engine::states::State;
use baton_packet::{EndMark, Reason, SeqNumber};

/// A challenge acknowledges what no segment of the client's does. A number of its own here.
pub const CHALLENGE: u8 = 50;
/// The number 0 of a kernel's refusal, in the client's numbers: wherever the pod's own begin. It
/// may well lie in a window.
pub const ZERO: u8 = 40;
/// Beyond what any window could hold.
const FAR: u32 = 1 << 31;

/// A unit's number as the engine has it.
#[must_use]
pub fn number(unit: u8) -> SeqNumber {
    match unit {
        STALE.. => SeqNumber(FAR + u32::from(unit)),
        CHALLENGE.. => handover::challenge(SeqNumber(u32::from(unit - CHALLENGE))),
        _ => SeqNumber(u32::from(unit)),
    }
}

/// And back, for what a stale socket expects.
fn unit(number: SeqNumber) -> u8 {
    (number.0 & 0xff) as u8
}

impl Refusal {
    /// The adopter's reason, and what it tells besides.
    fn reason(self) -> (Reason, SeqNumber) {
        match self {
            Refusal::NoListener => (Reason::NoListener, SeqNumber(0)),
            Refusal::QueueFull => (Reason::AcceptQueueFull, SeqNumber(0)),
            Refusal::TupleInUse(expects) => (Reason::TupleInUse, number(expects)),
            Refusal::AlreadyAdopted => (Reason::AlreadyAdopted, SeqNumber(0)),
        }
    }
}

impl Run<'_> {
    /// What decisions look at.
    #[must_use]
    pub fn view(&self) -> View {
        let flow = &self.world.flow;
        let answered = self.answered();
        let asked = flow.requests * self.config.parts;
        View {
            state: flow.state.0,
            progress: flow.progress,
            numbers: Numbers {
                boundary: number(flow.boundary),
                client_next: number(flow.client_next),
                client_acked: number(flow.client_acked),
                server_next: number(flow.server_next),
                server_acked: number(flow.server_acked),
                adoption_expects: number(flow.boundary),
                adoption_sends: number(flow.server_next),
            },
            talk: Talk {
                answered,
                at_rest: answered,
                unanswered: !answered,
                until_close: false,
                closing: false,
                response_begun: flow.server_next + self.config.parts > asked,
                complete: true,
            },
            owned: flow.owner.is_some(),
            outstanding: flow.outstanding,
            restoring: false,
            pinned: flow.pinned,
            followed: !flow.pinned,
            session_refused: false,
            kept_whole: flow.kept,
            replay_allowed: self.config.replay,
            another_port: self.world.legs > 0,
            overdue: self.overdue,
            tries_max: self.config.tries_max,
            idle_ends_max: self.config.idle_ends_max,
        }
    }

    /// Decides what an input means, and does it.
    pub fn decide(&mut self, mut input: Input) -> Then {
        loop {
            let safe = &self.config.safeguards.handover;
            let decision = handover::decide(&self.view(), safe, input);
            self.world.flow.progress = decision.progress;
            for effect in decision.effects() {
                self.carry_out(effect);
            }
            let owner = self.world.flow.owner.map(|o| o.pod);
            input = match decision.then {
                Then::JudgeSession => Input::Restored(Restored::Not),
                Then::FindAnother => Input::Another { found: self.find(owner) },
                Then::FindRescuer { another, .. } => {
                    Input::Rescuer { found: self.find(owner.filter(|_| another)) }
                }
                Then::FindRival => Input::Rival { found: self.find(owner) },
                // It is asked only where one would (`explore`).
                Then::FindBetter => Input::Better { found: true },
                Then::LetGo => return self.owner_ended(false, None, Some(EndMark::Released)),
                then => return then,
            };
        }
    }

    /// A leg to the pod that this step picks, for the hand-over that begins.
    fn find(&mut self, except: Option<u8>) -> bool {
        let leg = self.choose(except);
        self.pending = leg.or(self.pending);
        leg.is_some()
    }

    fn carry_out(&mut self, effect: Effect) {
        let owner = self.world.flow.owner;
        match effect {
            Effect::Step(event) => {
                self.step(event);
            }
            Effect::Lost(why) => self.count_lost(why),
            Effect::Settle => {
                self.decide(Input::Settled);
            }
            Effect::AdopterRefused(_) | Effect::AdopterSilent | Effect::AdopterReplaced => {
                if let Some(owner) = owner {
                    self.world.known[usize::from(owner.pod)].ready = false;
                }
            }
            // Its kernel answers, and nobody listens there.
            Effect::OpeningRefused => {
                if let Some(owner) = owner {
                    let known = &mut self.world.known[usize::from(owner.pod)];
                    (known.ready, known.down) = (false, Some(Down::NoListener));
                }
            }
            Effect::OpeningUnlike => {
                if let Some(owner) = owner {
                    self.world.known[usize::from(owner.pod)].unlike = true;
                }
            }
            Effect::ResetStale(expects) => {
                let seq = unit(expects);
                self.to_owner(Wire::Rst { seq });
            }
            Effect::AskRelease => {
                let flow = &self.world.flow;
                let (seq, ack) = (flow.boundary, flow.server_next);
                self.to_owner(Wire::Release { seq, ack });
            }
            Effect::OwnerKnown => self.check_close_stands(),
            Effect::TryRescue => self.try_rescue(0),
            Effect::RescueBegins => {
                let flow = &mut self.world.flow;
                if !flow.kept {
                    flow.boundary = flow.client_next;
                }
            }
            Effect::FreeStandby => self.world.flow.standby = None,
            // Figures, questions to pods (which are answered with what is true), windows, time.
            Effect::Count(_)
            | Effect::Replayed
            | Effect::ProbeLiveness
            | Effect::AskListener(_)
            | Effect::ForgetInFront
            | Effect::AwaitAnswer
            | Effect::WindowBegins
            | Effect::AckOwner
            | Effect::BackendFails
            | Effect::HoldEnd(_)
            | Effect::Stranded(_)
            | Effect::OrphanSince => {}
        }
    }

    /// A held end is about to be believed.
    fn check_close_stands(&mut self) {
        let closed_one = |o: Leg| self.world.pods[usize::from(o.pod)].closed_one;
        if self.world.client.fin {
            self.why(Why::ClientLeft);
        } else if self.world.flow.owner.is_some_and(closed_one) {
            self.why(Why::CloseStands);
        } else {
            self.broken(Broken::FalseReason);
        }
    }

    /// A segment from an owner that was sent our SYN (`engine/src/moves/opening.rs`).
    pub fn answer_to_opening(&mut self, leg: Leg, isn: u8, wire: Wire) -> Then {
        let boundary = self.world.flow.boundary;
        let answer = match wire {
            Wire::SynRefused { ack } | Wire::RstAck { ack, .. } if ack == boundary => {
                Opening::Refused
            }
            Wire::SynAck { unlike: true, ack } if ack == boundary => Opening::Unlike,
            Wire::SynAck { ack, .. } if ack == boundary => {
                let flow = &mut self.world.flow;
                let at = flow.shifts.partition_point(|(l, _)| *l < leg);
                if flow.shifts.get(at).is_some_and(|(l, _)| *l == leg) {
                    self.broken(Broken::NotOpened);
                    return Then::Done;
                }
                flow.shifts.insert(at, (leg, isn));
                flow.progress.set(Mark::Translated, true);
                Opening::Opened
            }
            Wire::SynAck { ack, .. }
            | Wire::Data { ack, .. }
            | Wire::Ack { ack, .. }
            | Wire::Fin { ack, .. } => Opening::Stale(number(ack)),
            _ => return Then::Done,
        };
        self.decide(Input::Opening(answer))
    }

    /// The pod repeats its SYN-ACK, or answers an older SYN of ours.
    pub fn opened_again(&mut self) {
        let flow = &self.world.flow;
        let moving = matches!(flow.state.0, State::Adopting | State::AdoptingIdle);
        let seq = if moving { flow.boundary } else { flow.client_acked };
        let ack = flow.server_next;
        self.to_owner(Wire::Opens { seq, ack });
        self.replay_kept();
    }

    /// A segment from the owner leg in `Adopting` or `AdoptingIdle`.
    pub fn answer_to_adoption(&mut self, wire: Wire) -> Then {
        let (seq, ack, fin, rst) = match wire {
            Wire::Answer { why, seq, ack } => {
                let (reason, expects) = why.reason();
                if !self.view().is_answered_by(number(seq), number(ack)) {
                    return Then::Done;
                }
                return self.decide(Input::Refused { reason, expects, replaced_before: false });
            }
            Wire::Rst { seq } => (seq, None, false, true),
            Wire::RstAck { seq, ack } | Wire::Released { seq, ack } => {
                (seq, Some(ack), false, true)
            }
            Wire::Fin { seq, ack } => (seq, Some(ack), true, false),
            Wire::Data { seq, ack } | Wire::Ack { seq, ack } => (seq, Some(ack), false, false),
            Wire::SynRefused { ack } => (ZERO, Some(ack), false, true),
            Wire::SynAck { .. } => {
                self.opened_again();
                return Then::Done;
            }
            Wire::Adopt { .. }
            | Wire::Syn { .. }
            | Wire::Opens { .. }
            | Wire::Keepalive { .. }
            | Wire::Release { .. }
            | Wire::Told { .. } => return Then::Done,
        };
        self.decide(Input::Reply(Reply {
            seq: number(seq),
            // The leg of no model was another flow's before: what is past is not asked.
            end: number(seq),
            ack: ack.map(number),
            syn: false,
            fin,
            rst,
            data: matches!(wire, Wire::Data { .. }),
            drops: false,
            meant: false,
        }))
    }
}
