//! `attach` and `detach`: Baton comes behind a Service that clients have, or goes, while they use
//! it.
//!
//! Owns the waits between the steps and the words about them. Each step leaves a state that serves
//! clients; whoever stops in between goes on by the same command.

mod plan;
pub mod service;

pub use plan::Scene;

use crate::{
    args::{Attach, Detach},
    ask::{INSTALL, optional},
    cluster::{Cluster, Edit, Kind},
    facts::typed,
    failure::Failure,
};
use anyhow::{Context as _, bail};
use baton_api::MANAGER;
use baton_cli::{Show, line};
use baton_crds::{ConditionStatus, LeadsTo, LoadBalancerPolicy, LoadBalancerPolicyStatus};
use plan::{Attachment, Detachment};
use serde_json::{Value, json};
use std::{process::ExitCode, time::Duration};
use tokio::time::{Instant, sleep};

/// Between two looks. Of one object or one Service's slices.
const LOOK: Duration = Duration::from_millis(200);
/// For an operator to take its slices away once the cluster has its own. It does so at once, but
/// for the time that nobody leads when the leader's node dies.
const OPERATOR_WITHIN: Duration = Duration::from_secs(10);
/// Who writes a slice.
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// The cluster, by the Service's selector.
const CLUSTER: &str = "endpointslice-controller.k8s.io";

/// A cluster, and where its answers go.
pub struct Attaching<'a, C> {
    pub cluster: &'a C,
    pub show: &'a Show,
    pub namespace: &'a str,
}

