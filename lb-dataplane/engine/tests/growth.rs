//! No table grows while a snapshot is put in force, however much it brings: that would take as long
//! as there are entries.

mod common;

use baton_api::{LIMIT_FRONTENDS, LIMIT_POLICIES};
use baton_engine::Planner;
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
        let mut prepared = planner.prepare(&w.snapshot).expect("a good snapshot");
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
