//! What protocol guards find, seen in what flows may do: pins by reason, framing, and the limits of
//! their tables.

use crate::common::{Conn, End, World, conn::*, policy, settings};
use baton_api::{MigrationMode, Protocol};
use baton_engine::{Counter, Lost, PinReason};
use baton_guard::Pin;
use baton_packet::Reason;

fn world(protocol: Protocol) -> World {
    World::of(2, |p| p.protocol = protocol)
}

/// A request that stays, and what comes back.
fn talk(w: &mut World, c: &mut Conn, request: &[u8], response: &[u8]) {
    w.stays(c, request);
    w.answers(c, response);
}

#[test]
fn other_protocols_are_recognised_by_their_first_bytes() {
    for (data, pin) in [
        (&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], Pin::Tls),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Pin::Http2),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Pin::Ssh),
    ] {
        for protocol in
            [Protocol::Http1, Protocol::Resp, Protocol::Memcached, Protocol::RequestResponse]
        {
            let (mut w, mut c) = world(protocol).opened();
            talk(&mut w, &mut c, data, b"\x16\x03\x03answer");
            talk(&mut w, &mut c, data, b"\x16\x03\x03answer");
            assert_eq!(w.engine.pinned(PinReason::Guard(pin)), 1, "{protocol:?}");
            assert_eq!(w.count(Counter::MigrationsBegun), 0);
            assert_eq!(w.pins(), 1, "counted once");
            let by_reason = &w.engine.state(w.now).policies[0].pins_total;
            assert_eq!(by_reason.get(pin.label()), Some(&1));
        }
        // Where nothing ever moves, nothing is looked at.
        let (mut w, mut c) = world(Protocol::None).opened();
        w.stays(&mut c, data);
        assert_eq!(w.pins(), 0);
    }
}

#[test]
fn a_server_that_speaks_first_pins_in_every_protocol() {
    for protocol in
        [Protocol::Http1, Protocol::Resp, Protocol::Memcached, Protocol::RequestResponse]
    {
        let (mut w, mut c) = world(protocol).opened();
        w.answers(&mut c, b"220 mail\r\n");
        w.assert_state(&c, "Idle");
        assert_eq!(w.engine.pinned(PinReason::ServerFirst), 1);
        assert_eq!(w.pins(), 1);
        let by_reason = &w.engine.state(w.now).policies[0].pins_total;
        assert_eq!(by_reason.get("server_first"), Some(&1));
        w.exchange(&mut c);
        assert_eq!(w.count(Counter::MigrationsBegun), 0);
    }
}

