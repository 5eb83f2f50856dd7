//! Draining backends: by snapshot and by command, moved by request and without, and what the
//! deadline does.

use crate::common::{Conn, Dest, End, Listener, World, answer, conn::*, policy, settings};
use baton_api::{DrainState, Micros, MigrationMode, OnDeadline, Policy, Protocol};
use baton_engine::{Counter, Lost};
use baton_packet::{Flags, Reason};
use std::collections::BTreeMap;

fn drain_only(pods: usize) -> Policy {
    let mut p = policy(pods);
    p.migration.mode = MigrationMode::DrainOnly;
    p
}

/// Flows of one pod, at rest.
pub fn flows_of_one(w: &mut World, count: usize) -> Vec<Conn> {
    let mut flows: Vec<Conn> = Vec::new();
    for n in 0.. {
        let c = w.idle(n);
        if flows.first().is_none_or(|first| first.pod == c.pod) {
            flows.push(c);
        }
        if flows.len() == count {
            break;
        }
    }
    flows
}

pub fn drain(w: &mut World, pod: usize) {
    assert_eq!(w.engine.drain(w.now, None, &format!("pod-{pod}"), true), 1);
}

pub fn state(w: &World, pod: usize) -> DrainState {
    let state = w.engine.state(w.now);
    state.policies[0].backends[pod].drain.clone().expect("it drains")
}

pub fn waiting(w: &World, pod: usize) -> BTreeMap<String, u64> {
    state(w, pod).waiting
}

#[test]
fn a_drained_pod_gets_no_new_flow_and_its_flows_leave_with_their_next_request() {
    for by_command in [true, false] {
        let mut w = World::with(settings(), drain_only(3));
        let mut flows = flows_of_one(&mut w, 4);
        let pod = flows[0].pod;
        if by_command {
            drain(&mut w, pod);
        } else {
            w.change(|s| s.policies[0].backends[pod].draining = true);
        }
        assert_eq!(state(&w, pod).by_command, by_command);
        for c in &mut flows {
            w.moves(c, POST);
            w.served(c);
        }
        for n in 100..120 {
            assert_ne!(w.open(n).pod, pod);
        }
        let after = state(&w, pod);
        assert_eq!((after.moved, after.ended, after.closed), (4, 0, 0));
        assert!(after.waiting.is_empty());
    }
}

#[test]
fn flows_at_rest_leave_after_the_quiet_time() {
    let mut w = World::with(settings(), drain_only(3));
    let mut flows = flows_of_one(&mut w, 5);
    let pod = flows[0].pod;
    let mut fresh = w.open(900);
    while fresh.pod != pod {
        fresh = w.open(fresh.client.port() - 30_000 + 1);
    }
    drain(&mut w, pod);
    assert!(w.run_ms(90).is_empty(), "not yet");
    assert_eq!(waiting(&w, pod), [("quiet time".to_owned(), 6)].into());
    let sent = w.until_adoption(70);
    for c in &mut flows {
        w.rescued(c, &sent);
        assert_ne!(c.pod, pod);
    }
    w.rescued(&mut fresh, &sent);
    assert_eq!(state(&w, pod).moved, 6);
    // The old legs are closed in order.
    let fins = w.run_ms(20).iter().filter(|s| s.is(FIN_ACK)).count();
    assert_eq!(fins, 6);
    for c in flows.iter_mut().chain([&mut fresh]) {
        w.stays(c, GET);
        w.responds(c, OK);
    }
    assert_eq!(w.count(Counter::Rescues), 0, "a move, not a rescue");
    assert_eq!(Lost::ALL.iter().map(|l| w.engine.lost(*l)).sum::<u64>(), 0);
}

#[test]
fn what_flows_wait_for_is_shown() {
    let mut p = drain_only(2);
    p.drain.quiet = Micros::from_secs(3);
    let mut w = World::with(settings(), p);
    let mut flows = flows_of_one(&mut w, 2);
    let pod = flows[0].pod;
    let mut more = 1_000;
    let mut on_pod = |w: &mut World, n: u16| loop {
        let c = w.open(n);
        if c.pod == pod {
            break c;
        }
        w.inject(&w.client_wire(&c, Flags::RST, &[]).build());
        // The other pod gets one more flow instead.
        let other = w.open(more);
        if other.pod == pod {
            w.inject(&w.client_wire(&other, Flags::RST, &[]).build());
        }
        more += 1;
    };
    let mut pinned = on_pod(&mut w, 600);
    w.answers(&mut pinned, b"220 mail\r\n");
    let mut half = Conn::new(601);
    while half.pod != pod {
        half = Conn::new(half.client.port() - 30_000 + 1);
        w.syn(&mut half);
    }
    let mut gone = on_pod(&mut w, 700);
    w.client_fin(&mut gone);
    w.stays(&mut flows[0], POST);
    drain(&mut w, pod);
    let expected = [
        ("request in progress", 1),
        ("quiet time", 1),
        ("pinned: server_first", 1),
        ("handshake", 1),
        ("the server's close, as the client has closed", 1),
    ];
    let seen = waiting(&w, pod);
    for (what, count) in expected {
        assert_eq!(seen.get(what), Some(&count), "{what}: {seen:?}");
    }
    w.adopters.fill(Some(Reason::AcceptQueueFull));
    w.run_ms(3_100);
    let seen = waiting(&w, pod);
    assert_eq!(seen.get("no other backend can adopt now"), Some(&1), "{seen:?}");
    // The figures of one that ends by itself.
    let before = state(&w, pod).ended;
    w.inject(&w.client_wire(&flows[1], Flags::RST, &[]).build());
    assert_eq!(state(&w, pod).ended, before + 1);
}

