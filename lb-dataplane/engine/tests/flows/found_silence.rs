//! What simulation, packet cases, the hand-over model and faulty paths found about silence,
//! questions and who is alive: one test each, so that it stays found. The rest is in `found`.

use crate::common::{Conn, End, Listener, Sent, World, conn::*, key, policy, settings, wire::Wire};
use baton_api::{BackendFailure, Micros, Protocol};
use baton_engine::{Counter, Lost};
use baton_packet::{AdoptionKey, EndMark, Flags, Reason};

/// The question that the engine sends now, unanswered; `None` if it sends none.
fn question(w: &mut World) -> Option<Sent> {
    w.engine.poll(w.now, &mut w.out);
    let sent: Vec<Sent> = w.out.take().iter().map(|f| w.check(f)).collect();
    sent.into_iter().find(Sent::is_question)
}

/// A flow whose owner's end is held, and the question about it, which nobody answered yet.
fn asked(w: &mut World) -> (Conn, Sent) {
    let c = w.idle(1);
    let mut buffer = w.marked_end(&c, End::Fin, EndMark::Listening);
    let len = buffer.len();
    let _ = w.engine.frame(w.now, &mut buffer, len, &mut w.out);
    let question = one(w.out.take().iter().map(|f| w.check(f)).collect());
    assert!(question.is_question());
    (c, question)
}

/// Linux has a request socket since the first SYN: it answers that very SYN again, and no other
/// one.
#[test]
fn a_repeated_question_has_the_number_of_the_first() {
    let mut w = World::new(2);
    let (_, first) = asked(&mut w);
    w.now.0 += 21_000;
    let again = question(&mut w).expect("a repetition");
    assert_eq!(again.segment.seq, first.segment.seq);
    assert_eq!(again.segment.src_port, first.segment.src_port);
}

#[test]
fn what_is_left_of_an_earlier_question_is_reset_and_the_question_asked_again() {
    let mut w = World::new(2);
    let (c, first) = asked(&mut w);
    // The reset of the answer got lost: the pod's kernel still has the half-open connection of an
    // older number.
    let mut challenge = w.question_wire(&first, true);
    challenge.flags = Flags::ACK;
    challenge.options.clear();
    challenge.ack = 77;
    let mut buffer = challenge.build();
    let len = buffer.len();
    let _ = w.engine.frame(w.now, &mut buffer, len, &mut w.out);
    let sent: Vec<Sent> = w.out.take().iter().map(|f| w.check(f)).collect();
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert!(sent[0].is(Flags::RST));
    assert_eq!(sent[0].segment.seq.0, 77, "exact");
    assert!(sent[1].is_question());
    assert_eq!(sent[1].segment.seq, first.segment.seq);
    w.kernel_answers(&sent[1]);
    let fin = one(w.run_ms(60));
    assert!(fin.is(FIN_ACK));
    assert_eq!(w.count(Counter::BackendsSilent), 0);
    w.assert_state(&c, "ServerFin");
}

#[test]
fn clients_that_close_together_are_no_restart() {
    let mut w = World::new(2);
    let mut flows: Vec<Conn> = (0..8).map(|n| w.idle(n)).collect();
    for c in &mut flows {
        w.client_fin(c);
        w.pod_fin(c);
        w.assert_state(c, "Closed");
    }
    assert_eq!(w.count(Counter::BackendsRestarted), 0);
}

#[test]
fn ready_said_to_another_key_means_nothing_after_a_rotation() {
    let (mut w, mut c) = World::new(2).at_rest();
    let newer = AdoptionKey::from_bytes([9; 16]);
    w.engine.set_keys(&[(4, newer.clone()), (3, key())]);
    // No pod answers probes of the new key yet.
    w.adopters = vec![None; 32];
    w.exchange(&mut c);
    // The same key once more changes nothing.
    let (mut w, mut c) = World::new(2).at_rest();
    w.engine.set_keys(&[(3, key()), (2, newer)]);
    w.moves(&mut c, GET);
}

#[test]
fn an_end_that_nobody_could_take_up_is_counted() {
    let mut p = policy(2);
    p.on_backend_failure = BackendFailure::Replay;
    let mut w = World::unprobed(settings(), p);
    w.adopters = vec![None; 32];
    let mut c = w.open(1);
    w.stays(&mut c, GET);
    let wire = w.pod_wire(&c, RST_ACK, &[]);
    w.forwarded_to_client(&c, &wire);
    assert_eq!(w.engine.lost(Lost::NoBackend), 1);
}

