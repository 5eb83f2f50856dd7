//! Whether Baton works, and if not why: a pure function of what was seen.
//!
//! A problem means that Baton does not do its job, so that `status` ends with 1; a note is worth a
//! look.

use super::{
    Scene, nodes,
    report::{Dataplane, Front, Policy, Report, SelfReport, named, own_ports},
};
use crate::{
    ask::{INSTALL, Response},
    facts::Pod,
};
use baton_api::{PolicyState, StateReply};
use baton_cli::{PolicyName, count, full_tables};
use baton_crds::{
    BatonDataplane, Condition, ConditionStatus, ConditionType, LoadBalancerPolicy,
    LoadBalancerPolicySpec,
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// What the scene means.
pub fn judge(scene: &Scene) -> Report {
    let mut report = Report { unseen: scene.unseen.clone(), ..Report::default() };
    if !scene.fleet.installed {
        report.problems.push(format!(
            "Baton is not installed: the cluster does not know its definitions (LoadBalancerPolicy, BatonDataplane): `kubectl \
             apply --server-side -f charts/baton/crds`, then {INSTALL}"
        ));
        return report;
    }
    let nothing =
        scene.operators.is_empty() && scene.shims.is_empty() && scene.fleet.dataplanes.is_empty();
    if nothing && scene.fleet.classes.is_empty() {
        report.problems.push(format!(
            "only Baton's definitions are installed: there is no operator, no dataplane and no host-shim: {INSTALL}"
        ));
    } else {
        operators(scene, &mut report);
        classes(scene, &mut report);
        dataplanes(scene, &mut report);
    }
    policies(scene, &mut report);
    nodes::judge(scene, &mut report);
    for (part, pods) in [("operator", &scene.operators), ("host-shim", &scene.shims)] {
        report.parts.insert(part, ready(pods.iter()));
    }
    let pods = scene.fleet.dataplanes.iter().map(|d| &d.pod);
    report.parts.insert("lb-dataplane", ready(pods));
    report.works = report.problems.is_empty();
    report
}

fn ready<'a>(pods: impl Iterator<Item = &'a Pod>) -> (usize, usize) {
    let there: Vec<&Pod> = pods.filter(|pod| !pod.terminating).collect();
    (there.iter().filter(|pod| pod.ready).count(), there.len())
}

fn not_ready(what: &str, pod: &Pod) -> String {
    let why = pod.why.as_deref().unwrap_or("its Pod does not say why");
    format!(
        "{what} {} is not ready: {why}: `kubectl -n {} describe pod {}`",
        pod.name.name, pod.name.namespace, pod.name.name
    )
}

fn operators(scene: &Scene, report: &mut Report) {
    let there: Vec<&Pod> = scene.operators.iter().filter(|pod| !pod.terminating).collect();
    if there.is_empty() {
        report.problems.push(format!(
            "there is no operator, so changes reach no dataplane (connections go on as they were): {INSTALL}"
        ));
        return;
    }
    // A standby is ready too; one that is ready is enough to go on.
    let good = there.iter().any(|pod| pod.ready);
    for pod in there.iter().filter(|pod| !pod.ready) {
        let text = not_ready("operator", pod);
        if good {
            report.notes.push(text);
        } else {
            report.problems.push(text);
        }
    }
}

fn classes(scene: &Scene, report: &mut Report) {
    if scene.fleet.classes.is_empty() && !scene.fleet.classes_unseen {
        report.problems.push(
            "there is no BatonDataplane, so policies have nowhere to be served: the chart makes one; `kubectl get batondataplanes`"
                .to_owned(),
        );
    }
    for class in &scene.fleet.classes {
        let name = class.metadata.name.as_deref().unwrap_or_default();
        if !scene.fleet.dataplanes.iter().any(|d| d.class.as_deref() == Some(name)) {
            report.problems.push(format!(
                "class {name} has no dataplane: no Pod in namespace {} has the labels {}: start one, or correct spec.selector",
                class.spec.namespace,
                labels(class)
            ));
            continue;
        }
        let Some(status) = &class.status else {
            report.problems.push(format!(
                "class {name}: the operator has said nothing about it yet: look at its log"
            ));
            continue;
        };
        for kind in [ConditionType::Accepted, ConditionType::Programmed] {
            if let Some(bad) =
                condition(&status.conditions, kind).filter(|c| c.status != ConditionStatus::True)
            {
                report.problems.push(format!("class {name}: {}: {}", bad.reason, bad.message));
            }
        }
        if let Some(bad) = degraded(&status.conditions) {
            report.notes.push(format!("class {name}: {}: {}", bad.reason, bad.message));
        }
    }
}

