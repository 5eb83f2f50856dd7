//! What waits say about a flow of a policy that moves flows where it pays: a part of `explain`.
//! Pure.
//!
//! Owns the sentences. The dataplane decides (`lb-dataplane/engine/src/balance/placement.rs`); this
//! repeats its rule with the figures that it tells, but not what it draws at random.

use baton_api::{BackendPlacement, BackendState, FlowView, LastMove, PolicyPlacement, PolicyState};
use baton_cli::{Flow, micros};
use baton_crds::{LoadBalancerPolicySpec, Migration};

/// Other Pods that are named.
pub const OTHERS_MAX: usize = 4;

/// Why a flow that no Pod had a connection of got one again, which is no move.
pub const CAUSE_LEGLESS: &str = "legless";

/// Nothing answered for this long although it should: new requests go elsewhere (`STALLED_US` of
/// the dataplane).
const STALLED_US: u64 = 25_000;

/// What is known around a flow.
pub struct Around<'a> {
    /// The policy on the flow's dataplane.
    pub state: Option<&'a PolicyState>,
    /// The policy as the admin wrote it.
    pub spec: Option<&'a LoadBalancerPolicySpec>,
}

/// The Pod that owns the flow, if the policy still has it.
pub fn owner<'a>(flow: &Flow, around: &Around<'a>) -> Option<&'a BackendState> {
    around.state?.backends.iter().find(|backend| backend.name == flow.flow.backend)
}

/// Whether a flow on a good Pod moves with its next request (`migration.mode: WhenBetter`), and
/// what decides that.
pub fn when_better(
    flow: &Flow,
    around: &Around<'_>,
    spec: &LoadBalancerPolicySpec,
    can: &[&&BackendState],
) -> Vec<String> {
    let (view, migration) = (&flow.flow, &spec.migration);
    let here = owner(flow, around).and_then(|backend| Some((backend, backend.placement.clone()?)));
    let policy = around.state.and_then(|state| state.placement);
    let (Some((owner, here)), Some(policy)) = (here, policy) else {
        return vec!["The dataplane does not tell the waits that it goes by.".to_owned()];
    };
    let mut why = vec![
        figures(view, &here, policy),
        verdict(&Case { owner, here: &here, policy, migration, can }),
    ];
    why.extend(rests(view, migration));
    why.extend(rates(migration));
    why
}

/// What is measured at its Pod.
fn figures(view: &FlowView, here: &BackendPlacement, policy: PolicyPlacement) -> String {
    format!(
        "Requests at {} waited {} on average in the last half second (give or take {}), {} in the last 20ms; usual for the policy: {}.",
        view.backend,
        micros(here.mean_wait.0),
        micros(here.error.0),
        micros(here.recent_wait.0),
        micros(policy.usual_wait.0),
    )
}

/// What a verdict goes by.
struct Case<'a> {
    owner: &'a BackendState,
    here: &'a BackendPlacement,
    policy: PolicyPlacement,
    migration: &'a Migration,
    can: &'a [&'a &'a BackendState],
}

/// Whether it moves, in the order in which the dataplane looks at reasons.
fn verdict(case: &Case<'_>) -> String {
    let Case { owner, here, can, .. } = case;
    let name = &owner.name;
    match here.standing.as_str() {
        "distressed" => {
            return format!(
                "It moves: {name} is distressed, it waited at least four times longer than the policy's other Pods for too long."
            );
        }
        "trial" => {
            return format!(
                "It may move: {name} was distressed and is on trial; what is beyond the flows that it may have leaves it."
            );
        }
        _ => {}
    }
    if here.stalled.0 >= STALLED_US {
        return format!("It moves: {name} has answered nothing for {}.", micros(here.stalled.0));
    }
    let joins = |b: &&&&BackendState| {
        let standing = b.placement.as_ref().map(|p| p.standing.as_str());
        matches!(standing, Some("joining" | "trial")) && b.flows < owner.flows
    };
    if let Some(other) = can.iter().find(joins) {
        return format!(
            "It may move: {} has come or come back, and is given its share of flows little by little.",
            other.name
        );
    }
    if case.policy.uneven {
        return format!(
            "It may move: the policy's Pods are unevenly busy, so a request goes to the shorter queue of a few where that gains \
             at least {} (`gain`) and four times what a move costs.",
            case.migration.gain
        );
    }
    in_calm(case)
}

/// What the mean waits say where nothing else does.
fn in_calm(case: &Case<'_>) -> String {
    let Case { here, can, .. } = case;
    let mut others: Vec<(u64, u64, &str)> = can
        .iter()
        .filter_map(|b| {
            let placement = b.placement.as_ref()?;
            Some((placement.mean_wait.0, placement.move_cost.0, b.name.as_str()))
        })
        .collect();
    others.sort_unstable();
    let Some((best_us, cost_us, best)) = others.first().copied() else {
        return "It stays: no other Pod could take it.".to_owned();
    };
    let percent = here.mean_wait.0.saturating_mul(100) / best_us.max(1);
    let ratio = u64::try_from(case.migration.ratio_percent).unwrap_or(u64::MAX);
    let gain_us = here.mean_wait.0.saturating_sub(best_us);
    let verdict = if percent < ratio {
        "It stays"
    } else if gain_us <= here.error.0.saturating_mul(4) {
        "It stays, since that is not sure yet"
    } else {
        "It moves when the budget for calm times (2 of 1,000 requests) has a move left"
    };
    let listed: Vec<String> = others
        .iter()
        .take(OTHERS_MAX)
        .map(|(us, _, name)| format!("{name} {}", micros(*us)))
        .collect();
    let more = match others.len().saturating_sub(OTHERS_MAX) {
        0 => String::new(),
        more => format!("; {more} more"),
    };
    format!(
        "{verdict}: the wait here is {percent} % of that at {best} (`ratioPercent` {ratio}), a move would gain {} a request and cost {} \
         once. Mean waits at those that could take it: {}{more}.",
        micros(gain_us),
        micros(cost_us),
        listed.join("; ")
    )
}

/// Whether it rests from its last move.
fn rests(view: &FlowView, migration: &Migration) -> Option<String> {
    let cooldown = migration.cooldown.micros().ok()?;
    match &view.last_move {
        // That was no move.
        Some(LastMove { cause, .. }) if cause.as_deref() == Some(CAUSE_LEGLESS) => None,
        Some(LastMove { ago, .. }) if *ago < cooldown => Some(format!(
            "It rests from its last move for another {} (`cooldown` {}), unless its Pod is distressed.",
            micros(cooldown.0 - ago.0),
            migration.cooldown
        )),
        _ => None,
    }
}

/// Limits that may make it wait.
fn rates(migration: &Migration) -> Vec<String> {
    let limits = [
        ("perBackendPerSecond", migration.per_backend_per_second),
        ("perSecond", migration.per_second),
    ];
    let limits = limits.into_iter().filter(|(_, limit)| *limit > 0);
    limits
        .map(|(name, limit)| format!("`migration.{name}` lets {limit} flows move per second, so it may have to wait for its turn."))
        .collect()
}
