//! Flows without a leg: when they leave theirs, what the client and the pods see meanwhile, and how
//! the next request finds one.

use super::{
    drain::drain,
    sharing::{UPGRADE, world},
};
use crate::common::{Conn, Dest, Sent, World, conn::*, pods::End, policy, settings};
use baton_api::{Legs, MigrationMode};
use baton_engine::{Counter, Migrate, MigrateError};
use baton_packet::{EndMark, Flags};

/// The pause after which a flow at rest leaves its leg.
const AFTER_MS: u64 = 5;

/// The flow leaves its leg, whose pod has been told all.
fn leaves(w: &mut World, c: &Conn) {
    let sent = w.run_ms(AFTER_MS + 3);
    w.assert_state(c, "Legless");
    let here = |s: &&Sent| s.to == Dest::Pod(c.pod) && s.segment.src_port == c.leg.port();
    assert_eq!(sent.iter().filter(here).count(), 0, "{sent:?}");
}

/// A flow whose leg is parked.
pub fn legless(pods: usize) -> (World, Conn) {
    let (mut w, c) = world(pods).at_rest();
    leaves(&mut w, &c);
    assert_eq!(w.count(Counter::LegsParked), 1);
    (w, c)
}

#[test]
fn a_flow_at_rest_leaves_its_leg_and_its_next_request_has_it_again() {
    let (mut w, mut c) = legless(1);
    assert_eq!(w.count(Counter::LegsLeft), 1);
    assert_eq!(w.engine.state(w.now).policies[0].backends[0].flows, 0);
    let sent = one(w.data(&mut c, GET));
    assert_eq!((sent.to, sent.data()), (Dest::Pod(c.pod), GET));
    assert_eq!(sent.segment.src_port, c.leg.port());
    let got = w.inject(&w.pod_wire(&c, PSH_ACK, OK).build());
    assert_eq!((one(got.clone()).to, got[0].data()), (Dest::Client, OK));
    // It is no move and no rescue.
    let policy = &w.engine.state(w.now).policies[0];
    assert_eq!(policy.backends[0].migrations_in_total, 0);
    assert_eq!(policy.rescues_total, 0);
    assert_eq!(policy.moves_total["legless"]["moved"], 1);
    assert_eq!(w.count(Counter::LegsShared), 1);
    assert_eq!(moves(&w), 0);
}

/// What the list of flows says.
fn moves(w: &World) -> u32 {
    let (views, _) = w.engine.flows(w.now, 0, 10);
    views[0].migrations
}

#[test]
fn leaving_a_leg_does_not_use_up_a_move() {
    let mut w = World::of(1, |p| {
        p.migration.legs = Legs::Shared;
        p.migration.per_flow = 1;
    });
    let mut c = w.idle(1);
    leaves(&mut w, &c);
    let _ = w.data(&mut c, GET);
    let _ = w.inject(&w.pod_wire(&c, PSH_ACK, OK).build());
    assert_eq!(moves(&w), 0);
    let wanted = Migrate { client: c.client, frontend: None, to: None };
    // Its one move is still to be had: there is only nobody to go to.
    let nobody = MigrateError::Nobody("web".into());
    assert_eq!(w.engine.migrate(w.now, &wanted, &mut w.out), Err(nobody));
}

#[test]
fn one_whose_upgrade_was_refused_keeps_its_leg_until_it_is_answered_again() {
    let mut w = world(1);
    let mut c = w.idle(1);
    w.stays(&mut c, UPGRADE);
    w.responds(&mut c, OK);
    w.ack(&mut c);
    let _ = w.run_ms(2 * AFTER_MS);
    w.assert_state(&c, "Idle");
    w.exchange(&mut c);
    leaves(&mut w, &c);
}

#[test]
fn one_that_goes_on_at_once_keeps_its_leg() {
    let (mut w, mut c) = world(1).at_rest();
    for _ in 0..20 {
        let _ = w.run_ms(AFTER_MS - 2);
        w.exchange(&mut c);
    }
    assert_eq!(w.count(Counter::LegsLeft), 0);
}

/// A request on the leg that the flow had before, and its answer.
fn served(w: &mut World, c: &mut Conn) {
    let request = one(w.data(c, GET));
    assert_eq!(request.segment.src_port, c.leg.port());
    let _ = w.inject(&w.pod_wire(c, PSH_ACK, OK).build());
    c.server_sent(PSH_ACK, OK);
    let _ = w.inject(&w.client_wire(c, Flags::ACK, &[]).build());
    w.assert_state(c, "Idle");
}

