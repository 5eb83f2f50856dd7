//! A dataplane's answer as figures: only what verdicts and deletion costs are made of, with texts
//! that repeat shared.

use crate::{
    BackendFigures, BackendTotals, DrainFigures, Figures, Interner, PolicyFigures, Totals,
};
use baton_api::{Adoptability, BackendState, Micros, PolicyState};

impl Figures {
    /// Of a dataplane's state as of `at` (seconds since 1970).
    #[must_use]
    pub fn new(at: i64, uptime: u64, mut policies: Vec<PolicyFigures>) -> Self {
        policies.sort_by(|a, b| a.name.cmp(&b.name));
        Self { at, uptime, policies }
    }
}

impl PolicyFigures {
    /// What of a policy of a dataplane's state, read at `at` (seconds since 1970), is needed.
    #[must_use]
    pub fn from_state(state: &PolicyState, at: i64, interner: &mut Interner) -> Self {
        policy(state, at, interner)
    }
}

fn policy(state: &PolicyState, at: i64, interner: &mut Interner) -> PolicyFigures {
    let pinned = state.pinned.iter().filter(|(_, count)| **count > 0);
    let pinned = pinned.map(|(reason, count)| (interner.text(reason), *count));
    PolicyFigures {
        pinned: pinned.collect(),
        name: interner.text(&state.name),
        flows: state.flows,
        totals: Totals {
            flows: state.flows_total,
            migrations: state.migrations_total,
            rollbacks: state.rollbacks_total,
            rescues: state.rescues_total,
            replays: state.replays_total,
            lost: state.lost_total.values().sum(),
        },
        panic: state.panic,
        backends: state.backends.iter().map(|b| backend(b, at, interner)).collect(),
    }
}

fn backend(state: &BackendState, at: i64, interner: &mut Interner) -> BackendFigures {
    let drain = state.drain.as_ref();
    let (health, adoptability) = (&state.health, state.adoptability);
    let seconds = |span: Micros| i64::try_from(span.0 / 1_000_000).unwrap_or(i64::MAX);
    BackendFigures {
        name: interner.text(&state.name),
        flows: state.flows,
        pinned: state.pinned,
        outstanding: state.outstanding,
        totals: BackendTotals {
            requests: state.requests_total,
            migrations_in: state.migrations_in_total,
            migrations_out: state.migrations_out_total,
            rescued: state.rescued_total,
        },
        probed: adoptability != Adoptability::NotProbed,
        unadoptable: (!adoptability.is_ready()).then(|| interner.text(adoptability.words())),
        untranslatable: state.untranslatable().map(|why| interner.text(why)),
        // Without the time that is left: a condition that counts seconds would be written with
        // each.
        unusable: (!health.is_up()).then(|| interner.text(&format!("{health:#}"))),
        drain: drain.map(|drain| {
            Box::new(DrainFigures {
                moved: drain.moved,
                ended: drain.ended,
                closed: drain.closed,
                waiting: drain
                    .waiting
                    .iter()
                    .map(|(why, count)| (interner.text(why), *count))
                    .collect(),
                since: at.saturating_sub(seconds(drain.since)),
                until: at.saturating_add(seconds(drain.left)),
            })
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_api::State;

    #[test]
    fn a_state_becomes_figures() {
        let state: State = serde_json::from_str(r#"{
            "version": "1", "generation": 7, "uptimeSeconds": 90,
            "worker": {"interface": "eth0", "mode": "native", "addresses": [], "ports": [20000, 30000], "keyEpochs": [1]},
            "policies": [{
                "name": "ns/web/http", "frontends": ["10.0.0.1:80"], "algorithm": "LeastOutstanding", "protocol": "HTTP1",
                "flows": 5, "flowsTotal": 50, "migrationsTotal": 20, "rollbacksTotal": 1, "rescuesTotal": 2, "replaysTotal": 3,
                "lostTotal": {"a": 1, "b": 3}, "pinned": {"TLS": 4, "upgrade": 0},
                "backends": [
                    {"name": "web-0", "endpoint": "10.0.0.2:80", "weight": 1, "draining": true, "adoptability": "acceptQueueFull",
                     "flows": 3, "pinned": 2, "outstanding": 1, "firstByte": "1ms", "requestsTotal": 9,
                     "migrationsInTotal": 1, "migrationsOutTotal": 2, "rescuedTotal": 6, "health": "silent",
                     "drain": {"byCommand": false, "since": "10s", "left": "15s", "moved": 4, "ended": 1, "closed": 2,
                               "waiting": {"pinned: TLS": 2, "quiet time": 1}}},
                    {"name": "web-1", "endpoint": "10.0.0.3:80", "weight": 1, "draining": false, "adoptability": "notProbed",
                     "flows": 2, "outstanding": 0, "firstByte": "0us", "requestsTotal": 0,
                     "migrationsInTotal": 0, "migrationsOutTotal": 0, "health": "slowStart"}
                ]
            }],
            "counters": {}, "tables": {}
        }"#)
        .expect("a state");
        let mut interner = Interner::new();
        let policies = state.policies.iter();
        let policies = policies.map(|p| PolicyFigures::from_state(p, 1_000, &mut interner));
        let figures = Figures::new(1_000, state.uptime_seconds, policies.collect());
        assert_eq!((figures.at, figures.uptime), (1_000, 90));
        let policy = &figures.policies[0];
        assert_eq!((&*policy.name, policy.flows, policy.totals.lost), ("ns/web/http", 5, 4));
        assert_eq!(policy.pinned.iter().map(|(r, c)| (&**r, *c)).collect::<Vec<_>>(), [("TLS", 4)]);
        let [one, other] = policy.backends.as_slice() else {
            panic!("{policy:?}");
        };
        assert_eq!((one.flows, one.outstanding, one.pinned, one.probed), (3, 1, 2, true));
        assert_eq!(one.unadoptable.as_deref(), Some("accept queue full"));
        assert_eq!(one.untranslatable, one.unadoptable);
        assert_eq!(other.untranslatable, None);
        assert_eq!(one.unusable.as_deref(), Some("down: no answer"));
        let drain = one.drain.as_ref().expect("it drains");
        assert_eq!((drain.moved, drain.ended, drain.closed), (4, 1, 2));
        assert_eq!((drain.since, drain.until), (990, 1_015));
        assert_eq!((other.probed, &other.unusable), (false, &None));
        assert_eq!(
            one.totals,
            BackendTotals { requests: 9, migrations_in: 1, migrations_out: 2, rescued: 6 }
        );
    }

    #[test]
    fn how_long_a_backend_stays_ejected_is_no_news() {
        let of = |health: &str| {
            let text = format!(
                r#"{{"name": "a", "endpoint": "10.0.0.2:80", "weight": 1, "draining": false, "adoptability": "ready",
                "flows": 0, "outstanding": 0, "firstByte": "0us", "requestsTotal": 0,
                "migrationsInTotal": 0, "migrationsOutTotal": 0, "health": {health}}}"#
            );
            let state: BackendState = serde_json::from_str(&text).expect("a backend");
            backend(&state, 100, &mut Interner::default()).unusable
        };
        let ejected = of(r#"{"ejected": "9s"}"#);
        assert_eq!(ejected.as_deref(), Some("ejected: it failed"));
        assert_eq!(ejected, of(r#"{"ejected": "8s"}"#));
        assert_eq!(of(r#""silent""#).as_deref(), Some("down: no answer"));
    }
}
