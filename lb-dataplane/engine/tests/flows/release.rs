//! Requests that a pod has and does not read: asked for, let go of, answered by another pod; and
//! everything that the answer may be.

use crate::common::{
    Conn, Dest, End, NAMESPACE, Sent, World, answer, answer_from, conn::*, policy, settings,
};
use baton_api::{BackendFailure, MigrationMode, OnStall, Policy};
use baton_engine::{Counter, Lost};
use baton_packet::{EndMark, Flags, Reason};

/// Longer than a pod that answered nothing is given.
const STALLED_MS: u64 = 160;

fn policy_of(pods: usize) -> Policy {
    let mut p = policy(pods);
    p.on_stall = OnStall::Release;
    p.migration.mode = MigrationMode::Never;
    p
}

fn world(pods: usize) -> World {
    World::with(settings(), policy_of(pods))
}

fn lost(w: &World) -> u64 {
    Lost::ALL.iter().map(|l| w.engine.lost(*l)).sum()
}

fn releases(sent: &[Sent]) -> Vec<Sent> {
    sent.iter().filter(|s| s.is_release()).cloned().collect()
}

/// A flow with a request that its pod has, the request's first byte, and the question about it.
fn asked(w: &mut World, request: &[u8]) -> (Conn, u32, Sent) {
    let mut c = w.idle(1);
    let boundary = c.seq;
    w.stays(&mut c, request);
    let sent = w.run_ms(STALLED_MS);
    let release = releases(&sent).pop().expect("a question");
    (c, boundary, release)
}

/// The connection goes to another pod with its request, which that one answers.
fn answered_elsewhere(w: &mut World, c: &mut Conn, boundary: u32, request: &[u8], sent: &[Sent]) {
    let old = c.pod;
    assert!(World::to_client(sent).is_empty(), "{sent:?}");
    let behind = w.adopted_from(c, sent, boundary);
    assert_ne!(c.pod, old);
    assert_eq!(one(behind).data(), request);
    w.responds(c, OK);
    w.exchange_anywhere(c);
    assert_eq!(lost(w), 0);
    assert_eq!(w.count(Counter::Rescues), 1);
    assert_eq!(w.count(Counter::ReleasesDone), 1);
    assert_eq!(w.count(Counter::OwnersReleased), 1);
    // Nobody had executed it.
    assert_eq!(w.count(Counter::FateReplayed) + w.count(Counter::FateReset), 0);
}

#[test]
fn an_unread_request_is_answered_by_another_pod_whatever_it_is() {
    for (failure, request) in [
        (BackendFailure::ReplayIdempotent, GET),
        (BackendFailure::ReplayIdempotent, POST),
        (BackendFailure::AdoptIdleOnly, POST),
    ] {
        for by_answer in [false, true] {
            let mut p = policy_of(2);
            p.on_backend_failure = failure;
            let mut w = World::with(settings(), p);
            let (mut c, boundary, release) = asked(&mut w, request);
            // A kernel without the adopter has had that byte.
            assert_eq!(release.segment.seq.0, boundary.wrapping_sub(1));
            assert_eq!(release.segment.ack.0, c.server);
            assert_eq!(release.message().expect("one").namespace, NAMESPACE);
            let said = if by_answer {
                answer(&release, Reason::Released, 0)
            } else {
                w.marked_end(&c, End::Rst, EndMark::Released)
            };
            let sent = w.inject(&said);
            answered_elsewhere(&mut w, &mut c, boundary, request, &sent);
        }
    }
}

/// The policy is removed while the question is open: its flows stay where they are, this one too.
#[test]
fn what_a_pod_let_go_of_goes_back_to_it_where_the_policy_is_gone() {
    for refused in [false, true] {
        let mut w = world(2);
        let (mut c, boundary, release) = asked(&mut w, POST);
        let old = c.pod;
        w.change(|s| s.policies.clear());
        let sent = w.inject(&answer(&release, Reason::Released, 0));
        assert!(World::to_client(&sent).is_empty(), "{sent:?}");
        let mut sent = sent;
        if refused {
            let asked = one(sent.into_iter().filter(Sent::is_adoption).collect());
            sent = w.inject(&answer(&asked, Reason::AcceptQueueFull, 0));
            assert!(World::to_client(&sent).is_empty(), "{sent:?}");
            sent.extend(w.run_ms(20));
        }
        let behind = w.adopted_from(&mut c, &sent, boundary);
        assert_eq!(c.pod, old);
        assert_eq!(one(behind).data(), POST);
        w.responds(&mut c, OK);
        w.exchange_anywhere(&mut c);
        assert_eq!(lost(&w), 0);
    }
}

#[test]
fn a_pod_that_answers_others_is_not_asked() {
    let (mut w, mut c) = world(2).at_rest();
    w.stays(&mut c, GET);
    let mut others = (2..20).map(|n| w.idle(n));
    let mut other = others.find(|other| other.pod == c.pod).expect("one there");
    drop(others);
    for _ in 0..10 {
        assert!(releases(&w.run_ms(50)).is_empty());
        w.exchange_anywhere(&mut other);
    }
    assert_eq!(w.count(Counter::ReleasesAsked), 0);
}

