//! Probes: a pod is adoptable only while its adopter says so.

use crate::common::{Dest, Sent, World, answer, answer_with, conn::*, key, policy, settings};
use baton_engine::Counter;
use baton_packet::{AdoptionKey, Flags, MessageKind, Reason};

/// The probes that are due, unanswered.
fn probes(w: &mut World) -> Vec<Sent> {
    let mut out = Vec::new();
    for _ in 0..2 {
        w.engine.poll(w.now, &mut w.out);
    }
    for frame in w.out.take() {
        let sent = w.check(&frame);
        if sent.message().map(|m| m.kind) == Some(MessageKind::Probe) {
            out.push(sent);
        }
    }
    out
}

fn reason(w: &World, pod: usize) -> String {
    w.engine.state(w.now).policies[0].backends[pod].adoptability.to_string()
}

fn silent() -> World {
    let mut w = World::unprobed(settings(), policy(2));
    w.adopters.fill(None);
    w
}

/// These pods' adopters tell nothing of a listener.
const UNMARKED: &str =
    "ready, but ends are not marked: connections at rest outlive their server's close";

#[test]
fn no_flow_moves_to_a_pod_that_never_said_ready() {
    let mut w = silent();
    w.poll();
    let mut c = w.idle(1);
    w.exchange(&mut c);
    assert_eq!(w.count(Counter::MigrationsBegun), 0);
    assert_eq!(reason(&w, 1), "not probed yet");
    // Three or four lost ones would be bad luck.
    w.run_ms(2_000);
    let silence = "no answer to probes (a firewall, or addresses translated on the way?)";
    assert_eq!(reason(&w, 1), silence);
    w.exchange(&mut c);
    assert_eq!(w.count(Counter::MigrationsBegun), 0);
    w.adopters.fill(Some(Reason::Ready));
    w.run_ms(150);
    assert_eq!(reason(&w, 0), UNMARKED);
    w.moves(&mut c, GET);
}

#[test]
fn a_probe_is_an_authenticated_segment_to_each_pod() {
    let mut w = silent();
    let sent = probes(&mut w);
    assert_eq!(sent.len(), 4, "two pods of each family");
    for probe in &sent {
        assert_eq!(probe.segment.flags, Flags::ACK);
        assert!(matches!(probe.to, Dest::Pod(_)));
    }
    // Numbers of which an outsider knows nothing.
    assert_ne!(sent[0].segment.seq, sent[1].segment.seq);
}

#[test]
fn readiness_expires_without_answers() {
    let mut w = silent();
    w.adopters.fill(Some(Reason::Ready));
    w.poll();
    let mut c = w.idle(1);
    w.adopters.fill(None);
    w.run_ms(3_400);
    assert_eq!(reason(&w, 0), UNMARKED, "three lost probes are no verdict");
    w.run_ms(200);
    assert_eq!(reason(&w, 0), "no answer to probes any more");
    w.exchange(&mut c);
    assert_eq!(w.count(Counter::MigrationsBegun), 0);
}

#[test]
fn every_other_answer_says_why_not() {
    for (why, words) in [
        (Reason::NoListener, "nothing listens on the port"),
        (Reason::AcceptQueueFull, "accept queue full"),
        (Reason::SyncookiesOff, "net.ipv4.tcp_syncookies is 0 in the pod"),
        (
            Reason::PacketRules,
            "the pod's packet rules redirect, translate or tell SYNs from other segments, or have just changed: an adoption could go around a proxy",
        ),
    ] {
        let mut w = silent();
        w.adopters[0] = Some(why);
        w.poll();
        assert_eq!(reason(&w, 0), words);
        assert_eq!(w.count(Counter::ProbesRefused), 2, "in both families");
    }
}

#[test]
fn a_bare_reset_means_that_there_is_no_adopter() {
    let mut w = silent();
    let probe = probes(&mut w).into_iter().find(|p| p.to == Dest::Pod(0)).expect("a probe");
    let c = crate::common::Conn::new(1);
    let mut reset = w.client_wire(&c, Flags::RST, &[]);
    reset.options.clear();
    reset.from = std::net::SocketAddr::new(probe.segment.dst, probe.segment.dst_port);
    reset.to = std::net::SocketAddr::new(probe.segment.src, probe.segment.src_port);
    reset.seq = probe.segment.ack.0.wrapping_add(1);
    assert!(w.inject(&reset.build()).is_empty());
    assert_eq!(reason(&w, 0), "not probed yet", "an inexact one means nothing");
    reset.seq = probe.segment.ack.0;
    assert!(w.inject(&reset.build()).is_empty());
    assert_eq!(reason(&w, 0), "no adopter (is host-shim running there?)");
    assert_eq!(w.count(Counter::ProbesReset), 1);
}

