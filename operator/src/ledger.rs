//! What statuses the objects have in the API server, as far as it matters for writing the next one.
//!
//! Owns a digest of each status and the times of its conditions: some 300 bytes of what may be 20
//! KB. The source notes what it reads, the writer what it wrote.

use crate::{
    digest::{Digests, digest},
    kind::Kind,
};
use baton_crds::{BatonDataplaneStatus, Condition, ConditionStatus, LoadBalancerPolicyStatus};
use baton_index::{ConditionKind, Key, Reason, Refusal};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::Value;
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Notify;

/// What is known of each object's status.
#[derive(Debug, Default)]
pub struct Ledger {
    entries: Mutex<Entries>,
    /// Some object is no more.
    forgot: Notify,
}

type Entries = HashMap<Kind, HashMap<Key, Entry>>;

/// One object's.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// `metadata.uid`; empty where there is none.
    pub uid: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// Of the whole status.
    pub digests: Digests,
    /// Of the conditions only, with their generation.
    pub conditions_digest: u64,
    /// Of those of them that are the object's own affair.
    pub pressing_digest: u64,
    /// Since when each condition is as it is.
    pub since: Vec<Since>,
    /// Why the object as it is now cannot be used, where the index does not know.
    pub refusal: Option<Refusal>,
}

/// Since when a condition has its status.
#[derive(Clone, Debug, PartialEq)]
pub struct Since {
    kind: String,
    status: ConditionStatus,
    time: Time,
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        // Entries are replaced whole.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an object as it was read.
    pub fn note(&self, kind: Kind, key: &Key, meta: &ObjectMeta, status: &Value) {
        // A status that cannot be read is as good as none: the next one replaces it.
        let read = match kind {
            Kind::Class => serde_json::from_value::<BatonDataplaneStatus>(status.clone())
                .ok()
                .map(|status| (Digests::class(&status), status.conditions)),
            _ => serde_json::from_value::<LoadBalancerPolicyStatus>(status.clone())
                .ok()
                .map(|status| (Digests::policy(&status), status.conditions)),
        };
        let (digests, conditions) = read.unwrap_or_default();
        let mut entries = self.lock();
        let entry = entries.entry(kind).or_default();
        let entry = entry.entry(key.clone()).or_default();
        entry.uid = meta.uid.clone().unwrap_or_default();
        entry.generation = meta.generation.unwrap_or_default();
        entry.set(digests, &conditions);
    }

    /// Notes a status that was written.
    pub fn written(&self, kind: Kind, key: &Key, digests: Digests, conditions: &[Condition]) {
        // Not for an object that has gone meanwhile.
        if let Some(entry) = self.lock().get_mut(&kind).and_then(|all| all.get_mut(key)) {
            entry.set(digests, conditions);
        }
    }

    /// Notes that an object cannot be used.
    pub fn refuse(&self, kind: Kind, key: &Key, refusal: Refusal) {
        let mut entries = self.lock();
        let entry = entries.entry(kind).or_default();
        entry.entry(key.clone()).or_default().refusal = Some(refusal);
    }

    /// Notes that it can.
    pub fn accept(&self, kind: Kind, key: &Key) {
        if let Some(entry) = self.lock().get_mut(&kind).and_then(|all| all.get_mut(key)) {
            entry.refusal = None;
        }
    }

    /// The object is no more.
    pub fn forget(&self, kind: Kind, key: &Key) {
        if let Some(all) = self.lock().get_mut(&kind) {
            all.remove(key);
        }
        self.forgot.notify_one();
    }

    /// Waits until some object is no more. For one who waits.
    pub async fn forgot(&self) {
        self.forgot.notified().await;
    }

    /// What is known of an object; nothing if there is none.
    pub fn get(&self, kind: Kind, key: &Key) -> Option<Entry> {
        self.lock().get(&kind)?.get(key).cloned()
    }

    /// How many objects of a kind there are.
    pub fn count(&self, kind: Kind) -> usize {
        self.lock().get(&kind).map_or(0, HashMap::len)
    }

    /// How many objects of a kind cannot be used.
    pub fn refused(&self, kind: Kind) -> usize {
        let entries = self.lock();
        let of_kind = entries.get(&kind).into_iter().flat_map(HashMap::values);
        of_kind.filter(|entry| entry.refusal.is_some()).count()
    }
}

impl Entry {
    fn set(&mut self, digests: Digests, conditions: &[Condition]) {
        self.digests = digests;
        self.conditions_digest = conditions_digest(conditions);
        self.pressing_digest = pressing_digest(conditions);
        self.since = conditions
            .iter()
            .map(|condition| Since {
                kind: condition.type_.clone(),
                status: condition.status,
                time: condition.last_transition_time.clone(),
            })
            .collect();
    }

    /// Whether the condition `kind` is true.
    pub fn holds(&self, kind: &str) -> bool {
        let mut since = self.since.iter();
        since.any(|s| s.kind == kind && s.status == ConditionStatus::True)
    }

