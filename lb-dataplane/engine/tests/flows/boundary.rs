//! Where a request begins, and what is never taken for one.

use crate::common::{Conn, Sent, World, conn::*};
use baton_api::Protocol;
use baton_engine::{Counter, Lost, PinReason};
use baton_packet::Flags;

fn world(protocol: Protocol) -> World {
    World::of(2, |p| p.protocol = protocol)
}

fn adoptions(sent: &[Sent]) -> usize {
    sent.iter().filter(|s| s.message().is_some()).count()
}

/// The flow is at rest again and moves with its next request, so nothing has pinned it.
fn still_moves(w: &mut World, c: &mut Conn) {
    w.served(c);
    w.assert_state(c, "Idle");
    w.moves(c, GET);
}

#[test]
fn the_first_request_stays_and_the_second_moves() {
    let (mut w, mut c) = world(Protocol::Http1).opened();
    w.stays(&mut c, GET);
    still_moves(&mut w, &mut c);
}

#[test]
fn a_request_whose_ack_of_the_response_rides_along_moves() {
    let (mut w, mut c) = world(Protocol::Http1).opened();
    w.stays(&mut c, GET);
    w.responds(&mut c, OK);
    w.assert_state(&c, "Response");
    w.moves(&mut c, GET);
}

#[test]
fn a_retransmission_is_no_boundary() {
    let (mut w, mut c) = world(Protocol::Http1).at_rest();
    let again = c.seq.wrapping_sub(GET.len() as u32);
    for (seq, data) in [(again, GET), (again.wrapping_add(4), &GET[4..])] {
        let mut wire = w.client_wire(&c, PSH_ACK, data);
        wire.seq = seq;
        w.forwarded_to_pod(&c, &wire);
        w.assert_state(&c, "Idle");
    }
    w.moves(&mut c, GET);
}

/// A client that has not heard that its last request arrived sends it with the next one.
#[test]
fn what_is_new_behind_what_a_pod_has_is_a_boundary() {
    for protocol in [Protocol::Http1, Protocol::RequestResponse] {
        let mut w = world(protocol);
        let mut c = w.idle(1);
        let mut wire = w.client_wire(&c, PSH_ACK, &[GET, GET].concat());
        wire.seq = c.seq.wrapping_sub(GET.len() as u32);
        let sent = w.inject(&wire.build());
        assert_eq!(adoptions(&sent), 1, "{sent:?}");
        take_leg(&mut c, &sent[0]);
        (wire.seq, wire.data) = (c.seq, GET.to_vec());
        assert_same(&sent[1], &wire);
        c.client_sent(PSH_ACK, GET);
        still_moves(&mut w, &mut c);
    }
}

#[test]
fn a_close_behind_what_a_pod_has_is_no_request() {
    let mut w = world(Protocol::Http1);
    let mut c = w.idle(1);
    let mut wire = w.client_wire(&c, FIN_ACK, GET);
    wire.seq = c.seq.wrapping_sub(GET.len() as u32);
    let fin = one(w.inject(&wire.build()));
    assert_eq!((fin.segment.seq.0, fin.data()), (c.seq, &[][..]));
    c.client_sent(FIN_ACK, &[]);
    w.pod_fin(&mut c);
    assert_eq!(w.engine.lost(Lost::HalfClosed), 0);
}

#[test]
fn a_gap_in_the_request_is_no_boundary() {
    let (mut w, c) = world(Protocol::Http1).at_rest();
    let mut wire = w.client_wire(&c, PSH_ACK, GET);
    wire.seq = c.seq.wrapping_add(100);
    w.forwarded_to_pod(&c, &wire);
    assert_eq!(w.count(Counter::MigrationsBegun), 0);
}

#[test]
fn a_request_before_the_response_is_acknowledged_is_no_boundary() {
    let (mut w, mut c) = world(Protocol::Http1).opened();
    w.stays(&mut c, GET);
    w.responds(&mut c, OK);
    let mut wire = w.client_wire(&c, PSH_ACK, GET);
    wire.ack = c.server.wrapping_sub(5);
    w.forwarded_to_pod(&c, &wire);
    c.seq = c.seq.wrapping_add(GET.len() as u32);
    assert_eq!(w.count(Counter::MigrationsBegun), 0);
    still_moves(&mut w, &mut c);
}

