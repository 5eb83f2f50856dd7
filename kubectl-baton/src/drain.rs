//! `drain`: has all dataplanes drain a Pod, and stays until it is empty if asked to.
//!
//! Only asks and shows: the drain is the dataplanes', and goes on when this ends. Names the policy in each order, because
//! Pods of several namespaces may have one name.

use crate::{
    args::Drain,
    ask::{self, PolicyName, Refused, Response},
    cluster::{Cluster, PodName},
    failure::Failure,
    show::Progress,
};
use anyhow::Context as _;
use baton_api::PolicyState;
use baton_text::{DrainProgress, count, line, wrapped};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tokio::time::Instant;

/// Between two looks, each of which runs a program in every dataplane's Pod.
const LOOK: Duration = Duration::from_secs(1);
/// Looks in a row that a dataplane may leave unanswered before that is said.
const SILENT_LOOKS: u32 = 3;
/// Names that an error tells.
const NAMES_MAX: usize = 12;

/// The backends of the Pod in the policies that are meant.
fn meant<'a>(
    policies: &'a [PolicyState],
    pod: &'a PodName,
    wanted: Option<&'a str>,
) -> impl Iterator<Item = (&'a PolicyState, &'a baton_api::BackendState)> {
    policies
        .iter()
        .filter(move |p| PolicyName::parse(&p.name).is(wanted, Some(&pod.namespace)))
        .flat_map(move |policy| {
            // A Pod with several addresses is `POD` and `POD/ADDRESS`.
            let is = |name: &str| {
                name == pod.name
                    || name
                        .strip_prefix(&pod.name)
                        .is_some_and(|r| r.starts_with('/'))
            };
            policy
                .backends
                .iter()
                .filter(move |backend| is(&backend.name))
                .map(move |backend| (policy, backend))
        })
}

/// How it ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// The Pod, as `NAMESPACE/POD`.
    pub pod: String,
    /// Dataplanes that took the order.
    pub dataplanes: usize,
    /// It drains no longer.
    pub undone: bool,
    /// With a wait: whether it is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub empty: Option<bool>,
    /// With a wait: how long it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// With a wait: what was seen last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<DrainProgress>,
    /// What went wrong.
    pub problems: Vec<String>,
}

impl Outcome {
    /// Done as asked.
    pub fn is_good(&self) -> bool {
        self.problems.is_empty() && self.empty != Some(false)
    }
}

/// Gives the order to dataplanes, each for the policies in which it has the Pod. Returns the problems.
async fn order(
    cluster: &impl Cluster,
    asked: &[Response<Vec<PolicyState>>],
    pod: &PodName,
    wanted: &Drain,
    outcome: &mut Outcome,
) {
    for one in asked {
        let Ok(policies) = &one.result else { continue };
        let mut names: BTreeSet<(&str, &str)> = BTreeSet::new();
        for (policy, backend) in meant(policies, pod, wanted.policy.as_deref()) {
            names.insert((&policy.name, &backend.name));
        }
        let mut taken = !names.is_empty();
        for name in names {
            match ask::drain(cluster, &one.dataplane, name, wanted.undo).await {
                Ok(ordered) if wanted.undo && ordered.by_snapshot > 0 => outcome.problems.push(format!(
                    "{pod} goes on draining on dataplane {}: its Pod ends, or is not ready, which no command takes back",
                    one.name()
                )),
                Ok(_) => {}
                Err(Refused::Finally(why)) => {
                    taken = false;
                    outcome.problems.push(format!("dataplane {} refuses: {why}", one.name()));
                }
                Err(Refused::Unanswered(why)) => {
                    taken = false;
                    outcome.problems.push(format!("dataplane {} did not take the order: {why}", one.name()));
                }
            }
        }
        outcome.dataplanes += usize::from(taken);
    }
}

/// The Pod is nowhere: names what there is instead.
fn unknown(asked: &[Response<Vec<PolicyState>>], pod: &PodName) -> String {
    let mut known = BTreeSet::new();
    let mut elsewhere = BTreeSet::new();
    for policy in asked.iter().flat_map(|one| one.result.iter().flatten()) {
        let name = PolicyName::parse(&policy.name);
        for backend in &policy.backends {
            if name.is_in(Some(&pod.namespace)) {
                known.insert(backend.name.as_str());
            } else if backend.name == pod.name {
                elsewhere.insert(name.namespace.clone());
            }
        }
    }
    if let Some(namespace) = elsewhere.first() {
        return format!(
            "no policy in namespace {} has a Pod {}; there is one in namespace {namespace}: `-n {namespace}`",
            pod.namespace, pod.name
        );
    }
    if known.is_empty() {
        return format!(
            "no policy in namespace {} has any Pod: is this the right namespace (`-n`)?",
            pod.namespace
        );
    }
    let mut names: Vec<&str> = known.iter().take(NAMES_MAX).copied().collect();
    let more = format!("and {} more", known.len().saturating_sub(NAMES_MAX));
    if known.len() > NAMES_MAX {
        names.push(&more);
    }
    format!(
        "no policy in namespace {} has a Pod {}: expected one of {}",
        pod.namespace,
        pod.name,
        names.join(", ")
    )
}

