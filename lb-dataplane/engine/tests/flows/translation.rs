//! Translated legs: what the pod and the client each see, and flows that move by both methods. Pods
//! that refuse or do not answer are `opening`'s.

use crate::common::{Conn, Dest, End, Sent, World, conn::*};
use baton_api::{MigrationMode, MoveBy, MoveMethod, Protocol};
use baton_engine::Counter;
use baton_packet::{Flags, Reason};

/// The first number of a pod that was sent our SYN, and how far its timestamps are ahead.
pub(crate) const ISN: u32 = 0xffff_fff8;
const CLOCK: u32 = 0x8000_0000;

pub(crate) fn world(pods: usize) -> World {
    World::of(pods, |p| p.migration.method = MoveMethod::Translation)
}

/// A SYN of ours for the connection, whose owner the pod is to be: its end, with its own numbers.
pub(crate) fn opened(w: &World, c: &mut Conn, syn: &Sent) -> Conn {
    assert!(syn.is(Flags::SYN), "{syn:?}");
    take_leg(c, syn);
    let mut p = c.clone();
    (p.server, p.server_clock) = (ISN, CLOCK);
    p.options.server_wscale = Some(5);
    p.seq = syn.segment.seq.0;
    let state = w.state(c).expect("a flow");
    assert!(state.starts_with("Adopting"), "{state}");
    p
}

/// A request with which the flow moves: our SYN leaves alone. The pod's end.
pub(crate) fn opens(w: &mut World, c: &mut Conn, request: &[u8]) -> Conn {
    let boundary = c.seq;
    let sent = w.data(c, request);
    let syn = one(sent);
    let p = opened(w, c, &syn);
    assert_eq!(syn.segment.seq.0, boundary.wrapping_sub(1));
    p
}

/// Our SYN for a flow that moves without a request.
fn until_syn(w: &mut World) -> Sent {
    let sent = (0..150).map(|_| w.run_ms(1)).find(|sent| !sent.is_empty());
    one(sent.expect("a SYN"))
}

/// A flow at rest whose pod drains: our SYN has left for it. Its two ends.
pub(crate) fn opens_at_rest(pods: usize) -> (World, Conn, Conn) {
    let mut w = World::of(pods, |p| {
        p.migration.mode = MigrationMode::DrainOnly;
        p.migration.method = MoveMethod::Translation;
    });
    let mut c = w.idle(1);
    crate::drain::drain(&mut w, c.pod);
    let syn = until_syn(&mut w);
    let p = opened(&w, &mut c, &syn);
    (w, c, p)
}

/// The pod agrees; what leaves then.
pub(crate) fn agrees(w: &mut World, p: &mut Conn) -> Vec<Sent> {
    let sent = w.inject(&w.synack_wire(p).build());
    p.seq = p.seq.wrapping_add(1);
    p.server = p.server.wrapping_add(1);
    sent
}

/// What ends the handshake, with the pod's numbers.
pub(crate) fn ends_handshake(w: &World, p: &Conn, ack: &Sent) {
    assert!(ack.is(Flags::ACK) && ack.data().is_empty(), "{ack:?}");
    assert_eq!((ack.to, ack.segment.src_port), (Dest::Pod(p.pod), p.leg.port()));
    assert_eq!((ack.segment.seq.0, ack.segment.ack.0), (p.seq, p.server));
    if p.options.timestamps {
        let (_, echo) = ack.stamps().expect("timestamps");
        assert_eq!(echo, CLOCK + w.now.ms() as u32, "what it said");
    }
}

/// A whole move: the pod's end, behind the request.
pub(crate) fn moved(w: &mut World, c: &mut Conn, request: &[u8]) -> Conn {
    let mut p = opens(w, c, request);
    let sent = agrees(w, &mut p);
    let [ack, again] = &sent[..] else { panic!("{sent:?}") };
    ends_handshake(w, &p, ack);
    assert_eq!((again.data(), again.segment.seq.0), (request, p.seq));
    assert_eq!(again.segment.ack.0, p.server);
    p.seq = p.seq.wrapping_add(request.len() as u32);
    p
}

