//! Real listeners adopt real connections: the application accepts, reads and answers as if it had
//! seen the handshake.

use crate::common::{
    INTERFACE, Lab, ends,
    segment::{ACK, FIN_ACK, Message, PSH_ACK, SACK, SCALING, Segment, TIMESTAMPS, timestamps},
};
use baton_adopter::{Adopter, Hook, Outcome};
use std::io::{Read, Write};

const KEY: [u8; 16] = *b"0123456789abcdef";
const SEQ: u32 = 0xffff_fff0;
const ACKED: u32 = 0x8000_0001;

fn adopter(lab: &Lab) -> (Adopter, baton_adopter::Attachment) {
    let adopter = Adopter::load(None).expect("the kernel takes the adopter");
    adopter.set_key(1, &KEY).expect("set a key");
    let attachment = adopter.attach(&lab.netns(), INTERFACE).expect("attach");
    lab.learn_number(&adopter);
    (adopter, attachment)
}

/// One request and one response on a connection that the pod never accepted.
fn adopt_and_talk(v6: bool, message: Message) -> Segment {
    let lab = Lab::new();
    let (pod, ours) = ends(v6, 8080, 40_000);
    let listener = lab.listen(pod);
    let (adopter, attachment) = adopter(&lab);
    let message = message.here();
    assert_eq!(attachment.id().hook, Hook::Tcx);

    lab.send(&message.segment(ours, pod, SEQ, ACKED, &KEY));
    let with_timestamps = message.flags & TIMESTAMPS != 0;
    let options = |tsval: u32| {
        if with_timestamps { timestamps(tsval, message.tsecr) } else { Vec::new() }
    };
    let request = Segment {
        from: ours,
        to: pod,
        seq: SEQ,
        ack: ACKED,
        flags: PSH_ACK,
        window: 500,
        options: options(message.tsval + 1),
        payload: b"which pod are you?".to_vec(),
    };
    lab.send(&request);

    let (mut connection, peer) = listener.accept().expect("accept");
    assert_eq!(peer, ours);
    assert_eq!(connection.local_addr().expect("local address"), pod);
    let mut read = vec![0; request.payload.len()];
    connection.read_exact(&mut read).expect("read");
    assert_eq!(read, request.payload);
    connection.write_all(b"the new one").expect("write");

    let response = loop {
        let received = lab.receive(ours).expect("the pod answers");
        assert_ne!(received.checksum, crate::common::segment::Checksum::Wrong);
        assert_eq!(received.segment.flags & !PSH_ACK, 0, "{received:?}");
        if !received.segment.payload.is_empty() {
            break received.segment;
        }
    };
    assert_eq!(response.payload, b"the new one");
    assert_eq!(response.seq, ACKED);
    assert_eq!(response.ack, SEQ.wrapping_add(request.payload.len() as u32));
    assert_eq!((response.from, response.to), (pod, ours));
    if with_timestamps {
        let tsval = u32::from_be_bytes(response.options[4..8].try_into().expect("4 bytes"));
        let tsecr = u32::from_be_bytes(response.options[8..12].try_into().expect("4 bytes"));
        assert_eq!(response.options[..4], [1, 1, 8, 10]);
        assert_eq!(tsecr, message.tsval + 1);
        // Milliseconds; the test takes far less than the deadline.
        let elapsed = tsval.wrapping_sub(message.server_timestamp);
        assert!(elapsed < 5_000, "TSval {tsval} does not continue the old server's clock");
    } else {
        assert!(response.options.is_empty(), "{:?}", response.options);
    }

    // The client closes: the application sees the end of the stream, not an error.
    let end = Segment {
        seq: response.ack,
        ack: response.seq.wrapping_add(response.payload.len() as u32),
        flags: FIN_ACK,
        options: options(message.tsval + 2),
        payload: Vec::new(),
        ..request
    };
    lab.send(&end);
    assert_eq!(connection.read(&mut read).expect("end of stream"), 0);

    let counters = adopter.counters_of(&lab.netns()).expect("counters");
    assert_eq!(counters.of(Outcome::Adopted), 1);
    assert_eq!(counters.iter().map(|(_, n)| n).sum::<u64>(), 1);
    assert_eq!(adopter.counters().expect("counters"), counters);
    response
}

