//! What of a policy's status is news, and how pressing: whole, without what traffic changes, and
//! with figures roughly.
//!
//! Owns which fields are figures. When they are written is the outbox's to say.

use baton_crds::{BatonDataplaneStatus, LoadBalancerPolicyStatus, STATUS_DRAINS_MAX};
use baton_index::Reason;
use serde::Serialize;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Of one status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// Of all but the time of its figures.
    pub whole: u64,
    /// Without what traffic changes, or a snapshot on its way.
    pub settled: u64,
    /// With figures roughly: one that changes by less than about a tenth, or was of a moment, is no
    /// news.
    pub rough: u64,
}

impl Digests {
    /// Of a policy's.
    pub fn policy(status: &LoadBalancerPolicyStatus) -> Self {
        Self { whole: whole(status), settled: settled(status), rough: rough(status) }
    }

    /// Of a class's. What is settled is all but how far its dataplanes are, which changes with each
    /// snapshot.
    pub fn class(status: &BatonDataplaneStatus) -> Self {
        let whole = digest(status);
        let mut settled = status.clone();
        (settled.dataplanes, settled.policies) = (None, None);
        settled.instances.clear();
        let passing = [Reason::Programmed, Reason::Pending].map(Reason::as_str);
        let conditions = &mut settled.conditions;
        conditions.retain(|c| !passing.contains(&c.reason.as_str()));
        Self { whole, settled: digest(&settled), rough: whole }
    }
}

/// Of a policy's status, but for the time of its figures, which alone is no news.
pub fn whole(status: &LoadBalancerPolicyStatus) -> u64 {
    let mut status = status.clone();
    status.figures_time = None;
    digest(&status)
}

/// Of what objects and dataplanes say, not of what clients do.
pub fn settled(status: &LoadBalancerPolicyStatus) -> u64 {
    let mut status = with_figures(status, |_| 0);
    status.pinned.clear();
    status.movable = None;
    // Which of many are shown goes by their flows.
    if status.backends_not_shown.is_some() {
        status.backend_figures.clear();
    }
    if status.drains.len() >= STATUS_DRAINS_MAX {
        status.drains.clear();
    }
    digest(&status)
}

/// Of a status with figures roughly.
pub fn rough(status: &LoadBalancerPolicyStatus) -> u64 {
    digest(&with_figures(status, roughly))
}

/// The first four binary digits: exact below 16, then in steps of at most an eighth.
fn roughly(figure: i64) -> i64 {
    let digits = 64 - figure.unsigned_abs().leading_zeros();
    let dropped = digits.saturating_sub(4);
    figure >> dropped << dropped
}

/// A status with each figure made another, in an order that does not go by them.
fn with_figures(
    status: &LoadBalancerPolicyStatus,
    change: impl Fn(i64) -> i64,
) -> LoadBalancerPolicyStatus {
    let mut status = status.clone();
    status.figures_time = None;
    let all = [
        &mut status.flows,
        &mut status.migrations,
        &mut status.rescued,
        &mut status.lost,
        &mut status.rollbacks,
        &mut status.replays,
    ];
    for figure in all.into_iter().flatten() {
        *figure = change(*figure);
    }
    for backend in &mut status.backend_figures {
        backend.outstanding = None;
        let all = [
            &mut backend.flows,
            &mut backend.pinned,
            &mut backend.migrations_in,
            &mut backend.migrations_out,
            &mut backend.rescued,
        ];
        for figure in all.into_iter().flatten() {
            *figure = change(*figure);
        }
    }
    if let Some(drained) = &mut status.drained {
        for figure in [&mut drained.moved, &mut drained.ended, &mut drained.closed] {
            *figure = change(*figure);
        }
    }
    // Times of drains are made of spans, in seconds, that are read at some time.
    if let Some(draining) = &mut status.draining {
        draining.by = None;
        draining.waiting = change(draining.waiting);
    }
    for drain in &mut status.drains {
        (drain.waiting_for, drain.since, drain.by) = (None, None, None);
        let all = [
            &mut drain.moved,
            &mut drain.ended,
            &mut drain.closed,
            &mut drain.reset,
            &mut drain.waiting,
        ];
        for figure in all.into_iter().flatten() {
            *figure = change(*figure);
        }
    }
    for pinned in &mut status.pinned {
        pinned.flows = change(pinned.flows);
    }
    status.pinned.sort_by(|a, b| a.reason.cmp(&b.reason));
    if let Some(movable) = &mut status.movable {
        movable.by_adoption = change(movable.by_adoption);
        movable.by_translation = change(movable.by_translation);
        movable.percent.clear();
    }
    let of = |listener: &str, name: &str| (listener.to_owned(), name.to_owned());
    status.backend_figures.sort_by_cached_key(|b| (of(&b.listener, &b.name), b.endpoint.clone()));
    status.drains.sort_by_cached_key(|d| of(&d.listener, &d.backend));
    status
}

