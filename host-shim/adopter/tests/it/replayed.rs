//! What was recorded for one pod opens nothing in the next one at its address, and a shim that is
//! replaced changes nothing.

use crate::common::{
    INTERFACE, Lab, Pins,
    answer::{ACKED, KEY, PORT, RENEW, SEQ, adopter, answer_to, data},
    ends,
    segment::{Message, PSH_ACK, RST},
};
use baton_adopter::{Adopter, Outcome};

#[test]
fn a_recorded_adoption_opens_nothing_in_a_new_namespace() {
    for v6 in [false, true] {
        let (pod, ours) = ends(v6, 8080, PORT);
        let first = Lab::new();
        let listener = first.listen(pod);
        let (_adopter, _attachment) = adopter(&first);
        let recorded = Message::adopt().segment(ours, pod, SEQ, ACKED, &KEY);
        let forget = Message::forget().segment(ours, pod, u32::MAX, 0, &KEY);
        first.send(&recorded);
        assert_eq!(listener.accept().expect("accept").1, ours, "it was genuine");

        // Another pod at the same address, with the same key and a listener.
        let next = Lab::new();
        let listener = next.listen(pod);
        listener.set_nonblocking(true).expect("nonblocking");
        let (adopter, _attachment) = adopter(&next);
        next.send(&recorded);
        let (reason, age_ms) = answer_to(&next, &recorded);
        assert_eq!(reason, RENEW);
        assert!(age_ms < 60_000, "{age_ms}");
        next.send(&data(ours, pod, SEQ, ACKED, PSH_ACK, b"CONFIG SET"));
        let reset = next.receive(ours).expect("nobody knows it").segment;
        assert_eq!(reset.flags, RST);
        assert!(listener.accept().is_err(), "the application was given it");
        assert_eq!(next.sockets(8080), 0);

        // Nor is a Forget: its answer would look like the end of what is there.
        next.send(&forget);
        crate::common::wait_for("the Forget is counted", || {
            next.count(&adopter, Outcome::Renew) == 2
        });
        assert!(next.receive_within(ours, std::time::Duration::ZERO).is_none());
        assert_eq!(next.count(&adopter, Outcome::Adopted), 0);
        assert_eq!(next.count(&adopter, Outcome::Forgotten), 0);
    }
}

#[test]
fn a_number_outlives_the_shim_and_ends_with_the_attachment() {
    let (lab, pins) = (Lab::new(), Pins::new());
    let load = || Adopter::load(Some(&pins.0)).expect("load");
    let number = |adopter: &Adopter| adopter.namespace_number(lab.pod.cookie()).expect("numbers");
    let first = load();
    assert_eq!(number(&first), None);
    drop(first.attach(&lab.netns(), INTERFACE).expect("attach"));
    let before = number(&first);
    assert!(before.is_some_and(|n| n != 0), "{before:?}");
    drop(first);

    let second = load();
    let attachment = second.attach(&lab.netns(), INTERFACE).expect("attach");
    assert_eq!(number(&second), before, "the upgrade in place kept it");
    second.detach(attachment).expect("detach");
    assert_eq!(number(&second), None);
    let _attachment = second.attach(&lab.netns(), INTERFACE).expect("attach");
    let after = number(&second);
    assert!(after.is_some() && after != before, "{before:?}, {after:?}");
}

#[test]
fn a_namespace_has_its_number_as_long_as_one_of_its_interfaces_has_the_adopter() {
    let lab = Lab::new();
    let netns = lab.netns_name();
    crate::common::run(&format!("ip -n {netns} link add extra type veth peer name other"));
    let (adopter, attachment) = adopter(&lab);
    let number = || adopter.namespace_number(lab.pod.cookie()).expect("numbers");
    let before = number();
    let extra = adopter.attach(&lab.netns(), "extra").expect("attach");
    assert_eq!(number(), before);
    adopter.detach(extra).expect("detach");
    assert_eq!(number(), before);
    adopter.attach(&lab.netns(), "no-such").expect_err("no such interface");
    assert_eq!(number(), before);
    adopter.detach(attachment).expect("detach");
    assert_eq!(number(), None);
}
