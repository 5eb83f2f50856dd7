//! Verdicts of the index as statuses of objects.
//!
//! Owns how the one reads in the other; pure. Texts and lists are cut to what the CRDs take, so
//! that a long message can never keep a status from being written.

use crate::ledger::Entry;
use baton_crds as crd;
use baton_index::{
    BackendVerdict, ClassVerdict, Condition, ConditionKind, Drain, FrontVerdict, LeadsTo, Refusal,
    Status, Text, Verdict,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::cmp::Reverse;

/// Characters of a condition's message: what fits on a screen. The CRD takes 32,768.
const LIMIT_MESSAGE: usize = 1_024;
/// Characters of a reason why a backend is not used.
const LIMIT_WORDS: usize = 256;
/// Characters of what a drain waits for.
const LIMIT_WAITING: usize = 512;
/// Characters of a reason why flows are pinned.
const LIMIT_PINNED: usize = 128;

/// The status of a policy. `before` is what it was.
pub fn policy(verdict: &Verdict, before: &Entry, now: Timestamp) -> crd::LoadBalancerPolicyStatus {
    let conditions = verdict.conditions.iter();
    let mut conditions: Vec<_> =
        conditions.map(|c| condition(c, verdict.observed_generation, before, now)).collect();
    conditions.push(ready(verdict, &conditions, before, now));
    // Without figures nobody has said anything: no zeros then.
    let said = verdict.figures_at.is_some();
    let figure = |value: u64| said.then(|| count(value));
    let drained = verdict.drained;
    let waiting: u64 = verdict.drains.iter().flat_map(|d| d.waiting.values()).sum();
    crd::LoadBalancerPolicyStatus {
        observed_generation: Some(verdict.observed_generation),
        conditions,
        addresses: verdict.addresses.iter().take(crd::STATUS_ADDRESSES_MAX).cloned().collect(),
        frontend: verdict.front.as_ref().map(frontend),
        backends: Some(of(verdict.ready, verdict.total)),
        dataplanes: Some(of(verdict.programmed, verdict.dataplanes)),
        flows: figure(verdict.flows),
        migrations: figure(verdict.totals.migrations),
        rescued: figure(verdict.totals.rescues),
        lost: figure(verdict.totals.lost),
        rollbacks: figure(verdict.totals.rollbacks),
        replays: figure(verdict.totals.replays),
        figures_time: verdict.figures_at.and_then(time),
        classes: verdict
            .classes
            .iter()
            .take(crd::STATUS_CLASSES_MAX)
            .map(ToString::to_string)
            .collect(),
        backend_figures: verdict
            .backends
            .iter()
            .take(crd::STATUS_BACKENDS_MAX)
            .map(|b| backend(b, said))
            .collect(),
        backends_not_shown: (verdict.backends_not_shown > 0)
            .then(|| small(verdict.backends_not_shown)),
        drained: said.then(|| crd::Drained {
            moved: count(drained.moved),
            ended: count(drained.ended),
            closed: count(drained.closed),
        }),
        draining: (!verdict.drains.is_empty()).then(|| crd::Draining {
            backends: small(verdict.drains.len()),
            waiting: count(waiting),
            by: verdict.drains.iter().map(|d| d.until).max().and_then(time),
        }),
        drains: verdict.drains.iter().take(crd::STATUS_DRAINS_MAX).map(drain).collect(),
        movable: said.then(|| {
            let movable = verdict.movable;
            crd::Movable::new(movable.by_adoption, movable.by_translation, verdict.flows)
        }),
        pinned: pinned(verdict),
    }
}

/// What the other conditions come to for a client.
fn ready(
    verdict: &Verdict,
    others: &[crd::Condition],
    before: &Entry,
    now: Timestamp,
) -> crd::Condition {
    let named = |name: &str| others.iter().find(|c| c.type_ == name);
    let needed = ["Accepted", "Programmed"].into_iter().filter_map(named);
    let lacking = needed.into_iter().find(|c| c.status != crd::ConditionStatus::True);
    let past = verdict.front.as_ref().filter(|f| f.leads_to != LeadsTo::Dataplanes);
    let (status, reason, message) = if let Some(lacking) = lacking {
        let message = format!("{}: {}", lacking.type_, lacking.message);
        (lacking.status, lacking.reason.clone(), message)
    } else if let Some(front) = past {
        // What is wrong with it comes before all else.
        let degraded = named("Degraded").filter(|c| c.reason.starts_with("Frontend"));
        let message = match degraded {
            Some(degraded) => format!(
                "Service {} does not lead to dataplanes: {}",
                front.service, degraded.message
            ),
            None => format!(
                "Service {} is not there yet; if it does not come, the policy's Events say why",
                front.service
            ),
        };
        (crd::ConditionStatus::False, "FrontendLeadsPast".to_owned(), message)
    } else if verdict.ready == 0 {
        let message = "no pod is ready".to_owned();
        (crd::ConditionStatus::False, "NoReadyEndpoints".to_owned(), message)
    } else {
        let message = "dataplanes serve clients".to_owned();
        (crd::ConditionStatus::True, "Ready".to_owned(), message)
    };
    // Not before what it is made of.
    let needed = [ConditionKind::Accepted, ConditionKind::Programmed];
    let since = needed.map(|kind| verdict.condition(kind).since);
    let since = since.into_iter().max().unwrap_or_default();
    let since = Timestamp::from_second(since).unwrap_or(now).min(now);
    crd::Condition {
        type_: crd::ConditionType::Ready.name().to_owned(),
        status,
        observed_generation: Some(verdict.observed_generation),
        reason,
        message: cut(&message, LIMIT_MESSAGE),
        last_transition_time: before.transition(crd::ConditionType::Ready.name(), status, since),
    }
}

fn frontend(front: &FrontVerdict) -> crd::FrontendStatus {
    let port = |(listener, port): &(Text, u16)| crd::FrontendPort {
        listener: listener.to_string(),
        port: i32::from(*port),
    };
    crd::FrontendStatus {
        service: front.service.to_string(),
        leads_to: match front.leads_to {
            LeadsTo::Dataplanes => crd::LeadsTo::Dataplanes,
            LeadsTo::Pods => crd::LeadsTo::Pods,
            LeadsTo::Nowhere => crd::LeadsTo::Nowhere,
        },
        ports: front.ports.iter().map(port).collect(),
    }
}

/// Those with the most flows first, of which the last are left out.
fn pinned(verdict: &Verdict) -> Vec<crd::PinnedFlows> {
    let mut pinned: Vec<_> = verdict.pinned.iter().collect();
    pinned.sort_by_key(|(_, flows)| Reverse(**flows));
    let pinned = pinned.into_iter().take(crd::STATUS_PINNED_MAX);
    let one = |(reason, flows): (&Text, &u64)| crd::PinnedFlows {
        reason: cut(reason, LIMIT_PINNED),
        flows: count(*flows),
    };
    pinned.map(one).collect()
}

/// The status of a class. A refusal is about the object as it is now, which is not in force then.
pub fn class(
    verdict: &ClassVerdict,
    refusal: Option<&Refusal>,
    before: &Entry,
    now: Timestamp,
) -> crd::BatonDataplaneStatus {
    let generation =
        if refusal.is_some() { before.generation } else { verdict.observed_generation };
    let is = |yes: bool| {
        if yes { crd::ConditionStatus::True } else { crd::ConditionStatus::False }
    };
    let one = |kind: crd::ConditionType, holds: bool, reason: &str, message: &str| {
        let status = is(holds);
        crd::Condition {
            type_: kind.name().to_owned(),
            status,
            observed_generation: Some(generation),
            reason: reason.to_owned(),
            message: cut(message, LIMIT_MESSAGE),
            last_transition_time: before.transition(kind.name(), status, now),
        }
    };
    let accepted = match refusal {
        None => one(crd::ConditionType::Accepted, true, "Accepted", "it is in force as written"),
        Some(refusal) => {
            let words = format!(
                "{}: {}; what it was before stays in force",
                refusal.field, refusal.problem
            );
            let reason = if refusal.field.is_empty() { "InternalError" } else { "Invalid" };
            one(crd::ConditionType::Accepted, false, reason, &words)
        }
    };
    let behind = verdict.ready - verdict.synchronised.min(verdict.ready);
    let programmed = if verdict.ready == 0 {
        let words = "no pod that spec.selector selects is ready: look at the dataplane pods, or correct the selector";
        one(crd::ConditionType::Programmed, false, "NoDataplane", words)
    } else if behind > 0 {
        let words = format!(
            "{behind} of {} ready dataplanes do not serve the newest snapshot yet",
            verdict.ready
        );
        one(crd::ConditionType::Programmed, false, "Pending", &words)
    } else {
        let words = "all ready dataplanes serve the newest snapshot";
        one(crd::ConditionType::Programmed, true, "Programmed", words)
    };
    let degraded = match &verdict.problem {
        Some(problem) => one(crd::ConditionType::Degraded, true, "NeedsAttention", problem),
        None => one(crd::ConditionType::Degraded, false, "AsExpected", "nothing is wrong"),
    };
    crd::BatonDataplaneStatus {
        observed_generation: Some(generation),
        conditions: vec![accepted, programmed, degraded],
        dataplanes: Some(of(verdict.synchronised, verdict.dataplanes)),
        policies: Some(small(verdict.policies)),
        instances: verdict
            .instances
            .iter()
            .map(|instance| crd::DataplaneInstance {
                name: instance.pod.name.to_string(),
                node: instance.node.as_deref().map(str::to_owned),
                in_sync: instance.synchronised,
                message: instance.problem.as_deref().map(|p| cut(p, LIMIT_MESSAGE)),
            })
            .collect(),
    }
}

fn condition(
    condition: &Condition,
    generation: i64,
    before: &Entry,
    now: Timestamp,
) -> crd::Condition {
    let status = match condition.status {
        Status::True => crd::ConditionStatus::True,
        Status::False => crd::ConditionStatus::False,
        Status::Unknown => crd::ConditionStatus::Unknown,
    };
    let kind = condition.kind.as_str();
    // What the index saw begin; what the object's status says holds before that.
    let since = Timestamp::from_second(condition.since).unwrap_or(now).min(now);
    crd::Condition {
        type_: kind.to_owned(),
        status,
        observed_generation: Some(generation),
        reason: condition.reason.as_str().to_owned(),
        message: cut(&condition.message, LIMIT_MESSAGE),
        last_transition_time: before.transition(kind, status, since),
    }
}

fn backend(verdict: &BackendVerdict, said: bool) -> crd::BackendFigures {
    let figure = |value: u64| said.then(|| count(value));
    crd::BackendFigures {
        listener: verdict.listener.to_string(),
        name: verdict.name.to_string(),
        endpoint: verdict.endpoint.to_string(),
        state: verdict.state.as_str().to_owned(),
        unusable: verdict.unusable.as_deref().map(|words| cut(words, LIMIT_WORDS)),
        unadoptable: verdict.unadoptable.as_deref().map(|words| cut(words, LIMIT_WORDS)),
        untranslatable: verdict.untranslatable.as_deref().map(|words| cut(words, LIMIT_WORDS)),
        weight: Some(i32::from(verdict.weight)),
        flows: figure(verdict.flows),
        pinned: figure(verdict.pinned),
        outstanding: figure(verdict.outstanding),
        migrations_in: figure(verdict.totals.migrations_in),
        migrations_out: figure(verdict.totals.migrations_out),
        rescued: figure(verdict.totals.rescued),
    }
}

fn drain(drain: &Drain) -> crd::DrainFigures {
    let waiting: u64 = drain.waiting.values().sum();
    let words: Vec<String> =
        drain.waiting.iter().map(|(reason, flows)| format!("{flows} {reason}")).collect();
    crd::DrainFigures {
        listener: drain.listener.to_string(),
        backend: drain.backend.to_string(),
        moved: Some(count(drain.drained.moved)),
        ended: Some(count(drain.drained.ended)),
        closed: Some(count(drain.drained.closed)),
        // Dataplanes do not count it by backend.
        reset: None,
        waiting: Some(count(waiting)),
        waiting_for: (!words.is_empty()).then(|| cut(&words.join(", "), LIMIT_WAITING)),
        since: time(drain.since),
        by: time(drain.until),
    }
}

fn time(seconds: i64) -> Option<Time> {
    Timestamp::from_second(seconds).ok().map(Time)
}

fn count(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn small(value: usize) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

fn of(ready: usize, total: usize) -> crd::Count {
    crd::Count::new(small(ready), small(total))
}

/// At most so many characters, the last of which then says that there were more.
fn cut(text: &str, characters: usize) -> String {
    if text.chars().nth(characters).is_none() {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(characters - 1).collect();
    short.push('…');
    short
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
