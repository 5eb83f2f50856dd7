//! The declared table: its rendering is committed, and every row of it is taken by a scenario here.

mod common;

use baton_api::{BackendFailure, Micros, OnDeadline, Policy, Protocol};
use baton_engine::{
    Counter,
    states::{STAYS, TABLE, render},
};
use baton_packet::{Flags, Reason};
use common::{Conn, End, Sent, World, answer, conn::*, policy, settings};
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
        "docs/generated/flow-states.md is not what states/table.rs declares: run `make generate`"
    );
}

/// The policy under which an event happens.
fn policy_for(state: &str, event: &str) -> Policy {
    let mut p = policy(3);
    p.timeouts.idle = Micros::from_secs(10);
    p.timeouts.handshake = Micros::from_secs(2);
    p.timeouts.half_closed = Micros::from_secs(5);
    match (state, event) {
        ("Fresh" | "Idle", "ServerFin" | "ServerRst") | ("Adopting", "FateUnknownReset") => {
            p.on_backend_failure = BackendFailure::Reset;
        }
        ("AdoptingIdle", "FateUnknownReset") => p.protocol = Protocol::Resp,
        (_, "DrainCut") => p.timeouts.half_closed = Micros::from_secs(60),
        ("Request", "ResponseTimeout") => p.response_timeout = Some(Micros::from_millis(200)),
        _ => {}
    }
    if matches!(event, "DrainClose" | "DrainCut") || state == "FinSentToClient" {
        p.drain.quiet = Micros::from_secs(3_600);
        p.drain.deadline = Micros::from_secs(1);
        p.drain.on_deadline = OnDeadline::Close;
    }
    p
}

struct Scene {
    w: World,
    c: Conn,
    /// The connection before it moved, and the adoption.
    old: Conn,
    adoption: Option<Sent>,
}

const SELECT: &[u8] = b"*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n";

impl Scene {
    /// A flow in the named state.
    fn new(state: &str, event: &str) -> Self {
        let mut w = World::with(settings(), policy_for(state, event));
        let mut c = Conn::new(1);
        let mut adoption = None;
        if !matches!(state, "SynSent" | "SynAcked") {
            c = w.open(1);
        }
        match state {
            "Fresh" | "SynSent" | "SynAcked" => {}
            "Request" | "Response" => {
                w.stays(
                    &mut c,
                    if event.starts_with("Server") {
                        POST
                    } else {
                        GET
                    },
                );
            }
            _ if policy_for(state, event).protocol == Protocol::Resp => {
                w.stays(&mut c, SELECT);
                w.responds(&mut c, b"+OK\r\n");
                w.ack(&mut c);
            }
            _ => w.exchange(&mut c),
        }
        let mut old = c.clone();
        match state {
            "SynSent" => {
                w.syn(&mut c);
            }
            "SynAcked" => {
                w.syn(&mut c);
                w.synack(&mut c);
            }
            "Response" => {
                let begun = if event.starts_with("Server") {
                    5
                } else {
                    OK.len()
                };
                w.responds(&mut c, &OK[..begun]);
            }
            "Adopting" => adoption = Some(w.moves(&mut c, GET)),
            "AdoptingIdle" => {
                w.engine.drain(w.now, None, &format!("pod-{}", c.pod), true);
                let sent = w.until_adoption(200);
                w.adopted_any(&mut c, &sent);
                adoption = sent.into_iter().find(Sent::is_adoption);
            }
            "OwnerFinPending" => {
                if event == "OwnerGone" {
                    nobody_adopts(&mut w);
                    w.stops(c.pod);
                }
                let how = if event == "ResetStands" {
                    End::Rst
                } else {
                    End::Fin
                };
                assert!(w.ends(&c, how).is_empty());
            }
            "Orphan" => {
                nobody_adopts(&mut w);
                let how = if event == "Lost" { End::Rst } else { End::Fin };
                w.dies(c.pod, how, &[c.clone()]);
            }
            "FinSentToClient" => {
                w.engine.drain(w.now, None, &format!("pod-{}", c.pod), true);
                w.run_ms(1_060);
                c.server = c.server.wrapping_add(1);
            }
            "ClientFin" => w.client_fin(&mut c),
            "ServerFin" => {
                w.pod_closes(&mut c);
            }
            "Closed" => {
                w.client_fin(&mut c);
                w.pod_fin(&mut c);
            }
            _ => {}
        }
        if old.pod == usize::MAX {
            old = c.clone();
        }
        w.assert_state(&c, state);
        Self {
            w,
            c,
            old,
            adoption,
        }
    }

    fn answer(&mut self, reason: Reason) {
        let adoption = self.adoption.as_ref().expect("an adoption");
        self.w.inject(&answer(adoption, reason, 0));
    }

    fn old_pod_ends(&mut self) {
        self.w.ends(&self.old.clone(), End::Fin);
    }

