//! The declared table: its rendering is committed, and every row of it is taken by a scenario here.

mod common;

use baton_api::{BackendFailure, Micros, Policy};
use baton_engine::states::{TABLE, render};
use baton_packet::{Flags, Reason};
use common::{Conn, World, answer, conn::*, policy, settings};
use std::{collections::BTreeMap, path::PathBuf};

#[test]
fn the_rendered_table_is_the_committed_one() {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/generated/flow-states.md");
    if std::env::var_os("BATON_GENERATE").is_some_and(|v| v == "1") {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("make docs/generated");
        std::fs::write(&path, render()).expect("write docs/generated/flow-states.md");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == render(),
        "docs/generated/flow-states.md is not what states.rs declares: run `make generate`"
    );
}

fn short() -> Policy {
    let mut p = policy(3);
    p.timeouts.idle = Micros::from_secs(10);
    p.timeouts.handshake = Micros::from_secs(2);
    p.timeouts.half_closed = Micros::from_secs(5);
    p
}

fn world() -> World {
    World::with(settings(), short())
}

/// A flow in the named state.
fn in_state(w: &mut World, state: &str) -> Conn {
    let mut c = Conn::new(1);
    match state {
        "SynSent" => {
            w.syn(&mut c);
        }
        "SynAcked" => {
            w.syn(&mut c);
            w.synack(&mut c);
        }
        "Fresh" => c = w.open(1),
        "Request" => {
            c = w.open(1);
            w.stays(&mut c, GET);
        }
        "Response" => {
            c = w.open(1);
            w.stays(&mut c, GET);
            w.responds(&mut c, OK);
        }
        "Idle" => c = w.idle(1),
        "Adopting" => {
            c = w.idle(1);
            w.moves(&mut c, GET);
        }
        "ClientFin" => {
            c = w.idle(1);
            w.client_fin(&mut c);
        }
        "ServerFin" => {
            c = w.idle(1);
            w.pod_fin(&mut c);
        }
        "Closed" => {
            c = w.idle(1);
            w.client_fin(&mut c);
            w.pod_fin(&mut c);
        }
        other => panic!("no such state: {other}"),
    }
    w.assert_state(&c, state);
    c
}

fn syn_refused(w: &mut World, c: &Conn) {
    let mut rst = w.pod_wire(c, RST_ACK, &[]);
    (rst.seq, rst.ack) = (0, c.seq.wrapping_add(1));
    w.inject(&rst.build());
}

/// Makes `event` happen to a flow in `state`, as the world outside would.
fn provoke(w: &mut World, c: &mut Conn, state: &str, event: &str) {
    match event {
        "SynAck" => {
            w.synack(c);
        }
        "SynStale" => {
            let mut wire = w.pod_wire(c, Flags::ACK, &[]);
            wire.ack = 99;
            w.inject(&wire.build());
        }
        "SynRefused" => syn_refused(w, c),
        "SynRefusedByAll" => {
            for _ in 0..3 {
                syn_refused(w, c);
                if w.state(c).is_none() {
                    break;
                }
                w.change(|_| {});
                let (flows, _) = w.engine.flows(w.now, 0, 1);
                let name = &flows[0].backend;
                c.pod = name.trim_start_matches("pod-").parse().expect("a number");
                c.leg.set_port(flows[0].port);
            }
        }
        "Established" | "AllAcked" => {
            w.ack(c);
        }
        "ClientData" => {
            if state == "Idle" {
                // Without a method the flow stays.
                w.stays(c, b"data");
            } else if state == "Response" {
                let mut wire = w.client_wire(c, PSH_ACK, GET);
                wire.ack = wire.ack.wrapping_sub(1);
                w.forwarded_to_pod(c, &wire);
            } else {
                w.stays(c, GET);
            }
        }
        "Move" => {
            w.moves(c, GET);
        }
        "ServerData" | "Confirmed" => {
            w.responds(c, OK);
        }
        "ConfirmedWithout" => {
            let mut ack = w.pod_wire(c, Flags::ACK, &[]);
            ack.ack = ack.ack.wrapping_sub(GET.len() as u32);
            w.inject(&ack.build());
        }
        "Refused" | "RefusedNext" | "TupleTaken" | "FateUnknownReplay" | "FateUnknownReset" => {
            // The adoption once more, to have what the adopter would answer.
            let mut fresh = world();
            if event == "FateUnknownReset" {
                let mut p = short();
                p.on_backend_failure = BackendFailure::Reset;
                fresh = World::with(settings(), p);
            }
            let mut again = fresh.idle(1);
            let old = again.clone();
            let adoption = fresh.moves(&mut again, GET);
            if event == "RefusedNext" {
                fresh.inject(&fresh.pod_wire(&old, RST_ACK, &[]).build());
            }
            let reason = match event {
                "Refused" | "RefusedNext" => Reason::NoListener,
                "TupleTaken" => Reason::TupleInUse,
                _ => Reason::AlreadyAdopted,
            };
            fresh.inject(&answer(&adoption, reason, 0));
            *w = fresh;
        }
        "Doubt" => {
            w.run_ms(46);
        }
        "ClientFin" => {
            let mut wire = w.client_wire(c, FIN_ACK, &[]);
            if state == "Response" {
                // All but the last byte, or the flow comes to rest first.
                wire.ack = wire.ack.wrapping_sub(1);
            }
            w.forwarded_to_pod(c, &wire);
        }
        "ServerFin" => w.pod_fin(c),
        "ClientRst" => {
            let mut wire = w.client_wire(c, Flags::RST, &[]);
            if state == "SynSent" {
                wire.seq = wire.seq.wrapping_add(1);
            }
            w.inject(&wire.build());
        }
        "ServerRst" => {
            w.inject(&w.pod_wire(c, Flags::RST, &[]).build());
        }
        "Timeout" => {
            w.run_ms(11_000);
        }
        other => panic!("no way to provoke {other}"),
    }
}

/// Every row, driven from outside: the row is taken, and the flow is then where the row says.
#[test]
fn every_row_of_the_table_is_taken() {
    let mut taken: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for row in TABLE {
        let (state, event) = (row.from.name(), row.event.name());
        let mut w = world();
        let mut c = in_state(&mut w, state);
        provoke(&mut w, &mut c, state, event);
        let times = w.taken(state, event);
        assert!(times > 0, "{state} + {event} was not taken");
        let now = w.state(&c).unwrap_or_else(|| "Gone".into());
        let expected = match (state, event) {
            // The response that confirms is treated like any other, as the next row says.
            ("Adopting", "Confirmed") => "Response",
            _ => row.to.name(),
        };
        assert_eq!(now, expected, "after {state} + {event}");
        for (s, e, times) in w.engine.transitions() {
            *taken.entry((s, e)).or_default() += times;
        }
    }
    let missed: Vec<_> = taken.iter().filter(|(_, times)| **times == 0).collect();
    assert!(missed.is_empty(), "{missed:?}");
    assert_eq!(taken.len(), TABLE.len());
}

/// The rest of the square: an event that a state does not declare changes nothing. Shown for those that
/// packets can cause in any state.
#[test]
fn undeclared_pairs_change_nothing() {
    for (state, flags) in [
        ("SynAcked", PSH_ACK),
        ("Closed", PSH_ACK),
        ("ServerFin", PSH_ACK),
    ] {
        let mut w = world();
        let c = in_state(&mut w, state);
        let wire = w.pod_wire(&c, flags, b"late");
        w.forwarded_to_client(&c, &wire);
        w.assert_state(&c, state);
    }
}
