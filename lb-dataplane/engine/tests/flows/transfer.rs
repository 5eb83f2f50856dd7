//! Connections in the middle of a message whose pod drains: handed to another pod's application
//! where both cooperate, and everything that may come of the question.

use crate::{
    common::{
        Conn, Dest, End, Sent, World, answer, answer_from, answer_with, conn::*, key, ours, pod,
        policy, router, settings, wire::tcp,
    },
    drain::{drain, flows_of_one, waiting},
};
use baton_api::{MigrationMode, Policy, Protocol};
use baton_engine::{Counter, Lost, Migrate, Route, Settings, Via};
use baton_packet::{
    AdoptionKey, Destination, EndMark, Flags, ListenerReport, MessageKind, Reason, Which,
    parse_client_block, put_end_mark,
};

const ACK: Flags = Flags::ACK;

/// The begin of a response that has 1,000 bytes.
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n";
/// Longer than a flow of a draining pod is given to come to a boundary.
const SOON_MS: u64 = 220;

/// A world whose pods' applications cooperate, each in a namespace with a number of its own.
fn world_with(settings: Settings, change: impl FnOnce(&mut Policy)) -> World {
    let mut p = policy(2);
    p.migration.mode = MigrationMode::DrainOnly;
    change(&mut p);
    let few = settings.limits.flows <= 64;
    let mut w = World::unprobed(settings, p);
    (w.strict, w.careful) = (few, few);
    w.told = vec![ListenerReport { transfers: true, ..ListenerReport::default() }; 32];
    w.namespaces = (1..=32).map(|n| n << 32 | (100 + n)).collect();
    w.poll();
    w
}

fn world() -> World {
    world_with(settings(), |_| {})
}

fn transfers(sent: &[Sent]) -> Vec<Sent> {
    let is = |s: &&Sent| s.message().is_some_and(|m| m.kind == MessageKind::Transfer);
    sent.iter().filter(is).cloned().collect()
}

fn lost(w: &World) -> u64 {
    Lost::ALL.iter().map(|l| w.engine.lost(*l)).sum()
}

/// A flow whose response has begun when its pod drains, and the question.
fn asked(w: &mut World) -> (Conn, Sent) {
    let mut c = w.idle(1);
    w.stays(&mut c, GET);
    w.responds(&mut c, HEAD);
    drain(w, c.pod);
    let sent = w.run_ms(SOON_MS);
    let question = transfers(&sent).remove(0);
    assert_eq!(question.to, Dest::Pod(c.pod));
    (c, question)
}

fn destination(question: &Sent) -> Destination {
    let message = question.message().expect("a message");
    let stamps = question.stamps().expect("timestamps");
    let block = parse_client_block(&question.frame, &question.segment);
    let peer = block.map(|block| block.verify(&key()).expect("the key"));
    let peer = peer.map(|peer| (peer.client, peer.port).into());
    let window = question.segment.window;
    Destination::from_message(&message, window, stamps, peer).expect("a transfer")
}

/// The connection in the pod that the question names.
fn heir(w: &World, c: &Conn, question: &Sent) -> Conn {
    let to = destination(question);
    let mut heir = c.clone();
    heir.pod =
        w.namespaces.iter().position(|n| Which::Namespace(*n) == to.which).expect("a pod's number");
    heir.leg.set_port(to.peer_port);
    heir.leg.set_ip(to.peer.unwrap_or(c.leg.ip()));
    heir
}

fn says(w: &mut World, c: &Conn, question: &Sent, reason: Reason) -> Vec<Sent> {
    let port = u32::from(destination(question).peer_port);
    let answer = answer_from(w.namespaces[c.pod], question, reason, port);
    w.inject(&answer)
}

/// The new pod's first segment: it goes to the client, and the pod hears what that has
/// acknowledged.
fn speaks(w: &mut World, c: &mut Conn, acked: u32, data: &[u8]) {
    let mut sent = w.pod_sends(c, PSH_ACK, data);
    let to_client = sent.pop().expect("a segment");
    assert_eq!((to_client.to, to_client.data()), (Dest::Client, data));
    is_told(c, acked, &one(sent));
}

fn is_told(c: &Conn, acked: u32, told: &Sent) {
    assert!(told.is(Flags::ACK) && told.data().is_empty(), "{told:?}");
    assert_eq!((told.to, told.segment.src_port), (Dest::Pod(c.pod), c.leg.port()));
    assert_eq!((told.segment.seq.0, told.segment.ack.0), (c.seq, acked));
}

