//! How far the drain is that an order means: a pure function of the dataplane's state.

use crate::args::DrainOrder;
use baton_api::State;
use baton_text::DrainProgress;
use std::collections::BTreeSet;

/// What `state` says of the backends that `order` means.
///
/// # Errors
/// One of them does not drain (any more), in words.
pub fn of(state: &State, order: &DrainOrder) -> Result<DrainProgress, String> {
    let mut all = DrainProgress::default();
    // One backend may serve several policies; its flows count once.
    let mut seen = BTreeSet::new();
    for policy in &state.policies {
        if order.policy.as_ref().is_some_and(|p| *p != policy.name) {
            continue;
        }
        for backend in policy.backends.iter().filter(|b| b.name == order.backend) {
            let Some(progress) = DrainProgress::of(backend) else {
                return Err(format!(
                    "`{}` of policy `{}` does not drain any more: somebody took it back, or the dataplane was restarted",
                    backend.name, policy.name
                ));
            };
            if seen.insert(backend.endpoint) {
                all.add(&progress);
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

#[cfg(test)]
mod tests {
    use super::*;
    use baton_api::{DrainState, Micros};

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
        let one = of(&state, &order("a", Some("web"))).expect("it drains");
        assert_eq!(
            one.line(),
            "8 flows left (2 pinned: upgrade, 6 request in progress); 5 moved, 1 ended, 0 closed; deadline in 18s"
        );
        assert_eq!(DrainProgress::of(&state.policies[0].backends[0]), Some(one));
        let both = of(&state, &order("a", None)).expect("they drain");
        assert_eq!(
            (both.flows, both.moved, both.deadline_seconds),
            (16, 10, Some(18))
        );
        assert_eq!(both.waiting.get("pinned: upgrade"), Some(&4));
        // The same backend in both policies.
        let mut shared = state;
        shared.policies[1].backends[0].endpoint = shared.policies[0].backends[0].endpoint;
        let once = of(&shared, &order("a", None)).expect("it drains");
        assert_eq!(once.flows, 8);
    }

    #[test]
    fn what_does_not_drain_is_told() {
        let error = of(&state(&None), &order("a", None)).expect_err("no drain");
        assert!(
            error.contains("`a` of policy `web` does not drain any more"),
            "{error}"
        );
        let error = of(&state(&Some(drain())), &order("b", None)).expect_err("none");
        assert!(error.contains("has left the configuration"), "{error}");
    }
}
