//! Ends with the adopter's word that the process was exiting, and ends for which no successor came.

use crate::common::{Conn, Dest, End, Listener, Sent, World, conn::*, policy, settings};
use baton_api::BackendFailure;
use baton_engine::{Counter, Lost};
use baton_packet::EndMark;

/// The last segment of an exiting process, as the adopter in its pod marks it.
fn marked(w: &World, c: &Conn, how: End) -> Vec<u8> {
    w.marked_end(c, how, EndMark::Exiting)
}

fn carries_mark(sent: &Sent) -> bool {
    let l4 = usize::from(sent.segment.l4);
    sent.frame[l4 + 18..l4 + 20] != [0, 0]
}

/// The processes of one server die one after another, and until the last one is gone the kernel
/// answers for all.
#[test]
fn a_flow_of_an_exiting_process_is_rescued_at_once_whoever_listens() {
    for how in End::BOTH {
        for v6 in [false, true] {
            let mut w = World::new(2);
            let mut c = w.idle_as(Conn::of(1, v6));
            let dead = c.pod;
            assert_eq!(w.listeners[dead], Listener::Listens);
            let frame = marked(&w, &c, how);
            let sent = w.inject(&frame);
            assert!(World::to_client(&sent).is_empty(), "{sent:?}");
            w.rescued(&mut c, &sent);
            assert_ne!(c.pod, dead);
            w.exchange_anywhere(&mut c);
            assert_eq!(w.count(Counter::OwnersExited), 1);
            assert_eq!(w.count(Counter::Rescues), 1);
            assert_eq!(Lost::ALL.iter().map(|l| w.engine.lost(*l)).sum::<u64>(), 0);
        }
    }
}

/// The same where the flow was saved a moment ago and has had no request since.
#[test]
fn a_flow_is_rescued_from_each_process_that_exits() {
    let (mut w, mut c) = World::new(3).at_rest();
    for _ in 0..6 {
        let frame = marked(&w, &c, End::Fin);
        let sent = w.inject(&frame);
        w.rescued(&mut c, &sent);
        w.run_ms(100);
    }
    assert_eq!(w.count(Counter::Rescues), 6);
}

#[test]
fn a_mark_never_reaches_the_client() {
    let mut p = policy(2);
    p.on_backend_failure = BackendFailure::Reset;
    for how in End::BOTH {
        let (mut w, c) = World::with(settings(), p.clone()).at_rest();
        let frame = marked(&w, &c, how);
        let sent = one(w.inject(&frame));
        assert_eq!(sent.to, Dest::Client);
        assert!(sent.is(how.flags()));
        assert!(!carries_mark(&sent));
    }
}

/// A connection that must not move ends with its process, and that is a loss.
#[test]
fn a_pinned_flow_of_an_exiting_process_is_counted() {
    let (mut w, mut c) = World::new(2).opened();
    w.answers(&mut c, b"220 ready\r\n");
    let frame = marked(&w, &c, End::Fin);
    let sent = w.inject(&frame);
    assert_eq!(World::to_client(&sent).len(), 1);
    assert_eq!(w.engine.lost(Lost::Pinned), 1);
}

/// Without its flows a dying pod looks idle, and its kernel still says Ready: nothing may be moved
/// there.
#[test]
fn nothing_moves_to_a_pod_whose_process_just_exited() {
    let (mut w, c) = crate::holders::telling().at_rest();
    let dead = c.pod;
    let frame = marked(&w, &c, End::Fin);
    w.inject(&frame);
    let words = |w: &World| {
        let state = w.engine.state(w.now);
        let b = &state.policies[0].backends[dead];
        (b.adoptability.is_ready(), b.adoptability.to_string())
    };
    for _ in 0..45 {
        w.run_ms(1);
        assert!(!words(&w).0);
    }
    w.run_ms(10);
    assert_eq!(words(&w), (true, "ready".into()));
}

/// Who comes after a process that is gone is not to blame for the requests that it left.
#[test]
fn an_exit_ejects_nobody() {
    for exited in [false, true] {
        let mut w = World::of(2, |p| p.health.failure_threshold = 3);
        let mut flows: Vec<Conn> = (1..=12).map(|n| w.open(n)).collect();
        let at = flows[0].pod;
        flows.retain(|c| c.pod == at);
        for c in &mut flows {
            w.stays(c, GET);
        }
        for c in flows.iter().skip(1) {
            let frame = if exited {
                marked(&w, c, End::Rst)
            } else {
                w.pod_wire(c, End::Rst.flags(), &[]).build()
            };
            w.inject(&frame);
        }
        assert!(flows.len() >= 4, "{}", flows.len());
        assert_eq!(w.count(Counter::Ejections), u64::from(!exited));
    }
}

/// The first end of a dying server is no idle timeout: those that come without a mark, as when a
/// FIN is repeated, are believed only after the server has had its time to die.
#[test]
fn ends_beside_an_exit_are_watched_for_longer() {
    for exits in [false, true] {
        let mut w = crate::holders::telling();
        let mut flows: Vec<Conn> = (1..=12).map(|n| w.idle(n)).collect();
        let at = flows[0].pod;
        flows.retain(|c| c.pod == at);
        assert!(flows.len() >= 4, "{}", flows.len());
        if exits {
            let frame = marked(&w, &flows[0], End::Fin);
            w.inject(&frame);
        }
        w.ends(&flows[1], End::Fin);
        let sent = w.run_ms(10);
        assert_eq!(World::to_client(&sent).len(), usize::from(!exits));
        w.stops(at);
        w.run_ms(20);
        w.assert_state(&flows[1], if exits { "AdoptingIdle" } else { "ServerFin" });
    }
}

#[test]
fn an_end_without_a_successor_reaches_the_client_as_it_was_meant() {
    for how in End::BOTH {
        let (mut w, mut c) = World::orphan(how);
        assert!(World::to_client(&w.run_ms(9_900)).is_empty());
        let sent = w.run_ms(200);
        let end = one(World::to_client(&sent).into_iter().cloned().collect());
        assert!(end.is(how.flags()), "{end:?}");
        assert_eq!(end.segment.seq.0, c.server, "exact");
        assert_eq!(w.engine.lost(Lost::NoBackend), 1);
        if matches!(how, End::Fin) {
            w.assert_state(&c, "FinSentToClient");
            c.server = c.server.wrapping_add(1);
            let fin = w.client_wire(&c, FIN_ACK, &[]);
            let ack = one(w.inject(&fin.build()));
            assert_eq!(ack.segment.ack.0, c.seq.wrapping_add(1));
        }
        assert_eq!(w.state(&c), None);
        assert_eq!(w.count(Counter::UnexpectedEvents), 0);
    }
}

/// A client that sends a request to a connection that ended like this is told that nobody has it.
#[test]
fn a_request_after_that_is_reset() {
    let (mut w, mut c) = World::orphan(End::Fin);
    w.run_ms(10_100);
    w.assert_state(&c, "FinSentToClient");
    c.server = c.server.wrapping_add(1);
    let sent = w.data(&mut c, GET);
    assert!(one(sent).is(RST_ACK));
    assert_eq!(w.state(&c), None);
}