#[test]
fn a_request_whose_bytes_the_pod_has_not_acknowledged_is_no_boundary() {
    let (mut w, mut c) = world(Protocol::Http1).opened();
    w.stays(&mut c, GET);
    let mut early = w.pod_wire(&c, PSH_ACK, OK);
    early.ack = c.seq.wrapping_sub(3);
    w.forwarded_to_client(&c, &early);
    c.server = c.server.wrapping_add(OK.len() as u32);
    w.ack(&mut c);
    w.assert_state(&c, "Response");
    w.stays(&mut c, GET);
    assert_eq!(w.count(Counter::MigrationsBegun), 0);
}

#[test]
fn the_pods_late_ack_brings_the_flow_to_rest() {
    let (mut w, mut c) = world(Protocol::Http1).opened();
    w.stays(&mut c, GET);
    let mut early = w.pod_wire(&c, PSH_ACK, OK);
    early.ack = c.seq.wrapping_sub(3);
    w.forwarded_to_client(&c, &early);
    c.server = c.server.wrapping_add(OK.len() as u32);
    w.ack(&mut c);
    w.pod_ack(&c);
    w.assert_state(&c, "Idle");
    w.moves(&mut c, GET);
}

/// The last of several answers came: only now the flow moves again.
fn after_the_last_answer(w: &mut World, c: &mut Conn, answers: usize) {
    let begun = w.count(Counter::MigrationsBegun);
    for left in (0..answers).rev() {
        w.served(c);
        w.assert_state(c, if left > 0 { "Response" } else { "Idle" });
    }
    assert_eq!(w.count(Counter::MigrationsBegun), begun);
    w.moves(c, GET);
    assert_eq!(PinReason::all().map(|p| w.engine.pinned(p)).sum::<u64>(), 0);
}

#[test]
fn pipelined_requests_are_followed_until_the_last_is_answered() {
    // In one segment, which moves as a whole.
    let (mut w, mut c) = world(Protocol::Http1).at_rest();
    w.moves(&mut c, &[GET, GET].concat());
    after_the_last_answer(&mut w, &mut c, 2);
    // One behind the other, during an adoption.
    let (mut w, mut c) = world(Protocol::Http1).at_rest();
    w.moves(&mut c, GET);
    w.stays(&mut c, GET);
    after_the_last_answer(&mut w, &mut c, 2);
    // While the first is outstanding, and while its response is on its way.
    for responded in [false, true] {
        let (mut w, mut c) = world(Protocol::Http1).opened();
        w.stays(&mut c, GET);
        if responded {
            w.responds(&mut c, OK);
            let mut wire = w.client_wire(&c, PSH_ACK, GET);
            wire.ack = c.server.wrapping_sub(1);
            w.forwarded_to_pod(&c, &wire);
            c.seq = c.seq.wrapping_add(GET.len() as u32);
        } else {
            w.stays(&mut c, GET);
        }
        after_the_last_answer(&mut w, &mut c, if responded { 1 } else { 2 });
    }
    // Both answers in one segment, in halves that end anywhere.
    let (mut w, mut c) = world(Protocol::Http1).at_rest();
    w.moves(&mut c, &[GET, GET, &GET[..7]].concat());
    let answers = [OK, OK].concat();
    for part in [&answers[..OK.len() + 3], &answers[OK.len() + 3..]] {
        w.answers(&mut c, part);
        w.assert_state(&c, "Response");
    }
    w.stays(&mut c, &GET[7..]);
    after_the_last_answer(&mut w, &mut c, 1);
}

#[test]
fn the_bare_rule_cannot_follow_a_pipeline() {
    let (mut w, mut c) = world(Protocol::RequestResponse).at_rest();
    w.moves(&mut c, b"one");
    w.responds(&mut c, b"answer");
    let mut wire = w.client_wire(&c, PSH_ACK, b"two");
    wire.ack = wire.ack.wrapping_sub(1);
    w.forwarded_to_pod(&c, &wire);
    c.seq = c.seq.wrapping_add(3);
    assert_eq!(w.engine.pinned(PinReason::Pipelined), 1);
    w.answers(&mut c, b"answer");
    w.exchange(&mut c);
    assert_eq!(w.count(Counter::MigrationsBegun), 1, "and never again");
}