#[test]
fn a_drain_that_is_taken_back_ends() {
    let mut w = World::with(settings(), drain_only(2));
    let mut flows = flows_of_one(&mut w, 2);
    let pod = flows[0].pod;
    drain(&mut w, pod);
    assert_eq!(w.engine.drain(w.now, Some("web"), &format!("pod-{pod}"), false), 1);
    assert!(w.run_ms(500).is_empty());
    for c in &mut flows {
        w.exchange(c);
    }
    assert!(w.engine.state(w.now).policies[0].backends[pod].drain.is_none());
    assert_eq!(w.engine.drain(w.now, None, "pod-99", true), 0);
    assert_eq!(w.engine.drain(w.now, Some("other"), "pod-0", true), 0);
    assert!(w.engine.backend_names().contains(&"pod-0 (10.0.1.20:8080)".to_owned()));
}

#[test]
fn a_refused_move_of_a_flow_at_rest_is_tried_again() {
    for how in ["refused", "silence", "taken and closed"] {
        let (mut w, mut c) = World::with(settings(), drain_only(2)).at_rest();
        let (pod, old) = (c.pod, c.clone());
        drain(&mut w, pod);
        let sent = w.until_adoption(160);
        w.adopted(&mut c, &sent);
        let under_way = state(&w, pod);
        assert_eq!(under_way.waiting, [("adoption".to_owned(), 1)].into());
        assert_eq!((under_way.moved, under_way.ended), (0, 0));
        match how {
            "refused" => {
                let sent = w.inject(&answer(&sent[0], Reason::AcceptQueueFull, 0));
                assert!(World::to_client(&sent).is_empty());
            }
            "silence" => {
                w.run_ms(2_900);
            }
            _ => {
                let sent = w.inject(&w.pod_wire(&c, FIN_ACK, &[]).build());
                assert!(World::to_client(&sent).is_empty());
                assert!(sent.iter().any(|s| s.is(RST_ACK) && s.to == Dest::Pod(c.pod)));
            }
        }
        assert_eq!(w.count(Counter::Rollbacks), 1, "{how}");
        assert_eq!(w.state(&c).as_deref(), Some("Idle"));
        c = old;
        let sent = w.until_adoption(1_500);
        w.rescued(&mut c, &sent);
        w.exchange_anywhere(&mut c);
    }
}

#[test]
fn a_request_during_the_move_of_a_flow_at_rest_survives_its_refusal() {
    let (mut w, mut c) = World::with(settings(), drain_only(2)).at_rest();
    let old = c.clone();
    drain(&mut w, c.pod);
    let sent = w.until_adoption(160);
    w.adopted(&mut c, &sent);
    w.stays(&mut c, POST);
    let back = w.inject(&answer(&sent[0], Reason::AcceptQueueFull, 0));
    let request = one(back);
    assert_eq!((request.to, request.data()), (Dest::Pod(old.pod), POST));
    (c.pod, c.leg) = (old.pod, old.leg);
    w.responds(&mut c, OK);
}

pub fn with_deadline(on_deadline: OnDeadline) -> Policy {
    let mut p = drain_only(2);
    p.drain.quiet = Micros::from_secs(3_600);
    p.drain.deadline = Micros::from_secs(2);
    p.drain.on_deadline = on_deadline;
    p
}

#[test]
fn a_request_that_is_outstanding_at_the_deadline_is_answered_first() {
    let (mut w, mut c) = World::with(settings(), with_deadline(OnDeadline::Close)).at_rest();
    w.stays(&mut c, POST);
    drain(&mut w, c.pod);
    assert!(w.run_ms(4_000).is_empty());
    w.served(&mut c);
    let sent = w.run_ms(60);
    assert!(World::to_client(&sent).iter().any(|s| s.is(FIN_ACK)));
    w.assert_state(&c, "FinSentToClient");
}

