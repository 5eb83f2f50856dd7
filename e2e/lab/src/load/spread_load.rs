//! A load client that goes straight to several servers: so many requests at a time, each to the
//! server of the one before or to the one with the fewest in flight.
//!
//! Owns the connections, any of which the next request to its server may have. It shows what a rule
//! of placing requests comes to where no load balancer is between and a move costs nothing. Apart
//! from `load_driver`, whose connections are each one client's for good.

use crate::{
    node::netns::Namespace,
    work::{
        exchange::{Exchange, Verdict},
        stats::{LoadReport, Recorder},
    },
};
use anyhow::{Context, Result, bail, ensure};
use rustix::event::{Timespec, epoll};
use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

/// Without an answer for so long, something is wrong.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
const READ_BYTES: usize = 64 * 1024;
/// Of the time series.
const WINDOW: Duration = Duration::from_millis(250);

/// How much, and where to.
#[derive(Clone, Debug)]
pub struct SpreadOptions {
    /// The servers.
    pub servers: Vec<SocketAddr>,
    /// Requests at a time.
    pub at_once: usize,
    /// For so long.
    pub duration: Duration,
    /// Each goes to the server with the fewest in flight; otherwise all of one place among those at
    /// a time go to one server.
    pub fewest: bool,
}

struct Connection {
    stream: TcpStream,
    server: usize,
    request: Option<InFlight>,
    received: Vec<u8>,
}

#[derive(Clone, Copy)]
struct InFlight {
    place: usize,
    number: u64,
    since: Instant,
}

#[derive(Default)]
struct Server {
    /// Connections without a request, the last used one last.
    idle: Vec<usize>,
    in_flight: usize,
}

struct Client<E> {
    options: SpreadOptions,
    exchange: E,
    poller: rustix::fd::OwnedFd,
    connections: Vec<Connection>,
    servers: Vec<Server>,
    /// The server of each place's last request.
    last: Vec<usize>,
    recorder: Recorder,
    start: Instant,
    sent: u64,
    done: u64,
    moved: u64,
    scratch: Vec<u8>,
}

