//! Finds Baton's Pods and asks each dataplane, by running its own program inside of it.
//!
//! Owns which Pods are meant, what is run and how its answer is read. Judges nothing.

use crate::{
    cluster::{Cluster, ExecOptions, ExecOutput, Kind, PodName},
    facts::{Pod, typed},
    failure::Failure,
};
use anyhow::bail;
use baton_api::{DrainReply, FlowEvents, FlowView, MigrateReply, PolicyState, StateReply};
use baton_crds::BatonDataplane;
use futures_util::stream::{self, StreamExt as _};
use k8s_openapi::api::core::v1::Pod as CorePod;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{collections::BTreeSet, io::Write};

/// Dataplanes that are asked at one time: each is a connection through the API server.
const ASKED_AT_ONCE: usize = 8;
/// The program in a dataplane's container, and the container's name in the chart.
const PROGRAM: &str = "lb-dataplane";
/// The label of all that the chart makes.
pub const CHART: &str = "app.kubernetes.io/name=baton";

/// The label of one part of the chart.
pub fn part(component: &str) -> String {
    format!("{CHART},app.kubernetes.io/component={component}")
}

/// A dataplane's Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dataplane {
    /// Its class; none if it was found by the chart's labels only.
    pub class: Option<String>,
    /// The Pod.
    pub pod: Pod,
}

/// What was found in the cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fleet {
    /// The definitions are there.
    pub installed: bool,
    /// All classes.
    pub classes: Vec<BatonDataplane>,
    /// Their dataplanes, by name.
    pub dataplanes: Vec<Dataplane>,
    /// What could not be read.
    pub unread: Vec<String>,
}

/// What one dataplane said, or why it said nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Response<T> {
    /// Which.
    pub dataplane: Dataplane,
    /// What.
    pub result: Result<T, String>,
}

impl<T> Response<T> {
    /// The Pod's name.
    pub fn name(&self) -> &str {
        &self.dataplane.pod.name.name
    }
}

/// The Pods with these labels.
pub async fn pods(
    cluster: &impl Cluster,
    namespace: Option<&str>,
    labels: &str,
    unread: &mut Vec<String>,
) -> Result<Vec<Pod>, Failure> {
    let listed = cluster.list(Kind::Pods, namespace, Some(labels)).await?;
    let pods: Vec<CorePod> = typed(&listed.items, unread);
    Ok(pods.into_iter().map(Pod::from).collect())
}

/// Objects that are of use but not needed: a missing right is noted, and so is what cannot be read.
///
/// # Errors
/// The cluster cannot be asked.
pub async fn optional<T: DeserializeOwned>(
    cluster: &impl Cluster,
    kind: Kind,
    namespace: Option<&str>,
    unseen: &mut Vec<String>,
) -> Result<Vec<T>, Failure> {
    match cluster.list(kind, namespace, None).await {
        Ok(listed) => Ok(typed(&listed.items, unseen)),
        Err(failure @ Failure::Forbidden(_)) => {
            unseen.push(failure.to_string());
            Ok(Vec::new())
        }
        Err(failure) => Err(failure),
    }
}

/// All classes and their dataplanes. Where classes may not be read or there are none, the chart's labels are looked for.
pub async fn fleet(cluster: &impl Cluster) -> Result<Fleet, Failure> {
    let mut fleet = Fleet {
        installed: true,
        ..Fleet::default()
    };
    match cluster.list(Kind::Classes, None, None).await {
        Ok(listed) => fleet.classes = typed(&listed.items, &mut fleet.unread),
        Err(Failure::Missing(_)) => {
            fleet.installed = false;
            return Ok(fleet);
        }
        Err(failure @ Failure::Forbidden(_)) => fleet.unread.push(failure.to_string()),
        Err(failure) => return Err(failure),
    }
    let mut found = BTreeSet::new();
    for class in &fleet.classes {
        let selector = &class.spec.selector.match_labels;
        let labels: Vec<String> = selector.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let name = class.metadata.name.clone();
        let pods = pods(
            cluster,
            Some(&class.spec.namespace),
            &labels.join(","),
            &mut fleet.unread,
        )
        .await?;
        for pod in pods {
            if found.insert(pod.name.clone()) {
                fleet.dataplanes.push(Dataplane {
                    class: name.clone(),
                    pod,
                });
            }
        }
    }
    if fleet.classes.is_empty() {
        let pods = pods(cluster, None, &part(PROGRAM), &mut fleet.unread).await?;
        fleet
            .dataplanes
            .extend(pods.into_iter().map(|pod| Dataplane { class: None, pod }));
    }
    fleet.dataplanes.sort_by(|a, b| a.pod.name.cmp(&b.pod.name));
    Ok(fleet)
}

