//! What simulation, vectors, the hand-over model and faulty paths found: one test each, so that it
//! stays found.

use crate::common::{
    Dest, End, Listener, World, answer_with, conn::*, key, policy, settings, wire,
};
use baton_api::{Micros, MigrationMode, Protocol};
use baton_engine::{Counter, Lost};
use baton_packet::{Flags, Reason};

/// A world in which no flow moves but to be saved.
fn never(pods: usize) -> World {
    World::of(pods, |p| p.migration.mode = MigrationMode::Never)
}

#[test]
fn a_pure_ack_ahead_of_a_lost_request_does_not_hide_the_request() {
    let (mut w, mut c) = World::new(2).at_rest();
    // The request is lost; the client answers a repeated response with its numbers behind the
    // request.
    let mut ack = w.client_wire(&c, Flags::ACK, &[]);
    ack.seq = ack.seq.wrapping_add(GET.len() as u32);
    w.forwarded_to_pod(&c, &ack);
    w.moves(&mut c, GET);
    w.responds(&mut c, OK);
    assert_eq!(w.pins(), 0);
}

#[test]
fn the_leg_of_an_overdue_owner_is_closed_behind_the_request_that_it_has() {
    for has_it in [true, false] {
        let mut p = policy(2);
        p.response_timeout = Some(Micros::from_millis(300));
        p.migration.mode = MigrationMode::Never;
        let (mut w, mut c) = World::with(settings(), p).at_rest();
        let boundary = c.seq;
        w.stays(&mut c, GET);
        let frozen = c.clone();
        let sent = w.until_adoption(305);
        w.adopted_from(&mut c, &sent, boundary);
        w.responds(&mut c, OK);
        let fin = one(w.run_ms(11));
        assert_eq!((fin.to, fin.is(FIN_ACK)), (Dest::Pod(frozen.pod), true));
        assert_eq!(fin.segment.seq.0, frozen.seq);
        let mut ack = w.pod_wire(&frozen, Flags::ACK, &[]);
        if has_it {
            ack.ack = ack.ack.wrapping_add(1);
            assert!(w.inject(&ack.build()).is_empty());
        } else {
            // The request was lost on the way: its kernel wants the first byte of it.
            ack.ack = boundary;
            let again = one(w.inject(&ack.build()));
            assert_eq!((again.segment.seq.0, again.is(FIN_ACK)), (boundary, true));
            ack.ack = boundary.wrapping_add(1);
            assert!(w.inject(&ack.build()).is_empty());
        }
        let mut theirs = w.pod_wire(&frozen, FIN_ACK, &[]);
        theirs.ack = ack.ack;
        one(w.inject(&theirs.build()));
        assert_eq!(w.count(Counter::LegsClosed), 1);
    }
}

#[test]
fn a_server_fin_during_the_handshake_waits_until_the_connection_is_open() {
    let (mut w, mut c) = World::new(2).begun();
    w.synack(&mut c);
    let fin = w.pod_wire(&c, FIN_ACK, &[]);
    assert!(w.inject(&fin.build()).is_empty());
    w.ack(&mut c);
    w.assert_state(&c, "Fresh");
    w.pod_closes(&mut c);
}

#[test]
fn what_is_behind_a_gap_while_an_end_is_held_comes_again() {
    let (mut w, mut c) = World::new(2).at_rest();
    w.stops(c.pod);
    w.listeners[c.pod] = Listener::Silent;
    assert!(w.ends(&c, End::Fin).is_empty());
    let mut second = w.client_wire(&c, PSH_ACK, &GET[5..]);
    second.seq = second.seq.wrapping_add(5);
    assert!(w.inject(&second.build()).is_empty());
    assert_eq!(w.pins(), 0);
    let boundary = c.seq;
    let sent = w.data(&mut c, GET);
    assert_eq!(one(w.adopted_from(&mut c, &sent, boundary)).data(), GET);
    w.responds(&mut c, OK);
    assert_eq!(Lost::ALL.iter().map(|l| w.engine.lost(*l)).sum::<u64>(), 0);
}