fn labels(class: &BatonDataplane) -> String {
    let labels = class.spec.selector.match_labels.iter();
    labels.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
}

fn condition(conditions: &[Condition], kind: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|condition| condition.type_ == kind.name())
}

fn degraded(conditions: &[Condition]) -> Option<&Condition> {
    condition(conditions, ConditionType::Degraded).filter(|c| c.status == ConditionStatus::True)
}

fn dataplanes(scene: &Scene, report: &mut Report) {
    // Dataplanes of one class have the same worries; each is told once.
    let mut same: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for asked in &scene.answers {
        let (name, pod) = (asked.name(), &asked.dataplane.pod);
        match &asked.result {
            Ok(answer) => {
                for problem in &answer.problems {
                    let problem = problem.replace("`lb-dataplane ", "`kubectl baton ");
                    same.entry(problem).or_default().push(name);
                }
                let full = full_tables(&answer.state).into_iter();
                report.notes.extend(full.map(|full| {
                    format!("dataplane {name}: {full}: more dataplanes, or a higher limit")
                }));
                if !pod.ready && !pod.terminating && answer.problems.is_empty() {
                    report.problems.push(not_ready("dataplane", pod));
                }
            }
            Err(_) if pod.terminating => {}
            Err(_) if !pod.running => report.problems.push(not_ready("dataplane", pod)),
            Err(why) => report.problems.push(format!("dataplane {name} cannot be asked: {why}")),
        }
        report.dataplanes.push(dataplane(asked));
    }
    for (problem, names) in same {
        let noun = if names.len() == 1 { "dataplane" } else { "dataplanes" };
        report.problems.push(format!("{noun} {}: {problem}", named(names)));
    }
    let versions: BTreeSet<&str> = scene
        .answers
        .iter()
        .filter_map(|a| a.result.as_ref().ok())
        .map(|answer| answer.state.version.as_str())
        .collect();
    if versions.len() > 1 {
        let versions = named(versions);
        report.notes.push(format!(
            "dataplanes of several versions run ({versions}): is an upgrade under way?"
        ));
    }
}

fn dataplane(asked: &Response<StateReply>) -> Dataplane {
    let pod = &asked.dataplane.pod;
    let report = asked.result.as_ref().ok().map(|answer| SelfReport {
        version: answer.state.version.clone(),
        uptime_seconds: answer.state.uptime_seconds,
        mode: format!("{} {}", answer.state.worker.mode, answer.state.worker.interface),
        generation: answer.state.generation,
        policies: answer.state.policies.len(),
        flows: answer.state.policies.iter().map(|policy| policy.flows).sum(),
        problems: answer.problems.clone(),
    });
    Dataplane {
        namespace: pod.name.namespace.clone(),
        name: pod.name.name.clone(),
        class: asked.dataplane.class.clone(),
        node: pod.node.clone(),
        state: match &report {
            None if !pod.terminating && pod.ready => "silent",
            Some(report) if !report.problems.is_empty() => "troubled",
            _ => pod.word(),
        },
        restarts: pod.restarts,
        silent: asked.result.as_ref().err().cloned(),
        report,
    }
}

/// One word for a policy, and the sentence behind it.
fn policy_word(policy: &LoadBalancerPolicy) -> (&'static str, Option<&Condition>) {
    let conditions = policy.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let not = |kind| condition(conditions, kind).filter(|c| c.status != ConditionStatus::True);
    if conditions.is_empty() {
        ("unseen", None)
    } else if let Some(bad) = not(ConditionType::Accepted) {
        ("refused", Some(bad))
    } else if let Some(bad) = not(ConditionType::Programmed) {
        ("not served", Some(bad))
    } else if let Some(bad) = degraded(conditions) {
        ("degraded", Some(bad))
    } else if let Some(bad) = not(ConditionType::Adoptable) {
        ("no moves", Some(bad))
    } else {
        ("ok", None)
    }
}

/// What is said of a policy whose flows move to some Pods by translation, as these do not adopt.
fn by_translation(policy: &LoadBalancerPolicy) -> Option<&Condition> {
    let conditions = &policy.status.as_ref()?.conditions;
    condition(conditions, ConditionType::Adoptable).filter(|c| c.reason == "ByTranslation")
}

