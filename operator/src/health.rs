//! Whether the operator works and is ready, for the probes.
//!
//! Owns the facts that the probes are answered from. A watch that is down does not make it
//! unhealthy: a restart would not help, and dataplanes go on with what they have.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// A fold that takes longer is stuck: the largest, of 50,000 endpoints, takes well under two
/// seconds.
const STUCK_AFTER: Duration = Duration::from_secs(30);

/// What is known.
#[derive(Debug)]
pub struct Health(Mutex<Facts>);

#[derive(Debug)]
struct Facts {
    /// Kinds whose first list is not complete.
    unsynced: BTreeSet<&'static str>,
    /// When the fold task last turned.
    beat: Instant,
    leading: bool,
    /// This term's first policy sets were handed to the pushers.
    folded: bool,
}

impl Health {
    /// Nothing is synced.
    pub fn new(kinds: &[&'static str]) -> Self {
        Self(Mutex::new(Facts {
            unsynced: kinds.iter().copied().collect(),
            beat: Instant::now(),
            leading: false,
            folded: false,
        }))
    }

    fn with<T>(&self, f: impl FnOnce(&mut Facts) -> T) -> T {
        // The facts are plain values: whoever panicked left none half written.
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The first list of a kind is complete.
    pub fn synced(&self, kind: &str) {
        self.with(|facts| facts.unsynced.retain(|other| *other != kind));
    }

    /// The fold task turned.
    pub fn beat(&self) {
        self.with(|facts| facts.beat = Instant::now());
    }

    /// A term begins or ends.
    pub fn leading(&self, leading: bool) {
        self.with(|facts| {
            facts.leading = leading;
            facts.folded = false;
        });
    }

    /// The first fold of a term is done.
    pub fn folded(&self) {
        self.with(|facts| facts.folded = true);
    }

    /// Why a restart would help; empty if all is well.
    pub fn stuck(&self) -> Vec<String> {
        let age = self.with(|facts| facts.beat.elapsed());
        if age > STUCK_AFTER {
            return vec![format!(
                "the index has not turned for {} s: it is stuck, a restart helps; please report it with the log",
                age.as_secs()
            )];
        }
        Vec::new()
    }

    /// Why it is not ready; empty if it is.
    pub fn unready(&self) -> Vec<String> {
        let mut problems = self.stuck();
        self.with(|facts| {
            if !facts.unsynced.is_empty() {
                let kinds: Vec<&str> = facts.unsynced.iter().copied().collect();
                problems.push(format!(
                    "not all is known yet of: {}; if that stays, look for watch errors in the log (are the CRDs \
                     installed, may the ServiceAccount list and watch them?)",
                    kinds.join(", ")
                ));
            }
            if facts.leading && !facts.folded {
                problems.push("leading, but the first fold is not done yet".to_owned());
            }
        });
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_is_ready_after_its_first_fold_and_a_standby_before() {
        let health = Health::new(&["Pod"]);
        assert_eq!(health.unready().len(), 1);
        health.synced("Pod");
        assert!(health.unready().is_empty());
        health.leading(true);
        assert!(health.unready()[0].contains("first fold"));
        health.folded();
        assert!(health.unready().is_empty());
        // Each term counts by itself.
        health.leading(true);
        assert_eq!(health.unready().len(), 1);
        assert!(health.stuck().is_empty());
    }
}
