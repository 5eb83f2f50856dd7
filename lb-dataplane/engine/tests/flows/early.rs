//! Segments that come ahead of missing ones: whatever the order on the wire, guards are shown bytes
//! in order, nothing is pinned, and the flow moves with its next request.

use crate::common::{Conn, Dest, End, Sent, World, conn::*, policy, settings};
use baton_api::{MigrationMode, Protocol};
use baton_engine::{Counter, Lost, Settings};
use baton_packet::Flags;
use proptest::prelude::*;

/// Bytes of a segment here, unless a test says otherwise.
const MSS: usize = 1_400;
/// The same with jumbo frames (MTU 9,001).
const JUMBO: usize = 8_949;

fn roomy() -> Settings {
    let mut s = settings();
    s.limits.kept_segments = 4_096;
    s
}

fn world_of(s: Settings, protocol: Protocol) -> World {
    let mut p = policy(2);
    p.protocol = protocol;
    World::with(s, p)
}

fn world(protocol: Protocol) -> World {
    world_of(roomy(), protocol)
}

fn early(w: &World) -> u64 {
    w.table("early_segments").0
}

/// What one side says, in segments.
fn cut(bytes: &[u8], sizes: &[usize]) -> Vec<(u32, Vec<u8>)> {
    let (mut at, mut parts) = (0, Vec::new());
    let mut sizes = sizes.iter().copied().cycle();
    while at < bytes.len() {
        let end = bytes.len().min(at + sizes.next().expect("sizes"));
        parts.push((at as u32, bytes[at..end].to_vec()));
        at = end;
    }
    parts
}

/// Brings a side's segments in this order; what is not passed on comes again behind all others.
fn bring(w: &mut World, c: &Conn, client: bool, parts: &[(u32, Vec<u8>)], order: &[usize]) {
    let mut due: std::collections::VecDeque<usize> = order.iter().copied().collect();
    let mut times = 0;
    while let Some(at) = due.pop_front() {
        let (offset, data) = &parts[at];
        let mut wire = match client {
            true => w.client_wire(c, PSH_ACK, data),
            false => w.pod_wire(c, PSH_ACK, data),
        };
        wire.seq = wire.seq.wrapping_add(*offset);
        let to = if client { Dest::Pod(c.pod) } else { Dest::Client };
        let sent = w.inject(&wire.build());
        if sent.is_empty() {
            due.push_back(at);
        } else {
            assert_eq!(one(sent).to, to);
        }
        times += 1;
        assert!(times < 100_000, "it never gets through");
    }
}

/// A request and its answer, in these orders; the flow is at rest then.
fn talk(w: &mut World, c: &mut Conn, said: [&[u8]; 2], sizes: &[usize], orders: [&[usize]; 2]) {
    let (request, answer) = (cut(said[0], sizes), cut(said[1], sizes));
    bring(w, c, true, &request, orders[0]);
    c.seq = c.seq.wrapping_add(said[0].len() as u32);
    bring(w, c, false, &answer, orders[1]);
    c.server = c.server.wrapping_add(said[1].len() as u32);
    w.ack(c);
    w.assert_state(c, "Idle");
    assert_eq!((w.pins(), early(w)), (0, 0));
}

fn chunked(chunks: &[usize]) -> Vec<u8> {
    let mut all = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for size in chunks {
        all.extend(format!("{size:x}\r\n").bytes());
        all.extend((0..*size).map(|i| b'a' + (i % 26) as u8));
        all.extend(b"\r\n");
    }
    all.extend(b"0\r\n\r\n");
    all
}

fn sized(bytes: usize) -> Vec<u8> {
    let mut all = format!("HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\n\r\n").into_bytes();
    all.extend((0..bytes).map(|i| b'a' + (i % 26) as u8));
    all
}

fn post(bytes: usize) -> Vec<u8> {
    let mut all = post_head(bytes);
    all.extend((0..bytes).map(|i| b'A' + (i % 26) as u8));
    all
}

