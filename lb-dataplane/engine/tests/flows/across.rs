//! Clients of one IP family whose pods have addresses of the other one: each segment is written
//! anew, and everything else is as with pods of their own.

use crate::{
    common::{
        Conn, Dest, FRAME_BYTES, OUR_MAC, ROUTER_MAC, Sent, World, backend, conn::*, frontend,
        policy, router, settings, wire,
    },
    translation::{agrees, moved, opens, pod_says},
};
use baton_api::{ClientAddress, MoveMethod};
use baton_engine::{Counter, DropReason, Verdict};
use baton_packet::{Decoded, Flags, IcmpKind, decode};

/// A world whose pods have one family's addresses only.
fn world(pods_v6: bool, change: impl FnOnce(&mut baton_api::Policy)) -> World {
    let mut web = policy(3);
    change(&mut web);
    web.backends.retain(|b| b.endpoint.address().is_ipv6() == pods_v6);
    World::with(settings(), web)
}

fn both_ways(test: impl Fn(&mut World, Conn), change: impl Fn(&mut baton_api::Policy)) {
    for v6 in [false, true] {
        let mut w = world(!v6, &change);
        let mut c = Conn::of(1, v6);
        c.options.mss = Some(if v6 { 1_440 } else { 1_460 });
        test(&mut w, c);
        assert_eq!(w.count(Counter::NoFrame), 0);
    }
}

#[test]
fn segments_are_the_same_in_the_other_family() {
    let test = |w: &mut World, c: Conn| {
        let v6 = c.v6();
        // Numbers, options, window and data are compared at each step, in the short way and in the
        // general one.
        for predicts in [true, false] {
            w.engine.set_prediction(predicts);
            let mut c = w.idle_as(c.clone());
            assert_eq!((c.v6(), c.leg.is_ipv6()), (v6, !v6));
            w.exchange_anywhere(&mut c);
            let long = [b'x'; 1_400];
            w.stays(&mut c, &post_head(1_400));
            w.stays(&mut c, &long);
            w.served(&mut c);
            w.client_sends(&mut c, RST_ACK, b"");
        }
    };
    both_ways(test, |p| p.migration.mode = baton_api::MigrationMode::Never);
}

#[test]
fn flows_move_by_adoption() {
    let test = |w: &mut World, c: Conn| {
        let mut c = w.idle_as(c);
        for moves in 1..4 {
            let from = c.pod;
            w.moves(&mut c, GET);
            assert_ne!(c.pod, from);
            w.served(&mut c);
            let done = w.engine.state(w.now).policies[0].migrations_total;
            assert_eq!(done, moves);
        }
    };
    both_ways(test, |_| ());
}

#[test]
fn flows_move_by_translation_and_copies_are_sent_again() {
    let test = |w: &mut World, c: Conn| {
        let mut c = w.idle_as(c);
        let mut p = moved(w, &mut c, GET);
        pod_says(w, (&mut c, &mut p), PSH_ACK, OK);
        w.client_sends(&mut c, Flags::ACK, b"");
        w.assert_state(&c, "Idle");
        // From one translated leg to another one.
        let mut p = opens(w, &mut c, GET);
        let sent = agrees(w, &mut p);
        let copy = sent.last().expect("the request");
        assert_eq!((copy.to, copy.data()), (Dest::Pod(c.pod), GET));
        assert_eq!(copy.segment.is_v6(), !c.v6());
    };
    both_ways(test, |p| p.migration.method = MoveMethod::Translation);
}

#[test]
fn a_pod_that_is_told_of_its_clients_hears_their_own_family() {
    let test = |w: &mut World, mut c: Conn| {
        w.syn(&mut c);
        w.synack(&mut c);
        let header = one(w.client_sends(&mut c, Flags::ACK, b""));
        let family = header.data()[13];
        assert_eq!(family, if c.v6() { 0x21 } else { 0x11 });
    };
    both_ways(test, |p| p.client_address = ClientAddress::ProxyV2);
}

#[test]
fn an_address_of_the_other_family_is_not_restored() {
    let test = |w: &mut World, mut c: Conn| {
        let syn = w.syn(&mut c);
        assert!(syn.data().is_empty(), "{syn:?}");
        assert_eq!(w.count(Counter::LegsHidden), 1);
        assert_eq!(w.count(Counter::LegsRestored), 0);
    };
    both_ways(test, |p| p.client_address = ClientAddress::Restore);
}

/// What a router says of a segment that is too long for a link of so many bytes.
fn too_big(quoted: &Sent, mtu: u32) -> Vec<u8> {
    let v6 = quoted.segment.is_v6();
    let kind = if v6 { [2, 0] } else { [3, 4] };
    let between = (router(v6), quoted.segment.src);
    let macs = (ROUTER_MAC, OUR_MAC);
    wire::icmp(macs, between, 60, kind, &mtu.to_be_bytes(), &quoted.frame[14..])
}