    fn syn_refused(&mut self) {
        let mut rst = self.w.pod_wire(&self.c, RST_ACK, &[]);
        (rst.seq, rst.ack) = (0, self.c.seq.wrapping_add(1));
        self.w.inject(&rst.build());
    }

    fn refused_by_all(&mut self) {
        for _ in 0..3 {
            self.syn_refused();
            let (flows, _) = self.w.engine.flows(self.w.now, 0, 1);
            let Some(flow) = flows.first() else { break };
            let pod = flow.backend.trim_start_matches("pod-");
            self.c.pod = pod.parse().expect("a number");
            self.c.leg.set_port(flow.port);
        }
    }

    /// New client bytes, as they fit the state.
    fn client_data(&mut self, state: &str) {
        let Self { w, c, .. } = self;
        match state {
            "Idle" => {
                // Without a frame for the adoption the flow stays.
                w.out.free = 0;
                w.stays(c, GET);
                w.out.free = usize::MAX;
            }
            "Response" => {
                let mut wire = w.client_wire(c, PSH_ACK, GET);
                wire.ack = wire.ack.wrapping_sub(1);
                w.forwarded_to_pod(c, &wire);
            }
            "Orphan" => assert!(w.data(c, GET).is_empty(), "kept"),
            "FinSentToClient" => {
                w.data(c, GET);
            }
            _ => {
                w.stays(c, GET);
            }
        }
    }

    /// Makes `event` happen to a flow in `state`, as the world outside would.
    fn provoke(&mut self, state: &str, event: &str) {
        let Self { w, c, .. } = self;
        match (state, event) {
            (_, "SynAck") => {
                w.synack(c);
            }
            (_, "SynStale") => {
                let mut wire = w.pod_wire(c, Flags::ACK, &[]);
                wire.ack = 99;
                w.inject(&wire.build());
            }
            (_, "Outnumbered") => {
                // As many more as may be half open with this pod at the least.
                for n in 100..160 {
                    let syn = w.syn_wire(&Conn::new(n)).build();
                    w.inject(&syn);
                    w.run_ms(10);
                }
            }
            (_, "SynRefused") => self.syn_refused(),
            (_, "SynRefusedByAll") => self.refused_by_all(),
            (_, "Established" | "AllAcked") => {
                w.ack(c);
            }
            (_, "ClientData") => self.client_data(state),
            (_, "Move") => {
                w.moves(c, GET);
            }
            (_, "MoveIdle") => {
                w.engine.drain(w.now, None, &format!("pod-{}", c.pod), true);
                w.until_adoption(200);
            }
            (_, "DrainClose") => {
                if state == "ClientFin" {
                    let ack = w.pod_wire(c, Flags::ACK, &[]);
                    w.forwarded_to_client(c, &ack);
                }
                w.engine.drain(w.now, None, &format!("pod-{}", c.pod), true);
                w.run_ms(1_060);
            }
            ("ServerFin", "DrainCut") => {
                w.ack(c);
                w.engine.drain(w.now, None, &format!("pod-{}", c.pod), true);
                w.run_ms(1_060);
            }
            (_, "DrainCut") => {
                w.engine.drain(w.now, None, &format!("pod-{}", c.pod), true);
                w.run_ms(6_060);
            }
            (_, "ServerData") => {
                w.responds(c, OK);
            }
            ("AdoptingIdle", "Confirmed") => w.confirms(c),
            (_, "Confirmed") => {
                let ack = w.pod_wire(c, Flags::ACK, &[]);
                w.forwarded_to_client(c, &ack);
            }
            (_, "ConfirmedWithout") => {
                let mut ack = w.pod_wire(c, Flags::ACK, &[]);
                ack.ack = ack.ack.wrapping_sub(GET.len() as u32);
                w.inject(&ack.build());
            }
            (_, "Refused") => self.answer(Reason::NoListener),
            (_, "Withdrawn") => {
                // The application took the connection and closed it before it had anything.
                let mut fin = w.pod_wire(c, FIN_ACK, &[]);
                fin.ack = self.old.seq;
                w.inject(&fin.build());
            }
            (_, "RefusedNext") => {
                self.old_pod_ends();
                self.answer(Reason::NoListener);
            }
            (_, "RefusedAll") => {
                self.old_pod_ends();
                while let Some(adoption) = self.adoption.take() {
                    let sent = self.w.inject(&answer(&adoption, Reason::NoListener, 0));
                    self.adoption = sent.into_iter().find(Sent::is_adoption);
                }
            }
            (_, "TupleTaken") => self.answer(Reason::TupleInUse),
            (_, "FateUnknownNext") => {
                self.old_pod_ends();
                self.answer(Reason::AlreadyAdopted);
            }
            ("AdoptingIdle", "FateUnknownReset") => {
                self.old_pod_ends();
                let mut refused = self.w.pod_wire(&self.c, PSH_ACK, b"-ERR\r");
                refused.seq = refused.seq.wrapping_sub(5);
                self.w.inject(&refused.build());
            }
            (_, "FateUnknownReplay" | "FateUnknownReset") => self.answer(Reason::AlreadyAdopted),
            ("Adopting" | "AdoptingIdle", "Doubt") => {
                w.run_ms(46);
            }
            ("Orphan", "Doubt") => {
                w.run_ms(40);
            }
            (_, "Doubt") => {
                w.run_ms(210);
            }
            (_, "ResponseTimeout") => {
                w.until_adoption(210);
            }
            (_, "OwnerEnded") => assert!(w.ends(c, End::Fin).is_empty()),
            ("Request", "OwnerGone") => {
                nobody_adopts(w);
                assert!(w.ends(c, End::Rst).is_empty());
            }
            ("OwnerFinPending", "OwnerGone") => {
                w.run_ms(60);
            }
            (_, "OwnerGone") => {
                nobody_adopts(w);
                w.vanishes(c.pod);
                w.run_ms(2_700);
            }
            ("OwnerFinPending", "CloseStands" | "ResetStands") => {
                w.run_ms(5);
            }
            (_, "RescueIdle") => {
                w.adopters.fill(Some(Reason::Ready));
                w.until_adoption(1_100);
            }
            (_, "RescueRequest") => {
                self.client_data(state);
                self.w.adopters.fill(Some(Reason::Ready));
                self.w.until_adoption(1_100);
            }
            (_, "Lost") | ("Orphan", "CloseStands") => {
                w.run_ms(10_100);
            }
            ("AdoptingIdle" | "FinSentToClient" | "Orphan", "ClientFin") => {
                w.inject(&w.client_wire(c, FIN_ACK, &[]).build());
            }
            (_, "ClientFin") => {
                let mut wire = w.client_wire(c, FIN_ACK, &[]);
                if state == "Response" {
                    // All but the last byte, or the flow comes to rest first.
                    wire.ack = wire.ack.wrapping_sub(1);
                }
                w.forwarded_to_pod(c, &wire);
            }
            (_, "ServerFin") => w.pod_fin(c),
            (_, "ClientRst") => {
                let mut wire = w.client_wire(c, Flags::RST, &[]);
                if state == "SynSent" {
                    wire.seq = wire.seq.wrapping_add(1);
                }
                w.inject(&wire.build());
            }
            (_, "ServerRst") => {
                w.inject(&w.pod_wire(c, RST_ACK, &[]).build());
            }
            (_, "Timeout") => {
                w.run_ms(11_000);
            }
            other => panic!("no way to provoke {other:?}"),
        }
    }
}

