//! Two policies that share a pod: what one says of it, or finds out about it, is nothing to the
//! other.

use crate::common::{Conn, End, World, conn::*, endpoint, frontend, pod, policy, settings};
use baton_api::{
    Algorithm, BackendHealth, BackendState, Health, Micros, MigrationMode, OnDeadline, PolicyState,
    Snapshot,
};
use baton_engine::Counter;
use baton_packet::Flags;
use std::net::SocketAddr;

/// The port of the second policy's frontend.
const OTHER: u16 = 81;

/// Two policies on the same pods, `web` and `other`, which both move only what drains.
fn shared(pods: usize, change: impl FnOnce(&mut Snapshot)) -> World {
    let mut web = policy(pods);
    web.migration.mode = MigrationMode::DrainOnly;
    web.algorithm = Algorithm::Random;
    let mut s = settings();
    (s.limits.flows, s.limits.kept_segments) = (1_024, 1_024);
    s.limits.guarded_flows = 1_024;
    s.ports = 40_000..=41_023;
    let mut w = World::unprobed(s, web.clone());
    w.strict = false;
    w.change(|s| {
        let mut other = web;
        other.name = "other".into();
        let at = SocketAddr::new(frontend(false).ip(), OTHER);
        other.frontends = vec![endpoint(at)];
        // Another one may call the same pod as it likes.
        for backend in &mut other.backends {
            backend.name = format!("their-{}", backend.name);
        }
        s.policies.push(other);
        change(s);
    });
    w.poll();
    w
}

fn conn(n: u16, frontend: u16) -> Conn {
    let mut c = Conn::new(n);
    c.frontend.set_port(frontend);
    c
}

/// An idle flow of the policy at this frontend on this pod.
fn idle_on(w: &mut World, first: u16, frontend: u16, pod: usize) -> Conn {
    for n in first.. {
        let c = w.idle_as(conn(n, frontend));
        if c.pod == pod {
            return c;
        }
        w.inject(&w.client_wire(&c, Flags::RST, &[]).build());
    }
    unreachable!()
}

fn state(w: &World, policy: &str) -> PolicyState {
    let mut all = w.engine.state(w.now).policies;
    all.retain(|p| p.name == policy);
    all.remove(0)
}

fn backend(w: &World, policy: &str, at: usize) -> BackendState {
    state(w, policy).backends.remove(at)
}

#[test]
fn a_policy_that_drains_a_pod_closes_and_moves_nothing_of_another() {
    let mut w = shared(2, |s| {
        let other = &mut s.policies[1];
        other.drain.deadline = Micros::from_secs(1);
        other.drain.on_deadline = OnDeadline::Close;
        // Its flows do not go elsewhere, so that the deadline meets them.
        other.migration.mode = MigrationMode::Never;
    });
    let mut mine = idle_on(&mut w, 100, 80, 0);
    let theirs = idle_on(&mut w, 200, OTHER, 0);
    w.change(|s| s.policies[1].backends[0].draining = true);
    assert_eq!(backend(&w, "web", 0).drain, None);
    assert!(!backend(&w, "web", 0).draining);
    let drain = backend(&w, "other", 0).drain.expect("it drains");
    assert_eq!(drain.waiting.values().sum::<u64>(), 1, "its own flows only");
    for _ in 0..4 {
        let sent = w.run_ms(500);
        let to_mine = |s: &&crate::common::Sent| s.segment.dst_port == mine.client.port();
        assert_eq!(World::to_client(&sent).into_iter().filter(to_mine).count(), 0);
        w.exchange(&mut mine);
    }
    w.assert_state(&mine, "Idle");
    w.assert_state(&theirs, "FinSentToClient");
    assert_eq!(backend(&w, "other", 0).drain.expect("it drains").closed, 1);
    assert_eq!(w.count(Counter::MigrationsBegun), 0);
    // New flows of the one that does not drain it go there still.
    idle_on(&mut w, 300, 80, 0);
    // Drained by this one too, they leave.
    w.change(|s| s.policies[0].backends[0].draining = true);
    w.moves(&mut mine, GET);
    assert_eq!(mine.pod, 1);
}

