//! Eventual service: from each state that can be reached, whatever went wrong before, fair packets
//! and timers alone lead to a client that is served, or told of an end for a counted reason.
//!
//! Owns the search for states from which no such way leads. `stateright`'s `eventually` ignores
//! paths that end in a cycle, and retransmissions are cycles; so all states are listed, and those
//! that lead to a good one are found backwards. In a finite graph without such states, each run in
//! which nothing is put off for ever is served.

use crate::world::World;
use crate::{explore::HandOver, happens::Step, properties::served};
use stateright::Model;
use std::collections::{HashMap, VecDeque};

/// Most states that are listed.
const STATES_MAX: usize = 3_000_000;

/// What the search found.
#[derive(Debug)]
pub struct Service {
    /// States listed.
    pub states: usize,
    /// The way to a state from which no good one can be reached, if there is one.
    pub stuck: Option<Vec<Step>>,
}

/// A step that is no fault: fair runs take it sooner or later.
const fn is_fair(step: &Step) -> bool {
    !matches!(
        step,
        Step::Lost(_)
            | Step::Doubled(_)
            | Step::ClientCloses
            | Step::ClientResets
            | Step::Closes(_)
            | Step::Aborts(_)
            | Step::KilledHard(_)
            | Step::Killed(_)
            | Step::GivesUpHandshake(_)
            | Step::Started(_)
            | Step::QueueFills(_)
            | Step::KeyLost(_)
            | Step::Silenced(_)
    )
}

/// Searches.
///
/// # Panics
/// If there are more states than can be listed: the configuration is too large.
#[must_use]
pub fn service(model: &HandOver) -> Service {
    let mut numbers: HashMap<World, u32> = HashMap::new();
    let mut came: Vec<Option<(u32, Step)>> = Vec::new();
    let mut back: Vec<Vec<u32>> = Vec::new();
    let mut good: VecDeque<u32> = VecDeque::new();
    let mut queue: VecDeque<(u32, World)> = VecDeque::new();
    let mut add = |world: World,
                   from: Option<(u32, Step)>,
                   queue: &mut VecDeque<(u32, World)>,
                   came: &mut Vec<Option<(u32, Step)>>| {
        if let Some(number) = numbers.get(&world) {
            return *number;
        }
        let number = came.len() as u32;
        assert!(came.len() < STATES_MAX, "too many states");
        came.push(from);
        numbers.insert(world.clone(), number);
        queue.push_back((number, world));
        number
    };
    for world in model.init_states() {
        add(world, None, &mut queue, &mut came);
    }
    let mut steps = Vec::new();
    while let Some((number, world)) = queue.pop_front() {
        steps.clear();
        model.actions(&world, &mut steps);
        for step in &steps {
            let Some(next) = model.next_state(&world, *step) else {
                continue;
            };
            let to = add(next, Some((number, *step)), &mut queue, &mut came);
            back.resize_with(came.len(), Vec::new);
            if is_fair(step) {
                back[to as usize].push(number);
            }
        }
        if served(&model.config, &world) {
            good.push_back(number);
        }
    }
    back.resize_with(came.len(), Vec::new);
    let mut reaches = vec![false; came.len()];
    for number in &good {
        reaches[*number as usize] = true;
    }
    while let Some(number) = good.pop_front() {
        for from in &back[number as usize] {
            if !std::mem::replace(&mut reaches[*from as usize], true) {
                good.push_back(*from);
            }
        }
    }
    let stuck = reaches.iter().position(|r| !r).map(|at| {
        let mut way = Vec::new();
        let mut at = at as u32;
        while let Some((from, step)) = came[at as usize] {
            way.push(step);
            at = from;
        }
        way.reverse();
        way
    });
    Service { states: came.len(), stuck }
}
