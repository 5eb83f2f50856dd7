//! Legs that are opened by a handshake: pods that refuse, say nothing, agree to too little or give
//! up, and what that says of the request.

use crate::{
    common::{Conn, Dest, End, World, answer, conn::*},
    translation::*,
};
use baton_api::MoveMethod;
use baton_engine::{Counter, Lost};
use baton_packet::{Flags, Reason};

#[test]
fn a_pod_that_refuses_never_had_the_request() {
    let (mut w, mut c) = world(2).at_rest();
    let old = c.clone();
    let p = opens(&mut w, &mut c, GET);
    w.listeners[p.pod] = crate::common::Listener::Refuses;
    let mut rst = w.pod_wire(&p, RST_ACK, &[]);
    (rst.seq, rst.ack) = (0, p.seq.wrapping_add(1));
    rst.options.clear();
    // One for another number says nothing.
    let mut late = rst.clone();
    late.ack = late.ack.wrapping_sub(1);
    assert!(w.inject(&late.build()).is_empty());
    w.assert_state(&c, "Adopting");
    let request = one(w.inject(&rst.build()));
    assert_eq!((request.to, request.data()), (Dest::Pod(old.pod), GET));
    assert_eq!(request.segment.ack.0, old.server);
    w.assert_state(&c, "Request");
    let counts = [Counter::OpeningsRefused, Counter::Rollbacks].map(|c| w.count(c));
    assert_eq!(counts, [1, 1]);
    (c.pod, c.leg) = (old.pod, old.leg);
    w.responds(&mut c, OK);
}

#[test]
fn a_pod_that_says_nothing_is_asked_again_and_never_had_the_request() {
    let (mut w, mut c) = world(2).at_rest();
    let old = c.clone();
    let p = opens(&mut w, &mut c, POST);
    w.vanishes(p.pod);
    let sent = w.run_ms(4_000);
    let syns = sent.iter().filter(|s| s.is(Flags::SYN) && !s.is_question());
    assert_eq!(syns.count(), 5, "{sent:?}");
    let requests: Vec<_> = sent.iter().filter(|s| s.data() == POST).collect();
    assert_eq!(requests.len(), 1, "{sent:?}");
    assert_eq!(requests[0].to, Dest::Pod(old.pod));
    assert_eq!(w.count(Counter::OpeningsUnanswered), 1);
    assert_eq!(w.count(Counter::FateReset), 0);
    (c.pod, c.leg) = (old.pod, old.leg);
    w.responds(&mut c, OK);
}

#[test]
fn a_repeated_answer_is_answered_again_with_the_request() {
    let (mut w, mut c) = world(2).at_rest();
    let mut p = moved(&mut w, &mut c, GET);
    let request = p.seq;
    let again = |w: &mut World, p: &Conn| {
        let mut p = p.clone();
        p.seq = request.wrapping_sub(GET.len() as u32).wrapping_sub(1);
        p.server = ISN;
        w.inject(&w.synack_wire(&p).build())
    };
    let sent = again(&mut w, &p);
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert_eq!((sent[1].data(), sent[1].segment.ack.0), (GET, p.server));
    // Once it has the request, that alone is acknowledged.
    pod_says(&mut w, (&mut c, &mut p), Flags::ACK, b"");
    w.assert_state(&c, "Request");
    let sent = again(&mut w, &p);
    assert!(sent.iter().all(|s| s.to == Dest::Pod(p.pod)), "{sent:?}");
    assert_eq!(sent[0].segment.ack.0, p.server);
    pod_says(&mut w, (&mut c, &mut p), PSH_ACK, OK);
}

#[test]
fn a_pod_without_timestamps_or_scaled_windows_is_left_alone() {
    left_alone(|pod| pod.timestamps = false);
    left_alone(|pod| pod.server_wscale = None);
}

fn left_alone(lacks: fn(&mut Options)) {
    let (mut w, mut c) = world(2).at_rest();
    let old = c.clone();
    let mut p = opens(&mut w, &mut c, GET);
    lacks(&mut p.options);
    let sent = agrees(&mut w, &mut p);
    let of = |pod| sent.iter().filter(move |s| s.to == Dest::Pod(pod));
    assert!(of(p.pod).all(|s| s.segment.flags.has(Flags::RST)), "{sent:?}");
    assert!(of(p.pod).count() > 0);
    assert_eq!(one(of(old.pod).cloned().collect()).data(), GET);
    assert_eq!(w.count(Counter::OpeningsUnlike), 1);
    let told = w.engine.state(w.now).policies.remove(0).backends;
    let told: Vec<usize> = (0..told.len()).filter(|n| told[*n].unlike).collect();
    assert_eq!(told, [p.pod]);
    (c.pod, c.leg) = (old.pod, old.leg);
    w.served(&mut c);
    w.run_ms(1_000);
    w.exchange(&mut c);
    // A client without them is welcome there, but nobody knows: it is not asked again,
    assert_eq!(w.count(Counter::OpeningsSent), 1);
    // before it was gone and is back.
    w.stops(p.pod);
    w.run_ms(3_000);
    w.starts(p.pod);
    w.run_ms(3_000);
    opens(&mut w, &mut c, GET);
}

#[test]
fn a_stale_socket_is_stepped_around() {
    let (mut w, mut c) = world(2).at_rest();
    let p = opens(&mut w, &mut c, GET);
    // A challenge ACK of a connection that is long gone for us.
    let mut stale = w.pod_wire(&p, Flags::ACK, &[]);
    (stale.seq, stale.ack) = (77, 99);
    let sent = w.inject(&stale.build());
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert!(sent[0].is(Flags::RST) && sent[0].segment.seq.0 == 99);
    let mut q = opened(&w, &mut c, &sent[1]);
    assert_ne!(q.leg, p.leg);
    assert_eq!(q.pod, p.pod);
    let sent = agrees(&mut w, &mut q);
    ends_handshake(&w, &q, &sent[0]);
    q.seq = q.seq.wrapping_add(GET.len() as u32);
    pod_says(&mut w, (&mut c, &mut q), PSH_ACK, OK);
}

