//! How far a drain is, in figures and words: a pure function of the dataplane's state.

use crate::args::DrainOrder;
use baton_api::{BackendState, DrainState, State};
use baton_text::span;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// All backends that one order means, together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Flows that are still there.
    pub flows: u64,
    /// Since the drain began.
    pub moved: u64,
    /// By themselves.
    pub ended: u64,
    /// By the deadline, in order.
    pub closed: u64,
    /// What the flows that are left wait for.
    pub waiting: BTreeMap<String, u64>,
    /// Until the last deadline, in seconds; none if it has passed.
    pub deadline_seconds: Option<u64>,
}

impl Progress {
    /// What `state` says of the backends that `order` means.
    ///
    /// # Errors
    /// One of them does not drain (any more), in words.
    pub fn of(state: &State, order: &DrainOrder) -> Result<Self, String> {
        let mut all = Self::default();
        // One backend may serve several policies; its flows count once.
        let mut seen = BTreeSet::new();
        for policy in &state.policies {
            if order.policy.as_ref().is_some_and(|p| *p != policy.name) {
                continue;
            }
            for backend in policy.backends.iter().filter(|b| b.name == order.backend) {
                let Some(drain) = &backend.drain else {
                    return Err(format!(
                        "`{}` of policy `{}` does not drain any more: somebody took it back, or the dataplane was restarted",
                        backend.name, policy.name
                    ));
                };
                if seen.insert(backend.endpoint) {
                    all.add(backend, drain);
                }
            }
        }
        if seen.is_empty() {
            return Err(format!(
                "`{}` has left the configuration; `lb-dataplane flows --backend {}` shows what it still owns",
                order.backend, order.backend
            ));
        }
        Ok(all)
    }

    /// One backend's.
    pub fn of_one(backend: &BackendState) -> Option<Self> {
        let mut this = Self::default();
        this.add(backend, backend.drain.as_ref()?);
        Some(this)
    }

    fn add(&mut self, backend: &BackendState, drain: &DrainState) {
        self.flows += backend.flows;
        self.moved += drain.moved;
        self.ended += drain.ended;
        self.closed += drain.closed;
        for (reason, flows) in &drain.waiting {
            *self.waiting.entry(reason.clone()).or_default() += flows;
        }
        // Rounded up: a deadline that has not passed is never 0 s away.
        let left = (drain.left.0 > 0).then(|| drain.left.0.div_ceil(1_000_000));
        self.deadline_seconds = self.deadline_seconds.max(left);
    }

    /// What is left and why: `15 flows left (12 request in progress, 3 pinned: upgrade)`.
    pub fn left(&self) -> String {
        let waiting: Vec<String> = self
            .waiting
            .iter()
            .filter(|(_, flows)| **flows > 0)
            .map(|(reason, flows)| format!("{flows} {}", reason.replace('_', " ")))
            .collect();
        let noun = if self.flows == 1 { "flow" } else { "flows" };
        if waiting.is_empty() {
            format!("{} {noun} left", self.flows)
        } else {
            format!("{} {noun} left ({})", self.flows, waiting.join(", "))
        }
    }

    /// What became of the others: `230 moved, 4 ended, 0 closed`.
    pub fn gone(&self) -> String {
        format!(
            "{} moved, {} ended, {} closed",
            self.moved, self.ended, self.closed
        )
    }

    /// Everything in one line.
    pub fn line(&self) -> String {
        let mut line = format!("{}; {}", self.left(), self.gone());
        if let Some(seconds) = self.deadline_seconds
            && self.flows > 0
        {
            line.push_str(&format!("; deadline in {}", span(seconds)));
        }
        line
    }

