//! Whether an end was meant: one question to the pod's kernel for all its flows, and what the
//! answer, or none, comes to.

use crate::common::{Conn, Dest, End, Listener, Sent, World, conn::*, policy, settings};
use baton_api::Protocol;
use baton_engine::{Counter, Lost, timing::IDLE_ENDS_MAX};
use baton_packet::Flags;

fn many(pods: usize) -> World {
    let mut s = settings();
    s.limits.flows = 256;
    World::with(s, policy(pods))
}

#[test]
fn a_close_of_a_pod_that_lives_reaches_the_client_unharmed_and_soon() {
    for v6 in [false, true] {
        let mut w = World::new(2);
        let mut c = w.idle_as(Conn::of(1, v6));
        let before = w.now.0;
        // Asserts the FIN, its number and that it was held.
        let fin = w.pod_closes(&mut c);
        assert!(w.now.0 - before <= 5_000);
        assert_eq!(fin.segment.ack.0, c.seq);
        assert!(fin.stamps().is_some());
        // The client closes too; the pod, which repeats its FIN, hears of it.
        w.ack(&mut c);
        w.client_fin(&mut c);
        w.assert_state(&c, "Closed");
        assert_eq!(w.count(Counter::Stranded), 0);
        assert_eq!(Lost::ALL.iter().map(|l| w.engine.lost(*l)).sum::<u64>(), 0);
    }
}

#[test]
fn a_reset_of_a_pod_that_lives_reaches_the_client() {
    let (mut w, c) = World::new(2).at_rest();
    assert!(w.ends_listening(&c, End::Rst).is_empty());
    let rst = one(w.run_ms(5));
    assert_eq!((rst.to, rst.segment.seq.0), (Dest::Client, c.server));
    assert!(rst.is(RST_ACK));
    assert_eq!(w.state(&c), None);
}

