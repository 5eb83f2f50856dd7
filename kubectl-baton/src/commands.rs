//! Each command: asks, judges, shows. The only place that knows both the cluster and the output.

use crate::{
    args::{
        self, Capture, Command, Drain, Explain, FlowId, Flows, Migrate, Options, Output, Top, Trace,
    },
    ask::{self, PolicyName},
    backends, capture,
    cluster::{Cluster, Kind},
    drain, explain,
    facts::{self, Places, places},
    flows,
    live::Live,
    migrate,
    show::{Progress, Show},
    status, sysdump, top, trace, waits,
};
use anyhow::{Context as _, bail};
use baton_crds::LoadBalancerPolicy;
use serde_json::json;
use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Flows that `explain` speaks about: more are not one flow that somebody asked for.
const EXPLAINED_MAX: usize = 8;

/// Does what is asked for; the exit code says how it went.
///
/// # Errors
/// The cluster could not be asked.
pub async fn run(command: &Command, options: &Options) -> anyhow::Result<ExitCode> {
    let show = Show::new(options.output);
    if let Command::Completion { shell } = command {
        return show
            .bytes(&args::completion(*shell))
            .map(|()| ExitCode::SUCCESS);
    }
    if let Command::Version { client: true } = command {
        let version = json!({"kubectlBaton": env!("CARGO_PKG_VERSION")});
        return show
            .print(&version, |_, _| client_version())
            .map(|()| ExitCode::SUCCESS);
    }
    let cluster = Live::new(options).await?;
    let to = Asking {
        cluster: &cluster,
        options,
        show,
    };
    to.run(command).await
}

fn client_version() -> String {
    format!("kubectl-baton {}\n", env!("CARGO_PKG_VERSION"))
}

/// A cluster, and what the user said of how to ask it.
pub struct Asking<'a, C> {
    /// The cluster.
    pub cluster: &'a C,
    /// The options.
    pub options: &'a Options,
    /// Where answers go.
    pub show: Show,
}

