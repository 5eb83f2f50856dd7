//! The core: one task that owns the index, feeds it and passes on what it says.
//!
//! Owns the order of things: changes are taken in batches, folded once per batch, published, and
//! only then told to those who write statuses. Does no I/O: pushes are the pusher's, writes are the
//! writers'. While another process leads it does everything but publish, so that it can take over
//! at once.

use crate::{
    fleet::{Fleet, News},
    health::Health,
    kind::Kind,
    leader::Leadership,
    metrics::Metrics,
    outbox::Outbox,
    shutdown::Shutdown,
    source::{LIMIT_QUEUE, Message},
};
use baton_index::{Change, ClassVerdict, ConditionKind, Index, Status, Text, Update};
use baton_push::SPANS;
use jiff::Timestamp;
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, interval, timeout_at},
};
use tracing::{field::Empty, info, trace_span};

/// Changes that come within this time of each other are folded together: a rolling update touches a
/// Pod, its slice and its Service within a millisecond or two. Small beside the 100 ms that an
/// endpoint's way to the dataplane may take.
const COALESCE: Duration = Duration::from_millis(2);
/// The task turns at least this often, which the liveness probe sees.
const BEAT: Duration = Duration::from_secs(5);
/// A push under way at the end has this long. A dataplane answers within milliseconds; the Lease
/// lasts longer.
const LAST_PUSHES: Duration = Duration::from_secs(3);

/// Of conditions, as they are counted.
const STATUSES: [Status; 3] = [Status::True, Status::False, Status::Unknown];

/// What the core works with.
pub struct Core {
    /// What is known.
    pub index: Index,
    /// From the source.
    pub messages: mpsc::Receiver<Message>,
    /// Whether this process leads.
    pub leadership: watch::Receiver<Leadership>,
    /// Dataplanes and shims.
    pub fleet: Fleet,
    /// Statuses, Events, costs.
    pub outbox: Arc<Outbox>,
    /// For the probes.
    pub health: Arc<Health>,
    /// Figures.
    pub metrics: Metrics,
    /// Kinds of which not all is known yet.
    pub unsynced: BTreeSet<Kind>,
    /// Changes since the last fold.
    pub taken: usize,
}

