//! Closes that a living server meant instead of an answer: the client is told, nobody is blamed,
//! nothing runs twice.

use crate::common::{Conn, Dest, End, Sent, World, conn::*, policy, settings};
use baton_api::{Health, Micros, MigrationMode, Policy};
use baton_engine::{Counter, Lost};
use baton_packet::EndMark;

/// Ejects after two failures.
fn world(mode: MigrationMode) -> World {
    let mut p: Policy = policy(3);
    p.migration.mode = mode;
    p.health = Health {
        failure_threshold: 2,
        base_ejection_time: Micros::from_secs(10),
        max_ejected_percent: 100,
        panic_percent: 0,
        ..Health::default()
    };
    World::with(settings(), p)
}

fn harmed(w: &World) -> u64 {
    let lost: u64 = Lost::ALL.iter().map(|l| w.engine.lost(*l)).sum();
    let counts =
        [Counter::Ejections, Counter::EjectionsCapped, Counter::Rescues].map(|c| w.count(c));
    lost + counts.iter().sum::<u64>()
}

/// The client is told, and nothing goes to any other pod.
fn passes(w: &mut World, c: &Conn, how: End) {
    let sent = w.ends_listening(c, how);
    let sent = [sent, w.run_ms(20)].concat();
    let to_client = World::to_client(&sent);
    assert_eq!(to_client.len(), 1, "{sent:?}");
    assert!(to_client[0].is(how.flags()), "{sent:?}");
    assert!(!sent.iter().any(Sent::is_adoption), "{sent:?}");
}

/// nginx: `return 444`.
#[test]
fn a_close_instead_of_an_answer_is_passed_on() {
    for mode in [MigrationMode::WhenBetter, MigrationMode::Never] {
        for request in [GET, POST] {
            let mut w = world(mode);
            for n in 0..10 {
                let mut c = w.idle(n);
                w.stays(&mut c, request);
                passes(&mut w, &c, End::Fin);
            }
            assert_eq!(harmed(&w), 0, "{mode:?}");
        }
    }
}

/// A client that is slow on purpose: the server cuts it off, by FIN or, where it throws bytes away,
/// by RST.
#[test]
fn a_request_that_did_not_come_in_time_is_not_handed_on() {
    for how in End::BOTH {
        let mut w = world(MigrationMode::Never);
        for n in 0..10 {
            let mut c = w.idle(n);
            w.stays(&mut c, b"GET / HTTP/1.1\r\nhost: a");
            passes(&mut w, &c, how);
        }
        assert_eq!(harmed(&w), 0, "{how:?}");
    }
}

/// A server that closes an idle connection at the moment when a request comes, which it never
/// reads.
#[test]
fn a_request_that_crosses_a_close_is_handed_on() {
    for (how, unseen, mark) in [
        (End::Fin, true, EndMark::Listening),
        (End::Fin, false, EndMark::Unread),
        (End::Rst, true, EndMark::Listening),
        (End::Rst, false, EndMark::Listening),
    ] {
        let (mut w, mut c) = world(MigrationMode::Never).at_rest();
        let before = c.clone();
        w.stays(&mut c, GET);
        // Its ACK is that of before the request; Linux acknowledges what it throws away, too.
        let told =
            if unseen { Conn { pod: c.pod, leg: c.leg, ..before.clone() } } else { c.clone() };
        let sent = w.inject(&w.marked_end(&told, how, mark));
        let sent = [sent, w.run_ms(5)].concat();
        assert!(World::to_client(&sent).is_empty(), "{how:?} {unseen}: {sent:?}");
        let behind = w.adopted_from(&mut c, &sent, before.seq);
        assert_eq!(one(behind).data(), GET);
        w.responds(&mut c, OK);
    }
}

/// One that died by itself meant nothing: a part of a request is handed on, too.
#[test]
fn a_part_of_a_request_whose_pod_dies_is_handed_on() {
    let (mut w, mut c) = world(MigrationMode::Never).at_rest();
    let boundary = c.seq;
    w.stays(&mut c, b"GET / HTTP/1.1\r\nhost: a");
    let flows = [c.clone()];
    let sent = w.dies(c.pod, End::Fin, &flows);
    assert!(World::to_client(&sent).is_empty(), "{sent:?}");
    let behind = w.adopted_from(&mut c, &sent, boundary);
    assert_eq!(one(behind).data(), b"GET / HTTP/1.1\r\nhost: a");
}

/// A request moves, and its new owner closes instead of an answer, before anything else was heard
/// of it: it goes on, so that it has answered, and what it answered runs once.
#[test]
fn the_end_of_a_new_owner_that_goes_on_is_an_answer() {
    let (mut w, mut c) = World::new(2).at_rest();
    w.moves(&mut c, GET);
    let sent = w.ends_listening(&c, End::Fin);
    let sent = [sent, w.run_ms(20)].concat();
    assert!(sent.iter().all(|s| s.data() != GET), "once: {sent:?}");
    assert_eq!(w.count(Counter::FateReplayed), 0);
    assert_eq!(w.count(Counter::MigrationsConfirmed), 1);
}

/// A dataplane that wants for CPU time: the client's next request came before it had been told of
/// the end, and nobody has looked at it.
#[test]
fn a_request_that_waits_at_the_interface_is_looked_at_before_an_end_is_told() {
    for how in End::BOTH {
        let (mut w, mut c) = world(MigrationMode::Never).at_rest();
        let boundary = c.seq;
        w.engine.is_behind(true);
        let sent = [w.ends_listening(&c, how), w.run_ms(20)].concat();
        assert!(sent.is_empty(), "{sent:?}");
        let mut sent = w.data(&mut c, GET);
        w.engine.is_behind(false);
        sent.extend(w.run_ms(20));
        assert!(World::to_client(&sent).is_empty(), "{how:?}: {sent:?}");
        let behind = w.adopted_from(&mut c, &sent, boundary);
        assert_eq!(one(behind).data(), GET);
        w.responds(&mut c, OK);
    }
}

#[test]
fn an_end_is_told_when_all_that_came_was_looked_at_or_half_a_second_later() {
    for catches_up in [true, false] {
        let (mut w, c) = world(MigrationMode::Never).at_rest();
        w.engine.is_behind(true);
        assert!(w.ends_listening(&c, End::Fin).is_empty());
        assert!(w.run_ms(499).is_empty());
        w.engine.is_behind(!catches_up);
        assert_eq!(w.count(Counter::EndsToldBehind), 0);
        let fin = one(w.run_ms(if catches_up { 0 } else { 2 }));
        assert!(fin.to == Dest::Client && fin.is(FIN_ACK));
        let count = w.count(Counter::EndsToldBehind);
        assert_eq!(count, u64::from(!catches_up));
        w.assert_state(&c, "ServerFin");
        // While nothing has changed the next one waits as long.
        let next = w.idle(2);
        assert!(w.ends_listening(&next, End::Fin).is_empty());
        let told = World::to_client(&w.run_ms(499)).len();
        assert_eq!(told, usize::from(catches_up));
        assert_eq!(World::to_client(&w.run_ms(2)).len(), 1 - told);
    }
}
