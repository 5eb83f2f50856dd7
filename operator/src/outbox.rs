//! What is to be written: statuses, Events, deletion costs. Filled by the core, emptied by the
//! writers.
//!
//! Owns what is urgent. The queues coalesce by object, so nothing here grows with time.
//!
//! # Decisions
//!
//! - **Figures in statuses are rough while traffic flows**: with a write every 15 s for each
//!   policy, 5,000 busy ones were 333 writes a second into etcd and to every watcher, without
//!   pause. Now at most 20 a second of all together, those first that changed by more than a tenth;
//!   conditions still go at once.
//! - **A class that does not serve its newest snapshot yet is no news for some seconds**: with two
//!   writes for each snapshot, 50 changes of endpoints a second were 100 writes of one object.

use crate::{
    coalescing::CoalescingQueue,
    digest::{Digests, rough, settled, whole},
    kind::Kind,
    ledger::{Entry, Ledger, pressing_digest},
    metrics::Metrics,
    notice::Notice,
    status,
};
use baton_crds::{ConditionStatus, LoadBalancerPolicyStatus};
use baton_index::{ClassVerdict, ConditionKind, FrontWrites, Key, Text, Verdict};
use jiff::Timestamp;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::mpsc::{Receiver, Sender, channel, error::TrySendError},
    time::Instant,
};
use tracing::warn;

/// What does not press, as how many pods there are, or that a dataplane cannot be reached and goes
/// on with what it has: what is over within this time is not written at all, for none of the
/// policies of its class. Other changes of conditions do not wait.
const SETTLED_EVERY: Duration = Duration::from_secs(15);
/// Figures alone change all the time: 5,000 policies with traffic would be 2,500 writes a second.
/// Of one policy they are written this often if they changed by more than about a tenth, but of all
/// policies together no more often than [`FIGURES_PAUSE`] says: etcd keeps and syncs every one, and
/// says it to whoever watches.
const FIGURES_EVERY: Duration = Duration::from_secs(30);
/// The same for what changed by less.
const FIGURES_EXACT_EVERY: Duration = Duration::from_secs(300);
/// On average between two writes of figures alone: 20 a second at most, so 5,000 policies have
/// theirs every 250 s.
const FIGURES_PAUSE: Duration = Duration::from_millis(50);
/// Events that wait. What does not fit is counted; conditions say the same.
const LIMIT_EVENTS: usize = 1_000;

/// What is to be written.
pub struct Outbox {
    /// Of policies.
    pub policies: CoalescingQueue<Key, Arc<Verdict>>,
    /// Of classes.
    pub classes: CoalescingQueue<Text, ClassVerdict>,
    /// `pod-deletion-cost` of Pods.
    pub costs: CoalescingQueue<Key, Option<i32>>,
    /// Services in front of dataplanes, and their slices.
    pub fronts: CoalescingQueue<Key, Arc<FrontWrites>>,
    events: Sender<Notice>,
    ledger: Arc<Ledger>,
    metrics: Metrics,
}

impl Outbox {
    /// Empty, and where its Events come out.
    pub fn new(ledger: Arc<Ledger>, metrics: Metrics) -> (Self, Receiver<Notice>) {
        let (events, receiver) = channel(LIMIT_EVENTS);
        let outbox = Self {
            policies: CoalescingQueue::default(),
            classes: CoalescingQueue::default(),
            costs: CoalescingQueue::default(),
            fronts: CoalescingQueue::default(),
            events,
            ledger,
            metrics,
        };
        (outbox, receiver)
    }

    /// A policy's status is to be this, if it is not.
    pub fn verdict(&self, verdict: &Arc<Verdict>) {
        let key = verdict.policy.clone();
        let Some(before) = self.ledger.get(Kind::Policy, &key) else {
            // It has gone.
            return;
        };
        let wanted = status::policy(verdict, &before, Timestamp::now());
        if self.policies.is_under_way(&key) {
            // What is there is about to change; the writer compares again.
            self.policies.urgent(key, Arc::clone(verdict));
        } else if whole(&wanted) == before.digests.whole {
            self.policies.remove(&key);
        } else if pressing_digest(&wanted.conditions) == before.pressing_digest {
            let due = Instant::now() + self.pause(&wanted, &before);
            self.policies.later(key, Arc::clone(verdict), due);
        } else {
            self.policies.urgent(key, Arc::clone(verdict));
        }
        self.waiting("status", self.policies.len());
    }

    /// How long a status that does not press waits.
    fn pause(&self, wanted: &LoadBalancerPolicyStatus, before: &Entry) -> Duration {
        if settled(wanted) != before.digests.settled {
            return SETTLED_EVERY;
        }
        let policies = u32::try_from(self.ledger.count(Kind::Policy)).unwrap_or(u32::MAX);
        let share = FIGURES_PAUSE.saturating_mul(policies);
        share.max(if rough(wanted) != before.digests.rough {
            FIGURES_EVERY
        } else {
            FIGURES_EXACT_EVERY
        })
    }

    /// A class's status is to be this, if it is not.
    pub fn class_verdict(&self, verdict: ClassVerdict) {
        let class = verdict.class.clone();
        let Some(before) = self.ledger.get(Kind::Class, &Key::new("", class.clone())) else {
            // It has gone.
            return;
        };
        let wanted = status::class(&verdict, before.refusal.as_ref(), &before, Timestamp::now());
        let digests = Digests::class(&wanted);
        let programmed = ConditionKind::Programmed.as_str();
        let mut conditions = wanted.conditions.iter();
        let holds = conditions.any(|c| c.type_ == programmed && c.status == ConditionStatus::True);
        if self.classes.is_under_way(&class) {
            // As with policies.
            self.classes.urgent(class, verdict);
        } else if digests == before.digests {
            self.classes.remove(&class);
        } else if digests.settled == before.digests.settled && (!holds || before.holds(programmed))
        {
            let due = Instant::now() + SETTLED_EVERY;
            self.classes.later(class, verdict, due);
        } else {
            self.classes.urgent(class, verdict);
        }
        self.waiting("class-status", self.classes.len());
    }

    /// A Pod's deletion cost is to be this.
    pub fn cost(&self, pod: Key, cost: Option<i32>) {
        self.costs.urgent(pod, cost);
        self.waiting("deletion-cost", self.costs.len());
    }

    /// This is to be written of a Service in front of dataplanes.
    pub fn front(&self, service: &Key, writes: &Arc<FrontWrites>) {
        if writes.is_empty() {
            self.fronts.remove(service);
        } else {
            self.fronts.urgent(service.clone(), Arc::clone(writes));
        }
        self.waiting("frontend", self.fronts.len());
    }

    /// Something that people want to know.
    pub fn notice(&self, notice: Notice) {
        match self.events.try_send(notice) {
            Ok(()) => {}
            Err(TrySendError::Full(notice)) => {
                self.metrics.writes.with_label_values(&["event", "dropped"]).inc();
                warn!(object = %notice.about.key(), reason = notice.reason, "too many Events at once: this one is not written");
            }
            // The writers have ended.
            Err(TrySendError::Closed(_)) => {}
        }
    }

    /// Nothing is to be written any more, by this process.
    pub fn clear(&self) {
        self.policies.clear();
        self.classes.clear();
        self.costs.clear();
        self.fronts.clear();
        for what in ["status", "class-status", "deletion-cost", "frontend"] {
            self.waiting(what, 0);
        }
    }

    /// Shows how many wait.
    pub fn waiting(&self, what: &str, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.metrics.writes_waiting.with_label_values(&[what]).set(count);
    }
}

#[cfg(test)]
#[path = "outbox_tests.rs"]
mod tests;
