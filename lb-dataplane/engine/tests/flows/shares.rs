//! Which part of the new flows each pod gets: by weight, in slow start, beside pods that take none.

use super::choice::big;
use crate::common::{Dest, World, conn::*, policy};
use baton_api::{Algorithm, Micros, MigrationMode, Policy};
use baton_packet::Flags;

/// A world with ports for thousands of flows at each pod.
fn roomy(p: Policy) -> World {
    let mut s = big();
    s.ports = 40_000..=44_000;
    let mut w = World::unprobed(s, p);
    (w.strict, w.careful) = (false, false);
    w.poll();
    w
}

/// So many flows one after the other; how many of them each pod got. `lasting`: they stay open.
fn spread(w: &mut World, pods: usize, flows: u16, lasting: bool) -> Vec<u32> {
    let mut got = vec![0; pods];
    for n in 0..flows {
        let c = w.open(n);
        got[c.pod] += 1;
        if !lasting {
            w.inject(&w.client_wire(&c, Flags::RST, &[]).build());
        }
    }
    got
}

/// Whether flows last or not: of 520, 400 are the heavy one's.
#[test]
fn least_outstanding_gives_shares_by_weight() {
    for lasting in [true, false] {
        let mut p = policy(4);
        p.migration.mode = MigrationMode::Never;
        for (i, b) in p.backends.iter_mut().enumerate() {
            b.weight = [10, 1, 1, 1][i % 4];
        }
        let mut w = roomy(p);
        let mut flows = [0; 4];
        for n in 0..520 {
            let c = w.open(n);
            flows[c.pod] += 1;
            if !lasting {
                w.inject(&w.client_wire(&c, Flags::RST, &[]).build());
            }
        }
        assert!((360..=440).contains(&flows[0]), "{flows:?}");
    }
}

#[test]
fn weighted_round_robin_gives_exact_shares() {
    let mut p = policy(3);
    p.algorithm = Algorithm::WeightedRoundRobin;
    for (i, b) in p.backends.iter_mut().enumerate() {
        b.weight = [5, 1, 0][i % 3];
    }
    let mut w = World::with(big(), p);
    let mut flows = [0; 3];
    for n in 0..60 {
        flows[w.open(n).pod] += 1;
    }
    assert_eq!(flows, [50, 10, 0]);
}

#[test]
fn random_gives_shares_by_weight_and_leaves_out_who_is_not_usable() {
    let mut p = policy(4);
    p.algorithm = Algorithm::Random;
    for (i, b) in p.backends.iter_mut().enumerate() {
        (b.weight, b.draining) = ([3, 1, 0, 5][i % 4], i % 4 == 3);
    }
    let mut w = roomy(p);
    let mut flows = [0; 4];
    for n in 0..2_000 {
        flows[w.open(n).pod] += 1;
    }
    assert_eq!((flows[2], flows[3]), (0, 0));
    // 1,500 and 500 are expected, with a deviation of 19: five of them.
    assert!((1_400..=1_600).contains(&flows[0]), "{flows:?}");
}

#[test]
fn random_gives_a_pod_in_slow_start_a_part_of_its_share() {
    let mut p = policy(2);
    p.algorithm = Algorithm::Random;
    p.slow_start = Micros::from_secs(10);
    let late = p.backends.remove(1);
    let mut w = roomy(p);
    w.change(|s| s.policies[0].backends.push(late));
    let mut flows = [0; 2];
    for n in 0..1_000 {
        flows[w.open(n).pod] += 1;
    }
    // A tenth of its weight: 92 of 1,000, with a deviation of 9.
    assert!((45..=140).contains(&flows[1]), "{flows:?}");
}

/// As in a rollout, whose old pods stand side by side.
#[test]
fn who_stands_behind_pods_that_leave_gets_no_more_than_others() {
    let mut p = policy(8);
    p.migration.mode = MigrationMode::Never;
    for b in &mut p.backends[2..6] {
        b.draining = true;
    }
    let flows = spread(&mut roomy(p), 8, 1_200, false);
    // 300 are expected, with a deviation of 15.
    let others = flows[..2].iter().chain(&flows[6..]);
    assert!(others.clone().all(|f| (225..=375).contains(f)), "{flows:?}");
    assert_eq!(others.sum::<u32>(), 1_200);
}

#[test]
fn least_outstanding_gives_a_pod_in_slow_start_a_part_of_its_share() {
    for lasting in [true, false] {
        let mut p = policy(2);
        p.migration.mode = MigrationMode::Never;
        p.slow_start = Micros::from_secs(10);
        let late = p.backends.remove(1);
        let mut w = roomy(p);
        w.change(|s| s.policies[0].backends.push(late));
        let flows = spread(&mut w, 2, 1_000, lasting);
        // A tenth of its weight: 92 of 1,000, with a deviation of 9.
        assert!((45..=140).contains(&flows[1]), "{flows:?}");
    }
}

/// Requests that nobody answers: nine in ten are the heavy one's.
#[test]
fn least_requests_counts_them_by_weight_and_slow_start() {
    for slow_start in [false, true] {
        let mut p = policy(2);
        p.migration.mode = MigrationMode::LeastRequests;
        let late = p.backends.remove(1);
        if slow_start {
            p.slow_start = Micros::from_secs(10);
        } else {
            p.backends[0].weight = 9;
        }
        let mut w = roomy(p);
        w.change(|s| s.policies[0].backends.push(late));
        w.run_ms(10);
        let mut all: Vec<_> = (0..40).map(|n| w.idle(n)).collect();
        let mut got = [0; 2];
        for c in &mut all {
            let sent = w.data(c, GET);
            let Some(Dest::Pod(pod)) = sent.last().map(|sent| sent.to) else {
                panic!("{sent:?}");
            };
            got[pod] += 1;
        }
        assert!((2..=5).contains(&got[1]), "{got:?}");
    }
}
