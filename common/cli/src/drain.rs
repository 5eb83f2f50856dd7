//! `drain`: has all dataplanes drain a backend, and stays until it is empty if asked to.
//!
//! Only asks and shows: the drain is the dataplanes', and goes on when this ends. Names the policy
//! in each order, because Pods of several namespaces may have one name.

use crate::{
    args::Drain,
    fleet::{Dataplane, Fleet, Refused, Request, Response, ask, heard, states, told},
    names::{PolicyName, expected, unknown_policy},
    progress::{DrainProgress, Progress},
    text::{count, line, wrapped},
};
use anyhow::{Context as _, bail};
use baton_api::{BackendState, DrainReply, DrainRequest, PolicyState, StateReply, is_backend};
use serde::Serialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::Instant;

/// Looks in a row that a dataplane may leave unanswered before that is said.
const SILENT_LOOKS: u32 = 3;

/// What is to be drained.
struct Meant<'a> {
    wanted: &'a Drain,
    /// Only in this namespace; none is all.
    namespace: Option<&'a str>,
    name: &'a str,
}

impl std::fmt::Display for Meant<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(namespace) = self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(self.name)
    }
}

impl Meant<'_> {
    /// Those backends of a dataplane.
    fn of<'a>(
        &'a self,
        reply: &'a StateReply,
    ) -> impl Iterator<Item = (&'a PolicyState, &'a BackendState)> {
        let policy = self.wanted.policy.as_deref();
        reply
            .state
            .policies
            .iter()
            .filter(move |p| PolicyName::parse(&p.name).is(policy, self.namespace))
            .flat_map(move |policy| {
                let mine = policy.backends.iter();
                let mine = mine.filter(move |b| is_backend(&b.name, self.name));
                mine.map(move |backend| (policy, backend))
            })
    }
}

/// How it ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// The backend; a Pod as `NAMESPACE/POD`.
    pub backend: String,
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

/// Backends that dataplanes were told to drain: whose, of which policy, by which name.
type Told = BTreeSet<(String, String, String)>;

/// Gives the order to dataplanes, each for the policies in which it has the backend and that it was
/// not told of. One who does not answer `while_waiting` is told later.
///
/// # Errors
/// One dataplane was asked, and is in no state to take it.
async fn order<F: Fleet>(
    fleet: &F,
    asked: &[Response<F::Dataplane, StateReply>],
    meant: &Meant<'_>,
    told: &mut Told,
    while_waiting: bool,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    for one in asked {
        let names = untold(one, meant, told);
        let uid = one.dataplane.uid();
        let mut taken = !names.is_empty() && !told.iter().any(|(known, ..)| known == uid);
        let words = one.dataplane.words();
        for (policy, backend) in names {
            let order = DrainRequest {
                backend: backend.to_owned(),
                policy: Some(policy.to_owned()),
                undo: meant.wanted.undo,
            };
            let request = Request::post("/v1/drain", &json!(order));
            let answer = ask::<F, DrainReply>(fleet, &one.dataplane, &request).await;
            if while_waiting && matches!(answer, Err(Refused::Unanswered(_))) {
                taken = false;
                continue;
            }
            told.insert((uid.to_owned(), policy.to_owned(), backend.to_owned()));
            match answer {
                Ok(reply) if order.undo && reply.by_snapshot > 0 => {
                    outcome.problems.push(format!(
                        "{meant} goes on draining on {words}: its Pod ends or is not ready, or the \
                         configuration says `draining: true`, which no command takes back"
                    ));
                }
                Ok(_) => {}
                Err(Refused::Finally(why)) => {
                    taken = false;
                    outcome.problems.push(format!("{words} refuses: {why}"));
                }
                Err(Refused::Unanswered(why)) if asked.len() == 1 => {
                    bail!("{words} did not take the order: {why}");
                }
                Err(Refused::Unanswered(why)) => {
                    taken = false;
                    let problem = format!("{words} did not take the order: {why}");
                    outcome.problems.push(problem);
                }
            }
        }
        outcome.dataplanes += usize::from(taken);
    }
    Ok(())
}