/// A POST overtakes its adoption and draws a RST; the adoption is taken and confirmed, and then the
/// RST comes.
#[test]
fn a_reset_from_before_the_adoption_does_not_end_the_new_owner() {
    for late in [0, 1] {
        let (mut w, mut c) = World::new(2).at_rest();
        let echo = c.clone();
        w.moves(&mut c, POST);
        w.pod_ack(&c);
        w.assert_state(&c, "Request");
        if late == 1 {
            w.responds(&mut c, OK);
        }
        let mut rst = w.pod_wire(&c, Flags::RST, &[]);
        rst.seq = echo.server;
        let asks = one(w.inject(&rst.build()));
        assert_eq!(asks.to, Dest::Pod(c.pod));
        let number = echo.server.wrapping_sub(1 << 17);
        assert_eq!(asks.segment.ack.0, number);
        assert_eq!(w.count(Counter::ResetsDoubted), 1);
        // It lives.
        w.pod_ack(&c);
        if late == 0 {
            w.responds(&mut c, OK);
        }
        assert_eq!(w.count(Counter::Stranded), 0);
        // And when it is gone, only the answer to such a question says so.
        w.ack(&mut c);
        let mut rst = w.pod_wire(&c, Flags::RST, &[]);
        one(w.inject(&rst.build()));
        w.assert_state(&c, "Idle");
        rst.seq = rst.seq.wrapping_sub(1 << 17);
        w.stops(c.pod);
        assert!(w.inject(&rst.build()).is_empty());
        let sent = w.run_ms(5);
        w.rescued(&mut c, &sent);
    }
}

/// A process dies with a response on its way that gets lost, and its kernel's reset is behind that.
/// A client that takes any reset within its window would be told of an end that nobody counted, and
/// of which nothing was rescued (random seed 7105068).
#[test]
fn a_reset_behind_lost_bytes_is_for_the_pod_to_explain() {
    let (mut w, mut c) = World::new(2).at_rest();
    let mut rst = w.pod_wire(&c, RST_ACK, &[]);
    rst.seq = rst.seq.wrapping_add(79);
    let asks = one(w.inject(&rst.build()));
    assert_eq!(asks.to, Dest::Pod(c.pod));
    w.assert_state(&c, "Idle");
    w.stops(c.pod);
    let mut proof = w.pod_wire(&c, Flags::RST, &[]);
    proof.seq = asks.segment.ack.0;
    assert!(w.inject(&proof.build()).is_empty());
    let sent = w.run_ms(5);
    w.rescued(&mut c, &sent);
}

/// Of a client's segments one comes ahead of its request, and one is overtaken: a new owner that
/// began with the timestamp of the former would take the request for an old duplicate (PAWS), and
/// so would its kernel what ends our handshake (random seed 7109631).
#[test]
fn a_new_owner_begins_with_a_timestamp_that_nothing_late_is_behind() {
    let (mut w, c) = World::new(2).at_rest();
    let first = CLIENT_CLOCK + w.now.ms() as u32;
    w.run_ms(40);
    let mut ahead = w.client_wire(&c, Flags::ACK, &[]);
    ahead.seq = ahead.seq.wrapping_add(GET.len() as u32);
    w.forwarded_to_pod(&c, &ahead);
    let mut before = w.client_wire(&c, Flags::ACK, &[]);
    before.options = wire::stamps(first - 5, c.seen_ts);
    w.forwarded_to_pod(&c, &before);
    w.stops(c.pod);
    w.ends(&c, End::Fin);
    let sent = w.run_ms(5);
    let adoption = sent.iter().find(|s| s.is_adoption()).expect("a rescue");
    assert_eq!(adoption.stamps().expect("timestamps").0, first);
}

