//! ICMP errors reach whoever sent the segment that met them.

use crate::common::{
    Conn, OUR_MAC, ROUTER_MAC, World,
    conn::*,
    frontend, ours, pod, pod_mac,
    wire::{checksum, icmp, pseudo, tcp},
};
use baton_engine::{Counter, DropReason, Verdict};
use baton_packet::{Decoded, IcmpError, ether_dst, ether_src};
use std::net::IpAddr;

const MTU: u16 = 1_400;

/// "Too big" for the packet in `frame`, said by `from` to the packet's sender.
fn too_big(frame: &[u8], from: IpAddr, quote: usize) -> Vec<u8> {
    let segment = tcp(frame);
    let kind = if segment.is_v6() { [2, 0] } else { [3, 4] };
    let [high, low] = MTU.to_be_bytes();
    let (ends, quoted) = ((from, segment.src), &frame[14..]);
    let quoted = &quoted[..quote.min(quoted.len())];
    icmp(
        (ROUTER_MAC, OUR_MAC),
        ends,
        60,
        kind,
        &[0, 0, high, low],
        quoted,
    )
}

fn router(v6: bool) -> IpAddr {
    if v6 { "2001:db8:9::1" } else { "198.51.100.1" }
        .parse()
        .expect("an address")
}

/// Gives an ICMP error in; the error that leaves. Its checksums are checked by decoding and by hand.
fn translated(w: &mut World, frame: &[u8]) -> Option<(Vec<u8>, IcmpError)> {
    let mut buffer = frame.to_vec();
    let len = buffer.len();
    let verdict = w.engine.frame(w.now, &mut buffer, len, &mut w.out);
    w.verdict = verdict;
    let Verdict::Transmit(len) = verdict else {
        return None;
    };
    buffer.truncate(len);
    assert_eq!(ether_src(&buffer), OUR_MAC);
    let Ok(Decoded::Icmp(error)) = baton_packet::decode(&buffer) else {
        panic!("no ICMP error with right checksums left");
    };
    let message = &buffer[usize::from(error.l4)..usize::from(error.end)];
    let sum = if error.v6 {
        checksum(&[
            &pseudo(error.outer_src, error.outer_dst, 58, message.len()),
            message,
        ])
    } else {
        let outer = &buffer[usize::from(error.l3)..usize::from(error.l4)];
        let inner = &buffer[usize::from(error.inner_l3)..usize::from(error.inner_l4)];
        assert_eq!(checksum(&[outer]), 0);
        assert_eq!(checksum(&[inner]), 0, "the quoted header");
        checksum(&[message])
    };
    assert_eq!(sum, 0, "ICMP checksum");
    Some((buffer, error))
}

#[test]
fn too_big_from_the_pods_side_reaches_the_client() {
    for v6 in [false, true] {
        for quote in [28 + if v6 { 20 } else { 0 }, 1_000] {
            let mut w = World::new(2);
            let mut c = w.open_as(Conn::of(1, v6));
            let sent = w.stays(&mut c, &[b'P'; 600]);
            let before = w.count(Counter::IcmpTranslated);
            let (frame, error) =
                translated(&mut w, &too_big(&sent.frame, router(v6), quote)).expect("translated");
            assert_eq!(ether_dst(&frame), ROUTER_MAC);
            assert_eq!(
                (error.outer_src, error.outer_dst),
                (frontend(v6).ip(), c.client.ip())
            );
            assert_eq!(
                (error.inner_src, error.inner_src_port),
                (c.client.ip(), c.client.port())
            );
            assert_eq!(
                (error.inner_dst, error.inner_dst_port),
                (frontend(v6).ip(), 80)
            );
            assert_eq!(error.kind.mtu(), Some(u32::from(MTU)));
            assert_eq!(error.inner_seq, sent.segment.seq);
            assert_eq!(w.count(Counter::IcmpTranslated), before + 1);
        }
    }
}

#[test]
fn too_big_from_the_clients_side_reaches_the_owner() {
    for v6 in [false, true] {
        let mut w = World::new(2);
        let mut c = w.idle_as(Conn::of(1, v6));
        w.moves(&mut c, GET);
        let sent = w.responds(&mut c, &[b'x'; 600]);
        let (frame, error) =
            translated(&mut w, &too_big(&sent.frame, router(v6), 1_000)).expect("translated");
        assert_eq!(ether_dst(&frame), pod_mac(c.pod));
        assert_eq!(
            (error.outer_src, error.outer_dst),
            (ours(v6), pod(v6, c.pod).ip())
        );
        assert_eq!(
            (error.inner_src, error.inner_src_port),
            (pod(v6, c.pod).ip(), 8080)
        );
        assert_eq!(
            (error.inner_dst, error.inner_dst_port),
            (ours(v6), c.leg.port())
        );
        assert_eq!(error.kind.mtu(), Some(u32::from(MTU)));
    }
}

#[test]
fn unrelated_and_spoofed_errors_are_dropped() {
    for v6 in [false, true] {
        let mut w = World::new(2);
        let mut c = w.open_as(Conn::of(1, v6));
        let to_pod = w.stays(&mut c, GET);
        let to_client = w.responds(&mut c, OK);
        let mut frames = Vec::new();
        for (sent, next) in [(&to_pod, c.seq), (&to_client, c.server)] {
            let at = usize::from(sent.segment.l4);
            for (offset, bytes) in [
                // A guess of the ports.
                (0, vec![0x9c, 0x7f]),
                (2, vec![0x12, 0x34]),
                // Guesses of the sequence number, far off in both directions and exactly opposite.
                (4, sent.segment.seq.add(1 << 25).0.to_be_bytes().to_vec()),
                (4, sent.segment.seq.sub(1 << 25).0.to_be_bytes().to_vec()),
                (4, next.wrapping_add(1 << 31).to_be_bytes().to_vec()),
            ] {
                let mut quoted = sent.frame.clone();
                quoted[at + offset..at + offset + bytes.len()].copy_from_slice(&bytes);
                frames.push(too_big(&quoted, router(v6), 1_000));
            }
        }
        let count = frames.len() as u64;
        for frame in frames {
            assert!(translated(&mut w, &frame).is_none());
            assert_eq!(w.verdict, Verdict::Drop(DropReason::IcmpUnrelated));
        }
        assert_eq!(w.dropped(DropReason::IcmpUnrelated), count);
        assert_eq!(w.count(Counter::IcmpTranslated), 0);
        // A wrong checksum is no error at all.
        let mut frame = too_big(&to_pod.frame, router(v6), 1_000);
        *frame.last_mut().expect("bytes") ^= 1;
        assert!(translated(&mut w, &frame).is_none());
        assert_eq!(w.verdict, Verdict::Drop(DropReason::Malformed));
    }
}
