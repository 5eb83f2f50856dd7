//! Moves that somebody asks for: at once, with the next request, refused, dropped; and the events
//! that tell of moves.

use crate::common::{Conn, Dest, End, World, answer, conn::*, policy, settings};
use baton_api::{
    Affinity, ClientIp, Endpoint, FlowEvent, LastMove, Micros, MigrateReply, MigrationMode,
    OnDeadline, Policy, Protocol,
};
use baton_engine::{Counter, Migrate, MigrateError, MoveEnd};
use baton_packet::{Flags, Reason};

/// Nothing moves by itself here.
fn still(pods: usize) -> Policy {
    let mut p = policy(pods);
    p.migration.mode = MigrationMode::DrainOnly;
    p
}

fn by_client() -> Affinity {
    Affinity { client_ip: ClientIp { timeout: Micros::from_secs(60) } }
}

fn wanted(c: &Conn, to: Option<usize>) -> Migrate {
    Migrate {
        client: c.client,
        frontend: None,
        to: to.map(|pod| format!("pod-{pod}{}", if c.v6() { "-v6" } else { "" })),
    }
}

fn migrate(w: &mut World, c: &Conn, to: Option<usize>) -> Result<MigrateReply, MigrateError> {
    let reply = w.engine.migrate(w.now, &wanted(c, to), &mut w.out);
    w.engine.check_invariants();
    reply
}

fn events(w: &mut World) -> Vec<FlowEvent> {
    let told = w.engine.events(w.now, Some(0), usize::MAX);
    assert_eq!((told.missed, told.more), (0, false));
    assert_eq!(told.now_micros, w.now.0);
    told.events
}

/// `EVENT[ REASON][ FROM>TO][ CAUSE]`.
fn words(event: &FlowEvent) -> String {
    let mut text = event.event.clone();
    if let Some(reason) = &event.reason {
        text = format!("{text} {reason}");
    }
    let pod = |name: &Option<String>| name.clone().unwrap_or_default().replace("pod-", "");
    text = format!("{text} {}>{}", pod(&event.from), pod(&event.to));
    match &event.cause {
        Some(cause) => format!("{text} {cause}"),
        None => text,
    }
}

fn told(w: &mut World) -> Vec<String> {
    events(w).iter().map(words).collect()
}

fn view(w: &World, c: &Conn) -> baton_api::FlowView {
    w.flow(c.client, |_| true).expect("the flow")
}

fn ends(w: &World, cause: &str, end: MoveEnd) -> u64 {
    let state = w.engine.state(w.now);
    let of = state.policies[0].moves_total.get(cause);
    of.and_then(|of| of.get(end.label())).copied().unwrap_or_default()
}

/// The adoptions that `migrate` sent, as the pods get them.
fn sent_now(w: &mut World) -> Vec<crate::common::Sent> {
    w.out.take().iter().map(|f| w.check(f)).collect()
}

#[test]
fn a_flow_at_rest_moves_at_once_to_the_pod_that_is_named() {
    for v6 in [false, true] {
        for fresh in [false, true] {
            let mut w = World::with(settings(), still(4));
            let c = Conn::of(1, v6);
            let mut c = if fresh { w.open_as(c) } else { w.idle_as(c) };
            let (old, to) = (c.pod, (c.pod + 2) % 4);
            let name = |pod: usize| wanted(&c, Some(pod)).to.expect("a name");
            let expected = MigrateReply {
                policy: "web".into(),
                from: name(old),
                to: Some(name(to)),
                begun: true,
            };
            assert_eq!(migrate(&mut w, &c, Some(to)), Ok(expected));
            let sent = sent_now(&mut w);
            w.rescued(&mut c, &sent);
            assert_eq!(c.pod, to);
            w.exchange(&mut c);
            assert_eq!(w.count(Counter::MigrationsConfirmed), 1);
            assert_eq!(w.count(Counter::Rescues), 0);
            assert_eq!(ends(&w, "manual", MoveEnd::Moved), 1);
            let seen = told(&mut w);
            let suffix = if v6 { "-v6" } else { "" };
            let way = format!("{old}{suffix}>{to}{suffix} manual");
            let all = ["move_asked", "adopting", "moved"].map(|what| format!("{what} {way}"));
            assert_eq!(seen, all);
            w.run_ms(1_000);
            let last = view(&w, &c).last_move.expect("a move");
            assert_eq!(last.cause.as_deref(), Some("manual"));
            assert!(last.ago >= Micros::from_millis(1_000), "{last:?}");
        }
    }
}