/// A segment of theirs was too long for a link of so many bytes: what the one who sent it is told.
fn told(w: &mut World, error: &[u8]) -> IcmpKind {
    let mut buffer = error.to_vec();
    buffer.resize(FRAME_BYTES, 0x5a);
    w.call_frame(&mut buffer, error.len());
    assert_eq!(w.count(Counter::IcmpTranslated), 1);
    let Verdict::Transmit(len) = w.verdict else { panic!("{:?}", w.verdict) };
    match decode(&buffer[..len]) {
        Ok(Decoded::Icmp(error)) => error.kind,
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_sends_too_long_segments_hears_of_his_own_familys_limit() {
    for to_client in [true, false] {
        let test = |w: &mut World, c: Conn| {
            let mut c = w.idle_as(c);
            let quoted = if to_client {
                let wire = w.pod_wire(&c, PSH_ACK, OK);
                w.forwarded_to_client(&c, &wire)
            } else {
                w.stays(&mut c, GET)
            };
            let v6 = quoted.segment.is_v6();
            let kind = told(w, &too_big(&quoted, 1_400));
            let expected = if v6 {
                IcmpKind::FragmentationNeeded { mtu: 1_380 }
            } else {
                IcmpKind::PacketTooBig { mtu: 1_420 }
            };
            assert_eq!(kind, expected);
        };
        both_ways(test, |p| p.migration.mode = baton_api::MigrationMode::Never);
    }
}

/// Below what IPv6 promises, no pod hears of it, also not by way of IPv4.
#[test]
fn an_ipv6_clients_path_takes_what_ipv6_promises() {
    let mut w = world(false, |p| {
        p.migration.mode = baton_api::MigrationMode::Never;
    });
    let mut c = Conn::of(1, true);
    c.options.mss = Some(1_440);
    let c = w.idle_as(c);
    let wire = w.pod_wire(&c, PSH_ACK, OK);
    let quoted = w.forwarded_to_client(&c, &wire);
    let mut error = too_big(&quoted, 1_279);
    let len = error.len();
    w.call_frame(&mut error, len);
    assert_eq!(w.verdict, Verdict::Absorbed);
    assert_eq!(w.count(Counter::NarrowPaths), 1);
    let kind = told(&mut w, &too_big(&quoted, 1_280));
    assert_eq!(kind, IcmpKind::FragmentationNeeded { mtu: 1_260 });
}

#[test]
fn an_error_that_the_other_family_has_no_words_for_is_dropped() {
    let test = |w: &mut World, c: Conn| {
        let mut c = w.idle_as(c);
        let quoted = w.stays(&mut c, GET);
        let v6 = quoted.segment.is_v6();
        let kind = if v6 { [4, 0] } else { [12, 0] };
        let between = (router(v6), quoted.segment.src);
        let macs = (ROUTER_MAC, OUR_MAC);
        let mut error = wire::icmp(macs, between, 60, kind, &[0; 4], &quoted.frame[14..]);
        let len = error.len();
        w.call_frame(&mut error, len);
        assert_eq!(w.verdict, Verdict::Drop(DropReason::IcmpUnrelated));
        assert_eq!(w.count(Counter::IcmpTranslated), 0);
    };
    both_ways(test, |p| p.migration.mode = baton_api::MigrationMode::Never);
}

#[test]
fn pods_of_the_clients_own_family_are_preferred() {
    let mut w = world(false, |_| ());
    let mut c = Conn::of(1, true);
    w.syn(&mut c);
    assert!(!c.leg.is_ipv6());
    w.change(|s| s.policies[0].backends.push(backend(true, 0)));
    let mut c = Conn::of(2, true);
    w.syn(&mut c);
    assert_eq!((c.leg.is_ipv6(), c.pod), (true, 0));
}

#[test]
fn without_an_address_of_the_pods_family_clients_are_refused() {
    for v6 in [false, true] {
        let mut s = settings();
        s.addresses.retain(|address| address.is_ipv6() == v6);
        let mut web = policy(2);
        let of = |b: &baton_api::Backend| b.endpoint.address().is_ipv6();
        web.backends.retain(|b| of(b) != v6);
        web.frontends.retain(|f| f.address() == frontend(v6).ip());
        let mut w = World::with(s, web);
        let c = Conn::of(1, v6);
        let rst = one(w.inject(&w.syn_wire(&c).build()));
        assert_eq!(w.verdict, Verdict::Drop(DropReason::NoFamily));
        assert_eq!((rst.to, rst.is(RST_ACK)), (Dest::Client, true));
        assert_eq!(rst.segment.ack.0, c.seq.wrapping_add(1), "as a kernel refuses");
        assert_eq!(w.engine.state(w.now).policies[0].flows, 0);
    }
}