#[test]
fn forged_answers_to_probes_are_counted_and_change_nothing() {
    let mut w = silent();
    let probe = probes(&mut w)[0].clone();
    let other = AdoptionKey::from_bytes([1; 16]);
    let mut shifted = probe.clone();
    shifted.segment.ack = shifted.segment.ack.add(1);
    for forged in [
        answer_with(&probe, Reason::Ready, 0, 3, &other),
        answer_with(&probe, Reason::Ready, 0, 4, &key()),
        answer(&shifted, Reason::Ready, 0),
    ] {
        assert!(w.inject(&forged).is_empty());
    }
    assert_eq!(w.count(Counter::ForgedAnswers), 2);
    assert_eq!(w.count(Counter::LateAnswers), 1, "the right key, other numbers");
    assert_eq!(reason(&w, 0), "not probed yet");
    assert!(w.inject(&answer(&probe, Reason::Ready, 0)).is_empty());
    assert_eq!(w.count(Counter::ProbesReady), 1);
}

#[test]
fn a_ready_pod_is_asked_once_a_second_and_another_one_ten_times() {
    let mut w = silent();
    w.adopters[0] = Some(Reason::Ready);
    w.poll();
    let before = w.count(Counter::ProbesSent);
    w.run_ms(10_000);
    let sent = w.count(Counter::ProbesSent) - before;
    // In each of two families: 10 to the ready one, 100 to the other.
    assert!((210..=222).contains(&sent), "{sent}");
}

#[test]
fn a_pod_that_refused_is_asked_again_soon_at_any_time() {
    let (mut w, mut c) = World::new(2).at_rest();
    // All probes were answered just now, so none is due for a second.
    while probes(&mut w).is_empty() {
        w.run_ms(1);
        w.now.0 += 1_000;
    }
    w.run_ms(150);
    let adoption = w.moves(&mut c, GET);
    w.inject(&answer(&adoption, Reason::AcceptQueueFull, 0));
    assert_eq!(reason(&w, c.pod), "accept queue full");
    w.run_ms(110);
    assert_eq!(reason(&w, c.pod), UNMARKED);
}

#[test]
fn without_keys_nothing_is_probed_and_nothing_moves() {
    let mut w = World::unprobed(settings(), policy(2));
    w.engine.set_keys(&[]);
    let off = "adoptions are off, as the dataplane has no adoption key";
    assert!(reason(&w, 0).starts_with(off), "{}", reason(&w, 0));
    w.run_ms(5_000);
    assert_eq!(w.count(Counter::ProbesSent), 0);
    let mut c = w.idle(1);
    w.exchange(&mut c);
    w.engine.set_keys(&[(3, key())]);
    w.run_ms(5);
    w.moves(&mut c, GET);
}

#[test]
fn answers_signed_with_the_older_of_two_live_keys_count() {
    let (mut w, mut c) = World::new(2).at_rest();
    let adoption = w.moves(&mut c, GET);
    w.engine.set_keys(&[(4, AdoptionKey::from_bytes([4; 16])), (3, key())]);
    let sent = w.inject(&answer(&adoption, Reason::NoListener, 0));
    assert_eq!(sent.len(), 1, "rolled back");
    assert_eq!(w.count(Counter::ForgedAnswers), 0);
}

/// The application listens on 127.0.0.1, behind a rule that redirects: its adopter finds nobody on
/// the port, and SYNs are answered.
#[test]
fn a_pod_is_down_only_if_a_syn_is_refused_too() {
    let mut w = silent();
    w.adopters[0] = Some(Reason::NoListener);
    w.run_ms(1_000);
    assert_eq!(w.count(Counter::BackendsWithoutListener), 0);
    let health = |w: &World| w.engine.state(w.now).policies[0].backends[0].health.to_string();
    assert_eq!(health(&w), "up");
    assert_eq!(reason(&w, 0), "nothing listens on the port");
    let mut c = w.idle(1);
    w.exchange(&mut c);
    // Nor is it asked over and over in between: once for each probe that finds nobody.
    let asked = w.count(Counter::LivenessProbesSent);
    w.run_ms(1_000);
    let more = w.count(Counter::LivenessProbesSent) - asked;
    assert!((1..=22).contains(&more), "{more} in two families");
    w.stops(0);
    w.run_ms(150);
    assert_eq!(health(&w), "down: nothing listens on the port");
}
