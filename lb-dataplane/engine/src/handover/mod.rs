//! Decisions about hand-overs: [`decide`] looks at a flow's [`View`] and an [`Input`] and says what
//! the hand-over remembers from now on ([`Progress`]) and what is to be done ([`Effect`]), in
//! order.
//!
//! Owns what an answer to an adoption, an owner's end, silence and a rescue come to. It is pure: no
//! table, clock or randomness of its own. The engine carries the effects out (`effects.rs`);
//! `baton-model` explores this very function. Whom a flow goes to is not decided here: [`Then`]
//! asks for a pod, and the answer is the next input.
//!
//! # Decisions
//!
//! - **Refusals are exact, and final**: with several adoptions in flight for one request, the flow
//!   rolls back only when each was refused; and all copies of one adoption have one fate, which the
//!   adopter remembers before it acts. Otherwise a copy that the network doubled or delayed makes a
//!   socket after the roll-back, and the request runs twice (found by the hand-over model).
//! - **Hand-overs are decided by one pure function**, from a view of the flow and an input to what
//!   the hand-over remembers and an ordered list of effects; `engine/src/effects.rs` carries them
//!   out, and the model explores that very function. Whom a flow goes to is asked for and is the
//!   next input. Measured when it was taken out of the engine: all vectors and flow tests
//!   unchanged; the model, which had been a copy, gained refusals of a socket in the way, several
//!   adoptions asked, free ports and rescue's times (2.5 to 2.8 million states). Rejected: a trait
//!   that engine and model implement, in which decisions call back: the order of effects is not
//!   data then, and the function is not pure.

mod answer;
mod client;
mod decision;
mod ending;
mod input;
mod opening;
mod orphan;
mod release;
mod told;
mod transfer;
mod view;

pub use client::{ClientData, ClientFin, client_data, client_fin};
pub use decision::{Decision, Effect, Then};
pub use ending::{Reset, challenge, judge_reset};
pub use input::{End, Input, Reply, Restored};
pub use release::may_be_released;
pub use transfer::{is_left_over, may_be_transferred, shows_heir};
pub use view::{Mark, Numbers, Opening, Progress, Safeguards, Talk, View};

use crate::{
    obs::{
        counters::Counter,
        pins::{Gone, Lost},
    },
    states::{Event, State},
    timing::REPLAYS_MAX,
};

/// Decides. The same view and input lead to the same decision.
#[must_use]
pub fn decide(view: &View, safe: &Safeguards, input: Input) -> Decision {
    let mut it = Deciding { view, safe, decision: Decision::nothing(view.progress) };
    match input {
        Input::Reply(reply) => it.reply(reply),
        Input::Opening(answer) => it.opening(answer),
        Input::Restored(restored) => it.restored(restored),
        Input::Refused { reason, expects, replaced_before } => {
            it.refused(reason, expects, replaced_before);
        }
        Input::Silence => it.silence(),
        Input::Another { found } => it.another(found),
        Input::Settled => it.settled(),
        Input::Standby { new, reset, fin } => it.standby(new, reset, fin),
        Input::OwnerEnded { legless: true, .. } => it.leg_is_over(),
        Input::OwnerEnded { end, gone, rescues, rescuable, .. } => {
            it.owner_ended(end, gone, rescues, rescuable);
        }
        Input::PodLives { replaced, settled, unmarked } => {
            it.pod_lives(replaced, settled, unmarked);
        }
        Input::PodGone { silent, rescuable } => it.pod_gone(silent, rescuable),
        Input::CloseStands => it.close_stands(),
        Input::Wanted => it.wanted(),
        Input::RequestAtDead => it.strand(Gone::of_end(view.progress.is(Mark::OwnerFin))),
        Input::OrphanDue { waited_ms } => it.orphan_due(waited_ms),
        Input::Rescuer { found } => it.rescuer(found),
        Input::Overdue => it.overdue(),
        Input::Rival { found } => it.rival(found),
        Input::Stalled => it.stalled(),
        Input::Better { found } => it.better(found),
        Input::ReleaseAnswered { reason, seq, ack } => it.release_answered(reason, seq, ack),
        Input::ReleaseLate => it.release_late(),
    }
    it.decision
}

/// A decision while it is being taken.
struct Deciding<'a> {
    view: &'a View,
    safe: &'a Safeguards,
    decision: Decision,
}

impl Deciding<'_> {
    fn progress(&mut self) -> &mut Progress {
        &mut self.decision.progress
    }

    fn with(&mut self, effect: Effect) {
        self.decision.push(effect);
    }

    fn step(&mut self, event: Event) {
        self.with(Effect::Step(event));
    }

    fn count(&mut self, counter: Counter) {
        self.with(Effect::Count(counter));
    }

    fn then(&mut self, then: Then) {
        self.decision.then = then;
    }

    /// The client's FIN that came while the adoption was open takes effect with the settled owner.
    fn settled(&mut self) {
        if self.progress().take(Mark::ClientFin) {
            self.step(Event::ClientFin);
        }
    }

    /// The outstanding request is given to one more pod although one may have executed it.
    fn replays(&mut self) {
        self.progress().replays += 1;
        self.with(Effect::Replayed);
    }

    /// Whether the outstanding request may be executed once more, and the means are there.
    fn may_replay(&self) -> bool {
        self.view.may_replay()
    }

    /// And was not too often.
    fn may_replay_again(&self) -> bool {
        let often = self.decision.progress.replays >= REPLAYS_MAX;
        self.may_replay() && !(often && self.safe.replays_are_counted)
    }

    /// Nothing can save the flow: its client is reset, with the reason counted.
    fn lose(&mut self, why: Lost) {
        self.with(Effect::Lost(why));
        self.step(Event::Lost);
    }

    fn idle(&self) -> bool {
        self.view.state == State::AdoptingIdle
    }
}
