//! Connections whose client has closed its direction and waits for the rest of an answer.

use crate::{
    export::{bytes, exact, restored_in},
    scene::{Scene, arrived, until},
};
use baton_tcp_repair::{Connection, Frozen, TcpState};
use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
};

const REQUEST: &[u8] = b"GET / HTTP/1.0\r\n\r\n";

fn state(socket: &TcpStream) -> TcpState {
    let copy = socket.try_clone().expect("a descriptor");
    let frozen = Frozen::new(copy.into()).expect("it is open");
    let at = frozen.position().expect("numbers");
    frozen.abort().expect("it goes on");
    at.state
}

/// To that pod, while nobody holds the client back.
fn moves(scene: &Scene, server: TcpStream, pod: usize) -> (Connection, TcpStream) {
    let mut frozen = Frozen::new(server.into()).expect("it is open");
    let connection = frozen.export().expect("all of it");
    let restoring = restored_in(scene, pod, &connection);
    frozen.commit().expect("the old one ends");
    scene.route_to(pod);
    let socket = restoring.commit().expect("it speaks");
    (connection, crate::scene::patient(socket.into()))
}

/// What the client had sent is read, then its end; what it gets is whole; nobody resets or repeats
/// anything, and the pair is free soon after.
fn ends_well(scene: &Scene, client: &TcpStream, server: TcpStream, unread: &[u8], rest: &[u8]) {
    exact(&server, unread);
    assert_eq!((&server).read(&mut [0; 1]).expect("the end"), 0);
    let all = rest.to_vec();
    let mut answer = server.try_clone().expect("a descriptor");
    let writer = std::thread::spawn(move || answer.write_all(&all));
    exact(client, rest);
    writer.join().expect("no panic").expect("open");
    drop(server);
    assert_eq!((&*client).read(&mut [0; 1]).expect("a clean end"), 0);
    let end = client.local_addr().expect("its end").port();
    for space in [&scene.client, &scene.pods[0], &scene.pods[1]] {
        assert_eq!(space.count("OutRsts"), 0);
    }
    for pod in &scene.pods {
        until("the pair is free", || !pod.has_peer(end));
    }
}

#[test]
fn it_gets_the_rest_of_its_answer() {
    for v6 in [false, true] {
        for (read, len) in [(0, 0), (REQUEST.len(), 0), (5, 64 << 10), (5, 1 << 20)] {
            let scene = Scene::new();
            let (_listener, mut client, server) = scene.connect(v6);
            client.write_all(REQUEST).expect("open");
            client.shutdown(Shutdown::Write).expect("open");
            until("the FIN arrives", || state(&server) == TcpState::CloseWait);
            exact(&server, &REQUEST[..read]);
            // More than the client takes: some of it was never sent.
            server.set_nonblocking(true).expect("an option");
            let down = bytes(2, len);
            let written = match (&server).write(&down) {
                Err(full) if full.kind() == ErrorKind::WouldBlock => 0,
                written => written.expect("open"),
            };
            server.set_nonblocking(false).expect("an option");

            let before = scene.client.count("RetransSegs");
            let (first, server) = moves(&scene, server, 1);
            assert!(first.reads_end);
            // And back.
            let (second, server) = moves(&scene, server, 0);
            assert_eq!((second.read_to, second.reads_end), (first.read_to, true));
            assert_eq!(second.unread, &REQUEST[read..]);
            exact(&client, &down[..written]);
            ends_well(&scene, &client, server, &REQUEST[read..], &bytes(3, 300_000));
            assert_eq!(scene.client.count("RetransSegs"), before, "its FIN again");
        }
    }
}

/// The FIN arrives at a frozen socket, and comes again at the restored one.
#[test]
fn one_that_closes_in_between_is_heard_by_the_new_socket() {
    for v6 in [false, true] {
        let scene = Scene::new();
        let (_listener, mut client, server) = scene.connect(v6);
        client.write_all(REQUEST).expect("open");
        arrived(&server, REQUEST.len());
        let mut frozen = Frozen::new(server.into()).expect("it is open");
        client.shutdown(Shutdown::Write).expect("open");
        let connection = frozen.export().expect("all of it");
        assert!(!connection.reads_end);
        let restoring = restored_in(&scene, 1, &connection);
        frozen.commit().expect("the old one ends");
        scene.route_to(1);
        let server = restoring.commit().expect("it speaks");
        let server = crate::scene::patient(server.into());
        ends_well(&scene, &client, server, REQUEST, &bytes(3, 300_000));
    }
}

/// The client goes on to send what nobody reads, as it would have before.
#[test]
fn an_application_that_reads_no_more_does_not_close_for_its_client() {
    let scene = Scene::new();
    let (_listener, client, server) = scene.connect(false);
    server.shutdown(Shutdown::Read).expect("open");
    let (connection, server) = moves(&scene, server, 1);
    assert!(connection.reads_end);
    assert_eq!((&server).read(&mut [0; 1]).expect("the end"), 0);
    for (mut from, to) in [(&client, &server), (&server, &client)] {
        from.write_all(b"more").expect("open");
        exact(to, b"more");
    }
}
