//! The model as `stateright` explores it: what must hold in every state, and what a served client
//! is.
//!
//! Owns the properties. The notes that they look at are written where things happen
//! (`World::ghost`).

use crate::{
    config::Config,
    explore::HandOver,
    happens::Step,
    step::Run,
    world::{Broken, Ended, Why, World},
};
use baton_engine::{handover::Mark, timing::REPLAYS_MAX};
use stateright::{Model, Property};

impl Model for HandOver {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::first(&self.config)]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        self.steps(world, steps);
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut run = Run::new(&self.config, &self.coverage, last.clone());
        run.take(step, self.config.network);
        (run.world != *last).then_some(run.world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties()
    }
}

/// All of them.
fn properties() -> Vec<Property<HandOver>> {
    fn unless(world: &World, broken: &[Broken]) -> bool {
        !world.ghost.broken.is_some_and(|b| broken.contains(&b))
    }
    vec![
        Property::always("single owner", |_, w: &World| unless(w, &[Broken::TwoOwners])),
        Property::always("right bytes", |_, w: &World| unless(w, &[Broken::WrongBytes])),
        Property::always("no splice behind a begun response", |m, w: &World| {
            let parts = usize::from(m.config.parts);
            w.client.from.chunks(parts).all(|response| {
                let mut legs = response.iter().flatten();
                let first = legs.next();
                legs.all(|l| Some(l) == first)
            })
        }),
        Property::always("at most once, or as often as policy says", |m, w: &World| {
            let most = if m.config.replay { 1 + REPLAYS_MAX } else { 1 };
            w.ghost.executed.iter().all(|n| *n <= most)
        }),
        Property::always("what is called unseen was not executed", |_, w: &World| {
            let asked = usize::from(w.client.sent.max(1) - 1);
            !(w.flow.progress.is(Mark::Unseen) && w.flow.kept)
                || w.flow.progress.replays > 0
                || w.ghost.executed[asked] == 0
        }),
        Property::always("a confirmed adoption was made", |_, w: &World| {
            unless(w, &[Broken::ConfirmedNothing])
        }),
        Property::always(
            "a refused or withdrawn adoption leaves the old pod as owner",
            |_, w: &World| unless(w, &[Broken::NotGivenBack]),
        ),
        Property::always("each event is one of the table", |_, w: &World| {
            unless(w, &[Broken::Unexpected])
        }),
        Property::always(
            "a pod that has not answered our SYN is sent nothing of a request",
            |_, w: &World| unless(w, &[Broken::NotOpened]),
        ),
        Property::always("a counted reason holds", |_, w: &World| {
            unless(w, &[Broken::FalseReason])
        }),
        Property::always("the client sees an end only for a counted reason", |m, w: &World| {
            explained(&m.config, w)
        }),
    ]
}

/// The client's connection goes on, or ended as it should, or for a reason that was counted.
#[must_use]
pub fn explained(config: &Config, world: &World) -> bool {
    let client = &world.client;
    match client.ended {
        None | Some(Ended::ByClient) => true,
        Some(Ended::Reset | Ended::Closed) => {
            let answered = client.got() == client.sent * config.parts;
            (client.fin && answered) || world.ghost.why.is_some_and(|w| w != Why::Uncounted)
        }
    }
}

/// The client has had an answer to each request that it means to send, or its connection ended and
/// that is explained.
#[must_use]
pub fn served(config: &Config, world: &World) -> bool {
    let client = &world.client;
    let all = client.sent == config.requests || client.fin;
    let answered = client.got() == client.sent * config.parts;
    (all && answered) || (client.ended.is_some() && explained(config, world))
}
