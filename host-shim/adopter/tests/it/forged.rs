//! What is not a message of a key holder creates nothing, draws nothing and is counted.

use crate::common::{
    INTERFACE, Lab, ends,
    segment::{ANSWER, Message, PSH_ACK, Segment},
};
use baton_adopter::{Adopter, Attachment, Outcome};
use std::{net::SocketAddr, time::Duration};

const KEY: [u8; 16] = [7; 16];
const SEQ: u32 = 1_000;
const ACKED: u32 = 2_000;
const PORT: u16 = 40_000;

struct Forgery {
    lab: Lab,
    adopter: Adopter,
    _attachment: Attachment,
    _listener: std::net::TcpListener,
    pod: SocketAddr,
    ours: SocketAddr,
}

impl Forgery {
    fn new(v6: bool) -> Self {
        let lab = Lab::new();
        let (pod, ours) = ends(v6, 8080, PORT);
        let listener = lab.listen(pod);
        let adopter = Adopter::load(None).expect("the kernel takes the adopter");
        adopter.set_key(1, &KEY).expect("set a key");
        let attachment = adopter.attach(&lab.netns(), INTERFACE).expect("attach");
        lab.learn_number(&adopter);
        Self { lab, adopter, _attachment: attachment, _listener: listener, pod, ours }
    }

    fn good(&self) -> Segment {
        Message::adopt().segment(self.ours, self.pod, SEQ, ACKED, &KEY)
    }

    fn count(&self, outcome: Outcome) -> u64 {
        self.lab.count(&self.adopter, outcome)
    }

    /// Sends it and sees that it is counted once as `outcome`, that no socket came to be and that
    /// nothing came back.
    fn refuse(&self, what: &str, segment: &Segment, outcome: Outcome) {
        let before = self.count(outcome);
        self.lab.send(segment);
        crate::common::wait_for(what, || self.count(outcome) == before + 1);
        assert_eq!(self.lab.sockets(8080), 0, "{what} created a socket");
        assert_eq!(self.count(Outcome::Adopted), 0, "{what}");
        // Counting happens after an answer would have been sent, so whatever was sent is here
        // already.
        let echo = self.lab.receive_within(segment.from, Duration::ZERO);
        assert!(echo.is_none(), "{what} drew {echo:?}");
    }
}

#[test]
fn tags_that_do_not_match() {
    for v6 in [false, true] {
        let f = Forgery::new(v6);
        let good = f.good();
        let (message, tag) = Message::parse(&good).expect("a message");
        let with_tag = |tag| message.segment_with_tag(f.ours, f.pod, SEQ, ACKED, tag);
        f.refuse("no tag", &with_tag(0), Outcome::BadTag);
        for bit in [0, 31, 63] {
            f.refuse("one wrong bit", &with_tag(tag ^ 1 << bit), Outcome::BadTag);
        }
        f.refuse("bytes swapped", &with_tag(tag.swap_bytes()), Outcome::BadTag);
        let other = message.segment(f.ours, f.pod, SEQ, ACKED, &[8; 16]);
        f.refuse("another key", &other, Outcome::BadTag);

        // The same bytes on another tuple, at another place in the stream, or with another field.
        let port = |mut s: Segment| {
            s.from.set_port(PORT + 1);
            s
        };
        f.refuse("replayed on another port", &port(good.clone()), Outcome::BadTag);
        let mut elsewhere = good.clone();
        elsewhere.from.set_ip(if v6 {
            "fd07::3".parse().expect("v6")
        } else {
            "10.7.0.3".parse().expect("v4")
        });
        f.refuse("replayed from another address", &elsewhere, Outcome::BadTag);
        let seq = Segment { seq: SEQ + 1, ..good.clone() };
        f.refuse("another seq", &seq, Outcome::BadTag);
        let ack = Segment { ack: ACKED + 1, ..good.clone() };
        f.refuse("another ack", &ack, Outcome::BadTag);
        let window = Segment { window: 501, ..good.clone() };
        f.refuse("another window", &window, Outcome::BadTag);
        // mss, scales, each flag but the epoch, server timestamp, number of the namespace, TSval,
        // TSecr.
        for (at, bit) in [
            (4, 1),
            (5, 1),
            (6, 1),
            (6, 16),
            (7, 1),
            (7, 8),
            (8, 1),
            (11, 1),
            (20, 1),
            (27, 128),
            (32, 1),
            (39, 1),
        ] {
            let mut changed = good.clone();
            changed.options[at] ^= bit;
            f.refuse("another field", &changed, Outcome::BadTag);
        }
        // A probe's tag is no adoption's: the experiment id is under the tag.
        let mut probe = Message::probe().segment(f.ours, f.pod, SEQ, ACKED, &KEY);
        probe.options[3] = 0x70;
        f.refuse("a probe turned into an adoption", &probe, Outcome::BadTag);
    }
}

