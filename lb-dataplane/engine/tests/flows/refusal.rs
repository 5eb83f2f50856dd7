//! Adoptions that do not succeed at once: refusals, stale sockets, silence, loss, forgeries.

use crate::common::{
    Conn, Dest, EPOCH, Sent, World, answer, answer_with, conn::*, key, policy, settings,
};
use baton_api::{BackendFailure, Protocol};
use baton_engine::Counter;
use baton_packet::{AdoptionKey, Flags, Reason};

const NEVER_HAD_IT: [(Reason, Counter); 5] = [
    (Reason::NoListener, Counter::RefusedNoListener),
    (Reason::AcceptQueueFull, Counter::RefusedQueueFull),
    (Reason::KernelRefused, Counter::RefusedKernel),
    (Reason::SyncookiesOff, Counter::RefusedSyncookies),
    (Reason::PacketRules, Counter::RefusedPacketRules),
];

fn world(pods: usize, protocol: Protocol, failure: BackendFailure) -> World {
    let mut p = policy(pods);
    p.protocol = protocol;
    p.on_backend_failure = failure;
    World::with(settings(), p)
}

fn adoptable(w: &World, pod: usize) -> (bool, String) {
    let state = w.engine.state(w.now);
    let b = &state.policies[0].backends[pod];
    (b.adoptability.is_ready(), b.adoptability.to_string())
}

/// A bare RST of the new pod, as a listener sends to a segment of no connection.
fn bare_rst(w: &mut World, c: &Conn) -> Vec<Sent> {
    let mut wire = w.pod_wire(c, Flags::RST, &[]);
    wire.ack = 0;
    wire.options.clear();
    w.inject(&wire.build())
}

/// Asserts that `request` goes to `old`'s leg again and is served there.
fn replayed(w: &mut World, sent: &[Sent], old: &Conn, c: &mut Conn, request: &[u8]) {
    let replay = sent.last().expect("a replay");
    assert_eq!(replay.to, Dest::Pod(old.pod));
    assert_eq!(replay.segment.src_port, old.leg.port());
    assert_eq!(replay.segment.seq.0, old.seq);
    assert_eq!(replay.data(), request);
    (c.pod, c.leg) = (old.pod, old.leg);
    w.assert_state(c, "Request");
    w.served(c);
    w.assert_state(c, "Idle");
}

#[test]
fn each_refusal_gives_the_request_back_to_the_old_pod() {
    for (reason, counter) in NEVER_HAD_IT {
        // POST and Reset: what the pod never had may go elsewhere whatever policy says.
        let (mut w, mut c) = world(2, Protocol::Http1, BackendFailure::Reset).at_rest();
        let old = c.clone();
        let adoption = w.moves(&mut c, POST);
        let new = c.pod;
        w.adopters[new] = None;
        let sent = w.inject(&answer(&adoption, reason, 0));
        assert_eq!(sent.len(), 1);
        replayed(&mut w, &sent, &old, &mut c, POST);
        assert_eq!(w.count(counter), 1);
        assert_eq!(w.count(Counter::Rollbacks), 1);
        assert_eq!(w.table("kept_segments").0, 0);

        // It stays with the old one until a probe says Ready again.
        assert!(!adoptable(&w, new).0);
        w.exchange(&mut c);
        w.run_ms(300);
        w.exchange(&mut c);
        w.adopters[new] = Some(Reason::Ready);
        w.run_ms(110);
        assert!(adoptable(&w, new).0, "asked again soon: {:?}", adoptable(&w, new));
        w.moves(&mut c, POST);
        w.responds(&mut c, OK);
    }
}

#[test]
fn a_request_of_several_segments_is_replayed_whole_and_in_order() {
    let (mut w, mut c) = world(2, Protocol::Http1, BackendFailure::Reset).at_rest();
    let old = c.clone();
    let head = post_head(11);
    let adoption = w.moves(&mut c, &head);
    for part in [&b"one"[..], b"two", b"three"] {
        w.stays(&mut c, part);
    }
    let sent = w.inject(&answer(&adoption, Reason::AcceptQueueFull, 0));
    let bytes: Vec<u8> = sent.iter().flat_map(|s| s.data().to_vec()).collect();
    assert_eq!(bytes, [&head[..], b"onetwothree"].concat());
    let mut next = old.seq;
    for s in &sent {
        assert_eq!((s.to, s.segment.src_port), (Dest::Pod(old.pod), old.leg.port()));
        assert_eq!(s.segment.seq.0, next);
        next = next.wrapping_add(s.data().len() as u32);
    }
}

