//! No table grows while a snapshot is put in force, however much it brings: that would take as long
//! as there are entries.

mod common;

use baton_api::{LIMIT_FRONTENDS, LIMIT_POLICIES, Limits, Snapshot};
use baton_engine::{Engine, Instant, Planner};
use common::{World, backend, endpoint, policy, settings};
use std::net::SocketAddr;

/// A name and a list of the largest policy: no table is as small.
const BYTES_MAX: u64 = 16 << 10;

#[test]
fn as_many_frontends_and_policies_as_may_be_come_and_are_replaced_without_a_table_that_grows() {
    let s = settings();
    let mut planner = Planner::new(&s, 7);
    let mut w = World::unprobed(s, policy(1));
    w.careful = false;
    let each = LIMIT_FRONTENDS / LIMIT_POLICIES;
    for turn in 0..4 {
        w.snapshot.generation += 1;
        w.snapshot.policies = (0..LIMIT_POLICIES)
            .map(|n| {
                let mut p = policy(0);
                p.name = format!("turn-{turn}-{n}");
                p.backends = vec![backend(false, 0)];
                let ports = n * each..(n + 1) * each;
                let own = |port| SocketAddr::new([10, 9, turn, 1].into(), 1_000 + port as u16);
                p.frontends = ports.map(|port| endpoint(own(port))).collect();
                p
            })
            .collect();
        let mut prepared = planner.prepare(&w.snapshot, None).expect("a good snapshot").remove(0);
        let (mut pieces, mut most) = (0, 0);
        let mut done = false;
        while !done {
            let piece = || done = w.engine.apply_piece(w.now, &mut prepared).expect("good");
            most = most.max(allocation_counter::measure(piece).bytes_max);
            pieces += 1;
        }
        planner.in_force(&mut prepared);
        assert!(most <= BYTES_MAX, "{most} bytes in one of {pieces} pieces");
        // 4 units for each that comes, of 512 in a piece.
        assert!(pieces >= LIMIT_FRONTENDS / 128, "{pieces}");
        assert_eq!(w.engine.steering().frontends.len(), LIMIT_FRONTENDS);
    }
}

/// What an engine takes in bytes with so many backends that have so many leg ports each.
fn bytes(backends: u16, ports: u16) -> u64 {
    let mut s = settings();
    s.limits = Limits { flows: 65_536, backends: 4_096, ..Limits::default() };
    s.ports = 20_000..=19_999 + ports;
    let mut kept = None;
    let taken = allocation_counter::measure(|| {
        let mut engine = Engine::new(s.clone(), Instant(50_000_000)).expect("good settings");
        let backend = |n: u16| {
            let [high, low] = n.to_be_bytes();
            let at = SocketAddr::new([10, 1, high, low].into(), 80);
            baton_api::Backend {
                name: format!("pod-{n}"),
                endpoint: endpoint(at),
                ..backend(false, 0)
            }
        };
        let policies = (0..backends.div_ceil(256)).map(|n| {
            let mut p = policy(0);
            p.name = format!("policy-{n}");
            p.frontends = vec![endpoint(SocketAddr::new([10, 9, 0, 1].into(), 1_000 + n))];
            p.backends = (256 * n..256 * (n + 1)).map(backend).collect();
            p
        });
        let snapshot = Snapshot { generation: 1, policies: policies.collect() };
        engine.apply(Instant(50_000_000), &snapshot).expect("good");
        kept = Some(engine);
    });
    drop(kept);
    taken.bytes_current as u64
}

/// What no leg uses costs nothing but its backend's own state, and two bytes for 512 ports.
#[test]
fn backends_and_their_ports_cost_little_memory() {
    let none = bytes(0, 10_000);
    let all = bytes(4_096, 10_000);
    let more_ports = bytes(4_096, 40_000);
    let each = (all - none) / 4_096;
    println!(
        "{none} bytes without backends, {all} with 4,096: {each} each; 30,000 more ports of each: {more_ports}"
    );
    // 14 MB of these are for copies of requests, 9 for flows, 7 for guards' trackers.
    assert!(all <= 64 << 20, "{all} bytes in all");
    assert!(each <= 1_400, "{each} bytes a backend");
    assert!((more_ports - all) / 4_096 <= 2 * 30_000 / 512 + 8, "{more_ports}");
}
