//! A pod that is replaced at its address: the number of its network namespace is another one, and
//! nothing that was meant for the one before is taken by it.

use crate::common::{Conn, Dest, NAMESPACE, Sent, World, answer_from, conn::*, policy, settings};
use baton_api::{BackendFailure, MigrationMode, Protocol};
use baton_engine::Counter;
use baton_packet::{Flags, Reason};

const NEXT: u64 = NAMESPACE + 1;

fn world(failure: BackendFailure) -> World {
    let mut p = policy(2);
    p.protocol = Protocol::Http1;
    p.on_backend_failure = failure;
    World::with(settings(), p)
}

/// A flow that moves with a request to a pod that was replaced, which the dataplane does not know
/// yet: the adoption, and the connection before.
fn moves_to_a_replaced_pod(w: &mut World, c: &mut Conn, request: &[u8]) -> (Sent, Conn) {
    let old = c.clone();
    let adoption = w.moves(c, request);
    assert_eq!(number(&adoption), NAMESPACE);
    w.namespaces[c.pod] = NEXT;
    (adoption, old)
}

fn number(adoption: &Sent) -> u64 {
    let message = adoption.message().expect("a message with the right tag");
    message.namespace
}

/// `request` goes to the old pod again, once; whoever has the new leg is sent nothing but resets.
fn goes_back(sent: &[Sent], old: &Conn, request: &[u8]) {
    let (back, before) = sent.split_last().expect("a replay");
    assert!(before.iter().all(|s| s.is(RST_ACK)), "{sent:?}");
    assert_eq!((back.to, back.segment.src_port), (Dest::Pod(old.pod), old.leg.port()));
    assert_eq!(back.data(), request);
}

#[test]
fn one_that_was_there_before_the_request_never_had_it_and_nor_had_anybody() {
    let (mut w, mut c) = world(BackendFailure::Reset).at_rest();
    let (adoption, old) = moves_to_a_replaced_pod(&mut w, &mut c, POST);
    let new = c.pod;
    w.run_us(3_000);
    let sent = w.inject(&answer_from(NEXT, &adoption, Reason::Renew, 20));
    goes_back(&sent, &old, POST);
    assert_eq!(w.count(Counter::RefusedRenew), 1);
    assert_eq!(w.count(Counter::Rollbacks), 1);
    (c.pod, c.leg) = (old.pod, old.leg);
    w.served(&mut c);
    // It is asked at once, and takes what is meant for it.
    w.run_ms(2);
    let state = w.engine.state(w.now);
    assert!(state.policies[0].backends[new].adoptability.is_ready());
    w.run_ms(300);
    let again = w.moves(&mut c, POST);
    assert_eq!((c.pod, number(&again)), (new, NEXT));
    w.responds(&mut c, OK);
}

#[test]
fn one_that_came_after_the_request_cannot_speak_for_the_one_before() {
    for (failure, request, replays) in [
        (BackendFailure::ReplayIdempotent, GET, true),
        (BackendFailure::ReplayIdempotent, POST, false),
        (BackendFailure::Reset, GET, false),
    ] {
        // What a pod says in whole milliseconds is no word about the last one.
        for (ran_ms, age_ms) in [(30, 20), (30, 30), (0, 0)] {
            let (mut w, mut c) = world(failure).at_rest();
            let (adoption, old) = moves_to_a_replaced_pod(&mut w, &mut c, request);
            w.run_ms(ran_ms);
            let sent = w.inject(&answer_from(NEXT, &adoption, Reason::Renew, age_ms));
            assert_eq!(w.count(Counter::RefusedRenew), 1);
            if replays {
                assert_eq!(w.count(Counter::FateReplayed), 1);
                goes_back(&sent, &old, request);
            } else {
                assert_eq!(w.count(Counter::FateReset), 1, "{ran_ms} {age_ms}");
                let to_client: Vec<_> = sent.iter().filter(|s| s.to == Dest::Client).collect();
                assert!(to_client.len() == 1 && to_client[0].is(RST_ACK), "{sent:?}");
            }
        }
    }
}

/// The pod that adopted is gone with its answer; the next one at its address has a listener.
#[test]
fn an_adoption_is_never_repeated_for_the_next_pod() {
    let (mut w, mut c) = world(BackendFailure::Reset).at_rest();
    moves_to_a_replaced_pod(&mut w, &mut c, POST);
    // Long enough for a probe, after which the new number is known.
    let sent = w.run_ms(2_700);
    let numbers: Vec<u64> = sent.iter().filter(|s| s.is_adoption()).map(number).collect();
    assert_eq!(numbers.len(), 5, "it asks on: {numbers:?}");
    assert!(numbers.iter().all(|n| [NAMESPACE, 0].contains(n)), "{numbers:?}");
    assert_eq!(numbers.last(), Some(&0), "for nobody: {numbers:?}");
    // With another copy without an answer, one refusal is not all of them.
    let last = sent.iter().rfind(|s| s.is_adoption()).expect("the last");
    assert!(w.inject(&answer_from(NEXT, last, Reason::Renew, 60_000)).is_empty());
    let sent = w.run_ms(1_500);
    assert_eq!(w.count(Counter::FateReset), 1, "{sent:?}");
    assert_eq!(w.count(Counter::Rollbacks), 0);
}

/// The pod that had the request is gone without a word, and the client waits: it has nothing to
/// send that the next pod at the address would answer with a reset.
#[test]
fn who_waits_for_the_pod_before_asks_whether_its_connection_is_there() {
    let asked = |sent: Vec<Sent>, c: &Conn| {
        let asks = |s: &&Sent| s.segment.src_port == c.leg.port() && s.segment.payload_len() == 1;
        let numbers = sent.iter().filter(asks).map(|s| s.segment.ack.0);
        numbers.collect::<Vec<u32>>()
    };
    for started in [false, true] {
        let mut w = world(BackendFailure::Reset);
        w.change(|s| s.policies[0].migration.mode = MigrationMode::Never);
        let mut c = w.idle(1);
        w.stays(&mut c, POST);
        let mut other = w.idle(2);
        if started {
            let first = w.pod_wire(&c, PSH_ACK, &OK[..OK.len() - 1]);
            w.forwarded_to_client(&c, &first);
            c.server = c.server.wrapping_add(OK.len() as u32 - 1);
            w.ack(&mut c);
        }
        assert_eq!(asked(w.run_ms(1_500), &c), [0_u32; 0], "it is the same pod");
        w.namespaces[c.pod] = NEXT;
        let numbers = asked(w.run_ms(1_100), &c);
        let number = c.server.wrapping_sub(1 << 17);
        assert_eq!(numbers, [number]);
        // A connection that the next pod has goes on, also where the question was for nothing.
        w.pod_ack(&c);
        // Two more may be lost, and there are no more.
        assert_eq!(asked(w.run_ms(10_000), &c), [number, number]);
        let mut rst = w.pod_wire(&c, Flags::RST, &[]);
        rst.seq = number;
        let sent = w.inject(&rst.build());
        let told: Vec<_> = sent.iter().filter(|s| s.to == Dest::Client).collect();
        assert!(told.len() == 1 && told[0].is(RST_ACK), "{sent:?}");
        assert_eq!(w.state(&c), None);
        w.exchange(&mut other);
    }
}