#[test]
fn a_refusal_while_the_old_pod_is_gone_goes_to_a_third() {
    for closed_by in [FIN_ACK, RST_ACK] {
        let (mut w, mut c) = world(3, Protocol::Http1, BackendFailure::Reset).at_rest();
        let (old, present) = (c.pod, c.clone());
        let adoption = w.moves(&mut c, POST);
        let second = c.pod;
        // The old pod's end arrives late: it is fenced.
        assert!(w.inject(&w.pod_wire(&present, closed_by, &[]).build()).is_empty());
        let sent = w.inject(&answer(&adoption, Reason::NoListener, 0));
        assert_eq!(sent.len(), 2, "adoption and request");
        w.expect_adoption(&sent[0], &present);
        assert_eq!(sent[1].data(), POST);
        take_leg(&mut c, &sent[1]);
        assert_ne!(c.pod, second);
        if closed_by == RST_ACK {
            assert!(w.engine.flows(w.now, 0, 10).0.len() == 1);
        }
        w.served(&mut c);
        w.assert_state(&c, "Idle");
        assert_eq!(w.taken("Adopting", "RefusedNext"), 1);
        let _ = old;
    }
}

#[test]
fn tuple_in_use_is_reset_exactly_and_another_port_taken_at_once() {
    let (mut w, mut c) = world(2, Protocol::Http1, BackendFailure::Reset).at_rest();
    let present = c.clone();
    let adoption = w.moves(&mut c, POST);
    let (pod, taken) = (c.pod, c.leg);
    let sent = w.inject(&answer(&adoption, Reason::TupleInUse, 0x1234_5678));
    assert_eq!(sent.len(), 3, "RST, adoption, request");
    assert!(sent[0].is(Flags::RST));
    assert_eq!(sent[0].segment.seq.0, 0x1234_5678, "the stale socket's rcv_nxt");
    assert_eq!(sent[0].segment.src_port, taken.port());
    w.expect_adoption(&sent[1], &present);
    assert_eq!(sent[2].data(), POST);
    take_leg(&mut c, &sent[2]);
    assert_eq!(c.pod, pod, "the same pod");
    assert_ne!(c.leg, taken, "another port");
    w.responds(&mut c, OK);
    assert_eq!(w.count(Counter::StaleSockets), 1);
    assert_eq!(w.count(Counter::MigrationsConfirmed), 1);
    assert_eq!(w.count(Counter::Rollbacks), 0);
}

#[test]
fn a_challenge_ack_on_a_new_leg_is_a_stale_socket() {
    for (seq_off, ack_off, flags) in [
        (-900_000_i32, -900_000_i32, Flags::ACK),
        (0, 77, Flags::ACK),
        (0, -1, Flags::ACK),
        (0, 0, Flags::SYN | Flags::ACK),
        (-5_000, 0, FIN_ACK),
    ] {
        let (mut w, mut c) = world(2, Protocol::Http1, BackendFailure::Reset).at_rest();
        let present = c.clone();
        w.moves(&mut c, POST);
        let taken = c.leg;
        let mut wire = w.pod_wire(&present, flags, &[]);
        (wire.from, wire.to) = (crate::common::pod(false, c.pod), taken);
        wire.src_mac = crate::common::pod_mac(c.pod);
        wire.seq = present.server.wrapping_add_signed(seq_off);
        wire.ack = if ack_off > 0 { c.seq } else { present.seq }.wrapping_add_signed(ack_off);
        // It is not reset: the first adoption may be late, and would take its place (found by the
        // simulation).
        let sent = w.inject(&wire.build());
        assert_eq!(sent.len(), 2, "{seq_off} {ack_off}");
        w.expect_adoption(&sent[0], &present);
        take_leg(&mut c, &sent[1]);
        assert_ne!(c.leg, taken);
        w.responds(&mut c, OK);
    }
}

#[test]
fn a_zero_window_probe_of_the_new_owner_is_no_stale_socket() {
    let (mut w, mut c) = world(2, Protocol::Http1, BackendFailure::Reset).at_rest();
    w.moves(&mut c, POST);
    // tcp_write_wakeup: one byte before the next, when the client's window is shut.
    let mut probe = w.pod_wire(&c, Flags::ACK, &[]);
    probe.seq = c.server.wrapping_sub(1);
    w.forwarded_to_client(&c, &probe);
    w.assert_state(&c, "Request");
}