/// The pod sends; what the client gets of it.
pub(crate) fn pod_says(
    w: &mut World,
    (c, p): (&mut Conn, &mut Conn),
    flags: Flags,
    data: &[u8],
) -> Sent {
    let wire = w.pod_wire(p, flags, data);
    let sent = one(w.inject(&wire.build()));
    assert_eq!((sent.to, sent.data()), (Dest::Client, data));
    assert_eq!((sent.segment.seq.0, sent.segment.ack.0), (c.server, c.seq));
    p.server_sent(flags, data);
    c.server_sent(flags, data);
    if let Some((value, _)) = sent.stamps() {
        assert!(value.wrapping_sub(c.seen_ts) as i32 >= 0, "time runs back");
        c.seen_ts = value;
    }
    sent
}

/// The client sends; what the pod gets of it.
fn client_says(w: &mut World, (c, p): (&mut Conn, &mut Conn), flags: Flags, data: &[u8]) -> Sent {
    let sent = one(w.client_sends(c, flags, data));
    assert_eq!((sent.to, sent.data()), (Dest::Pod(p.pod), data));
    assert_eq!((sent.segment.seq.0, sent.segment.ack.0), (p.seq, p.server));
    p.client_sent(flags, data);
    sent
}

#[test]
fn a_request_moves_to_a_pod_that_is_sent_a_syn() {
    for v6 in [false, true] {
        let mut w = world(2);
        let mut c = w.idle_as(Conn::of(1, v6));
        let old = c.clone();
        w.run_ms(40);
        let boundary = c.seq;
        let syn = one(w.data(&mut c, GET));
        let mut p = opened(&w, &mut c, &syn);
        assert_ne!(p.pod, old.pod);
        let offer = baton_packet::parse_syn_options(syn.segment.options(&syn.frame));
        assert_eq!((offer.mss, offer.window_scale), (Some(1_460), Some(7)));
        assert!(offer.sack_permitted);
        let stamps = offer.timestamps;
        assert_eq!(stamps, Some((CLIENT_CLOCK + w.now.ms() as u32, 0)), "the request's");
        assert_eq!(u32::from(syn.segment.window), 501 << 7, "not scaled");
        w.assert_state(&c, "Adopting");
        assert_eq!(w.count(Counter::OpeningsSent), 1);

        let sent = agrees(&mut w, &mut p);
        ends_handshake(&w, &p, &sent[0]);
        assert_eq!((sent[1].data(), sent[1].segment.seq.0), (GET, boundary));
        assert_eq!(sent[1].stamps().expect("timestamps").1, CLOCK + w.now.ms() as u32);
        assert_eq!(sent.len(), 2);
        w.assert_state(&c, "Adopting");
        assert_eq!(w.table("translated_legs").0, 1);
        p.seq = p.seq.wrapping_add(GET.len() as u32);

        // The client sees one server, whose clock went on.
        let reply = pod_says(&mut w, (&mut c, &mut p), PSH_ACK, OK);
        assert_eq!(reply.segment.window, 509 << 5 >> 9, "scaled as it was told");
        assert_eq!(reply.stamps().expect("timestamps").0, old.seen_ts + 40);
        w.assert_state(&c, "Response");
        assert_eq!(w.count(Counter::MigrationsConfirmed), 1);
        client_says(&mut w, (&mut c, &mut p), Flags::ACK, b"");
        w.assert_state(&c, "Idle");
        let view = w.flow(c.client, |_| true).expect("a flow");
        let last = view.last_move.expect("it moved");
        assert_eq!(last.by, Some(MoveBy::Translation));
        // The old leg is closed with its own numbers.
        let fin = one(w.run_ms(10));
        assert_eq!((fin.to, fin.segment.seq.0), (Dest::Pod(old.pod), old.seq));
        assert_eq!(fin.segment.ack.0, old.server);
    }
}

#[test]
fn moves_and_their_closes_go_on_over_translated_legs() {
    let (mut w, mut c) = world(3).at_rest();
    for turn in 0..20_u32 {
        let mut p = moved(&mut w, &mut c, GET);
        pod_says(&mut w, (&mut c, &mut p), PSH_ACK, OK);
        client_says(&mut w, (&mut c, &mut p), Flags::ACK, b"");
        // The leg from before is closed, and its pod closes, too.
        let fin = one(w.run_ms(10));
        assert!(fin.is(FIN_ACK), "{fin:?}");
        let mut pod = Conn {
            leg: (fin.segment.src, fin.segment.src_port).into(),
            seq: fin.segment.seq.0.wrapping_add(1),
            server: fin.segment.ack.0,
            ..c.clone()
        };
        let Dest::Pod(index) = fin.to else { panic!() };
        pod.pod = index;
        if turn > 0 {
            // The pod's own numbers: it began at ISN and has sent one answer.
            assert_eq!(fin.segment.ack.0, ISN.wrapping_add(1 + OK.len() as u32));
        }
        let last = one(w.inject(&w.pod_wire(&pod, FIN_ACK, &[]).build()));
        assert_eq!(last.segment.ack.0, pod.server.wrapping_add(1));
        assert_eq!((last.to, last.segment.seq.0), (fin.to, pod.seq));
    }
    assert_eq!(w.count(Counter::LegsClosed), 20);
    assert_eq!(w.table("translated_legs").0, 1, "the present one");
}

