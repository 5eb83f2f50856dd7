//! The API server that the tests of one process share, with Baton's definitions and the operator's
//! rights installed.

use crate::{
    OPERATOR, OPERATOR_NAMESPACE,
    apply::{apply, send},
    manifests,
};
use anyhow::{Context, Result, bail};
use baton_apiserver::{ApiServer, shared};
use hyper::Method;
use kube::Client;
use serde_json::{Value, json};
use std::{
    future::Future,
    time::{Duration, Instant},
};
use tokio::sync::OnceCell;

/// What the server does by itself after a change takes a second or two; a busy machine gets more.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// The shared server and a client of each side.
#[derive(Clone)]
pub struct Cluster {
    /// The server.
    pub server: &'static ApiServer,
    /// May do anything.
    pub admin: Client,
    /// The operator, with exactly the rights of `operator/rbac`.
    pub operator: Client,
}

/// The shared server with everything installed; `None` where [`shared`] has none.
pub async fn cluster() -> Result<Option<Cluster>> {
    static INSTALLED: OnceCell<()> = OnceCell::const_new();
    let Some(server) = shared() else {
        return Ok(None);
    };
    INSTALLED.get_or_try_init(|| install(server)).await?;
    Ok(Some(Cluster {
        server,
        admin: server.admin().await?,
        operator: server.client_as(OPERATOR_NAMESPACE, OPERATOR).await?,
    }))
}

/// Installs the definitions and the operator's rights, and waits until the server acts on them.
pub async fn install(server: &ApiServer) -> Result<()> {
    install_with(server, &definitions()?).await
}

/// The same with other definitions.
pub async fn install_with(server: &ApiServer, definitions: &[Value]) -> Result<()> {
    let admin = server.admin().await?;
    for manifest in definitions {
        apply(&admin, manifest).await?.object()?;
        established(&admin, manifest).await?;
    }
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": OPERATOR_NAMESPACE } });
    apply(&admin, &namespace).await?.object()?;
    for manifest in manifests::folder("operator/rbac")? {
        apply(&admin, &manifest).await?.object()?;
    }
    let operator = server.client_as(OPERATOR_NAMESPACE, OPERATOR).await?;
    pod_patches_guarded(server, &operator).await
}

/// The definitions as an admin applies them: the documents of the generated YAML.
pub fn definitions() -> Result<Vec<Value>> {
    let mut definitions = Vec::new();
    for file in baton_crds::files()? {
        definitions.append(&mut manifests::parse(&file.yaml).context(file.name)?);
    }
    Ok(definitions)
}

/// Waits until a definition is established, so that its objects can be written.
///
/// # Errors
/// With the conditions, if it does not come to that.
pub async fn established(client: &Client, manifest: &Value) -> Result<Value> {
    let path = crate::apply::path(manifest).context("a definition has a name")?;
    wait_for("the definition is established", async || {
        let definition = get(client, &path).await?;
        let conditions = definition["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let established =
            conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True");
        if !established {
            bail!("{path}: {conditions:?}");
        }
        Ok(definition)
    })
    .await
}

/// An object as JSON.
pub async fn get(client: &Client, path: &str) -> Result<Value> {
    send(client, Method::GET, path, "application/json", &Value::Null).await?.object()
}

/// The server reads admission policies anew every now and then: waits until it refuses what
/// pod-patches.yaml forbids.
async fn pod_patches_guarded(server: &ApiServer, operator: &Client) -> Result<()> {
    let namespace = server.namespace("guard").await?.name;
    let admin = server.admin().await?;
    let pod = pod(&namespace, "probe");
    apply(&admin, &pod).await?.object()?;
    let uri = format!("/api/v1/namespaces/{namespace}/pods/probe?dryRun=All");
    let body = json!({ "metadata": { "labels": { "changed": "yes" } } });
    wait_for("the operator's pod patches are guarded", async || {
        let answer =
            send(operator, Method::PATCH, &uri, "application/merge-patch+json", &body).await?;
        match answer.outcome {
            Err(status) if status.code == 422 => Ok(()),
            other => bail!("expected a refusal, got {other:?}"),
        }
    })
    .await
}

/// A pod as a Deployment would make it.
#[must_use]
pub fn pod(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "namespace": namespace, "labels": { "app": "shop" }, "annotations": { "kept": "as it is" } },
        "spec": { "containers": [{ "name": "main", "image": "localhost/shop:1" }] },
    })
}

/// Looks until `look` succeeds.
///
/// # Errors
/// With the last failure, at the deadline.
pub async fn wait_for<T, F>(what: &str, mut look: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let end = Instant::now() + DEADLINE;
    loop {
        match look().await {
            Ok(found) => return Ok(found),
            Err(e) if Instant::now() >= end => {
                return Err(e.context(format!("{what}: not so after {DEADLINE:?}")));
            }
            Err(_) => tokio::time::sleep(LOOK_INTERVAL).await,
        }
    }
}
