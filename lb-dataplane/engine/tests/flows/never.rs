//! `migration.mode` `Never`: flows stay also with a backend that drains, and a dead one's are
//! rescued all the same.

use super::drain::{drain, flows_of_one, waiting};
use crate::common::{Conn, End, World, conn::*, policy, settings};
use baton_api::{BackendFailure, Micros, MigrationMode, OnDeadline, Policy};
use baton_engine::{Counter, Lost};

fn never(on_deadline: OnDeadline) -> Policy {
    let mut p = policy(3);
    p.migration.mode = MigrationMode::Never;
    p.drain.deadline = Micros::from_secs(2);
    p.drain.on_deadline = on_deadline;
    p
}

#[test]
fn with_never_flows_stay_with_a_draining_pod_to_its_deadline() {
    for on_deadline in [OnDeadline::Wait, OnDeadline::Close] {
        let mut w = World::with(settings(), never(on_deadline));
        let mut flows = flows_of_one(&mut w, 3);
        let pod = flows[0].pod;
        drain(&mut w, pod);
        for n in 100..110 {
            assert_ne!(w.open(n).pod, pod);
        }
        assert!(w.run_ms(1_900).is_empty(), "not without a request");
        for c in &mut flows {
            w.exchange(c);
        }
        let why = "its end: migration.mode is Never".to_owned();
        assert_eq!(waiting(&w, pod), [(why, 3)].into());
        let sent = w.run_ms(200);
        let closed = World::to_client(&sent).iter().filter(|s| s.is(FIN_ACK)).count();
        let left = if on_deadline == OnDeadline::Close { 3 } else { 0 };
        assert_eq!(closed, left);
        assert_eq!(w.engine.lost(Lost::DrainDeadline), left as u64);
        assert_eq!(w.count(Counter::MigrationsBegun), 0);
    }
}

#[test]
fn with_never_flows_stay_with_a_pod_that_left_the_snapshot() {
    let (mut w, mut c) = World::with(settings(), never(OnDeadline::Wait)).at_rest();
    let gone = c.pod;
    w.change(|s| {
        s.policies[0].backends.retain(|b| !b.name.starts_with(&format!("pod-{gone}")));
    });
    w.exchange(&mut c);
    assert!(w.run_ms(1_000).is_empty());
    w.exchange(&mut c);
}

#[test]
fn with_never_flows_of_a_dead_pod_are_rescued_drained_or_not() {
    for drained in [false, true] {
        let mut w = World::with(settings(), never(OnDeadline::Wait));
        let mut flows = flows_of_one(&mut w, 3);
        let pod = flows[0].pod;
        if drained {
            drain(&mut w, pod);
        }
        let sent = w.dies(pod, End::Fin, &flows);
        for c in &mut flows {
            w.rescued(c, &sent);
            w.exchange(c);
        }
        assert_eq!(w.count(Counter::Rescues), 3);
        assert_eq!(w.count(Counter::MigrationsBegun), 0);
    }
}

/// A process that listens no more may still serve what it accepted; it is as good as dead.
#[test]
fn with_never_flows_of_a_pod_that_listens_no_more_leave_if_on_backend_failure_lets_them() {
    for (failure, leave) in [(BackendFailure::AdoptIdleOnly, true), (BackendFailure::Reset, false)]
    {
        let mut p = never(OnDeadline::Wait);
        p.on_backend_failure = failure;
        let mut w = World::with(settings(), p);
        let mut flows = flows_of_one(&mut w, 2);
        let pod = flows[0].pod;
        let mut refused = Conn::new(700);
        w.syn(&mut refused);
        while refused.pod != pod {
            refused = Conn::new(refused.client.port() - 30_000 + 1);
            w.syn(&mut refused);
        }
        w.stops(pod);
        let mut refusal = w.synack_wire(&refused);
        (refusal.flags, refusal.seq) = (RST_ACK, 0);
        w.inject(&refusal.build());
        let health = w.engine.state(w.now).policies[0].backends[pod].health.to_string();
        assert_eq!(health, "down: nothing listens on the port");
        for c in &mut flows {
            if leave {
                w.moves(c, POST);
            } else {
                w.exchange(c);
            }
        }
    }
}
