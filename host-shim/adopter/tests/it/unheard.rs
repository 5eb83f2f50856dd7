//! Messages about open connections that meet a pod's kernel without the adopter: it takes nothing
//! of them, neither what they acknowledge nor what stands where timestamps are. Needs root.

use crate::common::{
    Lab,
    answer::{ACKED, KEY, PORT, SEQ, adopter, data},
    ends,
    segment::{ACK, Message, PSH_ACK, RST},
};
use std::io::{Read, Write};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";

fn len(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("few")
}

#[test]
fn a_kernel_without_the_adopter_takes_nothing_of_a_message() {
    for v6 in [false, true] {
        for message in [Message::release(), Message::transfer()] {
            let lab = Lab::new();
            let (address, ours) = ends(v6, 8080, PORT);
            let listener = lab.listen(address);
            let (adopter, attachment) = adopter(&lab);
            lab.send(&Message::adopt().segment(ours, address, SEQ, ACKED, &KEY));
            lab.send(&data(ours, address, SEQ, ACKED, PSH_ACK, REQUEST));
            let (mut connection, _) = listener.accept().expect("a connection");
            let mut got = [0; REQUEST.len()];
            connection.read_exact(&mut got).expect("the request");
            let next = SEQ + len(REQUEST);
            while lab.receive(ours).expect("its acknowledgement").segment.ack != next {}
            connection.write_all(ANSWER).expect("room");
            while lab.receive(ours).expect("the answer").segment.payload != ANSWER {}
            let message = Message {
                // Newer than any of the client's.
                tsval: Message::adopt().tsval + (1 << 30),
                ..message.here()
            };
            drop((attachment, adopter));
            // It acknowledges what the client never did.
            let acked = ACKED + len(ANSWER);
            lab.send(&message.segment(ours, address, next, acked, &KEY));
            let again = loop {
                let received = lab.receive(ours).expect("the answer again").segment;
                assert_eq!(received.flags & RST, 0, "{received:?}");
                if !received.payload.is_empty() {
                    break received;
                }
            };
            assert_eq!((again.seq, &again.payload[..]), (ACKED, ANSWER));
            // And time goes on where it was.
            lab.send(&data(ours, address, next, acked, PSH_ACK, REQUEST));
            connection.read_exact(&mut got).expect("the next request");
            assert_eq!(got, REQUEST);
            lab.send(&data(ours, address, next + len(REQUEST), acked, ACK, b""));
        }
    }
}
