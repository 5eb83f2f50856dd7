//! `crds --apply` and `verify`: the definitions on an API server are those of this version, and
//! what is installed works.
//!
//! Owns both commands, which the chart's hooks run once each. Never touches an object of a policy.

use crate::{
    args::{Apply, Verify, Workload},
    objects::RawClass,
    run::client,
};
use anyhow::{Context as _, bail};
use k8s_openapi::{
    api::apps::v1::{DaemonSet, Deployment},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use std::{
    future::Future,
    time::{Duration, Instant},
};
use tokio::time::{sleep, timeout};

/// Whose the definitions' fields are from then on, as `kubectl get --show-managed-fields` shows it.
const MANAGER: &str = "baton-crds";
/// One request to the API server.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// Between two looks at something that shall become so.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// For the API server to serve a definition that it has taken.
const ESTABLISHED_WITHIN: Duration = Duration::from_secs(60);
/// There is one class per set of dataplanes; a cluster with more than this has them looked at in
/// part.
const CLASSES_MAX: u32 = 100;

/// Applies this version's definitions, and waits until the API server serves them.
///
/// # Errors
/// The API server refuses, or does not answer.
pub fn apply(settings: &Apply) -> anyhow::Result<()> {
    block_on(async {
        let api: Api<CustomResourceDefinition> =
            Api::all(client(settings.kubeconfig.as_deref()).await?);
        for definition in baton_crds::definitions()? {
            let name = definition.name_any();
            // Its fields were Helm's or an admin's before: this version knows best what they are.
            let how = PatchParams::apply(MANAGER).force();
            let patch = Patch::Apply(&definition);
            limited(api.patch(&name, &how, &patch))
                .await
                .with_context(|| format!("the definition {name} cannot be applied"))?;
            until(ESTABLISHED_WITHIN, || definition_problem(&api, &definition)).await?;
            println!("{name}: applied, and served");
        }
        Ok(())
    })
}

/// Says whether what the chart installs works; waits for it up to a limit.
///
/// # Errors
/// What does not, and what to look at.
pub fn verify(settings: &Verify) -> anyhow::Result<()> {
    block_on(async {
        let client = client(settings.kubeconfig.as_deref()).await?;
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        let end = Instant::now() + settings.within;
        let left = || end.saturating_duration_since(Instant::now());
        for definition in baton_crds::definitions()? {
            until(left(), || definition_problem(&api, &definition)).await?;
            println!("{}: this version's", definition.name_any());
        }
        for workload in &settings.workloads {
            until(left(), || workload_problem(client.clone(), &settings.namespace, workload))
                .await?;
            println!("{workload}: all its Pods are ready");
        }
        let classes: Api<RawClass> = Api::all(client);
        until(left(), || class_problem(&classes)).await?;
        println!("BatonDataplane: accepted, and all dataplanes serve the newest snapshot");
        Ok(())
    })
}

pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the asynchronous runtime")?
        .block_on(work)
}

pub(crate) async fn limited<T>(
    request: impl Future<Output = kube::Result<T>>,
) -> anyhow::Result<T> {
    let answer = timeout(REQUEST_LIMIT, request).await;
    Ok(answer.context("no answer from the API server")??)
}

/// Looks until nothing is wrong any more; what was wrong last is the error.
pub(crate) async fn until<F: Future<Output = anyhow::Result<Option<String>>>>(
    within: Duration,
    mut look: impl FnMut() -> F,
) -> anyhow::Result<()> {
    let end = Instant::now() + within;
    loop {
        match look().await {
            Ok(None) => return Ok(()),
            Ok(Some(problem)) if Instant::now() >= end => bail!("{problem}"),
            Err(error) if Instant::now() >= end => return Err(error),
            Ok(Some(_)) | Err(_) => sleep(LOOK_EVERY).await,
        }
    }
}

async fn definition_problem(
    api: &Api<CustomResourceDefinition>,
    expected: &CustomResourceDefinition,
) -> anyhow::Result<Option<String>> {
    let name = expected.name_any();
    let Some(found) = limited(api.get_opt(&name)).await? else {
        return Ok(Some(format!(
            "the definition {name} is not installed: apply what `baton-operator crds` prints"
        )));
    };
    let same = found.spec.versions == expected.spec.versions;
    let conditions = found.status.and_then(|status| status.conditions);
    let served =
        conditions.iter().flatten().any(|c| c.type_ == "Established" && c.status == "True");
    Ok(if !same {
        Some(format!(
            "the definition {name} is another version's than {}: apply what `baton-operator crds` prints, with \
             --server-side --force-conflicts",
            env!("CARGO_PKG_VERSION")
        ))
    } else if !served {
        Some(format!("the API server does not serve {name} yet"))
    } else {
        None
    })
}

async fn workload_problem(
    client: Client,
    namespace: &str,
    workload: &Workload,
) -> anyhow::Result<Option<String>> {
    let pods = match workload {
        Workload::Deployment(name) => {
            let api: Api<Deployment> = Api::namespaced(client, namespace);
            let found = limited(api.get(name)).await;
            of_deployment(found.with_context(|| workload.to_string())?)
        }
        Workload::DaemonSet(name) => {
            let api: Api<DaemonSet> = Api::namespaced(client, namespace);
            let found = limited(api.get(name)).await;
            of_daemon_set(found.with_context(|| workload.to_string())?)
        }
    };
    Ok(pods.problem().map(|problem| {
        format!(
            "{workload}: {problem}: kubectl -n {namespace} describe pods, and their logs, say why"
        )
    }))
}

