//! Statuses and deletion costs in the API server, by server-side apply.
//!
//! Owns how much is written at a time. Each concern has a field manager of its own and applies only
//! its fields. Writes only while this process leads: what is under way when the Lease is lost is
//! dropped.

use super::told::Told;
use crate::{
    coalescing::CoalescingQueue,
    digest::Digests,
    kind::Kind,
    leader::Leadership,
    ledger::Ledger,
    metrics::Metrics,
    objects::{COST_MANAGER, Pod, RawClass, RawPolicy},
    outbox::Outbox,
    status,
};
use baton_index::{ClassVerdict, DELETION_COST_ANNOTATION, FrontWrites, Key, Text, Verdict};
use baton_push::SPANS;
use jiff::Timestamp;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    core::Status,
};
use serde_json::{Value, json};
use std::{
    hash::Hash,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tracing::{Instrument as _, debug, field::Empty, trace_span, warn};

/// Of statuses.
const STATUS_MANAGER: &str = "baton-operator-status";
/// Writes of one concern under way at one time.
const CONCURRENT: usize = 16;
/// Between the beginnings of two writes of one concern: 200 a second, so that a burst of 1,000
/// policies is answered within some seconds and other clients of the API server hardly notice.
const PACE: Duration = Duration::from_millis(5);
/// One request.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// What the API server says to an apply of a Pod that is gone: no operator may make one.
const CANNOT_MAKE_PODS: &str = "cannot create resource \"pods\"";
/// What failed is tried again after this long, if nothing newer came.
const RETRY: Duration = Duration::from_secs(2);

/// Writes.
#[derive(Clone)]
pub struct Writer {
    /// To the API server.
    pub client: Client,
    /// What is to be written.
    pub outbox: Arc<Outbox>,
    /// What was written.
    pub ledger: Arc<Ledger>,
    /// Figures.
    pub metrics: Metrics,
    /// What policies were told of their Services: once.
    pub told: Arc<Mutex<Told>>,
}

/// What became of a write.
pub(super) enum Written {
    /// It is there.
    Done,
    /// The object is not there any more, or has nothing to be changed.
    Moot,
    /// It never will be, in the API server's words.
    Refused(String),
    /// Not now, in the API server's words: a quota, or a rule of the cluster's. Again later.
    Forbidden(String),
    /// Again later.
    Failed,
}

impl Written {
    pub(super) fn is_for_later(&self) -> bool {
        matches!(self, Self::Forbidden(_) | Self::Failed)
    }
}

impl Writer {
    /// Writes until dropped.
    pub async fn run(self, mut leadership: watch::Receiver<Leadership>) {
        loop {
            let leading = |leadership: &Leadership| leadership.epoch().is_some();
            if leadership.wait_for(leading).await.is_err() {
                return;
            }
            tokio::select! {
                () = self.all() => {}
                _ = leadership.wait_for(|l| !leading(l)) => {}
            }
        }
    }

    async fn all(&self) {
        let policies = pump(&self.outbox.policies, |key: Key, verdict: Arc<Verdict>| {
            let this = self.clone();
            async move {
                let written = this.policy(&key, &verdict).await;
                if written.is_for_later() {
                    this.outbox.policies.again(key, verdict, Instant::now() + RETRY);
                }
                this.outbox.waiting("status", this.outbox.policies.len());
            }
        });
        let classes = pump(&self.outbox.classes, |key: Text, verdict: ClassVerdict| {
            let this = self.clone();
            async move {
                let written = this.class(&verdict).await;
                if written.is_for_later() {
                    this.outbox.classes.again(key, verdict, Instant::now() + RETRY);
                }
                this.outbox.waiting("class-status", this.outbox.classes.len());
            }
        });
        let costs = pump(&self.outbox.costs, |pod: Key, cost: Option<i32>| {
            let this = self.clone();
            async move {
                let written = this.cost(&pod, cost).await;
                if written.is_for_later() {
                    this.outbox.costs.again(pod, cost, Instant::now() + RETRY);
                }
                this.outbox.waiting("deletion-cost", this.outbox.costs.len());
            }
        });
        let fronts = pump(&self.outbox.fronts, |key: Key, writes: Arc<FrontWrites>| {
            let this = self.clone();
            async move {
                let written = this.front(&key, &writes).await;
                if written.is_for_later() {
                    this.outbox.fronts.again(key, writes, Instant::now() + RETRY);
                }
                this.outbox.waiting("frontend", this.outbox.fronts.len());
            }
        });
        tokio::join!(policies, classes, costs, fronts);
    }

    async fn policy(&self, key: &Key, verdict: &Verdict) -> Written {
        let Some(before) = self.ledger.get(Kind::Policy, key) else {
            return Written::Moot;
        };
        let status = status::policy(verdict, &before, Timestamp::now());
        let digests = Digests::policy(&status);
        if digests == before.digests {
            return Written::Moot;
        }
        let api: Api<RawPolicy> = Api::namespaced(self.client.clone(), &key.namespace);
        let object = object(Kind::Policy, key, &verdict.uid, &json!(status));
        let patch = Patch::Apply(object);
        let params = PatchParams::apply(STATUS_MANAGER).force();
        let request = api.patch_status(&key.name, &params, &patch);
        let written = self.outcome("status", key, request).await;
        if matches!(written, Written::Done) {
            self.ledger.written(Kind::Policy, key, digests, &status.conditions);
        }
        written
    }

    async fn class(&self, verdict: &ClassVerdict) -> Written {
        let key = Key::new("", Arc::clone(&verdict.class));
        let Some(before) = self.ledger.get(Kind::Class, &key) else {
            return Written::Moot;
        };
        let status = status::class(verdict, before.refusal.as_ref(), &before, Timestamp::now());
        let digests = Digests::class(&status);
        if digests == before.digests {
            return Written::Moot;
        }
        let api: Api<RawClass> = Api::all(self.client.clone());
        let object = object(Kind::Class, &key, &before.uid, &json!(status));
        let patch = Patch::Apply(object);
        let params = PatchParams::apply(STATUS_MANAGER).force();
        let request = api.patch_status(&key.name, &params, &patch);
        let written = self.outcome("class-status", &key, request).await;
        if matches!(written, Written::Done) {
            self.ledger.written(Kind::Class, &key, digests, &status.conditions);
        }
        written
    }

    async fn cost(&self, pod: &Key, cost: Option<i32>) -> Written {
        let annotations = cost.map(|cost| json!({DELETION_COST_ANNOTATION: cost.to_string()}));
        let mut metadata = json!({"name": &*pod.name, "namespace": &*pod.namespace});
        if let Some(annotations) = annotations {
            metadata["annotations"] = annotations;
        }
        let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata});
        let patch = Patch::Apply(object);
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        // Not by force: an annotation that somebody else set stays theirs.
        let params = PatchParams::apply(COST_MANAGER);
        let request = api.patch(&pod.name, &params, &patch);
        self.outcome("deletion-cost", pod, request).await
    }

    pub(super) async fn outcome<T>(
        &self,
        what: &str,
        key: &Key,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Written {
        let span = trace_span!(
            target: SPANS, "write", otel.kind = "client", what, object = %key, outcome = Empty, otel.status_code = Empty
        );
        let answer = timeout(REQUEST_LIMIT, request).instrument(span.clone());
        let (word, written) = match answer.await {
            Ok(Ok(_)) => ("written", Written::Done),
            Ok(Err(kube::Error::Api(status))) => {
                // 404: gone. 409: another object of that name by now, or a field that is somebody
                // else's. 403 with `create`: a Pod that is gone, which an apply would make again.
                let is_gone = status.code == 404
                    || status.code == 409
                    || (status.code == 403 && status.message.contains(CANNOT_MAKE_PODS))
                    || is_anothers(&status);
                if is_gone {
                    debug!(what, object = %key, reason = status.message, "not written");
                    ("moot", Written::Moot)
                } else if status.code == 422 || status.code == 400 {
                    warn!(what, object = %key, reason = status.message, "refused: it is not written; please report it");
                    ("refused", Written::Refused(status.message))
                } else if status.code == 403 {
                    warn!(what, object = %key, reason = status.message, "may not be written; it is tried again");
                    ("failed", Written::Forbidden(status.message))
                } else {
                    warn!(what, object = %key, reason = status.message, "cannot be written; it is tried again");
                    ("failed", Written::Failed)
                }
            }
            Ok(Err(error)) => {
                warn!(what, object = %key, %error, "cannot be written; it is tried again");
                ("failed", Written::Failed)
            }
            Err(_) => {
                warn!(what, object = %key, "no answer from the API server in time; it is tried again");
                ("failed", Written::Failed)
            }
        };
        self.metrics.writes.with_label_values(&[what, word]).inc();
        span.record("outcome", word);
        if matches!(word, "failed" | "refused") {
            span.record("otel.status_code", "ERROR");
        }
        written
    }
}

