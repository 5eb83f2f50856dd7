//! Messages between the control thread and one worker.
//!
//! The control thread holds a [`WorkerHandle`] (of all of them in `workers`); the worker holds the
//! [`Inbox`] and looks into it between batches of frames. Neither side ever blocks the other: the
//! queue is bounded, a full one makes the control side wait, and every answer has a deadline.

use crate::capture::Tap;
use baton_api::{Endpoint, FlowEvents, FlowView, MigrateReply, State};
use baton_engine::{ApplyError, Migrate, MigrateError, Prepared, Routes, SteeredEnds};
use baton_packet::{AdoptionKey, Mac};
use rustix::{
    event::{EventfdFlags, eventfd},
    io::{read, write},
};
use std::{
    io,
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

/// Commands that wait for the worker. The worker takes all of them between two batches, which are
/// microseconds apart, so that more would only hide a stuck worker.
const QUEUE_MAX: usize = 256;

/// How long the control side waits for the worker: the time after which `/healthz` calls it stuck.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// What the worker can be told.
pub enum Command {
    /// Serve this snapshot, once all have agreed to; the answer says why not. With it comes back
    /// what is to be freed elsewhere.
    Apply(Box<Prepared>, Arc<Agreement>, oneshot::Sender<Applied>),
    /// What all workers are told alike and nobody answers.
    Notice(Notice),
    /// Use these routes. The answer is the old ones, which are freed by whoever asks.
    Routes(Box<Routes>, oneshot::Sender<Box<Routes>>),
    /// Tell what is to be steered here, in this memory.
    Steering(Box<SteeredEnds>, oneshot::Sender<Box<SteeredEnds>>),
    /// Drain the backends of this name, or no longer; the answer is how many these are, or why
    /// none.
    Drain {
        /// Only in this policy.
        policy: Option<String>,
        /// Name of the backend.
        backend: String,
        /// Drain, or take that back.
        on: bool,
        /// Where the answer goes.
        answer: oneshot::Sender<Result<usize, String>>,
    },
    /// Have one flow move; the answer says what is in the way.
    Migrate(Migrate, oneshot::Sender<Result<MigrateReply, MigrateError>>),
    /// Tell events of flows behind this number (none: only where they go on), at most so many.
    Events(Option<u64>, usize, oneshot::Sender<FlowEvents>),
    /// Tell the figures.
    Report(oneshot::Sender<Report>),
    /// Copy frames for a capture; none: no longer. The answer is the tap before it, whose memory is
    /// freed by whoever asks.
    Capture(Option<Box<Tap>>, oneshot::Sender<Option<Box<Tap>>>),
    /// Tell some flows, from this cursor on, at most so many.
    Flows(u32, usize, oneshot::Sender<Flows>),
}

/// What a worker can be told that needs no answer.
#[derive(Clone)]
pub enum Notice {
    /// Use these keys, the first to sign.
    Keys(Vec<(u8, AdoptionKey)>),
    /// A neighbour has this link-layer address, or none.
    Neighbour(IpAddr, Option<Mac>),
    /// Whether the dataplane's interface is up.
    Link(bool),
    /// Whether frames may be waited for awake.
    Spin(bool),
    /// What the active check of a backend found; none: it is no longer checked. A backend that is
    /// not served (any more) is not meant.
    Health {
        /// Name of its policy.
        policy: String,
        /// Which backend.
        backend: Endpoint,
        /// Whether it works.
        healthy: Option<bool>,
    },
    /// End the loop.
    Stop,
}

/// Whether all workers take a snapshot: each says once whether it can, and none begins before all
/// have.
#[derive(Debug)]
pub struct Agreement {
    missing: AtomicU32,
    refused: AtomicBool,
}

impl Agreement {
    /// Of so many.
    #[must_use]
    pub fn new(workers: u32) -> Self {
        Self { missing: AtomicU32::new(workers), refused: AtomicBool::new(false) }
    }

    /// One of them can.
    pub fn agree(&self) {
        self.missing.fetch_sub(1, Ordering::Relaxed);
    }

    /// One of them cannot, or was never asked.
    pub fn refuse(&self) {
        self.refused.store(true, Ordering::Relaxed);
    }

    /// Whether they take it; none while one has not said yet.
    #[must_use]
    pub fn verdict(&self) -> Option<bool> {
        if self.refused.load(Ordering::Relaxed) {
            return Some(false);
        }
        (self.missing.load(Ordering::Relaxed) == 0).then_some(true)
    }
}

/// Why a worker does not serve a snapshot.
#[derive(Debug, PartialEq, Eq)]
pub enum NotApplied {
    /// Its engine refuses it.
    Here(ApplyError),
    /// Another worker's does, and says why.
    Elsewhere,
}

/// Whether a snapshot is served, else why not, and what is left over.
pub type Applied = (Result<(), NotApplied>, Box<Prepared>);

/// One counter: name without prefix, label, value.
pub type CounterValue = (&'static str, Option<(&'static str, &'static str)>, u64);

/// The worker's figures at one moment.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The engine's state; what only the binary knows is filled in by the control side.
    pub state: State,
    /// All counters of engine and port.
    pub counters: Vec<CounterValue>,
    /// What only metrics show.
    pub figures: Vec<baton_engine::PolicyFigures>,
}

/// A part of the flow table, and where the next part starts.
pub type Flows = (Vec<FlowView>, Option<u32>);

/// Why the worker gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkerError {
    /// Its thread has ended. Fatal; the process is about to end too.
    #[error("the packet worker has stopped")]
    Gone,
    /// It does not answer. May pass.
    #[error("the packet worker did not answer within 2 s")]
    Stuck,
}