#[test]
fn a_flow_with_a_request_moves_with_its_next_one() {
    let (mut w, mut c) = World::with(settings(), still(3)).at_rest();
    let to = (c.pod + 1) % 3;
    w.stays(&mut c, GET);
    let reply = migrate(&mut w, &c, Some(to)).expect("taken");
    assert!(!reply.begun);
    assert_eq!(reply.to, Some(format!("pod-{to}")));
    assert!(sent_now(&mut w).is_empty());
    assert_eq!(view(&w, &c).asked_to, Some(format!("pod-{to}")));
    w.served(&mut c);
    w.moves(&mut c, GET);
    assert_eq!(c.pod, to);
    assert_eq!(view(&w, &c).asked_to, None, "it is granted");
    w.served(&mut c);
    // Once.
    w.exchange(&mut c);
    assert_eq!(c.pod, to);
    assert_eq!(ends(&w, "manual", MoveEnd::Moved), 1);
}

#[test]
fn without_a_name_the_flow_goes_to_another_one_and_a_later_wish_replaces_the_earlier() {
    let (mut w, mut c) = World::with(settings(), still(2)).at_rest();
    let old = c.pod;
    w.stays(&mut c, GET);
    let reply = migrate(&mut w, &c, None).expect("taken");
    assert_eq!((reply.begun, reply.to), (false, None));
    assert_eq!(view(&w, &c).asked_to.as_deref(), Some(""));
    migrate(&mut w, &c, Some(1 - old)).expect("taken");
    w.served(&mut c);
    // At rest now: a third one is granted at once.
    let reply = migrate(&mut w, &c, None).expect("taken");
    assert_eq!(reply.to, Some(format!("pod-{}", 1 - old)));
    let sent = sent_now(&mut w);
    w.rescued(&mut c, &sent);
    assert_eq!(c.pod, 1 - old);
}

#[test]
fn where_no_guard_tells_that_a_response_is_complete_the_next_request_moves_it() {
    let mut p = still(2);
    p.protocol = Protocol::RequestResponse;
    let (mut w, mut c) = World::with(settings(), p).at_rest();
    let old = c.pod;
    assert!(!migrate(&mut w, &c, None).expect("taken").begun);
    w.moves(&mut c, GET);
    assert_ne!(c.pod, old);
    w.responds(&mut c, OK);
}

#[test]
fn what_is_in_the_way_is_said() {
    let (mut w, c) = World::with(settings(), still(3)).at_rest();
    let (old, other) = (c.pod, (c.pod + 1) % 3);
    let mut gone = wanted(&c, None);
    gone.client.set_port(1);
    let refused = w.engine.migrate(w.now, &gone, &mut w.out);
    assert_eq!(refused, Err(MigrateError::NoFlow(gone.client)));
    let mut elsewhere = wanted(&c, None);
    elsewhere.frontend = Some("10.0.0.9:81".parse().expect("an address"));
    let refused = w.engine.migrate(w.now, &elsewhere, &mut w.out);
    assert_eq!(refused, Err(MigrateError::NoFlow(c.client)));
    let there = MigrateError::There(format!("pod-{old}"));
    assert_eq!(migrate(&mut w, &c, Some(old)), Err(there));
    let text = migrate(&mut w, &c, Some(9)).expect_err("unknown").to_string();
    assert_eq!(text, "policy `web` has no backend `pod-9`: expected one of pod-0, pod-1, pod-2");
    w.engine.drain(w.now, None, &format!("pod-{other}"), true);
    let text = migrate(&mut w, &c, Some(other)).expect_err("drains");
    assert_eq!(text.to_string(), format!("`pod-{other}` cannot take it: it drains"));
    let third = 3 - old - other;
    w.adopters.fill(Some(Reason::AcceptQueueFull));
    w.run_ms(3_600);
    let text = migrate(&mut w, &c, Some(third)).expect_err("full");
    let full = format!("`pod-{third}` cannot take it: it cannot adopt: accept queue full");
    assert_eq!(text.to_string(), full);
    let nobody = MigrateError::Nobody("web".into());
    assert_eq!(migrate(&mut w, &c, None), Err(nobody));
    assert!(told(&mut w).is_empty(), "nothing happened");
}

