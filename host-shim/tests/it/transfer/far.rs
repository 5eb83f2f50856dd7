//! A host-shim of another node that does as a test wants it to: what is ready here waits for Go for
//! a bounded time, over whichever channel it comes, and what is kept of channels is bounded.

use super::{
    app::{App, connection, goes_on},
    between::listens,
    scene::{FAR_PORT, LONG, Scene},
    session::{MESSAGE_BYTES_MAX, Session},
};
use crate::daemon::{KEY, common::wait_for};
use baton_tcp_repair::{Frozen, encode};
use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    os::fd::OwnedFd,
};

const NODES: [(&str, &str); 2] = [("shop/a", "KEY"), ("shop/b", "KEY")];
/// Codes of `docs/adoption-wire.md`.
const HELLO: u8 = 1;
const OFFER: u8 = 3;
const TAKEN: u8 = 4;
const NO: u8 = 5;
const RECORD: u8 = 6;
const READY: u8 = 7;
const GO: u8 = 8;
const SPOKEN: u8 = 9;
const LOST: u8 = 10;
const UNDO: u8 = 11;
/// Of `between/mod.rs`.
const CHANNELS_MAX: usize = 256;
const SPOKEN_MAX: usize = 1_024;

/// A channel from the first pod to the second one.
struct Far {
    stream: TcpStream,
    session: Session,
    keys: [(u8, [u8; 32]); 1],
}

impl Far {
    /// Greeted.
    fn new(scene: &Scene) -> Self {
        let far = Self::try_new(scene);
        far.expect("it was closed")
    }

    /// `None` if it was closed.
    fn try_new(scene: &Scene) -> Option<Self> {
        let at = format!("10.9.0.3:{FAR_PORT}");
        let stream = scene.pods[0].within(|| TcpStream::connect(at));
        let stream = stream.expect("enter the pod").expect("it listens");
        stream.set_read_timeout(Some(LONG)).expect("an option");
        let keys = [(1, baton_api::transfer_key(&KEY))];
        let session = Session::initiate(&keys[0]).expect("randomness");
        let mut far = Self { stream, session, keys };
        far.flush();
        while !far.session.is_open() {
            far.read()?;
        }
        far.say(&[&[HELLO, 0, 1][..], b"shop"].concat());
        assert_eq!(far.try_hear()?, [&[HELLO, 0, 1][..], b"shop"].concat());
        Some(far)
    }

    fn flush(&mut self) {
        let out = std::mem::take(&mut self.session.out);
        // It may be closed, which reading shows.
        let _ = self.stream.write_all(&out);
    }

    fn read(&mut self) -> Option<()> {
        let mut space = [0; 4096];
        let length = self.stream.read(&mut space).ok().filter(|n| *n > 0)?;
        self.session.hear(&space[..length], &self.keys).expect("authentic");
        Some(())
    }

    fn say(&mut self, message: &[u8]) {
        assert!(self.session.say(message, &[]), "too long");
        self.flush();
    }

    fn says(&mut self, code: u8, id: u128, more: &[u8]) {
        self.say(&[&[code][..], &id.to_be_bytes(), more].concat());
    }

    fn try_hear(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(message) = self.session.next().expect("authentic") {
                return Some(message.to_vec());
            }
            self.read()?;
        }
    }

    /// Code and what is behind the id.
    fn answer(&mut self, id: u128) -> (u8, Vec<u8>) {
        let message = self.try_hear().expect("it was closed");
        assert_eq!(message[1..17], id.to_be_bytes());
        (message[0], message[17..].to_vec())
    }

    fn offers(&mut self, id: u128, number: u64, ends: (SocketAddr, SocketAddr)) {
        let mut more = number.to_be_bytes().to_vec();
        for end in [ends.0, ends.1] {
            let std::net::IpAddr::V4(v4) = end.ip() else { panic!("IPv4") };
            more.push(4);
            more.extend(v4.octets());
            more.extend(end.port().to_be_bytes());
        }
        self.says(OFFER, id, &more);
    }
}

