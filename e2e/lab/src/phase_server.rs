//! A single-threaded HTTP/1.1 server that notes when it does what.
//!
//! It makes the system calls that nginx makes, in nginx's order: `epoll_wait`, `accept4`, `epoll_ctl` (edge
//! triggered), `epoll_wait`, one receive, one send; one accept per event. It answers `GET` on any target with the
//! body that the lab's nginx gives for `/echo/…`. Never more than that: no pipelining, no request bodies.

use crate::{
    lab::Pod,
    nginx::echo_body,
    phases::{Accepted, ServerStamps, number},
    timestamps::{enable, now_ns, receive},
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
/// A longer request head is refused.
const REQUEST_BYTES_MAX: usize = 4096;
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
    ///
    /// # Errors
    /// If the port is in use, or the kernel gives no receive times.
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
        Ok(PhaseServer {
            address,
            notes,
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl PhaseServer {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it noted since the last call. A request's note is made after its answer was sent, so that of the
    /// last one may come a moment after the client has the answer.
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
        let mut buffer = [0; REQUEST_BYTES_MAX];
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
        let accepted = Some(Accepted {
            woken_ns,
            accepted_ns,
            registered_ns,
        });
        let connection = Connection {
            socket,
            accepted,
            request: Vec::with_capacity(REQUEST_BYTES_MAX),
        };
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
            let Some(target) = (match whole_request(&self.request) {
                Ok(target) => target,
                Err(NotServed) => {
                    // Whether the refusal arrives changes nothing: the connection ends.
                    let _ = send(&self.socket, REFUSAL.as_bytes(), SendFlags::NOSIGNAL);
                    return false;
                }
            }) else {
                // Edge triggered: what is there must be read to its end before waiting again.
                continue;
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
                notes
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(ServerStamps {
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

#[derive(Debug, PartialEq, Eq)]
struct NotServed;

/// The target of the request if it is whole, `None` if more must come.
fn whole_request(bytes: &[u8]) -> Result<Option<&str>, NotServed> {
    let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") else {
        let begins = b"GET /".starts_with(&bytes[..bytes.len().min(5)]);
        return if begins && bytes.len() < REQUEST_BYTES_MAX {
            Ok(None)
        } else {
            Err(NotServed)
        };
    };
    let line = std::str::from_utf8(&bytes[..end])
        .ok()
        .and_then(|head| head.split("\r\n").next());
    let target = line
        .and_then(|l| l.strip_prefix("GET ")?.strip_suffix(" HTTP/1.1"))
        .filter(|t| t.starts_with('/') && !t.contains(' '));
    match target {
        Some(target) if end + 4 == bytes.len() => Ok(Some(target)),
        _ => Err(NotServed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_get_is_served_a_part_waits_and_all_else_is_refused() {
        let text = b"GET /phase/7 HTTP/1.1\r\nHost: x\r\n\r\n";
        assert_eq!(whole_request(text), Ok(Some("/phase/7")));
        for cut in 0..text.len() {
            assert_eq!(whole_request(&text[..cut]), Ok(None), "{cut}");
        }
        let mut long = b"GET /".to_vec();
        long.resize(REQUEST_BYTES_MAX, b'x');
        for bad in [
            &b"POST / HTTP/1.1\r\n\r\n"[..],
            b"PO",
            b"GET / HTTP/1.0\r\n\r\n",
            b"GET x HTTP/1.1\r\n\r\n",
            b"GET /a b HTTP/1.1\r\n\r\n",
            b"GET /\xff HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            &long,
        ] {
            assert_eq!(whole_request(bad), Err(NotServed), "{bad:?}");
        }
    }
}
