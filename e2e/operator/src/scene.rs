//! A small world: an API server of its own with everything installed, one dataplane of the default class, an operator with
//! exactly its rights, and objects that a test changes.

use crate::{
    OPERATOR, OPERATOR_NAMESPACE,
    apply::{apply, path, send},
    cluster::{DEADLINE, get, install, wait_for},
    dataplane::{Arrival, Dataplane, own_address},
    operator::Operator,
};
use anyhow::{Context, Result};
use baton_api::{Policy, Snapshot};
use baton_apiserver::{ApiServer, own};
use baton_tls::Material;
use hyper::Method;
use k8s_openapi::ByteString;
use kube::Client;
use serde_json::{Value, json};
use std::{net::SocketAddr, path::PathBuf};

/// Labels of the dataplane's pod.
const DATAPLANE: &str = "test-dataplane";

/// The world. Fields drop in this order: the server last.
pub struct Scene {
    /// Started last, ended first.
    pub operator: Option<Operator>,
    /// Of the default class.
    pub dataplane: Dataplane,
    /// May do anything.
    pub admin: Client,
    kubeconfig: PathBuf,
    /// The only one of this world.
    pub server: ApiServer,
}

impl Scene {
    /// Starts all; `None` where there is no server.
    ///
    /// # Errors
    /// If something does not start.
    pub async fn start() -> Result<Option<Self>> {
        let Some(server) = own() else {
            return Ok(None);
        };
        install(&server).await?;
        let admin = server.admin().await?;
        let identity = server.service_account(OPERATOR_NAMESPACE, OPERATOR).await?;
        let kubeconfig = server.kubeconfig_file(&identity)?;
        let operator = Operator::start(&kubeconfig, server.folder(), "first")?;
        // The operator makes the certificates, and only then can a dataplane start.
        let material = wait_for("the dataplane's certificate", async || {
            material(&admin).await
        })
        .await;
        let material = material.with_context(|| operator.log())?;
        let dataplane = Dataplane::start(SocketAddr::new(own_address()?, 0), material).await?;
        let scene = Self {
            operator: Some(operator),
            dataplane,
            admin,
            kubeconfig,
            server,
        };
        scene.announce().await?;
        Ok(Some(scene))
    }

