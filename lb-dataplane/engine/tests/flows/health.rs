//! Which backends work: silence, refused connections, failures in a row, active checks, slow start,
//! panic.

use crate::common::{
    Conn, End, Listener, Sent, World, conn::*, endpoint, pod, policy, settings, wire::Wire,
};
use baton_api::{Algorithm, Health, Micros, MigrationMode, Policy};
use baton_engine::Counter;
use baton_packet::Flags;

fn health(w: &World, pod: usize) -> String {
    w.engine.state(w.now).policies[0].backends[pod].health.to_string()
}

fn big(p: Policy) -> World {
    let mut s = settings();
    s.limits.flows = 1_024;
    s.limits.kept_segments = 1_024;
    s.limits.guarded_flows = 1_024;
    s.ports = 40_000..=41_023;
    let mut w = World::unprobed(s, p);
    w.strict = false;
    w.poll();
    w
}

/// New flows per pod.
fn spread(w: &mut World, first: u16, flows: u16, pods: usize) -> Vec<usize> {
    let mut per_pod = vec![0; pods];
    for n in first..first + flows {
        let c = w.open(n);
        per_pod[c.pod] += 1;
        w.inject(&w.client_wire(&c, Flags::RST, &[]).build());
    }
    per_pod
}

fn refuse_syn(w: &mut World, c: &Conn) -> Vec<crate::common::Sent> {
    let mut rst = w.pod_wire(c, RST_ACK, &[]);
    (rst.seq, rst.ack) = (0, c.seq.wrapping_add(1));
    w.inject(&rst.build())
}

#[test]
fn a_pod_whose_kernel_refuses_a_connection_is_down_and_its_flows_may_stay() {
    let (mut w, mut served) = World::new(2).at_rest();
    let mut c = Conn::new(2);
    loop {
        w.syn(&mut c);
        if c.pod == served.pod {
            break;
        }
        // Each pod has as many flows as the other, sooner or later.
        w.synack(&mut c);
        c = Conn::new(c.client.port() - 30_000 + 1);
    }
    let dead = c.pod;
    w.stops(dead);
    let again = one(refuse_syn(&mut w, &c));
    take_leg(&mut c, &again);
    assert_ne!(c.pod, dead, "asked elsewhere");
    assert_eq!(health(&w, dead), "down: nothing listens on the port");
    // A process that closed its listener may still serve what it has; with its next request the
    // flow leaves.
    w.run_ms(40);
    w.assert_state(&served, "Idle");
    w.moves(&mut served, GET);
    assert_ne!(served.pod, dead);
    for n in 10..20 {
        assert_ne!(w.open(n).pod, dead);
    }
    // It is asked until it is back.
    w.starts(dead);
    w.run_ms(210);
    assert_eq!(health(&w, dead), "up");
    assert_eq!(w.count(Counter::BackendsBack), w.count(Counter::BackendsWithoutListener));
}

#[test]
fn a_silent_pod_loses_all_its_flows() {
    let mut w = World::of(2, |p| p.migration.mode = MigrationMode::Never);
    let mut flows: Vec<Conn> = (0..12).map(|n| w.idle(n)).collect();
    let mut fresh = w.open(50);
    let mut getting = w.idle(51);
    let mut posting = w.idle(52);
    let dead = flows[0].pod;
    for c in [&fresh, &getting, &posting] {
        flows.push(c.clone());
    }
    flows.retain(|c| c.pod == dead && ![50, 51, 52].contains(&(c.client.port() - 30_000)));
    let boundary = getting.seq;
    w.stays(&mut getting, GET);
    w.stays(&mut posting, POST);
    w.vanishes(dead);
    // Nothing is heard for longer than a pod's kernel takes to acknowledge, whatever its
    // application does.
    let busy = getting.pod == dead || posting.pod == dead;
    let sent = w.until_adoption(2_700);
    let sent = [sent, w.run_ms(5)].concat();
    assert!(World::to_client(&sent).is_empty());
    assert_eq!(health(&w, dead), "down: no answer");
    for c in &mut flows {
        w.rescued(c, &sent);
    }
    if fresh.pod == dead {
        w.rescued(&mut fresh, &sent);
    }
    if getting.pod == dead {
        let behind = w.adopted_from(&mut getting, &sent, boundary);
        assert_eq!(one(behind).data(), GET);
    }
    if posting.pod == dead {
        // Nobody knows what became of it; its answer may still come.
        w.assert_state(&posting, "Request");
    }
    assert!(busy || w.count(Counter::Stranded) > 0);
    assert!(w.count(Counter::LivenessProbesUnanswered) >= 1);
}

