//! Messages of shims and dataplanes (reports, refusals), as the index takes them. Pure.

use baton_index::{Change, Key, Shim, Text};
use baton_push::push::{Outcome, Unreached};
use std::{collections::BTreeMap, sync::Arc};

/// Failures in a row after which a dataplane or a shim counts as unreachable: one lost request is
/// no news to the owners of all policies.
pub const UNREACHABLE_AFTER: u32 = 3;

/// What a report of a shim means to the index; nothing if it is no news to it.
pub fn shim(node: Text, result: Outcome) -> Option<Change> {
    let shim = match result {
        Outcome::Shim(state) => {
            let unattached = state
                .pods
                .iter()
                // One that has the adopter and a reason refuses adoptions.
                .filter(|pod| !pod.attached || pod.reason.is_some())
                .filter_map(|pod| {
                    let (namespace, name) = pod.name.split_once('/')?;
                    let why = pod.reason.as_deref().unwrap_or("the shim gives no reason");
                    Some((Key::new(namespace, name), why.into()))
                });
            Shim { unreachable: None, unattached: unattached.collect() }
        }
        Outcome::Unreachable(Unreached { problem, failures, .. })
            if failures >= UNREACHABLE_AFTER =>
        {
            Shim { unreachable: Some(problem.as_str().into()), unattached: BTreeMap::new() }
        }
        _ => return None,
    };
    Some(Change::Shim(node, Some(Arc::new(shim))))
}

/// What a dataplane says of policies that it cannot take, by name of the snapshot policy.
pub fn refused_policies(all: &[baton_api::RefusedPolicy]) -> BTreeMap<Text, Text> {
    let all = all.iter();
    all.map(|one| (one.policy.as_str().into(), one.message.as_str().into())).collect()
}

/// A dataplane's refusal in one line.
pub fn refusal(refusal: &baton_push::push::Refusal) -> String {
    let mut message = String::new();
    if let Some(policy) = &refusal.policy {
        message.push_str(&format!("{policy}: "));
    }
    if let Some(field) = &refusal.field {
        message.push_str(&format!("{field}: "));
    }
    message.push_str(&refusal.problem);
    if let Some(expected) = &refusal.expected {
        message.push_str(&format!(": expected {expected}"));
    }
    message
}