    /// Another operator of the same rights.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_operator(&self, identity: &str) -> Result<Operator> {
        Operator::start(&self.kubeconfig, self.server.folder(), identity)
    }

    /// The dataplane's class and its pod.
    async fn announce(&self) -> Result<()> {
        let address = self.dataplane.address();
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node-a" } });
        self.apply(&node).await?;
        let labels = json!({ "app": DATAPLANE });
        let mut pod = crate::cluster::pod(OPERATOR_NAMESPACE, "dataplane-0");
        pod["metadata"]["labels"] = labels.clone();
        pod["spec"]["nodeName"] = "node-a".into();
        // Nobody makes this namespace's default ServiceAccount; the operator's does.
        pod["spec"]["serviceAccountName"] = OPERATOR.into();
        self.apply(&pod).await?;
        let ip = address.ip().to_string();
        self.pod_status(OPERATOR_NAMESPACE, "dataplane-0", &ip)
            .await?;
        self.apply(&json!({
            "apiVersion": "baton.dev/v1alpha1",
            "kind": "BatonDataplane",
            "metadata": { "name": "default" },
            "spec": {
                "namespace": OPERATOR_NAMESPACE,
                "selector": { "matchLabels": labels },
                "controlPort": address.port(),
                // Of the ports that are left the control port must not be one: it is chosen by the kernel.
                "ports": { "first": 1024, "last": 1151 },
                "limits": { "backends": 4096 },
                "default": true,
            },
        }))
        .await?;
        Ok(())
    }

    /// Applies a manifest as the admin.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn apply(&self, manifest: &Value) -> Result<Value> {
        apply(&self.admin, manifest).await?.object()
    }

    /// Deletes an object as the admin.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn delete(&self, manifest: &Value) -> Result<()> {
        let path = path(manifest).context("a manifest needs a name")?;
        let none = json!({});
        send(
            &self.admin,
            Method::DELETE,
            &path,
            "application/json",
            &none,
        )
        .await?
        .object()?;
        Ok(())
    }

    /// Says of a pod what a kubelet would: it runs, it is ready, this is its address.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn pod_status(&self, namespace: &str, name: &str, ip: &str) -> Result<()> {
        let status = json!({ "status": {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{ "ip": ip }],
            "conditions": [{ "type": "Ready", "status": "True" }],
        }});
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/status");
        send(
            &self.admin,
            Method::PATCH,
            &path,
            "application/merge-patch+json",
            &status,
        )
        .await?
        .object()?;
        Ok(())
    }

    /// Waits until the dataplane has a snapshot of which `wanted` holds.
    ///
    /// # Errors
    /// At the deadline, with the operator's log.
    pub async fn served(&self, wanted: impl FnMut(&Snapshot) -> bool) -> Result<Arrival> {
        let found = self.dataplane.wait(DEADLINE, wanted).await;
        found.with_context(|| {
            self.operator
                .as_ref()
                .map_or_else(String::new, Operator::log)
        })
    }

    /// Waits until a condition of a policy has this status and is about the newest generation; gives the condition.
    ///
    /// # Errors
    /// At the deadline, with the status and the operator's log.
    pub async fn condition(&self, policy: &Value, kind: &str, status: &str) -> Result<Value> {
        let path = path(policy).context("a manifest needs a name")?;
        let found = wait_for(&format!("{kind} is {status}"), async || {
            let stored = get(&self.admin, &path).await?;
            let conditions = stored["status"]["conditions"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let found = conditions.into_iter().find(|c| {
                c["type"] == kind
                    && c["status"] == status
                    && c["observedGeneration"] == stored["metadata"]["generation"]
            });
            found.with_context(|| stored["status"].to_string())
        })
        .await;
        found.with_context(|| {
            self.operator
                .as_ref()
                .map_or_else(String::new, Operator::log)
        })
    }
}

/// The certificate that the operator has made for dataplanes.
async fn material(admin: &Client) -> Result<Material> {
    let secret = get(
        admin,
        &format!("/api/v1/namespaces/{OPERATOR_NAMESPACE}/secrets/baton-dataplane-tls"),
    )
    .await?;
    let field = |name: &str| -> Result<Vec<u8>> {
        let bytes: ByteString =
            serde_json::from_value(secret["data"][name].clone()).context("no such field")?;
        Ok(bytes.0)
    };
    Ok(Material::from_pem(
        &field("tls.crt")?,
        &field("tls.key")?,
        &field("ca.crt")?,
    )?)
}

/// A Service of one port, with no selector: its EndpointSlices are written by hand.
#[must_use]
pub fn service(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": name, "namespace": namespace },
        "spec": { "ports": [{ "port": 80, "targetPort": 8080 }] },
    })
}

/// Its EndpointSlice, as the controller would write it: ready endpoints.
#[must_use]
pub fn slice(namespace: &str, service: &str, addresses: &[&str]) -> Value {
    let endpoints: Vec<_> = addresses
        .iter()
        .map(|a| json!({ "addresses": [a], "conditions": { "ready": true, "serving": true, "terminating": false } }))
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{service}-1"),
            "namespace": namespace,
            "labels": { "kubernetes.io/service-name": service },
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{ "name": "", "port": 8080, "protocol": "TCP" }],
    })
}

/// A policy of one listener `main` on a port, for a Service's port 80.
#[must_use]
pub fn policy(namespace: &str, name: &str, service: &str, port: u16) -> Value {
    json!({
        "apiVersion": "baton.dev/v1alpha1",
        "kind": "LoadBalancerPolicy",
        "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "targetRef": { "name": service },
            "listeners": [{ "name": "main", "port": port, "servicePort": 80 }],
        },
    })
}

/// The policy of a snapshot that came of [`policy`].
#[must_use]
pub fn served_policy<'a>(
    snapshot: &'a Snapshot,
    namespace: &str,
    name: &str,
) -> Option<&'a Policy> {
    let name = format!("{namespace}/{name}/main");
    snapshot.policies.iter().find(|policy| policy.name == name)
}
