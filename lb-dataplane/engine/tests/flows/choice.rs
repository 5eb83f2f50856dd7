//! Which pod gets a flow, and when a flow moves because another pod is better.

use crate::common::{Conn, End, Sent, World, conn::*, endpoint, pod, policy, settings};
use baton_api::{Algorithm, Micros, MigrationMode, Policy};
use baton_engine::Counter;
use baton_packet::Reason;

fn when_better(pods: usize) -> Policy {
    let mut p = policy(pods);
    p.migration.mode = MigrationMode::WhenBetter;
    p.migration.ratio_percent = 200;
    p.migration.gain = Micros(500);
    p
}

pub(super) fn big() -> baton_engine::Settings {
    let mut s = settings();
    s.limits.flows = 4_096;
    s.ports = 40_000..=40_127;
    s
}

/// A request that its pod answers after `ms`.
fn slow_exchange(w: &mut World, c: &mut Conn, ms: u64) {
    w.stays(c, GET);
    w.run_ms(ms);
    w.served(c);
}

#[test]
fn a_flow_leaves_a_slow_pod_and_comes_to_rest_at_a_fast_one() {
    let (mut w, mut c) = World::with(settings(), when_better(2)).opened();
    let slow = c.pod;
    slow_exchange(&mut w, &mut c, 80);
    w.moves(&mut c, GET);
    assert_ne!(c.pod, slow);
    w.run_us(300);
    w.served(&mut c);
    for _ in 0..10 {
        w.stays(&mut c, GET);
        w.run_us(300);
        w.served(&mut c);
    }
    assert_eq!(w.count(Counter::MigrationsConfirmed), 1);
}

#[test]
fn a_pod_that_answers_nothing_looks_slow() {
    let (mut w, mut c) = World::with(settings(), when_better(2)).at_rest();
    // Other flows of the same pod wait and wait.
    let mut n = 10;
    loop {
        let mut other = w.open(n);
        n += 1;
        if other.pod == c.pod {
            w.stays(&mut other, GET);
            break;
        }
    }
    w.run_ms(100);
    let old = c.pod;
    w.moves(&mut c, GET);
    assert_ne!(c.pod, old);
}

#[test]
fn no_flow_moves_to_a_pod_that_is_not_adoptable() {
    let mut w = World::unprobed(settings(), when_better(2));
    w.adopters.fill(Some(Reason::AcceptQueueFull));
    w.poll();
    let mut c = w.open(1);
    for _ in 0..5 {
        slow_exchange(&mut w, &mut c, 80);
    }
    assert_eq!(w.count(Counter::Boundaries), 4);
    assert_eq!(w.count(Counter::MigrationsBegun), 0);
}

#[test]
fn a_small_gain_moves_nothing() {
    let mut p = when_better(2);
    p.migration.gain = Micros::from_millis(200);
    let (mut w, mut c) = World::with(settings(), p).opened();
    slow_exchange(&mut w, &mut c, 80);
    slow_exchange(&mut w, &mut c, 80);
    assert_eq!(w.count(Counter::MigrationsBegun), 0);
}

#[test]
fn without_a_reason_flows_stay_with_never_and_drain_only() {
    for mode in [MigrationMode::Never, MigrationMode::DrainOnly] {
        let mut p = when_better(2);
        p.migration.mode = mode;
        let (mut w, mut c) = World::with(settings(), p).opened();
        for _ in 0..3 {
            slow_exchange(&mut w, &mut c, 80);
        }
        assert_eq!(w.count(Counter::MigrationsBegun), 0);
    }
}

#[test]
fn a_draining_pod_loses_its_flows_at_their_next_request_and_gets_no_new_ones() {
    let mut w = World::with(settings(), when_better(3));
    let mut flows: Vec<Conn> = (0..12).map(|n| w.idle(n)).collect();
    let drained = flows[0].pod;
    w.change(|s| {
        for b in &mut s.policies[0].backends {
            b.draining = b.name == format!("pod-{drained}");
        }
    });
    w.run_ms(10);
    let mut moved = 0;
    for c in &mut flows {
        if c.pod == drained {
            w.moves(c, GET);
            assert_ne!(c.pod, drained);
            w.served(c);
            moved += 1;
        } else {
            w.exchange(c);
        }
    }
    assert!(moved > 0);
    assert_eq!(w.count(Counter::MigrationsConfirmed), moved);
    for n in 20..40 {
        assert_ne!(w.open(n).pod, drained);
    }
}