    /// The same, but for the passing of time.
    pub fn is_like(&self, other: &Self) -> bool {
        let timeless = |progress: &Self| Self {
            deadline_seconds: None,
            ..progress.clone()
        };
        timeless(self) == timeless(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_api::Micros;

    fn state(drain: &Option<DrainState>) -> State {
        let text = r#"{"version":"","generation":1,"uptimeSeconds":1,
            "worker":{"interface":"","mode":"","addresses":[],"ports":[1,2],"keyEpochs":[]},
            "policies":[POLICY,POLICY2],"counters":{},"tables":{}}"#;
        let policy = r#"{"name":"web","frontends":[],"algorithm":"Maglev","protocol":"HTTP1","flows":1,"flowsTotal":1,
            "migrationsTotal":0,"rollbacksTotal":0,"backends":[
            {"name":"a","endpoint":"10.0.0.1:80","weight":1,"draining":true,"adoptable":true,"adoptableReason":"ready",
             "flows":8,"outstanding":0,"firstByte":"0us","requestsTotal":0,"migrationsInTotal":0,"migrationsOutTotal":0}]}"#;
        let text = text
            .replace(
                "POLICY2",
                &policy.replace("web", "api").replace("10.0.0.1", "10.0.0.2"),
            )
            .replace("POLICY", policy);
        let mut state: State = serde_json::from_str(&text).expect("a state");
        for policy in &mut state.policies {
            policy.backends[0].drain.clone_from(drain);
        }
        state
    }

    fn order(backend: &str, policy: Option<&str>) -> DrainOrder {
        DrainOrder {
            backend: backend.into(),
            policy: policy.map(str::to_owned),
            undo: false,
            wait: None,
        }
    }

    fn drain() -> DrainState {
        DrainState {
            moved: 5,
            ended: 1,
            left: Micros(17_000_001),
            waiting: [
                ("request in progress".into(), 6),
                ("pinned: upgrade".into(), 2),
                ("quiet time".into(), 0),
            ]
            .into(),
            ..DrainState::default()
        }
    }

    #[test]
    fn all_backends_of_a_name_count_unless_one_policy_is_meant() {
        let state = state(&Some(drain()));
        let one = Progress::of(&state, &order("a", Some("web"))).expect("it drains");
        assert_eq!(
            one.line(),
            "8 flows left (2 pinned: upgrade, 6 request in progress); 5 moved, 1 ended, 0 closed; deadline in 18s"
        );
        assert_eq!(Progress::of_one(&state.policies[0].backends[0]), Some(one));
        let both = Progress::of(&state, &order("a", None)).expect("they drain");
        assert_eq!(
            (both.flows, both.moved, both.deadline_seconds),
            (16, 10, Some(18))
        );
        assert_eq!(both.waiting.get("pinned: upgrade"), Some(&4));
        // The same backend in both policies.
        let mut shared = state;
        shared.policies[1].backends[0].endpoint = shared.policies[0].backends[0].endpoint;
        let once = Progress::of(&shared, &order("a", None)).expect("it drains");
        assert_eq!(once.flows, 8);
    }

    #[test]
    fn what_does_not_drain_is_told() {
        let error = Progress::of(&state(&None), &order("a", None)).expect_err("no drain");
        assert!(
            error.contains("`a` of policy `web` does not drain any more"),
            "{error}"
        );
        let error = Progress::of(&state(&Some(drain())), &order("b", None)).expect_err("none");
        assert!(error.contains("has left the configuration"), "{error}");
    }

    #[test]
    fn time_alone_is_no_change_and_the_end_is_short() {
        let mut later = drain();
        later.left = Micros(0);
        let [now, later] = [drain(), later]
            .map(|drain| Progress::of(&state(&Some(drain)), &order("a", None)).expect("it drains"));
        assert!(now.is_like(&later) && now != later);
        assert_eq!(later.deadline_seconds, None);
        let done = Progress {
            moved: 9,
            ..Progress::default()
        };
        assert!(!done.is_like(&now));
        assert_eq!(done.line(), "0 flows left; 9 moved, 0 ended, 0 closed");
    }
}