/// Pods of a workload, as its controller says.
#[derive(Default)]
struct Pods {
    /// What it says is of the newest specification.
    said: bool,
    wanted: i32,
    ready: i32,
    /// Of the newest specification.
    newest: i32,
    /// Of one before it. Those that end do not count.
    older: i32,
}

impl Pods {
    /// Whose Pods are not all there and ready. While new ones do not come up old ones are ready.
    fn problem(&self) -> Option<String> {
        let Self { said, wanted, ready, newest, older } = *self;
        if !said {
            Some("its controller has said nothing of the newest specification yet".to_owned())
        } else if ready < wanted {
            Some(format!("{ready} of {wanted} Pods are ready"))
        } else if newest < wanted {
            Some(format!("{newest} of {wanted} Pods are of the newest specification"))
        } else {
            (older > 0).then(|| format!("{older} Pods are of an older specification still"))
        }
    }
}

fn of_deployment(found: Deployment) -> Pods {
    let wanted = found.spec.and_then(|spec| spec.replicas).unwrap_or(1);
    let Some(status) = found.status else {
        return Pods::default();
    };
    let newest = status.updated_replicas.unwrap_or(0);
    Pods {
        said: status.observed_generation >= found.metadata.generation,
        wanted,
        ready: status.ready_replicas.unwrap_or(0),
        newest,
        older: status.replicas.unwrap_or(0) - newest,
    }
}

fn of_daemon_set(found: DaemonSet) -> Pods {
    let strategy = found.spec.and_then(|spec| spec.update_strategy).and_then(|s| s.type_);
    let Some(status) = found.status else {
        return Pods::default();
    };
    let wanted = status.desired_number_scheduled;
    // Somebody deletes the Pods one by one, when he wants to.
    let by_hand = strategy.as_deref() == Some("OnDelete");
    let newest = status.updated_number_scheduled.unwrap_or(0);
    Pods {
        said: status.observed_generation >= found.metadata.generation,
        wanted,
        ready: status.number_ready,
        newest: if by_hand { wanted } else { newest },
        older: 0,
    }
}

async fn class_problem(api: &Api<RawClass>) -> anyhow::Result<Option<String>> {
    let classes = limited(api.list(&ListParams::default().limit(CLASSES_MAX))).await?;
    if classes.items.is_empty() {
        return Ok(Some("there is no BatonDataplane: the chart makes one".to_owned()));
    }
    for class in &classes {
        for kind in ["Accepted", "Programmed"] {
            let conditions = class.status["conditions"].as_array();
            let condition = conditions.into_iter().flatten().find(|c| c["type"] == kind);
            let is_true = condition.is_some_and(|c| c["status"] == "True");
            if !is_true {
                let said = condition.and_then(|c| c["message"].as_str());
                return Ok(Some(format!(
                    "BatonDataplane {}: {kind} is not True: {}",
                    class.name_any(),
                    said.unwrap_or("the operator has said nothing yet")
                )));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn deployment(replicas: i32, status: &Value) -> Option<String> {
        let object = json!({
            "metadata": {"generation": 3}, "status": status,
            "spec": {"replicas": replicas, "selector": {}, "template": {}},
        });
        of_deployment(serde_json::from_value(object).expect("a Deployment")).problem()
    }

    fn daemon_set(strategy: &str, status: &Value) -> Option<String> {
        let object = json!({
            "metadata": {"generation": 3}, "status": status,
            "spec": {"updateStrategy": {"type": strategy}, "selector": {}, "template": {}},
        });
        of_daemon_set(serde_json::from_value(object).expect("a DaemonSet")).problem()
    }

    #[test]
    fn old_pods_that_are_ready_are_no_new_ones() {
        let said = |observed, replicas, ready, updated| {
            json!({
                "observedGeneration": observed, "replicas": replicas, "readyReplicas": ready, "updatedReplicas": updated,
            })
        };
        assert_eq!(deployment(2, &said(3, 2, 2, 2)), None);
        let of = |replicas, status: Value| deployment(replicas, &status).expect("a problem");
        // As the chart updates them: a new one that does not come up, beside all old ones.
        assert!(of(2, said(3, 3, 2, 1)).starts_with("1 of 2 Pods are of the newest"));
        assert!(of(1, said(3, 2, 1, 1)).starts_with("1 Pods are of an older"));
        assert!(of(2, said(3, 3, 1, 2)).starts_with("1 of 2 Pods are ready"));
        assert!(of(2, said(2, 2, 2, 2)).contains("said nothing"));
        assert!(of(2, Value::Null).contains("said nothing"));
    }

    #[test]
    fn nodes_that_wait_for_a_new_pod_count() {
        let said = |observed, ready, updated| {
            json!({
                "currentNumberScheduled": 3, "numberMisscheduled": 0, "desiredNumberScheduled": 3,
                "observedGeneration": observed, "numberReady": ready, "updatedNumberScheduled": updated,
            })
        };
        assert_eq!(daemon_set("RollingUpdate", &said(3, 3, 3)), None);
        let of = |status: Value| daemon_set("RollingUpdate", &status).expect("a problem");
        assert!(of(said(3, 3, 1)).starts_with("1 of 3 Pods are of the newest"));
        assert!(of(said(3, 2, 3)).starts_with("2 of 3 Pods are ready"));
        assert!(of(said(2, 3, 3)).contains("said nothing"));
        assert_eq!(daemon_set("OnDelete", &said(3, 3, 1)), None);
    }
}