#[test]
fn the_policys_limits_and_pins_hold() {
    let refusal = |change: &dyn Fn(&mut Policy)| {
        let mut p = still(2);
        change(&mut p);
        let (mut w, c) = World::with(settings(), p).at_rest();
        migrate(&mut w, &c, None).expect_err("refused").to_string()
    };
    assert!(refusal(&|p| p.protocol = Protocol::None).contains("`protocol: None`"));
    let never = refusal(&|p| p.migration.mode = MigrationMode::Never);
    assert!(never.contains("`migration.mode: Never`"), "{never}");
    let bound = refusal(&|p| p.affinity = Some(by_client()));
    assert!(bound.contains("affinity"), "{bound}");

    let mut p = still(2);
    p.migration.per_flow = 1;
    let (mut w, mut c) = World::with(settings(), p).at_rest();
    migrate(&mut w, &c, None).expect("the first");
    assert_eq!(migrate(&mut w, &c, None), Err(MigrateError::Moving));
    let sent = sent_now(&mut w);
    w.rescued(&mut c, &sent);
    assert_eq!(migrate(&mut w, &c, None), Err(MigrateError::MovedEnough(1)));

    let (mut w, mut c) = World::with(settings(), still(2)).opened();
    w.answers(&mut c, b"220 mail\r\n");
    let pinned = migrate(&mut w, &c, None).expect_err("pinned").to_string();
    assert_eq!(pinned, "the flow is pinned: server_first");
    let mut c = w.idle(2);
    w.client_fin(&mut c);
    let closing = migrate(&mut w, &c, None);
    assert_eq!(closing, Err(MigrateError::State("ClientFin")));
    w.engine.set_keys(&[]);
    let c = w.idle(3);
    assert_eq!(migrate(&mut w, &c, None), Err(MigrateError::NoKey));
}

#[test]
fn a_wish_that_cannot_be_granted_any_more_is_dropped_and_told() {
    // By a pin, by the owner's death, by a drain, by the target's leaving.
    for how in ["pin", "death", "drain", "target leaves", "target is replaced"] {
        let (mut w, mut c) = World::with(settings(), still(3)).at_rest();
        let (old, to) = (c.pod, (c.pod + 1) % 3);
        w.stays(&mut c, GET);
        assert!(!migrate(&mut w, &c, Some(to)).expect("taken").begun);
        match how {
            "pin" => {
                w.answers(&mut c, b"HTTP/1.1 101 Switching\r\n\r\n");
            }
            "death" => {
                w.served(&mut c);
                let sent = w.dies(old, End::Fin, std::slice::from_ref(&c));
                w.rescued(&mut c, &sent);
            }
            "drain" => {
                w.served(&mut c);
                w.engine.drain(w.now, None, &format!("pod-{old}"), true);
                let sent = w.until_adoption(200);
                w.rescued(&mut c, &sent);
            }
            "target leaves" => {
                w.change(|s| {
                    s.policies[0].backends.retain(|b| b.name != format!("pod-{to}"));
                });
                w.served(&mut c);
                w.exchange(&mut c);
            }
            _ => {
                w.run_ms(2_000);
                w.change(|s| {
                    let new = crate::common::endpoint(crate::common::pod(false, 20));
                    let backends = &mut s.policies[0].backends;
                    let slot = backends.iter_mut().find(|b| b.name == format!("pod-{to}"));
                    let slot = slot.expect("the target");
                    (slot.name, slot.endpoint) = ("pod-20".into(), new);
                });
                w.run_ms(100);
                w.served(&mut c);
                w.exchange(&mut c);
            }
        }
        assert_eq!(view(&w, &c).asked_to, None, "{how}");
        let seen = told(&mut w);
        assert!(seen[0].starts_with("move_asked"), "{how}: {seen:?}");
        let dropped = seen.iter().filter(|s| s.starts_with("move_dropped"));
        assert_eq!(dropped.count(), 1, "{how}: {seen:?}");
        assert_eq!(ends(&w, "manual", MoveEnd::Moved), 0, "{how}");
    }
}

