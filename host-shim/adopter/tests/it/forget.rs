//! Forgets, by the real kernel: what the adopter says of a pair that is to be forgotten. It creates
//! nothing, and no Forget reaches the pod's own TCP.

use crate::common::{
    Lab,
    answer::{ACKED, FORGOTTEN, KEY, PORT, SEQ, TUPLE_IN_USE, adopter, answer_to, data},
    ends,
    segment::{ACK, FIN_ACK, Message, PSH_ACK, RST, SCALING, Segment},
};
use baton_adopter::Outcome;
use std::net::SocketAddr;

/// As the dataplane numbers them.
fn forget(from: SocketAddr, to: SocketAddr) -> Segment {
    Message::forget().segment(from, to, u32::MAX, 0, &KEY)
}

fn ask(lab: &Lab, from: SocketAddr, to: SocketAddr) -> u16 {
    let segment = forget(from, to);
    lab.send(&segment);
    answer_to(lab, &segment).0
}

#[test]
fn a_free_pair_is_forgotten_whether_anybody_listens() {
    for v6 in [false, true] {
        let lab = Lab::new();
        let (adopter, _attachment) = adopter(&lab);
        let (pod, ours) = ends(v6, 8080, PORT);
        assert_eq!(ask(&lab, ours, pod), FORGOTTEN);
        let listener = lab.listen(pod);
        assert_eq!(ask(&lab, ours, pod), FORGOTTEN);
        assert_eq!(lab.sockets(8080), 0, "nothing was created");
        let counters = adopter.counters().expect("counters");
        assert_eq!(counters.of(Outcome::Forgotten), 2);
        // The pair is as good as new.
        lab.send(&Message::adopt().segment(ours, pod, SEQ, ACKED, &KEY));
        assert_eq!(listener.accept().expect("accept").1, ours);
    }
}

#[test]
fn a_live_connection_is_left_alone_without_a_word() {
    let lab = Lab::new();
    let (adopter, _attachment) = adopter(&lab);
    let (pod, ours) = ends(false, 8080, PORT);
    let listener = lab.listen(pod);
    lab.send(&Message::adopt().segment(ours, pod, SEQ, ACKED, &KEY));
    let (_connection, _) = listener.accept().expect("accept");
    lab.send(&forget(ours, pod));
    // What comes next answers the data: neither an Answer nor a challenge ACK was in front.
    lab.send(&data(ours, pod, SEQ, ACKED, PSH_ACK, b"0123456789"));
    let next = lab.receive(ours).expect("the data is acknowledged").segment;
    assert_eq!((next.flags, next.ack), (ACK, SEQ + 10));
    let counters = adopter.counters().expect("counters");
    assert_eq!(counters.of(Outcome::ForgetInUse), 1);
    assert_eq!(counters.of(Outcome::Forgotten), 0);
}

/// Where it is in front of an adoption that met silence, a tracker may have taken it for a new
/// connection's begin.
#[test]
fn in_front_of_an_adoption_that_was_taken_it_is_told_so_and_the_connection_goes_on() {
    for v6 in [false, true] {
        let lab = Lab::new();
        let (adopter, _attachment) = adopter(&lab);
        let (pod, ours) = ends(v6, 8080, PORT);
        let listener = lab.listen(pod);
        let adopt = Message::adopt().segment(ours, pod, SEQ, ACKED, &KEY);
        lab.send(&adopt);
        let (_connection, _) = listener.accept().expect("accept");
        let mut in_front = Message::forget();
        in_front.flags |= SCALING;
        let in_front = in_front.segment(ours, pod, SEQ + (1 << 31), 0, &KEY);
        lab.send(&in_front);
        let said = answer_to(&lab, &in_front);
        assert_eq!(said, (TUPLE_IN_USE, 0));
        lab.send(&data(ours, pod, SEQ, ACKED, PSH_ACK, b"0123456789"));
        let next = lab.receive(ours).expect("the data is acknowledged").segment;
        assert_eq!((next.flags, next.ack), (ACK, SEQ + 10));
        assert_eq!(lab.count(&adopter, Outcome::ForgetInUse), 0);
    }
}

#[test]
fn a_time_wait_is_told_and_ends_with_the_right_reset() {
    for v6 in [false, true] {
        let lab = Lab::new();
        let (_adopter, _attachment) = adopter(&lab);
        let (pod, ours) = ends(v6, 8080, PORT);
        let listener = lab.listen(pod);
        lab.send(&Message::adopt().segment(ours, pod, SEQ, ACKED, &KEY));
        drop(listener.accept().expect("accept"));
        let fin = lab.receive(ours).expect("the pod closes").segment;
        assert_eq!(fin.flags, FIN_ACK);
        lab.send(&data(ours, pod, SEQ, ACKED + 1, FIN_ACK, b""));
        let last = lab.receive(ours).expect("the pod acknowledges").segment;
        assert_eq!((last.flags, last.ack), (ACK, SEQ + 1));
        assert_eq!(ask(&lab, ours, pod), TUPLE_IN_USE);
        // As the dataplane ends it: without timestamps, with the number that it expects.
        lab.send(&Segment { options: Vec::new(), ..data(ours, pod, SEQ + 1, 0, RST, b"") });
        assert_eq!(ask(&lab, ours, pod), FORGOTTEN);
    }
}

#[test]
fn a_forged_one_reaches_nobody() {
    let lab = Lab::new();
    let (adopter, _attachment) = adopter(&lab);
    let (pod, ours) = ends(false, 8080, PORT);
    let _listener = lab.listen(pod);
    lab.send(&Message::forget().segment(ours, pod, 7, 0, &[0x11; 16]));
    lab.send(&Message::forget().epoch(9).segment(ours, pod, 7, 0, &KEY));
    // As an ACK it is no Forget.
    let flags = ACK;
    lab.send(&Segment { flags, ..forget(ours, pod) });
    assert_eq!(ask(&lab, ours, pod), FORGOTTEN, "the first that is answered");
    let counters = adopter.counters().expect("counters");
    assert_eq!(counters.of(Outcome::BadTag), 1);
    assert_eq!(counters.of(Outcome::UnknownEpoch), 1);
    assert_eq!(counters.of(Outcome::BadLayout), 1);
    assert_eq!(lab.sockets(8080), 0, "no SYN of these was taken");
}
