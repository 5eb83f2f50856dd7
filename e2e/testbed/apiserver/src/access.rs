//! Who speaks to the server: identities, clients and kubeconfigs for them, and namespaces made for one test each.

use crate::{ApiServer, certificates::Certificates};
use anyhow::{Context, Result};
use hyper::Request;
use k8s_openapi::{
    api::{
        authentication::v1::{TokenRequest, TokenRequestSpec},
        core::v1::{self as core, ServiceAccount},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Config,
    api::PostParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use std::{
    process,
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

/// A token lives longer than any test.
const TOKEN_SECONDS: i64 = 24 * 3600;

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
    ///
    /// # Errors
    /// If the kubeconfig is not accepted.
    pub async fn client(&self) -> Result<Client> {
        let kubeconfig: Kubeconfig =
            serde_json::from_value(self.kubeconfig()).context("kubeconfig")?;
        let config =
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Client::try_from(config).context("making a client")
    }
}

/// A namespace for one test. It is not deleted: without controllers a deletion never ends, and the server's data
/// goes with the server.
#[derive(Clone, Debug)]
pub struct Namespace {
    /// Its name.
    pub name: String,
}

impl ApiServer {
    /// A client that may do anything.
    ///
    /// # Errors
    /// If it cannot be made.
    pub async fn admin(&self) -> Result<Client> {
        self.admin_identity().client().await
    }

    /// The ServiceAccount as an identity, by a token that the server issues. RBAC applies to it.
    ///
    /// # Errors
    /// If there is no such ServiceAccount.
    pub async fn service_account(&self, namespace: &str, name: &str) -> Result<Identity> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin().await?, namespace);
        let request = TokenRequest {
            spec: TokenRequestSpec {
                expiration_seconds: Some(TOKEN_SECONDS),
                ..Default::default()
            },
            ..Default::default()
        };
        let answer = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await;
        let answer = answer.with_context(|| format!("asking for a token of {namespace}/{name}"))?;
        let token = answer.status.context("the answer holds no token")?.token;
        Ok(Identity {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            proof: json!({ "token": token }),
            ..self.admin_identity().clone()
        })
    }

    /// A client that speaks as a ServiceAccount.
    ///
    /// # Errors
    /// If there is no such ServiceAccount.
    pub async fn client_as(&self, namespace: &str, service_account: &str) -> Result<Client> {
        self.service_account(namespace, service_account)
            .await?
            .client()
            .await
    }

    /// Makes a namespace of a name that nobody has, with the ServiceAccount `default` that Pods need.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn namespace(&self, purpose: &str) -> Result<Namespace> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{purpose}-{}-{number}", process::id());
        let client = self.admin().await?;
        let named = |name: &str| ObjectMeta {
            name: Some(name.to_owned()),
            ..Default::default()
        };
        let namespace = core::Namespace {
            metadata: named(&name),
            ..Default::default()
        };
        let namespaces: Api<core::Namespace> = Api::all(client.clone());
        namespaces
            .create(&PostParams::default(), &namespace)
            .await
            .with_context(|| format!("making namespace {name}"))?;
        let account = ServiceAccount {
            metadata: named("default"),
            ..Default::default()
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(client, &name);
        match accounts.create(&PostParams::default(), &account).await {
            Ok(_) => {}
            // The controllers run and were faster.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(e) => return Err(e).context("making the default ServiceAccount"),
        }
        Ok(Namespace { name })
    }
}

/// Whether `/readyz` says ok. On a thread and runtime of its own, since the caller may be inside a runtime.
pub(crate) fn check_ready(identity: &Identity) -> Result<()> {
    let ask = || -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let said = runtime.block_on(async {
            let request = Request::get("/readyz").body(Vec::new())?;
            anyhow::Ok(identity.client().await?.request_text(request).await?)
        })?;
        anyhow::ensure!(said == "ok", "/readyz says {said}");
        Ok(())
    };
    thread::scope(|scope| {
        let job = scope.spawn(ask);
        job.join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Base64, by the type that Kubernetes uses for bytes.
fn base64(bytes: &[u8]) -> Value {
    serde_json::to_value(k8s_openapi::ByteString(bytes.to_vec())).unwrap_or_default()
}