/// The next try of an adoption may be 1.4 s away, or there is none any more.
#[test]
fn a_pod_that_is_heard_again_is_asked_at_once_for_what_met_silence() {
    let (mut w, mut c) = World::new(2).at_rest();
    let before = c.clone();
    let wire = w.client_wire(&c, PSH_ACK, POST);
    let sent = w.inject(&wire.build());
    w.expect_adoption(&sent[0], &before);
    take_leg(&mut c, &sent[0]);
    c.seq = c.seq.wrapping_add(POST.len() as u32);
    w.vanishes(c.pod);
    w.run_ms(1_500);
    w.assert_state(&c, "Adopting");
    assert_eq!(health(&w, c.pod), "down: no answer");
    w.starts(c.pod);
    let back = w.count(Counter::BackendsBack);
    let mut sent = Vec::new();
    while w.count(Counter::BackendsBack) == back {
        sent = w.run_ms(1);
    }
    sent.extend(w.run_ms(1));
    let at = sent.iter().position(Sent::is_adoption).expect("asked again");
    w.expect_adoption(&sent[at], &before);
    assert!(sent[at..].iter().any(|s| s.data() == POST), "{sent:?}");
    w.responds(&mut c, OK);
    assert_eq!(w.count(Counter::FateReset), 0);
}

#[test]
fn with_a_request_outstanding_silence_shows_within_half_a_second() {
    let (mut w, mut c) = World::new(2).opened();
    let boundary = c.seq;
    w.stays(&mut c, GET);
    w.vanishes(c.pod);
    let sent = w.until_adoption(500);
    let behind = w.adopted_from(&mut c, &sent, boundary);
    assert_eq!(one(behind).data(), GET);
    w.responds(&mut c, OK);
}

#[test]
fn a_slow_application_under_a_kernel_that_answers_is_not_silent() {
    let (mut w, mut c) = World::new(2).opened();
    w.stays(&mut c, GET);
    let sent = w.run_ms(20_000);
    assert!(sent.is_empty(), "{sent:?}");
    assert_eq!(health(&w, c.pod), "up");
    assert!(w.asked.len() > 10, "it was asked");
    w.responds(&mut c, OK);
}

#[test]
fn a_pod_whose_interface_comes_back_is_used_again() {
    let (mut w, mut c) = World::new(2).at_rest();
    let old = c.clone();
    w.vanishes(old.pod);
    let sent = w.until_adoption(2_700);
    w.rescued(&mut c, &sent);
    for n in 10..16 {
        assert_ne!(w.open(n).pod, old.pod);
    }
    w.starts(old.pod);
    w.run_ms(250);
    assert_eq!(health(&w, old.pod), "up");
    // The socket that it still has is reset when it speaks, on a leg that is nobody's.
    let sent = w.inject(&w.pod_wire(&old, PSH_ACK, b"late").build());
    assert!(one(sent).is(Flags::RST));
    w.moves(&mut c, GET);
    assert_eq!(c.pod, old.pod);
}

#[test]
fn a_new_connection_to_a_silent_pod_is_asked_elsewhere() {
    let (mut w, mut c) = World::new(2).begun();
    let dead = c.pod;
    w.vanishes(dead);
    let sent = w.run_ms(2_700);
    let again = one(sent.into_iter().filter(|s| s.is(Flags::SYN)).collect());
    take_leg(&mut c, &again);
    assert_ne!(c.pod, dead);
    w.accepts(&mut c);
    w.exchange_anywhere(&mut c);
}

/// A policy that ejects after two failures. Chosen at random: who failed looks slow, too.
fn ejecting(pods: usize, percent: u8) -> Policy {
    let mut p = policy(pods);
    p.algorithm = Algorithm::Random;
    p.backends.truncate(pods);
    p.migration.mode = MigrationMode::Never;
    p.health = Health {
        failure_threshold: 2,
        base_ejection_time: Micros::from_secs(10),
        max_ejected_percent: percent,
        panic_percent: 0,
        ..Health::default()
    };
    p
}

/// Requests of which the pod acknowledges nothing for so long that their clients repeat them:
/// `times` failures. The first client alone would not count.
fn fail(w: &mut World, first: u16, pod: usize, times: usize) {
    repeat(w, first, pod, times + 1, |at| if at == 0 { "192.0.2.5" } else { "192.0.2.6" });
}

