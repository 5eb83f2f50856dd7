//! The thread of a load client: connections, timing and counting.
//!
//! Owns the sockets and the epoll loop; never knows what a request means.

use crate::work::{
    arrivals::Schedule,
    exchange::{Exchange, LoadOptions, Progress, Verdict},
    stats::{Counts, LoadReport, Recorder, Slow},
};
use anyhow::{Context, Result};
use rustix::{
    event::{Timespec, epoll},
    net::{AddressFamily, SocketFlags, SocketType, connect, socket_with},
    thread::set_current_timer_slack,
};
use std::{
    collections::VecDeque,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    num::NonZeroU64,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Rest after an error, so that a server that is gone is not flooded with attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(5);
/// Longest sleep, so that a stop from outside is seen soon.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// Time between two looks for requests that were never answered; their timeouts are seconds.
const EXPIRY_INTERVAL: Duration = Duration::from_millis(20);
/// Room for one read: several responses of this lab, far below the kernel's buffer.
const READ_BYTES: usize = 64 * 1024;

/// The other side has closed or broken the connection.
const ENDED: epoll::EventFlags =
    epoll::EventFlags::RDHUP.union(epoll::EventFlags::HUP).union(epoll::EventFlags::ERR);

struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
    /// Request bytes that the kernel has not taken yet.
    unsent: Vec<u8>,
    outstanding: Option<Outstanding>,
    /// The last response is complete, since then; the server has announced that it closes, and
    /// nothing more is sent.
    ending: Option<Instant>,
    /// When it was made anew, until its first request is sent.
    made: Option<Instant>,
    next_at: Instant,
}

#[derive(Clone, Copy)]
struct Outstanding {
    number: u64,
    since: Instant,
    phase: usize,
}

/// A request of an open loop that was due while its connection was busy.
#[derive(Clone, Copy)]
struct Due {
    at: Instant,
    phase: usize,
}

pub(crate) struct Driver<E> {
    options: LoadOptions,
    exchange: E,
    progress: Arc<Progress>,
    poller: rustix::fd::OwnedFd,
    connections: Vec<Option<Connection>>,
    retry_at: Vec<Instant>,
    /// Connections that are to be made anew.
    broken: usize,
    /// The times of an open loop, and what is due on each connection.
    schedule: Option<Schedule>,
    due: Vec<VecDeque<Due>>,
    expire_at: Instant,
    unsent: u64,
    recorder: Recorder,
    errors: Counts,
    announced: u64,
    slow: u64,
    /// Whether a connection had a slow request.
    slow_at: Vec<bool>,
    start: Instant,
    sent: u64,
    done: u64,
    scratch: Vec<u8>,
}

impl<E: Exchange> Driver<E> {
    pub(crate) fn new(options: LoadOptions, exchange: E, progress: Arc<Progress>) -> Result<Self> {
        let mut driver = Self {
            poller: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            connections: Vec::new(),
            retry_at: Vec::new(),
            broken: 0,
            schedule: options.arrivals.map(|a| Schedule::new(&a, options.connections)),
            due: vec![VecDeque::new(); options.connections],
            expire_at: Instant::now(),
            unsent: 0,
            recorder: Recorder::new(options.window),
            errors: Counts::new(),
            announced: 0,
            slow: 0,
            slow_at: vec![false; options.connections],
            start: Instant::now(),
            sent: 0,
            done: 0,
            scratch: vec![0; READ_BYTES],
            options,
            exchange,
            progress,
        };
        for index in 0..driver.options.connections {
            let stream = TcpStream::connect_timeout(&driver.options.address, CONNECT_TIMEOUT)
                .with_context(|| format!("connection {index} to {}", driver.options.address))?;
            let mut connection = driver.adopt(index, stream)?;
            // Paced connections start spread over one pace, so that they do not beat in step.
            if let Some(pace) = driver.options.pace {
                let share = index as f64 / driver.options.connections as f64;
                connection.next_at += pace.mul_f64(share);
            }
            driver.connections.push(Some(connection));
            driver.retry_at.push(driver.start);
        }
        if driver.schedule.is_some() {
            // Requests leave when they are due: the default allows 50 us more.
            set_current_timer_slack(NonZeroU64::new(1))?;
        }
        driver.start = Instant::now();
        Ok(driver)
    }

