//! A host-shim that says what a test wants, in a network namespace of its own.

use baton_sdk::{
    packet::{self, Nothing},
    wire::{Message, PACKET_BYTES_MAX, VERSION},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{SocketFlags, accept_with},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use std::{
    fs::File,
    net::{TcpListener, TcpStream},
    os::fd::{AsFd, OwnedFd},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

/// Longer than anything here takes.
pub const LONG: Duration = Duration::from_secs(30);

/// A network namespace, entered by the thread that makes it; removed on drop.
pub struct Space(String);

impl Space {
    /// What the calling thread makes from now on, threads too, is in it.
    pub fn enter() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("bt-{}-{number}-sdk", std::process::id());
        ip(&["netns", "add", &name]);
        ip(&["-n", &name, "link", "set", "lo", "up"]);
        let file = File::open(format!("/run/netns/{name}")).expect("just made");
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .expect("root enters namespaces");
        Self(name)
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        ip(&["netns", "del", &self.0]);
    }
}

fn ip(arguments: &[&str]) {
    let done = Command::new("ip").args(arguments).output();
    let done = done.expect("iproute2 is there");
    assert!(done.status.success(), "ip {arguments:?}: {done:?}");
}

fn readable(fd: impl AsFd) {
    let patience = Timespec::try_from(LONG).expect("a while");
    let mut wakes = [PollFd::new(&fd, PollFlags::IN)];
    assert_eq!(poll(&mut wakes, Some(&patience)), Ok(1), "nothing comes");
}

pub struct Shim(OwnedFd);

impl Shim {
    pub fn new() -> Self {
        Self(packet::open().expect("the name is free"))
    }

    /// An application connects.
    pub fn accept(&self) -> Application {
        readable(&self.0);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Application(accept_with(&self.0, flags).expect("one waits"))
    }

    /// An application connects, and listens on these ports.
    pub fn greet(&self) -> (Application, Vec<u16>) {
        let application = self.accept();
        let (Message::Hello { ports, version }, None) = application.hear() else {
            panic!("Hello comes first");
        };
        assert_eq!(version, VERSION);
        application.say(&Message::Welcome { version });
        (application, ports)
    }
}

pub struct Application(OwnedFd);

impl Application {
    pub fn say(&self, message: &Message) {
        packet::send(&self.0, message, None).expect("room");
    }

    /// It takes the offer with this number: a connection comes into its socket, in place of one
    /// that moves. Its client's end, and a copy of it.
    pub fn gives(&self, id: u64) -> (TcpStream, TcpStream) {
        let (take, socket) = self.hear();
        assert_eq!(take, Message::Take { id });
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let socket = socket.expect("a socket");
        let at = listener.local_addr().expect("bound");
        rustix::net::connect(&socket, &at).expect("it listens");
        let (client, _) = listener.accept().expect("it is connected");
        (client, socket.into())
    }

    pub fn reads_nothing(&self) {
        rustix::net::shutdown(&self.0, rustix::net::Shutdown::Read).expect("it is connected");
    }

    pub fn hear(&self) -> (Message, Option<OwnedFd>) {
        readable(&self.0);
        packet::receive(&self.0, &mut vec![0; PACKET_BYTES_MAX], &mut Vec::new())
            .expect("a message")
    }

    pub fn has_closed(&self) {
        readable(&self.0);
        let end = packet::receive(&self.0, &mut vec![0; PACKET_BYTES_MAX], &mut Vec::new());
        assert!(matches!(end, Err(Nothing::Closed)), "{end:?}");
    }
}