#[test]
fn a_body_in_several_segments_does_not_pin() {
    let (mut w, mut c) = world(Protocol::Http1).at_rest();
    let parts = [&b"rest of the body"[..], b"and its end"];
    w.moves(&mut c, &post_head(parts.concat().len()));
    w.stays(&mut c, parts[0]);
    w.pod_ack(&c);
    w.stays(&mut c, parts[1]);
    still_moves(&mut w, &mut c);
}

#[test]
fn data_that_is_not_http_pins() {
    for data in [
        &b"\x16\x03\x01\x02\x00\x01\x00"[..],
        b" GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET / HTTP/1.1\rX",
        b"GET / HTTP/1.1\n",
        b"get / HTTP/1.1\r\n\r\n",
        b"<html>",
    ] {
        let (mut w, mut c) = world(Protocol::Http1).at_rest();
        w.stays(&mut c, data);
        assert_eq!(w.engine.pinned(PinReason::Guard(baton_guard::Pin::Unparsable)), 1, "{data:?}");
        assert_eq!(w.count(Counter::Boundaries), 0);
    }
}

#[test]
fn any_token_without_lower_case_is_a_method() {
    for data in [&b"ANY / HTTP/1.1\r\n\r\n"[..], b"X-1 * HTTP/1.0\r\n\r\n", b"PR"] {
        let (mut w, mut c) = world(Protocol::Http1).at_rest();
        w.moves(&mut c, data);
        w.assert_state(&c, "Adopting");
    }
}

/// The pod may keep the line and refuse the request behind it, which must be the same client's.
#[test]
fn an_empty_line_behind_a_request_holds_the_flow_until_the_next() {
    let (mut w, mut c) = world(Protocol::Http1).opened();
    w.stays(&mut c, &[GET, b"\r\n"].concat());
    w.served(&mut c);
    w.stays(&mut c, GET);
    still_moves(&mut w, &mut c);
}

#[test]
fn request_response_needs_no_method_and_none_never_moves() {
    let (mut w, mut c) = world(Protocol::RequestResponse).at_rest();
    w.moves(&mut c, b"*1\r\n$4\r\nPING\r\n");
    let (mut w, mut c) = world(Protocol::None).at_rest();
    for _ in 0..5 {
        w.exchange(&mut c);
    }
    assert_eq!(w.count(Counter::Boundaries), 0);
    assert_eq!(w.count(Counter::MigrationsBegun), 0);
}

#[test]
fn an_interim_response_does_not_end_a_request() {
    let (mut w, mut c) = world(Protocol::Http1).opened();
    w.stays(&mut c, b"POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 8\r\n\r\n");
    w.answers(&mut c, b"HTTP/1.1 100 Continue\r\n\r\n");
    w.assert_state(&c, "Request");
    w.stays(&mut c, b"the body");
    assert_eq!(w.count(Counter::Requests), 1);
    still_moves(&mut w, &mut c);
}

#[test]
fn a_server_that_speaks_unasked_ends_the_rest() {
    let (mut w, mut c) = world(Protocol::RequestResponse).at_rest();
    w.responds(&mut c, b"push");
    w.assert_state(&c, "Response");
    let sent = w.data(&mut c, b"request");
    assert_eq!(adoptions(&sent), 1, "its ACK of the push rides along");
}

#[test]
fn a_request_with_fin_stays() {
    let (mut w, mut c) = world(Protocol::Http1).at_rest();
    let wire = w.client_wire(&c, FIN_ACK | Flags::PSH, GET);
    w.forwarded_to_pod(&c, &wire);
    c.seq = c.seq.wrapping_add(GET.len() as u32 + 1);
    w.assert_state(&c, "ClientFin");
    w.responds(&mut c, OK);
    assert_eq!(w.count(Counter::MigrationsBegun), 0);
}
