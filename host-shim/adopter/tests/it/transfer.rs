//! Transfers, as far as the program has a part in them: what is asked is told of, copies have one
//! fate, and what the kernel says of a connection that has moved is dropped. Needs root.

use crate::common::{
    Lab,
    answer::{ACKED, KEPT, KEY, PORT, RENEW, SEQ, adopter, answer_to, data},
    ends,
    segment::{Message, PSH_ACK, RST, Segment, block},
    wait_for,
};
use baton_adopter::{Adopter, Attachment, Outcome, Reach, Transfer, TransferAsks, Transfers};
use std::{
    net::{Ipv6Addr, SocketAddr},
    time::Duration,
};

const MOVED: u16 = 13;
const TO: u64 = 0x1122_3344_5566_7788;
/// `LEASE_NS`.
const LEASE: Duration = Duration::from_millis(200);

struct Pod {
    lab: Lab,
    adopter: Adopter,
    _attachment: Attachment,
    address: SocketAddr,
    ours: SocketAddr,
    transfers: Transfers,
}

impl Pod {
    fn new(v6: bool) -> Self {
        let lab = Lab::new();
        let (adopter, attachment) = adopter(&lab);
        let (address, ours) = ends(v6, 8080, PORT);
        Self {
            transfers: adopter.transfers().expect("the maps"),
            lab,
            adopter,
            _attachment: attachment,
            address,
            ours,
        }
    }

    /// To port 81 of the pod whose address ends so.
    fn message(end: u32) -> Message {
        Message {
            mss: 81,
            server_timestamp: end,
            tsval: (TO >> 32) as u32,
            tsecr: TO as u32,
            ..Message::transfer().here()
        }
    }

    fn segment(&self, end: u32) -> Segment {
        Self::message(end).segment(self.ours, self.address, SEQ, ACKED, &KEY)
    }

    /// The same, where the peer has this end there.
    fn segment_to(&self, end: u32, peer: SocketAddr) -> Segment {
        let (message, seq) = (Self::message(end), SEQ.wrapping_sub(41));
        let tag = message.tag(self.ours, self.address, seq, ACKED, 0, &KEY);
        let mut segment = message.segment_with_tag(self.ours, self.address, seq, ACKED, tag);
        segment.window = 0;
        segment.payload = block(&segment, peer, message.namespace, 1, &KEY);
        segment
    }

    fn told(&self, segment: &Segment) -> u16 {
        self.lab.send(segment);
        answer_to(&self.lab, segment).0
    }

    fn asked(&self, asks: &mut TransferAsks<'_>, segment: &Segment) -> Transfer {
        self.lab.send(segment);
        let mut asked = Vec::new();
        wait_for("it is told", || {
            asked = asks.gather().expect("the ring");
            !asked.is_empty()
        });
        assert_eq!(asked.len(), 1);
        asked[0]
    }

    fn count(&self, outcome: Outcome) -> u64 {
        self.lab.count(&self.adopter, outcome)
    }
}

#[test]
fn what_is_asked_is_told_with_all_that_the_message_says() {
    for v6 in [false, true] {
        let pod = Pod::new(v6);
        let mut asks = pod.transfers.asks().expect("the ring");
        let segment = pod.segment(0x0a00_0007);
        let transfer = pod.asked(&mut asks, &segment);
        assert_eq!(transfer.netns(), pod.lab.pod.cookie());
        assert_eq!((transfer.local(), transfer.remote()), (pod.address, pod.ours));
        assert_eq!(transfer.namespace(), Some(TO));
        assert_eq!(transfer.far_address(Ipv6Addr::LOCALHOST), None);
        assert_eq!(transfer.address_end(), [10, 0, 0, 7]);
        let peer = SocketAddr::new(pod.ours.ip(), segment.window);
        assert_eq!((transfer.port(), transfer.peer()), (81, peer));
        let lease = pod.transfers.lease(&transfer).expect("the table");
        assert!(lease.is_some_and(|left| left <= LEASE));
    }
}

