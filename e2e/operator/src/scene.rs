//! A small world: an API server of its own with everything installed, one dataplane of the default
//! class, an operator with exactly its rights, and objects that a test changes.

pub use crate::objects::{has, policy, served_policy, service, slice};

use crate::{
    OPERATOR, OPERATOR_NAMESPACE,
    admin::Admin,
    class::Class,
    cluster::{DEADLINE, definitions, get, install_with, wait_for},
    dataplane::{Arrival, Dataplane, own_address},
    operator::Operator,
};
use anyhow::{Context, Result};
use baton_api::Snapshot;
use baton_apiserver::{ApiServer, own};
use baton_tls::Material;
use k8s_openapi::ByteString;
use kube::Client;
use serde_json::{Value, json};
use std::{net::SocketAddr, path::PathBuf};

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
    pub async fn start() -> Result<Option<Self>> {
        let spec = json!({ "default": true, "limits": { "backends": 4_096 } });
        Self::begin(&definitions()?, &spec).await
    }

    /// The same with older definitions, of which no field is used that they may not have.
    pub async fn start_older(definitions: &[Value]) -> Result<Option<Self>> {
        Self::begin(definitions, &json!({ "default": true })).await
    }

    async fn begin(definitions: &[Value], spec: &Value) -> Result<Option<Self>> {
        let Some(server) = own() else {
            return Ok(None);
        };
        install_with(&server, definitions).await?;
        let admin = server.admin().await?;
        let identity = server.service_account(OPERATOR_NAMESPACE, OPERATOR).await?;
        let kubeconfig = server.kubeconfig_file(&identity)?;
        let operator = Operator::start(&kubeconfig, server.folder(), "first")?;
        // The operator makes the certificates, and only then can a dataplane start.
        let material =
            wait_for("the dataplane's certificate", async || material(&admin).await).await;
        let material = material.with_context(|| operator.log())?;
        let dataplane = Dataplane::start(SocketAddr::new(own_address()?, 0), material).await?;
        let hands = Admin::new(admin.clone(), Some(operator.log_file().to_owned()));
        let mut class = Class::of(&hands, "default", vec![dataplane], spec).await?;
        let dataplane = class.dataplanes.pop().context("a dataplane")?;
        Ok(Some(Self { operator: Some(operator), dataplane, admin, kubeconfig, server }))
    }

    /// Another operator of the same rights.
    pub fn start_operator(&self, identity: &str) -> Result<Operator> {
        Operator::start(&self.kubeconfig, self.server.folder(), identity)
    }

    /// The admin's hands and eyes.
    #[must_use]
    pub fn hands(&self) -> Admin {
        let log = self.operator.as_ref().map(|o| o.log_file().to_owned());
        Admin::new(self.admin.clone(), log)
    }

    /// Applies a manifest as the admin.
    pub async fn apply(&self, manifest: &Value) -> Result<Value> {
        self.hands().apply(manifest).await
    }

    /// Deletes an object as the admin.
    pub async fn delete(&self, manifest: &Value) -> Result<()> {
        self.hands().delete(manifest).await
    }

    /// Applies a Service and a policy of the same name for it on a port; gives the policy.
    pub async fn web(&self, namespace: &str, name: &str, port: u16) -> Result<Value> {
        self.apply(&service(namespace, name)).await?;
        let policy = policy(namespace, name, name, port);
        self.apply(&policy).await?;
        Ok(policy)
    }

    /// Waits until the dataplane has a snapshot of which `wanted` holds.
    ///
    /// # Errors
    /// At the deadline, with the operator's log.
    pub async fn served(&self, wanted: impl FnMut(&Snapshot) -> bool) -> Result<Arrival> {
        let found = self.dataplane.wait(DEADLINE, wanted).await;
        found.with_context(|| self.operator.as_ref().map_or_else(String::new, Operator::log))
    }

    /// See [`Admin::condition`].
    ///
    /// # Errors
    /// At the deadline, with the status and the operator's log.
    pub async fn condition(&self, policy: &Value, kind: &str, status: &str) -> Result<Value> {
        self.hands().condition(policy, kind, status).await
    }
}

/// The certificate that the operator has made for dataplanes.
pub async fn material(admin: &Client) -> Result<Material> {
    let secret =
        get(admin, &format!("/api/v1/namespaces/{OPERATOR_NAMESPACE}/secrets/baton-dataplane-tls"))
            .await?;
    let field = |name: &str| -> Result<Vec<u8>> {
        let bytes: ByteString =
            serde_json::from_value(secret["data"][name].clone()).context("no such field")?;
        Ok(bytes.0)
    };
    Ok(Material::from_pem(&field("tls.crt")?, &field("tls.key")?, &field("ca.crt")?)?)
}
