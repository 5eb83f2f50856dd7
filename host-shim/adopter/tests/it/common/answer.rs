//! Asks the adopter and reads its Answers, whose every field is checked against
//! docs/adoption-wire.md.

use super::{
    INTERFACE, Lab,
    segment::{ANSWER, Checksum, Message, NAMESPACE, PROBE, RST_ACK, SYN, Segment, timestamps},
};
use baton_adopter::{Adopter, Attachment};
use baton_packet::LoadReport;
use std::{net::SocketAddr, sync::atomic::Ordering};

pub const KEY: [u8; 16] = *b"fedcba9876543210";
pub const SEQ: u32 = 1_000;
pub const ACKED: u32 = 2_000;
pub const PORT: u16 = 40_000;

pub const NO_LISTENER: u16 = 1;
pub const ACCEPT_QUEUE_FULL: u16 = 2;
pub const KERNEL_REFUSED: u16 = 3;
pub const TUPLE_IN_USE: u16 = 4;
pub const ALREADY_ADOPTED: u16 = 5;
pub const READY: u16 = 6;
pub const SYNCOOKIES_OFF: u16 = 7;
pub const FORGOTTEN: u16 = 8;
pub const RENEW: u16 = 9;
pub const PACKET_RULES: u16 = 10;
pub const RELEASED: u16 = 11;
pub const KEPT: u16 = 12;

pub fn adopter(lab: &Lab) -> (Adopter, Attachment) {
    let adopter = Adopter::load(None).expect("the kernel takes the adopter");
    adopter.set_key(1, &KEY).expect("set a key");
    let attachment = adopter.attach(&lab.netns(), INTERFACE).expect("attach");
    lab.learn_number(&adopter);
    (adopter, attachment)
}

/// Receives the Answer to what was sent, checks all that is the same for every reason, and returns
/// reason and field.
pub fn answer_to(lab: &Lab, sent: &Segment) -> (u16, u32) {
    let message = checked_answer(lab, sent);
    (message.mss, message.server_timestamp)
}

fn checked_answer(lab: &Lab, sent: &Segment) -> Message {
    let received = lab.receive(sent.from).expect("an answer");
    let (message, tag) = Message::parse(&received.segment)
        .unwrap_or_else(|| panic!("no adoption message: {received:?}"));
    let (asked, _) = Message::parse(sent).expect("a message was sent");
    let Segment { from, to, seq, ack, flags, window, payload, .. } = &received.segment;
    assert_eq!((*from, *to), (sent.to, sent.from));
    // A client block ends in front of the number that its message is about.
    let block = sent.payload.len() as u32;
    let acked = u32::from(sent.flags == SYN) + asked.in_front() + block;
    let acked = sent.seq.wrapping_add(acked);
    assert_eq!((*seq, *ack), (sent.ack, acked));
    assert_eq!((*flags, *window), (RST_ACK, 0));
    assert!(payload.is_empty());
    assert_eq!(received.ttl, 64);
    assert_eq!(received.checksum, Checksum::Full);
    assert_eq!(message.exid, ANSWER);
    assert_eq!((message.scales, message.flags), (0, asked.flags & 0xf0));
    if asked.exid != PROBE {
        assert_eq!((message.tsval, message.tsecr), (asked.tsval, asked.tsecr));
    }
    if message.mss != RENEW {
        assert_eq!(message.namespace, NAMESPACE.load(Ordering::Relaxed));
    }
    assert_eq!(tag, message.tag(*from, *to, *seq, *ack, *window, &KEY));
    message
}

/// What a Probe's answer says of the pod's load.
pub fn load(lab: &Lab, from: SocketAddr, to: SocketAddr) -> Option<LoadReport> {
    let segment = Message::probe().segment(from, to, SEQ, ACKED, &KEY);
    lab.send(&segment);
    let message = checked_answer(lab, &segment);
    LoadReport::from_fields((message.tsval, message.tsecr))
}

pub fn ask(lab: &Lab, message: Message, from: SocketAddr, to: SocketAddr) -> (u16, u32) {
    let segment = message.segment(from, to, SEQ, ACKED, &KEY);
    lab.send(&segment);
    answer_to(lab, &segment)
}

/// An ordinary segment on the adopted connection.
pub fn data(
    from: SocketAddr,
    to: SocketAddr,
    seq: u32,
    ack: u32,
    flags: u8,
    payload: &[u8],
) -> Segment {
    let message = Message::adopt();
    Segment {
        from,
        to,
        seq,
        ack,
        flags,
        window: 500,
        options: timestamps(message.tsval + 1, message.tsecr),
        payload: payload.to_vec(),
    }
}