/// The rest of the response from the new pod, an exchange there, and nobody was told of anything.
fn goes_on(w: &mut World, c: &mut Conn) {
    let rest = [b'x'; 1000];
    w.answers(c, &rest[..600]);
    w.answers(c, &rest[600..]);
    w.exchange(c);
    assert_eq!(lost(w), 0);
    assert_eq!(w.count(Counter::TransfersDone), 1);
}

#[test]
fn the_question_names_the_other_pod_and_a_free_pair() {
    let mut w = world();
    let (c, question) = asked(&mut w);
    assert_eq!((question.segment.seq.0, question.segment.ack.0), (c.seq.wrapping_sub(1), c.server));
    let message = question.message().expect("a message");
    assert_eq!(message.namespace, w.namespaces[c.pod]);
    let other = 1 - c.pod;
    let to = destination(&question);
    let at = pod(false, other);
    let number = Which::Namespace(w.namespaces[other]);
    assert_eq!((to.which, to.port), (number, at.port()));
    let std::net::IpAddr::V4(address) = at.ip() else { panic!("IPv4 pods") };
    assert_eq!(to.address_end, address.to_bits());
    assert_ne!(to.peer_port, 0);
}

#[test]
fn the_other_pods_first_segment_makes_it_the_owner() {
    for new in [false, true] {
        let mut w = world();
        let (mut c, question) = asked(&mut w);
        w.ack(&mut c);
        w.responds(&mut c, &[b'x'; 400]);
        let acked = c.server.wrapping_sub(400);
        let before = c.pod;
        c = heir(&w, &c, &question);
        assert_ne!(c.pod, before);
        if new {
            speaks(&mut w, &mut c, acked, &[b'x'; 100]);
        } else {
            // Its last byte once more, which its kernel begins with.
            c.server = c.server.wrapping_sub(1);
            speaks(&mut w, &mut c, acked, b"x");
            w.responds(&mut c, &[b'x'; 100]);
        }
        w.ack(&mut c);
        w.answers(&mut c, &[b'x'; 500]);
        w.exchange(&mut c);
        let (flows, _) = w.engine.flows(w.now, 0, 8);
        let last = flows[0].last_move.as_ref().expect("it moved");
        assert!(
            last.by == Some(baton_api::MoveBy::Transfer) && last.cause.as_deref() == Some("drain")
        );
        let state = w.engine.state(w.now);
        let drain = state.policies[0].backends[before].drain.as_ref();
        assert_eq!(drain.map(|d| d.moved), Some(1));
        assert!(waiting(&w, before).is_empty());
        assert_eq!((w.count(Counter::TransfersDone), lost(&w)), (1, 0));
    }
}

/// What the old pod had sent before is the flow's still; nothing ends it from there, and later the
/// pair rests.
#[test]
fn what_was_on_its_way_from_the_old_pod_comes_too() {
    let mut w = world();
    let (mut c, question) = asked(&mut w);
    let acked = c.server.wrapping_sub(HEAD.len() as u32);
    let mut old = c.clone();
    c = heir(&w, &c, &question);
    c.server_sent(ACK, &[b'x'; 300]);
    speaks(&mut w, &mut c, acked, &[b'x'; 100]);
    w.responds(&mut old, &[b'x'; 300]);
    for flags in [Flags::RST, RST_ACK, FIN_ACK] {
        let wire = w.pod_wire(&old, flags, b"");
        assert!(w.inject(&wire.build()).is_empty(), "{flags:?}");
    }
    w.ack(&mut c);
    w.answers(&mut c, &[b'x'; 600]);
    w.exchange(&mut c);
    let _ = w.run_ms(60);
    w.strict = false;
    let wire = w.pod_wire(&old, ACK, b"late");
    let sent = w.inject(&wire.build());
    assert!(World::to_client(&sent).is_empty(), "{sent:?}");
    assert_eq!((w.count(Counter::TransfersDone), lost(&w)), (1, 0));
}

#[test]
fn an_answer_makes_it_the_owner_too() {
    let mut w = world();
    let (mut c, question) = asked(&mut w);
    let acked = c.server.wrapping_sub(HEAD.len() as u32);
    let told = one(says(&mut w, &c, &question, Reason::Moved));
    c = heir(&w, &c, &question);
    is_told(&c, acked, &told);
    // What the client sends goes there.
    w.ack(&mut c);
    goes_on(&mut w, &mut c);
}