/// New pods that do not listen yet beside old ones that terminate: those still serve. One of them
/// alone would have all new flows of ten.
#[test]
fn where_nobody_is_to_take_new_flows_all_who_work_do() {
    let mut p = policy(6);
    p.migration.mode = MigrationMode::Never;
    p.health.panic_percent = 0;
    let mut w = World::with(big(), p);
    w.strict = false;
    let mut ports = 0..;
    let mut takers = |w: &mut World| {
        let mut pods: Vec<usize> = (&mut ports).take(30).map(|n| w.open(n).pod).collect();
        pods.sort_unstable();
        pods.dedup();
        pods
    };
    let fails = |w: &mut World, pods: &[usize]| {
        for i in pods {
            let at = endpoint(pod(false, *i));
            w.engine.set_health(w.now, "web", at, Some(false));
        }
    };
    fails(&mut w, &[0, 1, 2]);
    assert_eq!(takers(&mut w), [3, 4, 5]);
    w.change(|s| {
        for backend in &mut s.policies[0].backends[3..] {
            backend.draining = true;
        }
    });
    assert_eq!(takers(&mut w), [3, 4, 5], "they drain, and work");
    fails(&mut w, &[3, 4, 5]);
    assert_eq!(takers(&mut w), [0, 1, 2], "nobody works");
    w.change(|s| {
        for backend in &mut s.policies[0].backends {
            backend.draining = true;
        }
    });
    assert_eq!(takers(&mut w), [0, 1, 2, 3, 4, 5], "and all drain");
}

#[test]
fn a_moved_flow_rests_for_its_cooldown() {
    let mut p = when_better(2);
    p.migration.cooldown = Micros::from_millis(400);
    let (mut w, mut c) = World::with(settings(), p).opened();
    slow_exchange(&mut w, &mut c, 20);
    w.moves(&mut c, GET);
    w.run_ms(25);
    w.served(&mut c);
    // The new pod is slower still, but the flow has just moved, and it is no distress.
    for _ in 0..3 {
        slow_exchange(&mut w, &mut c, 25);
    }
    assert_eq!(w.count(Counter::MigrationsConfirmed), 1);
    w.run_ms(350);
    w.moves(&mut c, GET);
}

#[test]
fn moves_per_second_are_limited() {
    let mut w = World::of(2, |p| p.migration.per_second = 3);
    let mut flows: Vec<Conn> = (0..8).map(|n| w.idle(n)).collect();
    let second = 1_000_000;
    w.run_us(second - w.now.0 % second);
    let stayed = w.count(Counter::StayedRate);
    for c in &mut flows[..3] {
        w.moved_exchange(c);
    }
    for c in &mut flows[3..] {
        w.exchange(c);
    }
    assert_eq!(w.count(Counter::StayedRate), stayed + 5);
    w.run_us(second);
    w.moves(&mut flows[3], GET);
}

/// Two pods' flows at rest, so many of each.
fn flows_of_two(w: &mut World, count: usize) -> [Vec<Conn>; 2] {
    let mut found = [Vec::new(), Vec::new()];
    for n in 0.. {
        let c = w.idle(n);
        found[c.pod].push(c);
        if found.iter().all(|f| f.len() >= count) {
            break;
        }
    }
    found
}

#[test]
fn moves_per_second_onto_one_pod_are_limited() {
    let mut w = World::of(2, |p| p.migration.per_backend_per_second = 2);
    let [mut here, mut there] = flows_of_two(&mut w, 4);
    here.truncate(4);
    there.truncate(3);
    let second = 1_000_000;
    w.run_us(second - w.now.0 % second);
    let stayed = w.count(Counter::StayedBackend);
    for c in here[..2].iter_mut().chain(&mut there[..2]) {
        w.moved_exchange(c);
    }
    // A new snapshot does not give more.
    w.change(|s| s.policies[0].migration.gain = Micros(1));
    for c in here[2..].iter_mut().chain(&mut there[2..]) {
        w.exchange(c);
    }
    assert_eq!(w.count(Counter::StayedBackend), stayed + 3);
    assert_eq!(w.count(Counter::StayedRate), 0);
    w.run_us(second);
    for c in &mut here[2..] {
        w.moves(c, GET);
    }
}

#[test]
fn what_a_pod_refuses_by_its_rate_is_not_taken_from_the_policys() {
    let mut p = policy(2);
    p.migration.per_second = 2;
    p.migration.per_backend_per_second = 1;
    let mut w = World::with(settings(), p);
    let [mut here, mut there] = flows_of_two(&mut w, 2);
    w.run_us(1_000_000 - w.now.0 % 1_000_000);
    w.moves(&mut here[0], GET);
    w.exchange(&mut here[1]);
    assert_eq!(w.count(Counter::StayedBackend), 1);
    w.moves(&mut there[0], GET);
    w.exchange(&mut there[1]);
    assert_eq!(w.count(Counter::StayedRate), 1);
}

