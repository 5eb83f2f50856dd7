//! Finds Baton's Pods, and takes requests of the control API to dataplanes, by running their own
//! program inside of them.
//!
//! Owns which Pods are meant, and what is run. Judges nothing.

use crate::{
    cluster::{Cluster, ExecOutput, Kind},
    facts::{Pod, places, typed},
    failure::Failure,
};
use anyhow::bail;
use baton_cli::{Nodes, Refused, Request};
use baton_crds::BatonDataplane;
use k8s_openapi::api::core::v1::Pod as CorePod;
use serde::de::DeserializeOwned;
use std::{collections::BTreeSet, io::Write, time::Duration};

/// The program in a dataplane's container, and the container's name in the chart.
const PROGRAM: &str = "lb-dataplane";
/// The label of all that the chart makes.
pub const CHART: &str = "app.kubernetes.io/name=baton";

/// What to do where Baton is not.
pub const INSTALL: &str =
    "`helm install baton charts/baton --namespace baton-system` (docs/install.md)";

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
    /// They may not be listed.
    pub classes_unseen: bool,
    /// Where the user says that Baton is.
    pub home: Option<String>,
    /// Their dataplanes, by name.
    pub dataplanes: Vec<Dataplane>,
    /// What could not be read.
    pub unread: Vec<String>,
}

/// What one dataplane said, or why it said nothing.
pub type Response<T> = baton_cli::Response<Dataplane, T>;

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

/// Objects that are of use but not needed: why they cannot be had is noted, and so is what cannot
/// be read.
///
/// # Errors
/// The cluster cannot be asked.
pub async fn optional<T: DeserializeOwned>(
    cluster: &impl Cluster,
    kind: Kind,
    namespace: Option<&str>,
    unseen: &mut Vec<String>,
) -> Result<Vec<T>, Failure> {
    let seen = permitted(cluster, kind, namespace, None, unseen).await?;
    Ok(seen.unwrap_or_default())
}

/// The same, with these labels; none if they cannot be listed.
///
/// # Errors
/// The cluster cannot be asked.
pub async fn permitted<T: DeserializeOwned>(
    cluster: &impl Cluster,
    kind: Kind,
    namespace: Option<&str>,
    labels: Option<&str>,
    unseen: &mut Vec<String>,
) -> Result<Option<Vec<T>>, Failure> {
    match cluster.list(kind, namespace, labels).await {
        Ok(listed) => {
            if listed.truncated {
                let (read, resource) = (listed.items.len(), kind.resource());
                unseen.push(format!(
                    "there are more {resource} than the {read} that this program reads"
                ));
            }
            Ok(Some(typed(&listed.items, unseen)))
        }
        Err(failure) if failure.is_for_all() => Err(failure),
        Err(failure) => {
            unseen.push(failure.to_string());
            Ok(None)
        }
    }
}

/// All classes and their dataplanes. Where classes may not be read or there are none, the chart's
/// labels are looked for in the namespace that the user names: anybody may put them on Pods, and
/// programs are run in these.
pub async fn fleet(cluster: &impl Cluster) -> Result<Fleet, Failure> {
    let mut fleet =
        Fleet { installed: true, home: cluster.home().map(str::to_owned), ..Fleet::default() };
    match cluster.list(Kind::Classes, None, None).await {
        Ok(listed) => fleet.classes = typed(&listed.items, &mut fleet.unread),
        Err(Failure::Missing(_)) => {
            fleet.installed = false;
            return Ok(fleet);
        }
        Err(failure @ Failure::Forbidden(_)) => {
            fleet.classes_unseen = true;
            fleet.unread.push(failure.to_string());
        }
        Err(failure) => return Err(failure),
    }
    let mut found = BTreeSet::new();
    for class in &fleet.classes {
        let selector = &class.spec.selector.match_labels;
        let labels: Vec<String> = selector.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let name = class.metadata.name.clone();
        let pods = pods(cluster, Some(&class.spec.namespace), &labels.join(","), &mut fleet.unread)
            .await?;
        for pod in pods {
            if found.insert(pod.name.clone()) {
                fleet.dataplanes.push(Dataplane { class: name.clone(), pod });
            }
        }
    }
    if fleet.classes.is_empty() {
        let Some(home) = &fleet.home else {
            // Where there simply is none, that is what there is to say.
            if !fleet.unread.is_empty() {
                fleet.unread.push(
                    "dataplanes: BatonDataplanes say which Pods these are: name the namespace that Baton is installed in with \
                     `--baton-namespace`"
                        .to_owned(),
                );
            }
            return Ok(fleet);
        };
        let pods = pods(cluster, Some(home), &part(PROGRAM), &mut fleet.unread).await?;
        fleet.dataplanes.extend(pods.into_iter().map(|pod| Dataplane { class: None, pod }));
    }
    fleet.dataplanes.sort_by(|a, b| a.pod.name.cmp(&b.pod.name));
    Ok(fleet)
}

