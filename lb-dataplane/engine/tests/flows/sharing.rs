//! Legs that flows have one after the other: when one is parked, who gets it, what both ends see,
//! and what ends that.

use super::drain::drain;
use crate::common::{Conn, Dest, Sent, World, conn::*, policy, settings, wire::stamps};
use baton_api::{Legs, MoveBy};
use baton_engine::Counter;
use baton_packet::Flags;
use std::collections::BTreeSet;

/// Asks for a protocol that nobody speaks.
pub const UPGRADE: &[u8] = b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
/// A pod's clock on a leg whose numbers are its own.
const LATER: u32 = 1_000;

pub fn world(pods: usize) -> World {
    World::of(pods, |p| p.migration.legs = Legs::Shared)
}

/// A flow moves by adoption and is served there; its old end, as the pod has it, which is told that
/// its last response arrived.
fn leaves(w: &mut World, c: &mut Conn) -> Conn {
    let old = c.clone();
    w.moved_exchange(c);
    // Not so long that others go without a leg.
    let sent = (0..4)
        .flat_map(|_| w.run_ms(1))
        .filter(|s| s.to == Dest::Pod(old.pod) && s.segment.src_port == old.leg.port());
    let told = one(sent.collect());
    assert!(told.is(Flags::ACK) && told.data().is_empty(), "{told:?}");
    let numbers = (told.segment.seq.0, told.segment.ack.0);
    assert_eq!(numbers, (old.seq, old.server));
    old
}

/// The pod answers the keepalive on a leg that is parked, with a clock of its own.
pub fn answers(w: &mut World, old: &Conn, asked: &Sent) {
    assert_eq!(asked.data().len(), 1, "{asked:?}");
    assert_eq!(asked.segment.seq.0, old.seq.wrapping_sub(1));
    assert_eq!(asked.segment.ack.0, old.server);
    says_when(w, old);
}

/// An acknowledgement of the pod's on a leg that is parked, with a clock of its own.
fn says_when(w: &mut World, old: &Conn) {
    let mut pod = old.clone();
    pod.server_clock = pod.server_clock.wrapping_add(LATER);
    let ack = w.pod_wire(&pod, Flags::ACK, &[]);
    assert!(w.inject(&ack.build()).is_empty());
}

/// Two flows, on two pods: the first one has moved to the other's, and its leg is parked.
fn parked() -> (World, Conn, Conn, Conn) {
    let mut w = world(2);
    let (mut a, b) = (w.idle(1), w.idle(2));
    assert_ne!(a.pod, b.pod);
    let old = leaves(&mut w, &mut a);
    says_when(&mut w, &old);
    assert_eq!(w.count(Counter::LegsParked), 1);
    (w, a, b, old)
}

/// The second flow's request, which leaves on the first one's leg; the pod's end of it.
fn shared(w: &mut World, b: &mut Conn, old: &Conn, request: &[u8]) -> Conn {
    let sent = one(w.data(b, request));
    assert_eq!(sent.to, Dest::Pod(old.pod));
    assert_eq!(sent.segment.src_port, old.leg.port());
    assert_eq!((sent.segment.seq.0, sent.segment.ack.0), (old.seq, old.server));
    assert_eq!(sent.data(), request);
    let (value, echo) = sent.stamps().expect("timestamps");
    assert!(value.wrapping_sub(CLIENT_CLOCK) as i32 >= 0, "time runs on");
    let pods = old.server_clock.wrapping_add(LATER);
    assert!(echo.wrapping_sub(pods) as i32 >= 0, "what the pod said, or later");
    let mut p = old.clone();
    // What it will echo.
    (p.server_clock, p.seen_ts) = (pods, value);
    p.client_sent(PSH_ACK, request);
    (b.pod, b.leg) = (old.pod, old.leg);
    p
}

