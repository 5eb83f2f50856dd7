//! How many of a policy's flows can move, and whether those are too few.
//!
//! Owns what that means: which flows have another backend that takes them, and from when on too few
//! are worth a condition and an Event. Why one flow cannot, its dataplane knows.

use crate::{
    BackendState, BackendVerdict, ConditionKind, Movable, Reason, Text, index::PolicyRecord,
    messages::few,
};
use baton_api::{MigrationMode, MoveMethod, Policy, Protocol};
use std::collections::BTreeMap;

/// With fewer flows a single client decides which half is the larger one.
const FLOWS_MIN: u64 = 20;
/// What was said stays said for so long, in seconds: whoever opens and closes connections makes at
/// most one Event in this time.
const STAYS_S: i64 = 60;

/// Flows of a listener that can move: not pinned, and another backend takes them. Of each backend
/// also whether a dataplane has asked it.
pub(crate) fn movable<'a>(
    policy: &Policy,
    backends: impl Iterator<Item = (&'a BackendVerdict, bool)> + Clone,
) -> Movable {
    let mut out = Movable::default();
    if !moves(policy) {
        return out;
    }
    let method = policy.migration.method;
    let takes = |one: &BackendVerdict| {
        one.state == BackendState::Ready && one.weight > 0 && one.unusable.is_none()
    };
    let adopts = |(one, probed): (&BackendVerdict, bool)| {
        let can = probed && one.unadoptable.is_none();
        takes(one) && can && method != MoveMethod::Translation
    };
    let translates = |(one, _): (&BackendVerdict, bool)| {
        takes(one) && one.untranslatable.is_none() && method != MoveMethod::Adoption
    };
    let adopting = backends.clone().filter(|b| adopts(*b)).count();
    let translating = backends.clone().filter(|b| translates(*b)).count();
    for backend in backends {
        let flows = backend.0.flows.saturating_sub(backend.0.pinned);
        // It is no other backend of its own flows.
        if adopting > usize::from(adopts(backend)) {
            out.by_adoption += flows;
        } else if translating > usize::from(translates(backend)) {
            out.by_translation += flows;
        }
    }
    out
}

fn moves(policy: &Policy) -> bool {
    policy.protocol != Protocol::None && policy.migration.mode != MigrationMode::Never
}

/// What to say if more than half of all flows are pinned: the reasons, by name. It is said
/// until fewer than two of five are. Nothing of policies that want no moves.
pub(crate) fn few_can_move(
    record: &PolicyRecord,
    flows: u64,
    by_reason: &BTreeMap<Text, u64>,
    now: i64,
) -> Option<String> {
    if !record.settings().any(moves) {
        return None;
    }
    let before = record
        .verdict
        .as_ref()
        .map(|verdict| verdict.condition(ConditionKind::Degraded))
        .filter(|degraded| degraded.reason == Reason::FewFlowsCanMove);
    let pinned: u64 = by_reason.values().sum();
    let is_few = match before {
        Some(degraded) if now - degraded.since < STAYS_S => pinned > 0,
        Some(_) => pinned.saturating_mul(5) >= flows.saturating_mul(2),
        None => flows >= FLOWS_MIN && pinned.saturating_mul(2) > flows,
    };
    if !is_few || pinned == 0 {
        return None;
    }
    let reasons = by_reason.iter().filter(|(_, flows)| **flows > 0);
    // Without numbers and in no order of them: a condition that counts would be written with each
    // connection.
    let reasons = few(reasons.map(|(reason, _)| reason), ", ");
    Some(format!(
        "fewer than half of its connections can move to another pod, because of {reasons}: see docs/why-no-move.md, and \
         `kubectl baton flows --pinned` for which"
    ))
}
