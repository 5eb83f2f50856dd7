//! A message whose TCP checksum is wrong does nothing: the stack, which looks at it after the
//! adopter, drops the segment, and an adoption that was remembered for it would later be taken for
//! one that the application had.

use crate::common::{
    Lab, PEER_MAC, POD_MAC,
    answer::{ACKED, KEY, NO_LISTENER, PORT, SEQ, adopter, ask},
    ends,
    segment::{Message, Segment},
};
use baton_adopter::{Adopter, Attachment, Outcome};
use std::{
    net::{SocketAddr, TcpListener},
    time::Duration,
};

/// Offset of the checksum in a TCP header.
const CHECKSUM_AT: usize = 16;

struct Scene {
    lab: Lab,
    adopter: Adopter,
    _attachment: Attachment,
    pod: SocketAddr,
    ours: SocketAddr,
}

impl Scene {
    fn new(v6: bool) -> Self {
        let lab = Lab::new();
        let (pod, ours) = ends(v6, 8080, PORT);
        let (adopter, _attachment) = adopter(&lab);
        Self { lab, adopter, _attachment, pod, ours }
    }

    fn count(&self, outcome: Outcome) -> u64 {
        self.lab.count(&self.adopter, outcome)
    }

    fn adoption(&self) -> Segment {
        Message::adopt().segment(self.ours, self.pod, SEQ, ACKED, &KEY)
    }

    /// The frame of a message with one bit of its TCP header the other way round, bytes counted
    /// from there.
    fn flipped(segment: &Segment, at: usize, bit: u8) -> Vec<u8> {
        let mut frame = segment.frame(PEER_MAC, POD_MAC);
        frame[14 + segment.l3_bytes() + at] ^= 1 << bit;
        frame
    }

    /// Sends a frame and sees that it is counted as a wrong checksum and as nothing else, and that
    /// nothing came of it.
    fn refuse(&self, frame: &[u8]) {
        let all = || -> u64 {
            let counters = self.adopter.counters_of(&self.lab.netns());
            counters.expect("counters").iter().map(|(_, n)| n).sum()
        };
        let (before, wrong) = (all(), self.count(Outcome::BadChecksum));
        self.lab.peer.send(frame, None);
        crate::common::wait_for("the message is counted", || all() == before + 1);
        assert_eq!(self.count(Outcome::BadChecksum), wrong + 1);
        assert_eq!(self.lab.sockets(8080), 0);
        // Counting happens after an answer would have been sent, so whatever was sent is here
        // already.
        let echo = self.lab.receive_within(self.ours, Duration::ZERO);
        assert!(echo.is_none(), "a wrong checksum drew {echo:?}");
    }

    fn listen(&self) -> TcpListener {
        self.lab.listen(self.pod)
    }
}

#[test]
fn an_adoption_with_a_wrong_checksum_is_not_remembered() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        let listener = scene.listen();
        let adoption = scene.adoption();
        for bit in 0..8 {
            for at in [CHECKSUM_AT, CHECKSUM_AT + 1] {
                scene.refuse(&Scene::flipped(&adoption, at, bit));
            }
        }
        // The dataplane repeats it, and now it arrives whole.
        scene.lab.send(&adoption);
        assert_eq!(listener.accept().expect("accept").1, scene.ours);
        assert_eq!(scene.count(Outcome::Adopted), 1);
    }
}

#[test]
fn a_wrong_checksum_is_told_from_a_forged_tag() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        let _listener = scene.listen();
        // Ports, both numbers, window, MSS, scales, epoch, server timestamp, tag, TSval, TSecr.
        for at in [0, 3, 4, 11, 14, 24, 26, 27, 31, 32, 39, 44, 51] {
            scene.refuse(&Scene::flipped(&scene.adoption(), at, 4));
        }
        // An address, and an answer at a pod.
        let mut elsewhere = scene.adoption().frame(PEER_MAC, POD_MAC);
        elsewhere[14 + if v6 { 20 } else { 14 }] ^= 1;
        scene.refuse(&elsewhere);
        let answer = Message { exid: crate::common::segment::ANSWER, ..Message::adopt() };
        let answer = answer.segment(scene.ours, scene.pod, SEQ, ACKED, &KEY);
        scene.refuse(&Scene::flipped(&answer, CHECKSUM_AT, 0));
    }
}

