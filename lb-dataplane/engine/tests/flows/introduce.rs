//! Headers of the PROXY protocol in front of legs: where they are, how long they are sent, and that
//! the client's numbers stay its own.

use crate::{
    common::{
        Conn, Dest, End, OUR_MAC, ROUTER_MAC, Sent, World, answer, conn::*, policy, router,
        settings, wire::icmp,
    },
    translation::{ISN, agrees, pod_says},
};
use baton_api::{ClientAddress, Legs, MigrationMode, MoveMethod, Protocol};
use baton_engine::Counter;
use baton_packet::{Flags, PROXY_HEADER_MAX, Reason, proxy_header};

fn world(pods: usize, change: impl FnOnce(&mut baton_api::Policy)) -> World {
    let mut policy = policy(pods);
    policy.client_address = ClientAddress::ProxyV2;
    change(&mut policy);
    World::with(settings(), policy)
}

/// The header of a connection.
fn header(c: &Conn) -> Vec<u8> {
    let mut bytes = [0; PROXY_HEADER_MAX];
    let len = proxy_header(&mut bytes, c.client, c.frontend, "web").expect("a header");
    bytes[..len].to_vec()
}

fn len(c: &Conn) -> u32 {
    header(c).len() as u32
}

/// Takes the header in front of the client's next byte off what went to the connection's pod.
#[track_caller]
fn behind_header(c: &Conn, sent: &[Sent]) -> Vec<Sent> {
    let [first, rest @ ..] = sent else {
        panic!("no header");
    };
    assert_eq!(first.to, Dest::Pod(c.pod));
    assert_eq!(first.data(), header(c));
    rest.to_vec()
}

/// The pod with the same connection before it had the header.
fn without(c: &Conn) -> Conn {
    let mut pod = c.clone();
    pod.seq = pod.seq.wrapping_sub(len(c));
    pod
}

/// A connection whose pod has said SYN-ACK.
fn answered(w: &mut World, mut c: Conn) -> Conn {
    let syn = w.syn(&mut c);
    assert_eq!(syn.segment.seq.0, c.seq.wrapping_sub(len(&c)));
    let wire = w.synack_wire(&without(&c));
    let sent = one(w.inject(&wire.build()));
    assert_eq!((sent.to, sent.segment.ack.0), (Dest::Client, c.seq + 1));
    c.seq = c.seq.wrapping_add(1);
    c.server = c.server.wrapping_add(1);
    c.seen_ts = sent.stamps().map_or(0, |s| s.0);
    c
}

/// One whose header is on its way.
fn opened(w: &mut World, c: Conn) -> Conn {
    let mut c = answered(w, c);
    let sent = one(w.client_sends(&mut c, Flags::ACK, b""));
    let (seq, ack) = (sent.segment.seq.0, sent.segment.ack.0);
    assert_eq!((seq, ack), (without(&c).seq, c.server));
    assert!(behind_header(&c, &[sent]).is_empty());
    c
}

/// One whose header has arrived.
fn open(w: &mut World, c: Conn) -> Conn {
    let c = opened(w, c);
    let ack = w.pod_wire(&c, Flags::ACK, b"");
    w.forwarded_to_client(&c, &ack);
    c
}

fn idle(w: &mut World, n: u16) -> Conn {
    let mut c = open(w, Conn::new(n));
    w.exchange(&mut c);
    c
}

#[test]
fn the_header_takes_the_place_of_the_ack_and_then_nothing_is_changed() {
    for v6 in [false, true] {
        let mut w = world(2, |_| ());
        let mut c = open(&mut w, Conn::of(7, v6));
        w.exchange(&mut c);
        let mut other = open(&mut w, Conn::of(8, v6));
        w.exchange(&mut other);
        let counts = [Counter::LegsIntroduced, Counter::HeadersSent].map(|c| w.count(c));
        assert_eq!(counts, [2, 2]);
    }
}

