//! A flow moves with its next request: adoption, commit, the old leg's close, fencing.

use crate::common::{Conn, Dest, World, conn::*, key};
use baton_engine::Counter;
use baton_packet::{Flags, MessageKind, parse_adoption};

/// By then the close of a leg has begun, whenever its flow moved.
const CLOSED_MS: u64 = 10;

/// The old leg as the old pod sees it.
fn old_leg(c: &Conn) -> Conn {
    c.clone()
}

#[test]
fn a_flow_moves_with_its_request_adoption_first() {
    for v6 in [false, true] {
        let mut w = World::new(2);
        let mut c = Conn::of(1, v6);
        c.window = 777;
        let mut c = w.idle_as(c);
        let (old, present) = (c.pod, c.clone());
        w.run_ms(40);
        // `moves` asserts the order, the numbers and that the request itself is as the client sent
        // it.
        let adoption = w.moves(&mut c, GET);
        assert_ne!(c.pod, old);
        let message = w.expect_adoption(&adoption, &present);
        assert_eq!(adoption.segment.window, 777);
        assert_eq!(message.mss, 1_460);
        assert_eq!((message.server_wscale, message.client_wscale), (9, 7));
        assert!(message.wscale_ok && message.sack_ok && message.timestamps_ok);
        assert!(!message.ecn_ok);
        let (value, echo) = adoption.stamps().expect("timestamps");
        assert_eq!(value, CLIENT_CLOCK + w.now.ms() as u32, "the request's");
        assert_eq!(echo, present.seen_ts, "the server's last");
        assert_eq!(message.server_ts, present.seen_ts + 40, "goes on with the clock");
        w.assert_state(&c, "Adopting");

        w.responds(&mut c, OK);
        assert_eq!(w.count(Counter::MigrationsConfirmed), 1);
        w.ack(&mut c);
        w.assert_state(&c, "Idle");
    }
}

#[test]
fn an_adoption_verifies_with_its_own_key_and_tuple_only() {
    let (mut w, mut c) = World::new(2).at_rest();
    let adoption = w.moves(&mut c, GET);
    let raw = parse_adoption(&adoption.frame, &adoption.segment).expect("a message");
    assert_eq!(raw.verify(&key()).expect("the tag").kind, MessageKind::Adopt);
    let other = baton_packet::AdoptionKey::from_bytes([8; 16]);
    assert!(raw.verify(&other).is_none());
    let mut elsewhere = adoption.segment;
    elsewhere.src_port ^= 1;
    let raw = parse_adoption(&adoption.frame, &elsewhere).expect("a message");
    assert!(raw.verify(&key()).is_none());
}

#[test]
fn a_pure_ack_of_the_request_commits() {
    let (mut w, mut c) = World::new(2).at_rest();
    w.moves(&mut c, GET);
    w.pod_ack(&c);
    w.assert_state(&c, "Request");
    assert_eq!(w.taken("Adopting", "Confirmed"), 1);
    w.responds(&mut c, OK);
}

#[test]
fn the_old_leg_is_closed_cleanly_after_the_defer_time() {
    for timestamps in [true, false] {
        let mut w = World::new(2);
        let mut c = Conn::new(1);
        c.options.timestamps = timestamps;
        let mut c = w.idle_as(c);
        let mut old = old_leg(&c);
        w.moves(&mut c, GET);
        w.responds(&mut c, OK);
        assert_eq!(w.table("closing_legs").0, 1);
        assert!(w.run_us(249).is_empty(), "not while the response is on its way");
        let fin = one(w.run_us(1));
        assert_eq!(fin.to, Dest::Pod(old.pod));
        assert_eq!(fin.segment.src_port, old.leg.port());
        assert!(fin.is(FIN_ACK));
        assert_eq!(fin.segment.seq.0, old.seq, "right behind the last request");
        assert_eq!(fin.segment.ack.0, old.server);
        assert_eq!(fin.stamps().is_some(), timestamps);

        // The pod acknowledges, then its application closes too.
        old.seq = old.seq.wrapping_add(1);
        assert!(w.inject(&w.pod_wire(&old, Flags::ACK, &[]).build()).is_empty());
        let last = one(w.inject(&w.pod_wire(&old, FIN_ACK, &[]).build()));
        assert!(last.is(Flags::ACK));
        assert_eq!(last.to, Dest::Pod(old.pod));
        assert_eq!(last.segment.seq.0, old.seq);
        assert_eq!(last.segment.ack.0, old.server.wrapping_add(1));
        assert_eq!(w.count(Counter::LegsClosed), 1);
        assert_eq!(w.table("closing_legs").0, 0);
        w.ack(&mut c);
        w.assert_state(&c, "Idle");
    }
}