#[test]
fn what_the_application_has_begun_to_read_stays_and_is_not_asked_about_again() {
    let mut w = world(2);
    let (mut c, _, release) = asked(&mut w, POST);
    assert!(w.inject(&answer(&release, Reason::Kept, 0)).is_empty());
    assert_eq!(w.count(Counter::ReleasesKept), 1);
    assert!(releases(&w.run_ms(400)).is_empty());
    w.responds(&mut c, OK);
    assert_eq!(w.count(Counter::Rescues), 0);
    // The next request is another matter.
    w.stays(&mut c, GET);
    let slow = releases(&w.run_ms(STALLED_MS));
    assert!(slow.is_empty(), "no slower than the last one");
    assert!(!releases(&w.run_ms(1_000)).is_empty());
}

#[test]
fn a_question_is_repeated_until_it_is_answered() {
    let mut w = world(2);
    let (mut c, boundary, first) = asked(&mut w, POST);
    let again = releases(&w.run_ms(120));
    assert!(!again.is_empty());
    for release in &again {
        assert_eq!(release.segment.seq, first.segment.seq);
        assert_eq!(release.segment.ack, first.segment.ack);
    }
    let sent = w.inject(&answer(&again[0], Reason::Released, 0));
    answered_elsewhere(&mut w, &mut c, boundary, POST, &sent);
    // Copies that were answered later belong to a leg that is gone.
    w.inject(&answer(&first, Reason::Released, 0));
    w.exchange_anywhere(&mut c);
}

/// A pod may lie, but not about what nobody asked.
#[test]
fn the_mark_means_nothing_where_nobody_asked() {
    let mut p = policy_of(2);
    p.on_stall = OnStall::Wait;
    let (mut w, mut c) = World::with(settings(), p).at_rest();
    w.stays(&mut c, POST);
    assert!(releases(&w.run_ms(STALLED_MS)).is_empty());
    let sent = w.inject(&w.marked_end(&c, End::Rst, EndMark::Released));
    let end = World::to_client(&sent).pop().expect("the client is told");
    assert!(end.segment.flags.has(Flags::RST));
    let l4 = usize::from(end.segment.l4);
    assert_eq!(end.frame[l4 + 18..l4 + 20], [0, 0], "without the mark");
    assert_eq!(w.engine.lost(Lost::FateUnknown), 1);
}

/// More at once than the other pod is given in a millisecond: the rest waits for that one.
#[test]
fn what_a_pod_let_go_of_does_not_come_back_to_it() {
    let mut s = settings();
    s.limits.kept_segments = 64;
    let mut w = World::with(s, policy_of(2));
    let all: Vec<Conn> = (1..=56).map(|n| w.idle(n)).collect();
    let (mut there, mut elsewhere): (Vec<Conn>, Vec<Conn>) =
        all.into_iter().partition(|c| c.pod == 0);
    assert!(there.len() > 16, "{}", there.len());
    // It has been slow, so that the one that stands still looks better once it owes nothing.
    for c in &mut elsewhere {
        w.stays(c, GET);
        w.run_ms(90);
        w.served(c);
    }
    for c in &mut there {
        w.stays(c, GET);
    }
    assert!(releases(&w.run_ms(STALLED_MS)).len() >= there.len());
    let mut sent = Vec::new();
    for c in &there {
        sent.extend(w.inject(&w.marked_end(c, End::Rst, EndMark::Released)));
    }
    assert!(w.count(Counter::AdoptionsDelayed) > 0);
    sent.extend(w.run_ms(8));
    let mut given: Vec<_> = sent.iter().filter(|s| s.is_adoption()).collect();
    assert!(given.iter().all(|s| s.to == Dest::Pod(1)), "{given:?}");
    given.sort_by_key(|s| s.segment.src_port);
    given.dedup_by_key(|s| s.segment.src_port);
    assert_eq!(given.len(), there.len());
}

#[test]
fn nobody_is_asked_where_nobody_would_do_better() {
    // Nobody else.
    let (mut w, mut c) = world(1).at_rest();
    w.stays(&mut c, GET);
    assert!(releases(&w.run_ms(STALLED_MS)).is_empty());
    // Nobody else who can adopt.
    let mut w = World::unprobed(settings(), policy_of(2));
    w.adopters[0] = None;
    w.poll();
    let mut flows = (1..20).map(|n| w.idle(n));
    let mut c = flows.find(|c| c.pod == 1).expect("one there");
    drop(flows);
    w.stays(&mut c, GET);
    assert!(releases(&w.run_ms(STALLED_MS)).is_empty());
    // All stand still.
    let mut w = world(2);
    let mut flows: Vec<Conn> = (1..9).map(|n| w.idle(n)).collect();
    for c in &mut flows {
        w.stays(c, GET);
    }
    assert!(releases(&w.run_ms(STALLED_MS)).is_empty());
}

