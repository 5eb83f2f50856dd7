//! Legs that clients stand for (`docs/adoption-wire.md`, The client block): has those that nobody
//! uses forgotten. Owns which namespace they are looked at in; whether a leg is unused is the
//! adopter's to say (`baton_adopter::Adopter::forget_unused`).

use crate::pods::PodState;
use baton_adopter::{Adopter, Error, LEG_PATIENCE, Leg};
use std::collections::{BTreeMap, BTreeSet};
use tracing::{debug, warn};

/// One pass over all legs of the node, at most 65,536.
pub fn attend(adopter: &Adopter, pods: &[PodState]) {
    let Some(legs) = legs(adopter).filter(|legs| !legs.is_empty()) else {
        return;
    };
    let mut forgotten = adopter.forget_ended(&legs).unwrap_or_default();
    // A pod has one adopter on each of its interfaces.
    let mut looked = BTreeSet::new();
    for state in pods {
        let place = state.attachment().zip(state.place.as_ref());
        let Some((attachment, place)) = place else {
            continue;
        };
        let cookie = attachment.id().netns;
        let Some(legs) = legs.get(&cookie).filter(|_| looked.insert(cookie)) else {
            continue;
        };
        match adopter.forget_unused(&place.netns, legs, LEG_PATIENCE) {
            Ok(count) => forgotten += count,
            // Its processes are gone; when its adopter is, so are its legs.
            Err(Error::NetnsMissing { .. }) => {}
            Err(problem) => warn!(pod = state.name(), %problem, "its legs cannot be looked at"),
        }
    }
    debug!(forgotten, "legs that nobody uses");
}

/// The cookies of namespaces with such legs; `None` if they cannot be listed.
pub fn in_use(adopter: &Adopter) -> Option<BTreeSet<u64>> {
    Some(legs(adopter)?.into_keys().collect())
}

fn legs(adopter: &Adopter) -> Option<BTreeMap<u64, Vec<Leg>>> {
    adopter
        .legs()
        .inspect_err(|problem| warn!(%problem, "the legs that clients stand for cannot be listed"))
        .ok()
}
