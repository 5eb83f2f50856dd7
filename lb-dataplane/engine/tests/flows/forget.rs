//! What a leg leaves behind: the pod's TIME_WAIT, what trackers on the way remember, and ports.

use crate::common::{
    Conn, Dest, NAMESPACE, Sent, World, answer, answer_with, conn::*, key, policy, settings,
};
use baton_engine::{Counter, Verdict};
use baton_packet::{AdoptionKey, Flags, ListenerReport, Reason};

/// A world whose adopters answer Forgets.
fn forgetting(pods: usize) -> World {
    let mut w = World::unprobed(settings(), policy(pods));
    for told in &mut w.told {
        told.forgets = true;
    }
    w.poll();
    w
}

fn forgets(sent: &[Sent]) -> Vec<Sent> {
    let forgets: Vec<Sent> = sent.iter().filter(|s| s.is_forget()).cloned().collect();
    for forget in &forgets {
        assert_eq!(forget.message().map(|m| m.namespace), Some(NAMESPACE));
    }
    forgets
}

/// The pod acknowledges the client's close, to the client.
fn pod_acks(w: &mut World, c: &Conn) -> Vec<Sent> {
    let ack = w.pod_wire(c, Flags::ACK, &[]);
    w.inject(&ack.build())
}

/// Server first, then the client, all acknowledged; what left with the pod's last ACK.
fn server_closes_first(w: &mut World, c: &mut Conn) -> Vec<Sent> {
    w.pod_closes(c);
    w.client_fin(c);
    w.assert_state(c, "Closed");
    pod_acks(w, c)
}

/// The flow moves, and its old leg closes in order; the Conn on that leg.
fn old_leg_closes(w: &mut World, c: &mut Conn) -> Conn {
    let old = c.clone();
    w.moved_exchange(c);
    let fin = one(w.run_ms(1));
    assert_eq!((fin.to, fin.is(FIN_ACK)), (Dest::Pod(old.pod), true));
    let mut last = w.pod_wire(&old, FIN_ACK, &[]);
    last.ack = last.ack.wrapping_add(1);
    let ack = one(w.inject(&last.build()));
    assert!(ack.is(Flags::ACK));
    old
}

#[test]
fn a_pod_that_closed_first_has_its_time_wait_ended_once_both_ends_have_all() {
    let (mut w, mut c) = World::new(2).at_rest();
    let sent = server_closes_first(&mut w, &mut c);
    let [rst, ack] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((rst.to, rst.is(Flags::RST)), (Dest::Pod(c.pod), true));
    assert_eq!(rst.segment.seq.0, c.seq, "what the pod expects next");
    assert_eq!(rst.stamps(), None, "nothing for PAWS to judge");
    assert_eq!((ack.to, ack.is(Flags::ACK)), (Dest::Client, true));
    assert_eq!(w.count(Counter::TimeWaitsEnded), 1);
    w.assert_state(&c, "Closed");
    // The leg is gone; the flow still answers for the pod whose last ACK the client may lack.
    let mut fin = w.client_wire(&c, FIN_ACK, &[]);
    fin.seq = fin.seq.wrapping_sub(1);
    let again = one(w.inject(&fin.build()));
    assert_eq!((again.to, again.is(Flags::ACK)), (Dest::Client, true));
    assert_eq!((again.segment.seq.0, again.segment.ack.0), (c.server, c.seq));
    let late = w.client_wire(&c, Flags::ACK, &[]);
    assert!(w.inject(&late.build()).is_empty());
    assert_eq!(w.verdict, Verdict::Absorbed);
    assert!(w.run_ms(1_100).is_empty());
    assert_eq!(w.state(&c), None);
}

#[test]
fn a_time_wait_is_left_alone_while_an_end_lacks_anything() {
    // The pod has not acknowledged the client's close.
    let (mut w, mut c) = World::new(2).at_rest();
    w.pod_closes(&mut c);
    w.client_fin(&mut c);
    let mut ack = w.pod_wire(&c, Flags::ACK, &[]);
    ack.ack = ack.ack.wrapping_sub(1);
    w.forwarded_to_client(&c, &ack);
    assert_eq!(w.count(Counter::TimeWaitsEnded), 0);
    // The client has not acknowledged the pod's: both closed at once.
    let (mut w, mut c) = World::new(2).at_rest();
    w.client_fin(&mut c);
    let mut fin = w.pod_wire(&c, FIN_ACK, &[]);
    fin.ack = fin.ack.wrapping_sub(1);
    w.forwarded_to_client(&c, &fin);
    c.server = c.server.wrapping_add(1);
    pod_acks(&mut w, &c);
    assert_eq!(w.count(Counter::TimeWaitsEnded), 0);
    let ack = w.client_wire(&c, Flags::ACK, &[]);
    let sent = w.inject(&ack.build());
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert!(sent[0].is(Flags::RST) && sent[0].segment.seq.0 == c.seq);
    assert_eq!(w.count(Counter::TimeWaitsEnded), 1);
}

