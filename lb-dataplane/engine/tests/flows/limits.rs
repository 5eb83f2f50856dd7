//! Every table has an end; reaching it is counted, and flows that are there go on.

use crate::common::{Conn, World, backend, conn::*, endpoint, frontend, policy, settings};
use baton_api::Algorithm;
use baton_engine::{Counter, DropReason, Engine, Instant, SettingsError, Verdict};
use baton_packet::Flags;
use std::net::SocketAddr;

#[test]
fn a_full_flow_table_refuses_new_flows_only() {
    let mut s = settings();
    s.limits.flows = 16;
    let mut w = World::with(s, policy(2));
    let mut flows: Vec<Conn> = (0..16).map(|n| w.idle(n)).collect();
    let late = Conn::new(99);
    assert!(w.inject(&w.syn_wire(&late).build()).is_empty());
    assert_eq!(w.verdict, Verdict::Drop(DropReason::FlowTableFull));
    assert_eq!(w.dropped(DropReason::FlowTableFull), 1);
    assert_eq!(w.table("flows"), (16, 16));
    for c in &mut flows {
        w.moves(c, GET);
        w.responds(c, OK);
    }
    w.inject(&{
        let c = &flows[0];
        w.client_wire(c, Flags::RST, &[]).build()
    });
    w.open(99);
}

/// Clients of one policy open connections and hold them. Those of another one are let in.
#[test]
fn an_eighth_of_the_flows_is_kept_for_policies_with_few() {
    let mut s = settings();
    s.limits.flows = 64;
    let mut w = World::with(s, policy(2));
    w.change(|s| {
        let mut other = s.policies[0].clone();
        other.name = "other".into();
        let at = SocketAddr::new(frontend(false).ip(), 99);
        other.frontends = vec![endpoint(at)];
        s.policies.push(other);
    });
    let other = |n| {
        let mut c = Conn::new(n);
        c.frontend.set_port(99);
        c
    };
    for n in 0..56 {
        w.open(n);
    }
    assert!(w.inject(&w.syn_wire(&Conn::new(60)).build()).is_empty());
    assert_eq!(w.dropped(DropReason::FlowsOfOthers), 1);
    for n in 100..104 {
        w.open_as(other(n));
    }
    // That is its part of what is kept; beyond it has what anybody may have.
    assert!(w.inject(&w.syn_wire(&other(104)).build()).is_empty());
    assert_eq!(w.dropped(DropReason::FlowsOfOthers), 2);
    assert_eq!(w.dropped(DropReason::FlowTableFull), 0);
}

/// Whoever opens and closes connections all the time takes from others what is kept for them.
#[test]
fn what_trackers_remember_of_one_policy_leaves_another_ones_flows_their_part() {
    let mut s = settings();
    (s.ports, s.limits.tracked_pairs) = (20_000..=20_999, 512);
    let mut p = policy(2);
    p.algorithm = Algorithm::Random;
    let mut other = policy(2);
    other.name = "other".into();
    other.frontends = vec![endpoint(SocketAddr::new(frontend(false).ip(), 81))];
    other.backends = vec![backend(false, 2), backend(false, 3)];
    let mut w = World::with(s, p);
    w.change(|s| s.policies.push(other));
    w.run_ms(1_100);
    (w.careful, w.strict) = (false, false);
    let mut c = w.idle(1);
    let mut theirs = Conn::new(2);
    theirs.frontend.set_port(81);
    let mut theirs = w.idle_as(theirs);
    for n in 0..700_u32 {
        let mut short = Conn::new(3 + (n % 32) as u16);
        short.seq = n;
        w.inject(&w.syn_wire(&short).build());
        short.seq = n + 1;
        let mut rst = w.client_wire(&short, Flags::RST, &[]);
        rst.options.clear();
        w.inject(&rst.build());
    }
    w.run_ms(60);
    let (tracked, limit) = w.table("tracked_pairs");
    assert!(tracked > limit, "{tracked} of {limit}");
    w.stays(&mut c, GET);
    assert_eq!(w.count(Counter::StayedTracked), 1);
    for _ in 0..10 {
        w.moves(&mut theirs, GET);
        w.responds(&mut theirs, OK);
        w.ack(&mut theirs);
    }
}

#[test]
fn with_a_full_closing_table_flows_stay_and_are_served() {
    let mut s = settings();
    s.limits.closing_legs = 16;
    let mut w = World::with(s, policy(2));
    let mut flows: Vec<Conn> = (0..20).map(|n| w.idle(n)).collect();
    let (moving, staying) = flows.split_at_mut(16);
    for c in moving {
        w.moves(c, GET);
        w.responds(c, OK);
    }
    assert_eq!(w.table("closing_legs"), (16, 16));
    for c in staying {
        w.exchange(c);
    }
    assert_eq!(w.count(Counter::StayedClosingFull), 4);
    // Once the closes are over, flows move again.
    w.run_ms(60_000);
    assert_eq!(w.table("closing_legs").0, 0);
    let mut c = flows.remove(19);
    w.moves(&mut c, GET);
}