#[test]
fn the_peer_has_another_address_there_where_a_block_says_so() {
    for v6 in [false, true] {
        let pod = Pod::new(v6);
        let mut asks = pod.transfers.asks().expect("the ring");
        let peer = match v6 {
            false => "192.0.2.77:4321",
            true => "[2001:db8::77]:4321",
        };
        let peer: SocketAddr = peer.parse().expect("an end");
        let segment = pod.segment_to(7, peer);
        let transfer = pod.asked(&mut asks, &segment);
        assert_eq!((transfer.peer(), transfer.remote()), (peer, pod.ours));
        assert_eq!((transfer.port(), transfer.address_end()), (81, [0, 0, 0, 7]));
        pod.transfers.moved(&transfer, ACKED).expect("the table");
        pod.lab.send(&segment);
        let (reason, detail) = answer_to(&pod.lab, &segment);
        assert_eq!((reason, detail), (MOVED, peer.port().into()));
        // The end is the key holder's, and said once.
        let mut bad = Vec::new();
        let mut other = segment.clone();
        other.payload[23] ^= 1;
        bad.push((other, Outcome::ClientBad));
        let mut without = segment.clone();
        (without.seq, without.payload) = (SEQ.wrapping_sub(1), Vec::new());
        bad.push((without, Outcome::BadLayout));
        let mut twice = pod.segment(7);
        twice.payload = segment.payload;
        bad.push((twice, Outcome::BadLayout));
        for (segment, outcome) in bad {
            let before = pod.count(outcome);
            pod.lab.send(&segment);
            wait_for("it is counted", || pod.count(outcome) == before + 1);
        }
        assert!(asks.gather().expect("the ring").is_empty());
    }
}

/// The same numbers with the flag are another Transfer.
#[test]
fn a_pod_of_another_node_is_told_by_its_address() {
    let pod = Pod::new(true);
    let mut asks = pod.transfers.asks().expect("the ring");
    let number = pod.segment(0x0a00_0007);
    let transfer = pod.asked(&mut asks, &number);
    pod.transfers.kept(&transfer).expect("the table");
    let mut message = Message::parse(&number).expect("a message").0;
    message.flags |= 1;
    let segment = message.segment(pod.ours, pod.address, SEQ, ACKED, &KEY);
    let transfer = pod.asked(&mut asks, &segment);
    assert_eq!(transfer.namespace(), None);
    let own = "fd00:1::9".parse().expect("an address");
    let far = "fd00:1:1122:3344:5566:7788:a00:7";
    let far: Ipv6Addr = far.parse().expect("an address");
    assert_eq!(transfer.far_address(own), Some(far));
    pod.transfers.moved(&transfer, ACKED).expect("the table");
    assert_eq!((pod.told(&number), pod.told(&segment)), (KEPT, MOVED));
}

#[test]
fn all_copies_have_one_fate_and_another_destination_another() {
    let pod = Pod::new(false);
    let mut asks = pod.transfers.asks().expect("the ring");
    let (kept, moved) = (pod.segment(1), pod.segment(2));
    let transfer = pod.asked(&mut asks, &kept);
    pod.transfers.kept(&transfer).expect("the table");
    assert_eq!(pod.transfers.lease(&transfer).expect("the table"), None);
    let transfer = pod.asked(&mut asks, &moved);
    pod.transfers.moved(&transfer, ACKED).expect("the table");
    for _ in 0..2 {
        assert_eq!(pod.told(&kept), KEPT);
        assert_eq!(pod.told(&moved), MOVED);
    }
    assert!(asks.gather().expect("the ring").is_empty());
    assert_eq!(pod.count(Outcome::TransferAsked), 2);
    assert_eq!(pod.count(Outcome::Kept), 2);
    assert_eq!(pod.count(Outcome::Moved), 2);
    // For another namespace, it is answered so, and nobody is asked.
    let mut elsewhere = Message::parse(&pod.segment(3)).expect("a message").0;
    elsewhere.namespace ^= 1;
    let segment = elsewhere.segment(pod.ours, pod.address, SEQ, ACKED, &KEY);
    assert_eq!(pod.told(&segment), RENEW);
    assert!(asks.gather().expect("the ring").is_empty());
}

#[test]
fn what_nobody_decided_is_told_again_and_without_user_space_all_is_kept() {
    let pod = Pod::new(false);
    let mut asks = pod.transfers.asks().expect("the ring");
    let segment = pod.segment(1);
    let transfer = pod.asked(&mut asks, &segment);
    wait_for("its lease ends", || pod.transfers.lease(&transfer).expect("the table").is_none());
    assert_eq!(pod.asked(&mut asks, &segment), transfer);
    assert!(pod.transfers.lease(&transfer).expect("the table").is_some());
    pod.transfers.enable(false).expect("the flag");
    assert_eq!(pod.told(&pod.segment(2)), KEPT);
    assert!(asks.gather().expect("the ring").is_empty());
}