    /// When the condition `kind` became `status`: as long ago as is known, or now.
    pub fn transition(&self, kind: &str, status: ConditionStatus, now: Timestamp) -> Time {
        let since = self.since.iter().find(|since| since.kind == kind);
        match since.filter(|since| since.status == status) {
            Some(since) => since.time.clone(),
            None => Time(now),
        }
    }
}

/// Of conditions.
pub fn conditions_digest(conditions: &[Condition]) -> u64 {
    digest(&conditions)
}

/// Of conditions, but for whether `Degraded` says that a dataplane cannot be reached. That is so
/// for all policies of a class at once, its status says it, the dataplane goes on with what it has,
/// and mostly it is over soon.
pub fn pressing_digest(conditions: &[Condition]) -> u64 {
    let degraded = ConditionKind::Degraded.as_str();
    let calm = [Reason::AsExpected, Reason::DataplaneUnreachable].map(Reason::as_str);
    let pressing =
        conditions.iter().filter(|c| c.type_ != degraded || !calm.contains(&c.reason.as_str()));
    digest(&pressing.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn meta(generation: i64) -> ObjectMeta {
        ObjectMeta {
            uid: Some("u".to_owned()),
            generation: Some(generation),
            ..ObjectMeta::default()
        }
    }

    fn status(flows: i64, time: &str) -> Value {
        json!({"flows": flows, "figuresTime": time, "conditions": [{
            "type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "observedGeneration": 1,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]})
    }

    #[test]
    fn a_status_is_known_by_its_digest_and_the_time_of_figures_is_no_news() {
        let ledger = Ledger::default();
        let key = Key::new("shop", "web");
        assert!(ledger.get(Kind::Policy, &key).is_none());
        let mut digests = Vec::new();
        for (flows, time) in
            [(1, "2026-01-01T00:00:00Z"), (1, "2026-02-01T00:00:00Z"), (2, "2026-01-01T00:00:00Z")]
        {
            ledger.note(Kind::Policy, &key, &meta(1), &status(flows, time));
            digests.push(ledger.get(Kind::Policy, &key).expect("noted").digests.whole);
        }
        assert_eq!(digests[0], digests[1]);
        assert_ne!(digests[0], digests[2]);
        ledger.forget(Kind::Policy, &key);
        assert_eq!(ledger.count(Kind::Policy), 0);
        ledger.written(Kind::Policy, &key, Digests::default(), &[]);
        assert!(ledger.get(Kind::Policy, &key).is_none(), "gone stays gone");
    }

    #[test]
    fn a_transition_is_as_old_as_the_status_and_new_when_it_changes() {
        let ledger = Ledger::default();
        let key = Key::new("shop", "web");
        ledger.note(Kind::Policy, &key, &meta(1), &status(1, "2026-01-01T00:00:00Z"));
        let entry = ledger.get(Kind::Policy, &key).expect("noted");
        let now: Timestamp = "2026-06-01T00:00:00Z".parse().expect("a time");
        let then: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        let transition = |kind, status| entry.transition(kind, status, now).0;
        assert_eq!(transition("Accepted", ConditionStatus::True), then);
        assert_eq!(transition("Accepted", ConditionStatus::False), now);
        assert_eq!(transition("Programmed", ConditionStatus::True), now);
    }

    #[test]
    fn a_dataplane_that_cannot_be_reached_does_not_press_and_all_else_does() {
        let conditions = |degraded: &str, reason: &str, accepted: &str| -> Vec<Condition> {
            let condition = |kind: &str, status: &str, reason: &str| {
                serde_json::from_value(json!({
                    "type": kind, "status": status, "reason": reason, "message": reason, "observedGeneration": 1,
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }))
                .expect("a condition")
            };
            vec![condition("Accepted", accepted, "x"), condition("Degraded", degraded, reason)]
        };
        let calm = conditions("False", "AsExpected", "True");
        let unreachable = conditions("True", "DataplaneUnreachable", "True");
        assert_eq!(pressing_digest(&calm), pressing_digest(&unreachable));
        assert_ne!(conditions_digest(&calm), conditions_digest(&unreachable));
        for other in [
            conditions("True", "NoEndpoints", "True"),
            conditions("True", "DataplaneUnreachable", "False"),
        ] {
            assert_ne!(pressing_digest(&calm), pressing_digest(&other));
        }
    }

    #[test]
    fn what_cannot_be_read_is_as_good_as_no_status_and_refusals_are_counted() {
        let ledger = Ledger::default();
        let key = Key::new("", "edge");
        ledger.note(Kind::Class, &key, &meta(1), &json!({"conditions": "many"}));
        let entry = ledger.get(Kind::Class, &key).expect("noted");
        assert_eq!(entry.digests, Digests::default());
        let refusal = Refusal { field: "spec".into(), problem: "bad".into() };
        ledger.refuse(Kind::Class, &key, refusal);
        assert_eq!((ledger.refused(Kind::Class), ledger.refused(Kind::Policy)), (1, 0));
        ledger.accept(Kind::Class, &key);
        assert_eq!(ledger.refused(Kind::Class), 0);
    }
}