#[test]
fn a_request_travels_on_another_flows_leg() {
    let (mut w, mut a, mut b, old) = parked();
    w.assert_state(&b, "Idle");
    let accepted = w.count(Counter::MigrationsConfirmed);
    let mut p = shared(&mut w, &mut b, &old, GET);
    w.assert_state(&b, "Adopting");
    assert_eq!(w.count(Counter::LegsShared), 1);
    // The client gets the answer in its own numbers.
    let mut wire = w.pod_wire(&p, PSH_ACK, OK);
    let clock = p.server_clock.wrapping_add(w.now.ms() as u32);
    wire.options = stamps(clock, p.seen_ts);
    let got = one(w.inject(&wire.build()));
    assert_eq!((got.to, got.data()), (Dest::Client, OK));
    assert_eq!((got.segment.seq.0, got.segment.ack.0), (b.server, b.seq));
    let (value, echo) = got.stamps().expect("timestamps");
    assert!(value.wrapping_sub(b.seen_ts) as i32 >= 0, "time runs back");
    let sent_at = CLIENT_CLOCK.wrapping_add(w.now.ms() as u32);
    assert_eq!(echo, sent_at, "what the client said");
    b.seen_ts = value;
    b.server_sent(PSH_ACK, OK);
    p.server_sent(PSH_ACK, OK);
    w.assert_state(&b, "Response");
    assert_eq!(w.count(Counter::MigrationsConfirmed), accepted + 1);
    let ack = one(w.client_sends(&mut b, Flags::ACK, b""));
    assert_eq!((ack.segment.seq.0, ack.segment.ack.0), (p.seq, p.server));
    w.assert_state(&b, "Idle");
    let last = w.flow(b.client, |_| true).and_then(|f| f.last_move);
    assert_eq!(last.and_then(|m| m.by), Some(MoveBy::SharedLeg));
    assert_eq!(w.table("translated_legs").0, 1);
    // The flow that had it before is served where it is.
    w.exchange_anywhere(&mut a);
}

/// The server may read what comes next otherwise than as a request: it must be the same client's.
#[test]
fn a_leg_behind_a_refused_upgrade_is_nobody_elses() {
    let mut w = world(2);
    for (n, request, parked) in [(1, UPGRADE, 0), (2, GET, 1)] {
        let mut c = w.open(n);
        w.stays(&mut c, request);
        for moves in [false, true] {
            if moves {
                w.moves(&mut c, GET);
            }
            w.responds(&mut c, OK);
            w.ack(&mut c);
        }
        assert_eq!(w.count(Counter::LegsParked), parked, "{n}");
    }
}

#[test]
fn a_leg_goes_from_flow_to_flow() {
    let mut w = world(2);
    let mut flows: Vec<Conn> = (1..=4).map(|n| w.idle(n)).collect();
    for turn in 0..40 {
        let c = &mut flows[turn % 4];
        let sent = w.data(c, GET);
        let request = sent.iter().find(|s| s.data() == GET).expect("a request");
        let Dest::Pod(pod) = request.to else { panic!() };
        let mut end = c.clone();
        (end.pod, end.leg) = (pod, (request.segment.src, request.segment.src_port).into());
        (end.seq, end.server) = (request.segment.seq.0, request.segment.ack.0);
        end.server_clock = end.server_clock.wrapping_add(turn as u32 * 7);
        end.client_sent(PSH_ACK, GET);
        let got = one(w.inject(&w.pod_wire(&end, PSH_ACK, OK).build()));
        assert_eq!((got.to, got.data()), (Dest::Client, OK), "turn {turn}");
        assert_eq!((got.segment.seq.0, got.segment.ack.0), (c.server, c.seq));
        c.server_sent(PSH_ACK, OK);
        let _ = w.client_sends(c, Flags::ACK, b"");
        for sent in (0..6).flat_map(|_| w.run_ms(1)) {
            assert!(!sent.is(FIN_ACK), "a leg that is left is parked: {sent:?}");
        }
    }
    let legless = w.count(Counter::LegsLeft);
    let policy = &w.engine.state(w.now).policies[0];
    assert_eq!(w.count(Counter::LegsParked), policy.migrations_total + legless);
    assert!(w.count(Counter::LegsShared) > 20, "{}", w.count(Counter::LegsShared));
}

#[test]
fn what_a_parked_leg_says_of_its_own_accord_ends_the_parking() {
    for flags in [PSH_ACK, FIN_ACK] {
        let (mut w, _, mut b, old) = parked();
        let data: &[u8] = if flags == PSH_ACK { b"HTTP/1.1 408" } else { b"" };
        let fin = one(w.inject(&w.pod_wire(&old, flags, data).build()));
        assert!(fin.is(FIN_ACK), "{fin:?}");
        assert_eq!((fin.to, fin.segment.seq.0), (Dest::Pod(old.pod), old.seq));
        assert!(w.moves(&mut b, GET).is_adoption(), "not on that leg");
        assert_eq!(w.count(Counter::LegsShared), 0);
    }
}