#[test]
fn a_policy_that_drops_a_pod_drains_its_own_flows_only() {
    let mut w = shared(2, |_| {});
    let mut mine = idle_on(&mut w, 100, 80, 0);
    let mut theirs = idle_on(&mut w, 200, OTHER, 0);
    w.change(|s| {
        s.policies[1].backends.remove(0);
    });
    let sent = w.until_adoption(200);
    w.rescued(&mut theirs, &sent);
    assert_eq!(theirs.pod, 1);
    w.run_ms(2_000);
    w.exchange(&mut mine);
    assert_eq!((mine.pod, w.count(Counter::MigrationsBegun)), (0, 1));
    // It names the pod again: nothing leaves any more.
    w.change(|s| {
        let mut back = s.policies[0].backends[0].clone();
        back.name = "back".into();
        s.policies[1].backends.push(back);
    });
    let mut theirs = idle_on(&mut w, 400, OTHER, 0);
    w.run_ms(500);
    w.exchange(&mut theirs);
    assert_eq!(w.count(Counter::MigrationsBegun), 1);
}

#[test]
fn a_policy_that_left_drains_and_the_next_in_its_place_does_not() {
    let mut w = shared(2, |s| s.policies[1].drain.quiet = Micros::from_secs(3_600));
    let mut mine = idle_on(&mut w, 100, 80, 0);
    let theirs = idle_on(&mut w, 200, OTHER, 0);
    let gone = w.snapshot.policies[1].clone();
    w.change(|s| {
        s.policies.remove(1);
    });
    w.exchange(&mut mine);
    w.inject(&w.client_wire(&theirs, Flags::RST, &[]).build());
    w.run_ms(100);
    w.change(|s| {
        s.policies.push(baton_api::Policy { name: "third".into(), ..gone });
    });
    let mut third = idle_on(&mut w, 300, OTHER, 0);
    w.run_ms(500);
    w.exchange(&mut third);
    w.exchange(&mut mine);
    assert_eq!(backend(&w, "third", 0).drain, None);
    assert_eq!(w.count(Counter::MigrationsBegun), 0);
}

#[test]
fn a_command_drains_for_the_policy_that_it_names() {
    let mut w = shared(2, |_| {});
    let mut mine = idle_on(&mut w, 100, 80, 0);
    let mut theirs = idle_on(&mut w, 200, OTHER, 0);
    assert_eq!(w.engine.drain(w.now, Some("other"), "their-pod-0", true), 1);
    assert!(backend(&w, "other", 0).drain.expect("it drains").by_command);
    let sent = w.until_adoption(200);
    w.rescued(&mut theirs, &sent);
    w.run_ms(500);
    w.exchange(&mut mine);
    assert!(!backend(&w, "web", 0).draining);
    // Another snapshot takes nothing of that back, a command does.
    w.change(|s| s.policies[1].backends[1].weight = 5);
    assert!(backend(&w, "other", 0).draining);
    assert_eq!(w.engine.drain(w.now, None, "their-pod-0", false), 1);
    assert!(!backend(&w, "other", 0).draining);
}

#[test]
fn what_a_policy_calls_a_pod_is_shown_for_that_policy() {
    let mut w = shared(2, |_| {});
    let mine = idle_on(&mut w, 100, 80, 0);
    let theirs = idle_on(&mut w, 200, OTHER, 0);
    assert_eq!(backend(&w, "web", 0).name, "pod-0");
    assert_eq!(backend(&w, "other", 0).name, "their-pod-0");
    let (flows, _) = w.engine.flows(w.now, 0, 10);
    for (c, name) in [(&mine, "pod-0"), (&theirs, "their-pod-0")] {
        let flow = flows.iter().find(|f| f.client == c.client);
        assert_eq!(flow.expect("it lives").backend, name);
    }
}

/// The end of one pod's process counts for all, and a failure of a request for its own policy.
fn ejecting(failure_threshold: u32) -> Health {
    Health {
        failure_threshold,
        base_ejection_time: Micros::from_secs(10),
        max_ejected_percent: 50,
        panic_percent: 0,
        ..Health::default()
    }
}

/// Requests through a frontend of which the pod acknowledges nothing, each of another client.
fn fail(w: &mut World, first: u16, frontend: u16, pod: usize, times: usize) {
    let mut stuck = Vec::new();
    for n in first.. {
        let mut c = conn(n, frontend);
        let ip = format!("192.0.2.{}", 5 + stuck.len());
        c.client.set_ip(ip.parse().expect("an address"));
        let mut c = w.open_as(c);
        if c.pod == pod {
            let again = w.client_wire(&c, PSH_ACK, GET);
            w.stays(&mut c, GET);
            stuck.push((c, again));
        } else {
            w.inject(&w.client_wire(&c, Flags::RST, &[]).build());
        }
        // The first client alone does not count.
        if stuck.len() == times + 1 {
            break;
        }
    }
    w.run_ms(200);
    for (c, again) in &stuck {
        w.forwarded_to_pod(c, again);
    }
    for (c, _) in &stuck {
        w.inject(&w.client_wire(c, Flags::RST, &[]).build());
    }
}

