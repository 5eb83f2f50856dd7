//! Whether a policy's flows can move to all of its backends, and how: the condition `Adoptable`.
//!
//! Owns the sentence. How a flow moves to a backend, its dataplane decides.

use crate::{
    Index, Key, Reason, Status,
    coverage::{Obstacle, obstacle},
    index::PolicyRecord,
    messages::{Reasons, Said, count, said},
    sums::{Measured, Present, is_wanted},
};
use baton_api::{MoveMethod, Protocol};

/// What is in the way of adoptions to a backend.
enum Adoptions {
    Possible,
    NotProbed,
    Refused(String),
}

pub(crate) fn adoptable(
    index: &Index,
    key: &Key,
    record: &PolicyRecord,
    present: &Present,
    rejected: bool,
) -> Said {
    if rejected {
        return said(Status::Unknown, Reason::NotAccepted, "it is not accepted");
    }
    if record.settings().all(|policy| policy.protocol == Protocol::None) {
        let message = "spec.protocol is None, or by the Service's `appProtocol`, with which no flow ever moves: name the protocol if it is one of the others";
        return said(Status::False, Reason::ProtocolNone, message);
    }
    let wanted: Vec<&Measured> = present.backends.iter().filter(|b| is_wanted(b)).collect();
    if wanted.is_empty() {
        return said(Status::Unknown, Reason::NoEndpoints, "there is no backend to move flows to");
    }
    let mut methods = record.settings().map(|policy| policy.migration.method);
    let method = methods.next().unwrap_or(MoveMethod::Auto);
    let all = count(wanted.len(), "backend");
    let (mut never, mut translated, mut open) = (Reasons::default(), Reasons::default(), 0);
    for one in &wanted {
        let name = &one.detail.name;
        let closed = &one.verdict.untranslatable;
        match (
            adoptions(index, key, one),
            method,
            one.verdict.unusable.as_ref().or(closed.as_ref()),
        ) {
            // No connection can be opened there either.
            (_, MoveMethod::Translation, Some(why)) => never.add(name, why.to_string()),
            (_, MoveMethod::Translation, None) | (Adoptions::Possible, ..) => {}
            (Adoptions::NotProbed, ..) => open += 1,
            (Adoptions::Refused(why), MoveMethod::Auto, None) => translated.add(name, why),
            (Adoptions::Refused(why), MoveMethod::Auto, _) => {
                never.add(name, neither(why, closed.as_deref()));
            }
            (Adoptions::Refused(why), ..) => never.add(name, why),
        }
    }
    if never.len() > 0 {
        let message = format!("flows cannot move to {} of {all}: {never}", never.len());
        return said(Status::False, Reason::BackendsNotAdoptable, message);
    }
    if open > 0 {
        let message =
            format!("no dataplane has said yet whether flows can move to {open} of {all}");
        return said(Status::Unknown, Reason::NotProbed, message);
    }
    if translated.len() > 0 {
        let message = format!(
            "flows can move to all backends, to {} of {all} by translation, one round trip longer: {translated}",
            translated.len()
        );
        return said(Status::True, Reason::ByTranslation, message);
    }
    let how = match method {
        MoveMethod::Translation => ", by translation",
        MoveMethod::Auto | MoveMethod::Adoption => "",
    };
    let message = format!("flows can move to all backends{how}");
    said(Status::True, Reason::Adoptable, message)
}

/// Why a backend adopts nothing, and why no connection can be opened there.
fn neither(why: String, closed: Option<&str>) -> String {
    match closed {
        None => why,
        Some(closed) if why.contains(closed) => {
            format!("{why}, so no connection can be opened there either")
        }
        Some(closed) => format!("{why}, and not by translation either: {closed}"),
    }
}

fn adoptions(index: &Index, key: &Key, one: &Measured) -> Adoptions {
    let why = one.verdict.unadoptable.as_ref();
    if one.probed && why.is_none() {
        return Adoptions::Possible;
    }
    match (why, obstacle(index, &key.namespace, &one.detail)) {
        // What dataplanes then find out follows from that.
        (_, Some(obstacle @ (Obstacle::NotAttached(..) | Obstacle::NodeExcluded(_)))) => {
            Adoptions::Refused(obstacle.to_string())
        }
        (Some(why), Some(more)) => Adoptions::Refused(format!("{why}, and {more}")),
        (Some(why), None) => Adoptions::Refused(why.to_string()),
        (None, Some(more)) => Adoptions::Refused(more.to_string()),
        (None, None) => Adoptions::NotProbed,
    }
}