/// Whether it is said of the uid that it cannot change: so the API server refuses an apply to
/// another Service of the name, which is a conflict with custom resources.
fn is_anothers(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 422 && causes.into_iter().any(|cause| cause.field == "metadata.uid")
}

/// The uid makes sure that another object that has the name by now does not get this one's status.
fn object(kind: Kind, key: &Key, uid: &str, status: &Value) -> Value {
    let mut metadata = json!({"name": &*key.name});
    if !key.namespace.is_empty() {
        metadata["namespace"] = json!(&*key.namespace);
    }
    if !uid.is_empty() {
        metadata["uid"] = json!(uid);
    }
    json!({"apiVersion": kind.api_version(), "kind": kind.as_str(), "metadata": metadata, "status": status})
}

/// Hands what waits to `write`, so many at a time and no faster than the pace. Ends only by being
/// dropped, and with it what is under way.
async fn pump<K, V, F>(queue: &CoalescingQueue<K, V>, write: impl Fn(K, V) -> F)
where
    K: Clone + Ord + Hash + Send + 'static,
    V: Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let free = Arc::new(Semaphore::new(CONCURRENT));
    let mut under_way = JoinSet::new();
    let mut pace = interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let Ok(permit) = Arc::clone(&free).acquire_owned().await else {
            // Nothing closes the semaphore.
            return;
        };
        while under_way.try_join_next().is_some() {}
        pace.tick().await;
        let (key, value, turn) = queue.next().await;
        let work = write(key, value);
        under_way.spawn(async move {
            work.await;
            drop((turn, permit));
        });
    }
}

#[cfg(test)]
#[path = "kubernetes_tests.rs"]
mod tests;
