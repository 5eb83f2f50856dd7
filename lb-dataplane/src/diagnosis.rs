//! What is wrong with policies and backends, in words, with what to do about it: pure functions of
//! the state.
//!
//! A problem means that the dataplane does not do its job, so that `status` ends with 1; a note is
//! worth a look. A backend that drains or is ejected is no problem as long as another one is
//! usable.

use baton_api::{BackendState, PolicyState, RefusedPolicy, State};
use baton_cli::reasons;
use std::collections::BTreeMap;

/// Backends that one sentence names.
const NAMED_MAX: usize = 4;

/// Whether it takes new flows.
pub fn is_usable(backend: &BackendState) -> bool {
    matches!(backend.word(), "up" | "slow start" | "no adopt")
}

/// What keeps policies from being served as they should be.
pub fn problems(state: &State) -> Vec<String> {
    let refused = state.refused.iter().map(refused);
    // A policy without a frontend has left the snapshot; only its last flows are still there.
    let listed = state.policies.iter().filter(|p| !p.frontends.is_empty());
    refused.chain(listed.filter_map(problem)).collect()
}

fn refused(refused: &RefusedPolicy) -> String {
    let then = if refused.kept { "what it had before stays in force" } else { "it is not served" };
    format!("policy `{}` of the snapshot is refused, {then}: {}", refused.policy, refused.message)
}

fn problem(policy: &PolicyState) -> Option<String> {
    let (name, all) = (&policy.name, policy.backends.len());
    if all == 0 {
        return Some(format!(
            "policy `{name}` has no backend, so nobody serves new connections: add one"
        ));
    }
    let unusable: Vec<&BackendState> = policy.backends.iter().filter(|b| !is_usable(b)).collect();
    let why = named(&unusable);
    if unusable.len() == all {
        let then = if policy.panic {
            "all are used nevertheless (panic mode)"
        } else {
            "nobody serves new connections"
        };
        return Some(format!(
            "policy `{name}`: none of its {all} backends is usable ({why}), so {then}: look at the pods; \
             `lb-dataplane backends` says more"
        ));
    }
    policy.panic.then(|| {
        format!(
            "policy `{name}` is in panic mode: too few of its {all} backends are usable ({why}), so all are used, also \
             those that do not work: mend them, or lower `health.panicPercent`"
        )
    })
}

/// `a is down, b drains`.
fn named(backends: &[&BackendState]) -> String {
    let mut words: Vec<String> = backends
        .iter()
        .take(NAMED_MAX)
        .map(|backend| match backend.word() {
            "drains" => format!("{} drains", backend.name),
            "weight 0" => format!("{} has weight 0", backend.name),
            word => format!("{} is {word}", backend.name),
        })
        .collect();
    if backends.len() > NAMED_MAX {
        words.push(format!("{} more", backends.len() - NAMED_MAX));
    }
    words.join(", ")
}

/// What is worth a look although policies are served.
pub fn notes(state: &State) -> Vec<String> {
    let mut notes = Vec::new();
    for policy in &state.policies {
        for backend in policy.backends.iter().filter(|b| !b.health.is_up()) {
            let advice = match backend.word() {
                "unhealthy" => {
                    "look at the pod, or at `health.active` of the policy if it does work"
                }
                "ejected" => "it is tried again when its time is over",
                _ => "look at the pod and its node",
            };
            notes.push(format!(
                "backend `{}` of `{}` is {}: {advice}",
                backend.name, policy.name, backend.health
            ));
        }
        let lost: u64 = policy.lost_total.values().sum();
        if lost > 0 {
            let connections = if lost == 1 { "connection" } else { "connections" };
            let advice = most(&policy.lost_total).map_or("", advice);
            notes.push(format!(
                "policy `{}`: {lost} {connections} of clients broken since start ({}){advice}",
                policy.name,
                reasons([&policy.lost_total])
            ));
        }
    }
    notes
}

fn most(counts: &BTreeMap<String, u64>) -> Option<&str> {
    let most = counts.iter().max_by_key(|(_, count)| **count)?;
    Some(most.0)
}