/// A request, its answer, and a request that may move, by protocol.
fn conversations() -> impl Strategy<Value = (Protocol, Vec<u8>, Vec<u8>, &'static [u8])> {
    let bytes = || prop_oneof![0..40_usize, 0..9_000_usize];
    let http = (bytes(), bytes())
        .prop_map(|(asked, answered)| (Protocol::Http1, post(asked), sized(answered), GET));
    let chunks = prop::collection::vec(1..3_000_usize, 0..6)
        .prop_map(|chunks| (Protocol::Http1, GET.to_vec(), chunked(&chunks), GET));
    let bare = bytes().prop_map(|n| (Protocol::RequestResponse, GET.to_vec(), sized(n), GET));
    let ping: &[u8] = b"*1\r\n$4\r\nPING\r\n";
    let redis = (prop::collection::vec(bytes(), 1..5), bytes()).prop_map(move |(sets, got)| {
        let (mut asked, mut answered) = (Vec::new(), Vec::new());
        for bytes in sets {
            asked.extend(format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${bytes}\r\n").bytes());
            asked.resize(asked.len() + bytes, b'v');
            asked.extend(b"\r\n");
            answered.extend(b"+OK\r\n");
        }
        asked.extend(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
        answered.extend(format!("${got}\r\n").bytes());
        answered.resize(answered.len() + got, b'v');
        answered.extend(b"\r\n");
        (Protocol::Resp, asked, answered, ping)
    });
    let version: &[u8] = b"version\r\n";
    let memcached = (bytes(), bytes()).prop_map(move |(set, got)| {
        let mut asked = format!("set k 0 0 {set}\r\n").into_bytes();
        asked.resize(asked.len() + set, b'v');
        asked.extend(b"\r\nget k\r\n");
        let mut answered = format!("STORED\r\nVALUE k 0 {got}\r\n").into_bytes();
        answered.resize(answered.len() + got, b'v');
        answered.extend(b"\r\nEND\r\n");
        (Protocol::Memcached, asked, answered, version)
    });
    prop_oneof![http, chunks, bare, redis, memcached]
}

/// An order of so many segments: by keys, so that it shrinks towards the right one, with some of
/// them doubled.
fn order(count: usize, keys: &[u16], doubled: &[usize]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|at| keys[at % keys.len()]);
    for at in doubled {
        let number = order[at % order.len()];
        order.insert(at * 7 % (order.len() + 1), number);
    }
    order
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The first request of a connection and its answer, then a second one.
    #[test]
    fn any_order_is_followed(
        (protocol, request, answer, next) in conversations(),
        sizes in prop::collection::vec(prop_oneof![3 => 1..MSS, 1 => 1..JUMBO], 1..6),
        keys in prop::collection::vec(any::<u16>(), 1..40),
        doubled in prop::collection::vec(any::<usize>().prop_map(|n| n % 1_000), 0..6),
        kept in prop_oneof![1..40_u32, Just(4_096)],
    ) {
        // Small segments of a long text are more than there is room for, which is tried too, but
        // not all the time.
        let least = (request.len().max(answer.len()) / 60).max(1);
        let sizes: Vec<usize> = sizes.into_iter().map(|s| s.max(least)).collect();
        let mut s = settings();
        s.limits.kept_segments = kept;
        let mut w = world_of(s, protocol);
        w.change(|s| s.policies[0].migration.mode = MigrationMode::Never);
        let mut c = w.open(1);
        let orders = [&request, &answer].map(|said| {
            let count = cut(said, &sizes).len();
            order(count, &keys, &doubled)
        });
        for _ in 0..2 {
            talk(&mut w, &mut c, [&request, &answer], &sizes, [&orders[0], &orders[1]]);
        }
        w.change(|s| s.policies[0].migration.mode = MigrationMode::Always);
        w.moves(&mut c, next);
    }
}

#[test]
fn a_lost_head_of_an_answer_pins_nothing() {
    let (mut w, mut c) = world(Protocol::Http1).at_rest();
    w.moves(&mut c, GET);
    let answer = cut(&sized(20_000), &[MSS]);
    let last = answer.len() - 1;
    let order: Vec<usize> = (1..=last).chain([0]).collect();
    bring(&mut w, &c, false, &answer, &order);
    assert_eq!(w.count(Counter::EarlySegments), last as u64);
    c.server = c.server.wrapping_add(sized(20_000).len() as u32);
    w.ack(&mut c);
    w.assert_state(&c, "Idle");
    assert_eq!((w.pins(), early(&w)), (0, 0));
    w.moves(&mut c, GET);
}

#[test]
fn the_first_request_may_come_in_any_order() {
    for protocol in [Protocol::Http1, Protocol::RequestResponse] {
        let (mut w, mut c) = world(protocol).opened();
        talk(&mut w, &mut c, [&post(4_000), OK], &[MSS], [&[2, 1, 0], &[0]]);
        w.moves(&mut c, GET);
    }
}

#[test]
fn what_comes_early_at_a_boundary_stays_with_its_owner() {
    let (mut w, mut c) = world(Protocol::Http1).at_rest();
    talk(&mut w, &mut c, [&post(2_000), OK], &[MSS], [&[1, 0], &[0]]);
    assert_eq!(w.count(Counter::MigrationsBegun), 0);
    w.moves(&mut c, GET);
}

#[test]
fn an_early_close_counts_in_its_turn() {
    let (mut w, mut c) = world(Protocol::Http1).at_rest();
    let mut fin = w.client_wire(&c, FIN_ACK, &GET[9..]);
    fin.seq = fin.seq.wrapping_add(9);
    w.forwarded_to_pod(&c, &fin);
    w.assert_state(&c, "Idle");
    w.stays(&mut c, &GET[..9]);
    w.assert_state(&c, "ClientFin");
    assert_eq!((w.pins(), early(&w)), (0, 0));
}

#[test]
fn a_request_with_a_hole_that_was_filled_outlives_its_pod() {
    let mut w = world(Protocol::Http1);
    w.change(|s| {
        s.policies[0].on_backend_failure = baton_api::BackendFailure::Replay;
        s.policies[0].migration.mode = MigrationMode::DrainOnly;
    });
    let mut c = w.idle(1);
    let request = post(4_000);
    let boundary = c.seq;
    bring(&mut w, &c, true, &cut(&request, &[MSS]), &[0, 2, 1]);
    c.seq = c.seq.wrapping_add(request.len() as u32);
    let sent = w.dies(c.pod, End::Rst, &[c.clone()]);
    let behind = w.adopted_from(&mut c, &sent, boundary);
    let told: Vec<u8> = behind.iter().flat_map(|s| s.data().to_vec()).collect();
    assert_eq!(told, request);
    w.responds(&mut c, OK);
    assert_eq!(Lost::ALL.iter().map(|l| w.engine.lost(*l)).sum::<u64>(), 0);
}

#[test]
fn bytes_behind_a_hole_are_an_answer_that_nobody_else_may_give() {
    let (mut w, mut c) = world(Protocol::Http1).at_rest();
    w.moves(&mut c, GET);
    let answer = sized(3_000);
    bring(&mut w, &c, false, &cut(&answer, &[MSS])[1..2], &[0]);
    w.assert_state(&c, "Response");
    let sent = w.dies(c.pod, End::Rst, &[c.clone()]);
    assert!(!sent.iter().any(Sent::is_adoption), "{sent:?}");
    assert_eq!(w.engine.lost(Lost::ResponseBegun), 1);
    assert_eq!(early(&w), 0);
}

#[test]
fn a_reset_behind_a_hole_ends_the_flow() {
    for client in [true, false] {
        let (mut w, mut c) = world(Protocol::Http1).at_rest();
        let said = if client { post(3_000) } else { sized(3_000) };
        if !client {
            w.moves(&mut c, GET);
        }
        bring(&mut w, &c, client, &cut(&said, &[MSS])[1..], &[0, 1]);
        let mut rst = match client {
            true => w.client_wire(&c, RST_ACK, &[]),
            false => w.pod_wire(&c, RST_ACK, &[]),
        };
        rst.seq = rst.seq.wrapping_add(said.len() as u32);
        assert_eq!(w.inject(&rst.build()).len(), 1);
        let state = w.state(&c);
        assert!(state.is_none_or(|s| s == "Closed"), "client {client}");
        assert_eq!(early(&w), 0);
    }
}

/// A segment of the client's whose bytes begin so far behind what was seen.
fn ahead(w: &mut World, c: &Conn, bytes: usize, by: u32) -> bool {
    let mut wire = w.client_wire(c, PSH_ACK, &vec![b'x'; bytes]);
    wire.seq = wire.seq.wrapping_add(by);
    !w.inject(&wire.build()).is_empty()
}

#[test]
fn what_one_flow_sets_aside_is_bounded() {
    let (mut w, c) = world(Protocol::Http1).at_rest();
    for number in 0..64 {
        assert!(ahead(&mut w, &c, 100, 100 + number * 100));
    }
    assert!(ahead(&mut w, &c, 100, 100), "what is there needs no room");
    assert!(!ahead(&mut w, &c, 100, 6_500), "not passed on");
    assert_eq!((early(&w), w.count(Counter::EarlyFlowFull)), (64, 1));
    let rst = w.client_wire(&c, RST_ACK, &[]);
    w.forwarded_to_pod(&c, &rst);
    assert_eq!(early(&w), 0);
}

#[test]
fn what_one_network_sets_aside_is_bounded() {
    let mut s = settings();
    s.limits.kept_segments = 64;
    let mut w = world_of(s, Protocol::Http1);
    let (first, second) = (w.idle(1), w.idle(2));
    let other = w.idle_as(Conn::of(3, true));
    for (c, by) in [(&first, 100), (&first, 200), (&second, 100), (&second, 200)] {
        assert!(ahead(&mut w, c, 100, by));
    }
    assert!(!ahead(&mut w, &second, 100, 300));
    assert_eq!((early(&w), w.count(Counter::EarlyNetworkFull)), (4, 1));
    assert!(ahead(&mut w, &other, 100, 100), "another network's");
    assert_eq!(w.table("early_segments"), (5, 16));
}

#[test]
fn what_all_flows_set_aside_is_bounded() {
    let mut s = settings();
    s.limits.kept_segments = 4;
    let (mut w, first) = world_of(s, Protocol::Http1).at_rest();
    let second = w.idle_as(Conn::of(2, true));
    assert!(ahead(&mut w, &first, 100, 100));
    assert!(!ahead(&mut w, &second, 100, 100));
    assert_eq!(w.count(Counter::EarlyFull), 1);
    // Nothing is lost by that: in its turn it passes.
    let rst = w.client_wire(&first, RST_ACK, &[]);
    w.forwarded_to_pod(&first, &rst);
    w.change(|s| s.policies[0].migration.mode = MigrationMode::Never);
    talk(&mut w, &mut { second }, [GET, OK], &[9], [&[1, 0], &[0, 1, 2, 3, 4]]);
}

#[test]
fn jumbo_frames_are_set_aside_in_pieces() {
    let mut s = roomy();
    s.mtu = 9_001;
    let mut w = world_of(s, Protocol::Http1);
    w.change(|s| s.policies[0].migration.mode = MigrationMode::Never);
    let mut c = w.idle(1);
    let request = post(2 * JUMBO);
    bring(&mut w, &c, true, &cut(&request, &[100, JUMBO]), &[1]);
    assert_eq!((early(&w), w.count(Counter::EarlySegments)), (6, 1));
    // The same again takes no more room.
    bring(&mut w, &c, true, &cut(&request, &[100, JUMBO]), &[1]);
    assert_eq!((early(&w), w.count(Counter::EarlySegments)), (6, 1));
    let answer = sized(3 * JUMBO);
    talk(&mut w, &mut c, [&request, &answer], &[100, JUMBO], [&[2, 1, 0, 3], &[3, 2, 1, 5, 4, 0]]);
    w.change(|s| s.policies[0].migration.mode = MigrationMode::Always);
    w.moves(&mut c, GET);
}

#[test]
fn a_pinned_flow_sets_nothing_aside() {
    let (mut w, mut c) = world(Protocol::Http1).opened();
    w.stays(&mut c, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03");
    assert_eq!(w.pins(), 1);
    assert!(ahead(&mut w, &c, 100, 100));
    assert_eq!(early(&w), 0);
    let mut late = w.pod_wire(&c, PSH_ACK, b"answer");
    late.seq = late.seq.wrapping_add(10);
    w.forwarded_to_client(&c, &late);
    assert_eq!(early(&w), 0);
}

#[test]
fn an_idle_flow_whose_owner_dies_forgets_what_came_early() {
    let (mut w, mut c) = world(Protocol::Http1).at_rest();
    assert!(ahead(&mut w, &c, 5, 9));
    let boundary = c.seq;
    let sent = w.dies(c.pod, End::Fin, &[c.clone()]);
    w.adopted_from(&mut c, &sent, boundary);
    assert_eq!(early(&w), 0);
    w.confirms(&c);
    w.stays(&mut c, GET);
    w.responds(&mut c, OK);
    assert_eq!(w.pins(), 0);
}

/// Bits of a segment that carries nothing new do not matter.
#[test]
fn an_acknowledgement_ahead_of_a_hole_is_not_set_aside() {
    let (mut w, c) = world(Protocol::Http1).at_rest();
    let mut ack = w.client_wire(&c, Flags::ACK, &[]);
    ack.seq = ack.seq.wrapping_add(50);
    w.forwarded_to_pod(&c, &ack);
    assert_eq!(early(&w), 0);
}
