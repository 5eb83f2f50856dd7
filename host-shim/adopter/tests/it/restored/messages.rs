//! Legs that a client stands for: what other messages, ICMP errors and marks do with them, where
//! their packets go, and when they are forgotten.

use super::*;
use crate::common::{
    PEER_MAC,
    answer::{FORGOTTEN, KEPT, RELEASED, ask},
    segment::sum,
};
use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    process::{Command, Stdio},
};

const EXIT_MARK: u16 = 0xba7e;
const FIN: u8 = 1;

/// What a router says of a packet of `len` bytes from the pod to `leg`, whose number is `seq`.
fn too_big(pod: SocketAddr, leg: SocketAddr, seq: u32, mtu: u16) -> Vec<u8> {
    let packet = Segment {
        from: pod,
        to: leg,
        seq,
        ack: SEQ,
        flags: ACK,
        window: 500,
        options: Vec::new(),
        payload: vec![0; 1400],
    };
    let packet = packet.frame(POD_MAC, PEER_MAC);
    let quoted = &packet[14..14 + if pod.is_ipv4() { 28 } else { 48 }];
    let mut icmp = if pod.is_ipv4() { vec![3, 4, 0, 0, 0, 0] } else { vec![2, 0, 0, 0, 0, 0] };
    icmp.extend(mtu.to_be_bytes());
    icmp.extend(quoted);
    let mut frame = [POD_MAC, PEER_MAC].concat();
    match (leg.ip(), pod.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let checksum = !(sum(&icmp, 0) as u16);
            icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
            frame.extend([8, 0]);
            let mut ip = vec![0x45, 0];
            ip.extend((20 + icmp.len() as u16).to_be_bytes());
            ip.extend([0, 9, 0, 0, 60, 1, 0, 0]);
            ip.extend(from.octets());
            ip.extend(to.octets());
            let checksum = !(sum(&ip, 0) as u16);
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            frame.extend(ip);
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let addresses = [from.octets(), to.octets()].concat();
            let pseudo = sum(&addresses, 58 + icmp.len() as u32);
            let checksum = !(sum(&icmp, pseudo) as u16);
            icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((icmp.len() as u16).to_be_bytes());
            frame.extend([58, 60]);
            frame.extend(from.octets());
            frame.extend(to.octets());
        }
        _ => panic!("one family"),
    }
    frame.extend(icmp);
    frame
}

/// What the pod's kernel says of its established connections.
fn sockets(scene: &Scene) -> String {
    let output = Command::new("ip")
        .args(["netns", "exec", &scene.lab.netns_name(), "ss", "-tinH"])
        .output()
        .expect("ss");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn path_mtu_discovery_works() {
    for (v6, mtu) in [(false, 1_300), (true, 1_290)] {
        let scene = Scene::new(v6);
        let leg = scene.leg(LEG);
        let (_stream, peer, ours) = scene.shake(&with_block(scene.syn(leg), client(v6)));
        assert_eq!(peer, client(v6));
        let pmtu = format!("pmtu:{mtu} ");
        assert!(!sockets(&scene).contains(&pmtu));
        // About the client's pair itself it is believed as little as anything else from there.
        let forged = too_big(scene.pod, client(v6), ours, mtu);
        scene.lab.peer.send(&forged, None);
        wait_for("a forged one", || scene.count(Outcome::ClientSpoofed) == 1);
        assert!(!sockets(&scene).contains(&pmtu));
        scene.lab.peer.send(&too_big(scene.pod, leg, ours, mtu), None);
        wait_for("the path's MTU", || sockets(&scene).contains(&pmtu));
    }
}

/// The pod's kernel asks for that neighbour, and the adopter sends by the dataplane.
#[test]
fn a_client_in_the_pods_own_subnet_is_answered_by_the_dataplane() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        let near = if v6 { "fd07::77" } else { "10.7.0.77" };
        run(&format!(
            "ip -n {} neigh add {near} lladdr 02:ba:00:00:00:77 dev eth0",
            scene.lab.netns_name()
        ));
        let near = SocketAddr::new(near.parse().expect("an address"), CLIENT_PORT);
        let leg = scene.leg(LEG);
        // Whatever has another destination than the dataplane's MAC is not received.
        let (mut stream, peer, ours) = scene.shake(&with_block(scene.syn(leg), near));
        assert_eq!(peer, near);
        let request = scene.plain(leg, SEQ, ours, PSH_ACK, b"near");
        scene.talk(&mut stream, &request, ours);
    }
}

