//! What one client cannot spend: answers to segments of nobody, next hops, the clocks of others'
//! requests, connections of others by guessed resets.

use crate::common::{Conn, Dest, Sent, World, conn::*, endpoint, pod, pod_mac, policy, settings};
use baton_api::{BackendFailure, Health, Micros, MigrationMode};
use baton_engine::{Counter, DropReason, Lost};
use baton_packet::{Flags, Mac, complete_tcp_checksum, ether_dst};

/// Frames until one is not answered, 30,000 at most.
fn answered(w: &mut World, frame: &[u8]) -> u32 {
    for n in 0..30_000 {
        let mut buffer = frame.to_vec();
        let len = buffer.len();
        let _ = w.engine.frame(w.now, &mut buffer, len, &mut w.out);
        if w.out.take().is_empty() {
            return n;
        }
    }
    panic!("no limit")
}

#[test]
fn a_flood_of_strangers_takes_no_answer_from_others() {
    let (mut w, c) = World::new(1).at_rest();
    let stranger = w.client_wire(&Conn::new(9), Flags::ACK, &[]).build();
    assert_eq!(answered(&mut w, &stranger), 20_000);
    // A client that lost its state begins anew on its port.
    let mut syn = w.syn_wire(&c);
    syn.seq = syn.seq.wrapping_add(1 << 20);
    assert_eq!(answered(&mut w, &syn.build()), 20_000);
    // A socket of a pod that is no leg's.
    let mut stale = w.pod_wire(&c, PSH_ACK, b"stray");
    let mut port = 40_000;
    while stale.to == c.leg || w.inject(&stale.build()).is_empty() {
        stale.to.set_port(port);
        port += 1;
    }
    assert_eq!(answered(&mut w, &stale.build()), 19_999);
    for counter in [Counter::ResetsLimited, Counter::ChallengesLimited, Counter::PodResetsLimited] {
        assert_eq!(w.count(counter), 1, "{counter:?}");
    }
}

fn blamed(w: &World) -> u64 {
    let lost: u64 = Lost::ALL.iter().map(|l| w.engine.lost(*l)).sum();
    let ends = [Counter::Ejections, Counter::EjectionsCapped, Counter::Stranded, Counter::Rescues];
    lost + ends.into_iter().map(|c| w.count(c)).sum::<u64>()
}

/// A client with a request that its pod has acknowledged nothing of, and a RST inside of that.
fn reset_in_flight(w: &mut World) -> (Conn, Vec<Sent>) {
    w.change(|s| {
        s.policies[0].on_backend_failure = BackendFailure::Replay;
        s.policies[0].migration.mode = MigrationMode::Never;
        s.policies[0].health =
            Health { failure_threshold: 1, max_ejected_percent: 100, ..Health::default() };
    });
    let mut c = w.idle(1);
    w.stays(&mut c, GET);
    let mut rst = w.client_wire(&c, Flags::RST, &[]);
    rst.seq = rst.seq.wrapping_sub(3);
    rst.options.clear();
    let sent = w.inject(&rst.build());
    assert_eq!(sent.len(), 2, "the reset, and a question: {sent:?}");
    assert!(sent.iter().all(|s| s.to == Dest::Pod(c.pod)));
    assert!(sent[0].is(Flags::RST));
    assert_eq!(sent[0].segment.seq.0, rst.seq);
    w.assert_state(&c, "Request");
    assert_eq!(w.count(Counter::ClientResetsDoubted), 1);
    (c, sent)
}

#[test]
fn a_guessed_reset_inside_what_is_in_flight_ends_no_flow() {
    let mut w = World::new(2);
    let (mut c, _) = reset_in_flight(&mut w);
    // The pod knows better: it challenges, and goes on.
    w.pod_ack(&c);
    w.served(&mut c);
    w.exchange(&mut c);
    assert_eq!(blamed(&w), 0);
}

