//! What a tap copies of what passes: which frames, how much of them, and what it loses when.

use super::{
    Drain, Filter, Order, Packet, RATE_BYTES, RING_BYTES, SNAPLEN_HEADERS, SNAPLEN_MAX, Tap,
    tap::{Direction, tap},
    through,
};
use baton_api::{Limits, Snapshot};
use baton_engine::{Engine, Instant, Migrate, MigrateOrder, Output, Route, Settings, Verdict, Via};
use baton_packet::{AdoptionKey, Flags, Mac, SegmentSpec, SeqNumber, build_segment, decode};
use std::{
    net::{IpAddr, SocketAddr},
    sync::atomic::Ordering,
    time::Duration,
};

const FRONTEND: &str = "10.0.0.1:80";
const FRAME_BYTES: usize = 2_048;
const PAYLOAD: &[u8] = b"GET /secret HTTP/1.1\r\n\r\n";

/// One buffer, whose contents are of no interest behind the tap. An empty one is no room.
pub struct Out(Vec<u8>, pub Vec<Vec<u8>>);

impl Output for Out {
    fn frame(&mut self) -> Option<&mut [u8]> {
        Some(self.0.as_mut_slice()).filter(|room| !room.is_empty())
    }

    fn send(&mut self, len: usize) {
        self.1.push(self.0[..len].to_vec());
    }
}

/// An engine with two policies, of a backend each.
pub struct Lab {
    pub engine: Engine,
    pub now: Instant,
    pub out: Out,
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// A segment between two places.
pub fn segment(src: &str, dst: &str, flags: Flags, seq: u32, payload: &[u8]) -> Vec<u8> {
    let (src, dst) = (address(src), address(dst));
    let spec = SegmentSpec {
        src_mac: Mac([2, 0, 0, 0, 0, 9]),
        dst_mac: Mac([2, 0, 0, 0, 0, 1]),
        src: src.ip(),
        dst: dst.ip(),
        src_port: src.port(),
        dst_port: dst.port(),
        seq: SeqNumber(seq),
        ack: SeqNumber(u32::from(flags.has(ACK))),
        flags,
        window: 1_000,
        timestamps: Some((1, 2)),
        payload,
    };
    let mut frame = vec![0; FRAME_BYTES];
    let len = build_segment(&mut frame, &spec).expect("it fits");
    frame.truncate(len);
    frame
}

impl Lab {
    pub fn new() -> Self {
        let own: IpAddr = address(FRONTEND).ip();
        let settings = Settings {
            limits: Limits::default(),
            addresses: vec![own],
            legs_from_all: false,
            ports: 20_000..=20_127,
            mac: Mac([2, 0, 0, 0, 0, 1]),
            seed: 1,
            share: baton_engine::Share::default(),
            hash_keys: (1, 2),
            mtu: 1_500,
        };
        let now = Instant(5_000_000);
        let mut engine = Engine::new(settings, now).expect("good settings");
        let route = |prefix: &str, prefix_len| Route {
            prefix: prefix.parse().expect("an address"),
            prefix_len,
            via: Via::Link,
        };
        engine.set_routes(&[route("0.0.0.0", 0)]);
        engine.set_keys(&[(1, AdoptionKey::from_bytes([7; 16]))]);
        let policy = |name: &str, port: u16, backend: &str| {
            serde_json::json!({
                "name": name, "frontends": [format!("10.0.0.1:{port}")], "protocol": "HTTP1",
                "backends": [{"name": backend, "endpoint": format!("10.0.9.{port}:8080")}],
            })
        };
        let snapshot: Snapshot = serde_json::from_value(serde_json::json!({
            "generation": 1, "policies": [policy("web", 80, "a/ipv6"), policy("other", 81, "b")],
        }))
        .expect("a snapshot");
        engine.apply(now, &snapshot).expect("applied");
        for host in ["10.0.9.80", "10.0.9.81", "10.0.5.1", "10.0.5.2"] {
            engine.set_neighbour(host.parse().expect("an address"), Some(Mac([2; 6])));
        }
        Self { engine, now, out: Out(vec![0; FRAME_BYTES], Vec::new()) }
    }

