//! Opening flows: NAT, options, checksums, stale sockets, refusals, reuse of ports.

use crate::common::{
    Conn, Dest, ROUTER_MAC, World, conn::*, ours, pod, pod_mac, policy, router, settings, wire,
};
use baton_api::{Algorithm, Legs};
use baton_engine::{Counter, DropReason, Route, Verdict, Via};
use baton_packet::{Flags, Mac, ether_dst, parse_syn_options};
use std::net::IpAddr;

#[test]
fn handshake_and_full_nat_in_both_families() {
    for v6 in [false, true] {
        let mut w = World::new(3);
        let mut c = Conn::of(1, v6);
        let syn = w.syn(&mut c);
        assert_eq!(syn.segment.src, ours(v6));
        assert_eq!(syn.segment.dst, pod(v6, c.pod).ip());
        assert_eq!(syn.segment.seq.0, c.seq, "sequence numbers are never translated");
        w.assert_state(&c, "SynSent");
        let synack = w.synack(&mut c);
        assert_eq!(synack.segment.seq.0, c.server.wrapping_sub(1));
        w.assert_state(&c, "SynAcked");
        w.ack(&mut c);
        w.assert_state(&c, "Fresh");
        w.exchange(&mut c);
        w.assert_state(&c, "Idle");
        assert_eq!(w.count(Counter::FlowsOpened), 1);
        assert_eq!(w.table("flows").0, 1);
    }
}

#[test]
fn sequence_numbers_cross_their_wrap_untranslated() {
    let mut w = World::with(settings(), policy(1));
    let mut c = Conn::new(0);
    c.seq = u32::MAX - 3;
    c.server = u32::MAX - 9;
    let mut c = w.open_as(c);
    for _ in 0..4 {
        // `exchange` asserts that numbers, options, window and data leave as they came.
        w.exchange(&mut c);
    }
    assert!(c.seq < 1_000 && c.server < 1_000, "both went round");
    w.assert_state(&c, "Idle");
}

#[test]
fn a_partial_checksum_is_completed_and_a_bad_one_is_dropped() {
    for v6 in [false, true] {
        let mut w = World::new(1);
        let mut c = w.open_as(Conn::of(1, v6));
        let before = w.count(Counter::PartialChecksums);
        let wire = w.client_wire(&c, PSH_ACK, GET);
        // Every frame that leaves is checked in full by the harness.
        let mut frame = wire.build();
        wire::settle_tcp(&mut frame, true);
        let sent = one(w.inject(&frame));
        assert_same(&sent, &wire);
        assert_eq!(w.count(Counter::PartialChecksums), before + 1);
        c.seq = c.seq.wrapping_add(GET.len() as u32);

        let mut frame = w.pod_wire(&c, PSH_ACK, OK).build();
        *frame.last_mut().expect("bytes") ^= 1;
        assert!(w.inject(&frame).is_empty());
        assert_eq!(w.verdict, Verdict::Drop(DropReason::BadChecksum));
        assert_eq!(w.dropped(DropReason::BadChecksum), 1);
        w.assert_state(&c, "Request");
    }
}

#[test]
fn mptcp_and_fast_open_are_stripped_and_all_else_is_kept() {
    let mut w = World::new(2);
    let mut c = Conn::new(1);
    c.options.timestamps = false;
    c.options.extra = vec![30, 12, 0, 0x81, 1, 2, 3, 4, 5, 6, 7, 8, 34, 2, 1, 1];
    let sent = w.syn(&mut c);
    let options = sent.segment.options(&sent.frame);
    let found = parse_syn_options(options);
    assert!(!found.has_mptcp && !found.has_tfo);
    assert_eq!((found.mss, found.window_scale, found.sack_permitted), (Some(1_460), Some(7), true));
    assert_eq!(w.count(Counter::OptionsStripped), 1);
    // Length and place of what is kept do not change.
    let wire = w.syn_wire(&c);
    assert_eq!(options.len(), wire.options.len());
    let kept = wire.options.len() - 16;
    assert_eq!(options[..kept], wire.options[..kept]);
    assert!(options[kept..].iter().all(|b| *b == 1), "{options:?}");
}