/// What an admin can do about the most frequent reason, where something can be done.
fn advice(reason: &str) -> &'static str {
    match reason {
        "fate_unknown" | "adopted_before" => {
            ": `onBackendFailure` says which requests may be executed once more"
        }
        "no_backend" => ": no backend adopted in time; `lb-dataplane backends` says which can",
        "not_kept" => ": raise `limits.keptSegments`",
        "drain_deadline" => ": raise `drain.deadline`, or let them wait (`drain.onDeadline`)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::samples;
    use baton_api::{Adoptability, BackendHealth, Micros};

    /// A state with one policy, changed.
    fn state(change: impl FnOnce(&mut PolicyState)) -> State {
        let mut state = samples::reply().state;
        change(&mut state.policies[0]);
        state
    }

    #[test]
    fn no_usable_backend_and_panic_are_problems_and_nothing_else_is() {
        let one_is_left: [fn(&mut PolicyState); 6] = [
            |p| p.backends[0].health = BackendHealth::SlowStart,
            |p| p.backends[1].health = BackendHealth::Ejected(Micros::from_secs(9)),
            |p| p.backends[1].health = BackendHealth::Unhealthy(None),
            |p| p.backends[1].draining = true,
            |p| p.lost_total = [("fate_unknown".into(), 3)].into(),
            |p| p.backends[0].adoptability = Adoptability::Lapsed,
        ];
        for change in one_is_left {
            assert_eq!(problems(&state(change)), Vec::<String>::new());
        }
        let text = problems(&state(|p| {
            p.backends[0].health = BackendHealth::Silent;
            p.backends[1].draining = true;
        }))
        .join("\n");
        assert_eq!(
            text,
            "policy `web`: none of its 2 backends is usable (a is down, b drains), so nobody serves new connections: \
             look at the pods; `lb-dataplane backends` says more"
        );
        let text = problems(&state(|p| {
            p.backends[0].health = BackendHealth::Unhealthy(None);
            p.backends[1].weight = 0;
            p.backends[1].draining = false;
            p.panic = true;
        }))
        .join("\n");
        assert!(
            text.contains("(a is unhealthy, b has weight 0), so all are used nevertheless"),
            "{text}"
        );
        let text = problems(&state(|p| {
            p.backends[1].health = BackendHealth::NotListening;
            p.panic = true;
        }))
        .join("\n");
        assert!(text.starts_with("policy `web` is in panic mode: too few of its 2"), "{text}");
        assert!(text.contains("(b is down)"), "{text}");
        let text = problems(&state(|p| p.backends.clear())).join("\n");
        assert!(text.contains("`web` has no backend"), "{text}");
        let gone = state(|p| {
            p.backends.clear();
            p.frontends.clear();
        });
        assert!(problems(&gone).is_empty(), "it has left the snapshot");
        let mut slow = samples::backend("c", Adoptability::Ready);
        slow.health = BackendHealth::SlowStart;
        assert_eq!((slow.word(), slow.health.is_up()), ("slow start", true));
        let many = state(|p| {
            p.backends = vec![p.backends[1].clone(); 6];
            for backend in &mut p.backends {
                backend.health = BackendHealth::NotListening;
            }
        });
        assert!(problems(&many)[0].contains("b is down, 2 more)"), "{many:?}");
    }

    #[test]
    fn refused_policies_are_named_with_what_became_of_them() {
        let mut state = samples::reply().state;
        let refused = |policy: &str, kept| RefusedPolicy {
            policy: policy.into(),
            message: "frontends[0]: 0.0.0.0:9910 is where health and metrics are asked for".into(),
            kept,
        };
        state.refused = vec![refused("evil", false), refused("old", true)];
        let text = problems(&state);
        assert_eq!(text.len(), 2, "{text:?}");
        let begins = "policy `evil` of the snapshot is refused, it is not served: frontends[0]: 0.0.0.0:9910 is where";
        assert!(text[0].starts_with(begins), "{text:?}");
        assert!(text[1].contains("`old`") && text[1].contains("what it had before stays"));
    }

    #[test]
    fn notes_name_what_fails_and_what_was_lost() {
        assert!(notes(&samples::reply().state).is_empty(), "all is well");
        let noted = notes(&state(|p| {
            let why = "GET /healthz: 503, expected 200-399".to_owned();
            p.backends[0].health = BackendHealth::Unhealthy(Some(why));
            p.backends[1].health = BackendHealth::Ejected(Micros::from_secs(20));
            p.lost_total =
                [("fate_unknown".into(), 2), ("no_backend".into(), 3), ("policy".into(), 0)].into();
        }));
        assert_eq!(noted.len(), 3, "{noted:?}");
        assert_eq!(
            noted[0],
            "backend `a` of `web` is unhealthy: GET /healthz: 503, expected 200-399: look at the pod, or at \
             `health.active` of the policy if it does work"
        );
        assert!(noted[1].contains("is tried again"), "{noted:?}");
        assert!(
            noted[2].starts_with("policy `web`: 5 connections of clients broken since start")
                && noted[2].contains("(3 no backend, 2 fate unknown): no backend adopted in time"),
            "{noted:?}"
        );
    }
}