#[test]
fn an_unknown_fate_is_replayed_or_reset_as_policy_says() {
    let cases = [
        (Protocol::Http1, BackendFailure::ReplayIdempotent, GET, true),
        (Protocol::Http1, BackendFailure::ReplayIdempotent, POST, false),
        (Protocol::Http1, BackendFailure::Replay, POST, true),
        (Protocol::Http1, BackendFailure::Reset, GET, false),
        (Protocol::RequestResponse, BackendFailure::ReplayIdempotent, GET, false),
        (Protocol::RequestResponse, BackendFailure::Replay, GET, true),
    ];
    for (protocol, failure, request, replays) in cases {
        for how in ["already adopted", "silence", "bare resets", "reset with ack"] {
            let (mut w, mut c) = world(2, protocol, failure).at_rest();
            let old = c.clone();
            let adoption = w.moves(&mut c, request);
            let new = c.pod;
            let sent = match how {
                "already adopted" => w.inject(&answer(&adoption, Reason::AlreadyAdopted, 0)),
                "silence" => {
                    let sent = w.run_ms(2_900);
                    let asked = sent.iter().filter(|s| s.message().is_some()).count();
                    assert_eq!(asked, 5, "asked again with growing waits");
                    w.adopters[new] = None;
                    assert!(!adoptable(&w, new).0, "found out");
                    sent
                }
                "bare resets" => {
                    let mut all = Vec::new();
                    for _ in 0..20 {
                        if w.state(&c).as_deref() != Some("Adopting") {
                            break;
                        }
                        all = bare_rst(&mut w, &c);
                        if all.is_empty() {
                            all = w.run_ms(5);
                        }
                    }
                    all
                }
                _ => {
                    if !replays {
                        // The pod's own reset is passed on: nothing of ours.
                        let rst = w.pod_wire(&c, RST_ACK, &[]);
                        w.forwarded_to_client(&c, &rst);
                        assert_eq!(w.state(&c), None);
                        continue;
                    }
                    w.inject(&w.pod_wire(&c, RST_ACK, &[]).build())
                }
            };
            if replays {
                assert_eq!(w.count(Counter::FateReplayed), 1, "{how}");
                replayed(&mut w, &sent, &old, &mut c, request);
            } else {
                assert_eq!(w.count(Counter::FateReset), 1, "{how}");
                let clients: Vec<_> = sent.iter().filter(|s| s.to == Dest::Client).collect();
                assert_eq!(clients.len(), 1, "{how}: {sent:?}");
                assert!(clients[0].is(RST_ACK));
                assert_eq!(clients[0].segment.seq.0, c.server);
                assert_eq!(w.state(&c), None);
                assert_eq!(w.count(Counter::ResetsToClients), 1);
            }
            assert_eq!(w.table("kept_segments").0, 0);
        }
    }
}

#[test]
fn a_lost_adoption_is_sent_again_with_the_request_and_confirmed_once() {
    let (mut w, mut c) = world(2, Protocol::Http1, BackendFailure::Reset).at_rest();
    let present = c.clone();
    // Too much for one copy.
    let (head, more) = (post_head(500), [b'm'; 500]);
    w.moves(&mut c, &head);
    w.stays(&mut c, &more);
    let sent = bare_rst(&mut w, &c);
    assert_eq!(sent.len(), 3, "adoption and both segments");
    w.expect_adoption(&sent[0], &present);
    assert_eq!(sent[0].segment.src_port, c.leg.port(), "the same leg");
    assert_eq!((sent[1].data(), sent[2].data()), (&head[..], &more[..]));
    assert_eq!(w.count(Counter::AdoptionRetries), 1);
    w.served(&mut c);
    w.run_ms(5_000);
    assert_eq!(w.count(Counter::MigrationsConfirmed), 1);
    assert_eq!(w.count(Counter::MigrationsBegun), 1);
    w.assert_state(&c, "Idle");
}