#[test]
fn moves_of_one_flow_are_limited() {
    let (mut w, mut c) = World::of(3, |p| p.migration.per_flow = 2).at_rest();
    for _ in 0..2 {
        w.moved_exchange(&mut c);
    }
    w.exchange(&mut c);
    assert_eq!(w.count(Counter::StayedFlow), 1);
    // A drain does not move it either, at rest or not, and says so.
    w.engine.drain(w.now, None, &format!("pod-{}", c.pod), true);
    assert!(!w.run_ms(500).iter().any(Sent::is_adoption));
    w.exchange(&mut c);
    assert_eq!(w.count(Counter::StayedFlow), 2);
    let state = w.engine.state(w.now);
    let drain = state.policies[0].backends[c.pod].drain.clone();
    let waiting = drain.expect("it drains").waiting;
    let why = "its end: migration.perFlow moves made".to_owned();
    assert_eq!(waiting, [(why, 1)].into());
    // Its pod's death does.
    let sent = w.dies(c.pod, End::Fin, &[c.clone()]);
    w.rescued(&mut c, &sent);
    w.exchange(&mut c);
    assert_eq!(w.count(Counter::Rescues), 1);
}

#[test]
fn the_rate_is_not_spent_on_moves_that_cannot_happen() {
    let mut w = World::of(2, |p| p.migration.per_second = 1);
    let mut flows: Vec<Conn> = (0..2).map(|n| w.idle(n)).collect();
    w.out.free = 0;
    w.exchange(&mut flows[0]);
    assert_eq!(w.count(Counter::StayedNoFrame), 1);
    w.out.free = usize::MAX;
    w.moves(&mut flows[1], GET);
}

#[test]
fn least_outstanding_spreads_flows_and_avoids_the_busy_pod() {
    let mut w = World::with(big(), when_better(3));
    // Pod of the first flow is busy with it.
    let mut busy = w.open(0);
    w.stays(&mut busy, GET);
    w.run_ms(50);
    let mut flows = [0; 3];
    for n in 1..61 {
        flows[w.open(n).pod] += 1;
    }
    // Two random pods of three: the busy one wins only against itself, which never happens.
    assert_eq!(flows[busy.pod], 0, "{flows:?}");
    let others: Vec<_> = (0..3).filter(|p| *p != busy.pod).map(|p| flows[p]).collect();
    assert!(others.iter().all(|f| (25..=35).contains(f)), "{flows:?}");
}

#[test]
fn maglev_moves_few_clients_when_a_pod_leaves() {
    let mut p = policy(5);
    p.algorithm = Algorithm::Maglev;
    let mut w = World::with(big(), p.clone());
    let before: Vec<usize> = (0..200).map(|n| w.open(n).pod).collect();
    let gone = 2;
    p.backends.retain(|b| !b.name.starts_with("pod-2"));
    let mut w = World::with(big(), p);
    let after: Vec<usize> = (0..200).map(|n| w.open(n).pod).collect();
    let moved = before.iter().zip(&after).filter(|(b, a)| **b != gone && b != a).count();
    assert!(after.iter().all(|p| *p != gone));
    assert!(moved <= 10, "{moved} of 200 moved without need");
}

#[test]
fn always_goes_round_all_pods() {
    let (mut w, mut c) = World::new(4).at_rest();
    let mut seen = vec![c.pod];
    for _ in 0..3 {
        w.moves(&mut c, GET);
        seen.push(c.pod);
        w.served(&mut c);
    }
    assert!(seen.windows(2).all(|p| p[0] != p[1]), "{seen:?}");
}

#[test]
fn what_moves_gained_and_cost_is_told() {
    let (mut w, mut c) = World::with(settings(), when_better(2)).opened();
    slow_exchange(&mut w, &mut c, 80);
    w.moves(&mut c, GET);
    w.run_us(300);
    w.served(&mut c);
    let state = w.engine.state(w.now);
    let policy = state.policies[0].placement.expect("told");
    // Less than 80 ms: what was known before, nothing, counts as an answer.
    for gain in [policy.expected, policy.won] {
        assert!((50_000..60_000).contains(&gain.0), "{policy:?}");
    }
    assert_eq!((policy.lost.0, policy.distressed_total), (0, 0));
    let here = state.policies[0].backends[c.pod].placement.clone();
    let here = here.expect("told");
    assert_eq!(here.standing, "fit");
    assert!(here.mean_wait.0 <= 300 && here.move_cost.0 >= 20, "{here:?}");
}