impl<C: Cluster> Asking<'_, C> {
    /// Does what is asked for, once there is a cluster.
    ///
    /// # Errors
    /// The cluster could not be asked.
    pub async fn run(&self, command: &Command) -> anyhow::Result<ExitCode> {
        match command {
            Command::Status => self.status().await,
            Command::Backends { policy } => self.backends(policy.as_deref()).await,
            Command::Flows(wanted) => self.flows(wanted).await,
            Command::Top(wanted) => self.top(wanted).await,
            Command::Explain(wanted) => self.explain(wanted).await,
            Command::Drain(wanted) => self.drain(wanted).await,
            Command::Capture(wanted) => self.capture(wanted).await,
            Command::Migrate(wanted) => self.migrate(wanted).await,
            Command::Trace(wanted) => self.trace(wanted).await,
            Command::Sysdump { file } => self.sysdump(file.clone()).await,
            Command::Version { .. } | Command::Completion { .. } => self.version().await,
        }
    }

    /// The namespace that is meant; none for all.
    fn namespace(&self) -> Option<&str> {
        if self.options.all_namespaces {
            return None;
        }
        Some(
            self.options
                .namespace
                .as_deref()
                .unwrap_or_else(|| self.cluster.namespace()),
        )
    }

    /// Classes and dataplanes; an error where Baton is not installed.
    async fn fleet(&self) -> anyhow::Result<ask::Fleet> {
        let fleet = ask::fleet(self.cluster).await?;
        if !fleet.installed {
            bail!("Baton is not installed in this cluster: `kubectl baton status` says more");
        }
        fleet.unread.iter().for_each(|text| self.show.note(text));
        Ok(fleet)
    }

    async fn status(&self) -> anyhow::Result<ExitCode> {
        let scene = status::look(self.cluster, self.namespace()).await?;
        let report = status::judge(&scene);
        self.show.print(&report, status::render)?;
        Ok(code(report.works))
    }

    async fn states(&self) -> anyhow::Result<Vec<ask::Response<baton_api::StateReply>>> {
        let fleet = self.fleet().await?;
        ask::heard(ask::states(self.cluster, &fleet.dataplanes).await)
    }

    async fn backends(&self, policy: Option<&str>) -> anyhow::Result<ExitCode> {
        let answers = self.states().await?;
        let mut unseen = ask::silent(&answers);
        let slices = ask::optional(
            self.cluster,
            Kind::EndpointSlices,
            self.namespace(),
            &mut unseen,
        );
        let places: Places = places(&slices.await?);
        unseen.iter().for_each(|text| self.show.note(text));
        let found = backends::backends(&answers, &places, |name| name.is(policy, self.namespace()));
        if let (true, Some(policy)) = (found.is_empty(), policy) {
            self.show.note(&unknown(&answers, policy, self.namespace()));
            return Ok(ExitCode::FAILURE);
        }
        self.show
            .print(&found, |found, style| backends::render(found, style))?;
        Ok(ExitCode::SUCCESS)
    }

    async fn flows(&self, wanted: &Flows) -> anyhow::Result<ExitCode> {
        if !wanted.watch {
            let found = self.flows_once(wanted).await?;
            found.silent.iter().for_each(|text| self.show.note(text));
            self.show.print(&found, flows::render)?;
            return Ok(ExitCode::SUCCESS);
        }
        self.show.clear()?;
        let mut looks = ticks(wanted.again);
        let mut left = wanted.again.count;
        while left != Some(0) {
            looks.tick().await;
            let found = self.flows_once(wanted).await?;
            self.show.frame(&found, flows::render)?;
            left = left.map(|left| left - 1);
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn flows_once(&self, wanted: &Flows) -> anyhow::Result<flows::Flows> {
        let answers = self
            .flow_views(wanted.backend.as_deref(), flows::asked(wanted))
            .await?;
        Ok(flows::flows(&answers, wanted, self.namespace()))
    }

    async fn flow_views(
        &self,
        backend: Option<&str>,
        limit: u32,
    ) -> anyhow::Result<Vec<ask::Response<ask::Views>>> {
        let fleet = self.fleet().await?;
        let answers = ask::flows(self.cluster, &fleet.dataplanes, backend, limit).await;
        ask::heard(answers)
    }

    async fn top(&self, wanted: &Top) -> anyhow::Result<ExitCode> {
        self.show.clear()?;
        let started = Instant::now();
        let mut looks = ticks(wanted.again);
        let (mut before, mut left) = (None, wanted.again.count);
        while left != Some(0) {
            looks.tick().await;
            let answers = self.states().await?;
            let mean = |name: &PolicyName| name.is(wanted.policy.as_deref(), self.namespace());
            let now = top::look(&answers, mean, started.elapsed());
            let frame = top::frame(
                before.as_ref(),
                &now,
                wanted.rows.into(),
                ask::silent(&answers),
            );
            self.show.frame(&frame, top::render)?;
            before = Some(now);
            left = left.map(|left| left - 1);
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The flows that are meant, `most` at most; none if that was noted.
    async fn meant(&self, wanted: &FlowId, most: usize) -> anyhow::Result<Vec<flows::Flow>> {
        // All that a dataplane tells: the one that is meant may be the last.
        let answers = self.flow_views(None, 100_000).await?;
        let meant = |flow: &flows::Flow| {
            wanted.client.has(flow.flow.client)
                && wanted
                    .dataplane
                    .as_ref()
                    .is_none_or(|dataplane| *dataplane == flow.dataplane)
        };
        let found: Vec<flows::Flow> = flows::all(&answers).into_iter().filter(meant).collect();
        ask::silent(&answers)
            .iter()
            .for_each(|text| self.show.note(text));
        if found.is_empty() {
            self.show.note(&format!(
                "no dataplane has a flow of {wanted}: it has ended, or goes another way (behind a NAT its address is another one): \
                 `kubectl baton flows -A`"
            ));
        } else if found.len() > most {
            self.show.note(&format!(
                "{wanted} has {} flows: name one, as `kubectl baton flows -A -o wide --client {}` shows it",
                found.len(), wanted.client
            ));
            return Ok(Vec::new());
        }
        Ok(found)
    }

    async fn migrate(&self, wanted: &Migrate) -> anyhow::Result<ExitCode> {
        let found = self.meant(&wanted.flow, 1).await?;
        let Some(flow) = found.first() else {
            return Ok(ExitCode::FAILURE);
        };
        let fleet = self.fleet().await?;
        let mut dataplanes = fleet.dataplanes.iter();
        let Some(dataplane) = dataplanes.find(|d| d.pod.name.name == flow.dataplane) else {
            bail!("dataplane {} has ended", flow.dataplane);
        };
        let to = wanted.to.as_deref();
        match ask::migrate(self.cluster, dataplane, &flow.flow, to).await {
            Ok(reply) => {
                let outcome = migrate::Outcome {
                    id: flow.id.clone(),
                    client: flow.flow.client,
                    reply,
                };
                self.show
                    .print(&outcome, |outcome, _| migrate::render(outcome))?;
                Ok(ExitCode::SUCCESS)
            }
            Err(ask::Refused::Finally(why)) => {
                self.show.note(&format!("{} is not moved: {why}", flow.id));
                Ok(ExitCode::FAILURE)
            }
            Err(ask::Refused::Unanswered(why)) => {
                bail!("dataplane {} did not take the order: {why}", flow.dataplane)
            }
        }
    }

    async fn trace(&self, wanted: &Trace) -> anyhow::Result<ExitCode> {
        let mut looks = interval(wanted.interval);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let end = wanted.time.map(|time| Instant::now() + time);
        let mut cursors = trace::Cursors::default();
        let client = wanted.flow.as_ref().map(|flow| flow.client.to_string());
        let named = wanted.flow.as_ref().and_then(|flow| flow.dataplane.clone());
        let wide = self.options.output == Output::Wide;
        let (mut noted, mut behind) = (Vec::new(), false);
        loop {
            // One whose answer did not hold all is asked again at once.
            if !behind {
                looks.tick().await;
            }
            let last = end.is_some_and(|end| Instant::now() >= end);
            let mut fleet = self.fleet().await?;
            fleet
                .dataplanes
                .retain(|d| named.as_ref().is_none_or(|name| *name == d.pod.name.name));
            let since = |pod: &facts::Pod| cursors.since(&pod.uid, wanted.past);
            let answers =
                ask::events(self.cluster, &fleet.dataplanes, client.as_deref(), since).await;
            let answers = ask::heard(answers)?;
            behind = answers
                .iter()
                .any(|a| a.result.as_ref().is_ok_and(|told| told.more));
            let (lines, notes) = cursors.take(&answers, wanted, self.namespace());
            for line in &lines {
                self.show.line(line, |line, _| trace::render(line, wide))?;
            }
            // What stays as it is is said once.
            let new = notes.iter().filter(|note| !noted.contains(*note));
            new.for_each(|note| self.show.note(note));
            noted = notes;
            if last && !behind {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }

    async fn explain(&self, wanted: &Explain) -> anyhow::Result<ExitCode> {
        let found = self.meant(&wanted.flow, EXPLAINED_MAX).await?;
        if found.is_empty() {
            return Ok(ExitCode::FAILURE);
        }
        let names: Vec<&str> = found.iter().map(|flow| flow.dataplane.as_str()).collect();
        let mut fleet = self.fleet().await?;
        fleet
            .dataplanes
            .retain(|dataplane| names.contains(&dataplane.pod.name.name.as_str()));
        let states = ask::policies(self.cluster, &fleet.dataplanes).await;
        let policies = self.policies(&found).await?;
        let explained: Vec<explain::Explained> = found
            .iter()
            .map(|flow| {
                let state = states.iter().find(|state| state.name() == flow.dataplane);
                let state = state.and_then(|state| state.result.as_ref().ok());
                let state =
                    state.and_then(|all| all.iter().find(|policy| policy.name == flow.flow.policy));
                let name = PolicyName::parse(&flow.flow.policy);
                let spec = policies
                    .get(&(name.namespace, name.policy))
                    .map(|policy| &policy.spec);
                explain::explain(flow, &waits::Around { state, spec })
            })
            .collect();
        self.show.print(&explained, |explained, style| {
            explain::render(explained, style)
        })?;
        Ok(ExitCode::SUCCESS)
    }

    /// The policies of these flows, by namespace and name. A missing right is no obstacle.
    async fn policies(
        &self,
        flows: &[flows::Flow],
    ) -> anyhow::Result<BTreeMap<(String, String), LoadBalancerPolicy>> {
        let mut found = BTreeMap::new();
        let names: std::collections::BTreeSet<String> = flows
            .iter()
            .map(|flow| PolicyName::parse(&flow.flow.policy).namespace)
            .collect();
        let mut unseen = Vec::new();
        for namespace in names.iter().filter(|name| !name.is_empty()) {
            let policies: Vec<LoadBalancerPolicy> =
                ask::optional(self.cluster, Kind::Policies, Some(namespace), &mut unseen).await?;
            found.extend(policies.into_iter().filter_map(|policy| {
                let metadata = &policy.metadata;
                Some((
                    (metadata.namespace.clone()?, metadata.name.clone()?),
                    policy,
                ))
            }));
        }
        unseen.iter().for_each(|text| self.show.note(text));
        Ok(found)
    }

    async fn drain(&self, wanted: &Drain) -> anyhow::Result<ExitCode> {
        let home = match self.namespace() {
            Some(namespace) => namespace,
            None if wanted.pod.contains('/') => "",
            None => {
                bail!("a Pod is in one namespace: `-n NAMESPACE` instead of `-A`, or NAMESPACE/POD")
            }
        };
        let pod = ask::pod_name(&wanted.pod, home);
        let mut progress = Progress::default();
        let outcome = drain::run(self.cluster, wanted, &pod, &mut progress).await;
        drop(progress);
        let outcome = outcome?;
        self.show
            .print(&outcome, |outcome, _| drain::render(outcome))?;
        outcome
            .problems
            .iter()
            .for_each(|problem| self.show.note(problem));
        Ok(code(outcome.is_good()))
    }

    async fn capture(&self, wanted: &Capture) -> anyhow::Result<ExitCode> {
        let fleet = self.fleet().await?;
        let (namespace, all) = (self.namespace(), fleet.dataplanes);
        let (errands, notes) = capture::errands(self.cluster, wanted, namespace, all).await?;
        notes.iter().for_each(|text| self.show.note(text));
        let mut out = capture::output(wanted)?;
        let stop = capture::interruptions()?;
        let outcomes = capture::run(self.cluster, wanted, &errands, &stop, &mut *out).await?;
        let mut good = true;
        for (name, said) in outcomes {
            let text = match said {
                Ok(words) => format!("{name}: {words}"),
                Err(why) => {
                    good = false;
                    format!("dataplane {name} made no whole capture: {why}")
                }
            };
            self.show.note(&text);
        }
        Ok(code(good))
    }

    async fn sysdump(&self, file: Option<PathBuf>) -> anyhow::Result<ExitCode> {
        let now = jiff::Timestamp::now();
        let folder = format!("baton-sysdump-{}", now.strftime("%Y%m%d-%H%M%S"));
        let path = file.unwrap_or_else(|| PathBuf::from(format!("{folder}.tar.gz")));
        let (files, missing) = sysdump::collect(self.cluster).await?;
        let seconds = u64::try_from(now.as_second()).unwrap_or_default();
        let bytes = sysdump::write(&path, &folder, &files, seconds)
            .with_context(|| format!("{} cannot be written", path.display()))?;
        let said = json!({"file": path, "bytes": bytes, "files": files.len(), "missing": missing});
        self.show.print(&said, |_, _| {
            let mut text = format!(
                "{}: {} files, {} KiB. It holds no Secrets, annotations or environments, but names and addresses: look at it \
                 before you give it away.\n",
                path.display(),
                files.len(),
                bytes.div_ceil(1_024)
            );
            for line in &missing {
                text.push_str(&format!("  missing: {line}\n"));
            }
            text
        })?;
        Ok(ExitCode::SUCCESS)
    }

    async fn version(&self) -> anyhow::Result<ExitCode> {
        let server = self.cluster.version().await?;
        let fleet = ask::fleet(self.cluster).await?;
        let asked = ask::states(self.cluster, &fleet.dataplanes).await;
        let dataplanes: BTreeMap<&str, String> = asked
            .iter()
            .map(|one| {
                let version = one
                    .result
                    .as_ref()
                    .map(|answer| answer.state.version.clone());
                (
                    one.name(),
                    version.unwrap_or_else(|why| format!("unknown: {why}")),
                )
            })
            .collect();
        let said = json!({"kubectlBaton": env!("CARGO_PKG_VERSION"), "kubernetes": server, "dataplanes": dataplanes});
        self.show.print(&said, |_, _| {
            let mut text = client_version() + &format!("Kubernetes {server}\n");
            for (name, version) in &dataplanes {
                text.push_str(&format!("{name} {version}\n"));
            }
            text
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

fn code(good: bool) -> ExitCode {
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn ticks(again: args::Again) -> tokio::time::Interval {
    let mut looks = interval(again.interval);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    looks
}

/// No dataplane has the policy: names what there is instead.
fn unknown(
    answers: &[ask::Response<baton_api::StateReply>],
    policy: &str,
    namespace: Option<&str>,
) -> String {
    let said = answers
        .iter()
        .filter_map(|asked| asked.result.as_ref().ok());
    let names: std::collections::BTreeSet<String> = said
        .flat_map(|answer| &answer.state.policies)
        .map(|state| PolicyName::parse(&state.name))
        .filter(|name| name.is_in(namespace))
        .map(|name| name.to_string())
        .collect();
    let place = namespace.map_or_else(String::new, |namespace| {
        format!(" in namespace {namespace}")
    });
    let names: Vec<String> = names.into_iter().take(12).collect();
    match names.is_empty() {
        true => format!("no dataplane serves a policy{place}: `-A` looks at all namespaces"),
        false => format!(
            "no dataplane serves policy {policy}{place}: expected one of {}",
            names.join(", ")
        ),
    }
}

#[cfg(test)]
#[path = "commands_flow_tests.rs"]
mod flow_tests;
#[cfg(test)]
#[path = "commands_tests.rs"]
mod tests;
