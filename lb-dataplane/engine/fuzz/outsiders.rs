//! What others put into the traffic, and what is changed on the way: ICMP errors, segments from
//! anybody to anybody, frames that come back, wrong numbers, changed bytes. Follows no flow;
//! asserts nothing.

use crate::{
    common::{Conn, OUR_MAC, ROUTER_MAC, World, ours, pod, wire},
    program::{PODS, Program},
};
use baton_packet::{Decoded, decode};
use std::net::SocketAddr;
use wire::Wire;

/// An ICMP error of the router's about something that left.
pub fn icmp(left: &[Vec<u8>], program: &mut Program<'_>) -> Option<Vec<u8>> {
    let (which, kind) = (program.byte(), program.byte());
    if left.is_empty() {
        return None;
    }
    let quoted = left[usize::from(which) % left.len()].clone();
    let v6 = quoted[12..14] == [0x86, 0xdd];
    let [to, from] = [ours(v6), crate::common::router(v6)];
    let quote = quoted.len().min(14 + if kind & 0x80 != 0 { 28 } else { 100 });
    // Type and code by family: needs fragmentation or packet too big, time exceeded, unreachable,
    // and one that is no error.
    let types: [[u8; 2]; 4] =
        if v6 { [[2, 0], [3, 0], [1, 4], [128, 0]] } else { [[3, 4], [11, 0], [3, 3], [8, 0]] };
    let (kind, rest) = (types[usize::from(kind & 3)], [0, 0, 5, 0x14]);
    let macs = (ROUTER_MAC, OUR_MAC);
    let quoted = &quoted[14..quote];
    Some(wire::icmp(macs, (from, to), 64, kind, &rest, quoted))
}

/// Somebody in between: any of the known addresses and ports on either side, numbers near a flow's.
pub fn attacker(world: &World, c: &Conn, program: &mut Program<'_>) -> Option<Vec<u8>> {
    let (ends, flags) = (program.byte(), program.flags());
    let (seq, ack) = (program.offset(), program.offset());
    let data = program.said_by_client();
    let v6 = c.v6();
    let known = [
        c.client,
        c.frontend,
        c.leg,
        pod(v6, c.pod % PODS),
        SocketAddr::new(ours(v6), 40_000 + u16::from(ends)),
        SocketAddr::new(c.client.ip(), c.frontend.port()),
        SocketAddr::new(pod(v6, 0).ip(), c.client.port()),
        SocketAddr::new(c.frontend.ip(), c.client.port()),
    ];
    let [from, to] = [ends & 7, ends >> 3 & 7].map(|i| known[usize::from(i)]);
    if from.is_ipv6() != to.is_ipv6() {
        return None;
    }
    let mut wire = world.client_wire(c, flags, data);
    (wire.from, wire.to) = (from, to);
    if ends & 0x40 != 0 {
        // The server's numbers.
        (wire.seq, wire.ack) = (wire.ack, wire.seq);
    }
    wire.ttl = if ends & 0x80 != 0 { 1 } else { 64 };
    wrong(&mut wire, seq, ack);
    Some(wire.build())
}

/// Something that left comes back: as it is, or turned round.
pub fn again(left: &[Vec<u8>], which: u8) -> Option<Vec<u8>> {
    if left.is_empty() {
        return None;
    }
    let mut frame = left[usize::from(which & 0x7f) % left.len()].clone();
    if which & 0x80 != 0
        && let Ok(Decoded::Tcp(s)) = decode(&frame)
    {
        let l4 = usize::from(s.l4);
        let (addresses, half) = if s.is_v6() { (22, 16) } else { (26, 4) };
        frame[addresses..addresses + 2 * half].rotate_left(half);
        frame[l4..l4 + 4].rotate_left(2);
    }
    Some(frame)
}

/// Numbers that are off by this much.
pub fn wrong(wire: &mut Wire, seq: i32, ack: i32) {
    wire.seq = wire.seq.wrapping_add_signed(seq);
    wire.ack = wire.ack.wrapping_add_signed(ack);
}