#[test]
fn selective_acknowledgements_mean_the_same_bytes_on_both_sides() {
    let (mut w, mut c) = world(2).at_rest();
    let mut p = moved(&mut w, &mut c, GET);
    pod_says(&mut w, (&mut c, &mut p), PSH_ACK, OK);
    let edges = |from: u32| {
        let mut bytes = vec![1, 1, 5, 10];
        bytes.extend(from.wrapping_add(100).to_be_bytes());
        bytes.extend(from.wrapping_add(200).to_be_bytes());
        bytes
    };
    let mut wire = w.client_wire(&c, Flags::ACK, b"");
    wire.options.extend(edges(c.server));
    let sent = one(w.inject(&wire.build()));
    let options = sent.segment.options(&sent.frame);
    assert_eq!(options[12..], edges(p.server));
    // The pod's are about the client's bytes.
    let mut wire = w.pod_wire(&p, Flags::ACK, b"");
    wire.options.extend(edges(c.seq));
    let sent = one(w.inject(&wire.build()));
    assert_eq!(sent.segment.options(&sent.frame)[12..], edges(c.seq));
}

#[test]
fn clients_without_options_move_too() {
    for (timestamps, wscale) in [(false, Some(7)), (true, None), (false, None)] {
        let mut w = world(2);
        let mut c = Conn::new(1);
        c.options.timestamps = timestamps;
        (c.options.client_wscale, c.options.sack) = (wscale, false);
        c.options.server_wscale = wscale.map(|_| 9);
        let mut c = w.idle_as(c);
        let mut p = opens(&mut w, &mut c, GET);
        p.options.server_wscale = wscale.map(|_| 5);
        let sent = agrees(&mut w, &mut p);
        ends_handshake(&w, &p, &sent[0]);
        p.seq = p.seq.wrapping_add(GET.len() as u32);
        let reply = pod_says(&mut w, (&mut c, &mut p), PSH_ACK, OK);
        let window = if wscale.is_some() { 509 << 5 >> 9 } else { 509 };
        assert_eq!(reply.segment.window, window);
        assert_eq!(reply.stamps().is_some(), timestamps);
        client_says(&mut w, (&mut c, &mut p), Flags::ACK, b"");
        w.assert_state(&c, "Idle");
    }
}

#[test]
fn a_flow_at_rest_leaves_a_pod_that_drains() {
    let mut w = World::of(2, |p| {
        p.protocol = Protocol::Http1;
        p.migration.mode = MigrationMode::DrainOnly;
        p.migration.method = MoveMethod::Translation;
    });
    let mut c = w.idle(1);
    let old = c.clone();
    crate::drain::drain(&mut w, c.pod);
    let syn = until_syn(&mut w);
    let mut p = opened(&w, &mut c, &syn);
    w.assert_state(&c, "AdoptingIdle");
    let sent = agrees(&mut w, &mut p);
    let [ack, keepalive] = &sent[..] else { panic!("{sent:?}") };
    ends_handshake(&w, &p, ack);
    assert_eq!(keepalive.segment.seq.0, c.seq.wrapping_sub(1));
    assert_eq!(keepalive.segment.ack.0, p.server);
    let confirmed = w.inject(&w.pod_wire(&p, Flags::ACK, &[]).build());
    assert!(confirmed.is_empty(), "{confirmed:?}");
    w.assert_state(&c, "Idle");
    let fin = one(w.run_ms(10));
    assert_eq!((fin.to, fin.segment.ack.0), (Dest::Pod(old.pod), old.server));
    // The rest of a request whose end is not known yet may have to wait for the pod's window.
    let (begin, end) = POST.split_at(POST.len() - 1);
    client_says(&mut w, (&mut c, &mut p), PSH_ACK, begin);
    client_says(&mut w, (&mut c, &mut p), PSH_ACK, end);
    pod_says(&mut w, (&mut c, &mut p), PSH_ACK, OK);
}

