//! All copies of one adoption (tuple, seq and ack) have one fate, whatever the listener does in
//! between: the network may double a message or deliver it late, and the dataplane repeats it.
//! Otherwise a request could be executed twice.

use crate::common::{
    Lab, Pins,
    answer::{
        ACCEPT_QUEUE_FULL, ACKED, ALREADY_ADOPTED, KERNEL_REFUSED, KEY, NO_LISTENER, PORT, READY,
        SEQ, SYNCOOKIES_OFF, TUPLE_IN_USE, adopter, answer_to, ask, data,
    },
    ends,
    segment::{Message, PSH_ACK, RST},
};
use baton_adopter::{Adopter, Outcome};

/// The pod's process is killed while it has the request, and its reset is lost: the pod must not
/// say that it never had it.
#[test]
fn an_adoption_whose_socket_and_listener_are_gone_is_already_adopted() {
    for v6 in [false, true] {
        let lab = Lab::new();
        let (adopter, _attachment) = adopter(&lab);
        let (pod, ours) = ends(v6, 8080, PORT);
        let listener = lab.listen(pod);
        lab.send(&Message::adopt().segment(ours, pod, SEQ, ACKED, &KEY));
        lab.send(&data(ours, pod, SEQ, ACKED, PSH_ACK, b"once"));
        let (connection, _) = listener.accept().expect("accept");
        assert_eq!(lab.receive(ours).expect("an ACK").segment.ack, SEQ + 4);
        drop(listener);
        // Bytes that the application did not read: its end is a reset, and nothing is left.
        drop(connection);
        assert_eq!(lab.receive(ours).expect("a reset").segment.flags & RST, RST);
        assert_eq!(lab.sockets(8080), 0);

        for _ in 0..2 {
            assert_eq!(ask(&lab, Message::adopt(), ours, pod), (ALREADY_ADOPTED, 0));
        }
        // Somebody listens again: the same answer.
        let _listener = lab.listen(pod);
        assert_eq!(ask(&lab, Message::adopt(), ours, pod), (ALREADY_ADOPTED, 0));
        assert_eq!(lab.sockets(8080), 0);
        assert_eq!(lab.count(&adopter, Outcome::AlreadyAdopted), 3);
        assert_eq!(lab.count(&adopter, Outcome::NoListener), 0);
    }
}

#[test]
fn a_refusal_of_a_full_accept_queue_is_final() {
    let lab = Lab::new();
    // A backlog of 1 holds two connections (the kernel's test is "more than").
    lab.sysctl("net.core.somaxconn=1");
    let (adopter, _attachment) = adopter(&lab);
    for v6 in [false, true] {
        let (pod, ours) = ends(v6, 8080, PORT);
        let listener = lab.listen(pod);
        for port in [PORT + 1, PORT + 2] {
            let (_, other) = ends(v6, 8080, port);
            lab.send(&Message::adopt().segment(other, pod, SEQ, ACKED, &KEY));
        }
        let refused = (ACCEPT_QUEUE_FULL, 0);
        assert_eq!(ask(&lab, Message::adopt(), ours, pod), refused);
        // The queue empties; then a second copy arrives.
        let _connections = [listener.accept(), listener.accept()];
        assert_eq!(ask(&lab, Message::probe(), ours, pod).0, READY);
        assert_eq!(ask(&lab, Message::adopt(), ours, pod), refused);
        // Also if somebody has stopped listening by then.
        drop(listener);
        assert_eq!(ask(&lab, Message::adopt(), ours, pod), refused);
        // A repetition is the same adoption although its clock went on.
        let later = Message {
            server_timestamp: Message::adopt().server_timestamp + 45,
            ..Message::adopt()
        };
        assert_eq!(ask(&lab, later, ours, pod), refused);
    }
    assert_eq!(lab.count(&adopter, Outcome::AcceptQueueFull), 8);
    assert_eq!(lab.count(&adopter, Outcome::Adopted), 4);
}

#[test]
fn a_refusal_for_want_of_a_listener_is_final() {
    let lab = Lab::new();
    let (adopter, _attachment) = adopter(&lab);
    for v6 in [false, true] {
        let (pod, ours) = ends(v6, 8080, PORT);
        assert_eq!(ask(&lab, Message::adopt(), ours, pod), (NO_LISTENER, 0));
        let _listener = lab.listen(pod);
        assert_eq!(ask(&lab, Message::adopt(), ours, pod), (NO_LISTENER, 0));
        assert_eq!(lab.sockets(8080), 0);
    }
    assert_eq!(lab.count(&adopter, Outcome::NoListener), 4);
    assert_eq!(lab.count(&adopter, Outcome::Adopted), 0);
}

#[test]
fn a_refusal_of_the_kernel_or_its_settings_is_final() {
    let lab = Lab::new();
    let (pod, ours) = ends(false, 8080, PORT);
    let (_, other) = ends(false, 8080, PORT + 1);
    let _listener = lab.listen(pod);
    let (adopter, _attachment) = adopter(&lab);
    // bpf_sk_assign_tcp_reqsk refuses this MSS, after the adoption was remembered as taken.
    let small = Message { mss: 535, ..Message::adopt() };
    assert_eq!(ask(&lab, small, ours, pod), (KERNEL_REFUSED, 0));
    let repeated = ask(&lab, Message::adopt(), ours, pod);
    assert_eq!(repeated, (KERNEL_REFUSED, 0));

    lab.sysctl("net.ipv4.tcp_syncookies=0");
    let refused = ask(&lab, Message::adopt(), other, pod);
    assert_eq!(refused, (SYNCOOKIES_OFF, 0));
    lab.sysctl("net.ipv4.tcp_syncookies=1");
    assert_eq!(ask(&lab, Message::adopt(), other, pod), refused);
    assert_eq!(lab.count(&adopter, Outcome::Adopted), 0);
    assert_eq!(lab.sockets(8080), 0);
}