#[test]
fn an_adoption_option_of_a_client_is_stripped() {
    let (mut w, mut c) = World::new(2).opened();
    let mut wire = w.client_wire(&c, Flags::ACK, &[]);
    wire.options = [&[253, 28, 0xba, 0x70][..], &[9; 24]].concat();
    wire.options.extend(wire::stamps(1, 2));
    let sent = one(w.inject(&wire.build()));
    assert_eq!(sent.segment.options(&sent.frame)[..20], [1; 20]);
    assert_eq!(w.count(Counter::OptionsStripped), 1);
    w.exchange(&mut c);
}

#[test]
fn data_in_the_syn_of_a_fast_open_client_breaks_nothing() {
    let mut w = World::new(2);
    let mut c = Conn::new(1);
    c.options.timestamps = false;
    c.options.extra = vec![34, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1];
    let mut wire = w.syn_wire(&c);
    wire.data = GET.to_vec();
    let sent = one(w.inject(&wire.build()));
    take_leg(&mut c, &sent);
    // Without the cookie the pod acknowledges the SYN alone (RFC 7413 section 3), and the client
    // sends again.
    w.synack(&mut c);
    w.assert_state(&c, "SynAcked");
    assert_eq!(w.count(Counter::StaleSockets), 0);
    w.exchange(&mut c);
    w.assert_state(&c, "Idle");
}

/// Some kernels take it without a cookie (`net.ipv4.tcp_fastopen` with 0x200,
/// `TCP_FASTOPEN_NO_COOKIE`): their application would have the request, and have it once more from
/// the client, which hears of another leg's SYN-ACK that only the SYN arrived.
#[test]
fn data_in_a_syn_reaches_no_pod() {
    let mut w = World::new(2);
    let mut c = Conn::new(1);
    let mut wire = w.syn_wire(&c);
    let whole = one(w.inject(&wire.build()));
    let mut w = World::new(2);
    wire.data = GET.to_vec();
    for _ in 0..2 {
        let sent = one(w.inject(&wire.build()));
        assert!(sent.is(Flags::SYN) && sent.data().is_empty(), "{sent:?}");
        let options =
            |s: &crate::common::Sent| baton_packet::parse_syn_options(s.segment.options(&s.frame));
        assert_eq!(options(&sent), options(&whole));
        take_leg(&mut c, &sent);
    }
    w.synack(&mut c);
    w.stays(&mut c, GET);
    w.responds(&mut c, OK);
}

#[test]
fn a_stale_socket_on_the_syn_is_reset_and_stepped_around_at_once() {
    for stale_synack in [false, true] {
        let mut w = World::new(1);
        let mut c = Conn::new(1);
        let syn = w.syn(&mut c);
        let (leg, mut wire) = (c.leg, w.pod_wire(&c, Flags::ACK, &[]));
        wire.ack = 4_242;
        if stale_synack {
            wire.flags = Flags::SYN | Flags::ACK;
        }
        let sent = w.inject(&wire.build());
        assert_eq!(sent.len(), 2, "RST and the SYN again");
        assert!(sent[0].is(Flags::RST));
        assert_eq!(sent[0].segment.seq.0, 4_242, "the exact number (RFC 5961)");
        assert_eq!(sent[0].segment.src_port, leg.port());
        assert!(sent[1].is(Flags::SYN));
        assert_ne!(sent[1].segment.src_port, leg.port());
        assert_eq!(sent[1].segment.options(&sent[1].frame), syn.segment.options(&syn.frame));
        assert_eq!(w.count(Counter::StaleSockets), 1);
        take_leg(&mut c, &sent[1]);
        w.accepts(&mut c);
        w.exchange(&mut c);
    }
}

