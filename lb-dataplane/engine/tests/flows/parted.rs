//! Connections that Baton ends itself: at a drain's deadline, or behind a client that closes while
//! nobody has its flow. Their FIN arrives, or the client is reset in the end.

use crate::{
    common::{Conn, Dest, Sent, World, conn::*, settings},
    drain::{drain, state, with_deadline},
    legless::legless,
};
use baton_api::{Micros, OnDeadline};
use baton_engine::Lost;
use baton_packet::Flags;

/// A flow that the deadline closed; what left then.
fn parted() -> (World, Conn, Vec<Sent>) {
    let (mut w, mut c) = World::with(settings(), with_deadline(OnDeadline::Close)).at_rest();
    drain(&mut w, c.pod);
    assert!(w.run_ms(1_990).is_empty());
    assert_eq!(state(&w, c.pod).closed, 0);
    let sent = w.run_ms(60);
    c.server = c.server.wrapping_add(1);
    w.assert_state(&c, "FinSentToClient");
    (w, c, sent)
}

#[test]
fn at_the_deadline_flows_at_rest_are_closed_in_order() {
    let (mut w, mut c, sent) = parted();
    let fin = one(World::to_client(&sent).into_iter().cloned().collect());
    assert!(fin.is(FIN_ACK));
    assert_eq!((fin.segment.seq.0, fin.segment.ack.0), (c.server.wrapping_sub(1), c.seq));
    assert_eq!(w.engine.lost(Lost::DrainDeadline), 1);
    let after = state(&w, c.pod);
    assert_eq!((after.moved, after.closed), (0, 1));
    assert_eq!(after.left, Micros(0));
    // The pod's application sees the end of the stream.
    let sent = [sent, w.run_ms(10)].concat();
    let to_pod: Vec<_> = sent.iter().filter(|s| s.to == Dest::Pod(c.pod)).collect();
    assert!(to_pod.iter().all(|s| s.is(FIN_ACK) && s.segment.seq.0 == c.seq));
    assert_eq!(to_pod.len(), 1);
    // The client closes too.
    w.inject(&w.client_wire(&c, Flags::ACK, &[]).build());
    let last = one(w.inject(&w.client_wire(&c, FIN_ACK, &[]).build()));
    c.seq = c.seq.wrapping_add(1);
    assert_eq!((last.to, last.is(Flags::ACK)), (Dest::Client, true));
    assert_eq!((last.segment.seq.0, last.segment.ack.0), (c.server, c.seq));
    assert_eq!(w.state(&c), None);
    w.run_ms(60_000);
    assert_eq!(w.table("closing_legs").0, 0);
}

#[test]
fn a_client_that_sends_behind_the_deadlines_fin_is_reset() {
    let (mut w, mut c, _) = parted();
    let sent = w.data(&mut c, GET);
    let rst = one(World::to_client(&sent).into_iter().cloned().collect());
    assert!(rst.is(RST_ACK));
    assert_eq!(rst.segment.seq.0, c.server);
    assert_eq!(w.state(&c), None);
}

#[test]
fn what_no_client_sends_behind_the_deadlines_fin_ends_nothing() {
    let (mut w, c, _) = parted();
    for (ahead, acks) in [(1 << 30, 0), (0, 5)] {
        let mut wire = w.client_wire(&c, PSH_ACK, GET);
        wire.seq = wire.seq.wrapping_add(ahead);
        wire.ack = wire.ack.wrapping_add(acks);
        assert!(w.inject(&wire.build()).is_empty());
        w.assert_state(&c, "FinSentToClient");
    }
}

#[test]
fn the_deadlines_fin_is_repeated_and_in_the_end_the_client_is_reset() {
    let (mut w, c, _) = parted();
    let sent = w.run_ms(20_000);
    let clients: Vec<_> = World::to_client(&sent);
    let fins = clients.iter().filter(|s| s.is(FIN_ACK));
    assert!(fins.clone().all(|s| s.segment.seq.0 == c.server.wrapping_sub(1)));
    assert_eq!(fins.count(), 4);
    assert!(clients.last().expect("frames").is(RST_ACK));
    assert_eq!(w.state(&c), None);
}