#[test]
fn an_end_behind_the_clients_fin_is_counted() {
    for how in End::BOTH {
        let (mut w, mut c) = World::of(2, |p| p.migration.mode = MigrationMode::Never).at_rest();
        w.stays(&mut c, GET);
        w.pod_ack(&c);
        w.client_fin(&mut c);
        w.assert_state(&c, "ClientFin");
        let wire = w.pod_wire(&c, how.flags(), &[]);
        w.forwarded_to_client(&c, &wire);
        assert_eq!(w.engine.lost(Lost::HalfClosed), 1);
    }
}

/// Lighttpd and HAProxy end the connection of a client that leaves while it uploads.
#[test]
fn an_end_behind_a_client_that_left_within_its_request_is_no_loss() {
    for how in End::BOTH {
        let (mut w, mut c) = World::of(2, |p| p.migration.mode = MigrationMode::Never).at_rest();
        w.stays(&mut c, b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf");
        w.pod_ack(&c);
        w.client_fin(&mut c);
        let wire = w.pod_wire(&c, how.flags(), &[]);
        w.forwarded_to_client(&c, &wire);
        assert_eq!(w.engine.lost(Lost::HalfClosed), 0);
    }
}

/// Unicorn answers the first one of pipelined requests, and closes.
#[test]
fn what_is_behind_a_response_that_announced_the_close_is_no_loss() {
    let close = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";
    let (mut w, mut c) = never(2).at_rest();
    w.stays(&mut c, &[GET, GET].concat());
    w.answers(&mut c, close);
    w.pod_fin(&mut c);
    assert_eq!(Lost::ALL.iter().map(|l| w.engine.lost(*l)).sum::<u64>(), 0);
}

/// PostgreSQL's Terminate has no answer, nor has MySQL's `COM_QUIT`: a process ends.
#[test]
fn the_end_behind_the_last_word_of_what_nobody_follows_is_no_loss() {
    for protocol in [Protocol::None, Protocol::Http1] {
        for how in End::BOTH {
            let (mut w, mut c) = World::of(2, |p| p.protocol = protocol).at_rest();
            w.data(&mut c, b"X\0\0\0\x04");
            w.client_fin(&mut c);
            w.assert_state(&c, "ClientFin");
            let wire = w.pod_wire(&c, how.flags(), &[]);
            w.forwarded_to_client(&c, &wire);
            assert_eq!(w.engine.lost(Lost::HalfClosed), 0, "{protocol:?}");
        }
    }
}

#[test]
fn an_honest_answer_that_comes_late_is_no_forgery() {
    let (mut w, mut c) = World::new(2).at_rest();
    let adoption = w.moves(&mut c, GET);
    let mut older = adoption.clone();
    older.segment.seq = older.segment.seq.add(u32::MAX);
    let answer = answer_with(&older, Reason::NoListener, 0, crate::common::EPOCH, &key());
    assert!(w.inject(&answer).is_empty());
    assert_eq!(w.count(Counter::ForgedAnswers), 0);
    assert_eq!(w.count(Counter::LateAnswers), 1);
}

#[test]
fn a_pure_ack_behind_a_lost_fin_is_no_response_and_does_not_hide_the_fin() {
    let (mut w, mut c) = never(2).at_rest();
    w.stays(&mut c, GET);
    // Its response and FIN are lost; its kernel answers the repeated request with what it sends
    // next.
    let mut ack = w.pod_wire(&c, Flags::ACK, &[]);
    ack.seq = ack.seq.wrapping_add(OK.len() as u32 + 1);
    w.forwarded_to_client(&c, &ack);
    w.assert_state(&c, "Request");
    w.stops(c.pod);
    let both = w.pod_wire(&c, FIN_ACK, OK);
    let passed = one(w.inject(&both.build()));
    assert!(!passed.segment.flags.has(Flags::FIN), "held");
    assert_eq!(passed.data(), OK);
}

#[test]
fn a_body_cut_short_is_lost_although_the_close_was_announced() {
    let head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 9\r\n\r\nhalf";
    let open_end = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhalf";
    for (response, lost) in [(&head[..], 1), (open_end, 0)] {
        let (mut w, mut c) = never(2).at_rest();
        w.stays(&mut c, GET);
        w.answers(&mut c, response);
        w.pod_fin(&mut c);
        assert_eq!(w.engine.lost(Lost::ResponseBegun), lost);
    }
}

#[test]
fn a_reset_with_the_clients_number_is_an_end_although_more_was_seen() {
    let (mut w, mut c) = never(2).at_rest();
    let before = c.server;
    w.stays(&mut c, GET);
    // The response gets lost on the way to the client, whose next segment meets a dead pod.
    w.responds(&mut c, OK);
    w.stops(c.pod);
    let mut rst = w.pod_wire(&c, Flags::RST, &[]);
    rst.seq = before;
    let asks = one(w.inject(&rst.build()));
    assert_eq!(asks.to, Dest::Pod(c.pod), "not for the client");
    rst.seq = asks.segment.ack.0;
    assert!(w.inject(&rst.build()).is_empty());
    assert!(World::to_client(&w.run_ms(100)).is_empty());
    let sent = w.run_ms(3_100);
    assert!(one(World::to_client(&sent).into_iter().cloned().collect()).is(RST_ACK));
    assert_eq!(w.engine.lost(Lost::ResponseUnacknowledged), 1);
}

#[test]
fn a_client_that_closes_while_nobody_has_its_idle_flow_loses_nothing() {
    let (mut w, mut c) = World::new(2).at_rest();
    let sent = w.dies(c.pod, End::Fin, &[c.clone()]);
    w.adopted(&mut c, &sent);
    w.assert_state(&c, "AdoptingIdle");
    let fin = w.client_wire(&c, FIN_ACK, &[]);
    w.forwarded_to_pod(&c, &fin);
    w.adopters = vec![Some(Reason::NoListener); 32];
    // The new owner's application ended before it had anything.
    let rst = w.pod_wire(&c, RST_ACK, &[]);
    let mut sent = w.inject(&rst.build());
    sent.extend(w.run_ms(5));
    let told = World::to_client(&sent);
    assert!(told.iter().all(|s| s.is(FIN_ACK)), "{sent:?}");
    assert_eq!(told.len(), 1);
    assert_eq!(w.engine.lost(Lost::NotKept), 0);
}

#[test]
fn a_command_that_is_answered_by_a_close_is_no_loss() {
    let mut p = policy(2);
    p.protocol = Protocol::Memcached;
    p.migration.mode = MigrationMode::Never;
    let (mut w, mut c) = World::with(settings(), p).opened();
    w.stays(&mut c, b"quit\r\n");
    w.pod_fin(&mut c);
    assert!(w.asked.is_empty());
    assert_eq!(Lost::ALL.iter().map(|l| w.engine.lost(*l)).sum::<u64>(), 0);
}

#[test]
fn what_is_new_in_a_segment_that_overlaps_what_is_acknowledged_is_kept_while_an_end_is_held() {
    let mut w = World::new(2);
    let mut c = w.idle(1);
    w.listeners[c.pod] = Listener::Silent;
    assert!(w.ends(&c, End::Fin).is_empty());
    let (last, boundary) = (&GET[GET.len() - 1..], c.seq);
    let mut overlaps = w.client_wire(&c, PSH_ACK, &[last, GET].concat());
    overlaps.seq = overlaps.seq.wrapping_sub(1);
    let sent = w.inject(&overlaps.build());
    let behind = w.adopted_from(&mut c, &sent, boundary);
    assert_eq!(one(behind).data(), GET);
}

/// The old owner acknowledged the request to the client, which will not repeat it: Baton has to.
#[test]
fn copies_that_get_lost_behind_an_overdue_owner_go_again() {
    let mut p = policy(2);
    p.response_timeout = Some(Micros::from_millis(300));
    p.migration.mode = MigrationMode::Never;
    let (mut w, mut c) = World::with(settings(), p).at_rest();
    let boundary = c.seq;
    w.stays(&mut c, GET);
    w.pod_ack(&c);
    let sent = w.until_adoption(305);
    w.adopted_from(&mut c, &sent, boundary);
    // The adoption arrived, the copy did not.
    let mut without = w.pod_wire(&c, Flags::ACK, &[]);
    without.ack = boundary;
    assert!(w.inject(&without.build()).is_empty(), "not for the client");
    w.assert_state(&c, "Adopting");
    let again = w.until_adoption(50);
    assert!(again.iter().any(|s| s.data() == GET), "{again:?}");
    w.responds(&mut c, OK);
    w.assert_state(&c, "Response");
}

#[test]
fn a_segment_behind_a_gap_does_not_begin_the_request_of_an_idle_hand_over() {
    let (mut w, mut c) = World::new(2).at_rest();
    let boundary = c.seq;
    let sent = w.dies(c.pod, End::Fin, &[c.clone()]);
    w.adopted(&mut c, &sent);
    w.assert_state(&c, "AdoptingIdle");
    let mut second = w.client_wire(&c, PSH_ACK, GET);
    second.seq = second.seq.wrapping_add(GET.len() as u32);
    assert!(w.inject(&second.build()).is_empty());
    w.assert_state(&c, "AdoptingIdle");
    let again = w.until_adoption(60);
    let adoption = again.iter().find(|s| s.is_adoption()).expect("a repetition");
    assert_eq!(adoption.segment.seq.0, boundary);
    w.confirms(&c);
}

#[test]
fn a_challenge_acknowledges_nothing_that_no_pod_has() {
    let (mut w, mut c) = never(2).at_rest();
    let before = c.seq;
    w.stays(&mut c, GET);
    let mut syn = w.syn_wire(&c);
    syn.seq = 5;
    let challenge = one(w.inject(&syn.build()));
    assert_eq!(challenge.segment.ack.0, before);
    // The client's answer to it ends the flow all the same.
    let mut rst = w.client_wire(&c, Flags::RST, &[]);
    rst.seq = before;
    w.forwarded_to_pod(&c, &rst);
    assert_eq!(w.state(&c), None);
}

/// A large answer is on its way; a RST in its pod's name, or of its client's with a number that
/// only the pod can judge. What the pod's kernel takes for acknowledged it never sends again.
#[test]
fn a_question_to_an_owner_acknowledges_nothing_that_its_client_lacks() {
    for by_client in [false, true] {
        let (mut w, mut c) = never(2).at_rest();
        w.stays(&mut c, GET);
        let has = c.server;
        w.responds(&mut c, b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n");
        for _ in 0..300 {
            w.responds(&mut c, &[b'x'; 1_000]);
        }
        let rst = if by_client {
            let mut more = w.client_wire(&c, PSH_ACK, GET);
            more.ack = has;
            w.forwarded_to_pod(&c, &more);
            c.client_sent(PSH_ACK, GET);
            let mut rst = w.client_wire(&c, Flags::RST, &[]);
            rst.seq = c.seq.wrapping_sub(3);
            rst
        } else {
            w.pod_wire(&c, Flags::RST, &[])
        };
        let sent = w.inject(&rst.build());
        let asks = sent.iter().find(|s| s.is(Flags::ACK)).expect("a question");
        assert_eq!(asks.to, Dest::Pod(c.pod));
        assert!(asks.segment.ack.0.wrapping_sub(has).cast_signed() <= 0);
        assert!(w.state(&c).is_some());
    }
}

/// An answer is on its way to a client of whose port a SYN comes: a kernel takes the window of what
/// lies behind its last segment (Linux `tcp_may_update_window`), and ours is nobody's.
#[test]
fn a_challenge_to_a_client_lies_in_front_of_what_it_lacks() {
    let mut w = never(2);
    let mut c = w.idle(1);
    w.stays(&mut c, GET);
    let has = c.server;
    w.responds(&mut c, OK);
    let mut syn = w.syn_wire(&c);
    syn.seq = 5;
    let challenge = one(w.inject(&syn.build()));
    assert_eq!(challenge.to, Dest::Client);
    assert_eq!(challenge.segment.seq.0, has.wrapping_sub(1));
}

#[test]
fn a_client_whose_dead_pod_was_asked_is_reset_with_its_own_number() {
    let (mut w, mut c) = World::new(2).at_rest();
    w.moves(&mut c, POST);
    w.pod_ack(&c);
    w.stops(c.pod);
    let mut rst = w.pod_wire(&c, Flags::RST, &[]);
    let asks = one(w.inject(&rst.build()));
    rst.seq = asks.segment.ack.0;
    let told = one(w.inject(&rst.build()));
    assert_eq!((told.to, told.is(RST_ACK)), (Dest::Client, true));
    assert_eq!(told.segment.seq.0, c.server, "exact");
    assert_eq!(w.engine.lost(Lost::FateUnknown), 1);
    assert_eq!(w.state(&c), None);
}

#[test]
fn only_an_exact_reset_ends_a_closing_leg() {
    let (mut w, mut c) = World::new(2).at_rest();
    let old = c.clone();
    let adoption = w.moves(&mut c, GET);
    w.responds(&mut c, OK);
    let fin = one(w.run_ms(11));
    assert_eq!((fin.to, fin.is(FIN_ACK)), (Dest::Pod(old.pod), true));
    // A guess, and an adopter's answer that belongs to an earlier hand-over on this port.
    let mut guess = w.pod_wire(&old, Flags::RST, &[]);
    guess.seq = guess.seq.wrapping_add(100);
    assert!(w.inject(&guess.build()).is_empty());
    let mut earlier = adoption;
    earlier.segment.dst = crate::common::pod(false, old.pod).ip();
    earlier.segment.src_port = old.leg.port();
    let answer = answer_with(&earlier, Reason::NoListener, 0, crate::common::EPOCH, &key());
    assert!(w.inject(&answer).is_empty());
    assert_eq!(w.count(Counter::LegsReset), 0);
    let again = one(w.run_ms(250));
    assert!(again.is(FIN_ACK), "it is told until it answers");
    let rst = w.pod_wire(&old, Flags::RST, &[]);
    assert!(w.inject(&rst.build()).is_empty());
    assert_eq!(w.count(Counter::LegsReset), 1);
}

#[test]
fn only_an_exact_reset_takes_the_old_owner_away_during_a_hand_over() {
    let (mut w, mut c) = World::new(2).at_rest();
    let old = c.clone();
    let adoption = w.moves(&mut c, GET);
    let mut guess = w.pod_wire(&old, RST_ACK, &[]);
    guess.seq = guess.seq.wrapping_add(9);
    assert!(w.inject(&guess.build()).is_empty());
    // It is still there to take the request back.
    let sent =
        w.inject(&answer_with(&adoption, Reason::AcceptQueueFull, 0, crate::common::EPOCH, &key()));
    assert!(sent.iter().any(|s| s.to == Dest::Pod(old.pod) && s.data() == GET));
}

#[test]
fn an_owner_that_had_more_to_say_gets_its_idle_flow_back() {
    let (mut w, mut c) = World::of(2, |p| p.protocol = Protocol::RequestResponse).at_rest();
    let old = c.clone();
    w.change(|s| s.policies[0].backends[old.pod].draining = true);
    let sent = w.until_adoption(1_200);
    w.adopted(&mut c, &sent);
    w.assert_state(&c, "AdoptingIdle");
    let tail = w.pod_wire(&old, PSH_ACK, b"tail");
    let sent = w.inject(&tail.build());
    let told = World::to_client(&sent);
    assert_eq!(told.len(), 1, "{sent:?}");
    assert_eq!(told[0].data(), b"tail");
    assert_eq!(w.count(Counter::Rollbacks), 1);
}

#[test]
fn a_fin_that_could_not_be_sent_is_no_try() {
    let (mut w, mut c) = World::new(2).at_rest();
    let old = c.clone();
    w.moved_exchange(&mut c);
    w.out.free = 0;
    w.run_ms(14_000);
    w.out.free = usize::MAX;
    let sent = w.run_ms(15_000);
    assert!(sent.iter().any(|s| s.to == Dest::Pod(old.pod) && s.is(FIN_ACK)));
}
