//! One exploration from end to end, with a report that people can read.
//!
//! Owns how a counterexample is printed. It decides nothing.

use crate::{
    config::Config, coverage::Coverage, explore::HandOver, happens::Step, served::service,
    world::World,
};
use stateright::{Checker, HasDiscoveries, Model};
use std::{fmt::Write, sync::Arc};

/// What an exploration came to.
#[derive(Debug)]
pub struct Report {
    /// Different states.
    pub states: usize,
    /// Rows of the table that it took.
    pub coverage: Arc<Coverage>,
    /// Properties without a counterexample are not in it; the others come with a way to it.
    pub counterexamples: Vec<(&'static str, String)>,
}

/// Explores a configuration until each property has a counterexample or all states are seen.
#[must_use]
pub fn explore(config: Config) -> Report {
    run(config, HasDiscoveries::AllFailures)
}

/// The same until any property has one.
#[must_use]
pub fn explore_until_any(config: Config) -> Report {
    run(config, HasDiscoveries::AnyFailures)
}

fn run(config: Config, until: HasDiscoveries) -> Report {
    let model = HandOver::new(config);
    let again = model.clone();
    let coverage = model.coverage.clone();
    let checker = model.checker().finish_when(until).spawn_bfs().join();
    let mut counterexamples: Vec<_> = checker
        .discoveries()
        .into_iter()
        .map(|(name, path)| {
            let property = again.property(name);
            let fails = |w: &World| !(property.condition)(&again, w);
            let steps = shorten(&again, path.into_actions(), fails);
            (name, story(&again, &steps))
        })
        .collect();
    counterexamples.sort_unstable_by_key(|c| c.0);
    Report { states: checker.unique_state_count(), coverage, counterexamples }
}

/// Whether the client is served in the end, from each state that can be reached.
#[must_use]
pub fn explore_service(config: Config) -> Report {
    let model = HandOver::new(config);
    let service = service(&model);
    let counterexamples =
        service.stuck.map(|way| ("eventual service", story(&model, &way))).into_iter().collect();
    Report { states: service.states, coverage: model.coverage, counterexamples }
}

/// The same way without the steps that it does not need.
fn shorten(model: &HandOver, mut steps: Vec<Step>, fails: impl Fn(&World) -> bool) -> Vec<Step> {
    let mut at = steps.len();
    while at > 0 {
        at -= 1;
        let mut fewer = steps.clone();
        fewer.remove(at);
        if replayed(model, &fewer).is_some_and(|w| fails(&w)) {
            steps = fewer;
        }
    }
    steps
}

/// Where a way leads; `None` if a step of it may not be taken.
fn replayed(model: &HandOver, steps: &[Step]) -> Option<World> {
    let mut world = model.init_states().swap_remove(0);
    let mut allowed = Vec::new();
    for step in steps {
        allowed.clear();
        model.actions(&world, &mut allowed);
        if !allowed.contains(step) {
            return None;
        }
        world = model.next_state(&world, *step)?;
    }
    Some(world)
}

/// A way through the model, a line for each step.
fn story(model: &HandOver, steps: &[Step]) -> String {
    let mut text = String::new();
    let mut world = model.init_states().swap_remove(0);
    for step in steps {
        let before = world.flow.state;
        if let Some(next) = model.next_state(&world, *step) {
            world = next;
        }
        let _ = write!(text, "    {}", line(step));
        if world.flow.state != before {
            let _ = write!(text, "   [{before:?} -> {:?}]", world.flow.state);
        }
        text.push('\n');
    }
    let last = &world;
    let _ = writeln!(
        text,
        "    then: owner {:?}, standby {:?}, executed {:?}, client {:?}, why {}, {:?}",
        last.flow.owner,
        last.flow.standby,
        last.ghost.executed,
        last.client,
        last.ghost.why.map_or("none", crate::world::Why::name),
        last.ghost.broken,
    );
    text
}

fn line(step: &Step) -> String {
    use crate::wire::Way;
    let packet = |p: &crate::wire::Packet| {
        let (pod, port) = (p.leg.pod, p.leg.port);
        match p.way {
            Way::ToPod => format!("{:?} at pod {pod}, port {port}", p.wire),
            Way::FromPod => format!("{:?} from pod {pod}, port {port}", p.wire),
        }
    };
    match step {
        Step::Arrives { packet: p, pick } => match pick {
            Some(pick) => format!("arrives: {}; next would be pod {pick}", packet(p)),
            None => format!("arrives: {}", packet(p)),
        },
        Step::Lost(p) => format!("lost:    {}", packet(p)),
        Step::Doubled(p) => format!("doubled: {}", packet(p)),
        other => format!("{other:?}"),
    }
}