#[test]
fn copies_of_the_syn_and_of_its_answer_are_alike() {
    let mut w = world(2, |_| ());
    let mut c = Conn::new(7);
    let first = w.syn(&mut c);
    w.run_ms(900);
    let again = one(w.inject(&w.syn_wire(&c).build()));
    assert_eq!(first.segment.seq, again.segment.seq);
    let mut c = opened(&mut w, Conn::new(8));
    // The header was lost, and the pod's kernel knows no better than to repeat its SYN-ACK.
    let mut pod = without(&c);
    (pod.seq, pod.server) = (pod.seq.wrapping_sub(1), c.server.wrapping_sub(1));
    let synack = one(w.inject(&w.synack_wire(&pod).build()));
    assert_eq!((synack.to, synack.segment.ack.0), (Dest::Client, c.seq));
    let sent = w.client_sends(&mut c, Flags::ACK, b"");
    assert!(behind_header(&c, &sent).is_empty());
}

#[test]
fn until_it_is_acknowledged_each_segment_has_it_in_front() {
    let mut w = world(1, |_| ());
    let mut c = opened(&mut w, Conn::new(7));
    let wire = w.client_wire(&c, PSH_ACK, GET);
    for _ in 0..2 {
        let request = one(behind_header(&c, &w.inject(&wire.build())));
        assert_same(&request, &wire);
        // The pod has the request only, behind a gap.
        let lacking = w.pod_wire(&without(&c), Flags::ACK, b"");
        let told = one(w.inject(&lacking.build()));
        assert_eq!((told.to, told.segment.ack.0), (Dest::Client, c.seq));
    }
    c.client_sent(PSH_ACK, GET);
    w.served(&mut c);
    w.exchange(&mut c);
}

/// What a client says in front of its first byte would be at the header's place.
#[test]
fn a_client_cannot_introduce_itself() {
    let mut w = world(1, |_| ());
    let honest = answered(&mut w, Conn::new(7));
    let mut liar = without(&honest);
    liar.client.set_port(9);
    let lie = w.client_wire(&without(&honest), PSH_ACK, &header(&liar)).build();
    assert!(w.inject(&lie).is_empty());
    let mut c = honest;
    let sent = w.client_sends(&mut c, Flags::ACK, b"");
    assert!(behind_header(&c, &sent).is_empty());
    assert!(w.inject(&lie).is_empty());
    let ack = w.pod_wire(&c, Flags::ACK, b"");
    w.forwarded_to_client(&c, &ack);
    w.exchange(&mut c);
}

#[test]
fn a_server_that_speaks_first_is_heard_before_it_has_the_header() {
    let mut w = world(1, |p| p.protocol = Protocol::None);
    let mut c = opened(&mut w, Conn::new(7));
    let wire = w.pod_wire(&without(&c), PSH_ACK, b"220 ready\r\n");
    let told = one(w.inject(&wire.build()));
    assert_eq!((told.to, told.segment.ack.0), (Dest::Client, c.seq));
    c.server_sent(PSH_ACK, b"220 ready\r\n");
    let sent = w.client_sends(&mut c, Flags::ACK, b"");
    assert_eq!(sent[0].segment.ack.0, c.server);
    assert!(behind_header(&c, &sent).is_empty());
}

#[test]
fn a_client_that_resets_meanwhile_resets_the_pod() {
    let mut w = world(1, |_| ());
    let mut c = opened(&mut w, Conn::new(7));
    let sent = w.client_sends(&mut c, Flags::RST, b"");
    let rst = one(behind_header(&c, &sent));
    assert_eq!((rst.segment.seq.0, rst.segment.flags), (c.seq, Flags::RST));
    assert_eq!(w.state(&c), None);
}

#[test]
fn a_pod_that_refuses_is_not_the_last() {
    let mut w = world(2, |_| ());
    let mut c = Conn::new(7);
    let syn = w.syn(&mut c);
    let mut rst = w.pod_wire(&without(&c), RST_ACK, b"");
    (rst.seq, rst.ack) = (0, rst.ack.wrapping_add(1));
    rst.options.clear();
    let sent = w.inject(&rst.build());
    let other = sent.iter().find(|s| s.is(Flags::SYN) && !s.is_question());
    let other = other.expect("a SYN to the other pod");
    assert_ne!(other.to, syn.to);
    assert_eq!(other.segment.seq, syn.segment.seq);
}

