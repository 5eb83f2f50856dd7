//! Statuses as files of the state directory, and as lines of the log.
//!
//! Owns `status/` there, which is made anew by each process and so needs to survive none. What the
//! Kubernetes writer says by Events is a line of the log here; there are no Pods to annotate.

use crate::{
    digest::Digests,
    kind::Kind,
    ledger::{Entry, Ledger, conditions_digest},
    metrics::Metrics,
    notice::{About, Notice},
    outbox::Outbox,
    shutdown::Shutdown,
    state_dir::StateDir,
    status,
};
use baton_crds::{Condition, ConditionStatus};
use baton_index::{ClassVerdict, Key, Verdict};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::mpsc::Receiver;
use tracing::{info, warn};

/// The directory in the state directory.
const DIRECTORY: &str = "status";

/// Writes.
pub struct Files {
    /// Where.
    pub state: Arc<StateDir>,
    /// What is to be written.
    pub outbox: Arc<Outbox>,
    /// What is to be logged.
    pub events: Receiver<Notice>,
    /// What was written.
    pub ledger: Arc<Ledger>,
    /// Figures.
    pub metrics: Metrics,
}

impl Files {
    /// Writes until the process shall end.
    pub async fn run(mut self, mut shutdown: Shutdown) {
        // Statuses of objects that may be no more.
        for name in self.state.names(DIRECTORY).unwrap_or_default() {
            self.remove(&name);
        }
        loop {
            tokio::select! {
                () = shutdown.wait() => return,
                (key, verdict, _turn) = self.outbox.policies.next() => {
                    self.policy(&key, &verdict);
                    self.outbox.waiting("status", self.outbox.policies.len());
                }
                (_, verdict, _turn) = self.outbox.classes.next() => self.class(&verdict),
                (pod, cost, _turn) = self.outbox.costs.next() => {
                    info!(%pod, cost, "what this Pod's deletion would cost; no Pod is annotated without an API server");
                }
                event = self.events.recv() => {
                    let Some(event) = event else { return };
                    log(&event);
                }
            }
        }
    }

    fn policy(&self, key: &Key, verdict: &Verdict) {
        self.status(Kind::Policy, key, |before| {
            let status = status::policy(verdict, before, Timestamp::now());
            (Digests::policy(&status), json!(status), status.conditions)
        });
    }

    fn class(&self, verdict: &ClassVerdict) {
        let key = Key::new("", Arc::clone(&verdict.class));
        self.status(Kind::Class, &key, |before| {
            let refusal = before.refusal.as_ref();
            let status = status::class(verdict, refusal, before, Timestamp::now());
            (Digests::class(&status), json!(status), status.conditions)
        });
    }

    fn status(
        &self,
        kind: Kind,
        key: &Key,
        make: impl FnOnce(&Entry) -> (Digests, Value, Vec<Condition>),
    ) {
        let Some(before) = self.ledger.get(kind, key) else {
            self.remove(&name(kind, key));
            return;
        };
        let (digests, status, conditions) = make(&before);
        if digests == before.digests {
            return;
        }
        if conditions_digest(&conditions) != before.conditions_digest {
            tell(kind, key, &conditions);
        }
        if self.write(kind, key, &status) {
            self.ledger.written(kind, key, digests, &conditions);
        }
    }

    fn write(&self, kind: Kind, key: &Key, status: &Value) -> bool {
        let mut metadata = json!({"name": &*key.name});
        if kind.is_namespaced() {
            metadata["namespace"] = json!(&*key.namespace);
        }
        let object = json!({
            "apiVersion": kind.api_version(), "kind": kind.as_str(), "metadata": metadata, "status": status,
        });
        let written = serde_saphyr::to_string(&object)
            .map_err(anyhow::Error::from)
            .and_then(|text| {
                self.state
                    .write_derived(format!("{DIRECTORY}/{}", name(kind, key)), text.as_bytes())
            });
        let result = if written.is_ok() { "written" } else { "failed" };
        self.metrics
            .writes
            .with_label_values(&["status", result])
            .inc();
        if let Err(error) = &written {
            warn!("a status cannot be written: {error:#}");
        }
        written.is_ok()
    }

    fn remove(&self, name: &str) {
        if let Err(error) = self.state.remove(format!("{DIRECTORY}/{name}")) {
            warn!("an old status cannot be removed: {error:#}");
        }
    }
}

/// Names of objects have no `_`, so it keeps apart.
fn name(kind: Kind, key: &Key) -> String {
    let kind = kind.as_str().to_lowercase();
    if key.namespace.is_empty() {
        format!("{kind}_{}.yaml", key.name)
    } else {
        format!("{kind}_{}_{}.yaml", key.namespace, key.name)
    }
}

fn tell(kind: Kind, key: &Key, conditions: &[Condition]) {
    let words: Vec<String> = conditions
        .iter()
        .map(|c| match c.status {
            ConditionStatus::True => format!("{}: yes ({})", c.type_, c.reason),
            ConditionStatus::False => format!("{}: no ({})", c.type_, c.reason),
            ConditionStatus::Unknown => format!("{}: unknown ({})", c.type_, c.reason),
        })
        .collect();
    let name = if key.namespace.is_empty() {
        key.name.to_string()
    } else {
        key.to_string()
    };
    info!("{} {name}: {}", kind.as_str(), words.join(", "));
}

fn log(notice: &Notice) {
    let About::Policy { key, .. } = &notice.about else {
        // Whoever changes keys and certificates logs that.
        return;
    };
    let reason = notice.reason;
    if notice.warning {
        warn!(policy = %key, reason, "{}", notice.message);
    } else {
        info!(policy = %key, reason, "{}", notice.message);
    }
}
