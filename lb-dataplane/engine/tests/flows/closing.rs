//! How flows end: FIN, RST, time-outs, and segments of no flow.

use crate::common::{Conn, Dest, End, World, answer, conn::*};
use baton_api::{Micros, Protocol};
use baton_engine::{Counter, DropReason, Verdict};
use baton_packet::{Flags, Reason};

#[test]
fn both_sides_close_and_the_port_is_freed() {
    for client_first in [true, false] {
        let (mut w, mut c) = World::new(2).at_rest();
        if client_first {
            w.client_fin(&mut c);
            w.assert_state(&c, "ClientFin");
            w.responds(&mut c, b"last words");
            w.pod_fin(&mut c);
        } else {
            w.pod_closes(&mut c);
            w.stays(&mut c, GET);
            w.client_fin(&mut c);
        }
        w.assert_state(&c, "Closed");
        if client_first {
            w.ack(&mut c);
        } else {
            let ack = w.pod_wire(&c, Flags::ACK, &[]);
            let sent = w.inject(&ack.build());
            assert_eq!(sent.len(), 2, "the end of the TIME_WAIT, and the ACK");
        }
        assert!(w.run_ms(900).is_empty());
        w.assert_state(&c, "Closed");
        assert!(w.run_ms(200).is_empty(), "no reset for a clean end");
        assert_eq!(w.state(&c), None);
        assert_eq!(w.count(Counter::FlowsClosed), 1);
    }
}

/// A client that closed its direction behind its request, and lacks the response, whose pod closed;
/// and its SYN.
fn closed_unheard(stamped: bool) -> (World, Conn, Vec<u8>) {
    let mut w = World::new(2);
    let mut c = Conn::new(1);
    c.options.timestamps = stamped;
    let syn = w.syn_wire(&c).build();
    let mut c = w.open_as(c);
    w.stays(&mut c, GET);
    w.client_fin(&mut c);
    w.responds(&mut c, OK);
    w.pod_fin(&mut c);
    w.assert_state(&c, "Closed");
    (w, c, syn)
}

/// The pod's kernel repeats what its client lacks.
fn repeats(w: &mut World, c: &Conn) {
    let mut again = w.pod_wire(c, FIN_ACK, OK);
    again.seq = c.server.wrapping_sub(OK.len() as u32 + 1);
    w.forwarded_to_client(c, &again);
}

#[test]
fn what_the_client_of_a_closed_flow_lacks_arrives_however_late() {
    let (mut w, mut c, _) = closed_unheard(true);
    // From a kernel that has measured no round trip yet, and a path that loses all for a minute.
    for wait_ms in [1_000, 2_000, 4_000, 8_000, 16_000, 32_000] {
        w.run_ms(wait_ms);
        repeats(&mut w, &c);
    }
    w.ack(&mut c);
    w.run_ms(2_100);
    assert_eq!(w.state(&c), None);
}

#[test]
fn a_closed_flow_is_forgotten_when_nobody_repeats_anything() {
    let (mut w, c, _) = closed_unheard(true);
    let before = w.run_ms(119_000);
    assert!(World::to_client(&before).is_empty());
    w.assert_state(&c, "Closed");
    assert_eq!(w.count(Counter::TimeoutsUnheard), 0);
    let sent = w.run_ms(2_100);
    assert_eq!(w.state(&c), None);
    assert_eq!(w.count(Counter::TimeoutsUnheard), 1);
    // It has sent its last, and would wait for ever.
    let told = World::to_client(&sent);
    assert!(matches!(told[..], [rst] if rst.is(RST_ACK)), "{told:?}");
}

/// Its pod never acknowledges its close.
#[test]
fn a_client_that_has_all_is_told_nothing_more() {
    let (mut w, mut c) = World::new(2).at_rest();
    w.pod_closes(&mut c);
    w.client_fin(&mut c);
    w.assert_state(&c, "Closed");
    let sent = w.run_ms(122_000);
    assert_eq!(w.state(&c), None);
    assert!(World::to_client(&sent).is_empty(), "{sent:?}");
}

/// Its client reads nothing. The old owner's FIN needs room all the same.
#[test]
fn an_old_leg_closes_whatever_window_its_client_has() {
    let (mut w, mut c) = World::new(2).at_rest();
    let old = c.clone();
    c.window = 0;
    w.moves(&mut c, GET);
    w.responds(&mut c, OK);
    let sent = w.run_ms(10);
    let fin = sent.iter().find(|s| s.to == Dest::Pod(old.pod) && s.is(FIN_ACK));
    assert!(fin.expect("it closes").segment.window > 0);
}