#[test]
fn a_reset_that_the_pod_takes_ends_the_flow_and_blames_nobody() {
    let mut w = World::new(2);
    let (c, sent) = reset_in_flight(&mut w);
    let mut proof = w.pod_wire(&c, Flags::RST, &[]);
    (proof.seq, proof.ack) = (sent[1].segment.ack.0, 0);
    proof.options.clear();
    let told = one(w.inject(&proof.build()));
    assert_eq!(told.to, Dest::Client);
    assert!(told.is(RST_ACK));
    assert_eq!(w.state(&c), None);
    w.run_ms(100);
    assert_eq!(blamed(&w), 0);
}

#[test]
fn a_client_resets_behind_its_last_byte_or_where_it_was_acknowledged() {
    for behind in [0, GET.len() as u32] {
        let (mut w, mut c) = World::new(2).at_rest();
        w.change(|s| s.policies[0].migration.mode = MigrationMode::Never);
        w.stays(&mut c, GET);
        let mut rst = w.client_wire(&c, Flags::RST, &[]);
        rst.seq = rst.seq.wrapping_sub(behind);
        w.forwarded_to_pod(&c, &rst);
        assert_eq!(w.state(&c), None);
        assert_eq!(w.table("kept_segments").0, 0);
    }
}

#[test]
fn accurate_ecn_becomes_classic_ecn_at_the_syn() {
    let mut w = World::new(1);
    let mut c = Conn::new(1);
    c.options.ecn = true;
    let mut frame = w.syn_wire(&c).build();
    let segment = crate::common::wire::tcp(&frame);
    let at = usize::from(segment.l4);
    frame[at + 12] |= 1;
    frame[at + 16..at + 18].fill(0);
    // As a veth peer leaves it, the sum of the pseudo header is there already.
    let syn = {
        let mut sum = u32::from(u16::try_from(frame.len() - at).expect("a length")) + 6;
        for pair in frame[at - 8..at].chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
        }
        let folded = (sum & 0xffff) + (sum >> 16);
        frame[at + 16..at + 18].copy_from_slice(&(folded as u16).to_be_bytes());
        complete_tcp_checksum(&mut frame, &segment);
        one(w.inject(&frame))
    };
    let at = usize::from(syn.segment.l4);
    assert_eq!(syn.frame[at + 12] & 15, 0);
    assert!(syn.is(Flags::SYN | Flags::ECE | Flags::CWR), "classic");
    take_leg(&mut c, &syn);
    w.accepts(&mut c);
    // Whoever sends the counters all the same.
    let mut ack = w.client_wire(&c, Flags::ACK, &[]);
    ack.options = vec![172, 11, 0, 0, 1, 0, 0, 1, 0, 0, 1, 1];
    let sent = one(w.inject(&ack.build()));
    assert_eq!(sent.segment.options(&sent.frame), [1; 12]);
    assert_eq!(w.count(Counter::OptionsStripped), 2);
}

#[test]
fn a_syn_ack_that_only_repeats_what_it_was_offered_agrees_to_nothing() {
    for (flags, agreed) in [(Flags::ECE, true), (Flags(0xc0), false)] {
        let mut w = World::new(2);
        let mut c = Conn::new(1);
        c.options.ecn = true;
        w.syn(&mut c);
        let mut synack = w.synack_wire(&c);
        synack.flags = Flags::SYN | Flags::ACK | flags;
        w.inject(&synack.build());
        (c.seq, c.server) = (c.seq.wrapping_add(1), c.server.wrapping_add(1));
        w.ack(&mut c);
        w.exchange(&mut c);
        let adoption = w.moves(&mut c, GET);
        assert_eq!(w.expect_adoption(&adoption, &before(&c)).ecn_ok, agreed);
    }
}

/// The connection before its last request.
fn before(c: &Conn) -> Conn {
    let mut c = c.clone();
    c.seq = c.seq.wrapping_sub(GET.len() as u32);
    c
}

