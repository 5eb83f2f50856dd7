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
use std::{collections::BTreeSet, sync::Arc};
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
        let mut written = BTreeSet::new();
        loop {
            tokio::select! {
                () = shutdown.wait() => return,
                () = self.ledger.forgot() => self.clear(&mut written),
                (key, verdict, _turn) = self.outbox.policies.next() => {
                    self.policy(&key, &verdict);
                    written.insert((Kind::Policy, key));
                    self.outbox.waiting("status", self.outbox.policies.len());
                }
                (class, verdict, _turn) = self.outbox.classes.next() => {
                    self.class(&verdict);
                    written.insert((Kind::Class, Key::new("", class)));
                }
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

    /// Statuses of objects that are no more go with them.
    fn clear(&self, written: &mut BTreeSet<(Kind, Key)>) {
        written.retain(|(kind, key)| {
            let is_there = self.ledger.get(*kind, key).is_some();
            if !is_there {
                self.remove(&name(*kind, key));
            }
            is_there
        });
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
        let written =
            serde_saphyr::to_string(&object).map_err(anyhow::Error::from).and_then(|text| {
                self.state
                    .write_derived(format!("{DIRECTORY}/{}", name(kind, key)), text.as_bytes())
            });
        let result = if written.is_ok() { "written" } else { "failed" };
        self.metrics.writes.with_label_values(&["status", result]).inc();
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
    let name = if key.namespace.is_empty() { key.name.to_string() } else { key.to_string() };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shutdown::shutdown;
    use baton_index::{Change, Index, Policy, Refusal};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use std::{path::Path, time::Duration};
    use tokio::time::{sleep, timeout};

    async fn until(is_there: bool, file: &Path) {
        let became = async {
            while file.exists() != is_there {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let in_time = timeout(Duration::from_secs(30), became).await;
        in_time.unwrap_or_else(|_| panic!("{}: not {is_there}", file.display()));
    }

    #[tokio::test]
    async fn a_status_goes_with_its_object() {
        let path = std::env::temp_dir().join(format!("baton-statuses-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let (ledger, metrics) = (Arc::new(Ledger::default()), Metrics::new().expect("figures"));
        let (outbox, events) = Outbox::new(Arc::clone(&ledger), metrics.clone());
        let outbox = Arc::new(outbox);
        let files = Files {
            state: Arc::new(StateDir::open(&path).expect("a directory")),
            outbox: Arc::clone(&outbox),
            events,
            ledger: Arc::clone(&ledger),
            metrics,
        };
        let (_trigger, ended) = shutdown();
        tokio::spawn(files.run(ended));
        let mut index = Index::of_files();
        for name in ["web", "other"] {
            let key = Key::new("shop", name);
            let policy = Policy {
                uid: "".into(),
                created: 0,
                generation: 0,
                service: name.into(),
                listeners: Vec::new(),
                template: Err(Refusal { field: "spec.x".into(), problem: "bad".into() }),
                weights: None,
                classes: baton_index::Labels::default(),
                frontend: None,
                allow_from: None,
                deletion_cost: false,
                drain_cordoned: false,
            };
            ledger.note(Kind::Policy, &key, &ObjectMeta::default(), &Value::Null);
            index.apply(Change::Policy(key, Some(Arc::new(policy))));
        }
        for verdict in index.fold(100).verdicts {
            outbox.verdict(&verdict);
        }
        let status = |name: &str| {
            let file = format!("loadbalancerpolicy_shop_{name}.yaml");
            path.join(DIRECTORY).join(file)
        };
        until(true, &status("web")).await;
        until(true, &status("other")).await;
        ledger.forget(Kind::Policy, &Key::new("shop", "web"));
        until(false, &status("web")).await;
        assert!(status("other").exists());
        std::fs::remove_dir_all(path).expect("removed");
    }
}