/// Who made a pause makes the next one, too: its leg is others' as soon as its request is answered,
/// unless it goes on.
#[test]
fn one_that_had_no_leg_leaves_the_next_one_sooner() {
    for (requests, after) in [(1, "Legless"), (3, "Idle")] {
        let (mut w, mut c) = legless(1);
        for _ in 0..requests {
            served(&mut w, &mut c);
            let _ = w.run_us(900);
        }
        let _ = w.run_us(1_900);
        w.assert_state(&c, after);
        let _ = w.run_ms(AFTER_MS);
        w.assert_state(&c, "Legless");
    }
}

#[test]
fn only_what_shares_and_may_move_goes_without() {
    let never = World::of(1, |p| {
        p.migration.legs = Legs::Shared;
        p.migration.mode = MigrationMode::Never;
    });
    for mut w in [World::new(1), never] {
        let c = w.idle(1);
        let _ = w.run_ms(100);
        w.assert_state(&c, "Idle");
    }
    // Nothing was asked yet: the server may be the first to speak.
    let (mut w, c) = world(1).opened();
    let _ = w.run_ms(100);
    w.assert_state(&c, "Fresh");
}

/// The pod has said that it closes behind this answer, and takes its time.
#[test]
fn an_end_that_was_agreed_to_is_the_clients() {
    let closes = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let (mut w, mut c) = world(1).opened();
    w.stays(&mut c, GET);
    w.answers(&mut c, closes);
    let _ = w.run_ms(100);
    w.assert_state(&c, "Idle");
    let fin = w.pod_wire(&c, FIN_ACK, b"");
    assert!(w.forwarded_to_client(&c, &fin).is(FIN_ACK));
}

#[test]
fn without_a_leg_that_is_ready_one_is_opened() {
    let (mut w, mut c) = world(1).at_rest();
    leaves(&mut w, &c);
    // Its pod is asked, and does not answer.
    let asked = one(w.run_ms(250).into_iter().filter(|s| s.data().len() == 1).collect());
    assert_eq!(asked.segment.src_port, c.leg.port());
    let sent = w.data(&mut c, GET);
    assert!(sent[0].is_adoption(), "{sent:?}");
    take_leg(&mut c, &sent[0]);
    assert_eq!(sent[1].data(), GET);
    w.responds(&mut c, OK);
    assert_eq!(w.count(Counter::LegsShared), 0);
}

/// redis' `WAIT` and `CLIENT`, HTTP's `CONNECT`: each was answered by a reset.
#[test]
fn a_request_that_pins_gets_a_leg_of_its_own() {
    const CONNECT: &[u8] = b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n";
    let (mut w, mut c) = legless(1);
    let sent = w.data(&mut c, CONNECT);
    assert!(sent[0].is_adoption(), "{sent:?}");
    take_leg(&mut c, &sent[0]);
    assert_eq!(sent[1].data(), CONNECT);
    w.responds(&mut c, OK);
    assert_eq!(w.count(Counter::LegsShared), 0);
}

#[test]
fn the_pods_time_out_ends_the_leg_and_not_the_connection() {
    // Parked.
    let (mut w, mut c) = legless(1);
    let fin = one(w.inject(&w.pod_wire(&c, FIN_ACK, b"").build()));
    assert!(fin.is(FIN_ACK) && fin.to == Dest::Pod(c.pod), "{fin:?}");
    let sent = w.data(&mut c, GET);
    assert!(sent[0].is_adoption(), "{sent:?}");
    // And at rest, before it was left: of a process that lives, that exits, or that nobody knows.
    for mark in [None, Some(EndMark::Exiting), Some(EndMark::Listening)] {
        for how in [End::Fin, End::Rst] {
            let (mut w, c) = world(1).at_rest();
            let sent = match mark {
                Some(mark) => {
                    let end = w.marked_end(&c, how, mark);
                    w.inject(&end)
                }
                None => w.ends(&c, how),
            };
            assert!(World::to_client(&sent).is_empty(), "{sent:?}");
            w.assert_state(&c, "Legless");
        }
    }
}

#[test]
fn a_drained_pod_has_nothing_to_hand_over() {
    let (mut w, c) = world(1).at_rest();
    drain(&mut w, c.pod);
    let sent = w.run_ms(60);
    w.assert_state(&c, "Legless");
    let closed = |s: &Sent| s.is(FIN_ACK) && s.to == Dest::Pod(c.pod);
    assert!(sent.iter().any(closed), "closed, not parked: {sent:?}");
    let pod = &w.engine.state(w.now).policies[0].backends[0];
    assert_eq!(pod.flows, 0);
    let drain = pod.drain.as_ref().expect("it drains");
    assert_eq!((drain.moved, drain.waiting.len()), (1, 0));
    assert_eq!(w.count(Counter::LegsParked), 0);
}

