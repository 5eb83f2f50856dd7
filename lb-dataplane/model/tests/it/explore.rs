//! The explorations: each property in each configuration, and each row of the declared table.

use baton_engine::states::{Event, State, TABLE, Transition, meaning};
use baton_model::{
    check::{Report, explore, explore_service},
    config::Config,
    coverage::Coverage,
    plans,
};
use std::{collections::BTreeMap, sync::LazyLock, time::Instant};

const HANDSHAKE: &str = "the handshake: the model begins with an established flow";
const DEADLINE: &str = "a drain's deadline closes flows, it hands none over";
/// These may be taken as well.
const CLOSING: &str = "the end of a flow whose hand-overs are over";
const PINNED: &str = "a server that speaks first: such a flow never moves";
const CLOSED: &str = "the model's client says nothing behind the server's close";
const SESSION: &str = "sessions (AUTH, SELECT) are not modelled";
const SHARED: &str = "shared legs: the model's flows have one of their own; the simulation's share";

/// Rows that no exploration takes, each with its reason.
const OUT_OF_SCOPE: &[(State, Event, &str)] = &[
    (State::Closed, Event::AllAcked, "what is left of a flow whose both sides are closed"),
    (State::SynSent, Event::SynAck, HANDSHAKE),
    (State::SynSent, Event::SynStale, HANDSHAKE),
    (State::SynSent, Event::SynRefused, HANDSHAKE),
    (State::SynSent, Event::SynRefusedByAll, HANDSHAKE),
    (State::SynSent, Event::Outnumbered, HANDSHAKE),
    (State::SynSent, Event::ClientRst, HANDSHAKE),
    (State::SynSent, Event::Timeout, HANDSHAKE),
    (State::SynAcked, Event::Established, HANDSHAKE),
    (State::SynAcked, Event::Outnumbered, HANDSHAKE),
    (State::SynAcked, Event::ClientRst, HANDSHAKE),
    (State::SynAcked, Event::ServerRst, HANDSHAKE),
    (State::SynAcked, Event::Timeout, HANDSHAKE),
    (State::Fresh, Event::ServerData, PINNED),
    (State::Fresh, Event::ServerFin, PINNED),
    (State::Fresh, Event::ServerRst, PINNED),
    (State::Fresh, Event::DrainClose, DEADLINE),
    (State::Idle, Event::DrainClose, DEADLINE),
    (State::ClientFin, Event::DrainClose, DEADLINE),
    (State::Idle, Event::DrainCut, DEADLINE),
    (State::Request, Event::DrainCut, DEADLINE),
    (State::Response, Event::DrainCut, DEADLINE),
    (State::ClientFin, Event::DrainCut, DEADLINE),
    (State::ServerFin, Event::DrainCut, DEADLINE),
    (State::Closed, Event::DrainCut, DEADLINE),
    (State::Response, Event::ClientData, "pipelining: the model's client waits for its answer"),
    (State::AdoptingIdle, Event::FateUnknownReset, SESSION),
    (State::ClientFin, Event::Timeout, CLOSING),
    (State::ServerFin, Event::Timeout, CLOSING),
    (State::ServerFin, Event::ServerRst, CLOSING),
    (State::Closed, Event::ServerRst, CLOSING),
    (State::Closed, Event::Doubt, CLOSED),
    (State::Closed, Event::Lost, CLOSING),
    (State::Closed, Event::Timeout, CLOSING),
    (State::Idle, Event::LegLeft, SHARED),
    (State::Idle, Event::LegOver, SHARED),
    (State::Legless, Event::Wanted, SHARED),
    (State::Legless, Event::ClientFin, SHARED),
    (State::Legless, Event::ClientRst, SHARED),
    (State::Legless, Event::Timeout, SHARED),
    (State::FinSentToClient, Event::ClientData, CLOSED),
    (State::FinSentToClient, Event::ClientFin, CLOSED),
    (State::FinSentToClient, Event::ClientRst, CLOSED),
];

/// All explorations, run once for all tests of this file.
static RUNS: LazyLock<Vec<(String, Report)>> = LazyLock::new(|| {
    let run = |how: fn(Config) -> Report| {
        move |config: Config| {
            let (name, begun) = (config.name.clone(), Instant::now());
            let report = how(config);
            let seconds = begun.elapsed().as_secs_f64();
            println!("{name}: {} states, {seconds:.1} s", report.states);
            (name, report)
        }
    };
    let safety = plans::safety().into_iter().map(run(explore));
    let service = plans::service().into_iter().map(run(explore_service));
    let runs: Vec<_> = safety.chain(service).collect();
    let states: usize = runs.iter().map(|(_, r)| r.states).sum();
    println!("{} configurations, {states} unique states", runs.len());
    runs
});

#[test]
fn every_property_holds() {
    // Of each property: where it does not hold, and the shortest way there.
    let mut broken: BTreeMap<&str, (Vec<&str>, &str)> = BTreeMap::new();
    for (name, report) in RUNS.iter() {
        for (property, way) in &report.counterexamples {
            let (names, shortest) = broken.entry(property).or_insert((Vec::new(), way));
            names.push(name);
            if way.lines().count() < shortest.lines().count() {
                *shortest = way;
            }
        }
    }
    let mut text = String::new();
    for (property, (names, way)) in &broken {
        text += &format!("\n\"{property}\" does not hold in {names:?}, for example:\n{way}");
    }
    assert!(text.is_empty(), "{text}");
}

#[test]
fn every_row_of_the_table_is_taken_or_out_of_scope() {
    let taken = Coverage::default();
    for (_, report) in RUNS.iter() {
        taken.add(&report.coverage);
    }
    let mut wrong = String::new();
    for (number, row) in TABLE.iter().enumerate() {
        let (from, event) = (row.from, row.event);
        let out = OUT_OF_SCOPE.iter().find(|(s, e, _)| (*s, *e) == (from, event));
        let name = format!("{} + {}", from.name(), event.name());
        match (taken.of(number), out) {
            (0, None) => wrong += &format!("\n{name}: no exploration takes it"),
            (1.., Some((_, _, why))) if *why != CLOSING => {
                wrong += &format!("\n{name}: taken, although \"{why}\"");
            }
            _ => {}
        }
    }
    for (state, event, _) in OUT_OF_SCOPE {
        if !matches!(meaning(*state, *event), Transition::Row(..)) {
            wrong += &format!("\n{} + {}: not a row any more", state.name(), event.name());
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
