//! Who speaks to the server, and clients and kubeconfigs for them.

use crate::certificates::Certificates;
use anyhow::{Context, Result};
use hyper::Request;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use std::thread;

/// Somebody whom the server knows, with what proves it. Shows its name only.
#[derive(Clone)]
pub struct Identity {
    name: String,
    url: String,
    authority_pem: String,
    proof: Value,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Identity({} at {})", self.name, self.url)
    }
}

impl Identity {
    pub(crate) fn admin(url: &str, certificates: &Certificates) -> Self {
        Self {
            name: "admin".into(),
            url: url.into(),
            authority_pem: certificates.authority_pem.clone(),
            proof: json!({
                "client-certificate-data": base64(certificates.admin.certificate.as_bytes()),
                "client-key-data": base64(certificates.admin.key.as_bytes()),
            }),
        }
    }

    /// As the server calls it: `admin`, or `system:serviceaccount:NAMESPACE:NAME`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the server is.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The kubeconfig as JSON, which is YAML too. It holds the secret.
    #[must_use]
    pub fn kubeconfig(&self) -> Value {
        let cluster = json!({
            "server": self.url,
            "certificate-authority-data": base64(self.authority_pem.as_bytes()),
        });
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "test", "cluster": cluster }],
            "users": [{ "name": self.name, "user": self.proof }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": self.name } }],
            "current-context": "test",
        })
    }

    /// A client that speaks as this identity. It belongs to the calling test's runtime.
    pub async fn client(&self) -> Result<Client> {
        let kubeconfig: Kubeconfig =
            serde_json::from_value(self.kubeconfig()).context("kubeconfig")?;
        let config =
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Client::try_from(config).context("making a client")
    }

    /// The same server's, with another name and the token that proves it.
    pub(crate) fn with_token(&self, name: String, token: &str) -> Self {
        Self { name, proof: json!({ "token": token }), ..self.clone() }
    }

    /// Whether `/readyz` says ok. On a thread and runtime of its own, since the caller may be
    /// inside a runtime.
    pub(crate) fn check_ready(&self) -> Result<()> {
        let ask = || -> Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let said = runtime.block_on(async {
                let request = Request::get("/readyz").body(Vec::new())?;
                anyhow::Ok(self.client().await?.request_text(request).await?)
            })?;
            anyhow::ensure!(said == "ok", "/readyz says {said}");
            Ok(())
        };
        thread::scope(|scope| {
            let job = scope.spawn(ask);
            job.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// Base64, by the type that Kubernetes uses for bytes.
fn base64(bytes: &[u8]) -> Value {
    serde_json::to_value(k8s_openapi::ByteString(bytes.to_vec())).unwrap_or_default()
}
