//! Whether most of a policy's flows can move at all.
//!
//! Owns from when on that is worth a condition and an Event. Why one flow cannot, its dataplane
//! knows.

use crate::{ConditionKind, Reason, index::PolicyRecord, messages::few, sums::Present};
use baton_api::{MigrationMode, Protocol};
use std::cmp::Reverse;

/// With fewer flows a single client decides which half is the larger one.
const FLOWS_MIN: u64 = 20;
/// What was said stays said for so long, in seconds: whoever opens and closes connections makes at
/// most one Event in this time.
const STAYS_S: i64 = 60;

/// What to say if fewer than half of them can: the reasons, most flows first. It is said until more
/// than three of five can. Nothing of policies that want no moves.
pub(crate) fn few_can_move(record: &PolicyRecord, present: &Present, now: i64) -> Option<String> {
    let template = record.served.template.as_ref().ok()?;
    if template.protocol == Protocol::None || template.migration.mode == MigrationMode::Never {
        return None;
    }
    let before = record
        .verdict
        .as_ref()
        .map(|verdict| verdict.condition(ConditionKind::Degraded))
        .filter(|degraded| degraded.reason == Reason::FewFlowsCanMove);
    let pinned: u64 = present.pinned.values().sum();
    let is_few = match before {
        Some(degraded) if now - degraded.since < STAYS_S => pinned > 0,
        Some(_) => pinned.saturating_mul(5) >= present.flows.saturating_mul(2),
        None => present.flows >= FLOWS_MIN && pinned.saturating_mul(2) > present.flows,
    };
    if !is_few || pinned == 0 {
        return None;
    }
    let mut reasons: Vec<_> = present
        .pinned
        .iter()
        .filter(|(_, flows)| **flows > 0)
        .collect();
    reasons.sort_by_key(|(_, flows)| Reverse(**flows));
    // Without numbers: a condition that counts would be written with each connection.
    let reasons = few(reasons.into_iter().map(|(reason, _)| reason), ", ");
    Some(format!(
        "fewer than half of its connections can move to another pod, because of {reasons}: see docs/why-no-move.md, and \
         `kubectl baton flows --pinned` for which"
    ))
}