/// So many requests, each of which its client repeats after 200 ms, from these addresses.
fn repeat(w: &mut World, first: u16, pod: usize, count: usize, ip: impl Fn(usize) -> &'static str) {
    let (mut stuck, mut others) = (Vec::new(), Vec::new());
    for n in first.. {
        let mut c = Conn::new(n);
        c.client.set_ip(ip(stuck.len()).parse().expect("an address"));
        let c = w.open_as(c);
        if c.pod == pod {
            stuck.push(c);
        } else {
            others.push(c);
        }
        if stuck.len() == count {
            break;
        }
    }
    let mut again = Vec::new();
    for c in &mut stuck {
        again.push(w.client_wire(c, PSH_ACK, GET));
        w.stays(c, GET);
    }
    w.run_ms(200);
    for (c, again) in stuck.iter().zip(&again) {
        // However often, it is one request.
        for _ in 0..3 {
            w.forwarded_to_pod(c, again);
        }
    }
    for c in stuck.iter().chain(&others) {
        w.inject(&w.client_wire(c, Flags::RST, &[]).build());
    }
}

#[test]
fn copies_of_one_request_eject_nobody() {
    let (mut w, mut c) = big(ejecting(3, 34)).opened();
    let again = w.client_wire(&c, PSH_ACK, GET);
    w.stays(&mut c, GET);
    for _ in 0..50 {
        w.forwarded_to_pod(&c, &again);
    }
    w.run_ms(200);
    for _ in 0..50 {
        w.forwarded_to_pod(&c, &again);
    }
    assert_eq!(health(&w, c.pod), "up");
    assert_eq!(w.count(Counter::EjectionsCapped), 0);
}

#[test]
fn one_client_alone_ejects_nobody() {
    let mut w = big(ejecting(3, 34));
    repeat(&mut w, 1, 0, 20, |_| "192.0.2.5");
    assert_eq!(w.count(Counter::Ejections), 0);
    repeat(&mut w, 100, 0, 3, |_| "192.0.2.6");
    assert_eq!(w.count(Counter::Ejections), 0, "it accepted connections since");
    fail(&mut w, 200, 0, 2);
    assert_eq!(w.count(Counter::Ejections), 1);
}

#[test]
fn ejections_of_long_ago_are_forgotten() {
    let mut w = big(ejecting(3, 34));
    for n in 0..3 {
        fail(&mut w, 100 * n, 0, 2);
        let left_s = 10 * u64::from(n + 1);
        assert_eq!(health(&w, 0), format!("ejected: it failed, {left_s} s left"));
        w.run_ms(1_000 * left_s);
    }
    // One for each 10 s.
    w.run_ms(20_000);
    fail(&mut w, 400, 0, 2);
    assert_eq!(health(&w, 0), "ejected: it failed, 20 s left");
}

/// To find out takes a look at all policies.
#[test]
fn an_ejection_that_is_held_back_is_asked_for_once_a_second() {
    let mut w = big(ejecting(3, 0));
    fail(&mut w, 1, 0, 30);
    assert_eq!(w.count(Counter::EjectionsCapped), 1);
    w.run_ms(1_000);
    fail(&mut w, 200, 0, 30);
    assert_eq!(w.count(Counter::EjectionsCapped), 2);
}

#[test]
fn failures_in_a_row_eject_for_a_time_that_grows() {
    let mut w = big(ejecting(3, 34));
    fail(&mut w, 1, 0, 1);
    assert_eq!(health(&w, 0), "up");
    fail(&mut w, 30, 0, 2);
    assert_eq!(health(&w, 0), "ejected: it failed, 10 s left");
    assert_eq!(w.count(Counter::Ejections), 1);
    assert_eq!(spread(&mut w, 100, 60, 3)[0], 0);
    w.run_ms(10_000);
    assert_eq!(health(&w, 0), "up");
    assert!(spread(&mut w, 200, 60, 3)[0] > 0);
    fail(&mut w, 300, 0, 2);
    assert_eq!(health(&w, 0), "ejected: it failed, 20 s left");
}