/// Runs `words` in one dataplane and reads its answer; these exit codes say that it is one.
///
/// # Errors
/// Why there is none.
async fn ask<T: DeserializeOwned>(
    cluster: &impl Cluster,
    dataplane: &Dataplane,
    words: &[String],
    good: &[i32],
) -> Result<T, Refused> {
    let pod = runs(dataplane).map_err(Refused::Unanswered)?;
    let mut command = vec![PROGRAM.to_owned()];
    command.extend_from_slice(words);
    command.extend(["-o", "json", "--control"].map(str::to_owned));
    command.push(cluster.control().to_string());
    let ran = cluster.exec(&pod.name, pod.container(PROGRAM), &command);
    let ran = ran.await.map_err(|why| Refused::Unanswered(gone(why)))?;
    if ran.code == 1 && !good.contains(&1) {
        return Err(Refused::Finally(complaint(&ran)));
    }
    read(&ran, good).map_err(Refused::Unanswered)
}

/// The words, and those options that have a value.
pub fn words<const N: usize>(words: &[&str], options: [(&str, Option<String>); N]) -> Vec<String> {
    let mut words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    for (name, value) in options {
        if let Some(value) = value {
            words.extend([name.to_owned(), value]);
        }
    }
    words
}

/// Its Pod, if that can be asked.
fn runs(dataplane: &Dataplane) -> Result<&Pod, String> {
    let pod = &dataplane.pod;
    if pod.running {
        return Ok(pod);
    }
    let why = pod.why.as_deref().unwrap_or("it does not say why");
    Err(format!("its container does not run: {why}"))
}

fn gone(failure: Failure) -> String {
    match failure {
        Failure::Missing(_) => "its Pod is gone".to_owned(),
        other => other.to_string(),
    }
}

/// What it says of itself when it fails, without its name.
fn complaint(ran: &ExecOutput) -> String {
    let text = ran.stderr.trim();
    let text = text.strip_prefix("lb-dataplane: ").unwrap_or(text);
    if text.is_empty() {
        return format!("`{PROGRAM}` ended with {} and said nothing", ran.code);
    }
    text.to_owned()
}

/// Reads an answer. `status` answers with 1 if the dataplane does not work.
fn read<T: DeserializeOwned>(ran: &ExecOutput, good: &[i32]) -> Result<T, String> {
    if !good.contains(&ran.code) {
        return Err(complaint(ran));
    }
    serde_json::from_slice(&ran.stdout).map_err(|error| {
        format!("its answer is none of this version's ({error}): is it of another version?")
    })
}

/// Has all dataplanes answer, each its own words.
async fn all<T: DeserializeOwned>(
    cluster: &impl Cluster,
    dataplanes: &[Dataplane],
    words: impl Fn(&Pod) -> Vec<String>,
    good: &[i32],
) -> Vec<Response<T>> {
    let words = &words;
    let asked = stream::iter(dataplanes.iter().cloned()).map(|dataplane| async move {
        let result = ask(cluster, &dataplane, &words(&dataplane.pod), good).await;
        let result = result.map_err(|(Refused::Finally(why) | Refused::Unanswered(why))| why);
        Response { dataplane, result }
    });
    asked.buffered(ASKED_AT_ONCE).collect().await
}

/// The states of dataplanes. One that does not work answers with 1.
pub async fn states(cluster: &impl Cluster, dataplanes: &[Dataplane]) -> Vec<Response<StateReply>> {
    all(cluster, dataplanes, |_| words(&["status"], []), &[0, 1]).await
}

/// The policies of dataplanes with their backends.
pub async fn policies(
    cluster: &impl Cluster,
    dataplanes: &[Dataplane],
) -> Vec<Response<Vec<PolicyState>>> {
    all(cluster, dataplanes, |_| words(&["backends"], []), &[0]).await
}