/// The dataplane resets the socket in the way and goes on over another port: a late copy that then
/// found the listener would be taken with nobody to know it, and the copy of the request behind it
/// be executed beside the other.
#[test]
fn a_refusal_of_a_tuple_in_use_is_final() {
    let lab = Lab::new();
    let (adopter, _attachment) = adopter(&lab);
    for v6 in [false, true] {
        let (pod, ours) = ends(v6, 8080, PORT);
        let listener = lab.listen(pod);
        lab.send(&Message::adopt().segment(ours, pod, SEQ - 500, ACKED, &KEY));
        let (stale, _) = listener.accept().expect("accept");
        let refused = (TUPLE_IN_USE, SEQ - 500);
        assert_eq!(ask(&lab, Message::adopt(), ours, pod), refused);
        assert_eq!(ask(&lab, Message::adopt(), ours, pod), refused);
        lab.send(&data(ours, pod, SEQ - 500, ACKED, RST, b""));
        crate::common::wait_for("the reset ends the socket", || lab.sockets(8080) == 0);
        drop(stale);
        // Nothing is in the way any more, so nothing is said of it.
        assert_eq!(ask(&lab, Message::adopt(), ours, pod), (TUPLE_IN_USE, 0));
        assert_eq!(lab.sockets(8080), 0);
        // What was in the way had a fate of its own, which the refusal did not change.
        let first = Message::adopt().segment(ours, pod, SEQ - 500, ACKED, &KEY);
        lab.send(&first);
        assert_eq!(answer_to(&lab, &first), (ALREADY_ADOPTED, 0));
    }
    assert_eq!(lab.count(&adopter, Outcome::TupleInUse), 6);
    assert_eq!(lab.count(&adopter, Outcome::Adopted), 2);
}

#[test]
fn an_adoption_with_other_numbers_is_another_one() {
    for v6 in [false, true] {
        let lab = Lab::new();
        let (adopter, _attachment) = adopter(&lab);
        let (pod, ours) = ends(v6, 8080, PORT);
        assert_eq!(ask(&lab, Message::adopt(), ours, pod), (NO_LISTENER, 0));
        let listener = lab.listen(pod);
        let mut taken = Vec::new();
        for (seq, ack) in [(SEQ + 1, ACKED), (SEQ, ACKED + 1)] {
            let adoption = Message::adopt().segment(ours, pod, seq, ack, &KEY);
            lab.send(&adoption);
            taken.push(listener.accept().expect("accept"));
            // The refused one stays so, also now that a socket is on its tuple; and the taken one
            // stays taken.
            assert_eq!(ask(&lab, Message::adopt(), ours, pod), (NO_LISTENER, 0));
            let before = lab.count(&adopter, Outcome::Repeated);
            lab.send(&adoption);
            crate::common::wait_for("the repetition is counted", || {
                lab.count(&adopter, Outcome::Repeated) == before + 1
            });
            lab.send(&data(ours, pod, seq, ack, RST, b""));
            crate::common::wait_for("the reset ends the socket", || lab.sockets(8080) == 0);
        }
        assert_eq!(lab.count(&adopter, Outcome::Adopted), 2);
    }
}

#[test]
fn refused_probes_are_not_remembered() {
    let lab = Lab::new();
    let (adopter, _attachment) = adopter(&lab);
    for v6 in [false, true] {
        let (pod, ours) = ends(v6, 8080, PORT);
        let before = lab.sockets(8080);
        assert_eq!(ask(&lab, Message::probe(), ours, pod), (NO_LISTENER, 0));
        let listener = lab.listen(pod);
        assert_eq!(ask(&lab, Message::probe(), ours, pod).0, READY);
        assert_eq!(lab.sockets(8080), before, "a probe creates nothing");
        // An adoption with the very numbers of the probe.
        lab.send(&Message::adopt().segment(ours, pod, SEQ, ACKED, &KEY));
        assert_eq!(listener.accept().expect("accept").1, ours);
    }
    assert_eq!(lab.count(&adopter, Outcome::NoListener), 2);
    assert_eq!(lab.count(&adopter, Outcome::ProbeReady), 2);
    assert_eq!(lab.count(&adopter, Outcome::Adopted), 2);
}

#[test]
fn refusals_are_final_across_a_restart() {
    let (lab, pins) = (Lab::new(), Pins::new());
    let (pod, ours) = ends(false, 8080, PORT);
    let load = || Adopter::load(Some(&pins.0)).expect("load");
    let first = load();
    first.set_key(1, &KEY).expect("set a key");
    let attachment = first.attach(&lab.netns(), crate::common::INTERFACE);
    lab.learn_number(&first);
    assert_eq!(ask(&lab, Message::adopt(), ours, pod), (NO_LISTENER, 0));
    drop((attachment.expect("attach"), first));

    let _listener = lab.listen(pod);
    let second = load();
    let _attachment = second.attach(&lab.netns(), crate::common::INTERFACE).expect("attach");
    assert_eq!(ask(&lab, Message::adopt(), ours, pod), (NO_LISTENER, 0));
}