/// Lost segments of a large request that the pod otherwise takes, as after a move to a smaller
/// window or on a bad line.
#[test]
fn repeated_pieces_of_a_request_that_is_acknowledged_eject_nobody() {
    let (mut w, mut c) = big(ejecting(3, 34)).opened();
    let first = w.client_wire(&c, PSH_ACK, &post_head(3_000));
    w.stays(&mut c, &post_head(3_000));
    let pieces: Vec<_> = (0..3)
        .map(|_| {
            let piece = w.client_wire(&c, PSH_ACK, &[7; 1_000]);
            w.forwarded_to_pod(&c, &piece);
            c.seq = c.seq.wrapping_add(1_000);
            piece
        })
        .collect();
    // The first one is missing: its repetition is one failure, those of the others are none.
    for piece in &pieces {
        w.forwarded_to_pod(&c, piece);
    }
    w.forwarded_to_pod(&c, &first);
    // It came, and what is behind it is repeated as often as it takes.
    let ack = w.pod_wire(&c, Flags::ACK, &[]);
    let behind = Wire { ack: first.seq.wrapping_add(post_head(3_000).len() as u32), ..ack };
    w.inject(&behind.build());
    for piece in pieces.iter().cycle().take(30) {
        w.forwarded_to_pod(&c, piece);
    }
    assert_eq!(w.count(Counter::Ejections), 0);
    assert_eq!(w.count(Counter::EjectionsCapped), 0);
    assert_eq!(health(&w, c.pod), "up");
}

#[test]
fn an_answer_in_between_forgives() {
    let mut w = big(ejecting(3, 34));
    for n in 0..5 {
        fail(&mut w, 20 * n, 0, 1);
        let mut c = w.open(500 + 1_000 * n);
        let mut next = 501 + 1_000 * n;
        while c.pod != 0 {
            c = w.open(next);
            next += 1;
        }
        w.exchange(&mut c);
        // No more flows than the others, or it is not chosen again.
        w.inject(&w.client_wire(&c, Flags::RST, &[]).build());
    }
    assert_eq!(w.count(Counter::Ejections), 0);
}

#[test]
fn no_more_than_the_caps_share_is_ejected() {
    let mut w = big(ejecting(3, 34));
    fail(&mut w, 1, 0, 2);
    fail(&mut w, 50, 1, 2);
    assert_eq!(health(&w, 1), "up");
    assert_eq!(w.count(Counter::Ejections), 1);
    assert!(w.count(Counter::EjectionsCapped) >= 1);
    let mut w = big(ejecting(3, 67));
    fail(&mut w, 1, 0, 2);
    fail(&mut w, 50, 1, 2);
    assert_eq!(w.count(Counter::Ejections), 2);
}

#[test]
fn an_active_check_decides_and_takes_its_word_back() {
    let mut w = World::new(3);
    let at = endpoint(pod(false, 1));
    w.engine.set_health(w.now, "web", at, Some(false));
    assert_eq!(health(&w, 1), "unhealthy: its active check fails");
    for n in 0..20 {
        assert_ne!(w.open(n).pod, 1);
    }
    for verdict in [Some(true), None] {
        w.engine.set_health(w.now, "web", at, Some(false));
        w.engine.set_health(w.now, "web", at, verdict);
        assert_eq!(health(&w, 1), "up");
    }
    // Somebody that nobody knows.
    w.engine.set_health(w.now, "web", endpoint(pod(false, 9)), Some(false));
}

/// A pod that takes the place of another in the tables has not failed that one's checks.
#[test]
fn a_new_pod_does_not_inherit_the_verdict_about_an_old_one() {
    let mut w = World::new(2);
    let old = endpoint(pod(false, 1));
    w.engine.set_health(w.now, "web", old, Some(false));
    assert_eq!(health(&w, 1), "unhealthy: its active check fails");
    w.change(|s| {
        let backend = &mut s.policies[0].backends[1];
        backend.name = "new".into();
        backend.endpoint = endpoint(pod(false, 7));
    });
    assert_eq!(health(&w, 1), "up");
    // The same one keeps its own.
    w.engine.set_health(w.now, "web", endpoint(pod(false, 7)), Some(false));
    w.change(|s| s.policies[0].backends.reverse());
    assert_eq!(health(&w, 0), "unhealthy: its active check fails");
}