/// Flows of one dataplane.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Views {
    /// The flows.
    pub flows: Vec<FlowView>,
    /// There are more.
    pub truncated: bool,
}

/// The flows of dataplanes, at most `limit` of each.
pub async fn flows(
    cluster: &impl Cluster,
    dataplanes: &[Dataplane],
    backend: Option<&str>,
    limit: u32,
) -> Vec<Response<Views>> {
    let backend = backend.map(str::to_owned);
    let limit = Some(limit.to_string());
    let words = words(&["flows"], [("--limit", limit), ("--backend", backend)]);
    all(cluster, dataplanes, |_| words.clone(), &[0]).await
}

/// Events of flows, from each dataplane behind the number that `since` has for its Pod.
pub async fn events(
    cluster: &impl Cluster,
    dataplanes: &[Dataplane],
    client: Option<&str>,
    since: impl Fn(&Pod) -> Option<u64>,
) -> Vec<Response<FlowEvents>> {
    let words = |pod: &Pod| {
        let since = since(pod).map(|number| number.to_string());
        let client = client.map(str::to_owned);
        words(
            &["trace", "--once"],
            [("--since", since), ("--client", client)],
        )
    };
    all(cluster, dataplanes, words, &[0]).await
}

/// Has one dataplane move a flow.
pub async fn migrate(
    cluster: &impl Cluster,
    dataplane: &Dataplane,
    flow: &FlowView,
    to: Option<&str>,
) -> Result<MigrateReply, Refused> {
    let frontend = Some(flow.frontend.to_string());
    let options = [("--frontend", frontend), ("--to", to.map(str::to_owned))];
    let words = words(&["migrate", &flow.client.to_string()], options);
    ask(cluster, dataplane, &words, &[0]).await
}

/// Why an order was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It cannot be: what it names is not there, or something is in the way.
    Finally(String),
    /// It was not asked, or could not say.
    Unanswered(String),
}

/// Has one dataplane drain a backend of one policy, or takes that back.
pub async fn drain(
    cluster: &impl Cluster,
    dataplane: &Dataplane,
    (policy, backend): (&str, &str),
    undo: bool,
) -> Result<DrainReply, Refused> {
    let mut words = words(&["drain", backend, "--policy", policy], []);
    words.extend(undo.then(|| "--undo".to_owned()));
    ask(cluster, dataplane, &words, &[0]).await
}

/// Has one dataplane copy packets, and writes them to `out`; its last words, or why there are none.
pub async fn capture(
    cluster: &impl Cluster,
    dataplane: &Dataplane,
    words: &[String],
    options: ExecOptions,
    out: &mut dyn Write,
) -> Result<String, String> {
    let pod = runs(dataplane)?;
    let mut command = vec![PROGRAM.to_owned()];
    command.extend_from_slice(words);
    command.extend(["--control".to_owned(), cluster.control().to_string()]);
    let ran = cluster
        .exec_into(&pod.name, pod.container(PROGRAM), &command, options, out)
        .await
        .map_err(gone)?;
    match ran.code {
        0 => Ok(ran.stderr.trim().to_owned()),
        _ => Err(complaint(&ran)),
    }
}

/// What dataplanes said.
///
/// # Errors
/// None said anything.
pub fn heard<T>(asked: Vec<Response<T>>) -> anyhow::Result<Vec<Response<T>>> {
    let mut silent = asked
        .iter()
        .filter_map(|a| a.result.as_ref().err().map(|why| (a.name(), why)));
    let Some((name, why)) = silent.next() else {
        if asked.is_empty() {
            bail!("there is no dataplane: `kubectl baton status` says why");
        }
        return Ok(asked);
    };
    match silent.count() {
        more if more + 1 < asked.len() => Ok(asked),
        0 => bail!("dataplane {name} does not answer: {why}"),
        more => bail!("no dataplane answers: {name}: {why} (and {more} more)"),
    }
}

