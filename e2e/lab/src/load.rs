//! A load client: N persistent connections on one thread, each sending its next request when the response to the last
//! is complete (and not before its pace, if one is set), or when it is due (open loop). Every response is checked.
//!
//! Owns options, figures and the end of a load; what a request and a right response are, an [`Exchange`] says.

use crate::{
    arrivals::Arrivals,
    load_driver::Driver,
    netns::Namespace,
    stats::{Counts, Latency, Slow, Window},
};
use anyhow::{Result, ensure};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
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
    /// An open loop instead: requests are due at times that follow from this, and a latency counts from when its request was
    /// due. One that is due while its connection waits for an answer waits too. `pace` has no effect.
    pub arrivals: Option<Arrivals>,
    /// A response that takes longer is an error of kind `timeout`.
    pub timeout: Duration,
    /// Length of the windows of the time series.
    pub window: Duration,
    /// A request that takes longer is a slow one.
    pub slow: Duration,
    /// Where the server announced the end of a connection, wait until it has closed: then it closed first.
    pub await_close: bool,
}

impl LoadOptions {
    /// 16 connections without pace or end; set one of `requests` and `duration`, or end it by [`Progress::enough`] or
    /// [`Load::stop`].
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
}

/// What came of it. A client of others (wrk) fills in what it knows.
#[derive(Clone, Debug, Default)]
pub struct LoadReport {
    /// Right responses.
    pub requests: u64,
    /// Errors by kind: `connect`, `closed`, `reset`, `io`, `timeout`, and what the exchange calls wrong.
    pub errors: Counts,
    /// Connections that ended as the server had announced with a right response; made anew.
    pub announced: u64,
    /// Requests of an open loop that were due and could not be sent before the end. Their latency counts as the time that they
    /// had waited then.
    pub unsent: u64,
    /// Of the right responses. A request that was the first of its connection counts from the first try to connect, but for
    /// the connections that the load begins with.
    pub latency: Latency,
    /// Requests that took longer than [`LoadOptions::slow`], also those that were never answered.
    pub slow: Slow,
    /// The same over time.
    pub windows: Vec<Window>,
    /// The same by phase, as [`Progress::next_phase`] parted them. A latency counts in each phase that it touched.
    pub phases: Vec<Latency>,
    /// From first connection to last response.
    pub elapsed: Duration,
}

impl LoadReport {
    /// All errors.
    #[must_use]
    pub fn error_count(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Right responses per second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64().max(1e-9)
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

/// A running load.
#[derive(Debug)]
pub struct Load<E> {
    job: JoinHandle<Result<(LoadReport, E)>>,
    progress: Arc<Progress>,
}

impl<E: Exchange> Load<E> {
    /// Starts it on a thread of its own in `namespace`.
    ///
    /// # Errors
    /// If the options have no end or no connection.
    pub fn start(namespace: &Namespace, options: LoadOptions, exchange: E) -> Result<Self> {
        ensure!(options.connections > 0, "a load needs a connection");
        let progress = Arc::new(Progress::default());
        let live = Arc::clone(&progress);
        let job = namespace.spawn(move || Driver::new(options, exchange, live)?.run());
        Ok(Self { job, progress })
    }

    /// Live figures.
    #[must_use]
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.job.is_finished()
    }

    /// Ends it at once (requests on the way are not counted) and gives the report.
    ///
    /// # Errors
    /// As [`Load::join`].
    pub fn stop(self) -> Result<(LoadReport, E)> {
        self.progress.stop.store(true, Ordering::Relaxed);
        self.join()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If the first connections could not be made, or the kernel refused something.
    pub fn join(self) -> Result<(LoadReport, E)> {
        self.job
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
