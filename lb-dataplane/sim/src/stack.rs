//! What a client needs of a TCP stack, so that several implementations can stand behind the same
//! clients.
//!
//! Owns the trait and its implementation by the model endpoint of [`crate::tcp`]. It knows nothing
//! of what is said over a connection.

use crate::{
    clock::Time,
    tcp::{
        Config, Failure, Socket, State,
        wire::{Ends, receive, reset_for},
    },
};
use baton_packet::{Mac, SeqNumber};
use std::net::{IpAddr, SocketAddr};

/// Former connections that a host remembers, as far as its peer may still repeat segments of them.
const FORMER_MAX: usize = 4;

/// Where a connection is, as its application sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// None was opened yet.
    Unused,
    /// The handshake is not complete.
    Connecting,
    /// Open; there may be bytes to read.
    Open,
    /// The peer closed its direction, and everything is read.
    PeerClosed,
    /// Both directions are closed.
    Closed,
    /// The peer refused the connection.
    Refused,
    /// The peer reset it.
    Reset,
    /// The peer was silent for too long.
    TimedOut,
}

impl Status {
    /// Whether nothing more can come of the connection.
    #[must_use]
    pub fn is_over(self) -> bool {
        !matches!(self, Status::Connecting | Status::Open | Status::PeerClosed | Status::Unused)
    }
}

/// A TCP stack with one host's address and one connection at a time, without I/O: frames in, frames
/// out, a deadline.
///
/// The caller gives it every frame that arrives, calls [`Stack::poll`] after each call that changes
/// something and at the deadline, and sends what that returns.
pub trait Stack {
    /// Opens a connection from `port`; whatever there was before is forgotten by the application,
    /// not by the stack. The initial sequence number is `isn`, or one of the stack's own; which is
    /// returned.
    fn connect(&mut self, now: Time, port: u16, isn: u32) -> u32;
    /// A frame arrived.
    fn frame(&mut self, now: Time, frame: &[u8]);
    /// Frames to send now.
    fn poll(&mut self, now: Time, out: &mut Vec<Vec<u8>>);
    /// When [`Stack::poll`] has to be called at the latest.
    fn deadline(&self) -> Option<Time>;
    /// Gives bytes to send; how many were taken.
    fn send(&mut self, bytes: &[u8]) -> usize;
    /// Bytes given to send that are not acknowledged yet.
    fn unsent(&self) -> usize;
    /// Reads at most `max` bytes; how many there were.
    fn recv(&mut self, to: &mut Vec<u8>, max: usize) -> usize;
    /// Closes the sending direction.
    fn close(&mut self);
    /// Resets the connection.
    fn abort(&mut self, now: Time);
    /// Where the connection is.
    fn status(&self) -> Status;
}

/// A host with the model endpoint.
pub struct ModelStack {
    config: Config,
    mac: Mac,
    via: Mac,
    address: IpAddr,
    server: SocketAddr,
    current: Option<Socket>,
    former: Vec<Socket>,
    pending: Vec<Vec<u8>>,
}

impl ModelStack {
    /// A host at `address` behind `via`, whose connections all go to `server`.
    #[must_use]
    pub fn new(config: Config, mac: Mac, via: Mac, address: IpAddr, server: SocketAddr) -> Self {
        Self {
            config,
            mac,
            via,
            address,
            server,
            current: None,
            former: Vec::new(),
            pending: Vec::new(),
        }
    }

    fn ends(&self, local: SocketAddr, remote: SocketAddr) -> Ends {
        Ends { mac: self.mac, via: self.via, local, remote }
    }
}

impl Stack for ModelStack {
    fn connect(&mut self, _now: Time, port: u16, isn: u32) -> u32 {
        let ends = self.ends(SocketAddr::new(self.address, port), self.server);
        let socket = Socket::connect(self.config, ends, SeqNumber(isn));
        self.former.retain(|s| s.state() != State::Closed && s.ends.local.port() != port);
        if let Some(old) = self.current.replace(socket) {
            if old.ends.local.port() != port && old.state() != State::Closed {
                self.former.push(old);
            }
            if self.former.len() > FORMER_MAX {
                self.former.remove(0);
            }
        }
        isn
    }

    fn frame(&mut self, now: Time, frame: &[u8]) {
        let Some((_, seg)) = receive(frame) else {
            return;
        };
        let mut out = std::mem::take(&mut self.pending);
        let all = self.current.iter_mut().chain(&mut self.former);
        let mut mine = all.filter(|s| {
            s.ends.local == seg.dst && s.ends.remote == seg.src && s.state() != State::Closed
        });
        if let Some(socket) = mine.next() {
            let _ = socket.segment(now, &seg, &mut out);
        } else if seg.dst.ip() == self.address {
            out.extend(reset_for(&self.ends(seg.dst, seg.src), &seg));
        }
        self.pending = out;
    }

    fn poll(&mut self, now: Time, out: &mut Vec<Vec<u8>>) {
        out.append(&mut self.pending);
        for socket in self.current.iter_mut().chain(&mut self.former) {
            socket.poll(now, out);
        }
    }

    fn deadline(&self) -> Option<Time> {
        let sockets = self.current.iter().chain(&self.former);
        let now = (!self.pending.is_empty()).then_some(0);
        sockets.filter_map(Socket::deadline).chain(now).min()
    }

    fn send(&mut self, bytes: &[u8]) -> usize {
        match &mut self.current {
            Some(socket) if matches!(socket.state(), State::Established | State::CloseWait) => {
                socket.send(bytes);
                bytes.len()
            }
            _ => 0,
        }
    }

    fn unsent(&self) -> usize {
        self.current.as_ref().map_or(0, Socket::unsent)
    }

    fn recv(&mut self, to: &mut Vec<u8>, max: usize) -> usize {
        self.current.as_mut().map_or(0, |s| s.recv(to, max))
    }

    fn close(&mut self) {
        if let Some(socket) = &mut self.current {
            socket.close();
        }
    }

    fn abort(&mut self, now: Time) {
        let rst = self.current.as_mut().and_then(|s| s.abort(now));
        self.pending.extend(rst);
    }

    fn status(&self) -> Status {
        let Some(socket) = &self.current else {
            return Status::Unused;
        };
        match (socket.failure(), socket.state()) {
            (Some(Failure::Refused), _) => Status::Refused,
            (Some(Failure::Reset), _) => Status::Reset,
            (Some(Failure::TimedOut), _) => Status::TimedOut,
            (None, State::SynSent | State::SynReceived) => Status::Connecting,
            (None, _) if socket.unread() > 0 => Status::Open,
            (None, State::Closed | State::TimeWait) => Status::Closed,
            (None, _) if socket.at_end() => Status::PeerClosed,
            (None, _) => Status::Open,
        }
    }
}
