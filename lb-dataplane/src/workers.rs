//! All workers, as the control thread sees them: one that has the flows of all.
//!
//! Owns who is told what, and how answers become one. Each worker has an engine of its own with its
//! block of leg ports; nothing here looks into one.

use crate::{
    capture::Tap,
    commands::{
        self, Agreement, Applied, Command, Inbox, Notice, Report, WorkerError, WorkerHandle,
    },
    merge,
};
use baton_api::{EventCursor, FlowEvents, FlowView, MigrateReply};
use baton_engine::{Migrate, MigrateError, Prepared, Routes, SteeredEnds};
use std::{io, sync::Arc};
use tokio::sync::oneshot;

/// All workers. Cheap to clone.
#[derive(Clone)]
pub struct Workers {
    each: Arc<[WorkerHandle]>,
}

/// Where the next part of all flow tables starts: a worker, and a place in its table.
pub type FlowCursor = (usize, u32);

/// Has the workers that were asked refuse unless all were.
struct UnlessAllAsked(Option<Arc<Agreement>>);

impl Drop for UnlessAllAsked {
    fn drop(&mut self) {
        if let Some(agreement) = &self.0 {
            agreement.refuse();
        }
    }
}

impl Workers {
    /// So many, at least one, and the inbox of each.
    ///
    /// # Errors
    /// The process has too many open files.
    pub fn new(count: u32) -> io::Result<(Self, Vec<Inbox>)> {
        let both: io::Result<Vec<_>> = (0..count.max(1)).map(|_| commands::channel()).collect();
        let (each, inboxes): (Vec<_>, _) = both?.into_iter().unzip();
        Ok((Self { each: each.into() }, inboxes))
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.each.len()
    }

    /// Tells all of them something; waits while a queue is full, but not for it to be done.
    ///
    /// # Errors
    /// One is gone or stuck; the others were told.
    pub async fn tell(&self, notice: Notice) -> Result<(), WorkerError> {
        let mut result = Ok(());
        for worker in &*self.each {
            let told = worker.tell(Command::Notice(notice.clone())).await;
            result = result.and(told);
        }
        result
    }

    /// Has the routes used; what they replace is freed by the task that waits for it.
    ///
    /// # Errors
    /// One is gone or stuck.
    pub async fn routes(&self, routes: &Routes) -> Result<(), WorkerError> {
        for worker in &*self.each {
            let (sender, old) = oneshot::channel();
            let command = Command::Routes(Box::new(routes.clone()), sender);
            worker.tell(command).await?;
            tokio::spawn(async { drop(old.await) });
        }
        Ok(())
    }

    /// Has a snapshot put in force by all or by none, whether or not somebody waits for the
    /// answers. There is one for each worker, in their order.
    ///
    /// # Errors
    /// One is gone or stuck.
    pub async fn apply(
        &self,
        snapshot: Vec<Prepared>,
    ) -> Result<Vec<oneshot::Receiver<Applied>>, WorkerError> {
        assert_eq!(snapshot.len(), self.each.len(), "one for each worker");
        let agreement = Arc::new(Agreement::new(self.each.len() as u32));
        let mut unless = UnlessAllAsked(Some(Arc::clone(&agreement)));
        let mut answers = Vec::with_capacity(self.each.len());
        for (worker, prepared) in self.each.iter().zip(snapshot) {
            let (sender, receiver) = oneshot::channel();
            let agreement = Arc::clone(&agreement);
            let command = Command::Apply(Box::new(prepared), agreement, sender);
            worker.tell(command).await?;
            answers.push(receiver);
        }
        unless.0 = None;
        Ok(answers)
    }

    /// What is to be steered here; `ends` is empty.
    ///
    /// # Errors
    /// One is gone or stuck.
    pub async fn steering(
        &self,
        mut ends: Box<SteeredEnds>,
    ) -> Result<Box<SteeredEnds>, WorkerError> {
        for worker in &*self.each {
            ends.rewind();
            ends = worker.ask(|answer| Command::Steering(ends, answer)).await?;
        }
        Ok(ends)
    }

    /// Figures of all together.
    ///
    /// # Errors
    /// One is gone or stuck.
    pub async fn report(&self) -> Result<Report, WorkerError> {
        let mut report: Option<Report> = None;
        for worker in &*self.each {
            let more = worker.ask(Command::Report).await?;
            match &mut report {
                None => report = Some(more),
                Some(report) => merge::report(report, more),
            }
        }
        // There is at least one.
        let mut report = report.unwrap_or_default();
        for (name, label, value) in &report.counters {
            let name = match label {
                Some((label, text)) => format!("{name}{{{label}=\"{text}\"}}"),
                None => (*name).to_owned(),
            };
            report.state.counters.insert(name, *value);
        }
        Ok(report)
    }