#[test]
fn stale_sockets_on_a_syn_are_met_a_bounded_number_of_times() {
    let (mut w, mut c) = World::new(1).begun();
    let stale = |w: &mut World, c: &mut Conn| {
        let mut wire = w.pod_wire(c, Flags::ACK, &[]);
        wire.ack = 4_242;
        let sent = w.inject(&wire.build());
        sent.last().map(|last| take_leg(c, last)).is_some()
    };
    // More answers of one socket than a byte can count.
    assert_eq!((0..300).filter(|_| stale(&mut w, &mut c)).count(), 7);
    // The client's retransmission goes on from there, past the socket that was left in the way.
    for _ in 0..3 {
        assert!(w.syn(&mut c).is(Flags::SYN));
        assert_eq!((0..300).filter(|_| stale(&mut w, &mut c)).count(), 7);
    }
    assert!(w.syn(&mut c).is(Flags::SYN));
    w.accepts(&mut c);
    w.exchange(&mut c);
}

#[test]
fn a_refused_syn_goes_to_another_pod() {
    let (mut w, mut c) = World::new(2).begun();
    let first = c.pod;
    let mut rst = w.pod_wire(&c, RST_ACK, &[]);
    (rst.seq, rst.ack) = (0, c.seq.wrapping_add(1));
    let sent = one(w.inject(&rst.build()));
    take_leg(&mut c, &sent);
    assert_ne!(c.pod, first);
    w.accepts(&mut c);
    w.exchange(&mut c);
}

#[test]
fn a_syn_refused_by_all_is_refused_to_the_client() {
    let (mut w, c) = World::new(1).begun();
    let mut rst = w.pod_wire(&c, RST_ACK, &[]);
    (rst.seq, rst.ack) = (0, c.seq.wrapping_add(1));
    w.forwarded_to_client(&c, &rst);
    assert_eq!(w.state(&c), None);
    assert_eq!(w.table("flows").0, 0);
}

#[test]
fn an_inexact_reset_does_not_refuse_a_syn() {
    let (mut w, mut c) = World::new(2).begun();
    let mut rst = w.pod_wire(&c, RST_ACK, &[]);
    rst.ack = c.seq;
    assert!(w.inject(&rst.build()).is_empty());
    w.synack(&mut c);
}

#[test]
fn a_repeated_syn_goes_the_same_way() {
    let (mut w, mut c) = World::new(3).begun();
    let leg = (c.pod, c.leg);
    for _ in 0..3 {
        w.run_ms(1_000);
        w.syn(&mut c);
        assert_eq!((c.pod, c.leg), leg);
    }
    assert_eq!(w.table("flows").0, 1);
}

#[test]
fn a_client_reuses_its_port_for_a_new_connection() {
    let (mut w, mut c) = World::new(2).at_rest();
    w.client_fin(&mut c);
    w.pod_fin(&mut c);
    w.assert_state(&c, "Closed");
    let mut again = Conn::new(1);
    again.seq = 77;
    let old = c.leg;
    let mut again = w.open_as(again);
    assert_ne!(again.leg, old, "the old port is in quarantine");
    w.exchange(&mut again);
    assert_eq!(w.table("flows").0, 1);
    assert_eq!(w.count(Counter::FlowsOpened), 2);
}

#[test]
fn a_syn_on_a_live_connection_is_challenged() {
    for meant in [false, true] {
        let (mut w, mut c) = World::new(2).at_rest();
        let mut syn = w.syn_wire(&c);
        syn.seq = 5;
        let challenge = one(w.inject(&syn.build()));
        assert_eq!(challenge.to, Dest::Client);
        assert!(challenge.is(Flags::ACK));
        assert_eq!(challenge.segment.seq.0, c.server.wrapping_sub(1), "old to a living client");
        w.assert_state(&c, "Idle");
        if !meant {
            w.assert_serves_after_move(&mut c);
            continue;
        }
        // The client knows nothing of the old connection.
        let mut rst = w.client_wire(&c, Flags::RST, &[]);
        rst.seq = challenge.segment.ack.0;
        w.forwarded_to_pod(&c, &rst);
        assert_eq!(w.state(&c), None);
        let c = w.open_as(Conn::new(1));
        w.assert_state(&c, "Fresh");
    }
}

