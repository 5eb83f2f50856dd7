//! What the answer to a probe tells of the listener, by the real kernel: who holds it, and whether
//! it is still the same.

use crate::common::{
    Lab,
    answer::{
        ACCEPT_QUEUE_FULL, ACKED, KERNEL_REFUSED, KEY, PORT, READY, SEQ, SYNCOOKIES_OFF, adopter,
        ask,
    },
    ends,
    segment::Message,
};
use baton_adopter::Outcome;
use baton_packet::ListenerReport;
use socket2::{Domain, Socket, Type};
use std::net::SocketAddr;

/// `LISTENERS_MAX` of the program.
const LISTENERS_MAX: usize = 128;

fn report(lab: &Lab, v6: bool) -> ListenerReport {
    report_with(lab, v6, READY)
}

fn report_with(lab: &Lab, v6: bool, expected: u16) -> ListenerReport {
    let (pod, ours) = ends(v6, 8080, PORT);
    let (reason, field) = ask(lab, Message::probe(), ours, pod);
    assert_eq!(reason, expected);
    ListenerReport::from_field(field)
}

fn holders(report: ListenerReport) -> u8 {
    report.listener.expect("a listener").holders.get()
}

#[test]
fn descriptors_of_the_listener_are_counted() {
    for v6 in [false, true] {
        let lab = Lab::new();
        let (_adopter, _attachment) = adopter(&lab);
        let listener = lab.listen(ends(v6, 8080, PORT).0);
        let alone = report(&lab, v6);
        assert!(alone.marks_exits);
        assert_eq!(holders(alone), 1);
        // As the processes of a server that forked.
        let workers: Vec<_> =
            (0..2).map(|_| listener.try_clone().expect("another descriptor")).collect();
        let shared = report(&lab, v6);
        assert_eq!(holders(shared), 3);
        assert_eq!(shared.listener.map(|l| l.id), alone.listener.map(|l| l.id), "the same one");
        drop(workers);
        assert_eq!(report(&lab, v6), alone);
    }
}

/// Idle connections are closed while others wait to be accepted, too.
#[test]
fn the_same_is_reported_when_something_is_in_the_way() {
    for v6 in [false, true] {
        let lab = Lab::new();
        // A backlog of 1 holds two connections (the kernel's test is "more than").
        lab.sysctl("net.core.somaxconn=1");
        let (_adopter, _attachment) = adopter(&lab);
        let pod = ends(v6, 8080, PORT).0;
        let listener = lab.listen(pod);
        let worker = listener.try_clone().expect("another descriptor");
        let before = report(&lab, v6);
        assert_eq!(holders(before), 2);
        for port in [PORT + 1, PORT + 2] {
            let (_, other) = ends(v6, 8080, port);
            lab.send(&Message::adopt().segment(other, pod, SEQ, ACKED, &KEY));
        }
        assert_eq!(report_with(&lab, v6, ACCEPT_QUEUE_FULL), before);
        drop(worker);
        assert_eq!(holders(report_with(&lab, v6, ACCEPT_QUEUE_FULL)), 1);
        lab.sysctl("net.ipv4.tcp_syncookies=0");
        assert_eq!(holders(report_with(&lab, v6, SYNCOOKIES_OFF)), 1);
    }
}

/// Nothing can be adopted there, but ends of its connections are known for what they are.
#[test]
fn descriptors_of_an_mptcp_listener_are_counted() {
    let lab = Lab::new();
    let Some(listener) = lab.listen_mptcp(ends(false, 8080, PORT).0) else {
        return;
    };
    let (_adopter, _attachment) = adopter(&lab);
    let alone = report_with(&lab, false, KERNEL_REFUSED);
    assert_eq!(holders(alone), 1);
    let worker = listener.try_clone().expect("another descriptor");
    assert_eq!(holders(report_with(&lab, false, KERNEL_REFUSED)), 2);
    drop(worker);
    assert_eq!(report_with(&lab, false, KERNEL_REFUSED), alone);
}

#[test]
fn more_than_the_field_holds_is_its_maximum() {
    let lab = Lab::new();
    let (_adopter, _attachment) = adopter(&lab);
    let listener = lab.listen(ends(false, 8080, PORT).0);
    let _more: Vec<_> =
        (0..400).map(|_| listener.try_clone().expect("another descriptor")).collect();
    assert_eq!(holders(report(&lab, false)), u8::MAX);
}

#[test]
fn the_next_process_has_another_listener() {
    let lab = Lab::new();
    let (_adopter, _attachment) = adopter(&lab);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let _listener = lab.listen(ends(false, 8080, PORT).0);
        seen.push(report(&lab, false).listener.expect("a listener").id);
    }
    seen.dedup();
    assert_eq!(seen.len(), 3, "{seen:?}");
}

/// Which of them a connection gets is chance, so they are reported together.
#[test]
fn of_several_listeners_on_a_port_the_sum_is_reported() {
    for v6 in [false, true] {
        let lab = Lab::new();
        let (_adopter, _attachment) = adopter(&lab);
        let pod = ends(v6, 8080, PORT).0;
        let mut sockets = vec![reuseport(&lab, pod)];
        let alone = report(&lab, v6).listener.expect("a listener");
        assert!(!alone.several, "one alone is one");
        sockets.extend((0..3).map(|_| reuseport(&lab, pod)));
        let four = report(&lab, v6).listener.expect("listeners");
        assert_eq!((four.holders.get(), four.several), (4, true));
        let shared = sockets[2].try_clone().expect("another descriptor");
        let five = report(&lab, v6).listener.expect("listeners");
        assert_eq!((five.holders.get(), five.id), (5, four.id));
        drop(shared);
        assert_eq!(report(&lab, v6).listener, Some(four));
        // One process goes and another one comes, wherever it is in the group.
        for at in 0..sockets.len() {
            let before = report(&lab, v6).listener.expect("listeners");
            drop(sockets.remove(at));
            let fewer = report(&lab, v6).listener.expect("listeners");
            assert_eq!(fewer.holders.get(), 3);
            sockets.insert(at, reuseport(&lab, pod));
            let after = report(&lab, v6).listener.expect("listeners");
            assert_eq!(after.holders.get(), 4);
            assert!(before.id != fewer.id && before.id != after.id, "{after:?}");
        }
    }
}

#[test]
fn of_more_listeners_than_are_counted_nothing_is_reported() {
    let lab = Lab::new();
    let (adopter, _attachment) = adopter(&lab);
    let pod = ends(false, 8080, PORT).0;
    let mut sockets: Vec<_> = (0..LISTENERS_MAX).map(|_| reuseport(&lab, pod)).collect();
    assert_eq!(usize::from(holders(report(&lab, false))), LISTENERS_MAX);
    sockets.push(reuseport(&lab, pod));
    let too_many = report(&lab, false);
    assert!(too_many.marks_exits && too_many.listener.is_none(), "{too_many:?}");
    let counters = adopter.counters().expect("counters");
    let probes = [Outcome::ProbeReady, Outcome::ProbeTooManyListeners].map(|o| counters.of(o));
    assert_eq!(probes, [1, 1]);
}

fn reuseport(lab: &Lab, address: SocketAddr) -> Socket {
    lab.within_pod(|| {
        let socket =
            Socket::new(Domain::for_address(address), Type::STREAM, None).expect("a socket");
        socket.set_reuse_port(true).expect("SO_REUSEPORT");
        socket.bind(&address.into()).expect("bind");
        socket.listen(16).expect("listen");
        socket
    })
}
