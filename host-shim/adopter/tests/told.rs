//! What an answer of Ready tells of the listener, by the real kernel: who holds it, and whether it is still the same.

mod common;

use baton_packet::Told;
use common::{
    Lab,
    answer::{PORT, READY, adopter, ask},
    ends,
    segment::Message,
};
use socket2::{Domain, Socket, Type};
use std::net::SocketAddr;

fn told(lab: &Lab, v6: bool) -> Told {
    let (pod, ours) = ends(v6, 8080, PORT);
    let (reason, field) = ask(lab, Message::probe(), ours, pod);
    assert_eq!(reason, READY);
    Told::from_field(field)
}

fn holders(told: Told) -> u8 {
    told.listener.expect("a listener").holders.get()
}

#[test]
fn descriptors_of_the_listener_are_counted() {
    for v6 in [false, true] {
        let lab = Lab::new();
        let (_adopter, _attachment) = adopter(&lab);
        let listener = lab.listen(ends(v6, 8080, PORT).0);
        let alone = told(&lab, v6);
        assert!(alone.marks_exits);
        assert_eq!(holders(alone), 1);
        // As the processes of a server that forked.
        let workers: Vec<_> = (0..2)
            .map(|_| listener.try_clone().expect("another descriptor"))
            .collect();
        let shared = told(&lab, v6);
        assert_eq!(holders(shared), 3);
        assert_eq!(
            shared.listener.map(|l| l.id),
            alone.listener.map(|l| l.id),
            "the same one"
        );
        drop(workers);
        assert_eq!(told(&lab, v6), alone);
    }
}

#[test]
fn more_than_the_field_holds_is_its_maximum() {
    let lab = Lab::new();
    let (_adopter, _attachment) = adopter(&lab);
    let listener = lab.listen(ends(false, 8080, PORT).0);
    let _more: Vec<_> = (0..400)
        .map(|_| listener.try_clone().expect("another descriptor"))
        .collect();
    assert_eq!(holders(told(&lab, false)), u8::MAX);
}

#[test]
fn the_next_process_has_another_listener() {
    let lab = Lab::new();
    let (_adopter, _attachment) = adopter(&lab);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let _listener = lab.listen(ends(false, 8080, PORT).0);
        seen.push(told(&lab, false).listener.expect("a listener").id);
    }
    seen.dedup();
    assert_eq!(seen.len(), 3, "{seen:?}");
}

/// Which one a connection gets is chance, so nothing is told of any.
#[test]
fn of_several_listeners_on_a_port_nothing_is_told() {
    let lab = Lab::new();
    let (_adopter, _attachment) = adopter(&lab);
    let pod = ends(false, 8080, PORT).0;
    let first = reuseport(&lab, pod);
    assert_eq!(holders(told(&lab, false)), 1, "one alone is one");
    let second = reuseport(&lab, pod);
    let both = told(&lab, false);
    assert!(both.marks_exits && both.listener.is_none(), "{both:?}");
    drop((first, second));
}

fn reuseport(lab: &Lab, address: SocketAddr) -> Socket {
    lab.within_pod(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_reuse_port(true).expect("SO_REUSEPORT");
        socket.bind(&address.into()).expect("bind");
        socket.listen(16).expect("listen");
        socket
    })
}