/// The dataplanes of a cluster: each is asked by its own program, run inside of its Pod.
pub struct Dataplanes<'a, C>(pub &'a C);

impl baton_cli::Dataplane for Dataplane {
    fn name(&self) -> &str {
        &self.pod.name.name
    }

    fn uid(&self) -> &str {
        &self.pod.uid
    }

    fn terminating(&self) -> bool {
        self.pod.terminating
    }

    fn running(&self) -> bool {
        self.pod.running
    }
}

impl<C: Cluster> baton_cli::Fleet for Dataplanes<'_, C> {
    type Dataplane = Dataplane;
    const PODS: bool = true;
    /// Each look is a process in every dataplane's Pod.
    const LOOK: Duration = Duration::from_secs(1);

    fn command(&self, namespace: Option<&str>, words: &str) -> String {
        let options = self.0.options();
        match namespace {
            Some(namespace) => format!("kubectl baton{options} -n {namespace} {words}"),
            None => format!("kubectl baton{options} -A {words}"),
        }
    }

    async fn dataplanes(&self) -> anyhow::Result<(Vec<Dataplane>, Vec<String>)> {
        let fleet = fleet(self.0).await?;
        if !fleet.installed {
            bail!("Baton is not installed in this cluster: `kubectl baton status` says more");
        }
        Ok((fleet.dataplanes, fleet.unread))
    }

    async fn nodes(
        &self,
        namespace: Option<&str>,
        unseen: &mut Vec<String>,
    ) -> anyhow::Result<Nodes> {
        let slices = optional(self.0, Kind::EndpointSlices, namespace, unseen).await?;
        let mut nodes = Nodes::new();
        for ((namespace, _), places) in places(&slices) {
            let known = places
                .into_iter()
                .filter_map(|(address, node)| Some(((namespace.clone(), address), node?)));
            nodes.extend(known);
        }
        Ok(nodes)
    }

    async fn send(
        &self,
        to: &Dataplane,
        request: &Request,
        out: &mut dyn Write,
    ) -> Result<(), Refused> {
        let pod = &to.pod;
        if !pod.running {
            let why = pod.why.as_deref().unwrap_or("it does not say why");
            let why = format!("its container does not run: {why}");
            return Err(Refused::Unanswered(why));
        }
        let control = self.0.control().to_string();
        let mut command = vec![PROGRAM, "api", &request.path];
        if let Some(body) = &request.body {
            command.extend(["--post", body]);
        }
        if request.stop.is_some() {
            command.push("--end-on-input");
        }
        command.extend(["--control", &control]);
        let command: Vec<String> = command.into_iter().map(str::to_owned).collect();
        let (limit, stop) = (request.lasts, request.stop.clone());
        let ran = self.0.exec_into(&pod.name, pod.container(PROGRAM), &command, limit, stop, out);
        match ran.await {
            Ok(ran) if ran.code == 0 => Ok(()),
            Ok(ran) if ran.code == 1 => Err(Refused::Finally(complaint(&ran))),
            Ok(ran) => Err(Refused::Unanswered(complaint(&ran))),
            Err(Failure::Missing(_)) => Err(Refused::Unanswered("its Pod is gone".to_owned())),
            Err(other) => Err(Refused::Unanswered(other.to_string())),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dataplane_that_complains_is_quoted() {
        let ran = |code, stderr: &str| ExecOutput { code, stderr: stderr.into() };
        let said = "nobody listens at unix:/run/baton/control.sock";
        assert_eq!(complaint(&ran(2, &format!("lb-dataplane: {said}\n"))), said);
        assert!(complaint(&ran(137, "")).contains("137"));
    }
}