/// A router has no way to the pod: the client's kernel would not know the number that is quoted.
#[test]
fn a_pod_that_is_not_reached_is_not_the_last() {
    let mut w = world(2, |_| ());
    let mut c = Conn::new(7);
    let syn = w.syn(&mut c);
    let between = (router(false), syn.segment.src);
    let macs = (ROUTER_MAC, OUR_MAC);
    let error = icmp(macs, between, 60, [3, 1], &[0; 4], &syn.frame[14..]);
    let sent = w.inject(&error);
    assert!(World::to_client(&sent).is_empty(), "{sent:?}");
    let other = sent.iter().find(|s| s.is(Flags::SYN) && !s.is_question());
    let other = other.expect("a SYN to the other pod");
    assert_ne!(other.to, syn.to);
    assert_eq!(other.segment.seq, syn.segment.seq);
}

/// A request with which the flow moves, as its new pod sees the connection.
fn moves(w: &mut World, c: &mut Conn) -> (Conn, Sent) {
    let request = w.client_wire(c, PSH_ACK, GET);
    let sent = w.inject(&request.build());
    assert!(sent[0].is_adoption(), "{sent:?}");
    let old = c.clone();
    take_leg(c, &sent[0]);
    assert_ne!(old.pod, c.pod);
    assert_eq!(sent[0].segment.seq.0, without(c).seq);
    let behind = one(behind_header(c, &sent[1..]));
    assert_same(&behind, &request);
    c.client_sent(PSH_ACK, GET);
    (old, sent[0].clone())
}

#[test]
fn each_heir_has_it_again() {
    let mut w = world(3, |_| ());
    let mut c = idle(&mut w, 7);
    for _ in 0..3 {
        moves(&mut w, &mut c);
        w.served(&mut c);
    }
    assert_eq!(w.count(Counter::LegsIntroduced), 4);
    assert_eq!(w.count(Counter::MigrationsConfirmed), 3);
}

#[test]
fn the_tries_of_an_adoption_repeat_it() {
    let mut w = world(2, |_| ());
    let mut c = idle(&mut w, 7);
    let request = c.seq;
    moves(&mut w, &mut c);
    // The pod has made the socket and lacks the header.
    let mut lacks = without(&c);
    lacks.seq = lacks.seq.wrapping_sub(GET.len() as u32);
    let sent = w.inject(&w.pod_wire(&lacks, Flags::ACK, b"").build());
    assert!(sent.iter().all(|s| s.to != Dest::Client), "{sent:?}");
    w.assert_state(&c, "Adopting");
    let sent = w.run_ms(60);
    let at = sent.iter().position(Sent::is_adoption).expect("a copy");
    assert_eq!(sent[at + 1].data(), header(&c));
    assert_eq!((sent[at + 2].data(), sent[at + 2].segment.seq.0), (GET, request));
    w.served(&mut c);
}

/// The request is on its way behind the header: that the pod has only that one means nothing.
#[test]
fn who_has_the_header_is_not_sent_the_request_again() {
    let mut w = world(2, |_| ());
    let mut c = idle(&mut w, 7);
    moves(&mut w, &mut c);
    let mut pod = c.clone();
    pod.seq = pod.seq.wrapping_sub(GET.len() as u32);
    let sent = w.inject(&w.pod_wire(&pod, Flags::ACK, b"").build());
    assert!(sent.iter().all(|s| s.data() != GET), "{sent:?}");
    w.served(&mut c);
}

#[test]
fn a_late_copy_never_reaches_the_headers_place() {
    let mut w = world(2, |_| ());
    let mut c = idle(&mut w, 7);
    let mut late = c.clone();
    late.seq = late.seq.wrapping_sub(GET.len() as u32);
    let late = w.client_wire(&late, PSH_ACK, GET).build();
    // To the pod that has it, it goes.
    assert_eq!(one(w.inject(&late)).to, Dest::Pod(c.pod));
    moves(&mut w, &mut c);
    assert!(w.inject(&late).is_empty());
    w.responds(&mut c, OK);
    assert_eq!(one(w.inject(&late)).to, Dest::Pod(c.pod));
}