/// The control side's end.
pub struct WorkerHandle {
    queue: mpsc::Sender<Command>,
    wake: Arc<OwnedFd>,
    beat: Arc<AtomicU64>,
}

/// The worker's end.
pub struct Inbox {
    queue: mpsc::Receiver<Command>,
    wake: Arc<OwnedFd>,
    beat: Arc<AtomicU64>,
}

/// Both ends of a new queue.
///
/// # Errors
/// The process has too many open files.
pub fn channel() -> io::Result<(WorkerHandle, Inbox)> {
    let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
    let beat = Arc::new(AtomicU64::new(0));
    let (sender, receiver) = mpsc::channel(QUEUE_MAX);
    let handle = WorkerHandle { queue: sender, wake: Arc::clone(&wake), beat: Arc::clone(&beat) };
    let inbox = Inbox { queue: receiver, wake, beat };
    Ok((handle, inbox))
}

impl WorkerHandle {
    /// Tells the worker something; waits while its queue is full, but not for it to be done.
    ///
    /// # Errors
    /// The worker is gone or stuck.
    pub async fn tell(&self, command: Command) -> Result<(), WorkerError> {
        match timeout(ANSWER_LIMIT, self.queue.send(command)).await {
            Ok(Ok(())) => {
                self.wake();
                Ok(())
            }
            Ok(Err(_)) => Err(WorkerError::Gone),
            Err(_) => Err(WorkerError::Stuck),
        }
    }

    /// When the worker's loop last turned, in microseconds of [`crate::clock`]; 0 before the first
    /// turn.
    #[must_use]
    pub fn beat_us(&self) -> u64 {
        self.beat.load(Ordering::Relaxed)
    }

    /// Whether the worker's end is still there.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.queue.is_closed()
    }

    /// The answer to a command that takes one.
    ///
    /// # Errors
    /// The worker is gone or stuck.
    pub async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, WorkerError> {
        let (sender, mut receiver) = oneshot::channel();
        self.tell(command(sender)).await?;
        answer(&mut receiver).await
    }

    fn wake(&self) {
        // EAGAIN means that the counter is full, so the worker is woken already.
        let _ = write(self.wake.as_fd(), &1_u64.to_ne_bytes());
    }
}

/// The worker's answer, for which one may wait again.
///
/// # Errors
/// The worker is gone or stuck.
pub async fn answer<T>(receiver: &mut oneshot::Receiver<T>) -> Result<T, WorkerError> {
    match timeout(ANSWER_LIMIT, receiver).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) => Err(WorkerError::Gone),
        Err(_) => Err(WorkerError::Stuck),
    }
}

impl Inbox {
    /// The next command, if one waits. Never blocks.
    pub fn next(&mut self) -> Option<Command> {
        self.queue.try_recv().ok()
    }

    /// Becomes readable when a command arrives.
    #[must_use]
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Makes [`Inbox::wake_fd`], which is readable, unreadable again; call before taking the
    /// commands.
    pub fn rearm(&self) {
        let mut counter = [0; 8];
        // EAGAIN: it was not, which is as good.
        let _ = read(self.wake.as_fd(), &mut counter);
    }

    /// Notes that the loop turned.
    pub fn beat(&self, now_us: u64) {
        self.beat.store(now_us, Ordering::Relaxed);
    }
}

/// Does what takes milliseconds on a thread of its own.
pub async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        // Nobody cancels it.
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_workers_take_a_snapshot_or_none_does() {
        let agreement = Agreement::new(2);
        agreement.agree();
        assert_eq!(agreement.verdict(), None);
        agreement.agree();
        assert_eq!(agreement.verdict(), Some(true));
        let agreement = Agreement::new(2);
        agreement.agree();
        agreement.refuse();
        assert_eq!(agreement.verdict(), Some(false));
    }
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn readable(inbox: &Inbox) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::from_borrowed_fd(inbox.wake_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&now)).expect("polled") == 1
    }

    #[tokio::test]
    async fn a_command_wakes_once_and_the_event_does_not_stay() {
        let (handle, mut inbox) = channel().expect("an eventfd");
        assert!(!readable(&inbox));
        for _ in 0..3 {
            handle.tell(Command::Notice(Notice::Stop)).await.expect("sent");
        }
        assert!(readable(&inbox));
        inbox.rearm();
        assert!(!readable(&inbox), "the loop would never sleep again");
        assert_eq!(std::iter::from_fn(|| inbox.next()).count(), 3);
        handle.tell(Command::Notice(Notice::Stop)).await.expect("sent");
        assert!(readable(&inbox), "a later command must wake too");
    }

    #[tokio::test]
    async fn a_worker_that_is_gone_or_never_answers_is_told_apart() {
        let (handle, mut inbox) = channel().expect("an eventfd");
        tokio::time::pause();
        assert_eq!(handle.ask(Command::Report).await.err(), Some(WorkerError::Stuck));
        assert!(matches!(inbox.next(), Some(Command::Report(_))));
        // The queue is bounded: more than fit must wait, and then be refused.
        for _ in 0..QUEUE_MAX {
            handle.tell(Command::Notice(Notice::Stop)).await.expect("fits");
        }
        assert_eq!(
            handle.tell(Command::Notice(Notice::Stop)).await.err(),
            Some(WorkerError::Stuck)
        );
        drop(inbox);
        assert_eq!(handle.ask(Command::Report).await.err(), Some(WorkerError::Gone));
        assert!(!handle.is_alive());
    }
}