/// Half-closed flows and requests in progress, at a drain's deadline of 2 s.
#[test]
fn every_flow_is_closed_in_the_end() {
    let half_closed: [fn(&mut World, &mut Conn); 4] = [
        |w, c| w.client_fin(c),
        |w, c| {
            // As a WebSocket whose server does not close: pinned, and what the client said last is
            // never answered.
            w.stays(c, GET);
            w.answers(c, b"HTTP/1.1 101 Switching Protocols\r\n\r\n");
            w.stays(c, b"\x88\x80close");
            w.client_fin(c);
        },
        |w, c| {
            w.stays(c, GET);
            w.client_fin(c);
        },
        |w, c| {
            w.stays(c, POST);
        },
    ];
    for (number, close) in half_closed.into_iter().enumerate() {
        let (mut w, mut c) = World::with(settings(), with_deadline(OnDeadline::Close)).at_rest();
        close(&mut w, &mut c);
        w.pod_ack(&c);
        drain(&mut w, c.pod);
        assert!(w.run_ms(1_990).is_empty(), "{number}");
        let at_rest = number < 2;
        if !at_rest {
            assert!(w.run_ms(4_990).is_empty(), "{number}: its time is not over");
        }
        let sent = w.run_ms(60);
        let told = World::to_client(&sent);
        assert_eq!(told.len(), 1, "{number}: {sent:?}");
        assert_eq!(told[0].is(FIN_ACK), at_rest, "{number}: {told:?}");
        assert_eq!(told[0].segment.flags.has(Flags::RST), !at_rest);
        assert_eq!(w.engine.lost(Lost::DrainDeadline), 1);
        let after = state(&w, c.pod);
        assert_eq!((after.closed, after.waiting.len()), (1, 0));
    }
}

#[test]
fn a_flow_that_its_server_closed_is_closed_at_the_deadline() {
    let mut p = with_deadline(OnDeadline::Close);
    p.on_backend_failure = baton_api::BackendFailure::Reset;
    let (mut w, mut c) = World::with(settings(), p).at_rest();
    w.pod_fin(&mut c);
    w.assert_state(&c, "ServerFin");
    w.ack(&mut c);
    drain(&mut w, c.pod);
    assert!(w.run_ms(1_990).is_empty());
    let sent = w.run_ms(60);
    assert!(World::to_client(&sent)[0].segment.flags.has(Flags::RST));
    assert_eq!(w.state(&c), None);
    assert!(state(&w, c.pod).waiting.is_empty());
}

#[test]
fn pinned_flows_meet_the_deadline_or_wait_as_policy_says() {
    for on_deadline in [OnDeadline::Close, OnDeadline::Wait] {
        for protocol in [Protocol::Http1, Protocol::None] {
            let mut p = with_deadline(on_deadline);
            p.protocol = protocol;
            p.drain.quiet = Micros::from_millis(100);
            let (mut w, mut c) = World::with(settings(), p).opened();
            w.answers(&mut c, b"220 mail\r\n");
            drain(&mut w, c.pod);
            assert!(w.run_ms(1_900).is_empty());
            let sent = w.run_ms(10_000);
            if on_deadline == OnDeadline::Close {
                assert!(World::to_client(&sent)[0].is(FIN_ACK));
                assert_eq!(w.engine.lost(Lost::DrainDeadline), 1);
            } else {
                assert!(sent.is_empty(), "{sent:?}");
                w.assert_state(&c, "Idle");
                w.exchange(&mut c);
            }
        }
    }
}

/// What ends with the connection would count as whole behind a FIN: nobody follows it, and it may
/// go on, or be lost with its pod.
#[test]
fn what_nobody_follows_is_closed_in_order_only_where_it_is_quiet() {
    for protocol in [Protocol::Http1, Protocol::None] {
        for closes in [false, true] {
            let mut p = with_deadline(OnDeadline::Close);
            p.protocol = protocol;
            let (mut w, mut c) = World::with(settings(), p).opened();
            w.answers(&mut c, b"a part");
            if closes {
                w.client_fin(&mut c);
                w.pod_ack(&c);
            }
            drain(&mut w, c.pod);
            for _ in 0..13 {
                assert!(World::to_client(&w.run_ms(500)).is_empty());
                w.answers(&mut c, b"a part");
            }
            let sent = w.run_ms(600);
            assert!(World::to_client(&sent)[0].is(RST_ACK), "{sent:?}");
            assert_eq!(w.engine.lost(Lost::DrainDeadline), 1);
            assert_eq!(w.state(&c), None);
        }
    }
}

