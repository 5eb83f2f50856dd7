//! Reports of several workers as one.
//!
//! Owns what becomes of each figure: counts are added, and of estimates the worst is shown, as each
//! worker has measured its own requests. Of tables and ports, of which each worker has its part,
//! the fullest is shown: what finds it full is not helped by the others' room. Knows no worker.

use crate::commands::Report;
use baton_api::{
    BackendHealth, BackendLoad, BackendState, DrainState, Micros, PolicyPlacement, PolicyState,
    State,
};
use baton_engine::{BackendFigures, PolicyFigures};
use std::collections::BTreeMap;

/// Adds the report of another worker. A policy that only one of them has is shown as that one has
/// it: a snapshot came into force in between.
pub fn report(into: &mut Report, more: Report) {
    state(&mut into.state, more.state);
    for ((name, label, value), (other, of, more)) in into.counters.iter_mut().zip(more.counters) {
        // All workers are of one binary.
        debug_assert_eq!((&*name, &*label), (&other, &of));
        *value += more;
    }
    by(&mut into.figures, more.figures, |a, b| a.name == b.name, figures);
}

/// Merges what is the same thing and appends what is not there. Both lists are mostly in the same
/// order.
fn by<T>(into: &mut Vec<T>, more: Vec<T>, same: fn(&T, &T) -> bool, merge: fn(&mut T, T)) {
    for (at, other) in more.into_iter().enumerate() {
        let here = into.get(at).is_some_and(|one| same(one, &other));
        let at = if here { Some(at) } else { into.iter().position(|one| same(one, &other)) };
        match at {
            Some(at) => merge(&mut into[at], other),
            None => into.push(other),
        }
    }
}

fn state(into: &mut State, more: State) {
    by(&mut into.policies, more.policies, |a, b| a.name == b.name, policy);
    for (name, other) in more.tables {
        let table = into.tables.entry(name).or_default();
        *table = fuller(*table, other);
    }
}

/// Of two pairs of how much and of how much that with the larger part.
fn fuller(a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
    let part = |a: (u64, u64), b: (u64, u64)| u128::from(a.0) * u128::from(b.1);
    if a.1 == 0 || part(b, a) > part(a, b) { b } else { a }
}

fn add(into: &mut BTreeMap<String, u64>, more: BTreeMap<String, u64>) {
    for (name, count) in more {
        *into.entry(name).or_default() += count;
    }
}

fn policy(into: &mut PolicyState, more: PolicyState) {
    into.flows += more.flows;
    into.flows_total += more.flows_total;
    into.migrations_total += more.migrations_total;
    into.rollbacks_total += more.rollbacks_total;
    into.rescues_total += more.rescues_total;
    into.replays_total += more.replays_total;
    add(&mut into.lost_total, more.lost_total);
    add(&mut into.pinned, more.pinned);
    add(&mut into.pins_total, more.pins_total);
    for (cause, ends) in more.moves_total {
        add(into.moves_total.entry(cause).or_default(), ends);
    }
    into.panic |= more.panic;
    into.placement = match (into.placement, more.placement) {
        (Some(a), Some(b)) => Some(PolicyPlacement {
            usual_wait: a.usual_wait.max(b.usual_wait),
            uneven: a.uneven || b.uneven,
            distressed_total: a.distressed_total + b.distressed_total,
            expected: Micros(a.expected.0 + b.expected.0),
            won: Micros(a.won.0 + b.won.0),
            lost: Micros(a.lost.0 + b.lost.0),
        }),
        (a, b) => a.or(b),
    };
    let same = |a: &BackendState, b: &BackendState| (&a.name, a.endpoint) == (&b.name, b.endpoint);
    by(&mut into.backends, more.backends, same, backend);
}

fn backend(into: &mut BackendState, more: BackendState) {
    into.draining |= more.draining;
    if into.health == BackendHealth::Up || (into.health.is_up() && !more.health.is_up()) {
        into.health.clone_from(&more.health);
    }
    if into.adoptability.is_ready() && !more.adoptability.is_ready() {
        into.adoptability = more.adoptability;
    }
    into.unlike |= more.unlike;
    into.flows += more.flows;
    into.pinned += more.pinned;
    into.outstanding += more.outstanding;
    into.first_byte = into.first_byte.max(more.first_byte);
    into.wait = into.wait.max(more.wait);
    into.load = match (into.load, more.load) {
        (Some(a), Some(b)) => Some(load(a, b)),
        (a, b) => a.or(b),
    };
    into.placement = match (into.placement.take(), more.placement) {
        (Some(a), Some(b)) if a.standing == "fit" && b.standing != "fit" => Some(b),
        (Some(a), Some(b)) if a.standing == b.standing && a.mean_wait < b.mean_wait => Some(b),
        (a, b) => a.or(b),
    };
    into.requests_total += more.requests_total;
    into.migrations_in_total += more.migrations_in_total;
    into.migrations_out_total += more.migrations_out_total;
    into.stranded += more.stranded;
    into.rescued_total += more.rescued_total;
    into.drain = match (into.drain.take(), more.drain) {
        (Some(a), Some(b)) => Some(drain(a, b)),
        (a, b) => a.or(b),
    };
}

/// Each worker asks the pod itself, and hears of the same.
fn load(a: BackendLoad, b: BackendLoad) -> BackendLoad {
    BackendLoad {
        accept_queue: a.accept_queue.max(b.accept_queue),
        accept_queue_room: a.accept_queue_room.max(b.accept_queue_room),
        drops_total: a.drops_total.max(b.drops_total),
        throttled_percent: a.throttled_percent.max(b.throttled_percent),
        cpu_percent: a.cpu_percent.max(b.cpu_percent),
        memory_percent: a.memory_percent.max(b.memory_percent),
    }
}

fn drain(mut into: DrainState, more: DrainState) -> DrainState {
    into.by_command |= more.by_command;
    into.since = into.since.max(more.since);
    into.left = into.left.max(more.left);
    into.moved += more.moved;
    into.ended += more.ended;
    into.closed += more.closed;
    add(&mut into.waiting, more.waiting);
    into
}

fn figures(into: &mut PolicyFigures, more: PolicyFigures) {
    into.moves.merge(&more.moves);
    add_labels(&mut into.pinned, more.pinned);
    add_labels(&mut into.resets, more.resets);
    into.not_allowed += more.not_allowed;
    let same = |a: &BackendFigures, b: &BackendFigures| a.name == b.name;
    by(&mut into.backends, more.backends, same, |into, more| {
        into.first_byte.merge(&more.first_byte);
        into.flows_begun += more.flows_begun;
        let taken =
            |f: &BackendFigures| (f.leg_ports.saturating_sub(f.ready_leg_ports), f.leg_ports);
        let (taken, all) = fuller(taken(into), taken(&more));
        (into.leg_ports, into.ready_leg_ports) = (all, all - taken);
    });
}

fn add_labels(into: &mut Vec<(&'static str, u64)>, more: Vec<(&'static str, u64)>) {
    by(into, more, |a, b| a.0 == b.0, |into, more| into.1 += more.1);
}