#[test]
fn resets_of_many_segments_behind_one_lost_adoption_do_not_use_up_the_tries() {
    let (mut w, mut c) = world(2, Protocol::Http1, BackendFailure::Reset).at_rest();
    w.moves(&mut c, &post_head(1_000));
    for _ in 0..7 {
        w.stays(&mut c, b"part of a large upload");
    }
    // Each of the eight segments met the listener and drew a reset before the second adoption
    // arrived.
    for _ in 0..8 {
        bare_rst(&mut w, &c);
    }
    w.assert_state(&c, "Adopting");
    w.responds(&mut c, OK);
    assert_eq!(w.count(Counter::MigrationsConfirmed), 1);
    assert_eq!(w.count(Counter::FateReset), 0);
}

#[test]
fn what_a_client_repeats_has_the_adoption_in_front_of_it() {
    let (mut w, mut c) = world(2, Protocol::Http1, BackendFailure::Reset).at_rest();
    let before = c.clone();
    w.moves(&mut c, POST);
    // The pod is out of reach while all tries but the last one's wait pass.
    w.run_ms(45 + 90 + 180 + 360 + 720 + 1_000);
    w.assert_state(&c, "Adopting");
    let wire = w.client_wire(&before, PSH_ACK, POST);
    let sent = w.inject(&wire.build());
    assert_eq!(sent.len(), 2, "adoption and request: {sent:?}");
    w.expect_adoption(&sent[0], &before);
    assert_eq!((sent[0].to, sent[1].to), (Dest::Pod(c.pod), Dest::Pod(c.pod)));
    assert_eq!(sent[1].data(), POST);
    w.responds(&mut c, OK);
    assert_eq!(w.count(Counter::MigrationsConfirmed), 1);
    assert_eq!(w.count(Counter::FateReset), 0);
}

#[test]
fn a_client_that_repeats_on_and_on_has_a_bounded_number_of_adoptions_sent() {
    let (mut w, mut c) = world(2, Protocol::Http1, BackendFailure::Reset).at_rest();
    let before = c.clone();
    w.moves(&mut c, POST);
    let wire = w.client_wire(&before, PSH_ACK, POST);
    let sent: Vec<Sent> = (0..100).flat_map(|_| w.inject(&wire.build())).collect();
    assert_eq!(sent.iter().filter(|s| s.data() == POST).count(), 100);
    assert_eq!(sent.iter().filter(|s| Sent::is_adoption(s)).count(), 11, "12 with the first");
    w.responds(&mut c, OK);
}

#[test]
fn an_inexact_bare_reset_means_nothing() {
    let (mut w, mut c) = world(2, Protocol::Http1, BackendFailure::Reset).at_rest();
    w.moves(&mut c, POST);
    let mut forged = c.clone();
    forged.server = forged.server.wrapping_add(1);
    assert!(bare_rst(&mut w, &forged).is_empty());
    assert_eq!(w.count(Counter::AdoptionRetries), 0);
    w.responds(&mut c, OK);
}

#[test]
fn lost_request_data_is_sent_again_once_the_adoption_is_confirmed() {
    let (mut w, mut c) = world(2, Protocol::Http1, BackendFailure::Reset).at_rest();
    let before = c.clone();
    w.moves(&mut c, POST);
    let mut ack = w.pod_wire(&c, Flags::ACK, &[]);
    ack.ack = before.seq;
    let sent = w.inject(&ack.build());
    assert_eq!(sent.len(), 2, "the copy, and the ACK to the client");
    assert_eq!(sent[0].to, Dest::Pod(c.pod));
    assert_eq!(sent[0].data(), POST);
    assert_eq!(sent[1].to, Dest::Client);
    assert_eq!(w.taken("Adopting", "ConfirmedWithout"), 1);
    w.served(&mut c);
    w.assert_state(&c, "Idle");
}