impl World {
    /// The flow lives: its next request is served, wherever.
    pub fn assert_serves_after_move(&mut self, c: &mut Conn) {
        let sent = self.data(c, GET);
        take_leg(c, sent.last().expect("a request that leaves"));
        self.served(c);
    }
}

/// The first SYN-ACK is lost, and the pod's server begins anew, whose kernel answers the repeated
/// SYN with another number.
#[test]
fn a_pod_that_answers_anew_with_another_number_is_believed() {
    for legs in [Legs::Private, Legs::Shared] {
        let (mut w, mut c) = World::of(1, |p| p.migration.legs = legs).begun();
        let first = w.synack_wire(&c);
        w.forwarded_to_client(&c, &first);
        w.run_ms(1_000);
        w.syn(&mut c);
        c.server = c.server.wrapping_add(16_000_000);
        w.synack(&mut c);
        // It was not lost but late.
        w.forwarded_to_client(&c, &first);
        w.ack(&mut c);
        w.assert_state(&c, "Fresh");
        w.stays(&mut c, GET);
        w.responds(&mut c, OK);
    }
}

#[test]
fn an_abandoned_syn_is_replaced_by_a_new_one() {
    for answered in [false, true] {
        let (mut w, mut c) = World::new(2).begun();
        if answered {
            w.synack(&mut c);
        }
        let mut again = Conn::new(1);
        again.seq = 99;
        let mut again = w.open_as(again);
        w.exchange(&mut again);
        assert_eq!(w.table("flows").0, 1);
    }
}

#[test]
fn a_late_copy_of_an_earlier_syn_does_not_replace_a_later_one() {
    for meant in [false, true] {
        let mut w = World::new(2);
        let mut late = Conn::new(1);
        late.seq = 99;
        let late = w.syn_wire(&late).build();
        w.run_ms(2);
        let mut c = Conn::new(1);
        w.syn(&mut c);
        w.synack(&mut c);
        let challenge = one(w.inject(&late));
        assert_eq!((challenge.to, challenge.segment.ack.0), (Dest::Client, c.seq));
        w.assert_state(&c, "SynAcked");
        if !meant {
            w.ack(&mut c);
            w.exchange(&mut c);
            continue;
        }
        // Another host that has the port now, behind an address that both have.
        let mut rst = w.client_wire(&c, Flags::RST, &[]);
        rst.seq = challenge.segment.ack.0;
        w.forwarded_to_pod(&c, &rst);
        let syn = one(w.inject(&late));
        assert!(matches!(syn.to, Dest::Pod(_)) && syn.is(Flags::SYN));
    }
}

#[test]
fn flags_that_no_tcp_sends_are_dropped() {
    let (mut w, c) = World::new(1).opened();
    for flags in [
        Flags::SYN | Flags::FIN,
        Flags::SYN | Flags::RST,
        Flags::SYN | Flags::ACK,
        Flags(0),
        Flags::FIN,
    ] {
        let before = w.dropped(DropReason::BadFlags);
        assert!(w.inject(&w.client_wire(&c, flags, &[]).build()).is_empty());
        assert_eq!(w.dropped(DropReason::BadFlags), before + 1, "{flags:?}");
    }
    w.assert_state(&c, "Fresh");
}

