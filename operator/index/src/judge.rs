//! What is said of a policy.
//!
//! Owns its conditions, with reasons and messages that say what to change, and the bounds of what
//! is shown.

use crate::{
    BackendState, Condition, ConditionKind, Drain, FrontWrites, Index, Key, LIMIT_BACKENDS_SHOWN,
    Reason, Status, Text, Verdict,
    accepted::{accepted, without_port},
    adoptable::adoptable,
    class::{ClassRecord, Placed},
    frontend::{at_port, plan},
    index::PolicyRecord,
    messages::{Said, bounded, count, few, is_or_are, said},
    movable::few_can_move,
    progress::{behind, no_dataplane, ready_members, refused_by},
    reach::unreached,
    reports::Serving,
    room::Room,
    sums::{Measured, Present, is_wanted, present},
    translate::Translation,
};
use baton_api::{LIMIT_ALLOW_FROM, LIMIT_BACKENDS_PER_POLICY, LIMIT_SNAPSHOT_BYTES};
use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

/// What is said of a policy, and what else its figures come to.
pub(crate) struct Judged {
    pub verdict: Verdict,
    /// Of its Pods.
    pub costs: BTreeMap<Text, Option<u64>>,
    /// All of them, also those that are not shown.
    pub drains: Vec<Drain>,
    /// Each dataplane has said which drains there are.
    pub is_all: bool,
    /// Of its frontend.
    pub front: Option<(Serving, FrontWrites)>,
}

/// Judges.
pub(crate) fn judge(index: &Index, key: &Key, now: i64) -> Option<Judged> {
    let record = index.policies.get(key)?;
    let mut present = present(index, key, record);
    let accepted = accepted(index, key, record);
    // What is kept of a policy is judged as if it were the policy.
    let serves = |t: &Translation| !t.listeners.is_empty() && t.bug.is_none();
    let rejected = accepted.0 != Status::True && !record.translation.as_ref().is_some_and(serves);
    let (programmed, dataplanes, have) = programmed(index, key, record, rejected);
    let adoptable = adoptable(index, key, record, &present, rejected);
    let plan = plan(index, key, record);
    let problem = plan.as_ref().and_then(|plan| plan.problem.clone());
    let degraded = degraded(index, key, record, &present, rejected, problem, now);
    let all = [accepted, programmed, adoptable, degraded];
    let translation = record.translation.as_ref();
    present.drains.sort_by_key(|drain| {
        let left: u64 = drain.waiting.values().sum();
        (Reverse(left), drain.listener.clone(), drain.backend.clone())
    });
    let drains = present.drains.clone();
    present.drains.truncate(LIMIT_BACKENDS_SHOWN);
    let mut backends: Vec<_> = present.backends.into_iter().map(|b| b.verdict).collect();
    // Where nothing else decides they are in order of listeners and names already.
    backends.sort_by_key(|backend| Reverse(backend.flows));
    let backends_not_shown = backends.len().saturating_sub(LIMIT_BACKENDS_SHOWN);
    backends.truncate(LIMIT_BACKENDS_SHOWN);
    // Collected in the place of what they were made of, they have its room, which is four times
    // theirs.
    backends.shrink_to_fit();
    let verdict = Verdict {
        policy: key.clone(),
        uid: record.policy.uid.clone(),
        observed_generation: record.policy.generation,
        conditions: conditions(all, record.verdict.as_deref(), now),
        classes: record.staged.iter().cloned().collect(),
        addresses: match &plan {
            Some(plan) => plan.addresses.clone(),
            None => explicit(record),
        },
        front: plan.as_ref().map(|plan| plan.verdict.clone()),
        programmed: have,
        dataplanes,
        ready: translation.map_or(0, |t| t.ready),
        total: translation.map_or(0, |t| t.total),
        flows: present.flows,
        totals: record.sums.totals,
        movable: present.movable,
        pinned: present.pinned,
        drained: record.sums.drained,
        drains: present.drains,
        backends,
        backends_not_shown,
        figures_at: present.at,
    };
    Some(Judged {
        verdict,
        costs: present.costs,
        drains,
        is_all: present.is_all,
        front: plan.map(|plan| (plan.serving, plan.writes)),
    })
}

/// The addresses that listeners name.
fn explicit(record: &PolicyRecord) -> Vec<String> {
    let listeners = record.served.listeners.iter();
    let each = listeners.flat_map(|l| l.addresses.iter().map(move |a| (a, l.port)));
    each.map(|(address, port)| at_port(&address.to_string(), port)).collect()
}