#[test]
fn until_then_all_goes_on_as_before() {
    let mut w = world();
    let (mut c, question) = asked(&mut w);
    w.ack(&mut c);
    w.answers(&mut c, &[b'x'; 500]);
    let mut there = heir(&w, &c, &question);
    let acked = there.server;
    speaks(&mut w, &mut there, acked, &[b'x'; 500]);
    w.ack(&mut there);
    w.exchange(&mut there);
    assert_eq!(lost(&w), 0);
}

#[test]
fn who_keeps_it_is_asked_again_later_and_of_another_pair() {
    let mut w = world();
    let (mut c, question) = asked(&mut w);
    assert!(says(&mut w, &c, &question, Reason::Kept).is_empty());
    assert_eq!(w.count(Counter::TransfersKept), 1);
    assert!(transfers(&w.run_ms(400)).is_empty());
    let again = transfers(&w.run_ms(400)).remove(0);
    assert_ne!(destination(&again), destination(&question));
    // The numbers are alike. A late answer to the first one is not about this one.
    assert_eq!(again.segment.seq, question.segment.seq);
    assert!(says(&mut w, &c, &question, Reason::Kept).is_empty());
    assert_eq!(w.count(Counter::TransfersKept), 1);
    w.answers(&mut c, &[b'x'; 10]);
    w.answers(&mut c, &[b'x'; 990]);
    assert_eq!(lost(&w), 0);
}

#[test]
fn a_question_is_repeated_alike_and_given_up() {
    let mut w = world();
    let (mut c, question) = asked(&mut w);
    let again = transfers(&w.run_ms(400));
    assert!(again.len() >= 5, "{}", again.len());
    for copy in &again {
        assert_eq!(copy.frame[34..], question.frame[34..]);
    }
    assert!(transfers(&w.run_ms(900)).is_empty());
    assert_eq!(w.count(Counter::TransfersUnanswered), 0);
    let _ = w.run_ms(400);
    assert_eq!(w.count(Counter::TransfersUnanswered), 1);
    // Its answer comes, and the flow leaves as others do.
    w.answers(&mut c, &[b'x'; 1000]);
    w.moves(&mut c, GET);
}

/// Between two requests an adoption does it, which costs the application nothing.
#[test]
fn flows_that_come_to_a_boundary_are_not_asked_for() {
    let mut w = world();
    let mut flows = flows_of_one(&mut w, 3);
    let pod = flows[0].pod;
    w.stays(&mut flows[0], GET);
    drain(&mut w, pod);
    w.responds(&mut flows[0], OK);
    w.ack(&mut flows[0]);
    for c in &mut flows {
        w.moved_exchange(c);
    }
    assert_eq!(w.count(Counter::TransfersAsked), 0);
}

/// While the question is open the flow does not move with its next request: its owner may hand it
/// on at any moment.
#[test]
fn an_open_question_holds_the_flow() {
    let mut w = world();
    let (mut c, question) = asked(&mut w);
    w.answers(&mut c, &[b'x'; 1000]);
    w.stays(&mut c, GET);
    let mut there = heir(&w, &c, &question);
    let acked = there.server;
    speaks(&mut w, &mut there, acked, OK);
    w.ack(&mut there);
    w.exchange(&mut there);
    assert_eq!(w.count(Counter::TransfersDone), 1);
    assert_eq!(w.count(Counter::MigrationsBegun), 0);
}

#[test]
fn pinned_flows_and_those_without_a_protocol_can_go() {
    let (mut w, mut c) = world_with(settings(), |p| p.protocol = Protocol::None).at_rest();
    w.stays(&mut c, b"anything");
    drain(&mut w, c.pod);
    let question = transfers(&w.run_ms(60)).remove(0);
    c = heir(&w, &c, &question);
    let acked = c.server;
    speaks(&mut w, &mut c, acked, b"something");
    w.ack(&mut c);
    w.stays(&mut c, b"more");
    assert_eq!(w.count(Counter::TransfersDone), 1);

    let mut w = world();
    let mut c = w.open(2);
    w.answers(&mut c, b"220 who speaks first\r\n");
    assert_eq!(w.pins(), 1);
    drain(&mut w, c.pod);
    let question = transfers(&w.run_ms(60)).remove(0);
    c = heir(&w, &c, &question);
    let acked = c.server;
    speaks(&mut w, &mut c, acked, b"250 and goes on\r\n");
    w.ack(&mut c);
    assert_eq!(w.count(Counter::TransfersDone), 1);
}

