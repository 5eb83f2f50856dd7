//! The outstanding request when its owner dies or does not answer: sent again, or the client told,
//! as policy says; never twice without leave, never spliced into a response that has begun.

use crate::common::{Conn, Dest, End, Sent, World, answer, conn::*, policy, settings};
use baton_api::{BackendFailure, Micros, MigrationMode, Protocol};
use baton_engine::{Counter, Lost};
use baton_packet::{Flags, Reason};

fn world(pods: usize, failure: BackendFailure) -> World {
    let mut p = policy(pods);
    p.on_backend_failure = failure;
    p.migration.mode = MigrationMode::Never;
    World::with(settings(), p)
}

fn lost(w: &World) -> u64 {
    Lost::ALL.iter().map(|l| w.engine.lost(*l)).sum()
}

/// How much of the request the owner's end acknowledges.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Had {
    All,
    Nothing,
}

/// The owner's end with a request outstanding; what leaves.
fn owner_ends(w: &mut World, c: &Conn, boundary: u32, how: End, had: Had) -> Vec<Sent> {
    w.stops(c.pod);
    let mut wire = w.pod_wire(c, how.flags(), &[]);
    if had == Had::Nothing {
        wire.ack = boundary;
    }
    let sent = w.inject(&wire.build());
    [sent, w.run_ms(5)].concat()
}

#[test]
fn what_becomes_of_the_request_of_a_dead_owner() {
    use BackendFailure::{AdoptIdleOnly, Replay, ReplayIdempotent, Reset};
    // Policy, request, what the owner had of it: sent again?
    let put = b"PUT /a HTTP/1.1\r\ncontent-length: 1\r\n\r\nx";
    let cases: [(BackendFailure, &[u8], Had, bool); 12] = [
        (ReplayIdempotent, GET, Had::All, true),
        (ReplayIdempotent, put, Had::All, true),
        (ReplayIdempotent, b"HEAD / HTTP/1.1\r\n\r\n", Had::All, true),
        (ReplayIdempotent, b"DELETE / HTTP/1.1\r\n\r\n", Had::All, true),
        (ReplayIdempotent, b"OPTIONS * HTTP/1.1\r\n\r\n", Had::All, true),
        (ReplayIdempotent, POST, Had::All, false),
        (ReplayIdempotent, POST, Had::Nothing, true),
        (Replay, POST, Had::All, true),
        (AdoptIdleOnly, GET, Had::All, false),
        (AdoptIdleOnly, POST, Had::Nothing, true),
        (Reset, GET, Had::All, false),
        (Reset, GET, Had::Nothing, false),
    ];
    for (failure, request, had, again) in cases {
        for how in End::BOTH {
            let what = format!("{failure:?} {how:?} {had:?} {}", String::from_utf8_lossy(request));
            let (mut w, mut c) = world(2, failure).at_rest();
            let boundary = c.seq;
            w.stays(&mut c, request);
            let sent = owner_ends(&mut w, &c, boundary, how, had);
            if again {
                assert!(World::to_client(&sent).is_empty(), "{what}: {sent:?}");
                let behind = w.adopted_from(&mut c, &sent, boundary);
                assert_eq!(one(behind).data(), request, "{what}");
                w.served(&mut c);
                w.assert_state(&c, "Idle");
                let state = &w.engine.state(w.now).policies[0];
                assert_eq!(state.rescues_total, 1, "{what}");
                assert_eq!(state.replays_total, u64::from(had == Had::All), "{what}");
                assert_eq!(lost(&w), 0, "{what}");
            } else {
                let told = one(World::to_client(&sent).into_iter().cloned().collect());
                assert_eq!(told.segment.flags, how.flags(), "{what}: the pod's own");
                let fates = u64::from(failure != Reset);
                assert_eq!(w.engine.lost(Lost::FateUnknown), fates, "{what}");
                assert_eq!(lost(&w), fates, "{what}");
            }
            assert_eq!(w.table("kept_segments").0, 0, "{what}");
            assert_eq!(w.count(Counter::UnexpectedEvents), 0);
        }
    }
}

