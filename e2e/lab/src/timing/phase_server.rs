//! A single-threaded HTTP/1.1 server that notes when it does what.
//!
//! It makes the system calls that nginx makes, in nginx's order: `epoll_wait`, `accept4`,
//! `epoll_ctl` (edge triggered), `epoll_wait`, one receive, one send; one accept per event. It
//! answers `GET` on any target with the body that the lab's nginx gives for `/echo/…`. Never more
//! than that: no pipelining, no request bodies.

use crate::{
    clients::http::Request,
    node::lab::Pod,
    servers::nginx::echo_body,
    timing::{
        phases::{Accepted, ServerStamps, number},
        timestamps::{enable, now_ns, receive},
    },
};
use anyhow::{Context, Result};
use rustix::{
    buffer::spare_capacity,
    event::epoll::{self, CreateFlags, Event, EventData, EventFlags},
    io::Errno,
    net::{SendFlags, SocketFlags, acceptfrom_with, send},
};
use std::{
    collections::HashMap,
    io,
    net::{SocketAddr, TcpListener},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
};

/// Events of connections carry the descriptor's number, which is never this.
const LISTENER: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;
/// As nginx has by default.
const EVENTS_MAX: usize = 512;
/// Far more than a request of the lab's has.
const READ_BYTES: usize = 4096;
const REFUSAL: &str = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

type Notes = Arc<Mutex<Vec<ServerStamps>>>;

/// A running server; ends when dropped.
#[derive(Debug)]
pub struct PhaseServer {
    address: SocketAddr,
    notes: Notes,
    /// Closing it ends the thread. `None` only while dropping.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Pod {
    /// Starts the server on a thread inside the pod; it listens when this returns.
    pub fn phase_server(&self, port: u16) -> Result<PhaseServer> {
        let address = SocketAddr::new(self.ipv4(), port);
        let listener = self
            .namespace()
            .run(|| TcpListener::bind(address))?
            .with_context(|| format!("listening on {address} in {}", self.name()))?;
        listener.set_nonblocking(true)?;
        enable(&listener).context("asking for receive times (SO_TIMESTAMPING)")?;
        let (stop, stopped) = UnixStream::pair()?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let watch = |data| (EventData::new_u64(data), EventFlags::IN | EventFlags::RDHUP);
        let (data, flags) = watch(LISTENER);
        epoll::add(&epoll, &listener, data, flags)?;
        let (data, flags) = watch(STOP);
        epoll::add(&epoll, &stopped, data, flags)?;
        let notes = Notes::default();
        let server = Server {
            epoll,
            listener,
            connections: HashMap::new(),
            pod: self.name().to_owned(),
            notes: Arc::clone(&notes),
        };
        let thread = self.namespace().spawn(move || {
            let _stopped = stopped;
            server.run().context("phase server")
        });
        Ok(PhaseServer { address, notes, stop: Some(stop), thread: Some(thread) })
    }
}

impl PhaseServer {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it noted since the last call. A request's note is made after its answer was sent, so
    /// that of the last one may come a moment after the client has the answer.
    #[must_use]
    pub fn take(&self) -> Vec<ServerStamps> {
        std::mem::take(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for PhaseServer {
    fn drop(&mut self) {
        self.stop = None;
        let ended = self.thread.take().map(JoinHandle::join);
        if let Some(Ok(Err(e))) = ended {
            eprintln!("baton-lab: {e:#}");
        }
    }
}

struct Connection {
    socket: OwnedFd,
    /// Until its first request.
    accepted: Option<Accepted>,
    request: Vec<u8>,
}

struct Server {
    epoll: OwnedFd,
    listener: TcpListener,
    connections: HashMap<u64, Connection>,
    pod: String,
    notes: Notes,
}

impl Server {
    fn run(mut self) -> Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        let mut buffer = [0; READ_BYTES];
        loop {
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(e) => return Err(e).context("epoll_wait"),
            }
            let woken_ns = now_ns();
            for event in events.drain(..) {
                match event.data.u64() {
                    STOP => return Ok(()),
                    LISTENER => self.accept(woken_ns)?,
                    key => {
                        let keep = self.connections.get_mut(&key).is_none_or(|connection| {
                            connection.serve(woken_ns, &mut buffer, &self.pod, &self.notes)
                        });
                        if !keep {
                            self.connections.remove(&key);
                        }
                    }
                }
            }
        }
    }

    fn accept(&mut self, woken_ns: i64) -> Result<()> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = match acceptfrom_with(&self.listener, flags) {
            Ok((socket, _)) => socket,
            // The client was gone before us; nothing is lost.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(()),
            Err(e) => return Err(e).context("accept4"),
        };
        let accepted_ns = now_ns();
        let key = u64::try_from(socket.as_raw_fd())?;
        epoll::add(
            &self.epoll,
            &socket,
            EventData::new_u64(key),
            EventFlags::IN | EventFlags::RDHUP | EventFlags::ET,
        )
        .context("epoll_ctl")?;
        let registered_ns = now_ns();
        let accepted = Some(Accepted { woken_ns, accepted_ns, registered_ns });
        let connection = Connection { socket, accepted, request: Vec::with_capacity(READ_BYTES) };
        self.connections.insert(key, connection);
        Ok(())
    }
}

impl Connection {
    /// Reads what is there and answers a whole request. `false` if the connection has ended.
    fn serve(&mut self, readable_ns: i64, buffer: &mut [u8], pod: &str, notes: &Notes) -> bool {
        loop {
            let received = match receive(&self.socket, buffer) {
                Ok(received) if received.bytes == 0 => return false,
                Ok(received) => received,
                Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
            };
            let read_ns = now_ns();
            self.request.extend_from_slice(&buffer[..received.bytes]);
            let target = match Request::parse(&self.request) {
                Ok(Some(r)) if r.method == "GET" && r.bytes == self.request.len() => r.target,
                // Edge triggered: what is there must be read to its end before waiting again.
                Ok(None) => continue,
                _ => {
                    // Whether the refusal arrives changes nothing: the connection ends.
                    let _ = send(&self.socket, REFUSAL.as_bytes(), SendFlags::NOSIGNAL);
                    return false;
                }
            };
            let body = echo_body(target, "");
            let answer = format!(
                "HTTP/1.1 200 OK\r\nX-Pod: {pod}\r\nContent-Type: text/plain\r\n\
                 Content-Length: {}\r\nConnection: keep-alive\r\n\r\n{body}",
                body.len()
            );
            // An answer of 200 bytes fits the send buffer of a client that waits for it.
            if send(&self.socket, answer.as_bytes(), SendFlags::NOSIGNAL) != Ok(answer.len()) {
                return false;
            }
            let sent_ns = now_ns();
            let accepted = self.accepted.take();
            if let Some(request) = number(target.as_bytes()) {
                notes.lock().unwrap_or_else(PoisonError::into_inner).push(ServerStamps {
                    request,
                    arrived_ns: received.at_ns,
                    accepted,
                    readable_ns,
                    read_ns,
                    sent_ns,
                });
            }
            self.request.clear();
            // A buffer that was not filled was all there was; the next bytes are a new event.
            if received.bytes < buffer.len() {
                return true;
            }
        }
    }
}