#[test]
fn the_request_waits_for_a_pod() {
    let (mut w, mut c) = legless(1);
    w.dies(0, End::Fin, &[]);
    let fin = w.pod_wire(&c, FIN_ACK, b"");
    let _ = w.inject(&fin.build());
    w.change(|s| s.policies[0].backends[0].weight = 0);
    assert!(w.data(&mut c, POST).is_empty());
    w.assert_state(&c, "Orphan");
    let _ = w.run_ms(500);
    w.starts(0);
    w.change(|s| s.policies[0].backends[0].weight = 1);
    let sent = w.until_adoption(3_000);
    take_leg(&mut c, &sent[0]);
    assert!(sent.iter().any(|s| s.data() == POST), "{sent:?}");
}

#[test]
fn the_client_may_close_reset_and_ask_whether_anybody_is_there() {
    // A keepalive, with and without a byte; the window is what any kernel promises at first.
    let (mut w, mut c) = legless(1);
    for data in [&b""[..], b"x"] {
        let mut wire = w.client_wire(&c, Flags::ACK, data);
        wire.seq = c.seq.wrapping_sub(1);
        let answer = one(w.inject(&wire.build()));
        assert_eq!((answer.to, answer.is(Flags::ACK)), (Dest::Client, true));
        assert_eq!((answer.segment.seq.0, answer.segment.ack.0), (c.server, c.seq));
        let scale = c.options.server_wscale.unwrap_or(0);
        assert_eq!(answer.segment.window, u16::MAX >> scale);
    }
    // Nothing new is answered with nothing.
    assert!(w.inject(&w.client_wire(&c, Flags::ACK, b"").build()).is_empty());
    w.assert_state(&c, "Legless");
    let fin = one(w.client_sends(&mut c, FIN_ACK, b""));
    assert!(fin.is(FIN_ACK) && fin.to == Dest::Client, "{fin:?}");
    assert_eq!((fin.segment.seq.0, fin.segment.ack.0), (c.server, c.seq));
    w.assert_state(&c, "Closed");
    c.server = c.server.wrapping_add(1);
    w.inject(&w.client_wire(&c, Flags::ACK, b"").build());
    let _ = w.run_ms(2_000);
    assert_eq!(w.state(&c), None);

    let (mut w, c) = legless(1);
    let sent = w.inject(&w.client_wire(&c, Flags::RST, b"").build());
    assert!(sent.is_empty(), "{sent:?}");
    assert_eq!(w.state(&c), None);
}

/// Its request was lost, and it gives up behind it: a flow without a leg has no pod that would ask
/// where it is (RFC 5961 section 3.2).
#[test]
fn a_reset_behind_a_gap_is_asked_back() {
    let (mut w, c) = legless(1);
    let mut rst = w.client_wire(&c, Flags::RST, b"");
    rst.seq = c.seq.wrapping_add(GET.len() as u32);
    let asks = one(w.inject(&rst.build()));
    assert_eq!((asks.to, asks.is(Flags::ACK)), (Dest::Client, true));
    w.assert_state(&c, "Legless");
    rst.seq = asks.segment.ack.0;
    assert!(w.inject(&rst.build()).is_empty());
    assert_eq!(w.state(&c), None);
    // One of before says nothing.
    let (mut w, c) = legless(1);
    rst.seq = c.seq.wrapping_sub(1);
    assert!(w.inject(&rst.build()).is_empty());
    w.assert_state(&c, "Legless");
}

/// A request was lost on its way, and the client's close is behind it.
#[test]
fn what_is_behind_a_gap_comes_again() {
    let (mut w, mut c) = legless(1);
    let mut fin = w.client_wire(&c, FIN_ACK, b"");
    fin.seq = c.seq.wrapping_add(GET.len() as u32);
    let again = one(w.inject(&fin.build()));
    assert_eq!((again.to, again.is(Flags::ACK)), (Dest::Client, true));
    assert_eq!(again.segment.ack.0, c.seq, "its request is still to come");
    w.assert_state(&c, "Legless");
    let sent = one(w.data(&mut c, GET));
    assert_eq!((sent.to, sent.data()), (Dest::Pod(c.pod), GET));
}

