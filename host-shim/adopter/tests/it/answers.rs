//! Reasons of an Answer, given by the real kernel, with its tag, its sequence numbers and its
//! checksum. What is the same for all copies of one adoption is in `fates`.

use crate::common::{
    INTERFACE, Lab,
    answer::{
        ACCEPT_QUEUE_FULL, ACKED, KERNEL_REFUSED, KEY, NO_LISTENER, PORT, READY, SEQ,
        SYNCOOKIES_OFF, TUPLE_IN_USE, adopter, ask, data,
    },
    ends,
    segment::{ACK, Checksum, FIN_ACK, Message, PSH_ACK, RST, SYN, Segment},
    wait_for,
};
use baton_adopter::Outcome;
use socket2::{Domain, Socket, Type};
use std::net::SocketAddr;

#[test]
fn a_probe_on_a_tuple_in_use_asks_for_the_listener() {
    let lab = Lab::new();
    let (pod, ours) = ends(false, 8080, PORT);
    let listener = lab.listen(pod);
    let (_adopter, _attachment) = adopter(&lab);
    lab.send(&Message::adopt().segment(ours, pod, SEQ, ACKED, &KEY));
    let (_connection, _) = listener.accept().expect("accept");
    assert_eq!(ask(&lab, Message::probe(), ours, pod).0, READY);
}

#[test]
fn accept_queue_full() {
    let lab = Lab::new();
    // A backlog of 1 holds two connections (the kernel's test is "more than").
    lab.sysctl("net.core.somaxconn=1");
    let (adopter, _attachment) = adopter(&lab);
    for v6 in [false, true] {
        let (pod, _) = ends(v6, 8080, PORT);
        let listener = lab.listen(pod);
        for port in [PORT, PORT + 1] {
            let (_, ours) = ends(v6, 8080, port);
            lab.send(&Message::adopt().segment(ours, pod, SEQ, ACKED, &KEY));
        }
        let (_, ours) = ends(v6, 8080, PORT + 2);
        assert_eq!(ask(&lab, Message::adopt(), ours, pod), (ACCEPT_QUEUE_FULL, 0));
        let (reason, _report) = ask(&lab, Message::probe(), ours, pod);
        assert_eq!(reason, ACCEPT_QUEUE_FULL);
        // With room again, the connection is adopted over another port, as the dataplane tries it.
        let _first = listener.accept().expect("accept");
        let (_, ours) = ends(v6, 8080, PORT + 3);
        lab.send(&Message::adopt().segment(ours, pod, SEQ, ACKED, &KEY));
        let _second = listener.accept().expect("accept");
        let (_third, peer) = listener.accept().expect("accept");
        assert_eq!(peer, ours);
    }
    let counters = adopter.counters().expect("counters");
    assert_eq!(counters.of(Outcome::AcceptQueueFull), 4);
    assert_eq!(counters.of(Outcome::Adopted), 6);
}

/// Which of several listeners at all addresses the kernel takes cannot be known: a full one among
/// them refuses, and nothing that was taken is dropped.
#[test]
fn accept_queue_full_of_one_of_several_listeners() {
    for v6 in [false, true] {
        let lab = Lab::new();
        let (adopter, _attachment) = adopter(&lab);
        let (pod, _) = ends(v6, 8080, PORT);
        let all = ["0.0.0.0:8080", "[::]:8080"][usize::from(v6)];
        let all: SocketAddr = all.parse().expect("an address");
        // A backlog of 0 holds one connection.
        let _listeners = [0, 100].map(|backlog| {
            lab.within_pod(|| {
                let domain = Domain::for_address(all);
                let socket = Socket::new(domain, Type::STREAM, None).expect("a socket");
                socket.set_reuse_port(true).expect("SO_REUSEPORT");
                socket.bind(&all.into()).expect("bind");
                socket.listen(backlog).expect("listen");
                socket
            })
        });
        for port in PORT..PORT + 32 {
            let (_, ours) = ends(v6, 8080, port);
            lab.send(&Message::adopt().segment(ours, pod, SEQ, ACKED, &KEY));
        }
        let count = |outcome| lab.count(&adopter, outcome);
        wait_for("all decided", || count(Outcome::Adopted) + count(Outcome::AcceptQueueFull) == 32);
        assert_eq!(count(Outcome::Adopted), lab.sockets(8080) as u64);
    }
}

#[test]
fn kernel_refused() {
    let lab = Lab::new();
    let (pod, ours) = ends(false, 8080, PORT);
    let listener = lab.listen(pod);
    let (_adopter, _attachment) = adopter(&lab);
    // bpf_sk_assign_tcp_reqsk refuses an MSS below 536 over IPv4.
    let small = Message { mss: 535, ..Message::adopt() };
    assert_eq!(ask(&lab, small, ours, pod), (KERNEL_REFUSED, 0));
    assert_eq!(lab.sockets(8080), 0);
    let enough = Message { mss: 536, ..Message::adopt() };
    let (_, ours) = ends(false, 8080, PORT + 1);
    lab.send(&enough.segment(ours, pod, SEQ, ACKED, &KEY));
    assert_eq!(listener.accept().expect("accept").1, ours);
}