    /// At most `max` flows from `cursor` on, and the cursor of the next ones.
    ///
    /// # Errors
    /// One is gone or stuck.
    pub async fn flows(
        &self,
        (at, cursor): FlowCursor,
        max: usize,
    ) -> Result<(Vec<FlowView>, Option<FlowCursor>), WorkerError> {
        let Some(worker) = self.each.get(at) else {
            return Ok((Vec::new(), None));
        };
        let (flows, next) = worker.ask(|answer| Command::Flows(cursor, max, answer)).await?;
        let next = match next {
            Some(next) => Some((at, next)),
            None => (at + 1 < self.each.len()).then_some((at + 1, 0)),
        };
        Ok((flows, next))
    }

    /// When the loop that turned the longest time ago last did, in microseconds of
    /// [`crate::clock`]; 0 before the first turn of one.
    #[must_use]
    pub fn beat_us(&self) -> u64 {
        let beats = self.each.iter().map(WorkerHandle::beat_us);
        beats.min().unwrap_or_default()
    }

    /// Whether all are still there.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.each.iter().all(WorkerHandle::is_alive)
    }

    /// Has the backends of a name drained, or takes that back; the inner error says why it cannot
    /// be.
    ///
    /// # Errors
    /// One is gone or stuck.
    pub async fn drain(
        &self,
        policy: Option<String>,
        backend: String,
        on: bool,
    ) -> Result<Result<usize, String>, WorkerError> {
        let mut result = Ok(0);
        for worker in &*self.each {
            let (policy, backend) = (policy.clone(), backend.clone());
            // All have the same backends in force.
            result = worker.ask(|answer| Command::Drain { policy, backend, on, answer }).await?;
        }
        Ok(result)
    }

    /// Has frames copied by these taps, one for each worker.
    ///
    /// # Errors
    /// One is gone or stuck.
    pub async fn capture(&self, taps: Vec<Tap>) -> Result<(), WorkerError> {
        for (worker, tap) in self.each.iter().zip(taps) {
            let tap = Some(Box::new(tap));
            worker.ask(|answer| Command::Capture(tap, answer)).await?;
        }
        Ok(())
    }

    /// Ends that.
    ///
    /// # Errors
    /// One is gone or stuck; the others end it.
    pub async fn end_capture(&self) -> Result<(), WorkerError> {
        let mut result = Ok(());
        for worker in &*self.each {
            let ended = worker.ask(|answer| Command::Capture(None, answer)).await;
            result = result.and(ended.map(drop));
        }
        result
    }

    /// Has one flow move; the inner error says what is in the way. Of several flows of a client's
    /// port, only those of one worker are known to be several.
    ///
    /// # Errors
    /// One is gone or stuck.
    pub async fn migrate(
        &self,
        wanted: Migrate,
    ) -> Result<Result<MigrateReply, MigrateError>, WorkerError> {
        let mut result = Err(MigrateError::NoFlow(wanted.client));
        for worker in &*self.each {
            let wanted = wanted.clone();
            result = worker.ask(|answer| Command::Migrate(wanted, answer)).await?;
            if !matches!(result, Err(MigrateError::NoFlow(_))) {
                break;
            }
        }
        Ok(result)
    }

    /// At most `max` events of flows of each worker behind `since`, or none and where they go on.
    ///
    /// # Errors
    /// One is gone or stuck.
    pub async fn events(
        &self,
        since: Option<&EventCursor>,
        max: usize,
    ) -> Result<FlowEvents, WorkerError> {
        let mut all = FlowEvents {
            next: EventCursor(Vec::with_capacity(self.each.len())),
            ..FlowEvents::default()
        };
        // What is of another number of workers is of an earlier life of the dataplane.
        let known = since.map(|since| (since, since.0.len() == self.each.len()));
        for (at, worker) in self.each.iter().enumerate() {
            let since = known.map(|(since, same)| if same { since.0[at] } else { 0 });
            let mut told = worker.ask(|answer| Command::Events(since, max, answer)).await?;
            for event in &mut told.events {
                event.worker = at as u16;
            }
            all.events.append(&mut told.events);
            all.next.0.append(&mut told.next.0);
            all.now_micros = all.now_micros.max(told.now_micros);
            all.missed += told.missed;
            all.more |= told.more;
        }
        Ok(all)
    }
}