/// Drains, or takes that back; waits if asked to.
///
/// # Errors
/// The cluster cannot be asked, or no dataplane answers.
pub async fn run(
    cluster: &impl Cluster,
    wanted: &Drain,
    pod: &PodName,
    progress: &mut Progress,
) -> anyhow::Result<Outcome> {
    let fleet = ask::fleet(cluster).await?;
    let asked = ask::heard(ask::policies(cluster, &fleet.dataplanes).await);
    let asked = asked.context("nothing was drained")?;
    let mut outcome = Outcome {
        pod: pod.to_string(),
        undone: wanted.undo,
        ..Outcome::default()
    };
    let here = |one: &Response<Vec<PolicyState>>| {
        one.result.iter().any(|policies| {
            meant(policies, pod, wanted.policy.as_deref())
                .next()
                .is_some()
        })
    };
    if !asked.iter().any(here) {
        outcome.problems.push(unknown(&asked, pod));
        return Ok(outcome);
    }
    order(cluster, &asked, pod, wanted, &mut outcome).await;
    for one in &asked {
        // One that ends takes no new flow, and its own leave with it.
        if let Err(why) = &one.result
            && !one.dataplane.pod.terminating
        {
            outcome.problems.push(format!(
                "dataplane {} was not told, and its flows to {} stay: {why}",
                one.name(),
                pod.name
            ));
        }
    }
    if wanted.wait && outcome.dataplanes > 0 {
        let known = asked
            .iter()
            .map(|one| one.dataplane.pod.uid.clone())
            .collect();
        wait(cluster, wanted, pod, known, &mut outcome, progress).await?;
    }
    Ok(outcome)
}

async fn wait(
    cluster: &impl Cluster,
    wanted: &Drain,
    pod: &PodName,
    mut known: BTreeSet<String>,
    outcome: &mut Outcome,
    progress: &mut Progress,
) -> Result<(), Failure> {
    let started = Instant::now();
    let mut silent: BTreeMap<String, u32> = BTreeMap::new();
    loop {
        let fleet = ask::fleet(cluster).await?;
        let asked = ask::policies(cluster, &fleet.dataplanes).await;
        // One that started meanwhile knows of no drain by command.
        let (new, old): (Vec<_>, Vec<_>) = asked
            .into_iter()
            .partition(|one| !known.contains(&one.dataplane.pod.uid));
        let new: Vec<_> = new.into_iter().filter(|one| one.result.is_ok()).collect();
        let young = !new.is_empty();
        for one in &new {
            progress.say(&format!("dataplane {} is new, and is told too", one.name()));
            known.insert(one.dataplane.pod.uid.clone());
        }
        order(cluster, &new, pod, wanted, outcome).await;
        let mut all = DrainProgress::default();
        let (mut unheard, mut listed) = (false, young);
        for one in &old {
            match &one.result {
                Ok(policies) => {
                    silent.remove(one.name());
                    let told =
                        DrainProgress::of_all(meant(policies, pod, wanted.policy.as_deref()));
                    listed |= !matches!(told, Ok(None));
                    match told {
                        Ok(one) => one.iter().for_each(|one| all.add(one)),
                        Err(idle) => outcome.problems.push(format!(
                            "{pod} does not drain any more on dataplane {} ({}): somebody took it back, or the dataplane was restarted",
                            one.name(),
                            idle.join(", ")
                        )),
                    }
                }
                Err(_) if one.dataplane.pod.terminating && !one.dataplane.pod.running => {}
                Err(why) => {
                    unheard = true;
                    let looks = silent.entry(one.name().to_owned()).or_default();
                    *looks += 1;
                    if *looks == SILENT_LOOKS {
                        progress.say(&format!("dataplane {} does not answer: {why}", one.name()));
                    }
                }
            }
        }
        if !listed && !unheard {
            outcome.problems.push(format!(
                "{pod} has left the policies, as a Pod that is deleted does: `kubectl baton -n {} flows --backend {}` shows what it still owns",
                pod.namespace, pod.name
            ));
        }
        let seconds = started.elapsed().as_secs_f64();
        let empty = all.flows == 0 && listed && !unheard && !young;
        let over = started.elapsed() >= wanted.timeout;
        progress.say(&format!("{pod}: {}", all.line()));
        outcome.progress = Some(all);
        outcome.seconds = Some(seconds);
        outcome.empty = Some(empty);
        if empty || over || !outcome.problems.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The outcome for people: what was done, and what to do next.
pub fn render(outcome: &Outcome) -> String {
    let pod = &outcome.pod;
    let (namespace, name) = pod.split_once('/').unwrap_or(("", pod));
    let on = count(outcome.dataplanes as u64, "dataplane");
    let next = |command: &str| format!("  kubectl baton -n {namespace} {command}");
    let seconds = outcome.seconds.unwrap_or_default();
    let mut text = String::new();
    match (outcome.empty, &outcome.progress) {
        (Some(true), Some(progress)) => {
            wrapped(
                &mut text,
                "",
                &format!(
                    "{pod} is empty after {seconds:.1}s and can be stopped: {}.",
                    progress.gone()
                ),
            );
        }
        (Some(false), Some(progress)) => {
            wrapped(
                &mut text,
                "",
                &format!(
                    "{pod} is not empty after {seconds:.1}s: {}.",
                    progress.line()
                ),
            );
            wrapped(&mut text, "", "The drain goes on. What is left, and why:");
            line(&mut text, &next(&format!("flows --backend {name}")));
        }
        _ if outcome.dataplanes == 0 => {}
        _ if outcome.undone => line(&mut text, &format!("{pod} is back in service on {on}.")),
        _ => {
            let what = format!(
                "{pod} drains on {on}: no new connections, and those it has leave when they can."
            );
            wrapped(&mut text, "", &what);
            line(&mut text, "How far it is, and back into service:");
            line(&mut text, &next(&format!("drain {name} --wait")));
            line(&mut text, &next(&format!("drain {name} --undo")));
        }
    }
    text
}