/// Nor what a client repeats of it together with new bytes, which alone go on.
#[test]
fn what_a_former_pod_has_is_not_sent_with_what_is_new() {
    let mut w = world(2, |_| ());
    let mut c = idle(&mut w, 7);
    let boundary = c.seq;
    let repeated = boundary.wrapping_sub(GET.len() as u32);
    moves(&mut w, &mut c);
    let mut wire = w.client_wire(&c, PSH_ACK, &[GET, GET, GET].concat());
    wire.seq = repeated;
    let more = one(w.inject(&wire.build()));
    assert_eq!(more.to, Dest::Pod(c.pod));
    c.client_sent(PSH_ACK, GET);
    let sent = w.run_ms(60);
    let of_client = |s: &&Sent| s.segment.payload_len() > 0 && s.data() != header(&c);
    let mut sent = sent.iter().chain([&more]).filter(of_client);
    assert!(sent.all(|s| s.segment.seq.0.wrapping_sub(boundary).cast_signed() >= 0));
    w.responds(&mut c, OK);
    w.responds(&mut c, OK);
    w.ack(&mut c);
}

#[test]
fn the_header_alone_is_nothing_of_the_request() {
    let mut w = world(2, |_| ());
    let mut c = idle(&mut w, 7);
    let old = c.clone();
    moves(&mut w, &mut c);
    // It took the header, did not like it, and ended.
    let mut pod = c.clone();
    pod.seq = pod.seq.wrapping_sub(GET.len() as u32);
    let sent = w.inject(&w.pod_wire(&pod, FIN_ACK, b"").build());
    let again = sent.iter().find(|s| s.data() == GET).expect("the request");
    assert_eq!(again.to, Dest::Pod(old.pod));
    assert_eq!(w.count(Counter::Rollbacks), 1);
    assert_eq!(w.count(Counter::FateReplayed), 0);
}

#[test]
fn who_is_given_back_has_it_already() {
    let mut w = world(2, |_| ());
    let mut c = idle(&mut w, 7);
    let (old, adoption) = moves(&mut w, &mut c);
    let sent = w.inject(&answer(&adoption, Reason::AcceptQueueFull, 0));
    let request = one(sent);
    assert_eq!((request.to, request.data()), (Dest::Pod(old.pod), GET));
    (c.pod, c.leg) = (old.pod, old.leg);
    w.served(&mut c);
}

/// A flow whose pod drains before it has acknowledged the header: as it was, and its adoption.
fn drained(w: &mut World) -> (Conn, Conn, Vec<Sent>) {
    let mut c = opened(w, Conn::new(7));
    let old = c.clone();
    crate::drain::drain(w, c.pod);
    let sent = w.until_adoption(100);
    let first = without(&c).seq;
    w.adopted_from(&mut c, &sent, first);
    (old, c, sent)
}

#[test]
fn who_is_given_back_before_it_had_it_gets_it_again() {
    let mut w = world(2, |_| ());
    let (mut old, _, sent) = drained(&mut w);
    let adoption = sent.iter().find(|s| s.is_adoption()).expect("an adoption");
    w.inject(&answer(adoption, Reason::AcceptQueueFull, 0));
    assert_eq!(w.count(Counter::Rollbacks), 1);
    let wire = w.client_wire(&old, PSH_ACK, GET);
    let request = one(behind_header(&old, &w.inject(&wire.build())));
    assert_same(&request, &wire);
    old.client_sent(PSH_ACK, GET);
    w.responds(&mut old, OK);
}

#[test]
fn an_idle_flow_is_asked_for_in_front_of_the_header() {
    let (mut w, mut c) = (world(2, |_| ()), Conn::new(7));
    c = open(&mut w, c);
    w.exchange(&mut c);
    let old = c.pod;
    let sent = w.ends(&c, End::Rst);
    let sent: Vec<_> = sent.into_iter().chain(w.until_adoption(100)).collect();
    let first = without(&c).seq;
    let behind = w.adopted_from(&mut c, &sent, first);
    assert_ne!(c.pod, old);
    let keepalive = one(behind_header(&c, &behind));
    assert_eq!(keepalive.segment.seq.0, without(&c).seq.wrapping_sub(1));
    // It has made the socket, and has no header: it is not the flow's yet.
    let lacking = w.pod_wire(&without(&c), Flags::ACK, b"");
    assert!(w.inject(&lacking.build()).iter().all(|s| s.to != Dest::Client));
    w.assert_state(&c, "AdoptingIdle");
    w.confirms(&c);
    w.exchange_anywhere(&mut c);
}

