//! Whether a policy is accepted, and what is in force of it if it is not.
//!
//! Owns the words for both. What else is said of a policy is `judge`'s.

use crate::{
    Index, Key, PortRef, Reason, Status,
    claims::{Claim, Outcome, Place},
    index::PolicyRecord,
    kept::Kept,
    messages::{Said, few, internal_error, said},
    standing::Standing,
    translate::Translation,
};

/// The condition.
pub(crate) fn accepted(index: &Index, key: &Key, record: &PolicyRecord) -> Said {
    let no = |reason, message: String| said(Status::False, reason, message);
    if let Some(what) = &record.failure {
        return internal_error(what);
    }
    if let Some((reason, problem)) = &record.problem {
        return no(*reason, format!("{problem}; {}", in_force(index, key, record)));
    }
    if let Some(Standing::Unfit { reason, message }) = &record.standing {
        return no(*reason, message.clone());
    }
    if let Some(Outcome::Lost { claim, winner }) = index.claims.outcome(key) {
        return no(Reason::Conflicted, conflict(claim, winner, record));
    }
    let Some(translation) = &record.translation else {
        return said(Status::Unknown, Reason::Pending, "it has not been looked at yet");
    };
    let service = format!("{}/{}", key.namespace, record.served.service);
    if let Some(bug) = &translation.bug {
        return internal_error(bug);
    }
    if translation.service_missing {
        let mut message = format!(
            "Service {service} does not exist: create it, or correct spec.targetRefs[0].name"
        );
        if !translation.listeners.is_empty() {
            message.push_str("; until all manifests are good, what dataplanes had stays in force");
        }
        return no(Reason::TargetNotFound, message);
    }
    if translation.external_name {
        let message = format!(
            "Service {service} is of type ExternalName, which has no pods: expected a Service with a selector in \
             spec.targetRefs[0].name"
        );
        return no(Reason::Invalid, message);
    }
    if translation.listeners.is_empty() {
        return no(Reason::PortNotFound, without_port(&service, translation));
    }
    said(Status::True, Reason::Accepted, "it can be used as it is written")
}

/// What is in force of a policy that cannot be used as it is.
fn in_force(index: &Index, key: &Key, record: &PolicyRecord) -> String {
    let what = match record.kept {
        Some(Kept::Good { generation: 0 }) => {
            "what it said when it was good the last time".to_owned()
        }
        Some(Kept::Good { generation }) => {
            format!("what it said as generation {generation}, the last good one,")
        }
        _ => "what dataplanes had of it when this operator began".to_owned(),
    };
    if let Some(Standing::Unfit { message, .. }) = &record.standing {
        return format!("{what} cannot be used either: {message}");
    }
    if let Some(Outcome::Lost { claim, winner }) = index.claims.outcome(key) {
        return format!("{what} gives way: {}", conflict(claim, winner, record));
    }
    let service = &record.served.service;
    match &record.translation {
        Some(translation) if !translation.listeners.is_empty() => {
            let endpoints = if translation.held > 0 {
                "with the endpoints of then"
            } else {
                "with its endpoints as they are now"
            };
            format!("{what} stays in force, {endpoints}")
        }
        _ => format!("{what} cannot be served, because Service {service} or its port is not there"),
    }
}

fn conflict(claim: &Claim, winner: &Key, record: &PolicyRecord) -> String {
    match claim {
        Claim::Service(service) => format!(
            "the older policy {winner} is for Service {service} already: delete one of the two, or correct \
             spec.targetRefs[0].name"
        ),
        Claim::Front(service) => format!(
            "the older policy {winner} is behind Service {service} already: choose another name in \
             spec.frontend.service.name, or delete one of the two"
        ),
        Claim::Frontend { class, place, port } => {
            let place = match place {
                Place::Own(_) => "the dataplane's own address".to_owned(),
                Place::Address(address) => address.to_string(),
            };
            let listeners = record.served.listeners.iter().filter(|l| l.at() == *port);
            let listeners = few(listeners.map(|l| &l.name), ", ");
            format!(
                "the older policy {winner} has port {port} of {place} in class {class} already: give listener {listeners} \
                 another port or address, select another class, or delete one of the two"
            )
        }
    }
}

/// Ports that the Service has not.
pub(crate) fn without_port(service: &str, translation: &Translation) -> String {
    let missing = || translation.without_port.iter();
    let wanted = missing().map(|(listener, port)| match port {
        PortRef::Name(name) | PortRef::Section(name) => format!("`{name}` (listener {listener})"),
        PortRef::Number(number) => format!("{number} (listener {listener})"),
    });
    let wanted = few(wanted, ", ");
    let mut by_section = missing().map(|(_, port)| matches!(port, PortRef::Section(_)));
    let field = match (by_section.clone().all(|is| is), by_section.any(|is| is)) {
        (true, _) => "spec.targetRefs[0].sectionName",
        (_, false) => "spec.listeners[].servicePort",
        _ => "spec.listeners[].servicePort and spec.targetRefs[0].sectionName",
    };
    let ports = translation.ports.iter().map(|port| match port.name.is_empty() {
        true => port.port.to_string(),
        false => format!("{} ({})", port.name, port.port),
    });
    let ports = few(ports, ", ");
    let has = if ports.is_empty() { "none for TCP".to_owned() } else { ports };
    format!(
        "Service {service} has no port {wanted}; it has {has}: correct {field}, or add the port to the Service"
    )
}
