//! What dataplanes count, from their states to the index.
//!
//! Owns what is kept of a state while it comes: figures of one policy after the other, with texts
//! that repeat shared, a fifth of what the state is. Judges nothing.

use crate::translate::{SharedInterner, lock};
use baton_api::{PolicyState, State};
use baton_index::{Figures, PolicyFigures};
use baton_push::push::{Reading, States};
use jiff::Timestamp;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

/// Figures that came and were not taken yet: of each dataplane the newest.
#[derive(Clone, Debug, Default)]
pub struct Inbox(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Names of policies and backends, which repeat with each state and are those of objects.
    texts: SharedInterner,
    figures: Mutex<HashMap<String, Figures>>,
}

impl Inbox {
    /// Empty, with texts of these.
    pub fn new(texts: SharedInterner) -> Self {
        Self(Arc::new(Shared { texts, figures: Mutex::default() }))
    }

    /// Takes out what a dataplane counts, if something came.
    pub fn take(&self, target: &str) -> Option<Figures> {
        lock(&self.0.figures).remove(target)
    }

    /// Lets go of what came of dataplanes that are none of these.
    pub fn retain(&self, is_known: impl Fn(&str) -> bool) {
        lock(&self.0.figures).retain(|target, _| is_known(target));
    }
}

impl States for Inbox {
    fn begin(&self, target: &str) -> Box<dyn Reading> {
        Box::new(Under {
            inbox: self.clone(),
            target: target.to_owned(),
            at: Timestamp::now().as_second(),
            policies: Vec::new(),
        })
    }
}

/// A state that is coming.
struct Under {
    inbox: Inbox,
    target: String,
    at: i64,
    policies: Vec<PolicyFigures>,
}

impl Reading for Under {
    fn policy(&mut self, policy: PolicyState) {
        let mut interner = lock(&self.inbox.0.texts);
        let figures = PolicyFigures::from_state(&policy, self.at, &mut interner);
        self.policies.push(figures);
    }

    fn whole(self: Box<Self>, state: &State) {
        let figures = Figures::new(self.at, state.uptime_seconds, self.policies);
        lock(&self.inbox.0.figures).insert(self.target, figures);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(name: &str, flows: u64) -> PolicyState {
        let text = format!(
            r#"{{"name": "{name}", "frontends": [], "algorithm": "LeastOutstanding", "protocol": "HTTP1", "flows": {flows},
            "flowsTotal": 2, "migrationsTotal": 3, "rollbacksTotal": 4, "backends": []}}"#
        );
        serde_json::from_str(&text).expect("a policy")
    }

    fn state(uptime_seconds: u64) -> State {
        State { uptime_seconds, ..State::default() }
    }

    #[test]
    fn only_a_whole_state_counts_and_only_the_newest() {
        let inbox = Inbox::default();
        let mut half = inbox.begin("a");
        half.policy(policy("p", 1));
        drop(half);
        assert!(inbox.take("a").is_none());
        for flows in [5, 6] {
            let mut reading = inbox.begin("a");
            // In order of names, whatever the order of the state is.
            reading.policy(policy("q", flows));
            reading.policy(policy("p", flows));
            reading.whole(&state(flows));
        }
        inbox.begin("b").whole(&state(1));
        inbox.retain(|target| target == "a");
        assert!(inbox.take("b").is_none());
        let figures = inbox.take("a").expect("came");
        assert_eq!(figures.uptime, 6);
        let found: Vec<_> = figures.policies.iter().map(|p| (&*p.name, p.flows)).collect();
        assert_eq!(found, [("p", 6), ("q", 6)]);
        assert!(inbox.take("a").is_none(), "taken");
    }
}
