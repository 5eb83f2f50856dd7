//! Packets and what must become of them: description, packet, verdict.

use crate::config::Steering;
use etherparse::PacketBuilder;

/// What must become of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Ours,
    Fragment,
    /// Dropped.
    FirstFragment,
    Other,
}
use Verdict::{FirstFragment, Fragment, Other, Ours};

/// Of the loopback interface, by which the kernel's test run has all come.
pub(super) const OWN_MAC: [u8; 6] = [0; 6];
pub(super) const OTHER_MAC: [u8; 6] = [4; 6];
pub(super) const OWN: [u8; 4] = [10, 0, 0, 2];
pub(super) const VIRTUAL: [u8; 4] = [10, 0, 9, 9];
pub(super) const FAR: [u8; 4] = [192, 0, 2, 7];
pub(super) const OWN6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
pub(super) const VIRTUAL6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 9];
pub(super) const FAR6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 7];
pub(super) const PORTS: std::ops::RangeInclusive<u16> = 20_000..=29_999;

pub(super) fn steering() -> Steering {
    Steering {
        frontends: vec![(OWN.into(), 80), (VIRTUAL.into(), 443), (VIRTUAL6.into(), 443)],
        by_address: Vec::new(),
        addresses: vec![OWN.into(), OWN6.into()],
        ports: PORTS,
        backends: None,
    }
}

pub(super) fn tcp4(from: [u8; 4], source: u16, to: [u8; 4], port: u16) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([2; 6], OWN_MAC)
        .ipv4(from, to, 60)
        .tcp(source, port, 1, 1)
        .write(&mut frame, b"payload")
        .expect("a Vec takes all");
    frame
}

pub(super) fn tcp6(from: [u8; 16], source: u16, to: [u8; 16], port: u16) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([2; 6], OWN_MAC)
        .ipv6(from, to, 60)
        .tcp(source, port, 1, 1)
        .write(&mut frame, b"payload")
        .expect("a Vec takes all");
    frame
}

pub(super) fn changed(mut frame: Vec<u8>, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    change(&mut frame);
    frame
}

/// IPv4 with a header of 40 bytes.
pub(super) fn with_options(frame: Vec<u8>) -> Vec<u8> {
    changed(frame, |f| {
        f.splice(34..34, [1; 20]);
        f[14] = 0x4a;
    })
}

/// IPv6 with `count` extension headers of a kind, `units` times 8 bytes each.
pub(super) fn with_extensions(frame: Vec<u8>, kind: u8, count: usize, units: usize) -> Vec<u8> {
    changed(frame, |f| {
        let last = f[20];
        for i in 0..count {
            let mut header = vec![0; units * 8];
            header[0] = if i == 0 { last } else { kind };
            // The authentication header counts words of 4 bytes less 2, the others units of 8
            // less 1.
            header[1] = if kind == 51 { units * 2 - 2 } else { units - 1 } as u8;
            f.splice(54..54, header);
        }
        if count > 0 {
            f[20] = kind;
        }
    })
}

/// An ICMP error that quotes a packet (without its Ethernet header).
pub(super) fn icmp4(kind: u8, quoted: &[u8]) -> Vec<u8> {
    let mut frame = tcp4(FAR, 0, OWN, 0);
    frame.truncate(34);
    frame[23] = 1;
    frame.extend_from_slice(&[kind, 4, 0, 0, 0, 0, 5, 0x14]);
    frame.extend_from_slice(&quoted[14..]);
    frame
}

pub(super) fn icmp6(kind: u8, quoted: &[u8]) -> Vec<u8> {
    let mut frame = tcp6(FAR6, 0, OWN6, 0);
    frame.truncate(54);
    frame[20] = 58;
    frame.extend_from_slice(&[kind, 0, 0, 0, 0, 0, 5, 0]);
    frame.extend_from_slice(&quoted[14..]);
    frame
}