#[test]
fn a_move_that_was_taken_back_is_not_tried_again_and_is_remembered() {
    let (mut w, mut c) = World::with(settings(), still(2)).at_rest();
    let old = c.clone();
    migrate(&mut w, &c, None).expect("taken");
    let sent = sent_now(&mut w);
    w.adopted(&mut c, &sent);
    w.inject(&answer(&sent[0], Reason::AcceptQueueFull, 0));
    c = old;
    w.exchange(&mut c);
    assert_eq!(ends(&w, "manual", MoveEnd::RolledBack), 1);
    let (a, b) = (c.pod, 1 - c.pod);
    assert_eq!(
        told(&mut w),
        [
            format!("move_asked {a}>{b} manual"),
            format!("adopting {a}>{b} manual"),
            format!("refused accept_queue_full {a}>{b} manual"),
            format!("rolled_back {a}>{b} manual"),
        ]
    );
    assert_eq!(view(&w, &c).last_move, Some(LastMove { cause: None, ago: Micros(0), by: None }));
}

#[test]
fn each_cause_is_told_and_counted() {
    let (mut w, mut c) = World::new(2).at_rest();
    let a = c.pod;
    let b = 1 - a;
    w.moved_exchange(&mut c);
    w.engine.drain(w.now, None, &format!("pod-{b}"), true);
    w.moved_exchange(&mut c);
    w.engine.drain(w.now, None, &format!("pod-{b}"), false);
    w.run_ms(100);
    let sent = w.dies(a, End::Fin, std::slice::from_ref(&c));
    w.rescued(&mut c, &sent);
    assert_eq!(
        told(&mut w),
        [
            format!("adopting {a}>{b} every_request"),
            format!("moved {a}>{b} every_request"),
            format!("adopting {b}>{a} drain"),
            format!("moved {b}>{a} drain"),
            format!("owner_lost closed {a}>"),
            format!("adopting {a}>{b} rescue"),
            format!("moved {a}>{b} rescue"),
        ]
    );
    for cause in ["every_request", "drain", "rescue"] {
        assert_eq!(ends(&w, cause, MoveEnd::Moved), 1, "{cause}");
    }
    let state = w.engine.state(w.now);
    let all = state.policies[0].moves_total.values();
    let moved: u64 = all.map(|ends| ends["moved"]).sum();
    assert_eq!(moved, state.policies[0].migrations_total);
    assert_eq!(moved, w.count(Counter::MigrationsConfirmed));
}

#[test]
fn losses_replays_and_retries_are_told() {
    // A request that nobody may execute twice.
    let (mut w, mut c) = World::with(settings(), still(2)).at_rest();
    let pod = c.pod;
    w.stays(&mut c, POST);
    w.forwarded_to_client(&c, &w.pod_wire(&c, Flags::ACK, &[]));
    w.dies(pod, End::Fin, std::slice::from_ref(&c));
    assert_eq!(told(&mut w), [format!("lost fate_unknown {pod}>")]);

    // One that may, and meets silence first.
    let (mut w, mut c) = World::with(settings(), still(2)).at_rest();
    let (pod, other) = (c.pod, 1 - c.pod);
    w.stays(&mut c, GET);
    w.dies(pod, End::Rst, std::slice::from_ref(&c));
    w.run_ms(50);
    let seen = told(&mut w);
    assert_eq!(
        seen[..4],
        [
            format!("owner_lost reset {pod}>"),
            format!("replayed {pod}>"),
            format!("adopting {pod}>{other} rescue"),
            format!("adopting_again {pod}>{other} rescue"),
        ]
    );

    // The drain's deadline.
    let mut p = still(2);
    p.drain.quiet = Micros::from_secs(3_600);
    p.drain.deadline = Micros::from_secs(1);
    p.drain.on_deadline = OnDeadline::Close;
    let (mut w, c) = World::with(settings(), p).at_rest();
    w.engine.drain(w.now, None, &format!("pod-{}", c.pod), true);
    w.run_ms(1_100);
    let lost = events(&mut w).pop().expect("an event");
    assert_eq!(words(&lost), format!("lost drain_deadline {}>", c.pod));
    assert_eq!(lost.client, c.client);
    assert_eq!(lost.frontend.map(Endpoint::port), Some(80));
    assert_eq!(lost.policy, "web");
}