/// What a dataplane has of the backend that it was not told of.
fn untold<'a, D: Dataplane>(
    one: &'a Response<D, StateReply>,
    meant: &'a Meant<'_>,
    told: &Told,
) -> BTreeSet<(&'a str, &'a str)> {
    let all = one.result.iter().flat_map(|reply| meant.of(reply));
    let names = all.map(|(policy, backend)| (&*policy.name, &*backend.name));
    names.filter(|(policy, backend)| !is_told(told, &one.dataplane, policy, backend)).collect()
}

fn is_told(told: &Told, dataplane: &impl Dataplane, policy: &str, backend: &str) -> bool {
    let known = (dataplane.uid().to_owned(), policy.to_owned(), backend.to_owned());
    told.contains(&known)
}

/// The backend is nowhere: names what there is instead.
fn unknown<F: Fleet>(asked: &[Response<F::Dataplane, StateReply>], meant: &Meant<'_>) -> String {
    let mut known = Vec::new();
    let mut elsewhere = BTreeSet::new();
    let (wanted, replies) = (meant.wanted.policy.as_deref(), told(asked));
    let policies = || replies.iter().flat_map(|(_, reply)| &reply.state.policies);
    let is = |name: &PolicyName| name.is(wanted, meant.namespace);
    if let Some(policy) = wanted
        && !policies().any(|policy| is(&PolicyName::parse(&policy.name)))
    {
        return unknown_policy(&replies, policy, meant.namespace);
    }
    for policy in policies() {
        let name = PolicyName::parse(&policy.name);
        for backend in &policy.backends {
            if is(&name) {
                known.push(backend.name.as_str());
            } else if backend.name == meant.name {
                elsewhere.insert(name.namespace.clone());
            }
        }
    }
    let noun = noun::<F>();
    let place =
        meant.namespace.map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
    if let Some(namespace) = elsewhere.first() {
        return format!(
            "no policy{place} has a {noun} {}; there is one in namespace {namespace}: \
             `-n {namespace}`",
            meant.name
        );
    }
    if known.is_empty() {
        let hint = if F::PODS { ": is this the right namespace (`-n`)?" } else { "" };
        return format!("no policy{place} has any {noun}{hint}");
    }
    format!("no policy{place} has a {noun} {}: {}", meant.name, expected(known))
}

/// What users know backends as.
pub fn noun<F: Fleet>() -> &'static str {
    if F::PODS { "Pod" } else { "backend" }
}