#[test]
fn nobody_is_asked_who_does_not_cooperate_or_lives_elsewhere() {
    type Change = fn(&mut World, usize);
    let all: [(&str, Change); 4] = [
        ("the owner", |w, pod| {
            w.told[pod] = ListenerReport::default();
        }),
        ("the other", |w, pod| {
            w.told[1 - pod] = ListenerReport::default();
        }),
        ("nodes", |w, pod| {
            w.keys[pod] = AdoptionKey::from_bytes(baton_api::node_key(key().bytes(), "one"));
            w.change(|s| s.policies[0].backends[pod].node = Some("one".to_owned()));
        }),
        ("never", |w, _| {
            w.change(|s| s.policies[0].migration.mode = MigrationMode::Never);
        }),
    ];
    for (what, change) in all {
        let (mut w, mut c) = world().at_rest();
        change(&mut w, c.pod);
        // The next probes tell of it.
        let _ = w.run_ms(2_000);
        w.stays(&mut c, GET);
        w.responds(&mut c, HEAD);
        drain(&mut w, c.pod);
        assert!(transfers(&w.run_ms(1_000)).is_empty(), "{what}");
    }
}

/// Two nodes, each with keys of its own, whose host-shims reach each other.
fn on_two_nodes(w: &mut World) {
    for (n, node) in ["one", "two"].into_iter().enumerate() {
        for pod in [n, n + 2] {
            w.keys[pod] = AdoptionKey::from_bytes(baton_api::node_key(key().bytes(), node));
        }
    }
    for told in &mut w.told {
        told.between_nodes = true;
    }
    w.change(|s| {
        for (n, backend) in s.policies[0].backends.iter_mut().enumerate() {
            backend.node = Some(["one", "two"][n % 2].to_owned());
        }
    });
    // The next probes tell of it.
    let _ = w.run_ms(2_000);
}

#[test]
fn a_pod_of_another_node_gets_it_where_both_host_shims_reach_others() {
    let mut w = world();
    on_two_nodes(&mut w);
    let (c, question) = asked(&mut w);
    let to = destination(&question);
    assert_eq!(to.which, Which::Namespace(w.namespaces[1 - c.pod]));
    let mut c = heir(&w, &c, &question);
    let acked = c.server.wrapping_sub(HEAD.len() as u32);
    speaks(&mut w, &mut c, acked, &[b'x'; 100]);
    assert_eq!(w.count(Counter::TransfersDone), 1);
}

#[test]
fn a_pod_of_another_node_is_named_by_its_address_where_that_is_ipv6() {
    let mut w = world();
    on_two_nodes(&mut w);
    let mut c = w.idle_as(Conn::of(1, true));
    w.stays(&mut c, GET);
    w.responds(&mut c, HEAD);
    let leaves = pod(true, c.pod).ip();
    w.change(|s| {
        for backend in &mut s.policies[0].backends {
            backend.draining = backend.endpoint.address() == leaves;
        }
    });
    let to = destination(&transfers(&w.run_ms(SOON_MS))[0]);
    let std::net::IpAddr::V6(address) = pod(true, 1 - c.pod).ip() else { panic!("IPv6 pods") };
    let all = u128::from(address);
    assert_eq!(to.which, Which::Address((all >> 32) as u64));
    assert_eq!(to.address_end, all as u32);
}

/// On a node's network, its own pods and those of others.
#[test]
fn a_pod_that_sees_another_address_of_ours_is_told_of_it() {
    for at_host in [0, 1] {
        let mut w = world();
        // What comes from our only address, to hardware addresses of pods.
        w.strict = false;
        let host = pod(false, 9).ip();
        let route = |prefix, prefix_len, via| Route { prefix, prefix_len, via };
        let at = pod(false, at_host).ip();
        w.engine.set_routes(&[
            route(at, 32, Via::Host(Some(host))),
            route(router(false), 0, Via::Router(router(false))),
        ]);
        w.poll();
        let (c, question) = asked(&mut w);
        let to = destination(&question);
        let there = if c.pod == at_host { ours(false) } else { host };
        assert_eq!(to.peer, Some(there));
        let mut c = heir(&w, &c, &question);
        let acked = c.server.wrapping_sub(HEAD.len() as u32);
        speaks(&mut w, &mut c, acked, &[b'x'; 100]);
        assert_eq!(w.count(Counter::TransfersDone), 1);
    }
}

