//! Client blocks (docs/adoption-wire.md, The client block): the pod sees the client, the wire sees
//! the dataplane, and nobody without the key says who a client is.

mod messages;

use crate::common::{
    Lab, POD_MAC,
    answer::{ACKED, KEY, NO_LISTENER, SEQ, adopter, answer_to, data},
    ends, run,
    segment::{
        ACK, ADOPT, Checksum, FIN_ACK, Message, PSH_ACK, RST, Received, SYN, Segment, block,
    },
    wait_for,
};
use baton_adopter::{Adopter, Attachment, Outcome};
use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::atomic::Ordering,
    time::Duration,
};

const LEG: u16 = 40_000;
const CLIENT_PORT: u16 = 51_000;
/// Segments are no larger than half of it, and an MTU is believed only where it makes them smaller.
const WINDOW: u16 = 64_000;
const SYN_ACK: u8 = 0x12;

struct Scene {
    lab: Lab,
    adopter: Adopter,
    _attachment: Option<Attachment>,
    listener: TcpListener,
    pod: SocketAddr,
    v6: bool,
}

/// Somebody behind the dataplane, in no network of the pod's.
fn client(v6: bool) -> SocketAddr {
    let ip: IpAddr = match v6 {
        false => "203.0.113.9".parse().expect("v4"),
        true => "2001:db8::9".parse().expect("v6"),
    };
    SocketAddr::new(ip, CLIENT_PORT)
}

fn number() -> u64 {
    crate::common::segment::NAMESPACE.load(Ordering::Relaxed)
}

fn with_block(segment: Segment, client: SocketAddr) -> Segment {
    let payload = block(&segment, client, number(), 1, &KEY);
    Segment { payload, ..segment }
}

impl Scene {
    fn new(v6: bool) -> Self {
        let lab = Lab::new();
        let (pod, _) = ends(v6, 8080, LEG);
        let listener = lab.listen(pod);
        let (adopter, attachment) = adopter(&lab);
        // Clients are behind the dataplane, which is the pod's gateway as well.
        let (family, via) = if v6 { ("-6", "fd07::2") } else { ("-4", "10.7.0.2") };
        run(&format!("ip {family} -n {} route add default via {via}", lab.netns_name()));
        Self { lab, adopter, _attachment: Some(attachment), listener, pod, v6 }
    }

    fn leg(&self, port: u16) -> SocketAddr {
        ends(self.v6, 8080, port).1
    }

    fn count(&self, outcome: Outcome) -> u64 {
        self.lab.count(&self.adopter, outcome)
    }

    /// Without timestamps, so that what follows needs none.
    fn syn(&self, leg: SocketAddr) -> Segment {
        Segment {
            from: leg,
            to: self.pod,
            seq: SEQ.wrapping_sub(1),
            ack: 0,
            flags: SYN,
            window: WINDOW,
            options: vec![2, 4, 5, 120],
            payload: Vec::new(),
        }
    }

    /// For a block of 40 bytes, which end in front of `SEQ`.
    fn adopt(&self, leg: SocketAddr) -> Segment {
        Message::adopt().segment(leg, self.pod, SEQ.wrapping_sub(40), ACKED, &KEY)
    }

    fn receive(&self, leg: SocketAddr, what: &str) -> Received {
        let received = self.lab.receive(leg);
        let received = received.unwrap_or_else(|| panic!("nothing came: {what}"));
        assert_ne!(received.checksum, Checksum::Wrong, "{what}: {received:?}");
        assert_eq!(received.segment.from, self.pod);
        received
    }

    /// A handshake by `leg` whose SYN is as given; returns what the pod accepted and its peer, and
    /// the number of the next byte of the pod's.
    fn shake(&self, syn: &Segment) -> (TcpStream, SocketAddr, u32) {
        self.lab.send(syn);
        let answer = self.receive(syn.from, "a SYN-ACK").segment;
        assert_eq!((answer.flags, answer.ack), (SYN_ACK, SEQ));
        let next = answer.seq.wrapping_add(1);
        self.lab.send(&self.plain(syn.from, SEQ, next, ACK, b""));
        let (stream, peer) = self.listener.accept().expect("accept");
        assert_eq!(stream.peer_addr().expect("a peer"), peer);
        assert_eq!(stream.local_addr().expect("an address"), self.pod);
        (stream, peer, next)
    }

    fn plain(&self, leg: SocketAddr, seq: u32, ack: u32, flags: u8, payload: &[u8]) -> Segment {
        Segment {
            from: leg,
            to: self.pod,
            seq,
            ack,
            flags,
            window: WINDOW,
            options: Vec::new(),
            payload: payload.to_vec(),
        }
    }