#[test]
fn a_handshake_of_ours_has_it_with_its_end() {
    let mut w = world(2, |p| p.migration.method = MoveMethod::Translation);
    let mut c = idle(&mut w, 7);
    let first = without(&c).seq;
    let syn = one(w.data(&mut c, GET));
    let mut p = crate::translation::opened(&w, &mut c, &syn);
    assert_eq!(p.seq, first.wrapping_sub(1));
    let sent = agrees(&mut w, &mut p);
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert_eq!((sent[0].data(), sent[0].segment.seq.0), (&header(&c)[..], p.seq));
    assert_eq!(sent[0].segment.ack.0, ISN.wrapping_add(1));
    assert_eq!(sent[1].data(), GET);
    p.seq = c.seq;
    pod_says(&mut w, (&mut c, &mut p), PSH_ACK, OK);
}

#[test]
fn a_session_is_behind_it() {
    let mut w = world(3, |p| {
        p.protocol = Protocol::Resp;
        p.migration.mode = MigrationMode::Always;
    });
    let mut c = open(&mut w, Conn::new(7));
    let free = std::mem::replace(&mut w.out.free, 0);
    w.stays(&mut c, SELECT);
    w.answers(&mut c, PLUS_OK);
    w.out.free = free;
    let boundary = c.seq;
    let sent = w.data(&mut c, PING);
    let first = boundary.wrapping_sub(len(&c) + SELECT.len() as u32);
    assert_eq!(sent[0].segment.seq.0, first);
    take_leg(&mut c, &sent[0]);
    let session = one(behind_header(&c, &sent[1..]));
    assert_eq!(session.data(), SELECT);
    assert_eq!(session.segment.seq.0, boundary.wrapping_sub(SELECT.len() as u32));
    let mut pod = c.clone();
    (pod.seq, pod.server) = (boundary, c.server.wrapping_sub(PLUS_OK.len() as u32));
    let sent = w.inject(&w.pod_wire(&pod, PSH_ACK, PLUS_OK).build());
    let request = sent.iter().find(|s| s.data() == PING).expect("the request");
    assert_eq!(request.segment.seq.0, boundary);
    w.responds(&mut c, b"+PONG\r\n");
}

#[test]
fn an_old_leg_that_lacks_it_is_closed_where_it_is() {
    let mut w = world(2, |_| ());
    let (mut old, c, _) = drained(&mut w);
    w.confirms(&c);
    let fin = w.run_ms(5).into_iter().find(|s| s.is(FIN_ACK)).expect("a FIN");
    assert_eq!((fin.to, fin.segment.seq.0), (Dest::Pod(old.pod), old.seq));
    old.seq = without(&old).seq;
    let fin = one(w.inject(&w.pod_wire(&old, Flags::ACK, b"").build()));
    assert_eq!((fin.segment.seq.0, fin.segment.flags), (old.seq, FIN_ACK));
}

#[test]
fn a_leg_with_a_header_stays_its_clients_when_the_policy_changes() {
    for (address, parked) in [(ClientAddress::ProxyV2, 0), (ClientAddress::Hidden, 1)] {
        let mut w = world(2, |p| {
            p.client_address = address;
            p.migration.method = MoveMethod::Translation;
        });
        let mut c = match address {
            ClientAddress::Hidden => w.idle(7),
            _ => idle(&mut w, 7),
        };
        w.change(|s| {
            s.policies[0].client_address = ClientAddress::Hidden;
            s.policies[0].migration.legs = Legs::Shared;
        });
        let mut p = crate::translation::moved(&mut w, &mut c, GET);
        pod_says(&mut w, (&mut c, &mut p), PSH_ACK, OK);
        let _ = w.run_ms(4);
        assert_eq!(w.count(Counter::LegsParked), parked);
    }
}