#[test]
fn one_host_shim_that_reaches_no_other_node_is_enough_to_stay() {
    for alone in [0, 1] {
        let mut w = world();
        on_two_nodes(&mut w);
        for pod in [alone, alone + 2] {
            w.told[pod].between_nodes = false;
        }
        let _ = w.run_ms(2_000);
        let mut c = w.idle(1);
        w.stays(&mut c, GET);
        w.responds(&mut c, HEAD);
        drain(&mut w, c.pod);
        assert!(transfers(&w.run_ms(1_000)).is_empty());
    }
}

/// The pair is the other pod's word only if what comes from it fits the connection.
#[test]
fn what_does_not_fit_the_connection_is_no_heir() {
    let mut w = world();
    let (mut c, question) = asked(&mut w);
    let there = heir(&w, &c, &question);
    let mut far = there.clone();
    far.server = far.server.wrapping_add(1 << 30);
    let (mut before, mut old, mut new) = (there.clone(), there.clone(), there.clone());
    before.server = before.server.wrapping_sub(1 << 30);
    old.seq = old.seq.wrapping_sub(1);
    new.seq = new.seq.wrapping_add(1);
    for (from, flags) in [
        (&far, Flags::ACK),
        (&before, Flags::ACK),
        (&old, FIN_ACK),
        (&new, Flags::ACK),
        (&there, Flags::RST),
        (&there, RST_ACK),
        (&there, Flags(Flags::SYN.0 | Flags::ACK.0)),
    ] {
        let wire = w.pod_wire(from, flags, b"");
        assert!(w.inject(&wire.build()).is_empty(), "{flags:?}");
    }
    assert_eq!(w.count(Counter::TransfersDone), 0);
    w.responds(&mut c, &[b'x'; 1000]);
}

#[test]
fn forged_answers_change_nothing() {
    let mut w = world();
    let (mut c, question) = asked(&mut w);
    let wrong = AdoptionKey::from_bytes([9; 16]);
    for reason in [Reason::Moved, Reason::Kept] {
        let epoch = question.message().expect("a message").epoch;
        let forged = answer_with(&question, reason, 0, epoch, &wrong);
        assert!(w.inject(&forged).is_empty());
        // Signed by another namespace's adopter, with the right key.
        let port = u32::from(destination(&question).peer_port);
        let other = answer(&question, reason, port);
        assert!(w.inject(&other).is_empty());
    }
    assert_eq!(w.count(Counter::TransfersDone), 0);
    w.responds(&mut c, &[b'x'; 1000]);
}

/// A pod of another number knows nothing of the connection.
#[test]
fn a_pod_that_was_replaced_ends_the_question() {
    let mut w = world();
    let (c, question) = asked(&mut w);
    let answer = answer_from(77, &question, Reason::Renew, 5);
    assert!(w.inject(&answer).is_empty());
    assert!(transfers(&w.run_ms(300)).is_empty());
    assert_eq!(w.count(Counter::TransfersKept), 0);
    assert_eq!(w.count(Counter::TransfersUnanswered), 1);
    let _ = c;
}

/// An owner that ends has not handed it on; who says so afterwards is reset.
#[test]
fn an_owner_that_ends_drops_the_question() {
    for how in [End::Fin, End::Rst] {
        let mut w = world();
        let (mut c, question) = asked(&mut w);
        let there = heir(&w, &c, &question);
        let _ = w.ends(&c, how);
        assert_ne!(w.state(&c).as_deref(), Some("Response"), "{how:?}");
        w.strict = false;
        let wire = w.pod_wire(&there, Flags::ACK, b"late");
        let sent = w.inject(&wire.build());
        assert!(World::to_client(&sent).is_empty(), "{sent:?}");
        assert!(sent.iter().all(|s| s.segment.flags.has(Flags::RST)));
        assert_eq!(w.count(Counter::TransfersDone), 0);
        c.server_sent(Flags::FIN, b"");
    }
}

#[test]
fn who_asks_for_a_move_gets_it_in_the_middle_of_a_message() {
    for kept in [false, true] {
        let (mut w, mut c) = world().at_rest();
        w.stays(&mut c, GET);
        w.responds(&mut c, HEAD);
        let wanted = Migrate { client: c.client, frontend: None, to: None };
        let reply = w.engine.migrate(w.now, &wanted, &mut w.out).expect("moved");
        assert!(reply.begun);
        assert_eq!(reply.from, c.pod_name());
        let question = transfers(&w.poll()).remove(0);
        if kept {
            // Then it waits for its next request.
            assert!(says(&mut w, &c, &question, Reason::Kept).is_empty());
            w.answers(&mut c, &[b'x'; 1000]);
            w.moves(&mut c, GET);
            w.responds(&mut c, OK);
        } else {
            let acked = c.server.wrapping_sub(HEAD.len() as u32);
            c = heir(&w, &c, &question);
            speaks(&mut w, &mut c, acked, b"");
            goes_on(&mut w, &mut c);
        }
        let flow = w.flow(c.client, |_| true).expect("a flow");
        assert_eq!(flow.asked_to, None);
    }
}

