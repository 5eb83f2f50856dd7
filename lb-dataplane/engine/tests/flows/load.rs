//! A policy that goes by what pods' kernels say of their load, and one that does not.

use crate::common::{World, conn::*, policy, settings};
use baton_api::{LoadSignal, MigrationMode};
use baton_engine::{Counter, Settings};
use baton_packet::{LoadReport, Pressure, StallTotal};
use std::num::NonZeroU16;

const ROOM: NonZeroU16 = NonZeroU16::new(129).unwrap();

fn calm() -> LoadReport {
    LoadReport {
        queue: 0,
        room: ROOM,
        drops: 0,
        throttled_now: false,
        throttled: Some(StallTotal::default()),
        pressure: Some(Pressure::default()),
    }
}

fn roomy() -> Settings {
    let mut settings = Settings { ports: 40_000..=40_127, ..settings() };
    settings.limits.flows = 4_096;
    settings.limits.backends = 64;
    settings
}

/// Pods that say that they are calm.
fn world(load: LoadSignal, pods: usize, mode: MigrationMode) -> World {
    let mut p = policy(pods);
    (p.load, p.migration.mode) = (load, mode);
    let mut w = World::with(roomy(), p);
    w.loads.fill(Some(calm()));
    w
}

/// How many of so many new flows the second pod gets.
fn at_second(w: &mut World, from: u16, count: u16) -> usize {
    (from..from + count).filter(|n| w.open(*n).pod == 1).count()
}

/// What the second pod's kernel may say while nothing else shows it.
fn troubles() -> [(&'static str, LoadReport); 4] {
    let told = StallTotal::of_ns(2_000_000_000);
    let none = StallTotal::default();
    [
        ("waits for its next period", LoadReport { throttled_now: true, ..calm() }),
        ("was throttled", LoadReport { throttled: Some(told), ..calm() }),
        (
            "CPU or memory pressure",
            LoadReport { pressure: Some(Pressure { cpu: none, memory: told }), ..calm() },
        ),
        ("a full accept queue", LoadReport { queue: 129, ..calm() }),
    ]
}

#[test]
fn a_pod_that_only_its_kernel_tells_on_gets_no_new_flows() {
    for (what, trouble) in troubles() {
        for (load, expected) in
            [(LoadSignal::Latency, 8..=8), (LoadSignal::LatencyAndPressure, 0..=0)]
        {
            let mut w = world(load, 2, MigrationMode::Never);
            // One flow: the policy's pods are asked.
            let (_first, _second) = (w.idle(1), w.idle(2));
            w.run_ms(500);
            assert_eq!(at_second(&mut w, 10, 16), 8, "{what}: calm");
            w.loads[1] = Some(trouble);
            w.run_ms(50);
            let more = at_second(&mut w, 30, 16);
            assert!(expected.contains(&more), "{what}: {more} with {load:?}");
        }
    }
}

#[test]
fn a_queue_counts_as_requests_that_wait() {
    let mut w = world(LoadSignal::LatencyAndPressure, 2, MigrationMode::Never);
    let (_first, _second) = (w.idle(1), w.idle(2));
    w.loads[1] = Some(LoadReport { queue: 60, ..calm() });
    w.run_ms(500);
    assert_eq!(at_second(&mut w, 10, 16), 0);
    w.loads[1] = Some(calm());
    w.run_ms(50);
    assert!(at_second(&mut w, 30, 32) >= 16, "it catches up");
}

/// With `WhenBetter` a flow does not wait for the request that shows it.
#[test]
fn flows_leave_a_pod_under_pressure_with_their_next_request() {
    for load in [LoadSignal::Latency, LoadSignal::LatencyAndPressure] {
        let mut w = world(load, 2, MigrationMode::WhenBetter);
        let mut flows: Vec<_> = (1..9).map(|n| w.open(n)).collect();
        for _ in 0..20 {
            for c in &mut flows {
                w.stays(c, GET);
                w.run_us(200);
                w.served(c);
            }
            w.run_ms(50);
        }
        assert_eq!(w.count(Counter::MigrationsBegun), 0);
        w.loads[1] = Some(troubles()[1].1);
        w.run_ms(50);
        for c in &mut flows {
            let (old, adoptions) = (c.pod, w.count(Counter::MigrationsBegun));
            w.exchange_anywhere(c);
            w.run_ms(5);
            let left = w.count(Counter::MigrationsBegun) > adoptions;
            assert!(!left || old == 1, "nobody leaves the calm one");
        }
        let left = w.count(Counter::MigrationsBegun);
        assert_eq!(left > 0, load == LoadSignal::LatencyAndPressure, "{left}");
    }
}

/// How many probes leave in so many seconds.
fn probes(w: &mut World, seconds: u64) -> u64 {
    let before = w.count(Counter::ProbesSent);
    w.run_ms(seconds * 1_000);
    w.count(Counter::ProbesSent) - before
}

#[test]
fn pods_are_asked_often_only_where_a_policy_with_flows_needs_it() {
    let (mut w, _flow) = world(LoadSignal::Latency, 2, MigrationMode::Never).at_rest();
    w.run_ms(500);
    // Two pods of each family, once a second each.
    assert_eq!(probes(&mut w, 4), 16);
    w.change(|s| s.policies[0].load = LoadSignal::LatencyAndPressure);
    w.run_ms(500);
    assert_eq!(probes(&mut w, 4), 4 * 4 * 100, "each every 10 ms");
    assert_eq!(w.count(Counter::LoadProbesPaced), 0);
    let mut w = world(LoadSignal::LatencyAndPressure, 2, MigrationMode::Never);
    w.run_ms(500);
    assert_eq!(probes(&mut w, 4), 16, "nobody has to be chosen from");
}

#[test]
fn many_pods_share_the_probes_of_a_second() {
    let (mut w, _flow) = world(LoadSignal::LatencyAndPressure, 32, MigrationMode::Never).at_rest();
    w.run_ms(1_000);
    // 64 of both families: 32 ms apart.
    let paced = w.count(Counter::LoadProbesPaced);
    let sent = probes(&mut w, 4);
    assert!((7_900..=8_000).contains(&sent), "{sent}");
    let paced = w.count(Counter::LoadProbesPaced) - paced;
    assert!((7_900..=8_000).contains(&paced), "{paced}");
}

#[test]
fn pods_that_tell_nothing_are_chosen_by_latency() {
    let mut w = world(LoadSignal::LatencyAndPressure, 2, MigrationMode::Never);
    w.loads.fill(None);
    let (_first, _second) = (w.idle(1), w.idle(2));
    w.run_ms(500);
    assert_eq!(at_second(&mut w, 10, 16), 8);
    let state = w.engine.state(w.now);
    assert!(state.policies[0].backends.iter().all(|b| b.load.is_none()));
}