#[test]
fn tuple_in_use_by_a_connection() {
    let lab = Lab::new();
    let (adopter, _attachment) = adopter(&lab);
    for v6 in [false, true] {
        let (pod, ours) = ends(v6, 8080, PORT);
        let listener = lab.listen(pod);
        lab.send(&Message::adopt().segment(ours, pod, SEQ - 500, ACKED, &KEY));
        lab.send(&data(ours, pod, SEQ - 500, ACKED, PSH_ACK, b"0123456789"));
        let (_connection, _) = listener.accept().expect("accept");
        let acknowledged = lab.receive(ours).expect("the data is acknowledged").segment;
        assert_eq!(acknowledged.ack, SEQ - 490);
        assert_eq!(ask(&lab, Message::adopt(), ours, pod), (TUPLE_IN_USE, SEQ - 490));
        // The number is good for what it is told for: a reset with it frees the tuple.
        lab.send(&data(ours, pod, SEQ - 490, ACKED, RST, b""));
        lab.send(&Message::adopt().segment(ours, pod, SEQ + 1, ACKED, &KEY));
        let (_connection, peer) = listener.accept().expect("accept");
        assert_eq!(peer, ours);
    }
    assert_eq!(lab.count(&adopter, Outcome::TupleInUse), 2);
}

#[test]
fn tuple_in_use_by_a_socket_in_time_wait() {
    let lab = Lab::new();
    let (pod, ours) = ends(false, 8080, PORT);
    let listener = lab.listen(pod);
    let (_adopter, _attachment) = adopter(&lab);
    lab.send(&Message::adopt().segment(ours, pod, SEQ - 500, ACKED, &KEY));
    drop(listener.accept().expect("accept"));
    let fin = lab.receive(ours).expect("the pod closes").segment;
    assert_eq!(fin.flags, FIN_ACK);
    lab.send(&data(ours, pod, SEQ - 500, ACKED + 1, FIN_ACK, b""));
    let last = lab.receive(ours).expect("the pod acknowledges").segment;
    assert_eq!((last.flags, last.ack), (ACK, SEQ - 499));
    assert_eq!(ask(&lab, Message::adopt(), ours, pod), (TUPLE_IN_USE, SEQ - 499));
}

#[test]
fn tuple_in_use_by_a_handshake() {
    let lab = Lab::new();
    let (pod, ours) = ends(false, 8080, PORT);
    let _listener = lab.listen(pod);
    let (_adopter, _attachment) = adopter(&lab);
    lab.send(&Segment { options: Vec::new(), ..data(ours, pod, 77, 0, SYN, b"") });
    assert_eq!(lab.receive(ours).expect("SYN-ACK").segment.ack, 78);
    assert_eq!(ask(&lab, Message::adopt(), ours, pod), (TUPLE_IN_USE, 78));
}

#[test]
fn syncookies_off() {
    let lab = Lab::new();
    lab.sysctl("net.ipv4.tcp_syncookies=0");
    let (adopter, _attachment) = adopter(&lab);
    for v6 in [false, true] {
        let (pod, ours) = ends(v6, 8080, PORT);
        let _listener = lab.listen(pod);
        assert_eq!(ask(&lab, Message::adopt(), ours, pod), (SYNCOOKIES_OFF, 0));
        let (reason, _report) = ask(&lab, Message::probe(), ours, pod);
        assert_eq!(reason, SYNCOOKIES_OFF);
    }
    assert_eq!(lab.count(&adopter, Outcome::SyncookiesOff), 4);
    assert_eq!(lab.sockets(8080), 0);
}

#[test]
fn an_answer_to_a_partial_checksum_leaves_it_to_the_device() {
    let lab = Lab::new();
    let (_adopter, _attachment) = adopter(&lab);
    for v6 in [false, true] {
        let (pod, ours) = ends(v6, 8080, PORT);
        lab.send_partial(&Message::adopt().segment(ours, pod, SEQ, ACKED, &KEY));
        let answer = lab.receive(ours).expect("an answer");
        assert_eq!(answer.checksum, Checksum::Partial);
        assert_eq!(Message::parse(&answer.segment).expect("a message").0.mss, NO_LISTENER);
    }
}

#[test]
fn an_answer_to_a_partial_checksum_is_completed_by_a_device_that_cannot() {
    let lab = Lab::new();
    crate::common::run(&format!(
        "ip netns exec {} ethtool -K {INTERFACE} tx off",
        lab.netns_name()
    ));
    let (_adopter, _attachment) = adopter(&lab);
    for v6 in [false, true] {
        let (pod, ours) = ends(v6, 8080, PORT);
        lab.send_partial(&Message::adopt().segment(ours, pod, SEQ, ACKED, &KEY));
        let answer = lab.receive(ours).expect("an answer");
        assert_eq!(answer.checksum, Checksum::Full);
    }
}

#[test]
fn an_mptcp_listener_is_refused() {
    // What Go programs from version 1.24 on make by default, where the kernel has MPTCP: the kernel
    // refuses to assign a request to it, and the Answer says so.
    let lab = Lab::new();
    let (pod, ours) = ends(false, 8080, PORT);
    let Some(_listener) = lab.listen_mptcp(pod) else {
        return;
    };
    let (_adopter, _attachment) = adopter(&lab);
    assert_eq!(ask(&lab, Message::adopt(), ours, pod), (KERNEL_REFUSED, 0));
    // So that no flow is ever sent there in the first place.
    let (reason, _report) = ask(&lab, Message::probe(), ours, pod);
    assert_eq!(reason, KERNEL_REFUSED);
}
