//! How far the dataplanes of a class are: which take connections, and what keeps one from having a
//! revision or a policy.
//!
//! Owns the words for that. Decides nothing.

use crate::{
    Index, Key, Reason, Text, class::ClassRecord, messages::few, reports::DataplaneRecord,
};

/// The dataplanes of a class that take connections.
pub(crate) fn ready_members<'a>(index: &'a Index, class: &'a ClassRecord) -> Vec<&'a Key> {
    let ready = |pod: &&Key| {
        let pod = index.world.live_pod(pod);
        pod.is_some_and(|pod| pod.ready && !pod.deleting)
    };
    class.members.keys().filter(ready).collect()
}

/// Why a class has no ready dataplane.
pub(crate) fn no_dataplane(name: &Text, class: &ClassRecord) -> String {
    let spec = &class.spec;
    if class.members.is_empty() {
        return format!(
            "class {name} has no dataplane: no pod with an address in namespace {} has the labels {}: start one, or correct \
             spec.selector of BatonDataplane {name}",
            spec.namespace, spec.selector
        );
    }
    let pods = few(class.members.keys(), ", ");
    format!("class {name} has no ready dataplane: see why {pods} is not ready")
}

/// Why a dataplane does not have a revision.
pub(crate) fn behind(index: &Index, pod: &Key, revision: u64) -> Option<(Reason, String)> {
    let record = index.dataplanes.get(pod);
    let has = record.map_or(0, DataplaneRecord::acknowledged);
    // A class begins with revision 1 or more, so 0 is nobody's.
    if has >= revision && has > 0 {
        return None;
    }
    if let Some((refused, words)) = record.and_then(|r| r.refusal())
        && refused >= revision
    {
        let message = format!(
            "dataplane {pod} refuses the snapshot: {words}: change what it names, or the limits in its configuration"
        );
        return Some((Reason::SnapshotRefused, message));
    }
    if let Some(why) = record.and_then(|r| r.unreachable()) {
        let message = format!("dataplane {pod} cannot be reached: {why}");
        return Some((Reason::DataplaneUnreachable, message));
    }
    let message = format!("dataplane {pod} has not acknowledged it yet");
    Some((Reason::Pending, message))
}

/// What a dataplane says of a policy that it cannot take.
pub(crate) fn refused_by(index: &Index, pod: &Key, policy: &Key) -> Option<(Reason, String)> {
    let record = index.dataplanes.get(pod)?;
    let all = record.refused_policies();
    let own: Vec<String> = all
        .filter(|(name, _)| index.names.get(*name) == Some(policy))
        .map(|(name, words)| format!("{name}: {words}"))
        .collect();
    (!own.is_empty()).then(|| {
        let message = format!(
            "dataplane {pod} cannot take it, and has what it had before if it had it: {}",
            few(own, "; ")
        );
        (Reason::RefusedByDataplane, message)
    })
}