#[test]
fn every_mix_of_options_opens_and_moves() {
    for bits in 0..16 {
        let mut w = World::new(2);
        let mut c = Conn::new(1);
        c.options = Options {
            mss: (bits & 1 != 0).then_some(1_360),
            client_wscale: (bits & 2 != 0).then_some(0),
            server_wscale: (bits & 2 != 0).then_some(8),
            sack: bits & 4 != 0,
            timestamps: bits & 8 != 0,
            ecn: bits & 1 != 0,
            extra: Vec::new(),
        };
        let mut c = w.idle_as(c);
        let present = c.clone();
        let adoption = w.moves(&mut c, GET);
        let m = w.expect_adoption(&adoption, &present);
        assert_eq!(m.mss, if bits & 1 != 0 { 1_360 } else { 536 });
        assert_eq!(
            (m.wscale_ok, m.sack_ok, m.timestamps_ok, m.ecn_ok),
            (bits & 2 != 0, bits & 4 != 0, bits & 8 != 0, bits & 1 != 0)
        );
        assert_eq!((m.server_wscale, m.client_wscale), (if bits & 2 != 0 { 8 } else { 0 }, 0));
        w.served(&mut c);
        w.assert_state(&c, "Idle");
    }
}

#[test]
fn a_side_that_lacks_an_option_turns_it_off() {
    let mut w = World::new(2);
    let mut c = Conn::new(1);
    c.options.client_wscale = None;
    let mut c = w.idle_as(c);
    let present = c.clone();
    let adoption = w.moves(&mut c, GET);
    let m = w.expect_adoption(&adoption, &present);
    assert!(!m.wscale_ok);
    assert_eq!((m.server_wscale, m.client_wscale), (0, 0));
}

#[test]
fn maglev_keeps_a_client_on_its_pod_across_restarts() {
    let mut p = policy(5);
    p.algorithm = Algorithm::Maglev;
    let pods = |seed| {
        let mut s = settings();
        s.seed = seed;
        let mut w = World::with(s, p.clone());
        (0..40).map(|n| w.open(n).pod).collect::<Vec<_>>()
    };
    let first = pods(1);
    assert_eq!(first, pods(2), "whatever the seed");
    assert!((0..5).all(|p| first.contains(&p)), "{first:?}");
}

#[test]
fn first_segments_without_a_neighbour_are_counted_and_later_ones_pass() {
    let mut w = World::new(1);
    w.engine.set_neighbour(pod(false, 0).ip(), None);
    let mut c = Conn::new(1);
    assert!(w.inject(&w.syn_wire(&c).build()).is_empty());
    assert_eq!(w.verdict, Verdict::Drop(DropReason::NoNeighbour));
    let asked = std::iter::from_fn(|| w.engine.next_unresolved()).collect::<Vec<_>>();
    assert!(asked.contains(&pod(false, 0).ip()), "{asked:?}");
    w.apply();
    let sent = w.syn(&mut c);
    assert_eq!(sent.to, Dest::Pod(0));
}

/// On a node's network: what is behind another interface is given to the node's stack, and what
/// came by it goes back.
#[test]
fn what_leads_through_the_host_is_given_to_it_and_answered_there() {
    for v6 in [false, true] {
        let host = pod(v6, 9).ip();
        for (to_pod, from_client) in [
            (Via::Host(None), ROUTER_MAC),
            (Via::Host(Some(host)), ROUTER_MAC),
            // The client is beyond the router, and yet it came by the host.
            (Via::Link, Mac::HOST),
            (Via::Host(None), Mac::HOST),
        ] {
            let mut w = World::unprobed(settings(), policy(1));
            let route = |prefix, prefix_len, via| Route { prefix, prefix_len, via };
            w.engine.set_routes(&[
                route(pod(v6, 0).ip(), if v6 { 128 } else { 32 }, to_pod),
                route(router(v6), 0, Via::Router(router(v6))),
            ]);
            w.strict = false;
            w.poll();
            let mut c = Conn::of(1, v6);
            let mut wire = w.syn_wire(&c);
            wire.src_mac = from_client;
            let sent = w.inject(&wire.build());
            let [syn] = &sent[..] else {
                panic!("{sent:?}");
            };
            let (mac, source) = match to_pod {
                Via::Host(source) => (Mac::HOST, source.unwrap_or(ours(v6))),
                _ => (pod_mac(0), ours(v6)),
            };
            assert_eq!(ether_dst(&syn.frame), mac);
            assert_eq!(syn.segment.src, source);
            let besides: &[IpAddr] = if source == ours(v6) { &[] } else { &[source] };
            assert_eq!(w.engine.steering().sources, besides);
            take_leg(&mut c, syn);
            let answer = w.synack(&mut c);
            assert_eq!(ether_dst(&answer.frame), from_client);
            // A route that is gone for a while changes nothing of the legs, another one does.
            w.engine.set_routes(&[]);
            assert_eq!(w.engine.steering().sources, besides);
            w.engine.set_routes(&[route(router(v6), 0, Via::Router(router(v6)))]);
            assert!(w.engine.steering().sources.is_empty());
            let asked: Vec<_> = std::iter::from_fn(|| w.engine.next_unresolved()).collect();
            assert!(asked.iter().all(|hop| !hop.is_unspecified()), "{asked:?}");
        }
    }
}