#[test]
fn while_our_own_link_is_down_nobody_is_blamed() {
    let (mut w, mut c) = World::new(2).at_rest();
    w.moves(&mut c, POST);
    let idle = w.idle(2);
    w.vanishes(0);
    w.vanishes(1);
    w.engine.set_link(w.now, false);
    assert!(w.run_ms(20_000).is_empty());
    w.starts(0);
    w.starts(1);
    w.engine.set_link(w.now, true);
    w.run_ms(5);
    w.assert_state(&c, "Adopting");
    w.responds(&mut c, OK);
    w.assert_state(&idle, "Idle");
    assert_eq!(w.count(Counter::BackendsSilent), 0);
    assert_eq!(Lost::ALL.iter().map(|l| w.engine.lost(*l)).sum::<u64>(), 0);
}

#[test]
fn right_after_our_own_link_came_up_silence_means_nothing_yet() {
    let (mut w, c) = World::new(2).at_rest();
    w.vanishes(c.pod);
    w.engine.set_link(w.now, false);
    w.engine.set_link(w.now, true);
    assert!(w.ends(&c, End::Fin).is_empty());
    w.run_ms(900);
    assert_eq!(w.count(Counter::BackendsSilent), 0);
    w.run_ms(3_000);
    assert!(w.count(Counter::BackendsSilent) > 0);
}

#[test]
fn without_a_guard_a_flow_rests_longer_before_it_leaves() {
    for (protocol, waits) in [(Protocol::RequestResponse, true), (Protocol::Http1, false)] {
        let mut p = policy(2);
        p.protocol = protocol;
        p.drain.quiet = Micros::from_millis(60);
        let (mut w, c) = World::with(settings(), p).at_rest();
        let pod = c.pod;
        w.change(|s| s.policies[0].backends[pod].draining = true);
        let early = w.run_ms(900);
        assert_eq!(early.iter().any(Sent::is_adoption), !waits);
        let late = w.run_ms(300);
        assert_eq!(late.iter().any(Sent::is_adoption), waits);
    }
}

/// Three questions are lost; a frame that the dead pod's kernel sent before is no sign of a
/// listener.
#[test]
fn something_heard_is_no_listener() {
    let (mut w, mut c) = World::new(2).at_rest();
    w.listeners[c.pod] = Listener::Silent;
    assert!(w.ends(&c, End::Fin).is_empty());
    w.run_ms(50);
    let late = w.pod_wire(&c, FIN_ACK, &[]);
    assert!(w.inject(&late.build()).is_empty());
    assert!(w.run_ms(150).is_empty(), "not closed");
    w.assert_state(&c, "OwnerFinPending");
    w.stops(c.pod);
    let sent = w.until_adoption(200);
    w.rescued(&mut c, &sent);
}

/// What waited when our link went down waits on when it is back.
#[test]
fn no_time_passes_while_our_own_link_is_down() {
    let (mut w, c) = World::new(2).at_rest();
    w.adopters = vec![Some(Reason::AcceptQueueFull); 32];
    w.run_ms(1_100);
    w.dies(c.pod, End::Fin, std::slice::from_ref(&c));
    w.assert_state(&c, "Orphan");
    w.engine.set_link(w.now, false);
    w.run_ms(20_000);
    w.engine.set_link(w.now, true);
    w.run_ms(5_000);
    w.assert_state(&c, "Orphan");
    w.run_ms(6_000);
    assert_eq!(w.engine.lost(Lost::NoBackend), 1);
}

#[test]
fn what_clients_repeat_after_our_own_link_came_up_ejects_nobody() {
    let (mut w, mut c) = World::of(2, |p| p.health.failure_threshold = 2).at_rest();
    w.engine.set_link(w.now, false);
    w.engine.set_link(w.now, true);
    w.moves(&mut c, POST);
    w.responds(&mut c, b"H");
    w.run_ms(1_000);
    repeats(&mut w, 2);
    assert_eq!(w.count(Counter::Ejections) + w.count(Counter::EjectionsCapped), 0);
    w.run_ms(3_000);
    repeats(&mut w, 20);
    assert!(w.count(Counter::Ejections) + w.count(Counter::EjectionsCapped) > 0);
}

/// Requests of several clients of which no pod acknowledges anything, so that they are repeated.
fn repeats(w: &mut World, first: u16) {
    let mut flows: Vec<(Conn, Wire)> = (first..first + 10)
        .map(|n| {
            let mut c = Conn::new(n);
            c.client.set_ip([192, 0, 2, n as u8].into());
            let c = w.open_as(c);
            let request = w.client_wire(&c, PSH_ACK, GET);
            (c, request)
        })
        .collect();
    for (c, _) in &mut flows {
        w.stays(c, GET);
    }
    w.run_ms(200);
    for (c, request) in &flows {
        w.forwarded_to_pod(c, request);
    }
}