#[test]
fn many_bytes_have_right_checksums() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        let leg = scene.leg(LEG);
        let (mut stream, _, ours) = scene.shake(&with_block(scene.syn(leg), client(v6)));
        let wide = Segment { window: u16::MAX, ..scene.plain(leg, SEQ, ours, PSH_ACK, &[7; 1400]) };
        scene.lab.send(&wide);
        let mut read = vec![0; 1400];
        stream.read_exact(&mut read).expect("read");
        // As much as goes without an acknowledgement, in segments for a device to cut.
        stream.write_all(&[9; 12_000]).expect("write");
        let mut got = 0;
        while got < 12_000 {
            got += scene.receive(leg, "data").segment.payload.len();
        }
    }
}

#[test]
fn a_forget_looks_at_the_clients_pair_and_ends_the_leg() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        let leg = scene.leg(LEG);
        let (stream, _, ours) = scene.shake(&with_block(scene.syn(leg), client(v6)));
        let forget = Message::forget().segment(leg, scene.pod, SEQ, 0, &KEY);
        scene.refuse("a Forget of a live one", &forget, Outcome::ForgetInUse);
        scene.lab.send(&scene.plain(leg, SEQ, ours, RST, b""));
        wait_for("the socket's end", || scene.lab.sockets(8080) == 0);
        drop(stream);
        assert_eq!(scene.adopter.legs().expect("legs").len(), 1);
        scene.lab.send(&forget);
        assert_eq!(answer_to(&scene.lab, &forget), (FORGOTTEN, 0));
        assert!(scene.adopter.legs().expect("legs").is_empty());
    }
}

#[test]
fn a_release_names_the_leg() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        let leg = scene.leg(LEG);
        scene.lab.send(&with_block(scene.adopt(leg), client(v6)));
        let (_stream, _) = scene.listener.accept().expect("accept");
        scene.lab.send(&data(leg, scene.pod, SEQ, ACKED, PSH_ACK, b"unread"));
        let next = SEQ + 6;
        while scene.receive(leg, "an ACK").segment.ack != next {}
        let releases = scene.adopter.releases().expect("the iterator");
        let mut asks = releases.asks().expect("the ring");
        let release = Message::release().segment(leg, scene.pod, SEQ, ACKED, &KEY);
        scene.lab.send(&release);
        let mut asked = std::collections::BTreeSet::new();
        wait_for("it is asked", || {
            asked.extend(asks.gather().expect("the ring").into_values().flatten());
            !asked.is_empty()
        });
        let pass = releases.pass(&scene.lab.netns(), scene.lab.pod.cookie(), &asked);
        assert_eq!(pass.expect("a pass").expect("the namespace").released, 1);
        // Its end goes to the leg, with the mark.
        let end = scene.receive(leg, "a reset");
        assert_eq!((end.segment.flags & RST, end.urgent), (RST, 0xba80));
        scene.lab.send(&release);
        assert_eq!(answer_to(&scene.lab, &release).0, RELEASED);
    }
}

#[test]
fn a_transfer_is_kept() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        let leg = scene.leg(LEG);
        // What user space would be asked, where it can move connections.
        let _transfers = scene.adopter.transfers().expect("transfers");
        let _live = scene.shake(&with_block(scene.syn(leg), client(v6)));
        assert_eq!(ask(&scene.lab, Message::transfer(), leg, scene.pod).0, KEPT);
        assert_eq!(scene.count(Outcome::TransferAsked), 0);
    }
}

#[test]
fn the_end_of_a_process_is_marked_towards_the_leg() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        let leg = scene.leg(LEG);
        scene.lab.send(&with_block(scene.adopt(leg), client(v6)));
        let (stream, _) = scene.listener.accept().expect("accept");
        let mut process = Command::new("sh")
            .args(["-c", "read line"])
            .stdin(Stdio::from(OwnedFd::from(stream)))
            .spawn()
            .expect("sh starts");
        scene.lab.send(&data(leg, scene.pod, SEQ, ACKED, PSH_ACK, b"go\n"));
        let end = loop {
            let received = scene.receive(leg, "a FIN");
            if received.segment.flags & FIN != 0 {
                break received;
            }
        };
        assert_eq!(end.urgent, EXIT_MARK);
        process.wait().expect("it ends");
    }
}

