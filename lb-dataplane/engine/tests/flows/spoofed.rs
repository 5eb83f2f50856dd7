//! Segments that somebody made up with a client's address and port: nothing is learned from numbers
//! that are guessed, in whichever half of all numbers they are.

use crate::{
    common::{Conn, World, conn::*, wire},
    drain::drain,
};
use baton_engine::Counter;
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