#[test]
fn a_leg_that_was_asked_is_nobodys_until_its_pod_answers() {
    for answered in [false, true] {
        let mut w = world(2);
        let (mut a, mut b) = (w.idle(1), w.idle(2));
        let old = leaves(&mut w, &mut a);
        let sent: Vec<_> = (0..255).flat_map(|_| w.run_ms(1)).collect();
        let of_leg = |s: &&Sent| s.segment.src_port == old.leg.port();
        let asked = sent.iter().filter(of_leg).find(|s| s.data().len() == 1);
        let asked = asked.expect("a question");
        assert_eq!(asked.to, Dest::Pod(old.pod));
        if answered {
            answers(&mut w, &old, asked);
            // Its own is with the other pod, which has not answered.
            drain(&mut w, b.pod);
            let _ = shared(&mut w, &mut b, &old, GET);
            assert_eq!(w.count(Counter::LegsShared), 1);
            continue;
        }
        assert!(w.data(&mut b, GET)[0].is_adoption());
        let fins: Vec<_> = (0..3_000)
            .flat_map(|_| w.run_ms(1))
            .filter(|s| s.is(FIN_ACK) && s.segment.src_port == old.leg.port())
            .collect();
        assert!(!fins.is_empty(), "it is closed in time");
        assert_eq!(w.count(Counter::LegsShared), 0);
    }
}

/// Both ends have acknowledged all: nothing is left to ask.
#[test]
fn a_leg_that_was_just_left_is_taken_without_a_question() {
    let mut w = world(2);
    let (mut a, mut b) = (w.idle(1), w.idle(2));
    let old = a.clone();
    w.moves(&mut a, GET);
    w.responds(&mut a, OK);
    let sent = one(w.data(&mut b, GET));
    assert_eq!((sent.to, sent.data()), (Dest::Pod(old.pod), GET));
    assert_eq!(sent.segment.src_port, old.leg.port());
    let numbers = (sent.segment.seq.0, sent.segment.ack.0);
    assert_eq!(numbers, (old.seq, old.server));
    let (_, echo) = sent.stamps().expect("timestamps");
    assert!(echo.wrapping_sub(old.server_clock) as i32 >= 0, "what the pod said, or later");
    assert_eq!(w.count(Counter::LegsShared), 1);
}

#[test]
fn what_crosses_the_request_is_no_answer_to_it() {
    for flags in [PSH_ACK, FIN_ACK, FIN_ACK | Flags::PSH] {
        let (mut w, _, mut b, old) = parked();
        let before = b.clone();
        let _ = shared(&mut w, &mut b, &old, POST);
        let data: &[u8] = if flags == FIN_ACK { b"" } else { b"HTTP/1.1 408" };
        let mut wire = w.pod_wire(&old, flags, data);
        wire.ack = old.seq;
        let sent = w.inject(&wire.build());
        assert!(sent.iter().all(|s| s.to != Dest::Client), "{sent:?}");
        let again: Vec<_> = sent.iter().filter(|s| s.data() == POST).collect();
        assert_eq!(again.len(), 1, "{sent:?}");
        assert_eq!(again[0].to, Dest::Pod(before.pod), "the old owner's");
        assert_eq!(w.count(Counter::FateReset), 0);
        (b.pod, b.leg) = (before.pod, before.leg);
        w.responds(&mut b, OK);
    }
}

#[test]
fn a_late_acknowledgement_says_nothing_of_the_request() {
    let (mut w, _, mut b, old) = parked();
    let p = shared(&mut w, &mut b, &old, POST);
    let mut ack = w.pod_wire(&old, Flags::ACK, &[]);
    ack.options = stamps(old.server_clock, CLIENT_CLOCK);
    assert!(w.inject(&ack.build()).is_empty());
    w.assert_state(&b, "Adopting");
    let ack = w.pod_wire(&p, Flags::ACK, &[]);
    assert_eq!(one(w.inject(&ack.build())).to, Dest::Client);
    w.assert_state(&b, "Request");
}

/// A client's timestamps that only we believe, in segments that its pod's kernel discards: to that
/// kernel the next client's are old. It says so, and the request goes elsewhere at once.
#[test]
fn a_pod_that_knows_the_leg_by_newer_timestamps_has_had_nothing() {
    let (mut w, _a, mut b, old) = parked();
    let mut p = shared(&mut w, &mut b, &old, GET);
    p.seq = old.seq;
    let mut wire = w.pod_wire(&p, Flags::ACK, &[]);
    wire.options = stamps(p.server_clock, p.seen_ts.wrapping_add(1 << 30));
    let sent = w.inject(&wire.build());
    let again = sent.iter().find(|s| s.data() == GET);
    assert!(again.is_some(), "{sent:?}");
    assert_eq!(w.taken("Adopting", "Withdrawn"), 1);
}

#[test]
fn a_leg_with_other_promises_is_not_taken() {
    let (mut w, mut a) = world(2).at_rest();
    let mut other = Conn::new(2);
    other.options.client_wscale = Some(3);
    let mut b = w.idle_as(other);
    let _ = leaves(&mut w, &mut a);
    assert_eq!(w.count(Counter::LegsParked), 1);
    assert!(w.moves(&mut b, GET).is_adoption());
    assert_eq!(w.count(Counter::LegsShared), 0);
}