#[test]
fn a_pod_that_closed_last_has_no_time_wait() {
    let (mut w, mut c) = World::new(2).at_rest();
    w.client_fin(&mut c);
    w.pod_fin(&mut c);
    w.assert_state(&c, "Closed");
    let last = w.ack(&mut c);
    assert_eq!(last.to, Dest::Pod(c.pod), "it waits for this one");
    assert_eq!(w.count(Counter::TimeWaitsEnded), 0);
    assert_eq!(w.taken("Closed", "AllAcked"), 1);
    // It repeats its FIN if that was lost: nobody's leg any more.
    let mut fin = w.pod_wire(&c, FIN_ACK, &[]);
    fin.seq = fin.seq.wrapping_sub(1);
    let rst = one(w.inject(&fin.build()));
    assert!(rst.is(Flags::RST) && rst.segment.seq.0 == c.seq, "exact");
}

#[test]
fn an_old_leg_whose_pod_closed_first_leaves_no_time_wait() {
    let (mut w, mut c) = World::new(2).at_rest();
    let mut old = c.clone();
    w.moves(&mut c, GET);
    w.responds(&mut c, OK);
    let fin = one(w.inject(&w.pod_wire(&old, FIN_ACK, &[]).build()));
    assert!(fin.is(FIN_ACK));
    old.server = old.server.wrapping_add(1);
    old.seq = old.seq.wrapping_add(1);
    let rst = one(w.inject(&w.pod_wire(&old, Flags::ACK, &[]).build()));
    assert!(rst.is(Flags::RST) && rst.segment.seq.0 == old.seq);
    assert_eq!(w.count(Counter::TimeWaitsEnded), 1);
    assert_eq!(w.count(Counter::LegsClosed), 1);
}

#[test]
fn a_pair_that_closed_in_order_is_forgotten_after_its_rest() {
    let (mut w, mut c) = forgetting(2).at_rest();
    let old = old_leg_closes(&mut w, &mut c);
    assert!(w.run_ms(98).is_empty());
    let forget = one(w.run_ms(2));
    assert!(forget.is_forget() && forget.is(Flags::SYN));
    assert_eq!(forget.to, Dest::Pod(old.pod));
    assert_eq!(forget.segment.src_port, old.leg.port());
    assert_eq!(w.table("open_forgets").0, 1);
    assert!(w.inject(&answer(&forget, Reason::Forgotten, 0)).is_empty());
    assert_eq!(w.table("open_forgets").0, 0);
    assert_eq!(w.count(Counter::ForgetsAnswered), 1);
    assert!(forgets(&w.run_ms(10_000)).is_empty(), "once is enough");
}

#[test]
fn what_was_reset_takes_two_rounds_with_a_reset_in_front() {
    let (mut w, mut c) = forgetting(2).at_rest();
    w.inject(&w.client_wire(&c, Flags::RST, &[]).build());
    assert_eq!(w.state(&c), None);
    assert!(w.run_ms(998).is_empty());
    let mut sent = w.run_ms(2);
    for round in 0..2 {
        assert_eq!(sent.len(), 2, "{sent:?}");
        assert!(sent[0].is(Flags::RST) && sent[1].is_forget());
        assert_eq!(sent[0].segment.src_port, c.leg.port());
        assert_eq!(w.count(Counter::ForgetsAnswered), 0, "round {round}");
        sent = w.inject(&answer(&sent[1], Reason::Forgotten, 0));
    }
    assert!(sent.is_empty());
    assert_eq!(w.count(Counter::ForgetsAnswered), 1);
    c = w.idle(2);
    w.assert_serves(&mut c);
}