/// A dataplane whose link was down has heard nothing, of anybody. Next hops may be unknown for 3 s.
#[test]
fn nobody_is_asked_for_a_silence_of_our_own() {
    let (mut w, mut c) = world(2).at_rest();
    w.stays(&mut c, GET);
    w.engine.set_link(w.now, false);
    w.engine.set_link(w.now, true);
    assert!(releases(&w.run_ms(2_900)).is_empty());
    let asked = releases(&w.run_ms(STALLED_MS));
    assert!(!asked.is_empty(), "it stands still all the same");
}

#[test]
fn only_what_could_go_on_elsewhere_is_asked_for() {
    // Its copies are dropped with its flows' ends.
    let mut p = policy_of(2);
    p.on_backend_failure = BackendFailure::Reset;
    let (mut w, mut c) = World::with(settings(), p).at_rest();
    w.stays(&mut c, GET);
    assert!(releases(&w.run_ms(STALLED_MS)).is_empty());
    // More of it is to come.
    let (mut w, mut c) = world(2).at_rest();
    w.stays(&mut c, &post_head(1_000));
    assert!(releases(&w.run_ms(STALLED_MS)).is_empty());
    // An answer has begun.
    let (mut w, mut c) = world(2).at_rest();
    w.stays(&mut c, GET);
    w.pod_sends(&mut c, Flags::ACK, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n");
    assert!(releases(&w.run_ms(STALLED_MS)).is_empty());
}

#[test]
fn a_request_is_let_go_of_once() {
    let mut w = world(3);
    let (mut c, boundary, release) = asked(&mut w, POST);
    let sent = w.inject(&answer(&release, Reason::Released, 0));
    let _ = w.adopted_from(&mut c, &sent, boundary);
    w.inject(&w.pod_wire(&c, Flags::ACK, &[]).build());
    w.assert_state(&c, "Request");
    // The next pod stands still, too.
    assert!(releases(&w.run_ms(500)).is_empty());
    w.responds(&mut c, OK);
}

/// Without a copy of them the next pod could not go on.
#[test]
fn the_clients_next_bytes_wait_for_the_answer() {
    let mut w = world(2);
    let (mut c, boundary, release) = asked(&mut w, POST);
    let next = w.client_wire(&c, Flags::ACK | Flags::PSH, GET).build();
    assert!(w.inject(&next).is_empty(), "comes again");
    let fin = w.client_wire(&c, Flags::ACK | Flags::FIN, &[]).build();
    assert!(w.inject(&fin).is_empty(), "comes again");
    w.assert_state(&c, "Request");
    let sent = w.inject(&answer(&release, Reason::Released, 0));
    answered_elsewhere(&mut w, &mut c, boundary, POST, &sent);
}

#[test]
fn the_clients_next_bytes_do_not_wait_for_ever() {
    let mut w = world(2);
    let others: Vec<Conn> = (2..8).map(|n| w.idle(n)).collect();
    let (mut c, _, release) = asked(&mut w, POST);
    // The pod goes on, and answers others, but not this one.
    let mut others = others.into_iter();
    let mut other = others.find(|other| other.pod == c.pod).expect("one there");
    for _ in 0..10 {
        w.exchange_anywhere(&mut other);
        w.run_ms(40);
    }
    let sent = w.data(&mut c, GET);
    assert_eq!(one(sent).data(), GET);
    assert_eq!(w.count(Counter::ReleasesUnanswered), 1);
    // Nobody waits for the answer any more.
    w.inject(&answer(&release, Reason::Released, 0));
    assert_eq!(w.count(Counter::ReleasesDone), 0);
    w.assert_state(&c, "Request");
}

#[test]
fn only_the_pods_own_answer_to_this_question_counts() {
    let mut w = world(2);
    let (mut c, boundary, release) = asked(&mut w, POST);
    let mut forged = answer(&release, Reason::Released, 0);
    let at = forged.len() - 20;
    forged[at] ^= 1;
    crate::common::wire::settle_tcp(&mut forged, false);
    let fenced = w.count(Counter::Fenced);
    assert!(w.inject(&forged).is_empty());
    let mut other = release.clone();
    other.segment.seq = other.segment.seq.add(1);
    assert!(w.inject(&answer(&other, Reason::Released, 0)).is_empty());
    assert!(w.count(Counter::Fenced) + w.count(Counter::ForgedAnswers) >= fenced + 2);
    assert_eq!(w.count(Counter::ReleasesDone), 0);
    // Another pod has come to that address.
    assert!(World::to_client(&w.inject(&answer_from(9, &release, Reason::Renew, 5))).is_empty());
    assert_eq!(w.count(Counter::ReleasesDone), 0);
    w.assert_state(&c, "Request");
    let late = w.inject(&answer(&release, Reason::Released, 0));
    assert!(World::to_client(&late).is_empty(), "settled");
    let _ = boundary;
    w.responds(&mut c, OK);
}
