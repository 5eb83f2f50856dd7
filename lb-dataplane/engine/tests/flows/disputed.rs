//! Clients that send the same numbers twice, with legs that others may have next.

use super::sharing::{UPGRADE, world};
use crate::common::{
    Conn, OUR_MAC, ROUTER_MAC, Sent, World, answer, conn::*, router, wire, wire::stamps,
};
use baton_api::{Legs, Protocol};
use baton_engine::{Counter, Migrate};
use baton_packet::{Flags, Reason};

/// As long as `GET`.
const OTHER: &[u8] = b"PUT / HTTP/1.1\r\n\r\n";

/// A flow is served on a leg where its client sent bytes twice, and is at rest: whether the leg is
/// parked, and whether the bytes were in dispute.
fn served(twice: &[u8], from: usize) -> (u64, u64) {
    let (mut w, mut c) = world(2).at_rest();
    let at = c.clone();
    w.moves(&mut c, GET);
    let mut again = w.client_wire(&at, PSH_ACK, twice);
    again.seq = again.seq.wrapping_add(from as u32);
    w.inject(&again.build());
    w.served(&mut c);
    w.run_ms(1);
    let before = w.count(Counter::LegsParked);
    w.run_ms(50);
    let parked = w.count(Counter::LegsParked) - before;
    (parked, w.count(Counter::Disputed))
}

#[test]
fn a_leg_on_which_the_same_bytes_came_again_is_anothers_next() {
    assert_eq!(OTHER.len(), GET.len());
    assert_eq!(served(GET, 0), (1, 0));
    assert_eq!(served(&GET[5..], 5), (1, 0));
}

/// The pod may have taken the ones that no guard has seen.
#[test]
fn a_leg_on_which_other_bytes_came_is_nobody_elses() {
    assert_eq!(served(OTHER, 0), (0, 1));
    assert_eq!(served(b"x", 3), (0, 1));
    assert_eq!(served(&OTHER[..9], 0), (0, 1));
}

/// Ahead of lost ones a kernel keeps bytes, and may take others for the same numbers.
#[test]
fn so_it_is_with_bytes_that_are_ahead_of_others() {
    let (mut w, mut c) = world(2).at_rest();
    let wire = |w: &World, c: &Conn, data: &[u8]| {
        let mut wire = w.client_wire(c, PSH_ACK, &data[9..]);
        wire.seq = c.seq.wrapping_add(9);
        wire.build()
    };
    w.inject(&wire(&w, &c, GET));
    w.inject(&wire(&w, &c, GET));
    assert_eq!(w.count(Counter::Disputed), 0);
    let other = [&GET[..9], &OTHER[..GET.len() - 9]].concat();
    w.inject(&wire(&w, &c, &other));
    assert_eq!(w.count(Counter::Disputed), 1);
    w.client_sends(&mut c, PSH_ACK, &GET[..9]);
}

#[test]
fn what_nobody_has_a_copy_of_is_in_dispute() {
    let (mut w, mut c) = world(2).at_rest();
    w.moves(&mut c, GET);
    // An answer begins, and no copy is kept; the second request is not acknowledged.
    let second = w.client_wire(&c, PSH_ACK, GET).build();
    w.client_sends(&mut c, PSH_ACK, GET);
    let mut first = c.clone();
    first.seq = c.seq.wrapping_sub(GET.len() as u32);
    w.responds(&mut first, OK);
    w.inject(&second);
    assert_eq!(w.count(Counter::Disputed), 1);
}

#[test]
fn urgent_data_is_plain_where_a_guard_follows() {
    let (mut w, c) = world(1).at_rest();
    let wire = w.client_wire(&c, PSH_ACK | Flags::URG, GET);
    let sent = one(w.inject(&wire.build()));
    assert_eq!((sent.segment.flags, sent.data()), (PSH_ACK, GET));
    assert_eq!(w.count(Counter::UrgentCleared), 1);
}

/// Nothing is followed any more, and telnet, FTP and rlogin mean something by it.
#[test]
fn urgent_data_stays_urgent_where_a_guard_cannot_follow() {
    let (mut w, mut c) = world(1).at_rest();
    w.client_sends(&mut c, PSH_ACK, b"\xff\xf4");
    let wire = w.client_wire(&c, PSH_ACK | Flags::URG, b"\xff\xf2");
    let sent = one(w.inject(&wire.build()));
    assert_eq!(sent.segment.flags, PSH_ACK | Flags::URG);
    assert_eq!(w.count(Counter::UrgentCleared), 0);
}

/// By what the first one promised, whoever has the leg next would be read wrongly.
#[test]
fn a_syn_with_another_offer_is_another_connection() {
    let (mut w, mut c) = world(1).begun();
    w.inject(&w.syn_wire(&c).build());
    assert_eq!(w.taken("SynSent", "ClientRst"), 0);
    c.options.client_wscale = Some(3);
    w.inject(&w.syn_wire(&c).build());
    assert_eq!(w.taken("SynSent", "ClientRst"), 1);
}

/// Somebody has the flow moved, at once as it is at rest.
fn migrated(w: &mut World, c: &Conn) -> Vec<Sent> {
    let wanted = Migrate { client: c.client, frontend: None, to: None };
    w.engine.migrate(w.now, &wanted, &mut w.out).expect("it is at rest");
    let frames = w.out.take();
    frames.iter().map(|f| w.check(f)).collect()
}