#[test]
fn epochs_without_a_key() {
    let f = Forgery::new(false);
    let message = Message::adopt();
    for epoch in (0..16).filter(|e| *e != 1) {
        let segment = message.epoch(epoch).segment(f.ours, f.pod, SEQ, ACKED, &KEY);
        f.refuse("an epoch that never was", &segment, Outcome::UnknownEpoch);
        // The key of a slot without one must not be a key of zeroes.
        let zero = message.epoch(epoch).segment(f.ours, f.pod, SEQ, ACKED, &[0; 16]);
        f.refuse("a key of zeroes", &zero, Outcome::UnknownEpoch);
    }
    f.adopter.retire_key(1).expect("retire");
    f.refuse("a retired epoch", &f.good(), Outcome::UnknownEpoch);
}

#[test]
fn two_epochs_are_live_at_once() {
    let lab = Lab::new();
    let (pod, _) = ends(false, 8080, PORT);
    let listener = lab.listen(pod);
    let adopter = Adopter::load(None).expect("the kernel takes the adopter");
    let keys = [(1, [1; 16]), (2, [2; 16])];
    for (epoch, key) in keys {
        adopter.set_key(epoch, &key).expect("set a key");
    }
    assert_eq!(adopter.live_epochs().expect("epochs"), [1, 2]);
    let _attachment = adopter.attach(&lab.netns(), INTERFACE).expect("attach");
    lab.learn_number(&adopter);
    for (n, (epoch, key)) in keys.into_iter().enumerate() {
        let (_, ours) = ends(false, 8080, PORT + n as u16);
        lab.send(&Message::adopt().epoch(epoch).segment(ours, pod, SEQ, ACKED, &key));
        assert_eq!(listener.accept().expect("accept").1, ours);
    }
    // Epoch 17 is epoch 1 on the wire.
    adopter.set_key(17, &[3; 16]).expect("set a key");
    let (_, ours) = ends(false, 8080, PORT + 9);
    lab.send(&Message::adopt().epoch(1).segment(ours, pod, SEQ, ACKED, &[3; 16]));
    assert_eq!(listener.accept().expect("accept").1, ours);
    adopter.retire_key(17).expect("retire");
    assert_eq!(adopter.live_epochs().expect("epochs"), [2]);
}

#[test]
fn layouts_that_are_no_message() {
    let f = Forgery::new(false);
    let good = f.good();
    let mut short = good.clone();
    short.options.truncate(28);
    f.refuse("no timestamps", &short, Outcome::BadLayout);
    let mut other = good.clone();
    other.options[28] = 0;
    f.refuse("no NOP", &other, Outcome::BadLayout);
    let mut other = good.clone();
    other.options[30] = 30;
    f.refuse("another option than timestamps", &other, Outcome::BadLayout);
    for flags in [PSH_ACK, 0x00, 0x02, 0x11, 0x14, 0x30, 0x50] {
        let other = Segment { flags, ..good.clone() };
        f.refuse("other TCP flags", &other, Outcome::BadLayout);
    }
    let payload = Segment { payload: vec![1], ..good.clone() };
    f.refuse("a payload", &payload, Outcome::BadLayout);
    for flags in [0x10, 0x14] {
        let answer = Segment {
            flags,
            ..Message { exid: ANSWER, ..Message::adopt() }.segment(f.ours, f.pod, SEQ, ACKED, &KEY)
        };
        f.refuse("an answer at a pod", &answer, Outcome::StrayAnswer);
    }
}