/// Runs it in a namespace to its end. The report, and how many requests went to another server than
/// the one before.
pub fn spread<E: Exchange>(
    namespace: &Namespace,
    options: SpreadOptions,
    exchange: E,
) -> Result<(LoadReport, u64)> {
    let job = namespace.spawn(move || Client::new(options, exchange)?.run());
    job.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl<E: Exchange> Client<E> {
    fn new(options: SpreadOptions, exchange: E) -> Result<Self> {
        ensure!(!options.servers.is_empty(), "no server");
        Ok(Self {
            exchange,
            poller: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            connections: Vec::new(),
            servers: options.servers.iter().map(|_| Server::default()).collect(),
            last: (0..options.at_once).map(|place| place % options.servers.len()).collect(),
            recorder: Recorder::new(WINDOW),
            start: Instant::now(),
            sent: 0,
            done: 0,
            moved: 0,
            scratch: vec![0; READ_BYTES],
            options,
        })
    }

    fn run(mut self) -> Result<(LoadReport, u64)> {
        for place in 0..self.options.at_once {
            self.send(place)?;
        }
        let mut events = Vec::with_capacity(256);
        let wait = Timespec::try_from(ANSWER_WITHIN).context("epoll timeout")?;
        while self.start.elapsed() < self.options.duration {
            events.clear();
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.poller, room, Some(&wait)) {
                Ok(0) => bail!("no answer for {ANSWER_WITHIN:?}"),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e).context("epoll_wait"),
            }
            // Many clients do not wait for one another: what was answered is answered.
            let mut places = Vec::with_capacity(events.len());
            for event in &events {
                places.extend(self.receive(usize::try_from(event.data.u64())?)?);
            }
            for place in places {
                self.send(place)?;
            }
        }
        let elapsed = self.start.elapsed();
        let (latency, windows) = self.recorder.finish();
        let report =
            LoadReport { requests: self.done, latency, windows, elapsed, ..LoadReport::default() };
        Ok((report, self.moved))
    }

    /// The next request of a place.
    fn send(&mut self, place: usize) -> Result<()> {
        let last = self.last[place];
        let to = match self.options.fewest {
            true => fewest(last, self.servers.iter().map(|s| s.in_flight)),
            false => last,
        };
        self.moved += u64::from(to != last);
        self.last[place] = to;
        let index = match self.servers[to].idle.pop() {
            Some(index) => index,
            None => self.connect(to)?,
        };
        self.servers[to].in_flight += 1;
        let number = self.sent;
        self.sent += 1;
        let mut request = Vec::new();
        self.exchange.request(place, number, &mut request);
        let connection = &mut self.connections[index];
        connection.request = Some(InFlight { place, number, since: Instant::now() });
        connection.stream.write_all(&request).context("a request")
    }

    fn connect(&mut self, server: usize) -> Result<usize> {
        let address = self.options.servers[server];
        let stream =
            TcpStream::connect(address).with_context(|| format!("a connection to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let index = self.connections.len();
        let data = epoll::EventData::new_u64(index as u64);
        epoll::add(&self.poller, &stream, data, epoll::EventFlags::IN)?;
        self.connections.push(Connection { stream, server, request: None, received: Vec::new() });
        Ok(index)
    }

    /// Reads what is there. The place whose answer is complete with that.
    fn receive(&mut self, index: usize) -> Result<Option<usize>> {
        let connection = &mut self.connections[index];
        let address = self.options.servers[connection.server];
        match connection.stream.read(&mut self.scratch) {
            Ok(0) => bail!("{address} has closed a connection"),
            Ok(n) => connection.received.extend_from_slice(&self.scratch[..n]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(e) => return Err(e).with_context(|| format!("an answer of {address}")),
        }
        let Some(asked) = connection.request else {
            bail!("{address} has answered what nobody asked");
        };
        let verdict = (self.exchange).response(asked.place, asked.number, &connection.received);
        match verdict {
            Verdict::More => return Ok(None),
            Verdict::Right(bytes) if bytes == connection.received.len() => {}
            wrong => bail!("an answer of {address} is {wrong:?}"),
        }
        connection.received.clear();
        connection.request = None;
        let now = Instant::now();
        (self.recorder).record(now - self.start, now - asked.since);
        self.done += 1;
        let server = &mut self.servers[connection.server];
        server.in_flight -= 1;
        server.idle.push(index);
        Ok(Some(asked.place))
    }
}

/// The server with the fewest in flight: where the last request went, unless another one has fewer.
fn fewest(last: usize, in_flight: impl Iterator<Item = usize>) -> usize {
    let other = in_flight.enumerate();
    let key = |(index, count): &(usize, usize)| (*count, *index != last);
    other.min_by_key(key).map_or(last, |(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FixedLoad;
    use std::{net::TcpListener, thread};

    /// Answers each byte after so long, on each connection by itself.
    fn server(after: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                thread::spawn(move || {
                    let mut byte = [0];
                    while matches!(stream.read(&mut byte), Ok(1)) {
                        thread::sleep(after);
                        if stream.write_all(b"a").is_err() {
                            return;
                        }
                    }
                });
            }
        });
        address
    }

    #[test]
    fn places_stay_where_they_are_or_go_where_the_fewest_are_in_flight() {
        for (last, in_flight, to) in
            [(1, [2, 2, 2], 1), (1, [2, 1, 1], 1), (0, [2, 1, 1], 1), (2, [1, 0, 2], 1)]
        {
            assert_eq!(fewest(last, in_flight.into_iter()), to, "{in_flight:?}");
        }
    }

    /// Three of six are with the server that answers nothing in this time.
    #[test]
    fn every_answer_is_counted_and_is_followed_by_a_request() {
        let slow = Duration::from_millis(400);
        for fewest in [false, true] {
            let options = SpreadOptions {
                servers: vec![server(Duration::ZERO), server(slow)],
                at_once: 6,
                duration: slow / 2,
                fewest,
            };
            let exchange = FixedLoad::bytes(b"q", b"a");
            let (report, moved) = Client::new(options, exchange).unwrap().run().unwrap();
            assert_eq!(report.latency.count, report.requests);
            assert!(report.requests > 6, "{report:?}");
            assert!(fewest || moved == 0, "{moved}");
        }
    }
}