#[test]
fn what_pods_see_says_nothing_of_choices_nor_of_keys() {
    let probe = |hash_keys, seed| {
        let mut s = settings();
        (s.hash_keys, s.seed) = (hash_keys, seed);
        let mut w = World::with(s, policy(4));
        let pods: Vec<usize> = (0..20).map(|n| w.open(n).pod).collect();
        let last = w.last_probe.clone().expect("a probe");
        (last.segment.seq, pods)
    };
    let (number, pods) = probe((1, 2), 1);
    let (other, same) = probe((3, 4), 1);
    assert_ne!(number, other);
    assert_eq!(pods, same);
    assert_ne!(probe((1, 2), 2).1, pods);
}

fn on_link(n: u32) -> (Conn, Mac) {
    let mut c = Conn::of((n % 30_000) as u16, true);
    let text = format!("fd00::1:{:x}:{:x}", n >> 16, n & 0xffff);
    c.client.set_ip(text.parse().expect("an address"));
    (c, Mac([2, 0, 9, 9, (n >> 8) as u8, n as u8]))
}

/// A world with room for thousands of clients.
fn vast() -> World {
    let mut s = settings();
    s.limits.flows = 16_384;
    s.limits.guarded_flows = 16_384;
    s.ports = 40_000..=59_999;
    let mut w = World::unprobed(s, policy(1));
    (w.strict, w.careful) = (false, false);
    w.poll();
    w
}

fn opens_on_link(w: &mut World, n: u32) -> (Conn, Sent) {
    let (mut c, mac) = on_link(n);
    let mut syn = w.syn_wire(&c);
    syn.src_mac = mac;
    let sent = one(w.inject(&syn.build()));
    take_leg(&mut c, &sent);
    let synack = w.synack(&mut c);
    assert_eq!(ether_dst(&synack.frame), mac, "where it came from");
    (c, synack)
}

/// A new backend is given a flow, which is for client `n` on the link.
fn new_backend_serves(w: &mut World, n: u32) {
    w.change(|s| {
        let mut new = s.policies[0].backends[1].clone();
        new.name = "new".into();
        new.endpoint = endpoint(pod(true, 7));
        s.policies[0].backends[1].weight = 0;
        s.policies[0].backends.push(new);
    });
    w.run_ms(10);
    let (mut c, mac) = on_link(n);
    let mut syn = w.syn_wire(&c);
    syn.src_mac = mac;
    let sent = one(w.inject(&syn.build()));
    assert_eq!((sent.to, ether_dst(&sent.frame)), (Dest::Pod(7), pod_mac(7)));
    take_leg(&mut c, &sent);
    w.accepts(&mut c);
    w.stays(&mut c, GET);
    w.responds(&mut c, OK);
}

#[test]
fn half_open_clients_on_the_link_take_no_next_hop() {
    let mut w = vast();
    let before = w.table("next_hops").0;
    for n in 0..9_000 {
        let (c, mac) = on_link(n);
        let mut syn = w.syn_wire(&c);
        syn.src_mac = mac;
        assert_eq!(w.inject(&syn.build()).len(), 1, "{n}");
    }
    assert_eq!(w.table("next_hops").0, before);
    assert_eq!(w.dropped(DropReason::NoRoute), 0);
    new_backend_serves(&mut w, 20_000);
}

#[test]
fn open_clients_on_the_link_leave_next_hops_for_backends() {
    let mut w = vast();
    let first = opens_on_link(&mut w, 0).0;
    w.ack(&mut first.clone());
    for n in 1..4_200 {
        let mut c = opens_on_link(&mut w, n).0;
        w.ack(&mut c);
    }
    assert!(w.count(Counter::NextHopsFull) >= 100);
    // Those beyond are answered where they came from.
    let (mut late, _) = opens_on_link(&mut w, 9_000);
    let mac = on_link(9_000).1;
    w.ack(&mut late);
    w.stays(&mut late, GET);
    let answer = w.responds(&mut late, OK);
    assert_eq!(ether_dst(&answer.frame), mac);
    new_backend_serves(&mut w, 20_000);
    assert_eq!(w.dropped(DropReason::NoRoute), 0);
    // What the kernel knows of a client counts.
    let moved = Mac([2, 7, 7, 7, 7, 7]);
    w.engine.set_neighbour(first.client.ip(), Some(moved));
    let ack = w.pod_wire(&first, Flags::ACK, &[]);
    let sent = w.forwarded_to_client(&first, &ack);
    assert_eq!(ether_dst(&sent.frame), moved);
    // One whose last connection has ended is let go, and nobody asks for it any more.
    let before = w.table("next_hops").0;
    w.inject(&w.client_wire(&first, Flags::RST, &[]).build());
    w.run_ms(5_000);
    assert_eq!(w.table("next_hops").0, before - 1);
    w.run_ms(10_000);
    let asked: Vec<_> = std::iter::from_fn(|| w.engine.next_unresolved()).collect();
    assert!(!asked.contains(&first.client.ip()));
}