#[test]
fn a_late_copy_of_its_syn_does_not_end_a_closed_flow_whose_client_lacks_bytes() {
    for stamped in [true, false] {
        let (mut w, mut c, syn) = closed_unheard(stamped);
        let challenge = one(w.inject(&syn));
        assert_eq!(challenge.to, Dest::Client);
        assert!(challenge.is(Flags::ACK));
        w.assert_state(&c, "Closed");
        repeats(&mut w, &c);
        w.ack(&mut c);
        // It has all, and may have gone.
        assert!(matches!(one(w.inject(&syn)).to, Dest::Pod(_)));
    }
}

/// A request overtook its adoption and drew a RST, which the network holds until the new owner has
/// answered and closed: for a client that lacks the answer its number is exact.
#[test]
fn a_reset_from_before_the_adoption_does_not_end_what_closes() {
    for client_first in [false, true] {
        let (mut w, mut c) = World::new(2).at_rest();
        let from = c.server;
        w.moves(&mut c, POST);
        w.responds(&mut c, OK);
        w.run_ms(20);
        if client_first {
            w.client_fin(&mut c);
            w.pod_fin(&mut c);
        } else {
            w.pod_closes(&mut c);
        }
        let mut rst = w.pod_wire(&c, Flags::RST, &[]);
        rst.seq = from;
        let asks = one(w.inject(&rst.build()));
        assert_eq!((asks.to, asks.is(Flags::ACK)), (Dest::Pod(c.pod), true));
        repeats(&mut w, &c);
        // Its kernel has no socket any more: the client is told.
        rst.seq = asks.segment.ack.0;
        let told = one(w.inject(&rst.build()));
        assert_eq!((told.to, told.is(RST_ACK)), (Dest::Client, true));
        assert_eq!(w.state(&c), None);
    }
}

#[test]
fn a_client_that_comes_back_to_a_closed_flow_before_it_heard_all_is_let_in() {
    for newer in ["number", "clock"] {
        let (mut w, c, _) = closed_unheard(true);
        let mut again = Conn::new(1);
        if newer == "clock" {
            w.run_ms(1);
        } else {
            again.seq = c.seq.wrapping_add(1);
        }
        let again = w.open_as(again);
        w.assert_state(&again, "Fresh");
    }
}

#[test]
fn a_half_closed_flow_is_pinned() {
    let (mut w, mut c) = World::new(2).at_rest();
    w.pod_closes(&mut c);
    w.ack(&mut c);
    w.stays(&mut c, GET);
    w.stays(&mut c, GET);
    assert_eq!(w.count(Counter::MigrationsBegun), 0);
    w.assert_state(&c, "ServerFin");
}

#[test]
fn a_client_fin_during_an_adoption_closes_at_the_new_owner() {
    let (mut w, mut c) = World::new(2).at_rest();
    w.moves(&mut c, GET);
    w.client_fin(&mut c);
    w.assert_state(&c, "Adopting");
    w.responds(&mut c, OK);
    w.assert_state(&c, "ClientFin");
    w.pod_fin(&mut c);
    w.assert_state(&c, "Closed");
}

#[test]
fn a_client_fin_during_an_adoption_survives_its_refusal() {
    for with_data in [false, true] {
        let (mut w, mut c) = World::new(2).at_rest();
        let old = c.clone();
        let adoption = w.moves(&mut c, POST);
        if with_data {
            let wire = w.client_wire(&c, FIN_ACK, b"end");
            w.forwarded_to_pod(&c, &wire);
            c.seq = c.seq.wrapping_add(4);
        } else {
            w.client_fin(&mut c);
        }
        let sent = w.inject(&answer(&adoption, Reason::NoListener, 0));
        assert_eq!(sent.len(), 2, "request and FIN: {sent:?}");
        assert!(sent.iter().all(|s| s.to == Dest::Pod(old.pod)));
        assert!(sent[1].segment.flags.has(Flags::FIN));
        (c.pod, c.leg) = (old.pod, old.leg);
        w.assert_state(&c, "ClientFin");
        w.responds(&mut c, OK);
        w.pod_fin(&mut c);
        w.assert_state(&c, "Closed");
    }
}

#[test]
fn a_lost_and_repeated_fin_passes() {
    let (mut w, mut c) = World::new(2).at_rest();
    let fin = w.client_wire(&c, FIN_ACK, &[]);
    w.client_fin(&mut c);
    w.forwarded_to_pod(&c, &fin);
    w.assert_state(&c, "ClientFin");
    assert_eq!(w.taken("Idle", "ClientFin"), 1);
}