#[test]
fn with_too_few_usable_backends_all_are_used() {
    let mut p = policy(4);
    p.migration.mode = MigrationMode::Never;
    p.health.panic_percent = 50;
    let mut w = big(p);
    let check = |w: &mut World, pods: &[usize]| {
        for i in pods {
            let at = endpoint(pod(false, *i));
            w.engine.set_health(w.now, "web", at, Some(false));
        }
    };
    check(&mut w, &[0, 1]);
    let panics = |w: &World| w.engine.state(w.now).policies[0].panic;
    assert!(!panics(&w));
    let flows = spread(&mut w, 0, 40, 4);
    assert_eq!((flows[0], flows[1]), (0, 0));
    check(&mut w, &[2]);
    assert!(panics(&w));
    let flows = spread(&mut w, 100, 120, 4);
    assert!(flows.iter().all(|f| *f > 10), "{flows:?}");
}

/// Pods that are not ready yet, or are on their way out, are to take none: how they are is no
/// matter.
#[test]
fn who_is_to_take_no_flows_counts_neither_as_usable_nor_as_failed() {
    let mut p = policy(6);
    p.migration.mode = MigrationMode::Never;
    p.health.panic_percent = 50;
    for (i, b) in p.backends.iter_mut().enumerate() {
        (b.weight, b.draining) = [(1, false), (1, false), (0, false), (1, true)][(i % 6).min(3)];
    }
    let mut w = big(p);
    let mut check = |pods: &[(usize, bool)]| {
        for (i, well) in pods {
            let at = endpoint(pod(false, *i));
            w.engine.set_health(w.now, "web", at, Some(*well));
        }
        w.engine.state(w.now).policies[0].panic
    };
    assert!(!check(&[(2, false), (3, false), (4, false), (5, false)]));
    assert!(!check(&[(0, false)]), "one of two is well");
    assert!(check(&[(1, false)]));
    let others = [(2, true), (3, true), (4, true), (5, true)];
    assert!(check(&others), "they take none for that");
}

#[test]
fn who_is_to_take_no_flows_makes_no_room_for_ejections() {
    let mut p = ejecting(5, 50);
    for b in &mut p.backends[2..] {
        b.draining = true;
    }
    let mut w = big(p);
    fail(&mut w, 1, 0, 2);
    assert_eq!(w.count(Counter::Ejections), 1);
    fail(&mut w, 100, 1, 2);
    assert_eq!(w.count(Counter::Ejections), 1, "one of two");
    assert_eq!(w.count(Counter::EjectionsCapped), 1);
}

#[test]
fn a_pod_that_came_up_takes_a_growing_share() {
    let mut p = policy(4);
    p.algorithm = Algorithm::WeightedRoundRobin;
    p.migration.mode = MigrationMode::Never;
    p.slow_start = Micros::from_secs(10);
    let late = p.backends.remove(3);
    p.backends.truncate(3);
    let mut w = big(p);
    assert_eq!(health(&w, 0), "up", "those of the start take their share at once");
    w.change(|s| s.policies[0].backends.push(late));
    assert_eq!(health(&w, 3), "up: slow start");
    let early = spread(&mut w, 0, 200, 4);
    w.run_ms(5_000);
    let half = spread(&mut w, 200, 200, 4);
    w.run_ms(5_100);
    let whole = spread(&mut w, 400, 200, 4);
    assert!(early[3] < half[3] && half[3] < whole[3], "{early:?} {half:?} {whole:?}");
    assert!(early[3] < 15, "{early:?}");
    assert!((45..=55).contains(&whole[3]), "{whole:?}");
    // One that was down begins anew.
    w.stops(3);
    w.run_ms(1_100);
    w.starts(3);
    w.run_ms(250);
    assert_eq!(health(&w, 3), "up: slow start");
}

#[test]
fn a_dead_pod_never_looks_idle() {
    let mut w = World::of(3, |p| p.migration.mode = MigrationMode::WhenBetter);
    let mut flows: Vec<Conn> = (0..9).map(|n| w.idle(n)).collect();
    let dead = flows[0].pod;
    let sent = w.dies(dead, End::Rst, &flows);
    for c in flows.iter_mut().filter(|c| c.pod == dead) {
        w.rescued(c, &sent);
    }
    // It has no flows and no outstanding requests now, and all others are slow.
    for c in &mut flows {
        w.stays(c, GET);
    }
    w.run_ms(200);
    for c in &mut flows {
        w.served(c);
    }
    for c in &mut flows {
        w.assert_serves(c);
        assert_ne!(c.pod, dead);
    }
    for n in 20..30 {
        assert_ne!(w.open(n).pod, dead);
    }
    w.listeners[dead] = Listener::Refuses;
}