#[test]
fn what_one_policy_ejects_serves_the_other() {
    let mut w = shared(2, |s| {
        s.policies[0].health = ejecting(0);
        s.policies[1].health = ejecting(2);
    });
    fail(&mut w, 100, OTHER, 0, 2);
    assert_eq!(w.count(Counter::Ejections), 1);
    assert_eq!(backend(&w, "other", 0).health.to_string(), "ejected: it failed, 10 s left");
    assert_eq!(backend(&w, "web", 0).health, BackendHealth::Up);
    idle_on(&mut w, 200, 80, 0);
    for n in 300..320 {
        let c = w.idle_as(conn(n, OTHER));
        assert_eq!(c.pod, 1);
    }
    // A changed policy keeps what it knows; a new process of the pod has not failed.
    w.change(|s| s.policies[1].backends[1].weight = 3);
    assert!(backend(&w, "other", 0).health.to_string().starts_with("ejected"));
    w.stops(0);
    w.run_ms(1_100);
    w.starts(0);
    w.run_ms(250);
    assert_eq!(backend(&w, "other", 0).health, BackendHealth::Up);
}

#[test]
fn failures_and_answers_count_for_their_policy() {
    let mut w = shared(2, |s| {
        s.policies[0].health = ejecting(3);
        s.policies[1].health = ejecting(3);
    });
    // Two of three each: no policy has enough of its own.
    fail(&mut w, 100, 80, 0, 2);
    fail(&mut w, 200, OTHER, 0, 2);
    assert_eq!(w.count(Counter::Ejections), 0);
    // Answers for one forgive nothing for the other. (They opened connections, which forgives.)
    idle_on(&mut w, 300, 80, 0);
    let mut stuck: Vec<Conn> = Vec::new();
    for n in 400.. {
        let mut c = conn(n, OTHER);
        let ip = format!("192.0.2.{}", 5 + stuck.len());
        c.client.set_ip(ip.parse().expect("an address"));
        let c = w.open_as(c);
        if c.pod == 0 {
            stuck.push(c);
        }
        if stuck.len() == 4 {
            break;
        }
    }
    let wires: Vec<_> = stuck.iter().map(|c| w.client_wire(c, PSH_ACK, GET)).collect();
    for c in &mut stuck {
        w.stays(c, GET);
    }
    w.run_ms(200);
    for ((c, again), first) in stuck.iter().zip(&wires).zip((1_000..).step_by(100)) {
        w.forwarded_to_pod(c, again);
        // The other policy's requests are answered all the while.
        idle_on(&mut w, first, 80, 0);
    }
    assert_eq!(w.count(Counter::Ejections), 1);
    assert!(backend(&w, "other", 0).health.to_string().starts_with("ejected"));
    assert_eq!(backend(&w, "web", 0).health, BackendHealth::Up);
}

#[test]
fn the_cap_of_one_policy_does_not_hold_back_another() {
    let mut w = shared(2, |s| {
        s.policies[0].health = Health { max_ejected_percent: 0, ..ejecting(2) };
        s.policies[1].health = ejecting(2);
    });
    fail(&mut w, 100, OTHER, 0, 2);
    assert_eq!((w.count(Counter::Ejections), w.count(Counter::EjectionsCapped)), (1, 0));
    fail(&mut w, 200, 80, 0, 2);
    assert_eq!((w.count(Counter::Ejections), w.count(Counter::EjectionsCapped)), (1, 1));
}

#[test]
fn a_pod_that_is_down_is_down_for_all() {
    let mut w = shared(2, |_| {});
    let mut flows = [idle_on(&mut w, 100, 80, 0), idle_on(&mut w, 200, OTHER, 0)];
    let sent = w.dies(0, End::Rst, &flows);
    for c in &mut flows {
        w.rescued(c, &sent);
        assert_eq!(c.pod, 1);
    }
    assert!(backend(&w, "web", 0).health.to_string().starts_with("down"));
    assert!(backend(&w, "other", 0).health.to_string().starts_with("down"));
}

#[test]
fn slow_start_is_each_policys_own() {
    let mut w = shared(2, |s| s.policies[1].slow_start = Micros::from_secs(10));
    let at = endpoint(pod(false, 7));
    w.change(|s| {
        for p in &mut s.policies {
            let mut late = p.backends[0].clone();
            (late.name, late.endpoint) = ("late".into(), at);
            p.backends.push(late);
        }
    });
    assert_eq!(backend(&w, "web", 2).health, BackendHealth::Up);
    assert_eq!(backend(&w, "other", 2).health.to_string(), "up: slow start");
}
