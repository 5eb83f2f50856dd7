//! A planner beside an engine: what it cannot know of that, and what becomes of slots that are used
//! again.

use crate::common::{Conn, World, backend, endpoint, frontend, policy, settings};
use baton_api::{MigrationMode, Policy, Snapshot};
use baton_engine::{Applied, ApplyError, Planner};
use baton_packet::Flags;
use std::net::SocketAddr;

/// A policy at this port with these pods, which only have IPv4.
fn named(name: &str, port: u16, pods: std::ops::Range<usize>) -> Policy {
    let mut p = policy(0);
    p.name = name.into();
    p.migration.mode = MigrationMode::DrainOnly;
    p.frontends = vec![endpoint(SocketAddr::new(frontend(false).ip(), port))];
    p.backends = pods.map(|i| backend(false, i)).collect();
    p
}

fn idle_at(w: &mut World, n: u16, port: u16) -> Conn {
    let mut c = Conn::new(n);
    c.frontend.set_port(port);
    w.idle_as(c)
}

fn ends(w: &mut World, c: &Conn) {
    w.inject(&w.client_wire(c, Flags::RST, &[]).build());
    assert_eq!(w.state(c), None);
}

/// Offers these policies as control thread and worker do it: how often the snapshot was made ready,
/// and what became of it.
fn offer(w: &mut World, planner: &mut Planner, policies: Vec<Policy>) -> (u32, Applied) {
    w.snapshot.policies = policies;
    w.snapshot.generation += 1;
    planner.begin();
    for tries in 1.. {
        let mut prepared = planner.prepare(&w.snapshot, Some(&[])).expect("sorted").remove(0);
        let result = loop {
            match w.engine.apply_piece(w.now, &mut prepared) {
                Ok(false) => w.engine.check_invariants(),
                Ok(true) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        match result {
            Ok(()) => {
                planner.in_force(&mut prepared);
                w.neighbours();
                w.engine.check_invariants();
                return (tries, prepared.applied().clone());
            }
            Err(error) => {
                assert!(error.is_room(), "{error}");
                planner.no_room(&mut prepared);
            }
        }
    }
    unreachable!()
}

fn refused(applied: &Applied) -> Vec<(&str, bool)> {
    let all = applied.refused.iter();
    all.map(|r| (r.policy.as_str(), r.kept)).collect()
}

#[test]
fn backends_with_flows_are_told_to_the_planner_and_the_others_are_served() {
    // 16 backends are possible.
    let mut w = World::with(settings(), named("m", 80, 0..2));
    let mut planner = Planner::new(&settings(), 7);
    assert_eq!(offer(&mut w, &mut planner, vec![named("m", 80, 0..2)]), (1, Applied::default()));
    w.run_ms(200);
    let c = idle_at(&mut w, 1, 80);
    let wanted = || vec![named("a", 81, 2..18), named("b", 82, 2..4)];
    let (tries, applied) = offer(&mut w, &mut planner, wanted());
    assert_eq!((tries, refused(&applied), applied.may_pass), (2, vec![("a", false)], true));
    let names: Vec<_> = w.engine.state(w.now).policies;
    assert!(names.iter().any(|p| p.name == "b"), "{names:?}");
    // Once the flow is gone and its port has rested, there is room.
    ends(&mut w, &c);
    w.run_ms(120_000);
    assert_eq!(offer(&mut w, &mut planner, wanted()), (1, Applied::default()));
}

#[test]
fn more_that_lingers_each_time_is_thought_of_by_the_third() {
    let mut w = World::with(settings(), named("m", 80, 0..8));
    let mut planner = Planner::new(&settings(), 7);
    offer(&mut w, &mut planner, vec![named("m", 80, 0..8)]);
    w.run_ms(200);
    w.snapshot.policies = vec![named("a", 81, 8..24), named("b", 82, 8..16)];
    w.snapshot.generation += 1;
    let mut n = 0;
    for last in [false, false, true] {
        // One more backend has a flow whenever the engine is asked.
        let before = w.engine.state(w.now).policies[0].backends.clone();
        let held = |s: &[baton_api::BackendState]| s.iter().filter(|b| b.flows > 0).count();
        while held(&w.engine.state(w.now).policies[0].backends) == held(&before) {
            n += 1;
            idle_at(&mut w, n, 80);
        }
        let mut prepared = planner.prepare(&w.snapshot, Some(&[])).expect("sorted").remove(0);
        let mut result = Ok(false);
        while result == Ok(false) {
            result = w.engine.apply_piece(w.now, &mut prepared);
        }
        if last {
            assert_eq!(result, Ok(true));
            assert_eq!(refused(prepared.applied()), [("a", false)]);
        } else if let Err(error) = result {
            assert!(error.is_room(), "{error}");
            planner.no_room(&mut prepared);
        } else {
            // Its first guess was right.
            assert_eq!(refused(prepared.applied()), [("a", false)]);
            return;
        }
    }
}

#[test]
fn a_snapshot_made_ready_beside_another_one_is_refused_and_changes_nothing() {
    let mut w = World::with(settings(), named("m", 80, 0..2));
    let mut planner = Planner::new(&settings(), 7);
    offer(&mut w, &mut planner, vec![named("m", 80, 0..2)]);
    // Behind its back: pod 1 leaves, and its slot has no ports any more.
    w.change(|s| s.policies = vec![named("m", 80, 0..1)]);
    w.run_ms(120_000);
    w.change(|s| s.policies = vec![named("m", 80, 0..1)]);
    w.snapshot.policies = vec![named("m", 80, 0..3)];
    w.snapshot.generation += 1;
    let before = w.engine.state(w.now);
    let mut prepared = planner.prepare(&w.snapshot, None).expect("good by itself").remove(0);
    let mut result = Ok(false);
    while result == Ok(false) {
        result = w.engine.apply_piece(w.now, &mut prepared);
    }
    assert_eq!(result, Err(ApplyError::Astray));
    assert_eq!(w.engine.state(w.now), before);
}

/// A policy that leaves drains its pods; whoever gets its slot does not.
#[test]
fn a_policy_in_the_slot_of_one_that_left_inherits_no_drain() {
    let mut w = World::with(settings(), named("m", 80, 0..2));
    let flows: Vec<Conn> = (1..5).map(|n| idle_at(&mut w, n, 80)).collect();
    w.change(|s| s.policies = vec![named("other", 81, 0..2)]);
    w.run_ms(200);
    let slots = w.engine.state(w.now).policies.len();
    assert_eq!(slots, 2, "flows of a policy that left");
    for c in &flows {
        ends(&mut w, c);
    }
    w.change(|s| s.policies.push(named("new", 82, 0..2)));
    w.run_ms(200);
    let state = w.engine.state(w.now);
    let new = state.policies.iter().find(|p| p.name == "new");
    let new = new.expect("in force");
    for backend in &new.backends {
        assert_eq!(backend.drain, None, "{backend:?}");
    }
    let mut c = idle_at(&mut w, 9, 82);
    w.run_ms(5_000);
    w.exchange(&mut c);
    // It begins drains of its own.
    w.change(|s| s.policies[1].backends[c.pod].draining = true);
    w.run_ms(100);
    let state = w.engine.state(w.now);
    let new = state.policies.iter().find(|p| p.name == "new");
    let drain = new.expect("in force").backends[c.pod].drain.as_ref();
    let since = drain.expect("it drains").since;
    assert!(since.0 <= 110_000, "{since:?}");
}

#[test]
fn what_lingers_with_one_worker_is_refused_by_all() {
    // 16 backends are possible with each.
    let mut both = [1, 2].map(|_| World::with(settings(), named("m", 80, 0..2)));
    let mut planner = Planner::for_workers(&[settings(), settings()], 7);
    let mut offer = |both: &mut [World; 2], generation, policies: Vec<Policy>| {
        let snapshot = Snapshot { generation, policies };
        planner.begin();
        for tries in 1.. {
            let prepared = planner.prepare(&snapshot, Some(&[])).expect("sorted");
            let mut prepared: Vec<_> = prepared.into_iter().collect();
            let verdicts: Vec<bool> = both
                .iter_mut()
                .zip(&mut prepared)
                .map(|(w, prepared)| {
                    let mut result = Ok(false);
                    while result == Ok(false) && !prepared.has_room() {
                        result = w.engine.apply_piece(w.now, prepared);
                    }
                    result.is_ok()
                })
                .collect();
            if verdicts.iter().all(|agreed| *agreed) {
                for (w, prepared) in both.iter_mut().zip(&mut prepared) {
                    while w.engine.apply_piece(w.now, prepared) == Ok(false) {}
                    w.engine.check_invariants();
                }
                planner.in_force(&mut prepared[0]);
                return (tries, prepared[0].applied().clone());
            }
            let (first, others) = prepared.split_at_mut(1);
            first[0].also_lingers(&mut others[0]);
            planner.no_room(&mut first[0]);
        }
        unreachable!()
    };
    offer(&mut both, 2, vec![named("m", 80, 0..2)]);
    both.iter_mut().for_each(World::neighbours);
    both[1].run_ms(200);
    let _c = idle_at(&mut both[1], 1, 80);
    let wanted = vec![named("a", 81, 2..18), named("b", 82, 2..4)];
    let (tries, applied) = offer(&mut both, 3, wanted);
    assert_eq!((tries, refused(&applied)), (2, vec![("a", false)]));
    for w in &mut both {
        let names: Vec<_> = w.engine.state(w.now).policies;
        assert!(names.iter().all(|p| p.name != "a"), "{names:?}");
        assert!(names.iter().any(|p| p.name == "b"), "{names:?}");
    }
}