fn policies(scene: &Scene, report: &mut Report) {
    let states: Vec<(PolicyName, &PolicyState)> = scene
        .answers
        .iter()
        .filter_map(|asked| asked.result.as_ref().ok())
        .flat_map(|answer| &answer.state.policies)
        .map(|state| (PolicyName::parse(&state.name), state))
        .collect();
    let live = scene.answers.iter().any(|asked| asked.result.is_ok());
    for policy in &scene.policies {
        let namespace = policy.metadata.namespace.clone().unwrap_or_default();
        let name = policy.metadata.name.clone().unwrap_or_default();
        let (state, bad) = policy_word(policy);
        let full_name = format!("{namespace}/{name}");
        let message = bad.map(|bad| format!("{}: {}", bad.reason, bad.message));
        match (state, &message) {
            ("ok", _) => {}
            ("unseen", _) => report.problems.push(format!(
                "policy {full_name}: the operator has said nothing about it: is one running, and what does its log say?"
            )),
            ("refused" | "not served", Some(message)) => {
                report.problems.push(format!("policy {full_name} is {state}: {message}"));
            }
            (_, Some(message)) => report.notes.push(format!("policy {full_name}: {message}")),
            (_, None) => {}
        }
        if state == "ok"
            && let Some(translation) = by_translation(policy)
        {
            let (reason, message) = (&translation.reason, &translation.message);
            report.notes.push(format!("policy {full_name}: {reason}: {message}"));
        }
        let status = policy.status.clone().unwrap_or_default();
        if state != "unseen" && status.observed_generation < policy.metadata.generation {
            report.notes.push(format!(
                "policy {full_name}: the operator has not seen its newest version yet"
            ));
        }
        let mine = || states.iter().filter(|(n, _)| n.namespace == namespace && n.policy == name);
        let sum = |of: fn(&PolicyState) -> u64, told: Option<i64>| {
            if live {
                mine().map(|(_, state)| of(state)).sum()
            } else {
                told.and_then(|n| u64::try_from(n).ok()).unwrap_or_default()
            }
        };
        let lost = sum(|state| state.lost_total.values().sum(), status.lost);
        if lost > 0 {
            report.notes.push(format!(
                "policy {full_name}: {} of clients broken since the dataplanes started ({}): `onBackendFailure` and `drain` \
                 of the policy say what happens then",
                count(lost, "connection"),
                reasons(mine().map(|(_, state)| &state.lost_total))
            ));
        }
        report.policies.push(Policy {
            service: policy.spec.service().unwrap_or_default().to_owned(),
            own_ports: own_ports(&policy.spec),
            frontend: Front::of(&policy.spec, status.frontend.as_ref()),
            addresses: status.addresses,
            state,
            message,
            algorithm: written(&policy.spec.algorithm),
            protocol: protocol(&policy.spec),
            backends: status.backends.map_or_else(|| "-".to_owned(), |count| count.summary),
            dataplanes: status.dataplanes.map_or_else(|| "-".to_owned(), |count| count.summary),
            flows: sum(|state| state.flows, status.flows),
            movable: status.movable.map_or_else(|| "-".to_owned(), |movable| movable.percent),
            moves: sum(|state| state.migrations_total, status.migrations),
            rescued: sum(|state| state.rescues_total, status.rescued),
            lost,
            namespace,
            name,
        });
    }
    if scene.policies.is_empty() && report.problems.is_empty() {
        report.notes.push(match &scene.namespace {
            Some(namespace) => format!("there is no LoadBalancerPolicy in namespace {namespace}: `-A` looks at all namespaces"),
            None => "there is no LoadBalancerPolicy: docs/put-a-service-behind-baton.md shows a first one".to_owned(),
        });
    }
}

/// What is said of the protocol. Where listeners differ, or the Service's ports say it, neither is
/// repeated here.
fn protocol(spec: &LoadBalancerPolicySpec) -> String {
    let mut all = spec.listeners.iter().map(|one| spec.of(one).protocol);
    let first = all.next().flatten();
    match first.filter(|first| all.all(|other| other == Some(*first))) {
        Some(one) => written(&one),
        None => "by port".to_owned(),
    }
}

/// As it is written in a manifest.
fn written(value: &impl Serialize) -> String {
    serde_json::to_value(value)
        .ok()
        .and_then(|value| Some(value.as_str()?.to_owned()))
        .unwrap_or_default()
}

/// Why connections were lost.
fn reasons<'a>(counts: impl Iterator<Item = &'a BTreeMap<String, u64>>) -> String {
    let words = baton_cli::reasons(counts);
    if words.is_empty() {
        return "the dataplanes do not say why".to_owned();
    }
    words
}