    /// A request and a response by the leg.
    fn talk(&self, stream: &mut TcpStream, request: &Segment, ours: u32) -> u32 {
        self.lab.send(request);
        let mut read = vec![0; request.payload.len()];
        stream.read_exact(&mut read).expect("read");
        assert_eq!(read, request.payload);
        stream.write_all(b"an answer").expect("write");
        loop {
            let answer = self.receive(request.from, "the response").segment;
            if !answer.payload.is_empty() {
                assert_eq!((answer.payload.as_slice(), answer.seq), (&b"an answer"[..], ours));
                return ours.wrapping_add(9);
            }
        }
    }

    /// Sends it, and sees that it is counted and that neither a socket nor an answer comes of it.
    fn refuse(&self, what: &str, segment: &Segment, outcome: Outcome) {
        let (before, sockets) = (self.count(outcome), self.lab.sockets(8080));
        self.lab.send(segment);
        wait_for(what, || self.count(outcome) == before + 1);
        assert_eq!(self.lab.sockets(8080), sockets, "{what}");
        let echo = self.lab.receive_within(segment.from, Duration::ZERO);
        assert!(echo.is_none(), "{what} drew {echo:?}");
    }
}

#[test]
fn a_syn_shows_the_client_and_the_wire_the_leg() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        let leg = scene.leg(LEG);
        let (mut stream, peer, ours) = scene.shake(&with_block(scene.syn(leg), client(v6)));
        assert_eq!(peer, client(v6));
        let request = scene.plain(leg, SEQ, ours, PSH_ACK, b"who am I?");
        let ours = scene.talk(&mut stream, &request, ours);
        // The end goes to the leg too.
        drop(stream);
        let end = scene.receive(leg, "a FIN").segment;
        assert_eq!((end.flags, end.seq), (FIN_ACK, ours));
        assert_eq!(scene.count(Outcome::ClientRestored), 1);
        assert_eq!(scene.count(Outcome::ClientSpoofed), 0);
    }
}

#[test]
fn an_adoption_shows_the_client() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        let leg = scene.leg(LEG);
        let adoption = with_block(scene.adopt(leg), client(v6));
        scene.lab.send(&adoption);
        let (mut stream, peer) = scene.listener.accept().expect("accept");
        assert_eq!(peer, client(v6));
        let request = data(leg, scene.pod, SEQ, ACKED, PSH_ACK, b"who am I?");
        scene.talk(&mut stream, &request, ACKED);
        // A copy finds its socket, and changes nothing.
        scene.lab.send(&adoption);
        wait_for("a repetition", || scene.count(Outcome::Repeated) == 1);
        assert_eq!(scene.count(Outcome::Adopted), 1);
        assert_eq!(scene.count(Outcome::ClientRestored), 1);
        assert_eq!(scene.lab.sockets(8080), 1);
    }
}

#[test]
fn checksums_that_are_left_to_the_device_stay_right() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        let leg = scene.leg(LEG);
        scene.lab.send_partial(&with_block(scene.adopt(leg), client(v6)));
        let (mut stream, peer) = scene.listener.accept().expect("accept");
        assert_eq!(peer, client(v6));
        let request = data(leg, scene.pod, SEQ, ACKED, PSH_ACK, b"who am I?");
        scene.lab.send_partial(&request);
        let mut read = [0; 9];
        stream.read_exact(&mut read).expect("read");
        let other = scene.leg(LEG + 1);
        scene.lab.send_partial(&with_block(scene.syn(other), SocketAddr::new(client(v6).ip(), 1)));
        let answer = scene.receive(other, "a SYN-ACK").segment;
        assert_eq!(answer.flags, SYN_ACK);
    }
}

#[test]
fn a_refused_adoption_is_answered_to_the_leg_without_the_block() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        let leg = scene.leg(LEG);
        let lab = &scene.lab;
        let nobody = SocketAddr::new(scene.pod.ip(), 8081);
        let adoption = Message::adopt().segment(leg, nobody, SEQ.wrapping_sub(40), ACKED, &KEY);
        let adoption = with_block(adoption, client(v6));
        lab.send(&adoption);
        assert_eq!(answer_to(lab, &adoption), (NO_LISTENER, 0));
    }
}