/// No pod says Ready any more, and that is known.
fn nobody_adopts(w: &mut World) {
    w.adopters.fill(Some(Reason::AcceptQueueFull));
    w.run_ms(1_100);
}

/// Every row, driven from outside: the row is taken, and the flow is then where the row says.
#[test]
fn every_row_of_the_table_is_taken() {
    let mut taken: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let mut wrong = Vec::new();
    for row in TABLE {
        let (state, event) = (row.from.name(), row.event.name());
        let tried = std::panic::catch_unwind(|| {
            let mut scene = Scene::new(state, event);
            scene.provoke(state, event);
            let times = scene.w.taken(state, event);
            let now = scene.w.state(&scene.c).unwrap_or_else(|| "Gone".into());
            let all: Vec<_> = scene.w.engine.transitions().collect();
            assert_eq!(scene.w.count(Counter::UnexpectedEvents), 0);
            (times, now, all)
        });
        let Ok((times, now, all)) = tried else {
            wrong.push(format!("{state} + {event}: panicked"));
            continue;
        };
        if times == 0 || now != row.to.name() {
            wrong.push(format!(
                "{state} + {event}: taken {times} times, now {now}, should be {}",
                row.to.name()
            ));
        }
        for (s, e, times) in all {
            *taken.entry((s, e)).or_default() += times;
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(taken.len(), TABLE.len());
}

/// The events that a state meets and that change nothing: what packets can cause of them.
#[test]
fn events_that_change_nothing_are_forwarded() {
    for (state, events) in STAYS {
        for event in *events {
            let (state, event) = (state.name(), event.name());
            let scene = Scene::new(state, event);
            let (mut w, c) = (scene.w, scene.c);
            let wire = match event {
                "ServerData" => w.pod_wire(&c, PSH_ACK, b"late"),
                "ServerFin" => w.pod_wire(&c, FIN_ACK, &[]),
                "ClientFin" => {
                    let mut wire = w.client_wire(&c, FIN_ACK, &[]);
                    // Not what establishes the flow.
                    wire.ack = wire.ack.wrapping_sub(u32::from(state == "SynAcked"));
                    wire
                }
                "ServerRst" => w.pod_wire(&c, Flags::RST, &[]),
                other => panic!("no way to provoke {other}"),
            };
            let sent = w.inject(&wire.build());
            if state != "SynSent" {
                assert_same(&one(sent), &wire);
            }
            w.assert_state(&c, state);
            assert_eq!(w.count(Counter::UnexpectedEvents), 0, "{state} + {event}");
        }
    }
}
