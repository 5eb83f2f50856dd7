//! `allowFrom`: whose flows are opened, and that a list says nothing about flows that there are.

use crate::common::{Conn, End, World, conn::*};
use baton_engine::{Counter, DropReason, Verdict};
use baton_packet::Reason;

/// The client of the harness in each family.
const ALL: [&str; 2] = ["192.0.2.0/24", "2001:db8::5/128"];
const OTHERS: [&str; 2] = ["192.0.3.0/24", "2001:db8::6/128"];

fn allow(w: &mut World, networks: &[&str]) {
    let networks = networks.iter().map(|n| n.parse().expect("a network"));
    let networks = networks.collect();
    w.change(|s| s.policies[0].allow_from = Some(networks));
}

fn not_allowed(w: &World) -> u64 {
    w.engine.figures().remove(0).not_allowed
}

fn refuses(w: &mut World, n: u16, v6: bool) {
    let before = (w.dropped(DropReason::NotAllowed), not_allowed(w));
    let wire = w.syn_wire(&Conn::of(n, v6)).build();
    let sent = w.inject(&wire);
    assert_eq!(w.verdict, Verdict::Drop(DropReason::NotAllowed));
    assert!(sent.is_empty(), "no answer: {sent:?}");
    let after = (w.dropped(DropReason::NotAllowed), not_allowed(w));
    assert_eq!(after, (before.0 + 1, before.1 + 1));
}

#[test]
fn nothing_is_taken_for_a_client_that_is_not_allowed() {
    for v6 in [false, true] {
        let mut w = World::new(2);
        for networks in [&[][..], &OTHERS, &ALL[usize::from(!v6)..][..1]] {
            allow(&mut w, networks);
            refuses(&mut w, 1, v6);
        }
        assert_eq!(w.count(Counter::FlowsOpened), 0);
        assert_eq!(w.table("flows").0, 0);
        allow(&mut w, &ALL);
        let mut c = w.open_as(Conn::of(1, v6));
        w.exchange(&mut c);
        assert_eq!(not_allowed(&w), 3, "counts go on under the policy's name");
        // Nobody is asked any more.
        w.change(|s| s.policies[0].allow_from = None);
        w.open_as(Conn::of(2, v6));
    }
}

#[test]
fn flows_stay_when_the_list_changes() {
    for v6 in [false, true] {
        let mut w = World::new(3);
        allow(&mut w, &ALL);
        let mut open = w.idle_as(Conn::of(1, v6));
        let mut opening = Conn::of(2, v6);
        w.syn(&mut opening);
        allow(&mut w, &OTHERS);
        refuses(&mut w, 3, v6);
        // It was allowed when it began: also a repeated SYN goes on.
        let again = w.syn_wire(&opening).build();
        assert_eq!(w.inject(&again).len(), 1);
        w.accepts(&mut opening);
        w.exchange(&mut opening);
        // To another pod, too.
        w.moves(&mut open, GET);
        assert_eq!(w.table("flows").0, 2);
    }
}

#[test]
fn a_flow_whose_pod_dies_is_saved_though_its_client_is_not_allowed_any_more() {
    let (mut w, mut c) = World::orphan(End::Fin);
    allow(&mut w, &OTHERS);
    w.adopters.fill(Some(Reason::Ready));
    let sent = w.until_adoption(1_000);
    w.rescued(&mut c, &sent);
    refuses(&mut w, 9, false);
}

#[test]
fn who_takes_the_port_of_an_old_flow_is_asked_anew() {
    let (mut w, mut c) = World::new(2).begun();
    allow(&mut w, &OTHERS);
    // Another number: the client has given the first connection up.
    c.seq = c.seq.wrapping_add(100_000);
    let sent = {
        let wire = w.syn_wire(&c).build();
        w.inject(&wire)
    };
    assert_eq!(w.verdict, Verdict::Drop(DropReason::NotAllowed));
    assert!(sent.iter().all(|s| s.to != crate::common::Dest::Client));
    assert_eq!(w.table("flows").0, 0);
}