#[test]
fn connection_close_passes_at_once() {
    let close = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    for together in [false, true] {
        let (mut w, mut c) = World::new(2).opened();
        w.stays(&mut c, GET);
        if together {
            let wire = w.pod_wire(&c, FIN_ACK | Flags::PSH, close);
            w.forwarded_to_client(&c, &wire);
        } else {
            w.answers(&mut c, close);
            w.pod_fin(&mut c);
        }
        w.assert_state(&c, "ServerFin");
        assert!(w.asked.is_empty());
    }
    // The client asked for it.
    let (mut w, mut c) = World::new(2).opened();
    w.stays(&mut c, b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n");
    w.served(&mut c);
    w.pod_fin(&mut c);
    assert!(w.asked.is_empty());
}

/// Nothing tells a close that was meant from a death there: the flow gets another leg, whoever
/// listens.
#[test]
fn an_end_that_nothing_marks_is_the_legs_alone() {
    for how in End::BOTH {
        for v6 in [false, true] {
            let mut w = World::new(2);
            let mut c = w.idle_as(Conn::of(1, v6));
            let first = c.pod;
            assert!(w.ends(&c, how).is_empty(), "asked first");
            assert_eq!(w.count(Counter::LivenessProbesAnswered), 1);
            let sent = w.run_ms(1);
            w.rescued(&mut c, &sent);
            assert_ne!(c.pod, first);
            w.exchange_anywhere(&mut c);
            assert_eq!(w.count(Counter::LegsOverUnmarked), 1);
            assert_eq!(w.count(Counter::ClosesBelieved), 0);
            assert_eq!(w.count(Counter::BackendsWithoutListener), 0);
        }
    }
}

/// Before its first request, and with a single pod, which still listens.
#[test]
fn a_leg_of_the_same_pod_takes_the_place_of_one_that_ended() {
    let (mut w, mut c) = World::new(1).opened();
    assert!(w.ends(&c, End::Fin).is_empty(), "asked first");
    let sent = w.until_adoption(3);
    w.rescued(&mut c, &sent);
    w.exchange_anywhere(&mut c);
    assert_eq!(w.count(Counter::ClosesBelieved), 0);
}

/// A server that closes whatever it accepts, or whose time for idle connections is over again and
/// again.
#[test]
fn one_of_many_idle_legs_in_a_row_that_end_is_believed() {
    for how in End::BOTH {
        let (mut w, mut c) = World::new(2).at_rest();
        for ends in 0..=u64::from(IDLE_ENDS_MAX) {
            assert!(w.ends(&c, how).is_empty(), "asked first");
            if ends > 0 {
                // Twice as long each time.
                let sent = w.run_ms((1 << ends) - 1);
                assert!(!sent.iter().any(Sent::is_adoption), "{ends}");
            }
            let sent = w.until_adoption(3);
            w.rescued(&mut c, &sent);
        }
        assert_eq!(w.count(Counter::LegsOverUnmarked), 13);
        assert!(w.ends(&c, how).is_empty(), "asked first");
        assert!(one(w.run_ms(1)).is(how.flags()));
        assert_eq!(w.count(Counter::ClosesBelieved), 1);
        assert_eq!(Lost::ALL.iter().map(|l| w.engine.lost(*l)).sum::<u64>(), 0);
    }
}

#[test]
fn a_request_needs_not_wait_for_the_pause_and_begins_the_count_anew() {
    let (mut w, mut c) = World::new(2).at_rest();
    for _ in 0..8 {
        assert!(w.ends(&c, End::Fin).is_empty(), "asked first");
        let sent = w.until_adoption(200);
        w.rescued(&mut c, &sent);
    }
    w.ends(&c, End::Fin);
    w.run_ms(1);
    w.assert_state(&c, "Orphan");
    let boundary = c.seq;
    let sent = w.data(&mut c, GET);
    assert_eq!(one(w.adopted_from(&mut c, &sent, boundary)).data(), GET);
    w.served(&mut c);
    w.ends(&c, End::Fin);
    let sent = w.run_ms(1);
    w.rescued(&mut c, &sent);
    assert_eq!(w.count(Counter::ClosesBelieved), 0);
}

/// A close may be the end of a response that nothing else tells of.
#[test]
fn under_the_bare_rule_a_close_without_a_mark_is_a_close() {
    for how in End::BOTH {
        let (mut w, c) = World::of(2, |p| p.protocol = Protocol::RequestResponse).at_rest();
        assert!(w.ends(&c, how).is_empty(), "asked first");
        assert!(one(w.run_ms(1)).is(how.flags()));
        assert_eq!(w.count(Counter::ClosesBelieved), 1);
        w.stops(c.pod);
        w.run_ms(100);
        assert_eq!(w.count(Counter::Stranded), 0);
    }
}

/// Flows of one pod, at rest: some that will end, and as many that stay.
fn of_one_pod(w: &mut World, ending: usize) -> (Vec<Conn>, Vec<Conn>) {
    let mut flows: Vec<Conn> = (0..4 * ending as u16 + 8).map(|n| w.idle(n)).collect();
    let pod = flows[0].pod;
    flows.retain(|c| c.pod == pod);
    let staying = flows.split_off(ending);
    assert!(staying.len() >= ending);
    (flows, staying)
}

#[test]
fn one_question_serves_all_flows_of_a_pod() {
    let mut w = many(2);
    let flows: Vec<Conn> = (0..60).map(|n| w.idle(n)).collect();
    let dead = flows[0].pod;
    let of_it = flows.iter().filter(|c| c.pod == dead).count() as u64;
    assert!(of_it > 20);
    w.listeners[dead] = Listener::Refuses;
    let mut sent = Vec::new();
    for c in flows.iter().filter(|c| c.pod == dead) {
        sent.extend(w.ends(c, End::Fin));
    }
    assert_eq!(w.asked, [dead]);
    sent.extend(w.run_ms(10));
    assert_eq!(sent.iter().filter(|s| s.is_adoption()).count() as u64, of_it);
    assert_eq!(w.count(Counter::Stranded), of_it);
    assert_eq!(w.count(Counter::BackendsWithoutListener), 1);
}

#[test]
fn closes_that_come_all_the_time_stand_all_the_same() {
    // A busy server whose idle timeouts and request limits end connections every few milliseconds:
    // some of them, or in the end all.
    for (every_ms, all) in [(2, false), (10, false), (40, false), (20, true), (40, true)] {
        let mut w = many(2);
        let (mut flows, staying) = of_one_pod(&mut w, 20);
        if all {
            flows.extend(staying);
        }
        let (mut fins, mut ended) = (0, Vec::new());
        for c in &flows {
            let sent = w.ends_listening(c, End::Fin);
            fins += World::to_client(&sent).len();
            ended.push((w.now.ms(), c));
            let sent = w.run_ms(every_ms);
            fins += World::to_client(&sent).len();
            for (at, c) in &ended {
                let held = w.state(c).as_deref() == Some("OwnerFinPending");
                assert!(!held || w.now.ms() - at <= 120, "held for {} ms", w.now.ms() - at);
            }
        }
        fins += World::to_client(&w.run_ms(120)).len();
        assert_eq!(fins, flows.len(), "every {every_ms} ms, all: {all}");
        assert_eq!(w.count(Counter::Stranded), 0);
    }
}

#[test]
fn silence_is_asked_three_times_and_is_a_death() {
    let (mut w, mut c) = World::new(2).at_rest();
    w.vanishes(c.pod);
    assert!(w.ends(&c, End::Fin).is_empty());
    let sent = w.run_ms(19);
    assert!(sent.is_empty());
    assert_eq!(w.asked.len(), 1);
    w.run_ms(2);
    assert_eq!(w.asked.len(), 2, "after 20 ms");
    w.run_ms(40);
    assert_eq!(w.asked.len(), 3, "after 60 ms");
    w.assert_state(&c, "OwnerFinPending");
    let sent = w.run_ms(85);
    w.rescued(&mut c, &sent);
    assert_eq!(w.count(Counter::LivenessProbesUnanswered), 1);
    assert_eq!(w.count(Counter::BackendsSilent), 1);
}

#[test]
fn a_listener_that_is_too_busy_to_answer_is_no_death() {
    let (mut w, c) = many(2).at_rest();
    let mut other =
        (2..).map(|n| w.idle(n)).find(|o| o.pod == c.pod).expect("a second flow of the pod");
    w.listeners[c.pod] = Listener::Silent;
    w.ends_listening(&c, End::Fin);
    let mut fins = Vec::new();
    for _ in 0..700 {
        fins.extend(w.run_ms(1));
        // Its kernel speaks on other connections.
        w.pod_ack(&other);
    }
    assert_eq!(World::to_client(&fins).len(), 1, "{fins:?}");
    assert!(fins.iter().all(|s| s.is(FIN_ACK)));
    assert_eq!(w.count(Counter::BackendsSilent), 0);
    w.exchange_anywhere(&mut other);
}

#[test]
fn without_a_free_port_a_pod_cannot_be_asked_and_is_not_taken_for_dead() {
    let mut s = settings();
    s.ports = 40_000..=40_063;
    s.limits.flows = 256;
    let mut w = World::with(s, policy(1));
    let mut flows = Vec::new();
    for n in 0..63 {
        let mut c = Conn::new(n);
        let Some(sent) = w.inject(&w.syn_wire(&c).build()).pop() else {
            break;
        };
        take_leg(&mut c, &sent);
        w.accepts(&mut c);
        w.exchange(&mut c);
        flows.push(c);
    }
    assert!(w.ends(&flows[0], End::Fin).is_empty());
    w.run_ms(1_500);
    assert_eq!(w.count(Counter::BackendsSilent), 0);
    assert_eq!(w.state(&flows[1]).as_deref(), Some("Idle"));
}

#[test]
fn questions_come_from_a_port_of_their_own_and_open_nothing() {
    let (mut w, c) = World::new(2).at_rest();
    w.listeners[c.pod] = Listener::Silent;
    w.engine.check_invariants();
    let mut buffer = w.pod_wire(&c, FIN_ACK, &[]).build();
    let len = buffer.len();
    let _ = w.engine.frame(w.now, &mut buffer, len, &mut w.out);
    let question = one(w.out.take().iter().map(|f| w.check(f)).collect());
    assert!(question.is_question());
    assert_eq!(question.to, Dest::Pod(c.pod));
    assert_ne!(question.segment.src_port, c.leg.port());
    // Answers with other numbers are fenced; a half-open connection that they show is reset.
    for listens in [true, false] {
        let mut wrong = w.question_wire(&question, listens);
        wrong.ack = wrong.ack.wrapping_add(1);
        let sent = w.inject(&wrong.build());
        assert_eq!(sent.len(), usize::from(listens), "{sent:?}");
    }
    assert_eq!(w.count(Counter::Fenced), 2);
    w.assert_state(&c, "OwnerFinPending");
    let answer = w.question_wire(&question, true);
    let rst = one(w.inject(&answer.build()));
    assert!(rst.is(Flags::RST));
    assert_eq!(w.table("flows").0, 1);
    // The same answer once more is late: our reset was lost.
    let rst = one(w.inject(&answer.build()));
    assert!(rst.is(Flags::RST));
}

#[test]
fn a_server_that_closes_half_way_is_asked_in_every_protocol_with_boundaries() {
    for protocol in [Protocol::RequestResponse, Protocol::Http1] {
        let (mut w, mut c) = World::of(2, |p| p.protocol = protocol).at_rest();
        w.pod_closes(&mut c);
        let mut c = w.idle(2);
        let sent = w.dies(c.pod, End::Fin, &[c.clone()]);
        w.rescued(&mut c, &sent);
    }
}
