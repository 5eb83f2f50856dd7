//! Each command: asks, judges, shows. The only place that knows both the cluster and the output.

use crate::{
    args::{self, Command, Explain, Options, Top},
    ask::{self, Dataplanes},
    attach::Attaching,
    check,
    cluster::{Cluster, Kind},
    explain,
    live::Live,
    status, sysdump, top, waits,
};
use anyhow::Context as _;
use baton_cli::{Flow, PolicyName, Show, code, line, repeated, silent, states, told};
use baton_crds::LoadBalancerPolicy;
use serde_json::json;
use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};
use tokio::time::Instant;

/// Flows that `explain` speaks about: more are not one flow that somebody asked for.
const EXPLAINED_MAX: usize = 8;

/// Does what is asked for; the exit code says how it went.
///
/// # Errors
/// The cluster could not be asked.
pub async fn run(command: &Command, options: &Options) -> anyhow::Result<ExitCode> {
    let show = Show::new("kubectl-baton", options.output);
    if let Command::Completion { shell } = command {
        return show.bytes(&args::completion(*shell)).map(|()| ExitCode::SUCCESS);
    }
    if let Command::Version { client: true } = command {
        let version = json!({"kubectlBaton": env!("CARGO_PKG_VERSION")});
        return show.print(&version, |_, _| client_version()).map(|()| ExitCode::SUCCESS);
    }
    let cluster = Live::new(options).await?;
    let to = Asking { cluster: &cluster, options, show };
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
            Command::Check => self.check().await,
            Command::Status => self.status().await,
            Command::Ask(command) => self.dataplanes().run(command).await,
            Command::Top(wanted) => self.top(wanted).await,
            Command::Explain(wanted) => self.explain(wanted).await,
            Command::Attach(wanted) => self.attaching()?.attach(wanted).await,
            Command::Detach(wanted) => self.attaching()?.detach(wanted).await,
            Command::Sysdump { file } => self.sysdump(file.clone()).await,
            Command::Version { .. } | Command::Completion { .. } => self.version().await,
        }
    }

    /// The namespace that is meant; none for all.
    fn namespace(&self) -> Option<&str> {
        if self.options.all_namespaces {
            return None;
        }
        Some(self.options.namespace.as_deref().unwrap_or_else(|| self.cluster.namespace()))
    }

    fn attaching(&self) -> anyhow::Result<Attaching<'_, C>> {
        let namespace = self.namespace();
        Ok(Attaching {
            cluster: self.cluster,
            show: &self.show,
            namespace: namespace.context("a Service is of one namespace: name it with -n")?,
        })
    }

    /// The cluster's dataplanes, and what the user said of how to ask them.
    fn dataplanes(&self) -> baton_cli::Asking<'_, Dataplanes<'_, C>> {
        baton_cli::Asking {
            fleet: Dataplanes(self.cluster),
            show: &self.show,
            namespace: self.namespace(),
        }
    }

    async fn check(&self) -> anyhow::Result<ExitCode> {
        let scene = check::look(self.cluster, self.namespace()).await?;
        let report = check::judge(&scene);
        self.show.print(&report, check::render)?;
        Ok(code(report.installable))
    }

    async fn status(&self) -> anyhow::Result<ExitCode> {
        let scene = status::look(self.cluster, self.namespace()).await?;
        let report = status::judge(&scene);
        self.show.print(&report, status::render)?;
        Ok(code(report.works))
    }

    async fn top(&self, wanted: &Top) -> anyhow::Result<ExitCode> {
        self.show.clear()?;
        let asking = self.dataplanes();
        let started = Instant::now();
        let mut before = None;
        repeated(wanted.again, async || {
            let answers = asking.states().await?;
            let mean = |name: &PolicyName| name.is(wanted.policy.as_deref(), self.namespace());
            let now = top::look(&told(&answers), mean, started.elapsed());
            let rows = wanted.rows.into();
            let frame = top::frame(before.as_ref(), &now, rows, silent(&answers));
            before = Some(now);
            self.show.frame(&frame, top::render)
        })
        .await
    }

    async fn explain(&self, wanted: &Explain) -> anyhow::Result<ExitCode> {
        let asking = self.dataplanes();
        let found = asking.meant(&wanted.flow, None, EXPLAINED_MAX).await?;
        if found.is_empty() {
            return Ok(ExitCode::FAILURE);
        }
        let (mut dataplanes, found): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        dataplanes.dedup();
        let states = states(&asking.fleet, &dataplanes).await;
        let policies = self.policies(&found).await?;
        let explained: Vec<explain::Explained> = found
            .iter()
            .map(|flow| {
                let state = states.iter().find(|state| state.name() == flow.dataplane);
                let state = state.and_then(|state| state.result.as_ref().ok());
                let all = state.map(|reply| &reply.state.policies);
                let state =
                    all.and_then(|all| all.iter().find(|policy| policy.name == flow.flow.policy));
                let name = PolicyName::parse(&flow.flow.policy);
                let policy = policies.get(&(name.namespace, name.policy));
                let spec = policy.map(|policy| {
                    let mut listeners = policy.spec.listeners.iter();
                    let its = listeners.find(|one| one.name == name.listener);
                    its.map_or_else(|| policy.spec.clone(), |one| policy.spec.of(one))
                });
                let spec = spec.as_ref();
                explain::explain(flow, &waits::Around { state, spec })
            })
            .collect();
        self.show.print(&explained, |explained, style| explain::render(explained, style))?;
        Ok(ExitCode::SUCCESS)
    }

    /// The policies of these flows, by namespace and name. A missing right is no obstacle.
    async fn policies(
        &self,
        flows: &[Flow],
    ) -> anyhow::Result<BTreeMap<(String, String), LoadBalancerPolicy>> {
        let mut found = BTreeMap::new();
        let names: std::collections::BTreeSet<String> =
            flows.iter().map(|flow| PolicyName::parse(&flow.flow.policy).namespace).collect();
        let mut unseen = Vec::new();
        for namespace in names.iter().filter(|name| !name.is_empty()) {
            let policies: Vec<LoadBalancerPolicy> =
                ask::optional(self.cluster, Kind::Policies, Some(namespace), &mut unseen).await?;
            found.extend(policies.into_iter().filter_map(|policy| {
                let metadata = &policy.metadata;
                Some(((metadata.namespace.clone()?, metadata.name.clone()?), policy))
            }));
        }
        self.show.notes(&unseen);
        Ok(found)
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
            let mut text = String::new();
            let done = format!(
                "{}: {} files, {} KiB. It holds no Secrets, annotations or environments, but names and addresses: look at it \
                 before you give it away.",
                path.display(),
                files.len(),
                bytes.div_ceil(1_024)
            );
            line(&mut text, &done);
            for what in &missing {
                line(&mut text, &format!("  missing: {what}"));
            }
            text
        })?;
        Ok(ExitCode::SUCCESS)
    }

    async fn version(&self) -> anyhow::Result<ExitCode> {
        let server = self.cluster.version().await?;
        let fleet = ask::fleet(self.cluster).await?;
        let asked = states(&Dataplanes(self.cluster), &fleet.dataplanes).await;
        let dataplanes: BTreeMap<&str, String> = asked
            .iter()
            .map(|one| {
                let version = one.result.as_ref().map(|answer| answer.state.version.clone());
                (one.name(), version.unwrap_or_else(|why| format!("unknown: {why}")))
            })
            .collect();
        let said = json!({"kubectlBaton": env!("CARGO_PKG_VERSION"), "kubernetes": server, "dataplanes": dataplanes});
        self.show.print(&said, |_, _| {
            let mut text = client_version();
            line(&mut text, &format!("Kubernetes {server}"));
            for (name, version) in &dataplanes {
                line(&mut text, &format!("{name} {version}"));
            }
            text
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
#[path = "commands_attach_tests.rs"]
mod attach_tests;
#[cfg(test)]
#[path = "capture_tests.rs"]
mod capture_tests;
#[cfg(test)]
#[path = "commands_flow_tests.rs"]
mod flow_tests;
#[cfg(test)]
#[path = "commands_tests.rs"]
mod tests;