impl<C: Cluster> Attaching<'_, C> {
    /// What is there, and whether the cluster knows policies at all.
    async fn scene(&self) -> anyhow::Result<(Scene, bool)> {
        let mut unseen = Vec::new();
        let namespace = Some(self.namespace);
        let services = optional(self.cluster, Kind::Services, namespace, &mut unseen).await?;
        let policies = match self.cluster.list(Kind::Policies, namespace, None).await {
            Err(Failure::Missing(_)) => None,
            _ => Some(optional(self.cluster, Kind::Policies, namespace, &mut unseen).await?),
        };
        if !unseen.is_empty() {
            bail!("{}", unseen.join("; "));
        }
        let installed = policies.is_some();
        let scene = Scene {
            namespace: self.namespace.to_owned(),
            services,
            policies: policies.unwrap_or_default(),
        };
        Ok((scene, installed))
    }

    /// Puts Baton behind a Service.
    ///
    /// # Errors
    /// The cluster could not be asked.
    pub async fn attach(&self, wanted: &Attach) -> anyhow::Result<ExitCode> {
        let (scene, installed) = self.scene().await?;
        if !installed {
            bail!("Baton is not installed in this cluster: {INSTALL}");
        }
        let plan = match plan::attach(&scene, wanted) {
            Ok(plan) => plan,
            Err(why) => return Ok(self.refuse(&why)),
        };
        self.show.notes(&plan.notes);
        if wanted.dry_run {
            // As `kubectl get` has several: what reads manifests reads no bare list.
            let items = [&plan.pods.0, &plan.policy.0, &plan.manifest];
            let objects = json!({"apiVersion": "v1", "kind": "List", "items": items});
            self.show.print(&objects, |_, _| changes(&plan))?;
            return Ok(ExitCode::SUCCESS);
        }
        let began = Instant::now();
        for (kind, (object, there)) in
            [(Kind::Services, &plan.pods), (Kind::Policies, &plan.policy)]
        {
            if !there {
                let create = Edit::Create(object.clone());
                self.write(kind, name(object), create).await?;
                self.show.note(&format!("made {}", said(kind, name(object))));
            }
        }
        let policy = name(&plan.policy.0);
        let until = began + wanted.timeout;
        let stopped = self.until(until, || self.programmed(policy)).await?;
        if let Some(why) = stopped {
            return Ok(self.refuse(&format!(
                "no dataplane serves policy {policy} yet: {why}; clients of Service {} notice nothing so far; the same command \
                 goes on, `kubectl baton{} -n {} detach svc/{}` undoes it",
                plan.service,
                self.cluster.options(),
                self.namespace,
                plan.service
            )));
        }
        if !plan.patch.is_null() {
            let merge = Edit::Merge(plan.patch.clone());
            self.write(Kind::Services, &plan.service, merge).await?;
            self.show.note(&format!("Service {} has no selector any more", plan.service));
        }
        let stopped = self.until(until, || self.leads(policy, &plan.service)).await?;
        if let Some(why) = stopped {
            return Ok(self.refuse(&format!(
                "Service {} is policy {policy}'s, but does not lead to dataplanes yet: {why}; the same command goes on",
                plan.service
            )));
        }
        let status = self.status(policy).await?.unwrap_or_default();
        let seconds = began.elapsed().as_secs_f64();
        let done = json!({
            "service": plan.service, "policy": policy, "addresses": status.addresses, "seconds": seconds,
        });
        self.show.print(&done, |_, _| {
            said_line(&format!(
                "Service {} leads through Baton after {seconds:.1} s: {}",
                plan.service,
                status.addresses.join(", ")
            ))
        })?;
        Ok(ExitCode::SUCCESS)
    }

    /// Takes Baton from behind a Service.
    ///
    /// # Errors
    /// The cluster could not be asked.
    pub async fn detach(&self, wanted: &Detach) -> anyhow::Result<ExitCode> {
        // Whoever removed Baton with its definitions first wants this all the more.
        let (scene, _) = self.scene().await?;
        let plan = match plan::detach(&scene, &wanted.service) {
            Ok(plan) => plan,
            Err(why) => return Ok(self.refuse(&why)),
        };
        let began = Instant::now();
        if !plan.patch.is_null() {
            let merge = Edit::Merge(plan.patch.clone());
            self.write(Kind::Services, &plan.service, merge).await?;
            self.show.note(&format!("Service {} has its selector again", plan.service));
        }
        // Also where an earlier detach was stopped: nobody knows how far it was.
        let until = began + wanted.timeout;
        let by_itself = began + wanted.timeout.min(OPERATOR_WITHIN);
        let stopped = self.until(until, || self.slices_of_others(&plan.service, by_itself)).await?;
        if let Some(why) = stopped {
            return Ok(self.refuse(&format!(
                "Service {} still leads through Baton, too: {why}; the same command goes on",
                plan.service
            )));
        }
        // Nobody says when a node follows.
        self.show.note(&format!(
            "Service {} leads to its pods; dataplanes go on for {} s (--linger)",
            plan.service,
            wanted.linger.as_secs()
        ));
        sleep(wanted.linger).await;
        self.clear(&plan).await?;
        let seconds = began.elapsed().as_secs_f64();
        let done = json!({"service": plan.service, "policy": plan.policy, "seconds": seconds});
        self.show.print(&done, |_, _| {
            said_line(&format!(
                "Service {} leads to its pods after {seconds:.1} s; connections that Baton has go on through it until they \
                 end",
                plan.service
            ))
        })?;
        Ok(ExitCode::SUCCESS)
    }

    async fn clear(&self, plan: &Detachment) -> anyhow::Result<()> {
        for (kind, name) in [(Kind::Policies, &plan.policy), (Kind::Services, &plan.pods)] {
            if let Some(name) = name {
                self.write(kind, name, Edit::Delete).await?;
                self.show.note(&format!("deleted {}", said(kind, name)));
            }
        }
        Ok(())
    }

    async fn write(&self, kind: Kind, name: &str, edit: Edit) -> anyhow::Result<()> {
        Ok(self.cluster.write(kind, self.namespace, name, edit).await?)
    }

    fn refuse(&self, why: &str) -> ExitCode {
        self.show.note(why);
        ExitCode::FAILURE
    }

    /// Looks until nothing is in the way, or the time is over; then what it was.
    async fn until<F>(&self, until: Instant, look: impl Fn() -> F) -> anyhow::Result<Option<String>>
    where
        F: Future<Output = anyhow::Result<Option<String>>>,
    {
        loop {
            let Some(why) = look().await? else {
                return Ok(None);
            };
            if Instant::now() >= until {
                return Ok(Some(why));
            }
            sleep(LOOK).await;
        }
    }

    async fn status(&self, policy: &str) -> anyhow::Result<Option<LoadBalancerPolicyStatus>> {
        let found = self.cluster.get(Kind::Policies, self.namespace, policy).await?;
        let mut unread = Vec::new();
        let found: Vec<LoadBalancerPolicy> = typed(found.as_slice(), &mut unread);
        if !unread.is_empty() {
            bail!("{}", unread.join("; "));
        }
        Ok(found.into_iter().next().and_then(|p| p.status))
    }

    /// What keeps dataplanes from serving a policy.
    async fn programmed(&self, policy: &str) -> anyhow::Result<Option<String>> {
        let Some(status) = self.status(policy).await? else {
            return Ok(Some("the operator has not answered; is it running?".to_owned()));
        };
        Ok(["Accepted", "Programmed"].iter().find_map(|kind| {
            let condition = status.conditions.iter().find(|c| c.type_ == *kind);
            match condition {
                Some(condition) if condition.status == ConditionStatus::True => None,
                Some(condition) => Some(format!("{}: {}", condition.reason, condition.message)),
                None => Some(format!("its status says nothing of {kind}")),
            }
        }))
    }

    /// What keeps a Service from leading to dataplanes only.
    async fn leads(&self, policy: &str, service: &str) -> anyhow::Result<Option<String>> {
        let status = self.status(policy).await?.unwrap_or_default();
        let leads = status.frontend.map(|front| front.leads_to);
        if leads != Some(LeadsTo::Dataplanes) {
            let degraded = status.conditions.iter().find(|c| c.type_ == "Degraded");
            let said = degraded.map(|c| c.message.clone());
            return Ok(Some(said.unwrap_or_else(|| "the operator has not answered".to_owned())));
        }
        let others = self.slices(service, |by| by != MANAGER).await?.len();
        Ok((others > 0).then(|| format!("{others} EndpointSlices of the cluster are still there")))
    }

    /// What keeps a Service from leading past Baton only. Where no operator runs any more nobody
    /// else takes away what leads to dataplanes.
    async fn slices_of_others(
        &self,
        service: &str,
        by_itself: Instant,
    ) -> anyhow::Result<Option<String>> {
        let ours = self.slices(service, |by| by == MANAGER).await?;
        if ours.is_empty() {
            return Ok(None);
        }
        let by_cluster = self.slices(service, |by| by == CLUSTER).await?;
        if by_cluster.is_empty() || Instant::now() < by_itself {
            let count = ours.len();
            return Ok(Some(format!("{count} EndpointSlices of Baton are still there")));
        }
        for slice in ours {
            self.write(Kind::EndpointSlices, &slice, Edit::Delete)
                .await
                .context("no operator takes away what leads to dataplanes")?;
            self.show.note(&format!(
                "deleted {}, as no operator does",
                said(Kind::EndpointSlices, &slice)
            ));
        }
        Ok(None)
    }

    /// The slices of a Service, by who writes them.
    async fn slices(
        &self,
        service: &str,
        is: impl Fn(&str) -> bool,
    ) -> anyhow::Result<Vec<String>> {
        let label = format!("kubernetes.io/service-name={service}");
        let listed =
            self.cluster.list(Kind::EndpointSlices, Some(self.namespace), Some(&label)).await?;
        let by = |slice: &&Value| {
            let by = slice["metadata"]["labels"][MANAGED_BY].as_str();
            is(by.unwrap_or_default())
        };
        let found = listed.items.iter().filter(by);
        Ok(found.map(|slice| name(slice).to_owned()).collect())
    }
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn said(kind: Kind, name: &str) -> String {
    format!("{} {name}", kind.names().2)
}