/// Segments of a connection that is not there draw resets.
#[test]
fn resets_of_what_has_moved_are_dropped_until_the_pair_is_used_again() {
    for v6 in [false, true] {
        let pod = Pod::new(v6);
        let mut asks = pod.transfers.asks().expect("the ring");
        let transfer = pod.asked(&mut asks, &pod.segment(1));
        // The kernel resets with the number that is acknowledged.
        let late = |ack| data(pod.ours, pod.address, SEQ, ack, PSH_ACK, b"late");
        let (_, other) = ends(v6, 8080, PORT + 1);
        let reset = |segment: &Segment| {
            pod.lab.send(segment);
            let received = pod.lab.receive(segment.from).expect("a reset").segment;
            assert_eq!((received.flags, received.seq), (RST, segment.ack));
        };
        // Behind it, one of another pair, whose reset passes: silence needs no waiting.
        let silent = |segment: &Segment| {
            let before = pod.count(Outcome::MovedReset);
            pod.lab.send(segment);
            reset(&Segment { from: other, ..segment.clone() });
            assert!(pod.lab.receive_queued(pod.ours).is_none());
            assert_eq!(pod.count(Outcome::MovedReset), before + 1);
        };
        let number = ACKED.wrapping_sub(1_000_000_000);
        reset(&late(number));
        pod.transfers.moved(&transfer, number).expect("the table");
        for ack in [number, number.wrapping_sub(1), number.wrapping_sub(16 << 20)] {
            silent(&late(ack));
        }
        // Of another connection on the pair.
        reset(&late(number.wrapping_add(1)));
        reset(&late(number.wrapping_sub((16 << 20) + 1)));
        // A handshake is refused: its reset has an ACK.
        let syn = Segment { flags: crate::common::segment::SYN, ack: 0, ..late(0) };
        pod.lab.send(&Segment { payload: Vec::new(), ..syn });
        let refused = pod.lab.receive(pod.ours).expect("a reset").segment;
        assert_ne!(refused.flags & RST, 0);
        silent(&late(number));
        // Used again: forgotten, or back here.
        let forget = Message::forget().here().segment(pod.ours, pod.address, SEQ, 0, &KEY);
        pod.lab.send(&forget);
        answer_to(&pod.lab, &forget);
        reset(&late(number));
        pod.transfers.moved(&transfer, number).expect("the table");
        let cookie = pod.lab.pod.cookie();
        let is_moved = || {
            let moved = pod.transfers.is_moved(cookie, pod.address, pod.ours);
            moved.expect("the table")
        };
        assert!(is_moved());
        pod.transfers.lives(cookie, pod.address, pod.ours);
        assert!(!is_moved());
        reset(&late(number));
        pod.transfers.moved(&transfer, number).expect("the table");
        let _listener = pod.lab.listen(pod.address);
        let adopt = Message::adopt().segment(pod.ours, pod.address, 7, number, &KEY);
        pod.lab.send(&adopt);
        wait_for("it is taken", || pod.count(Outcome::Adopted) == 1);
        assert!(!is_moved());
    }
}

#[test]
fn the_listener_report_says_which_ports_cooperate() {
    let pod = Pod::new(false);
    let _listener = pod.lab.listen(pod.address);
    let cookie = pod.lab.pod.cookie();
    let mut number = 0;
    let mut reports = || {
        number += 1;
        let segment = Message::probe().segment(pod.ours, pod.address, number, 2, &KEY);
        pod.lab.send(&segment);
        answer_to(&pod.lab, &segment).1 & 0b1_1000
    };
    assert_eq!(reports(), 0);
    let set = |port, on| pod.transfers.set_cooperates(cookie, port, on);
    set(81, Some(Reach::Node)).expect("the table");
    assert_eq!(reports(), 0);
    set(8080, Some(Reach::Node)).expect("the table");
    assert_eq!(reports(), 0b0_1000);
    set(8080, Some(Reach::Nodes)).expect("the table");
    assert_eq!(reports(), 0b1_1000);
    set(8080, None).expect("the table");
    assert_eq!(reports(), 0);
    set(8080, Some(Reach::Nodes)).expect("the table");
    // The next host-shim begins with none.
    let _next = pod.adopter.transfers().expect("the maps");
    assert_eq!(reports(), 0);
}