#[test]
fn an_unanswered_forget_is_repeated_a_few_times() {
    let (mut w, mut c) = forgetting(2).at_rest();
    old_leg_closes(&mut w, &mut c);
    w.run_ms(100);
    let sent = w.run_ms(1_000);
    assert_eq!(forgets(&sent).len(), 2, "{sent:?}");
    assert_eq!(w.count(Counter::ForgetsSent), 3);
    assert_eq!(w.count(Counter::ForgetsUnanswered), 1);
    // What trackers keep of the last one ends: else they drop what the next client sends there.
    let last = forgets(&sent)[1].segment;
    let ends = sent.iter().rposition(|s| s.is(Flags::RST)).expect("a RST");
    assert_eq!((sent[ends].segment.seq, sent[ends].segment.src_port), (last.seq, last.src_port));
    assert!(sent[ends..].iter().all(|s| !s.is_forget()));
    assert_eq!(w.table("open_forgets").0, 0);
    // An answer that comes now is nobody's.
    let late = forgets(&sent).remove(1);
    assert!(w.inject(&answer(&late, Reason::Forgotten, 0)).is_empty());
    assert_eq!(w.count(Counter::ForgetsAnswered), 0);
}

#[test]
fn only_the_adopters_answer_to_the_open_forget_counts() {
    let (mut w, mut c) = forgetting(2).at_rest();
    old_leg_closes(&mut w, &mut c);
    let forget = one(w.run_ms(100));
    let other = AdoptionKey::from_bytes([9; 16]);
    w.inject(&answer_with(&forget, Reason::Forgotten, 0, 3, &other));
    w.inject(&answer_with(&forget, Reason::Forgotten, 0, 7, &key()));
    assert_eq!(w.count(Counter::ForgedAnswers), 2);
    let mut late = forget.clone();
    late.segment.seq = late.segment.seq.add(1);
    w.inject(&answer(&late, Reason::Forgotten, 0));
    assert_eq!(w.count(Counter::LateAnswers), 1);
    let bare = w.reset_of(&forget);
    assert!(w.inject(&bare.build()).is_empty());
    assert_eq!(w.count(Counter::ForgetsAnswered), 0);
    assert_eq!(w.table("open_forgets").0, 1);
    w.inject(&answer(&forget, Reason::Forgotten, 0));
    assert_eq!(w.count(Counter::ForgetsAnswered), 1);
}

#[test]
fn a_pair_with_a_time_wait_rests_for_a_minute() {
    let (mut w, mut c) = forgetting(2).at_rest();
    old_leg_closes(&mut w, &mut c);
    let forget = one(w.run_ms(100));
    w.inject(&answer(&forget, Reason::TupleInUse, 0));
    assert_eq!(w.count(Counter::ForgetsInUse), 1);
    assert!(forgets(&w.run_ms(59_000)).is_empty());
    let again = forgets(&w.run_ms(2_000));
    assert_eq!(again[0].segment.src_port, forget.segment.src_port, "{again:?}");
}

/// To an older one it would be a SYN.
#[test]
fn adopters_that_do_not_answer_forgets_are_sent_none() {
    let (mut w, mut c) = World::new(2).at_rest();
    old_leg_closes(&mut w, &mut c);
    assert!(w.run_ms(5_000).is_empty());
    assert_eq!(w.count(Counter::ForgetsSent), 0);
    // From when on it does, they are.
    w.told = vec![ListenerReport { forgets: true, ..ListenerReport::default() }; 32];
    assert_eq!(forgets(&w.run_ms(2_000)).len(), 1 + 2, "once, and again");
}

#[test]
fn a_pod_without_its_adopter_is_left_without_a_connection() {
    let (mut w, mut c) = forgetting(2).at_rest();
    old_leg_closes(&mut w, &mut c);
    let forget = one(w.run_ms(100));
    let syn_ack = w.question_wire(&forget, true);
    let rst = one(w.inject(&syn_ack.build()));
    assert!(rst.is(Flags::RST) && rst.segment.seq.0 == syn_ack.ack);
    assert_eq!(w.count(Counter::ForgetsAnswered), 0);
}

/// An adoption is never sent over a pair that a tracker may remember; a SYN may be.
#[test]
fn adoptions_take_forgotten_pairs_only_and_leave_the_reserve() {
    let mut s = settings();
    s.limits.flows = 256;
    s.limits.closing_legs = 256;
    s.ports = 40_000..=40_063;
    let (mut w, mut c) = World::with(s, policy(2)).at_rest();
    let mut used = std::collections::HashSet::new();
    used.insert((c.pod, c.leg.port()));
    // The adopters answer no Forgets: each pair serves one adoption.
    while w.count(Counter::StayedPortReserve) == 0 {
        let before = c.leg;
        w.exchange_anywhere(&mut c);
        if c.leg != before {
            assert!(used.insert((c.pod, c.leg.port())), "{c:?} twice");
            let sent = w.run_ms(1);
            assert!(sent.iter().all(|s| s.is(FIN_ACK)), "{sent:?}");
        }
        w.run_ms(300);
    }
    assert!(used.len() > 2 * 48, "{}", used.len());
    assert_eq!(w.count(Counter::StayedNoPort), 0);
    // New connections open all the same.
    for n in 100..120 {
        w.open(n);
    }
    assert_eq!(w.dropped(baton_engine::DropReason::NoPort), 0);
}

