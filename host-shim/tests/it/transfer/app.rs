//! An application that says what a test wants it to say.

use super::scene::{LONG, PORT, Scene};
use crate::daemon::common::wait_for;
use baton_sdk::{
    packet::{self, Nothing},
    wire::{Message, PACKET_BYTES_MAX, VERSION},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, OwnedFd},
};

/// Its link, and in which pod it is.
pub struct App(pub OwnedFd, usize);

impl App {
    /// Connected, but silent.
    pub fn silent(scene: &Scene, pod: usize) -> Self {
        let mut socket = None;
        // It serves before it is there.
        wait_for("host-shim is there", || {
            let reached = scene.pods[pod].within(packet::reach);
            socket = reached.expect("enter the pod").ok();
            socket.is_some()
        });
        Self(socket.expect("it is"), pod)
    }

    /// Known to host-shim.
    pub fn new(scene: &Scene, pod: usize) -> Self {
        let app = Self::silent(scene, pod);
        app.say(&Message::Hello { version: VERSION, ports: vec![PORT] });
        assert!(matches!(app.hear(), Message::Welcome { .. }));
        app
    }

    pub fn say(&self, message: &Message) {
        packet::send(&self.0, message, None).expect("room");
    }

    pub fn give(&self, message: &Message, descriptor: impl AsFd) {
        packet::send(&self.0, message, Some(descriptor.as_fd())).expect("room");
    }

    fn next(&self) -> Result<(Message, Option<OwnedFd>), Nothing> {
        let mut space = vec![0; PACKET_BYTES_MAX];
        let patience = Timespec::try_from(LONG).expect("a minute");
        let mut wakes = [PollFd::new(&self.0, PollFlags::IN)];
        assert_eq!(poll(&mut wakes, Some(&patience)), Ok(1), "nothing comes");
        packet::receive(&self.0, &mut space, &mut Vec::new())
    }

    pub fn hear(&self) -> Message {
        self.next().expect("a message").0
    }

    /// Takes an offer into a new socket of its pod.
    pub fn take(&self, scene: &Scene, id: u64) -> OwnedFd {
        let local = SocketAddr::from(([0; 4], 0));
        let socket = scene.pods[self.1].within(|| packet::new_socket(local));
        let socket = socket.expect("enter the pod").expect("a socket");
        self.give(&Message::Take { id }, &socket);
        socket
    }

    /// The connection is in that socket.
    pub fn gets(&self, id: u64) {
        assert_eq!(self.hear(), Message::Yours { id });
    }

    /// The number of the Transfer that asks for a connection.
    pub fn wanted(&self) -> u64 {
        match self.hear() {
            Message::Want { id, .. } => id,
            other => panic!("{other:?}"),
        }
    }

    pub fn offered(&self) -> u64 {
        match self.hear() {
            Message::Offer { id, .. } => id,
            other => panic!("{other:?}"),
        }
    }

    /// Why nothing comes of it.
    pub fn back(&self) -> String {
        match self.hear() {
            Message::Back { reason, .. } => reason,
            other => panic!("{other:?}"),
        }
    }

    /// What host-shim says before it closes.
    pub fn bye(&self) -> String {
        let reason = match self.hear() {
            Message::Bye { reason } => reason,
            other => panic!("{other:?}"),
        };
        assert!(matches!(self.next(), Err(Nothing::Closed)));
        reason
    }
}

/// A connection to the first pod, and its accepted end.
pub fn connection(scene: &Scene) -> (TcpListener, TcpStream, TcpStream) {
    let at = format!("0.0.0.0:{PORT}");
    let listener = scene.pods[0].within(|| TcpListener::bind(at));
    let listener = listener.expect("enter the pod").expect("the port is free");
    let client = scene.connect(false);
    let (server, _) = listener.accept().expect("a connection");
    server.set_read_timeout(Some(LONG)).expect("an option");
    (listener, client, server)
}

/// Both directions work.
pub fn goes_on(mut client: &TcpStream, mut server: &TcpStream) {
    let mut got = [0; 4];
    client.write_all(b"ping").expect("open");
    server.read_exact(&mut got).expect("open");
    assert_eq!(&got, b"ping");
    server.write_all(b"pong").expect("open");
    client.read_exact(&mut got).expect("open");
    assert_eq!(&got, b"pong");
}