/// The client sends again the end of a request whose acknowledgement was lost on the way to it, and
/// what comes next with it in one segment, as a kernel does that repeats both.
#[test]
fn what_is_new_behind_what_is_repeated_goes_on_alone() {
    let (first, flags) = (GET.len() as u32, [PSH_ACK, FIN_ACK]);
    for (next, flags) in [GET, b""].into_iter().zip(flags) {
        let (mut w, c) = legless(1);
        let mut again = w.client_wire(&c, flags, &[&GET[10..], next].concat());
        again.seq = c.seq.wrapping_sub(first - 10);
        let sent = one(w.inject(&again.build()));
        match next {
            b"" => assert!(sent.is(FIN_ACK) && sent.to == Dest::Client),
            _ => assert_eq!((sent.to, sent.data()), (Dest::Pod(c.pod), GET)),
        }
    }
}

/// Without a pod it is its client's all the same: with its request on its way, and at rest.
#[test]
fn a_late_copy_of_its_syn_ends_nothing() {
    for waits in [false, true] {
        let mut w = world(1);
        let mut c = Conn::new(1);
        let syn = w.syn_wire(&c).build();
        w.syn(&mut c);
        w.accepts(&mut c);
        w.exchange(&mut c);
        leaves(&mut w, &c);
        let mut state = "Legless";
        if waits {
            w.dies(0, End::Fin, &[]);
            let fin = w.pod_wire(&c, FIN_ACK, b"");
            let _ = w.inject(&fin.build());
            w.change(|s| s.policies[0].backends[0].weight = 0);
            assert!(w.data(&mut c, POST).is_empty());
            state = "Orphan";
        }
        let challenge = one(w.inject(&syn));
        assert_eq!((challenge.to, challenge.is(Flags::ACK)), (Dest::Client, true));
        w.assert_state(&c, state);
        if waits {
            w.starts(0);
            w.change(|s| s.policies[0].backends[0].weight = 1);
            let sent = w.until_adoption(3_000);
            assert!(sent.iter().any(|s| s.data() == POST), "{sent:?}");
        } else {
            let sent = one(w.data(&mut c, GET));
            assert_eq!((sent.to, sent.data()), (Dest::Pod(c.pod), GET));
        }
    }
}

#[test]
fn one_that_is_quiet_for_long_is_closed() {
    let (mut w, c) = legless(1);
    let idle_ms = w.snapshot.policies[0].timeouts.idle.0 / 1_000;
    let sent: Vec<_> = (0..idle_ms / 100 + 2)
        .flat_map(|_| w.run_ms(100))
        .filter(|s| s.to == Dest::Client)
        .collect();
    assert!(sent[0].is(FIN_ACK), "{sent:?}");
    assert_eq!(w.count(Counter::TimeoutsIdle), 1);
    let _ = c;
}

/// A flow with a leg goes on at its pod then. This one has none, and nobody is named any more.
#[test]
fn one_whose_policy_goes_is_closed_at_once() {
    let (mut w, c) = legless(1);
    w.snapshot.policies.clear();
    w.snapshot.generation += 1;
    w.engine.apply(w.now, &w.snapshot).expect("a snapshot without policies");
    let sent = w.run_ms(2);
    assert!(one(sent).is(FIN_ACK));
    w.assert_state(&c, "FinSentToClient");
}

#[test]
fn where_no_copy_can_be_kept_the_leg_comes_before_the_request() {
    let mut s = settings();
    s.limits.kept_segments = 1;
    let mut p = policy(1);
    p.migration.legs = Legs::Shared;
    let mut w = World::with(s, p);
    let (mut other, mut c) = (w.idle(1), w.idle(2));
    // The only copy is another one's.
    let _ = w.data(&mut other, POST);
    leaves(&mut w, &c);
    assert_eq!(w.table("kept_segments"), (1, 1));
    let wire = w.client_wire(&c, PSH_ACK, GET);
    assert!(w.inject(&wire.build()).is_empty());
    let keepalive = one(w.run_ms(3).into_iter().filter(|s| s.data().len() == 1).collect());
    assert_eq!(keepalive.segment.src_port, c.leg.port());
    w.assert_state(&c, "AdoptingIdle");
    w.confirms(&c);
    w.assert_state(&c, "Idle");
    // What the client sends again.
    let sent = one(w.data(&mut c, GET));
    assert_eq!((sent.to, sent.data()), (Dest::Pod(c.pod), GET));
}
