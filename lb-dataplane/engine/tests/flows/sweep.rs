//! What is found out of a pod reaches each of its flows, however many it has and however often
//! there are news.

use crate::common::{Conn, World, pods::End, policy, settings};

/// A pod closes one connection of 600 each millisecond, and each answer about it goes through all:
/// no close waits for the last one.
#[test]
fn the_closes_of_a_pod_that_closes_all_the_time_arrive() {
    let mut s = settings();
    s.limits.flows = 1_000;
    s.limits.kept_segments = 1_000;
    s.ports = 40_000..=41_500;
    let mut w = World::with(s, policy(1));
    w.careful = false;
    w.told.fill(crate::holders::told(7, 3));
    w.run_ms(2_200);
    let flows: Vec<Conn> = (1..=600).map(|n| w.idle(n)).collect();
    let mut told = 0;
    for c in &flows[..300] {
        let mut sent = w.ends(c, End::Fin);
        sent.extend(w.run_ms(1));
        told += World::to_client(&sent).len();
    }
    assert!(told >= 290, "{told}");
}