#[test]
fn the_same_client_by_two_legs_has_the_second_legs_port() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        let (one, two, three) = (scene.leg(LEG), scene.leg(LEG + 1), scene.leg(LEG + 2));
        let first = scene.shake(&with_block(scene.syn(one), client(v6)));
        let second = scene.shake(&with_block(scene.syn(two), client(v6)));
        assert_eq!(first.1, client(v6));
        assert_eq!(second.1, SocketAddr::new(client(v6).ip(), LEG + 1));
        scene.lab.send(&with_block(scene.adopt(three), client(v6)));
        let third = scene.listener.accept().expect("accept");
        assert_eq!(third.1, SocketAddr::new(client(v6).ip(), LEG + 2));
        // Each has its own bytes.
        let (mut a, mut b) = (first.0, second.0);
        let request = scene.plain(two, SEQ, second.2, PSH_ACK, b"second");
        scene.talk(&mut b, &request, second.2);
        let request = scene.plain(one, SEQ, first.2, PSH_ACK, b"first");
        scene.talk(&mut a, &request, first.2);
    }
}

/// The client comes back by another leg, and has its port again.
#[test]
fn a_pair_whose_leg_has_ended_is_the_next_ones() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        let (one, two) = (scene.leg(LEG), scene.leg(LEG + 1));
        let (stream, peer, ours) = scene.shake(&with_block(scene.syn(one), client(v6)));
        assert_eq!(peer, client(v6));
        scene.lab.send(&scene.plain(one, SEQ, ours, RST, b""));
        wait_for("the socket's end", || scene.lab.sockets(8080) == 0);
        drop(stream);
        scene.lab.send(&with_block(scene.adopt(two), client(v6)));
        let (mut stream, peer) = scene.listener.accept().expect("accept");
        assert_eq!(peer, client(v6));
        let request = data(two, scene.pod, SEQ, ACKED, PSH_ACK, b"who am I?");
        scene.talk(&mut stream, &request, ACKED);
        assert_eq!(scene.adopter.legs().expect("legs").len(), 1);
    }
}

#[test]
fn a_client_connects_itself_where_its_leg_has_ended() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        // A neighbour, first by a dataplane that has another address, then without it.
        let (client, leg) = (scene.leg(CLIENT_PORT), SocketAddr::new(client(v6).ip(), LEG));
        let (stream, peer, ours) = scene.shake(&with_block(scene.syn(leg), client));
        assert_eq!(peer, client);
        let own = scene.syn(client);
        scene.refuse("while its leg lives", &own, Outcome::ClientSpoofed);
        scene.lab.send(&scene.plain(leg, SEQ, ours, RST, b""));
        wait_for("the socket's end", || scene.lab.sockets(8080) == 0);
        drop(stream);
        // The namespace has all of the table that it may have: what gives way makes room.
        let counts = [(scene.lab.pod.cookie(), 49_152)].into();
        scene.adopter.note_legs(&counts).expect("a map");
        let (_stream, peer, _) = scene.shake(&own);
        assert_eq!(peer, client);
        assert!(scene.adopter.legs().expect("legs").is_empty());
        let (next, shown) = (scene.leg(LEG + 1), SocketAddr::new(leg.ip(), CLIENT_PORT));
        let (_stream, peer, _) = scene.shake(&with_block(scene.syn(next), shown));
        assert_eq!(peer, shown);
    }
}

#[test]
fn a_pair_that_is_taken_by_a_connection_of_the_clients_own() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        // A neighbour that speaks to the pod without the dataplane.
        let direct = scene.leg(CLIENT_PORT);
        let own = scene.shake(&scene.syn(direct));
        assert_eq!(own.1, direct);
        let leg = scene.leg(LEG);
        let shown = SocketAddr::new(direct.ip(), LEG);
        assert_eq!(leg, shown);
        // By another address of the dataplane's, so that the leg's port shows something.
        let other = SocketAddr::new(client(v6).ip(), LEG + 5);
        let restored = scene.shake(&with_block(scene.syn(other), direct));
        assert_eq!(restored.1, SocketAddr::new(direct.ip(), LEG + 5));
        // That is in use too.
        let third = SocketAddr::new(client(v6).ip(), LEG + 6);
        let _taken = scene.shake(&scene.syn(SocketAddr::new(direct.ip(), LEG + 6)));
        scene.refuse(
            "both ports in use",
            &with_block(scene.syn(third), direct),
            Outcome::ClientInUse,
        );
    }
}