    /// Gives a frame in; what became of it, with the frame that it became.
    pub fn frame(&mut self, tap: Option<&mut Tap>, frame: &[u8]) -> (Verdict, Vec<u8>) {
        let mut buffer = vec![0; FRAME_BYTES];
        buffer[..frame.len()].copy_from_slice(frame);
        let (engine, out) = (&mut self.engine, &mut self.out);
        let verdict = through::frame(engine, tap, self.now, &mut buffer, frame.len(), out);
        if let Verdict::Transmit(len) = verdict {
            buffer.truncate(len);
        }
        (verdict, buffer)
    }

    /// A client's SYN; where the dataplane's end of its leg is, if it was forwarded.
    pub fn syn(&mut self, tap: Option<&mut Tap>, client: &str, frontend: &str) -> String {
        let (verdict, sent) = self.frame(tap, &segment(client, frontend, Flags::SYN, 0, &[]));
        assert!(matches!(verdict, Verdict::Transmit(_)), "{verdict:?}");
        let Ok(baton_packet::Decoded::Tcp(sent)) = decode(&sent) else {
            panic!("no segment");
        };
        format!("{}:{}", sent.src, sent.src_port)
    }
}

pub fn order(filter: Filter, payload: bool) -> Order {
    let snaplen = if payload { SNAPLEN_MAX } else { SNAPLEN_HEADERS };
    Order { filter, payload, snaplen, time: Duration::from_secs(10) }
}

fn clients(text: &str) -> Filter {
    Filter { clients: Some(text.parse().expect("clients")), ..Filter::default() }
}

fn named(policies: &[&str], backends: &[&str]) -> Filter {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    Filter { clients: None, policies: owned(policies), backends: owned(backends) }
}

/// What was copied: the way, and what it says of the connection's two ends.
fn taken(drain: &Drain) -> Vec<Packet> {
    drain.full.try_iter().collect()
}

const ACK: Flags = Flags::ACK;

/// A connection's first frames through a tap; what it copied.
fn shaken(filter: Filter, client: &str, frontend: &str) -> Vec<Packet> {
    let mut lab = Lab::new();
    let (mut tap, drain) = tap(&order(filter, false), 1, lab.now);
    let leg = lab.syn(Some(&mut tap), client, frontend);
    let backend = if frontend.ends_with(":80") { "10.0.9.80:8080" } else { "10.0.9.81:8080" };
    let back = segment(backend, &leg, Flags(Flags::SYN.0 | ACK.0), 0, &[]);
    let _ = lab.frame(Some(&mut tap), &back);
    taken(&drain)
}

#[test]
fn a_filter_means_both_sides_of_its_connections_and_no_others() {
    const CLIENT: &str = "10.0.5.1:4711";
    for (filter, meant) in [
        (Filter::default(), true),
        (clients("10.0.5.1"), true),
        (clients("10.0.5.0/24"), true),
        (clients("10.0.5.1:4711"), true),
        (clients("10.0.5.1:4712"), false),
        (clients("10.0.5.2"), false),
        // A backend is no client.
        (clients("10.0.9.80"), false),
        (named(&["web"], &[]), true),
        (named(&["other"], &[]), false),
        (named(&["other", "web"], &[]), true),
        (named(&[], &["a"]), true),
        (named(&[], &["a/ipv6"]), true),
        (named(&[], &["a/ip"]), false),
        (named(&[], &["b"]), false),
        (named(&["web"], &["b"]), false),
        (Filter { clients: clients("10.0.5.1").clients, ..named(&["web"], &["a"]) }, true),
        (Filter { clients: clients("10.0.5.2").clients, ..named(&["web"], &["a"]) }, false),
    ] {
        let words = filter.words();
        let got = shaken(filter, CLIENT, FRONTEND);
        let ways: Vec<_> = got.iter().map(|p| (p.direction, p.leg.is_some())).collect();
        let all = [
            (Direction::In, false),
            (Direction::Out, true),
            (Direction::In, true),
            (Direction::Out, false),
        ];
        assert_eq!(ways, if meant { &all[..] } else { &[] }, "{words}");
        for packet in &got {
            assert_eq!(packet.client, Some(address(CLIENT)), "{words}");
            assert_eq!(packet.data.len(), packet.bytes, "a header is whole");
        }
    }
}

#[test]
fn payload_is_left_out_unless_it_is_asked_for() {
    for (payload, snaplen, kept) in [
        (false, SNAPLEN_HEADERS, 0),
        (true, SNAPLEN_MAX, PAYLOAD.len()),
        (true, 70, 4),
        (false, 40, 0),
    ] {
        let mut lab = Lab::new();
        let asked = Order { snaplen, ..order(Filter::default(), payload) };
        let (mut tap, drain) = tap(&asked, 1, lab.now);
        let frame = segment("10.0.5.1:4711", FRONTEND, ACK, 1, PAYLOAD);
        let _ = lab.frame(Some(&mut tap), &frame);
        let first = taken(&drain).swap_remove(0);
        // Ethernet, IPv4, TCP with timestamps.
        let headers = (14 + 20 + 32).min(snaplen);
        assert_eq!(first.bytes, frame.len());
        assert_eq!(first.data, &frame[..headers + kept], "{payload} {snaplen}");
    }
    // What cannot be read has no known headers: little is kept of it.
    let mut lab = Lab::new();
    let (mut tap, drain) = tap(&order(Filter::default(), false), 1, lab.now);
    let mut frame = segment("10.0.5.1:4711", FRONTEND, ACK, 1, PAYLOAD);
    frame[16..18].copy_from_slice(&9_000_u16.to_be_bytes());
    let _ = lab.frame(Some(&mut tap), &frame);
    assert_eq!(taken(&drain)[0].data, &frame[..34]);
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

#[test]
fn an_icmp_error_is_its_quotes_flows_and_what_it_quotes_of_payload_is_left_out() {
    let mut lab = Lab::new();
    let (mut tap, drain) = tap(&order(clients("10.0.5.1:4711"), false), 1, lab.now);
    let leg = lab.syn(None, "10.0.5.1:4711", FRONTEND);
    // "Fragmentation needed", said about what the dataplane sent to the backend.
    let quoted = segment(&leg, "10.0.9.80:8080", ACK, 1, PAYLOAD);
    let mut icmp = [&[3, 4, 0, 0, 0, 0, 5, 0][..], &quoted[14..]].concat();
    let sum = checksum(&icmp);
    icmp[2..4].copy_from_slice(&sum);
    let mut frame = quoted[..34].to_vec();
    frame[16..18].copy_from_slice(&(20 + icmp.len() as u16).to_be_bytes());
    frame[23] = 1;
    frame[24..26].copy_from_slice(&[0, 0]);
    frame[26..30].copy_from_slice(&[10, 0, 3, 3]);
    frame[30..34].copy_from_slice(&[10, 0, 0, 1]);
    let sum = checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum);
    frame.extend(&icmp);
    let _ = lab.frame(Some(&mut tap), &frame);
    let first = taken(&drain).swap_remove(0);
    assert_eq!(first.client, Some(address("10.0.5.1:4711")));
    // Two IPv4 headers, ICMP's, and eight bytes of the quoted TCP header.
    assert_eq!(first.data, &frame[..14 + 20 + 8 + 20 + 8]);
}

#[test]
fn what_an_order_to_move_sends_is_copied() {
    let mut lab = Lab::new();
    let (now, client) = (lab.now, "10.0.5.1:4711");
    let backend =
        |n: u8| serde_json::json!({"name": n.to_string(), "endpoint": format!("10.0.9.{n}:8080")});
    let snapshot = serde_json::from_value(serde_json::json!({"generation": 2, "policies": [{
        "name": "web", "frontends": [FRONTEND], "protocol": "HTTP1", "backends": [backend(80)],
    }]}));
    let mut snapshot: Snapshot = snapshot.expect("a snapshot");
    lab.engine.apply(now, &snapshot).expect("applied");
    let (mut tap, drain) = tap(&order(Filter::default(), false), 1, now);
    let leg = lab.syn(Some(&mut tap), client, FRONTEND);
    let opened = segment("10.0.9.80:8080", &leg, Flags(Flags::SYN.0 | ACK.0), 0, &[]);
    let _ = lab.frame(Some(&mut tap), &opened);
    let _ = lab.frame(Some(&mut tap), &segment(client, FRONTEND, ACK, 1, &[]));
    snapshot.generation = 3;
    let other = serde_json::from_value(backend(81)).expect("a backend");
    snapshot.policies[0].backends.push(other);
    lab.engine.apply(now, &snapshot).expect("applied");
    let _ = taken(&drain);
    let wanted = Migrate { client: address(client), frontend: None, to: Some("81".into()) };
    let mut wanted = MigrateOrder::new(wanted);
    let (engine, out) = (&mut lab.engine, &mut lab.out);
    let answer = through::migrate_piece(engine, Some(&mut tap), now, &mut wanted, out);
    assert!(matches!(answer, Some(Ok(_))), "{answer:?}");
    assert!(!lab.out.1.is_empty());
    assert_eq!(taken(&drain).len(), lab.out.1.len());
}

#[test]
fn the_last_frames_of_a_connection_are_its_too() {
    let mut lab = Lab::new();
    let (mut tap, drain) = tap(&order(named(&[], &["a"]), false), 1, lab.now);
    let client = "10.0.5.1:4711";
    let leg = lab.syn(Some(&mut tap), client, FRONTEND);
    let reset = segment("10.0.9.80:8080", &leg, Flags(Flags::RST.0 | ACK.0), 0, &[]);
    let (verdict, _) = lab.frame(Some(&mut tap), &reset);
    assert!(matches!(verdict, Verdict::Transmit(_)), "{verdict:?}");
    assert_eq!(lab.engine.flows(lab.now, 0, 9).0, [], "it has ended");
    let before = taken(&drain);
    assert_eq!(before.len(), 4, "the reset and what became of it too: {before:?}");
    // The client's answer to it belongs to no flow any more, and is remembered.
    let late = segment(client, FRONTEND, ACK, 1, &[]);
    let _ = lab.frame(Some(&mut tap), &late);
    assert!(!taken(&drain).is_empty());
    let other = segment("10.0.5.2:4711", FRONTEND, ACK, 1, &[]);
    let _ = lab.frame(Some(&mut tap), &other);
    assert!(taken(&drain).is_empty(), "nobody's, and never was");
}

#[test]
fn what_does_not_fit_is_counted_and_places_are_used_again() {
    let mut lab = Lab::new();
    let places = RING_BYTES / SNAPLEN_HEADERS;
    let (mut tap, drain) = tap(&order(Filter::default(), false), 1, lab.now);
    // Dropped by the engine and answered with nothing: one frame each.
    let frame = segment("10.0.5.1:4711", "10.0.0.1:82", ACK, 1, PAYLOAD);
    for _ in 0..places + 7 {
        let _ = lab.frame(Some(&mut tap), &frame);
    }
    let count = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    assert_eq!(count(&drain.counts.ring_full), 7);
    assert_eq!(count(&drain.counts.matched), places as u64 + 7);
    let first = taken(&drain);
    assert_eq!(first.len(), places);
    let addresses: Vec<_> = first.iter().map(|p| p.data.as_ptr()).collect();
    for packet in first {
        drain.empty.try_send(packet).expect("a place");
    }
    for _ in 0..places {
        let _ = lab.frame(Some(&mut tap), &frame);
    }
    let again = taken(&drain);
    let same = again.iter().zip(addresses).all(|(p, at)| p.data.as_ptr() == at);
    assert!(again.len() == places && same, "the same buffers");
    assert_eq!(count(&drain.counts.ring_full), 7);
}

#[test]
fn more_bytes_than_a_second_may_have_are_left_out_until_the_next() {
    let mut lab = Lab::new();
    let (mut tap, drain) = tap(&order(Filter::default(), true), 1, lab.now);
    let frame = segment("10.0.5.1:4711", "10.0.0.1:82", ACK, 1, &[1; 1_400]);
    let fit = RATE_BYTES as usize / frame.len();
    let mut got = 0;
    for _ in 0..fit + 100 {
        let _ = lab.frame(Some(&mut tap), &frame);
        for packet in drain.full.try_iter() {
            got += 1;
            drain.empty.try_send(packet).expect("a place");
        }
    }
    assert_eq!(got, fit);
    assert_eq!(drain.counts.rate.load(Ordering::Relaxed), 100);
    lab.now.0 += 1_000_000;
    let _ = lab.frame(Some(&mut tap), &frame);
    assert_eq!(taken(&drain).len(), 1);
    assert!(!tap.is_over(lab.now));
    lab.now.0 += 9_000_000;
    assert!(!tap.is_over(lab.now), "it is taken back now");
    lab.now.0 += 30_000_000;
    assert!(tap.is_over(lab.now), "nobody did");
}

#[test]
fn copying_allocates_nothing() {
    let mut lab = Lab::new();
    lab.out.1.reserve(64);
    let (mut tap, drain) = tap(&order(clients("10.0.5.1"), true), 1, lab.now);
    let leg = lab.syn(Some(&mut tap), "10.0.5.1:4711", FRONTEND);
    let frames = [
        segment("10.0.9.80:8080", &leg, Flags(Flags::SYN.0 | ACK.0), 0, &[]),
        segment("10.0.5.1:4711", FRONTEND, ACK, 1, PAYLOAD),
        segment("10.0.5.2:4711", FRONTEND, Flags::SYN, 0, &[]),
        segment("10.0.5.1:4711", "10.0.0.1:82", ACK, 1, &[]),
    ];
    let mut buffer = vec![0; FRAME_BYTES];
    let (mut taken, mut no_room) = (0, Out(Vec::new(), Vec::new()));
    let counts = allocation_counter::measure(|| {
        for frame in &frames {
            buffer[..frame.len()].copy_from_slice(frame);
            let (engine, now) = (&mut lab.engine, lab.now);
            let tap = Some(&mut tap);
            let verdict = through::frame(engine, tap, now, &mut buffer, frame.len(), &mut no_room);
            taken += u32::from(!matches!(verdict, Verdict::Absorbed));
            for packet in drain.full.try_iter() {
                drain.empty.try_send(packet).expect("a place");
            }
        }
    });
    assert_eq!((counts.count_total, taken), (0, 4), "{counts:?}");
    assert!(drain.counts.matched.load(Ordering::Relaxed) >= 6);
}

#[test]
fn a_tap_changes_nothing() {
    let mut plain = Lab::new();
    let mut tapped = Lab::new();
    let (mut tap, _drain) = tap(&order(Filter::default(), true), 1, tapped.now);
    for frame in [
        segment("10.0.5.1:4711", FRONTEND, Flags::SYN, 0, &[]),
        segment("10.0.5.1:4711", FRONTEND, ACK, 1, PAYLOAD),
        segment("10.0.5.2:4711", "10.0.0.1:82", ACK, 1, &[]),
        vec![0; 20],
    ] {
        assert_eq!(plain.frame(None, &frame), tapped.frame(Some(&mut tap), &frame));
    }
    for lab in [&mut plain, &mut tapped] {
        lab.now.0 += 1_000_000;
    }
    through::poll(&mut plain.engine, None, plain.now, &mut plain.out);
    through::poll(&mut tapped.engine, Some(&mut tap), tapped.now, &mut tapped.out);
    assert_eq!(plain.out.1, tapped.out.1);
    assert!(!plain.out.1.is_empty(), "probes at least");
}