    /// Connects again without waiting: the kernel refuses bytes until the handshake is done, or
    /// says what failed.
    fn reconnect(&self, index: usize) -> Result<Connection> {
        let family = match self.options.address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        match connect(&socket, &self.options.address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(e) => return Err(e.into()),
        }
        self.adopt(index, TcpStream::from(socket))
    }

    fn adopt(&self, index: usize, stream: TcpStream) -> Result<Connection> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        epoll::add(
            &self.poller,
            &stream,
            epoll::EventData::new_u64(index as u64),
            // Edge-triggered for both directions: every event is worked off until it would block.
            epoll::EventFlags::IN
                | epoll::EventFlags::OUT
                | epoll::EventFlags::RDHUP
                | epoll::EventFlags::ET,
        )?;
        Ok(Connection {
            stream,
            received: Vec::new(),
            unsent: Vec::new(),
            outstanding: None,
            ending: None,
            made: None,
            next_at: Instant::now(),
        })
    }

    pub(crate) fn run(mut self) -> Result<(LoadReport, E)> {
        let mut events = Vec::with_capacity(256);
        loop {
            let now = Instant::now();
            let over = self.over(now);
            if over {
                self.leave_unsent(now);
            } else {
                self.begin_due(now);
            }
            let busy = self.connections.iter().flatten();
            if over && busy.filter(|c| c.outstanding.is_some()).count() == 0
                || self.progress.stop.load(Ordering::Relaxed)
            {
                break;
            }
            events.clear();
            let wait = Timespec::try_from(self.wait_time(now)).context("epoll timeout")?;
            match epoll::wait(
                &self.poller,
                rustix::buffer::spare_capacity(&mut events),
                Some(&wait),
            ) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e).context("epoll_wait"),
            }
            for event in &events {
                let index = usize::try_from(event.data.u64())?;
                self.flush(index);
                let flags = event.flags;
                self.receive(index, flags.intersects(ENDED));
            }
            let now = Instant::now();
            if now >= self.expire_at {
                self.expire_at = now + EXPIRY_INTERVAL;
                self.expire(now);
            }
        }
        let elapsed = self.start.elapsed();
        self.note_unanswered(Instant::now());
        let slow_connections = self.slow_at.iter().filter(|slow| **slow).count();
        let phases = self.recorder.phases();
        let (latency, windows) = self.recorder.finish();
        Ok((
            LoadReport {
                requests: self.done,
                errors: self.errors,
                announced: self.announced,
                unsent: self.unsent,
                latency,
                slow: Slow { requests: self.slow, connections: slow_connections as u64 },
                windows,
                phases,
                elapsed,
            },
            self.exchange,
        ))
    }

    /// Sends what may be sent now: in an open loop what is due, else on every connection without an
    /// outstanding request.
    fn begin_due(&mut self, now: Instant) {
        while let Some(index) = self.take_due(now) {
            self.send_next(index, now);
        }
        if self.schedule.is_some() && self.broken == 0 {
            return;
        }
        for index in 0..self.connections.len() {
            self.send_next(index, now);
        }
    }

    /// The connection of the next request that is due, which waits there now.
    fn take_due(&mut self, now: Instant) -> Option<usize> {
        let (after, index) = self.schedule.as_mut()?.take(now - self.start)?;
        self.due[index].push_back(Due {
            at: self.start + after,
            phase: self.progress.phase.load(Ordering::Relaxed),
        });
        Some(index)
    }

    /// Counts what was due and is not sent any more.
    fn leave_unsent(&mut self, now: Instant) {
        let end = self.options.duration.map(|d| self.start + d);
        while self.take_due(end.map_or(now, |end| end.min(now))).is_some() {}
        self.schedule = None;
        let present = self.progress.phase.load(Ordering::Relaxed);
        for due in self.due.iter_mut().flat_map(|d| d.drain(..)) {
            let waited = now.duration_since(due.at);
            self.unsent += 1;
            self.recorder.record(now - self.start, waited);
            self.recorder.record_phases(due.phase..=present, waited);
        }
    }

    fn over(&self, now: Instant) -> bool {
        self.progress.enough.load(Ordering::Relaxed)
            || self.options.requests.is_some_and(|n| self.sent >= n)
            || self.options.duration.is_some_and(|d| now.duration_since(self.start) >= d)
    }

    /// Until something may have to be done without an event: a pace, a new attempt. Timeouts and
    /// the end are looked at after each sleep, which is short enough for them.
    fn wait_time(&self, now: Instant) -> Duration {
        if self.over(now) {
            return SLEEP_MAX;
        }
        let mut wait = SLEEP_MAX;
        if let Some(schedule) = &self.schedule {
            wait = wait.min(schedule.next_at().saturating_sub(now - self.start));
            if self.broken == 0 {
                return wait;
            }
        }
        for (connection, retry_at) in self.connections.iter().zip(&self.retry_at) {
            let at = match connection {
                None => *retry_at,
                Some(c)
                    if c.outstanding.is_none() && c.ending.is_none() && self.schedule.is_none() =>
                {
                    c.next_at
                }
                Some(_) => continue,
            };
            wait = wait.min(at.saturating_duration_since(now));
        }
        wait
    }

    /// Sends the next request if none is outstanding and its time has come; makes a lost connection
    /// anew.
    fn send_next(&mut self, index: usize, now: Instant) {
        if self.connections[index].is_none() && now >= self.retry_at[index] {
            let made = Instant::now();
            match self.reconnect(index) {
                Ok(mut connection) => {
                    connection.made = Some(made);
                    self.connections[index] = Some(connection);
                    self.broken -= 1;
                }
                Err(_) => return self.give_up(index, "connect"),
            }
        }
        let Some(connection) = &mut self.connections[index] else {
            return;
        };
        if connection.outstanding.is_some()
            || connection.ending.is_some()
            || connection.next_at > now
            || self.options.requests.is_some_and(|n| self.sent >= n)
        {
            return;
        }
        let due = match &self.schedule {
            Some(_) => match self.due[index].pop_front() {
                Some(due) => Some(due),
                None => return,
            },
            None => None,
        };
        let number = self.sent;
        self.sent += 1;
        connection.unsent.clear();
        self.exchange.request(index, number, &mut connection.unsent);
        let made = connection.made.take();
        let due = due.unwrap_or_else(|| Due {
            at: made.unwrap_or_else(Instant::now),
            phase: self.progress.phase.load(Ordering::Relaxed),
        });
        connection.outstanding = Some(Outstanding { number, since: due.at, phase: due.phase });
        if let Some(pace) = self.options.pace {
            connection.next_at =
                connection.next_at.max(now.checked_sub(pace).unwrap_or(now)) + pace;
        }
        self.flush(index);
    }

    fn flush(&mut self, index: usize) {
        let Some(connection) = &mut self.connections[index] else {
            return;
        };
        while !connection.unsent.is_empty() {
            match connection.stream.write(&connection.unsent) {
                Ok(n) => _ = connection.unsent.drain(..n),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return self.give_up(index, kind_of(&e)),
            }
        }
    }

    /// Reads what is there; on to the end of the stream if the kernel says that it has `ended`.
    fn receive(&mut self, index: usize, ended: bool) {
        loop {
            let Some(connection) = &mut self.connections[index] else {
                return;
            };
            match connection.stream.read(&mut self.scratch) {
                Ok(0) if connection.ending.is_some() => return self.ended(index),
                Ok(0) => return self.give_up(index, "closed"),
                Ok(n) => {
                    connection.received.extend_from_slice(&self.scratch[..n]);
                    self.check(index);
                    // A short read emptied the socket; what comes later raises a new event.
                    if n < READ_BYTES && !ended {
                        return;
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return self.give_up(index, kind_of(&e)),
            }
        }
    }

    fn check(&mut self, index: usize) {
        let Some(connection) = &mut self.connections[index] else {
            return;
        };
        let Some(Outstanding { number, since, phase }) = connection.outstanding else {
            return self.give_up(index, "unasked");
        };
        let verdict = self.exchange.response(index, number, &connection.received);
        let last = matches!(verdict, Verdict::Last(_));
        match verdict {
            Verdict::More => {}
            Verdict::Right(bytes) | Verdict::Last(bytes) => {
                let now = Instant::now();
                let unasked = connection.received.len() > bytes;
                connection.received.clear();
                connection.outstanding = None;
                let latency = now.duration_since(since);
                self.recorder.record(now - self.start, latency);
                if latency > self.options.slow {
                    self.slow += 1;
                    self.slow_at[index] = true;
                }
                let present = self.progress.phase.load(Ordering::Relaxed);
                self.recorder.record_phases(phase..=present, latency);
                self.done += 1;
                self.progress.requests.store(self.done, Ordering::Relaxed);
                // Nothing may follow a response before the next request: a byte too many is an
                // error of its own.
                if unasked {
                    return self.give_up(index, "unasked");
                }
                if last {
                    self.announced += 1;
                    if self.options.await_close {
                        connection.ending = Some(now);
                    } else {
                        self.connections[index] = None;
                        self.broken += 1;
                        self.retry_at[index] = now;
                    }
                } else if !self.over(now) {
                    self.send_next(index, now);
                }
            }
            Verdict::Wrong(how) => self.give_up(index, how),
        }
    }

    /// The server has closed, as it had announced.
    fn ended(&mut self, index: usize) {
        let now = Instant::now();
        self.connections[index] = None;
        self.broken += 1;
        self.retry_at[index] = now;
        if !self.over(now) {
            self.send_next(index, now);
        }
    }

    fn expire(&mut self, now: Instant) {
        for index in 0..self.connections.len() {
            let late = self.connections[index].as_ref().is_some_and(|c| {
                let since = c.outstanding.map(|o| o.since).or(c.ending);
                since.is_some_and(|since| now.duration_since(since) >= self.options.timeout)
            });
            if late {
                self.give_up(index, "timeout");
            }
        }
    }

    fn give_up(&mut self, index: usize, kind: &'static str) {
        if let Some(connection) = self.connections[index].take() {
            self.broken += 1;
            if let Some(outstanding) = connection.outstanding {
                self.note_lost(index, outstanding, Instant::now());
                self.exchange.lost(index, outstanding.number);
            }
        }
        self.retry_at[index] = Instant::now() + RETRY_PAUSE;
        self.error(kind);
    }

    /// Counts a request that got no answer until now, if that is long.
    fn note_lost(&mut self, index: usize, outstanding: Outstanding, now: Instant) {
        if now.duration_since(outstanding.since) > self.options.slow {
            self.slow += 1;
            self.slow_at[index] = true;
        }
    }

    /// Requests that are on the way at the end of the load.
    fn note_unanswered(&mut self, now: Instant) {
        for index in 0..self.connections.len() {
            let outstanding = self.connections[index].as_ref().and_then(|c| c.outstanding);
            if let Some(outstanding) = outstanding {
                self.note_lost(index, outstanding, now);
            }
        }
    }

    fn error(&mut self, kind: &'static str) {
        *self.errors.entry(kind.to_owned()).or_default() += 1;
        self.progress.errors.fetch_add(1, Ordering::Relaxed);
    }
}

/// The kind of error that a broken connection is counted as.
pub(crate) fn kind_of(error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::ConnectionReset => "reset",
        ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof => "closed",
        ErrorKind::ConnectionRefused => "connect",
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "timeout",
        _ => "io",
    }
}

#[cfg(test)]
#[path = "load_driver_tests.rs"]
mod tests;