/// A connection of the first pod, frozen, and ready in the second one.
struct Ready {
    scene: Scene,
    far: Far,
    app: App,
    /// That it has taken it into.
    socket: (u64, OwnedFd),
    client: TcpStream,
    server: TcpStream,
    frozen: Frozen,
}

const ID: u128 = 77;

fn ready() -> Ready {
    let scene = Scene::between(NODES);
    let (_listener, client, server) = connection(&scene);
    let (app, _there) = (App::new(&scene, 1), listens(&scene));
    wait_for("the door is open", || scene.probe(1).1.between_nodes);
    let mut far = Far::new(&scene);
    let number = scene.probe(1).0;
    let local: SocketAddr = "10.9.0.3:80".parse().expect("an address");
    let remote = client.local_addr().expect("connected");
    // Who does not know the pod's number was not told of it by a dataplane.
    for wrong in [0, number ^ 1] {
        far.offers(ID, wrong, (local, remote));
        assert_eq!(far.answer(ID), (NO, b"no_pod".to_vec()));
    }
    far.offers(ID, number, (local, remote));
    let taken = app.offered();
    let socket = (taken, app.take(&scene, taken));
    assert_eq!(far.answer(ID).0, TAKEN);
    let copy = server.try_clone().expect("a descriptor");
    let mut frozen = Frozen::new(copy.into()).expect("frozen");
    let mut connection = frozen.export().expect("exported");
    (connection.local, connection.remote) = (local, remote);
    far.says(RECORD, ID, &encode(&connection));
    assert_eq!(far.answer(ID).0, READY);
    Ready { scene, far, app, socket, client, server, frozen }
}

#[test]
fn what_nobody_says_go_for_is_given_up_without_a_word() {
    let mut r = ready();
    // The application is told when it is.
    r.app.back();
    wait_for("it is counted", || r.scene.received(1, "abandoned") == 1);
    r.frozen.abort().expect("thawed");
    goes_on(&r.client, &r.server);
    r.far.says(GO, ID, &[]);
    assert_eq!(r.far.answer(ID).0, LOST);
}

#[test]
fn go_comes_over_another_channel_and_is_answered_alike_twice() {
    let r = ready();
    drop(r.far);
    let mut far = Far::new(&r.scene);
    r.frozen.commit().expect("parted with");
    r.scene.route_to(1);
    far.says(GO, ID, &[]);
    r.app.gets(r.socket.0);
    assert_eq!(far.answer(ID).0, SPOKEN);
    far.says(GO, ID, &[]);
    assert_eq!(far.answer(ID).0, SPOKEN);
    far.says(GO, ID + 1, &[]);
    assert_eq!(far.answer(ID + 1).0, LOST);
    wait_for("it is counted", || r.scene.received(1, "taken") == 1);
    goes_on(&r.client, &TcpStream::from(r.socket.1));
}

/// Its former pod may have parted with it.
#[test]
fn a_host_shim_that_ends_waits_for_the_go_of_what_is_ready() {
    let mut r = ready();
    let number = r.scene.probe(1).0;
    let mut remote = r.client.local_addr().expect("connected");
    let local: SocketAddr = "10.9.0.3:80".parse().expect("an address");
    remote.set_port(remote.port() ^ 1);
    r.far.offers(ID + 1, number, (local, remote));
    r.app.offered();
    r.scene.daemon_of(1).signal("TERM");
    // What is not ready is given up.
    r.app.back();
    assert_eq!(r.far.answer(ID + 1), (NO, b"lease_over".to_vec()));
    r.frozen.commit().expect("parted with");
    r.scene.route_to(1);
    r.far.says(GO, ID, &[]);
    r.app.gets(r.socket.0);
    assert_eq!(r.far.answer(ID).0, SPOKEN);
    goes_on(&r.client, &TcpStream::from(r.socket.1));
}