#[test]
fn a_silent_adoption_has_a_forget_in_front_of_the_next() {
    let (mut w, mut c) = forgetting(2).at_rest();
    let first = w.moves(&mut c, GET);
    let sent = w.run_ms(46);
    let [forget, adoption, request] = &sent[..] else { panic!("{sent:?}") };
    assert!(forget.is_forget() && adoption.is_adoption());
    assert_eq!(forget.segment.src_port, first.segment.src_port);
    assert_eq!(adoption.segment.seq, first.segment.seq);
    assert_eq!(request.data(), GET);
    // An older one's answer says nothing of now.
    let mut late = forget.clone();
    late.segment.seq = late.segment.seq.add(5);
    assert!(w.inject(&answer(&late, Reason::Forgotten, 0)).is_empty());
    // The entry is gone, and perhaps what met it as well.
    let again = w.inject(&answer(forget, Reason::Forgotten, 0));
    assert_eq!(again.len(), 2, "{again:?}");
    assert!(again[0].is_adoption());
    assert_eq!(again[1].data(), GET);
    w.responds(&mut c, OK);
    assert_eq!(w.count(Counter::MigrationsConfirmed), 1);
}

/// The adoption was taken, and nobody on the way remembers it: a Forget in front of its repetition
/// is a new connection's begin to trackers, and what comes behind that is INVALID to them.
#[test]
fn an_adoption_that_was_taken_and_is_not_heard_of_has_its_forgets_answered() {
    let (mut w, mut c) = forgetting(2).at_rest();
    w.moves(&mut c, GET);
    let mut forgets: Vec<Sent> = Vec::new();
    while forgets.len() < 3 {
        let sent = w.run_ms(1);
        forgets.extend(sent.into_iter().filter(Sent::is_forget));
    }
    let asks = |forget: &Sent| forget.message().expect("a message").wscale_ok;
    let asks: Vec<bool> = forgets.iter().map(asks).collect();
    assert_eq!(asks, [false, true, true], "the first one ends no entry");
    // The Answer ended what the Forget had begun.
    let again = w.inject(&answer(&forgets[2], Reason::TupleInUse, 0));
    let [adoption, request] = &again[..] else { panic!("{again:?}") };
    assert!(adoption.is_adoption());
    assert_eq!(request.data(), GET);
    // Such an answer to an older one says nothing of now.
    assert!(w.inject(&answer(&forgets[1], Reason::TupleInUse, 0)).is_empty());
    w.responds(&mut c, OK);
    assert_eq!(w.count(Counter::MigrationsConfirmed), 1);
    assert_eq!(w.count(Counter::ForgetsInUse), 1);
    assert_eq!(w.count(Counter::RefusedTupleInUse), 0);
}

/// The request overtook its adoption, which is taken a moment later: what let one through lets the
/// other through, and trackers forget at such a RST.
#[test]
fn behind_a_bare_reset_there_is_no_forget() {
    let (mut w, mut c) = forgetting(2).at_rest();
    w.moves(&mut c, GET);
    let mut rst = w.pod_wire(&c, Flags::RST, &[]);
    (rst.ack, rst.options) = (0, Vec::new());
    let again = w.inject(&rst.build());
    let [adoption, request] = &again[..] else { panic!("{again:?}") };
    assert!(adoption.is_adoption());
    assert_eq!(request.data(), GET);
    w.responds(&mut c, OK);
    assert_eq!(w.count(Counter::MigrationsConfirmed), 1);
    assert_eq!(w.count(Counter::ForgetsSent), 0);
}

fn roomy() -> World {
    let mut s = settings();
    s.limits.flows = 256;
    s.limits.closing_legs = 256;
    s.ports = 40_000..=40_511;
    let mut w = World::unprobed(s, policy(2));
    w.strict = false;
    w.poll();
    w
}

#[test]
fn old_legs_close_a_few_at_a_time() {
    let mut w = roomy();
    let mut flows: Vec<Conn> = (0..40).map(|n| w.idle(n)).collect();
    for c in &mut flows {
        w.moves(c, GET);
        w.responds(c, OK);
    }
    assert_eq!(w.table("closing_legs").0, 40);
    for _ in 0..8 {
        let fins = w.run_us(250).iter().filter(|s| s.is(FIN_ACK)).count();
        assert_eq!(fins, 5, "all within 2 ms");
    }
}

