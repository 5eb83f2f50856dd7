//! What expected waits say about a flow of a policy that moves flows where it pays: a part of `explain`. Pure.

use crate::{
    explain::{Around, OTHERS_MAX, owner},
    flows::Flow,
};
use baton_api::{BackendState, FlowView, LastMove};
use baton_crds::{LoadBalancerPolicySpec, Migration};
use baton_text::micros;

/// The longest that a request can be expected to wait: the estimate divides the time to the first byte by the requests that
/// share it, so it is never longer than this.
fn wait_at_most_us(backend: &BackendState) -> u64 {
    (backend.outstanding + 1).saturating_mul(backend.first_byte.0)
}

/// Whether a flow on a good Pod moves with its next request (`migration.mode: WhenBetter`), and what decides that.
pub fn when_better(
    flow: &Flow,
    around: &Around<'_>,
    spec: &LoadBalancerPolicySpec,
    can: &[&&BackendState],
) -> Vec<String> {
    let (view, migration) = (&flow.flow, &spec.migration);
    let mut why = vec![format!(
        "With a request it moves if the expected wait at {} is at least {} % of that at the better of two other Pods (`ratioPercent`), \
         and falls by at least {} (`gain`).",
        view.backend, migration.ratio_percent, migration.gain
    )];
    if let Some(said) = by_waits(flow, around, spec, can) {
        why.extend(said);
        why.extend(rests(view, migration));
        why.extend(rates(migration));
        return why;
    }
    if let (Some(owner), Ok(gain)) = (owner(flow, around), migration.gain.micros())
        && wait_at_most_us(owner) < gain.0
    {
        why.push(format!(
            "At this moment it does not: the wait at {} is at most {}, less than could be gained.",
            view.backend,
            micros(wait_at_most_us(owner))
        ));
    }
    let mut best: Vec<&&&BackendState> = can.iter().collect();
    best.sort_by_key(|backend| wait_at_most_us(backend));
    let one = |backend: &&&&BackendState| {
        format!(
            "{} {} and {} outstanding",
            backend.name,
            micros(backend.first_byte.0),
            backend.outstanding
        )
    };
    let mut words: Vec<String> = best.iter().take(OTHERS_MAX).map(one).collect();
    if best.len() > OTHERS_MAX {
        words.push(format!("{} more", best.len() - OTHERS_MAX));
    }
    why.push(format!(
        "Pods that could take it, with their time to the first byte: {}.",
        words.join("; ")
    ));
    why.extend(rests(view, migration));
    why.extend(rates(migration));
    why
}

/// What the expected waits say, if the dataplane tells them: exactly what it would decide now, but for which two Pods it
/// compares.
fn by_waits(
    flow: &Flow,
    around: &Around<'_>,
    spec: &LoadBalancerPolicySpec,
    can: &[&&BackendState],
) -> Option<Vec<String>> {
    let here = owner(flow, around)?.wait?.0;
    let mut waits: Vec<(u64, &str)> = Vec::new();
    for backend in can {
        waits.push((backend.wait?.0, &backend.name));
    }
    waits.sort_unstable();
    let (best, name) = *waits.first()?;
    let gain = spec.migration.gain.micros().ok()?.0;
    let ratio = u64::try_from(spec.migration.ratio_percent).ok()?;
    let better =
        here.saturating_sub(best) >= gain && here.saturating_mul(100) >= best.saturating_mul(ratio);
    let resting = rests(&flow.flow, &spec.migration).is_some();
    let verdict = match (better, resting) {
        (true, false) => {
            format!("At this moment it would move to {name}, if that is one of the two")
        }
        (true, true) => format!("If it did not rest, it would move to {name}"),
        (false, _) => "At this moment it does not".to_owned(),
    };
    let mut words: Vec<String> = waits
        .iter()
        .take(OTHERS_MAX)
        .map(|(wait, name)| format!("{name} {}", micros(*wait)))
        .collect();
    if waits.len() > OTHERS_MAX {
        words.push(format!("{} more", waits.len() - OTHERS_MAX));
    }
    Some(vec![format!(
        "{verdict}: expected waits are {} at {}, and at those that could take it: {}.",
        micros(here),
        flow.flow.backend,
        words.join("; ")
    )])
}

/// Whether it rests from its last move.
fn rests(view: &FlowView, migration: &Migration) -> Option<String> {
    let cooldown = migration.cooldown.micros().ok()?;
    match &view.last_move {
        Some(LastMove { ago, .. }) if *ago < cooldown => Some(format!(
            "It rests from its last move for another {} (`cooldown` {}).",
            micros(cooldown.0 - ago.0),
            migration.cooldown
        )),
        None if view.migrations > 0 && view.quiet < cooldown => Some(format!(
            "It may still rest from its last move (`cooldown` {}).",
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
