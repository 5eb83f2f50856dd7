//! What a load is made of: requests and the check of their responses, how much of them, and the way
//! to end it.

use crate::work::arrivals::Arrivals;
use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

/// What an [`Exchange`] says of received bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The response is not complete.
    More,
    /// Complete and right; so many bytes belong to it.
    Right(usize),
    /// Complete and right, and the server announced that it closes the connection behind it.
    Last(usize),
    /// Wrong, and how; the connection is given up and made anew.
    Wrong(&'static str),
}

impl Verdict {
    /// Of what came where these bytes and no others are right.
    pub(crate) fn of(bytes: &[u8], wanted: &[u8], wrong: &'static str) -> Self {
        let common = bytes.len().min(wanted.len());
        if bytes[..common] != wanted[..common] {
            Self::Wrong(wrong)
        } else if common < wanted.len() {
            Self::More
        } else {
            Self::Right(common)
        }
    }
}

/// Requests and the check of their responses.
pub trait Exchange: Send + 'static {
    /// Appends request number `number` (over all connections) of connection `connection` to `out`.
    fn request(&mut self, connection: usize, number: u64, out: &mut Vec<u8>);
    /// Checks what came for that request.
    fn response(&mut self, connection: usize, number: u64, bytes: &[u8]) -> Verdict;
    /// The request got no right response: the connection broke, or time ran out.
    fn lost(&mut self, connection: usize, number: u64) {
        let _ = (connection, number);
    }
}

/// How much load, against what.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The server.
    pub address: SocketAddr,
    /// Persistent connections.
    pub connections: usize,
    /// End after so many requests.
    pub requests: Option<u64>,
    /// End after so much time.
    pub duration: Option<Duration>,
    /// Least time between two requests of a connection; `None` sends at once.
    pub pace: Option<Duration>,
    /// An open loop instead: requests are due at times that follow from this, and a latency counts
    /// from when its request was due. One that is due while its connection waits for an answer
    /// waits too. `pace` has no effect.
    pub arrivals: Option<Arrivals>,
    /// A response that takes longer is an error of kind `timeout`.
    pub timeout: Duration,
    /// Length of the windows of the time series.
    pub window: Duration,
    /// A request that takes longer is a slow one.
    pub slow: Duration,
    /// Where the server announced the end of a connection, wait until it has closed: then it closed
    /// first.
    pub await_close: bool,
}

impl LoadOptions {
    /// 16 connections without pace or end; set one of `requests` and `duration`, or end it by
    /// [`Progress::enough`] or [`Load::stop`].
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            connections: 16,
            requests: None,
            duration: None,
            pace: None,
            arrivals: None,
            timeout: Duration::from_secs(20),
            window: Duration::from_millis(250),
            slow: Duration::from_millis(500),
            await_close: false,
        }
    }

    /// The same with so many connections and, if given, an end after so many requests.
    #[must_use]
    pub fn of(address: SocketAddr, connections: usize, requests: Option<u64>) -> Self {
        Self { connections, requests, ..Self::new(address) }
    }
}

/// Live figures of a running load, and a way to end it early.
#[derive(Debug, Default)]
pub struct Progress {
    /// Right responses so far.
    pub requests: AtomicU64,
    /// Errors so far.
    pub errors: AtomicU64,
    pub(crate) stop: AtomicBool,
    pub(crate) enough: AtomicBool,
    pub(crate) phase: AtomicUsize,
}

impl Progress {
    /// Lets the load end once every outstanding request is answered: none begins any more.
    pub fn enough(&self) {
        self.enough.store(true, Ordering::Relaxed);
    }

    /// Begins the next phase, whose latencies the report gives apart from those of the others.
    pub fn next_phase(&self) {
        self.phase.fetch_add(1, Ordering::Relaxed);
    }
}