#[test]
fn neither_probe_nor_refusal_is_drawn_by_a_wrong_checksum() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        let probe = Message::probe().segment(scene.ours, scene.pod, SEQ, ACKED, &KEY);
        scene.refuse(&Scene::flipped(&probe, CHECKSUM_AT, 3));
        // Nobody listens: a refusal, if it were one.
        scene.refuse(&Scene::flipped(&scene.adoption(), CHECKSUM_AT, 3));
        let listener = scene.listen();
        scene.lab.send(&scene.adoption());
        assert_eq!(listener.accept().expect("accept").1, scene.ours);
    }
}

/// Both zeroes of one's complement arithmetic are right, as for the stack (RFC 1624 section 3).
#[test]
fn both_zeroes_are_right() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        let at = 14 + scene.adoption().l3_bytes() + CHECKSUM_AT;
        let mut frame = (0..u32::MAX)
            .map(|tsval| {
                let message = Message { tsval, ..Message::adopt() };
                message.segment(scene.ours, scene.pod, SEQ, ACKED, &KEY).frame(PEER_MAC, POD_MAC)
            })
            .find(|frame| frame[at..at + 2] == [0, 0])
            .expect("one in 65,536 has this sum");
        for zero in [[0, 0], [0xff, 0xff]] {
            frame[at..at + 2].copy_from_slice(&zero);
            scene.lab.peer.send(&frame, None);
            let answer = scene.lab.receive(scene.ours).expect("an answer").segment;
            let (answer, _) = Message::parse(&answer).expect("a message");
            assert_eq!(answer.mss, NO_LISTENER);
        }
        assert_eq!(scene.count(Outcome::BadChecksum), 0);
    }
}

/// From a neighbour on the same machine: the field holds only the pseudo-header's sum, and the
/// stack trusts it.
#[test]
fn an_adoption_with_a_partial_checksum_is_taken() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        let listener = scene.listen();
        scene.lab.send_partial(&scene.adoption());
        assert_eq!(listener.accept().expect("accept").1, scene.ours);
        assert_eq!(scene.count(Outcome::Adopted), 1);
    }
}

/// GRO verifies the checksum in front of the adopter, and leaves a wrong one as it is.
#[test]
fn behind_gro_right_ones_are_taken_and_wrong_ones_are_not() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        crate::common::run(&format!(
            "ip netns exec {} ethtool -K {} gro on",
            scene.lab.netns_name(),
            crate::common::INTERFACE
        ));
        let listener = scene.listen();
        scene.refuse(&Scene::flipped(&scene.adoption(), CHECKSUM_AT, 0));
        scene.lab.send(&scene.adoption());
        assert_eq!(listener.accept().expect("accept").1, scene.ours);
    }
}

/// What a device has verified is not summed again, by the stack neither: some leave the field
/// unfinished.
#[test]
fn an_adoption_that_the_device_has_verified_is_taken() {
    for v6 in [false, true] {
        let lab = Lab::new();
        let (pod, ours) = ends(v6, 8080, PORT);
        let listener = lab.listen(pod);
        let (adopter, _attachment) = adopter(&lab);
        // In front of the adopter, in place of such a device.
        let _device = crate::verified::Device::attach(&lab.pod, crate::common::INTERFACE);
        let adoption = Message::adopt().segment(ours, pod, SEQ, ACKED, &KEY);
        lab.peer.send(&Scene::flipped(&adoption, CHECKSUM_AT, 0), None);
        assert_eq!(listener.accept().expect("accept").1, ours);
        let counters = adopter.counters().expect("counters");
        assert_eq!(counters.of(Outcome::Adopted), 1);
        drop(listener);
        let (_, other) = ends(v6, 8080, PORT + 1);
        assert_eq!(ask(&lab, Message::adopt(), other, pod), (NO_LISTENER, 0));
    }
}