/// A pooled connection, or one whose reader is slow.
#[test]
fn a_client_that_has_the_deadlines_fin_closes_when_it_likes() {
    for closes in [true, false] {
        let (mut w, mut c, _) = parted();
        w.inject(&w.client_wire(&c, Flags::ACK, &[]).build());
        let half_closed_ms = w.snapshot.policies[0].timeouts.half_closed.0 / 1_000;
        let sent = w.run_ms(half_closed_ms - 1_000);
        assert!(World::to_client(&sent).is_empty(), "{sent:?}");
        w.assert_state(&c, "FinSentToClient");
        if closes {
            let last = one(w.client_sends(&mut c, FIN_ACK, &[]));
            assert_eq!((last.to, last.is(Flags::ACK)), (Dest::Client, true));
        } else {
            let sent = w.run_ms(1_100);
            assert!(one(sent).is(RST_ACK));
        }
        assert_eq!(w.state(&c), None);
    }
}

/// It waits for the end of the stream, and has nothing to repeat once its own FIN was acknowledged.
#[test]
fn a_client_that_closed_first_is_sent_our_fin_until_it_has_it() {
    let (mut w, mut c) = legless(1);
    let fin = one(w.client_sends(&mut c, FIN_ACK, &[]));
    assert!(fin.is(FIN_ACK), "lost");
    let same = |sent: &[Sent]| {
        let fins = World::to_client(sent);
        for again in &fins {
            assert_eq!((again.is(FIN_ACK), again.segment.seq), (true, fin.segment.seq));
        }
        fins.len()
    };
    assert_eq!(same(&w.run_ms(1_500)), 3);
    // It repeats its own, too.
    let mut again = w.client_wire(&c, FIN_ACK, &[]);
    again.seq = c.seq.wrapping_sub(1);
    assert_eq!(same(&w.inject(&again.build())), 1);
    c.server = c.server.wrapping_add(1);
    w.inject(&w.client_wire(&c, Flags::ACK, &[]).build());
    assert_eq!(same(&w.run_ms(20_000)), 0);
    assert_eq!(w.state(&c), None);
}

/// It closed its direction and hears nothing of ours for long: it would wait for ever.
#[test]
fn a_client_that_closed_first_and_never_has_our_fin_is_reset() {
    let (mut w, mut c) = legless(1);
    one(w.client_sends(&mut c, FIN_ACK, &[]));
    let sent = w.run_ms(20_000);
    let last = *World::to_client(&sent).last().expect("FINs");
    assert!(last.is(RST_ACK), "{last:?}");
    assert_eq!(w.state(&c), None);
}

/// Our FIN was lost, and the client closes its direction before it heard of it: it waits for the
/// end of the stream, and sends nothing more by which it could be told.
#[test]
fn a_client_that_closes_without_our_fin_is_sent_it_until_it_has_it() {
    let (mut w, mut c, _) = parted();
    c.server = c.server.wrapping_sub(1);
    let answer = one(w.client_sends(&mut c, FIN_ACK, &[]));
    assert_eq!(answer.segment.ack.0, c.seq);
    let fins = |sent: &[Sent]| {
        let fins = World::to_client(sent).into_iter();
        fins.filter(|s| s.is(FIN_ACK) && s.segment.seq.0 == c.server).count()
    };
    assert!(fins(&w.run_ms(2_000)) >= 2);
    c.server = c.server.wrapping_add(1);
    w.inject(&w.client_wire(&c, Flags::ACK, &[]).build());
    assert!(World::to_client(&w.run_ms(20_000)).is_empty());
    assert_eq!(w.state(&c), None);
}

#[test]
fn a_client_whose_connection_the_deadline_closed_may_use_its_port_again() {
    let (mut w, mut c, _) = parted();
    w.inject(&w.client_wire(&c, Flags::RST, &[]).build());
    assert_eq!(w.state(&c), None);
    let (mut w2, old, _) = parted();
    c = Conn::new(1);
    c.seq = old.seq.wrapping_add(100_000);
    let mut c = w2.open_as(c);
    w2.exchange(&mut c);
}