#[test]
fn closes_of_several_legs_follow_one_another() {
    let mut w = World::new(2);
    let mut flows: Vec<Conn> = (0..3).map(|n| w.idle(n)).collect();
    for c in &mut flows {
        w.moves(c, GET);
        w.responds(c, OK);
    }
    assert!(w.run_us(249).is_empty());
    for _ in 0..3 {
        one(w.run_us(1));
        assert!(w.run_us(249).is_empty());
    }
}

#[test]
fn the_port_of_a_closed_leg_rests_in_quarantine() {
    let mut s = crate::common::settings();
    s.ports = 40_000..=40_063;
    let (mut w, mut c) = World::with(s, crate::common::policy(2)).at_rest();
    let old = old_leg(&c);
    w.moves(&mut c, GET);
    w.responds(&mut c, OK);
    w.run_ms(CLOSED_MS);
    let mut closing = old.clone();
    closing.seq = closing.seq.wrapping_add(1);
    w.inject(&w.pod_wire(&closing, FIN_ACK, &[]).build());
    assert_eq!(w.count(Counter::LegsClosed), 1);
    let taken = |w: &mut World, from: u16| {
        let mut ports = Vec::new();
        for n in from..from + 60 {
            let mut c = Conn::new(n);
            c.seq = u32::from(n);
            let Some(sent) = w.inject(&w.syn_wire(&c).build()).pop() else {
                break;
            };
            take_leg(&mut c, &sent);
            if c.pod == old.pod {
                ports.push(c.leg.port());
            }
            // Both ends give up at once, so that the table does not fill.
            w.inject(&w.client_wire(&c, Flags::RST, &[]).build());
            let mut rst = w.client_wire(&c, Flags::RST, &[]);
            rst.seq = c.seq.wrapping_add(1);
            w.inject(&rst.build());
        }
        ports
    };
    assert!(!taken(&mut w, 100).contains(&old.leg.port()), "it rests");
    w.run_ms(1_100);
    let mut seen = false;
    for round in 0..8 {
        seen |= taken(&mut w, 200 + round * 60).contains(&old.leg.port());
        w.run_ms(1_100);
    }
    assert!(seen, "and comes back");
}

#[test]
fn an_old_pod_that_closes_before_our_fin_is_answered_at_once() {
    let (mut w, mut c) = World::new(2).at_rest();
    let mut old = old_leg(&c);
    w.moves(&mut c, GET);
    w.responds(&mut c, OK);
    let sent = one(w.inject(&w.pod_wire(&old, FIN_ACK, &[]).build()));
    assert!(sent.is(FIN_ACK));
    assert_eq!(sent.segment.ack.0, old.server.wrapping_add(1));
    old.seq = old.seq.wrapping_add(1);
    old.server = old.server.wrapping_add(1);
    w.inject(&w.pod_wire(&old, Flags::ACK, &[]).build());
    assert_eq!(w.count(Counter::LegsClosed), 1);
}

#[test]
fn a_lost_fin_is_sent_again_and_in_the_end_the_leg_is_reset() {
    let (mut w, mut c) = World::new(2).at_rest();
    w.moves(&mut c, GET);
    w.responds(&mut c, OK);
    let sent = w.run_ms(30_000);
    let fins = sent.iter().filter(|s| s.is(FIN_ACK)).count();
    assert_eq!(fins, 6);
    assert!(sent.last().expect("frames").is(RST_ACK));
    assert_eq!(w.count(Counter::LegsReset), 1);
    assert_eq!(w.table("closing_legs").0, 0);
}