#[test]
fn the_bare_rule_knows_no_idempotent_request() {
    for (failure, again) in
        [(BackendFailure::ReplayIdempotent, false), (BackendFailure::Replay, true)]
    {
        let mut p = policy(2);
        p.protocol = Protocol::RequestResponse;
        p.on_backend_failure = failure;
        p.migration.mode = MigrationMode::Never;
        let (mut w, mut c) = World::with(settings(), p).at_rest();
        let boundary = c.seq;
        w.stays(&mut c, GET);
        let sent = owner_ends(&mut w, &c, boundary, End::Rst, Had::All);
        assert_eq!(World::to_client(&sent).is_empty(), again);
    }
}

#[test]
fn a_request_of_several_segments_is_sent_again_whole() {
    let (mut w, mut c) = world(2, BackendFailure::Replay).at_rest();
    let boundary = c.seq;
    let head = post_head(9);
    for part in [&head[..], b"one", b"two", b"six"] {
        w.stays(&mut c, part);
    }
    let sent = owner_ends(&mut w, &c, boundary, End::Rst, Had::All);
    let behind = w.adopted_from(&mut c, &sent, boundary);
    let bytes: Vec<u8> = behind.iter().flat_map(|s| s.data().to_vec()).collect();
    assert_eq!(bytes, [&head[..], b"onetwosix"].concat());
    // The rest of an upload that is not complete follows by itself.
    w.responds(&mut c, OK);
}

#[test]
fn a_request_too_large_to_keep_is_lost() {
    let (mut w, mut c) = world(2, BackendFailure::Replay).at_rest();
    let boundary = c.seq;
    w.stays(&mut c, &post_head(5_000));
    for _ in 0..8 {
        w.stays(&mut c, &[b'p'; 520]);
    }
    assert_eq!(w.table("kept_segments").0, 0, "of no use any more");
    let sent = owner_ends(&mut w, &c, boundary, End::Rst, Had::All);
    assert_eq!(World::to_client(&sent).len(), 1);
    assert_eq!(w.engine.lost(Lost::NotKept), 1);
}

#[test]
fn one_request_is_sent_again_twice_at_most() {
    let (mut w, mut c) = world(5, BackendFailure::ReplayIdempotent).at_rest();
    let boundary = c.seq;
    w.stays(&mut c, GET);
    for round in 0..2 {
        let mut sent = owner_ends(&mut w, &c, boundary, End::Rst, Had::All);
        if round == 1 {
            assert!(!sent.iter().any(Sent::is_adoption), "not at once: {sent:?}");
            sent = w.until_adoption(350);
        }
        w.adopted_from(&mut c, &sent, boundary);
        if round == 0 {
            // Each process takes the connection and the request, and dies of it.
            w.pod_ack(&c);
        }
    }
    let sent = owner_ends(&mut w, &c, boundary, End::Rst, Had::All);
    assert_eq!(World::to_client(&sent).len(), 1, "{sent:?}");
    assert_eq!(w.engine.lost(Lost::ReplayedOften), 1);
    assert_eq!(w.state(&c), None);
    // The next request begins anew.
    let mut c = w.idle(2);
    let boundary = c.seq;
    w.stays(&mut c, GET);
    let sent = owner_ends(&mut w, &c, boundary, End::Rst, Had::All);
    w.adopted_from(&mut c, &sent, boundary);
    w.responds(&mut c, OK);
}

/// As when a Deployment is scaled from five to one: the request goes from one pod that ends to the
/// next, and then waits for the others' ends instead of meeting them.
#[test]
fn pods_that_end_together_do_not_use_up_a_request() {
    let (mut w, mut c) = world(5, BackendFailure::ReplayIdempotent).at_rest();
    let boundary = c.seq;
    w.stays(&mut c, GET);
    let sent = owner_ends(&mut w, &c, boundary, End::Rst, Had::All);
    let mut ended = vec![c.pod];
    w.adopted_from(&mut c, &sent, boundary);
    w.pod_ack(&c);
    let sent = owner_ends(&mut w, &c, boundary, End::Rst, Had::All);
    assert!(!sent.iter().any(Sent::is_adoption), "{sent:?}");
    ended.push(c.pod);
    for _ in 0..2 {
        w.run_ms(100);
        let next = (0..5).find(|pod| !ended.contains(pod)).expect("a pod");
        w.change(|s| s.policies[0].backends[next].draining = true);
        ended.push(next);
    }
    let sent = w.until_adoption(350);
    w.adopted_from(&mut c, &sent, boundary);
    assert!(!ended.contains(&c.pod), "{ended:?}");
    w.responds(&mut c, OK);
    assert_eq!(w.engine.lost(Lost::ReplayedOften), 0);
}