/// What came ahead of missing bytes is known no more once another pod was asked, and the pod that
/// was left has it still: whoever went on there would have it behind his own.
#[test]
fn a_leg_whose_pod_has_bytes_that_are_known_no_more_is_nobody_elses() {
    for early in [false, true] {
        let (mut w, mut c) = world(2).at_rest();
        if early {
            let mut ahead = w.client_wire(&c, PSH_ACK, GET);
            ahead.seq = ahead.seq.wrapping_add(40);
            assert_eq!(w.inject(&ahead.build()).len(), 1);
        }
        let old = c.clone();
        let sent = migrated(&mut w, &c);
        w.adopted(&mut c, &sent);
        w.inject(&answer(&sent[0], Reason::AcceptQueueFull, 0));
        w.assert_state(&old, "Idle");
        w.run_ms(50);
        let counts = [Counter::LegsParked, Counter::Disputed].map(|c| w.count(c));
        assert_eq!(counts, if early { [0, 1] } else { [1, 0] });
    }
}

/// What was known of the leg when its flow was to move counts for that move alone.
#[test]
fn a_move_that_was_taken_back_leaves_no_leg_to_others() {
    let (mut w, mut c) = world(3).at_rest();
    let old = c.clone();
    let adoption = w.moves(&mut c, UPGRADE);
    w.inject(&answer(&adoption, Reason::AcceptQueueFull, 0));
    (c.pod, c.leg) = (old.pod, old.leg);
    w.served(&mut c);
    let sent = migrated(&mut w, &c);
    w.adopted(&mut c, &sent);
    w.confirms(&c);
    assert_eq!(w.count(Counter::LegsParked), 0);
}

/// A kernel goes by the later of two.
#[test]
fn a_client_with_two_clocks_leaves_the_later_one_to_the_next() {
    let (mut w, mut a) = world(2).at_rest();
    let mut b = w.idle(2);
    let old = a.clone();
    let (low, high) = (CLIENT_CLOCK, CLIENT_CLOCK + (1 << 30));
    let mut wire = w.client_wire(&a, Flags::ACK, &[]);
    wire.options = [stamps(low, a.seen_ts), stamps(high, a.seen_ts)].concat();
    w.inject(&wire.build());
    w.moves(&mut a, GET);
    w.responds(&mut a, OK);
    let sent = one(w.data(&mut b, GET));
    assert_eq!(sent.segment.src_port, old.leg.port());
    let (value, _) = sent.stamps().expect("timestamps");
    assert!(value.wrapping_sub(high) as i32 >= 0, "{value} is old to that pod");
}

/// Its pod was told of a longer MSS than the path that was found since, and sends by that one.
#[test]
fn a_leg_that_is_too_wide_for_its_clients_path_is_nobody_elses() {
    for narrow in [false, true] {
        let mut w = world(2);
        let (mut a, mut other) = (w.open(1), Conn::new(2));
        other.options.mss = Some(if narrow { 1_000 } else { 1_460 });
        let mut b = w.idle_as(other);
        w.stays(&mut a, GET);
        let quoted = w.responds(&mut a, OK);
        if narrow {
            let between = (router(false), quoted.segment.src);
            let (macs, mtu) = ((ROUTER_MAC, OUR_MAC), 600_u32.to_be_bytes());
            w.inject(&wire::icmp(macs, between, 60, [3, 4], &mtu, &quoted.frame[14..]));
        }
        assert_eq!(w.count(Counter::NarrowPaths), u64::from(narrow));
        w.ack(&mut a);
        let old = a.clone();
        w.moves(&mut a, GET);
        w.responds(&mut a, OK);
        let sent = w.data(&mut b, GET);
        assert_eq!(sent[0].segment.src_port == old.leg.port(), !narrow, "{sent:?}");
    }
}

/// Redis answers the one by an error and its end, whatever it has been sent since, and the other by
/// nothing.
#[test]
fn a_leg_with_what_redis_refuses_behind_its_last_command_is_nobody_elses() {
    for (behind, parked) in [(b"*-0\r\n", 0), (b"*-1\r\n", 1)] {
        let mut w = World::of(2, |p| {
            p.migration.legs = Legs::Shared;
            p.protocol = Protocol::Resp;
        });
        let mut c = w.open(1);
        w.stays(&mut c, b"PING\r\n");
        w.stays(&mut c, behind);
        w.responds(&mut c, b"+PONG\r\n");
        w.ack(&mut c);
        w.run_ms(50);
        assert_eq!(w.count(Counter::LegsParked), parked, "{behind:?}");
    }
}

/// What a pod may have had before counts when its policy has legs shared.
#[test]
fn what_came_while_legs_were_not_shared_counts_too() {
    let bytes: [(&[u8], u32); 3] = [(GET, 0), (OTHER, 0), (GET, (0xffff << 14) + 99)];
    for (number, (twice, ahead)) in (0..).zip(bytes) {
        let (mut w, mut c) = World::new(2).at_rest();
        let at = c.clone();
        w.moves(&mut c, GET);
        let mut again = w.client_wire(&at, PSH_ACK, twice);
        again.seq = again.seq.wrapping_add(ahead);
        let sent = w.inject(&again.build());
        assert_eq!(sent.last().expect("it goes on").data(), twice);
        w.served(&mut c);
        w.change(|s| s.policies[0].migration.legs = Legs::Shared);
        w.run_ms(1);
        w.moves(&mut c, GET);
        w.responds(&mut c, OK);
        let parked = w.count(Counter::LegsParked);
        assert_eq!(parked, u64::from(number == 0), "{number}");
        assert_eq!(w.count(Counter::Disputed), 0);
    }
}