pub(super) fn cases() -> Vec<(&'static str, Vec<u8>, Verdict)> {
    let client4 = tcp4(FAR, 5000, OWN, 80);
    let client6 = tcp6(FAR6, 5000, VIRTUAL6, 443);
    let sent4 = tcp4(OWN, 20_000, FAR, 80);
    let answered4 = tcp4(VIRTUAL, 443, FAR, 5000);
    let sent6 = tcp6(OWN6, 29_999, FAR6, 80);
    vec![
        ("v4 frontend on the own address", client4.clone(), Ours),
        ("v4 frontend on a virtual address", tcp4(FAR, 1, VIRTUAL, 443), Ours),
        ("v4 other port of the own address", tcp4(FAR, 1, OWN, 81), Other),
        ("v4 port of another frontend", tcp4(FAR, 1, OWN, 443), Other),
        ("v4 other port of a virtual address", tcp4(FAR, 1, VIRTUAL, 80), Other),
        ("v4 lowest leg port", tcp4(FAR, 80, OWN, 20_000), Ours),
        ("v4 highest leg port", tcp4(FAR, 80, OWN, 29_999), Ours),
        ("v4 below the leg ports", tcp4(FAR, 80, OWN, 19_999), Other),
        ("v4 above the leg ports", tcp4(FAR, 80, OWN, 30_000), Other),
        ("v4 leg port of a virtual address", tcp4(FAR, 80, VIRTUAL, 25_000), Other),
        ("v4 frontend port elsewhere", tcp4(OWN, 80, FAR, 80), Other),
        ("v4 with IP options", with_options(client4.clone()), Ours),
        ("v4 with IP options, not ours", with_options(tcp4(FAR, 1, OWN, 81)), Other),
        ("v4 UDP to a frontend", changed(client4.clone(), |f| f[23] = 17), Other),
        ("v4 header too short", changed(client4.clone(), |f| f[14] = 0x44), Other),
        ("v4 wrong version", changed(client4.clone(), |f| f[14] = 0x65), Other),
        ("v4 don't fragment", changed(client4.clone(), |f| f[20] = 0x40), Ours),
        ("v4 first fragment", changed(client4.clone(), |f| f[20] = 0x20), FirstFragment),
        ("v4 later fragment", changed(client4.clone(), |f| f[21] = 9), Fragment),
        ("v4 late fragment", changed(client4.clone(), |f| f[20] = 0x1f), Fragment),
        (
            "v4 fragment for a virtual address",
            changed(tcp4(FAR, 1, VIRTUAL, 1), |f| f[20] = 0x20),
            Fragment,
        ),
        ("v4 fragment for others", changed(tcp4(OWN, 80, FAR, 80), |f| f[20] = 0x20), Other),
        ("v4 cut off in the ports", changed(client4.clone(), |f| f.truncate(37)), Other),
        ("v4 cut off after the ports", changed(client4.clone(), |f| f.truncate(38)), Ours),
        ("v4 cut off in the IP header", changed(client4.clone(), |f| f.truncate(30)), Other),
        ("Ethernet header only", changed(client4.clone(), |f| f.truncate(14)), Other),
        (
            "VLAN",
            changed(client4.clone(), |f| {
                f.splice(12..12, [0x81, 0, 0, 5]);
            }),
            Other,
        ),
        ("v4 for another host", changed(client4.clone(), |f| f[..6].fill(4)), Other),
        ("v4 for all hosts", changed(client4.clone(), |f| f[..6].fill(0xff)), Other),
        (
            "v4 fragment for another host",
            changed(client4.clone(), |f| {
                f[..6].fill(4);
                f[20] = 0x20;
            }),
            Other,
        ),
        ("v6 for another host", changed(client6.clone(), |f| f[..6].fill(4)), Other),
        ("ARP", changed(client4.clone(), |f| f[13] = 6), Other),
        ("v6 frontend", client6.clone(), Ours),
        ("v6 other port", tcp6(FAR6, 1, VIRTUAL6, 80), Other),
        ("v6 leg port", tcp6(FAR6, 80, OWN6, 20_001), Ours),
        ("v6 leg port of a virtual address", tcp6(FAR6, 80, VIRTUAL6, 20_001), Other),
        ("v6 UDP", changed(client6.clone(), |f| f[20] = 17), Other),
        ("v6 wrong version", changed(client6.clone(), |f| f[14] = 0x45), Other),
        ("v6 one hop-by-hop header", with_extensions(client6.clone(), 0, 1, 1), Ours),
        ("v6 destination options of 64 bytes", with_extensions(client6.clone(), 60, 1, 8), Ours),
        ("v6 four routing headers", with_extensions(client6.clone(), 43, 4, 2), Ours),
        ("v6 five routing headers", with_extensions(client6.clone(), 43, 5, 1), Other),
        ("v6 authentication header", with_extensions(client6.clone(), 51, 1, 3), Ours),
        ("v6 extension, not ours", with_extensions(tcp6(FAR6, 1, OWN6, 1), 60, 1, 1), Other),
        ("v6 fragment header", with_extensions(client6.clone(), 44, 1, 1), FirstFragment),
        (
            "v6 later fragment",
            changed(with_extensions(client6.clone(), 44, 1, 1), |f| f[57] = 8),
            Fragment,
        ),
        (
            "v6 first fragment of another port",
            with_extensions(tcp6(FAR6, 1, VIRTUAL6, 80), 44, 1, 1),
            Fragment,
        ),
        (
            "v6 fragment header for others",
            with_extensions(tcp6(OWN6, 1, FAR6, 443), 44, 1, 1),
            Other,
        ),
        (
            "v6 extension header cut off",
            changed(with_extensions(client6.clone(), 60, 1, 8), |f| {
                f.truncate(100);
            }),
            Other,
        ),
        ("v4 unreachable about a leg", icmp4(3, &sent4), Ours),
        ("v4 time exceeded about a leg", icmp4(11, &sent4), Ours),
        ("v4 parameter problem about a frontend", icmp4(12, &answered4), Ours),
        ("v4 unreachable, quoting IP options", icmp4(3, &with_options(sent4.clone())), Ours),
        ("v4 unreachable, 8 bytes of TCP quoted", icmp4(3, &sent4[..42]), Ours),
        ("v4 unreachable, 1 byte of TCP quoted", icmp4(3, &sent4[..35]), Other),
        ("v4 unreachable about a packet to us", icmp4(3, &client4), Other),
        ("v4 unreachable about UDP", icmp4(3, &changed(sent4.clone(), |f| f[23] = 17)), Other),
        (
            "v4 unreachable about a later fragment",
            icmp4(3, &changed(sent4.clone(), |f| f[21] = 9)),
            Other,
        ),
        ("v4 unreachable about another port", icmp4(3, &tcp4(OWN, 5, FAR, 80)), Other),
        ("v4 echo request", icmp4(8, &sent4), Other),
        ("v4 redirect", icmp4(5, &sent4), Other),
        ("v6 unreachable about a leg", icmp6(1, &sent6), Ours),
        ("v6 packet too big about a leg", icmp6(2, &sent6), Ours),
        ("v6 time exceeded about a leg", icmp6(3, &sent6), Ours),
        ("v6 parameter problem about a frontend", icmp6(4, &tcp6(VIRTUAL6, 443, FAR6, 9)), Ours),
        (
            "v6 unreachable, quoting extension headers",
            icmp6(1, &with_extensions(sent6.clone(), 60, 2, 2)),
            Ours,
        ),
        ("v6 echo request", icmp6(128, &sent6), Other),
        ("v6 neighbour solicitation", icmp6(135, &sent6), Other),
        ("v6 unreachable about another port", icmp6(1, &tcp6(OWN6, 5, FAR6, 80)), Other),
        ("v4 TCP in an ICMPv6 number", changed(icmp4(3, &sent4), |f| f[23] = 58), Other),
    ]
}
