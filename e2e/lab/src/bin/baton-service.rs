//! An HTTP/1.1 server with set service times: one worker with a queue, which waits instead of
//! working.
//!
//! `GET /` goes through the queue. `GET /factor/F` and `GET /quota/Q` are answered at once and
//! change the worker. One thread; anything that is not a `GET` without a body ends its connection.

use anyhow::{Context, Result, bail, ensure};
use baton_lab::{Request, ServiceQueue};
use rustix::{
    event::{Timespec, epoll},
    net::listen,
    thread::set_current_timer_slack,
};
use std::{
    collections::HashMap,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    num::NonZeroU64,
    time::{Duration, Instant},
};

/// Connections that wait to be accepted; `somaxconn` (4,096) limits it too.
const BACKLOG: i32 = 4_096;
const LISTENER: u64 = u64::MAX;
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const USAGE: &str = "usage: baton-service ADDRESS:PORT constant|exponential|heavy MEAN_US";

struct Server {
    start: Instant,
    poller: rustix::fd::OwnedFd,
    listener: TcpListener,
    connections: HashMap<u64, (TcpStream, Vec<u8>)>,
    next_id: u64,
    queue: ServiceQueue<u64>,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, distribution, mean_us] = &arguments[..] else {
        bail!(USAGE);
    };
    let address: SocketAddr = address.parse().context(USAGE)?;
    let mean = Duration::from_micros(mean_us.parse().context(USAGE)?);
    // Waits end on time: the default allows 50 us more.
    set_current_timer_slack(NonZeroU64::new(1))?;
    let listener = TcpListener::bind(address).with_context(|| format!("listening on {address}"))?;
    listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let data = epoll::EventData::new_u64(LISTENER);
    epoll::add(&poller, &listener, data, epoll::EventFlags::IN)?;
    Server {
        start: Instant::now(),
        poller,
        listener,
        connections: HashMap::new(),
        next_id: 0,
        queue: ServiceQueue::new(distribution.parse()?, mean, fastrand::u64(..)),
    }
    .run()
}

impl Server {
    fn run(&mut self) -> Result<()> {
        let mut events = Vec::with_capacity(256);
        loop {
            let wait = self.queue.next_end().map(|end| end.saturating_sub(self.start.elapsed()));
            let wait = wait.map(Timespec::try_from).transpose().context("wait")?;
            events.clear();
            match epoll::wait(
                &self.poller,
                rustix::buffer::spare_capacity(&mut events),
                wait.as_ref(),
            ) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e).context("epoll_wait"),
            }
            while let Some(id) = self.queue.take(self.start.elapsed()) {
                self.answer(id);
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept()?,
                    id => self.receive(id),
                }
            }
        }
    }

    fn accept(&mut self) -> Result<()> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nodelay(true)?;
                    stream.set_nonblocking(true)?;
                    let id = self.next_id;
                    self.next_id += 1;
                    let data = epoll::EventData::new_u64(id);
                    epoll::add(&self.poller, &stream, data, epoll::EventFlags::IN)?;
                    self.connections.insert(id, (stream, Vec::new()));
                    // A connection that was adopted may have its request already.
                    self.receive(id);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::ConnectionAborted => {}
                Err(e) => return Err(e).context("accept"),
            }
        }
    }

    /// Reads what is there. A connection that breaks is forgotten; its requests keep their places
    /// in the queue, as the work of a server does whose client has left.
    fn receive(&mut self, id: u64) {
        let mut chunk = [0; 2_048];
        let Some((stream, received)) = self.connections.get_mut(&id) else {
            return;
        };
        let ended = match stream.read(&mut chunk) {
            Ok(0) => true,
            Ok(n) => {
                received.extend_from_slice(&chunk[..n]);
                self.requests(id).is_err()
            }
            Err(e) => !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        };
        if ended {
            self.connections.remove(&id);
        }
    }

    /// Works off all complete requests of a connection.
    fn requests(&mut self, id: u64) -> Result<()> {
        loop {
            let Some((_, received)) = self.connections.get_mut(&id) else {
                return Ok(());
            };
            let Some(request) = Request::parse(received)? else {
                return Ok(());
            };
            ensure!(request.method == "GET", "not a GET");
            let (target, bytes) = (request.target.to_owned(), request.bytes);
            received.drain(..bytes);
            if let Some(factor) = target.strip_prefix("/factor/") {
                self.queue.set_factor(factor.parse()?);
                self.answer(id);
            } else if let Some(quota) = target.strip_prefix("/quota/") {
                self.queue.set_quota(quota.parse()?);
                self.answer(id);
            } else {
                self.queue.push(self.start.elapsed(), id);
            }
        }
    }

    /// The answer is far smaller than a socket's buffer: if it does not fit, nobody reads.
    fn answer(&mut self, id: u64) {
        let failed = self
            .connections
            .get_mut(&id)
            .is_some_and(|(stream, _)| stream.write_all(ANSWER).is_err());
        if failed {
            self.connections.remove(&id);
        }
    }
}
