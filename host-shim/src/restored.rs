//! Legs that clients stand for (`docs/adoption-wire.md`, The client block): has those that nobody
//! uses forgotten. Owns where their namespaces are; whether a leg is unused is the adopter's to say
//! (`baton_adopter::Adopter::forget_unused`).

use crate::pods::PodState;
use baton_adopter::{Adopter, LEG_PATIENCE};
use std::collections::{BTreeMap, BTreeSet};
use tracing::{debug, warn};

/// One pass over all legs of the node, at most 65,536.
pub fn attend(adopter: &Adopter, pods: &[PodState]) {
    let known = |state: &PodState| {
        let cookie = state.attachment()?.id().netns;
        Some((cookie, state.place.as_ref()?.netns.clone()))
    };
    let known: BTreeMap<_, _> = pods.iter().filter_map(known).collect();
    match adopter.forget_unused(&known, LEG_PATIENCE) {
        Ok(forgotten) => debug!(forgotten, "legs that nobody uses"),
        Err(problem) => warn!(%problem, "not all legs that clients stand for can be looked at"),
    }
}

/// The cookies of namespaces with such legs; `None` if they cannot be listed.
pub fn in_use(adopter: &Adopter) -> Option<BTreeSet<u64>> {
    let legs = adopter
        .legs()
        .inspect_err(|problem| warn!(%problem, "the legs that clients stand for cannot be listed"));
    Some(legs.ok()?.into_keys().collect())
}