#[test]
fn only_an_exact_reset_ends_a_flow() {
    for from_client in [true, false] {
        for off in [1u32, 100, 0u32.wrapping_sub(1)] {
            let (mut w, c) = World::new(2).at_rest();
            let inject = |w: &mut World, off: u32| {
                let mut wire = if from_client {
                    w.client_wire(&c, Flags::RST, &[])
                } else {
                    w.pod_wire(&c, RST_ACK, &[])
                };
                wire.seq = wire.seq.wrapping_add(off);
                if from_client {
                    w.forwarded_to_pod(&c, &wire);
                } else if off != 0 {
                    // Whoever sent it: the pod is asked, and the client hears nothing.
                    let asked = one(w.inject(&wire.build()));
                    assert_eq!((asked.to, asked.is(Flags::ACK)), (Dest::Pod(c.pod), true));
                    assert_eq!(w.count(Counter::ResetsDoubted), 1);
                } else {
                    // Held until the pod's kernel says that somebody listens.
                    assert!(w.ends_listening(&c, End::Rst).is_empty());
                    w.assert_state(&c, "OwnerFinPending");
                    let rst = one(w.run_ms(5));
                    assert_eq!((rst.to, rst.is(RST_ACK)), (Dest::Client, true));
                    assert_eq!(rst.segment.seq.0, c.server, "exact");
                }
            };
            inject(&mut w, off);
            w.assert_state(&c, "Idle");
            inject(&mut w, 0);
            assert_eq!(w.state(&c), None);
            let ours = u64::from(!from_client);
            assert_eq!(w.count(Counter::ResetsToClients), ours);
        }
    }
}

#[test]
fn a_client_reset_during_an_adoption_ends_both_legs() {
    let (mut w, mut c) = World::new(2).at_rest();
    let old = c.clone();
    w.moves(&mut c, GET);
    let sent = w.inject(&w.client_wire(&c, Flags::RST, &[]).build());
    assert!(sent.iter().all(|s| s.segment.flags.has(Flags::RST)));
    let to_old: Vec<_> = sent.iter().filter(|s| s.to == Dest::Pod(old.pod)).collect();
    assert!(to_old.iter().any(|s| s.segment.seq.0 == old.seq), "exact there");
    let to_new: Vec<_> = sent.iter().filter(|s| s.to == Dest::Pod(c.pod)).collect();
    assert!(to_new.iter().any(|s| s.segment.seq.0 == c.seq), "exact here");
    assert_eq!(w.state(&c), None);
    assert_eq!(w.table("kept_segments").0, 0);
}

#[test]
fn an_idle_flow_is_reset_towards_both_sides_after_its_timeout() {
    for state in ["Fresh", "Request", "Response", "Idle"] {
        let (mut w, mut c) = World::of(2, |p| p.timeouts.idle = Micros::from_secs(10)).opened();
        if state != "Fresh" {
            w.stays(&mut c, GET);
        }
        if state == "Response" || state == "Idle" {
            w.responds(&mut c, OK);
        }
        if state == "Idle" {
            w.ack(&mut c);
        }
        w.assert_state(&c, state);
        assert!(w.run_ms(9_900).is_empty());
        w.pod_ack(&c);
        assert!(w.run_ms(9_900).is_empty(), "a segment keeps it alive");
        w.assert_state(&c, state);
        let sent = w.run_ms(200);
        assert_eq!(sent.len(), 2);
        assert_eq!((sent[0].to, sent[1].to), (Dest::Client, Dest::Pod(c.pod)));
        assert!(sent.iter().all(|s| s.is(RST_ACK)));
        assert_eq!((sent[0].segment.seq.0, sent[0].segment.ack.0), (c.server, c.seq));
        assert_eq!((sent[1].segment.seq.0, sent[1].segment.ack.0), (c.seq, c.server));
        assert_eq!(w.state(&c), None);
        assert_eq!(w.count(Counter::TimeoutsIdle), 1);
    }
}

#[test]
fn an_unfinished_handshake_times_out() {
    for answered in [false, true] {
        let (mut w, mut c) = World::of(2, |p| p.timeouts.handshake = Micros::from_secs(3)).begun();
        if answered {
            w.synack(&mut c);
        }
        assert!(w.run_ms(2_900).is_empty());
        let sent = w.run_ms(200);
        // A pod that has a half-open connection is told.
        assert_eq!(sent.len(), usize::from(answered));
        assert_eq!(w.state(&c), None);
        assert_eq!(w.count(Counter::TimeoutsHandshake), 1);
        assert_eq!(w.table("kept_segments").0, 0);
    }
}

