//! Engines of two workers tell each other what their requests say of pods, and choose by all of it.

use crate::common::{World, conn::*, policy, settings};
use baton_api::MigrationMode;
use baton_engine::{Measures as _, Settings, Share};

fn worker(worker: u32, pods: usize) -> World {
    let mut settings =
        Settings { ports: 40_000..=40_127, share: Share { worker, workers: 2 }, ..settings() };
    settings.limits.flows = 4_096;
    let mut stays = policy(pods);
    stays.migration.mode = MigrationMode::Never;
    World::with(settings, stays)
}

/// Carries all rows of one engine to the other.
fn carry(from: &World, to: &mut World) {
    for slot in 0..from.engine.slots() {
        if let Some(row) = from.engine.row(slot) {
            to.engine.take(to.now, 0, &row);
        }
    }
}

/// How many of so many new flows go to each pod.
fn spread(w: &mut World, from: u16, count: u16) -> [usize; 2] {
    let mut pods = [0; 2];
    for n in from..from + count {
        pods[w.open(n).pod] += 1;
    }
    pods
}

#[test]
fn requests_in_flight_of_another_worker_count() {
    let (mut a, mut b) = (worker(0, 2), worker(1, 2));
    a.run_ms(200);
    b.run_ms(200);
    // Both pods have answered both workers alike.
    for w in [&mut a, &mut b] {
        for n in 1..9 {
            let mut c = w.idle(n);
            w.stays(&mut c, GET);
            w.run_us(300);
            w.served(&mut c);
        }
    }
    let [first, second] = spread(&mut a, 100, 16);
    assert_eq!((first, second), (8, 8), "nothing is known of the other");
    // With the other worker, requests wait at the first pod.
    let mut flows: Vec<_> = (20..36).map(|n| b.open(n)).collect();
    let mut at_first: Vec<_> = flows.iter_mut().filter(|c| c.pod == 0).collect();
    assert_eq!(at_first.len(), 8);
    for c in &mut at_first {
        b.stays(c, GET);
    }
    b.run_us(300);
    carry(&b, &mut a);
    let [first, second] = spread(&mut a, 200, 16);
    assert_eq!((first, second), (0, 16), "they do not count");
    // Its own books are its own.
    let flows: u64 =
        a.engine.state(a.now).policies[0].backends.iter().map(|backend| backend.outstanding).sum();
    assert_eq!(flows, 0);
    a.engine.check_invariants();
}

#[test]
fn what_is_told_of_a_pod_that_is_not_served_is_left() {
    let (mut a, mut b) = (worker(0, 1), worker(1, 2));
    b.run_ms(200);
    let at_the_second = (1..).map(|n| b.open(n)).find(|c| c.pod == 1);
    let mut c = at_the_second.expect("one of them");
    b.stays(&mut c, GET);
    carry(&b, &mut a);
    // Nothing of it is known when it comes.
    a.change(|s| s.policies[0].backends = policy(2).backends);
    a.neighbours();
    let state = a.engine.state(a.now);
    let waits = state.policies[0].backends.iter().map(|b| b.wait);
    let waits: std::collections::BTreeSet<_> = waits.collect();
    assert_eq!(waits.len(), 1, "alike: {waits:?}");
}

#[test]
fn rows_that_make_no_sense_change_nothing() {
    let mut a = worker(0, 2);
    let before = a.engine.state(a.now);
    for row in [[0; baton_engine::ROW], [u64::MAX; baton_engine::ROW]] {
        for worker in [0, 1, 2, usize::MAX] {
            a.engine.take(a.now, worker, &row);
        }
    }
    assert_eq!(a.engine.state(a.now), before);
}