fn number(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Core {
    /// Turns until the process shall end or the source has ended.
    pub async fn run(mut self, mut shutdown: Shutdown) {
        let mut beat = interval(BEAT);
        loop {
            self.health.beat();
            tokio::select! {
                biased;
                () = shutdown.wait() => break,
                changed = self.leadership.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    self.term();
                }
                message = self.messages.recv() => {
                    let Some(message) = message else { break };
                    self.batch(message).await;
                }
                news = self.fleet.news() => self.reports(news).await,
                _ = beat.tick() => self.count(),
            }
        }
        self.fleet.shutdown(LAST_PUSHES).await;
    }

    /// Takes what comes within a short time and folds it.
    async fn batch(&mut self, first: Message) {
        self.take(first);
        let end = Instant::now() + COALESCE;
        let mut taken = 1;
        // As many as can wait at most: whoever writes without a pause does not keep the others from
        // the dataplanes.
        while taken < LIMIT_QUEUE {
            match timeout_at(end, self.messages.recv()).await {
                Ok(Some(message)) => {
                    self.take(message);
                    taken += 1;
                }
                Ok(None) | Err(_) => break,
            }
        }
        let waiting = i64::try_from(self.messages.len()).unwrap_or(i64::MAX);
        self.metrics.queue_depth.set(waiting);
        // What dataplanes have said by now, which else would wait as long as objects change.
        self.hear(Vec::new(), Instant::now()).await;
        self.fold();
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Change(change) => self.change(change),
            Message::Refused(class) => self.refused(class),
            Message::Partial(partial) => self.change(Change::Partial(partial)),
            Message::Synced(kind) => {
                if self.unsynced.remove(&kind) && self.unsynced.is_empty() {
                    info!("all kinds are known");
                    self.fleet.ready();
                }
            }
        }
    }

    /// A class cannot be used as it is now. What is in force of it is not touched; its status says
    /// so.
    fn refused(&self, class: Text) {
        if !self.fleet.leads() {
            return;
        }
        let known = self.index.class_verdicts().find(|v| v.class == class);
        let verdict = known.cloned().unwrap_or_else(|| ClassVerdict {
            class,
            observed_generation: 0,
            dataplanes: 0,
            ready: 0,
            synchronised: 0,
            policies: 0,
            over_limit: 0,
            problem: None,
            instances: Vec::new(),
        });
        self.outbox.class_verdict(verdict);
    }

    fn change(&mut self, change: Change) {
        self.taken += 1;
        self.fleet.see(&change);
        self.index.apply(change);
    }

    /// Takes what dataplanes and shims say.
    async fn reports(&mut self, first: News) {
        let changes = self.fleet.heard(first);
        self.hear(changes, Instant::now() + COALESCE).await;
        self.fold();
    }

    /// Takes these changes and what dataplanes and shims say until `end`.
    async fn hear(&mut self, mut changes: Vec<Change>, end: Instant) {
        let mut heard = 0;
        while heard < LIMIT_QUEUE
            && let Ok(news) = timeout_at(end, self.fleet.news()).await
        {
            changes.extend(self.fleet.heard(news));
            heard += 1;
        }
        self.apply(changes);
    }

    /// A half-known world is not folded: it would give half a snapshot, and whoever is not in it
    /// would lose its connections.
    fn fold(&mut self) {
        if !self.unsynced.is_empty() {
            return;
        }
        let started = Instant::now();
        let span = trace_span!(
            target: SPANS, "fold", changes = number(std::mem::take(&mut self.taken)), translated = Empty, judged = Empty,
            classes = Empty, events = Empty
        );
        let entered = span.enter();
        let update = self.index.fold(Timestamp::now().as_second());
        span.record("translated", number(update.translated));
        span.record("judged", number(update.judged));
        span.record("classes", number(update.classes.len()));
        span.record("events", number(update.events.len()));
        drop(entered);
        drop(span);
        self.metrics.folds.inc();
        self.metrics.fold_seconds.observe(started.elapsed().as_secs_f64());
        let left = self.pass_on(update);
        if !left.is_empty() {
            self.apply(left);
            // Who has left does not leave again.
            self.fold();
        }
    }

    fn apply(&mut self, changes: Vec<Change>) {
        self.taken += changes.len();
        for change in changes {
            self.index.apply(change);
        }
    }

    /// Gives what dataplanes and shims that have left said, to be forgotten.
    fn pass_on(&mut self, update: Update) -> Vec<Change> {
        for (class, change) in update.classes {
            self.fleet.update(class, change);
        }
        self.fleet.want(self.index.wants());
        let left = self.fleet.publish();
        if self.fleet.leads() {
            self.health.folded();
            for verdict in update.verdicts {
                self.outbox.verdict(&verdict);
            }
            for verdict in update.class_verdicts {
                self.outbox.class_verdict(verdict);
            }
            for event in update.events {
                self.outbox.notice(event.into());
            }
            for (pod, cost) in update.costs {
                self.outbox.cost(pod, cost);
            }
            for (service, writes) in &update.fronts {
                self.outbox.front(service, writes);
            }
        }
        left
    }

    /// A term of leadership begins or ends.
    fn term(&mut self) {
        let leadership = *self.leadership.borrow_and_update();
        let epoch = leadership.epoch();
        self.metrics.leader.set(i64::from(epoch.is_some()));
        self.metrics.epoch.set(epoch.map_or(0, i64::from));
        self.health.leading(epoch.is_some());
        self.outbox.clear();
        for change in self.fleet.term(epoch) {
            self.index.apply(change);
        }
        if epoch.is_some() {
            self.index.recall_costs();
            self.index.recall_fronts();
        }
        self.fold();
        if epoch.is_some() && self.unsynced.is_empty() {
            // What was said while another process led was said to nobody.
            for verdict in self.index.verdicts() {
                self.outbox.verdict(verdict);
            }
            for verdict in self.index.class_verdicts() {
                self.outbox.class_verdict(verdict.clone());
            }
            for (pod, cost) in self.index.costs() {
                self.outbox.cost(pod.clone(), Some(cost));
            }
            for (service, writes) in self.index.fronts() {
                self.outbox.front(service, writes);
            }
        }
    }

    /// Not with each fold: a change of one endpoint shall not cost a look at all policies.
    fn count(&self) {
        let mut counts = [[0_i64; STATUSES.len()]; ConditionKind::ALL.len()];
        for condition in self.index.verdicts().flat_map(|verdict| &verdict.conditions) {
            let status = STATUSES.iter().position(|s| *s == condition.status);
            if let Some(status) = status {
                counts[condition.kind as usize][status] += 1;
            }
        }
        for kind in ConditionKind::ALL {
            for (status, count) in STATUSES.iter().zip(counts[kind as usize]) {
                let labels = [kind.as_str(), status.as_str()];
                self.metrics.policies.with_label_values(&labels).set(count);
            }
        }
        let coverage = self.index.coverage();
        for (state, count) in coverage.nodes() {
            let gauge = self.metrics.backend_nodes.with_label_values(&[state]);
            gauge.set(number(count));
        }
        for (reason, count) in coverage.pods() {
            let gauge = self.metrics.unadoptable_pods.with_label_values(&[reason]);
            gauge.set(number(count));
        }
    }
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