#[test]
fn a_move_whose_client_goes_ends_and_one_that_nobody_takes_is_stranded() {
    let (mut w, mut c) = World::new(2).at_rest();
    w.moves(&mut c, GET);
    w.inject(&w.client_wire(&c, Flags::RST, &[]).build());
    assert_eq!(ends(&w, "every_request", MoveEnd::Ended), 1);

    let mut c = w.idle(2);
    let old = c.clone();
    w.adopters[old.pod] = Some(Reason::AcceptQueueFull);
    w.run_ms(3_600);
    let adoption = w.moves(&mut c, GET);
    let rst = w.pod_wire(&old, RST_ACK, &[]);
    assert!(World::to_client(&w.inject(&rst.build())).is_empty());
    let sent = w.inject(&answer(&adoption, Reason::AcceptQueueFull, 0));
    assert!(sent.iter().all(|s| s.to != Dest::Client), "{sent:?}");
    assert_eq!(ends(&w, "every_request", MoveEnd::Stranded), 1);
}

#[test]
fn events_are_read_in_pieces_and_what_is_missed_is_said() {
    let mut s = settings();
    s.limits.closing_legs = 20_000;
    s.ports = 10_000..=59_999;
    let mut w = World::unprobed(s, policy(2));
    (w.strict, w.careful) = (false, false);
    w.poll();
    let mut c = w.idle(1);
    let begin = w.engine.events(w.now, None, 10);
    assert_eq!((begin.next.0[0], begin.events.len(), begin.more), (0, 0, false));
    for _ in 0..3 {
        w.moved_exchange(&mut c);
    }
    let first = w.engine.events(w.now, Some(begin.next.0[0]), 4);
    let numbers: Vec<u64> = first.events.iter().map(|e| e.seq).collect();
    assert_eq!((numbers, first.more, first.next.0[0]), (vec![1, 2, 3, 4], true, 4));
    let rest = w.engine.events(w.now, Some(first.next.0[0]), 4);
    assert_eq!((rest.events.len(), rest.more, rest.next.0[0]), (2, false, 6));
    let none = w.engine.events(w.now, Some(6), 4);
    assert_eq!((none.events.len(), none.next.0[0], none.missed), (0, 6, 0));
    // A reader of an earlier life of the dataplane.
    let again = w.engine.events(w.now, Some(1_000), 100);
    assert_eq!((again.events.len(), again.next.0[0]), (6, 6));
    // A ring's worth later.
    for _ in 0..16_500 {
        w.moved_exchange(&mut c);
    }
    let late = w.engine.events(w.now, Some(6), 1);
    assert_eq!(late.missed, 33_000 - 32_768);
    assert_eq!(late.events[0].seq, 6 + late.missed + 1);
    let counters: Vec<_> = w.engine.counters().collect();
    let unread = ("flow_events_overwritten_total", None, late.missed);
    assert!(counters.contains(&unread));
}

#[test]
fn a_slot_that_went_to_another_pod_does_not_lend_its_name_to_old_events() {
    let (mut w, mut c) = World::with(settings(), still(2)).at_rest();
    let old = c.pod;
    migrate(&mut w, &c, None).expect("taken");
    let sent = sent_now(&mut w);
    w.rescued(&mut c, &sent);
    w.run_ms(2_000);
    w.inject(&w.client_wire(&c, Flags::RST, &[]).build());
    w.run_ms(2_000);
    let name = format!("pod-{old}");
    w.change(|s| s.policies[0].backends.retain(|b| b.name != name));
    w.run_ms(70_000);
    let known = events(&mut w);
    assert!(known.iter().all(|e| e.from.as_ref() == Some(&name)));
    w.change(|s| {
        let mut new = s.policies[0].backends[0].clone();
        new.name = "pod-20".into();
        new.endpoint = crate::common::endpoint(crate::common::pod(false, 20));
        s.policies[0].backends.push(new);
    });
    let events = events(&mut w);
    assert!(events.iter().all(|e| e.from.is_none()), "{events:?}");
    let to = Some(format!("pod-{}", 1 - old));
    assert!(events.iter().all(|e| e.to == to), "{events:?}");
}
