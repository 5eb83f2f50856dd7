//! Legs from several addresses of our own: more ports towards each pod.

use crate::common::{Conn, World, ours, policy, settings};
use baton_engine::{Counter, DropReason};
use std::{collections::HashMap, net::IpAddr};

fn world(all: bool) -> World {
    let mut s = settings();
    s.limits.flows = 256;
    s.limits.closing_legs = 256;
    s.ports = 40_000..=40_063;
    s.addresses = vec![ours(false), "10.0.0.77".parse().expect("one"), ours(true)];
    s.legs_from_all = all;
    let mut w = World::unprobed(s, policy(2));
    // Ports and addresses are looked at here.
    (w.strict, w.careful) = (false, false);
    w.poll();
    w
}

#[test]
fn each_address_has_all_the_ports() {
    let mut w = world(true);
    assert_eq!(w.engine.figures()[0].backends[0].leg_ports, 128);
    let mut flows: Vec<Conn> = (0..160).map(|n| w.idle(n)).collect();
    let mut of: HashMap<(usize, IpAddr), usize> = HashMap::new();
    for c in &flows {
        assert!((40_000..=40_063).contains(&c.leg.port()));
        *of.entry((c.pod, c.leg.ip())).or_default() += 1;
    }
    assert_eq!(of.len(), 4, "{of:?}");
    assert!(of.values().all(|n| *n > 20), "{of:?}");
    // Moves, answers and closes go by either address as well.
    let mut moved = HashMap::<IpAddr, usize>::new();
    for c in &mut flows[..40] {
        w.moved_exchange(c);
        *moved.entry(c.leg.ip()).or_default() += 1;
    }
    assert_eq!(moved.len(), 2, "{moved:?}");
    let fins = w.run_ms(5);
    assert_eq!(fins.len(), 40);
    assert_eq!(w.count(Counter::MigrationsConfirmed), 40);
    // What an address beside them gets is nobody's.
    assert_eq!(w.dropped(DropReason::NoPort), 0);
    w.engine.check_invariants();
}

#[test]
fn without_being_told_legs_come_from_the_first() {
    let mut w = world(false);
    assert_eq!(w.engine.figures()[0].backends[0].leg_ports, 64);
    for n in 0..80 {
        assert_eq!(w.idle(n).leg.ip(), ours(false));
    }
}