/// Of anything that can be written.
pub fn digest(value: &impl Serialize) -> u64 {
    let text = serde_json::to_vec(value).unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn status() -> Value {
        let backend = |name: &str, flows: i64| {
            json!({"listener": "http", "name": name, "endpoint": format!("{name}:80"), "state": "Ready", "weight": 1,
                "flows": flows, "outstanding": 3, "migrationsIn": 5})
        };
        json!({"observedGeneration": 1, "flows": 100, "migrations": 2_000, "figuresTime": "2026-01-01T00:00:00Z",
            "backends": {"ready": 2, "total": 2, "summary": "2/2"},
            "backendFigures": [backend("a", 60), backend("b", 40)],
            "drained": {"moved": 7, "ended": 0, "closed": 0},
            "drains": [{"listener": "http", "backend": "c", "waiting": 30, "waitingFor": "30 request in progress",
                "by": "2026-01-01T00:00:10Z"}],
            "pinned": [{"reason": "TLS", "flows": 4}]})
    }

    fn of(value: &Value) -> Digests {
        Digests::policy(&serde_json::from_value(value.clone()).expect("a status"))
    }

    /// Which of the digests an edit changes: whole, settled, rough.
    fn news(edit: impl Fn(&mut Value)) -> (bool, bool, bool) {
        let mut changed = status();
        edit(&mut changed);
        let (before, after) = (of(&status()), of(&changed));
        (before.whole != after.whole, before.settled != after.settled, before.rough != after.rough)
    }

    #[test]
    fn what_clients_do_is_less_pressing_than_what_objects_say() {
        let time = |s: &mut Value| s["figuresTime"] = json!("2026-02-01T00:00:00Z");
        assert_eq!(news(time), (false, false, false));
        let pod = |s: &mut Value| s["backends"]["ready"] = json!(1);
        assert_eq!(news(pod), (true, true, true));
        let state = |s: &mut Value| s["backendFigures"][1]["state"] = json!("Draining");
        assert_eq!(news(state), (true, true, true));
        let gone = |s: &mut Value| drop(s["drains"].as_array_mut().expect("a list").pop());
        assert_eq!(news(gone), (true, true, true));
        for (pointer, much) in [
            ("/flows", json!(200)),
            ("/migrations", json!(3_000)),
            ("/backendFigures/0/migrationsIn", json!(6)),
            ("/drained/moved", json!(9)),
            ("/drains/0/waiting", json!(3)),
            ("/pinned/0/flows", json!(5)),
        ] {
            let change = |s: &mut Value| *s.pointer_mut(pointer).expect(pointer) = much.clone();
            assert_eq!(news(change), (true, false, true), "{pointer}");
        }
        for (pointer, little) in [
            ("/flows", json!(101)),
            ("/migrations", json!(2_010)),
            ("/backendFigures/0/outstanding", json!(0)),
            ("/drains/0/waitingFor", json!("30 pinned")),
            ("/drains/0/by", json!("2026-01-01T00:00:09Z")),
        ] {
            let change = |s: &mut Value| *s.pointer_mut(pointer).expect(pointer) = little.clone();
            assert_eq!(news(change), (true, false, false), "{pointer}");
        }
        let order = |s: &mut Value| {
            s["backendFigures"].as_array_mut().expect("a list").reverse();
        };
        assert_eq!(news(order), (true, false, false));
    }

    #[test]
    fn of_many_backends_those_that_are_shown_change_with_traffic() {
        let many = |first: &str| {
            let mut many = status();
            many["backendsNotShown"] = json!(10);
            many["backendFigures"][0]["name"] = json!(first);
            of(&many)
        };
        assert_eq!(many("a").settled, many("z").settled);
        assert_ne!(many("a").rough, many("z").rough);
    }

    #[test]
    fn figures_are_rounded_to_an_eighth() {
        for figure in [0, 1, 15, -3] {
            assert_eq!(roughly(figure), figure);
        }
        for (figure, is) in [(17, 16), (31, 30), (1_000, 960), (i64::MAX, 15 << 59)] {
            assert_eq!(roughly(figure), is);
        }
    }
}