#[test]
fn refusals_cost_no_replay() {
    let (mut w, mut c) = world(6, BackendFailure::ReplayIdempotent).at_rest();
    let boundary = c.seq;
    w.stays(&mut c, GET);
    let mut sent = owner_ends(&mut w, &c, boundary, End::Rst, Had::All);
    for _ in 0..4 {
        let adoption = sent.iter().find(|s| s.is_adoption()).cloned();
        w.adopted_from(&mut c, &sent, boundary);
        sent = w.inject(&answer(&adoption.expect("one"), Reason::AcceptQueueFull, 0));
    }
    w.adopted_from(&mut c, &sent, boundary);
    w.responds(&mut c, OK);
    assert_eq!(lost(&w), 0);
}

#[test]
fn a_response_that_has_begun_is_never_spliced() {
    for (failure, how) in [
        (BackendFailure::Replay, End::Fin),
        (BackendFailure::Replay, End::Rst),
        (BackendFailure::ReplayIdempotent, End::Rst),
    ] {
        let (mut w, mut c) = world(2, failure).at_rest();
        w.stays(&mut c, GET);
        w.answers(&mut c, b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf");
        let sent = w.dies(c.pod, how, &[c.clone()]);
        let told = one(World::to_client(&sent).into_iter().cloned().collect());
        assert_eq!(told.segment.flags, how.flags());
        assert_eq!(w.engine.lost(Lost::ResponseBegun), 1);
        assert!(sent.iter().all(|s| !s.is_adoption()));
    }
}

#[test]
fn a_response_that_ends_with_the_connection_is_no_loss() {
    let (mut w, mut c) = world(2, BackendFailure::Replay).at_rest();
    w.stays(&mut c, GET);
    w.responds(&mut c, b"HTTP/1.0 200 OK\r\n\r\nall of it, until the end");
    w.pod_fin(&mut c);
    w.assert_state(&c, "ServerFin");
    assert_eq!(lost(&w), 0);
}

#[test]
fn an_interim_response_does_not_keep_a_request_from_going_again() {
    let (mut w, mut c) = world(2, BackendFailure::Replay).at_rest();
    let boundary = c.seq;
    w.stays(&mut c, GET);
    w.answers(&mut c, b"HTTP/1.1 103 Early Hints\r\n\r\n");
    w.assert_state(&c, "Request");
    let sent = owner_ends(&mut w, &c, boundary, End::Fin, Had::All);
    let behind = w.adopted_from(&mut c, &sent, boundary);
    assert_eq!(one(behind).data(), GET);
    w.responds(&mut c, OK);
}

#[test]
fn pipelined_requests_of_a_dead_owner_are_lost() {
    // Only what begins at a boundary is kept whole; the second one's answer is still missing.
    let (mut w, mut c) = world(2, BackendFailure::Replay).at_rest();
    w.stays(&mut c, &[GET, GET].concat());
    w.served(&mut c);
    let sent = w.dies(c.pod, End::Fin, &[c.clone()]);
    assert_eq!(World::to_client(&sent).len(), 1);
    assert_eq!(w.engine.lost(Lost::ResponseBegun), 1);
}

fn with_timeout(pods: usize, failure: BackendFailure) -> World {
    let mut p = policy(pods);
    p.on_backend_failure = failure;
    p.migration.mode = MigrationMode::Never;
    p.response_timeout = Some(Micros::from_millis(300));
    p.timeouts.idle = Micros::from_secs(10);
    World::with(settings(), p)
}

#[test]
fn an_overdue_get_goes_elsewhere_and_the_frozen_pods_late_answer_is_fenced() {
    for late_before_the_new_one in [true, false] {
        let (mut w, mut c) = with_timeout(2, BackendFailure::ReplayIdempotent).at_rest();
        let boundary = c.seq;
        w.stays(&mut c, GET);
        // Its kernel acknowledges; its application is stopped.
        w.pod_ack(&c);
        let frozen = c.clone();
        assert!(w.run_ms(299).is_empty());
        let sent = w.until_adoption(3);
        let behind = w.adopted_from(&mut c, &sent, boundary);
        assert_eq!(one(behind).data(), GET);
        if late_before_the_new_one {
            assert!(w.inject(&w.pod_wire(&frozen, PSH_ACK, OK).build()).is_empty());
            w.responds(&mut c, OK);
        } else {
            w.responds(&mut c, OK);
            let sent = w.inject(&w.pod_wire(&frozen, PSH_ACK, OK).build());
            assert!(World::to_client(&sent).is_empty());
        }
        assert_eq!(w.count(Counter::FencedData), 1);
        assert_eq!(w.count(Counter::ResponseTimeouts), 1);
        let state = &w.engine.state(w.now).policies[0];
        assert_eq!((state.rescues_total, state.replays_total), (1, 1));
        w.ack(&mut c);
        w.assert_state(&c, "Idle");
    }
}

/// An interim response is on its way, and nobody else could send it again.
#[test]
fn an_overdue_request_stays_while_its_client_lacks_bytes() {
    let (mut w, mut c) = with_timeout(2, BackendFailure::ReplayIdempotent).at_rest();
    let boundary = c.seq;
    w.stays(&mut c, GET);
    let hints = w.responds(&mut c, b"HTTP/1.1 103 Early Hints\r\n\r\n");
    assert!(w.run_ms(900).is_empty());
    w.assert_state(&c, "Request");
    // It was lost on its way: its pod's kernel sends it again.
    let mut again = w.pod_wire(&c, PSH_ACK, hints.data());
    again.seq = hints.segment.seq.0;
    w.forwarded_to_client(&c, &again);
    w.ack(&mut c);
    let sent = w.until_adoption(101);
    let behind = w.adopted_from(&mut c, &sent, boundary);
    assert_eq!(one(behind).data(), GET);
    w.responds(&mut c, OK);
}

#[test]
fn an_overdue_post_waits_for_its_own_pod() {
    let (mut w, mut c) = with_timeout(2, BackendFailure::ReplayIdempotent).at_rest();
    w.stays(&mut c, POST);
    w.pod_ack(&c);
    assert!(w.run_ms(5_000).is_empty());
    w.assert_state(&c, "Request");
    assert_eq!(w.count(Counter::ResponseTimeouts), 1, "one request, one failure");
    assert_eq!(w.count(Counter::Ejections), 0);
    w.served(&mut c);
    w.exchange_anywhere(&mut c);
}

#[test]
fn an_overdue_request_that_stays_ends_with_the_idle_timeout() {
    let (mut w, mut c) = with_timeout(2, BackendFailure::ReplayIdempotent).at_rest();
    w.stays(&mut c, POST);
    let sent = w.run_ms(10_300);
    assert_eq!(w.state(&c), None);
    assert_eq!(World::to_client(&sent).len(), 1);
    assert_eq!(w.count(Counter::TimeoutsIdle), 1);
}

#[test]
fn a_slow_request_under_the_limit_stays() {
    let (mut w, mut c) = with_timeout(2, BackendFailure::ReplayIdempotent).at_rest();
    for _ in 0..5 {
        w.stays(&mut c, GET);
        assert!(w.run_ms(290).is_empty());
        w.served(&mut c);
    }
    assert_eq!(w.count(Counter::ResponseTimeouts), 0);
}

#[test]
fn an_overdue_request_that_is_refused_elsewhere_tries_again() {
    let (mut w, mut c) = with_timeout(2, BackendFailure::ReplayIdempotent).at_rest();
    let boundary = c.seq;
    w.stays(&mut c, GET);
    let frozen = c.clone();
    for round in 0..4 {
        let sent = w.until_adoption(1_500);
        let adoption = sent.iter().find(|s| s.is_adoption()).cloned();
        let adoption = adoption.unwrap_or_else(|| panic!("no adoption in round {round}"));
        assert_eq!(adoption.segment.seq.0, boundary);
        let back = w.inject(&answer(&adoption, Reason::AcceptQueueFull, 0));
        assert_eq!(one(back).to, Dest::Pod(frozen.pod));
        w.assert_state(&c, "Request");
    }
    let sent = w.until_adoption(1_500);
    w.adopted_from(&mut c, &sent, boundary);
    w.responds(&mut c, OK);
}

#[test]
fn a_frozen_pods_drain_figures_count_a_moved_request_once() {
    let (mut w, mut c) = with_timeout(2, BackendFailure::ReplayIdempotent).at_rest();
    let boundary = c.seq;
    w.stays(&mut c, GET);
    let frozen = c.pod;
    w.engine.drain(w.now, None, &format!("pod-{frozen}"), true);
    let sent = w.until_adoption(310);
    w.adopted_from(&mut c, &sent, boundary);
    w.responds(&mut c, OK);
    let state = w.engine.state(w.now);
    let drain = state.policies[0].backends[frozen].drain.clone().expect("a drain");
    assert_eq!((drain.moved, drain.ended, drain.closed), (1, 0, 0));
}

#[test]
fn the_owner_ends_while_its_overdue_request_is_being_moved() {
    for how in End::BOTH {
        let (mut w, mut c) = with_timeout(3, BackendFailure::ReplayIdempotent).at_rest();
        let boundary = c.seq;
        w.stays(&mut c, GET);
        let frozen = c.clone();
        let sent = w.until_adoption(310);
        let adoption = sent.iter().find(|s| s.is_adoption()).cloned().expect("one");
        w.adopted_from(&mut c, &sent, boundary);
        assert!(w.ends(&frozen, how).is_empty());
        let sent = w.inject(&answer(&adoption, Reason::AcceptQueueFull, 0));
        let behind = w.adopted_from(&mut c, &sent, boundary);
        assert_eq!(one(behind).data(), GET, "a third one");
        w.served(&mut c);
        w.assert_state(&c, "Idle");
    }
}

/// The old pod ended during the adoption, and the new one refuses: the flow and its POST, which
/// nobody had, wait.
fn with_nobody_left(closed_by: Flags) -> (World, Conn, Conn) {
    let (mut w, mut c) = World::with(settings(), policy(2)).at_rest();
    let present = c.clone();
    let adoption = w.moves(&mut c, POST);
    w.inject(&w.pod_wire(&present, closed_by, &[]).build());
    w.stops(present.pod);
    w.stops(c.pod);
    // Its own pod may adopt it again, for all that is known; it does not either.
    let again = w.inject(&answer(&adoption, Reason::NoListener, 0));
    assert_eq!(w.adopted_from(&mut c, &again, present.seq).len(), 1);
    assert_eq!(c.pod, present.pod);
    assert!(w.inject(&answer(&again[0], Reason::NoListener, 0)).is_empty());
    w.assert_state(&c, "Orphan");
    assert_eq!(w.taken("Adopting", "RefusedAll"), 1);
    (w, c, present)
}

#[test]
fn a_refusal_with_nobody_left_waits_and_then_resets_the_client() {
    for closed_by in [FIN_ACK, RST_ACK] {
        let (mut w, c, _) = with_nobody_left(closed_by);
        let sent = w.run_ms(9_900);
        assert!(sent.iter().all(|s| s.to != Dest::Client), "{sent:?}");
        w.assert_state(&c, "Orphan");
        let sent = w.run_ms(200);
        let rst = one(sent.into_iter().filter(|s| s.to == Dest::Client).collect());
        assert!(rst.is(RST_ACK));
        assert_eq!(rst.segment.seq.0, c.server, "exact");
        assert_eq!(w.state(&c), None);
        assert_eq!(w.engine.lost(Lost::NoBackend), 1);
    }
}

#[test]
fn a_refusal_with_nobody_left_waits_for_whoever_comes() {
    for closed_by in [FIN_ACK, RST_ACK] {
        let (mut w, mut c, present) = with_nobody_left(closed_by);
        w.run_ms(2_000);
        w.starts(present.pod);
        let sent = w.until_adoption(200);
        let behind = w.adopted_from(&mut c, &sent, present.seq);
        assert_eq!(one(behind).data(), POST, "nobody ever had it");
        w.served(&mut c);
        w.assert_state(&c, "Idle");
        w.run_ms(100_000);
        assert_eq!(w.table("closing_legs").0, 0);
    }
}

/// A client sends two requests together, and their pod dies when it has acknowledged both. The next
/// one acknowledges and answers the first, and offers this window. The second one, and where it
/// begins.
fn answers_the_first_of_two(window: u16) -> (World, Conn, String, u32) {
    let (mut w, mut c) = world(2, BackendFailure::Replay).at_rest();
    let boundary = c.seq;
    // Each is a copy of its own.
    let long = |path: &str| format!("GET {path} HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(600));
    let (first, second) = (long("/1"), long("/2"));
    w.stays(&mut c, first.as_bytes());
    w.data(&mut c, second.as_bytes());
    let all = w.pod_wire(&c, Flags::ACK, &[]);
    w.forwarded_to_client(&c, &all);
    let end = w.marked_end(&c, End::Rst, baton_packet::EndMark::Exiting);
    let sent = w.inject(&end);
    assert_eq!(w.adopted_from(&mut c, &sent, boundary).len(), 2);
    let mut answer = w.pod_wire(&c, Flags::ACK | Flags::PSH, OK);
    (answer.ack, answer.window) = (boundary.wrapping_add(first.len() as u32), window);
    let sent = w.inject(&answer.build());
    let again = sent.iter().filter(|s| s.to != Dest::Client).count();
    assert_eq!(again, usize::from(window > 0), "{sent:?}");
    c.server_sent(Flags::ACK, OK);
    (w, c, second, answer.ack)
}

/// Its client was told that all of it has arrived, and will not send it again.
#[test]
fn what_the_next_owner_lacks_when_it_answers_waits_for_its_window() {
    let (mut w, mut c, second, acked) = answers_the_first_of_two(0);
    let mut opens = w.pod_wire(&c, Flags::ACK, &[]);
    (opens.ack, opens.window) = (acked, 100);
    let sent = w.inject(&opens.build());
    let again: Vec<&Sent> = sent.iter().filter(|s| s.to != Dest::Client).collect();
    assert_eq!(again.len(), 1, "{sent:?}");
    assert_eq!(again[0].data(), second.as_bytes());
    assert_eq!(again[0].segment.seq.0, acked);
    w.responds(&mut c, OK);
    assert_eq!(lost(&w), 0);
}

/// Nor will it if that is lost, or the segment is with which the pod opened its window.
#[test]
fn what_the_next_owner_lacks_when_it_answers_goes_again_until_it_has_it() {
    for (window, closes) in [(100, false), (0, false), (100, true)] {
        let (mut w, mut c, second, acked) = answers_the_first_of_two(window);
        let copies = |sent: Vec<Sent>| {
            let copies = sent.iter().filter(|s| s.data() == second.as_bytes());
            assert!(copies.clone().all(|s| s.segment.seq.0 == acked));
            copies.count()
        };
        if closes {
            // What comes from the client meanwhile waits behind it.
            assert!(w.client_sends(&mut c, FIN_ACK, &[]).is_empty());
        }
        for _ in 0..3 {
            assert!(copies(w.run_ms(3_000)) > 0);
        }
        let mut some = w.pod_wire(&c, Flags::ACK, &[]);
        some.ack = acked.wrapping_add(second.len() as u32);
        let sent = w.inject(&some.build());
        assert_eq!(sent.iter().filter(|s| s.is(FIN_ACK)).count(), usize::from(closes));
        assert_eq!(copies(w.run_ms(9_000)), 0);
        w.responds(&mut c, OK);
        assert_eq!(lost(&w), 0);
    }
}