#[test]
fn forged_answers_are_ignored_and_counted() {
    let (mut w, mut c) = world(2, Protocol::Http1, BackendFailure::Reset).at_rest();
    let adoption = w.moves(&mut c, POST);
    let wrong_key =
        answer_with(&adoption, Reason::NoListener, 0, EPOCH, &AdoptionKey::from_bytes([8; 16]));
    let wrong_epoch = answer_with(&adoption, Reason::NoListener, 0, EPOCH + 1, &key());
    let mut other = adoption.clone();
    other.segment.seq = other.segment.seq.add(1);
    let wrong_numbers = answer(&other, Reason::NoListener, 0);
    // The pod's own kind of message, turned round: an adoption is no answer.
    let mut bad_tag = answer(&adoption, Reason::NoListener, 0);
    let good = bad_tag.clone();
    let len = bad_tag.len();
    bad_tag[len - 13] ^= 1;
    let segment = crate::common::wire::tcp(&bad_tag);
    let at = usize::from(segment.l4);
    bad_tag[at + 16..at + 18].fill(0);
    let sum = crate::common::wire::checksum(&[
        &crate::common::wire::pseudo(segment.src, segment.dst, 6, len - at),
        &bad_tag[at..],
    ]);
    bad_tag[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
    for (i, forged) in [wrong_key, wrong_epoch, wrong_numbers, bad_tag].iter().enumerate() {
        assert!(w.inject(forged).is_empty(), "{i}");
        let late = w.count(Counter::LateAnswers);
        assert_eq!(w.count(Counter::ForgedAnswers) + late, 1 + i as u64);
        assert_eq!(late, u64::from(i >= 2), "the right key, other numbers");
        w.assert_state(&c, "Adopting");
    }
    assert_eq!(w.inject(&good).len(), 1, "the right one counts");
    assert_eq!(w.count(Counter::Rollbacks), 1);
}

#[test]
fn a_refusal_of_one_of_two_adoptions_leaves_open_what_became_of_the_other() {
    // The first adoption was slow, so a second one left; the pod refuses one and takes the other.
    // Handing the request back to the old pod would execute it twice.
    let (mut w, mut c) = world(2, Protocol::Http1, BackendFailure::Reset).at_rest();
    let adoption = w.moves(&mut c, POST);
    let again = w.run_ms(46);
    assert_eq!(again.len(), 2, "adoption and request once more");
    let sent = w.inject(&answer(&adoption, Reason::AcceptQueueFull, 0));
    assert!(sent.is_empty(), "not replayed: {sent:?}");
    w.assert_state(&c, "Adopting");
    w.served(&mut c);
    w.assert_state(&c, "Idle");
}

#[test]
fn a_refusal_of_all_adoptions_is_exact_again() {
    let (mut w, mut c) = world(2, Protocol::Http1, BackendFailure::Reset).at_rest();
    let old = c.clone();
    let adoption = w.moves(&mut c, POST);
    let again = w.run_ms(46);
    assert!(w.inject(&answer(&adoption, Reason::AcceptQueueFull, 0)).is_empty());
    let sent = w.inject(&answer(&again[0], Reason::AcceptQueueFull, 0));
    replayed(&mut w, &sent, &old, &mut c, POST);
}

#[test]
fn a_refusal_followed_by_silence_is_an_unknown_fate() {
    for (request, replays) in [(GET, true), (POST, false)] {
        let (mut w, mut c) = world(2, Protocol::Http1, BackendFailure::ReplayIdempotent).at_rest();
        let old = c.clone();
        let adoption = w.moves(&mut c, request);
        w.run_ms(46);
        w.inject(&answer(&adoption, Reason::AcceptQueueFull, 0));
        let sent = w.run_ms(3_000);
        if replays {
            let at = sent.iter().position(|s| s.to == Dest::Pod(old.pod));
            assert!(at.is_some(), "{sent:?}");
            assert_eq!(w.count(Counter::FateReplayed), 1);
        } else {
            assert_eq!(w.count(Counter::FateReset), 1);
            assert_eq!(w.state(&c), None);
        }
    }
}

#[test]
fn a_rolled_back_flow_rests_before_it_tries_again() {
    let mut p = policy(2);
    p.migration.mode = baton_api::MigrationMode::WhenBetter;
    p.migration.gain = baton_api::Micros(1);
    p.migration.ratio_percent = 100;
    p.migration.cooldown = baton_api::Micros::from_millis(500);
    let (mut w, mut c) = World::with(settings(), p).at_rest();
    // Slow answers here, so the other pod is better.
    w.stays(&mut c, GET);
    w.run_ms(900);
    w.served(&mut c);
    let old = c.clone();
    let adoption = w.moves(&mut c, GET);
    let sent = w.inject(&answer(&adoption, Reason::AcceptQueueFull, 0));
    replayed(&mut w, &sent, &old, &mut c, GET);
    w.run_ms(120);
    assert!(adoptable(&w, 1 - c.pod).0);
    w.exchange(&mut c);
    w.run_ms(500);
    w.moves(&mut c, GET);
}
