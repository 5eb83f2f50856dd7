//! A connection comes to life in a new socket, which a caller brings: it is of whoever made it in
//! all that the kernel counts and filters by (cgroups, user, namespace).
//!
//! Owns the order in which the kernel wants to be told. Until the commit nothing is sent. Whoever
//! has another descriptor of the socket can have this fail, and never wait.

use crate::{
    Connection, Setting,
    frozen::note_bare_drop,
    record::QUEUE_BYTES_MAX,
    sys::{self, Queue, RepairOption},
};
use rustix::net::{SendFlags, send, sockopt};
use socket2::{SockAddr, SockRef};
use std::{
    io,
    net::Shutdown,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

/// Most bytes that one call puts into the receive queue: the kernel makes one buffer of them
/// (`tcp_send_rcvq`).
const PIECE_BYTES: usize = 32 << 10;
/// What `TCP_MAXSEG` takes (`TCP_MIN_MSS`, `MAX_TCP_WINDOW`).
const MSS_MIN: u32 = 88;
const MSS_MAX: u32 = 32_767;
/// As many full segments as a record's send queue holds: no more can be under way behind a move.
const CONGESTION_WINDOW_MAX: u32 = QUEUE_BYTES_MAX / 536;
/// linux/tcp.h, options of a handshake (RFC 9293, 7323, 2018).
const MSS: u32 = 2;
const WINDOW_SCALE: u32 = 3;
const SACK_PERMITTED: u32 = 4;
const TIMESTAMPS: u32 = 8;
/// Least `TCP_LINGER2`.
const ORPHAN_SECONDS: i32 = 1;

/// Why a connection cannot be restored here. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The socket is not a new one, the local address is none of its namespace's, or a socket has
    /// both ends already.
    #[error("{what}: {error}")]
    Kernel {
        /// What the kernel refused.
        what: &'static str,
        /// Its answer.
        #[source]
        error: io::Error,
    },
    /// The record's options are fewer than this version has.
    #[error("the connection has {0} socket options: expected {expected}", expected = Setting::ALL.len())]
    Settings(usize),
}

trait Says<T> {
    fn says(self, what: &'static str) -> Result<T, RestoreError>;
}

impl<T, E: Into<io::Error>> Says<T> for Result<T, E> {
    fn says(self, what: &'static str) -> Result<T, RestoreError> {
        self.map_err(|error| RestoreError::Kernel { what, error: error.into() })
    }
}

/// What can give a socket a congestion window: no system call does.
pub trait Warm {
    /// Gives a socket this window and this slow start threshold, in segments, if it can. Its
    /// congestion control may be anything behind that.
    fn set(&self, socket: BorrowedFd<'_>, window: u32, threshold: u32);
}

/// Each socket begins with the kernel's own window.
#[derive(Clone, Copy, Debug)]
pub struct Cold;

impl Warm for Cold {
    fn set(&self, _: BorrowedFd<'_>, _: u32, _: u32) {}
}

/// A connection in a new socket that says nothing yet.
#[derive(Debug)]
pub struct Restoring {
    socket: Option<OwnedFd>,
    reuse: i32,
    no_delay: i32,
    buffers: (i32, i32, i32),
    /// The last byte that was sent, to be sent again.
    again: Option<u8>,
    unsent: Vec<u8>,
}

impl Restoring {
    /// Puts a connection into a new TCP socket of the ends' family. `warm` gives it the old one's
    /// congestion window. The socket's last descriptor should be another one: closing it may take
    /// as long as who made it likes (SO_LINGER).
    ///
    /// # Errors
    /// It cannot be: the address is not there, the pair of ends is in use, a right is missing.
    /// Nothing was sent.
    pub fn new(
        socket: OwnedFd,
        connection: &Connection,
        warm: &dyn Warm,
    ) -> Result<Self, RestoreError> {
        let c = connection;
        if c.settings.len() != Setting::ALL.len() {
            return Err(RestoreError::Settings(c.settings.len()));
        }
        let mut restoring = Self {
            reuse: 0,
            no_delay: 0,
            buffers: c.buffers,
            again: None,
            unsent: Vec::new(),
            socket: Some(socket),
        };
        match restoring.fill_in(c, warm) {
            Ok(()) => Ok(restoring),
            Err(problem) => {
                restoring.abort();
                Err(problem)
            }
        }
    }