#[test]
fn a_leg_is_forgotten_when_no_socket_has_been_there_for_so_long() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        let leg = scene.leg(LEG);
        let cookie = scene.lab.pod.cookie();
        let known = [(cookie, scene.lab.netns())].into();
        let (stream, peer, ours) = scene.shake(&with_block(scene.syn(leg), client(v6)));
        let legs = || scene.adopter.legs().expect("legs");
        let found = legs()[&cookie][0];
        assert_eq!(
            (found.client, found.dataplane(), found.pod()),
            (peer, Some(leg), Some(scene.pod))
        );
        let look = |patience| {
            let forgotten = scene.adopter.forget_unused(&known, patience);
            forgotten.expect("a look")
        };
        for _ in 0..3 {
            assert_eq!(look(Duration::ZERO), 0, "its socket lives");
        }
        scene.lab.send(&scene.plain(leg, SEQ, ours, RST, b""));
        wait_for("the socket's end", || scene.lab.sockets(8080) == 0);
        drop(stream);
        assert_eq!(look(Duration::ZERO), 0, "the first look that finds none");
        assert_eq!(look(Duration::from_secs(3_600)), 0, "not that long");
        // Used again meanwhile: it begins anew.
        let (stream, _, ours) = scene.shake(&with_block(scene.syn(leg), client(v6)));
        scene.lab.send(&scene.plain(leg, SEQ, ours, RST, b""));
        wait_for("the socket's end", || scene.lab.sockets(8080) == 0);
        drop(stream);
        assert_eq!(look(Duration::ZERO), 0, "the first look again");
        assert_eq!(look(Duration::ZERO), 1);
        assert!(legs().is_empty());
        // Both directions are gone: the pair is nobody's.
        let (_stream, peer, _) = scene.shake(&scene.syn(leg));
        assert_eq!(peer, leg);
    }
}

#[test]
fn legs_of_a_namespace_without_adopter_are_forgotten() {
    let mut scene = Scene::new(false);
    let _live = scene.shake(&with_block(scene.syn(scene.leg(LEG)), client(false)));
    let attachment = scene._attachment.take().expect("attached");
    scene.adopter.detach(attachment).expect("detach");
    let forgotten = scene.adopter.forget_unused(&BTreeMap::new(), Duration::from_secs(3_600));
    assert_eq!(forgotten.expect("legs"), 1);
    assert!(scene.adopter.legs().expect("legs").is_empty());
}

/// A predecessor's, of a pod that nobody wants any more: the successor does not know where it is.
#[test]
fn legs_of_a_namespace_that_is_not_known_are_forgotten() {
    let scene = Scene::new(false);
    let leg = scene.leg(LEG);
    let (stream, _, ours) = scene.shake(&with_block(scene.syn(leg), client(false)));
    let look = || {
        let forgotten = scene.adopter.forget_unused(&BTreeMap::new(), Duration::ZERO);
        forgotten.expect("a look")
    };
    for _ in 0..2 {
        assert_eq!(look(), 0, "its socket lives");
    }
    scene.lab.send(&scene.plain(leg, SEQ, ours, RST, b""));
    wait_for("the socket's end", || scene.lab.sockets(8080) == 0);
    drop(stream);
    assert_eq!(look(), 0, "the first look that finds none");
    assert_eq!(look(), 1);
    assert!(scene.adopter.legs().expect("legs").is_empty());
}

#[test]
fn other_connections_are_untouched() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        let _restored = scene.shake(&with_block(scene.syn(scene.leg(LEG)), client(v6)));
        let other = scene.leg(LEG + 1);
        let (mut stream, peer, ours) = scene.shake(&scene.syn(other));
        assert_eq!(peer, other);
        let request = scene.plain(other, SEQ, ours, PSH_ACK, b"as ever");
        scene.talk(&mut stream, &request, ours);
        // Forty bytes behind a SYN that are no block stay where they are: data, not acknowledged.
        let third = scene.leg(LEG + 2);
        let mut syn = scene.syn(third);
        syn.payload = vec![0; 40];
        assert_eq!(scene.shake(&syn).1, third);
    }
}

/// Of one table for all pods of a node. Legs that are there keep what they have.
#[test]
fn a_pod_leaves_others_room_for_their_clients() {
    let scene = Scene::new(false);
    let own = scene.lab.pod.cookie();
    let mut ports = LEG..;
    let mut shows = || {
        let leg = scene.leg(ports.next().expect("a port"));
        let (_, peer, _) = scene.shake(&with_block(scene.syn(leg), client(false)));
        peer.ip() == client(false).ip()
    };
    let note = |has, all| {
        let counts = [(own, has), (own + 1, all - has)].into();
        scene.adopter.note_legs(&counts).expect("a map");
    };
    for (has, all, may) in [(48_000, 49_000, true), (49_200, 49_200, false), (900, 65_200, true)] {
        note(has, all);
        assert_eq!(shows(), may, "{has} of {all}");
    }
    // What came since counts, too, and what has gone.
    note(2, 65_535);
    let leg = scene.leg(LEG - 1);
    let (_stream, _, ours) = scene.shake(&with_block(scene.syn(leg), client(false)));
    assert!(!shows());
    scene.lab.send(&scene.plain(leg, SEQ, ours, RST, b""));
    let known = [(own, scene.lab.netns())].into();
    wait_for("the leg's end", || {
        let looked = scene.adopter.forget_unused(&known, Duration::ZERO);
        looked.expect("a look") > 0
    });
    assert!(shows());
    assert_eq!(scene.count(Outcome::ClientHidden), 2);
}