#[test]
fn a_half_closed_flow_times_out() {
    for client in [true, false] {
        let mut w = World::of(2, |p| p.timeouts.half_closed = Micros::from_secs(5));
        let mut c = w.idle(1);
        if client {
            w.client_fin(&mut c);
        } else {
            w.pod_closes(&mut c);
        }
        assert!(w.run_ms(4_900).is_empty());
        let sent = w.run_ms(200);
        assert_eq!(sent.len(), 2);
        assert!(sent.iter().all(|s| s.is(RST_ACK)));
        assert_eq!(w.count(Counter::TimeoutsHalfClosed), 1);
        assert_eq!(w.state(&c), None);
    }
}

#[test]
fn segments_of_no_flow_are_reset_and_the_resets_are_limited() {
    let mut w = World::new(1);
    let c = Conn::new(1);
    let wire = w.client_wire(&c, Flags::ACK, &[]);
    let rst = one(w.inject(&wire.build()));
    assert_eq!(w.verdict, Verdict::Drop(DropReason::NoFlow));
    assert_eq!((rst.to, rst.segment.dst_port), (Dest::Client, c.client.port()));
    assert!(rst.is(Flags::RST));
    assert_eq!(rst.segment.seq.0, wire.ack, "RFC 9293 section 3.10.7.1");
    assert!(w.inject(&w.client_wire(&c, Flags::RST, &[]).build()).is_empty());

    // From a pod, on a port that is no leg.
    let mut c = w.idle(2);
    let mut wire = w.pod_wire(&c, PSH_ACK, b"stray");
    let used = c.leg.port();
    c.leg.set_port(if used == 40_000 { 40_001 } else { 40_000 });
    wire.to = c.leg;
    // The probe's port is a leg; take another one then.
    if w.inject(&wire.build()).is_empty() {
        wire.to.set_port(if used == 40_002 { 40_003 } else { 40_002 });
        w.inject(&wire.build());
    }
    assert_eq!(w.verdict, Verdict::Drop(DropReason::NoLeg));
    assert_eq!(w.count(Counter::ResetsToBackends), 1);

    let frame = w.client_wire(&Conn::new(9), Flags::ACK, &[]).build();
    let mut resets = 0;
    for _ in 0..20_100 {
        let mut buffer = frame.clone();
        let len = buffer.len();
        let before = w.count(Counter::ResetsToClients);
        let _ = w.engine.frame(w.now, &mut buffer, len, &mut w.out);
        resets += w.count(Counter::ResetsToClients) - before;
    }
    assert_eq!(resets, 20_000 - 1);
    assert_eq!(w.count(Counter::ResetsLimited), 101);
    w.run_ms(1_000);
    assert_eq!(w.inject(&frame).len(), 1, "a new second, a new budget");
}

#[test]
fn what_is_addressed_to_nobody_here_is_dropped() {
    let mut w = World::new(1);
    let mut c = Conn::new(1);
    c.frontend.set_port(81);
    assert!(w.inject(&w.syn_wire(&c).build()).is_empty());
    assert_eq!(w.verdict, Verdict::Drop(DropReason::NotOurs));
    for frame in [&[][..], &[0; 13], &[0xff; 60]] {
        assert!(w.inject(frame).is_empty());
    }
    assert!(w.dropped(DropReason::Malformed) >= 2);
}

#[test]
fn an_expired_hop_limit_is_dropped() {
    let (mut w, c) = World::new(1).opened();
    let mut wire = w.client_wire(&c, Flags::ACK, &[]);
    wire.ttl = 1;
    assert!(w.inject(&wire.build()).is_empty());
    assert_eq!(w.verdict, Verdict::Drop(DropReason::TtlExpired));
}

#[test]
fn a_protocol_without_boundaries_closes_alike() {
    let (mut w, mut c) = World::of(1, |p| p.protocol = Protocol::None).at_rest();
    w.pod_fin(&mut c);
    w.client_fin(&mut c);
    w.inject(&w.pod_wire(&c, Flags::ACK, &[]).build());
    w.run_ms(2_200);
    assert_eq!(w.state(&c), None);
}

#[test]
fn segments_beyond_any_window_teach_the_flow_nothing() {
    // As a stale socket's FIN, or one that a third party made up: for the endpoint's kernel to
    // judge.
    let (mut w, mut c) = World::new(2).at_rest();
    let far = 0xffff << 14;
    let mut fin = w.pod_wire(&c, Flags::ACK | Flags::FIN, b"not yours");
    fin.seq = fin.seq.wrapping_add(far);
    w.forwarded_to_client(&c, &fin);
    let mut request = w.client_wire(&c, Flags::ACK | Flags::FIN, GET);
    request.seq = request.seq.wrapping_add(far);
    w.forwarded_to_pod(&c, &request);
    assert_eq!(w.count(Counter::BeyondWindow), 2);
    w.assert_state(&c, "Idle");
    w.assert_serves(&mut c);
}