    fn fill_in(&mut self, c: &Connection, warm: &dyn Warm) -> Result<(), RestoreError> {
        let Some(fd) = self.socket.as_ref().map(AsFd::as_fd) else {
            return Ok(());
        };
        let socket = SockRef::from(&fd);
        // From here on its port may be bound although the server listens there; `SO_REUSEADDR`
        // would take that back.
        sys::enter(fd).says("repair mode, which needs CAP_NET_ADMIN")?;
        // What arrives before the commit is for another owner, or comes again.
        sys::deafen(fd).says("a filter")?;
        let sent = c.unacknowledged.len().saturating_sub(c.unsent as usize);
        let (sent, unsent) = c.unacknowledged.split_at(sent);
        // The last byte that was sent is sent again at the commit. Where all is acknowledged, the
        // peer has it already and does not look at its value.
        let (again, sent) = sent.split_last().unwrap_or((&0, &[]));
        let behind = u32::from(c.unacknowledged.len() == unsent.len());
        // What is put into a queue must not wait for room.
        let room =
            |bytes: usize, own: i32| i32::try_from(2 * bytes).unwrap_or(i32::MAX).max(own / 2);
        let force = |name, bytes| sys::set(fd, (libc::SOL_SOCKET, name), bytes);
        force(libc::SO_SNDBUFFORCE, room(c.unacknowledged.len(), c.buffers.0)).says("buffers")?;
        force(libc::SO_RCVBUFFORCE, room(c.unread.len(), c.buffers.1)).says("buffers")?;
        let begin = c.acknowledged_to.wrapping_sub(behind);
        sys::set_queue_begin(fd, Queue::Send, begin).says("the send queue's number")?;
        sys::set_queue_begin(fd, Queue::Receive, c.read_to).says("the receive queue's number")?;
        sys::choose(fd, Queue::None).says("no queue")?;
        socket.bind(&SockAddr::from(c.local)).says("the local end")?;
        // Also in the list of options below, which the length of segments does not follow any more
        // (`tcp_connect_init`, `tcp_sync_mss`).
        let own = u32::from(c.negotiated.mss).clamp(MSS_MIN, MSS_MAX);
        socket.set_tcp_mss(own).says("the segments' length")?;
        sys::connect(fd, &SockAddr::from(c.remote)).says("the remote end")?;
        socket.set_tcp_mss(0).says("the segments' length")?;
        // Only while no byte was sent.
        sys::set_options(fd, &options(c)).says("what the handshake agreed on")?;
        if let Some(value) = c.negotiated.timestamp {
            sys::set_timestamp(fd, value).says("the timestamp")?;
        }
        let (window, threshold) = c.congestion_window;
        warm.set(fd, window.clamp(1, CONGESTION_WINDOW_MAX), threshold.max(1));
        if !c.congestion.is_empty() {
            socket.set_tcp_congestion(c.congestion.as_bytes()).says("the congestion control")?;
        }
        fill(fd, Queue::Receive, &c.unread)?;
        fill(fd, Queue::Send, sent)?;
        // The peer may acknowledge that byte at any moment, and Linux drops what acknowledges more
        // than was sent: so it is left for the commit only where it will surely leave then.
        let fits = sent.len() < c.window.snd_wnd as usize + behind as usize;
        let sending = sys::sending(fd).says("the congestion window")?;
        let leaves = fits && sending.under_way < sending.window;
        if !leaves {
            fill(fd, Queue::Send, &[*again])?;
        }
        let mut window = c.window;
        window.snd_wnd = window.snd_wnd.saturating_add(behind);
        window.max_window = window.max_window.max(window.snd_wnd);
        sys::set_window(fd, window).says("the windows")?;
        for (setting, value) in Setting::ALL.iter().zip(&c.settings) {
            if *setting != Setting::ReuseAddress
                && sys::get_int(fd, setting.place()).says("an option")? != *value
            {
                sys::set(fd, setting.place(), *value).says("a socket option")?;
            }
        }
        if c.local.is_ipv6() {
            let class = (libc::IPPROTO_IPV6, libc::IPV6_TCLASS);
            sys::set(fd, class, c.traffic_class).says("the traffic class")?;
        }
        if c.reads_end {
            socket.shutdown(Shutdown::Read).says("the peer's end")?;
            // The peer's FIN does not come again.
            let orphan = (libc::IPPROTO_TCP, libc::TCP_LINGER2);
            sys::set(fd, orphan, ORPHAN_SECONDS).says("how long it lingers")?;
        }
        let value = |of| {
            let mut all = Setting::ALL.iter().zip(&c.settings);
            let found = all.find(|(setting, _)| **setting == of);
            found.map_or(0, |(_, value)| *value)
        };
        self.reuse = value(Setting::ReuseAddress);
        self.no_delay = value(Setting::NoDelay);
        self.again = leaves.then_some(*again);
        self.unsent = unsent.to_vec();
        Ok(())
    }