/// As when the default router falls silent and the machine goes on by another one: connections that
/// are open do so, too.
#[test]
fn open_connections_go_on_by_the_router_that_there_is_now() {
    for v6 in [false, true] {
        let mut w = World::new(1);
        let mut c = w.idle_as(Conn::of(1, v6));
        w.strict = false;
        let answered = |w: &mut World, c: &mut Conn| {
            w.stays(c, GET);
            let sent = w.responds(c, OK);
            w.ack(c);
            ether_dst(&sent.frame)
        };
        assert_eq!(answered(&mut w, &mut c), ROUTER_MAC);
        let other = pod(v6, 12).ip();
        let route = |prefix, prefix_len, via| Route { prefix, prefix_len, via };
        let link = |pods: IpAddr| route(pods, if v6 { 64 } else { 16 }, Via::Link);
        let default = |router| route(router, 0, Via::Router(router));
        w.engine.set_routes(&[link(ours(v6)), default(other)]);
        w.engine.set_neighbour(router(v6), None);
        w.poll();
        let asked: Vec<_> = std::iter::from_fn(|| w.engine.next_unresolved()).collect();
        assert!(asked.contains(&other), "{asked:?}");
        w.neighbours();
        assert_eq!(answered(&mut w, &mut c), pod_mac(12));
        // Without any the last one may still be there.
        w.engine.set_routes(&[link(ours(v6))]);
        w.poll();
        assert_eq!(answered(&mut w, &mut c), pod_mac(12));
        // By the host's stack, and no more by another way from then on.
        w.engine.set_routes(&[link(ours(v6)), route(other, 0, Via::Host(None))]);
        w.poll();
        assert_eq!(answered(&mut w, &mut c), Mac::HOST);
        w.engine.set_routes(&[link(ours(v6)), default(router(v6))]);
        w.poll();
        assert_eq!(answered(&mut w, &mut c), Mac::HOST);
    }
}

/// A pod behind another interface, as one of a node's own is to a dataplane on that node's network.
#[test]
fn a_pod_behind_another_interface_is_sent_nothing_and_has_no_flows() {
    let mut w = World::unprobed(settings(), policy(2));
    let at = pod(false, 0).ip();
    let route = |prefix_len, via| Route { prefix: at, prefix_len, via };
    let routes =
        [route(16, Via::Link), route(0, Via::Router(router(false))), route(32, Via::Elsewhere)];
    w.engine.set_routes(&routes);
    let mut sent = w.poll();
    for n in 1..=20 {
        let c = w.open(n);
        assert_eq!(c.pod, 1);
        sent.extend(w.run_ms(1_000));
    }
    assert!(sent.iter().all(|s| s.to != Dest::Pod(0)), "{sent:?}");
    assert_eq!(
        w.engine.state(w.now).policies[0].backends[0].health.to_string(),
        "unreachable: its route leads through another interface"
    );
    // The only one: nobody is asked in its place.
    let mut w = World::unprobed(settings(), policy(1));
    w.engine.set_routes(&routes);
    w.poll();
    assert!(w.inject(&w.syn_wire(&Conn::new(1)).build()).is_empty());
    assert_eq!(w.verdict, Verdict::Drop(DropReason::NoNeighbour));
}