#[test]
fn a_pod_that_ends_before_it_has_the_request_did_not_have_it() {
    for how in End::BOTH {
        let (mut w, mut c) = world(2).at_rest();
        let old = c.clone();
        let mut p = opens(&mut w, &mut c, POST);
        agrees(&mut w, &mut p);
        let sent = w.inject(&w.pod_wire(&p, how.flags(), &[]).build());
        let request = sent.iter().find(|s| s.data() == POST).expect("the request");
        assert_eq!(request.to, Dest::Pod(old.pod));
        (c.pod, c.leg) = (old.pod, old.leg);
        w.responds(&mut c, OK);
        // And one that had it may have executed it.
        w.ack(&mut c);
        let p = moved(&mut w, &mut c, POST);
        let end = w.pod_wire(&p, how.flags(), &[]);
        let sent = w.inject(&end.build());
        assert!(sent.iter().all(|s| s.data() != POST), "{sent:?}");
        assert_eq!(Lost::ALL.iter().map(|l| w.engine.lost(*l)).sum::<u64>(), 1);
    }
}

#[test]
fn a_late_refusal_of_our_syn_does_not_mean_that_the_pod_never_had_the_request() {
    let (mut w, mut c) = world(2).at_rest();
    let p = moved(&mut w, &mut c, POST);
    // The pod ran it and died, and only then a copy of our SYN meets its kernel. Number 0 is a
    // little ahead of what the pod's own would be.
    let mut rst = w.pod_wire(&p, RST_ACK, &[]);
    (rst.seq, rst.ack) = (0, p.seq.wrapping_sub(POST.len() as u32));
    rst.options.clear();
    assert!(rst.seq.wrapping_sub(ISN) < 1 << 30);
    assert!(w.inject(&rst.build()).is_empty());
    w.assert_state(&c, "Adopting");
    assert_eq!(w.count(Counter::Rollbacks), 0);
    // The exact one is the connection's.
    rst.seq = p.server;
    let sent = w.inject(&rst.build());
    assert!(sent.iter().any(|s| s.data() == POST), "{sent:?}");
    w.assert_state(&c, "Request");
}

#[test]
fn a_bare_reset_of_a_leg_that_was_opened_leaves_the_requests_fate_unknown() {
    let (mut w, mut c) = world(2).at_rest();
    let p = moved(&mut w, &mut c, GET);
    let mut rst = w.pod_wire(&p, Flags::RST, &[]);
    rst.options.clear();
    // Only the number that the pod's kernel would say.
    let mut wrong = rst.clone();
    wrong.seq = wrong.seq.wrapping_add(1);
    assert!(w.inject(&wrong.build()).is_empty());
    w.assert_state(&c, "Adopting");
    let sent = w.inject(&rst.build());
    // A GET may be executed again: by the old owner.
    assert!(sent.iter().any(|s| s.data() == GET), "{sent:?}");
    assert_eq!(w.count(Counter::FateReplayed), 1);
}

#[test]
fn a_handshake_that_the_pod_gives_up_is_no_close() {
    let (mut w, mut c, mut p) = opens_at_rest(3);
    agrees(&mut w, &mut p);
    // A request socket says as much as a connection: our ACK was lost, or the queue is full.
    w.inject(&w.pod_wire(&p, Flags::ACK, &[]).build());
    w.assert_state(&c, "Idle");
    let mut rst = w.pod_wire(&p, Flags::RST, &[]);
    rst.options.clear();
    let challenge = one(w.inject(&rst.build()));
    rst.seq = challenge.segment.ack.0;
    let sent = w.inject(&rst.build());
    let syn = sent.iter().find(|s| s.is(Flags::SYN)).expect("a SYN");
    assert_ne!(opened(&w, &mut c, syn).pod, p.pod);
    assert!(sent.iter().all(|s| s.to != Dest::Client), "{sent:?}");
}

#[test]
fn where_an_adopter_may_still_say_ready_nothing_is_opened() {
    let (mut w, mut c) = World::of(2, |p| p.migration.method = MoveMethod::Auto).at_rest();
    // It left a probe unanswered, or says that its queue is full, or that nobody listens.
    for (reason, opens) in [
        (Some(Reason::AcceptQueueFull), false),
        (Some(Reason::NoListener), false),
        (Some(Reason::KernelRefused), true),
    ] {
        w.adopters.fill(reason);
        w.run_ms(1_100);
        let sent = one(w.data(&mut c, GET));
        assert_eq!(sent.is(Flags::SYN), opens, "{reason:?}");
        if !opens {
            w.served(&mut c);
        }
    }
}

#[test]
fn an_adopters_words_mean_nothing_while_a_leg_is_opened() {
    let (mut w, mut c) = world(2).at_rest();
    let syn = one(w.data(&mut c, GET));
    let mut p = opened(&w, &mut c, &syn);
    // Signed, and with the numbers of an adoption.
    for reason in [Reason::NoListener, Reason::AlreadyAdopted] {
        let mut says = syn.clone();
        says.segment.flags = Flags::ACK;
        says.segment.ack.0 = c.server;
        assert!(w.inject(&answer(&says, reason, 0)).is_empty());
        w.assert_state(&c, "Adopting");
    }
    assert_eq!(agrees(&mut w, &mut p).len(), 2);
}