#[test]
fn an_application_that_leaves_what_is_ready_has_it_reset() {
    let mut r = ready();
    drop(r.app);
    r.frozen.commit().expect("parted with");
    r.scene.route_to(1);
    r.far.says(GO, ID, &[]);
    assert_eq!(r.far.answer(ID).0, LOST);
    wait_for("it is counted", || r.scene.received(1, "reset") == 1);
    let ended = (&r.client).read(&mut [0]).expect_err("it was reset");
    assert_eq!(ended.kind(), ErrorKind::ConnectionReset);
}

/// A Go that comes again is answered as before for as many as are remembered.
#[test]
fn what_was_given_is_remembered_of_as_many() {
    let mut r = ready();
    let mut connection = r.frozen.export().expect("exported");
    let number = r.scene.probe(1).0;
    r.far.says(UNDO, ID, &[]);
    r.app.back();
    connection.local = "10.9.0.3:80".parse().expect("an address");
    // What these sockets say to the client draws resets, as their ports are nobody's.
    let port = |n: usize| 1_024 + u16::try_from(n).expect("few");
    for n in 0..=SPOKEN_MAX {
        let id = ID + 1 + n as u128;
        connection.remote.set_port(port(n));
        let ends = (connection.local, connection.remote);
        r.far.offers(id, number, ends);
        let number_here = r.app.offered();
        let _socket = r.app.take(&r.scene, number_here);
        assert_eq!(r.far.answer(id).0, TAKEN);
        r.far.says(RECORD, id, &encode(&connection));
        assert_eq!(r.far.answer(id), (READY, vec![]));
        r.far.says(GO, id, &[]);
        r.app.gets(number_here);
        assert_eq!(r.far.answer(id).0, SPOKEN);
    }
    for (n, answer) in [(0, LOST), (1, SPOKEN), (SPOKEN_MAX, SPOKEN)] {
        let id = ID + 1 + n as u128;
        r.far.says(GO, id, &[]);
        assert_eq!(r.far.answer(id).0, answer, "{n}");
    }
    r.frozen.abort().expect("thawed");
    goes_on(&r.client, &r.server);
}

#[test]
fn channels_are_bounded() {
    let scene = Scene::between(NODES);
    let (_app, _there) = (App::new(&scene, 1), listens(&scene));
    wait_for("the door is open", || scene.probe(1).1.between_nodes);
    let mut open: Vec<_> = (0..CHANNELS_MAX).map(|_| Far::new(&scene)).collect();
    let end: SocketAddr = "10.9.0.3:80".parse().expect("an address");
    let is_heard = || {
        let far = Far::try_new(&scene);
        far.is_some_and(|mut far| {
            far.offers(ID, 0, (end, end));
            far.try_hear().is_some()
        })
    };
    assert!(!is_heard());
    let line = "baton_shim_transfer_channels_ended_total{reason=\"too_many\"}";
    assert_eq!(scene.figure_of(1, line), 1.0);
    // One that ends makes room.
    open.pop();
    wait_for("there is room", is_heard);
}

#[test]
fn what_channels_keep_is_bounded() {
    let scene = Scene::between(NODES);
    let (_app, _there) = (App::new(&scene, 1), listens(&scene));
    wait_for("the door is open", || scene.probe(1).1.between_nodes);
    let memory = || {
        let line = "baton_shim_transfer_channels_ended_total{reason=\"memory\"}";
        scene.figure_of(1, line)
    };
    // Messages that begin and never end: four are kept.
    let mut begun: Vec<Far> = Vec::new();
    while memory() == 0.0 {
        assert!(begun.len() < 8, "nothing bounds it");
        let mut far = Far::new(&scene);
        assert!(far.session.say(&vec![0; MESSAGE_BYTES_MAX], &[]));
        let out = std::mem::take(&mut far.session.out);
        // It may be closed meanwhile.
        let _ = far.stream.write_all(&out[..out.len() - 1]);
        begun.push(far);
    }
    assert!(begun.len() > 3, "{}", begun.len());
}