/// Its pod has seen larger windows, and would send full segments only.
#[test]
fn a_client_whose_window_holds_no_segment_takes_no_leg() {
    let (mut w, _, mut b, _) = parked();
    b.window = 1_460 >> 7;
    assert!(w.moves(&mut b, GET).is_adoption());
    assert_eq!(w.count(Counter::LegsShared), 0);
}

#[test]
fn a_parked_leg_is_closed_when_its_time_is_over() {
    let (mut w, _, _, old) = parked();
    let sent: Vec<_> = (0..2_000).flat_map(|_| w.run_ms(1)).collect();
    let of_leg = |s: &&Sent| s.to == Dest::Pod(old.pod) && s.segment.src_port == old.leg.port();
    let fin = sent.iter().filter(of_leg).find(|s| s.is(FIN_ACK));
    assert_eq!(fin.expect("a FIN").segment.seq.0, old.seq);
}

#[test]
fn what_is_left_while_as_many_legs_are_parked_as_may_be_is_closed() {
    let mut s = settings();
    s.limits.closing_legs = 16;
    let mut p = policy(2);
    p.migration.legs = Legs::Shared;
    let mut w = World::with(s, p);
    let flows: Vec<Conn> = (1..=9).map(|n| w.idle(n)).collect();
    let sent: Vec<_> = (0..15).flat_map(|_| w.run_ms(1)).collect();
    for c in &flows {
        w.assert_state(c, "Legless");
    }
    assert_eq!(w.count(Counter::ParkedFull), 1);
    assert_eq!(sent.iter().filter(|s| s.is(FIN_ACK)).count(), 1, "{sent:?}");
    assert_eq!(w.count(Counter::LegsParked), 8);
}

/// What a burst of clients had is closed soon; the last few are asked, and wait for the next
/// request.
#[test]
fn the_surplus_of_parked_legs_is_closed_first() {
    let mut p = policy(1);
    p.migration.legs = Legs::Shared;
    let mut w = World::with(settings(), p);
    let flows: Vec<Conn> = (1..=11).map(|n| w.idle(n)).collect();
    let sent: Vec<_> = (0..240).flat_map(|_| w.run_ms(1)).collect();
    assert_eq!(w.count(Counter::LegsParked), 11);
    let closed = |sent: &[Sent]| {
        let fins = sent.iter().filter(|s| s.is(FIN_ACK));
        let ports: BTreeSet<u16> = fins.map(|s| s.segment.src_port).collect();
        ports.len()
    };
    assert_eq!(closed(&sent), 0);
    let sent: Vec<_> = (0..30).flat_map(|_| w.run_ms(1)).collect();
    assert_eq!(closed(&sent), 3, "eight are kept");
    let mut asked = 0;
    for c in &flows {
        let question = |s: &&Sent| s.data().len() == 1 && s.segment.src_port == c.leg.port();
        if let Some(question) = sent.iter().find(question) {
            answers(&mut w, c, question);
            asked += 1;
        }
    }
    assert_eq!(asked, 8);
    let mut after = |ms: u64| closed(&(0..ms).flat_map(|_| w.run_ms(1)).collect::<Vec<_>>());
    assert_eq!(after(1_200), 3, "the same, sent again");
    assert_eq!(after(100), 8);
}

/// A copy of it that was late on the way is in the past of the flow that has the leg now.
#[test]
fn another_clients_response_reaches_nobody() {
    let (mut w, _, mut b, old) = parked();
    let mut late = w.pod_wire(&old, PSH_ACK, OK);
    late.seq = old.server.wrapping_sub(OK.len() as u32);
    let late = late.build();
    let data = |sent: &[Sent]| {
        let to_client = |s: &&Sent| s.to == Dest::Client && !s.data().is_empty();
        sent.iter().filter(to_client).count()
    };
    let mut p = shared(&mut w, &mut b, &old, GET);
    assert_eq!(data(&w.inject(&late)), 0, "before the pod has the request");
    w.assert_state(&b, "Adopting");
    let mut wire = w.pod_wire(&p, PSH_ACK, OK);
    let clock = p.server_clock.wrapping_add(w.now.ms() as u32);
    wire.options = stamps(clock, p.seen_ts);
    assert_eq!(data(&w.inject(&wire.build())), 1);
    p.server_sent(PSH_ACK, OK);
    b.server_sent(PSH_ACK, OK);
    assert_eq!(data(&w.inject(&late)), 0, "behind the response");
    let _ = w.client_sends(&mut b, Flags::ACK, b"");
    assert_eq!(data(&w.inject(&late)), 0, "at rest");
}