#[test]
fn a_request_that_comes_during_an_idle_move_waits_for_the_pods_answer() {
    let (mut w, mut c, mut p) = opens_at_rest(2);
    assert!(w.data(&mut c, GET).is_empty(), "it waits");
    let sent = agrees(&mut w, &mut p);
    ends_handshake(&w, &p, &sent[0]);
    assert_eq!(sent[1].data(), GET);
    p.seq = p.seq.wrapping_add(GET.len() as u32);
    pod_says(&mut w, (&mut c, &mut p), PSH_ACK, OK);
}

#[test]
fn a_session_is_restored_over_a_translated_leg() {
    let mut w = World::of(2, |p| {
        p.protocol = Protocol::Resp;
        p.migration.method = MoveMethod::Translation;
    });
    let mut c = w.open(1);
    let free = std::mem::replace(&mut w.out.free, 0);
    w.stays(&mut c, SELECT);
    w.answers(&mut c, PLUS_OK);
    w.out.free = free;
    let boundary = c.seq;
    let syn = one(w.data(&mut c, PING));
    let mut p = opened(&w, &mut c, &syn);
    let begins = boundary.wrapping_sub(SELECT.len() as u32);
    assert_eq!(syn.segment.seq.0, begins.wrapping_sub(1));
    let sent = agrees(&mut w, &mut p);
    ends_handshake(&w, &p, &sent[0]);
    assert_eq!((sent[1].data(), sent[1].segment.ack.0), (SELECT, p.server));
    assert_eq!(sent.len(), 2, "the request waits: {sent:?}");
    p.seq = boundary;
    let sent = w.inject(&w.pod_wire(&p, PSH_ACK, PLUS_OK).build());
    p.server = p.server.wrapping_add(PLUS_OK.len() as u32);
    assert!(sent.iter().all(|s| s.to == Dest::Pod(p.pod)), "{sent:?}");
    assert!(sent.iter().any(|s| s.data() == PING));
    assert!(sent.iter().any(|s| s.segment.ack.0 == p.server));
    p.seq = c.seq;
    pod_says(&mut w, (&mut c, &mut p), PSH_ACK, b"+PONG\r\n");
}

#[test]
fn a_flow_goes_on_by_adoption_and_by_translation_in_turn() {
    // The first pod adopts; the second has no adopter.
    let mut w = World::of(2, |p| p.migration.method = MoveMethod::Auto);
    w.adopters[1] = Some(Reason::PacketRules);
    w.run_ms(1_100);
    let mut c = w.idle(1);
    let (mut adopted, mut translated) = (0, 0);
    for _ in 0..10 {
        if c.pod == 0 {
            let mut p = moved(&mut w, &mut c, GET);
            pod_says(&mut w, (&mut c, &mut p), PSH_ACK, OK);
            client_says(&mut w, (&mut c, &mut p), Flags::ACK, b"");
            translated += 1;
        } else {
            // With the numbers that the client knows.
            w.moves(&mut c, GET);
            // A new owner goes on with the clock that it was told.
            c.server_clock = c.seen_ts.wrapping_sub(w.now.ms() as u32);
            w.served(&mut c);
            adopted += 1;
        }
        w.assert_state(&c, "Idle");
    }
    assert!(adopted >= 4 && translated >= 4, "{adopted}, {translated}");
}

#[test]
fn an_orphan_is_given_to_a_pod_without_adopter() {
    for how in End::BOTH {
        let mut w = world(2);
        w.adopters.fill(None);
        let mut c = w.open(1);
        w.stays(&mut c, GET);
        let old = c.pod;
        // Its adopter would say so; without, its kernel does.
        w.listeners[old] = crate::common::Listener::Refuses;
        let sent = w.inject(&w.pod_wire(&c, how.flags(), &[]).build());
        let sent: Vec<Sent> = sent.into_iter().chain(w.run_ms(20)).collect();
        let syn = sent.iter().find(|s| s.is(Flags::SYN)).expect("a SYN");
        let request = c.seq.wrapping_sub(GET.len() as u32);
        assert_eq!(syn.segment.seq.0, request.wrapping_sub(1));
        let mut p = opened(&w, &mut c, syn);
        assert_ne!(p.pod, old);
        let sent = agrees(&mut w, &mut p);
        assert_eq!(sent[1].data(), GET);
        p.seq = c.seq;
        pod_says(&mut w, (&mut c, &mut p), PSH_ACK, OK);
        assert_eq!(w.count(Counter::Rescues), 1);
    }
}