#[test]
fn a_listener_adopts_over_ipv4() {
    adopt_and_talk(false, Message::adopt());
}

#[test]
fn a_listener_adopts_over_ipv6() {
    adopt_and_talk(true, Message::adopt());
}

#[test]
fn window_scales_are_those_of_the_message() {
    // The window of the same buffer, seen through two scales.
    let scaled = adopt_and_talk(false, Message::adopt()).window;
    let unscaled = adopt_and_talk(false, Message { scales: 0, ..Message::adopt() }).window;
    assert!(unscaled > 60_000, "{unscaled}");
    assert!((400..2_000).contains(&scaled), "64 KiB at scale 7 are 512: {scaled}");
}

#[test]
fn without_window_scaling() {
    let window = adopt_and_talk(
        false,
        Message { scales: 0, flags: SACK | TIMESTAMPS | 1 << 4, ..Message::adopt() },
    )
    .window;
    assert!(window > 60_000, "{window}");
}

#[test]
fn without_timestamps_and_without_sack() {
    for v6 in [false, true] {
        adopt_and_talk(v6, Message { flags: SCALING | 1 << 4, ..Message::adopt() });
        adopt_and_talk(v6, Message { flags: 1 << 4, scales: 0, ..Message::adopt() });
    }
}

#[test]
fn a_repeated_adoption_changes_nothing() {
    let lab = Lab::new();
    let (pod, ours) = ends(false, 8080, 40_000);
    let listener = lab.listen(pod);
    let (adopter, _attachment) = adopter(&lab);
    let segment = Message::adopt().segment(ours, pod, SEQ, ACKED, &KEY);
    lab.send(&segment);
    let (_connection, _) = listener.accept().expect("accept");
    for _ in 0..3 {
        lab.send(&segment);
    }
    crate::common::wait_for("the repetitions are counted", || {
        lab.count(&adopter, Outcome::Repeated) == 3
    });
    assert_eq!(lab.count(&adopter, Outcome::Adopted), 1);
    assert_eq!(lab.sockets(8080), 1);
    // A keepalive makes the socket say where it is: where the adoption put it.
    lab.send(&Segment {
        seq: SEQ.wrapping_sub(1),
        flags: ACK,
        options: timestamps(Message::adopt().tsval + 1, Message::adopt().tsecr),
        ..segment
    });
    let answer = lab.receive(ours).expect("the socket answers").segment;
    assert_eq!((answer.flags, answer.seq, answer.ack), (ACK, ACKED, SEQ));
}

#[test]
fn other_traffic_is_untouched() {
    let lab = Lab::new();
    let (pod, ours) = ends(false, 8080, 40_000);
    let listener = lab.listen(pod);
    let (adopter, _attachment) = adopter(&lab);
    // An ordinary handshake, its SYN with as many option bytes as a message has, some of them
    // unknown to the kernel.
    let mut options = vec![253, 28, 0x12, 0x34];
    options.extend([0; 24]);
    options.extend([2, 4, 5, 180, 1, 1, 1, 1, 1, 1, 1, 1]);
    let syn = Segment {
        from: ours,
        to: pod,
        seq: 99,
        ack: 0,
        flags: crate::common::segment::SYN,
        window: 500,
        options,
        payload: Vec::new(),
    };
    lab.send(&syn);
    let syn_ack = lab.receive(ours).expect("SYN-ACK").segment;
    assert_eq!((syn_ack.flags, syn_ack.ack), (0x12, 100));
    lab.send(&Segment {
        seq: 100,
        ack: syn_ack.seq.wrapping_add(1),
        flags: PSH_ACK,
        options: Vec::new(),
        payload: b"hello".to_vec(),
        ..syn
    });
    let (mut connection, _) = listener.accept().expect("accept");
    let mut read = [0; 5];
    connection.read_exact(&mut read).expect("read");
    assert_eq!(&read, b"hello");
    assert_eq!(adopter.counters().expect("counters").iter().map(|(_, n)| n).sum::<u64>(), 0);
}