/// With the time since when each is as it is.
pub(crate) fn conditions(all: [Said; 4], before: Option<&Verdict>, now: i64) -> [Condition; 4] {
    let mut kinds = ConditionKind::ALL.into_iter();
    all.map(|(status, reason, message)| {
        // As many kinds as conditions.
        let kind = kinds.next().unwrap_or(ConditionKind::Degraded);
        let was = before.map(|verdict| verdict.condition(kind));
        let since = was.filter(|was| was.status == status).map_or(now, |was| was.since);
        Condition { kind, status, reason, message: bounded(message), since }
    })
}

/// The condition, how many dataplanes should have the policy, and how many do.
fn programmed(
    index: &Index,
    key: &Key,
    record: &PolicyRecord,
    rejected: bool,
) -> (Said, usize, usize) {
    if rejected && record.failure.is_none() {
        let it = said(Status::False, Reason::NotAccepted, "it is not accepted");
        return (it, 0, 0);
    }
    let (mut should, mut have) = (0, 0);
    let mut problems: Vec<(Reason, String)> = Vec::new();
    for name in &record.staged {
        let Some(class) = index.classes.get(name) else {
            continue;
        };
        let Some(placed) = class.placed(key) else {
            continue;
        };
        problems.extend(no_room(name, class, placed));
        let ready = ready_members(index, class);
        if ready.is_empty() {
            problems.push((Reason::NoDataplane, no_dataplane(name, class)));
        }
        for pod in ready {
            should += 1;
            match behind(index, pod, placed.revision) {
                None if placed.room == Room::Enough => match refused_by(index, pod, key) {
                    Some(problem) => problems.push(problem),
                    None => have += 1,
                },
                None => {}
                Some(_) if placed.room != Room::Enough => {}
                Some(problem) => problems.push(problem),
            }
        }
    }
    // The gravest first; within one kind they are in order of names.
    problems.sort_by_key(|(reason, _)| *reason);
    let Some((reason, _)) = problems.first().cloned() else {
        let it =
            said(Status::True, Reason::Programmed, "all ready dataplanes have it as it is now");
        return (it, should, have);
    };
    let message = few(problems.iter().map(|(_, message)| message), "; ");
    (said(Status::False, reason, message), should, have)
}

/// Why a class has no room for all of a policy.
fn no_room(name: &Text, class: &ClassRecord, placed: Placed) -> Option<(Reason, String)> {
    let (reason, mut message) = match placed.room {
        Room::Enough => return None,
        Room::NoPolicy => (
            Reason::PolicyLimit,
            format!(
                "class {name} takes {} listeners, too few for this policy beside those that come before it: raise \
                 spec.limits.policies of BatonDataplane {name} (at most {}), select another class, or delete policies",
                class.spec.limit_policies,
                baton_api::LIMIT_POLICIES
            ),
        ),
        Room::NoBackend => (
            Reason::ClassBackendLimit,
            format!(
                "dataplanes of class {name} have room for {} backends and for those that leave, too few for this policy beside \
                 those that come before it: raise `limits.backends` of the dataplanes and of BatonDataplane {name}, or select \
                 another class",
                class.limit_backends()
            ),
        ),
        Room::NoBytes => (
            Reason::ClassSnapshotLimit,
            format!(
                "the snapshot of class {name} takes {LIMIT_SNAPSHOT_BYTES} bytes, too few for this policy beside those that come \
                 before it: name fewer and larger networks in spec.allowFrom, have fewer listeners, or select another class"
            ),
        ),
    };
    if placed.has_part {
        message.push_str("; until then it has no more listeners and backends than before it grew");
    }
    Some((reason, message))
}

fn not_allowed(key: &Key, record: &PolicyRecord, translation: &Translation) -> String {
    let addresses = few(&translation.not_allowed, ", ");
    let classes = few(&record.staged, ", ");
    format!(
        "{} not used, as no Pod of namespace {} has the address and is named in targetRef: {addresses}; correct the \
         EndpointSlices, or have an admin of BatonDataplane {classes} allow such addresses in spec.allowed[].endpoints",
        is_or_are(translation.not_allowed.len(), "endpoint"),
        key.namespace
    )
}