#[test]
fn an_application_that_never_closes_is_reset_after_a_minute() {
    let (mut w, mut c) = World::new(2).at_rest();
    let mut old = old_leg(&c);
    w.moves(&mut c, GET);
    w.responds(&mut c, OK);
    w.run_ms(CLOSED_MS);
    old.seq = old.seq.wrapping_add(1);
    w.inject(&w.pod_wire(&old, Flags::ACK, &[]).build());
    assert!(w.run_ms(59_000).is_empty());
    let rst = one(w.run_ms(2_000));
    assert!(rst.is(RST_ACK));
    assert_eq!(rst.segment.seq.0, old.seq);
    assert_eq!(w.count(Counter::LegsReset), 1);
}

#[test]
fn data_from_the_standby_never_reaches_the_client() {
    let (mut w, mut c) = World::new(2).at_rest();
    let old = old_leg(&c);
    w.moves(&mut c, GET);
    assert!(w.inject(&w.pod_wire(&old, PSH_ACK, b"late").build()).is_empty());
    assert_eq!(w.count(Counter::Fenced), 1);
    assert_eq!(w.count(Counter::FencedData), 1);
    w.assert_state(&c, "Adopting");
    w.responds(&mut c, OK);
}

#[test]
fn data_from_a_closing_leg_never_reaches_the_client() {
    let (mut w, mut c) = World::new(2).at_rest();
    let mut old = old_leg(&c);
    w.moves(&mut c, GET);
    w.responds(&mut c, OK);
    for late in [&b"late"[..], b"later"] {
        let sent = one(w.inject(&w.pod_wire(&old, PSH_ACK, late).build()));
        assert_eq!(sent.to, Dest::Pod(old.pod), "acknowledged, so that it ends");
        assert!(sent.is(Flags::ACK));
        old.server = old.server.wrapping_add(late.len() as u32);
        assert_eq!(sent.segment.ack.0, old.server);
        w.run_ms(CLOSED_MS);
    }
    assert_eq!(w.count(Counter::FencedData), 2);
    let sent = w.inject(&w.pod_wire(&old, RST_ACK, &[]).build());
    assert!(sent.is_empty());
    w.ack(&mut c);
    w.assert_state(&c, "Idle");
}

#[test]
fn a_flow_moves_again_and_again_and_loses_nothing() {
    let (mut w, mut c) = World::new(3).at_rest();
    let mut ports = vec![];
    for _ in 0..50 {
        let mut old = old_leg(&c);
        w.moved_exchange(&mut c);
        w.run_ms(CLOSED_MS);
        old.seq = old.seq.wrapping_add(1);
        let last = one(w.inject(&w.pod_wire(&old, FIN_ACK, &[]).build()));
        assert!(last.is(Flags::ACK));
        ports.push((c.pod, c.leg.port()));
    }
    assert_eq!(w.count(Counter::MigrationsConfirmed), 50);
    assert_eq!(w.count(Counter::LegsClosed), 50);
    assert_eq!(w.count(Counter::Requests), 51, "each request is counted once");
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 50, "every leg has a fresh port");
    assert_eq!(w.table("kept_segments").0, 0);
}

#[test]
fn the_figures_of_a_move_add_up() {
    let (mut w, mut c) = World::new(2).at_rest();
    let old = c.pod;
    w.moves(&mut c, GET);
    w.responds(&mut c, OK);
    let state = w.engine.state(w.now);
    let policy = &state.policies[0];
    assert_eq!((policy.flows, policy.migrations_total), (1, 1));
    let of = |pod: usize| &policy.backends[pod];
    assert_eq!((of(old).flows, of(old).migrations_out_total), (0, 1));
    assert_eq!((of(c.pod).flows, of(c.pod).migrations_in_total), (1, 1));
    assert_eq!((of(old).requests_total, of(c.pod).requests_total), (1, 1));
    assert_eq!((of(old).outstanding, of(c.pod).outstanding), (0, 0));
}