/// The client has said all and waits for the rest: before the question, or while it is open.
#[test]
fn a_client_that_has_closed_its_direction_gets_the_rest_from_the_other_pod() {
    for before in [true, false] {
        let (mut w, mut c) = world().at_rest();
        w.stays(&mut c, GET);
        w.responds(&mut c, HEAD);
        if before {
            w.client_fin(&mut c);
            let ack = w.pod_wire(&c, Flags::ACK, b"");
            w.forwarded_to_client(&c, &ack);
        }
        drain(&mut w, c.pod);
        let question = transfers(&w.run_ms(SOON_MS)).remove(0);
        assert_eq!(question.segment.seq.0, c.seq.wrapping_sub(1));
        if !before {
            w.client_fin(&mut c);
        }
        let acked = c.server;
        c = heir(&w, &c, &question);
        speaks(&mut w, &mut c, acked, &[b'x'; 400]);
        w.ack(&mut c);
        w.answers(&mut c, &[b'x'; 600]);
        assert_eq!(w.state(&c).as_deref(), Some("ClientFin"));
        w.pod_fin(&mut c);
        w.ack(&mut c);
        let _ = w.run_ms(2_000);
        assert_eq!(w.state(&c), None);
        assert_eq!((w.count(Counter::TransfersDone), lost(&w)), (1, 0));
    }
}

/// Its server has said all: there is nothing to gain.
#[test]
fn a_flow_whose_server_has_closed_its_direction_is_not_asked_for() {
    let (mut w, mut c) = world().at_rest();
    w.stays(&mut c, GET);
    let mut fin = w.pod_wire(&c, FIN_ACK, OK).build();
    let segment = tcp(&fin);
    assert!(put_end_mark(&mut fin, &segment, EndMark::Listening));
    let _ = w.inject(&fin);
    drain(&mut w, c.pod);
    assert!(transfers(&w.run_ms(1_000)).is_empty());
    assert_eq!(w.state(&c).as_deref(), Some("ServerFin"));
}

/// What the pod's counts were of moves with the flow.
#[test]
fn a_request_that_is_outstanding_moves_with_the_flow() {
    let (mut w, mut c) = world().at_rest();
    let head = post_head(20);
    w.stays(&mut c, &head);
    w.stays(&mut c, b"0123456789");
    drain(&mut w, c.pod);
    let question = transfers(&w.run_ms(SOON_MS)).remove(0);
    let before = c.pod;
    c = heir(&w, &c, &question);
    let acked = c.server;
    speaks(&mut w, &mut c, acked, b"");
    w.stays(&mut c, b"0123456789");
    w.served(&mut c);
    w.exchange(&mut c);
    assert_ne!(before, c.pod);
    assert_eq!(lost(&w), 0);
}

/// A table for so many at a time: who finds none stays, and is counted.
#[test]
fn the_table_of_transfers_is_bounded() {
    let mut settings = settings();
    settings.limits.flows = 4_096;
    settings.limits.guarded_flows = 4_096;
    settings.limits.kept_segments = 4_096;
    settings.ports = 40_000..=49_999;
    let mut w = world_with(settings, |_| {});
    // Others have their part.
    let limit = w.table("open_transfers").1 as usize * 3 / 4;
    let mut flows = Vec::new();
    let mut n = 0;
    while flows.len() <= limit {
        n += 1;
        let mut c = w.idle(n);
        if flows.first().is_none_or(|f: &Conn| f.pod == c.pod) {
            w.stays(&mut c, GET);
            w.responds(&mut c, HEAD);
            flows.push(c);
        }
    }
    drain(&mut w, flows[0].pod);
    let _ = w.run_ms(290);
    assert_eq!(w.table("open_transfers").0 as usize, limit);
    assert!(w.count(Counter::TransfersFull) > 0);
    // Places are free again.
    let _ = w.run_ms(4_000);
    for c in &mut flows {
        w.answers(c, &[b'x'; 1000]);
        let _ = c;
    }
    let _ = w.run_ms(1_000);
    assert_eq!(w.table("open_transfers").0, 0);
}