#[test]
fn http_messages_end_where_their_framing_says() {
    let both: &[u8] = &[b"HTTP/1.1 103 Early Hints\r\n\r\n", OK].concat();
    let cases: [(&[u8], &[&[u8]]); 8] = [
        (GET, &[b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n01234", b"56789"]),
        (
            GET,
            &[
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n01",
                b"234\r\n0\r\n",
                b"\r\n",
            ],
        ),
        (b"HEAD / HTTP/1.1\r\n\r\n", &[b"HTTP/1.1 200 OK\r\nconte", b"nt-length: 9999\r\n\r\n"]),
        (GET, &[b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9999\r", b"\n\r\n"]),
        (GET, &[b"HTTP/1.1 204 No Content\r\n", b"\r\n"]),
        (GET, &[both]),
        (
            GET,
            &[b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"],
        ),
        (POST, &[b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n", b"x"]),
    ];
    for (request, parts) in cases {
        let (mut w, mut c) = world(Protocol::Http1).opened();
        w.stays(&mut c, request);
        for (i, part) in parts.iter().enumerate() {
            w.answers(&mut c, part);
            let rests = w.state(&c).as_deref() == Some("Idle");
            assert_eq!(rests, i + 1 == parts.len(), "{:?}", String::from_utf8_lossy(part));
        }
        assert_eq!(w.table("guarded_flows").0, 0, "nothing to remember");
        w.moves(&mut c, GET);
    }
}

#[test]
fn a_chunked_upload_moves_as_a_whole() {
    let (mut w, mut c) = world(Protocol::Http1).at_rest();
    w.moves(&mut c, b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nab");
    w.stays(&mut c, b"c\r\n0\r\n\r\n");
    w.served(&mut c);
    w.moves(&mut c, GET);
}

#[test]
fn connection_bound_authentication_and_upgrades_pin() {
    let negotiate =
        b"HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Negotiate\r\ncontent-length: 0\r\n\r\n";
    let asks = b"GET / HTTP/1.1\r\nauthorization: NTLM TlRMTVNTUAABAAAA\r\n\r\n";
    let upgrade = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n";
    let connect = b"CONNECT a:443 HTTP/1.1\r\n\r\n";
    // As the first request, or as one that could move its connection.
    for (first, request, response, pin) in [
        (true, GET, &negotiate[..], Pin::BoundAuth),
        (true, asks, OK, Pin::BoundAuth),
        (true, GET, upgrade, Pin::Upgrade),
        (true, connect, OK, Pin::Connect),
        (false, connect, OK, Pin::Connect),
    ] {
        let mut w = world(Protocol::Http1);
        let mut c = if first { w.open(1) } else { w.idle(1) };
        talk(&mut w, &mut c, request, response);
        talk(&mut w, &mut c, GET, OK);
        assert_eq!(w.engine.pinned(PinReason::Guard(pin)), 1, "{pin:?}");
        assert_eq!(w.count(Counter::MigrationsBegun), 0);
        assert_eq!(w.table("guarded_flows").0, 0, "a pinned flow is not followed");
        assert_eq!(w.table("kept_segments").0, 0);
    }
}

#[test]
fn unseen_bytes_inside_a_body_are_counted() {
    // A lost segment of a body: what comes behind it is seen first.
    let (mut w, mut c) = world(Protocol::Http1).at_rest();
    w.moves(&mut c, b"GET / HTTP/1.1\r\n\r\n");
    w.responds(&mut c, b"HTTP/1.1 200 OK\r\ncontent-length: 30\r\n\r\n0123456789");
    let mut late = w.pod_wire(&c, PSH_ACK, b"0123456789");
    late.seq = late.seq.wrapping_add(10);
    w.forwarded_to_client(&c, &late);
    w.responds(&mut c, b"0123456789");
    c.server = c.server.wrapping_add(10);
    w.ack(&mut c);
    w.assert_state(&c, "Idle");
    assert_eq!(w.pins(), 0);
    w.moves(&mut c, GET);
}

#[test]
fn bytes_that_were_seen_before_are_not_shown_twice() {
    let (mut w, mut c) = world(Protocol::Http1).at_rest();
    w.moves(&mut c, &post_head(6));
    w.stays(&mut c, b"abc");
    // Repeated together with new ones.
    let mut again = w.client_wire(&c, PSH_ACK, b"abcdef");
    again.seq = again.seq.wrapping_sub(3);
    w.forwarded_to_pod(&c, &again);
    c.seq = c.seq.wrapping_add(3);
    w.responds(&mut c, OK);
    let mut again = w.pod_wire(&c, PSH_ACK, OK);
    again.seq = again.seq.wrapping_sub(OK.len() as u32);
    w.forwarded_to_client(&c, &again);
    w.ack(&mut c);
    w.assert_state(&c, "Idle");
    assert_eq!(w.pins(), 0);
    w.moves(&mut c, GET);
}

#[test]
fn memcached_is_followed() {
    let (mut w, mut c) = world(Protocol::Memcached).opened();
    talk(&mut w, &mut c, b"get a\r\n", b"VALUE a 0 3\r\nEND\r\nEND\r\n");
    w.moves(&mut c, b"set a 0 0 5\r\nhe");
    w.stays(&mut c, b"llo\r\n");
    w.answers(&mut c, b"STORED\r\n");
    w.moves(&mut c, b"set a 0 0 1 noreply\r\nx\r\nget a\r\n");
    w.answers(&mut c, b"VALUE a 0 1\r\nx\r\n");
    w.assert_state(&c, "Response");
    w.answers(&mut c, b"END\r\n");
    w.moves(&mut c, b"version\r\n");
    assert_eq!(w.pins(), 0);
    w.data(&mut c, b"\x80\x00\x00\x00");
    assert_eq!(w.pins(), 1);
}

#[test]
fn without_a_free_tracker_the_oldest_flow_is_pinned_and_served() {
    let mut s = settings();
    s.limits.guarded_flows = 16;
    let mut p = policy(2);
    p.migration.mode = MigrationMode::Always;
    let mut w = World::with(s, p);
    let mut flows: Vec<Conn> = (0..17).map(|n| w.open(n)).collect();
    for c in &mut flows {
        w.stays(c, GET);
    }
    assert_eq!(w.table("guarded_flows"), (16, 16));
    assert_eq!(w.engine.pinned(PinReason::GuardsFull), 1);
    for c in &mut flows {
        w.served(c);
    }
    assert_eq!(w.table("guarded_flows").0, 0);
    let (first, others) = flows.split_first_mut().expect("flows");
    for c in others {
        w.moved_exchange(c);
    }
    // How many answers are to come is not known of it, whatever it seems.
    for _ in 0..3 {
        talk(&mut w, first, GET, OK);
        assert_eq!((pinned(&w), w.table("guarded_flows").0), (1, 0));
    }
}

/// Flows that are pinned now.
fn pinned(w: &World) -> usize {
    let (flows, _) = w.engine.flows(w.now, 0, usize::MAX);
    flows.iter().filter(|f| f.pinned.is_some()).count()
}

/// The next owner of an orphan has to be told its session.
#[test]
fn a_flow_without_an_owner_keeps_its_tracker() {
    let mut s = settings();
    s.limits.guarded_flows = 1;
    let mut p = policy(2);
    p.protocol = Protocol::Resp;
    let mut w = World::with(s, p);
    let (mut c, mut other) = (w.open(1), w.open(2));
    talk(&mut w, &mut c, b"SELECT 8\r\n", b"+OK\r\n");
    w.adopters.fill(Some(Reason::AcceptQueueFull));
    w.run_ms(1_100);
    w.dies(c.pod, End::Fin, std::slice::from_ref(&c));
    w.data(&mut c, b"GET a\r\n");
    w.assert_state(&c, "Orphan");
    w.data(&mut other, b"GET b\r\n");
    let flow = w.flow(other.client, |_| true).expect("it lives");
    assert!(pinned(&w) == 1 && flow.pinned.is_some());
}

#[test]
fn whoever_ends_no_request_harms_only_himself() {
    let mut s = settings();
    s.limits.guarded_flows = 4;
    let mut w = World::with(s, policy(2));
    let (mut slow, mut honest) = (w.idle(1), w.idle(2));
    // This one only waits for its answer.
    w.moves(&mut slow, GET);
    let mut holders: Vec<Conn> = (10..13).map(|n| w.idle(n)).collect();
    for c in &mut holders {
        w.moves(c, b"G");
    }
    assert_eq!(w.table("guarded_flows"), (4, 4));
    for round in 1..=3 {
        w.moved_exchange(&mut honest);
        assert_eq!(w.engine.pinned(PinReason::GuardsFull), 1, "{round}");
    }
    w.served(&mut slow);
    w.moves(&mut slow, GET);
}

#[test]
fn sessions_give_their_trackers_to_nobody() {
    let mut s = settings();
    s.limits.guarded_flows = 2;
    let mut p = policy(2);
    p.protocol = Protocol::Resp;
    let mut w = World::with(s, p);
    let (mut session, mut holder, mut honest) = (w.open(1), w.open(2), w.open(3));
    talk(&mut w, &mut session, b"*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n", b"+OK\r\n");
    w.stays(&mut holder, b"*");
    talk(&mut w, &mut honest, b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n");
    w.moves(&mut honest, b"*1\r\n$4\r\nPING\r\n");
    assert_eq!(w.engine.pinned(PinReason::GuardsFull), 1, "the holder");
    // It has its session still.
    w.data(&mut session, b"*1\r\n$4\r\nPING\r\n");
    assert_eq!(w.count(Counter::SessionsRestored), 1);
}

#[test]
fn with_no_buffer_left_a_request_is_served_and_dies_with_its_pod() {
    let mut s = settings();
    s.limits.kept_segments = 1;
    let (mut w, mut first) = World::with(s, policy(2)).at_rest();
    let mut second = w.idle(2);
    while second.pod != first.pod {
        second = w.idle(second.client.port() - 30_000 + 1);
    }
    w.out.free = 0;
    w.stays(&mut first, GET);
    w.stays(&mut second, GET);
    w.out.free = usize::MAX;
    assert_eq!(w.table("kept_segments"), (1, 1));
    assert!(w.count(Counter::KeptFull) >= 1);
    let boundary = first.seq.wrapping_sub(GET.len() as u32);
    let flows = [first.clone(), second];
    let sent = w.dies(first.pod, End::Rst, &flows);
    let behind = w.adopted_from(&mut first, &sent, boundary);
    assert_eq!(one(behind).data(), GET);
    assert_eq!(World::to_client(&sent).len(), 1);
    assert_eq!(w.engine.lost(Lost::NotKept), 1);
    w.responds(&mut first, OK);
}

#[test]
fn a_pin_during_an_adoption_does_not_lose_the_request() {
    let (mut w, mut c) = world(Protocol::Http1).at_rest();
    let old = c.clone();
    let adoption = w.moves(&mut c, GET);
    // Behind the request comes what no guard can follow.
    w.stays(&mut c, b"\0\0\0");
    assert_eq!(w.pins(), 1);
    let sent = w.inject(&crate::common::answer(&adoption, baton_packet::Reason::NoListener, 0));
    let bytes: Vec<u8> = sent.iter().flat_map(|s| s.data().to_vec()).collect();
    assert_eq!(bytes, [GET, b"\0\0\0"].concat());
    (c.pod, c.leg) = (old.pod, old.leg);
    w.served(&mut c);
    talk(&mut w, &mut c, GET, OK);
    assert_eq!(w.count(Counter::MigrationsBegun), 1);
}
