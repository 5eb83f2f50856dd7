//! What only metrics show: latencies, pins at this moment, resets by reason, where flows began.

use crate::common::{Conn, End, World, conn::*, policy, settings};
use baton_api::{BackendFailure, Micros, MigrationMode, OnDeadline, Protocol};
use baton_engine::{Counter, Latency, Lost, PolicyFigures};
use baton_packet::{Flags, Reason};

fn figures(w: &World) -> PolicyFigures {
    w.engine.figures().remove(0)
}

/// Resets of clients by reason, only reasons that happened.
fn resets(w: &World) -> Vec<(&'static str, u64)> {
    let all = figures(w).resets.into_iter();
    all.filter(|(_, count)| *count > 0).collect()
}

/// The bound below which the only one lies.
fn bucket(latency: &Latency) -> u64 {
    assert_eq!(latency.count(), 1);
    let mut buckets = latency.buckets();
    let found = buckets.find(|(_, count)| *count == 1);
    found.expect("a bucket").0
}

fn begun(w: &World, pod: usize) -> u64 {
    let name = format!("pod-{pod}");
    let backends = figures(w).backends.into_iter();
    let mut of = backends.filter(|b| b.name == name);
    of.next().expect("a backend").flows_begun
}

#[test]
fn a_move_takes_from_the_adoption_to_its_confirmation() {
    let (mut w, mut c) = World::new(2).at_rest();
    w.moves(&mut c, GET);
    w.run_us(700);
    assert_eq!(figures(&w).moves.count(), 0, "not confirmed yet");
    w.pod_ack(&c);
    w.run_ms(9);
    w.responds(&mut c, OK);
    let moves = figures(&w).moves;
    assert_eq!((bucket(&moves), moves.sum_us()), (1_024, 700));
}

#[test]
fn a_move_that_is_asked_twice_takes_from_the_first_time_and_one_that_is_taken_back_is_none() {
    let (mut w, mut c) = World::new(2).at_rest();
    w.moves(&mut c, GET);
    assert_eq!(w.run_ms(60).len(), 2, "adoption and request again");
    w.served(&mut c);
    assert_eq!(figures(&w).moves.sum_us(), 60_000);

    let adoption = w.moves(&mut c, GET);
    let refusal = crate::common::answer(&adoption, Reason::NoListener, 0);
    w.inject(&refusal);
    assert_eq!(w.count(Counter::Rollbacks), 1);
    assert_eq!(figures(&w).moves.count(), 1);
}

/// A flow that leaves without a request, long after its last one.
#[test]
fn a_move_without_a_request_is_measured_from_its_own_start() {
    let (mut w, mut c) = World::of(2, |p| p.drain.quiet = Micros(50_000)).at_rest();
    w.run_ms(1_000);
    let pod = c.pod;
    w.change(|s| s.policies[0].backends[pod].draining = true);
    let sent = w.run_ms(5);
    assert!(sent[0].is_adoption(), "{sent:?}");
    take_leg(&mut c, &sent[0]);
    let before = w.now.0;
    w.run_us(400);
    let ack = w.pod_wire(&c, Flags::ACK, &[]).build();
    w.inject(&ack);
    w.assert_state(&c, "Idle");
    let moves = figures(&w).moves;
    let took = moves.sum_us();
    assert_eq!(moves.count(), 1);
    assert!((400..=5_400).contains(&took), "{took} from {before}");

    // The next one is asked twice: from the first time.
    let pod = c.pod;
    w.change(|s| {
        for (at, backend) in s.policies[0].backends.iter_mut().enumerate() {
            backend.draining = at == pod;
        }
    });
    let sent = w.until_adoption(200);
    w.adopted(&mut c, &sent);
    let again = w.run_ms(60);
    assert!(again[0].is_adoption(), "{again:?}");
    w.confirms(&c);
    let took = figures(&w).moves.sum_us() - took;
    assert!((60_000..=61_000).contains(&took), "{took}");
}

#[test]
fn as_many_moves_are_measured_as_are_counted_whatever_they_are_for() {
    let (mut w, mut c) = World::new(3).at_rest();
    w.moved_exchange(&mut c);
    // And one that saves the flow.
    let frame = w.pod_wire(&c, Flags::RST | Flags::ACK, &[]).build();
    let dead = c.pod;
    w.listeners[dead] = crate::common::Listener::Refuses;
    w.inject(&frame);
    let sent = w.run_ms(20);
    w.rescued(&mut c, &sent);
    assert_eq!(w.count(Counter::Rescues), 1);
    let state = &w.engine.state(w.now).policies[0];
    assert_eq!(state.migrations_total, 2);
    assert_eq!(figures(&w).moves.count(), 2);
}

#[test]
fn first_bytes_are_measured_where_they_come_from() {
    let (mut w, mut c) = World::new(2).at_rest();
    let first = c.pod;
    w.moves(&mut c, GET);
    w.run_us(3_000);
    w.responds(&mut c, OK);
    let backends = figures(&w).backends;
    let of = |pod: usize| &backends[pod].first_byte;
    assert_eq!((of(first).count(), of(first).sum_us()), (1, 0));
    assert_eq!((bucket(of(c.pod)), of(c.pod).sum_us()), (4_096, 3_000));
    let requests: u64 = w.engine.state(w.now).policies[0].backends[c.pod].requests_total;
    assert_eq!(requests, 1);
}