fn degraded(
    index: &Index,
    key: &Key,
    record: &PolicyRecord,
    present: &Present,
    rejected: bool,
    frontend: Option<(Reason, String)>,
    now: i64,
) -> Said {
    let Some(translation) = record.translation.as_ref().filter(|_| !rejected) else {
        return said(Status::Unknown, Reason::NotAccepted, "it is not accepted");
    };
    let service = &record.served.service;
    let mut issues: Vec<(Reason, String)> = Vec::new();
    issues.extend(frontend);
    if translation.held > 0 {
        let message = format!(
            "{} known only from dataplanes, which had them when this operator began; what becomes of their pods is not \
             seen",
            is_or_are(translation.held, "backend")
        );
        issues.push((Reason::BackendsNotFollowed, message));
    }
    if !translation.without_port.is_empty() {
        issues.push((Reason::PortNotFound, without_port(service, translation)));
    }
    if !translation.not_allowed.is_empty() {
        issues.push((Reason::EndpointsNotAllowed, not_allowed(key, record, translation)));
    }
    let explained = !translation.without_port.is_empty() || !translation.not_allowed.is_empty();
    if translation.total == 0 {
        let message = match translation.absent_pods.is_empty() {
            true if index.of_files => format!(
                "Service {service} has no endpoints: without a cluster nobody makes EndpointSlices of its selector, so \
                 write one, with the label `kubernetes.io/service-name: {service}`"
            ),
            true => format!(
                "Service {service} has no endpoints: see whether its selector matches pods that run"
            ),
            false => format!(
                "Service {service} has no endpoints: the Pods that its EndpointSlices name ({}) do not exist or have no \
                 address",
                few(&translation.absent_pods, ", ")
            ),
        };
        if !explained || !translation.absent_pods.is_empty() {
            issues.push((Reason::NoEndpoints, message));
        }
    } else if translation.ready == 0 {
        let draining = |b: &&Measured| b.verdict.state == BackendState::Draining;
        let message = format!(
            "none of {} is ready ({} terminating): see why the pods are not ready",
            count(translation.total, "pod"),
            present.backends.iter().filter(draining).count()
        );
        issues.push((Reason::NoReadyEndpoints, message));
    }
    if translation.left_out > 0 {
        let message = format!(
            "{} are not used: a listener takes {LIMIT_BACKENDS_PER_POLICY}, the first ones by name; split the Service",
            count(translation.left_out, "endpoint")
        );
        issues.push((Reason::BackendLimit, message));
    }
    if translation.clients_left_out > 0 {
        // Without their number: it changes with each Pod anywhere.
        let message = format!(
            "not all addresses of pods that spec.allowFrom selects may connect: a policy names {LIMIT_ALLOW_FROM} networks, \
             those of `cidr` first, then pods' in order of addresses; name networks in place of pods"
        );
        issues.push((Reason::AllowFromLimit, message));
    }
    if !translation.bad_addresses.is_empty() {
        let addresses = few(&translation.bad_addresses, ", ");
        let message =
            format!("its EndpointSlices have addresses that can be no pod's: {addresses}");
        issues.push((Reason::BackendsUnusable, message));
    }
    let unusable = present.backends.iter().filter(|b| is_wanted(b));
    let unusable: Vec<_> = unusable
        .filter_map(|b| Some(format!("{}: {}", b.detail.name, b.verdict.unusable.as_ref()?)))
        .collect();
    if !unusable.is_empty() {
        let message = format!("dataplanes do not use {}", few(&unusable, ", "));
        issues.push((Reason::BackendsUnusable, message));
    }
    if !present.panic.is_empty() {
        let message = format!(
            "too few backends of listener {} are usable, so all are used (health.panicPercent)",
            few(&present.panic, ", ")
        );
        issues.push((Reason::BackendsUnusable, message));
    }
    if !translation.bad_weights.is_empty() {
        let weights = translation.bad_weights.iter();
        let weights = few(weights.map(|(pod, value)| format!("{pod} has `{value}`")), ", ");
        let message = format!(
            "{weights} as its weight, so spec.weights.default counts: expected a whole number from 0 to 65535"
        );
        issues.push((Reason::WeightUnreadable, message));
    }
    let classes = record.staged.iter().filter_map(|name| index.classes.get(name));
    let ready = classes.flat_map(|class| ready_members(index, class));
    let silent = ready.filter_map(|pod| {
        let why = index.dataplanes.get(pod)?.unreachable()?;
        Some(format!("{pod}: {why}"))
    });
    let silent = few(silent, ", ");
    if !silent.is_empty() {
        let message =
            format!("dataplanes cannot be reached and go on with what they have: {silent}");
        issues.push((Reason::DataplaneUnreachable, message));
    }
    if let Some(message) = few_can_move(record, present.flows, &present.pinned, now) {
        issues.push((Reason::FewFlowsCanMove, message));
    }
    if let Some(message) = unreached(index, record, translation) {
        issues.push((Reason::NoServicePort, message));
    }
    let Some((reason, _)) = issues.first().cloned() else {
        return said(Status::False, Reason::AsExpected, "it works as it should");
    };
    let messages: Vec<String> = issues.into_iter().map(|(_, message)| message).collect();
    said(Status::True, reason, messages.join("; "))
}

/// Whether two verdicts say the same; of when the figures are does not matter.
pub(crate) fn same(before: Option<&Arc<Verdict>>, now: &mut Verdict) -> bool {
    let Some(before) = before else { return false };
    let at = now.figures_at;
    now.figures_at = before.figures_at;
    let same = **before == *now;
    now.figures_at = at;
    same
}