#[test]
fn blocks_that_are_not_a_key_holders() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        let leg = scene.leg(LEG);
        for segment in [scene.syn(leg), scene.adopt(leg)] {
            let bad = |payload| Segment { payload, ..segment.clone() };
            let made = |number, epoch, key: &[u8; 16]| {
                bad(block(&segment, client(v6), number, epoch, key))
            };
            let refuse =
                |what: &str, segment: &Segment| scene.refuse(what, segment, Outcome::ClientBad);
            refuse("another key", &made(number(), 1, &[3; 16]));
            refuse("no key of that epoch", &made(number(), 2, &KEY));
            refuse("another namespace", &made(number() ^ 1, 1, &KEY));
            let good = block(&segment, client(v6), number(), 1, &KEY);
            // Flags, port, address, namespace, tag; and what must be 0.
            for at in [2, 3, 5, 7, 8, 23, 24, 31, 32, 39] {
                let mut other = good.clone();
                other[at] ^= 1;
                refuse("a changed byte", &bad(other));
            }
            // The same block on another leg, and on another number.
            let mut elsewhere = bad(good.clone());
            elsewhere.seq = elsewhere.seq.wrapping_add(1);
            if segment.flags == SYN {
                refuse("another number", &elsewhere);
            }
            let of_other = block(&scene.syn(scene.leg(LEG + 1)), client(v6), number(), 1, &KEY);
            refuse("another leg's", &bad(of_other));
            let other_family = block(&segment, client(!v6), number(), 1, &KEY);
            refuse("another family", &bad(other_family));
        }
        let mut frame =
            with_block(scene.syn(leg), client(v6)).frame(crate::common::PEER_MAC, POD_MAC);
        let last = frame.len() - 1;
        frame[last] ^= 1;
        scene.lab.peer.send(&frame, None);
        wait_for("a wrong checksum", || scene.count(Outcome::BadChecksum) == 1);
        assert_eq!(scene.count(Outcome::ClientRestored), 0);
        assert_eq!(Message::adopt().exid, ADOPT);
    }
}

#[test]
fn what_comes_from_a_clients_pair_itself_is_dropped() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        let leg = scene.leg(LEG);
        let (mut stream, peer, ours) = scene.shake(&with_block(scene.syn(leg), client(v6)));
        assert_eq!(peer, client(v6));
        for flags in [PSH_ACK, RST, SYN] {
            let forged = scene.plain(client(v6), SEQ, ours, flags, b"not from the dataplane");
            scene.refuse("from the client's pair", &forged, Outcome::ClientSpoofed);
            // The kernel takes out tags of VLAN 0, as often as there are.
            for tags in 1..=2 {
                let before = scene.count(Outcome::ClientSpoofed);
                let mut frame = forged.frame(crate::common::PEER_MAC, POD_MAC);
                for _ in 0..tags {
                    frame.splice(12..12, [0x81, 0, 0x20, 0]);
                }
                scene.lab.peer.send(&frame, None);
                wait_for("a tagged one", || scene.count(Outcome::ClientSpoofed) == before + 1);
            }
        }
        let request = scene.plain(leg, SEQ, ours, PSH_ACK, b"still there");
        scene.talk(&mut stream, &request, ours);
    }
}

#[test]
fn addresses_that_cannot_be_shown_are_hidden() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        let unfit: &[&str] = match v6 {
            false => &["10.7.0.1", "127.0.0.1", "224.0.0.1", "0.0.0.0"],
            true => &["fd07::1", "::1", "ff02::1", "::"],
        };
        for (n, ip) in unfit.iter().enumerate() {
            let leg = scene.leg(LEG + n as u16);
            let client = SocketAddr::new(ip.parse().expect("an address"), CLIENT_PORT);
            let (_stream, peer, _) = scene.shake(&with_block(scene.syn(leg), client));
            assert_eq!(peer, leg, "{ip}");
            assert_eq!(scene.count(Outcome::ClientHidden), n as u64 + 1);
        }
        assert_eq!(scene.count(Outcome::ClientRestored), 0);
    }
}

#[test]
fn a_leg_that_is_used_again() {
    for v6 in [false, true] {
        let scene = Scene::new(v6);
        let leg = scene.leg(LEG);
        let other = SocketAddr::new(client(v6).ip(), CLIENT_PORT + 1);
        let (stream, peer, ours) = scene.shake(&with_block(scene.syn(leg), client(v6)));
        assert_eq!(peer, client(v6));
        // While its socket lives, another client's SYN is the first one's, as for any stack.
        scene.lab.send(&with_block(scene.syn(leg), other));
        let challenge = scene.receive(leg, "a challenge").segment;
        assert_eq!((challenge.flags, challenge.seq), (ACK, ours));
        scene.lab.send(&scene.plain(leg, SEQ, ours, RST, b""));
        wait_for("the socket's end", || scene.lab.sockets(8080) == 0);
        drop(stream);
        let (stream, peer, ours) = scene.shake(&with_block(scene.syn(leg), other));
        assert_eq!(peer, other);
        scene.lab.send(&scene.plain(leg, SEQ, ours, RST, b""));
        wait_for("the socket's end", || scene.lab.sockets(8080) == 0);
        drop(stream);
        // Without a block.
        let (_stream, peer, _) = scene.shake(&scene.syn(leg));
        assert_eq!(peer, leg);
        assert_eq!(scene.count(Outcome::ClientRestored), 2);
    }
}
