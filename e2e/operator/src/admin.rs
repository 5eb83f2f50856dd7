//! What an admin does and sees, and what kubelets say. Each failure shows the operator's log.

use crate::{
    apply::{apply, path, send},
    cluster::{get, wait_for},
};
use anyhow::{Context, Result};
use hyper::Method;
use kube::Client;
use serde_json::{Value, json};
use std::{fs, path::PathBuf};

/// An admin.
#[derive(Clone)]
pub struct Admin {
    /// May do anything.
    pub client: Client,
    log: Option<PathBuf>,
}

impl Admin {
    /// Who shows this log of an operator if something is not as expected.
    #[must_use]
    pub fn new(client: Client, log: Option<PathBuf>) -> Self {
        Self { client, log }
    }

    /// The operator's log, for a failure's message.
    #[must_use]
    pub fn log(&self) -> String {
        let log = self.log.as_ref().and_then(|log| fs::read(log).ok());
        String::from_utf8_lossy(&log.unwrap_or_default()).into_owned()
    }

    /// Applies a manifest.
    pub async fn apply(&self, manifest: &Value) -> Result<Value> {
        apply(&self.client, manifest).await?.object()
    }

    /// Deletes an object.
    pub async fn delete(&self, manifest: &Value) -> Result<()> {
        self.delete_with(manifest, &json!({})).await
    }

    /// Deletes an object with options, as a grace period.
    pub async fn delete_with(&self, manifest: &Value, options: &Value) -> Result<()> {
        let path = path(manifest).context("a manifest needs a name")?;
        let kind = "application/json";
        let answer = send(&self.client, Method::DELETE, &path, kind, options).await?;
        answer.object()?;
        Ok(())
    }

    /// Changes some fields of an object, or of a subresource (as `/status`).
    pub async fn merge(&self, manifest: &Value, subresource: &str, patch: &Value) -> Result<Value> {
        let path = path(manifest).context("a manifest needs a name")?;
        let uri = format!("{path}{subresource}");
        let kind = "application/merge-patch+json";
        let answer = send(&self.client, Method::PATCH, &uri, kind, patch).await?;
        answer.object()
    }

    /// The object of a manifest as it is stored.
    pub async fn get(&self, manifest: &Value) -> Result<Value> {
        let path = path(manifest).context("a manifest needs a name")?;
        get(&self.client, &path).await
    }

    /// Says of a pod what a kubelet would: it runs, it is ready, this is its address.
    pub async fn pod_status(&self, namespace: &str, name: &str, ip: &str) -> Result<()> {
        let pod = crate::cluster::pod(namespace, name);
        let status = json!({ "status": {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{ "ip": ip }],
            "conditions": [{ "type": "Ready", "status": "True" }],
        }});
        self.merge(&pod, "/status", &status).await?;
        Ok(())
    }

    /// A pod that runs at an address on a node.
    pub async fn pod(&self, pod: &Value, node: &str, ip: &str) -> Result<()> {
        let mut pod = pod.clone();
        pod["spec"]["nodeName"] = node.into();
        self.apply(&pod).await?;
        let text = |key: &str| pod["metadata"][key].as_str().unwrap_or_default();
        self.pod_status(text("namespace"), text("name"), ip).await
    }

    /// A node.
    pub async fn node(&self, name: &str) -> Result<()> {
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
        self.apply(&node).await?;
        Ok(())
    }

    /// Waits until `wanted` holds of an object as it is stored.
    ///
    /// # Errors
    /// At the deadline, with what was not so and the operator's log.
    pub async fn until(
        &self,
        what: &str,
        manifest: &Value,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let found = wait_for(what, async || {
            let stored = self.get(manifest).await?;
            anyhow::ensure!(wanted(&stored), "{stored}");
            Ok(stored)
        });
        found.await.with_context(|| self.log())
    }

    /// Waits until a condition of a policy has this status and is about the newest generation;
    /// gives the condition.
    ///
    /// # Errors
    /// At the deadline, with the status and the operator's log.
    pub async fn condition(&self, policy: &Value, kind: &str, status: &str) -> Result<Value> {
        let what = format!("{kind} is {status}");
        self.condition_where(&what, policy, kind, |c| c["status"] == status).await
    }

    /// Waits until `wanted` holds of a condition of a policy that is about the newest generation;
    /// gives the condition.
    pub async fn condition_where(
        &self,
        what: &str,
        policy: &Value,
        kind: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let found = wait_for(what, async || {
            let stored = self.get(policy).await?;
            let found = condition(&stored, kind).filter(|c| {
                c["observedGeneration"] == stored["metadata"]["generation"] && wanted(c)
            });
            found.with_context(|| stored["status"].to_string())
        });
        found.await.with_context(|| self.log())
    }
}

/// A condition of an object as it is stored.
#[must_use]
pub fn condition(stored: &Value, kind: &str) -> Option<Value> {
    let conditions = stored["status"]["conditions"].as_array()?;
    conditions.iter().find(|c| c["type"] == kind).cloned()
}