/// Turns of 3 ms, as of a worker that waits for its CPU, in each of which 100 flows move: each turn
/// closes as many.
#[test]
fn closes_keep_up_with_moves_when_turns_are_long() {
    let mut w = roomy();
    let mut flows: Vec<Conn> = (0..100).map(|n| w.idle(n)).collect();
    for _ in 0..2 {
        for c in &mut flows {
            w.moved_exchange(c);
        }
        w.now.0 += 3_000;
        assert_eq!(w.poll().iter().filter(|s| s.is(FIN_ACK)).count(), 100);
    }
}

/// Two pods for new connections at random, with 40,000 leg ports; unchecked, as what comes is many.
fn two_at_random() -> World {
    let mut s = settings();
    s.ports = 20_000..=59_999;
    let mut p = policy(2);
    p.algorithm = baton_api::Algorithm::Random;
    let mut w = World::unprobed(s, p);
    (w.careful, w.strict) = (false, false);
    w
}

#[test]
fn where_trackers_may_hold_too_much_nothing_moves_but_in_need() {
    let mut w = two_at_random();
    w.poll();
    let mut c = w.idle(1);
    w.moved_exchange(&mut c);
    // Connections that come and go, faster than trackers forget them.
    for n in 0..4_200_u32 {
        let mut other = Conn::new(2 + (n % 32) as u16);
        other.seq = n;
        let syn = w.syn_wire(&other).build();
        w.inject(&syn);
        other.seq = n + 1;
        let mut rst = w.client_wire(&other, Flags::RST, &[]);
        rst.options.clear();
        w.inject(&rst.build());
    }
    w.run_ms(50);
    let (tracked, limit) = w.table("tracked_pairs");
    assert!(tracked > limit, "{tracked} of {limit}");
    w.stays(&mut c, GET);
    assert_eq!(w.count(Counter::StayedTracked), 1);
    // A handshake of ours may use a pair that they remember.
    w.served(&mut c);
    w.change(|s| s.policies[0].migration.method = baton_api::MoveMethod::Translation);
    w.run_ms(1_050);
    let syn = one(w.data(&mut c, GET));
    assert!(syn.is(Flags::SYN), "{syn:?}");
    w.run_ms(20);
    assert_eq!(w.table("tracked_pairs").0, tracked);
    take_leg(&mut c, &syn);
    let mut pod = c.clone();
    (pod.seq, pod.server) = (syn.segment.seq.0, 77);
    w.inject(&w.synack_wire(&pod).build());
    (pod.seq, pod.server) = (c.seq, 78);
    w.inject(&w.pod_wire(&pod, PSH_ACK, OK).build());
    c.server_sent(PSH_ACK, OK);
    w.inject(&w.client_wire(&c, Flags::ACK, &[]).build());
    w.assert_state(&c, "Idle");
    w.change(|s| s.policies[0].migration.method = baton_api::MoveMethod::Adoption);
    // A drain does not wait for that.
    let name = format!("pod-{}", c.pod);
    w.engine.drain(w.now, None, &name, true);
    w.moved_exchange(&mut c);
    w.engine.drain(w.now, None, &name, false);
    // Two minutes later none of it is left.
    w.run_ms(125_000);
    w.moves(&mut c, GET);
}

/// Whose pods' adopters answer nothing, or whose connections come and go faster than they do, keeps
/// none of the others' pairs from being forgotten.
#[test]
fn a_pod_that_answers_no_forget_leaves_room_for_the_others() {
    let mut w = two_at_random();
    for told in &mut w.told {
        told.forgets = true;
    }
    w.poll();
    // As many pairs of each pod's as three times all that may be open.
    for n in 0..6_000_u32 {
        let mut c = Conn::new(1 + (n % 32) as u16);
        c.seq = n;
        w.client_sends(&mut c, Flags::SYN, b"");
        let mut rst = w.client_wire(&c, Flags::RST, b"");
        rst.options.clear();
        w.inject(&rst.build());
    }
    let mut sent = w.run_ms(990);
    let (mut silent, mut answered) = (0, 0);
    for _ in 0..100 {
        sent.extend(w.run_ms(1));
        for forget in forgets(&std::mem::take(&mut sent)) {
            if forget.to == Dest::Pod(0) {
                silent += 1;
                continue;
            }
            answered += 1;
            sent.extend(w.inject(&answer(&forget, Reason::Forgotten, 0)));
        }
    }
    assert!(silent >= 512, "{silent}");
    assert!(answered > 1_000, "{answered}");
}