#[test]
fn without_any_key_flows_move() {
    let mut w = World::of(2, |p| p.migration.method = MoveMethod::Auto);
    w.engine.set_keys(&[]);
    w.run_ms(5_000);
    let mut c = w.idle(1);
    let mut p = moved(&mut w, &mut c, GET);
    pod_says(&mut w, (&mut c, &mut p), PSH_ACK, OK);
}

#[test]
fn a_clients_reset_and_close_reach_the_pod_with_its_numbers() {
    let (mut w, mut c) = world(2).at_rest();
    let mut p = moved(&mut w, &mut c, GET);
    pod_says(&mut w, (&mut c, &mut p), PSH_ACK, OK);
    client_says(&mut w, (&mut c, &mut p), FIN_ACK, b"");
    pod_says(&mut w, (&mut c, &mut p), FIN_ACK, b"");
    client_says(&mut w, (&mut c, &mut p), Flags::ACK, b"");
    w.run_ms(1_500);
    assert_eq!(w.state(&c), None);
    let mut c = w.idle(2);
    let mut p = moved(&mut w, &mut c, GET);
    pod_says(&mut w, (&mut c, &mut p), PSH_ACK, OK);
    client_says(&mut w, (&mut c, &mut p), RST_ACK, b"");
    assert_eq!(w.state(&c), None);
    assert_eq!(w.table("translated_legs").0, 0);
}

#[test]
fn a_flow_that_is_not_adoptable_for_its_mss_is_translated() {
    let mut w = World::of(2, |p| p.migration.method = MoveMethod::Auto);
    let mut c = Conn::new(1);
    c.options.mss = Some(300);
    let mut c = w.idle_as(c);
    let mut p = moved(&mut w, &mut c, GET);
    pod_says(&mut w, (&mut c, &mut p), PSH_ACK, OK);
    assert_eq!(w.pins(), 0);
}

/// A request that moves, its answer, and the client's acknowledgement.
fn moves_once(w: &mut World, c: &mut Conn) {
    let mut p = moved(w, c, GET);
    pod_says(w, (c, &mut p), PSH_ACK, OK);
    client_says(w, (c, &mut p), Flags::ACK, b"");
}

#[test]
fn no_more_legs_are_translated_than_there_is_room_for() {
    let mut s = crate::common::settings();
    (s.limits.flows, s.limits.closing_legs) = (16, 16);
    let mut p = crate::common::policy(2);
    p.migration.method = MoveMethod::Translation;
    let mut w = World::with(s, p);
    let mut flows: Vec<Conn> = (0..16).map(|n| w.idle(n)).collect();
    for c in &mut flows {
        moves_once(&mut w, c);
        // The first leg, which is not translated, is closed by both.
        let fin = one(w.run_ms(10));
        let Dest::Pod(pod) = fin.to else { panic!() };
        let old = Conn {
            pod,
            leg: (fin.segment.src, fin.segment.src_port).into(),
            seq: fin.segment.seq.0.wrapping_add(1),
            server: fin.segment.ack.0,
            ..c.clone()
        };
        w.inject(&w.pod_wire(&old, FIN_ACK, &[]).build());
    }
    assert_eq!(w.table("translated_legs"), (16, 32));
    // The next ones are, and close.
    for c in &mut flows[..15] {
        moves_once(&mut w, c);
    }
    assert_eq!(w.table("translated_legs"), (31, 32));
    // Two more, and only one of the pods' answers has a place.
    let mut last = opens(&mut w, &mut flows[15], GET);
    let mut first = opens(&mut w, &mut flows[0], GET);
    assert_eq!(agrees(&mut w, &mut last).len(), 2);
    let sent = agrees(&mut w, &mut first);
    assert!(sent.iter().any(|s| s.is(RST_ACK)), "{sent:?}");
    assert!(sent.iter().any(|s| s.data() == GET), "{sent:?}");
    assert_eq!(w.count(Counter::ShiftsFull), 1);
    // That is not the pod's doing.
    assert_eq!(w.count(Counter::OpeningsUnlike), 0);
    w.assert_state(&flows[0], "Request");
    assert_eq!(w.table("translated_legs"), (32, 32));
    // Nor is another one asked for.
    let sent = w.data(&mut flows[1], GET);
    assert_eq!(one(sent).data(), GET);
    assert_eq!(w.count(Counter::StayedShiftsFull), 1);
}