/// Drains, or takes that back; waits if asked to. What is not done is in the outcome's problems.
///
/// # Errors
/// No dataplane can be asked, or it is not clear whose Pod is meant.
pub async fn run<F: Fleet>(
    fleet: &F,
    wanted: &Drain,
    namespace: Option<&str>,
    progress: &mut Progress,
) -> anyhow::Result<Outcome> {
    let (namespace, name) = match (namespace, wanted.backend.split_once('/')) {
        (_, Some((namespace, name))) if F::PODS => (Some(namespace), name),
        (None, None) if F::PODS => {
            bail!("a Pod is in one namespace: `-n NAMESPACE` instead of `-A`, or NAMESPACE/POD")
        }
        _ => (namespace, wanted.backend.as_str()),
    };
    let meant = Meant { wanted, namespace, name };
    let (dataplanes, _) = fleet.dataplanes().await.context("nothing was drained")?;
    let asked = heard(states(fleet, &dataplanes).await).context("nothing was drained")?;
    let mut outcome =
        Outcome { backend: meant.to_string(), undone: wanted.undo, ..Outcome::default() };
    let mut replies = asked.iter().flat_map(|one| &one.result);
    if !replies.any(|reply| meant.of(reply).next().is_some()) {
        outcome.problems.push(unknown::<F>(&asked, &meant));
        return Ok(outcome);
    }
    let mut told = Told::new();
    order(fleet, &asked, &meant, &mut told, false, &mut outcome).await?;
    // One that ends takes no new flow, and its own leave with it.
    for one in asked.iter().filter(|one| !one.dataplane.terminating()) {
        let words = one.dataplane.words();
        match &one.result {
            Err(why) => outcome
                .problems
                .push(format!("{words} was not told, and its flows to {name} stay: {why}")),
            Ok(StateReply { state, .. })
                if state.policies.is_empty()
                    && state.generation == 0
                    && !wanted.wait
                    && !wanted.undo =>
            {
                outcome.problems.push(format!(
                    "{words} has no policies yet, so it was not told, and {name} gets connections of it once it has: do this \
                     again then, or with `--wait`, which tells it"
                ));
            }
            Ok(_) => {}
        }
    }
    if wanted.wait && outcome.dataplanes > 0 {
        let known = asked.iter().map(|one| one.dataplane.uid().to_owned());
        let known = (known.collect(), told);
        wait(fleet, &meant, known, &mut outcome, progress).await?;
    }
    Ok(outcome)
}

async fn wait<F: Fleet>(
    fleet: &F,
    meant: &Meant<'_>,
    (mut known, mut told): (BTreeSet<String>, Told),
    outcome: &mut Outcome,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut silent: BTreeMap<String, u32> = BTreeMap::new();
    loop {
        let (dataplanes, _) = fleet.dataplanes().await?;
        let mut asked = states(fleet, &dataplanes).await;
        // One that begins cannot be asked yet.
        asked.retain(|one| one.result.is_ok() || known.contains(one.dataplane.uid()));
        let mut all = DrainProgress::default();
        let (mut unheard, mut listed, mut young) = (false, false, false);
        for one in &asked {
            match &one.result {
                Ok(reply) => {
                    silent.remove(one.name());
                    known.insert(one.dataplane.uid().to_owned());
                    // One that started meanwhile knows of no drain by command, and has the backend
                    // once it has its snapshot.
                    if !untold(one, meant, &told).is_empty() {
                        young = true;
                        let words = one.dataplane.words();
                        progress.say(&format!("{words} is new, and is told too"));
                    }
                    let is_told = |(policy, backend): &(&PolicyState, &BackendState)| {
                        is_told(&told, &one.dataplane, &policy.name, &backend.name)
                    };
                    let of_it = DrainProgress::of_all(meant.of(reply).filter(is_told));
                    listed |= !matches!(of_it, Ok(None));
                    match of_it {
                        Ok(one) => one.iter().for_each(|one| all.add(one)),
                        Err(idle) => outcome.problems.push(format!(
                            "{meant} does not drain any more on {} ({}): somebody took it back, or \
                             the dataplane was restarted",
                            one.dataplane.words(),
                            idle.join(", ")
                        )),
                    }
                }
                Err(_) if one.dataplane.terminating() && !one.dataplane.running() => {}
                Err(why) => {
                    unheard = true;
                    let looks = silent.entry(one.name().to_owned()).or_default();
                    *looks += 1;
                    if *looks == SILENT_LOOKS {
                        let words = one.dataplane.words();
                        progress.say(&format!("{words} does not answer: {why}"));
                    }
                }
            }
        }
        order(fleet, &asked, meant, &mut told, true, outcome).await?;
        listed |= young;
        let lost = |one: &Response<_, _>| silent.get(one.name()) >= Some(&SILENT_LOOKS);
        if !asked.is_empty() && asked.iter().all(lost) {
            heard(asked)?;
        }
        if !listed && !unheard {
            let flows = format!("flows --backend {}", meant.name);
            outcome.problems.push(format!(
                "{meant} has left the policies, as a Pod that is deleted does: `{}` shows what it \
                 still owns",
                fleet.command(meant.namespace, &flows)
            ));
        }
        let seconds = started.elapsed().as_secs_f64();
        let empty = all.flows == 0 && listed && !unheard && !young;
        let over = started.elapsed() >= meant.wanted.timeout;
        progress.say(&format!("{meant}: {}", all.line()));
        outcome.progress = Some(all);
        outcome.seconds = Some(seconds);
        outcome.empty = Some(empty);
        if empty || over || !outcome.problems.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(F::LOOK).await;
    }
}