fn said_line(content: &str) -> String {
    let mut text = String::new();
    line(&mut text, content);
    text
}

/// Each change in words, for a dry run.
fn changes(plan: &Attachment) -> String {
    let mut text = String::new();
    let mut say = |content: String| line(&mut text, &content);
    for (kind, (object, there)) in [("Service", &plan.pods), ("LoadBalancerPolicy", &plan.policy)] {
        let does = if *there { "is there" } else { "create" };
        say(format!("{does}  {kind} {}", name(object)));
        for field in brief(&object["spec"]) {
            say(format!("          {field}"));
        }
    }
    if plan.patch.is_null() {
        say(format!("is done  Service {}", plan.service));
    } else {
        say(format!("change  Service {}", plan.service));
        let selector = &plan.patch["metadata"]["annotations"][baton_api::SELECTOR_ANNOTATION];
        let selector = selector.as_str().unwrap_or_default();
        say(format!("        - spec.selector: {selector}"));
    }
    for what in ["labels", "annotations"] {
        let all = plan.patch["metadata"][what].as_object();
        for (key, value) in all.into_iter().flatten() {
            let value = value.as_str().unwrap_or_default();
            say(format!("        + metadata.{what}[{key}]: {value}"));
        }
    }
    say("nothing was changed (--dry-run)".to_owned());
    text
}

/// The fields of a spec, one a line.
fn brief(spec: &Value) -> Vec<String> {
    let fields = spec.as_object().into_iter().flatten();
    fields.map(|(key, value)| format!("spec.{key}: {value}")).collect()
}
