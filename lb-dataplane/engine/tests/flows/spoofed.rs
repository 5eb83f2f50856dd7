//! Segments that somebody made up with a client's address and port: nothing is learned from numbers
//! that are guessed, in whichever half of all numbers they are.

use crate::{
    common::{Conn, OUR_MAC, ROUTER_MAC, World, conn::*, router, wire},
    drain::drain,
};
use baton_engine::{Counter, Verdict};
use baton_packet::Flags;

/// Every kind of guess, with a right acknowledgement or a wrong one.
fn guesses(w: &World, c: &Conn) -> Vec<Vec<u8>> {
    let mut guesses = Vec::new();
    for half in [0, 1 << 31] {
        for stamp in [0, 1 << 31] {
            for ack in [0, 1 << 29, 1 << 31, 3 << 30] {
                let mut guess = w.client_wire(c, Flags::ACK, &[]);
                guess.seq = c.seq.wrapping_add(half + 12_345);
                guess.ack = c.server.wrapping_sub(ack);
                guess.options = wire::stamps(stamp + CLIENT_CLOCK + 1_000_000, c.seen_ts);
                // In the middle of what may be sent, only the acknowledgement says that it is one.
                if half != 0 || ack != 0 {
                    guesses.push(guess.build());
                }
            }
        }
    }
    guesses
}

#[test]
fn guesses_leave_no_timestamp_to_the_next_pod() {
    let (mut w, mut c) = World::new(2).at_rest();
    for guess in guesses(&w, &c) {
        w.inject(&guess);
    }
    assert!(w.count(Counter::BeyondWindow) > 0);
    drain(&mut w, c.pod);
    let sent = w.until_adoption(10_000);
    let adoption = sent.iter().find(|s| s.is_adoption()).expect("it moves");
    let (client, _) = adoption.stamps().expect("the client has some");
    let last = CLIENT_CLOCK + w.now.ms() as u32;
    assert!(client <= last, "{client} is ahead of {last}");
    w.adopted(&mut c, &sent);
    w.confirms(&c);
    w.exchange(&mut c);
}

/// A router's word on what the client's path takes is believed for a segment that the client has
/// not acknowledged, as by a kernel (RFC 5927 section 4.1): what it has was not too long.
#[test]
fn only_what_is_under_way_was_too_long_for_a_clients_path() {
    for (at, believed) in [(-1, false), (0, true), (2, true), (OK.len() as i32, false)] {
        let (mut w, mut c) = World::new(2).at_rest();
        w.moves(&mut c, GET);
        let first = c.server;
        let quoted = w.responds(&mut c, OK);
        let mut frame = quoted.frame.clone();
        let seq = usize::from(quoted.segment.l4) + 4;
        frame[seq..seq + 4].copy_from_slice(&first.wrapping_add_signed(at).to_be_bytes());
        let between = (router(false), quoted.segment.src);
        let macs = (ROUTER_MAC, OUR_MAC);
        let mtu = 600_u32.to_be_bytes();
        let mut error = wire::icmp(macs, between, 60, [3, 4], &mtu, &frame[14..]);
        let len = error.len();
        w.call_frame(&mut error, len);
        assert_eq!(w.verdict, Verdict::Absorbed, "no pod is told");
        assert_eq!(w.count(Counter::NarrowPaths), u64::from(believed), "{at}");
        w.ack(&mut c);
        let adoption = w.moves(&mut c, GET);
        let mss = adoption.message().expect("a message").mss;
        assert_eq!(mss, if believed { 560 } else { 1_460 });
    }
}
