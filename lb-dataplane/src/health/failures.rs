//! What the last failed check of each backend said: the worker knows only verdicts, people want the
//! words.

use baton_api::{BackendHealth, Endpoint, PolicyState};
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

/// Written by the checks, read for the state.
#[derive(Debug, Default)]
pub struct Failures(Mutex<HashMap<(String, Endpoint), String>>);

impl Failures {
    /// A check failed, or (none) was passed or is no more.
    pub fn note(&self, key: &(String, Endpoint), why: Option<String>) {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match why {
            Some(why) => failures.insert(key.clone(), why),
            None => failures.remove(key),
        };
    }

    /// Says in the state of a policy why its backends are unhealthy.
    pub fn explain(&self, policy: &mut PolicyState) {
        let failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.is_empty() {
            return;
        }
        for backend in &mut policy.backends {
            if let BackendHealth::Unhealthy(why) = &mut backend.health {
                *why = failures.get(&(policy.name.clone(), backend.endpoint)).cloned();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::samples;

    #[test]
    fn only_what_is_unhealthy_is_explained() {
        let failures = Failures::default();
        let mut policy = samples::reply().state.policies.remove(0);
        policy.backends[0].health = BackendHealth::Unhealthy(None);
        let key = ("web".to_owned(), policy.backends[0].endpoint);
        failures.note(&key, Some("GET /: 503, expected 200".into()));
        failures.explain(&mut policy);
        assert_eq!(policy.backends[0].health.to_string(), "unhealthy: GET /: 503, expected 200");
        // The same endpoint, but nothing says that its check made it so.
        assert_eq!(policy.backends[1].health, BackendHealth::Up);

        policy.backends[0].health = BackendHealth::Unhealthy(None);
        policy.name = "other".into();
        failures.explain(&mut policy);
        assert_eq!(
            policy.backends[0].health,
            BackendHealth::Unhealthy(None),
            "another policy's check"
        );
        policy.name = "web".into();
        failures.note(&key, None);
        failures.explain(&mut policy);
        assert_eq!(policy.backends[0].health, BackendHealth::Unhealthy(None));
    }
}