#[test]
fn what_nobody_follows_is_cut_off_where_its_pod_is_no_more() {
    let mut p = with_deadline(OnDeadline::Wait);
    p.protocol = Protocol::None;
    let (mut w, mut c) = World::with(settings(), p).opened();
    w.answers(&mut c, b"a part");
    w.change(|s| drop(s.policies[0].backends.remove(c.pod)));
    w.stops(c.pod);
    w.listeners[c.pod] = Listener::Silent;
    assert!(World::to_client(&w.run_ms(6_900)).is_empty());
    let sent = w.run_ms(600);
    assert!(World::to_client(&sent)[0].is(RST_ACK), "{sent:?}");
    assert_eq!(w.state(&c), None);
}

#[test]
fn what_is_left_on_a_pod_that_is_no_more_ends_at_the_deadline_also_where_policy_waits() {
    for (removed, silent) in [(true, true), (true, false), (false, true)] {
        let mut w = World::with(settings(), with_deadline(OnDeadline::Wait));
        let mut c = w.idle(1);
        w.data(&mut c, GET);
        w.responds(&mut c, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
        w.ack(&mut c);
        w.change(|s| match removed {
            true => drop(s.policies[0].backends.remove(c.pod)),
            false => s.policies[0].backends[c.pod].draining = true,
        });
        if silent {
            w.stops(c.pod);
            w.listeners[c.pod] = Listener::Silent;
        }
        assert!(World::to_client(&w.run_ms(6_900)).is_empty());
        let sent = w.run_ms(600);
        let said = World::to_client(&sent);
        let ends = removed && silent;
        let resets = said.iter().filter(|s| s.segment.flags.has(Flags::RST)).count();
        assert_eq!(resets, usize::from(ends), "{removed} {silent}: {said:?}");
        let lost = Lost::ALL.iter().map(|l| w.engine.lost(*l)).sum::<u64>();
        assert_eq!((w.engine.lost(Lost::ResponseBegun), lost), (ends.into(), ends.into()));
        if !ends {
            w.assert_state(&c, "Response");
        }
    }
}

#[test]
fn thousands_of_idle_flows_leave_within_a_second_and_no_faster_than_survivors_accept() {
    const FLOWS: usize = 2_000;
    let mut s = settings();
    s.limits.flows = 4_096;
    s.limits.closing_legs = 4_096;
    s.ports = 40_000..=43_999;
    let mut p = drain_only(4);
    for b in &mut p.backends[1..4] {
        b.weight = 0;
    }
    let mut w = World::unprobed(s, p);
    (w.strict, w.careful) = (false, false);
    w.poll();
    let mut flows: Vec<Conn> = (0..FLOWS as u16).map(|n| w.idle(n)).collect();
    assert!(flows.iter().all(|c| c.pod == 0));
    w.change(|s| {
        for b in &mut s.policies[0].backends[1..4] {
            b.weight = 1;
        }
    });
    w.run_ms(100);
    drain(&mut w, 0);
    let by_numbers: BTreeMap<(u32, u32), usize> =
        flows.iter().enumerate().map(|(i, c)| ((c.seq, c.server), i)).collect();
    let (mut ms, mut moved) = (0, 0);
    while moved < FLOWS {
        ms += 1;
        assert!(ms < 900, "only {moved} moved in {ms} ms");
        let sent = w.run_ms(1);
        let mut per_pod = [0; 4];
        for s in sent.iter().filter(|s| s.is_adoption()) {
            let i = by_numbers[&(s.segment.seq.0, s.segment.ack.0)];
            take_leg(&mut flows[i], s);
            per_pod[flows[i].pod] += 1;
            let ack = w.pod_wire(&flows[i], Flags::ACK, &[]).build();
            w.inject(&ack);
            moved += 1;
        }
        // A window of a millisecond may meet two of the budget's.
        assert!(per_pod.iter().all(|n| *n <= 32), "{per_pod:?} in a millisecond");
    }
    assert_eq!(state(&w, 0).moved, FLOWS as u64);
    assert_eq!(w.count(Counter::MigrationsConfirmed), FLOWS as u64);
    assert_eq!(w.count(Counter::AdoptionRetries), 0);
    assert!(w.count(Counter::AdoptionsDelayed) > 0);
    w.engine.check_invariants();
}

#[test]
fn a_pod_that_dies_while_it_drains_needs_no_question() {
    for how in End::BOTH {
        let (mut w, mut c) = World::with(settings(), drain_only(2)).at_rest();
        drain(&mut w, c.pod);
        let sent = w.ends(&c, how);
        assert!(w.asked.is_empty());
        w.rescued(&mut c, &sent);
    }
}
