//! One channel: its socket, and what is said over it. Owns the order of the greeting: nothing else
//! is said before both pods are known to be of one namespace of Kubernetes. Never waits, and has no
//! clock.

use super::{
    Cut, HANDSHAKE_FOR, IDLE_FOR, UNACKNOWLEDGED_MS,
    session::{Broken, Key, Session},
    wire::{Malformed, Message, VERSION},
};
use crate::transfers::decide::Ended;
use bytes::{Buf, BytesMut};
use rustix::{
    io::{Errno, read, write},
    net::{
        AddressFamily, SocketFlags, SocketType, connect, socket_with,
        sockopt::{set_tcp_nodelay, set_tcp_user_timeout},
    },
};
use std::{
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Instant,
};

/// What is read of one channel before the others have their turn, each as long as a packet of an
/// application.
const READS_IN_TURN: usize = 16;

/// A connection to another host-shim.
#[derive(Debug)]
pub struct Channel {
    /// The pod of this node whose it is, by its namespace's cookie.
    pub pod: u64,
    /// Whom it was opened to; `None`: it came in.
    pub peer: Option<SocketAddr>,
    socket: OwnedFd,
    session: Session,
    /// In which namespace of Kubernetes this side's pod is; empty: unknown.
    tenant: String,
    greeted: bool,
    /// Said before the greeting is over.
    waiting: Vec<Message>,
    pub since: Instant,
    used: Instant,
    /// Whether epoll waits for room as well.
    pub waits_for_room: bool,
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

pub fn socket_for(address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(family, SocketType::STREAM, flags, None)
}

/// A socket that connects, from the calling thread's network namespace.
pub fn begin(to: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let socket = socket_for(to)?;
    match connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

impl Channel {
    fn new(now: Instant, pod: u64, tenant: &str, socket: OwnedFd, session: Session) -> Self {
        // Without these it is slower, and a peer that is gone is noticed later.
        let _ = set_tcp_nodelay(&socket, true);
        let _ = set_tcp_user_timeout(&socket, UNACKNOWLEDGED_MS);
        Self {
            pod,
            peer: None,
            socket,
            session,
            tenant: tenant.to_owned(),
            greeted: false,
            waiting: Vec::new(),
            since: now,
            used: now,
            waits_for_room: false,
        }
    }

    /// `None` without randomness.
    pub fn open(
        now: Instant,
        pod: u64,
        tenant: &str,
        peer: SocketAddr,
        socket: OwnedFd,
        key: &Key,
    ) -> Option<Self> {
        let mut channel = Self::new(now, pod, tenant, socket, Session::initiate(key)?);
        channel.peer = Some(peer);
        Some(channel)
    }

    pub fn accepted(now: Instant, pod: u64, tenant: &str, socket: OwnedFd) -> Self {
        Self::new(now, pod, tenant, socket, Session::respond())
    }

    pub fn is_authentic(&self) -> bool {
        self.session.is_authentic()
    }

    pub fn epoch(&self) -> Option<u8> {
        self.session.epoch()
    }

    pub fn keeps(&self) -> usize {
        self.session.keeps()
    }

    /// Why its time is over, if it is.
    pub fn is_over(&self, now: Instant) -> Option<Cut> {
        let (at, why) = self.ends();
        (at <= now).then_some(why)
    }

    /// When it ends, and why, if nothing happens.
    pub fn ends(&self) -> (Instant, Cut) {
        if self.greeted {
            (self.used + IDLE_FOR, Cut::Idle)
        } else {
            (self.since + HANDSHAKE_FOR, Cut::Late)
        }
    }

    /// Says something once the greeting is over.
    pub fn say(&mut self, now: Instant, message: Message) -> Result<(), Cut> {
        self.used = now;
        if !self.greeted {
            self.waiting.push(message);
            return Ok(());
        }
        self.send(&message)
    }

    fn send(&mut self, message: &Message) -> Result<(), Cut> {
        let (head, rest) = message.encode();
        if !self.session.say(&head, rest) {
            return Err(Cut::Malformed);
        }
        self.flush()
    }

    fn greet(&mut self) -> Result<(), Cut> {
        let tenant = self.tenant.clone();
        self.send(&Message::Hello { version: VERSION, tenant })
    }

    /// Sends as much as there is room for.
    pub fn flush(&mut self) -> Result<(), Cut> {
        let out = &mut self.session.out;
        while !out.is_empty() {
            match write(&self.socket, out) {
                Ok(0) => return Err(Cut::Ended),
                Ok(n) => out.advance(n),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(_) => return Err(Cut::Ended),
            }
        }
        // What a long message needed is not kept.
        *out = BytesMut::new();
        Ok(())
    }

    pub fn has_more_to_send(&self) -> bool {
        !self.session.out.is_empty()
    }

    /// Reads what has come; what was said, and how it ended, if it did.
    pub fn hear(
        &mut self,
        now: Instant,
        keys: &[Key],
        space: &mut [u8],
    ) -> (Vec<Message>, Result<(), Cut>) {
        let mut heard = Vec::new();
        for _ in 0..READS_IN_TURN {
            let length = match read(&self.socket, &mut *space) {
                Ok(0) => return (heard, Err(Cut::Ended)),
                Ok(length) => length,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => break,
                Err(_) => return (heard, Err(Cut::Ended)),
            };
            let taken = self.take(now, &space[..length], keys, &mut heard);
            if taken.is_err() {
                return (heard, taken);
            }
        }
        let flushed = self.flush();
        (heard, flushed)
    }

    fn take(
        &mut self,
        now: Instant,
        bytes: &[u8],
        keys: &[Key],
        heard: &mut Vec<Message>,
    ) -> Result<(), Cut> {
        let broken = |broken| match broken {
            Broken::Unknown => Cut::UnknownEpoch,
            Broken::Unauthentic => Cut::Unauthentic,
            Broken::TooLong => Cut::Malformed,
        };
        let was_open = self.session.is_open();
        self.session.hear(bytes, keys).map_err(broken)?;
        if self.peer.is_some() && !was_open && self.session.is_open() {
            self.greet()?;
        }
        while let Some(bytes) = self.session.next().map_err(broken)? {
            self.used = now;
            let message = Message::decode(&bytes).map_err(|Malformed| Cut::Malformed)?;
            match message {
                Message::Hello { version, tenant } if !self.greeted => {
                    self.meet(version, &tenant)?;
                }
                Message::Hello { .. } => return Err(Cut::Malformed),
                Message::Bye { why: Ended::OtherTenant } => return Err(Cut::OtherNamespace),
                Message::Bye { .. } => return Err(Cut::Ended),
                _ if !self.greeted => return Err(Cut::Malformed),
                message => heard.push(message),
            }
        }
        Ok(())
    }

    fn meet(&mut self, version: u16, tenant: &str) -> Result<(), Cut> {
        if version != VERSION {
            return Err(Cut::UnknownEpoch);
        }
        let both_known = !tenant.is_empty() && !self.tenant.is_empty();
        if both_known && tenant != self.tenant {
            let why = Ended::OtherTenant;
            self.send(&Message::Bye { why })?;
            return Err(Cut::OtherNamespace);
        }
        if self.peer.is_none() {
            self.greet()?;
        }
        self.greeted = true;
        for message in std::mem::take(&mut self.waiting) {
            self.send(&message)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        net::{TcpListener, TcpStream},
        time::Duration,
    };

    const KEYS: [Key; 1] = [(1, [7; 32])];
    const MS: Duration = Duration::from_millis(1);

    /// Both ends of a connection of the kernel's.
    struct Pair {
        ends: [Channel; 2],
        heard: Vec<Message>,
    }

    impl Pair {
        fn new(now: Instant) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let at = listener.local_addr().expect("an address");
            let opened = TcpStream::connect(at).expect("it listens");
            let (accepted, _) = listener.accept().expect("a connection");
            for stream in [&opened, &accepted] {
                stream.set_nonblocking(true).expect("an option");
            }
            let opened = Channel::open(now, 1, "shop", at, opened.into(), &KEYS[0]);
            let accepted = Channel::accepted(now, 2, "shop", accepted.into());
            Self { ends: [opened.expect("randomness"), accepted], heard: Vec::new() }
        }

        /// Both say and hear what there is, until that is so.
        fn talk(&mut self, now: Instant, until: impl Fn(&Self) -> bool) {
            let begun = Instant::now();
            while !until(self) {
                assert!(begun.elapsed() < Duration::from_secs(5), "nothing comes");
                for end in &mut self.ends {
                    end.flush().expect("open");
                    let (heard, ended) = end.hear(now, &KEYS, &mut [0; 4096]);
                    ended.expect("open");
                    self.heard.extend(heard);
                }
            }
        }

        fn over(&self, now: Instant) -> [Option<Cut>; 2] {
            [0, 1].map(|n| self.ends[n].is_over(now))
        }
    }

    #[test]
    fn one_that_is_used_no_more_ends() {
        let begun = Instant::now();
        let mut pair = Pair::new(begun);
        assert_eq!(pair.over(begun + HANDSHAKE_FOR - MS), [None; 2]);
        assert_eq!(pair.over(begun + HANDSHAKE_FOR), [Some(Cut::Late); 2]);
        pair.talk(begun, |pair| pair.ends.iter().all(|end| end.greeted));
        assert_eq!(pair.over(begun + IDLE_FOR - MS), [None; 2]);
        assert_eq!(pair.over(begun + IDLE_FOR), [Some(Cut::Idle); 2]);

        let later = begun + IDLE_FOR - MS;
        let said = Message::Ready { id: 7 };
        pair.ends[1].say(later, said.clone()).expect("open");
        // Who says something uses it, and so does who hears it.
        assert_eq!(pair.over(begun + IDLE_FOR), [Some(Cut::Idle), None]);
        pair.talk(later, |pair| pair.heard == [said.clone()]);
        assert_eq!(pair.over(later + IDLE_FOR - MS), [None; 2]);
        assert_eq!(pair.over(later + IDLE_FOR), [Some(Cut::Idle); 2]);
    }
}