fn impatient(pods: usize) -> World {
    let mut p = policy(pods);
    p.response_timeout = Some(Micros::from_secs(1));
    p.on_backend_failure = BackendFailure::Replay;
    p.migration.mode = MigrationMode::Never;
    p.health = Health {
        failure_threshold: 1,
        max_ejected_percent: 100,
        panic_percent: 0,
        ..Health::default()
    };
    World::with(settings(), p)
}

#[test]
fn an_upload_of_ten_seconds_is_not_overdue() {
    let (mut w, mut c) = impatient(2).at_rest();
    w.stays(&mut c, &post_head(10));
    for _ in 0..10 {
        w.run_ms(1_000);
        w.stays(&mut c, b"x");
        w.pod_ack(&c);
    }
    assert_eq!(w.count(Counter::ResponseTimeouts), 0);
    assert_eq!(w.count(Counter::Ejections), 0);
    // From here on the pod is asked for an answer.
    w.run_ms(990);
    assert_eq!(w.count(Counter::ResponseTimeouts), 0);
    w.run_ms(20);
    assert_eq!(w.count(Counter::ResponseTimeouts), 1);
}

#[test]
fn requests_that_never_end_blame_nobody_and_weigh_nothing() {
    let mut w = impatient(2);
    for n in 0..5 {
        let mut c = w.idle(n);
        w.stays(&mut c, b"GET / HTTP/1.1\r\n");
        w.pod_ack(&c);
    }
    w.run_ms(30_000);
    assert_eq!(w.count(Counter::ResponseTimeouts), 0);
    assert_eq!(w.count(Counter::Ejections), 0);
    for backend in &w.engine.state(w.now).policies[0].backends {
        assert_eq!(backend.outstanding, 0);
    }
}

#[test]
fn where_nobody_follows_the_clock_begins_with_the_request() {
    let mut w = impatient(2);
    w.change(|s| s.policies[0].protocol = baton_api::Protocol::RequestResponse);
    let mut c = w.idle(1);
    w.stays(&mut c, b"GET / HTTP/1.1\r\n");
    w.run_ms(1_010);
    assert_eq!(w.count(Counter::ResponseTimeouts), 1);
}