    /// The connection is this socket's from now on: it repeats the last byte that was sent, which
    /// tells the peer and acknowledges what had arrived; then goes what was never sent. Where the
    /// byte would have to wait, a window probe tells the peer.
    ///
    /// # Errors
    /// The kernel's. The connection is lost then: who closes the socket resets the peer.
    pub fn commit(mut self) -> io::Result<OwnedFd> {
        let socket = self.socket.take().ok_or(io::ErrorKind::NotConnected)?;
        let fd = socket.as_fd();
        // If this fails, closing it must not say that all was said.
        sockopt::set_socket_linger(fd, Some(Duration::ZERO))?;
        sys::undeafen(fd)?;
        match self.again {
            Some(_) => sys::leave(fd)?,
            None => sys::leave_with_probe(fd)?,
        }
        sys::set(fd, Setting::ReuseAddress.place(), self.reuse)?;
        if let Some(again) = self.again {
            // A single byte must not wait for more (Nagle).
            sys::set(fd, Setting::NoDelay.place(), 1_i32)?;
            send(fd, &[again], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
            sys::set(fd, Setting::NoDelay.place(), self.no_delay)?;
        }
        let mut rest = &self.unsent[..];
        while !rest.is_empty() {
            rest = &rest[send(fd, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?..];
        }
        // As they were: else each move would leave them larger than the one before. Sizes that the
        // application had set stay; others go on growing by themselves.
        for (name, own) in
            [(libc::SO_SNDBUFFORCE, self.buffers.0), (libc::SO_RCVBUFFORCE, self.buffers.1)]
        {
            sys::set(fd, (libc::SOL_SOCKET, name), own / 2)?;
        }
        let lock = (libc::SOL_SOCKET, sys::SO_BUF_LOCK);
        sys::set(fd, lock, self.buffers.2)?;
        sockopt::set_socket_linger(fd, None)?;
        Ok(socket)
    }

    /// The socket ends, and nothing is sent, whoever else has a descriptor of it.
    pub fn abort(mut self) {
        if let Some(socket) = self.socket.take() {
            end(socket.as_fd());
        }
    }
}

/// Nothing is sent: whoever has the connection goes on.
impl Drop for Restoring {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take() {
            note_bare_drop();
            end(socket.as_fd());
        }
    }
}

/// Silent only in repair mode. What fails cannot be mended here: closed, the socket is as silent as
/// long as it is in that mode.
fn end(fd: BorrowedFd<'_>) {
    if sys::is_frozen(fd).unwrap_or(false) {
        let _ = sys::disconnect(fd).and_then(|()| sys::leave(fd));
    }
    let _ = sys::undeafen(fd);
}

/// Puts bytes at the end of a queue, as if they had been received or sent.
fn fill(fd: BorrowedFd<'_>, queue: Queue, mut rest: &[u8]) -> Result<(), RestoreError> {
    sys::choose(fd, queue).says("a queue")?;
    while !rest.is_empty() {
        let piece = &rest[..rest.len().min(PIECE_BYTES)];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rest = &rest[send(fd, piece, flags).says("a queue's bytes")?..];
    }
    sys::choose(fd, Queue::None).says("no queue")
}

fn options(c: &Connection) -> Vec<RepairOption> {
    // Without this one the socket keeps the scale that it would have asked for.
    let (theirs, ours) = c.negotiated.scales.unwrap_or_default();
    let mut options = vec![
        RepairOption { code: MSS, value: c.negotiated.mss.into() },
        RepairOption { code: WINDOW_SCALE, value: u32::from(theirs) | u32::from(ours) << 16 },
    ];
    let flags =
        [(c.negotiated.sack, SACK_PERMITTED), (c.negotiated.timestamp.is_some(), TIMESTAMPS)];
    let flags = flags.into_iter().filter(|(on, _)| *on);
    options.extend(flags.map(|(_, code)| RepairOption { code, value: 0 }));
    options
}