#[test]
fn a_closing_table_that_fills_during_an_adoption_costs_a_reset_of_the_old_leg() {
    let mut s = settings();
    s.limits.closing_legs = 16;
    s.limits.kept_segments = 64;
    let mut w = World::with(s, policy(2));
    let mut flows: Vec<Conn> = (0..17).map(|n| w.idle(n)).collect();
    let olds = flows.clone();
    for c in &mut flows {
        w.moves(c, GET);
    }
    for c in &mut flows[..16] {
        w.responds(c, OK);
    }
    let frame = w.pod_wire(&flows[16], PSH_ACK, OK).build();
    let sent = w.inject(&frame);
    let resets: Vec<_> = sent.iter().filter(|s| s.is(RST_ACK)).collect();
    assert!(
        resets
            .iter()
            .any(|r| r.segment.src_port == olds[16].leg.port() && r.segment.seq.0 == olds[16].seq),
        "exact: {sent:?}"
    );
    assert_eq!(w.count(Counter::LegsReset), 1);
    assert_eq!(sent.last().expect("the response").data(), OK);
}

#[test]
fn without_room_to_keep_the_request_a_flow_stays() {
    let mut s = settings();
    s.limits.kept_segments = 2;
    let mut w = World::with(s, policy(2));
    let mut flows: Vec<Conn> = (0..3).map(|n| w.idle(n)).collect();
    w.moves(&mut flows[0], GET);
    w.moves(&mut flows[1], GET);
    assert_eq!(w.table("kept_segments"), (2, 2));
    w.exchange(&mut flows[2]);
    assert_eq!(w.count(Counter::StayedKeptFull), 1);
    assert_eq!(w.count(Counter::KeptFull), 1);
    // New connections open although their request cannot be kept, and what moved is served.
    w.idle(7);
    assert_eq!(w.count(Counter::KeptFull), 2);
    for c in &mut flows[..2] {
        w.served(c);
    }
    w.moves(&mut flows[2], GET);
}

#[test]
fn without_a_free_frame_a_flow_stays() {
    let (mut w, mut c) = World::new(2).at_rest();
    w.out.free = 0;
    w.exchange(&mut c);
    assert_eq!(w.count(Counter::StayedNoFrame), 1);
    assert_eq!(w.count(Counter::MigrationsBegun), 0);
    w.out.free = usize::MAX;
    w.moves(&mut c, GET);
}

#[test]
fn without_a_free_frame_nothing_of_a_close_is_lost_for_good() {
    let (mut w, mut c) = World::new(2).at_rest();
    let old = c.clone();
    w.moves(&mut c, GET);
    w.responds(&mut c, OK);
    w.out.free = 0;
    assert!(w.run_ms(20).is_empty());
    assert!(w.count(Counter::NoFrame) > 0);
    w.out.free = usize::MAX;
    let fin = one(w.run_ms(250));
    assert!(fin.is(FIN_ACK));
    assert_eq!(fin.segment.src_port, old.leg.port());
}

#[test]
fn exhausted_ports_refuse_new_flows_and_moves_only() {
    let mut s = settings();
    s.ports = 40_000..=40_063;
    s.limits.flows = 256;
    let mut p = policy(2);
    // All new flows go to the first pod.
    p.backends[1].weight = 0;
    let mut w = World::with(s, p);
    // The last eighth is for rescues, drains and probes.
    let mut flows: Vec<Conn> = (0..55).map(|n| w.idle(n)).collect();
    assert!(w.inject(&w.syn_wire(&Conn::new(99)).build()).is_empty());
    assert_eq!(w.verdict, Verdict::Drop(DropReason::NoPort));
    assert_eq!(w.dropped(DropReason::NoPort), 1);
    // The second pod takes moves once it has a weight; its own flows cannot move to the first one.
    w.change(|s| {
        s.policies[0].backends[1].weight = 1;
        s.policies[0].backends[0].weight = 0;
    });
    w.run_ms(10);
    let mut there: Vec<Conn> = (100..102).map(|n| w.idle(n)).collect();
    w.change(|s| s.policies[0].backends[0].weight = 1);
    w.run_ms(10);
    w.exchange(&mut there[0]);
    assert_eq!(w.count(Counter::StayedPortReserve), 1);
    w.moves(&mut flows[5], GET);
    w.responds(&mut flows[5], OK);
    w.exchange(&mut there[1]);
    assert_eq!(w.count(Counter::StayedPortReserve), 2, "its port is closing still");
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let refused = |change: &dyn Fn(&mut baton_engine::Settings)| {
        let mut s = settings();
        change(&mut s);
        Engine::new(s, Instant(0)).err().expect("a refusal")
    };
    assert_eq!(refused(&|s| s.addresses.clear()), SettingsError::NoAddress);
    assert_eq!(refused(&|s| s.ports = 40_000..=40_010), SettingsError::FewPorts(11));
    for (field, error) in [
        ("flows", refused(&|s| s.limits.flows = 1)),
        ("backends", refused(&|s| s.limits.backends = 0)),
        ("closingLegs", refused(&|s| s.limits.closing_legs = 1 << 25)),
        ("keptSegments", refused(&|s| s.limits.kept_segments = 0)),
    ] {
        assert!(error.to_string().starts_with(&format!("limits.{field}: ")), "{error}");
    }
}