/// An answer before the request is complete says that the pod works, and nothing of its wait.
#[test]
fn an_answer_to_half_a_request_ends_it() {
    let (mut w, mut c) = impatient(2).at_rest();
    w.stays(&mut c, &post_head(10));
    w.run_ms(5_000);
    w.responds(&mut c, b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n");
    w.assert_state(&c, "Response");
    w.stays(&mut c, &[b'x'; 10]);
    w.run_ms(900);
    assert_eq!(blamed(&w), 0);
}

/// Clients of another network than [`Conn::new`]'s.
fn other_network(n: u16) -> Conn {
    Conn::of(n, true)
}

fn pool(kept_segments: u32) -> World {
    let mut s = settings();
    s.limits.flows = 4_096;
    s.limits.guarded_flows = 4_096;
    s.limits.closing_legs = 4_096;
    s.limits.kept_segments = kept_segments;
    s.ports = 40_000..=59_999;
    let mut w = World::unprobed(s, policy(2));
    (w.strict, w.careful) = (false, false);
    w.poll();
    w
}

#[test]
fn small_segments_of_a_request_share_a_copy() {
    let mut w = World::new(2);
    w.change(|s| s.policies[0].migration.mode = MigrationMode::DrainOnly);
    let mut c = w.idle(1);
    let boundary = c.seq;
    for byte in &GET[..17] {
        w.stays(&mut c, &[*byte]);
    }
    assert_eq!(w.table("kept_segments").0, 1);
    w.stays(&mut c, &GET[17..]);
    let sent = w.dies(c.pod, crate::common::End::Rst, &[c.clone()]);
    let behind = w.adopted_from(&mut c, &sent, boundary);
    assert_eq!(one(behind).data(), GET);
    w.responds(&mut c, OK);
    assert_eq!(w.table("kept_segments").0, 0);
}

#[test]
fn a_client_that_ends_no_request_takes_no_copies_from_others() {
    // As many as the chart has connections for each, in proportion.
    let mut w = pool(1_024);
    let mut holders: Vec<Conn> = (0..2_048).map(|n| w.idle(n)).collect();
    w.change(|s| s.policies[0].migration.mode = MigrationMode::Never);
    for _ in 0..8 {
        for c in &mut holders {
            w.data(c, b"x");
        }
    }
    w.change(|s| s.policies[0].migration.mode = MigrationMode::Always);
    let used = w.table("kept_segments").0;
    assert!(used <= 512, "half of all: {used}");
    assert!(w.count(Counter::KeptGaveWay) > 0);
    let (full, stayed) = (w.count(Counter::KeptFull), w.count(Counter::StayedKeptFull));
    for n in 0..400 {
        let mut c = w.idle_as(other_network(n));
        w.moved_exchange(&mut c);
    }
    assert_eq!(w.count(Counter::KeptFull), full);
    assert_eq!(w.count(Counter::StayedKeptFull), stayed);
    w.engine.check_invariants();
}

#[test]
fn where_no_copy_is_left_the_oldest_incomplete_request_gives_way() {
    let mut w = pool(16);
    // Sixteen are two requests of the most segments that one may have, and all that there are here.
    let mut whole = w.idle(100);
    w.moves(&mut whole, GET);
    let mut holders: Vec<Conn> = (0..15).map(|n| w.idle_as(other_network(n))).collect();
    for c in &mut holders {
        w.moves(c, b"G");
        // The new owner confirms; otherwise the copies are needed.
        w.pod_ack(c);
    }
    assert_eq!(w.table("kept_segments"), (16, 16));
    let mut honest = w.idle(101);
    w.moves(&mut honest, GET);
    assert_eq!(w.count(Counter::KeptGaveWay), 1);
    assert_eq!(w.count(Counter::KeptFull), 0);
    // A complete one gives way to nobody; the holder is served all the same.
    w.responds(&mut whole, OK);
    w.stays(&mut holders[0], &GET[1..]);
    w.responds(&mut holders[0], OK);
    w.engine.check_invariants();
}

#[test]
fn handshakes_take_no_copies() {
    let mut w = pool(16);
    for n in 0..1_000 {
        let mut c = Conn::new(n);
        w.syn(&mut c);
    }
    assert_eq!(w.table("kept_segments").0, 0);
    // One that is refused goes to another pod all the same.
    let mut c = Conn::new(2_000);
    c.options.ecn = true;
    let first = w.syn(&mut c);
    let mut rst = w.pod_wire(&c, RST_ACK, &[]);
    (rst.seq, rst.ack) = (0, c.seq.wrapping_add(1));
    w.stops(c.pod);
    let again = one(w.inject(&rst.build()));
    assert_ne!(again.to, first.to);
    assert_eq!(
        (again.segment.seq, again.segment.flags, again.segment.window),
        (first.segment.seq, first.segment.flags, first.segment.window)
    );
    assert_eq!(again.segment.options(&again.frame), first.segment.options(&first.frame));
}