/// Those that said nothing, in words.
pub fn silent<T>(asked: &[Response<T>]) -> Vec<String> {
    let silent = asked
        .iter()
        .filter_map(|a| a.result.as_ref().err().map(|why| (a.name(), why)));
    silent
        .map(|(name, why)| format!("dataplane {name} is left out: {why}"))
        .collect()
}

/// A policy's name on dataplanes: `NAMESPACE/POLICY/LISTENER`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyName {
    /// Empty if the dataplane has its policies from a file.
    pub namespace: String,
    /// The policy.
    pub policy: String,
    /// Empty as the namespace is.
    pub listener: String,
}

impl PolicyName {
    /// Reads the name that a dataplane tells.
    pub fn parse(name: &str) -> Self {
        let mut parts = name.splitn(3, '/').map(str::to_owned);
        match (parts.next(), parts.next(), parts.next()) {
            (Some(namespace), Some(policy), Some(listener)) => Self {
                namespace,
                policy,
                listener,
            },
            _ => Self {
                namespace: String::new(),
                policy: name.to_owned(),
                listener: String::new(),
            },
        }
    }

    /// Without the namespace.
    pub fn short(&self) -> String {
        if self.listener.is_empty() {
            self.policy.clone()
        } else {
            format!("{}/{}", self.policy, self.listener)
        }
    }

    /// Whether a user means it by `POLICY`, `POLICY/LISTENER` or `NAMESPACE/POLICY/LISTENER`, within a namespace if one is
    /// given.
    pub fn is(&self, wanted: Option<&str>, namespace: Option<&str>) -> bool {
        let Some(wanted) = wanted else {
            return self.is_in(namespace);
        };
        if wanted.matches('/').count() == 2 {
            return wanted == format!("{}/{}", self.namespace, self.short());
        }
        self.is_in(namespace) && (wanted == self.policy || wanted == self.short())
    }

    /// Whether it is in this namespace; everything is in none.
    pub fn is_in(&self, namespace: Option<&str>) -> bool {
        self.namespace.is_empty() || namespace.is_none_or(|namespace| namespace == self.namespace)
    }
}

impl std::fmt::Display for PolicyName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.short())
    }
}

/// A Pod's name as users write it: `POD`, in the namespace that is meant, or `NAMESPACE/POD`.
pub fn pod_name(text: &str, namespace: &str) -> PodName {
    let (namespace, name) = text.split_once('/').unwrap_or((namespace, text));
    PodName {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_found_by_each_of_its_names() {
        let name = PolicyName::parse("shop/web/http");
        assert_eq!(
            (name.to_string().as_str(), name.short().as_str()),
            ("shop/web/http", "web/http")
        );
        for wanted in [None, Some("web"), Some("web/http")] {
            assert!(
                name.is(wanted, Some("shop")) && name.is(wanted, None),
                "{wanted:?}"
            );
            assert!(!name.is(wanted, Some("other")), "{wanted:?}");
        }
        assert!(
            name.is(Some("shop/web/http"), Some("other")),
            "it says where"
        );
        assert!(!name.is(Some("web/https"), None) && !name.is(Some("shop/web"), None));
        let file = PolicyName::parse("web");
        assert!(file.is(Some("web"), Some("shop")) && file.to_string() == "web");
    }

    #[test]
    fn a_dataplane_that_complains_is_quoted_and_one_of_another_version_is_told() {
        let ran = |code, stdout: &str, stderr: &str| ExecOutput {
            code,
            stdout: stdout.into(),
            stderr: stderr.into(),
        };
        let error = read::<DrainReply>(
            &ran(
                2,
                "",
                "lb-dataplane: no dataplane answers at unix:/run/baton/control.sock",
            ),
            &[0],
        );
        assert_eq!(
            error,
            Err("no dataplane answers at unix:/run/baton/control.sock".to_owned())
        );
        let error = read::<DrainReply>(&ran(0, r#"{"other": 1}"#, ""), &[0]).expect_err("odd");
        assert!(error.contains("is it of another version?"), "{error}");
        assert!(complaint(&ran(137, "", "")).contains("137"));
        let good = read::<DrainReply>(&ran(0, r#"{"backends": 1, "bySnapshot": 0}"#, ""), &[0]);
        assert_eq!(
            good,
            Ok(DrainReply {
                backends: 1,
                by_snapshot: 0
            })
        );
    }
}