/// The outcome for people: what was done, and what to do next.
pub fn render<F: Fleet>(fleet: &F, outcome: &Outcome) -> String {
    let pod = &outcome.backend;
    let (namespace, name) = match pod.split_once('/') {
        Some((namespace, name)) if F::PODS => (Some(namespace), name),
        _ => (None, pod.as_str()),
    };
    let on = count(outcome.dataplanes as u64, "dataplane");
    let next = |words: &str| format!("  {}", fleet.command(namespace, words));
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
                &format!("{pod} is not empty after {seconds:.1}s: {}.", progress.line()),
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
            line(&mut text, "A dataplane that restarts drains it no longer.");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::tests::reply;
    use serde_json::Value;
    use std::time::Duration;

    /// Two policies with a backend `a` each.
    fn state(drain: &Value) -> StateReply {
        let mut reply = reply([json!({"drain": drain})]);
        let mut api = reply.state.policies[0].clone();
        api.name = "api".to_owned();
        api.backends[0].endpoint = "10.0.0.2:80".parse().expect("an endpoint");
        reply.state.policies.push(api);
        reply
    }

    fn drain() -> Value {
        json!({"byCommand": true, "since": "1s", "left": "17000001us", "moved": 5, "ended": 1,
            "closed": 0, "waiting": {"request in progress": 6, "pinned: upgrade": 2, "quiet time": 0}})
    }

    /// How far the backend `a` is, in one policy or in all.
    fn progress(reply: &StateReply, policy: Option<&str>) -> Result<Option<DrainProgress>, String> {
        let wanted = Drain {
            backend: "a".to_owned(),
            policy: policy.map(str::to_owned),
            undo: false,
            wait: true,
            timeout: Duration::ZERO,
        };
        let meant = Meant { wanted: &wanted, namespace: None, name: "a" };
        DrainProgress::of_all(meant.of(reply)).map_err(|idle| idle.join(" "))
    }

    #[test]
    fn all_backends_of_a_name_count_unless_one_policy_is_meant() {
        let reply = state(&drain());
        let one = progress(&reply, Some("web")).expect("it drains").expect("there");
        assert_eq!(
            one.line(),
            "8 flows left (2 pinned: upgrade, 6 request in progress); 5 moved, 1 ended, 0 closed; deadline in 18s"
        );
        assert_eq!(json!(one)["waiting"]["pinned: upgrade"], 2);
        let backend = &reply.state.policies[0].backends[0];
        assert_eq!(DrainProgress::of(backend), Some(one));
        let both = progress(&reply, None).expect("they drain").expect("there");
        assert_eq!((both.flows, both.moved, both.deadline_seconds), (16, 10, Some(18)));
        assert_eq!(both.waiting.get("pinned: upgrade"), Some(&4));
        // The same backend in both policies.
        let mut shared = reply;
        shared.state.policies[1].backends[0].endpoint =
            shared.state.policies[0].backends[0].endpoint;
        let once = progress(&shared, None).expect("it drains").expect("there");
        assert_eq!(once.flows, 8);
    }

    #[test]
    fn what_does_not_drain_and_what_is_not_there_are_told_apart() {
        let idle = progress(&state(&Value::Null), None);
        assert_eq!(idle, Err("web api".to_owned()));
        assert_eq!(progress(&state(&drain()), Some("other")), Ok(None));
    }
}