#[test]
fn flows_begin_at_the_backend_that_accepted_them_and_nowhere_else() {
    let (mut w, mut c) = World::new(2).begun();
    assert_eq!(begun(&w, 0) + begun(&w, 1), 0, "not accepted yet");
    // Refused there, accepted by the other one.
    let refused = c.pod;
    w.listeners[refused] = crate::common::Listener::Refuses;
    let mut rst = w.synack_wire(&c);
    rst.flags = RST_ACK;
    rst.seq = 0;
    let sent = one(w.inject(&rst.build()));
    take_leg(&mut c, &sent);
    assert_ne!(c.pod, refused);
    w.accepts(&mut c);
    w.exchange(&mut c);
    assert_eq!((begun(&w, refused), begun(&w, c.pod)), (0, 1));
    assert_eq!(resets(&w), []);
}

#[test]
fn pins_are_there_as_long_as_their_flows() {
    let (mut w, mut tls) = World::new(2).opened();
    w.stays(&mut tls, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03");
    let mut small = Conn::new(2);
    small.options.mss = Some(500);
    let small = w.open_as(small);
    let mut first = w.open(3);
    w.responds(&mut first, b"hello");
    let mut pinned = figures(&w).pinned;
    pinned.sort_unstable();
    assert_eq!(pinned, [("server_first", 1), ("small_mss", 1), ("tls", 1)]);
    // The counts of a changed policy go on.
    w.change(|s| s.policies[0].migration.per_second = 7);
    assert_eq!(figures(&w).pinned.len(), 3);
    for c in [&tls, &small, &first] {
        w.inject(&w.client_wire(c, Flags::RST, &[]).build());
    }
    assert_eq!(figures(&w).pinned, []);
    let total: u64 = w.engine.state(w.now).policies[0].pins_total.values().sum();
    assert_eq!(total, 3, "since start");
}

#[test]
fn a_segment_of_no_flow_is_reset_and_counted() {
    let mut w = World::new(1);
    let c = Conn::new(1);
    let sent = one(w.inject(&w.client_wire(&c, PSH_ACK, GET).build()));
    assert!(sent.segment.flags.has(Flags::RST));
    assert_eq!(resets(&w), [("no_flow", 1)]);
    // A reset gets no reset.
    assert!(w.inject(&w.client_wire(&c, Flags::RST, &[]).build()).is_empty());
    assert_eq!(resets(&w), [("no_flow", 1)]);
}

#[test]
fn a_connection_that_no_backend_takes_is_refused() {
    let (mut w, c) = World::new(1).begun();
    let mut rst = w.synack_wire(&c);
    rst.flags = RST_ACK;
    rst.seq = 0;
    let sent = one(w.inject(&rst.build()));
    assert!(sent.segment.flags.has(Flags::RST));
    assert_eq!(resets(&w), [("refused", 1)]);
}

#[test]
fn a_living_backends_reset_is_its_own_and_a_dead_ones_a_loss() {
    let (mut w, c) = World::of(1, |p| p.on_backend_failure = BackendFailure::Reset).at_rest();
    w.inject(&w.pod_wire(&c, End::Rst.flags(), &[]).build());
    assert_eq!(w.state(&c), None);
    assert_eq!(resets(&w), [("backend", 1)]);

    let (mut w, c) = World::new(1).at_rest();
    w.listeners[0] = crate::common::Listener::Refuses;
    w.adopters[0] = Some(Reason::NoListener);
    w.inject(&w.pod_wire(&c, End::Rst.flags(), &[]).build());
    w.run_ms(12_000);
    assert_eq!(w.state(&c), None);
    assert_eq!(w.engine.lost(Lost::NoBackend), 1);
    assert_eq!(resets(&w), [("lost", 1)]);
}

/// Where flows are rescued its reset is held until it is known that somebody listens.
#[test]
fn a_reset_that_was_held_and_stands_is_the_backends_own() {
    let (mut w, c) = World::new(2).at_rest();
    assert!(w.ends_listening(&c, End::Rst).is_empty(), "held");
    let rst = one(w.run_ms(5));
    assert!(rst.segment.flags.has(Flags::RST));
    assert_eq!(resets(&w), [("backend", 1)]);
}

#[test]
fn a_client_that_goes_on_behind_a_drains_deadline_is_reset_as_closed() {
    let mut p = policy(1);
    p.migration.mode = MigrationMode::DrainOnly;
    p.drain.deadline = Micros::from_secs(2);
    p.drain.on_deadline = OnDeadline::Close;
    let (mut w, mut c) = World::with(settings(), p).at_rest();
    w.change(|s| s.policies[0].backends[0].draining = true);
    w.run_ms(2_100);
    w.assert_state(&c, "FinSentToClient");
    assert_eq!(resets(&w), []);
    w.data(&mut c, GET);
    assert_eq!(w.state(&c), None);
    assert_eq!(resets(&w), [("closed", 1)]);
}

#[test]
fn an_idle_flow_ends_by_a_timeout_of_the_policy() {
    let mut p = policy(1);
    p.protocol = Protocol::None;
    p.timeouts.idle = Micros(2_000_000);
    let (mut w, c) = World::with(settings(), p).at_rest();
    w.run_ms(2_500);
    assert_eq!(w.state(&c), None);
    assert_eq!(resets(&w), [("timeout", 1)]);
}
